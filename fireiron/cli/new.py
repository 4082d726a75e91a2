"""`fireiron new`: write a commented strategy file to start from."""

from __future__ import annotations

import argparse
import keyword
import shlex
import sys
from pathlib import Path
from typing import Final

from fireiron.cli.arguments import Add
from fireiron.cli.output import print_json
from fireiron.errors import ArgumentError, StoreError
from fireiron.files import exists
from fireiron.package_paths import PACKAGE

KINDS: Final = {
    "elementwise": "a formula on vectors of 16 bytes",
    "softmax": "rows in registers, with sums and maxima of threads",
    "matmul": "float32, through shared memory and registers",
    "tensor-core": "float16, mma.sync, pipelined copies (Ampere and newer)",
    "hopper": "float16, TMA, wgmma, a producer warp",
    "fused": "a definition of several steps: matmul, bias, ReLU",
    "gpus": "float16 matmul on two GPUs of a host",
    "move": "a transpose through shared memory",
    "micro-kernel": "float32, with the innermost part in your own .cu file",
}
"""The templates. A template is `templates/KIND.txt`, and `templates/KIND.cu` if it needs CUDA code."""

TEMPLATES: Final = PACKAGE / "templates"

PLACEHOLDER: Final = "NAME"
"""The placeholder for the name of the file in a template."""

TAKEN: Final = ("fireiron", "numpy", "attrs", "cattrs", "tabulate", "cupy", "torch", "jax")
"""Modules, in addition to those of Python, that a file of the same name would hide from programs in its folder."""


def register(add: Add) -> None:
    """Add the command."""
    command = add("new", run, "write a commented strategy file to start from, which passes check and run", strategy=False)
    command.add_argument("name", metavar="NAME", help="of the file: mine for mine.py, or folder/mine.py")
    kinds = "; ".join(f"{kind}: {description}" for kind, description in KINDS.items())
    command.add_argument("--kind", choices=KINDS, default="matmul", metavar="KIND", help=f"{kinds} (matmul)")
    command.add_argument("--force", action="store_true", help="overwrite files of that name")


def run(arguments: argparse.Namespace) -> int:
    path = _path(arguments.name)
    written = _write(path, arguments.kind, arguments.force)
    strategy = shlex.quote(str(path))
    note = _hidden(path.stem)
    if arguments.json:
        return print_json({"kind": arguments.kind, "files": [str(file) for file in written], "note": note or None})
    print(f"{' and '.join(map(str, written))}: {arguments.kind}, {KINDS[arguments.kind]}\n")
    steps = (
        (f"fireiron show {strategy}", "the decomposition, step by step"),
        (f"fireiron check {strategy}", "races, bounds, bank conflicts, registers"),
        (f"fireiron run {strategy}", "all threads, compared with NumPy; needs no GPU"),
        (f"fireiron emit {strategy}", "the CUDA C++"),
    )
    width = max(len(command) for command, _ in steps)
    for command, description in steps:
        print(f"  {command:<{width}}  {description}")
    if note:
        print(f"\nNote: {note}")
    print("\nThen change it; the last lines of the file have suggestions.")
    return 0


def _path(name: str) -> Path:
    """Return the path of a new file.

    Raises: an `ArgumentError` if the file could not be imported, would hide another module, or has no existing folder.
    """
    path = Path(name if name.endswith(".py") else name + ".py")
    if keyword.iskeyword(path.stem):
        raise ArgumentError(f"new: {path.stem} is a keyword of Python, so it is not a module name", hint=f"fireiron new my_{path.stem}")
    if not path.stem.isidentifier():
        raise ArgumentError(f"new: {path.stem!r} is not a module name", legal="letters, digits and _, no digit first")
    if path.stem in TAKEN or path.stem in sys.stdlib_module_names:
        raise ArgumentError(f"new: a file {path.name} would hide the module {path.stem}", hint=f"fireiron new my_{path.stem}")
    if not exists(path.parent) or not path.parent.is_dir():
        raise ArgumentError(f"new: the folder {path.parent} does not exist", hint=f"mkdir -p {shlex.quote(str(path.parent))}")
    return path


def _hidden(name: str) -> str:
    """Return a note if a strategy of the library has the name of the file; else an empty text."""
    from fireiron.language.library import is_of_library

    if not is_of_library(name):
        return ""
    return f"{name} without .py is a strategy of the library; write {name}.py in commands"


def _write(path: Path, kind: str, overwrite: bool) -> list[Path]:
    """Write all files of a kind, or none."""
    from fireiron.language.store import write_text

    texts = {path.with_suffix(".cu" if file.suffix == ".cu" else ".py"): file.read_text(encoding="utf-8") for file in _templates(kind)}
    existing = [str(place) for place in texts if exists(place)]
    if existing and not overwrite:
        raise ArgumentError(
            f"new: {' and '.join(existing)} already exist{'s' if len(existing) == 1 else ''}",
            hint="use another name, or --force to overwrite",
        )
    for place in texts:
        if exists(place) and not place.is_file():
            raise StoreError(f"{place} is not a regular file")
    for place, text in texts.items():
        write_text(place, text.replace(PLACEHOLDER, path.stem), overwrite=overwrite)
    return list(texts)


def _templates(kind: str) -> list[Path]:
    return [file for file in (TEMPLATES / f"{kind}.txt", TEMPLATES / f"{kind}.cu") if file.exists()]
