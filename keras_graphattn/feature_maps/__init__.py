"""Feature maps phi of kernel attention: phi(q) . phi(k) replaces exp(q . k).

`MaskedKernelAttention` takes a map by name, `feature_map="relu"`, as an object,
`feature_map=Favor(num_features=64, seed=0)`, or as your own registered function.

A new feature map is one file in this folder and one line in `FEATURE_MAPS`.
"""

from typing import Any

from keras_graphattn.feature_maps.elementwise import Elu, Relu, SquaredRelu
from keras_graphattn.feature_maps.favor import Favor
from keras_graphattn.feature_maps.feature_map import FeatureMap, FunctionMap
from keras_graphattn.serialization import resolve

FEATURE_MAPS: dict[str, type[FeatureMap]] = {
    "relu": Relu,
    "squared_relu": SquaredRelu,
    "elu": Elu,
    "favor": Favor,
}


def get(feature_map: Any) -> FeatureMap:
    """The feature map for a layer's argument `feature_map`.

    Args:
        feature_map: A name from `FEATURE_MAPS`, a `FeatureMap`, the configuration of one, or a
            registered function from (B, T, N, H) to non-negative features (B, T, N, m).

    Raises:
        ValueError: For other values.

    Example:

    >>> get("favor").num_features(num_heads=2, key_dim=8)
    16
    """
    if callable(feature_map) and not isinstance(feature_map, (FeatureMap, type)):
        return FunctionMap(feature_map)
    return resolve("feature_map", feature_map, FeatureMap, FEATURE_MAPS)


__all__ = [
    "FEATURE_MAPS",
    "Elu",
    "Favor",
    "FeatureMap",
    "FunctionMap",
    "Relu",
    "SquaredRelu",
    "get",
]
