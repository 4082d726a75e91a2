"""The kinds of spec beside those of `spec.py`, one a file.

May import: values and spec.py.
"""
