"""Writes the table of formats: `python -m tests.export.format_table [--names gfa --formats onnx]`.

Each cell is a file that ran in the runtime of its format. The outcomes are kept in
`guides/formats.json`, so that one backend, format or model can be run again without the others.
`docs/pages/formats.md` is made of that file. A cell takes seconds, up to a minute.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from importlib.util import find_spec

import keras

from tests.hub.reach_table import LETTERS, ROOT

OUTCOMES = ROOT / "guides/formats.json"
TABLE = ROOT / "docs/pages/formats.md"
COLUMNS = (  # what Keras writes, by format and backend
    ("tf_saved_model", "tensorflow"),
    ("tf_saved_model", "jax"),
    ("onnx", "tensorflow"),
    ("onnx", "jax"),
    ("onnx", "torch"),
    ("litert", "tensorflow"),
    ("litert", "torch"),
    ("openvino", "tensorflow"),
    ("openvino", "torch"),
    ("torch", "torch"),
)
PACKAGES = (
    *("keras", "tensorflow", "jax", "torch", "onnx", "onnxruntime", "tf2onnx", "jax2onnx"),
    *("ai-edge-litert", "litert-torch", "openvino"),
)
NAMES = {
    "tf_saved_model": "SavedModel",
    "onnx": "ONNX",
    "litert": "LiteRT",
    "openvino": "OpenVINO",
    "torch": ".pt2",
}
LABELS = {
    "keras": "`keras.layers.MultiHeadAttention`",
    "keras_causal": "`keras.layers.MultiHeadAttention`, causal",
    "keras_padded": "`keras.layers.MultiHeadAttention`, padding",
    "gfa": "`GraphFilterAttention`",
    "gfa_padded": "`GraphFilterAttention`, padding",
    "gfa_causal": "`GraphFilterAttention`, causal",
    "gfa_monomial": '`GraphFilterAttention`, `"monomial"`',
    "gfa_jacobi": "`GraphFilterAttention`, `Jacobi`",
    "gfa_fused": "`GraphFilterAttention`, fused",
    "gfa_blockwise": "`GraphFilterAttention`, blockwise",
    "gfa_RelativePositions": "`GraphFilterAttention`, `RelativePositions`",
    "gfa_HopDecay": "`GraphFilterAttention`, `HopDecay`",
    "gfa_Sum": "`GraphFilterAttention`, blockwise, `ShortestPath` and `EdgePath`",
    "differential": "`DifferentialAttention`, causal",
    "differential_2": "`DifferentialAttention`, `version=2`",
    "p_laplacian": "`PLaplacianAttention`",
    "p_laplacian_dense": '`PLaplacianAttention`, `attention_path="dense"`',
    "p_laplacian_heads": "`PLaplacianAttention`, a p for each head",
    "agf": "`AttentiveGraphFilter`",
    "agf_chebyshev": '`AttentiveGraphFilter`, `"chebyshev"`',
    "agf_causal": "`AttentiveGraphFilter`, causal",
    "delta_rule": "`GatedDeltaRule`",
    "delta_rule_packed": "`GatedDeltaRule`, packed, with a filter",
    "high_frequency": "`ScaledHighFrequencyAttention`",
    "contra_norm": "`ContraNorm`",
    "contra_norm_attention": "`ContraNormAttention`",
    "mean_pooling": "`GraphMeanPooling`",
    "max_pooling": "`GraphMaxPooling`",
    "sum_pooling": "`GraphSumPooling`",
    "kernel": "`MaskedKernelAttention`",
    "kernel_filtered": "`MaskedKernelAttention`, with a filter",
    "kernel_causal": "`Causal`, with a filter",
    "kernel_exponential": "`Exponential`",
    "kernel_exponential_dense": '`Exponential`, `path="dense"`',
    "kernel_gated": "`GatedDecay`",
    "kernel_low_rank": "`LowRank`",
    "kernel_positions": "`ExponentialPositions`",
    "kernel_stochastic": "`StochasticPositions`",
    "kernel_segments": "`Segments`",
    "kernel_packed": "`Causal` and `Segments`",
    "kernel_distances": "`DistanceTable`",
    "kernel_entries": "`Entries`",
    "kernel_toeplitz_auto": "`Toeplitz`",
    "kernel_toeplitz": '`Toeplitz`, `path="dense"`',
    "kernel_toeplitz_rows": '`Toeplitz`, `path="blockwise"`',
    "kernel_toeplitz_fft": '`Toeplitz`, `path="fft"`',
    "kernel_alibi": '`Toeplitz.alibi`, `path="fft"`',
    "kernel_causal_toeplitz": '`Causal` and `Toeplitz`, `path="fft"`',
    "kernel_grid": '`BlockToeplitz`*, `path="dense"`',
    "kernel_grid_rows": '`BlockToeplitz`*, `path="blockwise"`',
    "kernel_grid_fft": '`BlockToeplitz`*, `path="fft"`',
    "kernel_hypercube": "`Hypercube`*",
    "kernel_tree": "`Tree`*",
    "kernel_tree_per_example": "`Tree`, per example",
    "kernel_diffusion": "`GraphDiffusion`*",
    "kernel_diffusion_per_example": "`GraphDiffusion`, per example",
    "kernel_walks": "`RandomWalk`*",
    "kernel_walks_per_example": "`RandomWalk`, per example",
    "kernel_random_features": "`GraphRandomFeatures`*",
    "edges": "`EdgeAttention`*",
    "edges_per_example": "`EdgeAttention`, per example, with a filter",
    "gkat": "`GraphKernelAttention`*",
    "gkat_walks_per_example": "`GraphKernelAttention`, per example",
    "gkat_factored": "`GraphKernelAttention`, per example, factored",
    "gkat_dynamic_walks": "`GraphKernelAttention`, per example, `dynamic_walks`",
    "gkat_additive": '`GraphKernelAttention`, `Exponential`, `score="additive"`',
    "gkat_exponential": "`GraphKernelAttention`, `Exponential`",
    "bert_keras": "KerasHub's BERT",
    "bert_graph_filter": "BERT, converted to GFSA",
    "bert_p_laplacian": "BERT, converted to p-LaT",
    "bert_attentive_graph_filter": "BERT, converted to AGF",
}
HEAD = """# What `Model.export` writes

`model.export(path, format)` of Keras writes models with layers of this package. Ask first what a
format does not have: `check_export` names the layer, the reason and what to do, before a file is
written.

```python
import os

os.environ["KERAS_BACKEND"] = "jax"  # or "torch", "tensorflow"
```

```python
import keras
import keras_graphattn

tokens = keras.Input((64, 16))
model = keras.Model(tokens, keras_graphattn.GraphFilterAttention(num_heads=2, key_dim=8)(tokens))
keras_graphattn.check_export(model, "onnx")  # nothing, or an error that says why
```

The extra `formats` installs what writes and runs these files. `export_saved_model` writes a
SavedModel from any backend. From JAX, it also takes any length of several inputs, such as tokens
and their padding, which `Model.export` does not. TensorFlow 2.21 cannot read what `Model.export`
writes from JAX 0.11 and later, and jax2onnx 0.17.1 fails with JAX 0.12. So the extra takes JAX
0.10.

## The table

This table is made by `python -m tests.export.format_table`. In each cell, the file ran in the
runtime of its format, and its outputs were those of Keras to 1e-5. It ran on {versions}.

* `any length`: one file for any batch and length. The test runs three batches and lengths.
* `any batch`: the length is fixed when the model is built, as it is for a mask of one length (*).
* `fixed`: batch and length are fixed. Give `input_signature` to `Model.export`.
* `refused`: no file runs, and `check_export` says what to do.

{table}
The rows from `Causal` to `GraphRandomFeatures` are masks of `MaskedKernelAttention`, with the path
that they choose, if none is named. The masks of one length have 16 positions here, so most of them
form their matrix.

## What Keras itself does not write

* OpenVINO from JAX: OpenVINO does not read what `jax2tf` writes since JAX has removed its options
  (`XlaCallModule`). [keras#22443](https://github.com/keras-team/keras/pull/22443) is of ONNX only.
* A SavedModel from PyTorch. `export_saved_model` writes it, in a process of TensorFlow.
* LiteRT from JAX. LiteRT from PyTorch takes fixed sizes only:
  [keras#22996](https://github.com/keras-team/keras/issues/22996). It needs `litert-torch`, which is
  not part of the extra, and does not write KerasHub's BERT.
* OpenVINO from TensorFlow, if a layer of your own indexes a scalar tensor with `None`, as in
  `ops.shape(x)[1][None]`: OpenVINO 2026.4.1 then reads memory that nothing has written.
  `ops.reshape` does the same and is right. No layer of this package has such an index.
* NaN in padding, which layers of Keras spread. Files of this package's layers do not, except ONNX
  from TensorFlow: tf2onnx writes a selection as a sum of products, and 0 times NaN is NaN. Give
  such a file finite numbers in its padding.
* KerasHub's BERT, converted or not, takes fixed sizes only in ONNX from JAX and PyTorch. The limits
  are in its position embedding and in the layer normalisation of Keras.
"""


def rendered(kept):
    """The page of what is kept."""
    versions = ", ".join(f"{name} {number}" for name, number in kept["versions"].items())
    titles = [
        NAMES[format] + ("" if format == "torch" else f" ({LETTERS[backend]})")
        for format, backend in COLUMNS
    ]
    lines = [f"| | {' | '.join(titles)} |", "| --- |" + " --- |" * len(titles)]
    for name, label in LABELS.items():
        cells = [kept["cells"][name][format][backend] for format, backend in COLUMNS]
        lines.append(f"| {' | '.join([label, *cells])} |")
    return HEAD.format(versions=versions, table="\n".join(lines) + "\n")


def measured(names, formats):
    """Yields the cells of this backend: (name, format, what the file takes)."""
    from tests.export.formats import NOTHING, check, possible_sizes

    for name in names:
        for format in formats:
            outcome = NOTHING
            for sizes in possible_sizes(name):
                try:
                    with tempfile.TemporaryDirectory() as folder:
                        check(name, format, sizes, folder)
                except Exception as error:
                    print(name, format, sizes, type(error).__name__, str(error)[:200], flush=True)
                else:
                    outcome = sizes
                    break
            yield name, format, outcome


def main():
    backends = list(dict.fromkeys(backend for _, backend in COLUMNS))
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--backends", nargs="+", choices=backends, default=backends)
    parser.add_argument("--formats", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--names", nargs="+", choices=LABELS, default=list(LABELS))
    parser.add_argument("--in-this-process", action="store_true", help="for one backend")
    arguments = parser.parse_args()
    for backend in () if arguments.in_this_process else arguments.backends:
        command = [sys.executable, "-m", "tests.export.format_table", "--in-this-process"]
        command += ["--formats", *arguments.formats, "--names", *arguments.names]
        environment = {**os.environ, "KERAS_BACKEND": backend}
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
    kept = json.loads(OUTCOMES.read_text()) if OUTCOMES.exists() else {"versions": {}, "cells": {}}
    if arguments.in_this_process:
        backend = keras.backend.backend()
        formats = [f for f in arguments.formats if (f, backend) in COLUMNS]
        for name, format, outcome in measured(arguments.names, formats):
            kept["cells"].setdefault(name, {}).setdefault(format, {})[backend] = outcome
        installed = [package for package in PACKAGES if find_spec(package.replace("-", "_"))]
        kept["versions"] |= {package: version(package) for package in installed}
        kept["cells"] = {name: kept["cells"][name] for name in LABELS if name in kept["cells"]}
        OUTCOMES.write_text(json.dumps(kept, indent=1) + "\n")
        return
    TABLE.write_text(rendered(kept))


if __name__ == "__main__":
    main()
