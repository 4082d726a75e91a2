"""Type checks of attrs fields at construction, from their annotations."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from fireiron.errors import ArgumentError, call_site
from fireiron.frozen import compared_fields

BUILT_IN: Final = {one.__name__: one for one in (int, str, bool, bytes, tuple, list, dict)}

KNOWN: Final = (
    *BUILT_IN, "float", "None", "DType", "Expr", "Kind", "LaneMap", "Layout", "Level",
    "MatrixLayout", "Memory", "Parameter", "Place", "Processor", "Swizzle", "View",
)  # fmt: skip
"""The types that are checked, by name."""

Fits: TypeAlias = Callable[[Any], bool]


def check_types(value: Any) -> None:
    """Refuse a value of an attrs class whose fields do not have their annotated types.

    `int` excludes truth values. Classes are recognized by name, so nothing has to be imported; types that are not in `KNOWN` are not
    checked. Instances of subclasses of `str` become plain strings.

    >>> import attrs
    >>> from fireiron.errors import ArgumentError
    >>> @attrs.frozen
    ... class Corner:
    ...     side: int | None
    >>> try:
    ...     check_types(Corner("8"))
    ... except ArgumentError as error:
    ...     print(error.asked, error.legal)
    Corner: side has the wrong type int | None

    Raises: ArgumentError with the field, its value, and its type.
    """
    for name, annotation, fits in _fields(type(value)):  # type: ignore[arg-type]
        given = getattr(value, name)
        if isinstance(given, str) and type(given) is not str:
            object.__setattr__(value, name, given[:])
        if not fits(given):
            raise ArgumentError(f"{type(value).__name__}: {name} has the wrong type", got=given, legal=annotation, at=call_site())


@functools.cache
def _fields(cls: type[Any]) -> tuple[tuple[str, str, Fits], ...]:
    """The checked fields: their names, the text of their types, and the predicates."""
    annotations = [(name, _annotation_text(cls, name, annotation)) for name, annotation in compared_fields(cls)]
    return tuple((name, text, _fitting(text)) for name, text in annotations)


def _annotation_text(cls: type[Any], name: str, kind: object) -> str:
    """The text of a field's type as the class or a base declares it; the type that attrs stores may have been replaced."""
    stated = next((own[name] for base in cls.__mro__ if name in (own := vars(base).get("__annotations__", {}))), kind)
    if isinstance(stated, str):
        return stated
    return stated.__name__ if isinstance(stated, type) else "Any"


@functools.cache
def _fitting(annotation: str) -> Fits:
    """The predicate for a type, given as the text of an annotation."""
    parts = _split(annotation, "|")
    if len(parts) > 1:
        choices = [_fitting(part) for part in parts]
        return lambda value: any(one(value) for one in choices)
    if annotation.startswith("tuple["):
        return _of_tuple(_split(annotation.removeprefix("tuple[").removesuffix("]"), ","))
    name = annotation.partition("[")[0].rpartition(".")[2]
    if name not in KNOWN:
        return lambda value: True
    if name == "None":
        return lambda value: value is None
    if name == "float":
        return lambda value: type(value) in (int, float)
    if name in BUILT_IN:
        return lambda value: isinstance(value, BUILT_IN[name]) and not (name == "int" and isinstance(value, bool))
    return lambda value: any(one.__name__ == name for one in type(value).__mro__)


def _of_tuple(parts: list[str]) -> Fits:
    inner = [_fitting(part) for part in parts if part != "..."]
    if parts[-1] == "...":
        return lambda value: isinstance(value, tuple) and all(map(inner[0], value))

    def fits(value: Any) -> bool:
        return isinstance(value, tuple) and len(value) == len(inner) and all(one(part) for one, part in zip(inner, value, strict=True))

    return fits


def _split(text: str, sign: str) -> list[str]:
    """The parts of a text between separators that are not in brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == sign and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


__all__ = ["check_types"]
