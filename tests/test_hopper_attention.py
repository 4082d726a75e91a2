"""Attention on Hopper: results of the library's strategy, also at edges and for several heads and batches; its text on a CPU, and by NVRTC.

The reference is the plain softmax of `test_fused_attention`, which does not use blocks of keys.
"""

import contextlib
import itertools
import random
import re

import attrs
import numpy as np
import printed_text
import pytest
from faults import dropped
from ringed import errors
from test_fused_attention import inputs, near_softmax

from fireiron import *
from fireiron.errors import DecompositionError, SimulationError
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.ir import Acquire, For, Roles, execs, rewritten, statements, substituted
from fireiron.ir.awaited import awaited
from fireiron.ir.mechanisms.tma import TMA_LOADS
from fireiron.ir.mechanisms.wgmma import WGMMA_GROUPS
from fireiron.sim import simulate
from fireiron.strategies import attention, hopper, hopper_attention
from fireiron.values.expr import ONE

TARGET = "sm_90a"
SMALL = {"bm": 64, "bn": 32}


def programs(m, n, d, values=None, options=None, delayed=False, **problem):
    """The kernel for a problem, of a definition with options."""
    definition = attention.definition(**(options or {}))
    chosen = {**SMALL, **(values or {})}
    assert isinstance(n, Var) or n > chosen["bn"], "of one block of keys a fault from the second one on is not seen"
    strategy = hopper_attention.by_rows(definition, delayed, num_blocks=3).with_(**chosen)
    return strategy(attention.spec(m, n, d, fused=definition, **problem)).program(TARGET)


def require_right(program, sizes=None, orders=(None, 1), ramp=False, **masks):
    """Require that the kernel has no findings and equals the softmax, with warps in lockstep and in random order."""
    assert not errors(program.ir)
    assert sizes is None or sizes.get("n", sizes["m"]) > SMALL["bn"]
    arrays = inputs(program.spec, sizes, ramp=ramp)
    near = near_softmax(program.spec, arrays, sizes, **masks)
    for order in orders:
        near.require(simulate(program.ir, arrays, sizes or {}, order=None if order is None else random.Random(order)).outputs)


def instructions_of(program):
    """The instructions by name."""
    return {statement.instruction.name for statement, _ in execs(program.ir.body)}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("sizes", "values", "options", "problem"),
    [
        ((64, 64, 64), {}, {}, {"heads": 2, "batch": 2}),  # four tiles for three blocks
        ((64, 40, 64), {}, {"lse": True}, {"heads": 2, "shared": 2}),
        ((70, 40, 128), {"bm": 128, "stages": 1}, {}, {}),
        ((70, 70, 64), {}, {"causal": True, "lse": True}, {}),
        ((100, 100, 64), {"bn": 16, "stages": 3}, {"window": 20}, {}),
        ((64, 40, 80), {"bn": 16, "epi_n": 16}, {}, {"dtype": bfloat16}),
    ],
)
def test_simulated(sizes, values, options, problem):
    program = programs(*sizes, values, options, **problem)
    require_right(program, **{name: options[name] for name in ("causal", "window") if name in options})
    statements = [one for one, _ in execs(program.ir.body)]
    filled = {access.buffer for one in statements if one.mechanism == TMA_LOADS for access in one.accesses if access.write}
    assert [one.mechanism for one in statements].count(WGMMA_GROUPS) == 2 and filled == {"q_sh", "k_sh", "v_sh"}
    assert {"WGMMA_F16_F32", "WGMMA_F16_F32_HELD"} <= instructions_of(program) or "dtype" in problem
    assert "TMA_STORE" in instructions_of(program)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("sizes", "options", "problem"),
    [
        ((64, 64, 64), {}, {"heads": 4}),  # two blocks of keys, four tiles for three blocks
        ((70, 90, 32), {"rescale_threshold": 8}, {}),
        ((100, 100, 32), {"causal": True, "rescale_threshold": 8, "lse": True}, {"heads": 2}),
        ((100, 70, 16), {"window": 20}, {}),  # the mask excludes all queries past the last key's window
        pytest.param((70, 90, 96), {"rescale_threshold": 8}, {"dtype": bfloat16}, marks=pytest.mark.nightly),
    ],
)
def test_delayed(sizes, options, problem):
    """The PV product runs one iteration later, and statements without effect are left out."""
    program = programs(*sizes, {"epi_n": min(32, sizes[2])}, options, True, **problem)
    require_right(program, orders=(None, 2), ramp="rescale_threshold" in options and "dtype" not in problem, **masks_of(options))
    assert "wgmma_wait_group<1>();" in program.cuda and ("__any_sync" in program.cuda) == ("rescale_threshold" in options)


def masks_of(options):
    """The options of a definition that hide keys."""
    return {name: options[name] for name in ("causal", "window") if name in options}


ONE_STAGE = ((64, 32, 16), {"bn": 16, "epi_n": 16, "stages": 1}, {})
WINDOW = ((80, 40, 16), {"bn": 16, "epi_n": 16}, {"window": 20})
"""The last rows see no key, so a block may have no iteration at all, neither a first nor a last one."""


@pytest.mark.parametrize(("sizes", "values", "options"), (ONE_STAGE, WINDOW), ids=("one stage of two turns", "window"))
def test_deferred_loop_of_one_iteration_with_a_ring(sizes, values, options):
    """A loop with one iteration names its only stage; a block without iterations does not wait."""
    program = programs(*sizes, values, options, True)
    require_right(program, orders=(2,), **masks_of(options))


@pytest.mark.nightly
@pytest.mark.parametrize(("sizes", "values", "options"), (ONE_STAGE, WINDOW), ids=("one stage of two turns", "window"))
def test_missing_synchronization_of_a_deferred_loop_is_detected(sizes, values, options):
    """A fault that the check does not report changes nothing, or the simulator reports it."""
    program = programs(*sizes, values, options, True, heads=4)
    arrays, planted = inputs(program.spec), list(dropped(program.ir))
    near = near_softmax(program.spec, arrays, **masks_of(options))
    detected = [bool(errors(faulty)) for _, faulty in planted]
    assert sum(detected) > 25
    for (_, faulty), fault in zip(planted, detected, strict=True):
        with contextlib.suppress(SimulationError):
            if not fault:
                near.require(simulate(faulty, arrays, order=random.Random(2)).outputs)


@pytest.mark.nightly
@pytest.mark.parametrize("values", ({}, {"stages": 1}, {"stages": 3}))
@pytest.mark.parametrize("options", ({"window": 20}, {"causal": True}, {"lse": True}))
def test_delayed_at_run_time(values, options):
    program = programs(sym("m"), sym("n"), 16, {"bn": 16, "epi_n": 16, **values}, options, True)
    for m, n in ((100, 100), (130, 64), (33, 33)):
        if "causal" not in options or m == n:
            require_right(program, {"m": m, "n": n}, orders=(3,), **masks_of(options))


def test_wait_for_the_next_iteration_is_detected():
    """With one stage, the wait for the first block of keys waits for the second one instead."""
    kernel = programs(*ONE_STAGE[0], ONE_STAGE[1], {}, True).ir
    consumers = next(one for one in kernel.body if isinstance(one, Roles)).roles[0]
    (first,) = (one for one in consumers.body if isinstance(one, Acquire) and one.ring == "k_sh_ring")

    def edit(stmt):
        return (attrs.evolve(stmt, fill_index=stmt.fill_index + 1),) if stmt is first else (stmt,)

    assert errors(attrs.evolve(kernel, body=rewritten(kernel.body, edit)))


def stored(order, **sizes):
    """The strides of an array whose dimensions are stored in a given order, the last one contiguous."""
    strides, step = {}, 1
    for dim in reversed(order):
        strides[dim], step = step, step * sizes[dim]
    return Strides(**strides)


@pytest.mark.parametrize(
    "orders", ({"Q": "bgrmd", "K": "bgnd", "V": "bgnd", "O": "bgrmd"}, {"Q": "bgrdm", "K": "bgdn", "V": "bgdn", "O": "bgrdm"})
)
def test_orders(orders):
    """Heads as torch stores them, and all matrices in column-major order: wgmma reads them as stored, stmatrix transposes."""
    sizes = {"b": 2, "m": 64, "n": 40, "g": 1, "r": 1, "d": 32}
    program = programs(64, 40, 32, {"epi_n": 32}, batch=2, **{name: stored(order, **sizes) for name, order in orders.items()})
    require_right(program, orders=(5,))
    columns = orders["Q"][-1] == "m"
    assert ("STMATRIX_WARPGROUP_COL" if columns else "STMATRIX_WARPGROUP") in instructions_of(program)
    for read in ("col_row", "reg_col") if columns else ("row_col", "reg_row"):
        assert f"_{read}_f32_f16(" in program.cuda


@pytest.mark.sampled(3)
@pytest.mark.parametrize("options", ({}, {"causal": True}))
def test_missing_synchronization_is_found(options):
    """The check reports the fault; otherwise the simulator does, or the result is right because other waits make this one redundant."""
    program = programs(64, 48, 16, {"bn": 16, "epi_n": 16}, options, heads=4)
    arrays, planted = inputs(program.spec), list(dropped(program.ir))
    near = near_softmax(program.spec, arrays, **options)
    detected = [bool(errors(faulty)) for _, faulty in planted]
    assert sum(detected) > 10
    for (_, faulty), fault in zip(planted, detected, strict=True):
        with contextlib.suppress(SimulationError):
            if not fault:
                near.require(simulate(faulty, arrays, order=random.Random(2)).outputs)


def test_growing_scores():
    """The running maximum changes with every block of keys."""
    require_right(programs(64, 80, 64, {"bn": 16}), orders=(2,), ramp=True)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("options", ({}, {"causal": True}))
def test_sizes_known_at_run_time(options):
    program = programs(sym("m"), sym("n"), 64, {}, options, heads=2)
    for m, n in ((70, 40), (33, 65)):
        require_right(program, {"m": m, "n": n}, orders=(3,), **options)


def staying(m=136, d=16, lse=False, dynamic=False, separate=False, **values):
    """A persistent kernel whose tiles have key loops of different lengths, longest first; `dynamic`: a free block claims the next tile."""
    definition = attention.definition(causal=True, lse=lse)
    strategy = hopper_attention.by_rows(definition, num_blocks=2, persistent=True, dynamic=dynamic, separate=separate).with_(
        **{**SMALL, "epi_n": 16, "heads_per_group": 0, **values}
    )
    return strategy(attention.spec(m, m, d, fused=definition, heads=2)).program(TARGET)


@pytest.mark.nightly
@pytest.mark.parametrize("dynamic", (pytest.param(False, marks=pytest.mark.nightly), True))
def test_persistent_blocks_whose_tiles_differ_in_length(dynamic):
    """Each role counts the fills of a ring from tile to tile by itself, whichever tiles these are."""
    program = staying(dynamic=dynamic)
    require_right(program, orders=(4,), causal=True)
    assert program.cuda.count("n_count += min(5, block_m * 2 + 2);") == 2


@pytest.mark.parametrize("dynamic", (False, pytest.param(True, marks=pytest.mark.nightly)))
def test_wrong_fill_counts_are_detected(dynamic):
    """One role or both skip a fill or count it twice."""
    program = staying(dynamic=dynamic)
    roles = next(one for one in program.ir.body if isinstance(one, Roles))
    for more, which in itertools.product((-1, 1, 2), ({0}, {1}, {0, 1})):
        counted = [
            attrs.evolve(role, body=rewritten(role.body, growing(more))) if place in which else role
            for place, role in enumerate(roles.roles)
        ]
        faulty = attrs.evolve(roles, roles=tuple(counted))
        assert errors(attrs.evolve(program.ir, body=tuple(faulty if one is roles else one for one in program.ir.body))), (more, which)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dynamic", (False, True))
def test_tiles_whose_lengths_are_known_at_run_time(dynamic):
    """All tile sequences are checked. Counting fills as if all tiles had the same length is right only for such tiles, so it is reported."""
    kernel = staying(sym("m"), dynamic=dynamic).ir
    assert not errors(kernel) and errors(as_if_alike(kernel, 1))
    if not dynamic:  # a role whose iterations are not those of the tile: regression, it raised KeyError
        assert errors(attrs.evolve(kernel, body=rewritten(kernel.body, growing(1))))


FRONTS = {
    "of one number, of heads of which nobody knows how many": (lambda one: heads_first(one).persistent(2), (128, 128), {"heads": sym("h")}),
    "under heads that come in turns": (
        lambda one: one.tile(r=1, g=1, b=1).tile(m=64).to(Block).persistent(1),
        (sym("m"), 96),
        {"heads": 2},
    ),
    "under two of them": (lambda one: one.tile(r=1, g=1, b=1).tile(m=64).to(Block).persistent(1), (192, 192), {"heads": 2}),
    "no more than blocks": (lambda one: heads_first(one).persistent(8), (sym("m", high=256), sym("n", high=256)), {}),
}


def heads_first(definition):
    return definition.tile(r=1, g=1, b=1).to(Block).tile(m=64).to(Block)


@pytest.mark.parametrize("front", FRONTS)
def test_tiles_of_different_lengths(front):
    """The trip count depends only on the tile. One fill too few or too many, for any head, is detected."""
    definition = attention.definition(causal=True)
    start, sizes, options = FRONTS[front]
    steps = (
        start(definition).load("Q", SH, Move.done()).split(n=64).pipeline(2).skip_masked_tiles().warp_specialize(128).defer("pv", after="s")
    )
    rows = steps.load("K", SH, Move.done()).load("V", SH, Move.done()).tile(m=64).to(Warpgroup)
    rows = rows.step("s", hopper_attention.by_warpgroups).step("pv", hopper_attention.by_warpgroups).done()
    kernel = rows(attention.spec(*sizes, 16, fused=definition, **options)).program(TARGET).ir
    assert not errors(kernel)
    if front != "no more than blocks":
        assert all(errors(attrs.evolve(kernel, body=rewritten(kernel.body, growing(more)))) for more in (-1, 1))


@pytest.mark.nightly
@pytest.mark.parametrize("dynamic", (False, True))
def test_lengths_known_at_run_time_are_right(dynamic):
    program = staying(sym("m"), dynamic=dynamic)
    for m in (40, 136):
        require_right(program, {"m": m}, orders=(4,), causal=True)
    for role in (0, 1):
        faulty = as_if_alike(program.ir, role)
        assert errors(faulty)
        with pytest.raises(SimulationError, match="passes by parity alone|deadlock"):
            simulate(faulty, inputs(program.spec, {"m": 264}), {"m": 264}, order=random.Random(1))
    for more in (-1, 1, 2):
        assert errors(attrs.evolve(program.ir, body=rewritten(program.ir.body, growing(more))))


def as_if_alike(kernel, role):
    """The kernel in which a role assumes that all tiles have as many iterations as its current one."""
    loop = [one for one in statements(kernel.body) if isinstance(one, For) and one.prior_iterations is not None][role]
    uniform = attrs.evolve(
        loop, prior_iterations=None, increment=ONE, body=substituted(loop.body, {loop.prior_iterations: loop.var * loop.increment})
    )
    return attrs.evolve(kernel, body=rewritten(kernel.body, lambda one: (uniform,) if one is loop else (one,)))


@pytest.mark.nightly
@pytest.mark.parametrize("options", ({}, {"dynamic": True}))
def test_one_block_has_all_tiles_at_sizes_known_at_run_time(options):
    definition = attention.definition(causal=bool(options))
    strategy = hopper_attention.by_rows(definition, num_blocks=1, **options).with_(**SMALL, epi_n=16)
    program = strategy(attention.spec(sym("m"), sym("n"), 16, fused=definition)).program(TARGET)
    require_right(program, {"m": 136, "n": 64}, orders=(4,), **({"causal": True} if options else {}))


def growing(more):
    """An edit that adds `more` to each fill count of a loop."""

    def edit(statement):
        counts = isinstance(statement, For) and statement.prior_iterations is not None
        return (attrs.evolve(statement, increment=statement.increment + more) if counts else statement,)

    return edit


def test_pingpong_requires_tiles_of_one_length():
    definition = attention.definition(causal=True)
    blocks = (
        definition.tile(m=64, r=1, g=1, b=1)
        .to(Block)
        .persistent(2)
        .pingpong(2)
        .load("Q", SH, Move.done())
        .split(n=32)
        .pipeline(2)
        .skip_masked_tiles()
    )
    product = MatMul.split(16).unroll().done()
    strategy = blocks.warp_specialize(128).load("K", SH, Move.done()).load("V", SH, Move.done()).tile(m=64).to(Warpgroup)
    strategy = strategy.step("s", product).step("pv", product)
    with pytest.raises(DecompositionError, match="varies between iterations of loop iteration") as caught:
        strategy.done()(attention.spec(256, 256, 64, fused=definition)).program(TARGET).ir  # noqa: B018
    assert "leave out .pingpong()" in caught.value.hint


@pytest.mark.sampled(3)
@pytest.mark.parametrize("stages", (1, 2))
def test_a_ring_in_a_loop_that_differs_from_tile_to_tile(stages):
    """The fills of the inner MMA loop were numbered as if all tiles had the length of the current one, which was refused as a race."""
    definition = attention.definition(causal=True)
    blocks = (
        definition.tile(m=64, r=1, g=1, b=1)
        .to(Block)
        .persistent(2)
        .load("Q", SH, Move.done())
        .split(n=32)
        .pipeline(stages)
        .skip_masked_tiles()
    )
    scores = MatMul.split(16).pipeline(2).warp_specialize().load(B, SH, Move.done()).tile(64, 32).to(Warpgroup).done()
    sums = MatMul.tile(64, 64).to(Warpgroup).split(16).unroll().done()
    strategy = blocks.load("V", SH).step("s", scores).step("pv", sums).done()
    require_right(strategy(attention.spec(192, 192, 64, fused=definition)).program(TARGET), orders=(4,), causal=True)


def test_probabilities_have_the_register_layout_of_the_next_mma():
    """Scores in shared memory or of another type would not have that layout; the instruction states what it requires."""
    definition = attention.definition()
    product = MatMul.split(8).unroll().done()
    strategy = definition.tile(m=64, r=1, g=1, b=1).to(Block).load("Q", SH, Move.done()).split(n=32).pipeline(2).warp_specialize(128)
    strategy = (
        strategy.load("K", SH, Move.done()).load("V", SH, Move.done()).tile(m=64).to(Warpgroup).step("s", MatMul.split(16).unroll().done())
    )
    with pytest.raises(MatchError) as caught:
        strategy.step("pv", product).done()(attention.spec(64, 64, 64, fused=definition)).program(TARGET).ir  # noqa: B018
    assert "WGMMA_F16_F32_HELD" in str(caught.value) and "MatMul(64,n,16)(RF,SH,RF)" in str(caught.value)


def test_descriptors_are_built_once_per_iteration():
    """Offsets of unrolled loops are added to the descriptor, and stages are uniform over all lanes; a plain GEMM does not change."""
    text = programs(64, 96, 64, {"bn": 32}).cuda
    assert re.search(r"matrix_descriptor<\d+, 1024, 1>\(k_sh_address \+ n_stage_uniform \* k_sh_stage_bytes\) \+ s_d \* 2,", text)
    assert re.search(r"v_sh_address \+ n_stage_uniform \* v_sh_stage_bytes\) \+ pv_n \* 128,", text)
    assert re.search(r"#pragma unroll 1\n *for \(int n = 0; n < 3; \+\+n\) {", text)
    plain = hopper.strategy(hopper.spec(512, 512, 512)).program(TARGET)
    assert not awaited(plain.ir) and re.search(r"matrix_descriptor<0, 1024, 1>\(a_sh_address .* \* 32\),", plain.cuda)


def test_printed_text(tmp_path):
    """The printed text, executed with threads in random order; masked blocks of keys have a separate loop."""
    if printed_text.COMPILER is None:
        pytest.skip("no C++ compiler")
    separate = staying(72, 64, lse=True, dynamic=True, separate=True, bn=16, epi_n=64)
    assert re.search(r"for \(int n = n_end; n < .*; \+\+n\)", separate.cuda)
    programs_of_tests = [programs(70, 40, 64, {"bn": 16}, heads=2), separate]
    host = printed_text.HostProgram([printed_text.Printed.of(one) for one in programs_of_tests], tmp_path)
    for number, program in enumerate(programs_of_tests):
        arrays = inputs(program.spec)
        near_softmax(program.spec, arrays, causal=bool(number)).require(host.run(number, arrays, seed=4))


@pytest.mark.skipif(not any(one.serves(TARGET) for one in toolchains()), reason="no NVRTC for sm_90a")
@pytest.mark.parametrize(
    ("d", "values", "options"),
    [
        (128, {}, {}),
        (64, {"bm": 192, "bn": 96}, {}),
        (128, {"bm": 192, "bn": 80}, {"lse": True}),
        (128, {}, {"causal": True, "rescale_threshold": 8}),
        (64, {}, {"causal": True}),
        pytest.param(64, {}, {"causal": True, "dynamic": True}, marks=pytest.mark.nightly),
        pytest.param(128, {}, {"causal": True, "rescale_threshold": 8, "dynamic": True}, marks=pytest.mark.nightly),
    ],
)
def test_no_spills(d, values, options):
    """For two and more blocks of keys; ptxas warns about a serialized MMA or an unrequested wait."""
    dynamic = options.get("dynamic", False)
    definition = attention.definition(**{name: value for name, value in options.items() if name != "dynamic"})
    strategy = hopper_attention.by_rows(definition, "bm" not in values, q_in_registers=dynamic, dynamic=dynamic).with_(**values)
    program = strategy(attention.spec(512, 512, d, heads=16, batch=1 + 3 * dynamic, fused=definition)).program(TARGET)
    assert (program.ir.counter is not None) == dynamic
    resources = compile_cuda(program.cuda, TARGET).resources[program.name]
    assert not resources.spill_stores and not resources.spill_loads and not resources.stack_frame


FORMS = (
    {},
    {"causal": True},
    {"window": 256},
    {"score": "30 * tanh_approx(s / 30)"},
    {"score": "s - exp2(-(g + 1)) * (m - n)", "causal": True},
    {"score": "s - exp2(-(g + 1)) * (m - n)"},
    {"lse": True},
)


@pytest.mark.nightly
@pytest.mark.skipif(not any(one.serves(TARGET) for one in toolchains()), reason="no NVRTC for sm_90a")
@pytest.mark.parametrize("d", (64, 96, 128, 256))
@pytest.mark.parametrize("options", FORMS, ids=lambda options: " ".join(map(str, options.values())) or "plain")
def test_default_forms_do_not_spill(d, options):
    """For each form that `fireiron.attention` uses, in float16 and bfloat16."""
    definition = hopper_attention.definition(**options)
    for dtype in (float16, bfloat16):
        spec = hopper_attention.spec(4096, 4096, d, heads=16, fused=definition, dtype=dtype)
        form = hopper_attention.fastest(spec)
        strategy = hopper_attention.by_rows(definition, **hopper_attention.FORMS[form])
        known = {name: value for name, value in hopper_attention.values_of(form, spec).items() if name in strategy.tunables()}
        program = strategy.with_(**known)(spec).program(TARGET)
        resources = compile_cuda(program.cuda, TARGET).resources[program.name]
        assert not resources.spill_stores and not resources.spill_loads and not resources.stack_frame


@pytest.mark.nightly
@pytest.mark.parametrize("causal", [False, True])
def test_output_in_the_memory_of_the_queries(causal):
    """The last tile of queries and the last block of keys are partial; warpgroups wait for each other before they overwrite queries."""
    definition, form = hopper_attention.definition(causal=causal), "causal_wide" if causal else "wide"
    strategy = hopper_attention.by_rows(definition, **hopper_attention.FORMS[form])
    spec = hopper_attention.spec(130, 130 if causal else 170, 256, fused=definition)
    known = {name: value for name, value in hopper_attention.wide_values(spec).items() if name in strategy.tunables()}
    require_right(strategy.with_(**known)(spec).program(TARGET), orders=(1,), causal=causal)


def test_maxima_that_stay():
    """Probabilities are at most 2**RESCALE_THRESHOLD, far below the float16 maximum, and at least those of exact rescaling."""
    assert float(np.finfo(np.float16).max) > 2.0**hopper_attention.RESCALE_THRESHOLD
    scores = np.random.default_rng(0).standard_normal((64, 40)) * 6
    most, seldom = np.full(64, -1e30), np.full(64, -1e30)
    for score in scores.T:
        most = np.maximum(most, score)
        seldom = np.where(score > seldom + hopper_attention.RESCALE_THRESHOLD, score, seldom)
        assert (seldom <= most).all() and (most <= seldom + hopper_attention.RESCALE_THRESHOLD).all()


def chain(definition, shares=False, delayed=False, skips=()):
    """Attention with two stages and per-lane partial sums."""
    copy = Move.done()
    steps = (
        definition.rfactor("sums", 4).tile(m=64, r=1, g=1, b=1).to(Block).load("Q", SH, copy).split(n=32).pipeline(4).warp_specialize(128)
    )
    steps = (steps.defer("pv", after="s") if delayed else steps).load("K", SH, copy).load("V", SH, copy)
    rows = (steps.share_stages("K") if shares else steps).tile(m=64).to(Warpgroup)
    rows = rows.step("s", hopper_attention.by_warpgroups).step("pv", hopper_attention.by_warpgroups)
    return (rows.skip_steps(*skips, where="new == mx") if skips else rows).step("store", hopper_attention.staged.with_(epi_n=64)).done()


@pytest.mark.parametrize(
    "skips", [(), pytest.param(("keep",), marks=pytest.mark.nightly), pytest.param(("alpha",), marks=pytest.mark.nightly)]
)
def test_optional_steps_may_be_kept(skips):
    """Rows are always rescaled although no condition was requested: the lanes that own the partial sums of a row decide before the others
    do.
    """
    definition = attention.definition(rescale_threshold=8)
    require_right(chain(definition, skips=skips)(attention.spec(64, 64, 64, fused=definition)).program(TARGET), orders=(None,))


def test_loads_that_share_stages_are_read_in_one_iteration():
    with pytest.raises(DecompositionError, match="loads that share the stages of k_sh are read in different iterations"):
        _ = chain(attention.definition(), shares=True, delayed=True)(attention.spec(64, 96, 64)).program(TARGET).ir


def test_forms_are_strategies_of_the_file():
    for name, options in hopper_attention.FORMS.items():
        definition = hopper_attention.definition(causal="causal" in name)
        assert getattr(hopper_attention, name) == hopper_attention.by_rows(definition, **options)
    for d, m, causal, wanted in (
        (128, 4096, False, "q_in_registers"),
        (128, 512, True, "causal_dynamic_q_in_registers"),
        (256, 512, True, "causal_dynamic"),
        (256, 4096, False, "wide"),
        (64, 4096, True, "causal_order_mma"),
        (64, sym("m"), True, "causal_dynamic_q_in_registers"),
        (256, sym("m"), True, "causal_dynamic"),
    ):
        definition = hopper_attention.definition(causal=causal)
        assert hopper_attention.fastest(hopper_attention.spec(m, m, d, fused=definition)) == wanted
