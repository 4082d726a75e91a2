// gemm_row_sum(m,n,k)(GL,GL,GL,GL)(Kernel) with A, B, D float16 RowMajor
//   .rfactor(step='row', parts=4)
//   .tile(m=128, n=256).to(Block).rasterize(group_m=8).persistent(132)
//   .split(k=64).pipeline(3).warp_specialize(128)
//   .load(A, SH, Move.done())
//   .load(B, SH, Move.done())
//   .tile(m=64).to(Warpgroup)
//   .step("product", AnySpec.split(16).unroll().done())
//   .step("row", AnySpec.load('src', RF, Move.done()).done())
//   .step("store", AnySpec.tile(64, 256).unroll().load('src', SH, Move.done()).cast_on_copy().done())
//   .done()
// target sm_90a; launch <<<minimum((m + 127) / 128 * ((n + 255) / 256), 132), 384>>>, 213040 bytes of dynamic shared
//     memory
// requires: the grid has at most 2**31 - 133 tiles, (m + 127) / 128 * ((n + 255) / 256) < 2147483516
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

// load a register operand of wgmma from shared memory, 16 rows per warp
__device__ __forceinline__ void ldmatrix_operand(void* target, unsigned source)
{
  unsigned* const words = static_cast<unsigned*>(target);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
      : "r"(source) : "memory");
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

// sum of each element over 4 adjacent lanes, in all of them
template <int N>
__device__ __forceinline__ void quad_reduce_sum(float (&x)[N])
{
  #pragma unroll
  for (int mask = 2; mask > 0; mask /= 2) {
    float other[N];
    #pragma unroll
    for (int i = 0; i < N; ++i)
      other[i] = __shfl_xor_sync(0xffffffff, x[i], mask);
    #pragma unroll
    for (int i = 0; i < N; ++i)
      x[i] = x[i] + other[i];
  }
}

// increase the registers of each thread of the warpgroup to 232
__device__ __forceinline__ void setmaxnreg_inc_232()
{
  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
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

// decrease the registers of each thread of the warpgroup to 40
__device__ __forceinline__ void setmaxnreg_dec_40()
{
  asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
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

extern "C" __global__ void __launch_bounds__(384, 1)
gemm_row_sum(
    const __grid_constant__ TensorMap A_map,
    const __grid_constant__ TensorMap B_map,
    const __grid_constant__ TensorMap D_map,
    float* __restrict__ y,
    const int m,
    const int n,
    const int k,
    const unsigned long long band_reciprocal,
    const unsigned long long column_reciprocal)
{
  constexpr int num_stages = 3;
  constexpr int num_blocks = 132;
  constexpr int a_sh_stage_bytes = 128 * 64 * 2;
  constexpr int b_sh_stage_bytes = 64 * 256 * 2;
  constexpr int store_acc_sh_bytes = 64 * 256 * 2;
  constexpr int store_acc_sh_panel_bytes = 64 * 64 * 2;
  constexpr int k2_ring_bytes = a_sh_stage_bytes + b_sh_stage_bytes;
  constexpr int b_sh_panel_bytes = 64 * 64 * 2;
  constexpr int b_sh_offset = num_stages * a_sh_stage_bytes;
  constexpr int store_acc_sh_offset = b_sh_offset + num_stages * b_sh_stage_bytes;
  constexpr int k2_ring_offset = store_acc_sh_offset + 2 * store_acc_sh_bytes;
  const int thread = threadIdx.x;
  const int num_tiles = (long long)((m + 127) / 128) * ((n + 255) / 256);
  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
  const int lane = threadIdx.x % 32;
  extern __shared__ __align__(1024) unsigned char smem[];
  __half* const a_sh = reinterpret_cast<__half*>(smem);  // 128 x 64, 3 stages
  __half* const b_sh = reinterpret_cast<__half*>(smem + b_sh_offset);  // 64 x 256, 3 stages
  __half* const store_acc_sh = reinterpret_cast<__half*>(smem + store_acc_sh_offset);  // 64 x 256, 2 copies
  __align__(8) float acc[128];  // of 128 x 256
  float s_parts[2];  // of 128 x 4
  __align__(4) __half row_a_rf[32];  // of 64 x 64
  float s[2];  // of 64
  float s_whole_sum_rf[2];  // of 256 x 2
  const unsigned k2_ring_full = shared_address(smem + k2_ring_offset);  // 3 mbarriers: a_sh, b_sh full
  const unsigned k2_ring_empty = k2_ring_full + num_stages * 8;  // 3 mbarriers: a_sh, b_sh empty
  if (threadIdx.x == 0) {
    prefetch_tensor_map(&A_map);
    prefetch_tensor_map(&B_map);
    prefetch_tensor_map(&D_map);
    for (int stage = 0; stage < num_stages; ++stage) {
      mbarrier_init(k2_ring_full + stage * 8, 1);
      mbarrier_init(k2_ring_empty + stage * 8, 8);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  const int warp_index = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  // consumers
  if (warp_index < 8) {
    setmaxnreg_inc_232();
    const unsigned a_sh_address = shared_address(a_sh);
    const unsigned b_sh_address = shared_address(b_sh);
    const unsigned a_sh_source =
        shared_address(a_sh) + warpgroup * 64 * 128 + thread / 32 % 4 * 16 * 128 + lane % 16 * 128;
    const int a_sh_swizzle = lane % 8 * 16;
    const unsigned store_acc_sh_target =
        shared_address(store_acc_sh) + warpgroup * store_acc_sh_bytes + thread / 32 % 4 * 16 * 128 + lane % 16 * 128;
    const unsigned store_acc_sh_address = shared_address(store_acc_sh);
    float* const y_target = y + warpgroup * 64 + thread / 32 % 4 * 16 + lane / 4;
    int k2_stage = 0;
    int k2_phase = 0;
    for (int tile = blockIdx.x; tile < num_tiles; tile += num_blocks) {
      const int band = quotient(tile, band_reciprocal);
      const int inside = tile - band * ((n + 255) / 256 * 8);
      const int height = min((m + 127) / 128 - band * 8, 8);
      const int column = height < 8 ? quotient(inside, column_reciprocal) : inside / 8;
      const int block_n = min((n + 255) / 256 - 1, column);
      const int block_m = min((m + 127) / 128 - 1, band * 8 + (inside - column * height));
      // gemm_row_sum(64,256,4)(RF,RF)(Warpgroup)
      // zero: acc[m,n] = 0
#pragma unroll
      for (int zero_n = 0; zero_n < 32; ++zero_n) {
        acc[zero_n * 4] = 0.0f;
        acc[zero_n * 4 + 1] = 0.0f;
        acc[zero_n * 4 + 2] = 0.0f;
        acc[zero_n * 4 + 3] = 0.0f;
      }
      // none: s_parts[m,row_part] = 0
#pragma unroll
      for (int none_m = 0; none_m < 2; ++none_m)
        s_parts[none_m] = 0.0f;
#pragma unroll 1
      for (int k2 = 0; k2 < (k + 63) / 64; ++k2) {
        const int k2_stage_uniform = __shfl_sync(0xffffffff, k2_stage, 0);  // warp-uniform
        mbarrier_wait(k2_ring_full + k2_stage * 8, k2_phase);  // wait until a_sh, b_sh are full
        // gemm_row_sum(64,256,64,4)(SH,SH,RF,RF)(Warpgroup)
        // product: acc[m,n] += sum(k, A[m,k] * B[k,n])
        wgmma_fence();
#pragma unroll
        for (int product_k = 0; product_k < 4; ++product_k) {
          wgmma_m64n256k16_row_row_f32_f16(
              acc,
              matrix_descriptor<0, 1024, 1>(
                  a_sh_address + k2_stage_uniform * a_sh_stage_bytes + warpgroup * 64 * 128 + product_k * 32),
              matrix_descriptor<8192, 1024, 1>(
                  b_sh_address + k2_stage_uniform * b_sh_stage_bytes + product_k * 16 * 128),
              true);
        }
        wgmma_commit_group();
        // row: s_parts[m,row_part] += sum(k, A[m,k]), partial results
        // src to row_a_rf: Move(64,64)(SH,RF)(Warpgroup)
        if (block_n == 0) {
#pragma unroll
          for (int row_a_rf_k = 0; row_a_rf_k < 4; ++row_a_rf_k) {
            {
              __align__(4) __half row_a_rf_values[8];
              ldmatrix_operand(
                  row_a_rf_values,
                  a_sh_source + k2_stage_uniform * a_sh_stage_bytes
                      + (a_sh_swizzle ^ (row_a_rf_k * 32 + lane / 16 * 16)));
              row_a_rf[row_a_rf_k * 4] = row_a_rf_values[0];
              row_a_rf[row_a_rf_k * 4 + 1] = row_a_rf_values[1];
              row_a_rf[row_a_rf_k * 4 + 16] = row_a_rf_values[2];
              row_a_rf[row_a_rf_k * 4 + 17] = row_a_rf_values[3];
              row_a_rf[row_a_rf_k * 4 + 2] = row_a_rf_values[4];
              row_a_rf[row_a_rf_k * 4 + 3] = row_a_rf_values[5];
              row_a_rf[row_a_rf_k * 4 + 18] = row_a_rf_values[6];
              row_a_rf[row_a_rf_k * 4 + 19] = row_a_rf_values[7];
            }
          }
#pragma unroll
          for (int row_m = 0; row_m < 2; ++row_m) {
            s_parts[row_m] =
                (s_parts[row_m] + __half2float(row_a_rf[row_m * 16 + 1]) + __half2float(row_a_rf[row_m * 16 + 3])
                    + __half2float(row_a_rf[row_m * 16 + 5]) + __half2float(row_a_rf[row_m * 16 + 7])
                    + __half2float(row_a_rf[row_m * 16 + 9]) + __half2float(row_a_rf[row_m * 16 + 11])
                    + __half2float(row_a_rf[row_m * 16 + 13]) + __half2float(row_a_rf[row_m * 16 + 15]))
                    + (__half2float(row_a_rf[row_m * 16]) + __half2float(row_a_rf[row_m * 16 + 2])
                        + __half2float(row_a_rf[row_m * 16 + 4]) + __half2float(row_a_rf[row_m * 16 + 6])
                        + __half2float(row_a_rf[row_m * 16 + 8]) + __half2float(row_a_rf[row_m * 16 + 10])
                        + __half2float(row_a_rf[row_m * 16 + 12]) + __half2float(row_a_rf[row_m * 16 + 14]));
          }
        }
        wgmma_wait_group<0>();  // a_sh, b_sh of this iteration have been read
        __syncwarp();  // all lanes have read a_sh, b_sh
        if (thread % 32 == 0)
          mbarrier_arrive(k2_ring_empty + k2_stage * 8);
        if (++k2_stage == num_stages) {
          k2_stage = 0;
          k2_phase ^= 1;
        }
      }
      tma_store_wait_group<0>();  // store_acc_sh has been stored
      warpgroup_sync();  // store_acc_sh free again
      // gemm_row_sum(64,256,4)(GL,GL,RF,RF)(Warpgroup)
      // store: D[m,n] = acc[m,n]
      // src to store_acc_sh: Move(64,256)(RF,SH)(Warpgroup)
#pragma unroll
      for (int store_acc_sh_n = 0; store_acc_sh_n < 16; ++store_acc_sh_n) {
        stmatrix_x4_half(
            store_acc_sh_target + store_acc_sh_n / 4 * store_acc_sh_panel_bytes
                + (a_sh_swizzle ^ (store_acc_sh_n % 4 * 32 + lane / 16 * 16)),
            &acc[store_acc_sh_n * 8]);
      }
      fence_proxy_async();  // make store_acc_sh visible to the async proxy
      warpgroup_sync();  // store_acc_sh complete
      if (thread % 128 == 0) {
        tma_store(
            &D_map,
            block_n * 256,
            block_m * 128 + warpgroup * 64,
            store_acc_sh_address + warpgroup * store_acc_sh_bytes);
        tma_store(
            &D_map,
            block_n * 256 + 64,
            block_m * 128 + warpgroup * 64,
            store_acc_sh_address + warpgroup * store_acc_sh_bytes + store_acc_sh_panel_bytes);
        tma_store(
            &D_map,
            block_n * 256 + 128,
            block_m * 128 + warpgroup * 64,
            store_acc_sh_address + warpgroup * store_acc_sh_bytes + 2 * store_acc_sh_panel_bytes);
        tma_store(
            &D_map,
            block_n * 256 + 192,
            block_m * 128 + warpgroup * 64,
            store_acc_sh_address + warpgroup * store_acc_sh_bytes + 3 * store_acc_sh_panel_bytes);
      }
      tma_store_commit_group();
      // s_whole: s[m] = sum(row_part, s_parts[m,row_part])
      // Reduction(64,4)(RF,RF)(Warpgroup): over 4 lanes by shuffles
      if (block_n == 0) {
#pragma unroll
        for (int s_whole_m = 0; s_whole_m < 2; ++s_whole_m)
          s_whole_sum_rf[s_whole_m] = s_parts[s_whole_m];
        quad_reduce_sum(s_whole_sum_rf);
#pragma unroll
        for (int s_whole_m2 = 0; s_whole_m2 < 2; ++s_whole_m2)
          s[s_whole_m2] = s_whole_sum_rf[s_whole_m2];
        // sums: y[m] = s[m]
        if (thread % 4 == 0) {
#pragma unroll
          for (int sums_m = 0; sums_m < 2; ++sums_m) {
            if (block_m * 128 + warpgroup * 64 + thread / 32 % 4 * 16 + sums_m * 8 + lane / 4 < m)
              y_target[block_m * 128 + sums_m * 8] = s[sums_m];
          }
        }
      }
    }
    tma_store_wait_group<0>();  // all stores have read shared memory
  }
  // producer
  else {
    setmaxnreg_dec_40();
    if (threadIdx.x == 256) {
      const unsigned a_sh_address = shared_address(a_sh);
      const unsigned b_sh_address = shared_address(b_sh);
      int k2_stage = 0;
      int k2_phase = 1;
      for (int tile = blockIdx.x; tile < num_tiles; tile += num_blocks) {
        const int band = quotient(tile, band_reciprocal);
        const int inside = tile - band * ((n + 255) / 256 * 8);
        const int height = min((m + 127) / 128 - band * 8, 8);
        const int column = height < 8 ? quotient(inside, column_reciprocal) : inside / 8;
        const int block_n = min((n + 255) / 256 - 1, column);
        const int block_m = min((m + 127) / 128 - 1, band * 8 + (inside - column * height));
#pragma unroll 1
        for (int k2 = 0; k2 < (k + 63) / 64; ++k2) {
          mbarrier_wait(k2_ring_empty + k2_stage * 8, k2_phase);  // wait until a_sh, b_sh are empty
          mbarrier_arrive_expect_tx(k2_ring_full + k2_stage * 8, k2_ring_bytes);
          tma_load(
              a_sh_address + k2_stage * a_sh_stage_bytes, &A_map, k2 * 64, block_m * 128, k2_ring_full + k2_stage * 8);
          tma_load(
              b_sh_address + k2_stage * b_sh_stage_bytes, &B_map, block_n * 256, k2 * 64, k2_ring_full + k2_stage * 8);
          tma_load(
              b_sh_address + k2_stage * b_sh_stage_bytes + b_sh_panel_bytes,
              &B_map,
              block_n * 256 + 64,
              k2 * 64,
              k2_ring_full + k2_stage * 8);
          tma_load(
              b_sh_address + k2_stage * b_sh_stage_bytes + 2 * b_sh_panel_bytes,
              &B_map,
              block_n * 256 + 128,
              k2 * 64,
              k2_ring_full + k2_stage * 8);
          tma_load(
              b_sh_address + k2_stage * b_sh_stage_bytes + 3 * b_sh_panel_bytes,
              &B_map,
              block_n * 256 + 192,
              k2 * 64,
              k2_ring_full + k2_stage * 8);
          if (++k2_stage == num_stages) {
            k2_stage = 0;
            k2_phase ^= 1;
          }
        }
      }
    }
  }
}
