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
from fireiron.cuda.expressions import Binds, expression, is_wide, operand, scaled, summands
from fireiron.cuda.lines import guarded
from fireiron.cuda.names import Names
from fireiron.cuda.rotations import shown
from fireiron.ir import Access, Acquire, Buffer, For, Kernel, Let, Rotations, execs, statements
from fireiron.ir.text import Function, Item, Made, Noted, Path
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
"""Brings all lanes of a warp the first one's value. The compiler then keeps it, and what is computed of it, once for the warp."""


@attrs.define
class Turns:
    """A loop that runs, after how many turns shared addresses repeat, and what its body has named.

    Where stages are counted from turn to turn (`counted`), `parities` are those of the rounds of a ring, by stage, with what they are in
    a turn. Where the count goes on through the turns of the loop around (`around`), the stages of its first turn begin it, and `before`
    are the lines for that in front of the loop around. `together` says that all lanes of a warp take each turn together, for products of
    which the compiler would not see that their addresses are the same for all lanes: `of_warp` are the stages under names that say so.
    `rotated` are the steps of a loop that goes round from a turn of the block's own. `stages` are those of each of its rings, of which
    `period` is a multiple.
    """

    loop: For
    counted: bool
    around: Turns | None
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
        """After how many turns shared addresses repeat."""
        return self.loop.period

    def has_stage(self, value: Mod) -> bool:
        """Whether a remainder is a stage of the loop: of its own ring, or of one that is filled once a turn, for products."""
        return constant(value.right) in (self.period, *self.stages) or (self.together and value.left == self.var)

    def counts(self, number: Expr) -> bool:
        """Whether a number goes up by one from turn to turn, and is none below zero."""
        rest = number - self.var
        return self.counted and self.var not in rest.variables() and rest.low + self.loop.first >= 0

    def values(self) -> Iterator[Expr]:
        """What the names of the loop are, in terms of others."""
        yield from (*self.named, *self.of_warp, *self.rotated, *(value for _, value in self.parities.values()))

    def begun(self, value: Expr) -> Expr:
        """A value as it is in the first turn."""
        return replaced(value, {self.var: as_expr(self.loop.first)})


@attrs.frozen
class Lines:
    """What a loop that runs has in its text for what it named: in front of it, at the top of its body and at the end."""

    before: tuple[Text, ...]
    top: tuple[Item, ...]
    end: tuple[Item, ...]


class Addresses:
    """The addresses of one kernel; `declared` are the lines for what was named since they were taken last, `steps` who names it."""

    def __init__(self, kernel: Kernel, names: Names) -> None:
        self.kernel, self.names = kernel, names
        self.constants = Constants(kernel, names)
        self.fixed = frozenset({kernel.block, kernel.thread, *kernel.symbols, *(one.var for one in kernel.body if isinstance(one, Let))})
        self.sizes = frozenset(kernel.symbols)
        self.declared: list[Item] = []
        self.steps: tuple[Path, ...] = ()
        self.turns: list[Turns] = []
        self.used: set[Var] = set()
        self.pointers: dict[tuple[str, Expr], str] = {}
        self.windows: dict[tuple[str, Expr], str] = {}
        self.swizzles: dict[Expr, Var] = {}
        self.split = functools.cache(self._parts)
        """An address as what block and thread decide, and what is added to it."""
        self.rotations = Rotations(kernel)
        self.unrolled = {one.var for one in statements(kernel.body) if isinstance(one, For) and one.unroll}
        self.repeated = self._repeated()
        self.updated = {*self._updated()}

    def _repeated(self) -> set[tuple[str, Expr]]:
        """The bases that are printed in loops, or several times in a statement."""
        found = set()
        for statement, loops in execs(self.kernel.body):
            for position, access in enumerate(statement.accesses):
                buffer = self.kernel.buffer(access.buffer)
                several = bool(statement.pieces) and len(statement.pieces[position]) > 1
                if (loops or several) and not (buffer.memory.private or buffer.memory.counts):
                    found.add((buffer.name, self.split(buffer.address(access, access.elements()[0]))[0]))
        return found

    def _updated(self) -> Iterator[tuple[str, Expr]]:
        """The bases of shared sums: a statement that adds to one names it twice."""
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
        """Whether a term is what block and thread decide; sizes alone may be a part of what a loop adds, `(k + 1) * N`."""
        variables = frozenset().union(*(atom.variables() for atom in atoms))
        return variables <= self.fixed and not variables <= self.sizes

    # ------------------------------------------------------------------------------------------ texts

    def place(self, access: Access, offset: tuple[int, ...]) -> Text:
        """An element as an lvalue."""
        name, index, buffer = self._indexed(access, offset)
        if buffer.memory.by_value:
            return name
        if buffer.memory.counts:
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
        return operand(value, Binds.FACTOR)

    def _indexed(self, access: Access, offset: tuple[int, ...]) -> tuple[str, Expr, Buffer]:
        buffer = self.kernel.buffer(access.buffer)
        index = buffer.address(access, offset)
        base, rest = self.split(index)
        if (buffer.name, base) in self.repeated and not _plain(base) and self._worth_a_pointer(buffer, base):
            return self._base(buffer, base, access.write), rest, buffer
        return buffer.name, index, buffer

    def _worth_a_pointer(self, buffer: Buffer, base: Expr) -> bool:
        """Whether a base may be a pointer that lives as long as the loops around it run.

        In global memory it saves 64-bit arithmetic. In shared memory, where an address is a sum of 32 bits, it saves nothing in a loop
        that runs, and costs registers: on an H200 (CUDA 13.0) `wmma_optimized` went from 128 to 145, one block fewer, and took 1.35 times
        as long; `sgemm` 1.02, `listing_2` 1.06 times.
        """
        return buffer.parameter or not self.turns or (buffer.name, base) in self.updated

    def _base(self, buffer: Buffer, base: Expr, write: bool) -> str:
        """The pointer to where a thread's part of a buffer begins."""
        key = (buffer.name, base)
        if key not in self.pointers:
            const = "" if buffer.written else "const "
            name = self.pointers[key] = self.names.fresh(_label(buffer, write))
            target = f"{const}{buffer.dtype.cuda}* const {name}"
            self._declare(Assignment(target, self._added(buffer.name, base, buffer, 1)))
        return self.pointers[key]

    def shared(self, access: Access, offset: tuple[int, ...], window: str) -> Text:
        """The address of an element in the window of shared memory, in bytes; `window` is the function that finds a buffer there."""
        buffer = self.kernel.buffer(access.buffer)
        return self._shared(buffer, buffer.address(access, offset), access.write, window)

    def shared_and_step(self, access: Access, offset: tuple[int, ...], window: str) -> tuple[Text, Expr]:
        """The same address where unrolled loops begin, and the bytes that they add."""
        buffer = self.kernel.buffer(access.buffer)
        address = buffer.address(access, offset)
        unrolled = self._unrolled(address)
        return self._shared(buffer, address - unrolled, access.write, window), scaled(unrolled, buffer.dtype.bytes)

    def coordinates(self, access: Access, offset: tuple[int, ...]) -> tuple[Expr, Expr]:
        """A coordinate that is a value: what it is where unrolled loops begin, and what these add."""
        value = self.stepped(self.kernel.buffer(access.buffer).address(access, offset))
        self.used |= value.variables()
        added = self._unrolled(value)
        return value - added, added

    def _unrolled(self, address: Expr) -> Expr:
        """What unrolled loops add to an address."""
        total: Expr = ZERO
        for term in terms_of(address)[0]:
            if not frozenset().union(*(atom.variables() for atom in term[0])).isdisjoint(self.unrolled):
                total = total + _product(term)
        return total

    def _shared(self, buffer: Buffer, address: Expr, write: bool, window: str) -> Text:
        size = buffer.dtype.bytes
        base, rest = self.split(address)
        if (buffer.name, base) not in self.repeated or _plain(base):
            # Used once, or as short as a name: it stays where it is used.
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
        """The stage of a loop, by the name that it has in the loop's body; any other value itself."""
        if not isinstance(value, Mod):
            return value
        turns = next((one for one in reversed(self.turns) if one.var in value.variables() and one.has_stage(value)), None)
        if turns is None:
            return value
        if value.variables() != {turns.var}:
            value = mod(self.turn(value.left, 2 * turns.period), value.right)
            known = {turns.var, *(name for one in self.turns for name in one.named.values())}
            if not isinstance(value, Mod) or not value.variables() <= known:
                return value
        return self._stage(value, turns)

    def turn(self, number: Expr, rounds: int) -> Expr:
        """The turn of a ring, up to a multiple of `rounds` turns.

        What the loops around the innermost add is named in the loop that changes it.
        """
        inner = self.turns[-1].var if self.turns else None
        if self.turns and self.turns[-1].period:  # one name for all rings of the loop
            rounds = math.lcm(rounds, 2 * self.turns[-1].period)
        terms, start = terms_of(number)
        rest: Expr = sum((_product(term) for term in terms if term[0] == (inner,)), as_expr(start))
        base = number - rest
        owner = next((one for one in reversed(self.turns) if not base.variables().isdisjoint((one.var, one.loop.prior_iterations))), None)
        if owner is None or (owner is self.turns[-1] and isinstance(base, Var)):
            return number
        if any(isinstance(one, Let) and one.var in base.variables() for one in owner.loop.body):
            return number  # at the top of the loop it is not known yet
        inmost = self.turns[-1]
        if owner is inmost.around:  # counted on from the first turn of the loop around
            return owner.begun(base) % rounds + rest
        value = (_reduced(base, rounds) if is_wide(base) else base) % rounds
        if constant(value) is not None or value in self.fixed:  # nothing depends on the loops around
            return value + rest
        if value not in owner.named:
            owner.named[value] = self._name(f"{owner.var.name}_first_fill", value)
        return owner.named[value] + rest

    def role(self) -> Callable[[], None]:
        """What is named from now on stands in a branch: what this returns forgets it again."""
        pointers, windows, swizzles = dict(self.pointers), dict(self.windows), dict(self.swizzles)
        release = self.names.scope()

        def forget() -> None:
            self.pointers, self.windows, self.swizzles = pointers, windows, swizzles
            release()

        return forget

    def expression(self, value: Expr) -> str:
        """The text of an expression, whose variables are needed from now on."""
        value = self.stepped(value)
        self.used |= value.variables()
        return expression(value)

    def stepped(self, value: Expr) -> Expr:
        """An expression with the steps of loops that go round under their names."""
        names: dict[Expr, Expr] = {}
        if self.turns and self.rotations.steps:
            self._collect_steps(value, names)
        return replaced(value, names) if names else value

    def _collect_steps(self, value: Expr, names: dict[Expr, Expr]) -> None:
        step = self.rotations.steps.get(value)
        turns = None if step is None else next((one for one in self.turns if one.var == step[0].var), None)
        if step is None or turns is None:
            for child in value.children:
                self._collect_steps(child, names)
            return
        if value not in turns.rotated:
            label = f"{turns.var.name}_shifted_{step[1]}" if step[1] else f"{turns.var.name}_shifted"
            turns.rotated[value] = self._name(label, value)
        names[value] = turns.rotated[value]

    def _document(self, value: Expr, buffer: Buffer, size: int) -> Text:
        """An index into a buffer."""
        first, *others = self._parts_of(value, buffer, size)
        return Chain((first, *others)) if others else first

    def _added(self, start: str, value: Expr, buffer: Buffer, size: int) -> Text:
        """A pointer, or an address, and what is added to it."""
        first, *others = self._parts_of(value, buffer, size)
        if isinstance(first, str) and first.startswith("-"):
            return Chain((start, f"- {first[1:]}", *others))
        return Chain((start, Joined(("+ ", first)), *others))

    def _parts_of(self, value: Expr, buffer: Buffer, size: int) -> tuple[Text, ...]:
        """The terms of an offset into a buffer, in units of which `size` are an element, each with its sign but for a first plus."""
        value = self.stepped(value)
        value = self._named(value, buffer)
        self.used |= value.variables()
        shifted = {turns.var for turns in self.turns} if buffer.parameter else ()
        return summands(value, () if buffer.memory.private else self._strides(buffer, size), shifted)

    def _strides(self, buffer: Buffer, size: int) -> tuple[int, ...]:
        """The steps from one row, column, copy or stage of a buffer to the next, in units of which `size` are an element; largest first."""
        weights = {constant(digit.weight) for digits in buffer.storage.dims for digit in digits}
        stage = None
        if buffer.tensor.copies > 1:
            stage = self.constants.stride(buffer, size) if buffer.memory.in_shared else None
            weights.add(constant(buffer.elements) if stage is None else None)
        strides = [weight * size for weight in weights if weight is not None and weight > 1]
        return tuple(sorted((*strides, *(() if stage is None else (stage,))), reverse=True))

    # ------------------------------------------------------------------------------------------ parts with names

    def _name(self, wanted: str, value: Expr) -> Var:
        """A new name for a value, of which all is known that is known of the value."""
        return Var(self.names.fresh(wanted), value.low, value.high, value.factor)

    def _named(self, value: Expr, buffer: Buffer) -> Expr:
        """The expression with the stages of loops, and what a swizzle flips by, under their names."""
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

    def _stage(self, value: Mod, turns: Turns) -> Var:
        if value not in turns.named:
            ahead = constant(value.left - turns.var) or 0
            label = f"{turns.var.name}_stage_{ahead}" if ahead > 0 else f"{turns.var.name}_stage"
            turns.named[value] = self._name(label, value)
        return turns.named[value]

    def _of_warp(self, stage: Expr) -> Expr:
        """A stage by the name that tells the compiler that all lanes of a warp have the same, where the turns of its loop need it."""
        turns = next((one for one in self.turns if one.together and stage in one.named.values()), None)
        if turns is None:
            return stage
        if stage not in turns.of_warp:
            turns.of_warp[stage] = self._name(f"{stage}_uniform", stage)
        return turns.of_warp[stage]

    def _swizzle(self, value: Expr, buffer: Buffer) -> Var:
        if value not in self.swizzles:
            name = self.swizzles[value] = self._name(f"{buffer.name.lower()}_swizzle", value)
            self._declare(Assignment(f"const int {name}", self.expression(value)))
        return self.swizzles[value]

    def parity(self, number: Expr, stages: int, ahead: int) -> Expr:
        """The parity of the round of a ring in which a turn is, `ahead` rounds on, by its name where the loop counts."""
        value, stage = (number // stages + ahead) % 2, number % stages
        turns = self.turns[-1] if self.turns else None
        if turns is None or stages not in (turns.period, *turns.stages) or not isinstance(stage, Mod) or not turns.counts(stage.left):
            return value
        if stage not in turns.parities:
            self._stage(stage, turns)  # which says when the next round begins
            turns.parities[stage] = self._name(f"{turns.var.name}_phase", value), value
        return turns.parities[stage][0]

    def enter(self, loop: For, together: bool) -> Turns:
        """A loop that runs at run time begins; `together` says that the stages of its products are to be named for whole warps."""
        first = self._counted(loop)
        around = self.turns[-1] if first is not None and self.turns and goes_on(loop, first.fill_index, self.turns[-1].loop) else None
        stages = {self.kernel.ring(one.ring).stages for one in loop.body if isinstance(one, Acquire) and loop.period}
        turns = Turns(loop, first is not None, around, together, stages)
        self.turns.append(turns)
        return turns

    def _counted(self, loop: For) -> Acquire | None:
        """The wait for a ring whose stages are counted in a loop: a remainder costs more, unless it is one of a power of two.

        A loop of no more turns than stages is in one round, or two.
        """
        waits = (one for one in loop.body if isinstance(one, Acquire) and loop.step == 1)
        rings = ((one, self.kernel.ring(one.ring)) for one in waits)
        return next((one for one, ring in rings if loop.period and ring.stages <= loop.var.high and ring.stages & (ring.stages - 1)), None)

    def leave(self) -> Lines:
        """The loop ends: the lines for what it named."""
        turns = self.turns.pop()
        # A parity changes where the stage that is counted begins again, whether or not the text reads that.
        counting = {value for value in turns.named if turns.parities and isinstance(value, Mod) and turns.counts(value.left)}
        names = {*turns.named.values(), *turns.of_warp.values(), *turns.rotated.values()}
        turns.named = {value: name for value, name in turns.named.items() if value in counting or self._is_read(name, turns)}
        self.used |= {var for value in (*turns.named, *turns.rotated) for var in value.variables()}
        counted = {value: name for value, name in turns.named.items() if isinstance(value, Mod) and turns.counts(value.left)}
        starts = [(name, turns.begun(value)) for value, name in counted.items()]
        starts += [(name, turns.begun(value)) for name, value in turns.parities.values()]
        self.used |= {var for _, value in starts for var in value.variables()}
        begun = [Assignment(f"int {name}", expression(value)) for name, value in starts]
        (turns.before if turns.around is None else turns.around.before).extend(begun)
        top: list[Item] = [
            Assignment(f"const {self._kind(value)} {name}", expression(self._by_name(value)))
            for value, name in turns.named.items()
            if value not in counted
        ]
        top += [
            Assignment(f"const {self._kind(value)} {name}", expression(shown(value, self.rotations)))
            for value, name in turns.rotated.items()
        ]
        top += [
            Noted(f"const {self._kind(stage)} {name} = {FIRST_LANE}{stage}, 0);", "warp-uniform") for stage, name in turns.of_warp.items()
        ]
        for name in names.difference(counted.values()):
            self._end(name)
        return Lines(
            tuple(turns.before),
            tuple(top),
            tuple(_counted_on(value, name, expression(self.constants.divisor(value.right)), turns) for value, name in counted.items()),
        )

    def _by_name(self, value: Expr) -> Expr:
        """A stage with the number of stages by its name."""
        return Mod(value.left, self.constants.divisor(value.right)) if isinstance(value, Mod) else value

    def _end(self, name: Var) -> None:
        """The scope of a name ends: another scope may have one like it, which it is not."""
        self.names.drop(name.name)
        self.used.discard(name)

    def _is_read(self, name: Var, turns: Turns) -> bool:
        """Whether the text reads a name: a stage may be the same whatever turn a loop begins with."""
        others = (
            value
            for one in (turns, *self.turns)
            for value in (*one.named, *one.of_warp, *one.rotated, *(v for _, v in one.parities.values()))
        )
        return name in self.used or any(name in value.variables() for value in others)

    def _kind(self, value: Expr) -> str:
        """The type of a name of a loop. That of sizes is unsigned, like all that is added to it: quotients by powers of two are shifts
        then. Of constants the compiler knows without that what is never negative.
        """
        return "int" if value.variables().isdisjoint(self.sizes) else "unsigned"

    def count(self, turns: Var, growth: Expr) -> Text:
        """The line that counts a turn, or so many, of a count that is in use from here to the start of the program."""
        self._declare(f"int {turns} = 0;")
        self.used.discard(turns)
        return f"++{turns};" if growth == ONE else f"{turns} += {self.expression(growth)};"

    def _declare(self, line: Text) -> None:
        self.declared.append(Made(line, self.steps))

    def taken(self) -> list[Item]:
        """The lines for what was named since the last call."""
        lines, self.declared = self.declared, []
        return lines


def goes_on(loop: For, number: Expr, around: For) -> bool:
    """Whether what a loop counts goes on where it ended in the turn before of the loop around, whose every turn has it once."""
    begun = replaced(number, {loop.var: as_expr(loop.first)})
    after = replaced(begun, {around.var: around.var + 1})
    return around.step == 1 and loop.first == 0 and any(one is loop for one in around.body) and after - begun == loop.extent


def _counted_on(value: Mod, name: Var, count: str, turns: Turns) -> Item:
    """A stage, and the parity of its round, on to the next turn."""
    lines = [f"{name} = 0;"]
    if value in turns.parities:
        lines.append(f"{turns.parities[value][0]} ^= 1;")
    return guarded((f"++{name} == {count}",), lines)


def _product(term: tuple[tuple[Expr, ...], int]) -> Expr:
    total: Expr = Const(term[1])
    for atom in term[0]:
        total = total * atom
    return total


def _reduced(value: Expr, divisor: int) -> Expr:
    """What has the same remainder, and no factor of sizes alone that is larger than it."""
    terms, rest = terms_of(value)
    total: Expr = Const(rest)
    for atoms, coefficient in terms:
        product: Expr = Const(coefficient)
        for atom in atoms:
            product = product * (atom if isinstance(atom, Var) and not atom.parameter else atom % divisor)
        total = total + product
    return total


def _plain(base: Expr) -> bool:
    """Whether a name for an expression would say no more than itself: nothing, or a step of one variable."""
    match base:
        case Const() | Var() | Sum(terms=(((Var(),), _),), constant=0):
            return True
    return False


def _label(buffer: Buffer, write: bool) -> str:
    return f"{buffer.name.lower()}_{'target' if write else 'source'}"
