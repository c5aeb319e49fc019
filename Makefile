# A fresh machine needs only Python (3.11 or newer) and make: each target sets up what it needs in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Versions the tests are known to pass with, one file for each Python; other Pythons take the newest.
PINS := $(wildcard constraints/$(shell $(PYTHON) -c 'import sys; print("py%d%d.txt" % sys.version_info[:2])'))
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check $(if $(PINS),-c $(PINS))
# With HASHED=1 every file that is installed must have the digest that constraints/hashed-py*.txt has for it.
HASHED ?=
HASHES := $(patsubst constraints/%,constraints/hashed-%,$(PINS))
DEMO := demo

# Tests that compile little: enough to see that a set of versions works together.
QUICK := tests/test_tasks.py tests/test_inner.py tests/test_outcomes.py tests/test_comparison.py tests/test_runs.py \
  tests/tables/test_coverage.py

.PHONY: demo test test-slow test-browser docs fuzz bench lint format lowest dist pins clean

demo: $(VENV)/.runtime
	rm -rf $(DEMO)
	$(BIN)/stmaml train regression2d --method st-maml --preset demo --run $(DEMO)
	$(BIN)/stmaml evaluate $(DEMO) --tasks 1000 --sweep
	$(BIN)/stmaml report $(DEMO)

test: lint
	$(BIN)/pytest -q

test-slow: $(VENV)/.dev
	$(BIN)/pytest -q -m slow

# Opens the page of stmaml serve in Chromium, where that is installed.
test-browser: $(VENV)/.dev
	$(BIN)/pytest -q -n 0 -m slow -rs tests/serving

# The documentation as a site, in site/. A link that leads nowhere ends the build.
docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict

# Spoils files of every kind that is read, and counts how their readers answer.
fuzz: $(VENV)/.dev
	$(BIN)/python studies/fuzz.py --cases 10000

# Times this machine, beside whatever other libraries are installed, and writes docs/performance.md.
bench: $(VENV)/.runtime
	$(BIN)/python studies/bench.py
	$(BIN)/python studies/bench.py --page

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The lowest versions that pyproject.toml allows, in an environment of their own.
lowest:
	rm -rf $(VENV)-lowest
	$(PYTHON) -m venv $(VENV)-lowest
	$(VENV)-lowest/bin/pip install --quiet --disable-pip-version-check -c constraints/lowest.txt -e . \
	  beartype hypothesis pytest pytest-xdist pandas blackjax
	$(VENV)-lowest/bin/stmaml list
	$(VENV)-lowest/bin/pytest -q -o addopts="-m 'not slow'" $(QUICK)  # shapes are checked by make test

# What would be published, installed where nothing else is: both kinds, and the command works.
dist: $(VENV)/bin/python
	rm -rf dist $(VENV)-dist
	$(BIN)/pip install --quiet --disable-pip-version-check build
	$(BIN)/python -m build
	for kind in whl tar.gz; do \
	  $(PYTHON) -m venv --clear $(VENV)-dist && \
	  $(VENV)-dist/bin/pip install --quiet --disable-pip-version-check dist/*.$$kind && \
	  (cd / && $(abspath $(VENV)-dist)/bin/stmaml --version && $(abspath $(VENV)-dist)/bin/stmaml list) || exit 1; \
	done

# The digests of everything that make test installs, for each Python, by what the index says of all platforms' files.
pins: $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check uv
	for python in 3.11.7 3.12 3.13; do \
	  name=py$$(echo $$python | cut -d. -f1,2 | tr -d .).txt; \
	  $(BIN)/uv pip compile --quiet pyproject.toml constraints/build.in --extra dev -c constraints/$$name \
	    --generate-hashes --python-version $$python --python-platform x86_64-manylinux_2_28 \
	    --no-emit-index-url --no-annotate --custom-compile-command "make pins" -o constraints/hashed-$$name || exit 1; \
	done

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "stmaml needs Python 3.11 or newer; '$(PYTHON)' is older. Try: make PYTHON=python3.12"; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: pyproject.toml $(PINS) | $(VENV)/bin/python
	$(INSTALL) -e .
	touch $@

ifneq ($(HASHED),)
$(VENV)/.dev: pyproject.toml $(HASHES) | $(VENV)/bin/python
	@test -n "$(HASHES)" || { echo "no digests are kept for this Python; leave out HASHED=1"; exit 2; }
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r $(HASHES)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@ $(VENV)/.runtime
else
$(VENV)/.dev: pyproject.toml $(PINS) | $(VENV)/bin/python
	$(INSTALL) -e '.[dev]'
	touch $@ $(VENV)/.runtime
endif

$(VENV)/.docs: pyproject.toml $(PINS) | $(VENV)/bin/python
	$(INSTALL) -e '.[docs]'
	touch $@ $(VENV)/.runtime

clean:
	rm -rf $(VENV) $(VENV)-lowest $(VENV)-dist dist site $(DEMO) .pytest_cache .ruff_cache .hypothesis
