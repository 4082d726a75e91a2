"""Several rings per loop; inferred wgmma groups, waits and releases; injected faults in kernels with two rings."""

import os
import random

import attrs
import making
import numpy as np
import pytest
from printed_text import COMPILER, HostProgram, Printed
from ringed import TARGET, dropped, errors, float16_gemm, is_load, of_kind, product, ring_faults, roles_of, with_changed
from test_rings import is_harmless
from touching import K, buffer, i, kernel, loop, mma, on_registers, reads

from fireiron import *
from fireiron import ir
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.inspect.synchronization import synchronization, text
from fireiron.ir.mechanisms.wgmma import WGMMA_GROUPS
from fireiron.lower.specialize import specialize
from fireiron.lower.wgmma_waits import wgmma_waits
from fireiron.sim import simulate
from fireiron.strategies import gated, gemm_row_sum
from fireiron.values.expr import as_expr, mod

SCALE = int(os.environ.get("FIREIRON_FUZZ", "1"))
SEED = 20261122

# ---------------------------------------------------------------------------------------------- programs

COPY, MMA = Move.done(), MatMul.split(16).unroll().done()
STORED = Move.tile(64, 64).unroll().load(SRC, SH, Move.done()).cast_on_copy().done()

STEPS = {
    "u": "u[m,n] += sum(k, A[m,k] * B[k,n])",
    "v": "v[m,n] += sum(k, C[m,k] * E[k,n])",
    "low": "u[m,n] = max(u[m,n], -9999)",
    "high": "v[m,n] = min(v[m,n], 9999)",
}


def pair(order, sizes=(128, 64, 320), *, stages=2, blocks=0, loads="ABCE", rows=64, shares=(), mma_in_flight=None):
    """Bind a definition with two MMAs per iteration and separate accumulators; `low` and `high` access these and change no value.

    `shares` maps a load to the load whose stages it shares.
    """
    definition = Fused(
        name="two_products",
        dims="m n k",
        loop="k",
        operands={"A": "m k", "B": "k n", "C": "m k", "E": "k n", "D": "m n"},
        init={"zu": "u[m,n] = 0", "zv": "v[m,n] = 0"},
        body={name: STEPS[name] for name in order.split()},
        final={"add": "u[m,n] = u[m,n] + v[m,n]", "store": "D[m,n] = u[m,n]"},
    )
    chain = definition.tile(m=rows, n=64).to(Block)
    chain = chain.persistent(blocks) if blocks else chain
    chain = chain.split(k=64).pipeline(stages).warp_specialize()
    chain = chain if mma_in_flight is None else chain.mma_in_flight(mma_in_flight)
    for name in loads:
        chain = chain.load(name, SH, COPY)
        chain = chain.share_stages(dict(shares)[name]) if name in dict(shares) else chain
    chain = chain.tile(m=64).to(Warpgroup).step("u", MMA).step("v", MMA).step("store", STORED).done()
    return chain(definition(**dict(zip("mnk", sizes, strict=True)), dtype=float16))


def of_library(module, steps, loads, sizes, *, rows=128, stages=2, mma_in_flight=None):
    """Bind a definition of the library with rings."""
    chain = module.definition.tile(m=rows, n=64).to(Block).split(k=64).pipeline(stages).warp_specialize(128)
    chain = chain if mma_in_flight is None else chain.mma_in_flight(mma_in_flight)
    for name in loads.split():
        chain = chain.load(name, SH, COPY)
    chain = chain.tile(m=64).to(Warpgroup)
    for step in steps.split():
        chain = chain.step(step, MMA)
    return chain.step("store", STORED).done()(module.spec(*sizes))


def given(spec):
    """Small integers for the inputs of a spec."""
    generator = np.random.default_rng(7)
    shapes = {name: [int(size.value) for size in spec.operands[name].shape] for name in spec.inputs}
    return {name: generator.integers(-2, 3, shape).astype(spec.operands[name].dtype.to_numpy()) for name, shape in shapes.items()}


def wanted(spec, arrays):
    """The expected results from NumPy, by output."""
    results = spec.reference(*arrays.values())
    return dict(zip(spec.outputs, results if isinstance(results, tuple) else (results,), strict=True))


def outcome(kernel, arrays, expected, order):
    """`right`, `wrong`, or the simulator's error."""
    try:
        got = simulate(kernel, arrays, order=None if order is None else random.Random(order)).outputs
    except FireironError as error:
        return str(error)
    return "right" if all(np.allclose(got[name], value, rtol=1e-2, atol=1e-2) for name, value in expected.items()) else "wrong"


def short(body):
    """Abbreviate a list: MMAs and ordinary statements by the registers that they write, fills by ring and number, loops as lists."""
    words = []
    for stmt in body:
        match stmt:
            case ir.For() if any(isinstance(part, (ir.Acquire, ir.Commit)) for part in ir.statements(stmt.body)):
                words.append(short(stmt.body))
            case ir.For() | ir.Exec():
                execs = [statement for statement, _ in ir.execs((stmt,))]
                names = dict.fromkeys(access.buffer for statement in execs for access in statement.accesses if access.write)
                words.append(f"{'product' if execs[0].mechanism is WGMMA_GROUPS else 'do'} {' '.join(names)}")
            case ir.Acquire():
                words.append(f"full {stmt.ring.removesuffix('_sh_ring')} {stmt.fill_index}")
            case ir.Release():
                later = " later" if "<" in str(stmt.active) else ""
                words.append(f"empty {stmt.ring.removesuffix('_sh_ring')} {stmt.fill_index}{later}")
            case ir.Wait() if stmt.mechanism is WGMMA_GROUPS:
                words.append(f"wait {stmt.groups}")
            case ir.Barrier():
                words.append(f"barrier {stmt.scope}")
            case ir.Commit() if stmt.mechanism is WGMMA_GROUPS:
                words.append("commit")
    return words


def loop_of_fills(program):
    """The main loop of the consumers, abbreviated, and what follows it up to the first ordinary statement."""
    words = short(roles_of(program.stages["wgmma_waits"])[0].body)
    place = next(number for number, one in enumerate(words) if isinstance(one, list))
    after = words[place + 1 :]
    return words[place], after[: next(number for number, one in enumerate(after) if one.startswith("do"))]


# ---------------------------------------------------------------------------------------------- rings


@pytest.mark.parametrize(
    ("bound", "rings"),
    [
        (pair("u v low"), {"a_sh_ring": ("a_sh", "b_sh"), "c_sh_ring": ("c_sh", "e_sh")}),
        (pair("v u low", loads="ABCE"), {"c_sh_ring": ("c_sh", "e_sh"), "a_sh_ring": ("a_sh", "b_sh")}),
        (
            of_library(gated, "gate up", "A B1 B2", (128, 64, 128)),
            {"a_sh_ring": ("a_sh",), "b1_sh_ring": ("b1_sh",), "b2_sh_ring": ("b2_sh",)},
        ),
        (of_library(gemm_row_sum, "product", "A B", (128, 64, 128)), {"k_ring": ("a_sh", "b_sh")}),
    ],
    ids=["pair", "the other first", "gated", "row sum"],
)
def test_buffers_with_the_same_users_share_a_ring(bound, rings):
    """Rings appear in the order of their first use, which is also the order in which the producer fills them."""
    kernel = bound.program(TARGET).ir
    assert {ring.name: ring.buffers for ring in kernel.rings} == rings
    assert [ring.name for ring in kernel.rings] == list(rings) and {ring.stages for ring in kernel.rings} == {2}
    (producer,) = [role for role in roles_of(kernel) if role.elected]
    filled = dict.fromkeys(one.ring for one in ir.statements(producer.body) if is_load(one))
    assert list(filled) == list(rings)


# ---------------------------------------------------------------------------------------------- waits and releases

U, V = ["full a k", "product u", "commit"], ["full c k", "product v", "commit"]

INFERRED = {
    # As in attention: both groups are in flight when the next iteration begins, and one wait completes both.
    "u low v": ([*U, "wait 0", "empty c k - 1 later", "empty a k", "do u", *V], ["wait 0", "empty c 4"]),
    # The second group stays in flight while the first one is awaited.
    "u v low": ([*U, *V, "wait 1", "empty c k - 1 later", "empty a k", "do u"], ["wait 0", "empty c 4"]),
    "u v low high": ([*U, *V, "wait 1", "empty a k", "do u", "wait 0", "empty c k", "do v"], []),
    "u v high low": ([*U, *V, "wait 0", "empty a k", "empty c k", "do v", "do u"], []),
    # Nothing waits for these groups: `mma_in_flight` of them stay in flight, one by default for a single warpgroup.
    "u v": ([*U, *V, "wait 1", "empty c k - 1 later", "empty a k"], ["wait 0", "empty c 4"]),
}


@pytest.mark.parametrize("order", INFERRED)
def test_waits_leave_independent_groups_in_flight(order):
    assert loop_of_fills(pair(order).program(TARGET)) == INFERRED[order]


UP_MMA = ["full b2 k", "product u", "commit"]


@pytest.mark.parametrize(
    ("stages", "mma_in_flight", "rows", "expected"),
    [
        (2, None, 128, ["wait 0", "empty a k", "empty b1 k", "empty b2 k"]),
        (2, 1, 64, ["wait 1", "empty a k - 1 later", "empty b2 k - 1 later", *UP_MMA, "wait 1", "empty b1 k"]),
        (3, 2, 64, ["wait 2", "empty b1 k - 1 later", *UP_MMA, "wait 2", "empty a k - 1 later", "empty b2 k - 1 later"]),
        (1, None, 64, ["wait 0", "empty a k", "empty b1 k", "empty b2 k"]),
    ],
)
def test_releases_follow_the_groups_in_flight(stages, mma_in_flight, rows, expected):
    """A stage is released as soon as the groups that read it are complete.

    With `mma_in_flight` a wait follows each group; otherwise it follows the last one of the iteration.
    """
    bound = of_library(gated, "gate up", "A B1 B2", (128, 64, 320), rows=rows, stages=stages, mma_in_flight=mma_in_flight)
    body, _ = loop_of_fills(bound.program(TARGET))
    place = next(number for number, one in enumerate(body) if one.startswith("wait"))
    end = expected.index("commit") if "commit" in expected else len(expected)
    assert sorted(body[place:][:end]) == sorted(expected[:end]) and sorted(body[place:][end:]) == sorted(expected[end:])


def test_ordinary_readers_synchronize_the_warp_before_a_release():
    """One warp barrier precedes the release of a stage that lanes and an MMA both read. Lanes and MMA share one ring."""
    body, _ = loop_of_fills(of_library(gemm_row_sum, "product", "A B", (128, 64, 320)).program(TARGET))
    assert body[-4:] == ["do s", "wait 0", "barrier warp", "empty k_ring k"]
    body, after = loop_of_fills(of_library(gemm_row_sum, "product", "A B", (128, 64, 320), mma_in_flight=1).program(TARGET))
    assert body[-4:] == ["wait 1", "barrier warp", "empty k_ring k - 1 later", "do s"]
    assert after == ["wait 0", "barrier warp", "empty k_ring 4"]


# ---------------------------------------------------------------------------------------------- hand-made programs


BUFFERS = (buffer("a", 4096), buffer("c", 4096, offset=16384), *(buffer(name, 4, memory=RF) for name in "urpq"))
RINGS = (making.ring("a_sh_ring", 2, ("a",)), making.ring("c_sh_ring", 2, ("c",)))


def full(ring, number=i):
    return making.acquire(f"{ring}_sh_ring", ir.StageState.FULL, as_expr(number))


def empty(ring, number=i):
    return making.release(f"{ring}_sh_ring", ir.StageState.EMPTY, as_expr(number))


def fill_and_mma(ring, registers, number=i):
    """A fill of a ring that an MMA into the given registers reads."""
    stage = mod(as_expr(number), as_expr(2))
    return (full(ring, number), mma(0, name=ring, registers=registers, copy=stage), empty(ring, number))


def fill_loop(*body, extent=6, **options):
    return loop(extent, *body, period=2, **options)


def by_hand(*body):
    load = attrs.evolve(reads(0, name="a"), ring="a_sh_ring")
    loads = {
        name: attrs.evolve(load, accesses=(load.accesses[0], attrs.evolve(reads(0, name=name).accesses[0], write=True))) for name in "ac"
    }
    roles = making.roles((making.role("consumers", 0, 128, body), making.role("producer", 128, 32, tuple(loads.values()))))
    return short(wgmma_waits(kernel(roles, buffers=BUFFERS, rings=RINGS)).body[0].roles[0].body)


def test_register_operand_of_a_pending_mma_is_not_overwritten():
    """Operands of a pending MMA may be read. A write of an operand waits for the MMA."""
    group = attrs.evolve(mma(0, name="a", registers="r"), mechanism=WGMMA_GROUPS)
    from_registers = attrs.evolve(group, accesses=(*group.accesses[:1], on_registers("p", write=False).accesses[0], group.accesses[-1]))
    from_registers = attrs.evolve(from_registers, lane_maps=(None,) * 3)
    assert by_hand(from_registers, on_registers("p", write=False), on_registers("p")) == ["product r", "commit", "do ", "wait 0", "do p"]
    # An A operand in registers that another MMA writes is awaited. The accumulator of the next group is not.
    other = mma(0, name="a", registers="p")
    assert by_hand(other, making.comment(""), from_registers) == ["product p", "commit", "wait 0", "product r", "commit"]
    assert by_hand(group, making.comment(""), group) == ["product r", "commit", "product r", "commit"]


def test_wait_counts_the_groups_after_the_youngest_conflict():
    three = [one for name in "urq" for one in (mma(0, name="a", registers=name), making.comment(""))]
    groups = [word for name in "urq" for word in (f"product {name}", "commit")]
    for name, left in zip("urq", (2, 1, 0), strict=True):
        assert by_hand(*three, on_registers(name)) == [*groups, f"wait {left}", f"do {name}"]


def test_wait_after_a_loop_assumes_the_fewest_groups():
    """The wait after a loop assumes the path with fewer committed groups. A loop of three iterations committed three."""
    first, inside = mma(0, name="a", registers="u"), (mma(0, name="a", registers="r"), on_registers("q"))
    assert by_hand(first, loop(K, *inside), on_registers("u"))[-2:] == ["wait 0", "do u"]
    assert by_hand(first, loop(1, *inside), on_registers("u"))[-2:] == ["wait 1", "do u"]


def test_fill_before_the_loop_is_released_before_the_loop():
    """The stage of an access identifies its fill: the loop after it uses other fills."""
    before = pair("u low v").program(TARGET).stages["prune"]
    (main_loop,) = [one for one in before.body if isinstance(one, ir.For) and making.ask_of(one, "producer_threads")]
    first = ir.substituted(main_loop.body, {main_loop.var: as_expr(0)})
    rest = attrs.evolve(main_loop, extent=main_loop.extent - 1, body=ir.substituted(main_loop.body, {main_loop.var: main_loop.var + 1}))
    body = [part for one in before.body for part in ((*first, rest) if one is main_loop else (one,))]
    kernel = wgmma_waits(specialize(attrs.evolve(before, body=tuple(body))))
    assert {ring.bytes for ring in kernel.rings} == {2 * 64 * 64 * 2}
    words = short(roles_of(kernel)[0].body)
    place = next(number for number, one in enumerate(words) if isinstance(one, list))
    events = [one for one in words[:place] if one.split()[0] in ("full", "empty", "wait")]
    assert events == ["full a 0", "wait 0", "empty a 0", "full c 0", "wait 0", "empty c 0"]
    assert "empty a k + 1" in words[place] and "empty c k later" in words[place]


def test_fills_of_one_ring_before_in_and_after_a_loop():
    """As with `defer`: the first fill precedes the loop, the next ones are in it, and the last use follows it."""
    body = (
        *fill_and_mma("a", "u", 0),
        on_registers("u"),
        fill_loop(*fill_and_mma("a", "u", i + 1), *fill_and_mma("c", "r", i), on_registers("u"), on_registers("r"), extent=5),
        *fill_and_mma("c", "r", 5),
        on_registers("r"),
    )
    events = by_hand(*body)
    assert events[:5] == ["full a 0", "product u", "commit", "wait 0", "empty a 0"]
    inner = ["full a i + 1", "product u", "commit", "full c i", "product r", "commit"]
    assert events[6] == [*inner, "wait 1", "empty a i + 1", "do u", "wait 0", "empty c i", "do r"]
    assert events[7:] == ["full c 5", "product r", "commit", "wait 0", "empty c 5", "do r"]


def test_exhausted_ring_releases_a_stage_early():
    """With two stages at most two fills are acquired at a time, and none is when a loop that uses the ring begins."""
    body = (*fill_and_mma("a", "u", 0), *fill_and_mma("a", "u", 1), *fill_and_mma("a", "u", 2), on_registers("u"))
    group = ["product u", "commit"]
    first = ["full a 0", *group, "full a 1", *group, "wait 1", "empty a 0", "full a 2", *group]
    assert by_hand(*body) == [*first, "wait 0", "empty a 1", "empty a 2", "do u"]
    events = by_hand(*fill_and_mma("a", "u", 0), fill_loop(*fill_and_mma("a", "u", i + 1), on_registers("u")))
    assert events[:5] == ["full a 0", *group, "wait 0", "empty a 0"]


def test_groups_around_a_loop_keep_its_fills_inside():
    """MMAs around a loop of fills form three groups, and the fills stay in the loop."""
    other = mma(0, name="c", registers="r")
    events = by_hand(other, fill_loop(*fill_and_mma("a", "u")), other)
    assert [word if isinstance(word, str) else "loop" for word in events][:3] == ["product r", "commit", "loop"]
    assert events[2][:3] == ["full a i", "product u", "commit"]


# ---------------------------------------------------------------------------------------------- results

RIGHT = {
    "u low v": pair("u low v", (192, 64, 320), blocks=2),
    "u v low": pair("u v low", (192, 64, 320), blocks=2, stages=3),
    "u v low high": pair("u v low high", rows=128),
    "one stage": pair("u v low", stages=1),
    "gated": of_library(gated, "gate up", "A B1 B2", (64, 64, 320), rows=64, stages=3, mma_in_flight=2),
    "row sum": of_library(gemm_row_sum, "product", "A B", (128, 64, 320)),
}


@pytest.mark.parametrize("name", RIGHT)
def test_kernels_are_right(name):
    """The race check accepts the kernel. The results equal NumPy with fast and slow loads and MMAs, and warps in any order."""
    program = RIGHT[name].program(TARGET)
    assert errors(program.ir) == []
    arrays = given(program.spec)
    assert {outcome(program.ir, arrays, wanted(program.spec, arrays), order) for order in (None, 1)} == {"right"}


@pytest.mark.parametrize("blocks", [0, 3])
def test_sizes_known_at_run_time(blocks):
    sizes = [sym(name, multiple_of=8) for name in "MNK"]
    assert errors(pair("u low v", sizes, blocks=blocks).program(TARGET).ir) == []


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_printed_texts_on_a_cpu(tmp_path):
    programs = [pair("u low v", (128, 64, 192), blocks=1).program(TARGET)]
    host = HostProgram([Printed.of(one) for one in programs], tmp_path)
    for number, program in enumerate(programs):
        arrays = given(program.spec)
        for seed in (1, 2):
            outputs = host.run(number, arrays, {}, seed)
            assert all(np.allclose(outputs[name], value, rtol=1e-2) for name, value in wanted(program.spec, arrays).items())


def test_accumulators_are_pinned_after_their_wait():
    """`pin_registers` follows the wait for each accumulator, also after the loop. A kernel with a single MMA needs none."""
    text = pair("u v low").program(TARGET).cuda
    inside, after = text[text.index("wgmma_wait_group<1>();") :], text[text.rindex("wgmma_wait_group<0>();") :]
    assert inside.splitlines()[1].strip() == "pin_registers(u);" and after.splitlines()[1].strip() == "pin_registers(v);"
    assert "pin_registers(" not in product()(float16_gemm(128, 64, 192)).program(TARGET).cuda


@pytest.mark.skipif(not any(one.serves(TARGET) for one in toolchains()), reason="no NVRTC for sm_90a")
@pytest.mark.parametrize("order", ["u low v", "u v low high"])
def test_compiles_without_spills(order):
    program = pair(order).program(TARGET)
    resources = compile_cuda(program.cuda, TARGET).resources[program.name]
    assert resources.spill_stores == resources.stack_frame == 0


# ---------------------------------------------------------------------------------------------- injected faults


@pytest.mark.sampled(3)
@pytest.mark.parametrize("order", ["u low v", "u v low high"])
def test_race_check_and_simulator_find_faults_of_two_rings(order):
    """Faults: missing or moved fills, fills of the other ring, waits that leave one group too many, releases before their wait.

    The fast tier takes a sample. A register fence is redundant if no statement accesses the registers after the previous fence.
    """
    kernel = pair(order, (192, 64, 192), blocks=2).program(TARGET).ir
    arrays = given(kernel.spec)
    expected = wanted(kernel.spec, arrays)
    fences = [one for one in ir.statements(kernel.body) if isinstance(one, ir.Fence) and one.kind is ir.FenceKind.WGMMA_REGISTERS]
    spare = with_changed(kernel, lambda one: one is fences[1], 0, dropped)
    assert errors(spare) == [] and outcome(spare, arrays, expected, 3) == "right"
    faults = [(name, faulty) for name, faulty in ring_faults(kernel) if not is_harmless(name, kernel) and faulty.body != spare.body]
    assert len(faults) > 50 and any("early" in name for name, _ in faults) and any("another ring" in name for name, _ in faults)
    for name, faulty in faults if SCALE > 1 else random.Random(SEED).sample(faults, 12):
        assert errors(faulty), f"the race check misses {name}"
        assert any(outcome(faulty, arrays, expected, one) != "right" for one in (None, 3)), f"the simulator misses {name}"


@pytest.mark.parametrize(
    ("order", "number", "registers"),
    [("u v low", 0, "u"), ("u v low high", 0, "u"), ("u v low high", 1, "v")],
)
def test_access_to_registers_of_a_pending_group_is_found(order, number, registers):
    """Each wait leaves one group more in flight; the race check and the simulator name the registers."""
    kernel = pair(order).program(TARGET).ir
    which = of_kind(ir.Wait, mechanism=WGMMA_GROUPS)
    faulty = with_changed(kernel, which, number, lambda one: (attrs.evolve(one, groups=one.groups + 1),))
    assert any(one.startswith(f"{registers}: ") and "is used by an MMA in flight" in one for one in errors(faulty))
    # Without releases, which the simulator would report first.
    kept = ir.rewritten(faulty.body, lambda one: () if isinstance(one, ir.Release) and one.state is ir.StageState.EMPTY else (one,))
    arrays = given(kernel.spec)
    message = outcome(attrs.evolve(faulty, body=kept), arrays, wanted(kernel.spec, arrays), None)
    assert f"{registers} is accessed by" in message and "while an MMA that uses it is in flight" in message


# ---------------------------------------------------------------------------------------------- report for the reader


def test_synchronization_report_gives_reasons():
    account = synchronization(pair("u low v").program(TARGET).ir)
    assert [ring.why for ring in account.rings] == [
        "a stage is released at an existing wait for MMAs: u is complete",
        "a stage is released one iteration later at an existing wait for MMAs: u is complete",
    ]
    account = synchronization(pair("u v low high").program(TARGET).ir)
    assert [(ring.name, ring.in_flight) for ring in account.rings] == [("a_sh_ring", 1), ("c_sh_ring", 0)]
    report = text(account)
    assert "the last one may be pending, MMAs into v" in report
    assert "the preceding wait (v is complete) leaves no pending group that reads it" in report
