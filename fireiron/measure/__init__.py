"""Timing: one measuring function, its data, sweeps, and the pytest-benchmark plugin.

May import: gpu and what that may import.
"""
