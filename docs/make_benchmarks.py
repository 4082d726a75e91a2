"""Write docs/benchmarks.md and its figures from perf/results; with --check, report the outdated files instead."""

import json
import posixpath
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import attrs

from fireiron.draw.colors import OKABE_ITO
from fireiron.draw.picture import Page
from fireiron.draw.shapes import PALE, Line, Rect, text_width

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "perf" / "results"
PAGE = DOCS / "benchmarks.md"
PICTURES = DOCS / "pictures"

MOST_ROWS = 60
"""Longer tables are linked, not repeated."""

HEAD = """# Benchmarks

<!-- language: allow-file; written by docs/make_benchmarks.py from perf/results -->

This page contains the measurements of this project, newest first, with date, versions, command and rival. It includes
the cases that lose. `python docs/make_benchmarks.py` writes it from the files in [perf/results](../perf/results/README.md),
and a test compares the two. [perf](../perf/README.md) describes the programs, and [benchmarking](benchmarking.md) how to
measure your own kernels.

A *speedup* is the rival's time divided by ours, in the same run: above 1, Fireiron is faster.
"""


# ---------------------------------------------------------------------------------------------- figures


@attrs.frozen
class Bar:
    """A measured case, and its speedup."""

    label: str
    speedup: float


@attrs.frozen
class Figure:
    """A figure: the cases of a workload, with their result files and the rival."""

    name: str
    title: str
    rival: str
    files: tuple[str, ...]
    read: Callable[[list[Path]], list[Bar]]
    note: str = ""
    """What the figure leaves out, and why."""

    @property
    def bars(self):
        """The cases, from the result files."""
        return self.read([RESULTS / name for name in self.files])

    @property
    def caption(self):
        """The date, the rival, and the cases that lose."""
        bars = self.bars
        losing = [bar for bar in bars if bar.speedup < 0.995]
        lowest = min(bars, key=lambda bar: bar.speedup)
        loses = f"{len(losing)} of {len(bars)} cases lose; the lowest is {lowest.speedup:.2f} ({lowest.label})."
        outcome = loses if losing else f"All {len(bars)} cases are level or faster."
        return " ".join(filter(None, (f"Compared with {self.rival}.", outcome, self.note)))


def measured(path):
    """The cases of a JSON result file."""
    contents = json.loads(path.read_text(encoding="utf-8"))
    return contents.get("measured") or contents["rows"]


def size(numbers):
    return "x".join(map(str, numbers))


def products(paths):
    """Speedups of `matmul`, the highest first."""
    cases = [case for path in paths for case in measured(path)]
    bars = [
        Bar(size(case["shape"]), statistics.median(case["times"]["cuBLAS"]) / statistics.median(case["times"]["matmul"])) for case in cases
    ]
    return sorted(bars, key=lambda bar: -bar.speedup)


def attention(paths):
    """Speedups over the faster of two rivals; a later file replaces the cases of an earlier one."""
    rows = [
        line.strip("| \n").split("|")
        for path in paths
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.match(r"\| +\d", line)
    ]
    cases = {}
    for heads, _, causal, length, _, _, first, _, second in ([cell.strip() for cell in row] for row in rows):
        cases[int(heads), causal == "True", int(length)] = min(float(first), float(second))
    return [Bar(f"{heads}{', causal' if causal else ''}, {length}", speedup) for (heads, causal, length), speedup in sorted(cases.items())]


NO_RIVAL = ("rope", "dropout")
"""Functions whose compiled rival was not valid in these runs."""


def functions_of_rows(paths):
    """Speedups of functions of rows; a later file replaces the cases of an earlier one."""
    cases = {case["function"]: case["us"] for path in paths for case in measured(path) if case["function"] not in NO_RIVAL}
    return [Bar(name, us["compile"] / us["ours"]) for name, us in cases.items()]


def quantized(paths):
    """Speedups of quantized products, in the form that the library chooses."""
    bars = []
    for case in sorted((case for path in paths for case in measured(path)), key=lambda case: (case["kind"], case["size"])):
        ours = min(us for name, us in case["us"].items() if name.endswith("(default)"))
        bars.append(Bar(f"{case['kind']} {size(case['size'])}", case["us"]["cuBLAS"] / ours))
    return bars


def two_gpus(paths):
    """Speedups of the functions of process groups."""
    cases = [case for path in paths for case in measured(path)]
    order = sorted(cases, key=lambda case: (case["case"].split(":")[0], [int(number) for number in case["case"].split(":")[1].split("x")]))
    return [Bar(case["case"].replace(":", " "), case["us"]["cuBLAS + NCCL"] / case["us"]["function"]) for case in order]


FIGURES = (
    Figure(
        "results_gemm",
        "float16 GEMM, 60 random untuned sizes",
        "the faster of cuBLAS and cuBLASLt",
        ("2026-11-30-h200-first/aligned.json",),
        products,
        "Sizes whose rows are not multiples of 128 bytes have a table.",
    ),
    Figure(
        "results_attention",
        "Attention, by head dimension and length",
        "the faster of FlashAttention-3 and cuDNN",
        tuple(f"2026-11-30-h200-fa3/fwd{name}.md" for name in ("64", "64c", "128", "128c", "256")),
        attention,
        "Gradients have a table.",
    ),
    Figure(
        "results_rows",
        "Functions of rows",
        "`torch.compile`",
        ("2026-11-29-h200-kernels/row_functions.json", "2026-11-30-h200-rows/row_functions.json"),
        functions_of_rows,
        "RoPE and dropout had no valid rival.",
    ),
    Figure(
        "results_quantized",
        "Quantized weights, M x N x K",
        "cuBLAS with 16-bit weights",
        ("2026-11-30-h200-quantised/quantised.json",),
        quantized,
        "A later form reaches 1.01 for the lowest case.",
    ),
    Figure(
        "results_gpus",
        "Products on two GPUs, M x N x K of one",
        "cuBLAS and NCCL",
        ("2026-11-30-h200-x2-1/node.json",),
        two_gpus,
    ),
)

WIDTH, TOP, BAR_AREA, LABELS = 440, 44, 250, 150
"""The width of a figure, the space above its bars, the height of all bars, and the width of their labels, in pixels."""

FASTER, SLOWER = OKABE_ITO[0], OKABE_ITO[1]


def drawn(figure):
    """A figure as a picture: a horizontal bar per case, and a line at equal speed; slower cases have another color."""
    page, bars = Page(), figure.bars
    pitch = BAR_AREA / len(bars)
    letters = min(10.0, 0.8 * pitch)
    labels = max(LABELS, 17 + max(text_width(bar.label, letters) for bar in bars)) if letters > 5.5 else 12
    scale = (WIDTH - labels - 44) / max(1.2, *(bar.speedup for bar in bars))
    page.text(12, 18, figure.title, 12.5, bold=True)
    page.text(12, 33, f"speedup over {figure.rival.replace('`', '')}, NVIDIA H200", 9.5, color=PALE)
    for row, bar in enumerate(bars):
        y = TOP + row * pitch
        color = FASTER if bar.speedup >= 0.995 else SLOWER
        page.add(Rect(labels, y + 0.1 * pitch, bar.speedup * scale, 0.8 * pitch, color, title=f"{bar.label}: {bar.speedup:.2f}"))
        if letters > 5.5:
            page.text(labels - 5, y + 0.5 * pitch + 0.35 * letters, bar.label, letters, anchor="end")
            page.text(labels + bar.speedup * scale + 3, y + 0.5 * pitch + 0.35 * letters, f"{bar.speedup:.2f}", letters)
    if letters <= 5.5:
        for row in (0, len(bars) // 2, len(bars) - 1):
            text = f"{bars[row].speedup:.2f}"
            page.text(min(labels + bars[row].speedup * scale + 3, WIDTH - text_width(text, 9.5)), TOP + (row + 0.5) * pitch + 3, text, 9.5)
    page.add(Line(((labels + scale, TOP - 4), (labels + scale, TOP + BAR_AREA + 2)), "#1f2328", 1.0, True))
    return page.picture(figure.name, f"{figure.title}: {figure.caption}".replace("`", ""), WIDTH, TOP + BAR_AREA + 10)


# ---------------------------------------------------------------------------------------------- the page

LINK = re.compile(r"(\]\()([^)#\s]+)")


def moved(text, folder):
    """The text with the links of a page of perf/results, as links of a page of docs/."""

    def target(match):
        if ":" in match[2]:
            return match[0]
        return match[1] + posixpath.normpath(f"../perf/results/{folder}/{match[2]}")

    return LINK.sub(target, text)


def blocks(text):
    """The blocks of a Markdown text, which empty lines separate; a fenced block is one."""
    return [block.strip("\n") for block in re.findall(r"```.*?\n```|(?:(?!```)[^\n]+\n?)+", text, re.DOTALL)]


def is_table(block):
    return block.startswith("|") and "\n|-" in block


def section(folder):
    """The title, the conditions and the tables of a folder of results."""
    readme = RESULTS / folder / "README.md"
    title = f"[{{}}](../perf/results/{folder}{'/README.md' if readme.exists() else ''})"
    if not readme.exists():
        files = sorted(path.name for path in (RESULTS / folder).iterdir())
        return [f"### {title.format(folder)}", ", ".join(f"[{name}](../perf/results/{folder}/{name})" for name in files)]
    first, *rest = blocks(readme.read_text(encoding="utf-8"))
    lines = [f"### {title.format(first.lstrip('# '))}"]
    heading, tables = "", 0
    for block in rest:
        if block.startswith("#"):
            heading = f"**{block.lstrip('# ')}**"
        elif is_table(block):
            lines += [heading] if heading else []
            rows = block.count("\n") - 1
            lines.append(moved(block, folder) if rows <= MOST_ROWS else f"A table of [{rows} rows](../perf/results/{folder}/README.md).")
            heading, tables = "", tables + 1
        elif not tables and not heading and len(lines) == 1:
            lines.append(moved(block, folder))
    return lines


def page():
    """The text of the page."""
    summary = next(block for block in blocks((RESULTS / "README.md").read_text(encoding="utf-8")) if is_table(block))
    figures = [f"![{figure.title}](pictures/{figure.name}.svg)\n\n{figure.title}. {figure.caption} {sources(figure)}" for figure in FIGURES]
    folders = sorted((path.name for path in RESULTS.iterdir() if path.is_dir()), reverse=True)
    parts = [HEAD.strip(), "## Summary", moved(summary, "."), "## Figures", *figures, "## All measurements"]
    parts += [line for folder in folders for line in section(folder)]
    return "\n\n".join(parts) + "\n"


def sources(figure):
    """Links to the result files of a figure."""
    return "Data: " + ", ".join(f"[{name}](../perf/results/{name})" for name in figure.files) + "."


def documents():
    """The path and the text of the page and of each figure."""
    return [(PAGE, page()), *((PICTURES / f"{figure.name}.svg", drawn(figure).svg) for figure in FIGURES)]


def main():
    """Write the files; with --check, return 1 if one is outdated."""
    stale = 0
    for path, text in documents():
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            stale = 1
            print(f"{path.name} is not up to date: python docs/make_benchmarks.py")
    return stale


if __name__ == "__main__":
    sys.exit(main())
