"""The order of the site's pages: a section for each title, with patterns of paths below docs/.

A page belongs to the first pattern that it matches; other pages are last, in the section MORE.
"""

import fnmatch

SECTIONS = {
    "Start": (
        "index.md",
        "install.md",
        "pages.md",
        *(f"{page}.md" for page in ("first-kernels", "first-hour", "puzzles", "tutorial", "command-line", "notebook", "glossary")),
    ),
    "How to": (
        "howto/index.md",
        *(f"howto/own-{page}.md" for page in ("strategy", "file")),
        "howto/micro-kernels.md",
        *(f"howto/{page}.md" for page in ("own-instruction", "own-verbs", "refused", "wrong", "slow")),
        *(f"howto/from-{page}.md" for page in ("triton", "cute", "halide-tvm-exo")),
        "howto/*.md",
    ),
    "Language": (
        "strategies-and-problems.md",
        "reference/index.md",
        "reference/cheat-sheet.md",
        "reference/verbs.md",
        *(f"reference/refinements-{verb}.md" for verb in ("tile", "split", "load", "epilog")),
        *(f"reference/{page}.md" for page in ("strategies", "specs", "machine", "instructions", "values", "commands", "checks", "errors")),
        "reference/*.md",
    ),
    "Library": ("gallery/index.md", "library.md", "ladder.md", "benchmarks.md"),
    "Guides": (
        "epilogues.md",
        "fused.md",
        "derive.md",
        "gpus.md",
        "pytorch-jax.md",
        "tasks.md",
        "tuning.md",
        "benchmarking.md",
        "cost-model.md",
        "pictures.md",
        "export.md",
        "environment.md",
    ),
    "Papers": ("notation.md", "fireiron.md", "graphene.md", "cypress.md"),
    "Inside": (
        "pipeline.md",
        "limits.md",
        "reliability.md",
        "reliability-appendix.md",
        "bugs.md",
        "contributing.md",
        "decisions/index.md",
        "repository/perf/README.md",
        "changelog.md",
    ),
}

MORE = "More"

BY_LINKS = ("gallery/*.md", "decisions/*.md", "repository/*")
"""Pages that an index or another page links to, and no menu."""


def navigation(pages):
    """`(section, pages)` of all pages that a menu shows, in order; `pages` are paths below docs/."""
    left = sorted(pages)
    sections = []
    for title, patterns in SECTIONS.items():
        matching = [page for pattern in patterns for page in left if fnmatch.fnmatch(page, pattern)]
        matching = list(dict.fromkeys(matching))
        left = [page for page in left if page not in matching]
        sections.append((title, matching))
    rest = [page for page in left if not any(fnmatch.fnmatch(page, pattern) for pattern in BY_LINKS)]
    return [(title, taken) for title, taken in (*sections, (MORE, rest)) if taken]
