"""Data-dependent iterations: their text with bit masks, in C, and loops without them."""

import shutil
import subprocess

import attrs
import making
import pytest
from handmade import THREAD, access, execution

from fireiron import *
from fireiron import ir
from fireiron.cuda.lines import lines_of
from fireiron.cuda.skipping_loops import as_skipping_loop
from fireiron.executable.thread_move import MOVE
from fireiron.values.expr import ONE, Var, as_expr, less, sym
from fireiron.values.expr.lookup import lookup

COMPILER = next(filter(None, map(shutil.which, ("gcc", "cc", "clang"))), None)
N = sym("N", high=1000)
G, ITERATION = Var("g", 0, 999), Var("turn", 0, 0)
COPY = execution(MOVE, Move(1, 1)(GL, GL)(Thread), access("src", (THREAD, G)), access("dst", (THREAD, G), write=True))
BEGIN, SEEN = making.let(Var("begin", 0, 9), lookup("starts", G, 9)), making.let(Var("seen", 0, 1), less(0, Var("begin", 0, 9)))
UNUSED = making.let(Var("other", 0, 9), lookup("others", G, 9))
BARRIER = making.barrier(ir.BLOCK_SCOPE)


def loop(extent, *names, inner=None, after=(), **fields):
    """A loop over `g` with names; the last name is the trip count of the inner loop."""
    inside = inner or making.loop(ITERATION, names[-1].var, (COPY,))
    return making.loop(G, as_expr(extent), (*names, inside, *after), **fields)


def test_names_used_by_the_iterations_remain():
    skipping_loop = as_skipping_loop(loop(N, UNUSED, BEGIN, SEEN))
    assert skipping_loop.names == (UNUSED, BEGIN, SEEN) and skipping_loop.loop.body == (COPY,), "what is only asked is asked once"
    copy = attrs.evolve(COPY, accesses=(access("src", (THREAD, G + BEGIN.var)), COPY.accesses[1]))
    kept = as_skipping_loop(loop(N, UNUSED, BEGIN, SEEN, inner=making.loop(ITERATION, SEEN.var, (copy,)), after=(BARRIER,))).loop
    assert kept.body == (BEGIN, copy, BARRIER)
    through = making.let(Var("place", 0, 9), BEGIN.var + 0 * G)
    last = making.let(Var("seen", 0, 1), less(0, through.var))
    copy = attrs.evolve(COPY, accesses=(access("src", (THREAD, G + last.var)), COPY.accesses[1]))
    kept = as_skipping_loop(loop(N, BEGIN, through, last, inner=making.loop(ITERATION, last.var, (copy,)))).loop
    assert kept.body == (BEGIN, through, last, copy), "names of names"


@pytest.mark.parametrize("size", (31, 32, 33, 64))
def test_iterations_that_fit_one_word_need_no_outer_loop(size):
    items = as_skipping_loop(loop(size, BEGIN, SEEN)).items(str(size), lambda name: name, (), ("a;",))
    text = "\n".join(line.text for line in lines_of(items))
    assert ("+= 32" in text) == (size > 32) and text.count("for (") == (3 if size > 32 else 2)


TAKEN = Var("taken", 0, 2**31 - 1)
OTHERS = {
    "no name": making.loop(G, N, (making.loop(ITERATION, N, (COPY,)),)),
    "nothing but names": making.loop(G, N, (BEGIN, SEEN)),
    "more than a barrier behind": loop(N, BEGIN, SEEN, after=(COPY,)),
    "one turn": loop(ONE, BEGIN, SEEN),
    "unrolled": loop(N, BEGIN, SEEN, unroll=True),
    "no loop inside": loop(N, BEGIN, SEEN, inner=COPY),
    "a loop of another extent": loop(N, BEGIN, SEEN, inner=making.loop(ITERATION, as_expr(7), (COPY,))),
    "several turns": loop(N, BEGIN),
    "from another turn on": loop(N, BEGIN, SEEN, first=1),
    "every second turn": loop(N, BEGIN, SEEN, step=2),
    "turns that are counted": loop(N, BEGIN, SEEN, prior_iterations=TAKEN),
    "what no data say": loop(N, making.let(Var("seen", 0, 1), less(3, G))),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", OTHERS)
def test_other_loops_are_unchanged(name):
    assert as_skipping_loop(OTHERS[name]) is None


def test_the_count_of_the_inner_loop_continues():
    inner = making.loop(ITERATION, SEEN.var, (COPY,), prior_iterations=TAKEN)
    assert as_skipping_loop(loop(N, BEGIN, SEEN, inner=inner)).loop.prior_iterations == TAKEN


CHECKED = """#include <stdio.h>
#define __ffs __builtin_ffs
#define min(a, b) ((a) < (b) ? (a) : (b))
static int starts[100], turns[200], count, wrong;
static void check(int size) {
  int next = 0;
  for (int g = 0; g < size; ++g) if (starts[g] > 0) wrong += next >= count || turns[next] != g, ++next;
  wrong += next != count;
}
int main(void) {
for (int g = 0; g < 100; ++g) starts[g] = (g * 7 + g / 3) % 4 % 3;
LOOPS
return wrong != 0; }
"""


@pytest.mark.skipif(COMPILER is None, reason="no C compiler (gcc, cc or clang) on the path")
def test_each_active_iteration_executes_once_in_order(tmp_path):
    """Fewer than 32, whole words, and a remainder; the iterations as C executes them, and no condition past the last one."""
    loops = []
    for size in (2, 5, 31, 32, 33, 64, 96, 100):
        conditions = (f"if (g < 0 || g >= {size}) return 1;", "const int seen = 0 < starts[g];")
        for extent, count in ((size, str(size)), (N, "N")):
            items = as_skipping_loop(loop(extent, BEGIN, SEEN)).items(count, lambda name: name, conditions, ("turns[count++] = g;",))
            body = "\n".join(line.text for line in lines_of(items)).replace("static_cast<unsigned>", "(unsigned)")
            loops.append(f"{{ count = 0; const int N = {size};\n{body}\ncheck({size}); }}")
    source = tmp_path / "turns.c"
    source.write_text(CHECKED.replace("LOOPS", "\n".join(loops)))
    subprocess.run([COMPILER, "-std=gnu11", "-w", "-O0", source, "-o", tmp_path / "turns"], check=True)
    assert subprocess.run([tmp_path / "turns"]).returncode == 0
