"""docs/limits.md: the numbers at which something is decided otherwise are those of the modules; none changes by the way."""

import importlib.util
from pathlib import Path

import pytest

FILE = Path(__file__).resolve().parent.parent / "docs" / "make_limits.py"


@pytest.fixture(scope="module")
def make_limits():
    spec = importlib.util.spec_from_file_location("make_limits", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(make_limits):
    assert make_limits.PAGE.read_text(encoding="utf-8").splitlines() == make_limits.page().splitlines(), "python docs/make_limits.py"


def test_numbers_are_read_from_modules_as_they_are(make_limits, monkeypatch):
    from fireiron.cuda import statements

    monkeypatch.setattr(statements, "MOST_FACTORS", 15)
    assert [one[2] for one in make_limits.limits() if one[:2] == ("cuda.statements", "MOST_FACTORS")] == [15]
