"""Random texts of programs of tasks with mappings: tiles of any depth, temporaries, steps in order, leaves by formulas."""

from __future__ import annotations

import dataclasses
import random

from second_formula import results
from second_fused import Definition, _Formulas, text_of
from second_script import Script

HEAD = ("from fireiron import tasks", "from fireiron.tasks import *")


@dataclasses.dataclass
class Program(Definition):
    """A random program; its definition gives the meaning, and the kernel's spec."""

    def meaning(self) -> str:
        return f"__import__('{results.__module__}').results({dict(self.declaration)!r}, {dict(self.script.sizes)!r}, arrays)"


def tasks(seed: int) -> Program:
    """A program of pointwise work, in one step or in two with a temporary between, and a mapping, drawn from a seed."""
    r = random.Random(seed)
    sizes = {"m": r.choice((1, 7, 16, 33, 40)), "n": r.choice((1, 8, 31, 32, 70))}
    f = _Formulas(r, True, sizes)
    f.known = {"x": (("m", "n"), 2), "r": (("m", "n"), 2)}
    first = _reading(f, "x")
    two = r.random() < 0.4
    if two:
        f.known = {"t": (("m", "n"), 2**10), "r": (("m", "n"), 2)}
        second = _reading(f, "t")
        each = {"one": f"t[m,n] = {first}", "two": f"y[m,n] = {second}"}
    else:
        each = {"one": f"y[m,n] = {first}"}
    used = [name for name in ("x", "r") if any(f"{name}[" in text for text in each.values())]
    operands = {**dict.fromkeys(used, "m n"), "y": "m n"}
    arguments = {"name": "work", "dims": "m n", "operands": operands, "body": each}
    names = ["y", *used]
    chosen = [r.choice(("float32", "float32", "float16", "int32")) for _ in used]
    types = ", ".join([f"{name!r}: {kind}" for name, kind in zip(used, chosen, strict=True)] + ["'y': float32"])
    before = [*HEAD, text_of(arguments), *_variants(each, used), *_mapping(r, names, two)]
    script = Script(
        "tasks.strategy(program, mapping)",
        f"made(m={{m}}, n={{n}}, types={{{types}}})",
        sizes,
        (),
        r.choice(("sm_80", "sm_70", "sm_90")),
        tuple(before),
    )
    return Program(script, arguments)


def _reading(f: _Formulas, name: str) -> str:
    """A pointwise formula that reads a tensor, without coordinates: a piece counts its own."""
    import re

    while True:
        text, _ = f.expression(("m", "n"), 2.0**8)
        if f"{name}[" in text and not re.search(r"(?<![\[,\w])[mn](?![\],\w])", text):
            return text


def _variants(each: dict[str, str], used: list[str]) -> list[str]:
    """The program's text: tiles, a leaf for each formula, and a variant that goes through a temporary."""
    lines = []
    reads = {
        "one": [name for name in used if f"{name}[" in each["one"]],
        "two": [name for name in ("t", *used) if f"{name}[" in each.get("two", "")],
    }
    for step, text in each.items():
        out, have = text.partition("[")[0], reads[step]
        arguments, pieces = ", ".join([out, *have]), ", ".join(f"{name}_p" for name in [out, *have])
        lines += [
            f"@task({step!r}, Inner, reads={have!r}, writes={[out]!r})",
            f"def {step}_tiles({arguments}, *, R=tunable(int), C=tunable(int)):",
            f"    (M, N), sizes = {out}.shape, (R, C)",
            f"    {pieces} = " + ", ".join(f"partition_by_blocks({name}, sizes)" for name in [out, *have]),
            "    for i, j in prange(cdiv(M, R), cdiv(N, C)):",
            f"        launch({step!r}, {', '.join(f'{name}_p[i, j]' for name in [out, *have])})",
            "",
            f"@task({step!r}, Inner, reads={have!r}, writes={[out]!r})",
            f"def {step}_rows({arguments}, *, R=tunable(int)):",
            f"    M, N = {out}.shape",
            f"    {pieces} = " + ", ".join(f"partition_by_blocks({name}, (R, N))" for name in [out, *have]),
            "    for i in srange(cdiv(M, R)):",
            f"        launch({step!r}, {', '.join(f'{name}_p[i, 0]' for name in [out, *have])})",
            "",
            f"@task({step!r}, Leaf, reads={have!r}, writes={[out]!r})",
            f"def {step}_leaf({arguments}):",
            f"    call_external(Pointwise, {', '.join(f'{name}={name}' for name in [out, *have])}, formula={text!r})",
            "",
        ]
    if "two" in each:
        names = ", ".join(["y", *used])
        lines += [
            f"@task('both', Inner, reads={used!r}, writes=['y'])",
            f"def both_tiles({names}, *, R=tunable(int), C=tunable(int)):",
            "    (M, N), sizes = y.shape, (R, C)",
            f"    {', '.join(f'{name}_p' for name in ['y', *used])}, = "
            + ", ".join(f"partition_by_blocks({name}, sizes)" for name in ["y", *used])
            + ",",
            "    for i, j in prange(cdiv(M, R), cdiv(N, C)):",
            f"        launch('both', {', '.join(f'{name}_p[i, j]' for name in ['y', *used])})",
            "",
            f"@task('both', Inner, reads={used!r}, writes=['y'])",
            f"def both_steps({names}):",
            "    t = make_tensor(y.shape, 'float32')",
            f"    launch('one', {', '.join(['t', *reads['one']])})",
            f"    launch('two', {', '.join(['y', *reads['two']])})",
            "",
        ]
    return lines


def _mapping(r: random.Random, names: list[str], two: bool) -> list[str]:
    """Where each instance runs, where tensors are, and into what tiles they are divided."""
    steps = ["one", "two"] if two else ["one"]
    variants = [f"{step}_{kind}" for step in steps for kind in ("tiles", "rows", "leaf")] + (["both_tiles", "both_steps"] if two else [])
    rows, columns = r.choice((1, 4, 8, 16)), r.choice((8, 16, 32))
    grid = r.choice(("", "", ", persistent=2", ", group_m=2"))
    host = f"TaskMapping('grid', {'both_tiles' if two else 'one_tiles'!r}, HOST, [GLOBAL] * {len(names)}, {{'R': {rows}, 'C': {columns}}}, ['block'], entrypoint=True{grid}),"
    lines = [f"program = Tasks({', '.join(variants)})", "mapping = Mapping(["]
    lines.append(f"    {host}")
    if two:
        lines.append(f"    TaskMapping('block', 'both_steps', BLOCK, [GLOBAL] * {len(names)}, {{}}, ['one', 'two']),")
    for step in steps:
        count = _arguments(step, two, names)
        near = [r.choice(("GLOBAL", "NONE", "SHARED", "NONE")) for _ in range(count)]
        first = step if two else "block"
        tile = (r.choice((1, 1, 2)), r.choice((1, 2, 4, 8)))
        loop = r.random() < 0.2
        below = [f"{step}_rows"] if loop else [f"{step}_thread"]
        lines.append(
            f"    TaskMapping({first!r}, '{step}_tiles', BLOCK, [{', '.join(near)}], {{'R': {tile[0]}, 'C': {tile[1]}}}, {below!r}),"
        )
        if loop:
            lines.append(f"    TaskMapping('{step}_rows', '{step}_rows', THREAD, [NONE] * {count}, {{'R': 1}}, ['{step}_thread']),")
        memories = ", ".join(r.choice(("REGISTER", "GLOBAL", "NONE", "REGISTER")) for _ in range(count))
        lines.append(f"    TaskMapping('{step}_thread', '{step}_leaf', THREAD, [{memories}]),")
    return [*lines, "])"]


def _arguments(step: str, two: bool, names: list[str]) -> int:
    """The maximum number of tensors of a step: written into the text where they are named, and refused if they are others."""
    return len(names) if not two else 2
