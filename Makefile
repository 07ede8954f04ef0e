# Two commands do everything: `make demo` and `make test`. Both create .venv on first use and install nothing again.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
DOCS   := $(VENV)/.docs-installed
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

.PHONY: help demo test browser lint types unit docs tutorials size clean

help:            ## Show this list
	@grep -E '^[a-z]+: .*##|^[a-z]+:  *##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/'

demo: $(STAMP)   ## Set up, then sample a small network on the paper's task, and certify it
	$(BIN)/pseudolangevin demo --out demo

test: $(STAMP) browser lint types unit docs   ## Set up, then lint, types, tests, documentation

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

# Not --quiet: it hides warnings from --strict.
docs: $(DOCS)    ## Documentation in site/, without network; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

tutorials: $(DOCS)   ## Execute the notebooks of docs/tutorials again, and store their outputs
	JAX_PLATFORMS=cpu $(BIN)/python docs/tutorials/execute.py

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("pseudolangevin needs Python 3.11 or newer; set PYTHON=..." if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) '.[dev]'
	touch $(STAMP)

$(DOCS): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) '.[docs]'
	touch $(DOCS)

size: $(STAMP)   ## Size of the package, alongside its limits
	$(BIN)/python benchmarks/size.py

clean:           ## Remove the environment and everything generated
	rm -rf $(VENV) build dist site demo demo-[0-9]* .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
