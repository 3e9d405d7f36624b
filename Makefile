# `make demo` and `make test` make their own environment in .venv; nothing else is needed.
# The newest that this was tested with and that is here; another: make PYTHON=/path/to/python
PYTHON ?= $(shell for each in python3.13 python3.12 python3.11; do \
	$$each -c 'import ensurepip, venv, ssl, sqlite3' 2>/dev/null && echo $$each && break; done)
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := core protocol client shuffler server authority lab cli
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# By SHA-256, and wheels only: what a source needs to be built would come unchecked.
LOCKED := $(PIP) --require-hashes --only-binary :all: -r locks/build.txt
OWN := $(PIP) --no-index --no-deps --no-build-isolation -e .
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --only-binary :all: \
	--no-annotate --no-emit-index-url --custom-compile-command 'make lock' $(UPGRADE)
# Where tests write: in memory if there is room, as they make a hundred thousand small files and sync each.
SCRATCH := $(shell test "$$(df --output=avail /dev/shm 2>/dev/null | tail -n 1)" -gt 4000000 2>/dev/null && \
	echo TMPDIR=/dev/shm)
# Whatever the shell says, Python keeps what it compiled: our processes start a quarter faster, tests are found twice as fast.
export PYTHONDONTWRITEBYTECODE =
export FLWR_TELEMETRY_ENABLED = 0
export FLWR_DISABLE_UPDATE_CHECK = 1

.PHONY: demo test test-quick test-short explore check format proto lock bundle clean
.DEFAULT_GOAL := demo

demo: $(VENV)/.run  ## the whole system on this machine, with defaults
	$(BIN)/silomix demo

test: $(VENV)/.dev  ## all tests
	$(SCRATCH) $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder

test-quick: $(VENV)/.dev  ## while you work: core, protocol and the parties, without tests of a second or more
	$(SCRATCH) $(BIN)/python -m pytest -n 4 --dist worksteal -m 'not slow' \
		tests/core tests/protocol tests/authority tests/server tests/client tests/shuffler

test-short: $(VENV)/.dev  ## what may differ with a Python or a Flower: contracts, vectors, a demo; five minutes
	$(BIN)/python -m pytest -n 2 --dist load tests/system/test_flower_contract.py tests/system/test_start.py \
		tests/protocol/test_vectors.py tests/protocol/grpc_calls tests/client/data
	demo=$$(mktemp -d) && $(BIN)/silomix demo --out $$demo/demo --silos 3 --rounds 6; status=$$?; rm -rf $$demo; exit $$status

explore: $(VENV)/.dev  ## every state of small worlds of the protocol, then as much of a large one as an hour allows
	cd tests && ../$(BIN)/python -m exploration

check: $(VENV)/.dev  ## format, lint, types, import direction, generated code
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(PACKAGES)
	$(BIN)/mypy --config-file tests/mypy.toml tests benchmarks deploy examples
	$(BIN)/lint-imports
	PATH="$(CURDIR)/$(BIN):$$PATH" proto/generate --check

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

proto: $(VENV)/.dev  ## regenerate proto/silomix_proto
	PATH="$(CURDIR)/$(BIN):$$PATH" proto/generate

lock: $(VENV)/.run  ## locks/ anew after pyproject.toml changed; UPGRADE=--upgrade: the newest versions
	$(COMPILE) --extra dev --output-file locks/dev.txt pyproject.toml
	$(COMPILE) --extra demo --constraint locks/dev.txt --output-file locks/demo.txt pyproject.toml
	$(COMPILE) --extra duckdb --extra parquet --extra postgresql --constraint locks/dev.txt \
		--output-file locks/operators.txt pyproject.toml
	$(BIN)/python -c 'import tomllib; \
		print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
		| $(COMPILE) --constraint locks/dev.txt --output-file locks/build.txt -

bundle: $(VENV)/.run  ## dist/: everything for machines without network, with hashes; SIGN=KEY signs them
	$(BIN)/python deploy/bundle/build.py $(if $(SIGN),--sign $(SIGN))

clean:
	rm -rf .venv* silomix-demo dist

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "no Python 3.11, 3.12 or 3.13 with venv, ssl and sqlite3 is here:" \
		"install one, or name it: make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml locks/build.txt locks/demo.txt | $(BIN)/python
	$(LOCKED) -r locks/demo.txt
	$(OWN)
	touch $@

$(VENV)/.dev: pyproject.toml locks/build.txt locks/dev.txt | $(BIN)/python
	$(LOCKED) -r locks/dev.txt
	$(OWN)
	touch $@ $(VENV)/.run
