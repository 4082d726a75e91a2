"""`fireiron.function("transpose")` at awkward sizes."""

import numpy as np
import pytest

import fireiron


@pytest.mark.parametrize("shape", [(2, 70, 136), (1, 33, 77)], ids=str)
def test_transpose(shape):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float16)
    assert np.array_equal(fireiron.function("transpose")(x), x.transpose(0, 2, 1))


def test_the_gradient_is_the_transposed_gradient():
    assert fireiron.function("transpose").gradient.steps[0].writes == ("dX",)
