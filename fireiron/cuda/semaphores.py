"""The text of semaphores, by which blocks that produce one result together order their work."""

from __future__ import annotations

import functools
from typing import Final

from fireiron.cuda.printer import KernelPrinter
from fireiron.errors import VerificationError
from fireiron.ir import THREAD_SCOPE, WARP_SCOPE, WARPGROUP_SCOPE, SemaphoreAction, SemaphoreBarrier
from fireiron.ir.overlap import Exchange
from fireiron.ir.semaphore import HEADER_WORDS, MOST_SEMAPHORES, SEMAPHORE_BYTES
from fireiron.ir.text import Function, Item, Noted
from fireiron.values.expr import Expr

CONSUMER_BARRIER: Final = 15
"""The named barrier of all consumers of a block with roles."""


@functools.cache
def semaphore_function(action: SemaphoreAction, fenced: bool = True, resets: bool = True, consumers: int | None = None) -> Function:
    """Return the function of an action, which all threads of the block call; with roles, all `consumers`.

    One thread uses the semaphore, between barriers of the block. Its fences also order the accesses of the other threads: barriers belong
    to causality order (PTX ISA, "Memory Consistency Model").
    """
    fence = ("  __threadfence();",) if fenced else ()
    if action is SemaphoreAction.FIND_LAST:
        return _last_of_segments(fence, resets, consumers)
    count = "atomicInc(semaphore, blocks - 1)" if resets else "atomicAdd(semaphore, 1)"
    if action is SemaphoreAction.LAST:
        body = (
            "__syncthreads();",
            "bool last = false;",
            "if (threadIdx.x == 0) {",
            *fence,
            f"  last = {count} == blocks - 1;",
            *fence,
            "}",
            "return __syncthreads_or(last);",
        )
        note = "count this block; return whether all others of its tile were counted before, which resets the semaphore to 0"
        return Function("is_last_block", ("unsigned* semaphore", "unsigned blocks"), body, note, result="bool")
    if action is SemaphoreAction.WAIT:
        loop = "  while (*static_cast<volatile unsigned*>(semaphore) != position) {}"
        body = ("if (threadIdx.x == 0) {", loop, *fence, "}", "__syncthreads();")
        return Function(
            "wait_for_count", ("unsigned* semaphore", "unsigned position"), body, "wait until `position` blocks have been counted"
        )
    body = ("__syncthreads();", "if (threadIdx.x == 0) {", *fence, f"  {count};", "}")
    return Function(
        "count_block", ("unsigned* semaphore", "unsigned blocks"), body, "count this block; the last block resets the semaphore to 0"
    )


def _last_of_segments(fence: tuple[str, ...], resets: bool, consumers: int | None) -> Function:
    """Return the function that determines whether a block finishes a tile last; a block without others uses no semaphore."""
    count = "atomicInc(semaphore, blocks - 1)" if resets else "atomicAdd(semaphore, 1)"
    if consumers is None:
        barrier = "__syncthreads();"
        vote: tuple[str, ...] = ("return __syncthreads_or(last);",)
    else:  # barrier 0 is that of the block, and other barriers of consumers count down from 15 (PTX ISA, "bar")
        barrier = f'asm volatile("bar.sync {CONSUMER_BARRIER}, {consumers};" ::: "memory");'
        vote = (
            "unsigned any;",
            "asm volatile(",
            '    "{\\n"',
            '    ".reg .pred p, q;\\n"',
            '    "setp.ne.u32 p, %1, 0;\\n"',
            f'    "bar.red.or.pred q, {CONSUMER_BARRIER}, {consumers}, p;\\n"',
            '    "selp.u32 %0, 1, 0, q;\\n"',
            '    "}"',
            '    : "=r"(any)',
            '    : "r"((unsigned)last)',
            '    : "memory");',
            "return any;",
        )
    one_thread = ("if (threadIdx.x == 0) {", *fence, f"  last = {count} == blocks - 1;", *fence, "}")
    body = (barrier, "if (blocks == 1) return 1;", "int last = 0;", *one_thread, *vote)
    note = "count this block; return whether all others of its tile were counted before, which resets the semaphore to 0"
    return Function("is_last_block", ("unsigned* semaphore", "unsigned blocks"), body, note, result="int")


def use_semaphore(printer: KernelPrinter, statement: SemaphoreBarrier) -> list[Item]:
    """Print the call at which a block waits for other blocks, or is counted; all blocks but the last one exit."""
    workspace = printer.kernel.workspace
    if workspace is None:
        raise VerificationError("the kernel has no workspace with semaphores")
    if workspace.exchange is not None:
        return _exchanged(printer, statement, workspace.name, workspace.exchange)
    function = printer.function(semaphore_function(statement.action, statement.fenced, statement.resets, statement.scope.threads))
    number = statement.position if statement.action is SemaphoreAction.WAIT else statement.blocks
    call = f"{function}(&{workspace.name}[{printer.expression(statement.index)}], {printer.expression(number)})"
    text = f"if (!{call}) return;" if statement.action is SemaphoreAction.LAST else f"{call};"
    if statement.last is not None:
        text = f"const int {statement.last.name} = {text}"
    return [Noted(text, statement.reason) if statement.reason else text]


SIGNAL: Final = Function(
    "signal_gpu",
    ("unsigned* semaphore",),
    (
        "__syncwarp();",
        "if (threadIdx.x % 32 == 0)",
        '  asm volatile("red.release.sys.global.add.u32 [%0], 1;" :: "l"(semaphore) : "memory");',
    ),
    "count this warp on a GPU, after all of its accesses",
)


LIMIT: Final = (
    "if (++polls % 4096 == 0) {",
    "  unsigned long long now;",
    '  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));',
    "  if (start == 0) start = now;",
    "  const unsigned long long* const limits = reinterpret_cast<const unsigned long long*>(header);",
    "  if (limits[0] != 0 && now - start > limits[0]) {",
    "    volatile int* const report = reinterpret_cast<volatile int*>(limits[1]);",
    "    report[0] = 1;",
    "    __threadfence_system();",
    '    asm volatile("trap;");',
    "  }",
    "}",
)
"""Lines of a poll. After the time limit they report, and stop all blocks."""


@functools.cache
def _await_copies(fenced: bool, proxied: bool) -> Function:
    """Return the function by which a thread waits for copies, which TMA then loads from global memory if `proxied`.

    A fence of all state spaces takes longer: 94 instead of 88 us for 1024x3584x8192 (two H200).
    """
    order = "acquire" if fenced else "relaxed"
    body = (
        "const unsigned position = copies * (launch + 1);",
        "unsigned seen, polls = 0;",
        "unsigned long long start = 0;",
        "do {",
        f'  asm volatile("ld.{order}.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(semaphore) : "memory");',
        *(f"  {line}" for line in LIMIT),
        "} while (static_cast<int>(seen - position) < 0);",
        *(('asm volatile("fence.proxy.async.global;" ::: "memory");',) if proxied else ()),
    )
    note = f"wait until `copies` were counted in each launch until this one{', whose data TMA then loads' if proxied else ''}"
    parameters = ("const unsigned* semaphore", "unsigned copies", "unsigned launch", "const unsigned* header")
    return Function("await_copies", parameters, body, note)


BEGIN: Final = Function(
    "number_of_launch",
    ("const unsigned* semaphore",),
    ("return *static_cast<const volatile unsigned*>(semaphore);",),
    "the number of this launch, a word of this warp",
    result="unsigned",
)

END_OF_THREAD: Final = Function(
    "end_launch_of_thread",
    ("unsigned* semaphore", "unsigned launch"),
    ("*semaphore = launch + 1;",),
    "set the word of this thread to the number of the next launch",
)

END: Final = Function(
    "end_launch",
    ("unsigned* semaphore", "unsigned launch"),
    ("__syncwarp();", "if (threadIdx.x % 32 == 0) *semaphore = launch + 1;"),
    "set the word of this warp to the number of the next launch",
)


@functools.cache
def _signal_sums(fenced: bool, arrived: bool, follows: bool, threads: int) -> Function:
    """Return the function by which a warpgroup, or a storing warp, of `threads` threads counts the tile that its first thread has stored.

    A fence and a relaxed increment after it release what precedes (PTX ISA, "Release and Acquire Patterns"). So one that follows another
    one needs no further fence.
    """
    lines = (
        *(('asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");',) if arrived and not follows else ()),
        *(
            ('asm volatile("fence.proxy.async;" ::: "memory");', 'asm volatile("fence.acq_rel.sys;" ::: "memory");')
            if fenced and not follows
            else ()
        ),
        'asm volatile("red.relaxed.sys.global.add.u32 [%0], 1;" :: "l"(semaphore) : "memory");',
    )
    body = (f"if (threadIdx.x % {threads} == 0) {{", *(f"  {line}" for line in lines), "}")
    if follows:
        return Function("signal_also", ("unsigned* semaphore",), body, "count the tile of the preceding signal on another GPU, too")
    who = "warpgroup" if threads == WARPGROUP_SCOPE.threads else "warp"
    return Function("signal_sums", ("unsigned* semaphore",), body, f"count the tile that this {who} has stored, on the GPU that adds it")


@functools.cache
def _await_sums(fenced: bool) -> Function:
    """Return the function by which a warp waits for tiles of all GPUs; after the time limit it reports, and stops all blocks."""
    order = "acquire" if fenced else "relaxed"
    body = (
        "const unsigned position = tiles * (launch + 1);",
        "const unsigned* const own = semaphore + threadIdx.x % gpus;",
        "unsigned seen, polls = 0;",
        "unsigned long long start = 0;",
        "do {",
        f'  asm volatile("ld.{order}.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(own) : "memory");',
        *(f"  {line}" for line in LIMIT),
        "} while (static_cast<int>(seen - position) < 0);",
        "__syncwarp();",
    )
    parameters = ("const unsigned* semaphore", "unsigned gpus", "unsigned tiles", "unsigned launch", "const unsigned* header")
    return Function("await_sums", parameters, body, "wait until `tiles` tiles of each GPU were counted in each launch until this one")


def _exchanged(printer: KernelPrinter, statement: SemaphoreBarrier, workspace: str, exchange: Exchange) -> list[Item]:
    """Print the call by which a warpgroup counts a tile on another GPU, a warp waits for tiles, or a warp numbers launches."""
    distance = exchange.distance // SEMAPHORE_BYTES
    gpu = exchange.rank if statement.gpu is None else statement.gpu
    own = f"{workspace} + {printer.expression(gpu * distance)}"
    place = f"{own} + ({printer.expression(statement.index)})"
    if statement.action is SemaphoreAction.BEGIN:
        assert statement.last is not None
        return [Noted(f"const unsigned {statement.last.name} = {printer.function(BEGIN)}({place});", statement.reason)]
    if statement.action is SemaphoreAction.SIGNAL:
        call = f"{printer.function(_signal(statement, printer.kernel.gathers))}({place});"
    elif statement.action is SemaphoreAction.AWAIT:
        count, launch, header = (
            _number(printer, statement.position),
            _number(printer, statement.launch),
            f"{own} + {MOST_SEMAPHORES - HEADER_WORDS}",
        )
        if statement.scope == THREAD_SCOPE:
            function = printer.function(_await_copies(statement.fenced, statement.proxied))
            call = f"{function}({place}, {count}, {launch}, {header});"
        else:
            function = printer.function(_await_sums(statement.fenced))
            call = f"{function}({place}, {exchange.gpus}, {count}, {launch}, {header});"
    else:
        end = END_OF_THREAD if statement.scope == THREAD_SCOPE else END
        call = f"{printer.function(end)}({place}, {_number(printer, statement.launch)});"
    item: Item = Noted(call, statement.reason) if statement.reason else call
    return [printer.under(statement.active, item)]


def _signal(statement: SemaphoreBarrier, gathers: bool) -> Function:
    """Return the function of a count: of what a warp has done, or of the tile of a warpgroup."""
    if statement.scope == WARP_SCOPE and gathers:
        return SIGNAL
    return _signal_sums(statement.fenced, statement.arrived, statement.follows, statement.scope.threads or 1)


def _number(printer: KernelPrinter, value: Expr | None) -> str:
    """Return the text of an expression that a statement must have."""
    assert value is not None
    return printer.expression(value)


__all__ = ["semaphore_function", "use_semaphore"]
