"""Measurements without a GPU for the tests of the tuner: times computed from values, and every way to fail."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path

import attrs
import outputs

from fireiron import *
from fireiron.tune import Measure, Measured
from fireiron.tune.measure import Together

bm = Tunable("bm", 8, 16, 12, 32)
bn = Tunable("bn", 8, 16, 32)
bk = Tunable("bk", 4, 8)

strategy = (
    MatMul.tile(bm, bn)
    .to(Block)
    .split(bk)
    .load(A, SH, Move.tile(1, 1).to(Thread).done())
    .load(B, SH, Move.tile(1, 1).to(Thread).done())
    .tile(4, 4)
    .to(Thread)
    .split(1)
    .tile(1, 1)
    .done()
)
"""24 combinations, all legal and quick to lower."""

square = MatMul(32, 32, 16)(GL, GL, GL)(Kernel)


def crossing(M, named=False):
    """A strategy bound to a spec with several outputs, of a kind outside the package; if its dimensions are named, it has no record format."""
    spec = outputs.cross(M, 50)
    return (
        (attrs.evolve(spec, names=("row", "column")) if named else spec)
        .tile(bm, bn)
        .to(Block)
        .tile(1, 1)
        .to(Thread)
        .done(outputs.CrossInstruction("CROSS"))
    )


many_outputs = crossing(40, named=True)


def microseconds(values):
    """A time for values, different for each; the minimum is at bm=16, bn=32, bk=8."""
    return 10.0 + abs(values["bm"] - 16) + 0.5 * abs(values["bn"] - 32) + 0.01 * values["bm"] + (0.25 if values.get("bk") == 4 else 0)


@attrs.frozen
class Fake(Measure):
    """Times from values. `faults` are pairs of values and an event; `log` is a file with a line for each measurement."""

    faults: tuple[tuple[tuple[tuple[str, int], ...], str], ...] = ()
    log: str = ""
    pause: float = 0.0
    place: str = "fake"

    def where(self):
        return {"gpu": self.place, "driver": "1.0", "toolchain": "none", "newest": None}

    def identity(self):
        return "fake"

    def measure(self, candidate):
        self.write(candidate)
        time.sleep(self.pause)
        fault = next((what for values, what in self.faults if set(values) <= set(candidate.values.items())), None)
        if fault is not None:
            return suffer(fault)
        us = microseconds(candidate.values)
        return Measured(us=us, quartiles=(us - 0.1, us + 0.1), error=1e-6, regime="burst", l2="rotated", clocks=(1980, 1980))

    def write(self, candidate):
        if self.log:
            with open(self.log, "a") as file:
                file.write(" ".join(map(str, candidate.values.values())) + f" {os.getpid()} {os.environ.get('CUDA_VISIBLE_DEVICES')}\n")


def suffer(fault):
    """Every way in which a candidate can fail."""
    if fault == "exit":
        os._exit(7)
    if fault == "segv":
        ctypes.string_at(0)
    if fault == "hang":
        while True:
            time.sleep(60)
    if fault == "wrong":
        raise WrongResultError("C is wrong: 3 of 4 elements", got=1.0)
    if fault == "raise":
        raise ZeroDivisionError("a defect")
    if fault == "launch":
        raise LaunchError("the driver refuses to launch")
    raise AssertionError(fault)


@attrs.frozen
class Flaky(Fake):
    """The fastest one in single measurements is found wrong among the finalists."""

    def together(self, candidates):
        outcome = super().together(candidates)
        return attrs.evolve(
            outcome,
            measured=tuple(
                Measured(reason="C is wrong") if measurement.values == {"bm": 16, "bn": 32, "bk": 8} else measured
                for measurement, measured in zip(candidates, outcome.measured, strict=True)
            ),
        )


@attrs.frozen
class Turned(Fake):
    """Measured together, the second best is the best; a library is measured with them."""

    def together(self, candidates):
        outcome = super().together(candidates)
        faster = {"bm": 16, "bn": 32, "bk": 4}
        measured = [
            attrs.evolve(measurement, us=measurement.us - (1 if candidate.values == faster else 0))
            for candidate, measurement in zip(candidates, outcome.measured, strict=True)
        ]
        return attrs.evolve(outcome, measured=tuple(measured), library_us=9.5)


@attrs.frozen
class DeadTogether(Fake):
    """The process dies in the final measurement."""

    def together(self, candidates):
        os._exit(3)


@attrs.frozen
class Compiling(Fake):
    """Like `Fake`, with candidates that are compiled; a marker file makes the compiler crash for one candidate."""

    compiles = True

    def measure(self, candidate):
        assert candidate.kernel.compiled.cubin[:4] == b"\x7fELF"
        return super().measure(candidate)


@attrs.frozen
class NeverStarts(Fake):
    """Its process dies before it is ready."""

    def start(self, task):
        os._exit(9)


@attrs.frozen
class CrashOnce(Fake):
    """The first process that measures dies; those after it do not."""

    marker: str = ""

    def measure(self, candidate):
        if not Path(self.marker).exists():
            Path(self.marker).touch()
            os._exit(5)
        return super().measure(candidate)


@attrs.frozen
class Nonsense(Fake):
    """Invalid times: for the fastest one when it is measured or, with `finally_`, for the first finalist; or a finalist is left out."""

    us: float | None = None
    finally_: bool = False

    def measure(self, candidate):
        measured = super().measure(candidate)
        nonsense = self.us is not None and not self.finally_ and candidate.values == {"bm": 16, "bn": 32, "bk": 8}
        return attrs.evolve(measured, us=self.us) if nonsense else measured

    def together(self, candidates):
        first, *others = super().together(candidates).measured
        if self.us is None:
            return Together(measured=(*others,))
        return Together(measured=(attrs.evolve(first, us=self.us) if self.finally_ else first, *others))
