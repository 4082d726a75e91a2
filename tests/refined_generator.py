"""Random definitions whose strategies get further verbs: those of definitions and of launches, with arguments from the definition.

A verb is inserted into the text of a strategy at a random place. If the project refuses it there, it is left out. The program of the longer
strategy becomes `case.program`, so that the judge of the base generator judges it.
"""

import ast
import contextlib
import io
import random

import attrs
import combined_generator
import fused_generator
import nested_generator
import scans
from test_combined_random import objection as objection_to_combined
from test_fused_random import objection as objection_to_definition

import fireiron
from fireiron.errors import FireironError

FAMILIES = {
    "definition": (fused_generator.draw, objection_to_definition),
    "combined": (combined_generator.draw, objection_to_combined),
    "nested": (nested_generator.draw, nested_generator.objection),
    "scan": (scans.draw, scans.objection),
}

VERBS = (
    "programmatic_launch()", "programmatic_launch({operand!r})", "max_shared_bytes({bytes})", "min_blocks_per_sm({few})", "longest_first({dim!r})",
    "longest_first({dim!r}, {few})", "persistent({few})", "persistent({few}, True)", "stagger_blocks({few})", "rasterize({few})",
    "rasterize(group_n={few})", "look_back()", "ordered()", "layout(ColMajor)", "defer({label!r}, after={label2!r})", "skip_masked_tiles()",
    "separate_masked_tiles()", "pipeline({few})", "pipeline(2, interleave=True)", "unroll()", "order_mma({label!r}, {label2!r})", "pad({few})", "swizzle_storage()",
    "stages({few})", "share_stages({operand!r})", "no_sync()", "sync()", "align(128)", "storage_layout(ColMajor)", "storage_layout(RowMajor)",
    "rfactor({label!r}, {parts})", "skip_steps({label!r}, where='{temporary} == {temporary2}')", "skip_steps({label!r}, where='{dim} < 3')",
    "print_values({temporary!r}, where='{dim} == 0')", "print_values({temporary!r}, where='{dim} == 1', step={label!r})",
    "print_values({temporary!r}, where='{dim} == 0', iterations=True)", "set_memory({temporary!r}, SH)", "set_memory({temporary!r}, SH, pad={few})",
    "set_memory({temporary!r}, RF)", "warp_specialize(copies=True)", "to_col_major()", "to_row_major()",
)  # fmt: skip
"""Verbs with places for arguments."""

MOST = 3
"""The largest number of verbs that a strategy gets."""


@attrs.define(eq=False)
class DrawnRefined:
    """A drawn definition (`case`), and the program of its strategy with more verbs."""

    case: object
    family: str
    program: object
    features: frozenset


def _words(rng, spec):
    """Random words for the places of a verb."""
    definition = spec.kind.fused_definition
    labels, temporaries = [step.name for step in definition.steps], sorted(definition.temporaries) or ["t"]
    pick = rng.choice
    return {
        "operand": pick(sorted(definition.arrays)), "bytes": pick((4096, 16384, 49152)), "few": pick((1, 2, 3, 4, 8)), "parts": pick((2, 4, 32)),
        "dim": pick(spec.dims), "label": pick(labels), "label2": pick(labels), "temporary": pick(temporaries), "temporary2": pick(temporaries),
    }  # fmt: skip


def places(text):
    """The ends of the calls of the chain in the text of a bound strategy, without those of the spec and the last one."""
    node, ends = ast.parse(text, mode="eval").body, []
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        ends.append(node.end_col_offset)
        node = node.func.value
    return sorted(ends)[:-1]


def with_verb(text, rng, spec, verbs):
    """The text with a random verb at a random place."""
    encoded, end = text.encode(), rng.choice(places(text))
    verb = rng.choice(verbs).format(**_words(rng, spec))
    return (encoded[:end] + f".{verb}".encode() + encoded[end:]).decode(), verb.partition("(")[0]


def with_verbs(program, target, rng, verbs, most, tries):
    """A program for a target with up to `most` more verbs, their names, and the number of refused ones."""
    added, refused = set(), 0
    for _ in range(tries):
        try:
            longer, verb = with_verb(repr(program.strategy), rng, program.spec, verbs)
            candidate = eval(longer, {**vars(fireiron)}).program(target)
            _ = candidate.ir if verb == "skip_steps" else candidate.lowered  # its condition may read a value that is not written yet
        except (FireironError, AttributeError):
            refused += 1
            continue
        program = candidate
        added.add(verb)
        if len(added) == most:
            break
    return program, added, refused


def draw(seed):
    """A definition whose strategy has at least one more verb, and the number of refused verbs before it."""
    rng, refused = random.Random(f"refined {seed}"), 0
    while True:
        family = rng.choice(list(FAMILIES))
        case, _ = FAMILIES[family][0](f"{seed}/{refused}" if family != "combined" else rng.randrange(1 << 30))
        case.program, added, refusals = with_verbs(case.program, rng.choice(("sm_80", "sm_90", "sm_90a")), rng, VERBS, MOST, 30)
        refused += refusals
        if added:
            return DrawnRefined(case, family, case.program, frozenset({family, *(f"added {verb}" for verb in added)})), refused


def objection(drawn, seed):
    """An oracle's objection to the program; empty if all is well."""
    with contextlib.redirect_stdout(io.StringIO()):  # a kernel may print values
        return FAMILIES[drawn.family][1](drawn.case, seed)


def program_to_paste(drawn):
    return (
        f"\nfrom fireiron import *\nstrategy = {drawn.program.strategy!r}\nprogram = strategy.program({str(drawn.program.architecture)!r})\n"
        f"sizes = {drawn.case.symbols}"
    )
