"""What a terminal shows: lines of at most 100 columns, progress, the demo on two screens; `bench` and `doctor`."""

import argparse
import importlib.metadata
import io
import json
import random
import re
import sys
import types

import numpy as np
import pytest

from fireiron.cli import COMMANDS, bench, cache, demo, doctor, main, output, tune
from fireiron.cli.folded import WIDEST, Folded, folded, shortened, table
from fireiron.errors import LaunchError, WrongResultError
from fireiron.gpu import launch
from fireiron.measure import simulated, timing
from fireiron.tune import run as tune_run


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(launch, "gpu_available", lambda: False)


@pytest.fixture
def terminal(monkeypatch):
    """Runs a command on a terminal: status, lines, text of the error stream."""

    def run(*arguments):
        out, err = Terminal(), Terminal()
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setenv("COLUMNS", "160")
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        status = main([str(one) for one in arguments])
        assert sys.stdout is out
        return status, out.getvalue().splitlines(), err.getvalue()

    return run


# ---------------------------------------------------------------------------------------------- folding


def test_folded_lines_fit_and_lose_nothing():
    draw = random.Random(7)
    for _ in range(300):
        words = ["".join(draw.choices("ab(),._│├─", k=draw.randint(1, 40))) for _ in range(draw.randint(1, 20))]
        line = " " * draw.randint(0, 6) + (" " * draw.randint(1, 3)).join(words)
        width = draw.choice((40, 80, 100))
        parts = list(folded(line, width))
        assert all(len(part) <= width for part in parts)
        assert re.sub(r"[\s│├─]", "", "".join(parts)) == re.sub(r"[\s│├─]", "", line)
        if len(line) <= width:
            assert parts == [line]


def test_continued_lines_keep_branches_and_columns():
    assert list(folded("│  └─ tile(8, 8).to(Warp)  MatMul(8,8,8)(SH,SH,RF)(Warp)", 40)) == [
        "│  └─ tile(8, 8).to(Warp)",
        "│         MatMul(8,8,8)(SH,SH,RF)(Warp)",
    ]
    assert list(folded("registers     one two three four", 28)) == ["registers     one two three", "              four"]
    colored = list(folded("\x1b[31merror\x1b[0m " + "word " * 9, 30))
    assert colored[0].startswith("\x1b[31merror\x1b[0m word") and all(len(re.sub(r"\x1b\[\d+m", "", part)) <= 30 for part in colored)


def test_a_folded_stream_writes_whole_lines():
    inner, seen = Terminal(), []
    stream = Folded(inner, 10, lambda: seen.append(1))
    stream.write("one two ")
    assert inner.getvalue() == "" and seen == [1]
    stream.write("three\nfour")
    stream.flush()
    assert inner.getvalue() == "one two\n    three\nfour" and seen == [1] and stream.isatty()


def test_tables_stay_within_a_width():
    rows = [["a", "word " * 30, "x" * 70], ["bb", "short", "3"]]
    text = table(rows, ["first", "second", "third"], right=("third",), width=80)
    assert max(map(len, text.splitlines())) <= 80 and text.count("word") == 30 and text.count("x") == 70
    assert max(map(len, table(rows, ["first", "second", "third"]).splitlines())) > 200
    assert shortened("a long text", 8) == "a lon..." and shortened("short", 8) == "short"


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "sgemm", "-M", 128, "-N", 128, "-K", 32],
        ["diff", "listing_2", "naive", "-M", 32, "-N", 32, "-K", 8],
        ["check", "listing_2", "-M", 128, "-N", 128, "-K", 16],
        ["explain", "naive", "-M", 16, "-N", 16, "-K", 16],
        ["cost", "naive", "-M", 16, "-N", 16, "-K", 16],
        ["list", "hopper"],
        ["records", "show", "--strategy", "sgemm"],
        ["doctor"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_hundred_columns(terminal, arguments):
    status, lines, err = terminal(*arguments)
    assert status == 0 and lines and max(map(len, lines)) <= WIDEST
    assert err.startswith(f"\r\x1b[Kfireiron {arguments[0]} ") and err.endswith("\r\x1b[K")  # shown at once, and erased at the end


def test_wide_and_texts_for_programs_are_not_folded(terminal):
    size = ["-M", 128, "-N", 128, "-K", 32]
    assert max(map(len, terminal("show", "sgemm", *size, "--wide")[1])) > WIDEST
    _, lines, _ = terminal("emit", "sgemm", *size)
    assert max(map(len, lines)) > WIDEST
    json.loads("\n".join(terminal("show", "naive", *size, "--json")[1]))


def test_errors_fit_and_go_to_the_error_stream(terminal):
    status, lines, err = terminal("show", "nothing_of_this_name")
    message = err.rpartition("\x1b[K\x1b")[0] or err
    assert status == output.REFUSED and not lines and "unknown strategy" in message
    assert max(len(re.sub(r"\r\x1b\[K", "", line)) for line in err.splitlines()) <= 2 * WIDEST


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_explains_the_exit_status(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as end:
        main([*command.split(), "--help"])
    help_text = capsys.readouterr().out
    assert end.value.code == 0 and "exit status: 0 success" in help_text and max(map(len, help_text.splitlines())) <= WIDEST


# ---------------------------------------------------------------------------------------------- the demo


def test_the_demo_fits_on_two_screens(terminal, monkeypatch):
    status, lines, _ = terminal("demo")
    text = "\n".join(lines)
    assert status == 0 and len(lines) <= 100 and max(map(len, lines)) <= WIDEST
    assert "fmaf(a_rf[m], b_rf[n]" in text and "__syncthreads();" in text and "race on a_sh: thread" in text and "PASS" in text
    kernel, numpy_ = (float(one) for one in re.findall(r"(?:kernel|a @ b) (\S+?e-\d+)", " ".join(text.split())))
    assert 0 < kernel < 1e-5 and 0 < numpy_ < 1e-5
    monkeypatch.setattr("fireiron.measure.judge.Judge.wrong", lambda *_: {"message": "element (3, 4)"})
    monkeypatch.setattr(demo, "_checked", lambda *_: [])
    status, lines, _ = terminal("demo")
    assert status == 1 and any(line.startswith("  FAIL  element (") for line in lines)


def test_commands_that_the_demo_names_exist():
    assert all(command.split()[:1] == ["fireiron"] and command.split()[1] in COMMANDS for command, _ in demo.NEXT)


# ---------------------------------------------------------------------------------------------- doctor


def test_doctor_finds_errors(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "_version_of", lambda package: None if package in ("tabulate", "optuna") else "1")
    monkeypatch.setenv("FIREIRON_CACHE_DIR", str(tmp_path / "a" / "b"))
    monkeypatch.setenv("FIREIRON_CASH_DIR", "x")
    monkeypatch.setenv("FIREIRON_REQUIRE_RECORD", "perhaps")
    assert main(["doctor", "--json"]) == 1
    items = {(one["part"], one["name"]): one for one in json.loads(capsys.readouterr().out)["items"]}
    wrong = {key for key, one in items.items() if one["state"] == "wrong"}
    assert {("packages", "tabulate"), ("environment", "FIREIRON_CASH_DIR"), ("environment", "value"), ("records", "tuned")} == wrong
    assert items["extras", "tune"]["do"] == "pip install 'fireiron[tune]'" and items["extras", "bf16"]["state"] == "ok"
    assert str(tmp_path) in items["cache", "folder"]["details"] and not (tmp_path / "a").exists()


def items_of(look):
    """The items that one part of the doctor reports, by name."""
    return {item.name: item for item in look()}


def test_doctor_in_words(capsys, monkeypatch):
    """A remedy is next to each error; optional packages to install are listed at the end."""
    items = [
        doctor.Item("packages", "numpy", "2.1"), doctor.Item("packages", "attrs", "not installed", doctor.WRONG, "pip install attrs"),
        doctor.Item("extras", "plot", "without matplotlib", doctor.MISSING, "pip install plots"), doctor.Item("x", "y", "z", doctor.MISSING),
    ]  # fmt: skip
    monkeypatch.setattr(doctor, "PARTS", (lambda: items,))
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert re.search(r"packages +numpy +ok +2.1\n +attrs +wrong +not installed\n +pip install attrs\n", out)
    assert "optional, not installed\n  pip install plots  pictures as PNG\n" in out and out.endswith("\n1 wrong\n")
    monkeypatch.setattr(doctor, "PARTS", (lambda: items[:1],))
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert out.endswith("\nnothing is wrong\n") and "to install" not in out


def test_doctor_reads_what_the_package_needs(monkeypatch):
    lines = ["numpy>=1.26", "matplotlib>=3; extra == 'plot'", 'optuna ; extra == "tune"', "dask[distributed]; extra == 'tune'", "; "]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: lines)
    assert doctor._needs() == {"": [("numpy", ">=1.26")], "plot": [("matplotlib", ">=3")], "tune": [("optuna", ""), ("dask", "")]}
    versions = {"numpy": "2.1", "matplotlib": "3.9"}
    monkeypatch.setattr(doctor, "_version_of", versions.get)
    items = items_of(doctor._packages)
    assert items["numpy"].state == "ok" and items["plot"].details == "matplotlib 3.9"
    assert (items["tune"].details, items["tune"].state, items["tune"].do) == ("without optuna, dask", "-", "pip install 'fireiron[tune]'")

    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", absent)
    assert "imported from its folder" in items_of(doctor._packages)["metadata"].details


def test_doctor_knows_versions():
    assert doctor._version_of("numpy") == np.__version__ and doctor._version_of("no such package") is None


def test_doctor_without_compilers(monkeypatch, tmp_path):
    monkeypatch.setattr("fireiron.gpu.toolchain.toolchains", lambda: ())
    monkeypatch.setattr("fireiron.gpu.disassembly.disassemblers", lambda: ())
    monkeypatch.setattr(doctor, "_nvcc", lambda: None)
    items = items_of(doctor._compilers)
    assert {name: item.state for name, item in items.items()} == {"NVRTC": "-", "nvdisasm": "-", "nvcc": "-"}
    assert items["NVRTC"].do == items["nvdisasm"].do == "pip install 'fireiron[check]'" and not items["nvcc"].do
    assert doctor._reported_version(tmp_path / "nvcc").startswith("does not answer: ")
    for text, version in (("Cuda compilation tools, release 13.0, V13.0.88", "13.0"), ("a tool", "unknown version")):
        tool = tmp_path / "nvcc"
        tool.write_text(f"#!/bin/sh\necho '{text}'\n")
        tool.chmod(0o755)
        assert doctor._reported_version(tool) == version


class Runtime:
    getDeviceProperties = staticmethod(lambda number: {"name": b"NVIDIA H200"})
    getDeviceCount = staticmethod(lambda: 2)


def test_doctor_with_a_gpu(monkeypatch):
    cuda = types.SimpleNamespace(runtime=Runtime, Device=lambda: types.SimpleNamespace(id=0))
    monkeypatch.setattr("fireiron.gpu.launch.visible_arch", lambda: "sm_90")
    monkeypatch.setattr("fireiron.gpu.launch.require_cupy", lambda: types.SimpleNamespace(cuda=cuda, __version__="14.0"))
    monkeypatch.setattr("fireiron.gpu.launch.device_arch", lambda: "sm_90")
    monkeypatch.setattr("fireiron.gpu.launch.driver_version", lambda: (12, 8))
    monkeypatch.setattr("fireiron.gpu.toolchain.serving", lambda arch, driver: None)
    items = items_of(doctor._gpu)
    assert items["GPU"].details == "NVIDIA H200, sm_90; 2 visible" and items["driver"].details == "CUDA 12.8; CuPy 14.0"
    assert (items["compiler"].state, items["compiler"].do) == ("wrong", "pip install 'fireiron[cuda12]'")
    monkeypatch.setattr("fireiron.gpu.toolchain.serving", lambda arch, driver: "NVRTC 12.8")
    assert (items_of(doctor._gpu)["compiler"].state, items_of(doctor._gpu)["compiler"].details) == ("ok", "NVRTC 12.8 compiles for it")

    def without():
        raise LaunchError("no CuPy")

    monkeypatch.setattr("fireiron.gpu.launch.require_cupy", without)
    items = items_of(doctor._gpu)
    assert items["GPU"].details == "sm_90, reported by the driver" and (items["CuPy"].details, items["CuPy"].state) == ("no CuPy", "wrong")
    monkeypatch.setattr("fireiron.gpu.launch.visible_arch", lambda: None)
    monkeypatch.setattr("fireiron.gpu.launch.cupy_builds", lambda: ())
    assert [(item.name, item.state, item.do) for item in doctor._gpu()] == [("CuPy", "-", "")]


def test_doctor_looks_at_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("FIREIRON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(doctor.os, "access", lambda path, mode: False)
    folder = items_of(doctor._cache)["folder"]
    assert folder.state == "wrong" and folder.details == f"{tmp_path} is not writable" and "FIREIRON_CACHE_DIR" in folder.do

    def damaged():
        raise OSError("not a folder")

    monkeypatch.setattr("fireiron.gpu.cache.entries", damaged)
    assert [(item.details, item.state) for item in doctor._cache()] == [("not a folder", "wrong")]
    monkeypatch.setenv("FIREIRON_NO_CACHE", "1")
    assert [(item.details, item.state) for item in doctor._cache()] == [("disabled by FIREIRON_NO_CACHE", "-")]


def test_doctor_counts_records():
    (item,) = doctor._records()
    assert re.fullmatch(r"[0-9]+ of [0-9]+ strategies, on .*", item.details) and item.state == "ok"


# ---------------------------------------------------------------------------------------------- bench


def rows(out):
    return [re.split(r"  +", line) for line in out.splitlines()[4:]]


def test_bench_without_a_gpu(capsys, monkeypatch):
    arguments = ["bench", "listing_1", "naive", "--shape", "32x32x8", "--sweep", "bm=16,32", "--set", "bn=16"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert out.startswith("NOTHING WAS MEASURED (no GPU)")
    assert [(row[0], row[1], row[2]) for row in rows(out)] == [
        ("listing_1", "32x32x8", "bn=16 bm=16"),
        ("listing_1", "32x32x8", "bn=16 bm=32"),
        ("naive", "32x32x8", "-"),
    ]
    assert all("correct; limited by" in row[-1] for row in rows(out))
    monkeypatch.setattr(bench, "_simulated", lambda line, *_: (_ for _ in ()).throw(WrongResultError("C is wrong")))
    assert main(["bench", "naive", "--shape", "32x32x8", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["measured"] is False and report["lines"][0]["status"] == "wrong" and "C is wrong" in report["lines"][0]["note"]


def test_bench_on_a_gpu(capsys, monkeypatch):
    """Measured times are replaced by known numbers."""

    class Data:
        def __init__(self, spec):
            self.spec, self.sizes = spec, {}

        def check_rotation(self):
            pass

        def calls(self, contender):
            return (contender,)

        def tolerance_for(self, contender):
            return 1e-6

        def verify(self, call, tolerance):
            return 2e-7

    def measure(contenders, *, rounds, seconds, **options):
        assert seconds in (10, 2)
        return {name: timing.Timing.of([100.0 * (1 + place / 2)] * min(rounds, 2 * seconds), 40) for place, name in enumerate(contenders)}

    monkeypatch.setattr(launch, "gpu_available", lambda: True)
    monkeypatch.setattr(launch, "device_arch", lambda: "sm_90")
    monkeypatch.setattr(timing.Data, "of", staticmethod(lambda spec, **_: Data(spec)))
    monkeypatch.setattr(timing, "library", lambda data: (None,))
    monkeypatch.setattr(timing, "measure", measure)
    monkeypatch.setattr(timing, "environment", lambda: {"gpu": "NVIDIA H200"})
    assert main(["bench", "naive", "-M", "64", "-N", "64", "-K", "64"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("NVIDIA H200, medians of 20 rounds")
    assert rows(out) == [["naive", "64x64x64", "-", "100", "5.2e-03", "150", "1.5", "2.0e-07"]]
    assert main(["bench", "naive", "-M", "64", "-N", "64", "-K", "64", "--seconds", "2"]) == 0
    assert rows(capsys.readouterr().out)[0][-1] == "4 rounds within --seconds 2"
    assert main(["bench", "naive", "-M", "64", "-N", "64", "-K", "64", "--seconds", "2", "--json"]) == 0
    line = json.loads(capsys.readouterr().out)["lines"][0]
    assert (line["rounds"], line["launches"]) == (4, 40)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["naive", "--sweep", "bm"], "no given strategy has such a tunable"),
        (["naive", "-M", "8", "--shape", "8x8x8"], "both specify sizes"),
        (["naive", "--shape", "8x8"], "the problem of naive has other sizes\n  legal   M x N x K"),
        (["naive", "--shape", "8x"], "'8x' are not sizes"),
        (["softmax", "--sweep", "m=8,16"], "do      --shape 8x1024 --shape 16x1024"),
        (["naive", "--sweep", "bm=a"], "is neither NAME=INTEGER"),
        (["naiv"], "did you mean naive"),
        (["naive", "--dtype", "half"], "did you mean float16"),
        (["naive", "--arch", "90"], "did you mean sm_90"),
    ],
)
def test_bench_refuses(arguments, message, capsys):
    try:
        status = main(["bench", *arguments])
    except SystemExit as end:
        status = end.code
    captured = capsys.readouterr()
    assert status == 2 and message in captured.err and captured.out == ""


def test_verified_reports_how_much_was_executed(monkeypatch):
    from fireiron import GL, Block, Kernel, MatMul, Thread

    spec = MatMul(96, 64, 8)(GL, GL, GL)(Kernel)
    program = MatMul.tile(32, 32).to(Block).tile(4, 4).to(Thread).split(1).tile(1, 1).done()(spec).program()
    assert str(simulated.verified(program)) == "all 6 blocks"
    monkeypatch.setattr(simulated, "MULTIPLY_ADDS", 1)
    part = simulated.verified(program, seconds=1e-9)
    assert 0 < part.blocks < part.total == 6 and str(part) == f"{part.blocks} of 6 blocks"
    monkeypatch.setattr(simulated, "simulated", lambda *_, **__: {"message": "element (0, 0): got 1, expected 2"})
    with pytest.raises(WrongResultError, match="got 1, expected 2"):
        simulated.verified(program)


# ---------------------------------------------------------------------------------------------- rankings that end in time


def test_a_ranking_that_runs_out_of_time(monkeypatch):
    """The candidates that were predicted are ranked, and their number is reported; progress shows the best so far."""
    from fireiron import GL, Block, Kernel, MatMul, Thread, Tunable
    from fireiron.tune import rank

    strategy = MatMul.tile(Tunable("bm", 16, 32, 64), Tunable("bn", 16, 32, 64)).to(Block).tile(4, 4).to(Thread).split(1).tile(1, 1).done()
    monkeypatch.setattr(tune_run, "LEAST_PREDICTED", 2)
    monkeypatch.setattr(tune_run, "REPORT_SECONDS", 0.0)
    seen = []
    ranking = rank(strategy, MatMul(64, 64, 8)(GL, GL, GL)(Kernel), seconds=1e-9, jobs=1, report=seen.append)
    assert not ranking.complete and 2 <= len(ranking.results) < 9
    assert ranking.stopped == f"after 1e-09 s: {len(ranking.results)} of 9 combinations were examined, in random order"
    assert f"best predicted {ranking.ranking[0].predicted_us:.4g} us ({ranking.ranking[0]})" in str(seen[-1])


# ---------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("read", "right", "wrong"),
    [
        (tune._numbers, {"0": (0,), "0,12": (0, 12)}, ("", "0,", "a", "-1")),
        (tune._seconds, {"3": 3.0, "0.5": 0.5}, ("0", "-1", "1e3", "x")),
        (tune._prune, {"none": False, "1.5": 1.5}, ("0.5", "all", "")),
        (cache._age, {"2w": 14.0, "36h": 1.5}, ("2", "w", "2y")),
        (cache._size, {"500": 500, "2K": 2048, "1GiB": 2**30}, ("", "K", "2X")),
        (bench._shape, {"512x256x64": (512, 256, 64), "512": (512,), "8x4": (8, 4)}, ("", "512x", "axbxc", "0x8", "8,4")),
    ],
)
def test_values_of_options(read, right, wrong):
    assert {text: read(text) for text in right} == right
    for text in wrong:
        with pytest.raises(argparse.ArgumentTypeError, match=re.escape(repr(text))):
            read(text)


def test_sizes_of_files():
    assert [cache._bytes(size) for size in (5, 2048, 3 << 20, 5 << 30)] == ["5 bytes", "2.0 KiB", "3.0 MiB", "5.0 GiB"]
