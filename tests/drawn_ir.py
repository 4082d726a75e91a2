"""Random kernel IR, without a strategy: decisions of the printer, including those that no strategy reaches.

Loops that are kept or unrolled, with other starts and steps; rings whose fills they count; stages, swizzles, run-time sizes, names,
conditions, copies of all widths and types. The kernels are never executed: rings have no producers, and accesses may be out of bounds.
"""

import random

import attrs
import making
from handmade import access, kernel_of, local

from fireiron import *
from fireiron import ir
from fireiron.executable.fma import FFMA
from fireiron.executable.thread_move import EVICT_FIRST, MOVE
from fireiron.ir import FenceKind, Reciprocal, StageState
from fireiron.lower.guard import guard
from fireiron.values.expr import INT_MAX, TRUE, ZERO, Mod, Var, as_expr, bit_and, bit_or, bit_xor, equal, less, minimum
from fireiron.values.expr.hilbert import hilbert
from fireiron.values.machine import COORD
from fireiron.values.tensor import Mode

M, N, K = sym("M", high=1 << 20), sym("N", high=4096), sym("K", high=1 << 20)


@attrs.define
class Drawing:
    """A kernel under construction: `around` are the loops that enclose the next statement, `names` those that it may use."""

    choose: random.Random
    thread: Var
    block: Var
    buffers: list = attrs.field(factory=list)
    rings: list = attrs.field(factory=list)
    around: list = attrs.field(factory=list)
    names: list = attrs.field(factory=list)
    numbers: int = 0
    makers: dict = attrs.field(factory=dict)

    def name(self, wanted):
        """An unused name."""
        self.numbers += 1
        return f"{wanted}{self.numbers}"

    # ------------------------------------------------------------------------------------------ expressions

    def variable(self):
        """A random part of an index."""
        choose = self.choose
        loops = [one.var for one in self.around]
        return choose.choice([self.thread, self.block, *self.names, *loops, *loops, *loops])

    def term(self):
        """A random term of an index."""
        choose, variable = self.choose, self.variable()
        if variable.low < 0:
            return variable
        match choose.randrange(11):
            case 0 | 1 | 2:
                return variable
            case 3:
                return variable % choose.choice((2, 3, 4, 8, 32))
            case 4:
                return variable // choose.choice((2, 3, 4, 32))
            case 5:
                return variable * self.variable()
            case 6:
                return variable * choose.choice((N, K))
            case 7:
                return (
                    (variable + choose.choice((0, 1, 3))) % choose.choice((2, 3, 4))
                    if variable not in (self.thread, self.block)
                    else variable
                )
            case 8:
                other = self.variable()
                mask = choose.choice((1, 7)) if other.low >= 0 else 1
                return bit_xor(variable, other % (mask + 1) if other.low >= 0 else as_expr(mask))
            case 9:
                return choose.choice((bit_and, bit_or))(variable, as_expr(choose.choice((1, 6, 8))))
            case _:
                return minimum(variable, choose.choice((N - 1, self.variable(), as_expr(5))))

    def index(self, wide=False):
        """A random sum of terms."""
        choose = self.choose
        total = as_expr(choose.choice((0, 0, 0, 1, 2, 8, 64, -1, -4)))
        for _ in range(choose.randint(1, 3)):
            total = total + self.term() * choose.choice((1, 1, 1, 2, 4, 8, 32, 64, -1, *((1 << 20, 3 << 29) if wide else ())))
        return total

    def condition(self):
        """A condition of a statement or of an element."""
        choose = self.choose
        left = self.index()
        return choose.choice((less(left, N), less(left, 5), less(3, left), equal(left, self.variable()), less(self.variable(), 1), TRUE))

    # ------------------------------------------------------------------------------------------ statements

    def access(self, buffer, count, write):
        """Elements of a buffer, adjacent or some steps apart."""
        choose = self.choose
        step = choose.choice((1, 1, 1, 2))
        private = buffer.memory.private
        unrolled = [one.var for one in self.around if one.unroll]
        base = as_expr(choose.choice((0, 0, 1, 2))) if private else self.index(buffer.parameter and choose.random() < 0.1)
        if buffer.memory.of_block and base.low < 0:  # swizzled coordinates are never negative
            base = base - base.low
        if private and unrolled and choose.random() < 0.4:
            base = base + choose.choice(unrolled) * choose.choice((1, 2))
        turning = [one for one in self.around if one.step == 1 and one.extent.low > 0]
        if buffer.parameter and turning and choose.random() < 0.25:
            loop = choose.choice(turning)
            starts = [one for one in self.names if one.name.startswith("start")]
            ahead = choose.choice((0, 0, 1, 2))
            if starts:
                base = base + Mod(loop.var + choose.choice(starts) + ahead, loop.extent) * choose.choice((1, 16))
        copy = ZERO
        if buffer.tensor.copies > 1:
            copy = self.fill_number() % buffer.tensor.copies
        bound = N if not private and choose.random() < 0.2 else None
        new_access = access(buffer.name, (base, ZERO), (count, 1), (bound, None), write)
        new_access = attrs.evolve(new_access, copy=copy)
        if step > 1:
            new_access = attrs.evolve(new_access, modes=((Mode(as_expr(count), as_expr(step)),), new_access.modes[1]))
        return new_access, step

    def move(self):
        """A copy of some width, by plain or evict-first accesses."""
        choose = self.choose
        readable = [one for one in self.buffers if one.name != "dst"]
        writable = [one for one in self.buffers if one.written]
        source, target = choose.choice(readable), choose.choice(writable)
        if source is target:
            target = next(one for one in writable if one is not source)
        count = choose.choice((1, 1, 2, 3, 4, 8))
        (read, near), (write, far) = self.access(source, count, False), self.access(target, count, True)
        vector = choose.choice([one for one in (1, 2, 4) if count % one == 0])
        most = 16 // max(source.dtype.bytes, target.dtype.bytes)
        vector = min(vector, most) if count % min(vector, most) == 0 else 1
        widths = tuple(1 if apart > 1 or source.memory is COORD else choose.choice((1, vector)) for apart in (near, far))
        spec = Move(count, 1)(source.memory if source.memory is not COORD else GL, target.memory)(Thread)
        streams = {"GL", "RF"} == {source.memory.name, target.memory.name}
        return making.execution(
            EVICT_FIRST if streams and choose.random() < 0.2 else MOVE, spec, (read, write), accumulate=ZERO, active=self.active(), vector=vector, vectors=widths,
            path=self.path(),
        )  # fmt: skip

    def product(self):
        """A multiply-add of single elements, with or without accumulation."""
        choose = self.choose
        registers = [one for one in self.buffers if one.dtype == float32]
        first, second = choose.choice(registers), choose.choice(registers)
        out = choose.choice([one for one in registers if one.written])
        accesses = tuple(self.access(one, 1, place == 2)[0] for place, one in enumerate((first, second, out)))
        spec = MatMul(1, 1, 1)(first.memory, second.memory, out.memory)(Thread)
        accumulate = choose.choice((TRUE, ZERO, less(0, self.variable())))
        return making.execution(FFMA, spec, accesses, accumulate=accumulate, active=self.active(), path=self.path())

    def active(self):
        """Mostly always true."""
        return self.condition() if self.choose.random() < 0.3 else TRUE

    def path(self):
        """The step of a tree."""
        return self.choose.choice((None, ("tile",), ("tile", "load"), ("tile", "load", "move"), ("tile", "split")))

    def of_ring(self):
        """A wait for a ring's stage, or its release."""
        choose, ring, number = self.choose, self.choose.choice(self.rings), self.fill_number()
        if choose.random() < 0.55:
            return making.acquire(ring.name, choose.choice(tuple(StageState)), number)
        return making.release(ring.name, choose.choice(tuple(StageState)), number, active=choose.choice((TRUE, equal(self.thread % 32, 0))))

    def fill_number(self):
        """A fill number: the count of the surrounding loops."""
        choose = self.choose
        running = [one for one in self.around if not one.unroll]
        number = as_expr(choose.choice((0, 0, 0, 1, 2)))
        if running:
            inner = running[-1]
            number = number + inner.var * choose.choice((1, 1, 1, 1, 2, 0))
            inside = [one for one in self.names if one.name.startswith("place") and one.low >= 0]
            if inside and choose.random() < 0.2:
                number = number + choose.choice(inside)
            if len(running) > 1 and choose.random() < 0.7:
                outer = running[-2]
                number = number + choose.choice(
                    (outer.var * inner.extent, outer.var * 5, outer.var, (outer.var * N + self.block) * inner.extent)
                )
            if counts := [one.prior_iterations for one in running if one.prior_iterations is not None]:
                number = number + choose.choice(counts) * choose.choice((1, 1, inner.extent)) if choose.random() < 0.7 else number
        elif choose.random() < 0.5:
            number = number + self.block * choose.choice((1, 3))
        return number

    def loop(self, depth):
        """A loop around some statements."""
        choose = self.choose
        extent = choose.choice((as_expr(1), as_expr(3), as_expr(4), as_expr(7), as_expr(12), K // 16, (K + 15) // 16, N))
        fixed = extent.low == extent.high
        unroll = fixed and choose.random() < 0.3
        step, first = (1, 0) if unroll else choose.choice(((1, 0), (1, 0), (1, 0), (1, 1), (2, 0), (2, 1), (1, 2)))
        var = Var(self.name("k"), 0, max(extent.high - 1, 0))
        period = 0 if unroll else choose.choice((0, *(one.stages for one in self.rings * 2), 2, 6))
        trip_count = Var(self.name("taken"), 0, INT_MAX) if not unroll and choose.random() < 0.3 else None
        loop = making.loop(var, extent, (), unroll=unroll, first=first, step=step, period=period, prior_iterations=trip_count)
        if trip_count is not None and choose.random() < 0.3:
            loop = attrs.evolve(loop, increment=choose.choice((as_expr(2), N)))
        if choose.random() < 0.5:
            self.makers[var.name] = ("tile", "loop")
        self.around.append(loop)
        before = list(self.names)
        body = self.body(depth - 1, choose.randint(1, 4))
        self.names = before
        self.around.pop()
        return attrs.evolve(loop, body=body)

    def let(self):
        """A name for an index."""
        value = self.index() if self.choose.random() < 0.6 else self.variable() // self.choose.choice((2, 3))
        var = Var(self.name("place"), value.low, value.high)
        self.names.append(var)
        return making.let(var, value)

    def body(self, depth, count):
        """A list of statements."""
        choose, stmts = self.choose, []
        for _ in range(count):
            kind = choose.random()
            if depth and kind < 0.3:
                stmts.append(self.loop(depth))
            elif kind < 0.36:
                stmts.append(making.comment(choose.choice(("what comes now", "a remark\nof two lines", ""))))
            elif kind < 0.42:
                stmts.append(making.barrier(choose.choice((ir.BLOCK_SCOPE, ir.WARP_SCOPE, ir.WARPGROUP_SCOPE)), choose.choice(("", "why"))))
            elif kind < 0.46 and self.around:
                stmts.append(self.let())
            elif kind < 0.5:
                stmts.append(making.fence(FenceKind.ASYNC_PROXY, choose.choice(("", "seen by engines"))))
            elif kind < 0.68 and self.rings:
                stmts.append(self.of_ring())
            elif kind < 0.8:
                stmts.append(self.product())
            else:
                stmts.append(self.move())
        return (*stmts, self.move())


def top(drawing, reciprocals):
    """The names at the top of a kernel."""
    choose, thread, block = drawing.choose, drawing.thread, drawing.block
    values = {
        "warp": thread // 32, "lane": thread % 32, "row": thread // 8, "tile": block // reciprocals[0].divisor if reciprocals else block // 3,
        "band": block % reciprocals[-1].divisor if reciprocals else block % 3, "start": Mod(block, (K + 15) // 16), "starts": block % 4,
        "curve": hilbert(block, as_expr(8), as_expr(8)), "far": block * (1 << 20) + thread,
    }  # fmt: skip
    for name in choose.sample(sorted(values), choose.randint(2, 6)):
        value = values[name]
        var = Var(name, value.low, value.high)
        drawing.names.append(var)
        if choose.random() < 0.4:
            drawing.makers[name] = ("tile",)
        yield making.let(var, value)


def draw(seed):
    """A kernel with pieces and guards, ready for printing."""
    choose = random.Random(f"printed {seed}")
    threads = choose.choice((32, 64, 96, 256))
    grid = choose.choice((1, 24, (M + 15) // 16))
    empty = kernel_of(Move(16, 1)(GL, GL), (), threads=threads, grid=grid)
    drawing = Drawing(choose, empty.thread, empty.block)
    dtype = choose.choice((float32, float32, float16, bfloat16, float64, int8, int32))
    spec = Move(M, N, dtype=dtype, src=choose.choice((RowMajor, ColMajor)))(GL, GL)
    other = choose.choice((float32, float16, bfloat16, int32))
    swizzled = Swizzle(choose.choice((1, 2, 3)), choose.choice((0, 2, 3)), 3)
    copies = choose.choice((1, 2, 3, 4))
    offsets = choose.choice(((0, 8192), (0, 8192), (0, 1024), (32768, 65536)))
    shared = [
        local("s", (64, 8), SH, other, RowMajor, copies=copies), local("t", (64, 8), SH, float32, choose.choice((RowMajor, ColMajor))),
    ]  # fmt: skip
    if choose.random() < 0.5:
        shared[1] = local("t", (64, 8), SH, float32, RowMajor, swizzle=swizzled)
    shared = [attrs.evolve(one, offset=offset) for one, offset in zip(shared, offsets, strict=True)]
    registers = [local("r", (choose.choice((16, 255, 256, 300)), 1), RF, other), local("acc", (24, 1), RF, float32)]
    places = local("m", (1 << 30, 1), COORD, int32) if choose.random() < 0.5 else None
    buffers = [*shared, *registers, *((places,) if places else ())]
    unfinished = kernel_of(
        spec, (), *buffers, threads=threads, grid=grid, symbols=(M, N, K), target=choose.choice(("sm_75", "sm_80", "sm_90a"))
    )
    drawing.buffers = [attrs.evolve(one, written=one.name != "src" and one.memory is not COORD) for one in unfinished.buffers]
    if choose.random() < 0.6:
        stages = choose.choice(((1,), (2,), (3,), (3, 2), (4, 5), (3, 6)))
        orders = choose.random() < 0.2
        drawing.rings = [
            making.ring(
                f"ring{number}",
                count,
                () if orders else ("s",),
                bytes=1024,
                consumers=threads // 32,
                offset=90_000,
                each=128 if orders and count > 2 else 0,
            )
            for number, count in enumerate(stages)
        ]
    reciprocals = (Reciprocal("by_rows", (M + 15) // 16), Reciprocal("by_columns", N)) if choose.random() < 0.4 else ()
    names = tuple(top(drawing, reciprocals))
    body = (*names, *drawing.body(choose.choice((2, 2, 3)), choose.randint(2, 5)))
    last = 4 * max(one.offset + one.bytes for one in shared) // 4
    kernel = making.evolved(
        unfinished, buffers=tuple(drawing.buffers), body=body, rings=tuple(drawing.rings), reciprocals=reciprocals, makers=drawing.makers,
        shared_bytes=last, resident=choose.choice((0, 0, 2)), chained=choose.random() < 0.2, title=choose.choice(((), ("one", "  two"))),
        facts=choose.choice(((), (("multiples", equal(K % 16, 0)),))), unchecked=choose.choice(((), ("said by hand",))),
    )  # fmt: skip
    return guard(kernel)
