"""Time and peak memory of functions of arrays, on any backend, device and compile mode.

Times are medians of runs that take turns, so that a busy machine slows all cases alike. Peak
memory is that of a process of its own for each case, less that of a process that does nothing.
"""

import argparse
import json
import math
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # where `recipes` is, which nobody installs

from recipes.common.command.parsing import (  # some only for the benchmarks
    Parser,  # noqa: F401
    UsageError,
    at_least,
    number_in,
    run_command,
    run_program,
)

RESULTS = Path(__file__).parents[1] / "results" / "benchmarks"  # which git ignores
KEEP_PAGES = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000"}
RETURN_PAGES = {"MALLOC_MMAP_THRESHOLD_": "65536"}


INTERRUPTED = "interrupted: results are written at the end, so nothing was written"
positive = at_least(1)
seconds_of = number_in(0.0, math.inf)


def run(main):
    """Runs a benchmark as a program: Ctrl-C and wrong options are one line each."""
    run_program(lambda: run_command(lambda _: main(), None), INTERRUPTED)


def check_folder(options):
    """Makes the folder of the results before anything is measured."""
    try:
        options.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write to --output {options.output}: {error.strerror}") from error


def keep_pages():
    """Starts the program again with an allocator that keeps its pages (glibc, once).

    Page faults of large temporaries else drown what is to be measured on a CPU.
    """
    if sys.platform.startswith("linux") and os.environ.get("MALLOC_MMAP_MAX_") != "0":
        os.environ.update(KEEP_PAGES, TF_CPP_MIN_LOG_LEVEL="3")
        os.execv(sys.executable, [sys.executable, *sys.argv])


def device_name():
    import keras

    if keras.backend.backend() == "jax":
        import jax

        return jax.devices()[0].device_kind.replace(" ", "_")
    if keras.backend.backend() == "torch":
        import torch

        return torch.cuda.get_device_name().replace(" ", "_") if _torch_cuda() else "cpu"
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return "cpu"
    return tf.config.experimental.get_device_details(gpus[0])["device_name"].replace(" ", "_")


def make_step(function, arrays, *, backward, compiled):
    """A callable without arguments that runs `function(*arrays)` to its end.

    With `backward`, also the gradients of its mean square for all arrays. `compiled` is
    `"eager"`, `"graph"` (tf.function, torch.compile, jax.jit) or `"xla"` (TensorFlow and jax).
    """
    import keras

    makers = {"jax": _jax_step, "tensorflow": _tensorflow_step, "torch": _torch_step}
    return makers[keras.backend.backend()](function, arrays, backward, compiled)


def _mean_square(function, arrays):
    from keras import ops

    return ops.mean(ops.square(ops.cast(function(*arrays), "float32")))


def _jax_step(function, arrays, backward, compiled):
    import jax

    step = function
    if backward:
        step = jax.grad(lambda *a: _mean_square(function, a), tuple(range(len(arrays))))
    step = step if compiled == "eager" else jax.jit(step)
    return lambda: jax.block_until_ready(step(*arrays))


def _tensorflow_step(function, arrays, backward, compiled):
    import tensorflow as tf

    def gradients(*arrays):
        with tf.GradientTape() as tape:
            tape.watch(arrays)
            loss = _mean_square(function, arrays)
        return tape.gradient(loss, arrays)

    step = gradients if backward else function
    if compiled != "eager":
        step = tf.function(step, jit_compile=compiled == "xla")

    def run():
        for result in tf.nest.flatten(step(*arrays)):
            if result is not None:
                result[..., :1].numpy()

    return run


def _torch_step(function, arrays, backward, compiled):
    import torch

    arrays = [a.detach().clone().requires_grad_(backward) for a in arrays]
    function = function if compiled == "eager" else torch.compile(function)

    def run():
        with torch.set_grad_enabled(backward):
            if backward:
                torch.autograd.grad(_mean_square(function, arrays), arrays, allow_unused=True)
            else:
                function(*arrays)
        if _torch_cuda():
            torch.cuda.synchronize()

    return run


def _torch_cuda():
    import torch

    return torch.cuda.is_available()


def add_output(parser):
    """The option of all benchmarks that write something."""
    folder = "folder to write to [results/benchmarks]"
    parser.add_argument("--output", type=Path, default=RESULTS, help=folder)


def add_options(parser, seconds, repeats=15):
    """The options of all benchmarks of attention."""
    add = parser.add_argument
    add("--batch-size", type=positive, default=1)
    add("--heads", type=positive, default=8)
    add("--key-dim", type=positive, default=64, help="width of each head")
    add("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    add("--compile", choices=["eager", "graph", "xla"], help="[eager on torch, else graph]")
    add("--repeats", type=positive, default=repeats)
    add("--seconds", type=seconds_of, default=seconds, help="for the cases that take turns")
    add("--memory", action="store_true", help="measure peak memory too (slow)")
    add_output(parser)
    add("--child", help=argparse.SUPPRESS)


def start(options):
    """Keeps pages, chooses how to compile, and tells the settings of the run."""
    keep_pages()
    check_folder(options)
    import keras

    backend = keras.backend.backend()
    if options.compile is None:
        options.compile = "eager" if backend == "torch" else "graph"
    if options.compile == "xla" and backend == "torch":
        raise UsageError("--compile xla: torch has no XLA here; use --compile graph")
    left_out = ("child", "output", "lengths", "grids", "masks")
    settings = {name: value for name, value in vars(options).items() if name not in left_out}
    return {"backend": backend, "device": device_name(), **settings}


def run_child(options, case):
    """Runs one case, a function and its arrays, forward and backward; prints the peak memory."""
    if case is not None:
        make_step(*case, backward=True, compiled=options.compile)()
    print(json.dumps({"peak": peak_memory()}))


def memory_of(options, name, length, keys=()):
    """Peak memory in MiB of a process that runs only the case `name`; of no case if it is ""."""
    arguments = ["--child", name, "--lengths", str(length)]
    for key in ("batch_size", "heads", "key_dim", "dtype", "compile", *keys):
        value, flag = getattr(options, key), f"--{key.replace('_', '-')}"
        if isinstance(value, bool):
            arguments += [flag] * value
        else:
            arguments += [flag, str(value)]
    return peak_memory_of(arguments)


def times_in_turns(steps, repeats, seconds):
    """Milliseconds of each step by name, the steps taking turns.

    The order changes from turn to turn: what ran before leaves caches and memory in its own state.
    """
    times = {name: [] for name in steps}
    order, shuffled = list(steps.items()), random.Random(0)
    for step in steps.values():
        step()
        step()
    end = time.perf_counter() + seconds
    for turn in range(repeats):
        if turn >= 3 and time.perf_counter() > end:
            break
        shuffled.shuffle(order)
        for name, step in order:
            start = time.perf_counter()
            step()
            times[name].append(1e3 * (time.perf_counter() - start))
    return times


def median_times(steps, repeats, seconds):
    """The medians of `times_in_turns`."""
    times = times_in_turns(steps, repeats, seconds)
    return {name: statistics.median(values) for name, values in times.items()}


def ratios_to_first(medians):
    """Each median as a multiple of the first one's: what can be quoted of a noisy machine."""
    first = next(iter(medians.values()))
    return {name: value / first for name, value in medians.items()}


def peak_memory():
    """Peak memory of this process so far in MiB: the device's, or all of it on a CPU."""
    import keras

    if keras.backend.backend() == "jax":
        import jax

        statistics_of_device = jax.devices()[0].memory_stats() or {}
        if "peak_bytes_in_use" in statistics_of_device:
            return statistics_of_device["peak_bytes_in_use"] / 2**20
    elif keras.backend.backend() == "torch" and _torch_cuda():
        import torch

        return torch.cuda.max_memory_allocated() / 2**20
    elif keras.backend.backend() == "tensorflow" and device_name() != "cpu":
        import tensorflow as tf

        return tf.config.experimental.get_memory_info("GPU:0")["peak"] / 2**20
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count the memory of the program that started this one
        line = next(x for x in status.read_text().splitlines() if x.startswith("VmHWM"))
        return int(line.split()[1]) / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def peak_memory_of(arguments):
    """Peak memory in MiB that the program reports when it is started with `arguments`.

    There every large tensor is given back to the system when it is freed, so that the number is
    what was alive. In glibc's heap, small results land in the holes of large temporaries, and
    the next temporary no longer fits.
    """
    environment = {name: x for name, x in os.environ.items() if name not in KEEP_PAGES}
    output = subprocess.run(
        [sys.executable, sys.argv[0], *arguments],
        check=True,
        capture_output=True,
        text=True,
        env={**environment, **RETURN_PAGES},
    ).stdout
    return json.loads(output.strip().splitlines()[-1])["peak"]


def write_results(folder, stem, settings, rows):
    """`stem`.json and `stem`.md, and `stem`.png where matplotlib is installed."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"settings": settings, "rows": rows}, indent=1) + "\n"
    (folder / f"{stem}.json").write_text(text)
    (folder / f"{stem}.md").write_text(table(rows, settings))
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        return
    columns = [name for name in rows[0] if name not in ("case", "length")]
    figure, axes = plt.subplots(1, len(columns), figsize=(5 * len(columns), 4), squeeze=False)
    for axis, column in zip(axes[0], columns, strict=True):
        for case in dict.fromkeys(row["case"] for row in rows):
            points = [(r["length"], r[column]) for r in rows if r["case"] == case]
            axis.plot(*zip(*points, strict=True), marker="o", markersize=3, label=case)
        axis.set(title=column, xlabel="length n", xscale="log", yscale="symlog")
    axes[0][0].legend(fontsize=6)
    figure.suptitle(", ".join(f"{key} {value}" for key, value in settings.items()), fontsize=7)
    figure.tight_layout()
    figure.savefig(folder / f"{stem}.png", dpi=120)


def table(rows, settings):
    columns = list(rows[0])
    lines = [", ".join(f"{key} {value}" for key, value in settings.items()), ""]
    lines.append("| " + " | ".join(columns) + " |")
    lines.append("|" + " --- |" * len(columns))
    for row in rows:
        cells = [
            f"{value:.2f}" if isinstance(value, float) else str(value) for value in row.values()
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
