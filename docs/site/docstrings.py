"""Docstrings of the language, taken apart: what it is, when it is legal, the rewrite, where it comes from, an example that runs."""

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
"""The papers, the manuals of the vendor, and the records of decisions, as docstrings name them."""


LONGEST = 90
"""Signs of a signature in one line."""


@attrs.frozen
class Parts:
    """A docstring in parts, each as Markdown; what it does not say is empty."""

    sentence: str = ""
    text: str = ""
    legal: str = ""
    rules: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    example: str = ""


def parts(docstring, *further):
    """The parts of a docstring; sources are looked for in `further` texts too, such as that of its module."""
    text = inspect.cleandoc(docstring or "")
    text, example = _without_examples(text)
    found = [" ".join(one.split()) for whole in (text, *further) for one in SOURCES.findall(whole or "")]
    text = re.sub(r"^Sources?: .*$", "", text, flags=re.MULTILINE)
    text, rules = _without_rules(text)
    sentence, text = _first_sentence(text)
    text, legal = _without_legal(text)
    return Parts(sentence, text.strip("\n"), legal, rules, tuple(dict.fromkeys(found)), example)


def _without_examples(text):
    """The text without its examples, and these; an example ends where a line is empty."""
    blocks = [match[0].rstrip() for match in re.finditer(r"^>>> .*?(?=\n\s*\n|\Z)", text, flags=re.DOTALL | re.MULTILINE)]
    return re.sub(r"^>>> .*?(?=\n\s*\n|\Z)", "", text, flags=re.DOTALL | re.MULTILINE), "\n".join(blocks)


def _without_rules(text):
    """The text without its rewrites, and these; a rewrite goes to the end of its line, or to a source in parentheses."""
    rules = tuple(re.sub(r"\s{2,}\(.*\)$", "", one).strip() for one in re.findall(r"rewrite:\s*(.*)$", text, flags=re.MULTILINE))
    return re.sub(r"[ \t]*rewrite:.*$", "", text, flags=re.MULTILINE), rules


def _first_sentence(text):
    match = re.match(r"(.*?\.)(?=\s+[A-Z`]|\s*\n\s*\n|\s*\Z)|.*?(?=\n\s*\n)", text, flags=re.DOTALL)
    if match is None:
        return " ".join(text.split()), ""
    return " ".join(match[0].split()), text[match.end() :].lstrip(" ").strip("\n")


def _without_legal(text):
    """The text without the sentences that say when it is legal, and these."""
    found = re.findall(r"Legal\b.*?\.(?=\s+[A-Z`]|\s*\Z)", text, flags=re.DOTALL)
    for one in found:
        text = text.replace(one, "")
    return text, " ".join(" ".join(found).split())


@functools.cache
def attribute_texts(module):
    """The texts that stand behind assignments of a module, by name."""
    found = {}
    body = ast.parse(inspect.getsource(module)).body
    for before, here in itertools.pairwise(body):
        if isinstance(here, ast.Expr) and isinstance(here.value, ast.Constant) and isinstance(here.value.value, str):
            targets = before.targets if isinstance(before, ast.Assign) else [before.target] if isinstance(before, ast.AnnAssign) else []
            found.update({target.id: here.value.value for target in targets if isinstance(target, ast.Name)})
    return found


def signature(called, name):
    """`name(first: int, ...)` of what is called, without what it returns."""
    kinds = inspect.Parameter
    written, bare = [], False
    for one in inspect.signature(called).parameters.values():
        if one.name == "self":
            continue
        if one.kind is kinds.KEYWORD_ONLY and not bare:
            written.append("*")
        bare = bare or one.kind in (kinds.KEYWORD_ONLY, kinds.VAR_POSITIONAL)
        star = {kinds.VAR_POSITIONAL: "*", kinds.VAR_KEYWORD: "**"}.get(one.kind, "")
        typed = "" if one.annotation is kinds.empty else f": {_type(one.annotation)}"
        written.append(f"{star}{one.name}{typed}{'' if one.default is kinds.empty else f' = {one.default!r}'}")
    line = f"{name}({', '.join(written)})"
    return line if len(line) <= LONGEST else "\n".join([f"{name}(", *(f"    {one}," for one in written), ")"])


def _type(annotation):
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
