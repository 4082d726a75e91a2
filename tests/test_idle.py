"""Findings about idle units, and about copies that are slower than the strategy suggests; steps that `explain` proposes for tensor cores."""

from __future__ import annotations

import functools

import pytest

from fireiron import *
from fireiron.compiler import Program
from fireiron.inspect.downgraded import downgraded
from fireiron.inspect.explain import explain, text
from fireiron.inspect.final_tree import final_tree
from fireiron.inspect.idle import idle
from fireiron.inspect.show import executed

HALF = {"dtype": float16, "c_dtype": float16, "order": RowMajor}
SMALL = MatMul(128, 128, 64, order=RowMajor)
HALVES = MatMul(256, 128, 64, **HALF)
COPY = Move.coalesced_copy(8).done()


@functools.cache
def lanes(tile: object) -> Program:
    """The program of a product whose lanes have the given tile of a warp's 32 x 32 elements."""
    return (
        MatMul.tile(64, 64).to(Block)
        .epilog(RF, Init.tile(32, 32).to(Warp).tile(tile).to(Lane).tile(1, 1).done(),
                Move.tile(32, 32).to(Warp).tile(tile).to(Lane).tile(1, 4).done())
        .split(8).load(A, SH).load(B, SH).tile(32, 32).to(Warp).tile(tile).to(Lane).split(1).unroll()
        .load(A, RF, Move.done()).load(B, RF, Move.done()).tile(1, 1).done()
    )(SMALL).program("sm_80")  # fmt: skip


def of_kind(findings, kind):
    return [finding for finding in findings if finding.kind == kind]


def test_half_of_the_lanes_are_idle():
    """The finding has a tile that uses all lanes; with that tile there is none."""
    (finding,) = [one for one in idle(lanes(Strided((4, 16), (4, 16)))) if one.severity == "warning"]
    assert "16 tiles for 32 lanes: 16 of them are idle" in finding.message and finding.at.startswith("tests/test_idle.py:")
    assert finding.details["tile"] == "tile(Strided((4, 16), (4, 32)))" and "tile(Strided((4, 16), (4, 32))) has a tile" in finding.message
    assert not [one for one in idle(lanes(Strided((4, 16), (4, 32)))) if one.severity == "warning"]


def test_a_last_iteration_with_few_tiles():
    """Twelve tiles for the eight warps that another part of the kernel requires: half of them are idle in the second iteration."""
    strategy = MatMul.tile(64, 48).to(Block).epilog(RF).tile(16, 16).to(Warp).tile(4, 4).to(Lane).split(1).tile(1, 1).done()
    messages = [one.message for one in idle(strategy(MatMul(64, 48, 8)).program("sm_80"))]
    assert any("16 tiles for 32 lanes" in message and "tile(" in message.split(";")[1] for message in messages)


def test_blocks_for_a_few_multiprocessors():
    """A proposed tile of a block is faster according to the cost model; full GPUs and run-time sizes have no finding."""
    strategy = MatMul.tile(64, 64).to(Block).epilog(RF).split(8).load(A, SH).load(B, SH).tile(4, 4).to(Thread).split(1).tile(1, 1).done()
    (finding,) = idle(strategy(MatMul(512, 512, 64)).program("sm_80"))
    assert finding.severity == "note" and finding.details["blocks"] == 64 and finding.details["sms"] == 108
    assert f"{finding.details['tile']} makes {finding.details['blocks of it']} blocks" in finding.message
    specs = (MatMul(2048, 1024, 64), MatMul(sym("M"), 512, 64))
    assert not [one for spec in specs for one in idle(strategy(spec).program("sm_80"))]


def loop(first: Strategy, stages: int = 3) -> Strategy:
    block = MatMul.tile(128, 128).to(Block).epilog(RF, float32).split(32).pipeline(stages)
    return (
        block.then(first)
        .load(B, SH, COPY)
        .swizzle_storage()
        .tile(64, 64)
        .to(Warp)
        .split(16)
        .unroll()
        .load(A, RF, Move.done())
        .load(B, RF, Move.done())
        .tile(16, 16)
        .mma_tile()
        .done()
    )


def test_a_pipeline_that_is_not_asynchronous():
    slow = loop(MatMul.load(A, SH).swizzle_storage())(HALVES)
    (finding,) = of_kind(downgraded(slow.program("sm_80")), "asynchronous")
    assert finding.severity == "warning" and "each thread copies 2 bytes at once" in finding.message
    assert finding.details["better"] == "load(A, SH, Move.coalesced_copy(8).done()).swizzle_storage()"
    assert not list(downgraded(slow.program("sm_75"))), "without cp.async, no pipeline is asynchronous"
    assert not list(downgraded(loop(MatMul.load(A, SH, COPY).swizzle_storage())(HALVES).program("sm_80")))
    (odd,) = of_kind(downgraded(loop(MatMul.load(A, SH, COPY))(MatMul(256, 128, 65, **HALF)).program("sm_80")), "asynchronous")
    assert odd.severity == "note" and odd.details["better"] is None and "2 bytes at once" in odd.message


TO_WARPGROUPS = MatMul.load(A, SH, Move.done()).load(B, SH, Move.done()).tile(64, 128).to(Warpgroup).done()


def test_a_copy_that_is_not_tma():
    """The finding states why. It is a warning if a producer suffices, or if the strategy requests one."""
    block = MatMul.tile(128, 128).to(Block).epilog(RF, float32)
    findings = of_kind(downgraded(block.split(64).pipeline(2).then(TO_WARPGROUPS)(HALVES).program()), "tma")
    assert [finding.severity for finding in findings] == ["warning"] * 2 and "TMA_LOAD needs a producer" in findings[0].message
    assert findings[0].details["better"] == "split(64).pipeline(2).warp_specialize()"
    assert not list(downgraded(block.split(64).pipeline(2).warp_specialize().then(TO_WARPGROUPS)(HALVES).program()))
    misaligned = MatMul(256, 128, 68, **HALF)
    findings = of_kind(downgraded(block.split(64).pipeline(2).warp_specialize().then(TO_WARPGROUPS)(misaligned).program()), "tma")
    assert findings and all(finding.severity == "warning" for finding in findings)
    assert any("src strides multiples of 16 bytes" in finding.message for finding in findings)


def test_copies_by_threads_that_warpgroup_mmas_wait_for():
    """Without a pipeline, nothing overlaps: the proposed pipeline with a producer has been compiled, and has no finding."""
    block = MatMul.tile(128, 128).to(Block).epilog(RF, float32).split(64)
    for copy in (None, COPY):
        loads = MatMul.load(A, SH).load(B, SH) if copy is None else MatMul.load(A, SH, copy).load(B, SH, copy)
        tiles = block.then(loads).tile(64, 128).to(Warpgroup).done()
        (finding,) = of_kind(downgraded(tiles(HALVES).program()), "tma")
        better = "split(64).pipeline(4).warp_specialize().load(A, SH, Move.done()).load(B, SH, Move.done())"
        assert finding.severity == "warning" and finding.details["better"] == better and "A and B" in finding.message
    ragged = MatMul(256, 128, 68, **HALF)
    assert not of_kind(downgraded(tiles(ragged).program()), "tma"), "TMA cannot copy rows of 136 bytes"
    assert not list(downgraded(loop(MatMul.load(A, SH, COPY).swizzle_storage(), 1)(HALVES).program("sm_90")))


# ---------------------------------------------------------------------------------------------- proposals of `explain`

BLOCK = MatMul.tile(128, 128).to(Block)
WARPS = ".tile(64, 64).to(Warp).split(16).load(A, RF, Move.done()).load(B, RF, Move.done()).tile(16, 16).mma_tile().done()"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("strategy", "wanted"),
    [
        (BLOCK.split(32).load(A, SH).load(B, SH), [f"  closed after .tile(128, 128).to(Block) by\n    .epilog(RF, float32)\n  and at the end of the chain by\n    {WARPS}"]),
        (BLOCK.split(32).load(A, SH, COPY).load(B, SH, COPY).tile(64, 64).to(Warp).done(), ["tile(64, 64).to(Warpgroup) instead of tile(64, 64).to(Warp), and .epilog(RF, float32) after"]),
        (BLOCK.epilog(RF, float32).split(64).load(A, SH).pad(8).load(B, SH).tile(64, 128).to(Warpgroup).done(), ["remove .pad(8) of load(A, SH)", "remove .pad(8) from its load"]),
    ],
    ids=["missing accumulator", "warps for warpgroups", "padded operand"],
)  # fmt: skip
def test_tensor_cores_are_proposed_first(strategy, wanted):
    """For 16-bit operands without a step for threads; the open leaf comes first, and the proposal has been compiled."""
    report = text(explain(strategy(HALVES)))
    assert report.splitlines()[2].startswith("main: ") and "tried: with it the strategy is complete" in report
    assert all(part in report for part in wanted) and ".to(Thread)" not in report.split("\n\n")[1]


def test_threads_are_proposed_for_float32():
    report = text(explain(BLOCK.split(32).load(A, SH).load(B, SH)(SMALL)))
    assert ".tile(8, 8).to(Thread)" in report.split("\n\n")[1]


# ---------------------------------------------------------------------------------------------- one instruction in all views


def test_all_views_name_the_same_instruction():
    """Those of the final kernel, where the tree matches loads and stores."""
    program = loop(MatMul.load(A, SH, COPY).swizzle_storage())(HALVES).program("sm_80")
    names = {executed(node) for node in final_tree(program).nodes() if node.step is not None and not node.children}
    performed = {one.name for leaf in explain(program.strategy, "sm_80").leaves for one in leaf.performers}
    assert "CP_ASYNC_16" in names and performed <= {name for part in names for name in part.split(", ")}
