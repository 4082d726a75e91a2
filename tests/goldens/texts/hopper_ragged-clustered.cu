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
// clusters of 2 neighbouring blocks
#include <cuda_fp16.h>

// how TMA finds a matrix; the launcher encodes it (cuTensorMapEncodeTiled)
struct __align__(64) TensorMap { unsigned long long words[16]; };

// all threads of all blocks of the cluster wait for each other
__device__ __forceinline__ void cluster_sync()
{
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
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

// c (+)= left * right by a warpgroup: 64, 128, 16 elements along m, n, k; under way until it is waited for
__device__ __forceinline__ void wgmma_m64n128k16_row_row_f32_f16(
    float* c, unsigned long long left, unsigned long long right, bool adds)
{
  asm volatile(
      "{ .reg .pred adds; setp.ne.b32 adds, %66, 0; "
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
      "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, "
      "%41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, "
      "%61, %62, %63}, %64, %65, adds, 1, 1, 0, 1; }"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
        "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),
        "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
        "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31]),
        "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35]), "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]),
        "+f"(c[40]), "+f"(c[41]), "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]),
        "+f"(c[48]), "+f"(c[49]), "+f"(c[50]), "+f"(c[51]), "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55]),
        "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]), "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63])
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

// one arrival at this barrier in each of several blocks of the cluster, a bit for each
__device__ __forceinline__ void mbarrier_arrive_at(unsigned barrier, unsigned blocks)
{
  for (unsigned left = blocks; left != 0; left &= left - 1) {
    asm volatile(
        "{\n"
        ".reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
        "}"
        :: "r"(barrier), "r"(__ffs(left) - 1) : "memory");
  }
}

// all but the last so many groups of this thread's stores have read what they store
template <int groups>
__device__ __forceinline__ void tma_store_wait()
{
  asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(groups) : "memory");
}

// the 128 threads of a warpgroup wait for each other, at a named barrier of their own
__device__ __forceinline__ void warpgroup_sync()
{
  const unsigned warpgroup = threadIdx.x / 128;
  if (warpgroup == 0) asm volatile("bar.sync 1, 128;" ::: "memory");
  else if (warpgroup == 1) asm volatile("bar.sync 2, 128;" ::: "memory");
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

// each thread of the warpgroup gets 224 registers
__device__ __forceinline__ void take_registers_to_224()
{
  asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
}

// arrive, and announce bytes that TMA will bring
__device__ __forceinline__ void mbarrier_expect(unsigned barrier, unsigned bytes)
{
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}

// a box of a matrix by TMA to the same place in several blocks of the cluster, a bit for each: a barrier of each counts its bytes
__device__ __forceinline__ void tma_load_multicast(
    unsigned target, const TensorMap* map, int x, int y, unsigned barrier, unsigned short blocks)
{
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3}], [%4], %5;"
      :: "r"(target), "l"(map), "r"(x), "r"(y), "r"(barrier), "h"(blocks) : "memory");
}

// a box of a matrix of a stack to shared memory by TMA: its bytes are counted by a barrier
__device__ __forceinline__ void tma_load_3d(
    unsigned target, const TensorMap* map, int x, int y, int z, unsigned barrier)
{
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];"
      :: "r"(target), "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier) : "memory");
}

// each thread of the warpgroup keeps 56 registers
__device__ __forceinline__ void give_registers_to_56()
{
  asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
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

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384, 1)
grouped_ragged(
    const __grid_constant__ TensorMap A_map,
    const __grid_constant__ TensorMap B_map,
    const int* __restrict__ begin,
    const int* __restrict__ end,
    const __grid_constant__ TensorMap D_map)
{
  const int block = blockIdx.x;
  const int thread = threadIdx.x;
  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
  const int warpgroup_lane = threadIdx.x % 128;
  const int lane = threadIdx.x % 32;
  extern __shared__ __align__(1024) unsigned char smem[];
  __half* const product_a_sh = reinterpret_cast<__half*>(smem);  // 128 x 64, 4 copies
  __half* const product_b_sh = reinterpret_cast<__half*>(smem + 65536);  // 64 x 128, 4 copies
  __half* const store_acc_sh = reinterpret_cast<__half*>(smem + 131072);  // 64 x 64, 2 copies
  __align__(8) float acc[64];  // of 128 x 128
  float p[64];  // of 128 x 128
  // 4 barriers: product_a_sh, product_b_sh are full
  const unsigned product_k_ring_full = shared_address(smem + 147456);
  const unsigned product_k_ring_empty = product_k_ring_full + 32;  // and empty again
  if (threadIdx.x == 0) {
    prefetch_map(&A_map);
    prefetch_map(&B_map);
    prefetch_map(&D_map);
    for (int stage = 0; stage < 4; ++stage) {
      mbarrier_init(product_k_ring_full + stage * 8, 1);
      mbarrier_init(product_k_ring_empty + stage * 8, 16);
    }
    mbarrier_init_fence();
  }
  cluster_sync();  // the barriers of all blocks of the cluster are made
  const int warp_of_block = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  // consumers
  if (warp_of_block < 8) {
    take_registers_to_224();
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
    int turns_taken = 0;
    unsigned g_taken = 0;  // the turns of g that are taken, a bit for each
#pragma unroll
    for (int g = 0; g < 3; ++g) {
      const int begin_here = min(max(begin[g], 0), 40);
      const int end_here = min(max(end[g], 0), 40);
      const int seen = end_here + 1 > 1;
      g_taken |= static_cast<unsigned>(seen) << g;
    }
    for (; g_taken != 0; g_taken &= g_taken - 1) {
      const int g = __ffs(g_taken) - 1;
      // product: p[m,n] = sum(k, A[m,k] * B[g,k,n])
      // p begins with its first product
      mbarrier_wait(product_k_ring_full + turns_taken * 8, 0);  // product_a_sh, product_b_sh of this turn are full
      // MatMul(64,128,64)(SH,SH,RF)(Warpgroup)
      wgmma_fence();
#pragma unroll
      for (int product_k2 = 0; product_k2 < 4; ++product_k2) {
        wgmma_m64n128k16_row_row_f32_f16(
            p,
            matrix_descriptor<0, 1024, 1>(
                product_a_sh_address + turns_taken * 128 * 128 + warpgroup * 64 * 128 + product_k2 * 32),
            matrix_descriptor<8192, 1024, 1>(product_b_sh_address + turns_taken * 2 * 8192 + product_k2 * 16 * 128),
            product_k2 > 0);
      }
      wgmma_commit();
      wgmma_wait<0>();  // product_a_sh, product_b_sh of this turn have been read
      if (thread % 32 == 0)
        mbarrier_arrive_at(product_k_ring_empty + turns_taken * 8, 0x3);
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
      ++turns_taken;
    }
    const unsigned store_acc_sh_target =
        shared_address(store_acc_sh) + warpgroup * 64 * 128 + thread / 32 % 4 * 16 * 128 + lane % 16 * 128;
    const int store_acc_sh_swizzle = lane % 8 * 16;
    const unsigned store_acc_sh_address = shared_address(store_acc_sh);
    // store: D[m,n] = acc[m,n]
#pragma unroll
    for (int store_n = 0; store_n < 2; ++store_n) {
      tma_store_wait<0>();  // store_acc_sh has been stored
      warpgroup_sync();  // store_acc_sh free again
      // src to store_acc_sh: Move(64,64)(RF,SH)(Warpgroup)
#pragma unroll
      for (int store_acc_sh_n = 0; store_acc_sh_n < 4; ++store_acc_sh_n) {
        stmatrix_x4_half(
            store_acc_sh_target + ((store_acc_sh_n * 32 + lane / 16 * 16) ^ store_acc_sh_swizzle),
            &acc[store_n * 32 + store_acc_sh_n * 8]);
      }
      proxy_fence();  // store_acc_sh for the asynchronous proxy
      warpgroup_sync();  // store_acc_sh complete
      if (thread % 128 == 0)
        tma_store(&D_map, block * 128 + store_n * 64, warpgroup * 64, store_acc_sh_address + warpgroup * 64 * 128);
      tma_store_commit();
    }
    tma_store_wait<0>();  // all stores have read what they store
  }
  // producer
  else {
    give_registers_to_56();
    if (threadIdx.x == 256) {
      const unsigned product_a_sh_address2 = shared_address(product_a_sh);
      const unsigned product_b_sh_address2 = shared_address(product_b_sh);
      int turns_taken = 0;
      unsigned g_taken2 = 0;  // the turns of g that are taken, a bit for each
#pragma unroll
      for (int g = 0; g < 3; ++g) {
        const int begin_here = min(max(begin[g], 0), 40);
        const int end_here = min(max(end[g], 0), 40);
        const int seen = end_here + 1 > 1;
        g_taken2 |= static_cast<unsigned>(seen) << g;
      }
      for (; g_taken2 != 0; g_taken2 &= g_taken2 - 1) {
        const int g = __ffs(g_taken2) - 1;
        mbarrier_wait(product_k_ring_empty + turns_taken * 8, 1);  // product_a_sh, product_b_sh of this turn are empty
        mbarrier_expect(product_k_ring_full + turns_taken * 8, 32768);
        tma_load_multicast(
            product_a_sh_address2 + turns_taken * 128 * 128 + block * 64 * 128,
            &A_map,
            0,
            block * 64,
            product_k_ring_full + turns_taken * 8,
            0x3);
        tma_load_3d(
            product_b_sh_address2 + turns_taken * 2 * 8192,
            &B_map,
            block * 128,
            0,
            g,
            product_k_ring_full + turns_taken * 8);
        tma_load_3d(
            product_b_sh_address2 + turns_taken * 2 * 8192 + 64 * 128,
            &B_map,
            block * 128 + 64,
            0,
            g,
            product_k_ring_full + turns_taken * 8);
        ++turns_taken;
      }
    }
  }
  cluster_sync();  // no block ends while others send to it, or arrive at its barriers
}
