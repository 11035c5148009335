"""Feature maps that work on each entry by itself."""

from typing import Any

import keras

from keras_graphattn.feature_maps.feature_map import FeatureMap
from keras_graphattn.ops.kernel.features import elu_features, relu_features, squared_relu_features

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_graphattn")
class Relu(FeatureMap):
    """relu(x) + 0.001.

    Example:

    >>> Relu()(np.array([-1.0, 1.0], "float32")).shape[0]
    2
    """

    def __call__(self, x: Tensor) -> Tensor:
        return relu_features(x)


@keras.saving.register_keras_serializable(package="keras_graphattn")
class SquaredRelu(FeatureMap):
    """relu(x)^2 + 0.001.

    Example:

    >>> SquaredRelu()(np.array([-1.0, 1.0], "float32")).shape[0]
    2
    """

    def __call__(self, x: Tensor) -> Tensor:
        return squared_relu_features(x)


@keras.saving.register_keras_serializable(package="keras_graphattn")
class Elu(FeatureMap):
    """elu(x) + 1.

    Example:

    >>> Elu()(np.array([-1.0, 1.0], "float32")).shape[0]
    2

    Source: Katharopoulos et al., "Transformers are RNNs", arXiv 2006.16236, Eq. 7.
    """

    def __call__(self, x: Tensor) -> Tensor:
        return elu_features(x)
