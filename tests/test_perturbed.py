"""What the passes make of kernel IR that is changed between two of them (`perturbed`) is what they made of it before.

A digest says nothing of right and wrong, which the other oracles do of what strategies come to: it says that no decision of a pass changes by
the way, also where no strategy leads. Where one is to change, look at it, and `python tests/test_perturbed.py` writes all anew; with `draw` it
draws others.
"""

import multiprocessing
import sys
from pathlib import Path

import pytest
from perturbed import Perturbed, drawn

DIGESTS = Path(__file__).resolve().parent / "goldens" / "perturbed.txt"
COUNT, OF_A_TEST = 2000, 100


def lines():
    return DIGESTS.read_text(encoding="utf-8").splitlines()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("first", range(0, COUNT, OF_A_TEST))
def test_nothing_changes_by_the_way(first):
    wanted = lines()[first : first + OF_A_TEST]
    assert [Perturbed.of(one).line() for one in wanted] == wanted, "if they are to change: python tests/test_perturbed.py"


def test_most_go_through_all_passes():
    kinds = [one.split("  ")[1] for one in lines()]
    assert len(kinds) == COUNT and kinds.count("kernel") > 0.7 * COUNT
    assert kinds.count("VerificationError") < 0.2 * COUNT, "the passes come to see few"


def test_passes_refuse_and_do_not_crash():
    """What the verifier lets through becomes a kernel, or one of our errors says why not."""
    kinds = {one.split("  ")[1] for one in lines()}
    assert kinds <= {"kernel", "ArgumentError", "DecompositionError", "ResourceError", "SynchronizationError", "VerificationError"}


def main(arguments):
    with multiprocessing.Pool() as pool:
        every = drawn(COUNT, pool) if arguments == ["draw"] else [Perturbed.of(one) for one in lines()]
        DIGESTS.write_text("".join(f"{line}\n" for line in pool.imap(Perturbed.line, every, chunksize=8)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
