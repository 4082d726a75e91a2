"""Matrix products of arrays of any rank as batched GEMM: views only, which together compute what NumPy multiplies."""

import numpy as np
import pytest

from fireiron import *
from fireiron.batches import batches, result_shape, viewed

SHAPES = [
    ((4, 8), (8, 5)), ((8,), (8,)), ((8,), (8, 5)), ((4, 8), (8,)), ((8,), (3, 8, 5)), ((2, 3, 4, 8), (8,)), ((2, 3, 4, 8), (8, 5)), ((2, 3, 4, 8), (3, 8, 5)),
    ((2, 1, 4, 8), (1, 3, 8, 5)), ((2, 3, 4, 8), (2, 3, 8, 5)), ((1, 1, 4, 8), (1, 8, 5)), ((2, 3, 1, 2, 4, 8), (3, 2, 1, 8, 5)), ((2, 1, 1, 8), (2, 5, 8, 1)),
]  # fmt: skip


def stored(shape, how, seed):
    """Small integers in a storage order: batch dimensions reversed, matrices column-major, or a slice."""
    dims = list(range(len(shape)))
    front, matrix = dims[:-2], dims[-2:]
    order = {"front": [*front[::-1], *matrix], "columns": [*front, *matrix[::-1]]}.get(how, dims)
    gap = 1 if how == "slice" else 0
    wide = np.empty([shape[dim] + 2 * gap for dim in order])
    array = wide[(..., *(slice(gap, size - gap) for size in wide.shape))].transpose(np.argsort(order).astype(int))
    array[...] = np.random.default_rng(seed).integers(-4, 5, shape)
    return array


def places(array):
    return array.shape, tuple(step // array.itemsize for step in array.strides)


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_views_are_the_product(shapes):
    for left in ("rows", "front", "columns", "slice"):
        for right in ("rows", "front", "columns"):
            for out in (None, "rows", "front", "slice"):
                a, b = stored(shapes[0], left, 1), stored(shapes[1], right, 2)
                expected = a @ b
                output = np.zeros(expected.shape) if out is None else stored(expected.shape, out, 3)
                plan = batches(places(a), places(b), None if out is None else places(output))
                seen = [viewed(array, place) for array, place in ((a, plan.a), (b, plan.b), (output, plan.c))]
                for index in plan.indices:
                    first, second, target = (view[index] for view in seen)
                    assert 2 <= first.ndim == second.ndim == target.ndim <= 3
                    np.matmul(first, second, out=target)
                np.testing.assert_array_equal(output, expected)
                assert plan.shape == expected.shape


def test_contiguous_batch_dimensions_are_merged():
    """One launch for all batch dimensions if they are contiguous; otherwise the largest is the batch."""

    def loops(a, b):
        return batches(places(a), places(b), None).loops

    a, b = stored((2, 3, 4, 8), "rows", 1), stored((8, 5), "rows", 2)
    assert loops(a, b) == () and loops(a, stored((2, 3, 8, 5), "rows", 2)) == ()
    assert loops(stored((2, 3, 4, 8), "front", 1), b) == (2,)
    assert loops(a, stored((3, 8, 5), "rows", 2)) == (2,)


def test_refusals():
    for a, b, message in (
        ((2, 3, 4, 8), (5, 8, 5), "a is a batch of 3 matrices, but b is one of 5"),
        ((2, 3, 4, 8), (7, 5), "a has 8 columns, but b has 7 rows"),
        ((), (8, 5), "a has 0 dimensions"),
        ((8,), (7,), "a has 8 columns, but b has 7 rows"),
    ):
        with pytest.raises(ArgumentError, match=message):
            result_shape(a, b)


def test_as_numpy_multiplies():
    """In the simulator: batch dimensions, with a given output, and vectors."""
    a, b = (stored(shape, "rows", 1).astype("float32") for shape in ((2, 2, 4, 8), (2, 8, 5)))
    out = np.zeros((2, 2, 4, 5), "float32")
    assert matmul(a, b, out) is out
    np.testing.assert_array_equal(out, a @ b)
    np.testing.assert_array_equal(matmul(a, b[0, :, 0]), a @ b[0, :, 0])
    assert matmul.kernel(a, b, out).program is matmul.choice(a, b, out).program
    with pytest.raises(ArgumentError, match=r"out has the shape \(4, 5\)"):
        matmul(a, b, out[0, 0])
    with pytest.raises(ArgumentError, match="with an epilogue"):
        matmul(a, b, epilogue="relu(acc)")
