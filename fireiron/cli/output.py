"""Print colors, progress, errors and JSON."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any, Final, TextIO, cast

from fireiron.cli.folded import Folded, folded, shortened, terminal_width
from fireiron.errors import KERNEL_ERRORS, FireironError

FAILED: Final = 1
"""Exit status of all commands if the kernel is illegal, a check found an error, or a result is wrong."""
REFUSED: Final = 2
"""Exit status of all commands for an error in the command, its files or its environment, as in argparse."""


def drop_output() -> None:
    """Redirect output to nothing after the reader closed the pipe. Otherwise Python prints another error at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def make_printable() -> None:
    """Escape characters that the terminal cannot encode, instead of raising an error."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None and stream.errors == "strict":
            reconfigure(errors="backslashreplace")


def glyphs() -> tuple[str, ...]:
    """Return the glyphs of trees: Unicode if the output can encode them, else ASCII."""
    from fireiron.inspect.show import ASCII, UNICODE

    try:
        "".join(UNICODE).encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


def paint(text: str, color: int, stream: Any = None) -> str:
    """Return colored text if the stream is a terminal and NO_COLOR is not set."""
    stream = sys.stdout if stream is None else stream
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb" or not stream.isatty()
    return text if plain else f"\x1b[{color}m{text}\x1b[0m"


def progress(text: str) -> None:
    """Overwrite the progress line on a terminal. Elsewhere, print nothing."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{shortened(text, terminal_width() - 1)}", end="", file=sys.stderr, flush=True)


@contextlib.contextmanager
def folding(arguments: argparse.Namespace) -> Iterator[None]:
    """Fold lines on a terminal, unless the command's output is for other programs, or `--wide` is given."""
    stream, options = sys.stdout, vars(arguments)
    if not stream.isatty() or any(options.get(name) for name in ("wide", "json", "graphene", "verbatim")):
        progress("")
        yield
        return
    sys.stdout = cast(TextIO, Folded(stream, terminal_width(), lambda: progress("")))
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stdout = stream


def width_of_output() -> int | None:
    """Return the number of columns of standard output. Return None if lines are not folded."""
    return sys.stdout.width if isinstance(sys.stdout, Folded) else None


def say_error(message: str) -> None:
    """Print an error on the error stream."""
    progress("")
    text = f"fireiron: {paint('error', 31, sys.stderr)}: {message}"
    if sys.stderr.isatty():
        text = "\n".join(part for line in text.split("\n") for part in folded(line, terminal_width()))
    print(text, file=sys.stderr)


def refuse(error: FireironError, as_json: bool = False) -> int:
    """Print an error, and for programs also a JSON object on standard output. Return the exit status."""
    if as_json:
        print_json({"error": error_dict(error)})
    say_error(str(error))
    return FAILED if is_of_kernel(error) else REFUSED


def is_of_kernel(error: FireironError) -> bool:
    """Return whether an error is about a kernel rather than about the command, its files or its environment."""
    return isinstance(error, KERNEL_ERRORS) and not error.of_file


def error_dict(error: FireironError) -> dict[str, Any]:
    """Return an error as plain values, for JSON."""
    parts = {"got": error.got, "in": error.within, "legal": error.legal, "at": error.at, "do": error.hint}
    legal = [str(value) for value in error.legal] if isinstance(error.legal, tuple) else error.legal
    texts = {name: str(value) for name, value in parts.items() if value is not None}
    return {"kind": type(error).__name__, "message": error.asked, **texts, **({"legal": legal} if error.legal else {})}


@contextlib.contextmanager
def working(activity: str) -> Iterator[None]:
    """Show a progress line with the activity until the command has output."""
    progress(f"{activity} ...")
    try:
        yield
    finally:
        progress("")


def print_json(value: Any) -> int:
    print(json.dumps(value, indent=2))
    return 0
