"""Decoding token by token with a state of fixed size, for masked kernel attention."""

from typing import Any

from keras import ops

from keras_graphattn.layers.parts.kernel_features import key_features, query_features
from keras_graphattn.layers.parts.mask_forms import mask_form
from keras_graphattn.layers.parts.multi_head import padding_of, without_padding
from keras_graphattn.ops.kernel.attention import NormalisedOperator
from keras_graphattn.ops.softmax.masks import all_of

Tensor = Any
State = tuple[Any, ...]


def initial_state(layer: Any, batch_size: int) -> State:
    """The state of a `MaskedKernelAttention` before the first token: one for each application."""
    mask: Any = mask_form(layer, causal=True)
    dtype = "float64" if layer.compute_dtype == "float64" else "float32"
    count = layer.feature_map.num_features(layer.num_heads, layer.key_dim)
    states = (
        # the first state has one more column, for the normaliser
        mask.get_initial_state(batch_size, layer.num_heads, count, layer.value_dim + (call == 0))
        for call in range(layer._num_applications)
    )
    return tuple(state._replace(sums=ops.cast(state.sums, dtype)) for state in states)


def decode(
    layer: Any,
    tokens: Tensor,
    state: State,
    padding_mask: Tensor | None,
    mask_inputs: dict[str, Tensor] | None,
) -> tuple[Tensor, State]:
    """Outputs (B, t, d) of new tokens of a `MaskedKernelAttention`, and the state after them."""
    mask: Any = mask_form(layer, causal=True)
    layer._check_shapes(tokens.shape, tokens.shape, None)
    if not layer.built:
        layer.build(tuple(tokens.shape))
    padding_mask = all_of(padding_of(tokens, padding_mask))
    tokens = without_padding(ops.cast(tokens, layer.compute_dtype), padding_mask)
    # features (B, t, N, m)
    query = query_features(layer, layer.query_dense(tokens), padding_mask, fixed_scale=True)
    key = key_features(layer, layer.key_dense(tokens), padding_mask, fixed_scale=True)
    # one state for each application of attention, in the order in which the filter makes them
    left = list(state)
    following: list[Any] = []

    def attend(x: Tensor) -> Tensor:
        outputs, new = mask.step(left[len(following)], query, key, x, **(mask_inputs or {}))
        following.append(new)
        return outputs

    outputs = layer._outputs(NormalisedOperator(attend), layer.value_dense(tokens))
    return layer._project_out(outputs, tokens), tuple(following)
