"""The page of results: a table of problems, and how it was made."""

LEVELS = {1: "Level 1: single operations", 2: "Level 2: sequences of operations"}

INTRODUCTION = """# KernelBench, levels 1 and 2: which problems definitions state

{date}; {versions}; CPU only. Command: `python perf/kernelbench --page`.

KernelBench (github.com/ScalingIntelligence/KernelBench, MIT) has 100 problems in each of its levels 1 and 2. This page lists which
of them a Fireiron definition states. Each problem is written as one definition, or as a `KernelGraph` of several, in `perf/kernelbench/`.
The kernels run in the simulator, in float32, at small sizes, most of them odd, and are compared with a reference in NumPy in float64.
Kernel sizes, strides, padding, dilation, groups of convolutions, and constants are those of the problem; the extents of tensors, the numbers
of channels, and the groups of normalizations are smaller. No code of KernelBench is part of this project.

**{stated} of {total} problems are stated: {single} by one definition, {several} by several kernels.**{missing}{texts}{references}

The page states nothing about speed. Strategies are the simplest ones: a thread computes one result.
"""

REFERENCES = """

The references were compared with the modules of KernelBench in PyTorch {torch} (CPU, float64, training mode, {date}): {equal} are equal up to
1e-7{but} (`python perf/kernelbench/against_torch.py KERNELBENCH`)."""

NOTES = """
Semantics that the problems leave to PyTorch, and that the definitions state:

- Normalization uses the biased variance and eps 1e-5. Batch normalization is in training mode: it normalizes by the statistics of the
  batch. Its new running statistics are results, too: momentum 0.1, unbiased variance.
- Dropout is in training mode. Its random numbers are `uniform(seed, ...)` of Philox, with the coordinates as the counter. The numbers
  differ from those of PyTorch, the distribution does not.
- GELU is the exact one, by the error function, except in 1/88. Softplus has no threshold; beyond the threshold of PyTorch, 20, both are
  equal in float32.
- Average pooling counts padding; maximum pooling ignores it. `ceil_mode` is off.
- Channels of grouped operations are two dimensions, group and channel of the group; the arrays in memory are the same.
- Losses are means over all elements, or over the batch (1/95, 1/98, 1/99): each block adds its part to one number.

"Error" is the largest error of an element, divided by the largest magnitude of the result.
"""


def page(rows, date, versions, texts=0, compared=None):
    """Return the page of rows (problem, error, seconds).

    `texts` is the number of texts that NVRTC compiled, `compared` the content of `references.json` (`against_torch.py`).
    """
    stated = [problem for problem, error, _ in rows if error is not None]
    single = sum(len(problem.kernels) == 1 for problem in stated)
    missing = [problem for problem, error, _ in rows if error is None]
    reasons = "".join(f"\n\nNot stated: {problem.name} {problem.title}, because {problem.missing}." for problem in missing)
    text = INTRODUCTION.format(
        date=date,
        versions=versions,
        stated=len(stated),
        total=len(rows),
        single=single,
        several=len(stated) - single,
        missing=reasons,
        texts=f" NVRTC compiles all kernels for sm_80 and sm_90a ({texts} texts)." if texts else "",
        references=""
        if compared is None
        else REFERENCES.format(**compared, but=f", others: {compared['others']}" if compared["others"] else ""),
    )
    return text + NOTES + "".join(table(level, rows) for level in LEVELS)


def table(level, rows):
    """Return the table of a level."""
    lines = [f"\n## {LEVELS[level]}\n", "| problem | operations | definitions | error |", "|---|---|---|---|"]
    for problem, error, _ in (row for row in rows if row[0].level == level):
        count = "none" if error is None else "one" if len(problem.kernels) == 1 else f"{len(problem.kernels)} kernels"
        shown = "" if error is None else f"{error:.0e}" if error else "0"
        lines.append(f"| {problem.number} | {problem.title}{f' ({problem.note})' if problem.note else ''} | {count} | {shown} |")
    return "\n".join(lines) + "\n"
