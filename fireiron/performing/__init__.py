"""What several families of instructions share: how they match specs, who holds and receives which elements, and their text.

`executable` has the instructions themselves, a family a file. Here are statements of lanes and of threads that follow, maps of registers,
and the class of all forms of mma.sync.

May import: values, specs, ir, language.
"""
