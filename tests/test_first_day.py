"""Problems of a user who wrote three programs from the documentation alone (decision 57): advice in refusals, and executed micro-kernel
texts.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import attrs
import numpy as np
import pytest
from printed_text import COMPILER, HostProgram, Printed

from fireiron import *
from fireiron.check import check

ROOT = Path(__file__).parent.parent
DOCUMENTS = ROOT / "docs" / "howto"
ROWS = {"A": RowMajor, "B": RowMajor, "C": RowMajor}
PROBLEM = MatMul(257, 131, 77, **ROWS)(GL, GL, GL)(Kernel)
FLOAT16 = MatMul(250, 136, 104, dtype=float16, c_dtype=float16, **ROWS)(GL, GL, GL)(Kernel)
STAGED = MatMul.tile(64, 64).to(Block).epilog(RF).split(8).load(A, SH)
TO_A_WARPGROUP = MatMul.tile(128, 64).to(Block).epilog(RF, float32).split(32).load(A, SH).load(B, SH).tile(64, 64).to(Warpgroup).done()

FRAGMENTS = STAGED.load(B, SH).tile(32, 32).to(Warp).load(A, RF, Move.done()).load(B, RF, Move.done())

DONE = {
    "an operand twice": (lambda: STAGED.load(A, SH)(PROBLEM).program().tree, "do      load(B, SH)"),
    "both operands twice": (lambda: STAGED.load(B, SH).load(B, SH)(PROBLEM).program().tree, "remove this load, or load to a deeper memory"),
    "k in a tile": (lambda: MatMul.tile(64, 64, 8).to(Block)(PROBLEM).program().tree, "split(k=8) after it"),
    "a target without wgmma": (
        lambda: TO_A_WARPGROUP(FLOAT16).cuda("sm_90"),
        'for sm_90a it matches WGMMA_F16_F32: compile("sm_90a")',
    ),
    "float32 for tensor cores": (lambda: FRAGMENTS.tile(16, 16).mma_tile().done()(PROBLEM).cuda("sm_80"), "MatMul(..., dtype=tf32)"),
    "epilogue for epilog": (lambda: MatMul.tile(64, 64).to(Block).fuse_epilogue(RF), "epilog(RF)"),
    "unrefine without a step": (lambda: STAGED.unrefine(Pad), "strategy.at(Split).unrefine(Pipeline)"),
}


@pytest.mark.parametrize("case", DONE)
def test_refusals_propose_a_fix(case):
    refused, message = DONE[case]
    with pytest.raises(FireironError) as caught:
        refused()
    assert message in str(caught.value)


def test_float32_is_multiplied_as_tf32():
    """The proposed change works on the same arrays, and the refusal names no instruction that the target lacks."""
    with pytest.raises(DecompositionError) as caught:
        FRAGMENTS.tile(16, 16).mma_tile().done()(PROBLEM).cuda("sm_80")
    assert "HMMA_1688_F32_TF32" in str(caught.value) and "HMMA_884" not in str(caught.value)
    tf32_problem = MatMul(64, 64, 16, dtype=tf32, c_dtype=float32, **ROWS)(GL, GL, GL)(Kernel)
    kernel = FRAGMENTS.tile(16, 16).mma_tile().done()(tf32_problem).compile("sm_80")
    a, b = (np.random.default_rng(0).integers(-3, 4, shape).astype(np.float32) for shape in ((64, 16), (16, 64)))
    assert np.array_equal(kernel(a, b), a @ b)


def test_only_the_target_is_named_where_only_that_differs():
    with pytest.raises(MatchError) as caught:
        STAGED.load(B, SH).tile(8, 4).to(Thread).done()(PROBLEM).cuda("sm_80")
    assert "it matches" not in str(caught.value)


def test_several_refinements_are_removed_at_once():
    loop = MatMul.tile(64, 64).to(Block).epilog(RF).split(8)
    both = loop.pipeline(2).unroll()
    assert both.at(Split).unrefine(Pipeline, Unroll) == loop == both.at(Split).unrefine(Unroll).at(Split).unrefine(Pipeline)
    with pytest.raises(DecompositionError, match="has no such refinement"):
        both.at(Split).unrefine(Pipeline, Pipeline)
    with pytest.raises(ArgumentError, match="not a kind of refinement"):
        both.at(Split).unrefine()


@attrs.frozen
class Same(Decomposition):
    """A user-defined decomposition."""

    verb = "same"
    number: int = 1


def test_a_user_defined_step_omits_empty_fields():
    assert MatMul.then(Same(2)).steps[0].label() == "then(Same(number=2))"
    assert MatMul.then(attrs.frozen(type("Bare", (Decomposition,), {"verb": "bare"}))()).steps[0].label() == "then(Bare())"


def test_advice_for_lanes_with_contiguous_tiles():
    """The advice works: interleaved lanes store whole sectors, and read without conflicts."""

    def warnings(*tile):
        strategy = STAGED.load(B, SH).tile(32, 32).to(Warp).tile(*tile).to(Lane).split(1).tile(1, 1).done()
        return [one.message for one in check(strategy(PROBLEM).program("sm_80").ir) if one.severity == "warning"]

    assert any(
        "C written" in message and "a Strided tile assigns adjacent elements" in message and "load(SRC, SH)" in message
        for message in warnings(8, 4)
    )
    assert not warnings(Strided((1, 4), (1, 8)))
    direct = MatMul.tile(32, 32).to(Block).epilog(RF).tile(4, 4).to(Thread).split(1).tile(1, 1).done()
    messages = [one.message for one in check(direct(PROBLEM).program("sm_80").ir) if one.kind == "coalescing"]
    assert any("A read" in one and "a preceding load(A, SH)" in one for one in messages) and not any(
        " read by " in message and "SRC" in message for message in messages
    )


# ---------------------------------------------------------------------------------------------- an editable installation


@pytest.mark.nightly
def test_type_checkers_find_an_editable_installation(tmp_path):
    """A path entry rather than an import hook, which mypy and pyright would not see."""
    pytest.importorskip("setuptools", "70.1", reason="needs the build backend (pip install 'setuptools>=70.1')")
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for name in ("setup.cfg", "setup.py", "pyproject.toml", "README.md", "pytest_fireiron.py"):
        shutil.copy(ROOT / name, checkout)
    for name in ("fireiron", "strategies"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__", "records"))
    script = f"import setuptools.build_meta as backend; backend.build_editable({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", script], cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        (path,) = [name for name in opened.namelist() if ".dist-info/" not in name]
        assert path.endswith(".pth") and opened.read(path).decode().split() == [str(checkout)]


# ---------------------------------------------------------------------------------------------- the pages


def test_the_kernel_of_the_readme_is_short_and_has_no_warnings(capsys):
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    assert len(block.splitlines()) <= 25
    names = {}
    exec(block.partition("a, b =")[0], names)
    assert not [finding for finding in check(names["kernel"].program.ir) if finding.severity != "note"]


def test_every_page_can_be_found():
    """From the README to the table of pages, and from there to each page."""
    index = (DOCUMENTS / "index.md").read_text()
    assert "(docs/howto/index.md)" in (ROOT / "README.md").read_text()
    pages = {path.name for path in DOCUMENTS.glob("*.md")} - {"index.md"}
    assert pages == set(re.findall(r"\]\(([\w-]+\.md)\)", index)) and len(pages) >= 10
    assert all("```python\n" in (DOCUMENTS / name).read_text() for name in pages)


# ---------------------------------------------------------------------------------------------- texts of micro-kernels


def micro_kernels():
    """The variables of the micro-kernel page after its code blocks."""
    scope = {}
    for block in re.findall(r"```python\n(.*?)```", (DOCUMENTS / "micro-kernels.md").read_text(), re.DOTALL):
        exec(block, scope)
    return scope


@pytest.mark.nightly
@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
def test_the_texts_of_the_page_compute_their_specs(tmp_path, capsys):
    """Executed for every thread on the host; the text that assumes row-major registers, against which the page warns, gives wrong results."""
    page = micro_kernels()
    row_major = page["lanes"].done(page["text"].replace("c_at(m, n)", "c[m * 4 + n]"))
    programs = [one(page["problem"]).program("sm_80") for one in (page["strategy"], page["stored"], row_major)]
    host = HostProgram(map(Printed.of, programs), tmp_path)
    right = page["a"] @ page["b"]
    results = [host.run(number, {"A": page["a"], "B": page["b"]})["C"] for number in range(3)]
    assert [bool(np.array_equal(one, right)) for one in results] == [True, True, False]
