"""Reads ZINC's molecules, with NumPy only, from the files of the benchmark of graph networks.

`train.pickle`, `val.pickle` and `test.pickle` are pickled lists of dictionaries with tensors of
PyTorch; `train.index` and so on name the 12,000 molecules of the subset. A pickle can run any code,
so the unpickler here makes only dictionaries, lists, numbers and tensors. It needs no PyTorch: a
tensor holds its storage as bytes, in the form of `torch.save` before version 1.6.

Source: Dwivedi et al., "Benchmarking Graph Neural Networks", arXiv 2003.00982, Section 4.
"""

import collections
import io
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from keras_graphattn.graphs.planetoid import RestrictedUnpickler

PARTS = {"train": "train", "validation": "val", "test": "test"}  # with the names of their files
_KEYS = ("atom_type", "bond_type", "logP_SA_cycle_normalized")
_STORAGES = {
    "ByteStorage": "u1",
    "CharStorage": "i1",
    "ShortStorage": "<i2",
    "IntStorage": "<i4",
    "LongStorage": "<i8",
    "FloatStorage": "<f4",
    "DoubleStorage": "<f8",
}


class Molecule(NamedTuple):
    """One molecule of the files."""

    atoms: np.ndarray  # (n,) types, from 0
    bonds: np.ndarray  # (n, n) symmetric; 0 where there is no bond, else its type, from 1
    label: float  # penalised logP: logP - SA - rings of more than six atoms, each normalised


def read_zinc(folder: Path, subset: bool) -> dict[str, list[Molecule]]:
    """The molecules of the three parts, from a folder or from the folder `raw` in it.

    The subset has the molecules that `train.index` and so on name. Raises `OSError` if a file is
    missing, `ValueError` for a file that is not of this form.
    """
    folder = folder / "raw" if (folder / "raw").is_dir() else folder
    parts = {}
    for part, name in PARTS.items():
        listed = _read(folder / f"{name}.pickle")
        places = _places(folder / f"{name}.index", len(listed)) if subset else range(len(listed))
        try:
            parts[part] = [_molecule(listed[place]) for place in places]
        except Exception as error:  # a damaged tensor can raise almost anything
            raise ValueError(f"{name}.pickle: a molecule cannot be read: {error}") from error
    return parts


def _molecule(entry: dict[str, Any]) -> Molecule:
    atoms, bonds, label = (entry[key].array() for key in _KEYS)
    if bonds.shape != (len(atoms),) * 2 or (bonds != bonds.T).any() or bonds.diagonal().any():
        raise ValueError(
            f"bond_type must be symmetric, of shape ({len(atoms)}, {len(atoms)}) for {len(atoms)} "
            "atoms, and 0 on its diagonal"
        )
    return Molecule(atoms, bonds, float(label.item()))


def _places(file: Path, count: int) -> list[int]:
    """The numbers in an index file, with commas or line breaks between them."""
    places: dict[int, None] = {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        for word in line.replace(",", " ").split():
            place = int(word) if word.isdecimal() else count
            if place >= count or place in places:
                raise ValueError(
                    f"{file.name}, line {number} must name molecules from 0 to {count - 1} that "
                    f"are not named before it. Received: {word}"
                )
            places[place] = None
    if not places:
        raise ValueError(f"{file.name} must name molecules. Received: no number")
    return list(places)


class _Tensor(NamedTuple):
    """A tensor that is not decoded yet: most molecules are in no subset."""

    storage: bytes
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    requires_grad: bool
    hooks: Any
    metadata: Any = None

    def array(self) -> np.ndarray:
        values = _storage(self.storage)
        places = self.offset + sum(
            (
                np.arange(size).reshape((-1, *[1] * (len(self.size) - axis - 1)))
                * self.stride[axis]
                for axis, size in enumerate(self.size)
            ),
            start=np.zeros(self.size, "int64"),
        )
        return values[places]


def _storage(written: bytes) -> np.ndarray:
    """The numbers of a storage: five pickles, of which the fourth names the type; then the data."""
    file = io.BytesIO(written)
    *_, (_, dtype, _, _, count, *_), _ = (_Unpickler(file).load() for _ in range(5))
    if int.from_bytes(file.read(8), "little") != count:
        raise ValueError(f"a storage of {count} numbers has another number of them")
    return np.frombuffer(file.read(), dtype, count)


class _Unpickler(RestrictedUnpickler):
    """Makes only dictionaries, lists, numbers, `_Tensor` and the types of storages."""

    def __init__(self, file: IO[bytes]):
        super().__init__(file, _ALLOWED)

    def persistent_load(self, pid: Any) -> Any:
        return pid


_ALLOWED: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _Tensor,
    ("torch.storage", "_load_from_bytes"): bytes,
    **{("torch", name): dtype for name, dtype in _STORAGES.items()},
}


def _read(file: Path) -> list[dict[str, Any]]:
    with file.open("rb") as opened:
        try:
            entries = _Unpickler(opened).load()
        except Exception as error:  # a damaged pickle can raise almost anything
            raise ValueError(
                f"{file.name} must be a pickle of ZINC's molecules: {error}"
            ) from error
    if not isinstance(entries, list) or not all(
        isinstance(entry, dict) and isinstance(entry.get(key), _Tensor)
        for entry in entries
        for key in _KEYS
    ):
        raise ValueError(f"{file.name} must be a list of dictionaries with tensors {_KEYS}")
    return entries
