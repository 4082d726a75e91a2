"""Compare attention as programs of tasks with equal fluent strategies: FlashAttention-2 and -3, with the same tiles, stages, blocks and
placement.

    python perf/tasks_attention.py FOLDER [--only attention] [--rounds 6] [--regimes burst,busy]

Writes the table of `perf/tasks.py`. 16 heads, 16384 tokens; the problem is the length of a sequence. `seldom` is compared with the
library's strategy, which rescales only if a maximum has grown by a factor of 256. On an H200 this takes about 20 seconds to begin with,
then 10 per problem.
"""

from fused import error_of
from tasks import CASES, Case, drawn, like, main

from fireiron import tasks
from fireiron.strategies import attention, hopper_attention
from fireiron.strategies import tasks_attention as programs

TOKENS, HEADS = 16384, 16

PLAIN = attention.definition()
"""A definition that rescales whenever a score exceeds the maximum, like the programs."""

LIBRARY = hopper_attention.definition()
"""The definition of the library, with lazy rescaling."""


def pairs(d):
    """By name a program with a mapping, and its twin: tiles of `bm` x `bn`, with or without persistent blocks."""

    def pair(ahead, bm, bn, blocks):
        mapping = programs.hopper(bm, bn, bm // 64, 2, programs.AHEAD if ahead else programs.IN_ORDER, 0 if blocks == 65536 else blocks)
        fluent = hopper_attention.by_rows(PLAIN, overlap=ahead).with_(bm=bm, bn=bn, stages=2, epi_n=d, num_blocks=blocks)
        return tasks.strategy(programs.flash_3 if ahead else programs.flash_2, mapping), fluent

    three = 64 if d == 128 else 128
    return {
        "FlashAttention-2": pair(False, 128, 128, 65536),
        "FlashAttention-2, blocks stay": pair(False, 128, 128, 132),
        "FlashAttention-2, three warpgroups": pair(False, 192, three, 65536),
        "FlashAttention-3": pair(True, 128, 128, 65536),
        "FlashAttention-3, blocks stay": pair(True, 128, 128, 132),
    }


def seldom(d):
    """FlashAttention-3 with lazy rescaling, compared with the library's strategy, which skips steps without effect."""
    strategies = {}
    for name, blocks in (("FlashAttention-3", 65536), ("FlashAttention-3, blocks stay", 132)):
        mapping = programs.rescale_rarely(programs.hopper(128, 128, 2, 2, programs.AHEAD, 0 if blocks == 65536 else blocks))
        fluent = hopper_attention.by_rows(LIBRARY).with_(bm=128, bn=128, stages=2, epi_n=d, num_blocks=blocks)
        strategies[name] = tasks.strategy(programs.flash_3, mapping), fluent
    return strategies


def case(d, definition=PLAIN, pairs=pairs):
    """Return a case of heads of `d` elements."""

    def trial(n):
        batch, scale = TOKENS // n, d**-0.5
        sets = [(drawn(batch, n, HEADS, 1, d), drawn(batch, n, HEADS, d), drawn(batch, n, HEADS, d), scale) for _ in range(2)]
        q, k, v = (one[-1:].double() for one in sets[0][:3])
        weights = (scale * q[:, :, :, 0].transpose(1, 2) @ k.permute(0, 2, 3, 1)).softmax(-1)
        wanted = (weights @ v.transpose(1, 2)).transpose(1, 2)[:, :, :, None]

        def error(got):
            """Return the error of the last sequence; infinite if another one contains NaN."""
            return error_of(got[-1:], wanted) if got.isfinite().all() else float("inf")

        return sets, like(2, batch, n, HEADS, 1, d), error

    def spec(n):
        return attention.spec(n, n, d, HEADS, TOKENS // n, fused=definition)

    return Case((512, 4096), lambda n: pairs(d), spec, lambda n: 4 * TOKENS * HEADS * n * d, trial)


CASES.clear()
CASES.update(attention=case(128), attention64=case(64), seldom=case(128, LIBRARY, seldom))

if __name__ == "__main__":
    main()
