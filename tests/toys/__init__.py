"""Extensions unknown to the package: a kernel effect, completion mechanisms. `tests/test_toys.py` uses them."""
