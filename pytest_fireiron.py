"""The pytest plugin of Fireiron: the fixture `gpu_benchmark`, the marker `gpu`, options and a table.

It is loaded in every session of an environment in which Fireiron is installed, so it imports only pytest; its implementation is
`fireiron.measure.plugin`, imported when a test uses the fixture. See docs/benchmarking.md.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

ROWS = pytest.StashKey[list[Any]]()


class GpuClock:
    """The clock that pytest-benchmark reads instead of the host's: seconds of GPU work."""

    __name__ = "gpu_clock"  # the timer name in a saved benchmark

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of a session; each benchmark may override them."""
    group = parser.getgroup("fireiron", "benchmarks of GPU kernels (Fireiron)")
    add = group.addoption
    add("--fireiron-rounds", type=_positive, default=20, metavar="N", help="how often each contender is timed (20)")
    add("--fireiron-regime", choices=("burst", "busy"), default="burst", help="after a pause, or without pauses (burst)")
    add("--fireiron-l2", choices=("rotated", "flushed", "hot"), default="rotated", help="the state of the L2 cache (rotated)")
    add(
        "--fireiron-arch",
        "--fireiron-architecture",
        dest="fireiron_architecture",
        metavar="sm_NN",
        help="target of the kernels (that of the GPU)",
    )
    add("--fireiron-simulate", action="store_true", help="without a GPU: verify benchmarks in the simulator in place of skipping them")
    add("--fireiron-table", action="store_true", help="a line for each benchmark at the end, with throughput, ratio and resources")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker and the fixture, for a session with pytest-benchmark or without."""
    config.addinivalue_line("markers", "gpu: needs a CUDA GPU; skipped where there is none, in files that use Fireiron")
    config.stash[ROWS] = []
    config.pluginmanager.register(_Recorded() if _has_benchmark(config) else _Alone(), "fireiron-fixtures")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip GPU tests without a GPU, and give each benchmark the GPU's clock."""
    benchmarks = [item for item in items if "gpu_benchmark" in getattr(item, "fixturenames", ())]
    marked = [item for item in items if item.get_closest_marker("gpu") and _uses_fireiron(item)]
    if benchmarks or marked:
        from fireiron.gpu import launch
        from fireiron.measure.plugin import NO_GPU

        if not launch.gpu_available():
            skipped = marked if config.getoption("fireiron_simulate") else [*benchmarks, *marked]
            for item in dict.fromkeys(skipped):
                item.add_marker(pytest.mark.skip(reason=NO_GPU))
    if _has_benchmark(config):
        for item in benchmarks:
            own = item.get_closest_marker("benchmark")
            settings = {**(own.kwargs if own else {}), "timer": GpuClock()}
            item.add_marker(pytest.mark.benchmark(**settings), append=False)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """The table of `--fireiron-table`."""
    rows = config.stash[ROWS]
    if rows and config.getoption("fireiron_table"):
        from fireiron.measure.plugin import table

        terminalreporter.section("GPU benchmarks")
        terminalreporter.write_line(table(rows))


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_json(config: pytest.Config, output_json: dict[str, Any]) -> None:
    """The environment of the benchmarks, in addition to pytest-benchmark's data about the host."""
    if any(row.us is not None for row in config.stash[ROWS]):
        from fireiron.measure.timing import environment

        output_json["gpu_info"] = environment()


class _Recorded:
    """The fixture with pytest-benchmark; since it requests `benchmark`, `--benchmark-only` and `-skip` apply to it."""

    @pytest.fixture
    def gpu_benchmark(self, request: pytest.FixtureRequest, benchmark: Any) -> Any:
        """Verify a kernel, measure it on the GPU, record it with pytest-benchmark."""
        from fireiron.measure.plugin import make

        marker = request.node.get_closest_marker("benchmark")
        return make(request, benchmark, marker.kwargs["timer"], request.config.stash[ROWS])


class _Alone:
    """The fixture without pytest-benchmark."""

    @pytest.fixture
    def gpu_benchmark(self, request: pytest.FixtureRequest) -> Any:
        """Verify a kernel and measure it on the GPU."""
        from fireiron.measure.plugin import make

        return make(request, None, None, request.config.stash[ROWS])


def _has_benchmark(config: pytest.Config) -> bool:
    return hasattr(config.option, "benchmark_json")


def _uses_fireiron(item: pytest.Item) -> bool:
    """Whether a test file imports Fireiron: other suites may define the marker `gpu` differently."""
    values = vars(item.module).values() if hasattr(item, "module") else ()
    owners = (one.__name__ if isinstance(one, ModuleType) else getattr(one, "__module__", None) for one in values)
    return any(isinstance(owner, str) and owner.partition(".")[0] == "fireiron" for owner in owners)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number
