"""Attention in one kernel: results at edges, for strides, for shared K and V heads, with Q in shared memory and in registers.

The reference is a plain softmax, which does not split the keys into blocks.
"""

import itertools
import random

import attrs
import numpy as np
import printed_text
import pytest
from near import Near
from ringed import errors

from fireiron import *
from fireiron import ir
from fireiron.check import check
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.sim import simulate
from fireiron.strategies import attention

SMALL = {"bm": 64, "bn": 32, "wm": 16, "stages": 2}


def softmax(q, k, v, scale, causal=False, window=None):
    """Attention of `Q[b,m,g,r,d]`, `K[b,n,g,d]` and `V[b,n,g,d]` with the log-sum-exp of each row; fully masked rows are 0."""
    q, k, v = (one.astype(np.float64) for one in (q, k, v))
    scores = np.einsum("bmgrd,bngd->bmgrn", q, k) * float(scale)
    m, n = np.arange(q.shape[1])[:, None], np.arange(k.shape[1])
    seen = np.full((q.shape[1], k.shape[1]), True)
    seen = seen & (n <= m) if causal or window is not None else seen
    seen = seen & (m < n + window) if window is not None else seen
    scores = np.where(seen[None, :, None, None, :], scores, -np.inf)
    top = np.maximum(scores.max(-1, keepdims=True), -1e30)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        out = np.einsum("bmgrn,bngd->bmgrd", np.where(total > 0, weights / total, 0), v)
        return out, (top + np.log(total))[..., 0]


def inputs(spec, sizes=None, seed=3, ramp=False):
    """Standard normal data; with `ramp`, scores that increase along the keys."""
    generator = np.random.default_rng(seed)
    arrays = {}
    for name in "QKV":
        view = spec.operands[name]
        shape = [int((sizes or {}).get(str(size), 0) or str(size)) for size in view.tensor.shape]
        arrays[name] = generator.standard_normal(shape)
        if ramp and name == "K":
            arrays[name] *= np.linspace(0.1, 8, shape[1])[None, :, None, None]
        arrays[name] = arrays[name].astype(view.dtype.to_numpy())
    return {**arrays, "scale": np.float32(0.125)}


def require_right(definition, spec, values=None, q_in_registers=False, sizes=None, ramp=False, target="sm_80", order=1, **masks):
    """Check that the kernel has no findings and equals the softmax, with warps in order and in random order.

    `sizes` are run-time sizes, or several of them.
    """
    program = attention.by_rows(definition, q_in_registers).with_(**{**SMALL, **(values or {})})(spec).program(target)
    assert not errors(program.ir)
    for run_time_sizes in sizes if isinstance(sizes, list) else [sizes]:
        arrays = inputs(spec, run_time_sizes, ramp=ramp)
        near = near_softmax(spec, arrays, run_time_sizes, **masks)
        for seed in (None, order):
            shuffled = None if seed is None else random.Random(seed)
            got = simulate(program.ir, arrays, run_time_sizes or {}, order=shuffled).outputs
            assert not np.isnan(got["O"].astype(np.float32)).any()
            near.require(got)
    return program


def near_softmax(spec, arrays, sizes=None, **masks):
    """Compare outputs with the plain softmax."""
    out, sums = softmax(*(arrays[name] for name in ("Q", "K", "V", "scale")), **masks)
    return Near(spec, arrays, {"O": out, **({"L": sums} if "L" in spec.outputs else {})}, sizes)


def test_definition_does_not_depend_on_blocks_of_keys():
    for options in ({}, {"causal": True}, {"window": 4, "lse": True}):
        attention.definition(**options).check({"m": 9, "n": 9, "d": 4, "b": 1, "g": 2, "r": 2}, seed=6)  # a positive scale


@pytest.mark.parametrize("d", (64, pytest.param(128, marks=pytest.mark.nightly)))
@pytest.mark.parametrize("q_in_registers", (False, True))
@pytest.mark.parametrize("causal", (False, True))
def test_attention_at_edges(d, q_in_registers, causal):
    definition = attention.definition(causal=causal)
    require_right(definition, attention.spec(100, 77, d, fused=definition), q_in_registers=q_in_registers, causal=causal)


def test_attention_with_two_three_and_four_warps():
    """Two, three or four warps of 16 rows each: one tunable sets their number."""
    definition = attention.definition(causal=True)
    spec = attention.spec(70, 64, 64, fused=definition)
    arrays = inputs(spec)
    expected = softmax(*arrays.values(), causal=True)[0]
    copy, fragments = Move.coalesced_copy(8).done(), Move.done()
    products = MatMul.split(16).unroll().load(A, RF, fragments).load(B, RF, fragments).then(attention.tiles)
    values = MatMul.split(16).unroll().load(B, RF, fragments).then(attention.tiles)
    for warps in (2, 3, 4):
        chain = (
            definition.tile(m=16 * warps, r=1, g=1, b=1)
            .to(Block)
            .load("Q", SH, copy)
            .swizzle_storage()
            .split(n=32)
            .skip_masked_tiles()
            .pipeline(2)
        )
        chain = chain.load("K", SH, copy).swizzle_storage().load("V", SH, copy).swizzle_storage().tile(m=16).to(Warp)
        program = chain.step("s", products).step("pv", values).done()(spec).program("sm_80")
        assert not errors(program.ir) and f"__launch_bounds__({32 * warps})" in program.cuda
        got = simulate(program.ir, arrays, order=random.Random(warps)).outputs["O"].astype(np.float64)
        assert np.linalg.norm(got - expected) < 8e-4 * np.linalg.norm(expected)


def persistent_program(stages, spec, definition):
    """Persistent blocks without a producer, whose trip count varies between tiles."""
    copy, fragments = Move.coalesced_copy(8).done(), Move.done()
    products = MatMul.split(16).unroll().load(A, RF, fragments).load(B, RF, fragments).then(attention.tiles)
    values = MatMul.split(16).unroll().load(B, RF, fragments).then(attention.tiles)
    chain = definition.tile(m=32, r=1, g=1, b=1).to(Block).persistent(2).load("Q", SH, copy).split(n=32)
    chain = (chain.pipeline(stages) if stages else chain).skip_masked_tiles().load("K", SH, copy).load("V", SH, copy)
    return chain.tile(m=16).to(Warp).step("s", products).step("pv", values).done()(spec).program("sm_80")


def without(body, number, kinds=(ir.Barrier, ir.Wait)):
    """The list without its n-th barrier or wait, and the number of these."""
    seen = itertools.count()
    return ir.rewritten(body, lambda one: () if isinstance(one, kinds) and next(seen) == number else (one,)), next(seen)


@pytest.mark.parametrize(("stages", "sizes"), [(0, (160, 160)), (2, (160, 160)), (0, (sym("M"), sym("N"))), (3, (sym("M"), sym("N")))])
def test_race_check_of_persistent_blocks_without_a_ring(stages, sizes):
    """The check examines tiles of all trip counts. It reports each missing barrier and wait."""
    definition = attention.definition(causal=True)
    kernel = persistent_program(stages, attention.spec(*sizes, 32, fused=definition), definition).ir
    assert not errors(kernel)
    for number in range(without(kernel.body, -1)[1]):
        assert errors(attrs.evolve(kernel, body=without(kernel.body, number)[0])), number


def test_persistent_blocks_without_a_ring():
    definition = attention.definition(causal=True)
    program = persistent_program(2, attention.spec(sym("M"), sym("N"), 32, fused=definition), definition)
    spec = attention.spec(100, 70, 32, fused=definition)
    arrays = inputs(spec)
    got = simulate(program.ir, arrays, {"M": 100, "N": 70}, order=random.Random(1)).outputs["O"].astype(np.float64)
    expected = softmax(*arrays.values(), causal=True)[0]
    assert np.linalg.norm(got - expected) < 8e-4 * np.linalg.norm(expected)


@pytest.mark.nightly
def test_attention_with_shared_heads():
    definition = attention.definition(causal=True)
    require_right(definition, attention.spec(70, 96, 64, heads=6, batch=2, shared=3, fused=definition), causal=True)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("q_in_registers", (False, True))
def test_fully_masked_rows(q_in_registers):
    """Queries whose window is past the last key, and blocks in which all rows mask the first keys."""
    definition = attention.definition(window=20, lse=True)
    program = require_right(definition, attention.spec(100, 40, 64, heads=2, fused=definition), q_in_registers=q_in_registers, window=20)
    arrays = inputs(program.spec)
    outputs = simulate(program.ir, arrays).outputs
    assert not outputs["O"][:, 60:].any() and np.isneginf(outputs["L"][:, 60:]).all()


def test_attention_types_and_increasing_scores():
    definition = attention.definition(causal=True, lse=True)
    spec = attention.spec(96, 96, 64, fused=definition, dtype=bfloat16)
    require_right(definition, spec, ramp=True, causal=True)
    require_right(definition, attention.spec(96, 96, 64, fused=definition), {"wm": 32, "bn": 64}, ramp=True, causal=True)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("options", [{"causal": True}, {"window": 40}], ids=str)
def test_lazy_rescaling(options):
    """Scores that increase by more than `rescale_threshold` along the keys, some rows fully masked at first; also the log-sum-exp."""
    definition = attention.definition(rescale_threshold=2, lse=True, **options)
    require_right(definition, attention.spec(100, 77, 64, fused=definition), ramp=True, **options)


@pytest.mark.parametrize("rescale_threshold", (8, 20))
def test_lazy_rescaling_threshold(rescale_threshold):
    """Scores of the second block of keys exceed the first by 2^17: without rescaling the exponentials overflow float16."""
    definition = attention.definition(rescale_threshold=rescale_threshold)
    program = attention.by_rows(definition).with_(**SMALL)(attention.spec(64, 64, 64, fused=definition)).program("sm_80")
    arrays = inputs(program.spec)
    arrays["Q"][:] = 1
    arrays["K"][:] = 0.1 * arrays["K"]
    arrays["K"][:, 32:] += np.float16(17 / attention.LOG2_E / 64 / 0.125)
    got = simulate(program.ir, arrays).outputs
    assert np.isfinite(got["O"].astype(np.float64)).all() == (rescale_threshold < 17)
    assert rescale_threshold > 17 or not near_softmax(program.spec, arrays).wrong(got)


@pytest.mark.nightly
def test_attention_of_run_time_lengths():
    definition = attention.definition(causal=True)
    spec = attention.spec(sym("m"), sym("n"), 64, heads=2, fused=definition)
    require_right(definition, spec, sizes=[{"m": m, "n": n} for m, n in ((1, 1), (64, 33), (130, 65))], causal=True)


def heads_first(length, heads, d):
    """The strides of a torch array (b, h, m, d) as `[b,m,g,r,d]` or `[b,n,g,d]`."""
    return {"b": heads * length * d, "g": length * d, "d": 1}


def test_attention_strides():
    """Both storage orders of torch: (b, m, h, d) and (b, h, m, d)."""
    definition = attention.definition()
    m, n, d = 64, 40, 64
    queries = Strides(**heads_first(m, 2, d), r=m * d, m=d)
    keys = Strides(**heads_first(n, 2, d), n=d)
    spec = attention.spec(m, n, d, heads=2, fused=definition, Q=queries, O=queries, K=keys, V=keys)
    require_right(definition, spec)


@pytest.mark.parametrize("d", (64, 128))
def test_attention_has_no_bank_conflicts(d):
    conflicts = [
        finding.message
        for finding in check(attention.strategy.with_(**SMALL)(attention.spec(128, 128, d)).program("sm_80").ir)
        if finding.kind == "banks"
    ]
    assert len(conflicts) >= 6 and all("no bank conflict" in one for one in conflicts)


def test_printed_attention_on_a_cpu(tmp_path):
    """The printed text, executed by threads in random order."""
    programs = []
    for options, q_in_registers in (({"causal": True}, False), ({"window": 30, "lse": True}, True)):
        definition = attention.definition(**options)
        programs.append(
            attention.by_rows(definition, q_in_registers).with_(**SMALL)(attention.spec(80, 70, 64, fused=definition)).program("sm_80")
        )
    if printed_text.COMPILER is None:
        pytest.skip("no C++ compiler")
    host = printed_text.HostProgram([printed_text.Printed.of(one) for one in programs], tmp_path)
    for number, program in enumerate(programs):
        arrays = inputs(program.spec)
        near_softmax(program.spec, arrays, causal=True, window=30 if number else None).require(host.run(number, arrays, seed=4))


def torch_strides(length, d):
    """Operands as torch stores them, (b, h, m, d)."""
    order = heads_first(length, 16, d)
    queries, keys = Strides(**order, r=length * d, m=d), Strides(**order, n=d)
    return {"Q": queries, "O": queries, "K": keys, "V": keys}


FORMS = {
    "plain": ({}, {}),
    "causal": ({"causal": True}, {}),
    "window": ({"window": 256}, {}),
    "lse": ({"lse": True}, {}),
    "causal lse": ({"causal": True, "lse": True}, {}),
    "window lse": ({"window": 256, "lse": True}, {}),
    "shared heads": ({"causal": True}, {"shared": 4}),
    "torch": ({}, {"order": torch_strides}),
    "torch causal": ({"causal": True}, {"order": torch_strides}),
    "symbolic": ({}, {"M": sym("m"), "N": sym("n")}),
    "symbolic causal": ({"causal": True}, {"M": sym("m"), "N": sym("n")}),
    "symbolic window lse": ({"window": 256, "lse": True}, {"M": sym("m"), "N": sym("n")}),
    "ragged": ({"causal": True}, {"M": 1000, "N": 1000}),
    "bfloat16": ({"causal": True, "lse": True}, {"dtype": bfloat16}),
}
"""Options of the definition and of the spec."""

SOME = {("window lse", 128, "sm_80"), ("causal lse", 128, "sm_90"), ("torch", 128, "sm_90"), ("causal", 64, "sm_80")}
"""Forms that the short tier compiles: each of the first three once needed more than 255 registers."""


def compiled_forms():
    """All forms, for both targets and head dimensions."""
    for target in ("sm_80", "sm_90"):
        for d in (64, 128):
            for form in FORMS:
                yield pytest.param(form, d, target, marks=() if (form, d, target) in SOME else pytest.mark.nightly)


def suiting(strategy, values):
    """The values of the tunables that a strategy has."""
    return {name: value for name, value in values.items() if name in strategy.tunables()}


def spills(strategy, spec, target):
    """Bytes of local memory of a kernel."""
    program = strategy(spec).program(target)
    report = compile_cuda(program.cuda, target).resources[program.name]
    return report.spill_stores + report.spill_loads + report.stack_frame


@pytest.mark.sampled(2)
@pytest.mark.skipif(not toolchains(), reason="no NVRTC installed")
@pytest.mark.parametrize(("form", "d", "target"), list(compiled_forms()))
def test_attention_does_not_spill(form, d, target):
    """As the library calls it: with a branch, without one if nothing is masked, and, with a mask, with adjacent heads."""
    options, given = FORMS[form]
    given = dict(given)
    order = given.pop("order", lambda length, d: {})
    M, N = given.pop("M", 2048), given.pop("N", 2048)
    definition = attention.definition(**options)
    spec = attention.spec(M, N, d, heads=16, batch=2, fused=definition, **order(2048, d), **given)
    strategy = attention.by_rows(definition).with_(**suiting(attention.by_rows(definition), attention.values(spec)))
    assert spills(strategy, spec, target) == 0
    if not attention.masks(definition):
        steady = attention.by_rows(definition, branch=False)
        assert spills(steady.with_(**suiting(steady, attention.steady_values(spec))), spec, target) == 0
    if "together" in strategy.tunables() and (form, d, target) not in SOME:
        assert spills(strategy.with_(heads_per_group=4), spec, target) == 0


@pytest.mark.nightly
@pytest.mark.skipif(not toolchains(), reason="no NVRTC installed")
@pytest.mark.parametrize(("d", "wm"), [(64, 32), (128, 16)])
@pytest.mark.parametrize("target", ("sm_80", "sm_90"))
def test_attention_with_q_in_registers_does_not_spill(d, wm, target):
    definition = attention.definition(causal=True)
    assert spills(attention.by_rows(definition, True).with_(wm=wm), attention.spec(1024, 1024, d, heads=8, fused=definition), target) == 0


def test_score_arithmetic_is_folded():
    """A factor of a score joins its scale, and one of a whole function the base of the exponentials. Nothing else changes."""
    assert attention.formula_of("30 * tanh(s / 32)") == "30 * tanh((s[m,n] * (scale * 0.03125)))"
    assert attention.formula_of("s - 0.5 * s * 3") == "(s[m,n] * scale) - 0.5 * (s[m,n] * scale) * 3"
    assert attention.formula_of("m / s * 3 + s*2") == "m / (s[m,n] * scale) * 3 + (s[m,n] * (scale * 2))"
    assert attention.factor_of("30 * tanh(s / 30)") == (30, "tanh(s / 30)")
    for score in ("0 * tanh(s)", "30 * tanh(s) * tanh(s)", "30 * (s + m)", "s", "30 * tanh(s) + s", "n30 * tanh(s)", "-3 * tanh(s)"):
        assert attention.factor_of(score) == (1, score)
