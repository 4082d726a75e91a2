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

// how TMA finds a matrix; the launcher encodes it (cuTensorMapEncodeTiled)
struct __align__(64) TensorMap { unsigned long long words[16]; };

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

// c (+)= left * right by a warpgroup: 64, 16, 16 elements along m, n, k; under way until it is waited for
__device__ __forceinline__ void wgmma_m64n16k16_col_col_f32_f16(
    float* c, unsigned long long left, unsigned long long right, bool adds)
{
  asm volatile(
      "{ .reg .pred adds; setp.ne.b32 adds, %10, 0; "
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, adds, 1, 1, 1, 0; }"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7])
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

// eight accumulators of each thread, rounded, to shared memory, transposed
__device__ __forceinline__ void stmatrix_x4_trans_half(unsigned target, const float* source)
{
  unsigned words[4];
  #pragma unroll
  for (int pair = 0; pair < 4; ++pair)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(words[pair]) : "f"(source[2 * pair + 1]), "f"(source[2 * pair]));
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
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
    const __grid_constant__ TensorMap C_map)
{
  const int block = blockIdx.x;
  const int thread = threadIdx.x;
  const int lane = threadIdx.x % 32;
  extern __shared__ __align__(1024) unsigned char smem[];
  __half* const a_sh = reinterpret_cast<__half*>(smem);  // 16 x 64, 16 copies
  __half* const b_sh = reinterpret_cast<__half*>(smem + 32768);  // 64 x 64, 16 copies
  __half* const store_c_sh = reinterpret_cast<__half*>(smem + 163840);  // 16 x 64
  __align__(8) float c_rf[8];  // of 16 x 64
  const unsigned k_ring_full = shared_address(smem + 165888);  // 16 barriers: a_sh, b_sh are full
  const unsigned k_ring_empty = k_ring_full + 128;  // and empty again
  if (threadIdx.x == 0) {
    prefetch_map(&A_map);
    prefetch_map(&B_map);
    prefetch_map(&C_map);
    for (int stage = 0; stage < 16; ++stage) {
      mbarrier_init(k_ring_full + stage * 8, 1);
      mbarrier_init(k_ring_empty + stage * 8, 4);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  const int warp_of_block = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  // consumers
  if (warp_of_block < 4) {
    // c_rf: Init(16,64)(RF)(Block)
    // c_rf begins with its first product
    mbarrier_wait(k_ring_full, 0);  // a_sh, b_sh of this turn are full
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
    wgmma_commit();
    wgmma_wait<1>();  // a_sh, b_sh of the turn before have been read
    if (0)
      mbarrier_arrive(k_ring_empty + 120);
    wgmma_wait<0>();  // a_sh, b_sh of the last turn have been read
    if (thread % 32 == 0)
      mbarrier_arrive(k_ring_empty);
    const unsigned store_c_sh_address = shared_address(store_c_sh);
    // c_rf to C: Move(16,64)(RF,GL)(Block)
    // src to store_c_sh: Move(16,64)(RF,SH)(Warpgroup)
    stmatrix_x4_trans_half(
        store_c_sh_address + lane / 16 * 8 * 128 + lane % 8 * 128
            + ((lane % 8 * 16) ^ (thread / 32 * 32 + lane / 8 % 2 * 16)),
        c_rf);
    proxy_fence();  // store_c_sh for the asynchronous proxy
    warpgroup_sync();  // store_c_sh complete
    if (thread == 0)
      tma_store(&C_map, 0, block * 16, store_c_sh_address);
    tma_store_commit();
    tma_store_wait<0>();  // all stores have read what they store
  }
  // producer
  else if (threadIdx.x == 128) {
    mbarrier_wait(k_ring_empty, 1);  // a_sh, b_sh of this turn are empty
    mbarrier_expect(k_ring_full, 10240);
    const unsigned a_sh_address2 = shared_address(a_sh);
    tma_load(a_sh_address2, &A_map, 0, block * 16, k_ring_full);
    const unsigned b_sh_address2 = shared_address(b_sh);
    tma_load(b_sh_address2, &B_map, 0, 0, k_ring_full);
  }
}
