"""The strategy library: one strategy per file.

Each file defines `strategy`, unbound; `spec(M, N, K)`, its problem, of any size; and `SIZES`, the default
sizes. Its docstring shows its tree.
"""
