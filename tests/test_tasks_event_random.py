"""Event IR of many generated programs, in the long tier."""

import pytest
from event_random import check_drawn

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize("chunk", range(20))
def test_many_programs_at_random(chunk):
    for seed in range(100 * chunk, 100 * chunk + 100):
        check_drawn(seed, 3)
