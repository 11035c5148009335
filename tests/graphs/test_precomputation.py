import os

import numpy as np
import pytest

from keras_graphattn.graphs import Graph, precomputation, precompute
from keras_graphattn.masks.graphs.edges import transition_matrix
from tests.reference_topology import random_edges, shortest_paths

GRAPHS = [
    Graph(
        random_edges(count, seed=count), np.linspace(0.5, 2.0, len(random_edges(count, seed=count)))
    )
    for count in (4, 9, 6)
]
SPLIT = Graph([[0, 1], [2, 3], [3, 4]], num_nodes=6)
QUIET = {"verbose": False}


def assert_same(results, expected):
    for one, other in zip(results, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def test_walks_step_along_edges_with_their_probabilities():
    graph = Graph([[0, 1], [1, 2], [2, 3], [3, 0], [0, 2]], [0.5, 1.0, 2.0, 0.5, 3.0])
    (walks,) = precompute([graph], "walks", num_walks=4000, walk_length=2, **QUIET)
    assert (walks[:, :, 0] == np.arange(4)[:, None]).all()
    shares = np.stack([np.bincount(row, minlength=4) for row in walks[:, :, 1]]) / 4000
    expected = transition_matrix(graph.adjacency()).toarray()
    assert np.abs(shares - expected).max() < 5 * np.sqrt(0.25 / 4000)
    assert (shares[expected == 0] == 0).all()
    (lonely,) = precompute([SPLIT], "walks", num_walks=1, walk_length=3, **QUIET)
    assert lonely[5].tolist() == [[5, -1, -1]]
    options = {"num_walks": 4000, "walk_length": 3, "halt_probability": 0.3}
    (halting,) = precompute([graph], "walks", **options, **QUIET)
    shares = (halting >= 0).mean(axis=(0, 1))
    np.testing.assert_allclose(shares, [1.0, 0.7, 0.49], atol=5 * np.sqrt(0.25 / 16000))


def test_every_graph_and_seed_has_its_own_walks():
    same = [GRAPHS[1]] * 2
    first, second = precompute(same, "walks", **QUIET)
    assert (first != second).any()
    assert_same(precompute(same, "walks", seed=0, **QUIET), [first, second])
    assert (precompute(same, "walks", seed=1, **QUIET)[0] != first).any()


def test_distances_are_numbers_of_edges():
    distances = precompute([*GRAPHS, SPLIT], "distances", **QUIET)
    for graph, results in zip([*GRAPHS, SPLIT], distances, strict=True):
        expected = shortest_paths(graph.num_nodes, graph.edges.tolist())
        expected = np.where(np.isfinite(expected), expected, -1)
        np.testing.assert_array_equal(results, expected)


@pytest.mark.parametrize("hops", [1, 3, 12])
def test_paths_are_edges_that_lead_to_the_other_node(hops):
    graphs = [*GRAPHS, SPLIT, Graph([], num_nodes=2)]
    distances = precompute(graphs, "distances", **QUIET)
    for graph, results, far in zip(
        graphs, precompute(graphs, "paths", hops=hops, **QUIET), distances, strict=True
    ):
        assert results.shape == (graph.num_nodes, graph.num_nodes, hops)
        for start, end in np.ndindex(far.shape):
            here = start
            for hop in range(hops):
                if hop >= far[start, end]:
                    assert (results[start, end, hop:] == -1).all()
                    break
                ends = set(graph.edges[results[start, end, hop]].tolist())
                assert here in ends
                (here,) = ends - {here}
                assert far[here, end] == far[start, end] - hop - 1


def test_results_are_kept_and_found(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "new" / "cache"
    expected = {
        kind: precompute(GRAPHS, kind, cache_dir=folder, verbose=True)
        for kind in ("walks", "distances", "paths")
    }
    assert "3/3" in capsys.readouterr().out
    assert len(list(folder.iterdir())) == 3
    nothing = {kind: (None, options) for kind, (_, options) in precomputation._KINDS.items()}
    monkeypatch.setattr(precomputation, "_KINDS", nothing)  # nothing is computed from here on
    for kind, arrays in expected.items():
        assert_same(precompute(GRAPHS, kind, cache_dir=folder, **QUIET), arrays)
    for other in ({"graphs": GRAPHS[:2]}, {"seed": 5}, {"num_walks": 2}):
        arguments = {"graphs": GRAPHS, "kind": "walks", "cache_dir": folder, **QUIET, **other}
        with pytest.raises(TypeError, match="NoneType"):
            precompute(**arguments)


def test_results_that_cannot_be_kept_are_returned(tmp_path):
    (tmp_path / "file").touch()
    with pytest.warns(UserWarning, match="distances were not kept in .*file"):
        results = precompute(GRAPHS, "distances", cache_dir=tmp_path / "file", **QUIET)
    assert_same(results, precompute(GRAPHS, "distances", **QUIET))


def test_a_damaged_file_is_computed_again(tmp_path):
    expected = precompute(GRAPHS, "walks", cache_dir=tmp_path, **QUIET)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    start = whole.index(b"PK\1\2")  # of the zip file's list, with version, flags and method
    version, method = (whole[: start + n] + b"\xff" + whole[start + n + 1 :] for n in (6, 10))
    for damaged in (b"", whole[: len(whole) // 2], b"nothing like it", version, method):
        file.write_bytes(damaged)
        assert_same(precompute(GRAPHS, "walks", cache_dir=tmp_path, **QUIET), expected)
        assert file.read_bytes() == whole


def test_a_file_is_whole_or_not_there(tmp_path, monkeypatch):
    def fails(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.warns(UserWarning, match="walks were not kept in .*the disk is full"):
        results = precompute(GRAPHS, "walks", cache_dir=tmp_path, **QUIET)
    assert_same(results, precompute(GRAPHS, "walks", **QUIET))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"kind": "ways"}, "kind"),
        ({"graphs": []}, "list of"),
        ({"verbose": 2}, "verbose"),
        ({"num_walks": 0}, "num_walks"),
        ({"count": 3}, "options of 'walks'"),
        ({"cache_dir": "gs://far"}, "cache_dir"),
    ],
)
def test_wrong_arguments(arguments, words):
    with pytest.raises(ValueError, match=words):
        precompute(**{"graphs": GRAPHS, "kind": "walks", **arguments})
