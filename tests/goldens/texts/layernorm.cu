// layernorm(40,48)(GL,GL,GL,VAL,GL)(Kernel) with X, Y float16 RowMajor; weight, bias float16
//   .tile(m=4).to(Block)
//   .load('X', RF, Move.tile(1, 256).to(Warp).tile(1, 8).to(Lane).done(EVICT_FIRST))
//   .load('weight', RF, Move.done())
//   .load('bias', RF, Move.done())
//   .step("store", AnySpec.done(EVICT_FIRST))
//   .done()
// target sm_90; launch <<<10, 128>>>, no shared memory
#include <cuda_fp16.h>

// sum of each element over 32 adjacent lanes, in all of them
template <int N>
__device__ __forceinline__ void warp_reduce_sum(float (&x)[N])
{
  #pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    float other[N];
    #pragma unroll
    for (int i = 0; i < N; ++i)
      other[i] = __shfl_xor_sync(0xffffffff, x[i], mask);
    #pragma unroll
    for (int i = 0; i < N; ++i)
      x[i] = x[i] + other[i];
  }
}

extern "C" __global__ void __launch_bounds__(128)
layernorm(
    const __half* __restrict__ X,
    const __half* __restrict__ weight,
    const __half* __restrict__ bias,
    const float eps,
    __half* __restrict__ Y)
{
  const int block = blockIdx.x;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  __align__(16) __half x_rf[8];  // of 4 x 48
  __align__(16) __half weight_rf[8];  // of 48
  __align__(16) __half bias_rf[8];  // of 48
  float mean[1];  // of 4
  float sum_rf[1];  // of 128 x 1
  float c_rf[8];  // of 4 x 48
  float sq[8];  // of 4 x 48
  float scale[1];  // of 4
  float squares_sum_rf[1];  // of 128 x 1
  float y_rf[8];  // of 4 x 48
  // X to x_rf: Move(4,48)(GL,RF)(Block)
  if (lane * 8 < 48) {
    *reinterpret_cast<uint4*>(x_rf) = __ldcs(reinterpret_cast<const uint4*>(&X[block * 4 * 48 + lane * 8 + warp * 48]));
    // weight to weight_rf: Move(48)(GL,RF)(Block)
    *reinterpret_cast<uint4*>(weight_rf) = *reinterpret_cast<const uint4*>(&weight[lane * 8]);
    // bias to bias_rf: Move(48)(GL,RF)(Block)
    *reinterpret_cast<uint4*>(bias_rf) = *reinterpret_cast<const uint4*>(&bias[lane * 8]);
  }
  // sum: mean[m] = sum(n, X[m,n])
  // Reduction(4,48)(RF,RF)(Block): in each thread, over 32 lanes by shuffles
  sum_rf[0] = 0.0f;
  if (lane * 8 < 48) {
    sum_rf[0] =
        (sum_rf[0] + __half2float(x_rf[1]) + __half2float(x_rf[3]) + __half2float(x_rf[5]) + __half2float(x_rf[7]))
            + (__half2float(x_rf[0]) + __half2float(x_rf[2]) + __half2float(x_rf[4]) + __half2float(x_rf[6]));
  }
  warp_reduce_sum(sum_rf);
  mean[0] = sum_rf[0];
  // mean: mean[m] = mean[m] / size(n)
  mean[0] = mean[0] / static_cast<float>(48);
  // center: c[m,n] = X[m,n] - mean[m]
  if (lane * 8 < 48) {
#pragma unroll
    for (int center_n = 0; center_n < 8; ++center_n)
      c_rf[center_n] = __half2float(x_rf[center_n]) - mean[0];
    // square: sq[m,n] = c[m,n] * c[m,n]
#pragma unroll
    for (int square_n = 0; square_n < 8; ++square_n)
      sq[square_n] = c_rf[square_n] * c_rf[square_n];
  }
  // squares: scale[m] = sum(n, sq[m,n])
  // Reduction(4,48)(RF,RF)(Block): in each thread, over 32 lanes by shuffles
  squares_sum_rf[0] = 0.0f;
  if (lane * 8 < 48)
    squares_sum_rf[0] = (squares_sum_rf[0] + sq[1] + sq[3] + sq[5] + sq[7]) + (sq[0] + sq[2] + sq[4] + sq[6]);
  warp_reduce_sum(squares_sum_rf);
  if (lane * 8 < 48) {
    scale[0] = squares_sum_rf[0];
    // scale: scale[m] = rsqrt(scale[m] / size(n) + eps)
    scale[0] = rsqrtf(scale[0] / static_cast<float>(48) + eps);
    // out: y[m,n] = c[m,n] * scale[m] * weight[n] + bias[n]
#pragma unroll
    for (int out_n = 0; out_n < 8; ++out_n)
      y_rf[out_n] = c_rf[out_n] * scale[0] * __half2float(weight_rf[out_n]) + __half2float(bias_rf[out_n]);
    // store: Y[m,n] = y[m,n]
    {
      __align__(16) __half piece[8];
      piece[0] = __float2half_rn(y_rf[0]);
      piece[1] = __float2half_rn(y_rf[1]);
      piece[2] = __float2half_rn(y_rf[2]);
      piece[3] = __float2half_rn(y_rf[3]);
      piece[4] = __float2half_rn(y_rf[4]);
      piece[5] = __float2half_rn(y_rf[5]);
      piece[6] = __float2half_rn(y_rf[6]);
      piece[7] = __float2half_rn(y_rf[7]);
      __stcs(
          reinterpret_cast<uint4*>(&Y[block * 4 * 48 + lane * 8 + warp * 48]),
          *reinterpret_cast<const uint4*>(&piece[0]));
    }
  }
}
