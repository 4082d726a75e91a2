"""Graphene's notation for values of the compiler: printed text reads back as an equal value, and Table 2's texts name instructions."""

import math
import os
import random
import re

import attrs
import pytest
from generator import Drawn
from problems import target_of

import fireiron
from fireiron import *
from fireiron.errors import ArgumentError, FireironError, LayoutError
from fireiron.language import library
from fireiron.language.execution import Execution, execution_of
from fireiron.language.statement import STARTERS, parse_spec, parse_statement, spec_symbols, spec_text, statement_text
from fireiron.spec import Kind, Parameter
from fireiron.values.expr import Const, Var, assume_positive
from fireiron.values.layout import Layout, Swizzle, make_layout
from fireiron.values.machine import DTYPES, FRAGMENTS, LEVELS, MEMORIES, DType, Memory
from fireiron.values.notation import (
    indices,
    level_text,
    parse_level,
    parse_tensor,
    parse_threads,
    parse_view,
    read_expression,
    reshaped,
    symbols_of,
    tensor_text,
    threads_text,
    view_text,
)
from fireiron.values.tensor import Dim, Fixed, Mode, Tensor, View, whole_view

SCALE = float(os.environ.get("FIREIRON_FUZZ", "1"))
SEED = 20230325
SM_90 = next(one for one in ARCHITECTURES if one.name == "sm_90")


def draws(name, count):
    print(f"{name}: seed {SEED}, {int(count * SCALE)} draws")
    for number in range(int(count * SCALE)):
        yield random.Random(f"{SEED}/{name}/{number}")


# ------------------------------------------------------------------------------------------------------------ printing


def test_as_the_paper_prints():
    a = Tensor("A", (Const(16), Const(16)), float16, SH, ColMajor)
    assert tensor_text(a) == view_text(whole_view(a)) == "%A:[16,16]:[1,16].fp16.SH"
    assert tensor_text(attrs.evolve(a, layout=RowMajor)) == "%A:[16,16].fp16.SH", "strides are omitted where they are row-major"
    assert tensor_text(attrs.evolve(a, swizzle=Swizzle(3, 3, 3))) == "%A:Sw<3,3,3> o [16,16]:[1,16].fp16.SH"
    assert tensor_text(attrs.evolve(a, shape=(sym("M"), sym("N")))) == "%A:[M,N]:[1,M].fp16.SH"
    assert [level_text(one) for one in LEVELS] == [
        "#kernel:[_].block", "#block:[_].thread", "#warpgroup:[128].thread", "#warp:[32].thread", "#quadpair:[4,2]:[1,16].thread",
        "#thread:[1].thread", "#lane:[1].thread",
    ]  # fmt: skip
    text = "%dst:[16,8]:[1,16].fp32.RF <- Move<<<[1].block, #warp:[32].thread>>>(%src:[16,8]:[1,16].fp32.SH)"
    assert spec_text(Move(16, 8)(SH, RF)(Warp)) == text


def test_str_of_values():
    """Views and tensors print in the notation; if no text states everything, they print as Python."""
    a = Tensor("A", (Const(16), Const(16)), float16, SH, ColMajor)
    tiled = whole_view(a).tile(Layout(4, 2), 8)
    assert str(a) == str(whole_view(a)) == "%A:[16,16]:[1,16].fp16.SH"
    assert str(tiled[Var("i", 0, 3), 1]) == "%A:[16,16]:[1,16].fp16.SH[4:2 @2:1=i % 2 @2:8=i // 2, 8:1 @2:8=1]"
    assert str(tiled) == "%A:[(2,2),2]:[(1,8),128].[4,8]:[2,16].fp16.SH"
    strange = attrs.evolve(a, name="a b")
    assert str(strange) == repr(strange) and str(whole_view(strange)) == repr(whole_view(strange))
    for value in (a, whole_view(a), tiled[1, 1]):
        assert eval(repr(value), vars(fireiron)) == value
    assert [str(level) for level in LEVELS] == [level.name for level in LEVELS], "a level is its name in messages; level_text says the rest"


@pytest.mark.parametrize("text", [
    "%A:[16,16]:[1,16].fp16.SH", "%A:[16,16 : 1,16].fp16.SH", "%A:[(16,16):(1,16)].fp16.SH", "A:[(16,16):(1,16)] . fp16 . SH",
    "%A: [16, 16] : [1, 16].float16.SH",
])  # fmt: skip
def test_forms_of_one_tensor(text):
    assert parse_tensor(text) == Tensor("A", (Const(16), Const(16)), float16, SH, ColMajor)


def test_omitted_strides_are_those_of_the_row_major_tensor():
    assert parse_tensor("%A:[16,16].fp16.SH").layout == RowMajor
    assert parse_tensor("[2,2].[8,8].fp16.SH").layout == parse_tensor("[2,2 : 128,8].[8,8 : 16,1].fp16.SH").layout
    assert parse_tensor("[8,1].[16,1].[8,1024].fp16.GL").storage().address((8 * 16 + 3, 5)) == (8 * 16 + 3) * 1024 + 5
    assert parse_threads("[4].[8].thread") == parse_threads("[4:8].[8:1].thread")
    hierarchical = parse_tensor("[4,(2,4)].fp32")
    assert [hierarchical.storage().address((1, j)) for j in range(8)] == [8 + j % 2 * 4 + j // 2 for j in range(8)]


def test_names_of_types_and_memories():
    short = {"fp64": float64, "fp32": float32, "fp16": float16, "bf16": bfloat16, "i32": int32, "i8": int8, "tf32": tf32}
    for name, dtype in short.items():
        assert parse_tensor(f"[4].{name}.GL").dtype == dtype and tensor_text(parse_tensor(f"[4].{dtype.name}.GL")) == f"[4].{name}.GL"
    for dtype in DTYPES:
        for memory in (*MEMORIES, *FRAGMENTS):
            tensor = Tensor("x", (Const(4),), dtype, memory, ColMajor)
            assert parse_tensor(tensor_text(tensor)) == tensor
    far = Memory("DSM", 1, "block", "distributed shared memory")
    wide = DType("int16", 16, "int", "short", "int16")
    tensor = Tensor("x", (Const(4),), wide, far, ColMajor)
    assert tensor_text(tensor) == "%x:[4].int16.DSM" and parse_tensor("%x:[4].int16.DSM", {"DSM": far, "int16": wide}) == tensor


def test_information_beyond_strides_is_in_braces():
    """Different values with equal addresses have different texts."""
    padded = Tensor("A", (Const(16), Const(8)), float32, SH, ColMajor, pad=4)
    same = [
        padded, attrs.evolve(padded, pad=0, layout=ColMajor(20)), attrs.evolve(padded, pad=0, layout=Layout((16, 8), (1, 20))),
        attrs.evolve(padded, align=128), attrs.evolve(padded, copies=4), attrs.evolve(padded, reuse=True),
        attrs.evolve(padded, must_reuse=False), attrs.evolve(padded, owner="accumulates"), attrs.evolve(padded, pad=0, free=True),
    ]  # fmt: skip
    texts = [tensor_text(one) for one in same]
    assert texts[:3] == [
        "%A:[16,8]:[1,20].fp32.SH{pad=4}", "%A:[16,8]:[1,20].fp32.SH", "%A:[16,8]:[1,20].fp32.SH{layout=(16,8):(1,20)}",
    ]  # fmt: skip
    assert len(set(texts)) == len(same) and [parse_tensor(text) for text in texts] == same
    with pytest.raises(LayoutError, match="does not have the strides"):
        parse_tensor("%A:[16,8]:[1,20].fp32.SH{layout=col}")


# -------------------------------------------------------------------------------------------------------------- library and random
# strategies


def values_of(program):
    specs = [node.spec for node in program.tree.nodes()]
    return specs, {view for spec in specs for view in spec.operands.values()}


def check_round_trips(program):
    specs, views = values_of(program)
    for view in views:
        assert parse_view(view_text(view), symbols_of(view)) == view
    for spec in specs:
        assert parse_spec(spec_text(spec), spec_symbols(spec)) == spec
    for node in program.tree.nodes():
        execution = execution_of(node, program.grown.whole, program.grown.threads)
        text = statement_text(node.spec, execution)
        assert parse_statement(text, spec_symbols(node.spec)) == (node.spec, execution) and ".block, #" in text
        assert node.spec.level not in (Kernel, Block) or (execution.threads[0].size() == program.grown.threads and "[_].thread" not in text)
    return len(views)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", library.names())
def test_round_trips_in_the_library(name):
    assert check_round_trips(library.bind(library.find(name)).program(target_of(name, "sm_80"))) > 5


@pytest.mark.parametrize("part", range(4))
def test_round_trips_in_random_strategies(part):
    checked = 0
    for seed in range(12):
        try:
            drawn = Drawn(f"notation {part} {seed}")
            program = drawn.strategy(drawn.spec).program(drawn.target)
            assert program.tree
        except FireironError:
            continue
        checked += check_round_trips(program)
    assert checked > 40


M, N, LD = sym("M", multiple_of=8), sym("N"), sym("ld", low=64)


def draw_tensor(rng):
    rank = rng.choice((0, 1, 2, 2, 2, 3))
    shape = tuple(Const(rng.choice((1, 2, 4, 6, 8))) if rng.random() < 0.8 else rng.choice((M, N, (N + 7) // 8)) for _ in range(rank))
    order = rng.choice((ColMajor, RowMajor))
    layout = rng.choice((order, order, order(rng.randint(8, 20)), order(LD))) if rank > 1 else order
    if rank and rng.random() < 0.4 and all(isinstance(size, Const) for size in shape):
        layout = draw_layout(rng, [size.value for size in shape])
    options = {"pad": rng.choice((0, 4)), "align": rng.choice((16, 128)), "copies": rng.choice((1, 1, 4)), "reuse": rng.random() < 0.2}
    options |= {"must_reuse": rng.random() < 0.9, "owner": rng.choice(("reads", "accumulates"))}
    swizzle = rng.choice((None, None, Swizzle(2, 3, 3), Swizzle(1, 0, -2)))
    return Tensor(rng.choice(("A", "a_sh", "")), shape, rng.choice(DTYPES), rng.choice(MEMORIES), layout, swizzle=swizzle, **options)


def draw_layout(rng, sizes):
    """A layout of these sizes, with several strides in some dimensions."""
    leaves = [[2, size // 2] if size % 2 == 0 and rng.random() < 0.5 else [size] for size in sizes]
    slots = [(dim, place) for dim, part in enumerate(leaves) for place in range(len(part))]
    strides, current = [[0] * len(part) for part in leaves], 1
    for dim, place in rng.sample(slots, len(slots)):
        strides[dim][place] = current
        current *= leaves[dim][place] + rng.choice((0, 0, 1))
    fold = [[part[0] if len(part) == 1 else tuple(part) for part in tree] for tree in (leaves, strides)]
    if len(sizes) == 1 and isinstance(fold[0][0], int) and rng.random() < 0.5:
        return Layout(fold[0][0], fold[1][0])
    return Layout(*map(tuple, fold))


def draw_view(rng, tensor):
    numerals, axes = [], []
    for axis, size in enumerate(tensor.shape):
        if rng.random() < 0.4:
            numerals.append(Dim((Mode(size, 1),)))
            axes.append(axis)
            continue
        index = rng.choice((Var("block", 0, 7), Var("k", 0, 7), Var("warp", 0, 63) // 8, Var("lane", 0, 31) % 4 * 2, Const(0), Const(3)))
        fixed = tuple(Fixed(rng.choice((8, N)), rng.choice((1, 4, N)), rng.random() < 0.5, index) for _ in range(rng.randint(0, 2)))
        modes = tuple(Mode(rng.choice((2, 4, (N + 3) // 4)), rng.choice((1, 8, 32))) for _ in range(rng.randint(0, 2)))
        own = bool(modes) or not fixed or rng.random() < 0.5
        axes += [axis] * own
        numerals.append(Dim(modes, rng.choice((None, None, size, N - 1)), fixed))
    copy = rng.choice((Const(0), Const(0), Var("owner", 0, 3), Var("owner", 0, 3) // 2))
    if rng.random() < 0.2:
        rng.shuffle(axes)
        return View(tensor, tuple(numerals), copy, tuple(axes))
    return View(tensor, tuple(numerals), copy, None if len(axes) == len(numerals) else tuple(axes))


def test_drawn_tensors_and_views_are_read_back():
    texts, values = set(), set()
    for rng in draws("tensors", 600):
        tensor = draw_tensor(rng)
        view = draw_view(rng, tensor)
        assert parse_tensor(tensor_text(tensor), symbols_of(tensor)) == tensor
        text = view_text(view)
        assert parse_view(text, symbols_of(view)) == view and view_text(parse_view(text, symbols_of(view))) == text
        texts.add(text)
        values.add(view)
    assert len(texts) == len(values) > 400 * min(SCALE, 1), "other values have other texts"


def test_another_text_is_another_value():
    """Each integer of a text matters: increased by one, the text reads as another value or is refused."""
    refused = checked = 0
    for rng in draws("changes", 200):
        view = draw_view(rng, draw_tensor(rng))
        text, symbols = view_text(view), symbols_of(view)
        for match in re.finditer(r"(?<![\w.])[0-9]+(?!\w)", text):
            other = f"{text[: match.start()]}{int(match[0]) + 1}{text[match.end() :]}"
            checked += 1
            try:
                assert parse_view(other, symbols) != view, (text, other)
            except FireironError:
                refused += 1
    assert checked > 2 * refused > 0


def test_drawn_layouts_are_levels():
    for rng in draws("levels", 200):
        sizes = [2 ** rng.randint(0, 2) for _ in range(rng.randint(1, 3))]
        strides, current = [0] * len(sizes), 1
        for place in rng.sample(range(len(sizes)), len(sizes)):
            strides[place] = current
            current *= sizes[place] * rng.choice((1, 2))
        layout = Layout(tuple(sizes), tuple(strides)) if len(sizes) > 1 or rng.random() < 0.5 else Layout(sizes[0], strides[0])
        level = Level("Mine", Warpgroup, layout) if 128 % current == 0 else Level("Mine", Block, layout)
        assert parse_level(level_text(level), symbols_of(level)) == level
        shapes = (layout, *([Layout(4, current)] if rng.random() < 0.5 else []))
        parsed = parse_threads(threads_text(shapes, "g"))
        assert [shape.modes for shape in parsed] == [shape.modes for shape in shapes]


def test_specs_of_all_kinds_are_read_back():
    x = [whole_view(Tensor(name, (Const(8), Const(4)), float16, RF, ColMajor)) for name in "xyz"]
    k = Var("k", 0, 7)
    three = whole_view(Tensor("s", (Const(8), Const(4), Const(2)), float16, RF, ColMajor))
    scale = Kind("Scale", "y[i,j] = {by} * x[i,j]", (Parameter("by"),)).starter
    specs = [
        Move(16)(GL, GL)(Kernel), Move(4, 2, 3)(GL, RF)(Thread), Init(8, value=float("-inf"))(RF)(Thread), Init(4, 4, value=0.5)(SH)(Block),
        Init(2, 2, 2, value=float("inf"))(RF)(Lane), Init(4, value=-(2.0**-20))(RF)(Thread), Reduction(8, 4, by="max", axes=0)(SH, RF)(Warp),
        Reduction(8, 4, 2)(SH, RF)(Warp), UnaryPointwise("exp", 8)(RF, RF)(Thread), BinaryPointwise("/", 8)(RF, RF, RF)(Thread),
        MatMul(2, 8, 8, 4, signature="bmk,bkn->bmn")(GL, GL, GL)(Kernel), AtomicAdd(8)(RF, GL)(Thread), Allocate(8)(SH)(Block),
        MatMul(8, 4, 2, dtype=float16, c_dtype=float32)(SH, RF, RF)(Warp), MatMul(8, 4, 2, accumulator=float32, accumulate=k > 0)(SH, SH, RF)(Lane),
        Move(M, N, src=RowMajor)(GL, GL)(Kernel), Init(8, 4, value=3)(RF)(Thread), Init(8, 4)(RF)(Thread),
        Reduction.on(Warp, three, x[0]), UnaryPointwise.on(Thread, *x[:2], operation="relu"), BinaryPointwise.on(Thread, *x, operation="-"),
        AtomicAdd(8, 4)(RF, GL)(Thread), Pointwise.on(Warp, *x, formula="z[i,j] = x[i,j] * y[i,j] + 2"), Allocate(8, 4)(SH)(Block),
        AtomicMax(8)(RF, GL)(Thread), AtomicMin(8, 4)(RF, GL)(Thread), Scan(4, 8, by="cummax")(RF, RF)(Warp),
        LinearRecurrence(4, 8)(RF, RF, RF)(Warp), TilePrefix(4, 1, by="cummin")(SH, GL, SH)(Block), StatePrefix(4, 1)(SH, SH, GL, GL, SH)(Block),
        SparseMatMul(16, 8, 32)(GL, GL, GL, GL)(Kernel),
        *(one.on(Warp, *x[:2], **given, width=4) for one, given in ((ShflIdx, {"lane": 3}), (ShflUp, {"delta": 1}), (ShflDown, {"delta": 2}))),
        Shfl.on(Warp, x[0], x[1], mask=1), Move.on(QuadPair, *x[:2], names=("i", "j")), scale(3, 64, 64)(GL, GL)(Kernel),
    ]  # fmt: skip
    assert {spec.kind for spec in specs} >= {starter.kind for starter in STARTERS}
    for spec in specs:
        assert parse_spec(spec_text(spec), spec_symbols(spec)) == spec
    texts = [spec_text(one) for one in specs if one.fills]
    assert [re.search("Init(.*?)<<<", text)[1] for text in texts] == ["<-inf>", "<0.5>", "<inf>", "<-9.5367431640625e-07>", "<3>", ""]
    one_part = MatMul(8, 4, 2)(RF, RF, RF)(Thread).with_options(in_parts=True)
    assert spec_text(one_part).endswith("{in_parts}") and parse_spec(spec_text(one_part)) == one_part


# ------------------------------------------------------------------------------------------------------------------------ table 2


def matching(spec):
    return [one.name for one in INSTRUCTIONS if not one.mismatches(spec, SM_90)]


@pytest.mark.parametrize(("text", "instruction"), [
    ("[].fp32.RF <- Move<<<[1].thread>>>([].fp32.GL)", "Move"),
    ("[8].fp16.RF <- Move<<<[1].thread>>>([8].fp16.GL)", "Move"),
    ("[4].fp32.SH <- Move<<<[1].thread>>>([4].fp32.RF)", "Move"),
    ("[].fp16.RF <- BinaryPW<*><<<[1].thread>>>([].fp16.RF, [].fp16.RF)", "Pointwise"),
    ("[2].fp16.RF <- BinaryPW<+><<<[1].thread>>>([2].fp16.RF, [2].fp16.RF)", "Pointwise2"),
    ("[].fp16.RF <- MatMul<<<[1].thread>>>([].fp16.RF, [].fp16.RF)", "HFMA"),
    ("[2].fp16.RF <- MatMul<<<[1].thread>>>([2].fp16.RF, [].fp16.RF)", "HFMA2"),
    ("[].fp32.RF <- MatMul<<<[1].thread>>>([].fp32.RF, [].fp32.RF)", "FFMA"),
])  # fmt: skip
def test_rows_of_one_thread(text, instruction):
    """Rows 1-3 and 5-9 of Table 2. In row 8 the scalar factor is written once; the paper writes the pair to which it is duplicated."""
    assert matching(parse_spec(text))[:1] == [instruction]


def size_of(text):
    return math.prod(size.low for size in parse_tensor(text).shape)


@pytest.mark.parametrize(("threads", "a", "b", "c", "instruction"), [
    ("[(4,2):(1,16)].thread", "[4,1].fp16.RF", "[1,4].fp16.RF", "[2,4].fp32.RF", "HMMA_884_F32_TN"),
    ("[32].thread", "[2,2].[1,2].fp16.RF", "[2,1].[2,1].fp16.RF", "[2,1].[1,2].fp32.RF", "HMMA_16816_F32"),
])  # fmt: skip
def test_rows_of_matrix_instructions(threads, a, b, c, instruction):
    """Rows 10 and 11: the threads of the group own all of A, B and C, which leaves one size for each dimension; `row.col`: B is
    column-major.
    """
    group = parse_level(threads)
    mk, kn, mn = (size_of(text) * group.threads for text in (a, b, c))
    m, n, k = (math.isqrt(number) for number in (mk * mn // kn, kn * mn // mk, mk * kn // mn))
    assert (m * k, k * n, m * n) == (mk, kn, mn)
    spec = parse_spec(f"[{m},{n}].fp32.RF <- MatMul<<<{threads}>>>([{m},{k}].fp16.RF, [{k},{n}]:[1,{k}].fp16.RF)")
    assert matching(spec)[0] == instruction
    (mma,) = [one for one in INSTRUCTIONS if one.name == instruction]
    maps = mma.maps()
    assert [maps[name].count for name in "ABC"] == [size_of(text) for text in (a, b, c)]
    assert [maps[name].tile for name in "ABC"] == [(m, k), (k, n), (m, n)]
    assert [parse_tensor(text).dtype for text in (a, b, c)] == [mma.factors["A"], mma.factors["B"], mma.result]


def test_row_of_ldmatrix():
    """Row 4: each thread names a row [1,8]; its registers are [2,2] tiles [1,2], in rows and columns of the group's tile."""
    (ldmatrix,) = [one for one in INSTRUCTIONS if one.name == "LDMATRIX_16x16_ROW"]
    spec = parse_spec("[16,16].fp16.RF <- Move<<<[32].thread>>>([16,16].fp16.SH)")
    assert ldmatrix.name in matching(spec)
    row, registers = parse_tensor("[1,8].fp16.SH"), parse_tensor("[2,2].[1,2].fp16.RF")
    for map_, text in ((ldmatrix.source, row), (ldmatrix.target, registers)):
        rows, columns = zip(*(map_.coordinate(5, value) for value in range(map_.count)), strict=True)
        assert [len(set(rows)), len(set(columns))] == [size.low for size in text.shape] and map_.count == size_of(tensor_text(text))
    with pytest.raises(ArgumentError, match="elements along m"):
        parse_spec("[2,2].[1,2].fp16.RF <- Move<<<[32].thread>>>([1,8].fp16.SH)")


# -------------------------------------------------------------------------------------------------------- definitions and refusals


def test_names_refer_to_definitions():
    """Figure 1d's statement, and Figure 8's last one."""
    figure = """
        %1:[16,16].fp16.SH
        %2:[16,16].fp16.RF
        #3:[1].block
        #4:[32].thread
        %2 <- Move <<<#3, #4>>> (%1)
    """
    assert parse_spec(figure) == parse_spec("%2:[16,16].fp16.RF <- Move<<<#warp:[32].thread>>>(%1:[16,16].fp16.SH)")
    leaf = """
        #21:[].block
        #22:[].thread
        %18:[].fp16.RF
        %19:[].fp16.RF
        %20:[].fp16.RF
        %20 <- MatMul <<<#21, #22>>> (%18, %19)
    """
    assert parse_spec(leaf).level == Thread and matching(parse_spec(leaf)) == ["HFMA"]
    row = "%7:[2,2].[8,8].fp16.SH\n#4:[32].thread\n%9:[8,8].fp16.RF\n%9 <- Move<<<#4>>>(%7[@i, 1])"
    (source, _) = parse_spec(row, {"i": Var("i", 0, 1)}).views
    assert [str(dim.base) for dim in source.dims] == ["i * 8", "8"] and [size.value for size in source.shape] == [8, 8]
    kernel = parse_spec("[M,N].fp32 <- Move<<<[_].block, [_].thread>>>([M,N].fp32)", {"M": M, "N": N})
    assert kernel.level == Kernel and kernel.sizes == (M, N)


FIGURE_8 = """
    %1:[1024,1024]:[1,1024].fp16.GL
    %2:[1024,1024]:[1,1024].fp16.GL
    %3:[1024,1024]:[1,1024].fp16.GL
    #4:[8,8]:[1,8].block
    #5:[16,16]:[1,16].thread
    %3 <- MatMul <<<#4, #5>>> (%1, %2)
"""


def test_the_outer_spec_of_figure_8():
    """Its blocks and threads are those to which the strategy assigns tiles, in its order."""
    spec, execution = parse_statement(FIGURE_8)
    program = library.find("naive").strategy(spec).program("sm_90")
    assert spec == MatMul.on(Kernel, *spec.views) and execution == execution_of(program.tree, program.grown.whole, program.grown.threads)
    text = statement_text(spec, execution)
    assert "<<<#kernel:[8,8]:[1,8].block, #block:[16,16]:[1,16].thread>>>" in text and parse_statement(text) == (spec, execution)
    block = next(node for node in program.tree.nodes() if node.spec.level == Block)
    inner = execution_of(block, program.grown.whole, program.grown.threads)
    assert inner == Execution(None, execution.threads) and "<<<[1].block, #block:[16,16]:[1,16].thread>>>" in statement_text(
        block.spec, inner
    )


@pytest.mark.parametrize(("groups", "level", "execution"), [
    ("[_].block, [_].thread", Kernel, Execution()), ("[1].block, [_].thread", Block, Execution()), ("[].block, [].thread", Thread, Execution()),
    ("[4].block", Kernel, Execution((Layout((4,), (1,)),))), ("[1].block", Block, Execution()), ("[1].block, [32].thread", Warp, Execution()),
    ("[1].block, #block:[32].thread", Block, Execution(None, (Layout((32,), (1,)),))),
    ("[1].block, [48].thread", Block, Execution(None, (Layout((48,), (1,)),))),
    ("[1].block, [2,2]:[16,8].[8]:[1].thread", Warp, Execution(None, (Layout((2, 2), (16, 8)), Layout((8,), (1,))))),
    ("[2,3].block, [4].[8].thread", Kernel, Execution((Layout((2, 3), (3, 1)),), (Layout((4,), (8,)), Layout((8,), (1,))))),
    ("#kernel:[1,1].block, [_].thread", Kernel, Execution((Layout((1, 1), (1, 1)),))),
    ("[1].block, #quadpair:[(4,2):(1,16)].thread", QuadPair, Execution()),
])  # fmt: skip
def test_executions(groups, level, execution):
    parsed = parse_statement(f"[64].fp32.GL <- Init<<<{groups}>>>()")
    assert (parsed[0].level, parsed[1]) == (level, execution)
    assert parse_statement(statement_text(*parsed)) == parsed


def test_user_defined_levels_come_first():
    half, other = Level("Half", Warp, Layout(16)), Level("Mine", Warpgroup, Layout(32), "warp")
    assert parse_level("#half:[16].thread", {"Half": half}) == parse_level("[16].thread", {"Half": half}) == half
    assert parse_level(level_text(other), symbols_of(other)) == other and parse_level(level_text(other)) == Warp
    assert parse_level("#block:[_].thread") == Block and parse_level("#kernel:[_].block") == Kernel


def test_optional_sizes_round_trip():
    m = Var("m", 0, 10, 1, True)
    assert (
        parse_tensor("[m].fp32", {"m": m}).shape == (assume_positive(m),)
        and read_expression("assume_positive(m) * 4", {"m": m}) == assume_positive(m) * 4
    )
    with pytest.raises(LayoutError, match="has no text for this value"):
        tensor_text(Tensor("A", (m,), float32, GL, ColMajor))
    tensor = Tensor("A", (assume_positive(m), Const(4)), float32, GL, RowMajor)
    assert parse_tensor(tensor_text(tensor), symbols_of(tensor)) == tensor


def test_expressions_are_all_that_is_evaluated():
    thread = Var("thread", 0, 1023)
    assert read_expression("thread // 4 % 8 ^ 3 & 5 | 2", {"thread": thread}) == thread // 4 % 8 ^ 3 & 5 | 2
    for text in (
        "__import__('os')",
        "thread.low",
        "thread ** 2",
        "thread if 1 else 2",
        "[1]",
        "1.5",
        "True",
        "'a'",
        "all_of(1)",
        "minimum(1)",
        "",
    ):
        with pytest.raises(LayoutError):
            read_expression(text, {"thread": thread})


@pytest.mark.sampled(1)
@pytest.mark.parametrize("text", [
    "", "[4]", "[4].", "fp32", "[4].fp32.sh", "[4].FP32", "[4].foo.RF", "%A:[4].thread", "#A:[4].fp32", "[4:1:1].fp32", "[4,8:1].fp32",
    "[4:1]:[1].fp32", "[0].fp32", "[-4].fp32", "[4:-1].fp32", "[4.5].fp32", "[M].fp32", "[].[4:1].fp32", "[4:1].[].fp32", "[4:1]fp32",
    "[4:1].fp32.SH.SH", "[2,2].[8].fp16", "[2:1].[8].fp16", "Sw<3,0,1> o [8:1].fp32", "[(4,8:1,4].fp32", "[4].fp32.SH{pad}", "[4].fp32.SH{pad=x}",
    "[4].fp32.SH{wide}", "[4].fp32.SH{layout=top}", "[4].fp32.SH[2:1, _]", "[4].fp32.SH[2]", "[4].fp32.SH[2:1 #2:2]", "[4].fp32.SH[2:1 #2:2=x]",
    "[4,8].fp32.SH[_, _]{order=1}", "[4,8].fp32.SH[_, _]{order=1 1}", "[4,8].fp32.SH[_, _]{order=1 x}", "[4,8].fp32.SH[_, _]{wide=1}",
    "[4].fp32.SH[_ < 2 < 3]", "[4].fp32.SH{copy=1}", "[4,(2,4)].fp32[(2,2):1, _]",
    "[4].fp32.SH[_][_]", "[2].[4].fp32[0][1][2]", "[2,2].[4,4].fp32[@0, #0]",
])  # fmt: skip
def test_bad_texts(text):
    with pytest.raises(FireironError) as refusal:
        parse_view(text)
    assert len(str(refusal.value)) > 15


@pytest.mark.parametrize("text", [
    "[32].fp32", "%w:[32].thread", "[32].thread.SH", "[33].thread", "#warp:[16].thread", "#half:[16].thread", "[8,8].block", "[4].[8].thread",
    "[32].thread{pad=1}", "#warp:[_].thread",
])  # fmt: skip
def test_bad_groups(text):
    with pytest.raises(FireironError):
        parse_level(text)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("text", [
    "", "%A", "[4] <- Move<<<[1].thread>>>([4].fp32)", "[4].fp32 <- Copy<<<[1].thread>>>([4].fp32)", "[4].fp32 <- Move<<<>>>([4].fp32)",
    "[4].fp32 <- Move<<<[1].thread>>>([8].fp32)", "[4].fp32 <- Move<<<[1].thread>>>([4].fp32, [4].fp32)",
    "[4].fp32, [4].fp32 <- Move<<<[1].thread>>>()", "[4].fp32 <- Move<4><<<[1].thread>>>([4].fp32)",
    "[4].fp32 <- Move<<<[1].thread, [1].block>>>([4].fp32)", "[4].fp32 <- Move<<<[1].block, [1].block>>>([4].fp32)",
    "[4].fp32 <- Move<<<[1].block, #half:[16].thread>>>([4].fp32)", "[4].fp32 <- Init<0.5.5><<<[1].thread>>>()", "[4].fp32 <- Init<nan><<<[1].thread>>>()",
    "[4].fp32 <- Shfl<0.5><<<[32].thread>>>([4].fp32)", "[4].fp32 <- Move<<<[1].block, [1].thread, [1].thread>>>([4].fp32)", "%2 <- Move<<<[1].thread>>>(%1)", "[4].fp32 <- Init<x><<<[1].thread>>>()",
    "[4].fp32 <- Move<<<[1].thread>>>([4].fp32) {fast}", "junk\n[4].fp32 <- Move<<<[1].thread>>>([4].fp32)",
])  # fmt: skip
def test_bad_specs(text):
    with pytest.raises(FireironError):
        parse_spec(text)


@pytest.mark.parametrize("read", [parse_tensor, parse_view, parse_level, parse_threads, parse_spec])
def test_only_texts_are_read(read):
    with pytest.raises(ArgumentError):
        read(3)


def test_values_without_a_text_are_refused():
    block = Var("block", 0, 7)
    tensor = Tensor("A", (Const(64),), float32, GL, ColMajor)
    view = View(tensor, (Dim((), None, (Fixed(8, 8, True, block), Fixed(8, 1, True, Var("block", 0, 3)))),))
    with pytest.raises(LayoutError, match="two values are called block"):
        view_text(view)
    with pytest.raises(LayoutError, match="has no text for this value"):
        tensor_text(attrs.evolve(tensor, name="a b"))
    with pytest.raises(LayoutError, match="has no text for this value"):
        tensor_text(attrs.evolve(tensor, layout=make_layout(Layout(32, 1))))
    with pytest.raises(LayoutError, match="part of a tensor"):
        parse_tensor("[64].fp32[8:1 @8:8=3]")


def test_places_of_threads_are_refused_where_there_is_none():
    for shapes in ("[4,4 : 1,2].thread", "[4:1].[4:2].thread", "[2:3].[3:2].thread"):
        with pytest.raises(LayoutError):
            indices(parse_threads(shapes))
    warp = parse_threads("[4].[8].thread")
    for depth, arrangement in ((2, Layout(4)), (-1, Layout(4)), (0, Layout(8)), (0, Layout((2, 2), (1, 1)))):
        with pytest.raises(LayoutError):
            reshaped(warp, depth, arrangement)


def test_broken_texts_are_refused_by_our_own_errors():
    """A character dropped, doubled or swapped: the text reads as a value, or is refused with a message."""
    texts = ["%A:Sw<2,3,3> o [16,(2,4)]:[1,(16,64)].fp16.SH{pad=4, copies=2}[2:1 #8:2=(w < 3) @1:1=0 < 9, (2,2):(1,4)]{copy=w // 2}",
             "#quadpair:[4:4].[(4,2):(1,16)].thread", "[].fp16.RF <- BinaryPW<*><<<[1].block, [1].thread>>>([].fp16.RF, [].fp16.RF) {names=m n}"]  # fmt: skip
    symbols = {"w": Var("w", 0, 7)}
    refused = 0
    for rng in draws("broken", 600):
        text = rng.choice(texts)
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(len(text))
            text = text[:place] + rng.choice(("", text[place] * 2, rng.choice("[](){}<>:,.=#@%_- 0a\n"))) + text[place + 1 :]
        for read in (parse_view, parse_level, parse_spec):
            try:
                read(text, symbols)
            except FireironError as error:
                assert len(str(error)) > 15
                refused += 1
    assert refused > 1200 * SCALE
