"""Roles as a partition of statements, and arrivals deferred until copies complete: copying producers with and without TMA, several
producers, their faults, which both detectors find, and the text executed on a CPU.
"""

import functools
import random

import attrs
import making
import numpy as np
import pytest
from engines import COLUMNS, LANE, ROWS, STAGES, copied, numbered, streamed
from handmade import access
from printed_text import COMPILER, HostProgram, Printed, Refused
from ringed import TARGET, all_of_kind, early_releases, errors, float16_gemm, in_roles, inputs_of, outcome, product, roles_of
from test_hopper_attention import chain as keys_and_values
from test_hopper_attention import require_right as require_attention
from toys.counted_store import COUNTED_STORE
from toys.counted_stores import COUNTED_STORES

from fireiron import *
from fireiron import cuda, ir
from fireiron.executable.cp_async import CP_ASYNC
from fireiron.gpu import toolchain
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.ir import AT_ONCE
from fireiron.ir.asks.producer_threads import ProducerThreads
from fireiron.ir.mechanisms.cp_async import CP_ASYNC_GROUPS
from fireiron.ir.mechanisms.tma import TMA_LOADS
from fireiron.ir.mechanisms.wgmma import WGMMA_GROUPS
from fireiron.language.store import dumps, loads
from fireiron.lower.roles import Part, Partition
from fireiron.strategies import attention
from fireiron.values.expr import Var, less

TMA = Move.done()
COPIES = Move.coalesced_copy(8).done()
ELEMENTS = Move.coalesced_copy(1).done()
"""Copies of 2 bytes, which cp.async does not support."""

FLOAT16 = float16_gemm(128, 64, 320)


def fed(a, b, tiles=(128, 64, 64), stages=3, threads=32, blocks=0):
    """A wgmma GEMM whose tiles of A and B are loaded in a given way, with a producer that may copy."""
    bm, bn, bk = tiles
    chain = MatMul.tile(bm, bn).to(Block)
    chain = chain.persistent(blocks) if blocks else chain
    chain = chain.epilog(RF, float32, Init.done(), Move.done()).split(bk).pipeline(stages).warp_specialize(threads, copies=True)
    return chain.load(A, SH, a).load(B, SH, b).tile(64, 64).to(Warpgroup).done()


def warps_fed():
    """Warps with mma.sync, from tiles that a producer copies: threads read the stages, not an asynchronous engine."""
    store = Move.tile(32, 32).to(Warp).done()
    chain = MatMul.tile(64, 64).to(Block).epilog(RF, float32, Init.tile(32, 32).to(Warp).done(), store)
    chain = chain.split(32).pipeline(3).warp_specialize(copies=True).load(A, SH, COPIES).load(B, SH, COPIES)
    chain = chain.tile(32, 32).to(Warp).split(16).unroll().load(A, RF, Move.done()).load(B, RF, Move.done())
    return chain.tile(16, 16).unroll().mma_tile().done()


# For each kernel: strategy, problem, roles with their threads, and the arrivals and bytes that fill a stage.
KERNELS = {
    "A by TMA, B copied": (fed(TMA, COPIES), FLOAT16, (256, 32, 32), 33, 128 * 64 * 2),
    "A copied, B by TMA": (fed(COPIES, TMA, stages=2), FLOAT16, (256, 32, 32), 33, 64 * 64 * 2),
    "all copied": (fed(COPIES, COPIES), FLOAT16, (256, 32), 32, 0),
    "all copied by a warpgroup": (fed(COPIES, COPIES, threads=128), FLOAT16, (256, 128), 128, 0),
    "rows of 8 bytes": (fed(TMA, TMA), float16_gemm(128, 60, 320), (256, 32, 32), 33, 128 * 64 * 2),
    "rows of odd length": (fed(TMA, ELEMENTS, stages=2), float16_gemm(128, 63, 192), (256, 32, 32), 33, 128 * 64 * 2),
    "cp.async and elements": (fed(COPIES, ELEMENTS, stages=2), FLOAT16, (256, 32), 64, 0),
    "ragged": (fed(TMA, COPIES), float16_gemm(200, 72, 136), (256, 32, 32), 33, 128 * 64 * 2),
    "persistent": (fed(TMA, COPIES, (64, 64, 64), blocks=2), float16_gemm(128, 128, 192), (128, 32, 32), 33, 64 * 64 * 2),
    "read by warps": (warps_fed(), float16_gemm(128, 64, 160, c_dtype=float32), (128, 32), 32, 0),
}


@functools.cache
def program(name):
    return KERNELS[name][0](KERNELS[name][1]).program(TARGET)


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_are_right(name):
    _, spec, threads, arrivals, size = KERNELS[name]
    kernel = program(name).ir
    assert tuple(role.threads for role in roles_of(kernel)) == threads and kernel.threads == sum(threads)
    assert [(ring.producers, ring.bytes) for ring in kernel.rings] == [(arrivals, size)]
    assert errors(kernel) == []
    arrays, expected = inputs_of(spec)
    assert [outcome(kernel, arrays, expected, order) for order in (None, 1, 2)] == ["right"] * 3


@pytest.mark.parametrize("name", KERNELS)
def test_texts_compile(name):
    if toolchain.serving(TARGET, None) is not None:
        assert toolchain.compile_cuda(program(name).cuda, TARGET).cubin


def test_sizes_known_at_run_time():
    spec = float16_gemm(sym("M"), sym("N", multiple_of=4), sym("K", multiple_of=8))
    kernel = fed(TMA, COPIES)(spec).program(TARGET).ir
    for sizes in ({"M": 131, "N": 68, "K": 200}, {"M": 1, "N": 4, "K": 8}):
        arrays, expected = inputs_of(spec, sizes)
        assert errors(kernel) == [] and outcome(kernel, arrays, expected, 1, sizes) == "right"


def test_without_copies_all_threads_load():
    """Either a TMA producer fills the ring, or there is no producer."""
    plain = MatMul.tile(128, 64).to(Block).epilog(RF, float32, Init.done(), Move.done()).split(64).pipeline(3).warp_specialize()
    assert plain.load(A, SH, TMA).load(B, SH, COPIES).tile(64, 64).to(Warpgroup).done()(FLOAT16).program(TARGET).ir.rings == ()


def test_copies_change_nothing_where_tma_loads_all():
    with_copies, without = (fed(TMA, TMA)(FLOAT16).program(TARGET), product(stages=3, tma=False)(FLOAT16).program(TARGET))
    assert with_copies.ir.body == without.ir.body and with_copies.ir.rings == without.ir.rings


# ---------------------------------------------------------------------------------------------- text


def test_text_of_a_deferred_arrival():
    text = program("A by TMA, B copied").cuda
    assert "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" in text, "each thread arrives for itself, and the barrier counts it"
    assert "mbarrier_init(k_ring_full + stage * 8, 33);" in text
    lines = [line.strip() for line in text.splitlines()]
    wait = next(number for number, line in enumerate(lines) if line.startswith("mbarrier_wait(k_ring_full"))
    assert lines[wait + 1] == "fence_proxy_async();  // make b_sh, copied by threads, visible to the async proxy"
    assert "cp.async.wait_group" not in text and "cp.async.commit_group" not in text, "no thread waits for its copies"
    arrival = next(number for number, line in enumerate(lines) if line.startswith("cp_async_mbarrier_arrive(k_ring_full"))
    assert not any(line.startswith("cp_async_16") for line in lines[arrival:])


def test_text_of_elements():
    """Threads with ordinary stores execute the proxy fence themselves, before an ordinary arrival."""
    lines = [line.strip() for line in program("rows of odd length").cuda.splitlines()]
    arrival = next(number for number, line in enumerate(lines) if line.startswith("mbarrier_arrive(k_ring_full"))
    assert lines[arrival - 1].startswith("fence_proxy_async();  // make b_sh visible")
    wait = next(number for number, line in enumerate(lines) if line.startswith("mbarrier_wait(k_ring_full"))
    assert not lines[wait + 1].startswith("fence_proxy_async"), "consumers have nothing to fence"
    assert "fence_proxy_async" not in program("read by warps").cuda, "no engine reads the stages"


def test_names_of_roles():
    text = program("A by TMA, B copied").cuda
    assert [text.count(f"  // {name}\n") for name in ("consumers", "copying producer", "producer")] == [1, 1, 1]


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++ or clang++) on the path")
@pytest.mark.parametrize("name", ["A by TMA, B copied", "rows of odd length", "cp.async and elements", "persistent"])
def test_texts_on_a_cpu(name, tmp_path):
    arrays, expected = inputs_of(KERNELS[name][1])
    host = HostProgram([Printed.of(program(name))], tmp_path)
    assert all(np.array_equal(host.run(0, arrays, {}, seed)["C"], expected) for seed in range(4))


TEXT_FAULTS = {
    "not deferred": ("A by TMA, B copied", r"cp_async_mbarrier_arrive\((k_ring)", r"mbarrier_arrive(\1"),
    "no fence": ("A by TMA, B copied", r" +fence_proxy_async\(\);  // make b_sh.*\n", ""),
    "no fence of elements": ("rows of odd length", r" +fence_proxy_async\(\);  // make b_sh.*\n", ""),
    "an arrival less": ("A by TMA, B copied", r"8, 33\)", "8, 32)"),
    "an arrival more": ("A by TMA, B copied", r"8, 33\)", "8, 34)"),
}


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++ or clang++) on the path")
@pytest.mark.parametrize("fault", TEXT_FAULTS)
def test_faults_of_texts_are_found(fault, tmp_path):
    name, pattern, replacement = TEXT_FAULTS[fault]
    arrays, expected = inputs_of(KERNELS[name][1])
    host = HostProgram([Printed.of(program(name)).changed(pattern, replacement)], tmp_path)
    with pytest.raises((Refused, RuntimeError, AssertionError)):
        for seed in range(4):
            np.testing.assert_array_equal(host.run(0, arrays, {}, seed)["C"], expected)


# ---------------------------------------------------------------------------------------------- injected faults


def is_arrival(stmt):
    """Whether it is an arrival of copying threads."""
    return isinstance(stmt, ir.Release) and stmt.by is not None


def is_proxy_fence(stmt):
    return isinstance(stmt, ir.Fence) and stmt.kind is ir.FenceKind.ASYNC_PROXY


def edited(kernel, edit):
    return attrs.evolve(kernel, body=ir.rewritten(kernel.body, edit))


def arrivals_as(**fields):
    return lambda kernel: edited(kernel, lambda one: (attrs.evolve(one, **fields),) if is_arrival(one) else (one,))


def without(is_meant):
    return lambda kernel: edited(kernel, lambda one: () if is_meant(one) else (one,))


def counting(change):
    return lambda kernel: attrs.evolve(kernel, rings=tuple(attrs.evolve(one, producers=one.producers + change) for one in kernel.rings))


def moved(is_meant, is_anchor):
    """The selected statement directly after the first one of the list that satisfies `is_anchor`."""

    def edit(stmt):
        if not isinstance(stmt, ir.For) or not any(map(is_meant, stmt.body)) or not any(map(is_anchor, stmt.body)):
            return (stmt,)
        rest = [part for part in stmt.body if not is_meant(part)]
        place = next(number for number, part in enumerate(rest) if is_anchor(part))
        return (attrs.evolve(stmt, body=(*rest[: place + 1], *filter(is_meant, stmt.body), *rest[place + 1 :])),)

    return lambda kernel: edited(kernel, edit)


def fence_before_wait(kernel):
    """The consumers' fence before the wait for the stage."""

    def edit(stmt):
        if not isinstance(stmt, ir.For) or not any(map(is_proxy_fence, stmt.body)):
            return (stmt,)
        return (attrs.evolve(stmt, body=(*filter(is_proxy_fence, stmt.body), *(part for part in stmt.body if not is_proxy_fence(part)))),)

    return edited(kernel, edit)


def in_copiers(is_meant):
    """Without some statements of the copying role."""

    def parted(stmt):
        if not isinstance(stmt, ir.Roles):
            return (stmt,)
        drop = lambda part: () if is_meant(part) else (part,)
        roles = (attrs.evolve(role, body=ir.rewritten(role.body, drop)) if role.name == "copying producer" else role for role in stmt.roles)
        return (making.roles(tuple(roles)),)

    return lambda kernel: attrs.evolve(kernel, body=tuple(part for one in kernel.body for part in parted(one)))


FAULTS = {
    "arrival not deferred": arrivals_as(by=AT_ONCE),
    "arrival that announces bytes": arrivals_as(by=None),
    "arrival of half the lanes": arrivals_as(active=less(Var("thread", 0, 319), 272)),
    "arrival at the next fill": lambda kernel: edited(
        kernel, lambda one: (attrs.evolve(one, fill_index=one.fill_index + 1),) if is_arrival(one) else (one,)
    ),
    "arrival before the copies": moved(is_arrival, lambda one: isinstance(one, ir.Acquire)),
    "no arrival": without(is_arrival),
    "two arrivals": lambda kernel: edited(kernel, lambda one: (one, one) if is_arrival(one) else (one,)),
    "a count of one less": counting(-1),
    "a count of one more": counting(1),
    "a count of one": lambda kernel: attrs.evolve(kernel, rings=tuple(attrs.evolve(one, producers=1) for one in kernel.rings)),
    "no fence": without(is_proxy_fence),
    "fence before the wait": fence_before_wait,
    "no wait for empty stages": in_copiers(lambda one: isinstance(one, ir.Acquire)),
}


@pytest.mark.parametrize("name", ["A by TMA, B copied", "all copied"])
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found_by_both(name, fault):
    kernel = program(name).ir
    wrong = FAULTS[fault](kernel)
    assert wrong != kernel and errors(wrong)
    arrays, expected = inputs_of(FLOAT16)
    outcomes = [outcome(wrong, arrays, expected, order) for order in (None, 1, 2)]
    assert not {"right", "wrong"} & {*outcomes}, outcomes


FINDINGS = {
    "arrival not deferred": ("while the asynchronous copy is in flight", "b_sh: stage 0 is read while a copy to it is in flight"),
    "a count of one less": ("in flight", "fill 0 becomes full before all threads have arrived"),
    "no fence": ("no fence.proxy.async is between", "b_sh: stage 0 is read through the async proxy"),
}


@pytest.mark.parametrize("fault", FINDINGS)
def test_findings_of_faults(fault):
    wrong = FAULTS[fault](program("A by TMA, B copied").ir)
    static, simulated = FINDINGS[fault]
    assert any(static in one for one in errors(wrong))
    assert simulated in outcome(wrong, *inputs_of(FLOAT16))


@pytest.mark.parametrize("fault", ["arrival before the copies", "no fence", "a count of one less", "no arrival"])
def test_faults_of_elements_are_found_by_both(fault):
    wrong = FAULTS[fault](program("rows of odd length").ir)
    arrays, expected = inputs_of(KERNELS["rows of odd length"][1])
    assert errors(wrong) and outcome(wrong, arrays, expected, 1) not in ("right", "wrong")


def test_a_fence_of_elements_after_their_arrival_is_found_by_both():
    wrong = moved(is_proxy_fence, is_arrival)(program("rows of odd length").ir)
    arrays, expected = inputs_of(KERNELS["rows of odd length"][1])
    assert any("no fence.proxy.async is between" in one for one in errors(wrong))
    assert "is read through the async proxy" in outcome(wrong, arrays, expected, 1)


# ---------------------------------------------------------------------------------------------- several producers


def fills(name):
    return lambda one: bool(one.ring) and one.accesses[1].buffer == name


def by_two(elected):
    """One producer for A and one for B, each a warp."""

    def divide(kernel, producers):
        others = (Part(f"producer of {name}", 32, fills(f"{name.lower()}_sh"), elected=elected) for name in "AB")
        return Partition(kernel, (Part("consumers", kernel.workers, lambda one: True), *others))

    return divide


# With the arrivals and the bytes that fill a stage, and the bytes that each arrival expects.
TWO = {
    "TMA": (product(stages=3, tma=False), True, 2, (128 + 64) * 64 * 2, [128 * 64 * 2, 64 * 64 * 2]),
    "copies": (fed(COPIES, COPIES), False, 64, 0, [None, None]),
}


@pytest.mark.parametrize("name", TWO)
def test_two_producers_fill_one_ring(name):
    strategy, elected, arrivals, size, parts = TWO[name]
    kernel = in_roles(strategy, FLOAT16, by_two(elected))
    (ring,) = kernel.rings
    assert (ring.buffers, ring.producers, ring.bytes, ring.consumers) == (("a_sh", "b_sh"), arrivals, size, 8)
    assert [role.name for role in roles_of(kernel)] == ["consumers", "producer of A", "producer of B"]
    assert [one.part for one in all_of_kind(kernel, ir.Release) if one.state is ir.StageState.FULL] == parts
    assert errors(kernel) == []
    arrays, expected = inputs_of(FLOAT16)
    assert [outcome(kernel, arrays, expected, order) for order in (None, 1, 2, 3)] == ["right"] * 4
    text = cuda.emit(kernel)
    if toolchain.serving(TARGET, None) is not None:
        assert toolchain.compile_cuda(text, TARGET).cubin


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++ or clang++) on the path")
@pytest.mark.parametrize("name", TWO)
def test_texts_of_two_producers_on_a_cpu(name, tmp_path):
    strategy, elected, *_ = TWO[name]
    kernel = in_roles(strategy, FLOAT16, by_two(elected))
    arrays, expected = inputs_of(FLOAT16)
    host = HostProgram([Printed(cuda.emit(kernel), kernel)], tmp_path)
    assert all(np.array_equal(host.run(0, arrays, {}, seed)["C"], expected) for seed in range(3))


@pytest.mark.parametrize("name", TWO)
@pytest.mark.parametrize("kind", [ir.Acquire, ir.Release])
@pytest.mark.parametrize("role", [1, 2])
def test_faults_of_two_producers_are_found_by_both(name, kind, role):
    strategy, elected, *_ = TWO[name]
    kernel = in_roles(strategy, FLOAT16, by_two(elected))
    roles = list(roles_of(kernel))
    drop = lambda one: () if isinstance(one, kind) else (one,)
    roles[role] = attrs.evolve(roles[role], body=ir.rewritten(roles[role].body, drop))
    wrong = attrs.evolve(kernel, body=tuple(making.roles(tuple(roles)) if isinstance(one, ir.Roles) else one for one in kernel.body))
    assert errors(wrong)
    arrays, expected = inputs_of(FLOAT16)
    assert outcome(wrong, arrays, expected, 1) not in ("right", "wrong")


@pytest.mark.parametrize("change", [-128, 128])
def test_bytes_of_one_producer_are_found_by_both(change):
    kernel = in_roles(TWO["TMA"][0], FLOAT16, by_two(True))
    wrong = edited(kernel, lambda one: (attrs.evolve(one, part=one.part + change),) if isinstance(one, ir.Release) and one.part else (one,))
    arrays, expected = inputs_of(FLOAT16)
    assert errors(wrong) and outcome(wrong, arrays, expected, 1) not in ("right", "wrong")


# ---------------------------------------------------------------------------------------------- operands with a separate producer


def separated(a, b, separate, threads=32, copies=True, stages=3, own=None, blocks=0, before=None):
    """A GEMM in which loads of some operands have a separate producer."""
    chain = MatMul.tile(128, 64).to(Block)
    chain = chain.persistent(blocks) if blocks else chain
    chain = chain if before is None else chain.programmatic_launch(before)
    chain = chain.epilog(RF, float32, Init.done(), Move.done()).split(64).pipeline(stages)
    chain = chain.warp_specialize(threads, copies=copies, separate=separate).load(A, SH, a).load(B, SH, b)
    return (chain if own is None else chain.stages(own)).tile(64, 64).to(Warpgroup).done()


# For each kernel: strategy, and the names and threads of its producers.
SEPARATED = {
    "B, by TMA": (separated(TMA, TMA, B, copies=False), [("producer", 32), ("producer of B", 32)]),
    "both, by TMA": (separated(TMA, TMA, (A, B), copies=False), [("producer of A", 32), ("producer of B", 32)]),
    "B, copied": (separated(COPIES, COPIES, B), [("copying producer", 32), ("copying producer of B", 32)]),
    "both, copied": (
        separated(COPIES, COPIES, (A, B), threads=128),
        [("copying producer of A", 128), ("copying producer of B", 128)],
    ),
    "B copied, A by TMA": (separated(TMA, COPIES, B), [("copying producer of B", 32), ("producer", 32)]),
    "rings of their own": (separated(TMA, TMA, B, copies=False, own=2), [("producer", 32), ("producer of B", 32)]),
    "persistent": (separated(TMA, TMA, B, copies=False, blocks=2), [("producer", 32), ("producer of B", 32)]),
    "B is ready": (separated(TMA, TMA, B, copies=False, before=B), [("producer", 32), ("producer of B", 32)]),
}


@pytest.mark.parametrize("name", SEPARATED)
def test_operands_with_a_separate_producer(name):
    strategy, producers = SEPARATED[name]
    spec = float16_gemm(256, 64, 320)
    program = strategy(spec).program(TARGET)
    assert [(role.name, role.threads) for role in roles_of(program.ir)] == [("consumers", 256), *producers]
    assert errors(program.ir) == []
    arrays, expected = inputs_of(spec)
    assert [outcome(program.ir, arrays, expected, order) for order in (None, 1, 2)] == ["right"] * 3
    assert all(f"  // {producer}\n" in program.cuda for producer, _ in producers)
    if toolchain.serving(TARGET, None) is not None:
        assert toolchain.compile_cuda(program.cuda, TARGET).cubin


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++ or clang++) on the path")
@pytest.mark.parametrize("name", ["B, by TMA", "B, copied"])
def test_texts_of_separate_producers_on_a_cpu(name, tmp_path):
    arrays, expected = inputs_of(FLOAT16)
    host = HostProgram([Printed.of(SEPARATED[name][0](FLOAT16).program(TARGET))], tmp_path)
    assert all(np.array_equal(host.run(0, arrays, {}, seed)["C"], expected) for seed in range(3))


@pytest.mark.parametrize("name", ["B, by TMA", "B copied, A by TMA"])
@pytest.mark.parametrize("kind", [ir.Acquire, ir.Release])
@pytest.mark.parametrize("role", [1, 2])
def test_faults_of_separate_producers_are_found_by_both(name, kind, role):
    kernel = SEPARATED[name][0](FLOAT16).program(TARGET).ir
    roles = list(roles_of(kernel))
    roles[role] = attrs.evolve(roles[role], body=ir.rewritten(roles[role].body, lambda one: () if isinstance(one, kind) else (one,)))
    wrong = attrs.evolve(kernel, body=tuple(making.roles(tuple(roles)) if isinstance(one, ir.Roles) else one for one in kernel.body))
    arrays, expected = inputs_of(FLOAT16)
    assert errors(wrong) and outcome(wrong, arrays, expected, 1) not in ("right", "wrong")


def test_keys_and_values_have_a_producer_each():
    """In attention they are used and released at different times."""
    strategy = keys_and_values(attention.definition())
    separate = strategy.at(Split).refine(WarpSpecialize(32, False, ("K", "V")))
    kernel = separate(attention.spec(64, 160, 64, fused=attention.definition())).program(TARGET)
    assert [role.name for role in roles_of(kernel.ir)] == ["consumers", "producer", "producer of K", "producer of V"]
    require_attention(kernel, orders=(None, 1))


def test_separate_is_written_and_read():
    chain = MatMul.tile(64, 64).to(Block).epilog(RF, float32).split(64).pipeline(3)
    assert str(chain.warp_specialize(copies=True, separate=(A, B))).endswith("warp_specialize(copies=True, separate=(A, B))")
    assert str(chain.warp_specialize(separate="B")).endswith("warp_specialize(separate=B)")
    strategy = SEPARATED["both, by TMA"][0]
    assert eval(repr(strategy)) == strategy and loads(dumps(strategy)) == strategy
    program = strategy(FLOAT16).program(TARGET)
    assert parse_kernel(graphene_text(program)).cuda == program.cuda
    ask = ProducerThreads(32, True, ("A", "B"))
    assert ProducerThreads.read(ask.written(str), lambda text: None) == ask


SEPARATE_REFUSED = {
    "an output": (lambda: separated(TMA, TMA, C, copies=False), "C is not an input"),
    "an operand twice": (lambda: separated(TMA, TMA, (A, A), copies=False), "`separate` must name each operand once"),
    "warpgroups of TMA": (lambda: separated(TMA, TMA, B, 128, copies=False), "each of several producers that load by TMA is a warp"),
    "what no producer loads": (
        lambda: MatMul.tile(64, 64).to(Block).epilog(RF, float32).load(B, SH, Move.coalesced_copy(8).done()).split(64).pipeline(3)
        .warp_specialize(separate=B).load(A, SH, TMA).tile(64, 64).to(Warpgroup).done(),
        "no producer loads",
    ),
    "a cluster": (
        lambda: MatMul.tile(64, 64).to(Block).cluster(2, 1).epilog(RF, float32, Init.done(), Move.done()).split(64).pipeline(3)
        .warp_specialize(separate=B).load(A, SH, TMA).load(B, SH, TMA).tile(64, 64).to(Warpgroup).done(),
        "several producers fill a ring, which is not supported in a cluster",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SEPARATE_REFUSED)
def test_what_is_refused_of_separate_producers(name):
    strategy, text = SEPARATE_REFUSED[name]
    with pytest.raises(FireironError, match=text):
        _ = strategy()(float16_gemm(128, 64, 192)).program(TARGET).ir


def test_a_role_that_fills_no_ring_is_refused():
    divide = lambda kernel, producers: Partition(
        kernel,
        (Part("consumers", kernel.workers, lambda one: True), Part("stores", 32, lambda one: one.accesses[-1].buffer == "C"), by_two(True)(kernel, 32).parts[1]),
    )  # fmt: skip
    with pytest.raises(DecompositionError, match="the role stores would perform .*, which fills no ring"):
        in_roles(product(stages=3, tma=False), FLOAT16, divide)


# ---------------------------------------------------------------------------------------------- refusals

CHAIN = MatMul.tile(64, 64).to(Block)
REFUSED = {
    "a cluster": (lambda: CHAIN.cluster(2, 1), "fills a ring with dedicated threads, which is not supported in a cluster"),
    "tiles from a counter": (
        lambda: CHAIN.persistent(2, True),
        "fills a ring with dedicated threads, which is not supported with dynamic tile scheduling",
    ),
    "groups in turns": (
        lambda: CHAIN.persistent(2).pingpong(2),
        "dedicated threads, which is not supported with ordered MMAs or alternating",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    chain, text = REFUSED[name]
    chain = chain().epilog(RF, float32, Init.done(), Move.done()).split(64).pipeline(3).warp_specialize(copies=True)
    strategy = chain.load(A, SH, TMA).load(B, SH, COPIES).tile(64, 64).to(Warpgroup).done()
    with pytest.raises(DecompositionError, match=text):
        _ = strategy(float16_gemm(256, 128, 192)).program(TARGET).ir


def test_threads_that_do_not_divide_those_of_consumers():
    chain = MatMul.tile(96, 32).to(Block).epilog(RF, float32, Init.tile(32, 32).to(Warp).done(), Move.tile(32, 32).to(Warp).done())
    chain = chain.split(32).pipeline(3).warp_specialize(128, copies=True).load(A, SH, COPIES).load(B, SH, COPIES)
    chain = chain.tile(32, 32).to(Warp).split(16).unroll().load(A, RF, Move.done()).load(B, RF, Move.done())
    with pytest.raises(DecompositionError, match="128 threads cannot perform copies that are distributed over 96 threads"):
        _ = chain.tile(16, 16).unroll().mma_tile().done()(float16_gemm(96, 32, 64, c_dtype=float32)).program(TARGET).ir


def test_copies_is_a_flag():
    chain = MatMul.tile(64, 64).to(Block).epilog(RF, float32).split(64).pipeline(3)
    with pytest.raises(DecompositionError, match="warp_specialize: copies must be True or False"):
        chain.warp_specialize(copies=1)
    assert "specialize(128, copies=True)" in str(chain.warp_specialize(128, copies=True))
    option = ProducerThreads(32, True)
    assert ProducerThreads.read(option.written(str), lambda text: None) == option and ProducerThreads.read(
        {"producer_threads": "32"}, None
    ) == ProducerThreads(32)


# ---------------------------------------------------------------------------------------------- by hand


def ringed(*copying, by=CP_ASYNC_GROUPS, **fields):
    """A role of a warp that copies into a ring of one stage and arrives by a mechanism."""
    arrival = making.release("ring", ir.StageState.FULL, making.as_expr(0), by=by, **fields)
    return making.role("copying", 0, 32, (*copying, arrival))


@pytest.mark.parametrize(
    ("role", "text"),
    [
        (ringed(by=TMA_LOADS), "by MBARRIER, which cannot defer arrivals"),
        (ringed(by=WGMMA_GROUPS), "by WGMMA_GROUP, which cannot defer arrivals"),
        (ringed(part=64), "by CP_ASYNC_GROUP with 64 bytes"),
        (ringed(making.commit(CP_ASYNC_GROUPS)), "role copying has both a commit of CP_ASYNC_GROUP and an arrival deferred by it"),
        (
            ringed(making.wait(0, mechanism=CP_ASYNC_GROUPS)),
            "role copying has both a wait of CP_ASYNC_GROUP and an arrival deferred by it",
        ),
    ],
)
def test_what_the_verifier_refuses(role, text):
    kernel = program("all copied").ir
    ring = attrs.evolve(kernel.rings[0], name="ring")
    wrong = attrs.evolve(kernel, rings=(*kernel.rings, ring), threads=32, workers=32, body=(making.roles((role,)),))
    with pytest.raises(VerificationError, match=text):
        ir.verify(wrong)


def test_copies_by_name_need_no_commit():
    """A deferred arrival covers all copies of its thread."""
    single = Move.tile(1, 8).to(Thread).done(CP_ASYNC[0])
    kernel = fed(TMA, single)(FLOAT16).program(TARGET).ir
    assert not all_of_kind(kernel, ir.Commit) or all(one.mechanism is WGMMA_GROUPS for one in all_of_kind(kernel, ir.Commit))
    arrays, expected = inputs_of(FLOAT16)
    assert errors(kernel) == [] and outcome(kernel, arrays, expected, 1) == "right"


# ---------------------------------------------------------------------------------------------- deferred arrivals that release EMPTY

TILES = 5
GIVEN = numbered((TILES * ROWS, COLUMNS))


def emptied_late(consumer=tuple, consumers=32):
    """A kernel whose consumers store each stage by TMA and release it by an arrival that is deferred until TMA has read it."""
    step = Var("k", 0, TILES - 1)
    shape = ROWS, COLUMNS
    accesses = attrs.evolve(access("tile", (0, 0), shape), copy=step % STAGES), access("dst", (step * ROWS, 0), shape, write=True)
    store = making.execution(
        COUNTED_STORE,
        Move(*shape, dtype=float16)(SH, GL)(Warp),
        accesses,
        mechanism=COUNTED_STORES,
        tensor_map=making.tensor_map("dst_map", "dst", (1, 0), (COLUMNS, ROWS), 128),
    )
    release = making.release("ring", ir.StageState.EMPTY, step, by=COUNTED_STORES)
    body = (making.acquire("ring", ir.StageState.FULL, step), store, release)
    return streamed(TILES, consumer=lambda _: consumer(body), consumers=consumers)


def test_a_deferred_arrival_releases_empty():
    kernel = emptied_late()
    assert ir.verify(kernel) is kernel and errors(kernel) == []
    for order in (None, *map(random.Random, range(3))):
        np.testing.assert_array_equal(copied(kernel, GIVEN, order), GIVEN)
    text = cuda.emit(kernel)
    assert "counted_store_arrive(ring_empty + k % 2 * 8);" in text and "mbarrier_init(ring_empty + stage * 8, 32);" in text
    assert "wait_group" not in text, "no thread waits for the stores"


def released(**fields):
    return lambda body: (*body[:2], attrs.evolve(body[2], **fields))


EMPTY_FAULTS = {
    "not deferred": (emptied_late(released(by=AT_ONCE)), "in flight", "released while counted stores that read it are in flight"),
    "an arrival of the thread alone": (
        emptied_late(released(by=None)),
        "in flight",
        "released while counted stores that read it are in flight",
    ),
    "before the store": (emptied_late(lambda body: (body[0], body[2], body[1])), "has not acquired it full", "has not acquired it full"),
    "of half the lanes": (
        emptied_late(released(active=less(LANE, 16)), consumers=16),
        "in flight",
        "released by 16 of 32 lanes while operations of all lanes",
    ),
    "at the next fill": (
        emptied_late(released(fill_index=Var("k", 0, TILES - 1) + 1)),
        "uses stage 1",
        "released by a group that has not acquired it",
    ),
    "none": (emptied_late(lambda body: body[:2]), "waits forever", "deadlock"),
    "two": (emptied_late(lambda body: (*body, body[2])), "the agent is at fill 1", "released by a group that has not acquired it"),
    "a count of one less": (emptied_late(consumers=31), "incomplete phase", "fill 0 becomes empty before all threads have arrived"),
    "a count of one more": (emptied_late(consumers=33), "waits forever", "deadlock"),
}
"""Kernels with a fault, what the check reports, and what the simulator reports."""


@pytest.mark.parametrize("fault", EMPTY_FAULTS)
def test_faults_of_deferred_arrivals_that_release_empty_are_found_by_both(fault):
    kernel, checked, simulated = EMPTY_FAULTS[fault]
    assert any(checked in one for one in errors(kernel))
    for order in (None, 0, 1):
        with pytest.raises(SimulationError, match=simulated):
            copied(kernel, GIVEN, None if order is None else random.Random(order))


# ---------------------------------------------------------------------------------------------- stages that are overwritten after they are read


@pytest.mark.parametrize("name", ["A by TMA, B copied", "all copied"])
def test_stages_are_released_after_the_wait_for_their_mmas(name):
    """No proxy fence is between an MMA and a later copy to its stage: the completed MMA brings one, so the wait for it comes first."""
    kernel = program(name).ir
    assert [one for one, _ in ir.execs(kernel.body) if one.mechanism is WGMMA_GROUPS]
    faults = dict(early_releases(kernel))
    assert faults
    arrays, expected = inputs_of(FLOAT16)
    for wrong in faults.values():
        assert errors(wrong) and outcome(wrong, arrays, expected, 1) not in ("right", "wrong")
