import numpy as np
import pytest

from recipes.node_classification import data
from recipes.node_classification.__main__ import RECIPE
from recipes.node_classification.model import prepare
from tests.graphs.test_readers import ROWS, write_planetoid
from tests.numerics import to_numpy

MODEL = (
    *("--heads", "2", "--key-dim", "2", "--walks", "3", "--walk-length", "2"),
    *("--epochs", "2", "--verbose", "0"),
)


def test_the_karate_club_is_that_of_networkx():
    networkx = pytest.importorskip("networkx")
    club = networkx.karate_club_graph()
    problem = data.karate_club()
    assert sorted(map(tuple, problem.graph.edges)) == sorted(map(tuple, map(sorted, club.edges)))
    officer = [club.nodes[member]["club"] != "Mr. Hi" for member in range(34)]
    assert problem.graph.label.tolist() == [int(one) for one in officer]


def test_parts_share_no_node_and_each_shows_its_own_labels():
    problem = data.karate_club()
    together = np.concatenate(list(problem.parts.values()))
    assert sorted(together) == list(range(34))
    for part, nodes in problem.parts.items():
        label = problem.only(part).label
        assert np.flatnonzero(label >= 0).tolist() == sorted(nodes)
        assert set(problem.labels(part)) == {0, 1}
        assert (label[nodes] == problem.graph.label[nodes]).all()


def test_planetoid_files_with_the_public_split(tmp_path):
    write_planetoid(tmp_path)
    arguments = ["--dataset", "made", "--data-dir", str(tmp_path)]
    problem = data.load(RECIPE.parse(arguments))
    assert problem.parts["train"].tolist() == [0, 1]
    assert problem.parts["test"].tolist() == [3, 5, 6]
    sums = problem.graph.node_features.sum(axis=1)
    np.testing.assert_allclose(sums, [1, 1, 0, 1, 0, 1, 1], rtol=1e-6)
    np.testing.assert_allclose(problem.graph.node_features[5], ROWS[3] / 7, rtol=1e-6)


@pytest.mark.slow_on("jax", "tensorflow")
def test_only_nodes_of_a_part_count():
    options = RECIPE.parse([*MODEL, "--dropout", "0"])
    training = prepare(RECIPE.trial(data.karate_club(), "gcn", options))
    inputs, labels, weights = training.test_batches[0]
    nodes = data.karate_club().parts["test"]
    assert np.flatnonzero(weights[0]).tolist() == nodes.tolist()
    predicted = to_numpy(training.model(inputs))[0].argmax(axis=-1)
    expected = np.mean(predicted[nodes] == labels[0, nodes])
    values = training.model.evaluate(training.test_batches, verbose=0, return_dict=True)
    assert values["accuracy"] == pytest.approx(expected)


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("attention", ["gcn", "gat", "edges", "graph_kernel"])
def test_the_loss_is_that_of_labelled_nodes_and_the_penalty(attention):
    options = RECIPE.parse([*MODEL, "--dropout", "0", "--penalty", "0.01"])
    training = prepare(RECIPE.trial(data.karate_club(), attention, options))
    model, (inputs, labels, _) = training.model, training.batches[0]
    probabilities = to_numpy(model(inputs))[0, data.TRAINED, labels[0, data.TRAINED]]
    kernels = [to_numpy(v) for v in model.trainable_variables if v.name != "bias"]
    assert all(kernel.ndim > 1 for kernel in kernels)
    squares = sum((kernel.astype("float64") ** 2).sum() for kernel in kernels)
    expected = -np.log(probabilities).mean() + 0.01 / 2 * squares
    values = model.evaluate(training.batches, verbose=0, return_dict=True)
    assert values["loss"] == pytest.approx(expected, rel=1e-5)
    assert values["cross_entropy"] == pytest.approx(-np.log(probabilities).mean(), rel=1e-5)


def test_facts_are_those_of_the_club():
    facts = RECIPE.facts(data.karate_club(), RECIPE.parse([]))
    assert facts["graph"] == {"nodes": 34, "edges": 78}
    assert facts["nodes"] == {"train": 2, "validation": 6, "test": 26}
