"""The features phi(Q) and phi(K) of a layer, and the weights of its feature map."""

from typing import Any

from keras import ops

from keras_graphattn.numerics.precision import zero_where_masked

Tensor = Any


def add_feature_weights(layer: Any) -> None:
    """Makes the weights of a layer's feature map. They are not trained; each is an attribute.

    Args:
        layer: A layer with `feature_map`, `num_heads`, `key_dim` and `seed`.
    """
    feature_map = layer.feature_map
    # a seed of the map's own goes before the layer's
    seed = layer.seed if getattr(feature_map, "seed", None) is None else None
    drawn = feature_map.weights(layer.num_heads, layer.key_dim, seed)  # {} for most maps
    layer._feature_weight_names = tuple(drawn)
    for name, value in drawn.items():
        weight = layer.add_weight(
            name=name,
            shape=value.shape,
            initializer=lambda shape, dtype, value=value: ops.convert_to_tensor(value, dtype=dtype),
            trainable=False,
            autocast=False,
        )
        setattr(layer, name, weight)


def feature_weights(layer: Any) -> dict[str, Any]:
    """The weights that `add_feature_weights` made, by name."""
    return {name: getattr(layer, name) for name in layer._feature_weight_names}


def query_features(layer: Any, query: Tensor, mask: Tensor | None, fixed_scale: bool) -> Tensor:
    """phi(Q), (B, T, N, m) in at least float32; zeros for padded queries."""
    features = layer.feature_map.query_features(query, feature_weights(layer), fixed_scale)
    return _without_padding(features, mask)


def key_features(layer: Any, key: Tensor, mask: Tensor | None, fixed_scale: bool) -> Tensor:
    """phi(K), (B, S, N, m) in at least float32; zeros for padded keys."""
    features = layer.feature_map.key_features(key, feature_weights(layer), mask, fixed_scale)
    return _without_padding(features, mask)


def _without_padding(features: Tensor, mask: Tensor | None) -> Tensor:
    return features if mask is None else zero_where_masked(features, mask[:, :, None, None])
