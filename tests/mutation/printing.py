"""What a mutant of the printer does to kernels that were lowered before it was made: their text, and what that computes on a CPU.

The simulator reads the IR, so that it says nothing of the text. A text that another one took the place of is compiled by the host's C++ compiler
and run, as in `tests/test_printed_text.py`.
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
"""Changed texts of a mutant that are compiled and run; each takes seconds."""


@attrs.frozen
class Lowered:
    """A kernel of the battery as it is lowered and printed without a mutant."""

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
        """The text as it is printed now."""
        from fireiron.cuda import emit

        return emit(*self.kernels)

    def wrong(self, text: str) -> str:
        """What is wrong with a text when it is compiled and run, if anything; nothing is said of several launches."""
        from printed_text import COMPILER, HostProgram, Printed, Refused

        if COMPILER is None or len(self.kernels) > 1:
            return ""
        with tempfile.TemporaryDirectory() as folder:
            try:
                got = HostProgram([Printed(text, self.kernels[0])], Path(folder)).run(0, self.item.arrays, self.item.symbols)
            except Refused as report:
                return str(report).partition("\n")[2][:200] or str(report)[:200]
        return self.item.wrong(got)


def judged(every: Iterable[Lowered]) -> dict[str, Any]:
    """Who notices something wrong with the texts of kernels, and whether any has changed."""
    from fireiron.errors import FireironError

    changed: list[tuple[Lowered, str]] = []
    for one in every:
        try:
            text = one.printed()
        except FireironError as error:
            return {"by": f"refusal: {type(error).__name__}", "what": f"{one.item.name}: {error}"[:200], "changed": True}
        except Exception as error:
            return {"by": f"crash: {type(error).__name__}", "what": f"{one.item.name}: {error}"[:200], "changed": True}
        if text != one.text:
            changed.append((one, text))
    for one, text in sorted(changed, key=lambda pair: len(pair[1]))[:MOST_RUN]:
        if (said := one.wrong(text)) and not one.wrong(one.text):
            return {"by": "printed text", "what": f"{one.item.name}: {said}", "changed": True}
    return {"by": "", "changed": bool(changed), "what": ", ".join(one.item.name for one, _ in changed[:3])}
