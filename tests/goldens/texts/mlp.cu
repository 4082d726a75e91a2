// mlp(40,48,48,2)(GL,GL,GL,GL)(Kernel) with X, W, bias, Y float16 RowMajor
//   .tile(m=128).to(Block)
//   .set_memory(tensor='h', memory=SH, pad=8)
//   .step("start", AnySpec.coalesced_copy(8).done())
//   .split(l=1).pipeline(2)
//   .load('W', SH, Move.coalesced_copy(8).done()).swizzle_storage()
//   .load('bias', SH, Move.coalesced_copy(8).done())
//   .step("product", AnySpec.tile(32, 16).to(Warp).split(16).unroll().load(A, RF, Move.done()).load(B, RF,
//     Move.done()).tile(16, 16).unroll().mma_tile().done())
//   .load('bias', RF, Move.done())
//   .step("store", AnySpec.coalesced_copy(8).done())
//   .done()
// target sm_90; launch <<<1, 384>>>, 23744 bytes of static shared memory
#include <cuda_fp16.h>

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

extern "C" __global__ void __launch_bounds__(384)
mlp(const __half* __restrict__ X, const __half* __restrict__ W, const __half* __restrict__ bias, __half* __restrict__ Y)
{
  constexpr int w_sh_bytes = 48 * 48 * 2;
  constexpr int bias_sh_bytes = 48 * 2;
  const int thread = threadIdx.x;
  const int start_thread_k = threadIdx.x % 6;
  const int start_thread_m = threadIdx.x / 6;
  const int warp = threadIdx.x / 32;
  const int product_warp_n = warp % 3;
  const int product_warp_m = warp / 3;
  const int lane = threadIdx.x % 32;
  const int bias_sh_thread_tile = threadIdx.x;
  const int w_sh_thread_tile = threadIdx.x;
  const int w_sh_thread_n = w_sh_thread_tile % 6;
  const int w_sh_thread_k = w_sh_thread_tile / 6;
  const int store_thread_n = threadIdx.x % 6;
  const int store_thread_m = threadIdx.x / 6;
  __shared__ __align__(16) __half h[7168];  // 128 x 48
  __shared__ __align__(16) __half w_sh[4608];  // 48 x 48, 2 copies
  __shared__ __align__(16) __half bias_sh[96];  // 48, 2 copies
  __align__(4) __half bias_rf[4];  // of 48
  float acc[16];  // of 128 x 48
  __align__(4) __half product_h_rf[16];  // of 32 x 16
  __align__(4) __half product_w_rf[8];  // of 16 x 16
  __half* const h_target = h + start_thread_m * 56 + start_thread_k * 8;
  const __half* const x_source = X + start_thread_m * 48 + start_thread_k * 8;
  // start: h[m,k] = X[m,k]
#pragma unroll
  for (int start_m = 0; start_m < 2; ++start_m) {
    *reinterpret_cast<uint4*>(&h_target[start_m * 64 * 56]) =
        start_m * 64 + start_thread_m < 40
            ? *reinterpret_cast<const uint4*>(&x_source[start_m * 64 * 48])
            : make_uint4(0u, 0u, 0u, 0u);
  }
  const unsigned w_sh_target =
      shared_address(w_sh) + w_sh_thread_k * 96 + w_sh_thread_n / 2 * 32
          + (((w_sh_thread_k * 6 + w_sh_thread_n) / 8 % 2 * 16) ^ (w_sh_thread_n % 2 * 16));
  const __half* const w_source = W + w_sh_thread_k * 48 + w_sh_thread_n * 8;
  // prologue: loads of the first iteration of l
  // W to w_sh: Move(48,48)(GL,SH)(Block)
  if (thread < 288)
    cp_async_16(w_sh_target, w_source);
  const unsigned bias_sh_address = shared_address(bias_sh);
  // bias to bias_sh: Move(48)(GL,SH)(Block)
  if (thread < 6)
    cp_async_16(bias_sh_address + bias_sh_thread_tile * 16, &bias[bias_sh_thread_tile * 8]);
  cp_async_commit_group();
  const unsigned h_source = shared_address(h) + product_warp_m * 32 * 112 + lane % 16 * 112 + lane / 16 * 16;
  const unsigned w_sh_source =
      shared_address(w_sh) + lane % 16 * 96 + product_warp_n * 32
          + (((lane % 16 * 3 + product_warp_n) / 4 % 2 * 16) ^ (lane / 16 * 16));
  for (int l = 0; l < 2; ++l) {
    cp_async_wait_group<0>();  // w_sh, bias_sh have arrived
    __syncthreads();  // h complete
    // W to w_sh: Move(48,48)(GL,SH)(Block)
    if (l + 1 < 2) {
      if (thread < 288)
        cp_async_16(w_sh_target + w_sh_bytes, &w_source[2304]);
      // bias to bias_sh: Move(48)(GL,SH)(Block)
      if (thread < 6)
        cp_async_16(bias_sh_address + bias_sh_thread_tile * 16 + bias_sh_bytes, &bias[bias_sh_thread_tile * 8 + 48]);
    }
    cp_async_commit_group();
    // bias to bias_rf: Move(48)(SH,RF)(Block)
    *reinterpret_cast<unsigned int*>(bias_rf) =
        *reinterpret_cast<const unsigned int*>(&bias_sh[l * 48 + product_warp_n * 16 + lane % 4 * 2]);
    *reinterpret_cast<unsigned int*>(&bias_rf[2]) =
        *reinterpret_cast<const unsigned int*>(&bias_sh[l * 48 + product_warp_n * 16 + lane % 4 * 2 + 8]);
    // product: acc[m,n] = sum(k, h[m,k] * W[l,k,n])
#pragma unroll
    for (int product_init_m = 0; product_init_m < 2; ++product_init_m) {
#pragma unroll
      for (int product_init_n = 0; product_init_n < 2; ++product_init_n) {
        acc[product_init_n * 8 + product_init_m * 4] = 0.0f;
        acc[product_init_n * 8 + product_init_m * 4 + 1] = 0.0f;
        acc[product_init_n * 8 + product_init_m * 4 + 2] = 0.0f;
        acc[product_init_n * 8 + product_init_m * 4 + 3] = 0.0f;
      }
    }
    // MatMul(32,16,48)(SH,SH,RF)(Warp)
#pragma unroll
    for (int product_k = 0; product_k < 3; ++product_k) {
      // A to product_h_rf: Move(32,16)(SH,RF)(Warp)
#pragma unroll
      for (int product_h_rf_m = 0; product_h_rf_m < 2; ++product_h_rf_m)
        ldmatrix_x4(&product_h_rf[product_h_rf_m * 8], h_source + product_h_rf_m * 16 * 112 + product_k * 32);
      // B to product_w_rf: Move(16,16)(SH,RF)(Warp)
      ldmatrix_x4_trans(product_w_rf, w_sh_source + l * w_sh_bytes + product_k * 16 * 96);
#pragma unroll
      for (int product_m = 0; product_m < 2; ++product_m) {
#pragma unroll
        for (int product_n = 0; product_n < 2; ++product_n) {
          mma_m16n8k16_f32_f16(
              &acc[product_n * 8 + product_m * 4], &product_h_rf[product_m * 8], &product_w_rf[product_n * 4]);
        }
      }
    }
    // act: acc[m,n] = relu(acc[m,n] + bias[l,n])
#pragma unroll
    for (int act_m = 0; act_m < 4; ++act_m) {
#pragma unroll
      for (int act_n = 0; act_n < 2; ++act_n) {
#pragma unroll
        for (int act_n2 = 0; act_n2 < 2; ++act_n2) {
          acc[act_n * 8 + act_m * 2 + act_n2] =
              fmaxf(acc[act_n * 8 + act_m * 2 + act_n2] + __half2float(bias_rf[act_n * 2 + act_n2]), 0.0f);
        }
      }
    }
    __syncthreads();  // w_sh, bias_sh complete and free again; h free again
    // keep: h[m,n] = acc[m,n]
#pragma unroll
    for (int keep_m = 0; keep_m < 2; ++keep_m) {
#pragma unroll
      for (int keep_n = 0; keep_n < 2; ++keep_n) {
        {
          __align__(4) __half piece[2];
          piece[0] = __float2half_rn(acc[keep_n * 8 + keep_m * 4]);
          piece[1] = __float2half_rn(acc[keep_n * 8 + keep_m * 4 + 1]);
          *reinterpret_cast<unsigned int*>(
              &h[product_warp_m * 32 * 56 + keep_m * 16 * 56 + lane / 4 * 56 + product_warp_n * 16 + keep_n * 8
                  + lane % 4 * 2]) =
              *reinterpret_cast<const unsigned int*>(&piece[0]);
        }
        {
          __align__(4) __half piece[2];
          piece[0] = __float2half_rn(acc[keep_n * 8 + keep_m * 4 + 2]);
          piece[1] = __float2half_rn(acc[keep_n * 8 + keep_m * 4 + 3]);
          *reinterpret_cast<unsigned int*>(
              &h[product_warp_m * 32 * 56 + keep_m * 16 * 56 + lane / 4 * 56 + product_warp_n * 16 + keep_n * 8
                  + lane % 4 * 2 + 8 * 56]) =
              *reinterpret_cast<const unsigned int*>(&piece[0]);
        }
      }
    }
  }
  __syncthreads();  // h complete
  __half* const y_target = Y + store_thread_m * 48 + store_thread_n * 8;
  __half* const h_source2 = h + store_thread_m * 56 + store_thread_n * 8;
  // store: Y[m,n] = h[m,n]
#pragma unroll
  for (int store_m = 0; store_m < 2; ++store_m) {
    if (store_m * 64 + store_thread_m < 40) {
      *reinterpret_cast<uint4*>(&y_target[store_m * 64 * 48]) =
          *reinterpret_cast<const uint4*>(&h_source2[store_m * 64 * 56]);
    }
  }
}
