// MatMul(40,48,40)(GL,GL,GL)(Kernel) with A, B, C float16 RowMajor
//   .tile(128, 128).to(Block).rasterize(group_m=8)
//   .epilog(RF, float32, Init.tile(64, 64).to(Warp).tile(16, 16).unroll().tile(8, 8).to(QuadPair).done(),
//     Move.load('src', SH, Move.tile(64, 64).to(Warp).tile(16, 16).unroll().tile(8,
//     8).to(QuadPair).done()).cast_on_copy().pad(8).reuse_buffer().coalesced_copy(8).done())
//   .split(32).pipeline(2)
//   .load(A, SH, Move.coalesced_copy(8).done()).swizzle_storage()
//   .load(B, SH, Move.coalesced_copy(8).done()).swizzle_storage()
//   .tile(64, 64).to(Warp)
//   .split(16).unroll()
//   .tile(16, 16).unroll()
//   .mma_tile(HMMA_884_F32_TN)
//   .load(A, RF, Move.done())
//   .load(B, RF, Move.done())
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

// c += a * b: m8n8k4 of a quadpair
__device__ __forceinline__ void mma_m8n8k4_row_row_f32_f16(float* c, const __half* a, const __half* b)
{
  const unsigned* const a_words = reinterpret_cast<const unsigned*>(a);
  const unsigned* const b_words = reinterpret_cast<const unsigned*>(b);
  asm volatile("mma.sync.aligned.m8n8k4.row.row.f32.f16.f16.f32 "
      "{%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9}, {%10, %11}, {%0, %1, %2, %3, %4, %5, %6, %7};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7])
      : "r"(a_words[0]), "r"(a_words[1]), "r"(b_words[0]), "r"(b_words[1]));
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
  const int quadpair = threadIdx.x / 4 % 4;
  const int quadpair_n = quadpair % 2;
  const int quadpair_m = quadpair / 2;
  const int quadpair_lane = threadIdx.x / 16 % 2 * 4 + threadIdx.x % 4;
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
  __align__(8) __half a_rf[4];  // of 8 x 4
  __align__(8) __half b_rf[4];  // of 4 x 8
  // c_rf: Init(128,128)(RF)(Block)
#pragma unroll
  for (int init_m = 0; init_m < 4; ++init_m) {
#pragma unroll
    for (int init_n = 0; init_n < 4; ++init_n) {
      c_rf[init_n * 32 + init_m * 8] = 0.0f;
      c_rf[init_n * 32 + init_m * 8 + 1] = 0.0f;
      c_rf[init_n * 32 + init_m * 8 + 2] = 0.0f;
      c_rf[init_n * 32 + init_m * 8 + 3] = 0.0f;
      c_rf[init_n * 32 + init_m * 8 + 4] = 0.0f;
      c_rf[init_n * 32 + init_m * 8 + 5] = 0.0f;
      c_rf[init_n * 32 + init_m * 8 + 6] = 0.0f;
      c_rf[init_n * 32 + init_m * 8 + 7] = 0.0f;
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
  const int a_sh_swizzle = quadpair_lane / 2 * 8;
  for (int k = 0; k < 2; ++k) {
    cp_async_wait_group<0>();  // a_sh, b_sh have arrived
    __syncthreads();  // a_sh, b_sh complete and free again
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
#pragma unroll
    for (int k2 = 0; k2 < 2; ++k2) {
#pragma unroll
      for (int m = 0; m < 4; ++m) {
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          // MatMul(8,8,16)(SH,SH,RF)(QuadPair)
#pragma unroll
          for (int k3 = 0; k3 < 4; ++k3) {
            // A to a_rf: Move(8,4)(SH,RF)(QuadPair)
            *reinterpret_cast<uint2*>(a_rf) =
                *reinterpret_cast<const uint2*>(
                    &a_sh[k * 128 * 32 + warp_m * 64 * 32 + m * 16 * 32 + quadpair_m * 8 * 32 + quadpair_lane * 32
                        + (a_sh_swizzle ^ (k2 * 16 + k3 / 2 * 8)) + k3 % 2 * 4]);
            // B to b_rf: Move(4,8)(SH,RF)(QuadPair)
            *reinterpret_cast<uint2*>(b_rf) =
                *reinterpret_cast<const uint2*>(
                    &b_sh[k * 32 * 128 + k2 * 16 * 128 + k3 * 4 * 128 + quadpair_lane % 4 * 128 + warp_n * 64
                        + ((k3 % 2 * 32 + quadpair_lane % 4 * 8) ^ (n * 16 + quadpair_n * 8)) + quadpair_lane / 4 * 4]);
            mma_m8n8k4_row_row_f32_f16(&c_rf[n * 32 + m * 8], a_rf, b_rf);
          }
        }
      }
    }
  }
  __syncthreads();  // b_sh, a_sh free again
  __half* const store_c_sh_target =
      store_c_sh + warp_m * 64 * 136 + quadpair_m * 8 * 136 + quadpair_lane / 4 * 4 * 136 + quadpair_lane % 2 * 136
          + warp_n * 64 + quadpair_n * 8 + quadpair_lane / 2 % 2 * 2;
  // c_rf to C: Move(128,128)(RF,GL)(Block)
  // src to store_c_sh: Move(128,128)(RF,SH)(Block)
#pragma unroll
  for (int store_c_sh_m = 0; store_c_sh_m < 4; ++store_c_sh_m) {
#pragma unroll
    for (int store_c_sh_n = 0; store_c_sh_n < 4; ++store_c_sh_n) {
      {
        __align__(4) __half piece[2];
        piece[0] = __float2half_rn(c_rf[store_c_sh_n * 32 + store_c_sh_m * 8]);
        piece[1] = __float2half_rn(c_rf[store_c_sh_n * 32 + store_c_sh_m * 8 + 1]);
        *reinterpret_cast<unsigned int*>(&store_c_sh_target[store_c_sh_m * 16 * 136 + store_c_sh_n * 16]) =
            *reinterpret_cast<const unsigned int*>(&piece[0]);
      }
      {
        __align__(4) __half piece[2];
        piece[0] = __float2half_rn(c_rf[store_c_sh_n * 32 + store_c_sh_m * 8 + 2]);
        piece[1] = __float2half_rn(c_rf[store_c_sh_n * 32 + store_c_sh_m * 8 + 3]);
        *reinterpret_cast<unsigned int*>(&store_c_sh_target[store_c_sh_m * 16 * 136 + store_c_sh_n * 16 + 2 * 136]) =
            *reinterpret_cast<const unsigned int*>(&piece[0]);
      }
      {
        __align__(4) __half piece[2];
        piece[0] = __float2half_rn(c_rf[store_c_sh_n * 32 + store_c_sh_m * 8 + 4]);
        piece[1] = __float2half_rn(c_rf[store_c_sh_n * 32 + store_c_sh_m * 8 + 5]);
        *reinterpret_cast<unsigned int*>(&store_c_sh_target[store_c_sh_m * 16 * 136 + store_c_sh_n * 16 + 4]) =
            *reinterpret_cast<const unsigned int*>(&piece[0]);
      }
      {
        __align__(4) __half piece[2];
        piece[0] = __float2half_rn(c_rf[store_c_sh_n * 32 + store_c_sh_m * 8 + 6]);
        piece[1] = __float2half_rn(c_rf[store_c_sh_n * 32 + store_c_sh_m * 8 + 7]);
        *reinterpret_cast<unsigned int*>(&store_c_sh_target[store_c_sh_m * 16 * 136 + store_c_sh_n * 16 + 276]) =
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
