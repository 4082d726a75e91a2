// lstm(40,48,40)(GL,GL,GL,GL,GL,GL)(Kernel) with X, W, H, R, D float16 RowMajor; bias float16
//   .tile(m=128, n=128).to(Block).rasterize(group_m=8)
//   .step("input", AnySpec.split(32).pipeline(4, interleave=True).load(A, SH,
//     Move.coalesced_copy(8).done()).swizzle_storage().load(B, SH,
//     Move.coalesced_copy(8).done()).swizzle_storage().tile(64, 32).to(Warp).split(16).pipeline(2).unroll().load(A, RF,
//     Move.done()).load(B, RF, Move.done()).tile(16, 16).unroll().mma_tile().done())
//   .step("hidden", AnySpec.split(32).pipeline(4, interleave=True).load(A, SH,
//     Move.coalesced_copy(8).done()).reuse_buffer().swizzle_storage().load(B, SH,
//     Move.coalesced_copy(8).done()).reuse_buffer().swizzle_storage().tile(64,
//     32).to(Warp).split(16).pipeline(2).unroll().load(A, RF, Move.done()).load(B, RF, Move.done()).tile(16,
//     16).unroll().mma_tile().done())
//   .step("store", AnySpec.load('src', SH, Move.tile(64,
//     32).to(Warp).done()).cast_on_copy().reuse_buffer().swizzle_storage().coalesced_copy(8).done())
//   .done()
// target sm_90; launch <<<1, 256>>>, 65536 bytes of dynamic shared memory
#include <cuda_fp16.h>

// 32-bit shared-memory address for inline PTX
__device__ __forceinline__ unsigned shared_address(const void* pointer)
{
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
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

// load four 8x8 matrices of 16-bit elements from shared memory into the registers of a warp
__device__ __forceinline__ void ldmatrix_x4(void* target, unsigned source)
{
  unsigned* const words = static_cast<unsigned*>(target);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
      : "r"(source) : "memory");
}

// load four 8x8 matrices of 16-bit elements from shared memory into the registers of a warp, transposed
__device__ __forceinline__ void ldmatrix_x4_trans(void* target, unsigned source)
{
  unsigned* const words = static_cast<unsigned*>(target);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
      : "r"(source) : "memory");
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

extern "C" __global__ void __launch_bounds__(256)
lstm(
    const __half* __restrict__ X,
    const __half* __restrict__ W,
    const __half* __restrict__ H,
    const __half* __restrict__ R,
    const __half* __restrict__ bias,
    __half* __restrict__ D)
{
  constexpr int input_x_sh_bytes = 128 * 32 * 2;
  constexpr int input_w_sh_bytes = 32 * 128 * 2;
  constexpr int hidden_h_sh_bytes = 128 * 32 * 2;
  constexpr int hidden_r_sh_bytes = 32 * 128 * 2;
  constexpr int input_w_sh_offset = 4 * input_x_sh_bytes;
  constexpr int hidden_r_sh_offset = 4 * hidden_h_sh_bytes;
  const int warp = threadIdx.x / 32;
  const int input_warp_n = warp % 4;
  const int input_warp_m = warp / 4;
  const int lane = threadIdx.x % 32;
  const int input_w_sh_thread_n = threadIdx.x % 16;
  const int input_w_sh_thread_k = threadIdx.x / 16;
  const int input_x_sh_thread_k = threadIdx.x % 4;
  const int input_x_sh_thread_m = threadIdx.x / 4;
  const int hidden_warp_n = warp % 4;
  const int hidden_warp_m = warp / 4;
  const int hidden_r_sh_thread_n = threadIdx.x % 16;
  const int hidden_r_sh_thread_k = threadIdx.x / 16;
  const int hidden_h_sh_thread_k = threadIdx.x % 4;
  const int hidden_h_sh_thread_m = threadIdx.x / 4;
  const int store_thread_n = threadIdx.x % 16;
  const int store_thread_m = threadIdx.x / 16;
  const int store_acc_sh_warp_n = warp % 4;
  const int store_acc_sh_warp_m = warp / 4;
  extern __shared__ __align__(16) unsigned char smem[];
  __half* const input_x_sh = reinterpret_cast<__half*>(smem);  // 128 x 32, 4 copies
  __half* const input_w_sh = reinterpret_cast<__half*>(smem + input_w_sh_offset);  // 32 x 128, 4 copies
  __half* const hidden_h_sh = reinterpret_cast<__half*>(smem);  // 128 x 32, 4 copies
  __half* const hidden_r_sh = reinterpret_cast<__half*>(smem + hidden_r_sh_offset);  // 32 x 128, 4 copies
  __half* const store_acc_sh = reinterpret_cast<__half*>(smem);  // 128 x 128
  float acc[64];  // of 128 x 128
  __align__(4) __half input_x_rf[64];  // of 64 x 16, 2 stages
  __align__(4) __half input_w_rf[32];  // of 16 x 32, 2 stages
  __align__(4) __half hidden_h_rf[64];  // of 64 x 16, 2 stages
  __align__(4) __half hidden_r_rf[32];  // of 16 x 32, 2 stages
  // input: acc[m,n] = sum(k, X[m,k] * W[k,n])
#pragma unroll
  for (int input_init_m = 0; input_init_m < 4; ++input_init_m) {
#pragma unroll
    for (int input_init_n = 0; input_init_n < 4; ++input_init_n) {
      acc[input_init_n * 16 + input_init_m * 4] = 0.0f;
      acc[input_init_n * 16 + input_init_m * 4 + 1] = 0.0f;
      acc[input_init_n * 16 + input_init_m * 4 + 2] = 0.0f;
      acc[input_init_n * 16 + input_init_m * 4 + 3] = 0.0f;
    }
  }
  const unsigned input_x_sh_target =
      shared_address(input_x_sh) + input_x_sh_thread_m * 64
          + ((input_x_sh_thread_k * 16) ^ (input_x_sh_thread_m / 2 % 4 * 16));
  const __half* const x_source = X + input_x_sh_thread_m * 40 + input_x_sh_thread_k * 8;
  const unsigned input_w_sh_target =
      shared_address(input_w_sh) + input_w_sh_thread_k * 256 + input_w_sh_thread_n / 8 * 128
          + ((input_w_sh_thread_k % 8 * 16) ^ (input_w_sh_thread_n % 8 * 16));
  const __half* const w_source = W + input_w_sh_thread_k * 48 + input_w_sh_thread_n * 8;
  // prologue: loads of the first 3 iterations of input_k
#pragma unroll
  for (int input_k_ahead = 0; input_k_ahead < 3; ++input_k_ahead) {
    // A to input_x_sh: Move(128,32)(GL,SH)(Block)
    if (input_k_ahead < 2) {
#pragma unroll
      for (int input_x_sh_m = 0; input_x_sh_m < 2; ++input_x_sh_m) {
        cp_async_16_zfill(
            input_x_sh_target + input_k_ahead * input_x_sh_bytes + input_x_sh_m * 64 * 64,
            &x_source[input_x_sh_m * 64 * 40 + input_k_ahead * 32],
            input_x_sh_m * 64 + input_x_sh_thread_m < 40 && input_k_ahead * 32 + input_x_sh_thread_k * 8 < 40);
      }
      // B to input_w_sh: Move(32,128)(GL,SH)(Block)
#pragma unroll
      for (int input_w_sh_k = 0; input_w_sh_k < 2; ++input_w_sh_k) {
        cp_async_16_zfill(
            input_w_sh_target + input_k_ahead * input_w_sh_bytes + input_w_sh_k * 16 * 256,
            &w_source[input_k_ahead * 32 * 48 + input_w_sh_k * 16 * 48],
            input_k_ahead * 32 + input_w_sh_k * 16 + input_w_sh_thread_k < 40 && input_w_sh_thread_n * 8 < 48);
      }
    }
    cp_async_commit_group();
  }
  cp_async_wait_group<1>();  // input_x_sh, input_w_sh have arrived
  __syncthreads();  // input_x_sh, input_w_sh complete
  const unsigned input_x_sh_source =
      shared_address(input_x_sh) + input_warp_m * 64 * 64 + lane % 16 * 64 + ((lane / 16 * 16) ^ (lane / 2 % 4 * 16));
  // A to input_x_rf: Move(64,16)(SH,RF)(Warp)
#pragma unroll
  for (int input_x_rf_m = 0; input_x_rf_m < 4; ++input_x_rf_m)
    ldmatrix_x4(&input_x_rf[input_x_rf_m * 8], input_x_sh_source + input_x_rf_m * 16 * 64);
  const unsigned input_w_sh_source = shared_address(input_w_sh) + lane % 16 * 256 + input_warp_n / 2 * 128;
  const int input_w_sh_swizzle = lane % 8 * 16;
  // B to input_w_rf: Move(16,32)(SH,RF)(Warp)
#pragma unroll
  for (int input_w_rf_n = 0; input_w_rf_n < 2; ++input_w_rf_n) {
    ldmatrix_x4_trans(
        &input_w_rf[input_w_rf_n * 8],
        input_w_sh_source + (input_w_sh_swizzle ^ (input_warp_n % 2 * 64 + input_w_rf_n * 32 + lane / 16 * 16)));
  }
  const unsigned input_x_sh_source2 =
      shared_address(input_x_sh) + input_warp_m * 64 * 64 + lane % 16 * 64
          + ((lane / 16 * 16 + 32) ^ (lane / 2 % 4 * 16));
  for (int input_k = 0; input_k < 2; ++input_k) {
    // MatMul(64,32,32)(SH,SH,RF)(Warp)
    // A to input_x_rf: Move(64,16)(SH,RF)(Warp)
#pragma unroll
    for (int input_x_rf_m = 0; input_x_rf_m < 4; ++input_x_rf_m) {
      ldmatrix_x4(
          &input_x_rf[input_x_rf_m * 8 + 32], input_x_sh_source2 + input_k * input_x_sh_bytes + input_x_rf_m * 16 * 64);
    }
    // B to input_w_rf: Move(16,32)(SH,RF)(Warp)
#pragma unroll
    for (int input_w_rf_n = 0; input_w_rf_n < 2; ++input_w_rf_n) {
      ldmatrix_x4_trans(
          &input_w_rf[input_w_rf_n * 8 + 16],
          input_w_sh_source + input_k * input_w_sh_bytes
              + (input_w_sh_swizzle ^ (input_warp_n % 2 * 64 + input_w_rf_n * 32 + lane / 16 * 16)) + 16 * 256);
    }
#pragma unroll
    for (int input_m = 0; input_m < 4; ++input_m) {
#pragma unroll
      for (int input_n = 0; input_n < 2; ++input_n) {
#pragma unroll
        for (int input_n2 = 0; input_n2 < 2; ++input_n2) {
          mma_m16n8k16_f32_f16(
              &acc[input_n * 32 + input_n2 * 16 + input_m * 4],
              &input_x_rf[input_m * 8],
              &input_w_rf[input_n * 8 + input_n2 * 4]);
        }
      }
    }
    // A to input_x_rf: Move(64,16)(SH,RF)(Warp)
    if (input_k + 1 < 2) {
#pragma unroll
      for (int input_x_rf_m = 0; input_x_rf_m < 4; ++input_x_rf_m)
        ldmatrix_x4(&input_x_rf[input_x_rf_m * 8], input_x_sh_source + input_x_rf_m * 16 * 64 + input_x_sh_bytes);
      // B to input_w_rf: Move(16,32)(SH,RF)(Warp)
#pragma unroll
      for (int input_w_rf_n = 0; input_w_rf_n < 2; ++input_w_rf_n) {
        ldmatrix_x4_trans(
            &input_w_rf[input_w_rf_n * 8],
            input_w_sh_source + (input_w_sh_swizzle ^ (input_warp_n % 2 * 64 + input_w_rf_n * 32 + lane / 16 * 16))
                + input_w_sh_bytes);
      }
    }
#pragma unroll
    for (int input_m = 0; input_m < 4; ++input_m) {
#pragma unroll
      for (int input_n = 0; input_n < 2; ++input_n) {
#pragma unroll
        for (int input_n2 = 0; input_n2 < 2; ++input_n2) {
          mma_m16n8k16_f32_f16(
              &acc[input_n * 32 + input_n2 * 16 + input_m * 4],
              &input_x_rf[input_m * 8 + 32],
              &input_w_rf[input_n * 8 + input_n2 * 4 + 16]);
        }
      }
    }
  }
  __syncthreads();  // input_x_sh, input_w_sh free again
  const unsigned hidden_h_sh_target =
      shared_address(hidden_h_sh) + hidden_h_sh_thread_m * 64
          + ((hidden_h_sh_thread_k * 16) ^ (hidden_h_sh_thread_m / 2 % 4 * 16));
  const __half* const h_source = H + hidden_h_sh_thread_m * 40 + hidden_h_sh_thread_k * 8;
  const unsigned hidden_r_sh_target =
      shared_address(hidden_r_sh) + hidden_r_sh_thread_k * 256 + hidden_r_sh_thread_n / 8 * 128
          + ((hidden_r_sh_thread_k % 8 * 16) ^ (hidden_r_sh_thread_n % 8 * 16));
  const __half* const r_source = R + hidden_r_sh_thread_k * 48 + hidden_r_sh_thread_n * 8;
  // hidden: acc[m,n] += sum(k, H[m,k] * R[k,n])
  // prologue: loads of the first 3 iterations of hidden_k
#pragma unroll
  for (int hidden_k_ahead = 0; hidden_k_ahead < 3; ++hidden_k_ahead) {
    // A to hidden_h_sh: Move(128,32)(GL,SH)(Block)
    if (hidden_k_ahead < 2) {
#pragma unroll
      for (int hidden_h_sh_m = 0; hidden_h_sh_m < 2; ++hidden_h_sh_m) {
        cp_async_16_zfill(
            hidden_h_sh_target + hidden_k_ahead * hidden_h_sh_bytes + hidden_h_sh_m * 64 * 64,
            &h_source[hidden_h_sh_m * 64 * 40 + hidden_k_ahead * 32],
            hidden_h_sh_m * 64 + hidden_h_sh_thread_m < 40 && hidden_k_ahead * 32 + hidden_h_sh_thread_k * 8 < 40);
      }
      // B to hidden_r_sh: Move(32,128)(GL,SH)(Block)
#pragma unroll
      for (int hidden_r_sh_k = 0; hidden_r_sh_k < 2; ++hidden_r_sh_k) {
        cp_async_16_zfill(
            hidden_r_sh_target + hidden_k_ahead * hidden_r_sh_bytes + hidden_r_sh_k * 16 * 256,
            &r_source[hidden_k_ahead * 32 * 48 + hidden_r_sh_k * 16 * 48],
            hidden_k_ahead * 32 + hidden_r_sh_k * 16 + hidden_r_sh_thread_k < 40 && hidden_r_sh_thread_n * 8 < 48);
      }
    }
    cp_async_commit_group();
  }
  cp_async_wait_group<1>();  // input_x_sh, input_w_sh, hidden_h_sh, hidden_r_sh have arrived
  __syncthreads();  // hidden_h_sh, hidden_r_sh complete
  const unsigned hidden_h_sh_source =
      shared_address(hidden_h_sh) + hidden_warp_m * 64 * 64 + lane % 16 * 64 + ((lane / 16 * 16) ^ (lane / 2 % 4 * 16));
  // A to hidden_h_rf: Move(64,16)(SH,RF)(Warp)
#pragma unroll
  for (int hidden_h_rf_m = 0; hidden_h_rf_m < 4; ++hidden_h_rf_m)
    ldmatrix_x4(&hidden_h_rf[hidden_h_rf_m * 8], hidden_h_sh_source + hidden_h_rf_m * 16 * 64);
  const unsigned hidden_r_sh_source = shared_address(hidden_r_sh) + lane % 16 * 256 + hidden_warp_n / 2 * 128;
  // B to hidden_r_rf: Move(16,32)(SH,RF)(Warp)
#pragma unroll
  for (int hidden_r_rf_n = 0; hidden_r_rf_n < 2; ++hidden_r_rf_n) {
    ldmatrix_x4_trans(
        &hidden_r_rf[hidden_r_rf_n * 8],
        hidden_r_sh_source + ((hidden_warp_n % 2 * 64 + hidden_r_rf_n * 32 + lane / 16 * 16) ^ input_w_sh_swizzle));
  }
  const unsigned hidden_h_sh_source2 =
      shared_address(hidden_h_sh) + hidden_warp_m * 64 * 64 + lane % 16 * 64
          + ((lane / 16 * 16 + 32) ^ (lane / 2 % 4 * 16));
  for (int hidden_k = 0; hidden_k < 2; ++hidden_k) {
    // MatMul(64,32,32)(SH,SH,RF)(Warp)
    // A to hidden_h_rf: Move(64,16)(SH,RF)(Warp)
#pragma unroll
    for (int hidden_h_rf_m = 0; hidden_h_rf_m < 4; ++hidden_h_rf_m) {
      ldmatrix_x4(
          &hidden_h_rf[hidden_h_rf_m * 8 + 32],
          hidden_h_sh_source2 + hidden_k * hidden_h_sh_bytes + hidden_h_rf_m * 16 * 64);
    }
    // B to hidden_r_rf: Move(16,32)(SH,RF)(Warp)
#pragma unroll
    for (int hidden_r_rf_n = 0; hidden_r_rf_n < 2; ++hidden_r_rf_n) {
      ldmatrix_x4_trans(
          &hidden_r_rf[hidden_r_rf_n * 8 + 16],
          hidden_r_sh_source + hidden_k * hidden_r_sh_bytes
              + ((hidden_warp_n % 2 * 64 + hidden_r_rf_n * 32 + lane / 16 * 16) ^ input_w_sh_swizzle) + 16 * 256);
    }
#pragma unroll
    for (int hidden_m = 0; hidden_m < 4; ++hidden_m) {
#pragma unroll
      for (int hidden_n = 0; hidden_n < 2; ++hidden_n) {
#pragma unroll
        for (int hidden_n2 = 0; hidden_n2 < 2; ++hidden_n2) {
          mma_m16n8k16_f32_f16(
              &acc[hidden_n * 32 + hidden_n2 * 16 + hidden_m * 4],
              &hidden_h_rf[hidden_m * 8],
              &hidden_r_rf[hidden_n * 8 + hidden_n2 * 4]);
        }
      }
    }
    // A to hidden_h_rf: Move(64,16)(SH,RF)(Warp)
    if (hidden_k + 1 < 2) {
#pragma unroll
      for (int hidden_h_rf_m = 0; hidden_h_rf_m < 4; ++hidden_h_rf_m)
        ldmatrix_x4(&hidden_h_rf[hidden_h_rf_m * 8], hidden_h_sh_source + hidden_h_rf_m * 16 * 64 + hidden_h_sh_bytes);
      // B to hidden_r_rf: Move(16,32)(SH,RF)(Warp)
#pragma unroll
      for (int hidden_r_rf_n = 0; hidden_r_rf_n < 2; ++hidden_r_rf_n) {
        ldmatrix_x4_trans(
            &hidden_r_rf[hidden_r_rf_n * 8],
            hidden_r_sh_source + ((hidden_warp_n % 2 * 64 + hidden_r_rf_n * 32 + lane / 16 * 16) ^ input_w_sh_swizzle)
                + hidden_r_sh_bytes);
      }
    }
#pragma unroll
    for (int hidden_m = 0; hidden_m < 4; ++hidden_m) {
#pragma unroll
      for (int hidden_n = 0; hidden_n < 2; ++hidden_n) {
#pragma unroll
        for (int hidden_n2 = 0; hidden_n2 < 2; ++hidden_n2) {
          mma_m16n8k16_f32_f16(
              &acc[hidden_n * 32 + hidden_n2 * 16 + hidden_m * 4],
              &hidden_h_rf[hidden_m * 8 + 32],
              &hidden_r_rf[hidden_n * 8 + hidden_n2 * 4 + 16]);
        }
      }
    }
  }
  const __half* const bias_source = bias + input_warp_n * 32 + lane % 4 * 2;
  // act: acc[m,n] = relu(acc[m,n] + bias[n])
  if (input_warp_n * 32 + 31 < 48) {
#pragma unroll
    for (int act_m = 0; act_m < 8; ++act_m) {
#pragma unroll
      for (int act_n = 0; act_n < 4; ++act_n) {
        {
          const __half2 bias_pair = *reinterpret_cast<const __half2*>(&bias_source[act_n * 8]);
          acc[act_n * 16 + act_m * 2] = fmaxf(acc[act_n * 16 + act_m * 2] + __half2float(bias_pair.x), 0.0f);
          acc[act_n * 16 + act_m * 2 + 1] = fmaxf(acc[act_n * 16 + act_m * 2 + 1] + __half2float(bias_pair.y), 0.0f);
        }
      }
    }
  } else {
#pragma unroll
    for (int act_m = 0; act_m < 8; ++act_m) {
#pragma unroll
      for (int act_n = 0; act_n < 4; ++act_n) {
        {
          __align__(4) __half bias_values[2];
          *reinterpret_cast<unsigned int*>(&bias_values[0]) =
              input_warp_n * 32 + act_n * 8 + lane % 4 * 2 < 48
                  ? *reinterpret_cast<const unsigned int*>(&bias_source[act_n * 8])
                  : 0;
          acc[act_n * 16 + act_m * 2] = fmaxf(acc[act_n * 16 + act_m * 2] + __half2float(bias_values[0]), 0.0f);
          acc[act_n * 16 + act_m * 2 + 1] = fmaxf(acc[act_n * 16 + act_m * 2 + 1] + __half2float(bias_values[1]), 0.0f);
        }
      }
    }
  }
  __syncthreads();  // hidden_h_sh free again
  __half* const store_acc_sh_target =
      store_acc_sh + store_acc_sh_warp_m * 64 * 128 + lane / 4 * 128 + store_acc_sh_warp_n / 2 * 64 + lane % 4 * 2;
  const int store_acc_sh_swizzle = lane / 4 * 8;
  // store: D[m,n] = acc[m,n]
  // src to store_acc_sh: Move(128,128)(RF,SH)(Block)
#pragma unroll
  for (int store_acc_sh_m = 0; store_acc_sh_m < 4; ++store_acc_sh_m) {
#pragma unroll
    for (int store_acc_sh_n = 0; store_acc_sh_n < 4; ++store_acc_sh_n) {
      {
        __align__(4) __half piece[2];
        piece[0] = __float2half_rn(acc[store_acc_sh_n * 16 + store_acc_sh_m * 4]);
        piece[1] = __float2half_rn(acc[store_acc_sh_n * 16 + store_acc_sh_m * 4 + 1]);
        *reinterpret_cast<unsigned int*>(
            &store_acc_sh_target[store_acc_sh_m * 16 * 128
                + (store_acc_sh_swizzle ^ (store_acc_sh_warp_n % 2 * 32 + store_acc_sh_n * 8))]) =
            *reinterpret_cast<const unsigned int*>(&piece[0]);
      }
      {
        __align__(4) __half piece[2];
        piece[0] = __float2half_rn(acc[store_acc_sh_n * 16 + store_acc_sh_m * 4 + 2]);
        piece[1] = __float2half_rn(acc[store_acc_sh_n * 16 + store_acc_sh_m * 4 + 3]);
        *reinterpret_cast<unsigned int*>(
            &store_acc_sh_target[store_acc_sh_m * 16 * 128
                + (store_acc_sh_swizzle ^ (store_acc_sh_warp_n % 2 * 32 + store_acc_sh_n * 8)) + 8 * 128]) =
            *reinterpret_cast<const unsigned int*>(&piece[0]);
      }
    }
  }
  __syncthreads();  // store_acc_sh complete
  __half* const d_target = D + store_thread_m * 48 + store_thread_n * 8;
  __half* const store_acc_sh_source =
      store_acc_sh + store_thread_m * 128 + store_thread_n / 8 * 64
          + ((store_thread_m % 8 * 8) ^ (store_thread_n % 8 * 8));
  if (store_thread_n * 8 < 48) {
#pragma unroll
    for (int store_m = 0; store_m < 8; ++store_m) {
      if (store_m * 16 + store_thread_m < 40) {
        *reinterpret_cast<uint4*>(&d_target[store_m * 16 * 48]) =
            *reinterpret_cast<const uint4*>(&store_acc_sh_source[store_m * 16 * 128]);
      }
    }
  }
}
