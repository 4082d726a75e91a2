"""Command lines: all commands and options of the parser, with wrong values, invalid files, and unknown names."""

import argparse
import contextlib
import functools
import io
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

from attacks.guard import Input
from fireiron import *
from fireiron.cli import _parser, main

BUSY = ("demo", "bench", "tune", "doctor", "list", "run", "check", "explain", "draw", "export")
"""Commands that compute if all is right: they get only invalid strategies."""

GOOD = "tiny.py"
"""A valid strategy."""

FILES = {
    GOOD: "from fireiron import *\nstrategy = MatMul.tile(4, 4).to(Block).tile(1, 1).to(Thread).split(1).done()\nproblem = MatMul(8, 8, 4)(GL, GL, GL)(Kernel)\n",
    "broken.py": "from fireiron import *\nstrategy = MatMul.tile(\n",
    "raising.py": "raise KeyError('x')\n",
    "leaving.py": "import sys\nsys.exit(3)\n",
    "empty.py": "",
    "none.py": "strategy = 3\n",
    "bytes.py": b"\xff\xfe\0strategy",
    "null.py": "strategy = '\0'\n",
    "meddling.py": "from attacks.values import *\nstrategy = Meddler()\nproblem = ReprRaises()\nSIZES = deep()\n",
    "wrong.py": "from fireiron import *\nstrategy = MatMul.tile(4, 4).to(Block)\nproblem = Move(8, 8)(GL, GL)(Kernel)\n",
    "maker.py": "from fireiron import *\nstrategy = MatMul.tile(4, 4).to(Block)\ndef problem(*a, **b): return a\n",
    "bad.graphene": "%a:[4].fp32\n",
    "bytes.graphene": b"\xff\xfe",
    "records.jsonl": '{"format": 2}\n',
    "text.jsonl": "x\n",
    "fifo.txt": "x",
}  # fmt: skip

WORDS = (
    "", " ", "-", "--", "---", "0", "-1", "8", "M", "M:8", "M:0", "m=8", "m=", "=8", "m=8=9", "bm=0", "bm=x", "nan", "inf", "1e9", "9" * 30, "é", "\udcff", "a\nb",
    "sm_80", "sm_0", "sm_90a", "float16", "float17", "NT", "NTX", "TTTT", "0,1", ",", "100M", "-5G", "30d", "cuda", "ptx", "sass", "x" * 300, "../x", "/dev/null",
    "/dev/full", "/proc/self/mem", "/", ".", "no/such/file.py", "naive", "naiv", "%s", "{0}", "$(true)", "*", "~", "@file", "--help-me", "-h5",
)  # fmt: skip


@functools.cache
def folder() -> Path:
    """A folder with invalid files, for this process."""
    root = Path(tempfile.mkdtemp(prefix="outside-"))
    for name, text in FILES.items():
        (root / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    (root / "dir.py").mkdir()
    (root / "loop.py").symlink_to(root / "loop.py")
    (root / "dangling.py").symlink_to(root / "nowhere.py")
    os.mkfifo(root / "pipe.jsonl")
    import atexit
    import shutil

    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return root


@functools.cache
def commands() -> dict[str, argparse.ArgumentParser]:
    """The parser of each command."""
    (action,) = (one for one in _parser()._actions if isinstance(one, argparse._SubParsersAction))
    return dict(action.choices)


def draw(choose: random.Random, count: int = 6) -> Iterator[Input]:
    """Command lines of one command."""
    name = choose.choice(list(commands()))
    for _ in range(count):
        line = _line(choose, name)
        yield Input(f"fireiron {line!r}  # in the folder of attacks.commands", lambda line=line: _run(line))


def _line(choose: random.Random, name: str) -> list[str]:
    parser = commands()[name]
    line = [name] if choose.random() < 0.98 else [choose.choice(WORDS)]
    for action in parser._actions:
        if isinstance(action, (argparse._HelpAction, argparse._SubParsersAction)):
            continue
        if action.option_strings and choose.random() < 0.75:
            continue
        if action.option_strings:
            line.append(choose.choice(action.option_strings))
        if action.nargs != 0 and choose.random() < 0.95:
            line += [_word(choose, name, action) for _ in range(choose.choice((1, 1, 1, 2)) if action.nargs in ("*", "+") else 1)]
    subs = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    if subs and choose.random() < 0.9:
        line.append(choose.choice([*subs[0].choices, choose.choice(WORDS)]))
    if name in BUSY and not any(word in ("strategy", "name", "strategies") for word in _dests(parser)):
        line.append(choose.choice(("--no-such", "more", "--wide=1")))
    if choose.random() < 0.1:
        line.insert(choose.randrange(len(line) + 1), choose.choice(WORDS))
    return [one for one in line if "\0" not in one]


def _dests(parser: argparse.ArgumentParser) -> list[str]:
    return [one.dest for one in parser._actions]


def _word(choose: random.Random, name: str, action: argparse.Action) -> str:
    if action.choices and choose.random() < 0.6:
        return str(choose.choice(list(action.choices)))
    if action.dest in ("strategy", "left", "right", "strategies", "name", "files"):
        files = [one for one in FILES if one != GOOD or name not in BUSY] + ["dir.py", "loop.py", "dangling.py", "nowhere.py"]
        word = choose.choice(files) + choose.choice(("", "", "", ":strategy", ":nothing", ":", "::", ":a b"))
        return word if choose.random() < 0.8 else choose.choice([word for word in WORDS if word != "naive" or name not in BUSY])
    if action.dest in ("output", "folder", "journal", "save", "html") and choose.random() < 0.8:
        return choose.choice(("/dev/full", "/proc/x", "dir.py", "no/such/x", "x" * 300, "", "loop.py"))
    return choose.choice(WORDS)


class Refused(FireironError):
    """The command refused its line, with a message."""


def _run(line: list[str], here: Path | None = None, kept_in: Path | None = None) -> object:
    """Run a command in a folder, with a separate cache."""
    previous = os.getcwd()
    kept = {name: os.environ.get(name) for name in ("FIREIRON_CACHE_DIR", "FIREIRON_RECORDS")}
    os.chdir(here or folder())
    os.environ["FIREIRON_CACHE_DIR"] = str(kept_in or folder() / "cache")
    with _Stream() as out, _Stream() as err:
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                try:
                    status = main(line)
                except SystemExit as error:
                    status = error.code
        finally:
            os.chdir(previous)
            for name, value in kept.items():
                os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
        stderr = err.getvalue()
    assert status in (0, 1, 2), f"exit status {status!r}"
    assert "Traceback" not in stderr, stderr
    if status == 2:
        assert stderr.strip(), "refused without a word"
        raise Refused(stderr)
    return status


class _Stream(io.TextIOWrapper):
    """A stream that is not a terminal, with an encoding and a file, like that of a process."""

    def __init__(self) -> None:
        super().__init__(tempfile.TemporaryFile("w+b"), encoding="utf-8", errors="backslashreplace")  # noqa: SIM115 - closed with this

    def getvalue(self) -> str:
        """All that was written."""
        self.flush()
        self.seek(0)
        return self.read()
