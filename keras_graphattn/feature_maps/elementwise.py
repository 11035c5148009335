"""Feature maps that work on each entry by itself."""

import keras
from keras import ops

from keras_graphattn.feature_maps.feature_map import FeatureMap
from keras_graphattn.numerics.precision import at_least_float32
from keras_graphattn.types import Float, Tensor

OFFSET = 1e-3  # keeps features positive where a ReLU is 0


@keras.saving.register_keras_serializable(package="keras_graphattn")
class Relu(FeatureMap):
    """relu(x) + 0.001.

    Example:

    >>> features = keras.ops.convert_to_numpy(Relu()(np.array([-1.0, 1.0], "float32")))
    >>> features.astype(float).round(3).tolist()
    [0.001, 1.001]
    """

    def __call__(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return ops.relu(at_least_float32(x)) + OFFSET


@keras.saving.register_keras_serializable(package="keras_graphattn")
class SquaredRelu(FeatureMap):
    """relu(x)^2 + 0.001.

    Example:

    >>> features = keras.ops.convert_to_numpy(SquaredRelu()(np.array([-1.0, 2.0], "float32")))
    >>> features.astype(float).round(3).tolist()
    [0.001, 4.001]
    """

    def __call__(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return ops.square(ops.relu(at_least_float32(x))) + OFFSET


@keras.saving.register_keras_serializable(package="keras_graphattn")
class Elu(FeatureMap):
    """elu(x) + 1.

    Example:

    >>> keras.ops.convert_to_numpy(Elu()(np.array([0.0, 1.0], "float32"))).tolist()
    [1.0, 2.0]

    Source: Katharopoulos et al., "Transformers are RNNs", arXiv 2006.16236, Eq. 7.
    """

    def __call__(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return ops.elu(at_least_float32(x)) + 1.0
