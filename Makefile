# make venv    .venv with everything for development
# make test    set-up, lint, types and the default test suite
# make demo    train QSV on the embedded digits and look at the result
# make bench   speed and memory of the kernels on this machine
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: venv test lint demo bench pictures clean
venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

lint: $(STAMP)
	$(BIN)/ruff check src tests benchmarks docs
	$(BIN)/ruff format --check src tests benchmarks docs
	$(BIN)/mypy

test: $(STAMP) lint
	$(BIN)/python -m pytest -n 2

demo: $(STAMP)
	$(BIN)/quatsphere demo

bench: $(STAMP)
	$(BIN)/python benchmarks/kernel.py

pictures: $(STAMP)
	$(BIN)/python docs/pictures/shells.py

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
