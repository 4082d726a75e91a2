"""Graphene's statements about whole kernels, tested on printed kernels: layouts, tiles, thread groups, atomic specs, Figures 1 and 8."""

import itertools
import re

import numpy as np
import pytest
from problems import integers, library

from fireiron import *
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.ir import execs
from fireiron.language.statement import parse_spec
from fireiron.lower.distribute import accesses_of
from fireiron.sim import simulate
from fireiron.spec import Kind
from fireiron.values.expr import Const

needs_nvrtc = pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")

ROWS = {"A": RowMajor, "B": RowMajor, "C": RowMajor}


def right(program):
    """The program, if the simulator, which reports every race and every access out of bounds, computes NumPy's result."""
    spec, generator = program.spec, np.random.default_rng(3)
    given = {name: integers([size.low for size in spec.operands[name].shape], spec.operands[name].dtype, generator) for name in spec.inputs}
    (output,) = spec.outputs
    np.testing.assert_array_equal(simulate(program.ir, given).outputs[output], spec.reference(*given.values()))
    return program


def used(program):
    """The names of the instructions of a kernel."""
    return {statement.instruction.name for statement, _ in execs(program.ir.body)}


# --------------------------------------------------------------------------------------------------------------- layouts and tiles


ELEMENT = Move.coalesced_copy(1).done()
STAGED = (
    MatMul.tile(32, 32).to(Block).epilog(RF).split(8).load(A, SH, ELEMENT).load(B, SH, ELEMENT)
    .tile(4, 4).to(Thread).split(1).load(A, RF).load(B, RF).tile(1, 1).unroll().done()
)  # fmt: skip
LAYOUTS = {
    "columns": ColMajor, "rows": RowMajor, "padded": ColMajor(36), "strides": Layout((32, 8), (1, 33)),
    "pairs of rows": Layout(((2, 16), 8), ((1, 16), 2)), "both in pairs": Layout(((2, 16), (2, 4)), ((1, 4), (2, 64))),
}  # fmt: skip


def staged(layout):
    spec = MatMul(64, 64, 32)(GL, GL, GL)(Kernel)
    return STAGED.at(Load, A).refine(StorageLayout(layout))(spec).program("sm_80")


def without_indices(text, buffer):
    """The statements of a kernel, regardless of buffer indices, line breaks and braces."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("//")]
    return re.sub(rf"\b{buffer}\[[^\]]*\]", f"{buffer}[]", re.sub(r"[\s{}]+", " ", " ".join(lines)))


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_changes_index_expressions_only(name):
    """Section 3.2: a layout is chosen once, where the tensor is defined; all accesses keep their coordinates."""
    plain, other = staged(LAYOUTS["columns"]), right(staged(LAYOUTS[name]))
    assert without_indices(plain.cuda, "a_sh") == without_indices(other.cuda, "a_sh")
    indices = [set(re.findall(r"\ba_sh\[([^\]]*)\]", program.cuda)) for program in (plain, other)]
    assert len(indices[0]) == 3 and (name == "columns") == (indices[0] == indices[1])
    coordinates = [
        [(access.buffer, access.base, access.modes) for statement, _ in execs(program.ir.body) for access in statement.accesses]
        for program in (plain, other)
    ]
    assert coordinates[0] == coordinates[1]


@pytest.mark.parametrize("orders", list(itertools.product((ColMajor, RowMajor, RowMajor(80)), repeat=2)), ids=str)
@pytest.mark.parametrize("name", ["listing_1", "listing_2", "naive", "maxwell"])
def test_tiles_do_not_ask_for_the_layout(name, orders):
    """Section 3.3: tiles group logically adjacent elements, so every view of the tree has the same digits, for all strides of A and B."""
    a, b = orders
    strategy = library(name).strategy
    trees = [strategy(MatMul(70, 60, 24, **given)(GL, GL, GL)(Kernel)).program("sm_80").tree for given in ({}, {"A": a, "B": b})]
    views = [[view.numerals for node in tree.nodes() for view in node.spec.operands.values()] for tree in trees]
    assert views[0] == views[1] and len(views[0]) > 10
    texts = {node.spec.notation for node in trees[0].nodes()}
    assert texts == {node.spec.notation for node in trees[1].nodes()}


def test_partial_tiles_are_predicated():
    """Section 3.4: 1023 elements by 128 are 8 tiles, and only the last one needs its guard."""
    program = right(Move.tile(128).to(Block).tile(1).to(Thread).done()(Move(1023)(GL, GL)(Kernel)).program())
    assert (program.ir.grid, program.ir.threads) == (Const(8), 128) and "< 1023" in program.cuda
    full_tiles = right(Move.tile(128).to(Block).tile(1).to(Thread).done()(Move(1024)(GL, GL)(Kernel)).program())
    assert full_tiles.ir.grid == Const(8) and "if (" not in full_tiles.cuda


@pytest.mark.parametrize("layout", [Layout((2, 8, 8), (64, 8, 1)), Layout((2, 8, (2, 4)), (64, 1, (8, 16)))], ids=["rows", "hierarchical"])
def test_refinements_act_on_tensors_of_any_rank(layout):
    """Fireiron's verbs on a batch of matrices: two dimensions for the block's tile, and any storage for loads."""
    spec = MatMul(4, 20, 12, 16, signature="bmk,bkn->bmn")(GL, GL, GL)(Kernel)
    chain = MatMul.tile(2, 8, 8).to(Block).split(8).load(A, SH).storage_layout(layout).load(B, SH).tile(1, 2, 2).to(Thread)
    program = right(chain.split(1).tile(1, 1, 1).done()(spec).program("sm_80"))
    stored = program.ir.buffer("a_sh").storage
    assert all(stored.address(place) == layout(*place) for place in np.ndindex(2, 8, 8))


# --------------------------------------------------------------------------------------------------------------- groups of threads


Octet = Level("Octet", Warp, Layout((4, 2), (1, 16)))
Tribe = Level("Tribe", Block, Layout(32))
OctetOfTribe = Level("Octet", Tribe, Layout((4, 2), (1, 16)))
FLOAT16 = {"dtype": float16, "c_dtype": float32} | ROWS


def by_quad_pairs(warp, pair):
    chain = MatMul.tile(32, 32).to(Block).epilog(RF).split(16).load(A, SH).load(B, SH).tile(32, 32).to(warp).tile(16, 16).to(pair)
    chain = chain.tile(8, 8).unroll().split(4).load(A, RF, Move.done()).load(B, RF, Move.done()).done()
    return chain(MatMul(64, 64, 32, **FLOAT16)(GL, GL, GL)(Kernel)).program("sm_70")


def by_warps(warp, _):
    chain = MatMul.tile(64, 64).to(Block).epilog(RF).split(32).load(A, SH).load(B, SH).tile(32, 32).to(warp).split(16)
    chain = chain.load(A, RF, Move.done()).load(B, RF, Move.done()).tile(16, 16).unroll().mma_tile().done()
    return chain(MatMul(64, 64, 64, **FLOAT16)(GL, GL, GL)(Kernel)).program("sm_80")


def by_threads(warp, pair):
    chain = MatMul.tile(32, 32).to(Block).split(4).load(A, SH, ELEMENT).load(B, SH, ELEMENT).tile(32, 32).to(warp).tile(16, 16).to(pair)
    return chain.tile(4, 4).to(Thread).split(1).tile(1, 1).done()(MatMul(64, 64, 8)(GL, GL, GL)(Kernel)).program("sm_80")


def with_names_of(text, names):
    """A text with other names for levels and their variables, on one line."""
    for name, other in names.items():
        text = re.sub(rf"\b{name.lower()}(?=\b|_)", other.lower(), text.replace(name, other))
    return " ".join(text.split())


@pytest.mark.parametrize("make", [by_quad_pairs, by_warps, by_threads])
@pytest.mark.parametrize("groups", [(Warp, Octet), (Tribe, OctetOfTribe)], ids=["octet", "warp and octet"])
def test_groups_are_layouts_of_threads(make, groups):
    """Section 4: nothing depends on a built-in group. A user-defined one, under other names, gives the same kernel.

    Warp and quad-pair instructions, warp barriers and copies with propagated layouts all use the threads of a group.
    """
    own, built_in = right(make(*groups)), make(Warp, QuadPair)
    assert used(own) == used(built_in)
    names = {"Octet": "QuadPair"} | ({"Tribe": "Warp"} if groups[0] == Tribe else {})
    normalized = with_names_of(own.cuda, names)
    if groups[0] == Tribe:  # a thread of a warp is called a lane
        normalized = re.sub(r"\bwarp_(thread|lane)\b", "lane", normalized)
    assert normalized == " ".join(built_in.cuda.split())


def test_groups_of_other_threads_are_not_quad_pairs():
    for layout in (Layout(8), Layout((4, 2), (1, 8)), Layout((2, 4), (1, 8))):
        with pytest.raises(MatchError, match="requires QuadPair, got Octet"):
            _ = by_quad_pairs(Warp, Level("Octet", Warp, layout)).ir


# ------------------------------------------------------------------------------------------------------- atomic specs, table 2


def copied(dtype, count, *memories):
    """A copy of `count` adjacent elements per thread, through memories."""
    chain = Move.tile(64 * count, 2).to(Block).tile(count, 1).to(Thread)
    for memory in memories:
        chain = chain.load(SRC, memory, Move.done())
    return chain.done()(Move(64 * count, 2, dtype=dtype)(GL, GL)(Kernel))


def pointwise(operation, *shape):
    chain = BinaryPointwise.tile(32, 6).to(Block).tile(4, 1).to(Thread).load("lhs", RF, Move.done()).load("rhs", RF, Move.done())
    return chain.tile(*shape).unroll().done()(BinaryPointwise(operation, 64, 6, dtype=float16)(GL, GL, GL)(Kernel))


def product(dtype, *shape):
    chain = MatMul.tile(32, 32).to(Block).epilog(RF).split(8).load(A, SH).load(B, SH).tile(4, 4).to(Thread).split(1)
    chain = chain.load(A, RF, Move.done()).load(B, RF, Move.done()).tile(*shape).unroll().done()
    return chain(MatMul(32, 32, 8, dtype=dtype)(GL, GL, GL)(Kernel))


FIGURE_1 = Move.tile(16, 16).to(Block).load(SRC, SH).tile(16, 16).to(Warp).load(SRC, RF, Move.done()).done()
MATRIX = Move(16, 16, dtype=float16, src=RowMajor, dst=RowMajor)(GL, GL)(Kernel)


def volta():
    chain = MatMul.tile(32, 32).to(Block).epilog(RF).split(16).load(A, SH).load(B, SH).tile(16, 16).to(QuadPair)
    chain = chain.tile(8, 8).unroll().split(4).load(A, RF, Move.done()).load(B, RF, Move.done()).done()
    return chain(MatMul(32, 32, 32, **FLOAT16 | {"B": ColMajor})(GL, GL, GL)(Kernel))


def ampere():
    chain = MatMul.tile(32, 32).to(Block).epilog(RF).split(16).load(A, SH).load(B, SH).tile(32, 32).to(Warp)
    chain = chain.tile(16, 8).unroll().split(16).load(A, RF, Move.done()).load(B, RF, Move.done()).done()
    return chain(MatMul(32, 32, 32, **FLOAT16)(GL, GL, GL)(Kernel))


TABLE_2 = [
    ("[].fp32.RF <- Move<<<[1].thread>>>([].fp32.GL)", copied(float32, 1, RF), "sm_90", r"ld\.global(\.nc)?\.[fub]32"),
    ("[8].fp16.RF <- Move<<<[1].thread>>>([8].fp16.GL)", copied(float16, 8, RF), "sm_90", r"ld\.global(\.nc)?\.v4\.[fub]32"),
    ("[4].fp32.SH <- Move<<<[1].thread>>>([4].fp32.RF)", copied(float32, 4, RF, SH), "sm_90", r"st\.shared\.v4\.[fub]32"),
    ("[16,16].fp16.RF <- Move<<<[32].thread>>>([16,16].fp16.SH)", FIGURE_1(MATRIX), "sm_80", r"ldmatrix\.sync\.aligned\.m8n8\.x4\.shared\.b16"),
    ("[].fp16.RF <- BinaryPW<*><<<[1].thread>>>([].fp16.RF, [].fp16.RF)", pointwise("*", 1, 1), "sm_90", r"mul(\.rn)?\.f16\b"),
    ("[2].fp16.RF <- BinaryPW<+><<<[1].thread>>>([2].fp16.RF, [2].fp16.RF)", pointwise("+", 2, 1), "sm_90", r"add(\.rn)?\.f16x2"),
    ("[].fp16.RF <- MatMul<<<[1].thread>>>([].fp16.RF, [].fp16.RF)", product(float16, 1, 1), "sm_90", r"fma\.rn\.f16\b"),
    ("[2].fp16.RF <- MatMul<<<[1].thread>>>([2].fp16.RF, [].fp16.RF)", product(float16, 2, 1), "sm_90", r"fma\.rn\.f16x2"),
    ("[].fp32.RF <- MatMul<<<[1].thread>>>([].fp32.RF, [].fp32.RF)", product(float32, 1, 1), "sm_90", r"fma\.rn(\.ftz)?\.f32"),
    ("[8,8].fp32.RF <- MatMul<<<[(4,2):(1,16)].thread>>>([8,4].fp16.RF, [4,8]:[1,4].fp16.RF)", volta(), "sm_70", r"mma\.sync\.aligned\.m8n8k4\.row\.col\.f32\.f16\.f16\.f32"),
    ("[16,8].fp32.RF <- MatMul<<<[32].thread>>>([16,16].fp16.RF, [16,8].fp16.RF)", ampere(), "sm_80", r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.f16\.f16\.f32"),
]  # fmt: skip


def described(spec, outputs=True):
    """The columns of Table 2 for a spec: its kind, its threads, and elements, type and memory of each operand."""
    operands = {
        name: (int(np.prod([size.low for size in view.shape])), view.dtype.name, view.memory.name if outputs or name in spec.inputs else "")
        for name, view in spec.operands.items()
    }
    return str(spec).split("(")[0], spec.level.threads, operands


def is_row(leaf, row):
    """Whether a leaf matches a row. Pointwise leaves store their result themselves: no step keeps it in registers."""
    kept = row.kind not in (BinaryPointwise.kind, UnaryPointwise.kind)
    return described(leaf, kept) == described(row, kept)


@needs_nvrtc
@pytest.mark.parametrize(("text", "strategy", "target", "ptx"), TABLE_2, ids=range(1, 12))
def test_rows_of_table_2_are_leaves_of_kernels(text, strategy, target, ptx):
    """The text is that of a leaf of a kernel that computes NumPy's result, and its PTX has the instruction of the row."""
    program, row = right(strategy.program(target)), parse_spec(text)
    leaves = [statement for statement, _ in execs(program.ir.body) if is_row(statement.spec, row)]
    assert leaves, [described(statement.spec) for statement, _ in execs(program.ir.body)]
    offered = [one for one in INSTRUCTIONS if not one.mismatches(row, program.architecture)]
    assert {statement.instruction for statement in leaves} <= set(offered)
    assert re.search(rf"\b{ptx}", compile_cuda(program.cuda, target).ptx)


def test_one_table_of_instructions():
    """Tensor cores of every kind, multiply-adds and copies are in one list and are selected in the same way."""
    names = {one.name for one in INSTRUCTIONS}
    assert names >= {"FFMA", "HFMA2", "HMMA_884_F32_TN", "HMMA_16816_F32", "LDMATRIX_16x16_ROW"}
    assert names >= {"mma_sync", "load_matrix_sync", "store_matrix_sync"} and len(names) == len(INSTRUCTIONS)
    for text, strategy, target, _ in TABLE_2:
        offered = [one.name for one in INSTRUCTIONS if not one.mismatches(parse_spec(text), strategy.program(target).architecture)]
        assert len(offered) == 1 or all(name.startswith("LDMATRIX") for name in offered), offered
    fragments = MatMul(16, 16, 16, dtype=float16, c_dtype=float32)(FR(16, 16, 16), FR(16, 16, 16), FR(16, 16, 16))(Warp)
    assert [one.name for one in INSTRUCTIONS if not one.mismatches(fragments, ampere().program("sm_80").architecture)] == ["mma_sync"]


# ----------------------------------------------------------------------------------------------------------------- figures 1 and 8


def c_expression(text, **values):
    """The value of a C++ index expression on integers."""
    return eval(text.replace("/", "//"), {"__builtins__": {}}, values)


def test_figure_1_in_the_text():
    """Figure 1c: 2 x 2 groups of 8 threads, the row of each thread, its address in shared memory, ldmatrix, four registers of two."""
    text = right(FIGURE_1(MATRIX).program("sm_80")).cuda
    assert '"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"' in text and "__cvta_generic_to_shared" in text
    assert ': "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])' in text
    (offset,) = re.findall(r"ldmatrix_x4\(src_rf, src_sh_address \+ (.*)\);", text)
    offsets = [c_expression(offset, thread=thread) // 2 for thread in range(32)]
    figure = [thread // 16 % 2 * 128 + thread // 8 % 2 * 8 + thread % 8 * 16 for thread in range(32)]
    groups = [[tuple(one[start : start + 8]) for start in range(0, 32, 8)] for one in (offsets, figure)]
    assert sorted(groups[0]) == sorted(groups[1]), "the same four groups; which of them comes first is free"


def test_kernels_without_ldmatrix_can_be_written():
    """Section 2 gives the cost of not using it: the same strategy, whose lanes load their fragments separately."""
    chain = MatMul.tile(64, 64).to(Block).epilog(RF).split(32).load(A, SH).load(B, SH).tile(32, 32).to(Warp).split(16)
    chain = chain.load(A, RF, Move.done()).load(B, RF, Move.done()).tile(16, 16).unroll().mma_tile().done()
    spec = MatMul(64, 64, 64, **FLOAT16)(GL, GL, GL)(Kernel)
    alone = chain
    for operand in (A, B):
        alone = alone.at(Load, operand, 1).replace(Load(operand, RF, Move.done(ThreadMove("Move")).steps))
    tensor, plain = right(chain(spec).program("sm_80")), right(alone(spec).program("sm_80"))
    assert "ldmatrix" in tensor.cuda and "ldmatrix" not in plain.cuda
    assert {one for one in used(tensor) if not one.startswith("LDMATRIX")} == used(plain) and "HMMA_16816_F32" in used(plain)


def test_figure_8_in_half_precision():
    """The kernel of the figure: 8 x 8 blocks of 16 x 16 threads, loops over k, m, n, and a scalar float16 multiply-add."""
    strategy, spec = library("naive").strategy, library("naive").spec
    program = strategy(spec(1024, 1024, 1024, dtype=float16)).program("sm_80")
    assert (program.ir.grid, program.ir.threads) == (Const(8 * 8), 16 * 16) and used(program) == {"HFMA"}
    loops = re.findall(r"for \(int (\w+) = 0; \1 < (\d+);", program.cuda)
    assert loops == [("k", "1024"), ("m", "8"), ("n", "8")] and program.cuda.count("__hfma(") == 1
    assert not [buffer for buffer in program.ir.buffers if not buffer.parameter], "nothing is copied"
    right(strategy(spec(130, 129, 5, dtype=float16)).program("sm_80"))


# --------------------------------------------------------------------------------------------- micro-kernels, and one ownership map


def test_a_micro_kernel_is_an_ordinary_leaf():
    """Fireiron's micro-kernel is Graphene's atomic spec: one `done`, one list of statements, one check."""
    dot = MicroKernel(
        "dot", "for (int k = 0; k < a_size_k; ++k)\n  *c = (accumulate || k > 0 ? *c : 0) + a[k * a_stride_k] * b[k * b_stride_k];"
    )
    chain, spec = MatMul.tile(16, 16).to(Block).tile(1, 1).to(Thread), MatMul(20, 17, 5)(GL, GL, GL)(Kernel)
    foreign, own = (right(chain.then(last)(spec).program("sm_80")) for last in (MatMul.done(dot), MatMul.split(1).tile(1, 1).done()))
    kinds = [{type(statement) for statement, _ in execs(program.ir.body)} for program in (foreign, own)]
    assert kinds[0] == kinds[1] and used(foreign) == {"dot"}
    scale = Kind("Scale", "y[i] = 2 * x[i]").starter
    twice = MicroKernel("twice", "*y = 2 * *x;")
    right(scale.tile(32).to(Block).tile(1).to(Thread).done(twice)(scale(70)(GL, GL)(Kernel)).program("sm_80"))


def test_fill_sum_and_store_hold_the_same():
    """A distributed array is one map from threads and registers to elements, which fill, MMA and store share."""
    program = ampere().program("sm_80")
    kernel, by_title = program.ir, {}
    for statement, loops in execs(kernel.body):
        for access in statement.accesses:
            if access.buffer == "c_rf":
                distribution = accesses_of(kernel, kernel.buffer("c_rf"), [(statement, loops, access)])
                columns = zip(distribution.threads.tolist(), distribution.registers.tolist(), distribution.elements.tolist(), strict=True)
                by_title.setdefault(statement.spec.title, set()).update(columns)
    assert set(by_title) == {"Init", "MatMul", "Move"} and len(by_title["MatMul"]) == 32 * 32
    assert by_title["Init"] == by_title["MatMul"] == by_title["Move"]
