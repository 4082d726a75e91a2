"""Kill a tune on the GPU twice, resume it, and compare with an exhaustive, uninterrupted one.

python perf/interrupted_tune.py [-o FILE.txt]
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TUNE = ["tune", "gemm_nn", "-M", "1024", "-N", "1024", "-K", "1024", "--prune", "none", "--json", "--journal"]


def started(journal):
    return subprocess.Popen(
        [sys.executable, "-m", "fireiron", *TUNE, str(journal)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def lines(journal):
    """Return the number of complete lines in a journal."""
    return journal.read_text().count("\n") if journal.exists() else 0


def killed(journal, least, patience=240.0):
    """Start a tune, and kill it when the journal has at least the given number of lines."""
    process, end = started(journal), time.monotonic() + patience
    while lines(journal) < least and process.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return f"killed with {lines(journal)} lines in the journal"


def finished(journal):
    return json.loads(started(journal).communicate(timeout=400)[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    report = []
    with tempfile.TemporaryDirectory() as folder:
        uninterrupted = finished(Path(folder, "whole.jsonl"))
        broken = Path(folder, "broken.jsonl")
        report += [killed(broken, 8), killed(broken, 18)]
        before = set(broken.read_text().splitlines()[1:])
        resumed = finished(broken)
        kept = before <= set(broken.read_text().splitlines())
        for name, tuning in (("uninterrupted", uninterrupted), ("killed twice and resumed", resumed)):
            best = tuning["best"]
            report.append(f"{name}: {tuning['counts']}, best {best['values']} {best['us']:.2f} us")
    report.append(
        f"results from before the kills are kept: {kept}; the same best: {uninterrupted['best']['values'] == resumed['best']['values']}"
    )
    print("\n".join(report))
    if options.output:
        options.output.write_text("\n".join(report) + "\n")


if __name__ == "__main__":
    main()
