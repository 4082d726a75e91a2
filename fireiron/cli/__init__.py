"""Implement the command line. Only the parser is imported until a command runs, so that `--help` is fast.

Each command is one file. Its function `register` adds the command to the parser, with the function that runs it.

May import: everything.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

from fireiron._version import VERSION
from fireiron.cli.arguments import strategy_options
from fireiron.cli.folded import terminal_width
from fireiron.cli.output import REFUSED, drop_output, folding, make_printable, print_json, progress, refuse, say_error
from fireiron.errors import FireironError, closest

COMMANDS: Final = (
    "demo", "new", "puzzle", "list", "show", "emit", "check", "cost", "run", "bench", "explain", "diff",
    "draw", "derive", "tune", "export", "cache", "records", "doctor",
)  # fmt: skip
"""The commands, in the order of the help. Each command is a module of the same name."""

STATUSES: Final = "exit status: 0 success; 1 the kernel is illegal or wrong; 2 an error in the command, its files or its environment"
"""The exit statuses of all commands, for `fireiron --help`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status (`STATUSES`).

    As in a shell, the status is 130 after an interruption, and 141 if the reader of the output closes the pipe.
    """
    given = sys.argv[1:] if argv is None else [*argv]
    try:
        arguments = _arguments(given)
    except _Misused as error:
        return _misused(error, as_json="--json" in given)
    named = [vars(arguments).get(name) for name in ("strategy", "left", "right")]
    progress(" ".join(["fireiron", arguments.command, *filter(None, named), "..."]))
    try:
        make_printable()
        with folding(arguments):
            status: int = arguments.run(arguments)
            sys.stdout.flush()
        return status
    except FireironError as error:
        return _refused(error, arguments.json)
    except BrokenPipeError:
        return _closed()
    except OSError as error:
        message = ": ".join([*([str(error.filename)] if error.filename else []), str(error.strerror or error)])
        if arguments.json:
            with contextlib.suppress(OSError):  # the error may be one of standard output
                print_json({"error": {"kind": type(error).__name__, "message": message}})
        drop_output()
        say_error(message)
        return REFUSED
    except KeyboardInterrupt:
        progress("")
        print("fireiron: interrupted", file=sys.stderr)
        return 128 + 2
    finally:
        progress("")


def _refused(error: FireironError, as_json: bool) -> int:
    """Print an error of the package, and return the exit status."""
    try:
        sys.stdout.flush()
        return refuse(error, as_json=as_json)
    except BrokenPipeError:
        return _closed()


def _closed() -> int:
    """Return the exit status after the reader of the output closed the pipe."""
    drop_output()
    return 128 + 13


class _Misused(Exception):
    """A command line that the parser of a command refuses."""

    def __init__(self, parser: argparse.ArgumentParser, message: str) -> None:
        super().__init__(message)
        self.parser = parser


class _Parser(argparse.ArgumentParser):
    """A parser that raises its errors, so that all errors are printed in one place."""

    def error(self, message: str) -> NoReturn:
        match = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        similar = None if match is None else closest(match[1], re.findall(r"[\w-]+", match[2]))
        raise _Misused(self, message if similar is None else f"{message}; did you mean {similar}?")


def _misused(error: _Misused, as_json: bool) -> int:
    """Print an error of a command line as argparse does, and for programs also a JSON object."""
    if as_json:
        print_json({"error": {"kind": "UsageError", "message": str(error), "do": f"{error.parser.prog} --help"}})
    print(f"{error.parser.format_usage()}{error.parser.prog}: error: {error}", file=sys.stderr)
    return REFUSED


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line.

    Raises: `_Misused`; for unknown arguments by the parser of the command, with the option that has the most similar name.
    """
    arguments, unknown = _parser().parse_known_args(argv)
    if unknown:
        parser = arguments.parser
        options = [option for action in parser._actions for option in action.option_strings if option != "--help"]
        similar = next((f"; did you mean {name}?" for text in unknown if text[0] == "-" and (name := closest(text, options))), "")
        raise _Misused(parser, f"unrecognized arguments: {' '.join(unknown)}{similar}")
    return arguments


def _parser() -> argparse.ArgumentParser:
    options: dict[str, Any] = {"formatter_class": _Help, "allow_abbrev": False, "epilog": STATUSES}
    parser = _Parser(prog="fireiron", description="A scheduling language for GPU kernels.", **options)
    parser.add_argument("--version", action="version", version=f"fireiron {VERSION}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    common = strategy_options()

    def add(name: str, run: Callable[[argparse.Namespace], int], text: str, strategy: bool = True) -> argparse.ArgumentParser:
        inherited: list[Any] = [common] if strategy else []
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", parents=inherited, **options)
        command.add_argument("--wide", action="store_true", help="do not fold long lines; of check, each finding in one line")
        command.add_argument("--json", action="store_true", help="print JSON, also for errors")
        command.set_defaults(run=run, parser=command)
        return command

    for name in COMMANDS:
        importlib.import_module(f"fireiron.cli.{name}").register(add)
    return parser


class _Help(argparse.HelpFormatter):
    """A help formatter with the line width of other output."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=terminal_width() - 1)
