"""Code shared by several families of instructions: matching of specs, ownership of elements by lanes, and their text.

`executable` contains the instructions, one file per family. This folder contains the statements of lanes, those of threads that use the
register layout of another statement, register maps, and the class of all forms of mma.sync.

May import: values, specs, ir, language.
"""
