"""Take turns on a GPU: processes prepare kernels concurrently, and measure one at a time.

Contexts of idle processes do not slow down the one that measures. The lock is a file, so programs that run at the same time share it.
"""

import contextlib
import fcntl
import gc
import multiprocessing
import os
import queue
import sys
import tempfile
import threading
import time
from pathlib import Path

LOCK = Path(os.environ.get("FIREIRON_GPU_LOCK", Path(tempfile.gettempdir()) / "fireiron_gpu.lock"))

PREPARING = 0.6
"""Share of the time in which processes begin to prepare another task."""


@contextlib.contextmanager
def alone():
    """Wait until no other process measures, and keep others waiting."""
    with LOCK.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def headline(error):
    """Return the first line of an error."""
    return (str(error) or repr(error)).splitlines()[0][:110]


def run_all(tasks, prepare, measure, write, arguments):
    """Run tasks in `arguments.processes` processes for at most `arguments.seconds`; write the results so far, and print the table at the end.

    All tasks are prepared before the first one is measured, and one process at a time measures, so nothing else uses the GPU then.
    `prepare(task, arguments)` returns a result and a state; `measure(task, state, arguments)` returns more of the result. A state of None is
    not measured. A task is a tuple of texts, and results are plain values.
    """
    start, results = time.time(), {}
    count = min(arguments.processes, len(tasks))
    shared = multiprocessing.get_context("fork")
    place, ready, done = shared.Value("i", 0), shared.Barrier(count), shared.Queue()
    given = tasks, prepare, measure, arguments, place, ready, done, start
    workers = [shared.Process(target=_work, args=given, daemon=True) for _ in range(count)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers) and time.time() - start < arguments.seconds:
        with contextlib.suppress(queue.Empty):
            task, result = done.get(timeout=1)
            results[" ".join(task)] = result
            write(arguments.folder, results)
    with contextlib.suppress(queue.Empty):
        while True:
            task, result = done.get(timeout=0.2)
            results[" ".join(task)] = result
    for worker in workers:
        worker.kill()
    for name, result in results.items():
        if "refused" in result:
            print(name, "failed:", result["refused"], flush=True)
    missing = [" ".join(task) for task in tasks if " ".join(task) not in results]
    if missing:
        print("not finished:", *missing, flush=True)
    print(write(arguments.folder, results), flush=True)


def _work(tasks, prepare, measure, arguments, place, ready, done, start):
    """Prepare tasks until all are prepared, then measure those of this process."""
    prepared = []
    while time.time() - start < PREPARING * arguments.seconds:
        with place.get_lock():
            number = place.value
            place.value += 1
        if number >= len(tasks):
            break
        try:
            prepared.append((tasks[number], *prepare(tasks[number], arguments)))
        except Exception as error:
            done.put((tasks[number], {"refused": headline(error)}))
    with contextlib.suppress(threading.BrokenBarrierError):
        ready.wait(max(PREPARING * arguments.seconds + 20 - (time.time() - start), 1))
    for task, result, state in prepared:
        try:
            if state is not None and time.time() - start < arguments.seconds:
                with alone():
                    result = result | measure(task, state, arguments)
                    _clear()
        except Exception as error:
            result = result | {"refused": headline(error)}
        done.put((task, result))


def stream(tasks, prepare, measure, arguments):
    """Yield each task with its result as soon as it is measured, until `arguments.seconds` are over.

    Processes prepare tasks concurrently, and one at a time measures. So `prepare` must not launch work on the GPU. A process whose GPU has
    an error that stays ends, and others continue.
    """
    start = time.time()
    shared = multiprocessing.get_context("fork")
    place, done = shared.Value("i", 0), shared.Queue()
    count = min(arguments.processes, len(tasks))
    workers = [
        shared.Process(target=_flow, args=(tasks, prepare, measure, arguments, place, done, start), daemon=True) for _ in range(count)
    ]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers) and time.time() - start < arguments.seconds:
        with contextlib.suppress(queue.Empty):
            yield done.get(timeout=1)
    with contextlib.suppress(queue.Empty):
        while True:
            yield done.get(timeout=0.2)
    for worker in workers:
        worker.kill()


def _flow(tasks, prepare, measure, arguments, place, done, start):
    """Prepare and measure tasks one after another."""
    while time.time() - start < arguments.seconds:
        with place.get_lock():
            number = place.value
            place.value += 1
        if number >= len(tasks):
            return
        result, state = _tried(lambda number=number: prepare(tasks[number], arguments))
        if state is not None:
            with alone():
                result = result | _tried(lambda number=number, state=state: (measure(tasks[number], state, arguments), None))[0]
                del state
                with contextlib.suppress(RuntimeError):
                    _clear()
        done.put((tasks[number], result))
        if "CUDA error" in result.get("refused", ""):
            return


def _tried(function):
    """Return what a function returns, or its error as a result, and None."""
    try:
        return function()
    except Exception as raised:
        return {"refused": f"{type(raised).__name__}: {headline(raised)}"}, None


def _clear():
    """Free unused memory of the GPU."""
    gc.collect()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()
    if "cupy" in sys.modules:
        sys.modules["cupy"].get_default_memory_pool().free_all_blocks()
