"""On a GPU: programs of tasks under their mappings, at edges and at run-time sizes, compared with their specs in float64."""

import pytest
from test_fused_gpu import near
from test_tasks_attention import BOTH
from test_tasks_attention import bound as bound_attention
from test_tasks_programs import ALL, CASES, SIZES, TARGETS

from fireiron import *
from fireiron import tasks
from fireiron.gpu import launch
from fireiron.gpu.kernel import architecture_here
from fireiron.strategies import attention, tasks_attention, tasks_batched, tasks_dual, tasks_gated, tasks_gemm, tasks_row_sum
from fireiron.values.machine import WARPGROUP_ARCHITECTURE

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not launch.gpu_available(), reason="needs a CUDA GPU and CuPy (pip install 'fireiron[cuda13]')"),
]


def require_target(name):
    """Skip cases that this GPU does not support."""
    if name == WARPGROUP_ARCHITECTURE and architecture_here() != name:
        pytest.skip(f"{architecture_here()} does not run {name}")


@pytest.mark.parametrize(("name", "mapped"), ALL)
def test_small_mappings(name, mapped):
    """Overhanging tiles, more tiles than persistent blocks, pipelines of two stages."""
    require_target(TARGETS[mapped])
    case = CASES[name]
    for sizes in (SIZES[mapped], (200, 136, 104)):
        near(tasks.strategy(case.program, case.mappings[mapped]), case.spec(*sizes))


LIBRARY = {
    f"{module.__name__.rpartition('.')[2]}, {form}": (module, form)
    for module in (tasks_gemm, tasks_batched, tasks_dual, tasks_gated, tasks_row_sum)
    for form in ("strategy", "warpgroups", "warpgroups_shared")
    if hasattr(module, form)
}


@pytest.mark.parametrize("case", LIBRARY)
def test_the_library(case):
    module, form = LIBRARY[case]
    require_target("sm_80" if form == "strategy" else "sm_90a")
    near(getattr(module, form), module.spec(*((504, 264, 328, 3) if module is tasks_batched else (1000, 520, 328))))


@pytest.mark.parametrize("target", ("sm_80", "sm_90a"))
def test_sizes_known_at_run_time(target):
    require_target(target)
    strategy = tasks_gemm.strategy if target == "sm_80" else tasks_gemm.warpgroups
    near(strategy, tasks_gemm.spec(*(sym(dim, multiple_of=8) for dim in "MNK")), {"M": 520, "N": 264, "K": 72}, {"M": 8, "N": 8, "K": 8})


@pytest.mark.parametrize("target", ("sm_80", "sm_90a"))
@pytest.mark.parametrize("causal", (False, True), ids=("all", "causal"))
@pytest.mark.parametrize("name", BOTH)
def test_attention(name, target, causal):
    """Keys and queries that end within a tile, more blocks of keys than stages; also with persistent blocks."""
    require_target(target)
    n = 300 if causal else 328
    for mapping in ({}, {"persistent": 3}) if target == "sm_90a" else ({},):
        _, program, chosen = bound_attention(name, target, 300, n, heads=2, causal=causal, **mapping)
        definition = attention.definition(causal=causal)
        near(tasks.strategy(program, chosen), attention.spec(300, n, 64, 2, 3, fused=definition))


def test_attention_of_three_warpgroups():
    require_target("sm_90a")
    near(tasks.strategy(tasks_attention.flash_2, tasks_attention.hopper(192, 64, 3)), attention.spec(500, 328, 128, 2))
