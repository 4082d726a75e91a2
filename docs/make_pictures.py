"""Draws the pictures of docs/pictures.md anew; with --check, says which are not up to date instead."""

import sys
from pathlib import Path

from fireiron import draw
from fireiron.language import library
from fireiron.strategies import hopper

FOLDER = Path(__file__).parent / "pictures"
PICTURES = {
    "hmma_ampere": (("tree", "tiles", "lanes", "banks", "timeline"), {"M": 512, "N": 512, "K": 512}),
    "hopper": (("timeline",), {"M": 4096, "N": 4096, "K": 4096}),
    "maxwell": (("tree", "tiles", "banks"), {"M": 512, "N": 512, "K": 256}),
    "listing_2": (("tree", "tiles", "banks"), {"M": 512, "N": 512, "K": 256}),
    "mlp:hopper": (("flow",), {}),
    "lstm:hopper": (("flow",), {}),
    "layernorm": (("flow",), {}),
    "dual:hopper": (("flow",), {}),
    "gemm_row_sum:hopper": (("flow",), {}),
    "hopper_attention": (("flow",), {}),
}
"""By strategy: what is drawn, and the sizes."""

EPILOGUES = {"hopper_bias_relu": "relu(acc + bias[n])"}
"""By picture: what `hopper` does to the sums of a product; the data flow is drawn."""


def drawn(strategy, kinds, sizes):
    """`(file, text)` of the pictures of a strategy."""
    bound = library.bind(library.find(strategy), sizes)
    return [(FOLDER / f"{strategy.replace(':', '_')}_{one.name}.svg", one.svg) for one in draw(bound, kinds)]


def finished(name, text):
    """`(file, text)` of the data flow of a product with an epilogue."""
    strategy = hopper.product(hopper.spec(*hopper.SIZES)).epilogue(text)
    return FOLDER / f"{name}_flow.svg", draw(strategy, "flow").svg


def main():
    """The number of pictures that were not up to date, with --check."""
    stale = 0
    FOLDER.mkdir(exist_ok=True)
    pictures = [one for strategy, (kinds, sizes) in PICTURES.items() for one in drawn(strategy, kinds, sizes)]
    for path, text in [*pictures, *(finished(*one) for one in EPILOGUES.items())]:
        if "--check" in sys.argv:
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                stale += 1
                print(f"{path.name} is not up to date: make pictures")
        else:
            path.write_text(text, encoding="utf-8")
    return min(stale, 1)


if __name__ == "__main__":
    sys.exit(main())
