"""The adapter of XLNet's attention: the content stream, with scores of positions and segments.

The hook is `compute_attention`. The scores of a query are the sum of three: with the content of a
token, with the distance to it, and with whether it is in the same segment. Each has a bias of the
query. All are scaled by 1 / sqrt(H), and one softmax is taken of the sum. So A is a softmax of
scaled scores Q K^T with a bias (B, N, T, T).

XLNet can have two streams. The content stream is self-attention of the tokens, and the backbone
has only this one. The query stream asks with its own vectors what the content stream knows: its
rows of A are applied to values of the content stream, and its outputs are not such values. So there
is no A^2 for it, and a converted layer refuses it. It refuses a state of earlier segments too:
then there are more keys than queries.

KerasHub 0.32 reshapes the padding mask and the encodings of distances where it means to transpose
them. In a batch of more than one text, a text is given the padding of others, and distances that
are not its own. This is made outside of the attention, and stays as it is. The `get_config` of the
layer that holds the attention leaves all arguments out.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from keras import ops

from keras_graphattn.hub.adapters.adapter import Sizes
from keras_graphattn.hub.adapters.decoder import constructor_config
from keras_graphattn.hub.adapters.encoder import EncoderAdapter
from keras_graphattn.hub.logits import BIAS, DROPOUT

Tensor = Any


class XLNetHook:
    """The methods of `TwoStreamRelativeAttention` that a converted one overrides."""

    attend: Any
    sizes: Any

    def call(
        self,
        content_stream: Tensor,
        content_attention_bias: Tensor,
        positional_attention_bias: Tensor,
        relative_position_encoding: Tensor,
        query_stream: Tensor | None = None,
        target_mapping: Tensor | None = None,
        segment_matrix: Tensor | None = None,
        segment_encoding: Tensor | None = None,
        segment_attention_bias: Tensor | None = None,
        state: Tensor | None = None,
        content_attention_mask: Tensor | None = None,
        query_attention_mask: Tensor | None = None,
    ) -> tuple[Tensor, None]:
        if query_stream is not None or state is not None:
            given = "query_stream" if query_stream is not None else "state"
            raise ValueError(
                f"{type(self).__name__} is self-attention of the content stream. A query stream "
                "attends to the values of another stream, and with a state there are more keys "
                f"than queries: the powers of A are undefined. Received: `{given}`. Leave it out, "
                "or call keras_graphattn.revert(model)."
            )
        return super().call(  # type: ignore[misc,no-any-return]
            content_stream,
            content_attention_bias,
            positional_attention_bias,
            relative_position_encoding,
            segment_matrix=segment_matrix,
            segment_encoding=segment_encoding,
            segment_attention_bias=segment_attention_bias,
            content_attention_mask=content_attention_mask,
        )

    def compute_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        position: Tensor,
        content_attention_bias: Tensor,
        positional_attention_bias: Tensor,
        segment_matrix: Tensor | None = None,
        segment_encoding: Tensor | None = None,
        segment_attention_bias: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        bias = scores_of_distances(query + positional_attention_bias, position)
        if segment_matrix is not None:
            bias = bias + scores_of_segments(
                query + segment_attention_bias, segment_encoding, segment_matrix
            )
        bias = bias * self.sizes.scale
        query = query + content_attention_bias
        return self.attend(query, key, value, attention_mask, None, bias)


def scores_of_distances(query: Tensor, position: Tensor) -> Tensor:
    """Scores (B, N, T, T) of queries (B, T, N, H) with the encodings (B, 2 T, N, H) of distances.

    The encodings are those of the distances T, T - 1, ..., 1 - T.
    """
    scores = ops.einsum("blnh,btnh->bntl", position, query)
    module = sys.modules["keras_hub.src.models.xlnet.relative_attention"]
    shifted: Tensor = module._rel_shift(scores, klen=ops.shape(query)[1])
    return shifted


def scores_of_segments(query: Tensor, encoding: Tensor, is_other: Tensor) -> Tensor:
    """Scores (B, N, T, T) of queries (B, T, N, H) with the encodings (2, N, H) of segments.

    Args:
        query: The queries.
        encoding: That of the same segment, then that of another.
        is_other: Boolean tensor (B, T, T): whether two tokens are in different segments.
    """
    same, other = ops.split(ops.einsum("btnh,snh->bnts", query, encoding), 2, axis=-1)
    return ops.where(ops.expand_dims(is_other, 1), other, same)


class XLNetAdapter(EncoderAdapter):
    """For `TwoStreamRelativeAttention`."""

    classes: Sequence[str] = ("TwoStreamRelativeAttention",)
    backbones: Sequence[str] = ("XLNetBackbone",)
    inner_layers: Sequence[str] = ("XLNetEncoder",)
    holder_configs: ClassVar[Mapping[str, Any]] = {"XLNetEncoder": constructor_config}
    hook = XLNetHook

    def sizes(self, layer: Any) -> Sizes:
        return Sizes(
            num_heads=layer._num_heads,
            key_dim=layer._key_dim,
            value_dim=layer._value_dim,
            scale=layer._key_dim**-0.5,
            dropout=layer._dropout,
            beyond_softmax=(BIAS, DROPOUT),
        )

    def projections(self, layer: Any) -> dict[str, Any]:
        return {**super().projections(layer), "encoding": layer._encoding_dense}

    def dropped(self, layer: Any, matrix: Tensor, training: bool | None) -> Tensor:
        return layer._dropout_layer(matrix)  # Keras knows `training`, which `call` does not take
