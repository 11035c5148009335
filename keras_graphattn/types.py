"""Types of tensors with their shapes, such as `Float[Tensor, "B T N H"]`.

The letters are those of `keras_graphattn.checks`: B examples, T tokens or query rows, S keys, N
heads, H channels of a head, D channels of a value, m features. "..." is any number of axes, "_" any
size, and "T?" is T or 1. A shape of one letter starts with a space (`Float[Tensor, " T"]`), because
linters read a single word as a name. The tests check these shapes while they run.
"""

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

__all__ = ["Bool", "Float", "Int", "Num", "Shape", "Size", "Tensor"]

Tensor = Any  # a tensor of the backend; no class is common to all three


class Shape(NamedTuple):
    """The kind of a tensor's numbers (`"float"`, `"int"`, `"bool"` or `"any"`), and its shape."""

    kind: str
    sizes: str


if TYPE_CHECKING:
    from typing import Annotated as Bool
    from typing import Annotated as Float
    from typing import Annotated as Int
    from typing import Annotated as Num
else:

    def _kind(kind: str) -> type:
        def of(cls: type, item: tuple[object, str]) -> object:
            return Annotated[item[0], Shape(kind, item[1])]

        return type(kind.title(), (), {"__class_getitem__": classmethod(of)})

    Bool, Float, Int, Num = (_kind(kind) for kind in ("bool", "float", "int", "any"))

Size = int | Int[Tensor, ""]  # of an axis; a tensor, or a symbol, if it is not known yet
