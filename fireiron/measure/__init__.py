"""Measure kernels: the timing function, its data and checks, sweeps, and the pytest-benchmark plugin.

May import: gpu and what that may import.
"""
