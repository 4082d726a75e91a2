# Thin wrappers; each line works by hand as well. Python 3.11 or newer is all that is needed.
PYTHON ?= python3
BIN = .venv/bin

.PHONY: demo test fuzz lint bench docs pictures notebook names goldens clean

# One kernel on two screens: problem, tree, the heart of its CUDA, checks, executed for every thread, compared with NumPy.
demo: .venv/core
	@$(BIN)/python -m fireiron demo

# Processes that tests start load compiled modules. A worker gets adjacent tests, which share what they compute.
test: .venv/test
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist worksteal -q -m "not nightly"

# The long tier: random campaigns, and every test file with many more draws. It stops with Control-C and goes on where it stopped;
# `make fuzz FUZZ="strategies --jobs 4"` runs one subject, FUZZ= alone says how far all are.
FUZZ ?= all --tier nightly
fuzz: .venv/test
	PYTHONPATH=.:tests $(BIN)/python -m campaign $(FUZZ)

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tests/language_lint.py

bench: .venv/test
	$(BIN)/python perf/bench_compile.py
	$(BIN)/python perf/bench_sim.py

# The documentation site, in build/site; a warning is an error.
docs: .venv/test
	$(BIN)/mkdocs build --strict

# The figures of docs/pictures.md, drawn anew.
pictures: .venv/core
	$(BIN)/python docs/make_pictures.py

# What the cells of docs/notebook.ipynb show, computed anew.
notebook: .venv/core
	$(BIN)/python docs/make_notebook.py

# The public names with their modules, as type checkers read them: behind a new file in a folder of extensions.
names: .venv/core
	$(BIN)/python tests/public_names.py

# The printed texts, refusals and tables that tests compare, computed anew; it reports what changed. Two minutes of two cores.
goldens: .venv/test
	PYTHONPATH=.:tests $(BIN)/python -m goldens accept

.venv/core: setup.cfg setup.py pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -e .
	@touch $@

.venv/test: setup.cfg setup.py pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -e '.[test]'
	@touch $@ .venv/core

.venv/dev: setup.cfg setup.py pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -e '.[test,dev]'
	@touch $@ .venv/test .venv/core

clean:
	rm -rf .venv build *.egg-info
