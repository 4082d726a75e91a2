"""Names and paths of written files: exports, new files, stored strategies, records; and displays of notebooks."""

import functools
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

from attacks.guard import Input
from attacks.harvest import harvest
from attacks.values import VALUES, program
from fireiron import *
from fireiron import notebook
from fireiron.cli import new
from fireiron.export.unit import Unit
from fireiron.language import store
from fireiron.tune import records

NAMES = (
    "", " ", "a b", "1a", "a-b", "int", "for", "main", "__global__", "threadIdx", "é", "\ud800", "a\0b", "a\nb", "../x", "/x", "x/y", ".", "..", "-x", "x" * 300, "x" * 5000,
    "NULL", "cudaMalloc", "_x", "__x", "_X", "default", "template", "class", "printf", "con", "%s", "{0}", "$(true)", "`id`", "\"", "'", "\\", "*/", "//", "/*", "??/",
    "CUfunction", "true", "numpy", "fireiron", "os", "import", "None", "x.py", "x.py.py", "no/such/x.py", "/proc/x.py", "/dev/full",
)  # fmt: skip


@functools.cache
def folder() -> Path:
    """A folder into which nothing permanent is written."""
    import atexit
    import shutil

    root = Path(tempfile.mkdtemp(prefix="places-"))
    (root / "there.json").write_text("mine")
    (root / "folder").mkdir()
    (root / "loop").symlink_to(root / "loop")
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return root


@functools.cache
def _tiny() -> Strategy:
    return MatMul.tile(4, 4).to(Block).tile(1, 1).to(Thread).split(1).tile(1, 1).done()(MatMul(8, 8, 4)(GL, GL, GL)(Kernel))


@functools.cache
def _program() -> object:
    return _tiny().program("sm_80")


WRITERS = {
    "Unit.of(program, {})": lambda name: Unit.of(_program(), name),
    "new._path({})": lambda name: new._path(name) if isinstance(name, str) else _refuse(),
    "store.save(strategy, {})": lambda name: store.save(_tiny(), name if not isinstance(name, str) else str(folder() / "no" / name)),
    "store.save(strategy, folder / 'there.json', overwrite=False)": lambda name: store.save(_tiny(), folder() / "there.json"),
    "store.load({})": lambda name: store.load(name),
    "export(program, {})": lambda name: export(_program(), name, "gemm", cubin=False) if not isinstance(name, str) else _refuse(),
    "export(program, '/dev/full', {})": lambda name: export(_program(), "/dev/full", name, cubin=False),
    "export({}, '/dev/full')": lambda name: export(name, "/dev/full", cubin=False),
    "export(program, '/dev/full', arch={})": lambda name: export(_program(), "/dev/full", "x", arch=name, cubin=False),
    "Records.load({})": lambda name: Records.load(name if not isinstance(name, str) or len(name) > 4 else "/no" + name),
    "records.record_files({})": lambda name: records.record_files(name if not isinstance(name, str) else "/no/" + name),
    "kernel name": lambda name: _tiny().program("sm_80", name=name).ir,
    "sym({})": lambda name: sym(name),
    "MicroKernel.of({})": lambda name: MicroKernel.of(name),
    "MicroKernel(name={})": lambda name: MicroKernel(name, "c[0] = 0;"),
    "draw(program, {})": lambda name: draw_(name),
    "explore(program, {})": lambda name: explore(_tiny(), name) if not isinstance(name, str) else _refuse(),
    "as file of records": lambda name: Records.load(name) if not isinstance(name, str) else _refuse(),
}
"""Callables that take a name or a path."""


def draw_(what: object) -> object:
    """Pictures of a kind."""
    import fireiron

    return fireiron.draw(_tiny(), what)


def _refuse() -> object:
    raise ArgumentError("left out")


def draw(choose: random.Random, count: int = 25) -> Iterator[Input]:
    """Names and paths; or a display of a value."""
    for _ in range(count):
        if choose.random() < 0.3:
            yield _display(choose)
            continue
        writer = choose.choice(list(WRITERS))
        text, value = (
            (repr(choice), choice) if choose.random() < 0.6 and (choice := choose.choice(NAMES)) is not None else choose.choice(VALUES)
        )
        yield Input(
            program(writer.replace("{}", text), ["from attacks.places import *"]),
            lambda value=value, writer=writer: _inside(lambda: WRITERS[writer](value)),
        )


def _inside(action: object) -> object:
    previous = os.getcwd()
    os.chdir(folder())
    try:
        return action()  # type: ignore[operator]
    finally:
        os.chdir(previous)


def _display(choose: random.Random) -> Input:
    """A display of an existing value, or of one from outside the package."""
    pool = [one for kept in harvest().values() for one in kept]
    text, value = choose.choice(VALUES) if choose.random() < 0.4 else ("a value", choose.choice(pool))
    shown = choose.choice((notebook.html, notebook.pretty))
    return Input(program(f"{shown.__name__}({text})", ["from fireiron.notebook import *"]), lambda: shown(value))
