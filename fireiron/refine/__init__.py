"""Refinements, one a file."""
