# `make demo` and `make test` make their own environment in .venv; nothing else is needed.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := core protocol client shuffler server authority cli
export FLWR_TELEMETRY_ENABLED = 0
export FLWR_DISABLE_UPDATE_CHECK = 1

.PHONY: demo test check format proto bundle clean
.DEFAULT_GOAL := demo

demo: $(VENV)/.run  ## the whole system on this machine, with defaults
	$(BIN)/silomix demo

test: $(VENV)/.dev  ## all tests
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

check: $(VENV)/.dev  ## format, lint, types, import direction, generated code
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(PACKAGES)
	$(BIN)/lint-imports
	PATH="$(CURDIR)/$(BIN):$$PATH" proto/generate --check

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

proto: $(VENV)/.dev  ## regenerate proto/silomix_proto
	PATH="$(CURDIR)/$(BIN):$$PATH" proto/generate

bundle: $(VENV)/.run  ## dist/: everything for machines without network, with hashes
	$(BIN)/python deploy/bundle/build.py

clean:
	rm -rf $(VENV) silomix-demo dist

$(BIN)/python:
	$(PYTHON) -m venv $(VENV) || python3 -m venv $(VENV)

$(VENV)/.run: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo]'
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@ $(VENV)/.run
