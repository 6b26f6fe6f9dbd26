# `make demo` or `make test` is all a fresh machine needs: each makes the environment and installs first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PEERS := .venv-peers
WORKERS ?= auto
# Each worker takes a run of neighbours, which share fixtures, and helps the others at the end.
PARALLEL := -n $(WORKERS) --dist worksteal
# Workers share the cores; more than one thread each makes them wait for one another.
export OMP_NUM_THREADS ?= 1
# Bytecode is kept, whatever the shell says: pytest then rewrites the asserts of changed files only.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: install demo test abuse browser shapes check format mutants site packaging campaign peers clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

install: $(STAMP)

demo: $(STAMP)  ## a market, two agents, two verdicts, one report: runs/demo/report.html
	@$(BIN)/python scripts/demo.py

test: $(STAMP)  ## every test that fits into minutes and needs no browser
	$(BIN)/python -m pytest $(PARALLEL) -m "not campaign" --ignore tests/browser --ignore tests/abuse

abuse: $(STAMP)  ## every verb with mistakes, hostile files, signals, full disks: words and exit codes, no traceback
	$(BIN)/python -m pytest $(PARALLEL) tests/abuse

browser: $(STAMP)  ## our pages in a real browser, in one process; skips, and says why, without one
	$(BIN)/python -m pytest tests/browser

shapes: $(STAMP)  ## the formulas again, with every annotated shape checked at run time
	STORMSAIL_SHAPES=1 $(BIN)/python -m pytest $(PARALLEL) -m "not (campaign or refusal or unshaped)" tests/unit/functional tests/property

check: $(STAMP)  ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --strict tests/sample_project/project.py
	$(BIN)/pyright --pythonpath $(BIN)/python -p tests/sample_project
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

mutants: $(STAMP)  ## plant each historical bug and show which test kills it
	PYTHONPATH=tests $(BIN)/python -m mutants

site: $(STAMP)  ## pages, notebooks and API reference as build/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "the site is in build/site; \`python3 -m http.server --directory build/site\` shows it"

packaging: $(STAMP)  ## resolve, build, install and run the wheel alone; bill of materials and hashes in build/packaging
	$(BIN)/python scripts/packaging.py

campaign: $(STAMP)  ## the long versions; appends to docs/evidence.md
	$(BIN)/python scripts/campaign.py

$(PEERS)/.installed: bench/peers.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --no-deps --requirement bench/peers.txt
	touch $@

peers: $(PEERS)/.installed  ## what `stormsail bench simulator` compares with, in its own environment

clean:
	rm -rf $(VENV) $(PEERS) .pytest_cache .mypy_cache .ruff_cache .hypothesis
