"""The test files, each with all its cases and many more draws: seeds are their numbers in alphabetical order."""

import os
import subprocess
import sys
from pathlib import Path

from campaign import Outcome, Subject, agreed, found

TESTS = Path(__file__).resolve().parents[2]
FILES = sorted(TESTS.glob("test_*.py"))
NOTHING_COLLECTED = 5


def draw(number: int) -> Outcome:
    """One file, with FIREIRON_FUZZ=40 by default."""
    file = FILES[number]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not gpu", "-p", "no:cacheprovider", str(file.relative_to(TESTS.parent))]
    ran = subprocess.run(command, cwd=TESTS.parent, env={"FIREIRON_FUZZ": "40", **os.environ}, capture_output=True, text=True)
    if ran.returncode in (0, NOTHING_COLLECTED):
        return agreed()
    return found(f"{' '.join(command)}\n{ran.stdout[-6000:]}{ran.stderr[-2000:]}")


SUBJECT = Subject(
    "long-tier", "files of the tests, all cases, 40 times the draws", draw, nightly=len(FILES), campaign=len(FILES), first=0, last=len(FILES), chunk=1, sample=0,
    seconds=6 * 3600.0,
)  # fmt: skip
