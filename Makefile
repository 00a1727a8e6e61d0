# Two commands: `make demo` and `make test`. Both set everything up first, in .venv.
PYTHON ?= $(firstword $(foreach p,python3.12 python3.13 python3.14 python3,$(shell $(p) -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null && command -v $(p))))
SEED ?= 0
DEMO ?= demo
BIN := .venv/bin

.PHONY: help install demo test lint clean

help:
	@echo "make demo [SEED=0] [DEMO=demo]   draw a corpus, extract, train, evaluate, print the table"
	@echo "make test                        run the tests"
	@echo "make lint                        ruff, mypy and the import rules"
	@echo "make clean                       remove .venv and caches"

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "prvr needs Python 3.12 or later; give it with make PYTHON=/path/to/python3.12"; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	@touch $@

demo: install
	$(BIN)/prvr-demo --out $(DEMO) --seed $(SEED)

test: install
	$(BIN)/pytest $(PYTEST)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf .venv build *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
