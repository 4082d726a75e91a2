"""Compare decoding with pages and lengths with cuDNN, FlashAttention-2, a gather followed by cuDNN, a kernel that only reads, and copies.

    python perf/paged.py FOLDER [--only gqa,ragged,long,tokens,tokens2,tokens8,latent,latent16] [--rounds 5] [--all]

`gqa`: 16 sequences of 8192 keys, 32 query heads over 8 key heads, 128 elements, float16; caches contiguous and in pages of 16, 64 and 256
keys, and in float8_e4m3. `ragged`: lengths from 1 to 8192. `long`: 8 sequences of 32768 keys. `tokens`, `tokens2`, `tokens8`: 4, 2, 8
queries of each sequence. `latent`: 32 sequences of 8192 latent
vectors of 512 + 64 elements, bfloat16, 128 and 16 heads.

Each result is first compared with float32 by PyTorch, on outputs initialized to NaN, with NaN in all unused memory of the caches, and 20
calls are compared bit by bit. Two sets of arrays rotate, which exceed L2. `--all` adds numbers of parts and tunable values. Cases are
prepared in parallel processes and measured one after the other. Writes `paged.md`.
"""

import argparse
import fcntl
import functools
import math
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import attrs
from skinny import READER
from tabulate import tabulate


@attrs.frozen
class Case:
    """A problem: sequences, heads of queries and of keys, elements, keys of a sequence, queries, and whether lengths differ."""

    batch: int = 16
    heads: int = 32
    groups: int = 8
    d: int = 128
    keys: int = 8192
    queries: int = 1
    is_ragged: bool = False

    def lengths(self, torch):
        """The lengths of sequences."""
        if not self.is_ragged:
            return torch.full((self.batch,), self.keys, dtype=torch.int32, device="cuda")
        draw = torch.Generator().manual_seed(5)
        return torch.randint(1, self.keys + 1, (self.batch,), generator=draw).to(device="cuda", dtype=torch.int32)


CASES = {"gqa": Case(), "ragged": Case(is_ragged=True), "long": Case(batch=8, keys=32768)}
CASES |= {"tokens": Case(queries=4), "tokens2": Case(queries=2), "tokens8": Case(queries=8)}
LATENT = {"latent": 128, "latent16": 16}
"""Numbers of heads."""

PAGES = (None, 16, 64, 256)

BLOCKS = (0.5, 2)
"""Factors of the number of parts."""


def caches(torch, case, page, seed, dtype="float16"):
    """Return queries, caches, a table and lengths; unused memory is NaN, unused entries of the table are no pages."""
    torch.manual_seed(seed)
    kind, lengths = getattr(torch, dtype), case.lengths(torch)
    q = torch.randn(case.batch, case.heads, case.queries, case.d, device="cuda", dtype=torch.float16)
    size = page or case.keys
    count = case.batch * (case.keys // size)
    k, v = (torch.randn(count, size, case.groups, case.d, device="cuda", dtype=torch.float16) for _ in range(2))
    table = torch.randperm(count, device="cuda").view(case.batch, -1) if page else torch.arange(count, device="cuda")[:, None]
    if case.is_ragged:
        place = torch.arange(case.keys, device="cuda").view(-1, size)
        unused = torch.empty(count, size, dtype=torch.bool, device="cuda")
        unused[table] = place >= lengths[:, None, None]
        k[unused], v[unused] = math.nan, math.nan
        table = torch.where(place[:, 0] < lengths[:, None], table, -1)
    return q, k.to(kind), v.to(kind), table.to(torch.int32) if page else None, lengths


def softmax(torch, case, arrays):
    """Return the result by PyTorch in float32."""
    q, k, v, table, lengths = arrays
    out, wide = torch.empty(q.shape, device="cuda"), [one.half() for one in (k, v)]
    for b, length in enumerate(lengths.tolist()):
        keys, values = (
            stored[b] if table is None else stored[table[b, : -(-length // k.shape[1])].long()].flatten(0, 1) for stored in wide
        )
        keys, values = (one[:length].float().repeat_interleave(case.heads // case.groups, 1).transpose(0, 1) for one in (keys, values))
        m, n = torch.arange(case.queries, device="cuda")[:, None] + length - case.queries, torch.arange(length, device="cuda")
        s = (q[b].float() @ keys.transpose(1, 2)) * q.shape[-1] ** -0.5
        s = s.masked_fill(n > m, -math.inf)
        out[b] = torch.nan_to_num(s.softmax(-1)) @ values
    return out


def verified(torch, name, call, out, expected, bound=2e-3):
    """Print the error of a call; return whether it is below the bound, and 20 results are equal."""
    out.fill_(math.nan)
    call()
    error = float((out.float() - expected).norm() / expected.norm())
    first = out.clone()
    equal = True
    for _ in range(20):
        out.fill_(math.nan)
        call()
        equal &= bool(torch.equal(out, first))
    print(f"{name}: error {error:.1e}, {'equal' if equal else 'DIFFERENT'} in 20 calls", flush=True)
    return error < bound and equal


def bound_call(function, arrays, out, **options):
    """Return a launch with a new answer, which patched values of the library determine."""
    request = function.request(*arrays, out=out, **options)
    answer = function.call.new_answer(request)
    return functools.partial(answer, (*request.inputs, *request.numbers), out, None)


@attrs.frozen
class Function:
    """A function of arrays, and the function that makes its requests."""

    call: object
    request: object


def paged():
    """`fireiron.paged_attention`."""
    import fireiron

    return Function(fireiron.paged_attention, sys.modules["fireiron.paged_attention"].request)


def latent():
    """`fireiron.latent_attention`."""
    import fireiron

    return Function(fireiron.latent_attention, sys.modules["fireiron.latent_attention"].request)


def patched(factor=1, **values):
    """Return a context in which the library uses another number of parts, and other tunable values."""
    from fireiron.strategies import attention_paged

    own = attention_paged.values
    stack = mock.patch.multiple(
        attention_paged, BLOCKS=int(attention_paged.BLOCKS * factor), values=lambda spec: {**own(spec), **values}
    )  # fmt: skip
    return stack


def forms(case, everything):
    """Return page sizes, element types, factors of the number of parts, and tunable values, by name."""
    kinds = {f"paged {page}": (page, "float16", 1, {}) for page in PAGES}
    kinds |= {f"paged 64 x{factor}": (64, "float16", factor, {}) for factor in BLOCKS}
    kinds["paged 64 fp8"], kinds["contiguous fp8"] = ((page, "float8_e4m3fn", 1, {}) for page in (64, None))
    if case.queries > 1:
        return kinds
    kinds["paged 64, 7 blocks per SM"] = (64, "float16", 0.875, {"stages": 3})
    kinds["paged 64 fp8 bn 32"] = (64, "float8_e4m3fn", 1, {"bn": 32, "stages": 2})
    if everything:
        kinds["paged 64 x0.5, 4 stages"] = (64, "float16", 0.5, {"stages": 4})
        kinds["paged 64 fp8 x0.5"] = (64, "float8_e4m3fn", 0.5, {})
        kinds["paged 64 fp8 x0.5 bn 32"] = (64, "float8_e4m3fn", 0.5, {"bn": 32, "stages": 3})
    return kinds


def of_case(torch, name, case, everything):
    """Return the launches of all contenders, verified, by name."""
    import cupy

    import fireiron

    calls = {}
    for form, (page, dtype, factor, values) in forms(case, everything).items():
        sets = [caches(torch, case, page, seed, dtype) for seed in (0, 1)]
        outs = [torch.empty_like(one[0]) for one in sets]
        with patched(factor, **values):
            try:
                launches = [bound_call(paged(), one, out) for one, out in zip(sets, outs, strict=True)]
                right = verified(torch, f"{name} {form}", launches[0], outs[0], softmax(torch, case, sets[0]))
            except (fireiron.FireironError, RuntimeError) as error:
                print(f"left out: {name} {form}: {error}", flush=True)
                continue
        calls[form if right else f"WRONG {form}"] = launches
        if page == 64 and form == "paged 64":
            calls["gather, cuDNN"] = [functools.partial(gathered, torch, case, one) for one in sets]
    sets = [caches(torch, case, None, seed) for seed in (0, 1)]
    wide = [(q, k.transpose(1, 2).contiguous(), v.transpose(1, 2).contiguous()) for q, k, v, _, _ in sets]
    if case.queries == 1 and not case.is_ragged:
        outs = [torch.empty_like(one[0]) for one in wide]
        calls["attention"] = [functools.partial(fireiron.attention, *one, out=out) for one, out in zip(wide, outs, strict=True)]
        verified(torch, f"{name} attention", calls["attention"][0], outs[0], softmax(torch, case, sets[0]))
        for backend in ("CUDNN_ATTENTION", "FLASH_ATTENTION"):
            peers = [functools.partial(by_torch, torch, backend, case, one) for one in wide]
            try:
                peers[0]()
            except RuntimeError as error:
                print(f"left out: {name} {backend}: {str(error).splitlines()[0]}", flush=True)
                continue
            calls[backend.split("_")[0]] = peers
    both = [torch.stack(one[1:3]) for one in sets]
    target = torch.empty_like(both[0])
    kernel, sink = cupy.RawKernel(READER, "read_all"), cupy.zeros(1, dtype=cupy.uint32)
    blocks = (4 * cupy.cuda.Device().attributes["MultiProcessorCount"],)
    calls["reader"] = [functools.partial(kernel, blocks, (512,), (one.data_ptr(), one.numel() * 2 // 16, sink)) for one in both]
    calls["copy"] = [functools.partial(target.copy_, one) for one in both]
    return calls


def by_torch(torch, backend, case, arrays):
    """PyTorch's attention, with the heads that share keys as rows: keys are read once."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = arrays
    with sdpa_kernel(getattr(SDPBackend, backend)), torch.no_grad():
        return torch.nn.functional.scaled_dot_product_attention(q.view(case.batch, case.groups, -1, case.d), k, v)


def gathered(torch, case, arrays):
    """Copy pages to contiguous keys, then PyTorch's attention, with a mask of the lengths if they differ."""
    q, k, v, table, lengths = arrays
    keys, values = (one[table.clamp(min=0).long()].flatten(1, 2).transpose(1, 2) for one in (k, v))
    mask = None
    if case.is_ragged:
        mask = (torch.arange(case.keys, device="cuda") < lengths[:, None])[:, None, None]
    with torch.no_grad():
        rows = q.reshape(case.batch, case.groups, -1, case.d)
        return torch.nn.functional.scaled_dot_product_attention(rows, keys, values, attn_mask=mask)


# ---------------------------------------------------------------------------------------------- latent vectors


def of_latent(torch, name, heads, everything):
    """Return the launches of all contenders for latent vectors, verified, by name."""
    import fireiron
    from fireiron import latent_attention_kernels

    batch, keys, d, calls = 32, 8192, 576, {}
    for form, page, sms in [
        ("paged 64", 64, 132),
        ("contiguous", None, 132),
        *([("paged 64 x2", 64, 264), ("paged 16", 16, 132)] * everything),
    ]:
        sets, outs = [], []
        for seed in (0, 1):
            torch.manual_seed(seed)
            count = batch * keys // (page or keys)
            cache = torch.randn(count, page or keys, d, device="cuda", dtype=torch.bfloat16)
            table = torch.randperm(count, device="cuda").to(torch.int32).view(batch, -1) if page else None
            lengths = torch.full((batch,), keys - 5 * seed, dtype=torch.int32, device="cuda")
            sets.append((torch.randn(batch, heads, 1, d, device="cuda", dtype=torch.bfloat16), cache, table, lengths))
            outs.append(torch.empty(batch, heads, 1, 512, device="cuda", dtype=torch.bfloat16))
        with mock.patch.object(latent_attention_kernels, "BLOCKS", sms):
            try:
                launches = [bound_call(latent(), one, out) for one, out in zip(sets, outs, strict=True)]
                right = all(
                    verified(torch, f"{name} {form}", call, out, latent_softmax(torch, arrays), 1e-2)
                    for arrays, call, out in zip(sets, launches, outs, strict=True)
                )
            except (fireiron.FireironError, RuntimeError) as error:
                print(f"left out: {name} {form}: {error}", flush=True)
                continue
        calls[form if right else f"WRONG {form}"] = launches
        if form == "contiguous":
            target = torch.empty_like(sets[0][1])
            calls["bmm, softmax, bmm"] = [functools.partial(by_bmm, torch, arrays) for arrays in sets]
            calls["copy"] = [functools.partial(target.copy_, arrays[1]) for arrays in sets]
    return calls


def latent_softmax(torch, arrays):
    """Return the result by PyTorch in float32."""
    q, cache, table, lengths = arrays
    results = []
    for b, length in enumerate(lengths.tolist()):
        keys = (cache[b] if table is None else cache[table[b].long()].flatten(0, 1))[:length].float()
        results.append(((q[b, :, 0].float() @ keys.T) * q.shape[-1] ** -0.5).softmax(-1) @ keys[:, :512])
    return torch.stack(results)[:, :, None]


def by_bmm(torch, arrays):
    """Two matmuls and a softmax of contiguous latent vectors."""
    q, cache, _, _ = arrays
    scores = torch.baddbmm(q.new_zeros(1), q[:, :, 0], cache.transpose(1, 2), beta=0, alpha=q.shape[-1] ** -0.5)
    return torch.bmm(scores.softmax(-1), cache[..., :512])


# ---------------------------------------------------------------------------------------------- main


def by_processes(given, names):
    """Prepare each case in a process, all at the same time, and measure one after the other when all are prepared."""
    given.folder.mkdir(parents=True, exist_ok=True)
    for old in given.folder.glob("ready.*"):
        old.unlink()
    options = [*["--all"] * given.all, "--rounds", str(given.rounds), "--waits", str(len(names) + given.waits)]
    running = [subprocess.Popen([sys.executable, __file__, str(given.folder), *options, "--only", name]) for name in names]
    failed = [name for name, process in zip(names, running, strict=True) if process.wait()]
    tables = [given.folder / f"paged_{name}.md" for name in names if name not in failed]
    text = "".join(line for place, table in enumerate(tables) for line in table.read_text().splitlines(keepends=True)[2 * (place > 0) :])
    (given.folder / "paged.md").write_text(text)
    if failed:
        raise SystemExit(f"failed: {failed}")


def wait(folder, name, count):
    """Wait until all of `count` cases are prepared, at most a minute."""
    (folder / f"ready.{name}").touch()
    start = time.monotonic()
    while len(list(folder.glob("ready.*"))) < count and time.monotonic() < start + 60:
        time.sleep(0.2)


def measured(torch, name, calls, rounds):
    """Return the rows of the table for the contenders of a case."""
    from fireiron.measure.timing import measure

    times = {contender: timing.us for contender, timing in measure(calls, rounds=rounds, pause=0.05).items()}
    reference = times.get("reader", times["copy"])
    for contender, us in times.items():
        print(name, contender, f"{us:.1f} us, {reference / us:.3f}", flush=True)
    return [[name, contender, us, reference / us] for contender, us in times.items()]


def main():
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default=",".join([*CASES, *LATENT]))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--waits", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    names = given.only.split(",")
    if len(names) > 1:
        return by_processes(given, names)
    import torch

    (name,) = names
    calls = of_case(torch, name, CASES[name], given.all) if name in CASES else of_latent(torch, name, LATENT[name], given.all)
    if given.waits:
        wait(given.folder, name, given.waits)
    given.folder.mkdir(parents=True, exist_ok=True)
    with open(given.folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        rows = measured(torch, name, calls, given.rounds)
    table = tabulate(rows, ("case", "contender", "us", "reader, or copy / us"), floatfmt=".4g", tablefmt="github")
    (given.folder / f"paged_{name}.md").write_text(table + "\n")
    return None


if __name__ == "__main__":
    main()
