"""Judge a random script: refused as the documentation promises, or right by every oracle; anything else is a finding."""

from __future__ import annotations

import functools
import random
import re
import tempfile
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from campaign import Outcome, agreed, found, refused
from second_script import FILE, Script, shrunk

from fireiron import errors
from fireiron.check import check
from fireiron.language.store import dumps, loads
from fireiron.sim import simulate


class Draw(Protocol):
    """A script with its meaning."""

    script: Script
    exact: bool
    symbols: tuple[str, ...]

    def inputs(self, sizes: Mapping[str, int], types: Mapping[str, np.dtype], seed: int) -> dict[str, np.ndarray]: ...
    def expected(self, arrays: Mapping[str, np.ndarray], sizes: Mapping[str, int]) -> dict[str, np.ndarray]: ...
    def meaning(self) -> str: ...


class Wrong(Exception):
    """A finding: its kind, by which shrinking recognizes it, and its description; `error` is the exception, if any."""

    def __init__(self, kind: str, description: str, error: Exception | None = None):
        super().__init__(f"{kind}: {description}")
        self.kind, self.error = kind, error


class Fair(Exception):
    """The script is refused fairly; `error` is the refusal."""

    def __init__(self, error: errors.FireironError):
        super().__init__(str(error))
        self.error = error


EXPECTED = (
    errors.ArgumentError,
    errors.LayoutError,
    errors.DecompositionError,
    errors.MatchError,
    errors.IncompleteError,
    errors.ResourceError,
    errors.SynchronizationError,
)
INTERNAL = re.compile(
    r"Traceback|<class|<function|object at 0x|\battrs?\.|NoneType|KeyError|IndexError|TypeError|mappingproxy|frozenset|Const\(|\bDone\(\)|fireiron/(?!strategies)\w+|site-packages"
)


def judged(draw: Draw, seed: int, *, shrink: bool = True, thorough: bool = True) -> Outcome:
    """The judgment of a draw by all oracles; a finding's story is the shrunk program."""
    features = draw.script.features()
    try:
        counts = _judge(draw, seed, thorough)
    except Fair as fair:
        return refused({*features, type(fair.error).__name__}, undecided=int("undecided" in str(fair.error)))
    except Wrong as wrong:
        return found(_story(draw, seed, wrong, shrink), features)
    return agreed(features, lowered(draw.script)[1], **counts)


def _story(draw: Draw, seed: int, wrong: Wrong, shrink: bool) -> str:
    def fails(script: Script) -> bool:
        try:
            _judge(_with(draw, script), seed, True)
        except Wrong as again:
            return again.kind == wrong.kind
        except Exception:
            return False
        return False

    script = shrunk(draw.script, fails, tries=120) if shrink else draw.script
    smaller = _with(draw, script)
    try:
        _judge(smaller, seed, True)
    except Wrong as again:
        wrong = again
    except Fair:
        pass
    return f"{wrong}\n\n{to_paste(smaller, seed)}"


def _with(draw: Draw, script: Script) -> Draw:
    import dataclasses

    return dataclasses.replace(draw, script=script)  # type: ignore[type-var]


def to_paste(draw: Draw, seed: int) -> str:
    """The complete program: script, inputs, simulation, comparison. Run it where `tests` is importable."""
    script = draw.script
    return "\n".join(
        [
            script.text,
            "import numpy as np",
            "from fireiron.sim import simulate",
            f"program = strategy(problem).program({script.target!r})",
            "print(program.cuda)",
            _inputs_to_paste(draw, seed),
            f"got = simulate(program.ir, arrays, {values_of(draw)}).outputs",
            f"expected = {draw.meaning()}",
            "for name in got:",
            "    assert np.allclose(got[name].astype('f8'), expected[name], rtol=1e-2, atol=1e-2), name",
        ]
    )


def _inputs_to_paste(draw: Draw, seed: int) -> str:
    try:
        arrays = draw.inputs(draw.script.sizes, _types(draw.script.run()), seed)
    except Exception:
        return "arrays = {}  # refused, or broken, before there are any"
    texts = [
        f"    {name!r}: np.array({array.astype(float).tolist()}).astype({str(array.dtype)!r}),"
        for name, array in arrays.items()
        if array.size <= 300
    ]
    texts += [
        f"    {name!r}: np.random.default_rng({seed}).integers(-2, 3, {array.shape}).astype({str(array.dtype)!r}),"
        for name, array in arrays.items()
        if array.size > 300
    ]
    return "\n".join(["import ml_dtypes", "arrays = {", *texts, "}"])


def values_of(draw: Draw) -> dict[str, int]:
    """The values of the symbols, by name: `k0=K` assigns the size K to the symbol k0."""
    return {
        name: draw.script.sizes[size] if size in draw.script.sizes else int(size) for name, size in (one.split("=") for one in draw.symbols)
    }


def _types(names: Mapping[str, Any]) -> dict[str, np.dtype]:
    problem = names["problem"]
    return {name: view.dtype.to_numpy() for name, view in problem.operands.items()}


# ---------------------------------------------------------------------------------------------- the oracles


def _judge(draw: Draw, seed: int, thorough: bool) -> dict[str, int]:
    """Counts of the agreeing comparisons; raises Wrong or Fair otherwise."""
    rng, script = random.Random(seed), draw.script
    names, program = lowered(script)
    strategy, problem = names["strategy"], names["problem"]
    arrays = draw.inputs(script.sizes, _types(names), seed)
    expected = draw.expected(arrays, script.sizes)
    values = values_of(draw)
    got = _at_own_risk(script, lambda: _simulated(program, arrays, values, None))
    _compare(draw, got, expected, "NumPy")
    if rng.random() < 0.5:
        shuffled = _simulated(program, arrays, values, random.Random(seed))
        if any(not np.array_equal(got[name], shuffled[name], equal_nan=True) for name in got) and "Block, " not in script.text:
            raise Wrong("order", "another order of the threads, another result")
    alarms = [finding for finding in _called("check", lambda: check(program.ir)) if finding.severity == "error"]
    if alarms:
        raise Wrong("alarm", f"simulated clean and right, but check says {'; '.join(map(str, alarms))[:1500]}")
    counts = {"simulated": 1}
    cuda = _called("print", lambda: program.cuda)
    _round_trips(strategy, problem, script, cuda, names)
    if not thorough:
        return counts
    _twins(draw, seed, arrays, got, counts, rng)
    if rng.random() < 0.1:
        _looked_at(strategy, problem, script, program, cuda)
        counts["looked at"] = 1
    if rng.random() < 0.05:
        _printed(draw, program, arrays, values, expected)
        counts["printed"] = 1
    return counts


def lowered(script: Script) -> tuple[dict[str, Any], Any]:
    """The variables of the executed text and its program; raises Fair if it is refused fairly."""
    placed = False
    try:
        names = script.run()
        placed = True
        program = names["strategy"](names["problem"]).program(script.target)
        _ = program.ir, program.cuda
    except errors.FireironError as error:
        _fairly(error, script, placed)
        raise Fair(error) from None
    except (SyntaxError, NameError) as error:
        raise Wrong("subject", f"the drawn text is no program: {error}\n{script.text}") from None
    except Exception as error:
        raise Wrong(f"crash {type(error).__name__} {_where(error)}", traceback.format_exc()[-2500:]) from None
    return names, program


def _at_own_risk(script: Script, simulated: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The simulation; raises Fair for a race in a script that removes a barrier and disables the check."""
    try:
        return simulated()
    except Wrong as wrong:
        error = wrong.error
        if "no_sync(" in script.text and "unchecked(" in script.text and isinstance(error, errors.SimulationError) and "race" in str(error):
            raise Fair(error) from None
        raise


def _where(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.filename.rpartition('/')[2]}:{frame.name}"


def _fairly(error: errors.FireironError, script: Script, placed: bool) -> None:
    """Raise Wrong if a refusal differs from the documentation in class, text, or place, which is after the faulty call."""
    message = str(error)
    kind = type(error).__name__
    if not isinstance(error, EXPECTED):
        raise Wrong(f"wrong class {kind}", message)
    undecided = re.search(r"undecided|cannot be told", message)  # refused as documented: an undecided check never passes as a note
    if isinstance(error, errors.SynchronizationError) and not undecided and not re.search(r"no_sync|MicroKernel|done\('", script.text):
        raise Wrong("a race that nobody asked for", message)
    if found_ := INTERNAL.search(message):
        raise Wrong(f"internal name {found_[0]}", message)
    if not (
        error.legal
        or error.hint
        or isinstance(error, errors.MatchError)
        or re.search(r"legal|requires|has|is |are |not|does|takes|above|no |bound sym", message)
    ):
        raise Wrong("says nothing of what to do", message)
    at = error.at
    if at is None and error.within is None and placed:
        raise Wrong(f"no place {error.headline.partition(':')[0][:40]}", message)
    if at is not None and FILE in at:
        line, words = _step_at(script, int(at.rpartition(":")[2]))
        if "done" not in words and not words & _spoken(message.replace(at, "")):
            raise Wrong("the place is another one", f"{message}\n  which is the line `{line.strip()}`")
    elif at is not None:
        raise Wrong("the place is no line of the user's", message)
    if len(message) > 6000:
        raise Wrong("a text that nobody reads to the end", message[:3000])


def _spoken(message: str) -> set[str]:
    """The words of a refusal, and the memories that it names by other words."""
    memories = {"SH": "shared memory", "RF": "registers"}
    return {*re.findall(r"\w+", message), *(name for name, words in memories.items() if words in message)}


def _step_at(script: Script, number: int) -> tuple[str, set[str]]:
    """The line of the given number, and the words of the step to which it belongs."""
    lines = script.text.splitlines()
    line = lines[number - 1] if number <= len(lines) else ""
    steps = [step for step in script.steps if any(f".{one}" == line.strip() for one in step.lines)]
    if not steps:  # of a definition; its line is that of its first word
        return line, {"done"}
    return line, set(re.findall(r"\w+", " ".join([line, *(one for step in steps for one in step.lines)])))


def _called(what: str, function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception as error:
        raise Wrong(f"{what}: {type(error).__name__} {_where(error)}", traceback.format_exc()[-2500:], error) from None


def _simulated(
    program: Any, arrays: Mapping[str, np.ndarray], values: Mapping[str, int], order: random.Random | None
) -> dict[str, np.ndarray]:
    given = {name: array.copy() for name, array in arrays.items()}
    if len(program.preceding) > 1:
        outputs: dict[str, np.ndarray] = {}
        for launch in program.preceding:
            kernel = launch.program.ir if hasattr(launch, "program") else launch.ir
            read = {buffer.name for buffer in kernel.buffers if buffer.parameter}
            known = {name: array for name, array in {**given, **outputs}.items() if name in read}
            run = functools.partial(simulate, kernel, known, values, order=order)
            outputs |= _called("simulate", run).outputs
        return {name: array for name, array in outputs.items() if name == "C"}
    return _called("simulate", lambda: simulate(program.ir, given, values, order=order).outputs)


def _compare(draw: Draw, got: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], whose: str) -> None:
    if set(got) != set(expected):
        raise Wrong("outputs", f"{sorted(got)} came back, {sorted(expected)} are written")
    for name, right in expected.items():
        computed = np.asarray(got[name]).astype(np.float64)
        if computed.shape != right.shape:
            raise Wrong("shape", f"{name} is {computed.shape}, not {right.shape}")
        bad = computed != right if draw.exact else ~np.isclose(computed, right, rtol=2e-2, atol=2e-2, equal_nan=True)
        if draw.exact:
            bad &= ~(np.isnan(computed) & np.isnan(right))
        if bad.any():
            first = tuple(map(int, np.argwhere(bad)[0])) if bad.ndim else ()
            raise Wrong(
                f"values beside {whose}",
                f"{int(bad.sum())} of {bad.size} elements of {name}; at {first} {computed[first]} instead of {right[first]}",
            )


def _round_trips(strategy: Any, problem: Any, script: Script, cuda: str, names: Mapping[str, Any]) -> None:
    given = {"programs": [names["program"]]} if "program" in names else {}
    again = _called("json", lambda: loads(dumps(strategy), **given))
    if again != strategy or hash(again) != hash(strategy):
        raise Wrong("json is another strategy", f"{strategy!r}\n{again!r}")
    if not given:
        known = {**names, **({names["mine"].kind.title: names["mine"]} if "mine" in names else {})}
        spoken = _called("repr", lambda: eval(repr(strategy), known))
        if spoken != strategy:
            raise Wrong("repr is another strategy", f"{strategy!r}\n{spoken!r}")
        stated = _called("repr of the spec", lambda: eval(repr(problem), known))
        if stated != problem:
            raise Wrong("repr is another spec", f"{problem!r}\n{stated!r}")
        for step in (again, spoken):
            text = _called("printed again", lambda step=step: step(stated).cuda(script.target))
            if text != cuda:
                raise Wrong("a round trip prints another text", _difference(cuda, text))
    elif _called("printed again", lambda: again(problem).cuda(script.target)) != cuda:
        raise Wrong("a round trip prints another text", "of a program of tasks")


def _difference(first: str, second: str) -> str:
    import difflib

    return "\n".join(list(difflib.unified_diff(first.splitlines(), second.splitlines(), lineterm="", n=0))[:40])


def _twins(
    draw: Draw, seed: int, arrays: Mapping[str, np.ndarray], got: Mapping[str, np.ndarray], counts: dict[str, int], rng: random.Random
) -> None:
    """The same script without refinements, with another tile, and transposed, gives the same integers."""
    script = draw.script
    plain = script.plain()
    if plain.text != script.text:
        try:
            _, program = lowered(plain)
        except Fair as fair:
            if not _needed(script, fair.error):
                raise Wrong("refused without refinements", f"{fair.error}\n\nwithout refinements:\n{plain.text}") from None
        else:
            _same(draw, _simulated(program, arrays, values_of(draw), None), got, f"without refinements\n{plain.text}")
            counts["plain twins"] = 1
    if rng.random() < 0.3 and draw.exact:
        other = _other_number(script, rng)
        if other is not None:
            try:
                _, program = lowered(other)
            except Fair:
                pass
            else:
                _same(draw, _simulated(program, arrays, values_of(draw), None), got, f"of another tile\n{other.text}")
                counts["tile twins"] = 1
    transposed = draw.turned() if hasattr(draw, "turned") and rng.random() < 0.4 else None
    if transposed is not None:
        try:
            _, program = lowered(transposed.script)
        except Fair as fair:
            # An MMA of 16x8 does not support 8x16.
            fits = isinstance(fair.error, errors.MatchError) and "Warp" in transposed.script.text
            if not fits and not isinstance(fair.error, errors.ResourceError):
                raise Wrong("refused when turned", f"{fair.error}\n\n{transposed.script.text}") from None
        else:
            swapped = {{"A": "B", "B": "A"}.get(name, name): np.ascontiguousarray(array.T) for name, array in arrays.items()}
            result = _simulated(program, swapped, {**values_of(draw), **_swapped_values(draw)}, None)
            _same(draw, {name: array.T for name, array in result.items()}, got, f"turned\n{transposed.script.text}")
            counts["turned twins"] = 1


def _swapped_values(draw: Draw) -> dict[str, int]:
    exchanged = {**draw.script.sizes, "M": draw.script.sizes["N"], "N": draw.script.sizes["M"]}
    return {name: exchanged[size] for name, size in (one.split("=") for one in draw.symbols)}


NEEDED = (
    "reuse_buffer",
    "max_shared_bytes",
    "to_col_major",
    "to_row_major",
    "storage_layout",
    "pad(",
    "align",
    "swizzle_storage(",
    "stages(",
)


def _needed(script: Script, error: errors.FireironError) -> bool:
    """Whether a refinement may be what makes a script legal: it saves memory, or gives the storage that an instruction requires."""
    if isinstance(error, errors.ResourceError):
        return any(
            word in script.text
            for word in (
                "reuse_buffer",
                "max_shared_bytes",
                "min_blocks_per_sm",
                "persistent",
                "pipeline",
                "specialize",
                "stages",
                "defer",
                "swizzle",
                "storage_layout",
            )
        )
    if isinstance(error, errors.MatchError):
        return any(word in script.text for word in NEEDED)
    message = str(error)
    # Vectors of `coalesced_copy` are as wide as the storage allows, so the storage decides which elements a thread owns; and an instruction
    # chosen by storage takes a tile as a whole, where threads would copy element by element.
    deals = ("coalesced_copy(" in script.text and "this path distributes elements over threads differently" in message) or (
        error.headline.startswith("LDMATRIX") and "accesses all elements of" in message
    )
    hinted = [word for word in NEEDED if re.search(rf"\b{word.rstrip('(')}\b", str(error.hint))]
    return any(word in script.text for word in (NEEDED if deals else hinted))


def _other_number(script: Script, rng: random.Random) -> Script | None:
    """The script with one number of one tile or split halved, doubled, or increased by one."""
    import dataclasses

    places = [place for place, step in enumerate(script.steps) if re.match(r"(tile|split)\([\d, ]+\)$", step.verb)]
    if not places:
        return None
    place = rng.choice(places)
    numbers = list(re.finditer(r"\d+", script.steps[place].verb))
    match = rng.choice(numbers)
    value = rng.choice([int(match[0]) * 2, max(int(match[0]) // 2, 1), int(match[0]) + 1])
    verb = script.steps[place].verb
    verb = verb[: match.start()] + str(value) + verb[match.end() :]
    return script.with_(steps=(*script.steps[:place], dataclasses.replace(script.steps[place], verb=verb), *script.steps[place + 1 :]))


def _same(draw: Draw, expected: Mapping[str, np.ndarray], got: Mapping[str, np.ndarray], whose: str) -> None:
    try:
        _compare(draw, expected, {name: np.asarray(array).astype(np.float64) for name, array in got.items()}, "a twin")
    except Wrong as wrong:
        raise Wrong(wrong.kind, f"{wrong}; the twin {whose}") from None


def _looked_at(strategy: Any, problem: Any, script: Script, program: Any, cuda: str) -> None:
    """What a user inspects: none of it may fail, and the printed Graphene text reads back the same."""
    from fireiron import draw as drawn
    from fireiron import export, predict
    from fireiron.graphene import graphene_text, parse_kernel
    from fireiron.inspect.explain import explain
    from fireiron.inspect.explain import text as explained
    from fireiron.inspect.synchronization import synchronization
    from fireiron.inspect.synchronization import text as told

    bound = strategy(problem)
    _called("trace", lambda: [str(one) for one in bound.trace()])
    _called("explain", lambda: explained(explain(bound, script.target)))
    _called("synchronization", lambda: told(synchronization(program.ir)))
    _called("draw", lambda: drawn(bound))
    gpu = {"7": "V100", "8": "A100", "9": "H200"}.get(script.target[3])
    if gpu and not values_left(program):
        _allowed("predict", lambda: predict(bound, gpu))
    with tempfile.TemporaryDirectory() as folder:
        _allowed("export", lambda: export(bound, folder, "drawn", arch=script.target, cubin=False))
    if not program.preceding:
        text = _called("graphene", lambda: graphene_text(program))
        if not re.search(r"MicroKernel|done\('|tasks\.", script.text):
            again = _called("graphene read", lambda: parse_kernel(text, script.target).cuda)
            if again != cuda:
                raise Wrong("the text of Graphene prints another text", _difference(cuda, again))


def values_left(program: Any) -> bool:
    """Whether some sizes are known only at run time."""
    from fireiron.values.expr import Var

    return any(isinstance(one, Var) for one in program.ir.parameters)


def _allowed(what: str, function: Callable[[], Any]) -> None:
    try:
        function()
    except errors.FireironError:
        return
    except Exception as error:
        raise Wrong(f"{what}: {type(error).__name__} {_where(error)}", traceback.format_exc()[-2500:]) from None


def _printed(
    draw: Draw, program: Any, arrays: Mapping[str, np.ndarray], values: Mapping[str, int], expected: Mapping[str, np.ndarray]
) -> None:
    """The text on the CPU, if a C++ compiler is installed."""
    from printed_text import COMPILER, HostProgram, Printed, Refused

    if COMPILER is None or len(program.preceding) > 1:
        return
    with tempfile.TemporaryDirectory() as folder:
        try:
            host = HostProgram([Printed.of(program)], folder)
            got = host.run(0, {name: array.copy() for name, array in arrays.items()}, dict(values), seed=1)
        except Refused as error:
            raise Wrong("printed text", str(error)) from None
        _compare(draw, got, expected, "the printed text")
