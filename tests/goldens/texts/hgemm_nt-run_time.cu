// MatMul(m,n,k)(GL,GL,GL)(Kernel) with A, C float16; B float16 RowMajor
//   .tile(128, 128).to(Block).layout(ColMajor)
//   .epilog(RF, Init.tile(64, 32).to(Warp).tile(8, 8).to(Lane).tile(1, 1).unroll().done(),
//     Move.done(store_through_shared))
//   .split(8).sync()
//   .load(A, SH, Move.tile(128, 1).to(Warp).tile(64, 1).unroll().tile(2,
//     1).to(Lane).layout(ColMajor).done()).no_sync().storage_layout(ColMajor)
//   .load(B, SH, Move.tile(8, 16).to(Warp).tile(2, 16).unroll().tile(1,
//     1).to(Lane).done()).pad(8).storage_layout(RowMajor)
//   .tile(64, 32).to(Warp)
//   .tile(Strided((4, 32), (4, 16))).to(Lane).layout(ColMajor).swizzle('uid // 16 % 4 * 16 + uid % 2 * 8 + uid // 2 %
//     8')
//   .split(1).unroll()
//   .load(A, RF, Move.tile(4, 1).unroll().done())
//   .load(B, RF, Move.tile(1, 4).unroll().done())
//   .tile(2, 1).unroll()
//   .done()
// target sm_90; launch <<<(m + 127) / 128 * ((n + 127) / 128), 256>>>, 16896 bytes of dynamic shared memory
// requires: the grid has at most 2**31 - 1 blocks, (m + 127) / 128 * ((n + 127) / 128) < 2147483648
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(256)
matmul(
    const __half* __restrict__ A,
    const __half* __restrict__ B,
    __half* __restrict__ C,
    const int m,
    const int n,
    const int k)
{
  constexpr int a_sh_bytes = 128 * 8 * 2;
  constexpr int b_sh_offset = a_sh_bytes;
  const int block_m = blockIdx.x % ((m + 127) / 128);
  const int block_n = blockIdx.x / ((m + 127) / 128);
  const int warp = threadIdx.x / 32;
  const int warp_n = warp % 4;
  const int warp_m = warp / 4;
  const int lane = threadIdx.x % 32;
  const int lane_m = lane / 2 % 8;
  const int lane_n = lane / 16 * 2 + lane % 2;
  const int b_sh_lane_n = lane % 16;
  const int b_sh_lane_k = lane / 16;
  extern __shared__ __align__(16) unsigned char smem[];
  __half* const a_sh = reinterpret_cast<__half*>(smem);  // 128 x 8
  __half* const b_sh = reinterpret_cast<__half*>(smem + b_sh_offset);  // 8 x 128
  signed char* const store_scratch = reinterpret_cast<signed char*>(smem);  // 16896
  __align__(16) __half c_rf[64];  // of 128 x 128
  __align__(8) __half a_rf[8];  // of 8 x 1
  __align__(8) __half b_rf[8];  // of 1 x 8
  // c_rf: Init(128,128)(RF)(Block)
#pragma unroll
  for (int init_m = 0; init_m < 8; ++init_m) {
#pragma unroll
    for (int init_n = 0; init_n < 8; ++init_n)
      c_rf[init_n * 8 + init_m] = __float2half_rn(0.0f);
  }
  const __half* const a_source = A + (long long)m * warp + (long long)block_m * 128 + (long long)lane * 2;
  const __half* const b_source =
      B + (long long)b_sh_lane_k * n + (long long)block_n * 128 + (long long)warp * 16 + (long long)b_sh_lane_n;
  for (int k2 = 0; k2 < k / 8; ++k2) {
    // A to a_sh: Move(128,8)(GL,SH)(Block)
#pragma unroll
    for (int a_sh_m = 0; a_sh_m < 2; ++a_sh_m) {
      *reinterpret_cast<unsigned int*>(&a_sh[warp * 128 + a_sh_m * 64 + lane * 2]) =
          block_m * 128 + a_sh_m * 64 + lane * 2 < m
              ? *reinterpret_cast<const unsigned int*>(&a_source[(long long)k2 * m * 8 + (long long)a_sh_m * 64])
              : 0;
    }
    // B to b_sh: Move(8,128)(GL,SH)(Block)
#pragma unroll
    for (int b_sh_k = 0; b_sh_k < 4; ++b_sh_k) {
      b_sh[b_sh_k * 2 * 136 + b_sh_lane_k * 136 + warp * 16 + b_sh_lane_n] =
          block_n * 128 + warp * 16 + b_sh_lane_n < n
              ? b_source[(long long)k2 * n * 8 + (long long)b_sh_k * n * 2]
              : __float2half_rn(0.0f);
    }
    __syncthreads();  // a_sh, b_sh complete
    // MatMul(64,32,8)(SH,SH,RF)(Warp)
    // MatMul(8,8,8)(SH,SH,RF)(Lane)
#pragma unroll
    for (int k3 = 0; k3 < 8; ++k3) {
      // A to a_rf: Move(8,1)(SH,RF)(Lane)
#pragma unroll
      for (int a_rf_m = 0; a_rf_m < 2; ++a_rf_m) {
        *reinterpret_cast<uint2*>(&a_rf[a_rf_m * 4]) =
            *reinterpret_cast<const uint2*>(&a_sh[k3 * 128 + warp_m * 64 + a_rf_m * 32 + lane_m * 4]);
      }
      // B to b_rf: Move(1,8)(SH,RF)(Lane)
#pragma unroll
      for (int b_rf_n = 0; b_rf_n < 2; ++b_rf_n) {
        *reinterpret_cast<uint2*>(&b_rf[b_rf_n * 4]) =
            *reinterpret_cast<const uint2*>(&b_sh[k3 * 136 + warp_n * 32 + b_rf_n * 16 + lane_n * 4]);
      }
#pragma unroll
      for (int m2 = 0; m2 < 2; ++m2) {
#pragma unroll
        for (int m3 = 0; m3 < 2; ++m3) {
#pragma unroll
          for (int n2 = 0; n2 < 2; ++n2) {
#pragma unroll
            for (int n3 = 0; n3 < 4; ++n3) {
              *reinterpret_cast<__half2*>(&c_rf[n2 * 32 + n3 * 8 + m2 * 4 + m3 * 2]) =
                  __hfma2(
                      *reinterpret_cast<const __half2*>(&a_rf[m2 * 4 + m3 * 2]),
                      __half2half2(b_rf[n2 * 4 + n3]),
                      *reinterpret_cast<__half2*>(&c_rf[n2 * 32 + n3 * 8 + m2 * 4 + m3 * 2]));
            }
          }
        }
      }
    }
    __syncthreads();  // a_sh, b_sh free again
  }
  // c_rf to C: Move(128,128)(RF,GL)(Block)
  {
    // micro-kernel store_through_shared: Move(128,128)(RF,GL)(Block)
    using src_type = __half;
    __half (&src)[64] = c_rf;
    const auto src_m = [&](int held_register) {
      return warp_m * 64 + held_register / 4 % 2 * 32 + lane_m * 4 + held_register % 4;
    };
    const auto src_n = [&](int held_register) {
      return warp_n * 32 + held_register / 32 * 16 + lane_n * 4 + held_register / 8 % 4;
    };
    using dst_type = __half;
    __half* const dst = &C[(long long)block_n * m * 128 + (long long)block_m * 128];
    const int dst_stride_m = 1;
    const int dst_stride_n = m;
    const int dst_size_m = max(0, min(128, m - block_m * 128));
    const int dst_size_n = max(0, min(128, n - block_n * 128));
    unsigned char* const scratch = reinterpret_cast<unsigned char*>(store_scratch);
    constexpr int scratch_size = 16896;
    // Store of Listing 4: Move(128x128:RF => 128x128:GL), all 256 threads of a block.
    //
    // Register r of a thread is element (src_m(r), src_n(r)); eight neighboring registers are eight rows of one column.
    // Per pass each thread stages one of its columns: the block stages 16 columns of 128 rows, so that the threads then
    // store whole columns, neighboring threads to neighboring addresses. A column takes 132 elements in shared memory,
    // against bank conflicts.
    constexpr int rows = 128, columns = 16, pitch = 132;
    static_assert(sizeof(src_type) * columns * pitch <= scratch_size, "the stage does not fit its scratch memory");
    src_type* const stage = reinterpret_cast<src_type*>(scratch);
#pragma unroll
    for (int pass = 0; pass < 8; ++pass) {
      if (pass > 0)
        __syncthreads();  // the stage is free again
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int m = src_m(pass * 8 + i), n = src_n(pass * 8 + i);
        stage[(n / 32 * 4 + n % 16 / 4) * pitch + m] = src[pass * 8 + i];
      }
      __syncthreads();  // the stage is complete
#pragma unroll
      for (int i = 0; i < rows * columns / 256; ++i) {
        const int m = threadIdx.x % rows;
        const int column = threadIdx.x / rows + i * 2;
        const int n = column / 4 * 32 + pass / 4 * 16 + column % 4 * 4 + pass % 4;
        if (m < dst_size_m && n < dst_size_n)
          dst[m * dst_stride_m + n * dst_stride_n] = dst_type(stage[column * pitch + m]);
      }
    }
  }
}
