"""From features to encoded frames: a convolutional front end, then a Transformer or a Branchformer.

Both halve the time twice. A frame is real if its middle lies in the utterance; what a layer sees of
padding is 0, so that padding changes no real frame.

Sources: Vaswani et al., "Attention Is All You Need", arXiv 1706.03762; Peng et al., "Branchformer:
Parallel MLP-Attention Architectures to Capture Local and Global Context for Speech Recognition and
Understanding", arXiv 2207.02971; their front ends and sizes are those of the runs in Choi et al.,
arXiv 2312.04234.
"""

import argparse
import pkgutil
from typing import Any

import keras
from keras import layers, ops

from keras_graphattn.layers import GraphFilterAttention, PLaplacianAttention
from keras_graphattn.layers.base import Call, Tokens
from recipes.common.attentions import ATTENTIONS, Trial, layer_arguments
from recipes.common.training.layers import block as transformer_block
from recipes.common.training.layers import dropout, named_seed
from recipes.speech_recognition.decoder import sinusoids
from recipes.speech_recognition.features import PACKAGE

Tensor = Any


STRIDES = {"transformer": (2, 2, 1), "branchformer": (2, 2)}  # of the convolutions
KERNEL = 31  # of the depthwise convolution of a cgMLP


def encode(trial: Trial, features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The encoded frames (B, T / 4, d) of features (B, T, F), and which of them are real."""
    options = trial.options
    tokens, mask = _front_end(features, mask, options)
    block = _branchformer_block if options.model == "branchformer" else _transformer_block
    if not _is_relative(trial):
        tokens = SinusoidalPositions(name="positions")(tokens)
    tokens = dropout(options.dropout, trial.seed, "embedded")(tokens)
    for number in range(1, options.layers + 1):
        tokens = block(trial, tokens, mask, f"block_{number}")
    return layers.LayerNormalization(name="encoded")(tokens), mask


def _front_end(features: Tensor, mask: Tensor, options: argparse.Namespace) -> tuple[Tensor, ...]:
    """Convolutions over time, or in a Branchformer over time and frequency; then a projection."""
    over_frequency = options.model == "branchformer"
    x = ops.expand_dims(features, -1) if over_frequency else features
    sizes = zip(options.channels, options.kernels, STRIDES[options.model], strict=True)
    for number, (channels, kernel, stride) in enumerate(sizes, 1):
        real = ops.expand_dims(mask, -1)
        x = ops.where(ops.expand_dims(real, -1) if over_frequency else real, x, 0.0)
        # "same" would begin at another frame for an odd number of them
        side = (kernel // 2, kernel // 2)
        padding = (side, side) if over_frequency else side
        pad = layers.ZeroPadding2D if over_frequency else layers.ZeroPadding1D
        make = layers.Conv2D if over_frequency else layers.Conv1D
        x = make(channels, kernel, stride, name=f"convolution_{number}")(pad(padding)(x))
        x = layers.LayerNormalization(name=f"convolution_{number}_norm")(x)
        x = layers.Activation("leaky_relu", name=f"convolution_{number}_activation")(x)
        mask = mask[:, ::stride]
    if over_frequency:
        x = layers.Reshape((-1, x.shape[2] * x.shape[3]), name="channels")(x)
    return layers.Dense(options.d_model, name="projection")(x), mask


def _transformer_block(trial: Trial, tokens: Tensor, mask: Tensor, name: str) -> Tensor:
    def attend(normed: Tensor, part: str) -> Tensor:
        return _attend(trial, normed, mask, part)

    return transformer_block(trial, tokens, attend, name, hidden_dropout=True)


def _branchformer_block(trial: Trial, tokens: Tensor, mask: Tensor, name: str) -> Tensor:
    """x + dropout(W [dropout(attention(norm x)); dropout(cgMLP(norm x))])."""
    options = trial.options

    def drop(x: Tensor, part: str) -> Tensor:
        return dropout(options.dropout, trial.seed, f"{name}_{part}_dropout")(x)

    normed = layers.LayerNormalization(name=f"{name}_attention_norm")(tokens)
    attended = drop(_attend(trial, normed, mask, f"{name}_attention"), "attention")
    normed = layers.LayerNormalization(name=f"{name}_mlp_norm")(tokens)
    gated = drop(_gated(trial, normed, mask, f"{name}_mlp"), "mlp")
    both = layers.Concatenate(name=f"{name}_branches")([attended, gated])
    merged = layers.Dense(options.d_model, name=f"{name}_merged")(both)
    return layers.Add(name=name)([tokens, drop(merged, "merged")])


def _gated(trial: Trial, tokens: Tensor, mask: Tensor, name: str) -> Tensor:
    """A cgMLP: GELU(x W), whose halves a and b become a * DWConv(norm b), and a projection."""
    options = trial.options
    hidden = layers.Dense(options.feed_forward, activation="gelu", name=f"{name}_hidden")(tokens)
    first, second = ops.split(hidden, 2, axis=-1)
    second = layers.LayerNormalization(name=f"{name}_gate_norm")(second)
    second = ops.where(ops.expand_dims(mask, -1), second, 0.0)
    convolution = layers.DepthwiseConv1D(
        *(KERNEL, 1, "same"),
        bias_initializer="ones",  # the gates start around 1
        name=f"{name}_convolution",
    )
    second = convolution(second)
    gated = dropout(options.dropout, trial.seed, f"{name}_gate_dropout")(first * second)
    return layers.Dense(options.d_model, name=f"{name}_output")(gated)


def _is_relative(trial: Trial) -> bool:
    """Whether the attention has relative positions: those of a Branchformer that have scores."""
    return trial.options.model == "branchformer" and trial.attention in RELATIVE


def _attend(trial: Trial, tokens: Tensor, mask: Tensor, name: str) -> Tensor:
    """Self-attention of a trial on tokens (B, T, d); `False` in the mask (B, T) is padding."""
    options = trial.options
    arguments = {
        "num_heads": options.heads,
        "key_dim": options.d_model // options.heads,
        "dropout": options.dropout,
        "seed": named_seed(trial.seed, name),
        "name": name,
        **layer_arguments(trial.settings),
    }
    if trial.attention == "gfsa":
        arguments["dropout_on"] = "filter"
    if _is_relative(trial):
        layer = RELATIVE[trial.attention](**arguments)
    else:
        layer = pkgutil.resolve_name(ATTENTIONS[trial.attention].layer)
        if not isinstance(layer, type):  # Keras' own attention
            return layer(tokens, mask, arguments)
        layer = layer(**arguments)
    return layer(tokens, tokens, query_mask=mask, value_mask=mask)


@keras.saving.register_keras_serializable(package=PACKAGE)
class SinusoidalPositions(layers.Layer):
    """Adds sines and cosines of the position to tokens (B, T, d), scaled by sqrt(d)."""

    def call(self, tokens: Tensor) -> Tensor:
        width = tokens.shape[-1]
        added = sinusoids(ops.arange(ops.shape(tokens)[1], dtype="int32"), width)
        return tokens * width**0.5 + ops.cast(added, tokens.dtype)[None]

    def compute_output_shape(self, tokens_shape: Any) -> Any:
        return tokens_shape


class RelativePositions:
    """Positions of an attention layer relative to each other, as Transformer-XL has them.

    With query q_i, key k_j, a projection W of sinusoids R, and two learned vectors u and v of each
    head, the scores are

        s_ij = ((q_i + u) k_j + (q_i + v) W R_(i-j)) / sqrt(H)

    The package's bias objects do not see queries. So this is mixed into an attention layer, and
    gives what it adds to Q K^T as the `attention_bias` of the call.

    Source: Dai et al., "Transformer-XL: Attentive Language Models Beyond a Fixed-Length Context",
    arXiv 1901.02860, section 3.3.
    """

    def add_coefficients(self, query_shape: Any) -> None:
        super().add_coefficients(query_shape)  # type: ignore[misc]
        width, heads = query_shape[-1], (self.num_heads, self.key_dim)  # type: ignore[attr-defined]
        add = self.add_weight  # type: ignore[attr-defined]
        self.position_kernel = add(
            shape=(width, *heads), initializer="glorot_uniform", name="position_kernel"
        )
        self.content_vector = add(shape=heads, initializer="zeros", name="content_vector")
        self.position_vector = add(shape=heads, initializer="zeros", name="position_vector")

    def operator(self, tokens: Tokens, call: Call) -> Any:
        bias = self.positions(tokens.query, tokens.key)
        return super().operator(tokens, call._replace(attention_bias=bias))  # type: ignore[misc]

    def positions(self, query: Tensor, key: Tensor) -> Tensor:
        """What is added to the scores, (B, N, T, T) float32."""
        length = ops.shape(query)[1]
        dtype, width = query.dtype, self.position_kernel.shape[0]
        distances = length - 1 - ops.arange(2 * length - 1, dtype="int32")
        projected = ops.einsum(
            "rd,dnh->rnh",
            ops.cast(sinusoids(distances, width), dtype),
            ops.cast(self.position_kernel, dtype),
        )
        moved = query + ops.cast(self.position_vector, dtype)
        scores = _shifted(ops.einsum("btnh,rnh->bntr", moved, projected))
        content = ops.einsum("bsnh,nh->bns", key, ops.cast(self.content_vector, dtype))
        scale = self.score_scale  # type: ignore[attr-defined]
        return scale * ops.cast(scores + content[:, :, None], "float32")


def _shifted(scores: Tensor) -> Tensor:
    """From scores of distances T - 1 ... 1 - T, (B, N, T, 2T - 1), to those of keys: (B, N, T, T).

    Row i moves left by T - 1 - i: through rows that are one longer, and read from the second on.
    """
    batch, heads, length, count = ops.shape(scores)
    padded = ops.pad(scores, ((0, 0), (0, 0), (0, 0), (1, 0)))
    rows = ops.reshape(padded, (batch, heads, count + 1, length))[:, :, 1:]
    return ops.reshape(rows, (batch, heads, length, count))[..., :length]


@keras.saving.register_keras_serializable(package=PACKAGE)
class RelativeGraphFilterAttention(RelativePositions, GraphFilterAttention):
    """`GraphFilterAttention` with relative positions; without a filter, it is Transformer-XL's."""


@keras.saving.register_keras_serializable(package=PACKAGE)
class RelativePLaplacianAttention(RelativePositions, PLaplacianAttention):
    """`PLaplacianAttention` with relative positions."""


def _relative_softmax(**arguments: Any) -> layers.Layer:
    return RelativeGraphFilterAttention(filter=None, **arguments)


RELATIVE = {
    "softmax": _relative_softmax,
    "gfsa": RelativeGraphFilterAttention,
    "p_laplacian": RelativePLaplacianAttention,
}
