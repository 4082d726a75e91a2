"""The gallery: every strategy of the library with its forms, its tree, the owners of elements, its kernel, and its measured times.

Times are from the records that ship with the library, and from the sweep of the whole library; each has its date and GPU.
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
"""The number of rows in a table of records: the largest and the smallest problems."""

MAIN_LOOP_LINES = 60
"""The maximum number of lines of a main loop on a page."""


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
    texts, rows = {}, []
    for name in names:
        strategy = Shown(name, library._library_module(name), library.bind(library.find(name)))
        texts[f"gallery/{name}.md"] = _page(strategy)
        for kind in ("tree", "tiles"):
            texts[f"gallery/pictures/{name}_{kind}.svg"] = draw(strategy.program, kind).svg
        rows.append(f"| [{name}]({name}.md) | {_sentence(strategy)} | {_best(name)} |")
    texts["gallery/index.md"] = "\n".join([*_HEAD, *rows, ""])
    return texts


_HEAD = (
    "# Gallery",
    "",
    "The strategies of the library, each on the problem that its file names. Speeds are records of one GPU on one day;",
    "`fireiron records` prints them, [benchmarking](../benchmarking.md) describes the method.",
    "",
    "| strategy | purpose | best speedup over the vendor library |",
    "|---|---|---|",
)


def _page(strategy):
    lines = [f"# {strategy.name}", "", _documented(strategy.module), "", f"On `{strategy.bound.spec}`:", ""]
    lines += [
        "```python",
        _chain(strategy.bound),
        "```",
        "",
        "## Tree",
        "",
        f"![Decomposition tree of {strategy.name}](pictures/{strategy.name}_tree.svg)",
        "",
    ]
    lines += ["## Tiles", "", f"![Tiles of {strategy.name}](pictures/{strategy.name}_tiles.svg)", ""]
    lines += ["## The kernel", "", f"{len(strategy.cuda.splitlines())} lines for `{strategy.program.architecture}`. Its main loop:", ""]
    lines += [
        f"<!-- cuda: {strategy.name} main loop -->",
        "",
        f"<details><summary>The complete CUDA code</summary><!-- cuda: {strategy.name} whole --></details>",
        "",
    ]
    lines += ["## Measured", "", *_measured(strategy.name), "", *_forms(strategy), ""]
    lines += ["## Source file", "", f"[strategies/{strategy.name}.py](../../strategies/{strategy.name}.py)", ""]
    _texts[strategy.name] = strategy.cuda
    return "\n".join(lines)


_texts = {}
"""The kernels of this build by strategy, for `with_kernels`."""


def with_kernels(page):
    """Insert the kernels into a finished page, after the search index is built, which need not contain their lines."""
    return re.sub(r"<!-- cuda: (\w+) (main loop|whole) -->", lambda match: _colored(_texts[match[1]], match[2]), page)


def _colored(text, part):
    return highlight(
        "\n".join(main_loop(text, MAIN_LOOP_LINES)) if part == "main loop" else text, CudaLexer(), HtmlFormatter(cssclass="codehilite")
    )


def _documented(module):
    """The docstring of a strategy's file, with its listing unchanged."""
    return prose(inspect.cleandoc(module.__doc__ or ""))


def _sentence(strategy):
    return prose(library.find(strategy.name).doc)


def _chain(bound):
    """The steps of a strategy, one per line."""
    return "\n".join([bound.start.title, *(f"    .{step.label()}" for step in bound.steps)])


# ---------------------------------------------------------------------------------------------- numbers


@functools.cache
def _records():
    by_strategy = {}
    for record in Records.shipped():
        by_strategy.setdefault(record.strategy.partition(":")[0], []).append(record)
    return by_strategy


@functools.cache
def _swept():
    by_name = {}
    for benchmark in json.loads(SWEEP.read_text(encoding="utf-8"))["benchmarks"]:
        if benchmark["name"].startswith("test_library["):
            by_name[benchmark["params"]["name"]] = benchmark["extra_info"]
    return by_name


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
        for row in rows:
            yield _record(row)
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
    largest = {}
    for record in sorted(records, key=lambda record: (-_work(record), record.us)):
        largest.setdefault((tuple(sorted(record.spec["sizes"].items())), tuple(record.spec["dtypes"].values())), record)
    rows = list(largest.values())
    return rows if len(rows) <= MOST_RECORDS else [*rows[: MOST_RECORDS // 2], *rows[-(MOST_RECORDS // 2) :]]


def _work(record):
    return functools.reduce(lambda all_, size: all_ * size, record.spec["sizes"].values(), 1)


def _record(record):
    sizes = " ".join(f"{name}={size}" for name, size in record.spec["sizes"].items())
    form = record.strategy.partition(":")[2] or "strategy"
    speedup = f"{record.ratio:.2f}" if record.ratio else ""
    speed = f"{record.tflops:.4g}" if record.spec["kind"] == "MatMul" else ""  # masks and groups skip some of the operations
    dtype = next(iter(record.spec["dtypes"].values()))
    return f"| {form} | {sizes} | {dtype} | {record.us:.4g} | {speed} | {speedup} | {record.gpu} | {record.date} |"


def _forms(strategy):
    """The other strategies of the file, one per line."""
    others = {
        key: value
        for key, value in vars(strategy.module).items()
        if isinstance(value, Strategy) and value.finished and value.steps and value.start == strategy.bound.start
    }
    others = {key: value for key, value in others.items() if key != "strategy" and value.spec is None and key in _named(strategy.module)}
    if others:
        yield from ("## Other forms", "")
        for key, value in others.items():
            yield from (f"`fireiron show {strategy.name}:{key}`", "", "```python", _chain(value), "```", "")


def _named(module):
    """The names that the file itself assigns."""
    return set(re.findall(r"^(\w+)(?:, \w+)* = ", inspect.getsource(module), flags=re.MULTILINE))
