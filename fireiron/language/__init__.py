"""What a user writes: strategies, their verbs, trees of decompositions, tunables; the library of strategies and their storage.

May import: values, specs, ir; the extensions (decomp, refine, executable) and what they share (performing, stepping) stand beside it.
"""
