"""Attention as a linear operator on signals, and which pairs of positions see each other.

An operator maps a signal (B, S, N, D) to A times it, (B, T, N, D). A filter is a function of an
operator: it never sees a matrix. One class for each kind of attention says how A is applied, and
shows its formula: `softmax`, `blockwise`, `fused`, `differential`, `p_laplacian`, `kernel`,
`singular`, `cached`.
"""

from collections.abc import Mapping
from typing import NamedTuple

from keras import ops

from keras_graphattn.checks import Rule, Sizes, flag, whole
from keras_graphattn.checks import mask as mask_of
from keras_graphattn.numerics.blocks import map_query_blocks
from keras_graphattn.numerics.custom_gradient import compiled_once
from keras_graphattn.numerics.precision import (
    ALL,
    new_axes,
    pad,
    positions_of,
    take,
    zero_where_masked,
)
from keras_graphattn.types import Bool, Float, Int, Num, Tensor


class Operator:
    """Base of all operators `x -> A x`. A subclass writes `__call__`, and `matrix` if A is shown.

    A subclass overrides `twice` if two applications in a row cost less than two, and `finished` if
    it knows rows that see nothing or see NaN.

    Example:

    >>> class Mean(Operator):  # every row sees every key, with equal weights
    ...     def __call__(self, x):
    ...         return keras.ops.mean(x, axis=1, keepdims=True) + keras.ops.zeros_like(x)
    >>> once, twice = Mean().twice(keras.ops.ones((1, 3, 1, 2)))
    >>> float(twice[0, 0, 0, 0])
    1.0
    """

    def __call__(self, x: Float[Tensor, "B S N D"]) -> Float[Tensor, "B T N D"]:
        raise NotImplementedError(f"{type(self).__name__} must write `__call__`.")

    def twice(
        self, x: Float[Tensor, "B T N D"]
    ) -> tuple[Float[Tensor, "B T N D"], Float[Tensor, "B T N D"]]:
        """A x and A A x, for a square A."""
        once = self(x)
        return once, self(once)

    def matrix(self) -> Float[Tensor, "B N T S"]:
        """A itself, for inspection."""
        raise NotImplementedError(f"{type(self).__name__} never forms its matrix.")

    def finished(self, outputs: Float[Tensor, "B T N D"]) -> Float[Tensor, "B T N D"]:
        """The outputs of a filter, with 0 in rows that see nothing and NaN in rows that see NaN."""
        return outputs


class Visibility(NamedTuple):
    """All reasons why a query position (row) may not see a key position (column), in pieces.

    There is one boolean for each reason (padding, causality, a window, the caller's mask). The
    dense operator joins them once. Operators in blocks join them for a few query rows at a time,
    without n x n booleans unless the caller gives them.

    Attributes:
        entries: Boolean tensor of shape (T, S), (B, T, S) or (B, N, T, S); `True` is visible.
        queries: Boolean tensor of shape (B, T); `False` marks rows that see nothing.
        keys: Boolean tensor of shape (B, S); `False` marks columns that nobody sees.
        causal: Whether row i sees only the columns j <= i.
        window: If given, row i sees only the columns with |i - j| < window.

    Example:

    >>> visibility = Visibility(keys=np.array([[True, False]]), causal=True)
    >>> keras.ops.convert_to_numpy(visibility.joined(2))[0, 0].tolist()
    [[True, False], [True, False]]
    """

    entries: Num[Tensor, "..."] | None = None
    queries: Num[Tensor, "B T"] | None = None
    keys: Num[Tensor, "B S"] | None = None
    causal: bool = False
    window: int | None = None

    @staticmethod
    def rule(rows: str, columns: str) -> Rule:
        """The rule of a `Visibility` whose parts have the given rows and columns."""
        pair = f"{rows}? {columns}?"
        rules = {
            "entries": mask_of(pair, f"B? {pair}", f"B? N? {pair}"),
            "queries": mask_of(f"B {rows}"),
            "keys": mask_of(f"B {columns}"),
            "causal": flag,
            "window": whole(),
        }

        def check(name: str, value: object, sizes: Sizes) -> Visibility:
            if not isinstance(value, Visibility):
                raise ValueError(f"`{name}` must be a Visibility. Received: {name}={value!r}")
            parts = {part: x for part, x in value._asdict().items() if x is not None}
            checked = {part: rules[part](f"{name}.{part}", x, sizes) for part, x in parts.items()}
            return value._replace(**checked)

        return check

    def joined(self, length: int | Int[Tensor, ""]) -> Bool[Tensor, "B? N? T? S?"] | None:
        """All pieces as one boolean tensor for `length` rows and columns; `None` if all is seen."""
        if all(part is None or part is False for part in self):
            return None
        positions = positions_of(length)
        return self.block(positions, positions)

    def block(
        self, rows: Int[Tensor, " T"], columns: Int[Tensor, " S"]
    ) -> Bool[Tensor, "B? N? T? S?"] | None:
        """The joined booleans of some rows and columns, for which this object has the parts."""
        parts = []
        if self.entries is not None:
            parts.append(four_dimensional(self.entries))  # (B, N, T, S)
        if self.queries is not None:
            parts.append(new_axes(self.queries, (ALL, None, ALL, None)))  # (B, 1, T, 1)
        if self.keys is not None:
            parts.append(new_axes(self.keys, (ALL, None, None)))  # (B, 1, 1, S)
        if self.causal:
            parts.append(new_axes(columns[None, :] <= rows[:, None], (None, None)))
        if self.window is not None:
            distances = ops.abs(rows[:, None] - columns[None, :])
            parts.append(new_axes(distances < self.window, (None, None)))
        return all_of(*parts)

    def tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The tensors for `map_query_blocks`, by name: those with query rows, and all others."""
        by_row: dict[str, Tensor] = {}
        whole_tensors: dict[str, Tensor] = {}
        if self.entries is not None:
            entries = ops.cast(four_dimensional(self.entries), "bool")
            entries = ops.transpose(entries, (0, 2, 1, 3))
            (whole_tensors if entries.shape[1] == 1 else by_row)["entries"] = entries
        if self.queries is not None:
            by_row["queries"] = self.queries
        if self.keys is not None:
            whole_tensors["keys"] = self.keys
        return by_row, whole_tensors

    def of_block(
        self, tensors: Mapping[str, Tensor], rows: Int[Tensor, " T"], columns: Int[Tensor, " S"]
    ) -> Bool[Tensor, "B? N? T? S?"] | None:
        """The joined booleans of one block of query rows, from the tensors of `tensors`."""
        entries = tensors.get("entries")
        if entries is not None:
            entries = ops.transpose(entries, (0, 2, 1, 3))
        queries, keys = tensors.get("queries"), tensors.get("keys")
        return self._replace(entries=entries, queries=queries, keys=keys).block(rows, columns)

    def rows_with_visible_keys(
        self, length: int | Int[Tensor, ""], block_size: int = 512
    ) -> Bool[Tensor, "B? T? N?"] | None:
        """The query rows of a square matrix that see at least one key; `None` if all rows do."""
        if self.entries is None:
            seeing = all_of(self.queries, None if self.keys is None else self._see_a_key(length))
            return None if seeing is None else new_axes(seeing, (ALL, ALL, None))
        by_row, others = self.tensors()
        by_blocks = compiled_once(
            _rows_by_blocks, (*by_row,), (*others,), self.causal, self.window, length, block_size
        )
        rows: Bool[Tensor, "B? T? N?"] = by_blocks(*by_row.values(), *others.values())
        return rows

    def _see_a_key(self, length: int | Int[Tensor, ""]) -> Bool[Tensor, "B T?"]:
        """The rows that see a visible key, by causality and window, in O(B T)."""
        keys = ops.cast(self.keys, "int32")
        if not self.causal and self.window is None:
            return ops.any(ops.cast(keys, "bool"), axis=1, keepdims=True)
        up_to = pad(ops.cumsum(keys, axis=1), ((0, 0), (1, 0)))  # keys before each position
        rows = positions_of(length)
        first, behind = ops.zeros_like(rows), rows + 1 if self.causal else length + 0 * rows
        if self.window is not None:
            first = ops.maximum(rows - self.window + 1, 0)
            behind = ops.minimum(behind, rows + self.window)
        return take(up_to, behind, axis=1) > take(up_to, first, axis=1)

    def zero_other_rows(
        self, outputs: Float[Tensor, "B T N D"], block_size: int = 512
    ) -> Float[Tensor, "B T N D"]:
        """The outputs with exact zeros in rows that see no key."""
        rows = self.rows_with_visible_keys(ops.shape(outputs)[1], block_size)
        return outputs if rows is None else zero_where_masked(outputs, new_axes(rows, (..., None)))


def _rows_by_blocks(
    by_row: tuple[str, ...],
    others: tuple[str, ...],
    causal: bool,
    window: int | None,
    length: int | Int[Tensor, ""],
    block_size: int,
    *tensors: Bool[Tensor, "..."],
) -> Bool[Tensor, "B T N"]:
    """`rows_with_visible_keys` with entries, joined for a block of rows at a time."""
    visibility = Visibility(causal=causal, window=window)
    named = dict(zip((*by_row, *others), tensors, strict=True))

    def rows_of_block(rows: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        seeing = ops.any(visibility.of_block(tensors, rows, tensors["columns"]), axis=-1)
        seeing = ops.broadcast_to(seeing, (*ops.shape(seeing)[:2], ops.shape(rows)[0]))
        return ops.cast(ops.transpose(seeing, (0, 2, 1)), "uint8")

    seeing = map_query_blocks(
        rows_of_block,
        {name: named[name] for name in by_row},
        {**{name: named[name] for name in others}, "columns": positions_of(length)},
        length,
        block_size,
    )
    return ops.cast(seeing, "bool")


def all_of(*masks: Num[Tensor, "..."] | None) -> Bool[Tensor, "..."] | None:
    """The masks, joined by `logical_and`; `None` if all of them are `None`."""
    joined = None
    for mask in masks:
        if mask is not None:
            mask = ops.cast(mask, "bool")
            joined = mask if joined is None else ops.logical_and(joined, mask)
    return joined


def four_dimensional(entries: Num[Tensor, "..."]) -> Num[Tensor, "B? N? T? S?"]:
    """Entries (T, S), (B, T, S) or (B, N, T, S) with axes of size 1 that broadcast."""
    rank = len(entries.shape)
    if rank == 2:
        return new_axes(entries, (None, None))
    return new_axes(entries, (ALL, None)) if rank == 3 else entries
