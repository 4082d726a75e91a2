"""Every printed kernel is compiled by NVRTC, with warnings as errors, for each architecture that the installed toolkits support (O10)."""

import itertools
import os

import pytest
from generator import draw as drawn_strategy
from problems import NAMES, library, sizes_of_run_time, target_of

from fireiron import *
from fireiron.gpu.toolchain import compile_cuda, toolchains

pytestmark = pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")

TARGETS = ("sm_52", "sm_70", "sm_75", "sm_80", "sm_90", "sm_90a")

SHARE = {"sm_80": 2, "sm_90": 2, "sm_90a": 1}
"""The number of sizes for which a target compiles a strategy at one in the default tier; others of four, each with another of them."""

SCALE = int(os.environ.get("FIREIRON_FUZZ", "1"))

FIRST = {"hmma_turing": 75, "hmma_volta": 70, "hmma_ampere": 70, "small": 70, "split_k": 70, "split_k_blocks": 70}
"""The first compute capability with the instructions of a float16 strategy; 53 for all others."""


def served(target):
    return any(chain.serves(target) for chain in toolchains())


def compiled(strategy, spec, target):
    """The compiler's report, and the program."""
    program = strategy(spec).program(target)
    return compile_cuda(program.cuda, target).resources[program.name], program


@pytest.mark.sampled(18)
@pytest.mark.parametrize(
    ("name", "target"), [(name, target) for name in NAMES for target in TARGETS if target != "sm_90a" or target_of(name)]
)
def test_strategies(name, target):
    if not served(target):
        pytest.skip(f"no installed NVRTC serves {target}")
    module = library(name)
    choices = [module.SIZES, (1000, 500, 300), sizes_of_run_time(name, M=4), sizes_of_run_time(name)]
    if target_of(name, target) != target:  # sizes do not matter to the refusal: each target has another of them
        choices = [choices[TARGETS.index(target) % len(choices)]]
    elif SCALE == 1:  # known and unknown sizes; adjacent targets have the others
        share = SHARE.get(target, len(choices))
        choices = choices[(TARGETS.index(target) + NAMES.index(name)) % share :: share]
    for sizes in choices:
        if name == "listing_1" and isinstance(sizes[0], Var):
            continue
        spec = module.spec(*sizes)
        if target_of(name, target) != target:
            with pytest.raises(
                (MatchError, DecompositionError), match=f"no instruction of {target} performs|no matrix instruction of sm_52"
            ):
                compiled(module.strategy, spec, target)
            continue
        if int(target[3:].rstrip("a")) < FIRST.get(name, 53) and spec.A.dtype == float16:
            with pytest.raises((MatchError, DecompositionError), match=r"sm_\d+ or newer|no matrix instruction of sm_52"):
                compiled(module.strategy, spec, target)
            continue
        report, program = compiled(module.strategy, spec, target)
        assert report.registers <= 255
        # Listing 1 keeps all of K in a thread's arrays; the naive kernel indexes global memory with 64-bit numbers everywhere
        # 128 accumulators a thread and the 64-bit addresses of sizes that prove no vectors are more than 255 registers
        narrow = name in ("hmma_ampere", "hmma_turing") and isinstance(sizes[1], Var)
        if name not in ("listing_1", "naive") and not narrow and target in ("sm_80", "sm_90"):
            assert report.spill_stores == 0 and report.stack_frame == 0
        assert report.shared_bytes == (0 if "smem" in program.cuda else program.ir.shared_bytes)


@pytest.mark.sampled(18)
@pytest.mark.parametrize("dtype", [float64, float16, bfloat16, int32, int8], ids=str)
def test_types(dtype):
    for name, target in itertools.product(("naive", "maxwell", "gemm_nt"), ("sm_80", "sm_90")):
        compiled(library(name).strategy, library(name).spec(130, 70, 50, dtype=dtype), target)


def test_half_on_maxwell_adds_in_float32():
    """fp16 storage, fp32 arithmetic (T014)."""
    if not served("sm_52"):
        pytest.skip("no installed NVRTC serves sm_52")
    module = library("maxwell")
    compiled(module.strategy, module.spec(200, 100, 50, dtype=float16, accumulator=float32), "sm_52")


@pytest.mark.parametrize("chunk", range(4))
def test_random_strategies(chunk):
    for seed in range(chunk * 10, chunk * 10 + 10):
        drawn, _ = drawn_strategy(seed)
        compile_cuda(drawn.program.cuda, "sm_90")


@pytest.mark.parametrize("source", [float32, float64, float16, bfloat16, int32, int8], ids=str)
@pytest.mark.parametrize("target", [float32, float64, float16, bfloat16, int32, int8], ids=str)
def test_conversions(source, target):
    spec = Move(33, 9, dtype=source, dst_dtype=target)(GL, GL)(Kernel)
    program = spec.tile(32, 8).to(Block).tile(4, 1).to(Thread).done().program("sm_90")
    compile_cuda(program.cuda, "sm_90")
