"""Guard zones (zones.py): a byte written outside an output, or in a gap between its rows, is detected."""

import numpy as np
import pytest
from zones import NAN, ZONE, placed, written_outside

from fireiron import *

SPEC = MatMul(3, 5, 2, dtype=float32, A=RowMajor, C=RowMajor(ld=8))(GL, GL, GL)(Kernel)


@pytest.mark.parametrize("place", [0, ZONE - 1, ZONE + 5 * 4, ZONE + 31, ZONE + (2 * 8 + 5) * 4, -1])
def test_bytes_outside(place):
    memory, array = placed(np, SPEC.C, {})
    assert array.shape == (3, 5) and array.strides == (32, 4) and np.isnan(array).all()
    array[...] = 1
    assert written_outside(memory, array) == 0
    memory[place] = 1
    assert written_outside(memory, array) == 1


def test_inputs_lie_in_nan():
    memory, array = placed(np, SPEC.A, {}, np.ones((3, 2), np.float32))
    outside = np.concatenate([memory[:ZONE], memory[-ZONE:]])
    assert (outside == NAN).all() and np.isnan(outside.view(np.float32)).all() and (array == 1).all()


def test_tables_and_eight_bit_floats():
    """The array of an operand with a table has the shape of the tensor, and 8-bit floats are stored as bytes."""
    definition = Fused(name="g", dims="m n r", operands={"T": "m", "X": "r n", "Y": "m n"}, body={"a": "Y[m,n] = X[T[m],n]"})
    spec = definition(m=3, n=5, r=7, dtype=float8_e4m3)
    given = np.arange(35).reshape(7, 5).astype(float8_e4m3.to_numpy())
    memory, array = placed(np, spec.operands["X"], {}, given)
    assert array.dtype == np.uint8 and (array.view(given.dtype) == given).all() and (memory[:ZONE] == NAN).all()
    assert placed(np, spec.operands["Y"], {})[1].shape == (3, 5)
