"""Compare mixture-of-experts kernels and the layer `fireiron.experts` with PyTorch's `_grouped_mm`, in one run.

    python perf/experts.py FOLDER [--parts products,weights,eight_bit,layer,few,gradients] [--cases mixtral,fine] [--rounds 3]

Bfloat16, standard normal rows, weights times 0.02, experts drawn from normal scores. A contender is verified on outputs of NaN, against
float64 for rows of some experts, before it is measured. Products read rows that are sorted already: ours in padded tiles, PyTorch's
without padding; both do the same useful work, 2 operations per row and weight. The layer contains the routing from scores on, with all
moves of rows; it is one CUDA graph, for `torch.compile`'s layer as well. Bursts of 20 ms after a pause, contenders alternate, medians.
Arrays of the large cases exceed the L2 cache. With few tokens, the weights do. Writes `experts.json` and `experts.md`.
"""

import argparse
import concurrent.futures
import datetime
import json
import statistics
import sys
import time
import traceback
from pathlib import Path

from tabulate import tabulate

CASES = {
    "mixtral": {"experts": 8, "width": 4096, "hidden": 14336, "choices": 2, "tokens": 16384},
    "fine": {"experts": 64, "width": 2048, "hidden": 2048, "choices": 8, "tokens": 16384},
    "many": {"experts": 256, "width": 7168, "hidden": 2048, "choices": 8, "tokens": 4096},
}
"""Layers: Mixtral, 64 small experts, 256 experts as in DeepSeek-V3."""

FEW = (1, 16, 128)
"""Numbers of tokens of the part `few`."""

ROWS = 128

PRODUCT = [{"group_m": 8}, {"group_m": 16}, {"group_m": 8, "raster": 1}]
"""Orders of tiles that are compared. Others are those of the strategy."""

GATED = [{"group_m": 16, "raster": 1}, {"group_m": 16, "mma_in_flight": 0}]
"""Further variants of the product with SwiGLU, for the part `gated`."""

BASE = {"bm": ROWS, "bk": 64, "stages": 4}

MOST = {"products": 6e-3, "eight_bit": 6e-3}
"""Maximum relative Frobenius errors: results in bfloat16."""


# ---------------------------------------------------------------------------------------------- kernels


def tiles():
    """Return the number of tiles, a symbol."""
    from fireiron import sym

    return sym("TILES", high=1 << 16)


def strided(dims, *steps):
    """Return strides of an operand that is aligned to 16 bytes."""
    from fireiron import Strides

    return Strides(**dict(zip(dims, steps, strict=True))).aligned(16)


def jobs_of(case, parts):
    """Return (name, form of `strategies/experts.py`, values, definition, sizes) of the kernels of a case."""
    E, K, F = case["experts"], case["width"], case["hidden"]
    t = {"t": tiles(), "m": ROWS, "e": E}
    halves = {name: strided("enk", 2 * F * K, K, 1) for name in "GU"}
    pairs = {name: strided("tmn", 2 * F * ROWS, 2 * F, 1) for name in "PQ"}
    jobs = []
    if "products" in parts:
        for values in PRODUCT:
            label = " ".join(f"{name}={value}" for name, value in values.items())
            jobs.append((f"up, {label}", "strategy", {**BASE, "bn": 256, **values}, "product", {**t, "n": 2 * F, "k": K}))
            jobs.append((f"gated, {label}", "gated", {**BASE, "bn": 128, **values}, "gated_product", {**t, "n": F, "k": K, **halves}))
            jobs.append((f"down, {label}", "strategy", {**BASE, "bn": 256, **values}, "product", {**t, "n": K, "k": F}))
        kept = {**t, "n": F, "k": K, **halves, **pairs}
        jobs.append(("kept", "kept", {**BASE, "stages": 3, "bn": 128}, "kept_product", kept))
        sizes = {**t, "n": F, "k": K, **halves, "r": rows_symbol()}
        jobs.append(("gathered gated", "gathered_gated", {**BASE, "bn": 128}, "gathered_gated_product", sizes))
    if "gated" in parts:
        for values in GATED:
            label = " ".join(f"{name}={value}" for name, value in values.items())
            jobs.append((f"gated, {label}", "gated", {**BASE, "bn": 128, **values}, "gated_product", {**t, "n": F, "k": K, **halves}))
        for values in ({"group_m": 16}, {"group_m": 16, "raster": 1}, {"group_m": 16, "mma_in_flight": 0}):
            label = " ".join(f"{name}={value}" for name, value in values.items())
            jobs.append((f"gated held, {label}", "held", {**BASE, "bn": 128, **values}, "gated_product", {**t, "n": F, "k": K, **halves}))
        jobs.append(("up, group_m=8", "strategy", {**BASE, "bn": 256, "group_m": 8}, "product", {**t, "n": 2 * F, "k": K}))
    if "weights" in parts:
        from fireiron import sym

        m = sym("PLACES", high=1 << 22, multiple_of=64)
        values = {"bm": 128, "bn": 256, "stages": 4}
        jobs.append(("weights", "weight_gradient", values, "weight_product", {"e": E, "k": 2 * F, "n": K, "m": m}))
    if "eight_bit" in parts:
        for values in PRODUCT[:2]:
            label = " ".join(f"{name}={value}" for name, value in values.items())
            own = {"bm": ROWS, "bn": 256, "bk": 128, "stages": 4, **values}
            jobs.append((f"eight bits, {label}", "scaled", own, "scaled_product", {**t, "n": 2 * F, "k": K}))
    return jobs


def rows_symbol():
    """Return the number of tokens, a symbol."""
    from fireiron import sym

    return sym("TOKENS", high=1 << 22)


def kernel_of(job):
    """Return the compiled kernel of a job."""
    from fireiron import bfloat16
    from fireiron.strategies import experts

    _, form, values, definition, sizes = job
    options = {} if definition == "scaled_product" else {"dtype": bfloat16}
    return getattr(experts, form).with_(**values)(getattr(experts, definition)(**sizes, **options)).compile("sm_90a")


def activation_of(case):
    """Return the kernel of the activation of both products."""
    from fireiron import bfloat16
    from fireiron.strategies import experts_rows

    pair = strided("mn", 2 * case["hidden"], 1)
    spec = experts_rows.gated_rows(m=rows_symbol(), n=case["hidden"], P=pair, Q=pair, dtype=bfloat16)
    return experts_rows.activated(spec).compile("sm_90a")


def forms_of(case, tokens, differentiated):
    """Return the form of the kernels of a layer."""
    from fireiron.experts_kernels import Form, Sizes
    from fireiron.values.machine import as_architecture, as_dtype

    sizes = Sizes(tokens, case["choices"], case["width"], case["experts"], case["hidden"])
    rows = sizes.rows_of_tile(differentiated)
    return Form(rows, sizes.width, sizes.hidden, sizes.experts, sizes.choices, as_dtype("bfloat16"), as_architecture("sm_90a"), 0)


FORWARD = {True: ("sort", "gated", "down", "combine"), False: ("sort", "up", "activate", "down", "combine")}
"""The steps of a layer whose first product applies the activation, or does not."""

BACKWARD = ("weighted", "dots", "hidden", "slopes", "input", "down_weights", "gate_up_weights")


def compiled(task):
    """Compile a kernel into the cache, in a process of a pool; return an error or None."""
    try:
        kind, *rest = task
        if kind == "job":
            kernel_of(rest[0]).ready()
        else:
            from fireiron import experts_kernels

            form, step = rest
            experts_kernels.kernel_of(form._replace(device=None), step)[0].ready()
    except Exception as error:  # a variant that is left out
        return f"{task[:1]} {task[-1] if kind != 'job' else task[1][0]}: {str(error)[:300]}"
    return None


# ---------------------------------------------------------------------------------------------- arrays


def routed(torch, case, tokens):
    """Return scores, weights and numbers of experts."""
    from fireiron.experts_routing import chosen_experts

    scores = torch.randn(tokens, case["experts"], device="cuda")
    return (scores, *chosen_experts(scores, case["choices"], True))


def normal(torch, *shape, scale=1.0):
    """Return normal numbers in bfloat16."""
    result = torch.empty(shape, device="cuda", dtype=torch.bfloat16)
    for part in result if result.numel() > 1 << 31 else (result,):
        part.normal_(0, scale)
    return result


def poisoned(torch, *shape, dtype=None):
    """Return an array of NaN."""
    return torch.full(shape, float("nan"), device="cuda", dtype=dtype or torch.bfloat16)


def error_of(got, want):
    """Return the relative Frobenius error."""
    return float((got.double() - want).norm() / want.norm())


def is_right(name, error, bound=6e-3):
    """Return whether a contender is right; print its error otherwise."""
    if not error < bound:
        print(f"WRONG, left out: {name}: {error}", flush=True)
    return error < bound


def attempted(call, *arguments):
    """Call a part; an error ends only this part."""
    try:
        call(*arguments)
    except Exception:
        print(traceback.format_exc(limit=-3), flush=True)


def times_of(calls, rounds, pause=0.12):
    """Return the median time of a call in microseconds, by contender."""
    import torch

    def timed(call, count):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(count):
            call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1000 / count

    for call in calls.values():
        call()
    torch.cuda.synchronize()
    counts = {name: max(1, min(2000, round(20_000 / timed(call, 1)))) for name, call in calls.items()}
    times = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            torch.cuda.synchronize()
            time.sleep(pause)
            times[name].append(timed(call, counts[name]))
    return {name: statistics.median(one) for name, one in times.items()}


def graph_of(torch, call):
    """Return the replay of a call."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


class Report:
    """Rows of the table, and what is written."""

    def __init__(self, folder):
        self.folder, self.rows, self.records = folder, [], []

    def add(self, part, case, times, flops, rivals):
        """Add the times of contenders; `rivals` are the names of PyTorch's, by the start of ours."""
        for name, us in times.items():
            rival = next((times[other] for start, other in rivals if name.startswith(start) and other in times), None)
            ratio = rival / us if rival and name not in dict(rivals).values() else None
            work = flops.get(next((start for start in flops if name.startswith(start)), ""), 0)
            self.rows.append((part, case, name, us, work / us / 1e6 if work else None, ratio))
            self.records.append({"part": part, "case": case, "contender": name, "us": us, "TFLOP/s": work / us / 1e6, "speedup": ratio})
            print(f"{part:9s} {case:14s} {name:34s} {us:9.1f} us {work / us / 1e6:7.0f} TFLOP/s {ratio or 0:6.3f}", flush=True)
        self.write()

    def write(self):
        """Write the tables."""
        import torch

        self.folder.mkdir(parents=True, exist_ok=True)
        about = {"date": str(datetime.date.today()), "GPU": torch.cuda.get_device_name(), "torch": torch.__version__, "command": sys.argv}
        (self.folder / "experts.json").write_text(json.dumps({**about, "results": self.records}, indent=1))
        heads = ("part", "case", "contender", "us", "TFLOP/s", "speedup to PyTorch")
        table = tabulate(self.rows, heads, floatfmt=("", "", "", ".1f", ".0f", ".3f"), tablefmt="github")
        (self.folder / "experts.md").write_text(table + "\n")


# ---------------------------------------------------------------------------------------------- parts


def silu_of(torch):
    """Return the compiled activation."""
    return torch.compile(lambda h: torch.nn.functional.silu(h[:, : h.shape[1] // 2]) * h[:, h.shape[1] // 2 :], dynamic=False)


def sorted_rows(torch, index, experts, x):
    """Return the tokens of sorted rows, and the ends of the experts' rows, as `_grouped_mm` takes them."""
    flat = index.reshape(-1)
    order = flat.argsort(stable=True)
    return x[order // index.shape[1]], torch.bincount(flat, minlength=experts).cumsum(0).to(torch.int32)


def products(torch, name, case, parts, given, report):
    """Measure products of sorted rows."""
    import fireiron.experts_routing as routing

    E, K, F, tokens = (case[one] for one in ("experts", "width", "hidden", "tokens"))
    _, _, index = routed(torch, case, tokens)
    x = normal(torch, tokens, K)
    tables = routing.tables_of(index, E, ROWS)
    count = len(tables.expert)
    live = (torch.arange(ROWS, device="cuda") < tables.filled[:, None])[..., None]
    xs = torch.where(live, x[tables.rows.long()], 0)
    packed, ends = sorted_rows(torch, index, E, x)
    gate_up, down = normal(torch, E, 2 * F, K, scale=0.02), normal(torch, E, K, F, scale=0.02)
    rows = index.numel()
    begins = [0, *ends.tolist()]
    sample = [expert for expert in (0, E // 2, E - 1) if begins[expert + 1] > begins[expert]]
    in_tiles = tables.places.reshape(-1)[index.reshape(-1).argsort(stable=True)].long()

    def check(label, got, weights, left, packed_rows=False, gated=False, bound=6e-3):
        worst = 0.0
        for expert in sample:
            part = slice(begins[expert], min(begins[expert + 1], begins[expert] + 48))
            want = left[part].double() @ weights[expert].double().t()
            want = torch.nn.functional.silu(want[:, :F]) * want[:, F:] if gated else want
            own = got[part] if packed_rows else got.reshape(-1, got.shape[-1])[in_tiles[part]]
            worst = max(worst, error_of(own, want))
        return is_right(label, worst, bound)

    kernels = {}
    for job in jobs_of(case, parts):
        try:
            kernels[job[0]] = (job, kernel_of(job))
        except Exception as error:
            print(f"left out: {job[0]}: {str(error)[:200]}", flush=True)
    hs = normal(torch, count, ROWS, F, scale=0.5)
    h_packed = hs.reshape(-1, F)[in_tiles]
    table = (tables.expert, tables.steps)
    gate, up = gate_up[:, :F], gate_up[:, F:]
    calls, rivals = {}, []
    if {"products", "gated"} & {*parts}:
        for label, (job, kernel) in kernels.items():
            form = job[1]
            if label.startswith("up"):
                out = poisoned(torch, count, ROWS, 2 * F)
                call = kernel.prepare(xs, *table, gate_up, out=out)
                call()
                right = check(label, out, gate_up, packed)
            elif form in ("gated", "held", "gathered_gated"):
                out = poisoned(torch, count, ROWS, F)
                arrays = (x, tables.rows, *table, gate, up) if form == "gathered_gated" else (xs, *table, gate, up)
                call = kernel.prepare(*arrays, out=out)
                call()
                right = check(label, out, gate_up, packed, gated=True)
            elif form == "kept":
                pair, out = poisoned(torch, count, ROWS, 2 * F), poisoned(torch, count, ROWS, F)
                call = kernel.prepare(xs, *table, gate, up, out=(pair[..., :F], pair[..., F:], out))
                call()
                right = check(label, out, gate_up, packed, gated=True) and check(label, pair, gate_up, packed)
            elif label.startswith("down"):
                out = poisoned(torch, count, ROWS, K)
                call = kernel.prepare(hs, *table, down, out=out)
                call()
                right = check(label, out, down, h_packed)
            else:
                continue
            if right:
                calls[label] = call
            if right and label == "up, group_m=8":
                activate = activation_of(case)
                flat, result = out.reshape(-1, 2 * F), poisoned(torch, count, ROWS, F)
                second = activate.prepare(flat[:, :F], flat[:, F:], out=result.reshape(-1, F))
                second()
                if check("up + activation", result, gate_up, packed, gated=True):
                    calls["gated, two kernels"] = lambda first=call, second=second: (first(), second())
        silu, swapped_up, swapped_down = silu_of(torch), gate_up.transpose(1, 2), down.transpose(1, 2)
        calls["torch up"] = lambda: torch._grouped_mm(packed, swapped_up, offs=ends)
        check("torch up", calls["torch up"](), gate_up, packed, packed_rows=True)
        calls["torch up + silu"] = lambda: silu(torch._grouped_mm(packed, swapped_up, offs=ends))
        calls["torch down"] = lambda: torch._grouped_mm(h_packed, swapped_down, offs=ends)
        rivals += [("up", "torch up"), ("gated", "torch up + silu"), ("gathered", "torch up + silu"), ("down", "torch down")]
        rivals += [("kept", "torch up + silu")]
    flops = {"up": 4 * rows * F * K, "gated": 4 * rows * F * K, "gathered": 4 * rows * F * K, "kept": 4 * rows * F * K}
    flops |= {"torch up": 4 * rows * F * K, "down": 2 * rows * F * K, "torch down": 2 * rows * F * K}
    if {"products", "gated"} & {*parts}:
        report.add("products", name, times_of(calls, given.rounds), flops, rivals)
    calls = {}
    if "weights" in parts:
        wide = normal(torch, count * ROWS, 2 * F, scale=0.5)
        flat = xs.reshape(-1, K)
        wide *= live.reshape(-1, 1)
        packed_wide = wide[in_tiles]
        out = poisoned(torch, E, 2 * F, K)
        for label, (job, kernel) in kernels.items():
            if job[1] == "weight_gradient":
                calls[label] = kernel.prepare(wide, flat, tables.first, tables.last, out=out)
                out.fill_(float("nan"))
                calls[label]()
                for expert in sample:
                    part = slice(begins[expert], begins[expert + 1])
                    want = packed_wide[part, :64].double().t() @ packed[part].double()
                    if not is_right(label, error_of(out[expert, :64], want)):
                        calls.pop(label, None)
        calls["torch weights"] = lambda: torch._grouped_mm(packed_wide.t(), packed, offs=ends)
        flops = dict.fromkeys(("weights", "torch weights"), 4 * rows * F * K)
        report.add("weights", name, times_of(calls, given.rounds), flops, [("weights", "torch weights")])
        del wide, packed_wide, out
    calls = {}
    if "eight_bit" in parts:
        eight = torch.float8_e4m3fn
        xs8, packed8, w8 = xs.to(eight), packed.to(eight), (gate_up * 50).to(eight)
        sa, sw = torch.rand(count, ROWS, device="cuda") + 0.5, torch.rand(E, 2 * F, device="cuda") + 0.5
        sa_packed = sa.reshape(-1)[in_tiles].contiguous()
        out = poisoned(torch, count, ROWS, 2 * F)
        for label, (job, kernel) in kernels.items():
            if job[1] == "scaled":
                calls[label] = kernel.prepare(xs8, sa, sw, *table, w8, out=out)
                calls[label]()
                for expert in sample:
                    part = slice(begins[expert], begins[expert] + 16)
                    want = (packed8[part].double() @ w8[expert].double().t()) * sa_packed[part, None].double() * sw[expert].double()
                    if not is_right(label, error_of(out.reshape(-1, 2 * F)[in_tiles[part]], want), 1e-2):
                        calls.pop(label, None)
        by_columns = w8.transpose(1, 2)
        scaled = lambda: torch._scaled_grouped_mm(
            packed8, by_columns, sa_packed, sw, offs=ends, out_dtype=torch.bfloat16, use_fast_accum=True
        )
        try:
            scaled()
            calls["torch eight bits"] = scaled
        except Exception as error:
            print(f"left out: torch eight bits: {str(error)[:200]}", flush=True)
        flops = dict.fromkeys(("eight bits", "torch eight bits"), 4 * rows * F * K)
        report.add("eight_bit", name, times_of(calls, given.rounds), flops, [("eight bits", "torch eight bits")])


def torch_layer(torch):
    """Return the layer as one would write it in PyTorch, for `torch.compile`."""

    def layer(x, scores, gate_up, down, choices):
        weights, index = torch.topk(torch.softmax(scores, -1), choices, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        flat = index.reshape(-1)
        order = flat.argsort(stable=True)
        counts = torch.zeros(scores.shape[1], dtype=torch.int32, device=x.device).scatter_add_(
            0, flat, torch.ones_like(flat, dtype=torch.int32)
        )
        ends, tokens = counts.cumsum(0).to(torch.int32), order // choices
        h = torch._grouped_mm(x[tokens], gate_up.transpose(1, 2), offs=ends)
        gate, up = h.chunk(2, -1)
        d = torch._grouped_mm(torch.nn.functional.silu(gate) * up, down.transpose(1, 2), offs=ends)
        d = d * weights.reshape(-1)[order, None].to(d.dtype)
        return torch.zeros_like(x).index_add_(0, tokens, d)

    return layer


def layers(torch, name, case, tokens, part, given, report):
    """Measure the layer, and with `gradients` its backward pass."""
    import fireiron

    E, K, F, choices = (case[one] for one in ("experts", "width", "hidden", "choices"))
    scores, weights, index = routed(torch, case, tokens)
    x = normal(torch, tokens, K)
    gate_up, down = normal(torch, E, 2 * F, K, scale=0.02), normal(torch, E, K, F, scale=0.02)
    plain = torch_layer(torch)
    picked = torch.randperm(tokens, device="cuda")[:8]
    y = fireiron.experts(x, scores, gate_up, down, top_k=choices)
    again = fireiron.experts(x, scores, gate_up, down, top_k=choices)
    if not torch.equal(y, again):
        print(f"NOT DETERMINISTIC: layer {name} {tokens}", flush=True)
    want = torch.zeros(len(picked), K, device="cuda", dtype=torch.double)
    for place, token in enumerate(picked.tolist()):
        for choice in range(choices):
            expert = int(index[token, choice])
            both = gate_up[expert].double() @ x[token].double()
            h = torch.nn.functional.silu(both[:F]) * both[F:]
            want[place] += weights[token, choice].double() * (down[expert].double() @ h)
    if not is_right(f"layer {name} {tokens}", error_of(y[picked], want), 1e-2):
        return
    calls, flops = {}, {"layer": 6 * tokens * choices * F * K, "torch layer": 6 * tokens * choices * F * K}
    label = f"{name} {tokens}"
    if part == "gradients":
        leaves = [one.detach().requires_grad_() for one in (x, scores, gate_up, down)]
        grad = normal(torch, tokens, K)
        result = fireiron.experts(*leaves, top_k=choices)
        ours = torch.autograd.grad(result, leaves, grad, retain_graph=True)
        other = plain(*leaves, choices)
        rival = torch.autograd.grad(other, leaves, grad, retain_graph=True)
        for which, own, other_grad in zip(("x", "scores", "gate_up", "down"), ours, rival, strict=True):
            part_of = (slice(None, 4),) if own.dim() == 3 else ()
            error = error_of(own[part_of], other_grad[part_of].double())
            print(f"gradient of {which}: {error:.2e} from PyTorch's", flush=True)
            is_right(which, error, 3e-2)
        calls["layer, gradients"] = lambda: torch.autograd.grad(result, leaves, grad, retain_graph=True)
        calls["torch layer, gradients"] = lambda: torch.autograd.grad(other, leaves, grad, retain_graph=True)
        flops = {"layer": 12 * tokens * choices * F * K, "torch layer": 12 * tokens * choices * F * K}
        report.add(part, label, times_of(calls, given.rounds), flops, [("layer", "torch layer, gradients")])
        return
    calls["layer"] = graph_of(torch, lambda: fireiron.experts(x, scores, gate_up, down, top_k=choices))
    calls["layer, routed"] = graph_of(torch, lambda: fireiron.experts(x, (weights, index), gate_up, down))
    compiles = given.compile and tokens == case["tokens"]
    fast = torch.compile(plain, dynamic=False) if compiles else plain
    rival = "torch layer, compiled" if compiles else "torch layer"
    is_right("torch layer", error_of(fast(x, scores, gate_up, down, choices)[picked], want), 2e-2)
    calls[rival] = graph_of(torch, lambda: fast(x, scores, gate_up, down, choices))
    report.add(part, label, times_of(calls, given.rounds), flops, [("layer", rival)])


def traced(torch, case):
    """Verify the layer in a function that `torch.compile` traces."""
    import fireiron

    scores, _, _ = routed(torch, case, 16)
    x = normal(torch, 16, case["width"])
    gate_up = normal(torch, case["experts"], 2 * case["hidden"], case["width"], scale=0.02)
    down = normal(torch, case["experts"], case["width"], case["hidden"], scale=0.02)
    compiled = torch.compile(lambda *given: fireiron.experts(*given, top_k=case["choices"]) + 1, fullgraph=True)
    want = fireiron.experts(x, scores, gate_up, down, top_k=case["choices"]) + 1
    print("traced by torch.compile:", torch.equal(compiled(x, scores, gate_up, down), want), flush=True)


def main():
    """Measure, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--parts", default="products,weights,eight_bit")
    parser.add_argument("--cases", default="mixtral,fine")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compile", action="store_true", help="compare with the layer by torch.compile instead of the eager one")
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--seconds", type=float, default=600, help="begin no part after this time")
    given = parser.parse_args()
    begin = time.monotonic()
    parts, cases = given.parts.split(","), {name: CASES[name] for name in given.cases.split(",")}
    tasks = [("job", job) for case in cases.values() for job in jobs_of(case, parts)]
    for case in cases.values():
        counts = [*((case["tokens"],) if "layer" in parts else ()), *(FEW if "few" in parts else ())]
        plain = [forms_of(case, tokens, False) for tokens in counts]
        forms = [(form, FORWARD[form.rows < ROWS]) for form in plain]
        forms += [(forms_of(case, case["tokens"], True), (*FORWARD[False], *BACKWARD))] if "gradients" in parts else []
        tasks += list(dict.fromkeys(("step", form, step) for form, steps in forms for step in steps))
    with concurrent.futures.ProcessPoolExecutor(given.workers) as pool:
        errors = [one for one in pool.map(compiled, tasks) if one]
    print(f"{len(tasks)} kernels in {time.monotonic() - begin:.0f} s", *errors, sep="\n", flush=True)
    import torch

    torch.manual_seed(0)
    report = Report(given.folder)
    for name, case in cases.items():
        if {*parts} & {"products", "gated", "weights", "eight_bit"} and time.monotonic() - begin < given.seconds:
            attempted(products, torch, name, case, parts, given, report)
            torch.cuda.empty_cache()
            print(f"{time.monotonic() - begin:.0f} s", flush=True)
        counts = [(tokens, "few") for tokens in FEW] if "few" in parts else []
        counts += [(case["tokens"], "layer")] if "layer" in parts else []
        counts += [(case["tokens"], "gradients")] if "gradients" in parts else []
        for tokens, part in counts:
            if time.monotonic() - begin < given.seconds:
                attempted(layers, torch, name, case, tokens, part, given, report)
                torch.cuda.empty_cache()
                print(f"{time.monotonic() - begin:.0f} s", flush=True)
    if "few" in parts and time.monotonic() - begin < given.seconds:
        attempted(traced, torch, next(iter(cases.values())))


if __name__ == "__main__":
    main()
