"""Extensions that no file of the package knows: a kernel effect, completion mechanisms. `tests/test_toys.py` uses them."""
