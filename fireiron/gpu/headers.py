"""Find the headers that a source text includes, and their digests. The result does not depend on the folders of the headers.

The cache on disk stores the digests and includes of a CUDA release's headers, with sizes and times. Without it, reading two dozen headers
would take longer than all other steps before a process loads a cached kernel.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from fireiron import disk_cache, settings

KIND: Final = "headers"
"""The kind of the cache entries for headers, and their file suffix."""

Names = tuple[tuple[str, bool], ...]
"""Included names, each with whether it is in quotes."""

_INCLUDE = re.compile(r'^[ \t]*(?:#|%:)[ \t]*include\b[ \t]*(?:"(?P<near>[^"\n]+)"|<(?P<far>[^>\n]+)>|(?P<other>.*))', re.MULTILINE)
_OTHER_DIRECTIVE = re.compile(r"^[ \t]*(?:#|%:)[ \t]*(?:include_next|import|embed)\b|\b__has_(?:include|embed)", re.MULTILINE)
"""Other directives that access files; they are not followed."""
_CONTINUED = re.compile(r"\\[ \t]*\n")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_WORDS = ("include", "import", "embed")
"""Each line that accesses files contains one of these words."""


def included(source: str, folders: Sequence[Path], release: Sequence[Path] = ()) -> tuple[tuple[str, str], ...] | None:
    """Return `(name, digest of its content)` of every header that a text can reach through `#include`, in search order.

    Preprocessor conditions are not evaluated, and a name is looked up in every folder. So the list may contain more headers than
    the compiler opens, never fewer. Names of missing files are listed with an empty digest, because the file may appear later.

    Args:
        source: the text.
        folders: the folders to search, in order.
        release: those of them that belong to one CUDA release; only its headers may include a name from a macro.

    Returns:
        The headers; None if the text or another header includes a name from a macro, or a header cannot be read.
    """
    digests: dict[tuple[str, str], None] = {}
    seen: set[Path] = set()
    known = _known(os.fspath(settings.cache_folder()), tuple(map(os.fspath, release))) if release and settings.cache_enabled() else None
    waiting = [(_names(source), Path.cwd(), False)]
    while waiting:
        names, here, trusted = waiting.pop()
        for name, near in names:
            if not name:
                if not trusted:
                    return None
                continue
            paths = [folder / name for folder in ([here] if near else []) + [*folders, Path.cwd()]]
            existing = [path for path in dict.fromkeys(paths) if _is_file(path)]
            if not existing:
                digests[name, ""] = None
            for path in existing:
                if path in seen:
                    continue
                seen.add(path)
                of_release = any(path.is_relative_to(folder) for folder in release)
                try:
                    status = path.stat()
                    read = _read if known is None or not of_release else known.read
                    digest, inner = read(os.fspath(path), status.st_mtime_ns, status.st_size)
                except OSError:
                    return None
                digests[name, digest] = None
                waiting.append((inner, path.parent, of_release))
    if known is not None:
        known.save()
    return tuple(digests)


def stored(release: Sequence[Path]) -> bool:
    """Return whether the headers of a release are known from the cache on disk or from this process."""
    return bool(_known(os.fspath(settings.cache_folder()), tuple(map(os.fspath, release))).headers)


@attrs.define
class _Known:
    """The headers of a release, by path: time, size, digest, and included names.

    `is_new` means that some headers are not stored on disk yet. Without a `key`, nothing is stored on disk.
    """

    place: Path
    key: str | None
    headers: dict[str, tuple[int, int, str, Names]]
    is_new: bool = False

    def read(self, path: str, changed: int, size: int) -> tuple[str, Names]:
        """Return the result of `_read`, but read a header with this time and size only once."""
        known = self.headers.get(path)
        if known is None or known[:2] != (changed, size):
            self.headers[path] = known = (changed, size, *_read(path, changed, size))
            self.is_new = True
        return known[2:]

    def save(self) -> None:
        """Store new headers. If the disk is full or read-only, the next process reads them again."""
        if not self.is_new or self.key is None:
            return
        self.is_new = False
        about: dict[str, Any] = {"kernels": [], "about": "digests and includes of headers", "arch": "", "toolchain": [], "seconds": 0.0}
        headers = sorted(self.headers.copy().items())  # another thread may add one meanwhile
        data = disk_cache.written(KIND, self.key, tuple((path, *rest) for path, rest in headers), about)
        if data is not None:
            with contextlib.suppress(OSError):
                disk_cache.save(self.place, data)


@functools.lru_cache(maxsize=16)
def _known(cache: str, release: tuple[str, ...]) -> _Known:
    """Return the stored headers of some folders."""
    key = disk_cache.key_of(KIND, release)
    place = disk_cache.place(Path(cache), KIND, key or "")
    data = None if key is None else disk_cache.bytes_at(place)
    headers: dict[str, tuple[int, int, str, Names]] = {}
    if key is not None and data is not None:
        with contextlib.suppress(disk_cache.DamagedError, TypeError, ValueError):  # then it is written again
            headers = {path: (changed, size, digest, names) for path, changed, size, digest, names in disk_cache.read(KIND, key, data)[0]}
    return _Known(place, key, headers)


def _is_file(path: Path) -> bool:
    """Return whether a compiler can find the file. It cannot if the name is too long or the folder cannot be read."""
    try:
        return path.is_file()
    except OSError:
        return False


@functools.lru_cache(maxsize=4096)
def _read(path: str, _changed: int, _size: int) -> tuple[str, Names]:
    """Return the digest of a file and the names it includes; a changed file is read again."""
    data = Path(path).read_bytes()
    return hashlib.sha256(data).hexdigest(), _names(data.decode(errors="replace"))


def _names(text: str) -> Names:
    """Return `(name, whether in quotes)` of each `#include`. The name is empty for a macro, and for other directives that access files.

    A directive may continue over lines and contain comments. An apparent comment may be part of a string, so both readings count.
    """
    text = text.replace("\r\n", "\n")
    joined = _CONTINUED.sub("", text)
    readings = dict.fromkeys((text, joined, _COMMENT.sub(" ", joined)))
    candidate_lines = [_candidate_lines(reading) for reading in readings]
    matches = [match for reading in candidate_lines for match in _INCLUDE.finditer(reading)]
    names = [(match["near"] or match["far"] or "", match["near"] is not None) for match in matches]
    other_directives = [("", False)] if any(map(_OTHER_DIRECTIVE.search, candidate_lines)) else []
    return tuple(dict.fromkeys(names + other_directives))


def _candidate_lines(text: str) -> str:
    """Return the few lines that contain one of `_WORDS`, in order, without a loop over all lines."""
    lines = set()
    for word in _WORDS:
        at = text.find(word)
        while at >= 0:
            end = text.find("\n", at)
            end = len(text) if end < 0 else end
            lines.add((text.rfind("\n", 0, at) + 1, end))
            at = text.find(word, end)
    return "\n".join(text[begin:end] for begin, end in sorted(lines))
