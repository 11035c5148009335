"""The base of self-attention layers with several paths, grouped heads and decoding.

A path changes memory and speed only, not the numbers: "dense" forms the attention matrix,
"blockwise" forms it for a block of query rows at a time, and "fused" uses the backend's kernel.
"""

from typing import Any, ClassVar

from keras import ops

from keras_graphattn.checks import checked, is_one_of, mask, optional, size, tensor, whole
from keras_graphattn.layers.parts.dense import attend_densely, check_same_length, mask_of_call
from keras_graphattn.layers.parts.multi_head import (
    Masks,
    MultiHeadLayer,
    padding_of,
    without_padding,
)
from keras_graphattn.layers.parts.projections import build_grouped
from keras_graphattn.ops.softmax.caching import (
    Cache,
    a_cache,
    initial_cache,
    position,
    step_mask,
    update_keys,
)
from keras_graphattn.ops.softmax.masks import AttentionMask, zero_masked_rows

Tensor = Any


class SelfAttention(MultiHeadLayer):
    """Base of `GraphFilterAttention` and `PLaplacianAttention`.

    A subclass implements the dense path (`_compute_attention`), the other paths (`_attend_lean`)
    and the rows of new tokens in decoding (`_decode_rows`).
    """

    _paths: ClassVar[tuple[str | None, ...]] = ("dense", "blockwise")

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        *,
        attention_path: str | None = "dense",
        block_size: int = 512,
        num_key_value_heads: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_heads, key_dim, value_dim, dropout, **kwargs)
        if not is_one_of(attention_path, self._paths):
            raise ValueError(
                f"`attention_path` must be one of {list(self._paths)}. Received: "
                f"attention_path={attention_path!r}"
            )
        if attention_path not in (None, "dense") and self.dropout > 0.0:
            raise ValueError(
                "Dropout drops entries of the attention matrix, which only "
                f'attention_path="dense" forms. Received: attention_path={attention_path!r}, '
                f"dropout={self.dropout}"
            )
        block_size = whole()("block_size", block_size, {})
        _check_groups(num_heads, num_key_value_heads)
        self.attention_path = attention_path
        self.block_size = block_size
        self.num_key_value_heads = num_key_value_heads

    def _build_projections(self, query_shape: Any, value_shape: Any, key_shape: Any) -> None:
        if self.num_key_value_heads is None:
            super()._build_projections(query_shape, value_shape, key_shape)
        else:
            groups = self.num_key_value_heads
            build_grouped(self, query_shape, value_shape, key_shape, groups)

    def _in_all_heads(self, x: Tensor) -> Tensor:
        """Keys or values (B, S, num_key_value_heads, H), repeated to `num_heads` heads."""
        if self.num_key_value_heads is None:
            return x
        return ops.repeat(x, self.num_heads // self.num_key_value_heads, axis=2)  # (B, S, N, H)

    def _attend(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor,
        masks: Masks,
        return_attention_scores: bool,
        training: bool | None,
    ) -> tuple[Tensor, Tensor | None]:
        projected = self._projected(query, value, key, masks)
        if self._path_of(return_attention_scores) == "dense":
            return attend_densely(self, query, projected, masks, return_attention_scores, training)
        return self._attend_lean(*projected, mask_of_call(self, query, masks)), None

    def _projected(
        self, query: Tensor, value: Tensor, key: Tensor, masks: Masks
    ) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = super()._projected(query, value, key, masks)
        return query, self._in_all_heads(key), self._in_all_heads(value)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        outputs = super().compute_output_spec(*args, **kwargs)
        self._path_of(return_attention_scores=isinstance(outputs, tuple))
        return outputs

    def _path_of(self, return_attention_scores: bool) -> str:
        """The path of one call.

        Raises:
            ValueError: If the caller asks for scores that the path never forms.
        """
        if return_attention_scores and self.attention_path != "dense":
            raise ValueError(
                f"The {self.attention_path} path never forms the attention matrix and cannot "
                "return scores or a filter matrix. Received: return_attention_scores=True or "
                f"return_filter_matrix=True in a {type(self).__name__} with attention_path="
                f'{self.attention_path!r}. Use attention_path="dense".'
            )
        return self.attention_path or "dense"

    def _attend_lean(
        self, query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask
    ) -> Tensor:
        """Per-head outputs (B, T, N, value_dim) without an n x n matrix."""
        raise NotImplementedError

    @checked(batch_size=size(0), max_length=whole(0))
    def get_initial_cache(self, batch_size: int, max_length: int) -> Cache:
        """An empty cache for `decode`, of a fixed size.

        Args:
            batch_size: Number of sequences.
            max_length: Number of tokens that the cache can hold, with the prompt.

        Returns:
            A dictionary of tensors: `key` of shape (batch_size, max_length, heads, key_dim);
            `signals` of shape (batch_size, signals, max_length, num_heads, value_dim): the
            values, and all further signals to which a filter applies A; `padding_mask` of shape
            (batch_size, max_length).
        """
        return initial_cache(
            batch_size,
            max_length,
            self.num_heads,
            self.key_dim,
            self.value_dim,
            num_signals=self._num_signals,
            num_key_heads=self.num_key_value_heads,
            dtype=self.compute_dtype,
        )

    @property
    def _num_signals(self) -> int:
        """Number of signals in the cache: how often a filter applies A."""
        return 1

    @checked(
        tokens=tensor("B t d"), cache=a_cache, index=position, padding_mask=optional(mask("B t"))
    )
    def decode(
        self, tokens: Tensor, cache: Cache, index: Any, padding_mask: Tensor | None = None
    ) -> tuple[Tensor, Cache]:
        """Causal self-attention of new tokens over all tokens so far.

        The outputs equal the rows of the new tokens in a full pass with `use_causal_mask=True`. A
        new token costs O(max_length) instead of O(max_length^2).

        Args:
            tokens: Tensor of shape (B, t, d): a prompt, or the next token, or several.
            cache: The cache that `get_initial_cache` or the previous step returned.
            index: Position of the first new token, an integer or a scalar tensor. From there on,
                the contents of the cache are overwritten or not used.
            padding_mask: Optional boolean tensor of shape (B, t); `False` marks padding on
                either side, which no later token sees. By default the tokens' Keras mask.

        Returns:
            The outputs, of shape (B, t, d), and the new cache.

        Raises:
            ValueError: If the tokens do not fit in the cache. Compiled code cannot raise it if
                `index` is a tensor: there, the outputs of such tokens are NaN.

        Example:

        >>> layer = GraphFilterAttention(num_heads=2, key_dim=8)
        >>> prompt = keras.random.normal((1, 10, 16))
        >>> cache = layer.get_initial_cache(batch_size=1, max_length=64)
        >>> outputs, cache = layer.decode(prompt, cache, 0)
        >>> next_token = keras.random.normal((1, 1, 16))
        >>> outputs, cache = layer.decode(next_token, cache, 10)
        >>> tuple(outputs.shape)
        (1, 1, 16)
        """
        if not self.built:
            self.build(tokens.shape)
        padding_mask = padding_of(tokens, padding_mask)
        tokens = without_padding(tokens, padding_mask)
        # the cache's keys (B, L, N, H) with those of the new tokens
        cache, padding_mask = update_keys(cache, self.key_dense(tokens), index, padding_mask)
        mask = step_mask(cache, index, padding_mask, self.sliding_window)  # (B, 1, t, L)
        # outputs (B, t, N, D), signals (B, num_signals, L, N, D)
        outputs, signals = self._decode_rows(
            ops.cast(self.query_dense(tokens), cache["key"].dtype),
            self._in_all_heads(cache["key"]),
            self._in_all_heads(self.value_dense(tokens)),
            mask,
            cache,
            index,
        )
        outputs = self._project_out(zero_masked_rows(outputs, mask), tokens)
        if not isinstance(index, int):  # only known at run time
            last = ops.shape(mask)[-1] - ops.shape(tokens)[1]
            fits = ops.logical_and(index >= 0, index <= ops.cast(last, index.dtype))
            outputs = ops.where(fits, outputs, ops.cast(float("nan"), outputs.dtype))
        return outputs, {**cache, "signals": signals}

    def _decode_rows(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, cache: Cache, index: Any
    ) -> tuple[Tensor, Tensor]:
        """Per-head outputs of the new tokens, and the cache's signals with theirs written."""
        raise NotImplementedError

    def _check_shapes(self, query_shape: Any, value_shape: Any, key_shape: Any) -> None:
        super()._check_shapes(query_shape, value_shape, key_shape)
        check_same_length(self, query_shape, value_shape)
        if len(query_shape) != 3 and not (
            self.attention_path == "dense" and self.num_key_value_heads is None
        ):
            raise ValueError(
                'An attention_path other than "dense", and `num_key_value_heads`, need inputs of '
                f"shape (batch, length, features). Received: query.shape={tuple(query_shape)}, "
                f"attention_path={self.attention_path!r}, "
                f"num_key_value_heads={self.num_key_value_heads}"
            )

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "attention_path": self.attention_path,
            "block_size": self.block_size,
            "num_key_value_heads": self.num_key_value_heads,
        }


def _check_groups(num_heads: int, num_key_value_heads: int | None) -> None:
    if num_key_value_heads is None:
        return
    if (
        isinstance(num_key_value_heads, bool)
        or not isinstance(num_key_value_heads, int)
        or num_key_value_heads < 1
        or num_heads % num_key_value_heads
    ):
        raise ValueError(
            "`num_key_value_heads` must be a positive integer that divides `num_heads`. "
            f"Received: num_heads={num_heads}, num_key_value_heads={num_key_value_heads!r}"
        )
