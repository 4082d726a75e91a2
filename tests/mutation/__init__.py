"""Mutants of the compiler: one small change of a module at a time, and who notices.

    python -m mutation list lower decomp            how many there are, by module and operator
    python -m mutation judge lower --count 100      draws some, says who killed each, and which survive
    python -m mutation judge lower --seed 7         one of them again
    python -m mutation nearest check --count 30     asks at most three test files of each, those nearest to its module
    python -m mutation cover tests/test_guard.py    learns which tests run which lines, so that those are asked first

Run it where `tests` is importable (`PYTHONPATH=.:tests`). `operators.py` says what is changed, `battery.py` holds the kernels that are made
and simulated with the change, `printing.py` runs texts that a change of the printer made, on a CPU, `zygote.py` runs them in processes in which the changed module stands in place of the real one, `judge.py`
asks them in order, `few.py` asks the nearest test files alone, `equivalent.json` lists what no test can notice, with the reason.
"""
