"""The command line. Nothing but the parser is imported until a command needs it, so that `--help` is quick.

A command is one file: its `register` adds it to the parser and names the function that runs it.

May import: everything.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Final

from fireiron._version import VERSION
from fireiron.cli.arguments import strategy_options
from fireiron.cli.output import REFUSED, drop_output, make_printable, paint
from fireiron.errors import FireironError

COMMANDS: Final = ("list", "show", "emit", "check", "cost", "run", "explain", "diff", "draw", "tune", "export", "cache", "records")
"""The commands, in the order of the help; each is the module of its name."""


def main(argv: Sequence[str] | None = None) -> int:
    """The command line: the exit status of a command (0, 1 where something is wrong, 2 for a user's mistake)."""
    arguments = _parser().parse_args(argv)
    try:
        make_printable()
        status: int = arguments.run(arguments)
        sys.stdout.flush()
        return status
    except FireironError as error:
        sys.stdout.flush()
        print(f"fireiron: {paint('error', 31, sys.stderr)}: {error}", file=sys.stderr)
        return REFUSED
    except BrokenPipeError:
        drop_output()
        return 128 + 13
    except OSError as error:
        drop_output()
        print(f"fireiron: {paint('error', 31, sys.stderr)}: {error.strerror or error}", file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        print("fireiron: interrupted", file=sys.stderr)
        return 128 + 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fireiron", description="A scheduling language for GPU kernels.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"fireiron {VERSION}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    common = strategy_options()

    def add(name: str, run: Callable[[argparse.Namespace], int], text: str, strategy: bool = True) -> argparse.ArgumentParser:
        inherited = [common] if strategy else []
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", parents=inherited, allow_abbrev=False)
        command.set_defaults(run=run)
        return command

    for name in COMMANDS:
        importlib.import_module(f"fireiron.cli.{name}").register(add)
    return parser
