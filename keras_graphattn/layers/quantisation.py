"""What a quantised attention layer keeps in its configuration, and the quantisation it refuses."""

import keras

from keras_graphattn.keras_internals import walk

# Their calibration sees no data in Keras 3.15.1: its hooks are on `call`, and quantised layers run
# `quantized_call`. A file of such a model lacks the zero points, and cannot be loaded.
CALIBRATES = tuple(map(int, keras.__version__.split(".")[:2])) > (3, 15)
NOT_CALIBRATED = () if CALIBRATES else ("gptq", "awq")


def policies_of(layer: keras.Layer) -> keras.dtype_policies.DTypePolicyMap | None:
    """The dtype policies of the quantised sublayers, by path; `None` without any.

    Keras' own attention leaves them out of its configuration, and its quantised files cannot be
    loaded.

    Raises:
        ValueError: For quantisers of the caller's own, which a policy cannot name.
    """
    if isinstance(layer.dtype_policy, keras.dtype_policies.DTypePolicyMap):
        policies = layer.dtype_policy
    else:
        policies = keras.dtype_policies.DTypePolicyMap(layer.dtype_policy)
    for child in walk(layer)[1:]:
        if child.quantization_mode is None:
            continue
        given = getattr(child, "quantization_config", None)
        if given is not None and _quantisers(given) != _quantisers(type(given)()):
            raise ValueError(
                f"The configuration of '{layer.name}' cannot hold quantisers of your own. "
                f"Received: quantize(config=...) with {_quantisers(given)} in '{child.path}'. "
                "Save the weights (model.save_weights). To load them, make the model, quantize it "
                "in the same way, and call model.load_weights."
            )
        policies[child.path] = child.dtype_policy
    return policies if len(policies) else None


def _quantisers(config: keras.quantizers.QuantizationConfig) -> list[object]:
    """The classes and settings of the quantisers of weights and of activations."""
    both = (config.weight_quantizer, config.activation_quantizer)
    return [None if one is None else (type(one).__name__, one.get_config()) for one in both]


def refuse_calibrated(layer: keras.Layer, projection: keras.Layer) -> None:
    """Refuses a projection that a method is to calibrate, in a Keras that does not do it."""
    raise ValueError(
        f"{type(layer).__name__} '{layer.name}' does not run with GPTQ or AWQ on Keras "
        f"{keras.__version__}: Keras rounds the weights without looking at the calibration data, "
        "and cannot load the file of such a model (keras#23512, keras#23321). Received: "
        f"quantize({projection.quantization_mode!r}) of '{projection.path}'. Make the model again, "
        'and use quantize("int8"), "int4" or "float8".'
    )
