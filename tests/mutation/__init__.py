"""Mutants of the compiler: one small change of a module at a time, and the detectors that kill them.

    python -m mutation list lower decomp            number of mutants, by module and operator
    python -m mutation judge lower --count 100      draw some, report what killed each, and which survive
    python -m mutation judge lower --seed 7         one of them again
    python -m mutation nearest check --count 30     run at most three test files for each, those nearest to its module
    python -m mutation cover tests/test_guard.py    record which tests run which lines, so that those are run first

Run it where `tests` is importable (`PYTHONPATH=.:tests`). `operators.py` defines the changes, `battery.py` contains the kernels that are
built and simulated with the change, `printing.py` runs texts changed by a printer mutant on a CPU, `zygote.py` runs them in processes with
the changed module, `judge.py` tries them in order, `few.py` runs the nearest test files alone, `equivalent.json` lists the mutants that no
test can kill, with the reason.
"""
