"""Define the arguments that several commands share, and load the strategy that they specify."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Protocol

from fireiron.errors import ArgumentError, FireironError, StoreError

if TYPE_CHECKING:
    from fireiron.compiler import Program
    from fireiron.language.entries import Entry
    from fireiron.language.library import Source
    from fireiron.language.strategy import Strategy
    from fireiron.spec import Spec


STORED_FILES: Final = ".json"
"""Suffix of files with a stored strategy (`Strategy.to_json`)."""

KERNEL_FILES: Final = ".graphene"
"""Suffix of files with a kernel in Graphene's notation (`fireiron.graphene`)."""


class Add(Protocol):
    """A function that adds a command to the parser: its name, function and help, and whether it takes the options of a strategy."""

    def __call__(
        self, name: str, run: Callable[[argparse.Namespace], int], text: str, strategy: bool = True
    ) -> argparse.ArgumentParser: ...


def strategy_options() -> argparse.ArgumentParser:
    """Return the options of all commands that take a strategy."""
    common = argparse.ArgumentParser(add_help=False)
    for dim in "MNK":
        common.add_argument(f"-{dim}", type=size, metavar="SIZE", help='an integer, or a run-time size: "M", or "M:8" for multiples of 8')
    common.add_argument(
        "-s", "--size", dest="sizes", action="append", default=[], type=sized, metavar="m=64",
        help="the size of dimension m: an integer, or a run-time size: m=M, m=M:8; of run, cost, bench and tune also the value of a "
        "run-time size: M=1000 (repeatable)",
    )  # fmt: skip
    common.add_argument("--batch", type=size, metavar="SIZE", help="the batch size, for batched strategies")
    common.add_argument("--arch", help="the target, such as sm_80 (default: sm_90; sm_90a for warpgroup strategies)")
    common.add_argument("--set", action="append", default=[], type=assignment, metavar="bm=64", help="the value of a tunable (repeatable)")
    common.add_argument("--dtype", help="the element type of A and B, such as float16")
    common.add_argument(
        "--classes", action="append", default=[], metavar="MODULE",
        help="a file or a dotted module with classes that occur in a stored strategy, path.json (repeatable)",
    )  # fmt: skip
    common.add_argument("--layouts", type=layouts, metavar="NT", help="storage of A, B and optionally C: N column-major, T row-major")
    return common


def add_strategy(command: argparse.ArgumentParser) -> None:
    """Add the argument STRATEGY."""
    command.add_argument(
        "strategy",
        metavar="STRATEGY",
        help="a library strategy, path.py, package.module (each with an optional :NAME), path.json, or path.graphene",
    )


# ---------------------------------------------------------------------------------------------- types of arguments


def size(text: str) -> Any:
    """Parse a size: a positive integer, or a run-time size `M` or `M:8`. For other text argparse prints the error."""
    match = re.fullmatch(r"([A-Z][A-Za-z0-9_]*)(?::([0-9]{1,9}))?", text, re.ASCII)
    if match:
        from fireiron.values.expr import sym

        try:
            return sym(match[1], multiple_of=int(match[2] or 1))
        except FireironError as error:
            raise argparse.ArgumentTypeError(error.asked) from None
    if not re.fullmatch(r"[0-9]{1,10}", text, re.ASCII) or not 1 <= int(text) < 2**31:
        raise argparse.ArgumentTypeError(f'{text!r} is not a size: give a positive integer, or a symbol such as "M" or "M:8"')
    return int(text)


def sized(text: str) -> tuple[str, Any]:
    """Parse `NAME=SIZE`, where NAME is a dimension or a run-time size. The size 0 is legal for strides only."""
    name, equals, value = text.partition("=")
    if not name.isidentifier() or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not DIMENSION=SIZE, such as m=64")
    return name, 0 if value == "0" else size(value)


def natural(text: str) -> int:
    """Parse an integer of at least 0."""
    if not re.fullmatch(r"[0-9]{1,18}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least 0")
    return int(text)


def positive(text: str) -> int:
    """Parse an integer of at least 1."""
    if not re.fullmatch(r"[0-9]{1,9}", text, re.ASCII) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def scalar(text: str) -> tuple[str, float]:
    """Parse `NAME=NUMBER`."""
    name, _, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        number = None
    if not name.isidentifier() or number is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=NUMBER, such as alpha=2.5")
    return name, number


def assignment(text: str) -> tuple[str, int]:
    """Parse `NAME=INTEGER`."""
    name, _, value = text.partition("=")
    if not name.isidentifier() or not re.fullmatch(r"[0-9]{1,10}", value, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=INTEGER")
    return name, int(value)


def layouts(text: str) -> str:
    """Parse two or three letters N or T. Return them in capitals."""
    if not re.fullmatch(r"[NTnt]{2,3}", text):
        raise argparse.ArgumentTypeError(f"{text!r}: give two or three letters, N (column-major) or T (row-major), for A, B and C")
    return text.upper()


# ---------------------------------------------------------------------------------------------- the strategy


def strategy_of(
    arguments: argparse.Namespace,
    name: str | None = None,
    known_only: bool = False,
    open_values: bool = False,
    architecture: str | None = None,
) -> Strategy:
    """Return the strategy that the arguments specify, bound to its spec.

    Tunables without a value get the values that the strategy's file states for the spec on `architecture` (None: `--arch`). With
    `open_values` they stay open. `known_only` ignores values of tunables that the strategy does not have. For a compiled kernel,
    `arguments.arch` becomes its target.
    """
    from fireiron.language.library import bind
    from fireiron.values.machine import as_architecture, as_dtype
    from fireiron.values.tensor import ColMajor, RowMajor

    if arguments.arch is not None:
        as_architecture(arguments.arch)
    entry = entry_named(arguments, name)
    if entry.architecture is not None:
        arguments.arch = _compiled_for(entry, arguments.arch)
    sizes, _ = _sizes(arguments, entry)
    options: dict[str, Any] = {} if arguments.dtype is None else {"dtype": as_dtype(arguments.dtype)}
    for operand, letter in zip("ABC", arguments.layouts or "", strict=False):
        options[operand] = ColMajor if letter == "N" else RowMajor
    values = _once("tunable", arguments.set)
    if known_only:
        values = {key: value for key, value in values.items() if key in entry.strategy.tunables()}
    return bind(entry, sizes, options, values, open_values, architecture or arguments.arch)


def takes_run_time_sizes(command: argparse.ArgumentParser) -> None:
    """Let a command take the values of run-time sizes by `--size M=1000` (`run_time_sizes`)."""
    command.set_defaults(takes_run_time_sizes=True)


def run_time_sizes(arguments: argparse.Namespace, spec: Spec, name: str | None = None) -> dict[str, int]:
    """Return the values of a spec's run-time sizes according to `--size`.

    Raises: an `ArgumentError` for a name that is neither a dimension nor a run-time size.
    """
    from fireiron.language.entries import dimensions
    from fireiron.spec import symbols_of

    entry = entry_named(arguments, name)
    _, values = _sizes(arguments, entry)
    known = [var.name for var in symbols_of(spec)]
    for size_name in values:
        if size_name not in known:
            dims = dimensions(entry)
            if dims:
                raise ArgumentError(f"--size {size_name}: the spec has no size {size_name}", legal=[*dims, *known])
            if size_name in spec.dims:
                raise ArgumentError(
                    f"--size {size_name}: {arguments.strategy if name is None else name} specifies one problem, {spec}",
                    hint="write SIZES = (...) instead of `problem` in its file",
                )
            raise ArgumentError(f"--size {size_name}: the spec has no size {size_name}", legal=[*spec.dims, *known])
    return values


def _sizes(arguments: argparse.Namespace, entry: Entry) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the sizes of dimensions, and the values of run-time sizes.

    `NAME=INTEGER` is the value of a run-time size if the command takes such values, and another argument introduces the run-time size NAME
    or the problem has no dimension NAME.
    """
    from fireiron.language.entries import dimensions

    named = [(dim, getattr(arguments, dim)) for dim in (*"MNK", "batch") if getattr(arguments, dim) is not None]
    stated = getattr(arguments, "sizes", [])
    if not getattr(arguments, "takes_run_time_sizes", False):
        return _dimensions([*named, *stated]), {}
    symbols = {value.name for _, value in (*named, *stated) if not isinstance(value, int)}
    dims = {spelling for dim in dimensions(entry) for spelling in (dim, dim.lower(), dim.upper())}
    at_run_time = [pair for pair in stated if isinstance(pair[1], int) and (pair[0] in symbols or pair[0] not in dims)]
    return _dimensions([*named, *(pair for pair in stated if pair not in at_run_time)]), _once("size", at_run_time)


def _dimensions(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    for name, value in pairs:
        if isinstance(value, int) and not value:
            raise ArgumentError(f"{name}=0: 0 is not a size", legal="positive integers")
    return _once("size", pairs)


def entry_named(arguments: argparse.Namespace, name: str | None = None) -> Entry:
    """Return the entry of a STRATEGY argument (None: that of the command)."""
    name = arguments.strategy if name is None else name
    if name.endswith(KERNEL_FILES):
        return _graphene_entry(name)
    return _stored_entry(arguments, name) if name.endswith(STORED_FILES) else loaded(arguments, name).entry()


def loaded(arguments: argparse.Namespace, name: str) -> Source:
    """Return the module of a STRATEGY argument; a command executes a user's file once."""
    from fireiron.language.library import load, require_unambiguous

    require_unambiguous(name)
    sources: dict[str, Source] = vars(arguments).setdefault("sources", {})
    if name not in sources:
        sources[name] = load(name)
    return sources[name]


def _compiled_for(entry: Entry, requested: str | None) -> str:
    """Return the target of a compiled kernel. Refuse a different requested target."""
    from fireiron.values.machine import as_architecture

    assert entry.architecture is not None
    if requested is not None and as_architecture(requested).name != entry.architecture:
        hint = "remove --arch, or name the strategy"
        raise ArgumentError(f"{entry.name} is compiled for {entry.architecture}: --arch {requested} cannot be chosen", hint=hint)
    return entry.architecture


def _once(kind: str, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return values by name. Refuse a name that is given twice."""
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise ArgumentError(f"the {kind} {name} is given twice: {values[name]} and {value}", hint=f"give {name} once")
        values[name] = value
    return values


def _graphene_entry(name: str) -> Entry:
    """Return the entry of a file with a kernel in Graphene's notation."""
    from fireiron.graphene import parse_strategy
    from fireiron.language.entries import Entry

    text, path = text_of(name), Path(name)
    try:
        return Entry(path.stem, parse_strategy(text), path=path)
    except FireironError as error:
        raise error.located(at=name) from None


def _stored_entry(arguments: argparse.Namespace, name: str) -> Entry:
    """Return the entry of a stored strategy. The modules of `--classes` have the user's classes that occur in it."""
    from fireiron.language.entries import Entry
    from fireiron.language.store import load

    path = Path(name)
    classes = [one for module in getattr(arguments, "classes", []) for one in _classes_of(loaded(arguments, module).module)]
    try:
        return Entry(path.stem, load(path, classes=classes), path=path)
    except StoreError as error:
        if "unknown class" in error.asked:
            error.hint = "--classes MODULE, the file or the dotted module of the class, if it is yours"
        raise


def _classes_of(module: ModuleType) -> list[type[Any]]:
    """Return the classes of a module that a stored strategy may contain, except those of this package."""
    import attrs

    values = dict.fromkeys(value for value in vars(module).values() if isinstance(value, type) and attrs.has(value))
    return [value for value in values if value.__module__.partition(".")[0] != "fireiron"]


def text_of(name: str) -> str:
    """Return the text of a file. Raises: an `ArgumentError` if it cannot be read."""
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ArgumentError(f"the file {name!r} cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}") from None


def program_of(arguments: argparse.Namespace) -> Program:
    return strategy_of(arguments).program(arguments.arch)
