"""Strategies that were drawn once and are kept, with what the compiler makes of them: their text, or their refusal.

`goldens/corpus.xz` holds them as stored strategies, a line of JSON each: draws of all generators, forms of the library on several targets, and
what lies near to these (`nearly`). `goldens` stores for each the digests of its text with the steps that made each line, or of all that the error
states. A digest says nothing of right and wrong: kernels near to others were simulated and compared with NumPy when they were drawn
(`mutation.battery`), and the oracles judge new draws of all generators in every test run. Store the digests of new ones by `make goldens`.

    python tests/corpus.py draw     draws all anew, in half an hour of two cores; for new verbs
    python tests/corpus.py more 53000000 2000
                                    draws 2000 more from a seed on, and adds those that say something new
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
    """All of them, in the order in which they are kept."""
    with lzma.open(KEPT, "rt", encoding="utf-8") as file:
        return [Kept(**json.loads(line)) for line in file]


@functools.cache
def by_name() -> dict[str, Kept]:
    """All of them by their names."""
    return {one.name: one for one in kept()}


def accepted() -> list[str]:
    """The names of those that are not refused."""
    return [one.name for one in cases("corpus") if not one.refused]


# ---------------------------------------------------------------------------------------------- drawing

COUNTS = {"strategy": 120, "definition": 140, "walk": 40, "pair": 600, "script": 180, "tasks": 60, "library": 80, "tuned": 160}
"""Draws of each generator, at most: walks for each pair of verbs and refinements too, forms of the library with values of tunables at random."""

NEAR = {"text": 250, "StoreError": 60, "refusal": 900}
"""How many are kept, at most, of so many that are tried."""

MOST_NEAR = 3_000
"""As many as what is kept was chosen from."""

ALIKE = 3
"""Refusals that are kept of those that say the same but for numbers."""

MOST_SECONDS = 1.0
"""Of processor time that one may take."""

FIRST = 51_000_000
"""The first seed."""


@attrs.frozen
class Draw:
    """What may be kept, what comes of it, and what an oracle says against it."""

    one: Kept
    symbols: dict[str, int]
    outcome: str
    text: str
    wrong: str = ""


def drawn(jobs: int) -> list[Kept]:
    """All that is kept, drawn anew."""
    found = bases(jobs)
    found += around(found, jobs)
    others = {(each.one.target, json.dumps(each.one.strategy)): each.one for each in reversed(found)}
    return random.Random(FIRST).sample([*others.values()], len(others))


def bases(jobs: int) -> list[Draw]:
    """What the generators draw."""
    found: list[Draw] = []
    for kind, count in COUNTS.items():
        with multiprocessing.Pool(jobs, maxtasksperchild=400) as pool:
            draws = pool.imap(functools.partial(_of, kind), range(FIRST, FIRST + 100 * count), chunksize=4)
            found += itertools.islice(
                (one for one in draws if one is not None and (one.outcome == "text" or kind in ("script", "tuned"))), count
            )
    return found


MORE = ("near",) * 8 + ("walk", "walk", "pair", "pair", "definition", "strategy", "script", "tuned", "tasks")
"""Of what further draws are."""


def more(first: int, count: int, jobs: int) -> Iterator[Kept]:
    """Of further draws, and of what lies near to what is kept, those that say something new, numbers in refusals aside."""
    digests, alike = {one.whole for one in cases("corpus")}, Counter(map(_said, kept()))
    with multiprocessing.Pool(jobs, maxtasksperchild=400) as pool:
        for draw in pool.imap(_more, range(first, first + count), chunksize=4):
            if draw is None or draw.wrong:
                print(*([] if draw is None else [draw.one.name, draw.wrong]), file=sys.stderr)
                continue
            whole, said = draw.one.case().whole, _said(draw.one)
            if whole not in digests and (draw.outcome == TEXT or alike[said] < ALIKE):
                digests.add(whole)
                alike[said] += 1
                yield draw.one


def _said(one: Kept) -> str:
    """What a refusal says, without its numbers."""
    outcome = one.outcome()
    return "" if outcome.kind == TEXT else re.sub(r"\d+", "", outcome.said.partition("\n")[0])


def _more(seed: int) -> Draw | None:
    kind = MORE[seed % len(MORE)]
    if kind != "near":
        return _of(kind, seed)
    base = random.Random(seed).choice(kept())
    return _near((seed, Draw(base, _sizes(base), "", "")), _refinements())


@functools.cache
def _refinements() -> list[Any]:
    return [one for each in kept() for one in refinements_in(each.strategy)]


def _sizes(one: Kept) -> dict[str, int]:
    """Sizes at run time, small ones; those of a strategy that is refused do not matter."""
    from fireiron.errors import FireironError
    from fireiron.language.store import loads
    from fireiron.spec import sizes_of

    try:
        symbols = sizes_of(loads(json.dumps(one.strategy)).spec)
    except FireironError:
        return {}
    return {var.name: max(min(40, var.high) // var.multiple_of, 1) * var.multiple_of for var in symbols}


def around(found: Sequence[Draw], jobs: int) -> list[Draw]:
    """What lies near to them, and says something new."""
    refinements = [one for each in found for one in refinements_in(each.one.strategy)]
    numbers = ((number, found[random.Random(f"{FIRST}/{number}").randrange(len(found))]) for number in range(MOST_NEAR))
    with multiprocessing.Pool(jobs, maxtasksperchild=400) as pool:
        return [*_chosen(found, pool.imap(functools.partial(_near, refinements=refinements), numbers, chunksize=8))]


def _chosen(found: Sequence[Draw], draws: Iterable[Draw | None]) -> Iterator[Draw]:
    """Of what lies near: what says something new."""
    texts, alike, counts = {one.text for one in found}, Counter[str](), Counter[str]()
    for one in draws:
        if one is None:
            continue
        if one.wrong:
            print(f"{one.wrong}\n{json.dumps(attrs.asdict(one.one))}\n", file=sys.stderr)
            continue
        kind = one.outcome if one.outcome in NEAR else "refusal"
        said = one.text if kind == "text" else re.sub(r"\d+", "", one.text.partition("\n")[0])
        if counts[kind] < NEAR[kind] and alike[said] < ALIKE and one.text not in texts:
            alike[said] += 1
            counts[kind] += 1
            texts.add(one.text)
            yield one
        if all(counts[each] >= count for each, count in NEAR.items()):
            return


def _of(kind: str, seed: int) -> Draw | None:
    """What a seed draws; nothing where it is refused, takes too long or is not to be stored."""
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
            one, _ = generator.draw(seed)
            return one.strategy, one.target, dict(one.symbols)
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
    """A form of the library on its own target, of sizes known now or at run time."""
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
    """Something near to a draw, judged."""
    number, base = numbered
    one = attrs.evolve(
        base.one, name=f"near {base.one.name}, {number}", strategy=near(base.one.strategy, random.Random(number), refinements)
    )
    return _judged(one, base.symbols, True)


def _judged(one: Kept, symbols: dict[str, int], simulated: bool) -> Draw | None:
    """What comes of it, and of a kernel that is accepted what the oracles say; nothing where it takes too long."""
    from mutation.battery import Item

    from fireiron.errors import FireironError

    before = time.process_time()
    try:
        made = one.outcome()
    except Exception:
        return Draw(one, symbols, "crash", "", traceback.format_exc()[-600:])
    if time.process_time() - before > MOST_SECONDS:
        return None
    draw = Draw(one, symbols, made.kind, made.said)
    if made.kind != TEXT or not simulated:
        return draw
    item = Item(one.name, json.dumps(one.strategy), one.target, symbols, one.strategy["strategy"].get("start") == "MatMul")
    try:
        item.prepare()
    except FireironError:  # sizes that this oracle does not know
        return None
    who, what = item.judged(always=True)
    return attrs.evolve(draw, wrong=f"{who}: {what}" if who else "")


def _keep(every: Iterable[Kept]) -> None:
    with lzma.open(KEPT, "wt", encoding="utf-8", preset=9) as file:
        file.writelines(json.dumps(attrs.asdict(one), separators=(",", ":")) + "\n" for one in every)
    kept.cache_clear()


def main(arguments: list[str]) -> int:
    """Draw anew, or more."""
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
