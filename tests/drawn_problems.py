"""Drawn kernels of all generators as problems: a program, its arrays, and a judge of outputs, whatever executed the program.

`problem(family, seed)` draws one; the simulator, a GPU and the printed text share it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import combined_generator
import crowded_generator
import derived_generator
import fused_generator
import generator
import hopper_generator
import indirect_generator
import instruction_generator
import named_generator
import nested_generator
import numpy as np
import packed_generator
import producer_generator
import refined_generator
import scans
import sparse_generator
import test_integer_formulas as integer_formulas
import walker
from campaign.judged import inputs, meaning
from near import Near
from test_indirect_random import outputs_of, references
from test_packed_random import differing_bits
from test_sparse import product_of

from fireiron.check import AccessTrace, check_races
from fireiron.compiler import Program
from fireiron.ir.effects.unchecked import Unchecked
from fireiron.measure.data import accumulator_of, all_sizes, random_inputs, references_of
from fireiron.measure.rounding import differing
from fireiron.measure.simulated import data_for, with_outputs


@attrs.frozen(eq=False)
class Problem:
    """A program, the arrays of a call and the values of its symbols, and the objection to the outputs of a kernel; empty if they are right.

    The kernel, which has the IR `ir`, may be that of another target. `start` are outputs that it writes in part.
    """

    program: Program
    arrays: Mapping[str, Any]
    sizes: Mapping[str, int]
    wrong: Callable[[Mapping[str, Any], Any], str]
    start: Mapping[str, Any] = attrs.field(factory=dict)


def of_exact(program, symbols, seed):
    """Small integers, whose products NumPy computes exactly."""
    spec = program.strategy.spec
    arrays = inputs(spec, symbols, seed)
    right = meaning(spec, arrays)
    accepted = program.lowered.effects[Unchecked].reasons and check_races(AccessTrace(program.lowered))  # the strategy accepts races
    return Problem(program, arrays, all_sizes(spec, symbols), lambda got, _: "" if accepted else _unequal(got, right))


def _unequal(got, right):
    return "; ".join(f"{name}: other values" for name, values in right.items() if not np.array_equal(got[name], values))


def of_definition(case, seed):
    """Normally distributed numbers; each element is within its error bound."""
    sizes = all_sizes(case.bound, case.symbols)
    arrays = random_inputs(case.bound, sizes, np.random.default_rng(seed))

    def wrong(got, kernel):
        right = references_of(case.bound, *arrays.values())
        return "; ".join(differing(case.bound, sizes, got, arrays, right, accumulator_of(kernel)))

    return Problem(case.program, arrays, sizes, wrong)


def of_indirect(case, seed):
    sizes = all_sizes(case.bound, case.symbols)
    arrays = random_inputs(case.bound, sizes, np.random.default_rng(seed))
    wrong = lambda got, kernel: "; ".join(
        differing(case.bound, sizes, got, arrays, references(case, arrays, sizes), accumulator_of(kernel))
    )
    return Problem(case.program, arrays, sizes, wrong, outputs_of(case, sizes))


def of_combined(case, seed):
    arrays = case.arrays(seed)
    near = Near(case.bound, arrays, case.right_values(arrays), case.symbols)
    return Problem(case.program, arrays, all_sizes(case.bound, case.symbols), lambda got, _: near.wrong(got))


def of_scan(case, seed):
    arrays = case.inputs()
    return Problem(case.program, arrays, all_sizes(case.bound, case.symbols), lambda got, _: scans.differences(case, got, arrays))


def of_packed(case, seed):
    arrays = case.arrays(seed)
    right = case.right_values(arrays)["Y"]
    return Problem(case.program, arrays, {}, lambda got, _: differing_bits(got["Y"], right))


def of_producer(case, seed):
    return of_indirect(case, seed) if "gathered" in case.features else of_exact(case.program, case.symbols, seed)


def of_derived(drawn, seed):
    return {
        "definition": of_definition, "indirect": of_indirect, "combined": of_combined, "nested": of_definition, "scan": of_scan,
        "product": lambda case, seed: of_exact(case.program, case.symbols, seed),
    }[drawn.family](drawn.case, seed)  # fmt: skip


def _sparse(seed):
    case, program, _ = sparse_generator.draw(seed)
    arrays = case.arrays(seed)
    right = case.expected(arrays, product_of(arrays))
    return Problem(program, arrays, all_sizes(program.spec, case.symbols), lambda got, _: _unequal(got, right))


def _hopper(seed):
    """A product whose epilogue is exact; the others are drawn again."""
    for number in range(100):
        case, _ = hopper_generator.draw(f"{seed}/{number}")
        if not {"epilogue"} & case.features and not any(one.startswith("several") for one in case.features):
            return of_exact(case.program, case.symbols, seed)
    raise AssertionError(f"seed {seed}: no product")


def _integers(seed):
    symbolic = seed % 2 == 1
    formulas, _ = integer_formulas.drawn(seed, symbolic)
    spec, strategy = integer_formulas.kernel_of(formulas, symbolic)
    arrays = {name: array for name, array in integer_formulas.arrays(seed).items() if name in spec.operands}
    right = integer_formulas.expected(formulas, arrays)
    sizes = {"M": integer_formulas.SIZES["m"], "N": integer_formulas.SIZES["n"]} if symbolic else {}

    def wrong(got, _):
        try:
            integer_formulas.assert_exact(formulas, [got[name] for name in spec.outputs], right, "outputs", symbolic)
        except AssertionError as error:
            return str(error)
        return ""

    return Problem(strategy.program("sm_80"), arrays, all_sizes(spec, sizes), wrong)


def of_name(drawn, seed):
    """A program for a public name; the judge is that of the simulator."""
    program = drawn.program
    sizes = all_sizes(program.spec, drawn.symbols)
    arrays, judge = data_for(program, sizes, seed)
    start = {name: array for name, array in with_outputs(program, sizes, arrays).items() if name in program.spec.outputs}
    return Problem(program, arrays, sizes, lambda got, _: named_generator.wrong_of(program, sizes, arrays, judge, got), start)


def _by(draw, problem_of):
    return lambda seed: problem_of(draw(seed)[0], seed)


def _product(case, seed):
    return of_exact(case.program, case.symbols, seed)


FAMILIES: Mapping[str, Callable[[int], Problem]] = {
    "product": _by(generator.draw, _product),
    "walk": _by(walker.draw, _product),
    "definition": _by(fused_generator.draw, of_definition),
    "nested": _by(nested_generator.draw, of_definition),
    "indirect": _by(indirect_generator.draw, of_indirect),
    "combined": _by(combined_generator.draw, of_combined),
    "scan": _by(scans.draw, of_scan),
    "packed": _by(packed_generator.draw, of_packed),
    "producer": _by(producer_generator.draw, of_producer),
    "derived": _by(derived_generator.draw, of_derived),
    "refined": _by(refined_generator.draw, of_derived),
    "sparse": _sparse,
    "hopper": _hopper,
    "instruction": _by(instruction_generator.draw, _product),
    "integers": _integers,
    "names": _by(named_generator.draw, of_name),
    "crowded": _by(crowded_generator.draw, of_name),
}
"""Problems by the names of their generators."""


def problem(family, seed):
    """The problem that a seed draws."""
    return FAMILIES[family](seed)
