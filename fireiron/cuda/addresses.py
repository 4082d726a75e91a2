"""Base addresses: the loop-invariant part of an address is computed once, before the loop, and has a name.

An address is the sum of a base, which depends on block and thread, and an offset, which depends on loops. A base that is more than a
multiple of one variable becomes a pointer (`a_source`, `c_target`), or, for inline PTX, a 32-bit address in shared memory.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator

import attrs

from fireiron.cuda.constants import Constants
from fireiron.cuda.expressions import Precedence, expression, is_wide, operand, scaled, summands
from fireiron.cuda.lines import guarded
from fireiron.cuda.names import Names
from fireiron.cuda.rotations import shown
from fireiron.frozen import frozen
from fireiron.ir import Access, Acquire, Buffer, ClaimTile, For, Kernel, Let, Rotations, execs, statements
from fireiron.ir.text import Function, Item, Noted, Path, WithSteps
from fireiron.values.document import Assignment, Chain, Joined, Text
from fireiron.values.expr import FALSE, ONE, ZERO, BitXor, Const, Expr, Mod, Sum, Var, as_expr, constant, mod, replaced
from fireiron.values.expr.normal import terms_of

SHARED_ADDRESS = Function(
    "shared_address",
    ("const void* pointer",),
    ("return static_cast<unsigned>(__cvta_generic_to_shared(pointer));",),
    "32-bit shared-memory address for inline PTX",
    result="unsigned",
)

FIRST_LANE = "__shfl_sync(0xffffffff, "
"""Broadcasts the value of lane 0. The compiler then keeps the value, and all values computed from it, in uniform registers."""


@attrs.define
class OpenLoop:
    """A loop that is not unrolled, and the values that its body has named.

    - `counted`: stages are incremented in each iteration, not computed from the loop variable. `parities` are then the phases of a ring by
      stage: the name and the value.
    - `around`: the enclosing loop, if the count continues through its iterations. It then starts at the stages of the first iteration of
      `around`; `before` are the lines for this before `around`.
    - `together`: all lanes of a warp execute each iteration together. `of_warp` are the stages under names that the compiler knows to be
      warp-uniform, for addresses of MMAs.
    - `rotated`: the steps of a `.stagger_blocks` loop. `stages`: the numbers of stages of its rings; `period` is a multiple of them.
    """

    loop: For
    counted: bool
    around: OpenLoop | None
    together: bool
    stages: set[int]
    of_warp: dict[Expr, Var] = attrs.field(factory=dict)
    named: dict[Expr, Var] = attrs.field(factory=dict)
    parities: dict[Expr, tuple[Var, Expr]] = attrs.field(factory=dict)
    rotated: dict[Expr, Var] = attrs.field(factory=dict)
    before: list[Text] = attrs.field(factory=list)

    @property
    def var(self) -> Var:
        """The variable of the loop."""
        return self.loop.var

    @property
    def period(self) -> int:
        """The number of iterations after which shared addresses repeat."""
        return self.loop.period

    def has_stage(self, value: Mod) -> bool:
        """Whether a remainder is a stage of a ring of the loop, or, for MMAs, of a ring that is filled once per iteration."""
        return constant(value.right) in (self.period, *self.stages) or (self.together and value.left == self.var)

    def counts(self, number: Expr) -> bool:
        """Whether a number grows by 1 in each iteration, and is never negative."""
        rest = number - self.var
        return self.counted and self.var not in rest.variables() and rest.low + as_expr(self.loop.first).low >= 0

    def values(self) -> Iterator[Expr]:
        """The values that the names of the loop have."""
        yield from (*self.named, *self.of_warp, *self.rotated, *(value for _, value in self.parities.values()))

    def at_start(self, value: Expr) -> Expr:
        """The value of an expression in the first iteration."""
        return replaced(value, {self.var: as_expr(self.loop.first)})


@frozen
class Lines:
    """The lines for the names of a loop: before it, at the start of its body, and at the end."""

    before: tuple[Text, ...]
    top: tuple[Item, ...]
    end: tuple[Item, ...]


class Addresses:
    """The addresses of one kernel; `declared` are the lines that declare new names, `steps` the tree steps that need the names."""

    def __init__(self, kernel: Kernel, names: Names) -> None:
        self.kernel, self.names = kernel, names
        self.constants = Constants(kernel, names)
        self.fixed = frozenset({kernel.block, kernel.thread, *kernel.symbols, *(one.var for one in kernel.body if isinstance(one, Let))})
        self.sizes = frozenset(kernel.symbols)
        self.declared: list[Item] = []
        self.steps: tuple[Path, ...] = ()
        self.loops: list[OpenLoop] = []
        self.used: set[Var] = set()
        self.pointers: dict[tuple[str, Expr], str] = {}
        self.windows: dict[tuple[str, Expr], str] = {}
        self.swizzles: dict[Expr, Var] = {}
        self.split = functools.cache(self._parts)
        """Split an address into the part that block and thread determine, and the rest."""
        self.rotations = Rotations(kernel)
        self.unrolled = {one.var for one in statements(kernel.body) if isinstance(one, For) and one.unroll}
        self.repeated = self._repeated()
        self.updated = {*self._updated()}

    def _repeated(self) -> set[tuple[str, Expr]]:
        """The bases that are printed in loops, or more than once in a statement."""
        bases = set()
        for statement, loops in execs(self.kernel.body):
            for position, access in enumerate(statement.accesses):
                buffer = self.kernel.buffer(access.buffer)
                split = bool(statement.pieces) and len(statement.pieces[position]) > 1
                if (loops or split) and not (buffer.memory.private or buffer.memory.is_coordinate):
                    bases.add((buffer.name, self.split(buffer.address(access, access.elements()[0]))[0]))
        return bases

    def _updated(self) -> Iterator[tuple[str, Expr]]:
        """The bases of accumulators in shared memory: a statement that adds to one names it twice."""
        for statement, _ in execs(self.kernel.body):
            for access in statement.accesses:
                if access.write and statement.accumulate != FALSE and self.kernel.buffer(access.buffer).memory.of_block:
                    yield access.buffer, self.split(self.kernel.buffer(access.buffer).address(access, access.elements()[0]))[0]

    def _parts(self, address: Expr) -> tuple[Expr, Expr]:
        base: Expr = ZERO
        for term in terms_of(address)[0]:
            if self._belongs_to_thread(term[0]):
                base = base + _product(term)
        return base, address - base

    def _belongs_to_thread(self, atoms: tuple[Expr, ...]) -> bool:
        """Whether block and thread determine a term; sizes alone may be part of an offset that a loop adds, such as `(k + 1) * N`."""
        variables = frozenset().union(*(atom.variables() for atom in atoms))
        return variables <= self.fixed and not variables <= self.sizes

    # ------------------------------------------------------------------------------------------ texts

    def place(self, access: Access, offset: tuple[int, ...]) -> Text:
        """An element as an lvalue."""
        name, index, buffer = self._indexed(access, offset)
        if buffer.memory.by_value:
            return name
        if buffer.memory.is_coordinate:
            return self._coordinate(index)
        return Joined((f"{name}[", self._document(index, buffer, 1), "]"))

    def pointer(self, access: Access, offset: tuple[int, ...]) -> Text:
        """A pointer to an element."""
        name, index, buffer = self._indexed(access, offset)
        if buffer.memory.by_value:
            return f"&{name}"
        return name if index == ZERO else Joined((f"&{name}[", self._document(index, buffer, 1), "]"))

    def _coordinate(self, value: Expr) -> Text:
        """A coordinate as a value."""
        value = self.stepped(value)
        self.used |= value.variables()
        return operand(value, Precedence.FACTOR)

    def _indexed(self, access: Access, offset: tuple[int, ...]) -> tuple[str, Expr, Buffer]:
        buffer = self.kernel.buffer(access.buffer)
        index = buffer.address(access, offset)
        base, rest = self.split(index)
        if (buffer.name, base) in self.repeated and not _plain(base) and self._worth_a_pointer(buffer, base):
            return self._base(buffer, base, access.write), rest, buffer
        return buffer.name, index, buffer

    def _worth_a_pointer(self, buffer: Buffer, base: Expr) -> bool:
        """Whether a base becomes a pointer, which is live while the loops around it run.

        In global memory it saves 64-bit arithmetic. In shared memory, where an address is a 32-bit sum, it saves nothing in a loop that is
        not unrolled, and costs registers: on an H200 (CUDA 13.0) `wmma_optimized` went from 128 to 145, one block per SM fewer, and took
        1.35 times as long; `sgemm` 1.02, `listing_2` 1.06 times.
        """
        return buffer.parameter or buffer.workspace or not self.loops or (buffer.name, base) in self.updated

    def _base(self, buffer: Buffer, base: Expr, write: bool) -> str:
        """The pointer to the first element of a thread's part of a buffer."""
        key = (buffer.name, base)
        if key not in self.pointers:
            const = "" if buffer.written else "const "
            name = self.pointers[key] = self.names.fresh(_label(buffer, write))
            target = f"{const}{buffer.dtype.cuda}* const {name}"
            self._declare(Assignment(target, self._added(buffer.name, base, buffer, 1)))
        return self.pointers[key]

    def shared(self, access: Access, offset: tuple[int, ...], window: str) -> Text:
        """The 32-bit shared-memory address of an element, in bytes; `window` is the function that converts a pointer to one."""
        buffer = self.kernel.buffer(access.buffer)
        return self._shared(buffer, buffer.address(access, offset), access.write, window)

    def shared_and_step(self, access: Access, offset: tuple[int, ...], window: str) -> tuple[Text, Expr]:
        """The 32-bit shared-memory address in the first iteration of unrolled loops, and the bytes that the loops add."""
        buffer = self.kernel.buffer(access.buffer)
        address = buffer.address(access, offset)
        unrolled = self._unrolled(address)
        return self._shared(buffer, address - unrolled, access.write, window), scaled(unrolled, buffer.dtype.bytes)

    def coordinates(self, access: Access, offset: tuple[int, ...]) -> tuple[Expr, Expr]:
        """The value of a coordinate in the first iteration of unrolled loops, and the number that the loops add."""
        value = self.stepped(self.kernel.buffer(access.buffer).address(access, offset))
        self.used |= value.variables()
        added = self._unrolled(value)
        return value - added, added

    def _unrolled(self, address: Expr) -> Expr:
        """The part of an address that unrolled loops add."""
        total: Expr = ZERO
        for term in terms_of(address)[0]:
            if not frozenset().union(*(atom.variables() for atom in term[0])).isdisjoint(self.unrolled):
                total = total + _product(term)
        return total

    def _shared(self, buffer: Buffer, address: Expr, write: bool, window: str) -> Text:
        size = buffer.dtype.bytes
        base, rest = self.split(address)
        if (buffer.name, base) not in self.repeated or _plain(base):
            # A base that is used once, or is as short as a name, gets no name.
            base, rest = ZERO, base + rest
        key = (buffer.name, base)
        if key not in self.windows:
            label = f"{buffer.name}_address" if base == ZERO else _label(buffer, write)
            name = self.windows[key] = self.names.fresh(label)
            start = f"{window}({buffer.name})"
            value = start if base == ZERO else self._added(start, scaled(base, size), buffer, size)
            self._declare(Assignment(f"const unsigned {name}", value))
        name = self.windows[key]
        return name if rest == ZERO else self._added(name, scaled(rest, size), buffer, size)

    def stage(self, value: Expr) -> Expr:
        """The name of a stage in the body of its loop; any other value unchanged."""
        if not isinstance(value, Mod):
            return value
        open_loop = next((one for one in reversed(self.loops) if one.var in value.variables() and one.has_stage(value)), None)
        if open_loop is None:
            return value
        if value.variables() != {open_loop.var}:
            shorter = mod(self.fill(value.left, 2 * open_loop.period), value.right)
            known = {open_loop.var, *(name for one in self.loops for name in one.named.values())}
            if not isinstance(shorter, Mod) or not shorter.variables() <= known:
                return shorter if open_loop.around is None else value  # only a count continues through the loop around
            value = shorter
        return self._stage(value, open_loop)

    def fill(self, number: Expr, rounds: int) -> Expr:
        """The number of a fill of a ring, up to a multiple of `rounds`.

        The part that the loops around the innermost one add has a name, which is defined in the loop that changes it.
        """
        inner = self.loops[-1].var if self.loops else None
        if self.loops and self.loops[-1].period:  # one name for all rings of the loop
            rounds = math.lcm(rounds, 2 * self.loops[-1].period)
        terms, start = terms_of(number)
        rest: Expr = sum((_product(term) for term in terms if term[0] == (inner,)), as_expr(start))
        base = number - rest
        owner = next((one for one in reversed(self.loops) if not base.variables().isdisjoint((one.var, one.loop.prior_iterations))), None)
        if owner is None or (owner is self.loops[-1] and isinstance(base, Var)):
            return number
        if any(isinstance(one, (Let, ClaimTile)) and one.var in base.variables() for one in owner.loop.body):
            return number  # the name is not yet defined at the start of the loop's body
        inmost = self.loops[-1]
        if owner is inmost.around:  # the count continues from the first iteration of the loop around
            base = owner.at_start(base)
            owner = next((one for one in reversed(self.loops) if one.var in base.variables()), owner)
        elif owner.around is not None and owner.around.var in base.variables():  # the name is counted, and defined before the loop around
            if not continues_count(owner.loop, base, owner.around.loop):
                return number
            base = owner.around.at_start(base)
        value = (_reduced(base, rounds) if is_wide(base) else base) % rounds
        if constant(value) is not None or value in self.fixed:  # nothing depends on the loops around
            return value + rest
        if value not in owner.named:
            owner.named[value] = self._name(f"{owner.var.name}_first_fill", value)
        return owner.named[value] + rest

    def role(self) -> Callable[[], None]:
        """Begin a branch; the returned function ends it, and removes the names that were created in it."""
        pointers, windows, swizzles = dict(self.pointers), dict(self.windows), dict(self.swizzles)
        release = self.names.scope()

        def forget() -> None:
            self.pointers, self.windows, self.swizzles = pointers, windows, swizzles
            release()

        return forget

    def expression(self, value: Expr) -> str:
        """The text of an expression, whose variables are marked as used."""
        value = self.stepped(value)
        self.used |= value.variables()
        return expression(value)

    def stepped(self, value: Expr) -> Expr:
        """The expression with the steps of `.stagger_blocks` loops replaced by their names."""
        names: dict[Expr, Expr] = {}
        if self.loops and self.rotations.steps:
            self._collect_steps(value, names)
        return replaced(value, names) if names else value

    def _collect_steps(self, value: Expr, names: dict[Expr, Expr]) -> None:
        step = self.rotations.steps.get(value)
        open_loop = None if step is None else next((one for one in self.loops if one.var == step[0].var), None)
        if step is None or open_loop is None:
            for child in value.children:
                self._collect_steps(child, names)
            return
        if value not in open_loop.rotated:
            label = f"{open_loop.var.name}_shifted_{step[1]}" if step[1] else f"{open_loop.var.name}_shifted"
            open_loop.rotated[value] = self._name(label, value)
        names[value] = open_loop.rotated[value]

    def _document(self, value: Expr, buffer: Buffer, size: int) -> Text:
        """An index into a buffer."""
        first, *others = self._parts_of(value, buffer, size)
        return Chain((first, *others)) if others else first

    def _added(self, start: str, value: Expr, buffer: Buffer, size: int) -> Text:
        """A pointer, or an address, plus an offset."""
        first, *others = self._parts_of(value, buffer, size)
        if isinstance(first, str) and first.startswith("-"):
            return Chain((start, f"- {first[1:]}", *others))
        return Chain((start, Joined(("+ ", first)), *others))

    def _parts_of(self, value: Expr, buffer: Buffer, size: int) -> tuple[Text, ...]:
        """The terms of an offset into a buffer, each after its sign, except a first plus. An element has `size` units of the offset."""
        value = self.stepped(value)
        value = self._named(value, buffer)
        self.used |= value.variables()
        shifted = {loop.var for loop in self.loops} if buffer.parameter or buffer.workspace else ()
        return summands(value, () if buffer.memory.private else self._strides(buffer, size), shifted)

    def _strides(self, buffer: Buffer, size: int) -> tuple[int, ...]:
        """The strides of a buffer's rows, columns, copies and stages, largest first. An element has `size` units of the strides."""
        named: list[int | None] = []
        if buffer.memory.in_shared and buffer.tensor.copies > 1:
            named.append(self.constants.stride(buffer, size))
        if buffer.memory.in_shared and size > 1:  # an index of elements is signed: another product would be another instruction
            named += [self.constants.copy(buffer, size) if named == [None] else None, self.constants.panel(buffer, size)]
        weights = {constant(digit.weight) for digits in buffer.storage.dims for digit in digits}
        weights.add(constant(buffer.elements) if buffer.tensor.copies > 1 else None)
        strides = [step for step in named if step is not None]
        strides += [weight * size for weight in weights if weight is not None and weight > 1 and weight * size not in strides]
        return tuple(sorted(strides, reverse=True))

    # ------------------------------------------------------------------------------------------ parts with names

    def _name(self, wanted: str, value: Expr) -> Var:
        """A new name for a value, with the range and factor of the value."""
        return Var(self.names.fresh(wanted), value.low, value.high, value.factor)

    def _named(self, value: Expr, buffer: Buffer) -> Expr:
        """The expression with the stages of loops and the operands of swizzles replaced by their names."""
        names: dict[Expr, Expr] = {}
        self._collect(value, buffer, names)
        return replaced(value, names)

    def _collect(self, value: Expr, buffer: Buffer, names: dict[Expr, Expr]) -> None:
        stage = self.stage(value)
        if stage is not value:
            names[value] = self._of_warp(stage)
            return
        if isinstance(value, BitXor) and not value.variables() <= self.fixed:
            for side in value.children:
                if side.variables() <= self.fixed and not _plain(side):
                    names[side] = self._swizzle(side, buffer)
        for child in value.children:
            self._collect(child, buffer, names)

    def _stage(self, value: Mod, open_loop: OpenLoop) -> Var:
        if value not in open_loop.named:
            ahead = constant(value.left - open_loop.var) or 0
            label = f"{open_loop.var.name}_stage_{ahead}" if ahead > 0 else f"{open_loop.var.name}_stage"
            open_loop.named[value] = self._name(label, value)
        return open_loop.named[value]

    def _of_warp(self, stage: Expr) -> Expr:
        """The warp-uniform name of a stage, if its loop needs one."""
        open_loop = next((one for one in self.loops if one.together and stage in one.named.values()), None)
        if open_loop is None:
            return stage
        if stage not in open_loop.of_warp:
            open_loop.of_warp[stage] = self._name(f"{stage}_uniform", stage)
        return open_loop.of_warp[stage]

    def _swizzle(self, value: Expr, buffer: Buffer) -> Var:
        if value not in self.swizzles:
            name = self.swizzles[value] = self._name(f"{buffer.name.lower()}_swizzle", value)
            self._declare(Assignment(f"const int {name}", self.expression(value)))
        return self.swizzles[value]

    def parity(self, number: Expr, stages: int, ahead: int) -> Expr:
        """The phase parity of a fill of a ring, `ahead` phases later; its name if the loop counts phases."""
        value, stage = (number // stages + ahead) % 2, number % stages
        open_loop = self.loops[-1] if self.loops else None
        if (
            open_loop is None
            or stages not in (open_loop.period, *open_loop.stages)
            or not isinstance(stage, Mod)
            or not open_loop.counts(stage.left)
        ):
            return value
        if stage not in open_loop.parities:
            self._stage(stage, open_loop)  # the parity changes when this stage wraps around
            open_loop.parities[stage] = self._name(f"{open_loop.var.name}_phase", value), value
        return open_loop.parities[stage][0]

    def enter(self, loop: For, together: bool) -> OpenLoop:
        """Begin a loop that is not unrolled; `together` gives the stages of its MMAs warp-uniform names."""
        first = self._counted(loop)
        around = (
            self.loops[-1] if first is not None and self.loops and continues_count(loop, first.fill_index, self.loops[-1].loop) else None
        )
        stages = {self.kernel.ring(one.ring).stages for one in loop.body if isinstance(one, Acquire) and loop.period}
        open_loop = OpenLoop(loop, first is not None, around, together, stages)
        self.loops.append(open_loop)
        return open_loop

    def _counted(self, loop: For) -> Acquire | None:
        """The wait for a ring whose stages are counted in a loop, because a remainder by a number that is not a power of two costs more.

        A loop with at most as many iterations as stages is in one phase, or two.
        """
        waits = (one for one in loop.body if isinstance(one, Acquire) and loop.step == 1)
        rings = ((one, self.kernel.ring(one.ring)) for one in waits)
        return next((one for one, ring in rings if loop.period and ring.stages <= loop.var.high and ring.stages & (ring.stages - 1)), None)

    def leave(self) -> Lines:
        """End the loop: the lines for its names."""
        open_loop = self.loops.pop()
        # A parity changes when the counted stage wraps around, whether or not the text reads the stage.
        counting = {value for value in open_loop.named if open_loop.parities and isinstance(value, Mod) and open_loop.counts(value.left)}
        names = {*open_loop.named.values(), *open_loop.of_warp.values(), *open_loop.rotated.values()}
        open_loop.named = {value: name for value, name in open_loop.named.items() if value in counting or self._is_read(name, open_loop)}
        self.used |= {var for value in (*open_loop.named, *open_loop.rotated) for var in value.variables()}
        counted = {value: name for value, name in open_loop.named.items() if isinstance(value, Mod) and open_loop.counts(value.left)}
        starts = [(name, open_loop.at_start(value)) for value, name in counted.items()]
        starts += [(name, open_loop.at_start(value)) for name, value in open_loop.parities.values()]
        self.used |= {var for _, value in starts for var in value.variables()}
        initial = [Assignment(f"int {name}", expression(value)) for name, value in starts]
        (open_loop.before if open_loop.around is None else open_loop.around.before).extend(initial)
        top: list[Item] = [
            Assignment(f"const {self._kind(value)} {name}", expression(self._by_name(value)))
            for value, name in open_loop.named.items()
            if value not in counted
        ]
        top += [
            Assignment(f"const {self._kind(value)} {name}", expression(shown(value, self.rotations)))
            for value, name in open_loop.rotated.items()
        ]
        top += [
            Noted(f"const {self._kind(stage)} {name} = {FIRST_LANE}{stage}, 0);", "warp-uniform")
            for stage, name in open_loop.of_warp.items()
        ]
        for name in names.difference(counted.values()):
            self._end(name)
        return Lines(
            tuple(open_loop.before),
            tuple(top),
            tuple(_counted_on(value, name, expression(self.constants.divisor(value.right)), open_loop) for value, name in counted.items()),
        )

    def _by_name(self, value: Expr) -> Expr:
        """A stage with the number of stages replaced by its name."""
        return Mod(value.left, self.constants.divisor(value.right)) if isinstance(value, Mod) else value

    def _end(self, name: Var) -> None:
        """End the scope of a name: another scope may have an equal name for something else."""
        self.names.drop(name.name)
        self.used.discard(name)

    def _is_read(self, name: Var, open_loop: OpenLoop) -> bool:
        """Whether the text reads a name. It does not if each iteration of a loop has the same stage."""
        others = (value for loop in (open_loop, *self.loops) for value in loop.values())
        return name in self.used or any(name in value.variables() for value in others)

    def _kind(self, value: Expr) -> str:
        """The type of a name of a loop.

        A value that depends on sizes is unsigned, so that quotients by powers of two are shifts. The compiler knows that other values are
        not negative.
        """
        return "int" if value.variables().isdisjoint(self.sizes) else "unsigned"

    def count(self, var: Var, growth: Expr) -> Text:
        """The line that adds an iteration, or a number of them, to a count that is declared at the start of the program."""
        self._declare(f"int {var} = 0;")
        self.used.discard(var)
        return f"++{var};" if growth == ONE else f"{var} += {self.expression(growth)};"

    def _declare(self, line: Text) -> None:
        self.declared.append(WithSteps(line, self.steps))

    def new_declarations(self) -> list[Item]:
        """The lines that declare the names created since the last call."""
        lines, self.declared = self.declared, []
        return lines


def continues_count(loop: For, number: Expr, around: For) -> bool:
    """Whether the count of a loop continues from the previous iteration of the loop around, which executes it once per iteration."""
    start = replaced(number, {loop.var: as_expr(loop.first)})
    after = replaced(start, {around.var: around.var + 1})
    return around.step == 1 and loop.first == 0 and any(one is loop for one in around.body) and after - start == loop.extent


def _counted_on(value: Mod, name: Var, count: str, open_loop: OpenLoop) -> Item:
    """Advance a stage, and its phase parity, to the next iteration."""
    lines = [f"{name} = 0;"]
    if value in open_loop.parities:
        lines.append(f"{open_loop.parities[value][0]} ^= 1;")
    return guarded((f"++{name} == {count}",), lines)


def _product(term: tuple[tuple[Expr, ...], int]) -> Expr:
    total: Expr = Const(term[1])
    for atom in term[0]:
        total = total * atom
    return total


def _reduced(value: Expr, divisor: int) -> Expr:
    """A value with the same remainder by the divisor; factors that consist of sizes alone are reduced to less than the divisor."""
    terms, rest = terms_of(value)
    total: Expr = Const(rest)
    for atoms, coefficient in terms:
        product: Expr = Const(coefficient)
        for atom in atoms:
            product = product * (atom if isinstance(atom, Var) and not atom.parameter else atom % divisor)
        total = total + product
    return total


def _plain(base: Expr) -> bool:
    """Whether a name for an expression would be no shorter than the expression: a number, or a multiple of one variable."""
    match base:
        case Const() | Var() | Sum(terms=(((Var(),), _),), constant=0):
            return True
    return False


def _label(buffer: Buffer, write: bool) -> str:
    return f"{buffer.name.lower()}_{'target' if write else 'source'}"
