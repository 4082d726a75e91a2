// HGEMM_NT by hand: C = A * B in half precision, A and C column-major (M x K, M x N), B row-major (K x N).
//
// The plan of Fireiron's Listing 4 and section 5.1, written as one would without a generator: a block of 256 threads computes
// 128 x 128 elements of C, k advances by 8 through shared memory, a thread holds 8 x 8 elements as pairs of rows and multiplies
// with HFMA2; the result leaves through shared memory, so that neighboring threads write neighboring addresses.
// Sizes are compile-time constants (-DSIZE_M=... -DSIZE_N=... -DSIZE_K=...), multiples of 128, 128 and 8.
// Launch <<<(SIZE_M / 128) * (SIZE_N / 128), 256>>>.
#include <cuda_fp16.h>

namespace {

constexpr int tile = 128, step = 8, threads = 256;
constexpr int a_pitch = tile, b_pitch = tile + 8, c_pitch = tile + 4;

// The first of the four rows (columns) that a thread owns in each half of its warp's 64 rows (32 columns).
__device__ __forceinline__ int row_of(int warp, int lane) { return warp / 4 * 64 + lane / 2 % 8 * 4; }
__device__ __forceinline__ int column_of(int warp, int lane) { return warp % 4 * 32 + (lane / 16 * 2 + lane % 2) * 4; }

__device__ __forceinline__ void copy_tiles(__half* a_tile, __half* b_tile, const __half* a, const __half* b, int warp, int lane)
{
  // A: a warp takes one of the eight columns, 128 halves in two steps of 32 pairs.
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = half * 64 + lane * 2;
    *reinterpret_cast<__half2*>(a_tile + warp * a_pitch + row) = *reinterpret_cast<const __half2*>(a + warp * SIZE_M + row);
  }
  // B: a warp takes 16 of the 128 columns, two of the eight rows at a time.
#pragma unroll
  for (int row = lane / 16; row < step; row += 2) {
    const int column = warp * 16 + lane % 16;
    b_tile[row * b_pitch + column] = b[row * SIZE_N + column];
  }
}

__device__ __forceinline__ void multiply_add(__half2 (&c)[8][4], const __half* a_column, const __half* b_row)
{
  __half2 a[4];
  __half b[8];
  *reinterpret_cast<uint2*>(a) = *reinterpret_cast<const uint2*>(a_column);
  *reinterpret_cast<uint2*>(a + 2) = *reinterpret_cast<const uint2*>(a_column + 32);
  *reinterpret_cast<uint2*>(b) = *reinterpret_cast<const uint2*>(b_row);
  *reinterpret_cast<uint2*>(b + 4) = *reinterpret_cast<const uint2*>(b_row + 16);
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const __half2 b_pair = __half2half2(b[n]);
#pragma unroll
    for (int m = 0; m < 4; ++m)
      c[n][m] = __hfma2(a[m], b_pair, c[n][m]);
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(threads)
hgemm_nt(const __half* __restrict__ A, const __half* __restrict__ B, __half* __restrict__ C)
{
  __shared__ __align__(16) __half memory[step * (a_pitch + b_pitch)];
  static_assert(tile / 8 * c_pitch <= step * (a_pitch + b_pitch), "16 columns of C fit where the tiles of A and B were");
  __half* const a_tile = memory;
  __half* const b_tile = memory + step * a_pitch;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int first_row = blockIdx.x % (SIZE_M / tile) * tile, first_column = blockIdx.x / (SIZE_M / tile) * tile;
  const int row = row_of(warp, lane), column = column_of(warp, lane);
  const __half* a = A + first_row;
  const __half* b = B + first_column;
  __half2 c[8][4];
#pragma unroll
  for (int n = 0; n < 8; ++n)
#pragma unroll
    for (int m = 0; m < 4; ++m)
      c[n][m] = __half2half2(__ushort_as_half(0));

  for (int k = 0; k < SIZE_K; k += step) {
    copy_tiles(a_tile, b_tile, a, b, warp, lane);
    a += step * SIZE_M;
    b += step * SIZE_N;
    __syncthreads();
#pragma unroll
    for (int inner = 0; inner < step; ++inner)
      multiply_add(c, a_tile + inner * a_pitch + row, b_tile + inner * b_pitch + column);
    __syncthreads();
  }

  // Eight passes: each thread stages one of its columns, the block then writes 16 whole columns.
  __half* const result = C + first_column * SIZE_M + first_row;
#pragma unroll
  for (int pass = 0; pass < 8; ++pass) {
    if (pass > 0)
      __syncthreads();
    __half* const staged = memory + column / 4 % 4 * c_pitch + warp % 4 * 4 * c_pitch + row;
    *reinterpret_cast<__half2*>(staged) = c[pass][0];
    *reinterpret_cast<__half2*>(staged + 2) = c[pass][1];
    *reinterpret_cast<__half2*>(staged + 32) = c[pass][2];
    *reinterpret_cast<__half2*>(staged + 34) = c[pass][3];
    __syncthreads();
#pragma unroll
    for (int part = threadIdx.x / tile; part < tile / 8; part += threads / tile) {
      const int to = part / 4 * 32 + pass / 4 * 16 + part % 4 * 4 + pass % 4;
      result[to * SIZE_M + threadIdx.x % tile] = memory[part * c_pitch + threadIdx.x % tile];
    }
  }
}
