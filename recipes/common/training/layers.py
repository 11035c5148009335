"""The attention layers that the recipes compare, each called in the same way; served inputs.

Made of core Keras layers and layers of `keras_graphattn` only, so that a saved model loads with
nothing but `import keras_graphattn`, under Keras' safe mode.
"""

import pkgutil
import zlib
from collections.abc import Mapping
from typing import Any

from keras import backend, layers, ops

from recipes.common.attentions import ATTENTIONS, layer_arguments
from recipes.common.command.parsing import UsageError

Tensor = Any
NO_FLOAT16 = (
    "JAX computes Keras' softmax attention in float16 only on accelerators: give "
    "--precision mixed_bfloat16, another --attention or another --backend"
)


def attend(
    attention: str,
    tokens: Tensor,
    mask: Tensor,
    *,
    name: str,
    num_heads: int,
    key_dim: int,
    settings: Mapping[str, Any],
    output_shape: int | None = None,
) -> Tensor:
    """Self-attention of one kind, within a Functional model.

    Args:
        attention: A name out of `ATTENTIONS`.
        tokens: Tensor of shape (B, T, d).
        mask: Boolean tensor of shape (B, T); `False` marks padding, which no token sees.
        name: Name of the layer.
        num_heads: Number of heads.
        key_dim: Width of each head.
        settings: The attention's settings, as `settings_of` gives them.
        output_shape: Width of the output, d by default.

    Returns:
        Tensor of shape (B, T, d), or with `output_shape` in place of d.

    Raises:
        UsageError: If the backend cannot compute it in the precision asked for.
    """
    arguments = {"num_heads": num_heads, "key_dim": key_dim, "name": name}
    if output_shape is not None:
        arguments["output_shape"] = output_shape
    arguments.update(layer_arguments(settings))
    make = pkgutil.resolve_name(ATTENTIONS[attention].layer)
    if not isinstance(make, type):
        return make(tokens, mask, arguments)
    return make(**arguments)(tokens, tokens, query_mask=mask, value_mask=mask)


def named_seed(seed: int, name: str) -> int:
    """A seed for the layer of a name: the same in each process, and another one for each layer.

    Without a seed, torch would drop by a random generator that is no part of the model, and
    resumed training would differ.
    """
    return zlib.crc32(f"{seed} {name}".encode()) & 0x7FFFFFFF


def dropout(rate: float, seed: int, name: str) -> layers.Layer:
    """A dropout layer with a seed of its own."""
    return layers.Dropout(rate, seed=named_seed(seed, name), name=name)


def masked_mean(tokens: Tensor, mask: Tensor) -> Tensor:
    """Mean over the tokens that are not padding, in float32; 0 without such tokens."""
    mask = ops.expand_dims(mask, -1)
    total = ops.sum(ops.where(mask, ops.cast(tokens, "float32"), 0.0), axis=1)
    return total / ops.maximum(ops.sum(ops.cast(mask, "float32"), axis=1), 1.0)


def softmax(tokens: Tensor, mask: Tensor, arguments: dict[str, Any]) -> Tensor:
    """Keras' own attention."""
    layer = plain_attention(**arguments)
    return layer(tokens, tokens, attention_mask=ops.expand_dims(mask, 1))


def plain_attention(**arguments: Any) -> layers.MultiHeadAttention:
    """Keras' own attention layer.

    Raises:
        UsageError: If the backend cannot compute it in the precision asked for.
    """
    layer = layers.MultiHeadAttention(**arguments)
    if is_float16_of_jax_on_cpu(layer.compute_dtype):
        raise UsageError(NO_FLOAT16)
    return layer


def is_float16_of_jax_on_cpu(dtype: str) -> bool:
    """Whether JAX may say "The precision 'F16_F16_F32' is not supported"."""
    if backend.backend() != "jax" or dtype != "float16":
        return False
    import jax

    return jax.default_backend() == "cpu"


def linear(tokens: Tensor, mask: Tensor, arguments: dict[str, Any]) -> Tensor:
    """phi(Q) (phi(K)^T V), row by row over phi(Q) (phi(K)^T 1), with phi = elu + 1.

    Time O(n d^2); the sums over tokens are float32. Source: Katharopoulos et al., "Transformers
    are RNNs", arXiv 2006.16236 (ICML 2020), Eq. 5-7.
    """
    name, heads, size = (arguments[key] for key in ("name", "num_heads", "key_dim"))

    def project(part: str) -> Tensor:
        shape = (None, heads, size)
        dense = layers.EinsumDense("btd,dnh->btnh", shape, bias_axes="nh", name=f"{name}_{part}")
        return ops.cast(dense(tokens), "float32")

    query, key = (ops.elu(project(part)) + 1.0 for part in ("query", "key"))
    key = ops.where(mask[:, :, None, None], key, 0.0)
    context = ops.einsum("bsnh,bsne->bnhe", key, project("value"))
    weights = ops.einsum("btnh,bnh->btn", query, ops.sum(key, axis=1))
    outputs = ops.einsum("btnh,bnhe->btne", query, context) / ops.maximum(weights, 1e-9)[..., None]
    return layers.EinsumDense("btnh,nhd->btd", (None, tokens.shape[-1]), bias_axes="d", name=name)(
        outputs
    )


def served_inputs(task: Any, length: int) -> dict[str, Any]:
    """Inputs of open length, which is `length` where jax writes the SavedModel.

    KerasHub's position embeddings cannot leave JAX at an open length.
    """
    size = length if backend.backend() == "jax" else None
    return {
        name: layers.Input((size,), dtype=tensor.dtype, name=name)
        for name, tensor in task.input.items()
    }
