"""First contact of a new user: names already in use, arrays in the wrong order, late errors, unhelpful explanations."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import traceback
from pathlib import Path

import numpy as np
import pytest
from printed_text import COMPILER
from problems import library, stored

from fireiron import *
from fireiron.cli import main
from fireiron.gpu import launch, toolchain
from fireiron.inspect import explain as inspect_explain
from fireiron.inspect.explain import explain
from fireiron.language.library import find
from fireiron.lower import walk as lowering

ROOT = Path(__file__).parent.parent

# ---------------------------------------------------------------------------------------------- a package called `strategies`

USES = """
import sys
sys.path[:0] = sys.argv[1:]
import numpy, strategies, fireiron
from fireiron.language import library
assert strategies.MINE and fireiron.__file__.startswith(sys.argv[2])
from fireiron.strategies import gemm_nn
from fireiron.strategies.hmma_ampere import spec, strategy
assert len(library.names()) > 15 and fireiron.Records.shipped()
assert strategy.steps[0].origin.startswith("strategies/hmma_ampere.py:")
assert library.find("maxwell").doc
ones = numpy.ones((8, 8), numpy.float32)
assert (fireiron.matmul(ones, ones) == 8).all()
fireiron.best_strategy(spec(512, 512, 512), "sm_90")
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
    """The path of a library strategy's file if a user's package comes first on the path."""
    script = own_strategies / "uses.py"
    script.write_text(USES)
    run = subprocess.run([sys.executable, script, own_strategies, place], capture_output=True, text=True, cwd=own_strategies)
    assert run.returncode == 0, run.stderr
    return Path(run.stdout.strip())


def test_users_own_strategies_next_to_a_checkout(own_strategies: Path) -> None:
    assert used(own_strategies, ROOT) == ROOT / "strategies" / "gemm_nn.py"


def test_users_own_strategies_next_to_an_installation(own_strategies: Path, tmp_path: Path) -> None:
    """The layout of an installation: the library inside the package, and nothing else called `strategies`."""
    pytest.importorskip("setuptools")
    place = tmp_path / "installed"
    build = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", place]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    assert not (place / "strategies").exists()
    assert (place / "fireiron" / "templates" / "micro-kernel.cu").exists(), "what `fireiron new` writes"
    assert used(own_strategies, place) == place / "fireiron" / "strategies" / "gemm_nn.py"


# ---------------------------------------------------------------------------------------------- the simulator is as strict as a GPU

ROWS = {"A": RowMajor, "B": RowMajor, "C": RowMajor}


def product(**options):
    """A small kernel, and a, b and a @ b for it in NumPy's default order."""
    kernel = library("naive").strategy(MatMul(20, 12, 8, **options)(GL, GL, GL)(Kernel)).compile("sm_80")
    a, b = np.arange(160, dtype=np.float32).reshape(20, 8) % 5, np.arange(96, dtype=np.float32).reshape(8, 12) % 7
    return kernel, a, b, a @ b


def test_rows_are_refused_where_columns_are_meant():
    kernel, a, b, c = product()
    with pytest.raises(LaunchError, match="A has other strides than the kernel was made for \\(ColMajor\\)") as caught:
        kernel(a, b)
    assert "make the spec with A=RowMajor" in str(caught.value) and "numpy.asfortranarray" in str(caught.value)
    with pytest.raises(LaunchError, match="B has other strides"):
        kernel(np.asfortranarray(a), b)
    with pytest.raises(LaunchError, match="out has other strides") as caught:
        kernel(np.asfortranarray(a), np.asfortranarray(b), out=np.empty_like(c, order="C"))
    assert "make the spec with C=RowMajor" in str(caught.value)
    result = kernel(np.asfortranarray(a), np.asfortranarray(b))
    assert np.array_equal(result, c) and result.flags.f_contiguous


def test_columns_are_refused_where_rows_are_meant():
    kernel, a, b, c = product(**ROWS)
    with pytest.raises(LaunchError, match="other strides") as caught:
        kernel(np.asfortranarray(a), b)
    assert "A=ColMajor" in str(caught.value) and "numpy.ascontiguousarray" in str(caught.value)
    result = kernel(a, b)
    assert np.array_equal(result, c) and result.flags.c_contiguous


def test_leading_dimensions_are_checked_and_preserved():
    kernel, a, b, c = product(A=RowMajor(ld=11), B=RowMajor, C=RowMajor(ld=16))
    with pytest.raises(LaunchError, match="A has other strides") as caught:
        kernel(a, b)
    assert "ld=..." in str(caught.value)
    result = kernel(stored(a, RowMajor, ld=11), b)
    assert np.array_equal(result, c) and result.strides == (64, 4)
    assert kernel(stored(a, RowMajor, ld=11), b, out=result) is result


@pytest.mark.parametrize("what", ["stream", "type", "overlap", "alignment", "broadcast", "reversed", "masked", "masked out"])
def test_numpy_arrays_are_refused_like_gpu_arrays(what):
    kernel, a, b, _ = product(**ROWS)
    shifted = np.empty(4 * 160 + 16, np.uint8)[4 : 4 + 4 * 160].view(np.float32).reshape(20, 8)
    square = library("naive").strategy(MatMul(8, 8, 8, **ROWS)(GL, GL, GL)(Kernel)).compile("sm_80")
    square_array = np.zeros((8, 8), np.float32)
    calls = {
        "stream": (lambda: kernel(a, b, stream=0), ArgumentError, "stream= requires arrays on a GPU"),
        "type": (lambda: kernel(a.astype(np.float64), b), LaunchError, "A has elements of another type"),
        "overlap": (lambda: square(square_array, np.ones((8, 8), np.float32), out=square_array), LaunchError, "out overlaps A in memory"),
        "alignment": (lambda: kernel(shifted, b), LaunchError, "A starts at an address that is not a multiple of 16 bytes"),
        "broadcast": (lambda: kernel(np.broadcast_to(a[:1], (20, 8)), b), LaunchError, "A has other strides"),
        "reversed": (lambda: kernel(a[::-1], b), LaunchError, "A has other strides"),
        "masked": (lambda: kernel(np.ma.masked_less(a, 2), b), LaunchError, "A is a masked array"),
        "masked out": (lambda: kernel(a, b, out=np.ma.masked_less(a @ b, 2)), LaunchError, "out is a masked array"),
    }
    call, kind, message = calls[what]
    with pytest.raises(kind, match=message):
        call()


def test_matmul_takes_arrays_that_start_anywhere():
    shifted = np.empty(4 * 64 + 16, np.uint8)[4 : 4 + 4 * 64].view(np.float32).reshape(8, 8)
    shifted[...] = np.eye(8)
    b = np.arange(64, dtype=np.float32).reshape(8, 8)
    assert np.array_equal(matmul(shifted, b), b)


# ---------------------------------------------------------------------------------------------- the cost model


def test_a_strategy_is_predicted_for_the_named_gpu():
    """As docs/cost-model.md states: the strategy names no target, so it is lowered for the target of the GPU."""
    module = library("small")
    bound = module.strategy(module.spec(256, 256, 256))
    assert predict(bound, "A100").gpu.name.startswith("A100")
    assert predict(bound, "A100").us == predict(bound.program("sm_80"), "A100").us
    assert predict(bound).gpu.name.startswith("H200")
    with pytest.raises(ArgumentError, match="does not run sm_90"):
        predict(bound.program("sm_90"), "A100")


SHAPES = ((64, 64, 64), (256, 256, 4096), (1024, 1024, 1024), (4096, 4096, 4096), (8192, 8192, 64))


@pytest.mark.parametrize("name", ["naive", "gemm_nn", "small", "hmma_ampere", "split_k", "wmma_simple", "listing_2"])
def test_the_bottleneck_is_first_in_its_table(name):
    """Unless SMs are mostly idle; then the bottleneck line reports that, and no row is marked."""
    module = library(name)
    for sizes in SHAPES:
        prediction = predict(module.strategy(module.spec(*sizes)))
        rows = str(prediction).split("\n\n")[1].splitlines()[2:]
        shares = [int(row.split("%")[0].split()[-1]) for row in rows]
        assert shares == sorted(shares, reverse=True)
        if prediction.bottleneck == "tail (waves)":
            assert prediction.filled < 0.5 and "% of the SM time has no block" in str(prediction)
            assert not [row for row in rows if "<--" in row]
        else:
            assert rows[0].startswith(prediction.bottleneck) and rows[0].endswith("<-- bottleneck")
        for phase in prediction.phases:
            assert phase.bounds[phase.limit] == max(phase.bounds.values())


# ---------------------------------------------------------------------------------------------- micro-kernels

DOT = "for (int k = 0; k < a_size_k; ++k) { c[0] += a_at(0, k) * b_at(k, 0); }"

WITH_FILE = """
from fireiron import *
strategy = MatMul.tile(16, 16).to(Block).epilog(RF).tile(1, 1).to(Thread).split(8).done("{name}")
"""


def test_a_micro_kernel_file_is_found_next_to_its_strategy(tmp_path, monkeypatch):
    """From any working directory; a file of the same name in the working directory is ignored."""
    project, elsewhere = tmp_path / "beside", tmp_path / "elsewhere"
    project.mkdir()
    elsewhere.mkdir()
    (project / "mine.py").write_text(WITH_FILE.format(name="own_dot.cu"))
    (project / "own_dot.cu").write_text(DOT)
    (elsewhere / "own_dot.cu").write_text("// another one")
    monkeypatch.chdir(elsewhere)
    assert find(str(project / "mine.py")).strategy.steps[-1].executable.text == DOT
    (project / "own_dot.cu").unlink()
    assert find(str(project / "mine.py")).strategy.steps[-1].executable.text == "// another one"
    (elsewhere / "own_dot.cu").unlink()
    with pytest.raises(ArgumentError, match=r"'own_dot.cu' cannot be read: it does not exist") as caught:
        find(str(project / "mine.py"))
    assert f"{project / 'own_dot.cu'} and {elsewhere / 'own_dot.cu'}" in str(caught.value)


GARBAGE = MatMul.tile(16, 16).to(Block).epilog(RF).tile(1, 1).to(Thread).split(8).done("this is no C++ at all;")
GOOD = MatMul.tile(16, 16).to(Block).epilog(RF).tile(1, 1).to(Thread).split(8).done(DOT)

needs_nvrtc = pytest.mark.skipif(not toolchain.toolchains(), reason="needs NVRTC (pip install 'fireiron[check]')")


@pytest.fixture
def files(tmp_path):
    """A file with a micro-kernel that is not valid C++, and one with a valid one."""
    (tmp_path / "texts.py").write_text(f"from fireiron import *\ngarbage = {GARBAGE!r}\ngood = {GOOD!r}\n")
    return str(tmp_path / "texts.py")


SMALL = ["-M", "32", "-N", "32", "-K", "16", "--arch", "sm_80"]


@needs_nvrtc
def test_a_garbage_micro_kernel_is_found_without_a_gpu(files, capsys, monkeypatch):
    """The simulator uses the spec's meaning, so the text is compiled separately."""
    monkeypatch.setattr(launch, "gpu_available", lambda: False)
    assert main(["run", f"{files}:garbage", *SMALL]) == 1
    out = capsys.readouterr().out
    assert "FAIL" in out and "the text does not compile" in out and "this is no C++ at all" in out
    assert main(["check", f"{files}:garbage", *SMALL]) == 1
    out = capsys.readouterr().out
    assert "micro-kernel" in out and "1 error" in out
    assert main(["run", f"{files}:good", *SMALL]) == 0
    out = capsys.readouterr().out
    assert "PASS" in out and "the text compiles (NVRTC" in out
    assert main(["check", f"{files}:good", *SMALL]) == 0
    assert "0 errors" in capsys.readouterr().out


def test_uncompiled_text_is_reported(files, capsys, monkeypatch):
    monkeypatch.setattr(launch, "gpu_available", lambda: False)
    monkeypatch.setattr(toolchain, "toolchains", tuple)
    for name in ("garbage", "good"):
        assert main(["run", f"{files}:{name}", *SMALL]) == 0
        assert "NOT compiled: no CUDA compiler for sm_80" in capsys.readouterr().out
        assert main(["check", f"{files}:{name}", *SMALL, "--json"]) == 0
        (finding,) = [one for one in json.loads(capsys.readouterr().out)["findings"] if one["kind"] == "micro-kernel"]
        executed = name == "good" and COMPILER is not None  # the text of a micro-kernel that ran on the host is not unknown
        assert finding["severity"] == ("note" if executed else "warning") and "NOT compiled" in finding["message"]


# ---------------------------------------------------------------------------------------------- compile() compiles

PROBLEM = MatMul(32, 32, 16)(GL, GL, GL)(Kernel)


def shown(error: BaseException) -> list[str]:
    """The files in the traceback of the error."""
    return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]


@needs_nvrtc
def test_compile_compiles_without_a_gpu(monkeypatch):
    monkeypatch.setattr(launch, "gpu_available", lambda: False)
    with pytest.raises(LaunchError, match="refuses the source for sm_80") as caught:
        GARBAGE(PROBLEM).compile("sm_80")
    assert "this is no C++ at all" in str(caught.value)
    with pytest.raises(LaunchError, match="NVRTC"):
        GOOD(PROBLEM).compile("sm_80", ("--no-such-option",))
    kernel = GOOD(PROBLEM).compile("sm_80")
    assert "compiled" in vars(kernel) and kernel.resources.registers


def test_compile_needs_no_compiler(monkeypatch):
    monkeypatch.setattr(toolchain, "toolchains", tuple)
    kernel = GARBAGE(PROBLEM).compile("sm_80")
    assert "compiled" not in vars(kernel)
    with pytest.raises(LaunchError, match="no installed CUDA compiler"):
        _ = kernel.resources


def test_errors_appear_at_compile_and_are_short():
    copy = Move.tile(1, 1).to(Thread).done()
    racy = MatMul.tile(32, 32).to(Block).split(8).load(A, SH, copy).no_sync().load(B, SH, copy).no_sync().tile(4, 4).to(Thread)
    racy = racy.split(1).tile(1, 1).done()
    open_leaf = MatMul.tile(16, 16).to(Block)
    for strategy, kind in ((racy, SynchronizationError), (open_leaf, IncompleteError)):
        with pytest.raises(kind) as caught:
            strategy(PROBLEM).compile("sm_80")
        frames = shown(caught.value)
        assert len(frames) <= 3 and frames[0] == __file__
        assert len("".join(traceback.format_exception(caught.value)).splitlines()) < 25
        assert caught.value.__cause__ is None and caught.value.__suppress_context__


def test_a_micro_kernel_of_the_working_directory_where_there_is_no_file(tmp_path, monkeypatch):
    (tmp_path / "own_dot.cu").write_text(DOT)
    monkeypatch.chdir(tmp_path)
    scope = {}
    exec(compile(WITH_FILE.format(name="own_dot.cu"), "<stdin>", "exec"), scope)
    assert scope["strategy"].steps[-1].executable.text == DOT


# ---------------------------------------------------------------------------------------------- the command line responds at once


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self):
        return True


def refuse_to_lower(*_, **__):
    raise AssertionError("nothing is lowered here")


def test_list_lowers_nothing(capsys, monkeypatch):
    """Names, sizes, tunables, records and descriptions are in the files; threads and bytes are computed for one strategy or target only."""
    monkeypatch.setattr(lowering, "grow_tree", refuse_to_lower)
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    assert "hmma_ampere" in out and "threads" not in out.splitlines()[0]
    assert main(["list", "--json"]) == 0
    assert {"name", "sizes", "tunables", "tuned", "description"} == json.loads(capsys.readouterr().out)[0].keys()
    with pytest.raises(AssertionError, match="nothing is lowered"):
        main(["list", "naive"])


@pytest.mark.nightly
def test_list_of_a_target_appears_row_by_row(capsys, monkeypatch):
    def recording(spec, steps, *rest):
        printed.append(capsys.readouterr().out)
        return real(spec, steps, *rest)

    real, printed = lowering.grow_tree, []
    monkeypatch.setattr(lowering, "grow_tree", recording)
    assert main(["list", "--arch", "sm_80"]) == 0
    assert printed[0].splitlines()[0].split()[:2] == ["name", "sizes"] and "shared bytes" in printed[0]
    rows = "".join(printed[1:])
    assert "gemm_nn" in rows.split("naive")[0], "the first rows are printed before the last ones are lowered"


COMMANDS = {
    "show": [], "emit": [], "check": [], "run": ["--simulate"], "explain": [], "cost": [], "diff": ["naive"], "draw": ["--what", "tree", "-o", "-"],
    "export": ["--no-cubin", "-o", "folder"], "tune": ["--predict"],
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_progress_is_shown_on_a_terminal(command, capsys, monkeypatch, tmp_path):
    """The line appears before anything is lowered, and disappears before the result is printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "gpu_available", lambda: False)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    before = []

    def recording(spec, steps, *rest):
        before.append(terminal.getvalue())
        return real(spec, steps, *rest)

    real = lowering.grow_tree
    for module in (lowering, inspect_explain):
        monkeypatch.setattr(module, "grow_tree", recording)
    name = "listing_1" if command == "tune" else "naive"
    extra = ["--jobs", "1"] if command == "tune" else []
    assert main([command, name, *COMMANDS[command], *SMALL, *extra]) == 0
    assert terminal.getvalue().lstrip("\r\x1b[K").split(" ...")[0].endswith((name, "naive")), terminal.getvalue()
    assert all(" ..." in line for line in before)
    assert terminal.getvalue().endswith("\r\x1b[K")
    assert capsys.readouterr().out


# ---------------------------------------------------------------------------------------------- explain


FLOAT16 = MatMul(256, 256, 128, dtype=float16, c_dtype=float16, **ROWS)(GL, GL, GL)(Kernel)
TO_WARPS = (
    MatMul.tile(128, 128)
    .to(Block)
    .epilog(RF, float32, Init.tile(64, 64).to(Warp).done(), Move.tile(64, 64).to(Warp).done())
    .split(32)
    .pipeline(2)
    .load(A, SH, Move.coalesced_copy(8).done())
    .load(B, SH, Move.coalesced_copy(8).done())
    .tile(64, 64)
    .to(Warp)
    .split(16)
    .unroll()
)
FRAGMENTS = MatMul.load(A, RF, Move.done()).load(B, RF, Move.done())


@pytest.mark.parametrize(
    "end", [MatMul.tile(16, 16).unroll().mma_tile().done(), MatMul.tile(16, 16).unroll().mma_tile()], ids=["done", "open"]
)
def test_missing_fragment_loads_are_suggested(end):
    """The suggestion is the register loads that the instruction requires, not tiles for single threads, with which nothing compiles."""
    explanation = explain(TO_WARPS.then(end)(FLOAT16), "sm_80")
    main_leaf = next(leaf for leaf in explanation.leaves if leaf.place == "main")
    assert main_leaf.inserted == FRAGMENTS.steps and main_leaf.after == ".split(16).unroll()"
    assert main_leaf.others[0][0].name == "HMMA_16816_F32"
    report = inspect_explain.text(explanation)
    assert ".load(A, RF, Move.done()).load(B, RF, Move.done())" in report and "tried: with it the strategy is complete" in report
    assert "Thread).split(1)" not in report and "other leaves remain" not in report
    assert report.count("closed without changes, once the other leaves are") == 2
    assert "mma.sync" in TO_WARPS.then(FRAGMENTS).then(MatMul.tile(16, 16).unroll().mma_tile().done())(FLOAT16).cuda("sm_80")


def test_a_strategy_that_emit_refuses_is_not_explained_as_complete(tmp_path, capsys):
    """Every leaf matches, but the store distributes elements differently from the compute path."""
    path = tmp_path / "mine.py"
    path.write_text(
        "from fireiron import *\n"
        "copy = Move.tile(1, 1).to(Thread).done()\n"
        "store = Move.tile(2, 2).to(Thread).tile(1, 1).done()\n"
        "block = MatMul.tile(32, 32).to(Block).epilog(RF, Init.tile(4, 4).to(Thread).tile(1, 1).done(), store)\n"
        "s = block.split(8).load(A, SH, copy).load(B, SH, copy).tile(4, 4).to(Thread).split(1).tile(1, 1).done()\n"
    )
    assert main(["emit", f"{path}:s"]) == 1
    refusal = capsys.readouterr().err
    assert "compute path" in refusal
    assert main(["explain", f"{path}:s"]) == 1
    report = capsys.readouterr().out
    assert "every leaf matches, but no code can be generated" in report and refusal.split("error: ")[1].splitlines()[0] in report
    assert main(["explain", f"{path}:s", "--json"]) == 1
    assert "compute path" in json.loads(capsys.readouterr().out)["refused"]
    assert main(["explain", "naive"]) == 0
    assert main(["explain", "naive", "--json"]) == 0
    capsys.readouterr()


def test_no_reason_is_empty_and_the_instruction_is_the_selected_one():
    explanation = explain(TO_WARPS.then(FRAGMENTS).then(MatMul.tile(16, 16).unroll().mma_tile().done())(FLOAT16), "sm_80")
    by_place = {leaf.place: leaf for leaf in explanation.leaves}
    copies = [leaf for place, leaf in by_place.items() if "SH" in place]
    assert explanation.refused is None and len(copies) == 2
    for leaf in copies:
        assert [one.name for one in leaf.performers] == ["CP_ASYNC_16"] and leaf.as_dict()["match"] == "CP_ASYNC_16"
    report = inspect_explain.text(explanation)
    assert "performed by CP_ASYNC_16" in report and "also Move, but CP_ASYNC_16 is used" in report
    for line in report.splitlines():
        if line.startswith("  not ") and not line.endswith("more"):
            assert len(line.split(None, 2)) == 3, f"no reason: {line!r}"
    older = inspect_explain.text(explain(TO_WARPS.then(FRAGMENTS).then(MatMul.tile(16, 16).unroll().mma_tile().done())(FLOAT16), "sm_75"))
    assert "performed by CP_ASYNC" not in older and "performed by Move" in older


def test_steps_that_do_not_compile_are_not_suggested():
    """The instruction would match, but the whole strategy is refused; the report states that."""
    copy = Move.tile(1, 1).to(Thread).done()
    chain = MatMul.tile(32, 32).to(Block).split(8).load(A, SH, copy).no_sync().load(B, SH, copy).no_sync().tile(4, 4).to(Thread)
    explanation = explain(chain.split(1).done()(PROBLEM), "sm_80")
    (leaf,) = [leaf for leaf in explanation.leaves if leaf.match is None]
    assert leaf.steps is None and "an instruction matches, but the strategy is refused: race on" in leaf.outcome


# ---------------------------------------------------------------------------------------------- which spec is analyzed

PLAIN = "from fireiron import *\nstrategy = MatMul.tile(32, 32).to(Block).tile(4, 4).to(Thread).split(1).tile(1, 1).done()\n"
OUTPUTS = {
    "spec": "spec = MatMul(96, 64, 20, dtype=float16, A=RowMajor)(GL, GL, GL)(Kernel)\n",
    "problem": "problem = MatMul(96, 64, 20, dtype=float16, A=RowMajor)(GL, GL, GL)(Kernel)\n",
    "function": "SIZES = (96, 64, 20)\ndef problem(M, N, K):\n    return MatMul(M, N, K, dtype=float16, A=RowMajor)(GL, GL, GL)(Kernel)\n",
}


@pytest.mark.parametrize("way", OUTPUTS)
def test_the_spec_of_a_file_is_analyzed(way, tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(PLAIN + OUTPUTS[way])
    assert main(["show", str(path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("MatMul(96,64,20)(GL,GL,GL)(Kernel) with A float16 RowMajor; B, C float16\n")
    assert main(["run", str(path), "--simulate", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["operands"] == "A float16 RowMajor, B float16 ColMajor, C float16 ColMajor"
    assert main(["show", str(path), "-M", "32"]) == 0, "a file with one problem is resized"
    assert capsys.readouterr().out.startswith("MatMul(32,64,20)(GL,GL,GL)(Kernel) with A float16 RowMajor; B, C float16\n")


def test_storage_is_shown(capsys):
    """`--layouts NNN` and `TTT` are different kernels with different output."""
    shown = {}
    for layouts in ("NNN", "TTT"):
        assert main(["show", "naive", *SMALL, "--layouts", layouts]) == 0
        shown[layouts] = capsys.readouterr().out
    assert shown["NNN"].count("ColMajor") - shown["TTT"].count("ColMajor") == 3
    assert [line.split()[-1] for line in shown["TTT"].splitlines()[-3:]] == ["RowMajor"] * 3


def test_tree_is_shown_before_the_error(tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(
        "from fireiron import *\n"
        "copy = Move.tile(1, 1).to(Thread).done()\n"
        "racy = MatMul.tile(32, 32).to(Block).split(8).load(A, SH, copy).no_sync().load(B, SH, copy).no_sync().tile(4, 4).to(Thread)\n"
        "racy = racy.split(1).tile(1, 1).done()\n"
    )
    for command in (["show", f"{path}:racy"], ["diff", f"{path}:racy", "naive"]):
        status = main([*command, *SMALL])
        out, err = capsys.readouterr()
        assert status in (0, 1) and "tile(32, 32).to(Block)" in out and "race on" in out + err
