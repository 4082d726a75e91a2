"""The text of kernels that are drawn as IR (`drawn_ir`) is the text that was printed before, or the refusal.

A digest says nothing of right and wrong, which the other oracles do of what strategies come to: it says that no decision of the printer
changes by the way. Where one is to change, look at it, and `python tests/test_drawn_ir.py` writes all anew.
"""

import hashlib
import sys
from pathlib import Path

import pytest
from drawn_ir import draw

from fireiron.cuda import printed
from fireiron.errors import FireironError

DIGESTS = Path(__file__).resolve().parent / "goldens" / "drawn_ir.txt"
COUNT, OF_A_TEST = 480, 60


def line(seed):
    """The digest of a kernel's lines with the steps that made them, or of what it is refused for."""
    try:
        kind, text = "text", "\n".join(f"{one.text}  {one.steps}" for one in printed(draw(seed)))
    except FireironError as error:
        kind, text = type(error).__name__, str(error)
    return f"{hashlib.sha256(text.encode()).hexdigest()[:12]}  {kind}  {seed}"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("first", range(0, COUNT, OF_A_TEST))
def test_no_text_changes_by_the_way(first):
    wanted = DIGESTS.read_text(encoding="utf-8").splitlines()[first : first + OF_A_TEST]
    assert [line(seed) for seed in range(first, first + OF_A_TEST)] == wanted, "if they are to change: python tests/test_drawn_ir.py"


def test_most_are_printed():
    kinds = [one.split("  ")[1] for one in DIGESTS.read_text(encoding="utf-8").splitlines()]
    assert len(kinds) == COUNT and kinds.count("text") > 0.75 * COUNT and set(kinds) == {"text", "VerificationError"}


if __name__ == "__main__":
    DIGESTS.write_text("".join(f"{line(seed)}\n" for seed in range(COUNT)), encoding="utf-8")
    sys.exit(0)
