"""A user's own file on the command line: the meaning of a name in it, what is computed, and which requests contradict it."""

import json
import sys
from pathlib import Path

import pytest

import fireiron.tune  # noqa: F401 - for sys.modules
from fireiron import *
from fireiron.cli import main, new
from fireiron.gpu import launch
from fireiron.language.library import bind, find

NAIVE = "from fireiron import *\nstrategy = MatMul.tile(16, 16).to(Block).tile(4, 4).to(Thread).split(1).tile(1, 1).done()\n"
SCALED = """
scaled = Fused(
    name="scaled", dims="m n", operands={"X": "m n", "weight": "n", "Y": "m n"}, body={"out": "Y[m,n] = X[m,n] * weight[n]"}
)
"""
FILES = {
    "value": NAIVE + "from fireiron.gpu.kernel import CompiledKernel\nproblem = MatMul(48, 32, 20, dtype=float16, A=RowMajor)(GL, GL, GL)(Kernel)\n"
    "kernel = strategy(problem)\ncompiled = CompiledKernel(kernel.program('sm_80'))\nprogram = kernel.program('sm_75')\nnumber = 3\n",
    "function": NAIVE + "SIZES = (48, 32, 20)\n"
    "def problem(rows, columns, depth=24, *, dtype=float16):\n    return MatMul(rows, columns, depth, dtype=dtype)(GL, GL, GL)(Kernel)\n",
    "free": NAIVE + "def spec(M, N, K, **options):\n    return MatMul(M, N, K, **options)(GL, GL, GL)(Kernel)\nproblem = spec(48, 32, 20)\n",
    "other": NAIVE + "def spec(M, N, K):\n    return MatMul(M, N, K)(GL, GL, GL)(Kernel)\nproblem = MatMul(48, 32, 20, A=RowMajor)(GL, GL, GL)(Kernel)\n",
    "clash": NAIVE + "spec = MatMul(16, 16, 16)(GL, GL, GL)(Kernel)\nproblem = MatMul(16, 16, 8)(GL, GL, GL)(Kernel)\n",
    "clashing": NAIVE + "def spec(M, N, K): ...\ndef problem(M, N, K): ...\n",
    "unplaced": NAIVE + "problem = MatMul(16, 16, 16)\n",
    "wrong": NAIVE + "spec = 3\n",
    "several": NAIVE + "problem = MatMul(48, 32, 20)(GL, GL, GL)(Kernel)\ncopy = Move.tile(8, 8).to(Block).tile(1, 1).to(Thread).done()\n"
    "copy_spec = Move(40, 24, dtype=float16)(GL, GL)(Kernel)\nturned = copy\n",
    "problems": "from fireiron import *\nproblem = MatMul(48, 32, 20)(GL, GL, GL)(Kernel)\n" + SCALED,
    "definition": "from fireiron import *\n" + SCALED + "SIZES = (24, 40)\nrows = scaled.tile(m=8, n=32).to(Block).tile(m=1, n=1).to(Thread).done()\n",
    "definitions": "from fireiron import *\n" + SCALED + "problem = scaled\n"
    "rows = scaled.tile(m=8, n=32).to(Block).tile(m=1, n=1).to(Thread).done()\nothers = scaled.tile(m=4, n=32).to(Block).tile(m=1, n=1).to(Thread).done()\n",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    for name, text in FILES.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def bound(folder, argument, sizes=None, **options):
    """The spec that an argument denotes, and the strategy."""
    name, colon, rest = argument.partition(":")
    strategy = bind(find(f"{folder / name}.py{colon}{rest}"), sizes, options)
    return strategy.spec, strategy


@pytest.mark.parametrize(
    ("argument", "sizes", "means"),
    [
        ("value", {}, "MatMul(48,32,20)(GL,GL,GL)(Kernel)"),
        ("value:kernel", {}, "MatMul(48,32,20)(GL,GL,GL)(Kernel)"),
        ("value:compiled", {}, "MatMul(48,32,20)(GL,GL,GL)(Kernel)"),
        ("value:program", {}, "MatMul(48,32,20)(GL,GL,GL)(Kernel)"),
        ("value:problem", {}, "MatMul(48,32,20)(GL,GL,GL)(Kernel)"),
        ("function", {}, "MatMul(48,32,24)(GL,GL,GL)(Kernel)"),
        ("function", {"rows": 8, "depth": 4}, "MatMul(8,32,4)(GL,GL,GL)(Kernel)"),
        ("function:problem", {"rows": 8}, "MatMul(8,32,24)(GL,GL,GL)(Kernel)"),
        ("free", {}, "MatMul(48,32,20)(GL,GL,GL)(Kernel)"),
        ("unplaced", {}, "MatMul(16,16,16)(GL,GL,GL)(Kernel)"),
        ("free", {"K": 64}, "MatMul(48,32,64)(GL,GL,GL)(Kernel)"),
        ("other", {}, "MatMul(48,32,20)(GL,GL,GL)(Kernel)"),
        ("other:spec", {"K": 64}, "MatMul(1024,1024,64)(GL,GL,GL)(Kernel)"),
        ("several", {}, "MatMul(48,32,20)(GL,GL,GL)(Kernel)"),
        ("several:copy", {}, "Move(40,24)(GL,GL)(Kernel)"),
        ("several:copy_spec", {}, "Move(40,24)(GL,GL)(Kernel)"),
        ("problems:problem", {}, "MatMul(48,32,20)(GL,GL,GL)(Kernel)"),
        ("definition", {}, "scaled(24,40)(GL,GL,GL)(Kernel)"),
        ("definition", {"M": 8, "n": 64}, "scaled(8,64)(GL,GL,GL)(Kernel)"),
        ("definition:scaled", {"m": 8}, "scaled(8,40)(GL,GL,GL)(Kernel)"),
        ("definitions:others", {"m": 8}, "scaled(8,1024)(GL,GL,GL)(Kernel)"),
    ],
)
def test_the_meaning_of_a_name(folder, argument, sizes, means):
    if argument == "several:copy_spec":
        with pytest.raises(ArgumentError, match="several strategies start from copy_spec") as caught:
            bound(folder, argument, sizes)
        assert caught.value.legal == ("copy", "turned")
        return
    spec, strategy = bound(folder, argument, sizes)
    assert str(spec).startswith(means) and strategy.finished
    assert strategy.program().tree.complete


def test_strategies_of_copies_do_not_hide_the_only_one_for_the_problem(tmp_path):
    """A file may name the strategies of its copies; without a problem, or with two strategies for it, the name is required."""
    path = tmp_path / "parts.py"
    parts = NAIVE.replace("strategy = ", "gemm = ") + "store = Move.tile(8, 8).to(Block).tile(1, 1).to(Thread).done()\n"
    path.write_text(parts + "problem = MatMul(48, 32, 20)(GL, GL, GL)(Kernel)\n")
    assert find(str(path)).strategy.start == MatMul
    for text in (parts, path.read_text() + "other = gemm\n"):
        path.write_text(text)
        with pytest.raises(ArgumentError, match="strategy does not exist"):
            find(str(path))


def test_types_and_orders_default_to_those_of_the_file(folder):
    assert str(bound(folder, "value")[0].A.dtype) == "float16"
    assert "RowMajor" in str(bound(folder, "value:problem")[0].A.tensor.layout)
    assert str(bound(folder, "function", dtype="float32")[0].A.dtype) == "float32"
    assert str(bound(folder, "free", dtype="float16")[0].A.dtype) == "float16"


@pytest.mark.parametrize(
    ("argument", "sizes", "options", "message", "do"),
    [
        ("value", {}, {"dtype": "float32"}, "dtype cannot be chosen", "**options"),
        ("value:kernel", {"M": 64}, {}, "is bound to MatMul(48,32,20)", "unbound"),
        ("value:compiled", {}, {"dtype": "float32"}, "is bound to MatMul(48,32,20)", "unbound"),
        ("value:number", {}, {}, "number is not a strategy but int", "value.py:NAME"),
        ("value:kernl", {}, {}, "kernl does not exist", "did you mean kernel?"),
        ("function", {"M": 8}, {}, "its problem has no size M", "-s rows=64"),
        ("function", {}, {"A": None}, "its problem does not accept A", "**options"),
        ("other", {"M": 64}, {}, "its file specifies one spec", "path.py:spec"),
        ("clash", {}, {}, "spec and problem are different specs", "define one"),
        ("clashing", {}, {}, "spec and problem are different functions", "define one"),
        ("wrong", {}, {}, "spec is not a spec, but int", "a function from sizes to a spec"),
        ("problems", {}, {}, "strategy does not exist", "problems.py:problem for the library's strategy"),
        ("problems:scaled", {}, {}, "no strategy starts from scaled", "scaled.tile"),
        ("definition", {"M": 8, "m": 9}, {}, "the size m is given twice", "[8, 9]"),
        ("definitions", {}, {}, "does not exist; the file has several strategies", "rows others"),
        ("definitions:problem", {}, {}, "several strategies start from problem", "rows others"),
    ],
)  # fmt: skip
def test_options_that_contradict_a_file_are_refused(folder, argument, sizes, options, message, do):
    with pytest.raises(ArgumentError) as caught:
        bound(folder, argument, sizes, **options)
    assert message in caught.value.asked and do in str(caught.value)


def test_a_problem_without_a_strategy_takes_those_of_the_library(folder):
    """The first one that is legal on the target."""
    _, strategy = bound(folder, "problems:problem")
    assert [one.steps[0].origin.split(":")[0] for one in strategy.alternatives] == ["strategies/_gemm.py", "strategies/naive.py"]
    assert "gemm_nn" in find(f"{folder / 'problems'}.py:problem").strategy.steps[0].origin or strategy.cuda("sm_80")


COMMANDS = {
    "show": [], "emit": [], "check": [], "cost": [], "run": ["--simulate", "--seed", "0"], "explain": [], "draw": ["--what", "tree", "-o", "-"],
    "tune": ["--predict"], "export": ["--no-cubin", "-o", "{out}"], "diff": ["naive"],
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("argument", ["value:problem", "definition"])
def test_every_command_takes_them(folder, command, argument, capsys, tmp_path, monkeypatch):
    """Each command uses the spec of the file; `tune` also passes it to its processes."""
    ranked = []

    def rank(strategy, **_):
        ranked.append(str(strategy.spec))
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["fireiron.tune"], "rank", rank)
    name, colon, rest = argument.partition(":")
    more = [one.replace("{out}", str(tmp_path / "out")) for one in COMMANDS[command]]
    if command == "diff" and argument == "definition":
        more = [f"{folder / 'definition'}.py:scaled"]
    status = main([command, f"{folder / name}.py{colon}{rest}", *more])
    assert status == (130 if command == "tune" else 0)
    out = ranked[0] if command == "tune" else capsys.readouterr().out
    if command == "export":
        out = next((tmp_path / "out").glob("*.h")).read_text()
    assert ("MatMul(48,32,20)" if name == "value" else "scaled(24,40)") in out or (command == "check" and "0 errors" in out)


def test_the_target_of_a_compiled_kernel_is_the_one_that_is_meant(folder, capsys):
    path = folder / "value.py"
    assert main(["explain", f"{path}:compiled"]) == 0
    assert " on sm_80" in capsys.readouterr().out
    assert main(["run", f"{path}:program", "--simulate", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["target"] == "sm_75"
    assert main(["emit", f"{path}:compiled", "--arch", "sm_90"]) == 2
    assert "is compiled for sm_80: --arch sm_90 cannot be chosen" in capsys.readouterr().err
    assert main(["emit", f"{path}:compiled", "--arch", "sm_80"]) == 0
    assert main(["diff", f"{path}:compiled", f"{path}:program"]) == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    ("given", "message"),
    [(["-M", "4", "-s", "M=8"], "the size M is given twice"), (["-s", "m=4", "-s", "m=8"], "the size m is given twice")],
)
def test_a_size_is_named_once(folder, given, message, capsys):
    assert main(["show", f"{folder / 'free'}.py", *given]) == 2
    assert message in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------- fireiron new

SMALL = {
    "elementwise": ["-s", "n=3000"],
    "softmax": ["-s", "m=6", "-s", "n=72"],
    "gpus": ["-M", "72", "-N", "80", "-K", "64"],
    "move": ["-M", "40", "-N", "72"],
    "fused": ["-s", "m=72", "-s", "n=40", "-s", "k=64"],
}
"""Sizes for running a kind of file, which are not multiples of its tiles; for GEMM M, N and K."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", new.KINDS)
def test_a_new_file_passes_check_and_run(kind, tmp_path, capsys, monkeypatch):
    """Without a warning or an ineffective step, from another folder; its lines fit a terminal."""
    monkeypatch.setattr(launch, "gpu_available", lambda: False)
    path = tmp_path / "mine.py"
    assert main(["new", str(path.with_suffix("")), "--kind", kind]) == 0
    output = capsys.readouterr().out
    assert f"fireiron check {path}" in output and "have suggestions" in output
    written = sorted(one.name for one in tmp_path.iterdir())
    assert written == (["mine.cu", "mine.py"] if kind == "micro-kernel" else ["mine.py"])
    for file in tmp_path.iterdir():
        assert "NAME" not in file.read_text() and max(map(len, file.read_text().splitlines())) <= 100
    monkeypatch.chdir(Path(__file__).parent)
    assert main(["check", str(path), "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert [one for one in findings if one["severity"] != "note" and "NOT compiled" not in one["message"]] == []
    assert [one for one in findings if one["kind"] == "ineffective"] == []
    assert main(["run", str(path), "--simulate", *SMALL.get(kind, ["-M", "72", "-N", "40", "-K", "64"])]) == 0
    assert "PASS" in capsys.readouterr().out


def test_a_new_file_overwrites_nothing(tmp_path, capsys, monkeypatch):
    """Neither of two files is written if one of them exists."""
    monkeypatch.chdir(tmp_path)
    Path("mine.cu").write_text("// mine\n")
    assert main(["new", "mine", "--kind", "micro-kernel"]) == 2
    assert "mine.cu already exists" in capsys.readouterr().err
    assert [one.name for one in tmp_path.iterdir()] == ["mine.cu"] and Path("mine.cu").read_text() == "// mine\n"
    assert main(["new", "mine.py", "--kind", "micro-kernel", "--force"]) == 0
    assert "c_at(m, n)" in Path("mine.cu").read_text() and Path("mine.py").exists()
    capsys.readouterr()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("numpy", "would hide the module numpy"),
        ("json.py", "fireiron new my_json"),
        ("3d", "is not a module name"),
        ("class", "is not a module name"),
        ("a/b", "mkdir -p a"),
    ],
)
def test_names_that_new_files_cannot_have(name, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["new", name]) == 2
    assert message in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_the_kinds_of_new_files_are_those_that_are_there():
    assert {one.stem for one in new.TEMPLATES.iterdir()} == set(new.KINDS)


# ---------------------------------------------------------------------------------------------- micro-kernels of files


def test_a_text_keeps_its_file_name(tmp_path, monkeypatch):
    """A stored strategy contains the text itself, so it does not depend on the file or folder."""
    (tmp_path / "dot.cu").write_text("for (int k = 0; k < a_size_k; ++k) { c[0] += a_at(0, k) * b_at(k, 0); }\n")
    (tmp_path / "mine.py").write_text(
        NAIVE.replace(".split(1).tile(1, 1).done()", ".tile(1, 1).done('dot.cu')").replace("tile(4, 4).to", "tile(1, 1).to")
    )
    strategy = find(str(tmp_path / "mine.py")).strategy
    stored = strategy.to_json()
    (tmp_path / "dot.cu").unlink()
    monkeypatch.chdir(tmp_path)
    assert Strategy.from_json(stored) == strategy and Strategy.from_json(stored).steps[-1].executable.text.startswith("for (int k")
    assert eval(repr(strategy)) == strategy


def test_names_in_comments_of_a_text_are_not_declared():
    """Compilers refuse unused declarations; a comment or a string uses nothing."""
    text = (
        '// a is read by a_at, b_stride_k is not used\n/* c */ asm volatile("// c_size_m" ::: "memory");\nc[0] += a_at(0, 0) * b_at(0, 0);'
    )
    chain = MatMul.tile(16, 16).to(Block).epilog(RF).tile(1, 1).to(Thread).split(1).done(text)
    printed = chain(MatMul(32, 32, 16)(GL, GL, GL)(Kernel)).cuda("sm_80").partition("// micro-kernel")[2]
    assert "a_at = [&]" in printed and "const c =" in printed
    for name in ("const a =", "b_stride_k =", "c_size_m ="):
        assert name not in printed


SUGGESTED = {
    "without a pad": ("matmul", "    .pad(4)  # avoids bank conflicts: remove it, and run `check`\n", "", "banks"),
    "copies of 16 bytes": ("matmul", "copy = Move.tile(1, 1).to(Thread).done()", "copy = Move.coalesced_copy(4).done()", ""),
    "tiles under way": ("matmul", ".split(bk)", ".split(bk).pipeline(2)", ""),
    "without a swizzle": ("tensor-core", "    .swizzle_storage()  # no bank conflicts: remove it, and run `check`\n", "", "banks"),
    "fragments ahead": ("tensor-core", "    .split(16)\n    .unroll()\n", "    .split(16)\n    .unroll()\n    .pipeline(2)\n", ""),
    "bands": ("tensor-core", "    .to(Block)\n", "    .to(Block)\n    .rasterize(group_m=8)\n", ""),
    "blocks that stay": ("hopper", "    .to(Block)\n", "    .to(Block)\n    .rasterize(group_m=8)\n    .persistent()\n", ""),
    "a column in one bank": ("move", "    .pad(1)  #", "    #", "banks"),
    "another order": ("move", "    .layout(ColMajor)  #", "    #", "coalescing"),
    "a swizzle": ("move", ".pad(1)", ".swizzle_storage()", "banks"),
}
"""Suggestions in the files: the kind, the replacements, and the warnings of `check` afterwards."""


@pytest.mark.nightly
@pytest.mark.parametrize("change", SUGGESTED)
def test_suggestions_in_new_files_are_right(change, tmp_path, capsys):
    kind, old, new_text, warned = SUGGESTED[change]
    path = tmp_path / "mine.py"
    assert main(["new", str(path), "--kind", kind]) == 0
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new_text, 1))
    capsys.readouterr()
    assert main(["check", str(path), "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert {one["kind"] for one in findings if one["severity"] == "warning"} == ({warned} if warned else set())
    assert main(["run", str(path), "--simulate", *SMALL.get(kind, ["-M", "72", "-N", "40", "-K", "64"])]) == 0
    capsys.readouterr()


# ---------------------------------------------------------------------------------------------- epilogues

EPILOGUE = """
from fireiron import *

SIZES = (40, 24, 32)
TEXT = "relu(acc + bias[n]) + R[m,n]"
plain = MatMul.tile(16, 16).to(Block).epilog(RF).tile(4, 4).to(Thread).split(1).tile(1, 1).done()
strategy = plain.fuse_epilogue(TEXT)
"""
SPECS = {
    "definition": "",
    "called": "def spec(M, N, K, **options):\n    return MatMul.fuse_epilogue(TEXT)(M, N, K, **{'dtype': bfloat16, 'order': RowMajor, **options})\n",
    "bound": "def spec(M, N, K, **options):\n    types = {'dtype': bfloat16, 'c_dtype': bfloat16, 'order': RowMajor}\n"
    "    return plain(MatMul(M, N, K, **{**types, **options})).fuse_epilogue(TEXT).spec\n",
}  # fmt: skip


@pytest.mark.parametrize(("name", "dtype"), [("definition", float16), ("called", bfloat16), ("bound", bfloat16)])
def test_sizes_types_and_orders_of_a_file_with_an_epilogue(tmp_path, name, dtype):
    """However the file makes the spec: by the definition of its strategy, by the arguments of a matmul, or by a plain strategy."""
    path = tmp_path / "mine.py"
    path.write_text(EPILOGUE + SPECS[name])
    own = bind(find(str(path))).spec
    assert [own.size(dim).evaluate({}) for dim in "mnk"] == [40, 24, 32] and own.A.dtype == own.R.dtype == dtype
    assert main(["run", str(path), "--simulate", "-M", "17", "--dtype", "bfloat16", "--layouts", "NT"]) == 0
    changed = bind(find(str(path)), {"M": 17}, {"dtype": float32, "B": RowMajor}).spec
    assert (changed.size("m").evaluate({}), changed.A.dtype, changed.B.tensor.layout) == (17, float32, RowMajor)


def test_an_epilogue_is_called_as_its_matmul():
    biased = MatMul.fuse_epilogue("relu(acc + bias[n]) * R[b,m,n]", signature="bmk,bkn->bmn")
    spec = biased(2, 40, 24, 32, dtype=float16, c_dtype=float32, A=RowMajor, types={"bias": float16}, R=ColMajor)
    assert [spec.size(dim).evaluate({}) for dim in "bmnk"] == [2, 40, 24, 32] and spec.bias.dtype == float16 and spec.R.dtype == float32
    with pytest.raises(ArgumentError, match="not a matmul at level Kernel without accumulation"):
        biased(2, 40, 24, 32, accumulate=True)
    with pytest.raises(ArgumentError, match="Q is not an operand of the epilogue"):
        biased(2, 40, 24, 32, types={"Q": float16})


def test_options_of_a_matmul_with_named_sizes_name_the_options_of_a_definition():
    with pytest.raises(ArgumentError) as caught:
        MatMul.fuse_epilogue("relu(acc)")(m=40, n=24, k=32, c_dtype=float32, order=ColMajor)
    assert caught.value.hint == 'types={"C": float32} instead of c_dtype=; A=ColMajor, B=ColMajor, C=ColMajor instead of order='


def test_definitions_that_differ_in_types_name_them():
    def scaled(**types):
        body = {"twice": "t[m] = 2 * x[m]", "out": "y[m] = t[m] + 1"}
        return Fused(name="scaled", dims="m", operands={"x": "m", "y": "m"}, body=body, types=types)

    with pytest.raises(DecompositionError) as caught:
        scaled().tile(m=8).to(Block).done()(scaled(t=float16)(m=64))
    assert (caught.value.got, caught.value.legal) == ("no declared types", "t float16")


def test_sizes_with_defaults_in_the_signature_are_the_default_sizes(tmp_path):
    path = tmp_path / "rows.py"
    strategy = "rows = scaled.tile(m=1, n=32).to(Block).tile(m=1, n=1).to(Thread).done()\n"
    for signature, sizes in (("m=64, n=96", (64, 96)), ("m, n=96", (1024, 96)), ("m, n", (1024, 1024))):
        path.write_text(
            f"from fireiron import *\n{SCALED}def spec({signature}, **options):\n    return scaled(m=m, n=n, **options)\n{strategy}"
        )
        entry = find(str(path))
        assert entry.sizes == sizes and bind(entry).spec == bind(entry, dict(zip("mn", sizes, strict=True))).spec
