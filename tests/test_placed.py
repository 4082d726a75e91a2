"""Temporaries in shared memory that matrix instructions read: layouts that readers choose, vectors that all threads store, stages.

Oracles: the definition in float64 with error bounds, the race checks, shadow memory in several thread orders, NVRTC, a text read back.
"""

import random
import re

import attrs
import numpy as np
import placed
import pytest
from faults import dropped
from placed import A, B, by_warpgroups, by_warps, keys, states, weights

from fireiron import *
from fireiron import draw, export, ir, predict
from fireiron.check import check, safety
from fireiron.errors import DecompositionError, FireironError, SimulationError
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.inspect.explain import explain
from fireiron.inspect.explain import text as explained
from fireiron.language.store import dumps, loads
from fireiron.measure.data import all_sizes, random_inputs, references_of
from fireiron.measure.rounding import differing
from fireiron.sim import simulate
from fireiron.values.expr import Mod, mod

needs_nvrtc = pytest.mark.skipif(not any(one.serves("sm_90a") for one in toolchains()), reason="no NVRTC for sm_90a")
copy = Move.coalesced_copy(8).done()


def on_hopper(definition=None, stages=None, flight=None, loaded=False, swizzled=False, special=True):
    """Weights by all consumer threads, read by wgmma."""
    definition = weights() if definition is None else definition
    chain = definition.tile(m=128, n=64).to(Block).split(k=64).pipeline(3)
    chain = chain.warp_specialize(128) if special else chain
    chain = (chain if flight is None else chain.mma_in_flight(flight)).load("A", SH, Move.done())
    chain = chain.load("W", SH, Move.done()).swizzle_storage() if loaded else chain
    chain = chain.set_memory("w", SH)
    chain = chain.swizzle_storage() if swizzled else chain
    chain = chain.stages(stages) if stages else chain
    return chain.step("mm", by_warpgroups()).done()


def on_ampere(definition=None, stages=None, swizzled=True, pad=0, pipeline=2):
    """Weights by all threads, read by ldmatrix."""
    definition = weights() if definition is None else definition
    chain = definition.tile(m=64, n=64).to(Block).split(k=32)
    chain = (chain.pipeline(pipeline) if pipeline else chain).load("A", SH, copy).swizzle_storage().set_memory("w", SH, pad=pad)
    chain = chain.swizzle_storage() if swizzled else chain
    chain = chain.stages(stages) if stages else chain
    return chain.step("mm", by_warps(A, B)).done()


def small(definition=None, kind=int8, **sizes):
    definition = weights() if definition is None else definition
    return definition(**{"m": 128, "n": 128, "k": 256, **sizes}, types={"W": kind})


def judged(program, seed=1):
    """The objections of all oracles to a program."""
    arrays = random_inputs(program.spec, {}, np.random.default_rng(seed))
    expected = references_of(program.spec, *arrays.values())
    first, second = (simulate(program.ir, arrays, order=order).outputs for order in (None, random.Random(seed)))
    apart = [name for name in first if not np.array_equal(first[name], second[name], equal_nan=True)]
    errors = [str(finding) for finding in check(program.lowered) if finding.severity == "error"]
    return errors + differing(program.spec, all_sizes(program.spec, {}), first, arrays, expected) + apart


# ---------------------------------------------------------------------------------------------- texts


def test_wgmma_chooses_the_layout_and_all_threads_store_vectors():
    text = on_hopper()(small()).cuda("sm_90a")
    assert "__half* const w_sh = reinterpret_cast<__half*>(smem + w_sh_offset);  // 64 x 64\n" in text
    assert "weight_thread_k = threadIdx.x % 8" in text
    assert "*reinterpret_cast<uint4*>(" in text and "(weight_thread_k * 8) ^ (weight_thread_n % 8 * 8)" in text
    assert "matrix_descriptor<0, 1024, 1>(w_sh_address + mm_k * 32)" in text
    fence, barrier = text.index("fence_proxy_async();  // make w_sh visible"), text.index("consumers_sync();  // w_sh complete")
    assert fence < barrier < text.index("wgmma_fence();", barrier)


def test_ldmatrix_reads_swizzled_weights():
    text = on_ampere()(small()).cuda("sm_80")
    assert "*reinterpret_cast<const uint2*>(&w_source[" in text and "*reinterpret_cast<uint4*>(" in text
    assert re.search(r"ldmatrix_x4\(\s*&mm_w_rf", text)
    assert "^ (weight_thread_n / 2 % 4 * 8)" in text


def test_stages_keep_products_in_flight():
    """The MMAs of an iteration run while threads compute the weights of the next one."""
    text = on_hopper(stages=2, flight=1, loaded=True)(small()).cuda("sm_90a")
    assert "w_sh2[8192];  // 64 x 64, 2 stages" in text or "// 64 x 64, 2 stages" in text
    body = text[text.index("// consumers") :]
    weight, wait = body.index("// weight: w[n,k]"), body.index("wgmma_wait_group<0>();")
    assert weight < wait and "k % 2 * w_sh2_stage_size" in body


def test_operands_with_names_that_differ_in_case():
    """`W` and `w` are vectors of one statement: their local arrays have different names."""
    text = on_ampere()(small()).cuda("sm_80")
    names = re.findall(r"__align__\(\d+\) (?:signed char|__half) (w_values\d*)\[8\];", text)
    assert names == ["w_values", "w_values2"]


def test_a_copy_that_converts_does_so_in_registers():
    text = on_ampere(weights(value="{}"))(small(weights(value="{}"))).cuda("sm_80")
    assert "*reinterpret_cast<uint2*>(weight_w_rf) = *reinterpret_cast<const uint2*>(&w_source[" in text
    assert "*reinterpret_cast<uint4*>(" in text


def test_wgmma_decides_along_which_dimension_bytes_are_contiguous():
    """Eight-bit operands are contiguous along k, although w is declared with n last; so are the vectors that threads store."""
    doubled = Fused(
        name="doubled", dims="m n k", loop="k", operands={"A": "m k", "W": "k n", "C": "m n"}, types={"w": int8, "acc": int32},
        init={"zero": "acc[m,n] = 0"}, body={"two": "w[k,n] = W[k,n] * 2", "mm": "acc[m,n] += sum(k, A[m,k] * w[k,n])"},
        final={"store": "C[m,n] = acc[m,n]"},
    )  # fmt: skip
    chain = doubled.tile(m=64, n=64).to(Block).split(k=64).pipeline(2).load("A", SH, Move.done()).set_memory("w", SH)
    product = MatMul.tile(64, 64).to(Warpgroup).split(32).unroll().done()
    program = chain.step("mm", product).done()(doubled(m=64, n=64, k=128, dtype=int8, types={"C": int32})).program("sm_90a")
    assert not judged(program) and "*reinterpret_cast<uint2*>(" in program.cuda


# ---------------------------------------------------------------------------------------------- results


def latent(target, **options):
    """The keys of latent attention, stored from accumulators."""
    chain = keys.tile(m=128 if target == "sm_90a" else 64).to(Block)
    load = (
        (lambda chain, name: chain.load(name, SH, Move.done()))
        if target == "sm_90a"
        else (lambda chain, name: chain.load(name, SH, copy).swizzle_storage())
    )
    chain = load(load(chain, "Q"), "U").split(n=64).pipeline(2)
    chain = chain.warp_specialize(128) if target == "sm_90a" else chain
    chain = load(chain, "L").set_memory("K", SH)
    chain = chain.swizzle_storage() if target != "sm_90a" else chain
    chain = chain.stages(options["stages"]) if options.get("stages") else chain
    if target == "sm_90a":
        return chain.step("key", by_warpgroups(32)).step("s", by_warpgroups()).step("pv", by_warpgroups()).done()
    product = by_warps(A, B, rows=16, columns=64)
    return chain.step("key", product).step("s", product).step("pv", by_warps(B, rows=16, columns=64)).done()


def scanned(target, stages=None):
    """The state of a chunked scan."""
    chain = states.tile(d=64).to(Block).split(l=1).pipeline(2)
    chain = chain.warp_specialize(128) if target == "sm_90a" else chain
    for name in ("Q", "B", "X"):
        chain = chain.load(name, SH, Move.done()) if target == "sm_90a" else chain.load(name, SH, copy).swizzle_storage()
    chain = chain.set_memory("S", SH)
    chain = chain.stages(stages) if stages else chain
    product = by_warpgroups() if target == "sm_90a" else by_warps(A, B)
    return chain.step("inter", product).step("add", product).done()


four_bits = weights(value="(({} >> 4 * (k % 8) & 15) - 8) * scale[n]")
eight_bits = Fused(
    name="eight_bits", dims="m n k", loop="k", operands={"A": "m k", "W": "k n", "C": "m n"}, types={"w": float8_e4m3},
    init={"zero": "acc[m,n] = 0"}, body={"half": "w[k,n] = W[k,n] * 0.5", "mm": "acc[m,n] += sum(k, A[m,k] * w[k,n])"},
    final={"store": "C[m,n] = acc[m,n]"},
)  # fmt: skip


def in_eight_bits():
    """Float8 operands, which wgmma reads contiguous along k only."""
    chain = eight_bits.tile(m=64, n=64).to(Block).split(k=64).pipeline(2).warp_specialize(128).load("A", SH, Move.done())
    product = MatMul.tile(64, 64).to(Warpgroup).split(32).unroll().done()
    chain = chain.set_memory("w", SH).stages(2).step("mm", product).done()
    return chain(eight_bits(m=64, n=64, k=192, types={"A": float8_e4m3, "W": float16}))


def deferred(target):
    """The operand of the next MMA is computed before the MMA of this iteration."""
    if target == "sm_80":
        chain = weights().tile(m=64, n=64).to(Block).split(k=32).pipeline(3).defer("mm", after="weight")
        return chain.load("A", SH, copy).swizzle_storage().set_memory("w", SH).swizzle_storage().stages(2).step("mm", by_warps(A, B)).done()
    chain = weights().tile(m=128, n=64).to(Block).split(k=64).pipeline(3).warp_specialize(128).defer("mm", after="weight")
    return chain.load("A", SH, Move.done()).set_memory("w", SH).stages(2).step("mm", by_warpgroups()).done()


KERNELS = {
    "weights": (on_hopper()(small()), "sm_90a"),
    "weights in stages": (on_hopper(stages=2, flight=1, loaded=True)(small()), "sm_90a"),
    "weights in a requested swizzle": (on_hopper(swizzled=True)(small()), "sm_90a"),
    "weights without a producer": (on_hopper(stages=2, special=False)(small()), "sm_90a"),
    "weights that overhang": (on_hopper(stages=2)(small(m=100, n=72, k=200)), "sm_90a"),
    "weights of four bits": (on_hopper(four_bits)(small(four_bits, int32)), "sm_90a"),
    "weights of eight-bit floats": (in_eight_bits(), "sm_90a"),
    "weights of the next iteration": (deferred("sm_90a")(small()), "sm_90a"),
    "weights of the next iteration by warps": (deferred("sm_80")(small()), "sm_80"),
    "keys": (latent("sm_90a")(keys(m=128, n=128, d=64, r=64)), "sm_90a"),
    "keys in stages": (latent("sm_90a", stages=2)(keys(m=200, n=120, d=64, r=64)), "sm_90a"),
    "states": (scanned("sm_90a")(states(l=4, t=64, d=64, e=64, types={"decay": float32})), "sm_90a"),
    "weights by warps": (on_ampere()(small()), "sm_80"),
    "weights by warps in stages": (on_ampere(stages=2)(small()), "sm_80"),
    "weights by warps, padded": (on_ampere(swizzled=False, pad=8)(small(m=100, n=72, k=200)), "sm_80"),
    "keys by warps": (latent("sm_80", stages=2)(keys(m=64, n=128, d=64, r=64)), "sm_80"),
    "states by warps": (scanned("sm_80", 2)(states(l=4, t=64, d=64, e=64, types={"decay": float32})), "sm_80"),
}
"""Bound strategies with their targets."""


@pytest.mark.parametrize(("bound", "target"), KERNELS.values(), ids=KERNELS)
def test_results(bound, target):
    assert not judged(bound.program(target))


@needs_nvrtc
@pytest.mark.parametrize(
    "name", ["weights", "weights in stages", "keys in stages", "states", "weights by warps in stages", "states by warps"]
)
def test_nvrtc_compiles(name):
    bound, target = KERNELS[name]
    compile_cuda(bound.cuda(target), target)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["weights in stages", "keys", "weights by warps in stages"])
def test_what_users_inspect(name, tmp_path):
    bound, target = KERNELS[name]
    program = bound.program(target)
    assert parse_kernel(graphene_text(program), target).cuda == program.cuda
    assert eval(repr(bound)) == bound and loads(dumps(bound)) == bound
    assert explained(explain(bound, target)) and draw(program, "all") and predict(program)
    export(bound, tmp_path / "exported", arch=target)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("seed", range(24))
def test_random_kernels(seed):
    kernel = placed.drawn(random.Random(seed))
    try:
        program = kernel.bound.program(kernel.target)
        _ = program.ir
    except FireironError:
        return
    assert not judged(program, seed), f"\n{kernel.bound!r}\n{kernel.target}, {kernel.features}"


# ---------------------------------------------------------------------------------------------- faults


def reported(kernel, arrays, expected):
    """Whether the static checks report a kernel, and whether the simulator does, or its outputs differ."""
    static = any(finding.severity == "error" for finding in safety(kernel))
    for order in (None, random.Random(1), random.Random(2)):
        try:
            outputs = simulate(kernel, arrays, order=order).outputs
        except (SimulationError, FireironError):
            return static, True
        if any(not np.array_equal(outputs[name], expected[name], equal_nan=True) for name in expected):
            return static, True
    return static, False


@pytest.mark.parametrize("name", ["weights", "weights in stages", "weights by warps", "weights by warps in stages"])
def test_dropped_synchronization_is_found(name):
    """Each barrier, fence, wait and commit: the race check and the simulator both report that it is missing; one wait may be needless."""
    bound, target = KERNELS[name]
    program = bound.program(target)
    arrays = random_inputs(program.spec, {}, np.random.default_rng(1))
    expected = simulate(program.ir, arrays).outputs
    verdicts = [(stmt, reported(faulty, arrays, expected)) for stmt, faulty in dropped(program.ir)]
    assert not [stmt for stmt, (static, dynamic) in verdicts if static != dynamic]
    needless = [stmt for stmt, verdict in verdicts if verdict == (False, False)]
    assert len(needless) <= 1 and all(isinstance(stmt, ir.Wait) and "w_sh" not in stmt.reason for stmt in needless)


@pytest.mark.parametrize("name", ["weights in stages", "weights by warps in stages"])
def test_a_stage_that_is_too_early_is_found(name):
    """Weights stored one stage later than they are read."""
    bound, target = KERNELS[name]
    program = bound.program(target)
    own = next(buffer.name for buffer in program.ir.buffers if buffer.name.startswith("w_sh") and buffer.dtype == float16)

    def edit(stmt):
        accesses = [
            attrs.evolve(access, copy=mod(access.copy.left + 1, access.copy.right))
            if access.buffer == own and access.write and isinstance(access.copy, Mod)
            else access
            for access in stmt.accesses
        ]
        return attrs.evolve(stmt, accesses=tuple(accesses))

    faulty = attrs.evolve(program.ir, body=ir.edited(program.ir.body, edit))
    assert faulty != program.ir
    arrays = random_inputs(program.spec, {}, np.random.default_rng(1))
    static, dynamic = reported(faulty, arrays, simulate(program.ir, arrays).outputs)
    assert static and dynamic


# ---------------------------------------------------------------------------------------------- refusals


carried = Fused(
    name="carried", dims="m n k", loop="k", operands={"A": "m k", "B": "k n", "C": "m n"}, init={"zero": "c[m,n] = 0"},
    body={"mm": "c[m,n] += sum(k, A[m,k] * B[k,n])"}, final={"store": "C[m,n] = c[m,n]"},
)  # fmt: skip
threads = MatMul.tile(1, 1).to(Thread).split(1).done()
whole = Fused(name="whole", dims="m n", operands={"X": "m n", "Y": "m n"}, body={"t": "t[m,n] = X[m,n] * 2", "y": "Y[m,n] = t[n,m]"})


@pytest.mark.parametrize(
    ("make", "message", "hint"),
    [
        (
            lambda: carried.tile(m=16, n=16).to(Block).set_memory("c", SH).stages(2).split(k=8).step("mm", threads).done()(carried(m=16, n=16, k=32)),
            "stages(2): c is carried between iterations", "leave out .stages(...)",
        ),
        (
            lambda: on_ampere(weights(value="{}"), stages=2)(small(weights(value="{}"))),
            "stages(2): step weight copies an operand to w, as a load does", "pipeline(stages) of the split",
        ),
        (
            lambda: whole.tile(m=16, n=16).to(Block).set_memory("t", SH).stages(2).done()(whole(m=16, n=16)),
            "stages(2): t is not computed in a loop of the definition", "leave out .stages(...)",
        ),
        (
            lambda: weights().tile(m=64, n=64).to(Block).split(k=32).set_memory("w", RF).swizzle_storage().stages(2).done()(small()),
            "set_memory('w', RF): swizzle_storage and stages of registers", "set_memory('w', SH)",
        ),
    ],
    ids=["carried", "a copy", "no loop", "registers"],
)  # fmt: skip
def test_refusals(make, message, hint):
    with pytest.raises(DecompositionError) as refused:
        make().cuda("sm_80")
    assert message in str(refused.value) and hint in str(refused.value)


def test_stages_out_of_range():
    with pytest.raises(DecompositionError, match="stages"):
        on_ampere(stages=17)(small()).cuda("sm_80")


def test_two_readers_that_need_different_layouts_are_refused():
    """One wgmma reads the temporary along k, the other transposed, in bytes."""
    both = Fused(
        name="both", dims="m n k", operands={"A": "m k", "W": "n k", "V": "m n", "C": "m n", "D": "m k"}, types={"w": int8, "c": int32, "d": int32},
        body={
            "w": "w[n,k] = W[n,k] - 1", "c": "c[m,n] = sum(k, A[m,k] * w[n,k])", "C": "C[m,n] = c[m,n]",
            "d": "d[m,k] = sum(n, V[m,n] * w[n,k])", "D": "D[m,k] = d[m,k]",
        },
    )  # fmt: skip
    product = MatMul.tile(64, 64).to(Warpgroup).split(32).unroll().done()
    chain = both.tile(m=64).to(Block).load("A", SH, Move.done()).load("V", SH, Move.done()).set_memory("w", SH)
    with pytest.raises(FireironError, match="two leaves need different storage|storage"):
        chain.step("c", product).step("d", product).done()(both(m=64, n=64, k=64, dtype=int8, types={"C": int32, "D": int32})).cuda(
            "sm_90a"
        )
