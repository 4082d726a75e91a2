"""Long random campaigns: subjects drawn from seeds, run in many processes, interrupted and continued.

    python -m campaign                     the subjects, and the progress of each
    python -m campaign strategies          continue a subject until its number is reached
    python -m campaign all --tier nightly  all of them, with the numbers of the nightly tier: `make fuzz`
    python -m campaign strategies --seed 7 one draw, as a finding proposes

Run it where `tests` is importable (`PYTHONPATH=.:tests`). A new file in `subjects/` that defines `SUBJECT` is a new subject; `runner.py`
runs them, `state.py` stores the results.
"""

from campaign.subject import Outcome, Subject, agreed, drawn_from, found, refused

__all__ = ["Outcome", "Subject", "agreed", "drawn_from", "found", "refused"]
