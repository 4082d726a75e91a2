"""Messages that a reader needs who does not know the project: misspelled names, sizes of a file with one problem, tables of several sizes."""

import json

import pytest

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
