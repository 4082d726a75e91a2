"""The printed text, executed on the CPU: equal to NumPy, exactly, for any order of the threads.

The simulator executes the IR; this oracle executes the printed text, with emulations of PTX and WMMA that share no code with
`fireiron.executable`. Faults injected into the text show that it detects them. FIREIRON_FUZZ multiplies draws and orders.
"""

import ast
import os
import re
import subprocess
from pathlib import Path

import attrs
import making
import numpy as np
import pytest
from generator import draw as drawn_strategy
from instructions import (
    FORMS,
    first_target,
    layouts_of,
    loaded_by,
    probes_of,
    product_of_warpgroups,
    spec_of,
    stored_by,
    strategy_of,
    through,
    through_choices,
)
from printed_text import COMPILER, EMULATED, HostProgram, Printed, Refused, emulated, for_the_host, map_words
from problems import NAMES, integers, library, sizes_of_run_time, target_of
from ringed import by_warps, float16_gemm
from ringed import product as ring_product
from test_random import problem, program_to_paste
from test_rings import generated as generated_ring

import fireiron
from fireiron import *
from fireiron import ir
from fireiron.check import AccessTrace, check_tma_boxes
from fireiron.cuda.expressions import HILBERT
from fireiron.values.expr import compiled
from fireiron.values.expr.hilbert import place_on_curve

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++ or clang++) on the path")

SEED = 20270108
SCALE = int(os.environ.get("FIREIRON_FUZZ", "1"))
RAGGED = ((130, 70, 33), (100, 50, 30))
SYMBOLIC = ((131, 72, 19), (1, 3, 5))
TARGETS = {"hmma_volta": ("sm_70", "sm_75"), "hmma_turing": ("sm_75", "sm_90")}


def inputs(spec, sizes, generator):
    """Small integers for A and B."""
    values = dict(zip("MNK", sizes))
    shapes = {name: tuple(compiled(size)(values) for size in spec.operands[name].shape) for name in "AB"}
    return {name: integers(shape, spec.operands[name].dtype, generator) for name, shape in shapes.items()}


def agrees(host, number, spec, sizes, symbols=None, seed=0):
    """Whether a launch equals NumPy."""
    arrays = inputs(spec, sizes, np.random.default_rng(seed))
    got = host.run(number, arrays, symbols, seed)["C"]
    return np.array_equal(got, spec.reference(arrays["A"], arrays["B"]))


# ---------------------------------------------------------------------------------------------- the library


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", NAMES)
def test_library(name, tmp_path):
    """Every strategy of the library on two targets, at sizes that are not multiples of its tiles, known and unknown to the compiler."""
    module = library(name)
    old, new = TARGETS.get(name, ("sm_75", "sm_80"))
    old, new = (target_of(name, one) for one in (old, new))
    jobs = [(module.spec(*sizes), sizes, {}, target) for sizes, target in zip(RAGGED, (old, new))]
    if name != "listing_1":  # its shared-memory buffers are as large as K
        spec = module.spec(*sizes_of_run_time(name))
        jobs += [(spec, sizes, dict(zip("MNK", sizes)), new) for sizes in SYMBOLIC]
    host = HostProgram([Printed.of(module.strategy(spec).program(target)) for spec, _, _, target in jobs], tmp_path)
    for number, (spec, sizes, symbols, target) in enumerate(jobs):
        for seed in range(SCALE):
            assert agrees(host, number, spec, sizes, symbols, seed), (name, sizes, target, seed)


@pytest.mark.parametrize("dtype", [float64, float16, bfloat16, int32, int8], ids=str)
def test_element_types(dtype, tmp_path):
    sizes = (70, 35, 17)
    specs = [library(name).spec(*sizes, dtype=dtype) for name in ("listing_1", "gemm_tt")]
    host = HostProgram(
        [Printed.of(library(name).strategy(spec).program("sm_90")) for name, spec in zip(("listing_1", "gemm_tt"), specs)], tmp_path
    )
    assert all(agrees(host, number, spec, sizes) for number, spec in enumerate(specs))


# ---------------------------------------------------------------------------------------------- random strategies

DRAWS = 36 * SCALE
CHUNKS = 6


@pytest.mark.sampled(18)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_drawn_strategies(chunk, tmp_path):
    seeds = range(SEED + chunk, SEED + DRAWS, CHUNKS)
    print(f"seeds {list(seeds)}")
    for start in range(0, len(seeds), 12):
        some = seeds[start : start + 12]
        drawn = [drawn_strategy(seed)[0] for seed in some]
        host = HostProgram([Printed.of(one.program) for one in drawn], tmp_path)
        for number, (seed, draw) in enumerate(zip(some, drawn)):
            arrays, expected = problem(draw, seed)
            try:
                got = host.run(number, arrays, draw.symbols, seed)["C"]
            except Refused as report:
                raise AssertionError(f"{report}{program_to_paste(draw)}") from None
            assert np.array_equal(got, expected), program_to_paste(draw)


# ---------------------------------------------------------------------------------------------- instructions


def groups(values, count):
    """The values in `count` parts of about the same size."""
    values = list(values)
    return [values[number::count] for number in range(count)]


@pytest.mark.parametrize("forms", groups(FORMS, len(FORMS)), ids=lambda forms: forms[0].name)
def test_mma_lane_maps(forms, tmp_path):
    """Each form of mma.sync with operands that distinguish all elements: its lane maps are those of the PTX ISA."""
    specs = [spec_of(form, *layouts_of(form)[0], sizes=(16, 16, max(form.shape[2], 4))) for form in forms]
    strategies = [strategy_of(form, tiles=(16, 16), chunk=max(form.shape[2], 4)) for form in forms]
    programs = [strategy(spec).program(first_target(form.capability)) for form, spec, strategy in zip(forms, specs, strategies)]
    host = HostProgram(map(Printed.of, programs), tmp_path)
    for number, (form, spec) in enumerate(zip(forms, specs)):
        for a, b in probes_of(form):
            np.testing.assert_array_equal(host.run(number, {"A": a, "B": b})["C"], spec.reference(a, b), form.name)


def test_copies_of_a_warp(tmp_path):
    """ldmatrix, movmatrix and stmatrix; each of their forms in the nightly tier."""
    copies = [through(*choice).program("sm_90") for choice in through_choices()]
    products = [loaded_by(one).program("sm_90") for one in LDMATRIX] + [stored_by(one).program("sm_90") for one in STMATRIX if one.pairs]
    copies, products = copies[:: 1 if SCALE > 1 else 4], products[:: 1 if SCALE > 1 else 3]
    host = HostProgram(map(Printed.of, copies + products), tmp_path)
    values = np.random.default_rng(5).permutation(1024).reshape(32, 32).astype(np.float16)
    for number in range(len(copies)):
        np.testing.assert_array_equal(host.run(number, {"src": values})["dst"], values)
    for number, program in enumerate(products, len(copies)):
        assert agrees(host, number, program.spec, (32, 32, 64)), program.strategy


WARPGROUPS = {
    "one stage, NN, several chunks": (0, {"tiles": (64, 128), "columns": 128, "chunk": 64, "orders": (RowMajor, RowMajor)}, (100, 130, 70)),
    "cp.async, NT": (0, {"tiles": (128, 64), "chunk": 64, "stages": 3}, (128, 70, 130)),
    "two warpgroups in N, TN, narrow spans": (
        0,
        {"tiles": (64, 96), "columns": 48, "chunk": 32, "stages": 2, "orders": (ColMajor, RowMajor)},
        (64, 96, 96),
    ),
    "dynamic shared memory": (0, {"tiles": (128, 64), "chunk": 128, "stages": 3, "orders": (ColMajor, ColMajor)}, (128, 64, 256)),
}
"""wgmma strategies in float16, and the sizes of a problem."""


@pytest.mark.parametrize("name", WARPGROUPS)
def test_products_of_warpgroups(name, tmp_path):
    """Operands are read where the descriptors point, by the PTX ISA's own arithmetic of strides and swizzles."""
    form, options, sizes = WARPGROUPS[name]
    program = product_of_warpgroups(WGMMA[form], sizes=sizes, **options).program("sm_90a")
    host = HostProgram([Printed.of(program)], tmp_path)
    assert all(agrees(host, 0, program.spec, sizes, seed=seed) for seed in range(1 + SCALE))


@pytest.mark.nightly
@pytest.mark.sampled(2)
def test_forms_of_wgmma(tmp_path):
    """Each form, straight and swapped; in the nightly tier with all operand orders that it supports."""
    programs = []
    for form in WGMMA:
        tiles, chunk = (16, 64) if form.swapped else (64, 16), 64 // form.factors[0].bytes
        sizes = (*tiles, 2 * chunk)
        programs.append((product_of_warpgroups(form, tiles, chunk, 2, 16, sizes=sizes).program("sm_90a"), sizes))
    host = HostProgram([Printed.of(program) for program, _ in programs], tmp_path)
    for number, (program, sizes) in enumerate(programs):
        assert agrees(host, number, program.spec, sizes), program.strategy


def test_descriptors_with_many_static_arrays(tmp_path):
    """A descriptor holds 18 address bits; the static arrays of the program texts are adjacent and exceed them."""
    sizes = (64, 128, 128)
    text = Printed.of(product_of_warpgroups(WGMMA[0], (64, 128), 64, 1, 128, (RowMajor, RowMajor), sizes).program("sm_90a"))
    many = text.changed(r"(\n +__shared__)", r"\n  __shared__ volatile char far[5 << 16]; far[0] = 0;\1")
    host = HostProgram([text, many, text, many, text], tmp_path)
    assert all(agrees(host, number, text.kernel.spec, sizes) for number in (0, 2, 4))


# ---------------------------------------------------------------------------------------------- producers and consumers

RINGS = {
    "warps consume": (by_warps(tma=True), float16_gemm(128, 64, 192, c_dtype=float32), None),
    "persistent, an iteration in flight": (ring_product((64, 64, 64), (64, 64), 3, blocks=2, group_m=2), float16_gemm(200, 72, 168), None),
    "persistent, along a curve": (ring_product((64, 64, 64), (64, 64), 3, blocks=2, group_m=(1, 2)), float16_gemm(200, 136, 72), None),
    "along a curve, sizes at run time": (
        ring_product((64, 64, 64), (64, 64), 2, blocks=2, group_m=(1, 2)),
        float16_gemm(sym("M"), sym("N", multiple_of=8), sym("K", multiple_of=8)),
        (300, 136, 72),
    ),
    "a warpgroup produces": (ring_product(producer=128), float16_gemm(136, 64, 128), None),
    "swapped, TT": (ring_product((16, 64, 64), (16, 64), 2), float16_gemm(32, 128, 192, orders="TT"), None),
    "steps of 128, narrow stores": (ring_product((64, 128, 128), (64, 64), 2, chunk=32), float16_gemm(64, 128, 256, orders="TN"), None),
    "sizes at run time": (
        ring_product((64, 64, 64), (64, 64), 3, blocks=3, group_m=2, mma_in_flight=2),
        float16_gemm(sym("M"), sym("N", multiple_of=8), sym("K", multiple_of=8)),
        (131, 72, 200),
    ),
    "clusters of 2": (ring_product((64, 64, 64), (64, 64), 2, cluster=(2, 1)), float16_gemm(200, 72, 200), None),
    "clusters of 4 that stay": (
        ring_product((64, 64, 64), (64, 64), 2, cluster=(2, 2), blocks=4, group_m=4, mma_in_flight=1),
        float16_gemm(sym("M"), sym("N", multiple_of=8), sym("K", multiple_of=8)),
        (300, 72, 136),
    ),
    "clusters, chained": (
        ring_product((64, 64, 64), (64, 64), 2, cluster=(2, 1)).at(Tile).refine(ProgrammaticLaunch()),
        float16_gemm(256, 72, 200),
        None,
    ),
    "clusters that share parts of 12 rows": (ring_product((24, 64, 64), (24, 64), 2, cluster=(1, 2)), float16_gemm(40, 128, 136), None),
    "clusters side by side": (ring_product((64, 128, 64), (64, 64), 2, cluster=(1, 2)), float16_gemm(64, 256, 128, orders="TT"), None),
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", RINGS)
def test_rings(name, tmp_path):
    """Mbarriers with their phases, loads that complete in any order, stores that read until they are waited for."""
    strategy, spec, given = RINGS[name]
    sizes = given or tuple(int(str(size)) for size in spec.sizes)
    symbols = dict(zip("MNK", given)) if given else None
    host = HostProgram([Printed.of(strategy(spec).program("sm_90a"))], tmp_path)
    assert all(agrees(host, 0, spec, sizes, symbols, seed) for seed in range(3 * SCALE))


CLUSTER_FAULTS = {
    "to itself alone": (r"0x3\);(\s+\})", r"0x1);\1"),
    "arrives at home alone": (r"mbarrier_arrive_cluster\((.*), 0x3\)", r"mbarrier_arrive_cluster(\1, 1 << rank_m)"),
    "counts its own": (r"mbarrier_init\(k_ring_empty \+ stage \* 8, 8\)", "mbarrier_init(k_ring_empty + stage * 8, 4)"),
    "no start": (r"  cluster_sync\(\);  // the mbarriers of all.*\n", ""),
    "no end": (r"  cluster_sync\(\);  // no block exits.*\n", ""),
}


@pytest.mark.sampled(18)
@pytest.mark.parametrize("name", CLUSTER_FAULTS)
def test_faults_of_clusters_are_found(name, tmp_path):
    """A text that sends to too few blocks, arrives at too few, expects too few, or does not wait for the others."""
    sizes = (256, 64, 320)
    text = Printed.of(ring_product((64, 64, 64), (64, 64), 2, cluster=(2, 1))(float16_gemm(*sizes)).program("sm_90a"))
    results = outcomes(text.changed(*CLUSTER_FAULTS[name]), sizes, tmp_path)
    assert set(results) != {"right"}, results


def test_drawn_rings(tmp_path):
    seeds = range(SEED, SEED + 4 * SCALE)
    for start in range(0, len(seeds), 8):
        drawn = [(seed, *generated_ring(seed)) for seed in seeds[start : start + 8]]
        host = HostProgram([Printed.of(strategy(spec).program("sm_90a")) for _, strategy, spec in drawn], tmp_path)
        for number, (seed, strategy, spec) in enumerate(drawn):
            assert agrees(host, number, spec, tuple(int(str(size)) for size in spec.sizes), seed=seed), (seed, strategy, spec)


# ---------------------------------------------------------------------------------------------- orders of blocks

GRIDS_TO = 24
"""Grid extents for which the printed curve is compared."""

ON_THE_HOST = """
#include <algorithm>
#include <cstdio>
#define __device__
#define __forceinline__ static
using std::max, std::min;
{function}
int main() {{
    for (int lines = 1; lines <= {most}; ++lines)
        for (int columns = 1; columns <= {most}; ++columns)
            for (int number = 0; number < lines * columns; ++number) printf("%d\\n", hilbert(number, lines, columns));
    printf("%d\\n", hilbert(2147395599, 46340, 46340));
}}
"""


def test_the_printed_curve_is_that_of_the_checks(tmp_path):
    (tmp_path / "curve.cpp").write_text(ON_THE_HOST.format(function="\n".join(HILBERT.text("hilbert")), most=GRIDS_TO))
    subprocess.run([COMPILER, "-std=c++17", "-O1", "-fsanitize=undefined", "-o", "curve", "curve.cpp"], cwd=tmp_path, check=True)
    process = subprocess.run([tmp_path / "curve"], capture_output=True, text=True, check=True)
    sides = range(1, GRIDS_TO + 1)
    expected = [place for one in sides for other in sides for place in place_on_curve(np.arange(one * other), one, other).tolist()]
    assert process.stderr == "" and [*map(int, process.stdout.split())] == [*expected, place_on_curve(2147395599, 46340, 46340)]


# ---------------------------------------------------------------------------------------------- regressions


def test_parts_without_any_k(tmp_path):
    """Parts of a split-k without any k step still write their zeros."""
    strategy = MatMul.tile(8, 8).to(Block).split_k(4, Warp, 4).split(1).tile(4, 4).to(Lane).tile(1, 1).done()
    spec = MatMul(8, 8, 8)(GL, GL, GL)(Kernel)
    host = HostProgram([Printed.of(strategy(spec).program("sm_80"))], tmp_path)
    assert agrees(host, 0, spec, (8, 8, 8))


# ---------------------------------------------------------------------------------------------- the oracle detects faults

ORDERS = 8


def outcomes(printed, sizes, folder, orders=ORDERS):
    """The outcomes of a launch with several thread orders: "right", "wrong", or the report."""
    spec = printed.kernel.spec
    host = HostProgram([printed], folder)
    results = []
    for seed in range(orders):
        try:
            results.append("right" if agrees(host, 0, spec, sizes, seed=seed) else "wrong")
        except Refused as report:
            results.append(str(report))
    return results


def printed(name, sizes, target="sm_80", **options):
    """A strategy of the library as printed."""
    module = library(name)
    return Printed.of(module.strategy(module.spec(*sizes, **options)).program(target))


def test_a_dropped_guard_is_found(tmp_path):
    sizes = (37, 20, 9)
    text = printed("naive", sizes)
    assert set(outcomes(text, sizes, tmp_path)) == {"right"}
    for report in outcomes(text.changed(r"if \(.*\)( \{)?\n", r"if (true)\1\n", 0), sizes, tmp_path):
        assert "AddressSanitizer" in report or "outside of the tensor" in report, report


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", range(2))
def test_a_dropped_barrier_is_found(number, tmp_path):
    sizes = (70, 70, 40)
    text = printed("listing_2", sizes)
    assert text.text.count("__syncthreads();") == 2
    parts = text.text.split("__syncthreads();")
    parts[number : number + 2] = ["".join(parts[number : number + 2])]
    results = outcomes(Printed("__syncthreads();".join(parts), text.kernel), sizes, tmp_path)
    assert results.count("wrong") > ORDERS // 2, results


def test_a_misaligned_vector_is_found(tmp_path):
    sizes = (128, 128, 32)
    faulty = printed("gemm_nn", sizes).changed(r"reinterpret_cast<float4\*>\(&(\w+)\[", r"reinterpret_cast<float4*>(&\1[1 + ")
    reports = outcomes(faulty, sizes, tmp_path)
    assert all("misaligned address" in report and "float4" in report for report in reports), reports


@pytest.mark.nightly
def test_a_wait_for_too_few_groups_is_found(tmp_path):
    sizes = (64, 64, 512)
    faulty = printed("small", sizes).changed(r"cp_async_wait_group<(\d+)>\(\)", r"cp_async_wait_group<1\1>()", 0)
    results = outcomes(faulty, sizes, tmp_path)
    assert results.count("wrong") > ORDERS // 2, results


def test_a_swapped_address_of_ldmatrix_is_found(tmp_path):
    sizes = (64, 64, 64)
    results = outcomes(printed("small", sizes).changed(r"lane % 16 \*", "(lane % 16 ^ 8) *"), sizes, tmp_path)
    assert results == ["wrong"] * ORDERS, results


def test_an_address_beyond_shared_memory_is_found(tmp_path):
    sizes = (64, 64, 16)
    faulty = printed("listing_2", sizes).changed(r"= a_sh\[", "= a_sh[1024 + ")
    reports = outcomes(faulty, sizes, tmp_path)
    expected = ("AddressSanitizer", "out of bounds", "insufficient space")
    assert all(any(one in report for one in expected) for report in reports), reports


@pytest.mark.nightly
def test_an_address_beyond_dynamic_shared_memory_is_found(tmp_path):
    sizes = (128, 256, 64)
    faulty = printed("hmma_ampere", sizes).changed(r"\(smem\)", "(smem + 8192)", 0)
    assert all("AddressSanitizer" in report for report in outcomes(faulty, sizes, tmp_path))


def test_diverging_lanes_are_detected(tmp_path):
    sizes = (64, 64, 64)
    faulty = printed("small", sizes).changed(r'(?m)^ +(?=asm volatile\("mma)', "if (threadIdx.x % 32 < 16) ")
    reports = outcomes(faulty, sizes, tmp_path)
    assert all(" part: " in report or "deadlock" in report for report in reports), reports


WARPGROUP_FAULTS = {
    "the stride of chunks": (r"matrix_descriptor<8192,", "matrix_descriptor<4096,", "wrong"),
    "the stride of groups": (r"matrix_descriptor<0, 1024,", "matrix_descriptor<0, 512,", "wrong"),
    "the swizzle": (r"matrix_descriptor<0, 1024, 1>", "matrix_descriptor<0, 1024, 2>", "wrong"),
    "the order of a factor": (r"scale_d, 1, 1, 0, 1; }", "scale_d, 1, 1, 0, 0; }", "lie outside"),
    "the next step of k": (r"a_sh_address \+ (\w+) \* 32", r"a_sh_address + \1 * 64", "wrong"),
    "fields beyond their bits": (r"address & 0x3FFFF", "(address & 0x3FFFF) << 5", "wrong|lie outside"),
    "fences of registers": (r"\n +wgmma_fence\(\);", "", "no wgmma.fence before the first"),
    "commits": (r"\n +wgmma_commit_group\(\);", "", "a register of a product under way is touched"),
    "waits": (r"\n +wgmma_wait_group<0>\(\);[^\n]*", "", "a register of a product under way is touched"),
    "a register without a fence": (
        r"(wgmma_fence\(\);\n)",
        r"\1    asm volatile(\"\" : \"+f\"(c_rf[3]) :: \"memory\"); c_rf[3] += 0.0f;\n",
        "a register was touched, with no wgmma.fence behind it",
    ),
    "the fence of the proxy": (r"\n +fence_proxy_async\(\);", "", "thread \\d+ wrote shared memory .* no fence.proxy.async"),
    "the fence of the proxy in some threads": (
        r"\n +fence_proxy_async\(\);",
        "\\n    if (threadIdx.x != 77) fence_proxy_async();",
        "thread 77 wrote shared memory .* no fence.proxy.async",
    ),
    "the fence of the proxy before the writes": (
        r"(?s)(    // A to a_sh.*?)\n( +fence_proxy_async\(\);[^\n]*)",
        r"\2\n\1",
        "wrote shared memory .* no fence.proxy.async",
    ),
    "some threads": (r"\n( +)wgmma_commit_group\(\);", r"\n\1if (threadIdx.x < 100) wgmma_commit_group();", " part: |deadlock"),
}
"""Faults in the text of a warpgroup GEMM: the pattern, its replacement, and the outcome of the launch."""


@pytest.mark.parametrize("name", WARPGROUP_FAULTS)
def test_faults_in_products_of_warpgroups_are_found(name, tmp_path):
    pattern, replacement, expected = WARPGROUP_FAULTS[name]
    sizes = (64, 128, 128)
    printed = Printed.of(product_of_warpgroups(WGMMA[0], (64, 128), 64, 1, 128, (RowMajor, RowMajor), sizes).program("sm_90a"))
    results = outcomes(printed.changed(pattern, replacement, 0), sizes, tmp_path, 2)
    assert all(re.search(expected, one) for one in results), results


RING_FAULTS = {
    "the wait for full stages": (r"mbarrier_wait\(k_ring_full[^;]*;", "", "wrong|more than"),
    "the wait for empty stages": (r"mbarrier_wait\(k_ring_empty[^;]*;", "", "wrong|more than|deadlock"),
    "its parity": (r"(mbarrier_wait\(k_ring_empty [^,]*, )", r"\g<1>1 ^ ", "deadlock"),
    "a parity of more than a bit": (r"(mbarrier_wait\(k_ring_full [^,]*, )", r"\g<1>2 + ", "parity [23]"),
    "the bytes of a stage": (r"(mbarrier_arrive_expect_tx\([^,]*, )k_ring_bytes", r"\g<1>64", "deadlock"),
    "who empties a stage": (
        r"if \(thread % 32 == 0[^)]*\)\s+mbarrier_arrive",
        "if (thread % 32 <= 1) mbarrier_arrive",
        "more than|wrong|deadlock",
    ),
    "nobody does": (r"mbarrier_arrive\(k_ring_empty[^;]*;", ";", "deadlock"),
    "barriers that are not there yet": (r"fence_mbarrier_init\(\);", "", "was not fenced after mbarrier.init"),
    "the coordinates of a box": (r"&A_map,\s+k \* 64", "&A_map, k * 32", "wrong"),
    "columns and rows": (r"&B_map,\s+([^;]*?),\s+k \* 64,", r"&B_map, k * 64, \1,", "wrong"),
    "the wait for stores": (r"tma_store_wait_group<0>\(\);", "", "ends while stores read its shared memory"),
    "the fence of a store": (r"\n +fence_proxy_async\(\);", "", "TMA store in line .* no fence.proxy.async"),
    "the wait for products": (r"\n +wgmma_wait_group<0>\(\);", "", "a register of a product under way is touched"),
    "the group of a store": (r"tma_store_commit_group\(\);", "", "ends while stores read its shared memory"),
}
"""Faults in the text of a kernel with a producer."""


@pytest.mark.parametrize("name", RING_FAULTS)
def test_faults_in_rings_are_found(name, tmp_path):
    pattern, replacement, expected = RING_FAULTS[name]
    spec = float16_gemm(64, 128, 448)
    body = Printed.of(ring_product((64, 64, 64), (64, 64), 2, mma_in_flight=0)(spec).program("sm_90a"))
    results = outcomes(body.changed(pattern, replacement, 0), (64, 128, 448), tmp_path, 4)
    # Early completion of loads hides a missing wait.
    required = any if name == "the wait for full stages" else all
    assert required(re.search(expected, one) for one in results), results


def with_maps(kernel, name, **changed):
    """The kernel with one of its tensor maps changed, as the launcher encodes it."""

    def change(stmt):
        matches = isinstance(stmt, ir.Exec) and stmt.tensor_map is not None and stmt.tensor_map.name == name
        return (attrs.evolve(stmt, tensor_map=attrs.evolve(stmt.tensor_map, **changed)) if matches else stmt,)

    return attrs.evolve(kernel, body=ir.rewritten(kernel.body, change))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["A_map", "C_map"])
def test_tensor_maps_are_taken_as_the_launcher_encodes_them(name, tmp_path):
    """A span or a box that differs from what the text assumes: this test and the static check both detect it from the map's numbers."""
    program = ring_product((64, 64, 64), (64, 64), 2, mma_in_flight=0)(float16_gemm(64, 128, 192)).program("sm_90a")
    (box,) = {one.box for one in program.ir.maps if one.name == name}
    assert box == (64, 64) and not check_tma_boxes(AccessTrace(program.ir))
    for number, changed in enumerate(({"span": 16}, {"box": (32, 64)}, {"box": (64, 32)})):
        kernel, folder = with_maps(program.ir, name, **changed), tmp_path / str(number)
        folder.mkdir()
        assert "right" not in outcomes(Printed(program.text, kernel), (64, 128, 192), folder, 2), changed
        halved = changed == {"box": (64, 32)}  # this would be right if the text were printed from it
        assert bool(check_tma_boxes(AccessTrace(kernel))) is not halved, changed


def test_encoder_arguments_describe_the_arrays():
    """Type, sizes, strides, box, steps and modes of the driver's call, as words."""
    words = map_words(
        making.tensor_map("A_map", "A", (1, 0), (64, 32), 128),
        ring_product()(float16_gemm(200, 72, 168)).program("sm_90a").ir.buffer("A"),
        {},
    )
    steps = sum(1 << 32 + 4 * place for place in range(2))
    assert [*map(int, words.split())] == [6 | 2 << 8 | 3 << 16 | steps, 168, 200, 1, 1, 1, 336, 0, 0, 0, 64, 32, 1, 1, 1]


def test_a_missing_wait_for_products_is_found(tmp_path):
    sizes = (64, 128, 128)
    printed = Printed.of(product_of_warpgroups(WGMMA[0], (64, 128), 64, 1, 128, (RowMajor, RowMajor), sizes).program("sm_90a"))
    results = outcomes(printed.changed(r"wgmma_wait_group<0>\(\);", "wgmma_wait_group<1>();", 0), sizes, tmp_path, 4)
    assert "right" not in results, results


def test_fresh_memory_is_poison(tmp_path):
    sizes = (70, 70, 9)
    faulty = printed("gemm_nn", sizes).changed(r"\w+\[[^\]]*\] = 0\.0f;", ";", 0)
    assert outcomes(faulty, sizes, tmp_path) == ["wrong"] * ORDERS


def test_text_that_no_compiler_takes_is_refused(tmp_path):
    with pytest.raises(Refused, match="refuses the text"):
        HostProgram([printed("naive", (8, 8, 8)).changed(r"\{", "{ undeclared;")], tmp_path)


# ---------------------------------------------------------------------------------------------- inline PTX as calls


def test_asm_is_replaced_by_a_call_on_the_same_line():
    text = 'before;\nasm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"\n    :\n    : "r"(to[a ? 1 : 0]), "l"(&A[f(1, 2)]), "r"(inside ? 16 : 0)\n    : "memory");\nafter;'
    changed = for_the_host(text)
    assert "ptx::cp_async(true, ptx::in(to[a ? 1 : 0]), ptx::in(&A[f(1, 2)]), ptx::in(16), ptx::in(inside ? 16 : 0));" in changed.replace(
        "\n", ""
    )
    assert changed.count("\n") == text.count("\n") and changed.endswith("after;")


def test_asm_of_an_unknown_instruction_is_refused():
    with pytest.raises(Refused, match=r"no emulation .* wgmma.unknown"):
        emulated('"wgmma.unknown;" ::: "memory"')


# ---------------------------------------------------------------------------------------------- everything printed is emulated

PTX = re.compile(
    r"(?<![\w.%:/\[(])((?:add|atom|bar|barrier|clusterlaunchcontrol|cp|createpolicy|cvt|discard|div|elect|ex2|fence|fma|getctarank|griddepcontrol|"
    r"isspacep|ld|ldmatrix|lg2|ldu|mad|mapa|max|mbarrier|membar|min|mma|mov|movmatrix|mul|multimem|nanosleep|neg|prefetch|prefetchu|rcp|red|redux|"
    r"rsqrt|setmaxnreg|setp|shfl|sin|cos|sqrt|st|stmatrix|sub|tanh|tcgen05|tensormap|vote|wgmma|wmma)"
    r"(?:\.(?:\{\}|[a-z0-9_:])+)+)"
)
"""A PTX instruction with its modifiers, `{}` for values filled in."""

FIELDS = {
    "setp.ne.b32": "part of a product's text, which `Asm` reads as its predicate",
    "mapa.shared::cluster.u32": "part of the arrival at another block, which `Asm` reads as one instruction",
    "mbarrier.arrive.shared::cluster.b64": "the other part",
    "setp.ne.u32": "part of a barrier with a vote, which is emulated as a whole",
    "st.release.sys.global.u32": "a barrier of GPUs, which no kernel of the language contains",
    "ld.{}.sys.global.u32": "a wait of an exchange between GPUs, whose forms `test_printed_node.py` executes",
}
"""Instructions that are parts of others, and where they are emulated."""

FILLED = (
    "cp.async.{}.shared.global", "cp.async.bulk.tensor.{}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes",
    "cp.async.bulk.tensor.{}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster",
    "cp.async.bulk.tensor.{}d.global.shared::cta.tile.bulk_group", "cp.reduce.async.bulk.tensor.{}d.global.shared::cta.add.tile.bulk_group",
    "setmaxnreg.{}.sync.aligned.u32", "ldmatrix.sync.aligned.m8n8.x{}{}.shared.b16",
    "ldmatrix.sync.aligned.m8n8.x4{}.shared.b16", "stmatrix.sync.aligned.m8n8.x{}{}.shared.b16", "stmatrix.sync.aligned.m8n8.x4{}.shared.b16",
    "wgmma.mma_async.sync.aligned.{}.{}", "mma.sync.aligned.m16n8k{}.row.col.{}.{}.{}.{}", "mma.sync.aligned.m{}n8k{}.row.col.f64.f64.f64.f64",
    "mma.sync.aligned.m{}n8k{}.row.col.s32.s8.s8.s32", "mma.sync.aligned.m16n8k{}.row.col.f32.tf32.tf32.f32",
    "mma.sync.aligned.m8n8k4.{}.{}.{}.f16.f16.{}", "cvt.rn.{}.f32", "max.{}",
    "mma.sp::ordered_metadata.sync.aligned.m{}n{}k{}.row.col.{}", "wgmma.mma_async.sp.sync.aligned.{}.{}",
    "cp.async.bulk.tensor.{}d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes{}", "red.global.add.noftz.{}",
    "red.global.add.noftz{}.{}x2", "red.global.add.v{}.f32",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.{}",
)  # fmt: skip
"""Instructions with values filled in: each of their forms is printed and executed above, those of sparse matmuls in `test_sparse.py`,
loads of pixels in `test_im2col.py`, vectors of additions in `test_added_halves.py`, bulk additions in `test_bulk_add.py`.
"""


WORDS = {
    "cvt.rzi.s32.f64",
    "cvt.rzi.s64",
    "cp.async",
    "mma.h",
    "mma.sync",
    "mma.m16n8k16",
    "fence.proxy.async",
    "wgmma.fence",
    "griddepcontrol.{}",
    "add.tile",
}
"""Words of messages, of comments, of strategies, of `explain_sync` and of an include."""


def instructions_of_the_package():
    """All PTX in the sources of the package, with `{}` for values filled in; without documents and comments."""
    instructions = set()
    for file in sorted(Path(fireiron.__file__).parent.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if not PTX.search(text):
            continue
        tree = ast.parse(text)
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings are skipped
        inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings | inner:
                instructions.update(PTX.findall(node.value))
            elif isinstance(node, ast.JoinedStr):
                instructions.update(PTX.findall("".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)))
    return instructions


def test_each_instruction_of_the_package_is_emulated():
    """A new mnemonic without an emulation fails here, and so does an emulation of an instruction that is never printed."""
    printed = instructions_of_the_package() - WORDS
    emulated = {one for one in printed if any(re.fullmatch(pattern, one) for pattern in EMULATED)}
    assert printed - emulated == {*FILLED, *FIELDS}, printed - emulated ^ {*FILLED, *FIELDS}


OWN_BOUNDS = """for (int m = 0; m < c_size_m; ++m)
  for (int n = 0; n < c_size_n; ++n)
    for (int k = 0; k < a_size_k; ++k)
      c_at(m, n) = (accumulate || k > 0 ? c_at(m, n) : c_type(0)) + (m < a_size_m && n < b_size_n ? a_at(m, k) * b_at(k, n) : c_type(0));
"""
ONE_LINE = (
    "for (int k = 0; k < b_size_k; ++k) if (accumulate || k > 0) c[0] += a_at(0, k) * b_at(k, 0); else c[0] = a_at(0, k) * b_at(k, 0);"
)
TEXTS = {
    "parts of k by steps of one": (MatMul.tile(16, 8).to(Block).split_k(3, QuadPair, 1), OWN_BOUNDS),
    "parts of k by steps of two": (MatMul.tile(16, 8).to(Block).split_k(3, Warp, 2), OWN_BOUNDS),
    "registers": (MatMul.tile(16, 8).to(Block).epilog(RF), OWN_BOUNDS),
    "a line": (MatMul.tile(16, 8).to(Block).split_k(2, Warp, 1), ONE_LINE),
}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (5, 3, 4), (17, 9, 7), (16, 8, 5)])
def test_micro_kernels_beyond_the_ends_of_their_inputs(name, sizes, tmp_path):
    """A text without any term in bounds is not executed, and what it overwrites becomes zero; sizes count elements with a stride."""
    before, text = TEXTS[name]
    level = Thread if name == "registers" else Lane
    chain = before.tile(*(1, 1) if text is ONE_LINE else (4, 2)).to(level).done(text)
    problem = MatMul(*sizes)(GL, GL, GL)(Kernel)
    host = HostProgram([Printed.of(chain(problem).program("sm_80"))], tmp_path)
    arrays = {one: integers(shape, float32, np.random.default_rng(1)) for one, shape in {"A": sizes[::2], "B": sizes[:0:-1]}.items()}
    assert np.array_equal(host.run(0, dict(arrays), {}, seed=1)["C"], arrays["A"] @ arrays["B"])
