"""The strategy library and the user's own files: a STRATEGY argument becomes a strategy bound to a spec.

A library file (`strategies/NAME.py`) defines `strategy`, `spec(M, N, K, **options)` and `SIZES`; a `spec` with a parameter `made` is
given the definition that the strategy starts from. The first line of its docstring describes it. `values(spec)` there are values of the
tunables that suit a spec, `values(spec, target)` those that suit it on a target, an `Architecture`; of another strategy than `strategy`,
`NAME_values`. A user's file needs no more than a strategy. What it is for is said by `spec` or `problem` (`entries.py`);
without them the plain `MatMul(M, N, K)(GL, GL, GL)(Kernel)` is meant, column-major float32, or, where the strategy starts from a
definition, that definition.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import attrs

from fireiron.batched_matmul import is_batched
from fireiron.errors import ArgumentError, FireironError
from fireiron.ir.cluster import MULTIPROCESSORS, at_once
from fireiron.language.entries import Entry, entry_of, spec_of
from fireiron.language.loading import load_file, no_bytecode, users_code
from fireiron.language.strategy import Strategy
from fireiron.language.waves import LINE_BYTES, Work, estimated_us, row_begins
from fireiron.package_paths import library_folder
from fireiron.spec import Spec
from fireiron.specs.fused import Fused
from fireiron.specs.matmul import MatMul
from fireiron.values.expr import Expr, constant
from fireiron.values.machine import (
    DEFAULT_ARCHITECTURE,
    MATRIX_ONLY,
    WARPGROUP_ARCHITECTURE,
    Architecture,
    Block,
    as_architecture,
    bfloat16,
    float16,
    int8,
)
from fireiron.values.tensor import View

LIBRARY: Final = "fireiron.strategies"
"""The package of the strategy library."""


def names() -> tuple[str, ...]:
    """The names of the strategy library; an `ArgumentError` if it is not installed."""
    found = tuple(sorted(path.stem for path in library_folder().glob("[!_]*.py")))
    if not found:
        raise ArgumentError("the strategy library is not installed", hint="give a strategy as path.py:name")
    return found


def find(argument: str) -> Entry:
    """The entry of a STRATEGY argument.

    Args: `NAME` of the library, `path.py`, or either with `:name` of what is in that file: a strategy, bound or not (`strategy`, or the
        only one, if none is named), a compiled kernel, or a spec, a definition or a function that makes one, for the strategy of the file
        that starts from it, or the library's.
    Raises: a `FireironError` where it does not exist, or where the file raises; then with the line of the file.
    """
    place, name = _parted(argument)
    if place.endswith(".py"):
        path = Path(place)
        return entry_of(argument, load_file(path), name, path, usual)
    known = names()
    if place not in known:
        close = difflib.get_close_matches(place, known, 3, 0.5)
        hint = f"did you mean {' or '.join(close)}?" if close else "a name of the library (fireiron list), or path.py:name"
        raise ArgumentError(f"no strategy is called {place!r}", legal=known, hint=hint)
    module = _library_module(place)
    return entry_of(argument, module, name, Path(module.__file__ or place), usual)


def bind(
    entry: Entry,
    sizes: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    values: Mapping[str, int] | None = None,
    open_values: bool = False,
    architecture: Any = None,
) -> Strategy:
    """The entry's strategy on a problem.

    Args: `sizes` by parameter name of the problem (`M`, `N`, `K`; the entry's own where missing), `options` for the problem
        (`dtype`, `A`, `B`, `C`, ...), and values of tunables: without, those that its file states for the problem on `architecture`
        (None: the strategy's own target), unless they are to stay open (`open_values`).
    Raises: an `ArgumentError` where the strategy is bound already and sizes or options are given.
    """
    sizes, options, values = sizes or {}, options or {}, values or {}
    strategy = _with_values(entry, values)
    if strategy.spec is None:
        spec = spec_of(entry, sizes, options)
        return strategy(spec) if values or open_values else strategy.with_(**suited(entry, spec, architecture))(spec)
    if sizes or options:
        given = ", ".join([*sizes, *options])
        raise ArgumentError(
            f"{entry.name} is bound to {strategy.spec}: {given} cannot be chosen", hint="bind it in the file, or not at all"
        )
    return strategy


# ---------------------------------------------------------------------------------------------- defaults

FEW_BLOCKS: Final = 64
"""Large tiles are the default if they make at least this many blocks: about half the SMs of a large GPU."""


def suited(entry: Entry, spec: Spec, architecture: Any = None) -> Mapping[str, int]:
    """The values of tunables that an entry's file states for a spec on a target (None: the strategy's own); none where it states none, or
    says that nothing suits."""
    known = entry.strategy.tunables()
    if entry.suits is None or not known:
        return {}
    target = as_architecture(entry.strategy.target if architecture is None else architecture)
    try:
        with users_code(entry.path, f"values of {entry.name}"):
            found = entry.suits(spec, target)
    except FireironError:  # the strategy says what is wrong with the spec
        return {}
    return {name: value for name, value in found.items() if name in known}


def defaults(spec: Spec, architecture: Any = None) -> tuple[tuple[str, Mapping[str, int]], ...]:
    """The strategies to take for a spec where nothing is recorded, the best first: names with values of tunables.

    They are chosen by element type, target and size, not by measuring; the last ones are legal for every size. For a MatMul, of
    matrices or of stacks of them, along `b`; strategies for matrices are then to have a tile of one in front (`default_strategy`). For
    a definition of several steps: the strategy of the library's file of its name that starts from it.
    """
    if isinstance(spec.starter, Fused):
        return _for_definition(spec, architecture)
    if not (spec.multiplies or is_batched(spec)):
        return ()
    target = as_architecture(DEFAULT_ARCHITECTURE if architecture is None else architecture)
    orders = [order for name in spec.operands if (order := _matrix(spec, name).order) is not None]
    gemm = f"gemm_{''.join('t' if order == 'row' else 'n' for order in orders[:2])}"
    small_tiles: Mapping[str, int] = {"bm": 64, "bn": 64} if _blocks(spec, 128, 128) < FEW_BLOCKS else {}
    found: list[tuple[str, Mapping[str, int]]] = [(gemm, small_tiles)] if len(orders) == 3 else []
    return (*_by_warpgroups(spec, target), *_on_tensor_cores(spec, target), *found, ("naive", {}))


def usual(spec: Spec) -> Strategy:
    """The strategies of the library for a spec, the first that is legal: `defaults`, each otherwise the next.

    Raises: an `ArgumentError` where there is none.
    """
    found = [default_strategy(name, values, spec) for name, values in defaults(spec)]
    if not found:
        raise ArgumentError(f"neither the file nor the library has a strategy for {spec}", hint="strategy = ....tile(...)... .done()")
    return functools.reduce(Strategy.fallback, found)


def default_strategy(name: str, values: Mapping[str, int], spec: Spec) -> Strategy:
    """A default, with values of its tunables; one for matrices takes them one by one from a spec's stacks."""
    entry = find(name)
    strategy: Strategy = entry.strategy.with_(**values)
    return MatMul.tile(b=1).to(Block).then(strategy) if is_batched(spec) and not entry.batched else strategy


def _for_definition(spec: Spec, architecture: Any) -> tuple[tuple[str, Mapping[str, int]], ...]:
    """The strategies of the library's file of a definition's name that start from it, with the values that the file states.

    `fastest(spec)` of the file, where there is one, names the strategy that comes first; those for warpgroups come next where there are
    such.
    """
    if spec.title not in names():
        return ()
    module = _library_module(spec.title)
    there = {key: value for key, value in vars(module).items() if isinstance(value, Strategy)}
    fitting = [key for key, value in there.items() if value.start == spec.starter and value.spec is None and value.finished]
    first = module.fastest(spec) if hasattr(module, "fastest") else ""
    target = as_architecture(DEFAULT_ARCHITECTURE if architecture is None else architecture)
    fitting.sort(key=lambda key: (key != first, target.name == WARPGROUP_ARCHITECTURE and there[key].target != WARPGROUP_ARCHITECTURE))
    found = [find(spec.title if key == "strategy" else f"{spec.title}:{key}") for key in fitting]
    return tuple((one.name, suited(one, spec, architecture)) for one in found)


def _matrix(spec: Spec, name: str) -> View:
    """An operand as a matrix; of a stack any of them, as all are stored alike."""
    view = spec.operands[name]
    axes = tuple(axis for axis, dim in enumerate(spec.uses[name]) if dim != "b")
    return view if len(axes) == len(view.dims) else attrs.evolve(view, axes=axes)


BY_WARPGROUPS: Final = ("hopper", "hopper_skinny", "hopper_small")
"""The strategies for Hopper's tensor cores. Each says by `defaults(M, N, K)` which values of its tunables suit a size, for halves; `bm` and
`bn` are the tile of a block."""

MOST_TILES: Final = 3
"""Tiles that are tried before other strategies."""

ROWS_OF_WGMMA: Final = 64
HALF_BYTES: Final = 2


def _by_warpgroups(spec: Spec, target: Architecture) -> tuple[tuple[str, Mapping[str, int]], ...]:
    """Hopper's tensor cores: the tiles that are estimated to take least time."""
    names, work = by_warpgroups(spec, target), work_of(spec)
    if not names or work is None:
        return tuple((name, {}) for name in names[:1])
    choices = [(name, values) for name in names for values in in_clusters(name, work, tiles_of(name, spec, len(names) == 1))]
    return tuple(sorted(choices, key=lambda choice: estimated_us(work, choice[1]))[:MOST_TILES])


def by_warpgroups(spec: Spec, target: Architecture) -> tuple[str, ...]:
    """The strategies for Hopper's tensor cores that suit a spec.

    None where A or B is read only as a copy, by TMA or along k, and there is little to compute with a copied element, unless nothing
    else computes it on tensor cores.
    """
    dtype = spec.A.dtype
    types = (float16, bfloat16, int8, *MATRIX_ONLY)
    if target.name != WARPGROUP_ARCHITECTURE or dtype not in types or dtype.bytes != spec.B.dtype.bytes:
        return ()
    as_given = _as_given(spec) and all(_along_k(spec, name) for name in "AB")
    if not as_given and not _worth_copies(spec) and dtype != int8:
        return ()
    alone = "hopper_batched" if is_batched(spec) else "hopper"
    if dtype == int8:
        return (f"{alone}:integers",)
    return BY_WARPGROUPS if as_given and alone == "hopper" else (alone,)  # the others copy no operand first


def _as_given(spec: Spec) -> bool:
    """Whether rows of A and B, or columns where these are contiguous, are multiples of 16 bytes."""
    return all(_by_sixteen_bytes(_matrix(spec, name)) for name in "AB")


def _along_k(spec: Spec, name: str) -> bool:
    """Whether the instructions of warpgroups read an operand as it is stored: elements that have not 16 bits along k only."""
    view = _matrix(spec, name)
    return view.dtype.bytes == 2 or view.order == ("row" if name == "A" else "col")


def work_of(spec: Spec) -> Work | None:
    """What a product, or a stack of them, has to do; None where a size is known at run time only."""
    sizes = {dim: constant(size) for dim, size in zip(spec.dims, spec.sizes, strict=True)}
    known = {dim: size for dim, size in sizes.items() if size is not None}
    if len(known) < len(sizes):
        return None
    a, b = _matrix(spec, "A"), _matrix(spec, "B")
    beside = (a.order == "col", b.order == "row")
    sizes_of = (known["m"], known["n"], known["k"], spec.A.dtype.bytes, spec.C.dtype.bytes, known.get("b", 1))
    return Work(*sizes_of, begins=(_begins(a), _begins(b)), beside=beside)


def _begins(view: View) -> int:
    """Of how many bytes rows of a matrix, or columns where these are contiguous, begin at multiples."""
    apart = _apart(view)
    return LINE_BYTES if apart is None else row_begins([step.factor for step in apart], view.dtype.bytes, view.tensor.align)


MANY_BLOCKS: Final = 65536
"""Value of `blocks` that means one tile per block."""


@functools.cache
def _takes_clusters(name: str) -> bool:
    """Whether a strategy of the library has blocks in clusters, of as many as its values say."""
    return {"cm", "cn"} <= set(find(name).strategy.tunables())


CLUSTERS: Final = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4))
"""Those that are tried where pieces lie across lines of L2: blocks that share an operand ask for fewer lines."""


def in_clusters(name: str, work: Work, tiles: Iterable[Mapping[str, int]]) -> Iterator[Mapping[str, int]]:
    """Tiles of a strategy; where rows of A or B lie across lines of L2 without clusters, and in those in which C has as many tiles."""
    for values in tiles:
        yield values
        if work.across_lines and _takes_clusters(name):
            down, along = -(-work.rows // values["bm"]), -(-work.columns // values["bn"])
            yield from (_clustered(values, cm, cn, work) for cm, cn in CLUSTERS if cm <= down and cn <= along)


def _clustered(values: Mapping[str, int], cm: int, cn: int, work: Work) -> Mapping[str, int]:
    """Values with another cluster; blocks stay where C has more tiles than run at once, if the strategy has a number for it."""
    found = {**values, "cm": cm, "cn": cn}
    if "blocks" in values:
        resident = at_once(cm * cn)
        stays = work.tiles(values["bm"], values["bn"], (cm, cn)) > resident == MULTIPROCESSORS
        found["blocks"] = MULTIPROCESSORS if stays else MANY_BLOCKS
    return found


def tiles_of(name: str, spec: Spec, alone: bool = False) -> tuple[Mapping[str, int], ...]:
    """The values that a strategy for Hopper's tensor cores states for the size of a spec, in terms of its types, and of its storage orders
    where the file says `of_orders(values, spec)`; of one that is `alone` also those for small matrices, if it states any.
    """
    sizes = [constant(size) for size in spec.sizes[-3:]]
    module, known = _library_module(name.partition(":")[0]), find(name).strategy.tunables()
    stated = (*module.defaults(*sizes), *(getattr(module, "SMALLER", ()) if alone else ()))
    of_orders = getattr(module, "of_orders", lambda values, spec: values)
    found = [of_orders(of_types(values, spec), spec) for values in stated]
    return tuple(values for values in found if all(value in known[tunable].values for tunable, value in values.items()))


def of_types(values: Mapping[str, int], spec: Spec, other: int = 2) -> Mapping[str, int]:
    """Values for factors of `other` bytes as they are for those of a spec: steps along k and chunks of C are of as many bytes.

    A chunk wider than a line is the whole of what a warpgroup has of C; it stays where C has no more bytes than halves, for which such
    values are stated.
    """
    changed = {name: values[name] for name in values}
    if "bk" in values:
        changed["bk"] = values["bk"] * other // spec.A.dtype.bytes
    upright = values.get("wm", values.get("bm", 0)) % ROWS_OF_WGMMA == 0  # else chunks are as wide as the instruction is high
    whole = values.get("chunk", 0) * HALF_BYTES > LINE_BYTES and spec.C.dtype.bytes <= HALF_BYTES
    if upright and "chunk" in values and not whole:
        changed["chunk"] = min(values["chunk"], LINE_BYTES // spec.C.dtype.bytes)
    return changed


WORTH_A_COPY: Final = 64
"""Rows and columns of C above which copies of A and B pay, on an H200 (perf/results/2026-11-22-h200-hopper/small_misaligned.txt)."""

A_WAVE: Final = 132
"""Most 32 x 32 tiles of C for which copies do not pay either: the number of SMs of an H200."""

SPLIT: Final[Mapping[str, int]] = {"bm": 32, "bn": 32, "bk": 32, "parts": 8, "stages": 2}
"""Values of `split_k` for what is not worth copies: the fastest, or nearly, of all that were measured there."""


def _worth_copies(spec: Spec) -> bool:
    """Whether each element of A and B has much to be multiplied with; sizes known at run time count as large.

    For halves, which `split_k` multiplies as they are; other types have no other way to tensor cores from some size on.
    """
    sizes = [constant(size) for size in spec.C.shape[-2:]]
    if any(size is not None and size < WORTH_A_COPY for size in sizes):
        return False
    if None in sizes or not _halves(spec):
        return True
    return WORTH_A_COPY not in sizes and _tiles(spec, 32, 32) > A_WAVE


def _halves(spec: Spec) -> bool:
    """Whether strategies with `mma.sync` multiply the factors."""
    return spec.A.dtype in (float16, bfloat16)


def _by_sixteen_bytes(view: View) -> bool:
    """Whether a matrix begins at a multiple of so many bytes, and its rows do, or its columns where these are contiguous; so in a stack."""
    apart = _apart(view)
    return view.tensor.align % 16 == 0 and apart is not None and all(step.factor * view.dtype.bytes % 16 == 0 for step in apart)


def _apart(view: View) -> tuple[Expr, ...] | None:
    """The distances of rows, or of columns where these are contiguous, and in a stack of matrices; None where neither are contiguous."""
    if view.order is None:
        return None
    along = view.axis(1 if view.order == "row" else 0)
    steps = [step for axis, step in enumerate(view.tensor.storage().steps) if axis != along]
    return None if None in steps else tuple(step for step in steps if step is not None)


def _on_tensor_cores(spec: Spec, target: Architecture) -> tuple[tuple[str, Mapping[str, int]], ...]:
    """Tensor cores where they compute what the types of A and B say: float32 stays float32."""
    dtype, capability = spec.A.dtype, target.capability
    if capability >= 80 and _halves(spec) and not _worth_copies(spec) and not _as_given(spec):
        return (("split_k", SPLIT), ("small", {}))
    if capability >= 80 and dtype in (float16, bfloat16, *MATRIX_ONLY):
        return (("small", {}),) if _blocks(spec, 128, 256) < FEW_BLOCKS else (_stated("hmma_ampere", spec, target), ("small", {}))
    if dtype == float16 and capability >= 70:
        return (_stated("hmma_turing" if capability >= 75 else "hmma_volta", spec, target),)
    return ()


def _stated(name: str, spec: Spec, target: Architecture) -> tuple[str, Mapping[str, int]]:
    """A strategy of the library, with the values that its file states."""
    return name, suited(find(name), spec, target)


def _blocks(spec: Spec, rows: int, columns: int) -> int:
    """How many tiles C has, a matrix or a stack; sizes known at run time count as large."""
    return FEW_BLOCKS if any(constant(size) is None for size in spec.C.shape) else _tiles(spec, rows, columns)


def _tiles(spec: Spec, rows: int, columns: int) -> int:
    """How many tiles C has, a matrix or a stack, of sizes that are known."""
    tile = {"m": rows, "n": columns}
    return math.prod(-(-(constant(spec.size(dim)) or 1) // tile.get(dim, 1)) for dim in spec.uses["C"])


def _library_module(name: str) -> ModuleType:
    """A module of the strategy library."""
    with users_code(None, f"strategies/{name}.py"), no_bytecode():
        return importlib.import_module(f"{LIBRARY}.{name}")


def _parted(argument: str) -> tuple[str, str]:
    """A path may contain colons, a name may not."""
    place, colon, name = argument.rpartition(":")
    return (argument, "") if not colon or name.endswith(".py") else (place, name)


def _with_values(entry: Entry, values: Mapping[str, int]) -> Strategy:
    known = entry.strategy.tunables()
    for name, value in values.items():
        if name not in known:
            close = difflib.get_close_matches(name, known, 1, 0.5)
            raise ArgumentError(
                f"{name}={value}: {entry.name} has no such tunable",
                legal=known or "none",
                hint=f"did you mean {close[0]}?" if close else None,
            )
        if value not in known[name].values:
            raise ArgumentError(f"{name}={value}: not among the values of this tunable of {entry.name}", legal=known[name].values)
    return entry.strategy.with_(**values) if values else entry.strategy
