"""State the problems of KernelBench, levels 1 and 2, as definitions, and simulate each of them.

    python perf/kernelbench [NAME ...] [--seed N] [--compile] [--page [FOLDER]]

Names are `1/23` (level and number), or `1` for a level. Prints a row per problem: the number of kernels, the largest error relative to the
largest magnitude of the result, and the seconds. `--page` writes the table to FOLDER/README.md, by default
perf/results/<date>-cpu-kernelbench. `--compile` also compiles each kernel for sm_80 and sm_90a, with NVRTC. Exit status 1 if an error is above the tolerance. Requires no GPU.
"""

import argparse
import datetime
import json
import platform
import sys
from pathlib import Path

import numpy as np

PERF = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(PERF), str(PERF.parent)]

import fireiron  # noqa: E402
from kernelbench.page import page  # noqa: E402
from kernelbench.problem import timed  # noqa: E402
from kernelbench.problems import PROBLEMS  # noqa: E402


def arguments():
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="problems, such as 1/23, or levels; all by default")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the inputs")
    parser.add_argument("--compile", action="store_true", help="compile the kernels with NVRTC, too")
    parser.add_argument("--page", nargs="?", const="", help="write the table into this folder")
    return parser.parse_args()


def main():
    """Run the problems."""
    given, rows, texts = arguments(), [], 0
    for problem in PROBLEMS:
        if given.names and problem.name not in given.names and str(problem.level) not in given.names:
            continue
        error, seconds = (None, 0.0) if problem.missing else timed(problem, given.seed)
        rows.append((problem, error, seconds))
        texts += problem.compiled() if given.compile and not problem.missing else 0
        shown = f"not, {problem.missing}" if problem.missing else f"{len(problem.kernels)} kernels, error {error:.1e}, {seconds:.2f} s"
        print(f"{problem.name:6} {problem.title}: {shown}", flush=True)
    wrong = [problem.name for problem, error, _ in rows if error is not None and error > problem.tolerance]
    stated = [problem for problem, error, _ in rows if error is not None and problem.name not in wrong]
    single = sum(len(problem.kernels) == 1 for problem in stated)
    print(
        f"{len(stated)} of {len(rows)} problems: {single} by one definition; {sum(seconds for *_, seconds in rows):.0f} s; wrong: {wrong or 'none'}"
    )
    if given.page is not None:
        date = datetime.date.today().isoformat()
        folder = Path(given.page) if given.page else PERF / "results" / f"{date}-cpu-kernelbench"
        folder.mkdir(parents=True, exist_ok=True)
        references = folder / "references.json"
        compared = json.loads(references.read_text()) if references.exists() else None
        versions = f"Fireiron {fireiron.__version__}, Python {platform.python_version()}, NumPy {np.__version__}"
        (folder / "README.md").write_text(page(rows, date, versions, texts, compared))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
