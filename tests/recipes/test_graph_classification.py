import argparse

import keras
import numpy as np
import pytest

from recipes.common.command.parsing import UsageError
from recipes.common.data.graphs import batches_of, labels_of
from recipes.common.training.graphs import inputs_of
from recipes.common.training.records import by_fold, table
from recipes.graph_classification import data
from recipes.graph_classification.__main__ import RECIPE
from recipes.graph_classification.model import build, prepare
from tests.graphs.test_readers import write_tu
from tests.numerics import to_numpy
from tests.recipes.command_line import assert_one_error_line, history_of, run
from tests.recipes.test_output import a_run

MODEL = "--heads 2 --key-dim 2 --feed-forward 4 --epochs 2 --verbose 0"


def loaded(*arguments):
    return data.load(RECIPE.parse([*arguments]))


def test_graphs_are_made_of_three_kinds_with_equal_mean_degrees():
    graphs = data.make(300, seed=0)
    assert np.bincount(labels_of(graphs)).tolist() == [100] * 3
    sizes = [graph.num_nodes for graph in graphs]
    assert 15 <= min(sizes) < max(sizes) <= 40
    largest = []
    for kind in range(3):
        own = graphs[kind::3]
        assert 3.7 < np.mean([2 * len(graph.edges) / graph.num_nodes for graph in own]) <= 4.0
        largest.append(max(np.bincount(graph.edges.ravel()).max() for graph in own))
    assert largest[0] < 10 < largest[1]  # hubs are of the second kind
    again = data.make(3, seed=0)
    assert all((a.edges == b.edges).all() for a, b in zip(again, graphs, strict=False))
    degrees = np.bincount(graphs[1].edges.ravel())
    assert (graphs[1].node_features.argmax(axis=1) == np.minimum(degrees, 20)).all()


def test_places_that_are_joined_are_the_nearest():
    random, again = (np.random.default_rng(5) for _ in range(2))
    edges = data.geometric(random, 12)
    places = again.random((12, 2))
    distances = np.linalg.norm(places[:, None] - places, axis=-1)
    joined = distances[tuple(edges.T)]
    apart = np.ones((12, 12), bool)
    apart[tuple(edges.T)] = False
    assert len(edges) == 24
    assert joined.max() < distances[np.triu(apart, 1)].min()


def places_of(problem, parts):
    """The numbers of the graphs of each part."""
    numbers = {id(graph): number for number, graph in enumerate(problem.graphs)}
    return {name: [numbers[id(graph)] for graph in part] for name, part in parts.splits.items()}


def has_all_classes(part):
    return set(labels_of(part)) == {0, 1, 2}


def part_of(problem, seed, **changed):
    options = {"validation_fraction": 0.1, "search": False, "standardise": False, **changed}
    return data.fold(problem, seed, argparse.Namespace(**options))


def test_standardised_features_have_the_moments_of_the_training_graphs():
    problem = loaded("--graphs", "60")
    raw, parts = part_of(problem, 0), part_of(problem, 0, standardise=True)
    nodes = np.concatenate([graph.node_features for graph in parts.train]).astype("float64")
    np.testing.assert_allclose(nodes.mean(axis=0), 0.0, atol=1e-5)
    varied = np.any(nodes != nodes[0], axis=0)
    assert varied.sum() > 5
    np.testing.assert_allclose(nodes.std(axis=0)[varied], 1.0, atol=1e-5)
    before = np.concatenate([graph.node_features for graph in raw.train]).astype("float64")
    spread = np.where(before.std(axis=0) > 0.0, before.std(axis=0), 1.0)
    for one, other in zip(parts.test, raw.test, strict=True):
        expected = (other.node_features - before.mean(axis=0)) / spread
        np.testing.assert_allclose(one.node_features, expected, atol=1e-5)
        assert (one.label, one.num_nodes) == (other.label, other.num_nodes)
        assert np.array_equal(one.edges, other.edges)


@pytest.mark.parametrize("seed", [0, 7])
def test_folds_test_on_each_graph_once_and_hold_out_from_the_training_graphs(seed):
    problem = loaded("--graphs", "60", "--data-seed", str(seed))
    tests = np.concatenate([test for _, test in problem.folds])
    assert sorted(tests) == list(range(60))
    validated = {}
    for fold in (0, 9, 10):
        parts = part_of(problem, fold, validation_fraction=0.2)
        places = places_of(problem, parts)
        assert sorted(np.concatenate(list(places.values()))) == list(range(60))
        assert places["test"] == problem.folds[fold % 10][1].tolist()
        assert has_all_classes(parts.test)
        assert has_all_classes(parts.validation)
        validated[fold] = places["validation"]
    assert validated[0] != validated[10]


@pytest.mark.parametrize("seed", [0, 3])
def test_a_search_never_sees_the_test_part_of_the_fold(seed):
    problem = loaded("--graphs", "120", "--search")
    train, test = problem.folds[seed]
    parts = part_of(problem, seed, search=True)
    places = places_of(problem, parts)
    assert sorted(np.concatenate(list(places.values()))) == sorted(train)
    assert not set(test) & set(places["test"])
    labels = labels_of([problem.graphs[place] for place in train])
    assert len(places["test"]) == sum(round(0.2 * count) for count in np.bincount(labels))
    assert has_all_classes(parts.test)
    assert has_all_classes(parts.validation)


@pytest.mark.slow_on("jax")
def test_what_a_search_tests_on_is_said(tmp_path, capsys):
    asked = "--graphs 60 --attention gcn --skip-saved-model --search --validation-fraction 0.2"
    run(RECIPE, tmp_path, MODEL, asked)
    printed = capsys.readouterr().out
    assert "graph classification, made, search on" in printed
    assert "trains and tests within fold s" in printed
    # a table of folds and one of a search never mix
    folds = f"{MODEL} {asked.replace('--search ', '')}".split()
    assert_one_error_line(RECIPE.main, [*folds, "--output", tmp_path], ["search"], capsys)


def tu_text(classes=2, graphs=24):
    """Paths of 3 to 6 nodes, of one tag for all."""
    lines = [str(graphs)]
    for number in range(graphs):
        size = 3 + number % 4
        lines.append(f"{size} {number % classes}")
        for node in range(size):
            near = [other for other in (node - 1, node + 1) if 0 <= other < size]
            lines.append(" ".join(map(str, [0, len(near), *near])))
    return "\n".join(lines) + "\n"


def test_published_folds_are_taken_and_equal_tags_give_way_to_degrees(tmp_path):
    folds = [(range(12), range(12, 24)), (range(12, 24), range(12))]
    folder = write_tu(tmp_path, tu_text(), folds)
    for place in (tmp_path, folder):
        problem = loaded("--dataset", "MADE", "--data-dir", str(place))
        assert problem.published
        assert [test.tolist() for _, test in problem.folds] == [[*range(12, 24)], [*range(12)]]
        assert problem.graphs[0].node_features.argmax(axis=1).tolist() == [1, 2, 1]
    text = tu_text().replace("0 1 1", "5 1 1")
    assert loaded("--dataset", "MADE", "--data-dir", str(tmp_path)).digest() == problem.digest()
    write_tu(tmp_path, text, folds)
    other = loaded("--dataset", "MADE", "--data-dir", str(tmp_path))
    assert other.graphs[0].node_features.shape == (3, 2)
    assert other.digest() != problem.digest()
    both = loaded("--dataset", "MADE", "--data-dir", str(tmp_path), "--degrees").graphs[0]
    assert both.node_features[:, :2].tolist() == other.graphs[0].node_features.tolist()
    assert both.node_features[:, 2:].argmax(axis=1).tolist() == [1, 2, 1]


@pytest.mark.parametrize(
    ("text", "words"), [("1\nwrong\n", "cannot be read.*line 2"), (tu_text(graphs=2), "too few")]
)
def test_other_files_and_too_few_graphs_are_refused(text, words, tmp_path):
    write_tu(tmp_path, text, ())
    with pytest.raises(UsageError, match=words):
        loaded("--dataset", "MADE", "--data-dir", str(tmp_path))


def test_batches_of_all_parts_have_the_same_shapes(tmp_path):
    problem = loaded("--graphs", "300")
    part = part_of(problem, 0)
    sizes = part.sizes(3)
    counts = [graph.num_nodes for graph in problem.graphs]
    shares = [np.mean(np.array(counts) <= size) for size in sizes]
    np.testing.assert_allclose(shares, [0.75, 0.9375, 1.0], atol=0.03)
    assert part.sizes(1) == [max(counts)]
    edges = part.edge_sizes(sizes)
    assert edges == sorted(set(edges))
    assert edges[-1] == max(len(graph.edges) for graph in problem.graphs)
    options = RECIPE.parse(["--cache-dir", str(tmp_path), "--batch-size", "8"])
    shapes = set()
    for graphs in part.splits.values():
        batches = batches_of(graphs, ("edges",), options, sizes=sizes, edge_sizes=edges)
        shapes |= {batches[i][0]["edges"].shape[1:] for i in range(batches.num_batches)}
    assert len(shapes) == 3


def test_a_last_batch_that_devices_cannot_share_is_refused(monkeypatch):
    problem = loaded("--graphs", "60")
    monkeypatch.setattr(keras.distribution, "list_devices", lambda *_: ["cpu:0", "cpu:1"])
    options = RECIPE.parse(["--batch-size", "10", "--distribute"])
    assert batches_of(problem.graphs[:32], ("edges",), options).num_batches == 4
    with pytest.raises(UsageError, match="1 of 31 graphs, cannot be shared out over 2 devices"):
        batches_of(problem.graphs[:31], ("edges",), options)


@pytest.mark.parametrize("decay", [False, True])
def test_the_learning_rate_falls_to_0_over_all_epochs_where_that_is_asked_for(decay):
    asked = ["--graphs", "60", "--attention", "gcn", "--learning-rate", "0.01", *MODEL.split()]
    options = RECIPE.parse([*asked, *(["--decay"] if decay else [])])
    training = prepare(RECIPE.trial(data.load(options), "gcn", options))
    optimizer, steps = training.model.optimizer, 2 * training.batches.num_batches
    rates = []
    for step in range(steps + 1):
        optimizer.iterations.assign(step)
        rates.append(float(to_numpy(optimizer.learning_rate)))
    expected = 0.01 * (1 - np.arange(steps + 1) / steps) if decay else [0.01] * (steps + 1)
    np.testing.assert_allclose(rates, expected, atol=1e-8)


@pytest.mark.parametrize("size", [(), ("--graph-size",)])
@pytest.mark.parametrize("pooling", ["mean", "sum", "max"])
def test_the_head_sees_the_pooled_nodes_of_every_layer(pooling, size):
    problem = loaded("--graphs", "60")
    options = RECIPE.parse([*MODEL.split(), "--pooling", pooling, "--no-normalise", *size])
    model = build(RECIPE.trial(problem, "gcn", options))
    graphs = problem.graphs[:3]
    inputs = batches_of(graphs, inputs_of("gcn"), options, sizes=[60])[0][0]
    names = ["embedding", "layer_1", "layer_2"]
    taken = [*(model.get_layer(name).output for name in names), model.get_layer("readout").output]
    *nodes, pooled = map(to_numpy, keras.Model(model.input, taken)(inputs))
    pool = getattr(np, pooling)
    for row, graph in enumerate(graphs):
        own = [layer[row, : graph.num_nodes] for layer in nodes]
        expected = np.concatenate([pool(one, axis=0) for one in own])
        if size:
            expected = np.append(expected, np.log(1 + graph.num_nodes))
        np.testing.assert_allclose(pooled[row], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow_on("jax", "tensorflow")
def test_seeds_are_folds_in_one_table(tmp_path):
    write_tu(tmp_path, tu_text(), [(range(12), range(12, 24)), (range(12, 24), range(12))])
    asked = f"--dataset MADE --data-dir {tmp_path} --attention gat --seeds 0,1 --skip-saved-model"
    results = run(RECIPE, tmp_path / "out", MODEL, asked)
    assert results["folds"] == {"count": 2, "published": True}
    (row,) = results["table"]
    assert row["seeds"] == 2
    assert row["test_accuracy_standard_deviation"] is not None
    model = keras.saving.load_model(tmp_path / "out" / "model.keras")
    assert set(model.input) == {"nodes", "node_mask", "edges"}


@pytest.mark.slow_on("jax", "tensorflow")
@pytest.mark.parametrize("metric", ["accuracy", "cross_entropy", "last_epoch"])
def test_what_chooses_the_epoch(metric, tmp_path, capsys):
    data = "--graphs 60 --attention gcn --skip-saved-model --validation-fraction 0.3"
    results = run(RECIPE, tmp_path, MODEL, data, f"--choose-by {metric} --epochs 6")
    (one,) = results["runs"]
    ranks = [(row["val_accuracy"], -row["val_cross_entropy"]) for row in history_of(tmp_path, one)]
    words = ["accuracy", "cross entropy"]
    if metric == "cross_entropy":
        ranks, words = [rank[::-1] for rank in ranks], words[::-1]
    chosen = f"validation {words[0]}, ties by validation {words[1]}"
    tested, epoch = "the epoch chosen on validation data", ranks.index(max(ranks)) + 1
    if metric == "last_epoch":
        chosen, tested, epoch = f"its last epoch; among runs: {chosen}", "the last epoch", 6
    assert one["chosen_epoch"] == epoch
    assert results["best_model"]["chosen_by"] == chosen
    assert f"test accuracy: at {tested}; mean" in capsys.readouterr().out


def test_all_epochs_are_trained_where_the_last_one_is_chosen():
    assert RECIPE.parse(["--choose-by", "last_epoch", "--epochs", "7"]).patience == 7


def test_trainings_of_a_fold_are_averaged_before_the_folds():
    accuracies = {0: 0.5, 1: 0.4, 10: 0.7, 20: 0.9}
    assert by_fold(accuracies) == accuracies
    assert by_fold(accuracies, 10) == pytest.approx({0: 0.7, 1: 0.4})
    runs = [a_run("gcn", seed, 1) for seed in (0, 1, 10, 21)]  # 0.5 + 0.01 seed
    (row,) = table(runs, folds=10)
    assert (row["seeds"], row["folds"]) == (4, 2)
    assert row["test_accuracy_mean"] == pytest.approx((0.55 + 0.61) / 2)
    assert row["test_accuracy_standard_deviation"] == pytest.approx(np.std([0.55, 0.61], ddof=1))
    assert "folds" not in table(runs)[0]


PUBLISHED_TINY = "--published --dataset MADE --heads 2 --key-dim 2 --feed-forward 4"


def published_data(folder, text):
    write_tu(folder, text, [(range(12), range(12, 24)), (range(12, 24), range(12))])
    return [*PUBLISHED_TINY.split(), "--data-dir", str(folder)]


@pytest.mark.parametrize("name", ["deep_multisets", "molecular_fingerprint"])
def test_models_without_structure_are_their_formulas(name, tmp_path):
    options = RECIPE.parse(published_data(tmp_path, tu_text()))
    problem = data.load(options)
    trial = RECIPE.trial(problem, name, options)
    training, served = prepare(trial), build(trial)
    served.set_weights(training.model.get_weights())
    inputs = batches_of(problem.graphs[:4], inputs_of(name), options, sizes=[9])[0][0]
    assert inputs["nodes"].shape[1] > max(graph.num_nodes for graph in problem.graphs)
    weights = [to_numpy(weight) for weight in served.weights]
    for row, graph in enumerate(problem.graphs[:4]):
        nodes = np.bincount(graph.edges.ravel())[:, None]  # degrees, as numbers
        np.testing.assert_array_equal(graph.node_features, nodes)
        *first, kernel, bias, last_kernel, last_bias = weights
        if name == "deep_multisets":
            nodes = np.maximum(nodes @ first[0] + first[1], 0)
        hidden = np.maximum(nodes.sum(axis=0) @ kernel + bias, 0)
        logits = hidden @ last_kernel + last_bias
        np.testing.assert_allclose(to_numpy(training.model(inputs))[row], logits, atol=1e-5)
        probabilities = np.exp(logits) / np.exp(logits).sum()
        np.testing.assert_allclose(to_numpy(served(inputs))[row], probabilities, atol=1e-5)


def test_of_the_published_models_gin_alone_normalises_over_the_batch(tmp_path):
    options = RECIPE.parse(published_data(tmp_path, tu_text()))
    problem = data.load(options)
    counts = {}
    for name in ("gcn", "gin"):
        model = build(RECIPE.trial(problem, name, options))
        kinds = [type(layer).__name__ for layer in model.layers]
        counts[name] = kinds.count("BatchNormalization")
    assert counts == {"gcn": 0, "gin": 2}


@pytest.mark.slow_on("jax", "tensorflow")
def test_a_published_run_counts_its_trainings_and_says_what_differs(tmp_path, capsys):
    asked = f"{' '.join(published_data(tmp_path, tu_text()))} --attention gin --seeds 0,1,2"
    more = f"--epochs 1 --skip-saved-model --verbose 0 --cache-dir {tmp_path / 'cache'}"
    results = run(RECIPE, tmp_path / "out", asked, more)
    assert results["protocol"] == "published"
    (row,) = results["table"]
    assert (row["seeds"], row["folds"]) == (3, 2)
    assert "epochs 1 (published: 1000)" in results["published"]["departures"]
    printed = capsys.readouterr().out
    for line in (
        "deviation over folds, each the mean of its trainings",
        "arXiv 2107.07999 has no number for MADE.",
        "trainings, 30 of 10 folds in the protocol: GIN 3 of 2.",
    ):
        assert line in printed


def test_the_number_of_the_paper_and_other_features_are_named(tmp_path):
    options = RECIPE.parse(["--published", "--dataset", "ENZYMES", "--data-dir", "x"])
    options.features = 3
    departures = RECIPE.deviations(options)
    assert departures == ["features of a node 3 (published: 21)"]
    rows = [{"attention": name, "seeds": 30, "folds": 10} for name in ("gat", "graph_kernel")]
    results = {"table": rows, "published": {"departures": departures}}
    number, settings, *others = RECIPE.published_notes(results, options)
    assert number == "arXiv 2107.07999: GKAT 0.697, with options searched in each fold."
    assert departures[0] in settings
    assert others == ["not in arXiv 1912.09893: GAT."]
