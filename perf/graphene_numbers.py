"""The experiments of the Graphene paper (E1 to E7), its figures beside ours, from the results that are there.

    python perf/graphene_numbers.py [FOLDER] [--products perf/results/2026-11-22-h200-hopper/targets.json] [--plot]

Reads the `.json` files of a folder of results, by default `perf/results/2026-11-22-h200-fused`, and those of plain products; measures nothing.
Writes `graphene.md` into the folder. What has no file there is "not measured". With `--plot` writes `graphene.svg`, too: a baseline's time by ours, for each
problem of E2 to E6 that is there (matplotlib).
"""

import argparse
import json
import statistics
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
FOLDER, PRODUCTS = RESULTS / "2026-11-22-h200-fused", RESULTS / "2026-11-22-h200-hopper" / "targets.json"
MISSING = "not measured"

HEADS = ("", "experiment", "the paper's figure", "on", "ours", "on", "script")
TITLE = "# Graphene's experiments, its figures and ours\n\nWritten by `python perf/graphene_numbers.py` from the files beside it.\n\n"
NOTES = """
"x times" is a baseline's time by ours in the same run. The paper's figures are those of its text (Graphene, ASPLOS 2023, section 6), as its plots have no
numbers: measured by Nsight Compute at base clocks, with CUDA 11.7. Ours are bursts at boost clocks (`fireiron/measure/timing.py`) on a newer GPU, whose
libraries, and our products of E1 and E2, use `wgmma`; all other kernels of ours here use `mma.sync`, unless `wgmma` is said.
"""


class Results:
    """The measurements of a folder, by file."""

    def __init__(self, folder, products):
        self.folder, self.products = folder, products

    def read(self, name):
        """A file's content; None where it is not there."""
        path = self.products if name == "products" else self.folder / f"{name}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def place(self, name):
        """The GPU and the date of a file."""
        found = self.read(name)
        if found is None:
            return ""
        where = found.get("environment", {}) if isinstance(found, dict) else {}
        others = [self.read(path.stem) for path in sorted(self.folder.glob("*.json"))]
        gpu = where.get("gpu") or next((one["environment"]["gpu"] for one in others if isinstance(one, dict) and "environment" in one), "")
        return f"{gpu}, {where.get('date', self.folder.name)[:10]}"


def ratios(values):
    """Ratios in words: one, or from the least to the greatest."""
    least, most = (f"{one:.2f}" for one in (min(values), max(values)))
    return least if least == most else f"{least} to {most}"


def least(times, start):
    """The shortest time of those that begin so; None where there is none."""
    return min((us for name, us in times.items() if name.startswith(start)), default=None)


def each(pairs):
    """The ratios of pairs that are both there."""
    return [one / other for one, other in pairs if one and other]


def e1(results):
    """Plain products at the paper's size for Ampere."""
    found = results.read("products")
    if found is None:
        return None
    here = [one["times"] for one in found["measured"] if one["shape"] == [5376, 5376, 2048] and one["dtype"] == "float16"]
    best = [
        one["cuBLAS"][0] / min(us[0] for name, us in one.items() if name not in ("cuBLAS", "matmul") and not name.startswith("Triton"))
        for one in here
    ]
    chosen = [one["cuBLAS"][0] / one["matmul"][0] for one in here if "matmul" in one]
    return here and f"{ratios(best)} times cuBLAS; what `fireiron.matmul` takes: {ratios(chosen)} (5376x5376x2048)"


def e2(results):
    """Bias and ReLU."""
    found = results.read("epilogue")
    if found is None:
        return None
    times = {size: one["times"] for size, one in found["measured"].items()}
    peers = {"bias": "cuBLASLt bias", "ReLU": "cuBLASLt ReLU", "bias + ReLU": "_addmm_activation"}
    words = []
    for name, peer in peers.items():
        beside = each((one.get(peer), one.get(name)) for one in times.values())
        words.append(f"{name} {ratios(beside) if beside else MISSING}")
    alone = ratios([one["bias + ReLU"] / one["plain"] for one in times.values()])
    return f"times cuBLASLt's epilogue: {', '.join(words)} ({', '.join(times)}); {alone} of our plain product's time"


def e3(results):
    """Layers in one kernel."""
    found = results.read("mlp")
    if found is None:
        return None
    times = [one["us"] for one in found["measured"]]
    layers = ", ".join(map(str, sorted({one["layers"] for one in found["measured"]})))
    words = []
    for said, starts in (("", ("shared", "registers")), ("by wgmma ", ("wgmma",))):
        ours = [min(filter(None, (least(one, start) for start in starts)), default=None) for one in times]
        chain, triton = (each((least(one, start), us) for one, us in zip(times, ours, strict=True)) for start in ("cuBLASLt", "Triton"))
        if chain and triton:
            words.append(f"{said}{ratios(chain)} times the cuBLASLt chain, {ratios(triton)} times Triton's fused kernel")
    return f"{'; '.join(words)} ({layers} layers)"


def e4(results):
    """The cell."""
    found = results.read("lstm")
    if found is None:
        return None
    times = [one["us"] for one in found["measured"]]
    beside = {words: each((least(one, start), least(one, "ours")) for one in times) for start, words in (("five", "five kernels"), ("two", "two of cuBLASLt"), ("Triton", "Triton on mma.sync"))}  # fmt: skip
    free = {"five": "five kernels", "two": "two of cuBLASLt", "by TMA": "Triton"}
    engine = {words: each((least(one, start), least(one, "wgmma")) for one in times) for start, words in free.items()}
    said = [f"{ratios(found)} times {words}" for words, found in beside.items() if found]
    said += [f"by wgmma {ratios(found)} times {words}" for words, found in engine.items() if found]
    return "; ".join(said)


def e5(results):
    """Rows."""
    found = results.read("layernorm")
    if found is None:
        return None
    rows = [one["us"] for one in found["measured"] if one["kernel"] == "layernorm"]
    peers = {words: each((least(one, start), one["ours"]) for one in rows) for start, words in (("torch", "PyTorch's"), ("compile", "torch.compile's"), ("triton", "Triton's"))}  # fmt: skip
    copy = each((min(one["copy_"], one["neg"]), one["ours"]) for one in rows)
    words = [f"{ratios(found)} times {name}" for name, found in peers.items() if found]
    return f"{', '.join(words)}; a copy of the same bytes takes {ratios(copy)} of its time"


def others(results, kernel):
    """RMSNorm or softmax beside the copy, and peers."""
    for name in ("rmsnorm-softmax", "layernorm", kernel):
        found = results.read(name)
        rows = [one["us"] for one in found["measured"] if one["kernel"] == kernel] if found else []
        if rows:
            copy = each((min(one["copy_"], one["neg"]), one["ours"]) for one in rows)
            triton = each((least(one, "triton"), one["ours"]) for one in rows)
            beside = f", {ratios(triton)} times Triton's" if triton else ""
            return f"a copy takes {ratios(copy)} of its time; {ratios(each((one['torch'], one['ours']) for one in rows))} times PyTorch's{beside}"
    return None


def e6(results):
    """Attention at BERT's sizes."""
    found = results.read("bert")
    if found is None:
        return None
    us, ours = found["us"], found["us"][found["best"]]
    names = (("chain", "cuBLAS, a softmax kernel, cuBLAS"), ("chain, torch.softmax", "the chain with torch.softmax"), ("FA2", "FlashAttention-2"), ("cuDNN", "cuDNN"))  # fmt: skip
    said = ", ".join(f"{us[name] / ours:.2f} times {words}" for name, words in names if name in us)
    engine = us.get(found.get("best by wgmma"))
    return (
        f"{said}; by wgmma {', '.join(f'{us[name] / engine:.2f} times {words}' for name, words in names if name in us)}" if engine else said
    )


def long_attention(results):
    """Attention of longer sequences."""
    found = results.read("attention")
    if found is None:
        return None
    words = []
    for d, causal in sorted({(one["d"], one["causal"]) for one in found}):
        here = [one["TFLOP/s"] for one in found if (one["d"], one["causal"]) == (d, causal)]
        ours = [max(speed for name, speed in one.items() if name not in ("FA2", "cuDNN")) for one in here]
        fast = each((us, one.get("FA2")) for one, us in zip(here, ours, strict=True))
        words.append(f"d {d}{' causal' * causal} {ratios(fast)}")
    return f"times FlashAttention-2: {', '.join(words)}"


def e7(results):
    """Networks."""
    found = results.read("networks")
    if found is None:
        return None
    words = []
    for one in found["measured"]:
        ms = {name: statistics.median(times) for name, times in one["ms"].items()}
        words.append(f"{one['network']} {ms['softmax'] / ms['ours']:.2f} ({ms['SDPA'] / ms['ours']:.2f})")
    return f"times PyTorch's operations (times its scaled_dot_product_attention): {', '.join(words)}"


AMPERE, BOTH = "RTX A6000", "V100, RTX A6000"
EXPERIMENTS = (
    ("E1", "GEMM, Figure 9", "equal to cuBLAS", BOTH, e1, "products", "tune_grid.py, tune_hopper.py"),
    ("E2", "GEMM + bias, + ReLU, + both, Figure 10", "equal to cuBLASLt", BOTH, e2, "epilogue", "epilogue.py"),
    ("E3", "MLP of up to 20 layers, N = K = 128, Figure 11", "up to 2.39 times a chain of cuBLASLt", BOTH, e3, "mlp", "mlp.py"),
    ("E4", "LSTM cell with ReLU, Figure 12", "1.75 (V100), 1.82 (A6000) times five kernels", BOTH, e4, "lstm", "lstm.py"),
    ("E5", "LayerNorm, Figure 13", "equal to the best of PyTorch eager, JIT, fused, and Apex", BOTH, e5, "layernorm", "layernorm.py"),
    ("E6", "attention: 16 heads, batch 32, d 64, length 384, Figure 14", "a little faster than MLPerf's kernels; the unfused chain is only in the plot", BOTH, e6, "bert", "bert_attention.py"),
    ("E7", "five networks with our attention, Figure 15", "up to 1.59 times PyTorch", AMPERE, e7, "networks", "networks.py"),
    ("", "attention of long sequences, `mma.sync` only", "", "", long_attention, "attention", "attention.py"),
    ("", "RMSNorm", "", "", lambda results: others(results, "rmsnorm"), "rmsnorm-softmax", "layernorm.py --kernels rmsnorm,softmax"),
    ("", "softmax of rows", "", "", lambda results: others(results, "softmax"), "rmsnorm-softmax", "layernorm.py --kernels rmsnorm,softmax"),
)  # fmt: skip
"""The paper's number, experiment, its figure and GPU; who reads ours, from which file, made by which script."""


# ---------------------------------------------------------------------------------------------- the plot


def by_problem(results):
    """`(title, {baseline: {problem: its time by our best}})` of what is there."""
    for title, name, ours, peers, label in PLOTS:
        found = results.read(name)
        measured = [] if found is None else found["measured"]
        rows = (
            [(size, one["times"]) for size, one in measured.items()]
            if isinstance(measured, dict)
            else [(label(one), one["us"]) for one in measured]
        )
        series = {}
        for problem, us in rows:
            best = min(filter(None, (least(us, start) for start in ours)), default=None)
            for start, words in peers.items():
                if best and least(us, start):
                    series.setdefault(words, {})[problem] = least(us, start) / best
        if series:
            yield title, series


PLOTS = (
    ("E2: GEMM + bias + ReLU", "epilogue", ("bias + ReLU",), {"_addmm_activation": "cuBLASLt", "cuBLASLt, best of 8": "cuBLASLt, best of 8"}, None),
    ("E3: MLP", "mlp", ("shared", "registers", "wgmma"), {"cuBLASLt": "a chain of cuBLASLt", "Triton": "Triton", "compile": "torch.compile"}, lambda one: f"{one['rows']} rows, {one['layers']}"),
    ("E4: LSTM", "lstm", ("ours", "wgmma"), {"five": "five kernels", "two": "two of cuBLASLt", "Triton": "Triton, mma.sync", "by TMA": "Triton", "compile": "torch.compile"}, lambda one: f"{one['size']}^3"),
    ("E5: LayerNorm", "layernorm", ("ours",), {"torch": "PyTorch", "compile": "torch.compile", "triton": "Triton", "neg": "a copy"}, lambda one: f"{one['rows']}x{one['hidden']}"),
)  # fmt: skip
"""A title, the file, how ours are called and the baselines, and what a problem is called."""


def plot(results, path):
    """Bars for each experiment, one below the other."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = list(by_problem(results))
    bert = results.read("bert")
    if bert is not None:
        ours = bert["us"][bert.get("best by wgmma") or bert["best"]]
        names = ("chain", "chain, torch.softmax", "FA2", "cuDNN")
        shown.append(
            ("E6: attention of BERT", {name: {"16 heads, batch 32, 384": bert["us"][name] / ours} for name in names if name in bert["us"]})
        )
    figure, axes = pyplot.subplots(len(shown), 1, figsize=(8, 2.3 * len(shown)), squeeze=False)
    for place, (title, series) in zip(axes[:, 0], shown, strict=True):
        problems = list(dict.fromkeys(problem for one in series.values() for problem in one))
        width = 0.8 / len(series)
        for number, (words, ratios) in enumerate(series.items()):
            heights = [ratios.get(problem, 0) for problem in problems]
            place.bar([at + number * width for at in range(len(problems))], heights, width, label=words, color=COLOURS[number])
        place.axhline(1, color="#555555", linewidth=1)
        place.set_xticks([at + 0.4 - width / 2 for at in range(len(problems))], problems, fontsize=6)
        place.set_title(f"{title}: a baseline's time by ours", fontsize=8)
        place.legend(fontsize=6)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


COLOURS = ("#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00")


def page(results):
    """The page's text."""
    lines = [f"| {' | '.join(HEADS)} |", "|" + "---|" * len(HEADS)]
    for number, what, paper, gpu, read, name, script in EXPERIMENTS:
        ours = read(results)
        row = (number, what, paper or "none", gpu, ours or MISSING, results.place(name) if ours else "", f"`perf/{script}`")
        lines.append(f"| {' | '.join(row)} |")
    return TITLE + "\n".join(lines) + "\n" + NOTES


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    parser.add_argument("--products", type=Path, default=PRODUCTS)
    parser.add_argument("--plot", action="store_true", help="graphene.svg, too")
    options = parser.parse_args()
    results = Results(options.folder, options.products)
    text = page(results)
    if options.plot:
        plot(results, options.folder / "graphene.svg")
    (options.folder / "graphene.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
