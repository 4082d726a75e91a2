#!/usr/bin/env bash
# What needs a GPU, in one call: GPU tests, compute-sanitizer with its control, host overhead, the sweeps, the tutorial.
#   perf/run_on_gpu.sh FOLDER [SAMPLE]    writes its logs there; about ten minutes on an H200. SAMPLE: made by build_sample.py
set -u
cd "$(dirname "$0")/.."
out=${1:?folder for the results}
export PYTHONPATH=$PWD PYTHONUNBUFFERED=1
{
  date -u +%F
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
  python3 -c 'import cupy, numpy, sys; print("python", sys.version.split()[0], "cupy", cupy.__version__, "numpy", numpy.__version__)'
  git rev-parse HEAD 2>/dev/null
  echo "command: perf/run_on_gpu.sh"
} > "$out/environment.txt"
python3 -m pytest -q -n 8 --tb=short tests/test_*gpu.py tests/test_toolchain.py > "$out/gpu_tests.txt" 2>&1
tail -3 "$out/gpu_tests.txt"
{
  for mode in clean racy fused; do
    echo "== racecheck $mode"
    timeout 150 compute-sanitizer --tool racecheck python3 perf/sanitize.py $mode 2>&1 | grep -v "^=========     " | tail -8
  done
  for mode in clean fused; do
    echo "== memcheck $mode"
    timeout 150 compute-sanitizer --tool memcheck --report-api-errors no python3 perf/sanitize.py $mode 2>&1 | tail -8
  done
} > "$out/sanitizer.txt"
cat "$out/sanitizer.txt"
timeout 100 python3 perf/bench_launch.py -o "$out/launch.json" 2>&1 | tee "$out/launch.txt"
timeout 400 python3 -m pytest -p pytest_fireiron -q perf/ ${2:+--sample "$2"} --benchmark-json "$out/sweeps.json" --fireiron-table 2>&1 | tee "$out/sweeps.txt" | tail -3
python3 perf/report.py "$out/sweeps.json"
python3 perf/tutorial.py -o "$out/tutorial.txt"
