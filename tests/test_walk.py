"""`walk` and `prune`: the program of a tree, for trees and for hand-made programs."""

import attrs
import making
import pytest
from handmade import THREAD, access, execution, kernel_of, local

from fireiron import *
from fireiron import ir
from fireiron.errors import IncompleteError
from fireiron.executable.thread_move import MOVE
from fireiron.ir import Let
from fireiron.lower.walk import RESERVED, ExpandedTree, fresh_name, grow_tree, prune, taken_names, walk
from fireiron.values.expr import Var, as_expr, less
from fireiron.values.machine import Thread, as_architecture

TARGET = as_architecture("sm_80")
LEAF = MatMul.tile(4, 4).to(Thread).split(1).tile(1, 1).done()


def tree_of(chain, spec):
    strategy = chain(spec)
    return grow_tree(strategy.spec, strategy.steps, TARGET, strategy.program(TARGET.name).instructions)


def walked(chain, spec):
    return walk(tree_of(chain, spec), spec, "mine")


# ---------------------------------------------------------------------------------------------- the kernel around the body


def test_threads_grid_and_buffers_are_those_of_the_tree():
    spec = MatMul(24, 40, 8)(GL, GL, GL)(Kernel)
    kernel = walked(MatMul.tile(8, 16).to(Block).split(4).load(A, SH).load(B, SH).then(LEAF), spec)
    assert (kernel.name, kernel.threads, kernel.workers, int(str(kernel.grid))) == ("mine", 8, 8, 9)
    assert [(one.name, one.parameter, one.written) for one in kernel.buffers] == [
        ("A", True, False), ("B", True, False), ("C", True, True), ("a_sh", False, True), ("b_sh", False, True),
    ]  # fmt: skip
    assert not any(isinstance(one, (ir.Hole, ir.Barrier)) for one in ir.statements(kernel.body))


def test_registers_have_no_storage_before_they_are_distributed():
    spec = MatMul(8, 8, 4)(GL, GL, GL)(Kernel)
    chain = MatMul.tile(8, 8).to(Block).epilog(RF).split(4).load(A, SH).tile(4, 4).to(Thread).split(1).tile(1, 1).done()
    kernel = walked(chain, spec)
    assert kernel.buffer("c_rf").storage.dims == () and kernel.buffer("c_rf").elements == as_expr(0)
    assert kernel.buffer("a_sh").elements == as_expr(32)


def test_the_memory_of_a_statement_is_a_buffer():
    text = "if (threadIdx.x == 0) c_at(0, 0) = a_at(0, 0);"
    chain = MatMul.tile(8, 8).to(Block).done(MicroKernel("own", text, threads=32, scratch_bytes=128))
    kernel = walked(chain, MatMul(8, 8, 4)(GL, GL, GL)(Kernel))
    ((statement, _),) = ir.execs(kernel.body)
    assert kernel.buffer(statement.scratch.name).bytes == 128 and kernel.buffer(statement.scratch.name).written


def test_leading_dimensions_and_sums_of_sizes_are_facts():
    ld, size = sym("ld"), sym("S")
    spec = MatMul(size // 2, 16, 8, C=ColMajor(ld=ld))(GL, GL, GL)(Kernel)
    facts = dict(walked(MatMul.tile(8, 8).to(Block).then(LEAF), spec).facts)
    assert less(0, size // 2) in facts.values()
    assert any(text.startswith("the leading dimension of C is at least") for text in facts)
    fixed = MatMul(16, 16, 8, A=RowMajor(ld=9), C=ColMajor(ld=16))(GL, GL, GL)(Kernel)
    assert walked(MatMul.tile(8, 8).to(Block).then(LEAF), fixed).facts == ()


def test_a_leading_dimension_holds_a_column_or_a_row():
    """It is at least the extent of the contiguous dimension."""
    for layout, extent in ((ColMajor, 24), (RowMajor, 40)):
        ld = sym("ld")
        spec = MatMul(24, 40, 8, C=layout(ld=ld))(GL, GL, GL)(Kernel)
        facts = dict(walked(MatMul.tile(8, 8).to(Block).then(LEAF), spec).facts)
        (condition,) = (facts[text] for text in facts if "leading dimension of C" in text)
        assert [bool(condition.evaluate({"ld": value})) for value in (extent - 1, extent)] == [False, True]


def test_open_trees_and_parts_of_kernels_have_no_program():
    spec = MatMul(8, 8, 4)(GL, GL, GL)(Kernel)
    with pytest.raises(IncompleteError, match="open"):
        walked(MatMul.tile(8, 8).to(Block), spec)
    inner = MatMul(8, 8, 4)(GL, GL, GL)(Block)
    with pytest.raises(ArgumentError, match="whole kernels"):
        walk(tree_of(MatMul.tile(8, 8).to(Block).then(LEAF), spec), inner, "mine")


def test_more_threads_than_a_block_can_have():
    spec = MatMul(64, 64, 4)(GL, GL, GL)(Kernel)
    with pytest.raises(ResourceError, match="4096 threads"):
        tree_of(MatMul.tile(64, 64).to(Block).tile(1, 1).to(Thread).split(1).done(), spec)
    assert tree_of(MatMul.tile(32, 32).to(Block).tile(1, 1).to(Thread).split(1).done(), spec).workers == 1024


def test_a_kernel_without_thread_levels_has_one_thread():
    spec = MatMul(4, 4, 4)(GL, GL, GL)(Kernel)
    tree = tree_of(MatMul.tile(2, 2).to(Block).done(MicroKernel("one", "c_at(0, 0) = a_at(0, 0);")), spec)
    assert tree.workers == tree.threads == 1 and isinstance(tree, ExpandedTree)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["src_size_m", "c_registers", "make_float4", "INFINITY", "thread", "piece", "A"])
def test_reserved_names_are_refused_for_sizes(name):
    with pytest.raises(ArgumentError, match="the symbol name"):
        walked(MatMul.tile(8, 8).to(Block).then(LEAF), MatMul(sym(name), 8, 8)(GL, GL, GL)(Kernel))


# ---------------------------------------------------------------------------------------------- named values


HALF, ROW, UNUSED, LOW = (Var(name, 0, 31) for name in ("half", "row", "unused", "low"))


def named(*body, owner=()):
    """A kernel with four names: `row` depends on `half`, the others on no name."""
    lets = (making.let(LOW, THREAD % 2), making.let(HALF, THREAD // 2), making.let(ROW, HALF * 2), making.let(UNUSED, THREAD % 4))
    tile = attrs.evolve(local("r", (32, 1), RF), register_origin=owner)
    return kernel_of(Move(32, 16)(GL, GL), (*lets, *body), tile)


def move(row, **fields):
    return execution(MOVE, Move(1, 1)(GL, GL)(Thread), access("src", (row, 0)), access("dst", (row, 0), write=True), **fields)


def kept(kernel):
    return [one.var.name for one in kernel.body if isinstance(one, Let)]


def test_used_names_stay_with_the_names_that_they_depend_on():
    statement = move(ROW)
    kernel = prune(named(statement))
    assert kept(kernel) == ["half", "row"] and kernel.body[-1] == statement
    assert kept(prune(kernel)) == ["half", "row"]


def test_names_in_conditions_and_extents_are_used():
    assert kept(prune(named(move(THREAD, active=less(LOW, 1))))) == ["low"]
    assert kept(prune(named(making.loop(Var("k", 0, 31), UNUSED, (move(THREAD),))))) == ["unused"]
    assert kept(prune(named(move(THREAD)))) == []


def test_owners_count_where_a_group_executes_a_statement():
    """The text of a group-level statement addresses elements of registers, which needs the names in `owner`."""
    owner = (as_expr(LOW), as_expr(0))
    group = attrs.evolve(move(THREAD), spec=Move(1, 1)(GL, GL)(Warp))
    assert kept(prune(named(move(THREAD), owner=owner))) == []
    assert kept(prune(named(group, owner=owner))) == ["low"]


def test_used_names():
    loop = making.loop(Var("k", 0, 3), as_expr(4), (making.let(Var("inner", 0, 3), THREAD), move(THREAD)))
    names = taken_names(named(loop)) - RESERVED
    assert names == {"k", "inner", "low", "half", "row", "unused", "src", "dst", "r"} - RESERVED
    symbolic = attrs.evolve(named(loop), symbols=(sym("S"),))
    assert "S" in taken_names(symbolic) and taken_names(symbolic) > RESERVED


def test_new_names_are_as_requested_or_numbered_from_two():
    used = {"k", "k2"}
    assert [fresh_name("k", used) for _ in range(3)] == ["k3", "k4", "k5"] and fresh_name("n", used) == "n"
    assert fresh_name("n", used) == "n2" and {"k3", "k4", "k5", "n", "n2"} < used


KEYWORDS = """
alignas alignof asm auto bool break case catch char char8_t char16_t char32_t class concept const consteval constexpr constinit const_cast
continue co_await co_return co_yield decltype default delete do double dynamic_cast else enum explicit export extern false float for friend
goto if inline int long mutable namespace new noexcept nullptr operator private protected public register reinterpret_cast requires return
short signed sizeof static static_assert static_cast struct switch template this thread_local throw true try typedef typeid typename union
unsigned using virtual void volatile wchar_t while
and and_eq bitand bitor compl not not_eq or or_eq xor xor_eq
"""
"""ISO C++20, table 5 of [lex.key], and the alternative tokens of [lex.digraph]."""

VECTORS = "char1 uchar4 short2 ushort3 int4 uint2 long1 ulong4 longlong2 ulonglong1 float4 double2 make_float2 make_uint4 make_double1"
"""Some of the CUDA C++ programming guide's built-in vector types and their constructors."""


PRINTED = """
block thread warp_index warp_size smem scratch scratch_size piece pair index_0 index_1 index_2 index_3 accumulate held_register
shared_address threadIdx blockIdx blockDim gridDim warpSize dim3 min max fma fmaf half half2 nv_bfloat16 nvcuda hilbert quotient
a b c src dst a_at b_type c_registers a_stride_m b_size_k c_m src_at dst_type lhs rhs_at
"""
"""Names that the printer declares or calls, and names of operands in the text of a micro-kernel."""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("names", [KEYWORDS, VECTORS, PRINTED, "uid NULL INFINITY NAN"], ids=["C++20", "vectors", "printed", "others"])
def test_sizes_cannot_have_names_that_generated_code_cannot_bind(names):
    """Keywords, types, macros; and `uid`, the unit index in a swizzle."""
    assert not [name for name in names.split() if name not in RESERVED]
    with pytest.raises(ArgumentError, match="is used by generated code|keyword of Python or C"):
        walked(MatMul.tile(8, 8).to(Block).then(LEAF), MatMul(sym(names.split()[0]), 8, 4)(GL, GL, GL)(Kernel))
