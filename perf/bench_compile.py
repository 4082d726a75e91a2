"""How long the Python side takes: import, strategy to CUDA text, checks, NVRTC.

    python perf/bench_compile.py

Aims on two cores: import under 200 ms, strategy to CUDA text under 100 ms for every strategy of the library (the first one of
a process included). Each kernel is made in a fresh process, so nothing is cached; the least of three runs is shown.
"""

import json
import pkgutil
import subprocess
import sys
from pathlib import Path

from tabulate import tabulate

ROOT = Path(__file__).parent.parent

CHILD = """
import sys, time, json
start = time.perf_counter()
import fireiron
imported = time.perf_counter()
import importlib, fireiron.compiler
module = importlib.import_module("strategies." + sys.argv[1])
spec = module.spec(*module.SIZES)
ready = time.perf_counter()
program = module.strategy(spec).program("sm_90")
text = program.cuda
printed = time.perf_counter()
from fireiron.check import check
findings = check(program.ir)
checked = time.perf_counter()
try:
    from fireiron.gpu.toolchain import compile_cuda
    seconds = compile_cuda(text, "sm_90").seconds
except fireiron.LaunchError:
    seconds = float("nan")
print(json.dumps([imported - start, printed - ready, checked - printed, seconds, len(text.splitlines())]))
"""


def measured(name):
    """The least of three runs, in milliseconds."""
    runs = [
        json.loads(subprocess.run([sys.executable, "-c", CHILD, name], cwd=ROOT, check=True, capture_output=True, text=True).stdout)
        for _ in range(3)
    ]
    return [min(values) * 1000 for values in list(zip(*runs, strict=True))[:4]] + [runs[0][4]]


def main():
    names = sorted(module.name for module in pkgutil.iter_modules([str(ROOT / "strategies")]) if not module.name.startswith("_"))
    rows = [[name, *measured(name)] for name in names]
    print(tabulate(rows, ["strategy", "import ms", "to CUDA ms", "all checks ms", "NVRTC ms", "lines"], floatfmt=".0f"))


if __name__ == "__main__":
    main()
