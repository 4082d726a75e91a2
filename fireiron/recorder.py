"""Record the launches of a call in this thread, for a later replay."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs


@attrs.define
class Recording:
    """The launches in order, each as its plan with its addresses, and the arrays that were allocated for them.

    `is_whole` is False if the call did other work, such as a copy by the library of the arrays, which is not recorded.
    """

    launches: list[tuple[Any, Sequence[int]]] = attrs.field(factory=list)
    allocated: list[Any] = attrs.field(factory=list)
    is_whole: bool = True


class _Current(threading.local):
    recording: Recording | None = None


current = _Current()
"""`current.recording` is the recording of this thread, or None."""


@contextlib.contextmanager
def recorded() -> Iterator[Recording]:
    """Record the launches of this thread."""
    before, recording = current.recording, Recording()
    current.recording = recording
    try:
        yield recording
    finally:
        current.recording = before


def note_other_work() -> None:
    """Mark the recording as incomplete, because the call does other work than launches."""
    if current.recording is not None:
        current.recording.is_whole = False


def note_allocated(arrays: Iterable[Any]) -> None:
    """Note that a call allocates arrays, so that its replay does, too, if a launch uses them."""
    if current.recording is not None:
        current.recording.allocated.extend(arrays)


__all__ = ["Recording", "current", "note_allocated", "note_other_work", "recorded"]
