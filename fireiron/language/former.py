"""Former names of classes and fields: older strategies contain them, and the hashes of strategies are computed from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

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
    "EvictFirstMove": {"name": {"EvictFirst": "EVICT_FIRST", "Streamed": "EVICT_FIRST"}},
    "SkipIfIdentity": {"name": {"UnlessOne": "SkipIfIdentity"}},
}
"""The present text of a field by its first one, by field, by the present name of its class."""

TUNABLES: Final[Mapping[str, str]] = {
    "ahead": "lookahead",
    "bands": "group_m",
    "blocks": "num_blocks",
    "chunk": "epi_n",
    "cm": "cluster_m",
    "cn": "cluster_n",
    "fly": "mma_in_flight",
    "in_flight": "mma_in_flight",
    "parts": "num_splits",
    "producer": "producer_threads",
    "rows": "epi_m",
    "shift": "stagger",
    "together": "heads_per_group",
    "turns": "iterations",
    "walk": "raster",
}
"""The present name of a tunable of the library by its first one; `_TUNABLES_OF` has those that differ."""

_TUNABLES_OF: Final[Mapping[str, Mapping[str, str]]] = {
    "attention": {"parts": "score_parts"},
    **{name: {"rows": "rows"} for name in ("layernorm", "rmsnorm", "softmax")},
}

STRATEGIES: Final[Mapping[str, str]] = {
    "attention:causal_held": "attention:causal_q_in_registers",
    "attention:held": "attention:q_in_registers",
    "hopper_attention:causal_dynamic_held": "hopper_attention:causal_dynamic_q_in_registers",
    "hopper_attention:causal_held": "hopper_attention:causal_q_in_registers",
    "hopper_attention:causal_in_order": "hopper_attention:causal_no_overlap",
    "hopper_attention:causal_in_turns": "hopper_attention:causal_order_mma",
    "hopper_attention:held": "hopper_attention:q_in_registers",
    "hopper_attention:in_order": "hopper_attention:no_overlap",
    "hopper_attention:in_turns": "hopper_attention:order_mma",
    "lstm:in_turn": "lstm:two_loops",
}
"""The present name of a strategy of the library by its first one."""

HASHES: Final[Mapping[str, str]] = {
    "08a2fe70e5ac12aa": "9bced0a8ab9c464e",  # tasks_attention:strategy
    "1384252b5ea56638": "29522f74cb624b55",  # lstm:hopper
    "1b3ea2c3b3460cd9": "10b58b24b53f3ffa",  # dual:hopper
    "3f61b4001da9d05b": "f208554d36f6e14e",  # lstm:hopper_tanh
    "9b3126a82e3a0fac": "4776d7e18a948abf",  # dual:tiles
    "ae765a2568f22180": "b3b3139bef712a72",  # tasks_attention:warpgroups
}
"""The present hash of a strategy by its first one, where renamed tunables changed it."""

VARIANTS: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "d7e436314952a991": ("887017503ff178d5", {"SLACK": "RESCALE_THRESHOLD"}),  # weights_rows of tasks_attention
}
"""The present digest of a variant of the library by its first one, and the present name of each renamed tunable by its first one."""

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
_FIRST_TUNABLES: Final[Mapping[str, str]] = {present: first for first, present in TUNABLES.items()} | {"score_parts": "parts"}


def first_class(name: str) -> str:
    """Return the first name of a class of this package."""
    return _FIRST.get(name, name)


def first_fields(name: str) -> Mapping[str, str]:
    """Return the first name of each renamed field by its present name, for a class with its present name."""
    return {present: first for first, present in FIELDS.get(name, {}).items()}


def first_value(name: str, field: str, value: object) -> object:
    """Return the first text of a field of a class, by their present names; other values are returned unchanged."""
    if name == "Tunable" and field == "name":
        return _FIRST_TUNABLES.get(str(value), value)
    first = {present: former for former, present in VALUES.get(name, {}).get(field, {}).items()}
    return first.get(value, value) if isinstance(value, str) else value


def present_fields(name: str, fields: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of a class under their present names and with their present texts."""
    former, values = FIELDS.get(name, {}), VALUES.get(name, {})
    present = {former.get(key, key): value for key, value in fields.items()}
    return {key: values.get(key, {}).get(value, value) if isinstance(value, str) else value for key, value in present.items()}


def present_tasks(program: Any, mapping: Any) -> tuple[Any, Any]:
    """Rename digests and tunables of variants in a stored program of the library and its mapping."""
    variants = program.get("variants") if isinstance(program, dict) and "library" in program else None
    if not isinstance(variants, dict):
        return program, mapping
    renamed = {name: VARIANTS[digest] for name, digest in variants.items() if isinstance(digest, str) and digest in VARIANTS}
    program = {**program, "variants": variants | {name: digest for name, (digest, _) in renamed.items()}}
    instances = mapping.get("instances") if isinstance(mapping, dict) else None
    if not renamed or not isinstance(instances, list):
        return program, mapping
    return program, {**mapping, "instances": [_present_instance(instance, renamed) for instance in instances]}


def _present_instance(instance: Any, renamed: Mapping[str, tuple[str, Mapping[str, str]]]) -> Any:
    """Return an instance of a stored mapping with the present names of the tunables of its variant."""
    tunables = instance.get("tunables") if isinstance(instance, dict) else None
    variant = instance.get("variant", instance.get("instance")) if isinstance(instance, dict) else None
    if not isinstance(tunables, dict) or not isinstance(variant, str) or variant not in renamed:
        return instance
    names = renamed[variant][1]
    return {**instance, "tunables": {names.get(name, name): value for name, value in tunables.items()}}


def present_record(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Rename the strategy, the tunables and the hash in the fields of a record, unless its strategy is in a user's own file."""
    strategy, values = fields.get("strategy"), fields.get("values")
    if not isinstance(strategy, str) or not isinstance(values, Mapping) or ".py" in strategy:
        return fields
    own = _TUNABLES_OF.get(strategy.partition(":")[0], {})
    digest = fields.get("strategy_hash")
    return {
        **fields,
        "strategy": STRATEGIES.get(strategy, strategy),
        "strategy_hash": HASHES.get(digest, digest) if isinstance(digest, str) else digest,
        "values": {own.get(name, TUNABLES.get(name, name)): value for name, value in values.items()},
    }


__all__ = [
    "CLASSES",
    "FIELDS",
    "HASHES",
    "MEMORIES",
    "STRATEGIES",
    "TUNABLES",
    "VALUES",
    "VARIANTS",
    "first_class",
    "first_fields",
    "first_value",
    "present_fields",
    "present_record",
    "present_tasks",
]
