"""The adapter of the attention of RoFormer V2: rotary embedding, and padding by the backend.

`RoformerAttention` has no method that attends, so the hook is `call`. Its projections are `Dense`
layers for all heads at once. Queries and keys are rotated.

The mask (B, T) says which tokens are not padding. What it hides depends on the backend (KerasHub
0.32). On PyTorch, no token sees padding. On TensorFlow and JAX the mask has the shape (B, 1, T, 1):
it hides everything from padding, and nothing from the other tokens. A softmax over hidden tokens
only is uniform. So there the matrix A of the original has uniform rows for padding, and all tokens
see padding. This is what scores of 0 in the rows of padding give.

A converted layer does what the original does on the same backend: its outputs are the original's
at the start. So on TensorFlow and JAX, padding takes part in A and in its powers. Texts without
padding give the same numbers on all backends.
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_graphattn.hub.adapters.adapter import Sizes
from keras_graphattn.hub.adapters.decoder import joined_heads
from keras_graphattn.hub.adapters.encoder import EncoderAdapter, in_heads

Tensor = Any


class RoformerHook:
    """The method of `RoformerAttention` that a converted one overrides."""

    adapter: Any
    attend: Any

    def call(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        query, key, value = self.adapter.projected(self, x, 0)
        mask = None
        if attention_mask is not None:
            real = ops.cast(ops.reshape(attention_mask, ops.shape(x)[:2]), "bool")  # (B, T)
            if keras.config.backend() == "torch":
                mask = real[:, None]  # (B, 1, T)
            else:
                query = ops.where(real[:, :, None, None], query, ops.zeros_like(query))
        return self.adapter.output(self, self.attend(query, key, value, mask), None)


class RoformerAdapter(EncoderAdapter):
    """For `RoformerAttention`."""

    classes: Sequence[str] = ("RoformerAttention",)
    backbones: Sequence[str] = ("RoformerV2Backbone",)
    inner_layers: Sequence[str] = ("RoformerV2Encoder",)
    hook = RoformerHook

    def sizes(self, layer: Any) -> Sizes:
        return Sizes(
            num_heads=layer.heads,
            key_dim=layer.head_size,
            scale=layer.head_size**-0.5,
        )

    def projections(self, layer: Any) -> dict[str, Any]:
        return {
            "query": layer.q_dense,
            "key": layer.k_dense,
            "value": layer.v_dense,
            "attention_output": layer.o_dense,
        }

    def projected(self, layer: Any, inputs: Tensor, index: Any) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = (
            in_heads(projection(inputs), layer.heads)
            for projection in (layer.q_dense, layer.k_dense, layer.v_dense)
        )
        return *self.both_rotated(layer, query, key), value

    def both_rotated(self, layer: Any, query: Tensor, key: Tensor) -> Sequence[Tensor]:
        """Queries and keys, (B, T, N, H) each, rotated by the positions of their tokens."""
        rotated: Sequence[Tensor] = layer.rotary_embedding_layer([query, key])
        return rotated

    def output(self, layer: Any, outputs: Tensor, training: bool | None) -> Tensor:
        return layer.o_dense(joined_heads(outputs))

    def calls_backend(self, layer: Any) -> bool:
        return True
