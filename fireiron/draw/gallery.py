"""Several pictures of one program, together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs

from fireiron.compiler import Program
from fireiron.draw.picture import Picture
from fireiron.kernel_graph.program import GraphProgram


@attrs.frozen(eq=False)
class Gallery:
    """Several pictures of one program or of one kernel graph; notebooks display them one below the other."""

    pictures: tuple[Picture, ...]
    program: Program | GraphProgram

    def __iter__(self) -> Iterator[Picture]:
        return iter(self.pictures)

    def __len__(self) -> int:
        return len(self.pictures)

    @property
    def html(self) -> str:
        """Return one page with all pictures, the strategy and the CUDA text; it needs no other file."""
        from fireiron.draw.html import html

        program = self.program
        if isinstance(program, GraphProgram):
            complete = all(part.tree.complete for part in program.kernels.values())
            return html(self.pictures, str(program.graph), program.cuda if complete else "", program.name)
        text = "\n".join([str(program.spec), *("  " + line for line in program.title())])
        return html(self.pictures, text, program.cuda if program.tree.complete else "", str(program.spec))

    def save(self, path: str | Path, *, overwrite: bool = False) -> tuple[Path, ...]:
        """Write a page (`.html`), one picture (`.svg`, `.png`), or SVG files into a folder; return the written files."""
        from fireiron.draw.files import save

        page = self.html if Path(path).suffix.lower() == ".html" else ""
        return save(self.pictures, path, overwrite=overwrite, page=page)

    def _repr_html_(self) -> str:
        from fireiron.draw.svg import svg

        return "\n".join(svg(one, inline=True) for one in self.pictures)
