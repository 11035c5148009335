"""Attention under a mask as a sum of products M x over the features: Algorithm 1."""

from collections.abc import Callable
from typing import Any

from keras_graphattn.operators.kernel import sum_over_features

Tensor = Any
Tensors = dict[str, Tensor]
Product = Callable[[Tensor, Tensors, Tensors], Tensor]


def attend_by_products(
    product: Product,
    query_features: Tensor,
    key_features: Tensor,
    x: Tensor,
    parameters: Tensors,
    inputs: Tensors,
    feature_chunk: int | None,
) -> Tensor:
    """[(phi(Q) phi(K)^T) o M] x, with M known only by its product.

    The mask's tensors pass through `sum_over_features` as arguments. If `product` captured them,
    rematerialisation on TensorFlow would drop their gradients.

    Args:
        product: (signal, parameters, inputs) -> M signal.
        query_features: phi(Q), of shape (B, T, N, m).
        key_features: phi(K), of shape (B, T, N, m).
        x: Tensor of shape (B, T, N, D).
        parameters: The mask's weights as tensors, by name.
        inputs: The mask's inputs at this call, by name.
        feature_chunk: Number of features at a time; all by default.

    Returns:
        A tensor of shape (B, T, N, D).

    Source: Choromanski et al., arXiv 2107.07999, Algorithm 1.
    """
    count = len(parameters)

    def apply(signal: Tensor, *tensors: Tensor) -> Tensor:
        return product(
            signal,
            dict(zip(parameters, tensors[:count], strict=True)),
            dict(zip(inputs, tensors[count:], strict=True)),
        )

    tensors = (*parameters.values(), *inputs.values())
    return sum_over_features(apply, query_features, key_features, x, tensors, feature_chunk)
