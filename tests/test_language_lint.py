"""The lint of the project's language: what it finds, and that the folders which it guards stay clean."""

import pytest
from language_lint import CHECKED, ROOT, findings, in_prose, in_spelling, known_abbreviations, matching, of_document, of_module


@pytest.mark.nightly  # `make lint` runs the lint on each submission
def test_guarded_folders_have_no_findings():
    assert [str(finding) for finding in findings(matching(CHECKED))] == []


def test_checked_names_are_globs():
    assert matching(["README.md", "docs"]) == [ROOT / "README.md", ROOT / "docs"]
    assert ROOT / "tests" / "test_language_lint.py" in matching(["tests/test_language*.py"])
    with pytest.raises(ValueError, match=r"no file or folder matches tests/no_such\*\.py"):
        matching(["tests/no_such*.py"])


@pytest.mark.parametrize(
    "text",
    [
        "the write behind the barrier",
        "copies that fly",
        "a warp of its own",
        "tiles dealt to blocks",
        "K is no multiple of 8, sizes are no power of 2",
    ],
)
def test_discouraged_words_are_found(text):
    assert list(in_prose(text))


@pytest.mark.parametrize("text", ["`behind` is a name", "lags behind", "on the fly", "so many that they spill", "turn off the check"])
def test_code_and_idioms_are_not_found(text):
    assert list(in_prose(text)) == []


@pytest.mark.parametrize(
    ("text", "american"),
    [
        ("the colours of neighbouring tiles", ["colors", "neighboring"]),  # language: allow
        ("Behaviour is undefined; favour int32", ["Behavior", "favor"]),  # language: allow
        ("the centre, centred; grey lines", ["centered", "center", "gray"]),  # language: allow
        ("a labelled edge, modelling, a cancelled job", ["labeled", "modeling", "canceled"]),  # language: allow
        ("serialise, synchronising, SYNCHRONISATION", ["serialize", "synchronizing", "SYNCHRONIZATION"]),  # language: allow
        ("`vectoriser`, Normalised, reorganises", ["vectorizer", "Normalized", "reorganizes"]),  # language: allow
        ("minimise, maximise, summarise, generalise", ["minimize", "maximize", "summarize", "generalize"]),  # language: allow
        ("recognise, initialiser, optimisation", ["recognize", "initializer", "optimization"]),  # language: allow
        ("def analyse_loops(): analyser", ["analyze_loops", "analyzer"]),  # language: allow
    ],
)
def test_british_spelling_is_found(text, american):
    messages = [message for _, message in in_spelling(text)]
    assert sorted(message.partition(": write ")[2] for message in messages) == sorted(american)


@pytest.mark.parametrize(
    "text",
    ["the analyses of an optimistic analysis", "finalists, specialists, organisms", "future.cancelled()", "https://example.org/colour"],
)  # language: allow
def test_other_words_are_not_british(text):
    assert list(in_spelling(text)) == []


def test_spelling_of_identifiers_is_checked():
    source = "def f(colour):\n    return colour.neighbour\n"  # language: allow
    assert sorted({line for line, text in of_module(source) if "write" in text}) == [1, 2]
    assert [line for line, _ in of_document("```\ncolour = 1\n```\n", frozenset())] == [2]  # language: allow


def test_vague_bindings_are_found_beyond_one_line():
    source = "found = [one for one in items]\nfor one in items:\n    print(one)\n"
    assert sorted(line for line, text in of_module(source) if "is bound" in text) == [1, 2]


def test_unknown_abbreviations_of_documents_are_found():
    known = known_abbreviations()
    assert [text for _, text in of_document("TMA and QQZ, `QQY`", known)] == ["'QQZ' is not in docs/glossary.md"]
