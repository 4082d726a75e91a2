"""Attacks on everything that reads the outside: inputs that are wrong, structured and at random, and what answers them.

A kind of input is a file here that defines `draw(random) -> Iterable[Input]`; `campaign/subjects/inputs.py` draws them all, and a new file is
drawn as soon as it is there. `guard.py` says what a fair answer is: the project's own error with a text, or a value; never another exception, a
warning of somebody else, two seconds, or a gigabyte. `values.py` holds what is handed in, `harvest.py` what there is to hand it to.
"""
