# `make demo` or `make test` is all a fresh machine needs: each makes the environment and installs first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PEERS := .venv-peers
WORKERS ?= auto
export OMP_NUM_THREADS ?= 1

.PHONY: install demo test browser shapes check format mutants campaign peers clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

install: $(STAMP)

demo: $(STAMP)  ## a market, two agents, two verdicts, one report: runs/demo/report.html
	@$(BIN)/python scripts/demo.py

test: $(STAMP)  ## every test that fits into minutes
	$(BIN)/python -m pytest -n $(WORKERS) -m "not campaign"

browser: $(STAMP)  ## our pages in a real browser; skips, and says why, where there is none
	$(BIN)/python -m pytest tests/browser

shapes: $(STAMP)  ## the formulas again, with every annotated shape checked at run time
	STORMSAIL_SHAPES=1 $(BIN)/python -m pytest -n $(WORKERS) -m "not campaign and not refusal" tests/unit/functional tests/property

check: $(STAMP)  ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

mutants: $(STAMP)  ## plant each historical bug and show which test kills it
	PYTHONPATH=tests $(BIN)/python -m mutants

campaign: $(STAMP)  ## the long versions; appends to docs/evidence.md
	$(BIN)/python scripts/campaign.py

$(PEERS)/.installed: bench/peers.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --no-deps --requirement bench/peers.txt
	touch $@

peers: $(PEERS)/.installed  ## what `stormsail bench simulator` compares with, in its own environment

clean:
	rm -rf $(VENV) $(PEERS) .pytest_cache .mypy_cache .ruff_cache .hypothesis
