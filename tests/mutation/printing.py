"""The effect of a printer mutant on previously lowered kernels: their text, and its result on a CPU.

The simulator executes the IR, not the text. A changed text is compiled by the host's C++ compiler and executed, as in
`tests/test_printed_text.py`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs

from mutation.battery import Item

FOLDER = "cuda/"
"""The modules that print, and lower nothing."""

MOST_RUN = 3
"""The number of changed texts of a mutant that are compiled and executed; each takes seconds."""


@attrs.frozen
class Lowered:
    """A kernel of the battery, lowered and printed without a mutant."""

    item: Item
    kernels: tuple[Any, ...]
    text: str

    @staticmethod
    def of(item: Item) -> Lowered:
        """The kernel, lowered now."""
        from fireiron.cuda import emit

        program = item.program()
        kernels = (*(one.program.ir for one in program.preceding), program.ir)
        return Lowered(item, kernels, emit(*kernels))

    def printed(self) -> str:
        """The text as printed now."""
        from fireiron.cuda import emit

        return emit(*self.kernels)

    def wrong(self, text: str) -> str:
        """The error of a text when compiled and executed, if any; several launches are not tested."""
        from printed_text import COMPILER, HostProgram, Printed, Refused

        if COMPILER is None or len(self.kernels) > 1:
            return ""
        with tempfile.TemporaryDirectory() as folder:
            try:
                got = HostProgram([Printed(text, self.kernels[0])], Path(folder)).run(0, self.item.arrays, self.item.symbols)
            except Refused as report:
                return str(report).partition("\n")[2][:200] or str(report)[:200]
        return self.item.wrong(got)


def judged(kernels: Iterable[Lowered]) -> dict[str, Any]:
    """The first detection of an error in the texts of kernels, and whether any text has changed."""
    from fireiron.errors import FireironError

    changed: list[tuple[Lowered, str]] = []
    for kernel in kernels:
        try:
            text = kernel.printed()
        except FireironError as error:
            return {"by": f"refusal: {type(error).__name__}", "what": f"{kernel.item.name}: {error}"[:200], "changed": True}
        except Exception as error:
            return {"by": f"crash: {type(error).__name__}", "what": f"{kernel.item.name}: {error}"[:200], "changed": True}
        if text != kernel.text:
            changed.append((kernel, text))
    for kernel, text in sorted(changed, key=lambda pair: len(pair[1]))[:MOST_RUN]:
        if (finding := kernel.wrong(text)) and not kernel.wrong(kernel.text):
            return {"by": "printed text", "what": f"{kernel.item.name}: {finding}", "changed": True}
    return {"by": "", "changed": bool(changed), "what": ", ".join(one.item.name for one, _ in changed[:3])}
