"""Processes of the tuner, forked from one that has imported everything: a fresh Python process takes most of a second.

They behave the same; environment, working directory and standard output are passed to them.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from multiprocessing.reduction import DupFd
from typing import IO, Any

CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload(["fireiron.tune.child", "fireiron.tune.task", "tuning_fakes"])


class Handed:
    """A descriptor that a process gets when it starts, as a `DupFd`."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (DupFd(self.descriptor),)


def _itself(handed: Any) -> Any:
    return handed


def _serve(answers: Any, stdout: Any, environment: Mapping[str, str], folder: str, path: list[str]) -> None:
    os.chdir(folder)
    sys.path[:] = path
    os.environ.clear()
    os.environ.update(environment)
    printed = stdout.detach()
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    from fireiron.tune.child import main

    main(answers.detach())


def forked(output: IO[bytes]) -> tuple["Forked", Connection]:
    """Start a process as `started` of the worker pool does."""
    connection, other = Pipe()
    with other:
        return Forked(other.fileno(), output), connection


class Forked:
    """The part of `subprocess.Popen` that the worker pool uses."""

    def __init__(self, descriptor: int, stdout: IO[bytes]) -> None:
        handed = Handed(descriptor), Handed(stdout.fileno())
        self._child = CONTEXT.Process(target=_serve, args=(*handed, dict(os.environ), os.getcwd(), sys.path), daemon=True)
        self._child.start()
        self.pid = self._child.pid

    def wait(self, seconds: float) -> int:
        self._child.join(seconds)
        if self._child.exitcode is None:
            raise subprocess.TimeoutExpired("forked", seconds)
        return self._child.exitcode

    def poll(self) -> int | None:
        return self._child.exitcode

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._child.kill()
