"""Perturbations of random strategies: refused by the project's own errors, or right by every oracle."""

import functools
import json
import random
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import corpus
import generator
import walker
from nearly import near, refinements_in

from campaign import Outcome, Subject, agreed, found, refused
from campaign.judged import wrong
from campaign.shrink import story
from campaign.subjects import definitions
from fireiron.compiler import Program
from fireiron.errors import FireironError, SimulationError, StoreError, VerificationError
from fireiron.language.store import dumps, loads

OF_EACH = 20
"""The number of perturbations of a strategy."""


@attrs.frozen
class Base:
    """A random strategy as stored, with the judge of its perturbations."""

    stored: dict[str, Any]
    target: str
    symbols: Mapping[str, int]
    features: frozenset[str]
    objection: Callable[[Program, Mapping[str, int]], str]


@functools.lru_cache(maxsize=4)
def base(seed: int) -> Base:
    """The draw of a generator: strategies, definitions and walks alternately."""
    judge = lambda program, symbols: wrong(program, dict(symbols), seed)
    if seed % 3 == 0:
        strategy_draw, _ = generator.draw(seed)
        return Base(json.loads(dumps(strategy_draw.strategy)), strategy_draw.target, strategy_draw.symbols, frozenset({"strategy"}), judge)
    if seed % 3 == 1:
        walk, _ = walker.draw(seed, ())
        return Base(json.loads(dumps(walk.strategy)), walk.target, walk.symbols, frozenset({"walk"}), judge)
    drawn, _ = definitions.drawn(seed)
    objection = lambda program, symbols: definitions.objection(drawn, program, dict(symbols), seed)
    return Base(json.loads(dumps(drawn.strategy(drawn.bound))), drawn.target, drawn.symbols, frozenset({"definition"}), objection)


@functools.cache
def refinements() -> tuple[Any, ...]:
    """Those of the stored strategies."""
    return tuple(one for kept in corpus.kept() for one in refinements_in(kept.strategy))


def draw(seed: int) -> Outcome:
    """One perturbation of a strategy."""
    of = base(seed // OF_EACH)
    text = json.dumps(near(of.stored, random.Random(seed), refinements()))
    try:
        strategy = loads(text)
    except StoreError:
        return refused(of.features)
    except Exception as error:
        return found(f"{type(error).__name__}: {error}\n\nfrom fireiron.language.store import loads\nloads({text!r})\n")
    try:
        program = strategy.program(of.target)
        _ = program.ir
        if not of.objection(program, of.symbols):
            return agreed(of.features, program, clean=1)
    except Exception as error:  # reported in the story
        if isinstance(error, FireironError) and not isinstance(error, (SimulationError, VerificationError)):
            return refused(of.features)
    return found(story(strategy, of.target, of.symbols, of.objection, seed), of.features)


SUBJECT = Subject(
    "near", "random strategies with one arbitrary change: refused, or right by every oracle", draw, nightly=3_000, campaign=10_000,
    first=20_261_127,
)  # fmt: skip
