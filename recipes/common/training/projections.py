"""Base of attention layers with several heads: their projections, sizes and configuration."""

from typing import Any

import keras
from keras import layers

Tensor = Any


class HeadProjections(layers.Layer):
    """Projections of tokens (B, T, d) to heads (B, T, N, H), and of heads to outputs (B, T, d).

    Their names are those of `keras.layers.MultiHeadAttention`: `query`, `key`, `value` and
    `attention_output`.

    Args:
        num_heads: Number of heads.
        key_dim: Width of each head.
        **kwargs: Those of a Keras layer.
    """

    def __init__(self, num_heads: int, key_dim: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_heads, self.key_dim = num_heads, key_dim

    def build(self, tokens_shape: Any, *others: Any) -> None:
        heads, width = (None, self.num_heads, self.key_dim), tokens_shape[-1]
        into, out = ("btd,dnh->btnh", heads, "nh"), ("btnh,nhd->btd", (None, width), "d")
        made = {"query": into, "key": into, "value": into, "attention_output": out}
        for name, (equation, shape, axes) in made.items():
            dense = layers.EinsumDense(
                equation, shape, bias_axes=axes, dtype=self.dtype_policy, name=name
            )
            dense.build((*tokens_shape[:2], *heads[1:]) if shape != heads else tokens_shape)
            setattr(self, f"{name}_dense", dense)
        self.built = True

    def compute_output_spec(self, tokens: Any, *others: Any, training: Any = None) -> Any:
        return keras.KerasTensor(tokens.shape, self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        sizes = {"num_heads": self.num_heads, "key_dim": self.key_dim}
        return {**super().get_config(), **sizes}
