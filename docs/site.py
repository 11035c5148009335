"""All pages of the site and their order.

`python -m docs` writes them to `build/docs`, with the pictures, and `build/mkdocs.yml`, which is
`mkdocs.yml` with their order.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import keras_graphattn
from docs import docstrings, formulas, guides, links, reference
from docs.guides import Printed
from docs.paths import CONFIG, IDENTIFIERS, OUTPUT, OUTPUTS_OF_GUIDES, ROOT

RECIPES = sorted(path.parent.name for path in (ROOT / "recipes").glob("*/README.md"))
TOPICS = (
    *("filters", "masks", "biases", "linear_attention"),
    *("keras_hub", "graphs", "precision", "quantisation", "speed", "scaling"),
)
# Files of the repository that are pages as they stand
FILES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "guides/reach.md": "reach.md",
    "guides/capabilities.md": "capabilities.md",
    "guides/differences_from_keras.md": "differences_from_keras.md",
    **{f"docs/pages/{p.name}": p.name for p in sorted((ROOT / "docs/pages").glob("*.md"))},
    **{f"recipes/{name}/README.md": f"results/{name}.md" for name in RECIPES},
}
HIDDEN = {"index.md": "navigation"} | dict.fromkeys(  # for width
    ("capabilities.md", "reach.md", "formats.md"), "toc"
)
FIRST_IN_SEARCH = "---\nsearch:\n  boost: 4\n---\n\n"
# What pages may link to, but that is no page
COPIED = {
    path.relative_to(ROOT).as_posix(): f"files/{path.relative_to(ROOT).as_posix()}"
    for pattern in ("guides/images/*.png", "recipes/*/results/*.png", "recipes/*/results/*.json")
    for path in sorted(ROOT.glob(pattern))
}


def places() -> dict[str, str]:
    """Where the files of the repository are on the site."""
    scripts = {f"guides/{path.name}": f"guides/{path.stem}.md" for path in guides.all_guides()}
    return {**FILES, **COPIED, **scripts}


def pages(printed: Callable[[guides.Guide], list[Printed]]) -> dict[str, str]:
    """The Markdown of each page, by its path.

    Args:
        printed: Gives what the code blocks of a guide print and draw.
    """
    texts = {}
    where = places()
    for file, page in FILES.items():
        texts[page] = links.moved((ROOT / file).read_text(), file, page, where)
    for page, side in HIDDEN.items():
        texts[page] = f"---\nhide: [{side}]\n---\n\n{texts[page]}"
    for path in guides.all_guides():
        guide = guides.read(path)
        page = f"guides/{guide.name}.md"
        text = guides.page(_with_moved_links(guide, page, where), printed(guide))
        texts[page] = FIRST_IN_SEARCH + text
    texts["guides/index.md"] = _list_of_guides()
    texts["results/index.md"] = _list_of_results()
    texts["api/index.md"] = reference.index()
    for package in reference.PACKAGES:
        if package in reference.PAGE_EACH:
            texts[f"{package}/index.md"] = reference.list_of_package(package)
            for name in reference.names_of(package):
                texts[f"{package}/{name}.md"] = _page_of_class(package, name)
        else:
            texts[f"api/{package}.md"] = reference.page_of_package(package)
    return {page: formulas.set_in_page(text) for page, text in texts.items()}


def _with_moved_links(guide: guides.Guide, page: str, where: dict[str, str]) -> guides.Guide:
    blocks = [
        block._replace(source=links.moved(block.source, f"guides/{guide.name}.py", page, where))
        if block.kind == "text"
        else block
        for block in guide.blocks
    ]
    return guide._replace(blocks=blocks)


def _list_of_guides() -> str:
    rows = [
        "# Guides",
        "Each guide runs in less than a minute on a CPU, and is a test of the package.",
    ]
    for path in guides.all_guides():
        header = guides.read(path).header
        rows.append(f"**[{header['Title']}]({path.stem}.md)**  \n{header['Description']}")
    return "\n\n".join(rows) + "\n"


def _list_of_results() -> str:
    rows = [
        "# Results",
        "One page for each recipe: its commands, its results, and what was not run yet.",
    ]
    for name in RECIPES:
        title = (ROOT / "recipes" / name / "README.md").read_text().splitlines()[0].lstrip("# ")
        rows.append(f"- [{title}]({name}.md)")
    return "\n\n".join(rows[:2]) + "\n\n" + "\n".join(rows[2:]) + "\n"


def _page_of_class(package: str, name: str) -> str:
    """The page of a layer or a mask: an example, its matrix, its docstring, guides."""
    from docs import pictures

    public = getattr(getattr(keras_graphattn, package), name)
    imported = f"```pycon\n>>> from keras_graphattn.{package} import {name}"
    parts = [f"# {name}", docstrings.example(public.__doc__).replace("```pycon", imported, 1)]
    if (package, name) != ("masks", "Mask"):
        shown = pictures.MASKS[name][2] if package == "masks" else pictures.LAYERS
        caption = f"The matrix of `{name}`" + (f": {shown}." if shown else ".")
        parts.append(f"![{caption.replace('`', '')}]({name}.png)\n\n*{caption}*")
    parts.append(f"::: keras_graphattn.{package}.{name}")
    parts.append(f"[What `{name}` can do](../capabilities.md)")
    using = [p for p in guides.all_guides() if f"{name}(" in p.read_text()]
    if using:
        rows = [f"- [{guides.read(p).header['Title']}](../guides/{p.stem}.md)" for p in using]
        parts.append("## Guides that use it\n\n" + "\n".join(rows))
    return "\n\n".join(parts) + "\n"


def navigation() -> list:
    """The order of the pages, as MkDocs takes it. Every guide and every name has its place."""
    of_recipes = [{name.replace("_", " ").capitalize(): f"results/{name}.md"} for name in RECIPES]
    packages: list = [{"Every public name": "api/index.md"}]
    for package, title in reference.PACKAGES.items():
        if package in reference.PAGE_EACH:
            each = [{name: f"{package}/{name}.md"} for name in reference.names_of(package)]
            packages.append({title: [f"{package}/index.md", *each]})
        else:
            packages.append({title: f"api/{package}.md"})
    of_guides = [
        {guides.read(path).header["Title"]: f"guides/{path.stem}.md"}
        for path in guides.all_guides()
    ]
    return [
        {"Home": "index.md"},
        {"Which layer": "choose.md"},
        {"Guides": ["guides/index.md", *of_guides]},
        {"Topics": [f"{topic}.md" for topic in TOPICS]},
        {
            "Tables": [
                {"What layers, masks and biases can do": "capabilities.md"},
                {"What convert reaches": "reach.md"},
                {"What Model.export writes": "formats.md"},
                "devices.md",
                "gpu.md",
                "differences_from_keras.md",
                "comparison.md",
            ]
        },
        {"Results": ["results.md", "results/index.md", *of_recipes]},
        {"Reference": packages},
        {"Errors": "troubleshooting.md"},
        {"Project": ["stability.md", "security.md", "contributing.md", "changelog.md"]},
    ]


def write() -> None:
    """Writes the pages, the pictures, the files that they link to, and the configuration."""
    from docs import pictures
    from docs.run_guide import outputs_of

    kept = OUTPUTS_OF_GUIDES
    shutil.rmtree(OUTPUT, ignore_errors=True)

    def printed(guide: guides.Guide) -> list[Printed]:
        print(f"guide: {guide.name}", flush=True)
        return outputs_of(guide, kept / guide.name)

    for path, text in pages(printed).items():
        _write(OUTPUT / path, text)
    print("pictures of layers and masks", flush=True)
    for path in guides.all_guides():
        guide, folder = guides.read(path), kept / path.stem
        text = guides.notebook(guide, outputs_of(guide, folder), folder)  # kept, so not run again
        _write(OUTPUT / "guides" / f"{path.stem}.ipynb", text)
        shutil.copy(path, OUTPUT / "guides" / path.name)
        for picture in (kept / path.stem).rglob("*.png"):
            _copy(picture, OUTPUT / "guides" / picture.relative_to(kept / path.stem))
    for file, place in COPIED.items():
        _copy(ROOT / file, OUTPUT / place)
    shutil.copytree(ROOT / "docs" / "theme", OUTPUT / "theme")
    for name in reference.names_of("layers"):
        pictures.draw(pictures.layer_matrices(name), OUTPUT / "layers" / f"{name}.png")
    for name in reference.names_of("masks"):
        if name != "Mask":
            matrix = {name: pictures.mask_matrix(name)}
            pictures.draw(matrix, OUTPUT / "masks" / f"{name}.png")
    _write(IDENTIFIERS, json.dumps(reference.class_identifiers(), indent=1))
    config = {"INHERIT": "../mkdocs.yml", "docs_dir": "docs", "site_dir": "../site"}
    _write(CONFIG, json.dumps({**config, "nav": navigation()}, indent=1))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
