"""Metamorphic relations across features: two programs whose results must be equal bit by bit, without a reference.

- A gathered product with the identity as its table equals the plain product with the same strategy.
- A permuted table permutes the rows of the result; so does a scattered result.
- A product on several GPUs that divide no sum equals the product on one.
"""

import random

import numpy as np
from fused_generator import REFUSALS, DrawnDefinition
from node_generator import LOADED
from node_generator import draw as drawn_node

from fireiron import *
from fireiron.check import safety
from fireiron.errors import FireironError
from fireiron.measure.data import random_inputs
from fireiron.sim import simulate
from fireiron.sim.node import simulate_node

UNARY = ("{}", "relu({})", "tanh({})", "{} * 0.5", "abs({})", "{} + x[n]")
"""Steps after a product that treat all rows alike."""


class DrawnRelation(DrawnDefinition):
    """A product in three forms, plain, gathered and scattered, with one strategy."""

    def __init__(self, seed):
        super().__init__(seed, "relation")

    def draw_relation(self):
        value = self.choice(UNARY)
        (bm, bn, loop), (dtype, _, sizes) = self.product()
        self.loop = lambda start: start.tile(m=bm, n=bn).to(Block).step("mm", loop).done()
        self.dtype, self.sizes, self.value = dtype or self.choice((float16, float32)), sizes, value

    def bound_form(self, a="A[m,k]", c="C[m,n]"):
        """The bound strategy of a form, given the texts of the operand A and the result."""
        operands = {"A": "m k", "B": "k n", **({"x": "n"} if "x[n]" in self.value else {}), "C": "m n", "rows": "m"}
        operands = {name: dims for name, dims in operands.items() if name != "rows" or "rows" in a + c}
        options = {"distinct": "rows", "ranges": {"rows": "0 <= rows < m"}} if "rows" in c else {}
        definition = Fused(
            name="related", dims="m n k", operands=operands, body={"mm": f"acc[m,n] = sum(k, {a} * B[k,n])", "store": f"{c} = {self.value.format('acc[m,n]')}"}, **options,
        )  # fmt: skip
        return self.loop(definition)(definition(**self.sizes, dtype=self.dtype))


def related_products(seed):
    """The forms of a drawn product, as programs, and the number of refused draws before it."""
    for refused in range(100):
        case = DrawnRelation(f"{seed}/{refused}")
        try:
            forms = {
                "plain": case.bound_form(),
                "gathered": case.bound_form("A[rows[m],k]"),
                "scattered": case.bound_form(c="C[rows[m],n]"),
            }
            programs = {name: strategy.program(random.Random(seed).choice(("sm_80", "sm_90"))) for name, strategy in forms.items()}
            _ = [program.lowered for program in programs.values()]
            return programs, refused
        except REFUSALS:
            continue
    raise AssertionError(f"seed {seed}: 100 draws refused")


def objection_to_products(programs, seed):
    """The violated relation, or an alarm; empty if all hold."""
    if alarms := [f"an alarm in {name}: {finding}" for name, program in programs.items() for finding in safety(program.lowered)]:
        return "; ".join(alarms)
    rng = np.random.default_rng(seed)
    arrays = random_inputs(programs["plain"].spec, {}, rng)
    plain = simulate(programs["plain"].lowered, arrays).outputs["C"]
    rows = len(plain)
    for what, table in (("the identity", np.arange(rows)), ("a permutation", rng.permutation(rows))):
        given = {**arrays, "rows": table.astype(np.int32)}
        gathered = simulate(programs["gathered"].lowered, given).outputs["C"]
        if not np.array_equal(gathered, plain[table]):
            return f"gathered by {what}: {int((gathered != plain[table]).sum())} elements differ from the plain product"
        scattered = simulate(programs["scattered"].lowered, {**given, "C": np.zeros_like(plain)}).outputs["C"]
        if not np.array_equal(scattered[table], plain):
            return f"scattered by {what}: {int((scattered[table] != plain).sum())} elements differ from the plain product"
    return ""


WHOLE_SUMS = ("gathered", "direct", "gathered along k", "gathered B", "replicated", "sliced")
"""Distributions whose GPUs compute each sum as one GPU does."""


def related_node(seed):
    """A strategy for several GPUs, and the same steps on one GPU; the number of pairs refused before them."""
    for refused in range(100):
        node, _ = drawn_node(f"{seed}/{refused}", WHOLE_SUMS)
        steps = node.chain.steps[2 if node.kind in LOADED else 1 :]
        spec = node.chain.spec
        orders = {name: RowMajor if spec.operands[name].order == "row" else ColMajor for name in "ABC"}
        a, b = node.arrays["A"], node.arrays["B"]
        try:
            problem = MatMul(len(a), b.shape[1], len(b), dtype=float16, c_dtype=float16, **orders)(GL, GL, GL)(Kernel)
            single = Strategy(steps, None, MatMul)(problem).program(node.target)
            _ = single.lowered
            return node, single, refused
        except FireironError:
            continue
    raise AssertionError(f"seed {seed}: 100 draws refused")


def objection_to_node(node, single, seed):
    """The violated relation, or an alarm; empty if it holds."""
    if alarms := [f"an alarm on one GPU: {finding}" for finding in safety(single.lowered)]:
        return "; ".join(alarms)
    rng = np.random.default_rng(seed)
    arrays = {name: np.array(rng.standard_normal(array.shape), array.dtype, order="K") for name, array in node.arrays.items()}
    spec = node.program.spec
    distributed = simulate_node(spec, node.program.launches, arrays, node.sizes)[spec.outputs[0]]
    alone = simulate(single.lowered, arrays).outputs["C"]
    return (
        ""
        if np.array_equal(distributed, alone)
        else f"{spec.level.gpus} GPUs: {int((distributed != alone).sum())} elements differ from one GPU"
    )
