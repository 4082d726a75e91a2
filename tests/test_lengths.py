"""Nested loops of unknown length: which of their lengths the race check combines, and that no fault needs the others."""

import pytest
from ringed import TARGET, errors, float16_gemm, product, ring_faults

from fireiron import *
from fireiron.check.races.loops import Nested

M, N, K = sym("M", multiple_of=8), sym("N", multiple_of=8), sym("K", multiple_of=8)
QUICK = ("dropped: Acquire 1", "dropped: Release 1", "weaker: Wait 0", "load to another stage")
"""Faults of the ring, of asynchronous operations, and of addresses, which also run in the fast tier."""


def kernel(stages):
    return product((64, 64, 64), (64, 64), stages, blocks=3)(float16_gemm(M, N, K)).program(TARGET).ir


def test_combinations_of_lengths():
    """Long runs of the outer loop where ends of the inner loop coincide; each phase of the period at one end after a long inner loop."""
    still, moving = (Nested(M, few, K, window=5, period=4) for few in (2, 3))
    followed = [(m, k) for m in (0, 1, 2, 9) for k in range(1, 14) if still.is_new({M: m, K: k})]
    assert [k for m, k in followed if m == 1] == list(range(1, 14))
    assert [k for m, k in followed if m == 2] == list(range(1, 10))
    assert [k for m, k in followed if m == 9] == list(range(1, 6))
    assert [k for k in range(1, 14) if moving.is_new({M: 9, K: k})] == list(range(1, 10))


@pytest.mark.nightly
@pytest.mark.parametrize("stages", [2, pytest.param(3, marks=pytest.mark.nightly)])
def test_all_combinations_detect_no_other_faults(stages, monkeypatch, request):
    nightly = request.node.get_closest_marker("nightly") is not None
    right = kernel(stages)
    faults = [(name, one) for name, one in ring_faults(right) if nightly or any(quick in name for quick in QUICK)]
    detected = [(name, bool(errors(one))) for name, one in [("none", right), *faults]]
    monkeypatch.setattr(Nested, "is_new", lambda self, lengths: True)
    assert detected == [(name, bool(errors(one))) for name, one in [("none", right), *faults]]
    assert not detected[0][1] and sum(is_detected for _, is_detected in detected) >= len(QUICK)
