"""Tune strategies of the library on the present GPUs, and store the best of each problem as records.

    python perf/tune_library.py RECORDS.jsonl [--only small] [--gpus 0,1] [--part 0/4] [--again] [--log FOLDER]

Each problem is searched in two parts, as its space is large and most of its tunables hardly depend on each other: first tile sizes, with a
fixed pipeline depth, then the pipeline with the best tile sizes. The measured candidates are those with the best predictions of the cost
model. Problems with exact shipped records are left out, unless `--again`. `fireiron records merge RECORDS.jsonl -o
strategies/records/h200.jsonl` makes the shipped file.
"""

import argparse
import json
import time
from pathlib import Path

from fireiron import ColMajor, RowMajor, float16
from fireiron.language import library
from fireiron.tune import OnGpu, tune
from fireiron.tune.records import Records, strategy_hash

STARTED = {"small": {"stages": 4, "lookahead": 2, "bk": 64}, "hmma_ampere": {"stages": 4, "bk": 64}, "split_k": {"stages": 4, "bk": 64}}
"""Values that the first part fixes."""

PROBLEMS = (
    *(("small", (size, size, size), {}) for size in (64, 128, 256, 512, 1024)),
    *(("hmma_ampere", (size, size, size), {}) for size in (4096, 2048, 1024)),
    ("hmma_ampere", (1536, 1024, 2048), {"dtype": float16, "c_dtype": float16, "A": ColMajor, "B": RowMajor, "C": ColMajor}),
    ("sgemm", (4096, 4096, 4096), {}),
    ("gemm_nn", (1024, 1024, 1024), {}),
    ("split_k", (64, 64, 1024), {}),
    ("split_k", (256, 256, 1024), {}),
    ("hmma_ampere", (4096, 4096, 1024), {}),
    ("hmma_ampere", (1024, 1024, 4096), {}),
    ("small", (1024, 1024, 64), {}),
    ("hmma_ampere", (1024, 2048, 2048), {}),
    ("small", (768, 768, 768), {}),
    ("hmma_ampere", (1024, 4096, 4096), {}),
    ("small", (256, 1024, 256), {}),
    ("small", (1024, 64, 256), {}),
    ("small", (64, 1024, 64), {}),
    ("split_k", (64, 64, 256), {}),
    ("split_k", (256, 64, 1024), {}),
    ("split_k", (256, 256, 256), {}),
    ("gemm_nn", (256, 256, 256), {}),
    ("sgemm", (2048, 2048, 2048), {}),
)
"""Strategy, shape, and options of its spec; the most important first."""


def spec_of(name, shape, options):
    return library.find(name).problem(*shape, **options)


def is_recorded(name, spec):
    """Whether the shipped records have exactly this spec, for the present strategy."""
    entry = library.find(name)
    return any(
        record.strategy == name and record.strategy_hash == strategy_hash(entry.strategy) for record in Records.shipped().for_spec(spec)
    )


def searched(name, spec, trials, gpus, jobs):
    """Return the tunings of a problem's parts."""
    entry = library.find(name)
    common = {"name": name, "measure": OnGpu(rounds=5, final_rounds=20), "finalists": 4, "fresh": True, "gpu_ids": gpus, "jobs": jobs}
    first = tune(entry.strategy, spec, fixed=STARTED.get(name, {}), trials=trials, **common)
    if name not in STARTED or first.best is None:
        return [first]
    tiles = {tunable: value for tunable, value in first.best.values.items() if tunable not in STARTED[name]}
    return [first, tune(entry.strategy, spec, fixed=tiles, trials=trials // 2, **common)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("records", type=Path)
    parser.add_argument("--only", help="one strategy")
    parser.add_argument("--gpus", type=lambda text: [int(number) for number in text.split(",")], default=[0])
    parser.add_argument("--trials", type=int, default=24, help="candidates that the first part measures")
    parser.add_argument("--jobs", type=int, help="processes that lower and compile")
    parser.add_argument(
        "--part", type=lambda text: tuple(map(int, text.split("/"))), default=(0, 1), help="0/4: the first of every four problems"
    )
    parser.add_argument("--again", action="store_true", help="also what is recorded")
    parser.add_argument("--log", type=Path, help="folder for what became of each candidate")
    options = parser.parse_args()
    problems = [(name, shape, spec_of(name, shape, storage)) for name, shape, storage in PROBLEMS if options.only in (None, name)]
    problems = [one for one in problems if options.again or not is_recorded(one[0], one[2])]
    part, parts = options.part
    for name, shape, spec in problems[part::parts]:
        start = time.monotonic()
        tunings = searched(name, spec, options.trials, options.gpus, options.jobs)
        best = min((one for one in tunings if one.best is not None), key=lambda one: one.best.us / (one.library_us or 1.0), default=None)
        label = f"{name} {'x'.join(map(str, shape))}"
        if best is None:
            print(f"{label}: nothing found\n{tunings[0].table()}", flush=True)
            continue
        Records.append_to(options.records, best.best)
        of_library = f", {best.library_us / best.best.us:.3f} of the library" if best.library_us else ""
        values = " ".join(f"{tunable}={value}" for tunable, value in best.best.values.items())
        print(
            f"{label}: {best.best.us:.4g} us{of_library}; {values}; {[one.counts for one in tunings]}; {time.monotonic() - start:.0f} s",
            flush=True,
        )
        if options.log:
            options.log.mkdir(parents=True, exist_ok=True)
            plain = [one.plain() for one in tunings]
            (options.log / f"{label.replace(' ', '_')}.json").write_text(json.dumps(plain) + "\n")


if __name__ == "__main__":
    main()
