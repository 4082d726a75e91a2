"""The compile cache on disk, shared by processes; see docs/decisions/0012-compile-cache.md.

An entry is one file: a first line, a SHA-256 of the rest, a line of JSON, then PTX, log and machine code. It is written under another name
and renamed. Its digest is verified at each read, so a damaged, truncated or misplaced entry is never used, and the kernel is compiled
again. Reading executes no code: there is no pickle. Programs and choices (`fireiron.disk_cache`) are in the same folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import define, evolve, field

from fireiron import disk_cache, files, settings
from fireiron._version import VERSION
from fireiron.disk_cache import DamagedError
from fireiron.errors import CacheWarning
from fireiron.frozen import frozen
from fireiron.gpu import toolchain
from fireiron.gpu.headers import included, stored
from fireiron.gpu.toolchain import Compilation, Compiled

FORMAT = 1
"""Version of entries and keys; entries of other versions are ignored."""
PATIENCE = 120.0
"""Seconds that a process waits for another one that compiles the same kernel, before it compiles too."""
LEFTOVER = 3600.0
"""Seconds after which an unfinished file or a lock is assumed to be left by a killed process."""

_FIRST = f"fireiron compiled kernel {FORMAT}\n".encode()
_SUFFIX = ".kernel"
KINDS = ("kernel", "program", "choice", "headers")
"""The kinds of entries, and their file suffixes."""
_ELSEWHERE = ("pre-include", "include", "time", "fdevice-time-trace", "pch", "create-pch", "use-pch", "pch-dir")
"""Options that read or write files: such compilations are not cached."""


def compile_cached(
    source: str,
    arch: str,
    *,
    options: tuple[str, ...] = (),
    werror: bool = True,
    fast_math: bool = False,
    newest: tuple[int, int] | None = None,
) -> Compiled:
    """Compile as `toolchain.compile_cuda`, but use the cache if possible (`Compiled.cached`).

    If processes compile the same kernel at the same time, one of them compiles and the others wait for it. If the cache cannot be written,
    a warning is issued.

    Raises:
        LaunchError: no compiler supports `arch`, or the compiler refuses the source, which is then not stored.
    """
    return prepared(source, arch, options=options, werror=werror, fast_math=fast_math, newest=newest).run()


def prepared(
    source: str,
    arch: str,
    *,
    options: tuple[str, ...] = (),
    werror: bool = True,
    fast_math: bool = False,
    newest: tuple[int, int] | None = None,
) -> CachedCompilation:
    """Find the compiler and the headers for `compile_cached`. Raises: LaunchError if no compiler supports `arch`."""
    work = toolchain.compilation(source, arch, options=options, werror=werror, fast_math=fast_math, newest=newest)
    return CachedCompilation(work, key_of(work) if settings.cache_enabled() else None)


def deferred(source: str, arch: str, *, newest: tuple[int, int] | None = None) -> DeferredCompilation:
    """Return a compilation as `prepared`, but if no process has read the headers yet, without its key.

    To read two dozen headers takes 0.06 s. Without stored headers no kernel that includes them is in the cache, so the key is needed only
    to store the result. Raises: LaunchError if no compiler supports `arch`.
    """
    work = toolchain.compilation(source, arch, newest=newest)
    if not settings.cache_enabled():
        return DeferredCompilation(CachedCompilation(work, None))
    waits = bool(work.include) and not stored(work.include)
    return DeferredCompilation(CachedCompilation(work, None if waits else key_of(work)), waits)


@define
class DeferredCompilation:
    """A compilation; if it `waits`, its key is not known yet, and the result must be stored."""

    cached: CachedCompilation
    waits: bool = False

    def run(self) -> Compiled:
        """Return the result of `CachedCompilation.run`."""
        return self.cached.run()

    def find_key(self) -> None:
        """Read the headers."""
        if self.waits:
            self.waits, self.cached = False, CachedCompilation(self.cached.work, key_of(self.cached.work))

    def store(self, compiled: Compiled) -> None:
        """Store the result of a compilation without a key."""
        self.find_key()
        self.cached.store(compiled)


@frozen
class CachedCompilation:
    """A compilation and its key in the cache; without a key the cache is not used."""

    work: Compilation
    key: str | None

    def run(self) -> Compiled:
        """Return the entry of the cache, or compile and store the result. Raises: LaunchError if the compiler refuses the source."""
        if self.key is None:
            return self.work.run()
        path = _place(self.key)
        compiled = _load(path, self.key)
        if compiled is not None:
            return compiled
        with _alone(path):
            compiled = _load(path, self.key)
            if compiled is None:
                compiled = self.work.run()
                self.store(compiled)
        return compiled

    def store(self, compiled: Compiled) -> None:
        """Store the result if there is a key."""
        if self.key is not None:
            _save(_place(self.key), _encoded(self.key, self.work, compiled))


def key_of(work: Compilation) -> str | None:
    """Return the key of a compilation: a digest of everything that the result depends on, independent of paths and user.

    These are the text, the contents of its headers, the target, the options, and the build of the compiler. The result is None if they are
    unknown: a macro names a header, an option reads files, or the compiler's file cannot be read.
    """
    flags, folders = _parted(work.flags)
    identity = work.chain.identity
    if identity is None or any(_name(flag) in _ELSEWHERE for flag in flags):
        return None
    headers = included(work.source, (*work.include, *folders), work.include)
    if headers is None:
        return None
    parts = {
        "format": FORMAT,
        "source": hashlib.sha256(work.source.encode()).hexdigest(),
        "headers": headers,
        "arch": work.arch,
        "flags": flags,
        "werror": work.werror,
        "compiler": [*work.chain.version, identity],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _parted(flags: Sequence[str]) -> tuple[tuple[str, ...], tuple[Path, ...]]:
    """Return the options without those that name include folders, and these folders."""
    kept: list[str] = []
    folders: list[Path] = []
    rest = iter(flags)
    for flag in rest:
        if flag in ("-I", "--include-path"):
            folders.append(Path(next(rest, ".")))
        elif flag.startswith(("--include-path=", "-I")):
            folders.append(Path(flag.removeprefix("--include-path=").removeprefix("-I").lstrip("= ")))
        else:
            kept.append(flag)
    return tuple(kept), tuple(folders)


def _name(flag: str) -> str:
    return flag.lstrip("-").partition("=")[0]


# --- one entry --------------------------------------------------------------------------------------------------------


def folder() -> Path:
    """Return the folder of entries; it may not exist."""
    return settings.cache_folder() / "kernels"


def _place(key: str) -> Path:
    """Return the file of an entry, in two levels of folders, so that folders stay small."""
    return folder() / key[:2] / key[2:4] / f"{key}{_SUFFIX}"


def _encoded(key: str, work: Compilation, compiled: Compiled) -> bytes:
    parts = compiled.ptx.encode(), compiled.log.encode(), compiled.cubin
    head = {
        "key": key,
        "kernels": list(compiled.resources),
        "about": next(iter(work.source.splitlines()), "")[:200],
        "arch": compiled.arch,
        "toolchain": compiled.toolchain,
        "compiler": work.chain.identity,
        "flags": _parted(work.flags)[0],
        "seconds": compiled.seconds,
        "created": time.time(),
        "fireiron": VERSION,
    }
    return disk_cache.encoded(_FIRST, head, *parts)


def _decoded(data: bytes, key: str) -> Compiled:
    """Return the content of an entry.

    Raises:
        DamagedError: the entry is truncated, changed, or belongs to another key.
    """
    line, rest = disk_cache.opened(data, _FIRST)
    try:
        head = _head(line)
        if head is None:
            raise ValueError("its head")
        if head["key"] != key:
            raise DamagedError("it is the entry of another key")
        _check_head(head, len(rest))
        ptx, log, cubin = _slices(rest, head["sizes"])
        text, (major, minor) = log.decode(), head["toolchain"]
        resources = toolchain.resources_of(text)
        return Compiled(head["arch"], (major, minor), ptx.decode(), cubin, resources, text, head["seconds"], cached=True)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise DamagedError(f"its layout is not that of this version ({error})") from None


def _check_head(head: Mapping[str, Any], length: int) -> None:
    """Refuse a head with illegal values, which no version writes, although its digest is correct."""
    sizes, version = head["sizes"], head["toolchain"]
    is_valid = all(type(number) is int and number >= 0 for number in (*sizes, *version))
    if not is_valid or sum(sizes) != length or not isinstance(head["arch"], str) or type(head["seconds"]) not in (int, float):
        raise ValueError("sizes, arch, toolchain or seconds")


def _slices(data: bytes, sizes: Sequence[int]) -> Iterator[bytes]:
    start = 0
    for size in sizes:
        yield data[start : start + size]
        start += size


def _load(path: Path, key: str) -> Compiled | None:
    """Return the entry of a key, or None. A damaged entry is removed, with a warning."""
    data = disk_cache.bytes_at(path)
    if data is None:
        return None
    try:
        return _decoded(data, key)
    except DamagedError as error:
        warnings.warn(f"{path} is not used and compiled again: {error}", CacheWarning, stacklevel=3)
        with contextlib.suppress(OSError):
            path.unlink()
        return None


def _save(path: Path, data: bytes) -> None:
    """Write an entry, all or nothing; a full or read-only disk causes one warning."""
    try:
        disk_cache.save(path, data)
    except OSError as error:
        why = error.strerror or error
        warnings.warn(
            f"{folder()} cannot be written ({why}): kernels are compiled again (to silence: FIREIRON_NO_CACHE=1)", CacheWarning, 1
        )


# --- one process at a time --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Admit one process at a time, if the file system supports locks. Correctness does not depend on the lock.

    The lock belongs to an open file, so the system releases it when its owner is killed. The owner removes the file before it releases the
    lock. A process that already opened the file gets the lock next, and then finds the entry.
    """
    handle = _opened(path.with_suffix(".lock"))
    acquired = handle is not None and _acquired(handle, path)
    try:
        yield
    finally:
        if acquired:
            with contextlib.suppress(OSError):
                path.with_suffix(".lock").unlink()
        if handle is not None:
            os.close(handle)


def _opened(path: Path) -> int | None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
    except OSError:
        return None


def _acquired(handle: int, path: Path) -> bool:
    """Wait for the lock, or until the entry exists, at most `PATIENCE` seconds; return False without locks."""
    try:
        import fcntl
    except ImportError:
        return False
    end, pause = time.monotonic() + PATIENCE, 0.002
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if path.exists() or time.monotonic() > end:
                return False
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
        except OSError:  # a file system without locks
            return False


# --- all entries ------------------------------------------------------------------------------------------------------


@frozen
class Entry:
    """An entry of the cache, from its file and head.

    Attributes:
        path: its file.
        kind: `"kernel"`, machine code; `"program"`, checked IR and its text; `"choice"`, the kernel that was chosen for a call;
            `"headers"`, the digests and includes of CUDA headers.
        kernels: the names of the kernels in it.
        about: the first line of the text, which describes what it computes.
        arch, toolchain: the target, and the compiler's (major, minor).
        size: bytes on disk.
        created, used: the times of the compilation and of the last read, in seconds since 1970.
        seconds: the duration of the compilation.
        problem: the reason why it will not be used; empty for a valid entry. `entries` reads only heads, `verify` reads whole files.
    """

    path: Path
    kind: str = "kernel"
    kernels: tuple[str, ...] = ()
    about: str = field(default="", repr=False)
    arch: str = ""
    toolchain: tuple[int, ...] = ()
    size: int = 0
    created: float = 0.0
    used: float = 0.0
    seconds: float = 0.0
    problem: str = ""


def entries() -> tuple[Entry, ...]:
    """Return all entries, most recently used first."""
    all_entries = (_entry(path) for kind in KINDS for path in _files(f"*.{kind}"))
    return tuple(sorted((entry for entry in all_entries if entry is not None), key=lambda entry: (-entry.used, entry.path)))


def verify(fix: bool = False) -> tuple[Entry, ...]:
    """Return the damaged entries after reading each completely; remove them if `fix`."""
    damaged = tuple(entry for entry in map(_verified, entries()) if entry.problem)
    if fix:
        for entry in damaged:
            entry.path.unlink(missing_ok=True)
    return damaged


def prune(max_bytes: int | None = None, older_than_days: float | None = None, everything: bool = False) -> tuple[Entry, ...]:
    """Remove entries, and files of killed processes.

    Args:
        max_bytes: upper bound of the size that remains; the least recently used entries are removed first.
        older_than_days: remove entries that were last used more than this number of days ago.
        everything: remove all entries.

    Returns:
        The entries that were removed.

    Raises:
        OSError: the cache cannot be written.
    """
    now, kept, removed = time.time(), 0, []
    for entry in entries():  # the last used first
        old = older_than_days is not None and now - entry.used > older_than_days * 86400
        if everything or old or (max_bytes is not None and kept + entry.size > max_bytes):
            entry.path.unlink(missing_ok=True)
            removed.append(entry)
        else:
            kept += entry.size
    for path in (*_files(".*.part"), *_files("*.lock")):
        with contextlib.suppress(FileNotFoundError):
            if now - path.stat().st_mtime > LEFTOVER:
                path.unlink()
    return tuple(removed)


def _files(pattern: str) -> Iterator[Path]:
    with contextlib.suppress(OSError):  # for example, a folder whose name is too long has no entries
        yield from (path for path in folder().glob(f"[0-9a-f][0-9a-f]/[0-9a-f][0-9a-f]/{pattern}") if path.is_file())


def _first(kind: str) -> bytes:
    """Return the first line of entries of a kind."""
    return _FIRST if kind == "kernel" else disk_cache.first_line(kind)


def _entry(path: Path) -> Entry | None:
    """Return the entry of a file by its head; None if the file no longer exists."""
    try:
        status = path.stat()
        kind = path.suffix.removeprefix(".")
        bare = Entry(path, kind, size=status.st_size, created=status.st_mtime, used=status.st_mtime)
        with path.open("rb") as file:
            first, _, line = file.readline(), file.readline(disk_cache.DIGITS + 1), file.readline(1 << 20)
    except FileNotFoundError:
        return None
    except OSError as error:
        return Entry(path, path.suffix.removeprefix("."), problem=f"it cannot be read: {error.strerror}")
    head = _head(line) if first == _first(kind) else None
    if head is None:
        return evolve(bare, problem="it is not an entry of this format")
    return evolve(
        bare,
        kernels=tuple(head["kernels"]),
        about=head["about"],
        arch=head["arch"],
        toolchain=tuple(head["toolchain"]),
        created=head["created"],
        seconds=head["seconds"],
    )


def _head(line: bytes) -> Mapping[str, Any] | None:
    try:
        head = json.loads(line)
        names, numbers = (head["kernels"], [head["about"], head["arch"]]), (head["toolchain"], [head["created"], head["seconds"]])
        texts = all(isinstance(name, str) for group in names for name in group)
        is_complete = texts and all(type(number) in (int, float) and math.isfinite(number) for group in numbers for number in group)
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return None
    return head if is_complete and all(isinstance(head[name], list) for name in ("kernels", "toolchain")) else None


def _verified(entry: Entry) -> Entry:
    if entry.problem:
        return entry
    try:
        data, key = files.bounded(entry.path), entry.path.stem
        _decoded(data, key) if entry.kind == "kernel" else disk_cache.read(entry.kind, key, data)
    except FileNotFoundError:
        return entry
    except OSError as error:
        return evolve(entry, problem=f"it cannot be read: {error.strerror}")
    except DamagedError as error:
        return evolve(entry, problem=str(error))
    return entry
