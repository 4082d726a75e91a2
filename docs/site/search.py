"""The search index of the site, as a script that pages load from a server or from disk (`theme/site.js` ranks it).

A browser refuses to read JSON files from disk, but loads scripts. So the index of MkDocs becomes an assignment. Each entry has a weight:
pages that explain how to do something rank before decisions, results and lists.
"""

import json
import re

WEIGHTS = (
    (r"decisions/|changelog|contributing", 0.25),
    (r"repository/|benchmarks|bugs|limits|reliability", 0.3),
    (r"gallery/|graphene|fireiron\.html|cypress|notation", 0.5),
    (r"glossary", 0.9),
    (r"", 1.0),
)
"""The weight of the first pattern that matches the beginning of a location."""

KEYWORDS = {
    "install.html": "install; setup; pip install; extras; requirements",
    "index.html#try-it": "try; demo",
    "tuning.html": "autotune; autotuning; autotuner; tuning; tune; grid search",
    "reference/refinements-tile.html#pingpong": "ping-pong",
    "reference/refinements-tile.html#programmatic_launch": "programmatic dependent launch; PDL; griddepcontrol",
    "reference/checks.html#races": "race; data race; race condition",
    "library.html#fireironattention": "attention",
    "reference/verbs.html#split_k": "split-k; splitk",
    "reference/cheat-sheet.html": "cheat sheet; cheatsheet; overview",
    "fused.html": "clip; clamp; scalar; scalars; argmax; logsumexp; in-place",
    "howto/wrong.html": "debug; debugging",
    "puzzles.html": "puzzle; exercise; exercises",
    "first-kernels.html": "vector add; hello world; first kernel",
    "benchmarks.html": "performance; results; speed",
    "notebook.html": "jupyter; jupyterlab; ipython; vscode; colab",
    "index.html#platforms": "windows; macos; linux; supported gpus",
    "howto/from-triton.html": "triton",
    "howto/from-cute.html": "cutlass; cute",
}
"""Words for which a page is the first result, besides those of its title."""

EXCERPT = 200
"""Characters of a page's text, if its sections are separate entries."""


def script(index):
    """The script that defines `search_index`, from the JSON index of MkDocs: `[location, title, page, text, keywords, weight]` each."""
    docs = json.loads(index)["docs"]
    titles = {doc["location"]: doc["title"] for doc in docs}
    divided = {doc["location"].partition("#")[0] for doc in docs if "#" in doc["location"]}
    entries = []
    for doc in docs:
        location = doc["location"]
        page = location.partition("#")[0]
        text = doc["text"][:EXCERPT] if location in divided else doc["text"]
        weight = next(weight for pattern, weight in WEIGHTS if re.match(pattern, location))
        entries.append([location, doc["title"], titles.get(page, ""), text, KEYWORDS.get(location, ""), weight])
    return f"var search_index = {json.dumps(entries, ensure_ascii=False, separators=(',', ':'))};\n"


def unknown(index):
    """The locations of `KEYWORDS` that the site does not have."""
    return KEYWORDS.keys() - {doc["location"] for doc in json.loads(index)["docs"]}
