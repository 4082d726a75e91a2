"""Random problems and strategies, drawn step by step among what the verbs allow.

The project's own error may refuse a draw (for example a store with another distribution than the compute path); it is then drawn again. Any
other failure is a finding.
"""

import random

from fireiron import *
from fireiron.values.expr import constant

DTYPES = (float32, float32, float32, float16, float64, int32, int8, bfloat16)


COPY = """for (int e = threadIdx.x; e < dst_size_m * dst_size_n; e += blockDim.x) {
  const int i = e % dst_size_m, j = e / dst_size_m;
  dst_at(i, j) = i < src_size_m && j < src_size_n ? src_at(i, j) : src_type(0);
}"""


def divisors(number, limit=None):
    return [d for d in range(1, number + 1) if number % d == 0 and (limit is None or d <= limit)]


class Drawn:
    """One draw: the spec, the strategy, and its features."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.seed = seed
        self.features = set()
        self.asked = None
        self.sizes = {}
        self.target = "sm_90"
        self.aligned = self.chance(0.25, "aligned")
        self.depth = 1  # k steps that the deepest pipeline has in flight
        if self.chance(0.2, "tensor cores"):
            self.spec = self.draw_tensor_spec()
            self.strategy = self.draw_tensor_strategy()
        else:
            self.spec = self.draw_spec()
            self.strategy = self.draw_strategy()

    def chance(self, probability, feature=None):
        hit = self.random.random() < probability
        if hit and feature:
            self.features.add(feature)
        return hit

    def pick(self, values):
        return self.random.choice(list(values))

    def leading(self, name):
        """The leading dimension of an operand, if it is not its own extent."""
        layout = self.spec.operands[name].tensor.layout
        return None if layout.leading is None else constant(layout.leading)

    # ------------------------------------------------------------------------------------------ the problem

    def draw_size(self, tile):
        near = self.pick((tile - 1, tile, tile + 1, 2 * tile - 1, 2 * tile, 2 * tile + 3))
        size = max(1, self.pick((near, self.random.randint(1, 70), near)))
        return -(-size // 8) * 8 if self.aligned else size

    def draw_layout(self, name, shape):
        layout = self.pick((ColMajor, RowMajor))
        self.features.add(f"{name} {layout}")
        if self.chance(0.15, "ld"):
            least = shape[0] if layout == ColMajor else shape[1]
            return layout(ld=least + self.pick((1, 3, 4, 8)))
        return layout

    def draw_target(self, *names):
        self.target = self.pick(names)
        self.features.add(self.target)

    def draw_spec(self):
        self.draw_target("sm_90", "sm_90", "sm_80", "sm_75")
        self.bm, self.bn = self.pick((8, 16, 32, 64, 12, 24, 48)), self.pick((8, 16, 32, 64, 20, 40))
        M, N, K = self.draw_size(self.bm), self.draw_size(self.bn), self.draw_size(self.pick((4, 8, 16)))
        self.sizes = {"M": M, "N": N, "K": K}
        dtype = self.pick(DTYPES)
        self.features.add(str(dtype))
        options = {"dtype": dtype}
        if dtype in (float16, bfloat16) and self.chance(0.6, "float32 accumulator"):
            options["accumulator"] = float32
            if self.chance(0.5):
                options["c_dtype"] = float32
        if self.chance(0.1, "accumulate"):
            options["accumulate"] = True
        return self.spec_with(options)

    def spec_with(self, options):
        """The spec with storage orders, and symbols for some sizes."""
        M, N, K = self.sizes.values()
        layouts = {name: self.draw_layout(name, shape) for name, shape in (("A", (M, K)), ("B", (K, N)), ("C", (M, N)))}
        if self.chance(0.2, "symbolic"):
            divides = lambda size: self.pick([d for d in (1, 1, 2, 4, 8) if size % d == 0])
            lower = self.chance(0.5)  # the default names of loops and accessors
            named = {name: sym(name.lower() if lower else name, multiple_of=divides(size)) for name, size in self.sizes.items()}
            symbols = {name: var for name, var in named.items() if self.chance(0.7)}
            M, N, K = (symbols.get(name, size) for name, size in self.sizes.items())
            self.symbols = {var.name: self.sizes[name] for name, var in symbols.items()}
        else:
            self.symbols = {}
        return MatMul(M, N, K, **options, **layouts)(GL, GL, GL)(Kernel)

    # ------------------------------------------------------------------------------------------ the strategy

    def sizes_of(self, strategy):
        left = self.left_by(strategy)
        return dict(zip(left.dims, (constant(size) for size in left.sizes)))

    def left_by(self, strategy):
        """The spec that a strategy leaves; expanded once if it is used several times in a row."""
        if self.asked is None or self.asked[0] is not strategy:
            self.asked = strategy, strategy.result
        return self.asked[1]

    def assigned(self, start, levels):
        """Tiles assigned to a chain of levels; returns the steps so that init and store can repeat them."""
        chain = start
        for level, most in levels:
            size = self.sizes_of(chain)
            options = []
            for rows in divisors(size["m"]):
                for columns in divisors(size["n"]):
                    tiles = size["m"] // rows * (size["n"] // columns)
                    if tiles <= most and (level.threads == 1 or rows * columns >= 4):
                        options.append((rows, columns, tiles))
            best = sorted(options, key=lambda one: -one[2])[: self.pick((3, 8))]
            rows, columns, _ = self.pick(best)
            if level.threads == 1 and self.chance(0.25, "strided"):
                strided = self.strided(size, most)
                chain = chain.tile(strided) if strided else chain.tile(rows, columns)
            else:
                chain = chain.tile(rows, columns)
            chain = chain.to(level)
            self.features.add(f"to {level}")
            if self.chance(0.4, "column-major dealing"):
                chain = chain.layout(ColMajor)
            if self.chance(0.15, "swizzle of units"):
                chain = chain.swizzle(lambda uid: uid ^ 1)
        return chain

    def strided(self, size, most):
        for _ in range(10):
            dims = []
            for extent in (size["m"], size["n"]):
                repeat = self.pick(divisors(extent))
                chunk = self.pick(divisors(repeat, 4))
                dims.append((chunk, repeat))
            if dims[0][1] // dims[0][0] * (dims[1][1] // dims[1][0]) <= most:
                return Strided(*dims)
        return None

    def move(self, shape):
        """A strategy for copying a tile of a given shape at block level."""
        kind = self.pick(("default", "threads", "threads", "coalesced", "coalesced", "warps", "warps and lanes", "micro-kernel"))
        self.features.add(f"copy by {kind}")
        rows, columns = shape
        if kind == "default":
            return None
        if kind == "coalesced":
            return Move.coalesced_copy(self.pick((1, 2, 4, 8))).done()
        if kind == "micro-kernel":
            return Move.done(MicroKernel("copy", COPY))
        piece = self.pick([(d, 1) for d in divisors(rows, 8)] + [(1, d) for d in divisors(columns, 8)])
        order = self.pick((RowMajor, ColMajor))
        if kind == "threads":
            return Move.tile(*piece).to(Thread).layout(order).done()
        warp = (self.pick([d for d in divisors(rows) if d % piece[0] == 0]), self.pick([d for d in divisors(columns) if d % piece[1] == 0]))
        chain = Move.tile(*warp).to(Warp)
        if kind == "warps and lanes":
            inner = (
                self.pick([d for d in divisors(warp[0]) if d % piece[0] == 0]),
                self.pick([d for d in divisors(warp[1]) if d % piece[1] == 0]),
            )
            chain = chain.tile(*inner)
            chain = chain.unroll() if self.chance(0.5, "unroll") else chain
        chain = chain.tile(*piece).to(Lane).layout(order)
        if self.chance(0.2, "copy through registers"):
            return chain.load(SRC, RF, Move.done()).done()
        return chain.done()

    def refined_load(self, chain, name, first):
        if self.chance(0.3, "pad"):
            chain = chain.pad(self.pick((1, 4, 8)))
        if self.chance(0.4, "storage layout"):
            chain = chain.storage_layout(self.pick((RowMajor, ColMajor)))
        if self.chance(0.15, "swizzled storage"):
            chain = (
                chain.swizzle_storage() if self.chance(0.5, "swizzle by rows") else chain.swizzle_storage(Swizzle(2, self.pick((0, 2)), 3))
            )
        if first and self.chance(0.5, "no_sync"):
            chain = chain.no_sync()
        return chain

    def draw_strategy(self):
        chain = self.spec.tile(self.bm, self.bn).to(Block)
        if self.chance(0.3, "column-major blocks"):
            chain = chain.layout(ColMajor)
        chain = self.refined_blocks(chain)
        levels = self.pick(
            (
                ((Thread, 128),),
                ((Warp, 4), (Lane, 32)),
                ((Warp, 4), (Thread, 64)),
                ((Warpgroup, 2), (Warp, 4), (Lane, 32)),
                ((Warp, 2), (QuadPair, 4), (Thread, 8)),
            )
        )
        compute = self.assigned(chain, levels)
        dealing = compute.steps[len(chain.steps) :]
        late = self.chance(0.1, "epilog of a thread")
        chain = chain if late else self.draw_epilog(chain, dealing)
        chain = self.draw_split(chain, "k loop") if not late and self.chance(0.85) else chain
        loads = [name for name in "AB" if self.chance(0.75, f"{name} to SH")]
        if isinstance(chain.steps[-1], Split) and loads and self.chance(0.4, "pipeline"):
            chain = self.pipelined(chain)
        if constant(self.spec.size("k")) is None and not any(isinstance(step, Split) for step in chain.steps):
            loads = []
        for position, name in enumerate(loads):
            size = self.sizes_of(chain)
            shape = (size["m"], size["k"]) if name == "A" else (size["k"], size["n"])
            chain = self.refined_load(chain.load(name, SH, self.move(shape)), name, position == 0 and len(loads) == 2)
        for step in dealing:
            chain = chain.then(step)
            chain = self.draw_load_of_warp(chain)
        if late:
            chain = chain.epilog(RF, Init.tile(1, 1).done(), Move.tile(1, 1).done())
        return self.draw_inner(chain)

    def refined_blocks(self, chain):
        if self.chance(0.15, "bands"):
            rows = self.pick((1, 2, 3, 8))
            chain = self.pick(
                (chain.rasterize(group_m=rows), chain.rasterize(group_m=rows), chain.rasterize(group_n=rows), chain.hilbert())
            )
        return chain.min_blocks_per_sm(self.pick((1, 2))) if self.chance(0.1, "resident") else chain

    def pipelined(self, chain):
        """The last split as a pipeline."""
        stages = self.pick((1, 2, 3, 3, 4, 5))
        self.depth = stages
        return chain.pipeline(stages, interleave=stages > 1 and self.chance(0.3, "spread"))

    # ------------------------------------------------------------------------------------------ tensor cores

    def draw_tensor_spec(self):
        self.bm, self.bn, self.bk = self.pick((16, 32, 64, 48)), self.pick((16, 32, 64)), self.pick((16, 32, 64))
        self.sizes = {"M": self.draw_size(self.bm), "N": self.draw_size(self.bn), "K": self.draw_size(self.bk)}
        dtype, result = self.pick(
            ((float16, float32), (float16, float32), (float16, float16), (bfloat16, float32), (tf32, float32), (int8, int32))
        )
        self.features.add(str(dtype))
        self.accumulator = result
        self.draw_target("sm_90", "sm_80", "sm_80", "sm_75", "sm_70")
        return self.spec_with({"dtype": dtype, "c_dtype": self.pick((dtype, result)) if dtype == float16 else result})

    def draw_tensor_strategy(self):
        wm, wn = self.pick(divisors(self.bm // 16, 2)) * 16, self.pick(divisors(self.bn // 16, 2)) * 16
        warps = lambda start: start.tile(wm, wn).to(Warp).done()
        chain = self.refined_blocks(self.spec.tile(self.bm, self.bn).to(Block))
        chain = chain.epilog(RF, self.accumulator, warps(Init), self.tensor_store(warps)).split(self.bk)
        chain = self.pipelined(chain) if self.chance(0.7, "pipeline") else chain
        for position, name in enumerate("AB"):
            chain = self.refined_load(chain.load(name, SH, self.pick((Move.coalesced_copy(8).done(), None))), name, position == 0)
        chain = chain.tile(wm, wn).to(Warp)
        step = self.pick((16, 32))
        if step < self.bk or self.chance(0.5):
            chain = chain.split(min(step, self.bk))
            chain = chain.unroll() if self.chance(0.7, "unroll") else chain
            chain = chain.pipeline(2) if self.chance(0.5, "registers ahead") else chain
        chain = chain.load(A, RF, Move.done()).load(B, RF, Move.done()).tile(16, 16)
        return (chain.unroll() if self.chance(0.7, "unroll") else chain).mma_tile().done()

    def tensor_store(self, warps):
        """Accumulators stored directly, or through shared memory."""
        if not self.chance(0.4, "store through shared memory"):
            return warps(Move)
        staged = Move.load(SRC, SH, warps(Move))
        staged = staged.cast_on_copy() if self.chance(0.5, "converted") else staged
        staged = staged.pad(self.pick((4, 8))) if self.chance(0.5, "pad") else staged
        staged = staged.reuse_buffer() if self.chance(0.6, "reuse_buffer") else staged
        return staged.coalesced_copy(self.pick((2, 4, 8))).done()

    def draw_load_of_warp(self, chain):
        """A separate load by each warp: the buffer has a copy per warp."""
        if self.left_by(chain).level != Warp or not self.chance(0.2) or constant(self.left_by(chain).size("k")) is None:
            return chain
        name = self.pick("AB")
        if getattr(self.left_by(chain), name).memory == SH:
            return chain
        self.features.add("load of a warp")
        return self.refined_load(chain.load(name, SH, Move.tile(1, 1).to(Lane).done()), name, False)

    def draw_epilog(self, chain, dealing):
        if not self.chance(0.75, "epilog"):
            return chain
        memory = self.pick((RF, RF, RF, SH))
        self.features.add(f"epilog {memory}")
        if memory == SH or self.chance(0.1):
            return chain.epilog(memory)
        path = Strategy(tuple(dealing), None, Move)
        size = self.pick((1, 1, 2))
        piece = (1, size) if self.chance(0.5) else (size, 1)
        store = path.tile(*piece)
        store = (store.unroll() if self.chance(0.5, "unroll") else store).done()
        init = Strategy(tuple(dealing), None, Init).tile(1, 1).done()
        if self.chance(0.15, "store through shared memory"):
            staged = Move.load(SRC, SH, path.tile(1, 1).done())
            staged = staged.reuse_buffer() if self.chance(0.6, "reuse_buffer") else staged
            store = staged.tile(1, 1).to(Thread).layout(self.pick((RowMajor, ColMajor))).done()
        return chain.epilog(RF, init, store)

    def draw_split(self, chain, feature):
        total = constant(self.left_by(chain).size("k"))
        is_first = not any(isinstance(step, Split) for step in chain.steps)
        step = self.pick((1, 2, 3, 4, 5, 8, 16)) if is_first or total is None else self.pick(divisors(total))
        chain = chain.split(step)
        self.features.add(feature)
        if self.chance(0.2, "sync"):
            chain = chain.sync()
        if self.chance(0.3, "unroll"):
            chain = chain.unroll()
        return chain

    def draw_inner(self, chain):
        spec = self.left_by(chain)
        k = constant(spec.size("k"))
        if k != 1 and self.chance(0.7, "inner split"):
            chain = self.draw_split(chain, "inner split")
        if constant(self.left_by(chain).size("k")) is not None:
            names = [name for name in "AB" if self.chance(0.5, f"{name} to RF")]
            if names and isinstance(chain.steps[-1], Split) and self.chance(0.4, "registers ahead"):
                chain = chain.pipeline(2)
            for name in "AB":
                if name in names:
                    move = Move.tile(1, 1).done()
                    size = self.sizes_of(chain)
                    if self.chance(0.4, "vector to RF"):
                        count = self.pick(divisors(size["m" if name == "A" else "n"], 8))
                        move = Move.tile(*((count, 1) if name == "A" else (1, count))).unroll().done()
                    chain = chain.load(name, RF, move)
        if constant(self.left_by(chain).size("k")) != 1:
            chain = chain.split(1)
        pair = (
            self.left_by(chain).C.dtype in (float16, bfloat16) and all(m == RF for m in self.left_by(chain).memories) and self.chance(0.5)
        )
        size = self.sizes_of(chain)
        if pair and size["m"] % 2 == 0:
            self.features.add("HFMA2")
            return chain.tile(2, 1).done()
        chain = chain.tile(1, 1)
        return (chain.unroll() if self.chance(0.3, "unroll") else chain).done()


def draw(seed):
    """A draw that lowers, and the number of refused ones before it."""
    refused = 0
    while True:
        try:
            drawn = Drawn(f"{seed}/{refused}")
            drawn.program = drawn.strategy.program(drawn.target)
            _ = drawn.program.lowered
            return drawn, refused
        except (DecompositionError, ResourceError, MatchError, SynchronizationError):
            refused += 1
            if refused > 400:
                raise
