"""Compare the library kernels of two checkouts on one GPU: results and times.

    python perf/compare_checkouts.py OTHER [--only NAME ...] [--jobs 8] [--seconds 500] [-o FILE]

OTHER is a folder with another checkout of this project, for example an older one. A process per checkout lowers, compiles and launches its own
kernels, so that texts, launches and tensor maps of each are its own. All kernels are compiled first, in parallel, into each checkout's
compile cache. Then, strategy by strategy, each process verifies its kernel against float64 and both measure it alternately (three times,
`fireiron.measure.timing`: CUDA graphs, burst, L2 rotated; the median of the three medians counts). Strategies are those of `strategies/` of this
checkout that OTHER accepts too, `FORMER` names included, on their files' own problems or on those of `SIZES`. Cells that remain at the time
limit are reported. Needs a GPU and CuPy.
"""

import argparse
import datetime
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from tabulate import tabulate

from fireiron.language import library
from fireiron.language.strategy import Strategy

HERE = Path(__file__).resolve().parents[1]
ROUNDS = 3

FORMER = {"no_overlap": "in_order", "q_in_registers": "held", "order_mma": "in_turns", "two_loops": "in_turn"}
"""Parts of the names of strategies, and the parts that older checkouts have instead."""

SIZES = {
    "attention": {"M": 4096, "N": 4096}, "attention_packed": {"M": 4096, "N": 4096}, "hopper_attention": {"M": 4096, "N": 4096},
    "tasks_attention": {"M": 4096, "N": 4096}, "hopper_small": {"M": 1024, "N": 1024, "K": 1024},
    "small": {"M": 1024, "N": 1024, "K": 1024},
}  # fmt: skip
"""Sizes other than the file's own, by file: those are too small to time."""

CHILD = """
import json, sys
from fireiron.language import library
def strategy(case):
    return library.bind(library.find(case["name"]), case["sizes"], architecture="sm_90a")
def compiled(case):
    return strategy(case).compile("sm_90a")
if sys.argv[1] == "compile":
    for line in sys.stdin:
        try:
            compiled(json.loads(line))
        except Exception as error:
            print(json.dumps([line, str(error)[:300]]), flush=True)
    sys.exit()
from fireiron.measure.data import Data
from fireiron.measure.timing import measure
for line in sys.stdin:
    case = json.loads(line)
    try:
        if case["do"] == "prepare":
            kernel = compiled(case)
            data = Data.of(kernel.program.spec)
            calls = data.calls(kernel)
            answer = {"error": data.verify(calls[0], data.tolerance_for(kernel)), "text": kernel.program.cuda}
        else:
            answer = {"us": measure({"kernel": calls}, rounds=case["rounds"], seconds=0.4)["kernel"].us}
    except Exception as error:
        answer = {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
    print("@" + json.dumps(answer), flush=True)
"""


class Checkout:
    """A process that compiles and measures the kernels of a checkout."""

    def __init__(self, folder, mode="measure"):
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, mode], cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, **request):
        """Send a request; return its answer. Raises: `EOFError` if the process ended."""
        self.send(**request)
        return self.answer()

    def send(self, **request):
        """Send a request."""
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def answer(self):
        """Return the answer to the last request. Raises: `EOFError` if the process ended."""
        for line in self.process.stdout:
            if line.startswith("@"):
                return json.loads(line[1:])
        raise EOFError(f"a checkout's process ended: {self.process.wait()}")

    def close(self):
        """End the process's input; return what it still prints."""
        return self.process.communicate()[0]


def former(name):
    """Return the name of a strategy in an older checkout."""
    for new, old in FORMER.items():
        name = name.replace(new, old)
    return name


def cases(only):
    """`{name, sizes}` of each finished strategy of this checkout whose default tunables are legal for its problem."""
    strategies = []
    for stem in library.names():
        module = vars(library._library_module(stem))  # the module of a strategy file; its public names are its strategies
        for name, value in module.items():
            label = stem if name == "strategy" else f"{stem}:{name}"
            if not isinstance(value, Strategy) or name.startswith("_") or (only and label not in only):
                continue
            strategies += [{"name": label, "sizes": SIZES.get(stem, {})}]
    return strategies


def compile_all(folder, cases, jobs):
    """Fill the compile cache of a checkout; return the names that it refuses, for example of parts of other strategies."""
    processes = [Checkout(folder, "compile") for _ in range(jobs)]
    for number, process in enumerate(processes):
        process.process.stdin.write("".join(json.dumps(case) + "\n" for case in cases[number::jobs]))
    answers = [json.loads(line) for process in processes for line in process.close().splitlines()]
    return {json.loads(case)["name"] for case, _ in answers}


def compared(case, here, other):
    """Return the row of a strategy: errors, microseconds of both, and other / here, so that a number above 1 means that here is faster."""
    pair = {"here": (here, case), "other": (other, case | {"name": former(case["name"])})}
    row = {"strategy": case["name"], "sizes": case["sizes"]}
    for process, request in pair.values():
        process.send(do="prepare", **request)
    prepared = {label: process.answer() for label, (process, _) in pair.items()}
    row |= {f"error {label}": answer.get("error") for label, answer in prepared.items()}
    if failed := {label: answer["failed"] for label, answer in prepared.items() if "failed" in answer}:
        return row | {"failed": failed}
    times = {label: [] for label in pair}
    for number in range(ROUNDS):
        for label in sorted(pair, reverse=number % 2 == 1):
            times[label].append(pair[label][0].ask(do="measure", rounds=7)["us"])
    median = {label: statistics.median(values) for label, values in times.items()}
    same = prepared["here"]["text"] == prepared["other"]["text"]
    return row | {f"us {label}": value for label, value in median.items()} | {"ratio": median["other"] / median["here"], "same text": same}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", type=Path, metavar="OTHER")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these strategies, for example hopper or hopper_attention:causal")
    parser.add_argument("--jobs", type=int, default=8, metavar="N", help="processes that compile")
    parser.add_argument("--seconds", type=float, default=500, metavar="S", help="start no strategy after S seconds")
    parser.add_argument("-o", type=Path, metavar="FILE", help="write the rows as JSON")
    arguments = parser.parse_args()
    from fireiron.measure.timing import environment

    start = time.monotonic()
    other = arguments.other.resolve()
    wanted = cases(arguments.only)
    refused = compile_all(HERE, wanted, arguments.jobs)
    wanted = [case for case in wanted if case["name"] not in refused]
    refused = compile_all(other, [case | {"name": former(case["name"])} for case in wanted], arguments.jobs)
    wanted = [case for case in wanted if former(case["name"]) not in refused]
    print(f"{len(wanted)} strategies, compiled after {time.monotonic() - start:.0f} s", flush=True)
    processes = Checkout(HERE), Checkout(other)
    rows = []
    for case in wanted:
        if time.monotonic() - start > arguments.seconds:
            print(f"time limit: {case['name']} was not measured")
            continue
        rows.append(compared(case, *processes))
        if arguments.o is not None:
            head = {"date": datetime.date.today().isoformat(), "command": " ".join(sys.argv), "environment": environment()}
            arguments.o.write_text(json.dumps(head | {"rows": rows}, indent=1) + "\n")
    print(tabulate(rows, headers="keys", floatfmt=".4g"))
    ratios = [row["ratio"] for row in rows if "ratio" in row]
    mean = math.exp(statistics.mean(map(math.log, ratios)))
    print(f"other / here, {len(ratios)} strategies: geometric mean {mean:.4f}, lowest {min(ratios):.4f}, highest {max(ratios):.4f}")


if __name__ == "__main__":
    main()
