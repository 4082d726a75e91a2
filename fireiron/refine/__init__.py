"""Refinements, one a file.

May import: values, specs, ir, language.
"""
