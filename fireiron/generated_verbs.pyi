"""Verbs of chains and specs, for type checkers and completion. Written by `make names`; see `generated_verbs.py`."""

from collections.abc import Callable, Mapping
from numpy.typing import ArrayLike, NDArray
from typing import Any, Final, Self, SupportsIndex
from fireiron.decomp.tile import Strided
from fireiron.gpu.kernel import CompiledKernel
from fireiron.language.strategy import EpilogStrategy, LoadStrategy, SetMemoryStrategy, SplitKStrategy, SplitStrategy, Strategy, TileStrategy, ToGpusStrategy
from fireiron.language.tree import Decomposition, Executable
from fireiron.language.tunable import Integer, TileSize
from fireiron.spec import Spec
from fireiron.specs.operand import Operand
from fireiron.values.expr import Expr
from fireiron.values.layout import Layout, Swizzle
from fireiron.values.machine import Architecture, DType, Level, Memory
from fireiron.values.tensor import MatrixLayout, View

class StepVerbs: ...

class OtherVerbs: ...

class TileVerbs:
    def cluster(self, m: Integer, n: Integer = 1) -> Self:
        """Assign `m` x `n` adjacent tiles to the blocks of a thread block cluster, which load shared data by multicast.

        If several blocks of a cluster need the same TMA load of a circular buffer, each block loads a part and multicasts it to all of them.
        The compiler infers barriers and arrivals across blocks. Legal on a tile of two dimensions that is distributed over blocks, for at most
        16 blocks, on sm_90a, with `warp_specialize` and at least one shared load; both numbers may be tunables. If clusters do not divide the
        tiles evenly, some blocks have a tile that is out of bounds.
        rewrite: block u: tile u --> blocks k * u ... k * u + k - 1: the k = m * n tiles of cluster u

        Source: decision 28.

        >>> from fireiron import *
        >>> halves = {"dtype": float16, "c_dtype": float16, "A": RowMajor, "B": RowMajor, "C": RowMajor}
        >>> blocks = MatMul(512, 512, 512, **halves)(GL, GL, GL)(Kernel).tile(128, 64).to(Block).cluster(2)
        >>> steps = blocks.epilog(RF, float32).split(64).pipeline(3).warp_specialize()
        >>> loads = steps.load(A, SH, Move.done()).load(B, SH, Move.done())
        >>> text = loads.tile(64, 64).to(Warpgroup).done().cuda()
        >>> [line.strip() for line in text.splitlines() if "__cluster_dims__" in line]
        ['extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(288)']
        """
    def hilbert(self) -> Self:
        """Compute output tiles along Hilbert's curve through the grid: consecutive tiles are adjacent, in rows or in columns.

        Legal on a tile of two dimensions that is distributed over blocks, for any number of tiles. If the grid is not a square whose side is a
        power of two, the curve skips the cells that are out of bounds.
        rewrite: block u: tile (u // columns, u % columns) --> block u: tile (p // columns, p % columns), p = hilbert(u, rows, columns)
        """
    def layout(self, order: MatrixLayout | tuple[int, ...]) -> Self:
        """Assign tiles to units in row-major or column-major order, or in an order of dimensions by position, the fastest first.

        Legal on a tile that is distributed with `to`. rewrite: tile (u // columns, u % columns) --> tile (u % rows, u // rows)
        """
    def longest_first(self, dim: str, group: Integer = 0) -> Self:
        """Compute the tiles of the dimension `dim` from the last to the first, each with `group` tiles of the other dimensions.

        Under a causal mask, the last rows attend to the most keys. If their blocks start first, short blocks fill the gaps at the end of the
        kernel (longest processing time first). `group` is the number of tiles of the other dimensions (0: all) that are computed before the
        next tile of `dim`: the keys and values of `group` heads then stay in the L2 cache. Legal on a tile distributed over blocks, without
        `rasterize` and `cluster`. `group` must divide the number of the other tiles, counted from the fastest dimension, and may be a tunable.
        rewrite: block u: tile (u // others, u % others) --> block u: tile (last - u // others, u % others)

        Source: decision 40.

        >>> from fireiron import *
        >>> blocks = MatMul(64, 64, 64)(GL, GL, GL)(Kernel).tile(16, 16).to(Block).longest_first("m")
        >>> text = blocks.tile(1, 1).to(Thread).split(1).done().cuda()
        >>> [line.strip() for line in text.splitlines() if "int block_m" in line]
        ['const int block_m = 3 - blockIdx.x / 4;']
        """
    def look_back(self) -> Self:
        """Let blocks scan tiles of one dimension in a single pass: each block combines its tile with those of the blocks before it.

        A block publishes the total of its tile, looks back over the totals before it, and scans its tile from there. So the kernel reads and
        writes each element once. Totals are combined in a tree of 32 tiles per node, in a fixed order, so the result is the same in each run.
        Blocks take tiles in the order in which they start, so a block waits only for blocks that have started. Legal on a tile of a `Fused`
        spec that is distributed over blocks, if its steps scan the divided dimension or compute elementwise along it, with all threads of a
        block.
        rewrite: Y = cumsum(X) --> y = cumsum(X[tile]); publish y[last]; Y[tile] = before + y, before = the total of the tiles before

        Source: decision 102; Merrill and Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back", NVR-2016-002.

        >>> from fireiron import *
        >>> sums = Fused(name="sums", dims="m n", operands={"X": "m n", "Y": "m n"}, body={"scan": "Y[m,n] = cumsum(n, X[m,n])"})
        >>> row = Move.tile(1, 128).to(Warp).tile(1, 4).to(Lane).done()
        >>> tiles = sums.tile(m=1, n=1024).to(Block).look_back().load("X", RF, row).done()
        >>> text = tiles(sums(m=2, n=5000, dtype=float32)).cuda("sm_80")
        >>> next(line.strip() for line in text.splitlines() if line.strip().startswith("look_back("))
        'look_back(scan_words, scan_cumsum_tile, scan_cumsum_tiles_before, block_m, 1, block_n, 5);'
        """
    def max_shared_bytes(self, bytes: Integer) -> Self:
        """Use at most `bytes` bytes of shared memory per block: arrays that are never live at the same time share storage if necessary.

        Legal on a tile distributed over blocks, for 16 bytes to 1 MiB; the number may be a tunable. It is refused if arrays that are live at
        the same time need more bytes.
        rewrite: two arrays --> one array, and a barrier between their uses, until all fit

        Source: decision 33; Cypress, section 4.2.4.

        >>> from fireiron import *
        >>> from_registers = Move.tile(4, 4).to(Thread).done()
        >>> store = Move.load(SRC, SH, from_registers).coalesced_copy(4).done()
        >>> blocks = MatMul(64, 64, 64)(GL, GL, GL)(Kernel).tile(32, 32).to(Block).max_shared_bytes(4096)
        >>> sums = blocks.epilog(RF, Init.tile(4, 4).to(Thread).done(), store)
        >>> kernel = sums.split(16).load(A, SH).load(B, SH).tile(4, 4).to(Thread).tile(1, 1).split(1).done().program().ir
        >>> kernel.shared_bytes
        4096
        """
    def min_blocks_per_sm(self, blocks: Integer) -> Self:
        """Limit registers so that `blocks` blocks fit on an SM.

        Args: blocks: 1 to 32, or a tunable. Legal on a tile distributed over blocks.
        rewrite: __launch_bounds__(threads) --> __launch_bounds__(threads, blocks)
        """
    def ordered(self) -> Self:
        """Let the blocks that add to one result do so in the order of their indices: the result is the same in each run.

        A semaphore per result counts the blocks that have added. A block waits until all blocks before it were counted, so additions of
        different results overlap, but those of one result do not. A GPU starts blocks in the order of their indices, and a block only waits for
        blocks with lower ones; so the kernel ends. Legal on `split_k(parts, Block, step)`, and on a tile of a `Fused` spec that is distributed
        over blocks, if steps add to outputs (`+=`) with all threads of a block, each element once, in loops that all blocks execute equally.
        rewrite: C += c --> wait until p blocks have added; C += c; count this block        (block p of those that share C)

        Source: decision 91.

        >>> from fireiron import *
        >>> blocks = MatMul(64, 64, 256)(GL, GL, GL)(Kernel).split_k(4, Block, 8).ordered()
        >>> text = blocks.tile(16, 16).to(Block).epilog(RF).tile(1, 1).to(Thread).split(1).done().cuda()
        >>> [line.split(";")[0].strip() for line in text.splitlines() if "(&workspace" in line]
        ['wait_for_count(&workspace[block / 4], block_k)', 'count_block(&workspace[block / 4], 4)']
        """
    def persistent(self, blocks: Integer = 132, dynamic: bool = False) -> Self:
        """Launch at most `blocks` persistent blocks, each of which computes several tiles; the default is the 132 SMs of an H100 or H200.

        With `warp_specialize`, the loads of the next tile overlap the store of the current one. With `dynamic`, a block claims its next tile
        from a counter when it is free. This is for tiles of different cost, as under a causal mask; combine it with `longest_first`. Legal on a
        tile distributed over blocks, for a number or a tunable. `dynamic` requires `warp_specialize`, and excludes cluster, pingpong and
        programmatic_launch.
        rewrite: block u: tile u --> block u: tiles u, u + blocks, u + 2 * blocks ...; dynamic: tile u, then the next unclaimed tile
        """
    def pingpong(self, warpgroups: Integer) -> Self:
        """Let `warpgroups` groups of consumer warpgroups alternate between the tiles of a persistent block: one computes while another stores.

        Args: warpgroups: 1 or 2, or a tunable. Legal with `persistent`, around a split with `warp_specialize` whose tile is distributed over
        whole warpgroups.
        rewrite: consumers: for tile: S(tile) --> consumers g: for tile = g, g + groups ...: wait for tile - 1; MMAs; arrive; store
        """
    def programmatic_launch(self, no_wait: Operand | str | tuple[Operand | str, ...] = ()) -> Self:
        """Overlap the start of this kernel with the end of the previous one in the stream (programmatic dependent launch).

        The kernel waits for the previous one before its first access to global memory. Legal on a tile distributed over blocks, from sm_90 on,
        where no output must be zeroed before the kernel.
        rewrite: S --> launch dependents; wait for the previous kernel; S

        Args: no_wait: inputs that no kernel of the sequence writes (you promise this), as in `programmatic_launch(no_wait=B)`. The producer
        loads their first tiles before the wait. Legal with `warp_specialize`, if a block has one tile.
        """
    def rasterize(self, group_m: Integer | None = None, raster: Integer = 0, *, group_n: Integer | None = None) -> Self:
        """Compute output tiles in groups of `group_m` tile rows, one tile column after the other, or in groups of `group_n` tile columns.

        Concurrent blocks then share rows and columns in the L2 cache.

        Args: group_m: tile rows per group, or a tunable. raster: 0 for groups of tile rows, 1 for groups of tile columns, 2 for `hilbert` (with
        `group_m=1`), or a tunable that selects one. group_n: tile columns per group. Legal on a tile of two dimensions that is distributed over
        blocks.
        rewrite: block u: tile (u // columns, u % columns) --> block u: tile (first row + u % group, u // group) in each group
        """
    def stream_k(self, blocks: Integer, step: Integer, waves: Integer = 1) -> Self:
        """Launch at most `blocks` persistent blocks, which share the iterations of tiles evenly (Stream-K).

        Args: blocks: the number of blocks, usually the SMs of the GPU. step: elements of k per unit of work, a multiple of the next `split`.
        waves: complete waves of tiles that are also shared, in addition to the partial last wave; a number of at least the waves of all tiles
        shares all of them, and 0 only the partial wave. The last block of a tile adds the parts of the sum in the order of k, and performs the
        epilogue. Legal on a tile of a MatMul, or of a Fused spec with one matmul, distributed over blocks, for constant sizes.
        rewrite: block u: tile u --> block u: units u*T/n to (u+1)*T/n - 1 of all T units; the last block of a tile: C = epilogue(sum of parts)
        """
    def swizzle(self, permutation: Expr | str | int | Callable[[Expr], Expr | int]) -> Self:
        """Assign tile `permutation(uid)` to unit `uid`.

        Args: permutation: an expression over `uid`, its text, or a callable that receives the symbol.
        Legal on a tile that is distributed with `to`, if the expression permutes the units.
        rewrite: unit u: tile u --> unit u: tile permutation(u)
        """
    def to(self, level: Level) -> Self:
        """Distribute the tiles over the units of a level, in parallel. Surplus units are idle; surplus tiles need more iterations.

        Legal if the level is below the spec's. Several tiles in sequence may be distributed over blocks:
        `MatMul.tile(b=1).to(Block).then(strategy)` assigns one b to each group of blocks, and the strategy distributes the tiles of that b over
        the group.
        rewrite: for m: for n: S --> unit u: S at level, tile number u
        """
    def unchecked(self, reason: str) -> Self:
        """Report data races as warnings, and print the reason in the kernel's header.

        Legal with a reason of one line. rewrite: S --> // unchecked: reason; S
        """
    def unroll(self) -> Self:
        """Unroll the loops in the printed code. Legal on every tile. rewrite: for i: S --> #pragma unroll for i: S"""

class SplitVerbs:
    def defer(self, step: str, after: str) -> Self:
        """Run a step, and all steps after it, one iteration later: after the step `after` of the next iteration (software pipelining).

        With `defer("pv", after="s")`, the MMAs of the next scores are in flight before the current values are multiplied. Loads move with the
        step that reads them. Legal on the split of a fused definition whose steps are directly in the loop. The deferred steps must not write
        data that the preceding steps of the next iteration access, and conversely. A buffer that both access needs at least two stages.
        rewrite: for i: F(i) R(i) D(i) --> F(0) R(0); for i in all but the last: F(i+1) D(i) R(i+1); D(last)
        """
    def mma_in_flight(self, groups: Integer, at_end: bool = False) -> Self:
        """Keep up to `groups` wgmma groups in flight while the next ones are issued: 1 is best for one consumer warpgroup, 0 for several.

        Legal on a split with `warp_specialize`, from 0 to one less than its stages, for a number or a tunable.
        rewrite: mma(k); wait all; release(k) --> mma(k); wait all but `groups`; release(k - groups)

        Args: at_end: wait for the others only at the end of an iteration.
        """
    def order_mma(self, first: str, last: str) -> Self:
        """Let the warpgroups issue the MMAs from the step `first` to the step `last` of an iteration in a fixed order, one after the other.

        The MMAs of one warpgroup then run while others execute their other steps. Combine `order_mma("s", "pv")` with `defer("pv", after="s")`,
        which places both MMAs next to each other. Legal on the split of a fused definition with `warp_specialize`, if both steps are wgmma
        MMAs. It has no effect for one warpgroup, or if TMA does none of the loads.
        rewrite: for i: P(i) R(i) --> warpgroup w: for i: wait for i * warpgroups + w - 1; P(i); arrive for i * warpgroups + w; R(i)
        """
    def pipeline(self, stages: Integer, interleave: bool = False) -> Self:
        """Issue the loads directly under the split `stages - 1` iterations ahead, into `stages` buffers each.

        Args: stages: 1 to 16, or a tunable; interleave: issue the copies between the MMAs of the inner split instead of all at once. Legal if
        at least one load is under the split.
        rewrite: for k: load(k); S(k) --> load(0) ... load(stages-2); for k: { load(k+stages-1); S(k) }
        """
    def separate_masked_tiles(self) -> Self:
        """Print the iterations in which no mask changes an element as a separate loop, without the masks and their conditions.

        Legal on any split. The conditions of masks, and of elements past the end, are comparisons that are linear in the loop variable. So they
        hold in the first or in the last iterations, and the loop is printed two or three times. Other loops stay as they are: those with other
        conditions, unrolled ones, and those of a single iteration. Results and checks do not change.
        rewrite: for n: S; if edge(n): mask; T --> for n < end: S; T, for n from end on: S; if edge(n): mask; T

        Source: decision 146.

        >>> from fireiron import *
        >>> masked = Fused(
        ...     name="masked_sum", dims="m n", loop="n", operands={"X": "m n", "y": "m"},
        ...     init={"zero": "t[m] = 0"},
        ...     body={
        ...         "x": "x[m,n] = X[m,n]", "mask": "x[m,n] = where(n <= m, x[m,n], 0)",
        ...         "sums": "s[m] = sum(n, x[m,n])", "add": "t[m] = t[m] + s[m]",
        ...     },
        ...     final={"out": "y[m] = t[m]"},
        ... )
        >>> row = Move.tile(1, 4).to(Lane).done()
        >>> tiles = masked.tile(m=1).to(Block).split(n=128).skip_masked_tiles().separate_masked_tiles()
        >>> text = tiles.tile(m=1).to(Warp).load("X", RF, row).done()(masked(m=512, n=512)).cuda()
        >>> for line in text.splitlines():
        ...     if "int n" in line or "if (block" in line:
        ...         print(line.strip())
        const int n_end = min((blockIdx.x + 1) / 128, blockIdx.x / 128 + 1);
        for (int n = 0; n < n_end; ++n) {
        for (int n = n_end; n < block / 128 + 1; ++n) {
        if (block < n * 128 + 127) {
        """
    def skip_masked_tiles(self) -> Self:
        """Run only the iterations in which a mask, such as `where(n <= m, s[m,n], -inf)`, leaves an element of the block's tile unmasked.

        Legal on the split of a fused definition above Warp, if comparisons of coordinates bound the dimension, and if a fully masked iteration
        changes no value that the loop carries, for any contents of the arrays. For parameters passed by value, the argument `positive` of
        the definition promises that they are above 0. If a mask compares digits, `first[e] <= n // 64`, and the step of the split divides 64,
        the iterations that run are not masked at all, and the mask is removed from them.
        rewrite: for n in all: S --> for n with an unmasked element in the block's tile: S

        Source: decisions 38 and 109.

        >>> from fireiron import *
        >>> masked = Fused(
        ...     name="masked_sum", dims="m n", loop="n", operands={"X": "m n", "y": "m"},
        ...     init={"zero": "t[m] = 0"},
        ...     body={"mask": "x[m,n] = where(n <= m, X[m,n], 0)", "sums": "s[m] = sum(n, x[m,n])", "add": "t[m] = t[m] + s[m]"},
        ...     final={"out": "y[m] = t[m]"},
        ... )
        >>> row = Move.tile(1, 128).to(Warp).tile(1, 4).to(Lane).done()
        >>> tiles = masked.tile(m=1).to(Block).split(n=128).skip_masked_tiles()
        >>> text = tiles.load("X", RF, row).done()(masked(m=512, n=512)).cuda()
        >>> [line.strip() for line in text.splitlines() if "int n =" in line]
        ['for (int n = 0; n < block / 128 + 1; ++n) {']
        """
    def stagger_blocks(self, offset: Integer = 1) -> Self:
        """Begin the loop of block `b` at iteration `b * offset` and wrap around, so that blocks do not read the same columns at the same time.

        If rows are long, the elements of a column map to few memory channels (Tensile: "StaggerU"). The order of accumulation changes. Legal
        after a tile distributed over blocks, on a split of one dimension into contiguous parts, of operands in global memory: of a matmul, of a
        reduction, or of a definition whose iterations only add to values that they share. The blocks of a cluster begin at the same iteration.
        The number may be a tunable; 0 has no effect.
        rewrite: for k: S(k) --> for k: S((k + block * offset) % iterations)

        >>> from fireiron import *
        >>> blocks = MatMul(64, 64, 64)(GL, GL, GL)(Kernel).tile(32, 32).to(Block)
        >>> loads = blocks.split(8).stagger_blocks(1).load(A, SH).load(B, SH)
        >>> text = loads.tile(4, 4).to(Thread).tile(1, 1).split(1).done().cuda()
        >>> [line.strip() for line in text.splitlines() if "int k_shifted" in line]
        ['const int k_shifted = (k + block) % 8;']

        Source: docs/pipeline.md.
        """
    def sync(self) -> Self:
        """Require a block barrier at the end of the loop body.

        Legal if all threads of the block run the loop. rewrite: for k: S --> for k: { S; barrier }
        """
    def unchecked(self, reason: str) -> Self:
        """Report data races as warnings, and print the reason in the kernel's header.

        Legal with a reason of one line. rewrite: S --> // unchecked: reason; S
        """
    def unroll(self) -> Self:
        """Unroll the loop in the printed code. Legal on every split. rewrite: for k: S --> #pragma unroll for k: S"""
    def warp_specialize(
        self,
        producer_threads: Integer = 32,
        copies: bool = False,
        separate: Operand | str | tuple[Operand | str, ...] = (),
        store_stages: Integer = 0,
    ) -> Self:
        """Issue the loads under a pipelined split by dedicated producer threads, a warp (32) or a warpgroup (128).

        A producer warpgroup gives registers to the consumers. Without `copies`, there is a producer only if TMA can do all of the loads. With
        `copies`, the producer also executes loads that TMA cannot do. Legal with `pipeline`.

        Args: separate: operands whose loads have a separate producer each: `warp_specialize(separate=B)`. store_stages: if not 0, a separate
        warp issues the TMA stores, from a circular buffer with this number of stages, which consumers fill.
        rewrite: for k: load(k); S(k) --> producer: for k: wait empty; load(k)   consumers: for k: wait full; S(k); release
        """

class SplitKVerbs:
    def ordered(self) -> Self:
        """Let the blocks that add to one result do so in the order of their indices: the result is the same in each run.

        A semaphore per result counts the blocks that have added. A block waits until all blocks before it were counted, so additions of
        different results overlap, but those of one result do not. A GPU starts blocks in the order of their indices, and a block only waits for
        blocks with lower ones; so the kernel ends. Legal on `split_k(parts, Block, step)`, and on a tile of a `Fused` spec that is distributed
        over blocks, if steps add to outputs (`+=`) with all threads of a block, each element once, in loops that all blocks execute equally.
        rewrite: C += c --> wait until p blocks have added; C += c; count this block        (block p of those that share C)

        Source: decision 91.

        >>> from fireiron import *
        >>> blocks = MatMul(64, 64, 256)(GL, GL, GL)(Kernel).split_k(4, Block, 8).ordered()
        >>> text = blocks.tile(16, 16).to(Block).epilog(RF).tile(1, 1).to(Thread).split(1).done().cuda()
        >>> [line.split(";")[0].strip() for line in text.splitlines() if "(&workspace" in line]
        ['wait_for_count(&workspace[block / 4], block_k)', 'count_block(&workspace[block / 4], 4)']
        """
    def pad(self, elements: Integer) -> Self:
        """Pad the leading dimension of the partial results by `elements` elements, instead of the default swizzle.

        Legal from 0 to 4096. Use 0 for instructions that support neither padding nor swizzles, such as WMMA.
        rewrite: P_sh[p][16][16] --> P_sh[p][16][16 + elements]
        """
    def reduce_in_last_block(self) -> Self:
        """Sum the partial results of a tile in the block that finishes it last, which then performs the epilogue and stores C.

        Each block stores its part in a workspace that the launcher provides, and counts itself at the semaphore of the tile. The last block
        adds all parts in their order, so the result is the same in each run, and C may have any type. Legal on `split_k(parts, Block, step)`,
        with accumulators of at least 32 bits in registers or shared memory.
        rewrite: block p: C += P[p] --> block p: W[p] = P[p]; the last block: C = epilogue(W[0] + W[1] + ...)

        Source: decision 91.

        >>> from fireiron import *
        >>> blocks = MatMul(64, 64, 256, c_dtype=float16)(GL, GL, GL)(Kernel).split_k(4, Block, 8).reduce_in_last_block()
        >>> text = blocks.tile(16, 16).to(Block).epilog(RF, float32).tile(1, 1).to(Thread).split(1).done().cuda()
        >>> [line.strip() for line in text.splitlines() if "is_last_block(&" in line]
        ['if (!is_last_block(&workspace[block / 4], 4)) return;  // only the last block of a tile continues']
        """
    def unchecked(self, reason: str) -> Self:
        """Report data races as warnings, and print the reason in the kernel's header.

        Legal with a reason of one line. rewrite: S --> // unchecked: reason; S
        """

class LoadVerbs:
    def align(self, number: SupportsIndex) -> Self:
        """Align the new buffer to a multiple of `number` bytes.

        Legal for a power of two up to 1024. rewrite: load(A, SH) --> the same load, its buffer with __align__(number)
        """
    def cast_on_copy(self) -> Self:
        """Give the new buffer the type of a Move's destination, or of the other factor of a MatMul: the copy to it converts the elements.

        Legal on the load of a Move's source, and of a factor of a MatMul if the type of the other factor has all its numbers: 8-bit floats and
        integers with float16 or bfloat16, 16-bit floats with float32. 8-bit floats are converted in pairs.
        rewrite: Move(float32); Move(float32 -> float16) --> Move(float32 -> float16); Move(float16)

        Source: decision 21; decision 111 for factors.

        >>> from fireiron import *
        >>> store = Move.load(SRC, SH, Move.tile(4, 4).to(Thread).done()).cast_on_copy().coalesced_copy(8).done()
        >>> blocks = MatMul(64, 64, 64, dtype=float16, c_dtype=float16)(GL, GL, GL)(Kernel).tile(32, 32).to(Block)
        >>> sums = blocks.epilog(RF, float32, Init.tile(4, 4).to(Thread).done(), store)
        >>> text = sums.split(16).tile(4, 4).to(Thread).tile(1, 1).split(1).done().cuda()
        >>> [line.strip() for line in text.splitlines() if "__shared__" in line]
        ['__shared__ __align__(16) __half store_c_sh[1024];  // 32 x 32']
        """
    def no_sync(self) -> Self:
        """Forbid a barrier directly after the copy.

        Legal if another barrier orders the copy and its readers; otherwise a `SynchronizationError` shows the race.
        rewrite: copy; barrier; copy --> copy; copy
        """
    def overlap(self, rows: Integer, columns: Integer, warps: Integer = 1) -> Self:
        """Copy in the launch that reads the copy, by additional warps; readers wait for regions of `rows` x `columns` elements.

        On `to_gpus("k")`, additional warps add the sums of all GPUs in the launch that computes them. Legal on a load to GL and on `to_gpus` of
        a reduction dimension, with constant sizes, in a kernel with a producer whose blocks are all resident.
        rewrite: launch 1: A' = A; launch 2: S(A') --> one launch: copying warps: A' = A; others: wait for regions; S(A')

        Args:
            rows, columns: the sizes of a region, multiples of a tile that the producer loads, or that warpgroups store.
            warps: the number of copying or adding warps of a block.
        """
    def pad(self, elements: Integer) -> Self:
        """Pad the leading dimension of the new buffer by `elements` elements, against bank conflicts.

        Legal from 0 to 4096. rewrite: A_sh[8][128] --> A_sh[8][128 + elements]
        """
    def reuse_buffer(self) -> Self:
        """Let the new buffer share storage with earlier buffers that are dead.

        Legal if such a buffer exists. rewrite: two arrays --> one array, and a barrier between their uses
        """
    def share_barriers(self, operand: Operand | str) -> Self:
        """Fill and release the stages of this load together with those of another load, `operand`, on the same mbarriers.

        Legal on a load to SH under the same split with `warp_specialize` as the other load, which precedes it and has as many stages.
        rewrite: wait for Q; wait for L --> wait for Q and L
        """
    def share_stages(self, operand: Operand | str) -> Self:
        """Store this load in the circular buffer of another load, `operand`: the two fill its stages alternately.

        Legal on a load to SH under the same split with `warp_specialize` as the other load, which precedes it, for tiles of one shape, type
        and layout. All loads of that buffer must share it.
        rewrite: X_sh[k % s], H_sh[k % s] --> X_sh[2k % s], X_sh[(2k + 1) % s]
        """
    def stages(self, stages: Integer) -> Self:
        """Give the circular buffer of this load `stages` stages, instead of the number that `pipeline` specifies.

        On a `set_memory`, give the temporary `stages` copies that iterations use alternately: threads write the values of the next iteration
        while MMAs still read those of this one.

        Legal on a load to SH by a producer (`warp_specialize`), from 1 to 16, for a number or a tunable. The producer waits for each circular
        buffer separately. Persistent blocks give loads outside of the split two stages; `stages(1)` leaves the memory to other buffers. Also
        legal on a `set_memory` in SH, below a split, of a temporary that is not carried between iterations.
        rewrite: A_sh[k % pipeline] --> A_sh[k % stages]
        """
    def storage_layout(self, layout: MatrixLayout | Layout) -> Self:
        """Store the new buffer row-major, column-major, or in a hierarchical `shape:stride` layout.

        Legal for a layout with the shape of the buffer. rewrite: A_sh[k][m] --> A_sh[m][k]
        """
    def swizzle_storage(self, swizzle: Swizzle | None = None) -> Self:
        """XOR the addresses in the new buffer as the swizzle specifies, against bank conflicts.

        Legal for every `Swizzle`; the size of the buffer is rounded up to a multiple of its period. The default depends on the leading
        dimension of the buffer, so that 16-byte pieces of adjacent rows (columns) are in different banks.
        rewrite: A_sh[i] --> A_sh[swizzle(i)]

        Source: CUDA C++ Programming Guide, "Shared Memory".

        >>> from fireiron import *
        >>> blocks = MatMul(64, 64, 64)(GL, GL, GL)(Kernel).tile(32, 32).to(Block)
        >>> loads = blocks.split(8).load(A, SH).swizzle_storage(Swizzle(2, 0, 3)).load(B, SH)
        >>> text = loads.tile(4, 4).to(Thread).tile(1, 1).split(1).done().cuda()
        >>> [line.strip() for line in text.splitlines() if "int a_sh_swizzle" in line]
        ['const int a_sh_swizzle = thread_m % 4;', 'const int a_sh_swizzle2 = thread_m / 2;']
        """
    def to_col_major(self) -> Self:
        """Store the new buffer column-major. Legal on every load. rewrite: A_sh[m][k] --> A_sh[k][m]"""
    def to_row_major(self) -> Self:
        """Store the new buffer row-major. Legal on every load. rewrite: A_sh[k][m] --> A_sh[m][k]"""
    def unchecked(self, reason: str) -> Self:
        """Report data races as warnings, and print the reason in the kernel's header.

        Legal with a reason of one line. rewrite: S --> // unchecked: reason; S
        """

class EpilogVerbs:
    def prefetch_epilogue(self, enable: bool = True) -> Self:
        """Copy vectors that an epilogue reads, such as `bias[n]` or `scale[m]`, to shared memory before the main loop.

        The copies are in flight while the MMAs run, so the epilogue does not wait for them. In a kernel with `warp_specialize`, the producer
        loads them by TMA, in a persistent block during the previous tile. In other kernels, all threads copy them. Legal on an epilog; it has
        no effect if the epilogue reads no such vector. `MatMul.fuse_epilogue` adds it to a strategy with `warp_specialize` unless the strategy
        specifies `prefetch_epilogue(enable=False)`.
        rewrite: acc = sum(A B); C = f(acc, bias) --> bias_sh = bias; acc = sum(A B); C = f(acc, bias_sh)

        Source: docs/epilogues.md.

        >>> from fireiron import *
        >>> types = {"dtype": float16, "c_dtype": float16, "A": RowMajor, "B": RowMajor, "C": RowMajor}
        >>> tiles = MatMul(512, 512, 512, **types)(GL, GL, GL)(Kernel).tile(128, 64).to(Block).epilog(RF, float32).prefetch_epilogue()
        >>> steps = tiles.split(64).pipeline(3).warp_specialize().load(A, SH, Move.done()).load(B, SH, Move.done())
        >>> text = steps.tile(64, 64).to(Warpgroup).done().fuse_epilogue("relu(acc + bias[n])").cuda()
        >>> [line.strip() for line in text.splitlines() if "tma_load_1d(b" in line]
        ['tma_load_1d(bias_sh_address, &bias_map, block_n * 64, bias_sh_ring_full);']
        """
    def unchecked(self, reason: str) -> Self:
        """Report data races as warnings, and print the reason in the kernel's header.

        Legal with a reason of one line. rewrite: S --> // unchecked: reason; S
        """

class SetMemoryVerbs:
    def stages(self, stages: Integer) -> Self:
        """Give the circular buffer of this load `stages` stages, instead of the number that `pipeline` specifies.

        On a `set_memory`, give the temporary `stages` copies that iterations use alternately: threads write the values of the next iteration
        while MMAs still read those of this one.

        Legal on a load to SH by a producer (`warp_specialize`), from 1 to 16, for a number or a tunable. The producer waits for each circular
        buffer separately. Persistent blocks give loads outside of the split two stages; `stages(1)` leaves the memory to other buffers. Also
        legal on a `set_memory` in SH, below a split, of a temporary that is not carried between iterations.
        rewrite: A_sh[k % pipeline] --> A_sh[k % stages]
        """
    def swizzle_storage(self, swizzle: Swizzle | None = None) -> Self:
        """XOR the addresses in the new buffer as the swizzle specifies, against bank conflicts.

        Legal for every `Swizzle`; the size of the buffer is rounded up to a multiple of its period. The default depends on the leading
        dimension of the buffer, so that 16-byte pieces of adjacent rows (columns) are in different banks.
        rewrite: A_sh[i] --> A_sh[swizzle(i)]

        Source: CUDA C++ Programming Guide, "Shared Memory".

        >>> from fireiron import *
        >>> blocks = MatMul(64, 64, 64)(GL, GL, GL)(Kernel).tile(32, 32).to(Block)
        >>> loads = blocks.split(8).load(A, SH).swizzle_storage(Swizzle(2, 0, 3)).load(B, SH)
        >>> text = loads.tile(4, 4).to(Thread).tile(1, 1).split(1).done().cuda()
        >>> [line.strip() for line in text.splitlines() if "int a_sh_swizzle" in line]
        ['const int a_sh_swizzle = thread_m % 4;', 'const int a_sh_swizzle2 = thread_m / 2;']
        """

class ToGpusVerbs:
    def overlap(self, rows: Integer, columns: Integer, warps: Integer = 1) -> Self:
        """Copy in the launch that reads the copy, by additional warps; readers wait for regions of `rows` x `columns` elements.

        On `to_gpus("k")`, additional warps add the sums of all GPUs in the launch that computes them. Legal on a load to GL and on `to_gpus` of
        a reduction dimension, with constant sizes, in a kernel with a producer whose blocks are all resident.
        rewrite: launch 1: A' = A; launch 2: S(A') --> one launch: copying warps: A' = A; others: wait for regions; S(A')

        Args:
            rows, columns: the sizes of a region, multiples of a tile that the producer loads, or that warpgroups store.
            warps: the number of copying or adding warps of a block.
        """

REFINEMENT_VERBS: Final[Mapping[str, type]]

class ForAny:
    def then(self, step: Decomposition | Strategy) -> Strategy:
        """Append a decomposition, or all steps of another strategy.

        Legal when the chain is not finished by `done`.
        rewrite: steps --> steps, step

        Source: Fireiron, section 3.3.

        >>> from fireiron import *
        >>> blocks, threads = MatMul.tile(16, 16).to(Block), MatMul.tile(4, 4).to(Thread)
        >>> blocks.then(threads)
        MatMul.tile(16, 16).to(Block).tile(4, 4).to(Thread)
        """
    def tile(self, *sizes: TileSize | Strided, **by_dim: TileSize) -> TileStrategy:
        """Divide the output into tiles, with the matching parts of the inputs: a sequential loop, or with `.to(level)`, parallel units.

        Args: `r, c` in elements, or sizes by dimension name (`m=64`), or `Strided((chunk, repeat), ...)`. If a spec has more dimensions than
        there are sizes, the sizes apply to the rows and columns of a matrix; the other dimensions must have one element. A size may be a layout
        of the elements of the first tile: `Layout(2, 4)` has two elements, every fourth; its complement has the first elements of the other
        tiles (Graphene, section 3.3). Legal if each size divides a static parent tile. The last tile of a whole tensor may be partly out of
        bounds, and is guarded. A layout must contain each element once, and fill the dimension together with its complement.
        rewrite: MatMul(M,N,K) --> for m: for n: MatMul(r,c,K)      (Fireiron, section 3.4)

        >>> from fireiron import *
        >>> print(MatMul(64, 64, 8)(GL, GL, GL)(Kernel).tile(32, 16).to(Block).result)
        MatMul(32,16,8)(GL,GL,GL)(Block)
        """
    def split(self, *sizes: TileSize, **by_dim: TileSize) -> SplitStrategy:
        """Loop sequentially over a reduction dimension and accumulate the results.

        Args: the number of elements of k per iteration, or their layout as in `tile`. Legal on a spec with a reduction dimension, if the size
        divides a static tile.
        rewrite: MatMul(M,N,K) --> for k: MatMul(M,N,kBlock), accumulating      (Fireiron, section 4.1)

        >>> from fireiron import *
        >>> print(MatMul(64, 64, 8)(GL, GL, GL)(Kernel).tile(64, 64).to(Block).split(4).result)
        MatMul(64,64,4)(GL,GL,GL)(Block)
        """
    def load(self, operand: Operand | str, memory: Memory, move: Strategy | None = None) -> LoadStrategy:
        """Copy an input operand to a new buffer in another memory; `move` decomposes the copy.

        Args: operand: `A`, `B`, `Move.src`, or a name. memory: the memory of the buffer. move: a strategy for the `Move` (None: one element per
        thread and iteration, which is always legal).
        Legal for inputs of static size. A buffer in private memory is distributed over threads as its readers require. For one matrix of a
        batch (`bmk`, if a tile has one b), the buffer is a matrix.
        rewrite: MatMul(..)(GL,..) --> Move(A, GL -> SH); MatMul(..)(SH,..)      (Fireiron, section 3.3)

        >>> from fireiron import *
        >>> print(MatMul(64, 64, 8)(GL, GL, GL)(Kernel).tile(64, 64).to(Block).load(A, SH).result)
        MatMul(64,64,8)(SH,GL,GL)(Block)
        """
    def epilog(
        self,
        memory: Memory,
        first: Strategy | DType | None = None,
        second: Strategy | None = None,
        third: Strategy | None = None,
        *,
        init: Strategy | None = None,
        store: Strategy | None = None,
        dtype: DType | None = None,
    ) -> EpilogStrategy:
        """Allocate an accumulator: `init` initializes it, the rest of the chain accumulates to it, and `store` copies it to C.

        Args: `epilog(memory, init, store)` or `epilog(memory, dtype, init, store)`. The default type of the accumulator is the spec's
        `accumulator`, or if it has none, that of C. Without strategies, each thread initializes and stores the elements that it owns if the
        accumulator is in registers or fragments; in shared memory, adjacent threads handle adjacent elements. Legal before any `split` that
        accumulates. For a spec that accumulates, `init` loads C.
        rewrite: MatMul(..)(..,GL) --> Init(C'); MatMul(..)(..,RF); Move(C', RF -> GL)      (Fireiron, section 4.1)

        >>> from fireiron import *
        >>> print(MatMul(64, 64, 8)(GL, GL, GL)(Kernel).tile(64, 64).to(Block).epilog(RF).result)
        MatMul(64,64,8)(GL,GL,RF)(Block)
        """
    def done(self, executable: Executable | str | None = None) -> Strategy:
        """Match the residual spec with an instruction of the target, the given executable, or the given micro-kernel.

        Args: executable: nothing, an `Executable`, a `MicroKernel`, CUDA C++ text, or the name of a `.cu` file in the folder of the strategy's
            file or in the working directory.
        Legal if the executable performs the spec: kind, level, memories, sizes and types must match, and the target must support it. A
        micro-kernel performs any spec.
        rewrite: spec --> instruction      (Fireiron, section 3.4)

        >>> from fireiron import *
        >>> leaf = MatMul(16, 16, 8)(GL, GL, GL)(Kernel).tile(4, 4).to(Block).tile(1, 1).to(Thread).split(1)
        >>> print(leaf.result)
        MatMul(1,1,1)(GL,GL,GL)(Thread)
        >>> "fmaf(" in leaf.done().cuda()
        True
        >>> "c[0] += a[0] * b[0];" in leaf.done("c[0] += a[0] * b[0];").cuda()
        True
        """

class ForEvery:
    def then(self, step: Decomposition | Strategy) -> EveryStrategy:
        """Append a decomposition, or all steps of another strategy.

        Legal when the chain is not finished by `done`.
        rewrite: steps --> steps, step

        Source: Fireiron, section 3.3.

        >>> from fireiron import *
        >>> blocks, threads = MatMul.tile(16, 16).to(Block), MatMul.tile(4, 4).to(Thread)
        >>> blocks.then(threads)
        MatMul.tile(16, 16).to(Block).tile(4, 4).to(Thread)
        """
    def coalesced_copy(self, width: Integer) -> EveryStrategy:
        """Copy with all threads of a group: each copies vectors of contiguous elements, in the storage order of the more distant memory.

        Args: width: the maximum number of elements per vector. Vectors are narrower if sizes and leading dimensions do not prove their
        alignment. Legal on a `Move` of a group of threads.
        rewrite: Move(m,n)(Block) --> Move(1,width)(Thread), or Move(width,1)(Thread) if the storage is column-major

        >>> from fireiron import *
        >>> print(Move(64, 32)(GL, SH)(Block).coalesced_copy(4).result)
        Move(4,1)(GL,SH)(Thread)

        Source: CUDA C++ Programming Guide, "Device Memory Accesses".
        """
    def done(self, executable: Executable | str | None = None) -> EveryStrategy:
        """Match the residual spec with an instruction of the target, the given executable, or the given micro-kernel.

        Args: executable: nothing, an `Executable`, a `MicroKernel`, CUDA C++ text, or the name of a `.cu` file in the folder of the strategy's
            file or in the working directory.
        Legal if the executable performs the spec: kind, level, memories, sizes and types must match, and the target must support it. A
        micro-kernel performs any spec.
        rewrite: spec --> instruction      (Fireiron, section 3.4)

        >>> from fireiron import *
        >>> leaf = MatMul(16, 16, 8)(GL, GL, GL)(Kernel).tile(4, 4).to(Block).tile(1, 1).to(Thread).split(1)
        >>> print(leaf.result)
        MatMul(1,1,1)(GL,GL,GL)(Thread)
        >>> "fmaf(" in leaf.done().cuda()
        True
        >>> "c[0] += a[0] * b[0];" in leaf.done("c[0] += a[0] * b[0];").cuda()
        True
        """
    def epilog(
        self,
        memory: Memory,
        first: Strategy | DType | None = None,
        second: Strategy | None = None,
        third: Strategy | None = None,
        *,
        init: Strategy | None = None,
        store: Strategy | None = None,
        dtype: DType | None = None,
    ) -> EveryEpilog:
        """Allocate an accumulator: `init` initializes it, the rest of the chain accumulates to it, and `store` copies it to C.

        Args: `epilog(memory, init, store)` or `epilog(memory, dtype, init, store)`. The default type of the accumulator is the spec's
        `accumulator`, or if it has none, that of C. Without strategies, each thread initializes and stores the elements that it owns if the
        accumulator is in registers or fragments; in shared memory, adjacent threads handle adjacent elements. Legal before any `split` that
        accumulates. For a spec that accumulates, `init` loads C.
        rewrite: MatMul(..)(..,GL) --> Init(C'); MatMul(..)(..,RF); Move(C', RF -> GL)      (Fireiron, section 4.1)

        >>> from fireiron import *
        >>> print(MatMul(64, 64, 8)(GL, GL, GL)(Kernel).tile(64, 64).to(Block).epilog(RF).result)
        MatMul(64,64,8)(GL,GL,RF)(Block)
        """
    def load(self, operand: Operand | str, memory: Memory, move: Strategy | None = None) -> EveryLoad:
        """Copy an input operand to a new buffer in another memory; `move` decomposes the copy.

        Args: operand: `A`, `B`, `Move.src`, or a name. memory: the memory of the buffer. move: a strategy for the `Move` (None: one element per
        thread and iteration, which is always legal).
        Legal for inputs of static size. A buffer in private memory is distributed over threads as its readers require. For one matrix of a
        batch (`bmk`, if a tile has one b), the buffer is a matrix.
        rewrite: MatMul(..)(GL,..) --> Move(A, GL -> SH); MatMul(..)(SH,..)      (Fireiron, section 3.3)

        >>> from fireiron import *
        >>> print(MatMul(64, 64, 8)(GL, GL, GL)(Kernel).tile(64, 64).to(Block).load(A, SH).result)
        MatMul(64,64,8)(SH,GL,GL)(Block)
        """
    def mma_tile(self, instruction: Executable | None = None) -> EveryStrategy:
        """Decompose a contiguous 16x16 tile of a warp into tiles of the target's matrix instruction.

        Args: instruction: for example `HMMA_16816_F32`. By default the target decides: for float16, m8n8k4 by quad-pairs on Volta, m16n8k8 on
        Turing, m16n8k16 from Ampere on; other element types have other shapes.
        Legal at Warp for 16 x 16 elements of C, if the k of the instruction divides the k of the spec.
        rewrite: MatMul(16,16,K)(Warp) --> for n: for k: MatMul(16,8,16)(Warp)      (Fireiron, section 5.3)

        >>> from fireiron import *
        >>> mm = MatMul(16, 16, 16, dtype=float16, c_dtype=float32)(GL, GL, GL)(Kernel).tile(16, 16).to(Block).tile(16, 16).to(Warp)
        >>> print(mm.mma_tile().result)
        MatMul(16,8,16)(GL,GL,GL)(Warp)
        """
    def print_values(self, tensor: str, where: str = '', step: str = '', iterations: bool = False) -> EveryStrategy:
        """Print elements of a tensor from inside the kernel, after each step that writes it. The results of the kernel do not change.

        An input is printed before the first step that reads it, by each block that reads it. Of an output to which several blocks add, a line
        `y[3] += 2` has the value that a block adds.
        Args: tensor: a temporary, an output or an input. where: the elements to print, a condition on coordinates and on the element:
        `"m == 3 and n < 8"`, `"acc != acc"` (NaN); by default all. For a dimension that the tensor does not have, such as that of a loop, it
        compares the first coordinate of the iteration. step: the step after which to print; for an input, the step before which to print.
        iterations: print the accumulator of a matmul after each iteration of the loop in the strategy of its step, which precedes this step.
        The simulator and a GPU print the same lines, in any order. The thread that owns an element prints it.
        Legal on a Fused definition, for tensors in registers, and for tensors whose step computes each element from others.
        rewrite: t[m,n] = f --> t[m,n] = f; if where: print(m, n, t[m,n])

        Source: decision 96.

        >>> from fireiron import *
        >>> import numpy as np
        >>> sums = Fused(
        ...     name="sums", dims="m n", loop="n", operands={"X": "m n", "y": "m"}, init={"zero": "s[m] = 0"},
        ...     body={"add": "s[m] += sum(n, X[m,n])"}, final={"out": "y[m] = s[m]"},
        ... )
        >>> rows = Move.tile(1, 1).to(Thread).done()
        >>> blocks = sums.tile(m=1).to(Block).print_values("s", where="m == 2 and s > 40").split(n=32).load("X", RF, rows).done()
        >>> y = blocks(sums(m=4, n=128)).compile("sm_80")(np.ones((4, 128), np.float16))
        add: s[2] = 64 (n = 32, block 2, thread 0)
        add: s[2] = 96 (n = 64, block 2, thread 0)
        add: s[2] = 128 (n = 96, block 2, thread 0)
        """
    def repack(self, operand: Operand | str, move: Strategy | None = None, *, order: MatrixLayout | None = None) -> EveryStrategy:
        """Copy an input operand to an array that TMA and 16-byte copies can read, by a preceding launch, if they cannot read its own array.

        The copy is necessary if the row stride is not a multiple of 16 bytes, or if an instruction reads the operand along a dimension that is
        not contiguous: wgmma reads elements of sizes other than 16 bits along k only.
        Args: operand: an input. move: a strategy for the `Move` (None: adjacent threads copy adjacent elements, or tiles are transposed in
        shared memory). order: the storage order of the new array (None: the order in which MMAs read it, or that of the operand, or row-major).
        The launcher allocates the new array for each call, or once for a prepared launch.
        Legal first in a chain, for matrices in GL and batches of them. It has no effect if the operand's array meets the requirements.
        rewrite: MatMul(..)(A) --> Move(A -> A'); MatMul(..)(A')

        >>> from fireiron import *
        >>> mm = MatMul(64, 64, 33, A=RowMajor)(GL, GL, GL)(Kernel).repack(A).tile(64, 64).to(Block)
        >>> print(mm.program().launches[0].program.spec.notation, mm.result.A.tensor.layout)
        Move(64,33)(GL,GL)(Kernel) RowMajor(ld=64)

        Source: decision 32.
        """
    def rfactor(self, step: str, parts: int) -> EveryStrategy:
        """Keep a reduction in `parts` partial results, which are combined before a step reads the result.

        With `attention.rfactor("sums", 4)`, each of four lanes keeps its part of the row sums, and of all tensors that are linear in them,
        during the loop over keys. Shuffles combine the parts once, after the loop (Halide and TVM: `rfactor`).

        Legal on the whole definition, before `split`, for the sum, the maximum or the minimum of one tensor whose result is a temporary in
        registers. Other steps may write it only if they distribute over the parts: `l * alpha + sums` for a sum, not `l + 1`. `parts` is the
        number of threads that have terms of one result, or a divisor of that number; the most expensive exchanges are done first: between
        warps, then between distant lanes.
        rewrite: t[m] = sum(n, s[m,n]); u[m] = f(t[m]) --> t_parts[m,p] = own terms; t[m] = sum(p, t_parts[m,p]); u[m] = f(t[m])

        Source: decision 37.

        >>> from fireiron import *
        >>> rows = Fused(
        ...     name="row_sum", dims="m n", loop="n", operands={"X": "m n", "y": "m"},
        ...     init={"zero": "t[m] = 0"}, body={"sums": "s[m] = sum(n, X[m,n])", "add": "t[m] = t[m] + s[m]"}, final={"out": "y[m] = t[m]"},
        ... )
        >>> row = Move.tile(1, 128).to(Warp).tile(1, 4).to(Lane).done()
        >>> joined = rows.rfactor("sums", 32).tile(m=1).to(Block).split(n=128).load("X", RF, row).done()(rows(m=8, n=512)).cuda()
        >>> joined.index("for (int n =") < joined.rindex("warp_reduce_sum(")  # after the loop, not in each iteration
        True
        """
    def set_memory(self, tensor: str, memory: Memory, pad: int = 0) -> EverySetMemory:
        """Allocate a temporary of the definition in a memory, at this level; in shared memory, one copy per unit of the level.

        `pad` is the padding of its rows in elements. Other temporaries are in registers. Without padding and `swizzle_storage`, an instruction
        that reads the temporary from shared memory, such as `wgmma`, chooses its layout. Elementwise steps that write it and read no registers
        store vectors, by all threads of the level. `stages` is the number of copies that iterations use alternately.

        Legal below Block, for SH and RF. rewrite: definition --> allocate t in memory; definition on t

        Source: Cypress, section 3.3; decision 36.

        >>> from fireiron import *
        >>> doubled = Fused(
        ...     name="doubled", dims="m n k", operands={"A": "m k", "B": "k n", "C": "m n"},
        ...     body={"product": "c[m,n] = sum(k, A[m,k] * B[k,n])", "twice": "C[m,n] = c[m,n] * 2"},
        ... )

        >>> blocks = doubled.tile(m=16, n=16).to(Block).set_memory("c", SH, pad=1).step("product", MatMul.tile(1, 1).to(Thread).split(1).done())
        >>> text = blocks.done()(doubled(m=64, n=64, k=8)).cuda()
        >>> [line.strip() for line in text.splitlines() if "__shared__" in line]
        ['__shared__ __align__(16) float c_sh[272];  // 16 x 16']

        The next temporary is the operand of an MMA, which `ldmatrix` reads. The iterations of k use two copies of it alternately:

        >>> weights = Fused(
        ...     name="weights", dims="m n k", loop="k", operands={"A": "m k", "W": "n k", "C": "m n"}, init={"zero": "c[m,n] = 0"},
        ...     body={"weight": "w[n,k] = W[n,k] * 0.5", "product": "c[m,n] += sum(k, A[m,k] * w[n,k])"}, final={"out": "C[m,n] = c[m,n]"},
        ... )
        >>> chain = weights.tile(m=32, n=32).to(Block).split(k=32).load("A", SH).set_memory("w", SH).swizzle_storage().stages(2)
        >>> warps = MatMul.tile(16, 32).to(Warp).split(16).load(A, RF, Move.done()).load(B, RF, Move.done()).tile(16, 16).mma_tile().done()
        >>> text = chain.step("product", warps).done()(weights(m=64, n=64, k=128, types={"W": int8})).cuda("sm_80")
        >>> [line.strip() for line in text.splitlines() if "__half w_sh" in line]
        ['__shared__ __align__(16) __half w_sh[2048];  // 32 x 32, 2 stages']
        """
    def skip_steps(self, *steps: str, where: str) -> EveryStrategy:
        """Skip steps of a fused definition in each warp for which a condition holds for all elements of its threads.

        Args: steps: names of steps. where: a condition that elements equal each other or a number: `"new == mx"`, `"alpha == 1"`. Consecutive
        steps share one branch.
        Legal on steps on registers that, under the condition, leave each value unchanged or set it to a number. The kernel sets such a number
        before the branch. The compiler proves this from the formulas, for all finite elements of the arrays.
        rewrite: alpha[m] = f; l[m] = l[m] * alpha[m] --> alpha[m] = 1; if needed: { alpha[m] = f; l[m] = l[m] * alpha[m] }

        Source: decision 44.

        >>> from fireiron import *
        >>> peak = Fused(
        ...     name="peak", dims="m n", loop="n", operands={"X": "m n", "y": "m"},
        ...     init={"low": "top[m] = -inf"},
        ...     body={"part": "part[m] = max(n, X[m,n])", "new": "new[m] = max(top[m], part[m])", "keep": "top[m] = new[m]"},
        ...     final={"out": "y[m] = top[m]"},
        ... )
        >>> row = Move.tile(1, 128).to(Warp).tile(1, 4).to(Lane).done()
        >>> loads = peak.tile(m=1).to(Block).split(n=128).load("X", RF, row).skip_steps("keep", where="new == top")
        >>> [line.strip() for line in loads.done()(peak(m=8, n=512)).cuda().splitlines() if "__any_sync" in line]
        ['if (__any_sync(0xffffffff, keep_needed[0])) {']
        """
    def split(self, *sizes: TileSize, **by_dim: TileSize) -> EverySplit:
        """Loop sequentially over a reduction dimension and accumulate the results.

        Args: the number of elements of k per iteration, or their layout as in `tile`. Legal on a spec with a reduction dimension, if the size
        divides a static tile.
        rewrite: MatMul(M,N,K) --> for k: MatMul(M,N,kBlock), accumulating      (Fireiron, section 4.1)

        >>> from fireiron import *
        >>> print(MatMul(64, 64, 8)(GL, GL, GL)(Kernel).tile(64, 64).to(Block).split(4).result)
        MatMul(64,64,4)(GL,GL,GL)(Block)
        """
    def split_k(self, parts: Integer, level: Level, step: Integer, combine: Strategy | None = None) -> EverySplitK:
        """Distribute a reduction dimension over parallel units, in chunks assigned round-robin, and sum the partial results.

        Args: parts: the number of parts. level: the level of the units. step: elements of k per chunk, a multiple of the next `split`. combine:
        a strategy for the `Reduction` that sums the partial results (None: one element per thread). In a block, each unit has separate
        accumulators, which are summed in shared memory. On a spec of the whole kernel, the level is Block: blocks add to C atomically, and the
        launcher (or the simulator) sets C to zero before the launch. k is the first reduction dimension with several elements. Legal on a
        MatMul before `epilog`; across blocks before `tile(...).to(Block)`, for C of float32, float64 or int32. With `reduce_in_last_block`, C
        may have any type, and a `Fused` spec may have steps after its matmul.
        rewrite: MatMul(M,N,K)(Block) --> unit u: MatMul(M,N,K/parts)(.., P[u])(level); Reduction(M,N,parts)(P, C)

        >>> from fireiron import *
        >>> mm = MatMul(64, 64, 256)(GL, GL, GL)(Kernel).tile(16, 16).to(Block)
        >>> print(mm.split_k(2, Warp, 64).result)
        MatMul(16,16,128)(GL,GL,SH)(Warp)

        Source: Fireiron, section 5.3; decision 11.
        """
    def step(self, name: str, strategy: Strategy) -> EveryStrategy:
        """Give one step of a fused definition a strategy: a chain from the kind of spec of its formula, such as MatMul.

        Legal on a definition with such a step.
        rewrite: definition --> definition with a strategy for the step      (Graphene, section 5.3)

        >>> from fireiron import *
        >>> doubled = Fused(
        ...     name="doubled", dims="m n k", operands={"A": "m k", "B": "k n", "C": "m n"},
        ...     body={"product": "c[m,n] = sum(k, A[m,k] * B[k,n])", "twice": "C[m,n] = c[m,n] * 2"},
        ... )

        >>> by_threads = MatMul.tile(1, 1).to(Thread).split(1).done()
        >>> text = doubled.tile(m=16, n=16).to(Block).step("product", by_threads).done()(doubled(m=64, n=64, k=8)).cuda()
        >>> [line.strip() for line in text.splitlines() if "// twice" in line]
        ['// twice: C[m,n] = c[m,n] * 2']
        """
    def tile(self, *sizes: TileSize | Strided, **by_dim: TileSize) -> EveryTile:
        """Divide the output into tiles, with the matching parts of the inputs: a sequential loop, or with `.to(level)`, parallel units.

        Args: `r, c` in elements, or sizes by dimension name (`m=64`), or `Strided((chunk, repeat), ...)`. If a spec has more dimensions than
        there are sizes, the sizes apply to the rows and columns of a matrix; the other dimensions must have one element. A size may be a layout
        of the elements of the first tile: `Layout(2, 4)` has two elements, every fourth; its complement has the first elements of the other
        tiles (Graphene, section 3.3). Legal if each size divides a static parent tile. The last tile of a whole tensor may be partly out of
        bounds, and is guarded. A layout must contain each element once, and fill the dimension together with its complement.
        rewrite: MatMul(M,N,K) --> for m: for n: MatMul(r,c,K)      (Fireiron, section 3.4)

        >>> from fireiron import *
        >>> print(MatMul(64, 64, 8)(GL, GL, GL)(Kernel).tile(32, 16).to(Block).result)
        MatMul(32,16,8)(GL,GL,GL)(Block)
        """
    def to_gpus(self, dim: str, *, sums: DType | None = None) -> EveryToGpus:
        """Divide a dimension of the result equally among the GPUs of a node. Each GPU computes its part in separate launches.

        Legal first in a chain, for a spec at the level `Node(n)`, if n divides the size of the dimension and the outputs are distributed over
        it. Inputs may be distributed over the same dimension, over another one, or be stored on each GPU. If the dimension is reduced, each GPU
        stores sums of its part, and a further launch adds those of all GPUs. `sums` is their type, that of the accumulator by default; the type
        of the result halves the bytes that GPUs read of each other, and rounds each sum once more.
        rewrite: MatMul(M,N,K)(Node(G)) --> MatMul(M,N/G,K)(Kernel) on each GPU

        >>> from fireiron import *
        >>> product = MatMul(64, 32, 16, B=RowMajor.over(GPU, "n"), C=RowMajor.over(GPU, "n"))(GL, GL, GL)(Node(2))
        >>> print(product.to_gpus("n").program().inner)
        MatMul(64,16,16)(GL,GL,GL)(Kernel) with B, C RowMajor

        Source: decision 115.
        """

class EveryStrategy(ForEvery, Strategy):
    def compile(self, architecture: Architecture | str | None = None, options: tuple[str, ...] = ()) -> FusedKernel: ...

class EveryTile(EveryStrategy, TileStrategy): ...

class EverySplit(EveryStrategy, SplitStrategy): ...

class EverySplitK(EveryStrategy, SplitKStrategy): ...

class EveryLoad(EveryStrategy, LoadStrategy): ...

class EveryEpilog(EveryStrategy, EpilogStrategy): ...

class EverySetMemory(EveryStrategy, SetMemoryStrategy): ...

class EveryToGpus(EveryStrategy, ToGpusStrategy): ...

class ForMatMul:
    def then(self, step: Decomposition | Strategy) -> MatMulStrategy:
        """Append a decomposition, or all steps of another strategy.

        Legal when the chain is not finished by `done`.
        rewrite: steps --> steps, step

        Source: Fireiron, section 3.3.

        >>> from fireiron import *
        >>> blocks, threads = MatMul.tile(16, 16).to(Block), MatMul.tile(4, 4).to(Thread)
        >>> blocks.then(threads)
        MatMul.tile(16, 16).to(Block).tile(4, 4).to(Thread)
        """
    def done(self, executable: Executable | str | None = None) -> MatMulStrategy:
        """Match the residual spec with an instruction of the target, the given executable, or the given micro-kernel.

        Args: executable: nothing, an `Executable`, a `MicroKernel`, CUDA C++ text, or the name of a `.cu` file in the folder of the strategy's
            file or in the working directory.
        Legal if the executable performs the spec: kind, level, memories, sizes and types must match, and the target must support it. A
        micro-kernel performs any spec.
        rewrite: spec --> instruction      (Fireiron, section 3.4)

        >>> from fireiron import *
        >>> leaf = MatMul(16, 16, 8)(GL, GL, GL)(Kernel).tile(4, 4).to(Block).tile(1, 1).to(Thread).split(1)
        >>> print(leaf.result)
        MatMul(1,1,1)(GL,GL,GL)(Thread)
        >>> "fmaf(" in leaf.done().cuda()
        True
        >>> "c[0] += a[0] * b[0];" in leaf.done("c[0] += a[0] * b[0];").cuda()
        True
        """
    def epilog(
        self,
        memory: Memory,
        first: Strategy | DType | None = None,
        second: Strategy | None = None,
        third: Strategy | None = None,
        *,
        init: Strategy | None = None,
        store: Strategy | None = None,
        dtype: DType | None = None,
    ) -> MatMulEpilog:
        """Allocate an accumulator: `init` initializes it, the rest of the chain accumulates to it, and `store` copies it to C.

        Args: `epilog(memory, init, store)` or `epilog(memory, dtype, init, store)`. The default type of the accumulator is the spec's
        `accumulator`, or if it has none, that of C. Without strategies, each thread initializes and stores the elements that it owns if the
        accumulator is in registers or fragments; in shared memory, adjacent threads handle adjacent elements. Legal before any `split` that
        accumulates. For a spec that accumulates, `init` loads C.
        rewrite: MatMul(..)(..,GL) --> Init(C'); MatMul(..)(..,RF); Move(C', RF -> GL)      (Fireiron, section 4.1)

        >>> from fireiron import *
        >>> print(MatMul(64, 64, 8)(GL, GL, GL)(Kernel).tile(64, 64).to(Block).epilog(RF).result)
        MatMul(64,64,8)(GL,GL,RF)(Block)
        """
    def load(self, operand: Operand | str, memory: Memory, move: Strategy | None = None) -> MatMulLoad:
        """Copy an input operand to a new buffer in another memory; `move` decomposes the copy.

        Args: operand: `A`, `B`, `Move.src`, or a name. memory: the memory of the buffer. move: a strategy for the `Move` (None: one element per
        thread and iteration, which is always legal).
        Legal for inputs of static size. A buffer in private memory is distributed over threads as its readers require. For one matrix of a
        batch (`bmk`, if a tile has one b), the buffer is a matrix.
        rewrite: MatMul(..)(GL,..) --> Move(A, GL -> SH); MatMul(..)(SH,..)      (Fireiron, section 3.3)

        >>> from fireiron import *
        >>> print(MatMul(64, 64, 8)(GL, GL, GL)(Kernel).tile(64, 64).to(Block).load(A, SH).result)
        MatMul(64,64,8)(SH,GL,GL)(Block)
        """
    def mma_tile(self, instruction: Executable | None = None) -> MatMulStrategy:
        """Decompose a contiguous 16x16 tile of a warp into tiles of the target's matrix instruction.

        Args: instruction: for example `HMMA_16816_F32`. By default the target decides: for float16, m8n8k4 by quad-pairs on Volta, m16n8k8 on
        Turing, m16n8k16 from Ampere on; other element types have other shapes.
        Legal at Warp for 16 x 16 elements of C, if the k of the instruction divides the k of the spec.
        rewrite: MatMul(16,16,K)(Warp) --> for n: for k: MatMul(16,8,16)(Warp)      (Fireiron, section 5.3)

        >>> from fireiron import *
        >>> mm = MatMul(16, 16, 16, dtype=float16, c_dtype=float32)(GL, GL, GL)(Kernel).tile(16, 16).to(Block).tile(16, 16).to(Warp)
        >>> print(mm.mma_tile().result)
        MatMul(16,8,16)(GL,GL,GL)(Warp)
        """
    def repack(self, operand: Operand | str, move: Strategy | None = None, *, order: MatrixLayout | None = None) -> MatMulStrategy:
        """Copy an input operand to an array that TMA and 16-byte copies can read, by a preceding launch, if they cannot read its own array.

        The copy is necessary if the row stride is not a multiple of 16 bytes, or if an instruction reads the operand along a dimension that is
        not contiguous: wgmma reads elements of sizes other than 16 bits along k only.
        Args: operand: an input. move: a strategy for the `Move` (None: adjacent threads copy adjacent elements, or tiles are transposed in
        shared memory). order: the storage order of the new array (None: the order in which MMAs read it, or that of the operand, or row-major).
        The launcher allocates the new array for each call, or once for a prepared launch.
        Legal first in a chain, for matrices in GL and batches of them. It has no effect if the operand's array meets the requirements.
        rewrite: MatMul(..)(A) --> Move(A -> A'); MatMul(..)(A')

        >>> from fireiron import *
        >>> mm = MatMul(64, 64, 33, A=RowMajor)(GL, GL, GL)(Kernel).repack(A).tile(64, 64).to(Block)
        >>> print(mm.program().launches[0].program.spec.notation, mm.result.A.tensor.layout)
        Move(64,33)(GL,GL)(Kernel) RowMajor(ld=64)

        Source: decision 32.
        """
    def split(self, *sizes: TileSize, **by_dim: TileSize) -> MatMulSplit:
        """Loop sequentially over a reduction dimension and accumulate the results.

        Args: the number of elements of k per iteration, or their layout as in `tile`. Legal on a spec with a reduction dimension, if the size
        divides a static tile.
        rewrite: MatMul(M,N,K) --> for k: MatMul(M,N,kBlock), accumulating      (Fireiron, section 4.1)

        >>> from fireiron import *
        >>> print(MatMul(64, 64, 8)(GL, GL, GL)(Kernel).tile(64, 64).to(Block).split(4).result)
        MatMul(64,64,4)(GL,GL,GL)(Block)
        """
    def split_k(self, parts: Integer, level: Level, step: Integer, combine: Strategy | None = None) -> MatMulSplitK:
        """Distribute a reduction dimension over parallel units, in chunks assigned round-robin, and sum the partial results.

        Args: parts: the number of parts. level: the level of the units. step: elements of k per chunk, a multiple of the next `split`. combine:
        a strategy for the `Reduction` that sums the partial results (None: one element per thread). In a block, each unit has separate
        accumulators, which are summed in shared memory. On a spec of the whole kernel, the level is Block: blocks add to C atomically, and the
        launcher (or the simulator) sets C to zero before the launch. k is the first reduction dimension with several elements. Legal on a
        MatMul before `epilog`; across blocks before `tile(...).to(Block)`, for C of float32, float64 or int32. With `reduce_in_last_block`, C
        may have any type, and a `Fused` spec may have steps after its matmul.
        rewrite: MatMul(M,N,K)(Block) --> unit u: MatMul(M,N,K/parts)(.., P[u])(level); Reduction(M,N,parts)(P, C)

        >>> from fireiron import *
        >>> mm = MatMul(64, 64, 256)(GL, GL, GL)(Kernel).tile(16, 16).to(Block)
        >>> print(mm.split_k(2, Warp, 64).result)
        MatMul(16,16,128)(GL,GL,SH)(Warp)

        Source: Fireiron, section 5.3; decision 11.
        """
    def tile(self, *sizes: TileSize | Strided, **by_dim: TileSize) -> MatMulTile:
        """Divide the output into tiles, with the matching parts of the inputs: a sequential loop, or with `.to(level)`, parallel units.

        Args: `r, c` in elements, or sizes by dimension name (`m=64`), or `Strided((chunk, repeat), ...)`. If a spec has more dimensions than
        there are sizes, the sizes apply to the rows and columns of a matrix; the other dimensions must have one element. A size may be a layout
        of the elements of the first tile: `Layout(2, 4)` has two elements, every fourth; its complement has the first elements of the other
        tiles (Graphene, section 3.3). Legal if each size divides a static parent tile. The last tile of a whole tensor may be partly out of
        bounds, and is guarded. A layout must contain each element once, and fill the dimension together with its complement.
        rewrite: MatMul(M,N,K) --> for m: for n: MatMul(r,c,K)      (Fireiron, section 3.4)

        >>> from fireiron import *
        >>> print(MatMul(64, 64, 8)(GL, GL, GL)(Kernel).tile(32, 16).to(Block).result)
        MatMul(32,16,8)(GL,GL,GL)(Block)
        """
    def to_gpus(self, dim: str, *, sums: DType | None = None) -> MatMulToGpus:
        """Divide a dimension of the result equally among the GPUs of a node. Each GPU computes its part in separate launches.

        Legal first in a chain, for a spec at the level `Node(n)`, if n divides the size of the dimension and the outputs are distributed over
        it. Inputs may be distributed over the same dimension, over another one, or be stored on each GPU. If the dimension is reduced, each GPU
        stores sums of its part, and a further launch adds those of all GPUs. `sums` is their type, that of the accumulator by default; the type
        of the result halves the bytes that GPUs read of each other, and rounds each sum once more.
        rewrite: MatMul(M,N,K)(Node(G)) --> MatMul(M,N/G,K)(Kernel) on each GPU

        >>> from fireiron import *
        >>> product = MatMul(64, 32, 16, B=RowMajor.over(GPU, "n"), C=RowMajor.over(GPU, "n"))(GL, GL, GL)(Node(2))
        >>> print(product.to_gpus("n").program().inner)
        MatMul(64,16,16)(GL,GL,GL)(Kernel) with B, C RowMajor

        Source: decision 115.
        """

class MatMulStrategy(ForMatMul, Strategy): ...

class MatMulTile(MatMulStrategy, TileStrategy): ...

class MatMulSplit(MatMulStrategy, SplitStrategy): ...

class MatMulSplitK(MatMulStrategy, SplitKStrategy): ...

class MatMulLoad(MatMulStrategy, LoadStrategy): ...

class MatMulEpilog(MatMulStrategy, EpilogStrategy): ...

class MatMulToGpus(MatMulStrategy, ToGpusStrategy): ...

class ForMove:
    def then(self, step: Decomposition | Strategy) -> MoveStrategy:
        """Append a decomposition, or all steps of another strategy.

        Legal when the chain is not finished by `done`.
        rewrite: steps --> steps, step

        Source: Fireiron, section 3.3.

        >>> from fireiron import *
        >>> blocks, threads = MatMul.tile(16, 16).to(Block), MatMul.tile(4, 4).to(Thread)
        >>> blocks.then(threads)
        MatMul.tile(16, 16).to(Block).tile(4, 4).to(Thread)
        """
    def coalesced_copy(self, width: Integer) -> MoveStrategy:
        """Copy with all threads of a group: each copies vectors of contiguous elements, in the storage order of the more distant memory.

        Args: width: the maximum number of elements per vector. Vectors are narrower if sizes and leading dimensions do not prove their
        alignment. Legal on a `Move` of a group of threads.
        rewrite: Move(m,n)(Block) --> Move(1,width)(Thread), or Move(width,1)(Thread) if the storage is column-major

        >>> from fireiron import *
        >>> print(Move(64, 32)(GL, SH)(Block).coalesced_copy(4).result)
        Move(4,1)(GL,SH)(Thread)

        Source: CUDA C++ Programming Guide, "Device Memory Accesses".
        """
    def done(self, executable: Executable | str | None = None) -> MoveStrategy:
        """Match the residual spec with an instruction of the target, the given executable, or the given micro-kernel.

        Args: executable: nothing, an `Executable`, a `MicroKernel`, CUDA C++ text, or the name of a `.cu` file in the folder of the strategy's
            file or in the working directory.
        Legal if the executable performs the spec: kind, level, memories, sizes and types must match, and the target must support it. A
        micro-kernel performs any spec.
        rewrite: spec --> instruction      (Fireiron, section 3.4)

        >>> from fireiron import *
        >>> leaf = MatMul(16, 16, 8)(GL, GL, GL)(Kernel).tile(4, 4).to(Block).tile(1, 1).to(Thread).split(1)
        >>> print(leaf.result)
        MatMul(1,1,1)(GL,GL,GL)(Thread)
        >>> "fmaf(" in leaf.done().cuda()
        True
        >>> "c[0] += a[0] * b[0];" in leaf.done("c[0] += a[0] * b[0];").cuda()
        True
        """
    def load(self, operand: Operand | str, memory: Memory, move: Strategy | None = None) -> MoveLoad:
        """Copy an input operand to a new buffer in another memory; `move` decomposes the copy.

        Args: operand: `A`, `B`, `Move.src`, or a name. memory: the memory of the buffer. move: a strategy for the `Move` (None: one element per
        thread and iteration, which is always legal).
        Legal for inputs of static size. A buffer in private memory is distributed over threads as its readers require. For one matrix of a
        batch (`bmk`, if a tile has one b), the buffer is a matrix.
        rewrite: MatMul(..)(GL,..) --> Move(A, GL -> SH); MatMul(..)(SH,..)      (Fireiron, section 3.3)

        >>> from fireiron import *
        >>> print(MatMul(64, 64, 8)(GL, GL, GL)(Kernel).tile(64, 64).to(Block).load(A, SH).result)
        MatMul(64,64,8)(SH,GL,GL)(Block)
        """
    def tile(self, *sizes: TileSize | Strided, **by_dim: TileSize) -> MoveTile:
        """Divide the output into tiles, with the matching parts of the inputs: a sequential loop, or with `.to(level)`, parallel units.

        Args: `r, c` in elements, or sizes by dimension name (`m=64`), or `Strided((chunk, repeat), ...)`. If a spec has more dimensions than
        there are sizes, the sizes apply to the rows and columns of a matrix; the other dimensions must have one element. A size may be a layout
        of the elements of the first tile: `Layout(2, 4)` has two elements, every fourth; its complement has the first elements of the other
        tiles (Graphene, section 3.3). Legal if each size divides a static parent tile. The last tile of a whole tensor may be partly out of
        bounds, and is guarded. A layout must contain each element once, and fill the dimension together with its complement.
        rewrite: MatMul(M,N,K) --> for m: for n: MatMul(r,c,K)      (Fireiron, section 3.4)

        >>> from fireiron import *
        >>> print(MatMul(64, 64, 8)(GL, GL, GL)(Kernel).tile(32, 16).to(Block).result)
        MatMul(32,16,8)(GL,GL,GL)(Block)
        """
    def to_gpus(self, dim: str, *, sums: DType | None = None) -> MoveToGpus:
        """Divide a dimension of the result equally among the GPUs of a node. Each GPU computes its part in separate launches.

        Legal first in a chain, for a spec at the level `Node(n)`, if n divides the size of the dimension and the outputs are distributed over
        it. Inputs may be distributed over the same dimension, over another one, or be stored on each GPU. If the dimension is reduced, each GPU
        stores sums of its part, and a further launch adds those of all GPUs. `sums` is their type, that of the accumulator by default; the type
        of the result halves the bytes that GPUs read of each other, and rounds each sum once more.
        rewrite: MatMul(M,N,K)(Node(G)) --> MatMul(M,N/G,K)(Kernel) on each GPU

        >>> from fireiron import *
        >>> product = MatMul(64, 32, 16, B=RowMajor.over(GPU, "n"), C=RowMajor.over(GPU, "n"))(GL, GL, GL)(Node(2))
        >>> print(product.to_gpus("n").program().inner)
        MatMul(64,16,16)(GL,GL,GL)(Kernel) with B, C RowMajor

        Source: decision 115.
        """

class MoveStrategy(ForMove, Strategy): ...

class MoveTile(MoveStrategy, TileStrategy): ...

class MoveSplit(MoveStrategy, SplitStrategy): ...

class MoveSplitK(MoveStrategy, SplitKStrategy): ...

class MoveLoad(MoveStrategy, LoadStrategy): ...

class MoveEpilog(MoveStrategy, EpilogStrategy): ...

class MoveToGpus(MoveStrategy, ToGpusStrategy): ...

class ForInit:
    def then(self, step: Decomposition | Strategy) -> Strategy:
        """Append a decomposition, or all steps of another strategy.

        Legal when the chain is not finished by `done`.
        rewrite: steps --> steps, step

        Source: Fireiron, section 3.3.

        >>> from fireiron import *
        >>> blocks, threads = MatMul.tile(16, 16).to(Block), MatMul.tile(4, 4).to(Thread)
        >>> blocks.then(threads)
        MatMul.tile(16, 16).to(Block).tile(4, 4).to(Thread)
        """
    def done(self, executable: Executable | str | None = None) -> Strategy:
        """Match the residual spec with an instruction of the target, the given executable, or the given micro-kernel.

        Args: executable: nothing, an `Executable`, a `MicroKernel`, CUDA C++ text, or the name of a `.cu` file in the folder of the strategy's
            file or in the working directory.
        Legal if the executable performs the spec: kind, level, memories, sizes and types must match, and the target must support it. A
        micro-kernel performs any spec.
        rewrite: spec --> instruction      (Fireiron, section 3.4)

        >>> from fireiron import *
        >>> leaf = MatMul(16, 16, 8)(GL, GL, GL)(Kernel).tile(4, 4).to(Block).tile(1, 1).to(Thread).split(1)
        >>> print(leaf.result)
        MatMul(1,1,1)(GL,GL,GL)(Thread)
        >>> "fmaf(" in leaf.done().cuda()
        True
        >>> "c[0] += a[0] * b[0];" in leaf.done("c[0] += a[0] * b[0];").cuda()
        True
        """
    def tile(self, *sizes: TileSize | Strided, **by_dim: TileSize) -> TileStrategy:
        """Divide the output into tiles, with the matching parts of the inputs: a sequential loop, or with `.to(level)`, parallel units.

        Args: `r, c` in elements, or sizes by dimension name (`m=64`), or `Strided((chunk, repeat), ...)`. If a spec has more dimensions than
        there are sizes, the sizes apply to the rows and columns of a matrix; the other dimensions must have one element. A size may be a layout
        of the elements of the first tile: `Layout(2, 4)` has two elements, every fourth; its complement has the first elements of the other
        tiles (Graphene, section 3.3). Legal if each size divides a static parent tile. The last tile of a whole tensor may be partly out of
        bounds, and is guarded. A layout must contain each element once, and fill the dimension together with its complement.
        rewrite: MatMul(M,N,K) --> for m: for n: MatMul(r,c,K)      (Fireiron, section 3.4)

        >>> from fireiron import *
        >>> print(MatMul(64, 64, 8)(GL, GL, GL)(Kernel).tile(32, 16).to(Block).result)
        MatMul(32,16,8)(GL,GL,GL)(Block)
        """
    def to_gpus(self, dim: str, *, sums: DType | None = None) -> ToGpusStrategy:
        """Divide a dimension of the result equally among the GPUs of a node. Each GPU computes its part in separate launches.

        Legal first in a chain, for a spec at the level `Node(n)`, if n divides the size of the dimension and the outputs are distributed over
        it. Inputs may be distributed over the same dimension, over another one, or be stored on each GPU. If the dimension is reduced, each GPU
        stores sums of its part, and a further launch adds those of all GPUs. `sums` is their type, that of the accumulator by default; the type
        of the result halves the bytes that GPUs read of each other, and rounds each sum once more.
        rewrite: MatMul(M,N,K)(Node(G)) --> MatMul(M,N/G,K)(Kernel) on each GPU

        >>> from fireiron import *
        >>> product = MatMul(64, 32, 16, B=RowMajor.over(GPU, "n"), C=RowMajor.over(GPU, "n"))(GL, GL, GL)(Node(2))
        >>> print(product.to_gpus("n").program().inner)
        MatMul(64,16,16)(GL,GL,GL)(Kernel) with B, C RowMajor

        Source: decision 115.
        """

class ForReduction:
    def then(self, step: Decomposition | Strategy) -> Strategy:
        """Append a decomposition, or all steps of another strategy.

        Legal when the chain is not finished by `done`.
        rewrite: steps --> steps, step

        Source: Fireiron, section 3.3.

        >>> from fireiron import *
        >>> blocks, threads = MatMul.tile(16, 16).to(Block), MatMul.tile(4, 4).to(Thread)
        >>> blocks.then(threads)
        MatMul.tile(16, 16).to(Block).tile(4, 4).to(Thread)
        """
    def done(self, executable: Executable | str | None = None) -> Strategy:
        """Match the residual spec with an instruction of the target, the given executable, or the given micro-kernel.

        Args: executable: nothing, an `Executable`, a `MicroKernel`, CUDA C++ text, or the name of a `.cu` file in the folder of the strategy's
            file or in the working directory.
        Legal if the executable performs the spec: kind, level, memories, sizes and types must match, and the target must support it. A
        micro-kernel performs any spec.
        rewrite: spec --> instruction      (Fireiron, section 3.4)

        >>> from fireiron import *
        >>> leaf = MatMul(16, 16, 8)(GL, GL, GL)(Kernel).tile(4, 4).to(Block).tile(1, 1).to(Thread).split(1)
        >>> print(leaf.result)
        MatMul(1,1,1)(GL,GL,GL)(Thread)
        >>> "fmaf(" in leaf.done().cuda()
        True
        >>> "c[0] += a[0] * b[0];" in leaf.done("c[0] += a[0] * b[0];").cuda()
        True
        """
    def load(self, operand: Operand | str, memory: Memory, move: Strategy | None = None) -> LoadStrategy:
        """Copy an input operand to a new buffer in another memory; `move` decomposes the copy.

        Args: operand: `A`, `B`, `Move.src`, or a name. memory: the memory of the buffer. move: a strategy for the `Move` (None: one element per
        thread and iteration, which is always legal).
        Legal for inputs of static size. A buffer in private memory is distributed over threads as its readers require. For one matrix of a
        batch (`bmk`, if a tile has one b), the buffer is a matrix.
        rewrite: MatMul(..)(GL,..) --> Move(A, GL -> SH); MatMul(..)(SH,..)      (Fireiron, section 3.3)

        >>> from fireiron import *
        >>> print(MatMul(64, 64, 8)(GL, GL, GL)(Kernel).tile(64, 64).to(Block).load(A, SH).result)
        MatMul(64,64,8)(SH,GL,GL)(Block)
        """
    def repack(self, operand: Operand | str, move: Strategy | None = None, *, order: MatrixLayout | None = None) -> Strategy:
        """Copy an input operand to an array that TMA and 16-byte copies can read, by a preceding launch, if they cannot read its own array.

        The copy is necessary if the row stride is not a multiple of 16 bytes, or if an instruction reads the operand along a dimension that is
        not contiguous: wgmma reads elements of sizes other than 16 bits along k only.
        Args: operand: an input. move: a strategy for the `Move` (None: adjacent threads copy adjacent elements, or tiles are transposed in
        shared memory). order: the storage order of the new array (None: the order in which MMAs read it, or that of the operand, or row-major).
        The launcher allocates the new array for each call, or once for a prepared launch.
        Legal first in a chain, for matrices in GL and batches of them. It has no effect if the operand's array meets the requirements.
        rewrite: MatMul(..)(A) --> Move(A -> A'); MatMul(..)(A')

        >>> from fireiron import *
        >>> mm = MatMul(64, 64, 33, A=RowMajor)(GL, GL, GL)(Kernel).repack(A).tile(64, 64).to(Block)
        >>> print(mm.program().launches[0].program.spec.notation, mm.result.A.tensor.layout)
        Move(64,33)(GL,GL)(Kernel) RowMajor(ld=64)

        Source: decision 32.
        """
    def split(self, *sizes: TileSize, **by_dim: TileSize) -> SplitStrategy:
        """Loop sequentially over a reduction dimension and accumulate the results.

        Args: the number of elements of k per iteration, or their layout as in `tile`. Legal on a spec with a reduction dimension, if the size
        divides a static tile.
        rewrite: MatMul(M,N,K) --> for k: MatMul(M,N,kBlock), accumulating      (Fireiron, section 4.1)

        >>> from fireiron import *
        >>> print(MatMul(64, 64, 8)(GL, GL, GL)(Kernel).tile(64, 64).to(Block).split(4).result)
        MatMul(64,64,4)(GL,GL,GL)(Block)
        """
    def tile(self, *sizes: TileSize | Strided, **by_dim: TileSize) -> TileStrategy:
        """Divide the output into tiles, with the matching parts of the inputs: a sequential loop, or with `.to(level)`, parallel units.

        Args: `r, c` in elements, or sizes by dimension name (`m=64`), or `Strided((chunk, repeat), ...)`. If a spec has more dimensions than
        there are sizes, the sizes apply to the rows and columns of a matrix; the other dimensions must have one element. A size may be a layout
        of the elements of the first tile: `Layout(2, 4)` has two elements, every fourth; its complement has the first elements of the other
        tiles (Graphene, section 3.3). Legal if each size divides a static parent tile. The last tile of a whole tensor may be partly out of
        bounds, and is guarded. A layout must contain each element once, and fill the dimension together with its complement.
        rewrite: MatMul(M,N,K) --> for m: for n: MatMul(r,c,K)      (Fireiron, section 3.4)

        >>> from fireiron import *
        >>> print(MatMul(64, 64, 8)(GL, GL, GL)(Kernel).tile(32, 16).to(Block).result)
        MatMul(32,16,8)(GL,GL,GL)(Block)
        """
    def to_gpus(self, dim: str, *, sums: DType | None = None) -> ToGpusStrategy:
        """Divide a dimension of the result equally among the GPUs of a node. Each GPU computes its part in separate launches.

        Legal first in a chain, for a spec at the level `Node(n)`, if n divides the size of the dimension and the outputs are distributed over
        it. Inputs may be distributed over the same dimension, over another one, or be stored on each GPU. If the dimension is reduced, each GPU
        stores sums of its part, and a further launch adds those of all GPUs. `sums` is their type, that of the accumulator by default; the type
        of the result halves the bytes that GPUs read of each other, and rounds each sum once more.
        rewrite: MatMul(M,N,K)(Node(G)) --> MatMul(M,N/G,K)(Kernel) on each GPU

        >>> from fireiron import *
        >>> product = MatMul(64, 32, 16, B=RowMajor.over(GPU, "n"), C=RowMajor.over(GPU, "n"))(GL, GL, GL)(Node(2))
        >>> print(product.to_gpus("n").program().inner)
        MatMul(64,16,16)(GL,GL,GL)(Kernel) with B, C RowMajor

        Source: decision 115.
        """

class ForAtomicAdd:
    def then(self, step: Decomposition | Strategy) -> Strategy:
        """Append a decomposition, or all steps of another strategy.

        Legal when the chain is not finished by `done`.
        rewrite: steps --> steps, step

        Source: Fireiron, section 3.3.

        >>> from fireiron import *
        >>> blocks, threads = MatMul.tile(16, 16).to(Block), MatMul.tile(4, 4).to(Thread)
        >>> blocks.then(threads)
        MatMul.tile(16, 16).to(Block).tile(4, 4).to(Thread)
        """
    def done(self, executable: Executable | str | None = None) -> Strategy:
        """Match the residual spec with an instruction of the target, the given executable, or the given micro-kernel.

        Args: executable: nothing, an `Executable`, a `MicroKernel`, CUDA C++ text, or the name of a `.cu` file in the folder of the strategy's
            file or in the working directory.
        Legal if the executable performs the spec: kind, level, memories, sizes and types must match, and the target must support it. A
        micro-kernel performs any spec.
        rewrite: spec --> instruction      (Fireiron, section 3.4)

        >>> from fireiron import *
        >>> leaf = MatMul(16, 16, 8)(GL, GL, GL)(Kernel).tile(4, 4).to(Block).tile(1, 1).to(Thread).split(1)
        >>> print(leaf.result)
        MatMul(1,1,1)(GL,GL,GL)(Thread)
        >>> "fmaf(" in leaf.done().cuda()
        True
        >>> "c[0] += a[0] * b[0];" in leaf.done("c[0] += a[0] * b[0];").cuda()
        True
        """
    def load(self, operand: Operand | str, memory: Memory, move: Strategy | None = None) -> LoadStrategy:
        """Copy an input operand to a new buffer in another memory; `move` decomposes the copy.

        Args: operand: `A`, `B`, `Move.src`, or a name. memory: the memory of the buffer. move: a strategy for the `Move` (None: one element per
        thread and iteration, which is always legal).
        Legal for inputs of static size. A buffer in private memory is distributed over threads as its readers require. For one matrix of a
        batch (`bmk`, if a tile has one b), the buffer is a matrix.
        rewrite: MatMul(..)(GL,..) --> Move(A, GL -> SH); MatMul(..)(SH,..)      (Fireiron, section 3.3)

        >>> from fireiron import *
        >>> print(MatMul(64, 64, 8)(GL, GL, GL)(Kernel).tile(64, 64).to(Block).load(A, SH).result)
        MatMul(64,64,8)(SH,GL,GL)(Block)
        """
    def repack(self, operand: Operand | str, move: Strategy | None = None, *, order: MatrixLayout | None = None) -> Strategy:
        """Copy an input operand to an array that TMA and 16-byte copies can read, by a preceding launch, if they cannot read its own array.

        The copy is necessary if the row stride is not a multiple of 16 bytes, or if an instruction reads the operand along a dimension that is
        not contiguous: wgmma reads elements of sizes other than 16 bits along k only.
        Args: operand: an input. move: a strategy for the `Move` (None: adjacent threads copy adjacent elements, or tiles are transposed in
        shared memory). order: the storage order of the new array (None: the order in which MMAs read it, or that of the operand, or row-major).
        The launcher allocates the new array for each call, or once for a prepared launch.
        Legal first in a chain, for matrices in GL and batches of them. It has no effect if the operand's array meets the requirements.
        rewrite: MatMul(..)(A) --> Move(A -> A'); MatMul(..)(A')

        >>> from fireiron import *
        >>> mm = MatMul(64, 64, 33, A=RowMajor)(GL, GL, GL)(Kernel).repack(A).tile(64, 64).to(Block)
        >>> print(mm.program().launches[0].program.spec.notation, mm.result.A.tensor.layout)
        Move(64,33)(GL,GL)(Kernel) RowMajor(ld=64)

        Source: decision 32.
        """
    def tile(self, *sizes: TileSize | Strided, **by_dim: TileSize) -> TileStrategy:
        """Divide the output into tiles, with the matching parts of the inputs: a sequential loop, or with `.to(level)`, parallel units.

        Args: `r, c` in elements, or sizes by dimension name (`m=64`), or `Strided((chunk, repeat), ...)`. If a spec has more dimensions than
        there are sizes, the sizes apply to the rows and columns of a matrix; the other dimensions must have one element. A size may be a layout
        of the elements of the first tile: `Layout(2, 4)` has two elements, every fourth; its complement has the first elements of the other
        tiles (Graphene, section 3.3). Legal if each size divides a static parent tile. The last tile of a whole tensor may be partly out of
        bounds, and is guarded. A layout must contain each element once, and fill the dimension together with its complement.
        rewrite: MatMul(M,N,K) --> for m: for n: MatMul(r,c,K)      (Fireiron, section 3.4)

        >>> from fireiron import *
        >>> print(MatMul(64, 64, 8)(GL, GL, GL)(Kernel).tile(32, 16).to(Block).result)
        MatMul(32,16,8)(GL,GL,GL)(Block)
        """
    def to_gpus(self, dim: str, *, sums: DType | None = None) -> ToGpusStrategy:
        """Divide a dimension of the result equally among the GPUs of a node. Each GPU computes its part in separate launches.

        Legal first in a chain, for a spec at the level `Node(n)`, if n divides the size of the dimension and the outputs are distributed over
        it. Inputs may be distributed over the same dimension, over another one, or be stored on each GPU. If the dimension is reduced, each GPU
        stores sums of its part, and a further launch adds those of all GPUs. `sums` is their type, that of the accumulator by default; the type
        of the result halves the bytes that GPUs read of each other, and rounds each sum once more.
        rewrite: MatMul(M,N,K)(Node(G)) --> MatMul(M,N/G,K)(Kernel) on each GPU

        >>> from fireiron import *
        >>> product = MatMul(64, 32, 16, B=RowMajor.over(GPU, "n"), C=RowMajor.over(GPU, "n"))(GL, GL, GL)(Node(2))
        >>> print(product.to_gpus("n").program().inner)
        MatMul(64,16,16)(GL,GL,GL)(Kernel) with B, C RowMajor

        Source: decision 115.
        """

class ForPointwise:
    def then(self, step: Decomposition | Strategy) -> Strategy:
        """Append a decomposition, or all steps of another strategy.

        Legal when the chain is not finished by `done`.
        rewrite: steps --> steps, step

        Source: Fireiron, section 3.3.

        >>> from fireiron import *
        >>> blocks, threads = MatMul.tile(16, 16).to(Block), MatMul.tile(4, 4).to(Thread)
        >>> blocks.then(threads)
        MatMul.tile(16, 16).to(Block).tile(4, 4).to(Thread)
        """
    def done(self, executable: Executable | str | None = None) -> Strategy:
        """Match the residual spec with an instruction of the target, the given executable, or the given micro-kernel.

        Args: executable: nothing, an `Executable`, a `MicroKernel`, CUDA C++ text, or the name of a `.cu` file in the folder of the strategy's
            file or in the working directory.
        Legal if the executable performs the spec: kind, level, memories, sizes and types must match, and the target must support it. A
        micro-kernel performs any spec.
        rewrite: spec --> instruction      (Fireiron, section 3.4)

        >>> from fireiron import *
        >>> leaf = MatMul(16, 16, 8)(GL, GL, GL)(Kernel).tile(4, 4).to(Block).tile(1, 1).to(Thread).split(1)
        >>> print(leaf.result)
        MatMul(1,1,1)(GL,GL,GL)(Thread)
        >>> "fmaf(" in leaf.done().cuda()
        True
        >>> "c[0] += a[0] * b[0];" in leaf.done("c[0] += a[0] * b[0];").cuda()
        True
        """
    def load(self, operand: Operand | str, memory: Memory, move: Strategy | None = None) -> LoadStrategy:
        """Copy an input operand to a new buffer in another memory; `move` decomposes the copy.

        Args: operand: `A`, `B`, `Move.src`, or a name. memory: the memory of the buffer. move: a strategy for the `Move` (None: one element per
        thread and iteration, which is always legal).
        Legal for inputs of static size. A buffer in private memory is distributed over threads as its readers require. For one matrix of a
        batch (`bmk`, if a tile has one b), the buffer is a matrix.
        rewrite: MatMul(..)(GL,..) --> Move(A, GL -> SH); MatMul(..)(SH,..)      (Fireiron, section 3.3)

        >>> from fireiron import *
        >>> print(MatMul(64, 64, 8)(GL, GL, GL)(Kernel).tile(64, 64).to(Block).load(A, SH).result)
        MatMul(64,64,8)(SH,GL,GL)(Block)
        """
    def repack(self, operand: Operand | str, move: Strategy | None = None, *, order: MatrixLayout | None = None) -> Strategy:
        """Copy an input operand to an array that TMA and 16-byte copies can read, by a preceding launch, if they cannot read its own array.

        The copy is necessary if the row stride is not a multiple of 16 bytes, or if an instruction reads the operand along a dimension that is
        not contiguous: wgmma reads elements of sizes other than 16 bits along k only.
        Args: operand: an input. move: a strategy for the `Move` (None: adjacent threads copy adjacent elements, or tiles are transposed in
        shared memory). order: the storage order of the new array (None: the order in which MMAs read it, or that of the operand, or row-major).
        The launcher allocates the new array for each call, or once for a prepared launch.
        Legal first in a chain, for matrices in GL and batches of them. It has no effect if the operand's array meets the requirements.
        rewrite: MatMul(..)(A) --> Move(A -> A'); MatMul(..)(A')

        >>> from fireiron import *
        >>> mm = MatMul(64, 64, 33, A=RowMajor)(GL, GL, GL)(Kernel).repack(A).tile(64, 64).to(Block)
        >>> print(mm.program().launches[0].program.spec.notation, mm.result.A.tensor.layout)
        Move(64,33)(GL,GL)(Kernel) RowMajor(ld=64)

        Source: decision 32.
        """
    def tile(self, *sizes: TileSize | Strided, **by_dim: TileSize) -> TileStrategy:
        """Divide the output into tiles, with the matching parts of the inputs: a sequential loop, or with `.to(level)`, parallel units.

        Args: `r, c` in elements, or sizes by dimension name (`m=64`), or `Strided((chunk, repeat), ...)`. If a spec has more dimensions than
        there are sizes, the sizes apply to the rows and columns of a matrix; the other dimensions must have one element. A size may be a layout
        of the elements of the first tile: `Layout(2, 4)` has two elements, every fourth; its complement has the first elements of the other
        tiles (Graphene, section 3.3). Legal if each size divides a static parent tile. The last tile of a whole tensor may be partly out of
        bounds, and is guarded. A layout must contain each element once, and fill the dimension together with its complement.
        rewrite: MatMul(M,N,K) --> for m: for n: MatMul(r,c,K)      (Fireiron, section 3.4)

        >>> from fireiron import *
        >>> print(MatMul(64, 64, 8)(GL, GL, GL)(Kernel).tile(32, 16).to(Block).result)
        MatMul(32,16,8)(GL,GL,GL)(Block)
        """
    def to_gpus(self, dim: str, *, sums: DType | None = None) -> ToGpusStrategy:
        """Divide a dimension of the result equally among the GPUs of a node. Each GPU computes its part in separate launches.

        Legal first in a chain, for a spec at the level `Node(n)`, if n divides the size of the dimension and the outputs are distributed over
        it. Inputs may be distributed over the same dimension, over another one, or be stored on each GPU. If the dimension is reduced, each GPU
        stores sums of its part, and a further launch adds those of all GPUs. `sums` is their type, that of the accumulator by default; the type
        of the result halves the bytes that GPUs read of each other, and rounds each sum once more.
        rewrite: MatMul(M,N,K)(Node(G)) --> MatMul(M,N/G,K)(Kernel) on each GPU

        >>> from fireiron import *
        >>> product = MatMul(64, 32, 16, B=RowMajor.over(GPU, "n"), C=RowMajor.over(GPU, "n"))(GL, GL, GL)(Node(2))
        >>> print(product.to_gpus("n").program().inner)
        MatMul(64,16,16)(GL,GL,GL)(Kernel) with B, C RowMajor

        Source: decision 115.
        """

class ForFused:
    def then(self, step: Decomposition | Strategy) -> FusedStrategy:
        """Append a decomposition, or all steps of another strategy.

        Legal when the chain is not finished by `done`.
        rewrite: steps --> steps, step

        Source: Fireiron, section 3.3.

        >>> from fireiron import *
        >>> blocks, threads = MatMul.tile(16, 16).to(Block), MatMul.tile(4, 4).to(Thread)
        >>> blocks.then(threads)
        MatMul.tile(16, 16).to(Block).tile(4, 4).to(Thread)
        """
    def done(self, executable: Executable | str | None = None) -> FusedStrategy:
        """Match the residual spec with an instruction of the target, the given executable, or the given micro-kernel.

        Args: executable: nothing, an `Executable`, a `MicroKernel`, CUDA C++ text, or the name of a `.cu` file in the folder of the strategy's
            file or in the working directory.
        Legal if the executable performs the spec: kind, level, memories, sizes and types must match, and the target must support it. A
        micro-kernel performs any spec.
        rewrite: spec --> instruction      (Fireiron, section 3.4)

        >>> from fireiron import *
        >>> leaf = MatMul(16, 16, 8)(GL, GL, GL)(Kernel).tile(4, 4).to(Block).tile(1, 1).to(Thread).split(1)
        >>> print(leaf.result)
        MatMul(1,1,1)(GL,GL,GL)(Thread)
        >>> "fmaf(" in leaf.done().cuda()
        True
        >>> "c[0] += a[0] * b[0];" in leaf.done("c[0] += a[0] * b[0];").cuda()
        True
        """
    def epilog(
        self,
        memory: Memory,
        first: Strategy | DType | None = None,
        second: Strategy | None = None,
        third: Strategy | None = None,
        *,
        init: Strategy | None = None,
        store: Strategy | None = None,
        dtype: DType | None = None,
    ) -> FusedEpilog:
        """Allocate an accumulator: `init` initializes it, the rest of the chain accumulates to it, and `store` copies it to C.

        Args: `epilog(memory, init, store)` or `epilog(memory, dtype, init, store)`. The default type of the accumulator is the spec's
        `accumulator`, or if it has none, that of C. Without strategies, each thread initializes and stores the elements that it owns if the
        accumulator is in registers or fragments; in shared memory, adjacent threads handle adjacent elements. Legal before any `split` that
        accumulates. For a spec that accumulates, `init` loads C.
        rewrite: MatMul(..)(..,GL) --> Init(C'); MatMul(..)(..,RF); Move(C', RF -> GL)      (Fireiron, section 4.1)

        >>> from fireiron import *
        >>> print(MatMul(64, 64, 8)(GL, GL, GL)(Kernel).tile(64, 64).to(Block).epilog(RF).result)
        MatMul(64,64,8)(GL,GL,RF)(Block)
        """
    def load(self, operand: Operand | str, memory: Memory, move: Strategy | None = None) -> FusedLoad:
        """Copy an input operand to a new buffer in another memory; `move` decomposes the copy.

        Args: operand: `A`, `B`, `Move.src`, or a name. memory: the memory of the buffer. move: a strategy for the `Move` (None: one element per
        thread and iteration, which is always legal).
        Legal for inputs of static size. A buffer in private memory is distributed over threads as its readers require. For one matrix of a
        batch (`bmk`, if a tile has one b), the buffer is a matrix.
        rewrite: MatMul(..)(GL,..) --> Move(A, GL -> SH); MatMul(..)(SH,..)      (Fireiron, section 3.3)

        >>> from fireiron import *
        >>> print(MatMul(64, 64, 8)(GL, GL, GL)(Kernel).tile(64, 64).to(Block).load(A, SH).result)
        MatMul(64,64,8)(SH,GL,GL)(Block)
        """
    def mma_tile(self, instruction: Executable | None = None) -> FusedStrategy:
        """Decompose a contiguous 16x16 tile of a warp into tiles of the target's matrix instruction.

        Args: instruction: for example `HMMA_16816_F32`. By default the target decides: for float16, m8n8k4 by quad-pairs on Volta, m16n8k8 on
        Turing, m16n8k16 from Ampere on; other element types have other shapes.
        Legal at Warp for 16 x 16 elements of C, if the k of the instruction divides the k of the spec.
        rewrite: MatMul(16,16,K)(Warp) --> for n: for k: MatMul(16,8,16)(Warp)      (Fireiron, section 5.3)

        >>> from fireiron import *
        >>> mm = MatMul(16, 16, 16, dtype=float16, c_dtype=float32)(GL, GL, GL)(Kernel).tile(16, 16).to(Block).tile(16, 16).to(Warp)
        >>> print(mm.mma_tile().result)
        MatMul(16,8,16)(GL,GL,GL)(Warp)
        """
    def print_values(self, tensor: str, where: str = '', step: str = '', iterations: bool = False) -> FusedStrategy:
        """Print elements of a tensor from inside the kernel, after each step that writes it. The results of the kernel do not change.

        An input is printed before the first step that reads it, by each block that reads it. Of an output to which several blocks add, a line
        `y[3] += 2` has the value that a block adds.
        Args: tensor: a temporary, an output or an input. where: the elements to print, a condition on coordinates and on the element:
        `"m == 3 and n < 8"`, `"acc != acc"` (NaN); by default all. For a dimension that the tensor does not have, such as that of a loop, it
        compares the first coordinate of the iteration. step: the step after which to print; for an input, the step before which to print.
        iterations: print the accumulator of a matmul after each iteration of the loop in the strategy of its step, which precedes this step.
        The simulator and a GPU print the same lines, in any order. The thread that owns an element prints it.
        Legal on a Fused definition, for tensors in registers, and for tensors whose step computes each element from others.
        rewrite: t[m,n] = f --> t[m,n] = f; if where: print(m, n, t[m,n])

        Source: decision 96.

        >>> from fireiron import *
        >>> import numpy as np
        >>> sums = Fused(
        ...     name="sums", dims="m n", loop="n", operands={"X": "m n", "y": "m"}, init={"zero": "s[m] = 0"},
        ...     body={"add": "s[m] += sum(n, X[m,n])"}, final={"out": "y[m] = s[m]"},
        ... )
        >>> rows = Move.tile(1, 1).to(Thread).done()
        >>> blocks = sums.tile(m=1).to(Block).print_values("s", where="m == 2 and s > 40").split(n=32).load("X", RF, rows).done()
        >>> y = blocks(sums(m=4, n=128)).compile("sm_80")(np.ones((4, 128), np.float16))
        add: s[2] = 64 (n = 32, block 2, thread 0)
        add: s[2] = 96 (n = 64, block 2, thread 0)
        add: s[2] = 128 (n = 96, block 2, thread 0)
        """
    def repack(self, operand: Operand | str, move: Strategy | None = None, *, order: MatrixLayout | None = None) -> FusedStrategy:
        """Copy an input operand to an array that TMA and 16-byte copies can read, by a preceding launch, if they cannot read its own array.

        The copy is necessary if the row stride is not a multiple of 16 bytes, or if an instruction reads the operand along a dimension that is
        not contiguous: wgmma reads elements of sizes other than 16 bits along k only.
        Args: operand: an input. move: a strategy for the `Move` (None: adjacent threads copy adjacent elements, or tiles are transposed in
        shared memory). order: the storage order of the new array (None: the order in which MMAs read it, or that of the operand, or row-major).
        The launcher allocates the new array for each call, or once for a prepared launch.
        Legal first in a chain, for matrices in GL and batches of them. It has no effect if the operand's array meets the requirements.
        rewrite: MatMul(..)(A) --> Move(A -> A'); MatMul(..)(A')

        >>> from fireiron import *
        >>> mm = MatMul(64, 64, 33, A=RowMajor)(GL, GL, GL)(Kernel).repack(A).tile(64, 64).to(Block)
        >>> print(mm.program().launches[0].program.spec.notation, mm.result.A.tensor.layout)
        Move(64,33)(GL,GL)(Kernel) RowMajor(ld=64)

        Source: decision 32.
        """
    def rfactor(self, step: str, parts: int) -> FusedStrategy:
        """Keep a reduction in `parts` partial results, which are combined before a step reads the result.

        With `attention.rfactor("sums", 4)`, each of four lanes keeps its part of the row sums, and of all tensors that are linear in them,
        during the loop over keys. Shuffles combine the parts once, after the loop (Halide and TVM: `rfactor`).

        Legal on the whole definition, before `split`, for the sum, the maximum or the minimum of one tensor whose result is a temporary in
        registers. Other steps may write it only if they distribute over the parts: `l * alpha + sums` for a sum, not `l + 1`. `parts` is the
        number of threads that have terms of one result, or a divisor of that number; the most expensive exchanges are done first: between
        warps, then between distant lanes.
        rewrite: t[m] = sum(n, s[m,n]); u[m] = f(t[m]) --> t_parts[m,p] = own terms; t[m] = sum(p, t_parts[m,p]); u[m] = f(t[m])

        Source: decision 37.

        >>> from fireiron import *
        >>> rows = Fused(
        ...     name="row_sum", dims="m n", loop="n", operands={"X": "m n", "y": "m"},
        ...     init={"zero": "t[m] = 0"}, body={"sums": "s[m] = sum(n, X[m,n])", "add": "t[m] = t[m] + s[m]"}, final={"out": "y[m] = t[m]"},
        ... )
        >>> row = Move.tile(1, 128).to(Warp).tile(1, 4).to(Lane).done()
        >>> joined = rows.rfactor("sums", 32).tile(m=1).to(Block).split(n=128).load("X", RF, row).done()(rows(m=8, n=512)).cuda()
        >>> joined.index("for (int n =") < joined.rindex("warp_reduce_sum(")  # after the loop, not in each iteration
        True
        """
    def set_memory(self, tensor: str, memory: Memory, pad: int = 0) -> FusedSetMemory:
        """Allocate a temporary of the definition in a memory, at this level; in shared memory, one copy per unit of the level.

        `pad` is the padding of its rows in elements. Other temporaries are in registers. Without padding and `swizzle_storage`, an instruction
        that reads the temporary from shared memory, such as `wgmma`, chooses its layout. Elementwise steps that write it and read no registers
        store vectors, by all threads of the level. `stages` is the number of copies that iterations use alternately.

        Legal below Block, for SH and RF. rewrite: definition --> allocate t in memory; definition on t

        Source: Cypress, section 3.3; decision 36.

        >>> from fireiron import *
        >>> doubled = Fused(
        ...     name="doubled", dims="m n k", operands={"A": "m k", "B": "k n", "C": "m n"},
        ...     body={"product": "c[m,n] = sum(k, A[m,k] * B[k,n])", "twice": "C[m,n] = c[m,n] * 2"},
        ... )

        >>> blocks = doubled.tile(m=16, n=16).to(Block).set_memory("c", SH, pad=1).step("product", MatMul.tile(1, 1).to(Thread).split(1).done())
        >>> text = blocks.done()(doubled(m=64, n=64, k=8)).cuda()
        >>> [line.strip() for line in text.splitlines() if "__shared__" in line]
        ['__shared__ __align__(16) float c_sh[272];  // 16 x 16']

        The next temporary is the operand of an MMA, which `ldmatrix` reads. The iterations of k use two copies of it alternately:

        >>> weights = Fused(
        ...     name="weights", dims="m n k", loop="k", operands={"A": "m k", "W": "n k", "C": "m n"}, init={"zero": "c[m,n] = 0"},
        ...     body={"weight": "w[n,k] = W[n,k] * 0.5", "product": "c[m,n] += sum(k, A[m,k] * w[n,k])"}, final={"out": "C[m,n] = c[m,n]"},
        ... )
        >>> chain = weights.tile(m=32, n=32).to(Block).split(k=32).load("A", SH).set_memory("w", SH).swizzle_storage().stages(2)
        >>> warps = MatMul.tile(16, 32).to(Warp).split(16).load(A, RF, Move.done()).load(B, RF, Move.done()).tile(16, 16).mma_tile().done()
        >>> text = chain.step("product", warps).done()(weights(m=64, n=64, k=128, types={"W": int8})).cuda("sm_80")
        >>> [line.strip() for line in text.splitlines() if "__half w_sh" in line]
        ['__shared__ __align__(16) __half w_sh[2048];  // 32 x 32, 2 stages']
        """
    def skip_steps(self, *steps: str, where: str) -> FusedStrategy:
        """Skip steps of a fused definition in each warp for which a condition holds for all elements of its threads.

        Args: steps: names of steps. where: a condition that elements equal each other or a number: `"new == mx"`, `"alpha == 1"`. Consecutive
        steps share one branch.
        Legal on steps on registers that, under the condition, leave each value unchanged or set it to a number. The kernel sets such a number
        before the branch. The compiler proves this from the formulas, for all finite elements of the arrays.
        rewrite: alpha[m] = f; l[m] = l[m] * alpha[m] --> alpha[m] = 1; if needed: { alpha[m] = f; l[m] = l[m] * alpha[m] }

        Source: decision 44.

        >>> from fireiron import *
        >>> peak = Fused(
        ...     name="peak", dims="m n", loop="n", operands={"X": "m n", "y": "m"},
        ...     init={"low": "top[m] = -inf"},
        ...     body={"part": "part[m] = max(n, X[m,n])", "new": "new[m] = max(top[m], part[m])", "keep": "top[m] = new[m]"},
        ...     final={"out": "y[m] = top[m]"},
        ... )
        >>> row = Move.tile(1, 128).to(Warp).tile(1, 4).to(Lane).done()
        >>> loads = peak.tile(m=1).to(Block).split(n=128).load("X", RF, row).skip_steps("keep", where="new == top")
        >>> [line.strip() for line in loads.done()(peak(m=8, n=512)).cuda().splitlines() if "__any_sync" in line]
        ['if (__any_sync(0xffffffff, keep_needed[0])) {']
        """
    def split(self, *sizes: TileSize, **by_dim: TileSize) -> FusedSplit:
        """Loop sequentially over a reduction dimension and accumulate the results.

        Args: the number of elements of k per iteration, or their layout as in `tile`. Legal on a spec with a reduction dimension, if the size
        divides a static tile.
        rewrite: MatMul(M,N,K) --> for k: MatMul(M,N,kBlock), accumulating      (Fireiron, section 4.1)

        >>> from fireiron import *
        >>> print(MatMul(64, 64, 8)(GL, GL, GL)(Kernel).tile(64, 64).to(Block).split(4).result)
        MatMul(64,64,4)(GL,GL,GL)(Block)
        """
    def split_k(self, parts: Integer, level: Level, step: Integer, combine: Strategy | None = None) -> FusedSplitK:
        """Distribute a reduction dimension over parallel units, in chunks assigned round-robin, and sum the partial results.

        Args: parts: the number of parts. level: the level of the units. step: elements of k per chunk, a multiple of the next `split`. combine:
        a strategy for the `Reduction` that sums the partial results (None: one element per thread). In a block, each unit has separate
        accumulators, which are summed in shared memory. On a spec of the whole kernel, the level is Block: blocks add to C atomically, and the
        launcher (or the simulator) sets C to zero before the launch. k is the first reduction dimension with several elements. Legal on a
        MatMul before `epilog`; across blocks before `tile(...).to(Block)`, for C of float32, float64 or int32. With `reduce_in_last_block`, C
        may have any type, and a `Fused` spec may have steps after its matmul.
        rewrite: MatMul(M,N,K)(Block) --> unit u: MatMul(M,N,K/parts)(.., P[u])(level); Reduction(M,N,parts)(P, C)

        >>> from fireiron import *
        >>> mm = MatMul(64, 64, 256)(GL, GL, GL)(Kernel).tile(16, 16).to(Block)
        >>> print(mm.split_k(2, Warp, 64).result)
        MatMul(16,16,128)(GL,GL,SH)(Warp)

        Source: Fireiron, section 5.3; decision 11.
        """
    def step(self, name: str, strategy: Strategy) -> FusedStrategy:
        """Give one step of a fused definition a strategy: a chain from the kind of spec of its formula, such as MatMul.

        Legal on a definition with such a step.
        rewrite: definition --> definition with a strategy for the step      (Graphene, section 5.3)

        >>> from fireiron import *
        >>> doubled = Fused(
        ...     name="doubled", dims="m n k", operands={"A": "m k", "B": "k n", "C": "m n"},
        ...     body={"product": "c[m,n] = sum(k, A[m,k] * B[k,n])", "twice": "C[m,n] = c[m,n] * 2"},
        ... )

        >>> by_threads = MatMul.tile(1, 1).to(Thread).split(1).done()
        >>> text = doubled.tile(m=16, n=16).to(Block).step("product", by_threads).done()(doubled(m=64, n=64, k=8)).cuda()
        >>> [line.strip() for line in text.splitlines() if "// twice" in line]
        ['// twice: C[m,n] = c[m,n] * 2']
        """
    def tile(self, *sizes: TileSize | Strided, **by_dim: TileSize) -> FusedTile:
        """Divide the output into tiles, with the matching parts of the inputs: a sequential loop, or with `.to(level)`, parallel units.

        Args: `r, c` in elements, or sizes by dimension name (`m=64`), or `Strided((chunk, repeat), ...)`. If a spec has more dimensions than
        there are sizes, the sizes apply to the rows and columns of a matrix; the other dimensions must have one element. A size may be a layout
        of the elements of the first tile: `Layout(2, 4)` has two elements, every fourth; its complement has the first elements of the other
        tiles (Graphene, section 3.3). Legal if each size divides a static parent tile. The last tile of a whole tensor may be partly out of
        bounds, and is guarded. A layout must contain each element once, and fill the dimension together with its complement.
        rewrite: MatMul(M,N,K) --> for m: for n: MatMul(r,c,K)      (Fireiron, section 3.4)

        >>> from fireiron import *
        >>> print(MatMul(64, 64, 8)(GL, GL, GL)(Kernel).tile(32, 16).to(Block).result)
        MatMul(32,16,8)(GL,GL,GL)(Block)
        """
    def to_gpus(self, dim: str, *, sums: DType | None = None) -> FusedToGpus:
        """Divide a dimension of the result equally among the GPUs of a node. Each GPU computes its part in separate launches.

        Legal first in a chain, for a spec at the level `Node(n)`, if n divides the size of the dimension and the outputs are distributed over
        it. Inputs may be distributed over the same dimension, over another one, or be stored on each GPU. If the dimension is reduced, each GPU
        stores sums of its part, and a further launch adds those of all GPUs. `sums` is their type, that of the accumulator by default; the type
        of the result halves the bytes that GPUs read of each other, and rounds each sum once more.
        rewrite: MatMul(M,N,K)(Node(G)) --> MatMul(M,N/G,K)(Kernel) on each GPU

        >>> from fireiron import *
        >>> product = MatMul(64, 32, 16, B=RowMajor.over(GPU, "n"), C=RowMajor.over(GPU, "n"))(GL, GL, GL)(Node(2))
        >>> print(product.to_gpus("n").program().inner)
        MatMul(64,16,16)(GL,GL,GL)(Kernel) with B, C RowMajor

        Source: decision 115.
        """

class FusedStrategy(ForFused, Strategy):
    def compile(self, architecture: Architecture | str | None = None, options: tuple[str, ...] = ()) -> FusedKernel: ...

class FusedTile(FusedStrategy, TileStrategy): ...

class FusedSplit(FusedStrategy, SplitStrategy): ...

class FusedSplitK(FusedStrategy, SplitKStrategy): ...

class FusedLoad(FusedStrategy, LoadStrategy): ...

class FusedEpilog(FusedStrategy, EpilogStrategy): ...

class FusedSetMemory(FusedStrategy, SetMemoryStrategy): ...

class FusedToGpus(FusedStrategy, ToGpusStrategy): ...

class MatMulSpec(ForMatMul, Spec):
    @property
    def A(self) -> View: ...
    @property
    def B(self) -> View: ...
    @property
    def C(self) -> View: ...
    def reference(self, *inputs: ArrayLike) -> NDArray[Any]: ...

class MoveSpec(ForMove, Spec):
    @property
    def src(self) -> View: ...
    @property
    def dst(self) -> View: ...
    def reference(self, *inputs: ArrayLike) -> NDArray[Any]: ...

class InitSpec(ForInit, Spec):
    @property
    def dst(self) -> View: ...
    @property
    def value(self) -> float: ...
    def reference(self, *inputs: ArrayLike) -> NDArray[Any]: ...

class ReductionSpec(ForReduction, Spec):
    @property
    def src(self) -> View: ...
    @property
    def dst(self) -> View: ...
    @property
    def by(self) -> str: ...
    def reference(self, *inputs: ArrayLike) -> NDArray[Any]: ...

class AtomicAddSpec(ForAtomicAdd, Spec):
    @property
    def src(self) -> View: ...
    @property
    def dst(self) -> View: ...
    def reference(self, *inputs: ArrayLike) -> NDArray[Any]: ...

class UnaryPointwiseSpec(ForPointwise, Spec):
    @property
    def src(self) -> View: ...
    @property
    def dst(self) -> View: ...
    @property
    def operation(self) -> str: ...
    def reference(self, *inputs: ArrayLike) -> NDArray[Any]: ...

class BinaryPointwiseSpec(ForPointwise, Spec):
    @property
    def lhs(self) -> View: ...
    @property
    def rhs(self) -> View: ...
    @property
    def dst(self) -> View: ...
    @property
    def operation(self) -> str: ...
    def reference(self, *inputs: ArrayLike) -> NDArray[Any]: ...

class FusedSpec(ForFused, Spec): ...

class FusedKernel(CompiledKernel):
    def __call__(self, *arrays: Any, out: Any = None, stream: Any = None, **sizes: Any) -> Any: ...
