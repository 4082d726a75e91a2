// MatMul(4096,4096,4096)(GL,GL,GL)(Kernel) with A, B, C float16 RowMajor
//   gemm_host: on HOST, C A B GLOBAL, U=128, V=256, group_m=8, persistent=132
//     gemm_block: on BLOCK, C A B GLOBAL, W=64, pipeline=4, warpspecialize
//       clear_tile: on BLOCK, C NONE, WM=2, WN=1
//         clear_warpgroup: clear_inner on WARPGROUP, C NONE, INSTR=wgmma, PIECES=4, PROC=WARP
//           clear_warp: clear_inner on WARP, C NONE, INSTR=wgmma, PIECES=32, PROC=THREAD
//             clear_thread: on THREAD, C REGISTER
//       gemm_tile: on BLOCK, C NONE, A B SHARED, WM=2, WN=1
//         gemm_warpgroup: gemm_inner on WARPGROUP, C NONE, A B SHARED, INSTR=wgmma, PIECES=4, PROC=WARP
//           gemm_warp: gemm_inner on WARP, C NONE, A B SHARED, INSTR=wgmma, PIECES=32, PROC=THREAD
//             gemm_thread: on THREAD, C REGISTER, A B SHARED
//       copy_tile: on BLOCK, dst GLOBAL, src NONE, WM=2, WN=1
//         copy_chunks: copy_tile on WARPGROUP, dst GLOBAL, src NONE, WM=1, WN=4
//           copy_chunk: copy_through on WARPGROUP, dst GLOBAL, src NONE
//             copy_in: copy_thread on WARPGROUP, dst SHARED, src NONE
//             copy_out: copy_thread on WARPGROUP, dst GLOBAL, src SHARED
// target sm_90a; launch <<<132, 288>>>, 213056 bytes of dynamic shared memory
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

// c = a * b, or c += a * b if accumulate: asynchronous m64n256k16 of a warpgroup, a and b in shared memory
__device__ __forceinline__ void wgmma_m64n256k16_row_row_f32_f16(
    float* c, unsigned long long a, unsigned long long b, bool accumulate)
{
  asm volatile(
      "{ .reg .pred scale_d; setp.ne.b32 scale_d, %130, 0; "
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
      "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, "
      "%41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, "
      "%61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, "
      "%81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, "
      "%100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, "
      "%116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, %128, %129, scale_d, 1, 1, "
      "0, 1; }"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
        "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),
        "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
        "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31]),
        "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35]), "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]),
        "+f"(c[40]), "+f"(c[41]), "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]),
        "+f"(c[48]), "+f"(c[49]), "+f"(c[50]), "+f"(c[51]), "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55]),
        "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]), "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63]),
        "+f"(c[64]), "+f"(c[65]), "+f"(c[66]), "+f"(c[67]), "+f"(c[68]), "+f"(c[69]), "+f"(c[70]), "+f"(c[71]),
        "+f"(c[72]), "+f"(c[73]), "+f"(c[74]), "+f"(c[75]), "+f"(c[76]), "+f"(c[77]), "+f"(c[78]), "+f"(c[79]),
        "+f"(c[80]), "+f"(c[81]), "+f"(c[82]), "+f"(c[83]), "+f"(c[84]), "+f"(c[85]), "+f"(c[86]), "+f"(c[87]),
        "+f"(c[88]), "+f"(c[89]), "+f"(c[90]), "+f"(c[91]), "+f"(c[92]), "+f"(c[93]), "+f"(c[94]), "+f"(c[95]),
        "+f"(c[96]), "+f"(c[97]), "+f"(c[98]), "+f"(c[99]), "+f"(c[100]), "+f"(c[101]), "+f"(c[102]),
        "+f"(c[103]), "+f"(c[104]), "+f"(c[105]), "+f"(c[106]), "+f"(c[107]), "+f"(c[108]), "+f"(c[109]),
        "+f"(c[110]), "+f"(c[111]), "+f"(c[112]), "+f"(c[113]), "+f"(c[114]), "+f"(c[115]), "+f"(c[116]),
        "+f"(c[117]), "+f"(c[118]), "+f"(c[119]), "+f"(c[120]), "+f"(c[121]), "+f"(c[122]), "+f"(c[123]),
        "+f"(c[124]), "+f"(c[125]), "+f"(c[126]), "+f"(c[127])
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

extern "C" __global__ void __launch_bounds__(288)
matmul(
    const __grid_constant__ TensorMap A_map,
    const __grid_constant__ TensorMap B_map,
    const __grid_constant__ TensorMap C_map)
{
  constexpr int num_stages = 4;
  constexpr int num_tiles = 512;
  constexpr int num_blocks = 132;
  constexpr int a_sh_stage_bytes = 128 * 64 * 2;
  constexpr int b_sh_stage_bytes = 64 * 256 * 2;
  constexpr int dst_sh_bytes = 64 * 64 * 2;
  constexpr int k_ring_bytes = a_sh_stage_bytes + b_sh_stage_bytes;
  constexpr int b_sh_panel_bytes = 64 * 64 * 2;
  constexpr int b_sh_offset = num_stages * a_sh_stage_bytes;
  constexpr int dst_sh_offset = b_sh_offset + num_stages * b_sh_stage_bytes;
  constexpr int k_ring_offset = dst_sh_offset + 2 * dst_sh_bytes;
  const int thread = threadIdx.x;
  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
  const int lane = threadIdx.x % 32;
  extern __shared__ __align__(1024) unsigned char smem[];
  __half* const a_sh = reinterpret_cast<__half*>(smem);  // 128 x 64, 4 stages
  __half* const b_sh = reinterpret_cast<__half*>(smem + b_sh_offset);  // 64 x 256, 4 stages
  __half* const dst_sh = reinterpret_cast<__half*>(smem + dst_sh_offset);  // 64 x 64, 2 copies
  __align__(8) float c_rf[128];  // of 128 x 256
  const unsigned k_ring_full = shared_address(smem + k_ring_offset);  // 4 mbarriers: a_sh, b_sh full
  const unsigned k_ring_empty = k_ring_full + num_stages * 8;  // 4 mbarriers: a_sh, b_sh empty
  if (threadIdx.x == 0) {
    prefetch_tensor_map(&A_map);
    prefetch_tensor_map(&B_map);
    prefetch_tensor_map(&C_map);
    for (int stage = 0; stage < num_stages; ++stage) {
      mbarrier_init(k_ring_full + stage * 8, 1);
      mbarrier_init(k_ring_empty + stage * 8, 8);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  const int warp_index = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  // consumers
  if (warp_index < 8) {
    const unsigned a_sh_address = shared_address(a_sh);
    const unsigned b_sh_address = shared_address(b_sh);
    const unsigned dst_sh_target =
        shared_address(dst_sh) + warpgroup * dst_sh_bytes + thread / 32 % 4 * 16 * 128 + lane % 16 * 128;
    const int dst_sh_swizzle = lane % 8 * 16;
    const unsigned dst_sh_address = shared_address(dst_sh);
    for (int tile = blockIdx.x; tile < num_tiles; tile += num_blocks) {
      const int block_j = tile / 8 % 16;
      const int block_i = tile / 128 * 8 + tile % 8;
#pragma unroll
      for (int fill_n = 0; fill_n < 32; ++fill_n) {
        c_rf[fill_n * 4] = 0.0f;
        c_rf[fill_n * 4 + 1] = 0.0f;
        c_rf[fill_n * 4 + 2] = 0.0f;
        c_rf[fill_n * 4 + 3] = 0.0f;
      }
      for (int k = 0; k < 64; ++k) {
        const int k_stage = k % num_stages;
        mbarrier_wait(k_ring_full + k_stage * 8, k / num_stages % 2);  // wait until a_sh, b_sh are full
        wgmma_fence();
#pragma unroll
        for (int matmul_k = 0; matmul_k < 4; ++matmul_k) {
          wgmma_m64n256k16_row_row_f32_f16(
              c_rf,
              matrix_descriptor<0, 1024, 1>(
                  a_sh_address + k_stage * a_sh_stage_bytes + warpgroup * 64 * 128 + matmul_k * 32),
              matrix_descriptor<8192, 1024, 1>(b_sh_address + k_stage * b_sh_stage_bytes + matmul_k * 16 * 128),
              true);
        }
        wgmma_commit_group();
        wgmma_wait_group<0>();  // a_sh, b_sh of this iteration have been read
        if (thread % 32 == 0)
          mbarrier_arrive(k_ring_empty + k_stage * 8);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        tma_store_wait_group<0>();  // dst_sh has been stored
        warpgroup_sync();  // dst_sh free again
#pragma unroll
        for (int copy_n = 0; copy_n < 4; ++copy_n) {
          stmatrix_x4_half(
              dst_sh_target + ((copy_n * 32 + lane / 16 * 16) ^ dst_sh_swizzle), &c_rf[j * 32 + copy_n * 8]);
        }
        fence_proxy_async();  // make dst_sh visible to the async proxy
        warpgroup_sync();  // dst_sh complete
        if (thread % 128 == 0) {
          tma_store(
              &C_map,
              block_j * 256 + j * 64,
              block_i * 128 + warpgroup * 64,
              dst_sh_address + warpgroup * dst_sh_bytes);
        }
        tma_store_commit_group();
      }
    }
    tma_store_wait_group<0>();  // all stores have read shared memory
  }
  // producer
  else if (threadIdx.x == 256) {
    const unsigned a_sh_address = shared_address(a_sh);
    const unsigned b_sh_address = shared_address(b_sh);
    for (int tile = blockIdx.x; tile < num_tiles; tile += num_blocks) {
      const int block_j = tile / 8 % 16;
      const int block_i = tile / 128 * 8 + tile % 8;
      for (int k = 0; k < 64; ++k) {
        const int k_stage = k % num_stages;
        mbarrier_wait(k_ring_empty + k_stage * 8, (k / num_stages + 1) % 2);  // wait until a_sh, b_sh are empty
        mbarrier_arrive_expect_tx(k_ring_full + k_stage * 8, k_ring_bytes);
        tma_load(a_sh_address + k_stage * a_sh_stage_bytes, &A_map, k * 64, block_i * 128, k_ring_full + k_stage * 8);
        tma_load(b_sh_address + k_stage * b_sh_stage_bytes, &B_map, block_j * 256, k * 64, k_ring_full + k_stage * 8);
        tma_load(
            b_sh_address + k_stage * b_sh_stage_bytes + b_sh_panel_bytes,
            &B_map,
            block_j * 256 + 64,
            k * 64,
            k_ring_full + k_stage * 8);
        tma_load(
            b_sh_address + k_stage * b_sh_stage_bytes + 2 * b_sh_panel_bytes,
            &B_map,
            block_j * 256 + 128,
            k * 64,
            k_ring_full + k_stage * 8);
        tma_load(
            b_sh_address + k_stage * b_sh_stage_bytes + 3 * b_sh_panel_bytes,
            &B_map,
            block_j * 256 + 192,
            k * 64,
            k_ring_full + k_stage * 8);
      }
    }
  }
}
