// attention_combine(m,32,3,2,1)(GL,GL,GL,GL)(Kernel) with P, T, S RowMajor; O float16 RowMajor
//   .tile(m=1, b=1, g=1).to(Block)
//   .split(p=8)
//   .tile(d=1).to(Thread)
//   .done()
// target sm_90; launch <<<m * 2, 32>>>, no shared memory
// requires: the grid has at most 2**31 - 1 blocks, m * 2 < 2147483648
#include <cuda_fp16.h>

// 2^x with a relative error of at most 2^-22; results below 2^-126 are 0
__device__ __forceinline__ float exp2_approx(float x)
{
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

extern "C" __global__ void __launch_bounds__(32)
attention_combine(
    const float* __restrict__ P,
    const float* __restrict__ T,
    const float* __restrict__ S,
    __half* __restrict__ O,
    const int m)
{
  const int thread = threadIdx.x;
  const int block_b = blockIdx.x % 2;
  const int block_m = blockIdx.x / 2;
  float mx[1];  // of 1
  float l[1];  // of 1
  float acc[1];  // of 1 x 32
  float top[1];  // of 1
  float new_rf[1];  // of 1
  float alpha[1];  // of 1
  float w[8];  // of 1 x 8
  float weighted[8];  // of 1 x 8
  float sums[1];  // of 1
  float values[8];  // of 1 x 1 x 8
  float part[1];  // of 1 x 1
  float inverse[1];  // of 1
  // mx: mx[m] = -1e+30
  mx[0] = -1e30f;
  // l: l[m] = 0
  l[0] = 0.0f;
  // acc: acc[m,d] = 0
  acc[0] = 0.0f;
  const float* const t_source = T + (long long)block_b * m * 3 + (long long)block_m;
  // attention_combine(1,1,8,1,1)(GL,GL,GL,RF,RF,RF)(Thread)
  // top: top[m] = max(p, T[b,g,p,m])
  top[0] = fmaxf(t_source[0], t_source[m]);
  top[0] = fmaxf(top[0], t_source[(long long)m * 2]);
  top[0] = fmaxf(top[0], 0 ? t_source[(long long)m * 3] : __int_as_float(0xff800000));
  top[0] = fmaxf(top[0], 0 ? t_source[(long long)m * 4] : __int_as_float(0xff800000));
  top[0] = fmaxf(top[0], 0 ? t_source[(long long)m * 5] : __int_as_float(0xff800000));
  top[0] = fmaxf(top[0], 0 ? t_source[(long long)m * 6] : __int_as_float(0xff800000));
  top[0] = fmaxf(top[0], 0 ? t_source[(long long)m * 7] : __int_as_float(0xff800000));
  // new: new[m] = max(mx[m], top[m])
  new_rf[0] = fmaxf(mx[0], top[0]);
  // alpha: alpha[m] = exp2(mx[m] - new[m])
  alpha[0] = exp2_approx(mx[0] - new_rf[0]);
  // keep: mx[m] = new[m]
  mx[0] = new_rf[0];
  // weight: w[m,p] = exp2(T[b,g,p,m] - mx[m])
#pragma unroll
  for (int weight_p = 0; weight_p < 8; ++weight_p)
    w[weight_p] = exp2_approx((weight_p < 3 ? t_source[(long long)m * weight_p] : 0.0f) - mx[0]);
  const float* const s_source = S + (long long)block_b * m * 3 + (long long)block_m;
  // weighted: weighted[m,p] = w[m,p] * S[b,g,p,m]
#pragma unroll
  for (int weighted_p = 0; weighted_p < 8; ++weighted_p)
    weighted[weighted_p] = w[weighted_p] * (weighted_p < 3 ? s_source[(long long)m * weighted_p] : 0.0f);
  // sums: sums[m] = sum(p, weighted[m,p])
#pragma unroll
  for (int sums_inside_p = 0; sums_inside_p < 8; ++sums_inside_p)
    weighted[sums_inside_p] = (sums_inside_p < 3 ? weighted[sums_inside_p] : 0.0f);
  sums[0] =
      weighted[0] + weighted[1] + weighted[2] + weighted[3] + weighted[4] + weighted[5] + weighted[6] + weighted[7];
  // update: l[m] = l[m] * alpha[m] + sums[m]
  l[0] = l[0] * alpha[0] + sums[0];
  const float* const p_source = P + (long long)block_b * m * 3 * 32 + (long long)block_m * 32 + (long long)thread;
  // values: values[m,d,p] = w[m,p] * P[b,g,p,m,d]
#pragma unroll
  for (int values_p = 0; values_p < 8; ++values_p)
    values[values_p] = w[values_p] * (values_p < 3 ? p_source[(long long)m * values_p * 32] : 0.0f);
  // part: part[m,d] = sum(p, values[m,d,p])
#pragma unroll
  for (int part_inside_p = 0; part_inside_p < 8; ++part_inside_p)
    values[part_inside_p] = (part_inside_p < 3 ? values[part_inside_p] : 0.0f);
  part[0] = values[0] + values[1] + values[2] + values[3] + values[4] + values[5] + values[6] + values[7];
  // rescale: acc[m,d] = acc[m,d] * alpha[m] + part[m,d]
  acc[0] = acc[0] * alpha[0] + part[0];
  // inverse: inverse[m] = where(l[m] > 0, 1 / l[m], 0)
  inverse[0] = (l[0] > 0.0f ? 1.0f / l[0] : 0.0f);
  // store: O[b,g,m,d] = acc[m,d] * inverse[m]
  O[(long long)block_b * m * 32 + (long long)block_m * 32 + (long long)thread] = __float2half_rn(acc[0] * inverse[0]);
}
