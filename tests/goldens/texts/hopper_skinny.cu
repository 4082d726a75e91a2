// MatMul(40,48,40)(GL,GL,GL)(Kernel) with A, B, C float16 RowMajor
//   .tile(16, 64).to(Block)
//   .epilog(RF, float32, Init.done(), Move.tile(16, 64).to(Warpgroup).tile(16, 64).unroll().load('src', SH,
//     Move.done()).cast_on_copy().done())
//   .split(64).mma_in_flight(1).pipeline(16).warp_specialize()
//   .load(A, SH, Move.done())
//   .load(B, SH, Move.done())
//   .tile(16, 64).to(Warpgroup)
//   .done()
// target sm_90a; launch <<<3, 160>>>, 166144 bytes of dynamic shared memory
#include <cuda_fp16.h>

// TMA tensor map of a tensor, encoded by the launcher (cuTensorMapEncodeTiled)
struct __align__(64) TensorMap { unsigned long long words[16]; };

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

// c = a * b, or c += a * b if accumulate: asynchronous m64n16k16 of a warpgroup, a and b in shared memory
__device__ __forceinline__ void wgmma_m64n16k16_col_col_f32_f16(
    float* c, unsigned long long a, unsigned long long b, bool accumulate)
{
  asm volatile(
      "{ .reg .pred scale_d; setp.ne.b32 scale_d, %10, 0; "
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, scale_d, 1, 1, 1, 0; }"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7])
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

// round eight accumulators per thread to 16 bits and store them to shared memory, transposed
__device__ __forceinline__ void stmatrix_x4_trans_half(unsigned target, const float* source)
{
  unsigned words[4];
  #pragma unroll
  for (int pair = 0; pair < 4; ++pair)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(words[pair]) : "f"(source[2 * pair + 1]), "f"(source[2 * pair]));
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
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
    const __grid_constant__ TensorMap C_map)
{
  constexpr int num_stages = 16;
  constexpr int a_sh_stage_bytes = 16 * 64 * 2;
  constexpr int b_sh_stage_bytes = 64 * 64 * 2;
  constexpr int k_ring_bytes = a_sh_stage_bytes + b_sh_stage_bytes;
  constexpr int store_c_sh_bytes = 16 * 64 * 2;
  constexpr int b_sh_offset = num_stages * a_sh_stage_bytes;
  constexpr int store_c_sh_offset = b_sh_offset + num_stages * b_sh_stage_bytes;
  constexpr int k_ring_offset = store_c_sh_offset + store_c_sh_bytes;
  const int block = blockIdx.x;
  const int thread = threadIdx.x;
  const int lane = threadIdx.x % 32;
  extern __shared__ __align__(1024) unsigned char smem[];
  __half* const a_sh = reinterpret_cast<__half*>(smem);  // 16 x 64, 16 stages
  __half* const b_sh = reinterpret_cast<__half*>(smem + b_sh_offset);  // 64 x 64, 16 stages
  __half* const store_c_sh = reinterpret_cast<__half*>(smem + store_c_sh_offset);  // 16 x 64
  __align__(8) float c_rf[8];  // of 16 x 64
  const unsigned k_ring_full = shared_address(smem + k_ring_offset);  // 16 mbarriers: a_sh, b_sh full
  const unsigned k_ring_empty = k_ring_full + num_stages * 8;  // 16 mbarriers: a_sh, b_sh empty
  if (threadIdx.x == 0) {
    prefetch_tensor_map(&A_map);
    prefetch_tensor_map(&B_map);
    prefetch_tensor_map(&C_map);
    for (int stage = 0; stage < num_stages; ++stage) {
      mbarrier_init(k_ring_full + stage * 8, 1);
      mbarrier_init(k_ring_empty + stage * 8, 4);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  const int warp_index = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  // consumers
  if (warp_index < 4) {
    // c_rf: Init(16,64)(RF)(Block)
    // the first MMA initializes c_rf
    mbarrier_wait(k_ring_full, 0);  // wait until a_sh, b_sh are full
    // MatMul(16,64,64)(SH,SH,RF)(Warpgroup)
    wgmma_fence();
    const unsigned a_sh_address = shared_address(a_sh);
    const unsigned b_sh_address = shared_address(b_sh);
#pragma unroll
    for (int k2 = 0; k2 < 4; ++k2) {
      wgmma_m64n16k16_col_col_f32_f16(
          c_rf,
          matrix_descriptor<0, 1024, 1>(b_sh_address + k2 * 16 * 128),
          matrix_descriptor<0, 1024, 1>(a_sh_address + k2 * 32),
          k2 > 0);
    }
    wgmma_commit_group();
    wgmma_wait_group<1>();  // a_sh, b_sh of the previous iteration have been read
    wgmma_wait_group<0>();  // a_sh, b_sh of the last iteration have been read
    if (thread % 32 == 0)
      mbarrier_arrive(k_ring_empty);
    const unsigned store_c_sh_address = shared_address(store_c_sh);
    // c_rf to C: Move(16,64)(RF,GL)(Block)
    // src to store_c_sh: Move(16,64)(RF,SH)(Warpgroup)
    stmatrix_x4_trans_half(
        store_c_sh_address + lane / 16 * 8 * 128 + lane % 8 * 128
            + ((lane % 8 * 16) ^ (thread / 32 * 32 + lane / 8 % 2 * 16)),
        c_rf);
    fence_proxy_async();  // make store_c_sh visible to the async proxy
    warpgroup_sync();  // store_c_sh complete
    if (thread == 0)
      tma_store(&C_map, 0, block * 16, store_c_sh_address);
    tma_store_commit_group();
    tma_store_wait_group<0>();  // all stores have read shared memory
  }
  // producer
  else if (threadIdx.x == 128) {
    mbarrier_wait(k_ring_empty, 1);  // wait until a_sh, b_sh are empty
    mbarrier_arrive_expect_tx(k_ring_full, k_ring_bytes);
    const unsigned a_sh_address = shared_address(a_sh);
    tma_load(a_sh_address, &A_map, 0, block * 16, k_ring_full);
    const unsigned b_sh_address = shared_address(b_sh);
    tma_load(b_sh_address, &B_map, 0, 0, k_ring_full);
  }
}
