"""On a GPU: indirect and affine indices, integers in formulas, named masks, temporaries in shared memory as operands of an MMA, outputs to
which several blocks add, and kernel graphs.

The kernels are those of the tests of these concepts in the simulator. Outputs of integers are compared with exact integers, all others with
NumPy, and with the error bounds of the definition where it has any.
"""

import nested
import numpy as np
import pytest
import scans
import test_added
import test_affine
import test_affine_outside
import test_affine_tma
import test_atomic_extremes
import test_experts as experts_kernels
import test_indirect
import test_integer_formulas
import test_kernel_graph
import test_named_masks
import test_packed_integers
import test_paged_tma
import test_placed
import test_scalar_outputs
import test_scattered
import test_scattered_sums
import todays_kernels
from near import Near

from fireiron import *
from fireiron.gpu import launch
from fireiron.measure.data import accumulator_of, random_inputs, references_of
from fireiron.measure.rounding import differing

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not launch.gpu_available(), reason="needs a CUDA GPU and CuPy (pip install 'fireiron[cuda13]')"),
]


UNKNOWN_TO_NUMPY = ("bfloat16", "float8_e4m3fn", "float8_e5m2")


def on_gpu(bound, arrays, out=None):
    """The outputs of a launch by name, on the host. `out` are initial values."""
    kernel, spec = bound.compile(), bound.spec
    given = [arrays[name] if spec.operands[name].memory.by_value else tensor(stored(spec, name, arrays[name])) for name in spec.inputs]
    results = kernel(*given, **({} if out is None else {"out": tensor(out)}))
    results = results if isinstance(results, tuple) else (results,)
    return {name: array(result) for name, result in zip(spec.outputs, results, strict=True)}


def stored(spec, name, array):
    """The array in the storage order that the kernel reads."""
    return np.asfortranarray(array) if spec.operands[name].tensor.array.layout == ColMajor else array


def tensor(array):
    """A tensor of PyTorch on the GPU; NumPy passes 8-bit floats as bytes."""
    torch = pytest.importorskip("torch")
    if array.dtype.name in UNKNOWN_TO_NUMPY:
        integers = array.view(np.uint8 if array.dtype.itemsize == 1 else np.int16)
        return torch.from_numpy(integers).cuda().view(getattr(torch, array.dtype.name))
    return torch.from_numpy(array).cuda()


def array(result):
    """The array of a tensor, which NumPy may not know the type of: then in float32."""
    known = str(result.dtype).removeprefix("torch.") not in UNKNOWN_TO_NUMPY
    return (result if known else result.float()).cpu().numpy()


def inputs_of(spec, seed=0):
    return random_inputs(spec, {}, np.random.default_rng(seed))


@pytest.mark.parametrize("name", test_indirect.CASES)
def test_indirect_operands(name):
    strategy, definition, sizes = test_indirect.CASES[name]
    spec = definition(**sizes)
    arrays = inputs_of(spec)
    (got,) = on_gpu(strategy(spec), arrays).values()
    test_indirect.require_right(got, test_indirect.by_numpy(spec, arrays))


@pytest.mark.parametrize("loop", [test_indirect.WGMMA, test_indirect.PRODUCER], ids=["threads", "producer"])
def test_gathered_rows_of_wgmma(loop):
    spec = test_indirect.GEMM(m=200, n=128, k=128, r=50)
    arrays = inputs_of(spec)
    (got,) = on_gpu(test_indirect.GEMM.tile(m=128, n=64).to(Block).step("mm", loop).done()(spec), arrays).values()
    test_indirect.require_right(got, test_indirect.by_numpy(spec, arrays))


@pytest.mark.parametrize("number", [-1, 20, 2**31 - 1, -(2**31)])
def test_reads_of_wrong_numbers_are_clamped(number):
    """A wrong index reads a row of the array, as the reference does."""
    strategy, definition, sizes = test_indirect.CASES["rows"]
    spec = definition(**sizes)
    arrays = inputs_of(spec)
    arrays["rows"][3] = number
    (got,) = on_gpu(strategy(spec), arrays).values()
    np.testing.assert_array_equal(got[3], arrays["A"][19 if number > 0 else 0])


@pytest.mark.parametrize("page", [16, 32, 64, 128])
def test_pages_by_tma(page):
    """A number that is not a page reads zeros."""
    bound = test_paged_tma.program_of(page).strategy
    arrays = inputs_of(bound.spec)
    arrays["table"][1, 0] = -1
    (got,) = on_gpu(bound, arrays).values()
    test_indirect.require_right(got, test_paged_tma.by_numpy(arrays, 256))


@pytest.mark.parametrize("name", test_scattered.CASES)
def test_scattered_rows(name):
    """Rows whose number is not an index are not written, and rows that no number names keep their values."""
    bound = test_scattered.CASES[name](test_scattered.SCATTERED(m=10, n=64, r=20))
    x, rows = np.random.default_rng(0).standard_normal((10, 64)).astype(np.float16), test_scattered.numbers(10, 20)
    got = on_gpu(bound, {"X": x, "rows": rows}, out=test_scattered.kept(20, 64))["Y"]
    np.testing.assert_array_equal(got, test_scattered.by_numpy(rows, 2 * x, test_scattered.kept(20, 64)))


@pytest.mark.parametrize("loop", [test_scattered.BY_WGMMA, test_scattered.PRODUCER], ids=["wgmma", "producer"])
def test_experts(loop):
    """Rows are gathered, multiplied and scattered in one kernel."""
    bound = test_scattered.MOE.tile(m=128, n=64).to(Block).step("mm", loop).done()(test_scattered.MOE(m=200, n=128, k=128, r=250))
    arrays = inputs_of(bound.spec) | {"to": test_scattered.numbers(200, 250)}
    got = on_gpu(bound, arrays, out=np.zeros((250, 128), np.float16))["Y"]
    product = arrays["A"][arrays["rows"]].astype(float) @ arrays["B"].astype(float)
    test_indirect.require_right(got, test_scattered.by_numpy(arrays["to"], product, np.zeros((250, 128))))


@pytest.mark.parametrize("bound", [bound for bound, _ in test_placed.KERNELS.values()], ids=test_placed.KERNELS)
def test_temporaries_in_shared_memory(bound):
    arrays = inputs_of(bound.spec)
    got = on_gpu(bound, arrays)
    assert not differing(bound.spec, {}, got, arrays, references_of(bound.spec, *arrays.values()), accumulator_of(bound.compile()))


@pytest.mark.parametrize("size", [96, 80], ids=str)
@pytest.mark.parametrize("definition", [test_named_masks.query_gradient, test_named_masks.key_gradient], ids=["queries", "keys"])
def test_causal_gradients(definition, size):
    arrays, results = test_named_masks.arrays_of(size, size)
    bound = test_named_masks.backward(definition)(test_named_masks.spec(definition, size, size))
    given = {name: arrays[name] for name in test_named_masks.OPERANDS}
    for name, computed in on_gpu(bound, given).items():
        np.testing.assert_allclose(computed, results[name], rtol=2e-2, atol=4e-3)


@pytest.mark.parametrize("seed", range(8))
def test_drawn_formulas_of_integers(seed):
    """Each element is the exact integer, computed by Python."""
    formulas, _ = test_integer_formulas.drawn(seed, False)
    spec, bound = test_integer_formulas.kernel_of(formulas, False)
    given = {name: array for name, array in test_integer_formulas.arrays(seed).items() if name in spec.operands}
    got = on_gpu(bound, given)
    right = test_integer_formulas.expected(formulas, given)
    test_integer_formulas.assert_exact(formulas, [got[name] for name in spec.outputs], right, f"seed {seed}", False)


@pytest.mark.parametrize("name", test_affine.CASES)
def test_affine_indices(name):
    """Shifts, pooling and convolutions; elements outside of the array read as zero."""
    strategy, definition, sizes = test_affine.CASES[name]
    spec = definition(**sizes)
    arrays = inputs_of(spec)
    (got,) = on_gpu(strategy(spec), arrays).values()
    test_indirect.require_right(got, test_affine.by_numpy(spec, arrays))


def test_a_convolution_by_wgmma():
    spec = test_affine.CONV(b=1, p=2, q=130, o=64, r=3, s=3, c=64, h=4, w=130)
    arrays = inputs_of(spec)
    (got,) = on_gpu(test_affine.conv(test_affine.WGMMA_LOOP, q=128)(spec), arrays).values()
    test_indirect.require_right(got, test_affine.by_numpy(spec, arrays))


@pytest.mark.parametrize("name", test_affine_outside.CASES)
def test_outside_of_arrays(name):
    """Values outside of arrays, padding modes, transposed convolutions."""
    strategy, definition, sizes = test_affine_outside.CASES[name]
    spec = definition(**sizes)
    arrays = inputs_of(spec)
    (got,) = on_gpu(strategy(spec), arrays).values()
    test_indirect.require_right(got, test_affine_outside.by_numpy(spec, arrays))


@pytest.mark.parametrize("name", test_affine_tma.CASES)
def test_shifted_boxes(name):
    """Convolutions by TMA and wgmma."""
    strategy, definition, sizes = test_affine_tma.CASES[name]
    spec = definition(**sizes)
    arrays = inputs_of(spec)
    (got,) = on_gpu(strategy(spec), arrays).values()
    test_indirect.require_right(got, test_affine_tma.by_numpy(spec, arrays))


@pytest.mark.parametrize("name", test_added.CASES)
def test_blocks_add_to_outputs(name):
    bound = test_added.CASES[name]()
    arrays = test_added.arrays_of(bound.spec)
    got = on_gpu(bound, arrays)
    for output, right in test_added.expected_of(name, arrays).items():
        np.testing.assert_allclose(got[output].astype(float), right, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", [name for name in test_scalar_outputs.CASES if name != "numbers"])
def test_results_without_dimensions(name):
    """Sums over blocks, norms, losses; twice, since the launcher zeroes the output of each call."""
    bound, right = test_scalar_outputs.CASES[name]()
    arrays = test_scalar_outputs.arrays_of(bound.spec)
    near = Near(bound.spec, arrays, right(*(array.astype(float) for array in arrays.values())), test_scalar_outputs.symbols_of(name))
    for _ in range(2):
        near.require(on_gpu(bound, arrays))


@pytest.mark.parametrize("name", test_scattered_sums.CASES)
def test_additions_at_indices(name):
    bound, arrays, near = test_scattered_sums.case_of(name)
    for _ in range(2):
        near.require(on_gpu(bound, arrays))


@pytest.mark.parametrize("name", test_atomic_extremes.CASES)
def test_maxima_and_minima_of_blocks(name):
    bound, arrays, near = test_atomic_extremes.case_of(name)
    for _ in range(2):
        near.require(on_gpu(bound, arrays))


def test_maxima_ignore_nan():
    bound, special = test_atomic_extremes.columns()[0], test_atomic_extremes.specials()
    assert np.array_equal(on_gpu(bound, {"X": special})["M"].view(np.int32), bound.spec.reference(special).view(np.int32))


def test_a_kernel_graph():
    """Attention of few queries: two kernels, one call, replayed by a CUDA graph on other inputs."""
    torch = pytest.importorskip("torch")
    graph, draw = test_kernel_graph.decode(), np.random.default_rng(2).standard_normal
    call = graph.compile()
    inputs = [[draw(shape).astype(np.float16) for shape in ((1, 1, 4, 16), (1, 70, 1, 16), (1, 70, 1, 16))] for _ in range(2)]
    given = [tensor(array) for array in inputs[0]]
    result = call(*given, 0.25)
    np.testing.assert_allclose(result.cpu().numpy().astype(float), graph.reference(*inputs[0], 0.25), atol=2e-3)
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        replayed = call(*given, 0.25)
    for place, array in zip(given, inputs[1], strict=True):
        place.copy_(tensor(array))
    recorded.replay()
    torch.cuda.synchronize()
    np.testing.assert_allclose(replayed.cpu().numpy().astype(float), graph.reference(*inputs[1], 0.25), atol=2e-3)


@pytest.mark.parametrize("case", test_packed_integers.CASES[::4], ids=str)
def test_fields_of_words(case):
    bound = test_packed_integers.unpacked(*case)
    arrays = test_packed_integers.inputs(bound.spec)
    (got,) = on_gpu(bound, arrays).values()
    assert np.array_equal(got.astype(float), test_packed_integers.right(arrays, *case[:3]))


@pytest.mark.skipif(launch.visible_arch() != "sm_90", reason="needs a GPU of compute capability 9.0")
@pytest.mark.parametrize("name", ["experts", "one warp of copies", "both copied"])
def test_experts_by_copies_and_tma(name):
    strategy, spec, *_ = experts_kernels.KERNELS[name]
    arrays = experts_kernels.inputs(spec)
    (got,) = on_gpu(strategy(spec), arrays).values()
    assert np.array_equal(got, experts_kernels.expected(spec, arrays))


@pytest.mark.parametrize(("name", "target"), [(name, target) for name, case in todays_kernels.CASES.items() for target in case.strategies])
def test_kernels_of_a_current_stack(name, target):
    case = todays_kernels.CASES[name]
    arrays = case.arrays()
    out = case.options().get("out")
    outputs = on_gpu(case.strategies[target](case.spec), arrays, out)
    assert max(case.errors(arrays, tuple(outputs.values())).values()) <= case.tolerance


@pytest.mark.parametrize("name", [name for name, (_, _, symbols, _) in nested.CASES.items() if not symbols])
def test_nested_loops(name):
    """Kernels with nested loops: staged by `cp.async`, and with rings of TMA in both loops."""
    strategy, spec, _, target = nested.CASES[name]
    if target == "sm_90a" and not (launch.visible_arch() or "").startswith("sm_90"):
        pytest.skip("the rings of TMA and wgmma need sm_90a")
    arrays = inputs_of(spec)
    got = on_gpu(strategy(spec), arrays)
    for output, value in nested.by_numpy(spec, arrays).items():
        np.testing.assert_allclose(got[output].astype(np.float64), value, rtol=2e-2, atol=2e-2 * np.abs(value).max())


@pytest.mark.parametrize("form", scans.FORMS)
def test_scans(form):
    """Scans of threads, warps and blocks, in iterations and in chunks: exact for integers, within their bounds for floats."""
    for seed in range(4):
        case, _ = scans.draw(seed, form)
        if not case.symbols:
            objection = scans.objection(case, seed, lambda arrays, sizes, case=case: on_gpu(case.strategy(case.bound), arrays))
            assert not objection, objection + scans.program_to_paste(case)
