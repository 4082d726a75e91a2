"""`torch.compile` with the backend of Fireiron next to Inductor and eager PyTorch, on a GPU.

    python perf/torch_backend.py FOLDER [--only softmax,mlp] [--types float16,float32] [--processes 8] [--seconds 140]

The functions are those of `kernelbench/suite.py`, and chains of a transformer. Each result is compared with PyTorch in float64 before it is
timed. Bursts of CUDA graphs, all contenders of a function alternate; arrays are not rotated through L2, and most exceed it. Processes compile
all functions concurrently, and then measure one at a time. A function of which the backend takes nothing has the kernels of Inductor and is
not timed. Writes `torch_backend.json` and `torch_backend.txt`.
"""

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path

PERF = Path(__file__).resolve().parent
sys.path[:0] = [str(PERF), str(PERF.parent)]
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from gpu_turns import run_all  # noqa: E402
from kernelbench.on_gpu import apart, drawn, error_of  # noqa: E402
from kernelbench.suite import problems  # noqa: E402
from tabulate import tabulate  # noqa: E402

import fireiron.torch_backend as torch_backend  # noqa: E402


def mlp(x, up, gate, down):
    """Return a gated layer of a transformer without its last product."""
    return F.silu(F.linear(x, gate)) * F.linear(x, up)


def block_norm(x, y, weight):
    """Return the sum of two branches, and its RMSNorm."""
    total = x + y
    return total, F.rms_norm(total, (total.shape[-1],), weight)


CHAINS = {
    "linear gelu 8192x4096x4096": (lambda x, w, b: F.gelu(F.linear(x, w, b)), ((8192, 4096), (4096, 4096), (4096,))),
    "linear relu2 4096x4096x4096": (lambda x, w: torch.relu(F.linear(x, w)) ** 2, ((4096, 4096), (4096, 4096))),
    "linear layernorm 16384x256x1024": (
        lambda x, w, b, g, c: F.layer_norm(F.linear(x, w, b), (256,), g, c), ((16384, 1024), (256, 1024), (256,), (256,), (256,))),
    "add rmsnorm 8192x4096": (block_norm, ((8192, 4096), (8192, 4096), (4096,))),
    "layernorm 8192x4096": (lambda x, g, b: F.layer_norm(x, (4096,), g, b), ((8192, 4096), (4096,), (4096,))),
    "softmax 8192x4096": (lambda x: torch.softmax(x, -1), ((8192, 4096),)),
    "log_softmax 4096x32000": (lambda x: torch.log_softmax(x, -1), ((4096, 32000),)),
    "swiglu 8192x8192": (lambda x, y: F.silu(x) * y, ((8192, 8192), (8192, 8192))),
    "group norm 32x512x1024": (lambda x, g, b: F.group_norm(x, 32, g, b), ((32, 512, 1024), (512,), (512,))),
    "transposed add 4096x8192": (lambda x, y: torch.relu(x.t() + y), ((8192, 4096), (4096, 8192))),
    "column sum 16384x4096": (lambda x: x.sum(0), ((16384, 4096),)),
    "mse 8192x8192": (lambda x, y: F.mse_loss(x.float(), y.float()), ((8192, 8192), (8192, 8192))),
}  # fmt: skip
"""Functions with the shapes of their tensors."""


def mlp_layer(x, up, a, down, b, weight, bias):
    """Return two linear layers with GELU between them, the sum with their operand, and its LayerNorm."""
    return F.layer_norm(x + F.linear(F.gelu(F.linear(x, up, a)), down, b), (x.shape[-1],), weight, bias)


TRAINING = {"training linear 4096x2048x8192": (mlp_layer, ((4096, 2048), (8192, 2048), (8192,), (2048, 8192), (2048,), (2048,), (2048,)))}
"""Functions whose result and gradients of all tensors are computed, for a random gradient of the result."""


def calling(name, function, given):
    """Return a call of a function without gradients, or, for one of `TRAINING`, with the gradients of all tensors."""
    if name not in TRAINING:

        def call():
            with torch.no_grad():
                return function(*given)

        return call
    leaves = [x.detach().requires_grad_() for x in given]
    gradient = torch.randn(given[0].shape, device="cuda", generator=torch.Generator("cuda").manual_seed(2)).to(given[0].dtype)

    def step():
        result = function(*leaves)
        return (result.detach(), *torch.autograd.grad(result, leaves, gradient))

    return step


def task_of(name, dtype):
    """Return a function and its arguments on the GPU."""
    if name in CHAINS or name in TRAINING:
        function, shapes = (CHAINS | TRAINING)[name]
        generator = torch.Generator("cuda").manual_seed(1)
        given = [torch.randn(shape, device="cuda", generator=generator).to(getattr(torch, dtype)) for shape in shapes]
        return function, [x * 0.05 if number > 0 and x.dim() == 2 and "linear" in name else x for number, x in enumerate(given)]
    problem, function = problems()[name]
    return function, drawn(problem, dtype)[1]


def prepare(task, arguments):
    """Compile a function of a type; return the report, and the compiled functions, or None if nothing is taken."""
    function, given = task_of(*task)
    start, before = time.perf_counter(), len(torch_backend.reports)
    options = {"candidates": arguments.candidates}
    own = torch.compile(apart(function), backend="fireiron", dynamic=False, options=options)
    calling(task[0], own, given)()
    seconds, reports = time.perf_counter() - start, list(torch_backend.reports)[before:]
    taken = [one for report in reports for one in report.taken]
    text = "\n".join(map(str, reports))
    result = {"compile_s": seconds, "report": text, "taken": len(taken), "predicted": sum(one.us for one in taken)}
    if not taken:
        return result, None
    compiled = torch.compile(apart(function), dynamic=False)
    calling(task[0], compiled, given)()
    torch.cuda.synchronize()
    del given
    torch.cuda.empty_cache()
    return result, (own, compiled)


def measure(task, state, arguments):
    """Return times and errors of a function, as plain values. Raises: `ValueError` for wrong results."""
    from fireiron.measure import timing

    own, compiled = state
    function, given = task_of(*task)
    calls = {label: calling(task[0], one, given) for label, one in (("fireiron", own), ("eager", function), ("compiled", compiled))}
    exact = calling(task[0], function, [x.double() if torch.is_tensor(x) and x.is_floating_point() else x for x in given])
    right, *results = [each(call()) for call in (exact, calls["fireiron"], calls["compiled"])]
    errors = [[error_of([one], [wide]) for one, wide in zip(result, right, strict=True)] for result in results]
    del exact, right, results
    torch.cuda.empty_cache()
    for ours, others in zip(*errors, strict=True):
        if not ours <= max(3 * others, WRONG[task[1]]):
            raise ValueError(f"wrong results: errors {errors[0]}, of Inductor {errors[1]}")
    times = timing.measure({label: [call] for label, call in calls.items()}, rounds=arguments.rounds, pause=0.01, seconds=0.2, l2="hot")
    graphs = {label: one.graph for label, one in times.items()}
    return {
        "error": max(errors[0]), "error_compiled": max(errors[1]), "errors": errors, "graphs": graphs,
        "us": {label: one.us for label, one in times.items()},
    }  # fmt: skip


WRONG = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-5}
"""Relative error above which a result is wrong, unless that of Inductor is at least a third of it."""


def each(results):
    """Return one or several results as a tuple."""
    return results if isinstance(results, tuple) else (results,)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only")
    parser.add_argument("--types", default="float16")
    parser.add_argument("--candidates", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=1e6)
    arguments = parser.parse_args()
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 1 << 12
    names = [
        name for name in (*CHAINS, *TRAINING, *problems()) if not arguments.only or any(one in name for one in arguments.only.split(","))
    ]
    tasks = [(name, dtype) for dtype in arguments.types.split(",") for name in names]
    run_all(tasks, prepare, measure, write, arguments)


def write(folder, results):
    """Write the results; return the table, the worst ratio to Inductor first, and the shares."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "torch_backend.json").write_text(json.dumps({"torch": torch.__version__, "results": results}, indent=1, default=str))
    rows = []
    for name, result in results.items():
        if result.get("us"):
            us = result["us"]
            own = us["fireiron"]
            skeletons = [line.split(": ")[2] for line in result["report"].splitlines() if line.startswith("  taken")]
            left = sum(line.startswith("  left") for line in result["report"].splitlines())
            rows.append([name, own, us["eager"], us["compiled"], us["eager"] / own, us["compiled"] / own, result["predicted"] / own,
                result["error"], result["error_compiled"], " ".join(skeletons), left])  # fmt: skip
    rows.sort(key=lambda row: row[5])
    heads = ["function", "us", "eager us", "inductor us", "eager/own", "inductor/own", "pred/meas", "error", "inductor's", "taken", "left"]
    text = tabulate(rows, headers=heads, floatfmt=".3g") + "\n"
    for dtype in ("float16", "float32"):
        own = [row for row in rows if row[0].endswith(dtype)]
        if own:
            means = [math.exp(sum(math.log(row[column]) for row in own) / len(own)) for column in (4, 5)]
            shares = [sum(row[column] >= 1 for row in own) / len(own) for column in (4, 5)]
            text += f"{dtype}: {len(own)} measured; geometric means over eager {means[0]:.3f}, over Inductor {means[1]:.3f}; "
            whole = sum(name.endswith(dtype) and "us" not in result and "refused" not in result for name, result in results.items())
            text += f"faster than eager {shares[0]:.0%}, than Inductor {shares[1]:.0%}; {whole} others are left to Inductor as a whole\n"
    (folder / "torch_backend.txt").write_text(text)
    return text


if __name__ == "__main__":
    main()
