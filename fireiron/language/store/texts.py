"""Convert strategies and specs to texts and files, and back."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fireiron import files
from fireiron.errors import ArgumentError, StoreError
from fireiron.language.store.converter import Store
from fireiron.language.store.documents import VERSION, pretty
from fireiron.language.strategy import Strategy
from fireiron.spec import Spec, as_spec


def dumps(value: Strategy | Spec, *, classes: Iterable[type[Any]] = ()) -> str:
    """Return a strategy or a spec as JSON.

    Args: classes: the user's classes that occur in it (attrs classes with annotated fields).
    Raises: StoreError if a part cannot be stored without loss.
    """
    value = as_spec(value)
    if not isinstance(value, (Strategy, Spec)):
        raise ArgumentError("dumps: the argument is neither a strategy nor a spec", got=value)
    classes = _all_of(classes, "classes")
    store = _store(classes)
    kind = "strategy" if isinstance(value, Strategy) else "spec"
    try:
        text = pretty({"fireiron": kind, "version": VERSION, kind: store.plain(value)}) + "\n"
    except RecursionError:
        raise StoreError(f"the {kind} is nested too deeply to be stored") from None
    except (TypeError, ValueError) as error:
        raise StoreError(f"the {kind} cannot be stored: {error}", hint="fields must be JSON values, or values of stored classes") from None
    if _store(classes, programs_in(value)).read(text, kind) != value:
        raise StoreError(
            f"the {kind} changes when it is stored and loaded", got=value, hint="fields of your own classes must compare by value"
        )
    return text


def loads(text: str, *, classes: Iterable[type[Any]] = (), programs: Iterable[Any] = ()) -> Strategy:
    """Return the strategy of a text made by `dumps`. Raises: `StoreError` with the position of an error.

    Args: classes: as for `dumps`. programs: the programs of tasks that occur in it, except for those of the strategy library.
    """
    strategy: Strategy = _store(_all_of(classes, "classes"), _all_of(programs, "programs")).read(text, "strategy")
    return strategy


def _all_of(values: Iterable[Any], name: str) -> tuple[Any, ...]:
    """Return the elements of the argument of this name."""
    try:
        return tuple(values)
    except TypeError:
        raise ArgumentError(f"{name}: not a list", got=values, legal=f"{name}=[...]") from None


def _store(classes: tuple[type[Any], ...], programs: tuple[Any, ...] = ()) -> Store:
    """Return the converter of a document. All documents without users' classes share one, because making it takes longer than reading."""
    return Store(classes, programs) if classes or programs else _of_built_in()


@functools.cache
def _of_built_in() -> Store:
    return Store(())


def programs_in(value: Strategy | Spec) -> tuple[Any, ...]:
    """Return the task programs in the steps of a strategy."""
    parts = value.alternatives if isinstance(value, Strategy) else ()
    return tuple(step.program for strategy in parts for step in strategy.steps if hasattr(step, "program"))


def loads_spec(text: str, *, classes: Iterable[type[Any]] = ()) -> Spec:
    """Return the spec of a text made by `dumps`. Raises: `StoreError` with the position of an error."""
    spec: Spec = _store(_all_of(classes, "classes")).read(text, "spec")
    return spec


def save(value: Strategy | Spec, path: str | Path, *, overwrite: bool = False, classes: Iterable[type[Any]] = ()) -> None:
    """Write a strategy or a spec to a file atomically; refuse to replace an existing file unless `overwrite`."""
    write_text(path, dumps(value, classes=classes), overwrite=overwrite)


def load(path: str | Path, *, classes: Iterable[type[Any]] = (), programs: Iterable[Any] = ()) -> Strategy:
    """Return the strategy in a file written by `save`. Raises: `StoreError` if it cannot be read."""
    text = files.read_text(path)
    try:
        return loads(text, classes=classes, programs=programs)
    except StoreError as error:
        raise error.located(within=path) from None


def write_text(path: str | Path, text: str, *, overwrite: bool = False) -> None:
    """Write a text file atomically. Raises: `StoreError` if it cannot be written, or exists and `overwrite` is false."""
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise StoreError(f"{path} cannot be written: {error}") from None
    files.write(path, data, overwrite=overwrite)
