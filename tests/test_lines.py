"""Items to lines: margins, blocks, comments, and what is broken where it is too long for a line."""

import pytest

from fireiron.cuda.lines import WIDTH, comment, guarded, lines_of, one_line
from fireiron.ir.text import Braces, If, Made, Noted, Remark
from fireiron.values.document import Assignment, Call


def texts(*items, depth=0):
    return [line.text for line in lines_of(items, depth)]


def test_margins():
    """Text stands two columns further in each block, lines of the preprocessor at the left."""
    assert [line.text for line in lines_of(["a;", "#pragma unroll", ""])] == ["a;", "#pragma unroll", ""]
    assert texts("a;", "#pragma unroll", "", depth=2) == ["    a;", "#pragma unroll", ""]
    assert texts(Braces("", ("a;",))) == ["{", "  a;", "}"]
    assert texts(Braces("for (;;)", ("a;", "b;"), pragma="#pragma unroll"), depth=1) == [
        "#pragma unroll",
        "  for (;;) {",
        "    a;",
        "    b;",
        "  }",
    ]


def test_blocks_of_one_line_need_no_braces():
    assert texts(If(("x",), ("a;",))) == ["if (x)", "  a;"]
    assert texts(If(("x", "y"), ("a;", "b;"))) == ["if (x && y) {", "  a;", "  b;", "}"]
    assert texts(If(("x",), ("// why",))) == ["if (x) {", "  // why", "}"], "a comment is no statement"
    assert texts(If(("x",), ("a;",), ("b;",))) == ["if (x)", "  a;", "else", "  b;"]
    assert texts(If(("x",), ("a;", "b;"), ("c;",))) == ["if (x) {", "  a;", "  b;", "} else", "  c;"]


def test_conditions_stand_in_one_if():
    inner = If(("y",), ("a;",))
    assert texts(guarded(("x",), (inner,))) == ["if (x && y)", "  a;"]
    assert texts(guarded(("x",), (inner, "b;"))) == ["if (x) {", "  if (y)", "    a;", "  b;", "}"]
    assert texts(guarded(("x",), (If(("y",), ("a;",), ("b;",)),)))[0] == "if (x) {", "what is otherwise done is so for y alone"


@pytest.mark.parametrize("length", range(WIDTH - 6, WIDTH + 3))
def test_heads_leave_room_for_their_brace(length):
    """Conditions go to the next line where the brace behind them would not stand within the width."""
    first = "x" * (length - len("if ( && y)"))
    lines = texts(If((first, "y"), ("a;", "b;")))
    assert (len(lines) == 4) == (length + len(" {") <= WIDTH)
    assert all(len(line) <= WIDTH for line in lines) and lines[-1] == "}" and "".join(lines).replace(" ", "") == f"if({first}&&y){{a;b;}}"


@pytest.mark.parametrize("length", (WIDTH - 1, WIDTH, WIDTH + 1, 3 * WIDTH))
def test_long_assignments_are_broken(length):
    arguments = tuple(f"argument{number}" for number in range(length // 12))
    made = Assignment("value", Call("f", arguments))
    lines = texts(made, depth=3)
    assert all(line.startswith("      ") and len(line) <= WIDTH for line in lines) and (len(lines) > 1) == (6 + len(str(made)) > WIDTH)
    assert "".join("".join(lines).split()) == "".join(str(made).split())


@pytest.mark.parametrize("depth", (0, 2))
def test_comments_are_broken_between_words(depth):
    """A comment goes on in a comment that is indented; no word is lost or glued."""
    words = [f"word{number}" for number in range(60)]
    margin = "  " * depth
    (first, *others) = lines = comment(" ".join(words), depth)
    assert all(len(line) <= WIDTH for line in lines) and first.startswith(f"{margin}// word0 word1") and len(lines) > 3
    assert all(line.startswith(f"{margin}//     word") for line in others)
    assert " ".join(line.strip().removeprefix("//").strip() for line in lines).split() == words
    assert texts("// " + " ".join(words), depth=depth) == lines
    assert comment("", depth) == [f"{margin}//"] and comment("a\n b", depth) == [f"{margin}// a", f"{margin}// b"]
    assert comment("why", lead="//   ") == ["//   why"]


def test_a_word_longer_than_a_line_is_cut():
    lines = comment("y " + "x" * 300)
    assert all(len(line) <= WIDTH for line in lines) and "".join(line.removeprefix("//").strip() for line in lines) == "y" + "x" * 300


def test_comments_end_where_they_end():
    """Behind a backslash a line goes on in the next one."""
    assert comment("path\\") == ["// path\\ ."] and one_line("a\n b\\") == "a b\\ ."
    assert texts(Remark(("// kept  as it is", "// end\\"))) == ["// kept  as it is", "// end\\ ."]


def test_notes_stand_behind_a_line_or_in_front_of_it():
    note = "what for"
    assert texts(Noted("a;", note), depth=1) == ["  a;  // what for"]
    fits = "b" * (WIDTH - len("  // what for"))
    assert texts(Noted(fits, note)) == [f"{fits}  // what for"]
    assert texts(Noted(fits + "b", note)) == ["// what for", fits + "b"]


def test_who_made_a_line():
    """The innermost steps that are known; a brace is its block's."""
    outer, inner = ((0,),), ((1, 2),)
    made = Made(Braces("for (;;)", (Made("a;", inner), "b;")), outer)
    assert [(line.text, line.steps) for line in lines_of([made])] == [("for (;;) {", outer), ("  a;", inner), ("  b;", outer), ("}", outer)]
    assert [line.steps for line in lines_of([guarded(("x",), (Made(If(("y",), ("a;",)), inner),))])] == [(), inner]


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("depth", [0, 3])
def test_remarks_are_filled_anew_where_a_line_of_theirs_is_too_long(depth, more):
    """Paragraphs stay apart."""
    words = "// " + "word " * 30
    longest = words[: WIDTH - 2 * depth + more - 1] + "x"
    lines = texts(Remark(("// first", longest, "//", "// last")), depth=depth)
    margin = "  " * depth
    if not more:
        as_it_is = [f"{margin}{line}" for line in ("// first", longest, "//", "// last")]
        assert lines == as_it_is
    else:
        assert all(len(line) <= WIDTH for line in lines) and lines[-2:] == [f"{margin}//", f"{margin}// last"]
        assert lines[0].startswith(f"{margin}// first word word") and len(lines) == 4
