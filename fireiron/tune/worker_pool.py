"""A pool of processes for jobs that may crash or hang. Such a job only ends its process.

The pool uses one thread and no locks: `give` passes a job to an idle process, and `outcomes` waits for the next events. A process that
ends or exceeds its time limit is killed and replaced. Only its job fails.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Hashable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Final, cast

from fireiron.errors import LaunchError
from fireiron.frozen import frozen

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

START_SECONDS: Final = 120.0
"""Time limit in seconds for the start of a process: Python and its modules, possibly over a network file system."""

POLL_SECONDS: Final = 0.2
"""Seconds between two checks that a starting process has not ended."""

ENDING_SECONDS: Final = 5.0
"""Seconds after which a process that closed its connection is killed."""

MEASURE: Final = "measure"
"""The role of processes that measure."""

MOST_STARTS: Final = 3
"""Maximum number of consecutive failed starts of a process."""


@frozen
class Outcome:
    """The outcome of a job. `kind` is "done", "refused" or "failed" (see `child`), "died" or "late". `value` is the value or the reason."""

    key: Hashable
    kind: str
    value: Any
    place: int = 0


def command(call: str) -> list[str]:
    """Return the command that starts a child by a call of its module `child`: a Python with the same module path."""
    program = f"import sys; sys.path[:] = {sys.path!r}; from fireiron.tune import child; child.{call}"
    return [sys.executable, "-c", program]


INHERITS: Final = os.name == "posix"
"""Whether a process can inherit chosen descriptors."""


def started(output: IO[bytes]) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start a child that prints to a file. Return it, and the connection on which it answers."""
    if not INHERITS:
        return _started_by_port(output)
    from multiprocessing import Pipe

    connection, other = Pipe()
    with other:
        call, descriptor = f"main({other.fileno()})", other.fileno()
        process = subprocess.Popen(command(call), pass_fds=[descriptor], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    return process, connection


def _started_by_port(output: IO[bytes]) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start a child that connects to a port of this machine. Only a process that knows the key is accepted."""
    import secrets
    import socket
    from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

    from fireiron.tune.child import KEY_BYTES

    key = secrets.token_bytes(KEY_BYTES)
    with socket.create_server(("127.0.0.1", 0)) as server:
        call = f"main_at({server.getsockname()[1]})"
        process = subprocess.Popen(command(call), stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT)
        assert process.stdin is not None
        with process.stdin:
            process.stdin.write(key)
        server.settimeout(POLL_SECONDS)
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                accepted, _ = server.accept()
                break
            except TimeoutError:
                if process.poll() is not None or time.monotonic() > end:
                    raise LaunchError("a process of the tuning does not start", got=_ending(process.poll())) from None
    accepted.setblocking(True)
    connection = Connection(accepted.detach())
    deliver_challenge(connection, key)
    answer_challenge(connection, key)
    return process, connection


class Process:
    """A child process: starting, idle, busy with a job, or ended."""

    def __init__(self, payload: bytes, device: str | None, measures: bool, place: int) -> None:
        self.setup = (payload, device, measures)
        self.place = place
        self.ready = False
        self.where: Any = None
        self.key: Hashable | None = None
        self.deadline = time.monotonic() + START_SECONDS
        self._start()

    def _start(self) -> None:
        self.output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end
        self.process, self.connection = started(self.output)
        self.send(self.setup)

    def send(self, message: Any) -> None:
        """Send a message; the end of the process is detected when it is read from."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send_bytes(pickle.dumps(message))

    def receive(self) -> Any:
        """Return the next message; None if the process has ended."""
        try:
            return pickle.loads(self.connection.recv_bytes())
        except (EOFError, ConnectionResetError, pickle.UnpicklingError):
            return None

    @property
    def idle(self) -> bool:
        """Whether it waits for a job."""
        return self.ready and self.key is None

    def end(self, grace: float = 0.0) -> str:
        """Kill the process after a grace period in seconds. Return how it ended, and its last line of output."""
        self.connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(grace)
        code = self.process.poll()
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a process that hangs in the driver ends when the driver returns
            self.process.wait(30)
        self.output.seek(0, 2)
        self.output.seek(max(0, self.output.tell() - 4096))
        lines = self.output.read().decode(errors="replace").strip().splitlines()
        self.output.close()
        return _ending(code) + (f": {lines[-1].strip()[:300]}" if lines else "")


def _ending(code: int | None) -> str:
    if code is None:
        return "its process was stopped"
    if code < 0:
        return f"its process ended by {signal.Signals(-code).name if -code in set(signal.Signals) else -code}"
    return f"its process ended with status {code}"


class WorkerPool:
    """Processes by role. `roles` has the devices for the processes of each role; None means the default devices.

    Processes with the role "measure" start the measurement before they are ready. `renews` is whether processes that end are replaced.
    """

    def __init__(self, payload: bytes, roles: Mapping[str, Sequence[str | None]], renews: bool = True) -> None:
        self.payload = payload
        self.renews = renews
        self.roles: dict[str, list[Process]] = {}
        self.failed_starts: dict[tuple[str, int], int] = {}
        for role, devices in roles.items():
            self.roles[role] = [Process(payload, device, role == MEASURE, place) for place, device in enumerate(devices)]

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        for role in list(self.roles):
            self.dismiss(role)

    def dismiss(self, role: str) -> None:
        """End the processes of a role."""
        for process in self.roles.pop(role, []):
            process.end()

    def idle(self, role: str) -> int:
        """Return the number of idle processes of a role."""
        return sum(process.idle for process in self.roles.get(role, []))

    def where(self) -> list[dict[str, Any]]:
        """Return the places of the measuring processes; wait until all are ready."""
        while not all(process.ready for process in self.roles[MEASURE]):
            self.outcomes(START_SECONDS)
        return [process.where for process in self.roles[MEASURE]]

    def give(self, role: str, key: Hashable, verb: str, arguments: tuple[Any, ...], seconds: float) -> None:
        """Give an idle process of a role a job with a time limit; its outcome has the key."""
        process = next(process for process in self.roles[role] if process.idle)
        process.key, process.deadline = key, time.monotonic() + seconds
        process.send((verb, arguments))

    def outcomes(self, seconds: float) -> list[Outcome]:
        """Return the outcomes of jobs, after waiting at most `seconds` for the first.

        Raises: LaunchError if a process repeatedly ends before it is ready.
        """
        from multiprocessing.connection import wait

        waiting = {process.connection: (role, process) for role, group in self.roles.items() for process in group if not process.idle}
        until = min([time.monotonic() + seconds, *(process.deadline for _, process in waiting.values())])
        outcomes: list[Outcome] = []
        for connection in wait(list(waiting), max(0.0, until - time.monotonic())):
            outcomes += self._received(*waiting.pop(cast(Any, connection)))
        for role, process in waiting.values():
            if time.monotonic() >= process.deadline:
                outcomes += self._lost(role, process, "late", process.end())
        return outcomes

    def _received(self, role: str, process: Process) -> list[Outcome]:
        message = process.receive()
        if message is None or message[0] == "broken":
            reason = process.end(ENDING_SECONDS)
            return self._lost(role, process, "died", reason if message is None else message[1])
        kind, value = message
        if kind == "ready":
            process.ready, process.where = True, value
            return []
        outcome = Outcome(process.key, kind, value, process.place)
        process.key = None
        self.failed_starts.pop((role, process.place), None)
        return [outcome]

    def replace(self, role: str, place: int) -> None:
        """Replace a process whose state is not trusted."""
        old = self.roles[role][place]
        old.end()
        self.roles[role][place] = Process(self.payload, old.setup[1], role == MEASURE, place)

    def _lost(self, role: str, process: Process, kind: str, reason: str) -> list[Outcome]:
        """Replace a process that has ended."""
        if not process.ready:
            times = self.failed_starts[role, process.place] = self.failed_starts.get((role, process.place), 0) + 1
            if times >= MOST_STARTS:
                self.roles[role].remove(process)
                late = "" if kind == "died" else f"not ready after {START_SECONDS:.0f} s; "
                raise LaunchError(f"a process with the role {role!r} does not start: {late}{reason}")
        if self.renews or not process.ready:
            self.roles[role][process.place] = Process(self.payload, process.setup[1], role == MEASURE, process.place)
        else:
            self.roles[role].remove(process)
        return [] if process.key is None else [Outcome(process.key, kind, reason, process.place)]
