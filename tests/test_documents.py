"""Every Python block in the documents runs; every linked file exists. Blocks that begin with ```python gpu need a GPU.

A test named by a document, `test_file::test_name`, exists.
"""

import ast
import builtins
import functools
import importlib.util
import re
from pathlib import Path

import pytest
import scripts

import fireiron
from fireiron.gpu import launch

ROOT = Path(__file__).parent.parent
OUTPUTS = scripts.loaded("docs/make_outputs.py")
DOCUMENTS = sorted([*(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "AGENTS", "SECURITY")), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_blocks_run(document, tmp_path, monkeypatch):
    """And print what the page shows; long blocks are only compiled."""
    require_outputs(document, tmp_path, monkeypatch, long=False)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "document", [document for document in DOCUMENTS if OUTPUTS.LONG in document.read_text()], ids=lambda path: path.name
)
def test_all_blocks_run(document, tmp_path, monkeypatch):
    require_outputs(document, tmp_path, monkeypatch, long=True)


def test_long_blocks_are_only_compiled_by_default():
    page = f"```python\nx = 1\n```\n\n{OUTPUTS.LONG}```python\nprint(x)\nx = 2\n```\n\n```output\n%s\n```\n\n```python\nprint(x)\n```\n\n```output\n%s\n```\n"
    assert OUTPUTS.replayed(page % (7, 7), "page", long=False) == page % (7, 1)
    assert OUTPUTS.replayed(page % (7, 7), "page") == page % (1, 2)
    with pytest.raises(SyntaxError):
        OUTPUTS.replayed(f"{OUTPUTS.LONG}```python\n1 +\n```\n", "page", long=False)


def require_outputs(document, tmp_path, monkeypatch, long):
    monkeypatch.chdir(tmp_path)
    text = document.read_text()
    assert OUTPUTS.replayed(text, str(document), long) == text, f"python docs/make_outputs.py {document.relative_to(ROOT)}"
    for path, picture in OUTPUTS.saved_pictures(text):
        assert path.read_text() == picture, f"python docs/make_outputs.py {document.relative_to(ROOT)}"


def test_shown_outputs_are_compared(tmp_path, monkeypatch):
    """Of Python blocks and of commands; `...` stands for any text."""
    monkeypatch.chdir(tmp_path)
    page = "```python\nprint(6 * 7)\n```\n\n```output\n%s\n```\n\n```console\n$ fireiron --version\n```\n"
    assert "```output\n42\n```" in OUTPUTS.replayed(page % "41", "page") and f"fireiron {fireiron.__version__}" in OUTPUTS.replayed(
        page % "4...", "page"
    )
    assert "```output\n4...\n```" in OUTPUTS.replayed(page % "4...", "page")


def gpu_blocks(document):
    return [compile(block, str(document), "exec") for block in re.findall(r"```python gpu\n(.*?)```", document.read_text(), re.DOTALL)]


WITH_GPU = [document for document in DOCUMENTS if "```python gpu\n" in document.read_text()]


@pytest.mark.gpu
@pytest.mark.skipif(not launch.gpu_available(), reason="needs a CUDA GPU and CuPy (pip install 'fireiron[cuda13]')")
@pytest.mark.parametrize("document", WITH_GPU, ids=lambda path: str(path.relative_to(ROOT)))
def test_gpu_blocks_run(document, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope = {}
    for block in gpu_blocks(document):
        exec(block, scope)


@pytest.mark.parametrize("document", WITH_GPU, ids=lambda path: str(path.relative_to(ROOT)))
def test_gpu_blocks_compile(document):
    assert gpu_blocks(document)


@pytest.mark.parametrize("document", WITH_GPU, ids=lambda path: str(path.relative_to(ROOT)))
def test_gpu_blocks_use_names_that_exist(document):
    """Without a GPU, the blocks are not executed, so a renamed function would not be noticed."""
    tree = ast.parse("\n".join(re.findall(r"```python(?: gpu)?\n(.*?)```", document.read_text(), re.DOTALL)))
    known = {*dir(builtins), *fireiron.__all__}
    for node in ast.walk(tree):
        match node:
            case ast.Name(ctx=ast.Store()):
                known.add(node.id)
            case ast.arg():
                known.add(node.arg)
            case ast.FunctionDef() | ast.ClassDef() | ast.ExceptHandler():
                known.add(node.name)
            case ast.alias():
                known.add((node.asname or node.name).split(".")[0])
            case ast.ImportFrom(module=module) if module.startswith("fireiron") and node.names[0].name != "*":
                exported = importlib.import_module(module)
                missing = [one.name for one in node.names if not hasattr(exported, one.name) and not is_module(f"{module}.{one.name}")]
                assert missing == [], f"{module} has no {missing}"
    loads = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    assert loads <= known, loads - known


def is_module(name):
    return importlib.util.find_spec(name) is not None


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_exist(document):
    prose = re.sub(r"```.*?```|^    .*?$", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)#]+)\)", prose):
        assert (document.parent / target).exists(), target


@functools.cache
def defined_in(file):
    """The tests of a file of this folder; those of a class after its name."""
    names = set()
    for node in ast.parse((Path(__file__).parent / f"{file}.py").read_text()).body:
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{one.name}" for one in node.body if isinstance(one, ast.FunctionDef) and one.name.startswith("test_")}
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            names.add(node.name)
    return names


def named_tests(text):
    """The tests that a text names, as (file, test)."""
    return [(file, test.removeprefix("::")) for file, test in re.findall(r"\b(test_\w+)(?:\.py)?((?:::\w+)+)", text)]


NAMING = [document for document in DOCUMENTS if named_tests(document.read_text())]


@pytest.mark.parametrize("document", NAMING, ids=lambda path: str(path.relative_to(ROOT)))
def test_tests_that_are_named_exist(document):
    missing = [(file, test) for file, test in named_tests(document.read_text()) if test not in defined_in(file)]
    assert not missing


def test_the_index_of_decisions_is_complete():
    """Each record is in the index once, with its title."""
    folder = ROOT / "docs" / "decisions"
    titles = {path.name: path.read_text().splitlines()[0].removeprefix("# ") for path in folder.glob("0*.md")}
    entries = re.findall(r"^- \[(.*)\]\((0.*\.md)\)$", (folder / "index.md").read_text(), re.MULTILINE)
    assert sorted((name, title) for title, name in entries) == sorted(titles.items())


def test_the_table_of_graphene_is_complete():
    """Every figure and table of the paper that shows values, specs or code has its row."""
    rows = [line for line in (ROOT / "docs" / "graphene.md").read_text().splitlines() if named_tests(line)]
    named = " ".join(row.split("|")[1] for row in rows)
    assert {"1a", "1c", "1d", "2", "3", "4", "5", "6", "7", "8"} <= set(re.findall(r"\b(\d[a-d]?)\b", named))
    assert {"3.1", "3.2", "3.3", "3.4", "5.1", "5.2", "5.3", "5.4", "5.5"} <= set(re.findall(r"\d\.\d", named))
    assert sum("Table 1" in row for row in rows) >= 7 and sum("Table 2" in row for row in rows) >= 2


def test_the_table_of_cypress_is_complete():
    """Every section of the paper that states what a compiler does, or what was measured, has its row."""
    rows = [line for line in (ROOT / "docs" / "cypress.md").read_text().splitlines() if named_tests(line)]
    named = " ".join(row.split("|")[1] for row in rows)
    assert {
        "3.1",
        "3.2",
        "3.3",
        "3.4",
        "3.5",
        "4.1",
        "4.2.1",
        "4.2.2",
        "4.2.3",
        "4.2.4",
        "4.2.5",
        "4.2.6",
        "5.1",
        "5.2",
        "5.3",
        "5.4",
    } <= set(re.findall(r"\d(?:\.\d)+", named))
    assert {"2", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13a", "13c", "13d", "14"} <= set(re.findall(r"\b(\d+[a-d]?)\b", named))
