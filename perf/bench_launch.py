"""Measure the host time of a launch, until the call returns, with a kernel so small that the GPU never delays the host.

    python perf/bench_launch.py [-o FILE.json] [--calls 10000] [--profile]

Contenders alternate in rounds of 250 calls; the GPU is synchronized between rounds, outside the measured time, so the queue of the driver
(about 1000 launches) never fills. Prints the median round and the minimum, minus the time of an empty call. Goals: `prepared()` costs no
more than CuPy's launch, other calls at most 10 us more. `--profile` adds the time by function for `kernel(a, b, out=c)`. Needs a GPU and
CuPy; uses PyTorch if installed.
"""

import argparse
import cProfile
import ctypes
import functools
import gc
import importlib.util
import io
import json
import platform
import pstats
import statistics
import time

from tabulate import tabulate

from fireiron import *
from fireiron.gpu import launch
from fireiron.gpu.arrays import library_of
from fireiron.measure.revision import revision

SIZE = 8
ROUND = 250
"""Calls between two synchronizations; several kernels per call (for example a memset and a launch) still fit the queue."""

RAW = 'extern "C" __global__ void small(const float* a, const float* b, float* c) { if (threadIdx.x == 0) c[0] = a[0] * b[0]; }'
AIM = 10.0
"""Microseconds beyond CuPy's own launch."""


def kernels():
    """Return the tiny GEMM, and a GEMM that first sets its output to zero, both for this GPU."""
    rows = {"A": RowMajor, "B": RowMajor, "C": RowMajor}
    copy = MatMul.tile(SIZE, SIZE).to(Block).tile(1, 1).to(Thread).split(1).done()
    fixed = copy(MatMul(SIZE, SIZE, SIZE, **rows)(GL, GL, GL)(Kernel)).compile()
    M, N, K = sym("M"), sym("N"), sym("K")
    symbolic = copy(MatMul(M, N, K, **rows)(GL, GL, GL)(Kernel)).compile()
    return fixed, symbolic


def cupy_arrays():
    import cupy

    return [cupy.ones((SIZE, SIZE), cupy.float32) for _ in range(3)]


def torch_arrays():
    import torch

    return [torch.ones(SIZE, SIZE, device="cuda") for _ in range(3)]


def ours(library, kernel, symbolic, arrays, others):
    """Return calls of this package with the arrays of a library."""
    a, b, c = arrays
    a2, b2, c2 = others
    prepared, stream = kernel.prepare(a, b, out=c), 0
    return {
        f"{library} prepared()": prepared,
        f"{library} prepared(a, b, out=c)": lambda: prepared(a2, b2, out=c2),
        f"{library} kernel(a, b, out=c)": lambda: kernel(a, b, out=c),
        f"{library} kernel(a, b, out=c), symbolic sizes": lambda: symbolic(a, b, out=c),
        f"{library} kernel(a, b, out=c, stream=0)": lambda: kernel(a, b, out=c, stream=stream),
        f"{library} kernel(a, b)": lambda: kernel(a, b),
    }


def floors(kernel, arrays):
    """Return the lower bounds of a launch: CuPy's calls, the driver through CuPy's wrapper, and through ctypes."""
    import cupy

    raw = cupy.RawKernel(RAW, "small")
    args, grid, block = tuple(arrays), (1,), (32,)
    raw(grid, block, args)
    fixed = kernel.prepare(*arrays[:2], out=arrays[2])._plan.launch
    frame = fixed.frame([array.data.ptr for array in arrays])
    calls = {
        "CuPy RawKernel": lambda: raw(grid, block, args),
        "CuPy Function": lambda: fixed._function(grid, (SIZE * SIZE,), args),
        "driver.launchKernel": lambda: fixed._launch(0, frame.table, 0),
        "FixedLaunch": lambda: fixed([array.data.ptr for array in arrays], 0),
        "cupy.matmul(a, b, out=c)": lambda: cupy.matmul(arrays[0], arrays[1], out=arrays[2]),
    }
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return calls
    driver.cuLaunchKernel.argtypes = (ctypes.c_void_p, *(ctypes.c_uint,) * 7, *(ctypes.c_void_p,) * 3)
    call = functools.partial(driver.cuLaunchKernel, fixed.function, *fixed.shape, fixed.shared)
    return {**calls, "cuLaunchKernel through ctypes": lambda: call(0, frame.table, None)}


def torch_floors(arrays):
    import torch

    a, b, c = arrays
    return {
        "torch.matmul(a, b, out=c)": lambda: torch.matmul(a, b, out=c),
        "torch.matmul(a, b)": lambda: torch.matmul(a, b),
        "torch.mul(a, b, out=c)": lambda: torch.mul(a, b, out=c),
    }


def steps(name, kernel, arrays):
    """Return the parts of `kernel(a, b, out=c)` for the arrays of a library."""
    import cupy

    calls, library = kernel._calls, library_of(type(arrays[0]))
    addresses, signatures, _ = calls.read(tuple(arrays), calls.names)
    plan = calls.plan(signatures, {})
    return {
        f"{name} step: read three arrays": lambda: calls.read(tuple(arrays), calls.names),
        f"{name} step: read one array": lambda: library.read("A", arrays[0]),
        f"{name} step: find the plan": lambda: calls.plan(signatures, {}),
        f"{name} step: alignment and overlap": lambda: plan.check(addresses),
        f"{name} step: current stream": lambda: plan.stream(None),
        f"{name} step: current device": cupy.cuda.runtime.getDevice,
        f"{name} step: launch": lambda: plan.launch(addresses, 0),
    }


def timed(contenders, calls, wait):
    """Return microseconds per call, one value per round, of each contender; they alternate."""
    rounds = {name: [] for name in contenders}
    for call in contenders.values():
        for _ in range(50):
            call()
    gc.disable()
    for _ in range(max(1, calls // ROUND)):
        for name, call in contenders.items():
            wait()
            start = time.perf_counter_ns()
            for _ in range(ROUND):
                call()
            rounds[name].append((time.perf_counter_ns() - start) / 1000 / ROUND)
    gc.enable()
    wait()
    return rounds


def profile(kernel, arrays, calls, wait):
    """Return the time of `kernel(a, b, out=c)` by function, as text."""
    a, b, c = arrays
    profiler, text = cProfile.Profile(), io.StringIO()
    for _ in range(max(1, calls // ROUND)):
        wait()
        profiler.enable()
        for _ in range(ROUND):
            kernel(a, b, out=c)
        profiler.disable()
    pstats.Stats(profiler, stream=text).strip_dirs().sort_stats("tottime").print_stats(16)
    return text.getvalue()


def environment():
    import cupy

    versions = {"python": platform.python_version(), "cupy": cupy.__version__, "driver": ".".join(map(str, launch.driver_version()))}
    name = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()
    return {"date": time.strftime("%Y-%m-%d"), "gpu": name, "processor": processor(), "revision": revision(), **versions}


def processor():
    try:
        with open("/proc/cpuinfo") as lines:
            return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    except OSError:
        return platform.machine()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", help="write the results there, as JSON")
    parser.add_argument("--calls", type=int, default=10_000, help="calls of each contender")
    parser.add_argument("--profile", action="store_true", help="the steps of a call, and a profile of it")
    arguments = parser.parse_args()
    cupy = launch.require_cupy()
    wait = cupy.cuda.Device().synchronize
    kernel, symbolic = kernels()
    sets = {"CuPy": (cupy_arrays(), cupy_arrays())}
    contenders = {"an empty call": lambda: None, **floors(kernel, sets["CuPy"][0])}
    if importlib.util.find_spec("torch"):
        sets["PyTorch"] = torch_arrays(), torch_arrays()
        contenders |= torch_floors(sets["PyTorch"][0])
    for library, (arrays, others) in sets.items():
        contenders |= ours(library, kernel, symbolic, arrays, others)
        contenders |= steps(library, kernel, arrays) if arguments.profile else {}
    rounds = timed(contenders, arguments.calls, wait)
    empty = statistics.median(rounds["an empty call"])
    medians = {name: statistics.median(values) - empty for name, values in rounds.items() if name != "an empty call"}
    least = {name: min(values) - empty for name, values in rounds.items()}
    beyond = {name: value - medians["CuPy RawKernel"] for name, value in medians.items()}
    rows = [[name, value, least[name], beyond[name]] for name, value in medians.items()]
    print(tabulate(rows, ["host time of a call", "median us", "least us", "beyond CuPy's launch"], floatfmt=".2f"))
    late = [name for name in medians if name.split(" ", 1)[-1].startswith(("prepared", "kernel(a, b, out=c)")) and beyond[name] > AIM]
    print(f"over the goal of {AIM:.0f} us beyond CuPy's launch: {', '.join(late) or 'none'}")
    profiles = {name: profile(kernel, arrays, arguments.calls, wait) for name, (arrays, _) in sets.items()} if arguments.profile else {}
    for name, text in profiles.items():
        print(f"\nkernel(a, b, out=c) with arrays of {name}, under cProfile\n{text}")
    if arguments.output:
        results = {"environment": environment(), "calls": arguments.calls, "empty_us": empty, "median_us": medians, "least_us": least}
        with open(arguments.output, "w") as file:
            json.dump({**results, "rounds_us": rounds, "profiles": profiles}, file, indent=1)


if __name__ == "__main__":
    main()
