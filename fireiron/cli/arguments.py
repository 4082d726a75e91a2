"""Arguments that commands share, and the strategy that they name."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from fireiron.errors import ArgumentError, FireironError

if TYPE_CHECKING:
    from fireiron.compiler import Program
    from fireiron.language.entries import Entry
    from fireiron.language.strategy import Strategy


KERNEL_FILES: Final = ".graphene"
"""How the names of files end that write out a kernel (`fireiron.graphene`)."""


class Add(Protocol):
    """Adds a command to the parser: its name, function, help, and whether it takes the options of a strategy."""

    def __call__(
        self, name: str, run: Callable[[argparse.Namespace], int], text: str, strategy: bool = True
    ) -> argparse.ArgumentParser: ...


def strategy_options() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    for dim in "MNK":
        common.add_argument(
            f"-{dim}", type=size, metavar="SIZE", help='an integer, or a size known at run time: "M", or "M:8" for multiples of 8'
        )
    common.add_argument(
        "-s", "--size", dest="sizes", action="append", default=[], type=sized, metavar="m=64",
        help='the size of a dimension by its name: an integer, or known at run time: m=M, m=M:8 (repeatable)',
    )  # fmt: skip
    common.add_argument("--batch", type=size, metavar="SIZE", help="the matrices of a stack, for strategies that take one")
    common.add_argument("--arch", help="the target, such as sm_80 (sm_90 if none is named; sm_90a for strategies of warpgroups)")
    common.add_argument("--set", action="append", default=[], type=assignment, metavar="bm=64", help="the value of a tunable (repeatable)")
    common.add_argument("--dtype", help="the element type of A and B, such as float16")
    common.add_argument("--layouts", type=layouts, metavar="NT", help="storage of A, B and optionally C: N column-major, T row-major")
    return common


def add_strategy(command: argparse.ArgumentParser, json: bool = False) -> None:
    command.add_argument(
        "strategy", metavar="STRATEGY", help="a name of the library, a path.py, path.py:NAME of what is in it, or a path.graphene"
    )
    if json:
        add_json(command)


def add_json(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print JSON")


def size(text: str) -> Any:
    """A size on the command line: a positive integer, or a symbol `M` or `M:8`; argparse shows the error of any other text."""
    match = re.fullmatch(r"([A-Z][A-Za-z0-9_]*)(?::([0-9]{1,9}))?", text, re.ASCII)
    if match:
        from fireiron.values.expr import sym

        try:
            return sym(match[1], multiple_of=int(match[2] or 1))
        except FireironError as error:
            raise argparse.ArgumentTypeError(error.asked) from None
    if not re.fullmatch(r"[0-9]{1,10}", text, re.ASCII) or not 1 <= int(text) < 2**31:
        raise argparse.ArgumentTypeError(f'{text!r} is no size: a positive integer, or a symbol such as "M" or "M:8"')
    return int(text)


def sized(text: str) -> tuple[str, Any]:
    """A dimension and its size, from `NAME=SIZE`; argparse shows the error of any other text."""
    name, equals, value = text.partition("=")
    if not name.isidentifier() or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is no DIMENSION=SIZE, such as m=64")
    return name, size(value)


def natural(text: str) -> int:
    """An integer of at least 0; argparse shows the error of any other text."""
    if not re.fullmatch(r"[0-9]{1,18}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is no integer of at least 0")
    return int(text)


def positive(text: str) -> int:
    """An integer of at least 1; argparse shows the error of any other text."""
    if not re.fullmatch(r"[0-9]{1,9}", text, re.ASCII) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive integer")
    return int(text)


def assignment(text: str) -> tuple[str, int]:
    """A name and its integer, from `NAME=INTEGER`; argparse shows the error of any other text."""
    name, _, value = text.partition("=")
    if not name.isidentifier() or not re.fullmatch(r"[0-9]{1,10}", value, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is no NAME=INTEGER")
    return name, int(value)


def layouts(text: str) -> str:
    """Two or three letters N or T, in capitals; argparse shows the error of any other text."""
    if not re.fullmatch(r"[NTnt]{2,3}", text):
        raise argparse.ArgumentTypeError(f"{text!r}: two or three letters, N (column-major) or T (row-major), for A, B and C")
    return text.upper()


def strategy_of(
    arguments: argparse.Namespace,
    name: str | None = None,
    known_only: bool = False,
    open_values: bool = False,
    architecture: str | None = None,
) -> Strategy:
    """The strategy of the arguments, bound; `known_only` passes on only those tunables that it has. Those that nobody sets have the values
    that suit the problem on `architecture` (None: `--arch`), by its file, unless they are to stay open.

    A kernel that its file has compiled says the target: `arguments.arch` is that one then.
    """
    from fireiron.language.library import bind, find
    from fireiron.values.machine import as_architecture, as_dtype
    from fireiron.values.tensor import ColMajor, RowMajor

    if arguments.arch is not None:
        as_architecture(arguments.arch)
    name = arguments.strategy if name is None else name
    entry = _written(name) if name.endswith(KERNEL_FILES) else find(name)
    if entry.architecture is not None:
        arguments.arch = _compiled_for(entry, arguments.arch)
    named = [(dim, getattr(arguments, dim)) for dim in (*"MNK", "batch") if getattr(arguments, dim) is not None]
    sizes = _once("size", [*named, *getattr(arguments, "sizes", [])])
    options: dict[str, Any] = {} if arguments.dtype is None else {"dtype": as_dtype(arguments.dtype)}
    for operand, letter in zip("ABC", arguments.layouts or "", strict=False):
        options[operand] = ColMajor if letter == "N" else RowMajor
    values = _once("tunable", arguments.set)
    if known_only:
        values = {key: value for key, value in values.items() if key in entry.strategy.tunables()}
    return bind(entry, sizes, options, values, open_values, architecture or arguments.arch)


def _compiled_for(entry: Entry, asked: str | None) -> str:
    """The target of a compiled kernel; refused where another one is asked for."""
    from fireiron.values.machine import as_architecture

    assert entry.architecture is not None
    if asked is not None and as_architecture(asked).name != entry.architecture:
        hint = "leave --arch out, or name the strategy"
        raise ArgumentError(f"{entry.name} is compiled for {entry.architecture}: --arch {asked} cannot be chosen", hint=hint)
    return entry.architecture


def _once(what: str, given: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Values by name, each said once."""
    found: dict[str, Any] = {}
    for name, value in given:
        if name in found:
            raise ArgumentError(f"the {what} {name} is named twice", got=[found[name], value])
        found[name] = value
    return found


def _written(name: str) -> Entry:
    """The entry of a file that writes out a kernel."""
    from fireiron.graphene import parse_strategy
    from fireiron.language.entries import Entry

    path = Path(name)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ArgumentError(f"the file {name!r} cannot be read: {getattr(error, 'strerror', None) or 'it is no text'}") from None
    try:
        return Entry(path.stem, parse_strategy(text), path=path)
    except FireironError as error:
        raise error.located(at=name) from None


def program_of(arguments: argparse.Namespace) -> Program:
    return strategy_of(arguments).program(arguments.arch)
