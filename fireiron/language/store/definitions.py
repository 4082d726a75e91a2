"""Definitions of several steps as plain values: the arguments of `Fused`, mappings as lists of pairs, as their order counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fireiron.errors import StoreError
from fireiron.specs.fused import PARTS, ROLES, Fused, FusedKind, words_of

PAIRED: Final = ("operands", *PARTS, "types")
"""What of a definition is by name."""


def definition_fields(kind: FusedKind) -> dict[str, Any]:
    """The arguments of `Fused`, all of them; a `StoreError` for a part of a definition, which no user's strategy is for."""
    if not kind.whole:
        raise StoreError(f"a part of the definition {kind.title} cannot be stored", hint="store the strategy and the spec of the kernel")
    words = {**dict.fromkeys(PAIRED, {}), **dict.fromkeys(ROLES, ""), **words_of(kind)}
    return {name: [*value.items()] if name in PAIRED else value for name, value in words.items()}


def definition(fields: Mapping[str, Any]) -> FusedKind:
    """The kind of a definition from such arguments; refused where a name stands twice, or where `Fused` refuses it."""
    named = {name: dict(fields[name]) for name in PAIRED}
    for name, pairs in named.items():
        if len(pairs) != len(fields[name]):
            raise StoreError(f"{name} name one thing twice", got=[first for first, _ in fields[name]])
    kind = Fused(**{**fields, **named}).kind
    assert isinstance(kind, FusedKind)
    return kind
