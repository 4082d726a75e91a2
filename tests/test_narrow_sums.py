"""Findings about long sums in the 16-bit type of the result."""

from __future__ import annotations

import pytest

from fireiron import *
from fireiron.inspect.findings import findings
from fireiron.inspect.narrow_sums import narrow_sums

BLOCK = MatMul.tile(16, 16).to(Block)
INNER = MatMul.tile(16, 16).to(Warp).split(16).load(A, RF, Move.done()).load(B, RF, Move.done()).mma_tile().done()


def warnings(start, k, **options):
    problem = MatMul(16, 16, k, **{"dtype": float16, "c_dtype": float16, "order": RowMajor, **options})
    return list(narrow_sums(start.then(INNER)(problem).program("sm_80")))


def test_a_long_sum_in_float16():
    (finding,) = warnings(BLOCK.epilog(RF), 2048)
    assert (finding.kind, finding.severity) == ("accumulator", "warning") and finding.at.startswith("tests/test_narrow_sums.py:")
    assert "sums of 2048 products in float16, the type of C, with errors of up to 100% of" in finding.message
    assert "; epilog(RF, float32) accumulates in float32; epilog(RF, float16) states that float16 is intended" in finding.message


@pytest.mark.parametrize("k, number", [(255, 0), (256, 1)])
def test_the_bound_decides(k, number):
    """Also among all findings of a program, which `fireiron check` prints."""
    problem = MatMul(16, 16, k, dtype=float16, c_dtype=float16, order=RowMajor)
    strategy = BLOCK.epilog(RF).tile(1, 1).to(Thread).split(1).done()
    assert [finding.kind for finding in findings(strategy(problem).program("sm_80"))].count("accumulator") == number


def test_a_named_type_is_a_decision():
    assert not warnings(BLOCK.epilog(RF, float32), 2048) and not warnings(BLOCK.epilog(RF, float16), 2048)
    assert not warnings(BLOCK.epilog(RF), 2048, accumulator=float32) and not warnings(BLOCK.epilog(RF), 2048, c_dtype=float32)
