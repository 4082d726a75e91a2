"""The lint of the project's language: what it finds, and that the folders which it guards stay clean."""

import pytest
from language_lint import CHECKED, ROOT, findings, in_prose, known_abbreviations, matching, of_document, of_module


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


def test_vague_bindings_are_found_beyond_one_line():
    source = "found = [one for one in items]\nfor one in items:\n    print(one)\n"
    assert sorted(line for line, text in of_module(source) if "is bound" in text) == [1, 2]


def test_unknown_abbreviations_of_documents_are_found():
    known = known_abbreviations()
    assert [text for _, text in of_document("TMA and QQZ, `QQY`", known)] == ["'QQZ' is not in docs/glossary.md"]
