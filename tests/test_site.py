"""The documentation site: built without a warning, completely reachable, no external files; and the complete language reference."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import docstrings
import gallery
import outside
import pytest
import reference
import section
import sections
import test_search
from fences import readable

import fireiron
from fireiron.inspect.main_loop import main_loop

ROOT = Path(__file__).parent.parent

FEW = "naive,listing_2"
"""The gallery strategies of a quickly built site."""


class Page(HTMLParser):
    """The anchors of a page, its links, and the files that it loads."""

    def __init__(self, text):
        super().__init__()
        self.anchors, self.links, self.loaded = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        for name in ("href", "src"):
            if given.get(name) and (tag, name) != ("a", "href"):
                self.loaded.append(given[name])
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])


def strictly(configuration, **options):
    """The settings of `mkdocs build --strict`."""
    pytest.importorskip("mkdocs", reason="the site is made by MkDocs: pip install 'fireiron[docs]'")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    build(load_config(str(configuration), strict=True, **options))


def build(folder, monkeypatch, strategies="", **options):
    """The site's pages by path, with some strategies of the gallery, or all."""
    monkeypatch.setenv("FIREIRON_GALLERY", strategies)
    strictly(ROOT / "mkdocs.yml", site_dir=str(folder), **options)
    return {path.resolve(): Page(path.read_text()) for path in folder.rglob("*.html")}


def check_links(pages, folder):
    """Each link leads to a file of the site with the anchor that it names; every page is reachable from the first one."""
    reached, waiting = set(), [(folder / "index.html").resolve()]
    while waiting:
        path = waiting.pop()
        if path in reached:
            continue
        reached.add(path)
        for link in pages[path].links:
            target, anchor = urldefrag(unquote(link))
            file = (path.parent / target).resolve() if target else path
            assert not re.match(r"\w+:|/", link), f"{path}: {link} leads out of the site"
            assert file.is_file(), f"{path}: {link} does not exist"
            if file in pages:
                assert not anchor or anchor in pages[file].anchors, f"{path}: {link} has no such anchor"
                waiting.append(file)
    assert {path.name for path in pages.keys() - reached} <= {"404.html"}, "not reached from the first page"


def check_loaded(pages, folder):
    """Styles, scripts and pictures are files of the site."""
    for path, page in pages.items():
        for url in page.loaded:
            assert url == "data:," or (folder / url.removeprefix("/") if url[0] == "/" else path.parent / unquote(url)).is_file(), (
                f"{path}: {url}"
            )
    for sheet in [*folder.rglob("*.css"), *folder.rglob("*.svg")]:
        assert not re.search(r"@import|url\((?!#)|href=\"http", sheet.read_text()), sheet


def test_the_site_is_whole(tmp_path, monkeypatch):
    pages = build(tmp_path, monkeypatch, FEW, plugins=[])  # without the search index
    check_links(pages, tmp_path.resolve())
    check_loaded(pages, tmp_path.resolve())
    first = pages[(tmp_path / "index.html").resolve()]
    menu = {urldefrag(link)[0] for link in first.links}
    assert {f"{path.stem}.html" for path in (ROOT / "docs").glob("*.md")} <= menu, "every page of docs/ stands in the menu"
    assert "--set" in (tmp_path / "reference" / "commands.html").read_text()
    assert "lanes" in (tmp_path / "reference" / "pictures" / "verbs_mma_tile.svg").read_text()
    naive = (tmp_path / "gallery" / "naive.html").read_text()
    assert "NVIDIA H200, 2026-11-21" in naive and "__global__" in naive and "<!-- cuda" not in naive


@pytest.mark.nightly
def test_the_whole_gallery(tmp_path, monkeypatch):
    pages = build(tmp_path, monkeypatch)
    check_links(pages, tmp_path.resolve())
    check_loaded(pages, tmp_path.resolve())
    names = gallery.library.names()
    assert {path.stem for path in (tmp_path / "gallery").glob("*.html")} == {*names, "index"}
    assert '"location":"reference/refinements-split.html#warp_specialize"' in (tmp_path / "search" / "search_index.json").read_text()
    locations_of = test_search.results([*test_search.FIRST], (tmp_path / "search" / "index.js").read_text())
    assert {query: locations[0] for query, locations in locations_of.items()} == test_search.FIRST


def test_a_dead_link_fails_the_build(tmp_path, monkeypatch):
    pytest.importorskip("mkdocs")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# One\n\n[two](two.md) [here](#nothing)\n")
    (tmp_path / "mkdocs.yml").write_text(
        re.sub(r"hooks:\n.*\n", "", (ROOT / "mkdocs.yml").read_text()).replace("docs/site/theme", str(ROOT / "docs/site/theme"))
    )
    with pytest.raises(Exception, match="2 warnings in strict mode"):
        strictly(tmp_path / "mkdocs.yml")


# ---------------------------------------------------------------------------------------------- the reference

SECTIONS = list(reference.all_sections())


@pytest.mark.parametrize("page", sorted({page for page, _ in SECTIONS}))
def test_every_section_has_its_parts(page):
    """Verbs and refinements: sentence, when legal, rewrite, source, an example that runs; specs and instructions: sentence, source,
    example.
    """
    lacking = {one.title: one.missing for place, one in SECTIONS if place == page and one.missing}
    assert not lacking, "the docstring says it: `Legal ...`, `rewrite: before --> after`, `Source: decision 12.`, `>>> ...`"


def test_every_public_name_is_in_the_reference():
    text = "\n".join(reference.pages().values())
    assert {name for name in fireiron.__all__ if not re.search(rf"`{name}\b", text)} == set()


def test_every_verb_of_a_chain_is_in_the_reference():
    titles = {name for _, one in SECTIONS for name in re.findall(r"`(?:at\(\.\.\.\)\.)?(\w+)`", one.title)}
    methods = {name for chain in sections.CHAINS.values() for name in dir(chain) if name[0] != "_"} - {
        "others",
        "refused",
        "spec",
        "start",
        "steps",
    }
    assert methods - titles == set()


def test_examples_are_found_by_doctest():
    """Not after assignments, where strings are not docstrings."""
    modules = {module for package in (sections.decomp, sections.refine, sections.executable) for module in package.MODULES}
    for module in (*modules, sections.machine, *sections.specs.modules()):
        assert not any(">>>" in text for text in docstrings.attribute_texts(module).values()), module.__name__


def test_a_docstring_is_taken_apart():
    """For a complete docstring, and for an empty one."""
    read = docstrings.parts(
        """Tiles of it. More text.

        Args: a number. Legal when it divides 3.5 tiles. Not else.
        rewrite: S --> for m: S      (Fireiron, section 3.4)

        Source: decision 12; PTX ISA, "mma".

        >>> 1 + 1
        2
        """
    )
    assert (read.sentence, read.legal, read.rules) == ("Tiles of it.", "Legal when it divides 3.5 tiles.", ("S --> for m: S",))
    assert read.sources == ("Fireiron, section 3.4", "decision 12", 'PTX ISA, "mma"') and read.example == ">>> 1 + 1\n2"
    assert read.text.split() == ["More", "text.", "Args:", "a", "number.", "Not", "else."]
    bare = section.Section("x", (), docstrings.parts("It is."), needs=sections.STEP)
    assert bare.missing == ("legal", "rules", "sources", "example")


# ---------------------------------------------------------------------------------------------- pages


def test_links_that_leave_the_documents():
    text = "[a](../README.md#see-it) [b](../strategies/naive.py) [c](../strategies) [d](fused.md)\n\n```\n[e](../README.md)\n```\n"
    expected = (
        "[a](index.md#see-it) [b](repository/strategies/naive.py.md) [c](gallery/index.md) [d](fused.md)\n\n```\n[e](../README.md)\n```\n"
    )
    assert outside.relinked(text, "docs/library.md") == expected
    assert outside.relinked("[x](../../perf/README.md)", "docs/decisions/0001-grid.md") == "[x](../repository/perf/README.md)"
    assert outside.targets(text, "docs/library.md") == ["README.md", "strategies/naive.py", "strategies", "docs/fused.md"]


def test_markdown_as_the_pages_are_written():
    """Lists and fenced blocks begin after an empty line; blocks are not changed; blocks for a GPU are marked."""
    assert readable("One:\n- a\n- b\n") == "One:\n\n- a\n- b\n"
    assert readable("```\nx\n- a\n```\n") == "```\nx\n- a\n```\n"
    assert readable("| `a\\|b` | c |\n") == "| `a|b` | c |\n"
    assert "On a GPU" in readable("```python gpu\nx\n```\n") and "```python gpu" not in readable("```python gpu\nx\n```\n")


def test_main_loop_of_a_kernel():
    """The largest loop with a limited number of lines around the last MMA."""
    inner = "    for (int m = 0; m < 2; ++m)\n      c[m] = fmaf(a[m], b[0], c[m]);\n"
    text = f"__global__ void k()\n{{\n  for (int k = 0; k < 8; ++k) {{\n#pragma unroll\n{inner}  }}\n  for (int m = 0; m < 2; ++m)\n    C[m] = c[m];\n}}\n"
    assert main_loop(text, 60) == (["for (int k = 0; k < 8; ++k) {", "#pragma unroll", *(line[2:] for line in inner.splitlines()), "}"])
    long = text.replace("#pragma unroll\n", "    x();\n" * 60)
    assert main_loop(long, 60) == [line[4:] for line in inner.splitlines()]
