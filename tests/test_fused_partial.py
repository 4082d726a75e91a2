"""`.rfactor(step, parts)`: partial results of reductions in strategies that distribute terms over lanes and warps.

The reference is the definition in float64, without partial results. Injected faults: a missing shuffle, missing barriers.
"""

import random

import attrs
import numpy as np
import pytest
from faults import faults

from fireiron import *
from fireiron.check import safety
from fireiron.errors import ArgumentError, DecompositionError, SimulationError
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.inspect.explain import explain, text
from fireiron.inspect.show import show
from fireiron.ir import execs, rewritten
from fireiron.measure.data import random_inputs
from fireiron.sim import simulate
from fireiron.specs.fused import fused
from fireiron.specs.rfactor import rfactor
from fireiron.strategies import attention

rows = Fused(
    name="rows",
    dims="m n",
    loop="n",
    operands={"X": "m n", "w": "m", "y": "m", "z": "m"},
    init={"t0": "t[m] = 0", "h0": "h[m] = -3"},
    body={
        "square": "sq[m,n] = X[m,n] * X[m,n]",
        "total": "t[m] += sum(n, sq[m,n])",
        "top": "top[m] = max(n, X[m,n])",
        "highest": "h[m] = max(h[m], top[m] + w[m])",
    },
    final={"scaled": "u[m] = t[m] * w[m] / size(n)", "y": "y[m] = abs(u[m])", "z": "z[m] = h[m]"},
)


def by_warps(*partial, definition=rows):
    """Rows of two warps, four adjacent elements per lane, in iterations of 256; `partial` has the verb's arguments."""
    load = Move.tile(1, 128).to(Warp).tile(1, 4).to(Lane).done()
    chain = definition
    for arguments in partial:
        chain = chain.rfactor(*arguments)
    return chain.tile(m=1).to(Block).split(n=256).load("X", RF, load).done()


def attending(parts):
    """Attention with partial row sums."""
    copy, fragments = Move.coalesced_copy(8).done(), Move.done()
    tiles = MatMul.tile(16, 16).unroll().mma_tile().done()
    chain = attention.definition(causal=True)
    chain = (chain.rfactor("sums", parts) if parts else chain).tile(m=32, r=1, g=1, b=1).to(Block).load("Q", SH, copy).swizzle_storage()
    chain = chain.split(n=32).pipeline(2).load("K", SH, copy).swizzle_storage().load("V", SH, copy).swizzle_storage().tile(m=16).to(Warp)
    scores = MatMul.split(16).unroll().load(A, RF, fragments).load(B, RF, fragments).then(tiles)
    return chain.step("s", scores).step("pv", MatMul.split(16).unroll().load(B, RF, fragments).then(tiles)).done()


def inputs(spec, seed=1):
    arrays = random_inputs(spec, {}, np.random.default_rng(seed))
    return arrays | ({"scale": np.float32(0.3)} if "scale" in arrays else {})


def require_right(program, order=7):
    """No finding, and each output equals float64, with warps in random order."""
    assert safety(program.lowered) == ()
    arrays = inputs(program.spec)
    right = program.spec.reference(*arrays.values())
    got = simulate(program.ir, arrays, order=random.Random(order)).outputs
    for name, reference in zip(program.spec.outputs, right if isinstance(right, tuple) else (right,)):
        np.testing.assert_allclose(got[name].astype(float), reference.astype(float), rtol=5e-3, atol=2e-3, err_msg=name)


SHAPE = {"m": 3, "n": 600, "types": {"w": float32, "y": float32, "z": float32}}
LONG = attention.spec(40, 75, 32, fused=attention.definition(causal=True))


@pytest.mark.parametrize(
    "partial",
    [(("total", 64),), (("total", 2),), (("total", 8), ("top", 64)), (("top", 16),)],
    ids=["all", "warps", "both", "some lanes"],
)
def test_partial_row_sums(partial):
    require_right(by_warps(*partial)(rows(**SHAPE)).program("sm_80"))


@pytest.mark.parametrize("parts", [2, 4])
def test_partial_sums_in_attention(parts):
    program = attending(parts)(LONG).program("sm_80")
    require_right(program)
    whole = attending(0)(LONG).program("sm_80")
    assert _in_loops(whole, "Shfl") - _in_loops(program, "Shfl") == {2: 1, 4: 2}[parts]


def _in_loops(program, title):
    """The number of statements of a kind in loops that are not unrolled."""
    return sum(one.spec.title == title and any(not loop.unroll for loop in loops) for one, loops in execs(program.ir.body))


def test_partial_results_are_combined_once_after_the_loop():
    """Neither shuffles nor shared memory in the loop, and one combination of all linear partial results."""
    program = by_warps(("total", 64), ("top", 64))(rows(**SHAPE)).program("sm_80")
    assert not _in_loops(program, "Shfl")
    steps = [line.strip() for line in program.cuda.splitlines() if "_whole: " in line]
    assert steps == ["// u_whole: u[m] = sum(total_part, u_parts[m,total_part])", "// h_whole: h[m] = max(top_part, h_parts[m,top_part])"]


@pytest.mark.skipif(not any(chain.serves("sm_80") for chain in toolchains()), reason="no installed NVRTC serves sm_80")
def test_partial_results_do_not_spill():
    program = attending(4)(attention.spec(512, 512, 64, fused=attention.definition(causal=True))).program("sm_80")
    assert compile_cuda(program.cuda, "sm_80").resources[program.name].spill_stores == 0


def test_rfactor_keeps_the_meaning():
    """The rewritten definition has the same float64 meaning, for any assignment of terms to parts."""
    definition = rfactor(rfactor(rows.fused_definition, "total"), "top")
    sizes = {"m": 3, "n": 10, "total_part": 4, "top_part": 3}
    arrays = inputs(rows(m=3, n=10))
    for chunk in (0, 3):
        parts = definition.evaluate(arrays, sizes, dict.fromkeys(definition.outputs, float64), chunk)
        whole = rows.fused_definition.evaluate(arrays, sizes, dict.fromkeys(definition.outputs, float64), chunk)
        for name, values in whole.items():
            np.testing.assert_allclose(parts[name], values, rtol=1e-12)


def test_rfactor_round_trips():
    strategy = by_warps(("total", 64))
    assert Strategy.from_json(strategy.to_json()) == strategy and eval(repr(strategy)) == strategy
    assert strategy != by_warps(("total", 32))
    program = strategy(rows(**SHAPE)).program("sm_80")
    assert "rfactor(step='total', parts=64)" in "\n".join(show(program))
    assert "total: t_parts[m,total_part] += sum(n, sq[m,n]), partial results" in program.cuda
    assert "total" in text(explain(strategy(rows(**SHAPE)), "sm_80"))
    assert parse_kernel(graphene_text(program)).cuda == program.cuda


# ---------------------------------------------------------------------------------------------- injected faults


def test_missing_shuffle_is_found():
    """A combination without one of its shuffles."""
    program = by_warps(("total", 64))(rows(**SHAPE)).program("sm_80")
    arrays = inputs(program.spec)
    (right, _) = program.spec.reference(*arrays.values())
    shuffles = [one for one, loops in execs(program.ir.body) if one.spec.title == "Shfl" and not any(not loop.unroll for loop in loops)]
    assert len(shuffles) == 5
    for left_out in shuffles:
        body = rewritten(program.ir.body, lambda one, out=left_out: () if one is out else (one,))
        faulty = attrs.evolve(program.ir, body=body)
        if left_out is shuffles[0]:
            with pytest.raises(SimulationError, match="is read before any write"):
                simulate(faulty, arrays)
        else:
            assert not np.allclose(simulate(faulty, arrays).outputs["y"], right, rtol=1e-2)


def test_missing_barrier_is_found():
    """Warps exchange results in shared memory after the loop: without that barrier they race."""
    program = by_warps(("total", 64))(rows(**SHAPE)).program("sm_80")
    planted = list(faults(program.ir))
    assert planted and all(safety(faulty) for _, faulty in planted)


# ---------------------------------------------------------------------------------------------- refusals


def changed(**formulas):
    """`rows` with other formulas, by step."""
    steps = {
        part: {step.name: str(step.formula) for step in rows.fused_definition.steps if step.part == part}
        for part in ("init", "body", "final")
    }
    for part in steps.values():
        part.update({name: text.replace("size_n", "size(n)") for name, text in {**part, **formulas}.items() if name in part})
    return Fused(name="rows", dims="m n", loop="n", operands={"X": "m n", "w": "m", "y": "m", "z": "m"}, **steps)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("definition", "partial", "parts"),
    [
        (rows, ("totals", 4), ("no such step", "legal   t0 h0 square total")),
        (rows, ("square", 4), ("not the sum, maximum or minimum of one tensor", "legal   total top")),
        (rows, ("total", 3), ("3 parts of each result, but 64 threads have terms of a result", "legal   2 4 8 16 32 64")),
        (rows, ("total", 128), ("128 parts", "legal   2 4")),
        (changed(t0="t[m] = 1"), ("total", 4), ("step t0 writes t in a way", "t[m] = 1", "multiplied by a whole value")),
        (changed(t0="t[m] = w[m]"), ("total", 4), ("step t0 writes t in a way",)),
    ],
    ids=["unknown", "no reduction", "count", "too many", "no neutral start", "an offset"],
)  # fmt: skip
def test_rfactor_refusals(definition, partial, parts):
    with pytest.raises(DecompositionError) as caught:
        by_warps(partial, definition=definition)(definition(**SHAPE)).cuda("sm_80")
    assert all(part in str(caught.value) for part in parts), caught.value
    assert "partial" in str(caught.value)


def test_rfactor_refusals_by_position():
    late = rows.tile(m=1).to(Block).split(n=256).rfactor("total", 4).done()
    alone = rows.rfactor("total", 4).tile(m=32).to(Block).tile(m=1).to(Thread).split(n=4).done()
    in_memory = rows.rfactor("total", 4).tile(m=1).to(Block).set_memory("sq", SH).split(n=256).done()
    by_lanes = Move.tile(1, 128).to(Warp).tile(1, 4).to(Lane).done()
    placed = rows.rfactor("total", 4).tile(m=1).to(Block).set_memory("t_parts", SH).split(n=256).load("X", RF, by_lanes).done()
    product = attention.definition().rfactor("pv", 2).done()
    own = rows.step("total", Reduction.done()).rfactor("total", 4).done()
    for strategy, message in (
        (late, "before split"), (alone, "one thread has all terms"), (in_memory, "the owners of the terms in registers determine the parts"),
        (placed, "parts must be in registers"), (own, "has its own strategy"),
    ):  # fmt: skip
        with pytest.raises(DecompositionError, match=message):
            strategy(rows(**SHAPE)).cuda("sm_80")
    with pytest.raises(DecompositionError, match="split_k"):
        product(attention.spec(64, 64, 32)).cuda("sm_80")
    with pytest.raises(DecompositionError, match="is one step"):
        MatMul(8, 8, 8)(GL, GL, GL)(Kernel).rfactor("total", 4).tile(8, 8).to(Block).done().cuda("sm_80")
    for wrong in (1, 2.0, True):
        with pytest.raises(ArgumentError, match="a number of parts"):
            rows.rfactor("total", wrong)


def completed(definition, name):
    return [one.name for one in rfactor(definition, name).steps if "_whole" in one.name]


def test_nonlinear_uses_complete_partial_results():
    """A step that is linear in partial results stays partial. Other steps, such as a quotient by them, read the combined value."""
    assert completed(rows.fused_definition, "total") == ["u_whole"]
    assert completed(changed(scaled="u[m] = w[m] / t[m]").fused_definition, "total") == ["t_whole"]
    assert completed(changed(highest="h[m] = max(h[m], top[m] * 2)").fused_definition, "top") == ["h_whole"]
    assert completed(changed(highest="h[m] = max(h[m], top[m] * (0 - 2))").fused_definition, "top") == ["top_whole"]
    for factor in ("-2", "0"):  # the smallest part times -2 is the largest; infinity (a lane without terms) times 0 is NaN
        assert completed(changed(highest=f"h[m] = max(h[m], {factor} * top[m])").fused_definition, "top") == ["top_whole"]
    assert completed(changed(highest="h[m] = min(h[m], top[m])").fused_definition, "top") == ["top_whole"]


def test_rewritten_values_are_combined_again():
    definition = Fused(
        name="x", dims="m n", loop="n", operands={"X": "m n", "w": "m", "y": "m"}, init={"t0": "t[m] = 0", "a0": "a[m] = 0"},
        body={
            "total": "t[m] += sum(n, X[m,n])", "one": "a[m] = max(a[m], t[m] * t[m])", "scale": "t[m] = t[m] * w[m]",
            "two": "b[m] = max(a[m], t[m] * t[m])", "keep": "a[m] = b[m]",
        },
        final={"y": "y[m] = a[m]"},
    ).fused_definition  # fmt: skip
    assert completed(definition, "total") == ["t_whole", "t_whole_"]


def test_nonlinear_step_in_the_loop_combines_first():
    """If a step in the loop reads the combined value, the parts are combined there; results stay correct."""
    original = changed(highest="h[m] = max(h[m], top[m] * top[m])")
    definition = rfactor(original.fused_definition, "top")
    assert [one.name for one in definition.steps if one.name.endswith("_whole")] == ["top_whole"]
    require_right(by_warps(("top", 64), definition=original)(original(**SHAPE)).program("sm_80"))
    assert fused(original(m=3, n=4)).temporaries.keys() <= definition.temporaries.keys()
