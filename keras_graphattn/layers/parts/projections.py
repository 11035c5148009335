"""The projections of multi-head attention: found, shared between layers, and built in groups."""

from typing import Any

import keras


def projections_of(attention: Any) -> dict[str, Any]:
    """The projections of a built multi-head attention layer, by the names of its weights."""
    found = {
        "query": attention.query_dense,
        "key": attention.key_dense,
        "value": attention.value_dense,
        "attention_output": attention.output_dense,
    }
    if attention._use_gate:
        found["gate"] = attention._gate_dense
    return found


def input_shapes(projections: dict[str, Any]) -> list[tuple[None, None, int]]:
    """The shapes of query, value and key for which the projections were built.

    They do not come from kernels: a projection quantised with GPTQ or AWQ may have none.
    """
    built = [projections[name].get_build_config() for name in ("query", "value", "key")]
    return [(None, None, config["input_shape"][-1]) for config in built]


class Adopted:
    """Holds built projections for another layer. Keras does not track attributes of this class."""

    def __init__(self, projections: dict[str, Any]) -> None:
        self.projections = projections


def build_around(layer: Any, source: Any) -> None:
    """Builds a layer of this package with the projections of a built layer.

    No weight is created or copied. Both layers hold the same sublayers, with the same variables,
    paths, quantisation and LoRA factors.

    Args:
        layer: A `MultiHeadLayer` that is not built yet, of the same sizes as `source`.
        source: A built `keras.layers.MultiHeadAttention`, or a subclass of it.
    """
    projections = projections_of(source)
    # set for the time of `build` only, which then takes the projections instead of making them
    layer._adopted = Adopted(projections)
    try:
        layer.build(*input_shapes(projections))
    finally:
        layer._adopted = None


def adopt(layer: Any, projections: dict[str, Any], rank: int) -> None:
    """Gives the layer built projections, for inputs of `rank` dimensions."""
    layer._query_dense, layer._key_dense = projections["query"], projections["key"]
    if layer._use_gate:
        layer._gate_dense = projections["gate"]
    layer._value_dense = projections["value"]
    layer._output_dense = projections["attention_output"]
    layer._build_attention(rank + 1)


def token_projection(
    layer: Any, name: str, size: int, num_heads: int | None = None, activation: str | None = None
) -> Any:
    """Makes a projection (B, T, d) -> (B, T, num_heads, size), with the options of Keras' own."""
    return keras.layers.EinsumDense(
        "abc,cde->abde",
        output_shape=[None, layer.num_heads if num_heads is None else num_heads, size],
        bias_axes="de" if layer.use_bias else None,
        activation=activation,
        name=name,
        **layer._get_common_kwargs_for_sublayer(),
    )


def build_grouped(
    layer: Any, query_shape: Any, value_shape: Any, key_shape: Any, num_key_value_heads: int
) -> None:
    """Builds projections as Keras does, but with fewer heads for keys and values."""
    layer.compute_output_shape(query_shape, value_shape, key_shape)  # Keras checks the shapes
    layer._query_dense = token_projection(layer, "query", layer.key_dim)
    layer._query_dense.build(query_shape)
    layer._key_dense = token_projection(layer, "key", layer.key_dim, num_key_value_heads)
    layer._key_dense.build(value_shape if key_shape is None else key_shape)
    if layer._use_gate:
        layer._gate_dense = token_projection(layer, "gate", layer.value_dim, None, "sigmoid")
        layer._gate_dense.build(query_shape)
    layer._value_dense = token_projection(layer, "value", layer.value_dim, num_key_value_heads)
    layer._value_dense.build(value_shape)
    layer._build_attention(len(query_shape) + 1)
    layer._output_dense = layer._make_output_dense(
        query_shape, layer._get_common_kwargs_for_sublayer(), "attention_output"
    )
    layer._output_dense.build((None, None, layer.num_heads, layer.value_dim))  # (B, T, N, D)
