"""Run the code blocks of Markdown pages, and write the outputs that the pages show; with --check, report the outdated ones instead.

    python docs/make_outputs.py docs/first-kernels.md

The blocks of a page form one program, which runs in an empty folder:

    ```python           is executed. If its first line is `# file: NAME.py`, it is also written to that file, in a new folder if needed.
    ```console          contains lines `$ fireiron ...`, each followed by its output.
    ```output           after a Python block contains what the block prints.

A Python block after the line `<!-- long -->` takes seconds: the tests only compile it by default. No other block uses its names.

`...` in a shown output stands for any text, such as a time. A block whose shown output matches is not rewritten. A picture that the
program saves as NAME.svg is stored as docs/pictures/NAME.svg, if the page shows it.
"""

import argparse
import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from pathlib import Path

from fireiron.cli import main as command_line

PICTURES = Path(__file__).resolve().parent / "pictures"
FENCE = re.compile(r"^```(python|console|output)\n(.*?)^```", re.DOTALL | re.MULTILINE)
LONG = "<!-- long -->\n"
NAMED = re.compile(r"# file: ([\w./-]+)\n")


def matches(shown, printed):
    """Whether a shown output is the printed one; `...` stands for any text."""
    return re.fullmatch(".*?".join(map(re.escape, shown.split("..."))), printed, re.DOTALL) is not None


def captured(action):
    """What an action prints, without spaces at the ends of lines."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), contextlib.suppress(SystemExit):
        action()
    text = "\n".join(line.rstrip() for line in out.getvalue().split("\n")).strip("\n")
    return f"{text}\n" if text else ""


def executed(code, page, scope):
    """The output of a Python block."""
    if named := NAMED.match(code):
        file = Path(named[1])
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(code.removeprefix(named[0]), encoding="utf-8")
    return captured(lambda: exec(compile(code, page, "exec"), scope))


def session(text):
    """A console block, with the outputs of its commands."""
    lines = []
    for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
        program, *arguments = shlex.split(command)
        assert program == "fireiron", f"{command}: only fireiron is run"
        printed = captured(lambda arguments=arguments: command_line(arguments))
        lines.append(f"$ {command}\n{shown if matches(shown, printed) else printed}")
    return "".join(lines)


def replayed(text, page, long=True):
    """The text of a page with its outputs as the blocks print them. Without `long`, long blocks are only compiled."""
    scope, printed, parts, end = {}, "", [], 0
    for match in FENCE.finditer(text):
        parts.append(text[end : match.start(2)])
        kind, shown = match.groups()
        end = match.end(2)
        if kind == "python" and not long and text.endswith(LONG, 0, match.start()):
            compile(shown, page, "exec")
            printed = None
        elif kind == "python":
            printed = executed(shown, page, scope)
        elif kind == "console":
            shown = session(shown)
        elif printed is not None and not matches(shown, printed):
            shown = printed
        parts.append(shown)
    return "".join([*parts, text[end:]])


def saved_pictures(text):
    """`(stored file, text)` of the pictures that the program of a page saved in the current folder, and that the page shows."""
    drawn = [(PICTURES / path.name, path.read_text(encoding="utf-8")) for path in sorted(Path.cwd().glob("*.svg"))]
    return [(path, picture) for path, picture in drawn if f"pictures/{path.name})" in text]


@contextlib.contextmanager
def empty_folder():
    """Run in a new folder."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(here)


def main():
    """Write the outputs, and return the number of pages that were outdated, at most 1; with --check, write nothing."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--check", action="store_true", help="report the outdated pages")
    options = parser.parse_args()
    outdated = 0
    for path in (path.resolve() for path in options.pages):
        text = path.read_text(encoding="utf-8")
        with empty_folder():
            files = [(path, replayed(text, str(path))), *saved_pictures(text)]
        for file, new in files:
            if file.exists() and file.read_text(encoding="utf-8") == new:
                continue
            outdated = 1
            print(f"{file.name}: {'outdated' if options.check else 'written'}")
            if not options.check:
                file.write_text(new, encoding="utf-8")
    return outdated if options.check else 0


if __name__ == "__main__":
    sys.exit(main())
