"""Edge cases of the printed text: integer widths, signs, parentheses, comments, blocks, reserved names, and the steps recorded for each
line.
"""

import attrs
import making
import pytest
from handmade import THREAD, access, execution, kernel_of, local
from test_chosen import N

from fireiron import *
from fireiron import ir
from fireiron.cuda import emit
from fireiron.cuda.addresses import Addresses
from fireiron.cuda.expressions import Precedence, expression, is_wide, operand, scaled, summands
from fireiron.cuda.frame import _names_in_use, _of_warp, printed
from fireiron.cuda.lines import WIDTH, comment, guarded, lines_of
from fireiron.cuda.makers import Makers
from fireiron.cuda.micro_kernel import _MicroKernel
from fireiron.cuda.names import Names
from fireiron.cuda.printer import KernelPrinter
from fireiron.cuda.versions import Branch
from fireiron.executable.thread_move import MOVE
from fireiron.ir import Reciprocal, StageState
from fireiron.ir.mechanism import AT_ONCE
from fireiron.ir.mechanisms.wgmma import WGMMA_GROUPS
from fireiron.ir.statement import Dependence
from fireiron.ir.text import Braces, If, Noted, Remark, WithSteps
from fireiron.lower.guard import guard
from fireiron.values.expr import INT_MAX, TRUE, Const, FloorDiv, Less, Mod, Sum, Var, all_of, as_expr, bit_xor, equal, less
from fireiron.values.machine import COORD

X, Y, Z = Var("x", 0, 99), Var("y", 0, 99), Var("z", 0, 99)


def var(low, high, name="v"):
    return Var(name, low, high)


# ---------------------------------------------------------------------------------------------- expressions

HALF = 1 << 30
WIDE = [
    (var(0, INT_MAX), False), (var(0, INT_MAX + 1), True), (var(-INT_MAX, 0), False), (var(-INT_MAX - 1, 0), True),
    (var(0, HALF) + var(0, HALF - 1, "w"), False), (var(0, HALF) + var(0, HALF, "w"), True),
    (var(0, HALF) + var(0, HALF, "w") - 5, True), (var(0, HALF) + var(0, HALF - 1, "w") - 5, False),
    (var(0, HALF) + var(0, HALF, "w") + var(-9, -1, "u"), True), (var(0, HALF) + var(0, HALF - 5, "w") + 4, False),
    (var(0, HALF) + var(0, HALF - 5, "w") + 5, True), (var(-HALF, 0) + var(-HALF, 0, "w"), True), (var(-HALF, 0) + var(1 - HALF, 0, "w"), False),
    (var(-HALF, 0) + var(-HALF, 0, "w") + 5, True), (var(-HALF, 0) + var(5 - HALF, 0, "w") - 4, False), (var(-HALF, 0) + var(5 - HALF, 0, "w") - 5, True),
    (var(-HALF, 0) + var(-HALF, 0, "w") + var(1, 9, "u"), True), (var(-HALF, 0) - var(0, HALF, "w"), True),
    (var(0, 1 << 16) * var(0, 1 << 15, "w"), True), (var(0, (1 << 16) - 1) * var(0, 1 << 15, "w"), False),
    (var(-(1 << 16), 0) * var(0, 1 << 15, "w"), True), (var(0, 1 << 16) * var(0, 1 << 15, "w") - var(0, 1 << 31, "u"), True),
    (var(0, 0) * var(0, 1 << 31, "w") + X, True), (X // 3 + Y, False), ((var(0, HALF) + var(0, HALF, "w")) // 4, True),
]  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("number", range(len(WIDE)))
def test_offsets_that_need_64_bits(number):
    value, wide = WIDE[number]
    assert is_wide(value) is wide, value


def test_values_that_exceed_64_bits():
    most = 1 << 62
    assert is_wide(var(0, most - 1) * 2 + 1)
    for value in (var(0, most) * 2, var(0, most - 1) * 2 + 2, var(-most, 0) * 2):
        with pytest.raises(FireironError, match=r"does not fit 64 bits[\s\S]*sym\(\"M\", high=65536\)"):
            is_wide(value)
    sizes = sym("P", high=INT_MAX) * sym("B", high=INT_MAX) * 4 * X
    with pytest.raises(FireironError) as refused:
        is_wide(sizes)
    assert str(refused.value).endswith('bound the sizes: sym("B", high=65536), sym("P", high=65536)')


TEXTS = {
    "x - y + 5": X - Y + 5, "5 - x": 5 - X, "5 - x - y": 5 - X - Y, "-x - 5": -X - 5, "-x - y - 5": -X - Y - 5, "x * 2 - y - 1": X * 2 - Y - 1,
    "(x ^ y) * z": bit_xor(X, Y) * Z, "(x ^ y) + 1": bit_xor(X, Y) + 1, "x + y": X + Y, "y * 4 + x": X + Y * 4,
    "x == 0": less(X, 1), "v < 1": Less(var(-1, 5), Const(1)), "v == 0": Less(var(0, 5), Const(1)), "x > 3": less(3, X), "x < N": less(X, N),
    "2147483647": Const(INT_MAX), "2147483648LL": Const(INT_MAX + 1), "x * y": X * Y, "-2147483648LL": Const(-INT_MAX - 1),
    "(x + y) / 3": (X + Y) // 3, "x / 3 * 3": X // 3 * 3, "x % 8 * 2": X % 8 * 2,
}  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("text", TEXTS)
def test_terms_and_signs(text):
    assert expression(TEXTS[text]) == text


def test_parentheses_around_operands():
    assert operand(X * 2, Precedence.PRODUCT) == "x * 2" and operand(X * 2, Precedence.FACTOR) == "(x * 2)"
    assert (
        operand(-X * 2, Precedence.PRODUCT) == "(-x * 2)"
        and operand(X + Y, Precedence.PRODUCT) == "(x + y)"
        and operand(X + Y, Precedence.SUM) == "x + y"
    )
    assert (
        operand(Const(-3), Precedence.SUM) == "-3"
        and operand(Const(-3), Precedence.PRODUCT) == "(-3)"
        and operand(Const(0), Precedence.NAME) == "0"
    )


def test_no_quotient_of_possibly_negative_values():
    for low, high in ((-1, 5), (-1, -1), (-9, 0)):
        for node in (FloorDiv, Mod):
            with pytest.raises(FireironError, match="may be negative, and is divided"):
                expression(node(var(low, high), Const(2)))
    assert expression(FloorDiv(var(0, 5), Const(2))) == "v / 2"


def test_steps_of_strides_and_bytes():
    assert "".join(map(str, summands(X * 4096 + Y * 64, (64,)))) == "x * 64 * 64+ y * 64"
    assert (
        "".join(map(str, summands(X * 64 + 192, (), (X,)))) == "(x + 3) * 64"
        and "".join(map(str, summands(X * 64 + 193, (), (X,)))) == "x * 64+ 193"
    )
    assert "".join(map(str, summands(X * 64, (), (X,)))) == "x * 64" and "".join(map(str, summands(X * 64 - 64, (), (X,)))) == "x * 64- 64"
    assert "".join(map(str, summands(X * Y * 64 + 192, (), (X, Y)))) == "x * y * 64+ 192"
    flips = bit_xor(X, Y)
    assert scaled(flips * 3 + X * 5 + 1, 4) == bit_xor(X * 4, Y * 4) * 3 + X * 20 + 4 and scaled(X + Y, 2) == X * 2 + Y * 2
    assert scaled(flips * Z, 4) == Sum((((*(flips * Z).terms[0][0],), 4),), 0) and scaled(flips, 2) == bit_xor(X * 2, Y * 2)


# ---------------------------------------------------------------------------------------------- lines


def texts(*items, depth=0):
    return [line.text for line in lines_of(items, depth)]


def test_remarks_and_notes_fill_a_line():
    fits, wider = "// " + "x" * (WIDTH - 3), "// " + "x " * ((WIDTH - 3) // 2) + "yz"
    assert texts(Remark((fits,))) == [fits] and len(wider) == WIDTH + 1
    assert [len(line) <= WIDTH for line in texts(Remark((wider,)))] == [True, True]
    assert texts(Remark(("//a b", "//", "// c " + "d " * 60))) == ["// a b", "//", "// c " + "d " * 57 + "d", "// d d"]
    for length, lines in ((WIDTH - 7, 1), (WIDTH - 6, 2)):
        lines_of_text = texts(Noted("a;", "x" * length))
        assert len(lines_of_text) == lines and lines_of_text[-1].startswith("a;"), length


def test_words_longer_than_a_line():
    assert comment("x" * (WIDTH - 3)) == ["// " + "x" * (WIDTH - 3)]
    assert comment("x" * (WIDTH + 1)) == ["// " + "x" * (WIDTH - 3), "//     xxxx"]
    assert comment("a " + "x" * (WIDTH - 5)) == ["// a " + "x" * (WIDTH - 5)]
    assert comment("a " + "x" * (WIDTH - 4)) == ["// a", "//     " + "x" * (WIDTH - 7), "//     xxx"]
    assert comment("", 1) == ["  //"] and comment("a\n\nb") == ["// a", "//", "// b"]


def test_lines_have_the_steps_that_made_them():
    step, two, three = (("a",),), (("b",),), (("c",),)
    item = If(("x",), (WithSteps("a;", step), WithSteps("b;", two)), (WithSteps("c;", two), WithSteps("d;", three)))
    printed = [(line.text, line.steps) for line in lines_of([WithSteps(item, three)])]
    assert printed == [
        ("if (x) {", three), ("  a;", step), ("  b;", two), ("} else {", three), ("  c;", two), ("  d;", three), ("}", three),
    ]  # fmt: skip
    inner = WithSteps(If(("y",), ("a;", "b;")), two)
    printed = [(line.text, line.steps) for line in lines_of([WithSteps(guarded(("x",), (inner,)), step)])]
    assert printed == [("if (x && y) {", step), ("  a;", two), ("  b;", two), ("}", step)]
    plain = [(line.text, line.steps) for line in lines_of([guarded(("x",), (If(("y",), ("a;",)),))])]
    assert plain == [("if (x && y)", ()), ("  a;", ())]
    assert texts(guarded(("x",), ("a;", If(("y",), ("b;",))))) == ["if (x) {", "  a;", "  if (y)", "    b;", "}"]


def test_one_statement_needs_no_braces():
    assert texts(Braces("for (;;)", ("a;",))) == ["for (;;)", "  a;"] and texts(Braces("", ("a;",))) == ["{", "  a;", "}"]
    assert texts(Braces("for (;;)", (If(("x",), ("a;",)),))) == ["for (;;) {", "  if (x)", "    a;", "}"]
    assert texts(Braces("for (;;)", ("// why",))) == ["for (;;) {", "  // why", "}"]


# ---------------------------------------------------------------------------------------------- kernels

SCRATCH = local("room", (64,), SH)
COPY = execution(MOVE, Move(1, 1)(GL, GL)(Thread), access("src", (THREAD, 0)), access("dst", (THREAD, 0), write=True))


def of(*body, buffers=(), **fields):
    """A kernel with these statements."""
    return guard(attrs.evolve(kernel_of(Move(64, 1)(GL, GL), body, *buffers), **fields))


def test_names_that_are_taken():
    tile = making.claim_tile(Var("next", 0, 9), as_expr(9), "ring", as_expr(0), takes=True)
    scratched = attrs.evolve(COPY, scratch=SCRATCH.tensor)
    kernel = of(
        making.let(Var("row", 0, 9), THREAD // 4), making.loop(Var("k", 0, 9), as_expr(9), (scratched,)), tile, buffers=(local("A_Tile", (4, 4), SH),),
        symbols=(sym("M"),), reciprocals=(Reciprocal("by_rows", sym("M")),), counter=making.counter("count"),
    )  # fmt: skip
    assert _names_in_use(kernel) == {
        "handmade", "block", "thread", "smem", "piece", "warp_index", "M", "by_rows", "count", "blockIdx.x", "threadIdx.x", "src", "dst", "A_Tile",
        "a_tile", "row", "k", "next", "room",
    }  # fmt: skip
    assert _names_in_use(attrs.evolve(kernel, counter=None, reciprocals=(), body=())) == {
        "handmade", "block", "thread", "smem", "piece", "warp_index", "M", "blockIdx.x", "threadIdx.x", "src", "dst", "A_Tile", "a_tile",
    }  # fmt: skip


def test_a_text_ends_its_last_line():
    kernel = of(COPY)
    assert emit(kernel) == "".join(f"{line.text}\n" for line in printed(kernel))


def test_functions_of_several_kernels_have_no_name_of_any_of_them():
    ring = making.ring("ring", 2, ("s",), bytes=64, consumers=1)
    buffers = (local("s", (4, 4), SH),)
    first = of(making.acquire("ring", StageState.FULL, as_expr(0)), COPY, buffers=buffers, rings=(ring,))
    second = attrs.evolve(of(making.loop(Var("mbarrier_wait", 0, 3), as_expr(4), (COPY,))), name="second")
    for kernels in ((first, second), (second, first)):
        assert "mbarrier_wait2(ring_full" in emit(*kernels)
    assert "mbarrier_wait(ring_full" in emit(first)


def test_whole_warps():
    kernel = of(COPY, threads=256)
    thread = kernel.thread
    for divisor, is_whole in ((32, True), (64, True), (128, True), (31, False), (33, False), (16, False), (48, False), (1, False)):
        assert _of_warp(FloorDiv(thread, as_expr(divisor)), kernel) is is_whole, divisor
    assert (
        not _of_warp(FloorDiv(kernel.block, Const(32)), kernel)
        and not _of_warp(Mod(thread, Const(32)), kernel)
        and not _of_warp(thread, kernel)
    )
    assert not _of_warp(FloorDiv(thread, N), kernel)


def test_arrays_are_declared_as_they_are_aligned_and_used():
    registers, shared = local("r", (255, 1), RF), local("s", (4, 4), SH, align=4)
    fill = execution(MOVE, Move(1, 1)(GL, RF)(Thread), COPY.accesses[0], access("r", (0, 0), write=True))
    keep = execution(MOVE, Move(1, 1)(GL, SH)(Thread), COPY.accesses[0], access("s", (0, 0), write=True))
    text = emit(of(fill, keep, buffers=(registers, shared)))
    assert "[[maybe_unused]] float r[255];  // of 255 x 1\n" in text and "__shared__ __align__(16) float s[16];" in text
    text = emit(of(fill, buffers=(local("r", (256, 1), RF),)))
    assert "[[maybe_unused]] float r[256];  // of 256 x 1; too large for registers, in local memory" in text


def test_a_coordinate_alone_needs_its_names():
    places = local("m", (1 << 30, 1), COORD, int32)
    fill = execution(MOVE, Move(1, 1)(GL, GL)(Thread), access("m", (THREAD * 3, 0)), access("dst", (0, 0), write=True))
    text = emit(of(fill, buffers=(places,)))
    assert "const int thread = threadIdx.x;" in text and "static_cast<float>(" in text


# ---------------------------------------------------------------------------------------------- addresses


def addresses(*body, **fields):
    kernel = kernel_of(Move(64, 1)(GL, GL), body, **fields)
    return Addresses(kernel, Names(set())), kernel


def test_terms_that_depend_on_the_thread():
    addresses_of_copy, kernel = addresses(COPY)
    k = Var("k", 0, 9)
    thread, block = kernel.thread, kernel.block
    assert addresses_of_copy.split(thread * block + k) == (thread * block, k), "all that is known in front of the loops"
    assert addresses_of_copy.split(thread * 4 + k * 2 + 3) == (thread * 4, k * 2 + 3) and addresses_of_copy.split(k) == (as_expr(0), k)
    assert addresses_of_copy.split(thread * k) == (as_expr(0), thread * k) and addresses_of_copy.split(thread // 4) == (
        thread // 4,
        as_expr(0),
    )
    addresses_of_copy, kernel = addresses(COPY, symbols=(N,))
    assert addresses_of_copy.split(N * k + N) == (as_expr(0), N * k + N), "sizes alone are a part of what a loop adds"
    assert addresses_of_copy.split(N * kernel.thread + N) == (N * kernel.thread, N)


def test_names_carry_the_range_of_their_values():
    addresses_of_copy, _ = addresses(COPY)
    name = addresses_of_copy._name("stage", Var("x", 0, 7) * 4 + 4)
    assert (name.name, name.low, name.high, name.factor) == ("stage", 4, 32, 4)


def test_parity_variables_of_a_ring():
    k = Var("k", 0, 9)
    ring = making.ring("ring", 3, ("s",), bytes=64, consumers=1)
    loop = making.loop(k, as_expr(10), (making.acquire("ring", StageState.FULL, k), COPY), period=3)
    kernel = of(loop, buffers=(local("s", (4, 4), SH),), rings=(ring,))
    addressing = Addresses(kernel, Names(set()))
    addressing.enter(loop, False)
    assert str(addressing.parity(k, 3, 0)) == "k_phase" and str(addressing.parity(k, 3, 0)) == "k_phase"
    lines = addressing.leave()
    assert [str(line) for line in lines.before] == ["int k_stage = 0;", "int k_phase = 0;"] and lines.top == ()
    assert texts(*lines.end) == ["if (++k_stage == num_stages) {", "  k_stage = 0;", "  k_phase ^= 1;", "}"]


# ---------------------------------------------------------------------------------------------- makers


def test_whose_lines_they_are():
    first, second = (attrs.evolve(COPY, path=("tile", name)) for name in ("a", "b"))
    unlabeled = attrs.evolve(COPY, path=None)
    k = Var("k", 0, 9)
    ring, other = making.ring("ring", 2, ("s",)), making.ring("other", 2, ("s",))
    filling = attrs.evolve(unlabeled, ring="other")
    kernel = of(first, second, filling, rings=(ring, other), buffers=(local("s", (4, 4), SH),), makers={"k": ("loop",), "s": ("load",)})
    makers = Makers(kernel)
    a, b = ("tile", "a"), ("tile", "b")
    assert makers.of(first) == (a,) and makers.of(unlabeled) == () and makers.of(making.let(k, as_expr(3))) == (("loop",),)
    assert (
        makers.of(making.loop(Var("j", 0, 9), as_expr(9), (first, unlabeled, second))) == (("tile",),)
        and makers.of(making.loop(Var("j", 0, 9), as_expr(9), (unlabeled,))) == ()
    )
    assert makers.of(making.loop(Var("j", 0, 9), as_expr(9), (first,))) == (a,) and makers.of(making.loop(k, as_expr(9), (first,))) == (
        ("loop",),
    )
    orders = (
        Dependence("s", first, second, (True, False)),
        Dependence("s", unlabeled, None, (True, False)),
        Dependence("s", second, first, (True, False)),
    )
    for stmt in (making.barrier(ir.BLOCK_SCOPE, orders=orders), making.wait(0, orders=orders)):
        assert makers.of(stmt) == (a, b)
    assert makers.of(making.acquire("ring", StageState.FULL, k)) == makers.of(making.acquire("other", StageState.FULL, k)) == (("load",),)
    body = (making.comment("why"), first, second, making.commit(), unlabeled, making.comment("last"))
    assert makers.of_list(body, 0, 1) == (a,) and makers.of_list(body, 1, 3) == (a, b) and makers.of_list(body, 3, 4) == (b,)
    assert makers.of_list(body, 4, 5) == () and makers.of_list(body, 5, 6) == () and makers.of_list(body, 0, 3) == (a, b)
    assert makers.of_list((making.comment("why"), unlabeled, first), 0, 2) == () and makers.of_list(
        (making.comment("x"), unlabeled, second), 0, 1
    ) == (b,)
    filled = Makers(attrs.evolve(kernel, body=(attrs.evolve(first, ring="ring"), attrs.evolve(unlabeled, ring="ring"), second)))
    assert filled.of_ring("ring") == (a,) and filled.of_ring("other") == (("load",),)


# ---------------------------------------------------------------------------------------------- what instructions require


def counted(terms, number, conditions=(TRUE,), dtype=float32, most=9):
    """A sum of coordinates converted to float: `terms` by position, plus `number`."""
    iteration, x = Var("turn", 0, 2), Var("x", 0, most)
    place = local("m", (1 << 30, 1), COORD, int32)
    value = access("m", (x + iteration * 2, 0), (2, 1))
    fill = execution(MOVE, Move(2, 1)(GL, GL)(Thread), value, access("dst", (0, 0), (2, 1), write=True))
    kernel = guard(kernel_of(Move(16, 1)(GL, GL), (making.loop(iteration, as_expr(3), (fill,), unroll=True),), place))
    (loop,) = kernel.body
    (fill,) = loop.body
    pieces = tuple(attrs.evolve(one, condition=condition) for one, condition in zip(fill.pieces[0], (*conditions, TRUE)))
    fill = attrs.evolve(fill, pieces=(pieces, fill.pieces[1]))
    return tuple(map(str, KernelPrinter(kernel, Names(set())).counted(fill, terms, number, dtype)))


def test_sums_of_coordinates_are_converted_once():
    first, second = "static_cast<float>(x)", "static_cast<float>((turn * 2))"
    assert counted({0: (0, 1)}, 0) == (first, second) and counted({0: (0, 1)}, 7) == ("static_cast<float>((x + 7))", second)
    assert counted({0: (1, 3)}, 0) == ("static_cast<float>((x * 3 + 3))", "static_cast<float>((turn * 6))")
    assert counted({}, 0) == ("static_cast<float>(0)",) and counted({}, 5) == ("static_cast<float>(5)",)
    assert counted({0: (0, 0)}, 4) == ("static_cast<float>(4)",)
    assert counted({0: (0, 1)}, 0, (less(THREAD, 3),)) == () and counted({0: (1, 1)}, 0, (less(THREAD, 3),)) != ()
    assert counted({0: (0, 1)}, 0, dtype=float64) == ()
    exact = 1 << 24
    assert (
        counted({0: (0, 1)}, 0, most=exact - 1) != ()
        and counted({0: (0, 1)}, 0, most=exact) == ()
        and counted({0: (0, 1)}, 1, most=exact - 1) == ()
    )
    assert (
        counted({0: (0, -1)}, 0, most=exact - 1) != ()
        and counted({0: (0, -1)}, 0, most=exact) == ()
        and counted({0: (0, -1)}, -1, most=exact - 1) == ()
    )
    assert counted({}, exact - 1) != () and counted({}, exact) == ()


def test_versions_are_rebuilt_and_substituted():
    k, inside, outside = Var("k", 0, 9), (COPY,), (making.comment("x"), COPY)
    branch = Branch(less(k, 5), inside, outside)
    assert branch.rebuilt((outside, inside)) == Branch(less(k, 5), outside, inside)
    assert branch.substitute({k: as_expr(7)}).interior == less(as_expr(7), 5) and branch.expressions == (less(k, 5),)


# ---------------------------------------------------------------------------------------------- statements


def body_of(*body, buffers=(), **fields):
    """The lines of a kernel's statements."""
    lines = emit(of(*body, buffers=buffers, **fields)).splitlines()
    return [line.strip() for line in lines[lines.index("{", len(lines) - lines[::-1].index("{") - 1) + 1 : -1]]


class Moving(type(MOVE)):
    """A copy that changes nothing where its source is 1."""

    def identity_operand(self, spec):
        return "src"

    def cuda(self, printer, statement):
        return ["work;"]


REGISTERS, RESULT = local("r", (64, 1), RF), local("q", (64, 1), RF)


def factor(place, count=1):
    spec = Move(count, 1)(RF, RF)(Thread)
    return execution(Moving(), spec, access("r", (place, 0), (count, 1)), access("q", (0, 0), (count, 1), write=True))


def factors(*body):
    """The lines of statements that change nothing where factors are 1, after the declarations of their registers."""
    return body_of(*body, buffers=(REGISTERS, RESULT))[2:]


def test_statements_skipped_where_all_factors_are_one():
    k, j = Var("k", 0, 3), Var("j", 0, 7)
    lines = factors(factor(3), factor(4, 2))
    assert [line for line in lines if "if" in line] == ["if (r[3] != 1.0f)", "if (r[4] != 1.0f || r[5] != 1.0f)"]
    around = making.loop(k, as_expr(4), (factor(k * 2), factor(9)), unroll=True)
    assert (
        "if (r[0] != 1.0f || r[2] != 1.0f || r[4] != 1.0f || r[6] != 1.0f || r[9] != 1.0f) {" in factors(around)
        and sum("if" in line for line in factors(around)) == 1
    )
    twice = making.loop(k, as_expr(4), (making.loop(j, as_expr(2), (factor(k),), unroll=True),), unroll=True)
    assert [line for line in factors(twice, factor(7)) if "if" in line] == [
        "if (r[0] != 1.0f || r[1] != 1.0f || r[2] != 1.0f || r[3] != 1.0f) {", "if (r[7] != 1.0f)",
    ]  # fmt: skip
    many = making.loop(j, as_expr(8), (factor(j * 2, 2),), unroll=True)
    text = " ".join(factors(many))
    assert text.count("!= 1.0f") == 16 and text.rindex("!= 1.0f") < text.index("for ("), "16 factors"
    more = making.loop(j, as_expr(8), (factor(j * 2, 2), factor(40)), unroll=True)
    assert factors(more) == [
        "#pragma unroll", "for (int j = 0; j < 8; ++j) {", "if (r[j * 2] != 1.0f || r[j * 2 + 1] != 1.0f)", "work;", "if (r[40] != 1.0f)", "work;", "}",
    ], "17 are too many for all of them"  # fmt: skip
    unknown = ["for (int n = 0; n < N; ++n) {", "if (r[2] != 1.0f)", "work;", "}"]
    assert factors(making.loop(Var("n", 0, 99), N, (factor(2),))) == unknown, "turns that nobody knows"
    plain = execution(MOVE, Move(1, 1)(RF, RF)(Thread), access("r", (0, 0)), access("q", (0, 0), write=True))
    assert factors(making.loop(k, as_expr(4), (factor(k), plain), unroll=True)) == [
        "#pragma unroll", "for (int k = 0; k < 4; ++k) {", "if (r[k] != 1.0f)", "work;", "q[0] = r[0];", "}",
    ], "a loop that does more goes on"  # fmt: skip


COPIED = [attrs.evolve(COPY, active=less(THREAD, bound)) for bound in (5, 7)]


def test_conditions_are_named_before_the_loop_that_uses_them():
    k = Var("k", 0, 3)
    first, other = COPIED
    assert body_of(making.loop(k, as_expr(4), (first, first)))[:2] == ["const int thread = threadIdx.x;", "if (thread < 5) {"]
    for inner in (making.barrier(ir.WARP_SCOPE), making.fence(ir.FenceKind.ASYNC_PROXY)):
        lines = body_of(making.loop(k, as_expr(4), (first, inner, first)))
        assert lines[1].startswith("for (int k = 0; k < 4; ++k)"), inner
    assert body_of(making.loop(k, as_expr(4), (first, other)))[1].startswith("for")
    assert body_of(making.loop(k, as_expr(4), (making.comment("why"), first, making.comment("more"), first)))[1] == "if (thread < 5) {"
    inside = attrs.evolve(COPY, active=less(k, 2))
    assert body_of(making.loop(k, as_expr(4), (inside,)))[1].startswith("for"), "of the loop's own variable it is no condition around it"
    named = making.let(Var("place", 0, 99), k * 4)
    lines = body_of(making.loop(k, as_expr(4), (named, attrs.evolve(COPY, active=less(Var("place", 0, 99), 9)))))
    assert lines[1].startswith("for")


def test_adjacent_statements_share_a_condition():
    first, other = COPIED
    both = attrs.evolve(COPY, active=less(THREAD, 5))
    lines = body_of(first, making.comment("between"), both, other)
    assert [line for line in lines if line.startswith("if")] == ["if (thread < 5) {", "if (thread < 7)"]
    assert lines[1] == "if (thread < 5) {" and lines[3] == "// between"
    assert body_of(COPY, making.comment("last"))[-1] == "// last"


def test_quotients_have_their_names_where_these_are():
    """The names of a loop or branch are not visible after it."""
    by = Reciprocal("by_n", N)
    block = Var("block", 0, INT_MAX)
    k, j = Var("k", 0, 3), Var("j", 0, 3)
    q, r = FloorDiv(block, N), Mod(block, N)
    first, second = making.let(Var("q", q.low, q.high), q), making.let(Var("rest", r.low, r.high), r)
    use = [attrs.evolve(COPY, accesses=(access("src", (one.var, 0)), COPY.accesses[1])) for one in (first, second)]
    kernel = attrs.evolve(
        kernel_of(
            Move(64, 1)(GL, GL),
            (making.loop(k, as_expr(4), (first, second, *use)), making.loop(j, as_expr(4), (second, use[1]))),
            grid=N,
            symbols=(N,),
        ),
        reciprocals=(by,),
    )
    lines = [line.strip() for line in emit(guard(kernel)).splitlines() if "rest =" in line]
    assert len(lines) == 2 and "q * N" in lines[0] and "q * N" not in lines[1] and "quotient(" in lines[1]


def test_roles_do_not_repeat_their_own_condition():
    thread = Var("thread", 0, 255)
    copies = [attrs.evolve(COPY, active=equal(thread // 128, number)) for number in range(2)]
    k = Var("k", 0, 99)
    loop = making.loop(k, N, (attrs.evolve(COPY, accesses=(access("src", (k, 0)), COPY.accesses[1])),))
    barrier = making.barrier(making.scope("consumers", 128))
    roles = making.roles(
        (
            making.role("consumers", 0, 128, (copies[0], copies[1], barrier)),
            making.role("producer", 128, 128, (copies[0], copies[1], loop), elected=True),
        )
    )
    text = emit(of(roles, loop, threads=256, workers=256, symbols=(N,)))
    assert text.count("thread / 128 == 1") == text.count("thread / 128 == 0") == 1, "each in the other role"
    assert text.count("#pragma unroll 1\n") == 1, "of the thread that is alone"
    assert "consumers_sync();" in text and 'if (threadIdx.x / 128 == 0) asm volatile("bar.sync 15, 128;"' in text
    by_roles = making.roles(
        (making.role("consumers", 0, 128, (copies[0], barrier)), making.role("producer", 128, 32, (COPY,), elected=True))
    )
    text = emit(of(by_roles, threads=160, workers=128))
    assert '  asm volatile("bar.sync 15, 128;" ::: "memory");' in text and "/ 128 == 0) asm" not in text
    for scope, body in ((making.scope("some", 64), by_roles), (making.scope("some", 128), None)):
        inner = (
            (making.barrier(scope),)
            if body is None
            else (attrs.evolve(by_roles, roles=(attrs.evolve(by_roles.roles[0], body=(making.barrier(scope),)), by_roles.roles[1])),)
        )
        with pytest.raises(FireironError, match="no text for a barrier of a some"):
            emit(of(*inner, threads=160, workers=128))
    for workers, groups in ((128, 1), (256, 2), (160, 2), (384, 3)):
        role = making.role("all", 0, workers, (making.barrier(ir.WARPGROUP_SCOPE),))
        text = emit(of(making.roles((role,)), threads=workers, workers=workers))
        assert text.count("bar.sync") == groups and f"bar.sync {groups}, 128" in text, workers


def printer_of(*statements, buffers=(), **fields):
    return KernelPrinter(of(*statements, buffers=buffers, **fields), Names(set()))


def test_functions_in_double_are_those_of_the_standard():
    printer = printer_of(COPY)
    assert str(printer.applied("exp2", float64, "x")) == "exp2(x)" and str(printer.applied("exp2", float32, "x")) == "exp2_approx(x)"
    assert str(printer.applied("tanh_approx", float64, "x")) == "tanh(x)"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("source", "target", "text"),
    [
        (int8, int32, "widened(src[thread])"), (int8, float32, "static_cast<float>(src[thread])"), (int32, int32, "src[thread]"),
        (float8_e4m3, int32, "static_cast<int>(static_cast<float>(src[thread]))"),
    ],
    ids=str,
)  # fmt: skip
def test_factors_of_8_bits(source, target, text):
    spec = Move(64, 1, dtype=source)(GL, GL)
    kernel = guard(kernel_of(spec, (attrs.evolve(COPY, spec=Move(1, 1, dtype=source)(GL, GL)(Thread)),)))
    assert str(KernelPrinter(kernel, Names(set())).factor(kernel.body[0], "src", target)) == text


def test_the_first_element_is_meant():
    vector = execution(MOVE, Move(3, 1)(GL, GL)(Thread), access("src", (4, 0), (3, 1)), access("dst", (8, 0), (3, 1), write=True))
    printer = printer_of(vector)
    assert str(printer.place(vector.accesses[0])) == "src[4]" and str(printer.pointer(vector.accesses[1])) == "&dst[8]"
    assert str(printer.place(vector.accesses[0], (2, 0))) == "src[6]"


def test_partial_stores():
    """One of two pieces is never stored, the other one always."""
    two = execution(MOVE, Move(2, 1)(GL, GL)(Thread), access("src", (0, 0), (2, 1)), access("dst", (0, 0), (2, 1), write=True), vector=2)
    pieces = tuple(making.piece(number, 1) for number in range(2))
    loads = ["{", "__align__(8) float piece[2];", "piece[0] = src[0];", "piece[1] = src[1];"]
    first, second = "dst[0] = piece[0];", "dst[1] = piece[1];"
    for conditions, lines in (
        ((0, 1), [*loads, "if (0)", first, second, "}"]),
        ((1, 0), [*loads, first, "if (0)", second, "}"]),
        ((0, 0), []),
    ):
        written = tuple(attrs.evolve(one, condition=as_expr(bit)) for one, bit in zip(pieces, conditions))
        lines_of_store = printer_of(two).moved(attrs.evolve(two, pieces=(pieces, written)))
        assert [line.strip() for line in texts(*lines_of_store)] == lines, conditions


def test_blocks_as_masks():
    """Masks of surrounding blocks are shifted to the block's own rank in the cluster; only the shift needs parentheses."""
    rank = Var("rank", 0, 3)
    printer = printer_of(COPY)
    alone, shifted = making.block_set(0x3, as_expr(0)), making.block_set(0x5, rank)
    assert (
        printer.blocks(alone) == "0x3"
        and printer.blocks(shifted) == "0x5 << rank"
        and printer.blocks(alone, shifted) == "0x3 | (0x5 << rank)"
    )
    assert rank in printer.addresses.used


def test_registers_of_asynchronous_mmas_are_not_copied():
    scattered = attrs.evolve(access("r", (0, 0), (3, 1), write=True), points=((0, 0), (2, 0), (1, 0)))
    writes = execution(MOVE, Move(3, 1)(GL, RF)(Thread), access("src", (0, 0), (3, 1)), scattered, mechanism=WGMMA_GROUPS)
    with pytest.raises(FireironError, match="are not in its order"):
        printer_of(writes, buffers=(REGISTERS,)).registers(writes, 1)
    for stmt in (
        attrs.evolve(writes, mechanism=AT_ONCE),
        attrs.evolve(writes, accesses=(writes.accesses[0], attrs.evolve(scattered, write=False))),
    ):
        assert str(printer_of(writes, buffers=(REGISTERS,)).registers(stmt, 1).place) == "r_values"


def test_conditions_of_accumulators_that_start_at_zero():
    printer = printer_of(COPY)
    for accumulate, lines in ((TRUE, []), (as_expr(0), ["a;"]), (less(THREAD, 3), ["if (!(thread < 3))", "  a;"])):
        assert texts(*printer.unless_adding(attrs.evolve(COPY, accumulate=accumulate), ("a;",))) == lines


def test_conditions_common_to_all_stores_enclose_them():
    """Conditions of only some stores remain at those; loads do not repeat the enclosing condition."""
    a, b, c = less(THREAD, 5), less(THREAD, 7), less(THREAD, 9)
    two = execution(MOVE, Move(2, 1)(GL, GL)(Thread), access("src", (0, 0), (2, 1)), access("dst", (0, 0), (2, 1), write=True), vector=2)

    def moved(reads, writes):
        pieces = tuple(tuple(making.piece(number, 1, condition=all_of(one)) for number, one in enumerate(each)) for each in (reads, writes))
        return [line.strip() for line in texts(*printer_of(two).moved(attrs.evolve(two, pieces=pieces)))]

    assert moved(((a,), (a, c)), ((a, b), (a,))) == [
        "if (thread < 5) {", "{", "__align__(8) float piece[2];", "piece[0] = src[0];", "piece[1] = thread < 9 ? src[1] : 0.0f;",
        "if (thread < 7)", "dst[0] = piece[0];", "dst[1] = piece[1];", "}", "}",
    ]  # fmt: skip
    assert moved(((c,), ()), ((a,), (a,))) == [
        "{", "__align__(8) float piece[2];", "piece[0] = thread < 9 ? src[0] : 0.0f;", "piece[1] = src[1];", "if (thread < 5)",
        "dst[0] = piece[0];", "if (thread < 5)", "dst[1] = piece[1];", "}",
    ]  # fmt: skip


@pytest.mark.parametrize(("grid", "blocks"), [(24, "24"), (N, "gridDim.x")], ids=str)
def test_tiles_that_blocks_take(grid, blocks):
    """The launch passes the number of blocks to the kernel unless it is constant."""
    ring = making.ring("tiles", 2, (), consumers=4, tiles=True, offset=64)
    tile = Var("tile", 0, 99)
    use = attrs.evolve(COPY, accesses=(access("src", (tile, 0)), COPY.accesses[1]))
    makes, reads = (making.claim_tile(tile, as_expr(99), "tiles", Var("k", 0, 9) * 2 + 1, takes=takes) for takes in (True, False))
    kernel = attrs.evolve(kernel_of(Move(64, 1)(GL, GL), (), grid=grid, symbols=(N,)), rings=(ring,), counter=making.counter("count"))
    for stmt, line in (
        (makes, f"const int tile = k * 2 + 1 == 0 ? block : claim_tile(count, 99, {blocks});  // the block's own tile first"),
        (reads, "const int tile = __shfl_sync(0xffffffff, tiles_numbers[1], 0);  // warp-uniform, and all lanes have read it"),
    ):
        lines = [
            text.strip()
            for text in emit(guard(attrs.evolve(kernel, body=(making.loop(Var("k", 0, 9), as_expr(9), (stmt, use)),)))).splitlines()
        ]
        assert line in lines and ("tiles_numbers[1] = tile;" in lines) == stmt.takes, lines


# ---------------------------------------------------------------------------------------------- iterations

RINGS = tuple(making.ring(f"ring{stages}", stages, ("s",), bytes=64, consumers=1) for stages in (2, 3, 6))
SHARED = local("s", (4, 4), SH)


def entered(*loops):
    """Addresses inside loops, the outermost first, and what they have entered."""
    addressing = Addresses(of(loops[0], buffers=(SHARED,), rings=RINGS, symbols=(N,)), Names(set()))
    return addressing, [addressing.enter(loop, False) for loop in loops]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("number", "first", "counts"),
    [
        (lambda k: k, 0, True), (lambda k: k + 2, 0, True), (lambda k: k - 1, 0, False), (lambda k: k - 1, 1, True), (lambda k: k - 2, 1, False),
        (lambda k: k * 2, 0, False), (lambda k: k + k // 2, 0, False), (lambda k: k + var(0, 9), 0, True), (lambda k: k + var(-1, 9), 0, False),
        (lambda k: k + var(-3, 5), 3, True), (lambda k: k + var(-3, 5), 2, False), (lambda k: X, 0, False), (lambda k: k + var(-9, -2), 5, False),
    ],
)  # fmt: skip
def test_numbers_that_go_up_by_one(number, first, counts):
    """The fill number grows by one per iteration and is never negative; then a counter holds the stage."""
    k = Var("k", 0, 99)
    for loop, counted in (
        (making.loop(k, N, (making.acquire("ring3", StageState.FULL, k),), first=first, period=3), True),
        (making.loop(k, N, (COPY,), first=first, period=3), False),
    ):
        _, (entered_loop,) = entered(loop)
        assert entered_loop.counted is counted and entered_loop.counts(number(k)) is (counts and counted)


def nest(first=0, extent=4, outer_step=1, offset=0, names=()):
    t, k = Var("t", 0, 99), Var("k", 0, 9)
    inner = making.loop(k, as_expr(extent), (making.acquire("ring3", StageState.FULL, t * 4 + k + offset), COPY), period=3)
    return making.loop(t, N, (*names, inner), first=first, step=outer_step), inner, t * 4 + k + offset


def test_counts_go_on_through_the_loop_around():
    for options, goes_on in (({}, True), ({"first": 1}, True), ({"extent": 5}, False), ({"outer_step": 2}, False), ({"offset": 2}, True)):
        outer, inner, _ = nest(**options)
        _, (around, entered_loop) = entered(outer, inner)
        assert (entered_loop.around is around) is goes_on, options
    outer, inner, number = nest(first=1)
    addressing, _ = entered(outer, inner)
    assert str(addressing.fill(number, 6)) == "k + 4", "from the first turn of the loop around on"
    outer, inner, number = nest(extent=5)
    addressing, (around, _) = entered(outer, inner)
    name = addressing.fill(number, 6)
    assert str(name) == "k + t_first_fill" and list(around.named) == [outer.var * 4 % 6]
    place = Var("place", 0, 99)
    outer, inner, number = nest(extent=5, names=(making.let(place, Var("t", 0, 99) // 2),))
    addressing, (around, _) = entered(outer, inner)
    assert addressing.fill(number + place, 6) == number + place and not around.named, "at the top of the loop its names are not there"
    assert addressing.fill(Var("k", 0, 9) + 3, 6) == Var("k", 0, 9) + 3
    u = Var("u", 0, 9)
    outer, inner, _ = nest()
    addressing, entered_loop = entered(making.loop(u, as_expr(9), (outer,)), outer, inner)
    assert entered_loop[2].around is entered_loop[1] and entered_loop[1].around is None


def test_parities_of_the_rings_of_a_loop():
    k = Var("k", 0, 99)
    loop = making.loop(k, N, (making.acquire("ring3", StageState.FULL, k), making.acquire("ring2", StageState.FULL, k), COPY), period=6)
    addressing, (entered_loop,) = entered(loop)
    assert entered_loop.stages == {2, 3} and entered_loop.counted and entered(attrs.evolve(loop, period=0))[1][0].stages == set()
    assert (
        str(addressing.parity(k, 5, 0)) == "k // 5 % 2"
        and str(addressing.parity(k, 3, 0)) == "k_phase"
        and str(addressing.parity(k, 6, 0)) == "k_phase2"
    )
    assert str(addressing.parity(k * 2, 3, 0)) == "k * 2 // 3 % 2" and str(addressing.parity(as_expr(4), 3, 1)) == "0"
    assert str(entered(attrs.evolve(loop, step=2))[0].parity(k, 3, 1)) == "(k // 3 + 1) % 2"


def test_stages_under_other_names_are_unchanged():
    t, k, place = Var("t", 0, 99), Var("k", 0, 9), Var("place", 0, 99)
    inner = making.loop(k, as_expr(5), (COPY,), period=3)
    outer = making.loop(t, N, (making.let(place, t // 2), inner))
    addressing, (_, entered_loop) = entered(outer, inner)
    own, mixed = Mod(k + t * 4 + place, Const(3)), Mod(k + t * 4, Const(3))
    assert addressing.stage(own) == own and not entered_loop.named, "the name in the loop around is not known at the top of this one's turn"
    assert str(addressing.stage(mixed)) == "k_stage" and [str(one) for one in entered_loop.named] == ["(k + t_first_fill) % 3"]
    assert str(addressing.stage(Mod(k + 1, Const(3)))) == "k_stage_1" and str(addressing.stage(Mod(k - 1, Const(3)))) == "k_stage2"
    for other in (Mod(k, Const(4)), Mod(t, Const(3)), k, as_expr(1)):
        assert addressing.stage(other) == other


def test_swizzles_named_before_loops():
    """Swizzles that block and thread determine are named before the loops; those that depend on a loop, and expressions as short as a name,
    are not.
    """
    k = Var("k", 0, 99)
    addressing = Addresses(kernel_of(Move(64, 1)(GL, GL), (making.loop(k, as_expr(9), (COPY,)),), SHARED, grid=8), Names(set()))
    thread, block = addressing.kernel.thread, addressing.kernel.block
    side = thread + block
    assert str(addressing._named(bit_xor(k, side), SHARED)) in ("k ^ s_swizzle", "s_swizzle ^ k") and addressing._named(
        bit_xor(thread // 2 + block, side), SHARED
    ) == bit_xor(thread // 2 + block, side)
    assert addressing._named(bit_xor(k, thread), SHARED) == bit_xor(k, thread) and addressing._named(
        bit_xor(k, as_expr(5)), SHARED
    ) == bit_xor(k, as_expr(5))


def test_which_bases_are_pointers():
    k = Var("k", 0, 8)
    adds = [
        attrs.evolve(COPY, accesses=(COPY.accesses[0], access(name, (THREAD, 0), write=True)), accumulate=TRUE)
        for name in ("s", "r", "dst")
    ]
    addressing = Addresses(of(making.loop(k, as_expr(9), (COPY, *adds)), buffers=(SHARED, REGISTERS)), Names(set()))
    assert {name for name, _ in addressing.repeated} == {"src", "dst", "s"} and {name for name, _ in addressing.updated} == {"s"}


def test_iteration_counts_are_unknown_before_their_loop():
    trip_count = Var("taken", 0, 99)
    addressing, _ = entered(making.loop(Var("k", 0, 9), N, (COPY,)))
    addressing.used.add(trip_count)
    assert (
        str(addressing.count(trip_count, as_expr(1))) == "++taken;"
        and trip_count not in addressing.used
        and str(addressing.count(trip_count, N * 2)) == "taken += N * 2;"
    )
    assert N in addressing.used


def test_coordinates_that_unrolled_loops_add_to_need_their_names():
    iteration = Var("turn", 0, 2)
    places = local("m", (1 << 30, 1), COORD, int32)
    fill = execution(MOVE, Move(1, 1)(GL, GL)(Thread), access("m", (THREAD * 3 + iteration * 2, 0)), access("dst", (0, 0), write=True))
    printer = printer_of(making.loop(iteration, as_expr(3), (fill,), unroll=True), buffers=(places,))
    assert (
        str(printer.value(printer.kernel.body[0].body[0], 0, 0, float32))
        == "(static_cast<float>((thread * 3)) + static_cast<float>((turn * 2)))"
    )
    assert THREAD in printer.addresses.used


def test_scalars_have_an_address():
    """A scalar has the address of its parameter, since it is not an array."""
    value = attrs.evolve(local("alpha", (1, 1), VAL), parameter=True)
    fill = execution(MOVE, Move(1, 1)(GL, GL)(Thread), access("alpha", (0, 0)), COPY.accesses[1])
    printer = printer_of(fill, buffers=(value,))
    assert str(printer.pointer(fill.accesses[0])) == "&alpha" and str(printer.place(fill.accesses[0])) == "alpha"


def test_statements_without_effect_have_no_condition():
    """A loop that contains only comments prints no condition."""
    k = Var("k", 0, 3)
    assert body_of(making.loop(k, as_expr(4), (making.comment("why"),)), COPY)[1:3] == ["for (int k = 0; k < 4; ++k) {", "// why"]


# ---------------------------------------------------------------------------------------------- micro-kernels


def part(spec, *accesses, loops=(), active=TRUE, buffers=()):
    """What prints a micro-kernel, of a statement in loops."""
    statement = execution(MOVE, spec, *accesses, active=active)
    body = (statement,)
    for loop in reversed(loops):
        body = (attrs.evolve(loop, body=body),)
    return _MicroKernel(kernel_of(Move(64, 1)(GL, GL), body, *buffers, symbols=(N,)), statement, lambda value: None)


def test_views_that_begin_inside():
    """The views stay in bounds in the last iterations of the enclosing loops and wherever the statement executes."""
    k, j = Var("k", 0, 9), Var("j", 0, 9)
    loops = (making.loop(k, as_expr(4), ()), making.loop(j, N, ()))
    inside = part(Move(1, 1)(GL, GL)(Thread), *COPY.accesses, loops=loops, active=less(X, N))._begins_inside
    for base, bound, expected in (
        (k * 16, 64, True), (k * 16, 49, True), (k * 16, 48, False), (k, 4, True), (k, 3, False), (k + 60, 64, True), (k + 61, 64, False), (63 - k, 63, False),
        (63 - k, 64, True), (k * X, 28, False), (k // 2 * 16, 64, False), (j, N, True), (j + 1, N, False), (k + j, N, False), (k + j, N + 3, True), (X, N, True),
        (Y, N, False), (as_expr(3), 4, True), (as_expr(4), 4, False), (k * 2 + X, 106, True), (k * 2 + X, 105, False),
    ):  # fmt: skip
        assert inside(base, as_expr(bound)) is expected, (base, bound)


def test_group_registers_are_passed_as_owned():
    """Registers of a single thread are arrays like others, and so is shared memory."""
    sides = access("s", (0, 0), (4, 4)), access("r", (0, 0), (4, 4), write=True)
    for level, owned in ((Warp, ["dst"]), (Thread, [])):
        printer = part(Move(4, 4)(SH, RF)(level), *sides, buffers=(SHARED, REGISTERS))
        assert [name for name in ("src", "dst") if printer._is_in_registers(name)] == owned


def test_why_a_name_has_no_value():
    of_sides = part(Move(1, 1)(GL, GL)(Thread), *COPY.accesses)
    size, stride = (str(of_sides._undefined_name(name)) for name in ("src_size_m", "src_stride_m"))
    assert "uses src_size_m, but the elements in bounds are not the first ones of the view" in size and "load the operand first" in size
    assert "uses src_stride_m, but adjacent elements of this view have no fixed stride" in stride and "use src_at(...)" in stride


def test_stages_equal_to_the_iteration():
    """If the enclosing loops have completed whole cycles of the ring, a loop of one cycle uses its iteration number as the stage."""
    t, k = Var("t", 0, 99), Var("k", 0, 2)
    inner = making.loop(k, as_expr(3), (COPY,), period=3)
    addressing, (_, entered_loop) = entered(making.loop(t, N, (inner,)), inner)
    assert addressing.stage(Mod(k + t * 3, Const(3))) == k and not entered_loop.named
