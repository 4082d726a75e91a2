"""Code shared by several families of instructions: matching of specs, ownership of elements by lanes, and their text.

`executable` has the instructions, one file per family. This folder has statements of lanes and of threads that follow, maps of
registers, and the class of all forms of mma.sync.

May import: values, specs, ir, language.
"""
