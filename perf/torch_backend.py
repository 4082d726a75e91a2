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
from kernelbench.on_gpu import drawn, error_of  # noqa: E402
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


def task_of(name, dtype):
    """Return a function and its arguments on the GPU."""
    if name in CHAINS:
        function, shapes = CHAINS[name]
        generator = torch.Generator("cuda").manual_seed(1)
        given = [torch.randn(shape, device="cuda", generator=generator).to(getattr(torch, dtype)) for shape in shapes]
        return function, [
            x * 0.05 if len(shapes) > 1 and number == 1 and x.dim() == 2 and "linear" in name else x for number, x in enumerate(given)
        ]
    problem, function = problems()[name]
    return function, drawn(problem, dtype)[1]


def apart(function):
    """Return a function with separate code, for which PyTorch has no other compilation."""
    scope = {"function": function}
    exec("def call(*given): return function(*given)", scope)
    return scope["call"]


def prepare(task, arguments):
    """Compile a function of a type; return the report, and the compiled functions, or None if nothing is taken."""
    function, given = task_of(*task)
    start = time.perf_counter()
    with torch.no_grad():
        own = torch.compile(apart(function), backend="fireiron", dynamic=False, options={"candidates": arguments.candidates})
        own(*given)
    seconds = time.perf_counter() - start
    report = torch_backend.reports[-1]
    result = {"compile_s": seconds, "report": str(report), "taken": len(report.taken), "predicted": sum(one.us for one in report.taken)}
    if not report.taken:
        return result, None
    with torch.no_grad():
        compiled = torch.compile(apart(function), dynamic=False)
        compiled(*given)
    torch.cuda.synchronize()
    del given
    torch.cuda.empty_cache()
    return result, (own, compiled)


def measure(task, state, arguments):
    """Return times and errors of a function, as plain values."""
    from fireiron.measure import timing

    own, compiled = state
    function, given = task_of(*task)
    with torch.no_grad():
        wide = [x.double() if torch.is_tensor(x) and x.is_floating_point() else x for x in given]
        listed = [one if isinstance(one, tuple) else (one,) for one in (own(*given), compiled(*given), function(*wide))]
        result = {"error": error_of(listed[0], listed[2]), "error_compiled": error_of(listed[1], listed[2])}
        del wide, listed
        torch.cuda.empty_cache()
        contenders = {
            "fireiron": [lambda: own(*given)], "eager": [lambda: function(*given)], "compiled": [lambda: compiled(*given)],
        }  # fmt: skip
        times = timing.measure(contenders, rounds=arguments.rounds, pause=0.01, seconds=0.2, l2="hot")
    return result | {"us": {label: one.us for label, one in times.items()}}


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
    names = [name for name in (*CHAINS, *problems()) if not arguments.only or any(one in name for one in arguments.only.split(","))]
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
