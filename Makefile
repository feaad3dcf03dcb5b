# make venv    .venv with everything for development
# make test    set-up, lint, types and the default test suite
# make slow    the slow tests: every combination, real processes, real CIFAR-10
# make demo    train QSV on the embedded digits and look at the result
# make browser Chromium for the tests of the pages, where apt-get can install it
# make pictures  the pictures of the README, from the models and from the demo's run
# make results the results pages, their figure and the README's table, from results/
# make docs    the documentation site, in site/
# make soak    try every promise of docs/reliability.md at its full count, at most an hour
# make bench   speed, memory and scaling on this machine, saved to bench.json
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

results: $(STAMP)
	$(BIN)/python docs/results.py

.PHONY: results venv test slow lint demo docs bench soak browser pictures clean
venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

lint: $(STAMP)
	$(BIN)/ruff check src tests benchmarks docs
	$(BIN)/ruff format --check src tests benchmarks docs
	$(BIN)/mypy

# each process gets half of the files, so that the runs a module shares are trained once, not in both processes;
# compiled modules are stored, because the tests start more than a hundred processes that import the package
test: $(STAMP) lint
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist worksteal

slow: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow

demo: $(STAMP)
	$(BIN)/quatsphere demo

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(STAMP)
	$(BIN)/quatsphere bench --json bench.json

soak: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[soak]'
	-$(MAKE) --no-print-directory browser
	$(BIN)/python -m tests.soak --page docs/reliability.md

CHROMIUM := DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium
browser:
	command -v chromium || command -v chromium-browser || command -v google-chrome || \
	{ test "$$(id -u)" = 0 && { $(CHROMIUM) || { apt-get update -qq && $(CHROMIUM); }; }; }

pictures: $(STAMP) browser
	$(BIN)/python docs/pictures/shells.py
	test -d runs/demo || $(BIN)/quatsphere demo
	$(BIN)/python docs/pictures/screens.py runs/demo

clean:
	rm -rf .venv site .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
