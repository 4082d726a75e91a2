"""The page of the Graphene paper's experiments is the output of its script for the present results (perf/graphene_numbers.py)."""

import json
from pathlib import Path

import pytest
import scripts

PATH = Path(__file__).parents[1] / "perf" / "graphene_numbers.py"


@pytest.fixture
def numbers():
    return scripts.loaded("perf/graphene_numbers.py")


def test_the_page_is_up_to_date(numbers):
    text = numbers.page(numbers.Results(numbers.FOLDER, numbers.PRODUCTS))
    assert (numbers.FOLDER / "graphene.md").read_text() == text, "python perf/graphene_numbers.py"
    assert all(f"| E{number} |" in text for number in range(1, 8))


def test_present_results_are_read(numbers, tmp_path):
    """Ratios are times of baselines divided by ours; a missing file is reported as missing."""
    assert numbers.page(numbers.Results(tmp_path, tmp_path / "none")).count(numbers.MISSING) == len(numbers.EXPERIMENTS)
    us = {"shared {}": 20.0, "registers {}": 18.0, "Triton mma": 25.0, "Triton free": 27.0, "cuBLASLt chain": 90.0}
    plain = {"environment": {"gpu": "NVIDIA H200", "date": "2026-11-22T10:00"}, "measured": [{"rows": 8192, "layers": 20, "us": us}]}
    (tmp_path / "mlp.json").write_text(json.dumps(plain))
    (line,) = (one for one in numbers.page(numbers.Results(tmp_path, tmp_path / "none")).splitlines() if "| E3 |" in one)
    assert "5.00 times the cuBLASLt chain, 1.39 times Triton's" in line and "NVIDIA H200, 2026-11-22" in line
