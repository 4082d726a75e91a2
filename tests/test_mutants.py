"""Mutants of the compiler: each breaks one line of a pass or a check, and the test file nearest to it must fail.

Each is applied to a copy of the sources in a temporary folder; the nearest file then runs there in a process of its own. Part of the
long tier: `FIREIRON_FUZZ=1 pytest tests/test_mutants.py`. A mutant that survives is answered by a test in the nearest file; one
whose line has changed is to be adapted here.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

pytestmark = [
    pytest.mark.night,
    pytest.mark.skipif("FIREIRON_FUZZ" not in os.environ, reason="part of the long tier: set FIREIRON_FUZZ"),
]

HERE = Path(__file__).resolve().parent.parent
PARTS = ("fireiron", "strategies", "tests", "docs")
FILES = ("pyproject.toml", "setup.cfg", "setup.py", "README.md", "CONTRIBUTING.md", "pytest_fireiron.py")
FAILED = 1
"""What pytest returns if tests ran and some failed; a mutant that cannot even be imported returns something else, and proves nothing."""


@attrs.frozen
class Mutant:
    """One text of a module of the package in place of another, and the test file that must notice."""

    name: str
    module: str
    old: str
    new: str
    nearest: str


def mutants(module, nearest, *changes):
    """Mutants of one module, each `(name, old text, new text)`, for one test file."""
    return [Mutant(f"{module}: {name}", module, old, new, f"tests/{nearest}.py") for name, old, new in changes]


MUTANTS = [
    *mutants(
        "lower/vectorize.py",
        "test_vectorize",
        ("address alignment", "        if first.factor % width:\n            return", "        if False:\n            return"),
        ("the base of a vector at an edge", "bound.factor % width or coordinate.factor % width:", "bound.factor % width:"),
        ("the extent at an edge", "bound.factor % width or coordinate.factor % width:", "coordinate.factor % width:"),
        ("where an array begins", "if buffer.memory.of_grid and width * buffer.dtype.bytes > buffer.tensor.align:", "if False:"),
        ("neighbours in storage", "return steps == tuple(range(len(elements)))", "return True"),
        ("neighbours by their addresses", "element) - first == Const(step) for", "element) - first != Const(-1) for"),
        ("groups of a swizzle", "    elif (1 << storage.swizzle.base) % len(elements) == 0:", "    elif True:"),
        ("where a group begins", "        if side_by_side and plain.address(", "        if side_by_side or plain.address("),
        ("where a pair of registers begins", "if first.factor % width or any(addresses", "if any(addresses"),
        ("the width that was asked for", "if widths[position] * size != asked:", "if widths[position] * size < 0:"),
    ),
    *mutants(
        "lower/guard.py",
        "test_guard",
        ("who stores", "return attrs.evolve(statement, guard=condition, pieces=pieces)", "return attrs.evolve(statement, pieces=pieces)"),
        ("each piece", "Piece(start, width, _without(access.inside(elements[start]), taken))", "Piece(start, width)"),
        ("the first piece for all", "_without(access.inside(elements[start]), taken)", "_without(access.inside(elements[0]), taken)"),
        ("a product that sets", "(statement.spec.contracts and statement.accumulate == TRUE)", "statement.spec.contracts"),
        ("an input outside", "if _adds(statement) and all(", "if all("),
        ("conditions that all share", "if all(part in other for other in others)]", "if any(part in other for other in (first, *others))]"),
        ("registers aligned", "needed[access.buffer] = max(needed[access.buffer], size)", "needed[access.buffer] = min(needed[access.buffer], size)"),
    ),
    *mutants(
        "lower/distribute.py",
        "test_distribute",
        ("one foreign element", "    if not threads.size:\n        return", "    if threads.size <= 1:\n        return"),
        ("foreign elements", "right = known & (self.table[places] == asked.elements)", "right = known"),
        ("two elements in a register", "if (self.table[places] != held.elements).any():", "if (self.table[places] != held.elements).all():"),
        ("an init that misses registers", "if not reached[owned.threads].all():", "if not reached[owned.threads].any():"),
        ("elements outside", "if base.high + reach >= extent:", "if base.high + reach > extent:"),
        ("conditions of a statement", "inside: Array = True if statement.active == TRUE else", "inside: Array = True if True else"),
    ),
    *mutants(
        "lower/allocate.py",
        "test_allocate",
        ("the end of a life", "spans[other.name][0] <= stop and", "spans[other.name][0] < stop and"),
        ("the start of a life", "and start <= spans[other.name][1]]", "and start < spans[other.name][1]]"),
        ("rounding up", "return -(-offset // alignment) * alignment", "return offset // alignment * alignment"),
        ("16 bytes", "max(16, buffer.tensor.align)\n    end =", "max(8, buffer.tensor.align)\n    end ="),
        ("what is used in a loop lives all through it", "_extend(spans, name, start, clock[0])", "_extend(spans, name, *inner[name])"),
        ("memory of a statement", "+ ([statement.scratch.name] if statement.scratch else [])", "+ []"),
    ),
    *mutants(
        "lower/pipeline.py",
        "test_pipeline_pass",
        ("the stage of a load", "early = mod(loop.var + ahead, as_expr(loop.stages))", "early = mod(loop.var, as_expr(loop.stages))"),
        ("the last loads", "_guarded(items, less(loop.var + ahead, loop.extent))", "_guarded(items, less(loop.var, loop.extent))"),
        ("the first loads", "items = _guarded(items, less(number, loop.extent))", "items = list(items)"),
        ("copies of units", "copy=access.copy * stages + stage)", "copy=access.copy + stage)"),
        ("whole rounds of stages", "if count is None or count % loop.stages:", "if count is None:"),
        ("the next iteration", "less(outer.var + 1, outer.extent))", "less(outer.var, outer.extent))"),
        ("data of the next iteration", "outer.var: outer.var + 1}", "outer.var: outer.var}"),
        ("the period", "period = loop.stages if shared else 0", "period = loop.stages + 1 if shared else 0"),
        ("what is no load", "and reads.isdisjoint(others)", "and True"),
        ("registers at run time", "count is None or count > MOST_UNROLLED", "count is None or count > 2 * MOST_UNROLLED"),
        ("under way", 'between = fills and shared_by == ["grid", "block"]', "between = fills"),
        ("shares of a copy", "each = max(-(-total // number), 1)", "each = max(total // number, 1)"),
        ("the last share", "guard = less(left, as_expr(total))", "guard = less(left, as_expr(total + 1))"),
    ),
    *mutants(
        "lower/asynchronous.py",
        "test_asynchronous",
        ("both widths", "widths == {statement.vector} and", "statement.vector in widths and"),
        ("conversions", "and buffers[0].dtype == buffers[1].dtype:", "and True:"),
        ("commits without copies", "if not any(statement.completion is Completion.GROUP for", "if any(statement.completion is Completion.GROUP for"),
        ("bytes", "statement.vector * buffers[0].dtype.bytes)", "statement.vector * 4 + 0 * len(buffers[0].name) - 2)"),
    ),
    *mutants(
        "lower/walk.py",
        "test_walk",
        ("holders", "holders if any(one.collective for one, _ in execs(rest)) else ()", "()"),
        ("holders without need", "holders if any(one.collective for one, _ in execs(rest)) else ()", "holders"),
        ("what names are made of", "            used |= let.value.variables()\n", ""),
        ("the dimension of a leading dimension", '[0 if layout.order == "col" else -1]', '[-1 if layout.order == "col" else 0]'),
        ("the most threads", "workers > architecture.threads_per_block", "workers >= architecture.threads_per_block"),
        ("sizes of at least one", "yield f\"{size} is at least 1\", less(0, size.value)", "yield f\"{size} is at least 1\", less(-1, size.value)"),
        ("names of symbols", ", *(symbol.name for symbol in kernel.symbols)}", "}"),
        ("what a kernel writes", "parameter=view.memory.of_grid, written=name in spec.outputs)", "parameter=view.memory.of_grid, written=True)"),
    ),
    *mutants(
        "lower/synchronize.py",
        "test_synchronize",
        ("a loop that may not run", "runs = loop.extent.low > loop.first", "runs = True"),
        ("copies that are not committed", "frozenset(range(hazard.first + 1, own[0] + 1))", "frozenset(range(hazard.first + 1, own[0]))"),
        ("right behind a copy", "frozenset(range(hazard.first + 1, own[0] + 1))", "frozenset(range(hazard.first + 2, own[0] + 1))"),
        ("what meets itself", "alone = x is y", "alone = False"),
        ("two iterations", "loop.extent.high > 1)", "loop.extent.high > 2)"),
        ("the last iteration", "_at(touch, loop.var, end - 1)", "_at(touch, loop.var, end)"),
        ("what is adding needs no order", "and not (x.atomic and y.atomic)", "and not (x.atomic or y.atomic)"),
        ("what is under way", "        if not x.under_way:\n            several", "        if True:\n            several"),
        ("round the end of a loop", "(*range(i + 1, count + 1), *range(j + 1))", "(*range(i + 1, count + 1), *range(j + 2))"),
        ("what is written again", "(x.access.write or y.access.write) and not", "x.access.write and not"),
        ("one warpgroup", "kernel.workers % 128 == 0 and kernel.workers > 128", "kernel.workers % 128 == 0 and kernel.workers >= 128"),
        ("what meets later", "elif scope >= anywhere:", "elif scope > anywhere:"),
        ("barriers that are asked for", "if hazard.positions.isdisjoint(chosen):", "if True:"),
        ("what a barrier is for", "credited[min(meeting,", "credited[max(meeting,"),
        ("narrow scopes", "if (low // scope.threads == high // scope.threads).all():", "if (low // scope.threads == high // scope.threads).any():"),
    ),
    *mutants(
        "lower/touches.py",
        "test_synchronize",
        ("the next iteration", "((number - 1) % count if var == later else number)", "number"),
        ("groups of lanes", "low=found.low // unit * unit,", "low=found.low,"),
        ("places beyond a buffer", "mask = mask & (places < end) if", "mask = mask if"),
        ("several dimensions", "number = number * _span(size) + coordinate", "number = number + coordinate"),
        ("memory of a statement", "        if statement.scratch is not None:\n            found.append", "        if False:\n            found.append"),
        ("what is read alone", "(one.memory.of_grid and one.written)}", "one.memory.of_grid}"),
        ("pieces of a vector", "parts = max(width * buffer.dtype.bytes // granule, 1)", "parts = 1"),
    ),
    *mutants(
        "ir/access.py",
        "test_synchronize",
        ("buffers that overlap", "self.offset < other.offset + other.bytes and", "self.offset + 16 < other.offset + other.bytes and"),
    ),
    *mutants(
        "lower/footprint.py",
        "test_synchronize",
        ("conditions of a block", "grid.environment.keys() - grid.undecided - grid.partly", "grid.environment.keys() - grid.partly"),
        ("names of names", "for var in reversed(tuple(table)):", "for var in tuple(table):"),
        ("when a ring comes round", "bool(loop.period) and (count is None or count > loop.period)", "bool(loop.period) and (count is None or count > 2 * loop.period)"),
        ("places of a period", "return loop.period if count is None else min(count, loop.period)", "return 1 if count is None else min(count, loop.period)"),
        ("twice at one place", "return bool((_turns(loop, alone) > 1).any())", "return bool((_turns(loop, alone) > 2).any())"),
    ),
    *mutants(
        "lower/footprint.py",
        "test_hazards",
        ("conditions of a ring", "grid.environment.keys() - grid.undecided - grid.partly", "grid.environment.keys() - grid.undecided"),
    ),
    *mutants(
        "lower/stabbing.py",
        "test_stabbing",
        ("the order of preference", "for position in preferred:", "for position in reversed(preferred):"),
        ("round the cut", "[(self.number[one] - first) % count for one in arc]", "[(self.number[one] - first) for one in arc]"),
        ("positions left out", "enumerate(sorted(positions))", "zip(sorted(positions), sorted(positions))"),
    ),
    *mutants(
        "lower/stabbing.py",
        "test_hazards",
        ("what a wide barrier meets", "position in arc[0] and arc[1] <= scope", "position in arc[0] and arc[1] == scope"),
        ("arcs in arcs", "other <= arc and scope <= wide for", "other <= arc for"),
        ("as wide as another needs", "if start <= end and scope >= least}", "if start <= end and scope == least}"),
        ("what a barrier leaves", "span[1] <= end and span[2] <= scope", "span[1] <= end"),
    ),
    *mutants(
        "lower/wait.py",
        "test_wait",
        ("one group more", "count - 1 - number", "count - number"),
        ("the strictest wait", "asked.groups = min(asked.groups, groups)", "asked.groups = max(asked.groups, groups)"),
        ("what is complete", "queue.complete = number + 1", "queue.complete = number + 2"),
        ("the end of a period", "(count - length - period) // period * period", "(count - length - period)"),
        ("barriers of a warp", "        if widest.threads is None or widest.threads >= self.kernel.workers:", "        if True:"),
        ("the widest barrier", "widest = max((barrier.scope", "widest = min((barrier.scope"),
        ("behind the commit", "for barrier, count, waited in counts if count > number]", "for barrier, count, waited in counts if count >= number]"),
        ("the last barrier", "barrier, groups, _ = behind[-1]", "barrier, groups, _ = behind[0]"),
        ("loops that may not run", "range(max(extent.low, 0), min(", "range(max(extent.low, 1), min("),
        ("iterations until a loop goes on alike", "return 2 * _period(loop) + 2", "return 1"),
        ("copies that are not made", "        if not all(compiled(test)(values) for test in site.tests):", "        if False:"),
        ("the place in the period", "value % site.turns[name] if name in site.turns else value) for", "0 if name in site.turns else value) for"),
    ),
    *mutants(
        "lower/wait.py",
        "test_products",
        ("what products only read", "if completion is not Completion.GROUP and not touch.access.write:", "if completion is not Completion.GROUP:"),
        ("kinds of groups", "self.queues[statement.completion].open.add", "self.queues[Completion.GROUP].open.add"),
    ),
    *mutants(
        "lower/specialize.py",
        "test_specialize",
        ("bytes of a stage", "size = sum(_brought(one)", "size = max(_brought(one)"),
        ("warps that consume", "consumers=-(-kernel.workers // WARP_THREADS)", "consumers=kernel.workers"),
        ("turns in flight", "return 1 if kernel.workers <= GROUP_THREADS else 0", "return 1"),
        ("a ring of one stage", "min(self.in_flight, self.rings[ring].stages - 1)", "self.in_flight"),
        ("which turn is released", "turn - late, self.first", "turn, self.first"),
        ("before the first release", "all_of((self.first, began))", "self.first"),
        ("the last turns", "for step in reversed(range(late))", "for step in reversed(range(late - 1))"),
        ("one lane speaks", "equal(lane, 0)", "less(lane, as_expr(2))"),
        ("registers that there are", "launched = min(REGISTERS //", "launched = max(REGISTERS //"),
        ("registers of a warp", "if producers < GROUP_THREADS or workers % GROUP_THREADS:", "if workers % GROUP_THREADS:"),
        ("who is the producer", "_produced(program, single), elected=True", "_produced(program, single), elected=False"),
    ),
    *mutants(
        "lower/specialize.py",
        "test_statements",
        ("unknown statements", "elif isinstance(statement, (Let, *FOR_CONSUMERS)):", "elif True:"),
    ),
    *mutants(
        "lower/pipeline.py",
        "test_specialize",
        ("the number of a turn", "number = _turn((*self.around, loop))", "number = _turn((loop,))"),
        ("others than TMA", "if one.completion is not Completion.RING]\n        if others:", "if one.completion is not Completion.RING]\n        if False:"),
    ),
    *mutants(
        "sim/rings.py",
        "test_rings",
        ("parity", "        if over != wanted:\n", "        if False:\n"),
        ("who holds a turn", "if (ring.name, own, held) not in group.held:", "if False:"),
        ("products that read", "            self._require_read(ring, turn, group, where)\n", ""),
        ("which side is held", "and one is side for", "for"),
        ("loads behind a full stage", "if phases.over > before and any(", "if False and any("),
        ("phases at the end", "if phases.left != phases.arrivals or phases.bytes:", "if False:"),
        ("announced bytes", "if self.left == 0 and self.bytes == 0:", "if self.left == 0:"),
    ),
    *mutants(
        "check/races/order.py",
        "test_rings",
        ("what a wait brings", "            agent.own |= phases.known\n            agent.seen |= phases.known\n", ""),
        ("what an arrival brings", ".arrive(agent.seen, agent.over)", ".arrive(0, agent.over)"),
        ("what a load brings", "        self.coming |= operation\n", ""),
        ("waits by parity", "elif event.arrivals is None and phases.over != meant:", "elif False:"),
        ("turns of an agent", "if event.stage != number % event.ring.stages:", "if False:"),
        ("waits for ever", "            if isinstance(event, Turn):\n", "            if False:\n"),
        ("arrivals of a stage", "arrivals = 1 if event.side is Side.FULL else event.ring.consumers", "arrivals = 1"),
    ),
    *mutants(
        "check/races/__init__.py",
        "test_rings",
        ("stores at the end", "del groups[: max(len(groups) - event.groups, 0)]", "groups.clear()"),
        ("stores without a group", "for one in itertools.chain(*groups, issued))", "for one in itertools.chain(*groups))"),
    ),
    *mutants(
        "check/persistence.py",
        "test_persistence",
        ("the number of a tile", "if tiles is None or one.value != block + loop.var * blocks:", "if tiles is None:"),
        ("how many blocks", "if kernel.grid == minimum(tiles, as_expr(blocks)) else None", "if True else None"),
        ("how many turns", "if extent == one // blocks + less(block, one % blocks)), None)", "if True), None)"),
        ("the grid that stands for it", "grid=tiles)", "grid=kernel.grid)"),
        ("tiles known at run time", "first.tile.var.high if count is None", "0 if count is None"),
    ),
    *mutants(
        "executable/tma.py",
        "test_tma",
        ("strides", "as_expr(step).factor * view.dtype.bytes % MULTIPLE or step == ZERO:", "False:"),
        ("strided tiles", "if any(len(dim.modes) != 1 or", "if False and any(len(dim.modes) != 1 or"),
        ("rows of a box", "rows // -(-rows // MOST_ROWS)", "rows"),
        ("the order of an array", "return () if chunks.along == along else (", "return () if True else ("),
        ("the order of a store", "if isinstance(chunks, str) or chunks.along != along:", "if isinstance(chunks, str):"),
        ("coordinates", "found.append(Box(tensor_map.name, coordinates,", "found.append(Box(tensor_map.name, coordinates[::-1],"),
        ("which box", "offset = {along: first, 1 - along: row}", "offset = {along: 0, 1 - along: row}"),
    ),
    *mutants(
        "executable/tma.py",
        "test_batched",
        ("how many dimensions", "if len(steps) not in RANKS:", "if False:"),
        ("distances between matrices", "for axis in _order(view, along)[1:]:", "for axis in _order(view, along)[1:2]:"),
        ("which matrix", "outside.base[axis] + there.get(axis, 0)", "outside.base[axis] * (axis in there) + there.get(axis, 0)"),
    ),
    *mutants(
        "stacks.py",
        "test_matmul",
        ("rows that lie apart", "shape[1] == 1 or steps[0] == shape[1] * steps[1]", "True"),
        ("a matrix that is repeated", "and steps[0] != 0 for shape", "for shape"),
        ("stacks that do not fit", "> 2:\n        raise", "> 3:\n        raise"),
        ("a stack of one", "if stack == 1:", "if False:"),
    ),
    *mutants(
        "lower/products.py",
        "test_products",
        ("names in a batch", "(run and isinstance(statement, Let))", "False"),
        ("loops of products", "return bool(inner) and all(", "return bool(inner) and not all("),
        ("the commit of a batch", "first_writes=True)), *run, Commit(PRODUCT)]", "first_writes=True)), *run]"),
        ("what others touch", "others = self._registers(one for one, _ in inside if one.completion is not PRODUCT)", "others = frozenset()"),
        ("loops that add up", "and flying & others <= used):", "and False):"),
        ("one wait for all", "result.insert(_in_front_of_notes(result), wait)\n                flying = frozenset()\n", "result.insert(_in_front_of_notes(result), wait)\n"),
        ("what an iteration leaves", "inner, behind = self.run(statement.body, flying | behind)", "inner, behind = self.run(statement.body, flying)"),
        ("notes", "result.insert(_in_front_of_notes(result), wait)", "result.append(wait)"),
    ),
    *mutants(
        "lower/fence.py",
        "test_products",
        ("the first barrier", "                    self.written = {}\n", ""),
        ("what iterations leave", "                    self.follow(statement.body)\n                    self.follow(statement.body)", "                    self.follow(statement.body)"),
        ("what is under way", "if statement.asynchronous:", "if False:"),
        ("groups of copies", "self.under_way if statement.completion is Completion.GROUP else {}", "self.under_way"),
        ("what engines read", "if one.write and one.buffer in self.read}", "if one.write}"),
        ("reads", "if one.write and one.buffer in self.read}", "if one.buffer in self.read}"),
    ),
    *mutants(
        "check/products.py",
        "test_products",
        ("groups under way", "used & self.open.union(*self.groups)", "used & self.open"),
        ("products not committed", "used & self.open.union(*self.groups)", "used & set().union(*self.groups)"),
        ("touches before a fence", "                    self.touched |= used\n", ""),
        ("which fence", "case Fence(reach=Reach.REGISTERS):", "case Fence(reach=Reach.PROXY):"),
        ("which wait", "case Wait(completion=Completion.PRODUCT, groups=groups):", "case Wait(groups=groups):"),
        ("how many groups", "max(len(self.groups) - groups, 0)", "max(len(self.groups) - groups + 1, 0)"),
        ("without a commit", "for name in self.open:", "for name in ():"),
        ("iterations", "for _ in range(self.turns if count is None", "for _ in range(1 if count is None"),
    ),
    *mutants(
        "check/races/order.py",
        "test_products",
        ("what is hidden", "met & self.written & ~(agent.fenced | late)", "met & self.written & ~(self.written | late)"),
        ("what a fence covers", "agent.fenced |= agent.own & agent.wrote", "agent.fenced |= agent.own"),
        ("what is under way is not fenced", "agent.fenced |= agent.own & agent.wrote", "agent.fenced |= agent.wrote"),
        ("fences of registers", "if event.reach is Reach.PROXY:", "if True:"),
        ("what others fenced", "            fenced |= one.fenced\n", ""),
        ("forgotten before it is fenced", "and not self.written & ~fenced:", "and True:"),
    ),
    *mutants(
        "ir/chunks.py",
        "test_wgmma",
        ("the phase of a swizzle", "return all(start % period == 0 for start in starts)", "return True"),
        ("the swizzle of a span", "return Swizzle(bits, (PIECE // element).bit_length() - 1, 3)", "return Swizzle(bits, (PIECE // element).bit_length() - 1, 4)"),
        ("where chunks begin", "(1, rows * width))", "(1, rows * width + 8))"),
        ("groups of rows", "group = rows[GROUP] if len(rows) > GROUP else", "group = rows[1] if len(rows) > GROUP else"),
    ),
    *mutants(
        "executable/wgmma.py",
        "test_wgmma",
        ("who holds accumulators", "((2, n, 1), (2, m, 8), (columns // 8, n, 8))", "((2, m, 8), (2, n, 1), (columns // 8, n, 8))"),
        ("widths of bytes", "step = 16 if self.factors[0] == int8 and columns > 32 else 8", "step = 8"),
        ("bytes across k", "if view.dtype.bytes != 2:", "if False:"),
        ("which factor is transposed", "for name in (self.left, self.right))\n        columns", "for name in (self.right, self.left))\n        columns"),
        ("the mode of a swizzle", "MODES = {128: 1, 64: 2, 32: 3, 16: 0}", "MODES = {128: 1, 64: 3, 32: 2, 16: 0}"),
        ("whose strides", "{one.chunk_stride}, {one.group_stride}", "{one.group_stride}, {one.chunk_stride}"),
        ("across k for bytes", "along = fastest if element == 2 else along_k", "along = fastest"),
        ("the span of a tile", "whole[along] if along == along_k else tile[along]), element)", "whole[along]), element)"),
    ),
    *mutants(
        "cuda/expressions.py",
        "test_cuda_expressions",
        ("64 bits", "        if extreme > INT_MAX:", "        if extreme > 2 * INT_MAX:"),
        ("parentheses", 'return f"({text})" if binds < place else text', 'return f"({text})" if binds < Binds.SUM else text'),
        ("divisors", '{_dividend(left)} % {operand(right, Binds.FACTOR)}"', '{_dividend(left)} % {operand(right, Binds.PRODUCT)}"'),
        ("negative dividends", "    if left.low < 0:\n        raise", "    if left.low < -1000000:\n        raise"),
    ),
    *mutants(
        "cuda/statements.py",
        "test_cuda_text",
        ("loops of one turn", "substituted(statement.body, {statement.var: 0})", "substituted(statement.body, {statement.var: 1})"),
        ("conditions on a loop's variable", "for part in parts) and c.variables().isdisjoint(bound))", "for part in parts))"),
        ("registers at run time", "unroll = statement.unroll or self._indexes_registers(statement)", "unroll = statement.unroll"),
    ),
    *mutants(
        "check/alignment.py",
        "test_alignment",
        ("where a vector begins", "wrong = ((first % piece.width != 0) | (addresses", "wrong = ((addresses"),
        ("neighbours", "| (addresses - first != np.arange(piece.width))).any", "| (addresses - first < 0)).any"),
        ("where a buffer begins", "if _begins_at(buffer) % size:\n                return", "if False:\n                return"),
        ("lives that meet", "apart = end < other_begin or other_end < begin", "apart = end <= other_begin or other_end <= begin"),
        ("the end of shared memory", "<= end <= self.kernel.shared_bytes", "<= end <= self.kernel.shared_bytes + 64"),
        ("swizzles that reach into a vector", "storage.swizzle.base < width:", "storage.swizzle.base + 1 < width:"),
        ("whole at an edge", "span = (max(steps) - min(steps)).bit_length()", "span = (max(steps) - min(steps)).bit_length() - 1"),
        ("where a row begins", "start = start + _value(coordinate, digit) * self.known.of(as_expr(digit.weight))", "start = start + _value(coordinate, digit)"),
        ("copies of odd length", "(self.known.of(access.copy) * self.known.of(buffer.elements)).trailing_zeros >= width", "True"),
    ),
    *mutants(
        "check/known_bits.py",
        "test_alignment",
        ("carries", "(other.zeros | other.ones) & carries & WORD", "(other.zeros | other.ones) & WORD"),
        ("bits of a product", "known = min(self.trailing + other.trailing_zeros,", "known = min(self.trailing + other.trailing,"),
        ("negative quotients", "if left.low >= 0 else known", "if True else known"),
        ("the largest value", "~((1 << high.bit_length()) - 1)", "~((1 << high.bit_length() - 1) - 1)"),
        ("remainders by other numbers", "mask = (1 << self.of(right).trailing_zeros) - 1", "mask = (1 << self.of(right).trailing_zeros + 1) - 1"),
        ("either value", "Bits(self.zeros & other.zeros, self.ones & other.ones)\n\n    def also", "Bits(self.zeros & other.zeros, self.ones | other.ones)\n\n    def also"),
    ),
    *mutants(
        "check/bounds.py",
        "test_check",
        ("a bound at an edge", "first.factor % width == 0 and bound.factor % width == 0", "first.factor % width == 0"),
        ("a vector at an edge", "first.factor % width == 0 and bound.factor % width == 0", "bound.factor % width == 0"),
        ("the end of a buffer", "_last_of_span(most, storage.swizzle) < total.low", "_last_of_span(most, storage.swizzle) <= total.low"),
        ("the last address", "bad = (values < 0) | (values >= limit)", "bad = (values < 0) | (values > limit)"),
        ("the last coordinate", "self._below(one.right, extent + 1)", "self._below(one.right, extent + 2)"),
        ("loose ranges", "if let.value.low >= let.var.low and let.value.high <= let.var.high:", "if let.value.low >= let.var.low:"),
        ("the largest digit", "return count - 1 if total is not None and count * divisor == total else None", "return count - 1 if total is not None else None"),
        ("the span of a swizzle", "return address // span * span + span - 1", "return address"),
    ),
    *mutants(
        "check/blocks.py",
        "test_batched",
        ("which matrix a block has", "if not _recovered(floordiv(block, count), frozenset(atom for atom, _ in others), 6):", "if False:"),
        ("the tile within a matrix", "        block = mod(block, count)\n", ""),
    ),
    *mutants(
        "check/bounds.py",
        "test_batched",
        ("tiles of blocks that stay", "**{one.tile.var.name: one.tiles for one in self.persistence}", "**{}"),
        ("what is compared with bounds", "if bound is not None for value in (base, bound))", "if bound is not None for value in (bound,))"),
    ),
    *mutants(
        "check/blocks.py",
        "test_check",
        ("tiles that touch", "if abs(step) < width:", "if abs(step) < width - 1:"),
        ("the reach of an access", "min(rest.low for rest in rests) + reach + 1", "min(rest.low for rest in rests) + 1"),
        ("digits below", "width += abs(step) * (value.high - value.low)", "width = abs(step)"),
        ("atomic and plain", "not all(use.atomic for use in uses)", "not any(use.atomic for use in uses)"),
        ("a digit of the block that is lost", "return _recovered(next((var for part in offset for var in part.variables() if var.name == \"block\"), None), frozenset(known), 6)", "return True"),
        ("tiles a step apart", "all(step == 0 or width <= step for", "all(step == 0 or width <= step + 1 for"),
        ("boxes that meet", "all(step == 0 or width <= step for", "all(True for"),
    ),
    *mutants(
        "check/banks.py",
        "test_check",
        ("phases", "return 32 if width <= 4 else 16 if width <= 8 else 8", "return 32 if width <= 4 else 16"),
        ("idle lanes", "    fresh &= words >= 0\n", ""),
        ("one word for several lanes", "fresh[:, 1:] = words[:, 1:] != words[:, :-1]", "fresh[:, 1:] = True"),
        ("pads of whole vectors", "if pad % unit == 0:", "if True:"),
        ("swizzles one bit up", "for low in range(base, base + 4):", "for low in range(base + 1, base + 5):"),
        ("any repair", "if cost == ideal and _free(padded, requests):", "if cost < now:"),
    ),
    *mutants(
        "check/coalescing.py",
        "test_check",
        ("idle lanes", "moved = _distinct(np.where(active[:, :, None], pieces // SECTOR, -1))", "moved = _distinct(pieces // SECTOR)"),
        ("what would do", "return moved, -(-wanted // SECTOR)", "return moved, wanted // SECTOR"),
        ("poor", "poor = count > 2 * least", "poor = count > 16 * least"),
        ("the other order", '(("ColMajor", 0), ("RowMajor", 1))', '(("ColMajor", 1), ("RowMajor", 0))'),
    ),
    *mutants(
        "check/resources.py",
        "test_inspect",
        ("whole partitions", "target.registers_per_sm // partitions // each * partitions // warps", "target.registers_per_sm // each // warps"),
        ("what the system takes", "(128, RESERVED_SHARED) if target.capability >= 80 else (256, 0)", "(128, 0) if target.capability >= 80 else (256, 0)"),
        ("units of registers", "each = _rounded(max(registers, 1) * 32, REGISTER_UNIT)", "each = max(registers, 1) * 32"),
        ("several resident blocks", "_partitions(target)) * max(kernel.resident, 1)", "_partitions(target))"),
    ),
    *mutants(
        "check/resources.py",
        "test_check",
        ("buffers beyond the kernel's memory", "if top > kernel.shared_bytes:", "if False:"),
        ("the most threads", "if kernel.threads > limit:", "if kernel.threads > limit + 1:"),
        ("registers that overflow", "if estimate > limit:", "if estimate > 2 * limit:"),
        ("the least of all limits", "reason = min(limits,", "reason = max(limits,"),
    ),
    *mutants(
        "check/ineffective.py",
        "test_ineffective",
        ("which refinement", "        if point.require:", "        if not point.require:"),
        ("which load", 'name, buffer = "no_sync", point.subject', 'name, buffer = "no_sync", None'),
        ("which line", "message, point.origin, None,", "message, None, None,"),
    ),
    *mutants(
        "check/scene.py",
        "test_check",
        ("names of names", "found |= self.roots(self.lets[var.name]) if var.name in self.lets else {var.name}", "found |= {var.name}"),
        ("the edge", "mask &= step < room[..., None]", "mask &= step <= room[..., None]"),
        ("conditions that are not known", "(kept if self.roots(condition) <= known else assumed).append(condition)", "kept.append(condition)"),
        ("two meanings", "!= one.value:\n                raise", "!= one.value and False:\n                raise"),
    ),
    *mutants(
        "check/races/order.py",
        "test_races",
        ("a write behind a read", "Kind.WRITE: (Kind.WRITE, Kind.READ, Kind.ADD),", "Kind.WRITE: (Kind.WRITE, Kind.ADD),"),
        ("groups that a wait leaves", "max(len(groups) - event.groups, 0)", "max(len(groups) - event.groups + 1, 0)"),
        ("who arrives", "if len(arrived) < len(members):", "if len(arrived) < len(members) - 1:"),
        ("copies under way", "        elif event.under_way:\n            agent.issued[", "        elif False:\n            agent.issued["),
        ("an addition behind a read", "Kind.ADD: (Kind.WRITE, Kind.READ),", "Kind.ADD: (Kind.WRITE,),"),
        ("an addition behind a write", "Kind.ADD: (Kind.WRITE, Kind.READ),", "Kind.ADD: (Kind.READ,),"),
        ("a read behind an addition", "Kind.READ: (Kind.WRITE, Kind.ADD),", "Kind.READ: (Kind.WRITE,),"),
        ("a write behind an addition", "Kind.WRITE: (Kind.WRITE, Kind.READ, Kind.ADD),", "Kind.WRITE: (Kind.WRITE, Kind.READ),"),
        ("forgotten too soon", "if len(members) == len(self.agents) and known ==", "if known =="),
        ("copies under way are not known", "known == everything and", "True and"),
    ),
    *mutants(
        "check/races/__init__.py",
        "test_races",
        ("arrays in global memory", "return buffer.memory.of_block or (buffer.memory.of_grid and buffer.written)", "return buffer.memory.of_block"),
        ("a single thread", "if scene.kernel.workers == 1:", "if scene.kernel.workers <= 32:"),
        ("additions of one statement", "kinds not in ({Kind.READ}, {Kind.ADD})", "kinds not in ({Kind.READ},)"),
        ("reads of one statement", "kinds not in ({Kind.READ}, {Kind.ADD})", "kinds not in ({Kind.ADD},)"),
        ("addresses that depend on a block", "            if foreign:", "            if False:"),
    ),
    *mutants(
        "check/races/__init__.py",
        "test_check",
        ("blocks", "findings = [*_inside_a_block(scene), *between_blocks(scene)]", "findings = _inside_a_block(scene)"),
    ),
    *mutants(
        "check/__init__.py",
        "test_alignment",
        ("what decides", "*check_bounds(scene), *check_alignment(scene)))", "*check_bounds(scene)))"),
    ),
    *mutants(
        "check/finding.py",
        "test_check",
        ("the order of findings", "key=lambda one: (SEVERITIES.index(one.severity), one.kind)", "key=lambda one: one.kind"),
        ("numbers of NumPy", '    if hasattr(value, "item"):\n        return value.item()\n', ""),
        ("the line of an access", "return access.origin or statement.origin", "return statement.origin or access.origin"),
    ),
    *mutants(
        "check/races/atoms.py",
        "test_races",
        ("sums that are equal by chance", "if any((warps_of != warps_of[alike]).any() for warps_of in touched):", "if False:"),
        ("where touches begin", "begins[one.changes + (one.first - start)] = True", "begins[one.first - start] = True"),
        ("the warps of an atom", "(touched[held] >> np.arange(warps", "(touched[held] << np.arange(warps"),
    ),
    *mutants(
        "check/races/places.py",
        "test_races",
        ("whole grains", "return bits % grain == 0 and len(", "return len("),
        ("shifts of whole grains", "if not any(shift % grain for shift in shifts)\n            and all(", "if all("),
        ("who acts together", "unit[other] != unit if other_unit else", "unit[other] == unit if other_unit else"),
        ("twice by one thread", "(other != numbers) & (unit[other] == unit)", "(other != numbers) & False"),
        ("the last lane of a warp", "np.minimum(first + WARP - 1, threads[-1])", "np.minimum(first, threads[-1])"),
        ("conditions of elements", "inside[..., elements] &=", "inside[..., elements] |="),
    ),
    *mutants(
        "check/races/loops.py",
        "test_races",
        ("iterations that decide", "kept = (period or 1) + max(period or 1, groups) + 2", "kept = 1"),
        ("addresses that repeat", "part.substitute({var: free + period}) != part.substitute({var: free})", "False"),
        ("steps that meet", "+ last + 1) // abs(step) + 1)", "+ last + 1) // (4 * abs(step)) + 1)"),
        ("what begins late", "if step is None or step < 0:", "if step is None:"),
        ("loops that may not run", "low, high = max(extent.low, 0), extent.high", "low, high = max(extent.low, 1), extent.high"),
        ("cut at the same place in the period", "cut = max(end - start - kept, 0) // period * period", "cut = max(end - start - kept, 0)"),
    ),
    *mutants(
        "check/races/segments.py",
        "test_races",
        ("a grain twice", "        if once and shape.doubled:", "        if False:"),
        ("several executions", "return 0 if event.step == _SEVERAL else super()._ordered_within(event)", "return super()._ordered_within(event)"),
        ("executions that are one", "return step if all(one.step == step for one in touches) else _SEVERAL", "return step"),
        ("copies under way", "touch.kind, touch.under_way, touch", "touch.kind, False, touch"),
        ("what is noted", "        self.late = True", "        self.late = False"),
    ),
    *mutants(
        "check/races/traces.py",
        "test_races",
        ("what acts together", "self.steps += not statement.collective", "self.steps += 1"),
        ("each statement", "self.steps += not statement.collective", "self.steps += 0"),
        ("conditions that do not hold", "walk.fixed, walk.lengths) is not False for", "walk.fixed, walk.lengths) is True for"),
        ("what is under way", "return completion is not Completion.NONE and self.use.access.write", "return False"),
    ),
    *mutants(
        "check/races/findings.py",
        "test_races",
        ("what is trusted", 'severity="warning") if one.severity', 'severity="note") if one.severity'),
        ("undecided", "        if not real:", "        if False:"),
        ("what is real", "            if real:\n                break", "            if True:\n                break"),
        ("why", "UNDER_WAY if race.under_way else BETWEEN", "BETWEEN"),
        ("who comes first", "ordered = points if points[0].thread <= points[1].thread", "ordered = points if points[0].thread > points[1].thread"),
        ("blocks that are tried", "for block in dict.fromkeys((0, 1, count - 1)):", "for block in (0,):"),
    ),
    *mutants(
        "ir/verifier.py",
        "test_verifier",
        ("threads without work", "if kernel.threads != kernel.workers and", "if kernel.threads < kernel.workers and"),
        ("names of buffers", "if len(set(names)) != len(names):", "if False:"),
        ("names that differ between threads", "divergent = divergent | {var}", "divergent = divergent"),
        ("the end of a range", "var.high < extent.high - 1:", "var.high < extent.high - 2:"),
        ("loops of unknown length", "if constant(extent) is not None and var.high", "if var.high"),
        ("names in a loop", "_verify_list(kernel, statement.body, {**scope, var.name: var}, divergent, final)", "_verify_list(kernel, statement.body, {**scope, var.name: var}, frozenset(), final)"),
        ("groups of a part of the block", "(group.threads or 0) > 32 and kernel.workers %", "(group.threads or 0) > 128 and kernel.workers %"),
        ("no group", "if groups < 0:", "if groups < -1:"),
        ("a name bound twice", "if var.name in scope:", "if False:"),
        ("another variable of that name", "is not var and known != var]", "is None]"),
        ("operands", "if len(statement.accesses) != len(statement.spec.operands):", "if len(statement.accesses) > len(statement.spec.operands):"),
        ("rank", "if not len(access.base) == len(access.modes) == len(access.bounds) == rank:", "if not len(access.base) == len(access.modes) == rank:"),
        ("inputs", "and not table[access.buffer].written:", "and False:"),
        ("elements left out", "if piece.first != reached or piece.width < 1:", "if piece.first < reached or piece.width < 1:"),
        ("elements twice", "if piece.first != reached or piece.width < 1:", "if piece.first > reached or piece.width < 1:"),
        ("elements at the end", "        if reached != count:", "        if reached > count:"),
        ("what is no condition", "piece.condition.low < 0 or piece.condition.high > 1", "piece.condition.low < 0"),
        ("holes", "case Hole(child=child) if final:", "case Hole(child=child) if False:"),
        ("sync points", "case SyncPoint(subject=subject) if final:", "case SyncPoint(subject=subject) if False:"),
    ),
    *mutants(
        "check/races/meetings.py",
        "test_races",
        ("strangers in a warp", "(low != high) | (least != most) | (low != least)", "(low != high) | (least != most)"),
        ("several threads before", "(low != high) | (least != most) | (low != least)", "(least != most) | (low != least)"),
        ("several threads behind", "(low != high) | (least != most) | (low != least)", "(low != high) | (low != least)"),
        ("footprints of one statement", "        if one is other:\n            return one.pattern.strangers", "        if True:\n            return one.pattern.strangers"),
        ("units that meet", "units[mine][:, None] != other_units[theirs][None, :]", "units[mine][:, None] == other_units[theirs][None, :]"),
        ("the element of a message", "column // pattern.columns, shape[1:]", "column // pattern.columns * 0, shape[1:]"),
    ),
    *mutants(
        "refine/swizzle.py",
        "test_pipeline",
        ("one bit short", "bits, source = min(3, row - PIECE)", "bits, source = min(2, row - PIECE)"),
        ("short rows", "max(row, LINE)", "row"),
    ),
    *mutants(
        "values/layout/swizzles.py",
        "test_layout",
        ("a swizzle one bit short", "    mask = (1 << swizzle.bits) - 1", "    mask = (1 << swizzle.bits - 1) - 1"),
        ("a swizzle of arrays one bit short", "mask, by = (1 << self.bits) - 1", "mask, by = (1 << self.bits - 1) - 1"),
        ("a swizzle upside down", "source, target = (low, high) if swizzle.shift < 0", "source, target = (low, high) if swizzle.shift > 0"),
    ),
    *mutants(
        "ir/holding.py",
        "test_holding",
        ("a fixed coordinate", "(first - start) // stride % size", "first // stride % size"),
    ),
    *mutants(
        "executable/follow.py",
        "test_holding",
        ("those that hold the same", "if all(self.spec.operands[name].memory.private for name in self.spec.outputs):", "if True:"),
        ("digits over an end", "if one.dim != dim or not one.stride < end < one.end:", "if True:"),
    ),
    *mutants(
        "ir/holding.py",
        "test_distribute",
        ("who owns a sum", "return access.write and statement.accumulate != FALSE", "return access.write"),
    ),
    *mutants(
        "language/tree.py",
        "test_contracts",
        ("registers that are stored to", "fresh = _in_registers((child.spec,)) - _in_registers((spec,))", "fresh = _in_registers((child.spec,))"),
    ),
    *mutants(
        "values/units.py",
        "test_graphene_kernels",
        ("any group of as many threads", "    return index_in(one) == index_in(other)", "    return True"),
        ("what a thread of a warp is called", 'one.label if one.parent == level else f"{level.label}_{word}"', 'f"{level.label}_{word}"'),
    ),
    *mutants(
        "executable/by_lanes.py",
        "test_graphene_kernels",
        ("levels by their names", "() if same_threads(spec.level, level) else", "() if spec.level == level else"),
    ),
    *mutants(
        "refine/storage_layout.py",
        "test_graphene_kernels",
        ("the layout that was asked for", "return attrs.evolve(plan, layout=self.layout)", "return plan"),
    ),
    *mutants(
        "lower/chain.py",
        "test_chained",
        ("where the wait of a chain stands", "return any(kernel.buffer(access.buffer).memory.of_grid for access in inside)", "return True"),
        ("outputs that are zero before", "    if kernel.zeroed:", "    if False:"),
    ),
    *mutants(
        "ir/verifier.py",
        "test_chained",
        ("what stands before the wait of a chain", "        if touched:", "        if False:"),
        ("links in loops and roles", "    if links != inside or ", "    if "),
    ),
    *mutants(
        "cuda/frame.py",
        "test_chained",
        ("inputs that are written while a kernel waits", '"* " if chained else', '"* " if False else'),
    ),
    *mutants(
        "gpu/launch.py",
        "test_chained",
        ("the attribute of a chained launch", "_PROGRAMMATIC_SERIALIZATION = 6", "_PROGRAMMATIC_SERIALIZATION = 5"),
        ("the stream of a chained launch", "        config.stream = stream\n", ""),
    ),
    *mutants(
        "draw/ring.py",
        "test_draw",
        ("when a stage is free", "free = self.released[place - self.ring.stages] if", "free = 0 if"),
    ),
    *mutants(
        "inspect/synchronization.py",
        "test_explain_sync",
        ("the phase that is waited for", "phase {(round_ + 1) % 2}", "phase {round_ % 2}"),
        ("which ring's buffers", "if x.buffer == y.buffer and x.buffer in ring.buffers", "if x.buffer in ring.buffers"),
    ),
    *mutants(
        "lower/covered.py",
        "test_fused_vectors",
        ("the greatest coordinate", "(moving.high // step * step + step - 1)", "(moving.low // step * step + step - 1)"),
        ("all of a warp", "return bool((values == values[:, :1]).all())", "return True"),
        ("turns of loops of its own", "        if not value.variables().isdisjoint(own):", "        if False:"),
        ("the strongest of several", "if all(gap is None or gap > 0", "if all(gap is None or gap < 0"),
        ("copies whose conditions a loop changes", "return parts if changing and len(parts)", "return parts if len(parts)"),
    ),
    *mutants(
        "cuda/versions.py",
        "test_fused_vectors",
        ("which version", "edited(taken, plain), outside), *run", "outside, edited(taken, plain)), *run"),
        ("other conditions", "or whole == whole_of(run[0])):", "or whole != FALSE):"),
        ("versions in loops", "tuple(map(_listed, statement.children))) if statement.children", "tuple(map(_listed, statement.children))) if False"),
    ),
    *mutants(
        "lower/clamp.py",
        "test_ahead",
        ("readers that do not clamp", "or not all(_reads(one, name)", "or not any(_reads(one, name)"),
        ("readers elsewhere", "if outside or not behind", "if not behind"),
        ("loops around", "return not repeated or (", "return True or ("),
        ("all registers", "return count == len(registers) == constant(buffer.elements)", "return True"),
    ),
    *mutants(
        "refine/ahead.py",
        "test_ahead",
        ("turned off", "ahead=self.fetched)", "ahead=True)"),
    ),
    *mutants(
        "lower/pipeline.py",
        "test_ahead",
        ("stages of what is filled once", "2 if self.around else 1\n", "1\n"),
        ("which stage is filled", "_staged(body, buffers, stages, mod(number, as_expr(stages)))", "_staged(body, buffers, stages, as_expr(0))"),
        ("what the same statements use", "together.setdefault(tuple(users), [])", "together.setdefault((), [])"),
    ),
    *mutants(
        "lower/specialize.py",
        "test_ahead",
        ("the last use of a turn", "(uses[0], uses[-1] + 1) if uses", "(uses[0], uses[0] + 1) if uses"),
        ("one announcement", "statement.ring in single and statement.ring not in announced", "statement.ring in single"),
        ("products that read what is filled once", "0 if by_engine else None)\n        release", "None)\n        release"),
        ("who has read what is filled once", "*used, *done, release, *kept[last:]", "*used, release, *done, *kept[last:]"),
    ),
    *mutants(
        "lower/specialize.py",
        "test_turns",
        ("who is the producer of groups", "_by_one_group), elected=True", "_by_one_group), elected=False"),
    ),
    *mutants(
        "decomp/unseen.py",
        "test_fused_masks",
        ("sums of what is hidden", '{"sum": ZERO, "prod": ONE}.get', '{"prod": ONE}.get'),
        ("zero times infinity", 'case "*" if right == ZERO and self._finite(left):', 'case "*" if right == ZERO:'),
        ("signs of factors", 'case "*" | "/" if left in (LEAST, INFINITY) and self._positive(right):', 'case "*" | "/" if left in (LEAST, INFINITY):'),
        ("infinities that are less", "return False if (right == LEAST and", "return True if (right == LEAST and"),
        ("values that are finite", "return isinstance(value, Element) or (value.name in KEEP_FINITE and", "return isinstance(value, Element) or (True and"),
    ),
    *mutants(
        "decomp/partial.py",
        "test_fused_partial",
        ("steps with strategies", "        if made.strategy_of(self.name) is not None:", "        if False:"),
        ("how many parts", "(as_expr(self.parts),)", "(as_expr(self.parts // 2),)"),
    ),
    *mutants(
        "specs/partial.py",
        "test_fused_partial",
        ("where parts begin", "if ordered or value.value == neutral(by, float64) else", "if True else"),
        ("quotients of sums", '"/": ((PART, WHOLE),),', '"/": ((PART, WHOLE), (WHOLE, PART)),'),
        ("what is completed again", "            self.complete -= {(formula.output", "            self.complete - {(formula.output"),
        ("maxima of sums", 'if value.name not in ("max", "min") or value.name == by else', "if True else"),
    ),
    *mutants(
        "decomp/hidden.py",
        "test_ragged",
        ("the last element of a tile", "bound.parts(views, last=True,", "bound.parts(views, last=False,"),
        ("the edge of a turn", "all_of(less(taken, added + 1)", "all_of(less(taken, added)"),
        ("several conditions", "        if any(one != known[0] for one in known):", "        if False:"),
        ("what keeps its result", "value.arguments[2] == step.formula.target:", "True:"),
        ("who takes the turns", "    if spec.level.is_below(Block):", "    if False:"),
        ("what a hidden turn changes", "    require_neutral(made, mask, spec)\n", ""),
    ),
    *mutants(
        "check/counted.py",
        "test_ragged",
        ("shared memory that a turn moves", "            if shared and any(", "            if False and any("),
        ("barriers behind", "body=(attrs.evolve(inner, extent=ONE), *barriers))", "body=(attrs.evolve(inner, extent=ONE),))"),
    ),
    *mutants(
        "decomp/region.py",
        "test_fused_skip",
        ("what a step makes", "not (after == before or is_number)", "False"),
        ("steps between", "        values.perform(step)\n        if step.name not in", "        if step.name not in"),
        ("what is read before it is set", "(number is not None and step.formula.output in touched)", "False"),
        ("numbers", "set_before = () if number is None else ((step, number),)", "set_before = ()"),
        ("regions that are not one", "            continue\n        kept = [both", "            pass\n        kept = [both"),
        ("regions that are one", "        kept = [both if one == first else one for one in kept if one != second]\n", ""),
        ("whole warps", "if (context.workers or 0) % WARP:", "if False:"),
        ("who has the elements", "if not alike or held_otherwise(following, context):", "if False:"),
    ),
    *mutants(
        "decomp/steps.py",
        "test_fused_skip",
        ("where it is needed", "(skipped.condition, Number(0), Number(1))", "(skipped.condition, Number(1), Number(0))"),
        ("asked once", "        if skipped not in self.asked:", "        if True:"),
        ("memory that others see", "        if wrong is not None:\n            raise DecompositionError(\n                f\"skip:", "        if False:\n            raise DecompositionError(\n                f\"skip:"),
        ("who asks decides nothing", "alone=())  # it asks", "alone=self.children[-1].alone)  # it asks"),
    ),
    *mutants(
        "cuda/statements.py",
        "test_fused_skip",
        ("predicates in the place of a branch", '[Noted("__syncwarp();", "a branch"), *self._list(statement.body)]', "self._list(statement.body)"),
        ("one lane for all", 'f"__any_sync(0xffffffff, {', 'f"__all_sync(0xffffffff, {'),
    ),
    *mutants(
        "sim/chunk.py",
        "test_fused_skip",
        ("who leaves a region out", "return ~asked[warps]", "return asked[warps]"),
        ("what a warp has", "np.where(where, values, memory.data[rows])", "memory.data[rows]"),
    ),
    *mutants(
        "ir/verifier.py",
        "test_fused_skip",
        ("barriers in a region", "if not isinstance(one, (Exec, For, Let, Comment, Hole)):", "if False:"),
        ("several threads in a region", "if isinstance(one, Exec) and one.spec.level.threads != 1:", "if False:"),
        ("who speaks for a warp", "if role.elected and any(isinstance(one, Skip)", "if False and any(isinstance(one, Skip)"),
    ),
    *mutants(
        "refine/last_first.py",
        "test_fused_orders",
        ("tiles side by side", 'chosen(self.together, "last_first: together", 0, MOST)', '0 * chosen(self.together, "last_first: together", 0, MOST)'),
    ),
    *mutants(
        "decomp/tile.py",
        "test_fused_orders",
        ("the last tile", "index = positive(digit.size - index) - 1 if", "index = positive(digit.size - index) if"),
        ("which tiles are side by side", "digits = [*beside, *ordered, *rest]", "digits = [*ordered, *beside, *rest]"),
    ),
    *mutants(
        "check/blocks.py",
        "test_fused_orders",
        ("digits that count down", "return _counted(scene, terms[0][0][0])", "return value"),
        ("digits that are at least one", "if isinstance(value, Positive) else value", "if False else value"),
    ),
    *mutants(
        "lower/chain.py",
        "test_chained_ready",
        ("fewer turns than stages", "extent=minimum(loop.extent, stages),", "extent=loop.extent * 0 + stages,"),
        ("the turns behind", "attrs.evolve(loop, first=stages),)", "attrs.evolve(loop, first=stages - 1),)"),
        ("what waits", "(first, Chain(Link.WAIT), turns(*lets, *rest), *behind)", "(first, turns(*lets, *rest), Chain(Link.WAIT), *behind)"),
        ("both factors ready", "if not ready or not rest:", "if not ready:"),
        ("what is ready", "(statement.accesses[0].buffer in kernel.ready) is ready", "(statement.accesses[0].buffer in kernel.ready) is not ready"),
    ),
    *mutants(
        "specs/terms.py",
        "test_fused_terms",
        ("names that are taken", "        while name in self.taken:", "        while False:"),
        ("products of matrices", "elif sides and all(own):", "elif sides and any(own):"),
        ("too many terms", "if read and every not in read:", "if False:"),
    ),
    *mutants(
        "decomp/repack.py",
        "test_repack",
        ("rows of whole lines", "(MULTIPLE if short else LINE) //", "MULTIPLE //"),
        ("short rows", "short = length is not None and length * view.dtype.bytes < LINE", "short = False"),
        ("rows known at run time", "short = length is not None and length *", "short = length is None or length *"),
        ("matrices of a stack", "steps[axis], weight = weight, weight * view.shape[axis]", "steps[axis], weight = weight, weight * view.shape[along]"),
    ),
    *mutants(
        "language/library.py",
        "test_hopper",
        ("rows that lie across lines", "% (LINE_BYTES // view.dtype.bytes) != ZERO for", "% (LINE_BYTES // view.dtype.bytes) == ZERO for"),
        ("older targets", "if target.name != WARPGROUP_ARCHITECTURE or", "if"),
        ("the fastest first", "key=lambda choice: estimated_us(work, choice[1]))[:MOST_TILES]", "key=lambda choice: -estimated_us(work, choice[1]))[:MOST_TILES]"),
        ("what is worth a copy", "return WORTH_A_COPY not in sizes and", "return True or"),
    ),
    *mutants(
        "language/library.py",
        "test_tiles_chosen",
        ("steps of other types", "values[\"bk\"] * other // spec.A.dtype.bytes", "values[\"bk\"]"),
    ),
]  # fmt: skip

assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the package, its strategies and its tests."""
    folder = tmp_path_factory.mktemp("mutants")
    for part in PARTS:
        shutil.copytree(HERE / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(HERE / name, folder / name)
    return folder


def outcome(folder, nearest):
    """What pytest returns for a test file of the copy, and the end of what it says; no mutant outlives its time."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FIREIRON_", "PYTEST_"))}
    environment |= {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not gpu", nearest]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1200)
    return done.returncode, done.stdout[-2000:]


def mutated(text, mutant):
    """The module's text with the mutant in it."""
    assert text.count(mutant.old) == 1, f"adapt this mutant: {mutant.old!r} stands {text.count(mutant.old)} times in {mutant.module}"
    return text.replace(mutant.old, mutant.new)


@pytest.mark.parametrize("nearest", sorted({mutant.nearest for mutant in MUTANTS}))
def test_the_copy_passes_as_it_is(copy, nearest):
    """Without a mutant the nearest file passes there: what fails below fails because of the mutant."""
    code, said = outcome(copy, nearest)
    assert code == 0, said


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_nearest_file_notices(copy, mutant):
    path = copy / "fireiron" / mutant.module
    whole = path.read_text(encoding="utf-8")
    path.write_text(mutated(whole, mutant), encoding="utf-8")
    try:
        code, said = outcome(copy, mutant.nearest)
    finally:
        path.write_text(whole, encoding="utf-8")
    assert code == FAILED, f"{mutant.nearest} does not notice: {mutant.old!r} -> {mutant.new!r}\n{said}"
