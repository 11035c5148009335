"""Decoding token by token with a state of fixed size, for the causal attentive graph filter."""

from typing import Any

from keras import ops

from keras_graphattn.checks.arguments import checked, optional, size, tensor
from keras_graphattn.checks.arguments import mask as mask_of
from keras_graphattn.layers.multi_head import without_padding
from keras_graphattn.ops.singular.attention import left_singular_vectors
from keras_graphattn.ops.singular.causal import causal_singular_value_attention
from keras_graphattn.ops.singular.running_sums import RunningSum, empty_running_sum

Tensor = Any


class SingularDecoding:
    """The decoding half of `AttentiveGraphFilter`, whose projections it uses."""

    causal: bool
    built: bool
    compute_dtype: str
    num_heads: int
    key_dim: int
    value_dim: int
    build: Any
    query_dense: Any
    key_dense: Any
    value_dense: Any
    _check_shapes: Any
    _filtered: Any
    _project_out: Any

    @checked(batch_size=size(0))
    def get_initial_state(self, batch_size: int) -> RunningSum:
        """The state of `decode` before the first token, of the same size at any length.

        Args:
            batch_size: Number of sequences.

        Returns:
            A named tuple of float32 tensors: `maximum` and `normaliser` of shape
            (batch_size, num_heads, key_dim), `context` of shape
            (batch_size, num_heads, key_dim, value_dim).

        Raises:
            ValueError: If the layer is not causal.
        """
        self._check_causal("get_initial_state")
        dtype = "float64" if self.compute_dtype == "float64" else "float32"
        return empty_running_sum(batch_size, self.num_heads, self.key_dim, self.value_dim, dtype)

    @checked(tokens=tensor("B t d"), padding_mask=optional(mask_of("B t")))
    def decode(
        self, tokens: Tensor, state: RunningSum, padding_mask: Tensor | None = None
    ) -> tuple[Tensor, RunningSum]:
        """Outputs of new tokens, given the sums over all tokens before them.

        Equal to the rows of the new tokens in a full pass; a new token costs the same at any
        length. Dropout and the orthogonality loss belong to training and are not applied.

        Args:
            tokens: Tensor of shape (B, t, d): a prompt, or the next token, or several.
            state: The state of `get_initial_state`, or of the step before.
            padding_mask: Optional boolean tensor of shape (B, t); `False` marks padding on either
                side, which no later token sees.

        Returns:
            The outputs, of shape (B, t, d), and the new state.

        Raises:
            ValueError: If the layer is not causal or `tokens` has another rank.

        Example:

        >>> from keras_graphattn.layers import AttentiveGraphFilter
        >>> layer = AttentiveGraphFilter(num_heads=2, key_dim=8, causal=True)
        >>> state = layer.get_initial_state(batch_size=1)
        >>> outputs, state = layer.decode(keras.random.normal((1, 5, 16)), state)
        >>> outputs, state = layer.decode(keras.random.normal((1, 1, 16)), state)
        >>> tuple(outputs.shape)
        (1, 1, 16)
        """
        self._check_causal("decode")
        self._check_shapes(tokens.shape, tokens.shape, None)
        if not self.built:
            self.build(tuple(tokens.shape))
        tokens = without_padding(ops.cast(tokens, self.compute_dtype), padding_mask)
        filtered = self._filtered(
            left_singular_vectors(self.query_dense(tokens), padding_mask), tokens
        )
        outputs, state = causal_singular_value_attention(
            filtered, self.key_dense(tokens), self.value_dense(tokens), padding_mask, state
        )
        return self._project_out(outputs, tokens), state

    def _check_causal(self, method: str) -> None:
        if not self.causal:
            raise ValueError(
                f"`{method}` needs the causal form: without it, every token sees the whole "
                "sequence. Received: causal=False. Make the layer with causal=True."
            )
