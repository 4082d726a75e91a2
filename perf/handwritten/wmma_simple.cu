// Tensor cores by hand in the simplest way: each warp multiplies 16 rows of A with 16 columns of B, straight from global memory.
//
// D = A * B in float32; A row-major (M x K), B column-major (K x N), both in half precision, D row-major. It is the structure of
// the first kernel of NVIDIA's sample cudaTensorCoreGemm and of Fireiron's Listing 3: a block of 16 warps computes 64 x 64
// elements, one 16 x 16 fragment a warp. Sizes are compile-time constants, multiples of 64, 64 and 16.
// Launch <<<(SIZE_M / 64) * (SIZE_N / 64), 512>>>.
#include <cuda_fp16.h>
#include <mma.h>

extern "C" __global__ void __launch_bounds__(512)
wmma_simple(const __half* __restrict__ A, const __half* __restrict__ B, float* __restrict__ D)
{
  using namespace nvcuda;
  const int warp = threadIdx.x / 32;
  const int row = blockIdx.x / (SIZE_N / 64) * 64 + warp / 4 * 16;
  const int column = blockIdx.x % (SIZE_N / 64) * 64 + warp % 4 * 16;
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> b;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
  wmma::fill_fragment(sum, 0.0f);
  for (int k = 0; k < SIZE_K; k += 16) {
    wmma::load_matrix_sync(a, A + row * SIZE_K + k, SIZE_K);
    wmma::load_matrix_sync(b, B + column * SIZE_K + k, SIZE_K);
    wmma::mma_sync(sum, a, b, sum);
  }
  wmma::store_matrix_sync(D + row * SIZE_N + column, sum, SIZE_N, wmma::mem_row_major);
}
