"""The readable goldens: kernels in full, and tables. Each has a function that computes it, and is a text file in git."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from goldens.cases import FOLDER

TEXTS = FOLDER / "texts"
ROOT = FOLDER.parents[1]


def of_texts() -> dict[Path, str]:
    """The kernels stored in full, by their files."""
    import test_texts

    return {file_of(form): test_texts.text(form) for form in test_texts.WHOLE}


def file_of(form: str) -> Path:
    """The file of a form of the library: `attention:q_in_registers, own sizes` is in `attention-held-own_sizes.cu`."""
    return TEXTS / f"{form.replace(', ', '-').replace(':', '-').replace(' ', '_')}.cu"


def _types() -> dict[Path, str]:
    import test_cuda_types

    return {test_cuda_types.TABLE: "".join(f"{line}\n" for line in test_cuda_types.lines())}


def _micro_kernels() -> dict[Path, str]:
    import test_micro_kernel_texts

    return {test_micro_kernel_texts.GOLDEN: test_micro_kernel_texts.text()}


def _wrong_arguments() -> dict[Path, str]:
    import test_wrong_arguments

    return {test_wrong_arguments.TABLE: "".join(f"{line}\n" for line in test_wrong_arguments.lines())}


def _limits() -> dict[Path, str]:
    import scripts

    page = scripts.loaded("docs/make_limits.py")
    return {page.PAGE: page.page()}


def _notebook() -> dict[Path, str]:
    import scripts

    notebook = scripts.loaded("docs/make_notebook.py")
    return {notebook.NOTEBOOK: notebook.text_of(notebook.executed(json.loads(notebook.NOTEBOOK.read_text(encoding="utf-8"))))}


def _pictures() -> dict[Path, str]:
    import scripts

    return dict(scripts.loaded("docs/make_pictures.py").pictures())


READABLE: dict[str, Callable[[], dict[Path, str]]] = {
    "texts": of_texts,
    "types": _types,
    "micro_kernels": _micro_kernels,
    "wrong_arguments": _wrong_arguments,
    "limits": _limits,
    "notebook": _notebook,
    "pictures": _pictures,
}
"""By name: the files and their texts."""


def unlike(path: Path, text: str, context: int = 2) -> list[str]:
    """The lines of a unified diff from what is stored in a file to a text; none if they agree."""
    before = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    name = str(path.relative_to(ROOT))
    return [*difflib.unified_diff(before, text.splitlines(), name, name, n=context, lineterm="")]


def differences(path: Path, text: str, most: int = 80) -> str:
    """The report of a test about a text that differs from the stored one: the diff, up to a number of lines, and the command that accepts
    it.
    """
    lines = unlike(path, text)
    left = [f"... {len(lines) - most} more lines"] if len(lines) > most else []
    return "\n".join([*lines[:most], *left, "accept: make goldens"]) if lines else ""


def write(texts: dict[Path, str]) -> Iterator[str]:
    """Write changed texts, and yield the lines of the diffs."""
    for path, text in texts.items():
        if lines := unlike(path, text, context=0):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            yield from lines
