"""Derive mappings from tile sizes, for programs that consist of a matmul and of tasks that clear and copy its accumulator.

A `Tree` decomposes the tile of a block level by level, by sizes, as strategies do. The numbers of pieces, the calls of instances, and the
trees that clear and copy the tile are derived from it.

>>> from fireiron.tasks import *
>>> from fireiron.tasks import trees
>>> gemm = trees.Tree("gemm", (128, 128), [
...     trees.tile(BLOCK, 64, 64, A=SHARED, B=SHARED), trees.steps(WARP, 16),
...     trees.tile(WARP, 16, 8, A=REGISTER, B=REGISTER), trees.parts(WARP, "mma.m16n8k16"),
... ])
>>> [(instance.instance, instance.variant) for instance in gemm.copy()][:2]
[('copy_tile', 'copy_tile'), ('copy_warp', 'copy_tile')]
>>> dict(list(gemm)[2].tunables)
{'WM': 4, 'WN': 8}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from fireiron.errors import ArgumentError, DecompositionError, call_site
from fireiron.frozen import frozen
from fireiron.specs.verbs import checked_arguments
from fireiron.tasks.mapping import (
    BLOCK,
    GLOBAL,
    HOPPER,
    HOST,
    NONE,
    REGISTER,
    THREAD,
    WARP,
    Machine,
    Mapping,
    Place,
    Processor,
    TaskMapping,
)
from fireiron.tasks.partition import mma_pieces
from fireiron.tasks.usual import CLEAR, COPY, GEMM
from fireiron.values.machine import as_integer


def _listed(value: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(value)


@frozen
class Level:
    """The decomposition of a tile by a processor: by sizes or by an instruction, with the places of tensors by name.

    `by` is the suffix of the variant's name. `sizes` has the sizes of a tile, the size of a step of k, or nothing. `more` has further
    fields of the instance.
    """

    by: str
    proc: Processor
    sizes: tuple[int, ...] = ()
    instruction: str = ""
    mems: tuple[tuple[str, Place], ...] = ()
    more: tuple[tuple[str, Any], ...] = ()


def _level(by: str, proc: Processor, sizes: tuple[int, ...], instruction: str, words: dict[str, Any]) -> Level:
    """A level; keyword arguments that are places are its memories, others are fields of its instance."""
    if not isinstance(proc, Processor) or any(as_integer(size) is None or size < 1 for size in sizes):
        raise ArgumentError(
            f"{by} requires a processor and positive sizes", got=(proc, *sizes), legal=f"{by}(WARP, 64, 32)", at=call_site()
        )
    mems = {name: place for name, place in words.items() if isinstance(place, Place)}
    fields = {name: value for name, value in words.items() if name not in mems}
    unknown = [name for name in fields if name not in attrs.fields_dict(TaskMapping)]
    if unknown:
        raise ArgumentError(f"{by}: an instance has no field {unknown[0]}", legal="A=SHARED, layouts={...}, pipeline=2", at=call_site())
    return Level(by, proc, sizes, instruction, tuple(mems.items()), tuple(fields.items()))


@checked_arguments
def tile(proc: Processor, rows: int, columns: int, **words: Any) -> Level:
    """Distribute tiles of `rows` x `columns` of `proc` over the next level: `tile(BLOCK, 64, 64, A=SHARED, layouts={...})`.

    Keywords are places of tensors, and further fields of the instance.
    """
    return _level("tile", proc, (rows, columns), "", words)


@checked_arguments
def steps(proc: Processor, size: int, **words: Any) -> Level:
    """Make `proc` loop over k in steps of `size`."""
    return _level("steps", proc, (size,), "", words)


@checked_arguments
def parts(proc: Processor, instruction: str, **words: Any) -> Level:
    """Make all processors inside `proc` execute a matrix instruction together: warps of a warpgroup, then threads of a warp."""
    return _level("inner", proc, (), instruction, words)


@checked_arguments
def leaf(proc: Processor = THREAD, **words: Any) -> Level:
    """End a tree with leaves on `proc`. A tree without a leaf ends with threads, whose tensors without another place are in registers."""
    return _level("thread", proc, (), "", words)


@frozen
class Tree:
    """The instances of a task that decomposes a tile of `tensors[0]` with a `shape`, level by level, the outermost first.

    From the level that specifies global or shared memory for a tensor, all levels inside have this place. On all other levels except the
    leaf, a tensor has no place (`NONE`). Iterate over the tree to obtain its instances. `clear` and `copy` return the trees for its first
    tensor.

    Raises: DecompositionError if a size, or an instruction, does not divide its tile.
    """

    task: str
    shape: tuple[int, int] = attrs.field(converter=_listed)
    levels: tuple[Level, ...] = attrs.field(converter=_listed)
    tensors: tuple[str, ...] = attrs.field(default=("C", "A", "B"), converter=_listed)

    def __attrs_post_init__(self) -> None:
        wrong = [level for level in self.levels if not isinstance(level, Level)]
        sizes = [size for size in self.shape if as_integer(size) is not None and size > 0]
        if wrong or len(sizes) != 2 or len(self.shape) != 2 or not self.tensors:
            got = wrong[0] if wrong else self.shape
            raise ArgumentError(
                f"Tree requires a shape of two sizes, and the levels of {self.task}", got=got, legal="tile steps parts leaf", at=call_site()
            )
        unknown = [name for level in self.levels for name, _ in level.mems if name not in self.tensors]
        if unknown:
            raise ArgumentError(f"Tree: {self.task} has no tensor {unknown[0]}", legal=self.tensors, at=call_site())

    def __iter__(self) -> Iterator[TaskMapping]:
        levels = self._whole()
        names = _names(levels)
        shape = self.shape
        for number, level in enumerate(levels):
            inner, tunables = self._down(level, shape)
            calls = [f"{self.task}_{name}" for name in names[number + 1 : number + 2]]
            mems = [self._place(levels, number, name) for name in self.tensors]
            yield TaskMapping(
                f"{self.task}_{names[number]}", f"{self.task}_{level.by}", level.proc, mems, tunables, calls, **dict(level.more)
            )
            shape = inner

    @property
    def root(self) -> str:
        """The name of its outermost instance."""
        return next(iter(self)).instance

    def clear(self, task: str = "clear", tensor: str = "C") -> Tree:
        """Return the tree of a task that fills the result: the same tiles, without steps of k."""
        return self._derived(task, {tensor: self.tensors[0]}, {})

    def copy(self, task: str = "copy", to: str = "dst", of: str = "src", memory: Place = GLOBAL) -> Tree:
        """Return the tree of a task that copies the result to a memory: the same tiles, without steps of k."""
        return self._derived(task, {to: "", of: self.tensors[0]}, {to: memory})

    def _derived(self, task: str, tensors: dict[str, str], fixed: dict[str, Place]) -> Tree:
        levels = [level for level in self.levels if level.by != "steps"]
        kept = []
        for number, level in enumerate(levels):
            places = {new: dict(level.mems)[old] for new, old in tensors.items() if old in dict(level.mems)}
            kept.append(attrs.evolve(level, mems=tuple({**places, **(fixed if number == 0 else {})}.items()), more=()))
        return Tree(task, self.shape, tuple(kept), tuple(tensors))

    def _whole(self) -> tuple[Level, ...]:
        """The levels, with the warps of a warpgroup's instruction, and the leaf at the end."""
        levels: list[Level] = []
        for level in self.levels:
            levels.append(level)
            if level.by == "inner" and _inside(level) == WARP:
                levels.append(attrs.evolve(level, proc=WARP, mems=(), more=()))
        if not levels or levels[-1].by != "thread":
            levels.append(leaf())
        return tuple(levels)

    def _down(self, level: Level, shape: tuple[int, int]) -> tuple[tuple[int, int], dict[str, Any]]:
        """The shape of a level's pieces, and the tunables of its variant."""
        if level.by == "tile":
            rows, columns = level.sizes
            if shape[0] % rows or shape[1] % columns:
                raise DecompositionError(
                    f"{self.task}: tiles of {rows} x {columns} do not divide the {shape[0]} x {shape[1]} tile of {level.proc}",
                    legal="divisors of both", at=call_site(),
                )  # fmt: skip
            return (rows, columns), {"WM": shape[0] // rows, "WN": shape[1] // columns}
        if level.by == "steps":
            return shape, {"W": level.sizes[0]}
        if level.by == "inner":
            pieces = mma_pieces(level.instruction, _inside(level), "C")
            pieces.check(shape)
            (number,), inner = pieces.counts(shape), pieces.shape(shape)
            return (int(inner[0]), int(inner[1])), {"INSTR": level.instruction, "PIECES": number, "PROC": _inside(level)}
        return shape, {}

    def _place(self, levels: tuple[Level, ...], number: int, tensor: str) -> Place:
        """The place of a tensor at a level: as specified there, or above."""
        declared = [dict(level.mems)[tensor] for level in levels[: number + 1] if tensor in dict(level.mems)]
        here = dict(levels[number].mems).get(tensor)
        if here is not None:
            return here
        if declared and declared[-1] not in (NONE, REGISTER):
            return declared[-1]
        return REGISTER if levels[number].by == "thread" else NONE


def _inside(level: Level) -> Processor:
    """The processor that owns the parts of an instruction."""
    return THREAD if level.proc == WARP else WARP


def _names(levels: tuple[Level, ...]) -> list[str]:
    """Return the names of a tree's instances: `tile` for a block, otherwise the processor, or the operation if that name is used."""
    names: list[str] = []
    for level in levels:
        name_of_level = {"thread": "thread", "tile": "tile" if level.proc == BLOCK else ""}.get(level.by) or str(level.proc).lower()
        alternative = {"tile": "step", "inner": "mma"}.get(level.by, level.by)
        name = alternative if name_of_level in names or (name_of_level == "thread" and level.by != "thread") else name_of_level
        names.append(name if name not in names else f"{name}{len(names)}")
    return names


@checked_arguments
def product(tree: Tree, W: int, machine: Machine = HOPPER, *, host: dict[str, Any] | None = None, **block: Any) -> Mapping:
    """Return the mapping of a matmul whose blocks loop over k in steps of `W`.

    The variants are `gemm_host`, with the tunables U and V, and `gemm_block`, with the tunable W. `gemm_block` clears a tile, accumulates
    to it in a loop and copies it. `host` and `block` are further fields of their instances, for example `pipeline=3, warpspecialize=True`.
    """
    if not isinstance(tree, Tree) or as_integer(W) is None or W < 1:
        raise ArgumentError(
            "product requires a Tree and a positive step of k", got=(tree, W), legal="product(Tree(...), 64)", at=call_site()
        )
    clear, copy = tree.clear(), tree.copy()
    places, name = [GLOBAL] * len(tree.tensors), tree.task
    sizes, calls = dict(zip("UV", tree.shape, strict=True)), [clear.root, tree.root, copy.root]
    outer = TaskMapping(f"{name}_host", f"{name}_host", HOST, places, sizes, [f"{name}_block"], entrypoint=True, **(host or {}))
    inner = TaskMapping(f"{name}_block", f"{name}_block", BLOCK, places, {"W": W}, calls, **block)
    return Mapping((outer, inner, *tree, *clear, *copy), machine)


__all__ = ["CLEAR", "COPY", "GEMM", "Level", "Tree", "leaf", "parts", "product", "steps", "tile"]
