"""The listings of the Graphene paper as printed, as texts that a user pastes: Figures 8 and 1d, and variants of their lines."""

import os
import random
import re

import numpy as np
import pytest
from figure_8 import SMALLEST, Interpreter, Unknown, mutated
from printed_text import HostProgram, Printed
from problems import integers

from fireiron import *
from fireiron.check import check
from fireiron.cli import main
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.sim import simulate
from fireiron.values.notation import parse_threads, threads_text, tiled

needs_nvrtc = pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")

FIGURE_8 = """
%1:[1024, 1024].fp16.GL
%2:[1024, 1024].fp16.GL
%3:[1024, 1024].fp16.GL
#4:[8, 8].block
#5:[16, 16].thread
%3 <- Spec <<< #4, #5>>> (%1, %2) {
  @bid_m, @bid_n = #4.indices()
  @tid_m, @tid_n = #5.indices()
  for(k=0; k < 1024; k += 1) {
    for(m=0; m < 8; m += 1) {
      for(n=0; n < 8; n += 1) {
        // Tile for thread blocks
        %6:[8, 1].[ 128, 1024].fp16.GL = %1.tile([128, _])
        %7:[1, 8].[1024, 128].fp16.GL = %2.tile([ _, 128])
        %8:[8, 8].[ 128, 128].fp16.GL = %3.tile([128, 128])
        %9:[ 128, 1024].fp16.GL = %6[@bid_m, 0]
        %10:[1024, 128].fp16.GL = %7[ 0, @bid_n]
        %11:[ 128, 128].fp16.GL = %8[@bid_m, @bid_n]

        // Tile for threads
        %12:[16, 1].[ 8, 1024].fp16.GL = %9.tile([ 8, _])
        %13:[ 1, 16].[1024, 8].fp16.GL = %10.tile([ _, 8])
        %14:[16, 16].[ 8, 8].fp16.GL = %11.tile([8, 8])
        %15:[ 8, 1024].fp16.GL = %12[@tid_m, 0]
        %16:[1024, 8].fp16.GL = %13[ 0, @tid_n]
        %17:[ 8, 8].fp16.GL = %14[@tid_m, @tid_n]

        // Sequential scalar computation
        %18:[].fp16.GL = %15[m, k]
        %19:[].fp16.GL = %16[k, n]
        %20:[].fp16.GL = %17[m, n]
        #21:[].block = #4.scalar()
        #22:[].thread = #5.scalar()
        %20 <- MatMul <<< #21, #22>>> (%18, %19)
      }
    }
  }
}
"""
"""The paper's text, unchanged."""

BY_COLUMNS = (
    FIGURE_8.replace("1024].fp16.GL\n", "1024]:[1,1024].fp16.GL\n")
    .replace("8].block", "8]:[1,8].block")
    .replace("16].thread", "16]:[1,16].thread")
)
"""With the strides of the paper's generated code, which its text omits."""

FIGURE_1D = """
%src : [16, 16].fp16.GL
%dst : [16, 16].fp16.GL
#3 : [ 1].block
#4 : [32].thread // Logical Thread Groups (Sec.4)
%dst <- Spec<<<#3, #4>>>(%src) {
  %1 : [16, 16].fp16.SH <- Allocate<<<#3, #4>>>() // src
  %2 : [ 2, 4].fp16.RF <- Allocate<<<[1].thread>>>() // dst
  %1 <- Move<<<#3, #4>>>(%src)
  %2 <- Move<<<#3, #4>>>(%1) { // Decomposable Specs (Sec.5)
    // Reshape the warp into 2x2 groups of 8 threads
    #5 : [4].[8].thread = #4.tile(8)
    #6 : [2,2].[8].thread = #5.reshape(0, [2,2])
    (@thr_grp_m, @thr_grp_n), @grp_local_idx = #6.indices()
    // Tile and map shared mem (see a) one 1x8 row per thread.
    %7 : [2, 2].[8, 8].fp16.SH = %1.tile([8, 8])
    %8 : [8, 8].fp16.SH = %7[@thr_grp_m, @thr_grp_n]
    %9 : [8, 1].[1, 8].fp16.SH = %8.tile([1, 8])
    %10 : [1, 8].fp16.SH = %9[@grp_local_idx, 0]
    // Each thread receives 8 vals - 2x2 * 1x2 (see b)
    %11 : [2, 2].[1, 2].fp16.RF = %2.tile([1, 2])
    %11 <- Move<<<#3, #4>>>(%10) }
  #8 : [8,4].thread = #4.reshape(0, [8,4])
  @row, @col = #8.indices()
  For (i = 0; i < 2; i += 1) {
    For (j = 0; j < 2; j += 1) {
      %12 : [2, 2].[8, 8].fp16.GL = %dst.tile([8, 8])
      %13 : [8, 8].fp16.GL = %12[i, j]
      %14 : [8, 4].[1, 2].fp16.GL = %13.tile([1, 2])
      %15 : [1, 2].fp16.GL = %14[@row, @col]
      %16 : [2, 2].[1, 2].fp16.RF = %2.tile([1, 2])
      %17 : [1, 2].fp16.RF = %16[i, j]
      %15 <- Move<<<[1].thread>>>(%17)
    }
  }
}
"""
"""The paper's lines from `%2 <- Move` to its brace, unchanged; the lines around them load and store the data."""

OWN_THREADS = """
%x:[64].fp32.GL
%y:[64].fp32.GL
#1:[1].block
#2:[64].thread
%y <- Spec<<<#1, #2>>>(%x) {
  %3:[64].fp32.SH <- Allocate<<<#1, #2>>>()
  %3 <- Move<<<#1, #2>>>(%x)
  #t:[64].thread
  %y <- UnaryPointwise<relu><<<#2>>>(%3) {
    @i = #2.indices()
    %4:[].fp32.SH = %3[63 - @i]
    %5:[].fp32.GL = %y[@i]
    %5 <- UnaryPointwise<relu><<<#1, [1].thread>>>(%4)
  }
}
"""
"""A decomposed spec for all threads of the block: each thread reads what another one wrote."""


def smaller(text):
    """The listing on 64 x 16 by 16 x 64, with blocks of 32 x 32 and 4 x 4 threads."""
    sizes = {"1024, 1024": "64, 64", "8, 8].block": "2, 2].block", "16, 16].thread": "4, 4].thread", "k < 1024": "k < 64"}
    sizes |= {
        "[8, 1]": "[2, 1]",
        "[1, 8]": "[1, 2]",
        "[8, 8].[": "[2, 2].[",
        "[16, 1]": "[4, 1]",
        "[ 1, 16]": "[1, 4]",
        "[16, 16].[": "[4, 4].[",
    }
    for old, new in sizes.items():
        text = text.replace(old, new)
    return re.sub(r"\b128\b", "32", text.replace("1024", "64"))


def inputs_of(program):
    generator = np.random.default_rng(7)
    spec = program.spec
    shapes = {name: [int(size.evaluate({})) for size in spec.operands[name].shape] for name in spec.inputs}
    return {name: integers(shape, spec.operands[name].dtype, generator) for name, shape in shapes.items()}


def read_back(program):
    text = graphene_text(program)
    again = parse_kernel(text)
    assert again.cuda == program.cuda and graphene_text(again) == text


# ------------------------------------------------------------------------------------------------------------ Figure 8


def test_figure_8_means_the_product(tmp_path):
    """In the simulator with any order of warps, and in the printed text, compared with NumPy; its text reads back."""
    program = parse_kernel(smaller(FIGURE_8))
    given = inputs_of(program)
    expected = given["t1"].astype(np.float64) @ given["t2"].astype(np.float64)
    for order in (None, random.Random(5)):
        np.testing.assert_array_equal(simulate(program.ir, given, order=order).outputs["t3"], expected)
    assert not [finding for finding in check(program.ir) if finding.severity == "error"]
    np.testing.assert_array_equal(HostProgram([Printed.of(program)], tmp_path).run(0, given, {})["t3"], expected)
    read_back(program)


def test_figure_8_as_printed():
    """All of its sizes; names in CUDA derive from those of the text."""
    program = parse_kernel(FIGURE_8)
    assert (program.ir.grid.low, program.ir.threads) == (64, 256)
    assert "spec(const __half* __restrict__ t1, const __half* __restrict__ t2, __half* __restrict__ t3)" in program.cuda
    assert "k > 0 ? t3_target[m * 1024 + n] : __float2half_rn(0.0f)" in program.cuda
    read_back(program)


def test_figure_8_with_the_strides_of_its_generated_code():
    """G086: the indices of the paper's CUDA, with column-major tensors and groups."""
    program = parse_kernel(BY_COLUMNS)
    for line in (
        "const int bid_m = blockIdx.x % 8;", "const int bid_n = blockIdx.x / 8;", "const int tid_m = threadIdx.x % 16;",
        "t3 + bid_n * 128 * 1024 + tid_n * 8 * 1024 + bid_m * 128 + tid_m * 8", "t3_target[n * 1024 + m]",
    ):  # fmt: skip
        assert line in program.cuda, line


@needs_nvrtc
@pytest.mark.parametrize("target", ["sm_80", "sm_86"])
def test_figure_8_compiles(target):
    assert "fma.rn.f16" in compile_cuda(parse_kernel(FIGURE_8, target).cuda, target).ptx


def test_figure_8_of_a_kind_is_compared(tmp_path, capsys):
    """The outermost spec has a formula by its kind; a generic one has none, which `run` reports."""
    path = tmp_path / "figure_8.graphene"
    path.write_text(smaller(FIGURE_8).replace("%3 <- Spec", "%3 <- MatMul"))
    assert main(["run", str(path), "--simulate"]) == 0
    path.write_text(smaller(FIGURE_8))
    assert main(["show", str(path)]) == 0
    capsys.readouterr()
    assert main(["run", str(path), "--simulate"]) != 0
    assert "a generic spec has no formula" in capsys.readouterr().err


def test_names_of_numbers_are_names_in_cuda():
    """An existing name t1 is unchanged; the number gets another name."""
    text = smaller(FIGURE_8).replace("%2", "%t1")
    assert list(parse_kernel(text).spec.operands) == ["t1_", "t1", "t3"]


# ------------------------------------------------------------------------------------------------------------ accumulation

PRODUCT = "%20 <- MatMul <<< #21, #22>>> (%18, %19)"


def accumulates(text):
    (accumulate,) = re.findall(r"accumulate=(.*?)}", graphene_text(parse_kernel(text))) or ["0"]
    return accumulate


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("", "", "0 < k"),
        ("for(k=0", "for(k=1", "1 < k"),
        ("%17[m, n]", "%17[m, 0]", "any_of((0 < k, 0 < n,))"),
        ("  for(k=0", "  #23 = #5.scalar()\n  %30 = %3.tile([16, 16])\n  %31 = %30[@bid_m, @bid_n]\n  for(k=0", "0 < k"),
        (PRODUCT, f"{PRODUCT} {{accumulate=1 < k}}", "1 < k"),
        (PRODUCT, f"{PRODUCT} {{accumulate=0}}", "0"),
    ],
)
def test_when_a_product_adds(old, new, expected):
    assert accumulates(smaller(FIGURE_8).replace(old, new, 1) if old else smaller(FIGURE_8)) == expected


INIT = """
  for(i=0; i < 8; i += 1) {
    for(j=0; j < 8; j += 1) {
      %8 = %3.tile([32, 32])
      %11 = %8[@bid_m, @bid_n]
      %14 = %11.tile([8, 8])
      %17 = %14[@tid_m, @tid_n]
      %20 = %17[i, j]
      %20 <- Init<2><<<[1].thread>>>()
    }
  }
"""


def test_after_an_init_all_products_accumulate():
    program = parse_kernel(smaller(FIGURE_8).replace("  for(k=0", f"{INIT}  for(k=0"))
    given = inputs_of(program)
    expected = given["t1"].astype(np.float64) @ given["t2"].astype(np.float64) + 2
    np.testing.assert_array_equal(simulate(program.ir, given).outputs["t3"], expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            smaller(FIGURE_8).replace("  for(k=0", f"{INIT.replace('i < 8', 'i < 4')}  for(k=0"),
            "none of them is known to write all of this part",
        ),
        (smaller(FIGURE_8).replace(PRODUCT, f"If (k < 8) {{ \n{PRODUCT} }}"), "a condition may exclude iterations of k"),
        (smaller(FIGURE_8).replace("%17[m, n]", "%17[(m + n) // 2, n]"), "several iterations of m may write the same element of %t3"),
    ],
    ids=["part of it is written", "a condition", "one element in several turns"],
)
def test_a_product_without_stated_accumulation(text, message):
    with pytest.raises(LayoutError, match=re.escape(message)):
        parse_kernel(text)


# ------------------------------------------------------------------------------------------------------------ Figure 1d, groups


def test_figure_1d_moves_the_matrix(tmp_path):
    """A warp's `ldmatrix`, stated by the addresses and registers of one thread; each thread stores its own registers."""
    program = parse_kernel(FIGURE_1D, "sm_80")
    source = np.random.default_rng(2).integers(-99, 99, (16, 16)).astype(np.float16)
    np.testing.assert_array_equal(simulate(program.ir, {"src": source}).outputs["dst"], source)
    assert not [finding for finding in check(program.ir) if finding.severity == "error"]
    for line in (
        "const int thr_grp_m = threadIdx.x / 16;", "const int thr_grp_n = threadIdx.x / 8 % 2;",
        "ldmatrix_x4(t2, t1_address + thr_grp_m * 8 * 32 + grp_local_idx * 32 + thr_grp_n * 16);",
    ):  # fmt: skip
        assert line in program.cuda
    text = graphene_text(program)
    assert parse_kernel(text).cuda == program.cuda and graphene_text(parse_kernel(text)) == text


@needs_nvrtc
def test_figure_1d_is_one_ldmatrix():
    ptx = compile_cuda(parse_kernel(FIGURE_1D, "sm_80").cuda, "sm_80").ptx
    assert ptx.count("ldmatrix.sync.aligned.m8n8.x4.shared.b16") == 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("%11 <- Move<<<#3, #4>>>(%10)", "%2 <- Move<<<#3, #4>>>(%10)", "is not tiled into the matrices"),
        ("%11 : [2, 2].[1, 2].fp16.RF = %2.tile([1, 2])", "%11 = %2.tile([2, 1])", "each thread receives [1,4].[2,1]"),
        ("%10 : [1, 8].fp16.SH = %9[", "%9 = %8.tile(_, 2)\n    %10 = %9[0 * ", "each thread addresses [8,2]"),
        ("%11 <- Move<<<#3, #4>>>(%10)", "%11 <- Move<<<#3, #9:[16].thread>>>(%10)", "no level has the units"),
        ("%1.tile([8, 8])", "%src.tile([8, 8])", "%7 has type fp16 and memory GL"),
    ],
)
def test_moves_that_no_instruction_of_a_warp_does(old, new, message):
    text = FIGURE_1D.replace(old, new, 1)
    with pytest.raises(LayoutError, match=re.escape(message)):
        parse_kernel(text)


def test_half_a_warp_does_not_take_part():
    """A warp instruction for some of its threads: Figure 1d, and a named one."""
    half = FIGURE_1D.replace("%11 <- Move<<<#3, #4>>>(%10) }", "If (thread < 16) {\n    %11 <- Move<<<#3, #4>>>(%10) } }")
    named = """
%a:[16,16].fp16
%b:[16,16].fp16
#warp:[32].thread
#1:[1].block
#2:[64].thread
%b <- Spec<<<#1, #2>>>(%a) {
  %s:[16,16].fp16.SH <- Allocate<<<#1, #2>>>()
  %s <- Move<<<#1, #2>>>(%a)
  %r:[16,16].fp16.RF <- Allocate<<<#warp>>>()
  If (thread < 32) {
    %r <- Move<<<#warp>>>(%s) by LDMATRIX_16x16_ROW
    %b <- Move<<<#warp>>>(%r)
  }
}
"""
    for text in (half, named.replace("thread < 32", "thread < 16")):
        with pytest.raises(DecompositionError, match="all 32 threads of a unit execute LDMATRIX_16x16_ROW"):
            _ = parse_kernel(text, "sm_80").ir
    array = np.arange(256, dtype=np.float16).reshape(16, 16)
    np.testing.assert_array_equal(simulate(parse_kernel(named, "sm_80").ir, {"a": array}).outputs["b"], array)


def test_targets_without_the_instruction_are_refused():
    with pytest.raises(MatchError, match="target requires sm_75 or newer"):
        _ = parse_kernel(FIGURE_1D, "sm_70").ir


def test_groups_tiled_and_reshaped():
    warp = parse_threads("#4:[32].thread")
    assert threads_text(tiled(warp, (8,))) == "[4]:[8].[8]:[1].thread"
    assert threads_text(tiled(tiled(warp, (8,)), (4,))) == "[4]:[8].[2]:[4].[4]:[1].thread"
    assert threads_text(tiled(warp, (Layout((4, 2), (1, 16)),))) == "[4]:[4].[(4,2)]:[(1,16)].thread"  # Figure 6
    assert threads_text(tiled(parse_threads("#5:[16,16].thread"), (4, None))) == "[4,1]:[64,0].[4,16]:[16,1].thread"
    for size in (5, 64, Layout(2, 3)):
        with pytest.raises(LayoutError):
            tiled(warp, (size,))


GROUPS = {
    "another shape": ("#5 : [4].[8].thread", "#5 : [8].[4].thread", "#5 is [4]:[8].[8]:[1].thread"),
    "other units": ("#5 : [4].[8].thread", "#5 : [4].[8].block", "#5 is [4]:[8].[8]:[1].thread"),
    "units left over": ("#4.tile(8)", "#4.tile(5)", "groups of 5 units do not divide 32"),
    "a size for each dimension": ("#4.tile(8)", "#4.tile(8, 4)", "2 sizes for the 1 dimensions"),
    "too many units": ("#5.reshape(0, [2,2])", "#5.reshape(0, [2,4])", "does not number 4 units"),
    "no such shape": ("#5.reshape(0, [2,2])", "#5.reshape(2, [2,2])", "has no shape 2"),
    "names of other shapes": (
        "(@thr_grp_m, @thr_grp_n), @grp_local_idx",
        "@thr_grp_m, (@thr_grp_n, @grp_local_idx)",
        "1 names for 2 values",
    ),
    "fewer names": ("(@thr_grp_m, @thr_grp_n), @grp_local_idx", "(@thr_grp_m, @thr_grp_n)", "1 names for 2 shapes"),
    "a tensor of a group": ("%2.tile([1, 2])", "#4.tile([1, 2])", "cannot define %11 by #4"),
}


@pytest.mark.parametrize("name", GROUPS)
def test_groups_that_are_none(name):
    old, new, message = GROUPS[name]
    assert old in FIGURE_1D
    with pytest.raises(LayoutError, match=rf"line \d+, column \d+: .*{re.escape(message)}"):
        parse_kernel(FIGURE_1D.replace(old, new))


@pytest.mark.parametrize("threads", [32, 64, 128, 256])
@pytest.mark.parametrize("execution", ["#2", "#1, #2"])
def test_a_spec_by_all_threads_of_the_block(threads, execution):
    """G050: the block's own threads, whether or not a level has as many."""
    text = OWN_THREADS.replace("<<<#2>>>", f"<<<{execution}>>>").replace("64", str(threads)).replace("63", str(threads - 1))
    program = parse_kernel(text)
    x = np.arange(threads, dtype=np.float32) - 7
    np.testing.assert_array_equal(simulate(program.ir, {"x": x}).outputs["y"], np.maximum(x[::-1], 0))
    read_back(program)


@pytest.mark.parametrize("group", ["[48].thread", "[64:2].thread", "[128,2].thread", "[65].thread"])
def test_threads_that_no_block_has(group):
    with pytest.raises(LayoutError, match="no level has the units of"):
        parse_kernel(OWN_THREADS.replace("<<<#2>>>", f"<<<#1, #9:{group}>>>"))


# ------------------------------------------------------------------------------------------------------------ refusals

REFUSED = {
    "an operand twice": ("(%1, %2) {", "(%1, %1) {", "the outermost spec names %1 twice"),
    "a result that is an operand": ("(%1, %2) {", "(%1, %2, %3) {", "the outermost spec names %3 twice"),
    "a tensor that is no operand": ("%18, %19)", "%18, %19z:[].fp16.GL)", "%19z is not a tensor of the kernel"),
    "an operand that the kernel lacks": ("(%1, %2) {", "(%1) {", "%2 is not a tensor of the kernel"),
    "a result that the kernel lacks": ("%20 <- MatMul", "%20z:[].fp16.GL <- MatMul", "%20z is not a tensor of the kernel"),
    "tiles of tiles": ("= %9.tile(", "= %6.tile(", "%6 is already tiled"),
    "tiles where a tensor stands": ("(%18, %19)", "(%18, %13)", "%13 is a tensor of tiles"),
    "another type": ("%9:[ 32, 64].fp16.GL", "%9:[ 32, 64].fp32.GL", "%9 has type fp16 and memory GL"),
    "another memory": ("%9:[ 32, 64].fp16.GL", "%9:[ 32, 64].fp16.SH", "%9 has type fp16 and memory GL"),
    "another shape of a tile": ("%6:[2, 1].[ 32, 64]", "%6:[2, 1].[ 64, 32]", "%6 has the shape [2,1].[32,64]"),
    "other strides": ("%6:[2, 1].[ 32, 64]", "%6:[2,1:2048,0].[32,64:1,64]", "the declared strides of %6 are wrong"),
    "a loop without an iteration": ("for(k=0; k < 64", "for(k=64; k < 64", "the loop has no iterations"),
    "another unit": ("#22:[].thread", "#22:[].block", "#22 is [].thread"),
    "a name of CUDA": ("%3", "%float", "%float is not a name of a tensor"),
    "a tensor in a body": (
        "        // Tile for thread",
        "        %3:[64, 64].fp16.GL\n        // Tile for thread",
        "a body cannot contain this line",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_position(name):
    old, new, message = REFUSED[name]
    text = smaller(FIGURE_8)
    assert old in text
    with pytest.raises(LayoutError, match=rf"line \d+, column \d+: (.|\n)*{re.escape(message)}"):
        parse_kernel(text.replace(old, new))


def test_explicit_right_strides_are_accepted():
    text = smaller(FIGURE_8).replace("%6:[2, 1].[ 32, 64].fp16", "%6:[2,1:2048,0].[32,64:64,1].fp16")
    assert parse_kernel(text).cuda == parse_kernel(smaller(FIGURE_8)).cuda


def test_braces_and_remarks_at_the_end_of_lines():
    text = re.sub(r"\)\n      \}\n    \}\n", ") } } // both\n", smaller(FIGURE_8)).replace("{\n", "{ // (a remark\n")
    text = text.replace("= #4.scalar()\n", "= #4.scalar() // one block\n")
    assert parse_kernel(text).cuda == parse_kernel(smaller(FIGURE_8)).cuda


FIGURES_4_TO_6 = """
%A:[4,8 : 1,4].fp32.GL
%Z:[4,8 : 1,4].fp32.GL
#1:[1].block
#4:[32].thread
%Z <- Spec<<<#1, #4>>>(%A) {
  %B:[2,2 : 2,16].[2,4 : 1,4].fp32 = %A.tile([2:1],[4:1])
  %C:[2,2 : 1,16].[2,4 : 2,4].fp32 = %A.tile([2:2],[4:1])
  %D:[2,2 : 1,8].[2,(2,2) : 2,(4,16)].fp32 = %A.tile([2:2],[(2,2):(1,4)])
  #5:[4].[8].thread = #4.tile(8)
  #6:[2,2].[8].thread = #5.reshape(0, [2,2])
  #7:[4:4].[(4,2):(1,16)].thread = #4.tile([(4,2):(1,16)])
  (@m, @n), @i = #6.indices()
  (@quad), (@place) = #7.indices()
  %E = %A.tile(1, 1)
  %F = %E[@i % 4, @m * 4 + @n * 2 + @i // 4]
  %G = %Z.tile(1, 1)
  %H = %G[@place % 4, @quad * 2 + @place // 4]
  %F2 = %E[@place % 4, @quad * 2 + @place // 4]
  %H <- Move<<<[1].thread>>>(%F2)
}
"""


def test_figures_4_to_6():
    """Their tensors and groups with the strides printed in the figures, as lines of a kernel."""
    program = parse_kernel(FIGURES_4_TO_6)
    array = np.arange(32, dtype=np.float32).reshape(4, 8)
    np.testing.assert_array_equal(simulate(program.ir, {"A": array}).outputs["Z"], array)
    for right, wrong in (
        ("2,4 : 1,4].fp32 = %A.tile([2:1]", "2,4 : 2,4].fp32 = %A.tile([2:1]"),
        ("[4:4].[(4,2):(1,16)]", "[4:8].[(4,2):(1,16)]"),
    ):
        with pytest.raises(LayoutError):
            parse_kernel(FIGURES_4_TO_6.replace(right, wrong))
    assert "thread / 16" in program.cuda or "threadIdx.x / 16" in program.cuda


# ------------------------------------------------------------------------------------------------------------ mutations

FUZZ = int(os.environ.get("FIREIRON_FUZZ", "1"))


@pytest.mark.parametrize("seed", range(8))
def test_mutations_have_the_meaning_of_their_text(seed):
    """Tokens and lines of Figure 8 removed, exchanged, doubled: refused by an error of the project, or equal to an interpreter of the text."""
    generator = random.Random(seed)
    accepted = 0
    for _ in range(40 * FUZZ):
        text = mutated(SMALLEST, generator)
        try:
            program = parse_kernel(text, "sm_80")
            ir = program.ir
            assert program.cuda
        except FireironError as error:
            assert str(error)
            continue
        given = inputs_of(program)
        try:
            expected, written = Interpreter(text).run(*given.values())
        except Unknown:
            continue
        (got,) = simulate(ir, given).outputs.values()
        np.testing.assert_array_equal(np.where(written, got, 0), np.where(written, expected, 0), text)
        read_back(program)
        accepted += 1
    assert accepted, "some mutations are kernels"


def test_the_interpreter_distinguishes_results():
    """It is an oracle: for the figure it computes the product, for another element another result."""
    program = parse_kernel(SMALLEST)
    given = inputs_of(program)
    product = given["t1"].astype(float) @ given["t2"].astype(float)
    for text, same in ((SMALLEST, True), (SMALLEST.replace("%16[k, n]", "%16[k, 0]"), False)):
        got, written = Interpreter(text).run(*given.values())
        assert written.all() and np.array_equal(got, product) == same
