# Everything a developer or a pipeline runs. Needs Python 3.11 to 3.13 and make, nothing else:
# packages go into $(VENV), and where there is no Java 17 or newer, so does a Java.

PYTHON ?= python3
VENV ?= .venv
DEMO ?= demo
BIN := $(VENV)/bin
READY := $(VENV)/.impctl-ready
PYTEST = $(BIN)/python -m pytest -n 2 --dist worksteal --durations 10

# Bytecode is kept, in one folder: without it every test and every command compiles what it imports.
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPYCACHEPREFIX := $(abspath $(VENV))/bytecode

.DEFAULT_GOAL := help
.PHONY: help install demo bench bench-smoke test test-check test-all lint type docs check clean

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(READY) ## Make the virtual environment with impctl and what its tests need

$(READY): pyproject.toml
	@echo "installing impctl and its packages into $(VENV), about 1.6 GB"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@$(BIN)/python -c "import os; from impctl.spark.java import find_java; find_java(os.environ)" \
		2>/dev/null || { echo "no Java 17 or newer, installing one into $(VENV)"; \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[java]"; }
	@touch $(READY)

demo: $(READY) ## Run the examples through the command line, data in $(DEMO)
	PATH="$(abspath $(BIN)):$$PATH" workloads/demo.sh $(DEMO)

bench: $(READY) ## Measure a workload over a generated table, with its page (some minutes)
	PATH="$(abspath $(BIN)):$$PATH" workloads/bench.sh $(DEMO)

bench-smoke: $(READY) ## Hold a few ratios against their baseline (under three minutes)
	$(BIN)/python -m pytest -m alone

test: $(READY) ## Fast tests, without Spark (three minutes on two idle cores)
	@echo "fast tests, in random order: about three minutes on two idle cores"
	$(PYTEST)

test-check: $(READY) ## What `check` runs of the tests: all but the long ones (13 minutes)
	$(PYTEST) -m "not alone and not long"

test-all: $(READY) ## Every test, the long ones too (some hours)
	$(PYTEST) -m "not alone"

lint: $(READY) ## Style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

type: $(READY) ## Types
	$(BIN)/mypy

docs: $(READY) ## Write the generated pages again
	$(BIN)/python -m impctl.cli.reference > docs/cli-reference.md

check: lint type test-check bench-smoke ## All of the above that a change must pass

clean: ## Remove what the targets made, the virtual environment too
	rm -rf $(VENV) $(DEMO) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -rf workloads/.impctl spark-warehouse
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
