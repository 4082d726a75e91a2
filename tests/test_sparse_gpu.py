"""On a GPU: mma.sp and wgmma.sp on small integers, whose sums are exact, and the strategies of the library."""

import numpy as np
import pytest
import sparse_generator
import sparse_steps
from sparse_cases import exact_inputs, sparse_product, sparse_ring, sparse_spec
from test_formulas_gpu import on_gpu
from test_sparse import product_of

from fireiron import *
from fireiron.executable.mma_sp import INSTRUCTIONS as FORMS
from fireiron.executable.wgmma_sp import WGMMA_SP
from fireiron.gpu import launch
from fireiron.strategies import sparse_ampere, sparse_hopper

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not launch.gpu_available(), reason="needs a CUDA GPU and CuPy (pip install 'fireiron[cuda13]')"),
]


def require_exact(bound, seed=0):
    arrays = exact_inputs(bound.spec, seed=seed)
    np.testing.assert_array_equal(on_gpu(bound, arrays)["C"], product_of(arrays))


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_forms_of_mma(form):
    require_exact(sparse_product(form))


@pytest.mark.parametrize("form", WGMMA_SP, ids=lambda form: form.name)
def test_forms_of_wgmma(form):
    require_exact(sparse_product(form))


def test_metadata_by_columns():
    require_exact(sparse_ring(float32, bk=64, order=ColMajor)(sparse_spec(WGMMA_SP[0], (144, 72, 144), E=ColMajor)))


@pytest.mark.parametrize("sizes", [(512, 512, 1024), (130, 70, 264), (1000, 520, 392)], ids=str)
@pytest.mark.parametrize("module", [sparse_ampere, sparse_hopper], ids=lambda module: module.__name__.rpartition(".")[2])
def test_library(module, sizes):
    require_exact(module.strategy(module.spec(*sizes, c_dtype=float32)))


@pytest.mark.parametrize("seed", range(10))
def test_generated(seed):
    case = sparse_generator.draw(seed)[0]
    if case.symbols:
        pytest.skip("sizes known only at run time are those of the arrays")
    arrays = case.arrays(seed)
    results = on_gpu(case.bound, arrays)
    for name, right in case.expected(arrays, product_of(arrays)).items():
        np.testing.assert_array_equal(results[name], right)


@pytest.mark.parametrize(("name", "target"), sparse_steps.STRATEGIES)
def test_steps(name, target):
    """Products as steps of definitions."""
    case = sparse_steps.CASES[name]
    if case.symbols:
        pytest.skip("sizes known only at run time are those of the arrays")
    arrays = case.arrays()
    case.require_right(on_gpu(case.strategies[target](case.spec), arrays), arrays)
