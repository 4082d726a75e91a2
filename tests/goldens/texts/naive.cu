// MatMul(40,48,40)(GL,GL,GL)(Kernel)
//   .tile(128, 128).to(Block).layout(ColMajor)
//   .tile(8, 8).to(Thread).layout(ColMajor)
//   .split(1)
//   .tile(1, 1).unroll()
//   .done()
// target sm_90; launch <<<1, 256>>>, no shared memory

extern "C" __global__ void __launch_bounds__(256)
matmul(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C)
{
  const int thread_m = threadIdx.x % 16;
  const int thread_n = threadIdx.x / 16;
  float* const c_target = C + thread_n * 8 * 40 + thread_m * 8;
  // MatMul(8,8,40)(GL,GL,GL)(Thread)
  for (int k = 0; k < 40; ++k) {
#pragma unroll
    for (int m = 0; m < 8; ++m) {
      if (thread_m * 8 + m < 40) {
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          if (thread_n * 8 + n < 48) {
            c_target[n * 40 + m] =
                fmaf(
                    A[k * 40 + thread_m * 8 + m],
                    B[thread_n * 8 * 40 + n * 40 + k],
                    k > 0 ? c_target[n * 40 + m] : 0.0f);
          }
        }
      }
    }
  }
}
