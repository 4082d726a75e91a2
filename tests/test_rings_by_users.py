"""Several rings in a loop, one per group of users; wgmma groups, waits and releases that follow from the groups in flight; faults in two
rings.
"""

import os
import random

import attrs
import making
import numpy as np
import pytest
from printed_text import COMPILER, HostProgram, Printed
from ringed import TARGET, dropped, errors, float16_gemm, is_load, of_kind, product, ring_faults, roles_of, with_changed
from test_rings import is_harmless
from touching import K, buffer, i, kernel, loop, on_registers, products, reads

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

COPY, PRODUCT = Move.done(), MatMul.split(16).unroll().done()
STORED = Move.tile(64, 64).unroll().load(SRC, SH, Move.done()).cast_on_copy().done()

STEPS = {
    "u": "u[m,n] += sum(k, A[m,k] * B[k,n])",
    "v": "v[m,n] += sum(k, C[m,k] * E[k,n])",
    "low": "u[m,n] = max(u[m,n], -9999)",
    "high": "v[m,n] = min(v[m,n], 9999)",
}


def pair(order, sizes=(128, 64, 320), *, stages=2, blocks=0, loads="ABCE", rows=64, shares=(), in_flight=None):
    """Two bound MMAs of a step with separate accumulators; `low` and `high` access these without changing anything.

    `shares` are the loads that share stages.
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
    chain = chain if in_flight is None else chain.mma_in_flight(in_flight)
    for name in loads:
        chain = chain.load(name, SH, COPY)
        chain = chain.share_stages(dict(shares)[name]) if name in dict(shares) else chain
    chain = chain.tile(m=64).to(Warpgroup).step("u", PRODUCT).step("v", PRODUCT).step("store", STORED).done()
    return chain(definition(**dict(zip("mnk", sizes, strict=True)), dtype=float16))


def of_library(module, steps, loads, sizes, *, rows=128, stages=2, in_flight=None):
    """A bound definition of the library with rings."""
    chain = module.definition.tile(m=rows, n=64).to(Block).split(k=64).pipeline(stages).warp_specialize(128)
    chain = chain if in_flight is None else chain.mma_in_flight(in_flight)
    for name in loads.split():
        chain = chain.load(name, SH, COPY)
    chain = chain.tile(m=64).to(Warpgroup)
    for step in steps.split():
        chain = chain.step(step, PRODUCT)
    return chain.step("store", STORED).done()(module.spec(*sizes))


def given(spec):
    """Small integers for the inputs of a spec."""
    generator = np.random.default_rng(7)
    shapes = {name: [int(size.value) for size in spec.operands[name].shape] for name in spec.inputs}
    return {name: generator.integers(-2, 3, shape).astype(spec.operands[name].dtype.to_numpy()) for name, shape in shapes.items()}


def wanted(spec, arrays):
    """The expected results from NumPy, by output."""
    found = spec.reference(*arrays.values())
    return dict(zip(spec.outputs, found if isinstance(found, tuple) else (found,), strict=True))


def outcome(kernel, arrays, expected, order):
    """`right`, `wrong`, or the simulator's error."""
    try:
        got = simulate(kernel, arrays, order=None if order is None else random.Random(order)).outputs
    except FireironError as error:
        return str(error)
    return "right" if all(np.allclose(got[name], value, rtol=1e-2, atol=1e-2) for name, value in expected.items()) else "wrong"


def short(body):
    """A list in short form: MMAs and ordinary statements by the registers that they write, fills by ring and number, loops as lists."""
    words = []
    for one in body:
        match one:
            case ir.For() if any(isinstance(part, (ir.Acquire, ir.Commit)) for part in ir.statements(one.body)):
                words.append(short(one.body))
            case ir.For() | ir.Exec():
                execs = [statement for statement, _ in ir.execs((one,))]
                names = dict.fromkeys(access.buffer for statement in execs for access in statement.accesses if access.write)
                words.append(f"{'product' if execs[0].mechanism is WGMMA_GROUPS else 'do'} {' '.join(names)}")
            case ir.Acquire():
                words.append(f"full {one.ring.removesuffix('_sh_ring')} {one.fill_index}")
            case ir.Release():
                later = " later" if "<" in str(one.active) else ""
                words.append(f"empty {one.ring.removesuffix('_sh_ring')} {one.fill_index}{later}")
            case ir.Wait() if one.mechanism is WGMMA_GROUPS:
                words.append(f"wait {one.groups}")
            case ir.Barrier():
                words.append(f"barrier {one.scope}")
            case ir.Commit() if one.mechanism is WGMMA_GROUPS:
                words.append("commit")
    return words


def turns_of(program):
    """The ring loop in the consumers' program in short form, and the statements after it up to the first ordinary one."""
    words = short(roles_of(program.stages["wgmma_waits"])[0].body)
    place = next(number for number, one in enumerate(words) if isinstance(one, list))
    behind = words[place + 1 :]
    return words[place], behind[: next(number for number, one in enumerate(behind) if one.startswith("do"))]


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
    """In the order of first uses, which is also the order of the producer's loads."""
    kernel = bound.program(TARGET).ir
    assert {ring.name: ring.buffers for ring in kernel.rings} == rings
    assert [ring.name for ring in kernel.rings] == list(rings) and {ring.stages for ring in kernel.rings} == {2}
    (producer,) = [role for role in roles_of(kernel) if role.elected]
    filled = dict.fromkeys(one.ring for one in ir.statements(producer.body) if is_load(one))
    assert list(filled) == list(rings)


# ---------------------------------------------------------------------------------------------- waits and releases

U, V = ["full a k", "product u", "commit"], ["full c k", "product v", "commit"]

INFERRED = {
    # As attention runs: both are in flight when the next turn begins, and one wait is for both.
    "u low v": ([*U, "wait 0", "empty c k - 1 later", "empty a k", "do u", *V], ["wait 0", "empty c 4"]),
    # The second one runs on beside what the first one is waited for.
    "u v low": ([*U, *V, "wait 1", "empty c k - 1 later", "empty a k", "do u"], ["wait 0", "empty c 4"]),
    "u v low high": ([*U, *V, "wait 1", "empty a k", "do u", "wait 0", "empty c k", "do v"], []),
    "u v high low": ([*U, *V, "wait 0", "empty a k", "empty c k", "do v", "do u"], []),
    # Nothing waits for them: as many run on as `mma_in_flight` says, of one warpgroup one.
    "u v": ([*U, *V, "wait 1", "empty c k - 1 later", "empty a k"], ["wait 0", "empty c 4"]),
}


@pytest.mark.parametrize("order", INFERRED)
def test_waits_leave_what_need_not_be_done(order):
    assert turns_of(pair(order).program(TARGET)) == INFERRED[order]


SECOND = ["full b2 k", "product u", "commit"]


@pytest.mark.parametrize(
    ("stages", "in_flight", "rows", "found"),
    [
        (2, None, 128, ["wait 0", "empty a k", "empty b1 k", "empty b2 k"]),
        (2, 1, 64, ["wait 1", "empty a k - 1 later", "empty b2 k - 1 later", *SECOND, "wait 1", "empty b1 k"]),
        (3, 2, 64, ["wait 2", "empty b1 k - 1 later", *SECOND, "wait 2", "empty a k - 1 later", "empty b2 k - 1 later"]),
        (1, None, 64, ["wait 0", "empty a k", "empty b1 k", "empty b2 k"]),
    ],
)
def test_groups_in_flight(stages, in_flight, rows, found):
    """Groups count separately: a stage is released when the groups that read it are complete, not earlier. With a requested number, after
    each group; else at the end of an iteration.
    """
    bound = of_library(gated, "gate up", "A B1 B2", (128, 64, 320), rows=rows, stages=stages, in_flight=in_flight)
    body, _ = turns_of(bound.program(TARGET))
    place = next(number for number, one in enumerate(body) if one.startswith("wait"))
    behind = found.index("commit") if "commit" in found else len(found)
    assert sorted(body[place:][:behind]) == sorted(found[:behind]) and sorted(body[place:][behind:]) == sorted(found[behind:])


def test_ordinary_readers_of_a_stage_meet():
    """One warp barrier for all stages released there that lanes read separately; next to MMAs, so that they need no ring of their own."""
    body, _ = turns_of(of_library(gemm_row_sum, "product", "A B", (128, 64, 320)).program(TARGET))
    assert body[-4:] == ["do s", "wait 0", "barrier warp", "empty k_ring k"]
    body, behind = turns_of(of_library(gemm_row_sum, "product", "A B", (128, 64, 320), in_flight=1).program(TARGET))
    assert body[-4:] == ["wait 1", "barrier warp", "empty k_ring k - 1 later", "do s"]
    assert behind == ["wait 0", "barrier warp", "empty k_ring 4"]


# ---------------------------------------------------------------------------------------------- by hand


BUFFERS = (buffer("a", 4096), buffer("c", 4096, offset=16384), *(buffer(name, 4, memory=RF) for name in "urpq"))
RINGS = (making.ring("a_sh_ring", 2, ("a",)), making.ring("c_sh_ring", 2, ("c",)))


def full(ring, number=i):
    return making.acquire(f"{ring}_sh_ring", ir.StageState.FULL, as_expr(number))


def empty(ring, number=i):
    return making.release(f"{ring}_sh_ring", ir.StageState.EMPTY, as_expr(number))


def used(ring, registers, number=i):
    """A fill that an MMA on some registers reads."""
    stage = mod(as_expr(number), as_expr(2))
    return (full(ring, number), products(0, name=ring, registers=registers, copy=stage), empty(ring, number))


def turns(*body, extent=6, **options):
    return loop(extent, *body, period=2, **options)


def by_hand(*body):
    load = attrs.evolve(reads(0, name="a"), ring="a_sh_ring")
    loads = {name: attrs.evolve(load, accesses=(load.accesses[0], reads(0, name=name).accesses[0])) for name in "ac"}
    roles = making.roles((making.role("consumers", 0, 128, body), making.role("producer", 128, 32, tuple(loads.values()))))
    return short(wgmma_waits(kernel(roles, buffers=BUFFERS, rings=RINGS)).body[0].roles[0].body)


def test_a_factor_in_registers_is_not_overwritten():
    """Operands of MMAs may be read; registers that MMAs only read are not written before these complete."""
    group = attrs.evolve(products(0, name="a", registers="r"), mechanism=WGMMA_GROUPS)
    held = attrs.evolve(group, accesses=(*group.accesses[:1], on_registers("p", write=False).accesses[0], group.accesses[-1]))
    held = attrs.evolve(held, lane_maps=(None,) * 3)
    assert by_hand(held, on_registers("p", write=False), on_registers("p")) == ["product r", "commit", "do ", "wait 0", "do p"]
    # A factor that other products have written is waited for, an accumulator of the next group is not.
    other = products(0, name="a", registers="p")
    assert by_hand(other, making.comment(""), held) == ["product p", "commit", "wait 0", "product r", "commit"]
    assert by_hand(group, making.comment(""), group) == ["product r", "commit", "product r", "commit"]


def test_a_wait_counts_the_groups_behind_the_youngest_clash():
    three = [one for name in "urq" for one in (products(0, name="a", registers=name), making.comment(""))]
    groups = [word for name in "urq" for word in (f"product {name}", "commit")]
    for name, left in zip("urq", (2, 1, 0), strict=True):
        assert by_hand(*three, on_registers(name)) == [*groups, f"wait {left}", f"do {name}"]


def test_a_loop_that_may_not_run():
    """The wait after it is for the path with fewer committed groups; a loop of three iterations has committed three."""
    first, inside = products(0, name="a", registers="u"), (products(0, name="a", registers="r"), on_registers("q"))
    assert by_hand(first, loop(K, *inside), on_registers("u"))[-2:] == ["wait 0", "do u"]
    assert by_hand(first, loop(1, *inside), on_registers("u"))[-2:] == ["wait 1", "do u"]


def test_a_first_turn_in_front_of_the_loop_is_given_back_there():
    """A stage identifies the fill of an access: the loop after it uses others."""
    before = pair("u low v").program(TARGET).stages["prune"]
    (found,) = [one for one in before.body if isinstance(one, ir.For) and making.ask_of(one, "producer_threads")]
    first = ir.substituted(found.body, {found.var: as_expr(0)})
    rest = attrs.evolve(found, extent=found.extent - 1, body=ir.substituted(found.body, {found.var: found.var + 1}))
    body = [part for one in before.body for part in ((*first, rest) if one is found else (one,))]
    kernel = wgmma_waits(specialize(attrs.evolve(before, body=tuple(body))))
    assert {ring.bytes for ring in kernel.rings} == {2 * 64 * 64 * 2}
    words = short(roles_of(kernel)[0].body)
    place = next(number for number, one in enumerate(words) if isinstance(one, list))
    turns = [one for one in words[:place] if one.split()[0] in ("full", "empty", "wait")]
    assert turns == ["full a 0", "wait 0", "empty a 0", "full c 0", "wait 0", "empty c 0"]
    assert "empty a k + 1" in words[place] and "empty c k later" in words[place]


def test_turns_of_one_ring_in_several_lists():
    """As with a deferred step: the first fill before the loop, the next ones in it, the last use after it."""
    body = (
        *used("a", "u", 0),
        on_registers("u"),
        turns(*used("a", "u", i + 1), *used("c", "r", i), on_registers("u"), on_registers("r"), extent=5),
        *used("c", "r", 5),
        on_registers("r"),
    )
    found = by_hand(*body)
    assert found[:5] == ["full a 0", "product u", "commit", "wait 0", "empty a 0"]
    inner = ["full a i + 1", "product u", "commit", "full c i", "product r", "commit"]
    assert found[6] == [*inner, "wait 1", "empty a i + 1", "do u", "wait 0", "empty c i", "do r"]
    assert found[7:] == ["full c 5", "product r", "commit", "wait 0", "empty c 5", "do r"]


def test_a_ring_whose_stages_are_all_held_gets_room():
    """Of two stages at most two fills are acquired, and no enclosing list holds a fill that a loop needs."""
    body = (*used("a", "u", 0), *used("a", "u", 1), *used("a", "u", 2), on_registers("u"))
    group = ["product u", "commit"]
    first = ["full a 0", *group, "full a 1", *group, "wait 1", "empty a 0", "full a 2", *group]
    assert by_hand(*body) == [*first, "wait 0", "empty a 1", "empty a 2", "do u"]
    found = by_hand(*used("a", "u", 0), turns(*used("a", "u", i + 1), on_registers("u")))
    assert found[:5] == ["full a 0", *group, "wait 0", "empty a 0"]


def test_a_group_leaves_the_loop_of_its_ring_alone():
    """MMAs around a ring loop: three groups, and the fills stay inside."""
    other = products(0, name="c", registers="r")
    found = by_hand(other, turns(*used("a", "u")), other)
    assert [word if isinstance(word, str) else "loop" for word in found][:3] == ["product r", "commit", "loop"]
    assert found[2][:3] == ["full a i", "product u", "commit"]


# ---------------------------------------------------------------------------------------------- right

RIGHT = {
    "u low v": pair("u low v", (192, 64, 320), blocks=2),
    "u v low": pair("u v low", (192, 64, 320), blocks=2, stages=3),
    "u v low high": pair("u v low high", rows=128),
    "one stage": pair("u v low", stages=1),
    "gated": of_library(gated, "gate up", "A B1 B2", (64, 64, 320), rows=64, stages=3, in_flight=2),
    "row sum": of_library(gemm_row_sum, "product", "A B", (128, 64, 320)),
}


@pytest.mark.parametrize("name", RIGHT)
def test_kernels_are_right(name):
    """No false alarm, and equal to NumPy with fast and slow loads and MMAs, and warps in any order."""
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
            made = host.run(number, arrays, {}, seed)
            assert all(np.allclose(made[name], value, rtol=1e-2) for name, value in wanted(program.spec, arrays).items())


def test_texts_hold_what_a_wait_makes_known():
    """Each accumulator is pinned after the wait for it, also for the last fills; with a single MMA there is nothing to pin."""
    text = pair("u v low").program(TARGET).cuda
    inside, behind = text[text.index("wgmma_wait_group<1>();") :], text[text.rindex("wgmma_wait_group<0>();") :]
    assert inside.splitlines()[1].strip() == "pin_registers(u);" and behind.splitlines()[1].strip() == "pin_registers(v);"
    assert "pin_registers(" not in product()(float16_gemm(128, 64, 192)).program(TARGET).cuda


@pytest.mark.skipif(not any(one.serves(TARGET) for one in toolchains()), reason="no NVRTC for sm_90a")
@pytest.mark.parametrize("order", ["u low v", "u v low high"])
def test_compiles_without_serialisation(order):
    program = pair(order).program(TARGET)
    resources = compile_cuda(program.cuda, TARGET).resources[program.name]
    assert resources.spill_stores == resources.stack_frame == 0


# ---------------------------------------------------------------------------------------------- planted faults


@pytest.mark.parametrize("order", ["u low v", "u v low high"])
def test_faults_of_two_rings_are_found_by_both(order):
    """Operations left out, moved, or on the other ring; waits for one group too few; releases before their wait. The fast tier runs a
    random part. A fence of registers that no thread accessed since the last fence is not needed.
    """
    kernel = pair(order, (192, 64, 192), blocks=2).program(TARGET).ir
    arrays = given(kernel.spec)
    expected = wanted(kernel.spec, arrays)
    fences = [one for one in ir.statements(kernel.body) if isinstance(one, ir.Fence) and one.kind is ir.FenceKind.WGMMA_REGISTERS]
    spare = with_changed(kernel, lambda one: one is fences[1], 0, dropped)
    assert errors(spare) == [] and outcome(spare, arrays, expected, 3) == "right"
    found = [(name, faulty) for name, faulty in ring_faults(kernel) if not is_harmless(name, kernel) and faulty.body != spare.body]
    assert len(found) > 50 and any("early" in name for name, _ in found) and any("another ring" in name for name, _ in found)
    for name, faulty in found if SCALE > 1 else random.Random(SEED).sample(found, 12):
        assert errors(faulty), f"the race check misses {name}"
        assert any(outcome(faulty, arrays, expected, one) != "right" for one in (None, 3)), f"the simulator misses {name}"


@pytest.mark.parametrize(
    ("order", "number", "said"),
    [("u v low", 0, "u"), ("u v low high", 0, "u"), ("u v low high", 1, "v")],
)
def test_registers_of_a_group_that_still_runs(order, number, said):
    """A wait that leaves one group more: both detectors name the registers."""
    kernel = pair(order).program(TARGET).ir
    which = of_kind(ir.Wait, mechanism=WGMMA_GROUPS)
    faulty = with_changed(kernel, which, number, lambda one: (attrs.evolve(one, groups=one.groups + 1),))
    assert any(one.startswith(f"{said}: ") and "is used by an MMA in flight" in one for one in errors(faulty))
    # Without the releases, of which the simulator would speak first.
    kept = ir.rewritten(faulty.body, lambda one: () if isinstance(one, ir.Release) and one.state is ir.StageState.EMPTY else (one,))
    arrays = given(kernel.spec)
    met = outcome(attrs.evolve(faulty, body=kept), arrays, wanted(kernel.spec, arrays), None)
    assert f"{said} is accessed by" in met and "while an MMA that uses it is in flight" in met


# ---------------------------------------------------------------------------------------------- what readers are told


def test_the_account_gives_the_reasons():
    account = synchronization(pair("u low v").program(TARGET).ir)
    assert [ring.why for ring in account.rings] == [
        "a stage is released at an existing wait for MMAs: u is complete",
        "a stage is released a turn later at an existing wait for MMAs: u is complete",
    ]
    account = synchronization(pair("u v low high").program(TARGET).ir)
    assert [(ring.name, ring.in_flight) for ring in account.rings] == [("a_sh_ring", 1), ("c_sh_ring", 0)]
    said = text(account)
    assert "the last one may be pending, products of v" in said
    assert "the preceding wait (v is complete) leaves no pending group that reads it" in said
