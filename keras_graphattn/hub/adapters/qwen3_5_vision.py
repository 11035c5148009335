"""The adapter of the attention of Qwen3.5's vision tower: all patches of a batch in one row.

The hook is `call`. Its input is (T, d), without an axis of examples: the patches of all images and
frames, one after the other. `cu_seqlens` says where each starts, and patches see those of their own
frame only. So A is a square matrix for each frame. One projection makes queries, keys and values;
queries and keys are rotated by row and by column.

The tower reads the sizes of the images while it runs. So neither a function of it nor a model with
it can be compiled: it runs eagerly, as the original does.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from keras import ops

from keras_graphattn.hub.adapters.adapter import Sizes
from keras_graphattn.hub.adapters.decoder import joined_heads
from keras_graphattn.hub.adapters.encoder import EncoderAdapter, fused_in_heads

Tensor = Any


class Qwen3_5VisionHook:
    """The method of `Qwen3_5VisionAttention` that a converted one overrides."""

    adapter: Any
    attend: Any
    _apply_rotary: Any

    def call(
        self,
        x: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        query, key, value = self.adapter.projected(self, x[None], 0)  # (1, T, N, H)
        query, key = (self._apply_rotary(y[0], *position_embeddings)[None] for y in (query, key))
        if cu_seqlens is None or len(cu_seqlens) <= 2:
            outputs = self.attend(query, key, value)
        else:
            ends = [int(end) for end in ops.convert_to_numpy(cu_seqlens)]
            frames = [slice(start, end) for start, end in pairwise(ends)]
            outputs = ops.concatenate(
                [self.attend(query[:, at], key[:, at], value[:, at]) for at in frames], axis=1
            )
        return self.adapter.output(self, outputs, None)[0]


class Qwen3_5VisionAdapter(EncoderAdapter):
    """For `Qwen3_5VisionAttention`."""

    classes: Sequence[str] = ("Qwen3_5VisionAttention",)
    inner_layers: Sequence[str] = ("Qwen3_5VisionEncoder", "Qwen3_5VisionBlock")
    modules: Sequence[str] = ("keras_hub.src.models.qwen3_5.qwen3_5_vision_encoder",)
    hook = Qwen3_5VisionHook

    def sizes(self, layer: Any) -> Sizes:
        return Sizes(num_heads=layer.num_heads, key_dim=layer.head_dim, scale=layer.head_dim**-0.5)

    def projections(self, layer: Any) -> dict[str, Any]:
        return {"query": layer.qkv, "attention_output": layer.proj}

    def projected(self, layer: Any, inputs: Tensor, index: Any) -> tuple[Tensor, Tensor, Tensor]:
        return fused_in_heads(layer.qkv(inputs), layer.num_heads)

    def output(self, layer: Any, outputs: Tensor, training: bool | None) -> Tensor:
        return layer.proj(joined_heads(outputs))
