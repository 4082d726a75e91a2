"""Print a strategy and its kernel as text: show, explain, diff.

May import: the compiler and what that may import.
"""
