"""Products with quantized weights on a GPU: the functions of the library at several numbers of rows, and every form, against float64."""

import pytest
from test_quantized import MODULES, NAMES, SMALL, arrays, bound, is_near

import fireiron
from fireiron.gpu import launch
from fireiron.gpu.kernel import target_for

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not launch.gpu_available(), reason="needs a CUDA GPU and CuPy (pip install 'fireiron[cuda13]')"),
]
of_modules = pytest.mark.parametrize("module", MODULES, ids=NAMES)


def on_gpu(module):
    import cupy

    given, right = arrays(module)
    return [cupy.asarray(array) for array in given], right


@of_modules
@pytest.mark.parametrize("form", SMALL)
def test_forms(module, form):
    import cupy

    given, right = on_gpu(module)
    if form != "ampere" and target_for(launch.device_arch()) != "sm_90a":
        pytest.skip("needs wgmma")
    kernel = bound(module, form).compile()
    for _ in range(2):
        assert is_near(cupy.asnumpy(kernel(*given)), right)


@of_modules
def test_functions(module):
    import cupy

    given, right = on_gpu(module)
    assert is_near(cupy.asnumpy(fireiron.function(module.__name__.rpartition(".")[2])(*given)), right)
