"""What the site takes from the package: docstrings, pictures of matrices."""

import inspect
import re

import numpy as np
import pytest
from latex2mathml.converter import convert

from docs import docstrings, findings, formulas, pictures, reference
from docs.paths import ROOT
from keras_graphattn import layers, masks
from keras_graphattn.feature_maps import FEATURE_MAPS
from keras_graphattn.filters import FILTERS

DOCSTRING = """A title with `Tree`.

    A formula, O(n^2):

        H = w_0 I

    Args:
        one, two: Something
            longer with `Tree`.
        **kwargs: More.

    Returns:
        A tensor.

    Raises:
        ValueError: For this.

    Example:

    >>> f(1)
    `Tree`
    >>> f(2)
    2

    >>> f(3)

    Source: A paper.
    """
FORMULAS = '<div class="formula">.*?</div>'
MARKDOWN = """A title with [`Tree`][masks.Tree].

A formula, COST:

<div class="formula">
FORMULA
</div>

**Arguments**

- `one`, `two`: Something
    longer with [`Tree`][masks.Tree].
- `**kwargs`: More.

**Returns**

A tensor.

**Raises**

- `ValueError`: For this.

**Example**

```pycon
>>> f(1)
`Tree`
>>> f(2)
2
```

```pycon
>>> f(3)
```

**Source:** A paper.
"""


def test_a_docstring_becomes_markdown():
    expected = MARKDOWN.replace("FORMULA", convert("H = w_{0} I"))
    expected = expected.replace("COST", convert("O(n^{2})"))
    assert docstrings.markdown(DOCSTRING, {"Tree": "masks.Tree"}) == expected
    assert docstrings.example(DOCSTRING) == "```pycon\n>>> f(1)\n`Tree`\n>>> f(2)\n2\n```"


def test_each_formula_of_a_docstring_is_set():
    texts = [inspect.getdoc(reference._object(name)) or "" for name in reference.places()]
    blocks = [b for t in texts for b in re.findall(FORMULAS, docstrings.markdown(t), re.DOTALL)]
    assert len(blocks) > 10
    for block in blocks:
        shown = re.sub(r"<[^>]*>|walk_length", "", block)
        assert not re.search(r"[\\^_*@`]|\b(sum|phi|theta)\b", shown), shown
    assert formulas.latex("A_ij^-1 = sum_j exp(w_low)^((p - 2) / 2) two words o M") == (
        r"A_{ij}^{-1} = \sum _j \operatorname{exp}(w_{\text{low}})^{(p - 2) / 2}"
        r" \text{ two words } \odot  M"
    )


def test_dollars_outside_of_code_are_formulas():
    text = "a $w_0$ b\n\n    $x$\n```\n$y$ $z$\n```\n`$u$` | $v$ |\n"
    expected = text.replace("$w_0$", convert("w_0")).replace("$v$", convert("v"))
    assert formulas.set_in_page(text) == expected


@pytest.mark.parametrize("name", layers.__all__)
def test_every_layer_has_its_matrix(name):
    matrices = pictures.layer_matrices(name)
    assert all(np.isfinite(m).all() and m.shape[1] == pictures.LENGTH for m in matrices.values())
    for title, matrix in matrices.items():
        if title.startswith("A") and not title.startswith("A'"):
            np.testing.assert_allclose(matrix.sum(axis=1), 1.0, atol=1e-5)


def test_the_matrix_of_a_filter_is_the_filter_of_the_matrix():
    plain, filtered = pictures.layer_matrices("GraphFilterAttention").values()
    powers = np.stack([np.eye(24), plain, plain @ plain])
    coefficients = np.linalg.lstsq(powers.reshape(3, -1).T, filtered.ravel(), rcond=None)[0]
    expected = np.tensordot(coefficients, powers, 1)
    np.testing.assert_allclose(filtered, expected, atol=1e-5)
    assert coefficients[0] > 0 > coefficients[1]  # a high pass


@pytest.mark.parametrize("name", masks.__all__)
def test_every_mask_has_its_matrix(name):
    assert set(pictures.MASKS) == set(masks.__all__)
    matrix = pictures.mask_matrix(name)
    if name == "Mask":
        assert matrix is None
        return
    assert matrix.shape in [(24, 24), (16, 16)]
    assert np.isfinite(matrix).all()
    if name == "Causal":
        np.testing.assert_array_equal(matrix, np.tri(24))


def test_pictures_are_drawn_and_a_layer_without_one_is_told(tmp_path):
    pictures.draw({"a": np.eye(3), "b": -np.eye(3)}, tmp_path / "folder" / "a.png")
    assert (tmp_path / "folder" / "a.png").stat().st_size > 1000
    with pytest.raises(ValueError, match="no picture for the layer Other"):
        pictures.layer_matrices("Other")


def test_every_layer_and_mask_is_in_the_tables_of_cost_and_of_abilities():
    abilities = (ROOT / "guides/capabilities.md").read_text()
    costs = (ROOT / "README.md").read_text(), (ROOT / "docs/pages/masks.md").read_text()
    for names, cost in zip((layers.__all__, masks.__all__), costs, strict=True):
        for name in set(names) - {"Mask"}:
            assert re.search(rf"^\|.*`{name}`", cost, re.M), name
            assert re.search(rf"^\| `{name}`", abilities, re.M), name


def test_every_filter_and_feature_map_is_in_its_page():
    filters, maps = ((ROOT / f"docs/pages/{page}.md").read_text() for page in ("filters", "masks"))
    for name, kind in FILTERS.items():
        assert re.search(rf'^\|.*`"{name}"`.*`{kind.__name__}`', filters, re.M), name
    assert [name for name in FEATURE_MAPS if f'"{name}"`' not in maps] == []


def test_the_readme_says_what_its_picture_shows(tmp_path):
    readme = " ".join((ROOT / "README.md").read_text().split())
    shares = {label: by_length[4096] for label, by_length in findings.shares().items()}
    filtered, kernel = (shares[n] for n in ("AttentiveGraphFilter", "MaskedKernelAttention"))
    assert f"`AttentiveGraphFilter` needs {100 * filtered:.0f} % and" in readme
    assert f"`MaskedKernelAttention` {100 * kernel:.0f} % of the time of Keras' layer" in readme
    accuracies = findings.accuracies().values()
    softmax, gat, gkat = (f"{mean:.3f} ± {spread:.3f}" for mean, spread in accuracies)
    assert f"| {softmax.split()[0]} | GKAT {gkat} (GAT {gat}) |" in readme
    findings.draw(tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000
