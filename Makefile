# Everything a developer or a pipeline runs. Needs Python 3.11 to 3.13 and make, nothing else:
# packages go into $(VENV), and where there is no Java 17 or newer, so does a Java.

PYTHON ?= python3
VENV ?= .venv
DEMO ?= demo
BIN := $(VENV)/bin
READY := $(VENV)/.impctl-ready
TESTS_READY := $(VENV)/.impctl-tests-ready
PYTEST = $(BIN)/python -m pytest -n 2 --dist worksteal --durations 10

# Bytecode is kept, in one folder: without it every test and every command compiles what it imports.
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPYCACHEPREFIX := $(abspath $(VENV))/bytecode

SHELL := bash
.DEFAULT_GOAL := help
.PHONY: help install demo bench bench-smoke test test-check test-all lint type docs check clean

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(TESTS_READY) ## Make the virtual environment with impctl and what its tests need

# Shows what pip downloads and installs, without the rest that it prints.
PIP_INSTALL = set -o pipefail; $(BIN)/python -m pip install --disable-pip-version-check \
	--progress-bar off --editable $(1) | sed -n -u 's/^ *\(Downloading\|Using cached\|Installing\|Building wheel\)/  \1/p'

$(READY): pyproject.toml
	@echo "installing impctl into $(VENV): about 1 GB on disk, one to three minutes"
	$(PYTHON) -m venv $(VENV)
	@$(call PIP_INSTALL,".[demo]")
	@$(BIN)/python -c "import os; from impctl.spark.session import find_java; find_java(os.environ)" \
		2>/dev/null || { echo "no Java 17 or newer found: installing one into $(VENV)"; \
		$(call PIP_INSTALL,".[java]"); }
	@touch $(READY)

$(TESTS_READY): $(READY)
	@echo "installing what tests need into $(VENV): about 400 MB more, under a minute"
	@$(call PIP_INSTALL,".[dev]")
	@touch $(TESTS_READY)

demo: $(READY) ## Show what impctl does on five million rows, in $(DEMO) (three minutes)
	PATH="$(abspath $(BIN)):$$PATH" workloads/demo.sh $(DEMO)

bench: $(READY) ## Measure a workload over a generated table, with its page (some minutes)
	PATH="$(abspath $(BIN)):$$PATH" workloads/bench.sh $(DEMO)

bench-smoke: $(TESTS_READY) ## Compare a few ratios with their baseline (less than a minute)
	$(BIN)/python -m pytest -m alone tests/benchmarks

test: $(TESTS_READY) ## Fast tests, without Spark (three minutes on two cores)
	@echo "fast tests, in random order: about three minutes on two idle cores"
	$(PYTEST)

test-check: $(TESTS_READY) ## What `check` runs of the tests: all but the long ones (18 minutes)
	$(PYTEST) -m "not alone and not long"

test-all: $(TESTS_READY) ## Every test, the long ones too (some hours)
	$(PYTEST) -m "not alone"

lint: $(TESTS_READY) ## Style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

type: $(TESTS_READY) ## Types
	$(BIN)/mypy

docs: $(READY) ## Write the generated pages again
	$(BIN)/python -m impctl.cli.reference > docs/cli-reference.md

check: lint type test-check bench-smoke ## All of the above that a change must pass

clean: ## Remove what the targets made, the virtual environment too
	rm -rf $(VENV) $(DEMO) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -rf workloads/.impctl spark-warehouse
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
