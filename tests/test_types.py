"""What type checkers and editors infer about the package; mypy runs in a nightly test."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import offered
import pytest

import fireiron
from fireiron import *
from fireiron import generated_verbs

TYPED = Path(__file__).parent / "typed"
STUB = {node.name: node for node in ast.parse(offered.STUB.read_text()).body if isinstance(node, ast.ClassDef)}


def methods(name: str) -> set[str]:
    """The methods of a class in the stub file, including those of its bases there."""
    bases = {base.id for base in STUB[name].bases if isinstance(base, ast.Name) and base.id in STUB}
    own = {node.name for node in STUB[name].body if isinstance(node, ast.FunctionDef)}
    return own.union(*map(methods, bases)) if bases else own


LANGUAGE = {"then", "tile", "split", "load", "epilog", "done"}


@pytest.mark.parametrize(
    ("kind", "verbs"),
    [
        ("Any", LANGUAGE),
        ("MatMul", LANGUAGE | {"split_k", "repack", "mma_tile", "to_gpus"}),
        ("Move", {"then", "tile", "load", "coalesced_copy", "done", "to_gpus"}),
        ("Init", {"then", "tile", "done", "to_gpus"}),
        ("Reduction", {"then", "tile", "split", "load", "repack", "done", "to_gpus"}),
        ("Fused", LANGUAGE | {"split_k", "repack", "mma_tile", "step", "skip_steps", "set_memory", "rfactor", "print_values", "to_gpus"}),
        (
            "Every",
            LANGUAGE
            | {"split_k", "repack", "mma_tile", "coalesced_copy", "step", "skip_steps", "set_memory", "rfactor", "print_values", "to_gpus"},
        ),
    ],
)
def test_each_kind_offers_its_verbs(kind: str, verbs: set[str]) -> None:
    assert methods(f"For{kind}") == verbs


def test_notebooks_list_the_same() -> None:
    """By `dir()`: of names of kinds, chains, bound or not, specs, and definitions; all verbs if the kind is unknown."""
    spec = MatMul(64, 64, 64)(GL, GL, GL)(Kernel)
    common = methods("ForEvery")
    for kind, value in (("MatMul", MatMul), ("MatMul", spec), ("MatMul", spec.tile(8, 8)), ("Move", Move), ("Move", Move.tile(8, 8).to(Block)),
                      ("Init", Init), ("Fused", MatMul.fuse_epilogue("relu(acc)")), ("Every", AnySpec), ("Every", Kind("K", "y[i] = x[i]").starter)):  # fmt: skip
        assert common & set(dir(value)) == methods(f"For{kind}"), value
    assert {"compile", "cluster", "to"} <= set(dir(MatMul.tile(8, 8))) and "stagger_blocks" not in dir(MatMul.tile(8, 8))


def test_chains_keep_their_kind() -> None:
    for kind in offered.OWN_CHAINS:
        results = {ast.unparse(node.returns or node) for node in STUB[f"For{kind}"].body if isinstance(node, ast.FunctionDef)}
        assert results == {
            f"{kind}{end}"
            for end in ("Strategy", *offered.ENDS)
            if {"SplitK": "split_k", "SetMemory": "set_memory", "ToGpus": "to_gpus"}.get(end, "tile") in methods(f"For{kind}")
        } - ({"MoveSplit", "MoveEpilog"} if kind == "Move" else set())
        for end in (end for end in offered.ENDS if end != "SetMemory" or "set_memory" in methods(f"For{kind}")):
            assert [ast.unparse(base) for base in STUB[f"{kind}{end}"].bases] == [f"{kind}Strategy", f"{end}Strategy"]


def test_offered_methods_have_docstrings_and_known_types() -> None:
    owners = {owner.__name__ for owner in generated_verbs.REFINEMENT_VERBS.values()}
    for name, node in STUB.items():
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and (name.startswith("For") or name in owners):
                assert "rewrite:" in (ast.get_docstring(method) or ""), f"{name}.{method.name}"
                assert "Any" not in ast.unparse(method.args), f"{name}.{method.name}"


def test_refinements_that_are_found_are_those_of_their_steps() -> None:
    assert methods("TileVerbs") >= {"to", "rasterize", "hilbert", "max_shared_bytes"} and methods("SplitKVerbs") == {
        "pad",
        "unchecked",
        "ordered",
        "reduce_in_last_block",
    }
    for verb, owner in generated_verbs.REFINEMENT_VERBS.items():
        assert methods(owner.__name__) == set(offered.made_by(owner))
        assert all(verb in one.makes.applies_to for one in offered.made_by(owner).values())


def test_errors_of_refinements_name_the_refined_step() -> None:
    with pytest.raises(DecompositionError, match=r"cluster does not refine split(.|\n)*legal +tile\(\.\.\.\)\.cluster"):
        MatMul.split(8).cluster(2)
    assert not hasattr(MatMul.split(8), "cluster") and hasattr(MatMul.tile(8, 8), "cluster")


def test_kinds_of_steps_are_names_that_chains_start_from() -> None:
    known = set(offered.kinds()) - {"Any", "Every"}
    assert all(set(step.kinds) <= known for step in offered.steps().values())


REFUSED = {
    Move(64, 64)(GL, GL)(Kernel): (
        ("split", 4),
        ("epilog", RF),
        ("split_k", 2, Warp, 4),
        ("mma_tile",),
        ("set_memory", "s", RF),
        ("repack", "src"),
    ),
    Init(64, 64)(GL)(Kernel): (("load", "dst", SH), ("split", 4), ("coalesced_copy", 4)),
    MatMul(64, 64, 64)(GL, GL, GL)(Kernel): (
        ("coalesced_copy", 4),
        ("skip_steps", "s"),
        ("rfactor", "s", 2),
        ("step", "s", AnySpec.done()),
    ),
}
"""Verbs that the kind of a spec does not offer, with arguments."""


def test_verbs_of_other_kinds_are_refused() -> None:
    for spec, calls in REFUSED.items():
        for verb, *arguments in calls:
            assert not offered.is_for(spec.title, verb)
            with pytest.raises(FireironError, match=verb):
                _ = getattr(spec.tile(16, 16).to(Block), verb)(*arguments).result


def test_method_annotations_have_no_any_for_numbers() -> None:
    for owner in generated_verbs.REFINEMENT_VERBS.values():
        for name, method in offered.made_by(owner).items():
            assert not re.search(r"\bAny\b|\bobject\b", str(offered.annotations(method))), f"{owner.__name__}.{name}"


# ---------------------------------------------------------------------------------------------- a type checker


def checked(tmp_path: Path, name: str) -> tuple[list[tuple[int, str]], str]:
    """The errors of mypy, by line, for a file in a user's folder; and the whole output."""
    if find_spec("mypy") is None:
        pytest.skip("needs mypy (pip install 'fireiron[dev]')")
    (tmp_path / name).write_text((TYPED / name).read_text())
    root = Path(fireiron.__file__).parents[1]
    environment = {**os.environ, "MYPYPATH": str(root), "MYPY_CACHE_DIR": str(tmp_path / "cache")}
    words = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--no-error-summary", "--config-file=", name]
    output = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True).stdout
    rows = re.findall(rf"^{re.escape(name)}:(\d+): error: (.*)$", output, re.MULTILINE)
    return [(int(line), text) for line, text in rows], output


@pytest.mark.nightly
def test_right_programs_have_no_errors_and_known_types(tmp_path: Path) -> None:
    errors, output = checked(tmp_path, "right.py")
    assert not errors and "right.py" not in output, output


@pytest.mark.nightly
def test_each_wrong_call_is_a_descriptive_error(tmp_path: Path) -> None:
    errors, output = checked(tmp_path, "wrong.py")
    wanted = expected()
    assert {line for line, _ in errors} == set(wanted), output
    for line, words in wanted.items():
        texts = [text for number, text in errors if number == line]
        assert any(word in text for text in texts for word in words), f"line {line}: {texts}"


def expected() -> dict[int, list[str]]:
    """The words of the error expected in each wrong line."""
    lines = enumerate((TYPED / "wrong.py").read_text().splitlines(), 1)
    return {number: line.partition("  # wrong: ")[2].split(" | ") for number, line in lines if "  # wrong: " in line}


def test_errors_of_checkers_are_also_refused_at_run_time() -> None:
    """Except for values for another kind, which are refused when they are bound."""
    space: dict[str, object] = {}
    source = (TYPED / "wrong.py").read_text().splitlines()
    wanted = expected()
    exec("\n".join("" if number in wanted else line for number, line in enumerate(source, 1)), space)
    late = [source[number - 1] for number in wanted if not refused(source[number - 1], space)]
    assert len(wanted) > 50
    for line in late:
        assert re.match(r"(Move|MatMul|Init|spec|bound)\b.*# wrong: (\"\w+\"|callable)$", line), line


def refused(line: str, space: dict[str, object]) -> bool:
    """Whether a line is refused at once."""
    try:
        exec(line, space)
    except (FireironError, AttributeError, TypeError):
        return True
    return False


# ---------------------------------------------------------------------------------------------- files of users

ROOT = Path(fireiron.__file__).parents[1]
PAGES = ("README.md", "AGENTS.md", "docs/first-hour.md", "docs/howto/own-file.md")
"""Pages whose blocks are files of users."""

LESSONS = ("docs/first-kernels.md", "docs/puzzles.md", "docs/notebook.md")
"""Pages that bind a name to values of several types, which only pyright permits."""

OWN_DEFINITIONS = ("--allow-untyped-defs", "--allow-untyped-calls", "--ignore-missing-imports")
"""Users' own functions may lack annotations. All other rules of `--strict` apply."""


def user_files(folder: Path, pages: Iterable[Path]) -> list[str]:
    """Write the templates of `fireiron new`, the starts of the puzzles, and the blocks of pages, as a user's files. Return their names."""
    from fireiron.puzzles import PUZZLES

    texts = {
        path.stem.replace("-", "_"): path.read_text().replace("NAME", path.stem) for path in (ROOT / "fireiron/templates").glob("*.txt")
    }
    texts |= {f"puzzle{number}": puzzle.file(number) for number, puzzle in enumerate(PUZZLES, 1)}
    for page in pages:
        blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        files = {re.sub(r"\W", "_", named[1]): block for block in blocks if (named := re.match(r"# file: (.*)\.py", block))}
        texts |= files
        blocks = [] if files else blocks
        texts["page_" + re.sub(r"\W", "_", str(page.relative_to(ROOT).with_suffix("")))] = once("\n".join(blocks))
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    return [f"{name}.py" for name, text in texts.items() if text.strip()]


def once(text: str) -> str:
    """Return a program that imports all names of the package once. Imports from `__future__` come first."""
    star, future = "from fireiron import *\n", "from __future__ import annotations\n"
    head, first, rest = text.partition(star)
    return (future if future in text else "") + (head + first + rest.replace(star, "\n")).replace(future, "\n")


@pytest.mark.nightly
def test_mypy_accepts_files_of_users(tmp_path: Path) -> None:
    if find_spec("mypy") is None:
        pytest.skip("needs mypy (pip install 'fireiron[dev]')")
    environment = {**os.environ, "MYPYPATH": str(ROOT), "MYPY_CACHE_DIR": str(tmp_path / "cache")}
    names = user_files(tmp_path, (ROOT / page for page in PAGES))
    words = [sys.executable, "-m", "mypy", "--strict", *OWN_DEFINITIONS, "--follow-imports=silent", "--config-file=", *names]
    run = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout


@pytest.mark.nightly
def test_pyright_accepts_files_of_users(tmp_path: Path) -> None:
    """`pip install pyright` brings it; it downloads nothing if Node.js is installed."""
    if shutil.which("pyright") is None:
        pytest.skip("needs pyright (pip install pyright)")
    names = user_files(tmp_path, (ROOT / page for page in (*PAGES, *LESSONS)))
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(ROOT)], "reportMissingImports": False}))
    run = subprocess.run(["pyright", "--pythonpath", sys.executable, *names], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout
