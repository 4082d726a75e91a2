"""Bytes and booleans as masks: read as stored, by epilogues and multi-step definitions; refused by name elsewhere."""

import numpy as np
import pytest
from near import Near
from printed_text import COMPILER, HostProgram, Printed

import fireiron
from fireiron import *
from fireiron.errors import ArgumentError, LaunchError
from fireiron.sim import simulate
from fireiron.values.machine import as_dtype

random = np.random.default_rng(0)
a, b = random.standard_normal((24, 32)).astype("float16"), random.standard_normal((32, 40)).astype("float16")
counted = Fused(
    name="counted", dims="m n", operands={"X": "m n", "keep": "m n", "Y": "m n", "count": "m", "top": "m", "least": "m"},
    body={
        "count": "count[m] = sum(n, keep[m,n])", "top": "top[m] = max(n, keep[m,n])", "least": "least[m] = min(n, keep[m,n])",
        "y": "Y[m,n] = where(keep[m,n] == 1, X[m,n], -1)",
    },
)  # fmt: skip
by_warps = counted.tile(m=1).to(Block).load("keep", RF, Move.tile(1, 32).to(Warp).tile(1, 1).to(Lane).done()).done()


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8"])
def test_masks_of_epilogues(dtype):
    keep = (random.random((24, 40)) < 0.5).astype(dtype)
    right = np.where(keep, a.astype(float) @ b.astype(float), 0)
    for text in ("where(keep[m,n] > 0, acc, 0)", "acc * keep[m,n]"):
        spec = fireiron.matmul.kernel(a, b, epilogue=text, keep=keep).program.spec
        Near(spec, {"A": a, "B": b, "keep": keep}, {"C": right}).require({"C": fireiron.matmul(a, b, epilogue=text, keep=keep)})


def test_sums_and_extrema_of_bytes():
    """For unsigned bytes the minimum is 0 and the maximum 255: elements past the end change nothing."""
    spec = counted(m=3, n=70, types={"keep": "bool", "count": float32, "top": uint8, "least": uint8})
    assert spec.operands["keep"].dtype == uint8 == as_dtype(bool) and uint8.limits == (0, 255) and int8.limits == (-128, 127)
    x, keep = random.standard_normal((3, 70)).astype("float16"), random.random((3, 70)) < 0.5
    keep[1:] = [[False], [True]]
    for mask in (keep, (200 + keep).astype("uint8")):
        y, count, top, least = by_warps(spec).compile("sm_80")(x, mask)
        assert (y == np.where(mask == 1, x, -1)).all() and (count == mask.sum(1)).all()
        assert (top == mask.max(1)).all() and (least == mask.min(1)).all()


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_bytes_in_the_printed_text(tmp_path):
    program = by_warps(counted(m=3, n=70, types={"keep": uint8, "count": float32, "top": uint8, "least": uint8})).program("sm_80")
    arrays = {"X": random.standard_normal((3, 70)).astype("float16"), "keep": random.integers(0, 256, (3, 70)).astype("uint8")}
    got, simulated = HostProgram([Printed.of(program)], tmp_path).run(0, arrays), simulate(program.ir, arrays).outputs
    assert all((got[name] == simulated[name]).all() for name in simulated)


def test_other_types_are_refused_by_name():
    for dtype in ("uint16", "complex64"):
        with pytest.raises(ArgumentError, match="keep: no kernel supports its element type") as error:
            fireiron.matmul(a, b, epilogue="where(keep[m,n] > 0, acc, 0)", keep=np.ones((24, 40), dtype))
        assert "bool" in str(error.value) and dtype in str(error.value)
    for dtype in ("bool", "uint8"):
        with pytest.raises(ArgumentError, match="a: no kernel supports its element type"):
            fireiron.matmul(a.astype(dtype), b.astype(dtype))
    with pytest.raises(ArgumentError, match="c_dtype: no kernel"):
        fireiron.matmul(a, b, c_dtype="uint8")


def test_a_mask_of_another_type_is_refused_with_the_spec_to_use():
    kernel = by_warps(counted(m=3, n=70, types={"count": float32})).compile("sm_80")
    with pytest.raises(LaunchError, match="keep has elements of another type") as error:
        kernel(np.zeros((3, 70), "float16"), np.ones((3, 70), bool))
    assert error.value.hint == "make the spec with types={'keep': uint8}, or convert the array"
