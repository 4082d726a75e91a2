"""Measure forms of `fireiron.attention`: each is verified in float64 on outputs initialized to NaN, and timed with PyTorch's in one run.

    python perf/attention_forms.py FOLDER [--rounds 3] [--length 4096] [--seconds 140] [--only soft-capping,window]

Heads of 64 to 256 elements, float16 and bfloat16, causal or not; sliding windows, ALiBi, soft-capping; heads that share keys; views of
projections; the log-sum-exp; packed sequences; one query; heads of 72 elements, padded. 16384 tokens. Compared with cuDNN and
FlashAttention-2 (torch's scaled_dot_product_attention), with compiled flex_attention for changed scores and sliding windows, and with
varlen_attn for packed sequences. The row of a changed score gives the fraction of the plain kernel's speed. Takes about 140 seconds; forms
that remain at the time limit are reported. Writes `attention_forms.md` and `attention_forms.json`.
"""

import argparse
import functools
import json
import math
import time
from pathlib import Path

import attrs
from tabulate import tabulate

TOKENS = 16384
CAP = 30.0
SLOPE = 0.5
"""The soft cap of scores; ALiBi of head h has the slope 2**(-SLOPE * (h + 1))."""

FLEX_SECONDS = 12
"""The compile time of a peer: with less time left it is not started."""


@attrs.frozen
class Form:
    """A problem: heads of queries and of keys, head dimension, and options of `fireiron.attention`."""

    name: str
    d: int = 128
    heads: int = 16
    groups: int = 16
    queries: int | None = None
    batch: int | None = None
    length: int | None = None
    dtype: str = "float16"
    layout: str = "bhmd"
    causal: bool = False
    window: int | None = None
    score: str | None = None
    lse: bool = False

    @property
    def options(self):
        """Keywords of `fireiron.attention`."""
        return {name: value for name in ("causal", "window", "score", "lse") if (value := getattr(self, name))}


CAPPED = f"{CAP} * tanh_approx(s / {CAP})"
ALIBI = f"s - exp2(-{SLOPE} * (g + 1)) * (m - n)"

FORMS = (
    Form("plain"),
    Form("soft-capping", score=CAPPED),
    Form("soft-capping exact", score=CAPPED.replace("_approx", "")),
    Form("causal", causal=True),
    Form("ALiBi", causal=True, score=ALIBI),
    Form("window", window=1024),
    Form("packed", causal=True),
    Form("heads of 64", d=64, heads=32, groups=32),
    Form("soft-capping of 64", d=64, heads=32, groups=32, score=CAPPED),
    Form("heads of 96", d=96),
    Form("heads of 256", d=256, heads=8, groups=8),
    Form("heads of 256 causal", d=256, heads=8, groups=8, causal=True),
    Form("bfloat16", dtype="bfloat16"),
    Form("bfloat16 causal", dtype="bfloat16", causal=True),
    Form("4 heads of keys", groups=4, causal=True),
    Form("projections", layout="bmhd"),
    Form("log-sum-exp", lse=True),
    Form("one query", heads=32, groups=8, queries=1, batch=8, length=16384),
    Form("heads of 72", d=72),
    Form("heads of 64 causal", d=64, heads=32, groups=32, causal=True),
    Form("heads of 96 causal", d=96, causal=True),
)


# ---------------------------------------------------------------------------------------------- arrays


def sets_of(torch, form, length):
    """Return two sets (q, k, v) of standard normal numbers."""
    batch = form.batch or TOKENS // length
    shapes = [(batch, form.heads, form.queries or length, form.d), *[(batch, form.groups, length, form.d)] * 2]

    def drawn(shape):
        b, h, m, d = shape
        tensor = torch.randn((b, m, h, d) if form.layout == "bmhd" else shape, device="cuda", dtype=getattr(torch, form.dtype))
        return tensor.transpose(1, 2) if form.layout == "bmhd" else tensor

    return [[drawn(shape) for shape in shapes] for _ in range(2)]


def offsets_of(torch, length):
    """Return sequences of very different lengths that sum to all tokens."""
    lengths, left = [], TOKENS
    while left:
        lengths.append(min(left, (length, length // 3 + 1, 2 * length - 5, 77, length // 2)[len(lengths) % 5]))
        left -= lengths[-1]
    return torch.tensor([0, *lengths], device="cuda").cumsum(0).to(torch.int32)


def reference(torch, form, q, k, v, batch, head):
    """Return the result of a head, and its log-sum-exp, in float64."""
    shared = form.heads // form.groups
    keys, values = k[batch, head // shared].double(), v[batch, head // shared].double()
    results, sums = [], []
    for start in range(0, q.shape[2], 2048):
        scores = q[batch, head, start : start + 2048].double() @ keys.T * form.d**-0.5
        m, n = torch.arange(start, start + len(scores), device="cuda")[:, None], torch.arange(len(keys), device="cuda")
        if form.score and "tanh" in form.score:
            scores = CAP * torch.tanh(scores / CAP)
        elif form.score:
            scores = scores - 2.0 ** (-SLOPE * (head + 1)) * (m - n)
        if form.causal or form.window:
            scores = scores.masked_fill(n > m, -math.inf)
        if form.window:
            scores = scores.masked_fill(m >= n + form.window, -math.inf)
        results.append(scores.softmax(-1) @ values)
        sums.append(scores.logsumexp(-1))
    return torch.cat(results), torch.cat(sums)


def verified(torch, form, call, arrays, outs):
    """Return the largest error of the first, a middle and the last head; a `SystemExit` if it is too large."""
    for out in outs:
        out.fill_(math.nan)
    call()
    worst, (q, k, v) = 0.0, arrays
    for batch, head in {(0, 0), (q.shape[0] // 2, form.heads // 2), (q.shape[0] - 1, form.heads - 1)}:
        right, sums = reference(torch, form, q, k, v, batch, head)
        worst = max(worst, float((outs[0][batch, head].double() - right).norm() / right.norm()))
        if form.lse:
            worst = max(worst, float((outs[1][batch, head].double() - sums).abs().max() / 10))
    if not worst < (8e-3 if form.dtype == "bfloat16" else 2e-3 if form.score else 1e-3):
        raise SystemExit(f"wrong: {form}: error {worst}")
    return worst


# ---------------------------------------------------------------------------------------------- launches


def ours(torch, form, sets):
    """Launches, an error, and the choice."""
    import fireiron

    calls, outs = [], []
    for arrays in sets:
        given = [torch.nn.functional.pad(part, (0, -form.d % 16)) for part in arrays] if form.d % 16 else arrays
        out = [torch.empty_like(given[0])]
        out += [torch.empty(arrays[0].shape[:-1], device="cuda")] if form.lse else []
        named = {"out": tuple(out) if form.lse else out[0], "scale": form.d**-0.5, **form.options}
        calls.append(functools.partial(fireiron.attention, *given, **named))
        outs.append([out[0][..., : form.d], *out[1:]])
    chosen = fireiron.attention.choice(*given, out=named["out"], **form.options)
    choice = chosen.why.partition("; the default for ")[2].partition(": ")[2].partition(";")[0] or chosen.why
    return calls, verified(torch, form, calls[0], sets[0], outs[0]), choice


def packed(torch, form, sets, length):
    """Return the launches for packed sequences. The offsets are computed before the measurement, because models compute them only once."""
    from fireiron import float16
    from fireiron.strategies import attention_packed

    offsets = offsets_of(torch, length)
    low, high = (one.view(-1, attention_packed.TILE) for one in attention_packed.ranges(offsets, TOKENS, causal=form.causal))
    places = (*attention_packed.of_tiles(low, high), low, high)
    kernel = attention_packed.kernel(attention_packed.TILE, form.d, form.heads, form.groups, float16, "sm_90a")
    calls, tokens = [], []
    for arrays in sets:
        q, k, v = (part.transpose(1, 2).reshape(TOKENS, -1, form.d).contiguous() for part in arrays)
        out = torch.empty_like(q)
        tiles = lambda part: part.view(-1, attention_packed.TILE, form.groups, form.heads // form.groups, form.d)
        calls.append(functools.partial(kernel, tiles(q), k, v, form.d**-0.5, *places, out=tiles(out)))
        tokens.append((q, k, v, out))
    q, k, v, out = tokens[0]
    out.fill_(math.nan)
    calls[0]()
    worst = 0.0
    for first, last in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        parts = [part[first:last].transpose(0, 1)[None] for part in (q, k, v)]
        right, _ = reference(torch, form, *parts, 0, form.heads - 1)
        worst = max(worst, float((out[first:last, -1].double() - right).norm() / right.norm()))
    if not worst < 1e-3:
        raise SystemExit(f"wrong: packed: {worst}")
    peers = working(torch, form, {"FA2 varlen": lambda: [varlen(torch, one, offsets, form) for one in tokens]})
    pairs = sum((last - first) ** 2 for first, last in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True))
    return calls, worst, "attention_packed:hopper", peers, 4 * pairs / 2 * form.heads * form.d


def varlen(torch, arrays, offsets, form):
    """Return Torch's attention for packed sequences: FlashAttention-2."""
    q, k, v, _ = arrays
    longest = int((offsets[1:] - offsets[:-1]).max())
    flash = torch.ops.aten._flash_attention_forward
    return lambda: flash(q, k, v, offsets, offsets, longest, longest, 0.0, form.causal, False)


def by_torch(torch, backend, form, arrays):
    """Return a launch of torch's attention by a backend."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = arrays

    def call():
        with sdpa_kernel(getattr(SDPBackend, backend)), torch.no_grad():
            grouped = {"enable_gqa": True} if form.groups < form.heads else {}
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=form.causal, **grouped)

    return call


def by_flex(torch, form, sets, length):
    """Return launches of flex_attention, compiled."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    flex = torch.compile(flex_attention, dynamic=False)

    def capped(score, b, h, m, n):
        return CAP * torch.tanh(score / CAP)

    def sloped(score, b, h, m, n):
        return score - torch.exp2(-SLOPE * (h + 1)) * (m - n)

    def seen(b, h, m, n):
        return (n <= m) & (m < n + (form.window or length))

    mask = create_block_mask(seen, None, None, length, length, device="cuda") if form.causal or form.window else None
    changed = None if form.score is None else capped if "tanh" in form.score else sloped
    return [functools.partial(flex, *one, score_mod=changed, block_mask=mask) for one in sets]


def peers_of(torch, form, sets, length, left):
    """Return launches by the name of a peer; those that raise are left out."""
    if form.score or form.window:
        return working(torch, form, {"flex": lambda: by_flex(torch, form, sets, length)} if left > FLEX_SECONDS else {})
    names = {"cuDNN": "CUDNN_ATTENTION", "FA2": "FLASH_ATTENTION"}
    on_all_sets = lambda backend: [by_torch(torch, backend, form, one) for one in sets]
    return working(torch, form, {name: functools.partial(on_all_sets, one) for name, one in names.items()})


def working(torch, form, makers):
    """Return the launches that run here."""
    launches = {}
    for name, make in makers.items():
        try:
            calls = make()
            for call in calls:
                call()
            torch.cuda.synchronize()
            launches[name] = calls
        except Exception as error:
            print(f"left out: {form.name}: {name}: {str(error).splitlines()[0][:160]}", flush=True)
    return launches


def work_of(form, length):
    """Return floating-point operations of the unmasked scores."""
    rows, batch = form.queries or length, form.batch or TOKENS // length
    seen = rows * length / (2 if form.causal else 1)
    if form.window:
        seen = length * form.window - form.window**2 / 2
    return 4 * batch * form.heads * form.d * seen


# ---------------------------------------------------------------------------------------------- the table

HEADS = ("form", "us", "TFLOP/s", "best peer us", "peer", "peer/ours", "of plain", "error", "chosen")


def measured(torch, form, given, left):
    """Return a row of the table, and all times."""
    from fireiron.measure.timing import measure

    length = form.length or given.length
    sets = sets_of(torch, form, length)
    if form.name == "packed":
        calls, error, chosen, peers, work = packed(torch, form, sets, length)
    else:
        calls, error, chosen = ours(torch, form, sets)
        peers, work = peers_of(torch, form, sets, length, left), work_of(form, length)
    times = {name: one.us for name, one in measure({"ours": calls, **peers}, rounds=given.rounds, pause=0.1).items()}
    best = min(peers, key=times.get, default=None)
    peer = times.get(best, math.nan)
    speed = work / times["ours"] / 1e6
    return [form.name, times["ours"], speed, peer, best or "", peer / times["ours"], None, error, chosen], times


def main():
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=140)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    import torch

    from fireiron.measure.timing import environment

    start, rows, kept = time.monotonic(), [], {}
    torch.manual_seed(0)
    names = given.only.split(",") if given.only else [form.name for form in FORMS]
    given.folder.mkdir(parents=True, exist_ok=True)
    for form in (one for one in FORMS if one.name in names):
        left = given.seconds - (time.monotonic() - start)
        if left < 0:
            print(f"the time limit is reached: omitted from {form.name} on", flush=True)
            break
        row, kept[form.name] = measured(torch, form, given, left)
        speeds = {(one[0]): one[2] for one in rows}
        plain = {"ALiBi": "causal", "soft-capping of 64": "heads of 64"}.get(form.name, "plain")
        row[6] = row[2] / speeds[plain] if form.score and plain in speeds else None
        rows.append(row)
        print([f"{one:.4g}" if isinstance(one, float) else one for one in row], f"{time.monotonic() - start:.0f} s", flush=True)
        table = tabulate(rows, HEADS, floatfmt=".4g", tablefmt="github")
        (given.folder / "attention_forms.md").write_text(table + "\n")
        report = {"environment": environment(), "rows": [dict(zip(HEADS, one, strict=True)) for one in rows], "us": kept}
        (given.folder / "attention_forms.json").write_text(json.dumps(report, indent=1) + "\n")
        torch.cuda.empty_cache()
    print(table)


if __name__ == "__main__":
    main()
