"""Decoding token by token with a state of fixed size, for masked kernel attention."""

from typing import Any

from keras import ops

from keras_graphattn.checks.arguments import checked, optional, size, tensor
from keras_graphattn.checks.arguments import mask as mask_of
from keras_graphattn.feature_maps import FeatureMap
from keras_graphattn.layers.kernel_features import key_features, query_features
from keras_graphattn.layers.mask_forms import mask_form
from keras_graphattn.layers.multi_head import without_padding
from keras_graphattn.masks.mask import Mask
from keras_graphattn.ops.kernel.attention import NormalisedOperator
from keras_graphattn.ops.softmax.masks import all_of

Tensor = Any
State = tuple[Any, ...]


class KernelDecoding:
    """The decoding half of `MaskedKernelAttention`, whose projections and features it uses."""

    mask: Mask | None
    built: bool
    compute_dtype: str
    num_heads: int
    value_dim: int
    feature_map: FeatureMap
    key_dim: int
    build: Any
    query_dense: Any
    key_dense: Any
    value_dense: Any
    _outputs: Any
    _project_out: Any
    _check_shapes: Any

    @property
    def _num_applications(self) -> int:
        """How often attention is applied."""
        raise NotImplementedError

    @checked(batch_size=size(0))
    def get_initial_state(self, batch_size: int) -> State:
        """The state of `decode` before the first token, of the same size at any length.

        Args:
            batch_size: Number of sequences.

        Returns:
            A tuple with a `ChunkedState` for each application of attention: one, or as many as
            the filter makes. Its `sums` have shape (batch_size, num_heads, R m, value_dim), with
            one more column in the first for the normaliser; R is the number of the mask's
            exponentials, m that of features.

        Raises:
            ValueError: If the mask, made causal, has no state of fixed size.
        """
        mask: Any = mask_form(self, causal=True)
        dtype = "float64" if self.compute_dtype == "float64" else "float32"
        heads, count = self.num_heads, self.feature_map.num_features(self.num_heads, self.key_dim)
        states = (
            mask.get_initial_state(batch_size, heads, count, self.value_dim + (call == 0))
            for call in range(self._num_applications)
        )
        return tuple(state._replace(sums=ops.cast(state.sums, dtype)) for state in states)

    @checked(tokens=tensor("B t d"), padding_mask=optional(mask_of("B t")))
    def decode(
        self,
        tokens: Tensor,
        state: State,
        padding_mask: Tensor | None = None,
        mask_inputs: dict[str, Tensor] | None = None,
    ) -> tuple[Tensor, State]:
        """Outputs of new tokens, given the sums over all tokens before them.

        Equal to the rows of the new tokens in a full pass with `use_causal_mask=True`; a new token
        costs the same at any length. Dropout belongs to training and is not applied.

        Args:
            tokens: Tensor of shape (B, t, d): a prompt, or the next token, or several.
            state: The state of `get_initial_state`, or of the step before.
            padding_mask: Optional boolean tensor of shape (B, t); `False` marks padding on either
                side, which no later token sees.
            mask_inputs: What the mask needs of the new tokens, such as `segment_ids` (B, t).

        Returns:
            The outputs, of shape (B, t, d), and the new state.

        Raises:
            ValueError: If the mask has no state of fixed size or `tokens` has another rank.

        Example:

        >>> from keras_graphattn.layers import MaskedKernelAttention
        >>> from keras_graphattn.masks import Exponential
        >>> layer = MaskedKernelAttention(2, 8, mask=Exponential(causal=True))
        >>> state = layer.get_initial_state(batch_size=1)
        >>> outputs, state = layer.decode(keras.random.normal((1, 5, 16)), state)
        >>> outputs, state = layer.decode(keras.random.normal((1, 1, 16)), state)
        >>> tuple(outputs.shape)
        (1, 1, 16)
        """
        mask: Any = mask_form(self, causal=True)
        self._check_shapes(tokens.shape, tokens.shape, None)
        if not self.built:
            self.build(tuple(tokens.shape))
        padding_mask = all_of(padding_mask)
        tokens = without_padding(ops.cast(tokens, self.compute_dtype), padding_mask)
        query = query_features(self, self.query_dense(tokens), padding_mask, fixed_scale=True)
        key = key_features(self, self.key_dense(tokens), padding_mask, fixed_scale=True)
        left = list(state)
        following: list[Any] = []

        def attend(x: Tensor) -> Tensor:
            outputs, new = mask.step(left[len(following)], query, key, x, **(mask_inputs or {}))
            following.append(new)
            return outputs

        outputs = self._outputs(NormalisedOperator(attend), self.value_dense(tokens))
        return self._project_out(outputs, tokens), tuple(following)
