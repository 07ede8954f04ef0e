# Two commands do everything: `make demo` and `make test`. Both create .venv on first use and install nothing again.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: help demo test browser lint types unit size clean

help:            ## Show this list
	@grep -E '^[a-z]+: .*##|^[a-z]+:  *##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/'

demo: $(STAMP)   ## Set up, then sample a small network on the paper's task, and certify it
	$(BIN)/pseudolangevin demo --out demo

test: $(STAMP) browser lint types unit   ## Set up, then lint, types, tests

browser:         ## Chromium for the report's browser tests, where apt can install it
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq \
	  && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu >/dev/null; } \
	  || echo "no Chromium: the report's browser tests will be skipped"

lint: $(STAMP)   ## Style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)  ## Static types
	$(BIN)/mypy

unit: $(STAMP)   ## Tests alone
	JAX_PLATFORMS=cpu $(BIN)/pytest --numprocesses 2 --dist worksteal

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("pseudolangevin needs Python 3.11 or newer; set PYTHON=..." if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

size: $(STAMP)   ## Size of the package, alongside its limits
	$(BIN)/python benchmarks/size.py

clean:           ## Remove the environment and everything generated
	rm -rf $(VENV) build dist demo demo-[0-9]* .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
