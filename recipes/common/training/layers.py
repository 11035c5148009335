"""The attention layers that the recipes compare, each called in the same way; token similarity.

The layers are core Keras layers and layers of `keras_graphattn` only, so that a saved model loads
with nothing but `import keras_graphattn`, under Keras' safe mode. A model with `linformer`
or `nystromformer`, whose layers are of the recipes, loads after an import of this module.
"""

import pkgutil
import re
import zlib
from collections.abc import Callable
from typing import Any

import keras
from keras import backend, layers, ops

import keras_graphattn
from keras_graphattn.analysis import inspect_smoothing
from keras_graphattn.biases import LogMask
from keras_graphattn.layers import GraphFilterAttention, MaskedKernelAttention
from keras_graphattn.masks import GatedDecay
from recipes.common.attentions import ATTENTIONS, Trial, layer_arguments
from recipes.common.command.parsing import UsageError
from recipes.common.training.low_rank_attention import LinformerAttention, NystromformerAttention

Tensor = Any
NO_FLOAT16 = (
    "JAX computes Keras' softmax attention in float16 only on accelerators: give "
    "--precision mixed_bfloat16, another --attention or another --backend"
)


def attend(trial: Trial, tokens: Tensor, mask: Tensor, name: str, **sizes: int) -> Tensor:
    """Self-attention of a trial on tokens (B, T, d); `False` in the mask (B, T) is padding.

    Heads and their width are those of the options, and the width of the output is d; `sizes` are
    other numbers for `num_heads`, `key_dim` and `output_shape`.

    Raises `UsageError` if the backend cannot compute it in the chosen precision.
    """
    arguments = {"num_heads": trial.options.heads, "key_dim": trial.options.key_dim, "name": name}
    arguments |= {**sizes, **layer_arguments(trial.settings)}
    make = pkgutil.resolve_name(ATTENTIONS[trial.attention].layer)
    if not isinstance(make, type):
        return make(tokens, mask, arguments)
    return make(**arguments)(tokens, tokens, query_mask=mask, value_mask=mask)


def named_seed(seed: int, name: str) -> int:
    """A seed for the layer of a name: the same in each process, different for each layer.

    Without a seed, torch would use a random generator outside of the model for dropout, and
    resumed training would differ.
    """
    return zlib.crc32(f"{seed} {name}".encode()) & 0x7FFFFFFF


def dropout(rate: float, seed: int, name: str) -> layers.Layer:
    """A dropout layer with a seed of its own."""
    return layers.Dropout(rate, seed=named_seed(seed, name), name=name)


def block(
    trial: Trial,
    tokens: Tensor,
    attend: Callable[[Tensor, str], Tensor],
    name: str,
    *,
    hidden_dropout: bool,
) -> Tensor:
    """Attention, then a feed-forward network, each on normalised tokens (B, T, d) and added.

    `attend` applies the attention of a name to normalised tokens.
    """

    def drop(x: Tensor, part: str) -> Tensor:
        return dropout(trial.options.dropout, trial.seed, f"{name}_{part}_dropout")(x)

    normed = layers.LayerNormalization(name=f"{name}_attention_norm")(tokens)
    outputs = drop(attend(normed, f"{name}_attention"), "attention")
    tokens = layers.Add(name=f"{name}_attended")([tokens, outputs])
    normed = layers.LayerNormalization(name=f"{name}_norm")(tokens)
    width = trial.options.feed_forward
    hidden = layers.Dense(width, activation="gelu", name=f"{name}_hidden")(normed)
    if hidden_dropout:
        hidden = drop(hidden, "hidden")
    outputs = layers.Dense(tokens.shape[-1], name=f"{name}_output")(hidden)
    return layers.Add(name=name)([tokens, drop(outputs, "output")])


class FirstToken(layers.Layer):
    """Puts one learned vector before the tokens: (B, T, d) -> (B, 1 + T, d)."""

    start: type[keras.initializers.Initializer]

    def build(self, tokens_shape: Any) -> None:
        shape, start = (tokens_shape[-1],), self.start(stddev=0.02)
        self.vector = self.add_weight(shape=shape, initializer=start, name="vector")
        self.built = True

    def call(self, tokens: Tensor) -> Tensor:
        first = ops.zeros_like(tokens[:, :1]) + ops.cast(self.vector, tokens.dtype)
        return ops.concatenate([first, tokens], axis=1)

    def compute_output_shape(self, tokens_shape: Any) -> Any:
        batch, count, width = tokens_shape
        return (batch, None if count is None else 1 + count, width)


def probabilities(features: Tensor, classes: int) -> Tensor:
    """The last layer of a classifier, float32 in any precision."""
    name = "probabilities"
    return layers.Dense(classes, activation="softmax", dtype="float32", name=name)(features)


def masked_mean(tokens: Tensor, mask: Tensor) -> Tensor:
    """Mean over the tokens that are not padding, in float32; 0 without such tokens."""
    mask = ops.expand_dims(mask, -1)
    total = ops.sum(ops.where(mask, ops.cast(tokens, "float32"), 0.0), axis=1)
    return total / ops.maximum(ops.sum(ops.cast(mask, "float32"), axis=1), 1.0)


def softmax(tokens: Tensor, mask: Tensor, arguments: dict[str, Any]) -> Tensor:
    """Keras' own attention."""
    layer = plain_attention(**arguments)
    return layer(tokens, tokens, attention_mask=ops.expand_dims(mask, 1))


def gated_decay(**arguments: Any) -> layers.Layer:
    """Kernel attention in linear time whose past decays as the tokens decide."""
    return MaskedKernelAttention(mask=GatedDecay(), **arguments)


def forgetting(**arguments: Any) -> layers.Layer:
    """Softmax attention whose past decays as the tokens decide.

    Source: Lin et al., arXiv 2503.02130.
    """
    return GraphFilterAttention(filter=None, bias=LogMask(GatedDecay()), **arguments)


def plain_attention(**arguments: Any) -> layers.MultiHeadAttention:
    """Keras' own attention layer, where the backend can compute it in the chosen precision."""
    layer = layers.MultiHeadAttention(**arguments)
    if is_float16_of_jax_on_cpu(layer.compute_dtype):
        raise UsageError(NO_FLOAT16)
    return layer


def is_float16_of_jax_on_cpu(dtype: str) -> bool:
    """Whether JAX may raise "The precision 'F16_F16_F32' is not supported"."""
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


def linformer(tokens: Tensor, mask: Tensor, arguments: dict[str, Any]) -> Tensor:
    """Softmax attention to learned sums of the tokens."""
    return LinformerAttention(**arguments)(tokens, mask)


def nystromformer(tokens: Tensor, mask: Tensor, arguments: dict[str, Any]) -> Tensor:
    """The Nyström approximation of softmax attention."""
    return NystromformerAttention(**arguments)(tokens, mask)


def where_of(text: str) -> str | list[int]:
    """The `where` of `keras_graphattn.convert` that `--where` names: a word, or numbers."""
    is_numbers = re.fullmatch(r"\d+(,\d+)*", text)
    return [int(index) for index in text.split(",")] if is_numbers else text


def converted(model: Any, trial: Trial, *, causal: bool = False) -> Any:
    """A model with layers of KerasHub, whose attention becomes that of the trial, in place.

    A decoder is `causal`.

    Raises `UsageError` for options that `keras_graphattn.convert` refuses.
    """
    if trial.attention == "softmax":
        return model
    verb, where = ATTENTIONS[trial.attention].convert, where_of(trial.options.where)
    try:
        arguments = layer_arguments(trial.settings, causal=causal)
        return keras_graphattn.convert(model, verb, where=where, **arguments)
    except ValueError as error:
        raise UsageError(f"--attention {trial.attention}: {error}") from error


def served_inputs(task: Any, length: int) -> dict[str, Any]:
    """Inputs of open length, which is `length` where jax writes the SavedModel.

    On JAX, KerasHub's position embeddings cannot be exported with an open length.
    """
    size = length if backend.backend() == "jax" else None
    return {
        name: layers.Input((size,), dtype=tensor.dtype, name=name)
        for name, tensor in task.input.items()
    }


def similarity_by_depth(model: keras.Model, inputs: dict[str, Any]) -> list[float]:
    """Mean token similarity, before the first block and after each, without padding.

    The blocks are those that `inspect_smoothing` finds. The list is empty where it finds no tokens
    between them, as in windows.
    """
    measured = inspect_smoothing(model, inputs, max_sequences=1).layers
    places = [measured[0].before, *(layer.block for layer in measured)]
    return [] if None in places else [place.cosine for place in places]
