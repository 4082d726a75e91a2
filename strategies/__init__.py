"""The strategy library: one strategy a file.

Each file defines `strategy`, unbound; `spec(M, N, K)`, the problem it is meant for, of any size; and `SIZES`, the default
sizes. Its docstring shows its tree.
"""
