"""All commands: the exit status, and JSON for results and refusals. Derived strategies as files, and proposals of `explain`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fireiron import *
from fireiron import schedule
from fireiron.cli import COMMANDS, main
from fireiron.inspect.explain import explain, text

ILLEGAL = "from fireiron import *\nstrategy = MatMul.tile(5, 5).to(Block).tile(3, 5).to(Warp)\n"
RACY = """from fireiron import *
problem = MatMul(64, 64, 16, order=RowMajor)
copies = MatMul.tile(64, 64).to(Block).epilog(RF).split(8).load(A, SH).no_sync().load(B, SH).no_sync()
strategy = copies.tile(32, 32).to(Warp).tile(8, 4).to(Lane).split(1).tile(1, 1).done()
"""


@pytest.fixture
def called(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Call a command in an empty folder: exit status, output, errors."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> tuple[int, str, str]:
        status = main([str(one) for one in arguments])
        return status, *capsys.readouterr()

    return call


@pytest.mark.parametrize("command", COMMANDS)
def test_wrong_options_have_one_status_and_are_json(called, command: str) -> None:  # type: ignore[no-untyped-def]
    status, out, err = called(command, "--jsn")
    assert (status, out) == (2, "") and f"fireiron {command}: error" in err
    status, out, err = called(command, "--jsn", "--json")
    assert status == 2 and json.loads(out)["error"]["kind"] == "UsageError"
    assert json.loads(out)["error"]["message"] in err and "Traceback" not in err


def test_an_unknown_option_names_the_similar_option_and_the_usage_of_its_command(called) -> None:  # type: ignore[no-untyped-def]
    status, _, err = called("cost", "naive", "--jsn")
    assert status == 2 and err.startswith("usage: fireiron cost") and "did you mean --json?" in err
    assert called()[0] == called("--json")[0] == called("paint")[0] == 2


def test_files_that_cannot_be_written_are_json(called) -> None:  # type: ignore[no-untyped-def]
    Path("folder").mkdir()
    for arguments in (("emit", "naive", "-o", "folder"), ("draw", "naive", "--what", "tree", "-o", "no/where.svg"), ("new", "no/where")):
        status, out, err = called(*arguments, "--json")
        assert status == 2 and json.loads(out)["error"]["message"] in err, arguments


def test_results_of_commands_that_write_are_json(called) -> None:  # type: ignore[no-untyped-def]
    assert json.loads(called("new", "mine", "--json")[1])["files"] == ["mine.py"]
    assert "float" in json.loads(called("emit", "naive", "--json")[1])["text"]
    assert json.loads(called("emit", "naive", "-o", "naive.cu", "--json")[1]) == {"form": "cuda", "file": "naive.cu"}
    (drawn,) = json.loads(called("draw", "naive", "--what", "tree", "--json")[1])["files"]
    assert Path(drawn["file"]).exists() and drawn["pictures"] == ["tree"]
    assert json.loads(called("puzzle", "1", "mine1.py", "--new", "--json")[1])["files"] == ["mine1.py"]
    assert json.loads(called("puzzle", "1", "--hint", "1", "--json")[1])["hint"]


def test_diff_of_an_illegal_kernel(called) -> None:  # type: ignore[no-untyped-def]
    Path("racy.py").write_text(RACY)
    Path("open.py").write_text("from fireiron import *\nstrategy = MatMul.tile(32, 32).to(Block)\n")
    assert called("diff", "racy.py", "naive")[0] == called("diff", "racy.py", "naive", "--json")[0] == 1
    assert called("show", "open.py")[0] == called("diff", "open.py", "naive")[0] == 0, "an incomplete tree is no error"


def test_derive_writes_a_file_that_commands_read(called) -> None:  # type: ignore[no-untyped-def]
    Path("mine.py").write_text(
        'from fireiron import *\nsums = Fused(name="sums", dims="m n", operands={"X": "m n", "Y": "n"}, '
        'body={"out": "Y[n] += sum(m, X[m,n])"})\nproblem = sums(m=70, n=3000, dtype=float32)\n'
    )
    derived = ("derive", "mine.py", "--candidates", "3", "-o", "derived.py")
    status, out, _ = called(*derived)
    assert status == 0 and "derived.py: fireiron show" in out
    source = Path("derived.py").read_text()
    assert "definition = Fused(" in source and "problem = definition(m=70, n=3000" in source and "done(EVICT_FIRST)" in source
    assert called("run", "derived.py", "--simulate")[0] == 0
    assert called(*derived)[0] == 2, "files are overwritten only with --force"
    problem = MatMul(64, 64, 32, dtype=float16, order=RowMajor)(GL, GL, GL)(Kernel)
    space: dict[str, object] = {}
    exec(schedule(problem, "sm_80", candidates=2).source(), space)
    assert space["problem"] == problem


def test_predictions_that_count_as_equal_are_explained() -> None:
    import attrs

    answer = schedule(MatMul(64, 64, 32, dtype=float16, order=RowMajor)(GL, GL, GL)(Kernel), "sm_80", candidates=2)
    first = answer.ranking[0]
    faster = attrs.evolve(first, us=first.us and first.us * 0.99)
    assert "count as equal" in str(attrs.evolve(answer, ranking=(first, faster)))
    assert "count as equal" not in str(attrs.evolve(answer, ranking=(first,)))


def test_instructions_are_printed_by_their_names() -> None:
    for chain in (MatMul.done(FFMA), Move.done(EVICT_FIRST)):
        assert eval(repr(chain)) == chain
    assert (repr(MatMul.done(FFMA)), repr(Move.done(EVICT_FIRST))) == ("MatMul.done(FFMA)", "Move.done(EVICT_FIRST)")


def test_explain_proposes_the_type_of_the_accumulator() -> None:
    """A 16-bit C has 16-bit accumulators by default, and wgmma has none for bfloat16: the usual first mistake on Hopper."""
    problem = MatMul(128, 128, 64, dtype=bfloat16, c_dtype=bfloat16, order=RowMajor)
    tiles = MatMul.tile(128, 128).to(Block).epilog(RF).split(64).load(A, SH).load(B, SH).tile(64, 128).to(Warpgroup).done()
    report = text(explain(tiles(problem), "sm_90a"))
    assert "epilog(RF, float32) instead of epilog(RF)" in report
    assert "closed by the change of the main chain" in report and "fill_fragment" not in report
    assert max(map(len, report.splitlines())) < 600


def test_several_strategies_of_a_file(called, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """Parts are not selected, a text after a strategy describes it, and a team's folder lists all."""
    Path("team").mkdir()
    Path("team/products.py").write_text(
        '"""Products."""\nfrom fireiron import *\nSIZES = (32, 32, 8)\ncopy = Move.tile(1, 1).to(Thread).done()\n'
        "one = MatMul.tile(16, 16).to(Block).split(8).load(A, SH, copy).load(B, SH, copy).tile(1, 1).to(Thread).split(1).done()\n"
        '"""With copies."""\ntwo = MatMul.tile(8, 8).to(Block).tile(1, 1).to(Thread).split(1).done()\n'
    )
    status, _, err = called("cost", "team/products.py")
    assert status == 2 and "legal   one two" in err
    described = {row["name"].rpartition(":")[2]: row["description"] for row in json.loads(called("list", "team/products.py", "--json")[1])}
    assert described == {"one": "With copies.", "two": "Products."}
    monkeypatch.setenv("FIREIRON_STRATEGIES", "team")
    assert {"products:one", "products:two"} <= {row["name"] for row in json.loads(called("list", "--json")[1])}
    assert called("run", "products:two", "--simulate")[0] == 0
