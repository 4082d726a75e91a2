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
    "DealOrder": "TileOrder",
    "Dealt": "UnitMode",
    "Converted": "CastOnCopy",
    "Delay": "Defer",
    "InFlight": "MmaInFlight",
    "InTurns": "OrderMma",
    "LastFirst": "LongestFirst",
    "OwnStages": "Stages",
    "Partial": "Rfactor",
    "Place": "SetMemory",
    "Resident": "MinBlocksPerSm",
    "ScaleUnlessOne": "SkipIfIdentity",
    "Share": "ShareStages",
    "Skip": "SkipMaskedTiles",
    "Specialize": "WarpSpecialize",
    "Staggered": "StaggerBlocks",
    "StreamedMove": "EvictFirstMove",
    "Turns": "PingPong",
    "Within": "MaxSharedBytes",
}
"""The present name of a class by its first one."""

_DEFINITION: Final = {"first": "init", "each": "body", "last": "final", "over": "loop"}

FIELDS: Final[Mapping[str, Mapping[str, str]]] = {
    "CoalescedCopy": {"elements": "width"},
    "Defer": {"behind": "after"},
    "Fused": _DEFINITION,
    "FusedKind": _DEFINITION,
    "LongestFirst": {"together": "group"},
    "Mapping": {"within": "max_shared_bytes"},
    "PingPong": {"groups": "warpgroups"},
    "Pipeline": {"spread": "interleave"},
    "PrefetchEpilogue": {"fetched": "enable"},
    "ProgrammaticLaunch": {"ready": "no_wait"},
    "Rasterize": {"rows": "group", "walk": "raster"},
    "Rfactor": {"name": "step"},
    "StaggerBlocks": {"shift": "offset"},
    "Strategy": {"otherwise": "fallback"},
    "TaskMapping": {
        "bands": "group_m",
        "in_flight": "mma_in_flight",
        "producers": "producer_threads",
        "spread": "interleave",
        "walk": "raster",
    },
    "WarpSpecialize": {"threads": "producer_threads"},
}
"""The present name of a field by its first one, by the present name of its class."""

VALUES: Final[Mapping[str, Mapping[str, Mapping[str, str]]]] = {
    "EvictFirstMove": {"name": {"Streamed": "EvictFirst"}},
    "SkipIfIdentity": {"name": {"UnlessOne": "SkipIfIdentity"}},
}
"""The present text of a field by its first one, by field, by the present name of its class."""

MEMORIES: Final[Mapping[str, str]] = {"INDEX": "COORD"}
"""The present name of a memory by its first one."""

LOOP_OPTIONS: Final[Mapping[str, str]] = {
    "delay": "defer",
    "fetched": "dynamic_tiles",
    "groups": "consumer_groups",
    "in_flight": "mma_in_flight",
    "producers": "producer_threads",
    "spread": "interleave",
    "turns": "ordered_mma",
}
"""The present option of a loop by its first name, in Graphene's texts."""

MECHANISMS: Final[Mapping[str, str]] = {"bulk": "bulk_group", "group": "cp_async_group", "product": "wgmma_group", "ring": "mbarrier"}
"""The present name of a completion mechanism by its first one."""

_FIRST: Final[Mapping[str, str]] = {present: first for first, present in CLASSES.items()}


def first_class(name: str) -> str:
    """The first name of a class of this package."""
    return _FIRST.get(name, name)


def first_fields(name: str) -> Mapping[str, str]:
    """The first name of each renamed field by its present one, of a class by its present name."""
    return {present: first for first, present in FIELDS.get(name, {}).items()}


def first_value(name: str, field: str, value: object) -> object:
    """The first text of a field of a class, by their present names; other values are as they are."""
    first = {present: former for former, present in VALUES.get(name, {}).get(field, {}).items()}
    return first.get(value, value) if isinstance(value, str) else value


def present_fields(name: str, fields: Mapping[str, object]) -> dict[str, object]:
    """The fields of a class of this name, under their present names and with their present texts."""
    former, values = FIELDS.get(name, {}), VALUES.get(name, {})
    present = {former.get(key, key): value for key, value in fields.items()}
    return {key: values.get(key, {}).get(value, value) if isinstance(value, str) else value for key, value in present.items()}


__all__ = ["CLASSES", "FIELDS", "MEMORIES", "VALUES", "first_class", "first_fields", "first_value", "present_fields"]
