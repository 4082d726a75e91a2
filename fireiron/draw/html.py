"""HTML: one page with all pictures, the strategy and the CUDA text; it needs no other file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fireiron.draw.svg import escaped, svg

if TYPE_CHECKING:
    from fireiron.draw.picture import Picture

_STYLE = """
body { font-family: Helvetica, Arial, sans-serif; color: #1f2328; background: #ffffff;
  max-width: 940px; margin: 24px auto; padding: 0 16px }
h1 { font-size: 22px } h2 { font-size: 17px; margin-top: 36px }
pre { font: 12px/1.45 Menlo, Consolas, monospace; background: #f6f8fa; border: 1px solid #d1d9e0; border-radius: 6px;
  padding: 12px; overflow-x: auto }
svg { max-width: 100%; height: auto; border: 1px solid #d1d9e0; border-radius: 6px }
summary { cursor: pointer; font-weight: bold }
nav a { margin-right: 14px }
"""


def html(pictures: Sequence[Picture], text: str = "", cuda: str = "", heading: str = "") -> str:
    """Return the page: a heading, the strategy's text, the pictures inline, and the CUDA text in a collapsed section."""
    title = escaped(heading or (pictures[0].title if pictures else "fireiron"))
    parts = ["<!DOCTYPE html>", '<html lang="en">', "<head>", '<meta charset="utf-8"/>']
    parts += ['<meta name="viewport" content="width=device-width"/>', f"<title>{title}</title>", f"<style>{_STYLE}</style>", "</head>"]
    parts += ["<body>", f"<h1>{title}</h1>"]
    parts.append("<nav>" + " ".join(f'<a href="#{one.name}">{escaped(one.name)}</a>' for one in pictures) + "</nav>")
    if text:
        parts.append(f"<pre>{escaped(text)}</pre>")
    for picture in pictures:
        parts += [f'<h2 id="{picture.name}">{escaped(picture.title)}</h2>', svg(picture, inline=True)]
    if cuda:
        parts.append(f"<h2>CUDA C++</h2>\n<details>\n<summary>the kernel</summary>\n<pre>{escaped(cuda)}</pre>\n</details>")
    return "\n".join([*parts, "</body>", "</html>", ""])
