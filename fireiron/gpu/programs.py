"""Programs on disk: the final kernel IR, which all independent checks passed, and its text, so that the next process need not make them.

The key is the strategy with its values, the spec, the target, the name, and the build of this package: all that IR, proof and text follow
from. What is read was digested when it was written. A program with a part that is not of this package, an instruction or a refinement of
a user's own, is not kept: nobody can tell when its code changes.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from pathlib import Path
from typing import Final

from fireiron import kept, settings
from fireiron.compiler import Program
from fireiron.errors import CacheWarning
from fireiron.executable import INSTRUCTIONS

KIND: Final = "program"
"""The kind of these entries, and the ending of their names."""

WORTH: Final = 0.004
"""Seconds below which a program is not stored. A process that builds one again also imports passes, checks and printer, in 0.06 s."""


def place(kind: str, key: str) -> Path:
    """The file of an entry."""
    return kept.place(settings.cache_folder(), kind, key)


def key_of(program: Program) -> str | None:
    """The key of a program; None where it is not kept."""
    if program.instructions != INSTRUCTIONS or not settings.cache_enabled():
        return None
    return kept.key_of(KIND, program.strategy, program.spec, program.architecture, program.name, dict(program.chosen))


def recalled(program: Program, known: str | None = None) -> Program:
    """The program itself, with IR and text as they were kept, if they were and are not made yet; `known` is its key, if that is known."""
    if program.is_made or program.is_asked:
        return program
    start, key = time.perf_counter(), known or key_of(program)
    program.asked(key)
    data = None if key is None else kept.bytes_at(place(KIND, key))
    if key is None or data is None:
        return program
    try:
        parts, head = kept.read(KIND, key, data)
        program.adopt(parts, head["created"])
    except (kept.DamagedError, KeyError, TypeError, ValueError) as error:
        path = place(KIND, key)
        warnings.warn(f"{path} is not used and made again: {error}", CacheWarning, stacklevel=3)
        with contextlib.suppress(OSError):
            path.unlink()
        return program
    program.seconds["kept"] = time.perf_counter() - start
    return program


def remember(program: Program) -> None:
    """Keep a program that was made here, if it took long enough; a disk that is full or read-only costs a warning, given once."""
    key = program.key
    if key is None or program.kept_since is not None or not program.is_made or sum(program.seconds.values()) < WORTH:
        return
    about = {"kernels": [program.name], "about": str(program.spec)[:200], "arch": program.architecture.name}
    data = kept.written(KIND, key, program.parts, {**about, "toolchain": [], "seconds": sum(program.seconds.values())})
    if data is not None:
        with contextlib.suppress(OSError):  # what compiles its text says so
            kept.save(place(KIND, key), data)


__all__ = ["KIND", "key_of", "place", "recalled", "remember"]
