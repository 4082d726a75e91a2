// attention_packed(40,48,32,1,1,1)(GL,GL,GL,VAL,GL,GL,GL,GL,GL,GL,GL)(Kernel) with Q, K, V, O float16 RowMajor; begin,
//     end, inner, outer int32; low, high int32 RowMajor
//   .rfactor(step='sums', parts=4)
//   .tile(r=1, g=1, t=1).to(Block)
//   .tile(m=64).to(Block)
//   .load('Q', SH, Move.done())
//   .split(n=128).defer("pv", after="s").pipeline(2).separate_masked_tiles().skip_masked_tiles().warp_specialize(128)
//   .load('K', SH, Move.done())
//   .load('V', SH, Move.done())
//   .tile(m=64).to(Warpgroup)
//   .step("s", AnySpec.split(16).unroll().done())
//   .step("pv", AnySpec.split(16).unroll().done())
//   .skip_steps('alpha', 'shrink', 'keep', where='new == mx')
//   .skip_steps('rescale', where='alpha == 1')
//   .step("store", AnySpec.tile(64, 32).unroll().load('src', SH, Move.done()).cast_on_copy().done())
//   .done()
// target sm_90a; launch <<<1, 256>>>, 41040 bytes of static shared memory
#include <cuda_fp16.h>

// TMA tensor map of a tensor, encoded by the launcher (cuTensorMapEncodeTiled)
struct __align__(64) TensorMap { unsigned long long words[16]; };

// wait until the phase of this parity completes
__device__ __forceinline__ void mbarrier_wait(unsigned mbarrier, unsigned phase)
{
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "retry:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra retry;\n"
      "}"
      :: "r"(mbarrier), "r"(phase) : "memory");
}

// order register accesses of this warpgroup before the wgmma that follow
__device__ __forceinline__ void wgmma_fence()
{
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// wgmma matrix descriptor: start address, leading and stride byte offsets, swizzle mode (1: 128, 2: 64, 3: 32 bytes)
template <unsigned leading_bytes, unsigned stride_bytes, unsigned swizzle>
__device__ __forceinline__ unsigned long long matrix_descriptor(unsigned address)
{
  return static_cast<unsigned long long>((address & 0x3FFFF) >> 4 | (leading_bytes >> 4) << 16)
       | static_cast<unsigned long long>(stride_bytes >> 4) << 32 | static_cast<unsigned long long>(swizzle) << 62;
}

// 32-bit shared-memory address for inline PTX
__device__ __forceinline__ unsigned shared_address(const void* pointer)
{
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// c = a * b, or c += a * b if accumulate: asynchronous m64n128k16 of a warpgroup, a and b in shared memory
__device__ __forceinline__ void wgmma_m64n128k16_row_col_f32_f16(
    float* c, unsigned long long a, unsigned long long b, bool accumulate)
{
  asm volatile(
      "{ .reg .pred scale_d; setp.ne.b32 scale_d, %66, 0; "
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
      "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, "
      "%41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, "
      "%61, %62, %63}, %64, %65, scale_d, 1, 1, 0, 0; }"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
        "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),
        "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
        "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31]),
        "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35]), "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]),
        "+f"(c[40]), "+f"(c[41]), "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]),
        "+f"(c[48]), "+f"(c[49]), "+f"(c[50]), "+f"(c[51]), "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55]),
        "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]), "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63])
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

// commit the wgmma of this warpgroup as a group
__device__ __forceinline__ void wgmma_commit_group()
{
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// wait until at most N wgmma groups are pending
template <int N>
__device__ __forceinline__ void wgmma_wait_group()
{
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory");
}

// compiler barrier: read accumulators only after wgmma_wait_group
template <int count>
__device__ __forceinline__ void pin_registers(float (&values)[count])
{
  #pragma unroll
  for (int word = 0; word < count; ++word)
    asm volatile("" : "+f"(values[word]) :: "memory");
}

// arrive once
__device__ __forceinline__ void mbarrier_arrive(unsigned mbarrier)
{
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(mbarrier) : "memory");
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

// c = a * b, or c += a * b if accumulate: asynchronous m64n32k16 of a warpgroup, a in registers, b in shared memory
__device__ __forceinline__ void wgmma_m64n32k16_reg_row_f32_f16(
    float* c, const void* a, unsigned long long b, bool accumulate)
{
  const unsigned* const a_words = static_cast<const unsigned*>(a);
  asm volatile(
      "{ .reg .pred scale_d; setp.ne.b32 scale_d, %21, 0; "
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, %20, "
      "scale_d, 1, 1, 1; }"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
        "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15])
      : "r"(a_words[0]), "r"(a_words[1]), "r"(a_words[2]), "r"(a_words[3]), "l"(b), "r"(static_cast<int>(accumulate)));
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

// round eight accumulators per thread to 16 bits and store them to shared memory
__device__ __forceinline__ void stmatrix_x4_half(unsigned target, const float* source)
{
  unsigned words[4];
  #pragma unroll
  for (int pair = 0; pair < 4; ++pair)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(words[pair]) : "f"(source[2 * pair + 1]), "f"(source[2 * pair]));
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
      :: "r"(target), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]) : "memory");
}

// order accesses of this thread to shared memory before later ones of the async proxy
__device__ __forceinline__ void fence_proxy_async()
{
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// synchronize the 128 threads of a warpgroup, with one named barrier per warpgroup
__device__ __forceinline__ void warpgroup_sync()
{
  const unsigned warpgroup = threadIdx.x / 128;
  if (warpgroup == 0) asm volatile("bar.sync 1, 128;" ::: "memory");
}

// TMA store of a box of a batched matrix from shared memory, asynchronous
__device__ __forceinline__ void tma_store_5d(const TensorMap* map, int x, int y, int z, int u, int v, unsigned source)
{
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4, %5}], [%6];"
      :: "l"(map), "r"(x), "r"(y), "r"(z), "r"(u), "r"(v), "r"(source) : "memory");
}

// commit the TMA stores of this thread as a bulk group
__device__ __forceinline__ void tma_store_commit_group()
{
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// wait until at most N bulk groups of this thread have not yet read shared memory
template <int N>
__device__ __forceinline__ void tma_store_wait_group()
{
  asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(N) : "memory");
}

// arrive and expect `bytes` from TMA
__device__ __forceinline__ void mbarrier_arrive_expect_tx(unsigned mbarrier, unsigned bytes)
{
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(mbarrier), "r"(bytes) : "memory");
}

// TMA load of a box of a batched matrix to shared memory; its bytes complete on `mbarrier`
__device__ __forceinline__ void tma_load_5d(
    unsigned target, const TensorMap* map, int x, int y, int z, int u, int v, unsigned mbarrier)
{
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];"
      :: "r"(target), "l"(map), "r"(x), "r"(y), "r"(z), "r"(u), "r"(v), "r"(mbarrier) : "memory");
}

// TMA load of a box of a batched matrix to shared memory; its bytes complete on `mbarrier`
__device__ __forceinline__ void tma_load_3d(
    unsigned target, const TensorMap* map, int x, int y, int z, unsigned mbarrier)
{
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];"
      :: "r"(target), "l"(map), "r"(x), "r"(y), "r"(z), "r"(mbarrier) : "memory");
}

// mbarrier: a phase completes after all arrivals and expected transaction bytes
__device__ __forceinline__ void mbarrier_init(unsigned mbarrier, unsigned arrivals)
{
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(mbarrier), "r"(arrivals) : "memory");
}

// prefetch a tensor map
__device__ __forceinline__ void prefetch_tensor_map(const TensorMap* map)
{
  asm volatile("prefetch.tensormap [%0];" :: "l"(map) : "memory");
}

// make initialized mbarriers visible to the async proxy and to the cluster
__device__ __forceinline__ void fence_mbarrier_init()
{
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

extern "C" __global__ void __launch_bounds__(256)
attention_packed(
    const __grid_constant__ TensorMap Q_map,
    const __grid_constant__ TensorMap K_map,
    const __grid_constant__ TensorMap V_map,
    const float scale,
    const int* __restrict__ begin,
    const int* __restrict__ end,
    const int* __restrict__ inner,
    const int* __restrict__ outer,
    const int* __restrict__ low,
    const int* __restrict__ high,
    const __grid_constant__ TensorMap O_map)
{
  constexpr int num_stages = 2;
  constexpr int q_sh_stage_bytes = 64 * 32 * 2;
  constexpr int k_sh_stage_bytes = 128 * 32 * 2;
  constexpr int v_sh_stage_bytes = 128 * 32 * 2;
  const int thread = threadIdx.x;
  const int lane = threadIdx.x % 32;
  __shared__ __align__(1024) __half q_sh[2048];  // 64 x 32
  __shared__ __align__(1024) __half k_sh[8192];  // 128 x 32, 2 stages
  __shared__ __align__(1024) __half v_sh[8192];  // 128 x 32, 2 stages
  __shared__ __align__(1024) __half store_acc_sh[2048];  // 64 x 32
  int first[2];  // of 64
  int last[2];  // of 64
  float mx[2];  // of 64
  float l_parts[2];  // of 64 x 4
  __align__(8) float acc[16];  // of 64 x 32
  float s[64];  // of 64 x 128
  float top[2];  // of 64
  float top_max_rf[2];  // of 128 x 2
  float new_rf[2];  // of 64
  [[maybe_unused]] int alpha_needed[2];  // of 64
  float alpha[2];  // of 64
  float sums_parts[2];  // of 64 x 4
  __align__(4) __half p[64];  // of 64 x 128
  [[maybe_unused]] int rescale_needed[2];  // of 64
  float l[2];  // of 64
  float l_whole_sum_rf[2];  // of 128 x 2
  float inverse[2];  // of 64
  __shared__ unsigned long long k_sh_ring[4];
  const unsigned k_sh_ring_full = shared_address(k_sh_ring);  // 2 mbarriers: k_sh full
  const unsigned k_sh_ring_empty = k_sh_ring_full + num_stages * 8;  // 2 mbarriers: k_sh empty
  __shared__ unsigned long long v_sh_ring[4];
  const unsigned v_sh_ring_full = shared_address(v_sh_ring);  // 2 mbarriers: v_sh full
  const unsigned v_sh_ring_empty = v_sh_ring_full + num_stages * 8;  // 2 mbarriers: v_sh empty
  __shared__ unsigned long long q_sh_ring[1];
  const unsigned q_sh_ring_full = shared_address(q_sh_ring);  // 1 mbarrier: q_sh full
  if (threadIdx.x == 0) {
    prefetch_tensor_map(&Q_map);
    prefetch_tensor_map(&K_map);
    prefetch_tensor_map(&V_map);
    prefetch_tensor_map(&O_map);
    for (int stage = 0; stage < num_stages; ++stage) {
      mbarrier_init(k_sh_ring_full + stage * 8, 1);
      mbarrier_init(k_sh_ring_empty + stage * 8, 4);
    }
    for (int stage = 0; stage < num_stages; ++stage) {
      mbarrier_init(v_sh_ring_full + stage * 8, 1);
      mbarrier_init(v_sh_ring_empty + stage * 8, 4);
    }
    mbarrier_init(q_sh_ring_full, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  const int warp_index = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  // consumers
  if (warp_index < 4) {
    // attention_packed(64,32,1,1,1,4)(GL,GL,RF,RF,RF,RF,RF)(Warpgroup)
    // mx: mx[m] = -1e+30
    mx[0] = -1e30f;
    mx[1] = -1e30f;
    // l: l_parts[m,sums_part] = 0
    l_parts[0] = 0.0f;
    l_parts[1] = 0.0f;
    const int* const low_source = low + thread / 32 * 16 + thread / 4 % 8;
    // acc: acc[m,d] = 0
    // the first MMA initializes acc
    // first: first[m] = low[t,m]
    first[0] = thread / 32 * 16 + thread / 4 % 8 < 40 ? low_source[0] : 0;
    first[1] = thread / 32 * 16 + thread / 4 % 8 + 8 < 40 ? low_source[8] : 0;
    const int* const high_source = high + thread / 32 * 16 + thread / 4 % 8;
    // last: last[m] = high[t,m]
    last[0] = thread / 32 * 16 + thread / 4 % 8 < 40 ? high_source[0] : 0;
    last[1] = thread / 32 * 16 + thread / 4 % 8 + 8 < 40 ? high_source[8] : 0;
    mbarrier_wait(q_sh_ring_full, 0);  // wait until q_sh is full
    mbarrier_wait(k_sh_ring_full, 0);  // wait until k_sh is full
    // attention_packed(64,128,32,1,1,1,4)(SH,SH,SH,VAL,GL,GL,GL,GL,RF,RF,RF,RF,RF)(Warpgroup)
    // s: s[m,n] = sum(d, Q[t,m,g,r,d] * K[n,g,d])
    // the first MMA initializes s
    wgmma_fence();
    const unsigned q_sh_address = shared_address(q_sh);
    const unsigned k_sh_address = shared_address(k_sh);
#pragma unroll
    for (int s_d = 0; s_d < 2; ++s_d) {
      wgmma_m64n128k16_row_col_f32_f16(
          s,
          matrix_descriptor<0, 512, 2>(q_sh_address + s_d * 32),
          matrix_descriptor<0, 512, 2>(k_sh_address + s_d * 32),
          s_d > 0);
    }
    wgmma_commit_group();
    wgmma_wait_group<0>();  // s is complete
    pin_registers(acc);
    pin_registers(s);
    if (thread % 32 == 0)
      mbarrier_arrive(k_sh_ring_empty);
    // mask: s[m,n] = where(begin[t] <= n, s[m,n], -inf)
    if (min(max(begin[0], 0), 48) > 0) {
#pragma unroll
      for (int mask_m = 0; mask_m < 2; ++mask_m) {
#pragma unroll
        for (int mask_n = 0; mask_n < 16; ++mask_n) {
#pragma unroll
          for (int mask_n2 = 0; mask_n2 < 2; ++mask_n2) {
            s[mask_n * 4 + mask_m * 2 + mask_n2] =
                (begin[0] <= (mask_n * 8 + thread % 4 * 2 + mask_n2)
                    ? s[mask_n * 4 + mask_m * 2 + mask_n2]
                    : __int_as_float(0xff800000));
          }
        }
      }
    }
    // end: s[m,n] = where(n < end[t], s[m,n], -inf)
#pragma unroll
    for (int end_m2 = 0; end_m2 < 2; ++end_m2) {
#pragma unroll
      for (int end_n2 = 0; end_n2 < 16; ++end_n2) {
#pragma unroll
        for (int end_n3 = 0; end_n3 < 2; ++end_n3) {
          s[end_n2 * 4 + end_m2 * 2 + end_n3] =
              ((end_n2 * 8 + thread % 4 * 2 + end_n3) < end[0]
                  ? s[end_n2 * 4 + end_m2 * 2 + end_n3]
                  : __int_as_float(0xff800000));
        }
      }
    }
    // low: s[m,n] = where(inner[t] <= n or first[m] <= n, s[m,n], -inf)
    if (min(max(inner[0], 0), 48) > 0) {
#pragma unroll
      for (int low_m2 = 0; low_m2 < 2; ++low_m2) {
#pragma unroll
        for (int low_n2 = 0; low_n2 < 16; ++low_n2) {
#pragma unroll
          for (int low_n3 = 0; low_n3 < 2; ++low_n3) {
            s[low_n2 * 4 + low_m2 * 2 + low_n3] =
                (inner[0] <= (low_n2 * 8 + thread % 4 * 2 + low_n3)
                    || first[low_m2] <= (low_n2 * 8 + thread % 4 * 2 + low_n3)
                    ? s[low_n2 * 4 + low_m2 * 2 + low_n3]
                    : __int_as_float(0xff800000));
          }
        }
      }
    }
    // high: s[m,n] = where(n < outer[t] or n < last[m], s[m,n], -inf)
#pragma unroll
    for (int high_m2 = 0; high_m2 < 2; ++high_m2) {
#pragma unroll
      for (int high_n2 = 0; high_n2 < 16; ++high_n2) {
#pragma unroll
        for (int high_n3 = 0; high_n3 < 2; ++high_n3) {
          s[high_n2 * 4 + high_m2 * 2 + high_n3] =
              ((high_n2 * 8 + thread % 4 * 2 + high_n3) < outer[0]
                  || (high_n2 * 8 + thread % 4 * 2 + high_n3) < last[high_m2]
                  ? s[high_n2 * 4 + high_m2 * 2 + high_n3]
                  : __int_as_float(0xff800000));
        }
      }
    }
    // top: top[m] = max(n, s[m,n])
#pragma unroll
    for (int top_inside_m = 0; top_inside_m < 2; ++top_inside_m) {
#pragma unroll
      for (int top_inside_n = 0; top_inside_n < 16; ++top_inside_n) {
#pragma unroll
        for (int top_inside_n2 = 0; top_inside_n2 < 2; ++top_inside_n2) {
          s[top_inside_n * 4 + top_inside_m * 2 + top_inside_n2] =
              ((top_inside_n * 8 + thread % 4 * 2 + top_inside_n2) < 48
                  ? s[top_inside_n * 4 + top_inside_m * 2 + top_inside_n2]
                  : __int_as_float(0xff800000));
        }
      }
    }
    // Reduction(64,128)(RF,RF)(Warpgroup): in each thread, over 4 lanes by shuffles
#pragma unroll
    for (int top_m = 0; top_m < 2; ++top_m) {
      top_max_rf[top_m] = fmaxf(s[top_m * 2], s[top_m * 2 + 1]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s[top_m * 2 + 4]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s[top_m * 2 + 5]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s[top_m * 2 + 8]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s[top_m * 2 + 9]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s[top_m * 2 + 12]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s[top_m * 2 + 13]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s[top_m * 2 + 16]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s[top_m * 2 + 17]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s[top_m * 2 + 20]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s[top_m * 2 + 21]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s[top_m * 2 + 24]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s[top_m * 2 + 25]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s[top_m * 2 + 28]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s[top_m * 2 + 29]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s[top_m * 2 + 32]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s[top_m * 2 + 33]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s[top_m * 2 + 36]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s[top_m * 2 + 37]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s[top_m * 2 + 40]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s[top_m * 2 + 41]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s[top_m * 2 + 44]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s[top_m * 2 + 45]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s[top_m * 2 + 48]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s[top_m * 2 + 49]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s[top_m * 2 + 52]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s[top_m * 2 + 53]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s[top_m * 2 + 56]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s[top_m * 2 + 57]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s[top_m * 2 + 60]);
      top_max_rf[top_m] = fmaxf(top_max_rf[top_m], s[top_m * 2 + 61]);
    }
    quad_reduce_max(top_max_rf);
#pragma unroll
    for (int top_m2 = 0; top_m2 < 2; ++top_m2)
      top[top_m2] = top_max_rf[top_m2];
    // scaled: top[m] = top[m] * (scale * 1.4426950408889634)
#pragma unroll
    for (int scaled_m = 0; scaled_m < 2; ++scaled_m)
      top[scaled_m] = top[scaled_m] * (scale * 1.442695f);
    // new: new[m] = where(top[m] > mx[m] + 8, top[m], mx[m])
#pragma unroll
    for (int new_m = 0; new_m < 2; ++new_m)
      new_rf[new_m] = (top[new_m] > mx[new_m] + 8.0f ? top[new_m] : mx[new_m]);
    // alpha_needed: alpha_needed[m] = where(new[m] == mx[m], 0, 1)
#pragma unroll
    for (int alpha_needed_m = 0; alpha_needed_m < 2; ++alpha_needed_m)
      alpha_needed[alpha_needed_m] = (new_rf[alpha_needed_m] == mx[alpha_needed_m] ? 0 : 1);
    // alpha[m] = 1, where alpha is skipped
    alpha[0] = 1.0f;
    alpha[1] = 1.0f;
    // skip alpha, shrink, keep where new[m] == mx[m]
    if (__any_sync(0xffffffff, alpha_needed[0] | alpha_needed[1])) {
      __syncwarp();  // keep a branch
      // alpha: alpha[m] = exp2(mx[m] - new[m])
#pragma unroll
      for (int alpha_m = 0; alpha_m < 2; ++alpha_m)
        alpha[alpha_m] = exp2_approx(mx[alpha_m] - new_rf[alpha_m]);
      // shrink: l_parts[m,sums_part] = l_parts[m,sums_part] * alpha[m]
#pragma unroll
      for (int shrink_m = 0; shrink_m < 2; ++shrink_m)
        l_parts[shrink_m] = l_parts[shrink_m] * alpha[shrink_m];
      // keep: mx[m] = new[m]
      mx[0] = new_rf[0];
      mx[1] = new_rf[1];
    }
    // exp: s[m,n] = exp2(s[m,n] * (scale * 1.4426950408889634) - mx[m])
#pragma unroll
    for (int exp_m = 0; exp_m < 2; ++exp_m) {
#pragma unroll
      for (int exp_n = 0; exp_n < 16; ++exp_n) {
#pragma unroll
        for (int exp_n2 = 0; exp_n2 < 2; ++exp_n2) {
          s[exp_n * 4 + exp_m * 2 + exp_n2] =
              exp2_approx(s[exp_n * 4 + exp_m * 2 + exp_n2] * (scale * 1.442695f) - mx[exp_m]);
        }
      }
    }
    // sums: sums_parts[m,sums_part] = sum(n, s[m,n]), partial results
#pragma unroll
    for (int sums_m = 0; sums_m < 2; ++sums_m) {
      sums_parts[sums_m] =
          (s[sums_m * 2] + s[sums_m * 2 + 4] + s[sums_m * 2 + 8] + s[sums_m * 2 + 12] + s[sums_m * 2 + 16]
              + s[sums_m * 2 + 20] + s[sums_m * 2 + 24] + s[sums_m * 2 + 28] + s[sums_m * 2 + 32] + s[sums_m * 2 + 36]
              + s[sums_m * 2 + 40] + s[sums_m * 2 + 44] + s[sums_m * 2 + 48] + s[sums_m * 2 + 52] + s[sums_m * 2 + 56]
              + s[sums_m * 2 + 60])
              + (s[sums_m * 2 + 1] + s[sums_m * 2 + 5] + s[sums_m * 2 + 9] + s[sums_m * 2 + 13] + s[sums_m * 2 + 17]
                  + s[sums_m * 2 + 21] + s[sums_m * 2 + 25] + s[sums_m * 2 + 29] + s[sums_m * 2 + 33]
                  + s[sums_m * 2 + 37] + s[sums_m * 2 + 41] + s[sums_m * 2 + 45] + s[sums_m * 2 + 49]
                  + s[sums_m * 2 + 53] + s[sums_m * 2 + 57] + s[sums_m * 2 + 61]);
    }
    // update: l_parts[m,sums_part] = l_parts[m,sums_part] + sums_parts[m,sums_part]
#pragma unroll
    for (int update_m = 0; update_m < 2; ++update_m)
      l_parts[update_m] = l_parts[update_m] + sums_parts[update_m];
    // p: p[m,n] = s[m,n]
#pragma unroll
    for (int p_n = 0; p_n < 8; ++p_n) {
      *reinterpret_cast<__half2*>(&p[p_n * 8]) = __floats2half2_rn(s[p_n * 8], s[p_n * 8 + 1]);
      *reinterpret_cast<__half2*>(&p[p_n * 8 + 2]) = __floats2half2_rn(s[p_n * 8 + 2], s[p_n * 8 + 3]);
      *reinterpret_cast<__half2*>(&p[p_n * 8 + 4]) = __floats2half2_rn(s[p_n * 8 + 4], s[p_n * 8 + 5]);
      *reinterpret_cast<__half2*>(&p[p_n * 8 + 6]) = __floats2half2_rn(s[p_n * 8 + 6], s[p_n * 8 + 7]);
    }
    // rescale_needed: rescale_needed[m] = where(alpha[m] == 1, 0, 1)
#pragma unroll
    for (int rescale_needed_m = 0; rescale_needed_m < 2; ++rescale_needed_m)
      rescale_needed[rescale_needed_m] = (alpha[rescale_needed_m] == 1.0f ? 0 : 1);
    mbarrier_wait(v_sh_ring_full, 0);  // wait until v_sh is full
    // pv: acc[m,d] += sum(n, p[m,n] * V[n,g,d])
    wgmma_fence();
    const unsigned v_sh_address = shared_address(v_sh);
#pragma unroll
    for (int pv_n = 0; pv_n < 8; ++pv_n) {
      wgmma_m64n32k16_reg_row_f32_f16(
          acc, &p[pv_n * 8], matrix_descriptor<0, 512, 2>(v_sh_address + pv_n * 16 * 64), pv_n > 0);
    }
    wgmma_commit_group();
    wgmma_wait_group<0>();  // v_sh of the last iteration have been read
    pin_registers(acc);
    if (thread % 32 == 0)
      mbarrier_arrive(v_sh_ring_empty);
    // attention_packed(64,32,1,1,1,4)(GL,RF,RF)(Warpgroup)
    // l_whole: l[m] = sum(sums_part, l_parts[m,sums_part])
    // Reduction(64,4)(RF,RF)(Warpgroup): over 4 lanes by shuffles
#pragma unroll
    for (int l_whole_m = 0; l_whole_m < 2; ++l_whole_m)
      l_whole_sum_rf[l_whole_m] = l_parts[l_whole_m];
    quad_reduce_sum(l_whole_sum_rf);
#pragma unroll
    for (int l_whole_m2 = 0; l_whole_m2 < 2; ++l_whole_m2)
      l[l_whole_m2] = l_whole_sum_rf[l_whole_m2];
    // inverse: inverse[m] = where(l[m] > 0, 1 / l[m], 0)
#pragma unroll
    for (int inverse_m = 0; inverse_m < 2; ++inverse_m)
      inverse[inverse_m] = (l[inverse_m] > 0.0f ? 1.0f / l[inverse_m] : 0.0f);
    // norm: acc[m,d] = acc[m,d] * inverse[m]
#pragma unroll
    for (int norm_m = 0; norm_m < 2; ++norm_m) {
#pragma unroll
      for (int norm_d = 0; norm_d < 4; ++norm_d) {
#pragma unroll
        for (int norm_d2 = 0; norm_d2 < 2; ++norm_d2)
          acc[norm_d * 4 + norm_m * 2 + norm_d2] = acc[norm_d * 4 + norm_m * 2 + norm_d2] * inverse[norm_m];
      }
    }
    const unsigned store_acc_sh_target = shared_address(store_acc_sh) + thread / 32 * 16 * 64 + lane % 16 * 64;
    const int store_acc_sh_swizzle = lane / 2 % 4 * 16;
    // store: O[t,m,g,r,d] = acc[m,d]
    // src to store_acc_sh: Move(64,32)(RF,SH)(Warpgroup)
#pragma unroll
    for (int store_acc_sh_d = 0; store_acc_sh_d < 2; ++store_acc_sh_d) {
      stmatrix_x4_half(
          store_acc_sh_target + ((store_acc_sh_d * 32 + lane / 16 * 16) ^ store_acc_sh_swizzle),
          &acc[store_acc_sh_d * 8]);
    }
    fence_proxy_async();  // make store_acc_sh visible to the async proxy
    warpgroup_sync();  // store_acc_sh complete
    const unsigned store_acc_sh_address = shared_address(store_acc_sh);
    if (thread == 0)
      tma_store_5d(&O_map, 0, 0, 0, 0, 0, store_acc_sh_address);
    tma_store_commit_group();
    tma_store_wait_group<0>();  // all stores have read shared memory
  }
  // producer
  else if (threadIdx.x == 128) {
    mbarrier_arrive_expect_tx(q_sh_ring_full, q_sh_stage_bytes);
    const unsigned q_sh_address = shared_address(q_sh);
    tma_load_5d(q_sh_address, &Q_map, 0, 0, 0, 0, 0, q_sh_ring_full);
    mbarrier_wait(k_sh_ring_empty, 1);  // wait until k_sh is empty
    mbarrier_arrive_expect_tx(k_sh_ring_full, k_sh_stage_bytes);
    const unsigned k_sh_address = shared_address(k_sh);
    tma_load_3d(k_sh_address, &K_map, 0, 0, 0, k_sh_ring_full);
    mbarrier_wait(v_sh_ring_empty, 1);  // wait until v_sh is empty
    mbarrier_arrive_expect_tx(v_sh_ring_full, v_sh_stage_bytes);
    const unsigned v_sh_address = shared_address(v_sh);
    tma_load_3d(v_sh_address, &V_map, 0, 0, 0, v_sh_ring_full);
  }
}
