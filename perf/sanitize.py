"""Run compute-sanitizer as a third oracle: memcheck, racecheck, initcheck and synccheck on library and random kernels, with faults that
must be reported.

    python perf/sanitize.py [FOLDER]        on a GPU: all tools on all kernels, in several processes; about two minutes on 16 cores
    python perf/sanitize.py --dry           compile all of it, including the faults, without a GPU

Each tool runs every kernel of `KERNELS` and its controls: a text with a fault of its kind, where it must report something, and the same
text without the fault, where it must report nothing. Each array is a separate allocation of the driver: CuPy's pool would place arrays next
to each other, so that accesses past the end of one are legal. Each process runs a share of the kernels, and compares the results with their
definitions as well.
"""

import argparse
import functools
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import attrs
import numpy as np
from cases import HOPPER, bound_of, drawn, shipped
from drawn_kernels import record_of
from drawn_problems import FAMILIES, problem
from tabulate import tabulate

from fireiron import *
from fireiron.errors import FireironError
from fireiron.gpu import launch
from fireiron.gpu.kernel import target_for
from fireiron.gpu.toolchain import compile_cuda
from fireiron.values.expr import compiled as number_of

TOOLS = {
    "memcheck": ("--report-api-errors", "no"),
    "racecheck": (),
    "initcheck": (),
    "synccheck": (),
}
DRAWN = 60
OF_EACH = 4
"""Kernels of each generator of `tests/drawn_problems.py`."""
SECONDS = 200
"""The time limit of one share under one tool."""

ALIKE = ("(1800, 2312, 456)",)
"""Sizes that are left out: too large for a tool that slows a kernel down a hundredfold."""


def kernels(target):
    """Return the kernels for all tools, by name."""
    library = {name: make for name, make in shipped(target).items() if not any(sizes in name for sizes in ALIKE)}
    return {**library, **drawn(DRAWN, first=7001), **of_generators()}


def of_generators():
    """Return functions that draw strategies with all generators, by generator and seed."""
    return {f"{family} {seed}": functools.partial(_bound, family, seed) for family in FAMILIES for seed in range(9001, 9001 + OF_EACH)}


def _bound(family, seed):
    return problem(family, seed).program.strategy


# ---------------------------------------------------------------------------------------------- controls


@attrs.frozen
class Control:
    """A text with a fault: its title, the tool that must report it, and the pattern that is replaced, with its replacement.

    With `accumulate` the kernel adds to its output: the fault is that the output is uninitialized. With `places` the fault is injected only
    at the first given number of matches.
    """

    name: str
    tool: str
    pattern: str
    replacement: str
    accumulate: bool = False
    places: int = 0

    def program(self):
        """Return the clean kernel: tiles that extend past the edge, staged in shared memory."""
        near = Move.tile(1, 1).to(Thread).done()
        loop = MatMul.split(8).load(A, SH, near).load(B, SH, near).tile(4, 4).to(Thread).split(1).tile(1, 1).done()
        strategy = MatMul.tile(32, 32).to(Block).then(loop)
        return strategy(MatMul(70, 50, 30, accumulate=self.accumulate)(GL, GL, GL)(Kernel))

    def texts(self, target):
        """Return the kernel's IR, its text, and the text with the fault."""
        program = self.program().program(target)
        text = program.cuda
        wrong, count = re.subn(self.pattern, self.replacement, text, count=self.places)
        if not count and self.pattern:
            raise SystemExit(f"{self.name}: `{self.pattern}` is not in the text; adapt this fault")
        return program.ir, text, wrong


CONTROLS = (
    Control("dropped barriers", "racecheck", r"__syncthreads\(\);", ""),
    Control("dropped guards", "memcheck", r"if \([^{}\n]*\b(?:70|50|30)\b[^{}\n]*\)", "if (true)"),
    Control("sums accumulated into uninitialized memory", "initcheck", "", "", accumulate=True),
    Control("a barrier that one warp of two skips", "synccheck", r"__syncthreads\(\);", "if (threadIdx.x < 32) __syncthreads();", places=1),
)
"""synccheck does not report a warp that skips all barriers and exits: barriers do not wait for exited threads."""


def run_control(control, faulty, target):
    """Launch a control's text, right or wrong, with separate memory for each array."""
    import cupy

    ir, text, wrong = control.texts(target)
    kernel = cupy.RawModule(code=wrong if faulty else text, options=("-std=c++17",)).get_function(ir.name)
    generator = np.random.default_rng(0)
    a, b = (cupy.asarray(generator.integers(-2, 3, shape).astype(np.float32)) for shape in ((30, 70), (50, 30)))  # column-major
    c = cupy.empty((50, 70), np.float32)
    if not (control.accumulate and faulty):
        c[...] = 0
    kernel((int(number_of(ir.grid)({})),), (ir.threads,), (a, b, c), shared_mem=int(ir.dynamic_shared_bytes))
    cupy.cuda.Device().synchronize()
    print("control ran")


# ---------------------------------------------------------------------------------------------- in a process under a tool


def run_share(names, target):
    """Run some kernels, compare each with its definition, and print a line for each."""
    for number, name in enumerate(names):
        try:
            wrong = wrong_of(name, number, target)
            print(f"kernel {name}: {wrong or 'right'}", flush=True)
        except Exception:
            print(f"kernel {name}: failed: {traceback.format_exc()}", flush=True)


def wrong_of(name, number, target):
    """Run a kernel, and return what is wrong with its outputs."""
    from campaign_gpu import Device, checked

    if name in of_generators():
        family, seed = name.split()
        return record_of(Device(zone=0), family, int(seed))["wrong"]
    strategy, symbols = bound_of(kernels(target)[name]())
    return checked(Device(zone=0), name, strategy.compile(target), symbols, number, 1)["wrong"]


def child(options):
    """Run the main function of a process under a tool."""
    launch.require_cupy().cuda.set_allocator(None)
    what = json.loads(options.child)
    target = target_for(launch.device_arch())
    if "control" in what:
        run_control(next(one for one in CONTROLS if one.name == what["control"]), what["faulty"], target)
    else:
        run_share(what["kernels"], target)


# ---------------------------------------------------------------------------------------------- all runs


def under(tool, what):
    """Run a process under a tool: the number of reported errors, and its output."""
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    command = [sanitizer, "--tool", tool, *TOOLS[tool], "--print-limit", "20", sys.executable, __file__, "--child", json.dumps(what)]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired as late:
        return None, f"still running after {SECONDS} s\n{(late.stdout or b'').decode()}"
    output = ran.stdout + ran.stderr
    summary = re.findall(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)", output)
    return (sum(int(one or other) for one, other in summary) if summary else None), output


def shares(names, count):
    """Return the names in a given number of shares; adjacent names go to different shares."""
    return [names[start::count] for start in range(min(count, len(names)))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", help="folder for README.md and the output of the tools")
    parser.add_argument("--dry", action="store_true", help="compile everything without a GPU")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at once (default: one for each processor)")
    parser.add_argument("--only", default="", help="only kernels whose names contain this regular expression")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(options)
    target = HOPPER if options.dry else target_for(launch.device_arch())
    names = [name for name in kernels(target) if re.search(options.only, name)]
    started = time.monotonic()
    if options.dry:
        return dry(names, target, options.jobs)
    with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("forkserver")) as pool:
        for name, why in pool.map(cached, list(names), [target] * len(names)):
            if why == REFUSED:
                names.remove(name)
            elif why:
                print(f"{name}: {why}", flush=True)
    return table(names, options, started)


REFUSED = "refused for this target"


def cached(name, target):
    """In a separate process, compile a kernel into the compile cache for all tools; returns its name, and the error, if any."""
    try:
        strategy = bound_of(kernels(target)[name]())[0]
        if name in of_generators() and _refused(strategy, target):
            return name, REFUSED
        strategy.compile(target)
        return name, ""
    except Exception:
        return name, traceback.format_exc()


def _refused(strategy, target):
    try:
        return not strategy.program(target).cuda
    except FireironError:
        return True


def dry(names, target, jobs):
    """Compile every kernel, and the texts of the controls with their faults."""
    for control in CONTROLS:
        _, text, wrong = control.texts(target)
        for source in {text, wrong}:
            compile_cuda(source, target)
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("forkserver")) as pool:
        failures = [(name, why) for name, why in pool.map(cached, names, [target] * len(names)) if why not in ("", REFUSED)]
    for name, why in failures:
        print(f"{name}: {why}", flush=True)
    failed = len(failures)
    print(f"{len(names)} kernels and {len(CONTROLS)} controls for {target}, {failed} do not compile")
    return int(failed > 0)


def table(names, options, started):
    """Return all tools on all shares and controls, several at once; 0 if kernels are clean and faults are reported."""
    work = [(tool, {"kernels": share}) for tool in TOOLS for share in shares(names, max(1, options.jobs // 2))]
    work += [(one.tool, {"control": one.name, "faulty": faulty}) for one in CONTROLS for faulty in (True, False)]
    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(lambda one: under(*one), work))
    rows, bad = [], 0
    for tool in TOOLS:
        own = [(what, *result) for (by, what), result in zip(work, results, strict=True) if by == tool and "kernels" in what]
        right = sum(len(re.findall(r"^kernel .*: right$", said, re.MULTILINE)) for _, _, said in own)
        errors = sum(count or 0 for _, count, _ in own)
        unknown = sum(count is None for _, count, _ in own)
        faults = {what["faulty"]: count for (by, what), (count, _) in zip(work, results, strict=True) if by == tool and "control" in what}
        good = right == len(names) and not errors and not unknown and bool(faults[True]) and faults[False] == 0
        bad += not good
        rows.append([tool, len(names), right, errors, unknown, faults[True], faults[False], "good" if good else "BAD"])
    headers = ["tool", "kernels", "ran and right", "errors", "shares without a verdict", "errors in its fault", "in the same without", ""]
    text = tabulate(rows, headers, tablefmt="github")
    print(f"{text}\n{time.monotonic() - started:.0f} s")
    if options.folder:
        options.folder.mkdir(parents=True, exist_ok=True)
        output = "\n\n".join(
            f"== {tool} {json.dumps(what)[:200]}\n{out[-20000:]}" for (tool, what), (_, out) in zip(work, results, strict=True)
        )
        (options.folder / "sanitizer.txt").write_text(output, encoding="utf-8")
        (options.folder / "sanitizer.md").write_text(f"# compute-sanitizer\n\n`python perf/sanitize.py`\n\n{text}\n", encoding="utf-8")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
