"""Time and memory that `convert` takes on a decoder of 1 billion weights, the shape of Gemma 3 1B.

    KERAS_BACKEND=torch python benchmarks/large_decoder.py
    KERAS_BACKEND=jax python benchmarks/large_decoder.py --layers 12

The weights are random. A tiny model is converted first. `seconds`: how long `convert` took.
`extra`: by how much the memory of the process grew at its peak meanwhile, and `layer`: the weights
of one decoder layer, both in MiB (Linux only).
"""

import math
import time
from pathlib import Path

from measure import Parser, peak_memory, positive, run, table

SHAPE = {
    "vocabulary_size": 262144,
    "image_size": 896,  # of images that a text model does not take
    "num_query_heads": 4,
    "num_key_value_heads": 1,
    "hidden_dim": 1152,
    "intermediate_dim": 6912,
    "head_dim": 256,
    "use_sliding_window_attention": True,
    "sliding_window_size": 512,
}
CASES = {"graph_filter": {"order": 4}, "p_laplacian": {"p": 2.0}}


def size_in_mib(layer):
    bytes_of = {"float32": 4, "bfloat16": 2}
    return sum(math.prod(v.shape) * bytes_of[v.dtype] for v in layer.weights) / 2**20


def peak_from_now():
    """Lets the peak that the system keeps of this process start again, and returns it in MiB."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_memory()


def measured(backbone, attention):
    import keras_graphattn

    before, start = peak_from_now(), time.perf_counter()
    keras_graphattn.convert(backbone, attention, **CASES[attention])
    seconds, after = time.perf_counter() - start, peak_memory()
    assert all("Gemma3" in row.class_name for row in keras_graphattn.inspect(backbone))
    keras_graphattn.revert(backbone)
    return {
        "case": attention,
        "seconds": seconds,
        "extra": after - before,
        "layer": size_in_mib(backbone.transformer_layers[0]),
    }


def main():
    parser = Parser(description=__doc__)
    parser.add_argument("--layers", type=positive, default=26)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    options = parser.parse_args()
    import keras
    import keras_hub

    keras.utils.set_random_seed(0)
    backbone = keras_hub.models.Gemma3Backbone(
        **SHAPE, num_layers=options.layers, dtype=options.dtype
    )
    for attention in CASES:  # what the backend compiles once for any model is not the model's
        small = {
            **SHAPE,
            "vocabulary_size": 8,
            "hidden_dim": 8,
            "intermediate_dim": 8,
            "head_dim": 8,
        }
        tiny = keras_hub.models.Gemma3Backbone(**small, num_layers=2, dtype=options.dtype)
        measured(tiny, attention)
    settings = {
        "backend": keras.backend.backend(),
        "weights": backbone.count_params(),
        "layers": options.layers,
        "dtype": options.dtype,
    }
    rows = [measured(backbone, attention) for attention in CASES]
    print(table(rows, settings))


if __name__ == "__main__":
    run(main)
