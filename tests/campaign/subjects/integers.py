"""Integers in formulas: `reference()`, the simulator and the printed text, executed on a CPU, equal Python integers, bit for bit.

A seed draws one kernel of `EACH` formulas of `test_integer_formulas`, with sizes or with symbols.
"""

import re
import tempfile

from printed_text import COMPILER, HostProgram, Printed
from test_integer_formulas import SIZES, arrays, assert_exact, drawn, expected, kernel_of

from campaign import Outcome, Subject, agreed, found


def draw(seed: int) -> Outcome:
    """One kernel of drawn formulas, by the three oracles."""
    symbolic = seed % 2 == 1
    formulas, refused = drawn(seed, symbolic)
    spec, strategy = kernel_of(formulas, symbolic)
    given = {name: array for name, array in arrays(seed).items() if name in spec.operands}
    right = expected(formulas, given)
    features = set(re.findall(r"[a-z_]+(?=\()|//|<<|>>|[-+*%&|^~<>]", " ".join(node.text for node, _ in formulas)))
    features |= {str(result) for _, result in formulas} | {"symbols" if symbolic else "sizes"}
    try:
        assert_exact(formulas, spec.reference(*given.values()), right, f"seed {seed}, reference()", symbolic)
        assert_exact(formulas, strategy.compile("sm_80")(*given.values()), right, f"seed {seed}, the simulator", symbolic)
        if COMPILER is not None:
            with tempfile.TemporaryDirectory() as folder:
                host = HostProgram([Printed.of(strategy.program("sm_80"))], folder)
                text = host.run(0, given, {"M": SIZES["m"], "N": SIZES["n"]} if symbolic else None, seed)
            assert_exact(formulas, [text[name] for name in spec.outputs], right, f"seed {seed}, the text", symbolic)
    except Exception as error:
        return found(f"{type(error).__name__}: {error}", features, formulas=len(formulas))
    return agreed(features, strategy.program("sm_80"), formulas=len(formulas), refused=refused)


SUBJECT = Subject(
    "integers",
    "formulas of integers: reference, simulator and printed text are the integers of Python, bit for bit",
    draw,
    nightly=300,
    campaign=5_000,
    counted="formulas",
    first=20_281_401,
    chunk=2,
)
