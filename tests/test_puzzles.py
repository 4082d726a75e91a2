"""The puzzles: each start is correct and misses a goal, each solution reaches all of them, and the command reports both."""

import json

import pytest

from fireiron import *
from fireiron.cli import main
from fireiron.errors import ArgumentError
from fireiron.puzzles import PUZZLES, puzzle_of, verdicts


def strategy_of(puzzle, text):
    names = {}
    exec(f"from fireiron import *\n{puzzle.setup}\nstrategy = {text}", names)
    return names["strategy"]


@pytest.mark.parametrize("number", range(1, len(PUZZLES) + 1))
def test_solutions_reach_all_goals(number):
    puzzle = PUZZLES[number - 1]
    assert not [verdict for verdict in verdicts(puzzle, strategy_of(puzzle, puzzle.solution)) if not verdict.reached]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", range(1, len(PUZZLES) + 1))
def test_starts_are_correct_and_miss_a_goal(number):
    puzzle = PUZZLES[number - 1]
    start = list(verdicts(puzzle, strategy_of(puzzle, puzzle.start)))
    assert all(verdict.reached for verdict in start[:2]), "no errors, and a correct result"
    assert len(start) == 2 + len(puzzle.goals) and any(not verdict.reached and verdict.got for verdict in start)


def test_ten_puzzles_with_hints_and_distinct_titles():
    assert len({puzzle.title for puzzle in PUZZLES}) == len(PUZZLES) == 10
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
    (tmp_path / "mine.py").write_text(text.replace(puzzle_of(1, PUZZLES).start, puzzle_of(1, PUZZLES).solution))
    assert output(0, "1", "mine.py").out.endswith("\nSolved.\n")
    assert json.loads(output(0, "1", "mine.py", "--json").out)["solved"] and len(json.loads(output(0, "--json").out)) == 10
    assert "fireiron puzzle 1 other.py --new" in output(2, "1", "other.py").err
    assert "softmax" in json.loads(output(0, "4", "--json").out)["file"]
    assert "starts from add" in output(1, "2", "mine.py").err and "does not exist" in output(2, "11", "mine.py").err
