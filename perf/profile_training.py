"""Profile kernels of training and serving that miss an aim, and their rivals: counters, stalls, clocks and power.

    python perf/profile_training.py FOLDER [--only adamw,fp8] [--processes 8] [--seconds 0.2] [--limit 60]
    python perf/profile_training.py FOLDER --page        no measurement: the table of the present files

Each case has contenders. In processes, each result is first compared with a reference. Then each contender runs for `--seconds` while
`nvidia-smi` reads the clock and the power, and once under Nsight Compute (`ncu`), with an empty cache, at the present clock. The table has
the longest kernel of each contender and, for all its kernels together, the time and the bytes. Stalls are the average number of cycles
between two instructions of a warp that a reason takes. Writes `profile.json`, `profile.txt` and `ncu.csv`.
"""

import argparse
import concurrent.futures
import contextlib
import functools
import json
import multiprocessing
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from profiled import MARKER, number, parsed
from tabulate import tabulate

import fireiron

SECTIONS = ("SpeedOfLight", "WarpStateStats", "SchedulerStats", "Occupancy", "LaunchStats", "MemoryWorkloadAnalysis")
METRICS = (
    "dram__bytes_read.sum", "dram__bytes_write.sum", "lts__t_bytes.sum", "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
)  # fmt: skip

COLUMNS = {
    "DRAM %": "dram_throughput.avg.pct",
    "L2 %": "lts__throughput.avg.pct",
    "tensor %": "sm__pipe_tensor_cycles_active.avg.pct",
    "issue %": "smsp__issue_active.avg.pct",
    "warps %": "sm__warps_active.avg.pct",
    "registers": "launch__registers_per_thread",
    "blocks": "launch__grid_size",
    "threads": "launch__block_size",
}
"""Parts of the names of counters by column."""

STALL = "_issue_stalled_"


def far(got, want):
    """Return the relative Frobenius error."""
    return float((got.double() - want.double()).norm() / want.double().norm())


def adamw():
    """A step of AdamW: one matrix of 8B weights in bfloat16."""
    start = torch.randn(4096, 28672, device="cuda").bfloat16()
    gradient = torch.randn_like(start)
    options = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
    calls, results = {}, {}
    makers = {
        "ours": fireiron.optim.AdamW,
        "ours, moments in bfloat16": functools.partial(fireiron.optim.AdamW, moment_dtype=torch.bfloat16),
        "PyTorch": functools.partial(torch.optim.AdamW, fused=True),
    }
    for name, make in makers.items():
        param = start.clone().requires_grad_()
        param.grad = gradient
        optimizer = make([param], **options)
        optimizer.step()
        results[name] = param.detach().clone()
        calls[name] = optimizer.step
    return calls, [(name, far(result, results["PyTorch"]), 1e-3) for name, result in results.items()]


def quantised(kind, size):
    """A product with quantised weights, and cuBLAS."""
    from quantised import inputs, rivals, strategy_of

    M, N, _ = size
    arrays, plain, reference = inputs(torch, kind, *size)
    out = torch.full((M, N), float("nan"), device="cuda", dtype=torch.bfloat16 if kind == "fp8" else torch.float16)
    call = strategy_of(kind, "few", None, size).compile("sm_90a").prepare(*arrays, out=out)
    call()
    error = far(out, reference(M))
    calls = {"ours": call} | {"cuBLAS": rivals(torch, kind, [(arrays, plain)], [torch.empty_like(out)], size)["cuBLAS"][0]}
    return calls, [("ours", error, 4e-3)]


def product(size):
    """A product of few rows."""
    M, N, K = size
    a, b = (torch.randn(shape, device="cuda").bfloat16() for shape in ((M, K), (K, N)))
    out = torch.empty(M, N, device="cuda", dtype=torch.bfloat16)
    calls = {"ours": lambda: fireiron.matmul(a, b, out=out), "cuBLAS": lambda: torch.matmul(a, b)}
    return calls, [("ours", far(calls["ours"](), a.double() @ b.double()), 8e-3)]


def attention(length, d, causal):
    """Attention forward."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = (torch.randn(16384 // length, 2048 // d, length, d, device="cuda").half() for _ in range(3))

    def rival():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    calls = {"ours": lambda: fireiron.attention(q, k, v, causal=causal), "cuDNN": rival}
    return calls, [("ours", far(calls["ours"](), rival()), 2e-3)]


def backward(length, d, causal):
    """Gradients of attention."""
    from attention_backward import by_fireiron, by_torch, errors_of, inputs_of

    inputs = inputs_of(length, d, causal, 16384)
    calls = {"ours": by_fireiron(inputs, causal), "cuDNN": by_torch("CUDNN_ATTENTION", causal, inputs)}
    return calls, [("ours", max(errors_of(calls["ours"](), inputs, causal)), 3e-3)]


def swiglu():
    """Products of 8 experts with SwiGLU, and without it."""
    from experts import CASES, ROWS, jobs_of, kernel_of, normal, routed, sorted_rows

    from fireiron import experts_routing

    case = CASES["mixtral"]
    E, K, F, tokens = (case[name] for name in ("experts", "width", "hidden", "tokens"))
    index = routed(torch, case, tokens)[2]
    x, gate_up = normal(torch, tokens, K), normal(torch, E, 2 * F, K, scale=0.02)
    tables = experts_routing.tables_of(index, E, ROWS)
    live = (torch.arange(ROWS, device="cuda") < tables.filled[:, None])[..., None]
    xs = torch.where(live, x[tables.rows.long()], 0)
    packed, ends = sorted_rows(torch, index, E, x)
    count, table, gate, up = len(tables.expert), (tables.expert, tables.steps), gate_up[:, :F], gate_up[:, F:]
    places = tables.places.reshape(-1)[index.reshape(-1).argsort(stable=True)].long()
    swapped = gate_up.transpose(1, 2)
    calls, checks = {"torch up": lambda: torch._grouped_mm(packed, swapped, offs=ends)}, []
    wide = calls["torch up"]()
    kernels = {}
    for job in jobs_of(case, ["products"]):
        kernels.setdefault(job[1], job)
    for form in ("strategy", "gated"):
        gated = form == "gated"
        out = torch.full((count, ROWS, F if gated else 2 * F), float("nan"), device="cuda", dtype=torch.bfloat16)
        calls[form] = kernel_of(kernels[form]).prepare(xs, *table, *((gate, up) if gated else (gate_up,)), out=out)
        calls[form]()
        got = out.reshape(count * ROWS, -1)[places[:4096]]
        want = wide[:4096]
        want = torch.nn.functional.silu(want[:, :F].float()) * want[:, F:].float() if gated else want
        checks.append((form, far(got, want), 1e-2))
    return calls, checks


def convolution(name, which):
    """A gradient of a convolution of ResNet-50: 0 of the images, 1 of the filters."""
    from convolution import LAYERS, gradient_calls, operands

    from fireiron.conv2d_gradients import request

    torch.backends.cudnn.benchmark = True
    layer = LAYERS[name]
    (arrays,) = operands(torch, layer, 128, torch.half)
    _, function, other, sizes = list(gradient_calls(layer))[which]
    padding, out = layer.filter // 2, torch.full_like(arrays[which], float("nan"))
    bound = function.answer(request(arrays[2], arrays[other], sizes, stride=layer.stride, padding=padding, out=out))
    words = (None, [layer.stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1, [which == 0, which == 1, False])
    calls = {
        "ours": lambda: bound((arrays[2], arrays[other]), out, None),
        "cuDNN": lambda: torch.ops.aten.convolution_backward(arrays[2], arrays[0], arrays[1], *words),
    }
    calls["ours"]()
    return calls, [("ours", far(out, calls["cuDNN"]()[which]), 2e-3)]


def depthwise(size, channels):
    """A depthwise convolution of 3 x 3 taps."""
    torch.backends.cudnn.benchmark = True
    x = torch.randn(128, channels, size, size, device="cuda").half().to(memory_format=torch.channels_last)
    w = torch.randn(channels, 1, 3, 3, device="cuda").half()
    words = {"padding": 1, "groups": channels}
    calls = {"ours": lambda: fireiron.conv2d(x, w, **words), "cuDNN": lambda: torch.nn.functional.conv2d(x, w, **words)}
    return calls, [("ours", far(calls["ours"](), calls["cuDNN"]()), 2e-3)]


def scan():
    """A scan of one row."""
    x = torch.randint(-4, 5, (1, 1 << 26), device="cuda").float()
    out, copy = torch.empty_like(x), torch.empty_like(x)
    from scans import TILES, compiled

    form = TILES["sums"]["256 threads x 48 in shared memory, 4 blocks per SM"]
    kernel = compiled("sums", form[0], form[1], True, *form[2:])
    calls = {"ours": lambda: kernel(x, out=out), "torch.cumsum": lambda: torch.cumsum(x, 1), "a copy": lambda: copy.copy_(x)}
    calls["ours"]()
    return calls, [("ours", far(out, torch.cumsum(x.double(), 1)), 1e-7)]


def transposition():
    """A transposition of one matrix."""
    x = torch.randn(16384, 4096, device="cuda").half()
    out, copy = torch.empty(4096, 16384, device="cuda", dtype=torch.half), torch.empty_like(x)
    transpose = fireiron.function("transpose")
    calls = {"ours": lambda: transpose(x[None], out=out[None]), "a copy": lambda: copy.copy_(x)}
    calls["ours"]()
    return calls, [("ours", far(out, x.t()), 1e-7)]


CASES = {
    "AdamW, bfloat16": adamw,
    "fp8 16x7168x2048": functools.partial(quantised, "fp8", (16, 7168, 2048)),
    "fp8 64x7168x2048": functools.partial(quantised, "fp8", (64, 7168, 2048)),
    "w4a16 16x4096x4096": functools.partial(quantised, "w4a16", (16, 4096, 4096)),
    "w8a16 64x8192x8192": functools.partial(quantised, "w8a16", (64, 8192, 8192)),
    "product 16x28672x4096": functools.partial(product, (16, 28672, 4096)),
    "images 3x3_56_stride": functools.partial(convolution, "3x3_56_stride", 0),
    "images 3x3_28_stride": functools.partial(convolution, "3x3_28_stride", 0),
    "filters 3x3_56": functools.partial(convolution, "3x3_56", 1),
    "depthwise 112": functools.partial(depthwise, 112, 64),
    "depthwise 56": functools.partial(depthwise, 56, 128),
    "attention 4096 d 128 causal": functools.partial(attention, 4096, 128, True),
    "attention 4096 d 128": functools.partial(attention, 4096, 128, False),
    "attention 4096 d 256": functools.partial(attention, 4096, 256, False),
    "attention 8192 d 64 causal": functools.partial(attention, 8192, 64, True),
    "gradients 4096 d 128": functools.partial(backward, 4096, 128, False),
    "gradients 4096 d 128 causal": functools.partial(backward, 4096, 128, True),
    "SwiGLU of 8 experts": swiglu,
    "scan 2^26": scan,
    "transposition 16384x4096": transposition,
}


def verified(name):
    """Compile a case into the cache and compare its results, in a separate process; return a text."""
    try:
        wrong = [(who, error) for who, error, bound in CASES[name]()[1] if not error < bound]
    except Exception as error:  # a case that is left out
        return f"left out: {name}: {type(error).__name__} {str(error)[:300]}"
    return f"WRONG: {name}: {wrong}" if wrong else ""


@contextlib.contextmanager
def watched():
    """Yield a list that `nvidia-smi` fills with clocks in MHz and powers in watts."""
    readings = []
    command = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw.instant", "--format=csv,noheader,nounits", "-lms", "20"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield readings
        process.terminate()
        readings += [tuple(map(float, line.split(","))) for line in process.stdout if line.count(",") == 1 and "[" not in line]


def burst(call, seconds):
    """Return microseconds of a call in a burst of some seconds, and the median clock and power of the second half of it."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(3):
        call()
    end.record()
    end.synchronize()
    count = max(3, int(seconds * 1000 / max(begin.elapsed_time(end) / 3, 1e-3)))
    with watched() as readings:
        begin.record()
        for _ in range(count):
            call()
        end.record()
        end.synchronize()
    late = readings[len(readings) // 2 :] or [(0.0, 0.0)]
    return begin.elapsed_time(end) * 1000 / count, *(statistics.median(column) for column in zip(*late, strict=True))


def launched(names):
    """Launch each contender once under `ncu`, after a marker."""
    import cupy

    marker = cupy.RawKernel(f'extern "C" __global__ void {MARKER}() {{}}', MARKER)
    for name in names:
        for call in CASES[name]()[0].values():
            call()
            torch.cuda.synchronize()
            cupy.cuda.runtime.profilerStart()
            marker((1,), (1,), ())
            cupy.cuda.Device().synchronize()
            call()
            torch.cuda.synchronize()
            cupy.cuda.runtime.profilerStop()
        torch.cuda.empty_cache()


def counted(folder, names, limit):
    """Write the counters of `ncu` for each contender to `ncu.csv`."""
    log = folder / "ncu.csv"
    options = [
        "--clock-control",
        "none",
        "--profile-from-start",
        "off",
        "--csv",
        "--page",
        "raw",
        "--print-units",
        "base",
        "--log-file",
        log,
    ]
    sections = [word for section in SECTIONS for word in ("--section", section)]
    command = ["ncu", *options, *sections, "--metrics", ",".join(METRICS), sys.executable, __file__, folder, "--launch", ";".join(names)]
    try:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=limit, check=False)
        if done.returncode:
            print("ncu:", (done.stdout + done.stderr)[-800:], flush=True)
    except subprocess.TimeoutExpired:
        print("ncu: timeout", flush=True)


def counters(rows):
    """Return the counters of a contender by column: of its longest kernel, and the time and the bytes of all kernels."""
    longest = max(rows, key=lambda row: number(row.get("gpu__time_duration.sum")) or 0)
    result = {"kernel": longest["Kernel Name"][:46], "kernels": len(rows)}
    result["ncu us"] = sum(number(row["gpu__time_duration.sum"]) or 0 for row in rows) / 1000
    result["MB"] = sum(number(row.get(name)) or 0 for row in rows for name in METRICS[:2]) / 1e6
    for title, part in COLUMNS.items():
        result[title] = next((number(value) for key, value in longest.items() if part in key and number(value) is not None), None)
    stalls = {
        key.partition(STALL)[2].removesuffix("_per_issue_active.ratio"): number(value)
        for key, value in longest.items()
        if STALL in key and key.endswith("per_issue_active.ratio") and "not_issued" not in key
    }
    most = sorted(((value, key) for key, value in stalls.items() if value), reverse=True)[:4]
    result["stalls"] = ", ".join(f"{key} {value:.1f}" for value, key in most)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="parts of names of cases, with commas between")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--limit", type=float, default=60, help="seconds for ncu")
    parser.add_argument("--page", action="store_true", help="measure nothing")
    parser.add_argument("--launch", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.page:
        print(paged(options.folder))
        return
    if options.launch:
        launched(options.launch.split(";"))
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    names, start = [name for name in CASES if any(part in name for part in options.only.split(","))], time.time()
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(options.processes, mp_context=context) as pool:
        texts = dict(zip(names, pool.map(verified, names), strict=True))
    print(*(text for text in texts.values() if text), sep="\n")
    names = [name for name in names if not texts[name]]
    print(f"{time.time() - start:.0f} s: {len(names)} cases are right", flush=True)
    lines = []
    for name in names:
        for who, call in CASES[name]()[0].items():
            us, clock, power = burst(call, options.seconds)
            lines.append({"case": name, "by": who, "us": us, "MHz": clock, "W": power})
            print(f"{name}, {who}: {us:.1f} us, {clock:.0f} MHz, {power:.0f} W", flush=True)
        torch.cuda.empty_cache()
    print(f"{time.time() - start:.0f} s: timed", flush=True)
    counted(options.folder, names, options.limit)
    print(f"{time.time() - start:.0f} s: counted", flush=True)
    from fireiron.measure.timing import environment

    options.folder.joinpath("profile.json").write_text(json.dumps({"environment": environment(), "measured": lines}, indent=1) + "\n")
    print(paged(options.folder))


def paged(folder):
    """Write the table of the present files, and return it. The counters of `ncu.csv` are also written to `profile.json`."""
    whole = json.loads((folder / "profile.json").read_text())
    lines, log = whole["measured"], folder / "ncu.csv"
    for line, rows in zip(lines, parsed(log.read_text()) if log.exists() else (), strict=False):
        line |= counters(rows) if rows else {}
    heads = ("case", "by", "us", "MHz", "W", "kernels", "ncu us", "MB", *COLUMNS, "stalls", "kernel")
    text = tabulate([[line.get(head) for head in heads] for line in lines], heads, floatfmt=".1f") + "\n"
    (folder / "profile.txt").write_text(text)
    (folder / "profile.json").write_text(json.dumps(whole, indent=1) + "\n")
    return text


if __name__ == "__main__":
    main()
