"""Programs in which many public names meet: products with any instruction, an epilogue of several functions and operators, and further verbs.

Each instruction and each function occurs alone elsewhere (`named_generator`). Here a program has a random instruction, some functions,
operators and comparisons, and verbs at random places, so that pairs of rare names occur.
"""

import random

import attrs
import instruction_generator
import named_generator
from refined_generator import with_verbs

from fireiron.errors import FireironError
from fireiron.specs.formula import COMPARISONS, FUNCTIONS

UNBOUNDED = ("exp", "exp2", "tan", "pow")
"""Functions whose results may be too large for sums of results."""

OPERATORS = ("{} + {}", "{} - {}", "{} * {}", "where({} > 0, {}, 1)", "({} + {}) / 2", "max({}, -{})")
WHOLE = ("m % 7", "n // 3", "(m & 5)", "(n | 2)", "(m ^ n)", "(m << 1)", "(n >> 2)", "~m % 4")
"""Terms of integers."""

VERBS = (
    "programmatic_launch()", "max_shared_bytes({bytes})", "min_blocks_per_sm({few})", "persistent({few})", "persistent({few}, True)",
    "stagger_blocks({few})", "rasterize({few})", "rasterize(group_n={few})", "rasterize(group_m={few}, raster=1)", "layout(ColMajor)", "unroll()",
    "cluster(1, 2)", "cluster(2, 1)", "hilbert()", "pingpong({few})", "mma_in_flight({few})", "pipeline({few})", "pipeline(2, interleave=True)",
    "swizzle_storage()", "pad({few})", "sync()", "align(128)", "to_row_major()", "to_col_major()", "warp_specialize()",
    "prefetch_epilogue()", "reuse_buffer()", "fuse_epilogue('acc * 2')", "longest_first('m')", "print_values('acc', where='m == 0')",
)  # fmt: skip
MOST = 4
"""The largest number of verbs that a strategy gets."""


@attrs.define(eq=False)
class DrawnCrowd:
    """A program with many names, and the values of its symbols."""

    program: object
    features: frozenset
    symbols: dict


def _term(rng):
    """A call of a function, an operator or a comparison, with operands R and acc; values are near 1."""
    kind = rng.random()
    if kind < 0.2:
        return f"{rng.choice(WHOLE)} * 0.125"
    if kind < 0.35:
        return f"where(R[m,n] {rng.choice(COMPARISONS)} bias[n], R[m,n], bias[n])"
    if kind < 0.5:
        return rng.choice(OPERATORS).format("R[m,n]", rng.choice(("bias[n]", "R[m,n]")))
    name = rng.choice([name for name in FUNCTIONS if name not in UNBOUNDED])
    return named_generator.call(name).replace("X[m,n]", "R[m,n]").replace("Z[m,n]", "bias[n]")


def epilogue(rng):
    """The text of an epilogue with several terms."""
    terms = [f"0.25 * ({_term(rng)})" for _ in range(rng.randint(3, 7))]
    return f"{rng.choice(('acc', 'relu(acc)', 'acc * 0.5'))} + {' + '.join(terms)}"


def draw(seed):
    """A program that lowers, and the number of refused ones before it."""
    for refused in range(200):
        rng = random.Random(f"crowd {seed}/{refused}")
        case, _ = instruction_generator.draw(rng.randrange(1 << 30))
        target = str(case.program.architecture)
        try:
            program = case.program.strategy.fuse_epilogue(epilogue(rng)).program(target)
            _ = program.lowered
        except (FireironError, AttributeError):
            continue
        program, added, _ = with_verbs(program, target, rng, VERBS, MOST, 12)
        return DrawnCrowd(program, frozenset({*case.features, *(f"added {verb}" for verb in added)}), case.symbols), refused
    raise AssertionError(f"seed {seed}: 200 draws refused")


objection, program_to_paste = named_generator.objection, named_generator.program_to_paste
