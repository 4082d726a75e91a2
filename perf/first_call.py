"""Measure the first call of `fireiron.matmul` and `fireiron.attention` for shapes that are new to the process, on a GPU.

    python perf/first_call.py FOLDER [--jobs 4] [--compile] [--rounds 2] [--calls NAME ...]

Each call runs in a separate process, with an empty cache and again with the cache that the first one left; before the clock starts,
PyTorch, CuPy and fireiron are loaded and the GPU is busy. Prints wall time, the part of it in which NVRTC compiles, the rest, the processor
time, and the wall time of the second process. `--jobs` measures several calls at the same time, each with its own cache. `--compile` measures only `torch.compile` of a transformer block: with
PyTorch's GEMM and attention, with those of fireiron, and with those of fireiron if the kernels are compiled at the
launch instead of during tracing. The processes alternate, each with empty caches and again with filled caches; a first process, which reads
files that are not in memory yet, is discarded. Writes `first_call.txt` or `torch_compile.txt` into the folder.
"""

import argparse
import compileall
import functools
import importlib._bootstrap as bootstrap
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tabulate import tabulate

from fireiron.package_paths import PACKAGE, library_folder

CALLS = {
    "matmul 1024x1024x1024": ("matmul", (1024, 1024, 1024), {}),
    "matmul 1000x1000x1000": ("matmul", (1000, 1000, 1000), {}),
    "matmul 4095x4097x4099": ("matmul", (4095, 4097, 4099), {}),
    "matmul 3963x5400x520": ("matmul", (3963, 5400, 520), {}),
    "matmul 128x128x16384, in parts": ("matmul", (128, 128, 16384), {}),
    "matmul 64x64x256": ("matmul", (64, 64, 256), {}),
    "matmul 8x4096x4096, few rows": ("matmul", (8, 4096, 4096), {}),
    "matmul 4x512x1024x1024, a batch and a matrix": ("batch", (4, 512, 1024, 1024), {}),
    "matmul 8x512x512x512, two stacks": ("stacks", (8, 512, 512, 512), {}),
    "matmul 2048x2048x2048, epilogue": ("epilogue", (2048, 2048, 2048), {"epilogue": "gelu(acc + bias[n])"}),
    "attention 2x16x2048x128": ("attention", (2, 16, 16, 2048, 2048, 128), {}),
    "attention 2x16x2048x128, causal": ("attention", (2, 16, 16, 2048, 2048, 128), {"causal": True}),
    "attention 1x32x1000x128 on 8 heads, causal": ("attention", (1, 32, 8, 1000, 1000, 128), {"causal": True}),
    "attention 3x5x777x64": ("attention", (3, 5, 5, 777, 777, 64), {}),
    "attention 8x32x1x128, decoding 4096 keys": ("attention", (8, 32, 32, 1, 4096, 128), {}),
    "attention 2x8x512x256": ("attention", (2, 8, 8, 512, 512, 256), {}),
    "attention 8x32x128 on 8 heads, 4096 keys in pages of 16": ("paged", (8, 32, 8, 4096, 128, 16), {}),
    "function layernorm 4096x1024": ("function", (4096, 1024), {}),
}
"""By name the kind of call, its sizes and its options."""


def shapes_of(kind, sizes):
    """Return the shapes of the float16 arguments of a call."""
    if kind == "attention":
        batch, heads, groups, queries, keys, elements = sizes
        return (batch, heads, queries, elements), *((batch, groups, keys, elements),) * 2
    if kind == "paged":
        batch, heads, groups, keys, elements, page = sizes
        return (batch, heads, elements), *((batch * keys // page, page, groups, elements),) * 2
    if kind == "function":
        rows, columns = sizes
        return (rows, columns), (columns,), (columns,)
    *stack, m, n, k = sizes
    return (*stack, m, k), ((*stack, k, n) if kind == "stacks" else (k, n))


def call_of(name, new, integers):
    """Return the function, positional and keyword arguments of a call, by functions that make arrays of random or given numbers."""
    import fireiron

    kind, sizes, options = CALLS[name]
    arguments = [new(shape) for shape in shapes_of(kind, sizes)]
    if kind == "paged":
        batch, _, _, keys, _, page = sizes
        pages = keys // page
        arguments += [integers([range(start, start + pages) for start in range(0, batch * pages, pages)]), integers([keys] * batch)]
    if kind == "function":
        return fireiron.function("layernorm"), [*arguments, 1e-5], options
    if kind == "epilogue":
        options = {**options, "bias": new((sizes[1],))}
    call = {"attention": fireiron.attention, "paged": fireiron.paged_attention}.get(kind, fireiron.matmul)
    return call, arguments, options


def on_gpu(shape):
    """Return an array of random numbers on the GPU."""
    import torch

    return torch.randn(shape, device="cuda").half()


def integers_on_gpu(values):
    """Return an array of integers on the GPU."""
    import torch

    return torch.tensor([list(row) if isinstance(row, range) else row for row in values], dtype=torch.int32, device="cuda")


def watch_compiler(intervals):
    """Note when NVRTC compiles. The call loads the module, so an import hook wraps its function."""
    load = bootstrap._load_unlocked

    def loaded(spec):
        module = load(spec)
        if spec.name == "fireiron.gpu.toolchain":
            module._run = functools.partial(timed, module._run)
        return module

    def timed(run, *arguments):
        start = time.perf_counter()
        try:
            return run(*arguments)
        finally:
            intervals.append((start, time.perf_counter()))

    bootstrap._load_unlocked = loaded


def covered(intervals):
    """Return the seconds that intervals cover together."""
    seconds, reached = 0.0, 0.0
    for start, end in sorted(intervals):
        seconds += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return seconds


def one_call(name):
    """Make a call, and print seconds: wall, processor, NVRTC."""
    import torch

    from fireiron.gpu import launch

    torch.ones(8, device="cuda").sum().item()
    launch.require_cupy().ones(3).sum()
    call, arguments, options = call_of(name, on_gpu, integers_on_gpu)
    torch.cuda.synchronize()
    intervals = []
    watch_compiler(intervals)
    wall, used = time.perf_counter(), time.process_time()
    call(*arguments, **options)
    torch.cuda.synchronize()
    wall, used = time.perf_counter() - wall, time.process_time() - used
    print(json.dumps([wall, used, covered(intervals)]))


def in_a_process(folder, *arguments):
    """Return the numbers in the last line of another process."""
    paths = {name: str(Path(folder, name)) for name in ("FIREIRON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
    done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, env={**os.environ, **paths})
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


BLOCKS = ("PyTorch", "fireiron", "fireiron, compiled at the launch")
"""The variants of the transformer block."""


def block(variant):
    """Compile a transformer block and run it; print the seconds of the first call."""
    import torch

    import fireiron
    from fireiron.front import traced

    own = variant != BLOCKS[0]
    if variant == BLOCKS[2]:
        traced.begin = lambda *arguments: None
    multiply = fireiron.matmul if own else torch.matmul
    attend = fireiron.attention if own else torch.nn.functional.scaled_dot_product_attention

    def layer(x, weights):
        heads = multiply(x, weights[0]).view(2, 512, 3, 8, 64).permute(2, 0, 3, 1, 4)
        mixed = attend(heads[0], heads[1], heads[2]).transpose(1, 2).reshape(2, 512, 512)
        x = torch.nn.functional.layer_norm(x + multiply(mixed, weights[1]), (512,))
        return torch.nn.functional.layer_norm(x + multiply(torch.nn.functional.gelu(multiply(x, weights[2])), weights[3]), (512,))

    shapes = (512, 1536), (512, 512), (512, 2048), (2048, 512)
    weights = [(torch.randn(shape, device="cuda") * shape[0] ** -0.5).half() for shape in shapes]
    x = torch.randn(2, 512, 512, device="cuda").half()
    torch.cuda.synchronize()
    start = time.perf_counter()
    result = torch.compile(layer, fullgraph=True)(x, weights)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    wanted = layer(x, weights)
    assert float((result - wanted).norm() / wanted.norm()) < 1e-2
    print(json.dumps([seconds]))


def blocks(rounds):
    """Return the table of `--compile`."""
    with tempfile.TemporaryDirectory() as folder:
        in_a_process(folder, "--block", BLOCKS[0])
    seconds = {variant: ([], []) for variant in BLOCKS}
    for _ in range(rounds):
        for variant, times in seconds.items():
            with tempfile.TemporaryDirectory() as folder:
                for column in times:
                    column += in_a_process(folder, "--block", variant)
                    print(f"{variant}: {column[-1]:.2f} s", flush=True)
    rows = [[variant, *(" ".join(f"{one:.2f}" for one in column) for column in times)] for variant, times in seconds.items()]
    return tabulate(rows, ["torch.compile of a transformer block, seconds", "empty caches", "filled caches"])


def first_calls(names, jobs):
    """Return the table of first calls."""

    def row(name):
        with tempfile.TemporaryDirectory() as folder:
            wall, used, compiled = in_a_process(folder, "--one", name)
            again = in_a_process(folder, "--one", name)
        cells = [name, wall, compiled, max(0.0, wall - compiled), used, again[0], again[1]]
        print(*(f"{cell:.3f}" if isinstance(cell, float) else cell for cell in cells), flush=True)
        return cells

    with ThreadPoolExecutor(jobs) as pool:
        rows = list(pool.map(row, names))
    headers = ["first call, seconds", "wall", "NVRTC", "the rest", "processor", "second process", "processor"]
    return tabulate(rows, headers, floatfmt=".2f")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--calls", nargs="*", choices=CALLS, default=list(CALLS), help="names of first calls")
    parser.add_argument("--jobs", type=int, default=1, help="number of calls to measure at the same time")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--block", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        return one_call(options.one)
    if options.block:
        return block(options.block)
    for folder in (PACKAGE, library_folder()):
        compileall.compile_dir(folder, quiet=2)
    lines = [blocks(options.rounds) if options.compile else first_calls(options.calls, options.jobs)]
    import torch

    lines.append(f"{time.strftime('%Y-%m-%d')}, {torch.cuda.get_device_name()}, PyTorch {torch.__version__}, {os.cpu_count()} cores")
    options.folder.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join(lines) + "\n"
    options.folder.joinpath("torch_compile.txt" if options.compile else "first_call.txt").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
