"""Runs a guide block by block: `python -m docs.run_guide guides/first_steps.py output/folder`.

`outputs.json` in that folder has what each code block printed and drew, next to the pictures.
`outputs_of` runs a guide in a process of its own, and keeps what it gave until the guide or the
package changes.
"""

import contextlib
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

from docs.guides import Guide, Printed, environment, read
from docs.paths import GUIDES, ROOT

KEPT = "outputs.json"


def run(path: Path, folder: Path) -> list[Printed]:
    """What each code block printed and drew; all of them run in one module, `__main__`."""
    module = types.ModuleType("__main__")
    module.__file__ = str(path)
    sys.modules["__main__"], sys.argv = module, [str(path)]
    os.environ["GUIDE_OUTPUT"] = str(folder)
    outputs, drawn = [], set()
    for block in read(path).blocks:
        if block.kind != "code":
            continue
        program = compile("\n" * (block.line - 1) + block.source, str(path), "exec")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(program, vars(module))
        new = sorted(set(folder.rglob("*.png")) - drawn, key=lambda p: p.stat().st_mtime_ns)
        drawn |= set(new)
        pictures = tuple(picture.relative_to(folder).as_posix() for picture in new)
        outputs.append(Printed(_shown(printed.getvalue()), pictures))
    return outputs


def _shown(text: str) -> str:
    """The printed lines, without those that say where a picture is: the page shows it."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("picture: "))


def outputs_of(guide: Guide, folder: Path) -> list[Printed]:
    """The outputs of a guide, of an earlier run if nothing has changed since.

    Raises:
        RuntimeError: If the guide fails.
    """
    state, kept = _state(guide), folder / KEPT
    if kept.exists():
        earlier = json.loads(kept.read_text())
        if earlier["state"] == state:
            return [Printed(text, tuple(pictures)) for text, pictures in earlier["printed"]]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "docs.run_guide", f"guides/{guide.name}.py", str(folder)]
    ran = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment(guide)}, capture_output=True, text=True
    )
    if ran.returncode != 0:
        raise RuntimeError(f"The guide {guide.name} fails:\n{ran.stderr[-4000:]}")
    printed = json.loads(kept.read_text())
    kept.write_text(json.dumps({"state": state, "printed": printed}, indent=1))
    return [Printed(text, tuple(pictures)) for text, pictures in printed]


def _state(guide: Guide) -> str:
    """Changes with the guide, with its files and with the package."""
    files = [GUIDES / f"{guide.name}.py", *(GUIDES / guide.name).rglob("*.py")]
    digest = hashlib.sha256()
    for path in sorted(files) + sorted((ROOT / "keras_graphattn").rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    script, output = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    outputs = run(script, output)
    (output / KEPT).write_text(json.dumps([list(each) for each in outputs]))
