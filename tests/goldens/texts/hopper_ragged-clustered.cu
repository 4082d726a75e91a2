// grouped_ragged(40,48,40,3)(GL,GL,GL,GL,GL)(Kernel) with A, B, D float16 RowMajor; begin, end int32
//     Strides(g=1).aligned(4)
//   .tile(m=128, n=128).to(Block).rasterize(group_m=8).cluster(m=1, n=2)
//   .split(g=1).skip_masked_tiles()
//   .step("product", AnySpec.split(64).pipeline(4).warp_specialize(128).load(A, SH, Move.done()).load(B, SH,
//     Move.done()).tile(64, 128).to(Warpgroup).done())
//   .step("store", AnySpec.tile(64, 128).to(Warpgroup).tile(64, 64).unroll().load('src', SH,
//     Move.done()).cast_on_copy().done())
//   .done()
// target sm_90a; launch <<<2, 384>>>, 147520 bytes of dynamic shared memory
// clusters of 2 blocks
#include <cuda_fp16.h>

// TMA tensor map of a tensor, encoded by the launcher (cuTensorMapEncodeTiled)
struct __align__(64) TensorMap { unsigned long long words[16]; };

// synchronize all threads of the cluster
__device__ __forceinline__ void cluster_sync()
{
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// wait until the phase of this parity completes
__device__ __forceinline__ void mbarrier_wait(unsigned mbarrier, unsigned phase)
{
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "retry:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra retry;\n"
      "}"
      :: "r"(mbarrier), "r"(phase) : "memory");
}

// order register accesses of this warpgroup before the wgmma that follow
__device__ __forceinline__ void wgmma_fence()
{
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// wgmma matrix descriptor: start address, leading and stride byte offsets, swizzle mode (1: 128, 2: 64, 3: 32 bytes)
template <unsigned leading_bytes, unsigned stride_bytes, unsigned swizzle>
__device__ __forceinline__ unsigned long long matrix_descriptor(unsigned address)
{
  return static_cast<unsigned long long>((address & 0x3FFFF) >> 4 | (leading_bytes >> 4) << 16)
       | static_cast<unsigned long long>(stride_bytes >> 4) << 32 | static_cast<unsigned long long>(swizzle) << 62;
}

// 32-bit shared-memory address for inline PTX
__device__ __forceinline__ unsigned shared_address(const void* pointer)
{
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// c = a * b, or c += a * b if accumulate: asynchronous m64n128k16 of a warpgroup, a and b in shared memory
__device__ __forceinline__ void wgmma_m64n128k16_row_row_f32_f16(
    float* c, unsigned long long a, unsigned long long b, bool accumulate)
{
  asm volatile(
      "{ .reg .pred scale_d; setp.ne.b32 scale_d, %66, 0; "
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
      "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, "
      "%41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, "
      "%61, %62, %63}, %64, %65, scale_d, 1, 1, 0, 1; }"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
        "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),
        "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
        "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31]),
        "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35]), "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]),
        "+f"(c[40]), "+f"(c[41]), "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]),
        "+f"(c[48]), "+f"(c[49]), "+f"(c[50]), "+f"(c[51]), "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55]),
        "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]), "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63])
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

// commit the wgmma of this warpgroup as a group
__device__ __forceinline__ void wgmma_commit_group()
{
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// wait until at most N wgmma groups are pending
template <int N>
__device__ __forceinline__ void wgmma_wait_group()
{
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory");
}

// each lane of a warp: arrive at this mbarrier in the block whose rank is the lane, if `block_mask` has its bit
__device__ __forceinline__ void mbarrier_arrive_cluster(unsigned mbarrier, unsigned block_mask)
{
  const unsigned rank = threadIdx.x % 32;
  if ((block_mask >> rank & 1) != 0)
    asm volatile(
        "{\n"
        ".reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
        "}"
        :: "r"(mbarrier), "r"(rank) : "memory");
}

// wait until at most N bulk groups of this thread have not yet read shared memory
template <int N>
__device__ __forceinline__ void tma_store_wait_group()
{
  asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(N) : "memory");
}

// synchronize the 128 threads of a warpgroup, with one named barrier per warpgroup
__device__ __forceinline__ void warpgroup_sync()
{
  const unsigned warpgroup = threadIdx.x / 128;
  if (warpgroup == 0) asm volatile("bar.sync 1, 128;" ::: "memory");
  else if (warpgroup == 1) asm volatile("bar.sync 2, 128;" ::: "memory");
}

// round eight accumulators per thread to 16 bits and store them to shared memory
__device__ __forceinline__ void stmatrix_x4_half(unsigned target, const float* source)
{
  unsigned words[4];
  #pragma unroll
  for (int pair = 0; pair < 4; ++pair)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(words[pair]) : "f"(source[2 * pair + 1]), "f"(source[2 * pair]));
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
      :: "r"(target), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]) : "memory");
}

// order accesses of this thread to shared memory before later ones of the async proxy
__device__ __forceinline__ void fence_proxy_async()
{
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// TMA store of a box of a matrix from shared memory, asynchronous
__device__ __forceinline__ void tma_store(const TensorMap* map, int x, int y, unsigned source)
{
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];"
      :: "l"(map), "r"(x), "r"(y), "r"(source) : "memory");
}

// commit the TMA stores of this thread as a bulk group
__device__ __forceinline__ void tma_store_commit_group()
{
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// increase the registers of each thread of the warpgroup to 224
__device__ __forceinline__ void setmaxnreg_inc_224()
{
  asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
}

// arrive and expect `bytes` from TMA
__device__ __forceinline__ void mbarrier_arrive_expect_tx(unsigned mbarrier, unsigned bytes)
{
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(mbarrier), "r"(bytes) : "memory");
}

// TMA load of a box of a matrix to each block of `block_mask` (one bit per rank in the cluster), with its `mbarrier`
__device__ __forceinline__ void tma_load_multicast(
    unsigned target, const TensorMap* map, int x, int y, unsigned mbarrier, unsigned short block_mask)
{
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3}], [%4], %5;"
      :: "r"(target), "l"(map), "r"(x), "r"(y), "r"(mbarrier), "h"(block_mask) : "memory");
}

// TMA load of a box of a batched matrix to shared memory; its bytes complete on `mbarrier`
__device__ __forceinline__ void tma_load_3d(
    unsigned target, const TensorMap* map, int x, int y, int z, unsigned mbarrier)
{
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];"
      :: "r"(target), "l"(map), "r"(x), "r"(y), "r"(z), "r"(mbarrier) : "memory");
}

// decrease the registers of each thread of the warpgroup to 56
__device__ __forceinline__ void setmaxnreg_dec_56()
{
  asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
}

// mbarrier: a phase completes after all arrivals and expected transaction bytes
__device__ __forceinline__ void mbarrier_init(unsigned mbarrier, unsigned arrivals)
{
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(mbarrier), "r"(arrivals) : "memory");
}

// prefetch a tensor map
__device__ __forceinline__ void prefetch_tensor_map(const TensorMap* map)
{
  asm volatile("prefetch.tensormap [%0];" :: "l"(map) : "memory");
}

// make initialized mbarriers visible to the async proxy and to the cluster
__device__ __forceinline__ void fence_mbarrier_init()
{
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384, 1)
grouped_ragged(
    const __grid_constant__ TensorMap A_map,
    const __grid_constant__ TensorMap B_map,
    const int* __restrict__ begin,
    const int* __restrict__ end,
    const __grid_constant__ TensorMap D_map)
{
  constexpr int num_stages = 4;
  constexpr int product_a_sh_stage_bytes = 128 * 64 * 2;
  constexpr int product_b_sh_stage_bytes = 64 * 128 * 2;
  constexpr int store_acc_sh_bytes = 64 * 64 * 2;
  constexpr int product_k_ring_bytes = product_a_sh_stage_bytes + product_b_sh_stage_bytes;
  constexpr int product_b_sh_panel_bytes = 64 * 64 * 2;
  constexpr int product_b_sh_offset = num_stages * product_a_sh_stage_bytes;
  constexpr int store_acc_sh_offset = product_b_sh_offset + num_stages * product_b_sh_stage_bytes;
  constexpr int product_k_ring_offset = store_acc_sh_offset + 2 * store_acc_sh_bytes;
  const int block = blockIdx.x;
  const int thread = threadIdx.x;
  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
  const int warpgroup_lane = threadIdx.x % 128;
  const int lane = threadIdx.x % 32;
  extern __shared__ __align__(1024) unsigned char smem[];
  __half* const product_a_sh = reinterpret_cast<__half*>(smem);  // 128 x 64, 4 stages
  __half* const product_b_sh = reinterpret_cast<__half*>(smem + product_b_sh_offset);  // 64 x 128, 4 stages
  __half* const store_acc_sh = reinterpret_cast<__half*>(smem + store_acc_sh_offset);  // 64 x 64, 2 copies
  __align__(8) float acc[64];  // of 128 x 128
  float p[64];  // of 128 x 128
  // 4 mbarriers: product_a_sh, product_b_sh full
  const unsigned product_k_ring_full = shared_address(smem + product_k_ring_offset);
  // 4 mbarriers: product_a_sh, product_b_sh empty
  const unsigned product_k_ring_empty = product_k_ring_full + num_stages * 8;
  if (threadIdx.x == 0) {
    prefetch_tensor_map(&A_map);
    prefetch_tensor_map(&B_map);
    prefetch_tensor_map(&D_map);
    for (int stage = 0; stage < num_stages; ++stage) {
      mbarrier_init(product_k_ring_full + stage * 8, 1);
      mbarrier_init(product_k_ring_empty + stage * 8, 16);
    }
    fence_mbarrier_init();
  }
  cluster_sync();  // the mbarriers of all blocks of the cluster are initialized
  const int warp_index = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  // consumers
  if (warp_index < 8) {
    setmaxnreg_inc_224();
    // zero: acc[m,n] = 0
#pragma unroll
    for (int zero_n = 0; zero_n < 16; ++zero_n) {
      acc[zero_n * 4] = 0.0f;
      acc[zero_n * 4 + 1] = 0.0f;
      acc[zero_n * 4 + 2] = 0.0f;
      acc[zero_n * 4 + 3] = 0.0f;
    }
    const unsigned product_a_sh_address = shared_address(product_a_sh);
    const unsigned product_b_sh_address = shared_address(product_b_sh);
    int iterations_done = 0;
    unsigned g_mask = 0;  // iterations of g to execute, one bit each
#pragma unroll
    for (int g = 0; g < 3; ++g) {
      const int end_here = min(max(end[g], 0), 40);
      const int seen = end_here + 1 > 1;
      g_mask |= static_cast<unsigned>(seen) << g;
    }
    for (; g_mask != 0; g_mask &= g_mask - 1) {
      const int g = __ffs(g_mask) - 1;
      // product: p[m,n] = sum(k, A[m,k] * B[g,k,n])
      // the first MMA initializes p
      mbarrier_wait(product_k_ring_full + iterations_done * 8, 0);  // wait until product_a_sh, product_b_sh are full
      // MatMul(64,128,64)(SH,SH,RF)(Warpgroup)
      wgmma_fence();
#pragma unroll
      for (int product_k2 = 0; product_k2 < 4; ++product_k2) {
        wgmma_m64n128k16_row_row_f32_f16(
            p,
            matrix_descriptor<0, 1024, 1>(
                product_a_sh_address + iterations_done * product_a_sh_stage_bytes + warpgroup * 64 * 128
                    + product_k2 * 32),
            matrix_descriptor<8192, 1024, 1>(
                product_b_sh_address + iterations_done * product_b_sh_stage_bytes + product_k2 * 16 * 128),
            product_k2 > 0);
      }
      wgmma_commit_group();
      wgmma_wait_group<0>();  // product_a_sh, product_b_sh of this iteration have been read
      mbarrier_arrive_cluster(product_k_ring_empty + iterations_done * 8, 0x3);
      // keep: acc[m,n] = where(begin[g] <= m and m < end[g], p[m,n], acc[m,n])
#pragma unroll
      for (int keep_m = 0; keep_m < 2; ++keep_m) {
#pragma unroll
        for (int keep_n = 0; keep_n < 16; ++keep_n) {
#pragma unroll
          for (int keep_n2 = 0; keep_n2 < 2; ++keep_n2) {
            acc[keep_n * 4 + keep_m * 2 + keep_n2] =
                (begin[g] <= (warpgroup * 64 + warpgroup_lane / 32 * 16 + keep_m * 8 + warpgroup_lane / 4 % 8)
                    && (warpgroup * 64 + warpgroup_lane / 32 * 16 + keep_m * 8 + warpgroup_lane / 4 % 8) < end[g]
                    ? p[keep_n * 4 + keep_m * 2 + keep_n2]
                    : acc[keep_n * 4 + keep_m * 2 + keep_n2]);
          }
        }
      }
      ++iterations_done;
    }
    const unsigned store_acc_sh_target =
        shared_address(store_acc_sh) + warpgroup * store_acc_sh_bytes + thread / 32 % 4 * 16 * 128 + lane % 16 * 128;
    const int store_acc_sh_swizzle = lane % 8 * 16;
    const unsigned store_acc_sh_address = shared_address(store_acc_sh);
    // store: D[m,n] = acc[m,n]
#pragma unroll
    for (int store_n = 0; store_n < 2; ++store_n) {
      tma_store_wait_group<0>();  // store_acc_sh has been stored
      warpgroup_sync();  // store_acc_sh free again
      // src to store_acc_sh: Move(64,64)(RF,SH)(Warpgroup)
#pragma unroll
      for (int store_acc_sh_n = 0; store_acc_sh_n < 4; ++store_acc_sh_n) {
        stmatrix_x4_half(
            store_acc_sh_target + ((store_acc_sh_n * 32 + lane / 16 * 16) ^ store_acc_sh_swizzle),
            &acc[store_n * 32 + store_acc_sh_n * 8]);
      }
      fence_proxy_async();  // make store_acc_sh visible to the async proxy
      warpgroup_sync();  // store_acc_sh complete
      if (thread % 128 == 0) {
        tma_store(
            &D_map, block * 128 + store_n * 64, warpgroup * 64, store_acc_sh_address + warpgroup * store_acc_sh_bytes);
      }
      tma_store_commit_group();
    }
    tma_store_wait_group<0>();  // all stores have read shared memory
  }
  // producer
  else {
    setmaxnreg_dec_56();
    if (threadIdx.x == 256) {
      const unsigned product_a_sh_address = shared_address(product_a_sh);
      const unsigned product_b_sh_address = shared_address(product_b_sh);
      int iterations_done = 0;
      unsigned g_mask = 0;  // iterations of g to execute, one bit each
#pragma unroll
      for (int g = 0; g < 3; ++g) {
        const int end_here = min(max(end[g], 0), 40);
        const int seen = end_here + 1 > 1;
        g_mask |= static_cast<unsigned>(seen) << g;
      }
      for (; g_mask != 0; g_mask &= g_mask - 1) {
        const int g = __ffs(g_mask) - 1;
        // wait until product_a_sh, product_b_sh are empty
        mbarrier_wait(product_k_ring_empty + iterations_done * 8, 1);
        mbarrier_arrive_expect_tx(product_k_ring_full + iterations_done * 8, product_k_ring_bytes);
        // a box past the end of A loads its front (%), faster than zeros; only results that are not stored use it
        tma_load_multicast(
            product_a_sh_address + iterations_done * product_a_sh_stage_bytes + block * 64 * 128,
            &A_map,
            0,
            0,
            product_k_ring_full + iterations_done * 8,
            0x3);
        // a box past the end of B loads its front (%), faster than zeros; only results that are not stored use it
        tma_load_3d(
            product_b_sh_address + iterations_done * product_b_sh_stage_bytes,
            &B_map,
            0,
            0,
            g,
            product_k_ring_full + iterations_done * 8);
        tma_load_3d(
            product_b_sh_address + iterations_done * product_b_sh_stage_bytes + product_b_sh_panel_bytes,
            &B_map,
            0,
            0,
            g,
            product_k_ring_full + iterations_done * 8);
        ++iterations_done;
      }
    }
  }
  cluster_sync();  // no block exits while others write to its shared memory or arrive at its mbarriers
}
