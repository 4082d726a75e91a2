"""Prefetched epilogue vectors: rings that are filled once, groups of copies, and clamping after the rounding."""

import random

import attrs
import making
import pytest
from printed_text import COMPILER, HostProgram, Printed
from problems import integers
from ringed import (
    ROWS_OF_128_BYTES,
    TARGET,
    by_all_lanes,
    dropped,
    errors,
    float16_gemm,
    later,
    outcome,
    product,
    stage_moved,
    with_changed,
    with_rings,
)

from fireiron import *
from fireiron import ir
from fireiron.inspect.synchronization import synchronization, text
from fireiron.ir.mechanisms.cp_async import CP_ASYNC_GROUPS
from fireiron.language.library import bind, find
from fireiron.lower.sink_relu import sink_relu
from fireiron.sim import simulate
from fireiron.values.expr import as_expr, constant

np = pytest.importorskip("numpy")

SCALED = "relu(acc * r[m] + bias[n])"


def arrays_of(spec, sizes=None):
    """Small integers, which all types represent."""
    generator = np.random.default_rng(11)
    shapes = {name: tuple(size.evaluate(sizes or {}) for size in spec.operands[name].shape) for name in spec.inputs}
    return {name: integers(shape, spec.operands[name].dtype, generator) for name, shape in shapes.items()}


def kernel_of(strategy, sizes, text=SCALED, **options):
    """A GEMM kernel with an epilogue, its arrays, and the right result."""
    kernel = strategy(float16_gemm(*sizes)).fuse_epilogue(text, **options).program(TARGET).ir
    arrays = arrays_of(kernel.spec)
    return kernel, arrays, kernel.spec.reference(*arrays.values())


def fetched(kernel):
    """The ring of the vectors."""
    (ring,) = (one for one in kernel.rings if one.name.endswith("_sh_ring"))
    return ring


# ---------------------------------------------------------------------------------------------- right


KERNELS = {
    "one tile": (product(), (128, 64, 192), 1),
    "blocks, overhanging": (product(), (200, 120, 72), 1),
    "persistent, overhanging": (product(blocks=2), (328, 72, 136), 2),
    "ping-pong": (product((64, 64, 64), (64, 64), blocks=2, pingpong=2), (256, 128, 64), 2),
    "swapped": (product((16, 128, 64), (16, 64), 3), (32, 128, 192), 1),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_are_correct(name):
    strategy, sizes, stages = KERNELS[name]
    kernel, arrays, expected = kernel_of(strategy, sizes)
    assert fetched(kernel).stages == stages and fetched(kernel).buffers == ("r_sh", "bias_sh")
    assert errors(kernel) == []
    for order in (None, 1):
        assert outcome(kernel, arrays, expected, order) == "right"


@pytest.mark.parametrize("name", ["one tile", "ping-pong"])
def test_vectors_that_are_loaded_once_are_not_released(name):
    """Nothing waits for the release of the only fill: release, fence, warp barrier and the empty mbarrier are not printed."""
    strategy, sizes, _ = KERNELS[name]
    program = strategy(float16_gemm(*sizes)).fuse_epilogue(SCALED).program(TARGET)
    ring, once = fetched(program.ir), name == "one tile"
    assert ring.refilled != once
    assert (f"{ring.name}_empty" in program.cuda) != once and ("have read r_sh" in program.cuda) != once
    assert ("precede the next TMA load" in program.cuda) != once and ("acquire empty r" in text(synchronization(program.ir))) != once
    for number in range(2):  # of the consumers, and of the producer
        assert errors(with_changed(program.ir, lambda one: isinstance(one, ir.Acquire) and one.ring == ring.name, number, dropped))
    if once:
        refilled = attrs.evolve(program.ir, body=(*program.ir.body, making.release(ring.name, ir.StageState.EMPTY, as_expr(0))))
        with pytest.raises(VerificationError, match="is not refilled"):
            ir.verify(refilled)


@pytest.mark.parametrize(("name", "elements"), [("swapped", {"r_sh": 64, "bias_sh": 128}), ("ping-pong", {"r_sh": 64, "bias_sh": 64})])
def test_each_stage_of_a_vector_begins_at_a_multiple_of_128_bytes(name, elements):
    """TMA writes to such addresses: 16 float16 values occupy as much as 64."""
    kernel, _, _ = kernel_of(*KERNELS[name][:2])
    assert {one: constant(kernel.buffer(one).elements) for one in fetched(kernel).buffers} == elements
    assert all(kernel.buffer(one).offset % 128 == 0 for one in elements)


def test_sizes_known_at_run_time():
    M, N, K = sym("M"), sym("N", multiple_of=8), sym("K", multiple_of=8)
    program = product(blocks=3)(float16_gemm(M, N, K)).fuse_epilogue(SCALED).program(TARGET)
    sizes = {"M": 200, "N": 72, "K": 72}
    arrays = arrays_of(program.spec, sizes)
    assert errors(program.ir) == [] and len(fetched(program.ir).buffers) == 2
    assert outcome(program.ir, arrays, program.spec.reference(*arrays.values()), 1, sizes) == "right"


@pytest.mark.parametrize("options, copied", [({"types": {"bias": float32}}, True), ({"bias": Strides(n=2)}, False)])
def test_other_vector_types_and_strides(options, copied):
    """Vectors of 32 bits; vectors with gaps, which are not prefetched."""
    kernel, arrays, expected = kernel_of(product(blocks=2), (256, 128, 64), "acc + bias[n]", **options)
    assert any(ring.buffers == ("bias_sh",) for ring in kernel.rings) == copied
    assert errors(kernel) == [] and outcome(kernel, arrays, expected, 1) == "right"


@pytest.mark.parametrize("name", ["hmma_ampere", "hmma_volta"])
def test_copies_of_all_threads(name):
    """Without a producer all threads copy if the strategy requests it; asynchronously if the target supports it."""
    target = "sm_70" if name == "hmma_volta" else "sm_80"
    base = bind(find(name), {"M": 72, "N": 136, "K": 40}).fuse_epilogue(SCALED)
    assert "bias_sh" not in base.cuda(target), "only where it is asked for"
    program = base.at(Epilog).refine(PrefetchEpilogue()).program(target)
    copies = [one for one, _ in ir.execs(program.ir.body) if one.accesses[-1].buffer == "bias_sh" and one.spec.moves]
    assert copies and all((one.mechanism is CP_ASYNC_GROUPS) == (target == "sm_80") for one in copies)
    assert errors(program.ir) == []
    arrays = arrays_of(program.spec)
    result = simulate(program.ir, arrays, {}, order=random.Random(2)).outputs["C"]
    assert np.array_equal(result, program.spec.reference(*arrays.values()))


def test_prefetch_requested_and_disabled():
    bound = product(blocks=2)(float16_gemm(256, 128, 64))
    finished = bound.fuse_epilogue(SCALED)
    assert ".prefetch_epilogue()" in repr(finished) and ".prefetch_epilogue()" not in repr(bound)
    off = finished.at(Epilog).refine(PrefetchEpilogue(enable=False))
    assert eval(repr(off)) == off == Strategy.from_json(off.to_json())
    assert "r_sh" not in off.cuda(TARGET)
    assert off == bound.at(Epilog).refine(PrefetchEpilogue(enable=False)).fuse_epilogue(SCALED)
    with pytest.raises(ArgumentError, match="prefetch_epilogue: enable must be True or False"):
        PrefetchEpilogue(enable=1)


STORED = Move.tile(64, 64).to(Warpgroup).tile(64, 64).unroll().load(SRC, SH, Move.done()).cast_on_copy().done()


def of_whole_rows(blocks):
    """A GEMM whose A is loaded once per tile, before the loop, and read by wgmma."""
    chain = MatMul.tile(128, 64).to(Block).persistent(blocks).epilog(RF, float32, Init.done(), STORED).load(A, SH, Move.done())
    return chain.split(64).pipeline(2).warp_specialize().load(B, SH, Move.done()).tile(64, 64).to(Warpgroup).done()


def with_residual(blocks):
    """An epilogue whose residual tile is prefetched before the main loop, and read by lanes."""
    chain = MatMul.fuse_epilogue("relu(acc + R[m,n])").tile(m=128, n=64).to(Block).persistent(blocks)
    chain = chain.load("R", SH, Move.done()).storage_layout(RowMajor).swizzle_storage(ROWS_OF_128_BYTES)
    chain = chain.epilog(RF, float32, Init.done(), STORED).split(64).pipeline(2).warp_specialize()
    return chain.load(A, SH, Move.done()).load(B, SH, Move.done()).tile(64, 64).to(Warpgroup).done()


def matrices(name):
    """Kernels with a matrix that a producer loads once per tile; arrays, and the right result."""
    if name == "of whole rows":
        spec = float16_gemm(384, 64, 128)
        kernel = of_whole_rows(1)(spec).program(TARGET).ir
    else:
        spec = MatMul.fuse_epilogue("relu(acc + R[m,n])")(m=384, n=64, k=64, dtype=float16, types={"C": float16, "R": float16})
        kernel = with_residual(1)(spec).program(TARGET).ir
    arrays = arrays_of(kernel.spec)
    return kernel, arrays, kernel.spec.reference(*arrays.values())


@pytest.mark.parametrize("name", ["of whole rows", "with a residual"])
def test_matrices_loaded_before_the_loop(name):
    """The matrices have a separate ring; both detectors report a stage that is released too early."""
    kernel, arrays, expected = matrices(name)
    ring = fetched(kernel)
    assert ring.stages == 2 and len(ring.buffers) == 1 and errors(kernel) == []
    assert outcome(kernel, arrays, expected, 1) == "right"
    consumers = kernel.body[-1].roles[0]
    (loop,) = (one for one in consumers.body if isinstance(one, ir.For))
    place = next(number for number, one in enumerate(loop.body) if isinstance(one, ir.Release))
    early = [*loop.body[: place - 1], loop.body[place], loop.body[place - 1], *loop.body[place + 1 :]]
    waits = kernel.body[-1].roles[0].body.index(loop)
    body = (*consumers.body[:waits], attrs.evolve(loop, body=tuple(early)), *consumers.body[waits + 1 :])
    roles = attrs.evolve(kernel.body[-1], roles=(attrs.evolve(consumers, body=body), *kernel.body[-1].roles[1:]))
    faulty = attrs.evolve(kernel, body=(*kernel.body[:-1], roles))
    # The statement before it is the MMA that reads the stage, or a read by lanes.
    assert isinstance(loop.body[place - 1], ir.For if name == "of whole rows" else ir.Barrier)
    # The wait for the other ring's fills comes after the last MMAs, and the producer fills in between: not a race, but an unowned stage.
    assert outcome(faulty, arrays, expected, 3) != "right" and (errors(faulty) or name == "of whole rows")


def test_vectors_of_several_steps():
    """Each vector is owned from its first use to its last; vectors of other steps have a separate fill."""
    kernel, arrays, expected = kernel_of(product(), (128, 64, 64), "Z = acc * r[m] + bias[n]; C = relu(acc + r[m])")
    assert [ring.buffers for ring in kernel.rings[1:]] == [("r_sh",), ("bias_sh",)] and not errors(kernel)
    results = simulate(kernel, arrays, {}).outputs
    assert all(np.array_equal(results[name], right) for name, right in zip(kernel.spec.outputs, expected, strict=True))


def test_clusters():
    kernel, arrays, expected = kernel_of(product(cluster=(2, 1), blocks=2), (512, 64, 64))
    assert errors(kernel) == [] and outcome(kernel, arrays, expected, 1) == "right"


# ---------------------------------------------------------------------------------------------- order


def faults(kernel):
    """`(name, faulty kernel)`: synchronization between prefetches and their uses removed, moved or weakened."""
    ring = fetched(kernel)

    def of_ring(kind):
        return lambda one: isinstance(one, kind) and one.ring == ring.name

    for kind, changes in (
        (ir.Acquire, {"dropped": dropped, "a turn later": later(1)}),
        (ir.Release, {"dropped": dropped, "a turn later": later(1), "by all lanes": by_all_lanes}),
    ):
        for number, stmt in enumerate(filter(of_ring(kind), ir.statements(kernel.body))):
            for name, change in changes.items():
                if change(stmt) != (stmt,):
                    yield f"{name}: {kind.__name__} {stmt.state.value}", with_changed(kernel, of_ring(kind), number, change)
    yield "lanes apart", with_changed(kernel, lambda one: isinstance(one, ir.Barrier) and one.scope == ir.WARP_SCOPE, 0, dropped)
    for name, changed in (
        ("fewer bytes", {"bytes": ring.bytes - 16}),
        ("a consumer less", {"consumers": ring.consumers - 1}),
        ("a consumer more", {"consumers": ring.consumers + 1}),
    ):
        yield name, with_rings(kernel, lambda one, changed=changed: attrs.evolve(one, **changed) if one == ring else one)
    yield "fetched to another stage", with_changed(kernel, of_ring(ir.Exec), 0, stage_moved(1, ring.stages))


def test_faults_are_found_by_both():
    kernel, arrays, expected = kernel_of(product((64, 64, 64), (64, 64), blocks=1), (256, 64, 64))
    assert errors(kernel) == [] and outcome(kernel, arrays, expected, 3) == "right"
    faulty_kernels = list(faults(kernel))
    for name, faulty in faulty_kernels:
        assert errors(faulty), f"the race check misses {name}"
        assert outcome(faulty, arrays, expected, 3) != "right", f"the simulator misses {name}"
    assert len(faulty_kernels) >= 13


def test_faults_of_copies_by_all_threads():
    """A barrier or a wait removed between a copy and its readers, or the next use of its bytes."""
    kernel = (
        bind(find("hmma_ampere"), {"M": 128, "N": 256, "K": 64})
        .fuse_epilogue(SCALED)
        .at(Epilog)
        .refine(PrefetchEpilogue())
        .program("sm_80")
        .ir
    )
    assert errors(kernel) == []
    barriers = [one for one in ir.statements(kernel.body) if isinstance(one, ir.Barrier)]
    last = max(number for number, one in enumerate(barriers) if "bias_sh free again" in one.reason)
    assert errors(with_changed(kernel, lambda one: isinstance(one, ir.Barrier), last, dropped))
    waits = [number for number, one in enumerate(ir.statements(kernel.body)) if isinstance(one, ir.Wait) and "bias_sh" in one.reason]
    assert waits and errors(ir_without_waits(kernel))


def ir_without_waits(kernel):
    """The kernel without any wait for copies."""
    return attrs.evolve(kernel, body=ir.rewritten(kernel.body, lambda one: () if isinstance(one, ir.Wait) else (one,)))


def test_the_account():
    """The report of `explain --sync` for a ring that is filled once per tile."""
    kernel, _, _ = kernel_of(product(blocks=1), (256, 64, 64))
    account = text(synchronization(kernel))
    assert "ring r_sh_ring: r_sh, bias_sh; 2 stages of 384 bytes" in account
    assert "each fill is acquired before its first use and released after its last" in account
    assert "read -> write   r_sh, bias_sh: Pointwise" in account and "a later iteration" in account
    once, _, _ = kernel_of(product(), (128, 64, 64))
    assert "ring r_sh_ring: r_sh, bias_sh; 1 stage of 384 bytes" in text(synchronization(once))


# ---------------------------------------------------------------------------------------------- clamping


@pytest.mark.parametrize(
    "epilogue, moved",
    [
        ("relu(acc + bias[n])", True),
        ("max(acc * 2, 0)", True),
        ("Z = acc; C = relu(acc)", True),
        ("relu(acc) * 2", False),
        ("acc = relu(acc); C = acc; Z = acc + 1", False),
        ("acc = relu(acc + bias[n]); C = acc; y[m] += sum(n, acc)", False),
    ],
)
def test_where_clampings_go(epilogue, moved):
    kernel, arrays, expected = kernel_of(product(blocks=1), (256, 64, 128), epilogue)
    printed = product(blocks=1)(float16_gemm(256, 64, 128)).fuse_epilogue(epilogue).cuda(TARGET)
    assert ("_relu_half" in printed) == moved and ("fmaxf" in printed) != moved
    wanted = dict(zip(kernel.spec.outputs, expected if isinstance(expected, tuple) else (expected,)))
    results = simulate(kernel, arrays, {}).outputs
    assert all(np.array_equal(results[name], right) for name, right in wanted.items())


def test_clampings_that_stay():
    """Clamping remains where other statements read the registers, where these are not initialized in each iteration, and where some are not
    clamped.
    """
    kernel = product(blocks=1)(float16_gemm(256, 64, 128)).fuse_epilogue("relu(acc + bias[n])").program(TARGET).stages["guard"]
    reader = next(one for one, _ in ir.execs(kernel.body) if one.instruction.clamping(one.spec))
    (name,) = {one.buffer for one in reader.accesses if kernel.buffer(one.buffer).memory.private}
    assert sink_relu(kernel) != kernel

    def begins(stmt):
        return isinstance(stmt, ir.Exec) and stmt.spec.fills and any(access.buffer == name for access in stmt.accesses)

    elsewhere = attrs.evolve(kernel, body=(*kernel.body, reader))
    going_on = attrs.evolve(kernel, body=ir.rewritten(kernel.body, lambda one: () if begins(one) else (one,)))
    buffers = tuple(attrs.evolve(one, elements=one.elements * 2) if one.name == name else one for one in kernel.buffers)
    assert going_on != kernel
    for unchanged in (elsewhere, going_on, attrs.evolve(kernel, buffers=buffers)):
        assert sink_relu(unchanged) == unchanged


def test_results_of_32_bits_are_clamped_where_they_are():
    printed = product()(float16_gemm(128, 64, 64, c_dtype=float32)).fuse_epilogue("relu(acc)").cuda(TARGET)
    assert "fmaxf" in printed and "_relu" not in printed


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_the_printed_text(tmp_path):
    """Executed on the CPU: TMA loads of vectors that extend past the edge, in each iteration, and clamping after the rounding, also of NaN."""
    program = product((64, 64, 64), (64, 64), blocks=1)(float16_gemm(72, 120, 72)).fuse_epilogue(SCALED).program(TARGET)
    host = HostProgram([Printed.of(program)], tmp_path)
    arrays = arrays_of(program.spec)
    arrays["bias"][3] = np.nan
    expected = program.spec.reference(*arrays.values())
    assert not expected[:, 3].any(), "relu makes zero of no number"
    assert np.array_equal(host.run(0, arrays)["C"], expected)


def test_registers():
    """No spills, and at most three registers more than the plain kernel: a load after the main loop takes thirteen."""
    values = {"bm": 128, "bn": 256, "bk": 64, "wm": 64, "wn": 256, "epi_m": 64, "epi_n": 256, "stages": 3, "group_m": 4}
    base = bind(find("hopper"), dict.fromkeys("MNK", 4096), values=values)
    plain, finished = base.compile(TARGET), base.fuse_epilogue("relu(acc + bias[n])").compile(TARGET)
    if plain.compiler is None:
        pytest.skip("no NVRTC for the target")
    assert finished.resources.spill_stores == 0 and "C75" not in (finished.compiled.log or "")
    assert finished.resources.registers <= plain.resources.registers + 3
