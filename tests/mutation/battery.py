"""Small kernels that reach every pass: a mutant may change their text, or the findings of the checks, the simulator and NumPy.

The unmutated project writes them as JSON (`built`), with the lines of the package that each runs, so that mutants of the generators of
random strategies, or of the library, change none of them. Programs of tasks are built again each time, since their lowering is tested, too.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from mutation.operators import PACKAGE

SEED = 20_261_123
DRAWN, DEFINITIONS = 45, 25
SIZES = {"M": 40, "N": 48, "K": 40, "D": 32, "L": 2, "P": 3, "groups": 3, "batch": 2, "size": 32}
SMALL = {"U": 16, "V": 16, "W": 32, "rows": 1, "columns": 2, "stages": 2}
STORED = ("name", "construction", "target", "symbols", "exact", "text", "lines", "seconds")
MOST_SECONDS = 3.0
"""Kernels that take longer to lower and simulate are not in the battery."""


@attrs.define
class Item:
    """One kernel: its construction, its data, and its unmutated results."""

    name: str
    construction: str
    target: str | None
    symbols: dict[str, int]
    exact: bool
    text: str = ""
    lines: dict[str, list[int]] = attrs.field(factory=dict)
    seconds: float = 0.0
    arrays: Any = None
    expected: Any = None
    bounds: dict[str, Any] = attrs.field(factory=dict)
    dtypes: dict[str, Any] = attrs.field(factory=dict)

    def program(self) -> Any:
        """The program, built again."""
        return _strategy(self.construction).program(self.target)

    def prepare(self) -> None:
        """Data, and the reference by NumPy, before the mutant exists."""
        from fireiron.measure.data import all_sizes, random_inputs
        from fireiron.measure.rounding import error_bounds, rounded_by
        from fireiron.values.expr import TRUE

        spec = _strategy(self.construction).spec
        generator = np.random.default_rng(SEED)
        self.arrays = random_inputs(spec, self.symbols, generator)
        if self.exact:
            self.arrays = {name: generator.integers(-2, 3, one.shape).astype(one.dtype) for name, one in self.arrays.items()}
        expected = spec.reference(*self.arrays.values())
        outputs = spec.outputs
        self.expected = dict(zip(outputs, expected if isinstance(expected, tuple) else (expected,)))
        if self.exact and spec.accumulate == TRUE:
            self.arrays["C"] = generator.integers(-2, 3, self.expected["C"].shape).astype(self.expected["C"].dtype)
            self.expected["C"] = (self.expected["C"] + self.arrays["C"]).astype(self.expected["C"].dtype)
        if not self.exact:
            self.dtypes = {name: spec.operands[name].dtype for name in outputs}
            error_bound = error_bounds(spec, self.arrays, all_sizes(spec, self.symbols))
            self.bounds = {
                name: error_bound[name] + rounded_by(self.dtypes[name], self.expected[name].astype(np.float64)) for name in outputs
            }

    def wrong(self, got: dict[str, Any]) -> str:
        """The difference from the reference, if any."""
        from fireiron.measure.rounding import Bounded, worst

        for name, want in self.expected.items():
            have = got[name]
            if self.exact:
                if not np.array_equal(have, want):
                    return f"{name} is not what NumPy says"
                continue
            if difference := worst(have, Bounded(want, self.bounds[name]), self.dtypes[name]):
                return f"{name}{list(difference.at)} is not near what NumPy says: {difference}"
        return ""

    def judged(self, always: bool = False) -> tuple[str, str]:
        """The detector of an error in the kernel (empty: none), and the error; "same" if the text is unchanged."""
        from fireiron.check import safety
        from fireiron.errors import FireironError
        from fireiron.sim import simulate

        try:
            program = self.program()
            text = digest(program.cuda)
            kernel = program.ir
        except FireironError as error:
            return f"refusal: {type(error).__name__}", str(error).partition("\n")[0]
        except MemoryError:
            return "memory", ""
        except Exception as error:
            return f"crash: {type(error).__name__}", str(error).partition("\n")[0]
        if text == self.text and not always:
            return "", "same"
        try:
            if alarms := [one for one in safety(kernel) if one.severity == "error"]:
                return "checks", str(alarms[0]).partition("\n")[0]
            for order in (None, random.Random(SEED)):
                if difference := self.wrong(simulate(kernel, self.arrays, self.symbols, order=order).outputs):
                    return "NumPy", difference
        except FireironError as error:
            return f"simulator: {type(error).__name__}", str(error).partition("\n")[0]
        except MemoryError:
            return "memory", ""
        except Exception as error:
            return f"crash: {type(error).__name__}", str(error).partition("\n")[0]
        return "", "same" if text == self.text else "another text"


def digest(text: str) -> str:
    """A short hash of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def source() -> str:
    """A hash of the package's sources."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(PACKAGE.rglob("*.py")))).hexdigest()[:16]


def save(items: list[Item], file: Path) -> None:
    """Write a battery to a file."""
    stored = [{name: value for name, value in attrs.asdict(one).items() if name in STORED} for one in items]
    file.write_text(json.dumps(stored), encoding="utf-8")


def load(file: Path) -> list[Item]:
    """Read a battery from a file."""
    return [Item(**stored) for stored in json.loads(file.read_text(encoding="utf-8"))]


def _strategy(source: str) -> Any:
    if source.startswith("{"):
        from fireiron.language.store import loads

        return loads(source)
    from test_tasks_programs import CASES

    from fireiron import tasks

    name, mapping = source.split()
    case = CASES[name]
    return tasks.strategy(case.program, case.mappings[mapping])(case.spec(*(40, 24, 40)))


# ---------------------------------------------------------------------------------------------- making it


def built() -> list[Item]:
    """All kernels of the battery, with their unmutated results; those that take too long, or cannot be stored, are left out."""
    items: list[Item] = []
    for name, make in _made():
        try:
            item = make()
            item.prepare()
            before = time.process_time()
            item.text = digest(item.program().cuda)
            who, what = item.judged(always=True)
            item.seconds = time.process_time() - before
            if item.seconds <= MOST_SECONDS:
                item.lines = _traced(lambda item=item: item.program().cuda)
        except Exception as error:
            _left_out(name, f"{type(error).__name__}: {error}")
            continue
        if who or item.seconds > MOST_SECONDS:
            _left_out(name, f"{item.seconds:.1f} s, {who} {what}")
            continue
        items.append(item)
    return items


def _left_out(name: str, why: str) -> None:
    print(f"{name}: left out: {why.partition(chr(10))[0]}", file=sys.stderr)


def _made() -> Iterator[tuple[str, Callable[[], Item]]]:
    import fused_examples
    import fused_generator
    import generator
    from hopper_cases import float16_gemm
    from test_fused_attention import SMALL as ATTENTION
    from test_tasks_programs import CASES, TARGETS

    from fireiron.language.library import bind, find, names
    from fireiron.strategies import attention, hopper, hopper_small

    def of(name: str, strategy: Any, target: str | None = None, exact: bool = False) -> Item:
        from fireiron.language.store import dumps

        return Item(name, dumps(strategy), target, {}, exact)

    def of_library(name: str) -> Item:
        entry = find(name)
        spec = sys.modules[f"fireiron.strategies.{name}"].spec
        sizes = {one: SIZES[one] for one in inspect.signature(spec).parameters if one in SIZES}
        return of(f"library {name}", bind(entry, sizes), None, "accumulator" not in name)

    def of_draw(number: int) -> Item:
        drawn, _ = generator.draw(SEED + number)
        item = of(f"strategy {number}", drawn.strategy, drawn.target, True)
        item.symbols = dict(drawn.symbols)
        return item

    def of_definition(number: int) -> Item:
        drawn, _ = fused_generator.draw(SEED + number)
        item = of(f"definition {number}", drawn.strategy(drawn.bound), "sm_80")
        item.symbols = dict(drawn.symbols)
        return item

    def of_attention(causal: bool, held: bool) -> Any:
        definition = attention.definition(causal=causal)
        return attention.by_rows(definition, held).with_(**ATTENTION)(attention.spec(80, 70, 32, fused=definition))

    for name in names():
        find(name)
        kind = type(sys.modules[f"fireiron.strategies.{name}"].strategy.start).__name__
        yield f"library {name}", lambda name=name, kind=kind: attrs.evolve(of_library(name), exact=kind == "MatMulStarter")
    small = {"bm": 64, "bn": 64, "wm": 64, "wn": 64, "stages": 2}
    for orders in ("NNN", "NTN", "TTT"):
        yield (
            f"hopper {orders}",
            lambda orders=orders: of("hopper " + orders, hopper.strategy.with_(**small)(float16_gemm(72, 72, 72, orders)), None, True),
        )
    yield "hopper_small", lambda: of("hopper_small", hopper_small.strategy.with_(stages=2)(float16_gemm(40, 72, 200)), None, True)
    yield "hopper stays", lambda: of("hopper stays", hopper.strategy.with_(**small, num_blocks=132)(float16_gemm(136, 136, 72)), None, True)
    yield "split_k", lambda: of("split_k", bind(find("split_k"), {"M": 20, "N": 20, "K": 70}), "sm_75", True)
    for causal in (False, True):
        for held in (False, True):
            yield (
                f"attention {causal} {held}",
                lambda causal=causal, held=held: of(f"attention {causal} {held}", of_attention(causal, held), "sm_80"),
            )
    for name, (strategy, spec) in fused_examples.specs().items():
        yield f"definition {name}", lambda name=name, strategy=strategy, spec=spec: of(f"definition {name}", strategy(spec), "sm_80")
    for name, case in CASES.items():
        for mapping in case.mappings:
            yield (
                f"tasks {name} {mapping}",
                lambda name=name, mapping=mapping: (
                    Item(f"tasks {name} {mapping}", f"{name} {mapping}", TARGETS[mapping], {}, False) if " " not in mapping else _none()
                ),
            )
    for number in range(DRAWN):
        yield f"strategy {number}", lambda number=number: of_draw(number)
    for number in range(DEFINITIONS):
        yield f"definition {number}", lambda number=number: of_definition(number)


def _none() -> Item:
    raise LookupError("a mapping whose name has spaces")


def _traced(function: Callable[[], object]) -> dict[str, list[int]]:
    """The lines of the package that a call runs, by module."""
    lines_by_module: dict[str, set[int]] = {}
    prefix = f"{PACKAGE}/"

    def of_frame(frame: Any, event: str, _: object) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(prefix):
            return None
        lines = lines_by_module.setdefault(str(Path(file).relative_to(PACKAGE)), set())

        def of_line(frame: Any, event: str, _: object) -> Any:
            lines.add(frame.f_lineno)
            return of_line

        lines.add(frame.f_lineno)
        return of_line

    before = sys.gettrace()
    sys.settrace(of_frame)
    try:
        function()
    finally:
        sys.settrace(before)
    return {module: sorted(lines) for module, lines in lines_by_module.items()}
