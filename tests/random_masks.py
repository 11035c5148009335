"""Random masks of every kind that the layers take, and their joint meaning."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp


def draw_masks(data, *, batch, length, heads):
    """Draws arguments for a layer call: any subset of masks, any rank, also with empty rows."""
    masks = {}
    for name in ("query_mask", "value_mask", "key_mask"):
        if data.draw(st.booleans(), label=f"has {name}"):
            masks[name] = data.draw(hnp.arrays(bool, (batch, length)), label=name)
    shapes = [(length, length), (batch, length, length), (batch, 1, length, length)]
    shapes.append((batch, heads, length, length))
    shape = data.draw(st.sampled_from([None, *shapes]), label="attention_mask shape")
    if shape is not None:
        masks["attention_mask"] = data.draw(hnp.arrays(bool, shape), label="attention_mask")
    masks["use_causal_mask"] = data.draw(st.booleans(), label="use_causal_mask")
    return masks


def joined_mask(masks, *, batch, length, heads):
    """Joins the masks of `draw_masks` to one boolean mask (B, N, T, S), entry by entry."""
    joined = np.ones((batch, heads, length, length), bool)
    attention = masks.get("attention_mask")
    for b, n, t, s in np.ndindex(joined.shape):
        sees = not (masks.get("use_causal_mask") and s > t)
        sees &= "query_mask" not in masks or masks["query_mask"][b, t]
        for name in ("value_mask", "key_mask"):
            sees &= name not in masks or masks[name][b, s]
        if attention is not None:
            full = {2: (t, s), 3: (b, t, s), 4: (b, min(n, attention.shape[1] - 1), t, s)}
            sees &= attention[full[attention.ndim]]
        joined[b, n, t, s] = sees
    return joined


def visible_keys(masks):
    """Tokens (B, S) that neither `value_mask` nor `key_mask` marks as padding, or `None`."""
    found = [masks[name] for name in ("value_mask", "key_mask") if name in masks]
    return np.all(found, axis=0) if found else None
