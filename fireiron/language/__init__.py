"""The language: strategies, their verbs, decomposition trees, tunables; loading and storing strategies.

May import: values, specs, ir; the extensions (decomp, refine, executable) and their shared modules (performing, stepping).
"""
