"""Groups of packed rows whose ends the kernel reads from memory: right for any offsets, iterations of other rows skipped, all injected
faults detected.

The reference multiplies the rows of each group in NumPy and does not use tiles.
"""

import itertools
import random

import attrs
import numpy as np
import pytest
from faults import faults

from fireiron import *
from fireiron.check import safety
from fireiron.check.data_dependent_loops import with_counted_iterations
from fireiron.cuda.skipping_loops import as_skipping_loop
from fireiron.cuda.versions import Branch, branched
from fireiron.errors import DecompositionError, SimulationError, VerificationError
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.ir import Barrier, For, Let, rewritten, statements, verify
from fireiron.measure.data import random_inputs
from fireiron.sim import simulate
from fireiron.strategies import grouped, grouped_ragged
from fireiron.values.expr import TRUE, Lookup, Var, less, lookup

SMALL = {"bm": 64, "bn": 64, "wm": 32, "wn": 32, "stages": 3}
GROUPS, N, K = 5, 72, 40

OFFSETS = {
    "some empty": (0, 0, 37, 37, 101, 140),
    "all in the last": (0, 0, 0, 0, 0, 140),
    "one row each": (0, 1, 2, 3, 4, 5),
    "a row left over on both sides": (1, 30, 64, 64, 128, 139),
    "nothing": (0, 0, 0, 0, 0, 0),
}


def program_of(M, groups=GROUPS):
    return grouped_ragged.strategy.with_(**SMALL)(grouped_ragged.spec(M, N, K, groups=groups)).program("sm_80")


def arrays_of(offsets, M, seed=0):
    """Inputs, and the matrix products of each group; weights of empty groups are NaN."""
    generator = np.random.default_rng(seed)
    a, b = (generator.standard_normal(shape).astype(np.float16) for shape in ((M, K), (len(offsets) - 1, K, N)))
    offsets = np.asarray(offsets, np.int32)
    expected = np.zeros((M, N))
    for group, (begin, end) in enumerate(itertools.pairwise(offsets)):
        expected[begin:end] = a[begin:end].astype(float) @ b[group].astype(float)
        if begin == end:
            b[group] = np.nan
    return {"A": a, "B": b, "begin": offsets[:-1], "end": offsets[1:]}, expected


def error_of(got, expected):
    return np.abs(got.astype(float) - expected).max() / max(np.abs(expected).max(), 1)


@pytest.fixture(scope="module")
def program():
    return program_of(140)


@pytest.mark.sampled(18)
@pytest.mark.parametrize("name", OFFSETS)
def test_rows_of_groups(program, name):
    arrays, expected = arrays_of(OFFSETS[name], 140)
    assert error_of(simulate(program.ir, arrays, order=random.Random(3)).outputs["D"], expected) < 1e-3
    assert error_of(program.spec.reference(*arrays.values()), expected) < 1e-3


def test_rows_of_run_time():
    program = program_of(sym("M"))
    assert safety(program.lowered) == ()
    for M in (1, 70):
        arrays, expected = arrays_of((0, 0, M // 2, M // 2, M, M), M)
        assert error_of(simulate(program.ir, arrays, {"M": M}).outputs["D"], expected) < 1e-3


def test_groups_of_run_time():
    """Data-dependent iterations are iterations of the loop, for any number of groups."""
    program = program_of(70, sym("G"))
    assert safety(program.lowered) == ()
    arrays, expected = arrays_of((0, 0, 35, 70), 70)
    assert error_of(simulate(program.ir, arrays, {"G": 3}).outputs["D"], expected) < 1e-3


def test_rows_of_run_time_in_two_versions():
    """If most warps are in bounds, statements have two versions, also in data-dependent iterations."""
    spec = grouped_ragged.spec(sym("M", multiple_of=8), 256, 256)
    program = grouped_ragged.strategy(spec).program("sm_80")
    loop = next(one for one in statements(branched(program.lowered).body) if isinstance(one, For) and one.var.name == "g")
    assert any(isinstance(one, Branch) for one in statements(loop.body)) and as_skipping_loop(loop) is not None


def test_iterations_of_other_rows_are_skipped(program):
    """A tile iterates over the groups that contain its rows: with 3 row tiles and 5 groups 5 MMAs instead of 15."""
    kernel = program.ir
    assert safety(program.lowered) == ()
    seen = next(one for one in statements(kernel.body) if isinstance(one, Let) and one.var.name == "seen")
    always = rewritten(kernel.body, lambda one: (attrs.evolve(one, value=TRUE),) if one == seen else (one,))
    arrays, _ = arrays_of(OFFSETS["some empty"], 140)
    few, all_of_them = (simulate(attrs.evolve(kernel, body=body), arrays) for body in (kernel.body, always))
    np.testing.assert_array_equal(few.outputs["D"], all_of_them.outputs["D"])
    overlapping = [(begin < 64 * tile + 64) and (end > 64 * tile) for tile in range(3) for begin, end in ((0, 37), (37, 101), (101, 140))]
    assert sum(overlapping) == 5 and "g_mask |= static_cast<unsigned>(seen) << g;" in program.cuda
    assert "for (; g_mask != 0; g_mask &= g_mask - 1) {" in program.cuda
    assert "const int begin_here = min(max(begin[g], 0), 140);" in program.cuda


@pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_no_spills(target):
    program = grouped_ragged.strategy(grouped_ragged.spec(*grouped_ragged.SIZES)).program(target)
    report = compile_cuda(program.cuda, target).resources[program.name]
    assert report.spill_stores == report.stack_frame == 0


def test_texts(program):
    assert parse_kernel(graphene_text(program)).cuda == program.cuda
    assert Strategy.from_json(grouped_ragged.strategy.to_json()) == grouped_ragged.strategy
    value = lookup("begin", Var("g", 0, 4), 140)
    assert eval(repr(value)) == value and str(value) == "begin[g]" and isinstance(value, Lookup)


def test_drawn_offsets():
    """Groups partition the rows in order, some empty; indices bounded on one side only are still in bounds."""
    for seed in range(5):
        arrays = random_inputs(grouped_ragged.spec(100, 8, 8, groups=4), {}, np.random.default_rng(seed))
        begin, end = arrays["begin"], arrays["end"]
        assert begin[0] == 0 and end[-1] == 100 and (begin[1:] == end[:-1]).all() and (begin <= end).all() and (begin == end).any()
    rows = random_inputs(grouped.spec(100, 8, 8, groups=50), {}, np.random.default_rng(0))["rows"]
    assert rows.min() >= 0 and 50 < rows.max() <= 100


# ---------------------------------------------------------------------------------------------- data-dependent trip counts


def attending(mask, ends, in_parts=False):
    """Attention of each batch's queries to a part of the packed keys: definition and strategy."""
    definition = Fused(
        name="packed_keys", dims="m n d b", loop="n", batch="b",
        operands={"Q": "b m d", "K": "n d", "V": "n d", **dict.fromkeys(ends, "b"), "O": "b m d"},
        init={"mx": "mx[m] = -1e30", "l": "l[m] = 0", "acc": "acc[m,d] = 0"},
        body={
            "s": "s[m,n] = sum(d, Q[b,m,d] * K[n,d])",
            "mask": f"s[m,n] = where({mask}, s[m,n], -inf)",
            "top": "top[m] = max(n, s[m,n])",
            "new": "new[m] = max(mx[m], top[m])",
            "alpha": "alpha[m] = exp(mx[m] - new[m])",
            "keep": "mx[m] = new[m]",
            "rescale": "acc[m,d] = acc[m,d] * alpha[m]",
            "exp": "s[m,n] = exp(s[m,n] - mx[m])",
            "sums": "sums[m] = sum(n, s[m,n])",
            "update": "l[m] = l[m] * alpha[m] + sums[m]",
            "p": "p[m,n] = s[m,n]",
            "pv": "acc[m,d] += sum(n, p[m,n] * V[n,d])",
        },
        final={"inverse": "inverse[m] = where(l[m] > 0, 1 / l[m], 0)", "store": "O[b,m,d] = acc[m,d] * inverse[m]"},
    )  # fmt: skip
    copy, fragments = Move.coalesced_copy(8).done(), Move.done()
    tiles = MatMul.tile(16, 16).unroll().mma_tile().done()
    chain = (definition.rfactor("sums", 4) if in_parts else definition).tile(m=32, b=1).to(Block).load("Q", SH, copy).swizzle_storage()
    chain = (
        chain.split(n=32)
        .pipeline(2)
        .skip_masked_tiles()
        .load("K", SH, copy)
        .swizzle_storage()
        .load("V", SH, copy)
        .swizzle_storage()
        .tile(m=16)
        .to(Warp)
    )
    scores = MatMul.split(16).unroll().load(A, RF, fragments).load(B, RF, fragments).then(tiles)
    return definition, chain.step("s", scores).step("pv", MatMul.split(16).unroll().load(B, RF, fragments).then(tiles)).done()


@pytest.mark.parametrize(("mask", "ends"), [("begin[b] <= n and n < end[b]", ("begin", "end")), ("n < end[b]", ("end",))])
def test_packed_keys(mask, ends):
    """Blocks of keys of other batches are neither loaded nor multiplied; the result of a batch without keys is 0."""
    offsets = np.array((0, 0, 40, 41, 90), np.int32)
    definition, strategy = attending(mask, ends, in_parts=len(ends) == 2)
    program = strategy(definition(m=24, n=90, d=32, b=4, types=dict.fromkeys(ends, int32))).program("sm_80")
    assert safety(program.lowered) == ()
    assert len(ends) == 1 or "const int n_hidden = min(max(begin[" in program.cuda
    generator = np.random.default_rng(2)
    q, k, v = (generator.standard_normal(shape).astype(np.float16) for shape in ((4, 24, 32), (90, 32), (90, 32)))
    expected = np.zeros(q.shape)
    for batch, (begin, end) in enumerate(zip(offsets if len(ends) == 2 else [0] * 4, offsets[1:])):
        scores = np.exp(q[batch].astype(float) @ k[begin:end].astype(float).T)
        expected[batch] = scores / np.maximum(scores.sum(-1, keepdims=True), 1e-30) @ v[begin:end].astype(float)
    given = {"Q": q, "K": k, "V": v} | {name: {"begin": offsets[:-1], "end": offsets[1:]}[name] for name in ends}
    assert error_of(simulate(program.ir, given, order=random.Random(1)).outputs["O"], expected) < 2e-3


# ---------------------------------------------------------------------------------------------- injected faults


def test_missing_synchronization_is_found(program):
    planted = list(faults(program.ir))
    assert len(planted) > 8
    for fault, faulty in planted:
        assert safety(faulty) or fault.startswith(("raised", "dropped: Commit")), fault


def test_an_iteration_skipped_too_early_is_detected(program):
    """An iteration that ends where it begins."""
    here = next(one for one in statements(program.ir.body) if isinstance(one, Let) and one.var.name == "end_here")
    wrong = attrs.evolve(here, value=lookup("begin", here.value.index, 140))
    body = rewritten(program.ir.body, lambda one: (wrong,) if one == here else (one,))
    arrays, expected = arrays_of(OFFSETS["some empty"], 140)
    assert error_of(simulate(attrs.evolve(program.ir, body=body), arrays).outputs["D"], expected) > 0.1


def test_skipped_iterations_are_uniform(program):
    """If stages alternate between iterations, it matters which iterations execute; the check does not decide this."""
    assert with_counted_iterations(program.ir) != program.ir
    (g,) = {var for one in statements(program.ir.body) if isinstance(one, Let) for var in one.value.variables() if var.name == "g"}

    def alternating(stmt):
        if not hasattr(stmt, "accesses"):
            return (stmt,)
        moved = tuple(
            attrs.evolve(access, base=(access.base[0] + g % 2, *access.base[1:])) if access.buffer == "product_a_sh" else access
            for access in stmt.accesses
        )
        return (attrs.evolve(stmt, accesses=moved),)

    faulty = attrs.evolve(program.ir, body=rewritten(program.ir.body, alternating))
    assert with_counted_iterations(faulty) == faulty
    assert any("depends on another loop" in one.message for one in safety(faulty))


def test_writes_of_iterations_to_global_memory_are_not_uniform(program):
    """With the same stages in global memory, other threads read them two iterations later, and no barrier of a skipped iteration orders
    this.
    """
    buffers = tuple(
        attrs.evolve(buffer, tensor=attrs.evolve(buffer.tensor, memory=GL)) if buffer.name == "product_a_sh" else buffer
        for buffer in program.ir.buffers
    )
    assert with_counted_iterations(program.ir) != program.ir
    elsewhere = attrs.evolve(program.ir, buffers=buffers)
    assert with_counted_iterations(elsewhere) == elsewhere


def test_iterations_without_data_dependence_are_not_uniform(program):
    """Only the first iteration executes: without the barrier after it, no later iteration overwrites what it reads."""
    seen = next(one for one in statements(program.ir.body) if isinstance(one, Let) and one.var.name == "seen")
    (g,) = {var for one in statements(program.ir.body) if isinstance(one, Let) for var in one.value.variables() if var.name == "g"}
    second_barrier = [one for one in statements(program.ir.body) if isinstance(one, Barrier)][1]

    def findings(value):
        changed = {seen: (attrs.evolve(seen, value=value),), second_barrier: ()}
        body = rewritten(program.ir.body, lambda one: next((new for old, new in changed.items() if one is old), (one,)))
        return {one.buffer for one in safety(attrs.evolve(program.ir, body=body))}

    assert "product_a_sh" in findings(seen.value) and "product_a_sh" not in findings(less(g, 1))


def test_elements_out_of_bounds_are_refused(program):
    here = next(one for one in statements(program.ir.body) if isinstance(one, Let) and one.var.name == "end_here")
    arrays, _ = arrays_of(OFFSETS["some empty"], 140)
    for value, error, message in (
        (lookup("end", here.value.index + 1, 140), SimulationError, "end: element 5 is read, but the array has 5 elements"),
        (lookup("D", here.value.index, 140), VerificationError, "is not bound"),
    ):
        body = rewritten(program.ir.body, lambda one, value=value: (attrs.evolve(one, value=value),) if one == here else (one,))
        with pytest.raises(error, match=message.replace("[", r"\[")):
            simulate(verify(attrs.evolve(program.ir, body=body)), arrays)


# ---------------------------------------------------------------------------------------------- refusals

KEEP = "acc[m,n] = where(begin[g] <= m and m < end[g], p[m,n], acc[m,n])"


def kernel(keep=KEEP, split=lambda chain: chain.split(g=1).skip_masked_tiles(), types=None, **more):
    """A kernel whose definition ends its iteration with another step."""
    first = {"zero": "acc[m,n] = 0", **more.pop("init", {})}
    each = {"product": "p[m,n] = sum(k, A[m,k] * B[g,k,n])", "keep": keep, **more.pop("body", {})}
    operands = {"A": "m k", "B": "g k n", "begin": "g", "end": "g", "D": "m n"}
    last = {"store": "D[m,n] = acc[m,n]", **more.pop("final", {})}
    definition = Fused(name="x", dims="m n k g", scan="g", operands=operands, init=first, body=each, final=last)
    types = {"begin": int32, "end": int32} if types is None else types
    return (
        split(definition.tile(m=64, n=64).to(Block))
        .step("product", MatMul.split(16).done())
        .done()(definition(m=64, n=64, k=32, g=3, types=types))
    )


REFUSED = {
    "no mask": (kernel("acc[m,n] = where(m < size(m), p[m,n], acc[m,n]) + 0 * begin[g] + 0 * end[g]"), "changes acc in every iteration"),
    "adding up": (kernel("acc[m,n] = acc[m,n] + where(begin[g] <= m and m < end[g], p[m,n], 0)"), "changes acc in every iteration"),
    "another result": (kernel("acc[m,n] = where(begin[g] <= m and m < end[g], p[m,n], 0)"), "step keep"),
    "a mask that adds": (
        kernel("s[m,n] = where(begin[g] <= m and m < end[g], p[m,n], 1)", body={"add": "acc[m,n] = acc[m,n] + s[m,n]"}),
        "changes acc",
    ),
    "no integer": (kernel("acc[m,n] = where(n <= m and begin[g] < end[g], p[m,n], acc[m,n])"), "compares no coordinate with an integer"),
    "floats": (kernel(types={"begin": float32, "end": float32}), "compares no coordinate with an integer"),
    "two conditions": (
        kernel(
            init={"none": "t[m,n] = 0"},
            body={"more": "t[m,n] = where(m < end[g], p[m,n], t[m,n])"},
            final={"store": "D[m,n] = acc[m,n] + t[m,n]"},
        ),
        "under different conditions",
    ),
    "below a block": (kernel(split=lambda chain: chain.tile(m=32, n=32).to(Warp).split(g=1).skip_masked_tiles()), "units of a block"),
    "loads ahead": (kernel(split=lambda chain: chain.split(g=1).pipeline(2).skip_masked_tiles()), "loads run ahead"),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    strategy, message = REFUSED[name]
    with pytest.raises(DecompositionError, match=message):
        strategy.cuda("sm_80")
