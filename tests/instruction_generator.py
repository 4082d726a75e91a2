"""Random small kernels, each with an instruction by name: forms of mma.sync, of wgmma, ldmatrix, stmatrix, movmatrix, and WMMA.

The forms that larger generators draw rarely are as frequent as the others.
"""

import random

import attrs
from campaign.judged import wrong
from instructions import (
    FORMS,
    first_target,
    layouts_of,
    loaded_by,
    product_of_warpgroups,
    spec_of,
    stored_by,
    strategy_of,
    through,
    through_choices,
)

from fireiron import *
from fireiron import ARCHITECTURES
from fireiron.errors import FireironError

LOADS = tuple(one for one in INSTRUCTIONS if isinstance(one, LdMatrix))
STORES = tuple(one for one in INSTRUCTIONS if isinstance(one, StMatrix))
STORES_FROM_REGISTERS = tuple(store for store in STORES if store.pairs)
FORMS_OF_WARPGROUPS = tuple(one for one in INSTRUCTIONS if isinstance(one, Wgmma) and not one.held)
ALL = (*FORMS, *(one for one in INSTRUCTIONS if isinstance(one, Wgmma)), *LOADS, *STORES_FROM_REGISTERS, *through_choices())
"""All instructions that `with_form` draws, and chains of ldmatrix, movmatrix and stmatrix."""


@attrs.define(eq=False)
class DrawnInstruction:
    """A program that uses an instruction, and the values of its symbols."""

    program: object
    features: frozenset
    symbols: dict


def _target(rng, capability):
    """A target with an instruction: the oldest, or another."""
    later = [one.name for one in ARCHITECTURES if one.capability >= capability]
    return rng.choice((first_target(capability), rng.choice(later)))


def _sizes(rng, tiles, chunk, symbols):
    """Sizes of a problem, some of them at run time."""
    given = [tile * rng.randint(1, 2) - rng.choice((0, 0, rng.randrange(tile))) for tile in (*tiles, chunk)]
    sizes = []
    for name, size in zip("MNK", given, strict=True):
        if rng.random() < 0.2:
            symbols[name] = size
        sizes.append(sym(name, high=1 << 12) if name in symbols else size)
    return sizes


def _by_warps(rng, symbols):
    form = rng.choice(FORMS)
    return _of_warps(form, rng, symbols), form.name


def _of_warps(form, rng, symbols):
    chunk = max(form.shape[2], rng.choice((16, 32)))
    spec = spec_of(form, *rng.choice(layouts_of(form)), sizes=_sizes(rng, (32, 32), chunk, symbols), accumulate=rng.random() < 0.2)
    strategy = strategy_of(form, tiles=rng.choice(((32, 32), (16, 32), (32, 16))), chunk=chunk, accumulate=spec.accumulate == True)  # noqa: E712
    return strategy(spec).program(_target(rng, form.capability))


def _by_warpgroups(rng, symbols):
    form = rng.choice(FORMS_OF_WARPGROUPS)
    return _of_warpgroups(form, rng, symbols), form.name


def _of_warpgroups(form, rng, symbols):
    columns = rng.choice((16, 32, 64))
    tiles = (columns, 64 * rng.choice((1, 2))) if form.swapped else (64 * rng.choice((1, 2)), columns)
    chunk = rng.choice((32, 64)) // form.factors[0].bytes * rng.choice((1, 2))
    orders = rng.choice((None, None, (RowMajor, RowMajor), (ColMajor, ColMajor), (ColMajor, RowMajor)))
    sizes = _sizes(rng, tiles, chunk, symbols)
    return product_of_warpgroups(form, tiles, chunk, rng.choice((1, 2, 3)), columns, orders, sizes).program("sm_90a")


def _by_copies(rng, symbols):
    kind = rng.choice(("through", "load", "store"))
    if kind == "through":
        return through(*rng.choice(list(through_choices()))).program("sm_90"), "copy through registers"
    copy = rng.choice(LOADS if kind == "load" else STORES_FROM_REGISTERS)
    return with_form(copy, rng, symbols), copy.name


def with_form(form, rng, symbols):
    """A program with an instruction of `ALL`."""
    if isinstance(form, tuple):
        return through(*form).program("sm_90")
    if form in LOADS or form in STORES:
        return (loaded_by if form in LOADS else stored_by)(form).program("sm_90")
    return (_of_warpgroups if isinstance(form, Wgmma) else _of_warps)(form, rng, symbols)


def draw(seed):
    """A program that lowers, and the number of refused ones before it."""
    for refused in range(200):
        rng, symbols = random.Random(f"instruction {seed}/{refused}"), {}
        try:
            program, name = rng.choice((_by_warps, _by_warps, _by_warpgroups, _by_warpgroups, _by_copies))(rng, symbols)
            _ = program.lowered
        except FireironError:
            continue
        return DrawnInstruction(program, frozenset({name, f"target {program.architecture}"}), symbols), refused
    raise AssertionError(f"seed {seed}: 200 draws refused")


def objection(drawn, seed):
    """An oracle's objection to a program; empty if all is well."""
    return wrong(drawn.program, drawn.symbols, seed)


def program_to_paste(drawn):
    return f"\nfrom fireiron import *\nprogram = {drawn.program.strategy!r}.program({str(drawn.program.architecture)!r})\nsizes = {drawn.symbols}"
