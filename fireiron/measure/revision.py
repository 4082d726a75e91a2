"""Identify the measured code by its content: by the commit if the files match it, else by the names of git trees.

Git names a folder by its content (Git Book, "Git Internals - Git Objects"). Thus a copy of the files without history has the same name,
which `git rev-parse COMMIT:fireiron` prints for the right commit.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from fireiron.package_paths import PACKAGE, library_folder

UNTRACKED = ("__pycache__", ".pyc", ".pyo")
"""Name endings that are not source files."""


def revision() -> str:
    """Return the 40-digit commit of the package and the strategy library.

    If the newest commit of their repository does not have exactly these files, return the tree names of both folders instead:
    `fireiron 0123456789ab strategies 0123456789ab`.
    """
    folders = {"fireiron": PACKAGE, "strategies": library_folder()}
    trees = {name: tree_name(folder) for name, folder in folders.items()}
    root = PACKAGE.parent
    commit, *known = (_git_answer(root, object_name) for object_name in ("HEAD", *(f"HEAD:{name}" for name in folders)))
    if commit and known == list(trees.values()):
        return commit
    return " ".join(f"{name} {tree[:12]}" for name, tree in trees.items())


def tree_name(folder: Path) -> str:
    """Return the 40-digit name that git gives to a folder with these files, without Python's compiled files."""
    return _tree(folder).hex()


def _tree(folder: Path) -> bytes:
    entries = sorted(_entries(folder), key=lambda entry: entry[1] + b"/" if entry[0] == b"40000" else entry[1])
    return _object(b"tree", b"".join(mode + b" " + name + b"\0" + content for mode, name, content in entries))


def _entries(folder: Path) -> Iterator[tuple[bytes, bytes, bytes]]:
    for path in folder.iterdir():
        name = os.fsencode(path.name)
        if path.name.endswith(UNTRACKED):
            continue
        if path.is_symlink():
            yield b"120000", name, _object(b"blob", os.fsencode(os.readlink(path)))
        elif path.is_dir():
            if any(True for _ in _entries(path)):  # git does not store empty folders
                yield b"40000", name, _tree(path)
        else:
            yield b"100755" if os.access(path, os.X_OK) else b"100644", name, _object(b"blob", path.read_bytes())


def _object(kind: bytes, content: bytes) -> bytes:
    return hashlib.sha1(kind + b" %d\0" % len(content) + content, usedforsecurity=False).digest()


def _git_answer(root: Path, object_name: str) -> str:
    """Return the output of `git rev-parse` in the repository at a folder. It is empty if there is no repository or no such object."""
    if not (root / ".git").exists():
        return ""
    try:
        command = ["git", "-C", str(root), "rev-parse", "--verify", "--quiet", object_name]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
