#!/usr/bin/env bash
# Everything that needs a GPU, in one call: the GPU tests, compute-sanitizer with its control, the comparisons with cuBLAS and others.
#   perf/run_on_gpu.sh FOLDER [SAMPLE]      writes its logs there; about ten minutes on an H200. SAMPLE: see bench_tensor_cores.py
set -u
cd "$(dirname "$0")/.."
out=${1:?folder for the results}
export PYTHONPATH=$PWD PYTHONUNBUFFERED=1
{
  date -u +%F
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
  python3 -c 'import cupy, numpy, sys; print("python", sys.version.split()[0], "cupy", cupy.__version__, "numpy", numpy.__version__)'
  git rev-parse HEAD 2>/dev/null
} > "$out/environment.txt"
python3 -m pytest -q -n 6 --tb=short tests/test_*gpu.py tests/test_toolchain.py > "$out/gpu_tests.txt" 2>&1
tail -3 "$out/gpu_tests.txt"
{
  for mode in clean racy; do
    echo "== racecheck $mode"
    timeout 150 compute-sanitizer --tool racecheck python3 perf/sanitize.py $mode 2>&1 | grep -v "^=========     " | tail -8
  done
  echo "== memcheck clean"
  timeout 150 compute-sanitizer --tool memcheck --report-api-errors no python3 perf/sanitize.py clean 2>&1 | tail -8
} > "$out/sanitizer.txt"
cat "$out/sanitizer.txt"
timeout 250 python3 perf/bench_gemm.py -o "$out/gemm.json" --rounds 20 2>&1 | tee "$out/gemm.txt"
timeout 300 python3 perf/bench_tensor_cores.py ${2:+--sample "$2"} -o "$out/tensor_cores.json" --rounds 20 2>&1 | tee "$out/tensor_cores.txt"
timeout 100 python3 perf/bench_ablation.py -o "$out/ablation.json" --rounds 20 2>&1 | tee "$out/ablation.txt"
