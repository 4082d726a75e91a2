// attention_decode(m,n,32,2,1,(n + 31) // 32)(GL,GL,GL,VAL,GL,GL,GL)(Kernel) with Q, K, V float16 RowMajor; P, T, S
//     RowMajor
//   .rfactor(step='sums', parts=4)
//   .tile(m=16, g=1, b=1, p=1).to(Block)
//   .load('Q', SH, Move.coalesced_copy(8).done()).swizzle_storage()
//   .load('Q', RF, Move.tile(16).to(Warp).done())
//   .split(n=64).pipeline(3).skip_masked_tiles()
//   .load('K', SH, Move.coalesced_copy(8).done()).swizzle_storage()
//   .load('V', SH, Move.coalesced_copy(8).done()).swizzle_storage()
//   .tile(m=16).to(Warp)
//   .step("s", AnySpec.split(16).unroll().load(B, RF, Move.done()).tile(16, 16).unroll().mma_tile().done())
//   .step("pv", AnySpec.split(16).unroll().load(B, RF, Move.done()).tile(16, 16).unroll().mma_tile().done())
//   .done()
// target sm_90; launch <<<(m + 15) / 16 * ((n + 31) / 32) * 2, 32>>>, 25600 bytes of static shared memory
// requires: the grid has at most 2**31 - 1 blocks, (m + 15) / 16 * ((n + 31) / 32) * 2 < 2147483648
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

// copy 16 bytes from global to shared memory asynchronously
__device__ __forceinline__ void cp_async_16(unsigned target, const void* source)
{
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(target), "l"(source) : "memory");
}

// copy 16 bytes from global to shared memory asynchronously, or zeros if the source is out of bounds
__device__ __forceinline__ void cp_async_16_zfill(unsigned target, const void* source, bool in_bounds)
{
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
      :: "r"(target), "l"(source), "r"(in_bounds ? 16 : 0) : "memory");
}

// commit the cp.async operations of this thread as a group
__device__ __forceinline__ void cp_async_commit_group()
{
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// wait until at most N cp.async groups of this thread are pending
template <int N>
__device__ __forceinline__ void cp_async_wait_group()
{
  asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
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

// load four 8x8 matrices of 16-bit elements from shared memory into the registers of a warp, transposed
__device__ __forceinline__ void ldmatrix_x4_trans(void* target, unsigned source)
{
  unsigned* const words = static_cast<unsigned*>(target);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
      : "r"(source) : "memory");
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

extern "C" __global__ void __launch_bounds__(32)
attention_decode(
    const __half* __restrict__ Q,
    const __half* __restrict__ K,
    const __half* __restrict__ V,
    const float scale,
    float* __restrict__ P,
    float* __restrict__ T,
    float* __restrict__ S,
    const int m,
    const int n)
{
  constexpr int num_stages = 3;
  constexpr int k_sh_stage_bytes = 64 * 32 * 2;
  constexpr int v_sh_stage_bytes = 64 * 32 * 2;
  const int thread = threadIdx.x;
  const int block_p = blockIdx.x % ((n + 31) / 32);
  const int block_b = blockIdx.x / ((n + 31) / 32) % 2;
  const int block_m = blockIdx.x / ((n + 31) / 32) / 2;
  const int n_hidden = min((long long)((n + 63) / 64 * 64), (long long)((long long)block_p * 512));
  const int v_sh_thread_d = threadIdx.x % 4;
  const int v_sh_thread_n = threadIdx.x / 4;
  const int k_sh_thread_d = threadIdx.x % 4;
  const int k_sh_thread_n = threadIdx.x / 4;
  const int q_sh_thread_d = threadIdx.x % 4;
  const int q_sh_thread_m = threadIdx.x / 4;
  __shared__ __align__(16) __half q_sh[512];  // 16 x 32
  __shared__ __align__(16) __half k_sh[6144];  // 64 x 32, 3 stages
  __shared__ __align__(16) __half v_sh[6144];  // 64 x 32, 3 stages
  __align__(4) __half q_rf[16];  // of 16 x 32
  float mx[2];  // of 16
  float l_parts[2];  // of 16 x 4
  __align__(8) float acc[16];  // of 16 x 32
  float s_rf[32];  // of 16 x 64
  __align__(4) __half s_k_rf[32];  // of 64 x 16
  float top[2];  // of 16
  float top_max_rf[2];  // of 32 x 2
  float new_rf[2];  // of 16
  float alpha[2];  // of 16
  float sums_parts[2];  // of 16 x 4
  __align__(4) __half w[32];  // of 16 x 64
  __align__(4) __half pv_v_rf[16];  // of 16 x 32
  float l[2];  // of 16
  float l_whole_sum_rf[2];  // of 32 x 2
  __half* const q_sh_target = q_sh + q_sh_thread_m * 32 + ((q_sh_thread_d * 8) ^ (q_sh_thread_m / 2 * 8));
  const __half* const q_source =
      Q + (long long)block_b * m * 32 + (long long)block_m * 16 * 32 + (long long)q_sh_thread_m * 32
          + (long long)q_sh_thread_d * 8;
  // Q to q_sh: Move(16,32)(GL,SH)(Block)
#pragma unroll
  for (int q_sh_m = 0; q_sh_m < 2; ++q_sh_m) {
    *reinterpret_cast<uint4*>(&q_sh_target[q_sh_m * 8 * 32]) =
        block_m * 16 + q_sh_m * 8 + q_sh_thread_m < m
            ? *reinterpret_cast<const uint4*>(&q_source[q_sh_m * 8 * 32])
            : make_uint4(0u, 0u, 0u, 0u);
  }
  __syncwarp();  // q_sh complete
  const unsigned q_sh_source = shared_address(q_sh) + thread % 16 * 64;
  const int q_sh_swizzle = thread / 2 % 4 * 16;
  // Q to q_rf: Move(16,32)(SH,RF)(Block)
#pragma unroll
  for (int q_rf_d = 0; q_rf_d < 2; ++q_rf_d)
    ldmatrix_x4(&q_rf[q_rf_d * 8], q_sh_source + ((q_rf_d * 32 + thread / 16 * 16) ^ q_sh_swizzle));
  // attention_decode(16,32,1,1,1,4)(RF,RF,RF)(Warp)
  // mx: mx[m] = -1e+30
  mx[0] = -1e30f;
  mx[1] = -1e30f;
  // l: l_parts[m,sums_part] = 0
  l_parts[0] = 0.0f;
  l_parts[1] = 0.0f;
  // acc: acc[m,d] = 0
#pragma unroll
  for (int acc_d = 0; acc_d < 4; ++acc_d) {
    acc[acc_d * 4] = 0.0f;
    acc[acc_d * 4 + 1] = 0.0f;
    acc[acc_d * 4 + 2] = 0.0f;
    acc[acc_d * 4 + 3] = 0.0f;
  }
  const unsigned k_sh_target =
      shared_address(k_sh) + k_sh_thread_n * 64 + ((k_sh_thread_d * 16) ^ (k_sh_thread_n / 2 * 16));
  const __half* const k_source =
      K + (long long)block_b * n * 32 + (long long)k_sh_thread_n * 32 + (long long)k_sh_thread_d * 8;
  const unsigned v_sh_target =
      shared_address(v_sh) + v_sh_thread_n * 64 + ((v_sh_thread_d * 16) ^ (v_sh_thread_n / 2 * 16));
  const __half* const v_source =
      V + (long long)block_b * n * 32 + (long long)v_sh_thread_n * 32 + (long long)v_sh_thread_d * 8;
  // prologue: loads of the first 2 iterations of n2
#pragma unroll
  for (int n2_ahead = 0; n2_ahead < 2; ++n2_ahead) {
    // K to k_sh: Move(64,32)(GL,SH)(Block)
    if (n2_ahead < min((n + 63) / 64, block_p * 8 + 8) - n_hidden / 64) {
      if (min((n + 63) / 64 - 1, n_hidden / 64 + n2_ahead) * 64 + 63 < n) {
#pragma unroll
        for (int k_sh_n = 0; k_sh_n < 8; ++k_sh_n) {
          cp_async_16(
              k_sh_target + n2_ahead * k_sh_stage_bytes + k_sh_n * 8 * 64,
              &k_source[(long long)(min((n + 63) / 64 - 1, n_hidden / 64 + n2_ahead)) * 64 * 32
                  + (long long)k_sh_n * 8 * 32]);
        }
        // V to v_sh: Move(64,32)(GL,SH)(Block)
#pragma unroll
        for (int v_sh_n = 0; v_sh_n < 8; ++v_sh_n) {
          cp_async_16(
              v_sh_target + n2_ahead * v_sh_stage_bytes + v_sh_n * 8 * 64,
              &v_source[(long long)(min((n + 63) / 64 - 1, n_hidden / 64 + n2_ahead)) * 64 * 32
                  + (long long)v_sh_n * 8 * 32]);
        }
      } else {
#pragma unroll
        for (int k_sh_n = 0; k_sh_n < 8; ++k_sh_n) {
          cp_async_16_zfill(
              k_sh_target + n2_ahead * k_sh_stage_bytes + k_sh_n * 8 * 64,
              &k_source[(long long)(min((n + 63) / 64 - 1, n_hidden / 64 + n2_ahead)) * 64 * 32
                  + (long long)k_sh_n * 8 * 32],
              min((n + 63) / 64 - 1, n_hidden / 64 + n2_ahead) * 64 + k_sh_n * 8 + k_sh_thread_n < n);
        }
#pragma unroll
        for (int v_sh_n = 0; v_sh_n < 8; ++v_sh_n) {
          cp_async_16_zfill(
              v_sh_target + n2_ahead * v_sh_stage_bytes + v_sh_n * 8 * 64,
              &v_source[(long long)(min((n + 63) / 64 - 1, n_hidden / 64 + n2_ahead)) * 64 * 32
                  + (long long)v_sh_n * 8 * 32],
              min((n + 63) / 64 - 1, n_hidden / 64 + n2_ahead) * 64 + v_sh_n * 8 + v_sh_thread_n < n);
        }
      }
    }
    cp_async_commit_group();
  }
  const unsigned k_sh_source = shared_address(k_sh) + thread / 16 * 8 * 64 + thread % 8 * 64;
  const unsigned v_sh_source = shared_address(v_sh) + thread % 16 * 64;
  for (int n2 = 0; n2 < min((n + 63) / 64, block_p * 8 + 8) - n_hidden / 64; ++n2) {
    const int n2_stage_2 = (n2 + 2) % num_stages;
    const int n2_stage = n2 % num_stages;
    cp_async_wait_group<1>();  // k_sh, v_sh have arrived
    __syncwarp();  // k_sh, v_sh complete and free again
    // K to k_sh: Move(64,32)(GL,SH)(Block)
    if (n2 + 2 < min((n + 63) / 64, block_p * 8 + 8) - n_hidden / 64) {
      if (min((n + 63) / 64 - 1, n_hidden / 64 + n2 + 2) * 64 + 63 < n) {
#pragma unroll
        for (int k_sh_n = 0; k_sh_n < 8; ++k_sh_n) {
          cp_async_16(
              k_sh_target + n2_stage_2 * k_sh_stage_bytes + k_sh_n * 8 * 64,
              &k_source[(long long)(min((n + 63) / 64 - 1, n_hidden / 64 + n2 + 2)) * 64 * 32
                  + (long long)k_sh_n * 8 * 32]);
        }
        // V to v_sh: Move(64,32)(GL,SH)(Block)
#pragma unroll
        for (int v_sh_n = 0; v_sh_n < 8; ++v_sh_n) {
          cp_async_16(
              v_sh_target + n2_stage_2 * v_sh_stage_bytes + v_sh_n * 8 * 64,
              &v_source[(long long)(min((n + 63) / 64 - 1, n_hidden / 64 + n2 + 2)) * 64 * 32
                  + (long long)v_sh_n * 8 * 32]);
        }
      } else {
#pragma unroll
        for (int k_sh_n = 0; k_sh_n < 8; ++k_sh_n) {
          cp_async_16_zfill(
              k_sh_target + n2_stage_2 * k_sh_stage_bytes + k_sh_n * 8 * 64,
              &k_source[(long long)(min((n + 63) / 64 - 1, n_hidden / 64 + n2 + 2)) * 64 * 32
                  + (long long)k_sh_n * 8 * 32],
              min((n + 63) / 64 - 1, n_hidden / 64 + n2 + 2) * 64 + k_sh_n * 8 + k_sh_thread_n < n);
        }
#pragma unroll
        for (int v_sh_n = 0; v_sh_n < 8; ++v_sh_n) {
          cp_async_16_zfill(
              v_sh_target + n2_stage_2 * v_sh_stage_bytes + v_sh_n * 8 * 64,
              &v_source[(long long)(min((n + 63) / 64 - 1, n_hidden / 64 + n2 + 2)) * 64 * 32
                  + (long long)v_sh_n * 8 * 32],
              min((n + 63) / 64 - 1, n_hidden / 64 + n2 + 2) * 64 + v_sh_n * 8 + v_sh_thread_n < n);
        }
      }
    }
    cp_async_commit_group();
    // attention_decode(16,64,32,1,1,1,4)(RF,SH,SH,VAL,RF,RF,RF)(Warp)
    // s: s[m,n] = sum(d, Q[b,g,m,d] * K[b,n,g,d])
#pragma unroll
    for (int s_init_n = 0; s_init_n < 8; ++s_init_n) {
      s_rf[s_init_n * 4] = 0.0f;
      s_rf[s_init_n * 4 + 1] = 0.0f;
      s_rf[s_init_n * 4 + 2] = 0.0f;
      s_rf[s_init_n * 4 + 3] = 0.0f;
    }
#pragma unroll
    for (int s_d2 = 0; s_d2 < 2; ++s_d2) {
      // B to s_k_rf: Move(64,16)(SH,RF)(Warp)
#pragma unroll
      for (int s_k_rf_n = 0; s_k_rf_n < 4; ++s_k_rf_n) {
        ldmatrix_x4(
            &s_k_rf[s_k_rf_n * 8],
            k_sh_source + n2_stage * k_sh_stage_bytes + s_k_rf_n * 16 * 64
                + (q_sh_swizzle ^ (s_d2 * 32 + thread / 8 % 2 * 16)));
      }
#pragma unroll
      for (int s_n2 = 0; s_n2 < 4; ++s_n2) {
#pragma unroll
        for (int s_n3 = 0; s_n3 < 2; ++s_n3)
          mma_m16n8k16_f32_f16(&s_rf[s_n2 * 8 + s_n3 * 4], &q_rf[s_d2 * 8], &s_k_rf[s_n2 * 8 + s_n3 * 4]);
      }
    }
    // mask: s[m,n] = where(p * 512 <= n and n < p * 512 + 512, s[m,n], -inf)
    if ((min((n + 63) / 64 - 1, n_hidden / 64 + n2) * 64 < (long long)block_p * 512 || (long long)block_p * 512 + 511 < min((n + 63) / 64 - 1, n_hidden / 64 + n2) * 64 + 63)) {
#pragma unroll
      for (int mask_m = 0; mask_m < 2; ++mask_m) {
#pragma unroll
        for (int mask_n = 0; mask_n < 8; ++mask_n) {
#pragma unroll
          for (int mask_n2 = 0; mask_n2 < 2; ++mask_n2) {
            s_rf[mask_n * 4 + mask_m * 2 + mask_n2] =
                (static_cast<long long>(block_p) * 512
                    <= (min((n + 63) / 64 - 1, n_hidden / 64 + n2) * 64 + mask_n * 8 + thread % 4 * 2 + mask_n2)
                    && (min((n + 63) / 64 - 1, n_hidden / 64 + n2) * 64 + mask_n * 8 + thread % 4 * 2 + mask_n2)
                        < static_cast<long long>(block_p) * 512 + 512
                    ? s_rf[mask_n * 4 + mask_m * 2 + mask_n2]
                    : __int_as_float(0xff800000));
          }
        }
      }
    }
    // top: top[m] = max(n, s[m,n])
    if (n < min((n + 63) / 64 - 1, n_hidden / 64 + n2) * 64 + 64) {
#pragma unroll
      for (int top_inside_m = 0; top_inside_m < 2; ++top_inside_m) {
#pragma unroll
        for (int top_inside_n = 0; top_inside_n < 8; ++top_inside_n) {
#pragma unroll
          for (int top_inside_n2 = 0; top_inside_n2 < 2; ++top_inside_n2) {
            s_rf[top_inside_n * 4 + top_inside_m * 2 + top_inside_n2] =
                ((min((n + 63) / 64 - 1, n_hidden / 64 + n2) * 64 + top_inside_n * 8 + thread % 4 * 2 + top_inside_n2)
                    < n
                    ? s_rf[top_inside_n * 4 + top_inside_m * 2 + top_inside_n2]
                    : __int_as_float(0xff800000));
          }
        }
      }
    }
    // Reduction(16,64)(RF,RF)(Warp): in each thread, over 4 lanes by shuffles
#pragma unroll
    for (int top_m = 0; top_m < 2; ++top_m) {
      top_max_rf[top_m] = fmaxf(s_rf[top_m * 2], s_rf[top_m * 2 + 1]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s_rf[top_m * 2 + 4]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s_rf[top_m * 2 + 5]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s_rf[top_m * 2 + 8]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s_rf[top_m * 2 + 9]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s_rf[top_m * 2 + 12]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s_rf[top_m * 2 + 13]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s_rf[top_m * 2 + 16]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s_rf[top_m * 2 + 17]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s_rf[top_m * 2 + 20]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s_rf[top_m * 2 + 21]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s_rf[top_m * 2 + 24]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s_rf[top_m * 2 + 25]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s_rf[top_m * 2 + 28]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s_rf[top_m * 2 + 29]);
    }
    quad_reduce_max(top_max_rf);
#pragma unroll
    for (int top_m2 = 0; top_m2 < 2; ++top_m2)
      top[top_m2] = top_max_rf[top_m2];
    // new: new[m] = max(mx[m], top[m] * (scale * 1.4426950408889634))
#pragma unroll
    for (int new_m = 0; new_m < 2; ++new_m)
      new_rf[new_m] = fmaxf(mx[new_m], top[new_m] * (scale * 1.442695f));
    // alpha: alpha[m] = exp2(mx[m] - new[m])
#pragma unroll
    for (int alpha_m = 0; alpha_m < 2; ++alpha_m)
      alpha[alpha_m] = exp2_approx(mx[alpha_m] - new_rf[alpha_m]);
    // keep: mx[m] = new[m]
    mx[0] = new_rf[0];
    mx[1] = new_rf[1];
    // exp: s[m,n] = exp2(s[m,n] * (scale * 1.4426950408889634) - mx[m])
#pragma unroll
    for (int exp_m = 0; exp_m < 2; ++exp_m) {
#pragma unroll
      for (int exp_n = 0; exp_n < 8; ++exp_n) {
#pragma unroll
        for (int exp_n2 = 0; exp_n2 < 2; ++exp_n2) {
          s_rf[exp_n * 4 + exp_m * 2 + exp_n2] =
              exp2_approx(s_rf[exp_n * 4 + exp_m * 2 + exp_n2] * (scale * 1.442695f) - mx[exp_m]);
        }
      }
    }
    // sums: sums_parts[m,sums_part] = sum(n, s[m,n]), partial results
#pragma unroll
    for (int sums_m = 0; sums_m < 2; ++sums_m) {
      sums_parts[sums_m] =
          (s_rf[sums_m * 2] + s_rf[sums_m * 2 + 4] + s_rf[sums_m * 2 + 8] + s_rf[sums_m * 2 + 12]
              + s_rf[sums_m * 2 + 16] + s_rf[sums_m * 2 + 20] + s_rf[sums_m * 2 + 24] + s_rf[sums_m * 2 + 28])
              + (s_rf[sums_m * 2 + 1] + s_rf[sums_m * 2 + 5] + s_rf[sums_m * 2 + 9] + s_rf[sums_m * 2 + 13]
                  + s_rf[sums_m * 2 + 17] + s_rf[sums_m * 2 + 21] + s_rf[sums_m * 2 + 25] + s_rf[sums_m * 2 + 29]);
    }
    // update: l_parts[m,sums_part] = l_parts[m,sums_part] * alpha[m] + sums_parts[m,sums_part]
#pragma unroll
    for (int update_m = 0; update_m < 2; ++update_m)
      l_parts[update_m] = l_parts[update_m] * alpha[update_m] + sums_parts[update_m];
    // p: w[m,n] = s[m,n]
#pragma unroll
    for (int p_n2 = 0; p_n2 < 4; ++p_n2) {
      *reinterpret_cast<__half2*>(&w[p_n2 * 8]) = __floats2half2_rn(s_rf[p_n2 * 8], s_rf[p_n2 * 8 + 1]);
      *reinterpret_cast<__half2*>(&w[p_n2 * 8 + 2]) = __floats2half2_rn(s_rf[p_n2 * 8 + 2], s_rf[p_n2 * 8 + 3]);
      *reinterpret_cast<__half2*>(&w[p_n2 * 8 + 4]) = __floats2half2_rn(s_rf[p_n2 * 8 + 4], s_rf[p_n2 * 8 + 5]);
      *reinterpret_cast<__half2*>(&w[p_n2 * 8 + 6]) = __floats2half2_rn(s_rf[p_n2 * 8 + 6], s_rf[p_n2 * 8 + 7]);
    }
    // rescale: acc[m,d] = acc[m,d] * alpha[m]
#pragma unroll
    for (int rescale_m = 0; rescale_m < 2; ++rescale_m) {
#pragma unroll
      for (int rescale_d = 0; rescale_d < 4; ++rescale_d) {
#pragma unroll
        for (int rescale_d2 = 0; rescale_d2 < 2; ++rescale_d2) {
          acc[rescale_d * 4 + rescale_m * 2 + rescale_d2] =
              acc[rescale_d * 4 + rescale_m * 2 + rescale_d2] * alpha[rescale_m];
        }
      }
    }
    // pv: acc[m,d] += sum(n, w[m,n] * V[b,n,g,d])
#pragma unroll
    for (int pv_n = 0; pv_n < 4; ++pv_n) {
      // B to pv_v_rf: Move(16,32)(SH,RF)(Warp)
#pragma unroll
      for (int pv_v_rf_d = 0; pv_v_rf_d < 2; ++pv_v_rf_d) {
        ldmatrix_x4_trans(
            &pv_v_rf[pv_v_rf_d * 8],
            v_sh_source + n2_stage * v_sh_stage_bytes + pv_n * 16 * 64
                + ((pv_v_rf_d * 32 + thread / 16 * 16) ^ q_sh_swizzle));
      }
#pragma unroll
      for (int pv_d = 0; pv_d < 2; ++pv_d) {
#pragma unroll
        for (int pv_d2 = 0; pv_d2 < 2; ++pv_d2)
          mma_m16n8k16_f32_f16(&acc[pv_d * 8 + pv_d2 * 4], &w[pv_n * 8], &pv_v_rf[pv_d * 8 + pv_d2 * 4]);
      }
    }
  }
  float* const p_target =
      P + (long long)((n + 31) / 32) * block_b * m * 32 + (long long)block_p * m * 32 + (long long)block_m * 16 * 32
          + (long long)(thread / 4) * 32 + (long long)(thread % 4) * 2;
  // attention_decode(16,32,1,1,1,4)(GL,GL,GL,RF,RF,RF)(Warp)
  // store: P[b,g,p,m,d] = acc[m,d]
#pragma unroll
  for (int store_d = 0; store_d < 4; ++store_d) {
    if (block_m * 16 + thread / 4 < m)
      *reinterpret_cast<float2*>(&p_target[store_d * 8]) = *reinterpret_cast<const float2*>(&acc[store_d * 4]);
    if (block_m * 16 + thread / 4 + 8 < m) {
      *reinterpret_cast<float2*>(&p_target[store_d * 8 + 8 * 32]) =
          *reinterpret_cast<const float2*>(&acc[store_d * 4 + 2]);
    }
  }
  float* const t_target =
      T + (long long)((n + 31) / 32) * block_b * m + (long long)block_p * m + (long long)block_m * 16
          + (long long)(thread / 4);
  // tops: T[b,g,p,m] = mx[m]
  if (thread % 4 == 0) {
    if (block_m * 16 + thread / 4 < m)
      t_target[0] = mx[0];
    if (block_m * 16 + thread / 4 + 8 < m)
      t_target[8] = mx[1];
  }
  // l_whole: l[m] = sum(sums_part, l_parts[m,sums_part])
  // Reduction(16,4)(RF,RF)(Warp): over 4 lanes by shuffles
#pragma unroll
  for (int l_whole_m = 0; l_whole_m < 2; ++l_whole_m)
    l_whole_sum_rf[l_whole_m] = l_parts[l_whole_m];
  quad_reduce_sum(l_whole_sum_rf);
#pragma unroll
  for (int l_whole_m2 = 0; l_whole_m2 < 2; ++l_whole_m2)
    l[l_whole_m2] = l_whole_sum_rf[l_whole_m2];
  float* const s_target =
      S + (long long)((n + 31) / 32) * block_b * m + (long long)block_p * m + (long long)block_m * 16
          + (long long)(thread / 4);
  // total: S[b,g,p,m] = l[m]
  if (thread % 4 == 0) {
#pragma unroll
    for (int total_m = 0; total_m < 2; ++total_m) {
      if (block_m * 16 + total_m * 8 + thread / 4 < m)
        s_target[total_m * 8] = l[total_m];
    }
  }
}
