"""What lies near to drawn strategies: refused by the project's own errors, or right by every oracle."""

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
"""Draws around a strategy."""


@attrs.frozen
class Base:
    """A drawn strategy as it is stored, with what judges those around it."""

    stored: dict[str, Any]
    target: str
    symbols: Mapping[str, int]
    features: frozenset[str]
    says: Callable[[Program, Mapping[str, int]], str]


@functools.lru_cache(maxsize=4)
def base(seed: int) -> Base:
    """What a generator draws: strategies, definitions and walks by turns."""
    judge = lambda program, symbols: wrong(program, dict(symbols), seed)
    if seed % 3 == 0:
        one, _ = generator.draw(seed)
        return Base(json.loads(dumps(one.strategy)), one.target, one.symbols, frozenset({"strategy"}), judge)
    if seed % 3 == 1:
        walk, _ = walker.draw(seed, ())
        return Base(json.loads(dumps(walk.strategy)), walk.target, walk.symbols, frozenset({"walk"}), judge)
    drawn, _ = definitions.drawn(seed)
    says = lambda program, symbols: definitions.objection(drawn, program, dict(symbols), seed)
    return Base(json.loads(dumps(drawn.strategy(drawn.bound))), drawn.target, drawn.symbols, frozenset({"definition"}), says)


@functools.cache
def refinements() -> tuple[Any, ...]:
    """Those of the strategies that are kept."""
    return tuple(one for kept in corpus.kept() for one in refinements_in(kept.strategy))


def draw(seed: int) -> Outcome:
    """One of those around a strategy."""
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
        if not of.says(program, of.symbols):
            return agreed(of.features, clean=1)
    except Exception as error:  # which the story says
        if isinstance(error, FireironError) and not isinstance(error, (SimulationError, VerificationError)):
            return refused(of.features)
    return found(story(strategy, of.target, of.symbols, of.says, seed), of.features)


SUBJECT = Subject(
    "near", "random strategies with one arbitrary change: refused, or right by every oracle", draw, nightly=3_000, campaign=10_000,
    first=20_261_127, sample=4,
)  # fmt: skip
