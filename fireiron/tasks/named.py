"""Store and load programs by name: a stored strategy does not contain its program, because loading never executes stored text.

A program of the strategy library is loaded from its file; a user's program is passed to the loader. The digests of the variants must equal
the stored ones.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from fireiron.errors import StoreError
from fireiron.package_paths import library_folder
from fireiron.tasks.program import Tasks

LIBRARY: Final = "fireiron.strategies."
DEFAULT_NAME: Final = "program"
"""The default name of a program in its file."""


def title(program: Tasks) -> str:
    """Return the name of a program: its place in the library, or otherwise the file of its first variant."""
    return in_library(program) or _file(program.variants[0].function)


def _file(function: Callable[..., Any]) -> str:
    """The name of a function's file."""
    return Path(function.__code__.co_filename).stem


def in_library(program: Tasks) -> str:
    """The place of a program in the strategy library: `file`, or `file:name`; empty if it is not there."""
    return _place(program, [variant.function.__module__ for variant in program.variants], DEFAULT_NAME)


def variable_of(program: Tasks) -> str | None:
    """The variable that holds a program in the file of its variants; empty for a program of the library, None if there is no variable."""
    if in_library(program):
        return ""
    for variant in program.variants:
        names = [name for name, value in variant.function.__globals__.items() if isinstance(value, Tasks) and value == program]
        if names:
            return DEFAULT_NAME if DEFAULT_NAME in names else names[0]
    return None


def _place(value: Any, modules: Iterable[str | None], default_name: str) -> str:
    for module in dict.fromkeys(modules):
        if module is not None and module.startswith(LIBRARY):
            names = [name for name, candidate in vars(sys.modules[module]).items() if type(candidate) is type(value) and candidate == value]
            if names:
                file, name = module.removeprefix(LIBRARY), default_name if default_name in names else names[0]
                return file if name == default_name else f"{file}:{name}"
    return ""


def plain_program(program: Tasks) -> dict[str, Any]:
    """A program as JSON values: its name, whether it is in the library, and the digest of each variant."""
    library = in_library(program)
    named = {"library": library} if library else {"name": title(program)}
    return {**named, "variants": {variant.name: variant.digest for variant in program.variants}}


def load_program(fields: Any, programs: Iterable[Any]) -> Tasks:
    """Return the program that `plain_program` stored, from `programs` or from the library.

    Raises: StoreError if it is in neither, or has changed.
    """
    known = isinstance(fields, dict) and set(fields) in ({"library", "variants"}, {"name", "variants"})
    name = fields.get("library", fields.get("name")) if known else None
    variants = fields["variants"] if known else None
    if not isinstance(name, str) or not isinstance(variants, dict):
        raise StoreError("a program must be a name and the digests of its variants", got=fields)
    given = [program for program in programs if isinstance(program, Tasks)]
    for program in given:
        if changes(program, variants) == ():
            return program
    if "library" in fields:
        return _require_unchanged(_of_library(name), variants, name)
    similar = [program for program in given if {variant.name for variant in program.variants} & set(variants)]
    if similar:
        return _require_unchanged(similar[0], variants, name)
    others = [title(program) for program in given] or "no program"
    raise StoreError(f"the program {name} was not passed to loads", got=others, hint="loads(text, programs=[...])")


def _require_unchanged(program: Tasks, variants: Mapping[str, str], name: str) -> Tasks:
    changed = changes(program, variants)
    if changed:
        hint = "build the strategy again from the present program"
        raise StoreError(f"the program {name} has changed since it was stored", got=", ".join(changed), hint=hint)
    return program


def changes(program: Tasks, variants: Mapping[str, str]) -> tuple[str, ...]:
    """The differences between a program and the digests of another."""
    digests = {variant.name: variant.digest for variant in program.variants}
    lines = [f"{name} is missing" for name in variants if name not in digests]
    lines += [f"{name} is new" for name in digests if name not in variants]
    return (*lines, *(f"{name} has changed" for name in digests if name in variants and digests[name] != variants[name]))


def _of_library(place: str) -> Tasks:
    """A program of the library, by its place."""
    program = _value_at(place, DEFAULT_NAME)
    if not isinstance(program, Tasks):
        raise StoreError(f"the strategy library has no program {place}", got=type(program).__name__)
    return program


def _value_at(place: str, default_name: str) -> Any:
    file, _, name = place.partition(":")
    if not file.isidentifier() or f"{file}.py" not in os.listdir(library_folder()):  # never a path from stored text
        raise StoreError(f"the strategy library has no file {file}.py", got=place)
    return getattr(importlib.import_module(LIBRARY + file), name or default_name, None)


def plain_function(function: Callable[..., Any]) -> str:
    """The place of a function in the library. Raises: StoreError if it is not there."""
    place = _place(function, [function.__module__], "")
    if not place:
        raise StoreError(
            f"a mapping that {getattr(function, '__name__', function)} computes cannot be stored before its tunables have values",
            hint="set the tunables by strategy.with_(...), or use them as values of a Mapping",
        )
    return place


def load_function(place: Any) -> Callable[..., Any]:
    """The function at a place in the library."""
    function = _value_at(place, "") if isinstance(place, str) and ":" in place else None
    if not callable(function) or isinstance(function, type):
        raise StoreError("the strategy library has no such function", got=place)
    return function  # type: ignore[no-any-return]
