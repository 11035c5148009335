"""The tensors that masks take with each call: checks of their names, shapes and values."""

from collections.abc import Callable
from typing import Any, NamedTuple

from keras import ops

from keras_graphattn.checks import Rule, Sizes, check_shape, integers, known_value, tensor, whole
from keras_graphattn.masks.input_checks import (
    bounded_inputs,
    check_values,
    harmless,
)

Tensor = Any
Tensors = dict[str, Tensor]

# The rule and the shapes of each input by name. Any other name is a tensor of numbers of any shape.
INPUTS: dict[str, tuple[Callable[..., Rule], tuple[str, ...]]] = {
    "segment_ids": (integers, ("B T",)),
    "entries": (tensor, ("T T", "B? T T", "B? N? T T")),
    "parents": (integers, ("B T",)),
    "edges": (integers, ("B E 2",)),
    "edge_weights": (tensor, ("B E",)),
    "walks": (integers, ("B T _ _",)),
}
LENGTHS_OF_TREES = {"edge_weights": (tensor, ("B T",))}  # together with parents: one for each node


class Prepared(NamedTuple):
    """The checked inputs of a call: the tensors, and which examples hold a wrong entry."""

    tensors: Tensors
    wrong: Tensor | None  # (B,) booleans; None if no entry is wrong


class CallInputs:
    """Base of objects that take named tensors with each call and check them.

    A subclass names its tensors in `inputs_at_call`. `Mask` is the only direct subclass.
    """

    inputs_at_call: tuple[str, ...] = ()

    def _check_values(self, inputs: dict[str, Any], length: int | None) -> bool:
        """Raises a `ValueError` for the first wrong entry of known inputs, which are NumPy arrays.

        Returns `True` if the inputs can be used as they are, as `check_values` does.
        """
        return check_values(inputs, length)

    def _bounded(self, inputs: Tensors, length: Any) -> tuple[Tensors, Tensor | None]:
        """Keeps values that are not known yet in bounds, as `bounded_inputs` does."""
        return bounded_inputs(inputs, length)

    def check_inputs(self, length: int | None = None, **inputs: Any) -> None:
        """Checks the values of one batch. Use it in data pipelines, before compiled code.

        The check reads the integers once in NumPy. It sorts edges, and it reads parents
        ceil(log2(T)) times. This costs little compared with the product. Calls of the mask outside
        compiled code make the same check. On an accelerator they wait for the values; compiled
        code does not.

        Args:
            length: Number of tokens T. Without it, edges are not compared with the number of
                nodes.
            **inputs: The arrays of `inputs_at_call` for a whole batch: NumPy arrays, or tensors
                whose values are known.

        Raises:
            ValueError: For missing or unknown inputs, for wrong shapes, and for a wrong entry. The
                error names the first wrong example and entry.

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
                    f"`{name}` must be an array of {kind}, or a tensor whose values are known. "
                    f"Received: {inputs[name]!r}. Compiled code knows no values: check them before "
                    "it."
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
        """The rule and the shapes of each of `inputs_at_call`."""
        known = INPUTS | (LENGTHS_OF_TREES if "parents" in self.inputs_at_call else {})
        return {name: known.get(name, (tensor, ())) for name in self.inputs_at_call}

    def _check_names(self, inputs: Tensors) -> None:
        if set(inputs) != set(self.inputs_at_call):
            raise ValueError(
                f"{type(self).__name__} needs the tensors {list(self.inputs_at_call)} at each "
                f"call. Received: {sorted(inputs)}. A layer takes them as `mask_inputs`."
            )

    def _without_wrong_entries(self, given: Tensors, found: Tensors, length: Any) -> Prepared:
        """Refuses wrong entries that are known; replaces and marks the others by example.

        Args:
            given: The inputs as the caller passed them.
            found: The same inputs as tensors.
            length: Number of tokens T.
        """
        if not found:
            return Prepared(found, None)
        values = {name: known_value(tensor) for name, tensor in given.items()}
        known = {name: value for name, value in values.items() if value is not None}
        plain = self._check_values(known, length if isinstance(length, int) else None)
        if plain and len(known) == len(found):  # all values are known and right
            return Prepared(found, None)
        found, wrong = self._bounded(found, length)
        return Prepared(found if wrong is None else harmless(found, wrong), wrong)
