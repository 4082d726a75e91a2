"""The fluent verbs, once, for everything a chain can start from: a spec class, a spec, a strategy.

Each verb is short for `.then(Decomposition(...))`. The classes that a verb returns live above this module, so they are
imported when a verb is called; this is the only place that looks upward.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from fireiron.errors import ArgumentError, call_site, closest, shown
from fireiron.found import FoundSteps
from fireiron.values.tensor import MatrixLayout

if TYPE_CHECKING:
    from fireiron.decomp.tile import Strided
    from fireiron.language.strategy import EpilogStrategy, LoadStrategy, SplitKStrategy, SplitStrategy, Strategy, TileStrategy
    from fireiron.language.tree import Decomposition, Executable
    from fireiron.language.tunable import Integer, TileSize
    from fireiron.specs.operand import Operand
    from fireiron.values.machine import DType, Level, Memory


P = ParamSpec("P")
T = TypeVar("T")


def unfitting(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ArgumentError | None:
    """The error of a call whose arguments are too few, too many or of other names; None where they fit."""
    signature = inspect.signature(function)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        known = {name: one for name, one in signature.parameters.items() if name != "self"}
        texts = [str(one.replace(annotation=inspect.Parameter.empty)) for one in known.values()]
        owner, _, name = function.__qualname__.rpartition(".")
        what = owner.removesuffix("Starter") if name == "__call__" else name
        given = args[len(signature.parameters) - len(known) :]
        hint = _of_another_name(known, kwargs) or _completed(what, known, given, kwargs)
        return ArgumentError(f"{what}: {error}", legal=f"{what}({', '.join(texts)})", at=call_site(), hint=hint)
    return None


_EXAMPLES: Final = {
    "operand": "A", "memory": "SH", "level": "Block", "elements": "4", "stages": "3", "spec": "MatMul(M, N, K)(GL, GL, GL)(Kernel)",
}  # fmt: skip
"""What may stand for a parameter of a verb that a call leaves out; for others their names do."""

_ORDERS: Final = ("layout", "layouts", "order", "orders", "storage")
"""What people call the storage of all operands, which is said of each one."""


def _of_another_name(known: Mapping[str, inspect.Parameter], given: Mapping[str, Any]) -> str | None:
    """What may be meant by the first keyword that is no parameter."""
    other = next((name for name in given if name not in known), None)
    if other is None:
        return None
    stored = [name for name, one in known.items() if isinstance(one.default, MatrixLayout)]
    if other in _ORDERS and stored:
        return f"the order of each operand: {', '.join(f'{name}=RowMajor' for name in stored)}"
    near = [name for name in known if name.startswith(other)]
    meant = near[0] if near else closest(other, known)
    return f"did you mean {meant}?" if meant else None


def _completed(what: str, known: Mapping[str, inspect.Parameter], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """The call with an example of each argument that it lacks; None for one with too many."""
    plain = [name for name, one in known.items() if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    missing = [name for name in plain[len(args) :] if known[name].default is inspect.Parameter.empty and name not in kwargs]
    if not missing:
        return None
    said = [*(_short(one) for one in args), *(_EXAMPLES.get(name, name) for name in missing)]
    return f"{what}({', '.join([*said, *(f'{name}={_short(one)}' for name, one in kwargs.items())])})"


def _short(value: object) -> str:
    """The `repr` of a value, where it is a word or two."""
    text = shown(value)
    return text if len(text) <= LONGEST_SHOWN and "\n" not in text else "..."


LONGEST_SHOWN: Final = 40
"""Letters of an argument that are repeated to who gave it."""


def fitting(method: Callable[P, T]) -> Callable[P, T]:
    """The method; a call that does not fit its parameters is refused by an error that shows them."""

    @functools.wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except TypeError as error:
            raise unfitting(called, args, kwargs) or error from None

    return called


def require_no_refinement(chain: object, name: str) -> None:
    """Refuse to look for a refinement on what it does not refine: a chain's last step, or what has no step yet."""
    if not name.startswith("_"):
        from fireiron.language.misplaced import misplaced

        error = misplaced(chain, name)
        if error is not None:
            raise error


def says_nothing(steps: object, where: object) -> bool:
    """Whether the arguments of `skip` are none: then it refines a split."""
    return steps == () and (where is None or (isinstance(where, str) and not where))


class Refusing:
    """Refuses refinements that what a chain starts from, or its last step, has not, and lists no verbs of other kinds of specs."""

    __slots__: tuple[()] = ()

    def __dir__(self) -> list[str]:
        """The names, but for verbs that are for other kinds of specs."""
        from fireiron.language.offered import listed

        return listed(self)

    if not TYPE_CHECKING:  # a type checker knows which step has which refinement

        def __getattr__(self, name: str) -> Any:
            require_no_refinement(self, name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class Verbs(FoundSteps, Refusing):
    """The verbs `tile`, `split`, `split_k`, `repack`, `load`, `epilog`, `step`, `coalesced`, `mma_tile`, `done` and `then`, and those that
    are found."""

    __slots__ = ()

    @fitting
    def then(self, step: Decomposition | Strategy) -> Strategy:
        """Append a decomposition, or all steps of another strategy.

        Legal when the chain is not finished by `done`.
        rewrite: steps --> steps, step

        Source: Fireiron, section 3.3.

        >>> from fireiron import *
        >>> blocks, threads = MatMul.tile(16, 16).to(Block), MatMul.tile(4, 4).to(Thread)
        >>> blocks.then(threads)
        MatMul.tile(16, 16).to(Block).tile(4, 4).to(Thread)
        """
        from fireiron.language.strategy import appended

        return appended(self, step)

    @fitting
    def tile(self, *sizes: TileSize | Strided, **by_dim: TileSize) -> TileStrategy:
        """Tiles of the output, inputs follow; sequential loops unless dealt with `.to(level)`.

        Args: `r, c` in elements, or sizes by dimension name (`m=64`), or `Strided((chunk, repeat), ...)`. Where a spec has more
        dimensions than sizes are given, these are for the two of a matrix, if the others have one element. A size may be a layout
        that says which elements of the dimension the first tile has: `Layout(2, 4)`, every fourth, two of them; its complement has the
        first elements of the other tiles (Graphene, section 3.3).
        Legal when each size divides a static parent tile; at the whole tensor the last tile may overhang and is guarded. A layout
        has each element once, and fills the dimension together with its complement.
        rewrite: MatMul(M,N,K) --> for m: for n: MatMul(r,c,K)      (Fireiron, section 3.4)

        >>> from fireiron import *
        >>> print(MatMul(64, 64, 8)(GL, GL, GL)(Kernel).tile(32, 16).to(Block).result)
        MatMul(32,16,8)(GL,GL,GL)(Block)
        """
        from fireiron.decomp.tile import Tile
        from fireiron.language.strategy import TileStrategy, appended

        return appended(self, Tile.of(sizes, by_dim), TileStrategy)

    @fitting
    def split(self, *sizes: TileSize, **by_dim: TileSize) -> SplitStrategy:
        """Sequential loop over a reduction dimension; the rest is zero, not a special case.

        Args: elements of k in each step, or their layout as in `tile`. Legal on a spec with a reduction dimension, when the size divides
        a static tile.
        rewrite: MatMul(M,N,K) --> for k: MatMul(M,N,kBlock), adding up      (Fireiron, section 4.1)

        >>> from fireiron import *
        >>> print(MatMul(64, 64, 8)(GL, GL, GL)(Kernel).tile(64, 64).to(Block).split(4).result)
        MatMul(64,64,4)(GL,GL,GL)(Block)
        """
        from fireiron.decomp.split import Split
        from fireiron.language.strategy import SplitStrategy, appended

        return appended(self, Split.of(sizes, by_dim), SplitStrategy)

    @fitting
    def split_k(self, parts: Integer, level: Level, step: Integer, combine: Strategy | None = None) -> SplitKStrategy:
        """A reduction dimension dealt to units that work side by side, in chunks in turn; their partial results are added up.

        Args: the parts; the level of the units; elements of k in a chunk, a multiple of the next `split`; a strategy for the
        `Reduction` that adds the partial results (none: one element a thread).
        In a block, each unit of a level below has accumulators of its own, which meet in shared memory. At the kernel, the
        level is Block: blocks add to C atomically, and C is zero before the launch (the launcher and the simulator see to it).
        k is the first dimension of several elements that is added up.
        Legal on a MatMul before `epilog`; across blocks before `tile(...).to(Block)`, for C of float32, float64 or int32.
        rewrite: MatMul(M,N,K)(Block) --> unit u: MatMul(M,N,K/parts)(.., P[u])(level); Reduction(M,N,parts)(P, C)

        >>> from fireiron import *
        >>> mm = MatMul(64, 64, 256)(GL, GL, GL)(Kernel).tile(16, 16).to(Block)
        >>> print(mm.split_k(2, Warp, 64).result)
        MatMul(16,16,128)(GL,GL,SH)(Warp)

        Source: Fireiron, section 5.3; decision 11.
        """
        from fireiron.decomp.split_k import SplitK
        from fireiron.language.strategy import SplitKStrategy, appended

        return appended(self, SplitK.of(parts, level, step, combine), SplitKStrategy)

    @fitting
    def repack(self, operand: Operand | str, move: Strategy | None = None, *, order: MatrixLayout | None = None) -> Strategy:
        """Copy an input operand first, by a launch of its own, to an array that the steps behind can read by the widest accesses, if they
        cannot read its own so.

        That is where rows are no multiples of 16 bytes apart, and where an instruction reads the operand along another dimension than
        the one along which it is stored: those of warpgroups read elements that have not 16 bits along k only.
        Args: the operand; a strategy for the `Move` (none: neighbouring threads copy neighbours, or turn tiles round in shared memory);
        the storage order of the new array (none: as it is read behind, else that of the operand; row-major, if it has none). The new
        array belongs to the launcher, which allocates it for the call, or once for a prepared launch.
        Legal first in a chain, for matrices in GL and stacks of them; nothing happens where the operand serves as it is.
        rewrite: MatMul(..)(A) --> Move(A -> A'); MatMul(..)(A')

        >>> from fireiron import *
        >>> mm = MatMul(64, 64, 33, A=RowMajor)(GL, GL, GL)(Kernel).repack(A).tile(64, 64).to(Block)
        >>> print(mm.program().launches[0].program.spec.notation, mm.result.A.tensor.layout)
        Move(64,33)(GL,GL)(Kernel) RowMajor(ld=64)

        Source: decision 32.
        """
        from fireiron.decomp.repack import Repack
        from fireiron.language.strategy import Strategy, appended

        return appended(self, Repack.of(operand, move, order), Strategy)

    @fitting
    def load(self, operand: Operand | str, memory: Memory, move: Strategy | None = None) -> LoadStrategy:
        """Copy an input operand to a new buffer in another memory; `move` decomposes the copy.

        Args: the operand (`A`, `B`, `Move.src`, or its name), the memory, a strategy for the `Move`
        (none: one element a thread, which is always right).
        Legal for inputs of static size. Private memory is divided between threads as the rest of the strategy reads it. Of one matrix in a
        stack (`bmk`, where a tile has one b) the buffer is a matrix.
        rewrite: MatMul(..)(GL,..) --> Move(A, GL -> SH); MatMul(..)(SH,..)      (Fireiron, section 3.3)

        >>> from fireiron import *
        >>> print(MatMul(64, 64, 8)(GL, GL, GL)(Kernel).tile(64, 64).to(Block).load(A, SH).result)
        MatMul(64,64,8)(SH,GL,GL)(Block)
        """
        from fireiron.decomp.load import Load
        from fireiron.language.strategy import LoadStrategy, appended

        return appended(self, Load.of(operand, memory, move), LoadStrategy)

    @fitting
    def epilog(
        self,
        memory: Memory,
        first: Strategy | DType | None = None,
        second: Strategy | None = None,
        third: Strategy | None = None,
        *,
        init: Strategy | None = None,
        store: Strategy | None = None,
        dtype: DType | None = None,
    ) -> EpilogStrategy:
        """A new accumulator: initialised by `init`, added to by the rest of the chain, written back by `store`.

        Args: `epilog(memory, init, store)` or `epilog(memory, dtype, init, store)`; the accumulator's type is the spec's
        `accumulator`, else that of C. Without strategies, in registers and fragments each thread sets and stores what the
        rest of the chain makes it hold; in shared memory, neighbours, one element a thread.
        Legal before any `split` that adds up. For a spec that accumulates, `init` loads C.
        rewrite: MatMul(..)(..,GL) --> Init(C'); MatMul(..)(..,RF); Move(C', RF -> GL)      (Fireiron, section 4.1)

        >>> from fireiron import *
        >>> print(MatMul(64, 64, 8)(GL, GL, GL)(Kernel).tile(64, 64).to(Block).epilog(RF).result)
        MatMul(64,64,8)(GL,GL,RF)(Block)
        """
        from fireiron.decomp.epilog import Epilog
        from fireiron.language.strategy import EpilogStrategy, appended

        return appended(self, Epilog.of(memory, (first, second, third), init, store, dtype), EpilogStrategy)

    @fitting
    def step(self, name: str, strategy: Strategy) -> Strategy:
        """The strategy of one step of a fused definition: a chain from the kind that its formula makes it, such as MatMul.

        Legal on a definition with such a step.
        rewrite: definition --> definition with a strategy for the step      (Graphene, section 5.3)

        >>> from fireiron import *
        >>> doubled = Fused(
        ...     name="doubled", dims="m n k", operands={"A": "m k", "B": "k n", "C": "m n"},
        ...     each={"product": "c[m,n] = sum(k, A[m,k] * B[k,n])", "twice": "C[m,n] = c[m,n] * 2"},
        ... )

        >>> by_threads = MatMul.tile(1, 1).to(Thread).split(1).done()
        >>> text = doubled.tile(m=16, n=16).to(Block).step("product", by_threads).done()(doubled(m=64, n=64, k=8)).cuda()
        >>> [line.strip() for line in text.splitlines() if "// twice" in line]
        ['// twice: C[m,n] = c[m,n] * 2']
        """
        from fireiron.decomp.step import StepOf
        from fireiron.language.strategy import appended

        return appended(self, StepOf(name, strategy, origin=call_site()))

    @fitting
    def skip(self, *steps: str, where: str = "") -> Strategy:
        """Steps of a fused definition that a warp leaves out where a condition holds for all elements that its threads have.

        Args: names of steps; `where`, a condition that elements are equal, or a number, such as `"new == mx"` or `"alpha == 1"`.
        Steps side by side are one region, under one branch.
        Legal on steps of registers that make the same under the condition as was there before, or a number, which is set in front. That
        is proved on the formulas, whatever finite numbers arrays hold. Without arguments it refines a `split`.
        rewrite: alpha[m] = f; l[m] = l[m] * alpha[m] --> alpha[m] = 1; if needed: { alpha[m] = f; l[m] = l[m] * alpha[m] }

        Source: decision 44.

        >>> from fireiron import *
        >>> peak = Fused(
        ...     name="peak", dims="m n", over="n", operands={"X": "m n", "y": "m"},
        ...     first={"low": "top[m] = -inf"},
        ...     each={"part": "part[m] = max(n, X[m,n])", "new": "new[m] = max(top[m], part[m])", "keep": "top[m] = new[m]"},
        ...     last={"out": "y[m] = top[m]"},
        ... )
        >>> row = Move.tile(1, 128).to(Warp).tile(1, 4).to(Lane).done()
        >>> turns = peak.tile(m=1).to(Block).split(n=128).load("X", RF, row).skip("keep", where="new == top")
        >>> [line.strip() for line in turns.done()(peak(m=8, n=512)).cuda().splitlines() if "__any_sync" in line]
        ['if (__any_sync(0xffffffff, keep_needed[0])) {']
        """
        from fireiron.decomp.skip import SkipSteps
        from fireiron.language.strategy import appended

        if says_nothing(steps, where):
            require_no_refinement(self, "skip")
        return appended(self, SkipSteps(steps, where, origin=call_site()))

    @fitting
    def coalesced(self, elements: Integer) -> Strategy:
        """A copy by all threads of the group, each a vector of neighbours, in the storage order of the memory further away.

        Args: the most elements of a vector; fewer where sizes or leading dimensions prove no more. Legal on a `Move` of a group of threads.
        rewrite: Move(m,n)(Block) --> Move(1,elements)(Thread), or Move(elements,1)(Thread) where storage is column-major

        >>> from fireiron import *
        >>> print(Move(64, 32)(GL, SH)(Block).coalesced(4).result)
        Move(4,1)(GL,SH)(Thread)

        Source: CUDA C++ Programming Guide, "Device Memory Accesses".
        """
        from fireiron.decomp.coalesced import Coalesced
        from fireiron.language.strategy import appended

        return appended(self, Coalesced.of(elements))

    @fitting
    def mma_tile(self, instruction: Executable | None = None) -> Strategy:
        """A contiguous 16x16 tile of a warp becomes tiles of the target's matrix instruction.

        Args: nothing, or the instruction (`HMMA_16816_F32`, ...). The target decides otherwise: m8n8k4 by quad-pairs on Volta,
        m16n8k8 on Turing, m16n8k16 from Ampere on, for halves; other element types have forms of their own.
        Legal at Warp for 16 x 16 elements of C and a k that the instruction's divides.
        rewrite: MatMul(16,16,K)(Warp) --> for n: for k: MatMul(16,8,16)(Warp)      (Fireiron, section 5.3)

        >>> from fireiron import *
        >>> mm = MatMul(16, 16, 16, dtype=float16, c_dtype=float32)(GL, GL, GL)(Kernel).tile(16, 16).to(Block).tile(16, 16).to(Warp)
        >>> print(mm.mma_tile().result)
        MatMul(16,8,16)(GL,GL,GL)(Warp)
        """
        from fireiron.decomp.mma_tile import MmaTile
        from fireiron.language.strategy import appended

        return appended(self, MmaTile.of(instruction))

    @fitting
    def done(self, executable: Executable | str | None = None) -> Strategy:
        """The residual spec must match an instruction of the target, the given executable, or the given micro-kernel.

        Args: nothing, an `Executable`, a `MicroKernel`, CUDA C++ text, or the name of a `.cu` file: one beside the file of the strategy,
            or in the working directory.
        Legal where it performs the spec: its kind, level, memories, sizes and types, on the target; a micro-kernel takes any spec.
        rewrite: spec --> instruction      (Fireiron, section 3.4)

        >>> from fireiron import *
        >>> leaf = MatMul(16, 16, 8)(GL, GL, GL)(Kernel).tile(4, 4).to(Block).tile(1, 1).to(Thread).split(1)
        >>> print(leaf.result)
        MatMul(1,1,1)(GL,GL,GL)(Thread)
        >>> "fmaf(" in leaf.done().cuda()
        True
        >>> "c[0] += a[0] * b[0];" in leaf.done("c[0] += a[0] * b[0];").cuda()
        True
        """
        from fireiron.decomp.done import Done
        from fireiron.language.strategy import appended

        return appended(self, Done.of(executable))


if TYPE_CHECKING:
    Offering = Refusing  # what is offered for which kind of spec, `found.pyi` says
else:
    Offering = Verbs
