"""What `AttentiveGraphFilter` accepts: its forms of g(S) and the masks it can honour."""

from typing import Any, NamedTuple

from keras import ops

from keras_graphattn.layers.named_starts import SINGULAR_STARTS, check_start
from keras_graphattn.layers.options import is_one_of

Tensor = Any

FILTERS = ("polynomial", "singular_values", "ones")


class SingularValueFilter(NamedTuple):
    """The options of g(S); all but `kind` are None or False where g has no polynomial."""

    kind: str
    order: Any = None
    basis: Any = None
    alpha: Any = None
    beta: Any = None
    learned_constant: bool = False


def check_filter(
    kind: Any,
    order: Any = None,
    basis: Any = None,
    alpha: Any = None,
    beta: Any = None,
    learned_constant: Any = False,
) -> SingularValueFilter:
    """The options of g(S) with their defaults, or `ValueError` for what cannot be used."""
    if not is_one_of(kind, FILTERS):
        raise ValueError(f"`filter` must be one of {list(FILTERS)}. Received: filter={kind!r}")
    if not isinstance(learned_constant, bool):
        raise ValueError(
            f"`learned_constant` must be a boolean. Received: learned_constant={learned_constant!r}"
        )
    if kind == "polynomial":
        order = 4 if order is None else order
        basis = "jacobi" if basis is None else basis
        return SingularValueFilter(kind, order, basis, alpha, beta, learned_constant)
    given = {"order": order, "basis": basis, "alpha": alpha, "beta": beta}
    given["learned_constant"] = learned_constant or None
    unused = [f"{name}={value!r}" for name, value in given.items() if value is not None]
    if unused:
        raise ValueError(
            f"filter={kind!r} has no polynomial. Received: {', '.join(unused)}. Leave them out, "
            'or use filter="polynomial".'
        )
    return SingularValueFilter(kind)


def check_singular_start(start: Any, options: SingularValueFilter) -> str:
    """The name of a start of g(S), or `ValueError` for one that cannot be used."""
    name = check_start(start, None, 1, SINGULAR_STARTS)
    if name != "plain" and (options.order is None or options.learned_constant):
        raise ValueError(
            "A named start is one of a polynomial whose weight of P_0 is 1. Received: "
            f"start={start!r}, filter={options.kind!r}, learned_constant="
            f"{options.learned_constant}. Leave `start` out."
        )
    return name


def token_mask(attention_mask: Tensor | None) -> Tensor | None:
    """(B, 1, S) -> (B, S); anything that depends on the query position is refused."""
    if attention_mask is None:
        return None
    shape = tuple(attention_mask.shape)
    if len(shape) == 4 and shape[1] == 1:
        attention_mask = ops.squeeze(attention_mask, 1)
    if len(attention_mask.shape) != 3 or attention_mask.shape[1] != 1:
        raise ValueError(
            "AttentiveGraphFilter has no attention matrix to mask entry by entry: "
            "`attention_mask` must have shape (B, 1, S), one mask of key positions for all "
            f"queries. Received: attention_mask.shape={shape}. Pass padding as `query_mask` "
            "and `value_mask`, or use GraphFilterAttention."
        )
    return ops.squeeze(attention_mask, 1)
