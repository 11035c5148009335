"""What masks take with each call: names, shapes, and values that are checked or kept in bounds."""

from collections.abc import Callable
from typing import Any, NamedTuple

from keras import ops

from keras_graphattn.checks.arguments import Rule, Sizes, check_shape, integers, tensor, whole
from keras_graphattn.masks.input_checks import (
    bounded_inputs,
    check_values,
    harmless,
    known_value,
)

Tensor = Any
Tensors = dict[str, Tensor]

# What masks take with each call, by name; any other name is a tensor of numbers of any shape
INPUTS: dict[str, tuple[Callable[..., Rule], tuple[str, ...]]] = {
    "segment_ids": (integers, ("B T",)),
    "entries": (tensor, ("T T", "B? T T", "B? N? T T")),
    "parents": (integers, ("B T",)),
    "edges": (integers, ("B E 2",)),
    "edge_weights": (tensor, ("B E",)),
    "walks": (integers, ("B T _ _",)),
}
LENGTHS_OF_TREES = {"edge_weights": (tensor, ("B T",))}  # beside parents, one for each node


class Prepared(NamedTuple):
    """What came with a call, checked: the tensors, and which examples hold a wrong entry."""

    tensors: Tensors
    wrong: Tensor | None  # (B,) booleans; None where no entry is wrong


class CallInputs:
    """The half of `Mask` that looks at `inputs_at_call`."""

    inputs_at_call: tuple[str, ...] = ()

    def _check_values(self, inputs: dict[str, Any], length: int | None) -> bool:
        """Raises a `ValueError` for the first wrong entry of known inputs, which are NumPy arrays.

        Returns whether the inputs can be computed with as they are, as `check_values` does.
        """
        return check_values(inputs, length)

    def _bounded(self, inputs: Tensors, length: Any) -> tuple[Tensors, Tensor | None]:
        """The same for values that are not known yet: `bounded_inputs`."""
        return bounded_inputs(inputs, length)

    def check_inputs(self, length: int | None = None, **inputs: Any) -> None:
        """Checks the values of one batch: for data pipelines, which run before compiled code.

        A pass over the integers in NumPy, for edges a sort of them, for parents ceil(log2(T)) looks
        at each node: little beside the product. Calls of the mask outside compiled code do the
        same. On an accelerator they wait for the values, which compiled code does not.

        Args:
            length: Number of tokens T. Without it, edges are not compared with the number of
                nodes.
            **inputs: NumPy arrays, or tensors whose values are known, of `inputs_at_call`, for a
                whole batch.

        Raises:
            ValueError: For missing or unknown inputs, wrong shapes, and the first wrong entry, by
                example and entry.

        Example:

        >>> from keras_graphattn.masks import Tree
        >>> def checked(tokens, parents):  # in a generator or in `PyDataset.__getitem__`
        ...     Tree().check_inputs(tokens.shape[1], parents=parents)
        ...     return tokens, parents
        >>> checked(np.zeros((1, 3, 8)), np.array([[-1, 0, 3]]))
        Traceback (most recent call last):
        ValueError: `parents` of example 0: node 2 has parent 3, but there are 3 nodes. Parents \
are numbered within the example, from 0; -1 marks a root.
        """
        length = None if length is None else whole(0)("length", length, {})
        sizes: Sizes = {} if length is None else {"T": (length, "length")}
        self._check_names(inputs)
        values: dict[str, Any] = {}
        for name, (rule, shapes) in self._rules().items():
            given = known_value(inputs[name])
            if given is None or given.dtype.kind not in ("iu" if rule is integers else "biuf"):
                kind = "integers" if rule is integers else "numbers"
                raise ValueError(
                    f"`{name}` must be an array of {kind}, or a tensor of a known value. Received: "
                    f"{inputs[name]!r}. Compiled code knows no values: check them before it."
                )
            check_shape(name, given, shapes, sizes)
            values[name] = given
        self._check_values(values, length)

    def _checked_inputs(self, inputs: Tensors, sizes: Sizes | None = None) -> Tensors:
        self._check_names(inputs)
        sizes, found = {} if sizes is None else sizes, {}
        for name, (rule, shapes) in self._rules().items():
            found[name] = ops.convert_to_tensor(rule(*shapes)(name, inputs[name], sizes))
        return found

    def _rules(self) -> dict[str, tuple[Callable[..., Rule], tuple[str, ...]]]:
        """What each of `inputs_at_call` must be."""
        known = INPUTS | (LENGTHS_OF_TREES if "parents" in self.inputs_at_call else {})
        return {name: known.get(name, (tensor, ())) for name in self.inputs_at_call}

    def _check_names(self, inputs: Tensors) -> None:
        if set(inputs) != set(self.inputs_at_call):
            raise ValueError(
                f"{type(self).__name__} needs the tensors {list(self.inputs_at_call)} at each "
                f"call. Received: {sorted(inputs)}. A layer hands them on as `mask_inputs`."
            )

    def _judged(self, given: Tensors, found: Tensors, length: Any) -> Prepared:
        """Inputs with no wrong entry: an error where they are known, else flags of examples."""
        if not found:
            return Prepared(found, None)
        values = {name: known_value(tensor) for name, tensor in given.items()}
        known = {name: value for name, value in values.items() if value is not None}
        plain = self._check_values(known, length if isinstance(length, int) else None)
        if plain and len(known) == len(found):
            return Prepared(found, None)
        found, wrong = self._bounded(found, length)
        return Prepared(found if wrong is None else harmless(found, wrong), wrong)
