# Two commands: `make demo` and `make test`. Both set up their own virtual environment.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
BACKENDS ?= tensorflow jax torch
export TF_CPP_MIN_LOG_LEVEL ?= 2
# Threads that spin while they wait slow each other down where processes share cores.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: help demo test test-slow test-triton lint coverage dist check-dist wheel versions results-check docs deploy-docs clean

help:
	@echo "make demo      set up, train softmax, GFSA and AGF on JapaneseVowels, export a SavedModel"
	@echo "make test      set up, lint, and run the tests on: $(BACKENDS)"
	@echo "make test-slow the tests that need minutes, too"
	@echo "make lint      ruff and mypy"
	@echo "make dist      build the wheel and the sdist into dist/, and check them with twine"
	@echo "make wheel     the same, and try both in an empty environment for each of: $(BACKENDS)"
	@echo "make versions  the tests with the oldest supported packages, then with the newest"
	@echo "make results-check  make the page of results again from its files, and repeat one run"
	@echo "make docs      build the documentation site: open site/index.html"
	@echo "make coverage  branch coverage of keras_graphattn over all backends; fails below 92 %"

# The release of torch that the tests ran on; a bare "torch" would pull whatever is newest.
TORCH ?= torch==2.13.0

# Where pip fails: TensorFlow is often the last to have a release for a new Python.
OTHER_PYTHON = { echo "If pip found no tensorflow for this Python, call: rm -r $(VENV); make PYTHON=python3.13 $(MAKECMDGOALS)"; exit 1; }

# The demo needs one backend, and TensorFlow for the SavedModel; not the test tools.
DEMO_BACKEND := $(or $(KERAS_BACKEND),jax)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo-$(DEMO_BACKEND): pyproject.toml | $(BIN)/python
	$(if $(filter torch,$(DEMO_BACKEND)),$(BIN)/python -m pip install -q "$(TORCH)")
	$(BIN)/python -m pip install -q -e ".[$(DEMO_BACKEND),serving,recipes]" || $(OTHER_PYTHON)
	touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q "$(TORCH)"
	$(BIN)/python -m pip install -q -e ".[tensorflow,jax,torch,hub,cv,serving,recipes,dev]" || $(OTHER_PYTHON)
	touch $@

# The guides run on all backends; ruff wraps the lines of signatures.
$(VENV)/.docs: $(VENV)/.dev
	@echo "== installing what the documentation needs"
	$(BIN)/python -m pip install -q -e ".[docs]"
	touch $@

demo: $(VENV)/.demo-$(DEMO_BACKEND)
	KERAS_BACKEND=$(DEMO_BACKEND) $(BIN)/python -m recipes.time_series $(DEMO_ARGUMENTS)

test: lint
	@set -e; for backend in $(BACKENDS); do \
	  echo "== tests on $$backend"; \
	  KERAS_BACKEND=$$backend $(BIN)/python -m pytest -q -n 2 -m "not slow" $(TEST_ARGUMENTS); \
	done

test-slow: $(VENV)/.dev
	@set -e; for backend in $(BACKENDS); do \
	  echo "== slow tests on $$backend"; \
	  KERAS_BACKEND=$$backend $(BIN)/python -m pytest -q -n 2 -m slow $(TEST_ARGUMENTS); \
	done

# The Triton kernels for torch, step by step on a CPU.
test-triton: $(VENV)/.dev
	$(BIN)/python -m pip install -q triton -e ".[triton]"
	TRITON_INTERPRET=1 KERAS_BACKEND=torch $(BIN)/python -m pytest -q tests/ops/test_triton.py

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

dist: $(VENV)/.dev
	rm -rf build dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

# Each backend has an environment of its own: wheel, sdist and snippets must not need another one. It has no tools, so
# that a Python without wheels of all of them can be checked.
check-dist:
	@set -e; version=$$($(PYTHON) -c "exec(open('keras_graphattn/version.py').read()); print(__version__)"); root=$$(pwd); \
	folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; cp tests/wheel_check.py tests/snippets.py "$$folder"; \
	for backend in $(BACKENDS); do \
	  $(PYTHON) -m venv "$$folder/venv"; \
	  if [ $$backend = torch ]; then "$$folder/venv/bin/python" -m pip install -q "$(TORCH)"; fi; \
	  for file in "$$root"/dist/*.tar.gz "$$root"/dist/*.whl; do \
	    echo "== $${file##*/} on $$backend"; \
	    "$$folder/venv/bin/python" -m pip install -q "$$file[$$backend]"; \
	    (cd "$$folder" && KERAS_BACKEND=$$backend venv/bin/python wheel_check.py "$$folder" $$version); \
	    if [ "$${file##*.}" = gz ]; then "$$folder/venv/bin/python" -m pip uninstall -q -y keras-graphattn; fi; \
	  done; \
	  "$$folder/venv/bin/python" -m pip install -q "$$file[guides]"; \
	  (cd "$$folder" && venv/bin/python snippets.py $$backend \
	    "$$root"/README.md "$$root"/docs/pages/*.md "$$root"/guides/*.py); \
	  rm -rf "$$folder/venv"; \
	done

wheel: dist check-dist

# Oldest: the lower bounds of pyproject.toml themselves. Newest: what pip finds today.
VERSIONS ?= oldest newest

versions:
	@set -e; for which in $(VERSIONS); do \
	  echo "== the $$which packages"; \
	  environment=$(VENV)-$$which; \
	  $(PYTHON) -m venv $$environment; \
	  $$environment/bin/python tests/version_bounds.py $$which > $$environment/requirements.txt; \
	  $$environment/bin/python -m pip install -q "$(TORCH)" -r $$environment/requirements.txt; \
	  $$environment/bin/python -m pip install -q --no-deps -e .; \
	  for backend in $(BACKENDS); do \
	    echo "== tests on $$backend"; \
	    KERAS_BACKEND=$$backend $$environment/bin/python -m pytest -q -n 2 -m "not slow" $(TEST_ARGUMENTS); \
	  done; \
	done

coverage: $(VENV)/.dev
	rm -f .coverage*
	@set -e; for backend in $(BACKENDS); do \
	  KERAS_BACKEND=$$backend $(BIN)/python -m pytest -q -n 2 -m "not slow" --cov --cov-append --cov-report= --cov-fail-under=0; \
	done
	$(BIN)/coverage report --show-missing

# Runs the guides, or takes what they printed if nothing has changed, and makes HTML of all pages.
results-check: $(VENV)/.dev
	$(BIN)/python -m recipes.results --check --repeat

docs: $(VENV)/.docs
	KERAS_BACKEND=torch $(BIN)/python -m docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict -f build/mkdocs.yml

# Commits the site as a version to the branch gh-pages and pushes it. mike calls mkdocs by its name. Colab does not
# follow links, so an alias is a copy. "1.2.0 latest" also moves the alias.
DOCS_VERSION ?= dev

deploy-docs: $(VENV)/.docs
	KERAS_BACKEND=torch $(BIN)/python -m docs
	PATH="$(CURDIR)/$(BIN):$$PATH" NO_MKDOCS_2_WARNING=1 mike deploy --push --update-aliases --alias-type copy -F build/mkdocs.yml $(DOCS_VERSION)
	$(if $(findstring latest,$(DOCS_VERSION)),PATH="$(CURDIR)/$(BIN):$$PATH" mike set-default --push -F build/mkdocs.yml latest)

clean:
	rm -rf $(VENV) $(VENV)-oldest $(VENV)-newest results site build dist .hypothesis .pytest_cache .mypy_cache .ruff_cache
