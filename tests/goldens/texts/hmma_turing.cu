// MatMul(40,48,40)(GL,GL,GL)(Kernel) with A, B, C float16 RowMajor
//   .tile(128, 128).to(Block).rasterize(group_m=8)
//   .epilog(RF, float32, Init.tile(64, 64).to(Warp).done(), Move.load('src', SH, Move.tile(64,
//     64).to(Warp).done()).cast_on_copy().pad(8).reuse_buffer().coalesced_copy(8).done())
//   .split(32).pipeline(2)
//   .load(A, SH, Move.coalesced_copy(8).done()).swizzle_storage()
//   .load(B, SH, Move.coalesced_copy(8).done()).swizzle_storage()
//   .tile(64, 64).to(Warp)
//   .split(16).pipeline(2).unroll()
//   .load(A, RF, Move.done())
//   .load(B, RF, Move.done())
//   .tile(16, 16).unroll()
//   .mma_tile(HMMA_1688_F32)
//   .done()
// target sm_90; launch <<<1, 128>>>, 34816 bytes of dynamic shared memory
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

// c += a * b: m16n8k8 of a warp
__device__ __forceinline__ void mma_m16n8k8_f32_f16(float* c, const __half* a, const __half* b)
{
  const unsigned* const a_words = reinterpret_cast<const unsigned*>(a);
  const unsigned* const b_words = reinterpret_cast<const unsigned*>(b);
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a_words[0]), "r"(a_words[1]), "r"(b_words[0]));
}

extern "C" __global__ void __launch_bounds__(128)
matmul(const __half* __restrict__ A, const __half* __restrict__ B, __half* __restrict__ C)
{
  constexpr int a_sh_bytes = 128 * 32 * 2;
  constexpr int b_sh_bytes = 32 * 128 * 2;
  constexpr int b_sh_offset = 2 * a_sh_bytes;
  const int warp = threadIdx.x / 32;
  const int warp_n = warp % 2;
  const int warp_m = warp / 2;
  const int lane = threadIdx.x % 32;
  const int b_sh_thread_n = threadIdx.x % 16;
  const int b_sh_thread_k = threadIdx.x / 16;
  const int a_sh_thread_k = threadIdx.x % 4;
  const int a_sh_thread_m = threadIdx.x / 4;
  const int store_thread_n = threadIdx.x % 16;
  const int store_thread_m = threadIdx.x / 16;
  extern __shared__ __align__(16) unsigned char smem[];
  __half* const a_sh = reinterpret_cast<__half*>(smem);  // 128 x 32, 2 copies
  __half* const b_sh = reinterpret_cast<__half*>(smem + b_sh_offset);  // 32 x 128, 2 copies
  __half* const store_c_sh = reinterpret_cast<__half*>(smem);  // 128 x 128
  float c_rf[128];  // of 128 x 128
  __align__(4) __half a_rf[64];  // of 64 x 16, 2 stages
  __align__(4) __half b_rf[64];  // of 16 x 64, 2 stages
  // c_rf: Init(128,128)(RF)(Block)
#pragma unroll
  for (int init_m = 0; init_m < 4; ++init_m) {
#pragma unroll
    for (int init_n = 0; init_n < 8; ++init_n) {
      c_rf[init_n * 16 + init_m * 4] = 0.0f;
      c_rf[init_n * 16 + init_m * 4 + 1] = 0.0f;
      c_rf[init_n * 16 + init_m * 4 + 2] = 0.0f;
      c_rf[init_n * 16 + init_m * 4 + 3] = 0.0f;
    }
  }
  const unsigned a_sh_target =
      shared_address(a_sh) + a_sh_thread_m * 64 + ((a_sh_thread_k * 16) ^ (a_sh_thread_m / 2 % 4 * 16));
  const __half* const a_source = A + a_sh_thread_m * 40 + a_sh_thread_k * 8;
  // prologue: loads of the first iteration of k
  // A to a_sh: Move(128,32)(GL,SH)(Block)
#pragma unroll
  for (int a_sh_m = 0; a_sh_m < 4; ++a_sh_m)
    cp_async_16_zfill(a_sh_target + a_sh_m * 32 * 64, &a_source[a_sh_m * 32 * 40], a_sh_m * 32 + a_sh_thread_m < 40);
  const unsigned b_sh_target =
      shared_address(b_sh) + b_sh_thread_k * 256 + b_sh_thread_n / 8 * 128
          + ((b_sh_thread_k * 16) ^ (b_sh_thread_n % 8 * 16));
  const __half* const b_source = B + b_sh_thread_k * 48 + b_sh_thread_n * 8;
  // B to b_sh: Move(32,128)(GL,SH)(Block)
#pragma unroll
  for (int b_sh_k = 0; b_sh_k < 4; ++b_sh_k)
    cp_async_16_zfill(b_sh_target + b_sh_k * 8 * 256, &b_source[b_sh_k * 8 * 48], b_sh_thread_n * 8 < 48);
  cp_async_commit_group();
  cp_async_wait_group<0>();  // a_sh, b_sh have arrived
  __syncthreads();  // a_sh, b_sh complete
  const unsigned a_sh_source =
      shared_address(a_sh) + warp_m * 64 * 64 + lane % 16 * 64 + ((lane / 16 * 16) ^ (lane / 2 % 4 * 16));
  // A to a_rf: Move(64,16)(SH,RF)(Warp)
#pragma unroll
  for (int a_rf_m = 0; a_rf_m < 4; ++a_rf_m)
    ldmatrix_x4(&a_rf[a_rf_m * 8], a_sh_source + a_rf_m * 16 * 64);
  const unsigned b_sh_source = shared_address(b_sh) + lane % 16 * 256 + warp_n * 128;
  const int b_sh_swizzle = lane % 8 * 16;
  // B to b_rf: Move(16,64)(SH,RF)(Warp)
#pragma unroll
  for (int b_rf_n = 0; b_rf_n < 4; ++b_rf_n) {
    {
      __align__(4) __half b_rf_values[8];
      ldmatrix_x4_trans(b_rf_values, b_sh_source + ((b_rf_n * 32 + lane / 16 * 16) ^ b_sh_swizzle));
      b_rf[b_rf_n * 4] = b_rf_values[0];
      b_rf[b_rf_n * 4 + 1] = b_rf_values[1];
      b_rf[b_rf_n * 4 + 16] = b_rf_values[2];
      b_rf[b_rf_n * 4 + 17] = b_rf_values[3];
      b_rf[b_rf_n * 4 + 2] = b_rf_values[4];
      b_rf[b_rf_n * 4 + 3] = b_rf_values[5];
      b_rf[b_rf_n * 4 + 18] = b_rf_values[6];
      b_rf[b_rf_n * 4 + 19] = b_rf_values[7];
    }
  }
  const unsigned a_sh_source2 =
      shared_address(a_sh) + warp_m * 64 * 64 + lane % 16 * 64 + ((lane / 16 * 16 + 32) ^ (lane / 2 % 4 * 16));
  for (int k = 0; k < 2; ++k) {
    // A to a_sh: Move(128,32)(GL,SH)(Block)
    if (k + 1 < 2) {
#pragma unroll
      for (int a_sh_m = 0; a_sh_m < 4; ++a_sh_m) {
        cp_async_16_zfill(
            a_sh_target + a_sh_m * 32 * 64 + a_sh_bytes,
            &a_source[a_sh_m * 32 * 40 + 32],
            a_sh_m * 32 + a_sh_thread_m < 40 && a_sh_thread_k * 8 + 32 < 40);
      }
      // B to b_sh: Move(32,128)(GL,SH)(Block)
#pragma unroll
      for (int b_sh_k = 0; b_sh_k < 4; ++b_sh_k) {
        cp_async_16_zfill(
            b_sh_target + b_sh_k * 8 * 256 + b_sh_bytes,
            &b_source[b_sh_k * 8 * 48 + 32 * 48],
            b_sh_k * 8 + b_sh_thread_k + 32 < 40 && b_sh_thread_n * 8 < 48);
      }
    }
    cp_async_commit_group();
    // MatMul(64,64,32)(SH,SH,RF)(Warp)
    // A to a_rf: Move(64,16)(SH,RF)(Warp)
#pragma unroll
    for (int a_rf_m = 0; a_rf_m < 4; ++a_rf_m)
      ldmatrix_x4(&a_rf[a_rf_m * 8 + 32], a_sh_source2 + k * a_sh_bytes + a_rf_m * 16 * 64);
    // B to b_rf: Move(16,64)(SH,RF)(Warp)
#pragma unroll
    for (int b_rf_n = 0; b_rf_n < 4; ++b_rf_n) {
      {
        __align__(4) __half b_rf_values2[8];
        ldmatrix_x4_trans(
            b_rf_values2, b_sh_source + k * b_sh_bytes + ((b_rf_n * 32 + lane / 16 * 16) ^ b_sh_swizzle) + 16 * 256);
        b_rf[b_rf_n * 4 + 32] = b_rf_values2[0];
        b_rf[b_rf_n * 4 + 33] = b_rf_values2[1];
        b_rf[b_rf_n * 4 + 48] = b_rf_values2[2];
        b_rf[b_rf_n * 4 + 49] = b_rf_values2[3];
        b_rf[b_rf_n * 4 + 34] = b_rf_values2[4];
        b_rf[b_rf_n * 4 + 35] = b_rf_values2[5];
        b_rf[b_rf_n * 4 + 50] = b_rf_values2[6];
        b_rf[b_rf_n * 4 + 51] = b_rf_values2[7];
      }
    }
#pragma unroll
    for (int m = 0; m < 4; ++m) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int n2 = 0; n2 < 2; ++n2) {
#pragma unroll
          for (int k3 = 0; k3 < 2; ++k3) {
            mma_m16n8k8_f32_f16(
                &c_rf[n * 32 + n2 * 16 + m * 4], &a_rf[m * 8 + k3 * 4], &b_rf[k3 * 16 + n * 4 + n2 * 2]);
          }
        }
      }
    }
    cp_async_wait_group<0>();  // a_sh, b_sh have arrived
    __syncthreads();  // a_sh, b_sh complete and free again
    // A to a_rf: Move(64,16)(SH,RF)(Warp)
    if (k + 1 < 2) {
#pragma unroll
      for (int a_rf_m = 0; a_rf_m < 4; ++a_rf_m)
        ldmatrix_x4(&a_rf[a_rf_m * 8], a_sh_source + a_rf_m * 16 * 64 + a_sh_bytes);
      // B to b_rf: Move(16,64)(SH,RF)(Warp)
#pragma unroll
      for (int b_rf_n = 0; b_rf_n < 4; ++b_rf_n) {
        {
          __align__(4) __half b_rf_values3[8];
          ldmatrix_x4_trans(b_rf_values3, b_sh_source + ((b_rf_n * 32 + lane / 16 * 16) ^ b_sh_swizzle) + b_sh_bytes);
          b_rf[b_rf_n * 4] = b_rf_values3[0];
          b_rf[b_rf_n * 4 + 1] = b_rf_values3[1];
          b_rf[b_rf_n * 4 + 16] = b_rf_values3[2];
          b_rf[b_rf_n * 4 + 17] = b_rf_values3[3];
          b_rf[b_rf_n * 4 + 2] = b_rf_values3[4];
          b_rf[b_rf_n * 4 + 3] = b_rf_values3[5];
          b_rf[b_rf_n * 4 + 18] = b_rf_values3[6];
          b_rf[b_rf_n * 4 + 19] = b_rf_values3[7];
        }
      }
    }
#pragma unroll
    for (int m = 0; m < 4; ++m) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int n2 = 0; n2 < 2; ++n2) {
#pragma unroll
          for (int k3 = 0; k3 < 2; ++k3) {
            mma_m16n8k8_f32_f16(
                &c_rf[n * 32 + n2 * 16 + m * 4], &a_rf[m * 8 + k3 * 4 + 32], &b_rf[k3 * 16 + n * 4 + n2 * 2 + 32]);
          }
        }
      }
    }
  }
  __half* const store_c_sh_target = store_c_sh + warp_m * 64 * 136 + lane / 4 * 136 + warp_n * 64 + lane % 4 * 2;
  // c_rf to C: Move(128,128)(RF,GL)(Block)
  // src to store_c_sh: Move(128,128)(RF,SH)(Block)
#pragma unroll
  for (int store_c_sh_m = 0; store_c_sh_m < 4; ++store_c_sh_m) {
#pragma unroll
    for (int store_c_sh_n = 0; store_c_sh_n < 8; ++store_c_sh_n) {
      {
        __align__(4) __half piece[2];
        piece[0] = __float2half_rn(c_rf[store_c_sh_n * 16 + store_c_sh_m * 4]);
        piece[1] = __float2half_rn(c_rf[store_c_sh_n * 16 + store_c_sh_m * 4 + 1]);
        *reinterpret_cast<unsigned int*>(&store_c_sh_target[store_c_sh_m * 16 * 136 + store_c_sh_n * 8]) =
            *reinterpret_cast<const unsigned int*>(&piece[0]);
      }
      {
        __align__(4) __half piece[2];
        piece[0] = __float2half_rn(c_rf[store_c_sh_n * 16 + store_c_sh_m * 4 + 2]);
        piece[1] = __float2half_rn(c_rf[store_c_sh_n * 16 + store_c_sh_m * 4 + 3]);
        *reinterpret_cast<unsigned int*>(&store_c_sh_target[store_c_sh_m * 16 * 136 + store_c_sh_n * 8 + 8 * 136]) =
            *reinterpret_cast<const unsigned int*>(&piece[0]);
      }
    }
  }
  __syncthreads();  // store_c_sh complete
  __half* const c_target = C + store_thread_m * 48 + store_thread_n * 8;
  __half* const store_c_sh_source = store_c_sh + store_thread_m * 136 + store_thread_n * 8;
  if (store_thread_n * 8 < 48) {
#pragma unroll
    for (int store_m = 0; store_m < 16; ++store_m) {
      if (store_m * 8 + store_thread_m < 40) {
        *reinterpret_cast<uint4*>(&c_target[store_m * 8 * 48]) =
            *reinterpret_cast<const uint4*>(&store_c_sh_source[store_m * 8 * 136]);
      }
    }
  }
}
