"""The figures of campaigns that are published: what `docs/campaign/` keeps of each state, and the table of `docs/reliability.md`."""

import json
import math
from collections.abc import Iterable
from pathlib import Path

from tabulate import tabulate

from campaign import state as states
from campaign.state import ROOT, State
from campaign.subject import Subject

FOLDER = ROOT / "docs" / "campaign"
PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- figures: written by `python -m campaign --publish` -->", "<!-- end of the figures -->"
HEADS = ("subject", "what", "counted", "wanted", "refused", "found", "of them mended", "seeds", "dates", "processor time")


def publish(every: Iterable[Subject], source: Path, target: Path = FOLDER, page: Path = PAGE) -> None:
    """Keep what ran of each subject, without its stories and pairs, and write the page's table anew."""
    target.mkdir(parents=True, exist_ok=True)
    for subject in every:
        state = states.load(subject.name, subject.first, source)
        if state.amount("drawn"):
            (target / f"{subject.name}.json").write_text(json.dumps(kept(subject, state), indent=1) + "\n", encoding="utf-8")
    page.write_text(with_table(page.read_text(encoding="utf-8"), table(target)), encoding="utf-8")


def kept(subject: Subject, state: State) -> dict[str, object]:
    """What is published of a state: figures, seeds, dates, machine, what ran, and how to run it."""
    return {
        "subject": subject.name,
        "title": subject.title,
        "counted": subject.counted,
        "amount": state.amount(subject.counted),
        "wanted": subject.campaign,
        "verdicts": dict(state.verdicts),
        "counts": dict(state.counts),
        "features": len(state.features),
        "pairs": len(state.pairs),
        "undrawn": state.undrawn(),
        "seeds": [[state.first, state.next], *state.ahead],
        "found": [{"seed": one["seed"], "mended": one["mended"]} for one in state.findings],
        "seconds": round(state.seconds),
        "dates": state.dates,
        "sources": state.sources,
        "machine": state.machine,
        "command": f"PYTHONPATH=.:tests python -m campaign {subject.name}",
    }


def table(folder: Path = FOLDER) -> str:
    """The published figures, a row a subject."""
    rows = [_row(json.loads(file.read_text(encoding="utf-8"))) for file in sorted(folder.glob("*.json"))]
    return tabulate(rows, HEADS, tablefmt="github")


def _row(one: dict[str, object]) -> list[object]:
    verdicts, seeds = one["verdicts"], one["seeds"]
    assert isinstance(verdicts, dict) and isinstance(seeds, list)
    counted = f"{one['amount']:,}" + ("" if one["counted"] in ("agreed", "drawn") else f" {one['counted']}")
    spans = ", ".join(f"{first} to {stop - 1}" for first, stop in seeds if stop > first)
    dates = one["dates"]
    assert isinstance(dates, list)
    return [
        f"`{one['subject']}`", one["title"], counted, f"{one['wanted']:,}", verdicts.get("refused", 0), verdicts.get("found", 0) + verdicts.get("mended", 0),
        verdicts.get("mended", 0), spans, " to ".join(dict.fromkeys((dates[0], dates[-1]))), duration(float(str(one["seconds"]))),
    ]  # fmt: skip


def duration(seconds: float) -> str:
    """Seconds as a person says them.

    >>> duration(40), duration(600), duration(9000)
    ('40 s', '10 min', '2.5 h')
    """
    if seconds < 120:
        return f"{math.ceil(seconds)} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def with_table(page: str, figures: str) -> str:
    """The page with other figures between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, mark, behind = rest.partition(END)
    assert mark, f"the page has no {BEGIN} ... {END}"
    return f"{before}{BEGIN}\n\n{figures}\n\n{END}{behind}"


def up_to_date() -> bool:
    """Whether the page says what the folder says."""
    page = PAGE.read_text(encoding="utf-8")
    return with_table(page, table()) == page
