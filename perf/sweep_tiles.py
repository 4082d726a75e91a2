"""Measure random choices of the tunables: data for calibrating and judging the cost model.

    python perf/sweep_tiles.py FILE.json [--trials 55] [--gpus 0,1]

Nothing is pruned by a prediction, so the sample covers the whole space. `perf/cost_model.py FILE.json` compares.
"""

import argparse
import json
from pathlib import Path

from fireiron.language import library
from fireiron.measure import timing
from fireiron.tune import OnGpu, tune

SHAPES = {
    "small": [(size, size, size) for size in (64, 128, 256, 512, 768, 1024)] + [(64, 64, 1024), (256, 256, 1024), (1024, 1024, 64), (1536, 1024, 2048)],
    "hmma_ampere": [(1024, 1024, 1024), (1536, 1024, 2048), (2048, 2048, 2048), (4096, 4096, 4096), (4000, 4000, 4096), (8192, 8192, 1024), (4096, 4096, 64)],
    "gemm_nn": [(256, 256, 256), (1024, 1024, 1024), (2048, 2048, 2048), (500, 300, 200)],
    "sgemm": [(1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096)],
    "split_k": [(64, 64, 1024), (128, 128, 4096), (256, 256, 1024)],
}  # fmt: skip


def rows_of(name, shape, trials, gpus):
    """Return a row for each timed choice."""
    entry = library.find(name)
    tuning = tune(
        entry.strategy, entry.problem(*shape), name=name, search="random", trials=trials, prune=False, finalists=1, gpu_ids=gpus,
        measure=OnGpu(rounds=5),
    )  # fmt: skip
    sizes = dict(zip("MNK", shape, strict=True))
    return [{"strategy": name, "values": dict(one.values), **sizes, "us": one.us} for one in tuning.results if one.status == "ok"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--trials", type=int, default=55, help="choices for a shape")
    parser.add_argument("--gpus", type=lambda text: [int(number) for number in text.split(",")], default=[0])
    options = parser.parse_args()
    rows = []
    for name, shapes in SHAPES.items():
        for shape in shapes:
            rows += rows_of(name, shape, options.trials, options.gpus)
            print(f"{name} {shape}: {len(rows)} rows", flush=True)
            options.output.write_text(json.dumps({"environment": timing.environment(), "rows": rows}) + "\n")


if __name__ == "__main__":
    main()
