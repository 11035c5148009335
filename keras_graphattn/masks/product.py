"""Products of masks, entry by entry, in less than quadratic time if their forms allow it."""

import functools
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar, Unpack

import keras
from keras import ops

from keras_graphattn.checks import is_list
from keras_graphattn.keras_internals import move
from keras_graphattn.masks.chunked import Causal, ChunkedMask, Form
from keras_graphattn.masks.inputs import Arrays, Flags, Length, Tensors, either
from keras_graphattn.masks.low_rank import Factored
from keras_graphattn.masks.mask import (
    FORMED_PATHS,
    Mask,
    MaskOptions,
    Operands,
    Positions,
    Rows,
    Shape,
    Signal,
    get,
    sum_over_features,
    widest_dtype,
)
from keras_graphattn.operators.kernel import unmasked_attention
from keras_graphattn.serialization import restored
from keras_graphattn.types import Bool, Float, Tensor

Kind = TypeVar("Kind", bound=Mask)


@keras.saving.register_keras_serializable(package="keras_graphattn")
class Product(ChunkedMask):
    """M[i, j] = M_1[i, j] M_2[i, j] ...

    | factors | path |
    | --- | --- |
    | any of `Causal`, `Segments`, `Exponential`, `GatedDecay` | "chunked"; with a state if causal |
    | these and masks of low rank | "chunked", linear |
    | masks of low rank, and at most one other mask | that mask's own path |
    | `Causal` and a mask with a causal form (`Toeplitz`) | that mask's own path, one-sided |
    | anything else | "blockwise" and "dense" only: quadratic time, linear memory |

    Args:
        masks: Two or more masks, or names of masks that need no argument. A product among them is
            replaced by its factors.
        **kwargs: `name`, `trainable` and `dtype` of a Keras layer, and
            `coefficient_learning_rate_multiplier`, the property, 30 by default.

    Raises:
        ValueError: For fewer than two masks, for anything that is not a mask, for two factors that
            take a call-time input of the same name, and for a mask that reads tokens next to one
            that hides some of the tokens between two others.

    Example:

    >>> from keras_graphattn.masks import Causal, Segments
    >>> mask = Product([Causal(), Segments()])
    >>> mask.paths
    ('dense', 'blockwise', 'chunked')
    >>> matrix = mask.dense(segment_ids=np.array([[4, 4, 9]]))
    >>> keras.ops.convert_to_numpy(matrix)[0, 0].tolist()
    [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """

    def __init__(
        self, masks: Sequence[Mask | str | dict[str, Any]], **kwargs: Unpack[MaskOptions]
    ) -> None:
        super().__init__(**kwargs)
        if not is_list(masks) or len(masks) < 2:
            raise ValueError(
                "`masks` must be a list of two or more masks of keras_graphattn.masks. Received: "
                f"masks={masks!r}"
            )
        self.masks: list[Mask] = [
            factor
            for mask in map(get, masks)
            for factor in (mask.masks if isinstance(mask, Product) else [mask])
        ]
        self._share_multiplier()
        names = [name for mask in self.masks for name in mask.inputs_at_call]
        if len(set(names)) < len(names):
            raise ValueError(
                "Two factors of a product take a tensor of the same name at each call. Received: "
                f"masks={[type(mask).__name__ for mask in self.masks]}, which take {names}. Join "
                "them into one mask."
            )
        self.inputs_at_call = tuple(names)
        self.reads_tokens = any(mask.reads_tokens for mask in self.masks)
        self._check_readers()
        self.is_causal = any(mask.is_causal for mask in self.masks)
        self.hides_keys = any(mask.hides_keys for mask in self.masks)
        chunked = [mask for mask in self.masks if isinstance(mask, ChunkedMask)]
        self._some_chunked = bool(chunked)
        self.has_state = self.is_causal and len(chunked) == len(self.masks)
        # the product has one exponential for each combination of one exponential per factor
        self.num_decays = math.prod(mask.num_decays for mask in chunked)
        self.paths = (*FORMED_PATHS, *self._own_paths(chunked))

    def _check_readers(self) -> None:
        """Raises a `ValueError` for a mask with gates of tokens that another factor hides."""
        hiding = [
            type(mask).__name__
            for mask in self.masks
            if mask.hides_keys and not mask.is_causal and not isinstance(mask, ChunkedMask)
        ]
        if self.reads_tokens and hiding:
            reader = next(type(mask).__name__ for mask in self.masks if mask.reads_tokens)
            raise ValueError(
                f"A gate of {reader} counts for all later tokens, also where another factor hides "
                f"its token from them. Received: a product of {reader} and {hiding[0]}. Use "
                "factors that are causal, `Segments`, or masks without zeros."
            )

    def _own_paths(self, chunked: list[ChunkedMask]) -> tuple[str, ...]:
        others = self._others
        if not others:
            return ("chunked",) if chunked else ("low_rank",)
        has_form = type(others[0])._causal_signal is not Mask._causal_signal
        is_one_sided = has_form and all(isinstance(mask, Causal) for mask in chunked)
        if len(others) > 1 or (chunked and not is_one_sided):
            return ()
        return tuple(path for path in others[0].paths if path not in FORMED_PATHS)

    @property
    def _others(self) -> list[Mask]:
        """The factors that are neither computed in chunks nor of low rank."""
        return [mask for mask in self.masks if not isinstance(mask, (ChunkedMask, Factored))]

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        for mask in self.masks:
            if not mask.built:
                mask.build(input_shape)
            elif mask._parent is None:  # else the weights keep the paths that the layer gave them
                move(mask, self)

    @property
    def given_inputs(self) -> tuple[str, ...]:
        return tuple(name for mask in self.masks for name in mask.given_inputs)

    def inputs_of_tokens(
        self, tokens: Float[Tensor, "B T d"], kept: Bool[Tensor, "B T"] | None
    ) -> Tensors:
        read = [mask.inputs_of_tokens(tokens, kept) for mask in self.masks]
        return {name: x for inputs in read for name, x in inputs.items()}

    def empty_inputs(self, batch_size: int, length: int, num_heads: int) -> Tensors:
        empty = [mask.empty_inputs(batch_size, length, num_heads) for mask in self.masks]
        return {name: x for inputs in empty for name, x in inputs.items()}

    def parameters(self) -> Tensors:
        return {
            f"{place} {name}": tensor
            for place, mask in enumerate(self.masks)
            for name, tensor in mask.parameters().items()
        }

    def _each(
        self, parameters: Tensors, inputs: Tensors, kind: type[Kind]
    ) -> Iterator[tuple[Kind, Tensors, Tensors]]:
        """The factors of a class, each with its own parameters and inputs."""
        for place, mask in enumerate(self.masks):
            if isinstance(mask, kind):
                start = f"{place} "
                own = (name for name in parameters if name.startswith(start))
                weights = {name.removeprefix(start): parameters[name] for name in own}
                yield mask, weights, {n: inputs[n] for n in mask.inputs_at_call if n in inputs}

    def form(self, parameters: Tensors, inputs: Tensors) -> Form:
        """Returns one form for all factors that are computed in chunks."""
        form = Form()
        for mask, weights, tensors in self._each(parameters, inputs, ChunkedMask):
            form = form.times(mask.form(weights, tensors))
        return form

    def _attend(self, tokens: Operands, path: str, parameters: Tensors, inputs: Tensors) -> Signal:
        for mask, weights, _ in self._each(parameters, inputs, Factored):
            tokens = mask.widened(tokens, weights)
        if not self._others:
            if not self._some_chunked:
                return unmasked_attention(tokens.query, tokens.key, tokens.x)
            return super()._attend(tokens, path, parameters, inputs)
        each = self._each(parameters, inputs, Mask)
        ((other, parameters, inputs),) = (one for one in each if one[0] is self._others[0])
        if not self._some_chunked:
            return other._attend(tokens, path, parameters, inputs)
        return sum_over_features(other._causal_signal, tokens, path, parameters, inputs)

    def _matrix(self, length: Length, parameters: Tensors, inputs: Tensors) -> Rows:
        return _joined(m._matrix(length, *own) for m, *own in self._each(parameters, inputs, Mask))

    def _rows(
        self, positions: Positions, length: Length, parameters: Tensors, inputs: Tensors
    ) -> Rows:
        each = self._each(parameters, inputs, Mask)
        return _joined(mask._rows(positions, length, *own) for mask, *own in each)

    def _block_rows(
        self, positions: Positions, length: Length, parameters: Tensors, inputs: Tensors
    ) -> Rows:
        each = self._each(parameters, inputs, Mask)
        return _joined(mask._block_rows(positions, length, *own) for mask, *own in each)

    def choose_path(
        self, length: int | None, features: int | None = None, width: int | None = None
    ) -> str:
        if self._others and len(self.paths) > len(FORMED_PATHS):
            (other,) = self._others
            choose = other.choose_causal_path if self._some_chunked else other.choose_path
            return choose(length, features, width)
        return super().choose_path(length, features, width)

    def _check_built(self) -> None:
        for mask in self.masks:
            mask._check_built()

    def _check_length(self, length: int) -> None:
        for mask in self.masks:
            mask._check_length(length)

    def _check_values(self, inputs: Arrays, length: int | None) -> bool:
        each = self._each({}, inputs, Mask)
        are_usable = [mask._check_values(tensors, length) for mask, _, tensors in each]
        return all(are_usable)

    def _bounded(self, inputs: Tensors, length: Length) -> tuple[Tensors, Flags]:
        bounded: Tensors = {}
        wrong: Flags = None
        for mask, _, own in self._each({}, inputs, Mask):
            if own:
                tensors, flags = mask._bounded(own, length)
                bounded, wrong = bounded | tensors, either(wrong, flags)
        return bounded, wrong

    @property
    def _own_length(self) -> int | None:
        return next((m._own_length for m in self.masks if m._own_length is not None), None)

    def get_config(self) -> dict[str, object]:
        first = [self.masks.index(mask) for mask in self.masks]
        # a factor that appears twice is one mask: its second place has the index of the first
        masks = [
            keras.saving.serialize_keras_object(mask) if place == index else place
            for index, (mask, place) in enumerate(zip(self.masks, first, strict=True))
        ]
        return {**super().get_config(), "masks": masks}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Product":
        masks = config.get("masks")
        if isinstance(masks, (list, tuple)):
            masks = [restored("masks", mask) for mask in masks]
            masks = [masks[mask] if isinstance(mask, int) else mask for mask in masks]
        return cls(**{**config, "masks": masks})


def _joined(factors: Iterable[Rows]) -> Rows:
    """The product of the factors' entries, in their widest dtype."""
    rows = list(factors)
    dtype = widest_dtype(rows)
    return functools.reduce(operator.mul, (ops.cast(factor, dtype) for factor in rows))
