"""Speed of attention under Toeplitz masks: the default path beside dense, rows in blocks and FFT.

    KERAS_BACKEND=torch python benchmarks/toeplitz_masks.py --lengths 256 1024 4096 16384
    KERAS_BACKEND=jax python benchmarks/toeplitz_masks.py --grids 14 32 64
    KERAS_BACKEND=jax python benchmarks/toeplitz_masks.py --grids 128 256 --no-rows

Forward and backward, gradients for features, signal and factors. The paths take turns; "auto"
stands beside the faster of "blockwise" and "fft". Paths longer than `--skip` seconds are left out.
"""

import time

from measure import (
    Parser,
    add_output,
    make_step,
    median_times,
    positive,
    run,
    start,
    table,
    write_results,
)


def attend_by(mask, path):
    """Attention under the mask as a function of features, signal and the mask's weights."""
    import keras

    def function(query, key, x, log_factors):
        with keras.StatelessScope(state_mapping=[(mask.log_factors, log_factors)]):
            return mask.attend(query, key, x, path)

    return function


def masks_of(options):
    from keras_graphattn.masks import BlockToeplitz, Toeplitz

    for length in options.lengths:
        yield f"n = {length}", length, Toeplitz(length, causal=options.causal)
    for side in options.grids:
        yield f"{side} x {side}", side * side, BlockToeplitz((side, side))


def measured(options, mask, length):
    """Milliseconds of each path that is not too slow."""
    import keras

    mask.build((None, length, options.heads, options.columns))
    shape = (options.batch_size, length, options.heads)
    features = [keras.random.uniform((*shape, options.features), seed=i) for i in (0, 1)]
    signal = keras.random.normal((*shape, options.columns), seed=2)
    factors = 0.3 * keras.random.normal(mask.log_factors.shape, seed=3)
    arrays = [*features, signal, factors]
    paths = ["fft"] if options.no_rows else ["blockwise", "fft"]
    if length <= 2048 and not options.no_rows:
        paths.append("dense")
    steps = {}
    for path in (*paths, "auto"):
        step = make_step(attend_by(mask, path), arrays, backward=True, compiled=options.compile)
        step()
        start = time.perf_counter()
        step()
        if time.perf_counter() - start < options.skip:
            steps[path] = step
    return median_times(steps, options.repeats, options.seconds)


def parse(arguments=None):
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=positive, nargs="*", default=[])
    parser.add_argument("--grids", type=positive, nargs="*", default=[])
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--batch-size", type=positive, default=1)
    parser.add_argument("--heads", type=positive, default=2)
    parser.add_argument("--columns", type=positive, default=32, help="columns of the signal")
    parser.add_argument("--features", type=positive, default=32)
    parser.add_argument(
        "--compile", choices=["eager", "graph", "xla"], help="[eager on torch, else graph]"
    )
    parser.add_argument("--repeats", type=positive, default=51)
    parser.add_argument("--seconds", type=float, default=12.0, help="for one length")
    parser.add_argument("--skip", type=float, default=10.0, help="seconds a path may take")
    parser.add_argument("--no-rows", action="store_true", help="leave quadratic paths out")
    add_output(parser)
    options = parser.parse_args(arguments)
    if not options.lengths and not options.grids:
        parser.error("give --lengths or --grids")
    return options


def main():
    options = parse()
    settings, rows = start(options), []
    for name, length, mask in masks_of(options):
        times = measured(options, mask, length)
        best = min((t for path, t in times.items() if path in ("blockwise", "fft")), default=1.0)
        chosen = mask.choose_path(length, options.features, options.columns)
        new = [
            {
                "case": path,
                "mask": name,
                "length": length,
                "ms": value,
                "ratio to the better": value / best,
                "auto takes": chosen,
            }
            for path, value in times.items()
        ]
        rows += new
        print(table(new, settings), flush=True)
    kind = "grids" if options.grids else "causal" if options.causal else "lengths"
    numbers = [{k: v for k, v in r.items() if k not in ("mask", "auto takes")} for r in rows]
    stem = f"toeplitz_masks_{settings['backend']}_{settings['device']}_{options.compile}_{kind}"
    write_results(options.output, stem, settings, numbers)


if __name__ == "__main__":
    run(main)
