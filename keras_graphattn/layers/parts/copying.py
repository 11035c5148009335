"""Copies projections from softmax attention."""

from typing import Any

import keras

from keras_graphattn.layers.parts.projections import input_shapes, projections_of


def copy_projections(target: Any, source: Any) -> None:
    """Copies `query`, `key`, `value`, `attention_output` (and `gate`) from `source` to `target`.

    Args:
        target: A layer of this package with the projections of multi-head attention.
        source: A built `keras.layers.MultiHeadAttention`, or a subclass, of the same sizes. If
            `target` is not built yet, it is built for inputs like those of `source`.

    Raises:
        ValueError: If `source` is another kind of layer, is not built or is quantised, or if any
            shape differs. Then nothing is copied.
    """
    if not isinstance(source, keras.layers.MultiHeadAttention):
        raise ValueError(
            "Projections can be copied from a keras.layers.MultiHeadAttention only. Received: "
            f"{type(source).__name__}"
        )
    if not source.built:
        raise ValueError(
            f"'{source.name}' is not built, so it has no weights to copy. Call it first."
        )
    found = projections_of(source)
    quantised = [name for name, p in found.items() if getattr(p, "quantization_mode", None)]
    if quantised:
        raise ValueError(
            f"'{source.name}' is quantised ({', '.join(quantised)}). Copy before quantising."
        )
    if not target.built:
        target.build(*input_shapes(found))
    # collect all differences before the first copy, so that an error leaves `target` unchanged
    pairs, differences = [], []
    wanted = projections_of(target)
    for name in sorted(wanted | found):
        for part in ("kernel", "bias"):
            new, old = (getattr(side.get(name), part, None) for side in (wanted, found))
            shapes = tuple(None if w is None else tuple(w.shape) for w in (new, old))
            if shapes[0] != shapes[1]:
                differences.append(f"{name}/{part}: {shapes[0]} here, {shapes[1]} there")
            elif new is not None:
                pairs.append((new, old))
    if differences:
        raise ValueError(
            f"The projections of '{source.name}' do not fit those of '{target.name}': "
            f"{'; '.join(differences)}. Both layers need the same num_heads, key_dim, value_dim, "
            "output_shape, use_bias and use_gate, and inputs of the same width."
        )
    for new, old in pairs:
        new.assign(old)
