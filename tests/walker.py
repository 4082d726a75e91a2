"""Random strategies from what the extensions offer: a walk down the tree that picks, at each open node, among all steps and all refinements
of the language, with the parameters that their `choices` give.

The walker needs no verb by name: the names below are only probabilities (`USUAL`, `AT`), and a new file gets the default one. To arrive, a
walk has a goal, the spec of an instruction that its file or `performed` states; it takes only steps from which that spec can still be
reached. `wanted` are features that a draw must have: those of rare pairs.
"""

import functools
import itertools
import random

import attrs
from performed import own_spec

import fireiron
from fireiron import *
from fireiron import decomp, executable, refine
from fireiron.errors import ArgumentError, FireironError
from fireiron.ir import execs
from fireiron.language.tree import expanded
from fireiron.lower.walk import grow_tree
from fireiron.values.expr import TRUE, constant
from fireiron.values.machine import ARCHITECTURES

REFUSALS = (ArgumentError, DecompositionError, MatchError, ResourceError, SynchronizationError)
"""Errors by which a draw may be refused."""

MOST_TRIES = 8
"""Number of walks with the wanted features before walks without them are accepted."""

MOST_TRIES_FOR_RINGS = 48
"""The same if a feature needs a ring, which most walks do not reach."""

USUAL = {
    "To": 0.0, "NoSync": 0.04, "Unchecked": 0.03, "ProgrammaticLaunch": 0.06, "Persistent": 0.08, "Cluster": 0.04, "ReuseBuffer": 0.01, "MaxSharedBytes": 0.05,
    "Stages": 0.05, "ShareStages": 0.05, "WarpSpecialize": 0.06, "MmaInFlight": 0.1, "PingPong": 0.05, "StaggerBlocks": 0.06, "Permute": 0.06, "Sync": 0.08,
    "Align": 0.08, "StorageLayout": 0.2, "LongestFirst": 0.03, "Defer": 0.02, "OrderMma": 0.02, "SkipMaskedTiles": 0.02, "CastOnCopy": 0.3, "PrefetchEpilogue": 0.4,
    "Pipeline": 0.35, "Unroll": 0.35,
}  # fmt: skip
"""The probability of each offered refinement, by its class; others: 0.15."""

AT = {"Warpgroup": {"Pipeline": 0.8, "WarpSpecialize": 0.6, "Pad": 0.05, "StorageLayout": 0.05, "SwizzleStorage": 0.05, "Align": 0.03,
                    "Cluster": 0.25, "Persistent": 0.3, "ProgrammaticLaunch": 0.15, "PingPong": 0.3, "Stages": 0.15, "MmaInFlight": 0.3, "ShareStages": 0.2}}  # fmt: skip
"""The same if the goal is an instruction of a given level."""

USEFUL_AFTER = {
    "Stages": "WarpSpecialize",
    "ShareStages": "WarpSpecialize",
    "MmaInFlight": "Pipeline",
    "WarpSpecialize": "Pipeline",
    "PingPong": "Persistent",
}
"""Refinements that have little effect without another one."""

RINGS = {f"refine {name}" for name in ("WarpSpecialize", "Cluster", "Stages", "ShareStages", "MmaInFlight", "PingPong")}
"""Refinements that need a producer, TMA loads, and a target with TMA."""

NEEDS = {"WarpSpecialize": ("Pipeline",), "Stages": ("WarpSpecialize", "Pipeline"), "ShareStages": ("WarpSpecialize", "Pipeline"), "MmaInFlight": ("WarpSpecialize", "Pipeline"),
         "Cluster": ("WarpSpecialize", "Pipeline"), "PingPong": ("Persistent", "WarpSpecialize", "Pipeline")}  # fmt: skip
"""Features wanted together with a refinement that has no effect alone."""

ROWS_OF_128_BYTES = Swizzle(3, 3, 3)
"""TMA swizzle modes of 64 adjacent float16 values."""

STAGED = {"CastOnCopy", "ReuseBuffer"}
"""Features of a store through shared memory, if it is wanted."""

EPILOGUES = ("relu(acc + bias[n])", "max(acc, 0)", "acc * 2", "acc + R[m,n]", "relu(acc) + bias[m]")
"""Epilogues after the product that are exact on small integers."""


def extensions_in(package, base):
    """The extensions that a folder has now."""
    names = (getattr(module, name) for module in package.MODULES for name in getattr(module, "__all__", ()))
    return [one for one in names if isinstance(one, type) and issubclass(one, base)]


def goals():
    """The GEMM specs that instructions perform, by the file that states them: instruction and spec."""
    return _goals(executable.INSTRUCTIONS)


@functools.lru_cache(maxsize=4)
def _goals(instructions):
    stated = {id(one): module.__name__ for module in executable.MODULES for one in getattr(module, "INSTRUCTIONS", ())}
    by_file = {}
    for instruction in instructions:
        by_file.setdefault(stated.get(id(instruction), "own"), []).append(instruction)
    products = {name: [one for one in some if own_spec(some[0]).contracts and _is_product(own_spec(one))] for name, some in by_file.items()}
    return {name: some for name, some in products.items() if some}


def _is_product(spec):
    """Whether a walk can arrive there: no step offers itself for arrays in WMMA fragments, whose strategies are written by hand."""
    return spec.title == "MatMul" and all(view.memory.fragment is None for view in spec.views)


@functools.lru_cache(maxsize=256)
def targets_of(instruction):
    """The targets that have an instruction, oldest first."""
    return [one for one in ARCHITECTURES if not instruction.mismatches(own_spec(instruction), one)]


class Walk:
    """One draw: the spec, the strategy, the target and their features."""

    def __init__(self, seed, wanted=()):
        self.random = random.Random(seed)
        needed = (f"refine {name}" for one in wanted for name in NEEDS.get(one.removeprefix("refine "), ()))
        self.seed, self.wanted = seed, tuple(dict.fromkeys((*wanted, *needed)))
        self.rings = not RINGS.isdisjoint(self.wanted)
        self.tried = Done()
        self.draw_goal()
        self.draw_types()
        self.context = None
        self.others = 0
        steps, problem = self.main_chain(), self.draw_problem()
        self.strategy = Strategy((*self.in_front(problem), *steps), None, MatMul)(problem)
        if self.batch is None and self.chance(0.12, "epilogue") and not self.accumulates:
            self.strategy = self.strategy.fuse_epilogue(self.pick(EPILOGUES))

    def chance(self, share, feature=None):
        """A random decision; almost always true for a wanted feature."""
        return self.random.random() < (0.97 if feature in self.wanted else share)

    def pick(self, values):
        return self.random.choice(list(values))

    def one_of(self, prefix, values, name=str):
        """One of several values; a wanted one, if there is one among them."""
        values = list(values)
        wanted = [one for one in values if f"{prefix}{name(one)}" in self.wanted]
        return self.pick(wanted or values)

    # ------------------------------------------------------------------------------------------ the goal and the problem

    def draw_goal(self):
        """An instruction, its spec, and a target that has it."""
        by_file = goals()
        weights = [4 if name.endswith(".fma") else 3 if name.endswith(".wgmma") else 1 for name in by_file]
        wanted = [name for name in by_file if f"by {name.rpartition('.')[2]}" in self.wanted]
        file = self.pick(wanted) if wanted else self.random.choices(list(by_file), weights)[0]
        instruction = self.pick(by_file[file])
        for _ in range(40):
            types = {f"dtype {view.dtype}" for view in own_spec(instruction).views[:2]}
            known = {f"target {one}" for one in targets_of(instruction)}
            asked_of_target = [one for one in self.wanted if one.startswith("target")] or ["target sm_90a"] * self.rings
            fits = "verb mma_tile" not in self.wanted or own_spec(instruction).level == Warp
            fits = fits and (not self.rings or own_spec(instruction).level.threads > 1)
            if fits and known.issuperset(asked_of_target) and all(one in types for one in self.wanted if one.startswith("dtype")):
                break
            file = self.pick(wanted or by_file)
            instruction = self.pick(by_file[file])
        self.instruction, self.goal = instruction, own_spec(instruction)
        targets = targets_of(instruction)
        rings = [one for one in targets if one.name == "sm_90a"] if self.rings else []
        self.target = self.one_of("target ", rings or targets).name
        self.sizes_of_goal = {dim: constant(size) for dim, size in zip(self.goal.dims, self.goal.sizes, strict=True)}

    def draw_types(self):
        """Types, storage orders, and tiles of a block as multiples of the goal."""
        goal = self.goal
        single = goal.level.threads == 1
        most = 64 if single else 128 if goal.level.threads < 128 else 256
        tile = {}
        for dim in "mn":
            unit = self.sizes_of_goal[dim]
            least = max(1, 8 // unit)
            tile[dim] = unit * self.pick(
                count for count in (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64) if least <= count and unit * count <= max(most, unit)
            )
        unit = self.sizes_of_goal["k"]
        tile["k"] = unit * self.pick((1, 2, 3, 4) if unit > 4 else (2, 4, 6, 8, 16))
        if self.rings and goal.level == Warp and self.chance(0.8):
            tile["k"] = max(unit, 128 // goal.operands["A"].dtype.bytes)
        self.tile = tile
        a, b, c = (view.dtype for view in goal.views[-3:])
        self.types = {"dtype": (a, b), "c_dtype": c}
        if c == float32 and a in (float16, bfloat16) and a == b and self.chance(0.3, "accumulator"):
            self.types |= {"c_dtype": a, "accumulator": c}
        if "refine ShareStages" in self.wanted:  # a stage holds one kind of tile
            least = max(tile.values())
            tile.update(dict.fromkeys("mnk", least))
        self.accumulates = self.chance(0.1, "accumulate")
        self.batch = self.pick((1, 2, 3)) if self.chance(0.1, "batch") else None
        orders = {}
        for name in "ABC":
            own = goal.operands[name].tensor.layout
            free = not goal.operands[name].memory.of_block and not getattr(self.instruction, "orders", None)
            orders[name] = self.pick((RowMajor, ColMajor)) if free or self.chance(0.2) else own
        if self.rings and self.chance(0.8):  # as every MMA with TMA tiles reads them
            orders |= {"A": RowMajor, "B": ColMajor}
        self.orders = orders
        self.walked = self.spec_of({"m": tile["m"] * 2, "n": tile["n"] * 2, "k": tile["k"] * 2})

    def spec_of(self, sizes, orders=None, **options):
        orders = self.orders if orders is None else orders
        numbers = (*(() if self.batch is None else (self.batch,)), sizes["m"], sizes["n"], sizes["k"])
        signature = {} if self.batch is None else {"signature": "bmk,bkn->bmn"}
        plain = {} if not self.accumulates else {"accumulate": True}
        return MatMul(*numbers, **self.types, **orders, **signature, **plain, **options)(GL, GL, GL)(Kernel)

    def draw_problem(self):
        """The spec of the problem: sizes near its tiles, half of them not powers of two, leading dimensions, symbols."""
        sizes = {}
        whole_tiles = self.chance(0.5, "whole tiles")
        for dim in "mnk":
            tile = self.blocks.get(dim, self.tile[dim])
            near = (tile, 2 * tile, 3 * tile) if whole_tiles else (tile - 1, tile, tile + 1, 2 * tile - 1, 2 * tile + 3, 3 * tile)
            size = max(1, self.pick(near))
            unit = 16 if self.rings else 8  # TMA takes 16 bytes
            sizes[dim] = -(-size // unit) * unit if self.rings or (not whole_tiles and self.chance(0.5)) else size
        self.sizes = dict(sizes)
        orders = dict(self.orders)
        extents = {"A": ("m", "k"), "B": ("k", "n"), "C": ("m", "n")}
        for name, dims in extents.items():
            if self.batch is None and self.chance(0.1, "leading dimension"):
                least = self.sizes[dims[0 if orders[name] == ColMajor else 1]]
                orders[name] = orders[name](ld=least + self.pick((16, 32) if self.rings else (1, 3, 8, 16)))
        self.symbols = {}
        if self.chance(0.2, "symbolic"):
            for dim in "mnk":
                if self.chance(0.7):
                    divides = self.pick([one for one in ((16,) if self.rings else (1, 2, 4, 8, 16)) if sizes[dim] % one == 0])
                    bound = {} if self.batch is None else {"high": 1 << 15}
                    sizes[dim] = sym(dim.upper(), multiple_of=divides, **bound)
                    self.symbols[dim.upper()] = self.sizes[dim]
        return self.spec_of(sizes, orders)

    # ------------------------------------------------------------------------------------------ the chain

    def start(self):
        """The context of the whole kernel. The number of threads in a block is still unknown, so a guess is used."""
        architecture = next(one for one in ARCHITECTURES if one.name == self.target)
        context = grow_tree(self.walked, (), architecture, executable.INSTRUCTIONS).context
        workers = max(self.goal.level.threads or 1, self.pick((64, 128, 256)))
        return attrs.evolve(context, workers=workers, thread=Var("thread", 0, workers - 1))

    def in_front(self, spec):
        """Steps that decompose nothing: separate launches, which are offered for a whole kernel and refused as a part of one."""
        context, steps = self.start(), []
        for kind in extensions_in(decomp, Decomposition):
            offered = list(kind.choices(spec, context)) if self.chance(0.04, f"verb {kind.verb}") else []
            if offered and not self.decomposes(offered[0], spec, context):
                steps.append(self.pick(offered))
        return steps

    @staticmethod
    def decomposes(step, spec, context):
        """Whether a step has a place in a tree."""
        try:
            expanded(step, spec, context)
        except FireironError:
            return False
        return True

    def main_chain(self):
        """Steps from the whole GEMM to a leaf that the goal performs."""
        spec, context, steps = self.walked, self.start(), []
        self.blocks, self.given = {}, {"To"}
        for _ in range(24):
            try:
                step = self.next_step(spec, context, steps)
            except REFUSALS:
                raise
            except Exception as error:
                raise Crashed(Strategy((*steps, self.tried), None, MatMul)(self.walked), self.target, {}) from error
            if step is None:
                raise DecompositionError(f"the walk found no way: {spec} to {self.goal}, {[one.label() for one in steps]}")
            expansion = expanded(step, spec, context)
            steps.append(step)
            self.given |= {type(one).__name__ for one in step.refinements}
            if not expansion.children or isinstance(step, Done):
                return self.with_outer(steps)
            child = body(expansion)
            context = context.after(expansion).enter(child)
            threads = self.threads_of(step, spec, context) if spec.level == Block else None
            if threads is not None:
                context = attrs.evolve(context, workers=threads, thread=Var("thread", 0, threads - 1))
            if spec.level == Kernel and child.spec.level == Block:
                self.blocks = {dim: constant(child.spec.size(dim)) for dim in "mn"}
            if isinstance(step, Split) and "k" not in self.blocks:
                self.blocks["k"] = constant(child.spec.size("k"))
            spec = child.spec
        raise DecompositionError("the walk did not arrive")

    def next_step(self, spec, context, steps):
        """A refined step among all offered ones from which the goal can be reached."""
        verbs = self.verbs_for(spec, context, steps)
        for kind in verbs:
            offered = list(kind.choices(spec, context))
            offered = [one for one in offered if self.is_likely(one, spec)]
            wanted = [one for one in offered if self.is_wanted(one)]
            for choice in [*wanted[:6], *self.random.sample(offered, min(len(offered), 14))]:
                step = self.refined(choice, spec, context)
                if step is not None and self.on_the_way(step, spec, context):
                    return self.with_parts(step, spec, context)
        return None

    def is_wanted(self, step):
        return isinstance(step, Load) and f"{step.operand} to {step.memory}" in self.wanted

    def is_likely(self, step, spec):
        """Whether a step is worth expanding, judged by its sizes and memory."""
        if isinstance(step, Tile):
            sizes = step.extents(spec)
            if any(size % self.sizes_of_goal.get(dim, 1) for dim, size in sizes.items()):
                return False
            area = sizes.get("m", 1) * sizes.get("n", 1)
            if spec.level == Kernel and "refine ShareStages" in self.wanted:
                return sizes.get("m") == sizes.get("n") == self.tile["m"] and sizes.get("b", 1) == 1
            if spec.level == Kernel:
                return (64 if self.goal.level.threads == 1 else 1) <= area <= 128 * 256 and sizes.get("b", 1) == 1
            return len(sizes) < 2 or any(constant(spec.size(dim)) != size for dim, size in sizes.items()) or self.chance(0.1)
        if isinstance(step, Load) and self.rings and not step.memory.private and spec.operands[step.operand].memory != GL:
            return self.chance(0.02)
        if isinstance(step, Load) and step.memory.private and spec.level != self.goal.level:
            return self.goal.level.threads == 1 and self.chance(0.1)
        return True

    def needs(self, spec):
        """The differences between a spec and the goal, by the verb that removes each."""
        verbs = []
        level = spec.level
        if level == Kernel:
            return ["tile"]
        wants = self.goal.operands
        if spec.contracts and wants["C"].memory != GL and spec.C.memory == GL and spec.accumulate in (TRUE, fireiron.values.expr.FALSE):
            verbs.append("epilog")
        size = constant(spec.size("k"))
        if size is None or size > self.sizes_of_goal["k"]:
            verbs.append("split")
        for name in "AB":
            if spec.operands[name].memory != wants[name].memory:
                verbs.append("load")
        if level != self.goal.level or any(constant(spec.size(dim)) != self.sizes_of_goal[dim] for dim in "mn"):
            verbs.append("tile")
        return verbs

    def verbs_for(self, spec, context, steps):
        """The classes of steps to try here, in order: mostly those that remove a difference, sometimes any other step of the language."""
        kinds = {one.verb: one for one in extensions_in(decomp, Decomposition)}
        needs = self.needs(spec)
        order = []
        used = {one.verb for one in steps}
        wanted = [name for name in kinds if f"verb {name}" in self.wanted and name not in used]
        self.random.shuffle(wanted)
        rare = [name for name in kinds if name not in (*needs, "done", "tile", "split", "load", "epilog", *wanted)]
        loads = list(itertools.takewhile(lambda one: isinstance(one, Load), reversed(steps)))
        above = steps[-1 - len(loads)] if len(loads) < len(steps) else None
        if (
            above is not None
            and len(loads) < (2 if self.rings else 1)
            and any(isinstance(one, fireiron.Pipeline) for one in above.refinements)
        ):
            order += ["load"]
        if wanted and self.chance(0.6):
            order += wanted
        if self.chance(0.12) and self.others < 2:
            self.others += 1
            self.random.shuffle(rare)
            order += rare[:3]
        if spec.level == Kernel:
            order += ["tile"]
        elif self.goal.level.threads > 1 and spec.level == Block and "epilog" in needs:
            order += ["epilog"]
        elif not needs:
            order += ["done"]
        else:
            at_goal = spec.level == self.goal.level
            order += ["mma_tile"] if spec.level == Warp and self.chance(0.3) else []
            order += ["done"] if at_goal and self.chance(0.3) else []
            order += [name for name in ("epilog", "split", "load") if name in needs and self.chance(0.4 if at_goal else 0.8)]
            order += ["tile", *needs, "done"]
        return [kinds[name] for name in dict.fromkeys(order) if name in kinds]

    def on_the_way(self, step, spec, context):
        """Whether the goal can still be reached after a step."""
        try:
            expansion = expanded(step, spec, context)
        except FireironError:
            return False
        if isinstance(step, Done):
            return True
        child = body(expansion)
        if child is None:
            return False
        inner, goal = child.spec, self.goal
        if inner == spec and not step.refinements:
            return False
        if not inner.contracts:
            return isinstance(step, Done)
        level = self.threads_of(step, spec, context)
        if level is not None and not 1 <= level <= 512:
            return False
        if inner.level != goal.level and not goal.level.is_below(inner.level) and not (goal.level.threads == inner.level.threads == 1):
            return False
        for dim, size in zip(inner.dims, map(constant, inner.sizes), strict=True):
            unit = self.sizes_of_goal.get(dim, 1)
            if size is None or size % unit or (dim == "b" and inner.level != Kernel and size != 1):
                return False
        if spec.level == Kernel and inner.level == Kernel and isinstance(step, Tile) and not self.chance(0.15):
            return False
        if inner.level == Block and spec.level == Kernel:
            area = constant(inner.size("m")) * constant(inner.size("n"))
            wide = area // (self.sizes_of_goal["m"] * self.sizes_of_goal["n"]) if goal.level.threads > 1 else area
            return wide >= (16 if goal.level.threads == 1 else 1) and area <= 128 * 256
        wants, has = goal.operands, inner.operands
        if goal.level.threads > 1 and has["C"].memory not in (GL, wants["C"].memory):
            return False
        for name in "AB":
            if has[name].memory.private and not wants[name].memory.private:
                return False
            if has[name].memory.depth > wants[name].memory.depth:
                return False
        return True

    def threads_of(self, step, spec, context):
        """The threads per block that a step requires; None if it requires none."""
        return step.threads(spec, attrs.evolve(context, workers=None))

    # ------------------------------------------------------------------------------------------ refinements

    def refined(self, step, spec, context):
        """The step with refinements among all offered ones; None for a tile that needs a level and has found none."""
        if isinstance(step, Tile):
            step = self.assigned(step, spec, context)
            if step is None:
                return None
        kinds = [one for one in extensions_in(refine, Refinement) if step.verb in one.applies_to and one is not To]
        self.random.shuffle(kinds)
        usual = {**USUAL, **AT.get("Warpgroup" if self.rings else self.goal.level.name, {})}
        given = self.given | {type(one).__name__ for one in step.refinements}
        if self.rings and self.goal.level == Warp and isinstance(step, Load):
            usual |= {"StorageLayout": 0.9, "SwizzleStorage": 0.9, "Pad": 0.02}
        if self.rings:  # one ring is enough
            usual |= dict.fromkeys({"Pipeline", "WarpSpecialize"} & given, 0.05)
        again = STAGED | (given if self.rings else set())
        chosen = [
            kind for kind in kinds if self.chance(usual.get(kind.__name__, 0.15), kind.__name__ not in again and f"refine {kind.__name__}")
        ]
        given |= {one.__name__ for one in chosen} if self.rings else set()
        chosen = [one for one in chosen if USEFUL_AFTER.get(one.__name__, "To") in given or self.chance(0.05)]
        chosen.sort(key=lambda one: one.__name__ in USEFUL_AFTER)
        for kind in chosen:
            offered = list(kind.choices(step, spec, context))
            if self.rings:  # a producer's loads are not spread over the steps of other threads
                offered = [one for one in offered if not getattr(one, "spread", False)]
                order = self.orders.get(getattr(step, "operand", ""))
                likely = {fireiron.StorageLayout: ("layout", order), fireiron.SwizzleStorage: ("swizzle", ROWS_OF_128_BYTES)}
                if kind in likely and self.goal.level == Warp:  # TMA loads whole rows, so warps need no layout
                    offered = [one for one in offered if getattr(one, likely[kind][0], None) == likely[kind][1]] or offered
            for choice in self.random.sample(offered, min(len(offered), 3)):
                try:
                    self.tried = with_it = step.refined(choice)
                    expanded(with_it, spec, context)
                except FireironError:
                    continue
                step = with_it
                break
        return step

    def assigned(self, step, spec, context):
        """A tile assigned to a level, or to none: then a loop visits it."""
        if spec.level.threads == 1 or spec.level == self.goal.level:
            return step
        levels = [one.level for one in To.choices(step, spec, context)]
        if spec.level == Kernel:
            levels = [one for one in levels if one == Block]
        elif self.chance(0.12):
            return step
        goal = self.goal.level
        near = [one for one in levels if one == goal or goal.is_below(one) or (goal.threads == 1 and one.threads == 1)]
        for level in self.random.sample(near, len(near)):
            wanted = step.refined(To(level))
            try:
                threads = self.threads_of(wanted, spec, context)
                child = body(expanded(wanted, spec, context))
            except FireironError:
                continue
            if threads is not None and threads > 512:
                continue
            if threads is not None and level.threads == 1 and threads < 16 and self.chance(0.9):
                continue
            if child is not None:
                return wanted
        return None

    # ------------------------------------------------------------------------------------------ parts of a step

    def with_parts(self, step, spec, context):
        """The step with separate strategies for its work outside the main chain: a load's copy, the sum of partial results."""
        expansion = expanded(step, spec, context)
        for child in expansion.children:
            if child.steps is None or not hasattr(step, child.name) or child.name in ("init", "store"):
                continue
            inner = context.after(expansion).enter(child)
            steps = self.copied(child.spec, inner)
            if steps is None:
                continue
            changed = attrs.evolve(step, **{child.name: tuple(steps)})
            try:
                expanded(changed, spec, context)
            except FireironError:
                continue
            step = changed
        return step

    def copied(self, spec, context, depth=0):
        """Steps for work outside the GEMM, among all that are offered; None for work that needs no steps."""
        if spec.moves and spec.dst.memory.private and spec.level.threads != 1:
            return self.pick((None, [Done()]))
        if (self.goal.level.threads >= 128 or self.rings) and spec.moves and self.chance(0.95 if self.rings else 0.85):
            return [Done()]
        if self.chance(0.25, "copy by default"):
            return None
        steps = []
        for _ in range(6):
            step = self.step_of_copy(spec, context, depth + len(steps))
            if step is None:
                return None
            steps.append(step)
            if isinstance(step, Done):
                return steps
            expansion = expanded(step, spec, context)
            child = body(expansion)
            context = context.after(expansion).enter(child)
            spec = child.spec
        return None

    def step_of_copy(self, spec, context, depth):
        kinds = {one.verb: one for one in extensions_in(decomp, Decomposition)}
        single = spec.level.threads == 1
        is_line = single and sum(size != 1 for size in map(constant, spec.sizes)) <= 1
        order = ["done"] if (is_line and self.chance(0.8)) or (depth == 0 and not single and self.chance(0.15)) else []
        order += ["coalesced_copy"] if not single and depth == 0 and self.chance(0.4) else []
        order += ["load"] if self.chance(0.1) and depth < 3 else []
        if self.chance(0.1):
            order += self.random.sample(sorted(kinds), 2)
        order += ["tile", "done"]
        for name in dict.fromkeys(order):
            offered = list(kinds[name].choices(spec, context))
            if name == "done":
                offered = offered[:1]
            for choice in self.random.sample(offered, min(len(offered), 8)):
                step = self.assigned_copy(choice, spec, context) if isinstance(choice, Tile) else choice
                if step is None or isinstance(step, Done):
                    if step is not None:
                        return step
                    continue
                try:
                    step = self.refined_copy(step, spec, context)
                    if body(expanded(step, spec, context)) is not None:
                        return step
                except FireironError:
                    continue
        return None

    def refined_copy(self, step, spec, context):
        """A few refinements of a step of a copy."""
        for kind in extensions_in(refine, Refinement):
            if (
                kind is To
                or step.verb not in kind.applies_to
                or not self.chance(USUAL.get(kind.__name__, 0.15) / 2, f"refine {kind.__name__}")
            ):
                continue
            offered = list(kind.choices(step, spec, context))
            if offered:
                try:
                    with_it = step.refined(self.pick(offered))
                    expanded(with_it, spec, context)
                    step = with_it
                except FireironError:
                    continue
        return step

    def assigned_copy(self, tile, spec, context):
        """A tile of a copy, assigned to a lower level; small ones to threads."""
        if spec.level.threads == 1:
            return tile
        child = [constant(size) for size in body(expanded(tile, spec, context)).spec.sizes]
        elements = 1
        for size in child:
            elements *= size or 1
        levels = [one.level for one in To.choices(tile, spec, context) if one.level != Block]
        if elements > 16:
            levels = [one for one in levels if one.threads != 1]
        levels = [one for one in levels if one != QuadPair or self.chance(0.1)]
        for level in self.random.sample(levels, len(levels)):
            step = tile.refined(To(level))
            try:
                expanded(step, spec, context)
            except FireironError:
                continue
            return step
        return None

    # ------------------------------------------------------------------------------------------ init and store

    def with_outer(self, steps):
        """How accumulators are initialized and stored: by default, in the tiles of the main chain, or through shared memory."""
        wanted = not {f"refine {name}" for name in STAGED}.isdisjoint(self.wanted)
        for position, step in enumerate(steps):
            if not isinstance(step, Epilog) or not step.memory.private or not (wanted or self.chance(0.5)):
                continue
            dealing = [
                tile for tile in steps[position + 1 :] if isinstance(tile, Tile) and any(isinstance(each, To) for each in tile.refinements)
            ]
            path = [one.unrefined((To, fireiron.TileOrder, fireiron.Permute)) for one in dealing]
            own = (*path, Done()) if self.goal.level.threads > 1 else (*path, Tile((1, 1)), Done())
            if self.batch is not None or self.accumulates:
                continue
            stores = self.pick((own, (Done(),)))
            staged = self.staged(stores) if wanted or self.chance(0.5) else stores
            steps = [*steps[:position], attrs.evolve(step, init=self.pick((own, step.init)), store=staged), *steps[position + 1 :]]
        return steps

    def staged(self, stores):
        """A store through shared memory."""
        load = Load("src", SH, tuple(stores))
        for name, argument in (("CastOnCopy", ()), ("ReuseBuffer", ()), ("Pad", (self.pick((1, 4, 8)),)), ("SwizzleStorage", ())):
            if self.chance(0.3, f"refine {name}"):
                load = load.refined(getattr(fireiron, name)(*argument))
        final_copies = [
            (fireiron.CoalescedCopy(self.pick((1, 2, 4, 8))), Done()),
            (Tile((1, 1), refinements=(To(Thread),)), Done()),
            (Done(),),
        ]
        return (load, *self.pick(final_copies))


def body(expansion):
    """The child that the rest of a chain decomposes."""
    return next((one for one in expansion.children if one.steps is None), None)


def steps_in(steps):
    """All steps of a chain, including those of its parts."""
    for step in steps:
        yield step
        for field in attrs.fields(type(step)):
            value = getattr(step, field.name)
            value = getattr(value, "steps", value)
            if isinstance(value, tuple) and value and all(isinstance(one, Decomposition) for one in value):
                yield from steps_in(value)


def instructions_in(program):
    """The files of the instructions that perform a program's statements, as features."""
    return {f"by {type(statement.instruction).__module__.rpartition('.')[2]}" for statement, _ in execs(program.lowered.body)}


def features_of(draw_of_walk):
    """The features of a draw: verbs, refinements, levels, instructions, the target, and properties of the problem."""
    steps = list(steps_in(draw_of_walk.strategy.steps))
    names = {f"verb {step.verb}" for step in steps} | {f"refine {type(each).__name__}" for step in steps for each in step.refinements}
    names |= {f"to {each.level}" for step in steps for each in step.refinements if isinstance(each, To)}
    names |= {f"{step.operand} to {step.memory}" for step in steps if isinstance(step, Load) and step.operand in "AB"}
    names |= instructions_in(draw_of_walk.program)
    spec = draw_of_walk.strategy.spec
    names |= {f"target {draw_of_walk.target}", *(f"dtype {spec.operands[name].dtype}" for name in "AB")}
    properties = {
        "symbolic": draw_of_walk.symbols, "accumulate": draw_of_walk.accumulates, "batch": draw_of_walk.batch is not None, "epilogue": spec.title != "MatMul",
        "accumulator": "accumulator" in draw_of_walk.types, "leading dimension": any(getattr(spec.operands[name].tensor.layout, "leading", None) is not None for name in "ABC"),
        "overhanging": any(draw_of_walk.sizes[dim] % (draw_of_walk.blocks.get(dim) or 1) for dim in "mn"), "no multiple of k": draw_of_walk.sizes["k"] % (draw_of_walk.blocks.get("k") or 1),
    }  # fmt: skip
    return names | {name for name, holds in properties.items() if holds}


@attrs.define(eq=False)
class Crashed(Exception):
    """An exception that is not a refusal, while a strategy was drawn or lowered; holds the strategy so far, and the target."""

    strategy: Strategy
    target: str
    symbols: dict[str, int]


def draw(seed, wanted=()):
    """A draw that lowers and has the wanted features, if one of the first tries has them, and the number of refused tries before it."""
    refused, most = 0, MOST_TRIES if RINGS.isdisjoint(wanted) else MOST_TRIES_FOR_RINGS
    for number in itertools.count():
        try:
            walk = Walk(f"{seed}/{number}", wanted if number < most else ())
            walk.program = walk.strategy.program(walk.target, executable.INSTRUCTIONS)
            _ = walk.program.lowered
        except REFUSALS:
            refused += 1
            if refused > 400:
                raise
            continue
        except Crashed:
            raise
        except Exception as error:
            raise Crashed(walk.strategy, walk.target, walk.symbols) from error
        walk.features = features_of(walk)
        if number >= most or set(wanted) <= walk.features:
            return walk, refused
