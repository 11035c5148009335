"""Products of masks, entry by entry, in less than quadratic time if their forms allow it."""

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any, Unpack

import keras
from keras import ops

from keras_graphattn.checks import is_list
from keras_graphattn.masks.chunked import Causal, ChunkedMask, Form
from keras_graphattn.masks.composed import Composed
from keras_graphattn.masks.inputs import Tensors
from keras_graphattn.masks.low_rank import Factored
from keras_graphattn.masks.mask import (
    FORMED_PATHS,
    Mask,
    MaskOptions,
    Operands,
    Rows,
    Signal,
    get,
    sum_over_features,
    widest_dtype,
)
from keras_graphattn.operators.kernel import unmasked_attention


@keras.saving.register_keras_serializable(package="keras_graphattn")
class Product(Composed, ChunkedMask):
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
        **kwargs: Those of every `Mask`.

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

    _parts_name = "masks"

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
        self._take_inputs()
        names = [name for mask in self.masks for name in mask.inputs_at_call]
        if len(set(names)) < len(names):
            raise ValueError(
                "Two factors of a product take a tensor of the same name at each call. Received: "
                f"masks={[type(mask).__name__ for mask in self.masks]}, which take {names}. Join "
                "them into one mask."
            )
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

    def _combined(self, rows: list[Rows]) -> Rows:
        dtype = widest_dtype(rows)
        return functools.reduce(operator.mul, (ops.cast(factor, dtype) for factor in rows))

    def choose_path(
        self, length: int | None, features: int | None = None, width: int | None = None
    ) -> str:
        if self._others and len(self.paths) > len(FORMED_PATHS):
            (other,) = self._others
            choose = other.choose_causal_path if self._some_chunked else other.choose_path
            return choose(length, features, width)
        return super().choose_path(length, features, width)
