"""Graph filters: functions of the attention operator A, with coefficients learned for each head.

A layer takes a filter by name, `GraphFilterAttention(8, 64, filter="chebyshev", order=4)`, or as
an object, `GraphFilterAttention(8, 64, filter=Jacobi(4, alpha=1.0))`.

A new filter is one file in this folder and one line in `FILTERS`.
"""

from keras_graphattn.filters.filter import Coefficient, Filter, NamedFilter
from keras_graphattn.filters.first_order import FirstOrder
from keras_graphattn.filters.inverted import Inverted
from keras_graphattn.filters.page_rank import PageRank
from keras_graphattn.filters.polynomial import (
    Chebyshev,
    Jacobi,
    Legendre,
    Monomial,
    Polynomial,
    Step,
)
from keras_graphattn.filters.resolvent import Resolvent
from keras_graphattn.serialization import resolve

FILTERS: dict[str, type[Filter]] = {
    "first_order": FirstOrder,
    "monomial": Monomial,
    "chebyshev": Chebyshev,
    "legendre": Legendre,
    "jacobi": Jacobi,
    "inverted": Inverted,
    "page_rank": PageRank,
    "resolvent": Resolvent,
}


def get(filter: str | Filter | dict[str, object], order: int | None = None) -> Filter:
    """The filter for a layer's argument `filter`.

    Args:
        filter: A name from `FILTERS`, a `Filter`, or the configuration of a filter.
        order: The order of a filter given by its name; the filter's own default if `None`.

    Raises:
        ValueError: For other values, and for an `order` together with a filter object.

    Example:

    >>> get("chebyshev", order=4).num_applications
    4
    """
    return resolve("filter", filter, Filter, FILTERS, order=order)


__all__ = [
    "FILTERS",
    "Chebyshev",
    "Coefficient",
    "Filter",
    "FirstOrder",
    "Inverted",
    "Jacobi",
    "Legendre",
    "Monomial",
    "NamedFilter",
    "PageRank",
    "Polynomial",
    "Resolvent",
    "Step",
    "get",
]
