"""Reads PCQM4M's molecules, both versions, from the files of the OGB large-scale challenge.

`data.csv.gz` has a SMILES string and the gap of energies of each molecule, which RDKit makes a
graph of. `split_dict.pt` names the molecules of each part. It is a zip file of PyTorch around a
pickle. A pickle can run any code, so the unpickler here makes only dictionaries and arrays of
numbers. It needs no PyTorch.

The features of atoms and bonds are those of OGB, and the degree of an atom in the graph.

Source: Hu et al., "OGB-LSC: A Large-Scale Challenge for Machine Learning on Graphs",
arXiv 2103.09430, Section 3.3.
"""

import codecs
import csv
import gzip
import io
import math
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_graphattn.graphs import Graph
from keras_graphattn.graphs.planetoid import RestrictedUnpickler

TRAIN, TEST = "train", "valid"  # the parts with numbers; the challenge keeps those of its tests
ELEMENTS = 118
SHOWN = 100_000  # molecules between two lines of progress

# By feature: its values, in OGB's order, and whether there may be others, which are all one value.
ATOM_VALUES: tuple[tuple[Callable[[Any], Any], Sequence[Any], bool], ...] = (
    (lambda atom: atom.GetAtomicNum(), range(1, ELEMENTS + 1), True),
    (
        lambda atom: str(atom.GetChiralTag()),
        ("CHI_UNSPECIFIED", "CHI_TETRAHEDRAL_CW", "CHI_TETRAHEDRAL_CCW", "CHI_OTHER"),
        True,
    ),
    (lambda atom: atom.GetTotalDegree(), range(11), True),
    (lambda atom: atom.GetFormalCharge(), range(-5, 6), True),
    (lambda atom: atom.GetTotalNumHs(), range(9), True),
    (lambda atom: atom.GetNumRadicalElectrons(), range(5), True),
    (lambda atom: str(atom.GetHybridization()), ("SP", "SP2", "SP3", "SP3D", "SP3D2"), True),
    (lambda atom: atom.GetIsAromatic(), (False, True), False),
    (lambda atom: atom.IsInRing(), (False, True), False),
    (lambda atom: atom.GetDegree(), range(11), True),  # not OGB's: without hydrogen
)
BOND_VALUES: tuple[tuple[Callable[[Any], Any], Sequence[Any], bool], ...] = (
    (lambda bond: str(bond.GetBondType()), ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC"), True),
    (
        lambda bond: str(bond.GetStereo()),
        ("STEREONONE", "STEREOZ", "STEREOE", "STEREOCIS", "STEREOTRANS", "STEREOANY"),
        True,
    ),
    (lambda bond: bond.GetIsConjugated(), (False, True), False),
)
BOND_TYPES = math.prod(len(values) + others for _, values, others in BOND_VALUES)


def read_pcqm4m(folder: Path, most: int | None = None, seed: int = 0) -> dict[str, list[Graph]]:
    """The molecules to train on and to test on, from a folder, or one of its own in it.

    The node features are zeros and ones: for each feature of atoms, one column for each of its
    values that occurs. The feature of an edge is one number for the type, the stereo configuration
    and the conjugation of the bond. The label is the gap between two energies, in electronvolts.

    Args:
        folder: Has `split_dict.pt`, and `data.csv.gz` or `data.csv` in it or in its folder `raw`.
        most: Number of molecules to train on, drawn by `seed`; all by default.
        seed: Seed of the draw.

    Raises:
        OSError: If a file is missing.
        ValueError: For a file that is not of this form, and a SMILES that RDKit does not read.
    """
    parts = _parts(folder / "split_dict.pt")
    if most is not None and most < len(parts[TRAIN]):
        drawn = np.random.default_rng(seed).permutation(parts[TRAIN])[:most]
        parts[TRAIN] = np.sort(drawn)
    wanted = {int(place) for places in parts.values() for place in places}
    table = _table(folder)
    with gzip.open(table, "rt") if table.suffix == ".gz" else table.open() as file:
        molecules = _molecules(file, table.name, wanted)
    missing = wanted.difference(molecules)
    if missing:
        raise ValueError(f"{table.name} has no molecule {min(missing)}, which split_dict.pt names")
    occur = [np.unique(column) for column in np.concatenate([m[0] for m in molecules.values()]).T]
    return {
        part: [_graph(*molecules[int(place)], occur) for place in places]
        for part, places in parts.items()
    }


def _table(folder: Path) -> Path:
    names = [
        place / name for place in (folder / "raw", folder) for name in ("data.csv.gz", "data.csv")
    ]
    return next((path for path in names if path.is_file()), names[-2])


def _molecules(
    file: Iterable[str], name: str, wanted: set[int]
) -> dict[int, tuple[np.ndarray, np.ndarray, np.ndarray, float]]:
    """Atoms (n, features), bonds (e, 2), their types (e,) and the label of the wanted rows."""
    from rdkit import Chem, RDLogger

    RDLogger.DisableLog("rdApp.*")  # its complaints become the error below
    molecules = {}
    rows = csv.DictReader(file)
    if not {"smiles", "homolumogap"} <= set(rows.fieldnames or ()):
        raise ValueError(
            f"{name} must have the columns smiles and homolumogap. It has: {rows.fieldnames}"
        )
    for place, row in enumerate(rows):
        if place not in wanted:
            continue
        molecule = Chem.MolFromSmiles(row["smiles"] or "")
        if molecule is None or not molecule.GetNumAtoms():
            raise ValueError(f"{name}, molecule {place}: RDKit cannot read {row['smiles']!r}")
        try:
            label = float(row["homolumogap"])
        except (TypeError, ValueError):
            label = np.nan
        if not np.isfinite(label):
            raise ValueError(
                f"{name}, molecule {place}: homolumogap must be a number. Received: "
                f"{row['homolumogap']!r}"
            )
        molecules[place] = (*_numbers(molecule), label)
        if len(molecules) % SHOWN == 0:
            print(f"{len(molecules):,} of {len(wanted):,} molecules read", flush=True)
    return molecules


def _numbers(molecule: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The numbers of the values of atoms (n, features), the bonds (e, 2) and their types (e,)."""
    atoms = [
        [_place(feature(atom), *values) for feature, *values in ATOM_VALUES]
        for atom in molecule.GetAtoms()
    ]
    bonds, types = [], []
    for bond in molecule.GetBonds():
        bonds.append((bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()))
        kind = 0
        for feature, values, others in BOND_VALUES:
            kind = kind * (len(values) + others) + _place(feature(bond), values, others)
        types.append(kind)
    return (
        np.array(atoms, "uint8"),
        np.array(bonds, "int32").reshape(-1, 2),
        np.array(types, "uint8"),
    )


def _place(value: Any, values: Sequence[Any], others: bool) -> int:
    if others and value not in values:
        return len(values)
    return values.index(value)


def _graph(
    atoms: np.ndarray,
    bonds: np.ndarray,
    types: np.ndarray,
    label: float,
    occur: Sequence[np.ndarray],
) -> Graph:
    columns = [atoms[:, [place]] == values for place, values in enumerate(occur)]
    return Graph(
        bonds,
        node_features=np.hstack(columns),
        edge_features=types[:, None],
        label=np.float32(label),
    )


def _parts(file: Path) -> dict[str, np.ndarray]:
    """The numbers of the molecules of the parts that have labels."""
    form = f"{file.name} must be the dictionary of arrays that OGB saves by PyTorch 1.6 or newer"
    try:
        with zipfile.ZipFile(file) as archive:
            names = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            written = archive.read(names[0])
        splits = RestrictedUnpickler(io.BytesIO(written), _ALLOWED).load()
        parts = {part: np.asarray(splits[part], "int64") for part in (TRAIN, TEST)}
    except FileNotFoundError:
        raise
    except Exception as error:  # a damaged file can raise almost anything
        raise ValueError(f"{form}: {error}") from error
    for part, places in parts.items():
        if places.ndim != 1 or not len(places) or places.min() < 0:
            raise ValueError(f"{form}: part {part!r} must be numbers of molecules")
    if set(parts[TRAIN].tolist()) & set(parts[TEST].tolist()):
        raise ValueError(f"{form}: a molecule is in both parts {TRAIN!r} and {TEST!r}")
    return parts


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): codecs.encode,
    **{
        (f"numpy.{core}.multiarray", "_reconstruct"): np.zeros(0).__reduce__()[0]
        for core in ("core", "_core")  # before NumPy 2, and from it on
    },
}
