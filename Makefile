# make demo   set up, then launch one prefill (TP2) and two decodes (TP1) on this machine's CPUs
# make test   set up, then lint, types and the whole test suite, real servers included
#
# Both need Python 3.11+ and a package index, nothing else. uv keeps what it downloads in its own cache, so a second
# checkout, or a second run, costs seconds.

SHELL  := /bin/bash
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PINS   := disagg_cli/engine/pins.txt
STAMP  := $(VENV)/.ready-$(shell cat pyproject.toml $(PINS) | sha256sum | cut -c1-16)

# SGLang is 7,000 modules: without their compiled files each cold start takes twice as long.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test lint fast e2e bench sweep verify-releases

setup: $(STAMP)

$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "disagg needs Python 3.11 or later; set PYTHON=python3.11 (this is $$($(PYTHON) --version))"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
	  { echo "$(PYTHON) cannot make virtual environments: apt-get install python3-venv"; exit 1; }
	rm -f $(VENV)/.ready-*
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python -c $(PINS) -e '.[engine,plots,dev]'
	touch $@

demo: setup
	$(BIN)/disagg launch configs/1p2d-cpu.yaml --exit-after-eval

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Seconds: no SGLang process.
fast: setup
	$(BIN)/pytest -m 'not e2e'

e2e: setup
	$(BIN)/pytest -m e2e

# Figures that the README and the issues claim; each command exits 1 where a bound is missed.
bench: setup
	$(BIN)/python tests/bench/bench_plan.py
	$(BIN)/python tests/bench/bench_launch.py
	$(BIN)/python tests/bench/bench_overlay.py
	$(BIN)/python tests/evals/bench_eval.py
	$(BIN)/python tests/bench/bench_start.py
	$(BIN)/python tests/bench/bench_progress.py

# Real servers for every class of plans that fits this machine, against the plan's word, and a rehearsal with each
# planted fault; about a quarter of an hour.
sweep: setup
	$(BIN)/python tests/e2e/sweep.py
	$(BIN)/python tests/e2e/rehearse_faults.py

# Every known SGLang release's own connector, stock and with the overlay, against disagg's word; about ten minutes. Each
# wheel is fetched, run on recorded memory and deleted; what was seen goes to disagg_cli/connector/verified.yaml.
verify-releases: setup
	$(BIN)/python tests/connector/verify_releases.py

test: lint
	$(BIN)/pytest
