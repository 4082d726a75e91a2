"""Pairs of verbs and refinements that no draw can have, each with the reason and a strategy that is refused for it.

`--pairs` excludes these; `tests/test_walker.py` tests that each is still refused.
"""

import functools
from collections.abc import Callable

import attrs

from fireiron import *
from fireiron.language.strategy import Strategy


@attrs.frozen
class Reason:
    """Why a feature cannot be drawn with others, and a bound strategy that tries: the text of its refusal contains `says`."""

    why: str
    tried: Callable[[], Strategy]
    says: str


blocks = MatMul(32, 32, 32)(GL, GL, GL)(Kernel).tile(16, 16).to(Block)

in_a_ring = (
    MatMul(64, 64, 64, dtype=float16)(GL, GL, GL)(Kernel).tile(64, 64).to(Block).epilog(RF, float32, Init.done(), Move.done()).split(64)
)

OF_DEFINITIONS: dict[str, Reason] = {
    "refine Defer": Reason("names steps of a definition", lambda: blocks.split(8).defer("a", after="b"), "is one step"),
    "refine OrderMma": Reason("names steps of a definition", lambda: blocks.split(8).order_mma("a", "b"), "is one step"),
    "refine ShareStages": Reason(
        "the factors of one product are used together, so none takes turns with the other",
        lambda: (
            in_a_ring.pipeline(2)
            .warp_specialize()
            .load(A, SH, Move.done())
            .load(B, SH, Move.done())
            .share_stages(A)
            .tile(64, 64)
            .to(Warpgroup)
            .done()
        ),
        "are used together",
    ),
    "refine SkipMaskedTiles": Reason(
        "a mask of a definition says what to skip",
        lambda: blocks.split(8).skip_masked_tiles(),
        "skip_masked_tiles needs a mask along one dimension",
    ),
}
"""Refinements of loops of definitions: incompatible with every other feature of a plain GEMM."""

LAST_FIRST = "both say which tile is a block's"

IMPOSSIBLE: dict[frozenset[str], Reason] = {
    frozenset({"refine Cluster", "verb split_k"}): Reason(
        "both say what a block does",
        lambda: MatMul(32, 32, 32)(GL, GL, GL)(Kernel).split_k(2, Block, 16).tile(16, 16).to(Block).cluster(1, 2).done(),
        "also determines the tile of a block",
    ),
    frozenset({"refine LongestFirst", "refine Rasterize"}): Reason(
        LAST_FIRST, lambda: blocks.rasterize(group_m=2).longest_first("m").done(), "the tile of a block"
    ),
    frozenset({"refine LongestFirst", "refine Cluster"}): Reason(
        LAST_FIRST, lambda: blocks.cluster(1, 2).longest_first("m").done(), "the tile of a block"
    ),
}
"""Pairs of features of GEMM each of which is drawn."""


def reason(first: str, other: str) -> Reason | None:
    """Why no GEMM can have both; None if it can."""
    return OF_DEFINITIONS.get(first) or OF_DEFINITIONS.get(other) or IMPOSSIBLE.get(frozenset((first, other)))


def possible(first: str, other: str) -> bool:
    """Whether a GEMM can have both."""
    return reason(first, other) is None


# ---------------------------------------------------------------------------------------------- public names

OF_TASKS = ("mapping", "processor", "place", "stored")
OF_CHAINS = ("verb", "argument")
ONE_OF = {"target": "a program has one target"}
"""Categories of which a program has one name."""

NEVER: dict[str, str] = {
    f"argument epilog.{name}": "a strategy stores the arguments of epilog by place: first, second, third"
    for name in ("init", "store", "dtype")
} | {
    "argument rasterize.raster": "a strategy stores raster=1 as rasterize(group_n=...), and raster=2 as hilbert()",
    "verb to_col_major": "a strategy stores it as storage_layout(ColMajor)",
    "verb to_row_major": "a strategy stores it as storage_layout(RowMajor)",
    "layout UnitMode": "the views of tiles have it; the spec that a strategy is bound to has no units",
}
"""Public names that no strategy can contain, with the reasons."""


def reason_for_names(first: str, other: str | None = None) -> str | None:
    """Why a program cannot use a public name (`campaign.names`), or two together; None if it can."""
    if other is None:
        return NEVER.get(first)
    kinds = {name.partition(" ")[0] for name in (first, other)}
    if len(kinds) == 1 and (why := ONE_OF.get(*kinds)) is not None:
        return why
    if kinds & {*OF_TASKS} and kinds & {*OF_CHAINS} and "mapping strategy" not in (first, other):
        return "a program of tasks has a mapping instead of verbs"
    return NEVER.get(first) or NEVER.get(other) or _of_roles(first, other) or _of_targets(first, other)


ROLES = {
    "multiplication": ("Fma", "Hfma2", "Mma", "SparseMma", "Wgmma", "SparseWgmma", "MmaSync"),
    "load of an operand to registers": ("LdMatrix", "LdMatrixWarpgroup"),
    "store of accumulators": ("StMatrix", "StMatrixWarpgroup"),
}
"""Classes of instructions that are alternatives for one step."""


@functools.cache
def _of_roles(first: str, other: str) -> str | None:
    """Why two instructions are alternatives for one step. A program with two such steps may have both."""
    roles = {_role(name) for name in (first, other)}
    return f"alternatives for one {role}" if len(roles) == 1 and (role := roles.pop()) is not None else None


@functools.cache
def _role(name: str) -> str | None:
    if not name.startswith("instruction "):
        return None
    kind = type(next(one for one in INSTRUCTIONS if one.name == name.partition(" ")[2])).__name__
    return next((role for role, kinds in ROLES.items() if kind in kinds), None)


@functools.cache
def _of_targets(first: str, other: str) -> str | None:
    """Why instructions do not run on a target, or two instructions on none."""
    served = [_targets_of(name) for name in (first, other)]
    return None if served[0] & served[1] else "no target has both"


@functools.cache
def _targets_of(name: str) -> frozenset[str]:
    """The targets on which a program with a name can run."""
    kind, _, word = name.partition(" ")
    if kind == "target":
        return frozenset({word})
    if kind != "instruction":
        return frozenset(one.name for one in ARCHITECTURES)
    instruction = next(one for one in INSTRUCTIONS if one.name == word)
    least = getattr(instruction, "capability", 90 if word.startswith("TMA") else 0)
    by_warpgroups = word.startswith("WGMMA") or "WARPGROUP" in word
    return frozenset(one.name for one in ARCHITECTURES if (one.name == "sm_90a" if by_warpgroups else one.capability >= least))
