"""The benchmark page and its figures are those of perf/results, and show the cases that lose."""

import re
from pathlib import Path

import pytest
import scripts

ROOT = Path(__file__).parent.parent
BENCHMARKS = scripts.loaded("docs/make_benchmarks.py")


@pytest.fixture(scope="module")
def page():
    return BENCHMARKS.page()


def test_the_page_is_up_to_date(page):
    assert BENCHMARKS.PAGE.read_text() == page, "python docs/make_benchmarks.py"


@pytest.mark.parametrize("figure", BENCHMARKS.FIGURES, ids=lambda figure: figure.name)
def test_figures_are_up_to_date(figure):
    assert (BENCHMARKS.PICTURES / f"{figure.name}.svg").read_text() == BENCHMARKS.drawn(figure).svg, "python docs/make_benchmarks.py"
    assert len(figure.bars) >= 5 and all(0 < bar.speedup < 10 for bar in figure.bars)


def test_every_folder_of_results_is_on_the_page(page):
    for folder in (path for path in BENCHMARKS.RESULTS.iterdir() if path.is_dir()):
        assert f"](../perf/results/{folder.name}" in page


def test_slower_cases_have_another_color():
    figure = next(figure for figure in BENCHMARKS.FIGURES if figure.name == "results_quantized")
    slower = sum(bar.speedup < 0.995 for bar in figure.bars)
    assert slower and BENCHMARKS.drawn(figure).svg.count(f'fill="{BENCHMARKS.SLOWER}"') == slower
    assert f"{slower} of {len(figure.bars)} cases lose; the lowest is 0.83" in figure.caption


def test_the_readme_states_what_loses():
    """With the numbers of the table of results."""
    (paragraph,) = (block for block in BENCHMARKS.blocks((ROOT / "README.md").read_text()) if block.startswith("What loses"))
    results = (ROOT / "perf" / "results" / "README.md").read_text()
    numbers = re.findall(r"\b0\.\d\d\b", paragraph)
    assert len(numbers) >= 5 and all(number in results for number in numbers)
    readme = (ROOT / "README.md").read_text()
    assert all(f"docs/pictures/{figure.name}.svg" in readme for figure in BENCHMARKS.FIGURES)
