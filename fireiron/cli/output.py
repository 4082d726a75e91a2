"""What commands print: colours, progress, JSON."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any, Final

FAILED: Final = 1
"""Exit status where a check or a run found something wrong."""
REFUSED: Final = 2
"""Exit status of a user's mistake, as argparse has it."""


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
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


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
