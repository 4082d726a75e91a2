"""`skip_steps(steps, where=condition)`: a warp omits steps without effect. Also the statement `IfAnyLane`."""

import random
import re

import attrs
import making
import numpy as np
import printed_text
import pytest
from ringed import errors
from test_fused_attention import SMALL, inputs, require_right
from test_graphene_text import read_back

from fireiron import *
from fireiron.cost.work import Work
from fireiron.decomp.skip_steps import SkipSteps
from fireiron.errors import ArgumentError, DecompositionError, FireironError, VerificationError
from fireiron.gpu.disassembly import disassemblers, sass
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.inspect.show import show
from fireiron.ir import BLOCK_SCOPE, Exec, execs, rewritten, statements, verify
from fireiron.ir import IfAnyLane as Region
from fireiron.measure.data import references_of
from fireiron.measure.rounding import differing
from fireiron.sim import simulate
from fireiron.sim.block_batch import BlockBatch
from fireiron.strategies import attention

LAZY = attention.definition(rescale_threshold=8)
SPEC = attention.spec(64, 96, 64, fused=LAZY)


def lazy(definition=LAZY, spec=SPEC, **values):
    """A kernel with lazy rescaling."""
    return attention.by_rows(definition).with_(**{**SMALL, **values})(spec).program("sm_80")


def regions(program):
    return [one for one in statements(program.ir.body) if isinstance(one, Region)]


def some_warps(spec=SPEC, warps=(1, 2)):
    """Scores whose maximum increases in the second block of keys for rows of some warps; the scores of other rows decrease."""
    arrays = inputs(spec)
    arrays["Q"] = np.abs(arrays["Q"]) + np.float16(0.5)
    sign = np.where(np.isin(np.arange(arrays["Q"].shape[1]) // 16, warps), 1, -1)
    arrays["Q"] = (arrays["Q"] * sign[None, :, None, None, None]).astype(np.float16)
    keys = np.linspace(0.2, 3, arrays["K"].shape[1])
    arrays["K"] = (np.abs(arrays["K"]) * keys[None, :, None, None]).astype(np.float16)
    return arrays


def definition(more):
    """Rows with a factor `f`, and further steps."""
    each = {"x": "x[m,n] = X[m,n]", "f": "f[m] = max(n, x[m,n])", **more}
    definition = Fused(name="rows", dims="m n", operands={"X": "m n", "Y": "m n"}, body={**each, "Y": more.get("Y", "Y[m,n] = x[m,n]")})
    return definition.tile(m=8).to(Block).tile(m=1).to(Warp).load("X", RF, Move.tile(1, 1).to(Lane).done())


def nested_sums(where):
    """A step of a loop in a loop, skipped under a condition on tensors of the outer loop."""
    start = Fused(
        name="online", dims="m n d", loop="n d", operands={"Q": "m d", "K": "n d", "y": "m"}, init={"mx": "mx[m] = -inf", "l": "l[m] = 0"},
        body={
            "zero": "s[m,n] = 0", "d": {"s": "s[m,n] += sum(d, Q[m,d] * K[n,d])"}, "top": "top[m] = max(n, s[m,n])", "new": "new[m] = max(mx[m], top[m])",
            "length": "l[m] = l[m] * exp(mx[m] - new[m])", "keep": "mx[m] = new[m]",
        }, final={"y": "y[m] = l[m]"},
    )  # fmt: skip
    chain = (
        start.tile(m=32).to(Block).skip_steps("zero", where=where).split(n=32).split(d=32).load("Q", SH).load("K", SH).tile(m=16).to(Warp)
    )
    product = MatMul.split(16).unroll().load(A, RF, Move.done()).load(B, RF, Move.done()).tile(16, 16).unroll().mma_tile().done()
    return chain.step("s", product).done()(start(m=32, n=32, d=32)).cuda("sm_80")


def rows_of(strategy):
    program = strategy.done()(strategy.start(m=8, n=32, dtype=float32)).program("sm_80")
    assert program.ir
    return program


def factors():
    """Rows scaled by their maximum, which is 1 in every other row: there a warp skips the multiplication."""
    program = rows_of(definition({"scale": "x[m,n] = x[m,n] * f[m]"}).skip_steps("scale", where="1 == f[m]"))
    x = np.minimum(np.random.default_rng(0).standard_normal((8, 32)).astype(np.float32), 1)
    x[::2, 3], x[1::2, 3] = 1, 2
    return program, x


# ---------------------------------------------------------------------------------------------- what they compute


@pytest.mark.parametrize("masks", ({}, {"causal": True}), ids=str)
def test_lazy_rescaling_equals_softmax(masks):
    definition = attention.definition(rescale_threshold=8, **masks)
    require_right(definition, attention.spec(100, 77, 64, fused=definition), ramp=not masks, **masks)


def test_lazy_rescaling_of_fully_masked_rows():
    """All scores of a row are -inf: its maximum keeps its initial value, and no rescaling is needed."""
    definition = attention.definition(window=20, lse=True, rescale_threshold=8)
    program = require_right(definition, attention.spec(100, 40, 64, fused=definition), window=20)
    assert not simulate(program.ir, inputs(program.spec)).outputs["O"][:, 60:].any()


def test_skipped_steps_change_no_bits():
    """Results equal those without skipping bit by bit, with warps in order and in random order."""
    always = attention.by_rows(LAZY, branch=False).with_(**SMALL)(SPEC).program("sm_80")
    program, arrays = lazy(), some_warps()
    expected = simulate(always.ir, arrays).outputs["O"]
    assert np.isfinite(expected.astype(np.float32)).all()
    for order in (None, random.Random(1)):
        assert np.array_equal(simulate(program.ir, arrays, order=order).outputs["O"], expected)


def without(program, number):
    """The kernel in which no warp executes a region."""
    region = regions(program)[number]
    return attrs.evolve(program.ir, body=rewritten(program.ir.body, lambda other: () if other == region else (other,)))


def test_skipping_required_steps_is_wrong():
    """The control of the test above: without a region, rows of the warps that need it are wrong, and the others are right."""
    program, arrays = lazy(), some_warps()
    right = simulate(program.ir, arrays).outputs["O"].astype(np.float32)
    for number in range(2):
        wrong = simulate(without(program, number), arrays).outputs["O"].astype(np.float32)
        differs = ~np.isclose(wrong, right, atol=1e-2, equal_nan=False).all(axis=(0, 2, 3, 4))
        assert differs[16:32].any() and differs[32:48].any()
        assert not (number and (differs[:16].any() or differs[48:].any()))


def negated(program):
    """The kernel whose warps execute unneeded regions and skip needed ones."""

    def edit(stmt):
        if isinstance(stmt, Exec) and stmt.spec.title.endswith("_needed"):
            kind = attrs.evolve(stmt.spec.kind, text=stmt.spec.kind.text.replace(", 0, 1)", ", 1, 0)"))
            return (attrs.evolve(stmt, spec=attrs.evolve(stmt.spec, kind=kind)),)
        return (stmt,)

    return attrs.evolve(program.ir, body=rewritten(program.ir.body, edit))


def test_negated_condition_is_found():
    program, arrays = lazy(), some_warps()
    right, wrong = (simulate(one, arrays).outputs["O"].astype(np.float32) for one in (program.ir, negated(program)))
    assert not np.allclose(wrong, right, atol=1e-2)


def test_printed_text_on_a_cpu(tmp_path):
    """On a CPU, with warps that need the steps. Faults: a negated condition, a vote of some lanes, lanes that branch separately."""
    if printed_text.COMPILER is None:
        pytest.skip("no C++ compiler")
    rows, x = factors()
    small = printed_text.Printed.of(rows)
    negated = small.changed(r"\? 0 : 1", "? 1 : 0")
    by_lane = small.changed(r"if \(__any_sync", "if (threadIdx.x % 32 < 16 && __any_sync")
    alone = small.changed(r"__any_sync\(0xffffffff, (.*)\)\) \{", r"\1 != 0 && threadIdx.x % 32 != 5) {")
    program = built(chain().skip_steps("alpha", "shrink", "keep", where="new == mx").skip_steps("rescale", where="alpha == 1"))
    arrays = some_warps(program.spec, warps=(1,))
    host = printed_text.HostProgram([small, negated, by_lane, printed_text.Printed.of(program), alone], tmp_path)
    expected = simulate(rows.ir, {"X": x}).outputs["Y"]
    assert np.array_equal(host.run(0, {"X": x}, seed=3)["Y"], expected)
    assert not np.array_equal(host.run(1, {"X": x})["Y"], expected)
    for number in (2, 4):
        with pytest.raises(printed_text.Refused):
            host.run(number, {"X": x})
    assert not differing(program.spec, {}, host.run(3, arrays, seed=3), arrays, references_of(program.spec, *arrays.values()))


def test_partial_sums_are_rescaled():
    program = attention.by_rows(LAZY, partial_sums=True).with_(**SMALL)(SPEC).program("sm_80")
    always = attention.by_rows(LAZY, partial_sums=True, branch=False).with_(**SMALL)(SPEC).program("sm_80")
    assert not errors(program.ir)
    assert np.array_equal(*(simulate(one.ir, some_warps()).outputs["O"] for one in (program, always)))


# ---------------------------------------------------------------------------------------------- what is printed


def test_two_regions():
    text = lazy().cuda
    assert text.count("__any_sync") == 2
    inside = re.search(
        r"\n    alpha\[0\] = 1\.0f;.*?\n    if \(__any_sync\(0xffffffff, alpha_needed\[0\] \| alpha_needed\[1\]\)\) \{(.*?)\n    \}",
        text,
        re.S,
    )
    steps = re.findall(r"// (\w+):", inside[1])
    assert steps == ["alpha", "shrink", "keep"] and "exp2" in inside[1]
    assert text.index("// p: ") < text.index("if (__any_sync(0xffffffff, rescale_needed[0]") < text.index("// pv: ")


def chain(definition=LAZY):
    """Rows of warps, up to the skipped steps."""
    copy, fragments = attention.copy, attention.fragments
    rows = definition.tile(m=32, r=1, g=1, b=1).to(Block).load("Q", SH, copy).swizzle_storage().split(n=32).pipeline(2)
    rows = rows.load("K", SH, copy).swizzle_storage().load("V", SH, copy).swizzle_storage().tile(m=16).to(Warp)
    product = MatMul.split(16).unroll().load(A, RF, fragments).load(B, RF, fragments).then(attention.tiles)
    second = MatMul.split(16).unroll().load(B, RF, fragments).then(attention.tiles)
    return rows.step("s", product).step("pv", second)


def built(strategy, definition=LAZY):
    spec = attention.spec(32, 64, 64, fused=definition)
    program = strategy.done()(spec).program("sm_80")
    assert program.ir
    return program


def test_one_condition_for_separate_steps():
    """One vote serves both regions, as `rescale` follows the exponentials."""
    program = built(chain().skip_steps("alpha", "shrink", "keep", "rescale", where="new == mx"))
    assert len(regions(program)) == 2 and {one.needed for one in regions(program)} == {"alpha_needed"}
    assert not errors(program.ir)
    spec = program.spec
    arrays = some_warps(spec, warps=(1,))
    always = built(chain())
    assert np.array_equal(*(simulate(one.ir, arrays).outputs["O"] for one in (program, always)))


def test_adjacent_regions_are_merged():
    """If no maximum changed, all factors are 1, so one condition implies the other."""
    program = built(
        chain().skip_steps("alpha", where="new == mx").skip_steps("shrink", where="alpha == 1").skip_steps("keep", where="mx == new")
    )
    assert len(regions(program)) == 1 and not errors(program.ir)
    more = {"one": "x[m,n] = x[m,n] * f[m]", "two": "x[m,n] = x[m,n] * x[m,n]"}
    apart = rows_of(definition(more).skip_steps("one", where="f == 1").skip_steps("two", where="x == 1"))
    assert len(regions(apart)) == 2 and len({one.needed for one in regions(apart)}) == 2


def test_owner_of_the_condition_may_vote():
    """Where `l` is 0 its product is 0, so the owners of `l` may vote."""
    program = built(chain().skip_steps("shrink", where="l == 0"))
    assert len(regions(program)) == 1 and not errors(program.ir)


def test_readers_of_old_values_precede_the_write():
    """`double` reads the previous `z`: it is a separate region before the write of `z`."""
    more = {
        "z": "z[m] = f[m] * 2",
        "double": "x[m,n] = x[m,n] + z[m] * (f[m] - 1)",
        "one": "z[m] = exp2(f[m] - 1)",
        "Y": "Y[m,n] = x[m,n] + z[m]",
    }
    program = rows_of(definition(more).skip_steps("double", "one", where="f == 1"))
    assert len(regions(program)) == 2 and len({one.needed for one in regions(program)}) == 1
    x = np.minimum(np.random.default_rng(0).standard_normal((8, 32)).astype(np.float32), 1)
    x[::2, 3], x[1::2, 3] = 1, 2
    expected = np.where(x.max(1, keepdims=True) == 1, x + 1, x + 4 + 2)
    assert np.allclose(simulate(program.ir, {"X": x}).outputs["Y"], expected)


@pytest.mark.parametrize("d", (64, 128))
def test_skip_steps_compiles_without_spills(d):
    """Also as branches: for two rows per thread the compiler would use predicates, and execute the factors in each iteration."""
    if not toolchains():
        pytest.skip("no compiler")
    spec = attention.spec(128, 128, d, fused=LAZY)
    text = attention.by_rows(LAZY).with_(bm=128, bn=64, wm=32 if d == 128 else 16, stages=2, bd=64)(spec).cuda("sm_80")
    compiled = compile_cuda(text, "sm_80")
    resources = compiled.resources["attention"]
    assert not resources.spill_stores and not resources.spill_loads
    if disassemblers():
        matches = re.findall(r"VOTE\.ANY.*?(BRA|MUFU|HMMA)", sass(compiled.cubin), re.DOTALL)
        assert matches[0] == "BRA"


@pytest.mark.nightly
def test_other_readers():
    program = built(chain().skip_steps("alpha", "shrink", "keep", where="new == mx").skip_steps("rescale", where="alpha == 1"))
    assert "alpha_needed" in "\n".join(show(program)) and "skip_steps('rescale', where='alpha == 1')" in "\n".join(show(program))
    read_back(program)
    strategy = attention.by_rows(LAZY)
    assert Strategy.from_json(strategy.to_json()) == strategy and eval(repr(strategy)) == strategy
    assert strategy != attention.by_rows(LAZY, branch=False)
    times = [Work(one).amounts.instructions for one in (program.ir, without(program, 1))]
    assert times[0] > times[1]
    assert SkipSteps(("scale",), "alpha == 1").label() == "skip_steps('scale', where='alpha == 1')"


# ---------------------------------------------------------------------------------------------- what is refused


def test_row_factor_replicated_over_lanes():
    """All lanes have the factor of the row, and one element each."""
    program, x = factors()
    assert len(regions(program)) == 1 and not errors(program.ir)
    assert np.array_equal(simulate(program.ir, {"X": x}).outputs["Y"], x * x.max(1, keepdims=True))


REFUSED = {
    "what is not neutral": (lambda: built(chain().skip_steps("alpha", "update", where="new == mx")), "step update cannot be skipped if.*then l\\[m\\] = l\\[m\\] \\+ sum.*legal   l\\[m\\] = l\\[m\\], unchanged"),
    "a factor that may be any": (lambda: built(chain().skip_steps("rescale", where="new == mx")), "step rescale cannot be skipped"),
    "what changed since": (lambda: built(chain().skip_steps("top", "keep", where="new == mx")), "step top"),
    "a product": (lambda: built(chain().skip_steps("pv", where="alpha == 1")), "step pv"),
    "no such step": (lambda: built(chain().skip_steps("scale", where="alpha == 1")), "no step scale"),
    "no such tensor": (lambda: built(chain().skip_steps("rescale", where="beta == 1")), "the condition reads beta"),
    "two conditions": (
        lambda: built(chain().skip_steps("rescale", where="alpha == 1").skip_steps("rescale", where="alpha == 1")),
        "skipped under another condition",
    ),
    "a strategy of its own": (
        lambda: built(chain().step("rescale", Pointwise.done(SKIP_IF_IDENTITY)).skip_steps("rescale", where="alpha == 1")),
        "rescale has a separate strategy",
    ),
    "what others see": (
        lambda: rows_of(definition({"scale": "x[m,n] = x[m,n] * f[m]"}).set_memory("x", SH).skip_steps("scale", where="f == 1")),
        "accesses x, which threads share",
    ),
    "a tensor of the outer loop": (lambda: nested_sums("mx == l"), "the condition reads mx.*has no value here before step zero"),
    "an operand": (lambda: rows_of(definition({}).skip_steps("Y", where="f == 1")), "step Y cannot be skipped"),
    "a product of matrices": (lambda: MatMul.tile(16, 16).to(Block).skip_steps("mm", where="a == 1").done()(MatMul(32, 32, 32)(GL, GL, GL)(Kernel)).cuda("sm_80"), "is one step"),
}  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", REFUSED)
def test_skip_steps_refusals(case):
    action, message = REFUSED[case]
    with pytest.raises(DecompositionError, match=re.compile(message, re.S)):
        action()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("where", ("alpha", "alpha > 1", "alpha == 1 or l == 0", "alpha * 2 == 2", "alpha ==", 3, ""))
def test_invalid_conditions(where):
    with pytest.raises(FireironError, match="skip_steps: ") as caught:
        chain().skip_steps("rescale", where=where)
    assert "needed[" not in str(caught.value), "of what a condition is made a part is nobody's business"


@pytest.mark.parametrize("steps", ((), ("rescale", "rescale"), (3,)))
def test_invalid_step_names(steps):
    with pytest.raises(ArgumentError, match="skip"):
        chain().skip_steps(*steps, where="alpha == 1")


def test_blocks_without_whole_warps():
    start = definition({"scale": "x[m,n] = x[m,n] * f[m]"}).start
    by_rows = start.tile(m=40).to(Block).tile(m=1).to(Thread).load("X", RF, Move.done()).skip_steps("scale", where="f == 1").done()
    with pytest.raises(DecompositionError, match="a block of 40 threads does not consist of complete warps"):
        _ = by_rows(start(m=40, n=4, dtype=float32)).cuda("sm_80")


def test_condition_rows_must_match_the_rows_of_the_steps():
    """A lane has one row of the factor and one element of each row: the warp that votes is not the one that scales."""
    definition = Fused(
        name="apart", dims="m n", operands={"F": "m", "X": "m n", "Y": "m n", "G": "m"},
        body={"f": "f[m] = F[m] * 2", "x": "x[m,n] = X[m,n]", "scale": "x[m,n] = x[m,n] * f[m]", "Y": "Y[m,n] = x[m,n]", "G": "G[m] = f[m]"},
    )  # fmt: skip
    by_columns = (
        definition.tile(m=64).to(Block).load("F", RF, Move.tile(1).to(Thread).done()).load("X", RF, Move.tile(64, 1).to(Thread).done())
    )
    spec = definition(m=64, n=64, dtype=float32)
    assert "scale_sh" in by_columns.done()(spec).cuda("sm_80")
    with pytest.raises(DecompositionError, match="do not own the elements of the condition"):
        _ = by_columns.skip_steps("scale", where="f == 1").done()(spec).cuda("sm_80")


# ---------------------------------------------------------------------------------------------- the statement


def edited(program, edit):
    """The kernel with another first region."""
    first = regions(program)[0]
    return attrs.evolve(program.ir, body=rewritten(program.ir.body, lambda one: (edit(one),) if one is first else (one,)))


def test_illegal_statements_in_a_region():
    program = lazy()
    shared = next(one for one, _ in execs(program.ir.body) if any(access.buffer == "q_sh" for access in one.accesses))
    others = next(one for one, _ in execs(program.ir.body) if one.spec.level.threads == 32)
    for inside, message in ((making.barrier(BLOCK_SCOPE), "a barrier"), (shared, "Q in GL"), (others, "several threads")):
        with pytest.raises(VerificationError, match=message):
            verify(edited(program, lambda one, inside=inside: one.rebuilt(((inside, *one.body),))))
    for needed in ("alpha", "q_sh", "nothing"):
        with pytest.raises(VerificationError, match="is not an int32 array in registers"):
            verify(edited(program, lambda one, needed=needed: attrs.evolve(one, needed=needed)))
    verify(program.ir)


def test_single_thread_cannot_vote():
    program = lazy()
    kernel = program.ir
    roles = (
        making.role("all", 0, kernel.threads, ()),
        making.role("one", kernel.threads, 32, (making.if_any_lane("alpha_needed", ()),), elected=True),
    )
    with pytest.raises(VerificationError, match="is one thread, so no warp can vote"):
        verify(attrs.evolve(kernel, threads=kernel.threads + 32, body=(making.roles(roles),)))


def test_skipped_regions_keep_registers(monkeypatch):
    """Warps that skip a region keep their registers, though the simulator executes it for all threads at once."""
    program, x = factors()

    def every_other(self, needed, group):
        return np.broadcast_to((group.threads // 32 % 2 == 0)[:, None], (group.threads.size, self.width))

    monkeypatch.setattr(BlockBatch, "all_lanes_zero", every_other)
    x = x * np.float32(3)
    expected = np.where(np.arange(8)[:, None] % 2, x * x.max(1, keepdims=True), x)
    assert np.array_equal(simulate(program.ir, {"X": x}).outputs["Y"], expected)
