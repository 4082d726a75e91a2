"""On a GPU: every lane map of the matrix instructions, confirmed by the hardware.

A probe multiplies a matrix of distinct elements by a part of the identity: each element of the result shows which element of A, or of B,
the hardware used. The kernels are those of the generator, bit-equal to NumPy. Products cannot distinguish a permutation of rows in A and C
alike (of columns in B and C, of k in A and B); the copies through ldmatrix, movmatrix and stmatrix tie the rows and columns to addresses in
shared memory.
"""

import numpy as np
import pytest
from instructions import EXACT, FORMS, layouts_of, loaded_by, probes_of, spec_of, stored_by, strategy_of, through, through_choices
from problems import integers

from fireiron import *
from fireiron.gpu import launch
from fireiron.values.machine import as_architecture

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not launch.gpu_available(), reason="needs a CUDA GPU and CuPy (pip install 'fireiron[cuda13]')"),
]

named = pytest.mark.parametrize("form", FORMS, ids=lambda one: one.name)


def launched(kernel, *inputs, out=None):
    """The output of a kernel on the GPU; arrays are copied as plain bytes, since CuPy lacks some element types."""
    import cupy

    spec = kernel.program.spec
    (output,) = spec.outputs
    view = spec.operands[output]
    shape = tuple(int(str(size)) for size in view.shape)
    dtype = view.dtype.to_numpy()
    if out is None:
        out = np.full(shape, 77, dtype)
    arrays = dict(zip(spec.inputs, inputs, strict=True)) | {output: out}
    device = {name: cupy.asarray(flat(array, spec.operands[name].tensor.layout)) for name, array in arrays.items()}
    pointers = tuple(device[buffer.name] for buffer in kernel.ir.buffers if buffer.parameter)
    kernel.launcher(int(str(kernel.ir.grid)), kernel.ir.threads, pointers, None)
    values = cupy.asnumpy(device[output]).view(dtype)
    return values.reshape(shape, order="C" if view.tensor.layout == RowMajor else "F")


def flat(array, layout):
    """The bytes of an array in storage order."""
    return np.frombuffer(array.tobytes("C" if layout == RowMajor else "F"), np.uint8).copy()


def need(capability):
    """The target of this GPU, if it has an instruction."""
    target = launch.device_arch()
    have = as_architecture(target).capability
    if have < capability:
        pytest.skip(f"{target} lacks it")
    return target


@named
def test_mma_lane_maps(form):
    target = need(form.capability)
    depth = max(form.shape[2], 4)
    for layouts in layouts_of(form):
        spec = spec_of(form, *layouts, sizes=(16, 16, depth))
        kernel = strategy_of(form, tiles=(16, 16), chunk=depth)(spec).compile(target)
        for a, b in probes_of(form):
            np.testing.assert_array_equal(launched(kernel, a, b), spec.reference(a, b))


@named
def test_accumulator_lane_maps(form):
    target = need(form.capability)
    spec = spec_of(form, *layouts_of(form)[0], sizes=(16, 16, 32), accumulate=True)
    generator = np.random.default_rng(2)
    a, b = (integers(shape, form.factors[name], generator, -1, 2) for name, shape in (("A", (16, 32)), ("B", (32, 16))))
    c = np.arange(256).reshape(16, 16).astype(form.result.to_numpy())
    kernel = strategy_of(form, tiles=(16, 16), accumulate=True)(spec).compile(target)
    np.testing.assert_array_equal(launched(kernel, a, b, out=c), spec.reference(a, b) + c)


@named
def test_products(form):
    target = need(form.capability)
    generator = np.random.default_rng(4)
    for layouts in layouts_of(form):
        spec = spec_of(form, *layouts)
        a, b = (integers(shape, form.factors[name], generator) for name, shape in (("A", (32, 64)), ("B", (64, 32))))
        np.testing.assert_array_equal(launched(strategy_of(form)(spec).compile(target), a, b), spec.reference(a, b))


def test_tf32_drops_the_last_bits():
    """The simulator's model of what the hardware reads: the upper 19 bits, truncated toward zero."""
    target = need(80)
    for form in (HMMA_1688_F32_TF32, HMMA_1684_F32_TF32):
        depth = form.shape[2]
        spec = spec_of(form, sizes=(16, 16, depth), b=RowMajor)
        kernel = strategy_of(form, tiles=(16, 16), chunk=depth)(spec).compile(target)
        eye = np.eye(depth, 16, dtype=np.float32)
        generator = np.random.default_rng(6)
        for scale in (1, 1e-20, 1e30):
            values = (generator.standard_normal((16, depth)) * scale).astype(np.float32)
            got = launched(kernel, values, eye)
            np.testing.assert_array_equal(got, spec.reference(values, eye))
            np.testing.assert_array_equal(got, kernel(values, eye))


@pytest.mark.parametrize("instruction", LDMATRIX, ids=lambda one: one.name)
def test_ldmatrix(instruction):
    kernel = loaded_by(instruction).compile(need(80))
    a = np.tile(np.arange(32 * 32).reshape(32, 32), (1, 2)).astype(np.float16)
    eye = np.eye(64, 32, dtype=np.float16)
    np.testing.assert_array_equal(launched(kernel, a, eye), a[:, :32].astype(np.float32))
    b = np.tile(np.arange(32 * 32).reshape(32, 32), (2, 1)).astype(np.float16)
    np.testing.assert_array_equal(launched(kernel, np.eye(32, 64, dtype=np.float16), b), b[:32].astype(np.float32))


@pytest.mark.parametrize("instruction", [one for one in STMATRIX if one.pairs], ids=lambda one: one.name)
def test_stmatrix(instruction):
    kernel = stored_by(instruction).compile(need(90))
    a = np.tile(np.arange(32 * 32).reshape(32, 32), (1, 2)).astype(np.float16)
    np.testing.assert_array_equal(launched(kernel, a, np.eye(64, 32, dtype=np.float16)), a[:, :32])


@pytest.mark.parametrize("chain", list(through_choices()), ids=lambda chain: "-".join(one.name for one in chain))
@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
def test_copies_through_all_three(chain, dtype):
    kernel = through(*chain, dtype).compile(need(90))
    numbers = np.arange(32 * 32).reshape(32, 32)
    for values in (numbers % EXACT[dtype], numbers // EXACT[dtype], numbers // 32 % EXACT[dtype]):
        values = values.astype(dtype.to_numpy())
        np.testing.assert_array_equal(launched(kernel, values), values)


@pytest.mark.parametrize("dtype", [float8_e4m3, float8_e5m2], ids=str)
def test_conversions_of_8_bits(dtype):
    """To 8 bits with saturation, to nearest even; back exactly."""
    target = need(89)
    copy = Move.tile(8, 8).to(Block).tile(1, 1).to(Thread).done()
    generator = np.random.default_rng(8)
    for other in (float32, float64, float16, bfloat16):
        values = (generator.standard_normal((64, 64)) * np.exp2(generator.integers(-12, 12, (64, 64)))).astype(other.to_numpy())
        spec = Move(64, 64, dtype=other, dst_dtype=dtype)(GL, GL)(Kernel)
        kernel = copy(spec).compile(target)
        packed = launched(kernel, values)
        np.testing.assert_array_equal(packed.view(np.uint8), spec.reference(values).view(np.uint8))
        back = Move(64, 64, dtype=dtype, dst_dtype=other)(GL, GL)(Kernel)
        np.testing.assert_array_equal(launched(copy(back).compile(target), packed), back.reference(packed))
