"""Compare the library kernels printed by several checkouts on one GPU: registers, spills, time.

    python perf/compare_checkouts.py OTHER [OTHER ...] [--only NAME ...] [-o FILE]

OTHER is a folder with another checkout of this project, for example an older one. Each checkout prints its kernels in a separate process;
all texts are compiled by the same compiler, verified against float64 on the same data, and measured together with cuBLAS in one run
(`fireiron.measure.timing`: CUDA graphs, medians of 20, burst, L2 rotated). Needs a GPU, CuPy, PyTorch.
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
"""`(strategy, sizes, tunables)`; the strategy's own sizes and first legal tunables by default."""

CHILD = """
import json, sys
try:
    from fireiron.language import library
except ImportError:
    from fireiron import library
try:
    from fireiron.cuda import dynamic_shared_bytes
except ImportError:
    def dynamic_shared_bytes(kernel):
        return kernel.dynamic_shared_bytes
def zeroed(kernel):
    if hasattr(kernel, "zeroed"):
        return list(kernel.zeroed)
    from fireiron.ir.effects.zeroed import Zeroed
    return list(kernel.effects[Zeroed].names)
printed = []
for name, sizes, values in json.loads(sys.argv[1]):
    program = library.bind(library.find(name), sizes, values=values).program(sys.argv[2])
    kernel = program.ir
    printed.append({"name": kernel.name, "text": program.cuda, "threads": kernel.threads, "grid": kernel.grid.evaluate({}),
        "dynamic": dynamic_shared_bytes(kernel), "order": [one.name for one in kernel.buffers if one.parameter], "zeroed": zeroed(kernel)})
print(json.dumps(printed))
"""


def printed(checkout, cases, arch):
    """Return the output of a checkout, for each case."""
    command = [sys.executable, "-c", CHILD, json.dumps(cases), arch]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(checkout)}, cwd=checkout, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{checkout} does not print its kernels:\n{done.stderr}")
    return json.loads(done.stdout)


def contender(case, arch):
    """`(registers, spilled bytes, the function that makes a launch on the arrays of a set)` of a printed kernel."""
    from fireiron.gpu import launch
    from fireiron.gpu.toolchain import compile_cuda

    compiled = compile_cuda(case["text"], arch, newest=launch.driver_version())
    (used,) = compiled.resources.values()
    launcher = launch.load(compiled.cubin, case["name"], case["dynamic"])

    def bound(arrays):
        arguments = [arrays[name] for name in case["order"]]
        zeroed = [arrays[name] for name in case["zeroed"]]

        def call():
            for array in zeroed:
                launch.zero(array)
            launcher(case["grid"], case["threads"], arguments)

        return call

    return used.registers, used.spill_stores + used.spill_loads, bound


def compared(case, texts, arch):
    """Return a row: registers, spilled bytes and microseconds of each checkout's kernel, and microseconds of cuBLAS."""
    from fireiron.language import library
    from fireiron.measure.data import Data
    from fireiron.measure.timing import cublas, measure

    name, sizes, values = case
    data = Data.of(library.bind(library.find(name), sizes, values=values).spec)
    contenders = {label: contender(one, arch) for label, one in texts.items()}
    calls = {label: data.calls(bound) for label, (_, _, bound) in contenders.items()}
    errors = {label: data.verify(found[0], data.tolerance) for label, found in calls.items()}
    timings = measure(calls | {"cuBLAS": data.calls(cublas)})
    row = {"strategy": name, "size": "x".join(map(str, data.spec.sizes))}
    for label, (registers, spilled, _) in contenders.items():
        row |= {f"regs {label}": registers, f"spilled {label}": spilled, f"us {label}": timings[label].us, f"error {label}": errors[label]}
    first = next(iter(texts))
    return row | {"us cuBLAS": timings["cuBLAS"].us} | {f"{label}/{first}": timings[label].us / timings[first].us for label in texts}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("others", type=Path, nargs="+", metavar="OTHER")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="strategies")
    parser.add_argument("-o", type=Path, metavar="FILE", help="write the rows as JSON")
    arguments = parser.parse_args()
    import torch  # calls cuBLAS
    from tabulate import tabulate

    from fireiron.gpu import launch
    from fireiron.measure.timing import environment

    torch.backends.cuda.matmul.allow_tf32 = False
    arch = launch.device_arch()
    cases = [case for case in CASES if not arguments.only or case[0] in arguments.only]
    checkouts = {one.name.strip("."): one.resolve() for one in arguments.others} | {"here": HERE}
    texts = {label: printed(checkout, cases, arch) for label, checkout in checkouts.items()}
    rows = [compared(case, {label: found[number] for label, found in texts.items()}, arch) for number, case in enumerate(cases)]
    shown = [{key: value for key, value in row.items() if not key.startswith("error")} for row in rows]
    print(tabulate(shown, headers="keys", floatfmt=".4g"))
    first = next(iter(checkouts))
    for label in checkouts:
        mean = math.exp(sum(math.log(row[f"{label}/{first}"]) for row in rows) / len(rows))
        print(f"geometric mean of {label} / {first}: {mean:.4f}")
    if arguments.o is not None:
        head = {"date": datetime.date.today().isoformat(), "command": " ".join(sys.argv), "environment": environment()}
        arguments.o.write_text(json.dumps(head | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
