"""The problems of KernelBench, levels 1 and 2, as definitions that run in the simulator (`python perf/kernelbench`)."""
