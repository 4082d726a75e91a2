"""Run the tests under coverage, with a context for each, and store the result.

It is also a pytest plugin (`-p mutation.measuring`) that records the duration of each passing test.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from mutation import zygote
from mutation.covering import FOLDER, Covering
from mutation.operators import ROOT

DURATIONS = "MUTATION_DURATIONS"
SETTINGS = "[run]\nbranch = false\nsource = fireiron\n"


def pytest_runtest_logreport(report: Any) -> None:
    """A line of seconds and the name of a test, if the tests are counted."""
    if report.when == "call" and report.passed and "PYTEST_XDIST_WORKER" not in os.environ and DURATIONS in os.environ:
        with Path(os.environ[DURATIONS]).open("a", encoding="utf-8") as file:
            file.write(f"{report.duration:.3f} {report.nodeid}\n")


def measure(jobs: int) -> int:
    """Measure all tests that judge mutants; the lines that they run replace the previous data. Returns the exit code of pytest."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    data, durations, settings = (FOLDER / name for name in ("coverage.data", "durations.txt", "coverage.ini"))
    durations.unlink(missing_ok=True)
    settings.write_text(SETTINGS, encoding="utf-8")
    command = [
        sys.executable, "-m", "pytest", "-q", "-n", str(jobs), *zygote.ASKED, "-p", "mutation.measuring",
        "--cov=fireiron", f"--cov-config={settings}", "--cov-context=test", "--cov-report=",
    ]  # fmt: skip
    path = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
    environment = {**os.environ, "PYTHONPATH": path, "COVERAGE_FILE": str(data), DURATIONS: str(durations)}
    code = subprocess.run(command, cwd=ROOT, env=environment).returncode
    Covering([], {}, {}).with_data(data, durations).save()
    return code
