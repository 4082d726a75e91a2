"""Load strategies of the library and of users' files, and bind them to a spec.

A library file (`strategies/NAME.py`) defines `strategy`, `spec(M, N, K, **options)` and `SIZES`. The first line of its docstring describes
it. If `spec` has a parameter `fused`, it gets the definition that the strategy starts from. `values(spec)` or `values(spec, target)`
returns values of the tunables for a spec, on a target (an `Architecture`); `NAME_values` does so for a strategy `NAME`.

A user's file needs only a strategy. `spec` or `problem` specify what it computes (`entries.py`). The default is the plain
`MatMul(M, N, K)(GL, GL, GL)(Kernel)`, column-major float32, or the definition that the strategy starts from.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import math
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import attrs

from fireiron import settings
from fireiron.batched_matmul import is_batched
from fireiron.errors import ArgumentError, FireironError
from fireiron.frozen import frozen
from fireiron.ir.cluster import SM_COUNT, concurrent_blocks
from fireiron.language.entries import Entry, entry_of, is_whole, spec_of
from fireiron.language.line_waves import LINE_BYTES
from fireiron.language.loading import import_module, load_file, no_bytecode, users_code
from fireiron.language.strategy import Strategy
from fireiron.language.waves import Work, estimated_us, is_copied, row_alignment
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
    """Return the names of the library's strategies. Raises: `ArgumentError` if the library is not installed."""
    stems = _names_in(library_folder())
    if not stems:
        raise ArgumentError("the strategy library is not installed", hint="give a strategy as path.py:name")
    return stems


@functools.cache
def _names_in(folder: Path) -> tuple[str, ...]:
    """Return the names of the strategy files of the library, which do not change while it is used."""
    return tuple(sorted(path.stem for path in folder.glob("[!_]*.py")))


def team_files() -> Mapping[str, Path]:
    """Return the strategy files of the folder in `FIREIRON_STRATEGIES` by name, except for those of `ambiguous_files`.

    Raises: an `ArgumentError` if the folder does not exist.
    """
    files = _files_of_folder()
    known = names() if files else ()
    return {name: path for name, path in files.items() if name not in known}


def ambiguous_files() -> Mapping[str, Path]:
    """Return the files of the folder in `FIREIRON_STRATEGIES` that have the name of a strategy of the library."""
    files = _files_of_folder()
    known = names() if files else ()
    return {name: path for name, path in files.items() if name in known}


def require_unambiguous(argument: str) -> None:
    """Refuse a STRATEGY argument that names a strategy of the library and a file of the team's folder.

    Raises: an `ArgumentError`.
    """
    name = _split_argument(argument)[0]
    path = ambiguous_files().get(name)
    if path is not None:
        hint = f"rename the file, or use its path: {path}"
        raise ArgumentError(f"{name}: {path} has the name of a strategy of the library", legal="a name of one of them", hint=hint)


def _files_of_folder() -> Mapping[str, Path]:
    folder = settings.strategies_folder()
    if folder is None:
        return {}
    if not folder.is_dir():
        raise ArgumentError("FIREIRON_STRATEGIES is not a folder", got=str(folder), hint="name a folder of strategy files, or unset it")
    return {path.stem: path for path in sorted(folder.glob("[!_]*.py"))}


@frozen(eq=False)
class Source:
    """The module that a STRATEGY argument names, and the name in it; empty if the argument has none."""

    argument: str
    module: ModuleType
    name: str
    path: Path

    def entry(self) -> Entry:
        """Return the entry of the name. Raises: an `ArgumentError` if it names no strategy and no problem."""
        return entry_of(self.argument, self.module, self.name, self.path, library_strategy)


def find(argument: str) -> Entry:
    """Return the entry of a STRATEGY argument: `NAME` of the library, `path.py` or a dotted module, each with an optional `:name`.

    `:name` is a strategy of the file (default: `strategy`, the only strategy, or the only one for the problem), a compiled kernel, a kernel
    of a kernel graph (`graph.kernel`), or a problem: a spec, a definition or a function that makes one. The strategy of a problem is that
    of the file which starts from it, or the library's.

    Raises: a `FireironError` if it does not exist, or if the file raises an error, with the line of the file.
    """
    return load(argument).entry()


def load(argument: str) -> Source:
    """Return the module of a STRATEGY argument. A user's file is executed. A dotted name is that of a module of the user.

    Raises: a `FireironError` if it does not exist, or if the file raises an error, with the line of the file.
    """
    place, name = _split_argument(argument)
    if place.endswith(".py"):
        path = Path(place)
        return Source(argument, load_file(path), name, path)
    known, team = names(), team_files()
    if place in team:
        return Source(argument, load_file(team[place]), name, team[place])
    own = None if place in known or not _may_be_module(place) else import_module(place)
    if own is not None:
        return Source(argument, own, name, Path(own.__file__ or place))
    if place not in known:
        close = difflib.get_close_matches(place, (*known, *team), 3, 0.5)
        hint = (
            f"did you mean {' or '.join(close)}?"
            if close
            else "a name of the library (fireiron list), path.py:name, or package.module:name"
        )
        inside = _strategies_near(place)
        legal = inside or (*known, *team)
        hint = " or ".join(inside[:3]) or hint
        raise ArgumentError(f"unknown strategy {place!r}", legal=legal, hint=hint)
    module = _library_module(place)
    return Source(argument, module, name, Path(module.__file__ or place))


def _strategies_near(place: str) -> tuple[str, ...]:
    """Return the strategies of the modules with a similar name in the same package of the user; none if there is no such package."""
    parent, _, name = place.rpartition(".")
    package = import_module(parent) if parent and _may_be_module(parent) else None
    modules = [info.name for info in pkgutil.iter_modules(getattr(package, "__path__", ()))]
    close = difflib.get_close_matches(name, modules, 3, 0.5)
    return tuple(strategy for module in close for strategy in strategies_in(f"{parent}.{module}"))


def strategies_in(argument: str) -> tuple[str, ...]:
    """Return a STRATEGY argument for each strategy of the library's file, the user's file, module, package or folder that is named.

    Strategies that are parts of others, such as copies, and names with a leading underscore are not listed.

    Raises: the errors of `load`.
    """
    folder = Path(argument)
    if not argument.endswith(".py") and folder.is_dir() and ("/" in argument or not _may_be_module(argument)):
        return tuple(name for path in sorted(folder.glob("[!_]*.py")) for name in strategies_in(str(path)))
    source = load(argument)
    if source.name:
        return (argument,)
    whole = {key: value for key, value in vars(source.module).items() if isinstance(value, Strategy) and is_whole(source.module, value)}
    keys = [key for key in whole if not key.startswith("_")]
    inside = pkgutil.iter_modules(getattr(source.module, "__path__", ()))
    parts = [name for module in inside if not module.name.startswith("_") for name in strategies_in(f"{argument}.{module.name}")]
    return (*(argument if key == "strategy" or len(whole) == 1 else f"{argument}:{key}" for key in keys), *parts)


def bind(
    entry: Entry,
    sizes: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    values: Mapping[str, int] | None = None,
    open_values: bool = False,
    architecture: Any = None,
) -> Strategy:
    """Bind the entry's strategy to a spec.

    Args:
        sizes: by parameter of the problem (`M`, `N`, `K`); default: the entry's own sizes.
        options: further arguments of the problem (`dtype`, `A`, `B`, `C`, ...).
        values: values of tunables; default: those that the file specifies for the spec on `architecture`.
        open_values: keep tunables without values.
        architecture: the target; None for the target of the strategy.

    Raises: an `ArgumentError` if the strategy is bound already and sizes or options are given.
    """
    sizes, options, values = sizes or {}, options or {}, values or {}
    strategy = _with_values(entry, values)
    if strategy.spec is None:
        spec = spec_of(entry, sizes, options)
        return strategy(spec) if values or open_values else strategy.with_(**recommended_values(entry, spec, architecture))(spec)
    if sizes or options:
        given = ", ".join([*sizes, *options])
        raise ArgumentError(
            f"{entry.name} is bound to {strategy.spec}, so {given} cannot be chosen",
            hint="leave the strategy unbound in its file",
        )
    return strategy


# ---------------------------------------------------------------------------------------------- defaults

FEW_BLOCKS: Final = 64
"""Large tiles are the default if there are at least this many: about half the SMs of a large GPU."""


def recommended_values(entry: Entry, spec: Spec, architecture: Any = None) -> Mapping[str, int]:
    """Return the values of tunables that an entry's file specifies for a spec on a target (None: the target of the strategy), if any."""
    known = entry.strategy.tunables()
    if entry.recommended is None or not known:
        return {}
    target = as_architecture(entry.strategy.target if architecture is None else architecture)
    try:
        with users_code(entry.path, f"values of {entry.name}"):
            values = entry.recommended(spec, target)
    except FireironError:  # lowering reports why the spec is illegal
        return {}
    return {name: value for name, value in values.items() if name in known}


def defaults(spec: Spec, architecture: Any = None) -> tuple[tuple[str, Mapping[str, int]], ...]:
    """Return the default strategies for a spec without a record, the preferred first: names with values of tunables.

    They depend on element type, target and size, not on measurements; the last ones are legal for every size. For a batched MatMul, along
    `b`, `default_strategy` adds a tile of one matrix to strategies for matrices. For a definition, the result contains the strategies that
    start from it, in the library's file of its name.
    """
    if isinstance(spec.starter, Fused):
        return _for_definition(spec, architecture)
    if not (spec.multiplies or is_batched(spec)):
        return ()
    target = as_architecture(DEFAULT_ARCHITECTURE if architecture is None else architecture)
    orders = [order for name in spec.operands if (order := _matrix(spec, name).order) is not None]
    gemm = f"gemm_{''.join('t' if order == 'row' else 'n' for order in orders[:2])}"
    small_tiles: Mapping[str, int] = {"bm": 64, "bn": 64} if _blocks(spec, 128, 128) < FEW_BLOCKS else {}
    plain: list[tuple[str, Mapping[str, int]]] = [(gemm, small_tiles)] if len(orders) == 3 else []
    return (*_by_warpgroups(spec, target), *_on_tensor_cores(spec, target), *plain, ("naive", {}))


def has_default_on_tensor_cores(spec: Spec, architecture: Architecture) -> bool:
    """Return whether a default strategy for a MatMul uses tensor cores."""
    return bool(_by_warpgroups(spec, architecture) or _on_tensor_cores(spec, architecture))


def library_strategy(spec: Spec) -> Strategy:
    """Return the default strategies of the library for a spec, each with the next as its fallback.

    Raises: an `ArgumentError` if there is none.
    """
    strategies = [default_strategy(name, values, spec) for name, values in defaults(spec)]
    if not strategies:
        raise ArgumentError(f"neither the file nor the library has a strategy for {spec}", hint="strategy = ....tile(...)... .done()")
    return functools.reduce(Strategy.fallback, strategies)


def default_strategy(name: str, values: Mapping[str, int], spec: Spec) -> Strategy:
    """Return a default strategy with values of its tunables. For a batched spec, one for matrices gets a tile of one matrix."""
    entry = find(name)
    strategy: Strategy = entry.strategy.with_(**values)
    return MatMul.tile(b=1).to(Block).then(strategy) if is_batched(spec) and not entry.batched else strategy


def _for_definition(spec: Spec, architecture: Any) -> tuple[tuple[str, Mapping[str, int]], ...]:
    """Return the strategies in the library's file of a definition's name that start from it, with the values of the file.

    `fastest(spec)` of the file, if it exists, names the first strategy. Warpgroup strategies come next on their target.
    """
    if spec.title not in names():
        return ()
    module = _library_module(spec.title)
    strategies = {key: value for key, value in vars(module).items() if isinstance(value, Strategy)}
    fitting = [key for key, value in strategies.items() if value.start == spec.starter and value.spec is None and value.finished]
    first = module.fastest(spec) if hasattr(module, "fastest") else ""
    target = as_architecture(DEFAULT_ARCHITECTURE if architecture is None else architecture)
    fitting.sort(key=lambda key: (key != first, target.name == WARPGROUP_ARCHITECTURE and strategies[key].target != WARPGROUP_ARCHITECTURE))
    entries = [find(spec.title if key == "strategy" else f"{spec.title}:{key}") for key in fitting]
    return tuple((entry.name, recommended_values(entry, spec, architecture)) for entry in entries)


def _matrix(spec: Spec, name: str) -> View:
    """Return an operand as a matrix: for a batch any of its matrices, which have the same storage."""
    view = spec.operands[name]
    axes = tuple(axis for axis, dim in enumerate(spec.uses[name]) if dim != "b")
    return view if len(axes) == len(view.dims) else attrs.evolve(view, axes=axes)


BY_WARPGROUPS: Final = ("hopper", "hopper_skinny", "hopper_small")
"""The strategies for Hopper's tensor cores. `defaults(M, N, K)` of each returns values of its tunables for a size of float16; `bm` and `bn`
are the tile of a block."""

ANY_HEIGHT: Final = "any_height"
"""The strategy of `hopper` and of `hopper_batched` whose tiles have heights that divide the rows of C equally.

It is used if rows are not aligned to L2 lines.
"""

MOST_OF_ANY_HEIGHT: Final = 20
"""Maximum number of tiles of `any_height` that are compared in clusters: those with the least estimate without clusters."""

MOST_TILES: Final = 3
"""Maximum number of tiles of Hopper strategies to try, from the shortest estimated time on."""

ROWS_OF_WGMMA: Final = 64
FLOAT16_BYTES: Final = 2


def _by_warpgroups(spec: Spec, target: Architecture) -> tuple[tuple[str, Mapping[str, int]], ...]:
    """Return the strategies for Hopper's tensor cores with the tiles of the least estimated time."""
    names, work = by_warpgroups(spec, target), work_of(spec)
    if not names or work is None:
        return tuple((name, {}) for name in names[:1])
    choices = [(name, values) for name in names for values in in_clusters(name, work, tiles_of(name, spec, len(names) == 1))]
    return tuple(sorted(choices, key=lambda choice: estimated_us(work, choice[1]))[:MOST_TILES])


def by_warpgroups(spec: Spec, target: Architecture) -> tuple[str, ...]:
    """Return the strategies for Hopper's tensor cores that are applicable to a spec.

    The result is empty if A or B must be copied first (for TMA, or to be contiguous along k) and the copy costs more time than it saves,
    unless no other strategy uses tensor cores.
    """
    dtype = spec.A.dtype
    types = (float16, bfloat16, int8, *MATRIX_ONLY)
    if target.name != WARPGROUP_ARCHITECTURE or dtype not in types or dtype.bytes != spec.B.dtype.bytes:
        return ()
    copied = not _needs_no_copy(spec)
    if copied and not _copies_pay(spec) and dtype != int8:
        return ()
    alone = "hopper_batched" if is_batched(spec) else "hopper"
    if dtype == int8:
        return (f"{alone}:integers",)
    if copied:
        return (alone,)  # the other strategies cannot copy an operand first
    work, names = work_of(spec), BY_WARPGROUPS if alone == "hopper" else (alone,)
    return (*names, f"{alone}:{ANY_HEIGHT}") if work is not None and work.across_lines and _is_row_major(spec) else names


def _needs_no_copy(spec: Spec) -> bool:
    """Return whether TMA and `wgmma` can read A and B as they are stored."""
    return _has_aligned_lines(spec) and all(_along_k(spec, name) for name in "AB")


def _is_row_major(spec: Spec) -> bool:
    """Return whether all operands are row-major matrices, of 16-bit elements, or in C of up to 32 bits."""
    bytes = [spec.operands[name].dtype.bytes for name in "ABC"]
    return bytes[:2] == [FLOAT16_BYTES] * 2 and bytes[2] <= 4 and all(_matrix(spec, name).order == "row" for name in "ABC")


def _has_aligned_lines(spec: Spec) -> bool:
    """Return whether rows of A and B (columns if column-major) are aligned to 16 bytes."""
    return all(_is_aligned_to_16_bytes(_matrix(spec, name)) for name in "AB")


def _along_k(spec: Spec, name: str) -> bool:
    """Return whether `wgmma` can read an operand as it is stored: only 16-bit types may be contiguous along m or n."""
    view = _matrix(spec, name)
    return view.dtype.bytes == 2 or view.order == ("row" if name == "A" else "col")


def work_of(spec: Spec) -> Work | None:
    """Return the work of a matmul, batched or not; None if a size is known only at run time."""
    sizes = {dim: constant(size) for dim, size in zip(spec.dims, spec.sizes, strict=True)}
    known = {dim: size for dim, size in sizes.items() if size is not None}
    if len(known) < len(sizes):
        return None
    a, b = _matrix(spec, "A"), _matrix(spec, "B")
    along_c = (a.order == "col", b.order == "row")
    sizes_of = (known["m"], known["n"], known["k"], spec.A.dtype.bytes, spec.C.dtype.bytes, known.get("b", 1))
    copied = any(is_copied((view.tensor.align, *(step.factor * view.dtype.bytes for step in _line_strides(view) or ()))) for view in (a, b))
    return Work(*sizes_of, row_alignments=(_row_alignment_of(a), _row_alignment_of(b)), along_c=along_c, copied=copied)


def _row_alignment_of(view: View) -> int:
    """Return the alignment of all rows of a matrix (columns if column-major), in bytes."""
    apart = _line_strides(view)
    return LINE_BYTES if apart is None else row_alignment([step.factor for step in apart], view.dtype.bytes, view.tensor.align)


MANY_BLOCKS: Final = 65536
"""Value of `num_blocks` that means one tile per block."""


CLUSTERS: Final = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4), (4, 2), (2, 4), (8, 1))
"""The clusters to try if rows are not aligned to L2 lines. Blocks of a cluster that share an operand request fewer lines."""


@functools.cache
def _tunables_of(name: str) -> Mapping[str, Any]:
    """Return the tunables of a strategy of the library."""
    return find(name).strategy.tunables()


@functools.cache
def _clusters_of(name: str) -> tuple[tuple[int, int], ...]:
    """Return the clusters to try that are values of the tunables of a strategy of the library."""
    known = _tunables_of(name)
    if not {"cluster_m", "cluster_n"} <= set(known):
        return ()
    return tuple(pair for pair in CLUSTERS if pair[0] in known["cluster_m"].values and pair[1] in known["cluster_n"].values)


def in_clusters(name: str, work: Work, tiles: Iterable[Mapping[str, int]]) -> Iterator[Mapping[str, int]]:
    """Yield the tiles of a strategy, and if rows of A or B are not aligned to L2 lines, also with each cluster that C has tiles for.

    Blocks of a cluster load equal parts of a shared tile: of an operand that is contiguous along k, equal numbers of rows.
    """
    for values in tiles:
        yield values
        if work.across_lines:
            down, along = -(-work.rows // values["bm"]), -(-work.columns // values["bn"])
            for cm, cn in _clusters_of(name):
                equal = (work.along_c[0] or values["bm"] % cn == 0) and (work.along_c[1] or values["bn"] % cm == 0)
                if equal and cm <= down and cn <= along:
                    yield _clustered(values, cm, cn, work)


def _clustered(values: Mapping[str, int], cm: int, cn: int, work: Work) -> Mapping[str, int]:
    """Return values with another cluster; blocks are persistent if C has more tiles than run at once and there is a tunable for it."""
    clustered = {**values, "cluster_m": cm, "cluster_n": cn}
    if "num_blocks" in values:
        resident = concurrent_blocks(cm * cn)
        persistent = work.tiles(values["bm"], values["bn"], (cm, cn)) > resident == SM_COUNT
        clustered["num_blocks"] = SM_COUNT if persistent else MANY_BLOCKS
    return clustered


def tiles_of(name: str, spec: Spec, alone: bool = False) -> tuple[Mapping[str, int], ...]:
    """Return the values that a strategy for Hopper's tensor cores specifies for the size of a spec, converted to its element types.

    `of_orders(values, spec)` of the file adapts them to storage orders. If the strategy is the only one (`alone`), the result includes
    those for small matrices.
    """
    file, _, form = name.partition(":")
    module, known, work = _library_module(file), _tunables_of(name), work_of(spec)
    if form == ANY_HEIGHT:
        assert work is not None
        tiles = _library_module(BY_WARPGROUPS[0]).heights(work.rows, work.columns, work.batch, work.result_bytes)
        return tuple(sorted(tiles, key=functools.partial(estimated_us, work))[:MOST_OF_ANY_HEIGHT])
    sizes = [constant(size) for size in spec.sizes[-3:]]
    stated = (*module.defaults(*sizes), *(getattr(module, "SMALLER", ()) if alone else ()))
    of_orders = getattr(module, "of_orders", lambda values, spec: values)
    adapted = [of_orders(of_types(values, spec), spec) for values in stated]
    return tuple(values for values in adapted if all(value in known[tunable].values for tunable, value in values.items()))


def of_types(values: Mapping[str, int], spec: Spec) -> Mapping[str, int]:
    """Convert values for operands with elements of 2 bytes to those of a spec: steps along k and chunks of C keep their bytes.

    A chunk wider than an L2 line is the complete tile of a warpgroup. It stays unless C has elements of more than 2 bytes.
    """
    return of_bytes(values, spec.operands["A"].dtype.bytes, spec.operands["C"].dtype.bytes, FLOAT16_BYTES)


def of_bytes(values: Mapping[str, int], bytes: int, result_bytes: int, other: int) -> dict[str, int]:
    """Convert values for operands with elements of `other` bytes to those for `bytes` and `result_bytes`."""
    changed = dict(values)
    if "bk" in values:
        changed["bk"] = values["bk"] * other // bytes
    upright = values.get("wm", values.get("bm", 0)) % ROWS_OF_WGMMA == 0  # otherwise the width of a chunk is the height of the instruction
    whole = values.get("epi_n", 0) * FLOAT16_BYTES > LINE_BYTES and result_bytes <= FLOAT16_BYTES
    if upright and "epi_n" in values and not whole:
        changed["epi_n"] = min(values["epi_n"], LINE_BYTES // result_bytes)
    return changed


MIN_SIDE_FOR_COPIES: Final = 64
"""Copies of A and B save time if C has more rows and columns (H200, perf/results/2026-11-22-h200-hopper/small_misaligned.txt)."""

MOST_SPLIT_TILES: Final = 264
"""Copies save no time if C has at most this many 32 x 32 tiles, two for each SM of an H200, the product of M, N and K is at most
`MOST_SPLIT_PRODUCTS`, and K is at most `SHORT_DEPTH`. Batches, which are not measured, may have half as many tiles."""

MOST_SPLIT_PRODUCTS: Final = 90_000_000
"""`split_k` takes 7.2 us for 343x571x385 (75 million), where the copies and the product take 9.4 us, as long as these for 257x389x1105 (110
million), and 1.2 times as long for 267x1557x381 (158 million; perf/results/2026-12-01-h200-choice-5 to 2026-12-01-h200-choice-7)."""

SHORT_DEPTH: Final = 896
"""For longer K, `split_k` takes more time than the copies: 54 us instead of 20 us for 275x425x5069, 11 us instead of 10 us for 81x555x985,
but 8.2 us instead of 9.0 us for 100x99x769 (perf/results/2026-11-30-h200-first-2, 2026-11-30-h200-choice)."""

SPLIT: Final[Mapping[str, int]] = {"bm": 16, "bn": 16, "bk": 32, "num_splits": 8, "stages": 4}
"""Values of `split_k` if copies save no time. Four stages hide the latency of loads of single elements: 5.4 us instead of 8.2 us for
100x99x769, and 4.9 us instead of 7.0 us for 127x129x513 (perf/results/2026-11-30-h200-choice-4)."""

SPLIT_OF_MANY_TILES: Final[Mapping[str, int]] = {"bm": 32, "bn": 32, "bk": 32, "num_splits": 8, "stages": 2}
"""The same if C has more than `MOST_SMALL_TILES` tiles of `SPLIT`, in which elements of A and B are read more often."""

MOST_SMALL_TILES: Final = 264
"""Two tiles for each SM of an H200."""


def _copies_pay(spec: Spec) -> bool:
    """Return whether copies of A and B save time; run-time sizes count as large.

    The limit of tiles applies only to float16 and bfloat16, because `split_k` multiplies these types without copies.
    """
    sizes = [constant(size) for size in spec.C.shape[-2:]]
    if any(size is not None and size < MIN_SIDE_FOR_COPIES for size in sizes):
        return False
    if None in sizes or not _has_16_bit_floats(spec):
        return True
    depth = constant(spec.size("k"))
    most_tiles = MOST_SPLIT_TILES if len(spec.C.shape) == 2 else MOST_SPLIT_TILES // 2
    is_large = depth is None or depth > SHORT_DEPTH or _tiles(spec, 32, 32) > most_tiles or _tiles(spec, 1, 1) * depth > MOST_SPLIT_PRODUCTS
    return MIN_SIDE_FOR_COPIES not in sizes and is_large


def _has_16_bit_floats(spec: Spec) -> bool:
    """Return whether strategies with `mma.sync` support the operands' type."""
    return spec.A.dtype in (float16, bfloat16)


def _is_aligned_to_16_bytes(view: View) -> bool:
    """Return whether a matrix and all its rows (columns if column-major) are aligned to 16 bytes, in all matrices of a batch."""
    apart = _line_strides(view)
    return view.tensor.align % 16 == 0 and apart is not None and all(step.factor * view.dtype.bytes % 16 == 0 for step in apart)


def _line_strides(view: View) -> tuple[Expr, ...] | None:
    """Return the strides between rows (columns if column-major) and between matrices of a batch; None if neither order is contiguous."""
    if view.order is None:
        return None
    along = view.axis(1 if view.order == "row" else 0)
    steps = [step for axis, step in enumerate(view.tensor.storage().steps) if axis != along]
    return None if None in steps else tuple(step for step in steps if step is not None)


def is_copied_by_threads(spec: Spec, target: Architecture) -> bool:
    """Return whether threads copy small matrices whose rows are not multiples of 16 bytes, in parts of an element.

    The values of other sizes do not apply, because nearly all of these were measured for rows that are copied in parts of 16 bytes.
    """
    return target.capability >= 80 and _has_16_bit_floats(spec) and not _copies_pay(spec) and not _has_aligned_lines(spec)


def _on_tensor_cores(spec: Spec, target: Architecture) -> tuple[tuple[str, Mapping[str, int]], ...]:
    """Return the strategies with `mma.sync` that keep the types of A and B: float32 is not converted to tf32."""
    dtype, capability = spec.A.dtype, target.capability
    if is_copied_by_threads(spec, target):
        both = (("split_k", SPLIT), ("split_k", SPLIT_OF_MANY_TILES))
        return (*(both if _tiles(spec, SPLIT["bm"], SPLIT["bn"]) <= MOST_SMALL_TILES else both[::-1]), ("small", {}))
    if capability >= 80 and dtype in (float16, bfloat16, *MATRIX_ONLY):
        return (("small", {}),) if _blocks(spec, 128, 256) < FEW_BLOCKS else (_stated("hmma_ampere", spec, target), ("small", {}))
    if dtype == float16 and capability >= 70:
        return (_stated("hmma_turing" if capability >= 75 else "hmma_volta", spec, target),)
    return ()


def _stated(name: str, spec: Spec, target: Architecture) -> tuple[str, Mapping[str, int]]:
    """Return a strategy of the library, with the values of its file."""
    return name, recommended_values(find(name), spec, target)


def _blocks(spec: Spec, rows: int, columns: int) -> int:
    """Return the number of tiles of C, batched or not; run-time sizes count as large."""
    return FEW_BLOCKS if any(constant(size) is None for size in spec.C.shape) else _tiles(spec, rows, columns)


def _tiles(spec: Spec, rows: int, columns: int) -> int:
    """Return the number of tiles of C, batched or not, with constant sizes."""
    tile = {"m": rows, "n": columns}
    return math.prod(-(-(constant(spec.size(dim)) or 1) // tile.get(dim, 1)) for dim in spec.uses["C"])


def _library_module(name: str) -> ModuleType:
    """Return a module of the strategy library."""
    with users_code(None, f"strategies/{name}.py"), no_bytecode():
        return importlib.import_module(f"{LIBRARY}.{name}")


def is_of_library(argument: str) -> bool:
    """Return whether a STRATEGY argument names a strategy of the library."""
    return _split_argument(argument)[0] in names()


def _may_be_module(place: str) -> bool:
    """Return whether an argument may be the dotted name of a user's module: no module of Python contains strategies."""
    parts = place.split(".")
    return all(map(str.isidentifier, parts)) and parts[0] not in sys.stdlib_module_names


def _split_argument(argument: str) -> tuple[str, str]:
    """Split a STRATEGY argument at its last colon: a path may contain colons, a name may not."""
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
            raise ArgumentError(f"{name}={value}: {value} is not a value of this tunable of {entry.name}", legal=known[name].values)
    return entry.strategy.with_(**values) if values else entry.strategy
