// MatMul(m,n,k)(GL,GL,GL)(Kernel) with A, B, C float16 RowMajor
//   .tile(64, 32).to(Block).rasterize(group_m=4)
//   .epilog(RF, float32, Init.done(), Move.tile(64, 32).to(Warpgroup).tile(64, 32).unroll().load('src', SH,
//     Move.done()).cast_on_copy().done())
//   .split(128).mma_in_flight(1).pipeline(4).warp_specialize()
//   .load(A, SH, Move.done())
//   .load(B, SH, Move.done())
//   .tile(64, 32).to(Warpgroup)
//   .done()
// target sm_90a; launch <<<(m + 63) / 64 * ((n + 31) / 32), 160>>>, 102464 bytes of dynamic shared memory
// requires: the grid has at most 2**31 - 1 blocks, (m + 63) / 64 * ((n + 31) / 32) < 2147483648
#include <cuda_fp16.h>

// TMA tensor map of a tensor, encoded by the launcher (cuTensorMapEncodeTiled)
struct __align__(64) TensorMap { unsigned long long words[16]; };

// number / divisor for number >= 0, where reciprocal is 2^63 / divisor, rounded up
__device__ __forceinline__ int quotient(int number, unsigned long long reciprocal)
{
  return static_cast<int>(__umul64hi(2u * number, reciprocal));
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

// c = a * b, or c += a * b if accumulate: asynchronous m64n32k16 of a warpgroup, a and b in shared memory
__device__ __forceinline__ void wgmma_m64n32k16_row_row_f32_f16(
    float* c, unsigned long long a, unsigned long long b, bool accumulate)
{
  asm volatile(
      "{ .reg .pred scale_d; setp.ne.b32 scale_d, %18, 0; "
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, scale_d, 1, 1, 0, "
      "1; }"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
        "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15])
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

// arrive once
__device__ __forceinline__ void mbarrier_arrive(unsigned mbarrier)
{
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(mbarrier) : "memory");
}

// compiler barrier: read accumulators only after wgmma_wait_group
template <int count>
__device__ __forceinline__ void pin_registers(float (&values)[count])
{
  #pragma unroll
  for (int word = 0; word < count; ++word)
    asm volatile("" : "+f"(values[word]) :: "memory");
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

// synchronize the 128 threads of a warpgroup, with one named barrier per warpgroup
__device__ __forceinline__ void warpgroup_sync()
{
  const unsigned warpgroup = threadIdx.x / 128;
  if (warpgroup == 0) asm volatile("bar.sync 1, 128;" ::: "memory");
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

// wait until at most N bulk groups of this thread have not yet read shared memory
template <int N>
__device__ __forceinline__ void tma_store_wait_group()
{
  asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(N) : "memory");
}

// arrive and expect `bytes` from TMA
__device__ __forceinline__ void mbarrier_arrive_expect_tx(unsigned mbarrier, unsigned bytes)
{
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(mbarrier), "r"(bytes) : "memory");
}

// TMA load of a box of a matrix to shared memory; its bytes complete on `mbarrier`
__device__ __forceinline__ void tma_load(unsigned target, const TensorMap* map, int x, int y, unsigned mbarrier)
{
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];"
      :: "r"(target), "l"(map), "r"(x), "r"(y), "r"(mbarrier) : "memory");
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

extern "C" __global__ void __launch_bounds__(160)
matmul(
    const __grid_constant__ TensorMap A_map,
    const __grid_constant__ TensorMap B_map,
    const __grid_constant__ TensorMap C_map,
    const int m,
    const int n,
    const int k,
    const unsigned long long band_reciprocal,
    const unsigned long long column_reciprocal)
{
  constexpr int num_stages = 4;
  constexpr int a_sh_stage_bytes = 64 * 128 * 2;
  constexpr int a_sh_panel_bytes = 64 * 64 * 2;
  constexpr int b_sh_stage_bytes = 128 * 32 * 2;
  constexpr int k2_ring_bytes = a_sh_stage_bytes + b_sh_stage_bytes;
  constexpr int store_c_sh_bytes = 64 * 32 * 2;
  constexpr int b_sh_offset = num_stages * a_sh_stage_bytes;
  constexpr int store_c_sh_offset = b_sh_offset + num_stages * b_sh_stage_bytes;
  constexpr int k2_ring_offset = store_c_sh_offset + store_c_sh_bytes;
  const int thread = threadIdx.x;
  const int band = quotient(blockIdx.x, band_reciprocal);
  const int inside = blockIdx.x - band * ((n + 31) / 32 * 4);
  const int height = min((m + 63) / 64 - band * 4, 4);
  const int column = height < 4 ? quotient(inside, column_reciprocal) : inside / 4;
  const int block_n = min((n + 31) / 32 - 1, column);
  const int block_m = min((m + 63) / 64 - 1, band * 4 + (inside - column * height));
  const int lane = threadIdx.x % 32;
  extern __shared__ __align__(1024) unsigned char smem[];
  __half* const a_sh = reinterpret_cast<__half*>(smem);  // 64 x 128, 4 stages
  __half* const b_sh = reinterpret_cast<__half*>(smem + b_sh_offset);  // 128 x 32, 4 stages
  __half* const store_c_sh = reinterpret_cast<__half*>(smem + store_c_sh_offset);  // 64 x 32
  __align__(8) float c_rf[16];  // of 64 x 32
  const unsigned k2_ring_full = shared_address(smem + k2_ring_offset);  // 4 mbarriers: a_sh, b_sh full
  const unsigned k2_ring_empty = k2_ring_full + num_stages * 8;  // 4 mbarriers: a_sh, b_sh empty
  if (threadIdx.x == 0) {
    prefetch_tensor_map(&A_map);
    prefetch_tensor_map(&B_map);
    prefetch_tensor_map(&C_map);
    for (int stage = 0; stage < num_stages; ++stage) {
      mbarrier_init(k2_ring_full + stage * 8, 1);
      mbarrier_init(k2_ring_empty + stage * 8, 4);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  const int warp_index = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  // consumers
  if (warp_index < 4) {
    // c_rf: Init(64,32)(RF)(Block)
    c_rf[0] = 0.0f;
    c_rf[1] = 0.0f;
    c_rf[2] = 0.0f;
    c_rf[3] = 0.0f;
    c_rf[4] = 0.0f;
    c_rf[5] = 0.0f;
    c_rf[6] = 0.0f;
    c_rf[7] = 0.0f;
    c_rf[8] = 0.0f;
    c_rf[9] = 0.0f;
    c_rf[10] = 0.0f;
    c_rf[11] = 0.0f;
    c_rf[12] = 0.0f;
    c_rf[13] = 0.0f;
    c_rf[14] = 0.0f;
    c_rf[15] = 0.0f;
    const unsigned a_sh_address = shared_address(a_sh);
    const unsigned b_sh_address = shared_address(b_sh);
    pin_registers(c_rf);
#pragma unroll 1
    for (int k2 = 0; k2 < (k + 127) / 128; ++k2) {
      const int k2_stage = k2 % num_stages;
      const int k2_stage_3 = (k2 + 3) % num_stages;
      const int k2_stage_uniform = __shfl_sync(0xffffffff, k2_stage, 0);  // warp-uniform
      mbarrier_wait(k2_ring_full + k2_stage * 8, k2 / num_stages % 2);  // wait until a_sh, b_sh are full
      // MatMul(64,32,128)(SH,SH,RF)(Warpgroup)
      wgmma_fence();
#pragma unroll
      for (int k3 = 0; k3 < 8; ++k3) {
        wgmma_m64n32k16_row_row_f32_f16(
            c_rf,
            matrix_descriptor<0, 1024, 1>(
                a_sh_address + k2_stage_uniform * a_sh_stage_bytes + k3 / 4 * a_sh_panel_bytes + k3 % 4 * 32),
            matrix_descriptor<0, 512, 2>(b_sh_address + k2_stage_uniform * b_sh_stage_bytes + k3 * 16 * 64),
            true);
      }
      wgmma_commit_group();
      wgmma_wait_group<1>();  // a_sh, b_sh of the previous iteration have been read
      if (thread % 32 == 0 && k2 > 0)
        mbarrier_arrive(k2_ring_empty + k2_stage_3 * 8);
    }
    wgmma_wait_group<0>();  // a_sh, b_sh of the last iteration have been read
    if (thread % 32 == 0)
      mbarrier_arrive(k2_ring_empty + ((k + 127) / 128 + 3) % 4 * 8);
    const unsigned store_c_sh_target = shared_address(store_c_sh) + thread / 32 * 16 * 64 + lane % 16 * 64;
    const int store_c_sh_swizzle = lane / 2 % 4 * 16;
    // c_rf to C: Move(64,32)(RF,GL)(Block)
    // src to store_c_sh: Move(64,32)(RF,SH)(Warpgroup)
#pragma unroll
    for (int store_c_sh_n = 0; store_c_sh_n < 2; ++store_c_sh_n) {
      stmatrix_x4_half(
          store_c_sh_target + ((store_c_sh_n * 32 + lane / 16 * 16) ^ store_c_sh_swizzle), &c_rf[store_c_sh_n * 8]);
    }
    fence_proxy_async();  // make store_c_sh visible to the async proxy
    warpgroup_sync();  // store_c_sh complete
    const unsigned store_c_sh_address = shared_address(store_c_sh);
    if (thread == 0)
      tma_store(&C_map, block_n * 32, block_m * 64, store_c_sh_address);
    tma_store_commit_group();
    tma_store_wait_group<0>();  // all stores have read shared memory
  }
  // producer
  else if (threadIdx.x == 128) {
    const unsigned a_sh_address = shared_address(a_sh);
    const unsigned b_sh_address = shared_address(b_sh);
#pragma unroll 1
    for (int k2 = 0; k2 < (k + 127) / 128; ++k2) {
      const int k2_stage = k2 % num_stages;
      mbarrier_wait(k2_ring_empty + k2_stage * 8, (k2 / num_stages + 1) % 2);  // wait until a_sh, b_sh are empty
      mbarrier_arrive_expect_tx(k2_ring_full + k2_stage * 8, k2_ring_bytes);
      tma_load(a_sh_address + k2_stage * a_sh_stage_bytes, &A_map, k2 * 128, block_m * 64, k2_ring_full + k2_stage * 8);
      tma_load(
          a_sh_address + k2_stage * a_sh_stage_bytes + a_sh_panel_bytes,
          &A_map,
          k2 * 128 + 64,
          block_m * 64,
          k2_ring_full + k2_stage * 8);
      tma_load(b_sh_address + k2_stage * b_sh_stage_bytes, &B_map, block_n * 32, k2 * 128, k2_ring_full + k2_stage * 8);
    }
  }
}
