"""Attacks on everything that reads external input: wrong inputs, structured and random, and the answers to them.

A kind of input is a file here that defines `draw(random) -> Iterable[Input]`; `campaign/subjects/inputs.py` draws them all, including new
files. `guard.py` defines a fair answer: the project's own error with a text, or a value; never another exception, a foreign warning, more
than two seconds, or more than a gigabyte. `values.py` contains the arguments, `harvest.py` the callables.
"""
