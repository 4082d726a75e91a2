"""Code shared by several families of instructions: how they match specs, which lanes own which elements, and their text.

`executable` has the instructions themselves, a family a file. This folder has statements of lanes and of threads that follow, maps of
registers, and the class of all forms of mma.sync.

May import: values, specs, ir, language.
"""
