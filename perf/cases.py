"""Kernels by name for the campaign on a GPU and for the sanitizer: the whole library at edge sizes, and random ones; constructing them
needs no GPU.

`shipped(target)` and `drawn(products, definitions)` give (name, function): the function builds a bound strategy, so a process builds only
what it compiles. A library strategy that is in none of the lists is an error: `uncovered()` names it.
"""

import inspect
import re
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from campaign.subjects.library_texts import SIZES as FORM_SIZES
from campaign.subjects.library_texts import _forms
from problems import ALL_NAMES, NAMES, SIZES, library, target_of
from test_library_sizes import OPTIONS

from fireiron.errors import FireironError
from fireiron.language.library import bind, find
from fireiron.strategies import (
    _depthwise_rows,
    _many_parts,
    attention,
    attention_combine,
    attention_decode,
    dual,
    gated,
    gemm_layernorm,
    gemm_row_sum,
    grouped,
    grouped_ragged,
    hopper_attention,
    hopper_ragged,
    lstm,
    mlp,
    softmax_online,
    tasks_attention,
    tasks_batched,
)

HOPPER = "sm_90a"
SMALL = {"bm": 64, "bn": 64, "wm": 32, "wn": 32, "stages": 3}
HOPPER_SIZES = ((200, 150, 70), (200, 152, 72), (1800, 2312, 456))
"""M, N and K: rows that TMA does not accept; rows that it accepts; more tiles than blocks, more iterations along k than stages."""

COUNTED = ({"bm": 128, "bn": 192, "wm": 64, "wn": 192, "stages": 3}, {"bm": 128, "bn": 128, "wm": 64, "wn": 128, "stages": 5})
"""Values of the strategy `hopper` whose fills continue from tile to tile of a block."""

EPILOGUE = "acc = acc * alpha + bias[n] + R[m,n]; Z = acc; C = relu(acc); y[m] += sum(n, acc); z[n] += sum(m, acc)"


def _bound(module, *sizes, strategy=None, values=None, **options):
    """Return a strategy of a module for the spec of these sizes."""
    spec = module.spec(*sizes, **options)
    chosen = module.strategy if strategy is None else strategy
    chosen = chosen.with_(**values) if isinstance(values, dict) else chosen.with_(**values(spec)) if values else chosen
    return chosen(spec)


def products(target):
    """One GEMM by every strategy for it, at sizes at, below and above the tiles."""
    for name in NAMES:
        if target_of(name) in (None, target):
            for sizes in (*SIZES, *(HOPPER_SIZES if target_of(name) else ())):
                yield f"{name} {sizes}", partial(_bound, library(name), *sizes)
    if target == HOPPER:
        for values in COUNTED:
            yield f"hopper {values}", partial(_bound, library("hopper"), *HOPPER_SIZES[-1], values=values)


def _with_epilogue(name):
    return bind(find(name), {"M": 104, "N": 72, "K": 40}).fuse_epilogue(EPILOGUE)


def epilogues(target):
    """Yield GEMM with a bias, a residual, two outputs, and row and column sums as epilogues."""
    for name in ("hmma_ampere", "wmma_optimized", *(["hopper", "hopper_small"] if target == HOPPER else [])):
        yield f"{name} with an epilogue", partial(_with_epilogue, name)


def rows(target):
    """Row kernels: one warp, several warps, chunks; sizes that tiles do not divide."""
    for name in ("layernorm", "rmsnorm", "softmax"):
        for sizes in ((5, 1000), (3, 100), (2, 4100), (1, 1)):
            yield f"{name} {sizes}", partial(_bound, library(name), *sizes, values=library(name).values)
    yield "softmax_online", partial(_bound, softmax_online, 2, 1100, values={"warps": 2, "iterations": 1})


def chains(target):
    """Several steps around GEMM."""
    for module in (dual, gated, gemm_row_sum, lstm):
        yield _short(module), partial(_bound, module, 100, 72, 40, values=SMALL)
    yield "lstm two_loops", partial(_bound, lstm, 100, 72, 40, strategy=lstm.two_loops, values=SMALL, form="two_loops")
    yield "gemm_layernorm", partial(_bound, gemm_layernorm, 70, 96, 40, values={"bm": 64, "wm": 32, "wn": 32, "stages": 3})
    for name in ("strategy", "registers"):
        yield f"mlp:{name}", partial(_bound, mlp, 100, 64, 3, strategy=getattr(mlp, name), values={"bm": 64, "wm": 32, "wn": 32})
    yield "grouped", partial(_bound, grouped, 100, 72, 40, values=SMALL, groups=2)
    if target == HOPPER:
        for module, sizes in ((dual, (300, 264, 200)), (gated, (300, 264, 200)), (gemm_row_sum, (300, 264, 200)), (lstm, (300, 264, 200)), (mlp, (300, 128, 5))):  # fmt: skip
            yield f"{_short(module)}:hopper", partial(_bound, module, *sizes, strategy=module.hopper)


def _attention(options, held):
    definition = attention.definition(**options)
    return attention.by_rows(definition, held).with_(bm=64, bn=32, wm=16)(attention.spec(100, 110, 64, heads=2, shared=2, fused=definition))


def _hopper_attention(options, form):
    definition = attention.definition(**options)
    spec = attention.spec(300, 330, 64, heads=2, shared=2, fused=definition)
    return hopper_attention.by_rows(definition, **form, num_blocks=3).with_(bn=64, epi_n=64)(spec)


def attentions(target):
    """Attention: masks, sums of exponentials, heads that share keys, queries in registers; with TMA, wgmma and rings."""
    for held in (False, True):
        for name, options in {"": {}, " causal": {"causal": True}, " window": {"window": 20, "lse": True}}.items():
            yield f"attention{name}{' held' * held}", partial(_attention, options, held)
    if target == HOPPER:
        forms = {
            "": {},
            " causal": {"causal": True},
            " with a threshold": {"rescale_threshold": 8},
            " causal with a threshold": {"causal": True, "rescale_threshold": 8},
        }
        for name, options in forms.items():
            for form in ({"overlap": False}, {}, {"q_in_registers": True}, {"persistent": True}, {"dynamic": True}):
                yield f"hopper_attention{name} {form}", partial(_hopper_attention, options, form)


def programs(target):
    """Programs of tasks with all mappings."""
    forms = ("strategy", "warpgroups", "warpgroups_shared") if target == HOPPER else ("strategy",)
    for name in ("tasks_gemm", "tasks_dual", "tasks_gated", "tasks_row_sum"):
        for form in forms:
            if hasattr(library(name), form):
                yield f"{name}:{form}", partial(_task, name, form)
    for form in forms[:2]:
        yield f"tasks_batched:{form}", partial(_task_batched, form)
        yield f"tasks_attention:{form}", partial(_task_attention, form)


def _task(name, form):
    return getattr(library(name), form)(library(name).spec(300, 264, 200))


def _task_batched(form):
    return getattr(tasks_batched, form)(tasks_batched.spec(300, 264, 200, 3))


def _task_attention(form):
    return getattr(tasks_attention, form)(attention.spec(300, 330, 64, heads=2))


def _short(module):
    return module.__name__.rpartition(".")[2]


def parts(target):
    """Yield attention in parts, and the kernel that combines them; packed groups whose ends are data."""
    for form in ("strategy", "hopper") if target == HOPPER else ("strategy",):
        for sizes in ((1, 1300, 64), (16, 513, 128)):
            chosen = getattr(attention_decode, form)
            values = attention_decode.values
            yield f"attention_decode:{form} {sizes}", partial(_bound, attention_decode, *sizes, strategy=chosen, values=values)
        chosen, values = getattr(attention_combine, form), attention_combine.values
        yield f"attention_combine:{form}", partial(_bound, attention_combine, 17, 5, 64, strategy=chosen, values=values)
    yield "grouped_ragged", partial(_bound, grouped_ragged, 300, 136, 72, groups=3)
    if target == HOPPER:
        for name in ("strategy", "clustered"):
            yield f"hopper_ragged:{name}", partial(_bound, hopper_ragged, 300, 264, 200, strategy=getattr(hopper_ragged, name), groups=3)


OF_PIXELS = (
    "channels_last",
    "convolution",
    "convolution_input_gradient",
    "convolution_weight_gradient",
    "depthwise",
    "filter_rows",
    "zero_pixels",
)
"""Strategies of images."""

IMAGES = tuple({"batch": 4, "size": size, "channels": 64, "outputs": 72} for size in (9, 8))
"""Sizes of problems of images, by their names."""

WIDE = {"M": 72, "N": 40, "D": 256}
"""Sizes for forms of long rows of attention."""


def forms(target):
    """Yield all forms of the strategies that no other list has: kernels of training and of serving, at sizes that tiles do not divide."""
    seen = {re.split(r"[ :]", name)[0] for one in LISTS[:-1] for name, _ in one(target)}
    for form in _forms():
        name = form.partition(":")[0]
        if name not in seen and name not in ELSEWHERE:
            yield form, partial(_form, form, target)


def _form(form, target):
    """Return a form with the first sizes that it accepts. Raises: the refusal of the last sizes."""
    module = library(form.partition(":")[0])
    known = inspect.signature(module.spec).parameters
    refused = None
    for sizes in IMAGES if form.startswith(OF_PIXELS) else (*FORM_SIZES, WIDE):
        try:
            bound = bind(
                find(form), {name: size for name, size in sizes.items() if name in known}, OPTIONS.get(form, {}), architecture=target
            )
            _ = bound.program(target).lowered
        except FireironError as error:
            refused = error
        else:
            return bound
    raise refused


def depthwise_rows(target):
    """Yield depthwise convolutions and their gradients that load each row once, and sums of many parts."""
    taps, pixel, size, rows_of = (3, 3), (1, 1), (8, 9), _depthwise_rows.Rows
    for name, stride in (("adjacent", 1), ("stride", 2)):
        rows = rows_of(2 // stride, 4, 8)
        spec = partial(_depthwise_rows.forward, 2, size, 72, taps, (stride, stride), pixel, pixel, True, True, "relu", rows)
        yield f"depthwise_rows:{name}", partial(_of, _depthwise_rows.by_rows, (72, taps, rows, stride), spec)
    rows = rows_of(1, 8, 8)
    images = partial(_depthwise_rows.images, 2, size, size, 72, taps, pixel, pixel, rows)
    yield "depthwise_rows:images", partial(_of, _depthwise_rows.by_rows, (72, taps, rows), images)
    filters = partial(_depthwise_rows.filters, 2, size, size, 72, taps, pixel)
    yield "depthwise_rows:filters", partial(_of, _depthwise_rows.by_columns, (72, taps, size[0] + 1), filters)
    yield "many_parts", partial(_many_parts.adding, 3, 70, 100)


def _of(strategy, sizes, spec):
    """Return a bound strategy of a function of sizes."""
    return strategy(*sizes)(spec())


LISTS = (products, epilogues, rows, chains, attentions, programs, parts, depthwise_rows, forms)

ELSEWHERE = {
    "attention_packed": "its ranges have to agree, which drawn numbers do not: tests/test_attention_packed.py, tests/test_attention_gpu.py",
    "attention_packed_backward": "as attention_packed: tests/test_attention_packed_gradients.py",
    **dict.fromkeys(("all_gather_gemm", "all_to_all", "gemm_all_reduce", "gemm_reduce_scatter"), "several GPUs: tests/test_node_gpu.py"),
}
"""Library strategies in no list, and the reasons."""


def shipped(target):
    """Return all library kernels for a target, by name."""
    return {name: make for one in LISTS for name, make in one(target)}


def uncovered(target=HOPPER):
    """Return library strategies that are in no list and have no reason."""
    seen = {re.split(r"[ :]", name)[0] for name in shipped(target)}
    return [name for name in ALL_NAMES if name not in seen and name not in ELSEWHERE]


def drawn_product(seed):
    """Return a random GEMM: the draw itself, which knows its sizes."""
    from generator import draw

    return draw(seed)[0]


def drawn_definition(seed):
    """Return a random multi-step definition."""
    from fused_generator import draw

    return draw(seed)[0]


def drawn(count, first=1):
    """Return the given number of random kernels, three GEMMs for two definitions, by name."""
    return {
        f"{'product' if number % 5 < 3 else 'definition'} {first + number}": partial(
            drawn_product if number % 5 < 3 else drawn_definition, first + number
        )
        for number in range(count)
    }


def bound_of(built):
    """Return the result of a function of `shipped` or `drawn`, as a bound strategy and the sizes of its symbols."""
    if not hasattr(built, "symbols"):
        return built, {}
    return (built.strategy(built.bound) if hasattr(built, "bound") else built.strategy), built.symbols
