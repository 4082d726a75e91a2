"""The kernels of the library as two checkouts print them, beside each other on one GPU: registers, spills, time.

    python perf/compare_checkouts.py OTHER [-o FILE]

OTHER is a folder with another checkout of this project, an older one say. Each checkout prints its kernels in a process of its
own; both texts are compiled by the same compiler, verified against float64 on the same data, and measured beside cuBLAS in one
run (`fireiron.measure.timing`: CUDA graphs, medians of 20, burst, L2 rotated). Needs a GPU, CuPy, PyTorch.
"""

import argparse
import datetime
import json
import math
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]

CUBES = [{"M": size, "N": size, "K": size} for size in (4096,)]
LARGE = ("hmma_ampere", "hmma_turing", "hmma_volta", "wmma_optimized", "wmma_simple", "sgemm", "gemm_nn", "gemm_nt", "gemm_tn", "gemm_tt")
CASES = [
    *((name, {}, {}) for name in ("listing_1", "listing_2", "maxwell", "hgemm_nt", "naive")),
    *((name, sizes, {}) for name in LARGE for sizes in CUBES),
    ("hmma_ampere", {"M": 8192, "N": 8192, "K": 8192}, {}),
    ("hmma_ampere", {"M": 2048, "N": 2048, "K": 2048}, {}),
    ("hmma_ampere", {"M": 4000, "N": 4000, "K": 4096}, {}),
    *(("small", {"M": size, "N": size, "K": size}, {}) for size in (256, 512, 1024)),
    ("split_k", {"M": 64, "N": 64, "K": 1024}, {}),
    ("split_k_blocks", {"M": 128, "N": 128, "K": 8192}, {}),
]
"""`(strategy, sizes, tunables)`; the strategy's own sizes and first legal tunables where nothing is named."""

CHILD = """
import json, sys
try:
    from fireiron.language import library
except ImportError:
    from fireiron import library
from fireiron.cuda import dynamic_shared_bytes
printed = []
for name, sizes, values in json.loads(sys.argv[1]):
    program = library.bind(library.find(name), sizes, values=values).program(sys.argv[2])
    kernel = program.ir
    printed.append({"name": kernel.name, "text": program.cuda, "threads": kernel.threads, "grid": kernel.grid.evaluate({}),
        "dynamic": dynamic_shared_bytes(kernel), "order": [one.name for one in kernel.buffers if one.parameter], "zeroed": list(kernel.zeroed)})
print(json.dumps(printed))
"""


def printed(checkout, arch):
    """What a checkout prints, for each case."""
    command = [sys.executable, "-c", CHILD, json.dumps(CASES), arch]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(checkout)}, cwd=checkout, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{checkout} does not print its kernels:\n{done.stderr}")
    return json.loads(done.stdout)


def contender(one, arch):
    """`(registers, spilled bytes, the function that makes a launch on the arrays of a set)` of a printed kernel."""
    from fireiron.gpu import launch
    from fireiron.gpu.toolchain import compile_cuda

    compiled = compile_cuda(one["text"], arch, newest=launch.driver_version())
    (used,) = compiled.resources.values()
    launcher = launch.load(compiled.cubin, one["name"], one["dynamic"])

    def bound(arrays):
        arguments = [arrays[name] for name in one["order"]]
        zeroed = [arrays[name] for name in one["zeroed"]]

        def call():
            for array in zeroed:
                launch.zero(array)
            launcher(one["grid"], one["threads"], arguments)

        return call

    return used.registers, used.spill_stores + used.spill_loads, bound


def compared(case, before, after, arch):
    """A row: registers, spills and microseconds of both, and of cuBLAS."""
    from fireiron.language import library
    from fireiron.measure.data import Data
    from fireiron.measure.timing import cublas, measure

    name, sizes, values = case
    data = Data.of(library.bind(library.find(name), sizes, values=values).spec)
    made = {label: contender(one, arch) for label, one in (("before", before), ("after", after))}
    calls = {label: data.calls(bound) for label, (_, _, bound) in made.items()}
    errors = {label: data.verify(found[0], data.tolerance) for label, found in calls.items()}
    timings = measure(calls | {"cuBLAS": data.calls(cublas)})
    row = {"strategy": name, "spec": str(data.spec), "same text": before["text"] == after["text"]}
    for label, (registers, spilled, _) in made.items():
        row |= {
            f"registers {label}": registers,
            f"spilled {label}": spilled,
            f"us {label}": timings[label].us,
            f"error {label}": errors[label],
        }
    return row | {"us cuBLAS": timings["cuBLAS"].us, "after / before": timings["after"].us / timings["before"].us}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", type=Path)
    parser.add_argument("-o", type=Path, metavar="FILE", help="write the rows as JSON")
    arguments = parser.parse_args()
    import torch  # cuBLAS is called through it
    from tabulate import tabulate

    from fireiron.gpu import launch
    from fireiron.measure.timing import environment

    torch.backends.cuda.matmul.allow_tf32 = False
    arch = launch.device_arch()
    rows = [compared(*three, arch) for three in zip(CASES, printed(arguments.other.resolve(), arch), printed(HERE, arch), strict=True)]
    print(tabulate(rows, headers="keys", floatfmt=".4g"))
    print(f"geometric mean of after / before: {math.exp(sum(math.log(row['after / before']) for row in rows) / len(rows)):.4f}")
    if arguments.o is not None:
        head = {"date": datetime.date.today().isoformat(), "command": " ".join(sys.argv), "environment": environment()}
        arguments.o.write_text(json.dumps(head | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
