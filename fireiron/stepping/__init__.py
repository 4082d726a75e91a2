"""Code shared by several decompositions: steps of fused definitions, masks over tiles, reductions and exchanges across threads.

`decomp` contains the decompositions, one per file.

May import: values, specs, ir, language, performing, refine, executable.
"""
