"""The text of a legal strategy compiles with every installed CUDA compiler: unread names, and types without an overload in CUDA."""

import itertools
import re

import pytest

from fireiron import *
from fireiron.gpu.toolchain import compile_cuda, toolchains


def require_compiled(program):
    """Require that all compilers of its target accept the text without a warning."""
    arch = str(program.architecture)
    for compiler in toolchains():
        if compiler.serves(arch):
            compile_cuda(program.cuda, arch, newest=compiler.version)
    return program.cuda


@pytest.mark.parametrize("size", [8, 128])
def test_an_unread_temporary_in_shared_memory(size):
    """One array, and several that share one: compilers warn (#550-D) unless the text suppresses it."""
    each = {"t": "t[m,n] = X[m,n] * 2", "o": "Y[m,n] = X[m,n]"}
    definition = Fused(name="unread", dims="m n", operands={"X": "m n", "Y": "m n"}, body=each)
    strategy = definition.tile(m=size, n=128).to(Block).set_memory("t", SH).tile(m=1, n=1).to(Thread) if size == 8 else (
        definition.tile(m=size, n=128).to(Block).set_memory("t", SH).tile(m=16, n=8).to(Thread).tile(m=1, n=1)
    )  # fmt: skip
    text = require_compiled(strategy.done()(definition(m=size, n=256, dtype=float32)).program("sm_80"))
    declared = next(line for line in text.splitlines() if re.search(r"\bt\[1024\]|\* const t =", line))
    assert declared.lstrip().startswith("[[maybe_unused]]")


def over_inner_ring(outer, inner, k, stages):
    """GEMMs with a ring over k inside two loops, one step at a time."""
    definition = Fused(
        name="nested", dims="m n k r s", scan="r s", operands={"X": "r s m k", "W": "r s k n", "Y": "m n"}, init={"zero": "acc[m,n] = 0"},
        body={"mm": "acc[m,n] += sum(k, X[r,s,m,k] * W[r,s,k,n])"}, final={"store": "Y[m,n] = acc[m,n]"},
    )  # fmt: skip
    ring = MatMul.split(32).pipeline(stages).warp_specialize().load(A, SH, Move.done()).load(B, SH, Move.done())
    blocks = definition.tile(m=64, n=64).to(Block)
    strategy = blocks.split(r=1).split(s=1).step("mm", ring.tile(64, 64).to(Warpgroup).done()).done()
    return strategy(definition(m=128, n=128, k=k, r=outer, s=inner, dtype=float16))


DECLARED = re.compile(r"\b(?:int|unsigned|long long) (\w+) =\s")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("outer", [2, 3])
def test_a_ring_inside_two_loops_names_only_what_is_read(outer):
    """The first fill of an outer loop, modulo the stages, may be the same in all its iterations (#177-D)."""
    for inner, k, stages in itertools.product((3, sym("S")), (64, 96), (2, 3, 4)):
        text = over_inner_ring(outer, inner, k, stages).program("sm_90a").cuda
        body = text[text.index('extern "C"') :]
        declared = DECLARED.findall(body)
        assert all(len(re.findall(rf"\b{name}\b", body)) > 1 for name in declared), (outer, inner, k, stages)
        assert set(re.findall(r"\b\w+_first\d*\b", body)) <= {*declared}
    require_compiled(over_inner_ring(3, 3, 64, 4).program("sm_90a"))
    require_compiled(over_inner_ring(2, sym("S"), 96, 3).program("sm_90a"))


@pytest.mark.parametrize("dtype", [float8_e4m3, float8_e5m2, int8, uint8, float16, bfloat16, float32, float64, int32], ids=str)
@pytest.mark.parametrize("width", [1, 2])
def test_streamed_loads_and_stores_of_all_types(dtype, width):
    """CUDA has no `__ldcs` of an 8-bit float; it is loaded as a byte."""
    spec = Move(64, 77 if width == 1 else 64, dtype=dtype, src=RowMajor, dst=RowMajor)(GL, GL)(Kernel)
    tiles = spec.tile(8, 32 * width).to(Block).tile(1, width).to(Thread)
    text = require_compiled(tiles.load(SRC, RF, Move.done(EVICT_FIRST)).done(EVICT_FIRST).program("sm_90"))
    assert "__ldcs(" in text and "__stcs(" in text
