"""Every block of Python in the documents runs; every file they link to exists. Blocks that begin with ```python gpu need one."""

import re
from pathlib import Path

import pytest

from fireiron.gpu import launch

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_blocks_run(document, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope = {}
    for block in re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL):
        exec(compile(block, str(document), "exec"), scope)


def gpu_blocks(document):
    return [compile(block, str(document), "exec") for block in re.findall(r"```python gpu\n(.*?)```", document.read_text(), re.DOTALL)]


WITH_GPU = [document for document in DOCUMENTS if "```python gpu\n" in document.read_text()]


@pytest.mark.gpu
@pytest.mark.skipif(not launch.gpu_available(), reason="needs a CUDA GPU and CuPy (pip install fireiron[cuda13])")
@pytest.mark.parametrize("document", WITH_GPU, ids=lambda path: str(path.relative_to(ROOT)))
def test_gpu_blocks_run(document, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope = {}
    for block in gpu_blocks(document):
        exec(block, scope)


@pytest.mark.parametrize("document", WITH_GPU, ids=lambda path: str(path.relative_to(ROOT)))
def test_gpu_blocks_compile(document):
    assert gpu_blocks(document)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_exist(document):
    for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
        assert (document.parent / target).exists(), target
