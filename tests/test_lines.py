"""From items to lines: margins, blocks, comments, and line breaks of long items."""

import pytest

from fireiron.cuda.lines import WIDTH, comment, guarded, lines_of, one_line
from fireiron.ir.text import Braces, If, Noted, Remark, WithSteps
from fireiron.values.document import Assignment, Call


def texts(*items, depth=0):
    return [line.text for line in lines_of(items, depth)]


def test_margins():
    """Text is indented by two columns in each block, preprocessor lines are not."""
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


def test_conditions_are_joined_in_one_if():
    inner = If(("y",), ("a;",))
    assert texts(guarded(("x",), (inner,))) == ["if (x && y)", "  a;"]
    assert texts(guarded(("x",), (inner, "b;"))) == ["if (x) {", "  if (y)", "    a;", "  b;", "}"]
    assert texts(guarded(("x",), (If(("y",), ("a;",), ("b;",)),)))[0] == "if (x) {", "what is otherwise done is so for y alone"


@pytest.mark.parametrize("length", range(WIDTH - 6, WIDTH + 3))
def test_heads_leave_room_for_their_brace(length):
    """Conditions continue on the next line if the brace after them exceeded the width."""
    first = "x" * (length - len("if ( && y)"))
    lines = texts(If((first, "y"), ("a;", "b;")))
    assert (len(lines) == 4) == (length + len(" {") <= WIDTH)
    assert all(len(line) <= WIDTH for line in lines) and lines[-1] == "}" and "".join(lines).replace(" ", "") == f"if({first}&&y){{a;b;}}"


@pytest.mark.parametrize("length", (WIDTH - 1, WIDTH, WIDTH + 1, 3 * WIDTH))
def test_long_assignments_are_broken(length):
    arguments = tuple(f"argument{number}" for number in range(length // 12))
    assignment = Assignment("value", Call("f", arguments))
    lines = texts(assignment, depth=3)
    assert all(line.startswith("      ") and len(line) <= WIDTH for line in lines) and (len(lines) > 1) == (
        6 + len(str(assignment)) > WIDTH
    )
    assert "".join("".join(lines).split()) == "".join(str(assignment).split())


@pytest.mark.parametrize("depth", (0, 2))
def test_comments_are_broken_between_words(depth):
    """A comment continues in an indented comment; no word is lost or merged."""
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
    """After a backslash a line would continue on the next one."""
    assert comment("path\\") == ["// path\\ ."] and one_line("a\n b\\") == "a b\\ ."
    assert texts(Remark(("// kept  as it is", "// end\\"))) == ["// kept  as it is", "// end\\ ."]


def test_notes_are_after_a_line_or_before_it():
    note = "what for"
    assert texts(Noted("a;", note), depth=1) == ["  a;  // what for"]
    fits = "b" * (WIDTH - len("  // what for"))
    assert texts(Noted(fits, note)) == [f"{fits}  // what for"]
    assert texts(Noted(fits + "b", note)) == ["// what for", fits + "b"]


def test_steps_of_a_line():
    """The innermost known steps; a brace belongs to its block."""
    outer, inner = ((0,),), ((1, 2),)
    nested = WithSteps(Braces("for (;;)", (WithSteps("a;", inner), "b;")), outer)
    assert [(line.text, line.steps) for line in lines_of([nested])] == [
        ("for (;;) {", outer),
        ("  a;", inner),
        ("  b;", outer),
        ("}", outer),
    ]
    assert [line.steps for line in lines_of([guarded(("x",), (WithSteps(If(("y",), ("a;",)), inner),))])] == [(), inner]


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("depth", [0, 3])
def test_comments_are_rewrapped_if_a_line_is_too_long(depth, more):
    """Paragraphs remain separate."""
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
