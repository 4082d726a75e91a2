"""Write the table of expected times on several GPUs in docs/gpus.md: what the model computes from the measured link of two GPUs."""

from pathlib import Path

from tabulate import tabulate

from fireiron import float16
from fireiron.cost.gpus import of_architecture
from fireiron.distributed_plan import LIBRARY_NAME, NodeProduct, candidates

PAGE = Path(__file__).parent / "gpus.md"
BEGIN, END = "<!-- expected: written by docs/make_gpus.py -->\n", "<!-- end of expected -->\n"
HIDDEN, MIDDLE, QUERIES = 8192, 28672, 10240
"""Sizes of a model with 70 billion parameters: elements of a token, of the middle of an MLP, and of queries, keys and values."""

ARCH = "sm_90a"


def problems():
    """Yield the exchange and the shapes of the parts of A and B on a GPU."""
    for gpus in (2, 4, 8):
        for tokens in (4096, 16384):
            yield gpus, "all_gather", (tokens // gpus, HIDDEN), (HIDDEN, 2 * MIDDLE // gpus)
            yield gpus, "all_gather", (tokens // gpus, HIDDEN), (HIDDEN, QUERIES // gpus)
            yield gpus, "reduce_scatter", (tokens, MIDDLE // gpus), (MIDDLE // gpus, HIDDEN)
        for tokens in (16, 64):
            yield gpus, "all_reduce", (tokens, MIDDLE // gpus), (MIDDLE // gpus, HIDDEN)


def rows():
    """Yield the rows of the table."""
    link = of_architecture(ARCH).link_gb_s
    for gpus, kind, a, b in problems():
        problem = NodeProduct.of(kind, a, b, float16, gpus=gpus)
        known = [one for one in candidates(problem, ARCH) if one.name != LIBRARY_NAME and not one.measured]
        best = min(known, key=lambda one: one.us)
        product, moved = best.parts["product"], best.link_bytes / link / 1e3
        m, n, k = (str(size) for size in problem.own(float16).sizes)
        yield [
            gpus, kind, f"{m} x {n} x {k}", best.name, round(product, 1), round(moved, 1), round(best.us, 1),
            f"{max(product, moved) / best.us:.2f}",
        ]  # fmt: skip


HEADS = ("GPUs", "exchange", "M x N x K on a GPU", "strategy", "product, us", "link, us", "total, us", "larger / total")


def table():
    """Return the table as text."""
    return tabulate(list(rows()), HEADS, tablefmt="github", disable_numparse=True) + "\n"


def with_table(text):
    """Return the page with the table."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
