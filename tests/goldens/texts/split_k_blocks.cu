// MatMul(40,48,40)(GL,GL,GL)(Kernel) with A, B float16 RowMajor; C RowMajor
//   .split_k(16, Block, 64)
//   .tile(64, 64).to(Block)
//   .epilog(RF, float32, Init.tile(32, 32).to(Warp).done(), Move.tile(32, 32).to(Warp).done())
//   .split(64).pipeline(4)
//   .load(A, SH, Move.coalesced_copy(8).done()).swizzle_storage()
//   .load(B, SH, Move.coalesced_copy(8).done()).swizzle_storage()
//   .tile(32, 32).to(Warp)
//   .split(16).pipeline(2).unroll()
//   .load(A, RF, Move.done())
//   .load(B, RF, Move.done())
//   .tile(16, 16).unroll()
//   .mma_tile()
//   .done()
// target sm_90; launch <<<16, 128>>>, 16384 bytes of static shared memory
// requires: C is zero before the launch (blocks add to it)
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

// add to 2 adjacent elements, to each atomically
__device__ __forceinline__ void add_2_floats_in_memory(float* place, float a, float b)
{
  asm volatile("red.global.add.v2.f32 [%0], {%1, %2};"
               :: "l"(place), "f"(a), "f"(b) : "memory");
}

extern "C" __global__ void __launch_bounds__(128)
matmul(const __half* __restrict__ A, const __half* __restrict__ B, float* __restrict__ C)
{
  const int block_k = blockIdx.x;
  const int warp = threadIdx.x / 32;
  const int warp_n = warp % 2;
  const int warp_m = warp / 2;
  const int lane = threadIdx.x % 32;
  const int b_sh_thread_n = threadIdx.x % 8;
  const int b_sh_thread_k = threadIdx.x / 8;
  const int a_sh_thread_k = threadIdx.x % 8;
  const int a_sh_thread_m = threadIdx.x / 8;
  __shared__ __align__(16) __half a_sh[4096];  // 64 x 64
  __shared__ __align__(16) __half b_sh[4096];  // 64 x 64
  float c_rf[32];  // of 64 x 64
  __align__(4) __half a_rf[32];  // of 32 x 16, 2 stages
  __align__(4) __half b_rf[32];  // of 16 x 32, 2 stages
  // c_rf: Init(64,64)(RF)(Block)
#pragma unroll
  for (int init_m = 0; init_m < 2; ++init_m) {
#pragma unroll
    for (int init_n = 0; init_n < 4; ++init_n) {
      c_rf[init_n * 8 + init_m * 4] = 0.0f;
      c_rf[init_n * 8 + init_m * 4 + 1] = 0.0f;
      c_rf[init_n * 8 + init_m * 4 + 2] = 0.0f;
      c_rf[init_n * 8 + init_m * 4 + 3] = 0.0f;
    }
  }
  __half* const a_sh_target = a_sh + a_sh_thread_m * 64 + ((a_sh_thread_k * 8) ^ (a_sh_thread_m % 8 * 8));
  const __half* const a_source = A + block_k * 64 + a_sh_thread_m * 40 + a_sh_thread_k * 8;
  // A to a_sh: Move(64,64)(GL,SH)(Block)
#pragma unroll
  for (int a_sh_m = 0; a_sh_m < 4; ++a_sh_m) {
    *reinterpret_cast<uint4*>(&a_sh_target[a_sh_m * 16 * 64]) =
        a_sh_m * 16 + a_sh_thread_m < 40 && block_k * 64 + a_sh_thread_k * 8 < 40
            ? *reinterpret_cast<const uint4*>(&a_source[a_sh_m * 16 * 40])
            : make_uint4(0u, 0u, 0u, 0u);
  }
  __half* const b_sh_target = b_sh + b_sh_thread_k * 64 + ((b_sh_thread_k % 8 * 8) ^ (b_sh_thread_n * 8));
  const __half* const b_source = B + block_k * 64 * 48 + b_sh_thread_k * 48 + b_sh_thread_n * 8;
  // B to b_sh: Move(64,64)(GL,SH)(Block)
#pragma unroll
  for (int b_sh_k = 0; b_sh_k < 4; ++b_sh_k) {
    *reinterpret_cast<uint4*>(&b_sh_target[b_sh_k * 16 * 64]) =
        block_k * 64 + b_sh_k * 16 + b_sh_thread_k < 40 && b_sh_thread_n * 8 < 48
            ? *reinterpret_cast<const uint4*>(&b_source[b_sh_k * 16 * 48])
            : make_uint4(0u, 0u, 0u, 0u);
  }
  __syncthreads();  // a_sh, b_sh complete
  const unsigned a_sh_source =
      shared_address(a_sh) + warp_m * 32 * 128 + lane % 16 * 128 + ((lane % 8 * 16) ^ (lane / 16 * 16));
  // MatMul(32,32,64)(SH,SH,RF)(Warp)
  // prologue: loads of the first iteration of k
  // A to a_rf: Move(32,16)(SH,RF)(Warp)
#pragma unroll
  for (int a_rf_m = 0; a_rf_m < 2; ++a_rf_m)
    ldmatrix_x4(&a_rf[a_rf_m * 8], a_sh_source + a_rf_m * 16 * 128);
  const unsigned b_sh_source = shared_address(b_sh) + lane % 16 * 128;
  const int b_sh_swizzle = lane % 8 * 16;
  // B to b_rf: Move(16,32)(SH,RF)(Warp)
#pragma unroll
  for (int b_rf_n = 0; b_rf_n < 2; ++b_rf_n)
    ldmatrix_x4_trans(&b_rf[b_rf_n * 8], b_sh_source + (b_sh_swizzle ^ (warp_n * 64 + b_rf_n * 32 + lane / 16 * 16)));
  const unsigned a_sh_address = shared_address(a_sh);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    // A to a_rf: Move(32,16)(SH,RF)(Warp)
    if (k + 1 < 4) {
#pragma unroll
      for (int a_rf_m = 0; a_rf_m < 2; ++a_rf_m) {
        ldmatrix_x4(
            &a_rf[(k + 1) % 2 * 16 + a_rf_m * 8],
            a_sh_address
                + (((lane % 16 + (k + 1) / 4) % 8 * 16)
                    ^ (warp_m * 4096 + a_rf_m * 2048 + lane % 16 * 128 + k * 32 + lane / 16 * 16 + 32)));
      }
      // B to b_rf: Move(16,32)(SH,RF)(Warp)
#pragma unroll
      for (int b_rf_n = 0; b_rf_n < 2; ++b_rf_n) {
        ldmatrix_x4_trans(
            &b_rf[(k + 1) % 2 * 16 + b_rf_n * 8],
            b_sh_source + k * 16 * 128 + (b_sh_swizzle ^ (warp_n * 64 + b_rf_n * 32 + lane / 16 * 16)) + 16 * 128);
      }
    }
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int n2 = 0; n2 < 2; ++n2) {
          mma_m16n8k16_f32_f16(
              &c_rf[n * 16 + n2 * 8 + m * 4], &a_rf[k % 2 * 16 + m * 8], &b_rf[k % 2 * 16 + n * 8 + n2 * 4]);
        }
      }
    }
  }
  float* const c_target = C + warp_m * 32 * 48 + lane / 4 * 48 + warp_n * 32 + lane % 4 * 2;
  // c_rf to C: AtomicAdd(64,64)(RF,GL)(Block)
#pragma unroll
  for (int store_m = 0; store_m < 4; ++store_m) {
    if (warp_m * 32 + store_m * 8 + lane / 4 < 40) {
#pragma unroll
      for (int store_n = 0; store_n < 4; ++store_n) {
        if (warp_n * 32 + store_n * 8 + lane % 4 * 2 < 48) {
          add_2_floats_in_memory(
              &c_target[store_m * 8 * 48 + store_n * 8],
              c_rf[store_n * 8 + store_m * 2],
              c_rf[store_n * 8 + store_m * 2 + 1]);
        }
      }
    }
  }
}
