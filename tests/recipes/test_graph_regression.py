import gzip
import os
import pickle

import keras
import numpy as np
import pytest

from keras_graphattn.graphs import Graph, precompute
from recipes.common.command.parsing import UsageError
from recipes.common.data import pcqm4m
from recipes.common.data.zinc import Molecule, read_zinc
from recipes.graph_regression import data
from recipes.graph_regression.__main__ import RECIPE
from tests.numerics import to_numpy
from tests.recipes.command_line import history_of, run

KEYS = ("atom_type", "bond_type", "logP_SA_cycle_normalized")
# two atoms more or less: 0 - 1 = 2 # 3, and 4 for itself
CHAIN = np.zeros((5, 5), "int64")
CHAIN[[0, 1, 2], [1, 2, 3]] = CHAIN[[1, 2, 3], [0, 1, 2]] = [1, 2, 3]


def made(count=40):
    return [data.make(np.random.default_rng([3, i])) for i in range(count)]


def bonds_of(graph):
    bonds = np.zeros((graph.num_nodes,) * 2, "int64")
    for ends in (graph.edges, graph.edges[:, ::-1]):
        bonds[tuple(ends.T)] = graph.edge_features[:, 0] + 1
    return bonds


def test_molecules_respect_valences_and_their_property_is_the_formula():
    networkx = pytest.importorskip("networkx")
    penalties = set()
    for graph in made():
        bonds, atoms = bonds_of(graph), graph.node_features[:, :5].argmax(axis=1)
        assert (bonds.sum(axis=1) <= data.VALENCES[atoms]).all()
        assert 10 <= graph.num_nodes <= 24
        degrees = graph.node_features[:, 5:].argmax(axis=1)
        np.testing.assert_array_equal(degrees, (bonds > 0).sum(axis=1))
        as_networkx = networkx.Graph(graph.edges.tolist())
        assert networkx.is_connected(as_networkx)
        rings = [len(ring) for ring in networkx.minimum_cycle_basis(as_networkx)]
        assert all(5 <= size <= 9 for size in rings)
        expected = sum([0.3, -0.5, -0.4, 0.2, 0.4][atom] for atom in atoms)
        expected -= 0.3 * sum(int(bond) - 1 for bond in graph.edge_features[:, 0] + 1)
        expected -= sum(size - 6 for size in rings if size > 6)
        assert float(graph.label) == pytest.approx(expected, abs=1e-5)
        penalties.add(sum(max(size - 6, 0) for size in rings))
    assert {0, 1, 2} <= penalties
    again = data.make(np.random.default_rng([3, 0]))
    assert (again.edges == made(1)[0].edges).all()


def bonds_on_paths(graph, hops):
    (paths,) = precompute([graph], "paths", hops=hops, verbose=False)
    return data.bonds_on_paths(graph, paths)


def test_bonds_on_paths_are_those_of_their_edges():
    graph = data.graph_of(Molecule(np.arange(5), CHAIN, 0.0), 5)
    paths = bonds_on_paths(graph, 2)
    assert paths[0].tolist() == [[-1, -1], [0, -1], [0, 1], [0, 1], [-1, -1]]
    assert paths[3].tolist() == [[2, 1], [2, 1], [2, -1], [-1, -1], [-1, -1]]
    ring = Graph([[0, 1], [1, 2], [2, 3], [0, 3]], edge_features=[[0], [1], [2], [1]])
    across = bonds_on_paths(ring, 3)[0, 2].tolist()
    assert across in ([0, 1, -1], [1, 2, -1])  # one of the two shortest paths


def write_zinc(folder, molecules, index="0,1\n"):
    torch = pytest.importorskip("torch")
    for name in ("train", "val", "test"):
        entries = [
            {
                "num_atom": len(one.atoms),
                "atom_type": torch.tensor(one.atoms),
                "bond_type": torch.tensor(one.bonds, dtype=torch.int8).T,
                "logP_SA_cycle_normalized": torch.tensor([one.label]),
            }
            for one in molecules
        ]
        (folder / f"{name}.pickle").write_bytes(pickle.dumps(entries, protocol=3))
        (folder / f"{name}.index").write_text(index)
    return folder


PAIR = np.array([[0, 1], [1, 0]])
MOLECULES = [
    Molecule(np.array([0, 5, 27, 1, 2]), CHAIN, 1.5),
    Molecule(np.array([3, 0]), PAIR, -2.25),
    Molecule(np.array([1, 1]), 2 * PAIR, 0.75),
]


def loaded(folder, dataset):
    return data.load(RECIPE.parse(["--dataset", dataset, "--data-dir", str(folder)]))


def test_zinc_is_read_as_published(tmp_path):
    raw = tmp_path / "raw"
    raw.mkdir()
    write_zinc(raw, MOLECULES, "2,0\n")
    for place in (raw, tmp_path):
        problem = loaded(place, "zinc")
        assert [float(graph.label) for graph in problem.test] == [0.75, 1.5]
    graph = problem.train[1]
    np.testing.assert_array_equal(bonds_of(graph), CHAIN)
    assert graph.node_features[:, :28].argmax(axis=1).tolist() == [0, 5, 27, 1, 2]
    assert graph.node_features[:, 28:].argmax(axis=1).tolist() == [1, 2, 2, 1, 0]
    everything = loaded(tmp_path, "zinc_full")
    assert len(everything.train) == 3
    other = [*MOLECULES[:2], MOLECULES[2]._replace(bonds=3 * PAIR)]
    write_zinc(raw, other, "2,0\n")
    assert loaded(tmp_path, "zinc").digest() != problem.digest()  # only a bond's type differs


class Harmful:
    def __reduce__(self):
        return os.mkdir, ("harmful",)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pickle.dumps([Harmful()]), "mkdir is not allowed"),
        (b"wrong", "must be a pickle"),
        (pickle.dumps({}), "list of dictionaries"),
        (pickle.dumps([dict.fromkeys(KEYS, 1)]), "list of dictionaries"),
    ],
)
def test_files_that_are_not_zinc_are_refused(content, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.pickle").write_bytes(content)
    with pytest.raises(ValueError, match=words):
        read_zinc(tmp_path, False)
    assert not (tmp_path / "harmful").exists()


@pytest.mark.parametrize(
    ("bonds", "index", "words"),
    [
        (4 * PAIR, "0", "1 to 3.*4"),
        (np.triu(PAIR), "0", "symmetric"),
        (PAIR, "1", "from 0 to 0"),
        (PAIR, "0\n\n0\n", "train.index, line 3"),
        (PAIR, "0,one", "train.index, line 1"),
    ],
)
def test_molecules_that_cannot_be_read_are_refused(bonds, index, words, tmp_path):
    write_zinc(tmp_path, [MOLECULES[1]._replace(bonds=bonds)], index)
    with pytest.raises(UsageError, match=f"cannot be read.*{words}"):
        loaded(tmp_path, "zinc")


SMILES = ("Cl[C@H](/C=C/C)Br", "c1ccccc1", "C", "[NH4+]", "CC#N", "OC=O", "CCO", "CO")


def write_pcqm4m(folder, splits=None, rows=None):
    """Eight molecules: six to train on, one to validate on, one whose number is not public."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("rdkit")
    rows = rows or [f"{i},{one},{i}.5" for i, one in enumerate(SMILES[:7])] + [f"7,{SMILES[7]},"]
    (folder / "raw").mkdir(exist_ok=True)
    table = "\n".join(["idx,smiles,homolumogap", *rows])
    (folder / "raw" / "data.csv.gz").write_bytes(gzip.compress(table.encode()))
    splits = splits or {"train": np.arange(6), "valid": np.array([6]), "test-dev": np.array([7])}
    torch.save(splits, folder / "split_dict.pt")
    return folder


def test_features_of_atoms_and_bonds_are_those_of_ogb():
    """The chiral carbon, and the double bond, are the examples in OGB's own code."""
    chem = pytest.importorskip("rdkit.Chem")
    atoms, bonds, types = pcqm4m._numbers(chem.MolFromSmiles(SMILES[0]))
    assert atoms[1].tolist() == [5, 2, 4, 5, 1, 0, 2, 0, 0, 3]
    assert bonds[2].tolist() == [2, 3]
    kinds = np.unravel_index(types[2], [len(v) + o for _, v, o in pcqm4m.BOND_VALUES])
    assert [int(kind) for kind in kinds] == [1, 2, 0]
    aromatic = pcqm4m._numbers(chem.MolFromSmiles("c1ccccc1"))
    assert len(aromatic[2]) == 6
    assert (aromatic[0][:, 7:9] == 1).all()
    charged = pcqm4m._numbers(chem.MolFromSmiles("[NH4+]"))[0]
    assert charged[0].tolist() == [6, 0, 4, 6, 4, 0, 2, 0, 0, 0]


def test_pcqm4m_is_divided_as_its_files_say(tmp_path):
    write_pcqm4m(tmp_path)
    problem = loaded(tmp_path, "pcqm4m")
    sizes = {name: len(part) for name, part in problem.splits.items()}
    assert sizes == {"train": 5, "validation": 1, "test": 1}
    labels = [float(graph.label) for graph in problem.train + problem.validation]
    assert sorted(labels) == [0.5, 1.5, 2.5, 3.5, 4.5, 5.5]
    assert float(problem.test[0].label) == 6.5
    by_label = {float(graph.label): graph for graph in problem.train + problem.validation}
    assert by_label[1.5].edges.shape == (6, 2)
    assert by_label[2.5].edges.shape == (0, 2)
    # one column for each value that occurs: each atom has one value of each feature
    features = np.concatenate([graph.node_features for graph in by_label.values()])
    assert (features.sum(axis=1) == len(pcqm4m.ATOM_VALUES)).all()
    together = np.concatenate([features, problem.test[0].node_features])
    assert together.any(axis=0).all()
    drawn = [
        data.load(RECIPE.parse(f"--dataset pcqm4m --data-dir {tmp_path} {more}".split()))
        for more in ("--train-examples 3", "--validation-fraction 0")
    ]
    assert [[len(part) for part in one.splits.values()] for one in drawn] == [[2, 1, 1], [6, 0, 1]]
    assert set(drawn[1].chance().levels) == {"training", "test"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rows": ["0,C,1", "1,not a molecule,2"]}, "molecule 1: RDKit cannot read 'not a mol"),
        ({"rows": ["0,C,1", "1,C,"]}, "molecule 1: homolumogap must be a number"),
        ({"rows": ["0,C,1"]}, "has no molecule 1"),
        ({"splits": {"train": np.array([0, 1]), "valid": np.array([1])}}, "in both parts"),
        ({"splits": {"train": np.array([0])}}, "dictionary of arrays.*valid"),
        ({"splits": {"train": np.array([-1]), "valid": np.array([1])}}, "numbers of molecules"),
        ({"splits": [Harmful()]}, "mkdir is not allowed"),
    ],
)
def test_files_that_are_not_pcqm4m_are_refused(change, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    splits = {"train": np.array([0]), "valid": np.array([1])}
    write_pcqm4m(tmp_path, **{"splits": splits, **change})
    with pytest.raises(UsageError, match=f"pcqm4m cannot be read: .*{words}"):
        loaded(tmp_path, "pcqm4m")
    assert not (tmp_path / "harmful").exists()
    (tmp_path / "split_dict.pt").unlink()
    with pytest.raises(UsageError, match=r"has no split_dict\.pt"):
        loaded(tmp_path, "pcqm4m")


TINY = (
    *("--train-examples", "8", "--evaluation-examples", "4", "--batch-size", "4"),
    *("--layers", "1", "--heads", "2", "--key-dim", "2", "--feed-forward", "4"),
    *("--hops", "2", "--verbose", "0"),
)


@pytest.mark.slow_on("jax", "tensorflow")
def test_runs_report_the_absolute_error_and_that_of_the_median(tmp_path, capsys):
    asked = f"--cache-dir {tmp_path / 'cache'} --attention gfsa --epochs 2 --skip-saved-model"
    results = run(RECIPE, tmp_path / "out", *TINY, asked)
    assert "test mean absolute error" in capsys.readouterr().out
    assert results["graphs"] == {"train": 8, "validation": 4, "test": 4}
    (one,) = results["runs"]
    best = history_of(tmp_path / "out", one)[one["chosen_epoch"] - 1]
    problem = data.load(RECIPE.parse([*TINY]))
    labels = {name: [float(g.label) for g in part] for name, part in problem.splits.items()}
    error = np.abs(np.array(labels["test"]) - np.median(labels["train"])).mean()
    assert results["median"]["test"] == pytest.approx(error)
    model = keras.saving.load_model(tmp_path / "out" / "model.keras")
    trial = RECIPE.trial(problem, "gfsa", RECIPE.parse([*TINY]))
    batches = RECIPE.model.batches_for(trial)[2]
    errors = []
    for inputs, numbers, weights in (batches[i] for i in range(batches.num_batches)):
        predicted = to_numpy(model(inputs))[:, 0]
        errors += np.abs(predicted - numbers)[weights > 0].tolist()
    assert np.mean(errors) == pytest.approx(best["test_mean_absolute_error"], abs=1e-5)


@pytest.mark.slow_on("jax", "tensorflow")
def test_all_training_molecules_of_pcqm4m_are_trained_on_as_published(tmp_path, capsys):
    asked = f"--dataset pcqm4m --data-dir {write_pcqm4m(tmp_path)} --published --epochs 2 "
    asked += f"--cache-dir {tmp_path / 'cache'} --attention gfsa --skip-saved-model --verbose 0 "
    asked += "--layers 1 --heads 2 --key-dim 2 --feed-forward 4"
    results = run(RECIPE, tmp_path / "out", asked)
    assert "published, softmax and GFSA" in capsys.readouterr().out
    assert results["graphs"] == {"train": 6, "test": 1}
    assert results["tested_at"] == "the last epoch"
    assert results["protocol"] == "published"
    (one,) = results["runs"]
    assert one["chosen_epoch"] == one["epochs"] == 2
