"""GPU kernels: compilers, caches, arrays, launches, and the callable kernel. Only this package calls the driver and the compilers.

May import: everything below `measure`.
"""
