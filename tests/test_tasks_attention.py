"""FlashAttention-2 and -3 as programs of tasks: correct by NumPy and by their meaning, race-free, and equal to the fluent kernels."""

import contextlib
import random
import re

import numpy as np
import printed_text
import pytest
from faults import dropped
from ringed import errors
from test_fused_attention import inputs, near_softmax

from fireiron import *
from fireiron import tasks
from fireiron.errors import FireironError, SimulationError
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.sim import simulate
from fireiron.strategies import attention, hopper_attention
from fireiron.strategies import tasks_attention as programs
from fireiron.tasks import *
from fireiron.tasks.execute import run_events
from fireiron.tasks.passes import PASS_NAMES, events_of

D = 64
BOTH = {"FlashAttention-2": (programs.flash_2, programs.IN_ORDER), "FlashAttention-3": (programs.flash_3, programs.AHEAD)}
NIGHTLY = pytest.mark.nightly


def bound(name, target, m, n, d=D, heads=1, batch=1, causal=False, **mapping):
    """A program for a problem, mapped to a target, with small tiles by default."""
    program, variant = BOTH[name]
    if causal:
        program, mapping = (
            {"FlashAttention-2": programs.causal_2, "FlashAttention-3": programs.causal_3}[name],
            {**mapping, "hides": "causal_rows"},
        )
    if target == "sm_80":
        chosen = programs.ampere(**{"U": 32, "W": 32, "D": d, "warps": 2, "variant": variant, **mapping})
    else:
        chosen = programs.hopper(**{"U": 128, "W": 64, "variant": variant, **mapping})
    return tasks.strategy(program, chosen)(attention.spec(m, n, d, heads, batch)), program, chosen


def coarse(mapping):
    """The mapping with MMAs of whole tiles, which have the same meaning as those of all threads and simulate faster."""
    return mapping.with_("scores", calls=["clear_rows", "scores_thread"]).with_("values", calls=["values_thread"])


def require_right(strategy, program, mapping, target, sizes=None, causal=False):
    """Check the kernel: no findings; with warps in random order it equals the softmax and the meaning of the program."""
    kernel = strategy.program(target)
    assert not errors(kernel.ir)
    arrays = inputs(kernel.spec, sizes)
    meant = np.zeros(arrays["Q"].shape, np.float16)
    tasks.run(program, mapping, meant, *(np.asarray(one) for one in arrays.values()), seed=3)
    near = near_softmax(kernel.spec, arrays, sizes, causal=causal)
    near.require({"O": meant})
    near.require(simulate(kernel.ir, arrays, sizes or {}, order=random.Random(1)).outputs)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "target", "sizes", "mapping"),
    [
        pytest.param("FlashAttention-2", "sm_80", (40, 70), {}, marks=NIGHTLY),
        ("FlashAttention-3", "sm_90a", (64, 80), {"U": 64, "WGS": 1, "W": 32, "persistent": 1}),
        pytest.param("FlashAttention-3", "sm_80", (32, 96), {}, marks=NIGHTLY),
        pytest.param("FlashAttention-2", "sm_90a", (72, 64), {"U": 64, "WGS": 1, "W": 32}, marks=NIGHTLY),
        pytest.param("FlashAttention-2", "sm_90a", (136, 128), {}, marks=NIGHTLY),
        pytest.param("FlashAttention-2", "sm_80", (64, 96), {"U": 64}, marks=NIGHTLY),
        pytest.param("FlashAttention-3", "sm_80", (64, 128), {"stages": 3}, marks=NIGHTLY),
        pytest.param("FlashAttention-3", "sm_90a", (128, 256), {}, marks=NIGHTLY),
        pytest.param("FlashAttention-3", "sm_90a", (256, 256), {"stages": 3}, marks=NIGHTLY),
        pytest.param("FlashAttention-3", "sm_90a", (256, 256), {"persistent": 3, "stages": 3}, marks=NIGHTLY),
        pytest.param("FlashAttention-2", "sm_90a", (256, 128), {"persistent": 3}, marks=NIGHTLY),
    ],
)
def test_mappings_do_not_change_results(name, target, sizes, mapping):
    """Both programs with mma.sync and with wgmma, two heads, probabilities in registers, asynchronous copies of keys."""
    strategy, program, chosen = bound(name, target, *sizes, heads=2, **mapping)
    require_right(strategy, program, coarse(chosen), target)
    text = strategy.cuda(target)
    words = ("cp_async_16", "ldmatrix_x4_trans", "mma_m16n8k16") if target == "sm_80" else ("tma_load", "_reg_row_f32_f16", "// producer")
    assert all(word in text for word in words)


@pytest.mark.parametrize(
    ("name", "target"),
    [("FlashAttention-2", "sm_80"), *(pytest.param(name, "sm_90a", marks=NIGHTLY) for name in BOTH)],
)
def test_causal(name, target):
    """A causal mask: formulas read the coordinates of pieces, and run only in tiles with masked elements."""
    small = {"U": 64, "WGS": 1, "W": 32} if target == "sm_90a" else {}
    strategy, program, mapping = bound(name, target, 70, 70, causal=True, **small)
    require_right(strategy, program, coarse(mapping), target, causal=True)


@pytest.mark.parametrize(
    ("name", "causal", "until", "seed"),
    [
        ("FlashAttention-3", True, "vectorize", 1),
        *(
            pytest.param(name, causal, until, seed, marks=NIGHTLY)
            for name in BOTH
            for causal in (False, True)
            for until in PASS_NAMES
            for seed in (None, 2, 3)
        ),
    ],
)
def test_events_in_any_order(name, causal, until, seed):
    """Each order that the events allow computes the same after each pass; copies of pieces keep their coordinates."""
    strategy, program, mapping = bound(name, "sm_80", 40, 70, causal=causal)
    mapping, spec = coarse(mapping), strategy.spec
    arrays = inputs(spec)
    got = np.zeros(arrays["Q"].shape, np.float16)
    run_events(events_of(program, mapping, spec, until), program, mapping, got, *map(np.asarray, arrays.values()), seed=seed)
    near_softmax(spec, arrays, causal=causal).require({"O": got})


@pytest.mark.nightly
@pytest.mark.parametrize("target", ("sm_80", "sm_90a"))
@pytest.mark.parametrize("name", BOTH)
def test_lengths_known_at_run_time(name, target):
    small = {"U": 64, "WGS": 1, "W": 32} if target == "sm_90a" else {}
    strategy, program, mapping = bound(name, target, sym("m"), sym("n"), **small)
    for m, n in ((70, 90), (33, 20)):
        require_right(strategy, program, coarse(mapping), target, {"m": m, "n": n})


@pytest.mark.nightly
@pytest.mark.parametrize("target", ("sm_80", "sm_90a"))
def test_seldom_rescaled(target):
    """Scores that increase along the keys: rows are rescaled lazily."""
    small = {"U": 64, "WGS": 1, "W": 32} if target == "sm_90a" else {}
    strategy, program, mapping = bound("FlashAttention-3", target, 64, 128, **small)
    mapping = programs.rescale_rarely(mapping, 2)
    kernel = tasks.strategy(program, mapping)(strategy.spec).program(target)
    assert not errors(kernel.ir) and "!= 1.0f" in kernel.cuda
    arrays = inputs(kernel.spec, ramp=True)
    near_softmax(kernel.spec, arrays).require(simulate(kernel.ir, arrays, {}, order=random.Random(1)).outputs)


def test_blocks_that_all_see_have_no_mask():
    texts = [bound("FlashAttention-2", "sm_80", 64, n)[0].cuda("sm_80") for n in (64, 70)]
    assert ["0xff800000" in text or "INFINITY" in text or "7f800000" in text for text in texts] == [False, True]


@pytest.mark.nightly
@pytest.mark.parametrize("target", ("sm_80", "sm_90a"))
def test_the_meaning_of_all_threads(target):
    """Launches of a prange in any order, down to the threads of each instruction."""
    strategy, program, mapping = bound("FlashAttention-3", target, 32 if target == "sm_80" else 128, 128)
    require_right(strategy, program, mapping, target)


@pytest.mark.nightly
def test_three_warpgroups_are_a_change_of_the_mapping():
    """192 queries by three warpgroups instead of 128 by two: only the mapping changes."""
    two, three = (programs.hopper(U=64 * groups, W=64, WGS=groups) for groups in (2, 3))
    assert set(two.diff(three)) == {"host.U: 128 -> 192"} | {
        f"{name}.WM: 2 -> 3" for name in ("clear", "begin", "mask", "softmax", "rescale", "finish", "scores_tile", "values_tile")
    }
    strategy, program, mapping = bound("FlashAttention-2", "sm_90a", 192, 64, U=192, WGS=3, W=32)
    require_right(strategy, program, coarse(mapping), "sm_90a")
    assert "__launch_bounds__(512" in strategy.cuda("sm_90a")


def synchronization(text):
    """Waits, arrivals and MMAs of a kernel in the order of its text, by ring and without register numbers."""
    body = text[text.index("// consumers") :]
    matches = re.findall(
        r"\b(mbarrier_wait\(\w+|mbarrier_arrive\(\w+|mbarrier_arrive_expect_tx\(\w+|wgmma_\w+(?:<\d>)?|tma_\w+(?:<\d>)?|warpgroup_sync)",
        body,
    )
    return [re.sub(r"_m\d+n\d+k\d+\w*", "", one) for one in matches]


@pytest.mark.parametrize("name", [pytest.param("FlashAttention-2", marks=NIGHTLY), "FlashAttention-3"])
def test_the_synchronization_of_the_fluent_twin(name):
    """FlashAttention-3 starts the next scores before the current PV MMA; the fluent strategy defers the latter."""
    definition = attention.definition()
    fluent = hopper_attention.by_rows(definition, overlap=name == "FlashAttention-3").with_(
        bm=128, bn=64, stages=2, epi_n=D, num_blocks=65536
    )
    twin = fluent(attention.spec(128, 256, D, fused=definition)).cuda("sm_90a")
    text = bound(name, "sm_90a", 128, 256)[0].cuda("sm_90a")
    assert synchronization(text) == synchronization(twin)
    assert ("wgmma_wait_group<1>();" in text) == (name == "FlashAttention-3")


@pytest.mark.nightly
@pytest.mark.parametrize("persistent", (0, 2))
def test_missing_synchronization_is_found(persistent):
    """A ring that is filled before, in and after its loop: a fault that the check misses has no effect, or the simulator reports it."""
    strategy = bound("FlashAttention-3", "sm_90a", 128, 80, 16, heads=4, U=64, WGS=1, W=32, persistent=persistent)[0]
    kernel = strategy.program("sm_90a")
    arrays, planted = inputs(kernel.spec), list(dropped(kernel.ir))
    near = near_softmax(kernel.spec, arrays)
    detected = [bool(errors(faulty)) for _, faulty in planted]
    assert sum(detected) > 20
    for (_, faulty), fault in zip(planted, detected, strict=True):
        with contextlib.suppress(SimulationError):
            if not fault:
                near.require(simulate(faulty, arrays, order=random.Random(2)).outputs)


COMPILED = {
    "FlashAttention-2": ("sm_80", {"U": 128, "W": 64, "warps": 8}),
    "FlashAttention-3": ("sm_90a", {"W": 128}),
    "three warpgroups": ("sm_90a", {"U": 192, "WGS": 3}),
}


@pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")
@pytest.mark.parametrize("case", [one if one == "FlashAttention-3" else pytest.param(one, marks=NIGHTLY) for one in COMPILED])
def test_compiled_without_spills(case):
    target, mapping = COMPILED[case]
    name = case if case in BOTH else "FlashAttention-2"
    program = bound(name, target, 3840, 4096, 128, heads=16, **mapping)[0].program(target)
    report = compile_cuda(program.cuda, target)
    resources = report.resources[program.name]
    assert resources.spill_stores == resources.spill_loads == resources.stack_frame == 0 and "C75" not in (report.log or "")


@pytest.mark.skipif(printed_text.COMPILER is None, reason="no C++ compiler (g++ or clang++) on the path")
@pytest.mark.nightly
@pytest.mark.parametrize("target", ("sm_80", "sm_90a"))
def test_printed_text(tmp_path, target):
    """The printed text, executed on a CPU."""
    program = bound("FlashAttention-3", target, 32 if target == "sm_80" else 128, 128)[0].program(target)
    host = printed_text.HostProgram([printed_text.Printed.of(program)], tmp_path)
    arrays = inputs(program.spec)
    near_softmax(program.spec, arrays).require(host.run(0, arrays))


# ---------------------------------------------------------------------------------------------- what the language has for it


@task("scale", Inner, reads=["src"], writes=["dst"])
def transposed(dst, src):
    launch("scale", axes(dst, 1, 0), axes(src, 1, 0))


@task("scale", Leaf, reads=["src"], writes=["dst"])
def by_columns(dst, src):
    call_external(Pointwise, y=dst, x=src, formula="y[n,m] = 2 * x[n,m]")


def test_axes_of_a_tensor():
    """A transposed matrix is accessed in place; formulas refer to operands by name."""
    mapping = Mapping(
        [
            TaskMapping("all", "transposed", HOST, [GLOBAL] * 2, calls=["block"], entrypoint=True),
            TaskMapping("block", "by_columns", THREAD, [GLOBAL] * 2),
        ]
    )
    a, out = np.arange(12, dtype="f4").reshape(3, 4), np.zeros((3, 4), "f4")
    tasks.run(Tasks(transposed, by_columns), mapping, out, a)
    assert (out == 2 * a).all()


@task("scale", Inner, reads=["src"], writes=["dst"])
def short(dst, src):
    launch("scale", axes(dst, 1), axes(src, 1))


@task("mask", Leaf, reads=["S", "Q", "K"], writes=["S"])
def masked_by_itself(S, Q, K):
    call_external(
        Pointwise,
        s=S,
        s_before=S,
        index_n=coordinates(S, 1),
        size_n=extent(K, 0),
        formula=("s[m,n] = where(index_n[n] < size_n, s_before[m,n], -inf)"),
    )


@task("mask", Leaf, reads=["S"], writes=["S"])
def masked_unread(S, Q, K):
    coordinates(K, 0)


@task("sums", Inner, reads=["S"], writes=["sums"])
def whole_sums(sums, S, *, INSTR=tunable(str), PIECES=tunable(int), PROC=tunable(processor)):
    to, of = partition_by_mma(sums, INSTR, PROC, "parts"), partition_by_mma(S, INSTR, PROC, "A")
    for i in prange(PIECES):
        launch("sums", to[i], of[i])


def kernel_with(instance, variant):
    """The kernel of a program with another variant in one instance."""
    _, program, chosen = bound("FlashAttention-2", "sm_90a", 64, 64, U=64, WGS=1)
    more = Tasks(*program.variants, variant)
    return lambda: tasks.strategy(more, chosen.with_(instance, variant=variant.name))(attention.spec(64, 64, D)).cuda("sm_90a")


REFUSED = {
    "a dimension left out": (
        lambda: tasks.run(
            Tasks(short, by_columns), Mapping([TaskMapping("all", "short", HOST, [GLOBAL] * 2, entrypoint=True)]), *np.zeros((2, 3, 4), "f4")
        ),
        r"axes\(1\) does not fit a tensor of 3 x 4 elements",
    ),
    "parts that do not conform": (kernel_with("sums_warp", whole_sums), "must have one partial result for its terms"),
    "coordinates of what is no piece of an operand": (kernel_with("mask_rows", masked_by_itself), "coordinates: they are unknown for new tensors(.|\\n)*got *RF"),
    "coordinates of what is not read": (kernel_with("mask_rows", masked_unread), "masked_unread does not read K"),
    "an unknown operand of a formula": (
        lambda: tasks.external.in_order(Pointwise, {"z": 1}, {"formula": "y[m] = x[m]"}), "no operand z",
    ),
}  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    refused, message = REFUSED[name]
    with pytest.raises(FireironError, match=message):
        refused()
