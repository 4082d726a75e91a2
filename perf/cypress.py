"""Compare Cypress's experiments (PLDI 2025, section 5; Figures 13 and 14) on Hopper with ours, with one decision of a mapping changed at a
time.

    python perf/cypress.py FOLDER [--only gemm,batched,dual,row_sum,attention,causal] [--sizes 4096,6144,8192] [--lengths 512,1024,2048,4096,8192,16384]
        [--rounds 4] [--regimes burst,busy] [--no-forms]
    python perf/cypress.py FOLDER --page        no GPU: the page and the plots of the present files

Inputs are normally distributed float16, accumulated in float32. Each kernel is first compared with float64, on outputs initialized to NaN.
Our kernels are compared with cuBLAS, cuDNN, FlashAttention-2, and Triton with TMA and wgmma (`triton_tma.py`). Triton is restricted to
mma.sync in the experiments `dual80`, `row_sum80` and `attention80`, whose kernels are those for sm_80 (there FlashAttention-2 is the peer).
All contenders are measured once, then the best of each group alternately, in bursts and busy, and with the paper's method: the mean of 100
launches after 5 (`published` in the files).

The forms, which differ from the first one in one decision, are measured at the first size (of attention: 4096). Other processes compile
meanwhile. On an H200 this takes about 25 seconds to begin with, then 14 per problem with forms and 8 without. Writes `cypress-NAME.json`
for each experiment, and `cypress.md` for all present ones; with `--page` also a plot of each (`.svg`, with matplotlib).
"""

import argparse
import inspect
import json
import math
from pathlib import Path

from attention import WIDTH, by_kernel, by_torch, spec_of
from attention import sets_of as attention_sets
from fused import CompilePool, Contenders, best, error_of, say, sets_of
from tabulate import tabulate

from fireiron import Load, Split
from fireiron.language.library import defaults, find
from fireiron.refine.mma_in_flight import MmaInFlight
from fireiron.refine.stages import Stages
from fireiron.refine.warp_specialize import WarpSpecialize
from fireiron.strategies import attention, dual, gemm_row_sum, hopper, hopper_attention, hopper_batched

TOKENS, BATCH = 16384, 16

WIDE = {"bm": 128, "bn": 256, "bk": 64, "wm": 64, "wn": 256, "epi_m": 64, "epi_n": 64, "stages": 4, "group_m": 8}
SQUARE = {"bm": 192, "bn": 192, "bk": 64, "wm": 64, "wn": 192, "epi_m": 64, "epi_n": 192, "stages": 3, "group_m": 4}
TILES = {
    "128x256": WIDE,
    "128x256, stored at once": WIDE | {"epi_n": 256, "stages": 3, "group_m": 4},
    "192x192": SQUARE,
    "128x224": WIDE | {"bn": 224, "wn": 224, "epi_n": 32, "group_m": 4},
}
"""For plain GEMM: tiles among the fastest on an H200."""

MAPPINGS = {
    "no producer": None,
    "one block per tile": {"num_blocks": 65536},
    "3 stages": {"stages": 3},
    "2 stages": {"stages": 2},
    "clusters of 2": {"cluster_m": 2},
    "three consumer warpgroups (192x192)": SQUARE | {"epi_n": 64},
    "accumulators of 128 rows per warpgroup (128x128)": {"bn": 128, "wm": 128, "wn": 64, "stages": 6},
}
"""For plain GEMM: changes to the first tile; None: all threads load, in program order."""


def unspecialized(strategy):
    """Return the mapping without a producer: all threads load, then wait and multiply."""
    for at, kind in ((Split, MmaInFlight), (Load, Stages), (Split, WarpSpecialize)):
        places = [step for step in strategy.steps if isinstance(step, at) and any(isinstance(one, kind) for one in step.refinements)]
        for step in places:
            strategy = strategy.at(at, getattr(step, "operand", None)).unrefine(kind)
    return strategy


def forms_of(strategy, base, changes):
    """Return strategies by name: the base, and variants of it."""
    forms = {"form as it is": strategy.with_(**base)}
    for name, values in changes.items():
        mapped = unspecialized(strategy) if values is None else strategy
        known = mapped.tunables()
        forms[f"form {name}"] = mapped.with_(**{key: value for key, value in {**base, **(values or {})}.items() if key in known})
    return forms


def choices_of(strategy, *choices):
    """Return strategies by name, `ours {}`, without choices that the strategy does not have."""
    known = {name: one.values for name, one in strategy.tunables().items()}
    legal = [one for one in choices if all(value in known.get(name, ()) for name, value in one.items())]
    return {f"ours {one or ''}".strip(): strategy.with_(**one) for one in legal}


class Experiment:
    """A computation and its contenders: `contenders` maps prefixes of names to titles, ours first; `paper` is the paper's result, on an
    H100.
    """

    name, title, paper = "", "", ""
    contenders = (("ours", "Fireiron"), ("cuBLAS", "cuBLAS"), ("Triton", "Triton"))
    target = "sm_90a"

    @property
    def groups(self):
        """Titles of contenders by the prefix of their names."""
        return dict(self.contenders)

    def problems(self, options):
        """Sizes; the forms are measured at the first one."""
        return options.sizes

    def label(self, problem):
        """Return a title."""
        return f"{problem}^3"

    def jobs(self, problem, forms):
        """Return pairs of strategies by name and their spec."""
        raise NotImplementedError

    def trial(self, problem, kernels):
        """Return all contenders, including ours."""
        raise NotImplementedError


def drawn(*shape):
    """Return normally distributed float16 numbers."""
    import torch

    return torch.randn(*shape, device="cuda").half()


def like(*shape):
    """Return an uninitialized result."""
    import torch

    return torch.empty(*shape, device="cuda", dtype=torch.half)


class Gemm(Experiment):
    """One GEMM."""

    name, title = "gemm", "E1: GEMM (Figure 13a)"
    paper = "0.88 to 1.06 of cuBLAS, 1.05 to 1.11 of Triton"

    def work(self, n):
        return 2 * n**3

    def jobs(self, n, forms):
        strategies = {f"ours {name}": hopper.product.with_(**values) for name, values in TILES.items()}
        return [(strategies | (forms_of(hopper.product, WIDE, MAPPINGS) if forms else {}), hopper.spec(n, n, n))]

    def trial(self, n, kernels):
        import torch
        import triton_wgmma

        from fireiron import matmul

        count = sets_of(6 * n * n)
        a, b, d = drawn(count, n, n), drawn(count, n, n), like(count, n, n)
        contenders = Contenders(d, a[0].double() @ b[0].double())
        chosen = matmul.kernel(a[0], b[0], d[0])
        for name, kernel in {**kernels, "ours, what matmul takes": chosen}.items():
            contenders.add(name, lambda one, kernel=kernel: kernel.prepare(a[one], b[one], out=d[one]))
        contenders.add("cuBLAS", lambda one: lambda: torch.matmul(a[one], b[one], out=d[one]))
        for config in triton_wgmma.CONFIGS[-4:]:
            contenders.add(f"Triton {config}", lambda one, c=config: triton_wgmma.launcher(a[one], b[one], d[one], c))
        return contenders


class Batched(Gemm):
    """Batched GEMM."""

    name, title = "batched", f"E2: batched GEMM, {BATCH} matrices (Figure 13b)"
    paper = "competitive with cuBLAS, slightly above at the largest size"

    def problems(self, options):
        return [one // 4 * 4 for one in options.stacks]

    def label(self, n):
        return f"{BATCH} x {n}^3"

    def work(self, n):
        return 2 * BATCH * n**3

    def jobs(self, n, forms):
        strategy = hopper_batched.strategy
        strategies = {f"ours {name}": strategy.with_(**values) for name, values in TILES.items()}
        return [(strategies | (forms_of(strategy, WIDE, MAPPINGS) if forms else {}), hopper_batched.spec(n, n, n, BATCH))]

    def trial(self, n, kernels):
        import torch
        import triton_tma

        count = sets_of(6 * BATCH * n * n)
        a, b, d = drawn(count, BATCH, n, n), drawn(count, BATCH, n, n), like(count, BATCH, n, n)
        contenders = Contenders(d, torch.stack([left.double() @ right.double() for left, right in zip(a[0], b[0], strict=True)]))
        for name, kernel in kernels.items():
            contenders.add(name, lambda one, kernel=kernel: kernel.prepare(a[one], b[one], out=d[one]))
        contenders.add("cuBLAS", lambda one: lambda: torch.matmul(a[one], b[one], out=d[one]))
        for tiles in triton_tma.STACKS:
            contenders.add(f"Triton {tiles}", lambda one, t=tiles: triton_tma.batched(a[one], b[one], d[one], t))
        return contenders


class Dual(Experiment):
    """Two GEMMs with a common operand."""

    name, title = "dual", "E3: dual GEMM, A·B1 + A·B2 (Figure 13c)"
    paper = "1.36 to 1.40 of Triton"
    contenders = (("ours", "Fireiron"), ("cuBLAS", "two of cuBLAS"), ("Triton", "Triton"), ("torch.compile", "torch.compile"))

    def work(self, n):
        return 4 * n**3

    def jobs(self, n, forms):
        base = dual.hopper
        choices = (
            {},
            {"depth": 4},
            {"bk": 32, "stages": 4, "depth": 4},
            {"group_m": 8},
            {"bm": 192, "bn": 192},
            {"depth": 2, "epi_n": 128},
        )
        mappings = {
            "no producer": None,
            "one block per tile": {"num_blocks": 65536},
            "no separate ring for A (2 stages of each)": {"depth": 2},
            "a wait for each MMA": {"mma_in_flight": 0},
            "128x128": {"bn": 128, "stages": 4, "depth": 4},
        }
        return [(choices_of(base, *choices) | (forms_of(base, {}, mappings) if forms else {}), dual.spec(n, n, n))]

    def tensors(self, n):
        """`(a, both, d)` of all sets."""
        count = sets_of(8 * n * n)
        return drawn(count, n, n), drawn(count, 2, n, n), like(count, n, n)

    def trial(self, n, kernels):
        import torch
        import triton_tma

        a, both, d = self.tensors(n)
        contenders = Contenders(d, a[0].double() @ (both[0, 0].double() + both[0, 1].double()))
        for name, kernel in kernels.items():
            contenders.add(name, lambda one, kernel=kernel: kernel.prepare(a[one], both[one, 0], both[one, 1], out=d[one]))
        contenders.add("cuBLAS", lambda one: lambda: torch.matmul(a[one], both[one, 0], out=d[one]).addmm_(a[one], both[one, 1]))
        compiled = torch.compile(lambda a, left, right: a @ left + a @ right)
        contenders.add("torch.compile", lambda one: lambda: compiled(a[one], both[one, 0], both[one, 1]), returned=True)
        for tiles in triton_tma.DUALS:
            contenders.add(f"Triton {tiles}", lambda one, t=tiles: triton_tma.dual(a[one], both[one], d[one], t))
        return contenders


class RowSum(Experiment):
    """A GEMM, and the sums of the rows of its first operand."""

    name, title = "row_sum", "E4: GEMM + row sum of A (Figure 13d)"
    contenders = (
        ("ours", "Fireiron"),
        ("cuBLAS alone", "cuBLAS, the product alone"),
        ("cuBLAS + torch.sum", "cuBLAS + torch.sum"),
        ("Triton, first", "Triton, first column of programs"),
        ("Triton, all", "Triton, all programs"),
        ("torch.compile", "torch.compile"),
    )
    paper = "2.02 to 2.18 of Triton"

    def work(self, n):
        return 2 * n**3

    def jobs(self, n, forms):
        base = gemm_row_sum.hopper
        choices = ({}, {"stages": 3}, {"stages": 4, "epi_n": 64}, {"group_m": 4}, {"bm": 256, "bn": 192, "wm": 128, "epi_n": 64})
        strategies = choices_of(base, *choices)
        mappings = {
            "no producer": None,
            "one block per tile": {"num_blocks": 65536},
            "3 stages": {"stages": 3},
            "2 stages": {"stages": 2},
        }
        strategies |= forms_of(base, {}, mappings) if forms else {}
        if forms and IN_SHARED in vars(gemm_row_sum):
            strategies["form sums in shared memory"] = vars(gemm_row_sum)[IN_SHARED]
        return [(strategies, gemm_row_sum.spec(n, n, n))]

    def tensors(self, n):
        """`(a, b, outputs)` of all sets."""
        import torch

        count = sets_of(6 * n * n)
        d, y = like(count, n, n), torch.empty(count, n, device="cuda")
        return drawn(count, n, n), drawn(count, n, n), [(d[one], y[one]) for one in range(count)]

    def trial(self, n, kernels):
        import torch
        import triton_tma

        a, b, outputs = self.tensors(n)
        contenders = Contenders(outputs, (a[0].double() @ b[0].double(), a[0].double().sum(1)))
        for name, kernel in kernels.items():
            contenders.add(name, lambda one, kernel=kernel: kernel.prepare(a[one], b[one], out=outputs[one]))

        def two(number):
            d, y = outputs[number]
            return lambda: (torch.matmul(a[number], b[number], out=d), torch.sum(a[number], 1, dtype=torch.float32, out=y))

        contenders.add("cuBLAS + torch.sum", two)
        compiled = torch.compile(lambda a, b: (a @ b, a.sum(1, dtype=torch.float32)))
        contenders.add("torch.compile", lambda one: lambda: compiled(a[one], b[one]), returned=True)
        for tiles in triton_tma.SUMS:
            for all_tiles in (True, False):
                title = f"Triton, {'all' if all_tiles else 'first'} {tiles}"
                contenders.add(title, lambda one, t=tiles, e=all_tiles: triton_tma.row_sum(a[one], b[one], *outputs[one], t, e))
        # the GEMM alone writes one of the two outputs, so it is compared separately
        alone = Contenders([one[0] for one in outputs], contenders.wanted[0])
        alone.add("cuBLAS alone", lambda one: lambda: torch.matmul(a[one], b[one], out=outputs[one][0]))
        contenders.calls |= alone.calls
        return contenders


IN_SHARED = "hopper_shared"
"""The strategy that keeps the sums in shared memory, if available: the mapping with which the paper reaches Triton's speed."""


class Attention(Experiment):
    """Attention forward, heads of 128."""

    name, title, causal, d = "attention", "E5, E6: attention, heads of 128, 16384 tokens (Figure 14)", False, 128
    paper = "the second's form 0.87 to 1.06 of ThunderKittens, the third's 0.80 to 0.98 of FlashAttention-3"
    contenders = (
        ("FA3", "Fireiron, FlashAttention-3's form"),
        ("FA2", "Fireiron, FlashAttention-2's form"),
        ("cuDNN", "cuDNN"),
        ("FlashAttention-2", "FlashAttention-2"),
        ("Triton", "Triton"),
    )

    def problems(self, options):
        return sorted(options.lengths, key=lambda one: one != 4096)

    def label(self, length):
        return f"length {length}{', causal' * self.causal}"

    def work(self, length):
        return 4 * TOKENS * length * WIDTH // (2 if self.causal else 1)

    def jobs(self, length, forms):
        definition, rows = attention.definition(causal=self.causal), hopper_attention.by_rows
        rescale_threshold = attention.definition(causal=self.causal, rescale_threshold=8)
        strategies = {"FA2": rows(definition, overlap=False), "FA3": rows(definition)}
        for overlap in (False, True) if forms else ():
            strategies |= {f"form FA{2 + overlap} {name}": form for name, form in self.forms(definition, overlap).items()}
        persistent = {
            "FA3 lazy rescaling": rows(rescale_threshold),
            "FA3 lazy rescaling, queries in registers": rows(rescale_threshold, q_in_registers=True),
        }
        if self.causal:
            for heads_per_group in (4, 16):
                name = f"FA3 lazy rescaling, dynamic tiles, {heads_per_group} heads per group"
                persistent[name] = rows(rescale_threshold, q_in_registers=True, dynamic=True).with_(heads_per_group=heads_per_group)
        elif "order_mma" in inspect.signature(rows).parameters:
            persistent["FA3 lazy rescaling, ordered MMAs"] = rows(rescale_threshold, order_mma=True)
        return [(one, spec_of(length, self.d, self.causal, TOKENS, number)) for one, number in ((strategies, 0), (persistent, 8))]

    def forms(self, definition, overlap):
        """Return strategies that differ from the form in one decision, by name."""
        base = hopper_attention.by_rows(definition, overlap=overlap)
        forms = {
            "as it is": base,
            "three consumer warpgroups (192x80)": base.with_(bm=192, bn=80),
            "three consumer warpgroups (192x64)": base.with_(bm=192, bn=64),
            "128x64, 3 stages": base.with_(bn=64, stages=3),
            "128x64, 2 stages": base.with_(bn=64),
            "no producer": unspecialized(base),
        }
        if not overlap:
            forms["1 stage"] = base.with_(stages=1)
        if self.causal:
            forms["persistent blocks"] = hopper_attention.by_rows(definition, overlap=overlap, persistent=True)
            forms["dynamic tiles"] = hopper_attention.by_rows(definition, overlap=overlap, dynamic=True)
            forms["4 heads per group"] = base.with_(heads_per_group=4)
        else:
            forms["one block per tile"] = base.with_(num_blocks=65536)
        return forms

    def trial(self, length, kernels):
        import triton_tma

        sets = attention_sets(length, self.d, TOKENS)
        contenders = Contenders([one[3] for one in sets], errors(sets[0], self.causal))
        for name, kernel in kernels.items():
            contenders.add(name, lambda one, kernel=kernel: by_kernel(kernel, sets[one]))
        for name, backend in (("cuDNN", "CUDNN_ATTENTION"), ("FlashAttention-2", "FLASH_ATTENTION")):
            contenders.add(name, lambda one, backend=backend: by_torch(backend, self.causal, sets[one]), returned=True)
        for tiles in triton_tma.HEADS if self.target == "sm_90a" else ():
            contenders.add(f"Triton {tiles}", lambda one, t=tiles: triton_tma.heads(*sets[one], self.causal, t))
        return contenders


class Causal(Attention):
    """The same with a causal mask."""

    name, title, causal = "causal", "E5, E6: attention under a causal mask, heads of 128, 16384 tokens (Figure 14)", True


def errors(arrays, causal):
    """Return the error of a result: the first, the middle and the last head against float64."""
    import torch

    q, k, v, _ = arrays
    b, h, length, d = q.shape
    chosen = ((0, 0), (b // 2, h // 2), (b - 1, h - 1))
    places = torch.arange(length, device=q.device)
    wanted = []
    for batch, head in chosen:
        keys, values = k[batch, head].double(), v[batch, head].double()
        parts = []
        for rows in q[batch, head].double().split(2048):
            scores = rows @ keys.T * d**-0.5
            if causal:
                first = sum(map(len, parts))
                scores.masked_fill_(places[None] > places[first : first + len(rows), None], -math.inf)
            parts.append(scores.softmax(-1) @ values)
        wanted.append(torch.cat(parts))
    return lambda found: error_of([found[one] for one in chosen], wanted)


class Dual80(Dual):
    """The same with instructions up to sm_80, and Triton restricted to them."""

    name, title, target = "dual80", "E3 by mma.sync: dual GEMM", "sm_90"
    paper = ""
    contenders = (("ours", "Fireiron, mma.sync"), ("Triton", "Triton, mma.sync"))

    def jobs(self, n, forms):
        choices = ({}, {"bk": 64, "stages": 3}, {"bm": 256, "stages": 3}, {"stages": 3}, {"lookahead": 1})
        return [({f"ours {values}": dual.strategy.with_(**values) for values in choices}, dual.spec(n, n, n))]

    def trial(self, n, kernels):
        from fused_peers import duals, products
        from peers import CONFIGS

        a, both, d = self.tensors(n)
        contenders = Contenders(d, a[0].double() @ (both[0, 0].double() + both[0, 1].double()))
        for name, kernel in kernels.items():
            contenders.add(name, lambda one, kernel=kernel: kernel.prepare(a[one], both[one, 0], both[one, 1], out=d[one]))
        for config in CONFIGS:
            contenders.add(
                f"Triton {config}",
                lambda one, c=config: products(duals, (a[one], both[one, 0], both[one, 1], d[one]), d[one], c, True),
            )
        return contenders


class RowSum80(RowSum):
    """The same with instructions up to sm_80, and Triton restricted to them."""

    name, title, target = "row_sum80", "E4 by mma.sync: GEMM + row sum of A", "sm_90"
    paper = ""
    contenders = (("ours", "Fireiron, mma.sync"), ("Triton", "Triton, mma.sync"))

    def jobs(self, n, forms):
        choices = ({}, {"bk": 64, "stages": 3}, {"bm": 256, "stages": 3}, {"stages": 3}, {"lookahead": 1})
        return [({f"ours {values}": gemm_row_sum.strategy.with_(**values) for values in choices}, gemm_row_sum.spec(n, n, n))]

    def trial(self, n, kernels):
        from fused_peers import products, sums
        from peers import CONFIGS

        a, b, outputs = self.tensors(n)
        contenders = Contenders(outputs, (a[0].double() @ b[0].double(), a[0].double().sum(1)))
        for name, kernel in kernels.items():
            contenders.add(name, lambda one, kernel=kernel: kernel.prepare(a[one], b[one], out=outputs[one]))
        for config in CONFIGS:
            contenders.add(
                f"Triton {config}", lambda one, c=config: products(sums, (a[one], b[one], *outputs[one]), outputs[one][0], c, True)
            )
        return contenders


class Attention80(Attention):
    """The library's kernel with instructions up to sm_80."""

    name, title, target = "attention80", "E5, E6 by mma.sync: attention, heads of 128", "sm_90"
    paper = ""
    contenders = (("ours", "Fireiron, mma.sync"), ("FlashAttention-2", "FlashAttention-2"), ("cuDNN", "cuDNN (wgmma)"))

    def jobs(self, length, forms):
        spec = spec_of(length, self.d, self.causal, TOKENS)
        name, values = defaults(spec, "sm_90")[0]
        return [({f"ours {name}": find(name).strategy.with_(**values)}, spec)]


EXPERIMENTS = {one.name: one() for one in (Gemm, Batched, Dual, RowSum, Attention, Causal, Dual80, RowSum80, Attention80)}
FIRST = ("gemm", "batched", "dual", "row_sum", "attention", "causal")


def published(calls):
    """Return microseconds by name, with the paper's method: the mean of 100 launches after 5, one contender after the other."""
    import torch

    times = {}
    for name, launches in calls.items():
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for number in range(105):
            if number == 5:
                first.record()
            launches[number % len(launches)]()
        last.record()
        torch.cuda.synchronize()
        times[name] = first.elapsed_time(last) * 10
    return times


def measured(experiment, problem, kernels, options):
    """Return the times of a problem, by clock state."""
    contenders = experiment.trial(problem, kernels)
    say(f"{experiment.name} {experiment.label(problem)}: {len(contenders.calls)} contenders are correct")
    forms = [name for name in contenders.calls if name.startswith("form ")]
    times = {}
    for regime in options.regimes:
        first, times[regime] = contenders.times(options.rounds, (*experiment.groups, *forms), regime=regime)
        times.setdefault("first", first)
    times["published"] = published({name: contenders.calls[name] for name in times[options.regimes[0]]})
    return {"problem": experiment.label(problem), "work": experiment.work(problem), "us": times}


def run(options):
    """Measure, and store after each problem."""
    pool = CompilePool()
    jobs = {}
    for name in options.only:
        experiment = EXPERIMENTS[name]
        for number, problem in enumerate(experiment.problems(options)):
            jobs[name, problem] = {}
            for strategies, spec in experiment.jobs(problem, options.forms and number == 0):
                jobs[name, problem] |= pool.begin(strategies, spec, experiment.target)
    from fireiron.measure.timing import environment

    kept = {}
    for (name, problem), begun in jobs.items():
        import torch

        kernels = pool.kernels(begun)
        kept.setdefault(name, []).append(measured(EXPERIMENTS[name], problem, kernels, options))
        torch.cuda.empty_cache()
        saved = {"environment": environment(), "measured": kept[name]}
        Path(options.folder, f"cypress-{name}.json").write_text(json.dumps(saved, indent=1) + "\n")


# ---------------------------------------------------------------------------------------------- the page


def saved(folder):
    """Return the measurements, by experiment."""
    files = {name: Path(folder, f"cypress-{name}.json") for name in EXPERIMENTS}
    return {name: json.loads(path.read_text())["measured"] for name, path in files.items() if path.exists()}


def ratios(experiment, rows, regime):
    """Return the ratio of each group's time to our best one, for each problem."""
    ours = next(iter(experiment.groups))
    ratios_by_group = {}
    for start in list(experiment.groups)[1:]:
        pairs = [(best(row["us"].get(regime, {}), start)[0], best(row["us"].get(regime, {}), ours)[0]) for row in rows]
        ratios_by_group[start] = [other / us if other and us else None for other, us in pairs]
    return ratios_by_group


REGIMES = ("burst", "busy", "published")


def table(experiment, rows):
    """Problems: our speed and the ratios in bursts; in parentheses, busy and with the paper's method."""
    ours = next(iter(experiment.groups))
    heads = ["problem", "TFLOP/s", "by", *(f"of {title}" for title in list(experiment.groups.values())[1:])]
    by_regime = {regime: ratios(experiment, rows, regime) for regime in REGIMES}
    lines = []
    for number, row in enumerate(rows):
        us, name = best(row["us"]["burst"], ours)
        cells = []
        for start in list(experiment.groups)[1:]:
            burst, *others = ((regime, by_regime[regime][start][number]) for regime in REGIMES)
            other_ratios = ", ".join(f"{regime} {one:.3f}" for regime, one in others if one)
            cells.append("" if burst[1] is None else f"{burst[1]:.3f}" + (f" ({other_ratios})" if other_ratios else ""))
        lines.append([row["problem"], f"{row['work'] / us / 1e6:.0f}" if us else "", name, *cells])
    return tabulate(lines, heads, tablefmt="github", disable_numparse=True)


def worth(rows):
    """Forms: the speed of each relative to the first of its kind, in bursts and busy."""
    lines = []
    for row in rows:
        times = row["us"]["burst"]
        for name in (one for one in times if one.startswith("form ")):
            start = next((one for one in ("form FA2 ", "form FA3 ") if name.startswith(one)), "form ")
            base = f"{start}as it is"
            speeds = [row["us"].get(regime, {}) for regime in ("burst", "busy")]
            speeds_of_form = [one[base] / one[name] if base in one and name in one else None for one in speeds]
            lines.append([name.removeprefix("form "), row["problem"], times[name], row["work"] / times[name] / 1e6, *speeds_of_form])
    heads = ("mapping", "problem", "us", "TFLOP/s", "of the first", "busy")
    return tabulate(lines, heads, tablefmt="github", floatfmt=("", "", ".1f", ".0f", ".3f", ".3f")) if lines else ""


def span(values):
    """From the smallest to the largest."""
    values = [one for one in values if one]
    return f"{min(values):.2f} to {max(values):.2f}" if values else "not measured"


def page(results):
    """Return the whole page as Markdown."""
    parts = [
        "# Cypress's experiments, its figures and ours",
        "Generated by `python perf/cypress.py FOLDER --page` from the files in this folder. A ratio is the other's time divided by ours, in bursts. Parentheses give the busy ratio, and the ratio by the paper's method (published): the mean of 100 launches after 5.",
    ]
    everyone = {"expert": [], "Triton": [], "FlashAttention-2": []}
    for name, rows in results.items():
        experiment = EXPERIMENTS[name]
        parts += [f"## {experiment.title}"]
        ratios_of_groups = ratios(experiment, rows, "burst")
        summary = [f"The paper (H100): {experiment.paper}"] if experiment.paper else []
        summary += [f"ours: {span(values)} times {experiment.groups[start]}" for start, values in ratios_of_groups.items()]
        parts += ["; ".join(summary) + ".", table(experiment, rows)]
        if text := worth(rows):
            parts += ["Mappings that differ from the first in one decision:", text]
        if name in FIRST:
            for start, values in ratios_of_groups.items():
                kind = start if start in everyone else "Triton" if start.startswith("Triton") else "expert"
                everyone[kind] += values if start not in ("torch.compile", "FA2") else []
    if everyone["expert"]:
        parts.append(
            f"All: {span(everyone['expert'])} times the libraries (the paper: 0.80 to 1.09 of expert code), {span(everyone['Triton'])} times "
            f"Triton (0.99 to 2.18). FlashAttention-2, whose kernels use no `wgmma`, is not among them: {span(everyone['FlashAttention-2'])}."
        )
    return "\n\n".join(parts) + "\n"


def plot(experiment, rows, path):
    """Bars: TFLOP/s of each group for each problem; below, of the forms."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    forms = [(name, row["work"] / us / 1e6) for row in rows for name, us in row["us"]["burst"].items() if name.startswith("form ")]
    figure, axes = pyplot.subplots(2 if forms else 1, 1, figsize=(7.5, 3.2 + 0.24 * len(forms) + bool(forms)), squeeze=False,
                                   height_ratios=[3.0, 0.24 * len(forms) + 0.8] if forms else [1])  # fmt: skip
    top = axes[0][0]
    width = 0.8 / len(experiment.groups)
    for place, (start, title) in enumerate(experiment.groups.items()):
        speeds = [(row["work"] / us / 1e6 if (us := best(row["us"]["burst"], start)[0]) else 0) for row in rows]
        top.bar([number + place * width for number in range(len(rows))], speeds, width, label=title, color=COLORS[place])
    top.set_xticks([number + 0.4 - width / 2 for number in range(len(rows))], [row["problem"] for row in rows], fontsize=7)
    top.set_ylabel("TFLOP/s")
    top.set_title(experiment.title, fontsize=9)
    top.legend(fontsize=6, loc="lower right")
    if forms:
        low = axes[1][0]
        low.barh([name.removeprefix("form ") for name, _ in forms][::-1], [speed for _, speed in forms][::-1], color=COLORS[0])
        low.tick_params(labelsize=7)
        low.set_xlabel("TFLOP/s")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


COLORS = ("#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#cc79a7")


def written(folder, plots):
    """Write the page and the plots of the present files."""
    results = {name: sorted(rows, key=lambda row: row["work"]) for name, rows in saved(folder).items()}
    text = page(results)
    print(text, flush=True)
    Path(folder, "cypress.md").write_text(text)
    for name, rows in results.items() if plots else ():
        plot(EXPERIMENTS[name], rows, Path(folder, f"cypress-{name}.svg"))


def main():
    numbers = lambda text: [int(one) for one in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(FIRST))
    parser.add_argument("--sizes", type=numbers, default=[4096, 6144, 8192])
    parser.add_argument("--stacks", type=numbers, default=[1024, 2048, 4096], help="sizes of the matrices of a batch")
    parser.add_argument("--lengths", type=numbers, default=[512, 1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--regimes", type=lambda text: text.split(","), default=["burst", "busy"])
    parser.add_argument("--no-forms", dest="forms", action="store_false")
    parser.add_argument("--page", action="store_true", help="measure nothing")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if not options.page:
        run(options)
    written(options.folder, options.page)


if __name__ == "__main__":
    main()
