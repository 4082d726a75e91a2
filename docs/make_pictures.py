"""Draws the pictures of docs/pictures.md anew; with --check, says which are not up to date instead."""

import sys
from pathlib import Path

from fireiron import draw
from fireiron.language import library

FOLDER = Path(__file__).parent / "pictures"
PICTURES = {
    "hmma_ampere": (("tree", "tiles", "lanes", "banks", "timeline"), {"M": 512, "N": 512, "K": 512}),
    "hopper": (("timeline",), {"M": 4096, "N": 4096, "K": 4096}),
    "maxwell": (("tree", "tiles", "banks"), {"M": 512, "N": 512, "K": 256}),
    "listing_2": (("tree", "tiles", "banks"), {"M": 512, "N": 512, "K": 256}),
}
"""By strategy: what is drawn, and the sizes."""


def drawn(strategy, kinds, sizes):
    """`(file, text)` of the pictures of a strategy."""
    bound = library.bind(library.find(strategy), sizes)
    return [(FOLDER / f"{strategy}_{one.name}.svg", one.svg) for one in draw(bound, kinds)]


def main():
    """The number of pictures that were not up to date, with --check."""
    stale = 0
    FOLDER.mkdir(exist_ok=True)
    for strategy, (kinds, sizes) in PICTURES.items():
        for path, text in drawn(strategy, kinds, sizes):
            if "--check" in sys.argv:
                if not path.exists() or path.read_text(encoding="utf-8") != text:
                    stale += 1
                    print(f"{path.name} is not up to date: make pictures")
            else:
                path.write_text(text, encoding="utf-8")
    return min(stale, 1)


if __name__ == "__main__":
    sys.exit(main())
