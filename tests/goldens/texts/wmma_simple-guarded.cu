// MatMul(40,48,40)(GL,GL,GL)(Kernel) with A float16 RowMajor; B float16; C RowMajor
//   .tile(64, 64).to(Block)
//   .epilog(FR(16, 16, 16), float32, Init.tile(16, 16).to(Warp).done(), Move.load('src', SH, Move.tile(16,
//     16).to(Warp).done()).tile(1, 1).to(Thread).done())
//   .split(16)
//   .load(A, SH).pad(8)
//   .load(B, SH).pad(8)
//   .tile(16, 16).to(Warp)
//   .load(A, FR(16, 16, 16), Move.done())
//   .load(B, FR(16, 16, 16), Move.done())
//   .done()
// target sm_90; launch <<<1, 512>>>, 22528 bytes of static shared memory
#include <cuda_fp16.h>
#include <mma.h>

extern "C" __global__ void __launch_bounds__(512)
matmul(const __half* __restrict__ A, const __half* __restrict__ B, float* __restrict__ C)
{
  const int warp = threadIdx.x / 32;
  const int warp_n = warp % 4;
  const int warp_m = warp / 4;
  const int b_sh_thread_n = threadIdx.x % 64;
  const int b_sh_thread_k = threadIdx.x / 64;
  const int a_sh_thread_k = threadIdx.x % 16;
  const int a_sh_thread_m = threadIdx.x / 16;
  const int store_thread_n = threadIdx.x % 64;
  const int store_thread_m = threadIdx.x / 64;
  __shared__ __align__(32) __half a_sh[1536];  // 64 x 16
  __shared__ __align__(32) __half b_sh[1536];  // 16 x 64
  __shared__ __align__(32) float store_c_sh[4096];  // 64 x 64
  nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> c_fr[1];  // of 64 x 64
  nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 16, 16, 16, __half, nvcuda::wmma::row_major> a_fr[1];  // of 16 x 16
  nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, 16, 16, 16, __half, nvcuda::wmma::col_major> b_fr[1];  // of 16 x 16
  // c_fr: Init(64,64)(FR<16,16,16>)(Block)
  nvcuda::wmma::fill_fragment(c_fr[0], 0.0f);
  const __half* const a_source = A + a_sh_thread_m * 40 + a_sh_thread_k;
  const __half* const b_source = B + b_sh_thread_n * 40 + b_sh_thread_k;
  for (int k = 0; k < 3; ++k) {
    // A to a_sh: Move(64,16)(GL,SH)(Block)
    for (int a_sh_m = 0; a_sh_m < 2; ++a_sh_m) {
      a_sh[a_sh_m * 32 * 24 + a_sh_thread_m * 24 + a_sh_thread_k] =
          a_sh_m * 32 + a_sh_thread_m < 40 && k * 16 + a_sh_thread_k < 40
              ? a_source[a_sh_m * 32 * 40 + k * 16]
              : __float2half_rn(0.0f);
    }
    // B to b_sh: Move(16,64)(GL,SH)(Block)
    for (int b_sh_k = 0; b_sh_k < 2; ++b_sh_k) {
      b_sh[b_sh_thread_n * 24 + b_sh_k * 8 + b_sh_thread_k] =
          k * 16 + b_sh_k * 8 + b_sh_thread_k < 40 && b_sh_thread_n < 48
              ? b_source[k * 16 + b_sh_k * 8]
              : __float2half_rn(0.0f);
    }
    __syncthreads();  // a_sh, b_sh complete
    // MatMul(16,16,16)(SH,SH,FR<16,16,16>)(Warp)
    // A to a_fr: Move(16,16)(SH,FR<16,16,16>)(Warp)
    nvcuda::wmma::load_matrix_sync(a_fr[0], &a_sh[warp_m * 16 * 24], 24);
    // B to b_fr: Move(16,16)(SH,FR<16,16,16>)(Warp)
    nvcuda::wmma::load_matrix_sync(b_fr[0], &b_sh[warp_n * 16 * 24], 24);
    nvcuda::wmma::mma_sync(c_fr[0], a_fr[0], b_fr[0], c_fr[0]);
    __syncthreads();  // a_sh, b_sh free again
  }
  float* const store_c_sh_target = store_c_sh + warp_m * 16 * 64 + warp_n * 16;
  // c_fr to C: Move(64,64)(FR<16,16,16>,GL)(Block)
  // src to store_c_sh: Move(64,64)(FR<16,16,16>,SH)(Block)
  nvcuda::wmma::store_matrix_sync(store_c_sh_target, c_fr[0], 64, nvcuda::wmma::mem_row_major);
  __syncthreads();  // store_c_sh complete
  float* const c_target = C + store_thread_m * 48 + store_thread_n;
  if (store_thread_n < 48) {
    for (int store_m = 0; store_m < 8; ++store_m) {
      if (store_m * 8 + store_thread_m < 40)
        c_target[store_m * 8 * 48] = store_c_sh[store_m * 8 * 64 + store_thread_m * 64 + store_thread_n];
    }
  }
}
