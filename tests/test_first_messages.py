"""Messages that a reader needs who does not know the project: misspelled names, sizes of a file with one problem, tables of several sizes."""

import json

import pytest

from fireiron import RF, Block, Fused, Lane, MatMul, Move, RowMajor, Warp, float16, float32, predict
from fireiron.check import check_resources
from fireiron.check.access_trace import AccessTrace
from fireiron.check.registers import array_registers, register_prediction
from fireiron.cli import main
from fireiron.cli.bench import _shown_sizes
from fireiron.language.entries import dimensions
from fireiron.language.library import find

SCALED = """from fireiron import *
scaled = Fused(name="scaled", dims="m n", operands={"x": "m n", "y": "m n"}, body={"out": "y[m,n] = 2 * x[m,n]"})
problem = scaled(m=64, n=32, dtype=float32)
strategy = scaled.tile(m=1, n=32).to(Block).tile(m=1, n=1).to(Thread).done()
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def written(name, text):
        (tmp_path / name).write_text(text)
        return name

    return written


@pytest.mark.parametrize(
    "line, message, similar",
    [
        ("MatMul.split(8).pipeline(2).warp_specialze()", "no step or refinement is called warp_specialze", "warp_specialize"),
        ("Move.coalesced(4)", "no step or refinement is called coalesced", "coalesced_copy"),
        ("MatMul.tile(64, 64).skip()", "no step or refinement is called skip", "skip_"),
        ("MatMul.tile(64, 64).to(Blck)", "name 'Blck' is not defined", "Block"),
    ],
)
def test_a_misspelled_name_is_a_message(line, message, similar, write, capsys):
    """No traceback of this package: the line of the file, and the similar names; as JSON too."""
    write("mine.py", f"from fireiron import *\n\nstrategy = {line}\n")
    assert main(["check", "mine.py", "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert message in error["message"] and error["at"].endswith("mine.py:3") and similar in error["do"]


def test_sizes_of_a_file_with_one_problem(write, capsys):
    """A file of `derive -o` has one problem; other sizes keep its types and storage orders, and other types are refused."""
    write("mine.py", SCALED)
    assert dimensions(find("mine.py")) == ("m", "n")
    assert main(["run", "mine.py", "--simulate", "--seed", "1", "-s", "m=3", "-s", "n=5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["spec"].startswith("scaled(3,5)")
    assert main(["run", "mine.py", "--simulate", "--dtype", "float16"]) == 2
    assert "specifies one spec" in capsys.readouterr().err


def test_bench_prints_all_sizes(write):
    from argparse import Namespace

    write("mine.py", SCALED)
    assert _shown_sizes("mine.py", {}, Namespace(sizes=[])) == "64x32"
    assert _shown_sizes("mine.py", {}, Namespace(sizes=[("n", 7)])) == "64x7"
    assert _shown_sizes("naive", {"M": 8, "N": 16, "K": 24}, Namespace(sizes=[])) == "8x16x24"


def test_a_size_that_is_given_twice(write, capsys):
    write("mine.py", SCALED)
    assert main(["emit", "mine.py", "-s", "m=M", "-s", "m=333"]) == 2
    assert "the size m is given twice: M and 333" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command, similar", [(["rum", "mine.py"], "run"), (["new", "mine", "--kind", "softmx"], "softmax"), (["new", "class"], "my_class")]
)
def test_a_misspelled_command(command, similar, tmp_path, monkeypatch, capsys):
    """Commands, choices and names that are keywords, with the similar name."""
    monkeypatch.chdir(tmp_path)
    assert main(command) == 2 and similar in capsys.readouterr().err.splitlines()[-1]


# ---------------------------------------------------------------------------------------------- a fifth reader

SOFTMAX = """from fireiron import *

SIZES = (1024, 4096)
softmax = Fused(
    name="softmax",
    dims="m n",
    operands={"X": "m n", "Y": "m n"},
    body={
        "mx": "mx[m] = max(n, X[m,n])",
        "e": "e[m,n] = exp(X[m,n] - mx[m])",
        "s": "s[m] = sum(n, e[m,n])",
        "out": "Y[m,n] = e[m,n] / s[m]",
    },
)
def spec(m=8, n=1024):
    return softmax(m=m, n=n, dtype=float32)
lanes = Move.tile(1, 1024).to(Warp).tile(1, 4).to(Lane).done()
strategy = softmax.tile(m=Tunable("bm", 4, 2)).to(Block).load("X", RF, lanes).done()
"""

MMA = """from fireiron import *

SIZES = (192, 192, 96)
copy, fragment = Move.coalesced_copy(8).done(), Move.done()
half = {"dtype": float16, "c_dtype": float16, "order": RowMajor}
def spec(M, N, K):
    return MatMul(M, N, K, **half)
strategy = (
    MatMul.tile(96, 96).to(Block).epilog(RF, float32)
    .split(BK).pipeline(2).load(A, SH, copy).swizzle_storage().load(B, SH, copy).swizzle_storage()
    .tile(WM, WN).to(Warp).split(WK).load(A, RF, fragment).load(B, RF, fragment).tile(16, 16).mma_tile().done()
)
"""


def test_a_shape_has_the_sizes_of_the_problem(write, capsys):
    """For any problem, in its order; a wrong number names them, and a swept size becomes shapes."""
    name = write("mine.py", SOFTMAX)
    assert main(["bench", name, "--simulate", "--shape", "4x1024", "--shape", "8x2048", "--sweep", "bm", "--json"]) == 0
    lines = json.loads(capsys.readouterr().out)["lines"]
    assert [(line["spec"].partition("(GL")[0], line["values"]["bm"]) for line in lines] == [
        ("softmax(4,1024)", 4), ("softmax(4,1024)", 2), ("softmax(8,2048)", 4), ("softmax(8,2048)", 2)
    ]  # fmt: skip
    assert main(["bench", name, "--simulate", "--shape", "4x1024x2"]) == 2
    assert "--shape 4x1024x2: the problem of mine.py has other sizes\n  legal   m x n\n" in capsys.readouterr().err
    assert main(["bench", name, "--simulate", "--sweep", "m=4,8"]) == 2
    assert "m is a size, and no given strategy has such a tunable\n  legal   bm\n  do      --shape 4x1024 --shape 8x1024\n" in (
        capsys.readouterr().err
    )


def test_an_illegal_value_of_a_tunable_is_listed_with_the_legal_ones(write, capsys):
    assert main(["bench", write("mine.py", SOFTMAX), "--simulate", "--sweep", "bm=3,4"]) == 0
    out = capsys.readouterr().out
    assert "illegal: bm=3: 3 is not a value of this tunable of mine.py; legal 4 2" in out and "all 2 blocks correct" in out


def test_sizes_with_a_default_are_those_of_the_signature(write, capsys):
    """A default takes precedence over SIZES, so lists show the default."""
    name = write("mine.py", SOFTMAX)
    assert find(name).sizes == (8, 1024)
    assert main(["bench", name, "--simulate"]) == 0 and "mine.py   8x1024 " in capsys.readouterr().out


def test_blocks_of_a_large_definition_are_a_sample(write, monkeypatch):
    """`bench` stops at its time limit, and reports blocks as they are simulated; short kernels are simulated whole."""
    from fireiron.measure import simulated

    monkeypatch.setattr(simulated, "ELEMENTS", 0)
    entry, shown = find(write("mine.py", SOFTMAX)), []
    program = entry.strategy(entry.problem(m=64, n=1024)).program()
    checked = simulated.verified(program, seconds=0.001, progress=shown.append)
    assert checked.blocks < checked.total == 16 and shown[0].endswith("of 16 blocks")
    assert simulated.verified(program).blocks == 16 and len(shown) == shown.index("") + 1


@pytest.mark.parametrize(
    ("tiles", "messages"),
    [
        ((32, 24, 48, 16), ["16 does not divide the 24", "a tile of the warp that they divide: tile(32, 48).to(Warp)"]),
        ((24, 48, 48, 16), ["b_sh has 24 rows, and the instruction accesses 16", "or a split, with a multiple of 16 rows"]),
        ((32, 48, 48, 24), ["b_sh has 32 rows, and the instruction accesses 8", "divide the 32 rows of b_sh by 8, 16, 32"]),
    ],
)
def test_advice_for_tiles_that_tensor_cores_do_not_divide(tiles, messages, write, capsys):
    text = MMA
    for name, size in zip(("BK", "WM", "WN", "WK"), tiles, strict=True):
        text = text.replace(name, str(size))
    assert main(["emit", write("mine.py", text)]) == 1
    refusal = capsys.readouterr().err
    assert all(message in refusal for message in messages)


def test_the_store_of_fragments_has_a_line_to_paste(write, capsys):
    """The line makes the note disappear. Accesses that need no change take one line, and `--wide` lists them."""
    text = MMA.replace("BK", "48").replace("WM", "48").replace("WN", "48").replace("WK", "16")
    store = "Move.load(SRC, SH, Move.done()).cast_on_copy().pad(8).coalesced_copy(8).done()"
    assert main(["check", write("mine.py", text), "--wide"]) == 0
    wide = capsys.readouterr().out
    assert f"a store through shared memory moves whole sectors: {store} " in wide
    assert wide.count("no bank conflict, ") == 4 and "(--wide lists them)" not in wide
    assert main(["check", "mine.py"]) == 0
    out = capsys.readouterr().out
    assert "4 accesses have no bank conflicts: a_sh, b_sh (--wide lists them)" in out
    assert "2 accesses move only the sectors that they need: A, B (--wide lists" in out
    write("mine.py", text.replace("epilog(RF, float32)", f"epilog(RF, float32, Init.done(), {store})"))
    assert main(["check", "mine.py", "--wide"]) == 0 and "a store through shared memory" not in capsys.readouterr().out


@pytest.mark.parametrize(("size", "differs"), [(960, True), (8192, False)])
def test_cost_names_the_limit_of_the_longest_phase(size, differs):
    """The bottleneck has the most work in all phases together. If the longest phase has another limit, the same line names it."""
    prediction = predict(find("hmma_ampere").strategy(MatMul(size, size, size, dtype=float16, c_dtype=float16, order=RowMajor)).program())
    line = str(prediction).splitlines()[1]
    assert line.startswith(f"bottleneck: {prediction.bottleneck}") and differs == (
        "; the longest phase, loop over k, is limited by " in line
    )
    assert differs == (max(prediction.phases, key=lambda phase: phase.us).limit != prediction.bottleneck)


WARP_PER_ROW = Move.tile(1, 4096).to(Warp).tile(1, 4).to(Lane).done()


@pytest.mark.parametrize(
    ("body", "spills"),
    [
        ({"d": "d[m,n] = X[m,n] - 1", "q": "q[m,n] = d[m,n] * d[m,n]", "s": "s[m] = sum(n, q[m,n])", "out": "Y[m,n] = d[m,n] * s[m]"}, False),
        ({"d": "d[m,n] = X[m,n] / (1 + X[m,n] * X[m,n])", "q": "q[m,n] = d[m,n] * X[m,n]", "s": "s[m] = sum(n, q[m,n])",
          "out": "Y[m,n] = d[m,n] * s[m]"}, True),
    ],
)  # fmt: skip
def test_elements_between_steps_are_not_stored(body, spills):
    """q is summed as it is computed, so 128 elements per lane are live, not 256. A division keeps both arrays, as NVRTC does (80 bytes)."""
    definition = Fused(name="f", dims="m n", operands={"X": "m n", "Y": "m n"}, body=body)
    kernel = definition.tile(m=1).to(Block).load("X", RF, WARP_PER_ROW).done()(definition(m=4, n=4096, dtype=float32)).program("sm_90").ir
    estimate = register_prediction(kernel)
    assert (estimate.spilled > 0) == spills and array_registers(kernel) > 248
    assert [finding.severity for finding in check_resources(AccessTrace(kernel)) if "registers per thread" in finding.message] == [
        "warning" if spills else "note"
    ]


def test_export_without_a_compiler_names_the_option_that_needs_none(write, capsys, monkeypatch):
    from fireiron.gpu import toolchain

    monkeypatch.setattr(toolchain, "toolchains", lambda: ())
    assert main(["export", write("mine.py", SOFTMAX), "-o", "out", "--arch", "sm_90"]) == 2
    assert "cubin=False (--no-cubin) writes the files without machine code; or pip install" in capsys.readouterr().err
    assert main(["export", "mine.py", "-o", "out", "--no-cubin", "--arch", "sm_90"]) == 0


@pytest.mark.parametrize("command", [["run", "--simulate"], ["check"]])
def test_an_own_instruction_is_printed_before_it_passes(command, write, capsys):
    """The simulator uses the meaning of an instruction, so a text that cannot be printed would not be noticed."""
    text = """import attrs
from fireiron import *
from fireiron.language.tree import Executable
@attrs.frozen
class Bad(Executable):
    name: str = "BAD"
    def mismatches(self, spec, architecture):
        return ()
    def cuda(self, printer, statement):
        return "c += a * b;"
problem = MatMul(16, 16, 8)
strategy = MatMul.tile(16, 16).to(Block).epilog(RF).tile(1, 1).to(Thread).split(1).done(Bad())
"""
    assert main([command[0], write("mine.py", text), *command[1:]]) == 1
    captured = capsys.readouterr()
    assert "Bad.cuda(printer, statement) must return a list of lines" in captured.out + captured.err and "PASS" not in captured.out
