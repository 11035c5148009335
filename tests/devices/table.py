"""Writes the table of devices: `KERAS_BACKEND=jax python -m tests.devices.table [--names AGF]`.

Each cell is a case of `tests/devices/test_devices.py`. Its outcome is kept in
`guides/devices.json` as soon as it is known, so that a long run can go on later with `--missing`.
`docs/pages/devices.md` is made of that file.
"""

import argparse
import json
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]
OUTCOMES = ROOT / "guides/devices.json"
TABLE = ROOT / "docs/pages/devices.md"
YES, PARTS, NO = "yes", "in parts", "fails"
TARGETS = {
    "CUDA": ("jax", "CUDA"),
    "TPU": ("jax", "TPU"),
    "XLA": ("tensorflow", "XLA"),
    "torch.compile": ("torch", "`torch.compile`"),
}
LETTERS = {"jax": "JAX", "tensorflow": "TF", "torch": "torch"}
CLASSES = {
    "graph filter": "GraphFilterAttention",
    "differential": "DifferentialAttention",
    "p-Laplacian": "PLaplacianAttention",
    "high frequencies": "ScaledHighFrequencyAttention",
    "ContraNorm attention": "ContraNormAttention",
    "AGF": "AttentiveGraphFilter",
    "delta rule": "GatedDeltaRule",
    "kernel": "MaskedKernelAttention",
    "GKAT": "GraphKernelAttention",
    "edges": "EdgeAttention",
}
HEAD = """# Devices

A machine without a GPU or TPU can show this: a whole training step, with the loss and all
gradients, compiles for the device. The layers are tiny, with padding. [On a GPU](#on-a-gpu) says
what ran on one. No TPU was used.

This table is made by `KERAS_BACKEND=<backend> python -m tests.devices.table`. Each cell is a test
that ran: `tests/devices/steps.py` says what it checks. It ran on {versions}.

* *CUDA* and *TPU*: `jax.export` lowers the jitted step, with Adam, for the platform. The lowered
  module calls nothing on the host and has no float64. XLA makes the programs of a device from such
  a module on the device only.
* *XLA*: `tf.function(jit_compile=True)` compiles the step, with Adam, and runs it on the CPU. The
  gradients are finite.
* *`torch.compile`*: with `fullgraph=True`, the loss is one graph, and so are its gradients. There
  is no warning. They run on the CPU, and are finite. In float32, without dropout, the gradients are
  those without a compiler. The graphs are those that Inductor gets
  (`backend="aot_eager_decomp_partition"`). Inductor makes kernels of them, which is not part of it.
* `yes`: in float32 and under `mixed_bfloat16`. Else the cell names the dtype that ran. An empty
  cell was not run.
* `in parts`: PyTorch makes several graphs, so that `fullgraph=True` fails, or it warns of code in
  Keras. It does the same to these models of KerasHub before `convert`.

Where tokens are split over devices, `tests/distribution` compares eight devices with one, on the
CPU. No device gathers all tokens there, for the layers that `SequenceParallel` names.

## On a GPU

On an NVIDIA H200, this is what the tests of layers, masks and operators gave:

    cd tests; pytest -m "not slow" analysis biases filters layers masks ops

* JAX, with `JAX_DEFAULT_MATMUL_PRECISION=highest`: 296 passed, none failed. Without this setting,
  JAX rounds the factors of a float32 product on a GPU.
* torch: 2,953 passed, 5 failed. The tests ask torch for a fixed order of sums: without it, a GPU
  adds up in any order, and what they compare bit by bit differs in the last digits of float32. Two
  of the 5 are rounding: one gradient of the fused path is 1.15e-5 from its twin, in place of 1e-5,
  and weights of 5e-33 differ by 8e-6 of themselves.
* The other 3 are a limit of the fused path on a GPU, causal or under a mask of pairs: where a token
  that some rows may not see is 1e15, gradients are NaN. torch's kernel computes the scores again
  in its backward pass. Beyond 1e9, the rounding of a score is enough to overflow its exponential.
  At 1e4, hidden tokens change nothing.

`keras_graphattn.operators.use_kernels` has kernels that are off by default: nobody has measured
that they are faster. On torch they are the Triton kernels of flash-linear-attention, which the
extra `triton` installs: for causal kernel attention under a decay, and for `GatedDeltaRule`. On
JAX they are Pallas kernels for TPUs: for the first of the two, and for the two products of GFSA
with A in blocks. Both Pallas kernels had a form for GPUs, which gave the numbers of the
portable form and was removed: in bfloat16 at 8,192 tokens, the first took more than 400 times the
time of the portable form, and the second 3.6 times. There, the fused path is the fastest form of
GFSA.

[What a GPU takes](gpu.md) has speed and memory, and the command that measures them. Other programs
used other cores of the host at that time.
"""
SECTIONS = {
    "Layers": lambda name: not name.startswith(("kernel, ", "GKAT")),
    "`MaskedKernelAttention` under masks, on each path": lambda name: name.startswith("kernel, "),
    "`GraphKernelAttention` under masks": lambda name: name.startswith("GKAT"),
}


def rendered(kept):
    """The Markdown of what is kept."""
    ran = ", ".join(f"{LETTERS[b]} {v}" for b, v in kept["versions"].items())
    parts = [HEAD.format(versions=ran)]
    columns = [f"{title} ({LETTERS[backend]})" for backend, title in TARGETS.values()]
    for title, belongs in SECTIONS.items():
        parts.append(f"\n## {title}\n\n| | {' | '.join(columns)} |\n")
        parts.append("| --- |" + " --- |" * len(columns) + "\n")
        for name, cells in kept["cells"].items():
            if belongs(name):
                row = [_label(name), *(_cell(cells.get(target, {})) for target in TARGETS)]
                parts.append(f"| {' | '.join(row)} |\n")
    return "".join(parts)


def _label(name):
    """The name of a case with that of its class."""
    first, *rest = name.split(", ")
    if first == "pooling":
        return f"`{rest[0]}`"
    if first in CLASSES:
        return ", ".join([f"`{CLASSES[first]}`", *rest])
    return f"KerasHub: {name}" if rest else f"`{name}`"


def _cell(by_dtype):
    outcomes = set(by_dtype.values())
    if len(by_dtype) == 2 and len(outcomes) == 1:
        return outcomes.pop()
    return ", ".join(f"{dtype}: {outcome}" for dtype, outcome in by_dtype.items())


def in_order(cells):
    """The outcomes in the order of the tests. Cases that are gone are left out."""
    from tests.devices.steps import DTYPES, STEPS

    return {
        name: {
            target: {d: cells[name][target][d] for d in DTYPES if d in cells[name][target]}
            for target in TARGETS
            if target in cells.get(name, {})
        }
        for name in STEPS
    }


def kept_outcomes():
    if OUTCOMES.exists():
        return json.loads(OUTCOMES.read_text())
    return {"versions": {}, "cells": {}}


def keep(name, target, dtype, outcome):
    """Adds one outcome to the file."""
    kept = kept_outcomes()
    kept["cells"].setdefault(name, {}).setdefault(target, {})[dtype] = outcome
    backend = TARGETS[target][0]
    kept["versions"][backend] = version(backend)
    write(kept)


def write(kept):
    """Writes the outcomes, and the page that is made of them."""
    kept["cells"] = in_order(kept["cells"])
    part = OUTCOMES.with_suffix(".part")
    part.write_text(json.dumps(kept, indent=1) + "\n")
    part.replace(OUTCOMES)
    TABLE.write_text(rendered(kept))


def main():
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--names", nargs="+", default=[], help="words in the names of cases; all by default")
    add("--dtypes", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    add("--missing", action="store_true", help="leave out cases whose outcome is kept")
    options = parser.parse_args()
    import keras

    import tests.conftest  # noqa: F401  # as the tests run: checks of shapes on torch
    from tests.devices.steps import COMPILERS, IN_PARTS, STEPS, compiled

    chosen = [n for n in STEPS if not options.names or any(w in n for w in options.names)]
    cases = [
        (name, target, dtype)
        for dtype in options.dtypes
        for name in chosen
        for target in COMPILERS[keras.backend.backend()]
    ]
    cells = kept_outcomes()["cells"]
    for name, target, dtype in cases:
        if options.missing and dtype in cells.get(name, {}).get(target, {}):
            continue
        outcome, reason = NO, ""
        for form in (YES, PARTS) if target in IN_PARTS else (YES,):
            try:
                compiled(name, target, dtype, in_parts=form == PARTS)
            except Exception as error:
                reason += f": {type(error).__name__}: {error}"
            else:
                outcome = form
                break
        print(f"{name}, {target}, {dtype}: {outcome}{reason}", flush=True)
        keep(name, target, dtype, outcome)
    write(kept_outcomes())  # also if nothing was run: cases that are new have an empty row


if __name__ == "__main__":
    main()
