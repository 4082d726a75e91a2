"""Tables and lists as HTML for embedding in other pages: escaped, without scripts, for light and dark themes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from fireiron.draw.svg import escaped

_STYLE: Final = (
    ".fireiron{font:13px/1.45 Helvetica,Arial,sans-serif;color:inherit}"
    ".fireiron h4{font:bold 13px/1.4 Menlo,Consolas,monospace;margin:4px 0;overflow-wrap:anywhere}"
    ".fireiron table{border-collapse:collapse;margin:4px 0 8px;width:auto;font-size:12px}"
    ".fireiron caption{text-align:left;font-weight:bold;caption-side:top;color:inherit;padding:2px 0}"
    ".fireiron th,.fireiron td{text-align:left;padding:2px 14px 2px 0;border:0;border-bottom:1px solid rgba(128,128,128,.25);"
    "background:none;vertical-align:top;max-width:62em;white-space:pre-wrap}"
    ".fireiron th{font-weight:normal;opacity:.7}"
    ".fireiron .number{text-align:right;font-variant-numeric:tabular-nums}"
    ".fireiron code,.fireiron pre{font:12px/1.45 Menlo,Consolas,monospace;background:none;color:inherit;padding:0}"
    ".fireiron pre{overflow:auto;max-height:28em;margin:4px 0}"
    ".fireiron summary{cursor:pointer;opacity:.8}"
    ".fireiron .bar{display:inline-block;height:8px;background:rgba(9,105,218,.6)}"
    ".fireiron .error{color:#d1242f;font-weight:bold}.fireiron .warning{color:#9a6700;font-weight:bold}"
    ".fireiron svg{max-width:100%;height:auto;background:#ffffff}"
).replace(".fireiron", ".fireiron" * 3)
"""The class is written three times, so that the rules outrank those of notebooks: JupyterLab aligns `.jp-RenderedHTMLCommon td` to the
right, and removes the spaces that indent trees.
"""

_CELL: Final = ' style="text-align:left;white-space:pre-wrap"'
_NUMBER: Final = ' class="number" style="text-align:right"'
"""Attributes of cells. JupyterLab removes the style sheet from the stored outputs of a notebook that it does not trust, and keeps these."""


class Markup(str):
    """Text that is already HTML; any other text is escaped."""

    __slots__ = ()


def marked(value: Any) -> Markup:
    """Return a value as HTML, escaped unless it is already HTML."""
    return value if isinstance(value, Markup) else Markup(escaped(str(value)))


def code(value: Any) -> Markup:
    """Return a text in a monospaced font."""
    return Markup(f"<code>{marked(value)}</code>")


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "", numbers: Sequence[int] = ()) -> Markup:
    """Return a table; empty without rows. `numbers` are the right-aligned columns."""
    kinds = [_CELL if place not in numbers else _NUMBER for place in range(len(heads))]
    body = [
        f"<tr>{''.join(f'<td{kind}>{marked(cell)}</td>' for kind, cell in zip(kinds, row, strict=True))}</tr>" for row in map(tuple, rows)
    ]
    if not body:
        return Markup("")
    head = "".join(f"<th{kind}>{marked(one)}</th>" for kind, one in zip(kinds, heads, strict=True))
    title = f"<caption>{marked(caption)}</caption>" if caption else ""
    return Markup(f"<table>{title}{f'<tr>{head}</tr>' if any(heads) else ''}{''.join(body)}</table>")


def facts(rows: Iterable[tuple[str, Any]]) -> Markup:
    """Return a table of names and values."""
    return table(("", ""), ((Markup(f"<b>{marked(name)}</b>"), value) for name, value in rows))


def bar(share: float, width: int = 160) -> Markup:
    """Return a bar for a share of 0 to 1."""
    return Markup(f'<span class="bar" style="width:{max(1, round(min(share, 1.0) * width))}px"></span>')


def folded(summary: str, inner: Any) -> Markup:
    """Return a collapsed section with a summary."""
    return Markup(f"<details><summary>{marked(summary)}</summary>{marked(inner)}</details>")


def text(lines: str) -> Markup:
    """Return preformatted lines."""
    return Markup(f"<pre>{marked(lines)}</pre>")


def block(title: Any, *parts: Any) -> Markup:
    """Return a heading and its content, with a style sheet."""
    return Markup(f'<div class="fireiron"><style>{_STYLE}</style><h4>{marked(title)}</h4>{"".join(map(marked, parts))}</div>')


__all__ = ["Markup", "bar", "block", "code", "facts", "folded", "marked", "table", "text"]
