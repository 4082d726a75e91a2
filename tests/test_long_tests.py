"""The tables of tests that only the long tier runs name tests that exist, and tests of the default tier in their place."""

import functools
import re
from pathlib import Path

import pytest
from long_tests import INSTEAD


@functools.cache
def decorators_of(file):
    """The tests of a file, each with the text of its decorators."""
    text = (Path(__file__).parent / f"{file}.py").read_text()
    return {
        name: lines for lines, name in re.findall(r"((?:^ *@.*\n(?:(?! *(?:def|class|@)).*\n)*)*)^ *def (test_\w+)\(", text, re.MULTILINE)
    }


def state_of(name):
    """Whether a test runs by default: `default`, `long`, or `missing`."""
    file, *_, test = name.split("::")
    decorators = decorators_of(file).get(test)
    if decorators is None:
        return "missing"
    return (
        "long"
        if name in INSTEAD or re.search(r"^ *@(pytest\.mark\.nightly|NIGHTLY|pytest\.mark\.gpu)", decorators, re.MULTILINE)
        else "default"
    )


def test_every_test_of_the_tables_exists():
    assert [name for name in INSTEAD if state_of(name) == "missing"] == []


def test_the_default_tier_runs_a_test_in_place_of_each():
    assert {name: state_of(name) for name in INSTEAD.values() if state_of(name) != "default"} == {}


@pytest.mark.parametrize(
    ("name", "state"), [("test_long_tests::test_none", "missing"), ("test_tune::test_dask", "long"), ("test_tune::test_record", "default")]
)
def test_states_are_recognized(name, state):
    assert state_of(name) == state
