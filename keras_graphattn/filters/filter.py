"""The base of all filters: a function of an attention operator with learned coefficients."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from keras_graphattn.checks import is_list, numpy_of, one_of, whole
from keras_graphattn.serialization import Configured
from keras_graphattn.types import Float, Tensor

Apply = Callable[[Float[Tensor, "..."]], Float[Tensor, "..."]]  # x -> A x: an operator

check_order = whole(1, below=1001)  # each application adds operations to the compiled graph

# Named starts of a filter: what it computes before training. Each is a polynomial
# c_0 I + c_1 A + c_2 A^2 of A, whose rows sum to 1. Attention averages tokens. So A keeps what they
# have in common (low frequencies), and I - A keeps the differences.
STARTS = {
    "plain": (0.0, 1.0, 0.0),  # A
    "high_pass": (1.0, -1.0, 0.0),  # I - A
    "high_boost": (2.0, -1.0, 0.0),  # I + (I - A)
    "band_pass": (0.0, 1.0, -1.0),  # A (I - A)
    "twicing": (0.0, 2.0, -1.0),  # A + A (I - A): attention, and attention of what it left over
}


class Coefficient(NamedTuple):
    """The weight that a layer makes for one of its filter's coefficients.

    Example:

    >>> Coefficient(np.zeros(4)).trainable
    True
    """

    start: np.ndarray  # (..., N), one number for each head
    trainable: bool = True


class Filter(Configured):
    """A graph filter H(A): a function of the attention operator A, learned for each head.

    A filter holds only settings. The layer that uses it makes the weights that `coefficients`
    describes, and calls the filter with their values. So several layers can share one filter
    object, and each of them learns its own coefficients.

    Most new filters derive from `Polynomial`, which needs only a recurrence, or from
    `NamedFilter`, for a few numbers per head. A direct subclass of this class implements
    `start_values` and `__call__`, and `num_applications` if that is not the order. Register it with
    `keras.saving.register_keras_serializable`, so that layers with it can be saved.

    Args:
        order: How far the filter reaches: the degree of a polynomial, or the number of
            applications of A. An integer of at least 1.
        trainable_coefficients: `True` trains all coefficients and `False` none.
        initial_coefficients: Start values that replace those of `start`.
        start: What the filter is before training: `"plain"`, H = A; `"high_pass"`, H = I - A;
            `"high_boost"`, H = I + (I - A); and from order 2 on `"band_pass"`, H = A (I - A), or
            `"twicing"`, H = A + A (I - A) (Abdullaev and Nguyen, arXiv 2503.00687).
            The attribute `starts` of a filter lists the names that it accepts.

    Raises:
        ValueError: For values outside these ranges, and for a `start` together with
            `initial_coefficients`.

    Example:

    >>> from keras_graphattn.filters import Chebyshev
    >>> filter = Chebyshev(2)
    >>> filter.num_applications, list(filter.coefficients(num_heads=8))
    (2, ['filter_coefficients'])
    """

    starts: ClassVar[Sequence[str]] = tuple(STARTS)

    def __init__(
        self,
        order: int = 3,
        *,
        trainable_coefficients: bool | Sequence[str] = True,
        initial_coefficients: ArrayLike | Mapping[str, ArrayLike] | None = None,
        start: str = "plain",
    ) -> None:
        self.order: int = check_order("order", order, {})
        self.trainable_coefficients = plain_numbers(trainable_coefficients)
        self.initial_coefficients = plain_numbers(initial_coefficients)
        self.start: str = one_of(*self.starts)("start", start, {})
        if start != "plain" and initial_coefficients is not None:
            raise ValueError(
                "`start` names coefficients and `initial_coefficients` lists them: give only one "
                f"of the two. Received: start={start!r}, "
                f"initial_coefficients={initial_coefficients!r}"
            )
        if order < 2 and STARTS.get(self.start, (0.0,))[-1] != 0.0:
            raise ValueError(
                f"The start {start!r} is a polynomial of degree 2 in A. Received: start={start!r}, "
                f"order={order}. Use an order of at least 2."
            )
        # both raise for invalid options, before a layer is made
        self.trained_names()
        self.start_values(None)

    @property
    def num_applications(self) -> int:
        """How often a call applies A."""
        return self.order

    def coefficients(self, num_heads: int) -> dict[str, Coefficient]:
        """The weights that a layer with this filter has, by name.

        Args:
            num_heads: Number of heads N.

        Returns:
            A dictionary from the name of each weight to its start value, of shape (..., N).

        Raises:
            ValueError: If `initial_coefficients` are for another number of heads.
        """
        trained = self.trained_names()
        return {
            name: Coefficient(start, name in trained)
            for name, start in self.start_values(num_heads).items()
        }

    def start_values(self, num_heads: int | None) -> dict[str, np.ndarray]:
        """Start values by the names of weights, (..., N); N is 1 if it is not known yet."""
        raise NotImplementedError(f"{type(self).__name__} must write `start_values`.")

    def trained_names(self) -> Sequence[str]:
        """The names of the weights that are trained."""
        if not isinstance(self.trainable_coefficients, bool):
            raise ValueError(
                "`trainable_coefficients` must be True or False. Received: "
                f"trainable_coefficients={self.trainable_coefficients!r}"
            )
        return list(self.start_values(None)) if self.trainable_coefficients else []

    def __call__(
        self,
        apply: Apply,
        values: Float[Tensor, "..."],
        coefficients: Mapping[str, Float[Tensor, "..."]],
    ) -> Float[Tensor, "..."]:
        """H(A) values.

        Args:
            apply: The operator, or any callable that maps a tensor of the shape of `values` to A
                times it. An operator that applies itself twice for less than two applications has
                a method `twice`.
            values: Tensor of token values, such as (B, T, N, D).
            coefficients: The values of the weights by name, shaped to broadcast to `values`: here
                (..., N, 1).

        Returns:
            A tensor of the shape and dtype of `values`.
        """
        raise NotImplementedError(f"{type(self).__name__} must write `__call__`.")

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {
            "order": self.order,
            "trainable_coefficients": self.trainable_coefficients,
            "initial_coefficients": self.initial_coefficients,
            "start": self.start,
        }


class NamedFilter(Filter):
    """Base of filters whose coefficients have names: one number for each head and name.

    A subclass implements `named_start` and `__call__`, and `num_applications` if that is not the
    order. The weight of a coefficient has the name `<name>_coefficient`.

    Args:
        order: As for `Filter`.
        trainable_coefficients: `True` trains all coefficients and `False` none; or a list of the
            names of those that are trained.
        initial_coefficients: A dictionary from names to start values, each a number or a list with
            one number for each head. Names that it leaves out start at the value for `start`.
        start: As for `Filter`.

    Example:

    >>> @keras.saving.register_keras_serializable(package="mine")
    ... class Scaled(NamedFilter):  # H = s A
    ...     starts = ("plain",)
    ...     def named_start(self):
    ...         return {"scale": 1.0}
    ...     def __call__(self, apply, values, coefficients):
    ...         return coefficients["scale_coefficient"] * apply(values)
    >>> list(Scaled(1).coefficients(num_heads=8))
    ['scale_coefficient']
    """

    def named_start(self) -> dict[str, float]:
        """The start value of each coefficient by its name, for the filter's `start`."""
        raise NotImplementedError

    def start_values(self, num_heads: int | None) -> dict[str, np.ndarray]:
        initial = {} if self.initial_coefficients is None else self.initial_coefficients
        named = self.named_start()
        if not isinstance(initial, Mapping) or not set(initial) <= set(named):
            raise ValueError(
                f"`initial_coefficients` of {type(self).__name__} must be a dictionary with keys "
                f"from {list(named)}. Received: initial_coefficients={initial!r}"
            )
        return {
            f"{name}_coefficient": of_heads(initial.get(name, start), num_heads, initial)
            for name, start in named.items()
        }

    def trained_names(self) -> Sequence[str]:
        trained, names = self.trainable_coefficients, list(self.named_start())
        if is_list(trained) and all(isinstance(name, str) for name in trained):
            if set(trained) <= set(names):
                return [f"{name}_coefficient" for name in trained]
        elif isinstance(trained, bool):
            return super().trained_names()
        raise ValueError(
            f"`trainable_coefficients` must be True, False or a list of names from {names}. "
            f"Received: trainable_coefficients={trained!r}"
        )


def plain_numbers(value: object) -> Any:
    """Start values as lists and numbers, which a configuration can hold."""
    if isinstance(value, Mapping):
        return {name: plain_numbers(one) for name, one in value.items()}
    if ops.is_tensor(value) or isinstance(value, keras.Variable):
        value = ops.convert_to_numpy(value)
    if is_list(value):
        return [plain_numbers(one) for one in value]
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def of_heads(value: ArrayLike, num_heads: int | None, initial: object) -> np.ndarray:
    """One number, or one for each head, as an array (N,); any N if `num_heads` is `None`."""
    numbers = numpy_of(value)
    numbers = numbers.astype("float64") if numbers.dtype.kind in "biuf" else np.asarray(np.nan)
    heads = numbers.size if num_heads is None and numbers.ndim == 1 else num_heads or 1
    if numbers.shape not in ((), (heads,)) or not np.all(np.isfinite(numbers)):
        each = "each head" if num_heads is None else f"each of the {num_heads} heads"
        raise ValueError(
            f"Each of `initial_coefficients` must be a finite number, or one for {each}. "
            f"Received: initial_coefficients={initial!r}"
        )
    return np.broadcast_to(numbers, (heads,))
