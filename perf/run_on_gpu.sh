#!/usr/bin/env bash
# What needs a GPU, in one call: GPU tests, drawn and shipped kernels, compute-sanitizer with its controls, host overhead, the sweeps, the tutorial.
#   perf/run_on_gpu.sh FOLDER [SAMPLE]    writes its logs there; about half an hour on an H200. SAMPLE: made by build_sample.py
set -u
cd "$(dirname "$0")/.."
out=${1:?folder for the results}
export PYTHONPATH=$PWD:$PWD/tests PYTHONUNBUFFERED=1
{
  date -u +%F
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
  python3 -c 'import cupy, numpy, sys; print("python", sys.version.split()[0], "cupy", cupy.__version__, "numpy", numpy.__version__)'
  git rev-parse HEAD 2>/dev/null
  echo "command: perf/run_on_gpu.sh"
} > "$out/environment.txt"
python3 -m pytest -q -n 8 --tb=short tests/test_*gpu.py tests/test_toolchain.py > "$out/gpu_tests.txt" 2>&1
tail -3 "$out/gpu_tests.txt"
timeout 600 python3 perf/campaign_gpu.py "$out" > "$out/campaign.txt" 2>&1
tail -8 "$out/campaign.txt"
timeout 600 python3 perf/sanitize.py "$out" 2>&1 | tail -8
timeout 100 python3 perf/bench_launch.py -o "$out/launch.json" 2>&1 | tee "$out/launch.txt"
timeout 400 python3 -m pytest -p pytest_fireiron -q perf/ ${2:+--sample "$2"} --benchmark-json "$out/sweeps.json" --fireiron-table 2>&1 | tee "$out/sweeps.txt" | tail -3
python3 perf/report.py "$out/sweeps.json"
python3 perf/tutorial.py -o "$out/tutorial.txt"
