"""Parts of the printed text at their edges: widths, signs, parentheses, comments, blocks, names that are taken, who made what."""

import attrs
import pytest
from handmade import THREAD, access, execution, kernel_of, local
from test_chosen import N

from fireiron import *
from fireiron import ir
from fireiron.cuda import emit
from fireiron.cuda.addresses import Addresses, Names
from fireiron.cuda.expressions import Binds, expression, is_wide, operand, scaled, summands
from fireiron.cuda.frame import _of_warp, _taken, printed
from fireiron.cuda.lines import WIDTH, comment, guarded, lines_of
from fireiron.cuda.makers import Makers
from fireiron.cuda.printer import KernelPrinter
from fireiron.cuda.versions import Branch
from fireiron.executable.thread_move import MOVE
from fireiron.ir import Acquire, Barrier, Comment, Commit, For, Let, NextTile, Reciprocal, Ring, Side, Wait
from fireiron.ir.statement import Dependence
from fireiron.ir.text import Braces, If, Made, Noted, Remark
from fireiron.ir.tickets import Counter
from fireiron.lower.guard import guard
from fireiron.values.expr import INT_MAX, TRUE, Const, FloorDiv, Less, Mod, Sum, Var, as_expr, bit_xor, equal, less
from fireiron.values.machine import INDEX

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
def test_what_needs_64_bits(number):
    value, wide = WIDE[number]
    assert is_wide(value) is wide, value


def test_what_does_not_fit_64_bits():
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
    assert operand(X * 2, Binds.PRODUCT) == "x * 2" and operand(X * 2, Binds.FACTOR) == "(x * 2)"
    assert (
        operand(-X * 2, Binds.PRODUCT) == "(-x * 2)" and operand(X + Y, Binds.PRODUCT) == "(x + y)" and operand(X + Y, Binds.SUM) == "x + y"
    )
    assert operand(Const(-3), Binds.SUM) == "-3" and operand(Const(-3), Binds.PRODUCT) == "(-3)" and operand(Const(0), Binds.NAME) == "0"


def test_no_quotient_of_what_may_be_negative():
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
        found = texts(Noted("a;", "x" * length))
        assert len(found) == lines and found[-1].startswith("a;"), length


def test_words_that_are_longer_than_a_line():
    assert comment("x" * (WIDTH - 3)) == ["// " + "x" * (WIDTH - 3)]
    assert comment("x" * (WIDTH + 1)) == ["// " + "x" * (WIDTH - 3), "//     xxxx"]
    assert comment("a " + "x" * (WIDTH - 5)) == ["// a " + "x" * (WIDTH - 5)]
    assert comment("a " + "x" * (WIDTH - 4)) == ["// a", "//     " + "x" * (WIDTH - 7), "//     xxx"]
    assert comment("", 1) == ["  //"] and comment("a\n\nb") == ["// a", "//", "// b"]


def test_lines_have_the_steps_that_made_them():
    one, two, three = (("a",),), (("b",),), (("c",),)
    item = If(("x",), (Made("a;", one), Made("b;", two)), (Made("c;", two), Made("d;", three)))
    found = [(line.text, line.steps) for line in lines_of([Made(item, three)])]
    assert found == [
        ("if (x) {", three), ("  a;", one), ("  b;", two), ("} else {", three), ("  c;", two), ("  d;", three), ("}", three),
    ]  # fmt: skip
    inner = Made(If(("y",), ("a;", "b;")), two)
    found = [(line.text, line.steps) for line in lines_of([Made(guarded(("x",), (inner,)), one)])]
    assert found == [("if (x && y) {", one), ("  a;", two), ("  b;", two), ("}", one)]
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
    tile = NextTile(Var("next", 0, 9), as_expr(9), "ring", as_expr(0), True)
    scratched = attrs.evolve(COPY, scratch=SCRATCH.tensor)
    kernel = of(
        Let(Var("row", 0, 9), THREAD // 4), For(Var("k", 0, 9), as_expr(9), (scratched,)), tile, buffers=(local("A_Tile", (4, 4), SH),),
        symbols=(sym("M"),), reciprocals=(Reciprocal("by_rows", sym("M")),), counter=Counter("count"),
    )  # fmt: skip
    assert _taken(kernel) == {
        "handmade", "block", "thread", "smem", "piece", "warp_of_block", "M", "by_rows", "count", "blockIdx.x", "threadIdx.x", "src", "dst", "A_Tile",
        "a_tile", "row", "k", "next", "room",
    }  # fmt: skip
    assert _taken(attrs.evolve(kernel, counter=None, reciprocals=(), body=())) == {
        "handmade", "block", "thread", "smem", "piece", "warp_of_block", "M", "blockIdx.x", "threadIdx.x", "src", "dst", "A_Tile", "a_tile",
    }  # fmt: skip


def test_a_text_ends_its_last_line():
    kernel = of(COPY)
    assert emit(kernel) == "".join(f"{line.text}\n" for line in printed(kernel))


def test_functions_of_several_kernels_have_no_name_of_any_of_them():
    ring = Ring("ring", 2, ("s",), bytes=64, consumers=1)
    buffers = (local("s", (4, 4), SH),)
    first = of(Acquire("ring", Side.FULL, as_expr(0)), COPY, buffers=buffers, rings=(ring,))
    second = attrs.evolve(of(For(Var("mbarrier_wait", 0, 3), as_expr(4), (COPY,))), name="second")
    for kernels in ((first, second), (second, first)):
        assert "mbarrier_wait2(ring_full" in emit(*kernels)
    assert "mbarrier_wait(ring_full" in emit(first)


def test_whole_warps():
    kernel = of(COPY, threads=256)
    thread = kernel.thread
    for divisor, whole in ((32, True), (64, True), (128, True), (31, False), (33, False), (16, False), (48, False), (1, False)):
        assert _of_warp(FloorDiv(thread, as_expr(divisor)), kernel) is whole, divisor
    assert (
        not _of_warp(FloorDiv(kernel.block, Const(32)), kernel)
        and not _of_warp(Mod(thread, Const(32)), kernel)
        and not _of_warp(thread, kernel)
    )
    assert not _of_warp(FloorDiv(thread, N), kernel)


def test_arrays_are_declared_as_they_are_aligned_and_used():
    held, shared = local("r", (255, 1), RF), local("s", (4, 4), SH, align=4)
    fill = execution(MOVE, Move(1, 1)(GL, RF)(Thread), COPY.accesses[0], access("r", (0, 0), write=True))
    keep = execution(MOVE, Move(1, 1)(GL, SH)(Thread), COPY.accesses[0], access("s", (0, 0), write=True))
    text = emit(of(fill, keep, buffers=(held, shared)))
    assert "[[maybe_unused]] float r[255];  // of 255 x 1\n" in text and "__shared__ __align__(16) float s[16];" in text
    text = emit(of(fill, buffers=(local("r", (256, 1), RF),)))
    assert "[[maybe_unused]] float r[256];  // of 256 x 1; too many for registers: lives in local memory" in text


def test_a_coordinate_alone_needs_its_names():
    places = local("m", (1 << 30, 1), INDEX, int32)
    fill = execution(MOVE, Move(1, 1)(GL, GL)(Thread), access("m", (THREAD * 3, 0)), access("dst", (0, 0), write=True))
    text = emit(of(fill, buffers=(places,)))
    assert "const int thread = threadIdx.x;" in text and "static_cast<float>(" in text


# ---------------------------------------------------------------------------------------------- addresses


def addresses(*body, **fields):
    kernel = kernel_of(Move(64, 1)(GL, GL), body, **fields)
    return Addresses(kernel, Names(set())), kernel


def test_what_belongs_to_a_thread():
    found, kernel = addresses(COPY)
    k = Var("k", 0, 9)
    thread, block = kernel.thread, kernel.block
    assert found.split(thread * block + k) == (thread * block, k), "all that is known in front of the loops"
    assert found.split(thread * 4 + k * 2 + 3) == (thread * 4, k * 2 + 3) and found.split(k) == (as_expr(0), k)
    assert found.split(thread * k) == (as_expr(0), thread * k) and found.split(thread // 4) == (thread // 4, as_expr(0))
    found, kernel = addresses(COPY, symbols=(N,))
    assert found.split(N * k + N) == (as_expr(0), N * k + N), "sizes alone are a part of what a loop adds"
    assert found.split(N * kernel.thread + N) == (N * kernel.thread, N)


def test_names_know_what_their_values_are():
    found, _ = addresses(COPY)
    name = found._name("stage", Var("x", 0, 7) * 4 + 4)
    assert (name.name, name.low, name.high, name.factor) == ("stage", 4, 32, 4)


def test_parities_are_counted_from_round_to_round():
    k = Var("k", 0, 9)
    ring = Ring("ring", 3, ("s",), bytes=64, consumers=1)
    loop = For(k, as_expr(10), (Acquire("ring", Side.FULL, k), COPY), period=3)
    kernel = of(loop, buffers=(local("s", (4, 4), SH),), rings=(ring,))
    found = Addresses(kernel, Names(set()))
    found.enter(loop, False)
    assert str(found.parity(k, 3, 0)) == "k_parity" and str(found.parity(k, 3, 0)) == "k_parity"
    lines = found.leave()
    assert [str(line) for line in lines.before] == ["int k_stage = 0;", "int k_parity = 0;"] and lines.top == ()
    assert texts(*lines.end) == ["if (++k_stage == 3) {", "  k_stage = 0;", "  k_parity ^= 1;", "}"]


# ---------------------------------------------------------------------------------------------- makers


def test_whose_lines_they_are():
    first, second = (attrs.evolve(COPY, path=("tile", name)) for name in ("a", "b"))
    nobody = attrs.evolve(COPY, path=None)
    k = Var("k", 0, 9)
    ring, other = Ring("ring", 2, ("s",)), Ring("other", 2, ("s",))
    filling = attrs.evolve(nobody, ring="other")
    kernel = of(first, second, filling, rings=(ring, other), buffers=(local("s", (4, 4), SH),), makers={"k": ("loop",), "s": ("load",)})
    makers = Makers(kernel)
    a, b = ("tile", "a"), ("tile", "b")
    assert makers.of(first) == (a,) and makers.of(nobody) == () and makers.of(Let(k, as_expr(3))) == (("loop",),)
    assert (
        makers.of(For(Var("j", 0, 9), as_expr(9), (first, nobody, second))) == (("tile",),)
        and makers.of(For(Var("j", 0, 9), as_expr(9), (nobody,))) == ()
    )
    assert makers.of(For(Var("j", 0, 9), as_expr(9), (first,))) == (a,) and makers.of(For(k, as_expr(9), (first,))) == (("loop",),)
    orders = (
        Dependence("s", first, second, (True, False)),
        Dependence("s", nobody, None, (True, False)),
        Dependence("s", second, first, (True, False)),
    )
    for one in (Barrier(ir.BLOCK_SCOPE, orders=orders), Wait(0, orders=orders)):
        assert makers.of(one) == (a, b)
    assert makers.of(Acquire("ring", Side.FULL, k)) == makers.of(Acquire("other", Side.FULL, k)) == (("load",),)
    body = (Comment("why"), first, second, Commit(), nobody, Comment("last"))
    assert makers.of_list(body, 0, 1) == (a,) and makers.of_list(body, 1, 3) == (a, b) and makers.of_list(body, 3, 4) == (b,)
    assert makers.of_list(body, 4, 5) == () and makers.of_list(body, 5, 6) == () and makers.of_list(body, 0, 3) == (a, b)
    assert makers.of_list((Comment("why"), nobody, first), 0, 2) == () and makers.of_list((Comment("x"), nobody, second), 0, 1) == (b,)
    filled = Makers(attrs.evolve(kernel, body=(attrs.evolve(first, ring="ring"), attrs.evolve(nobody, ring="ring"), second)))
    assert filled.of_ring("ring") == (a,) and filled.of_ring("other") == (("load",),)


# ---------------------------------------------------------------------------------------------- what instructions ask for


def counted(terms, number, conditions=(TRUE,), dtype=float32, most=9):
    """A sum of coordinates in float: `terms` by position, `number` beside them."""
    turn, x = Var("turn", 0, 2), Var("x", 0, most)
    place = local("m", (1 << 30, 1), INDEX, int32)
    value = access("m", (x + turn * 2, 0), (2, 1))
    fill = execution(MOVE, Move(2, 1)(GL, GL)(Thread), value, access("dst", (0, 0), (2, 1), write=True))
    kernel = guard(kernel_of(Move(16, 1)(GL, GL), (For(turn, as_expr(3), (fill,), unroll=True),), place))
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
    k, inside, outside = Var("k", 0, 9), (COPY,), (Comment("x"), COPY)
    branch = Branch(less(k, 5), inside, outside)
    assert branch.rebuilt((outside, inside)) == Branch(less(k, 5), outside, inside)
    assert branch.substitute({k: as_expr(7)}).whole == less(as_expr(7), 5) and branch.expressions == (less(k, 5),)
    assert equal(k, 3) != branch.whole
