"""The published results of campaigns: the contents of `docs/campaign/` for each state, and the table of `docs/reliability.md`."""

import json
import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs
from tabulate import tabulate

from campaign import state as states
from campaign import table as table_of_names
from campaign.state import ROOT, State
from campaign.subject import Subject

FOLDER = states.PUBLISHED
PAGE = ROOT / "docs" / "reliability.md"
APPENDIX = "reliability-appendix.md"
"""The page next to `PAGE` that has the seeds and durations."""

BEGIN, END = "<!-- figures: written by `python -m campaign --publish` -->", "<!-- end of the figures -->"
MOST_RANGES = 6
"""The number of seed ranges named in a row of the page."""

HEADS = ("subject", "what", "counted", "wanted", "found", "of them fixed", "dates")
HEADS_OF_SEEDS = ("subject", "refused", "processor time", "seeds")


def publish(subjects: Iterable[Subject], source: Path, target: Path = FOLDER, page: Path = PAGE, names: Iterable[Path] = ()) -> None:
    """Store the state of each subject that ran, without its stories, and rewrite the table of the page.

    The counts of public names move from the states to the table of names, with those of the files `names`.
    """
    target.mkdir(parents=True, exist_ok=True)
    counts = table_of_names.read(target / "names" / "counts.json")
    table_of_names.merged(names, counts)
    for subject in subjects:
        state = states.load(subject.name, subject.first, source, target)
        if state.names:
            counts.add(state.names, state.meetings, f"{subject.name}, seeds {_seeds([[span.start, span.stop] for span in state.spans()])}")
            states.save(attrs.evolve(state, names=Counter(), meetings=Counter()), source)
    if counts.sources:
        counts.write(target / "names" / "counts.json")
    for subject in subjects:
        state = states.load(subject.name, subject.first, source, target)
        if state.amount("drawn"):
            (target / f"{subject.name}.json").write_text(_lines(kept(subject, state)), encoding="utf-8")
    page.write_text(with_table(page.read_text(encoding="utf-8"), table(target)), encoding="utf-8")
    appendix = page.with_name(APPENDIX)
    if appendix.is_file():
        appendix.write_text(with_table(appendix.read_text(encoding="utf-8"), table_of_seeds(target)), encoding="utf-8")


def kept(subject: Subject, state: State) -> dict[str, object]:
    """The published data: the subject and its command, its result, and the state, from which other runs continue."""
    head = {
        "title": subject.title,
        "counted": subject.counted,
        "amount": state.amount(subject.counted),
        "wanted": subject.campaign,
        "command": f"PYTHONPATH=.:tests python -m campaign {subject.name}",
    }
    state_dict = attrs.asdict(state)
    state_dict["findings"] = [{**one, "story": ""} for one in state.findings]
    return {**head, **{name: value for name, value in state_dict.items() if name not in states.TABLES}, "seconds": round(state.seconds)}


def _lines(values: dict[str, object]) -> str:
    """One line per value, so that a state with many pairs is readable."""
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in values.items()) + "\n}\n"


def table(folder: Path = FOLDER) -> str:
    """The published results, one row per subject, and sums over several of them."""
    published = _published(folder)
    return tabulate([_row(one) for one in published], HEADS, tablefmt="github") + _sums(published)


def table_of_seeds(folder: Path = FOLDER) -> str:
    """The seeds and durations of the published results, one row per subject."""
    return tabulate([_row_of_seeds(one) for one in _published(folder)], HEADS_OF_SEEDS, tablefmt="github")


def _published(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]


SIMULATED = (
    "strategies", "definitions", "second", "tasks", "walks", "text", "clean", "combined", "crowded", "derived", "indirect", "instructions", "names",
    "near", "nested", "nodes", "packed", "producers", "refined", "relations", "scans", "sparse",
)  # fmt: skip
"""Subjects that simulate each draw and compare it with NumPy, or with the kernel in another order."""


def _sums(published: list[dict[str, Any]]) -> str:
    """The sums over several subjects; empty if none of them ran."""
    those = [one for one in published if one["subject"] in SIMULATED]
    if not those:
        return ""
    agreed, open_findings = (sum(one["verdicts"].get(verdict, 0) for one in those) for verdict in ("agreed", "found"))
    clean, launched = (sum(one["counts"].get(name, 0) for one in those) for name in ("clean", "on the GPU"))
    ptxas = sorted({name.rpartition(" ")[2] for one in those for name in one["counts"] if name.startswith("defect of ptxas")})
    return (
        f"\n\nIn total, {agreed:,} strategies, definitions, scripts and task programs were simulated and agreed; {open_findings} findings are open. For {clean:,}, all static checks "
        f"ran without an alarm; false alarms are among the findings. {launched:,} were also launched on a GPU"
        + (f"; {len(ptxas)} of these gave the right result only without ptxas optimization (seed {', '.join(ptxas)})." if ptxas else ".")
    )


def _row(entry: dict[str, Any]) -> list[object]:
    verdicts, dates = entry["verdicts"], entry["dates"]
    counted = f"{entry['amount']:,}" + ("" if entry["counted"] in ("agreed", "drawn") else f" {entry['counted']}")
    fixed = verdicts.get("mended", 0)
    days = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    return [f"`{entry['subject']}`", entry["title"], counted, f"{entry['wanted']:,}", verdicts.get("found", 0) + fixed, fixed, days]


def _row_of_seeds(entry: dict[str, Any]) -> list[object]:
    seeds = _seeds([[entry["first"], entry["next"]], *entry["ahead"]])
    return [f"`{entry['subject']}`", f"{entry['verdicts'].get('refused', 0):,}", duration(float(entry["seconds"])), seeds]


def _seeds(spans: list[list[int]]) -> str:
    """Ranges of seeds; for many the first ones and the end, since the state has them all."""
    ranges = [f"{first} to {stop - 1}" for first, stop in spans if stop > first]
    more = len(ranges) - MOST_RANGES
    return ", ".join(ranges) if more <= 0 else f"{', '.join(ranges[: MOST_RANGES - 1])} and {more + 1} more ranges up to {spans[-1][1] - 1}"


def duration(seconds: float) -> str:
    """Seconds as a person writes them.

    >>> duration(40), duration(600), duration(9000)
    ('40 s', '10 min', '2.5 h')
    """
    if seconds < 120:
        return f"{math.ceil(seconds)} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def with_table(page: str, figures: str) -> str:
    """The page with other text between its two markers."""
    before, _, rest = page.partition(BEGIN)
    _, mark, after = rest.partition(END)
    assert mark, f"the page has no {BEGIN} ... {END}"
    return f"{before}{BEGIN}\n\n{figures}\n\n{END}{after}"


def up_to_date() -> bool:
    """Whether the page agrees with the folder."""
    tables = {PAGE: table(), PAGE.with_name(APPENDIX): table_of_seeds()}
    texts = {page: page.read_text(encoding="utf-8") for page in tables}
    return all(with_table(texts[page], figures) == texts[page] for page, figures in tables.items())
