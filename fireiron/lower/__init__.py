"""Translate a decomposition tree to a GPU program: the tree walker, and the passes from IR to IR, one per file.

May import: values, specs, ir, language/tree; no extension by name, no consumer of the IR.
"""
