"""The library's defaults by target: the values of `values(spec, target)` compile without spills for each target that an installed NVRTC
supports.
"""

import inspect
import os

import pytest
from problems import ALL_NAMES, library

from fireiron import *
from fireiron.errors import FireironError
from fireiron.gpu import toolchain
from fireiron.language.library import bind, defaults, find, recommended_values
from fireiron.values.machine import as_architecture

TARGETS = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120")

serves = {target: any(one.serves(target) for one in toolchain.toolchains()) for target in TARGETS}
not_in_the_default_tier = pytest.mark.skipif("FIREIRON_FUZZ" not in os.environ, reason="part of the long tier: set FIREIRON_FUZZ")

SPILL = {"naive", "listing_1"}
"""The papers' programs for small problems: all of K in a thread's arrays."""

ANY_SIZES = {name: tuple(map(sym, "MNK")) for name in ("dual", "gated", "gemm_row_sum", "hmma_ampere", "hmma_turing")}
ANY_SIZES |= {"lstm": (sym("M"), sym("N"), sym("L")), "attention": (sym("M"), sym("N"), 128)}
"""Run-time sizes, and their divisors."""


FUSED = ("attention", "dual", "gated", "gemm_row_sum", "grouped", "grouped_ragged", "layernorm", "lstm", "mlp", "rmsnorm", "softmax")


def resources(name, target, sizes=None):
    """The ptxas report of the kernel that `fireiron emit NAME` prints for a target; None if the strategy is refused for it."""
    entry = find(name)
    named = {} if sizes is None else dict(zip(inspect.signature(entry.problem).parameters, sizes))
    try:
        program = bind(entry, named, architecture=target).program(target)
        text = program.cuda
    except FireironError:
        return None
    return toolchain.compile_cuda(text, target).resources[program.name]


def whole(report):
    return report.spill_stores == report.spill_loads == report.stack_frame == 0


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ALL_NAMES)
@pytest.mark.nightly
@not_in_the_default_tier
def test_defaults_do_not_spill(name, target):
    """A ptxas remark that MMAs are serialized is an error, too."""
    if not serves[target]:
        pytest.skip(f"no NVRTC for {target}")
    report = resources(name, target)
    if report is None:
        assert name not in FUSED, "legal on every target"
        pytest.skip(f"not for {target}")
    assert name in SPILL or whole(report)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ANY_SIZES)
@pytest.mark.nightly
@not_in_the_default_tier
def test_defaults_for_any_sizes_do_not_spill(name, target):
    if not serves[target]:
        pytest.skip(f"no NVRTC for {target}")
    report = resources(name, target, ANY_SIZES[name])
    assert whole(report) if report is not None else (name, target) == ("hmma_turing", "sm_70"), "instructions of Turing"


@pytest.mark.parametrize("name", ("attention", "mlp"))
def test_defaults_fit_into_the_shared_memory_of_turing(name):
    turing = as_architecture("sm_75")
    assert bind(find(name), architecture=turing).program(turing).lowered.shared_bytes <= turing.shared_per_block


def test_values_depend_on_the_target():
    spec = library("dual").spec(4096, 4096, 4096)
    entry = find("dual")
    assert (
        recommended_values(entry, spec, "sm_70") == {"wm": 32}
        and recommended_values(entry, spec, "sm_80") == recommended_values(entry, spec) == {}
    )
    assert dict(defaults(spec, "sm_70"))["dual"] == {"wm": 32} and dict(defaults(spec))["dual"] == {}
    assert recommended_values(find("mlp"), library("mlp").spec(8192, 128, 20), "sm_75") == {"stages": 1}


def test_values_of_the_spec_alone_serve_all_targets(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(
        "from fireiron import *\n"
        't = Tunable("t", 2, 4)\n'
        "strategy = MatMul.tile(t, t).to(Block).tile(1, 1).to(Thread).split(1).done()\n"
        "def values(spec):\n    return {'t': 4}\n"
    )
    entry = find(str(path))
    spec = MatMul(8, 8, 8)(GL, GL, GL)(Kernel)
    assert recommended_values(entry, spec) == recommended_values(entry, spec, "sm_70") == {"t": 4}
