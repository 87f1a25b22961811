# make demo    the main job: tune the examples, serve the winners to a second process
# make test    lint, types, tests
# make soak    benchmarks of the measurements themselves, the table of faults, models compiled under plans drawn at random: hours,
#              on an idle machine
# Each sets up .venv by itself. Needs Python 3.11 or newer with venv and headers, make and g++.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TYPES := build/types

.PHONY: demo test soak lint types tests clean

demo: $(STAMP)
	$(BIN)/python examples/demo.py

test: lint types tests

soak: $(STAMP)
	$(BIN)/python benchmarks/measurement.py --aa 60 --effect 20 --replay --json
	$(BIN)/python benchmarks/faults.py --json
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python benchmarks/coverage.py --json
	$(BIN)/python benchmarks/coverage.py --draws 200 --json

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# mypy does not follow the mapping of an editable install, so it is shown the package as a wheel would lay it out
types: $(STAMP)
	rm -rf $(TYPES)
	mkdir -p $(TYPES)/tuner
	ln -s $(CURDIR)/tuner/* $(CURDIR)/cache $(CURDIR)/cli $(CURDIR)/search_spaces $(TYPES)/tuner/
	MYPYPATH=$(TYPES) $(BIN)/mypy -p tuner

tests: $(STAMP)
	$(BIN)/pytest

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
