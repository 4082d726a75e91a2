"""What somebody new meets: names that are taken, arrays in the wrong order, errors that come late, explanations that do not hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fireiron import *

ROOT = Path(__file__).parent.parent

# ---------------------------------------------------------------------------------------------- a package called `strategies`

USES = """
import sys
sys.path[:0] = sys.argv[1:]
import numpy, strategies, fireiron
from fireiron import library
assert strategies.MINE and fireiron.__file__.startswith(sys.argv[2])
from fireiron.strategies import gemm_nn
from fireiron.strategies.hmma_ampere import spec, strategy
assert len(library.names()) > 15 and fireiron.Records.shipped()
assert strategy.steps[0].origin.startswith("strategies/hmma_ampere.py:")
assert library.find("maxwell").doc
ones = numpy.ones((8, 8), numpy.float32)
assert (fireiron.matmul(ones, ones) == 8).all()
fireiron.best(spec(512, 512, 512), "sm_90")
assert not [name for name in sys.modules if name.startswith("strategies.")]
print(gemm_nn.__file__)
"""


@pytest.fixture
def own_strategies(tmp_path: Path) -> Path:
    """A folder with a user's package called `strategies`."""
    folder = tmp_path / "user"
    (folder / "strategies").mkdir(parents=True)
    (folder / "strategies" / "__init__.py").write_text("MINE = True\n")
    return folder


def used(own_strategies: Path, place: Path) -> Path:
    """The file of a strategy of the library, as a user of the package in `place` gets it, whose own package stands before it."""
    script = own_strategies / "uses.py"
    script.write_text(USES)
    run = subprocess.run([sys.executable, script, own_strategies, place], capture_output=True, text=True, cwd=own_strategies)
    assert run.returncode == 0, run.stderr
    return Path(run.stdout.strip())


def test_users_own_strategies_beside_a_checkout(own_strategies: Path) -> None:
    assert used(own_strategies, ROOT) == ROOT / "strategies" / "gemm_nn.py"


def test_users_own_strategies_beside_an_installation(own_strategies: Path, tmp_path: Path) -> None:
    """As an installation lays the files out: the library inside the package, nothing else called `strategies`."""
    pytest.importorskip("setuptools")
    place = tmp_path / "installed"
    build = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", place]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    assert not (place / "strategies").exists()
    assert used(own_strategies, place) == place / "fireiron" / "strategies" / "gemm_nn.py"
