"""The campaign of kernels on a GPU (`perf/campaign_gpu.py`): every strategy has a case, and a dry run judges results."""

import importlib
import sys
from pathlib import Path

import pytest

from fireiron.gpu.kernel import CompiledKernel

PERF = str(Path(__file__).resolve().parents[1] / "perf")


@pytest.fixture
def campaign(monkeypatch):
    monkeypatch.syspath_prepend(PERF)
    for name in ("cases", "campaign_gpu"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("campaign_gpu")


def test_every_strategy_has_a_case(campaign):
    assert campaign.uncovered() == []


def test_a_wrong_result_is_reported(campaign):
    strategy, symbols = campaign.bound_of(campaign.shipped("sm_90a")["zero_pixels"]())
    kernel = CompiledKernel(strategy.program("sm_90a"))

    class Wrong(campaign.DryRun):
        def run(self, kernel, arrays, sizes, repeats=1):
            results, wrong = super().run(kernel, arrays, sizes, repeats)
            return [{name: array + number for name, array in one.items()} for number, one in enumerate(results)], wrong

    assert campaign.checked(campaign.DryRun(), "zero_pixels", kernel, symbols, 1, 2)["wrong"] == []
    assert campaign.checked(Wrong(), "zero_pixels", kernel, symbols, 1, 2)["wrong"] == ["2 launches do not all return the same bits"]
