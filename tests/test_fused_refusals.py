"""What no kernel could mean, or would compute wrongly, is refused: what was asked, what is legal, where, and what to do."""

import importlib

import pytest
from fused_examples import attention, copy, dual, gemm_bias_relu, main_loop, mlp, product

from fireiron import *
from fireiron.errors import ArgumentError, DecompositionError, IncompleteError, MatchError


def definition(**words):
    """A definition of a row sum, with other words."""
    usual = {
        "name": "rows",
        "dims": "m n",
        "operands": {"X": "m n", "y": "m"},
        "body": {"s": "t[m] = sum(n, X[m,n])", "y": "y[m] = t[m]"},
    }
    return Fused(**{**usual, **words})


def refused(error, action, *parts):
    """The message of an error that `action` raises, with the line of this file, and with the parts in it."""
    with pytest.raises(error) as caught:
        action()
    text = str(caught.value)
    assert all(part in text for part in parts), text
    assert "test_fused_refusals.py:" in text or "fused_examples.py:" in text, text
    return text


def built(strategy, **sizes):
    """The kernel of a strategy that starts from a definition."""
    return strategy(strategy.start(**sizes)).program("sm_80").ir


ATTENTION = {"m": 64, "n": 64, "d": 32, "b": 2}
CUBE = {"m": 64, "n": 64, "k": 64}
LAYERS = {"m": 32, "n": 32, "k": 32, "l": 2}

# ---------------------------------------------------------------------------------------------- definitions


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "words, parts",
    [
        ({"body": {"y": "y[m] = t[m]", "s": "t[m] = sum(n, X[m,n])"}}, ("step y: t is read before", "do      an earlier step")),
        (
            {"loop": "n", "body": {"s": "t[m] += sum(n, X[m,n])"}, "final": {"y": "y[m] = t[m]"}},
            ("step s: t is read", "init={...: 't[m] = 0'}"),
        ),
        ({"loop": "n", "init": {"s": "t[m] = 0"}, "body": {"s": "t[m] += sum(n, X[m,n])", "y": "y[m] = t[m]"}}, ("step s is in two",)),
        ({"body": {"y": "y[m] = X[m,n]"}}, ("step y: n of X[m,n] is neither in the result nor reduced",)),
        ({"body": {"s": "t[m] = sum(n, X[n])", "y": "y[m] = t[m]"}}, ("step s: X[n] has other dimensions", "legal   X[m,n]")),
        ({"body": {"s": "t[m] = sum(q, X[m,q])", "y": "y[m] = t[m]"}}, ("step s: q is not a dimension", "legal   m n")),
        ({"body": {"s": "t[m] = sum(n, X[m,n]) * 2", "y": "y[m] = t[m]"}}, ("step s: ",)),
        ({"body": {"y": "y[q] = X[m,n]"}}, ("step y: q is not a dimension", "legal   m n")),
        ({"body": {"y": "y[m] = fancy(y[m])"}}, ("step y: formula: unknown function 'fancy'", "legal   abs")),
        ({"body": {"y": "y[m] = X[m,0]"}}, ("step y: ",)),
        ({"types": {"u": float16}}, ("types has u, which is neither", "legal   X y t")),
        ({"body": {"s": 3}}, ("the formula of step s must be a text",)),
        ({"body": "y[m] = 0"}, ("body must be a mapping from names of steps to formulas",)),
        ({"body": {"a step": "y[m] = 0"}}, ("'a step' in body is not a name for a step", "legal   different identifiers")),
        ({"operands": {"X": "m n", "y": "m", "z": "m"}}, ("no step reads or writes z",)),
        ({"operands": {"X": "m n", "y": "m", "exp": "m"}}, ("exp is a reserved name", "another name")),
        ({"operands": {"X": "m n", "y": "m", "n": "m"}}, ("n is a dimension and an operand",)),
        ({"body": {"s": "t[m] = sum(n, X[m,n])"}, "operands": {"X": "m n"}}, ("no step writes an operand", "legal   X")),
        ({"dims": "m n z"}, ("no step has the dimension z", "remove it from dims")),
        ({"loop": "z"}, ("Fused: loop", "got     'z'", "legal   m n")),
        ({"loop": "n", "scan": "n"}, ("n has two roles",)),
        (
            {"init": {"a": "u[m] = 0"}, "body": {"y": "y[m] = u[m]"}, "operands": {"y": "m"}, "dims": "m"},
            ("init is for steps around a loop",),
        ),
        ({"scan": "n"}, ("step s reduces n, but steps have only one element of n at a time", "remove n from scan")),
        (
            {"batch": "n", "body": {"y": "y[m] = X[m,n]"}},
            ("y lacks the batch dimension n, so several blocks would write the same elements",),
        ),
        (
            {"loop": "n", "init": {"a": "u[m] = 0"}, "body": {"y": "v[m] = u[m]"}, "final": {"z": "y[m] = sum(n, X[m,n])"}},
            ("no step of body has the loop's dimension n",),
        ),
        ({"body": {"s": "t[m] = sum(n, X[m,n])", "y": "y[m] = y[m] + t[m]"}}, ("step y: ",)),
        ({"body": {"s": "total[m] = sum(n, X[m,n])", "y": "y[m] = totl[m]"}}, ("step y: totl is not an operand", "did you mean total?")),
        ({"body": {"y": "y[m]"}}, ("step y: formula: nothing is written", "legal   y[m] = ...")),
        ({"body": {"y": "y[m] = sum(n, X[n,n])"}}, ("step y: formula: X[n,n] has a dimension twice",)),
        ({"body": {"y": "y[m] = X[m,n ^ 1]"}}, ("step y: formula: the indices of X[m,n ^ 1] must be dimensions",)),
        ({"body": {"y": "y[m] = " + "1 + " * 1000 + "1"}}, ("step y: a formula is a text of at most 2000 characters",)),
        ({"body": {"y": "y[m] = size(q)"}}, ("step y: size(q) names no dimension", "legal   m n")),
        ({"body": {"a": "t[m] = 0", "y": "t[m] = t[n]"}}, ("step y: t is read at other indices than it is written",)),
        ({"body": {"a": "y[m] = 0", "b": "y[m] = y[m] + 1"}}, ("step b: the operand y is read and written", "a temporary")),
        ({"dims": 3}, ("Fused: dims", "names separated by blanks", "got     3")),
        ({"name": "two words"}, ("the name of a definition must be an identifier",)),
    ],
)
def test_definitions(words, parts):
    refused(ArgumentError, lambda: definition(**words), *parts)


def test_sizes_by_the_dimensions_of_the_definition():
    refused(ArgumentError, lambda: dual(m=1, n=2), "dual: the sizes must be those of its dimensions", "got     ['m', 'n']", "legal   m n k")
    refused(ArgumentError, lambda: dual(**CUBE, types={"u": float16}), "u is not an operand", "legal   A B1 B2 D y")
    refused(ArgumentError, lambda: mlp(m=32, n=16, k=32, l=2), "h is indexed by n and by k", "got     'n=16, k=32'")


def test_results_that_depend_on_the_split_are_found():
    running = definition(loop="n", body={"s": "t[m] = sum(n, X[m,n])"}, final={"y": "y[m] = t[m]"})
    text = refused(ArgumentError, running.check, "y depends on the number of elements of n", "t is carried", "or +=")
    assert text == refused(ArgumentError, running.check)
    softmax = Fused(
        name="unscaled",
        dims="m n",
        loop="n",
        operands={"X": "m n", "y": "m"},
        init={"l": "l[m] = 0"},
        body={"top": "t[m] = max(n, X[m,n])", "e": "e[m,n] = exp(X[m,n] - t[m])", "sum": "l[m] += sum(n, e[m,n])"},
        final={"y": "y[m] = l[m]"},
    )
    refused(ArgumentError, softmax.check, "unscaled: y depends on", "rescale it if a new iteration changes its scale")
    roots = definition(loop="n", body={"r": "r[m,n] = sqrt(X[m,n])", "s": "t[m] = sum(n, r[m,n])"}, final={"y": "y[m] = t[m]"})
    refused(ArgumentError, roots.check, "y depends on")  # not a number for normal data, so positive ones are tried too
    idle = definition(body={"s": "t[m] = sum(n, X[m,n])", "z": "z[m] = t[m]", "y": "y[m] = t[m]"})
    refused(ArgumentError, idle.check, "rows: no step reads z")
    refused(ArgumentError, lambda: dual.check(sizes={"z": 3}), "no dimension z", "legal   m n k")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("make", [attention, dual, gemm_bias_relu, mlp])
def test_correct_definitions_pass(make):
    make.check()
    make.check(seed=3)


# ---------------------------------------------------------------------------------------------- strategies


def test_reduced_dimensions_are_not_tiled():
    step = "tile(d=16): d is a reduction dimension"
    refused(
        DecompositionError, lambda: built(attention.tile(m=64, d=16, b=1).to(Block).done(), **ATTENTION), step, "the strategy of step s"
    )
    over = "tile(n=32): n is a reduction dimension"
    refused(DecompositionError, lambda: built(attention.tile(m=64, n=32, b=1).to(Block).done(), **ATTENTION), over, "do      split(n=32)")
    refused(DecompositionError, lambda: built(definition().tile(m=1, n=8).to(Block).done(), m=8, n=64), "n is a reduction dimension")


def test_only_dimensions_of_the_loop_are_split():
    rows = definition()
    refused(DecompositionError, lambda: built(rows.tile(m=1).to(Block).split(n=32).done(), m=8, n=64), "split(n=32)", "loop='n'")
    strategy = attention.tile(m=64, b=1).to(Block).split(d=16).done()
    refused(DecompositionError, lambda: built(strategy, **ATTENTION), "split(d=16)", "legal   n", ".step('s', ")


def test_steps_are_named():
    strategy = attention.tile(m=64, b=1).to(Block).step("qk", product).done()
    refused(DecompositionError, lambda: built(strategy, **ATTENTION), "attention has no such step", "legal   mx l acc s mask")
    plain = MatMul.tile(64, 64).to(Block).step("mm", main_loop).done()
    refused(
        DecompositionError, lambda: plain(MatMul(64, 64, 64)(GL, GL, GL)(Kernel)).program().ir, "MatMul is one step", "a Fused definition"
    )
    refused(ArgumentError, lambda: attention.step(3, product), "step needs the name of a step")


def test_products_need_a_strategy():
    shared = attention.tile(m=64, b=1).to(Block).load("Q", SH, copy).load("Q", RF, Move.tile(16).to(Warp).done())
    open_one = shared.split(n=32).load("K", SH, copy).load("V", SH, copy).tile(m=16).to(Warp).step("s", product).done()
    program = open_one(attention(**ATTENTION)).program("sm_80")
    assert [str(leaf) for leaf in program.tree.open_leaves()] == ["MatMul(16,32,32)(RF,SH,RF)(Warp)"]
    with pytest.raises(IncompleteError, match=r'1 open leaf: MatMul[^$]*\n.*\n  do      \.step\("pv", MatMul'):
        _ = program.cuda
    refused(MatchError, lambda: built(gemm_bias_relu.tile(m=64, n=64).to(Block).done(), **CUBE), '.step("mm", MatMul. ... .done())')


def test_stacks_and_layers_one_at_a_time():
    both = attention.tile(m=64, b=2).to(Block).split(n=32).step("s", product).step("pv", product).done()
    refused(DecompositionError, lambda: built(both, **ATTENTION), "its steps process one element of b", "got     '2'", ".tile(b=1) first")
    whole = mlp.tile(m=32).to(Block).step("mm", product).done()
    refused(
        DecompositionError, lambda: built(whole, **LAYERS), "body and final and init are separated by a loop over l", ".split(l=...) first"
    )
    two = mlp.tile(m=32).to(Block).split(l=2).step("mm", product).done()
    refused(DecompositionError, lambda: built(two, **LAYERS), "its steps process one element of l", ".split(l=1) first")


def test_temporaries_are_placed():
    def placed(*arguments, **more):
        return lambda: built(mlp.tile(m=32).to(Block).set_memory(*arguments, **more).done(), **LAYERS)

    refused(
        DecompositionError, placed("X", SH), "set_memory('X'): X is an operand of mlp, not a temporary", "legal   h acc", "load('X', SH)"
    )
    refused(DecompositionError, placed("hh", SH), "set_memory('hh'): hh is not a temporary of mlp", "legal   h acc")
    refused(DecompositionError, placed("h", GL), "a temporary cannot be in GL at the level", "legal   SH RF")
    refused(DecompositionError, lambda: built(mlp.set_memory("h", SH).done(), **LAYERS), "below tile(...).to(Block)")
    refused(ArgumentError, placed("h", SH, pad=-1), "set_memory: pad must be a number of elements after each row", "0 ... 4096")


def test_an_epilog_is_around_one_product():
    strategy = dual.tile(m=64, n=64).to(Block).epilog(RF).split(32).done()
    refused(DecompositionError, lambda: built(strategy, **CUBE), "epilog: dual is not a MatMul of two operands", ".step(...)")


def test_an_epilog_allocates_nothing_in_global_memory():
    """The accumulators of all blocks would be one: it ended as a race between them."""
    around = Init.tile(1, 1).to(Thread).done(), Move.tile(1, 1).to(Thread).done()
    strategy = MatMul.tile(24, 4).to(Block).epilog(GL, *around).tile(1, 1).to(Thread).split(1).done()
    problem = MatMul.fuse_epilogue("acc + r[m]")(m=24, n=9, k=2, types={"r": float32, "C": float32})
    refused(DecompositionError, lambda: strategy(problem).program("sm_80").ir, "epilog(GL): a kernel cannot", "legal   SH RF")


def test_operands_are_named():
    strategy = dual.tile(m=64, n=64).to(Block).load("Z", SH, copy).done()
    refused(DecompositionError, lambda: built(strategy, **CUBE), "load(Z): dual has no such operand", "legal   A B1 B2")


def test_chains_are_for_their_definition():
    strategy = dual.tile(m=64, n=64).to(Block).done()
    text = refused(DecompositionError, lambda: strategy(gemm_bias_relu(**CUBE)), "starts from dual, but the spec is a gemm_bias_relu")
    assert "Fused(" not in text  # by name: the formulas would hide what is wrong
    library = importlib.import_module("fireiron.strategies.attention")
    lazy = library.spec(64, 64, 64, fused=library.definition(rescale_threshold=8))
    text = refused(DecompositionError, lambda: library.strategy(lazy), "another definition with the name attention")
    assert "got     'new      new[m] = max(mx[m], " in text and "legal   new      new[m] = where(" in text


def test_an_operand_of_a_definition_has_another_name_in_the_strategy_of_a_step():
    """The hint names the operand of the MatMul."""
    definition = Fused(
        name="named", dims="m n k", operands={"X": "m k", "W": "k n", "C": "m n"},
        body={"mm": "acc[m,n] = sum(k, X[m,k] * W[k,n])", "out": "C[m,n] = acc[m,n]"},
    )  # fmt: skip
    loop = MatMul.split(32).load("W", SH, Move.coalesced_copy(8).done()).tile(8, 8).to(Thread).split(1).tile(1, 1).done()
    with pytest.raises(DecompositionError, match=r"load\(W\): MatMul has no such operand") as caught:
        definition.tile(m=64, n=64).to(Block).step("mm", loop).done()(definition(m=64, n=64, k=64)).cuda("sm_80")
    assert caught.value.hint == "load(B): in the strategy of this step, W is the operand B"


def test_a_loose_coordinate_is_named_as_it_is_written():
    with pytest.raises(ArgumentError, match="^step a: g is neither in the result nor reduced"):
        Fused(name="loose", dims="m g", loop="g", operands={"X": "m", "y": "m"}, init={"z": "s[m] = 0"},
              body={"a": "s[m] = s[m] + where(g <= m, X[m], 0)"}, final={"o": "y[m] = s[m]"})  # fmt: skip


def test_a_variable_that_hides_an_operand():
    """`B = ...` in a user's file replaces the operand that `from fireiron import *` defines."""
    refused(
        ArgumentError,
        lambda: MatMul.load(MatMul(8, 8, 8), SH),
        "not an operand",
        "do      if a variable of your file hides the name, use the text",
    )
    assert MatMul.load("B", SH) == MatMul.load(B, SH)


def test_an_index_that_is_not_reduced():
    body = {"h": "H[k] += X[n,k]"}
    build = lambda: Fused(name="f", dims="n k", operands={"X": "n k", "H": "k"}, body=body)
    refused(
        ArgumentError, build, "n of X[n,k] is neither in the result nor reduced", "legal   n as an index of H, or a reduction: sum(n, ...)"
    )
