"""Paths that cannot be written, or that are other objects: for everything that writes files.

Each is refused with the project's own message and changes nothing; an accepted path writes the requested file (the target of a link), and
leaves devices, pipes, links and all other files unchanged. An unwritable cache costs a warning, not the kernel.
"""

import contextlib
import functools
import os
import random
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from attacks.commands import Refused, _run
from attacks.guard import Input
from attacks.writers import FIELDS, _cache_in, _entry, _journal
from fireiron import *
from fireiron.draw import draw as pictures
from fireiron.gpu import cache
from fireiron.language import store
from fireiron.tune.records import merge_files
from fireiron.tune.result import Result

TINY = "from fireiron import *\nstrategy = MatMul.tile(4, 4).to(Block).tile(1, 1).to(Thread).split(1).tile(1, 1).done()\nproblem = MatMul(8, 8, 4)(GL, GL, GL)(Kernel)\n"


@functools.cache
def home() -> Path:
    """A folder for this process, with a valid strategy and records; `here` in it is created again for each input."""
    import atexit

    folder = Path(tempfile.mkdtemp(prefix="unwritable-"))
    folder.chmod(0o755)
    (folder / "tiny.py").write_text(TINY)
    (folder / "tuned.jsonl").write_text(record().line() + "\n")
    owner = os.getpid()
    atexit.register(lambda: os.getpid() == owner and _remove(folder))
    return folder


@functools.cache
def record() -> Record:
    """A record."""
    return Record(values={"bm": 1}, **FIELDS)


@functools.cache
def gallery() -> object:
    """A picture."""
    return pictures(MatMul.tile(4, 4).to(Block).tile(1, 1).to(Thread).split(1).done()(MatMul(8, 8, 4)(GL, GL, GL)(Kernel)), "tree")


def _remove(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        with contextlib.suppress(OSError):
            path.chmod(0o700) if path.is_dir() and not path.is_symlink() else None
    shutil.rmtree(folder, ignore_errors=True)


def prepare(ending: str) -> Path:
    """The folder of paths, created again."""
    folder = home() / "here"
    if folder.exists():
        _remove(folder)
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "file").write_text("kept")
    (folder / f"there{ending}").write_text("kept")
    (folder / f"folder{ending}").mkdir()
    (folder / f"circle{ending}").symlink_to(folder / f"circle{ending}")
    (folder / f"lost{ending}").symlink_to(folder / "no" / "where")
    (folder / f"link{ending}").symlink_to(folder / f"target{ending}")
    (folder / f"target{ending}").write_text("kept\n")
    (folder / f"target{ending}").chmod(0o666)
    os.mkfifo(folder / f"pipe{ending}")
    with socket.socket(socket.AF_UNIX) as unix_socket:
        unix_socket.bind(str(folder / f"socket{ending}"))
    if os.getuid() == 0:
        for name, number in (("null", 3), ("zero", 5), ("full", 7)):
            os.mknod(folder / f"{name}{ending}", 0o666 | stat.S_IFCHR, os.makedev(1, number))
            (folder / f"{name}{ending}").chmod(0o666)
    for name, mode in (("shut", 0), ("only read", 0o555)):
        (folder / name).mkdir()
        (folder / name / f"there{ending}").write_text("kept")
        (folder / name).chmod(mode)
    return folder


PLACES = (
    "file/x{}", "file/x/x{}", "folder{}", "circle{}", "circle{}/x{}", "lost{}", "link{}", "pipe{}", "socket{}", "null{}", "zero{}", "full{}", "there{}", "shut/x{}",
    "shut/there{}", "only read/x{}", "only read/there{}", "only read/x/x{}", "/proc/nowhere/x{}", "/proc/x{}", "/proc/self/mem", "/sys/x{}", "/sys/kernel/x{}", "x" * 300 + "{}",
    "y/" * 3000 + "x{}", "", ".", "..", "\udcff{}", "a\0b{}", " ", "new{}", "new/x{}",
)  # fmt: skip
"""Paths in the folder, or outside; `{}` is the ending."""


def _command(*line: str) -> Callable[[str], object]:
    def run(place: str) -> object:
        if "\0" in place:  # a command line cannot contain it
            raise Refused("a NUL")
        return _run([one.replace("HOME", str(home())) if one != "@" else place for one in line], Path.cwd())

    return run


def _measure(place: str) -> None:
    path = Path(place)
    journal = _journal(path)
    try:
        journal.add(0, Result(values=journal.space[0], status="ok", us=1.0))
    finally:
        journal.close()


def _keep(place: str) -> None:
    if "\0" in place:  # a variable cannot contain it
        raise Refused("a NUL")
    key, data = _entry(0, 1)
    with _cache_in(Path(place)), cache._alone(cache._place(key)):
        assert cache._load(cache._place(key), key) is None
        cache._save(cache._place(key), data)


def _look(*line: str) -> Callable[[str], object]:
    def run(place: str) -> object:
        if "\0" in place:
            raise Refused("a NUL")
        return _run(list(line), Path.cwd(), Path(place))

    return run


WRITERS: Mapping[str, tuple[str, Callable[[str], object]]] = {
    "save": (".json", lambda place: store.save(MatMul.tile(8, 8), place)),
    "save over": (".json", lambda place: store.save(MatMul.tile(8, 8), place, overwrite=True)),
    "append": (".jsonl", lambda place: Records.append_to(place, record())),
    "merge": (".jsonl", lambda place: merge_files([home() / "tuned.jsonl"], place)),
    "records merge": (".jsonl", _command("records", "merge", "HOME/tuned.jsonl", "-o", "@", "--force")),
    "journal": (".jsonl", _measure),
    "export": ("", _command("export", "HOME/tiny.py", "--arch", "sm_80", "--no-cubin", "-o", "@")),
    "export over": ("", _command("export", "HOME/tiny.py", "--arch", "sm_80", "--no-cubin", "-o", "@", "--force")),
    "emit": (".cu", _command("emit", "HOME/tiny.py", "-o", "@", "--force")),
    "draw": (".svg", _command("draw", "HOME/tiny.py", "--what", "tree", "-o", "@", "--force")),
    "draw a folder": ("", _command("draw", "HOME/tiny.py", "--what", "tree,flow", "-o", "@")),
    "draw a page": (".html", _command("draw", "HOME/tiny.py", "--html", "@", "--force")),
    "pictures": (".svg", lambda place: gallery().save(place, overwrite=True)),  # type: ignore[attr-defined]
    "new": (".py", _command("new", "@")),
    "new over": (".py", _command("new", "@", "--kind", "micro-kernel", "--force")),
    "cache": ("", _keep),
    "cache show": ("", _look("cache", "show")),
    "cache prune": ("", _look("cache", "prune", "--all")),
    "cache verify": ("", _look("cache", "verify", "--fix")),
}  # fmt: skip
"""The writers: the ending of the file's name, and the call."""

REPLACE = ("save over", "merge", "records merge", "emit", "draw", "draw a page", "pictures", "new over", "append", "journal")
"""Those that may change an existing file."""


def snapshot(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """The present files: type, number and content."""
    state_by_path = {}
    for path in sorted(folder.rglob("*")):
        state = path.lstat()
        is_file = stat.S_ISREG(state.st_mode)
        state_by_path[str(path.relative_to(folder))] = (
            stat.S_IFMT(state.st_mode), state.st_rdev if is_file or stat.S_ISDIR(state.st_mode) else state.st_ino, path.read_bytes() if is_file else b"",
        )  # fmt: skip
    return state_by_path


def attempt(writer: str, place: str) -> object:
    """One writer at one place."""
    ending, write = WRITERS[writer]
    folder = prepare(ending)
    before, kept = snapshot(folder), os.getcwd()
    os.chdir(folder)
    try:
        result = write(place.replace("{}", ending))
    except FireironError:
        assert snapshot(folder) == before, "refused, and something has changed"
        raise
    finally:
        os.chdir(kept)
    after = snapshot(folder)
    changed = [name for name in before if after.get(name) != before[name]]
    own = place.replace("{}", ending), f"target{ending}"
    assert not changed or (len(changed) == 1 and writer in REPLACE and changed[0] in own and stat.S_ISREG(before[changed[0]][0])), changed
    assert not [name for name in after if name.endswith(".part")], "a half of a file is left"
    return result


def handed(writer: str, place: str) -> Input:
    """One writer at one place, as an input."""
    return Input(f"from attacks.unwritable import attempt\nattempt({writer!r}, {place!r})", lambda: attempt(writer, place))


def draw(choose: random.Random, count: int = 20) -> Iterator[Input]:
    """Writers and places."""
    for _ in range(count):
        writer, place = choose.choice(list(WRITERS)), choose.choice(PLACES)
        if os.getuid() == 0 and place == ".." and writer != "export":  # files would remain
            continue
        yield handed(writer, place)
