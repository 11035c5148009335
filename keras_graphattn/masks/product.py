"""Products of masks, entry by entry, in less than quadratic time if their forms allow it."""

import functools
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import keras
from keras import ops

from keras_graphattn.checks import is_list
from keras_graphattn.keras_internals import move
from keras_graphattn.masks.chunked import Causal, ChunkedMask, Form
from keras_graphattn.masks.feature_sums import attend_by_products
from keras_graphattn.masks.input_checks import either
from keras_graphattn.masks.low_rank import Factored
from keras_graphattn.masks.mask import Mask, Tensors
from keras_graphattn.masks.precision import widest_dtype
from keras_graphattn.operators.kernel import unmasked_attention
from keras_graphattn.ops.kernel.decays import Decay
from keras_graphattn.serialization import restored

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_graphattn")
class Product(ChunkedMask):
    """M[i, j] = M_1[i, j] M_2[i, j] ...

    | factors | path |
    | --- | --- |
    | any of `Causal`, `Segments`, `Exponential` | "chunked", linear; with a state if causal |
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
        ValueError: For fewer than two masks, for anything that is not a mask, and for two factors
            that take a call-time input of the same name.

    Example:

    >>> from keras_graphattn.masks import Causal, Segments
    >>> mask = Product([Causal(), Segments()])
    >>> mask.paths
    ('dense', 'blockwise', 'chunked')
    >>> matrix = mask.dense(segment_ids=np.array([[4, 4, 9]]))
    >>> keras.ops.convert_to_numpy(matrix)[0, 0].tolist()
    [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """

    def __init__(self, masks: Sequence[Any], **kwargs: Any) -> None:
        from keras_graphattn.masks import get  # which knows this class

        super().__init__(**kwargs)
        if not is_list(masks) or len(masks) < 2:
            raise ValueError(
                "`masks` must be a list of two or more masks of keras_graphattn.masks. Received: "
                f"masks={masks!r}"
            )
        given = [get(mask) for mask in masks]
        self.masks: list[Any] = [
            factor
            for mask in given
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
        self._sort()
        self.paths = (*Mask.paths, *self._own_paths())

    def _sort(self) -> None:
        """Finds the positions of the factors by kind."""
        kinds: dict[str, list[int]] = {"chunked": [], "factored": [], "other": []}
        for index, mask in enumerate(self.masks):
            chunked = isinstance(mask, ChunkedMask)
            factored = isinstance(mask, Factored)
            kinds["chunked" if chunked else "factored" if factored else "other"].append(index)
        self._chunked, self._factored = tuple(kinds["chunked"]), tuple(kinds["factored"])
        self._others = tuple(kinds["other"])

    def _own_paths(self) -> tuple[str, ...]:
        if not self._others:
            return ("chunked",) if self._chunked else ("low_rank",)
        if len(self._others) > 1:
            return ()
        other = self.masks[self._others[0]]
        only_causal = all(isinstance(self.masks[i], Causal) for i in self._chunked)
        has_form = type(other)._causal_signal is not Mask._causal_signal
        if self._chunked and not (only_causal and has_form):
            return ()
        return tuple(path for path in other.paths if path not in Mask.paths)

    @property
    def is_causal(self) -> bool:
        return any(mask.is_causal for mask in self.masks)

    @property
    def hides_keys(self) -> bool:
        return any(mask.hides_keys for mask in self.masks)

    def build(self, input_shape: Any) -> None:
        super().build(input_shape)
        for mask in self.masks:
            if not mask.built:
                mask.build(input_shape)
            elif mask._holder is None:  # else the weights keep the paths that the layer gave them
                move(mask, self)

    def parameters(self) -> Tensors:
        return {
            f"{index} {name}": tensor
            for index, mask in enumerate(self.masks)
            for name, tensor in mask.parameters().items()
        }

    def _of(self, index: int, parameters: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
        """The parameters and inputs of one factor."""
        mask, start = self.masks[index], f"{index} "
        mine = {
            name.removeprefix(start): x for name, x in parameters.items() if name.startswith(start)
        }
        return mine, {name: inputs[name] for name in mask.inputs_at_call}

    def choose_path(
        self, length: int | None, features: int | None = None, width: int | None = None
    ) -> str:
        own = self.paths[len(Mask.paths) :]
        if own and self._others:
            other: Mask = self.masks[self._others[0]]
            choose = other.choose_causal_path if self._chunked else other.choose_path
            return choose(length, features, width)
        return super().choose_path(length, features, width)

    def _matrix(self, length: Any, parameters: Tensors, inputs: Tensors) -> Tensor:
        return _joined(
            mask._matrix(length, *self._of(index, parameters, inputs))
            for index, mask in enumerate(self.masks)
        )

    def _check_built(self) -> None:
        for mask in self.masks:
            mask._check_built()

    def _check_length(self, length: int) -> None:
        for mask in self.masks:
            mask._check_length(length)

    def _check_values(self, inputs: dict[str, Any], length: int | None) -> bool:
        plain = True
        for mask in self.masks:
            mine = {name: inputs[name] for name in mask.inputs_at_call if name in inputs}
            plain = mask._check_values(mine, length) and plain
        return plain

    def _bounded(self, inputs: Tensors, length: Any) -> tuple[Tensors, Tensor | None]:
        found: Tensors = {}
        wrong = None
        for mask in self.masks:
            mine = {name: inputs[name] for name in mask.inputs_at_call}
            tensors, flags = mask._bounded(mine, length)
            found, wrong = found | tensors, either(wrong, flags)
        return found, wrong

    def _known_length(self, inputs: Tensors) -> Any:
        for mask in self.masks:
            if type(mask)._known_length is not Mask._known_length:
                return mask._known_length({name: inputs[name] for name in mask.inputs_at_call})
        return super()._known_length(inputs)

    def _rows(self, positions: Tensor, length: Any, parameters: Tensors, inputs: Tensors) -> Tensor:
        return _joined(
            mask._rows(positions, length, *self._of(index, parameters, inputs))
            for index, mask in enumerate(self.masks)
        )

    def _block_rows(
        self, positions: Tensor, length: Any, parameters: Tensors, inputs: Tensors
    ) -> Tensor:
        return _joined(
            mask._block_rows(positions, length, *self._of(index, parameters, inputs))
            for index, mask in enumerate(self.masks)
        )

    def _attend(
        self,
        query_features: Tensor,
        key_features: Tensor,
        x: Tensor,
        path: str,
        parameters: Tensors,
        inputs: Tensors,
        feature_chunk: int | None,
    ) -> Tensor:
        features = (query_features, key_features)
        for index in self._factored:
            mine, _ = self._of(index, parameters, inputs)
            features = self.masks[index].widened(*features, mine)  # (B, T, N, m rank)
        if not self._others:
            if not self._chunked:
                return unmasked_attention(*features, x)
            return super()._attend(*features, x, path, parameters, inputs, feature_chunk)
        index = self._others[0]
        other = self.masks[index]
        parameters, inputs = self._of(index, parameters, inputs)
        if not self._chunked:
            return other._attend(*features, x, path, parameters, inputs, feature_chunk)

        def product(signal: Tensor, parameters: Tensors, inputs: Tensors) -> Tensor:
            return other._causal_signal(signal, path, parameters, inputs)

        return attend_by_products(product, *features, x, parameters, inputs, feature_chunk)

    def form(self, parameters: Tensors, inputs: Tensors) -> Form:
        """Returns one form for all factors that are computed in chunks."""
        joined = Form()
        for index in self._chunked:
            form = self.masks[index].form(*self._of(index, parameters, inputs))
            joined = Form(
                joined.causal or form.causal,
                _product(joined.decay, form.decay),
                joined.segment_ids if form.segment_ids is None else form.segment_ids,
            )
        return joined

    @property
    def num_decays(self) -> int:
        """Number of exponentials of the product: one for each choice of one per factor."""
        count = 1
        for index in self._chunked:
            count *= self.masks[index].num_decays
        return count

    @property
    def has_state(self) -> bool:
        return self.is_causal and not self._factored and not self._others

    def get_config(self) -> dict[str, Any]:
        first = [self.masks.index(mask) for mask in self.masks]
        # a factor that stands here twice is one mask: its second place holds the index of the first
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


def _joined(factors: Iterable[Tensor]) -> Tensor:
    """The product of the factors' entries, in their widest dtype."""
    found = list(factors)
    dtype = widest_dtype(found)
    return functools.reduce(operator.mul, (ops.cast(factor, dtype) for factor in found))


def _product(first: Decay | None, second: Decay | None) -> Decay | None:
    """(sum_r c_r e^(-a_r t)) (sum_s d_s e^(-b_s t)): the rates add, the weights multiply."""
    if first is None or second is None:
        return first if second is None else second
    heads = first.rates.shape[0]
    rates = ops.reshape(first.rates[:, :, None] + second.rates[:, None, :], (heads, -1))  # (N, R S)
    weights = None
    if first.weights is not None or second.weights is not None:
        left, right = (
            ops.ones_like(decay.rates) if decay.weights is None else decay.weights
            for decay in (first, second)
        )
        weights = ops.reshape(left[:, :, None] * right[:, None, :], (heads, -1))
    return Decay(rates, weights)
