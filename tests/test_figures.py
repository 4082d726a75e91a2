"""Graphene's gray boxes in the printed CUDA C++: the indices of its Figures 5, 6 and 8, up to names."""

import re

import pytest

from fireiron import *
from fireiron.language import library
from fireiron.values.expr import Var
from fireiron.values.notation import read_expression

LETS = re.compile(r"  const int (\w+) = (.*);")
POINTERS = re.compile(r"  (?:const )?\w+\* const (\w+) =\s+(\w+) \+ ([^;]*);", re.DOTALL)


def read(text, names):
    """A C index as an expression, with names replaced by their values."""
    plain = re.sub(r"\(long long\)", "", text).replace("blockIdx.x", "block").replace("threadIdx.x", "thread").replace("/", "//")
    return read_expression(" ".join(plain.split()), names)


def lets(cuda, blocks, threads):
    """The named values of a kernel as expressions of the block and thread numbers, and those numbers themselves."""
    names = {"block": Var("block", 0, blocks - 1), "thread": Var("thread", 0, threads - 1)}
    for name, text in LETS.findall(cuda):
        names[name] = read(text, names)
    return names


def equal(left, other, blocks, threads):
    """Whether two expressions of block and thread are equal for all launched ones."""
    return all(
        left.evaluate({"block": block, "thread": thread}) == other.evaluate({"block": block, "thread": thread})
        for block in range(blocks)
        for thread in range(threads)
    )


GROUP = Level("Group", Warp, Layout(8))
ROWS = lambda warps: Move.tile(32 * warps, 8).to(Block).tile(32, 8).to(Warp)
FIGURES = {
    "5a": (
        Move.tile(64, 1).to(Block).tile(32, 1).to(Warp).tile(1, 1).to(Lane).done(), (64, 1), 64,
        ["lane = threadIdx.x % 32"], {"lane": "threadIdx.x % 32"},
    ),
    "5b": (
        ROWS(1).tile(8, 8).to(GROUP).tile(1, 8).to(Thread).tile(1, 1).done(), (32, 8), 32,
        ["group = threadIdx.x / 8", "group_thread = threadIdx.x % 8"], {"group": "threadIdx.x / 8", "group_thread": "threadIdx.x % 8"},
    ),
    "5c": (
        Move.tile(32, 16).to(Block).tile(16, 16).to(Warp).tile(8, 8).to(GROUP).tile(1, 8).to(Thread).tile(1, 1).done(), (32, 16), 64,
        ["group = threadIdx.x / 8 % 4", "group_n = group % 2", "group_m = group / 2", "group_thread = threadIdx.x % 8"],
        {"group_m": "(threadIdx.x / 16) % 2", "group_n": "(threadIdx.x / 8) % 2", "group_thread": "threadIdx.x % 8"},
    ),
    "6": (
        ROWS(2).tile(8, 8).to(QuadPair).tile(2, 4).to(Thread).layout(ColMajor).tile(1, 1).done(), (64, 8), 64,
        ["quadpair = threadIdx.x / 4 % 4", "quadpair_thread = threadIdx.x / 16 % 2 * 4 + threadIdx.x % 4", "thread_m = quadpair_thread % 4"],
        {"quadpair": "(threadIdx.x / 4) % 4", "thread_m": "threadIdx.x % 4", "thread_n": "(threadIdx.x / 16) % 2"},
    ),
}  # fmt: skip
"""A strategy whose tiles are assigned to the figure's groups, sizes, threads; lines of its kernel; and the paper's box with the kernel's
names.
"""


@pytest.mark.parametrize("figure", FIGURES)
def test_indices_of_threads_in_groups(figure):
    strategy, sizes, threads, lines, boxes = FIGURES[figure]
    cuda = strategy(Move(*sizes)(GL, GL)(Kernel)).program("sm_80").cuda
    assert f"<<<1, {threads}>>>" in cuda
    for line in lines:
        assert f"  const int {line};\n" in cuda
    names = lets(cuda, 1, threads)
    for name, box in boxes.items():
        assert equal(names[name], read(box, names), 1, threads), name


FIGURE_8 = {
    "block_m": "blockIdx.x % 8", "block_n": "(blockIdx.x / 8) % 8",
    "thread_m": "threadIdx.x % 16", "thread_n": "(threadIdx.x / 16) % 16",
    "A": "((block_m * 128)) + ((thread_m * 8)) + (m + (k * 1024))",
    "B": "((block_n * 131072) + (thread_n * 8192)) + (k + (n * 1024))",
    "C": "(((block_m * 128) + (block_n * 131072)) + ((thread_m * 8) + (thread_n * 8192))) + (m + (n * 1024))",
}  # fmt: skip
"""The paper's generated indices; it prints that of C, and those of A and B follow from its tiles."""


def figure_8():
    spec = MatMul(1024, 1024, 1024, dtype=float16)(GL, GL, GL)(Kernel)
    return library.find("naive").strategy(spec).program("sm_90").cuda


def test_the_kernel_of_figure_8():
    """Every address that it accesses is the paper's, as an expression; so are the numbers of blocks and threads."""
    cuda = figure_8()
    assert "<<<64, 256>>>" in cuda and "__hfma(" in cuda
    for line in ("block_m = blockIdx.x % 8", "block_n = blockIdx.x / 8", "thread_m = threadIdx.x % 16", "thread_n = threadIdx.x / 16"):
        assert f"  const int {line};\n" in cuda
    names = lets(cuda, 64, 256)
    for name in ("block_m", "block_n", "thread_m", "thread_n"):
        assert names[name] == read(FIGURE_8[name], names), "the remainder that the paper writes is one that no launched unit needs"
    units = {name: Var(name, 0, 15) for name in ("block_m", "block_n", "thread_m", "thread_n")}
    units |= {"k": Var("k", 0, 1023), "m": Var("m", 0, 7), "n": Var("n", 0, 7)}
    accesses_by_tensor = {
        tensor: {f"{pointer}[{index}]" for index in re.findall(rf"\b{pointer}\[([^]]*)\]", cuda)}
        for pointer, tensor, _ in POINTERS.findall(cuda)
    }
    starts = {tensor: read(start, units) for _, tensor, start in POINTERS.findall(cuda)}
    assert set(accesses_by_tensor) == set("ABC")
    for tensor, accesses in accesses_by_tensor.items():
        (access,) = accesses
        index = read(access.partition("[")[2].removesuffix("]"), units)
        assert starts[tensor] + index == read(FIGURE_8[tensor], units), tensor


def test_these_tests_detect_differences():
    """The control: another block order, another step or another group no longer match the paper."""
    units = {name: Var(name, 0, 15) for name in ("block_m", "block_n", "thread_m", "thread_n", "m", "n")}
    assert read(FIGURE_8["C"], units) != read(FIGURE_8["C"].replace("8192", "8193"), units)
    by_rows = MatMul.tile(128, 128).to(Block).tile(8, 8).to(Thread).layout(ColMajor).split(1).tile(1, 1).done()
    cuda = by_rows(MatMul(1024, 1024, 1024)(GL, GL, GL)(Kernel)).program("sm_90").cuda
    names = lets(cuda, 64, 256)
    assert names["block_m"] != read(FIGURE_8["block_m"], names) and names["thread_m"] == read(FIGURE_8["thread_m"], names)
    thread = Var("thread", 0, 31)
    assert not equal(thread // 8, thread // 4 % 4, 1, 32) and equal(thread // 8 % 4, thread // 8, 1, 32)
