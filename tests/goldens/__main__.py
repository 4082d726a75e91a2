"""The command line of the goldens; see `goldens`."""

from __future__ import annotations

import argparse
import difflib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs
from tqdm import tqdm

from goldens import cases, readable
from goldens.cases import GONE, WAYS, Case, Outcome
from goldens.readable import READABLE, ROOT, TEXTS
from goldens.subjects import SUBJECTS, case_of

MOST_LINES = 400
"""The number of printed diff lines of a readable golden; git shows all."""


def main(arguments: list[str] | None = None) -> int:
    """Run what the arguments specify."""
    options = _parser().parse_args(arguments)
    match options.command:
        case "accept":
            accept(options.of or [*SUBJECTS, *READABLE], options.jobs)
        case "draw":
            draw(options.subject, options.jobs)
        case "text":
            print(json.dumps([attrs.asdict(SUBJECTS[options.subject]().outcome(name)) for name in options.names]))
        case _:
            show(options.subject, options.names, options.revision)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m goldens", description="Stored digests of printed texts and refusals.")
    commands = parser.add_subparsers(dest="command", required=True)
    accepted = commands.add_parser("accept", help="compute all again, store it, and report what changed")
    accepted.add_argument("of", nargs="*", choices=[[], *SUBJECTS, *READABLE], help="subjects or readable goldens (default: all)")
    drawn = commands.add_parser("draw", help="draw other cases of a subject, and store them")
    drawn.add_argument("subject", choices=["perturbed", "offers"])
    for command in (accepted, drawn):
        command.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one for each core)")
    shown = commands.add_parser("show", help="the difference of cases between a git revision and the working tree")
    shown.add_argument("--revision", default="HEAD", help="what git calls it (default: HEAD)")
    texts = commands.add_parser("text", help="what comes of cases, as JSON")
    for command in (shown, texts):
        command.add_argument("subject", choices=[*SUBJECTS])
        command.add_argument("names", nargs="+", metavar="name")
    return parser


# ---------------------------------------------------------------------------------------------- accept


def accept(of: Sequence[str], jobs: int) -> None:
    """Store the present results of these subjects and readable goldens, and print the changes."""
    report = []
    for name in (one for one in READABLE if one in of):
        lines = [*readable.write(READABLE[name]())]
        for line in (*lines[:MOST_LINES], *([f"... {len(lines) - MOST_LINES} more lines"] if len(lines) > MOST_LINES else [])):
            print(line)
        report.append(f"{name}: {sum(line.startswith('+++') for line in lines)} files changed, {len(lines)} lines of diff")
        if name == "texts":
            _remove_others()
    names_by_subject = {name: SUBJECTS[name]().names() for name in SUBJECTS if name in of}
    report += _accept_cases(names_by_subject, jobs) if names_by_subject else []
    print(*report, sep="\n")


def _remove_others() -> None:
    """Remove the texts of kernels that are no longer stored."""
    for path in {*TEXTS.glob("*.cu")} - {*readable.of_texts()}:
        path.unlink()
        print(f"{path.name}: removed")


def _accept_cases(names_by_subject: dict[str, Sequence[str]], jobs: int) -> list[str]:
    """Compute and store cases; returns a line for each subject."""
    pairs = [(subject, name) for subject, names in names_by_subject.items() for name in names]
    cases_by_subject: dict[str, list[Case]] = {subject: [] for subject in names_by_subject}
    with multiprocessing.Pool(jobs) as pool:
        outcomes = pool.imap(_named, pairs, chunksize=4)
        for (subject, _), case in zip(pairs, tqdm(outcomes, total=len(pairs), mininterval=5.0, file=sys.stderr), strict=True):
            cases_by_subject[subject].append(case)
    lines = [_changes(subject, of) for subject, of in cases_by_subject.items()]
    cases.store(cases_by_subject)
    return lines


def _named(pair: tuple[str, str]) -> Case:
    """The case of a name. Other errors than refusals state the case: `imap` would end silently by a StopIteration."""
    try:
        return case_of(pair)
    except Exception as error:
        raise RuntimeError(f"goldens show {pair[0]} {pair[1]!r}: {type(error).__name__}: {error}") from error


def _changes(subject: str, computed: Sequence[Case]) -> str:
    """The number of changed cases of a subject, by kind of change."""
    before = {one.name: one for one in cases.cases(subject)}
    counts = Counter(way for one in computed if (way := one.way(before.get(one.name))))
    counts[GONE] = len(before.keys() - {one.name for one in computed})
    ways = ", ".join(f"{counts[way]} {way}" for way in WAYS if counts[way])
    return f"{subject}: {counts.total()} of {len(computed)} cases changed{f': {ways}' if ways else ''}"


def draw(subject: str, jobs: int) -> None:
    """Draw the cases of a subject again."""
    drawn = SUBJECTS[subject]().draw
    assert drawn is not None
    print(*_accept_cases({subject: drawn()}, jobs), sep="\n")


# ---------------------------------------------------------------------------------------------- show


def show(subject: str, names: Sequence[str], revision: str) -> None:
    """Print the differences of cases between a revision and the working tree."""
    with _worktree(revision) as folder:
        before = _outcomes(folder, subject, names)
    after = _outcomes(ROOT, subject, names)
    for name, *pair in zip(names, before, after, strict=True):
        print(*_difference(name, revision, *pair), sep="\n")


def _difference(name: str, revision: str, before: Outcome, after: Outcome) -> Iterator[str]:
    """The difference of the texts; if they agree, that of their steps."""
    pairs = (f"{before.kind}\n{before.body}", f"{after.kind}\n{after.body}"), (before.annotations, after.annotations)
    for old, new in pairs:
        if old != new:
            yield from difflib.unified_diff(old.splitlines(), new.splitlines(), f"{name}, {revision}", f"{name}, working tree", lineterm="")
            return
    yield f"{name}: no difference"


@contextmanager
def _worktree(revision: str) -> Iterator[Path]:
    """A revision's files in a separate folder, as long as they are needed."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "revision"
        subprocess.run(["git", "worktree", "add", "--detach", "--quiet", str(place), revision], cwd=ROOT, check=True)
        try:
            yield place
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(place)], cwd=ROOT, check=True)


def _outcomes(folder: Path, subject: str, names: Sequence[str]) -> list[Outcome]:
    """The results of cases in a working tree, by its own tests; by ours if it lacks this command."""
    tests = next(one for one in (folder / "tests", ROOT / "tests") if (one / "goldens" / "__main__.py").is_file())
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(tests)))}
    command = [sys.executable, "-m", "goldens", "text", subject, *names]
    done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return [Outcome(**fields) for fields in json.loads(done.stdout)]


if __name__ == "__main__":
    sys.exit(main())
