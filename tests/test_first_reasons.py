"""Reasons that a second reader missed: the cause of a mismatch, missing vectors, and what `check` proves."""

from __future__ import annotations

import json

import attrs
import pytest

from fireiron import *
from fireiron.check import check
from fireiron.check.proof import RACES, proof_of
from fireiron.cli import main
from fireiron.inspect.explain import explain, text
from fireiron.ir.effects.unchecked import Unchecked

ROWS = MatMul(384, 384, 256, dtype=float16, c_dtype=float16, order=RowMajor)


def hopper(block, group, *, accumulator=True):
    start = MatMul.tile(*block).to(Block)
    start = start.epilog(RF, float32) if accumulator else start
    return start.split(64).pipeline(3).warp_specialize().load(A, SH, Move.done()).load(B, SH, Move.done()).tile(*group).to(Warpgroup).done()


def explained(strategy, problem=ROWS):
    return text(explain(strategy(problem)))


def test_the_cause_of_a_tile_that_wgmma_cannot_have():
    report = explained(hopper((192, 160), (96, 160)))
    assert "shape    requires m a multiple of 64, got m 96" in report
    assert "tile(64, 160).to(Warpgroup) instead of tile(96, 160).to(Warpgroup)" in report
    assert "TMA_" not in report, "copies follow the main chain"


def test_the_tile_of_the_block_changes_if_it_must():
    report = explained(hopper((96, 128), (96, 100)))
    assert "requires m a multiple of 64; n 8 to 256 by 8, got m 96, n 100" in report
    assert "tile(128, 128).to(Block) instead of tile(96, 128).to(Block), and tile(64, 128).to(Warpgroup) instead" in report


def test_a_forgotten_accumulator():
    """The nearest instruction is one of warpgroups, and copies are not compared with other engines."""
    strategy = hopper((128, 128), (64, 128), accumulator=False)
    report = explained(strategy)
    assert report.partition("the nearest:\n")[2].strip().startswith("WGMMA_F16_F32:") and "HFMA" not in report and "TMA_" not in report
    assert "closed after .tile(128, 128).to(Block) by\n    .epilog(RF, float32)" in report
    with pytest.raises(MatchError) as caught:
        strategy(ROWS).cuda("sm_90a")
    assert "WGMMA_F16" in str(caught.value) and ".epilog(RF, float32) after .tile(...).to(Block)" in str(caught.value)
    assert "FMA  " not in str(caught.value)


ADD = Fused(name="add", dims="m n", operands={"x": "m n", "y": "m n"}, body={"out": "y[m,n] = x[m,n] + 1"})


@pytest.mark.parametrize(
    ("columns", "loaded", "reason"),
    [
        (1024, True, None),
        (1024, False, ".load('x', RF, Move.done()) before done() copies adjacent elements"),
        (1001, True, "is not always a multiple of 2 elements"),
    ],
)
def test_reasons_for_missing_vectors(columns, loaded, reason):
    chain = ADD.tile(m=1, n=512).to(Block).tile(1, 4).to(Thread)
    report = explained((chain.load("x", RF, Move.done()) if loaded else chain).done(), ADD(m=8, n=columns))
    assert ("at once, because" in report) == (reason is not None) and (reason or "performed by") in report


def test_check_states_what_it_proves(capsys):
    kernel = hopper((128, 128), (64, 128))(ROWS).program("sm_90a").ir
    proof = proof_of(kernel, check(kernel))
    assert proof.scope == "all 9 blocks of 288 threads" and RACES in proof.proved and not proof.assumed
    trusting = attrs.evolve(kernel, effects=kernel.effects.adding(Unchecked(("by hand",))))
    proof = proof_of(trusting, ())
    assert RACES not in proof.proved and proof.assumed == ("no data races (by hand)",)
    assert main(["check", "gemm_nn", "--json"]) == 0
    (proved,) = json.loads(capsys.readouterr().out)["proved"].values()
    assert RACES in proved["proved"] and "blocks of" in proved["scope"]


def test_a_kernel_with_an_error_has_no_proof():
    kernel = hopper((128, 128), (64, 128))(ROWS).program("sm_90a").ir
    without = attrs.evolve(kernel, shared_bytes=kernel.architecture.shared_per_block + 1)
    assert proof_of(without, check(without)) is None
