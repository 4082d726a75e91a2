"""Measure the first call of `fireiron.matmul` and `fireiron.attention` for shapes that are new to the process, on a GPU.

    python perf/first_call.py FOLDER [--compile] [--rounds 2] [--calls NAME ...]

Each call runs in a separate process, with an empty cache and again with the cache that the first one left; before the clock starts,
PyTorch, CuPy and fireiron are loaded and the GPU is busy. Prints wall time, the part of NVRTC (both kernels of a GEMM in parts compile at
once), the rest, and the wall time of the second process. `--compile` measures only `torch.compile` of a transformer block: with
PyTorch's GEMM and attention, with those of fireiron, and with those of fireiron if the kernels are compiled at the
launch instead of during tracing. The processes alternate, each with empty caches and again with filled caches; a first process, which reads
files that are not in memory yet, is discarded. Writes `first_call.txt` or `torch_compile.txt` into the folder.
"""

import argparse
import compileall
import json
import os
import subprocess
import sys
import tempfile
import time
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
    "attention 2x16x2048x128": ("attention", (2, 16, 16, 2048, 2048, 128), {}),
    "attention 2x16x2048x128, causal": ("attention", (2, 16, 16, 2048, 2048, 128), {"causal": True}),
    "attention 1x32x1000x128 on 8 heads, causal": ("attention", (1, 32, 8, 1000, 1000, 128), {"causal": True}),
    "attention 3x5x777x64": ("attention", (3, 5, 5, 777, 777, 64), {}),
    "attention 8x32x1x128, decoding 4096 keys": ("attention", (8, 32, 32, 1, 4096, 128), {}),
    "attention 2x8x512x256": ("attention", (2, 8, 8, 512, 512, 256), {}),
}


def one_call(name):
    """Make a call, and print seconds: wall, processor, NVRTC."""
    import torch

    import fireiron
    from fireiron.gpu import launch

    kind, sizes, options = CALLS[name]
    torch.ones(8, device="cuda").sum().item()
    launch.require_cupy().ones(3).sum()
    if kind == "matmul":
        m, n, k = sizes
        arrays = [torch.randn(m, k, device="cuda").half(), torch.randn(k, n, device="cuda").half()]
    else:
        batch, heads, groups, queries, keys, elements = sizes
        shapes = (batch, heads, queries, elements), *((batch, groups, keys, elements),) * 2
        arrays = [torch.randn(shape, device="cuda").half() for shape in shapes]
    torch.cuda.synchronize()
    call = getattr(fireiron, kind)
    wall, used = time.perf_counter(), time.process_time()
    call(*arrays, **options)
    torch.cuda.synchronize()
    wall, used = time.perf_counter() - wall, time.process_time() - used
    compiled = call.kernel(*arrays, **options).compiled.seconds
    print(json.dumps([wall, used, compiled]))


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


def first_calls(names):
    """Return the table of first calls."""
    rows = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            wall, used, compiled = in_a_process(folder, "--one", name)
            again = in_a_process(folder, "--one", name)
        rows.append([name, wall, compiled, max(0.0, wall - compiled), used, again[0]])
        print(*rows[-1], flush=True)
    headers = ["first call, seconds", "wall", "NVRTC", "the rest", "processor", "second process"]
    return tabulate(rows, headers, floatfmt=".2f")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--calls", nargs="*", choices=CALLS, default=list(CALLS), help="names of first calls")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--block", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        return one_call(options.one)
    if options.block:
        return block(options.block)
    for folder in (PACKAGE, library_folder()):
        compileall.compile_dir(folder, quiet=2)
    lines = [blocks(options.rounds) if options.compile else first_calls(options.calls)]
    import torch

    lines.append(f"{time.strftime('%Y-%m-%d')}, {torch.cuda.get_device_name()}, PyTorch {torch.__version__}, {os.cpu_count()} cores")
    options.folder.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join(lines) + "\n"
    options.folder.joinpath("torch_compile.txt" if options.compile else "first_call.txt").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
