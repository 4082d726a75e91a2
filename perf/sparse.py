"""Compare 2:4 sparse GEMM with dense cuBLAS and with cuSPARSELt.

    python perf/sparse.py FOLDER [--rounds 9] [--sizes 4096x4096x4096 ...]

Float16, row-major. Contenders, measured alternately in one run: the tiles that the strategies `sparse_hopper` (wgmma.sp, sm_90a) and
`sparse_ampere` (mma.sp) state as defaults, `torch.matmul` on the dense weights, and `torch.sparse.to_sparse_semi_structured` (cuSPARSELt,
if PyTorch has it). Each result is first compared with the dense product in float32. TFLOP/s count the operations of the dense product.
Writes `sparse.json` and `sparse.txt` into the folder.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from tabulate import tabulate

from fireiron import compress_2_4, decompress_2_4
from fireiron.errors import FireironError
from fireiron.measure.timing import measure
from fireiron.strategies import sparse_ampere, sparse_hopper

SIZES = ((4096, 4096, 4096), (8192, 8192, 8192), (2048, 2048, 2048), (4096, 64, 4096), (8192, 16, 8192), (14336, 4096, 4096))

SETS = 3
"""Buffer sets, so that inputs are not in L2."""


def inputs(torch, sizes):
    """Return buffer sets on the GPU: the dense weights, values, metadata, B and the result."""
    m, n, k = sizes
    sets = []
    for seed in range(SETS):
        generator = np.random.default_rng(seed)
        values, metadata = compress_2_4(generator.standard_normal((m, k), np.float32).astype(np.float16), prune=True)
        dense, b = decompress_2_4(values, metadata), generator.standard_normal((k, n), np.float32).astype(np.float16)
        arrays = [torch.from_numpy(array).cuda() for array in (dense, values, metadata, b)]
        sets.append((*arrays, torch.empty((m, n), dtype=torch.float16, device="cuda")))
    return sets


def require_right(torch, name, result, dense, b):
    want = dense.float() @ b.float()
    error = ((result.float() - want).norm() / want.norm()).item()
    if not error < 2e-3:
        raise SystemExit(f"{name}: the relative error is {error:.2g}")


def kernels(sizes):
    """Yield the kernels of the library by name: each strategy with each of its default tiles that is legal."""
    for module in (sparse_hopper, sparse_ampere):
        for number, tiles in enumerate(module.defaults(*sizes)):
            name = f"{module.__name__.rpartition('.')[2]} {tiles['bm']}x{tiles['bn']}x{tiles['bk']}, {tiles['stages']} stages"
            try:
                yield name, module.strategy.with_(**tiles)(module.spec(*sizes)).compile()
            except FireironError as error:
                print(f"{name} ({number}): {str(error).splitlines()[0]}")


def contenders(torch, sizes):
    """Return the calls of each contender, one per buffer set, after a comparison of its result."""
    sets = inputs(torch, sizes)
    calls = {}
    for name, kernel in kernels(sizes):
        calls[name] = [lambda kernel=kernel, one=one: kernel(*one[1:4], out=one[4]) for one in sets]
        calls[name][0]()
        require_right(torch, name, sets[0][4], sets[0][0], sets[0][3])
    calls["torch.matmul, dense"] = [lambda one=one: torch.matmul(one[0], one[3], out=one[4]) for one in sets]
    try:
        sparse = [torch.sparse.to_sparse_semi_structured(one[0]) for one in sets]
        require_right(torch, "cuSPARSELt", torch.mm(sparse[0], sets[0][3]), sets[0][0], sets[0][3])
        calls["torch.mm, cuSPARSELt"] = [lambda a=a, one=one: torch.mm(a, one[3]) for a, one in zip(sparse, sets, strict=True)]
    except (RuntimeError, NotImplementedError, AttributeError) as error:
        print(f"cuSPARSELt: {str(error).splitlines()[0]}")
    return calls


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sizes", nargs="*", help="such as 4096x4096x4096")
    arguments = parser.parse_args()
    import torch

    shapes = [tuple(map(int, text.split("x"))) for text in arguments.sizes] if arguments.sizes else SIZES
    arguments.folder.mkdir(parents=True, exist_ok=True)
    results, rows = [], []
    for sizes in shapes:
        timings = measure(contenders(torch, sizes), rounds=arguments.rounds)
        dense = timings["torch.matmul, dense"].us
        for name, timing in timings.items():
            speed = 2e-6 * sizes[0] * sizes[1] * sizes[2] / timing.us
            results.append({"sizes": sizes, "contender": name, "us": timing.us, "tflops": speed, "of_dense": dense / timing.us})
            rows.append(("x".join(map(str, sizes)), name, f"{timing.us:.1f}", f"{speed:.0f}", f"{dense / timing.us:.2f}"))
    text = tabulate(rows, ("M x N x K", "contender", "us", "dense TFLOP/s", "speed of dense"))
    print(text)
    (arguments.folder / "sparse.json").write_text(json.dumps(results, indent=1))
    (arguments.folder / "sparse.txt").write_text(text + "\n")


if __name__ == "__main__":
    main()
