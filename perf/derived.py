"""Compare derived strategies with those of the library, written by hand, on a GPU.

    python perf/derived.py FOLDER [--only softmax,dual] [--first 5] [--more 3] [--rounds 5]

For each definition: the library's strategies (its record or default values, and every form with recommended values), and the first derived
candidates, best prediction first. All results are compared with a reference in float64 before they are timed. CUDA graphs, bursts, operand
sets that rotate through L2, all contenders of a definition in one run. Processes derive, compile and verify all kernels concurrently, and then
measure one at a time. Writes `derived.json` and `derived.txt`. `--more` measures further candidates, which do not count as the best of the
first.
"""

import argparse
import functools
import importlib
import inspect
import json
import math
import time
from pathlib import Path

from gpu_turns import headline, run_all
from tabulate import tabulate

from fireiron import *
from fireiron.derive import schedule
from fireiron.language.library import default_strategy, defaults, find
from fireiron.measure import data, timing

TARGET = "sm_90a"

ROWS = {"M": 8192, "N": 4096}
"""Rows of 4096 elements, 64 MB in float16."""

CASES = {
    "hopper_attention:causal": ("hopper_attention:causal", {"M": 4096, "N": 4096, "D": 128, "heads": 16, "batch": 1}),
    "hopper_attention": ("hopper_attention", {"M": 4096, "N": 4096, "D": 128, "heads": 16, "batch": 1}),
    "hopper_attention:64": ("hopper_attention", {"M": 4096, "N": 4096, "D": 64, "heads": 32, "batch": 1}),
    "w8a16": ("w8a16", {}),
    "w4a16": ("w4a16", {}),
    "hopper:8192": ("hopper", {"M": 8192, "N": 8192, "K": 8192}),
    "hopper:4096": ("hopper", {}),
    "dual": ("dual", {}),
    "gated": ("gated", {}),
    "lstm": ("lstm", {}),
    "w8a8": ("w8a8", {}),
    "experts": ("experts", {"M": 4096, "N": 4096, "K": 1024}),
    "gemm_row_sum": ("gemm_row_sum", {}),
    "grouped": ("grouped", {}),
    "gemm_layernorm": ("gemm_layernorm", {}),
    "mlp": ("mlp", {}),
    "sgemm": ("sgemm", {"M": 2048, "N": 2048, "K": 2048}),
    "gemm_tt": ("gemm_tt", {"M": 2048, "N": 2048, "K": 2048}),
    "gemm_nt:1000": ("gemm_nt", {"M": 1000, "N": 1000, "K": 1000}),
    "gemm_tt:float64": ("gemm_tt", {"M": 1024, "N": 1024, "K": 1024, "dtype": float64}),
    "gemm_tt:int32": ("gemm_tt", {"M": 1024, "N": 1024, "K": 1024, "dtype": int32}),
    "hopper:512": ("hopper", {"M": 512, "N": 512, "K": 512}),
    "hopper:ragged": ("hopper", {"M": 3000, "N": 2056, "K": 1544}),
    "hopper:few": ("hopper", {"M": 64, "N": 4096, "K": 4096}),
    "hopper:16": ("hopper", {"M": 16, "N": 4096, "K": 4096}),
    "hopper_batched": ("hopper_batched", {"M": 512, "N": 512, "K": 512}),
    "softmax_online": ("softmax_online", {"M": 264, "N": 65536}),
    "cross_entropy": ("cross_entropy", {"M": 4096, "N": 32000}),
    "cross_entropy_gradient": ("cross_entropy_gradient", {"M": 4096, "N": 32000}),
    "rmsnorm_weight_gradient": ("rmsnorm_weight_gradient", ROWS),
    "layernorm_weight_gradient": ("layernorm_weight_gradient", ROWS),
    "layernorm_input_gradient": ("layernorm_input_gradient", ROWS),
    "rmsnorm_input_gradient": ("rmsnorm_input_gradient", ROWS),
    "softmax": ("softmax", ROWS),
    "softmax:1024": ("softmax", {"M": 4096, "N": 1024}),
    "layernorm": ("layernorm", ROWS),
    "rmsnorm": ("rmsnorm", ROWS),
    "rmsnorm_residual": ("rmsnorm_residual", ROWS),
    "softmax_gradient": ("softmax_gradient", ROWS),
    "swiglu": ("swiglu", ROWS),
    "swiglu_gradient": ("swiglu_gradient", ROWS),
    "dropout": ("dropout", ROWS),
    "add_parts": ("add_parts", {"M": 4096, "N": 4096, "P": 4}),
    "transpose": ("transpose", {"M": 4096, "N": 4096}),
    "experts_rows:activated": ("experts_rows:activated", ROWS),
    "rope": ("rope", {}),
    "channels_last": ("channels_last", {"batch": 32, "size": 56, "channels": 256}),
    "filter_rows": ("filter_rows", {"batch": 32, "size": 224, "channels": 3}),
    "depthwise": ("depthwise", {"batch": 32, "size": 56, "channels": 128}),
    "convolution": ("convolution", {"batch": 32, "size": 56, "channels": 64, "outputs": 64}),
}
"""The form of the library and the arguments of its problem (default: its own sizes), by the name of the case; slow ones first."""


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
    for name, values in [pair for pair in defaults(spec, TARGET) if pair[0] != "naive"][:3]:
        by_hand[name] = lambda name=name, values=values: default_strategy(name, values, spec)(spec)
    by_hand.setdefault(form, lambda: entry.strategy.with_(**_values(entry, spec))(spec))
    if form == "hopper_attention:causal":
        by_hand["causal_dynamic"] = lambda: module.causal_dynamic.with_(**module.causal_dynamic_values(spec))(spec)
    return spec, by_hand


def _values(entry, spec):
    from fireiron.language.library import recommended_values

    return recommended_values(entry, spec, TARGET)


def chosen_of(answer, count, spread):
    """Return the first candidates of an answer, and others at equal distances in the ranking."""
    first = list(answer.finalists(count))
    others = [candidate for candidate in answer.ranking if candidate not in first]
    return first + [others[place * len(others) // spread] for place in range(min(spread, len(others)))]


def prepared(name, count, attempts, spread=0):
    """Derive and compile the candidates of a case. Return the spec, (label, kernel, predicted us) of each, and notes."""
    form, sizes = CASES[name]
    start = time.perf_counter()
    spec, by_hand = problem(form, sizes)
    candidates, notes = [], []
    try:
        record = best_strategy(spec, TARGET)
        by_hand["record"] = lambda: record(spec) if record.spec is None else record
    except Exception as error:
        notes.append(f"record: {headline(error)}")
    for label, make in by_hand.items():
        try:
            candidates.append((f"hand {label}", make().compile(TARGET).ready(), None))
        except Exception as error:
            notes.append(f"{label}: {headline(error)}")
    begin = time.perf_counter()
    answer = schedule(spec, TARGET, candidates=attempts)
    seconds = time.perf_counter() - begin
    for number, candidate in enumerate(chosen_of(answer, count, spread)):
        try:
            kernel = candidate.strategy(spec).compile(TARGET).ready()
            candidates.append((f"derived {number} {candidate}", kernel, candidate.us))
        except Exception as error:
            notes.append(f"derived {number} {str(candidate)[:70]}: {headline(error)}")
    return spec, candidates, notes, {"derive_s": seconds, "examined": answer.examined, "prepare_s": time.perf_counter() - start}


def prepare(task, arguments):
    """Return the result of a case so far, as plain values, and the launches of its right kernels; None instead of them if they are not timed."""
    spec, candidates, notes, result = prepared(task[0], arguments.first + arguments.more, arguments.candidates, arguments.spread)
    result |= {"notes": notes, "predicted": {label: us for label, _, us in candidates}, "us": {}, "wrong": {}}
    if arguments.dry:
        return result, None
    arrays, contenders = data.Data.of(spec), {}
    right = None
    for label, kernel, _ in candidates:
        try:
            calls = arrays.calls(kernel)
            if arguments.quick and (right is not None or label.startswith("hand")):
                right = compared(arrays, calls[0], right)
            else:
                arrays.verify(calls[0], arrays.tolerance_for(kernel))
            contenders[label] = calls
        except Exception as error:
            result["wrong"][label] = headline(error)
    return result, contenders or None


LIMITS = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 1e-4, "float64": 1e-12}
"""Relative difference of the results of two kernels above which one is wrong, by element type; integers must be equal."""


def compared(arrays, call, right):
    """Compare the results of a launch with those of the first one, and return these. Raises: `ValueError` if they differ."""
    import cupy

    arrays.reset()
    call()
    results = {name: arrays.sets[0][name].astype("float64") for name in arrays.outputs}
    if right is None:
        return results
    for name, result in results.items():
        limit = LIMITS.get(str(arrays.spec.operands[name].dtype), 0.0)
        error = float(cupy.linalg.norm((result - right[name]).ravel()) / cupy.linalg.norm(right[name].ravel()))
        if not error <= limit:
            raise ValueError(f"{name}: a relative difference of {error:.2g} from the first kernel")
    return right


def measure(task, contenders, arguments):
    """Time the kernels of a case."""
    times = timing.measure(contenders, rounds=arguments.rounds, pause=0.01, seconds=0.3, burst=10_000.0)
    return {"us": {label: one.us for label, one in times.items()}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only")
    parser.add_argument("--first", type=int, default=5)
    parser.add_argument("--more", type=int, default=0, help="number of further candidates")
    parser.add_argument(
        "--spread", type=int, default=0, help="number of candidates at equal distances in the ranking, for perf/derive_gate.py"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--candidates", type=int, default=48)
    parser.add_argument("--processes", type=int, default=14)
    parser.add_argument("--seconds", type=float, default=1e6)
    parser.add_argument("--quick", action="store_true", help="compare with the first kernel of the library instead of float64")
    parser.add_argument("--dry", action="store_true", help="derive and compile only")
    arguments = parser.parse_args()
    tasks = [(name,) for name in CASES if not arguments.only or any(one in name for one in arguments.only.split(","))]
    run_all(tasks, prepare, measure, functools.partial(write, arguments=arguments), arguments)


def _row(name, result, first):
    derived = [(label, us) for label, us in result["us"].items() if label.startswith("derived")]
    counted = [(label, us) for label, us in derived if int(label.split()[1]) < first]
    hand = min((us for label, us in result["us"].items() if label.startswith("hand")), default=math.nan)
    label, us = counted[0] if counted else ("", math.nan)
    best = min(counted, key=lambda pair: pair[1])[0] if counted else ""
    least = min((us for _, us in counted), default=math.nan)
    any_ = min((us for _, us in derived), default=math.nan)
    predicted = (result["predicted"].get(label) or math.nan) / us
    ratios = [hand / us, hand / least, hand / any_]
    return [name, hand, us, least, *ratios, predicted, len(result["wrong"]), result["derive_s"], " ".join(best.split()[2:3])]


def write(folder, results, arguments):
    """Write the results; return the table, the worst ratio first."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"environment": timing.environment() if not arguments.dry else {}, "results": results}
    (folder / "derived.json").write_text(json.dumps(content, indent=1, default=str))
    heads = ["case", "hand us", "first", "best", "hand/first", "hand/best", "hand/any", "pred/meas", "wrong", "derive s", "skeleton"]
    complete = {name: result for name, result in results.items() if "us" in result}
    rows = sorted((_row(name, result, arguments.first) for name, result in complete.items()), key=lambda row: (row[5] == row[5], row[5]))
    ratios = [[row[column] for row in rows if row[column] == row[column]] for column in (4, 5, 6)]
    means = [math.exp(sum(map(math.log, ratio)) / len(ratio)) if ratio else math.nan for ratio in ratios]
    text = tabulate(rows, headers=heads, floatfmt=".3g")
    text += f"\n{len(ratios[1])} measured; geometric means: first {means[0]:.3f}, best {means[1]:.3f}, any {means[2]:.3f}\n"
    (folder / "derived.txt").write_text(text)
    return text


if __name__ == "__main__":
    main()
