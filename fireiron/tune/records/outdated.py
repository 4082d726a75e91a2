"""Detect outdated records, whose strategy has changed: they are not used, and a warning reports them."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping

from fireiron.errors import ArgumentError
from fireiron.frozen import frozen
from fireiron.language.strategy import Strategy
from fireiron.tune.record import Record, strategy_hash
from fireiron.tune.records.format import spec_text


class OutdatedRecordWarning(UserWarning):
    """A record of an older version of its strategy is not used, or the end of a file is truncated."""


@frozen
class OutdatedRecord:
    """Records that are not used, because the strategy now has the hash `now`, or, if that is None, is not in the library."""

    strategy: str
    recorded: str
    now: str | None
    records: int

    @property
    def message(self) -> str:
        """The warning, as one line."""
        subject = f"{self.records} record{'s' if self.records > 1 else ''} of {self.strategy} ({self.recorded})"
        if self.now is None:
            return f"{subject}: the library has no such strategy"
        return f"{subject}: tuned for an older version of the strategy (now {self.now}); tune again"


def current_strategy(record: Record, strategies: Mapping[str, Strategy] | None = None) -> Strategy | None:
    """Return the strategy of a record if it is unchanged; otherwise None, with a warning.

    A strategy of a user's file is used only if it is in `strategies`: a record never causes the execution of a file.
    """
    strategy = (strategies or {}).get(record.strategy) or of_library(record.strategy)
    if strategy is None:
        if not is_file(record.strategy):
            warnings.warn(f"records of {record.strategy} are not used: no strategy has this name", OutdatedRecordWarning, stacklevel=2)
        return None
    now = hash_now(strategy)
    if now != record.strategy_hash:
        warnings.warn(
            f"records of {record.strategy} for {spec_text(record.spec)} are not used: tuned for an older version of the strategy "
            f"({record.strategy_hash}, now {now}); fireiron list --outdated shows them",
            OutdatedRecordWarning,
            stacklevel=2,
        )
        return None
    return strategy


def is_file(name: str) -> bool:
    """Return whether the name of a strategy refers to a user's file."""
    return name.endswith(".py") or (":" in name and not _in_library(name))


@functools.lru_cache(maxsize=256)
def hash_now(strategy: Strategy) -> str:
    """Return `strategy_hash`, cached per strategy, because it takes milliseconds."""
    return strategy_hash(strategy)


@functools.lru_cache(maxsize=256)
def of_library(name: str) -> Strategy | None:
    """Return a strategy of the library by name, or by file and name: `attention:causal`."""
    from fireiron.language.library import find

    try:
        return find(name).strategy if _in_library(name) else None
    except ArgumentError:  # the file has no such strategy any more
        return None


def _in_library(name: str) -> bool:
    """Whether the library or the folder of a team has a file of the strategy."""
    from fireiron.language.library import names, team_files

    return name.partition(":")[0] in (*names(), *team_files())
