"""Long random campaigns: subjects that are drawn from seeds, run in many processes, stopped and gone on with.

    python -m campaign                     what there is, and how far each subject is
    python -m campaign strategies          goes on with a subject until its number is reached
    python -m campaign all --tier nightly  all of them, with the numbers of the nightly tier: `make fuzz`
    python -m campaign strategies --seed 7 one draw, as a finding says

Run it where `tests` is importable (`PYTHONPATH=.:tests`). A new file in `subjects/` that defines `SUBJECT` is a new subject; `runner.py` runs
them, `state.py` keeps what was found.
"""

from campaign.subject import Outcome, Subject, agreed, found, refused

__all__ = ["Outcome", "Subject", "agreed", "found", "refused"]
