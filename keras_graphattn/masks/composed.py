"""Matrices that are computed from the matrices of their parts, entry by entry."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, TypeVar

import keras

from keras_graphattn.keras_internals import move
from keras_graphattn.masks.inputs import Arrays, Flags, Length, Tensors, either
from keras_graphattn.masks.mask import PairMatrix, Positions, Rows, Shape
from keras_graphattn.serialization import restored
from keras_graphattn.types import Bool, Float, Tensor

Part = TypeVar("Part", bound=PairMatrix)


class Composed(PairMatrix):
    """Base of matrices made of others: the product of masks, the sum of biases, log M of a mask.

    A subclass keeps its parts in the attribute `_parts_name`, a list or one object, and writes
    `_combined`. The parts own the weights, and read the inputs of a call.
    """

    _parts_name: ClassVar[str]

    @property
    def parts(self) -> Sequence[PairMatrix]:
        """The matrices that this one is made of."""
        parts = getattr(self, self._parts_name)
        return [parts] if isinstance(parts, PairMatrix) else parts

    def _combined(self, rows: list[Rows]) -> Rows:
        """The same rows of this matrix, from those of its parts."""
        raise NotImplementedError(f"{type(self).__name__} must write `_combined`.")

    def _take_inputs(self) -> None:
        """Takes the inputs of the parts for its own."""
        names = [name for part in self.parts for name in part.inputs_at_call]
        self.inputs_at_call = tuple(dict.fromkeys(names))
        self.reads_tokens = any(part.reads_tokens for part in self.parts)

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        for part in self.parts:
            if not part.built:
                part.build(input_shape)
            elif part._parent is None:  # else the weights keep the paths that the layer gave them
                move(part, self)

    @property
    def given_inputs(self) -> tuple[str, ...]:
        names = [name for part in self.parts for name in part.given_inputs]
        return tuple(dict.fromkeys(names))

    def inputs_of_tokens(
        self, tokens: Float[Tensor, "B T d"], kept: Bool[Tensor, "B T"] | None
    ) -> Tensors:
        read = [part.inputs_of_tokens(tokens, kept) for part in self.parts]
        return {name: x for inputs in read for name, x in inputs.items()}

    def empty_inputs(self, batch_size: int, length: int, num_heads: int) -> Tensors:
        empty = [part.empty_inputs(batch_size, length, num_heads) for part in self.parts]
        return {name: x for inputs in empty for name, x in inputs.items()}

    def parameters(self) -> Tensors:
        return {
            f"{place} {name}": tensor
            for place, part in enumerate(self.parts)
            for name, tensor in part.parameters().items()
        }

    def _each(
        self, parameters: Tensors, inputs: Tensors, kind: type[Part]
    ) -> Iterator[tuple[Part, Tensors, Tensors]]:
        """The parts of a class, each with its own parameters and inputs."""
        for place, part in enumerate(self.parts):
            if isinstance(part, kind):
                start = f"{place} "
                own = (name for name in parameters if name.startswith(start))
                weights = {name.removeprefix(start): parameters[name] for name in own}
                yield part, weights, {n: inputs[n] for n in part.inputs_at_call if n in inputs}

    def _matrix(self, length: Length, parameters: Tensors, inputs: Tensors) -> Rows:
        each = self._each(parameters, inputs, PairMatrix)
        return self._combined([part._matrix(length, *own) for part, *own in each])

    def _rows(
        self, positions: Positions, length: Length, parameters: Tensors, inputs: Tensors
    ) -> Rows:
        each = self._each(parameters, inputs, PairMatrix)
        return self._combined([part._rows(positions, length, *own) for part, *own in each])

    def _block_rows(
        self, positions: Positions, length: Length, parameters: Tensors, inputs: Tensors
    ) -> Rows:
        each = self._each(parameters, inputs, PairMatrix)
        return self._combined([part._block_rows(positions, length, *own) for part, *own in each])

    def _check_built(self) -> None:
        for part in self.parts:
            part._check_built()

    def _check_length(self, length: int) -> None:
        for part in self.parts:
            part._check_length(length)

    def _check_values(self, inputs: Arrays, length: int | None) -> bool:
        each = self._each({}, inputs, PairMatrix)
        are_usable = [part._check_values(tensors, length) for part, _, tensors in each]
        return all(are_usable)

    def _bounded(self, inputs: Tensors, length: Length) -> tuple[Tensors, Flags]:
        bounded: Tensors = {}
        wrong: Flags = None
        for part, _, own in self._each({}, inputs, PairMatrix):
            if own:
                tensors, flags = part._bounded(own, length)
                bounded, wrong = bounded | tensors, either(wrong, flags)
        return bounded, wrong

    @property
    def _own_length(self) -> int | None:
        return next((p._own_length for p in self.parts if p._own_length is not None), None)

    def get_config(self) -> dict[str, Any]:
        first = [self.parts.index(part) for part in self.parts]
        # a part that appears twice is one object: its second place has the index of the first
        configs = [
            keras.saving.serialize_keras_object(part) if place == index else place
            for index, (part, place) in enumerate(zip(self.parts, first, strict=True))
        ]
        is_single = isinstance(getattr(self, self._parts_name), PairMatrix)
        return {**super().get_config(), self._parts_name: configs[0] if is_single else configs}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        name = cls._parts_name
        parts = config.get(name)
        if isinstance(parts, (list, tuple)):
            parts = [restored(name, part) for part in parts]
            parts = [parts[part] if isinstance(part, int) else part for part in parts]
        else:
            parts = restored(name, parts)
        return cls(**{**config, name: parts})
