"""The site: each public name and each guide has its place, and each link leads somewhere."""

import posixpath
import re

import pytest

import keras_graphattn
from docs import guides, links, reference, site
from docs.paths import ROOT

SOURCES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/pages/*.md", "guides/*.md", "guides/*.py", "recipes/*/README.md")
    for path in ROOT.glob(pattern)
)


@pytest.fixture(scope="module")
def pages():
    return site.pages(lambda guide: [guides.Printed()] * len(guide.blocks))


def test_every_public_name_is_in_the_reference(pages):
    for name, place in reference.places().items():
        assert place.page in pages, name
        assert not place.identifier or f"\n::: {place.identifier}\n" in pages[place.page], name
        short = name.rpartition(".")[2]
        anchor = f"#{place.identifier}" if place.identifier else ""
        assert f"| [`{short}`](../{place.page}{anchor}) |" in pages["api/index.md"]


def test_every_name_in_all_is_a_public_name():
    for name in keras_graphattn.__all__:
        assert f"keras_graphattn.{name}" in reference.places()
        for inner in getattr(getattr(keras_graphattn, name), "__all__", ()):
            assert f"keras_graphattn.{name}.{inner}" in reference.places()


def pages_of(entry):
    if isinstance(entry, str):
        return [entry]
    inner = entry.values() if isinstance(entry, dict) else entry
    return [page for value in inner for page in pages_of(value)]


def test_every_page_is_in_the_navigation_once(pages):
    assert sorted(pages_of(site.navigation())) == sorted(pages)


def test_every_guide_and_recipe_has_a_page(pages):
    for path in (ROOT / "guides").glob("*.py"):
        assert f"guides/{path.stem}.md" in pages
        assert f"]({path.stem}.md)**" in pages["guides/index.md"]
    for path in (ROOT / "recipes").glob("*/README.md"):
        assert f"results/{path.parent.name}.md" in pages


@pytest.mark.parametrize("source", SOURCES)
def test_every_link_in_the_repository_leads_to_a_file(source):
    for target in links.targets((ROOT / source).read_text()):
        if target.startswith("#") or links.is_relative(target):
            file, anchor = links.file_of(target, source)
            assert (ROOT / file).exists(), f"{source}: {target}"
            if anchor:
                assert anchor[1:] in anchors((ROOT / file).read_text()), f"{source}: {target}"


def anchors(text):
    """The anchors of the headings of a Markdown file."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M), re.M)
    return [re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles]


def test_every_link_on_the_site_leads_to_a_page_or_a_file(pages):
    names = {f"{p}/{n}.png" for p in ("layers", "masks") for n in reference.names_of(p)}
    scripts = {f"guides/{p.stem}{end}" for p in guides.all_guides() for end in (".py", ".ipynb")}
    files = {*pages, *site.COPIED.values(), *names, *scripts}
    for page, text in pages.items():
        for target in links.targets(text):
            if links.is_relative(target):
                assert links.file_of(target, page)[0] in files, f"{page}: {target}"


def test_links_move_with_their_page():
    text = "[a](../b/c.md#d) ![e](f.png) [g](https://h.i) [j](#k)\n```\n[a](x.md)\n```\n"
    places = {"b/c.md": "c.md", "a/f.png": "files/f.png"}
    moved = links.moved(text, "a/README.md", "results/a.md", places)
    assert moved == text.replace("../b/c.md", "../c.md").replace("f.png", "../files/f.png")
    with pytest.raises(ValueError, match="no place on the site"):
        links.moved("[a](z.md)", "a/README.md", "a.md", places)


def test_files_that_pages_link_to_are_there():
    for file, place in site.COPIED.items():
        assert (ROOT / file).is_file()
        assert not posixpath.isabs(place)
