"""Collections of tuned records: files, merging, and the choice of a record for a spec.

Files are JSON Lines, so they merge by concatenation (also by git's `merge=union`); nothing in them is ever executed.
docs/library.md, `Records.merged` and `Records.find` document how records are merged and chosen.
"""

from fireiron.tune.record import FORMAT, KINDS, Record, describe, spec_of, strategy_hash
from fireiron.tune.records.choosing import AS_NEAR, MOST_COMPARED, MOST_TRIES, Accept, Choice
from fireiron.tune.records.collection import Records, merge_files, write_records
from fireiron.tune.records.files import parse_line, read_text, record_files
from fireiron.tune.records.format import tune_command
from fireiron.tune.records.lookup import available, best_strategy, requires_record
from fireiron.tune.records.outdated import OutdatedRecord, OutdatedRecordWarning, current_strategy
from fireiron.tune.records.rules import FARTHEST, preference

__all__ = [
    "AS_NEAR",
    "FARTHEST",
    "FORMAT",
    "KINDS",
    "MOST_COMPARED",
    "MOST_TRIES",
    "Accept",
    "Choice",
    "OutdatedRecord",
    "OutdatedRecordWarning",
    "Record",
    "Records",
    "available",
    "best_strategy",
    "current_strategy",
    "describe",
    "merge_files",
    "parse_line",
    "preference",
    "read_text",
    "record_files",
    "requires_record",
    "spec_of",
    "strategy_hash",
    "tune_command",
    "write_records",
]
