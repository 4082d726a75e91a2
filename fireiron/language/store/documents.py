"""JSON documents: formatting, head, and positions of errors."""

from __future__ import annotations

import json
from typing import Any, Final

from cattrs import transform_error
from cattrs.errors import (
    ForbiddenExtraKeysError,
    StructureHandlerNotFoundError,
)

from fireiron.errors import FireironError, StoreError

VERSION: Final = 1
"""Version of the format; other versions are refused."""

_WIDTH: Final = 120


def pretty(value: Any, indent: int = 0) -> str:
    """Return JSON with short objects and lists on one line."""
    flat = json.dumps(value, allow_nan=False)
    if len(flat) + indent <= _WIDTH or not isinstance(value, (dict, list)) or not value:
        return flat
    pad = " " * (indent + 2)
    if isinstance(value, dict):
        rows = [f"{pad}{json.dumps(key)}: {pretty(part, indent + 2)}" for key, part in value.items()]
        return "{\n" + ",\n".join(rows) + "\n" + " " * indent + "}"
    return "[\n" + ",\n".join(pad + pretty(part, indent + 2) for part in value) + "\n" + " " * indent + "]"


def parsed(text: str) -> Any:
    """Return the document of a text; refuse fields that are given twice."""
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise StoreError(f"the text is not JSON: {error.msg}", at=f"line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise StoreError("the document is nested too deeply") from None
    except ValueError as error:  # Python refuses integers of thousands of digits
        raise StoreError(f"the text is not JSON: {error}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        raise StoreError(f"the field {next(name for name in names if names.count(name) > 1)!r} is given twice")
    return value


def _no_constant(name: str) -> Any:
    raise StoreError(f"{name} is not a legal value")


def check_head(document: Any, kind: str) -> None:
    """Refuse a document of another kind or version before reading it."""
    if not isinstance(document, dict) or "fireiron" not in document:
        raise StoreError(f"this is not a stored {kind}", hint='{"fireiron": "strategy", "version": 1, ...}')
    if document["fireiron"] != kind:
        other = {"strategy": "loads", "spec": "loads_spec"}.get(str(document["fireiron"]))
        raise StoreError(f"a {kind} is needed", got=document["fireiron"], at="$.fireiron", hint=None if other is None else f"{other}(text)")
    version = document.get("version")
    if type(version) is not int or version != VERSION:
        raise StoreError("this version of the format is not supported", got=version, legal=[VERSION], at="$.version")
    names = {"fireiron", "version", kind}
    if set(document) != names:
        odd = sorted(set(document) ^ names)[0]
        raise StoreError(f"the field {odd!r} is {'missing' if odd in names else 'unknown'}", at="$")


def noted(error: Exception, note: Any) -> Exception:
    """Add the note from which `located` builds the path of an error."""
    error.add_note(note)
    return error


def located(error: Exception, kind: str) -> StoreError:
    """Return the first error of cattrs, with its path in the document; raise unexpected errors unchanged."""
    errors: list[BaseException] = []

    def remember(cause: BaseException, wanted: Any) -> str:
        errors.append(cause)
        return ""

    try:
        paths = transform_error(error, f"$.{kind}", remember)
    except RecursionError:
        return StoreError("the document is nested too deeply")
    first = errors[0]
    at = paths[0].rpartition(" @ ")[2]
    if isinstance(first, FireironError):
        return StoreError(first.asked, got=first.got, legal=first.legal, at=at, hint=first.hint)
    if isinstance(first, RecursionError):
        return StoreError("the document is nested too deeply")
    if isinstance(first, KeyError):
        return StoreError("a field is missing", at=at)
    if isinstance(first, ForbiddenExtraKeysError):
        return StoreError(f"unknown field {sorted(first.extra_fields)[0]!r}", at=at)
    if isinstance(first, (TypeError, ValueError, LookupError, StructureHandlerNotFoundError)):  # a user's class refuses its fields
        return StoreError(f"{type(first).__name__}: {first}", at=at)
    raise first
