"""Scripts as a user writes them: the text of a problem and of a chain, executed unchanged, and shrunk line by line."""

from __future__ import annotations

import dataclasses
import linecache
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

FILE = "second/drawn.py"
"""The file name of the executed text, so that an error's `at` names a line of it."""


@dataclasses.dataclass(frozen=True)
class Step:
    """A verb of a chain as text, and the refinements after it."""

    verb: str
    refinements: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        return (self.verb, *self.refinements)


@dataclasses.dataclass(frozen=True)
class Script:
    """The text of one program: `before`, a `problem` in which `{M}` is the size M, and a chain that begins with `start`."""

    start: str
    problem: str
    sizes: Mapping[str, int]
    steps: tuple[Step, ...]
    target: str
    before: tuple[str, ...] = ()
    behind: str = ""
    """The text after the chain's last parenthesis, such as `.then(rest)`."""

    @property
    def text(self) -> str:
        """The whole program, up to `problem` and `strategy`."""
        problem = re.sub(r"\{(\w+)\}", lambda found: str(self.sizes[found[1]]), self.problem)
        chain = [f"    .{line}" for step in self.steps for line in step.lines]
        return "\n".join(
            [
                "from fireiron import *",
                "",
                *self.before,
                f"problem = {problem}",
                "strategy = (",
                f"    {self.start}",
                *chain,
                f"){self.behind}",
                "",
            ]
        )

    def run(self) -> dict[str, Any]:
        """The variables of the text after its execution."""
        names: dict[str, Any] = {"__name__": "drawn"}
        linecache.cache[FILE] = (len(self.text), None, self.text.splitlines(keepends=True), FILE)  # programs of tasks read their source
        exec(compile(self.text, FILE, "exec"), names)
        return names

    def with_(self, **changes: Any) -> Script:
        return dataclasses.replace(self, **changes)

    def plain(self) -> Script:
        """The same decompositions without refinements, which are removed from the text, in sub-strategies, too."""
        steps = tuple(
            Step(_plain(step.verb), tuple(_plain(one) for one in step.refinements if _changes_meaning(one))) for step in self.steps
        )
        return self.with_(steps=steps, before=tuple(map(_plain, self.before)))

    def features(self) -> set[str]:
        """The verbs, refinements, memories, levels, types and storage of the text, each a feature."""
        words = set(re.findall(r"\.(\w+)\(", self.text)) - {"kind", "starter", "done", "to"}
        words |= {f"in {one}" for one in re.findall(r"\b(GL|SH|RF|FR|VAL)\b", self.text)}
        words |= {f"to {one}" for one in re.findall(r"\.to\((\w+)\)", self.text)}
        words |= set(re.findall(r"\b(?:float16|bfloat16|float32|float64|int8|int32|tf32|float8_e4m3|float8_e5m2)\b", self.text))
        words |= {f"storage {one}" for one in re.findall(r"=(RowMajor\(|RowMajor|ColMajor\(|ColMajor|Strides)", self.problem)}
        words |= {one for one in ("ANY", "sym(", "Strided(", "Layout(", "Tunable(", "accumulate=True", "signature=") if one in self.text}
        return words | {self.target}


HOW = (
    "unroll", "sync", "no_sync", "pad", "swizzle", "swizzle_storage", "align", "rasterize", "hilbert", "layout", "pipeline", "min_blocks_per_sm", "persistent",
    "cluster", "stagger_blocks", "mma_in_flight", "stages", "warp_specialize", "share_stages", "reuse_buffer", "to_col_major", "to_row_major", "storage_layout",
    "pingpong", "order_mma", "prefetch_epilogue", "longest_first", "max_shared_bytes", "programmatic_launch", "skip_masked_tiles", "defer",
)  # fmt: skip
"""Refinements that never change the meaning; `to` and `cast_on_copy` choose other specs below them."""


def _changes_meaning(refinement: str) -> bool:
    return re.match(r"\w+", refinement)[0] not in HOW  # type: ignore[index]


def _plain(text: str) -> str:
    """A text without meaning-preserving refinements, at any depth."""
    while match := re.search(rf"\.(?:{'|'.join(HOW)})\(", text):
        text = text[: match.start()] + text[_closing(text, match.end()) + 1 :]
    return text


def _closing(text: str, start: int) -> int:
    """The position of the parenthesis that closes the one before `start`."""
    depth = 1
    for position in range(start, len(text)):
        depth += (text[position] in "([{") - (text[position] in ")]}")
        if depth == 0:
            return position
    raise ValueError(f"a parenthesis that is not closed: {text}")


def smaller(script: Script) -> Iterator[Script]:
    """Scripts with one part removed: a step, a refinement, a sub-strategy, a preceding definition; or with smaller sizes."""
    for place, step in enumerate(script.steps):
        yield script.with_(steps=_without(script.steps, place))
        for number in range(len(step.refinements)):
            fewer = dataclasses.replace(step, refinements=_without(step.refinements, number))
            yield script.with_(steps=(*script.steps[:place], fewer, *script.steps[place + 1 :]))
        bare = re.sub(r"^(load\([^,]+, \w+)(?:\(.*?\))?, .*\)$|^(epilog\(\w+)\b.*\)$", lambda found: f"{found[1] or found[2]})", step.verb)
        for verb in {bare, _plain(step.verb)} - {step.verb}:
            yield script.with_(steps=(*script.steps[:place], dataclasses.replace(step, verb=verb), *script.steps[place + 1 :]))
    for name, size in script.sizes.items():
        for less in sorted({1, size // 2, size - 1} - {0, size}):
            if 0 < less < size:
                yield script.with_(sizes={**script.sizes, name: less})
    if "=" in script.problem:
        for option in re.findall(r", \w+=(?:[A-Za-z]\w*|\w+\([^()]*\))(?=[,)])", script.problem):
            yield script.with_(problem=script.problem.replace(option, "", 1))


def _without(parts: Sequence[Any], place: int) -> tuple[Any, ...]:
    return (*parts[:place], *parts[place + 1 :])


def shrunk(script: Script, fails: Callable[[Script], bool], tries: int = 300) -> Script:
    """The smallest script, found by removing one part after another, that still fails."""
    going = True
    while going:
        going = False
        for candidate in smaller(script):
            tries -= 1
            if tries < 0:
                return script
            if fails(candidate):
                script, going = candidate, True
                break
    return script
