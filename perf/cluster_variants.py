"""Measure variants of GEMM kernels in clusters, compared with those of `fireiron.matmul` and cuBLAS.

    python perf/cluster_variants.py FOLDER --shapes 39x3288x3760,... [--parts SHAPES] [--one-lane SHAPES] [options of misaligned_choice.py]

The candidates of all shapes are the tiles of the least expected time, each in all clusters that C has tiles for. Sizes in `--one-lane` also
have these kernels in two other ways. "one lane": the first lane of a warp arrives at all blocks, one after the other. In the printed kernel
each lane arrives at the block whose rank is the lane. "early": consumers arrive at the last barrier of the cluster before they store C.

Sizes in `--parts` also have prototypes that add parts of K within a cluster, in distributed shared memory. `kernel_text` is CUDA, not
printed by a strategy. `parts` blocks of a cluster multiply parts of K of the same tile, in the transposed form of `hopper:any_height`. Each
block owns an equal part of the columns of the tile, and all blocks write their accumulators of these columns to the shared memory of the
owner. After a barrier of the cluster, the owner adds the parts and stores its columns. So there is neither a workspace in global memory nor
a second kernel. `sharing` clusters of parts with adjacent tiles form a larger cluster, in which blocks with the same part of K share A by
multicast.

All variants are verified and timed as in `misaligned_choice.py`. NVRTC compiles them first.
"""

import argparse
import concurrent.futures
import functools
import itertools
import math
import os
import re
import sys

import misaligned_choice

from fireiron.frozen import frozen
from fireiron.gpu import cache, launch, maps, programs
from fireiron.gpu.kernel import CompiledKernel
from fireiron.ir.cluster import PORTABLE, SM_COUNT, concurrent_blocks
from fireiron.strategies import hopper
from fireiron.values.machine import float16

ROOM = 227 * 1024 - 1024
"""Bytes of shared memory of an SM for stages, parts and barriers."""

MOST = 9
"""Prototypes of a shape."""

VARIED = 10
"""Kernels of a shape that are also measured with other arrivals."""

WIDTH = 64
THREADS = 160
PANEL = 64
"""Elements of 128 bytes, the span of the swizzle."""


@frozen
class Parts:
    """A prototype: rows of a tile, its step along K, blocks that add parts of K, adjacent tiles that share A, stages, blocks per SM."""

    shape: tuple[int, int, int]
    height: int
    step: int
    parts: int
    sharing: int
    stages: int
    resident: int

    @property
    def blocks(self):
        """The number of blocks."""
        M, N, _ = self.shape
        return math.ceil(M / self.height) * math.ceil(N / WIDTH / self.sharing) * self.sharing * self.parts

    @property
    def shared_bytes(self):
        """Bytes of dynamic shared memory."""
        return self.stages * stage_bytes(self.height, self.step) + self.height * WIDTH * 4 + self.stages * 16

    def __str__(self):
        return (
            f"parts in cluster {self.height}x{WIDTH}x{self.step} of {self.parts} parts, {self.sharing} share A, s{self.stages}, "
            f"{self.resident} per SM"
        )


def stage_bytes(height, step):
    """Return the bytes of a stage."""
    return (height + WIDTH) * step * 2


def prototypes(shape):
    """Return the prototypes of a shape with the least rough times."""
    M, _, K = shape
    kernels = []
    heights = [math.ceil(M / tiles / 8) * 8 for tiles in range(1, 65)]
    for height in dict.fromkeys(height for height in heights if min(M, 32) <= height <= 256):
        step = 128 if height + WIDTH <= hopper.SMALL_SIDES else 64
        for parts, sharing, resident in itertools.product((2, 4, 8), (1, 2, 4), (1, 2)):
            steps = math.ceil(K / step / parts)
            if parts * sharing > PORTABLE or height % sharing or steps < 2:
                continue
            room = ROOM // resident - 1024 * (resident - 1) - height * WIDTH * 4 - 256
            stages = min(12, room // (stage_bytes(height, step) + 16), steps)
            kernel = Parts(shape, height, step, parts, sharing, stages, resident)
            if stages >= min(3, steps) and (resident - 1) * SM_COUNT < kernel.blocks <= 4 * SM_COUNT:
                kernels.append(kernel)
    return sorted(kernels, key=cost_of)[:MOST]


def cost_of(kernel):
    """Return a rough time in microseconds: bytes that the busiest SM copies, and the waves."""
    blocks = kernel.parts * kernel.sharing
    waves = math.ceil(kernel.blocks / (concurrent_blocks(blocks) * kernel.resident))
    steps = math.ceil(kernel.shape[2] / kernel.step / kernel.parts)
    copied = waves * kernel.resident * steps * kernel.step * 2 * (WIDTH + kernel.height / kernel.sharing**0.5)
    return copied / 38e3 + 0.3 * waves + 0.15 * (kernel.parts > 2) + 0.1 * kernel.sharing


HELPERS = """
// write a number to the shared memory of a block of the cluster
__device__ __forceinline__ void store_in_cluster(unsigned address, unsigned rank, float value)
{
  asm volatile(
      "{\\n"
      ".reg .b32 remote;\\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\\n"
      "st.shared::cluster.f32 [remote], %2;\\n"
      "}"
      :: "r"(address), "r"(rank), "f"(value) : "memory");
}

__device__ __forceinline__ float accumulated(float x)
{
  return __fadd_rn(x, -0.0f);
}
"""

BODY = """
extern "C" __global__ void __cluster_dims__(PARTS * SHARING, 1, 1) __launch_bounds__(160, RESIDENT)
matmul(const __grid_constant__ TensorMap A_map, const __grid_constant__ TensorMap B_map, __half* const C)
{
  constexpr int a_stage_bytes = HEIGHT * STEP * 2;
  constexpr int a_panel_bytes = HEIGHT * 128;
  constexpr int b_stage_bytes = STEP * 128;
  constexpr int parts_offset = STAGES * (a_stage_bytes + b_stage_bytes);
  constexpr int full_offset = parts_offset + HEIGHT * 64 * 4;
  constexpr int groups = 8 / PARTS;  // groups of 8 columns that a block owns
  constexpr int steps = (DEPTH + STEP - 1) / STEP;
  constexpr int steps_of_part = (steps + PARTS - 1) / PARTS;
  constexpr int tiles_n = (COLUMNS + 63) / 64;
  constexpr int clusters_n = (tiles_n + SHARING - 1) / SHARING;
  extern __shared__ __align__(1024) unsigned char smem[];
  const int rank = blockIdx.x % (PARTS * SHARING), rank_n = rank % SHARING, part = rank / SHARING;
  const int cluster = blockIdx.x / (PARTS * SHARING);
  const int block_n = cluster % clusters_n * SHARING + rank_n, block_m = cluster / clusters_n;
  const int first = part * steps_of_part;
  const int count = min(steps, first + steps_of_part) - first;
  const unsigned mask = ((1u << SHARING) - 1) << (part * SHARING);
  const unsigned full = shared_address(smem + full_offset), empty = full + STAGES * 8;
  const unsigned a_sh = shared_address(smem), b_sh = a_sh + STAGES * a_stage_bytes;
  if (threadIdx.x == 0) {
    prefetch_tensor_map(&A_map);
    prefetch_tensor_map(&B_map);
    for (int stage = 0; stage < STAGES; ++stage) {
      mbarrier_init(full + stage * 8, 1);
      mbarrier_init(empty + stage * 8, 4 * SHARING);
    }
    fence_mbarrier_init();
  }
  cluster_sync();
  const int thread = threadIdx.x, warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0), lane = thread % 32;
  if (warp < 4) {
    float c[HEIGHT / 2];
#pragma unroll
    for (int i = 0; i < HEIGHT / 2; ++i)
      c[i] = 0.0f;
    int stage = 0, phase = 0, previous = STAGES - 1;
    for (int k = 0; k < count; ++k) {
      mbarrier_wait(full + stage * 8, phase);
      wgmma_fence();
#pragma unroll
      for (int k2 = 0; k2 < STEP / 16; ++k2)
        WGMMA(
            c,
            matrix_descriptor<0, 1024, 1>(b_sh + stage * b_stage_bytes + k2 * 16 * 128),
            matrix_descriptor<0, 1024, 1>(a_sh + stage * a_stage_bytes + k2 / 4 * a_panel_bytes + k2 % 4 * 32),
            true);
      wgmma_commit_group();
      wgmma_wait_group<1>();
      if (k > 0)
        mbarrier_arrive_cluster(empty + previous * 8, mask);
      if (++stage == STAGES) {
        stage = 0;
        phase ^= 1;
      }
      if (++previous == STAGES)
        previous = 0;
    }
    wgmma_wait_group<0>();
    if (count > 0)
      mbarrier_arrive_cluster(empty + previous * 8, mask);
    const unsigned own = shared_address(smem + parts_offset) + part * (HEIGHT * 256 / PARTS) + lane * 4;
#pragma unroll
    for (int j = 0; j < HEIGHT / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int group = warp * 2 + i / 2;
        const unsigned target = own + ((group % groups * (HEIGHT / 8) + j) * 2 + i % 2) * 128;
        store_in_cluster(target, group / groups * SHARING + rank_n, accumulated(c[j * 4 + i]));
      }
  }
  else if (threadIdx.x == 128) {
    int stage = 0, phase = 1;
    for (int k = first; k < first + count; ++k) {
      mbarrier_wait(empty + stage * 8, phase);
      mbarrier_arrive_expect_tx(full + stage * 8, a_stage_bytes + b_stage_bytes);
#pragma unroll
      for (int panel = 0; panel < STEP / 64; ++panel) {
        const unsigned target = a_sh + stage * a_stage_bytes + panel * a_panel_bytes + rank_n * (HEIGHT / SHARING) * 128;
        const int row = block_m * HEIGHT + rank_n * (HEIGHT / SHARING);
        if (SHARING > 1)
          tma_load_multicast(target, &A_map, k * STEP + panel * 64, row, full + stage * 8, mask);
        else
          tma_load(target, &A_map, k * STEP + panel * 64, row, full + stage * 8);
      }
      tma_load(b_sh + stage * b_stage_bytes, &B_map, block_n % tiles_n * 64, k * STEP, full + stage * 8);
      if (++stage == STAGES) {
        stage = 0;
        phase ^= 1;
      }
    }
  }
  __syncwarp();
  cluster_sync();  // the parts of all blocks are complete
  if (block_n >= tiles_n)
    return;
  const float* const parts = reinterpret_cast<const float*>(smem + parts_offset);
  for (int pair = thread; pair < groups * 4 * HEIGHT; pair += 160) {
    const int two = pair % 4, group = pair / 4 % groups, m = pair / (4 * groups);
    const float* const source = parts + ((group * (HEIGHT / 8) + m / 8) * 2 + m % 2) * 32 + two * 8 + m % 8 / 2;
    float left = 0.0f, right = 0.0f;
#pragma unroll
    for (int other = 0; other < PARTS; ++other) {
      left += source[other * (HEIGHT * 64 / PARTS)];
      right += source[other * (HEIGHT * 64 / PARTS) + 4];
    }
    const int row = block_m * HEIGHT + m, column = block_n * 64 + (part * groups + group) * 8 + two * 2;
    if (row < ROWS && column < COLUMNS)
      *reinterpret_cast<__half2*>(C + static_cast<long long>(row) * COLUMNS + column) = __floats2half2_rn(left, right);
  }
}
"""


@functools.cache
def preamble():
    """Return the functions of a printed kernel in clusters: barriers, TMA and descriptors."""
    case = misaligned_choice.Case((77, 3400, 3000), "float16", "NN")
    values = next(one for one in hopper.heights(77, 3400) if (one["bm"], one["bn"]) == (80, 64))
    both = []
    for clusters in ({"cluster_n": 4}, {}):
        strategy = misaligned_choice.default_strategy("hopper:any_height", {**values, **clusters}, case.spec)
        text = strategy(case.spec).compile(misaligned_choice.ARCHITECTURE).program.text
        both.append(text[text.index("#include") : text.index('extern "C"')])
    known, functions = [], []
    for part in re.split(r"\n(?=// )", "\n".join(both)):
        name = re.search(r"(\w+)\(\s", part) or re.search(r"(\w+)\(", part)
        key = re.search(r"__forceinline__ [\w ]+? \**(\w+)\(", part)
        key = key[1] if key else part.split("\n")[0] if name is None or "struct" in part else name[1]
        if key not in known and not key.startswith(("wgmma_m64", "accumulated")):
            known.append(key)
            functions.append(part)
    return "\n".join(functions)


def wgmma(height):
    """Return the function of `wgmma` for a height."""
    count = height // 2
    outputs = ", ".join(f"%{number}" for number in range(count))
    registers = ", ".join(f'"+f"(c[{number}])' for number in range(count))
    return (
        "__device__ __forceinline__ void WGMMA(float* c, unsigned long long a, unsigned long long b, bool accumulate)\n{\n  asm volatile(\n"
        f'      "{{ .reg .pred scale_d; setp.ne.b32 scale_d, %{count + 2}, 0; "\n'
        f'      "wgmma.mma_async.sync.aligned.m64n{height}k16.f32.f16.f16 {{{outputs}}}, %{count}, %{count + 1}, scale_d, 1, 1, 1, 0; }}"\n'
        f'      : {registers}\n      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));\n}}\n'
    )


def kernel_text(kernel):
    """Return the CUDA text of a prototype."""
    M, N, K = kernel.shape
    names = {"HEIGHT": kernel.height, "STEP": kernel.step, "PARTS": kernel.parts, "SHARING": kernel.sharing, "STAGES": kernel.stages}
    names |= {"RESIDENT": kernel.resident, "ROWS": M, "COLUMNS": N, "DEPTH": K}
    constants = "\n".join(f"constexpr int {name} = {value};" for name, value in names.items())
    return "\n".join([preamble(), HELPERS, constants, wgmma(kernel.height), BODY])


def compiled_prototype(kernel):
    """Compile a prototype in a separate process."""
    return cache.compile_cached(kernel_text(kernel), misaligned_choice.ARCHITECTURE, newest=launch.newest_loadable())


def launch_of(kernel, loaded, operands):
    """Return a launch on an operand set."""
    M, N, K = kernel.shape
    a, b, c = operands
    a_map = maps.MapForm("A", float16, (K, M), (K * 2,), (PANEL, kernel.height // kernel.sharing), 128).encode(a.data_ptr())
    b_map = maps.MapForm("B", float16, (N, K), (N * 2,), (WIDTH, kernel.step), 128).encode(b.data_ptr())
    return lambda: loaded(kernel.blocks, THREADS, (a_map, b_map, c))


ordinary_launch = misaligned_choice.launch_of


def launch_of_either(case, parts, kernels, operands):
    """Return a launch of a prototype or of another candidate."""
    return launch_of(*kernels[0], operands) if isinstance(kernels[0], tuple) else ordinary_launch(case, parts, kernels, operands)


# ---------------------------------------------------------------------------------------------- arrivals

TILES = 5
"""Tiles of a shape that are measured in all clusters."""

MOST_KERNELS = 26
"""Kernels of a shape."""


def in_all_clusters(case, most, seed, new_forms=True, splits=1, shared_tiles=0):
    """Return the candidates of a shape: those of `misaligned_choice.plan`, and tiles of the least expected time in all clusters."""
    usual = ordinary_plan(case, most, seed, new_forms, splits, shared_tiles)
    work, tiles = misaligned_choice.work_of(case.spec), {}
    form = misaligned_choice.ANY_HEIGHT
    own = [(form, one) for one in hopper.heights(*case.shape[:2])]
    own += [("hopper", misaligned_choice.values_of(tile, case)) for tile in misaligned_choice.TILES]
    for name, tile in own:
        variants = [misaligned_choice.full_values(name, one) for one in misaligned_choice.in_clusters(name, work, [tile])]
        variants.sort(key=lambda values: misaligned_choice.estimated_us(work, values))
        tiles[name, tile["bm"], tile["bn"], tile["bk"]] = [(name, values, 1) for values in variants]
    ranked = sorted(tiles.values(), key=lambda variants: misaligned_choice.estimated_us(work, variants[0][1]))
    return misaligned_choice.unique([*usual, *itertools.chain(*ranked[:TILES])])[:MOST_KERNELS] if work.across_lines else usual


ordinary_plan = misaligned_choice.plan

ONE_LANE = """__device__ __forceinline__ void mbarrier_arrive_cluster(unsigned mbarrier, unsigned block_mask)
{
  if (threadIdx.x % 32 == 0) {
    for (unsigned left = block_mask; left != 0; left &= left - 1) {
      asm volatile(
          "{\\n"
          ".reg .b32 remote;\\n"
          "mapa.shared::cluster.u32 remote, %0, %1;\\n"
          "mbarrier.arrive.shared::cluster.b64 _, [remote];\\n"
          "}"
          :: "r"(mbarrier), "r"(__ffs(left) - 1) : "memory");
    }
  }
}
"""


def by_one_lane(text):
    """Return the text in which the first lane of a warp arrives at all blocks, one after the other."""
    start = text.index("__device__ __forceinline__ void mbarrier_arrive_cluster(")
    return text[:start] + ONE_LANE + text[text.index("\n}\n", start) + 3 :]


def leaving_early(text):
    """Return the text in which consumers arrive at the last barrier of the cluster before they store C; None if blocks are persistent."""
    matches = list(re.finditer(r"\n    // c_rf to C: ", text))  # after the loop, which no loop over tiles contains
    if "barrier.cluster.arrive" not in text or len(matches) != 1:
        return None
    arrive, wait = (f'asm volatile("barrier.cluster.{one};" ::: "memory");' for one in ("arrive.release", "wait.acquire"))
    consumers = int(re.search(r"if \(warp_index < (\d+)\) \{", text)[1])
    last = text.rindex("cluster_sync();")
    middle = f"{text[matches[0].start() : last]}if (warp_index >= {consumers})\n    {arrive}\n  {wait}"
    return f"{text[: matches[0].start()]}\n    {arrive}{middle}{text[last + len('cluster_sync();') :]}"


WAYS = {"one lane": by_one_lane, "early": leaving_early}


def variant(kernel, way):
    """Return the machine code of a kernel in clusters with other arrivals; None for other kernels."""
    text = programs.recalled(kernel.program).text
    other = WAYS[way](text) if "mbarrier_arrive_cluster(" in text else None
    return None if other is None else cache.compile_cached(other, misaligned_choice.ARCHITECTURE, newest=launch.newest_loadable())


ordinary_compiled = misaligned_choice.compiled


def compiled_in_both_ways(one_lane, case, candidate):
    """Compile a candidate, and for sizes in `one_lane` also its variant."""
    kernels = ordinary_compiled(case, candidate)
    if case.shape in one_lane and not isinstance(kernels, str):
        _ = [variant(kernels[0], way) for way in WAYS]
    return kernels


def with_variants(measured, parts, one_lane, workers):
    """Return `measured` of `misaligned_choice.py` with variants as further candidates; the prototypes in `parts` are being compiled."""

    def also(torch, case, ready, options):
        variants = []
        if case.shape in one_lane:
            clustered = [one for one in ready if one[1][1].get("cluster_m", 1) * one[1][1].get("cluster_n", 1) > 1][:VARIED]
            jobs = [(way, one, workers.submit(variant, one[2][0], way)) for one in clustered for way in WAYS]
            for way, (name, candidate, kernels), job in jobs:
                compiled = job.result()
                if compiled is not None:
                    other = CompiledKernel(kernels[0].program)
                    other.__dict__["compiled"] = compiled
                    variants.append((f"{way}: {name}", (way, candidate[1], candidate[2]), (other, *kernels[1:])))
        for kernel, job in parts.get(case.shape, {}).items():
            loaded = launch.load(job.result().cubin, "matmul", kernel.shared_bytes, kernel.parts * kernel.sharing)
            variants.append((str(kernel), (str(kernel), {}, 1), ((kernel, loaded),)))
        entry = measured(torch, case, [*ready, *variants], options)
        print_variants(entry)
        return entry

    return also


def print_variants(entry):
    """Print the times of variants next to those of the kernels that are printed by strategies."""
    times = entry["first"] | entry["times"]
    own = sorted((name for name in times if name.startswith("parts in cluster")), key=times.get)
    if own:
        print("    " + "; ".join(f"{name} {times[name]:.2f}" for name in own[:5]), flush=True)
    first = entry["first"]
    varied = [name for name in first if f"one lane: {name}" in first]
    for name in sorted(varied, key=first.get)[:8]:
        others = ", ".join(f"{way} {first[f'{way}: {name}']:.2f}" for way in WAYS if f"{way}: {name}" in first)
        print(f"    {name}: {first[name]:.2f} us, {others}", flush=True)


def main():
    """Compile the prototypes in other processes while `misaligned_choice.py` runs with all variants."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], add_help=False)
    parser.add_argument("--parts", type=misaligned_choice.shapes, default=())
    parser.add_argument("--one-lane", type=misaligned_choice.shapes, default=())
    own, others = parser.parse_known_args()
    sys.argv[1:] = others
    with concurrent.futures.ProcessPoolExecutor(max(1, min(4, (os.cpu_count() or 2) - 2))) as workers:
        parts = {shape: {kernel: workers.submit(compiled_prototype, kernel) for kernel in prototypes(shape)} for shape in own.parts}
        misaligned_choice.launch_of = launch_of_either
        misaligned_choice.plan = in_all_clusters
        misaligned_choice.compiled = functools.partial(compiled_in_both_ways, own.one_lane)
        misaligned_choice.measured = with_variants(misaligned_choice.measured, parts, own.one_lane, workers)
        misaligned_choice.main()


if __name__ == "__main__":
    main()
