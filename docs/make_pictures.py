"""Draw the pictures of docs/pictures.md again; with --check, report the outdated ones instead."""

import itertools
import re
import sys
from pathlib import Path

from fireiron import draw
from fireiron.draw.colors import EMPTY, OKABE_ITO, SCALE, tint
from fireiron.draw.picture import Page
from fireiron.draw.shapes import PALE, Rect
from fireiron.inspect.main_loop import main_loop
from fireiron.inspect.show import executed, main_child, short
from fireiron.language import library
from fireiron.strategies import hopper

FOLDER = Path(__file__).parent / "pictures"
PICTURES = {
    "hmma_ampere": (("tree", "tiles", "lanes", "thread", "banks", "timeline"), {"M": 512, "N": 512, "K": 512}),
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
"""By strategy: the parts to draw, and the sizes."""

THREAD = 37
"""The thread whose registers are drawn: lane 5 of warp 1."""

EPILOGUES = {"hopper_bias_relu": "relu(acc + bias[n])"}
"""By picture: the epilogue of `hopper`; the data flow is drawn."""


def drawn(strategy, kinds, sizes):
    """`(file, text)` of the pictures of a strategy."""
    bound = library.bind(library.find(strategy), sizes)
    pictures = draw(bound, kinds, thread=THREAD if "thread" in kinds else 0)
    return [(FOLDER / f"{strategy.replace(':', '_')}_{picture.name}.svg", picture.svg) for picture in pictures]


def finished(name, text):
    """`(file, text)` of the data flow of a GEMM with an epilogue."""
    strategy = hopper.product(hopper.spec(*hopper.SIZES)).fuse_epilogue(text)
    return FOLDER / f"{name}_flow.svg", draw(strategy, "flow").svg


README = FOLDER.parent.parent / "README.md"
LEFT, RIGHT, ROW, LETTERS = 16, 318, 16, 9.5
"""The positions of the two columns of README's picture, the height of a line and of its letters, in pixels."""


def first_kernel():
    """The first kernel of README.md, as its first code block builds it, with its problem."""
    names = {}
    exec(re.search(r"```python\n(.*?)kernel = ", README.read_text(encoding="utf-8"), re.DOTALL)[1], names)
    return names["strategy"](names["problem"]).program("sm_90")


def steps_of(program):
    """`(step, spec after it, specs that its lines of CUDA name)` of the main chain."""
    node, steps = program.tree, []
    while node is not None and node.step is not None:
        following = main_child(node)
        sides = [str(side.spec) for name, side in node.children if following is None or side is not following[1]]
        result = f"by {executed(node)}" if following is None else str(following[1].spec)
        steps.append((short(node.step), result, (*sides, result)))
        node = None if following is None else following[1]
    return steps


def readme():
    """`(file, text)` of the picture of README.md: the steps of its first kernel, and the loop over k in the colors of its steps."""
    program, page = first_kernel(), Page()
    steps, lines = steps_of(program), main_loop(program.cuda, most=60)
    colors = [tint(color, 0.6) for color in (*OKABE_ITO, *SCALE)][: len(steps)]
    page.text(LEFT, 26, "A strategy, and its specs", 12, bold=True)
    page.text(RIGHT, 26, "The loop over k that it becomes; the barriers are inferred", 12, bold=True)
    for row, (step, result, _) in enumerate(steps):
        y = 40 + row * 2.5 * ROW
        page.add(Rect(LEFT, y, RIGHT - LEFT - 16, 2.1 * ROW, colors[row], radius=4))
        page.text(LEFT + 8, y + 14, step, 10.5, mono=True, bold=True)
        page.text(LEFT + 8, y + 28, result, LETTERS, mono=True, color=PALE)
    for row, (line, step) in enumerate(zip(lines, owners(lines, steps), strict=True)):
        y = 40 + row * ROW
        page.add(Rect(RIGHT, y, 900 - RIGHT - 16, ROW, EMPTY if step is None else colors[step]))
        page.text(RIGHT + 8, y + 11.5, line, LETTERS * 0.86, mono=True, bold="__syncthreads" in line)
    height = 52 + max(len(lines) * ROW, len(steps) * 2.5 * ROW)
    return FOLDER.parent / "readme.svg", page.picture("readme", f"README: {program.spec}", 900, height).svg


def owners(lines, steps):
    """The step of each line, by its number: comments name the specs, loops over k are those of `split`; None for braces and barriers."""
    splits = [row for row, (step, _, _) in enumerate(steps) if step.startswith("split")]
    steps_of_lines, now = [], None
    for number, line in enumerate(lines):
        named = [row for row, (_, _, specs) in enumerate(steps) if any(line.endswith(f" {spec}") for spec in specs)]
        if "// " in line and named:
            now = named[-1]
        elif re.match(r" *for \(int k\d* ", line):
            now = splits.pop(0)
        elif line.startswith("#pragma") and any(
            "fmaf" in inner for inner in itertools.takewhile(lambda inner: inner.strip() != "}", lines[number:])
        ):
            now = len(steps) - 2
        elif "fmaf" in line:
            now = len(steps) - 1
        steps_of_lines.append(None if line.strip() == "}" or "__syncthreads" in line else now)
    return steps_of_lines


def pictures():
    """The path and the text of each picture."""
    each = [one for strategy, (kinds, sizes) in PICTURES.items() for one in drawn(strategy, kinds, sizes)]
    return [readme(), *each, *(finished(*one) for one in EPILOGUES.items())]


def main():
    """The number of outdated pictures, with --check."""
    stale = 0
    FOLDER.mkdir(exist_ok=True)
    for path, text in pictures():
        if "--check" in sys.argv:
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                stale += 1
                print(f"{path.name} is not up to date: make pictures")
        else:
            path.write_text(text, encoding="utf-8")
    return min(stale, 1)


if __name__ == "__main__":
    sys.exit(main())
