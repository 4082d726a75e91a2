"""The puzzles: each start is correct and misses a goal, each solution reaches all of them, and the command reports both."""

import json

import pytest

from fireiron import *
from fireiron.cli import main
from fireiron.errors import ArgumentError
from fireiron.puzzles import PUZZLES, puzzle_of, verdicts

FRAGMENTS = ".tile(32, 32).to(Warp).split(16).load(A, RF, Move.done()).load(B, RF, Move.done()).tile(16, 16).mma_tile().done()"
STAGED = ".load(A, SH, Move.coalesced_copy(8).done()).swizzle_storage().load(B, SH, Move.coalesced_copy(8).done()).swizzle_storage()"
SOLUTIONS = (
    'add.tile(m=1024).to(Block).tile(m=4).to(Thread).load("X", RF, Move.done()).load("Y", RF, Move.done()).done()',
    'row_sum.tile(m=4).to(Block).load("X", RF, Move.tile(1, 512).to(Warp).tile(1, 4).to(Lane).done()).done()',
    'transpose.tile(m=32, n=32).to(Block).load("X", SH, Move.tile(1, 1).to(Thread).done()).pad(1)'
    '.step("copy", Move.tile(1, 32).to(Warp).tile(1, 1).to(Lane).done()).done()',
    'softmax.tile(m=4).to(Block).load("X", RF, Move.tile(1, 256).to(Warp).tile(1, 4).to(Lane).done()).done()',
    "MatMul.tile(32, 32).to(Block).epilog(RF).split(8).load(A, SH).load(B, SH).tile(1, 1).to(Thread).split(1).done()",
    "MatMul.tile(128, 128).to(Block).epilog(RF).split(8).load(A, SH, Move.coalesced_copy(4).done()).to_col_major().pad(4)"
    ".load(B, SH, Move.coalesced_copy(4).done()).tile(64, 32).to(Warp).tile(Strided((4, 32), (4, 16))).to(Lane).split(1)"
    ".load(A, RF, Move.tile(4, 1).done()).load(B, RF, Move.tile(1, 4).done()).tile(1, 1).done()",
    f"MatMul.tile(64, 64).to(Block).epilog(RF, float32).split(32){STAGED}{FRAGMENTS}",
    f"MatMul.tile(64, 64).to(Block).epilog(RF, float32).split(32).pipeline(3){STAGED}{FRAGMENTS}",
    f'layer.tile(m=64, n=64).to(Block).step("product", MatMul.split(32){STAGED}{FRAGMENTS}).done()',
    "MatMul.tile(128, 64).to(Block).epilog(RF, float32).split(64).pipeline(3).warp_specialize()"
    ".load(A, SH, Move.done()).load(B, SH, Move.done()).tile(64, 64).to(Warpgroup).done()",
)
"""Strategies by puzzle, as text."""


def strategy_of(puzzle, text):
    names = {}
    exec(f"from fireiron import *\n{puzzle.setup}\nstrategy = {text}", names)
    return names["strategy"]


@pytest.mark.parametrize("number", range(1, len(PUZZLES) + 1))
def test_solutions_reach_all_goals(number):
    puzzle = PUZZLES[number - 1]
    assert not [verdict for verdict in verdicts(puzzle, strategy_of(puzzle, SOLUTIONS[number - 1])) if not verdict.reached]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", range(1, len(PUZZLES) + 1))
def test_starts_are_correct_and_miss_a_goal(number):
    puzzle = PUZZLES[number - 1]
    start = list(verdicts(puzzle, strategy_of(puzzle, puzzle.start)))
    assert all(verdict.reached for verdict in start[:2]), "no errors, and a correct result"
    assert len(start) == 2 + len(puzzle.goals) and any(not verdict.reached and verdict.got for verdict in start)


def test_ten_puzzles_with_hints_and_distinct_titles():
    assert len({puzzle.title for puzzle in PUZZLES}) == len(PUZZLES) == len(SOLUTIONS) == 10
    assert all(puzzle.hints and puzzle.text.endswith(".") for puzzle in PUZZLES)
    with pytest.raises(ArgumentError, match="puzzle 11 does not exist"):
        puzzle_of(11, PUZZLES)


def test_the_command(tmp_path, monkeypatch, capsys):
    """List, print, write, check, solve; an unsolved puzzle and an illegal strategy have exit status 1, a wrong request 2."""
    monkeypatch.chdir(tmp_path)

    def output(status, *words):
        assert main(["puzzle", *words]) == status
        return capsys.readouterr()

    assert "  1  Add two vectors" in output(0).out
    printed = output(0, "1").out
    assert puzzle_of(1, PUZZLES).file(1) in printed and "--hint 1" in printed
    assert "vectors" in output(0, "1", "--hint", "2").out and "1 to 2" in output(2, "1", "--hint", "3").err
    assert "check it" in output(0, "1", "mine.py", "--new").out and "exists" in output(2, "1", "mine.py", "--new").err
    assert "[ ] each thread accesses X, Y, Z in vectors of 16 bytes\n    got: X read by" in output(1, "1", "mine.py").out
    text = (tmp_path / "mine.py").read_text()
    (tmp_path / "mine.py").write_text(text.replace(puzzle_of(1, PUZZLES).start, SOLUTIONS[0]))
    assert output(0, "1", "mine.py").out.endswith("\nSolved.\n")
    assert json.loads(output(0, "1", "mine.py", "--json").out)["solved"] and len(json.loads(output(0, "--json").out)) == 10
    assert "fireiron puzzle 1 other.py --new" in output(2, "1", "other.py").err
    assert "softmax" in json.loads(output(0, "4", "--json").out)["file"]
    assert "starts from add" in output(1, "2", "mine.py").err and "does not exist" in output(2, "11", "mine.py").err
