"""Select the cases that run by default: of a large family a fixed sample; `make fuzz` runs all. Also a check of each program of tasks that
a test compiles.
"""

import compileall
import contextlib
import ctypes
import functools
import gc
import importlib
import pathlib
import sys
import zlib

import long_tests
import pytest

collect_ignore_glob = ["typed/*"]  # programs for type checkers, some of them wrong

SAMPLE = 36
"""Of a family of cases about one in this many runs by default, and at least one."""

FEWEST_LARGE = 9
"""Of a family with at least this many cases, about one in three times as many runs."""

WHOLE = (
    "test_campaign",
    "test_check_alignment",
    "test_check_banks",
    "test_check_blocks",
    "test_check_bounds",
    "test_check_tma_boxes",
    "test_check_data_dependent_loops",
    "test_check_uninitialized_shared",
    "test_check_finding",
    "test_check_known_bits",
    "test_check_uninitialized_registers",
    "test_check_resources",
    "test_check_access_trace",
    "test_check_variable_trip_count",
    "test_check_index_width",
    "test_contracts",
    "test_corpus",
    "test_documents",
    "test_first_day",
    "test_newcomer",
    "test_site",
    "test_same_rules",
    "test_own_files",
    "test_arguments",
    "test_arrays",
    "test_launch_driver",
    "test_maps",
    "test_prepared",
    "test_wgmma_waits",
    "test_races_lengths",
    "test_races_issuing_threads",
    "test_races_footprints",
    "test_sim_block_batch",
    "test_sim_launch",
    "test_sim_memory",
    "test_sim_locations",
    "test_sim_plan",
    "test_sim_rings",
    "test_sim_run",
    "test_sim_shadow",
    "test_sim_warps",
    "test_sim_race_detector",
)
"""Files whose cases all run: each is another extension, page, user problem, launch argument, or limit of a check that takes milliseconds.
"""


ALLOCATOR = {-1: 1 << 30, -2: 1 << 26, -3: 1 << 25}
"""Parameters of `mallopt` of glibc: bytes kept when memory is freed, bytes requested at once, and the size from which arrays are mapped."""


def pytest_configure():
    """Let the allocator keep freed memory: otherwise each large array is mapped again, page by page, which takes a tenth of the time."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    for parameter, value in ALLOCATOR.items() if mallopt is not None else ():
        mallopt(parameter, value)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """Collect without Python's garbage collector, which then ignores the items and modules: they stay until the end."""
    gc.disable()
    try:
        import_share(session.config)
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(20_000, 20, 50)  # kernels stay in caches, so frequent collections find little: 2 % of the time


def import_share(config):
    """Compile this worker's share of the package, and import its share of the test files: the other workers read the result.

    In a fresh clone, compiling all, with asserts that show their values, takes 26 s of processor time. Without shares each worker does it.
    """
    folder = pathlib.Path(__file__).parent
    worker = getattr(config, "workerinput", None)
    if worker is None or sys.dont_write_bytecode or not any((config.rootpath / arg).resolve() == folder for arg in config.args):
        return
    share = slice(int(worker["workerid"].removeprefix("gw")), None, worker["workercount"])
    for path in sorted(path for package in ("fireiron", "strategies") for path in (folder.parent / package).rglob("*.py"))[share]:
        compileall.compile_file(path, quiet=2)
    for name in sorted(path.stem for path in folder.glob("test_*.py"))[share]:
        with contextlib.suppress(Exception, pytest.skip.Exception):  # collection imports it again, and reports the error
            importlib.import_module(name)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the cases outside of the sample as `nightly`: all but about one in n, chosen by name (`sample`).

    `sampled(n)` specifies n instead of the family's size. Also mark the tests in the tables of `long_tests`.
    """
    for item in filter(long_tests.is_long, items):
        item.add_marker(pytest.mark.nightly)
    families = {}
    for item in items:
        is_whole = item.path.stem in WHOLE and item.get_closest_marker("sampled") is None
        if hasattr(item, "callspec") and not is_whole and item.get_closest_marker("gpu") is None:
            families.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in families.values():
        sampled = cases[0].get_closest_marker("sampled")
        usual = SAMPLE if len(cases) < FEWEST_LARGE else 3 * SAMPLE
        of = usual if sampled is None else sampled.args[0]
        of *= 1 if sampled is None or of == 1 else 3  # the default tier takes less than 15 minutes on two cores
        for item in set(cases) - set(sample(cases, of)):
            item.add_marker(pytest.mark.nightly)


def sample(cases, of):
    """About one in `of` cases, chosen by name: at least one, and at most one for each `of` cases that have begun."""
    first, *others = sorted(cases, key=chance)
    return [first, *(item for item in others if chance(item) % of == 0)][: -(-len(cases) // of)]


def chance(item):
    """A random number derived from a case's name, equal in every process."""
    return zlib.crc32(item.name.encode())


LARGE = 1 << 30
"""Bytes that the memory pools of a process may keep after a test: other processes use the same GPU."""


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """Collect garbage at the end of a file, exempt what it leaves, and return unused memory of the GPU, if a test of the GPU leaves much.

    Programs stay in caches. A full collection late in a run would take ten seconds to examine them. Garbage that is exempt would stay.
    """
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()
    if item.get_closest_marker("gpu") is None:
        return
    cupy, torch = sys.modules.get("cupy"), sys.modules.get("torch")
    if cupy is not None and cupy.get_default_memory_pool().free_bytes() > LARGE:
        cupy.get_default_memory_pool().free_all_blocks()
    if torch is not None and torch.cuda.is_initialized() and torch.cuda.memory_reserved() - torch.cuda.memory_allocated() > LARGE:
        torch.cuda.empty_cache()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Require that every program of tasks that a test of tasks compiles keeps the order of its events."""
    if not item.path.stem.startswith("test_tasks"):
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        compare_events(patch)
        return (yield)


def compare_events(patch):
    """Compare the events of each program when its kernel IR is computed."""
    from fireiron.compiler import Program
    from fireiron.inspect.oracle import check_events

    plain_ir = Program.__dict__["ir"].func

    def compared(program):
        kernel = plain_ir(program)
        assert [str(one) for one in check_events(program)] == []
        return kernel

    replaced = functools.cached_property(compared)
    replaced.__set_name__(Program, "ir")
    patch.setattr(Program, "ir", replaced)
