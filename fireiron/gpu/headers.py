"""What a source text includes, by content: two machines with the same headers in other folders agree."""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

_INCLUDE = re.compile(r'^[ \t]*(?:#|%:)[ \t]*include\b[ \t]*(?:"(?P<near>[^"\n]+)"|<(?P<far>[^>\n]+)>|(?P<other>.*))', re.MULTILINE)
_OTHERWISE = re.compile(r"^[ \t]*(?:#|%:)[ \t]*(?:include_next|import|embed)\b|\b__has_(?:include|embed)", re.MULTILINE)
"""Other ways to look at files, which are not followed."""
_CONTINUED = re.compile(r"\\[ \t]*\n")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


def included(source: str, folders: Sequence[Path], release: Sequence[Path] = ()) -> tuple[tuple[str, str], ...] | None:
    """`(name, digest of its content)` of every header that a text can reach through `#include`, in the order of their finding.

    Conditions of the preprocessor are not evaluated, and a name counts in every folder that has it, so more may be listed than
    a compiler opens, never less. A name that no folder has is listed too, with an empty digest: the file may appear one day.

    Args:
        source: the text.
        folders: where headers are searched, in order.
        release: those of them that belong to one CUDA release, whose headers may include what a macro names.

    Returns:
        The headers; None where the text or a header includes what a macro names, or a header cannot be read.
    """
    found: dict[tuple[str, str], None] = {}
    seen: set[Path] = set()
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
                found[name, ""] = None
            for path in existing:
                if path in seen:
                    continue
                seen.add(path)
                try:
                    status = path.stat()
                    digest, inner = _read(os.fspath(path), status.st_mtime_ns, status.st_size)
                except OSError:
                    return None
                found[name, digest] = None
                waiting.append((inner, path.parent, any(path.is_relative_to(folder) for folder in release)))
    return tuple(found)


def _is_file(path: Path) -> bool:
    """Whether a compiler can find a file there; none has a name that is too long, or lies in a folder that is shut."""
    try:
        return path.is_file()
    except OSError:
        return False


@functools.lru_cache(maxsize=4096)
def _read(path: str, _changed: int, _size: int) -> tuple[str, tuple[tuple[str, bool], ...]]:
    """The digest of a file and the names it includes; read again when it has changed."""
    data = Path(path).read_bytes()
    return hashlib.sha256(data).hexdigest(), _names(data.decode(errors="replace"))


def _names(text: str) -> tuple[tuple[str, bool], ...]:
    """`(name, whether in quotes)` of each inclusion; an empty name for one that a macro spells, and for other ways to look at files.

    A directive may be spread over lines and hold comments; what looks like a comment may be part of a string, so both readings count.
    """
    text = text.replace("\r\n", "\n")
    joined = _CONTINUED.sub("", text)
    readings = dict.fromkeys((text, joined, _COMMENT.sub(" ", joined)))
    matches = [match for reading in readings for match in _INCLUDE.finditer(reading)]
    found = [(match["near"] or match["far"] or "", match["near"] is not None) for match in matches]
    odd = [("", False)] if any(map(_OTHERWISE.search, readings)) else []
    return tuple(dict.fromkeys(found + odd))
