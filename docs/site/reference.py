"""The language reference, generated from the docstrings of the package: a section for each verb, refinement, spec, instruction and value.

`Section.missing` lists the parts that a section lacks; `tests/test_site.py` requires that all extensions have none.
"""

import re
from pathlib import Path

import pictures
from instruction_sections import instructions
from section import prose
from sections import check_kinds, error_classes, machine_parts, others, refinements, spec_kinds, strategy_methods, verbs

DECISIONS = Path(__file__).parent.parent / "decisions"


def shown(section, page, level=2):
    """A section as Markdown."""
    read = section.parts
    lines = [f"{'#' * level} {section.title}", ""]
    if section.written:
        lines += ["```python", *section.written, "```", ""]
    lines += [prose(read.sentence), "", prose(read.text), ""]
    rows = [("Legal", prose(read.legal.removeprefix("Legal").strip())), *(("Rewrite", _code(rule)) for rule in read.rules)]
    rows.append(("Source", ", ".join(map(_source, read.sources))))
    rows = [(name, text) for name, text in rows if text]
    if rows:
        lines += ["| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows), ""]
    if read.example:
        lines += ["```pycon", read.example, "```", ""]
    for note in section.notes:
        lines += [note, ""]
    name = f"{page}/{re.split('`', section.title)[1] if '`' in section.title else section.title}"
    if name in pictures.OF:
        lines += [f"![{pictures.OF[name].words}](pictures/{name.replace('/', '_')}.svg)", ""]
    return "\n".join(lines)


def _code(text):
    ticks = "``" if "`" in text else "`"
    return f"{ticks}{text}{ticks}"


def _source(text):
    match = re.match(r"decisions? (\d+)", text)
    if match:
        page_path = next(DECISIONS.glob(f"{int(match[1]):04d}-*.md"), None)
        return f"[decision {int(match[1])}](../decisions/{page_path.name})" if page_path else text
    if text.startswith("docs/"):
        return f"[{text.removeprefix('docs/').removesuffix('.md')}](../{text.removeprefix('docs/')})"
    paper = {"Fireiron": "fireiron", "Graphene": "graphene", "Cypress": "cypress"}.get(text.partition(",")[0])
    return f"[{text}](../{paper}.md)" if paper else text


TITLES = {
    "tile": "Refinements of tiles",
    "split": "Refinements of splits",
    "load": "Refinements of loads",
    "epilog": "Refinements of accumulators",
}

REFINED = "Used after `{}`. A refinement changes how a step is implemented, never what is computed."

LEADS = {
    "verbs": "A strategy is a chain of these steps, from a kind of spec (`MatMul.tile(...)`) or a spec. Each leaves smaller specs.",
    **{f"refinements-{verb}": REFINED.format(verb) for verb in TITLES},
    "strategies": "Strategies are immutable values: every method returns a new strategy.",
    "specs": "A spec states what to compute: `KIND(sizes, options)(memories)(level)`. `repr` of a spec is this short form.",
    "machine": "Memories store data, and levels execute specs. Both are values; define your own ([contributing](../contributing.md)).",
    "instructions": "`done()` selects the best instruction of the target for the residual spec; `done(FFMA)` requires one by name.",
    "checks": "`fireiron check` analyzes the final program. An `error` means that the kernel is wrong, a `warning` that it is slow.",
    "errors": "Every message states the request, the actual value, the legal values, the location, and what to do.",
    "values": "Arguments of verbs and specs: sizes, layouts, strides, tunables.",
    "functions": "Functions that make, run, measure and store kernels.",
    "extending": "Classes for extensions; the recipes are in [contributing](../contributing.md).",
}


def _groups():
    """`(page, title, sections)` of all pages, in order."""
    yield "verbs", "Verbs", verbs()
    for verb, group in refinements().items():
        yield f"refinements-{verb}", TITLES.get(verb, f"Refinements of `{verb}`"), group
    yield "strategies", "Strategies", strategy_methods()
    yield "specs", "Kinds of spec", spec_kinds()
    yield "machine", "Memories, levels, types", machine_parts()
    yield "instructions", "Instructions", instructions()
    yield "values", "Values", others()["values"]
    yield "checks", "Checks", check_kinds()
    yield "errors", "Errors", error_classes()
    yield "functions", "Functions", others()["functions"]
    yield "extending", "Extending", others()["extending"]


def all_sections():
    """Every section of the reference, with its page."""
    for page, _, group in _groups():
        for section in group if isinstance(group, tuple) else (section for part in group.values() for section in part):
            yield page, section


def _also(page):
    """Links to the refinements of a step that are on the page of another step, which they refine, too."""
    links = [
        f"[{section.title}]({'refinements-' + first}.md#{section.anchor})"
        for first, group in refinements().items()
        for section in group
        if page.removeprefix("refinements-") in section.refines[1:]
    ]
    return [f"Also: {', '.join(links)}.", ""] if links else []


def pages():
    """The pages of the reference, by path; pictures are files next to them."""
    texts = {}
    contents = ["# Language reference", "", "Generated from the docstrings of the package; each example is run by the tests.", ""]
    for page, title, group in _groups():
        lead = LEADS.get(page, "")
        lines = [f"# {title}", "", lead, ""]
        groups = group if isinstance(group, dict) else {"": group}
        contents += [f"## {title}", "", "| | |", "|---|---|"]
        for heading, part in groups.items():
            lines += [f"## {heading}", ""] if heading else []
            for section in part:
                lines += [shown(section, page, 3 if heading else 2), ""]
                contents.append(f"| [{section.title}]({page}.md#{section.anchor}) | {prose(section.parts.sentence)} |")
        lines += _also(page)
        contents.append("")
        texts[f"reference/{page}.md"] = "\n".join(lines)
    texts["reference/index.md"] = "\n".join(contents)
    texts["reference/cheat-sheet.md"] = "\n".join(_cheat_sheet())
    return texts


def _cheat_sheet():
    """The steps, refinements, memories and levels, a line for each, with the form in which it is written."""
    yield "# Cheat sheet"
    yield "\nA strategy is `KIND.step(...).refinement(...).step(...) ... .done()`. Generated from the registered steps and refinements.\n"
    for page, title, group in _groups():
        if page not in ("verbs", "machine") and not page.startswith("refinements-"):
            continue
        yield f"## {title}\n\n| | |\n|---|---|"
        for section in group if isinstance(group, tuple) else (section for part in group.values() for section in part):
            yield f"| [{section.title}]({page}.md#{section.anchor}) | {prose(section.parts.sentence)} |"
        yield ""
