# The project's menu. `make` lists it.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := $(shell find rust -name '*.rs' -o -name Cargo.toml) Cargo.toml Cargo.lock pyproject.toml

BROWSER := chromium chromium-driver fonts-dejavu-core
INSTALL_BROWSER := { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(BROWSER) >/dev/null; }

export OPENBLAS_NUM_THREADS ?= 1

.PHONY: help quickstart check setup build browser rust-test test lint types bench clean

help: ## show this menu
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

quickstart: setup ## set up, sweep a million points, rank them, write a report
	$(BIN)/lambdamax sweep sweeps/quickstart.toml --out out/quickstart
	$(BIN)/lambdamax frontier out/quickstart --by isl_tokens,osl_tokens,slo_tpot_s --rows 12 --out out/quickstart-frontier.parquet
	$(BIN)/lambdamax report out/quickstart --out out/quickstart.html

check: setup browser lint types rust-test test ## set up and pass every test

setup: $(VENV)/.ready ## make the virtual environment and a release build in it

$(VENV)/.ready: $(SOURCES)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

build: ## rebuild the extension after a change in rust/
	$(BIN)/python -m pip install --quiet --no-deps --editable .

lint: setup ## formatting and lints, warnings are errors
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	$(BIN)/ruff check python tests benches
	$(BIN)/ruff format --check python tests benches

types: setup ## mypy strict, and the stub against the extension
	$(BIN)/mypy
	MYPYPATH=python $(BIN)/python -m mypy.stubtest lambdamax._engine

rust-test: ## tests of the Rust crates
	cargo test --workspace --locked

browser: ## the browser that the tests of the report's page drive, installed where it is lacking and may be
	@command -v chromedriver >/dev/null || $(INSTALL_BROWSER) || \
	  { echo "make browser: chromedriver is lacking; install Debian's packages $(BROWSER), or a Chromium with its chromedriver" >&2; exit 1; }

test: setup browser ## tests of the Python package
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

bench: setup ## every benchmark, each with its rival in the same run (see benches/README.md)
	$(BIN)/python -m pip install --quiet '.[bench]'
	for script in benches/*.py; do $(BIN)/python $$script || exit 1; done

clean: ## remove what builds and runs leave behind
	rm -rf $(VENV) target out .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f python/lambdamax/_engine.*.so
