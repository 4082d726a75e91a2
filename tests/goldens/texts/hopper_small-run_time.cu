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

// how TMA finds a matrix; the launcher encodes it (cuTensorMapEncodeTiled)
struct __align__(64) TensorMap { unsigned long long words[16]; };

// number / divisor for a number not below 0, where reciprocal is 2^63 / divisor, rounded up
__device__ __forceinline__ int quotient(int number, unsigned long long reciprocal)
{
  return static_cast<int>(__umul64hi(2u * number, reciprocal));
}

// until the phase of this parity is over
__device__ __forceinline__ void mbarrier_wait(unsigned barrier, unsigned parity)
{
  asm volatile(
      "{\n"
      ".reg .pred over;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
      "@!over bra again;\n"
      "}"
      :: "r"(barrier), "r"(parity) : "memory");
}

// what this thread did to its registers comes before the products that follow
__device__ __forceinline__ void wgmma_fence()
{
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// where wgmma finds a factor: the bytes from chunk to chunk and from eight rows to the next, and how rows are swizzled
template <unsigned chunk_stride, unsigned group_stride, unsigned swizzle>
__device__ __forceinline__ unsigned long long matrix_descriptor(unsigned address)
{
  return static_cast<unsigned long long>((address & 0x3FFFF) >> 4 | (chunk_stride >> 4) << 16)
       | static_cast<unsigned long long>(group_stride >> 4) << 32 | static_cast<unsigned long long>(swizzle) << 62;
}

// the address of inline PTX for shared memory
__device__ __forceinline__ unsigned shared_address(const void* pointer)
{
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// c (+)= left * right by a warpgroup: 64, 32, 16 elements along m, n, k; under way until it is waited for
__device__ __forceinline__ void wgmma_m64n32k16_row_row_f32_f16(
    float* c, unsigned long long left, unsigned long long right, bool adds)
{
  asm volatile(
      "{ .reg .pred adds; setp.ne.b32 adds, %18, 0; "
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, adds, 1, 1, 0, "
      "1; }"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
        "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15])
      : "l"(left), "l"(right), "r"(static_cast<int>(adds)));
}

// the products since the last commit become a group
__device__ __forceinline__ void wgmma_commit()
{
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// all but the last so many groups of products are done
template <int groups>
__device__ __forceinline__ void wgmma_wait()
{
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(groups) : "memory");
}

// one arrival
__device__ __forceinline__ void mbarrier_arrive(unsigned barrier)
{
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
}

// registers that products wrote are used behind the wait for them
template <int count>
__device__ __forceinline__ void hold(float (&values)[count])
{
  #pragma unroll
  for (int word = 0; word < count; ++word)
    asm volatile("" : "+f"(values[word]) :: "memory");
}

// eight accumulators of each thread, rounded, to shared memory
__device__ __forceinline__ void stmatrix_x4_half(unsigned target, const float* source)
{
  unsigned words[4];
  #pragma unroll
  for (int pair = 0; pair < 4; ++pair)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(words[pair]) : "f"(source[2 * pair + 1]), "f"(source[2 * pair]));
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
      :: "r"(target), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]) : "memory");
}

// what this thread wrote to shared memory is there for the asynchronous proxy too
__device__ __forceinline__ void proxy_fence()
{
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// the 128 threads of a warpgroup wait for each other, at a named barrier of their own
__device__ __forceinline__ void warpgroup_sync()
{
  const unsigned warpgroup = threadIdx.x / 128;
  if (warpgroup == 0) asm volatile("bar.sync 1, 128;" ::: "memory");
}

// a box of a matrix from shared memory by TMA, under way until it is waited for
__device__ __forceinline__ void tma_store(const TensorMap* map, int x, int y, unsigned source)
{
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];"
      :: "l"(map), "r"(x), "r"(y), "r"(source) : "memory");
}

// the stores of this thread since its last commit become a group
__device__ __forceinline__ void tma_store_commit()
{
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// all but the last so many groups of this thread's stores have read what they store
template <int groups>
__device__ __forceinline__ void tma_store_wait()
{
  asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(groups) : "memory");
}

// arrive, and announce bytes that TMA will bring
__device__ __forceinline__ void mbarrier_expect(unsigned barrier, unsigned bytes)
{
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}

// a box of a matrix to shared memory by TMA: its bytes are counted by a barrier
__device__ __forceinline__ void tma_load(unsigned target, const TensorMap* map, int x, int y, unsigned barrier)
{
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];"
      :: "r"(target), "l"(map), "r"(x), "r"(y), "r"(barrier) : "memory");
}

// a barrier in memory whose phase is over when so many have arrived, and the bytes that they announced
__device__ __forceinline__ void mbarrier_init(unsigned barrier, unsigned arrivals)
{
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(arrivals) : "memory");
}

// a tensor map is needed soon
__device__ __forceinline__ void prefetch_map(const TensorMap* map)
{
  asm volatile("prefetch.tensormap [%0];" :: "l"(map) : "memory");
}

// the barriers are there for the asynchronous proxy too
__device__ __forceinline__ void mbarrier_init_fence()
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
  const int thread = threadIdx.x;
  const int band = quotient(blockIdx.x, band_reciprocal);
  const int inside = blockIdx.x - band * ((n + 31) / 32 * 4);
  const int height = min((m + 63) / 64 - band * 4, 4);
  const int column = height < 4 ? quotient(inside, column_reciprocal) : inside / 4;
  const int block_n = min((n + 31) / 32 - 1, column);
  const int block_m = min((m + 63) / 64 - 1, band * 4 + (inside - column * height));
  const int lane = threadIdx.x % 32;
  extern __shared__ __align__(1024) unsigned char smem[];
  __half* const a_sh = reinterpret_cast<__half*>(smem);  // 64 x 128, 4 copies
  __half* const b_sh = reinterpret_cast<__half*>(smem + 65536);  // 128 x 32, 4 copies
  __half* const store_c_sh = reinterpret_cast<__half*>(smem + 98304);  // 64 x 32
  __align__(8) float c_rf[16];  // of 64 x 32
  const unsigned k2_ring_full = shared_address(smem + 102400);  // 4 barriers: a_sh, b_sh are full
  const unsigned k2_ring_empty = k2_ring_full + 32;  // and empty again
  if (threadIdx.x == 0) {
    prefetch_map(&A_map);
    prefetch_map(&B_map);
    prefetch_map(&C_map);
    for (int stage = 0; stage < 4; ++stage) {
      mbarrier_init(k2_ring_full + stage * 8, 1);
      mbarrier_init(k2_ring_empty + stage * 8, 4);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  const int warp_of_block = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  // consumers
  if (warp_of_block < 4) {
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
    hold(c_rf);
#pragma unroll 1
    for (int k2 = 0; k2 < (k + 127) / 128; ++k2) {
      const int k2_stage = k2 % 4;
      const int k2_stage_3 = (k2 + 3) % 4;
      const int k2_stage_of_warp = __shfl_sync(0xffffffff, k2_stage, 0);  // the same for all lanes
      mbarrier_wait(k2_ring_full + k2_stage * 8, k2 / 4 % 2);  // a_sh, b_sh of this turn are full
      // MatMul(64,32,128)(SH,SH,RF)(Warpgroup)
      wgmma_fence();
#pragma unroll
      for (int k3 = 0; k3 < 8; ++k3) {
        wgmma_m64n32k16_row_row_f32_f16(
            c_rf,
            matrix_descriptor<0, 1024, 1>(a_sh_address + k2_stage_of_warp * 2 * 8192 + k3 / 4 * 64 * 128 + k3 % 4 * 32),
            matrix_descriptor<0, 512, 2>(b_sh_address + k2_stage_of_warp * 128 * 64 + k3 * 16 * 64),
            true);
      }
      wgmma_commit();
      wgmma_wait<1>();  // a_sh, b_sh of the turn before have been read
      if (thread % 32 == 0 && k2 > 0)
        mbarrier_arrive(k2_ring_empty + k2_stage_3 * 8);
    }
    wgmma_wait<0>();  // a_sh, b_sh of the last turn have been read
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
    proxy_fence();  // store_c_sh for the asynchronous proxy
    warpgroup_sync();  // store_c_sh complete
    const unsigned store_c_sh_address = shared_address(store_c_sh);
    if (thread == 0)
      tma_store(&C_map, block_n * 32, block_m * 64, store_c_sh_address);
    tma_store_commit();
    tma_store_wait<0>();  // all stores have read what they store
  }
  // producer
  else if (threadIdx.x == 128) {
    const unsigned a_sh_address2 = shared_address(a_sh);
    const unsigned b_sh_address2 = shared_address(b_sh);
#pragma unroll 1
    for (int k2 = 0; k2 < (k + 127) / 128; ++k2) {
      const int k2_stage2 = k2 % 4;
      mbarrier_wait(k2_ring_empty + k2_stage2 * 8, (k2 / 4 + 1) % 2);  // a_sh, b_sh of this turn are empty
      mbarrier_expect(k2_ring_full + k2_stage2 * 8, 24576);
      tma_load(a_sh_address2 + k2_stage2 * 2 * 8192, &A_map, k2 * 128, block_m * 64, k2_ring_full + k2_stage2 * 8);
      tma_load(
          a_sh_address2 + k2_stage2 * 2 * 8192 + 64 * 128,
          &A_map,
          k2 * 128 + 64,
          block_m * 64,
          k2_ring_full + k2_stage2 * 8);
      tma_load(b_sh_address2 + k2_stage2 * 128 * 64, &B_map, block_n * 32, k2 * 128, k2_ring_full + k2_stage2 * 8);
    }
  }
}
