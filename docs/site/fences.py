"""Adapt the Markdown of the pages to the site's Markdown library: fenced blocks stay unchanged."""

import re

FENCE = re.compile(r"^```[^\n]*\n.*?^```[^\n]*$", re.DOTALL | re.MULTILINE)

BEFORE_LIST = re.compile(r"^(?![ \t]*(?:[-*]|\d+\.) |[ \t]|\|)(.*\S.*)\n(?=(?:[-*]|\d+\.) )", re.MULTILINE)
"""A line of a paragraph directly followed by a list."""

ROW = re.compile(r"^\|.*$", re.MULTILINE)
"""A row of a table."""

ON_A_GPU = '<p class="needs">On a GPU:</p>\n'


def outside_fences(text, change):
    """The text with everything between fenced blocks changed."""
    parts, end = [], 0
    for match in FENCE.finditer(text):
        parts += [change(text[end : match.start()]), match[0]]
        end = match.end()
    return "".join([*parts, change(text[end:])])


def readable(text):
    """The page with blocks for a GPU marked in words, an empty line before each list and fenced block, and plain bars in code."""
    text = re.sub(r"^```python gpu$", f"{ON_A_GPU}\n```python", text, flags=re.MULTILINE)
    text = re.sub(r"([^\n])\n(```\w)", r"\1\n\n\2", text)
    return outside_fences(text, lambda part: BEFORE_LIST.sub(r"\1\n\n", ROW.sub(_plain_bars, part)))


def _plain_bars(row):
    """The row with plain bars between backticks; other Markdown libraries need a backslash before them."""
    return re.sub(r"`[^`]*`", lambda code: code[0].replace("\\|", "|"), row[0])
