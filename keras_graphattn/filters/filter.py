"""The base of all filters: a function of an attention operator with learned coefficients."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from keras_graphattn.checks import did_you_mean, is_list, is_one_of, numpy_of
from keras_graphattn.types import Float, Tensor

Apply = Callable[[Float[Tensor, "..."]], Float[Tensor, "..."]]  # x -> A x: an operator

MOST_STEPS = 1000  # each adds operations to the compiled graph

# Named starts of a filter: what it computes before training. Each is a polynomial
# c_0 I + c_1 A + c_2 A^2 of A, whose rows sum to 1. Attention averages tokens. So A keeps what they
# have in common (low frequencies), and I - A keeps the differences.
STARTS = {
    "plain": (0.0, 1.0, 0.0),  # A
    "high_pass": (1.0, -1.0, 0.0),  # I - A
    "high_boost": (2.0, -1.0, 0.0),  # I + (I - A)
    "band_pass": (0.0, 1.0, -1.0),  # A (I - A)
}


class Coefficient(NamedTuple):
    """The weight that a layer makes for one of its filter's coefficients.

    Example:

    >>> Coefficient(np.zeros(4)).trainable
    True
    """

    start: np.ndarray  # (..., N), one number for each head
    trainable: bool = True


class Filter:
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
            `"high_boost"`, H = I + (I - A); or `"band_pass"`, H = A (I - A), from order 2 on.
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
        trainable_coefficients: Any = True,
        initial_coefficients: Any = None,
        start: str = "plain",
    ) -> None:
        self.order = check_order(order)
        self.trainable_coefficients = plain_numbers(trainable_coefficients)
        self.initial_coefficients = plain_numbers(initial_coefficients)
        self.start = check_start(start, initial_coefficients, order, self.starts)
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
        """Start values by the names of weights, (..., N); N is 1 if it is not known yet.

        Raises:
            ValueError: For `initial_coefficients` that the filter cannot use.
        """
        raise NotImplementedError

    def trained_names(self) -> Sequence[str]:
        """The names of the weights that are trained.

        Raises:
            ValueError: For `trainable_coefficients` that the filter cannot use.
        """
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
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {
            "order": self.order,
            "trainable_coefficients": self.trainable_coefficients,
            "initial_coefficients": self.initial_coefficients,
            "start": self.start,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Filter":
        """The filter that `get_config` described."""
        return cls(**config)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.get_config() == other.get_config()

    def __hash__(self) -> int:
        return hash((type(self), self.order))

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.get_config().items())
        return f"{type(self).__name__}({arguments})"


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
        given = {} if self.initial_coefficients is None else self.initial_coefficients
        named = self.named_start()
        if not isinstance(given, Mapping) or not set(given) <= set(named):
            raise ValueError(
                f"`initial_coefficients` of {type(self).__name__} must be a dictionary with keys "
                f"from {list(named)}. Received: initial_coefficients={given!r}"
            )
        return {
            f"{name}_coefficient": of_heads(given.get(name, start), num_heads, given)
            for name, start in named.items()
        }

    def trained_names(self) -> Sequence[str]:
        given, names = self.trainable_coefficients, list(self.named_start())
        if is_list(given) and all(isinstance(name, str) for name in given):
            if set(given) <= set(names):
                return [f"{name}_coefficient" for name in given]
        elif isinstance(given, bool):
            return super().trained_names()
        raise ValueError(
            f"`trainable_coefficients` must be True, False or a list of names from {names}. "
            f"Received: trainable_coefficients={given!r}"
        )


def check_order(order: int, name: str = "order") -> int:
    """The order of a filter, if it is valid.

    Raises:
        ValueError: For anything else than an integer from 1 to 1000.
    """
    if isinstance(order, bool) or not isinstance(order, int) or not 1 <= order <= MOST_STEPS:
        raise ValueError(
            f"`{name}` is the degree of a polynomial filter and must be an integer of at "
            f"least 1, and at most {MOST_STEPS}. Received: {name}={order!r}"
        )
    return order


def check_start(start: Any, given: Any, order: int, allowed: Sequence[str]) -> str:
    """The name of a start, if the filter accepts it.

    Args:
        start: The filter's argument `start`.
        given: The filter's argument `initial_coefficients`.
        order: The filter's order.
        allowed: The names that the filter accepts.

    Raises:
        ValueError: For another name, for a name together with `initial_coefficients`, and for an
            order that is too low for the named filter.
    """
    if not is_one_of(start, list(allowed)):
        raise ValueError(
            f"`start` must be one of {list(allowed)}. Received: start={start!r}."
            f"{did_you_mean(start, allowed)}"
        )
    if start != "plain" and given is not None:
        raise ValueError(
            "`start` names coefficients and `initial_coefficients` lists them: give only one of "
            f"the two. Received: start={start!r}, initial_coefficients={given!r}"
        )
    if start == "band_pass" and order < 2:
        raise ValueError(
            f"The band-pass filter A (I - A) has degree 2. Received: start={start!r}, "
            f"order={order}. Use an order of at least 2."
        )
    return str(start)


def plain_numbers(given: Any) -> Any:
    """Start values as lists and numbers, which a configuration can hold."""
    if isinstance(given, Mapping):
        return {name: plain_numbers(value) for name, value in given.items()}
    if is_list(given):
        return [plain_numbers(value) for value in given]
    return given.tolist() if isinstance(given, (np.ndarray, np.generic)) else given


def of_heads(value: Any, num_heads: int | None, given: Any) -> np.ndarray:
    """One number, or one for each head, as an array of shape (N,).

    Args:
        value: The number or numbers.
        num_heads: Number of heads N; `None` if it is not known yet, which allows any number.
        given: The user's `initial_coefficients`, for the error message.

    Raises:
        ValueError: For values other than a finite number, or one for each head.
    """
    numbers = numpy_of(value)
    numbers = numbers.astype("float64") if numbers.dtype.kind in "biuf" else np.asarray(np.nan)
    heads = numbers.size if num_heads is None and numbers.ndim == 1 else num_heads or 1
    if numbers.shape not in ((), (heads,)) or not np.all(np.isfinite(numbers)):
        each = "each head" if num_heads is None else f"each of the {num_heads} heads"
        raise ValueError(
            f"Each of `initial_coefficients` must be a finite number, or one for {each}. "
            f"Received: initial_coefficients={given!r}"
        )
    return np.broadcast_to(numbers, (heads,))
