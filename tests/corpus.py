"""Stored random strategies, with the compiler's result for each: the text, or the refusal.

`goldens/corpus.xz` holds them as stored strategies, a line of JSON each: draws of all generators, forms of the library on several targets,
and perturbations of these (`nearly`). `goldens` stores digests of each result: the text with the steps that made each line, or the whole
error. A digest does not prove a kernel right: perturbed kernels were simulated and compared with NumPy when they were drawn
(`mutation.battery`), and the oracles judge new draws of all generators in every test run. Store the digests of new strategies with `make
goldens`.

    python tests/corpus.py draw     draw all again, in half an hour on two cores; for new verbs
    python tests/corpus.py more 53000000 2000
                                    draw 2000 more from a given seed, and add those with a new result
"""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import json
import lzma
import multiprocessing
import os
import random
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
from goldens.cases import TEXT, Case, Outcome, cases
from nearly import near, refinements_in

GOLDENS = Path(__file__).resolve().parent / "goldens"
KEPT = GOLDENS / "corpus.xz"


@attrs.frozen
class Kept:
    """A stored strategy, bound to its problem, and a target."""

    name: str
    target: str
    strategy: dict[str, Any]

    def outcome(self) -> Outcome:
        """Its text with the steps of each line, or the refusal."""
        from fireiron.errors import FireironError
        from fireiron.language.store import loads

        try:
            program = loads(json.dumps(self.strategy)).program(self.target)
            return Outcome.of_lines(program.lines)
        except FireironError as error:
            return Outcome.refused(error)

    def case(self) -> Case:
        """Its digests."""
        return Case.of(self.name, self.outcome())


@functools.cache
def kept() -> list[Kept]:
    """All stored strategies, in order."""
    with lzma.open(KEPT, "rt", encoding="utf-8") as file:
        return [Kept(**json.loads(line)) for line in file]


@functools.cache
def by_name() -> dict[str, Kept]:
    """All stored strategies by name."""
    return {one.name: one for one in kept()}


def accepted() -> list[str]:
    """The names of those that are not refused."""
    return [one.name for one in cases("corpus") if not one.refused]


@functools.cache
def covering() -> list[Kept]:
    """The strategies with a combination that no earlier one has (`_combinations`): together they have all combinations of the corpus."""
    outcomes = {one.name: one.kind for one in cases("corpus")}
    seen: set[tuple[str, ...]] = set()
    chosen = []
    for strategy in kept():
        combinations = _combinations(strategy, outcomes.get(strategy.name, ""))
        if not combinations <= seen:
            seen |= combinations
            chosen.append(strategy)
    return chosen


@functools.cache
def others() -> list[Kept]:
    """The strategies that are not in `covering`."""
    names = {one.name for one in covering()}
    return [one for one in kept() if one.name not in names]


def _combinations(strategy: Kept, outcome: str) -> set[tuple[str, ...]]:
    """Pairs of classes: one in the other, one after the other in a list, and each, as the target, with the outcome."""
    pairs: set[tuple[str, ...]] = {("outcome", strategy.target, outcome)}

    def walk(value: Any, outer: str) -> str:
        if isinstance(value, dict):
            name = value.get("type", "")
            pairs.update({("outcome", name, outcome), ("inside", outer, name)})
            for part in value.values():
                walk(part, name or outer)
            return str(name)
        if isinstance(value, list):
            names = [walk(part, outer) for part in value]
            pairs.update(("next", *pair) for pair in itertools.pairwise(names) if all(pair))
        return ""

    walk(strategy.strategy, "")
    return pairs


# ---------------------------------------------------------------------------------------------- drawing

COUNTS = {"strategy": 120, "definition": 140, "walk": 40, "pair": 600, "script": 180, "tasks": 60, "library": 80, "tuned": 160}
"""Maximum number of draws of each generator; also walks for each pair of verbs and refinements, and library forms with random tunables."""

NEAR = {"text": 250, "StoreError": 60, "refusal": 900}
"""Maximum numbers of stored and of tried strategies."""

MOST_NEAR = 3_000
"""The number of draws from which the stored strategies were chosen."""

ALIKE = 3
"""The number of stored refusals that differ only in numbers."""

MOST_SECONDS = 1.0
"""The limit of processor time for one draw."""

FIRST = 51_000_000
"""The first seed."""


@attrs.frozen
class Draw:
    """A candidate, its result, and an oracle's objection, if any."""

    stored: Kept
    symbols: dict[str, int]
    outcome: str
    text: str
    wrong: str = ""


def drawn(jobs: int) -> list[Kept]:
    """All strategies, drawn again."""
    draws = bases(jobs)
    draws += around(draws, jobs)
    others = {(each.stored.target, json.dumps(each.stored.strategy)): each.stored for each in reversed(draws)}
    return random.Random(FIRST).sample([*others.values()], len(others))


def bases(jobs: int) -> list[Draw]:
    """The draws of the generators."""
    drawn_so_far: list[Draw] = []
    for kind, count in COUNTS.items():
        with multiprocessing.Pool(jobs, maxtasksperchild=400) as pool:
            draws = pool.imap(functools.partial(_of, kind), range(FIRST, FIRST + 100 * count), chunksize=4)
            drawn_so_far += itertools.islice(
                (one for one in draws if one is not None and (one.outcome == "text" or kind in ("script", "tuned"))), count
            )
    return drawn_so_far


MORE = ("near",) * 8 + ("walk", "walk", "pair", "pair", "definition", "strategy", "script", "tuned", "tasks")
"""The kinds of further draws."""


def more(first: int, count: int, jobs: int) -> Iterator[Kept]:
    """Of further draws and perturbations of stored strategies, those with a new result, regardless of numbers in refusals."""
    digests, by_message = {one.whole for one in cases("corpus")}, Counter(map(_without_numbers, kept()))
    with multiprocessing.Pool(jobs, maxtasksperchild=400) as pool:
        for draw in pool.imap(_more, range(first, first + count), chunksize=4):
            if draw is None or draw.wrong:
                print(*([] if draw is None else [draw.stored.name, draw.wrong]), file=sys.stderr)
                continue
            digest, message = draw.stored.case().whole, _without_numbers(draw.stored)
            if digest not in digests and (draw.outcome == TEXT or by_message[message] < ALIKE):
                digests.add(digest)
                by_message[message] += 1
                yield draw.stored


def _without_numbers(stored: Kept) -> str:
    """The text of a refusal, without its numbers."""
    outcome = stored.outcome()
    return "" if outcome.kind == TEXT else re.sub(r"\d+", "", outcome.body.partition("\n")[0])


def _more(seed: int) -> Draw | None:
    kind = MORE[seed % len(MORE)]
    if kind != "near":
        return _of(kind, seed)
    base = random.Random(seed).choice(kept())
    return _near((seed, Draw(base, _sizes(base), "", "")), _refinements())


@functools.cache
def _refinements() -> list[Any]:
    return [one for each in kept() for one in refinements_in(each.strategy)]


def _sizes(stored: Kept) -> dict[str, int]:
    """Small sizes at run time; those of a refused strategy do not matter."""
    from fireiron.errors import FireironError
    from fireiron.language.store import loads
    from fireiron.spec import sizes_of

    try:
        symbols = sizes_of(loads(json.dumps(stored.strategy)).spec)
    except FireironError:
        return {}
    return {var.name: max(min(40, var.high) // var.multiple_of, 1) * var.multiple_of for var in symbols}


def around(draws: Sequence[Draw], jobs: int) -> list[Draw]:
    """Perturbations with a new result."""
    refinements = [one for each in draws for one in refinements_in(each.stored.strategy)]
    numbers = ((number, draws[random.Random(f"{FIRST}/{number}").randrange(len(draws))]) for number in range(MOST_NEAR))
    with multiprocessing.Pool(jobs, maxtasksperchild=400) as pool:
        return [*_chosen(draws, pool.imap(functools.partial(_near, refinements=refinements), numbers, chunksize=8))]


def _chosen(bases: Sequence[Draw], draws: Iterable[Draw | None]) -> Iterator[Draw]:
    """The perturbations with a new result."""
    texts, by_message, counts = {one.text for one in bases}, Counter[str](), Counter[str]()
    for candidate in draws:
        if candidate is None:
            continue
        if candidate.wrong:
            print(f"{candidate.wrong}\n{json.dumps(attrs.asdict(candidate.stored))}\n", file=sys.stderr)
            continue
        kind = candidate.outcome if candidate.outcome in NEAR else "refusal"
        message = candidate.text if kind == "text" else re.sub(r"\d+", "", candidate.text.partition("\n")[0])
        if counts[kind] < NEAR[kind] and by_message[message] < ALIKE and candidate.text not in texts:
            by_message[message] += 1
            counts[kind] += 1
            texts.add(candidate.text)
            yield candidate
        if all(counts[each] >= count for each, count in NEAR.items()):
            return


def _of(kind: str, seed: int) -> Draw | None:
    """The draw of a seed; None if it is refused, takes too long, or cannot be stored."""
    from fireiron.errors import FireironError
    from fireiron.language.store import dumps

    try:
        strategy, target, symbols = _made(kind, seed)
        return _judged(Kept(f"{kind} {seed}", target, json.loads(dumps(strategy))), symbols, False)
    except FireironError:
        return None


def _made(kind: str, seed: int) -> tuple[Any, str, dict[str, int]]:
    """A bound strategy, its target, and sizes at run time."""
    import generator
    import test_tasks_random
    import walker
    from campaign.subjects import definitions, library_texts, second, walks

    match kind:
        case "strategy":
            strategy_draw, _ = generator.draw(seed)
            return strategy_draw.strategy, strategy_draw.target, dict(strategy_draw.symbols)
        case "definition":
            drawn, _ = definitions.drawn(seed)
            return drawn.strategy(drawn.bound), drawn.target, dict(drawn.symbols)
        case "walk":
            walk, _ = walker.draw(seed, ())
            return walk.strategy, walk.target, dict(walk.symbols)
        case "pair":
            number = (seed - FIRST) % len(walks.pairs())
            walk, _ = walker.draw(seed, walks.pairs()[number])
            return walk.strategy, walk.target, dict(walk.symbols)
        case "script":
            (maker,) = random.Random(f"family {seed}").choices((second.product, second.fused), (2, 1))
            script = maker(seed).script
            names = script.run()
            return names["strategy"](names["problem"]), script.target, {}
        case "tasks":
            choose = random.Random(seed)
            make = test_tasks_random.of_attention if choose.random() < 0.3 else test_tasks_random.product
            bound, target, _ = make(choose)
            return bound, target, {}
        case "tuned":
            return _tuned(random.Random(seed))
        case _:
            numbered = library_texts.numbered()
            order = random.Random(FIRST).sample(numbered, len(numbered))
            form, target = order[(seed - FIRST) % len(order)]
            return library_texts._program(form, target).strategy, target, {}


def _tuned(choose: random.Random) -> tuple[Any, str, dict[str, int]]:
    """A form of the library on its own target, with sizes known now or at run time."""
    from campaign.subjects import library_texts

    from fireiron import sym
    from fireiron.language.library import bind, find

    form, _ = choose.choice(library_texts.numbered())
    entry = find(form)
    known = inspect.signature(importlib.import_module(f"fireiron.strategies.{form.partition(':')[0]}").spec).parameters
    sizes: dict[str, Any] = {one: size for one, size in choose.choice(library_texts.SIZES).items() if one in known}
    for name in sizes:
        if name in ("M", "N", "K", "L") and choose.random() < 0.4:
            sizes[name] = sym(name.lower(), multiple_of=8)
    values = {name: choose.choice(one.values) for name, one in entry.strategy.tunables().items()}
    return bind(entry, sizes, values=values), str(entry.strategy.target), {}


def _near(numbered: tuple[int, Draw], refinements: list[Any]) -> Draw | None:
    """A judged perturbation of a draw."""
    number, base = numbered
    perturbed = attrs.evolve(
        base.stored, name=f"near {base.stored.name}, {number}", strategy=near(base.stored.strategy, random.Random(number), refinements)
    )
    return _judged(perturbed, base.symbols, True)


def _judged(stored: Kept, symbols: dict[str, int], simulated: bool) -> Draw | None:
    """The result, and for an accepted kernel the judgment of the oracles; None if it takes too long."""
    from mutation.battery import Item

    from fireiron.errors import FireironError

    before = time.process_time()
    try:
        result = stored.outcome()
    except Exception:
        return Draw(stored, symbols, "crash", "", traceback.format_exc()[-600:])
    if time.process_time() - before > MOST_SECONDS:
        return None
    draw = Draw(stored, symbols, result.kind, result.body)
    if result.kind != TEXT or not simulated:
        return draw
    item = Item(stored.name, json.dumps(stored.strategy), stored.target, symbols, stored.strategy["strategy"].get("start") == "MatMul")
    try:
        item.prepare()
    except FireironError:  # sizes that this oracle does not support
        return None
    who, what = item.judged(always=True)
    return attrs.evolve(draw, wrong=f"{who}: {what}" if who else "")


def _keep(strategies: Iterable[Kept]) -> None:
    with lzma.open(KEPT, "wt", encoding="utf-8", preset=9) as file:
        file.writelines(json.dumps(attrs.asdict(one), separators=(",", ":")) + "\n" for one in strategies)
    kept.cache_clear()


def main(arguments: list[str]) -> int:
    """Draw again, or draw more."""
    jobs = os.cpu_count() or 1
    match arguments:
        case ["draw"]:
            _keep(drawn(jobs))
        case ["more", first, count]:
            _keep([*kept(), *more(int(first), int(count), jobs)])
        case _:
            sys.exit(__doc__)
    print(f"{len(kept())} strategies; store their digests by `make goldens`")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
