"""The command line: every command on every strategy of the library, its exit status, and a user's mistakes."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from problems import NAMES, target_of

from fireiron import *
from fireiron import cli
from fireiron.cli import main
from fireiron.cli import run as cli_run
from fireiron.compiler import Program
from fireiron.gpu import launch
from fireiron.inspect import ineffective, trial
from fireiron.inspect.explain import explain, text
from fireiron.language import library
from fireiron.measure import simulated
from fireiron.measure.judge import Judge

SMALL = ["-M", "128", "-N", "128", "-K", "16"]
ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU; other files test the GPU."""
    monkeypatch.setattr(launch, "gpu_available", lambda: False)


PROGRAMS: dict[object, Program] = {}
without_effect = functools.cache(lambda program, found=ineffective.ineffective: tuple(found(program)))


@pytest.fixture(autouse=True)
def remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A strategy of the library is lowered once for a problem and a target, whatever commands it is given to; so are those without one
    of its refinements."""
    lower = Strategy.program

    def program(self: Strategy, architecture: object = None, **options: object) -> Program:
        lines = tuple(step.origin or "" for step in self.steps)
        if options or not all("strategies/" in line for line in lines):
            return lower(self, architecture, **options)
        key = (self, lines, architecture)
        if key not in PROGRAMS:
            PROGRAMS[key] = lower(self, architecture)
        return PROGRAMS[key]

    monkeypatch.setattr(Strategy, "program", program)
    monkeypatch.setattr(ineffective, "ineffective", without_effect)


@pytest.fixture
def fireiron(capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    """Runs a command line: exit status, output, errors."""

    def run(*arguments: str) -> tuple[int, str, str]:
        try:
            status = main([str(one) for one in arguments])
        except SystemExit as stop:
            status = int(stop.code or 0)
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """A user's file with several strategies."""
    (tmp_path / "neighbor.py").write_text("from fireiron import *\ncopy = Move.tile(1, 1).to(Thread).done()\n")
    path = tmp_path / "mine.py"
    path.write_text(
        '''"""My strategies."""
from fireiron import *
from neighbor import copy
plain = MatMul.tile(32, 32).to(Block).tile(4, 4).to(Thread).split(1).tile(1, 1).done()
bound = plain(MatMul(64, 48, 20)(GL, GL, GL)(Kernel))
partial = MatMul.tile(32, 32).to(Block).split(8).load(A, SH, copy).tile(4, 4).to(Thread)
unmatched = partial.then(MatMul.done())
racy = MatMul.tile(32, 32).to(Block).split(8).load(A, SH, copy).no_sync().load(B, SH, copy).no_sync().tile(4, 4).to(Thread)
racy = racy.split(1).tile(1, 1).done()
crowded = MatMul.tile(64, 64).to(Block).tile(1, 1).to(Thread).split(1).done()
wrong = MatMul.tile(32, 32).to(Block).tile(5, 32).to(Warp)
mover = Move.tile(16, 16).to(Block).tile(1, 1).to(Thread).done()
tuned = MatMul.tile(Tunable("bm", 64, 32), 32).to(Block).tile(4, 4).to(Thread).split(1).tile(1, 1).done()
number = 3
'''
    )
    return path


# ---------------------------------------------------------------------------------------------- every command, every strategy


@pytest.mark.parametrize("name", NAMES)
def test_show(fireiron, name: str) -> None:  # type: ignore[no-untyped-def]
    status, out, err = fireiron("show", name, *SMALL)
    assert (status, err) == (0, "")
    strategy = library.bind(library.find(name), {"M": 128, "N": 128, "K": 16})
    for _, spec in strategy.trace()[:-1]:
        if spec.level == strategy.trace()[-1][1].level:
            assert str(spec) in out
    threads = {
        "wmma_simple": 512,
        "sgemm": 128,
        "hmma_turing": 128,
        "hmma_volta": 128,
        "small": 64,
        "split_k": 64,
        "split_k_blocks": 128,
        "hopper": 288,
        "hopper_batched": 288,
        "hopper_small": 160,
        "hopper_skinny": 160,
    }.get(name, 256)
    assert f"threads a block  {threads}" in out
    assert "\x1b" not in out
    status, out, _ = fireiron("show", name, *SMALL, "--json")
    value = json.loads(out)
    assert status == 0 and value["threads"] == threads and value["tree"]["step"].startswith(("tile(", "split_k("))
    assert {"A", "B", "C"} <= {row["name"] for row in value["buffers"]}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", NAMES)
def test_emit(fireiron, name: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    status, out, err = fireiron("emit", name, *SMALL)
    assert (status, err) == (0, "")
    assert out == library.bind(library.find(name), {"M": 128, "N": 128, "K": 16}).cuda()
    path = tmp_path / "kernel.cu"
    assert fireiron("emit", name, *SMALL, "-o", path) == (0, "", "")
    assert path.read_text() == out
    assert fireiron("emit", name, "-o", path)[0] == 2
    assert path.read_text() == out
    for_older = fireiron("emit", name, *SMALL, "--arch", "sm_80", "-o", path, "--force")[0]
    if target_of(name):  # refused, and nothing is lost
        assert for_older == 1 and path.read_text() == out
    else:
        assert for_older == 0 and path.read_text() != out
    assert [one.name for one in tmp_path.iterdir()] == ["kernel.cu"]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", NAMES)
def test_check(fireiron, name: str) -> None:  # type: ignore[no-untyped-def]
    status, out, err = fireiron("check", name, *SMALL)
    assert (status, err) == (0, "")
    assert "0 errors" in out
    status, out, _ = fireiron("check", name, *SMALL, "--json")
    value = json.loads(out)
    assert status == 0 and value["counts"]["error"] == 0
    assert sum(value["counts"].values()) == len(value["findings"])


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", NAMES)
def test_run(fireiron, name: str) -> None:  # type: ignore[no-untyped-def]
    status, out, err = fireiron("run", name, "-M", "130", "-N", "128", "-K", "16", "--seed", "7")
    assert (status, err) == (0, "")
    executes = trial.host_compiler() is not None
    assert "PASS" in out and "seed          7\n" in out
    assert ("only a GPU can check" in out) == (name in ("maxwell", "hgemm_nt", *(() if executes else ("listing_1",))))
    status, out, _ = fireiron("run", name, *SMALL, "--json", "--simulate")
    assert status == 0 and json.loads(out)["passed"] is True


@pytest.mark.parametrize("name", NAMES)
def test_explain(fireiron, name: str) -> None:  # type: ignore[no-untyped-def]
    status, out, err = fireiron("explain", name, *SMALL)
    assert (status, err) == (0, "")
    assert "main: MatMul(" in out and "performed by" in out and "closed by" not in out
    status, out, _ = fireiron("explain", name, *SMALL, "--json")
    assert status == 0 and all(leaf["match"] for leaf in json.loads(out)["leaves"])


BLOCKS = {
    "wmma_simple": "4", "small": "16", "split_k": "64", "split_k_blocks": "64", "hopper_batched": "16", "hopper_small": "8", "hopper_skinny": "16",
}  # fmt: skip
"""The blocks of strategies that have more than one at the sizes `SMALL`."""


@pytest.mark.parametrize("name", NAMES)
def test_diff(fireiron, name: str) -> None:  # type: ignore[no-untyped-def]
    status, out, err = fireiron("diff", name, "maxwell", *SMALL)
    assert (status, err) == (0, "")
    assert ("threads a block" in out) == (name != "maxwell") and ("are equal: " in out) == (name == "maxwell")
    marks = {line[:1] for line in out.splitlines()}
    assert marks.isdisjoint("<>|~") == (name == "maxwell")
    status, out, _ = fireiron("diff", name, "maxwell", *SMALL, "--json")
    assert status == 0 and json.loads(out)["figures"]["blocks"] == [
        BLOCKS.get(name, "1"),
        "1",
    ]


def test_batches_of_matrices(fireiron) -> None:  # type: ignore[no-untyped-def]
    """Only strategies for batches have a batch size."""
    status, out, err = fireiron("emit", "hopper_batched", *SMALL, "--batch", "3")
    assert (status, err) == (0, "") and "// MatMul(3,128,128,16)" in out and "tma_load_3d(" in out
    status, _, err = fireiron("emit", "hopper", *SMALL, "--batch", "3")
    assert status == 2 and "has no size batch" in err


def test_sizes_in_either_case(fireiron) -> None:  # type: ignore[no-untyped-def]
    """A size has the name of the problem, or the other case: `m` where a function makes the spec of M, `M` where it has m."""
    assert "MatMul(40,128,16)" in fireiron("show", "maxwell", "-s", "m=40", "-N", "128", "-K", "16")[1]
    assert "softmax(40,128)" in fireiron("show", "softmax", "-s", "m=40", "-N", "128")[1]


def test_list(fireiron) -> None:  # type: ignore[no-untyped-def]
    status, out, err = fireiron("list")
    assert (status, err) == (0, "")
    lines = out.splitlines()[2:]
    assert [line.split()[0] for line in lines] == list(library.names())


@pytest.mark.parametrize("few", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_list_for_a_target(fireiron, few: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    if few:
        monkeypatch.setattr(library, "names", lambda: ("attention", "hmma_ampere", "hopper", "listing_1", "naive", "small"))
    status, out, _ = fireiron("list", "--json", "--arch", "sm_80")
    rows = {row["name"]: row for row in json.loads(out)}
    assert status == 0 and rows["listing_1"]["tunables"] == ["bm", "bn"] and rows["naive"]["shared bytes"] == 0
    status, out, _ = fireiron("list", "--arch", "sm_52")
    assert status == 0 and "no instruction" in out  # float16 strategies, as the row shows


# ---------------------------------------------------------------------------------------------- options


def test_sizes_types_and_layouts(fireiron) -> None:  # type: ignore[no-untyped-def]
    out = fireiron("show", "naive", "-M", "M:8", "-N", "Rows", "-K", "K", "--dtype", "float16", "--layouts", "TNT", "--json")[1]
    assert json.loads(out)["spec"] == "MatMul(M,Rows,K)(GL,GL,GL)(Kernel) with A, C float16 RowMajor; B float16"
    status, out, _ = fireiron("run", "listing_2", "-M", "M:8", "-N", "N", "-K", "9", "--size", "M=24", "--layouts", "tt", "--json")
    value = json.loads(out)
    assert status == 0 and value["sizes"] == {"M": 24, "N": 257} and value["passed"]
    assert "const __half* " in fireiron("emit", "naive", *SMALL, "--dtype", "float16")[1]
    for dtype in ("float16", "bfloat16", "int8", "float64"):
        assert fireiron("run", "listing_2", "-M", "64", "-N", "64", "-K", "600", "--dtype", dtype)[0] == 0


def test_tunables(fireiron, user: Path) -> None:  # type: ignore[no-untyped-def]
    chosen = json.loads(fireiron("show", "listing_1", *SMALL, "--set", "bm=32", "--json")[1])
    assert chosen["chosen"] == {"bn": 128} and chosen["tree"]["step"].startswith("tile(32, 128)")
    out = fireiron("diff", f"{user}:plain", f"{user}:tuned", "--set", "bm=64", *SMALL)[1]
    assert "tile(64, 32).to(Block)" in out and "threads a block" in out
    out = fireiron("diff", f"{user}:plain", f"{user}:tuned", "--set", "bm=32", *SMALL)[1]
    assert "are equal: the same steps" in out and "tile(32, 32).to(Block)" not in out
    status, _, err = fireiron("diff", f"{user}:plain", f"{user}:tuned", "--set", "bk=32")
    assert status == 2 and "neither strategy has such a tunable" in err


def test_a_users_file(fireiron, user: Path) -> None:  # type: ignore[no-untyped-def]
    assert fireiron("run", f"{user}:plain", "-M", "40", "-N", "33", "-K", "17")[0] == 0
    assert fireiron("run", f"{user}:bound")[0] == 0
    assert fireiron("run", f"{user}:mover", "-M", "40", "-N", "33", "--dtype", "float16")[0] == 0
    assert not (user.parent / "__pycache__").exists()
    before = list(sys.path)
    user.write_text("from fireiron import *\nonly = MatMul.tile(8, 8).to(Block)\n")
    status, out, _ = fireiron("show", user)  # the file is read again; its only strategy needs no name
    assert status == 0 and "tile(8, 8).to(Block)" in out and sys.path == before


def test_partial_trees(fireiron, user: Path) -> None:  # type: ignore[no-untyped-def]
    status, out, _ = fireiron("show", f"{user}:partial")
    assert status == 0 and "(open)" in out and "open             MatMul(4,4,8)(SH,GL,GL)(Thread)" in out and "a_sh" in out
    assert json.loads(fireiron("show", f"{user}:partial", "--json")[1])["open"] == ["MatMul(4,4,8)(SH,GL,GL)(Thread)"]
    for command in ("emit", "run", "check", "cost", "explain"):
        status, out, err = fireiron(command, f"{user}:partial")
        assert status == 1 and "open leaf" in out + err
    status, out, err = fireiron("run", f"{user}:partial", "--json")
    assert status == 1 and json.loads(out)["error"]["kind"] == "IncompleteError" and "open leaf" in err
    status, out, _ = fireiron("check", f"{user}:partial", "--json")
    assert status == 1 and json.loads(out)["findings"][0]["kind"] == "open"
    status, out, _ = fireiron("diff", f"{user}:partial", "naive")
    assert status == 0 and "open leaves" in out


# ---------------------------------------------------------------------------------------------- check, run, explain


def test_check_reports_errors(fireiron, user: Path) -> None:  # type: ignore[no-untyped-def]
    status, out, err = fireiron("check", f"{user}:racy")
    assert (status, err) == (1, "") and "1 error" in out and "mine.py:8" in out
    status, out, _ = fireiron("check", f"{user}:racy", "--json")
    (finding,) = json.loads(out)["findings"]
    assert status == 1 and finding["kind"] == "race" and finding["severity"] == "error"
    status, out, _ = fireiron("check", f"{user}:crowded")
    assert status == 1 and "4096 threads" in out
    assert fireiron("check", f"{user}:wrong")[0] == 1
    status, out, _ = fireiron("diff", f"{user}:racy", f"{user}:plain", *SMALL)
    assert status == 1 and "error" in out


def test_run_finds_a_wrong_result(fireiron, user: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    right = Spec.reference

    def wrong(self: Spec, *inputs: object) -> object:
        result = right(self, *inputs)
        result[3, 2] += 1
        result[5, 7] += 1
        return result

    monkeypatch.setattr(Spec, "reference", wrong)
    status, out, _ = fireiron("run", "naive", "-M", "64", "-N", "64", "-K", "4", "--seed", "1")
    assert status == 1 and "FAIL" in out and "element (3, 2): got " in out and "2 of 4096 differ" in out
    status, out, _ = fireiron("run", f"{user}:plain", "-M", "128", "-N", "128", "-K", "4", "--blocks", "3", "--json")
    value = json.loads(out)
    assert status == 1 and value["passed"] is False and value["wrong"]["at"] == [3, 2] and value["wrong"]["block"] == 0


def test_run_of_a_sample(fireiron, user: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    status, out, _ = fireiron("run", f"{user}:plain", "-M", "150", "-N", "128", "-K", "9", "--blocks", "5")
    assert status == 0 and "5 of 20 are simulated and compared; the other 15 are NOT executed" in out and "PASS" in out
    value = json.loads(fireiron("run", "gemm_nt", "-M", "600", "-N", "500", "-K", "8", "--blocks", "6", "--json")[1])
    assert value["passed"] and {0, value["total"] - 1} <= set(value["blocks"]) and len(value["blocks"]) == 6
    monkeypatch.setattr(simulated, "SIMULATED_SECONDS", 0.02)
    monkeypatch.setattr(simulated, "MULTIPLY_ADDS", 1)
    value = json.loads(fireiron("run", "listing_2", "-M", "1024", "-N", "900", "-K", "16", "--json")[1])
    assert value["passed"] and 1 <= len(value["blocks"]) < value["total"] == 64
    monkeypatch.setattr(simulated, "SIMULATED_SECONDS", 20)
    value = json.loads(fireiron("run", "listing_2", "-M", "512", "-N", "300", "-K", "16", "--json")[1])
    assert value["passed"] and value["blocks"] == list(range(12))


COMBINED = """
from fireiron import *
combined = Fused(
    name="combined", dims="m n", operands={"X": "m n", %s"total": "n"},
    body={%s"sum": "total[n] += sum(m, X[m,n])"}, types={"total": float32},
)
strategy = combined.tile(m=2, n=8).to(Block).tile(m=1, n=1).to(Thread).done()
SIZES = (8, 32)
def spec(M, N): return combined(m=M, n=N, dtype=float32)
"""
"""A definition whose blocks add to sums of columns, alone, or in addition to a separate output."""


def test_a_sample_compares_no_partial_sums(tmp_path, capsys):
    """Sums of several blocks are compared if all of them are executed, and otherwise named."""
    own, alone = tmp_path / "own.py", tmp_path / "alone.py"
    own.write_text(COMBINED % ('"Y": "m n", ', '"y": "Y[m,n] = X[m,n] * 2", '))
    alone.write_text(COMBINED % ("", ""))
    assert main(["run", str(own), "--blocks", "3"]) == 0
    out = capsys.readouterr().out
    assert "not compared  total, because other blocks write or add to the same elements; --blocks 16 compares all" in out
    assert "3 of 16 are simulated" in out and "total[" not in out
    assert main(["run", str(own), "--blocks", "16"]) == 0
    assert "not compared" not in (out := capsys.readouterr().out) and "total[" in out
    assert main(["run", str(alone), "--blocks", "3"]) == 0
    assert "4 of 16 are simulated" in (out := capsys.readouterr().out) and "8 of 32 elements were compared" in out


SEVERAL = ROOT / "tests" / "outputs.py"

WRONG = """
import attrs
import outputs

@attrs.frozen(repr=False)
class WrongSpec(outputs.Spec):
    '''The last element of the last output is another.'''

    def reference(self, *inputs):
        total, apart, transposed = super().reference(*inputs)
        transposed = transposed.copy()
        transposed[-1, -1] += 1
        return {"apart": apart, "total": total, "transposed": transposed}

@attrs.frozen(repr=False)
class OneSpec(outputs.Spec):
    def reference(self, *inputs):
        return inputs[0]

wrong = outputs.by_elements(outputs.cross(40, 50, spec_class=WrongSpec))
one = outputs.by_elements(outputs.cross(40, 50, spec_class=OneSpec))
sized = outputs.by_elements(outputs.cross(outputs.sym("M"), 50))
"""


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    """A file with references of several outputs that are wrong."""
    path = tmp_path / "several.py"
    path.write_text(WRONG)
    return path


@pytest.mark.parametrize("name", ["elements", "lines"])
@pytest.mark.parametrize("command", ["show", "emit", "check", "run", "explain", "cost", "diff", "draw"])
def test_several_outputs(fireiron, tmp_path: Path, command: str, name: str) -> None:  # type: ignore[no-untyped-def]
    more = {"diff": ["naive"], "draw": ["-o", tmp_path / "page.html"]}.get(command, [])
    status, out, err = fireiron(command, f"{SEVERAL}:{name}", *more)
    assert (status, err) == (0, "") and out


def test_run_compares_each_output(fireiron, wrong: Path) -> None:  # type: ignore[no-untyped-def]
    value = json.loads(fireiron("run", f"{SEVERAL}:elements", "--json")[1])
    assert value["passed"] and value["operands"].endswith("total float32 ColMajor, apart int32 RowMajor, transposed float64 RowMajor")
    status, out, _ = fireiron("run", f"{wrong}:wrong")
    assert status == 1 and "FAIL  transposed: element (49, 39): got " in out and "1 of 2000 differ" in out
    value = json.loads(fireiron("run", f"{wrong}:wrong", "--json")[1])
    assert value["wrong"]["output"] == "transposed" and value["wrong"]["at"] == [49, 39]
    status, _, err = fireiron("run", f"{wrong}:one")
    assert status == 2 and "Cross.reference: Cross has 3 outputs" in err
    assert fireiron("run", f"{wrong}:sized", "--size", "M=11")[0] == 0


def test_run_compares_each_output_of_a_sample(fireiron, wrong: Path) -> None:  # type: ignore[no-untyped-def]
    for name, total in (("elements", 20), ("lines", 8)):
        value = json.loads(fireiron("run", f"{SEVERAL}:{name}", "--blocks", "4", "--json")[1])
        assert value["passed"] and value["total"] == total and {0, total - 1} <= set(value["blocks"]) and len(value["blocks"]) == 4
    value = json.loads(fireiron("run", f"{wrong}:wrong", "--blocks", "1", "--json")[1])
    assert value["wrong"]["output"] == "transposed" and value["wrong"]["block"] == 0 and value["wrong"]["at"] == [15, 7]
    assert value["wrong"]["message"].startswith("block 0: transposed: element (15, 7): got ")


def test_a_sample_of_a_spec_without_inputs(fireiron, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Its reference is for the whole output, regardless of the requested part."""
    path = tmp_path / "fill.py"
    path.write_text("from fireiron import *\nfill = Init.tile(8, 8).to(Block).tile(2, 2).to(Thread).tile(1, 1).done()\n")
    path.write_text(path.read_text() + "bound = fill(Init(20, 24, value=3)(GL)(Kernel))\n")
    status, out, _ = fireiron("run", f"{path}:bound", "--blocks", "3")
    assert status == 0 and "3 of 9 are simulated" in out


def test_run_with_normal_numbers(fireiron) -> None:  # type: ignore[no-untyped-def]
    """Each element is within its bound; integers, which are exact, are the default."""
    small = ("listing_2", "-M", "40", "-N", "30", "-K", "50", "--seed", "3", "--simulate")
    status, out, _ = fireiron("run", *small, "--inputs", "normal")
    assert (
        status == 0
        and "normally distributed numbers" in out
        and re.search(
            r"errors +C\[\d+, \d+\] is \S+, expected \S+: off by \S+ of at most \S+, \d+% of its bound; relative error of all", out
        )
    )
    value = json.loads(fireiron("run", *small, "--inputs", "normal", "--json")[1])
    assert value["numbers"] == "normal" and 0 < value["errors"]["C"]["fraction"] < 1 and value["errors"]["C"]["compared"] == 1200
    assert "small integers with exact sums" in fireiron("run", *small)[1]
    blocks = fireiron("run", "naive", "-M", "200", "-N", "64", "-K", "8", "--simulate", "--inputs", "normal", "--blocks", "1")[1]
    assert "of 12800 elements were compared" in blocks


def test_a_wrong_element_of_normal_numbers(fireiron, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """An error of one thousandth, which a global tolerance does not detect."""
    from fireiron import sim

    simulate = sim.simulate

    def wrong(*given: object, **options: object) -> object:
        result = simulate(*given, **options)  # type: ignore[arg-type]
        result.outputs["C"][3, 4] *= 1.01
        return result

    monkeypatch.setattr(sim, "simulate", wrong)
    status, out, _ = fireiron("run", "listing_2", "-M", "40", "-N", "30", "-K", "50", "--seed", "3", "--simulate", "--inputs", "normal")
    assert status == 1 and "FAIL  element (3, 4): got " in out and "1 of 1200 differ" in out


def test_large_outputs_are_sampled() -> None:
    spec = MatMul(200, 100, 7)(GL, GL, GL)(Kernel)
    arrays = {
        name: np.random.default_rng(1).standard_normal(shape).astype(np.float32) for name, shape in (("A", (200, 7)), ("B", (7, 100)))
    }
    judge = Judge(spec, {}, arrays, work=4000)
    got = arrays["A"] @ arrays["B"]
    assert judge.wrong("C", got) is None and 64 <= judge.compared["C"] <= 600 and " of 20000 elements were compared" in judge.summary("C")
    got[199, 99] += 1
    message = judge.wrong("C", got)
    assert message is not None and message["at"] == [199, 99] and judge.wrong("C", got[:3]) is not None


def host_cupy() -> object:
    """NumPy under the names of CuPy: kernels that are called with its arrays are simulated."""
    event = types.SimpleNamespace(record=lambda: None, synchronize=lambda: None)
    array = lambda shape, dtype, data, strides: np.ndarray(shape, dtype, data, strides=strides)
    cuda = types.SimpleNamespace(Event=lambda: event, get_elapsed_time=lambda start, stop: 0.5)
    return types.SimpleNamespace(zeros=np.zeros, full=np.full, asarray=np.asarray, asnumpy=np.array, ndarray=array, cuda=cuda)


@pytest.mark.parametrize("name", ["elements", "lines", "wrong"])
def test_run_on_a_gpu_compares_each_output(wrong: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, "cupy", host_cupy())
    path = wrong if name == "wrong" else SEVERAL
    program = library.find(f"{path}:{name}").strategy.program("sm_80")
    arrays, judge = simulated.data_for(program, {}, 3)
    result = cli_run._on_gpu(program, {}, arrays, judge, cli_run.Report(True))
    assert result is None if name != "wrong" else result is not None and result["message"].startswith("transposed: element (49, 39): got ")


def test_the_corners_are_in_the_sample() -> None:
    program = library.bind(library.find("listing_2"), {"M": 512, "N": 384, "K": 8}).program()
    assert {0, 2, 9, 11} <= set(simulated.order_of(program, {}, 12)[:5])


def test_explain_finds_steps_that_work(fireiron, user: Path) -> None:  # type: ignore[no-untyped-def]
    out = fireiron("explain", f"{user}:unmatched", "--json")[1]
    (leaf,) = [leaf for leaf in json.loads(out)["leaves"] if leaf["match"] is None]
    assert leaf["steps"] == ".tile(1, 1).split(1).done()" and "tried: with it the strategy is complete" in leaf["outcome"]
    names: dict[str, object] = {}
    exec(user.read_text().replace("from neighbor import copy", "copy = Move.tile(1, 1).to(Thread).done()"), names)
    names["fixed"] = eval(f"partial{leaf['steps']}(MatMul(64, 64, 16)(GL, GL, GL)(Kernel))", names)
    assert "fmaf" in names["fixed"].cuda()  # type: ignore[attr-defined]
    assert "no instruction performs it; the nearest" in fireiron("explain", f"{user}:unmatched")[1]
    assert "open; the nearest" in fireiron("explain", f"{user}:partial")[1]


def test_explain_where_no_step_helps() -> None:
    """No instruction has the element types; a wrong instruction is requested; several leaves are open."""
    spec = MatMul(64, 64, 16, dtype=float64, c_dtype=float16)(GL, GL, GL)(Kernel)
    report = text(explain(spec.tile(8, 8).to(Block).done()))
    assert "any chain of up to 4" in report and "C type" in report
    block = MatMul(64, 64, 16, dtype=float16)(GL, GL, GL)(Kernel).tile(32, 32).to(Block)
    rest = MatMul.tile(2, 2).to(Thread).split(1).tile(2, 1).done(HFMA2)
    report = text(explain(block.epilog(RF, Init.tile(2, 2).to(Thread).done(), Move.tile(2, 2).to(Thread).done()).then(rest)))
    assert "closed after .split(1) by\n    .load(A, RF, Move.done()).load(B, RF, Move.done())\n  tried" in report
    assert report.count("  closed without changes, once the other leaves are\n  tried") == 2, "the init and the store follow"
    store = Move.tile(4, 1).to(Thread).tile(1, 1).done()  # its distribution differs from that of the accumulators
    report = text(explain(block.epilog(RF, Init.tile(2, 2).to(Thread).done(), store).then(rest)))
    assert "tried" not in report and "but the strategy is refused: c_rf" in report
    with pytest.raises(DecompositionError):
        explain(spec.tile(7, 8).to(Block).tile(3, 3).done())


# ---------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    "size", ["0", "-1", "1.5", "x", "", " ", "1e3", "M:0", "M:-8", "m", "8:8", "M:8:8", "9999999999", "٣", "M M", "1_000"]
)
@pytest.mark.parametrize("dim", ["M", "N", "K"])
def test_wrong_sizes(fireiron, dim: str, size: str) -> None:  # type: ignore[no-untyped-def]
    status, out, err = fireiron("show", "naive", f"-{dim}", size)
    assert (status, out) == (2, "") and "error" in err and "Traceback" not in err


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "COMMAND"),
        (["paint"], "invalid choice"),
        (["show"], "STRATEGY"),
        (["show", "maxwel"], "did you mean maxwell"),
        (["show", "qqq"], "listing_1 listing_2"),
        (["show", ""], "unknown strategy"),
        (["show", "nothing.py"], "cannot be read"),
        (["show", "."], "unknown strategy"),
        (["show", "tests/"], "unknown strategy"),
        (["show", "maxwell:nothing"], "nothing does not exist"),
        (["show", "os"], "unknown strategy"),
        (["show", "_gemm"], "unknown strategy"),
        (["show", "naive", "--arch", "sm_1"], "sm_80"),
        (["list", "--arch", "sm_1"], "sm_80"),
        (["show", "naive", "--set", "bm=64"], "no such tunable"),
        (["show", "listing_1", "--set", "bn=7"], "128 64 32 16"),
        (["show", "listing_1", "--set", "bp=64"], "did you mean b"),
        (["show", "listing_1", "--set", "self=64"], "no such tunable"),
        (["show", "listing_1", "--set", "bm"], "NAME=INTEGER"),
        (["show", "listing_1", "--set", "bm=x"], "NAME=INTEGER"),
        (["show", "naive", "--dtype", "float17"], "float16"),
        (["show", "naive", "--layouts", "NX"], "two or three letters"),
        (["show", "naive", "--layouts", "N"], "two or three letters"),
        (["run", "naive", "--seed", "-1"], "seed"),
        (["run", "naive", "--blocks", "0"], "blocks"),
        (["run", "naive", "--size", "Q=3"], "has no size Q"),
        (["run", "naive", "-M", "M:8", "--size", "M=3"], "multiples of 8"),
        (["show", "naive", "-M", "S", "-N", "S:8"], "two symbols"),
        (["emit", "naive", "-o", "/nowhere/x.cu"], "cannot be written"),
        (["emit", "naive", "-o", "/dev/null", "--force"], "not a regular file"),
        (["diff", "naive"], "required"),
        (["diff", "naive", "naiv"], "did you mean naive"),
    ],
)
def test_mistakes(fireiron, arguments: list[str], message: str) -> None:  # type: ignore[no-untyped-def]
    status, out, err = fireiron(*arguments)
    assert status == 2
    assert message in err and "Traceback" not in err
    assert out == ""


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("source", "message", "place"),
    [
        ("from fireiron import *\n\ns = MatMul.tile(0, 1)\n", "tile", "broken.py:3"),
        ("def f():\n    return 1 / 0\n\nf()\n", "ZeroDivisionError", "broken.py:2"),
        ("x = (\n", "SyntaxError", "broken.py:1"),
        ("raise SystemExit(0)\n", "SystemExit", "broken.py:1"),
        ("import nothing_of_this_name\n", "ModuleNotFoundError", "broken.py:1"),
        ("x = 1\n", "strategy does not exist", ""),
        ("from fireiron import *\n", "strategy does not exist", ""),
        ("from fireiron import *\nstrategy = 3\n", "not a strategy but int", ""),
        ("from fireiron import *\nstrategy = MatMul.tile(1, 1)\nSIZES = 3\n", "SIZES", ""),
        ("from fireiron import *\nstrategy = MatMul.tile(1, 1)\nSIZES = (3,)\n", "SIZES has 1", ""),
        ("from fireiron import *\nstrategy = MatMul.tile(1, 1)\ndef spec(M, N, K):\n    return 5\n", "does not return a spec", ""),
        ("from fireiron import *\nstrategy = MatMul.tile(1, 1)\ndef spec(M, N, K):\n    return M.x\n", "AttributeError", "broken.py:4"),
        ("from fireiron import *\nstrategy = BinaryPointwise.tile(8, 8).to(Block)\n", "needs a problem", ""),
        ("\0", "null bytes", ""),
        ("# coding: nothing\n", "SyntaxError", ""),
    ],
)
def test_mistakes_in_a_users_file(fireiron, tmp_path: Path, source: str, message: str, place: str) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "broken.py"
    path.write_text(source)
    status, _, err = fireiron("show", path)
    assert status == 2 and message in err and place in err and "Traceback" not in err
    assert [one.name for one in tmp_path.iterdir()] == ["broken.py"]


def test_an_illegal_kernel_has_one_exit_status(fireiron, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """All commands return 1 for it, and JSON; the error of a file is one of the command, even if it is of the same class."""
    path = tmp_path / "illegal.py"
    path.write_text("from fireiron import *\nstrategy = MatMul.tile(5, 5).to(Block).tile(3, 5).to(Warp)\n")
    for command in ("show", "emit", "check", "cost", "run", "explain", "bench"):
        status, out, err = fireiron(command, path, *([] if command == "emit" else ["--json"]))
        assert status == 1 and "does not divide" in out + err, command
        assert command == "emit" or json.loads(out), command
    assert fireiron("diff", path, "naive")[0] == fireiron("show", "listing_1", "-K", "K")[0] == 1
    path.write_text("from fireiron import *\ns = MatMul.tile(0, 1)\n")
    status, out, err = fireiron("show", path, "--json")
    assert status == 2 and json.loads(out)["error"] == {
        "kind": "DecompositionError", "message": err.split("error: ")[1].splitlines()[0], **json.loads(out)["error"]
    }  # fmt: skip


def test_wrong_names_in_a_users_file(fireiron, user: Path) -> None:  # type: ignore[no-untyped-def]
    for name, message in (("plian", "did you mean plain"), ("number", "not a strategy but int"), ("A", "not a strategy but Operand")):
        status, _, err = fireiron("show", f"{user}:{name}")
        assert status == 2 and message in err
    for options in (["-M", "8"], ["--dtype", "float16"]):
        status, _, err = fireiron("show", f"{user}:bound", *options)
        assert status == 2 and "is bound to" in err
    assert "no size K" in fireiron("show", f"{user}:mover", "-K", "8")[2]
    assert "does not accept A, B" in fireiron("show", f"{user}:mover", "--layouts", "NN")[2]


def test_defects_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> int:
        raise RuntimeError("a defect")

    monkeypatch.setattr(cli.list, "run", broken)
    with pytest.raises(RuntimeError):
        main(["list"])


def test_interrupted(fireiron, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    def broken(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.list, "run", broken)
    assert fireiron("list")[::2] == (130, "fireiron: interrupted\n")


def test_colors(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert cli.output.paint("x", 31, Terminal()) == "\x1b[31mx\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert cli.output.paint("x", 31, Terminal()) == "x"


# ---------------------------------------------------------------------------------------------- as a process


def process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    command = [sys.executable, "-m", "fireiron", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=variables, cwd="/", timeout=60, check=False)


def test_help_is_quick() -> None:
    """Not by time: the loaded modules decide."""
    assert process("--help").returncode == 0
    program = "import sys, fireiron.cli as c; c._parser(); print([m for m in ('numpy', 'cattrs', 'tabulate', 'cupy') if m in sys.modules])"
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=variables, check=True).stdout == "[]\n"


def test_a_terminal_without_unicode() -> None:
    done = process("show", "naive", *SMALL, PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and "|- tile(128, 128)" in done.stdout and done.stderr == ""


def test_a_reader_that_leaves() -> None:
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    command = f"'{sys.executable}' -m fireiron list | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=variables, timeout=60, check=False)
    assert done.stdout in ("141\n", "0\n") and done.stderr == ""


def test_a_reader_that_leaves_before_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*arguments: object, **options: object) -> int:
        raise BrokenPipeError

    monkeypatch.setattr("fireiron.cli.refuse", closed)
    monkeypatch.setattr("fireiron.cli.drop_output", lambda: None)
    assert main(["show", "no_such_strategy", "--json"]) == 141


def test_version() -> None:
    done = process("--version")
    assert done.returncode == 0 and done.stdout.startswith("fireiron ")


@pytest.mark.parametrize("blocks", [[], ["--blocks", "2"]])
@pytest.mark.parametrize(
    "spec, chain",
    [
        ("MatMul(64, 64, 64, accumulate=True)(GL, GL, GL)(Kernel)", "MatMul.tile(32, 32).to(Block).tile(4, 4).to(Thread).split(1)"),
        ("AtomicAdd(64, 64)(GL, GL)(Kernel)", "AtomicAdd.tile(32, 32).to(Block)"),
    ],
)
def test_run_of_kernels_that_add_to_their_output(tmp_path, capsys, blocks, spec, chain):
    """Their output has previous values, which are part of the expected result."""
    path = tmp_path / "adds.py"
    last = ".tile(1, 1).to(Thread).done()" if "Atomic" in spec else ".tile(1, 1).done()"
    path.write_text(f"from fireiron import *\n\nstrategy = {chain}{last}\n\n\ndef spec():\n    return {spec}\n")
    assert main(["run", str(path), "--simulate", *blocks]) == 0
    assert "PASS" in capsys.readouterr().out


def test_commands_on_persistent_kernels(tmp_path, capsys):
    """A persistent kernel with a producer: every command supports it, and a sample of blocks compares all their tiles."""
    sizes = ["-M", 1536, "-N", 1536, "-K", 64, "--arch", "sm_90a", "--set", "bm=64"]
    for command in ("show", "explain", "check", "emit", "cost"):
        assert main([command, "hopper", *map(str, sizes)]) == 0, command
    assert main(["draw", "hopper", *map(str, sizes), "-o", str(tmp_path)]) == 0
    assert "132 blocks" in (tmp_path / "tiles.svg").read_text()
    capsys.readouterr()
    assert main(["run", "hopper", *map(str, sizes), "--simulate", "--blocks", "2"]) == 0
    text = capsys.readouterr().out
    assert "PASS" in text and "2 of 132 are simulated and compared" in text
