"""Softmax attention whose tokens are on several devices: the keys go around in a ring (JAX).

Each device keeps the queries of its tokens. In as many turns as there are devices, it sees the keys
of each device once and passes them on to the next one. The softmax over all keys is put together
turn by turn (online softmax), which is exact. In the backward pass keys and signals go around
again, together with their gradients.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import lax
from jax import numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from keras_graphattn.numerics.blocks import cut_into_blocks, cut_rows, join_blocks
from keras_graphattn.operators.blockwise import heads_first
from keras_graphattn.operators.operator import Operator, Visibility
from keras_graphattn.operators.p_laplacian import PLaplacian, common_centre, powers_of_distances
from keras_graphattn.operators.softmax import score_operands
from keras_graphattn.sequence_parallel import SequenceParallel
from keras_graphattn.types import Float, Int, Tensor

Tensors = dict[str, Tensor]


class RingOperator(Operator):
    """`x -> A x` for tokens over p devices, which exchange keys and signals in p turns.

    Each device holds n / p rows of every tensor and at most `block_size * n / p` scores per head.
    One application sends n (H + D) numbers per head from each device to the next, its backward
    pass twice as many. Each device waits for the slowest one: under a causal mask that is the one
    with the last tokens, which sees all keys. So a causal mask saves no time here.

    Args:
        query: Tensor of shape (B, T, N, H).
        key: Tensor of shape (B, T, N, H).
        visibility: What each query may see. Its `entries` are split over rows.
        scale: Factor of the scores; 1 / sqrt(H) by default.
        block_size: Number of query rows at a time on each device.
        parallel: The distribution, whose devices evenly divide T.
        weighting: The numbers of p-LaT and the values (B, T, N, D) whose distances re-weight the
            softmax. Values that are not the signal go around with it.

    Source: Liu et al., "Ring Attention with Blockwise Transformers for Near-Infinite Context",
    arXiv 2310.01889 (ICLR 2024), Section 3. Ours: A is an operator, so that a filter applies it
    several times.
    """

    def __init__(
        self,
        query: Float[Tensor, "B T N H"],
        key: Float[Tensor, "B T N H"],
        visibility: Visibility,
        scale: float | None,
        block_size: int,
        parallel: SequenceParallel,
        weighting: tuple[PLaplacian, Float[Tensor, "B T N D"]] | None = None,
    ) -> None:
        self.query, self.key = score_operands(query, key, scale)
        self.visibility, self.block_size = visibility, block_size
        numbers, values = (None, None) if weighting is None else weighting
        self.values: Float[Tensor, "B T N D"] | None = values
        self.ring = _Ring.of(parallel, query.shape[0], visibility, block_size, numbers)

    def __call__(self, x: Float[Tensor, "B T N D"]) -> Float[Tensor, "B T N D"]:
        by_row, others = self.visibility.tensors()
        if self.values is None:
            return _applied(self.ring, {"query": self.query}, self._held(x), by_row, others)
        centre = common_centre(self.values, self.visibility)
        if centre is not None:
            others = {**others, "centre": centre}
        rows = {"query": self.query, "values": self.values}
        return _applied(self.ring, rows, self._held(x), by_row, others)

    def _held(self, x: Float[Tensor, "B T N D"]) -> Tensors:
        """What goes around, and has gradients."""
        more = {} if self.values is None or x is self.values else {"values": self.values}
        return {"key": self.key, "x": x, **more}

    def finished(self, outputs: Float[Tensor, "B T N D"]) -> Float[Tensor, "B T N D"]:
        return self.visibility.zero_other_rows(outputs, self.block_size)


class _Ring(NamedTuple):
    """The devices and the settings of an operator, without its tensors."""

    mesh: Mesh
    axis: str  # of the mesh, over which tokens are split
    batch_axis: str | None
    batch: int
    visibility: Visibility  # causality and window only
    block_size: int
    numbers: PLaplacian | None

    @classmethod
    def of(
        cls,
        parallel: SequenceParallel,
        batch: int,
        visibility: Visibility,
        block_size: int,
        numbers: PLaplacian | None,
    ) -> "_Ring":
        mesh, batch_axis = parallel.device_mesh.backend_mesh, parallel.batch_axis
        if batch_axis is not None and batch % mesh.shape[batch_axis]:
            batch_axis = None  # such as the one example of a call outside `fit`
        positional = Visibility(causal=visibility.causal, window=visibility.window)
        axis = parallel.sequence_axis
        return cls(mesh, axis, batch_axis, batch, positional, block_size, numbers)

    @property
    def devices(self) -> int:
        return int(self.mesh.shape[self.axis])

    def spec(self, x: Tensor, is_split: bool = True) -> PartitionSpec:
        """How a tensor (B or 1, T, ...) lies on the devices."""
        batch = self.batch_axis if x.shape[0] == self.batch else None
        return PartitionSpec(batch, self.axis if is_split else None)

    def on_devices(
        self, function: Callable[..., Any], *arguments: Any, fixed: Tensors, results: Any
    ) -> Any:
        """`function(self, *parts, fixed)` on each device; `results` have the shapes of its results.

        All tensors are split over tokens, except those in `fixed`.
        """
        of_parts = jax.tree.map(self.spec, arguments)
        of_fixed = jax.tree.map(lambda x: self.spec(x, is_split=False), fixed)
        return jax.shard_map(
            lambda parts, fixed: function(self, *parts, fixed),
            mesh=self.mesh,
            in_specs=(of_parts, of_fixed),
            out_specs=jax.tree.map(self.spec, results),
            check_vma=False,
        )(arguments, fixed)

    def around(
        self, turn: Callable[..., tuple[Any, Any]], carried: Any, held: Tensors, back: Any = ()
    ) -> tuple[Any, Any]:
        """Calls `turn(carried, held, back, source)` on each device with the tensors of each device.

        `held` are the tensors of the device number `source`. `turn` returns the new `carried`,
        which stays, and the new `back`, which goes around with `held`, and is at home at the end.
        """
        number = lax.axis_index(self.axis)
        pairs = [(device, (device + 1) % self.devices) for device in range(self.devices)]

        def sent(tensors: Any) -> Any:
            return jax.tree.map(lambda x: lax.ppermute(x, self.axis, pairs), tensors)

        def one(state: tuple[Any, Tensors, Any], count: Tensor) -> tuple[Any, None]:
            carried, held, back = state
            arriving = sent(held)  # while this device computes
            carried, back = turn(carried, held, back, (number - count) % self.devices)
            return (carried, arriving, sent(back)), None

        (carried, _, back), _ = lax.scan(one, (carried, held, back), jnp.arange(self.devices))
        return carried, back

    def cut(self, tensors: Tensors) -> Tensors:
        """The rows of this device in blocks, with their positions in the whole sequence."""
        length = tensors["query"].shape[1]
        blocks = {name: cut_into_blocks(x, self.block_size) for name, x in tensors.items()}
        rows = lax.axis_index(self.axis) * length + cut_rows(length, self.block_size)
        return {**blocks, "positions": rows}

    def scores(
        self, rows: Tensors, held: Tensors, fixed: Tensors, source: Int[Tensor, ""]
    ) -> tuple[Float[Tensor, "B N t s"], Float[Tensor, "B N t s"] | None]:
        """The scores of a block of rows and of the keys held; minus infinity where hidden.

        With them what p-LaT multiplies their softmax by, if it does.
        """
        dtype = jnp.promote_types(rows["query"].dtype, "float32")
        scores = jnp.einsum(
            "btnh,bsnh->bnts", rows["query"], held["key"], preferred_element_type=dtype
        )
        length = held["key"].shape[1]
        columns = source * length + jnp.arange(length, dtype="int32")
        parts = {name: x for name, x in (rows | fixed | held).items() if name in MASKS}
        if "entries" in parts and parts["entries"].shape[-1] > 1:  # (B, t, N, T)
            parts["entries"] = lax.dynamic_slice_in_dim(
                parts["entries"], source * length, length, axis=3
            )
        visible = self.visibility.of_block(parts, rows["positions"], columns)
        powers = None
        if self.numbers is not None:
            pair = rows["values"], held.get("values", held["x"])
            diagonal = rows["positions"][:, None] == columns
            powers = powers_of_distances(pair, self.numbers, visible, diagonal, fixed.get("centre"))
        return scores if visible is None else jnp.where(visible, scores, -jnp.inf), powers


MASKS = ("entries", "queries", "keys")


@functools.partial(jax.jit, static_argnums=0)
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _applied(
    ring: _Ring, rows: Tensors, held: Tensors, by_row: Tensors, others: Tensors
) -> Float[Tensor, "B T N D"]:
    """A x: of what stays on its device, what goes around, and the tensors of a visibility."""
    return _value(ring, rows, held, by_row, others)[0]


def _value(
    ring: _Ring, rows: Tensors, held: Tensors, by_row: Tensors, others: Tensors
) -> tuple[Tensor, tuple[Any, ...]]:
    """A x, and what its gradient needs."""
    around, fixed = _divided(held, others)
    results = held["x"], held["x"][..., :1]
    outputs, logarithms = ring.on_devices(
        _rows_of_device, {**rows, **by_row}, around, fixed=fixed, results=results
    )
    return outputs, (rows, held, by_row, others, outputs, logarithms)


def _gradient(
    ring: _Ring, residuals: tuple[Any, ...], upstream: Float[Tensor, "B T N D"]
) -> tuple[Any, ...]:
    """The gradients for what stays and what goes around.

    Those of the scores are A o (dA - rowsum(A o dA)), dA = upstream x^T. The row sums are those of
    outputs o upstream.
    """
    rows, held, by_row, others, outputs, logarithms = residuals
    around, fixed = _divided(held, others)
    dtype = logarithms.dtype
    row_sums = jnp.sum(outputs.astype(dtype) * upstream.astype(dtype), axis=-1, keepdims=True)
    more = {"logarithms": logarithms, "upstream": upstream, "row_sums": row_sums}
    gradients = ring.on_devices(
        functools.partial(_gradients_of_device, names=(tuple(rows), tuple(held))),
        {**rows, **more, **by_row},
        around,
        fixed=fixed,
        results=(rows, held),
    )
    gradients = jax.tree.map(lambda gradient, x: gradient.astype(x.dtype), gradients, (rows, held))
    return (*gradients, None, None)


_applied.__wrapped__.defvjp(_value, _gradient)


def _divided(held: Tensors, others: Tensors) -> tuple[Tensors, Tensors]:
    """The tensors that go around, and those that every device has as a whole."""
    around = {**held, **{name: others[name] for name in others if name == "keys"}}
    return around, {name: others[name] for name in others if name != "keys"}


def _rows_of_device(
    ring: _Ring, rows: Tensors, held: Tensors, fixed: Tensors
) -> tuple[Float[Tensor, "B t N D"], Float[Tensor, "B t N 1"]]:
    """The rows of A x of one device, and the logarithms of their sums of exponentials."""
    length, size = rows["query"].shape[1], held["x"].shape[-1]
    dtype = jnp.promote_types(rows["query"].dtype, "float32")
    blocks = ring.cut(rows)
    column = jnp.zeros_like(blocks["query"], dtype)[..., :1]  # (count, B, t, N, 1)
    start = _Sums(column - jnp.inf, column, jnp.repeat(column, size, axis=-1))

    def turn(
        sums: _Sums, held: Tensors, back: tuple[()], source: Tensor
    ) -> tuple[_Sums, tuple[()]]:
        def block(pair: tuple[_Sums, Tensors]) -> _Sums:
            sums, rows = pair
            return sums.with_more(*ring.scores(rows, held, fixed, source), held["x"])

        return lax.map(block, (sums, blocks)), back

    sums, _ = ring.around(turn, start, held)
    largest, total, weighted = (join_blocks(x, length) for x in sums)
    is_seeing = total > 0.0
    total = jnp.where(is_seeing, total, 1.0)
    logarithms = jnp.where(is_seeing, largest, 0.0) + jnp.log(total)
    return (weighted / total).astype(held["x"].dtype), logarithms


class _Sums(NamedTuple):
    """Sums over the keys so far, for each row: an online softmax."""

    largest: Float[Tensor, "B t N 1"]  # score so far
    total: Float[Tensor, "B t N 1"]  # of exp(score - largest)
    weighted: Float[Tensor, "B t N D"]  # the same, times the signal

    def with_more(
        self,
        scores: Float[Tensor, "B N t s"],
        powers: Float[Tensor, "B N t s"] | None,
        x: Float[Tensor, "B s N D"],
    ) -> "_Sums":
        """The sums with some more keys."""
        largest = jnp.maximum(self.largest, heads_first(scores.max(axis=-1, keepdims=True)))
        shift = jnp.where(largest == -jnp.inf, 0.0, largest)
        weights = jnp.exp(scores - heads_first(shift))
        shrinks = jnp.exp(self.largest - shift)
        if powers is None:
            factors = weights.astype(x.dtype)
        else:
            factors, x = weights * powers, x.astype(weights.dtype)
        weighted = jnp.einsum("bnts,bsnh->btnh", factors, x, preferred_element_type=weights.dtype)
        total = heads_first(weights.sum(axis=-1, keepdims=True))
        return _Sums(largest, self.total * shrinks + total, self.weighted * shrinks + weighted)


def _gradients_of_device(
    ring: _Ring,
    rows: Tensors,
    held: Tensors,
    fixed: Tensors,
    *,
    names: tuple[tuple[str, ...], tuple[str, ...]],
) -> tuple[Tensors, Tensors]:
    """The gradients of one device for its rows and for what it holds, of the given names."""
    length = rows["query"].shape[1]
    dtype = rows["logarithms"].dtype
    blocks = ring.cut(rows)
    to_blocks = {name: jnp.zeros_like(blocks[name], dtype) for name in names[0]}
    start = {name: jnp.zeros_like(held[name], dtype) for name in names[1]}

    def turn(
        to_blocks: Tensors, held: Tensors, back: Tensors, source: Tensor
    ) -> tuple[Tensors, Tensors]:
        def block(back: Tensors, pair: tuple[Tensors, Tensors]) -> Any:
            so_far, rows = pair

            def weighted(ours: Tensors, theirs: Tensors) -> Tensor:
                # its gradient for the scores is A o (dA - rowsum(A o dA)), for x it is A^T upstream
                scores, powers = ring.scores({**rows, **ours}, {**held, **theirs}, fixed, source)
                weights = jnp.exp(scores - heads_first(rows["logarithms"]))
                to_weights = jnp.einsum(
                    "btnh,bsnh->bnts", rows["upstream"], theirs["x"], preferred_element_type=dtype
                )
                if powers is not None:
                    to_weights = to_weights * powers
                return jnp.sum(weights * (to_weights - heads_first(rows["row_sums"])))

            ours = {name: rows[name] for name in names[0]}
            theirs = {name: held[name] for name in names[1]}
            more = jax.grad(weighted, (0, 1))(ours, theirs)
            to_ours, to_theirs = (
                {name: total[name] + one[name].astype(dtype) for name in total}
                for total, one in zip((so_far, back), more, strict=True)
            )
            return to_theirs, to_ours

        back, to_blocks = lax.scan(block, back, (to_blocks, blocks))
        return to_blocks, back

    to_blocks, to_held = ring.around(turn, to_blocks, held, start)
    return {name: join_blocks(x, length) for name, x in to_blocks.items()}, to_held
