"""Run random kernels of all generators on a GPU: exact, or within the error bounds, between guard zones, and repeatable.

    python perf/drawn_kernels.py perf/results/DATE-GPU --seconds 60     as many as the time allows, in one process per processor
    python perf/drawn_kernels.py --dry --seconds 20                     the same in the simulator, compiled for sm_90a if NVRTC is installed

Each process draws, compiles, launches and compares. A kernel that is wrong is compiled again without the optimization of ptxas. One in
`EVERY` is launched `REPEATS` times and must give the same bits each time, unless it adds with atomics. The outputs of the simulator for the
same arrays are compared, too, if the program is for the same target.
"""

import argparse
import collections
import datetime
import json
import multiprocessing
import os
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from campaign.judged import copied
from campaign.names import names_of
from campaign.state import State
from drawn_problems import FAMILIES, problem
from on_gpu import PLAIN, Device
from tabulate import tabulate

from fireiron.errors import FireironError
from fireiron.gpu import launch
from fireiron.sim import simulate

REPEATS, EVERY = 20, 5


class Simulated:
    """A stand-in for a GPU: the simulator, and NVRTC if it is installed."""

    def compiled(self, strategy, options=()):
        """Return the program for sm_90a; None if it is refused."""
        from fireiron.gpu.toolchain import compile_cuda, toolchains

        try:
            program = strategy.program("sm_90a")
            text = program.cuda
        except FireironError:
            return None
        if any(one.serves("sm_90a") for one in toolchains()):
            compile_cuda(text, "sm_90a")
        return program

    def run(self, kernel, arrays, sizes, repeats=1):
        """Return the simulated outputs, once."""
        given = {**arrays, **copied(kernel, arrays, sizes)}
        return [simulate(kernel.ir, given, {one.name: sizes[one.name] for one in kernel.ir.symbols}).outputs] * repeats, []


def record_of(device, family, seed):
    """Return what happened to one drawn kernel; `wrong` is empty if all is right."""
    record = {"family": family, "seed": seed, "wrong": "", "repeated": False, "refused": False, "ptxas": False}
    drawn = problem(family, seed)
    kernel = device.compiled(drawn.program.strategy)
    if kernel is None:
        return record | {"refused": True}
    message, repeated = objection(device, kernel, drawn, REPEATS if seed % EVERY == 0 else 1)
    if message and not objection(device, device.compiled(drawn.program.strategy, PLAIN), drawn, 1)[0]:
        return record | {"ptxas": True, "wrong": ""}
    names = [] if message else sorted(names_of(getattr(kernel, "program", kernel)))
    return record | {"wrong": message, "repeated": repeated, "names": names}


def objection(device, kernel, drawn, repeats):
    """Return what is wrong with the outputs, and whether several launches were compared."""
    sizes = drawn.sizes
    results, wrong = device.run(kernel, {**drawn.arrays, **drawn.start}, sizes, repeats)
    wrong = [*wrong, drawn.wrong(results[0], kernel)]
    ordered = "atomic" not in (kernel.program.cuda if hasattr(kernel, "program") else kernel.cuda)
    same = all(one[output].tobytes() == results[0][output].tobytes() for one in results for output in one)
    if repeats > 1 and ordered and not same:
        wrong.append(f"{repeats} launches do not all return the same bits")
    return "; ".join(one for one in wrong if one), repeats > 1 and ordered


def worked(place, jobs, first, until, dry, only):
    """In a separate process: the records of each `jobs`-th seed until a time."""
    device, records, families = Simulated() if dry else Device(), [], [one for one in FAMILIES if not only or one in only]
    seed = first + place
    while time.time() < until:
        family = families[(seed // jobs) % len(families)]
        try:
            records.append(record_of(device, family, seed))
        except Exception:
            records.append(
                {"family": family, "seed": seed, "wrong": traceback.format_exc(), "repeated": False, "refused": False, "ptxas": False}
            )
        if "IllegalAddress" in records[-1]["wrong"] or "illegal memory" in records[-1]["wrong"]:
            break  # the context of this process is lost
        seed += jobs
    return records


def main():
    """Run, print the table, and write it with the records of wrong kernels."""
    options = parser().parse_args()
    until = time.time() + options.seconds
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        parts = [pool.submit(worked, place, options.jobs, options.first, until, options.dry, options.only) for place in range(options.jobs)]
        records = [record for part in parts for record in part.result()]
    return report(records, options)


def report(records, options):
    """Print the table, and write the folder; 1 if a kernel is wrong."""
    table = collections.defaultdict(collections.Counter)
    for record in records:
        table[record["family"]].update(
            {"kernels": not record["refused"], **{key: bool(record[key]) for key in ("repeated", "refused", "ptxas", "wrong")}}
        )
    keys = ("kernels", "repeated", "refused", "ptxas", "wrong")
    rows = [[family, *(int(table[family][key]) for key in keys)] for family in sorted(table)]
    rows.append(["all", *(sum(int(one[key]) for one in table.values()) for key in keys)])
    heads = [
        "generator",
        "kernels",
        f"{REPEATS} equal launches",
        "refused for this target",
        "right only without ptxas optimization",
        "wrong",
    ]
    text = tabulate(rows, heads, tablefmt="github")
    seeds = f"seeds {options.first} to {max((record['seed'] for record in records), default='none')}"
    where = "no GPU, in the simulator" if options.dry else f"on one GPU, {launch.device_arch()}"
    print(f"{text}\n{seeds}, {where}, {options.jobs} processes, {options.seconds:g} s", flush=True)
    for record in records:
        if record["wrong"]:
            print(f"{record['family']} {record['seed']}: {record['wrong'][-800:]}", flush=True)
    if options.folder:
        options.folder.mkdir(parents=True, exist_ok=True)
        wrong = [record for record in records if record["wrong"] or record["ptxas"]]
        (options.folder / "drawn.json").write_text(json.dumps(wrong, indent=1), encoding="utf-8")
        state = State("drawn-kernels", options.first, options.first)
        for record in records:
            state.count_names(record.get("names", ()))
        counts = {"seeds": seeds, "names": dict(state.names), "meetings": dict(state.meetings)}
        (options.folder / "names.json").write_text(json.dumps(counts), encoding="utf-8")
        date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
        command = f"`python perf/drawn_kernels.py {' '.join(sys.argv[1:])}`"
        (options.folder / "drawn.md").write_text(
            f"# Drawn kernels of all generators\n\n{date}, {command}: {seeds}, {where}.\n\n{text}\n", encoding="utf-8"
        )
    return int(any(record["wrong"] for record in records))


def parser():
    """Return the parser of the command line."""
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("folder", type=Path, nargs="?", help="where drawn.md and drawn.json are written")
    arguments.add_argument("--seconds", type=float, default=60, help="seconds after which no kernel begins (default: 60)")
    arguments.add_argument("--first", type=int, default=1, help="the first seed (default: 1)")
    arguments.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: one for each processor)")
    arguments.add_argument("--only", nargs="*", choices=list(FAMILIES), help="only these generators")
    arguments.add_argument("--dry", action="store_true", help="run in the simulator")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
