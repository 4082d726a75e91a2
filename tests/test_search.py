"""The search of the site: an index that loads from disk, and results that begin with the page that explains a term."""

import configparser
import json
import shutil
import subprocess
from pathlib import Path

import pytest
import search

ROOT = Path(__file__).parent.parent
SITE = ROOT / "docs" / "site" / "theme" / "site.js"
TEXT = "A kernel is installed, and ping-pong, programmatic dependent launch, autotune and race are words of this text. "
INDEX = {
    "docs": [
        {"location": "decisions/0017-strategy-library.html", "title": "17. Install the strategy library", "text": TEXT * 9},
        {"location": "decisions/0030-tile-orders.html", "title": "30. Tile orders, ping-pong", "text": TEXT},
        {"location": "decisions/0031-programmatic-dependent-launch.html", "title": "31. Programmatic dependent launch", "text": TEXT},
        {"location": "index.html", "title": "Fireiron", "text": TEXT + "Try it"},
        {"location": "index.html#try-it", "title": "Try it", "text": "make demo. " + TEXT},
        {"location": "install.html", "title": "Installation", "text": "You need Python. " + TEXT},
        {"location": "tuning.html", "title": "Tuning", "text": TEXT},
        {"location": "reference/refinements-tile.html", "title": "Refinements of tiles", "text": TEXT},
        {"location": "reference/refinements-tile.html#pingpong", "title": "pingpong", "text": "Warpgroups alternate tiles."},
        {"location": "reference/refinements-tile.html#programmatic_launch", "title": "programmatic_launch", "text": "Overlap the start."},
        {"location": "reference/checks.html#races", "title": "Races", "text": "Two accesses."},
    ]
}
FIRST = {
    "install": "install.html",
    "installation": "install.html",
    "autotune": "tuning.html",
    "ping-pong": "reference/refinements-tile.html#pingpong",
    "pingpong": "reference/refinements-tile.html#pingpong",
    "programmatic dependent launch": "reference/refinements-tile.html#programmatic_launch",
    "race": "reference/checks.html#races",
    "Refinements of til": "reference/refinements-tile.html",
}


def results(queries, script):
    """The locations that the script of the site finds, by query, first the best."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs Node.js to run the script of the site")
    run = f"{script}const {{ranked}} = require({json.dumps(str(SITE))});" + (
        f"console.log(JSON.stringify({json.dumps(queries)}.map(query => ranked(search_index, query).map(entry => entry[0]))));"
    )
    done = subprocess.run([node, "-"], input=run, capture_output=True, text=True, check=True)
    return dict(zip(queries, json.loads(done.stdout), strict=True))


def test_the_page_that_explains_a_term_is_first():
    locations_of = results([*FIRST, "nothing has this", ""], search.script(json.dumps(INDEX)))
    assert {query: locations[0] for query, locations in locations_of.items() if locations} == FIRST


def test_the_index_is_a_script_whose_pages_with_sections_are_short():
    """A browser loads scripts from disk, but no JSON."""
    text = search.script(json.dumps(INDEX))
    assert text.startswith("var search_index = [[") and "search/index.js" in SITE.read_text()
    entries = {entry[0]: entry for entry in json.loads(text.removeprefix("var search_index = ").rstrip(";\n"))}
    assert (
        len(entries["reference/refinements-tile.html"][3])
        == len(TEXT)
        <= search.EXCERPT
        < len(entries["decisions/0017-strategy-library.html"][3])
    )


def test_keywords_of_missing_pages_are_reported():
    assert "howto/from-triton.html" in search.unknown(json.dumps(INDEX)) and "tuning.html" not in search.unknown(json.dumps(INDEX))


def test_the_cheat_sheet_has_all_steps_and_refinements():
    """It is generated, so that a new step or refinement is on it."""
    import reference

    pages = reference.pages()
    lines = pages["reference/cheat-sheet.md"].splitlines()
    expected = [line for line in pages["reference/index.md"].splitlines() if "](verbs.md#" in line or "](refinements-" in line]
    assert len(expected) > 40 and set(expected) <= set(lines)


def test_the_page_on_installation_describes_each_extra():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    page = (ROOT / "docs" / "install.md").read_text()
    assert [extra for extra in setup["options.extras_require"] if f"| `{extra}` |" not in page] == []
