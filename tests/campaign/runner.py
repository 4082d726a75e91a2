"""Run a subject's draws in several processes, store the state after each chunk, and continue where a run stopped."""

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import FrameType
from typing import Any

import attrs
from tqdm import tqdm

from campaign import state as states
from campaign.state import State
from campaign.subject import Outcome, Subject, found, subjects


class TookTooLong(BaseException):
    """A draw took longer than its subject allows; no `except Exception` of a draw catches it."""


def reproduce(subject: str, seed: int) -> str:
    """The command that draws a seed again."""
    return f"PYTHONPATH=.:tests python -m campaign {subject} --seed {seed}"


def outcome_of(subject: Subject, seed: int) -> Outcome:
    """The outcome of a seed; an exception, or a timeout, is a finding."""
    previous = signal.signal(signal.SIGALRM, _interrupted)
    signal.setitimer(signal.ITIMER_REAL, subject.seconds)
    try:
        return subject.draw(seed)
    except TookTooLong:
        return found(f"still not done after {subject.seconds:g} seconds\n{traceback.format_exc()}")
    except Exception:
        return found(traceback.format_exc())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def outcomes_of(subject: Subject, seeds: range, note: Path | None = None) -> list[Outcome]:
    """The outcomes of several seeds, together if the subject supports it; one by one if that fails. `note` reports the seed in progress."""
    if subject.draw_together is not None:
        try:
            return subject.draw_together(seeds)
        except Exception:
            pass  # a failure is found, and named, one by one
    return [outcome_of(subject, seed) for seed in _noted(seeds, note)]


def _noted(seeds: range, note: Path | None) -> Iterator[int]:
    """The seeds, each written to a file while it is in progress: a process that dies leaves it there."""
    for seed in seeds:
        if note is not None:
            note.write_text(str(seed), encoding="utf-8")
        yield seed
    if note is not None:
        note.unlink()


@attrs.define
class Run:
    """One run of a subject until it reaches its number, its time ends, or it is interrupted."""

    subject: Subject
    wanted: int
    jobs: int = 1
    seconds: float = float("inf")
    folder: Path = states.FOLDER
    quiet: bool = False
    published: Path | None = None
    """The state from which the subject continues, if the folder has none."""
    begin: int | None = None
    """The first seed of a part that runs separately and is merged later."""

    def go(self) -> State:
        """Run, store the state after each chunk, and return it. Control-C keeps all complete chunks."""
        with states.alone(self.subject.name, self.folder):
            first = self.subject.first if self.begin is None else self.begin
            state = states.load(self.subject.name, first, self.folder, self.published if self.begin is None else None)
            with tqdm(
                total=self.wanted, initial=self._amount(state), desc=self.subject.name, disable=self.quiet, dynamic_ncols=True
            ) as bar:
                try:
                    self._chunks(state, bar)
                except KeyboardInterrupt:
                    bar.write(f"{self.subject.name}: stopped; the same command goes on from seed {state.next}")
        return state

    def _amount(self, state: State) -> int:
        return state.amount(self.subject.counted)

    def _chunks(self, state: State, bar: "tqdm[None]") -> None:
        waiting, until, seeds = {}, time.monotonic() + self.seconds, self._seeds(state)
        with ProcessPoolExecutor(self.jobs, mp_context=multiprocessing.get_context("forkserver")) as pool:
            try:
                while True:
                    while len(waiting) < self.jobs and self._amount(state) < self.wanted and time.monotonic() < until:
                        if (chunk := next(seeds, None)) is None:
                            break
                        waiting[pool.submit(_worked, self.subject.name, chunk, self._note(chunk))] = chunk
                    if not waiting:
                        return
                    for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                        self._take(state, waiting, future, bar)
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _seeds(self, state: State) -> Iterator[range]:
        """The unfinished chunks of seeds, first those that an earlier run left out."""
        for gap in state.missing():
            yield from _chunked(gap, self.subject.chunk)
        start, stop = state.end(), self.subject.last
        while stop is None or start < stop:
            chunk = range(start, start + self.subject.chunk if stop is None else min(stop, start + self.subject.chunk))
            yield chunk
            start = chunk.stop

    def _note(self, chunk: range) -> Path:
        """The file in which a process writes the seed in progress."""
        return self.folder / f"{self.subject.name}.{chunk.start}.seed"

    def _take(
        self, state: State, waiting: dict[Future[Any], range], future: Future[tuple[list[Outcome], float]], bar: "tqdm[None]"
    ) -> None:
        chunk = waiting.pop(future)
        try:
            outcomes, seconds = future.result()
        except BrokenProcessPool:
            raise SystemExit(self._died([chunk, *waiting.values()])) from None
        before = len(state.findings)
        state.add(chunk, outcomes, seconds)
        states.save(state, self.folder)
        bar.n = self._amount(state)
        bar.set_postfix_str(", ".join(f"{number} {verdict}" for verdict, number in state.verdicts.items()))
        for finding in state.findings[before:]:
            bar.write(
                f"{self.subject.name}: found, seed {finding['seed']}\n{finding['story']}\n  again: {reproduce(self.subject.name, int(str(finding['seed'])))}"
            )

    def _died(self, chunks: list[range]) -> str:
        """The seeds in progress, in any process, when one died."""
        unfinished = []
        for note in map(self._note, chunks):
            if note.is_file():
                unfinished += [int(note.read_text(encoding="utf-8") or 0)]
                note.unlink()
        again = "".join(
            f"\n  {reproduce(self.subject.name, seed)}" for seed in sorted(unfinished) or [min(chunk.start for chunk in chunks)]
        )
        return f"{self.subject.name}: a process died (killed, out of memory, or a crash), by one of these; all complete chunks are kept:{again}"


def _chunked(seeds: range, size: int) -> Iterator[range]:
    for start in range(seeds.start, seeds.stop, size):
        yield range(start, min(start + size, seeds.stop))


def _worked(name: str, chunk: range, note: Path) -> tuple[list[Outcome], float]:
    """In a process of the pool: the outcomes of a chunk, and the processor time of this process and its children."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    before = _processor_seconds()
    outcomes = outcomes_of(subjects()[name], chunk, note)
    return outcomes, _processor_seconds() - before


def _processor_seconds() -> float:
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def _interrupted(number: int, frame: FrameType | None) -> None:
    raise TookTooLong
