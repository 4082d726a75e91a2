"""Reasons that a second reader missed: the cause of a mismatch, missing vectors, and what `check` proves."""

from __future__ import annotations

import json

import attrs
import numpy as np
import pytest

from fireiron import *
from fireiron.check import check
from fireiron.check.proof import RACES, proof_of
from fireiron.cli import main
from fireiron.cost import predict
from fireiron.cost.prediction import ONCE
from fireiron.inspect.explain import explain, text
from fireiron.inspect.findings import findings
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
    assert main(["check", "softmax", "-s", "m=4", "--json"]) == 0
    (proved,) = json.loads(capsys.readouterr().out)["proved"].values()
    assert RACES in proved["proved"] and "blocks of" in proved["scope"]


def test_a_kernel_with_an_error_has_no_proof():
    kernel = hopper((128, 128), (64, 128))(ROWS).program("sm_90a").ir
    without = attrs.evolve(kernel, shared_bytes=kernel.architecture.shared_per_block + 1)
    assert proof_of(without, check(without)) is None


# ---------------------------------------------------------------------------------------------- small stumbles


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda: MatMul.tile(8, 8).to(Block).load(A, SH, pad=4), ".pad(4) after the call: it refines the step"),
        (lambda: MatMul.tile(8, 8).to(Block).at(Tile, 0), "at(Tile, index=0)"),
        (
            lambda: ADD.tile(m=1, n=Strided((2, 64))),
            "tile(Strided(...)), or n=Layout((2, 2), (1, 64)): 2 adjacent elements, and 2 more after 64",
        ),
    ],
)
def test_advice_for_calls(call, advice):
    with pytest.raises(FireironError) as caught:
        call()
    assert caught.value.hint == advice


def test_a_tile_of_fewer_dimensions_is_named(capsys, tmp_path):
    path = tmp_path / "mine.py"
    text = (
        "from fireiron import *\nproblem = MatMul(64, 32, 8)\nstrategy = MatMul.tile(16).to(Block).tile(1, 1).to(Thread).split(1).done()\n"
    )
    path.write_text(text)
    assert main(["show", str(path)]) == 0
    out = capsys.readouterr().out
    assert "MatMul(16,32,8)(GL,GL,GL)(Block)  (n: not divided, no size given)" in out and out.count("not divided") == 1


def test_a_new_file_with_the_name_of_a_library_strategy(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, noted in (("softmax", True), ("soft", False)):
        assert main(["new", name, "--kind", "softmax"]) == 0
        assert ("Note: softmax without .py is a strategy of the library" in capsys.readouterr().out) == noted


def test_the_value_of_a_scalar(capsys, tmp_path):
    path = tmp_path / "scaled.py"
    path.write_text(
        'from fireiron import *\nscaled = Fused(name="scaled", dims="n", operands={"s": "", "x": "n", "y": "n"}, body={"out": "y[n] = s * x[n]"})\n'
        "problem = scaled(n=64)\nstrategy = scaled.tile(n=64).to(Block).tile(2).to(Thread).done()\n"
    )
    assert main(["run", str(path), "--simulate", "--scalar", "s=2.5"]) == 0
    assert "scalars       s 2.5" in capsys.readouterr().out
    assert main(["run", str(path), "--simulate", "--scalar", "t=1"]) == 2
    assert "has no such scalar\n  legal   s" in capsys.readouterr().err
    assert main(["run", str(path), "--scalar", "s=many"]) == 2 and "not NAME=NUMBER" in capsys.readouterr().err


def test_diff_explains_its_marks_and_other_problems(capsys):
    assert main(["diff", "softmax", "layernorm", "-s", "m=4"]) in (0, 1)
    out = capsys.readouterr().out
    assert "the problems differ: softmax" in out and "marks: < only left" in out


def test_a_bandwidth_bound_kernel_is_not_told_to_rasterize():
    chain = ADD.tile(m=1, n=1024).to(Block).tile(1, 4).to(Thread).load("x", RF, Move.done()).done()
    prediction = predict(chain(ADD(m=8192, n=4096)).program())
    assert prediction.bottleneck == "DRAM" and prediction.hint == ONCE and "ignored       falling clocks" in str(prediction)


# ---------------------------------------------------------------------------------------------- a third reader


def test_the_tile_of_the_block_is_named_if_a_tile_of_warpgroups_overhangs():
    with pytest.raises(DecompositionError) as caught:
        hopper((96, 128), (64, 128))(ROWS).cuda("sm_90a")
    assert "a_sh has 96 elements along m, and the instruction accesses 64" in str(caught.value)
    assert caught.value.hint == "a tile of the block, or a split, with a multiple of 64 elements along m"


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda: ADD(64, 64), "name the sizes: m=1000, n=520, ..."),
        (
            lambda: Fused(name="f", dims="n", operands={"x": "n", "s": "", "y": "n"}, body={"o": "y[n] = x[n] / s"}, positive=("s",)),
            "positive='s'",
        ),
        (
            lambda: Fused(name="f", dims="m n", operands={"x": "m n", "y": "m"}, body={"o": "y[m] = sum(n, x[m,n]) / 2"}),
            "a reduction is the whole right side; use its result in the next step",
        ),
        (
            lambda: Fused(name="f", dims="n", operands={"x": "n", "y": "n"}, body={"o": "y[n] = x[(n + 64) % 128]"}),
            "an index is a dimension, a shift (d + 64) or a digit (k // 8 % 4); to rotate, use d + 64 and outside={'X': 'circular'}",
        ),
    ],
)
def test_advice_for_definitions(call, advice):
    with pytest.raises(ArgumentError) as caught:
        call()
    assert caught.value.hint == advice


def test_a_requested_producer_without_tma_is_a_warning():
    program = hopper((128, 128), (64, 128))(MatMul(384, 384, 250, dtype=float16, c_dtype=float16, order=RowMajor)).program("sm_90a")
    assert {finding.severity for finding in findings(program) if finding.kind == "tma"} == {"warning"}


def test_the_nearest_copy_of_a_lane_is_a_move():
    loads = ADD.tile(m=2, n=64).to(Block).load("x", RF, Move.tile(2, 64).to(Warp).tile(2, 2).to(Lane).done()).done()
    with pytest.raises(MatchError) as caught:
        loads(ADD(m=8, n=64)).cuda()
    assert str(caught.value).split("the nearest:")[1].split()[0] == "Move"


def test_tensor_cores_below_their_limit_have_another_hint():
    prediction = predict(hopper((128, 128), (64, 128))(ROWS).program("sm_90a"))
    below, at_limit = (attrs.evolve(prediction, bottleneck="tensor cores", us=100.0, parts={"tensor cores": us}) for us in (80.0, 95.0))
    assert "persistent blocks" in below.hint and at_limit.hint.startswith("at the limit")


# ---------------------------------------------------------------------------------------------- operands of wgmma, and functions


@pytest.mark.parametrize(
    ("refine", "dtype", "advice"),
    [
        (lambda load: load.pad(8), float16, "remove .pad(8) from the load of A: wgmma determines the storage; "),
        (lambda load: load, float32, "dtype=tf32 in the spec, for the same float32 arrays; "),
        (lambda load: load, int32, "fireiron explain"),
    ],
)
def test_operands_that_no_wgmma_reads_have_a_remedy(refine, dtype, advice):
    start = MatMul.tile(128, 128).to(Block).epilog(RF, float32).split(64).pipeline(2).warp_specialize()
    chain = refine(start.load(A, SH, Move.done())).load(B, SH, Move.done()).tile(64, 128).to(Warpgroup).done()
    with pytest.raises(MatchError) as caught:
        chain(MatMul(384, 384, 256, dtype=dtype, c_dtype=float32, order=RowMajor)).cuda("sm_90a")
    assert caught.value.hint.startswith(advice)


def test_a_store_that_differs_from_the_compute_path_names_its_instruction():
    store = Move.tile(64, 128).to(Warpgroup).tile(64, 64).load(SRC, SH, Move.done()).cast_on_copy().done()
    main_loop = MatMul.split(64).pipeline(2).warp_specialize().load(A, SH, Move.done()).load(B, SH, Move.done())
    chain = MatMul.tile(128, 128).to(Block).epilog(RF, float32, Init.done(), store).then(main_loop).tile(32, 128).to(Warpgroup).done()
    with pytest.raises(DecompositionError) as caught:
        chain(ROWS).cuda("sm_90a")
    assert "the compute path owns it in thread 128 (WGMMA_F16_F32_SWAPPED MatMul(32,64,16)" in caught.value.asked


@pytest.mark.parametrize(("text", "hint"), [("swish(acc)", "silu(x)"), ("sigmoyd(acc)", "did you mean sigmoid?")])
def test_unknown_functions_have_a_near_one(text, hint):
    with pytest.raises(ArgumentError) as caught:
        MatMul.fuse_epilogue(text)
    assert caught.value.hint == hint


def test_the_type_of_c_is_an_argument_of_its_own():
    a, b = np.zeros((32, 16), np.float16), np.zeros((16, 32), np.float16)
    with pytest.raises(ArgumentError) as caught:
        matmul(a, b, epilogue="C = acc; y[m] += sum(n, acc)", types={"C": "float32"})
    assert caught.value.hint == "c_dtype= specifies the type of C"


def test_a_step_whose_registers_lack_a_dimension_needs_a_strategy():
    halves = Fused(
        name="halves", dims="t c i", operands={"X": "t c i", "Y": "t c i"},
        body={"left": "a[t,i] = sum(c, X[t,c,i])", "rope": "Y[t,c,i] = where(c == 0, a[t,i], -a[t,i])"},
    )  # fmt: skip
    load = Move.tile(1, 2, 64).to(Warp).tile(1, 1, 2).to(Lane).done()
    with pytest.raises(MatchError) as caught:
        halves.tile(t=4).to(Block).load("X", RF, load).done()(halves(t=8, c=2, i=64)).cuda("sm_90a")
    assert caught.value.hint.startswith("no operand in registers has c, so the step needs a strategy of its own: .step(STEP, ")
