// attention(40,48,32,2,1,1)(GL,GL,GL,VAL,GL)(Kernel) with Q, K, V, O float16 RowMajor
//   .tile(m=64, r=1, g=1, b=1).to(Block)
//   .load('Q', SH, Move.coalesced_copy(8).done()).swizzle_storage()
//   .load('Q', RF, Move.tile(32).to(Warp).done())
//   .split(n=64).pipeline(2)
//   .load('K', SH, Move.coalesced_copy(8).done()).swizzle_storage()
//   .load('V', SH, Move.coalesced_copy(8).done()).swizzle_storage()
//   .tile(m=32).to(Warp)
//   .step("s", AnySpec.split(32).split(16).unroll().tile(32, 64).unroll().load(B, RF, Move.done()).tile(16,
//     16).unroll().mma_tile().done())
//   .step("rescale", AnySpec.done(SkipIfIdentity))
//   .step("pv", AnySpec.split(16).unroll().load(B, RF, Move.done()).tile(16, 16).unroll().mma_tile().done())
//   .step("store", AnySpec.load('src', SH,
//     Move.done()).cast_on_copy().reuse_buffer().swizzle_storage().coalesced_copy(8).done())
//   .done()
// target sm_90; launch <<<2, 64>>>, 12288 bytes of dynamic shared memory
#include <cuda_fp16.h>

// load four 8x8 matrices of 16-bit elements from shared memory into the registers of a warp
__device__ __forceinline__ void ldmatrix_x4(void* target, unsigned source)
{
  unsigned* const words = static_cast<unsigned*>(target);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
      : "r"(source) : "memory");
}

// 32-bit shared-memory address for inline PTX
__device__ __forceinline__ unsigned shared_address(const void* pointer)
{
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// c += a * b: m16n8k16 of a warp
__device__ __forceinline__ void mma_m16n8k16_f32_f16(float* c, const __half* a, const __half* b)
{
  const unsigned* const a_words = reinterpret_cast<const unsigned*>(a);
  const unsigned* const b_words = reinterpret_cast<const unsigned*>(b);
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a_words[0]), "r"(a_words[1]), "r"(a_words[2]), "r"(a_words[3]), "r"(b_words[0]), "r"(b_words[1]));
}

// maximum of each element over 4 adjacent lanes, in all of them
template <int N>
__device__ __forceinline__ void quad_reduce_max(float (&x)[N])
{
  #pragma unroll
  for (int mask = 2; mask > 0; mask /= 2) {
    float other[N];
    #pragma unroll
    for (int i = 0; i < N; ++i)
      other[i] = __shfl_xor_sync(0xffffffff, x[i], mask);
    #pragma unroll
    for (int i = 0; i < N; ++i)
      x[i] = fmaxf(x[i], other[i]);
  }
}

// 2^x with a relative error of at most 2^-22; results below 2^-126 are 0
__device__ __forceinline__ float exp2_approx(float x)
{
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
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

// load four 8x8 matrices of 16-bit elements from shared memory into the registers of a warp, transposed
__device__ __forceinline__ void ldmatrix_x4_trans(void* target, unsigned source)
{
  unsigned* const words = static_cast<unsigned*>(target);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
      : "r"(source) : "memory");
}

extern "C" __global__ void __launch_bounds__(64)
attention(
    const __half* __restrict__ Q,
    const __half* __restrict__ K,
    const __half* __restrict__ V,
    const float scale,
    __half* __restrict__ O)
{
  constexpr int q_sh_bytes = 64 * 32 * 2;
  constexpr int k_sh_offset = q_sh_bytes;
  constexpr int k_sh_bytes = 64 * 32 * 2;
  constexpr int v_sh_offset = k_sh_offset + k_sh_bytes;
  const int block = blockIdx.x;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int v_sh_thread_d = threadIdx.x % 4;
  const int v_sh_thread_n = threadIdx.x / 4;
  const int k_sh_thread_d = threadIdx.x % 4;
  const int k_sh_thread_n = threadIdx.x / 4;
  const int store_lane_d = lane % 4;
  const int store_lane_m = lane / 4;
  const int q_sh_thread_d = threadIdx.x % 4;
  const int q_sh_thread_m = threadIdx.x / 4;
  extern __shared__ __align__(16) unsigned char smem[];
  __half* const q_sh = reinterpret_cast<__half*>(smem);  // 64 x 32
  __half* const k_sh = reinterpret_cast<__half*>(smem + k_sh_offset);  // 64 x 32
  __half* const v_sh = reinterpret_cast<__half*>(smem + v_sh_offset);  // 64 x 32
  __half* const store_acc_sh = reinterpret_cast<__half*>(smem);  // 32 x 32, 2 copies
  __align__(4) __half q_rf[32];  // of 64 x 32
  float mx[4];  // of 64
  float l[4];  // of 64
  float acc[32];  // of 64 x 32
  float s[64];  // of 32 x 64
  __align__(4) __half s_k_rf[32];  // of 64 x 16
  float top[4];  // of 32
  float top_max_rf[4];  // of 64 x 4
  float new_rf[4];  // of 32
  float alpha[4];  // of 32
  float sums[4];  // of 32
  float sums_sum_rf[4];  // of 64 x 4
  __align__(4) __half p[64];  // of 32 x 64
  __align__(4) __half pv_v_rf[16];  // of 16 x 32
  float inverse[4];  // of 32
  __half* const q_sh_target = q_sh + q_sh_thread_m * 32 + ((q_sh_thread_d * 8) ^ (q_sh_thread_m / 2 % 4 * 8));
  const __half* const q_source = Q + block * 40 * 32 + q_sh_thread_m * 32 + q_sh_thread_d * 8;
  // Q to q_sh: Move(64,32)(GL,SH)(Block)
#pragma unroll
  for (int q_sh_m = 0; q_sh_m < 4; ++q_sh_m) {
    *reinterpret_cast<uint4*>(&q_sh_target[q_sh_m * 16 * 32]) =
        q_sh_m * 16 + q_sh_thread_m < 40
            ? *reinterpret_cast<const uint4*>(&q_source[q_sh_m * 16 * 32])
            : make_uint4(0u, 0u, 0u, 0u);
  }
  __syncthreads();  // q_sh complete
  const unsigned q_sh_source = shared_address(q_sh) + warp * 32 * 64 + lane % 16 * 64;
  const int q_sh_swizzle = lane / 2 % 4 * 16;
  // Q to q_rf: Move(64,32)(SH,RF)(Block)
#pragma unroll
  for (int q_rf_m = 0; q_rf_m < 2; ++q_rf_m) {
#pragma unroll
    for (int q_rf_d = 0; q_rf_d < 2; ++q_rf_d) {
      ldmatrix_x4(
          &q_rf[q_rf_m * 16 + q_rf_d * 8],
          q_sh_source + q_rf_m * 16 * 64 + ((q_rf_d * 32 + lane / 16 * 16) ^ q_sh_swizzle));
    }
  }
  // attention(32,32,1,1,1)(RF,RF,RF)(Warp)
  // mx: mx[m] = -1e+30
  mx[0] = -1e30f;
  mx[1] = -1e30f;
  mx[2] = -1e30f;
  mx[3] = -1e30f;
  // l: l[m] = 0
  l[0] = 0.0f;
  l[1] = 0.0f;
  l[2] = 0.0f;
  l[3] = 0.0f;
  // acc: acc[m,d] = 0
#pragma unroll
  for (int acc_m = 0; acc_m < 2; ++acc_m) {
#pragma unroll
    for (int acc_d = 0; acc_d < 4; ++acc_d) {
      acc[acc_d * 8 + acc_m * 4] = 0.0f;
      acc[acc_d * 8 + acc_m * 4 + 1] = 0.0f;
      acc[acc_d * 8 + acc_m * 4 + 2] = 0.0f;
      acc[acc_d * 8 + acc_m * 4 + 3] = 0.0f;
    }
  }
  __half* const k_sh_target = k_sh + k_sh_thread_n * 32 + ((k_sh_thread_d * 8) ^ (k_sh_thread_n / 2 % 4 * 8));
  const __half* const k_source = K + block * 48 * 32 + k_sh_thread_n * 32 + k_sh_thread_d * 8;
  // K to k_sh: Move(64,32)(GL,SH)(Block)
#pragma unroll
  for (int k_sh_n = 0; k_sh_n < 4; ++k_sh_n) {
    *reinterpret_cast<uint4*>(&k_sh_target[k_sh_n * 16 * 32]) =
        k_sh_n * 16 + k_sh_thread_n < 48
            ? *reinterpret_cast<const uint4*>(&k_source[k_sh_n * 16 * 32])
            : make_uint4(0u, 0u, 0u, 0u);
  }
  __half* const v_sh_target = v_sh + v_sh_thread_n * 32 + ((v_sh_thread_d * 8) ^ (v_sh_thread_n / 2 % 4 * 8));
  const __half* const v_source = V + block * 48 * 32 + v_sh_thread_n * 32 + v_sh_thread_d * 8;
  // V to v_sh: Move(64,32)(GL,SH)(Block)
#pragma unroll
  for (int v_sh_n = 0; v_sh_n < 4; ++v_sh_n) {
    *reinterpret_cast<uint4*>(&v_sh_target[v_sh_n * 16 * 32]) =
        v_sh_n * 16 + v_sh_thread_n < 48
            ? *reinterpret_cast<const uint4*>(&v_source[v_sh_n * 16 * 32])
            : make_uint4(0u, 0u, 0u, 0u);
  }
  // attention(32,64,32,1,1,1)(RF,SH,SH,VAL,RF,RF,RF)(Warp)
  // s: s[m,n] = sum(d, Q[b,m,g,r,d] * K[b,n,g,d])
#pragma unroll
  for (int s_init_m = 0; s_init_m < 2; ++s_init_m) {
#pragma unroll
    for (int s_init_n = 0; s_init_n < 8; ++s_init_n) {
      s[s_init_n * 8 + s_init_m * 4] = 0.0f;
      s[s_init_n * 8 + s_init_m * 4 + 1] = 0.0f;
      s[s_init_n * 8 + s_init_m * 4 + 2] = 0.0f;
      s[s_init_n * 8 + s_init_m * 4 + 3] = 0.0f;
    }
  }
  __syncthreads();  // k_sh, v_sh complete; q_sh free again
  const unsigned k_sh_source = shared_address(k_sh) + lane / 16 * 8 * 64 + lane % 8 * 64;
#pragma unroll
  for (int s_d = 0; s_d < 2; ++s_d) {
    // B to s_k_rf: Move(64,16)(SH,RF)(Warp)
#pragma unroll
    for (int s_k_rf_n = 0; s_k_rf_n < 4; ++s_k_rf_n) {
      ldmatrix_x4(
          &s_k_rf[s_k_rf_n * 8], k_sh_source + s_k_rf_n * 16 * 64 + (q_sh_swizzle ^ (s_d * 32 + lane / 8 % 2 * 16)));
    }
#pragma unroll
    for (int s_m = 0; s_m < 2; ++s_m) {
#pragma unroll
      for (int s_n = 0; s_n < 4; ++s_n) {
#pragma unroll
        for (int s_n2 = 0; s_n2 < 2; ++s_n2) {
          mma_m16n8k16_f32_f16(
              &s[s_n * 16 + s_n2 * 8 + s_m * 4], &q_rf[s_m * 16 + s_d * 8], &s_k_rf[s_n * 8 + s_n2 * 4]);
        }
      }
    }
  }
  // top: top[m] = max(n, s[m,n])
#pragma unroll
  for (int top_inside_m = 0; top_inside_m < 4; ++top_inside_m) {
#pragma unroll
    for (int top_inside_n = 0; top_inside_n < 8; ++top_inside_n) {
#pragma unroll
      for (int top_inside_n2 = 0; top_inside_n2 < 2; ++top_inside_n2) {
        s[top_inside_n * 8 + top_inside_m * 2 + top_inside_n2] =
            ((top_inside_n * 8 + lane % 4 * 2 + top_inside_n2) < 48
                ? s[top_inside_n * 8 + top_inside_m * 2 + top_inside_n2]
                : __int_as_float(0xff800000));
      }
    }
  }
  // Reduction(32,64)(RF,RF)(Warp): in each thread, over 4 lanes by shuffles
#pragma unroll
  for (int top_m2 = 0; top_m2 < 2; ++top_m2) {
#pragma unroll
    for (int top_m = 0; top_m < 2; ++top_m) {
      top_max_rf[top_m2 * 2 + top_m] = fmaxf(s[top_m2 * 4 + top_m * 2], s[top_m2 * 4 + top_m * 2 + 1]);
      top_max_rf[top_m2 * 2 + top_m] = fmaxf(top_max_rf[top_m2 * 2 + top_m], s[top_m2 * 4 + top_m * 2 + 8]);
      top_max_rf[top_m2 * 2 + top_m] = fmaxf(top_max_rf[top_m2 * 2 + top_m], s[top_m2 * 4 + top_m * 2 + 9]);
      top_max_rf[top_m2 * 2 + top_m] = fmaxf(top_max_rf[top_m2 * 2 + top_m], s[top_m2 * 4 + top_m * 2 + 16]);
      top_max_rf[top_m2 * 2 + top_m] = fmaxf(top_max_rf[top_m2 * 2 + top_m], s[top_m2 * 4 + top_m * 2 + 17]);
      top_max_rf[top_m2 * 2 + top_m] = fmaxf(top_max_rf[top_m2 * 2 + top_m], s[top_m2 * 4 + top_m * 2 + 24]);
      top_max_rf[top_m2 * 2 + top_m] = fmaxf(top_max_rf[top_m2 * 2 + top_m], s[top_m2 * 4 + top_m * 2 + 25]);
      top_max_rf[top_m2 * 2 + top_m] = fmaxf(top_max_rf[top_m2 * 2 + top_m], s[top_m2 * 4 + top_m * 2 + 32]);
      top_max_rf[top_m2 * 2 + top_m] = fmaxf(top_max_rf[top_m2 * 2 + top_m], s[top_m2 * 4 + top_m * 2 + 33]);
      top_max_rf[top_m2 * 2 + top_m] = fmaxf(top_max_rf[top_m2 * 2 + top_m], s[top_m2 * 4 + top_m * 2 + 40]);
      top_max_rf[top_m2 * 2 + top_m] = fmaxf(top_max_rf[top_m2 * 2 + top_m], s[top_m2 * 4 + top_m * 2 + 41]);
      top_max_rf[top_m2 * 2 + top_m] = fmaxf(top_max_rf[top_m2 * 2 + top_m], s[top_m2 * 4 + top_m * 2 + 48]);
      top_max_rf[top_m2 * 2 + top_m] = fmaxf(top_max_rf[top_m2 * 2 + top_m], s[top_m2 * 4 + top_m * 2 + 49]);
      top_max_rf[top_m2 * 2 + top_m] = fmaxf(top_max_rf[top_m2 * 2 + top_m], s[top_m2 * 4 + top_m * 2 + 56]);
      top_max_rf[top_m2 * 2 + top_m] = fmaxf(top_max_rf[top_m2 * 2 + top_m], s[top_m2 * 4 + top_m * 2 + 57]);
    }
  }
  quad_reduce_max(top_max_rf);
#pragma unroll
  for (int top_m4 = 0; top_m4 < 2; ++top_m4) {
#pragma unroll
    for (int top_m3 = 0; top_m3 < 2; ++top_m3)
      top[top_m4 * 2 + top_m3] = top_max_rf[top_m4 * 2 + top_m3];
  }
  // new: new[m] = max(mx[m], top[m] * (scale * 1.4426950408889634))
#pragma unroll
  for (int new_m = 0; new_m < 4; ++new_m)
    new_rf[new_m] = fmaxf(mx[new_m], top[new_m] * (scale * 1.442695f));
  // alpha: alpha[m] = exp2(mx[m] - new[m])
#pragma unroll
  for (int alpha_m = 0; alpha_m < 4; ++alpha_m)
    alpha[alpha_m] = exp2_approx(mx[alpha_m] - new_rf[alpha_m]);
  // keep: mx[m] = new[m]
  mx[0] = new_rf[0];
  mx[1] = new_rf[1];
  mx[2] = new_rf[2];
  mx[3] = new_rf[3];
  // exp: s[m,n] = exp2(s[m,n] * (scale * 1.4426950408889634) - mx[m])
#pragma unroll
  for (int exp_m = 0; exp_m < 4; ++exp_m) {
#pragma unroll
    for (int exp_n = 0; exp_n < 8; ++exp_n) {
#pragma unroll
      for (int exp_n2 = 0; exp_n2 < 2; ++exp_n2) {
        s[exp_n * 8 + exp_m * 2 + exp_n2] =
            exp2_approx(s[exp_n * 8 + exp_m * 2 + exp_n2] * (scale * 1.442695f) - mx[exp_m]);
      }
    }
  }
  // sums: sums[m] = sum(n, s[m,n])
  // Reduction(32,64)(RF,RF)(Warp): in each thread, over 4 lanes by shuffles
#pragma unroll
  for (int sums_m2 = 0; sums_m2 < 2; ++sums_m2) {
#pragma unroll
    for (int sums_m = 0; sums_m < 2; ++sums_m) {
      sums_sum_rf[sums_m2 * 2 + sums_m] =
          (s[sums_m2 * 4 + sums_m * 2] + s[sums_m2 * 4 + sums_m * 2 + 8] + s[sums_m2 * 4 + sums_m * 2 + 16]
              + s[sums_m2 * 4 + sums_m * 2 + 24] + s[sums_m2 * 4 + sums_m * 2 + 32] + s[sums_m2 * 4 + sums_m * 2 + 40]
              + s[sums_m2 * 4 + sums_m * 2 + 48] + s[sums_m2 * 4 + sums_m * 2 + 56])
              + (s[sums_m2 * 4 + sums_m * 2 + 1] + s[sums_m2 * 4 + sums_m * 2 + 9] + s[sums_m2 * 4 + sums_m * 2 + 17]
                  + s[sums_m2 * 4 + sums_m * 2 + 25] + s[sums_m2 * 4 + sums_m * 2 + 33]
                  + s[sums_m2 * 4 + sums_m * 2 + 41] + s[sums_m2 * 4 + sums_m * 2 + 49]
                  + s[sums_m2 * 4 + sums_m * 2 + 57]);
    }
  }
  quad_reduce_sum(sums_sum_rf);
#pragma unroll
  for (int sums_m4 = 0; sums_m4 < 2; ++sums_m4) {
#pragma unroll
    for (int sums_m3 = 0; sums_m3 < 2; ++sums_m3)
      sums[sums_m4 * 2 + sums_m3] = sums_sum_rf[sums_m4 * 2 + sums_m3];
  }
  // update: l[m] = l[m] * alpha[m] + sums[m]
#pragma unroll
  for (int update_m = 0; update_m < 4; ++update_m)
    l[update_m] = l[update_m] * alpha[update_m] + sums[update_m];
  // p: p[m,n] = s[m,n]
#pragma unroll
  for (int p_m = 0; p_m < 2; ++p_m) {
#pragma unroll
    for (int p_n = 0; p_n < 4; ++p_n) {
      *reinterpret_cast<__half2*>(&p[p_n * 16 + p_m * 8]) =
          __floats2half2_rn(s[p_n * 16 + p_m * 4], s[p_n * 16 + p_m * 4 + 1]);
      *reinterpret_cast<__half2*>(&p[p_n * 16 + p_m * 8 + 2]) =
          __floats2half2_rn(s[p_n * 16 + p_m * 4 + 2], s[p_n * 16 + p_m * 4 + 3]);
      *reinterpret_cast<__half2*>(&p[p_n * 16 + p_m * 8 + 4]) =
          __floats2half2_rn(s[p_n * 16 + p_m * 4 + 8], s[p_n * 16 + p_m * 4 + 9]);
      *reinterpret_cast<__half2*>(&p[p_n * 16 + p_m * 8 + 6]) =
          __floats2half2_rn(s[p_n * 16 + p_m * 4 + 10], s[p_n * 16 + p_m * 4 + 11]);
    }
  }
  // rescale: acc[m,d] = acc[m,d] * alpha[m]
  if (alpha[0] != 1.0f || alpha[1] != 1.0f || alpha[2] != 1.0f || alpha[3] != 1.0f) {
#pragma unroll
    for (int rescale_m = 0; rescale_m < 4; ++rescale_m) {
#pragma unroll
      for (int rescale_d = 0; rescale_d < 4; ++rescale_d) {
#pragma unroll
        for (int rescale_d2 = 0; rescale_d2 < 2; ++rescale_d2) {
          acc[rescale_d * 8 + rescale_m * 2 + rescale_d2] =
              acc[rescale_d * 8 + rescale_m * 2 + rescale_d2] * alpha[rescale_m];
        }
      }
    }
  }
  const unsigned v_sh_source = shared_address(v_sh) + lane % 16 * 64;
  // pv: acc[m,d] += sum(n, p[m,n] * V[b,n,g,d])
#pragma unroll
  for (int pv_n = 0; pv_n < 4; ++pv_n) {
    // B to pv_v_rf: Move(16,32)(SH,RF)(Warp)
#pragma unroll
    for (int pv_v_rf_d = 0; pv_v_rf_d < 2; ++pv_v_rf_d) {
      ldmatrix_x4_trans(
          &pv_v_rf[pv_v_rf_d * 8], v_sh_source + pv_n * 16 * 64 + ((pv_v_rf_d * 32 + lane / 16 * 16) ^ q_sh_swizzle));
    }
#pragma unroll
    for (int pv_m = 0; pv_m < 2; ++pv_m) {
#pragma unroll
      for (int pv_d = 0; pv_d < 2; ++pv_d) {
#pragma unroll
        for (int pv_d2 = 0; pv_d2 < 2; ++pv_d2) {
          mma_m16n8k16_f32_f16(
              &acc[pv_d * 16 + pv_d2 * 8 + pv_m * 4], &p[pv_n * 16 + pv_m * 8], &pv_v_rf[pv_d * 8 + pv_d2 * 4]);
        }
      }
    }
  }
  // attention(32,32,1,1,1)(GL,RF,RF)(Warp)
  // inverse: inverse[m] = where(l[m] > 0, 1 / l[m], 0)
#pragma unroll
  for (int inverse_m = 0; inverse_m < 4; ++inverse_m)
    inverse[inverse_m] = (l[inverse_m] > 0.0f ? 1.0f / l[inverse_m] : 0.0f);
  // norm: acc[m,d] = acc[m,d] * inverse[m]
#pragma unroll
  for (int norm_m = 0; norm_m < 4; ++norm_m) {
#pragma unroll
    for (int norm_d = 0; norm_d < 4; ++norm_d) {
#pragma unroll
      for (int norm_d2 = 0; norm_d2 < 2; ++norm_d2)
        acc[norm_d * 8 + norm_m * 2 + norm_d2] = acc[norm_d * 8 + norm_m * 2 + norm_d2] * inverse[norm_m];
    }
  }
  __half* const store_acc_sh_target = store_acc_sh + warp * 32 * 32 + lane / 4 * 32 + lane % 4 * 2;
  const int store_acc_sh_swizzle = lane / 8 * 8;
  // store: O[b,m,g,r,d] = acc[m,d]
  // src to store_acc_sh: Move(32,32)(RF,SH)(Warp)
#pragma unroll
  for (int store_acc_sh_m = 0; store_acc_sh_m < 2; ++store_acc_sh_m) {
#pragma unroll
    for (int store_acc_sh_d = 0; store_acc_sh_d < 4; ++store_acc_sh_d) {
      {
        __align__(4) __half piece[2];
        piece[0] = __float2half_rn(acc[store_acc_sh_d * 8 + store_acc_sh_m * 4]);
        piece[1] = __float2half_rn(acc[store_acc_sh_d * 8 + store_acc_sh_m * 4 + 1]);
        *reinterpret_cast<unsigned int*>(
            &store_acc_sh_target[store_acc_sh_m * 16 * 32 + ((store_acc_sh_d * 8) ^ store_acc_sh_swizzle)]) =
            *reinterpret_cast<const unsigned int*>(&piece[0]);
      }
      {
        __align__(4) __half piece[2];
        piece[0] = __float2half_rn(acc[store_acc_sh_d * 8 + store_acc_sh_m * 4 + 2]);
        piece[1] = __float2half_rn(acc[store_acc_sh_d * 8 + store_acc_sh_m * 4 + 3]);
        *reinterpret_cast<unsigned int*>(
            &store_acc_sh_target[store_acc_sh_m * 16 * 32 + ((store_acc_sh_d * 8) ^ store_acc_sh_swizzle) + 8 * 32]) =
            *reinterpret_cast<const unsigned int*>(&piece[0]);
      }
    }
  }
  __syncwarp();  // store_acc_sh complete
  __half* const o_target = O + block * 40 * 32 + warp * 32 * 32 + store_lane_m * 32 + store_lane_d * 8;
  __half* const store_acc_sh_source =
      store_acc_sh + warp * 32 * 32 + store_lane_m * 32 + ((store_lane_d * 8) ^ (store_lane_m / 2 * 8));
#pragma unroll
  for (int store_m = 0; store_m < 4; ++store_m) {
    if (warp * 32 + store_m * 8 + store_lane_m < 40) {
      *reinterpret_cast<uint4*>(&o_target[store_m * 8 * 32]) =
          *reinterpret_cast<const uint4*>(&store_acc_sh_source[store_m * 8 * 32]);
    }
  }
}
