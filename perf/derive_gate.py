"""Judge the cost model by measured candidates: the results of `perf/derived.py`, and of blind draws of `perf/misaligned_choice.py`.

    python perf/derive_gate.py RESULTS/derived.json ... [--again]
    python perf/derive_gate.py CHOICE/blind.json ... [--every 2]

For each set of problems: the median of predicted / measured, the mean over problems of Spearman's rank correlation between predictions and
measurements, the share of the pairs of candidates whose times differ by more than `RESOLUTION` that are predicted in the right order, and by
how much the best prediction is slower than the best measurement, in the mean and at worst. `--again` predicts all candidates with the
current model, from their names; without it, the predictions of the measurement are judged. It needs no GPU, and takes minutes.
"""

import argparse
import itertools
import json
import re
import statistics
from pathlib import Path

from tabulate import tabulate

SETS = {
    "attention": ("hopper_attention", "hopper_attention:64", "hopper_attention:causal", "mlp"),
    "products (wgmma)": ("hopper:8192", "hopper:4096", "hopper:512", "hopper:ragged", "hopper:few", "hopper:16", "hopper_batched", "dual", "gated",
        "lstm", "gemm_row_sum", "w8a16", "w4a16", "w8a8", "experts", "grouped", "convolution"),
    "products (lanes)": ("sgemm", "gemm_tt", "gemm_nt:1000", "gemm_tt:int32", "gemm_tt:float64"),
    "rows": ("softmax", "softmax:1024", "softmax_online", "softmax_gradient", "layernorm", "layernorm_input_gradient", "rmsnorm", "rmsnorm_residual",
        "rmsnorm_input_gradient", "cross_entropy", "cross_entropy_gradient"),
    "elements and columns": ("transpose", "depthwise", "channels_last", "swiglu", "rope", "add_parts", "dropout", "filter_rows",
        "rmsnorm_weight_gradient", "layernorm_weight_gradient", "experts_rows:activated", "swiglu_gradient"),
}  # fmt: skip
"""Problems by set."""

LEAST = 4
"""Candidates of a problem for a rank correlation."""


RESOLUTION = 0.05
"""Relative difference of two times below which their order is no evidence: times of a kernel differ by this between runs."""


def ranks(values):
    """Return the rank of each value; equal values share their mean rank."""
    order = sorted(values)
    return [order.index(value) + (order.count(value) - 1) / 2 for value in values]


def spearman(first, second):
    """Return the rank correlation of two lists; 0 if one is constant."""
    left, right = ranks(first), ranks(second)
    return statistics.correlation(left, right) if len(set(left)) > 1 and len(set(right)) > 1 else 0.0


def points(path, again, every=1):
    """Return the predicted and measured microseconds of the candidates by problem; of drawn products, each `every`-th problem."""
    content = json.loads(Path(path).read_text())
    if "measured" in content:
        return {f"choice:{'x'.join(map(str, entry['shape']))}": drawn(entry) for entry in content["measured"][::every]}
    results, pairs = content["results"], {}
    for name, result in results.items():
        labels = [label for label in result["us"] if result["predicted"].get(label)]
        predicted = predictions(name, labels) if again else result["predicted"]
        pairs[name] = [(predicted[label], result["us"][label]) for label in labels if label in predicted]
    return pairs


def drawn(entry):
    """Return the predicted and measured microseconds of the candidates of a drawn product (`perf/misaligned_choice.py`), without parts of K."""
    from fireiron import GL, Kernel, MatMul, RowMajor, float16
    from fireiron.cost import predict
    from fireiron.errors import FireironError
    from fireiron.language.library import default_strategy

    M, N, K = entry["shape"]
    spec = MatMul(M, N, K, dtype=float16, A=RowMajor, B=RowMajor, C=RowMajor)(GL, GL, GL)(Kernel)
    pairs = []
    for label, (name, values, parts) in entry["candidates"].items():
        us = entry["first"].get(label)
        if parts == 1 and us:
            try:
                pairs.append((predict(default_strategy(name, values, spec)(spec).program("sm_90a")).us, us))
            except FireironError as error:
                print(f"{M}x{N}x{K}: {label}: {str(error).splitlines()[0]}", flush=True)
    return pairs


def predictions(name, labels):
    """Return the predictions of the current model by label; the rules of the search may not make a candidate any more."""
    from derived import CASES, TARGET, problem

    from fireiron.cost import predict
    from fireiron.derive.facts import Facts
    from fireiron.derive.rules import RULES
    from fireiron.errors import FireironError
    from fireiron.values.machine import as_architecture

    facts = Facts(problem(*CASES[name])[0], as_architecture(TARGET))
    rules = {rule.name: rule for rule in RULES}
    predictions = {}
    for label in labels:
        skeleton, *words = re.sub(r"^derived \d+ |: [^:]* us$", "", label).split()
        try:
            sketch = rules[skeleton].sketch(facts)
            for word in words:
                sketch = rules[word[1:]].amend(facts, sketch) if word.startswith("+") else sketch
            values = {key: int(value) for key, _, value in (word.partition("=") for word in words if "=" in word)}
            program = sketch.strategy(values)(facts.spec).program(facts.target)
            predictions[label] = predict(program, facts.gpu, facts.assumed).us
        except (FireironError, KeyError) as error:
            print(f"{name}: {label}: {str(error).splitlines()[0]}", flush=True)
    return predictions


def in_order(pairs):
    """Return the number of pairs of candidates in the right order, and of those that differ by more than the resolution."""
    apart = [(one, two) for one, two in itertools.combinations(pairs, 2) if abs(one[1] / two[1] - 1) > RESOLUTION]
    return sum((one[0] - two[0]) * (one[1] - two[1]) > 0 for one, two in apart), len(apart)


def judged(by_problem):
    """Return the row of a set of problems."""
    every = [pair for pairs in by_problem.values() for pair in pairs]
    ratios = [predicted / us for predicted, us in every]
    orders = {name: spearman(*zip(*pairs, strict=True)) for name, pairs in by_problem.items() if len(pairs) >= LEAST}
    slower = {name: min(pairs)[1] / min(us for _, us in pairs) - 1 for name, pairs in by_problem.items() if pairs}
    worst = max(slower, key=slower.get)
    right, apart = map(sum, zip(*map(in_order, by_problem.values()), strict=True))
    return [len(by_problem), len(every), statistics.median(ratios), statistics.fmean(orders.values()) if orders else None,
        f"{right} of {apart}", statistics.fmean(slower.values()), f"{slower[worst]:.1%} {worst}"]  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--again", action="store_true", help="predict the candidates with the current model")
    parser.add_argument("--every", type=int, default=1, help="of drawn products, only each of this number")
    parser.add_argument("--points", action="store_true", help="print all candidates")
    arguments = parser.parse_args()
    measured = {}
    for path in arguments.results:
        for name, pairs in points(path, arguments.again, arguments.every).items():
            measured.setdefault(name, []).extend(pairs)
    sets = {**SETS, "drawn products": tuple(name for name in measured if name.startswith("choice:"))}
    rows = [[name, *judged(own)] for name, names in sets.items() if (own := {one: measured[one] for one in names if measured.get(one)})]
    heads = ["set", "problems", "points", "predicted / measured", "Spearman", "pairs in order", "best prediction slower", "at worst"]
    print(tabulate(rows, headers=heads, floatfmt=(".0f", ".0f", ".0f", ".2f", ".2f", "", ".1%", "")))
    rows = [[name, len(pairs), statistics.median(p / us for p, us in pairs), spearman(*zip(*pairs, strict=True)),
        "{} of {}".format(*in_order(pairs)), max(us for _, us in pairs) / min(us for _, us in pairs) - 1]
        for name, pairs in measured.items() if len(pairs) >= LEAST]  # fmt: skip
    heads = ["problem", "points", "predicted / measured", "Spearman", "pairs in order", "slowest"]
    print(tabulate(sorted(rows, key=lambda row: row[3]), headers=heads, floatfmt=("", "", ".2f", ".2f", "", "+.0%")))
    for name, pairs in measured.items() if arguments.points else ():
        print(name, *(f"{predicted:.4g}/{us:.4g}" for predicted, us in pairs))


if __name__ == "__main__":
    main()
