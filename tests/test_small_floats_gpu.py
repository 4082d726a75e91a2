"""On a GPU: FP4 numbers with scales, additions of several blocks to 16-bit floats, and conversions of pairs by single threads.

The kernels are those of `test_small_floats` and `test_added_halves`. All results are exact except for the error bounds of rounded sums.
"""

import ml_dtypes
import numpy as np
import pytest
import test_added_halves as halves
import test_small_floats as small

from fireiron import *
from fireiron.gpu import launch
from fireiron.measure.judge import Judge

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not launch.gpu_available(), reason="needs a CUDA GPU and CuPy (pip install 'fireiron[cuda13]')"),
]

HERE = (launch.visible_arch() or "sm_0") if launch.gpu_available() else "sm_0"
needs_hopper = pytest.mark.skipif(HERE != "sm_90", reason="needs a GPU of compute capability 9.0")
BITS = {"bfloat16": np.int16, "float8_e4m3fn": np.uint8}


def tensor(array):
    """A tensor on the GPU; NumPy passes floats that it does not know as integers."""
    torch = pytest.importorskip("torch")
    name = array.dtype.name
    return torch.from_numpy(array.view(BITS[name])).cuda().view(getattr(torch, name)) if name in BITS else torch.from_numpy(array).cuda()


def array(result):
    torch = pytest.importorskip("torch")
    return result.view(torch.int16).cpu().numpy().view(ml_dtypes.bfloat16) if result.dtype == torch.bfloat16 else result.cpu().numpy()


def on_gpu(bound, arrays):
    """The only output of a launch, and of a second one."""
    kernel = bound.compile()
    given = [tensor(arrays[name]) for name in bound.spec.inputs if name in arrays]
    results = [array(kernel(*given)) for _ in range(2)]
    return results[1]


@pytest.mark.parametrize("case", small.CASES, ids=str)
def test_numbers_with_scales(case):
    bound = small.unpacked(*case, **small.sizes_of(case))
    arrays = small.inputs(bound.spec, 5)
    assert small.equal(on_gpu(bound, arrays), small.right(arrays, *case))


@pytest.mark.parametrize("name", [name for name, (_, target) in small.PRODUCTS.items() if target == "sm_80"])
def test_products_by_mma(name):
    require_product(name)


@needs_hopper
@pytest.mark.parametrize("name", [name for name, (_, target) in small.PRODUCTS.items() if target != "sm_80"])
def test_products_by_wgmma(name):
    require_product(name)


def require_product(name):
    bound, _ = small.PRODUCTS[name]
    arrays = small.product_inputs(bound, 5)
    want = small.right_product(bound, arrays, "nv" if "E4M3" in name else "mx").astype(np.float32)
    assert np.array_equal(on_gpu(bound, arrays), want.astype(bound.spec.operands["C"].dtype.to_numpy()))


SUMS = [
    ("product", float16, {}), ("batch", float16, {"width": 1}), ("batch", float16, {"width": 2}), ("batch", float16, {"width": 8}),
    ("batch", float16, {"width": 2, "d": 47}), ("iterations", float16, {}), ("scattered", float16, {"width": 4}),
    pytest.param("product", bfloat16, {}, marks=needs_hopper), pytest.param("batch", bfloat16, {"width": 8}, marks=needs_hopper),
    pytest.param("batch", bfloat16, {"width": 1}, marks=needs_hopper),
]  # fmt: skip


@pytest.mark.parametrize(("name", "dtype", "options"), SUMS)
def test_blocks_add_to_16_bit_floats(name, dtype, options):
    """Sums of integers are exact; those of other numbers are within their bounds."""
    bound = halves.KERNELS[name](dtype, **options)
    output = halves.OUTPUTS[name]
    arrays = halves.arrays_of(bound.spec, 5)
    assert np.array_equal(on_gpu(bound, arrays).astype(float), halves.right(name, arrays))
    arrays = halves.arrays_of(bound.spec, 6, whole=False)
    judge = Judge(bound.spec, {}, arrays, float32)
    assert judge.wrong(output, on_gpu(bound, arrays)) is None


@pytest.mark.parametrize("name", small.BY_THREADS)
def test_single_threads_convert_pairs(name):
    bound, right = small.BY_THREADS[name]
    arrays = small.inputs(bound.spec, 5)
    assert np.array_equal(on_gpu(bound, arrays).astype(float), right(arrays).astype(float), equal_nan=True)
