"""Store programs on disk: the checked kernel IR and its CUDA text, so that later processes need not generate and check them again.

The key consists of everything that determines IR, proof and text: the strategy with its values, the spec, the target, the name, and the
build of this package. Entries are verified by their digest. Programs that use a user's instructions or refinements are not stored, because
changes of their code cannot be detected.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from pathlib import Path
from typing import Final

from fireiron import disk_cache, settings
from fireiron.compiler import Program
from fireiron.errors import CacheWarning
from fireiron.executable import INSTRUCTIONS

KIND: Final = "program"
"""The kind of these entries, and their file suffix."""

MIN_SECONDS: Final = 0.004
"""A program that takes fewer seconds to generate is not stored. To generate it again, a process also imports passes, checks and printer, in
0.06 s."""


def place(kind: str, key: str) -> Path:
    """Return the file of an entry."""
    return disk_cache.place(settings.cache_folder(), kind, key)


def key_of(program: Program) -> str | None:
    """Return the key of a program; None if it is not stored."""
    if program.instructions != INSTRUCTIONS or not settings.cache_enabled():
        return None
    return disk_cache.key_of(KIND, program.strategy, program.spec, program.architecture, program.name, dict(program.chosen))


def recalled(program: Program, known: str | None = None) -> Program:
    """Return the program, with the stored IR and text if it has none yet. `known` is its key, if known."""
    if program.is_complete or program.has_key:
        return program
    start, key = time.perf_counter(), known or key_of(program)
    program.set_key(key)
    data = None if key is None else disk_cache.bytes_at(place(KIND, key))
    if key is None or data is None:
        return program
    try:
        parts, head = disk_cache.read(KIND, key, data)
        program.adopt(parts, head["created"])
    except (disk_cache.DamagedError, KeyError, TypeError, ValueError) as error:
        path = place(KIND, key)
        warnings.warn(f"{path} is not used and generated again: {error}", CacheWarning, stacklevel=3)
        with contextlib.suppress(OSError):
            path.unlink()
        return program
    program.seconds["kept"] = time.perf_counter() - start
    return program


def remember(program: Program) -> None:
    """Store a program that this process generated, if that took long enough; warn once if the disk is full or read-only."""
    key = program.key
    if key is None or program.cached_since is not None or not program.is_complete or sum(program.seconds.values()) < MIN_SECONDS:
        return
    about = {"kernels": [program.name], "about": str(program.spec)[:200], "arch": program.architecture.name}
    data = disk_cache.written(KIND, key, program.parts, {**about, "toolchain": [], "seconds": sum(program.seconds.values())})
    if data is not None:
        with contextlib.suppress(OSError):  # the compile cache warns about it
            disk_cache.save(place(KIND, key), data)


__all__ = ["KIND", "key_of", "place", "recalled", "remember"]
