"""The structure of printed kernels: each helper function once, short lines, named addresses, no redundant code."""

import functools
import itertools
import operator
import re
import types

import attrs
import making
import numpy as np
import pytest
from counted import python_calls
from handmade import THREAD, access, execution, kernel_of, local
from printed_text import COMPILER, HostProgram, Printed
from problems import NAMES, library, target_of
from ringed import float16_gemm, product

from fireiron import *
from fireiron import ir
from fireiron.cuda import carrier, emit, literal
from fireiron.cuda.addresses import _plain
from fireiron.cuda.expressions import document, expression, is_wide, summands
from fireiron.cuda.frame import _names_in_use, _of_warp
from fireiron.cuda.lines import comment, lines_of
from fireiron.cuda.makers import Makers
from fireiron.cuda.names import Names
from fireiron.cuda.printer import KernelPrinter
from fireiron.cuda.statements import _role_barrier
from fireiron.cuda.types import zero
from fireiron.errors import VerificationError
from fireiron.executable.thread_move import MOVE
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.ir.text import Braces, Function, If, Noted, Remark
from fireiron.lower.guard import guard
from fireiron.values.document import Assignment, Call, Chain, Choice, Joined, laid_out
from fireiron.values.expr import Var, all_of, as_expr, less
from fireiron.values.tensor import Tensor

SYMBOLIC = (sym("M", multiple_of=4), sym("N"), sym("K"))


def printed(name):
    """The texts of a library strategy for several sizes and supported targets."""
    module = library(name)
    for sizes, target in ((module.SIZES, "sm_80"), ((37, 45, 53), "sm_90"), (SYMBOLIC, "sm_80"), ((1000, 500, 300), "sm_70")):
        try:
            yield module.strategy(module.spec(*sizes)).program(target_of(name, target)).cuda
        except FireironError:
            continue  # a target without the instructions, or an array too large for a thread


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", NAMES)
def test_shipped_kernels_read_well(name):
    texts = list(printed(name))
    assert len(texts) >= 2
    for text in texts:
        lines = text.split("\n")
        assert max(map(len, lines)) <= 120
        assert not any(line.rstrip() != line or "\t" in line for line in lines)
        body = text[text.index('extern "C"') :]
        assert "asm" not in body and "smem + 0" not in body and "[0 +" not in body and not re.search(r"= 0;\n", body)
        functions = re.findall(r"__forceinline__ \w+ (\w+)\(", text)
        assert len(set(functions)) == len(functions) and all(f"{one}(" in body or f"{one}<" in body for one in functions)
        assert not re.search(r"if \([^\n]*\)(?: \{)?\n\s*if \(", body) or "//" in body, "conditions of one statement stand in one if"
        for block in re.findall(r"\(\w[^;\n]*\^[^;\n]*\)", body):
            assert block.count("^") <= 2


@pytest.mark.nightly
def test_named_values_are_used():
    """Each declaration is used, including pointers, swizzles and stages."""
    for name in NAMES:
        text = next(printed(name))
        body = text[text.index('extern "C"') :]
        for declared in re.findall(r"const (?:\w+\*? )?(?:const )?(\w+) =", body):
            assert len(re.findall(rf"\b{declared}\b", body)) > 1, (name, declared)


def test_addresses_are_computed_before_loops():
    """The main loop of a tensor-core kernel contains only small offsets: no block, no thread, no bare step number."""
    module = library("hmma_ampere")
    text = module.strategy(module.spec(4096, 4096, 4096)).program("sm_80").cuda
    start = text.index("  for (int k = 0;")
    loop = text[start : text.index("\n  }\n", start)]
    assert not re.search(r"\bblock_[mn]\b|_thread_|\bwarp", loop)
    assert "a_sh_m2 * 64 * 4096" in loop and "(k + 3) * 32" in loop and "k_stage_3" in loop and "% 4 *" not in loop
    assert "const __half* const a_source = A + block_m * 128 * 4096 + " in text
    assert text.count("mma_m16n8k16_f32_f16(&c_rf") == 2 and text.count("mma.sync.aligned") == 1
    assert text.index("c_target = ") > text.index("  // c_rf to C:"), "where it is needed, so that no register holds it before"


@pytest.mark.parametrize("name", ["hmma_ampere", "split_k", "maxwell", "wmma_optimized"])
def test_printing_is_little_work(name):
    module = library(name)
    kernel = module.strategy(module.spec(*module.SIZES)).program("sm_80").ir
    emit(kernel)
    assert python_calls(lambda: emit(kernel)) < 35_000


def test_names_in_the_text_do_not_collide_with_symbols():
    """Symbols keep names that pointers and helper functions would have, and the text still compiles."""
    names = ("a_source", "cp_async_16", "k_stage")
    spec = MatMul(*(sym(name, multiple_of=64) for name in names), dtype=float16, A=RowMajor, B=RowMajor)(GL, GL, GL)(Kernel)
    copy = Move.coalesced_copy(8).done()
    chain = MatMul.tile(32, 32).to(Block).split(32).pipeline(2).load(A, SH, copy).load(B, SH, copy).tile(4, 4).to(Thread)
    text = chain.tile(1, 1).split(1).done()(spec).cuda("sm_80")
    assert all(f"const int {name}" in text for name in names) and " cp_async_162(" in text and re.search(r"a_source2 =\s+A ", text)
    if toolchains():
        compile_cuda(text, "sm_80")


@pytest.mark.parametrize("name", ["main", "threadIdx", "__global__", "__x", "float4", "for", "a b", ""])
def test_kernels_have_no_reserved_names(name):
    with pytest.raises(ArgumentError, match="name of a kernel"):
        MatMul.tile(8, 8).to(Block).tile(4, 4).to(Thread).split(1).tile(1, 1).done()(MatMul(8, 8, 8)(GL, GL, GL)(Kernel)).program(name=name)


def copied(*before):
    """A kernel that copies 32 elements, one per thread, after other statements."""
    move = execution(MOVE, Move(1, 1)(GL, GL)(Thread), access("src", (THREAD, 0)), access("dst", (THREAD, 0), write=True))
    return guard(kernel_of(Move(32, 1)(GL, GL), (*before, move)))


@pytest.mark.parametrize("note", ["x \\", "x \\ ", "one\ntwo \\", "\\", "long " * 60 + "\\", "w" * 400])
def test_comments_end_where_they_end(note):
    """A backslash at the end of a comment would continue it on the next line."""
    text = emit(copied(making.comment(note)))
    lines = text.split("\n")
    assert not any(line.endswith("\\") for line in lines) and max(map(len, lines)) <= 122
    assert "  dst[thread] = src[thread];" in lines
    if toolchains():
        compile_cuda(text, "sm_80")


def test_names_that_only_register_numbers_would_need_are_not_printed():
    """Two names of one value in the coordinates of a register array: the register number does not use them."""
    first, other = (Var(name, 0, 31) for name in ("one", "other"))
    registers = attrs.evolve(local("r", (32, 1), RF), storage=local("r", (1, 1), RF).storage, elements=as_expr(1))
    flat = attrs.evolve(registers.storage, layout=Layout((1, 1), (0, 0)))
    registers = attrs.evolve(registers, storage=flat)
    load = execution(MOVE, Move(1, 1)(GL, RF)(Thread), access("src", (THREAD, 0)), access("r", (first, 0), write=True))
    store = execution(MOVE, Move(1, 1)(RF, GL)(Thread), access("r", (other, 0)), access("dst", (THREAD, 0), write=True))
    text = emit(guard(kernel_of(Move(32, 1)(GL, GL), (making.let(first, THREAD), making.let(other, THREAD), load, store), registers)))
    assert "r[0] = src[thread];" in text and " one " not in text and " other " not in text
    if toolchains():
        compile_cuda(text, "sm_80")


def test_a_loop_of_one_iteration_is_removed():
    iteration = Var("turn", 0, 0)
    move = execution(
        MOVE, Move(1, 1)(GL, GL)(Thread), access("src", (THREAD, iteration * 5)), access("dst", (THREAD, iteration * 5), write=True)
    )
    text = emit(guard(kernel_of(Move(32, 1)(GL, GL), (making.loop(iteration, as_expr(1), (move,)),))))
    assert "  dst[thread] = src[thread];" in text.split("\n") and "turn" not in text


def test_no_number_is_made_of_its_bits():
    short = {-1.0000000150474662e30: "-1e30f", 9.999999747378752e-06: "1e-05f", 0.1: "0.1f", 16777217: "16777217.0f", 1 / 3: "0.33333334f"}
    short |= {1e-50: "1e-50f", 1.5e300: "1.5e300f"}  # values that are not floats remain as written: the compiler rounds them
    assert {number: literal(number, float32) for number in short} == short and literal(1 / 3, float64) == "0.3333333333333333"
    assert literal(float("inf"), float32) == "__int_as_float(0x7f800000)"
    assert literal(float("-inf"), float64) == "static_cast<double>(__int_as_float(0xff800000))"
    assert literal(float("nan"), float16) == "__float2half_rn(__int_as_float(0x7fc00000))"
    assert (
        literal(3, float32) == "3.0f"
        and literal(0, float64) == "0.0"
        and literal(-2, int32) == "-2"
        and literal(1, float16)[-5:] == "1.0f)"
    )
    if toolchains():
        values = "".join(f"  out[{n}] = {literal(one, float32)};\n" for n, one in enumerate((float("inf"), float("nan"), -0.0, 1e30)))
        compile_cuda(f'extern "C" __global__ void k(float* out)\n{{\n{values}}}\n', "sm_80")


def test_vector_types_and_their_zeros():
    """The built-in vector types: of floats, doubles and integers their own, of others integers of equal width (CUDA C++ Programming Guide)."""
    carriers = {
        (float32, 2): "float2", (float32, 4): "float4", (float64, 2): "double2", (int32, 2): "int2", (int32, 4): "int4",
        (float16, 2): "unsigned int", (float16, 4): "uint2", (float16, 8): "uint4", (int8, 2): "unsigned short", (bfloat16, 8): "uint4",
    }  # fmt: skip
    assert {key: carrier(*key) for key in carriers} == carriers
    zeros = {
        (float32, 2): "make_float2(0.0f, 0.0f)", (float64, 2): "make_double2(0.0, 0.0)", (int32, 4): "make_int4(0, 0, 0, 0)",
        (float16, 4): "make_uint2(0u, 0u)", (float16, 2): "0", (int8, 2): "0",
    }  # fmt: skip
    assert {key: zero(*key) for key in zeros} == zeros


def test_the_smallest_integer_is_no_long():
    """C++ parses the sign separately from the number, which does not fit an int."""
    assert [literal(number, int32) for number in (-(2**31), -(2**31) + 1)] == ["(-2147483647 - 1)", "-2147483647"]


def test_a_micro_kernel_on_partial_sums_compiles():
    """A view of a part of a buffer has fewer dimensions than the buffer; its accessors named one too many."""
    dot = "for (int p = 0; p < a_size_k; ++p) c_at(0, 0) = (accumulate || p ? c_at(0, 0) : c_type(0)) + a_at(0, p) * b_at(p, 0);"
    chain = MatMul.tile(8, 8).to(Block).split_k(2, Warp, 4).split(4).tile(2, 1).to(Lane).tile(1, 1).done(MicroKernel("dot", dot))
    text = chain(MatMul(16, 16, 16)(GL, GL, GL)(Kernel)).program("sm_80").cuda
    assert "int index_0, int index_1) -> float& {" in text and "index_2" not in text
    if toolchains():
        compile_cuda(text, "sm_80")


# ---------------------------------------------------------------------------------------------- layout


def test_blocks_and_conditions():
    items = [If(("a < b", "c"), ("x = 1;",)), Braces("for (;;)", ("f();", "g();"), "#pragma unroll"), Noted("h();", "why \\")]
    assert [line.text for line in lines_of(items, 1)] == [
        "  if (a < b && c)", "    x = 1;", "#pragma unroll", "  for (;;) {", "    f();", "    g();", "  }", "  h();  // why \\ .",
    ]  # fmt: skip


def draw(generator, depth):
    """A random text."""
    kind = generator.integers(0, 6)
    if not depth or kind == 0:
        return "abcdefghij"[: generator.integers(1, 10)]
    inner = tuple(draw(generator, depth - 1) for _ in range(generator.integers(1, 5)))
    if kind == 1:
        return Joined((inner[0], "[", inner[-1], "]"))
    if kind == 2:
        return Chain((inner[0], *(Joined(("+ ", one)) for one in inner[1:])))
    if kind == 3:
        return Choice(inner[0], inner[-1], draw(generator, depth - 1))
    return Call("call", inner) if kind == 4 else Assignment(inner[0], inner[-1])


def test_breaking_a_text_changes_its_spaces_only():
    generator = np.random.default_rng(8)
    for _ in range(1000):
        text = draw(generator, 3)
        for width in (200, 60, 30):
            lines = laid_out(text, width)
            assert "".join("".join(lines).split()) == "".join(str(text).split())
            assert len(lines) == 1 or len(str(text)) > width
            if width == 200 and len(str(text)) <= 200:
                assert lines == [str(text)]


def test_comments_preserve_their_words():
    words = " ".join(str(number) * (number % 9 + 1) for number in range(200))
    lines = comment(words, 2)
    assert all(line.startswith("    //") and len(line) <= 120 for line in lines)
    assert " ".join(line.strip().removeprefix("//").strip() for line in lines) == words


def test_comments_are_rewrapped_only_if_too_wide():
    """A paragraph written by a user is rewrapped as a whole: no line of it is broken alone."""
    short = ("// One line.", "//", "// Another \\")
    assert [line.text for line in lines_of([Remark(short)], 1)] == ["  // One line.", "  //", "  // Another \\ ."]
    words = [f"word{number}" for number in range(40)]
    wide = (f"// {' '.join(words[:18])}", f"// {' '.join(words[18:20])}", "//", f"// {' '.join(words[20:])}")
    printed = [line.text for line in lines_of([Remark(wide)], 3)]
    assert all(line.startswith("      //") and len(line) <= 120 for line in printed)
    texts = [line.strip()[2:].strip() for line in printed]
    gap = texts.index("")
    assert " ".join(texts[:gap]).split() == words[:20] and " ".join(texts[gap + 1 :]).split() == words[20:]
    assert len(printed[0]) > 100 and gap == 2, "filled, not broken line by line"


def test_helper_functions():
    function = Function("twice", ("int x",), ("return 2 * x;",), "doubled", result="int")
    assert function.text("other") == ("// doubled", "__device__ __forceinline__ int other(int x)", "{", "  return 2 * x;", "}")


def test_comments_of_single_lines_have_one_space_in_front():
    assert [line.text for line in lines_of(["//a word", "// a word", "//  a word", "#pragma once", ""], 1)] == ["  // a word"] * 3 + [
        "#pragma once",
        "",
    ]


def test_shared_memory_is_aligned_to_16_bytes_at_least():
    """One by one or as one array: vector reads find aligned data."""
    for align, alignment in ((4, 16), (16, 16), (128, 128)):
        text = emit(attrs.evolve(copied(), buffers=(*copied().buffers, local("s", (8, 1), SH, align=align))))
        assert f"__shared__ __align__({alignment}) float s[8];" in text


def test_loops_that_number_registers_are_unrolled():
    """Registers have no run-time index; the loop over k indexes none and is not unrolled."""
    chain = MatMul.tile(8, 8).to(Block).epilog(RF).tile(4, 2).to(Thread).split(1).tile(1, 1).done()
    lines = chain(MatMul(16, 16, 8)(GL, GL, GL)(Kernel)).cuda().splitlines()
    loops = {line.split("(int ")[1].split(" ")[0]: before.strip() for before, line in itertools.pairwise(lines) if "for (" in line}
    assert set(loops) == {"init_m", "init_n", "k", "m", "n", "store_m", "store_n"}
    assert {name for name, before in loops.items() if before == "#pragma unroll"} == set(loops) - {"k"}


def test_conditions_enclose_a_loop_only_if_invariant():
    step = Var("step", 0, 3)
    sides = (access("src", (THREAD, step)), access("dst", (THREAD, step), write=True))
    both = all_of((less(THREAD, 7), less(step, 3)))
    copy = execution(MOVE, Move(1, 1)(GL, GL)(Thread), *sides, active=both)
    text = emit(guard(kernel_of(Move(32, 4)(GL, GL), (making.loop(step, as_expr(4), (copy,)),))))
    assert text.index("< 7") < text.index("for (") < text.index("step < 3")


def test_names_of_the_text_are_none_of_the_kernel():
    """Of its sizes, parameters, buffers, loops and named values, and those defined by the text."""
    size, step, place = sym("a_source"), Var("k_stage", 0, 3), Var("place", 0, 9)
    copy = execution(MOVE, Move(1, 1)(GL, GL)(Thread), access("src", (THREAD, step)), access("dst", (THREAD, step), write=True))
    copy = attrs.evolve(copy, scratch=Tensor("bytes", (as_expr(64),), uint8, SH, ColMajor))
    body = (making.let(place, THREAD * 3), making.loop(step, as_expr(4), (copy,)))
    kernel = kernel_of(Move(32, 4)(GL, GL), body, local("Held", (4, 1), RF), symbols=(size,))
    kernel = attrs.evolve(kernel, reciprocals=(ir.Reciprocal("per_row", size),), counter=making.counter("tiles"))
    reserved = {"block", "thread", "smem", "piece", "warp_index", "blockIdx.x", "threadIdx.x"}
    own = {kernel.name, "a_source", "per_row", "tiles", "Held", "held", "src", "dst", "place", "k_stage", "bytes"}
    assert _names_in_use(kernel) == reserved | own
    names = Names(_names_in_use(kernel))
    assert [names.fresh("a_source"), names.fresh("a_source"), names.free("held"), names.free("held")] == [
        "a_source2",
        "a_source3",
        "held2",
        "held2",
    ]


def test_conditions_on_names_of_a_loop_are_inside_it():
    """Even if all of its statements have them: before the loop the name is not defined."""
    step, place = Var("step", 0, 3), Var("place", 0, 9)
    copy = execution(
        MOVE, Move(1, 1)(GL, GL)(Thread), access("src", (THREAD, step)), access("dst", (THREAD, step), write=True), active=less(place, 5)
    )
    text = emit(guard(kernel_of(Move(32, 4)(GL, GL), (making.loop(step, as_expr(4), (making.let(place, step * 3), copy)),))))
    assert text.index("for (") < text.index("const int place = step * 3;") < text.index("place < 5")


def test_numbers_that_an_int_holds_have_no_suffix():
    texts = {2**31 - 1: "2147483647", 2**31: "2147483648LL", -(2**31 - 1): "-2147483647", -(2**31): "-2147483648LL"}
    assert {number: expression(as_expr(number)) for number in texts} == texts


def test_short_expressions_have_no_name():
    """A step of one variable is named; offsets, two variables and computed values are not."""
    i, j = Var("i", 0, 99), Var("j", 0, 99)
    assert all(map(_plain, (i, as_expr(4), i * 4)))
    assert not any(map(_plain, (i + 1, i * 4 + 1, i + j, i * j, i * 4 + j, (i // 3) * 4, i // 3)))


def test_dynamic_shared_memory_is_aligned_to_16_bytes_at_least():
    """Even if no buffer in it is read or written by vectors."""
    chain = (
        MatMul.tile(128, 128)
        .to(Block)
        .split(64)
        .load(A, SH, Move.tile(1, 1).to(Thread).done())
        .load(B, SH, Move.tile(1, 1).to(Thread).done())
    )
    text = chain.tile(8, 8).to(Thread).split(1).tile(1, 1).done()(MatMul(128, 128, 65)(GL, GL, GL)(Kernel)).program("sm_80").cuda
    assert "extern __shared__ __align__(16) unsigned char smem[];" in text


# ---------------------------------------------------------------------------------------------- parts of the text


@pytest.mark.parametrize(("extent", "heads"), [(1, 0), (2, 1)])
def test_a_loop_of_one_iteration_is_a_block_if_it_has_names(extent, heads):
    step, place = Var("step", 0, extent - 1), Var("place", 0, 9)
    copy = execution(MOVE, Move(1, 1)(GL, GL)(Thread), access("src", (THREAD, place)), access("dst", (THREAD, place), write=True))
    text = emit(
        guard(kernel_of(Move(32, 4)(GL, GL), (making.loop(step, as_expr(extent), (making.let(place, step * 3 + THREAD // 16), copy)),)))
    )
    assert text.count("for (") == heads and text.count("const int place = ") == 1 and text.count("{") == text.count("}") == 2


@pytest.mark.sampled(1)
@pytest.mark.parametrize("threads, groups", [(128, 1), (128, 2), (64, 3)])
def test_each_group_of_a_role_waits_at_a_barrier_of_its_own(threads, groups):
    """Barrier numbers count down from the last of 16; a single group needs no number."""
    lines = _role_barrier(threads, groups).body
    assert [re.search(r"bar\.sync (\d+), (\d+);", line).groups() for line in lines] == [
        (str(15 - group), str(threads)) for group in range(groups)
    ]
    conditions = [re.match(r"if \(threadIdx\.x / (\d+) == (\d+)\) asm", line) for line in lines]
    if groups == 1:
        assert conditions == [None]
    else:
        assert [one.groups() for one in conditions] == [(str(threads), str(group)) for group in range(groups)]


def test_min_blocks_per_sm_is_in_the_launch_bounds():
    move = execution(MOVE, Move(1, 1)(GL, GL)(Thread), access("src", (THREAD, 0)), access("dst", (THREAD, 0), write=True))
    kernel = guard(kernel_of(Move(32, 4)(GL, GL), (move,)))
    assert "__launch_bounds__(32)" in emit(kernel) and "__launch_bounds__(32, 3)" in emit(making.evolved(kernel, resident=3))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_loop_with_an_early_exit_has_no_last_iteration(dynamic):
    """With a dynamic scheduler the number of tiles per block is unknown: in the producer and in the consumer."""
    text = product((64, 64, 64), (64, 64), blocks=3, dynamic=dynamic)(float16_gemm(256, 128, 64)).program("sm_90a").cuda
    assert text.count("for (int iteration = 0;; ++iteration)") == 2 * dynamic
    assert text.count("for (int tile = blockIdx.x, iteration = 0; tile < num_tiles; tile += num_blocks, ++iteration)") == 2 * (not dynamic)


def test_products_of_strides_keep_meaningful_factors():
    k = Var("k", 0, 9)
    assert summands(k * 12, (6,)) == ("k * 2 * 6",) and summands(k * 12 + 5, (5, 6)) == ("k * 2 * 6", "+ 5")
    assert summands(k * 6, (1,)) == summands(k * 6, (6,)) == summands(k * 6, (12,)) == summands(k * 6, (4,)) == ("k * 6",)


def test_quotients_precede_variables_without_parentheses():
    x, y = Var("x", 0, 99), Var("y", 0, 99)
    assert expression(x // 4 * y) == "x / 4 * y" and expression(y // 4 * x) == "y / 4 * x"
    assert expression((x % 8) * y) == "x % 8 * y" and expression((y % 8) * x) == "y % 8 * x"


def test_comments_name_the_loads_that_fill_a_ring():
    """The steps of the copies into it; if these have none, those that created its buffers."""
    kernel = product((64, 64, 64), (64, 64))(float16_gemm(128, 128, 128)).program("sm_90a").ir
    makers = Makers(kernel)
    (ring,) = kernel.rings
    filled = makers.of_ring(ring.name)
    assert filled and set(filled) == {one.path for one, _ in ir.execs(kernel.body) if one.ring == ring.name}
    nameless = ir.edited(kernel.body, lambda one: attrs.evolve(one, path=None))
    steps = Makers(attrs.evolve(kernel, body=nameless)).of_ring(ring.name)
    assert steps == tuple(dict.fromkeys(kernel.makers[buffer] for buffer in ring.buffers)) != ()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("step", [1, 2, 8])
@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_constants_are_grouped_with_their_variable(step, ahead):
    """If the constant is a multiple of the variable's step; otherwise after all terms."""
    k, m = Var("k", 0, 99), Var("m", 0, 9)
    factor = "" if step == 1 else f" * {step}"
    wanted = {f"(k + {ahead}){factor}", "+ m" if step > 1 else "m"}
    terms = summands(k * step + m + ahead * step, shifted={k})
    assert {one.removeprefix("+ ") for one in terms} == {one.removeprefix("+ ") for one in wanted}
    assert summands(k * step + ahead * step) == (f"k{factor}", f"+ {ahead * step}"), "of no variable in particular"
    if step > 1:
        assert summands(k * step + 1, shifted={k}) == (f"k{factor}", "+ 1")


def test_conditions_may_be_broken_between_them():
    x, y = Var("x", 0, 99), Var("y", 0, 99)
    chain = document(all_of((less(x, 5), less(y, 7))))
    assert isinstance(chain, Chain) and [str(one) for one in chain.parts] == ["x < 5", "&& y < 7"]
    assert isinstance(document(x + y), Chain) and document(x * 2) == "x * 2" and document(less(x, 5)) == "x < 5"


def test_64_bit_overflow_names_the_sizes_to_bound():
    large = sym("N", high=(1 << 31) - 1)
    with pytest.raises(VerificationError, match="does not fit 64 bits") as caught:
        is_wide(large * large * 8 + 1)
    assert caught.value.hint == 'bound the sizes: sym("N", high=65536)'
    with pytest.raises(VerificationError) as caught:
        is_wide(Var("i", 0, 1 << 40) * Var("j", 0, 1 << 40) + 1)
    assert caught.value.hint == 'bound the sizes: sym("M", high=65536)'


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
@pytest.mark.sampled(1)
@pytest.mark.parametrize("limits", [(20, 20, 20, 20), (20, 9, 20, 13), (9, 20, 20, 20), (32, 32, 32, 7), (0, 20, 20, 20), (32, 0, 32, 0)])
def test_common_conditions_of_stores_are_hoisted(limits, tmp_path):
    """Four elements are loaded at once if the thread is below 24, and stored one by one, each if it is also below a separate limit."""
    kept = less(THREAD, 24)
    statement = execution(
        MOVE, Move(1, 4)(GL, GL)(Thread), access("src", (THREAD, 0), (1, 4)), access("dst", (THREAD, 0), (1, 4), write=True)
    )
    writes = tuple(making.piece(number, 1, condition=all_of((kept, less(THREAD, limit)))) for number, limit in enumerate(limits))
    statement = attrs.evolve(statement, vector=4, vectors=(4, 1), pieces=((making.piece(0, 4, condition=kept),), writes))
    kernel = kernel_of(Move(32, 4, src=RowMajor, dst=RowMajor)(GL, GL), (statement,))
    source = np.arange(1, 129, dtype=np.float32).reshape(32, 4)
    got = HostProgram([Printed(emit(kernel), kernel)], tmp_path).run(0, {"src": source}, {})["dst"]
    stored = np.arange(32)[:, None] < np.minimum(limits, 24)
    assert (got[stored] == source[stored]).all() and not (got[~stored] == source[~stored]).any()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("sets", [[(0b1, 0)], [(0b1, 2)], [(0b101, 1)], [(0b1, 0), (0b11, 2)], [(0b1, 3), (0b10, 0), (0b1, 2)]])
def test_blocks_of_a_cluster_are_a_mask(sets):
    rank = Var("rank", 0, 3)
    printer = types.SimpleNamespace(addresses=types.SimpleNamespace(used=set()))
    block_sets = [types.SimpleNamespace(pattern=pattern, first=as_expr(first)) for pattern, first in sets]
    wanted = functools.reduce(operator.or_, (pattern << first for pattern, first in sets))
    assert eval(KernelPrinter.blocks(printer, *block_sets)) == wanted
    moved = [types.SimpleNamespace(pattern=pattern, first=rank + first) for pattern, first in sets]
    text = KernelPrinter.blocks(printer, *moved)
    assert printer.addresses.used == {rank} and [eval(text, {"rank": number}) for number in range(3)] == [
        wanted << number for number in range(3)
    ]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("low", "high", "times", "number", "exact"),
    [
        (0, 2**24 - 1, 1, 0, True), (0, 2**24, 1, 0, False), (0, 2**23, 2, 0, False), (0, 2**23 - 1, 2, 1, True), (0, 2**23 - 1, 2, 2, False),
        (1 - 2**24, 0, 1, 0, True), (-(2**24), 0, 1, 0, False), (0, 2**23, -2, 0, False), (0, 2**24, 1, -(2**23), True), (0, 5, 1, 2**24, False),
    ],
)  # fmt: skip
def test_coordinates_are_added_in_float_as_far_as_they_are_exact(low, high, times, number, exact):
    """All integers up to 2^24 are floats; beyond, for other types, or if an element may not be read, the result is None."""
    var = Var("x", low, high)
    printer = types.SimpleNamespace(addresses=types.SimpleNamespace(coordinates=lambda access, element: (var, as_expr(0))))
    sides = types.SimpleNamespace(elements=lambda: [()])
    statement = types.SimpleNamespace(accesses=[sides], conditions=lambda position: [all_of(())])
    counted = KernelPrinter.counted(printer, statement, {0: (0, times)}, number, float32)
    assert bool(counted) is exact
    assert KernelPrinter.counted(printer, statement, {0: (0, times)}, number, float16) == ()
    guarded_one = types.SimpleNamespace(accesses=[sides], conditions=lambda position: [less(Var("y", 0, 9), 5)])
    assert KernelPrinter.counted(printer, guarded_one, {0: (0, times)}, number, float32) == ()


def test_warp_uniform_values_are_those_of_the_first_lane():
    """A value that differs between lanes must not be taken from the first one."""
    thread = Var("thread", 0, 255)
    kernel = types.SimpleNamespace(thread=thread)
    assert all(_of_warp(thread // size, kernel) for size in (32, 64, 128))
    assert not any(
        _of_warp(value, kernel) for value in (thread, thread // 16, thread // 48, (thread + 1) // 32, thread % 64 // 32, thread * 32)
    )
