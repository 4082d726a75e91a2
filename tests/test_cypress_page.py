"""The page of the Cypress paper's experiments is the output of its script for the present results, and its mappings are mappings
(perf/cypress.py).
"""

import importlib
from pathlib import Path

import pytest

from fireiron.strategies import dual

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "perf" / "results" / "2026-11-23-h200-evaluation"


@pytest.fixture
def cypress(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "perf"))
    return importlib.import_module("cypress")


def test_the_page_is_up_to_date(cypress):
    results = {name: sorted(rows, key=lambda row: row["work"]) for name, rows in cypress.saved(FOLDER).items()}
    assert results and (FOLDER / "cypress.md").read_text() == cypress.page(results), f"python perf/cypress.py {FOLDER} --page"


def test_ratios_are_times_of_others_divided_by_ours(cypress):
    us = {"ours a": 20.0, "ours b": 10.0, "cuBLAS": 12.0, "Triton x": 15.0, "form as it is": 20.0, "form no producer": 25.0}
    rows = [{"problem": "64^3", "work": 2 * 64**3, "us": {"burst": us, "busy": us}}]
    text = cypress.page({"gemm": rows})
    assert "1.200 (busy 1.200)" in text and "1.500 (busy 1.500)" in text and "| no producer | 64^3" in " ".join(text.split())
    assert "0.800" in text, "a form's speed by that of the first"


def test_a_mapping_without_a_producer(cypress):
    """Refinements that need a ring are removed with it; choices that a strategy lacks are left out."""
    alone = cypress.unspecialized(dual.hopper)
    text = alone(dual.spec(512, 512, 256)).cuda("sm_90a")
    assert "wgmma" in text and "setmaxnreg" not in text and "setmaxnreg" in dual.hopper(dual.spec(512, 512, 256)).cuda("sm_90a")
    assert list(cypress.choices_of(dual.hopper, {}, {"bn": 128}, {"bn": 100}, {"none": 1})) == ["ours", "ours {'bn': 128}"]
