"""Run the program of docs/tutorial.md, block after block as printed there, on the GPU.

python perf/tutorial.py [-o FILE.txt]
"""

import argparse
import contextlib
import io
import json
import re
import sys
import time
from pathlib import Path

from fireiron.measure import timing

DOCUMENT = Path(__file__).parent.parent / "docs" / "tutorial.md"
MOST_LINES = 50


class Tee(io.StringIO):
    """Records and prints the output."""

    def write(self, text):
        sys.__stdout__.write(text)
        sys.__stdout__.flush()
        return super().write(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    blocks = re.findall(r"```python gpu\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    lines = sum(bool(line.strip()) for block in blocks for line in block.splitlines())
    if lines >= MOST_LINES:
        raise SystemExit(f"the program has {lines} lines, it should be shorter than {MOST_LINES}")
    scope, start = {}, time.monotonic()
    with contextlib.redirect_stdout(Tee()) as output:
        for block in blocks:
            exec(compile(block, str(DOCUMENT), "exec"), scope)
        print(f"\n{len(blocks)} blocks, {lines} lines, {time.monotonic() - start:.0f} s")
        print(json.dumps(timing.environment()))
    if options.output:
        options.output.write_text(output.getvalue())


if __name__ == "__main__":
    main()
