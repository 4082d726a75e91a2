"""Stored files under several writing processes that are killed at any moment: items reported as written are present, and readers continue
to work.
"""

import contextlib
import hashlib
import json
import os
import random
import signal
import struct
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import attrs
from campaign import state as states
from tuning_fakes import square, strategy

from fireiron import *
from fireiron.export import _write as export_files
from fireiron.gpu import cache
from fireiron.language import store
from fireiron.tune.journal import Journal
from fireiron.tune.record import describe, strategy_hash
from fireiron.tune.records import Records, merge_files
from fireiron.tune.result import Result
from fireiron.tune.task import Task

ITEM = struct.Struct("<II")
"""A writer, and the number of its item."""

Item = tuple[int, int]


EACH, EITHER, LAST, SOME = (
    "each item is kept",
    "each number is kept, by any writer",
    "the last one of any writer is present",
    "present items are whole",
)
"""Which of the items reported as written must be present."""


@attrs.frozen
class Kept:
    """A kind of stored file: how to write one item, and how to list them. `writers` may write at once; `lasting` states which items must be
    present.
    """

    write: Callable[[Path, int, int], None]
    items_in: Callable[[Path], set[Item]]
    writers: int = 3
    lasting: str = EACH

    def lost(self, done: set[Item], present: set[Item]) -> str | None:
        """The defect of the present items after the reported ones were written, if any."""
        if self.lasting == LAST:
            return None if len(present) == 1 or not (done or present) else f"{len(present)} items in the place of one"
        if self.lasting == SOME:
            return None
        numbers = {number for _, number in present}
        missing = done - present if self.lasting == EACH else {one for one in done if one[1] not in numbers}
        return f"lost: {sorted(missing)[:5]}" if missing else None


FIELDS = {
    "strategy": "drawn", "strategy_hash": strategy_hash(MatMul.tile(8, 8)), "spec": describe(MatMul(8, 8, 8)(GL, GL, GL)(Kernel)), "architecture": "sm_90",
    "gpu": "none", "us": 1.0, "quartiles": (1.0, 1.0), "tflops": 1.0, "regime": "burst", "l2": "hot", "error": 0.0, "registers": 1, "shared_bytes": 0, "spills": 0,
    "toolchain": "NVRTC 13.0", "driver": "1", "fireiron": "0.1", "date": "2026-11-23", "source": "drawn", "library_us": None, "clocks": None,
}  # fmt: skip


def _append(folder: Path, writer: int, number: int) -> None:
    path = folder / "records.jsonl"
    Records.append_to(path, Record(values={"writer": writer, "number": number}, **FIELDS))
    if number % 8 == 7:
        merge_files([path], path)


def _appended(folder: Path) -> set[Item]:
    path = folder / "records.jsonl"
    return {(one.values["writer"], one.values["number"]) for one in Records.load(path).records} if path.exists() else set()


def _entry(writer: int, number: int) -> tuple[str, bytes]:
    """An entry of the compile cache, by its key."""
    key = hashlib.sha256(ITEM.pack(writer, number)).hexdigest()
    parts = b".version", b"", b"\x7fELF" + ITEM.pack(writer, number) * 500
    head = {
        "key": key, "kernels": [], "about": f"{writer} {number}", "arch": "sm_80", "toolchain": [13, 0], "seconds": 0.0, "created": 1.0,
        "sizes": [len(part) for part in parts],
    }  # fmt: skip
    body = b"".join((json.dumps(head).encode(), b"\n", *parts))
    return key, b"".join((cache._FIRST, hashlib.sha256(body).hexdigest().encode(), b"\n", body))


@contextlib.contextmanager
def _cache_in(folder: Path) -> Iterator[None]:
    before, os.environ["FIREIRON_CACHE_DIR"] = os.environ.get("FIREIRON_CACHE_DIR"), str(folder)
    try:
        yield
    finally:
        os.environ.pop("FIREIRON_CACHE_DIR") if before is None else os.environ.__setitem__("FIREIRON_CACHE_DIR", before)


def _cached(folder: Path, writer: int, number: int) -> None:
    key, data = _entry(writer, number)
    with _cache_in(folder), cache._alone(cache._place(key)):
        cache._save(cache._place(key), data)


def _entries(folder: Path) -> set[Item]:
    with _cache_in(folder):
        assert cache.verify() == (), "an entry is whole, or it is none"
        return {tuple(map(int, one.about.split())) for one in cache.entries()}


def _compiled(folder: Path, writer: int, number: int) -> None:
    """As in `compile_cached`: of several processes that need a kernel, one compiles it, under a lock that ends with its owner."""
    key, data = _entry(0, number)
    with _cache_in(folder):
        place = cache._place(key)
        if cache._load(place, key) is None:
            with cache._alone(place):
                if cache._load(place, key) is None:
                    cache._save(place, data)


def _pruned(folder: Path, writer: int, number: int) -> None:
    """Entries that are removed while others are written, read and verified."""
    _cached(folder, writer, number)
    if number % 4 == writer % 4:
        with _cache_in(folder):
            cache.prune(max_bytes=20_000)


def _exported(folder: Path, writer: int, number: int) -> None:
    parts = {f"gemm{end}": f"{writer} {number}\n".encode() * 2_000 for end in (".h", ".cu")}
    export_files(folder / "exported", parts, True, ())


def _exports(folder: Path) -> set[Item]:
    texts = [one.read_text().splitlines() for one in (folder / "exported" / "gemm.h", folder / "exported" / "gemm.cu") if one.exists()]
    assert all(len(lines) == 2_000 and len({*lines}) == 1 for lines in texts), "a file is whole, or it is none"
    return {tuple(map(int, lines[0].split())) for lines in texts}


def _saved(folder: Path, writer: int, number: int) -> None:
    store.save(MatMul.tile(writer + 1, number + 1), folder / "strategy.json", overwrite=True)


def _loaded(folder: Path) -> set[Item]:
    path = folder / "strategy.json"
    if not path.exists():
        return set()
    first, second = store.load(path).steps[0].sizes
    return {(first - 1, second - 1)}


def _kept_state(folder: Path, writer: int, number: int) -> None:
    states.save(states.State("drawn", writer, number, seconds=float(number), features={"x" * 40: 1}), folder)


def _state(folder: Path) -> set[Item]:
    state = states.load("drawn", 0, folder)
    return {(state.first, state.next)} if (folder / "drawn.json").exists() else set()


def _journal(path: Path) -> Journal:
    task = Task(strategy(square), "sm_90")
    return Journal(path, task, {**task.describe(), "gpu": "fake", "measure": "fake", "code": "1", "search": "random"})


_OPEN: dict[tuple[int, Path], Journal] = {}


def _measured(folder: Path, writer: int, number: int) -> None:
    """A tuning result: each writer opens the journal once, as a tuning does."""
    journal = _OPEN.setdefault((os.getpid(), folder), None) or _journal(folder / "journal.jsonl")  # type: ignore[arg-type]
    _OPEN[os.getpid(), folder] = journal
    place = number % len(journal.space)
    journal.add(place, Result(values=journal.space[place], status="ok", us=1.0 + writer + number / 1024))


def _results(folder: Path) -> set[Item]:
    """Every line of the journal; opening it accepts all of them, or refuses."""
    path = folder / "journal.jsonl"
    if not path.exists():
        return set()
    try:
        _journal(path).close()
    except StoreError as error:
        assert "another tuning is writing" in str(error), error
    lines = path.read_bytes().split(b"\n")[:-1]
    times = [one["us"] - 1.0 for one in map(json.loads, lines) if one["kind"] == "result"]
    return {(int(us), round((us - int(us)) * 1024)) for us in times}


KEPT: Mapping[str, Kept] = {
    "records": Kept(_append, _appended),
    "cache": Kept(_cached, _entries),
    "compiled": Kept(_compiled, _entries, lasting=EITHER),
    "pruned": Kept(_pruned, _entries, lasting=SOME),
    "exports": Kept(_exported, _exports, lasting=SOME),
    "strategies": Kept(_saved, _loaded, lasting=LAST),
    "campaign": Kept(_kept_state, _state, lasting=LAST),
    "journal": Kept(_measured, _results, writers=1),
}
"""Everything that is written while other processes may read it."""

MOST = 50
"""Items per writer."""


@attrs.define
class Writer:
    """A process that writes item after item, and reports each."""

    kept: Kept
    folder: Path
    number: int
    done: set[Item] = attrs.field(factory=set)
    reader: int = -1
    process: Any = None

    def start(self) -> None:
        """Begin to write."""
        context = get_context("fork")
        self.reader, sender = os.pipe()
        self.process = context.Process(target=self._work, args=(sender,), daemon=True)
        self.process.start()
        os.close(sender)

    def _work(self, sender: int) -> None:
        warnings.simplefilter("error")
        for number in range(MOST):
            self.kept.write(self.folder, self.number, number)
            os.write(sender, ITEM.pack(self.number, number))
        time.sleep(60)

    def wait(self) -> None:
        """Wait until one item more is written."""
        data = os.read(self.reader, ITEM.size)
        assert data, f"writer {self.number} ended by itself"
        self.done.add(ITEM.unpack(data))

    def kill(self) -> None:
        """Kill it at once, and read which items it reported."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()
        rest = b""
        while data := os.read(self.reader, 65536):
            rest += data
        os.close(self.reader)
        self.done |= set(ITEM.iter_unpack(rest))


def attack(name: str, folder: Path, kills: int, choose: random.Random) -> int:
    """Kill writers while others write and this process reads; returns the number of items at the end.

    Most are killed within 10 ms after an item, some at once, at any point, even before their first one.

    Raises: AssertionError if a written item is lost, and any exception of a reader.
    """
    kept, numbers, done = KEPT[name], iter(range(1, 10**6)), set()
    running: list[Writer] = []
    try:
        for _ in range(kills):
            while len(running) < kept.writers:
                running.append(Writer(kept, folder, next(numbers)))
                running[-1].start()
            victim = choose.choice(running)
            if choose.random() < 0.8:
                victim.wait()
                kept.items_in(folder)
                time.sleep(choose.random() * 0.01)
            running.remove(victim)
            victim.kill()
            done |= victim.done
            fault = kept.lost(done, kept.items_in(folder))
            assert fault is None, fault
    finally:
        for writer in running:
            writer.kill()
            done |= writer.done
    fault = kept.lost(done, present := kept.items_in(folder))
    assert fault is None, fault
    kept.write(folder, 0, 0)  # remains of killed processes block no later writer
    return len(present)
