"""The Transformer decoder of the recogniser, and without an encoder the language model.

It has two forms with the same weights: `call` for whole sequences, in training, and `decode` for
the next tokens of many hypotheses, whose past is in a cache.
"""

import math
from collections.abc import Callable
from typing import Any

import keras
from keras import layers, ops

from keras_graphattn.layers import GraphFilterAttention
from keras_graphattn.numerics.precision import positions_of
from keras_graphattn.types import Bool, Float, Int, Num, Tensor
from recipes.common.training.layers import named_seed

Cache = dict[str, Any]


@keras.saving.register_keras_serializable(package="keras_graphattn_recipes")
class TransformerDecoder(layers.Layer):
    """Pre-norm Transformer decoder: the logits of the token after each token.

    Tokens get an embedding, times sqrt(d_model), and sines and cosines of their position. Each
    block has causal self-attention, attention to the encoded frames, and a feed-forward network
    with GELU. A layer that is built without `encoded` has no attention to it: a language model.

    Args:
        num_layers: Number of blocks.
        num_heads: Number of heads of each attention; it divides `d_model`.
        d_model: Width d of the tokens.
        feed_forward: Width between the two dense layers of a block.
        vocabulary: Number V of tokens.
        dropout: Share of the numbers that are dropped in training.
        seed: Seed of dropout.
        **kwargs: Those of a Keras layer.

    Call arguments:
        tokens: Integers of shape (B, S). What comes after a token does not change its logits, so
            padding on the right needs no mask.
        encoded: Encoded frames of shape (B, T, d'), or `None`.
        encoded_mask: Booleans of shape (B, T), `False` for padding, by its name only. By default
            the Keras mask of `encoded`.
        training: Whether to apply dropout.

    Returns:
        Logits of shape (B, S, V), float32 in any precision.

    Example:

    >>> from recipes.speech_recognition.decoder import TransformerDecoder
    >>> decoder = TransformerDecoder(2, 2, 16, 32, vocabulary=10)
    >>> encoded = keras.random.normal((1, 20, 16))
    >>> tuple(decoder(np.array([[1, 5, 6]]), encoded).shape)
    (1, 3, 10)
    >>> cache = decoder.initial_cache(4, 8, encoded)  # 4 hypotheses of one utterance
    >>> logits, cache = decoder.decode(np.array([[1]] * 4), cache, 0)
    >>> tuple(logits.shape)
    (4, 1, 10)

    Source: Vaswani et al., "Attention is all you need", arXiv 1706.03762; with the normalisation
    before each part, as in Xiong et al., arXiv 2002.04745.
    """

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        d_model: int,
        feed_forward: int,
        vocabulary: int,
        dropout: float = 0.0,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if d_model % num_heads:
            raise ValueError(
                "`num_heads` must divide `d_model`. Received: "
                f"num_heads={num_heads}, d_model={d_model}"
            )
        self.supports_masking = True
        self.num_layers, self.num_heads, self.d_model = num_layers, num_heads, d_model
        self.feed_forward, self.vocabulary = feed_forward, vocabulary
        self.dropout, self.seed = dropout, seed
        policy = {"dtype": self.dtype_policy}
        self.embedding = layers.Embedding(
            *(vocabulary, d_model),
            embeddings_initializer=keras.initializers.RandomNormal(stddev=d_model**-0.5),
            name="embedding",
            **policy,
        )
        self.drop = _dropout(dropout, seed, "embedded", policy)
        self.blocks = [
            DecoderBlock(
                num_heads, d_model, feed_forward, dropout, seed, name=f"block_{index + 1}", **policy
            )
            for index in range(num_layers)
        ]
        self.norm = layers.LayerNormalization(epsilon=1e-5, name="last_norm", **policy)
        self.logits = layers.Dense(vocabulary, dtype="float32", name="logits")

    def build(
        self, tokens_shape: Any, encoded_shape: Any = None, encoded_mask_shape: Any = None
    ) -> None:
        shape = (*tokens_shape, self.d_model)
        self.embedding.build(tokens_shape)
        for block in self.blocks:
            block.build(shape, encoded_shape)
        self.norm.build(shape)
        self.logits.build(shape)
        self.built = True

    def call(
        self,
        tokens: Int[Tensor, "B S"],
        encoded: Float[Tensor, "B T _"] | None = None,
        *,
        encoded_mask: Bool[Tensor, "B T"] | None = None,
        training: bool | None = None,
    ) -> Float[Tensor, "B S V"]:
        x = self.drop(self._embedded(tokens, 0), training=training)
        for block in self.blocks:
            x = block(x, encoded, encoded_mask=encoded_mask, training=training)
        return self.logits(self.norm(x))

    def compute_output_spec(
        self, tokens: keras.KerasTensor, *args: Any, **kwargs: Any
    ) -> keras.KerasTensor:
        return keras.KerasTensor((*tokens.shape, self.vocabulary), "float32")

    def _embedded(
        self, tokens: Int[Tensor, "B S"], index: int | Int[Tensor, ""]
    ) -> Float[Tensor, "B S d"]:
        """Embeddings of tokens from position `index` on, with their positions."""
        x = self.embedding(tokens) * math.sqrt(self.d_model)
        positions = index + positions_of(ops.shape(tokens)[1])
        return x + ops.cast(sinusoids(positions, self.d_model), x.dtype)

    def initial_cache(
        self,
        hypotheses: int,
        max_length: int,
        encoded: Float[Tensor, "B T _"] | None = None,
        encoded_mask: Bool[Tensor, "B T"] | None = None,
    ) -> Cache:
        """A cache without tokens. It has the projections of the encoded frames.

        Args:
            hypotheses: Number of all hypotheses, a multiple of B: the first ones are of the first
                utterance. Those of one utterance share its frames.
            max_length: Number of tokens that the cache holds.
            encoded: As for the call. A layer that is not built yet is built for it.
            encoded_mask: As for the call.
        """
        if not self.built:
            self.build((hypotheses, 1), None if encoded is None else encoded.shape)
        return {
            "blocks": [
                block.initial_cache(hypotheses, max_length, encoded) for block in self.blocks
            ],
            "encoded_mask": encoded_mask,
        }

    def decode(
        self, tokens: Int[Tensor, "H t"], cache: Cache, index: int | Int[Tensor, ""]
    ) -> tuple[Float[Tensor, "H t V"], Cache]:
        """Logits of the next tokens of each hypothesis, equal to those of the call.

        Args:
            tokens: Integers of shape (H, t): mostly one token for each hypothesis.
            cache: The cache of `initial_cache`, of the previous step, or of `reordered`.
            index: Position of the first of these tokens.

        Returns:
            Logits of shape (H, t, V), and the new cache.

        Raises:
            ValueError: If the tokens do not fit in the cache.
        """
        x, blocks = self._embedded(tokens, index), []
        for block, past in zip(self.blocks, cache["blocks"], strict=True):
            x, past = block.decode(x, past, index, cache["encoded_mask"])
            blocks.append(past)
        return self.logits(self.norm(x)), {**cache, "blocks": blocks}

    def reordered(self, cache: Cache, parents: Int[Tensor, " H"]) -> Cache:
        """The cache in which hypothesis i has the tokens that `parents[i]` had before.

        Both belong to the same utterance.
        """
        return _with_tokens(
            cache, lambda past: {name: ops.take(x, parents, axis=0) for name, x in past.items()}
        )

    def longer(self, cache: Cache, more: int) -> Cache:
        """The cache with room for `more` tokens than before."""
        first = cache["blocks"][0]["tokens"]["key"]
        empty = self.blocks[0].attention.get_initial_cache(first.shape[0], more)
        axes = {name: 2 if name == "signals" else 1 for name in empty}  # of the tokens
        return _with_tokens(
            cache,
            lambda past: {
                name: ops.concatenate([x, empty[name]], axes[name]) for name, x in past.items()
            },
        )

    def get_config(self) -> dict[str, Any]:
        names = ("num_layers", "num_heads", "d_model", "feed_forward", "vocabulary", "dropout")
        return {**super().get_config(), **{name: getattr(self, name) for name in (*names, "seed")}}


@keras.saving.register_keras_serializable(package="keras_graphattn_recipes")
class DecoderBlock(layers.Layer):
    """One block of `TransformerDecoder`, with its arguments."""

    def __init__(
        self,
        num_heads: int,
        d_model: int,
        feed_forward: int,
        dropout: float,
        seed: int,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        self.num_heads, self.d_model, self.feed_forward = num_heads, d_model, feed_forward
        self.dropout, self.seed = dropout, seed
        policy = {"dtype": self.dtype_policy}
        sizes = {"num_heads": num_heads, "key_dim": d_model // num_heads, "dropout": dropout}

        def named(name: str, **more: Any) -> dict[str, Any]:
            return {
                **sizes,
                **policy,
                "seed": named_seed(seed, f"{self.name}_{name}"),
                "name": name,
            }

        self.attention = GraphFilterAttention(filter=None, **named("attention"))
        self.cross_attention = CrossAttention(**named("cross_attention"))
        self.hidden = layers.Dense(feed_forward, activation="gelu", name="hidden", **policy)
        self.output_dense = layers.Dense(d_model, name="output", **policy)
        parts = ("attention", "cross_attention", "hidden", "output")
        self.drops = {
            part: _dropout(dropout, seed, f"{self.name}_{part}", policy) for part in parts
        }
        self.norms = {
            part: layers.LayerNormalization(epsilon=1e-5, name=f"{part}_norm", **policy)
            for part in ("attention", "cross_attention", "hidden")
        }

    def build(self, tokens_shape: Any, encoded_shape: Any = None) -> None:
        self.has_encoder = encoded_shape is not None
        self.attention.build(tokens_shape, tokens_shape)
        if self.has_encoder:
            self.cross_attention.build(tokens_shape, encoded_shape)
            self.norms["cross_attention"].build(tokens_shape)
        self.hidden.build(tokens_shape)
        self.output_dense.build((*tokens_shape[:-1], self.feed_forward))
        self.norms["attention"].build(tokens_shape)
        self.norms["hidden"].build(tokens_shape)
        self.built = True

    def call(
        self,
        tokens: Float[Tensor, "B S d"],
        encoded: Float[Tensor, "B T _"] | None = None,
        *,
        encoded_mask: Bool[Tensor, "B T"] | None = None,
        training: bool | None = None,
    ) -> Float[Tensor, "B S d"]:
        def added(part: str, outputs: Float[Tensor, "B S d"]) -> Float[Tensor, "B S d"]:
            return tokens + self.drops[part](outputs, training=training)

        normed = self.norms["attention"](tokens)
        outputs = self.attention(normed, normed, use_causal_mask=True, training=training)
        tokens = added("attention", outputs)
        self._check_encoded(encoded)
        if encoded is not None:
            mask = None if encoded_mask is None else ops.expand_dims(encoded_mask, 1)
            normed = self.norms["cross_attention"](tokens)
            outputs = self.cross_attention(normed, encoded, attention_mask=mask, training=training)
            tokens = added("cross_attention", outputs)
        hidden = self.hidden(self.norms["hidden"](tokens))
        hidden = self.drops["hidden"](hidden, training=training)
        return added("output", self.output_dense(hidden))

    def initial_cache(
        self, hypotheses: int, max_length: int, encoded: Float[Tensor, "B T _"] | None
    ) -> Cache:
        """What the block has to know of the past, and of the encoded frames."""
        self._check_encoded(encoded)
        tokens = self.attention.get_initial_cache(hypotheses, max_length)
        frames = None if encoded is None else self.cross_attention.projected(encoded)
        return {"tokens": tokens, "frames": frames}

    def decode(
        self,
        tokens: Float[Tensor, "H t d"],
        cache: Cache,
        index: int | Int[Tensor, ""],
        encoded_mask: Bool[Tensor, "B T"] | None,
    ) -> tuple[Float[Tensor, "H t d"], Cache]:
        """The outputs for the next tokens, and the new cache."""
        normed = self.norms["attention"](tokens)
        outputs, past = self.attention.decode(normed, cache["tokens"], index)
        tokens = tokens + outputs
        if cache["frames"] is not None:
            normed = self.norms["cross_attention"](tokens)
            tokens = tokens + self.cross_attention.of_projected(
                normed, *cache["frames"], encoded_mask
            )
        hidden = self.hidden(self.norms["hidden"](tokens))
        return tokens + self.output_dense(hidden), {**cache, "tokens": past}

    def _check_encoded(self, encoded: Float[Tensor, "B T _"] | None) -> None:
        if (encoded is not None) != self.has_encoder:
            built, given = ("with", "without") if self.has_encoder else ("without", "with")
            raise ValueError(
                f"The decoder was built {built} encoded frames. Received: a call {given} them."
            )

    def get_config(self) -> dict[str, Any]:
        names = ("num_heads", "d_model", "feed_forward", "dropout", "seed")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


@keras.saving.register_keras_serializable(package="keras_graphattn_recipes")
class CrossAttention(layers.MultiHeadAttention):
    """Keras' attention, which also takes keys and values that are projected already."""

    def projected(
        self, encoded: Float[Tensor, "B T _"]
    ) -> tuple[Float[Tensor, "B T N H"], Float[Tensor, "B T N H"]]:
        """The keys and values of encoded frames."""
        return self.key_dense(encoded), self.value_dense(encoded)

    def of_projected(
        self,
        tokens: Float[Tensor, "_ t d"],
        keys: Float[Tensor, "B T N H"],
        values: Float[Tensor, "B T N H"],
        mask: Bool[Tensor, "B T"] | None,
    ) -> Float[Tensor, "_ t d"]:
        """The attention of the tokens of all hypotheses to the frames of their utterance.

        The hypotheses of one utterance stand in one row of queries. So the frames are not copied.
        """
        queries = self.query_dense(tokens)  # (hypotheses, t, N, H)
        rows = ops.reshape(queries, (keys.shape[0], -1, *queries.shape[2:]))
        mask = None if mask is None else mask[:, None, None, :]
        outputs = ops.dot_product_attention(rows, keys, values, mask=mask)
        return self.output_dense(ops.reshape(outputs, ops.shape(queries)))


def sinusoids(positions: Num[Tensor, " t"], width: int) -> Float[Tensor, "t d"]:
    """Sines, then cosines of positions, at wavelengths from 2 pi to 20000 pi; float32.

    As in arXiv 1706.03762, the frequencies fall from 1 to 1 / 10000.
    """
    half = -(-width // 2)
    rates = ops.exp(ops.arange(half, dtype="float32") * (-math.log(10000.0) / half))
    angles = ops.cast(positions, "float32")[:, None] * rates
    return ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=-1)[:, :width]


def _with_tokens(cache: Cache, change: Callable[[Cache], Cache]) -> Cache:
    """The cache in which `change` was applied to what each block knows of the tokens."""
    blocks = [{**past, "tokens": change(past["tokens"])} for past in cache["blocks"]]
    return {**cache, "blocks": blocks}


def _dropout(rate: float, seed: int, name: str, policy: dict[str, Any]) -> layers.Layer:
    name = f"{name}_dropout"
    return layers.Dropout(rate, seed=named_seed(seed, name), name=name, **policy)
