# relume: `make demo` to see it, `make test` and `make lint` to change it. Nothing but Python 3.11+ is needed.
#
#   make test ARGS="tests/unit -k tree"    a part of the tests
#   make test ARGS="-m soak"               the long ones (also: -m bench)
#   make test TORCH=2.15.0                 against another torch, in an environment of its own
#   make venv PYTHON=python3.12            with another Python

TORCH_DEFAULT := 2.13.0

PYTHON ?= python3
TORCH  ?= $(TORCH_DEFAULT)
ARGS   ?=

VENV := $(if $(filter $(TORCH_DEFAULT),$(TORCH)),.venv,.venv-$(TORCH))
BIN  := $(VENV)/bin

# The environment is ready for exactly this pyproject.toml, version, torch and Python. All of it is in the stamp's name, so that
# a second `make` costs nothing, and a checkout of another branch (whatever its mtimes) rebuilds what it must.
KEY   := $(shell { cat pyproject.toml src/relume/version.py; echo "$(TORCH)"; $(PYTHON) --version; } 2>&1 | cksum | cut -d' ' -f1)
STAMP := $(VENV)/ready-$(KEY)

.DEFAULT_GOAL := help
.PHONY: help demo test lint venv clean

help:
	@sed -n 's/^# \{0,1\}//p; /^$$/q' Makefile

demo: $(STAMP)
	$(BIN)/relume demo $(ARGS)

test: $(STAMP)
	$(BIN)/python -m pytest $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

venv: $(STAMP)

# torch goes in first and by its exact version, and is named again beside relume: whatever else is wanted has to fit it.
$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "relume needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1): try 'make $(or $(firstword $(MAKECMDGOALS)),venv) PYTHON=python3.12'" >&2; \
	    exit 1; }
	rm -f $(VENV)/ready-*
	@# An environment of another Python is of no use; one of this Python keeps its torch, which is most of the work.
	@test "$$($(BIN)/python --version 2>&1)" = "$$($(PYTHON) --version)" || rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "torch==$(TORCH)"
	$(BIN)/python -m pip install --quiet "torch==$(TORCH)" --editable ".[dev]"
	@touch $@

clean:
	rm -rf .venv .venv-* build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests tools examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
