"""Modules of KernelBench, levels 1 and 2, at the sizes of the suite: the backend of Fireiron, Inductor, and eager PyTorch, on a GPU.

    python perf/kernelbench/modules.py KERNELBENCH FOLDER [--only 1/23,2/9:float16] [--types float16,float32] [--processes 12] [--seconds 420]
        [--resume results.jsonl] [--whole] [--slower 3] [--mode max-autotune-no-cudagraphs]

KERNELBENCH is a copy of github.com/ScalingIntelligence/KernelBench. Modules stay in training mode, without gradients, as in the suite.
Processes compile concurrently without launching anything. Under a lock, one process at a time verifies and measures: CUDA graphs, the L2 cache
is overwritten before each launch, and all contenders of a module alternate. A module of which the backend takes nothing has the kernels of
Inductor; `--whole` measures these, too. Tasks of `--resume` that were measured are not repeated. Writes a line per module to `results.jsonl`
at once, and `results.txt` at the end; `--summarize` only reads `results.jsonl`.

*Right.* The module runs in float32 without TF32 for float16, and in float64 for float32 (in float32 without TF32 for convolutions, and for more
than 2^28 elements). The relative error in the Frobenius norm must be at most 1e-3 (float16) or 1e-5 (float32), or three times that of
Inductor or of eager PyTorch. Elements that are not finite must be those of the exact result, except as many as Inductor or eager PyTorch has others. Wrong
results are not timed.
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
os.environ.setdefault("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")

import torch  # noqa: E402
from gpu_turns import run_all, stream  # noqa: E402
from tabulate import tabulate  # noqa: E402

import fireiron.torch_backend as torch_backend  # noqa: E402

DEVICE = "cuda"
RIGHT = {"float16": 1e-3, "float32": 1e-5}
"""Relative error at which a result is right."""
LARGE = 1 << 28
"""Elements of operands above which the exact result is computed in float32."""
CHUNK = 1 << 26
"""Elements that are compared at once."""
RANDOM = {
    "2/66": "dropout before a softmax: each call has other random numbers",
    "2/83": "dropout: its random numbers cannot be captured in a graph of another library",
}
"""Problems whose results cannot be compared."""


TUNED = "max-autotune-no-cudagraphs"
BOTH = "fireiron with the mode"
"""The mode of Inductor, and the backend with this mode for what it leaves."""


class CompiledSignal(Exception):
    """Ends the first call of a compiled module before it launches anything."""


def files_of(folder):
    """Return the file of each problem by name, `1/23`."""
    files = [file for level in (1, 2) for file in folder.rglob(f"level{level}/*_*.py")]
    named = {f"{file.parent.name.removeprefix('level')}/{file.name.split('_')[0]}": file for file in files}
    return dict(sorted(named.items(), key=lambda pair: tuple(map(int, pair[0].split("/")))))


def tasks_of(names, types):
    """Return (name, type) in an order that covers both levels and all types early: every seventh problem, then the next ones."""
    mixed = [name for first in range(7) for level in "12" for name in [one for one in names if one.startswith(level)][first::7]]
    return [(name, dtype) for name in mixed for dtype in types]


def scope_of(file):
    """Return the names that a problem's file defines."""
    names = {}
    exec(compile(file.read_text(), str(file), "exec"), names)
    return names


def module_of(names, dtype):
    """Return the module on the GPU, with the same parameters in each call."""
    torch.manual_seed(1)
    with torch.device(DEVICE):
        return names["Model"](*names["get_init_inputs"]()).to(getattr(torch, dtype))


def as_type(value, dtype):
    """Return a floating-point tensor in another type, and everything else unchanged."""
    return value.to(getattr(torch, dtype)) if torch.is_tensor(value) and value.is_floating_point() else value


def given_of(names, dtype):
    """Return the inputs on the GPU."""
    torch.manual_seed(2)
    with torch.device(DEVICE):
        return [as_type(value, dtype) for value in names["get_inputs"]()]


def hollow_of(names, dtype):
    """Return inputs on the GPU without memory, with which a compilation is traced."""
    with torch.device("meta"):
        shapes = [as_type(value, dtype) for value in names["get_inputs"]()]
    given = []
    for value in shapes:
        if torch.is_tensor(value):
            value = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=DEVICE)
            value.untyped_storage().resize_(0)
            torch.cuda.empty_cache()
        given.append(value)
    return given


class Contender:
    """A module that a compiler compiles in `compile`, without a launch, and that calls run afterwards."""

    def __init__(self, module, compiler):
        self.waiting, self.compilations = True, 0
        self.call = torch.compile(module, backend=self._backend, dynamic=False)
        self.compiler = compiler

    def _backend(self, graph, inputs):
        self.compilations += 1
        compiled = self.compiler(graph, inputs)

        def run(*arrays):
            if self.waiting:
                raise CompiledSignal
            return compiled(*arrays)

        return run

    def compile(self, given):
        """Compile the module for inputs, and return the seconds."""
        start = time.perf_counter()
        try:
            with torch.no_grad():
                self.call(*given)
        except CompiledSignal:
            pass
        self.waiting = False
        return time.perf_counter() - start


def inductor(graph, inputs, mode=None):
    """Compile by Inductor, in a mode."""
    from torch._inductor import list_mode_options
    from torch._inductor.compile_fx import compile_fx

    return compile_fx(graph, inputs, config_patches=list_mode_options(mode) if mode else None)


def prepare(task, arguments):
    """Compile a module; return the report, and the compiled module, or None if it is not measured."""
    name, dtype = task
    torch._dynamo.reset()
    names = scope_of(files_of(arguments.kernelbench)[name])
    module, given, before = module_of(names, dtype), hollow_of(names, dtype), len(torch_backend.reports)
    own = Contender(module, lambda graph, inputs: torch_backend.backend(graph, inputs, options={"candidates": arguments.candidates}))
    seconds = own.compile(given)
    reports = list(torch_backend.reports)[before:]
    result = {
        "title": files_of(arguments.kernelbench)[name].stem.partition("_")[2],
        "taken": sum(len(report.taken) for report in reports), "left": sum(len(report.left) for report in reports),
        "predicted": sum(one.us for report in reports for one in report.taken), "report": "\n".join(map(str, reports)), "compile_s": seconds,
    }  # fmt: skip
    if name in RANDOM:
        return result | {"skipped": RANDOM[name]}, None
    if not result["taken"] and not arguments.whole:
        return result, None
    compiled = Contender(module, inductor)
    result["inductor_s"] = compiled.compile(given)
    contenders = {"fireiron": own, "inductor": compiled}
    if arguments.mode:
        contenders[arguments.mode] = tuned = Contender(module, lambda graph, inputs: inductor(graph, inputs, arguments.mode))
        result["tuned_s"] = tuned.compile(given)
        options = {"candidates": arguments.candidates}
        both = Contender(module, lambda graph, inputs: torch_backend.backend(graph, inputs, options=options, mode=arguments.mode))
        result["both_s"] = both.compile(given)
        contenders[BOTH] = both
    return result, (names, module, contenders)


def exact(names, given, dtype):
    """Return the result of the module in a wider type."""
    module = module_of(names, "float32").to(getattr(torch, dtype))
    wide = "float32" if dtype == "float16" else "float64"
    convolutions = any("Conv" in type(part).__name__ for part in module.modules())
    if convolutions or sum(value.numel() for value in given if torch.is_tensor(value)) > LARGE:
        wide = "float32"
    allowed = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        return module.to(getattr(torch, wide))(*(as_type(value, wide) for value in given))
    finally:
        torch.backends.cudnn.allow_tf32 = allowed


def error_of(result, right):
    """Return the relative error in the Frobenius norm of finite elements, and the number of others that differ."""
    if result.shape != right.shape:
        return math.inf, result.numel()
    squares, norm, others = 0.0, 0.0, 0
    for own, wide in zip(result.reshape(-1).split(CHUNK), right.reshape(-1).split(CHUNK), strict=True):
        rounded = wide.to(own.dtype)
        finite = torch.isfinite(rounded) & torch.isfinite(own)
        same = (own == rounded) | (torch.isnan(own) & torch.isnan(rounded))
        others += int((~finite & ~same).sum())
        diff = torch.where(finite, own.double() - wide.double(), 0)
        squares += float((diff * diff).sum())
        norm += float((torch.where(finite, wide.double(), 0) ** 2).sum())
    return math.sqrt(squares) / max(math.sqrt(norm), 1e-30), others


def check(errors, dtype):
    """Raise `ValueError` if a result is wrong."""
    (own, others), (peer, peer_others), (eager, eager_others) = (errors[label] for label in ("fireiron", "inductor", "eager"))
    if not own <= max(3 * peer, 3 * eager, RIGHT[dtype]) or others > max(peer_others, eager_others):
        raise ValueError(f"wrong: {own:.2e}, Inductor {peer:.2e}, eager {eager:.2e}; not finite {others}, {peer_others}, {eager_others}")


def measure(task, state, arguments):
    """Return times and errors of a module. Raises: `ValueError` for wrong results."""
    from fireiron.measure import timing

    (names, module, contenders), dtype = state, task[1]
    given = given_of(names, dtype)
    calls = {"eager": module} | {label: one.call for label, one in contenders.items()}
    with torch.no_grad():
        right = exact(names, given, dtype)
        errors = {label: error_of(call(*given), right) for label, call in reversed(calls.items())}
        del right
        check(errors, dtype)
        torch.cuda.empty_cache()
        launches = {label: [lambda call=call: call(*given)] for label, call in calls.items()}
        times = timing.measure(launches, rounds=arguments.rounds, pause=0.005, seconds=arguments.limit, l2="flushed", burst=10_000.0)
    return {
        "us": {label: one.us for label, one in times.items()}, "errors": errors, "graphs": {label: one.graph for label, one in times.items()},
        "compilations": {label: one.compilations for label, one in contenders.items()},
    }  # fmt: skip


def mean(values):
    """Return the geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def shares(rows, label, modules):
    """Return a line: how many modules are measured and right, which share is faster, and the geometric means."""
    timed = [row for row in rows if "us" in row]
    wrong = [row for row in rows if "wrong" in row.get("refused", "")]
    failed = [row for row in rows if "refused" in row and row not in wrong]
    whole = [row for row in rows if row.get("taken") == 0 and "us" not in row and "refused" not in row]
    text = f"{label}: {len(rows)} of {modules} modules compiled; {len(timed)} measured, {len(wrong)} wrong, {len(failed)} failed; "
    text += f"{len(whole)} others are left to Inductor as a whole"
    for peer in ("eager", "inductor", TUNED):
        own = BOTH if peer == TUNED else "fireiron"
        ratios = [row["us"][peer] / row["us"][own] for row in timed if {peer, own} <= row["us"].keys() and row["taken"]]
        if ratios:
            faster = sum(ratio > 1 for ratio in ratios) / len(ratios)
            text += f"; {peer}: {mean(ratios):.3f} of {len(ratios)} with derived kernels, faster for {faster:.0%}"
            text += f", within 2 % or faster for {sum(ratio > 0.98 for ratio in ratios) / len(ratios):.0%}"
    return text


def table(rows):
    """Return the table of the measured modules, those with the worst ratio to Inductor first."""
    lines = []
    for row in rows:
        us = row.get("us")
        if us:
            own = us["fireiron"]
            skeletons = " ".join(line.split(": ")[2] for line in row["report"].splitlines() if line.startswith("  taken"))
            lines.append([row["name"], row["type"], row["title"][:44], own, us["eager"], us["inductor"], us["eager"] / own, us["inductor"] / own,
                us.get(TUNED, math.nan) / us.get(BOTH, math.nan), row["predicted"], row["errors"]["fireiron"][0],
                row["errors"]["inductor"][0], row["left"], skeletons])  # fmt: skip
    lines.sort(key=lambda line: line[7])
    heads = ["", "type", "problem", "us", "eager us", "inductor us", "eager/own", "inductor/own", "tuned/both", "taken predicted", "error",
        "inductor's", "left", "taken"]  # fmt: skip
    return tabulate(lines, headers=heads, floatfmt=".3g")


def summary(folder, modules):
    """Return and write the table, the shares, and what was left or failed."""
    rows = list({(row["name"], row["type"]): row for row in read(folder / "results.jsonl")}.values())
    text = table(rows) + "\n\n"
    for dtype in dict.fromkeys(row["type"] for row in rows):
        for level in "12":
            text += shares([row for row in rows if row["type"] == dtype and row["name"][0] == level], f"{dtype}, level {level}", 100) + "\n"
        text += shares([row for row in rows if row["type"] == dtype], dtype, modules) + "\n"
    text += shares(rows, "all", 2 * modules) + "\n\n"
    text += "\n".join(f"{row['name']} {row['type']} {row.get('title', '')}: {row['refused']}" for row in rows if "refused" in row)
    (folder / "results.txt").write_text(text + "\n")
    return text


def read(file):
    """Return the rows of a file; none if it does not exist."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def is_finished(row, whole):
    """Return whether a module need not be measured again; with `whole`, those of which nothing was taken are to be measured."""
    return "us" in row or "skipped" in row or ("refused" not in row and not whole)


def shown(row):
    """Return a result as a short line."""
    if "us" not in row:
        return f"{row['name']} {row['type']}: {row.get('refused') or row.get('skipped') or 'left as a whole'}"
    us = row["us"]
    ratios = ", ".join(f"{label} {time / us['fireiron']:.3f}" for label, time in us.items() if label != "fireiron")
    return f"{row['name']} {row['type']} {row['title'][:40]}: {us['fireiron']:.1f} us, {ratios}, error {row['errors']['fireiron'][0]:.1e}"


def arguments_of():
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kernelbench", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only")
    parser.add_argument("--types", default="float16,float32")
    parser.add_argument("--candidates", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--limit", type=float, default=0.1, help="seconds of the rounds of a contender")
    parser.add_argument("--processes", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=1e6)
    parser.add_argument("--resume", type=Path, nargs="*", default=[])
    parser.add_argument("--whole", action="store_true", help="measure modules of which nothing is taken, too")
    parser.add_argument("--mode", help="also compile in this mode of Inductor, without and with the backend")
    parser.add_argument("--slower", type=float, help="take regions up to this ratio of the predicted time to that of their bytes")
    parser.add_argument("--summarize", action="store_true")
    return parser.parse_args()


def main():
    """Measure the modules."""
    arguments = arguments_of()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    names = list(files_of(arguments.kernelbench))
    if arguments.summarize:
        print(summary(arguments.folder, len(names)))
        return
    if arguments.slower:
        torch_backend.rewriting.SLOWER = arguments.slower
    finished = {(row["name"], row["type"]) for file in arguments.resume for row in read(file) if is_finished(row, arguments.whole)}
    only = set(arguments.only.split(",")) if arguments.only else None
    tasks = [task for task in tasks_of(names, arguments.types.split(",")) if task not in finished]
    tasks = [task for task in tasks if only is None or {task[0], ":".join(task)} & only]
    start = time.time()

    def keep(task, result):
        row = {"name": task[0], "type": task[1], **result}
        with (arguments.folder / "results.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{time.time() - start:5.0f}", shown(row), flush=True)

    if arguments.mode:  # it measures while it compiles, so all are compiled before the first one is measured
        kept = set()

        def write(_, results):
            for name in results.keys() - kept:
                kept.add(name)
                keep(name.split(), results[name])
            return ""

        run_all(tasks, prepare, measure, write, arguments)
    else:
        for task, result in stream(tasks, prepare, measure, arguments):
            keep(task, result)
    print(summary(arguments.folder, len(names)))


if __name__ == "__main__":
    main()
