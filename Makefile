# Thin wrappers; each line works by hand as well. Python 3.11 or newer is all that is needed.
PYTHON ?= python3
BIN = .venv/bin

.PHONY: demo test fuzz lint bench pictures names clean

# One command: Listing 4's strategy as a tree, as CUDA, checked, executed for every thread, compared with NumPy.
demo: .venv/core
	$(BIN)/python -m fireiron show maxwell
	$(BIN)/python -m fireiron emit maxwell
	$(BIN)/python -m fireiron check maxwell
	$(BIN)/python -m fireiron run maxwell -M 256 -N 384 -K 136
	$(BIN)/python -m fireiron run maxwell

test: .venv/test
	$(BIN)/python -m pytest -n 2 -q -m "not night"

# The long tier: the same tests with many more draws, and those that are marked `night`.
fuzz: .venv/test
	FIREIRON_FUZZ=40 $(BIN)/python -m pytest -n 2 -q

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/test
	$(BIN)/python perf/bench_compile.py
	$(BIN)/python perf/bench_sim.py

# The figures of docs/pictures.md, drawn anew.
pictures: .venv/core
	$(BIN)/python docs/make_pictures.py

# The public names with their modules, as type checkers read them: behind a new file in a folder of extensions.
names: .venv/core
	$(BIN)/python tests/public_names.py

.venv/core: setup.cfg setup.py pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -e .
	@touch $@

.venv/test: setup.cfg setup.py pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -e .[test]
	@touch $@ .venv/core

.venv/dev: setup.cfg setup.py pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -e .[test,dev]
	@touch $@ .venv/test .venv/core

clean:
	rm -rf .venv build *.egg-info
