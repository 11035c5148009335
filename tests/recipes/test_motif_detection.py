import json
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_graphattn.graphs import Graph
from recipes.common.data.graphs import labels_of
from recipes.common.training.records import ACCURACY, Run, RunState, table
from recipes.motif_detection import data
from recipes.motif_detection.__main__ import RECIPE, TASKS, validation_note
from tests.recipes.command_line import run

networkx = pytest.importorskip("networkx")
NETWORKX = {
    "circle": lambda: networkx.cycle_graph(20),
    "grid": lambda: networkx.grid_2d_graph(4, 5),
    "ladder": lambda: networkx.ladder_graph(10),
    "circular_ladder": lambda: networkx.circular_ladder_graph(10),
    "caveman": lambda: networkx.connected_caveman_graph(4, 5),
}


def networkx_of(graph):
    copy = networkx.Graph(graph.edges.tolist())
    copy.add_nodes_from(range(graph.num_nodes))
    return copy


@pytest.mark.parametrize("name", NETWORKX)
def test_motifs_are_those_of_networkx(name):
    motif = Graph(data.MOTIFS[name], num_nodes=20)
    assert len(motif.edges) == len(data.MOTIFS[name])
    assert networkx.is_isomorphic(networkx_of(motif), NETWORKX[name]())
    assert set(TASKS) == {*NETWORKX, "induced_cycle"} == set(data.TASKS)


@pytest.mark.parametrize("base", [100, 400])
def test_graphs_with_a_motif_have_it_and_the_others_match_them_in_size(base):
    random = np.random.default_rng(0)
    edges = data.planted(random, data.MOTIFS["grid"], base)
    whole = Graph(edges, num_nodes=base + 20)
    assert len(whole.edges) == len(edges)
    inside = (whole.edges >= base).sum(axis=1)
    assert sorted(map(tuple, whole.edges[inside == 2] - base)) == sorted(data.MOTIFS["grid"])
    assert (inside == 1).sum() == data.JOINS
    pairs, probability = base * (base - 1) / 2, 5 / base
    spread = np.sqrt(pairs * probability * (1 - probability))
    assert abs((inside == 0).sum() - probability * pairs) < 4 * spread
    graphs = data.generate("grid", 6, seed=1, base_nodes=base)
    assert labels_of(graphs).tolist() == [0, 1] * 3
    for without, with_motif in zip(graphs[::2], graphs[1::2], strict=True):
        assert without.num_nodes == with_motif.num_nodes == base + 20
        assert len(without.edges) == len(with_motif.edges)


def test_each_pair_of_nodes_is_drawn_as_often():
    random, counts = np.random.default_rng(0), np.zeros((5, 5))
    for _ in range(600):
        edges = data.uniform_edges(random, 5, 4)
        assert len(set(edges)) == 4
        for u, v in edges:
            assert 0 <= u < v < 5
            counts[u, v] += 1
    drawn = counts[np.triu_indices(5, 1)]  # of 10 pairs, each with a probability of 0.4
    assert drawn.sum() == 2400
    assert abs(drawn - 240).max() < 4 * np.sqrt(600 * 0.4 * 0.6)


PUBLISHED_NETWORKX = {
    "circle": lambda: networkx.cycle_graph(10),
    "grid": lambda: networkx.grid_2d_graph(3, 3),
    "ladder": lambda: networkx.ladder_graph(5),
    "circular_ladder": lambda: networkx.circular_ladder_graph(5),
    # as in the released graphs; a caveman graph of networkx has no triangle at this size
    "caveman": lambda: networkx.corona_product(*map(networkx.complete_graph, (3, 2))),
}


@pytest.mark.parametrize(
    ("name", "base"), [*((name, 100) for name in PUBLISHED_NETWORKX), ("grid", 400)]
)
def test_published_graphs_are_those_of_the_paper(name, base):
    motif, probability = data.PUBLISHED_MOTIFS[name]
    theirs = PUBLISHED_NETWORKX[name]()
    size = theirs.number_of_nodes()
    assert networkx.is_isomorphic(networkx_of(Graph(motif, num_nodes=size)), theirs)
    random, inside, joins = np.random.default_rng(0), [], []
    for _ in range(40):
        (without, with_motif), sizes = data.published_pair(random, name, base)
        assert sizes == [base + size] * 2
        parts = [{}, {}]
        for part, edges in zip(parts, (without, with_motif), strict=True):
            ends = np.sort(np.array(edges), axis=1)
            assert len(np.unique(ends, axis=0)) == len(ends)
            count = (ends >= base).sum(axis=1)
            part |= {number: ends[count == number] for number in range(3)}
            assert len(part[1]) >= 1
            joins.append(len(part[1]))
        assert sorted(map(tuple, parts[1][2] - base)) == sorted(map(tuple, np.sort(motif, axis=1)))
        assert len(parts[0][2]) == len(parts[1][2])  # as many edges in the place of the motif
        np.testing.assert_array_equal(parts[0][0], parts[1][0])  # one base graph
        inside.append(len(parts[0][0]))
    assert np.mean(inside) == pytest.approx(100 * probability * (base - 1) / 2, rel=0.1)
    assert np.mean(joins) == pytest.approx(0.004 * 100 * size, rel=0.25)


def test_released_graphs_have_no_node_without_an_edge():
    """The paper's code leaves them out of both graphs, before it joins the two."""
    random = np.random.default_rng(0)
    motif, probability = data.PUBLISHED_MOTIFS["ladder"]
    left_out, joins = [], []
    for _ in range(60):
        (without, with_motif), sizes = data.published_pair(random, "ladder", released=True)
        base = sizes[1] - 10
        left_out.append(100 - base)
        for edges, nodes in zip((without, with_motif), sizes, strict=True):
            inside = (np.sort(edges, axis=1) >= base).sum(axis=1)
            assert set(np.ravel(edges)) == set(range(nodes))
            assert set(np.ravel(np.array(edges)[inside == 0])) == set(range(base))
            assert set(np.ravel(np.array(edges)[inside == 2])) == set(range(base, nodes))
            assert (inside == 2).sum() == len(motif)
            joins.append((inside == 1).sum())
    assert np.mean(left_out) == pytest.approx(100 * (1 - probability) ** 99, rel=0.15)
    assert np.mean(joins) == pytest.approx(0.004 * 93 * 9.8, rel=0.15)


def test_published_features_are_the_largest_degrees_of_neighbours():
    graphs = data.generate("caveman", 4, 0, "published")
    assert labels_of(graphs).tolist() == [0, 1] * 2
    for graph in graphs:
        copy = networkx_of(graph)
        for node in range(graph.num_nodes):
            degrees = sorted((copy.degree[other] for other in copy[node]), reverse=True)[:5]
            expected = [*degrees, *[0] * (5 - len(degrees))]
            assert graph.node_features[node].tolist() == expected


def test_published_trees_have_one_standardised_degree():
    own = data.generate("induced_cycle", 4, seed=3)
    for graph, usual in zip(data.generate("induced_cycle", 4, 3, "published"), own, strict=True):
        np.testing.assert_array_equal(graph.edges, usual.edges)
        degrees = np.bincount(usual.edges.ravel(), minlength=50)
        standardised = (degrees - 2) / np.sqrt(np.mean((degrees - 2) ** 2))
        np.testing.assert_allclose(graph.node_features, standardised[:, None], rtol=1e-6)


def test_trees_have_a_cycle_as_long_as_their_longest_path_or_a_short_one():
    graphs = data.generate("induced_cycle", 12, seed=3)
    for without, with_motif in zip(graphs[::2], graphs[1::2], strict=True):
        lengths = []
        for graph in (without, with_motif):
            copy = networkx_of(graph)
            assert copy.number_of_edges() == copy.number_of_nodes() == 50  # a tree and one edge
            assert networkx.is_connected(copy)
            lengths.append(len(networkx.find_cycle(copy)))
        assert lengths[0] <= (lengths[1] - 1) / 2 + 1
        degrees = [np.bincount(g.edges.ravel()).tolist() for g in (without, with_motif)]
        assert sorted(degrees[0]) == sorted(degrees[1])
    tree, _, _ = data.cycles_in_tree(np.random.default_rng(0), 30)
    tree = networkx.Graph(tree[:-1])
    assert networkx.is_tree(tree)
    assert max(degree for _, degree in tree.degree) <= 3


def test_features_are_degrees_and_the_seed_makes_the_data():
    one, again, other = (data.generate("circle", 2, seed) for seed in (0, 0, 1))
    degrees = np.bincount(one[1].edges.ravel(), minlength=120)
    np.testing.assert_array_equal(one[1].node_features.argmax(axis=1), np.minimum(degrees, 12))
    np.testing.assert_array_equal(one[1].edges, again[1].edges)
    assert other[1].edges.tolist() != one[1].edges.tolist()


RESULTS = {file.name: file for file in Path(data.__file__).parent.glob("results/*.json")}


@pytest.mark.slow
@pytest.mark.parametrize("name", RESULTS)
def test_the_data_of_every_result_can_be_made_again(name):
    results = json.loads(RESULTS[name].read_text())
    settings = results["settings"]
    options = RECIPE.parse([])
    for key in ("task", "train_examples", "evaluation_examples", "data_seed"):
        setattr(options, key, settings[key])
    options.base_nodes = settings.get("base_nodes", 100)
    protocol = results.get("protocol", "own")
    options.published, options.released = (protocol == name for name in ("published", "released"))
    assert data.load(options).digest() == settings["data"]


@pytest.mark.slow_on("jax", "tensorflow")
def test_a_run_keeps_its_walks_and_the_model_loads(tmp_path):
    data = "--task induced_cycle --train-examples 8 --evaluation-examples 4 --batch-size 4"
    sizes = "--heads 2 --key-dim 2 --feed-forward 4 --walks 3 --walk-length 2 --verbose 0"
    more = f"--epochs 2 --attention graph_kernel --cache-dir {tmp_path / 'cache'}"
    results = run(RECIPE, tmp_path / "out", data, sizes, more, "--skip-saved-model")
    assert results["graphs"] == {"train": 8, "validation": 4, "test": 4}
    assert len(list((tmp_path / "cache").iterdir())) == 3
    model = keras.saving.load_model(tmp_path / "out" / "model.keras")
    assert set(model.input) == {"nodes", "node_mask", "walks"}


def timed_run(attention, seed, accuracies, seconds):
    """A run whose accuracy on the test data is 0.1 above that on the validation data."""
    state = RunState(seconds=[seconds] * len(accuracies))
    for value in accuracies:
        metrics = {"val_accuracy": value, "test_accuracy": value + 0.1}
        metrics |= {"val_cross_entropy": 1.0, "test_cross_entropy": 1.0}
        state.add(metrics, ACCURACY)
    return Run(attention, seed, Path(), state, 10, [])


def test_the_note_has_the_mean_accuracy_on_the_graphs_that_choose_the_epoch():
    pairs = [("gcn", 0.5), ("graph_kernel", 0.7), ("gcn", 0.6)]
    runs = [{"attention": name, "validation_accuracy": value} for name, value in pairs]
    assert validation_note({"runs": runs}).endswith("computes: GCN 0.550, GKAT 0.700.")


def test_accuracy_within_the_time_of_gkat_is_that_of_the_epoch_chosen_until_then():
    runs = [
        timed_run("graph_kernel", 0, [0.5, 0.7, 0.6], 4.0),  # chosen after 8 seconds
        timed_run("gcn", 0, [0.6, 0.5, 0.8], 3.0),  # two epochs until then
        timed_run("gat", 0, [0.6, 0.7], 10.0),  # none until then: the first one
    ]
    RECIPE.compare(runs)
    rows = {row["attention"]: row for row in table(runs)}
    found = {name: row["test_accuracy_within_time_of_gkat_mean"] for name, row in rows.items()}
    assert found == pytest.approx({"graph_kernel": 0.8, "gcn": 0.7, "gat": 0.7})
    assert rows["gcn"]["test_accuracy_mean"] == pytest.approx(0.9)
    others = [timed_run("graph_kernel", 1, [0.5], 1.0), timed_run("gcn", 0, [0.5], 1.0)]
    RECIPE.compare(others)  # no GKAT of this seed
    assert not any(run.reported for run in others)
