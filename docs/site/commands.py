"""Generate the page of the command line: the `--help` text of each command, and the common options once."""

import argparse
from collections import Counter

from section import prose

from fireiron import cli

EVERYWHERE = {"--help", "--wide"}
"""Options of every command, described once in the introduction."""

HEAD = """# Command line

`fireiron COMMAND --help` prints the same. STRATEGY is a name of the [library](../../strategies), `NAME:form`, or `path.py:name`
([own files](../howto/own-file.md)). Lines are folded to the width of the terminal, at most 100 columns; `--wide` disables this.
Exit status 0 means success, 1 that a check failed, 2 that the command cannot be executed.
"""


def pages():
    """The page, by its path."""
    commands = next(one for one in cli._parser()._actions if isinstance(one, argparse._SubParsersAction)).choices
    shared = Counter(id(action) for command in commands.values() for action in command._actions)
    common = {one: count for one, count in shared.items() if count > 1}
    lines = [HEAD]
    for name, command in commands.items():
        own = [one for one in command._actions if id(one) not in common and not EVERYWHERE & {*one.option_strings}]
        lines += [f"## `{name}`", "", prose(command.description or ""), "", *_table(command, own)]
        if any(id(one) in common for one in command._actions):
            lines += ["And the [options of a strategy](#options-of-a-strategy).", ""]
    command = next(one for one in commands.values() if any(id(action) in common for action in one._actions))
    lines += ["## Options of a strategy", "", *_table(command, [one for one in command._actions if id(one) in common])]
    return {"reference/commands.md": "\n".join(lines)}


def _table(command, actions):
    form = command._get_formatter()
    helps = [" ".join(form._expand_help(one).split()) if one.help else "" for one in actions]
    rows = [f"| {_written(form, one)} | {prose(text)} |" for one, text in zip(actions, helps, strict=True)]
    return ["| | |", "|---|---|", *rows, ""] if rows else []


def _written(formatter, action):
    """How an argument is written: `-o FILE`, `STRATEGY`."""
    value = formatter._format_args(action, formatter._get_default_metavar_for_optional(action)) if action.nargs != 0 else ""
    if not action.option_strings:
        return f"`{formatter._format_args(action, formatter._get_default_metavar_for_positional(action))}`"
    return ", ".join(f"`{f'{one} {value}'.strip()}`" for one in action.option_strings)
