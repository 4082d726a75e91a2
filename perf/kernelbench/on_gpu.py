"""Derived strategies for problems of KernelBench next to PyTorch, eager and compiled, on a GPU.

    python perf/kernelbench/on_gpu.py FOLDER [--only 1/1,2/9] [--types float16,float32] [--processes 14] [--seconds 200]

The problems, extents and functions are those of `suite.py`. Each kernel of a problem has a derived strategy: the first one, or the fastest
of the first ones. The result is compared with PyTorch in float64 before it is timed. Bursts of CUDA graphs, all contenders of a problem
alternate; arrays are not rotated, and most exceed L2. Writes `kernelbench.json` and `kernelbench.txt`.
"""

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path

PERF = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(PERF), str(PERF.parent)]
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import torch  # noqa: E402
from gpu_turns import headline, run_all  # noqa: E402
from tabulate import tabulate  # noqa: E402

from fireiron import *  # noqa: E402
from fireiron.derive import schedule  # noqa: E402
from kernelbench.problem import dims_of, merged_shape  # noqa: E402
from kernelbench.suite import problems  # noqa: E402

TARGET = "sm_90a"
TYPES = {"float16": float16, "float32": float32}
SLOWEST = 100_000.0
"""Predicted microseconds of a kernel above which it is not run."""


SCALAR = 3.140625
"""The value of a number that a problem takes, exact in float16."""


def derived(problem, dtype, first, attempts):
    """Return the candidates of each kernel of a problem: (label, kernel, predicted us)."""
    stages = []
    for start in problem.definitions:
        known = start.fused_definition
        spec = start(dtype=TYPES[dtype], **{dim: problem.sizes[dim] for dim in (*known.order, *known.free_dims)})
        candidates, refused = [], ""
        for candidate in schedule(spec, TARGET, candidates=attempts).finalists(first):
            if candidate.us > SLOWEST:
                refused = refused or f"predicted {candidate.us:.3g} us: {candidate.skeleton}"
                continue
            try:
                candidates.append((str(candidate), candidate.strategy(spec).compile(TARGET).ready(), candidate.us))
            except Exception as error:
                refused = refused or headline(error)
        if not candidates:
            raise RuntimeError(refused or "no candidate")
        stages.append(candidates)
    return stages


def drawn(problem, dtype):
    """Return the inputs on the GPU, in the shapes of the definitions, and in those of the problem."""
    generator = torch.Generator("cuda").manual_seed(1)
    declared, inputs = dims_of(problem.arrays), {}
    for name in problem.inputs:
        shape = tuple(problem.sizes[dim] for dim in problem.dims[name].split())
        if not shape:
            inputs[name] = SCALAR
        elif problem.types.get(name) is not None:
            inputs[name] = torch.randint(0, max(problem.sizes.values()) if name != "T" else problem.sizes["n"], shape, device="cuda")
        elif problem.name in ("1/98",):
            inputs[name] = torch.softmax(torch.randn(shape, device="cuda", generator=generator), -1).to(getattr(torch, dtype))
        else:
            small = 0.05 if name in ("W", "B") and len(shape) > 1 else 1
            inputs[name] = (torch.randn(shape, device="cuda", generator=generator) * small).to(getattr(torch, dtype))
    given = [
        inputs[name] if inputs[name] is SCALAR else inputs[name].reshape(merged_shape(declared[name], problem.sizes))
        for name in problem.inputs
    ]
    return inputs, given


def launches(stages, problem, dtype, inputs):
    """Return launches of each kernel's candidates on arrays that the kernels share, and the results."""
    arrays, calls = dict(inputs), []
    for candidates in stages:
        spec = candidates[0][1].program.spec
        for name in spec.outputs:
            shape = [int(spec.size(dim).evaluate({})) for dim in spec.uses[name]]
            out = spec.operands[name].dtype
            arrays[name] = torch.zeros(shape, device="cuda", dtype=getattr(torch, str(out)))
        outs = tuple(arrays[name] for name in spec.outputs)
        calls.append(
            [kernel.prepare(*(arrays[name] for name in spec.inputs), out=outs if len(outs) > 1 else outs[0]) for _, kernel, _ in candidates]
        )
    return calls, [arrays[name] for name in problem.outputs]


def apart(function):
    """Return a function with separate code, for which PyTorch has no other compilation."""
    scope = {"function": function}
    exec("def call(*given): return function(*given)", scope)
    return scope["call"]


def error_of(results, expected):
    """Return the largest relative error in the Frobenius norm; infinity if it is NaN."""
    worst = 0.0
    for result, right in zip(results, expected, strict=True):
        wide = result.double().reshape(right.shape)
        error = float(torch.linalg.vector_norm(wide - right) / torch.linalg.vector_norm(right).clamp_min(1e-30))
        worst = max(worst, math.inf if math.isnan(error) else error)
    return worst


def prepare(task, arguments):
    """Return the result of a problem in a type so far, as plain values, and its derived kernels; None instead of them if they are not timed."""
    name, dtype = task
    start = time.perf_counter()
    stages = derived(problems()[name][0], dtype, arguments.first, arguments.candidates)
    result = {
        "derive_s": time.perf_counter() - start,
        "predicted": sum(stage[0][2] for stage in stages),
        "kernels": [stage[0][0] for stage in stages],
    }
    if arguments.dry:
        return result, None
    problem, function = problems()[name]
    _, given = drawn(problem, dtype)
    compiled = torch.compile(apart(function), dynamic=False)
    with torch.no_grad():
        compiled(*given)
    torch.cuda.synchronize()
    del given
    torch.cuda.empty_cache()
    return result, (stages, compiled)


def measure(task, state, arguments):
    """Return errors and times of a problem in a type: derived kernels, eager, compiled."""
    from fireiron.measure import timing

    name, dtype = task
    problem, function = problems()[name]
    stages, compiled = state
    inputs, given = drawn(problem, dtype)
    calls, results = launches(stages, problem, dtype, inputs)
    with torch.no_grad():
        wide = [x.double() if torch.is_tensor(x) and x.is_floating_point() else x for x in given]
        expected = function(*wide)
        expected = [one.clone() for one in (expected if isinstance(expected, tuple) else (expected,))]
        del wide
        torch.cuda.empty_cache()
        for stage in calls:
            stage[0]()
        torch.cuda.synchronize()
        error = error_of(results, expected)
        limits = {"pause": 0.005, "seconds": 0.2, "l2": "hot", "burst": 10_000.0}
        own = {}
        for number, stage in enumerate(calls if len(calls) > 1 else ()):
            times = timing.measure({str(i): [call] for i, call in enumerate(stage)}, rounds=3, **limits)
            own[number] = {label: one.us for label, one in times.items()}
        contenders = {"eager": [lambda: function(*given)], "compiled": [lambda: compiled(*given)]}
        if own:
            best = [stage[int(min(own[number], key=own[number].get))] for number, stage in enumerate(calls)]
            contenders |= {"first": [lambda: [stage[0]() for stage in calls]], "best": [lambda: [call() for call in best]]}
        else:
            contenders |= {str(i): [call] for i, call in enumerate(calls[0])}
        times = timing.measure(contenders, rounds=arguments.rounds, **limits)
        us = {label: one.us for label, one in times.items()}
        if not own:
            own[0] = {label: us.pop(label) for label in list(us) if label.isdigit()}
            least = min(own[0], key=own[0].get)
            us, best = us | {"first": own[0]["0"], "best": own[0][least]}, [calls[0][int(least)]]
        for array in results:
            array.zero_()
        for call in best:
            call()
        torch.cuda.synchronize()
        best_error = error_of(results, expected)
    graphs = {label: one.graph for label, one in times.items()}
    return {"us": us, "error": max(error, best_error), "graphs": graphs, "own": own}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only")
    parser.add_argument("--types", default="float16,float32")
    parser.add_argument("--first", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--candidates", type=int, default=24)
    parser.add_argument("--processes", type=int, default=14)
    parser.add_argument("--seconds", type=float, default=1e6)
    parser.add_argument("--dry", action="store_true", help="derive and compile only")
    arguments = parser.parse_args()
    names = [name for name in problems() if not arguments.only or name in arguments.only.split(",")]
    tasks = [(name, dtype) for name in names for dtype in arguments.types.split(",")]
    run_all(tasks, prepare, measure, write, arguments)


def write(folder, results):
    """Write the results; return the table, the worst ratio to compiled first, and the shares."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kernelbench.json").write_text(json.dumps({"torch": torch.__version__, "results": results}, indent=1, default=str))
    rows = []
    for name, result in results.items():
        if result.get("us"):
            us = result["us"]
            skeletons = "; ".join(text.split()[0] for text in result["kernels"])
            rows.append([name, us["first"], us["best"], us["eager"], us["compiled"], us["eager"] / us["best"], us["compiled"] / us["best"],
                result["predicted"] / us["first"], result["error"], skeletons])  # fmt: skip
    rows.sort(key=lambda row: row[6])
    heads = ["problem", "first us", "best us", "eager us", "compiled us", "eager/best", "compiled/best", "pred/meas", "error", "skeleton"]
    text = tabulate(rows, headers=heads, floatfmt=".3g") + "\n"
    for dtype in ("float16", "float32"):
        own = [row for row in rows if row[0].endswith(dtype)]
        if own:
            means = [math.exp(sum(math.log(row[column]) for row in own) / len(own)) for column in (5, 6)]
            shares = [sum(row[column] >= 1 for row in own) / len(own) for column in (5, 6)]
            text += f"{dtype}: {len(own)} measured; geometric means over eager {means[0]:.3f}, over compiled {means[1]:.3f}; "
            text += f"faster than eager {shares[0]:.0%}, than compiled {shares[1]:.0%}\n"
    (folder / "kernelbench.txt").write_text(text)
    return text


if __name__ == "__main__":
    main()
