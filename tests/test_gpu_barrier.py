"""Time limits of barriers between GPUs; `test_distributed.py` runs the barriers."""

import pytest

from fireiron.errors import ArgumentError
from fireiron.gpu.barrier import SECONDS, seconds_of


@pytest.mark.parametrize("seconds", [True, "1", 0, -1.0, 1e9, float("nan")])
def test_illegal_time_limits_are_refused(seconds):
    with pytest.raises(ArgumentError, match="must be a number of seconds"):
        seconds_of(seconds)


def test_legal_time_limits():
    assert seconds_of(None) == SECONDS and seconds_of(2) == 2 and seconds_of(1e-3) == 1e-3
