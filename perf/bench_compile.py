"""Measure the Python side: strategy to CUDA text with the mandatory checks, by stage, and the import and NVRTC.

    python perf/bench_compile.py [--json FILE] [--only NAME ...] [--runs N] [--import] [--second | --repeated]

Each row is a first compilation in a warm process: modules are imported and other kernels were compiled, but nothing about this one is
cached. Before each run all caches of the package are emptied, the strategy's module is executed again (so no object keeps a hash or a
tree), two other kernels are compiled, and the garbage is collected; the time runs from the spec to the text.

With `--second` it is the second strategy of its kind: its objects are created again, the caches are those that another form of the same
file left (itself if it has only one), and every form of a file is measured, such as `hopper_attention:no_overlap`. With `--repeated` its objects
are created again, and the caches are those that its own earlier compilations left.

Times are CPU milliseconds of the process, from the run with the smallest total of `--runs` (5). `tree`, `walk`, `verify`, `check` (all that
decide whether a kernel is right), `print` and the passes are the compiler's own stages (each pass includes the verification after it);
`search` is the choice of legal tunables. `total` is their sum. `others` are the checks that only `fireiron check` runs (banks, coalescing,
resources), not in the total.
"""

import argparse
import contextlib
import datetime
import functools
import gc
import importlib
import inspect
import json
import pkgutil
import platform
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import numpy
from tabulate import tabulate

import fireiron
from fireiron.check import AccessTrace, check_banks, check_coalescing, check_resources
from fireiron.language.strategy import Strategy
from fireiron.measure.revision import revision
from fireiron.spec import Starter

ROOT = Path(__file__).parent.parent
TARGETS = ("sm_80", "sm_90")
OLDER = ("sm_75", "sm_70")
HOPPER = "sm_90a"
OTHERS = ("naive", "small")
"""Compiled before each run, so that the process is warm."""

STAGES = (
    "search",
    "tree",
    "walk",
    "pipeline",
    "defer",
    "zero_init_elision",
    "allocate",
    "distribute",
    "vectorize",
    "asynchronous",
    "prune",
    "synchronize",
    "wait",
    "guard",
)
STAGES = (*STAGES, "verify", "check", "print")
LARGEST = {
    "hmma_ampere 256x256x64": ("hmma_ampere", {"bm": 256, "bn": 256, "bk": 64, "wm": 64, "wn": 64, "stages": 3}),
    "hmma_ampere 256x192x32": ("hmma_ampere", {"bm": 256, "bn": 192, "bk": 32, "wm": 64, "wn": 96, "stages": 4}),
}


def names():
    """Return the strategies of the library."""
    return sorted(module.name for module in pkgutil.iter_modules([str(ROOT / "strategies")]) if not module.name.startswith("_"))


def forget():
    """Empty every cache of the package."""
    for candidate in gc.get_objects():
        if isinstance(candidate, functools._lru_cache_wrapper) and (candidate.__module__ or "").startswith("fireiron"):
            candidate.cache_clear()
    gc.collect()


def program_of(name, arch, values):
    """Return the program of a library strategy, or of a form of it `name:form`, at its own sizes, with newly created objects."""
    place, _, form = name.partition(":")
    module = importlib.reload(importlib.import_module(f"fireiron.strategies.{place}"))
    strategy = getattr(module, form or "strategy")
    # A chain that starts from any spec, as those of tasks do, is for the first definition in the file.
    takes = isinstance(strategy.start, Starter) and "fused" in inspect.signature(module.spec).parameters
    own = {"fused": strategy.start} if form and takes else {}
    spec = module.spec(*module.SIZES, **own)
    if form:
        suited = getattr(module, f"{form}_values", getattr(module, "values", lambda spec: {}))(spec)
        values = {**{key: value for key, value in suited.items() if key in strategy.tunables()}, **values}
    return (strategy.with_(**values) if values else strategy)(spec).program(arch)


def forms(name):
    """The finished strategies of a file for the spec of its `strategy`, as `name:form`; those that specify a target only for that target."""
    module = importlib.import_module(f"fireiron.strategies.{name}")
    kind = type(module.strategy.start)
    known = {form: one for form, one in vars(module).items() if isinstance(one, Strategy) and isinstance(one.start, kind)}
    return [f"{name}:{form}" for form, one in known.items() if one.finished]


def of_hopper(name):
    """Whether a form uses warpgroup instructions."""
    place, _, form = name.partition(":")
    return getattr(importlib.import_module(f"fireiron.strategies.{place}"), form or "strategy").target == HOPPER


def before(name):
    """Return the strategy compiled before the second of its kind: another form of its file."""
    return next((one for one in forms(name.partition(":")[0]) if one != name), name)


FIRST, SECOND, REPEATED = "first", "second", "repeated"
"""What the caches hold before a compilation: nothing, another form of the file, the same strategy."""


def run(name, arch, values, kind=FIRST):
    """Return CPU milliseconds by stage of one compilation."""
    if kind == FIRST:
        forget()
    others = {FIRST: [other for other in OTHERS if other != name], SECOND: [before(name)], REPEATED: []}[kind]
    for other in others:
        with contextlib.suppress(fireiron.FireironError):
            _ = program_of(other, "sm_90" if kind == FIRST else arch, {}).cuda
    gc.collect()
    with mock.patch("time.perf_counter", time.process_time):
        start = time.process_time()
        program = program_of(name, arch, values)
        text = program.cuda
        total = time.process_time() - start
        access_trace = AccessTrace(program.ir)
        start = time.process_time()
        for check in (check_banks, check_coalescing, check_resources):
            check(access_trace)
        others = time.process_time() - start
    stages = {stage.replace("tunables", "search"): seconds * 1000 for stage, seconds in program.seconds.items()}
    return {"total": total * 1000, **stages, "others": others * 1000, "lines": len(text.splitlines())}


def measured(label, name, arch, values, runs, kind=FIRST):
    """Return the best of several runs; None if the target has no such kernel."""
    try:
        best = min((run(name, arch, values, kind) for _ in range(runs)), key=lambda one: one["total"])
    except fireiron.FireironError:
        return None
    return {"kernel": label, "arch": arch, **best}


def rows(only, runs, kind=FIRST):
    """Yield the measurements of all kernels."""
    kernels = [(name, name, {}) for name in names()] + [(label, name, values) for label, (name, values) in LARGEST.items()]
    if kind == SECOND:
        kernels = [(form, form, {}) for name in names() for form in forms(name)]
    for label, name, values in kernels:
        if only and name.partition(":")[0] not in only and name not in only:
            continue
        targets = (HOPPER,) if kind != FIRST and of_hopper(name) else TARGETS
        measurements = [one for arch in targets if (one := measured(label, name, arch, values, runs, kind))]
        measurements = measurements or [one for arch in OLDER if (one := measured(label, name, arch, values, runs, kind))]
        for measurement in measurements:
            print(f"{measurement['kernel']} {measurement['arch']}: {measurement['total']:.1f} ms", file=sys.stderr)
        yield from measurements


def environment():
    """Return the environment of the measurement."""
    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        cpu = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cpu": cpu,
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "revision": revision(),
        "command": " ".join(["python", "perf/bench_compile.py", *sys.argv[1:]]),
    }


CHILD = """
import time
start = time.process_time()
import fireiron
print(time.process_time() - start)
"""


def import_milliseconds():
    """Return CPU time of `import fireiron` in a fresh process, the minimum of five."""
    times = [subprocess.run([sys.executable, "-c", CHILD], cwd=ROOT, check=True, capture_output=True, text=True).stdout for _ in range(5)]
    return min(map(float, times)) * 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where to write the result")
    parser.add_argument("--only", nargs="*", help="names of strategies")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--import", action="store_true", dest="imports", help="also the time of `import fireiron`")
    kinds = parser.add_mutually_exclusive_group()
    kinds.set_defaults(kind=FIRST)
    for kind, words in (
        (SECOND, "each form of a file as the second strategy of its kind, memo tables kept"),
        (REPEATED, "the same strategy again, memo tables kept"),
    ):
        kinds.add_argument(f"--{kind}", action="store_const", const=kind, dest="kind", help=words)
    options = parser.parse_args()
    measurements = list(rows(options.only, options.runs, options.kind))
    columns = ("total", *STAGES, "others")
    table = [[one["kernel"], one["arch"], *(one.get(column) for column in columns)] for one in measurements]
    print(tabulate(table, ["kernel", "arch", *columns], floatfmt=".1f"))
    result = {
        **environment(),
        "unit": "CPU ms",
        "rows": [{k: round(v, 2) if isinstance(v, float) else v for k, v in r.items()} for r in measurements],
    }
    if options.imports:
        result["import"] = round(import_milliseconds(), 1)
        print(f"import fireiron: {result['import']} ms")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
