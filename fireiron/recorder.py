"""What a call launches, written down while it is made: by the thread that asks for it, for calls that are to be replayed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import attrs


@attrs.define
class Recording:
    """Launches in order, each as its plan with the addresses it was given, and the arrays that were made for them.

    `is_whole` says whether that is all that the call did: a copy by the arrays' library is not seen here.
    """

    launches: list[tuple[Any, Sequence[int]]] = attrs.field(factory=list)
    made: list[Any] = attrs.field(factory=list)
    is_whole: bool = True


class _Current(threading.local):
    recording: Recording | None = None


current = _Current()
"""`current.recording` is that of this thread, None where nothing is recorded."""


@contextlib.contextmanager
def recorded() -> Iterator[Recording]:
    """Record what this thread launches."""
    before, found = current.recording, Recording()
    current.recording = found
    try:
        yield found
    finally:
        current.recording = before


def is_more() -> None:
    """Say that a call does more than it launches."""
    if current.recording is not None:
        current.recording.is_whole = False


__all__ = ["Recording", "current", "is_more", "recorded"]
