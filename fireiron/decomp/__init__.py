"""Decompositions, one a file."""
