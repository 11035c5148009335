"""Writes `docs/pages/quantisation.md`: `python -m tests.layers.quantisation_table`.

The errors are kept in `guides/quantisation.json`, so that one backend can be measured again without
the others. `--backends` with no name only writes the page again.
"""

import argparse
import json
import os
import subprocess
import sys
from importlib.metadata import version

from tests.hub.reach_table import BACKENDS, COMPILING, LETTERS, ROOT

ERRORS = ROOT / "guides/quantisation.json"
PAGE = ROOT / "docs/pages/quantisation.md"
TEXT = ROOT / "tests/layers/quantisation_page.md"


def measured(backend):
    """What `tests.layers.quantisation` prints on one backend."""
    environment = {**os.environ, **COMPILING, "KERAS_BACKEND": backend}
    command = [sys.executable, "-m", "tests.layers.quantisation"]
    ran = subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE)
    return json.loads(ran.stdout.decode().splitlines()[-1])


def rendered(kept):
    """The Markdown of what is kept."""
    from tests.layers.quantisation import DELTA_NET, LIMIT, MODES, OWN, ROWS, STOCK, ratios

    backends = list(kept["keras"])
    ran_on = ", ".join(
        f"{LETTERS[backend]} (Keras {kept['keras'][backend]})" for backend in backends
    )
    lines = [f"| | {' | '.join(MODES)} |", "| --- |" + " --- |" * len(MODES)]
    for name in ROWS:
        cells = []
        for mode in MODES:
            measured = [kept["errors"][backend][mode] for backend in backends]
            ratio = max(ratios(errors)[name] for errors in measured)
            cells.append(f"{ratio:.2f} ({max(errors[name] for errors in measured):.3f})")
        lines.append(f"| {' | '.join([name, *cells])} |")
    by_mode = [errors for of_backend in kept["errors"].values() for errors in of_backend.values()]
    times = [errors[name] / errors[STOCK] for errors in by_mode for name in OWN]
    return TEXT.read_text().format(
        ran_on=ran_on,
        backends=" ".join(backends),
        table="\n".join(lines),
        limit=LIMIT,
        stock=STOCK,
        delta_net=DELTA_NET,
        times=f"{min(times):.1f} to {max(times):.1f}",
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--backends", nargs="*", choices=BACKENDS, default=list(BACKENDS))
    kept = json.loads(ERRORS.read_text()) if ERRORS.exists() else {"keras": {}, "errors": {}}
    for backend in parser.parse_args().backends:
        kept["errors"][backend] = measured(backend)
        kept["keras"][backend] = version("keras")
        ERRORS.write_text(json.dumps(kept, indent=1) + "\n")
    PAGE.write_text(rendered(kept))


if __name__ == "__main__":
    main()
