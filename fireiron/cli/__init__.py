"""The command line. Nothing but the parser is imported until a command needs it, so that `--help` is quick.

A command is one file: its `register` adds it to the parser and names the function that runs it.

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
from fireiron.cli.output import REFUSED, drop_output, folding, make_printable, progress, say_error
from fireiron.errors import FireironError

COMMANDS: Final = (
    "demo", "new", "list", "show", "emit", "check", "cost", "run", "bench", "explain", "diff", "draw", "tune", "export", "cache",
    "records", "doctor",
)  # fmt: skip
"""The commands, in the order of the help; each is the module of its name."""

STATUSES: Final = "exit status: 0 all is well, 1 something was found wrong, 2 a mistake in the command, its files or the place it runs in"
"""What every command's end means; `fireiron --help` says it."""


def main(argv: Sequence[str] | None = None) -> int:
    """The command line: the exit status of a command (0, 1 where something is wrong, 2 for a user's mistake).

    An interruption ends with 130, a reader that leaves with 141, as the shell has it.
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
        say_error(str(error))
        return REFUSED
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
    looks: dict[str, Any] = {"formatter_class": _Help, "allow_abbrev": False, "epilog": STATUSES}
    parser = argparse.ArgumentParser(prog="fireiron", description="A scheduling language for GPU kernels.", **looks)
    parser.add_argument("--version", action="version", version=f"fireiron {VERSION}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    common = strategy_options()

    def add(name: str, run: Callable[[argparse.Namespace], int], text: str, strategy: bool = True) -> argparse.ArgumentParser:
        inherited = [common] if strategy else []
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", parents=inherited, **looks)
        command.add_argument("--wide", action="store_true", help="lines of any length on a terminal, as in a pipe")
        command.set_defaults(run=run)
        return command

    for name in COMMANDS:
        importlib.import_module(f"fireiron.cli.{name}").register(add)
    return parser


class _Help(argparse.HelpFormatter):
    """Help as wide as the other output."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=terminal_width() - 1)
