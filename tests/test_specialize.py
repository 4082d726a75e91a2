"""`warp_specialize`: producer and consumer programs of real and hand-built kernels, and the printed roles and barriers."""

import re

import attrs
import making
import pytest
from handmade import access, execution, kernel_of, local
from printed_text import with_numbers
from ringed import (
    TARGET,
    all_of_kind,
    by_warps,
    errors,
    float16_gemm,
    inputs_of,
    is_load,
    is_product,
    outcome,
    product,
    roles_of,
    with_changed,
)

from fireiron import *
from fireiron import ir
from fireiron.cuda.addresses import continues_count
from fireiron.executable.thread_move import MOVE
from fireiron.ir.mechanisms.tma import TMA_LOADS
from fireiron.ir.mechanisms.wgmma import WGMMA_GROUPS
from fireiron.lower.pipeline import pipeline
from fireiron.lower.roles import Fill, FillOperations, Part, Partition, Writer, is_condition
from fireiron.lower.specialize import KEPT, KEPT_AT_LEAST, KEPT_IN_CLUSTER, SPARE, _kept, specialize
from fireiron.lower.walk import NO_PRODUCER
from fireiron.lower.wgmma_waits import wgmma_waits
from fireiron.values.expr import ZERO, Var, as_expr, constant

FLOAT16_SPEC = float16_gemm(128, 64, 320)


def stages_of(strategy, spec=FLOAT16_SPEC):
    """The kernel after each pass."""
    return strategy(spec).program(TARGET).stages


def shape_of(body):
    """Abbreviate statements: `for[acquire full, ...]`."""
    return [_short(one) for one in body if not isinstance(one, (ir.Comment, ir.Let))]


def _short(stmt):
    if isinstance(stmt, ir.For):
        return f"for[{', '.join(shape_of(stmt.body))}]"
    if isinstance(stmt, (ir.Acquire, ir.Release)):
        return f"{type(stmt).__name__.lower()} {stmt.state.value}"
    if isinstance(stmt, ir.Exec):
        return "load" if is_load(stmt) else "product" if is_product(stmt) else "other"
    return type(stmt).__name__.lower()


# ---------------------------------------------------------------------------------------------- the pass before: a loop fills a circular buffer


def test_pipeline_numbers_fills_without_changing_the_loop_body():
    """Loads and uses stay in their iteration. Buffers have one copy per stage, and each access uses the stage of its iteration."""
    before, after = (stages_of(product(stages=3))[name] for name in ("walk", "pipeline"))
    (ring,) = after.rings
    assert before.rings == () and (ring.stages, ring.buffers) == (3, ("a_sh", "b_sh"))
    assert {after.buffer(name).tensor.copies for name in ring.buffers} == {3}
    (loop,) = [one for one in after.body if isinstance(one, ir.For) and making.ask_of(one, "producer_threads")]
    assert shape_of(loop.body)[:2] == ["load", "load"] and (
        loop.period,
        making.ask_of(loop, "producer_threads"),
        making.ask_of(loop, "stages"),
    ) == (
        3,
        32,
        0,
    )
    for stmt, _ in ir.execs(loop.body):
        for part in stmt.accesses:
            if part.buffer in ring.buffers:
                assert [part.copy.evaluate({"k": iteration}) for iteration in range(5)] == [0, 1, 2, 0, 1]
    assert all((one.ring, one.fill_index) == (ring.name, loop.var) for one in all_of_kind(after, ir.Exec) if one.mechanism is TMA_LOADS)


def test_fill_indices_count_across_outer_loops():
    """A ring continues across tiles: 2 tiles of 3 iterations use the fills 0 to 5."""
    kernel = product(blocks=2)(float16_gemm(512, 64, 192)).program(TARGET).ir
    (acquire,) = [one for one in all_of_kind(kernel, ir.Acquire) if one.state is ir.StageState.FULL]
    assert [acquire.fill_index.evaluate({"iteration": tile, "k": k}) for tile in range(2) for k in range(3)] == list(range(6))


# ---------------------------------------------------------------------------------------------- producer and consumers


@pytest.mark.parametrize("late", [0, 1, 2])
def test_stage_is_released_after_its_wgmma_group_completes(late):
    kernel = stages_of(product(stages=3, mma_in_flight=late))["wgmma_waits"]
    consumers, producer = roles_of(kernel)
    assert shape_of(producer.body) == ["for[acquire empty, release full, load, load]"]
    (loop,) = [one for one in consumers.body if isinstance(one, ir.For) and any(isinstance(s, ir.Acquire) for s in one.body)]
    *_, wait, release = loop.body
    assert isinstance(loop.body[0], ir.Acquire) and (wait.groups, wait.mechanism) == (late, WGMMA_GROUPS)
    assert release.fill_index == loop.var - late
    epilogue = consumers.body[consumers.body.index(loop) + 1 :]
    assert [type(one) for one in epilogue[: late + 1]] == ([ir.Wait] + [ir.Release] * late if late else [type(epilogue[0])])
    last = [one for one in epilogue if isinstance(one, ir.Release)]
    assert [constant(one.fill_index) for one in last] == [5 - one for one in range(late, 0, -1)]
    # There is nothing to release before iteration `late`.
    active = [[release.active.evaluate({"thread": thread, "k": iteration}) for iteration in range(4)] for thread in (0, 1, 32, 255)]
    assert active == [
        [iteration >= late for iteration in range(4)],
        [False] * 4,
        [iteration >= late for iteration in range(4)],
        [False] * 4,
    ]


@pytest.mark.parametrize(("warpgroups", "late"), [(1, 1), (2, 0)])
def test_default_mma_in_flight_depends_on_the_number_of_warpgroups(warpgroups, late):
    """One warpgroup keeps a group in flight. With several warpgroups, each uses the time in which the others wait."""
    kernel = stages_of(product((64 * warpgroups, 64, 64), (64, 64), 3))["wgmma_waits"]
    assert next(one.groups for one in all_of_kind(kernel, ir.Wait) if one.mechanism is WGMMA_GROUPS) == late


def test_single_stage_ring_waits_for_all_wgmma_groups():
    """The only stage must be released before the next load."""
    kernel = product((64, 64, 64), (64, 64), 1)(float16_gemm(64, 64, 320)).program(TARGET).ir
    assert [one.groups for one in all_of_kind(kernel, ir.Wait) if one.mechanism is WGMMA_GROUPS] == [0]


def test_ordinary_readers_release_a_stage_once_per_warp():
    consumers, _ = roles_of(stages_of(by_warps(), float16_gemm(128, 64, 320, c_dtype=float32))["wgmma_waits"])
    (loop,) = [one for one in consumers.body if isinstance(one, ir.For) and any(isinstance(s, ir.Acquire) for s in one.body)]
    assert [type(one) for one in loop.body[-2:]] == [ir.Barrier, ir.Release]
    assert loop.body[-2] == making.barrier(ir.WARP_SCOPE, "all lanes have read a_sh, b_sh")


def test_ring_expects_bytes_and_consumer_warps():
    for strategy, size, warps in ((product(), (128 + 64) * 64 * 2, 8), (product((64, 128, 128), (64, 128), 2), (64 + 128) * 128 * 2, 4)):
        (ring,) = stages_of(strategy)["specialize"].rings
        assert (ring.bytes, ring.consumers) == (size, warps)


def test_producer_contains_only_loads_and_the_loops_around_them():
    """The producer has its loads and the loops and names that they need."""
    kernel = stages_of(product(blocks=2, group_m=2), float16_gemm(512, 64, 192))["specialize"]
    consumers, producer = roles_of(kernel)
    assert all(is_load(one) for one, _ in ir.execs(producer.body)) and not any(is_load(one) for one, _ in ir.execs(consumers.body))
    assert shape_of(producer.body) == ["for[for[acquire empty, release full, load, load]]"]
    lets = [[one.var.name for one in ir.statements(role.body) if isinstance(one, ir.Let)] for role in (consumers, producer)]
    assert set(lets[1]) <= set(lets[0]) and "tile" in lets[1]


# ---------------------------------------------------------------------------------------------- hand-built kernels


def handmade(**fields):
    """A loop of five iterations: TMA loads a tile, and a warp copies it to the output."""
    spec = Move(16, 40, dtype=float16, src=RowMajor, dst=RowMajor)(GL, GL)
    k = Var("k", 0, 4)
    outer = kernel_of(spec, (), local("tile", (16, 8), SH, float16), target="sm_90a")
    into = execution(
        TMA_LOAD, spec(Kernel), access("src", (0, k * 8), (16, 8)), access("tile", (0, 0), (16, 8), write=True),
        mechanism=TMA_LOADS,
    )  # fmt: skip
    out = execution(TMA_LOAD, spec(Kernel), access("tile", (0, 0), (16, 8)), access("dst", (0, k * 8), (16, 8), write=True))
    loop = making.loop(k, as_expr(5), (making.comment("a load"), into, out), stages=2, producer_threads=32, **fields)
    return attrs.evolve(outer, body=(making.comment("first"), loop, making.comment("last")))


def test_specialize_splits_a_hand_built_loop():
    kernel = wgmma_waits(specialize(pipeline(handmade())))
    consumers, producer = roles_of(kernel)
    (ring,) = kernel.rings
    assert ring == making.ring("k_ring", 2, ("tile",), bytes=16 * 8 * 2, consumers=1)
    assert (consumers.first, consumers.threads, producer.first, producer.threads, producer.elected) == (0, 32, 32, 32, True)
    assert (kernel.workers, kernel.threads) == (32, 64)
    assert shape_of(producer.body) == ["for[acquire empty, release full, load]"]
    assert shape_of(consumers.body) == ["for[acquire full, other, barrier, release empty]"]
    assert making.comment("a load") not in all_of_kind(attrs.evolve(kernel, body=consumers.body), ir.Comment), "it goes with its load"
    assert {making.comment("first"), making.comment("last")} <= set(consumers.body)
    assert all(not one.asks for one in all_of_kind(kernel, ir.For))


def test_specialize_and_pipeline_keep_kernels_without_rings():
    plain = attrs.evolve(handmade(), body=())
    assert specialize(plain) is plain and pipeline(plain) is plain


def test_tma_load_without_a_ring_is_refused():
    kernel = handmade()
    without_ring = with_changed(kernel, lambda one: isinstance(one, ir.For), 0, lambda one: one.body[1:2])
    without_ring = attrs.evolve(
        without_ring, body=tuple(attrs.evolve(one, **_at_first(one)) if isinstance(one, ir.Exec) else one for one in without_ring.body)
    )
    with pytest.raises(DecompositionError) as caught:
        specialize(without_ring)
    assert str(caught.value).startswith("TMA_LOAD needs a producer, and the strategy has none")
    assert ".split(64).pipeline(4).warp_specialize(), or .coalesced_copy(8) in the load for copies by all threads" in str(caught.value)


def _at_first(statement):
    return {"accesses": tuple(one.substitute({Var("k", 0, 4): ZERO}) for one in statement.accesses)}


# ---------------------------------------------------------------------------------------------- registers


@pytest.mark.parametrize(
    ("tiles", "warpgroup", "producer", "kept", "given"),
    [
        ((128, 64, 64), (64, 64), 128, 40, 232),
        ((64, 64, 64), (64, 64), 128, 0, 0),  # setmaxnreg has no effect: each thread starts with the maximum that it can address
        ((256, 128, 64), (64, 128), 128, 40, 104),
        ((128, 64, 64), (64, 64), 32, 0, 0),
    ],
)
def test_setmaxnreg_moves_registers_from_producer_to_consumers(tiles, warpgroup, producer, kept, given):
    """PTX ISA, setmaxnreg: a whole warpgroup, a multiple of 8 from 24 to 256, and at most the registers of the SM."""
    program = product(tiles, warpgroup, 2, producer=producer)(float16_gemm(256, 128, 192)).program(TARGET)
    consumers, giver = roles_of(program.ir)
    assert (giver.registers, consumers.registers) == (kept, given)
    assert consumers.threads * given + giver.threads * kept <= 65536
    instructions = re.findall(r"setmaxnreg\.(\w+)\.sync\.aligned\.u32 (\d+);", program.cuda)
    assert sorted(instructions) == ([("dec", str(kept)), ("inc", str(given))] if kept else [])


# ---------------------------------------------------------------------------------------------- refusals

CHAIN = MatMul.tile(128, 64).to(Block).epilog(RF, float32, Init.done(), Move.done()).split(64)
WHOLE, WIDE = Move.done(), Move.coalesced_copy(8).done()


def finished(chain, a=WHOLE, b=WHOLE):
    return chain.load(A, SH, a).load(B, SH, b).tile(64, 64).to(Warpgroup).done()


REFUSED = {
    "no pipeline": (finished(CHAIN.warp_specialize()), "warp_specialize: the split has no pipeline, so a producer has no stages to fill"),
    "half a warpgroup": (
        finished(CHAIN.pipeline(2).warp_specialize(64)),
        r"the producer must be a warp or a warpgroup\n  got +64\n(.*\n)  legal +32 128",
    ),
    "no loop at all": (finished(CHAIN, Move.done(TMA_LOAD)), "TMA_LOAD needs a producer, and the strategy has none"),
    "mixed by hand": (
        finished(CHAIN.pipeline(2).warp_specialize(), Move.done(TMA_LOAD), WIDE),
        r"the producer loads by TMA, but Move performs Move\(1,8\)\(GL,SH\)\(Thread\)",
    ),
    "too many in flight": (
        finished(CHAIN.pipeline(2).warp_specialize().mma_in_flight(2)),
        r"in_flight\(2\): each iteration in flight occupies a stage",
    ),
    "in flight without a ring": (
        finished(CHAIN.pipeline(2).mma_in_flight(1), WIDE, WIDE),
        r"mma_in_flight\(1\): the split has no producer",
    ),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", REFUSED)
def test_specialize_refusals(name):
    strategy, text = REFUSED[name]
    with pytest.raises(DecompositionError) as caught:
        _ = strategy(FLOAT16_SPEC).program(TARGET).ir
    assert re.search(text, str(caught.value)), caught.value
    assert "test_specialize.py" in str(caught.value), "the line of the strategy"


def test_warp_specialize_without_tma_loads_equals_a_plain_pipeline():
    """`warp_specialize` assigns TMA loads to a producer. Without TMA loads it changes nothing."""
    program = finished(CHAIN.pipeline(2).warp_specialize(), WIDE, WIDE)(FLOAT16_SPEC).program(TARGET)
    other = finished(CHAIN.pipeline(2), WIDE, WIDE)(FLOAT16_SPEC).program(TARGET)
    assert program.ir.body == other.ir.body and program.ir.rings == ()
    note = "without effect: warp_specialize() of loop k: TMA performs none of its copies"
    assert set(program.ir.title) - set(other.ir.title) == {note, *(line for line in program.ir.title if ".warp_specialize()" in line)}
    assert f"//   {note}\n" in program.cuda


@pytest.mark.parametrize("chain", [CHAIN, CHAIN.pipeline(2)], ids=["no pipeline", "no producer"])
def test_without_a_producer_all_threads_copy(chain):
    """Without a producer, `done` does not select TMA: all threads copy, as for any copy that no single instruction performs."""
    spec = float16_gemm(136, 72, 104)
    kernel = finished(chain)(spec).program(TARGET).ir
    notes = [one.text for one in all_of_kind(kernel, ir.Comment)]
    assert kernel.rings == () and notes.count(f"copied by all threads: TMA_LOAD {NO_PRODUCER}") >= 2
    arrays, expected = inputs_of(spec)
    assert errors(kernel) == [] and outcome(kernel, arrays, expected) == "right"


# ---------------------------------------------------------------------------------------------- printed CUDA

TEXT = product(stages=3, producer=32)(FLOAT16_SPEC).program(TARGET).cuda


def body_of(text):
    return with_numbers(text[text.index('extern "C"') :])


def test_printed_mbarriers():
    body = body_of(TEXT)
    assert re.search(r"const unsigned k_ring_full = shared_address\(.*\);  // 3 mbarriers: a_sh, b_sh full", body)
    assert "const unsigned k_ring_empty = k_ring_full + 3 * 8;" in body
    assert "mbarrier_init(k_ring_full + stage * 8, 1);" in body and "mbarrier_init(k_ring_empty + stage * 8, 8);" in body
    assert body.index("fence_mbarrier_init();") < body.index("__syncthreads();") < body.index("if (warp_index < 8)")
    assert f"mbarrier_arrive_expect_tx(k_ring_full + k_stage3 * 8, {(128 + 64) * 64 * 2});" in re.sub(r"k_stage\d*", "k_stage3", body)


def counter_values(text, iterations):
    """The values of each stage and phase counter of a text over a number of iterations; no tile resets them."""
    values = {name: [int(start)] for name, start in re.findall(r"^ +int (\w+) = (\d+);$", text, re.M)}
    updates = re.findall(r"if \(\+\+(\w+) == (\d+)\)(?: \{)?\s+\1 = 0;(?:\s+(\w+) \^= 1;)?", text)
    for stage, stages, parity in dict.fromkeys(updates):  # both roles use the same names
        for _ in range(iterations - 1):
            after = values[stage][-1] + 1
            values[stage].append(after % int(stages))
            if parity:
                values[parity].append(values[parity][-1] ^ (after == int(stages)))
    return values


WAITED = r"mbarrier_wait\((k_ring_\w+) \+ (\w+) \* 8, (.*)\);"


@pytest.mark.parametrize("blocks", [0, 2])
@pytest.mark.parametrize("stages", [3, 5])
def test_each_wait_uses_the_parity_of_its_phase(stages, blocks):
    """Fill n has phase n / stages. Full waits use its parity, empty waits the opposite one, also across tiles."""
    body = body_of(product((64, 64, 64), (64, 64), stages, blocks=blocks)(float16_gemm(256, 64, 448)).program(TARGET).cuda)
    waits = re.findall(WAITED, body)
    assert [name for name, *_ in waits] == ["k_ring_full", "k_ring_empty"]
    for (_, stage, parity), role, shift in zip(waits, body.split("// producer"), (0, 1), strict=True):
        counted = counter_values(role, 12)
        assert counted[stage] == [fill % stages for fill in range(12)]
        assert counted[parity] == [(fill // stages + shift) % 2 for fill in range(12)]


def test_power_of_two_stages_need_no_counter():
    """With four stages the stage is a remainder, which costs one instruction; the parity is that of the phase."""
    waits = re.findall(WAITED, body_of(product(stages=4)(FLOAT16_SPEC).program(TARGET).cuda))
    assert [name for name, *_ in waits] == ["k_ring_full", "k_ring_empty"]
    for (_, _, parity), shift in zip(waits, (0, 1), strict=True):
        for fill in range(5):
            assert eval(parity.replace("/", "//"), {"k": fill}) % 2 == (fill // 4 + shift) % 2


@pytest.mark.parametrize("strategy", [product(), product(producer=128), product((64, 64, 64), (64, 64), 3, blocks=2)], ids=str)
def test_named_barrier_numbers_are_constants(strategy):
    """A barrier number in a register reserves all 16 barriers of a block, also those of the other role. All numbers are constants here."""
    text = strategy(FLOAT16_SPEC).program(TARGET).cuda
    assert text.count("__syncthreads();") == 1, "before the roles branch"
    for line in re.findall(r"bar\.sync[^;]*;[^;]*;", text):
        assert re.match(r"bar\.sync \d+, \d+;", line), line


@pytest.mark.parametrize("late", [0, 1, 2])
@pytest.mark.parametrize("blocks", [0, 2])
@pytest.mark.parametrize("stages", [3, 4])
def test_stage_indices_are_named_variables(stages, late, blocks):
    """Stages of this iteration and of earlier ones, counted through the tiles of a block."""
    text = product((64, 64, 64), (64, 64), stages, blocks=blocks, mma_in_flight=late)(float16_gemm(256, 64, 320)).program(TARGET).cuda
    declared = re.findall(r"int (\w*stage[^=]*) = (?!0; )", text)
    assert declared and all(one.isidentifier() for one in declared), declared
    if stages == 3:
        # The stage that is released was used `late` iterations earlier.
        (released,) = re.findall(r"^ +mbarrier_arrive\(k_ring_empty \+ (\w+) \* 8\);$", text, re.M)
        assert counter_values(body_of(text), 9)[released] == [(iteration - late) % 3 for iteration in range(9)]


def test_full_phases_per_tile_need_no_first_fill():
    """Eight iterations per tile use each of four stages twice, so each tile starts at stage 0, like the first."""
    text = product((64, 64, 64), (64, 64), 4, blocks=2, mma_in_flight=0)(float16_gemm(256, 64, 512)).program(TARGET).cuda
    assert "first_fill" not in text and "mbarrier_wait(k_ring_full + k_stage * 8, k / num_stages)" in text, "0 or 1"


def test_as_many_stages_as_iterations_need_no_counter():
    """Each iteration has its own stage, so no counter is needed, not even across tiles."""
    body = body_of(product((64, 64, 64), (64, 64), 3, blocks=2, mma_in_flight=0)(float16_gemm(512, 64, 192)).program(TARGET).cuda)
    waits = re.findall(WAITED, body)
    assert [name for name, *_ in waits] == ["k_ring_full", "k_ring_empty"] and "_phase" not in body[body.index("// consumers") :]
    for (_, _, parity), shift in zip(waits, (0, 1), strict=True):
        for tile in range(4):
            values = {"k": 2} | dict.fromkeys(re.findall(r"iteration_first_fill\d*", parity), tile % 2 * 3)
            assert eval(parity.replace("/", "//"), values) % 2 == (tile + shift) % 2


def test_two_loops_of_a_ring_count_separately():
    """If a tile has other iterations than those of the loop, the counter restarts in each tile and does not continue."""
    k = making.loop(Var("k", 0, 4), as_expr(5), ())
    around = making.loop(Var("turn", 0, 1), as_expr(2), (k,))
    assert continues_count(k, around.var * 5 + k.var, around)
    assert not continues_count(k, around.var * 9 + k.var, around) and not continues_count(k, k.var, around)
    assert not continues_count(k, around.var * 5 + k.var, attrs.evolve(around, step=2)), "warpgroups alternate the tiles"
    assert not continues_count(k, around.var * 5 + k.var, attrs.evolve(around, body=())), "in another loop"
    late = attrs.evolve(k, first=1)
    assert not continues_count(late, around.var * 5 + k.var, attrs.evolve(around, body=(late,))), (
        "a loop that starts after its first iteration"
    )


def test_one_elected_thread_issues_tma():
    text = body_of(TEXT)
    assert re.search(r"// producer\n +else if \(threadIdx\.x == 256\) \{", text), text[-900:]
    assert "__launch_bounds__(288)" in text
    wide = body_of(product(producer=128)(FLOAT16_SPEC).program(TARGET).cuda)
    assert re.search(r"else \{\n +setmaxnreg_dec_40\(\);\n +if \(threadIdx\.x == 256\) \{", wide), wide[-900:]


def test_tiles_are_distributed_over_consumers_only():
    """The producer warp gets no tiles of the thread-level decomposition."""
    kernel = product()(FLOAT16_SPEC).program(TARGET).ir
    assert (kernel.workers, kernel.threads, kernel.thread.high) == (256, 288, 255)


# ---------------------------------------------------------------------------------------------- verification of roles


def test_block_barrier_inside_a_role_is_refused():
    kernel = product()(FLOAT16_SPEC).program(TARGET).ir
    with pytest.raises(VerificationError, match="a block barrier in role consumers, which other roles never reach"):
        ir.verify(with_changed(kernel, lambda one: isinstance(one, ir.Barrier), 0, lambda one: (attrs.evolve(one, scope=ir.BLOCK_SCOPE),)))


def test_roles_must_cover_all_threads():
    kernel = product()(FLOAT16_SPEC).program(TARGET).ir
    consumers, producer = roles_of(kernel)
    for roles, text in (
        ((consumers,), "the roles have 256 threads, the block 288"),
        ((consumers, attrs.evolve(producer, first=300)), "role producer begins at thread 300, but the previous role ends at 256"),
    ):
        with pytest.raises(VerificationError, match=text):
            ir.verify(attrs.evolve(kernel, body=(*kernel.body[:-1], making.roles(roles))))
    with pytest.raises(VerificationError, match="unknown ring nobodys"):
        ir.verify(with_changed(kernel, lambda one: isinstance(one, ir.Acquire), 0, lambda one: (attrs.evolve(one, ring="nobodys"),)))


def test_maximum_mma_in_flight():
    """At most stages - 1 groups are in flight; the producer waits for the oldest one."""
    kernel = product(stages=4, mma_in_flight=3)(FLOAT16_SPEC).program(TARGET).ir
    assert errors(kernel) == []
    arrays, expected = inputs_of(FLOAT16_SPEC)
    assert [outcome(kernel, arrays, expected, order) for order in (None, 1, 2)] == ["right"] * 3


# ---------------------------------------------------------------------------------------------- fills of one hand-made statement list

ITERATION = Var("k", 0, 99)


def touching(buffer, copy=0):
    """A statement that reads a stage of a buffer into registers."""
    read = attrs.evolve(access(buffer, (0, 0)), copy=as_expr(copy))
    return execution(MOVE, Move(1, 1)(SH, RF)(Thread), read, access("x", (0, 0), write=True))


def loading(ring, fill_index):
    """A load of one fill of a ring."""
    return attrs.evolve(touching("s"), ring=ring, fill_index=as_expr(fill_index), mechanism=TMA_LOADS)


def ring_uses(body, *fills, per_buffer=("r", "q")):
    """Two rings of two stages with the given uses (ring, fill index, position), as an abbreviated statement list."""
    rings = {"r": making.ring("r", 2, ("s",)), "q": making.ring("q", 2, ("t",))}
    part = Part("consumers", 32, lambda one: True)
    partition = Partition(kernel_of(Move(1, 1)(GL, GL), ()), (part,))
    consumers = Writer(partition, part, rings, frozenset(per_buffer), frozenset(rings), {}, {})
    uses, insertions = {Fill(ring, as_expr(fill_index)): place for ring, fill_index, place in fills}, FillOperations()
    for fill, place in uses.items():
        consumers._use(fill, place, body, uses, insertions)
    statements = insertions.put(body)
    return [
        f"{stmt.ring}{stmt.fill_index} {stmt.state.value}" if isinstance(stmt, (ir.Acquire, ir.Release)) else "note" if isinstance(stmt, ir.Comment) else "."
        for stmt in statements
    ]  # fmt: skip


def test_fill_is_released_before_the_next_fill_of_its_stage():
    body = [touching("s")] * 6
    assert ring_uses(body, ("r", 0, 0), ("r", 2, 2), ("r", 4, 4)) == [
        "r0 full", ".", ".", "r0 empty", "r2 full", ".", ".", "r2 empty", "r4 full", ".", ".", "r4 empty",
    ]  # fmt: skip
    other = [touching("s"), touching("s", 1), touching("s"), touching("s", 1)]
    assert ring_uses(other, ("r", 0, 0), ("r", 1, 1)) == ["r0 full", ".", "r1 full", ".", ".", "r0 empty", ".", "r1 empty"]


def test_fills_of_other_rings_release_nothing():
    body = [touching("s"), touching("t"), touching("s"), touching("t")]
    assert ring_uses(body, ("r", 0, 0), ("q", 0, 1)) == ["r0 full", ".", "q0 full", ".", ".", "r0 empty", ".", "q0 empty"]


def test_unused_fill_is_released_at_the_next_fill_or_at_the_end():
    assert ring_uses([touching("x")], ("r", 0, 0)) == [".", "r0 full", "r0 empty"]
    assert ring_uses([touching("x"), touching("s")], ("r", 0, 0), ("r", 2, 1)) == [".", "r0 full", "r2 full", ".", "r0 empty", "r2 empty"]
    assert ring_uses([making.comment("about the use"), touching("s")], ("r", 0, 0)) == ["r0 full", "note", ".", "r0 empty"]


def test_is_condition_accepts_loops_of_at_most_one_iteration():
    assert [
        is_condition(making.loop(ITERATION, Var("n", low, high), ())) for low, high in ((0, 1), (0, 2), (1, 1), (0, 0), (-1, 1))
    ] == [True, False, False, True, True]  # fmt: skip
    assert not is_condition(touching("s"))


def test_fill_is_bound_in_the_list_of_its_loop():
    fill = Fill("r", as_expr(ITERATION))
    fill_loop, other = making.loop(ITERATION, as_expr(8), ()), making.loop(Var("j", 0, 8), as_expr(8), ())
    condition = making.loop(Var("c", 0, 0), Var("n", 0, 1), (loading("q", 0), loading("r", ITERATION)))
    load = loading("r", ITERATION)
    assert fill.is_bound_in(load, fill_loop) and fill.is_bound_in(load, None) and not fill.is_bound_in(load, other)
    assert fill.is_bound_in(load, condition), "a condition belongs to the list around it"
    assert not fill.is_bound_in(condition, fill_loop), "it contains loads of the fill, so the inner list binds it"
    rest = attrs.evolve(condition, body=(loading("q", 0),))
    assert fill.is_bound_in(rest, fill_loop), "none are"
    assert not fill.is_bound_in(attrs.evolve(fill_loop, body=(load,)), None), "a loop inside moves its number"
    prior = Var("taken", 0, 99)
    assert Fill("r", as_expr(prior)).is_bound_in(load, attrs.evolve(other, prior_iterations=prior))
    assert not Fill("r", as_expr(prior)).is_bound_in(attrs.evolve(other, prior_iterations=prior, body=(load,)), fill_loop)


def test_producer_keeps_fewer_registers_if_consumers_need_them():
    """384 threads get 152 registers each if the producer keeps 40, and 160 each if it keeps 32."""

    def kept(elements, threads=384, copies=1, **fields):
        kernel = kernel_of(MatMul(64, 64, 64)(GL, GL, GL), (), local("x", (elements, 1), RF, copies=copies), threads=threads)
        return _kept(attrs.evolve(kernel, **fields), 128)

    assert [kept(elements) for elements in (152 - SPARE, 153 - SPARE)] == [KEPT, KEPT_AT_LEAST]
    assert [kept(elements, copies=2) for elements in ((152 - SPARE) // 2, (154 - SPARE) // 2)] == [KEPT, KEPT_AT_LEAST]
    assert kept(255, threads=256) == KEPT, "both get 232"
    assert kept(255, threads=96) == KEPT, "no warpgroups"
    assert kept(255, cluster=making.block_cluster((2,), (Var("c", 0, 1),))) == KEPT_IN_CLUSTER
