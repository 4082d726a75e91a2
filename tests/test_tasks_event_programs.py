"""Event IR of the library's programs of tasks: correct in each order that its events allow, after each pass, under each mapping."""

import numpy
import pytest
from event_programs import after_each_pass

from fireiron import tasks
from fireiron.strategies import tasks_attention as attention
from fireiron.strategies import tasks_batched as batched
from fireiron.strategies import tasks_dual as dual
from fireiron.strategies import tasks_gated as gated
from fireiron.strategies import tasks_gemm as gemm
from fireiron.strategies import tasks_row_sum as row_sum
from fireiron.tasks.dependences import analyzed
from fireiron.tasks.execute import hazards, run_events


def float16_array(*shape):
    """Small integers."""
    return numpy.random.default_rng(sum(shape)).integers(-3, 4, shape).astype("float16")


def zeros(*shape, dtype="float16"):
    return numpy.zeros(shape, dtype)


def heads(M, N, D):
    """Operands of attention: masked queries, and a last block of keys that overhangs."""
    generator = numpy.random.default_rng(1)
    parts = [generator.standard_normal(shape).astype("float16") for shape in ((1, M, 1, 1, D), (1, N, 1, D), (1, N, 1, D))]
    return zeros(1, M, 1, 1, D), *parts, numpy.array(0.3, "float32")


ONE_WARP = (16, 16, 32, 1, 1, 2)
WARPGROUP = {"U": 64, "V": 32, "W": 32, "WGS": 1, "stages": 2, "epi_n": 16}
ATTENTION = {"U": 32, "W": 16, "D": 16, "warps": 2}
FACTORS = float16_array(64, 64), float16_array(64, 32)
PROGRAMS = {
    "causal, FlashAttention-3": (
        attention.causal_3, attention.ampere(16, 16, 16, 1, variant=attention.AHEAD, hides="causal_rows"), heads(16, 40, 16),
    ),
    "FlashAttention-2": (attention.flash_2, attention.ampere(**ATTENTION), heads(32, 40, 16)),
    "FlashAttention-2 on Hopper": (attention.flash_2, attention.hopper(64, 16, 1), heads(64, 40, 16)),
    "FlashAttention-3 on Hopper": (attention.flash_3, attention.hopper(64, 16, 1, variant=attention.AHEAD), heads(64, 40, 16)),
    "stacks": (batched.program, batched.ampere(*ONE_WARP), (zeros(2, 24, 16), float16_array(2, 24, 40), float16_array(2, 40, 16))),
    "staged": (gemm.program, gemm.ampere(*ONE_WARP, staged=True), (zeros(24, 16), float16_array(24, 40), float16_array(40, 16))),
    "staged on Hopper": (gemm.program, gemm.hopper(**WARPGROUP), (zeros(64, 32), *FACTORS)),
    "dual": (dual.program, dual.ampere(*ONE_WARP), (zeros(24, 16), float16_array(24, 40), float16_array(40, 16), float16_array(40, 16))),
    "dual on Hopper": (dual.program, dual.hopper(**WARPGROUP), (zeros(64, 32), *FACTORS, float16_array(64, 32))),
    "gated": (gated.program, gated.ampere(16, 16, 32, 1, 1, 2), (zeros(24, 16), float16_array(24, 40), float16_array(40, 16), float16_array(40, 16))),
    "gated on Hopper": (gated.program, gated.hopper(**WARPGROUP), (zeros(64, 32), *FACTORS, float16_array(64, 32))),
    "sums": (row_sum.program, row_sum.ampere(*ONE_WARP), (zeros(24, 32), zeros(24, dtype="float32"), float16_array(24, 40), float16_array(40, 32))),
    "sums on Hopper": (row_sum.program, row_sum.hopper(**WARPGROUP), (zeros(64, 64), zeros(64, dtype="float32"), float16_array(64, 64), float16_array(64, 64))),
    "sums in shared memory": (
        row_sum.program, row_sum.hopper(**WARPGROUP, parts=0), (zeros(64, 64), zeros(64, dtype="float32"), float16_array(64, 64), float16_array(64, 64)),
    ),
}  # fmt: skip
OFTEN = ("causal, FlashAttention-3",)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.nightly) for name in PROGRAMS])
def test_any_order_of_events_after_each_pass(name):
    """Bit-equal to the meaning of the program: accesses to an element keep the order of the text."""
    program, mapping, arrays = PROGRAMS[name]
    wanted = [one.copy() for one in arrays]
    tasks.run(program, mapping, *wanted)
    whole = analyzed(program, mapping, *((one.shape, one.dtype.name) for one in arrays))
    for passed, events in after_each_pass(whole, mapping):
        assert hazards(events) == (), passed
        results = [one.copy() for one in arrays]
        run_events(events, program, mapping, *results, seed=5)
        assert all(one.tobytes() == other.tobytes() for one, other in zip(results, wanted, strict=True)), passed
