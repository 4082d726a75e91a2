"""Loops of unknown length inside each other: which of their lengths the race check follows, and that no fault needs the others."""

import pytest
from ringed import TARGET, errors, halves, product, ring_faults

from fireiron import *
from fireiron.check.races.loops import Nested

M, N, K = sym("M", multiple_of=8), sym("N", multiple_of=8), sym("K", multiple_of=8)
TOLD = ("dropped: Acquire 1", "dropped: Release 1", "weaker: Wait 0", "load to another stage")
"""Faults of the ring, of what flies, and of addresses: those of a run that is not of the long tier."""


def kernel(stages):
    return product((64, 64, 64), (64, 64), stages, blocks=3)(halves(M, N, K)).program(TARGET).ir


def test_which_lengths_are_followed_together():
    """Long runs of the outer loop where ends of the inner one meet; each place in the period at one end behind a long inner loop."""
    still, moving = (Nested(M, few, K, window=5, period=4) for few in (2, 3))
    followed = [(m, k) for m in (0, 1, 2, 9) for k in range(1, 14) if still.is_new({M: m, K: k})]
    assert [k for m, k in followed if m == 1] == list(range(1, 14))
    assert [k for m, k in followed if m == 2] == list(range(1, 10))
    assert [k for m, k in followed if m == 9] == list(range(1, 6))
    assert [k for k in range(1, 14) if moving.is_new({M: 9, K: k})] == list(range(1, 10))


@pytest.mark.parametrize("stages", [2, pytest.param(3, marks=pytest.mark.nightly)])
def test_all_combinations_find_no_other_faults(stages, monkeypatch, request):
    every = request.node.get_closest_marker("nightly") is not None
    right = kernel(stages)
    faults = [(name, one) for name, one in ring_faults(right) if every or any(told in name for told in TOLD)]
    found = [(name, bool(errors(one))) for name, one in [("none", right), *faults]]
    monkeypatch.setattr(Nested, "is_new", lambda self, lengths: True)
    assert found == [(name, bool(errors(one))) for name, one in [("none", right), *faults]]
    assert not found[0][1] and sum(told for _, told in found) >= len(TOLD)
