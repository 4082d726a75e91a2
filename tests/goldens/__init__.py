"""Stored texts and refusals, which detect unintended changes, and the command that accepts a change.

    make goldens                                compute all again, store it, and report the changes
    python -m goldens accept corpus             the same for one subject alone
    python -m goldens show corpus 'pair 51000162'
                                                the difference of one case between a git revision (HEAD) and the working tree
    python -m goldens draw perturbed            draw other cases of a subject (`perturbed`, `offers`), and store them

Run it where `tests` is importable (`PYTHONPATH=.:tests`). Three kinds of files are stored in this folder:

- `texts/*.cu` are the full texts of some 20 kernels that together run nearly every line of the printer; tables to read are `types.txt`,
  `wrong_arguments.txt`, `micro_kernels.cu` and `docs/limits.md` (`readable`);
- `cases.xz` has a line for each case of each subject (`subjects`): its name, whether it is a text or which error refuses it, and two digests,
  without and with comments, so that a failing test names the cases that differ, and how (`cases`);
- `summary.txt` has one line for each subject: how many cases, how many of them refused, and one digest of all, which a diff shows.

A digest reports a change and proves nothing: other oracles decide what is right. Corpus inputs are in `corpus.xz` (`tests/corpus.py`).
"""
