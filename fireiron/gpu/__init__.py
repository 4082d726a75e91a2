"""The only place that touches driver and compilers: toolchain, caches, arrays, launches, the callable kernel.

May import: everything below `measure`.
"""
