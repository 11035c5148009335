"""The ratios that matter, on a GPU, in one command that begins nothing new after 22 minutes.

    KERAS_BACKEND=jax python benchmarks/gpu.py --record
    KERAS_BACKEND=torch python benchmarks/gpu.py --record
    KERAS_BACKEND=jax python benchmarks/gpu.py --record --groups linear models
    KERAS_BACKEND=jax python benchmarks/gpu.py --quick

`--record` keeps the numbers in `benchmarks/results/gpu.json` and makes the page `docs/pages/gpu.md`
of that file, for you to commit. It needs a GPU. Without it, both files are written to `--output`.
What an earlier run with the same settings measured, and this one does not, stays in the file.
`--quick` has tiny sizes, so that the program can be tried on a CPU.

Everything is timed forward and backward, in bfloat16 and in float32. The cases of a length take
turns. The first is the rival: the backend's own attention, which is its flash kernel where it has
one, or the model that is not converted. What does not fit in memory is named. After `--minutes`,
the rest is left out, and the page says so.
"""

import json
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from attentive_graph_filter import core_cases as singular_cases
from dense_attention import core_cases as softmax_cases
from masked_kernel_attention import attend_by
from measure import (
    Parser,
    UsageError,
    add_options,
    make_step,
    median_times,
    memory_of,
    positive,
    run,
    run_child,
    seconds_of,
    start,
)

ROOT = Path(__file__).parents[1]
RECORD, PAGE = ROOT / "benchmarks/results/gpu.json", ROOT / "docs/pages/gpu.md"
GFSA = {f"filter, {path}": f"GFSA, {path}" for path in ("dense", "fused", "blockwise")}
DTYPES = ("bfloat16", "float32")
PROCESSES = 4  # that measure memory at a time
OUT_OF_MEMORY = ("out of memory", "resource_exhausted", "oom when allocating")
GROUPS = {  # in the order of their worth
    "attention": "Attention to all tokens, relative to the backend's attention",
    "linear": "Causal attention of linear cost, relative to the backend's causal attention",
    "models": "A whole step of loss and gradients, relative to the model that is not converted",
    "trees": "Products with tree masks, relative to one pass over the signal (2 x)",
    "fft": "Kernel attention under Toeplitz masks by FFT, relative to the backend's attention",
}
HEAD = """# What a GPU takes

{state}

    KERAS_BACKEND=<backend> python benchmarks/gpu.py --record --lengths 8192 32768

This command measures on one GPU, and makes this page. After `--minutes`, 22 by default, it leaves
out what is left, and names it here. `--groups` measures some of it, and the rest of an earlier run
with the same settings stays. Commit the page and `benchmarks/results/gpu.json`. All numbers
are medians of forward and backward passes that take turns. A ratio above 1 is slower than the
rival. The rival is the backend's own attention, which is its flash kernel where it has one.
"""
NOTHING = """**No GPU numbers are on record yet.** Nobody has run this command on a device so far.
All speeds on the other pages come from CPUs. [Devices](devices.md) says what compiles for which
device."""


TINY = (
    "The sizes are tiny, also those of the models: the program was tried, nothing was measured.\n"
)


def flash(causal):
    """The backend's own attention; on a GPU its flash kernel where it has one."""
    from keras import ops

    return lambda q, k, v: ops.dot_product_attention(q, k, v, is_causal=causal)


def kernel_attention(mask, length, options, path):
    mask.build((None, length, options.heads, options.key_dim))
    return attend_by(mask, path)


def attention_cases(options, length):
    cases = {"flash attention": flash(False)}
    for name, function in softmax_cases(False).items():
        fits = length <= options.dense_limit or "dense" not in name
        if name in GFSA and fits:
            cases[GFSA[name]] = function
    return with_projections(options, length, cases, "filter core")


def linear_cases(options, length):
    from keras_graphattn.masks import Exponential, GatedDecay

    masks = {"Exponential": Exponential(causal=True), "GatedDecay": GatedDecay()}
    cases = {"causal flash attention": flash(True)}
    for name, mask in masks.items():
        cases[name] = kernel_attention(mask, length, options, "chunked")
    cases["gated delta rule"] = delta_rule
    if has_kernels():
        names = ("Exponential", "GatedDecay", "gated delta rule")
        cases |= {f"{name}, kernel": on_kernels(cases[name]) for name in names}
    return with_projections(options, length, cases, "causal filter core")


def delta_rule(q, k, v):
    """The operator of `GatedDeltaRule`, in float32 as in the layer, with equal gates."""
    from keras import ops

    from keras_graphattn.operators import DeltaRuleOperator

    query, key, x = (ops.cast(signal, "float32") for signal in (q, k, v))
    gates = 0.5 * ops.ones_like(key[..., 0])
    key = ops.normalize(key, axis=-1)
    return ops.cast(DeltaRuleOperator(query, key, -gates, gates)(x), v.dtype)


def has_kernels():
    """Whether `use_kernels` has kernels for this backend and device."""
    from keras_graphattn.operators import use_kernels

    try:
        use_kernels()
    except ValueError:
        return False
    use_kernels(False)
    return True


def on_kernels(function):
    from keras_graphattn.operators import use_kernels

    def call(*signals):
        use_kernels()
        try:
            return function(*signals)
        finally:
            use_kernels(False)

    return call


def fft_cases(options, length):
    from keras_graphattn.masks import Toeplitz

    cases = {"flash attention": flash(False)}
    cases["Toeplitz, FFT"] = kernel_attention(Toeplitz(length), length, options, "fft")
    return with_projections(options, length, cases)


def tree_cases(options, length):
    import keras
    from keras import ops
    from tree_and_graph_masks import tree_of_kind

    from keras_graphattn.masks import Tree

    x = keras.random.normal((1, length, 1, options.key_dim), dtype=options.dtype, seed=0)
    cases = {"2 x": (lambda x: 2.0 * ops.convert_to_tensor(x), [x])}
    for kind in ("balanced", "random"):
        mask = Tree(tree_of_kind(kind, length))
        mask.build((1, length, 1, options.key_dim))
        cases[f"tree, {kind}"] = (mask.apply, [x])
    return cases


def with_projections(options, length, cases, agf=None):
    """The cases with queries, keys and values, and AGF, which has singular values as well."""
    import keras

    shape = (options.batch_size, length, options.heads, options.key_dim)
    signals = [keras.random.normal(shape, dtype=options.dtype, seed=i) for i in range(4)]
    made = {name: (function, signals[:3]) for name, function in cases.items()}
    return made if agf is None else {**made, "AGF": (singular_cases(4)[agf], signals)}


def model_cases(options, length):
    """What makes models of KerasHub, converted and not, as functions of their weights.

    `length` is the number of tokens of the text models.
    """
    import keras
    import keras_hub
    import numpy as np

    import keras_graphattn

    policy = options.dtype if options.dtype == "float32" else f"mixed_{options.dtype}"
    models = keras_hub.models
    generator = np.random.default_rng(0)
    tokens = generator.integers(0, 99, (options.batch_size, length)).astype("int32")
    padding = np.ones_like(tokens)
    text = {"token_ids": tokens, "padding_mask": padding}
    side = 32 if options.quick else 224
    images = generator.random((options.batch_size, side, side, 3)).astype("float32")
    small = options.quick

    def bert():
        widths = (99, 2, 2, 16, 32) if small else (30522, 12, 12, 768, 3072)
        names = ("vocabulary_size", "num_layers", "num_heads", "hidden_dim", "intermediate_dim")
        sizes = dict(zip(names, widths, strict=True))
        model = models.BertBackbone(max_sequence_length=max(512, length), **sizes)
        return model, {**text, "segment_ids": np.zeros_like(tokens)}

    def deit():
        widths = (2, 2, 16, 32) if small else (12, 6, 384, 1536)
        names = ("num_layers", "num_heads", "hidden_dim", "intermediate_dim")
        sizes = dict(zip(names, widths, strict=True))
        shape = images.shape[1:]
        return models.DeiTBackbone(image_shape=shape, patch_size=(16, 16), **sizes), images

    def llama():  # the shape of Llama 3.2 1B
        widths = (99, 2, 2, 16, 32, 1) if small else (128256, 16, 32, 2048, 8192, 8)
        names = (
            *("vocabulary_size", "num_layers", "num_query_heads"),
            *("hidden_dim", "intermediate_dim", "num_key_value_heads"),
        )
        sizes = dict(zip(names, widths, strict=True))
        return models.Llama3Backbone(tie_word_embeddings=True, **sizes), text

    def as_function(make, attention):
        keras.config.set_dtype_policy(policy)
        model, inputs = make()
        if attention is not None:
            keras_graphattn.convert(model, attention)
        keras.config.set_dtype_policy("float32")
        inputs = keras.tree.map_structure(keras.ops.convert_to_tensor, inputs)

        def function(*values):
            pairs = zip(model.trainable_variables, values, strict=True)
            with keras.StatelessScope(state_mapping=list(pairs)):
                outputs = keras.tree.flatten(model(inputs, training=True))
            return outputs[-1]

        return function, [keras.ops.convert_to_tensor(v) for v in model.trainable_variables]

    return {
        f"{name}, {attention or 'not converted'}": (lambda m=m, a=attention: as_function(m, a))
        for name, m in (("BERT-base", bert), ("DeiT-S", deit), ("Llama 1B", llama))
        for attention in (None, "graph_filter")
    }


MAKERS = {
    "attention": attention_cases,
    "linear": linear_cases,
    "fft": fft_cases,
    "trees": tree_cases,
    "models": model_cases,
}


def rival_of(name, names):
    """The first case; of a model, the one that is not converted."""
    model, comma, _ = name.partition(", ")
    plain = f"{model}, not converted"
    return plain if comma and plain in names else next(iter(names))


def is_out_of_memory(message):
    return any(words in message.lower() for words in OUT_OF_MEMORY)


def steps_of(options, cases):
    """The steps that fit in memory."""
    steps = {}
    for name, case in cases.items():
        try:
            case = case() if callable(case) else case
            step = make_step(*case, backward=True, compiled=options.compile)
            step()
        except Exception as error:
            if not is_out_of_memory(str(error)):
                raise
        else:
            steps[name] = step
    return steps


def measured(options, group, length):
    """The rows of one group at one length."""
    cases = MAKERS[group](options, length)
    times = median_times(steps_of(options, cases), options.repeats, options.seconds)
    rows = []
    for name in cases:
        row = {"group": group, "case": name, "length": length, "dtype": options.dtype}
        rival = times.get(rival_of(name, cases))
        if name in times:
            row |= {"ms": times[name], "ratio": times[name] / rival if rival else None}
        rows.append(row)
    return rows


def peaks(options, group, length):
    """Peak memory in MiB of each case, each in a process of its own, some at a time."""

    def peak(name):
        try:
            return memory_of(options, name, length, ("quick",))
        except subprocess.CalledProcessError as error:
            if not is_out_of_memory(error.stderr):
                raise
            return None

    names = list(MAKERS[group](options, length))
    with ThreadPoolExecutor(PROCESSES) as pool:
        idle, *found = pool.map(peak, ["", *(f"{group}|{name}" for name in names)])
    peaks = dict(zip(names, found, strict=True))
    # What found no room beside the others tries again without them.
    peaks |= {name: peak(f"{group}|{name}") for name, found in peaks.items() if found is None}
    return {name: found - idle for name, found in peaks.items() if found is not None}


def child_case(options):
    """The function and arrays of the case `group|name`; none where the name is empty."""
    group, _, name = options.child.partition("|")
    if not name:
        return None
    case = MAKERS[group](options, options.lengths[0])[name]
    return case() if callable(case) else case


def plan(options):
    """What is measured, in order: group, length, dtype."""
    lengths = {
        "attention": options.lengths,
        "linear": options.lengths,
        "models": [options.model_length],
        "trees": [options.nodes],
        "fft": options.lengths,
    }
    return [(g, n, dtype) for g in options.groups for n in lengths[g] for dtype in DTYPES]


def place_of(group, length, dtype):
    """A place in the plan, as the page names it."""
    return f"{group}, n = {length}, {dtype}"


def rendered(record):
    """The page of all runs on record."""
    runs = record["runs"]
    names = ", ".join(f"{r['settings']['device']} ({r['settings']['backend']})" for r in runs)
    state = f"Numbers are on record for: {names}." if runs else NOTHING
    parts = [HEAD.format(state=state)]
    for one in runs:
        settings = one["settings"]
        parts.append(f"\n## {settings['device']}, {settings['backend']}\n\n")
        parts.append(", ".join(f"{key} {value}" for key, value in settings.items()) + "\n")
        parts += ["\n" + TINY] if settings["quick"] else []
        for group, title in GROUPS.items():
            rows = [row for row in one["rows"] if row["group"] == group]
            if rows:
                parts += [f"\n### {title}\n\n", _table(rows), "\n", _losses(rows)]
        if one["left_out"]:
            parts.append(f"\nTime was up before these: {'; '.join(one['left_out'])}.\n")
    return "".join(parts)


def _table(rows):
    cases = list(dict.fromkeys((row["case"], row["dtype"]) for row in rows))
    lengths = sorted({row["length"] for row in rows})
    by_place = {(row["case"], row["dtype"], row["length"]): row for row in rows}
    has_peak = any("peak MiB" in row for row in rows)
    columns = [f"n = {length}" for length in lengths]
    lines = [f"| | {' | '.join(columns)} |", "| --- |" + " --- |" * len(columns)]
    for case, dtype in cases:
        cells = [_cell(by_place.get((case, dtype, length)), has_peak) for length in lengths]
        lines.append(f"| {case}, {dtype} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(row, has_peak):
    if row is None:
        return ""
    if "ms" not in row:
        return "out of memory"
    ratio = f" ({row['ratio']:.2f})" if row["ratio"] is not None else ""
    peak = f", {row['peak MiB']:.0f} MiB" if has_peak and "peak MiB" in row else ""
    return f"{row['ms']:.2f} ms{ratio}{peak}"


def _losses(rows):
    """Where each case is slower than its rival."""
    slower = {}
    for row in rows:
        if (row.get("ratio") or 0.0) > 1.0:
            slower.setdefault(f"{row['case']}, {row['dtype']}", []).append(str(row["length"]))
    if not slower:
        return "No case is slower than its rival.\n"
    lines = [f"* {name}: n = {', '.join(lengths)}\n" for name, lengths in slower.items()]
    return "Slower than the rival:\n\n" + "".join(lines)


def kept(file, run):
    """The record in `file` with this run, joined to an earlier one with the same settings."""
    record = json.loads(file.read_text()) if file.exists() else {"runs": []}
    places = {_place(row) for row in run["rows"]}
    rows, left_out, others = [], [], []
    for earlier in record["runs"]:
        if earlier["settings"] != run["settings"]:
            others.append(earlier)
            continue
        rows += [row for row in earlier["rows"] if _place(row) not in places]
        left_out += earlier["left_out"]
    rows += run["rows"]
    places = {_place(row) for row in rows}
    left_out = dict.fromkeys(one for one in left_out + run["left_out"] if one not in places)
    joined = {"settings": run["settings"], "rows": rows, "left_out": list(left_out)}
    return {"runs": [*others, joined]}


def _place(row):
    return place_of(row["group"], row["length"], row["dtype"])


def parse(arguments=None):
    parser = Parser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--lengths", type=positive, nargs="+", default=[1024, 4096, 16384, 65536])
    add("--dense-limit", type=positive, default=8192, help="longest A that is formed")
    add("--model-length", type=positive, default=512, help="tokens of the text models")
    add("--nodes", type=positive, default=1000000, help="nodes of the trees")
    groups = "what to measure, in this order"
    add("--groups", choices=tuple(GROUPS), nargs="+", default=list(GROUPS), help=groups)
    add("--minutes", type=seconds_of, default=22.0, help="after which the rest is left out")
    add("--record", action="store_true", help="keep the numbers of this GPU in the repository")
    add("--quick", action="store_true", help="tiny sizes, to try the program on a CPU")
    add_options(parser, seconds=4.0)
    options = parser.parse_args(arguments)
    if options.quick and options.child is None:
        options.lengths, options.model_length, options.nodes = [16, 32], 8, 50
        options.heads, options.key_dim, options.dense_limit = 2, 4, 16
        options.repeats, options.seconds = 3, 0.1
    elif options.child is None:
        options.memory = True
    return options


def main():
    # Each process takes the memory that it needs, so that peaks can be measured beside this one.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    options = parse()
    if options.child is not None:
        run_child(options, child_case(options))
        return
    settings = start(options)
    if options.record and settings["device"].lower() in ("cpu", ""):
        raise UsageError("--record needs a GPU: this is a CPU. Leave it out to try the program")
    shown = ("backend", "device", "batch_size", "heads", "key_dim", "compile", "quick")
    settings = {name: settings[name] for name in shown}
    end, rows, left_out = time.monotonic() + 60 * options.minutes, [], []
    options.dtype, at = DTYPES[0], {}
    if options.memory:  # first, while this process leaves the memory of the device free
        at = {"attention": options.lengths[-1] // 4, "models": options.model_length}
    memory = {group: peaks(options, group, at[group]) for group in options.groups if group in at}
    for group, length, dtype in plan(options):
        options.dtype = dtype
        if time.monotonic() > end:
            left_out.append(place_of(group, length, dtype))
            continue
        new = measured(options, group, length)
        for row in new:
            if (length, dtype) == (at.get(group), DTYPES[0]) and row["case"] in memory[group]:
                row["peak MiB"] = memory[group][row["case"]]
        rows += new
        print(_table(new), flush=True)
    found = {"settings": settings, "rows": rows, "left_out": left_out}
    file, page = RECORD, PAGE
    if not options.record:
        file, page = (options.output / path.name for path in (RECORD, PAGE))
    record = kept(file, found)
    file.write_text(json.dumps(record, indent=1) + "\n")
    page.write_text(rendered(record))
    print(f"written: {page}")


if __name__ == "__main__":
    run(main)
