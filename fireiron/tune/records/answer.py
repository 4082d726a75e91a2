"""The answer to `best`: the records that count here, and a fresh one where none is and tuning is asked for."""

from __future__ import annotations

from typing import Any

from fireiron.errors import ArgumentError, StoreError
from fireiron.language.strategy import Strategy
from fireiron.spec import Spec
from fireiron.tune.record import Record
from fireiron.tune.records.collection import Records
from fireiron.tune.records.rules import target_of
from fireiron.tune.records.words import tune_command
from fireiron.values.machine import Architecture


def available(pinned: bool | None = None) -> Records:
    """The records that answer here: those of the file in `FIREIRON_RECORDS` and the shipped ones; pinned, those of the file only.

    Raises: StoreError where records are pinned and no file is named.
    """
    from fireiron import settings

    path = settings.records_path()
    if not is_pinned(pinned):
        return Records.shipped() if path is None else Records.load(path).merged(Records.shipped())
    if path is None:
        raise StoreError("records are pinned, and no file of records is named", hint="set FIREIRON_RECORDS to the file")
    return Records.load(path)


def is_pinned(pinned: bool | None = None) -> bool:
    """Whether only exact records of the named file may answer: as asked, or for None as `FIREIRON_PINNED` says; else an error."""
    from fireiron import settings

    if pinned is not None and not isinstance(pinned, bool):
        raise ArgumentError("pinned: neither true nor false nor None", got=pinned)
    return settings.pinned() if pinned is None else pinned


def best(
    spec: Spec,
    arch: Architecture | str | None = None,
    pinned: bool | None = None,
    *,
    gpu: str | None = None,
    tune: bool = False,
    default: bool = False,
) -> Strategy:
    """The strategy that is recorded as the best for a spec, bound to it, with its values; nothing is measured unless `tune` says so.

    Args:
        spec: a kernel's spec.
        arch: the target, `"sm_90"` if none is named.
        pinned: only a record of exactly this spec, from the file in `FIREIRON_RECORDS`, may answer; as `FIREIRON_PINNED` says if None.
        gpu: the name of a GPU whose records are preferred.
        tune: where no record is for exactly this spec, tune the library's default strategy for it on the current GPU, which takes
            minutes, and add the record to the file in `FIREIRON_RECORDS`, if one is named. Illegal where records are pinned.
        default: where no record answers, neither of just this nor of a neighbour, the library's default strategy for the spec, if it has
            one, as `fireiron.matmul` takes it. Illegal where records are pinned.

    Raises: StoreError where no record answers; it says which there are, and the command that tunes.
    """
    strict = is_pinned(pinned)
    if tune and strict:
        raise ArgumentError("best(tune=True): records are pinned, so nothing is measured", hint="pinned=False, or tune elsewhere")
    if default and strict:
        raise ArgumentError("best(default=True): records are pinned, so only they answer", hint="pinned=False")
    records = available(pinned)
    if default and not tune and (found := _found_or_default(records, spec, arch, gpu)) is not None:
        return found
    if not tune:
        return records.best(spec, arch, neighbours=not strict, gpu=gpu).strategy
    choice = records.find(spec, arch, neighbours=False, gpu=gpu) or Records((_tuned(spec, arch),)).best(spec, arch, neighbours=False)
    return choice.strategy


def _found_or_default(records: Records, spec: Spec, arch: Any, gpu: str | None) -> Strategy | None:
    """The strategy of a record, else the library's default; None where it has none for such specs."""
    from fireiron.language.library import defaults
    from fireiron.tune.records.default import default_choice

    target = target_of(arch)
    choice = records.find(spec, target, gpu=gpu)
    if choice is None and not defaults(spec, target):
        return None
    return (choice or default_choice(spec, target)).strategy


def _tuned(spec: Spec, arch: Any) -> Record:
    """A fresh record of the default strategy, kept in the named file."""
    from fireiron import settings
    from fireiron.language.library import defaults, find
    from fireiron.tune import tune as measured

    target = target_of(arch).name
    name = next((name for name, _ in defaults(spec, target)), None)
    if name is None:
        raise StoreError(f"the library has no default strategy for {spec}", hint=tune_command(spec, target))
    record = measured(find(name).strategy, spec, arch=target, name=name).best
    if record is None:
        raise StoreError(f"tuning {name} for {spec} found no values that are legal and right", hint=tune_command(spec, target, name))
    path = settings.records_path()
    if path is not None:
        Records.append_to(path, record)
    return record
