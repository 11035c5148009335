"""Every example in a public docstring runs and prints the stated output."""

import doctest
import importlib
import pkgutil

import keras
import numpy as np
import pytest

import keras_graphattn

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(keras_graphattn.__path__, "keras_graphattn.")
    if not module.name.endswith("__main__")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_a_module(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if name.endswith("triton_kernels"):
        pytest.importorskip("fla", reason="flash-linear-attention is not here")
    module = importlib.import_module(name)
    names = {"keras": keras, "np": np} | vars(keras_graphattn.layers) | vars(module)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for test in doctest.DocTestFinder().find(module, name, globs=names):
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0


FOLDERS = (
    "analysis",
    "export",
    "feature_maps",
    "filters",
    "graphs",
    "hub",
    "layers",
    "masks",
    "operators",
    "ops",
)


def test_everything_public_has_an_example():
    missing = []
    for folder in map(importlib.import_module, (f"keras_graphattn.{name}" for name in FOLDERS)):
        for name in folder.__all__:
            public = getattr(folder, name)
            if callable(public) and ">>> " not in (public.__doc__ or ""):
                missing.append(f"{folder.__name__}.{name}")
    assert missing == []
    for name in keras_graphattn.__all__:
        public = getattr(keras_graphattn, name)
        assert not callable(public) or ">>> " in public.__doc__, name


def test_filters_have_sources_and_name_their_weights():
    for filter in keras_graphattn.filters.FILTERS.values():
        for part in ("Args:", ">>> ", "arXiv"):
            assert part in filter.__doc__, (filter, part)


def test_layers_have_examples_and_sources():
    for name in keras_graphattn.layers.__all__:
        text = getattr(keras_graphattn.layers, name).__doc__
        for part in ("Args:", "Call arguments:", "Returns:", "Raises:", ">>> ", "arXiv"):
            assert part in text, (name, part)
