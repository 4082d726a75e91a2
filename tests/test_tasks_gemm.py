"""GEMM as a task program: one program with mappings to Ampere and Hopper, correct and race-free in each (Cypress, Figure 5)."""

import re
from collections import Counter
from random import Random

import attrs
import numpy
import pytest

from fireiron import *
from fireiron import tasks
from fireiron.check import check
from fireiron.strategies import tasks_gemm as gemm
from fireiron.tasks import *

SMALL = gemm.ampere(32, 32, 32, 2, 2, 2)
UNSWIZZLED = SMALL.with_("gemm_tile", layouts={})
FFMA = gemm.ffma(16, 16, 4, (2, 1), (2, 4))
FIGURE_5 = gemm.hopper(128, 64, stages=2)


def with_mems(mapping, **mems):
    """The mapping with tensors of some instances in other memories."""
    return attrs.evolve(mapping, instances=tuple(attrs.evolve(one, mems=mems.get(one.instance, one.mems)) for one in mapping.instances))


def staged(mapping):
    """The mapping that copies the whole result through shared memory."""
    store = TaskMapping("copy_tile", "copy_thread", BLOCK, [GLOBAL, SHARED])
    return attrs.evolve(mapping, instances=tuple(store if one.instance == "copy_tile" else one for one in mapping.instances))


def float16_gemm(M, N, K, dtype=float16):
    return MatMul(M, N, K, dtype=dtype, c_dtype=dtype, A=RowMajor, B=RowMajor, C=RowMajor)(GL, GL, GL)(Kernel)


def arrays(M, N, K, dtype="float16"):
    random = numpy.random.default_rng(7)
    return random.integers(-3, 4, (M, K)).astype(dtype), random.integers(-3, 4, (K, N)).astype(dtype)


CASES = {
    "mma.sync, ragged": (SMALL, (40, 64, 72), "sm_80", ("cp_async_16", "ldmatrix_x4", "mma_m16n8k16_f32_f16")),
    "result through shared memory": (staged(SMALL), (40, 64, 72), "sm_80", ("src_sh",)),
    "A and B straight from global": (with_mems(UNSWIZZLED, gemm_tile=[NONE] * 3), (40, 64, 72), "sm_80", ("mma_m16n8k16",)),
    "fragments of each instruction": (with_mems(SMALL, gemm_step=[NONE] * 3), (32, 32, 32), "sm_80", ("ldmatrix",)),
    "shared memory of each warp": (
        with_mems(UNSWIZZLED, gemm_tile=[NONE] * 3, gemm_warp=[NONE, SHARED, SHARED]), (32, 32, 64), "sm_80", ("a_sh[",),
    ),
    "accumulator in shared memory": (with_mems(SMALL, clear_tile=[SHARED]), (40, 64, 72), "sm_80", ("c_sh", "c_rf2")),
    "multiply-adds": (FFMA, (20, 24, 10), "sm_80", ("a_rf", "b_rf")),
    "Figure 5": (FIGURE_5, (136, 64, 200), "sm_90a", ("tma_load", "k_ring_full", "wgmma_m64n64k16", "// producer")),
    "Figure 5, staged": (staged(FIGURE_5), (136, 64, 200), "sm_90a", ("wgmma", "consumers_sync")),
    "Figure 5, without a producer": (
        FIGURE_5.with_("gemm_block", warpspecialize=False, pipeline=0), (128, 64, 64), "sm_90a", ("wgmma_m64n64k16",),
    ),
}  # fmt: skip


OFTEN = ("mma.sync, ragged", "accumulator in shared memory", "multiply-adds", "Figure 5")
"""The cases that each run compiles; the others are variations."""


@pytest.mark.parametrize("name", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.nightly) for name in CASES])
def test_mappings_do_not_change_results(name):
    mapping, sizes, target, words = CASES[name]
    bound = tasks.strategy(gemm.program, mapping)(float16_gemm(*sizes))
    program = bound.program(target)
    assert [one for one in check(program.ir) if one.severity == "error"] == []
    a, b = arrays(*sizes)
    wanted = (a.astype("float32") @ b.astype("float32")).astype("float16")
    assert (bound.compile(target)(a, b) == wanted).all()
    for word in words:
        assert word in program.cuda, word


@pytest.mark.parametrize("mapping", [gemm.ampere(16, 8, 16, 1, 1, 2), gemm.ffma(8, 8, 4, (1, 1), (2, 2))], ids=["mma", "ffma"])
def test_the_sequential_semantics_are_a_matmul(mapping):
    """Launches of a prange in any order, and tiles that overhang."""
    a, b = arrays(9, 8, 17)
    for seed in (None, 3):
        c = numpy.zeros((9, 8), "float16")
        tasks.run(gemm.program, mapping, c, a, b, seed=seed)
        assert (c == a.astype("float32") @ b.astype("float32")).all()


def test_an_accumulator_left_in_registers_has_no_bytes():
    """NONE for a block and REGISTER for its threads: not materialized in the block (Cypress, section 3.3)."""
    kernel = tasks.strategy(gemm.program, FIGURE_5)(float16_gemm(128, 64, 64)).program("sm_90a").lowered
    assert {one.tensor.name for one in kernel.buffers if one.tensor.memory == SH} == {"a_sh", "b_sh"}
    assert kernel.threads == 2 * 128 + 32


def test_sizes_known_at_run_time():
    sizes = [sym(name, high=8192) for name in "MNK"]
    text = tasks.strategy(gemm.program, SMALL)(float16_gemm(*sizes)).cuda("sm_80")
    assert "mma_m16n8k16" in text and "int M" in text


def test_more_warpgroups_are_a_change_of_the_mapping():
    """Variants do not change (Cypress, section 5.3)."""
    three = gemm.hopper(192, 64, WGS=3, stages=2)
    lines = gemm.hopper(192, 64, WGS=2, stages=2).diff(three)
    assert lines == ("gemm_tile.WM: 2 -> 3", "clear_tile.WM: 2 -> 3", "copy_tile.WM: 2 -> 3")
    assert tasks.strategy(gemm.program, three)(float16_gemm(192, 64, 64)).program("sm_90a").lowered.threads == 3 * 128 + 32


def normalized(text):
    """Return the kernel without comments and line breaks, its loop variables numbered in order."""
    body = re.sub(r"\n *//[^\n]*|//[^\n]*", "", text[text.index("__global__") :])
    for number, name in enumerate(dict.fromkeys(re.findall(r"for \(int (\w+) = 0; \w+ < \d+; \+\+\w+\)", body))):
        body = re.sub(rf"\b{name}\b", f"v{number}", body)
    return re.sub(r"(?<=\() | (?=\))", "", re.sub(r"\s+", " ", body))


def test_figure_5_is_the_fluent_strategy_of_the_same_structure():
    loads = MatMul.tile(128, 64).to(Block).epilog(RF, float32, Init.done(), Move.done()).split(64).pipeline(2).warp_specialize()
    fluent = loads.load(A, SH, Move.done()).load(B, SH, Move.done()).tile(64, 64).to(Warpgroup).done()
    problem = float16_gemm(136, 64, 200)
    assert normalized(tasks.strategy(gemm.program, FIGURE_5)(problem).cuda("sm_90a")) == normalized(fluent(problem).cuda("sm_90a"))


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(24))
def test_mappings_at_random(seed):
    """Random tiles, stages and memories: a GEMM."""
    random = Random(seed)
    memories = lambda: [NONE, *random.choices([NONE, SHARED], k=2)]
    if random.random() < 0.5:
        rows, columns = random.choice([(1, 1), (2, 1), (1, 2), (2, 2)])
        tile, step = (rows * random.choice([16, 32]), columns * random.choice([8, 16, 32])), random.choice([16, 32])
        loads = memories()
        stages = random.choice([0, 2, 3]) if SHARED in loads else 0  # the stages are those of loads in the loop
        mapping, target = gemm.ampere(*tile, step, rows, columns, stages).with_("gemm_tile", layouts={}), "sm_80"
        mapping = with_mems(mapping, gemm_tile=loads, gemm_warp=memories(), gemm_step=[NONE, *random.choices([NONE, REGISTER], k=2)])
    else:
        groups = random.choice([1, 2])
        tile, step = (groups * 64, random.choice([64, 128])), random.choice([32, 64])
        mapping, target = gemm.hopper(*tile, step, groups, random.choice([2, 3])), "sm_90a"
    mapping = staged(mapping) if random.random() < 0.4 else mapping
    mapping = with_mems(mapping, clear_tile=[SHARED]) if random.random() < 0.2 else mapping
    sizes = random.choice([tile[0], tile[0] + 8]), random.choice([tile[1], tile[1] + 8]), random.choice([step, 2 * step, step + 8])
    bound = tasks.strategy(gemm.program, mapping)(float16_gemm(*sizes))
    a, b = arrays(*sizes)
    assert (bound.compile(target)(a, b) == a.astype("float32") @ b.astype("float32")).all()


def test_amperes_mapping_has_the_statements_of_its_fluent_twin():
    tiles, copy = MatMul.tile(32, 32).to(Block).epilog(RF, float32).split(32).pipeline(2), Move.coalesced_copy(8).done()
    warps = tiles.load(A, SH, copy).swizzle_storage().load(B, SH, copy).swizzle_storage().tile(16, 16).to(Warp).split(16).unroll()
    fluent = warps.load(A, RF, Move.done()).load(B, RF, Move.done()).tile(16, 8).unroll().done()
    problem = float16_gemm(64, 64, 96)

    def counted(strategy):
        return Counter(re.findall(r"\b(\w+)\(", normalized(strategy(problem).cuda("sm_80"))))

    counts = counted(tasks.strategy(gemm.program, SMALL))
    assert counts == counted(fluent) and {"cp_async_16", "ldmatrix_x4", "mma_m16n8k16_f32_f16"} <= set(counts)
