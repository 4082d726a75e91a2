"""Kernels as text in Graphene's notation: printed text reads back to the same CUDA, and text written by hand is an ordinary kernel."""

import random
import re

import making
import numpy as np
import pytest
from generator import draw as drawn
from printed_text import HostProgram, Printed
from problems import integers
from ringed import float16_gemm, product

from fireiron import *
from fireiron.check import check, safety
from fireiron.cli import main
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.graphene import graphene_text, parse_kernel, parse_strategy
from fireiron.graphene.literals import literal_text, read_literal
from fireiron.ir import SyncPoint, execs, statements
from fireiron.language.library import bind, find, names
from fireiron.sim import simulate

needs_nvrtc = pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")

# ------------------------------------------------------------------------------------------------------------ round trips


def read_back(program):
    """The program of a program's text, if it is the same kernel."""
    text = graphene_text(program)
    again = parse_kernel(text)
    assert again.cuda == program.cuda
    assert graphene_text(again) == text, "what is read is printed alike"
    return text


TARGETS = {"hmma_volta": ("sm_70",), "hmma_turing": ("sm_75",), "hmma_ampere": ("sm_80", "sm_90"), "naive": ("sm_70",)}


@pytest.mark.sampled(18)
@pytest.mark.parametrize(("name", "target"), [(name, one) for name in names() for one in TARGETS.get(name, (None,))])
def test_the_library_is_read_back(name, target):
    program = bind(find(name)).program(target)
    if program.preceding:
        with pytest.raises(LayoutError, match=f"launches 2 kernels .{program.launches[0].name}, "):
            graphene_text(program)
        return
    read_back(program)


@pytest.mark.parametrize("name", ["gemm_nn", "hmma_ampere", "naive"])
def test_sizes_of_run_time(name):
    sizes = {"M": sym("M", 8), "N": sym("N", 8, high=4096), "K": sym("K", 8)}
    assert "Size N {multiple_of=8, high=4096}\n" in read_back(bind(find(name), sizes).program("sm_80"))


@pytest.mark.parametrize("seed", range(3000, 3012))
def test_drawn_strategies(seed):
    draw, _ = drawn(seed)
    read_back((draw.strategy if draw.strategy.spec is not None else draw.strategy(draw.spec)).program(draw.target))


@pytest.mark.parametrize(
    "options", [{"group_m": 2}, {"blocks": 4}, {"blocks": 2, "pingpong": 2, "tma": False}, {"blocks": 2, "dynamic": True}], ids=str
)
def test_rings_of_hopper(options):
    read_back(product(**options)(float16_gemm(256, 128, 192)).program("sm_90a"))


def test_a_cluster():
    text = read_back(product(cluster=(2, 1))(float16_gemm(256, 128, 192)).program("sm_90a"))
    assert re.search(r"^Cluster 2 \w+$", text, re.MULTILINE)


def test_a_micro_kernel_and_a_kind_of_ones_own():
    text = read_back(bind(find("maxwell")).program())
    assert re.search(r"^Instruction store_through_shared = MicroKernel\(name='store_through_shared', text=", text, re.MULTILINE)
    kind = Kind("Scale", "y[i] = {by} * x[i]", (Parameter("by"),))
    own = kind.starter(3, 64)(GL, GL)(Kernel)
    text = read_back(AnySpec.tile(32).to(Block).tile(1).to(Thread).done()(own).program())
    assert "Kind Scale = Kind(title='Scale', text='y[i] = {by} * x[i]'" in text and "<- Scale<3><<<" in text


def test_operands_may_have_the_names_of_functions():
    """y0 is a function of CUDA C++, which a parameter may hide."""
    definition = Fused("drawn", "m n", {"R": "m n", "y0": "m"}, {"low": "s[m] = min(n, R[m,n])", "all": "y0[m] = s[m]"})
    read_back(definition.tile(m=1).to(Block).done()(definition(m=1, n=1)).program("sm_80"))


def test_a_level_of_ones_own():
    octet = Level("Octet", Warp, Layout((4, 2), (1, 16)))
    strategy = Move.tile(32).to(Block).tile(8).to(octet).tile(1).to(Level("One", octet, Layout(1))).done()
    assert "Level octet = Level(name='Octet', parent=Warp" in read_back(strategy(Move(64)(GL, GL)(Kernel)).program())


def test_several_kernels_are_no_text():
    program = find("hopper").strategy.with_(bm=64, bn=64, wm=64, wn=64, stages=2)(float16_gemm(65, 63, 33)).program("sm_90a")
    assert program.preceding
    with pytest.raises(LayoutError, match="kernels .*, but a text describes one kernel"):
        graphene_text(program)


# ------------------------------------------------------------------------------------------------------------ fused kernels

COPY, FRAGMENTS = Move.coalesced_copy(8).done(), Move.done()
MMA = MatMul.tile(16, 16).unroll().mma_tile().done()


def layer_norm():
    norm = Fused(
        name="layernorm", dims="m n", operands={"X": "m n", "gamma": "n", "Y": "m n"},
        body={"sum": "mean[m] = sum(n, X[m,n])", "mean": "mean[m] = mean[m] / size(n)", "center": "c[m,n] = X[m,n] - mean[m]",
              "square": "sq[m,n] = c[m,n] * c[m,n]", "var": "rstd[m] = sum(n, sq[m,n])", "rstd": "rstd[m] = rsqrt(rstd[m] / size(n) + 1e-05)",
              "out": "Y[m,n] = c[m,n] * rstd[m] * gamma[n]"},
    )  # fmt: skip
    return norm.tile(m=1).to(Block).load("X", RF, Move.tile(1, 512).to(Warp).tile(1, 8).to(Lane).done()).done()(norm(m=4, n=1024))


def attention():
    fused = Fused(
        name="attention", dims="m n d", loop="n", operands={"Q": "m d", "K": "n d", "V": "n d", "O": "m d", "scale": ""},
        init={"mx": "mx[m] = -inf", "l": "l[m] = 0", "acc": "acc[m,d] = 0"},
        body={"s": "s[m,n] = sum(d, Q[m,d] * K[n,d])", "mask": "s[m,n] = where(n <= m, s[m,n] * scale, -inf)", "top": "top[m] = max(n, s[m,n])",
              "new": "new[m] = max(mx[m], top[m])", "alpha": "alpha[m] = exp2(mx[m] - new[m])", "keep": "mx[m] = new[m]",
              "exp": "s[m,n] = exp2(s[m,n] - new[m])", "sums": "sums[m] = sum(n, s[m,n])", "update": "l[m] = l[m] * alpha[m] + sums[m]",
              "scale": "acc[m,d] = acc[m,d] * alpha[m]", "p": "p[m,n] = s[m,n]", "pv": "acc[m,d] += sum(n, p[m,n] * V[n,d])"},
        final={"norm": "o[m,d] = acc[m,d] / l[m]", "store": "O[m,d] = o[m,d]"},
    )  # fmt: skip
    product = MatMul.split(16).unroll().pipeline(2).load(B, RF, FRAGMENTS).then(MMA)
    strategy = (
        fused.tile(m=64).to(Block).load("Q", SH, COPY).swizzle_storage().load("Q", RF, Move.tile(16).to(Warp).done())
        .split(n=32).pipeline(2).load("K", SH, COPY).swizzle_storage().load("V", SH, COPY).swizzle_storage().tile(m=16).to(Warp)
        .step("s", product).step("pv", product).done()
    )  # fmt: skip
    return strategy(fused(m=64, n=64, d=64))


def two_outputs():
    dual = Fused(
        name="dual", dims="m n k", loop="k", operands={"A": "m k", "B1": "k n", "D": "m n", "y": "m"},
        init={"u0": "u[m,n] = 0", "r0": "r[m] = 0"}, body={"u": "u[m,n] += sum(k, A[m,k] * B1[k,n])", "r": "r[m] += sum(k, A[m,k])"},
        final={"D": "D[m,n] = relu(u[m,n])", "y": "y[m] = r[m]"},
    )  # fmt: skip
    strategy = (
        dual.tile(m=64, n=64).to(Block).split(k=32).pipeline(3).load("A", SH, COPY).swizzle_storage().load("B1", SH, COPY).swizzle_storage()
        .tile(m=32, n=32).to(Warp).split(k=16).unroll().load("A", RF, FRAGMENTS).step("u", MatMul.load(B, RF, FRAGMENTS).then(MMA)).done()
    )  # fmt: skip
    return strategy(dual(m=64, n=64, k=96))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("make_bound", [layer_norm, attention, two_outputs], ids=lambda one: one.__name__)
def test_fused_kernels(make_bound):
    text = read_back(make_bound().program("sm_80"))
    assert re.search(r"^Kind \w+ = Fused\(name=", text, re.MULTILINE) and "<- Spec<<<" in text


# ------------------------------------------------------------------------------------------------------------ by hand

ADD = """
// Each thread adds one element; the last block overhangs.
Kernel vector_add
Size n
%a:[n].fp32
%b:[n].fp32
%c:[n].fp32
#2:[256].thread
Grid (n + 255) // 256
%c <- BinaryPointwise<+><<<#kernel:[_].block, #2>>>(%a, %b) {
  %4 = %a.tile(256)
  %5 = %b.tile(256)
  %6 = %c.tile(256)
  %7 = %4[block]
  %8 = %5[block]
  %9 = %6[block]
  %10 = %7[thread]
  %11 = %8[thread]
  %12 = %9[thread]
  #3 = #2.scalar()
  %12 <- BinaryPointwise<+><<<#3>>>(%10, %11)
}
"""

FIGURE_8 = """
// Input and output tensors, blocks and threads
%1:[256,64]:[1,256].fp16.GL
%2:[64,256]:[1,64].fp16.GL
%3:[256,256]:[1,256].fp16.GL
#4:[2,2]:[2,1].block
#5:[16,16]:[1,16].thread
%3 <- MatMul<<<#4, #5>>>(%1, %2) {
  Let bid_m, bid_n = #4.indices()
  Let tid_m, tid_n = #5.indices()
  For (k = 0; k < 64; k += 1) {unroll} {
    For (m = 0; m < 8; m += 1) {unroll} {
      For (n = 0; n < 8; n += 1) {unroll} {
        // Tile for thread blocks
        %6:[2,1].[128,64].fp16.GL = %1.tile([128, _])
        %7:[1,2].[64,128].fp16.GL = %2.tile([_, 128])
        %8:[2,2].[128,128].fp16.GL = %3.tile([128, 128])
        %9:[128,64].fp16.GL = %6[@bid_m, 0]
        %10:[64,128].fp16.GL = %7[0, @bid_n]
        %11:[128,128].fp16.GL = %8[@bid_m, @bid_n]
        // Tile for threads
        %12:[16,1].[8,64].fp16.GL = %9.tile([8, _])
        %13:[1,16].[64,8].fp16.GL = %10.tile([_, 8])
        %14:[16,16].[8,8].fp16.GL = %11.tile([8, 8])
        %15:[8,64].fp16.GL = %12[@tid_m, 0]
        %16:[64,8].fp16.GL = %13[0, @tid_n]
        %17:[8,8].fp16.GL = %14[@tid_m, @tid_n]
        // The computation of one thread
        %18:[].fp16.GL = %15[m, k]
        %19:[].fp16.GL = %16[k, n]
        %20:[].fp16.GL = %17[m, n]
        #21:[].block = #4.scalar()
        #22:[].thread = #5.scalar()
        %20 <- MatMul<<<#21, #22>>>(%18, %19) {accumulate=0 < k}
      }
    }
  }
}
"""

TENSOR_CORES = """
Target sm_80
%A:[64,64].fp16
%B:[64,32].fp16
%C:[64,32].fp32
#block:[_].thread
#warp:[32].thread
%C <- MatMul<<<#1:[1].block, #2:[128].thread>>>(%A, %B) {
  Let w = thread // 32
  %a_sh:Sw<3,3,3> o [64,64].fp16.SH <- Allocate<<<#block>>>()
  %b_sh:[64,32]:[40,1].fp16.SH <- Allocate<<<#block>>>()
  %acc:[64,32].fp32.RF{owner=accumulates} <- Allocate<<<#block>>>()
  %a_sh <- Move<<<#block>>>(%A)
  %b_sh <- Move<<<#block>>>(%B)
  %a_rows = %a_sh.tile(16, _)
  %a = %a_rows[w, 0]
  %c_rows = %acc.tile(16, _)
  %c = %c_rows[w, 0]
  %c <- Init<<<#warp>>>()
  For (k = 0; k < 4; k += 1) {unroll} {
    %a_rf:[16,16].fp16.RF <- Allocate<<<#warp>>>()
    %b_rf:[16,32].fp16.RF <- Allocate<<<#warp>>>()
    %a_steps = %a.tile(_, 16)
    %a_k = %a_steps[0, k]
    %b_steps = %b_sh.tile(16, _)
    %b_k = %b_steps[k, 0]
    %a_rf <- Move<<<#warp>>>(%a_k) by LDMATRIX_16x16_ROW
    %b_rf <- Move<<<#warp>>>(%b_k)
    For (n = 0; n < 4; n += 1) {unroll} {
      %b_parts = %b_rf.tile(_, 8)
      %b_n = %b_parts[0, n]
      %c_parts = %c.tile(_, 8)
      %c_n = %c_parts[0, n]
      %c_n <- MatMul<<<#warp>>>(%a_rf, %b_n) {accumulate=1} by HMMA_16816_F32
    }
  }
  %C_rows = %C.tile(16, _)
  %C_mine = %C_rows[w, 0]
  %C_mine <- Move<<<#warp>>>(%c)
}
"""

REVERSED = """
// Through shared memory, each thread reads what another wrote.
%x:[64].fp32
%y:[64].fp32
%y <- Spec<<<#1:[1].block, #2:[64].thread>>>(%x) {
  %s:[64].fp32.SH <- Allocate<<<#block:[_].thread>>>()
  %xs = %x.tile(1)
  %xt = %xs[thread]
  %ss = %s.tile(1)
  %st = %ss[thread]
  %sr = %ss[63 - thread]
  %ys = %y.tile(1)
  %yt = %ys[thread]
  %st <- Move<<<[1].thread>>>(%xt)
  If (thread < 60) {
    %yt <- UnaryPointwise<relu><<<[1].thread>>>(%sr)
  }
  If (59 < thread) {
    %yt <- Move<<<[1].thread>>>(%sr)
  }
}
"""

BY_HAND = {"add": (ADD, {"n": 1000}), "figure 8": (FIGURE_8, {}), "tensor cores": (TENSOR_CORES, {})}


def given_to(program, sizes):
    generator = np.random.default_rng(3)
    spec = program.spec
    shapes = {name: [size.evaluate(sizes) for size in spec.operands[name].shape] for name in spec.inputs}
    return {name: integers(shape, spec.operands[name].dtype, generator) for name, shape in shapes.items()}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", BY_HAND)
def test_by_hand(name, tmp_path):
    """In the simulator, with any order of warps; by the checks; in the printed text."""
    text, sizes = BY_HAND[name]
    program = parse_kernel(text)
    given = given_to(program, sizes)
    expected = program.spec.reference(*given.values())
    (output,) = program.spec.outputs
    for order in (None, random.Random(5)):
        np.testing.assert_array_equal(simulate(program.ir, given, symbols=sizes, order=order).outputs[output], expected)
    assert not [one for one in check(program.ir) if one.severity == "error"]
    host = HostProgram([Printed.of(program)], tmp_path)
    np.testing.assert_array_equal(host.run(0, given, sizes)[output], expected)
    assert read_back(program)


def test_the_generated_code_of_figure_8():
    """The indices of the paper's listing, as the printer arranges them."""
    text = parse_kernel(FIGURE_8).cuda
    for line in (
        "const int bid_m = blockIdx.x / 2;", "const int bid_n = blockIdx.x % 2;", "const int tid_m = threadIdx.x % 16;",
        "const int tid_n = threadIdx.x / 16;", "for (int k = 0; k < 64; ++k) {", "__hfma(a_source[k * 256 + m], b_source[n * 64 + k]",
    ):  # fmt: skip
        assert line in text
    assert program_shape(FIGURE_8) == (4, 256)


def program_shape(text):
    kernel = parse_kernel(text).ir
    return kernel.grid.low, kernel.threads


@needs_nvrtc
@pytest.mark.parametrize(
    ("name", "expected"), [("tensor cores", ("ldmatrix.sync", "mma.sync.aligned.m16n8k16")), ("figure 8", ("fma.rn.f16",))]
)
def test_by_hand_compiles(name, expected):
    ptx = compile_cuda(parse_kernel(BY_HAND[name][0]).cuda, "sm_80").ptx
    assert all(one in ptx for one in expected)


def test_omitted_parts_are_inferred():
    """Barriers, vector widths, instructions, addresses."""
    text = parse_kernel(TENSOR_CORES).cuda
    assert text.count("__syncthreads();") == 1 and "const uint4*" in text and "ldmatrix_x4_trans" in text
    assert "by" not in ADD.split("{", 1)[1] and [one.instruction.name for one, _ in execs(parse_kernel(ADD).ir.body)] == ["Pointwise"]


def test_a_generic_spec_has_the_meaning_of_its_parts():
    program = parse_kernel(REVERSED)
    x = np.arange(-32, 32, dtype=np.float32)
    expected = np.where(np.arange(64) < 60, np.maximum(x[::-1], 0), x[::-1])
    np.testing.assert_array_equal(simulate(program.ir, {"x": x}).outputs["y"], expected)
    assert program.cuda.count("__syncthreads()") == 1
    assert read_back(program)
    with pytest.raises(ArgumentError, match="a generic spec has no formula"):
        program.spec.reference(x)


def test_barriers_stated_by_the_text():
    """A barrier if the text requests one; none if it forbids one, and an error if that causes a race."""
    twice = REVERSED.replace("  If (thread < 60)", "  Barrier s\n  If (thread < 60)").replace("  If (59", "  Barrier\n  If (59")
    assert [one.require for one in statements(parse_kernel(twice).walked.body) if isinstance(one, SyncPoint)] == [True, True]
    assert parse_kernel(twice).cuda.count("__syncthreads()") == 2
    forbidden = REVERSED.replace("  If (thread < 60)", "  Barrier no s\n  If (thread < 60)")
    with pytest.raises(SynchronizationError):
        _ = parse_kernel(forbidden).ir


FAULTS = {
    "an element of another thread": (ADD, "%12 = %9[thread]", "%12 = %9[thread // 2]"),
    "no accumulation": (FIGURE_8, "{accumulate=0 < k}", "{accumulate=0}"),
    "another block's tile": (FIGURE_8, "%11:[128,128].fp16.GL = %8[@bid_m, @bid_n]", "%11 = %8[@bid_n, @bid_m]"),
    "another warp's rows": (TENSOR_CORES, "%a = %a_rows[w, 0]", "%a = %a_rows[3 - w, 0]"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name):
    text, right, wrong = FAULTS[name]
    assert text.count(right) == 1
    sizes = {"n": 1000} if text is ADD else {}
    try:
        program = parse_kernel(text.replace(right, wrong))
        given = given_to(program, sizes)
        (output,) = program.spec.outputs
        got = simulate(program.ir, given, symbols=sizes).outputs[output]
    except FireironError:
        return
    assert not np.array_equal(got, program.spec.reference(*given.values()))


def test_target_and_name():
    assert parse_kernel(ADD).name == "vector_add" == parse_strategy(ADD).program().name
    assert str(parse_kernel(TENSOR_CORES).architecture) == "sm_80" and str(parse_kernel(TENSOR_CORES, "sm_90").architecture) == "sm_90"
    assert parse_strategy(ADD) == parse_strategy(ADD) and hash(parse_strategy(ADD)) == hash(parse_strategy(ADD))
    assert safety(parse_kernel(ADD).ir) == safety(parse_kernel(ADD, "sm_70").ir)


def test_on_the_command_line(tmp_path, capsys):
    assert main(["show", "listing_2", "-M", "128", "-N", "128", "-K", "16", "--graphene"]) == 0
    text = capsys.readouterr().out
    path = tmp_path / "own.graphene"
    path.write_text(text)
    assert main(["emit", str(path)]) == 0
    printed = capsys.readouterr().out
    assert printed == bind(find("listing_2"), {"M": 128, "N": 128, "K": 16}).program().cuda
    assert main(["show", str(path), "--graphene"]) == 0
    assert capsys.readouterr().out == text
    for command in ("show", "check", "explain", "cost"):
        assert main([command, str(path)]) == 0, command
    assert main(["run", str(path), "--simulate"]) == 0
    path.write_text(text.replace("For (", "Fro (", 1))
    assert main(["emit", str(path)]) != 0
    assert re.search(r"line \d+, column \d+: a body cannot contain this line", capsys.readouterr().err)


# ------------------------------------------------------------------------------------------------------------ refusals

REFUSED = {
    "no spec": ("%a:[4].fp32", None, "", 2, 1, "the kernel has no spec"),
    "a misspelt word": (ADD, "#3 = #2", "Scalar #3 = #2", 20, 3, "a body cannot contain this line"),
    "an unknown tensor": (ADD, "%6[block]", "%66[block]", 16, 11, "%66 is not defined here"),
    "an unknown value": (FIGURE_8, "[m, k]", "[m, kk]", 29, 29, "'kk' is neither an integer nor a known symbol"),
    "an unknown kind": (FIGURE_8, "%3 <- MatMul", "%3 <- Matmul", 8, 1, "unknown kind of spec Matmul"),
    "an unknown instruction": (TENSOR_CORES, "HMMA_16816_F32", "HMMA", 34, 64, "no instruction is called HMMA"),
    "an instruction that does not fit": (TENSOR_CORES, "LDMATRIX_16x16_ROW", "HFMA", 0, 0, "does not perform"),
    "a body that is not closed": (ADD, "}", "", 10, 1, "the body that starts here is not closed"),
    "something behind": (ADD, "}\n", "}\nLet m = 3\n", 23, 1, "a line follows the outermost spec"),
    "a loop without a step": (FIGURE_8, "k += 1", "k += 0", 11, 28, "the step of a loop is not positive"),
    "a loop that is none": (FIGURE_8, "k < 64;", "k > 64;", 11, 3, "this is not a loop"),
    "a shape that is another": (FIGURE_8, "%6:[2,1]", "%6:[4,1]", 15, 39, "has the shape [2,1]"),
    "a name twice": (FIGURE_8, "(m = 0; m < 8; m += 1)", "(k = 0; k < 8; k += 1)", 12, 5, "k is defined twice"),
    "a name of CUDA": (FIGURE_8, "bid_m, bid_n = ", "float, bid_n = ", 9, 3, "'float' is not a name of a value"),
    "too few names": (FIGURE_8, "Let tid_m, tid_n", "Let tid_m", 10, 15, "1 names for 2 values"),
    "a parenthesis": (ADD, "%a.tile(256)", "%a.tile(256", 11, 3, "a parenthesis is not closed"),
    "a barrier for some": (
        REVERSED,
        "  If (thread < 60) {\n",
        "  If (thread < 60) {\n  Barrier\n",
        15,
        3,
        "cannot be under a condition",
    ),
    "a condition that is none": (REVERSED, "(thread < 60)", "(thread)", 15, 7, "thread is not a condition"),
    "an unknown option": (FIGURE_8, "k += 1) {unroll}", "k += 1) {unrolled}", 11, 30, "a loop has no option unrolled"),
    "no threads": (ADD, "#2:[256].thread", "#2:[_].thread", 10, 1, "the number of threads is missing"),
    "no blocks": (ADD, "Grid (n + 255) // 256\n", "", 9, 1, "the number of blocks is missing"),
    "a tile that divides nothing": (FIGURE_8, "%9.tile([8, _])", "%9.tile([7, _])", 22, 39, "7 does not divide"),
    "a tile that there is not": (FIGURE_8, "%6[@bid_m, 0]", "%6[@bid_m, 3]", 18, 33, "there is no tile 3"),
    "a field that is none": (TENSOR_CORES, "F32\n", "F32 {color=3}\n", 34, 64, "a statement of MatMul has no field color"),
    "a value that runs": (TENSOR_CORES, "F32\n", "F32 {vector=open('x')}\n", 34, 64, "is not an index expression"),
    "a level that is no number": (ADD, "Size n\n", "Size n {multiple_of=x}\n", 0, 0, "multiple_of must be a number"),
    "an option of a size": (ADD, "Size n\n", "Size n {most=3}\n", 0, 0, "a size has no option"),
    "no threads in a block": (ADD, "Size n\n", "Size n\nThreads 0\n", 0, 0, "a block cannot have 0 threads"),
    "too many threads": (ADD, "Size n\n", "Size n\nThreads 1025\n", 0, 0, "1 ... 1024"),
    "a fact that is a text": (ADD, "Size n\n", "Size n\nFact 'n is large'\n", 0, 0, "a text and a condition, in parentheses"),
    "a title without quotes": (ADD, "Size n\n", "Size n\nTitle n\n", 0, 0, "is not a text in quotes"),
    "a bound that is no number": (ADD, "Size n\n", "Size n\nResident two\n", 0, 0, "Resident must be a number"),
    "a cluster without sizes": (ADD, "Size n\n", "Size n\nCluster m, n\n", 0, 0, "is not a cluster"),
    "a cluster of no value": (ADD, "Size n\n", "Size n\nCluster 2 m\n", 0, 0, "m is not a value of the whole kernel"),
    "a level without a name": (ADD, "Size n\n", "Size n\nLevel Quad\n", 0, 0, "does not define a name"),
    "a level that is none": (ADD, "Size n\n", "Size n\nLevel Quad = 3\n", 0, 0, "is not a level"),
    "a condition without a body": (REVERSED, "If (thread < 60) {", "If (thread < 60)", 15, 3, "this is not a condition"),
    "a skip that names nothing": (REVERSED, "If (thread < 60) {", "Skip thread {", 15, 3, "this is not a Skip"),
    "a let without a value": (FIGURE_8, "Let bid_m, bid_n = #4.indices()", "Let bid_m, bid_n", 9, 3, "this is not a definition of a value"),
    "indices of no group": (FIGURE_8, "#4.indices()", "#40.indices()", 0, 0, "#40 is not a group"),
    "indices of a group without a shape": (
        TENSOR_CORES,
        "Let w = thread // 32",
        "Let w = #block.indices()",
        0,
        0,
        "the strategy determines its number of units",
    ),
    "an option of a value": (TENSOR_CORES, "thread // 32", "thread // 32 {low=0}", 0, 0, "a value has no option low"),
    "a range that ends before it begins": (TENSOR_CORES, "thread // 32", "thread // 32 {range=3..0}", 0, 0, "is not a range"),
    "a barrier of two": (REVERSED, "  If (thread < 60) {", "  Barrier s x\n  If (thread < 60) {", 15, 3, "this is not a barrier"),
    "a commit of nothing known": (REVERSED, "  If (thread < 60) {", "  Commit s\n  If (thread < 60) {", 15, 3, "this is not a commit"),
    "a step with a body": (REVERSED, "  If (thread < 60) {", "  Step {\n  If (thread < 60) {", 15, 3, "this is not a step"),
    "one unit of nothing": (ADD, "#2.scalar()", "#2.vector()", 0, 0, "does not derive a group"),
    "a spec that writes nothing": (REVERSED, "%y <- Spec", "<- Spec", 0, 0, "has no result"),
    "a tensor with a name of CUDA": (REVERSED, "%s", "%float", 0, 0, "%float is not a name of a new tensor"),
    "a tile without a size": (ADD, "%a.tile(256)", "%a.tile(m)", 0, 0, "'m' is not a size of a tile"),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_position(name):
    text, right, wrong, line, column, message = REFUSED[name]
    if right is not None:
        assert right in text
        text = text.replace(right, wrong) if name != "a body that is not closed" else text.rstrip().removesuffix("}")
    with pytest.raises(FireironError) as caught:
        _ = parse_kernel(text).walked
    assert message in str(caught.value)
    if line:
        assert str(caught.value).startswith(f"line {line}, column {column}: ")
    else:
        assert re.search(r"line \d+", str(caught.value))


def test_bodies_within_bodies_end():
    text = ADD.replace("  #3 = #2.scalar()", "  If (thread < 60) {\n" * 300 + "  #3 = #2.scalar()")
    with pytest.raises(FireironError, match="bodies are nested too deeply(.|\n)*at most"):
        parse_kernel(text)


def test_lines_about_the_whole_kernel():
    """They are read, printed unchanged, and mean the same as in the language."""
    lines = "Resident 2\nWithin 4096\nUnchecked 'by hand'\nFact ('rows are long', 256 < n)\n"
    program = parse_kernel(ADD.replace("Size n\n", f"Size n\n{lines}"))
    kernel = program.walked
    assert (making.effect_of(kernel, "resident"), making.effect_of(kernel, "within"), making.effect_of(kernel, "unchecked")) == (
        2,
        4096,
        ("by hand",),
    )
    assert [str(condition) for node in program.tree.nodes() for _, condition in node.facts] == ["256 < n"]
    text = read_back(program)
    assert all(line in text.splitlines() for line in lines.splitlines())
    threads = parse_kernel(ADD.replace("Size n\n", "Size n\nThreads 256\n").replace("#2:[256].thread", "#2:[_].thread"))
    assert threads.walked.threads == 256


def test_tiles_by_layouts():
    """A tile is a size or a layout; for adjacent elements they are equal."""
    same = ADD.replace("%a.tile(256)", "%a.tile(256:1)")
    assert parse_kernel(same).cuda == parse_kernel(ADD).cuda


@pytest.mark.parametrize("given", [None, 3, b"x", ""])
def test_no_text(given):
    with pytest.raises(FireironError):
        parse_kernel(given)


@pytest.mark.parametrize("seed", range(12))
def test_damaged_texts_raise_errors_of_the_project_only(seed):
    """Characters and lines dropped, doubled, moved and changed: the text is a kernel, or refused."""
    generator = random.Random(seed)
    texts = [ADD, FIGURE_8, TENSOR_CORES, REVERSED, graphene_text(bind(find("wmma_simple")).program("sm_80"))]
    letters = "%#[](){}<>=:;.,@_-+*/0123456789 abkmn\n\"'\\\0é"
    for _ in range(40):
        text = generator.choice(texts)
        for _ in range(generator.randint(1, 3)):
            place, end = (generator.randrange(len(text) + 1) for _ in range(2))
            match generator.randrange(5):
                case 0:
                    text = text[:place] + text[place + generator.randint(1, 3) :]
                case 1:
                    text = text[:place] + generator.choice(letters) + text[place:]
                case 2:
                    text = text[:place] + generator.choice(letters) + text[place + 1 :]
                case 3:
                    lines = text.split("\n")
                    lines.insert(generator.randrange(len(lines)), generator.choice(lines))
                    text = "\n".join(lines)
                case 4:
                    text = text[:place] + text[min(place, end) : min(place, end) + 8] + text[place:]
        try:
            _ = parse_kernel(text).walked
        except FireironError as error:
            assert str(error)


def test_literals():
    assert read_literal("-3", {}) == -3 and read_literal("-inf", {}) == float("-inf") and read_literal("RowMajor(8)", {}) == RowMajor(8)
    with pytest.raises(FireironError, match="Graphene's notation has no literal of type complex"):
        literal_text(1j)
    with pytest.raises(FireironError, match="is not a value"):
        read_literal("3 +", {})


def test_names_defined_by_earlier_statements_are_visible():
    """The statement of a shuffle, or of a fragment's store, defines the lane itself; names used later were read before their definition."""
    fragments = FR(16, 16, 16)
    store = Move.load(SRC, SH, Move.tile(16, 16).to(Warp).done()).coalesced_copy(4).done()
    chain = MatMul.tile(48, 16).to(Block).epilog(fragments, float16, Init.tile(16, 16).to(Warp).done(), store).split(k=32)
    chain = chain.load(A, SH, Move.coalesced_copy(8).done()).load(B, SH).tile(16, 16).to(Warp).split(16)
    chain = chain.load(A, fragments, Move.done()).load(B, fragments, Move.done()).done()
    program = chain(MatMul(1, 1, 1, dtype=float16, C=RowMajor)(GL, GL, GL)(Kernel)).program("sm_90")
    text = graphene_text(program)
    assert text.index("Let lane = ") < text.index("Let a_sh_thread_m = ")
    assert parse_kernel(text).cuda == program.cuda


def test_former_names_of_completion_mechanisms_are_read():
    """Older texts state `completion=Completion.BULK`."""
    float16_rows = {"dtype": float16, "c_dtype": float16, "A": RowMajor, "B": RowMajor, "C": RowMajor}
    blocks = MatMul(128, 64, 64, **float16_rows)(GL, GL, GL)(Kernel).tile(64, 64).to(Block)
    store = Move.tile(64, 64).to(Warpgroup).load(SRC, SH, Move.done()).cast_on_copy().done()
    pipelined = blocks.epilog(RF, float32, Init.done(), store).split(64).pipeline(2).warp_specialize()
    program = pipelined.load(A, SH, Move.done()).load(B, SH, Move.done()).tile(64, 64).to(Warpgroup).done().program("sm_90a")
    text = graphene_text(program)
    former = re.sub(r"mechanism=Mechanism\.(\w+)", lambda found: f"completion=Completion.{found[1].upper()}", text)
    assert former != text and parse_kernel(former, "sm_90a").cuda == parse_kernel(text, "sm_90a").cuda
