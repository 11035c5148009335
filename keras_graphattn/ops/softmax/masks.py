"""The keys that each query may see, in pieces: no n x n mask unless the caller gives one.

A layer has one boolean mask for each reason (padding, causality, a window, the caller's mask). The
dense path joins them once. The blockwise paths join them for a few query rows at a time.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from keras import ops

from keras_graphattn.checks import (
    Rule,
    Sizes,
    checked,
    flag,
    integers,
    tensor,
    whole,
)
from keras_graphattn.checks import (
    mask as mask_of,
)
from keras_graphattn.numerics.blocks import map_query_blocks
from keras_graphattn.numerics.custom_gradient import compiled_once
from keras_graphattn.numerics.precision import pad, take

Tensor = Any


class AttentionMask(NamedTuple):
    """All reasons why a query position (row) may not see a key position (column).

    Attributes:
        entries: Boolean tensor of shape (T, S), (B, T, S) or (B, N, T, S); `True` is visible.
        queries: Boolean tensor of shape (B, T); `False` marks rows that see nothing.
        keys: Boolean tensor of shape (B, S); `False` marks columns that nobody sees.
        causal: Whether row i sees only the columns j <= i.
        window: If given, row i sees only the columns with |i - j| < window.

    Example:

    >>> mask = AttentionMask(keys=np.array([[True, False]]), causal=True)
    >>> mask.causal, mask.window
    (True, None)
    """

    entries: Tensor | None = None
    queries: Tensor | None = None
    keys: Tensor | None = None
    causal: bool = False
    window: int | None = None


def attention_mask(rows: str, columns: str) -> Rule:
    """The rule of an `AttentionMask` whose parts have the given rows and columns."""
    pair = f"{rows}? {columns}?"
    parts = {
        "entries": mask_of(pair, f"B? {pair}", f"B? N? {pair}"),
        "queries": mask_of(f"B {rows}"),
        "keys": mask_of(f"B {columns}"),
        "causal": flag,
        "window": whole(),
    }

    def check(name: str, value: Any, sizes: Sizes) -> AttentionMask:
        if not isinstance(value, AttentionMask):
            raise ValueError(f"`{name}` must be an AttentionMask. Received: {name}={value!r}")
        given = {part: x for part, x in value._asdict().items() if x is not None}
        found = {part: parts[part](f"{name}.{part}", x, sizes) for part, x in given.items()}
        return value._replace(**found)

    return check


@checked(mask=attention_mask("T", "S"), rows=integers("T"), columns=integers("S"))
def joined_mask(mask: AttentionMask, rows: Tensor, columns: Tensor) -> Tensor | None:
    """Joins all pieces into one boolean mask; `None` if everything is visible.

    Args:
        mask: The mask; its `entries` and `queries` must have exactly these rows.
        rows: Integer tensor of shape (T,): positions of the query rows.
        columns: Integer tensor of shape (S,): positions of the keys.

    Returns:
        A boolean tensor that broadcasts to (B, N, T, S).

    Raises:
        ValueError: For `entries` without 2, 3 or 4 dimensions.

    Example:

    >>> joined = joined_mask(AttentionMask(causal=True), np.arange(2), np.arange(2))
    >>> keras.ops.convert_to_numpy(joined)[0, 0].tolist()
    [[True, False], [True, True]]
    """
    rows, columns = ops.cast(rows, "int32"), ops.cast(columns, "int32")
    parts = []
    if mask.entries is not None:
        parts.append(four_dimensional(mask.entries))  # (B, N, T, S)
    if mask.queries is not None:
        parts.append(mask.queries[:, None, :, None])  # (B, 1, T, 1)
    if mask.keys is not None:
        parts.append(mask.keys[:, None, None, :])  # (B, 1, 1, S)
    if mask.causal:
        parts.append((columns[None, :] <= rows[:, None])[None, None])
    if mask.window is not None:
        parts.append((ops.abs(rows[:, None] - columns[None, :]) < mask.window)[None, None])
    return all_of(*parts)


def all_of(*masks: Tensor | None) -> Tensor | None:
    """The given masks, joined by `logical_and`; `None` if all of them are `None`."""
    joined = None
    for mask in masks:
        if mask is not None:
            mask = ops.cast(mask, "bool")
            joined = mask if joined is None else ops.logical_and(joined, mask)
    return joined


def four_dimensional(entries: Tensor) -> Tensor:
    """A mask (T, S), (B, T, S) or (B, N, T, S) as one that broadcasts to (B, N, T, S)."""
    rank = len(entries.shape)
    if rank not in (2, 3, 4):
        raise ValueError(
            "An attention mask must have shape (T, S), (B, T, S) or (B, N, T, S). Received: "
            f"shape={tuple(entries.shape)}"
        )
    entries = ops.cast(entries, "bool")
    if rank == 2:
        return entries[None, None]
    return entries[:, None] if rank == 3 else entries


def split_mask(mask: AttentionMask) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The mask's tensors for `map_query_blocks`: those with query rows, and all others."""
    by_row: dict[str, Tensor] = {}
    whole: dict[str, Tensor] = {}
    if mask.entries is not None:
        entries = ops.transpose(four_dimensional(mask.entries), (0, 2, 1, 3))
        (whole if entries.shape[1] == 1 else by_row)["entries"] = entries
    if mask.queries is not None:
        by_row["queries"] = mask.queries
    if mask.keys is not None:
        whole["keys"] = mask.keys
    return by_row, whole


def block_mask(
    mask: AttentionMask, tensors: Mapping[str, Tensor], rows: Tensor, columns: Tensor
) -> Tensor | None:
    """The joined mask of one block of query rows, from the tensors of `split_mask`."""
    entries = tensors.get("entries")
    if entries is not None:
        entries = ops.transpose(entries, (0, 2, 1, 3))
    block = mask._replace(entries=entries, queries=tensors.get("queries"), keys=tensors.get("keys"))
    return joined_mask(block, rows, columns)


def sighted_rows(mask: AttentionMask, length: Any, block_size: int = 512) -> Tensor | None:
    """The query rows that see at least one key; `None` if all rows do.

    Args:
        mask: The mask of a square attention matrix.
        length: Its number of rows.
        block_size: Number of rows whose mask is formed at a time.

    Returns:
        A boolean tensor that broadcasts to (B, T, N).
    """
    queries = None if mask.queries is None else ops.cast(mask.queries, "bool")
    if mask.entries is None:
        seen = all_of(queries, None if mask.keys is None else _rows_that_see(mask, length))
        return None if seen is None else seen[:, :, None]
    by_row, whole = split_mask(mask)
    by_blocks = compiled_once(
        _sighted_by_blocks, (*by_row,), (*whole,), mask.causal, mask.window, length, block_size
    )
    return by_blocks(*by_row.values(), *whole.values())


def _rows_that_see(mask: AttentionMask, length: Any) -> Tensor:
    """The rows that see a visible key, by causality and window: (B, T) or (B, 1), in O(B T)."""
    keys = ops.cast(mask.keys, "int32")
    if not mask.causal and mask.window is None:
        return ops.any(ops.cast(keys, "bool"), axis=1, keepdims=True)
    up_to = pad(ops.cumsum(keys, axis=1), ((0, 0), (1, 0)))  # visible keys before each position
    rows = ops.arange(length, dtype="int32")
    first, behind = ops.zeros_like(rows), rows + 1 if mask.causal else length + 0 * rows
    if mask.window is not None:
        first = ops.maximum(rows - mask.window + 1, 0)
        behind = ops.minimum(behind, rows + mask.window)
    return take(up_to, behind, axis=1) > take(up_to, first, axis=1)


def _sighted_by_blocks(
    by_row: tuple[str, ...],
    whole: tuple[str, ...],
    causal: bool,
    window: int | None,
    length: Any,
    block_size: int,
    *mask_tensors: Tensor,
) -> Tensor:
    """`sighted_rows` for a mask with entries, joined for a block of rows at a time."""
    mask = AttentionMask(causal=causal, window=window)
    named = dict(zip((*by_row, *whole), mask_tensors, strict=True))

    def rows_of_block(rows: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        seen = ops.any(block_mask(mask, tensors, rows, tensors["columns"]), axis=-1)
        seen = ops.broadcast_to(seen, (*ops.shape(seen)[:2], ops.shape(rows)[0]))
        return ops.cast(ops.transpose(seen, (0, 2, 1)), "uint8")

    seen = map_query_blocks(
        rows_of_block,
        {name: named[name] for name in by_row},
        {**{name: named[name] for name in whole}, "columns": ops.arange(length, dtype="int32")},
        length,
        block_size,
    )
    return ops.cast(seen, "bool")


def zero_masked_rows(outputs: Tensor, joined: Tensor | None) -> Tensor:
    """Puts exact zeros in the rows of `outputs` for which a joined mask hides every key.

    Args:
        outputs: Tensor of shape (B, T, N, H).
        joined: Optional boolean tensor that broadcasts to (B, N, T, S), as `joined_mask` forms it.

    Example:

    >>> joined = np.array([[[[True, False], [False, False]]]])
    >>> outputs = zero_masked_rows(np.ones((1, 2, 1, 1), "float32"), joined)
    >>> keras.ops.convert_to_numpy(outputs).ravel().tolist()
    [1.0, 0.0]
    """
    if joined is None:
        return outputs
    sees = ops.transpose(ops.any(joined, axis=-1), (0, 2, 1))  # (B, T, N)
    return ops.where(sees[..., None], outputs, ops.cast(0.0, outputs.dtype))


@checked(outputs=tensor("B T N H"), mask=attention_mask("T", "T"), block_size=whole())
def zero_blind_rows(outputs: Tensor, mask: AttentionMask, block_size: int = 512) -> Tensor:
    """Puts exact zeros in the rows of `outputs`, (B, T, N, H), that may see no key.

    Example:

    >>> blind = AttentionMask(queries=np.array([[True, False]]))
    >>> outputs = zero_blind_rows(np.ones((1, 2, 1, 1), "float32"), blind)
    >>> keras.ops.convert_to_numpy(outputs).ravel().tolist()
    [1.0, 0.0]
    """
    seen = sighted_rows(mask, ops.shape(outputs)[1], block_size)
    if seen is None:
        return outputs
    return ops.where(seen[..., None], outputs, ops.cast(0.0, outputs.dtype))
