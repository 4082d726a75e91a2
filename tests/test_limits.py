"""docs/limits.md: its numbers are those of the modules; unintended changes are detected."""

import pytest
import scripts
from goldens.readable import differences


@pytest.fixture(scope="module")
def make_limits():
    return scripts.loaded("docs/make_limits.py")


def test_the_page_is_up_to_date(make_limits):
    changes = differences(make_limits.PAGE, make_limits.page())
    assert not changes, changes


def test_numbers_are_read_from_modules_as_they_are(make_limits, monkeypatch):
    from fireiron.cuda import statements

    monkeypatch.setattr(statements, "MOST_FACTORS", 15)
    assert [one[2] for one in make_limits.limits() if one[:2] == ("cuda.statements", "MOST_FACTORS")] == [15]
