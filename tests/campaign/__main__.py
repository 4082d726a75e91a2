"""The command line of the campaigns; see `campaign`."""

import argparse
import os
import sys
from pathlib import Path

from tabulate import tabulate

from campaign import ledger
from campaign import state as states
from campaign.runner import Run, outcome_of, reproduce
from campaign.subject import Subject, subjects


def main(arguments: list[str] | None = None) -> int:
    """Run what the arguments specify; 0 if there are no findings."""
    all_subjects = subjects()
    options = _parser(list(all_subjects)).parse_args(arguments)
    chosen = list(all_subjects.values()) if options.subject in (None, "all") else [all_subjects[options.subject]]
    if options.seed is not None:
        return _again(chosen[0], options.seed)
    if options.publish:
        ledger.publish(chosen, options.folder, names=options.names or ())
    elif options.merge:
        _merge(options)
    elif options.subject is not None:
        for subject in chosen:
            (_repeat_findings if options.fixed else _run)(subject, options)
    return _report(chosen, options)


def _pairs(subject: Subject, state: states.State) -> str:
    """The pairs of features that were never drawn together: those promised by a subject, and the number of others."""
    promised = [tuple(sorted(pair)) for pair in subject.together()]
    missing = [pair for pair in promised if " + ".join(pair) not in state.pairs]
    others = [pair for pair in state.undrawn() if pair not in {" + ".join(one) for one in promised}]
    report = f"{subject.name}: {len(state.features)} features, {len(state.pairs)} pairs drawn together"
    if promised:
        report += f"; of {len(promised)} promised {len(missing)} never: {', '.join(map(' + '.join, missing)) or 'none'}"
    rare = sorted(state.features, key=lambda name: state.features[name])[:5]
    report += f"\n{subject.name}: others never together: {len(others)}" + (f", such as {', '.join(others[:12])}" if others else "")
    return f"{report}\n{subject.name}: rarest: {', '.join(f'{name} {state.features[name]}' for name in rare) or 'nothing was drawn'}"


def _parser(names: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m campaign", description="Random campaigns over what Fireiron promises; they can be stopped and continued."
    )
    parser.add_argument("subject", nargs="?", choices=[*names, "all"], help="what to generate; without it, the progress of all")
    parser.add_argument("--tier", choices=("nightly", "campaign"), default="campaign", help="number of requested draws (default: campaign)")
    parser.add_argument("--count", type=int, help="number of draws, instead of that of the tier")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="concurrent processes (default: one per processor)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="seconds after which no new chunk begins, for each subject")
    parser.add_argument("--seed", type=int, help="draw one seed and print its verdict")
    parser.add_argument(
        "--fixed", action="store_true", help="draw the seeds with findings again, and count those that are right now as fixed"
    )
    parser.add_argument("--publish", action="store_true", help="write the figures so far into docs/campaign and docs/reliability.md")
    parser.add_argument("--folder", type=Path, default=states.FOLDER, help="where the states are kept (default: build/campaign)")
    parser.add_argument("--begin", type=int, metavar="SEED", help="run a part that begins with this seed, in a separate --folder")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="take in the states of parts that ran elsewhere")
    parser.add_argument(
        "--names", type=Path, nargs="+", metavar="FILE", help="with --publish, add counts of names by perf/drawn_kernels.py"
    )
    parser.add_argument("--pairs", action="store_true", help="say which pairs of features were never drawn together")
    return parser


def _again(subject: Subject, seed: int) -> int:
    outcome = outcome_of(subject, seed)
    print(f"{subject.name}, seed {seed}: {outcome.verdict}\n{', '.join(sorted(outcome.features))}\n{dict(outcome.counts)}\n{outcome.story}")
    return int(outcome.verdict == "found")


def _run(subject: Subject, options: argparse.Namespace) -> None:
    if reason := subject.needs():
        print(f"{subject.name}: not run: {reason}", file=sys.stderr)
        return
    wanted = options.count or subject.wanted(options.tier)
    Run(subject, wanted, options.jobs, options.seconds, options.folder, published=_published(options), begin=options.begin).go()


def _published(options: argparse.Namespace) -> Path | None:
    """A campaign in the default folder continues from the published state; one in another folder starts again."""
    return states.PUBLISHED if options.folder == states.FOLDER else None


def _merge(options: argparse.Namespace) -> None:
    for file in options.merge:
        other = states.read(file)
        subject = subjects()[other.subject]
        with states.alone(subject.name, options.folder):
            state = states.load(subject.name, subject.first, options.folder, _published(options))
            state.merge(other)
            states.save(state, options.folder)


def _repeat_findings(subject: Subject, options: argparse.Namespace) -> None:
    with states.alone(subject.name, options.folder):
        state = states.load(subject.name, subject.first, options.folder, _published(options))
        for finding in state.open():
            seed = int(str(finding["seed"]))
            state.mend(seed, outcome_of(subject, seed))
            states.save(state, options.folder)


def _report(chosen: list[Subject], options: argparse.Namespace) -> int:
    rows, wrong = [], 0
    for subject in chosen:
        state = states.load(subject.name, subject.first, options.folder, _published(options))
        wrong += len(state.open())
        wanted = options.count or subject.wanted(options.tier)
        rows.append(
            [
                subject.name,
                subject.title,
                state.amount(subject.counted),
                wanted,
                *(state.verdicts[one] for one in ("refused", "found", "mended")),
                f"{state.seconds:.0f}",
            ]
        )
        if options.pairs:
            print(_pairs(subject, state))
        for finding in state.open():
            print(f"{subject.name}: found, again with {reproduce(subject.name, int(str(finding['seed'])))}")
    print(
        tabulate(
            rows, ["subject", "what", "so far", "wanted", "refused", "found", "fixed", "processor s"], maxcolwidths=[None, 60, *[None] * 6]
        )
    )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
