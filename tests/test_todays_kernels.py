"""The kernels of `todays_kernels` in the simulator and by NVRTC; `test_formulas_gpu` launches them on a GPU."""

import numpy as np
import pytest
from todays_kernels import CASES

from fireiron.check import safety
from fireiron.gpu.toolchain import compile_cuda, toolchains

STRATEGIES = [(name, target) for name, case in CASES.items() for target in case.strategies]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("name", "target"), STRATEGIES)
def test_simulated(name, target):
    case = CASES[name]
    program = case.strategies[target](case.spec).program(target)
    assert safety(program.lowered) == ()
    arrays = case.arrays()
    results = case.strategies[target](case.spec).compile(target)(*arrays.values(), **case.options())
    assert max(case.errors(arrays, results).values()) <= case.tolerance, case.errors(arrays, results)


@pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")
@pytest.mark.sampled(4)
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", CASES)
def test_compiles(name, target):
    """A strategy for sm_80 is compiled for sm_90a, too; instructions of Hopper are refused by sm_80."""
    case = CASES[name]
    strategy = case.strategies.get(target) or case.strategies.get("sm_80")
    if strategy is None:
        pytest.skip("instructions of Hopper")
    program = strategy(case.spec).program(target)
    assert compile_cuda(program.cuda, target).resources[program.name].spill_stores == 0


@pytest.mark.parametrize("name", ["histogram", "argmax"])
def test_wrong_results_are_found(name):
    case = CASES[name]
    arrays = case.arrays()
    (right,) = case.by_numpy(
        **{key: array.astype(np.float64 if array.dtype.kind == "f" else np.int64) for key, array in arrays.items()}.copy()
    ).values()
    assert max(case.errors(arrays, right).values()) == 0
    assert max(case.errors(arrays, right + np.eye(1, len(right), dtype=right.dtype)[0]).values()) > case.tolerance
