"""What several decompositions share: the steps of fused definitions, masks over their tiles, reductions and exchanges across threads.

`decomp` has the decompositions themselves, one a file.

May import: values, specs, ir, language, performing, refine, executable.
"""
