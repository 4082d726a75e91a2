"""Instructions, one file per family. An instruction set is an immutable tuple; to extend it, create a new tuple.

The folder is the registry: a file defines its `INSTRUCTIONS`, and `__all__` lists its names that `fireiron` exports.
Code shared by several families is in `performing`.

May import: values, specs, ir, language, performing.
"""

from __future__ import annotations

from typing import Final

from fireiron import folders
from fireiron.errors import ArgumentError, call_site, similar_names
from fireiron.language.tree import Executable
from fireiron.performing import mma

MODULES: Final = tuple(sorted((*folders.modules(__name__, __path__), mma), key=lambda module: module.__name__.rpartition(".")[2]))
"""The modules of this folder and the module of the class of mma.sync, in alphabetical order."""

_RANKED: Final = sorted(MODULES, key=lambda module: getattr(module, "RANK", 0))

INSTRUCTIONS: Final[tuple[Executable, ...]] = tuple(
    instruction for module in _RANKED for instruction in getattr(module, "INSTRUCTIONS", ())
)
"""The built-in instructions. The first one that performs a spec on the target is used.

A family defines the order of its instructions. Families are in alphabetical order, those with a higher `RANK` last; two families rarely
perform the same spec.
"""

_EXPORTED: Final = tuple(
    (name, value) for module in MODULES for name in getattr(module, "__all__", ()) if isinstance(value := getattr(module, name), Executable)
)


def instruction(name: str) -> Executable:
    """Return the built-in instruction with the name that messages and printed trees use.

    Legal: the name of an instruction in `INSTRUCTIONS`.
    Raises: ArgumentError for another name, with the similar ones, and for values that are not strings.

    >>> from fireiron import *
    >>> print(instruction("WGMMA_F16_F32").performs())
    MatMul(64,n,16)(SH,SH,RF)(Warpgroup), A and B float16, C float32, n 8 to 256 by 8, A and B in swizzled chunks
    """
    known = {built_in.name: built_in for built_in in INSTRUCTIONS}
    if not isinstance(name, str):
        raise ArgumentError("the name of an instruction must be a string", got=name, legal=list(known), at=call_site())
    if name not in known:
        near = ", ".join(similar_names(name, known))
        raise ArgumentError("no built-in instruction has this name", got=name, legal=near or list(known), at=call_site())
    return known[name]


def exported_name(executable: Executable) -> str | None:
    """Return the name by which `fireiron` exports an instruction. Return None if it is not exported."""
    return next((name for name, value in _EXPORTED if type(value) is type(executable) and value == executable), None)
