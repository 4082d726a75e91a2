"""Libraries of users: packages, dotted names, stored strategies, classes of users, the folder of a team, and systems without POSIX."""

from __future__ import annotations

import builtins
import json
import os
import sys

import numpy as np
import pytest

from fireiron import *
from fireiron.cli import doctor, main
from fireiron.gpu import launch
from fireiron.language.library import find, strategies_in
from fireiron.spec import as_spec
from fireiron.tune import worker_pool

GEMM = '''"""Products of the team."""
from fireiron import *

{imports}

SIZES = (32, 32, 8)

def spec(M, N, K, **options):
    return MatMul(M, N, K, **{{"order": RowMajor, **options}})

bm = Tunable("bm", 16, 32)
first = MatMul.tile(bm, 16).to(Block).epilog(RF).split(8).load(A, SH, copy).tile(4, 4).to(Thread).split(1).tile(1, 1).done()
second = MatMul.tile(16, 16).to(Block).epilog(RF).tile(2, 2).to(Thread).split(1).tile(1, 1).done()
'''

STEPS = '''
import attrs

from fireiron import *

@attrs.frozen
class RowsFirst(Refinement):
    """Distribute tiles along rows first."""

    applies_to = ("tile",)

    def plan(self, plan):
        return attrs.evolve(plan, order=ColMajor)
'''


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package in the working directory; its modules are forgotten afterwards."""
    monkeypatch.setattr(launch, "gpu_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "ownkernels"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "parts.py").write_text("from fireiron import *\n\ncopy = Move.coalesced_copy(4).done()\n")
    (folder / "gemm.py").write_text(GEMM.format(imports="from .parts import copy"))
    (folder / "steps.py").write_text(STEPS)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "ownkernels"]:
        del sys.modules[name]


def test_strategies_of_a_package_by_file_and_by_dotted_name(package, capsys):
    for name in ("ownkernels/gemm.py:first", "ownkernels.gemm:first"):
        assert main(["run", name, "--simulate", "--set", "bm=32"]) == 0 and "PASS" in capsys.readouterr().out
    assert strategies_in("ownkernels.gemm") == ("ownkernels.gemm:first", "ownkernels.gemm:second")
    assert strategies_in("ownkernels/gemm.py") == ("ownkernels/gemm.py:first", "ownkernels/gemm.py:second")
    assert "ownkernels.gemm:second" in strategies_in("ownkernels") and "ownkernels/gemm.py:first" in strategies_in("ownkernels/")
    for name in ("ownkernels", "ownkernels.gemm", "ownkernels/gemm.py"):
        assert main(["list", name, "--json"]) == 0
        rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
        assert rows[f"{'ownkernels.gemm' if name == 'ownkernels' else name}:first"]["tunables"] == ["bm"]
    assert main(["diff", "ownkernels.gemm:first", "ownkernels.gemm:second"]) == 0
    capsys.readouterr()
    for name in ("ownkernels.nothing", "nothing.gemm", "nothing", "os.path"):
        assert main(["show", name]) == 2 and "unknown strategy" in capsys.readouterr().err
    assert main(["list", "ownkernels.steps"]) == 2 and "has no strategies" in capsys.readouterr().err


def test_a_package_without_a_strategy_lists_its_modules(package, capsys):
    assert main(["run", "ownkernels"]) == 2
    message = capsys.readouterr().err
    assert "ownkernels is a package" in message and "ownkernels.gemm" in message and "fireiron list ownkernels" in message


def test_a_broken_module_of_a_package(package, capsys):
    """An import that fails inside of it is the error of its line, not an unknown name."""
    (package / "broken.py").write_text("import fireiron\nfrom . import absent\n")
    assert main(["show", "ownkernels.broken"]) == 2
    message = capsys.readouterr().err
    assert "ImportError" in message and "broken.py:2" in message


def test_stored_strategies_on_the_command_line(package, capsys):
    first = find("ownkernels.gemm:first").strategy
    bound = first.with_(bm=16)(MatMul(32, 32, 8, order=RowMajor))
    (package / "bound.json").write_text(bound.to_json())
    (package / "first.json").write_text(first.to_json())
    assert main(["run", "ownkernels/bound.json", "--simulate"]) == 0
    assert main(["run", "ownkernels/first.json", "--simulate", "-M", "32", "-N", "32", "-K", "8", "--set", "bm=32"]) == 0
    assert main(["list", "ownkernels/first.json"]) == main(["check", "ownkernels/bound.json"]) == 0
    capsys.readouterr()
    assert main(["show", "ownkernels/bound.json", "-M", "64"]) == 2 and "is bound to" in capsys.readouterr().err
    assert main(["show", "ownkernels/none.json"]) == 2 and "cannot be read" in capsys.readouterr().err


def test_classes_of_users_in_stored_strategies(package, monkeypatch, capsys):
    """A text names no module to import: readers state the classes."""
    monkeypatch.syspath_prepend(package.parent)
    from ownkernels.steps import RowsFirst

    strategy = MatMul.tile(16, 16).to(Block).epilog(RF).tile(2, 2).to(Thread).refine(RowsFirst()).split(1).tile(1, 1).done()
    with pytest.raises(StoreError, match="RowsFirst cannot be stored") as caught:
        strategy.to_json()
    assert "to_json(classes=[RowsFirst])" in str(caught.value)
    text = strategy.to_json(classes=[RowsFirst])
    assert Strategy.from_json(text, classes=[RowsFirst]) == strategy
    (package / "mine.json").write_text(text)
    sizes = ["-M", "32", "-N", "32", "-K", "8"]
    for module in ("ownkernels.steps", "ownkernels/steps.py"):
        assert main(["run", "ownkernels/mine.json", *sizes, "--simulate", "--classes", module]) == 0
    capsys.readouterr()
    assert main(["run", "ownkernels/mine.json", *sizes]) == 2
    assert "--classes MODULE" in capsys.readouterr().err


def test_strategies_of_a_team(package, monkeypatch, capsys):
    folder = package.parent / "team"
    folder.mkdir()
    (folder / "team_gemm.py").write_text(GEMM.format(imports="copy = Move.coalesced_copy(4).done()").replace("first =", "strategy ="))
    monkeypatch.setenv("FIREIRON_STRATEGIES", str(folder))
    assert main(["run", "team_gemm", "--simulate"]) == main(["show", "team_gemm:second"]) == main(["list", "team_gemm"]) == 0
    capsys.readouterr()
    assert main(["show", "team_gem"]) == 2 and "did you mean team_gemm" in capsys.readouterr().err
    (folder / "naive.py").write_text("")
    assert main(["show", "team_gemm"]) == main(["show", "listing_2"]) == 0
    capsys.readouterr()
    assert main(["show", "naive"]) == 2 and "has the name of a strategy of the library" in capsys.readouterr().err
    assert [item.name for item in doctor._team() if item.state == doctor.WRONG] == ["naive"]
    monkeypatch.setenv("FIREIRON_STRATEGIES", str(folder / "absent"))
    assert main(["show", "naive"]) == 2 and "FIREIRON_STRATEGIES is not a folder" in capsys.readouterr().err


def test_records_in_a_folder(tmp_path, monkeypatch):
    """All files of the folder are used; a new record is appended to one of them."""
    record = next(iter(Records.shipped()))
    Records.append_to(tmp_path, record)
    assert [path.name for path in tmp_path.iterdir()] == ["tuned.jsonl"]
    (tmp_path / "other.jsonl").write_text(f"{record.line()}\n")
    monkeypatch.setenv("FIREIRON_RECORDS", str(tmp_path))
    monkeypatch.setenv("FIREIRON_REQUIRE_RECORD", "1")
    from fireiron.tune.records import available

    assert list(available()) == [record]


# ---------------------------------------------------------------------------------------------- short specs


def test_a_spec_without_memories_and_level():
    """It is a whole kernel; the full form and the storage order of one operand stay."""
    full = MatMul(64, 32, 8, A=RowMajor, B=RowMajor, C=RowMajor)(GL, GL, GL)(Kernel)
    short = MatMul(64, 32, 8, order=RowMajor)
    assert as_spec(short) == as_spec(short(GL, GL, GL)) == full and as_spec(full) is full
    assert MatMul(64, 32, 8, order=RowMajor, C=ColMajor).C.tensor.layout == ColMajor
    chain = MatMul.tile(16, 16).to(Block).epilog(RF).tile(2, 2).to(Thread).split(1).tile(1, 1).done()
    assert chain(short) == chain(full) == short.tile(16, 16).to(Block).epilog(RF).tile(2, 2).to(Thread).split(1).tile(1, 1).done()
    for spec in (Move(8, 4, order=RowMajor), Init(8, 4, order=RowMajor), Reduction(8, 4, order=RowMajor), AtomicAdd(8, 4, order=RowMajor),
                 UnaryPointwise("-", 8, 4, order=RowMajor), BinaryPointwise("+", 8, 4, order=RowMajor),
                 SparseMatMul(64, 32, 128, dtype=float16, order=RowMajor)):  # fmt: skip
        assert all(view.tensor.layout == RowMajor or len(view.shape) == 1 for view in as_spec(spec).views)
    with pytest.raises(ArgumentError, match="must be in global memory"):
        chain(MatMul(64, 32, 8)(RF, RF, RF))
    with pytest.raises(ArgumentError, match="bound to a spec"):
        chain(64, 32, 8)


def test_an_elementwise_kernel_in_three_lines():
    add = elementwise("Z[m,n] = X[m,n] + 2 * y[n] * s", width=4)
    kernel = add(add.start(m=3, n=600, dtype=float32)).compile("sm_80")
    x, y = np.arange(1800, dtype=np.float32).reshape(3, 600), np.ones(600, np.float32)
    assert np.array_equal(kernel(x, y, 3.0), x + 6) and "float4" in kernel.program.cuda
    for text in ("y[m] = sum(n, X[m,n])", "y[m] = X[m,n]", "y = x"):
        with pytest.raises(ArgumentError):
            elementwise(text)


# ---------------------------------------------------------------------------------------------- systems without POSIX modules

POSIX = ("fcntl", "resource", "pwd", "grp", "termios", "syslog")


@pytest.fixture
def without_posix(tmp_path, monkeypatch):
    """No modules and functions that exist on POSIX systems only; child processes inherit no descriptors."""
    imported = builtins.__import__

    def import_(name, *rest):
        if name in POSIX:
            raise ImportError(f"No module named {name!r}")
        return imported(name, *rest)

    monkeypatch.setattr(builtins, "__import__", import_)
    for name in ("getuid", "sched_getaffinity", "O_CLOEXEC"):
        monkeypatch.delattr(os, name, raising=False)
    monkeypatch.setattr(worker_pool, "INHERITS", False)
    monkeypatch.setattr(launch, "gpu_available", lambda: False)


def test_commands_without_posix(without_posix, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FIREIRON_CACHE_DIR", str(tmp_path / "cache"))
    sizes = ["-M", "64", "-N", "64", "-K", "16"]
    assert main(["check", "naive", *sizes]) == main(["run", "naive", *sizes, "--simulate"]) == 0
    assert main(["bench", "naive", "--simulate", *sizes]) == 0
    capsys.readouterr()
    assert (
        main(
            [
                "tune",
                "listing_1",
                "--predict",
                "-M",
                "128",
                "-N",
                "128",
                "-K",
                "16",
                "--set",
                "bm=64",
                "--set",
                "bn=64",
                "--jobs",
                "1",
                "--json",
            ]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)


def test_a_journal_without_file_locks(without_posix, tmp_path):
    """A lock file replaces the lock; it is removed with the journal's end."""
    from fireiron.tune.journal import Journal

    class Task:
        space = ()

    path = tmp_path / "journal"
    journal = Journal(path, Task(), {})
    with pytest.raises(StoreError, match="another tuning is writing") as caught:
        Journal(path, Task(), {})
    assert f"delete {path}.lock" in str(caught.value)
    journal.close()
    Journal(path, Task(), {}).close()
    assert not (tmp_path / "journal.lock").exists()


def test_a_child_that_ends_before_it_connects(without_posix, monkeypatch):
    monkeypatch.setattr(worker_pool, "command", lambda call: [sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(LaunchError, match="does not start") as caught, open(os.devnull, "wb") as output:
        worker_pool.started(output)
    assert "status 3" in str(caught.value)
