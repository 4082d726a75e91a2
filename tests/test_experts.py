"""A mixture of experts on sm_90a: rows of A, gathered through a table, are copied by threads, and tiles of B by TMA, into one circular
buffer for wgmma.

The copies of a thread arrive by `cp.async.mbarrier.arrive.noinc`. The kernels are compared with NumPy, in the simulator and in the printed
text on a CPU, and compiled for sm_90a. Both detectors find the injected faults.
"""

import functools
import random

import numpy as np
import pytest
from printed_text import COMPILER, HostProgram, Printed, Refused
from ringed import errors, roles_of
from test_roles import FAULTS, edited, is_proxy_fence

from fireiron import *
from fireiron.errors import FireironError
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.language.store import dumps, loads
from fireiron.sim import simulate

TARGET = "sm_90a"
COPY, TMA = Move.coalesced_copy(8).done(), Move.done()

EXPERTS = Fused(
    name="experts", dims="e m n k r", batch="e", operands={"A": "r k", "rows": "e m", "W": "e k n", "scale": "n", "Y": "e m n"},
    body={"product": "acc[m,n] = sum(k, A[rows[e,m],k] * W[e,k,n])", "scale": "Y[e,m,n] = acc[m,n] * scale[n]"},
)  # fmt: skip
SCATTERED = Fused(
    name="scattered", dims="m n k r", operands={"A": "r k", "rows": "m", "W": "k n", "Y": "r n"},
    body={"product": "acc[m,n] = sum(k, A[rows[m],k] * W[k,n])", "store": "Y[rows[m],n] = acc[m,n]"}, distinct="rows",
)  # fmt: skip


def fed(start, bk=64, stages=3, threads=128, separate=None, b=TMA, **tile):
    """Two warpgroups, and a producer for each way in which tiles are loaded."""
    options = {"copies": True} if separate is None else {"copies": True, "separate": separate}
    loop = MatMul.split(bk).pipeline(stages).warp_specialize(threads, **options).load(A, SH, COPY).load(B, SH, b)
    return start.tile(**tile).to(Block).step("product", loop.tile(64, 64).to(Warpgroup).done()).done()


# For each kernel: strategy, spec, threads of the roles, arrivals and bytes that fill a stage.
KERNELS = {
    "experts": (fed(EXPERTS, e=1, m=128, n=64), EXPERTS(e=2, m=150, n=128, k=256, r=90), (256, 128, 32), 129, 64 * 64 * 2),
    "one warp of copies": (
        fed(EXPERTS, threads=32, stages=2, e=1, m=128, n=64), EXPERTS(e=2, m=70, n=72, k=192, r=20), (256, 32, 32), 33, 64 * 64 * 2
    ),
    "a producer for A": (
        fed(EXPERTS, separate="A", e=1, m=128, n=64), EXPERTS(e=1, m=128, n=64, k=256, r=90), (256, 128, 32), 129, 64 * 64 * 2
    ),
    "scattered rows": (fed(SCATTERED, m=128, n=64), SCATTERED(m=150, n=64, k=256, r=150), (256, 128, 32), 129, 64 * 64 * 2),
    "both copied": (fed(EXPERTS, b=COPY, threads=32, e=1, m=128, n=64), EXPERTS(e=1, m=128, n=64, k=256, r=40), (256, 32), 32, 0),
}  # fmt: skip


@functools.cache
def program(name):
    return KERNELS[name][0](KERNELS[name][1]).program(TARGET)


def inputs(spec, seed=0):
    """Small integers, whose sums are exact; the numbers of scattered rows differ."""
    random_numbers = np.random.default_rng(seed)
    sizes = {dim: int(spec.size(dim).high) for dim in spec.dims}
    rows = int(spec.operands["A"].tensor.array.shape[0].high)
    shapes = {name: tuple(int(size.high) for size in view.tensor.array.shape) for name, view in spec.operands.items()}
    arrays = {name: random_numbers.integers(-2, 3, shapes[name]).astype(np.float16) for name in ("A", "W", "scale") if name in shapes}
    if "scale" not in arrays:
        return arrays | {"rows": random_numbers.permutation(rows)[: sizes["m"]].astype(np.int32)}
    return arrays | {"rows": random_numbers.integers(0, rows, (sizes["e"], sizes["m"])).astype(np.int32)}


def expected(spec, arrays):
    wide = {name: array.astype(np.float64) for name, array in arrays.items()}
    if "scale" in arrays:
        return (wide["A"][arrays["rows"]] @ wide["W"] * wide["scale"]).astype(np.float16)
    result = np.zeros((wide["A"].shape[0], wide["W"].shape[1]))
    result[arrays["rows"]] = wide["A"][arrays["rows"]] @ wide["W"]
    return result.astype(np.float16)


def outcome(kernel, spec, order=None):
    arrays = inputs(spec)
    try:
        got = simulate(kernel, {"Y": np.zeros_like(expected(spec, arrays)), **arrays} if "scale" not in arrays else arrays, order=order)
    except FireironError as error:
        return str(error)
    return "right" if np.array_equal(got.outputs["Y"], expected(spec, arrays)) else "wrong"


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_are_right(name):
    strategy, spec, threads, arrivals, size = KERNELS[name]
    kernel = program(name).ir
    assert tuple(role.threads for role in roles_of(kernel)) == threads and kernel.threads == sum(threads)
    assert [(ring.producers, ring.bytes) for ring in kernel.rings] == [(arrivals, size)]
    assert errors(kernel) == []
    assert [outcome(kernel, spec, order) for order in (None, random.Random(1))] == ["right"] * 2
    assert loads(dumps(strategy(spec))) == strategy(spec)
    assert parse_kernel(graphene_text(program(name))).cuda == program(name).cuda


@pytest.mark.parametrize("name", KERNELS)
def test_texts(name):
    text = program(name).cuda
    assert "cp_async_mbarrier_arrive(" in text and "fence_proxy_async();  // make product_a_sh" in text
    assert ("tma_load" in text) is (name != "both copied")
    if any(one.serves(TARGET) for one in toolchains()):
        report = compile_cuda(text, TARGET).resources[program(name).name]
        assert report.spill_stores == report.stack_frame == 0


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++ or clang++) on the path")
@pytest.mark.parametrize("name", ["one warp of copies", pytest.param("experts", marks=pytest.mark.nightly)])
def test_texts_on_a_cpu(name, tmp_path):
    spec = KERNELS[name][1]
    arrays = inputs(spec)
    host = HostProgram([Printed.of(program(name))], tmp_path)
    for seed in range(2):
        assert np.array_equal(host.run(0, arrays, {}, seed)["Y"], expected(spec, arrays))


TEXT_FAULTS = {
    "not deferred": (r"cp_async_mbarrier_arrive\((product_k_ring)", r"mbarrier_arrive(\1"),
    "no fence": (r" +fence_proxy_async\(\);  // make product_a_sh.*\n", ""),
    "an arrival less": (r"8, 33\)", "8, 32)"),
    "another row": (r"&A\[min\(max\(rows\[", "&A[min(max(rows[1 + "),
}


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++ or clang++) on the path")
@pytest.mark.parametrize("fault", ["not deferred", *(pytest.param(name, marks=pytest.mark.nightly) for name in list(TEXT_FAULTS)[1:])])
def test_faults_of_texts_are_found(fault, tmp_path):
    spec = KERNELS["one warp of copies"][1]
    arrays = inputs(spec)
    host = HostProgram([Printed.of(program("one warp of copies")).changed(*TEXT_FAULTS[fault])], tmp_path)
    with pytest.raises((Refused, RuntimeError, AssertionError)):
        for seed in range(4):
            np.testing.assert_array_equal(host.run(0, arrays, {}, seed)["Y"], expected(spec, arrays))


@pytest.mark.parametrize("fault", [name for name in FAULTS if name != "arrival of half the lanes"])
def test_faults_are_found_by_both(fault):
    kernel = program("one warp of copies").ir
    wrong = FAULTS[fault](kernel)
    assert wrong != kernel and errors(wrong)
    assert outcome(wrong, KERNELS["one warp of copies"][1], random.Random(1)) not in ("right", "wrong")


def test_a_fence_of_one_consumer_is_required():
    wrong = edited(program("experts").ir, lambda stmt: () if is_proxy_fence(stmt) else (stmt,))
    assert any("no fence.proxy.async is between" in message for message in errors(wrong))
