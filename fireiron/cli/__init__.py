"""Implement the command line. Only the parser is imported until a command runs, so that `--help` is fast.

Each command is one file. Its function `register` adds the command to the parser, with the function that runs it.

May import: everything.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from fireiron._version import VERSION
from fireiron.cli.arguments import strategy_options
from fireiron.cli.folded import terminal_width
from fireiron.cli.output import REFUSED, drop_output, folding, make_printable, progress, refuse, say_error
from fireiron.errors import FireironError

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
    arguments = _parser().parse_args(argv)
    named = [vars(arguments).get(name) for name in ("strategy", "left", "right")]
    progress(" ".join(["fireiron", arguments.command, *filter(None, named), "..."]))
    try:
        make_printable()
        with folding(arguments):
            status: int = arguments.run(arguments)
            sys.stdout.flush()
        return status
    except FireironError as error:
        sys.stdout.flush()
        return refuse(error, as_json=bool(vars(arguments).get("json")))
    except BrokenPipeError:
        drop_output()
        return 128 + 13
    except OSError as error:
        drop_output()
        say_error(": ".join([*([str(error.filename)] if error.filename else []), str(error.strerror or error)]))
        return REFUSED
    except KeyboardInterrupt:
        progress("")
        print("fireiron: interrupted", file=sys.stderr)
        return 128 + 2
    finally:
        progress("")


def _parser() -> argparse.ArgumentParser:
    options: dict[str, Any] = {"formatter_class": _Help, "allow_abbrev": False, "epilog": STATUSES}
    parser = argparse.ArgumentParser(prog="fireiron", description="A scheduling language for GPU kernels.", **options)
    parser.add_argument("--version", action="version", version=f"fireiron {VERSION}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    common = strategy_options()

    def add(name: str, run: Callable[[argparse.Namespace], int], text: str, strategy: bool = True) -> argparse.ArgumentParser:
        inherited = [common] if strategy else []
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", parents=inherited, **options)
        command.add_argument("--wide", action="store_true", help="do not fold long lines on a terminal")
        command.set_defaults(run=run)
        return command

    for name in COMMANDS:
        importlib.import_module(f"fireiron.cli.{name}").register(add)
    return parser


class _Help(argparse.HelpFormatter):
    """A help formatter with the line width of other output."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=terminal_width() - 1)
