"""Parse docstrings of the language into parts: summary, legality, rewrite, sources, example."""

import ast
import functools
import inspect
import itertools
import re

import attrs

SOURCES = re.compile(
    r"(?:Fireiron|Graphene|Cypress), (?:sections?|Tables?|Figures?|Listings?) [^;:)]*?(?=[;:)]|\.\s|\.?\Z)"
    r"|(?:PTX ISA|CUDA C\+\+ Programming Guide), \"[^\"]+\""
    r"|CUDA Math API"
    r"|decisions? \d+"
    r"|docs/[\w-]+\.md"
)
"""The papers, NVIDIA's manuals, and decision records, as docstrings name them."""


LONGEST = 90
"""Signs of a signature in one line."""


@attrs.frozen
class Parts:
    """The parts of a docstring, each as Markdown; a missing part is empty."""

    sentence: str = ""
    text: str = ""
    legal: str = ""
    rules: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    example: str = ""


def parts(docstring, *further):
    """The parts of a docstring; sources are also searched in `further` texts, such as that of its module."""
    text = inspect.cleandoc(docstring or "")
    text, example = _without_examples(text)
    sources = [" ".join(one.split()) for whole in (text, *further) for one in SOURCES.findall(whole or "")]
    text = re.sub(r"^Sources?: .*$", "", text, flags=re.MULTILINE)
    text, rules = _without_rules(text)
    sentence, text = _first_sentence(text)
    text, legal = _without_legal(text)
    return Parts(sentence, text.strip("\n"), legal, rules, tuple(dict.fromkeys(sources)), example)


def _without_examples(text):
    """The text without its examples, and these; an example ends where a line is empty."""
    blocks = [match[0].rstrip() for match in re.finditer(r"^>>> .*?(?=\n\s*\n|\Z)", text, flags=re.DOTALL | re.MULTILINE)]
    return re.sub(r"^>>> .*?(?=\n\s*\n|\Z)", "", text, flags=re.DOTALL | re.MULTILINE), "\n".join(blocks)


def _without_rules(text):
    """The text without its rewrites, and these; a rewrite ends at the end of its line, or at a source in parentheses."""
    rules = tuple(re.sub(r"\s{2,}\(.*\)$", "", one).strip() for one in re.findall(r"rewrite:\s*(.*)$", text, flags=re.MULTILINE))
    return re.sub(r"[ \t]*rewrite:.*$", "", text, flags=re.MULTILINE), rules


def _first_sentence(text):
    match = re.match(r"(.*?\.)(?=\s+[A-Z`]|\s*\n\s*\n|\s*\Z)|.*?(?=\n\s*\n)", text, flags=re.DOTALL)
    if match is None:
        return " ".join(text.split()), ""
    return " ".join(match[0].split()), text[match.end() :].lstrip(" ").strip("\n")


def _without_legal(text):
    """The text without the sentences that start with `Legal`, and these."""
    sentences = re.findall(r"Legal\b.*?\.(?=\s+[A-Z`]|\s*\Z)", text, flags=re.DOTALL)
    for sentence in sentences:
        text = text.replace(sentence, "")
    return text, " ".join(" ".join(sentences).split())


@functools.cache
def attribute_texts(module):
    """The texts after the assignments of a module, by name."""
    texts = {}
    body = ast.parse(inspect.getsource(module)).body
    for before, here in itertools.pairwise(body):
        if isinstance(here, ast.Expr) and isinstance(here.value, ast.Constant) and isinstance(here.value.value, str):
            targets = before.targets if isinstance(before, ast.Assign) else [before.target] if isinstance(before, ast.AnnAssign) else []
            texts.update({target.id: here.value.value for target in targets if isinstance(target, ast.Name)})
    return texts


def signature(called, name):
    """`name(first: int, ...)` of a function or class, without the type of its result."""
    kinds = inspect.Parameter
    written, bare = [], False
    for parameter in inspect.signature(called).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is kinds.KEYWORD_ONLY and not bare:
            written.append("*")
        bare = bare or parameter.kind in (kinds.KEYWORD_ONLY, kinds.VAR_POSITIONAL)
        star = {kinds.VAR_POSITIONAL: "*", kinds.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        typed = "" if parameter.annotation is kinds.empty else f": {_type(parameter.annotation)}"
        written.append(f"{star}{parameter.name}{typed}{'' if parameter.default is kinds.empty else f' = {parameter.default!r}'}")
    line = f"{name}({', '.join(written)})"
    return line if len(line) <= LONGEST else "\n".join([f"{name}(", *(f"    {one}," for one in written), ")"])


def _type(annotation):
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
