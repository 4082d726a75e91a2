"""Measure the stages of a first call: the wall time at which each begins or ends, counted from the call, and the time of imports.

    python perf/first_call_stages.py NAME [--profile FILE]       a name of first_call.CALLS

Run it with an empty cache folder (`FIREIRON_CACHE_DIR`) and again with that folder. Prints milliseconds: `text` is the printed text, `NVRTC`
and `compiled` the beginning and the end of the compiler, `proved` the end of the checks, `returned` the end of the call, `done` the end
of the kernel. `imports` is the processor time of all imports of the main thread in the call, and `modules` their number. On a machine
without a GPU, host arrays are used and nothing is launched, so `NVRTC` is that of the machine and stages of the launch are missing.
"""

import argparse
import importlib._bootstrap as bootstrap
import threading
import time

from first_call import CALLS, call_of, integers_on_gpu, on_gpu

MARKS = []
IMPORTS = [0.0, 0, 0]
"""Seconds, number of modules, depth."""


def mark(name):
    """Note that a stage begins or ends."""
    MARKS.append((name, time.perf_counter()))


def measure_imports():
    """Count the processor time of imports of the main thread."""
    load, main = bootstrap._load_unlocked, threading.get_ident()

    def loaded(spec):
        if threading.get_ident() != main:
            return load(spec)
        start = time.thread_time()
        IMPORTS[2] += 1
        try:
            return load(spec)
        finally:
            IMPORTS[2] -= 1
            IMPORTS[1] += 1
            if not IMPORTS[2]:
                IMPORTS[0] += time.thread_time() - start

    bootstrap._load_unlocked = loaded


def arrays_of(name, is_on_gpu):
    """Return a call with its positional and keyword arguments."""
    if is_on_gpu:
        import torch

        call = call_of(name, on_gpu, integers_on_gpu)
        torch.cuda.synchronize()
        return call
    import numpy as np

    call, arguments, named = call_of(name, lambda shape: np.zeros(shape, np.float16), lambda values: np.array(values, np.int32))
    return call, arguments, named | {"arch": "sm_90a"}


def watch():
    """Mark the stages; the modules are loaded by the call, so an import hook wraps their functions."""
    exec_module = bootstrap._load_unlocked

    def loaded(spec):
        module = exec_module(spec)
        wrappers.get(spec.name, lambda module: None)(module)
        return module

    def wrap(owner, name, before=None, after=None):
        function = getattr(owner, name)

        def wrapped(*arguments, **named):
            if before:
                mark(before)
            result = function(*arguments, **named)
            if after:
                mark(after)
            return result

        setattr(owner, name, wrapped)

    wrappers = {
        "fireiron.gpu.early": lambda module: (
            wrap(module.EarlyCompilation, "__init__", before="text"),
            wrap(module, "prove", after="proved"),
        ),
        "fireiron.gpu.toolchain": lambda module: (wrap(module, "_run", "NVRTC", "compiled"), wrap(module, "compilation", after="options")),
    }
    bootstrap._load_unlocked = loaded


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("name", choices=list(CALLS))
    parser.add_argument("--profile")
    options = parser.parse_args()
    is_on_gpu = True
    start = time.perf_counter()
    try:
        import torch

        torch.ones(8, device="cuda").sum().item()
        from fireiron.gpu import launch

        launch.require_cupy().ones(3).sum()
    except (ImportError, RuntimeError):
        is_on_gpu = False
    start = time.perf_counter()
    call, arrays, named = arrays_of(options.name, is_on_gpu)
    loading = time.perf_counter() - start
    measure_imports()
    watch()
    if options.profile:
        import cProfile
        import pstats

        profile = cProfile.Profile()
        profile.enable()
    start, used = time.perf_counter(), time.thread_time()
    if is_on_gpu:
        call(*arrays, **named)
    else:
        from fireiron.front.place import Place
        from fireiron.gpu import early

        Place.prove = lambda place, *programs: early.prove(*programs)
        _ = call.kernel(*arrays, **named).compiled
    mark("returned")
    used = time.thread_time() - used
    if options.profile:
        profile.disable()
        with open(options.profile, "w") as file:
            for order in ("tottime", "cumulative"):
                pstats.Stats(profile, stream=file).sort_stats(order).print_stats(70)
    if is_on_gpu:
        torch.cuda.synchronize()
        mark("done")
    stages = " ".join(f"{name} {(at - start) * 1000:.0f}" for name, at in MARKS)
    print(
        f"{options.name}: {stages}; main thread {used * 1000:.0f}, imports {IMPORTS[0] * 1000:.0f}, modules {IMPORTS[1]}, before {loading * 1000:.0f}"
    )


if __name__ == "__main__":
    main()
