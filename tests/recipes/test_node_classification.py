from types import SimpleNamespace

import keras
import numpy as np
import pytest

from keras_graphattn.masks import RandomWalk
from recipes.common.data.graphs import joined_by_walks, walks_of
from recipes.node_classification import data
from recipes.node_classification.__main__ import RECIPE
from recipes.node_classification.model import build, prepare
from tests.graphs.test_readers import ROWS, write_planetoid
from tests.numerics import assert_close, to_numpy
from tests.recipes.command_line import assert_one_error_line, results_of

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


CITATIONS = ("--published", "--dataset", "cora", "--data-dir", "x")
FEATURES, CLASSES = 5, 3


def published_model(attention, *more):
    problem = SimpleNamespace(features=FEATURES, classes=["a", "b", "c"])
    options = RECIPE.parse([*CITATIONS, "--attention", attention, *more])
    return build(RECIPE.trial(problem, attention, options))


def kernel_attention(inputs, heads, size, outputs):
    """The number of weights: three projections of the inputs and one of the heads, with biases."""
    width = heads * size
    return 3 * (inputs * width + width) + width * outputs + outputs


OF_GKAT = kernel_attention(FEATURES, 8, 8, 64) + kernel_attention(64, 1, CLASSES, CLASSES)


@pytest.mark.parametrize(
    ("attention", "weights"),
    [
        # the matrix, two vectors of each head, the bias
        ("gat", (FEATURES * 64 + 2 * 64 + 64) + (64 * CLASSES + 2 * CLASSES + CLASSES)),
        # the matrix of queries and values, that of keys, the bias
        ("graph_kernel", (2 * FEATURES * 64 + 64) + (2 * 64 * CLASSES + CLASSES)),
        ("dynamic_graph_kernel", OF_GKAT),
        ("gcn", (FEATURES * 16 + 16) + (16 * CLASSES + CLASSES)),
    ],
)
def test_the_published_model_is_two_attentions_and_nothing_else(attention, weights):
    model = published_model(attention)
    assert model.count_params() == weights
    assert model.output_shape == (None, None, CLASSES)
    attentions = [layer for layer in model.layers if layer.weights]
    assert [layer.name for layer in attentions] == ["layer_1_attention", "layer_2_attention"]
    drops = [layer.rate for layer in model.layers if isinstance(layer, keras.layers.Dropout)]
    assert drops == [0.6, 0.6]
    configs = [layer.get_config() for layer in attentions]
    if attention != "gcn":
        assert [config["dropout"] for config in configs] == [0.6, 0.6]
        assert configs[0]["seed"] != configs[1]["seed"]
        assert [(one["num_heads"], one["key_dim"]) for one in configs] == [(8, 8), (1, CLASSES)]
    dynamic = [config.get("dynamic_walks", False) for config in configs]
    assert dynamic == [attention.startswith("dynamic")] * 2


def test_the_published_gkat_has_the_kernel_of_the_walks(tmp_path):
    problem = data.karate_club()
    options = RECIPE.parse([*CITATIONS, "--walks", "3", "--cache-dir", str(tmp_path)])
    trial = RECIPE.trial(problem, "graph_kernel", options)
    training, count = prepare(trial), problem.graph.num_nodes
    inputs = training.batches[0][0]
    assert training.model.input.keys() == inputs.keys()
    (first, second), kernel = inputs["edges"][0].T, np.eye(count)
    kernel[first, second] = kernel[second, first] = inputs["edge_weights"][0]
    (walks,) = walks_of([problem.graph], options)
    mask = RandomWalk(walks=walks)
    mask.build((None, None, 1, 1))
    assert_close(kernel, to_numpy(mask.dense(count))[0, 0], 1e-6)
    assert 0 < len(first) < count * (count - 1) / 2
    joined = joined_by_walks(problem.only("test"), options)
    np.testing.assert_array_equal(joined.label, problem.only("test").label)


def test_options_replace_published_ones():
    model = published_model("gat", "--coefficient-dropout", "0", "--head", "--heads", "2")
    assert model.count_params() == (FEATURES * 16 + 3 * 16) + (16 * 16 + 3 * 16) + 17 * CLASSES


def test_only_data_sets_of_the_paper_have_published_settings(capsys):
    for dataset in ("karate", "pubmed"):
        words = ["--dataset cora and citeseer", f"--dataset is {dataset}"]
        data = [] if dataset == "karate" else ["--data-dir", "x"]
        arguments = ["--published", "--dataset", dataset, *data]
        assert_one_error_line(RECIPE.main, arguments, words, capsys)


@pytest.mark.slow
def test_a_published_run_names_the_paper_and_what_was_changed(tmp_path, capsys):
    write_planetoid(tmp_path)
    for path in tmp_path.glob("ind.made.*"):
        path.rename(path.with_name(path.name.replace("made", "citeseer")))
    output = tmp_path / "output"
    without_walks = [*MODEL[:4], *MODEL[-4:]]
    arguments = ["--published", "--dataset", "citeseer", "--data-dir", str(tmp_path)]
    arguments += without_walks
    arguments += ["--cache-dir", str(tmp_path / "cache"), "--output", str(output)]
    assert RECIPE.main([*arguments, "--attention", "gat,gcn", "--skip-saved-model"]) == 0
    printed = capsys.readouterr().out
    assert "arXiv 1710.10903: GAT 0.725." in printed
    assert "arXiv 2107.07999: GKAT 0.730." in printed
    assert "not in arXiv 2107.07999: GCN." in printed
    assert "2 of the runs ended at the limit of 2 epochs." in printed
    results = results_of(output)
    assert results["protocol"] == "published"
    changed = ["epochs 2 (published: 1000)", "heads 2 (published: 8)", "key_dim 2 (published: 8)"]
    assert results["published"]["departures"] == changed


@pytest.mark.slow_on("jax")
def test_the_published_penalty_is_of_all_weights():
    options = RECIPE.parse([*MODEL, "--dropout", "0", "--penalty", "0.01", "--penalise-biases"])
    training = prepare(RECIPE.trial(data.karate_club(), "gat", options))
    for variable in training.model.trainable_variables:
        if variable.name == "bias":
            variable.assign(variable + 0.5)
    squares = sum((to_numpy(v) ** 2).sum() for v in training.model.trainable_variables)
    values = training.model.evaluate(training.batches, verbose=0, return_dict=True)
    expected = values["cross_entropy"] + 0.01 / 2 * squares
    assert values["loss"] == pytest.approx(expected, rel=1e-5)
