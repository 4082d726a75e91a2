"""`fireiron demo`: show one kernel on two screens, from the problem to the verified result, without a GPU."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fireiron.cli.arguments import Add
from fireiron.cli.output import FAILED, glyphs, paint, print_json, working

if TYPE_CHECKING:
    from fireiron.compiler import Program
    from fireiron.language.strategy import Strategy

STRATEGY: Final = "listing_2"
"""The paper's first complete strategy: three levels of tiles, no refinement."""

SIZES: Final = {"M": 250, "N": 300, "K": 200}
"""Sizes that are not multiples of any tile, and so small that the simulator executes every thread within a second."""

MAIN_LOOP_LINES: Final = 32
"""Maximum number of CUDA lines to print."""

WARNINGS: Final = 1
"""Number of findings to print. The output contains the command that prints the others."""

SEED: Final = 0
"""Seed of the random data, so that the output is always the same."""

NEXT: Final = (
    ("fireiron emit listing_2", "all of the CUDA C++; --form ptx where NVRTC is installed"),
    ("fireiron diff listing_2 maxwell", "the same matmul with vector loads, padding, swizzled lanes"),
    ("fireiron check hmma_ampere", "tensor cores: bank conflicts, coalescing, registers by line"),
    ("fireiron cost hopper", "predicted time and bottleneck on an H200"),
    ("fireiron doctor", "what is installed, and how to install what is missing"),
)
"""Commands to try next, with descriptions of their output."""


def register(add: Add) -> None:
    """Add the command."""
    add("demo", run, "one kernel on two screens: problem, tree, CUDA, checks, a run compared with NumPy; needs no GPU", strategy=False)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Return exit status 1 if an element exceeds its error bound."""
    with working(f"lowering {STRATEGY}"):
        from fireiron.language.library import bind, find

        strategy = bind(find(STRATEGY), SIZES)
        program = strategy.program()
        _ = program.cuda
    if arguments.json:
        return _as_json(program)
    _print_problem(program)
    _print_main_loop(program.cuda)
    with working("checking the kernel"):
        lines = list(_checked(program, strategy))
    _print_part("Checks", lines)
    with working("executing every thread of the kernel"):
        right, lines = _compared(program)
    _print_part("Run", lines)
    _print_part("Next", [f"{command:<38} {description}" for command, description in (*_activation(), *NEXT)])
    return 0 if right else FAILED


def _activation() -> Iterator[tuple[str, str]]:
    """Yield the command that makes `fireiron` a command, if it is none, and the demo runs in a virtual environment."""
    script = Path(sys.executable).with_name("activate")
    if shutil.which("fireiron") is None and script.exists():
        path = script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script
        yield f". {shlex.quote(str(path))}", "first: it makes fireiron a command of this shell"


def _as_json(program: Program) -> int:
    """Print the kernel and the results of checks and run as JSON."""
    from fireiron.check import check
    from fireiron.inspect.show import as_dict

    right, _ = _compared(program)
    findings = [finding.as_dict() for finding in check(program.ir)]
    print_json({"strategy": STRATEGY, "kernel": as_dict(program), "cuda": program.cuda, "findings": findings, "pass": right})
    return 0 if right else FAILED


def _print_problem(program: Program) -> None:
    from fireiron.inspect.final_tree import final_tree
    from fireiron.inspect.show import tree

    spec = program.spec
    lines = [
        f"{spec.kind.text}, as {spec}",
        ", ".join(f"{name} {'x'.join(map(str, view.shape))} {view.dtype} {view.tensor.layout}" for name, view in spec.operands.items()),
    ]
    _print_part("Problem", lines)
    head, *steps = tree(final_tree(program), glyphs()).splitlines()
    _print_part("Strategy, Listing 2 of the Fireiron paper, with the spec after each step", [head, *steps])


def _print_main_loop(text: str) -> None:
    from fireiron.inspect.main_loop import main_loop

    lines = main_loop(text, MAIN_LOOP_LINES)
    _print_part(f"The main loop of the kernel, {len(lines)} of {len(text.splitlines())} lines of CUDA C++", lines)


def _print_part(title: str, lines: list[str]) -> None:
    print(paint(f"== {title}", 1))
    for line in lines:
        print(f"  {line}")
    print(flush=True)


def _checked(program: Program, strategy: Strategy) -> Iterator[str]:
    """Yield the findings, and the error of the same strategy without its barriers."""
    from fireiron.check import check
    from fireiron.inspect.show import barriers

    findings = list(check(program.ir))
    counts = {severity: [finding for finding in findings if finding.severity == severity] for severity in ("error", "warning", "note")}
    if not counts["error"]:
        inferred = len(list(barriers(program.ir.body)))
        yield f"no races, all accesses in bounds and aligned; the {inferred} barriers of the loop over k were inferred"
    shown = [*counts["error"], *counts["warning"]]
    yield from (f"{finding.severity}: {finding.message}" for finding in shown[:WARNINGS])
    if len(shown) > WARNINGS:
        rest = f"{len(shown) - WARNINGS} more warnings and {len(counts['note'])} notes"
        yield f"{rest}: fireiron check {STRATEGY} {' '.join(f'-{dim} {size}' for dim, size in SIZES.items())}"
    yield from _refused(strategy)


def _refused(strategy: Strategy) -> Iterator[str]:
    """Yield the error of the strategy without its barriers."""
    from fireiron import A, B, Load, NoSync
    from fireiron.errors import SynchronizationError

    try:
        _ = strategy.at(Load, A).refine(NoSync()).at(Load, B).refine(NoSync()).program().cuda
    except SynchronizationError as error:
        yield "without barriers the kernel is refused, with two threads as witnesses:"
        yield f"  {error.headline}"


def _compared(program: Program) -> tuple[bool, list[str]]:
    """Return whether each element of the simulated result is within its error bound, and the errors of kernel and NumPy."""
    import numpy

    from fireiron.measure.inputs import random_inputs
    from fireiron.measure.judge import Judge
    from fireiron.sim import simulate

    spec = program.spec
    arrays = random_inputs(spec, {}, numpy.random.default_rng(SEED))
    a, b = arrays["A"], arrays["B"]
    result = simulate(program.ir, arrays)
    right = a.astype(numpy.float64) @ b.astype(numpy.float64)
    errors = [_error(got, right) for got in (result.outputs["C"], a @ b)]
    judge = Judge(spec, {}, arrays)
    wrong = judge.wrong("C", result.outputs["C"])
    worst = judge.closest.get("C")
    error = "" if worst is None else f"{worst.off:.2g} of at most {worst.bound:.2g}, {worst.fraction:.0%} of its bound"
    threads = program.ir.threads * int(str(program.ir.grid))
    lines = [
        f"{threads} threads executed in the simulator in {result.seconds:.2f} s, with race detection",
        f"relative error against float64: kernel {errors[0]:.2e}, NumPy's a @ b {errors[1]:.2e}",
        f"{paint('PASS', 32)}  at worst C{list(worst.at) if worst else ''} is off by {error}"
        if wrong is None
        else f"{paint('FAIL', 31)}  {wrong['message']}",
    ]
    return wrong is None, lines


def _error(got: Any, right: Any) -> float:
    """Return the relative error in the Frobenius norm."""
    import numpy

    return float(numpy.linalg.norm(got - right) / numpy.linalg.norm(right))
