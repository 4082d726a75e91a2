"""Trees of tasks that most programs share: what makes a product, clears its accumulator and copies it; and mappings that follow from tiles.

A `Tree` takes the tile of a block apart, level by level, by sizes as strategies do. How many pieces there are, which instances call which,
and the trees that clear and copy the tile follow.

>>> from fireiron.tasks import *
>>> from fireiron.tasks import trees
>>> gemm = trees.Tree("gemm", (128, 128), [
...     trees.tile(BLOCK, 64, 64, A=SHARED, B=SHARED), trees.steps(WARP, 16),
...     trees.tile(WARP, 16, 8, A=REGISTER, B=REGISTER), trees.parts(WARP, "mma.m16n8k16"),
... ])
>>> [(one.instance, one.variant) for one in gemm.copy()][:2]
[('copy_tile', 'copy_tile'), ('copy_warp', 'copy_tile')]
>>> dict(list(gemm)[2].tunables)
{'WM': 4, 'WN': 8}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from fireiron.errors import ArgumentError, DecompositionError, call_site
from fireiron.specs.verbs import fitting
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


@attrs.frozen
class Level:
    """How a processor takes its tile apart: the end of a variant's name, sizes or an instruction, and where tensors are, by name.

    `sizes` are those of a tile, of a step of k, or none. `more` are further fields of the instance.
    """

    by: str
    proc: Processor
    sizes: tuple[int, ...] = ()
    instruction: str = ""
    mems: tuple[tuple[str, Place], ...] = ()
    more: tuple[tuple[str, Any], ...] = ()


def _level(by: str, proc: Processor, sizes: tuple[int, ...], instruction: str, words: dict[str, Any]) -> Level:
    """A level, whose places are told from other fields of its instance by what they are."""
    if not isinstance(proc, Processor) or any(as_integer(one) is None or one < 1 for one in sizes):
        raise ArgumentError(f"{by}: a processor and sizes", got=(proc, *sizes), legal=f"{by}(WARP, 64, 32)", at=call_site())
    mems = {name: one for name, one in words.items() if isinstance(one, Place)}
    more = {name: one for name, one in words.items() if name not in mems}
    unknown = [name for name in more if name not in attrs.fields_dict(TaskMapping)]
    if unknown:
        raise ArgumentError(f"{by}: no field {unknown[0]} of an instance", legal="A=SHARED, layouts={...}, pipeline=2", at=call_site())
    return Level(by, proc, sizes, instruction, tuple(mems.items()), tuple(more.items()))


@fitting
def tile(proc: Processor, rows: int, columns: int, **words: Any) -> Level:
    """`proc` deals tiles of `rows` x `columns` to what is inside: `tile(BLOCK, 64, 64, A=SHARED, layouts={...})`.

    Words are places of tensors, and further fields of the instance.
    """
    return _level("tile", proc, (rows, columns), "", words)


@fitting
def steps(proc: Processor, size: int, **words: Any) -> Level:
    """`proc` goes along k in steps of a size."""
    return _level("steps", proc, (size,), "", words)


@fitting
def parts(proc: Processor, instruction: str, **words: Any) -> Level:
    """All inside `proc` work together on a matrix instruction's tile: warps of a warpgroup, then threads of a warp."""
    return _level("inner", proc, (), instruction, words)


@fitting
def leaf(proc: Processor = THREAD, **words: Any) -> Level:
    """`proc` does the work; a tree without one ends with threads, which have in registers what is nowhere else."""
    return _level("thread", proc, (), "", words)


@attrs.frozen
class Tree:
    """The instances of a task that takes a `shape` apart: a tile of `tensors[0]`, level by level, the outermost first.

    A tensor stays in global or shared memory where a level says so; it is nowhere (`NONE`) until then, and below registers, where only
    leaves have elements. Iterate over it for its instances; `clear` and `copy` are the trees for its first tensor.

    Raises: DecompositionError where a size does not divide what it takes apart, or an instruction does not.
    """

    task: str
    shape: tuple[int, int] = attrs.field(converter=_listed)
    levels: tuple[Level, ...] = attrs.field(converter=_listed)
    tensors: tuple[str, ...] = attrs.field(default=("C", "A", "B"), converter=_listed)

    def __attrs_post_init__(self) -> None:
        wrong = [one for one in self.levels if not isinstance(one, Level)]
        sizes = [one for one in self.shape if as_integer(one) is not None and one > 0]
        if wrong or len(sizes) != 2 or len(self.shape) != 2 or not self.tensors:
            got = wrong[0] if wrong else self.shape
            raise ArgumentError(f"Tree: a shape, and levels {self.task} goes down", got=got, legal="tile steps parts leaf", at=call_site())
        unknown = [name for one in self.levels for name, _ in one.mems if name not in self.tensors]
        if unknown:
            raise ArgumentError(f"Tree: {self.task} has no tensor {unknown[0]}", legal=self.tensors, at=call_site())

    def __iter__(self) -> Iterator[TaskMapping]:
        levels = self._whole()
        names = _names(levels)
        shape = self.shape
        for number, one in enumerate(levels):
            inner, tunables = self._down(one, shape)
            calls = [f"{self.task}_{name}" for name in names[number + 1 : number + 2]]
            mems = [self._place(levels, number, name) for name in self.tensors]
            yield TaskMapping(f"{self.task}_{names[number]}", f"{self.task}_{one.by}", one.proc, mems, tunables, calls, **dict(one.more))
            shape = inner

    @property
    def root(self) -> str:
        """The name of its outermost instance."""
        return next(iter(self)).instance

    def clear(self, task: str = "clear", tensor: str = "C") -> Tree:
        """The tree that fills this one's result: the same tiles, without steps, by the variants of a task of one tensor."""
        return self._derived(task, {tensor: self.tensors[0]}, {})

    def copy(self, task: str = "copy", to: str = "dst", of: str = "src", memory: Place = GLOBAL) -> Tree:
        """The tree that copies this one's result to a memory: the same tiles, without steps, by the variants of a task of two tensors."""
        return self._derived(task, {to: "", of: self.tensors[0]}, {to: memory})

    def _derived(self, task: str, tensors: dict[str, str], fixed: dict[str, Place]) -> Tree:
        levels = [one for one in self.levels if one.by != "steps"]
        kept = []
        for number, one in enumerate(levels):
            places = {new: dict(one.mems)[old] for new, old in tensors.items() if old in dict(one.mems)}
            kept.append(attrs.evolve(one, mems=tuple({**places, **(fixed if number == 0 else {})}.items()), more=()))
        return Tree(task, self.shape, tuple(kept), tuple(tensors))

    def _whole(self) -> tuple[Level, ...]:
        """The levels with the warps of an instruction that a warpgroup works on, and the leaf at the end."""
        found: list[Level] = []
        for one in self.levels:
            found.append(one)
            if one.by == "inner" and _inside(one) == WARP:
                found.append(attrs.evolve(one, proc=WARP, mems=(), more=()))
        if not found or found[-1].by != "thread":
            found.append(leaf())
        return tuple(found)

    def _down(self, one: Level, shape: tuple[int, int]) -> tuple[tuple[int, int], dict[str, Any]]:
        """The shape of a level's pieces, and the tunables by which its variant makes them."""
        if one.by == "tile":
            rows, columns = one.sizes
            if shape[0] % rows or shape[1] % columns:
                raise DecompositionError(
                    f"{self.task}: tiles of {rows} x {columns} do not divide the {shape[0]} x {shape[1]} of {one.proc}",
                    legal="divisors of both", at=call_site(),
                )  # fmt: skip
            return (rows, columns), {"WM": shape[0] // rows, "WN": shape[1] // columns}
        if one.by == "steps":
            return shape, {"W": one.sizes[0]}
        if one.by == "inner":
            pieces = mma_pieces(one.instruction, _inside(one), "C")
            pieces.check(shape)
            (number,), inner = pieces.counts(shape), pieces.shape(shape)
            return (int(inner[0]), int(inner[1])), {"INSTR": one.instruction, "PIECES": number, "PROC": _inside(one)}
        return shape, {}

    def _place(self, levels: tuple[Level, ...], number: int, tensor: str) -> Place:
        """Where a tensor is at a level: as said there, or where it was said to be above."""
        said = [dict(one.mems)[tensor] for one in levels[: number + 1] if tensor in dict(one.mems)]
        here = dict(levels[number].mems).get(tensor)
        if here is not None:
            return here
        if said and said[-1] not in (NONE, REGISTER):
            return said[-1]
        return REGISTER if levels[number].by == "thread" else NONE


def _inside(one: Level) -> Processor:
    """Who has the parts of an instruction that a processor takes apart."""
    return THREAD if one.proc == WARP else WARP


def _names(levels: tuple[Level, ...]) -> list[str]:
    """The names of a tree's instances: `tile` of a block, then the processor's; what it does, where a name is taken."""
    found: list[str] = []
    for one in levels:
        usual = {"thread": "thread", "tile": "tile" if one.proc == BLOCK else ""}.get(one.by) or str(one.proc).lower()
        other = {"tile": "step", "inner": "mma"}.get(one.by, one.by)
        name = other if usual in found or (usual == "thread" and one.by != "thread") else usual
        found.append(name if name not in found else f"{name}{len(found)}")
    return found


@fitting
def product(tree: Tree, W: int, machine: Machine = HOPPER, *, host: dict[str, Any] | None = None, **block: Any) -> Mapping:
    """The mapping of a product whose blocks go along k in steps of `W`: variants `gemm_host` with tunables U and V, `gemm_block` with W,
    which clears a tile, adds to it in a loop and copies it.

    `host` and `block` are further fields of their instances: `pipeline=3, warpspecialize=True`.
    """
    if not isinstance(tree, Tree) or as_integer(W) is None or W < 1:
        raise ArgumentError("product: a Tree, and a step of k", got=(tree, W), legal="product(Tree(...), 64)", at=call_site())
    clear, copy = tree.clear(), tree.copy()
    places, name = [GLOBAL] * len(tree.tensors), tree.task
    sizes, calls = dict(zip("UV", tree.shape, strict=True)), [clear.root, tree.root, copy.root]
    outer = TaskMapping(f"{name}_host", f"{name}_host", HOST, places, sizes, [f"{name}_block"], entrypoint=True, **(host or {}))
    inner = TaskMapping(f"{name}_block", f"{name}_block", BLOCK, places, {"W": W}, calls, **block)
    return Mapping((outer, inner, *tree, *clear, *copy), machine)


__all__ = ["CLEAR", "COPY", "GEMM", "Level", "Tree", "leaf", "parts", "product", "steps", "tile"]
