"""The process that executes one job at a time for `worker_pool.WorkerPool`: `python -c "...; main(descriptor)"`.

If it crashes, hangs or is killed, only its job is lost. It is a new Python process, neither a fork nor a child of `multiprocessing`: CUDA
does not work after a fork, a daemonic worker (Dask) must not have children of `multiprocessing`, and the user's program may not be
importable a second time. Messages are pickles in a socket pair. The first message is the set-up; each later message has one answer.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
import threading
import time
from multiprocessing.connection import Client, Connection
from typing import Any

import attrs

from fireiron.errors import ArgumentError, FireironError
from fireiron.tune.measure import Measured, Together
from fireiron.tune.task import Built, Candidate, Surveyed, Task, build, survey, why

PARENT_SECONDS = 1.0
"""Seconds between two checks that the parent is alive."""

KEY_BYTES = 32
"""Length of the key with which both sides of a connection by a port identify themselves."""

YOUNG = 50_000
"""Number of allocations minus deallocations that starts the search for reference cycles. Trees and programs have no cycles, and by default
the search would take a tenth of the time of lowering a candidate.
"""


def main(descriptor: int) -> None:
    """Answer messages on an inherited descriptor until the other side closes the connection."""
    answer_on(Connection(descriptor))


def main_at(port: int) -> None:
    """Answer messages on a connection to a port of this machine, where descriptors are not inherited; standard input has the key."""
    answer_on(Client(("127.0.0.1", port), authkey=sys.stdin.buffer.read(KEY_BYTES)))


def _write_no_core() -> None:
    """Let a crash write no core file, on systems that write them."""
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def answer_on(connection: Connection) -> None:
    """Answer messages on a connection until the other side closes it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    _write_no_core()
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    try:
        payload, device, measures = pickle.loads(connection.recv_bytes())
        if device is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = device  # before CUDA is loaded
        worker = _started(connection, payload, measures)
        gc.freeze()
        gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
        while worker is not None:
            answer = _answer(worker, *pickle.loads(connection.recv_bytes()))
            connection.send_bytes(pickle.dumps(answer))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the parent has finished, or died


def _end_with_parent(parent: int) -> None:
    """End this process if the parent was killed, even if a job hangs in the driver."""
    while os.getppid() == parent:
        time.sleep(PARENT_SECONDS)
    os._exit(1)


def _started(connection: Connection, payload: bytes, measures: bool) -> Worker | None:
    """Send `("ready", where)` and return the worker; or send `("broken", reason)` and return None."""
    try:
        task, measure = pickle.loads(payload)
        worker = Worker(task, measure.start(task) if measures else None, measure.compiles)
        answer: tuple[str, Any] = ("ready", dict(worker.gauge.where()) if measures else None)
    except FireironError as error:
        answer = ("broken", why(error))
    except Exception as error:  # classes that are not found, and any error of the user's modules and of the driver
        answer = ("broken", " ".join(f"{type(error).__name__}: {error}".split()))
    connection.send_bytes(pickle.dumps(answer))
    return worker if answer[0] == "ready" else None


def _answer(worker: Worker, verb: str, arguments: tuple[Any, ...]) -> tuple[str, Any]:
    """Return `("done", value)`, `("refused", reason)` for an error of this project, or `("failed", reason)` for any other error."""
    try:
        return "done", getattr(worker, verb)(*arguments)
    except FireironError as error:
        return "refused", (type(error).__name__, why(error))
    except Exception as error:  # the user's strategy or measurement, or the driver
        return "failed", (type(error).__name__, " ".join(f"{type(error).__name__}: {error}".split()))


class Worker:
    """Executes the jobs of a process. `gauge` is the started measurement, if the process measures."""

    def __init__(self, task: Task, gauge: Any, compiles: bool) -> None:
        self.task = task
        self.gauge = gauge
        self.compiles = compiles

    def survey(self, values: dict[str, int]) -> Surveyed:
        """Lower a candidate and predict its time."""
        return survey(self.task, values)

    def build(self, values: dict[str, int], newest: tuple[int, int] | None) -> Built:
        """Run the race check and the compiler."""
        return build(self.task, values, newest, self.compiles)

    def measure(self, values: dict[str, int], built: Built, predicted_us: float | None) -> Measured:
        """Verify and time one candidate."""
        measured: Measured = self.gauge.measure(Candidate(self.task, values, built, predicted_us))
        return measured

    def whole(self, values: dict[str, int], newest: tuple[int, int] | None, predicted_us: float | None) -> tuple[Any, Any]:
        """Build and measure in this process: return the built kernel and the outcome of `measure` as a message, or the reason and None."""
        try:
            built = self.build(values, newest)
        except FireironError as error:
            return (type(error).__name__, why(error)), None
        small = attrs.evolve(built, compiled=None)
        return small, _answer(self, "measure", (values, built, predicted_us))

    def whole_together(self, contenders: list[tuple[dict[str, int], float | None]], newest: tuple[int, int] | None) -> Any:
        """Build and time the finalists in this process."""
        return self.together([(values, self.build(values, newest), predicted_us) for values, predicted_us in contenders])

    def together(self, contenders: list[tuple[dict[str, int], Built, float | None]]) -> Together:
        """Time candidates alternately. Raises: `ArgumentError` if a user's measurement does not return one time for each candidate."""
        together: Together = self.gauge.together([Candidate(self.task, *contender) for contender in contenders])
        if len(together.measured) != len(contenders):
            raise ArgumentError(
                "together must return one measurement for each finalist", got=len(together.measured), legal=str(len(contenders))
            )
        return attrs.evolve(together, texts=tuple(built.text for _, built, _ in contenders))
