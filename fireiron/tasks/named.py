"""Programs by name: a stored strategy says which program it is of, and never holds one, since loading runs no text that is stored.

A program of the strategy library is found by its file; one of your own is given to whoever loads the strategy. Either has to be the
program that was stored: the digest of each variant tells.
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
USUAL: Final = "program"
"""What a program is called in its file where nothing else is said."""


def title(program: Tasks) -> str:
    """What a program is called: its place in the library, else the file of its first variant."""
    return in_library(program) or _file(program.variants[0].function)


def _file(function: Callable[..., Any]) -> str:
    """The name of a function's file."""
    return Path(function.__code__.co_filename).stem


def in_library(program: Tasks) -> str:
    """Where a program stands in the strategy library: `file`, or `file:name`; empty where it does not."""
    return _place(program, [one.function.__module__ for one in program.variants], USUAL)


def _place(value: Any, modules: Iterable[str | None], usual: str) -> str:
    for module in dict.fromkeys(modules):
        if module is not None and module.startswith(LIBRARY):
            names = [name for name, one in vars(sys.modules[module]).items() if type(one) is type(value) and one == value]
            if names:
                file, name = module.removeprefix(LIBRARY), usual if usual in names else names[0]
                return file if name == usual else f"{file}:{name}"
    return ""


def plain_program(program: Tasks) -> dict[str, Any]:
    """A program in types of JSON: its name, whether the library has it, and the digest of each variant."""
    library = in_library(program)
    named = {"library": library} if library else {"name": title(program)}
    return {**named, "variants": {one.name: one.digest for one in program.variants}}


def found_program(fields: Any, programs: Iterable[Any]) -> Tasks:
    """The program that `plain_program` wrote down, among those given, or in the library.

    Raises: StoreError where it is not given, or another by now.
    """
    known = isinstance(fields, dict) and set(fields) in ({"library", "variants"}, {"name", "variants"})
    name = fields.get("library", fields.get("name")) if known else None
    variants = fields["variants"] if known else None
    if not isinstance(name, str) or not isinstance(variants, dict):
        raise StoreError("a program is its name and the digests of its variants", got=fields)
    given = [one for one in programs if isinstance(one, Tasks)]
    for one in given:
        if changes(one, variants) == ():
            return one
    if "library" in fields:
        return _same(_of_library(name), variants, name)
    alike = [one for one in given if {each.name for each in one.variants} & set(variants)]
    if alike:
        return _same(alike[0], variants, name)
    others = [title(one) for one in given] or "no program"
    raise StoreError(f"the program {name} is not given", got=others, hint="loads(text, programs=[...])")


def _same(program: Tasks, variants: Mapping[str, str], name: str) -> Tasks:
    changed = changes(program, variants)
    if changed:
        hint = "the strategy is of the program as it was; make it anew of this one"
        raise StoreError(f"the program {name} is another than the one that was stored", got=", ".join(changed), hint=hint)
    return program


def changes(program: Tasks, variants: Mapping[str, str]) -> tuple[str, ...]:
    """What differs in a program from the digests of another."""
    mine = {one.name: one.digest for one in program.variants}
    lines = [f"{name} is missing" for name in variants if name not in mine]
    lines += [f"{name} is new" for name in mine if name not in variants]
    return (*lines, *(f"{name} is another" for name in mine if name in variants and mine[name] != variants[name]))


def _of_library(place: str) -> Tasks:
    """A program of the library by its place."""
    found = _at(place, USUAL)
    if not isinstance(found, Tasks):
        raise StoreError(f"the strategy library has no program {place}", got=type(found).__name__)
    return found


def _at(place: str, usual: str) -> Any:
    file, _, name = place.partition(":")
    if not file.isidentifier() or f"{file}.py" not in os.listdir(library_folder()):  # whatever is stored as its name
        raise StoreError(f"the strategy library has no file {file}.py", got=place)
    return getattr(importlib.import_module(LIBRARY + file), name or usual, None)


def plain_function(function: Callable[..., Any]) -> str:
    """Where a function stands in the library; a StoreError where it does not."""
    place = _place(function, [function.__module__], "")
    if not place:
        raise StoreError(
            f"a mapping that {getattr(function, '__name__', function)} makes cannot be stored before its tunables have values",
            hint="strategy.with_(...), or tunables as values of a Mapping",
        )
    return place


def found_function(place: Any) -> Callable[..., Any]:
    """The function of a place in the library."""
    found = _at(place, "") if isinstance(place, str) and ":" in place else None
    if not callable(found) or isinstance(found, type):
        raise StoreError("the strategy library has no such function", got=place)
    return found  # type: ignore[no-any-return]
