// MatMul(40,48,40)(GL,GL,GL)(Kernel)
//   .tile(128, 128).to(Block)
//   .load(A, SH, Move.tile(1, 1).to(Thread).layout(ColMajor).done())
//   .load(B, SH, Move.tile(1, 1).to(Thread).layout(ColMajor).done())
//   .tile(64, 32).to(Warp)
//   .tile(8, 8).to(Thread)
//   .load(A, RF, Move.tile(1, 1).done())
//   .load(B, RF, Move.tile(1, 1).done())
//   .tile(1, 1)
//   .done(dot)
// target sm_90; launch <<<1, 256>>>, 40960 bytes of static shared memory

extern "C" __global__ void __launch_bounds__(256)
matmul(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C)
{
  const int thread = threadIdx.x;
  const int warp = threadIdx.x / 32;
  const int warp_n = warp % 4;
  const int warp_m = warp / 4;
  const int lane = threadIdx.x % 32;
  const int thread_n = lane % 4;
  const int thread_m = lane / 4;
  const int a_sh_thread_m = threadIdx.x % 128;
  const int a_sh_thread_k = threadIdx.x / 128;
  __shared__ __align__(16) float a_sh[5120];  // 128 x 40
  __shared__ __align__(16) float b_sh[5120];  // 40 x 128
  __align__(16) float a_rf[320];  // of 8 x 40; too large for registers, in local memory
  __align__(16) float b_rf[320];  // of 40 x 8; too large for registers, in local memory
  const float* const a_source = A + a_sh_thread_m + a_sh_thread_k * 40;
  // A to a_sh: Move(128,40)(GL,SH)(Block)
  for (int a_sh_k = 0; a_sh_k < 20; ++a_sh_k) {
    a_sh[a_sh_k * 2 * 128 + a_sh_thread_k * 128 + a_sh_thread_m] =
        a_sh_thread_m < 40 ? a_source[a_sh_k * 2 * 40] : 0.0f;
  }
  // B to b_sh: Move(40,128)(GL,SH)(Block)
  for (int b_sh_iteration = 0; b_sh_iteration < 20; ++b_sh_iteration) {
    const int b_sh_tile = b_sh_iteration * 256 + thread;
    b_sh[b_sh_tile] = b_sh_tile / 40 < 48 ? B[b_sh_tile] : 0.0f;
  }
  __syncthreads();  // a_sh, b_sh complete
  // MatMul(64,32,40)(SH,SH,GL)(Warp)
  // MatMul(8,8,40)(SH,SH,GL)(Thread)
  // A to a_rf: Move(8,40)(SH,RF)(Thread)
  for (int a_rf_m = 0; a_rf_m < 8; ++a_rf_m) {
    for (int a_rf_k = 0; a_rf_k < 40; ++a_rf_k)
      a_rf[a_rf_k * 8 + a_rf_m] = a_sh[a_rf_k * 128 + warp_m * 64 + thread_m * 8 + a_rf_m];
  }
  // B to b_rf: Move(40,8)(SH,RF)(Thread)
  for (int b_rf_k = 0; b_rf_k < 40; ++b_rf_k) {
    for (int b_rf_n = 0; b_rf_n < 8; ++b_rf_n)
      b_rf[b_rf_n * 40 + b_rf_k] = b_sh[warp_n * 32 * 40 + thread_n * 8 * 40 + b_rf_n * 40 + b_rf_k];
  }
  for (int m = 0; m < 8; ++m) {
    if (warp_m * 64 + thread_m * 8 + m < 40) {
      for (int n = 0; n < 8; ++n) {
        if (warp_n * 32 + thread_n * 8 + n < 48) {
          {
            // micro-kernel dot: MatMul(1,1,40)(RF,RF,GL)(Thread)
            const float* const a = &a_rf[m];
            const int a_stride_k = 8;
            constexpr int a_size_k = 40;
            const float* const b = &b_rf[n * 40];
            const int b_stride_k = 1;
            using c_type = float;
            float* const c = &C[warp_n * 1280 + thread_n * 320 + n * 40 + warp_m * 64 + thread_m * 8 + m];
            const bool accumulate = false;
            // Dot product of one thread, for the residual MatMul(1,1,K)(RF,RF,GL)(Thread) of Listing 1.
            c_type sum = accumulate ? *c : c_type(0);
            for (int k = 0; k < a_size_k; ++k)
              sum += c_type(a[k * a_stride_k]) * c_type(b[k * b_stride_k]);
            *c = sum;
          }
        }
      }
    }
  }
}
