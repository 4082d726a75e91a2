"""From the decomposition tree to a GPU program: the tree walker and passes from IR to IR, one a file.

May import: values, specs, ir, language/tree; no extension by name, no reader of the IR.
"""
