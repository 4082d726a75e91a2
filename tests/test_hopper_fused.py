"""Fused GEMM on Hopper: dual, row sums, LSTM, multilayer perceptrons, with TMA, wgmma and a producer.

The formulas are those of `test_fused_products`.
"""

import contextlib
import random

import printed_text
import pytest
from faults import dropped
from test_fused_products import arrays_of, bound, problems_of, require_right

from fireiron import *
from fireiron.check import safety
from fireiron.errors import SimulationError
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.ir import execs
from fireiron.ir.mechanisms.tma import TMA_LOADS
from fireiron.ir.mechanisms.wgmma import WGMMA_GROUPS
from fireiron.sim import simulate
from fireiron.strategies import gated

TARGET = "sm_90a"
FORMULA = {
    "dual:hopper": "dual",
    "gated:hopper": "gated",
    "gemm_row_sum:hopper": "gemm_row_sum",
    "gemm_row_sum:hopper_shared": "gemm_row_sum",
    "lstm:hopper": "lstm",
    "lstm:hopper_tanh": "lstm:tanh",
    "mlp:hopper": "mlp",
}
"""By strategy, the other one that computes the same."""

PRODUCTS = tuple(name for name in FORMULA if not name.startswith("mlp") and not name.endswith("shared"))
SMALL = {"bm": 64, "bn": 64, "bk": 32, "stages": 2, "epi_n": 64}
CASES = [
    *((name, (128, 128, 64), SMALL) for name in PRODUCTS),
    *((name, (70, 72, 40), {**SMALL, "bm": 128}) for name in PRODUCTS),
    ("gemm_row_sum:hopper_shared", (128, 72, 40), SMALL),
    *(("mlp:hopper", sizes, {"bm": 64, "stages": 2}) for sizes in ((128, 64, 1), (70, 64, 4))),
]


def program_of(name, sizes, values, **options):
    """A strategy on a problem."""
    return bound(name, sizes, values, **options, **({"form": "tanh"} if name.endswith("tanh") else {}))


@pytest.mark.parametrize(("name", "sizes", "values"), CASES)
def test_simulated(name, sizes, values):
    """With warps in lockstep and in random order; no finding; all loads by TMA, and all MMAs by wgmma."""
    strategy = program_of(name, sizes, values)
    kernel = strategy.program(TARGET).ir
    assert not problems_of(kernel)
    inside = [one for one, _ in execs(kernel.body)]
    copied = [one for one in inside if one.spec.copies and one.spec.src.memory.of_grid and one.spec.dst.memory.of_block]
    assert copied and all(one.mechanism is TMA_LOADS for one in copied)
    assert all(one.mechanism is WGMMA_GROUPS for one in inside if one.spec.contracts)
    assert {"TMA_STORE", "STMATRIX_WARPGROUP"} <= {one.instruction.name for one in inside}
    arrays = arrays_of(strategy.spec)
    for order in (None, random.Random(7)):
        require_right(FORMULA[name], strategy.spec, simulate(kernel, arrays, order=order).outputs, arrays)


@pytest.mark.parametrize(
    ("name", "sizes", "values"),
    [("gemm_row_sum:hopper", (128, 64, 96), {**SMALL, "bm": 128}), ("mlp:hopper", (64, 64, 3), {"bm": 64, "stages": 2})],
)
def test_missing_synchronization_is_found(name, sizes, values):
    """The check reports the fault; otherwise the simulator does, or the result is right because other waits make this one redundant."""
    strategy = program_of(name, sizes, values)
    kernel = strategy.program(TARGET).ir
    arrays, planted = arrays_of(strategy.spec), list(dropped(kernel))
    detected = [bool(safety(faulty)) for _, faulty in planted]
    kinds = {type(one).__name__ for (one, _), fault in zip(planted, detected, strict=True) if fault}
    assert sum(detected) > 8 and kinds >= {"Acquire", "Release", "Wait", "Commit", "Fence"}
    for (_, faulty), fault in zip(planted, detected, strict=True):
        with contextlib.suppress(SimulationError):
            if not fault:
                require_right(FORMULA[name], strategy.spec, simulate(faulty, arrays, order=random.Random(2)).outputs, arrays)


@pytest.mark.nightly
def test_sizes_known_at_run_time():
    for name, sizes, symbols in (
        ("dual:hopper", tuple(sym(one, multiple_of=8) for one in "MNK"), {"M": 72, "N": 80, "K": 40}),
        ("mlp:hopper", (sym("M"), 64, sym("L", high=100)), {"M": 70, "L": 3}),
    ):
        strategy = program_of(name, sizes, SMALL if "mlp" not in name else {"bm": 64, "stages": 2})
        kernel = strategy.program(TARGET).ir
        assert not problems_of(kernel)
        arrays = arrays_of(strategy.spec, symbols)
        require_right(FORMULA[name], strategy.spec, simulate(kernel, arrays, symbols, order=random.Random(3)).outputs, arrays)


@pytest.mark.nightly
@pytest.mark.skipif(printed_text.COMPILER is None, reason="no C++ compiler (g++ or clang++) on the path")
def test_printed_text(tmp_path):
    """The text itself on the CPU, with threads in random order."""
    chosen = [("gemm_row_sum:hopper", (70, 72, 40), SMALL), ("mlp:hopper", (70, 64, 3), {"bm": 64, "stages": 2})]
    strategies = [program_of(*one) for one in chosen]
    host = printed_text.HostProgram([printed_text.Printed.of(one.program(TARGET)) for one in strategies], tmp_path)
    for number, (name, _, _) in enumerate(chosen):
        arrays = arrays_of(strategies[number].spec)
        require_right(FORMULA[name], strategies[number].spec, host.run(number, arrays, seed=5), arrays)


@pytest.mark.nightly
@pytest.mark.skipif(not any(one.serves(TARGET) for one in toolchains()), reason="no NVRTC for sm_90a")
@pytest.mark.parametrize("name", FORMULA)
def test_no_spills(name):
    """With the default tunables; ptxas warns about a serialized MMA or an unrequested wait."""
    program = program_of(name, (1024, 128, 20) if "mlp" in name else (4096, 4096, 4096), {}).program(TARGET)
    resources = compile_cuda(program.cuda, TARGET).resources[program.name]
    assert not resources.spill_stores and not resources.spill_loads and not resources.stack_frame


def test_two_accumulators_stay_where_they_are_in_a_loop_that_may_be_unrolled():
    """A compiler that moved the initialization of the second one after the first MMA would serialize it: ptxas warns, which fails the
    compilation.
    """
    kernel = gated.hopper(gated.spec(256, 128, 128)).program("sm_90a")
    assert "pin_registers(g);\n    pin_registers(u);\n    for (int k = 0; k < 2; ++k)" in kernel.cuda
    if any(one.serves("sm_90a") for one in toolchains()):
        assert "C75" not in compile_cuda(kernel.cuda, "sm_90a").log
