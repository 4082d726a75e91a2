"""Former names of classes and fields: older strategies contain them, and the hashes of strategies are computed from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# plain-words: allow-file
CLASSES: Final[Mapping[str, str]] = {
    "Ahead": "PrefetchEpilogue",
    "Bands": "Rasterize",
    "Chained": "ProgrammaticLaunch",
    "Coalesced": "CoalescedCopy",
    "Converted": "CastOnCopy",
    "Delay": "Defer",
    "InFlight": "MmaInFlight",
    "InTurns": "OrderMma",
    "LastFirst": "LongestFirst",
    "OwnStages": "Stages",
    "Partial": "Rfactor",
    "Place": "SetMemory",
    "Resident": "MinBlocksPerSm",
    "Share": "ShareStages",
    "Skip": "SkipMaskedTiles",
    "Specialize": "WarpSpecialize",
    "Staggered": "StaggerBlocks",
    "Turns": "PingPong",
    "Within": "MaxSharedBytes",
}
"""The present name of a class by its first one."""

FIELDS: Final[Mapping[str, Mapping[str, str]]] = {
    "CoalescedCopy": {"elements": "width"},
    "Defer": {"behind": "after"},
    "FusedKind": {"first": "init", "each": "body", "last": "final", "over": "loop"},
    "LongestFirst": {"together": "group"},
    "PingPong": {"groups": "warpgroups"},
    "Pipeline": {"spread": "interleave"},
    "PrefetchEpilogue": {"fetched": "enable"},
    "ProgrammaticLaunch": {"ready": "no_wait"},
    "Rasterize": {"rows": "group", "walk": "raster"},
    "Rfactor": {"name": "step"},
    "StaggerBlocks": {"shift": "offset"},
    "Strategy": {"otherwise": "fallback"},
    "WarpSpecialize": {"threads": "producer_threads"},
}
"""The present name of a field by its first one, by the present name of its class."""

_FIRST: Final[Mapping[str, str]] = {present: first for first, present in CLASSES.items()}


def first_class(name: str) -> str:
    """The first name of a class of this package."""
    return _FIRST.get(name, name)


def first_fields(name: str) -> Mapping[str, str]:
    """The first name of each renamed field by its present one, of a class by its present name."""
    return {present: first for first, present in FIELDS.get(name, {}).items()}


def present_fields(name: str, fields: Mapping[str, object]) -> dict[str, object]:
    """The fields of a class of this name, under their present names."""
    former = FIELDS.get(name, {})
    return {former.get(key, key): value for key, value in fields.items()}


__all__ = ["CLASSES", "FIELDS", "first_class", "first_fields", "present_fields"]
