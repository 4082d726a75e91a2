"""Write pictures to a file or a folder; a file is written completely or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fireiron.errors import ArgumentError, StoreError
from fireiron.files import NEVER_WRITTEN, TAKEN, exists, path_of, unwritten, write

if TYPE_CHECKING:
    from fireiron.draw.picture import Picture

SUFFIXES = (".svg", ".png", ".html")


def save(pictures: Sequence[Picture], path: str | Path, *, overwrite: bool = False, page: str = "") -> tuple[Path, ...]:
    """Write pictures to `.html` (all on one page), to `.svg` or `.png` (one picture), or as SVG files into a folder.

    Args: `page` is the text of the page if it contains more than the pictures.
    Raises: a `StoreError` if a file exists and `overwrite` is false, or it cannot be written; an `ArgumentError` for another suffix.
    Returns: the files, in order.
    """
    target = path_of(path, "save")
    suffix = target.suffix.lower()
    if suffix == ".html":
        from fireiron.draw.html import html

        files = {target: (page or html(pictures)).encode()}
    elif suffix in (".svg", ".png"):
        if len(pictures) != 1:
            names = [one.name for one in pictures]
            raise ArgumentError(
                f"{target.name} can contain only one picture",
                got=names,
                hint="--what tree, or draw(..., 'tree'): one kind; or a file that ends in .html, or a folder",
            )
        files = {target: pictures[0].svg.encode() if suffix == ".svg" else pictures[0].png()}
    elif suffix:
        raise ArgumentError(f"{target.name}: pictures cannot be written to this kind of file", legal=(*SUFFIXES, "a folder"))
    else:
        if exists(target) and not target.is_dir():
            raise StoreError(f"{target} is not a folder", hint="pass a folder, or a name that ends in .svg, .png or .html")
        files = {target / f"{one.name}.svg": one.svg.encode() for one in pictures}
    existing = [str(file) for file in files if exists(file) and not overwrite]
    if existing:
        raise StoreError(f"{', '.join(existing)} exists", hint=TAKEN)
    if not suffix:
        try:
            target.mkdir(parents=True, exist_ok=True)
        except NEVER_WRITTEN as error:
            raise unwritten(target, error) from None
    for file, data in files.items():
        write(file, data, overwrite=overwrite)
    return tuple(files)
