"""Compare `fireiron.matmul` as PyTorch's operator with torch.matmul: host time per call, and forward with backward on the GPU.

    python perf/torch_ops.py [-o FOLDER] [--sizes 1024 4096] [--rounds 9] [--no-compile]

Each contender is checked first, results and gradients, against float64 (float32 above 2048). Host time is that of a call with matrices of
64 x 64, whose kernel is shorter than the call: wall time of many calls, without gradient unless stated. Times of layers are GPU time
between CUDA events around several calls, the median of rounds in which all run alternately. `compiled` is torch.compile(fullgraph=True):
`relu(a) @ b`, forward, and with its gradients. Writes `torch_ops.json` and `torch_ops.txt` into the folder. Needs a GPU, CuPy and PyTorch;
takes less than a minute.
"""

import argparse
import functools
import json
import statistics
import time
from pathlib import Path

import torch
from tabulate import tabulate

from fireiron import GL, Kernel, MatMul, RowMajor, best, float16, matmul, pytorch

SMALL = 64
CALLS = 400
TOLERANCE = 4e-3
"""Relative error of float16, in the Frobenius norm."""


def ours(a, b):
    """Return a layer with our GEMM."""
    return matmul(a.relu(), b)


def torch_layer(a, b):
    """Return the same with PyTorch's."""
    return torch.matmul(a.relu(), b)


def float16_array(*shape):
    """Return random operands that require a gradient."""
    return (torch.randn(shape, device="cuda") * shape[-2] ** -0.5).half().requires_grad_()


def error(got, expected):
    """Return relative error in the Frobenius norm."""
    wide = expected.detach().double()
    return float((got.detach().double() - wide).norm() / wide.norm())


def check(layer, size):
    """Return the largest error of a layer's result and gradients."""
    a, b, grad = float16_array(size, size), float16_array(size, size), torch.randn(size, size, device="cuda").half()
    wide = [one.detach().to(torch.float64 if size <= 2048 else torch.float32).requires_grad_() for one in (a, b)]
    expected = torch_layer(*wide)
    right = torch.autograd.grad(expected, wide, grad.to(expected.dtype))
    result = layer(a, b)
    largest = max(
        error(got, want) for got, want in zip((result, *torch.autograd.grad(result, (a, b), grad)), (expected, *right), strict=True)
    )
    if not largest < TOLERANCE:
        raise SystemExit(f"{size}: an error of {largest}")
    return largest


def host_time(call):
    """Return microseconds of wall time per call: the minimum of three runs of many calls."""
    for _ in range(20):
        call()
    times = []
    for _ in range(3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / CALLS * 1e6)
    return min(times)


def overheads(compile):
    """Return host time by function."""
    a, b = float16_array(SMALL, SMALL), float16_array(SMALL, SMALL)
    out = torch.empty(SMALL, SMALL, device="cuda", dtype=torch.half)
    spec = MatMul(SMALL, SMALL, SMALL, dtype=float16, A=RowMajor, B=RowMajor, C=RowMajor)(GL, GL, GL)(Kernel)
    operator = best(spec, default=True).compile().as_torch_op("fireiron_perf::kernel")
    calls = {
        "torch.matmul": lambda: torch.matmul(a, b),
        "fireiron.matmul": lambda: matmul(a, b),
        "fireiron.matmul, out=": lambda: matmul(a, b, out),
        "torch.ops.fireiron.matmul": lambda: torch.ops.fireiron.matmul(a, b, None, None),
        "kernel.as_torch_op": lambda: operator(a, b),
    }
    if compile:
        calls |= {f"compiled, {name}": functools.partial(torch.compile(layer, fullgraph=True), a, b) for name, layer in LAYERS.items()}
    with torch.no_grad():
        times = {name: host_time(call) for name, call in calls.items()}
    times["torch.matmul with gradient"] = host_time(lambda: torch.matmul(a, b))
    times["fireiron.matmul with gradient"] = host_time(lambda: matmul(a, b))
    return times


LAYERS = {"torch": torch_layer, "fireiron": ours}


def contenders(size, compile):
    """Return calls by name, forward and with backward."""
    a, b, grad = float16_array(size, size), float16_array(size, size), torch.randn(size, size, device="cuda").half()
    layers = dict(LAYERS)
    if compile:
        layers |= {f"{name} compiled": torch.compile(layer, fullgraph=True) for name, layer in LAYERS.items()}
    calls = {}
    for name, layer in layers.items():
        check(layer, size)
        calls[name, "forward"] = functools.partial(layer, a.detach(), b.detach())
        calls[name, "with backward"] = functools.partial(_differentiated, layer, a, b, grad)
    return calls


def _differentiated(layer, a, b, grad):
    """Return a layer with its gradients."""
    return torch.autograd.grad(layer(a, b), (a, b), grad)


def gpu_times(calls, rounds, budget=4e-3):
    """Return microseconds of GPU time by contender: medians of rounds in which all run alternately."""
    times = {name: [] for name in calls}
    counts = {}
    for name, call in calls.items():
        call()
        counts[name] = max(3, min(50, int(budget / max(_between(call, 3), 1e-6))))
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(_between(call, counts[name]) * 1e6)
    return {name: statistics.median(found) for name, found in times.items()}


def _between(call, count):
    """Return seconds per call, between events around several calls."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(count):
        call()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / count / 1e3


def table(sizes, times):
    """Return microseconds and the fraction of PyTorch's speed."""
    rows = []
    for size in sizes:
        for kind in ("forward", "with backward"):
            for suffix in ("", " compiled"):
                if ("torch" + suffix, kind) not in times[size]:
                    continue
                torch_us, other = (times[size][name + suffix, kind] for name in ("torch", "fireiron"))
                rows.append((size, kind, suffix.strip() or "eager", torch_us, other, torch_us / other))
    return tabulate(rows, ("size", "layer", "", "torch, us", "fireiron, us", "torch / fireiron"), floatfmt=".2f")


def main():
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("-o", "--folder", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--no-compile", action="store_true")
    given = parser.parse_args()
    torch.manual_seed(0)
    pytorch.register()
    start = time.perf_counter()
    errors = {size: check(ours, size) for size in given.sizes}
    host = overheads(not given.no_compile)
    text = [tabulate(host.items(), ("call of 64 x 64", "host time, us"), floatfmt=".1f")]
    print(text[0], flush=True)
    times = {}
    for size in given.sizes:
        times[size] = gpu_times(contenders(size, not given.no_compile), given.rounds)
        print(table([size], times), flush=True)
    errors_text = ", ".join(f"{size}: {one:.1e}" for size, one in errors.items())
    text += [table(given.sizes, times), f"float16; errors {errors_text}; PyTorch {torch.__version__}, {torch.cuda.get_device_name()}"]
    print(text[-1], f"{time.perf_counter() - start:.0f} s", sep="\n")
    if given.folder is not None:
        given.folder.mkdir(parents=True, exist_ok=True)
        (given.folder / "torch_ops.txt").write_text("\n\n".join(text) + "\n")
        by_size = {size: {" ".join(name): one for name, one in found.items()} for size, found in times.items()}
        (given.folder / "torch_ops.json").write_text(json.dumps({"host us": host, "gpu us": by_size, "errors": errors}, indent=1) + "\n")


if __name__ == "__main__":
    main()
