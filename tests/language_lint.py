"""Lint the project's language: names of variables, words and spelling of documents, docstrings, comments and messages, abbreviations.

`python tests/language_lint.py [PATH...]` prints each finding as `path:line: text`, and exits with 1 if there are any. Without paths it
reads those of `CHECKED`, as `make lint` does; other folders still have findings. The vocabulary is docs/glossary.md.

Rules:
    binding       a variable is not called `one`, `found`, `made`, ... unless a comprehension or lambda of one line binds it
    word          prose does not contain a word of `WORDS`, whose replacement is next to it
    spelling      prose and identifiers are written in American English (`BRITISH`)
    abbreviation  documents use only abbreviations that docs/glossary.md or `ABBREVIATIONS` contains

A line that contains `language: allow` is skipped, and a file that contains `language: allow-file` in its first 20 lines.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

# language: allow-file
ROOT: Final = Path(__file__).resolve().parents[1]

ALLOW, ALLOW_FILE = "language: allow", "language: allow-file"

BINDINGS: Final = frozenset({"one", "ones", "found", "made", "said", "several", "met", "grown", "alike", "theirs", "mine", "there"})
"""Names that do not say what a variable is."""

WORDS: Final[tuple[tuple[str, str], ...]] = (
    (r"turns?\b(?! (?:on|off|into|out|to|up|around|over|round|it|them|this)\b)", "iteration, fill, alternately"),
    (r"(?<!left )(?<!falls )(?<!lags )behind\b(?! the scenes)", "after, past the end of"),
    (r"in front of\b", "before, preceding"),
    (r"beside\b", "next to, compared with, in addition to"),
    (r"(?<!on the )(?:fly|flies|flew|flown|flying)\b", "is in flight"),
    (r"under way\b", "in flight"),
    (r"dealt\b(?! with\b)", "distributed, assigned"),
    (r"(?:whoever|nobody|somebody)\b", "name the thread, statement or user"),
    (r"(?:told|shall|anew|mended?|mends)\b", "reported, must, again, fixed"),
    (r"(?:crews?|strangers?|lonely)\b", "warpgroup agent, distinct threads, unassigned"),
    (r"so many\b(?! that\b)", "a given number of, n"),
    (r"of (?:its|their|one's) own\b", "separate, dedicated"),
    (r"groups? of products\b", "wgmma group"),
    (r"(?:is|are) no (?:multiples?|power|number|integer|name|strategy|tensor|array|array|file)\b", "is not a ..."),
)
"""Words that prose does not contain, each with what to write instead."""

_VERBS: Final = "|".join(
    """
    custom final general initial local maxim minim normal optim organ parallel raster recogn serial special summar synchron token util vector
    """.split()  # noqa: SIM905
)
"""Verbs without their ending, -ize."""

BRITISH: Final[tuple[tuple[str, str], ...]] = (
    ("colour", "color"),
    ("neighbour", "neighbor"),
    ("behaviour", "behavior"),
    ("favour", "favor"),
    ("centre(?=d)", "centere"),
    ("centre(?!d)", "center"),
    ("grey(?!hound)", "gray"),
    ("(label|model|travel)l(?=ed|ing)", r"\1"),
    (r"(?<![\w.])cancell(?=(?:ed|ing)\b(?!\())", "cancel"),
    (rf"({_VERBS})is(?=e|ing|ation|able)", r"\1iz"),
    ("analys(?=e(?!s\\b)|ing)", "analyz"),
)
"""British spellings, in any position of a word unless a pattern limits it, each with the American form. `cancelled()` is a method of Python."""

ABBREVIATIONS: Final = frozenset(
    """
    AND ANY API ASPLOS BLOCK COUNTED ASCII BERT BLAS BSD CI CLI CPU CSS CSV DAG DOI DRAM EMPTY FIFO FLOP FMA FULL FUZZ GB GL GLOBAL GPU GHz HEAD HOST HTML HTTP HTTPS ID INDEX IDE ISA ISO JIT JSON KB LICENSE
    LLM LSTM MB MIT MLIR MLP NAME NAN NONE NUL NVIDIA NVCC OK OOM OR OS PACT PASS PCI PDF PEP PLDI PYTHONPATH PNG POSIX RAM REGISTER RF RTX SH SHARED README SIMD SQL STRATEGY THREAD VS WARP WARPGROUP SVG TB TODO TOML TPE UI URL UTF XML YAML
    """.split()  # noqa: SIM905
)
"""Abbreviations that every programmer knows, and names of other projects and files."""


CHECKED: Final = (
    "README.md",
    "AGENTS.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs",
    "fireiron",
    "strategies",
    "perf",
    "tests",
)
"""The files and folders without findings, in which none may appear, as globs; measured results and what a script writes are not read."""


class Finding(NamedTuple):
    """Where a rule is broken, and what to write instead."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.text}"


# ---------------------------------------------------------------------------------------------- prose

_CODE: Final = re.compile(r"``[^`]+``|`[^`\n]+`|\]\([^)\s]*\)|https?://\S+|<!--.*?-->", re.DOTALL)
_WORDS: Final = tuple((re.compile(rf"(?<![\w.`/'\"=-]){pattern}(?![(=_\[])", re.IGNORECASE), instead) for pattern, instead in WORDS)
_ANY_WORD: Final = re.compile("|".join(rf"(?:{pattern})" for pattern, _ in WORDS))
"""Matches in lowercase prose if any pattern of `_WORDS` matches; it takes a tenth of their time."""

_ADDRESS: Final = re.compile(r"\]\([^)\s]*\)|https?://\S+")
_BRITISH: Final = tuple((re.compile(pattern), re.compile(pattern, re.IGNORECASE), american) for pattern, american in BRITISH)
"""Each pattern for lowercase text, which is faster, and for any text."""


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match.group())


def in_prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line, from 0, and the message of each word that prose does not contain; code spans and addresses are skipped."""
    if _ANY_WORD.search(text.lower()) is None:
        return
    text = _CODE.sub(_blank, text)
    for pattern, instead in _WORDS:
        for match in pattern.finditer(text):
            yield text.count("\n", 0, match.start()), f"{match.group()!r}: write {instead}"


def in_spelling(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line, from 0, and the message of each British spelling in prose, identifiers and code; addresses are skipped."""
    lowercase = text.lower()
    suspected = [(pattern, american) for in_lowercase, pattern, american in _BRITISH if in_lowercase.search(lowercase)]
    text = _ADDRESS.sub(_blank, text) if suspected else text
    for pattern, american in suspected:
        for match in pattern.finditer(text):
            before = re.findall(r"\w*\Z", text[: match.start()][-40:])[0]
            after = re.findall(r"\w*", text[match.end() :][:40])[0]
            form = _in_case(match.expand(american), match.group())
            yield text.count("\n", 0, match.start()), f"{before + match.group() + after!r}: write {before}{form}{after}"


def _in_case(american: str, british: str) -> str:
    """The American form, in the case of the British one."""
    if british.isupper():
        return american.upper()
    return american[0].upper() + american[1:] if british[0].isupper() else american


def _without_doctests(text: str) -> str:
    lines, example = [], False
    for line in text.split("\n"):
        example = line.strip().startswith(">>>") or (example and bool(line.strip()))
        lines.append("" if example else line)
    return "\n".join(lines)


def _without_blocks(text: str) -> str:
    """The text of a Markdown file with its code blocks blank."""
    return re.sub(r"^( *)(```|~~~).*?^ *\2", _blank, text, flags=re.DOTALL | re.MULTILINE)


# ---------------------------------------------------------------------------------------------- Python


class _Reader(ast.NodeVisitor):
    """Collects the prose of a module and the variables that it binds."""

    def __init__(self) -> None:
        self.prose: dict[int, ast.Constant] = {}
        self.bound: list[tuple[str, int]] = []
        self._brief = 0

    def visit_Expr(self, node: ast.Expr) -> None:
        self._take(node.value)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if name.endswith(("Error", "Warning")) or name == "warn":
            for part in ast.walk(node):
                self._take(part)
        for keyword in node.keywords:
            if keyword.arg in ("hint", "reason", "help", "description"):
                for part in ast.walk(keyword.value):
                    self._take(part)
        self.generic_visit(node)

    def _take(self, node: ast.AST) -> None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            self.prose[id(node)] = node

    def visit_arg(self, node: ast.arg) -> None:
        self._bind(node.arg, node.lineno)
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):
            self._bind(node.id, node.lineno)

    def _bind(self, name: str, line: int) -> None:
        if name in BINDINGS and not self._brief:
            self.bound.append((name, line))

    def _brief_expression(self, node: ast.expr) -> None:
        brief = node.lineno == node.end_lineno
        self._brief += brief
        self.generic_visit(node)
        self._brief -= brief

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_Lambda = _brief_expression  # type: ignore[assignment]


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each comment; of none if no line has one of the words after a `#`, since reading tokens takes long."""
    if not any("#" in line and _ANY_WORD.search(line[line.index("#") :].lower()) for line in source.split("\n")):
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def of_module(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the message of each finding in a Python file."""
    reader = _Reader()
    reader.visit(ast.parse(source))
    for name, line in reader.bound:
        yield line, f"{name!r} is bound: name the kind of value"
    for node in reader.prose.values():
        yield from ((node.lineno + row, text) for row, text in in_prose(_without_doctests(node.value)))
    for line, comment in _comments(source):
        yield from ((line, text) for _, text in in_prose(comment))
    yield from ((row + 1, text) for row, text in in_spelling(source))


# ---------------------------------------------------------------------------------------------- documents

_ABBREVIATION: Final = re.compile(r"(?<![\w`./-])[A-Z]{2,}s?(?![\w`(-])")


def known_abbreviations() -> frozenset[str]:
    """The abbreviations that the glossary contains, and `ABBREVIATIONS`."""
    glossary = (ROOT / "docs" / "glossary.md").read_text()
    return ABBREVIATIONS | {match.group().removesuffix("s") for match in _ABBREVIATION.finditer(glossary.replace("`", " "))}


def of_document(source: str, known: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Yield the line and the message of each finding in a Markdown file."""
    text = _CODE.sub(_blank, _without_blocks(source))
    yield from ((row + 1, message) for row, message in in_prose(text))
    yield from ((row + 1, message) for row, message in in_spelling(source))
    for match in _ABBREVIATION.finditer(text):
        if match.group().removesuffix("s") not in known:
            yield text.count("\n", 0, match.start()) + 1, f"{match.group()!r} is not in docs/glossary.md"


# ---------------------------------------------------------------------------------------------- files


def files(paths: Iterable[Path] = ()) -> list[Path]:
    """The Python and Markdown files that git tracks, of all or of some paths; measured results of the past stay as they are."""
    listed = subprocess.run(["git", "ls-files", "-z", "*.py", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    chosen = [path.resolve() for path in paths]
    tracked = [ROOT / name for name in listed.split("\0") if name and not name.startswith(("perf/results/", "docs/site/"))]
    return [path for path in tracked if path.is_file() and (not chosen or any(path.is_relative_to(folder) for folder in chosen))]


def matching(names: Iterable[str]) -> list[Path]:
    """The files and folders of the project that match the globs; ValueError for one without a match."""
    matches = {name: sorted(ROOT.glob(name)) for name in names}
    if missing := [name for name, paths in matches.items() if not paths]:
        raise ValueError(f"no file or folder matches {', '.join(missing)}")
    return [path for paths in matches.values() for path in paths]


def findings(paths: Iterable[Path] = ()) -> Iterator[Finding]:
    """Yield the findings in the project, or in some of its files and folders."""
    known = known_abbreviations()
    for path in files(paths):
        source = path.read_text()
        lines = source.split("\n")
        if any(ALLOW_FILE in line for line in lines[:20]):
            continue
        hits = of_document(source, known) if path.suffix == ".md" else of_module(source)
        yield from (Finding(path, line, text) for line, text in hits if ALLOW not in lines[min(line, len(lines)) - 1])


def main(arguments: list[str]) -> int:
    """Print all findings; 1 if there are any."""
    broken = list(findings([ROOT / name for name in arguments] or matching(CHECKED)))
    print(*broken, f"{len(broken)} findings", sep="\n")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
