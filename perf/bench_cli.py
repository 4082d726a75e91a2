"""Measure the latency of the command line: processor time of a fresh process, until its first output and until its end.

    python perf/bench_cli.py [COMMAND ...]

Each command runs on a separate terminal, as for a person, with cached bytecode; the minimum of three runs is printed. The first output is
the first byte, of the result or of a progress line. The goal is half a second.
"""

import os
import pty
import select
import sys
import tempfile
import time

from tabulate import tabulate

SMALL = ["-M", "128", "-N", "128", "-K", "64"]

COMMANDS = {
    "--help": [],
    "demo": [],
    "list": [],
    "show": ["hmma_ampere", *SMALL],
    "emit": ["hmma_ampere", *SMALL],
    "check": ["hmma_ampere", *SMALL],
    "run": ["hmma_ampere", *SMALL, "--simulate"],
    "bench": ["listing_1", "--shape", "64x64x64"],
    "explain": ["hmma_ampere", *SMALL],
    "diff": ["hmma_ampere", "small", *SMALL],
    "cost": ["hmma_ampere", *SMALL],
    "tune": ["listing_1", *SMALL, "--predict"],
    "records": ["show"],
    "draw": ["maxwell", "--what", "tree", "-o", "-"],
    "export": ["hmma_ampere", *SMALL, "--no-cubin", "--force", "-o", tempfile.gettempdir()],
    "cache": ["show"],
    "doctor": [],
}
"""Arguments, by command."""

TICK = 1 / os.sysconf("SC_CLK_TCK")


def measured(arguments):
    """Return processor seconds until the first output and until the end."""
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-m", "fireiron", *arguments])
    first = None
    while True:
        select.select([terminal], [], [])
        if first is None:
            first = spent(child)
        try:
            if not os.read(terminal, 1 << 16):
                break
        except OSError:  # the terminal is closed
            break
    _, status, usage = os.wait4(child, 0)
    os.close(terminal)
    if status:
        raise SystemExit(f"fireiron {' '.join(arguments)} ends with {os.waitstatus_to_exitcode(status)}")
    return first, usage.ru_utime + usage.ru_stime


def spent(process):
    """Return user and system time of a process so far, in seconds; in ticks of 10 ms."""
    with open(f"/proc/{process}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK


def main():
    """Measure the named commands, or all."""
    rows = []
    for command in sys.argv[1:] or COMMANDS:
        runs = [measured([command, *COMMANDS[command]]) for _ in range(3)]
        rows.append([command, *(min(values) for values in zip(*runs, strict=True))])
    print(time.strftime("%Y-%m-%d"))
    print(tabulate(rows, ["command", "first output, s", "in all, s"], floatfmt=".2f"))


if __name__ == "__main__":
    main()
