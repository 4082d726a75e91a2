"""Circular buffers and warp roles: mbarriers, their waits and arrivals, and a branch for each role of a block (Hopper).

PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier". A wait specifies the parity of the phase that must complete.
All stages start empty: the first wait of a producer, for the preceding phase, returns immediately.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fireiron.cuda.addresses import FIRST_LANE, SHARED_ADDRESS
from fireiron.cuda.lines import guarded
from fireiron.cuda.makers import Makers
from fireiron.cuda.printer import KernelPrinter
from fireiron.ir import Acquire, ClaimTile, ExitIfDone, Kernel, Release, Ring, Role, StageState
from fireiron.ir.mechanism import ARRIVE
from fireiron.ir.text import Braces, Function, Item, Noted, WithSteps
from fireiron.values.expr import FALSE, Expr, conjuncts, constant, equal
from fireiron.values.machine import Warp
from fireiron.values.units import index_in

TENSOR_MAP = (
    "// TMA tensor map of a tensor, encoded by the launcher (cuTensorMapEncodeTiled)",
    "struct __align__(64) TensorMap { unsigned long long words[16]; };",
)

INIT = Function(
    "mbarrier_init",
    ("unsigned mbarrier", "unsigned arrivals"),
    ('asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(mbarrier), "r"(arrivals) : "memory");',),
    "mbarrier: a phase completes after all arrivals and expected transaction bytes",
)

VISIBLE = Function(
    "fence_mbarrier_init",
    (),
    ('asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");',),
    "make initialized mbarriers visible to the async proxy and to the cluster",
)

EXPECT = Function(
    "mbarrier_arrive_expect_tx",
    ("unsigned mbarrier", "unsigned bytes"),
    ('asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(mbarrier), "r"(bytes) : "memory");',),
    "arrive and expect `bytes` from TMA",
)

ARRIVE_AT = Function(
    "mbarrier_arrive_cluster",
    ("unsigned mbarrier", "unsigned block_mask"),
    (
        "const unsigned rank = threadIdx.x % 32;",
        "if ((block_mask >> rank & 1) != 0)",
        "  asm volatile(",
        '      "{\\n"',
        '      ".reg .b32 remote;\\n"',
        '      "mapa.shared::cluster.u32 remote, %0, %1;\\n"',
        '      "mbarrier.arrive.shared::cluster.b64 _, [remote];\\n"',
        '      "}"',
        '      :: "r"(mbarrier), "r"(rank) : "memory");',
    ),
    "each lane of a warp: arrive at this mbarrier in the block whose rank is the lane, if `block_mask` has its bit",
)
"""Lanes arrive concurrently. A loop over the blocks by a single lane delays the next MMAs of the warp."""

CLUSTER_SYNC = Function(
    "cluster_sync",
    (),
    (
        'asm volatile("barrier.cluster.arrive.release;" ::: "memory");',
        'asm volatile("barrier.cluster.wait.acquire;" ::: "memory");',
    ),
    "synchronize all threads of the cluster",
)

WAIT = Function(
    "mbarrier_wait",
    ("unsigned mbarrier", "unsigned phase"),
    (
        "asm volatile(",
        '    "{\\n"',
        '    ".reg .pred done;\\n"',
        '    "retry:\\n"',
        '    "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\\n"',
        '    "@!done bra retry;\\n"',
        '    "}"',
        '    :: "r"(mbarrier), "r"(phase) : "memory");',
    ),
    "wait until the phase of this parity completes",
)

CLAIM = Function(
    "claim_tile",
    ("unsigned* counter", "unsigned num_tiles", "unsigned num_blocks"),
    ("return static_cast<int>(min(atomicInc(counter, num_tiles - 1), num_tiles - num_blocks) + num_blocks);",),
    "claim the next tile, or num_tiles if none is left; the last claim of a launch resets the counter",
    result="int",
)

PREFETCH = Function(
    "prefetch_tensor_map",
    ("const TensorMap* map",),
    ('asm volatile("prefetch.tensormap [%0];" :: "l"(map) : "memory");',),
    "prefetch a tensor map",
)


def registers_function(count: int, decrease: bool) -> Function:
    """The function that changes the number of registers of a warpgroup."""
    way = "dec" if decrease else "inc"
    return Function(
        f"setmaxnreg_{way}_{count}",
        (),
        (f'asm volatile("setmaxnreg.{way}.sync.aligned.u32 {count};");',),
        f"{'decrease' if decrease else 'increase'} the registers of each thread of the warpgroup to {count}",
    )


def names_of(ring: Ring, side: StageState) -> str:
    """The variable with the address of a ring's mbarriers."""
    return f"{ring.name}_{side.value}"


def numbers_of(ring: Ring) -> str:
    """The variable with the tile indices of a ring of tiles."""
    return f"{ring.name}_numbers"


def _mbarriers(count: int) -> str:
    return f"{count} mbarrier{'s' if count > 1 else ''}"


def _contents(ring: Ring) -> str:
    """The contents of the stages of a ring."""
    return ", ".join(ring.buffers) or "tile indices"


def declarations(printer: KernelPrinter, dynamic: bool) -> Iterable[Item]:
    """The mbarriers of all rings, which one thread initializes before any thread continues."""
    kernel = printer.kernel
    if not kernel.rings:
        return
    address = printer.function(SHARED_ADDRESS)
    inits: list[Item] = []
    for ring in kernel.rings:
        full, empty = (names_of(ring, side) for side in StageState)
        if dynamic:
            start = f"smem + {printer.addresses.constants.offset(ring.name, ring.offset)}"
        else:
            start = ring.name
            yield f"__shared__ unsigned long long {ring.name}[{ring.barrier_bytes // 8 if ring.refilled else ring.stages}];"
        init = printer.function(INIT)
        if ring.is_order:
            note = "order of warpgroups" if ring.each else "MMAs of the previous tile are complete"
            yield Noted(f"const unsigned {empty} = {address}({start});", f"{_mbarriers(ring.stages)}: {note}")
            inits.append(
                Braces(f"for (int stage = 0; stage < {ring.stages}; ++stage)", (f"{init}({empty} + stage * 8, {ring.consumers});",))
            )
            continue
        if ring.tiles:
            numbers = (
                f"reinterpret_cast<volatile int*>({f'{start} + {2 * ring.stages * 8}' if dynamic else f'{start} + {2 * ring.stages}'})"
            )
            yield Noted(f"volatile int* const {numbers_of(ring)} = {numbers};", f"{ring.stages} stages of tile indices")
        makers = Makers(kernel).of_ring(ring.name)
        count = printer.addresses.constants.count(ring.stages)
        yield WithSteps(Noted(f"const unsigned {full} = {address}({start});", f"{_mbarriers(ring.stages)}: {_contents(ring)} full"), makers)
        step = " + stage * 8" if ring.stages > 1 else ""
        lines = [f"{init}({full}{step}, {ring.producers});"]
        if ring.refilled:
            distance = f"{count} * 8" if count.isidentifier() else ring.stages * 8
            note = f"{_mbarriers(ring.stages)}: {_contents(ring)} empty"
            yield WithSteps(Noted(f"const unsigned {empty} = {full} + {distance};", note), makers)
            lines.append(f"{init}({empty}{step}, {ring.consumers});")
        inits.extend([Braces(f"for (int stage = 0; stage < {count}; ++stage)", tuple(lines))] if step else lines)
    maps = [f"{printer.function(PREFETCH)}(&{one.name});" for one in kernel.maps]
    yield guarded(("threadIdx.x == 0",), [*maps, *inits, f"{printer.function(VISIBLE)}();"])
    if kernel.cluster is None:  # else the program has a barrier of the cluster
        yield "__syncthreads();"


def acquired(printer: KernelPrinter, statement: Acquire) -> list[Item]:
    """Print the wait for a stage; nothing for the first fill of a stage that is not filled again, because the wait would pass at once."""
    ring = printer.kernel.ring(statement.ring)
    if statement.state is StageState.EMPTY and not ring.refilled:
        return []
    parity = printer.parity(ring.name, statement.fill_index, 0 if statement.state is StageState.FULL else 1)
    barrier = printer.barrier(ring.name, statement.state, statement.fill_index)
    state = "full" if statement.state is StageState.FULL else "empty"
    note = f"wait until {_contents(ring)} {'is' if len(ring.buffers) == 1 else 'are'} {state}"
    if ring.is_order:
        note = "wait for the previous warpgroup" if ring.each else "wait for the MMAs of the previous tile"
    return [Noted(f"{printer.function(WAIT)}({barrier}, {printer.expression(printer.addresses.constants.phases(parity))});", note)]


def released(printer: KernelPrinter, statement: Release) -> list[Item]:
    """Print the arrival at the mbarrier of a stage."""
    ring = printer.kernel.ring(statement.ring)
    barrier = printer.barrier(ring.name, statement.state, statement.fill_index)
    conditions = conjuncts(statement.active)
    if FALSE in conditions:  # before the first iteration
        return []
    if statement.by is not None:
        lines = statement.by.arrive(printer, barrier)
        return [guarded(printer.conditions(conditions), lines)] if conditions else list(lines)
    if statement.state is StageState.FULL and not ring.tiles:
        size = printer.addresses.constants.ring_bytes(ring) if statement.part is None else statement.part
        return [f"{printer.function(EXPECT)}({barrier}, {size});"]
    if not statement.to:
        line = f"{printer.function(ARRIVE)}({barrier});"
    else:
        conditions = _of_all_lanes(printer.kernel, conditions)
        line = f"{printer.function(ARRIVE_AT)}({barrier}, {printer.blocks(*statement.to)});"
    return [guarded(printer.conditions(conditions), [line]) if conditions else line]


def _of_all_lanes(kernel: Kernel, conditions: Sequence[Expr]) -> tuple[Expr, ...]:
    """The conditions of the first lane's arrival that do not select it: they are the same for all lanes of the warp."""
    first = equal(index_in(Warp, kernel.thread), 0)
    others = tuple(condition for condition in conditions if condition != first)
    assert len(others) < len(conditions), "warps release the stages that several blocks fill"
    assert all(kernel.thread not in condition.variables() for condition in others), "a warp releases a stage as a whole"
    return others


def next_tile(printer: KernelPrinter, statement: ClaimTile) -> list[Item]:
    """Print the claim of the next tile: from the counter, stored for the other warps; or read by all lanes of another warp."""
    kernel = printer.kernel
    ring = kernel.ring(statement.ring)
    place = f"{numbers_of(ring)}[{printer.expression(statement.fill_index % ring.stages)}]"
    if not statement.takes:
        return [Noted(f"const int {statement.var} = {FIRST_LANE}{place}, 0);", "warp-uniform, and all lanes have read it")]
    assert kernel.counter is not None
    tiles, fill = (printer.expression(one) for one in (statement.tiles, statement.fill_index))
    blocks = "gridDim.x" if constant(kernel.grid) is None else printer.expression(kernel.grid)
    claim = f"{printer.function(CLAIM)}({kernel.counter.name}, {tiles}, {blocks})"
    return [
        Noted(f"const int {statement.var} = {fill} == 0 ? {printer.expression(kernel.block)} : {claim};", "the block's own tile first"),
        f"{place} = {statement.var};",
    ]


def exit_loop(printer: KernelPrinter, statement: ExitIfDone) -> list[Item]:
    """Print the exit from the loop over tiles."""
    return [f"if ({printer.expression(statement.tile)} >= {printer.expression(statement.tiles)}) break;"]


def branch(kernel: Kernel, role: Role, number: int, items: Sequence[Item], printer: KernelPrinter) -> Item:
    """Print a role as a branch that all threads of a warp take, or none."""
    last = role.first + role.threads
    head = f"{'else ' if number else ''}if (warp_index < {last // 32})" if last < kernel.threads else "else"
    inner = list(items)
    if role.elected:
        inner = [guarded((f"threadIdx.x == {role.first}",), inner)]
    if role.registers:
        decrease = role.elected or role.first >= kernel.workers
        inner = [f"{printer.function(registers_function(role.registers, decrease))}();", *inner]
    if role.elected and not role.registers:
        return Braces(f"else if (threadIdx.x == {role.first})", tuple(items))
    return Braces(head, tuple(inner))
