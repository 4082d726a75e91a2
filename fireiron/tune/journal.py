"""The journal of a tuning: one JSON object per line, flushed to disk, so that no measurement is lost.

The first line describes the task. The other lines have a kind: `legal` (a candidate for which code can be generated, with its prediction),
`result` (a `Result`) or `final` (the joint measurement of the finalists). If the process was killed, the incomplete last line is removed. A
journal of another task is rejected.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fireiron import files
from fireiron.errors import FireironError, StoreError
from fireiron.tune.result import Result
from fireiron.tune.task import Surveyed, Task

FORMAT: Final = 1
"""Version of the format. Other versions are rejected."""

DESCRIBING: Final = ("kind", "search", "seed", "trials", "prune", "date", "code", "strategy")
"""Fields of the first line that do not identify the task: results are valid for any search, and the hash identifies the strategy."""


class Journal:
    """An open journal.

    `results` and `surveyed` have the candidates by the index of the combination. `final` is the last final measurement. `notes` report the
    lines that were removed while reading.
    """

    def __init__(self, path: Path, task: Task, head: Mapping[str, Any], restart: bool = False) -> None:
        self.path = path
        self.task = task
        self.space = task.space
        self.results: dict[int, Result] = {}
        self.surveyed: dict[int, Surveyed] = {}
        self.final: dict[str, Any] | None = None
        self.notes: list[str] = []
        self.lock: Path | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.file = open(path, "a+b")  # noqa: SIM115 - closed by close
        except files.NEVER_WRITTEN as error:
            raise self._unwritten(error) from None
        try:
            files.require_regular(path, self.file.fileno())
            self._lock()
            if restart:
                self.file.truncate(0)
            self._read({"format": FORMAT, **head})
        except FireironError:
            self.close()
            raise

    def close(self) -> None:
        """Close the file, which releases its lock."""
        self.file.close()
        if self.lock is not None:
            self.lock.unlink(missing_ok=True)

    def _unwritten(self, error: Exception) -> StoreError:
        why = getattr(error, "strerror", None) or error
        return StoreError(f"{self.path}: the journal cannot be written: {why}", hint="free space on the disk, or use another --journal")

    def _lock(self) -> None:
        hint = "wait for it, or use another --journal"
        try:
            import fcntl
        except ImportError:  # a system that cannot lock files
            lock = self.path.with_name(f"{self.path.name}.lock")
            try:
                os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            except FileExistsError:
                hint += f"; if no tuning is running, delete {lock}"
                raise StoreError(f"{self.path}: another tuning is writing this journal", hint=hint) from None
            self.lock = lock
            return
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released by the system when the process ends, however it ends
        except OSError:
            raise StoreError(f"{self.path}: another tuning is writing this journal", hint=hint) from None

    # ------------------------------------------------------------------------------------------ reading

    def _read(self, head: Mapping[str, Any]) -> None:
        self.file.seek(0)
        text = self.file.read()
        whole = text[: text.rfind(b"\n") + 1]
        lines = whole.splitlines()
        if len(whole) < len(text):
            if not text.startswith(b"{", len(whole)):
                raise self._bad(len(lines) + 1, "it is neither a JSON object nor the beginning of one")
            self._drop_tail(len(whole), len(lines) + 1)
        if not lines:
            self._append({"kind": "task", **head}, sync=True)
            return
        for number, line in enumerate(lines, 1):
            plain = self._parsed(line, number)
            if number == 1:
                self._check_head(plain, {"kind": "task", **head})
            else:
                self._take(plain, number)

    def _drop_tail(self, length: int, number: int) -> None:
        self.notes.append(f"{self.path}: line {number} is incomplete, because its writer was killed, and is removed")
        self.file.truncate(length)

    def _parsed(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            plain = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self._bad(number, f"it is not JSON: {error}") from None
        if not isinstance(plain, dict):
            raise self._bad(number, "it is not a JSON object")
        return plain

    def _bad(self, number: int, what: str) -> StoreError:
        return StoreError(f"{self.path}: line {number} of the journal: {what}", hint="correct it, or start over with --restart")

    def _check_head(self, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
        if stored.get("kind") != "task":
            raise self._bad(1, "it does not describe a task")
        names = [name for name in dict.fromkeys((*wanted, *stored)) if name not in DESCRIBING and stored.get(name) != wanted.get(name)]
        if names:
            name = names[0]
            raise StoreError(
                f"{self.path} is the journal of another task: its {name} is {stored.get(name)}, here it is {wanted.get(name)}",
                hint="use another --journal, or start over with --restart",
            )
        if stored.get("code") != wanted.get("code"):
            self.notes.append(f"{self.path}: it was begun by another version of the source code; only the results of finalists are checked")

    def _take(self, plain: Mapping[str, Any], number: int) -> None:
        kind = plain.get("kind")
        if kind == "final":
            self.final = dict(plain)
            return
        if kind not in ("legal", "result"):
            raise self._bad(number, f"the kind {kind!r} is unknown")
        try:
            self.task.whole.number(plain["values"])
            if any(plain["values"][name] != value for name, value in self.task.fixed.items()):
                return  # measured when this value was not fixed
            place = self.space.number(plain["values"])
            if kind == "legal":
                self.surveyed[place] = Surveyed.of(plain)
            else:
                self.results[place] = Result.of(plain)
        except (KeyError, TypeError, ValueError, FireironError) as error:
            raise self._bad(number, str(error)) from None

    # ------------------------------------------------------------------------------------------ writing

    def add_surveyed(self, number: int, surveyed: Surveyed) -> None:
        """Add a legal candidate. It can be computed again, so the line is not flushed to disk."""
        self.surveyed[number] = surveyed
        self._append({"kind": "legal", "values": self.space[number], **surveyed.plain()}, sync=False)

    def add(self, number: int, result: Result) -> None:
        """Add a result, and flush it to disk before returning."""
        if self.results.get(number) != result:
            self.results[number] = result
            self._append({"kind": "result", **result.plain()}, sync=result.status not in ("illegal", "pruned"))

    def add_final(self, final: Mapping[str, Any]) -> None:
        """Add a measurement of the finalists."""
        self.final = {"kind": "final", **final}
        self._append(self.final, sync=True)

    def _append(self, plain: Mapping[str, Any], sync: bool) -> None:
        line = json.dumps(plain, allow_nan=False).encode() + b"\n"
        try:
            files.append(self.file.fileno(), line, sync=sync)
        except OSError as error:
            raise self._unwritten(error) from None
