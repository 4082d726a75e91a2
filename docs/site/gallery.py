"""The gallery: every strategy of the library with its forms, its tree, who has which element, its kernel, and what was measured of it.

Measured are the records that ship with the library, and the sweep of the whole library; numbers stand there with their date and GPU.
"""

import functools
import inspect
import json
import re
from pathlib import Path

import attrs
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import CudaLexer
from section import prose

from fireiron import Records, Strategy, draw
from fireiron.inspect.main_loop import main_loop
from fireiron.language import library

ROOT = Path(__file__).parent.parent.parent
SWEEP = ROOT / "perf" / "results" / "2026-11-21-h200-running" / "sweeps_library.json"
SWEPT = {"gpu": "NVIDIA H200", "date": "2026-11-21"}
"""Where and when `sweeps_library.json` was measured, according to the page next to it."""

MOST_RECORDS = 6
"""Rows of a table of records: the largest problems and the smallest."""

MAIN_LOOP_LINES = 60
"""Lines of a main loop that a page shows, at most."""


@attrs.frozen
class Shown:
    """A strategy of the gallery on its problem, lowered."""

    name: str
    module: object
    bound: Strategy

    @functools.cached_property
    def program(self):
        """The program on the strategy's own target."""
        return self.bound.program()

    @functools.cached_property
    def cuda(self):
        """The kernel's text."""
        return self.program.cuda


def pages(names):
    """`page -> text` of the gallery's pages and their pictures, for strategies of the library by name."""
    found, rows = {}, []
    for name in names:
        one = Shown(name, library._library_module(name), library.bind(library.find(name)))
        found[f"gallery/{name}.md"] = _page(one)
        for kind in ("tree", "tiles"):
            found[f"gallery/pictures/{name}_{kind}.svg"] = draw(one.program, kind).svg
        rows.append(f"| [{name}]({name}.md) | {_sentence(one)} | {_best(name)} |")
    found["gallery/index.md"] = "\n".join([*_HEAD, *rows, ""])
    return found


_HEAD = (
    "# Gallery",
    "",
    "The strategies of the library, each on the problem that its file names. Speeds are records of one GPU on one day;",
    "`fireiron records` prints them, [benchmarking](../benchmarking.md) describes the method.",
    "",
    "| strategy | purpose | best speedup over the vendor library |",
    "|---|---|---|",
)


def _page(one):
    lines = [f"# {one.name}", "", _documented(one.module), "", f"On `{one.bound.spec}`:", ""]
    lines += [
        "```python",
        _chain(one.bound),
        "```",
        "",
        "## Tree",
        "",
        f"![Decomposition tree of {one.name}](pictures/{one.name}_tree.svg)",
        "",
    ]
    lines += ["## Tiles", "", f"![Tiles of {one.name}](pictures/{one.name}_tiles.svg)", ""]
    lines += ["## The kernel", "", f"{len(one.cuda.splitlines())} lines for `{one.program.architecture}`. Its main loop:", ""]
    lines += [
        f"<!-- cuda: {one.name} main loop -->",
        "",
        f"<details><summary>The complete CUDA code</summary><!-- cuda: {one.name} whole --></details>",
        "",
    ]
    lines += ["## Measured", "", *_measured(one.name), "", *_forms(one), ""]
    lines += ["## Source file", "", f"[strategies/{one.name}.py](../../strategies/{one.name}.py)", ""]
    _texts[one.name] = one.cuda
    return "\n".join(lines)


_texts = {}
"""The kernels of this build by strategy, for `with_kernels`."""


def with_kernels(page):
    """A finished page with the kernels where they belong; behind the search index, which need not know each line of them."""
    return re.sub(r"<!-- cuda: (\w+) (main loop|whole) -->", lambda match: _colored(_texts[match[1]], match[2]), page)


def _colored(text, part):
    return highlight(
        "\n".join(main_loop(text, MAIN_LOOP_LINES)) if part == "main loop" else text, CudaLexer(), HtmlFormatter(cssclass="codehilite")
    )


def _documented(module):
    """The docstring of a strategy's file, with its listing as it stands."""
    return prose(inspect.cleandoc(module.__doc__ or ""))


def _sentence(one):
    return prose(library.find(one.name).doc)


def _chain(bound):
    """The steps of a strategy, one a line."""
    return "\n".join([bound.start.title, *(f"    .{step.label()}" for step in bound.steps)])


# ---------------------------------------------------------------------------------------------- numbers


@functools.cache
def _records():
    found = {}
    for one in Records.shipped():
        found.setdefault(one.strategy.partition(":")[0], []).append(one)
    return found


@functools.cache
def _swept():
    found = {}
    for one in json.loads(SWEEP.read_text(encoding="utf-8"))["benchmarks"]:
        if one["name"].startswith("test_library["):
            found[one["params"]["name"]] = one["extra_info"]
    return found


def _best(name):
    if name in _records():
        best = max((one for one in _records()[name] if one.ratio), key=lambda one: one.ratio, default=None)
        number = len(_records()[name])
        counted = f"{number} record{'s' * (number > 1)}"
        return f"{best.ratio:.2f} ({best.gpu}, {best.date}; {counted})" if best else counted
    swept = _swept().get(name)
    if swept:
        return f"{swept['ratio']:.2f} ({SWEPT['gpu']}, {SWEPT['date']})" if swept.get("ratio") else ""
    return ""


def _measured(name):
    rows = _chosen(_records().get(name, []))
    if rows:
        yield "Records, medians; speedup is the time of the library divided by that of the kernel."
        yield ""
        yield from ("| form | sizes | type | us | TFLOP/s | speedup | GPU | date |", "|---|---|---|---|---|---|---|---|")
        for one in rows:
            yield _record(one)
        return
    swept = _swept().get(name)
    if swept is None:
        yield "This strategy has no records; `fireiron run` and `fireiron tune` measure it."
        return
    others = ", ".join(f"{rival} {figures['us']:.4g} us" for rival, figures in swept.get("against", {}).items())
    yield f"{swept['us']:.4g} us on `{swept['spec']}`, {swept['tflops']:.3g} TFLOP/s{'; ' + others if others else ''}."
    yield f"{SWEPT['gpu']}, {SWEPT['date']} ([report](../../perf/results/2026-11-21-h200-running/report.md))."


def _chosen(records):
    """A few records of different sizes: the largest problems."""
    found = {}
    for one in sorted(records, key=lambda one: (-_work(one), one.us)):
        found.setdefault((tuple(sorted(one.spec["sizes"].items())), tuple(one.spec["dtypes"].values())), one)
    rows = list(found.values())
    return rows if len(rows) <= MOST_RECORDS else [*rows[: MOST_RECORDS // 2], *rows[-(MOST_RECORDS // 2) :]]


def _work(one):
    return functools.reduce(lambda all_, size: all_ * size, one.spec["sizes"].values(), 1)


def _record(one):
    sizes = " ".join(f"{name}={size}" for name, size in one.spec["sizes"].items())
    form = one.strategy.partition(":")[2] or "strategy"
    speedup = f"{one.ratio:.2f}" if one.ratio else ""
    speed = f"{one.tflops:.4g}" if one.spec["kind"] == "MatMul" else ""  # masks and groups skip a part of the operations
    return f"| {form} | {sizes} | {next(iter(one.spec['dtypes'].values()))} | {one.us:.4g} | {speed} | {speedup} | {one.gpu} | {one.date} |"


def _forms(one):
    """The other strategies of the file, each in a line."""
    others = {
        key: value
        for key, value in vars(one.module).items()
        if isinstance(value, Strategy) and value.finished and value.steps and value.start == one.bound.start
    }
    others = {key: value for key, value in others.items() if key != "strategy" and value.spec is None and key in _named(one.module)}
    if others:
        yield from ("## Other forms", "")
        for key, value in others.items():
            yield from (f"`fireiron show {one.name}:{key}`", "", "```python", _chain(value), "```", "")


def _named(module):
    """The names that the file itself assigns."""
    return set(re.findall(r"^(\w+)(?:, \w+)* = ", inspect.getsource(module), flags=re.MULTILINE))
