"""What commands print: colours, progress, JSON."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any, Final, TextIO, cast

from fireiron.cli.folded import Folded, folded, shortened, terminal_width

FAILED: Final = 1
"""Exit status if a check or a run found an error."""
REFUSED: Final = 2
"""Exit status for a usage error, as in argparse."""


def drop_output() -> None:
    """Nobody can read the rest; without this, Python complains once more when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def make_printable() -> None:
    """Characters that the terminal does not have are escaped instead of ending the program."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None and stream.errors == "strict":
            reconfigure(errors="backslashreplace")


def glyphs() -> tuple[str, ...]:
    from fireiron.inspect.show import ASCII, UNICODE

    try:
        "".join(UNICODE).encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


def paint(text: str, colour: int, stream: Any = None) -> str:
    """Coloured text for a terminal whose user has not set NO_COLOR."""
    stream = sys.stdout if stream is None else stream
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb" or not stream.isatty()
    return text if plain else f"\x1b[{colour}m{text}\x1b[0m"


def progress(text: str) -> None:
    """One line on a terminal that is overwritten; nothing elsewhere."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{shortened(text, terminal_width() - 1)}", end="", file=sys.stderr, flush=True)


@contextlib.contextmanager
def folding(arguments: argparse.Namespace) -> Iterator[None]:
    """On a terminal lines are folded to its width meanwhile, unless the command's text is for other programs, or `--wide` is given."""
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
    """The columns to use of standard output; None where lines may be of any length."""
    return sys.stdout.width if isinstance(sys.stdout, Folded) else None


def say_error(message: str) -> None:
    """An error as people read it, on the error stream."""
    progress("")
    text = f"fireiron: {paint('error', 31, sys.stderr)}: {message}"
    if sys.stderr.isatty():
        text = "\n".join(part for line in text.split("\n") for part in folded(line, terminal_width()))
    print(text, file=sys.stderr)


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """Says on a terminal, at once, what a command is busy with until it has something to print."""
    progress(f"{what} ...")
    try:
        yield
    finally:
        progress("")


def print_json(value: Any) -> int:
    print(json.dumps(value, indent=2))
    return 0
