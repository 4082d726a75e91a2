"""Find the records in use and the best strategy for a spec, or tune to obtain a new record."""

from __future__ import annotations

from typing import Any

from fireiron.errors import ArgumentError, StoreError
from fireiron.language.strategy import Bindable, Strategy
from fireiron.spec import Spec, as_spec
from fireiron.tune.record import Record
from fireiron.tune.records.collection import Records
from fireiron.tune.records.format import tune_command
from fireiron.tune.records.rules import target_of
from fireiron.values.machine import Architecture


def available(require_record: bool | None = None) -> Records:
    """Return the records in use: those of the file in `FIREIRON_RECORDS`, and without `require_record` the shipped ones.

    Raises: StoreError if an exact record is required and no file is specified.
    """
    from fireiron import settings

    path = settings.records_path()
    if not requires_record(require_record):
        return Records.shipped() if path is None else Records.load(path).merged(Records.shipped())
    if path is None:
        raise StoreError("an exact record is required, but no file of records is specified", hint="set FIREIRON_RECORDS to the file")
    return Records.load(path)


def requires_record(require_record: bool | None = None) -> bool:
    """Return whether only exact records of the named file may be used: the argument, or for None the value of `FIREIRON_REQUIRE_RECORD`."""
    from fireiron import settings

    if require_record is not None and not isinstance(require_record, bool):
        raise ArgumentError("require_record must be True, False or None", got=require_record)
    return settings.require_record() if require_record is None else require_record


def best_strategy(
    spec: Bindable,
    arch: Architecture | str | None = None,
    require_record: bool | None = None,
    *,
    gpu: str | None = None,
    tune: bool = False,
    default: bool = False,
) -> Strategy:
    """Return the strategy with the best record for a spec, bound to it, with its values; measure nothing unless `tune`.

    Args:
        spec: a kernel's spec.
        arch: the target; default `"sm_90"`.
        require_record: use only a record of exactly this spec, from the file in `FIREIRON_RECORDS`; None means the value of
            `FIREIRON_REQUIRE_RECORD`.
        gpu: the name of a GPU whose records are preferred.
        tune: without a record of exactly this spec, tune the library's default strategy on the current GPU, which takes minutes, and append
            the record to the file in `FIREIRON_RECORDS`, if it is set. Illegal if an exact record is required.
        default: without a record of this spec or a similar one, return the library's default strategy, as `fireiron.matmul` does. Illegal
            if an exact record is required.

    Raises: a `StoreError` if there is no record; its message lists the existing records and the tuning command.
    """
    wanted: Spec = as_spec(spec)
    strict = requires_record(require_record)
    if tune and strict:
        raise ArgumentError(
            "best_strategy(tune=True): an exact record is required, so nothing is measured",
            hint="set require_record=False, or tune separately",
        )
    if default and strict:
        raise ArgumentError(
            "best_strategy(default=True): an exact record is required, so defaults are not permitted", hint="set require_record=False"
        )
    records = available(require_record)
    if default and not tune and (strategy := _recorded_or_default(records, wanted, arch, gpu)) is not None:
        return strategy
    if not tune:
        return records.best(wanted, arch, neighbors=not strict, gpu=gpu).strategy
    choice = records.find(wanted, arch, neighbors=False, gpu=gpu) or Records((_tuned(wanted, arch),)).best(wanted, arch, neighbors=False)
    return choice.strategy


def _recorded_or_default(records: Records, spec: Spec, arch: Any, gpu: str | None) -> Strategy | None:
    """Return the strategy of a record, else the library's default; None if it has none for such specs."""
    from fireiron.language.library import defaults
    from fireiron.tune.records.default import default_choice

    target = target_of(arch)
    choice = records.find(spec, target, gpu=gpu)
    if choice is None and not defaults(spec, target):
        return None
    return (choice or default_choice(spec, target)).strategy


def _tuned(spec: Spec, arch: Any) -> Record:
    """Tune the default strategy; return the record, appended to the file in `FIREIRON_RECORDS`."""
    from fireiron import settings
    from fireiron.language.library import defaults, find
    from fireiron.tune import tune as measured

    target = target_of(arch).name
    name = next((name for name, _ in defaults(spec, target)), None)
    if name is None:
        raise StoreError(f"the library has no default strategy for {spec}", hint=tune_command(spec, target))
    record = measured(find(name).strategy, spec, arch=target, name=name).best
    if record is None:
        raise StoreError(f"tuning {name} for {spec} found no legal values with correct results", hint=tune_command(spec, target, name))
    path = settings.records_path()
    if path is not None:
        Records.append_to(path, record)
    return record
