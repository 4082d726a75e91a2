"""Compare derived strategies with those of the library, written by hand, on a GPU.

    python perf/derived.py FOLDER [--only softmax,dual] [--first 5] [--rounds 5]

For each definition: the library's strategies (its record or default values, and every form with recommended values), and the first derived
candidates, best prediction first. All results are compared with a reference in float64 before they are timed. CUDA graphs, bursts, operand
sets that rotate through L2, all contenders of a definition in one run. Candidates are derived and compiled by a pool of processes before.
Writes `derived.json` and `derived.txt`.
"""

import argparse
import concurrent.futures
import functools
import importlib
import inspect
import json
import math
import time
from pathlib import Path

from tabulate import tabulate

from fireiron import *
from fireiron.derive import schedule
from fireiron.language.library import default_strategy, defaults, find
from fireiron.language.strategy import Strategy
from fireiron.measure import data, timing

TARGET = "sm_90a"

CASES = {
    "hopper:4096": ("hopper", {}),
    "hopper:512": ("hopper", {"M": 512, "N": 512, "K": 512}),
    "hopper:8192": ("hopper", {"M": 8192, "N": 8192, "K": 8192}),
    "hopper:ragged": ("hopper", {"M": 3000, "N": 2056, "K": 1544}),
    "hopper:few": ("hopper", {"M": 64, "N": 4096, "K": 4096}),
    "hopper_batched": ("hopper_batched", {"M": 512, "N": 512, "K": 512}),
    "sgemm": ("sgemm", {"M": 2048, "N": 2048, "K": 2048}),
    "dual": ("dual", {}),
    "gated": ("gated", {}),
    "lstm": ("lstm", {}),
    "gemm_row_sum": ("gemm_row_sum", {}),
    "gemm_layernorm": ("gemm_layernorm", {}),
    "grouped": ("grouped", {}),
    "w8a8": ("w8a8", {}),
    "w8a16": ("w8a16", {}),
    "w4a16": ("w4a16", {}),
    "experts": ("experts", {"M": 4096, "N": 4096, "K": 1024}),
    "hopper_attention": ("hopper_attention", {"M": 4096, "N": 4096, "D": 128, "heads": 16, "batch": 1}),
    "hopper_attention:64": ("hopper_attention", {"M": 4096, "N": 4096, "D": 64, "heads": 32, "batch": 1}),
    "hopper_attention:causal": ("hopper_attention:causal", {"M": 4096, "N": 4096, "D": 128, "heads": 16, "batch": 1}),
    "softmax": ("softmax", {"M": 8192, "N": 4096}),
    "softmax:1024": ("softmax", {"M": 4096, "N": 1024}),
    "layernorm": ("layernorm", {"M": 8192, "N": 4096}),
    "rmsnorm": ("rmsnorm", {"M": 8192, "N": 4096}),
    "rmsnorm_residual": ("rmsnorm_residual", {"M": 8192, "N": 4096}),
    "softmax_gradient": ("softmax_gradient", {"M": 8192, "N": 4096}),
    "layernorm_input_gradient": ("layernorm_input_gradient", {"M": 8192, "N": 4096}),
    "rmsnorm_weight_gradient": ("rmsnorm_weight_gradient", {"M": 8192, "N": 4096}),
    "layernorm_weight_gradient": ("layernorm_weight_gradient", {"M": 8192, "N": 4096}),
    "softmax_online": ("softmax_online", {"M": 264, "N": 65536}),
    "cross_entropy": ("cross_entropy", {"M": 4096, "N": 32000}),
    "cross_entropy_gradient": ("cross_entropy_gradient", {"M": 4096, "N": 32000}),
    "dropout": ("dropout", {"M": 8192, "N": 4096}),
    "add_parts": ("add_parts", {"M": 4096, "N": 4096, "P": 4}),
    "transpose": ("transpose", {"M": 4096, "N": 4096}),
    "experts_rows:activated": ("experts_rows:activated", {"M": 8192, "N": 4096}),
    "rope": ("rope", {}),
    "mlp": ("mlp", {}),
}
"""The form of the library and the arguments of its problem (default: its own sizes), by the name of the case."""


def problem(form, sizes):
    """Return the spec of a case, and the library's strategies for it, bound, by name."""
    module = importlib.import_module(f"fireiron.strategies.{form.partition(':')[0]}")
    needed = [
        parameter.name
        for parameter in inspect.signature(module.spec).parameters.values()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    ]
    named = {**dict(zip(needed, module.SIZES, strict=False)), **sizes}
    if form == "hopper_attention:causal":
        named["fused"] = module.definition(causal=True)
    if form.startswith("experts_rows:"):
        named["form"] = form.partition(":")[2]
    entry = find(form)
    spec = module.spec(**named)
    by_hand = {}
    for name, values in defaults(spec, TARGET)[:3]:
        by_hand[name] = lambda name=name, values=values: default_strategy(name, values, spec)(spec)
    by_hand.setdefault(form, lambda: entry.strategy.with_(**_values(entry, spec))(spec))
    if form == "hopper_attention:causal":
        by_hand["causal_dynamic"] = lambda: module.causal_dynamic.with_(**module.causal_dynamic_values(spec))(spec)
    return spec, by_hand


def _values(entry, spec):
    from fireiron.language.library import recommended_values

    return recommended_values(entry, spec, TARGET)


def prepared(name, first, attempts):
    """Derive and compile the candidates of a case; return (name, JSON of the bound strategy, predicted us) of each, and notes."""
    form, sizes = CASES[name]
    start = time.perf_counter()
    spec, by_hand = problem(form, sizes)
    candidates, notes = [], []
    try:
        record = best_strategy(spec, TARGET)
        by_hand["record"] = lambda: record(spec) if record.spec is None else record
    except Exception as error:
        notes.append(f"record: {str(error).splitlines()[0][:80]}")
    answer = schedule(spec, TARGET, candidates=attempts)
    seconds = time.perf_counter() - start
    for label, make in by_hand.items():
        try:
            candidates.append((f"hand {label}", make().to_json(), None))
        except Exception as error:
            notes.append(f"{label}: {str(error).splitlines()[0][:80]}")
    for number, candidate in enumerate(answer.finalists(first)):
        candidates.append((f"derived {number} {candidate}", candidate.strategy(spec).to_json(), candidate.us))
    kept = []
    for label, text, us in candidates:
        try:
            Strategy.from_json(text).compile(TARGET)
            kept.append((label, text, us))
        except Exception as error:
            notes.append(f"{label[:70]}: {str(error).splitlines()[0][:80]}")
    return name, kept, notes, seconds, answer.examined


def measured(name, candidates, rounds):
    """Verify and time the candidates of a case."""
    kernels = {label: Strategy.from_json(text).compile(TARGET) for label, text, _ in candidates}
    spec = next(iter(kernels.values())).program.spec
    arrays = data.Data.of(spec)
    contenders, wrong = {}, {}
    for label, kernel in kernels.items():
        try:
            calls = arrays.calls(kernel)
            arrays.verify(calls[0], arrays.tolerance_for(kernel))
            contenders[label] = calls
        except Exception as error:
            wrong[label] = str(error).splitlines()[0][:120]
    times = timing.measure(contenders, rounds=rounds, pause=0.01, seconds=0.4)
    return {label: one.us for label, one in times.items()}, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only")
    parser.add_argument("--first", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--candidates", type=int, default=48)
    parser.add_argument("--processes", type=int, default=14)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--dry", action="store_true", help="derive and compile only")
    arguments = parser.parse_args()
    names = [name for name in CASES if not arguments.only or any(one in name for one in arguments.only.split(","))]
    begin, results, rows = time.perf_counter(), {}, []
    work = functools.partial(prepared, first=arguments.first, attempts=arguments.candidates)
    with concurrent.futures.ProcessPoolExecutor(arguments.processes) as pool:
        futures = {pool.submit(work, name): name for name in names}
        for future in concurrent.futures.as_completed(futures):
            try:
                name, candidates, notes, seconds, examined = future.result()
            except Exception as error:
                print(futures[future], "not prepared:", str(error).splitlines()[0][:150], flush=True)
                continue
            if arguments.dry or time.perf_counter() - begin > arguments.seconds:
                print(name, f"{seconds:.1f} s", len(candidates), notes[:4], flush=True)
                continue
            try:
                times, wrong = measured(name, candidates, arguments.rounds)
            except Exception as error:
                print(name, "not measured:", repr(error)[:200], flush=True)
                continue
            results[name] = {
                "us": times,
                "wrong": wrong,
                "notes": notes,
                "predicted": {label: us for label, _, us in candidates},
                "derive_s": seconds,
                "examined": examined,
            }
            rows.append(_row(name, results[name]))
            print(rows[-1], flush=True)
            write(arguments.folder, results, rows)
    if rows:
        print(write(arguments.folder, results, rows))


def _row(name, result):
    hand = {label: us for label, us in result["us"].items() if label.startswith("hand")}
    derived = {label: us for label, us in result["us"].items() if label.startswith("derived")}
    best_hand = min(hand.values(), default=math.nan)
    first = next(iter(derived.values()), math.nan)
    best = min(derived.values(), default=math.nan)
    predicted = next((result["predicted"][label] for label in derived), math.nan)
    return [name, best_hand, first, best, best_hand / first, best_hand / best, predicted / first, len(result["wrong"]), result["derive_s"]]


def write(folder, results, rows):
    """Write the results; return the table."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "derived.json").write_text(json.dumps({"environment": timing.environment(), "results": results}, indent=1, default=str))
    heads = ["case", "hand us", "first derived", "best of five", "hand/first", "hand/best", "predicted/measured", "wrong", "derive s"]
    ratios = [[row[column] for row in rows if row[column] == row[column]] for column in (4, 5)]
    means = [math.exp(sum(map(math.log, ratio)) / len(ratio)) if ratio else math.nan for ratio in ratios]
    text = tabulate(rows, headers=heads, floatfmt=".3g") + f"\ngeometric means of hand/first, hand/best: {means[0]:.3f}, {means[1]:.3f}\n"
    (folder / "derived.txt").write_text(text)
    return text


if __name__ == "__main__":
    main()
