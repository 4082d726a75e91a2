"""Compare the host time of fireiron calls with the corresponding PyTorch call: the time until the call returns.

    python perf/host_time.py [-o FOLDER] [--rounds 24] [--without-replay]

The arrays are so small that the GPU never delays the host: each contender is called 250 times per round, the GPU is synchronized between
rounds outside the measured time, and contenders alternate. The results are the medians of wall time and of the processor time of this
thread, minus those of an empty call, and the ratio to PyTorch. Each result is checked first. `--without-replay` executes each call as if it
were the first. Writes `host_time.json` and `host_time.txt`. Needs a GPU, CuPy and PyTorch; takes less than a minute.
"""

import argparse
import gc
import json
import platform
import statistics
import time
from pathlib import Path

import torch
from tabulate import tabulate

import fireiron
from fireiron.gpu import launch
from fireiron.gpu.replays import module_here
from fireiron.measure.revision import revision

CALLS = 250
WARM = 300
"""Calls before anything is measured: kernels compile, and calls are recorded."""


def float16_array(*shape):
    return (torch.randn(shape, device="cuda") * shape[-1] ** -0.5).bfloat16()


def pairs():
    """By name our call, and the corresponding call of PyTorch."""
    a, b, c, d = float16_array(64, 64), float16_array(64, 64), float16_array(64, 64), float16_array(64, 64)
    stack, stacks = float16_array(4, 64, 64), float16_array(4, 64, 64)
    odd, odd_b = float16_array(64, 63), float16_array(63, 65)
    bias = float16_array(64)
    left, right = (float16_array(64, 64).requires_grad_() for _ in range(2))
    q, k, v = (float16_array(1, 8, 128, 64) for _ in range(3))
    rows, weight = float16_array(128, 256), torch.ones(256, device="cuda").bfloat16()
    product, softmax = torch.nn.functional.linear, torch.nn.functional.scaled_dot_product_attention
    normed, norm = fireiron.function("layernorm"), torch.nn.functional.layer_norm
    grad, head_grad, row_grad = float16_array(64, 64), float16_array(1, 8, 128, 64), float16_array(128, 256)
    heads = tuple(one.clone().requires_grad_() for one in (q, k, v))
    row, scale, shift = rows.clone().requires_grad_(), weight.clone().requires_grad_(), torch.zeros_like(weight).requires_grad_()
    features, classes = float16_array(256, 128).requires_grad_(), float16_array(1000, 128).requires_grad_()
    targets = torch.randint(0, 1000, (256,), device="cuda")
    images, filters = (float16_array(*shape).to(memory_format=torch.channels_last) for shape in ((2, 64, 16, 16), (64, 64, 3, 3)))
    image, kernel = images.clone().requires_grad_(), filters.clone().requires_grad_()

    def backward(multiply):
        return lambda: torch.autograd.grad(multiply(left, right), (left, right), grad)

    def attended(attend, **options):
        return lambda: torch.autograd.grad(attend(*heads, **options), heads, head_grad)

    def convolved(convolve):
        return lambda: torch.autograd.grad(convolve(image, kernel, padding=1), (image, kernel), images)

    def normalized(normalize):
        return lambda: torch.autograd.grad(normalize(), (row, scale, shift), row_grad)

    def loss(of):
        return lambda: torch.autograd.grad(of(), (features, classes))

    def cross_entropy():
        return torch.nn.functional.cross_entropy(product(features, classes), targets)

    return {
        "matmul(a, b)": (lambda: fireiron.matmul(a, b), lambda: torch.matmul(a, b)),
        "matmul(a, b, out=)": (lambda: fireiron.matmul(a, b, out=c), lambda: torch.matmul(a, b, out=d)),
        "matmul, a batch and a matrix": (lambda: fireiron.matmul(stack, b), lambda: torch.matmul(stack, b)),
        "matmul, two stacks": (lambda: fireiron.matmul(stack, stacks), lambda: torch.matmul(stack, stacks)),
        "matmul, odd rows": (lambda: fireiron.matmul(odd, odd_b), lambda: torch.matmul(odd, odd_b)),
        "matmul + bias": (lambda: fireiron.matmul(a, b, epilogue="acc + bias[n]", bias=bias), lambda: product(a, b.T, bias)),
        "matmul, differentiated": (lambda: fireiron.matmul(left, right), lambda: torch.matmul(left, right)),
        "matmul and its gradients": (backward(fireiron.matmul), backward(torch.matmul)),
        "attention": (lambda: fireiron.attention(q, k, v), lambda: softmax(q, k, v)),
        "attention, causal": (lambda: fireiron.attention(q, k, v, causal=True), lambda: softmax(q, k, v, is_causal=True)),
        "attention and its gradients": (attended(fireiron.attention), attended(softmax)),
        "causal attention and its gradients": (attended(fireiron.attention, causal=True), attended(softmax, is_causal=True)),
        "convolution": (
            lambda: fireiron.conv2d(images, filters, padding=1),
            lambda: torch.nn.functional.conv2d(images, filters, padding=1),
        ),
        "convolution and its gradients": (convolved(fireiron.conv2d), convolved(torch.nn.functional.conv2d)),
        "layernorm and its gradients": (
            normalized(lambda: normed(row, scale, shift, 1e-5)),
            normalized(lambda: norm(row, (256,), scale, shift)),
        ),
        "linear_cross_entropy and its gradients": (
            loss(lambda: fireiron.linear_cross_entropy(features, classes, targets)),
            loss(cross_entropy),
        ),
        "function: layernorm": (lambda: normed(rows, weight, weight, 1e-5), lambda: norm(rows, (256,), weight, weight)),
    }


def check(name, ours, peer):
    """Refuse to time a wrong result."""
    if name == "matmul + bias":
        return  # PyTorch's call takes the transposed matrix: the same work on different numbers
    for result, other in zip(*(made if isinstance(made, tuple) else (made,) for made in (ours(), peer())), strict=True):
        wide = other.detach().double()
        error = float((result.detach().double() - wide).norm() / wide.norm())
        if not error < 1e-2:
            raise SystemExit(f"{name}: an error of {error}")


def timed(contenders, rounds):
    """Return microseconds of wall and of processor time per call, by contender, one pair per round."""
    times = {name: [] for name in contenders}
    for call in contenders.values():
        for _ in range(WARM):
            call()
    gc.disable()
    for _ in range(rounds):
        for name, call in contenders.items():
            torch.cuda.synchronize()
            wall, used = time.perf_counter_ns(), time.thread_time_ns()
            for _ in range(CALLS):
                call()
            ends = time.perf_counter_ns(), time.thread_time_ns()
            times[name].append(((ends[0] - wall) / 1000 / CALLS, (ends[1] - used) / 1000 / CALLS))
    gc.enable()
    torch.cuda.synchronize()
    return {name: tuple(statistics.median(one[side] for one in values) for side in range(2)) for name, values in times.items()}


def environment():
    import cupy

    gpu = torch.cuda.get_device_name()
    versions = {"python": platform.python_version(), "torch": torch.__version__, "cupy": cupy.__version__}
    return {
        "date": time.strftime("%Y-%m-%d"),
        "gpu": gpu,
        "driver": ".".join(map(str, launch.driver_version())),
        "revision": revision(),
        **versions,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, help="write the results into this folder")
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--without-replay", action="store_true", help="make each call as the first one is made")
    arguments = parser.parse_args()
    module_here.is_given_up = arguments.without_replay
    calls = pairs()
    for name, pair in calls.items():
        check(name, *pair)
    module_here.wait()
    contenders = {"an empty call": lambda: None}
    for name, (ours, peer) in calls.items():
        contenders |= {f"fireiron {name}": ours, f"PyTorch {name}": peer}
    times = timed(contenders, arguments.rounds)
    empty = times.pop("an empty call")
    rows = []
    for name in calls:
        ours, peer = (tuple(value - nothing for value, nothing in zip(times[f"{who} {name}"], empty)) for who in ("fireiron", "PyTorch"))
        rows.append([name, ours[0], peer[0], ours[0] / peer[0], ours[1], peer[1], ours[1] / peer[1]])
    headers = ["host time of a call, us", "wall", "PyTorch", "ratio", "processor", "PyTorch", "ratio"]
    about = {**environment(), "calls": CALLS, "rounds": arguments.rounds, "replayed": module_here() is not None}
    text = f"{tabulate(rows, headers, floatfmt='.2f')}\n\n{about}\n"
    print(text)
    if arguments.output:
        arguments.output.mkdir(parents=True, exist_ok=True)
        arguments.output.joinpath("host_time.txt").write_text(text)
        arguments.output.joinpath("host_time.json").write_text(
            json.dumps({"environment": about, "headers": headers, "rows": rows}, indent=1)
        )


if __name__ == "__main__":
    main()
