"""The lines of the package that each test runs, and the duration of the tests: measured once, by coverage with a context per test."""

from __future__ import annotations

import difflib
import functools
import itertools
import json
import re
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import attrs

from mutation.operators import ROOT, source

FOLDER = ROOT / "build" / "mutation"
FILE = FOLDER / "covering.json"
TESTS = ROOT / "tests"
MOST_IMPORTING = 6
"""A module imported by more files is near to none of them."""

MOST_TESTS = 48
"""The number of stored tests per line."""

NEAREST = {
    "check/__init__.py": "alignment",
    "check/banks.py": "check",
    "check/blocks.py": "batched check fused_orders",
    "check/bounds.py": "batched",
    "check/tma_boxes.py": "printed_text",
    "check/coalescing.py": "check_banks check",
    "check/data_dependent_loops.py": "ragged hopper_ragged",
    "check/finding.py": "check",
    "check/ptxas_register_hazard.py": "build_gate",
    "check/known_bits.py": "alignment check_alignment",
    "check/races/__init__.py": "check",
    "check/races/atoms.py": "races races_footprints",
    "check/races/clusters.py": "cluster",
    "check/races/findings.py": "races_footprints races",
    "check/races/stage_ownership.py": "races_issuing_threads planted stages",
    "check/races/loops.py": "races lengths",
    "check/races/conflicts.py": "races_footprints races",
    "check/races/order.py": "races rings order_mma_kernels wgmma_waits",
    "check/races/footprints.py": "races",
    "check/races/segments.py": "races warpgroup_agents",
    "check/races/tiles.py": "tiles hopper_attention",
    "check/races/traces.py": "races rings order_mma_kernels",
    "check/resources.py": "inspect check",
    "check/windows.py": "affine_outside affine",
    "check/access_trace.py": "check_bounds check",
    "check/index_width.py": "check_tma_boxes",
    "derive/": "rules",
    "derive/facts.py": "rules",
    "derive/families.py": "rules",
    "derive/forms.py": "rules",
    "derive/prefix.py": "rules",
    "derive/search.py": "searches rules",
    "derive/sketch.py": "rules",
    "draw/ring.py": "draw",
    "executable/tma.py": "batched",
    "inspect/synchronization.py": "explain_sync",
    "ir/access.py": "synchronize",
    "ir/smem_layouts.py": "wgmma",
    "ir/register_ownership.py": "distribute",
    "ir/verifier.py": "programmatic_launch fused_skip",
    "lower/overlap.py": "node_overlap",
    "lower/exchange.py": "node_exchange",
    "language/tile_assignment.py": "tile_assignment toys cluster persistence dynamic_scheduler",
    "language/library.py": "hopper tiles_chosen",
    "language/to_blocks.py": "tile_assignment tiles persistence dynamic_scheduler",
    "language/tree.py": "contracts",
    "language/waves.py": "tiles_chosen",
    "lower/allocate.py": "inspect stages within",
    "lower/order_mma.py": "order_mma_kernels",
    "lower/sink_relu.py": "ahead",
    "lower/edge_versioning.py": "fused_vectors",
    "lower/wrap_boxes.py": "wrap_boxes",
    "lower/separate_masks.py": "separated_loops",
    "lower/divide.py": "reciprocals",
    "lower/fence.py": "wgmma_waits",
    "lower/footprint.py": "synchronize hazards",
    "lower/peeled_fills.py": "ahead guard",
    "lower/pipeline.py": "pipeline_pass specialize rings_by_users ahead",
    "lower/wgmma_waits.py": "specialize rings_by_users share order_mma_kernels",
    "lower/registers.py": "serialized",
    "lower/defer.py": "verbs_together",
    "lower/shared_stages.py": "share",
    "lower/temporary_stages.py": "placed",
    "lower/specialize.py": "statements rings_by_users hopper_attention ahead pingpong",
    "lower/barrier_placement.py": "hazards",
    "lower/access_map.py": "wait synchronize",
    "lower/vectorize.py": "fused_vectors alignment",
    "cuda/": "texts drawn_ir printer_nodes printed_parts",
    "cuda/addresses.py": "specialize staggered rings",
    "cuda/skipping_loops.py": "fused_skip",
    "cuda/frame.py": "alignment export cuda_text programmatic_launch",
    "cuda/makers.py": "explorer",
    "cuda/micro_kernel.py": "regressions own_files graphene_kernels walk language parameters",
    "cuda/expressions.py": "cuda_expressions",
    "cuda/printer.py": "coordinates fused_terms vectorize fused_packed",
    "cuda/quotients.py": "reciprocals",
    "cuda/semaphores.py": "joint_tiles stream_k",
    "check/streamed_tiles.py": "stream_k",
    "stepping/segments.py": "stream_k",
    "refine/stream_k.py": "stream_k",
    "cuda/rings.py": "dynamic_scheduler cluster order_mma_kernels specialize",
    "cuda/rotations.py": "staggered",
    "cuda/small_float_pairs.py": "eight_bit_factors printer",
    "cuda/reductions.py": "outlining cross_thread_reduction fused_rows",
    "cuda/statements.py": "asynchronous synchronize cuda_text fused_skip",
    "cuda/types.py": "special cuda_types",
    "cuda/versions.py": "guard fused_vectors",
    "cuda": "cuda_text cuda_expressions",
    "decomp/": "wrong_arguments",
    "decomp/coalesced_copy.py": "fused_vectors split_k",
    "decomp/done.py": "fused_values fused_partial verbs_together register_ownership",
    "decomp/epilog.py": "epilog ahead",
    "decomp/load.py": "pipeline verbs_together",
    "decomp/mma_tile.py": "mma wmma",
    "decomp/rfactor.py": "fused_partial",
    "decomp/set_memory.py": "fused_shared fused_refusals",
    "decomp/step": "fused_values fused_rows fused_epilogue fused_packed",
    "decomp/split.py": "verbs_together ragged order_mma_kernels fused_refusals rotate",
    "decomp/to_gpus.py": "node node_sizes",
    "decomp/tile.py": "tiles verbs_together fused_orders",
    "gpu/arguments.py": "launch parameters maps newcomer bad_inputs",
    "gpu/arrays.py": "launch maps parameters bad_inputs",
    "gpu/sass_register_check.py": "build_gate",
    "gpu/barrier.py": "gpu_barrier peer_memory",
    "gpu/gradients.py": "jax_functions function_gradients",
    "gpu/jax_calls.py": "traced_calls jax",
    "gpu/launch.py": "launch_driver launch counters programmatic_launch maps toolchain",
    "gpu/maps.py": "maps tma",
    "gpu/symmetric.py": "peer_memory",
    "gpu/sequence.py": "launches graph_calls kernel_graph",
    "gpu/prepared.py": "launch parameters counters maps fused_readers",
    "lower/unused_releases.py": "ahead sim_rings planted",
    "lower/wait.py": "wgmma_waits",
    "performing/boxes.py": "tma",
    "performing/by_lanes.py": "graphene_kernels",
    "performing/integers.py": "integer_ranges integer_operators integer_formulas",
    "performing/layout_propagation.py": "register_ownership",
    "performing/packed_integers.py": "packed_integers",
    "performing/small_floats.py": "small_floats",
    "performing/ownership_mismatch.py": "register_ownership",
    "performing/matrices.py": "mma stmatrix_warpgroup graphene_kernels",
    "performing/multiply_add.py": "special wrong_arguments",
    "performing/warpgroups.py": "wgmma",
    "refine/rasterize.py": "tile_assignment",
    "refine/longest_first.py": "tile_assignment fused_orders",
    "refine/permute.py": "tile_assignment",
    "refine/storage_layout.py": "graphene_kernels",
    "refine/swizzle_storage.py": "pipeline",
    "sim/block_batch.py": "sim_tma_boxes fused_skip",
    "sim/conditions.py": "sim_block_batch indirect",
    "sim/memory.py": "sim_locations sim_launch",
    "sim/plan.py": "sim_tma_boxes sim_launch sim",
    "sim/run.py": "sim_race_detector sim_launch",
    "sim/warps.py": "sim_rings sim_race_detector",
    "sim/tracing.py": "print_values",
    "specs/tracing.py": "print_values",
    "executable/print_value.py": "print_values",
    "stepping/tracing.py": "print_values",
    "specs/bits.py": "integer_ranges integer_operators integer_formulas",
    "specs/integers.py": "integer_ranges integer_operators integer_formulas",
    "specs/philox.py": "integer_ranges",
    "specs/small_floats.py": "small_floats second_formula",
    "specs/rfactor.py": "fused_partial",
    "specs/terms.py": "fused_terms",
    "stepping/": "wrong_arguments",
    "specs/tile_prefix.py": "look_back",
    "stepping/cross_thread.py": "scans look_back",
    "stepping/cross_thread_scan.py": "scans look_back",
    "stepping/cross_thread_reduction.py": "fused_products fused_readers fused_values fused_partial",
    "stepping/out_of_bounds.py": "fused_masks",
    "stepping/masked_tiles.py": "ragged",
    "stepping/masks.py": "fused_masks attention_decode",
    "stepping/predicated_region.py": "fused_skip",
    "stepping/steps.py": "fused_skip fused_values fused_rows fused_epilogue fused_packed",
    "stepping/masked_tile_effects.py": "fused_masks",
    "stacks.py": "matmul",
    "tasks/dependences.py": "tasks_events",
    "tasks/execute.py": "tasks_events tasks_allocate",
    "tasks/grid.py": "tasks_refusals",
    "tasks/mapping.py": "tasks_programs",
    "tasks/packing.py": "tasks_allocate",
    "tasks/reduce.py": "tasks_events",
    "tasks/roles.py": "tasks_allocate",
    "tasks/step.py": "tasks_refusals tasks_programs",
    "tasks/vectorize.py": "tasks_events",
    "values/expr/": "expr cuda_expressions",
    "values/layout/": "layout graphene",
    "values/layout/swizzles.py": "layout",
    "values/notation/": "notation graphene",
    "values/orders.py": "node notation",
    "values/tensor.py": "graphene notation",
    "values/strides.py": "graphene batched",
    "values/level.py": "graphene launch",
    "values/machine.py": "graphene launch",
    "values/aliases.py": "language",
    "values/region.py": "toys allocate",
    "values/trees.py": "expr outside",
    "values/typed.py": "outside",
    "values/units.py": "graphene_kernels",
}
"""Test file names near to modules that no file is named after."""


@attrs.frozen
class Covering:
    """Tests by the lines that they run, for the modules as they were when measured."""

    tests: list[tuple[str, float]]
    """Their pytest names and seconds."""
    lines: dict[str, dict[str, list[int]]]
    """For each module and line, the indices of its tests in `tests`."""
    texts: dict[str, str]

    @staticmethod
    def load(file: Path = FILE) -> Covering:
        """The measured data; empty if there are none."""
        if not file.is_file():
            return Covering([], {}, {})
        return Covering(**json.loads(file.read_text(encoding="utf-8")))

    def save(self, file: Path = FILE) -> None:
        """Write it to the file."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(attrs.asdict(self)), encoding="utf-8")

    def of(self, module: str, line: int) -> list[tuple[str, float]]:
        """The tests that run a line of a module as it is now."""
        then = self._lines_then(module).get(line)
        return [self.tests[number] for number in self.lines.get(module, {}).get(str(then), ())]

    def files(self, module: str) -> set[str]:
        """The files of the tests that run a line of a module."""
        return {self.tests[number][0].partition("::")[0] for numbers in self.lines.get(module, {}).values() for number in numbers}

    def with_data(self, data: Path, durations: Path) -> Covering:
        """This combined with a run of coverage (its data file) and of `durations`."""
        seconds = dict(reversed(line.split(" ", 1)) for line in durations.read_text(encoding="utf-8").splitlines())
        tests = [*self.tests]
        places = {name: number for number, (name, _) in enumerate(tests)}
        lines = {module: dict(found) for module, found in self.lines.items()}
        texts = dict(self.texts)
        for context, file, numbers in _rows(data):
            name = context.partition("|")[0]
            if name not in seconds or not file.startswith(f"{ROOT}/fireiron/"):
                continue
            if name not in places:
                places[name] = len(tests)
                tests.append((name, float(seconds[name])))
            module = str(Path(file).relative_to(ROOT / "fireiron"))
            texts.setdefault(module, source(module))
            of_module = lines.setdefault(module, {})
            for number in numbers:
                of_line = of_module.setdefault(str(number), [])
                if places[name] not in of_line[-3:]:
                    of_line.append(places[name])
        return Covering(
            tests, {module: {line: _shortest(tests, of) for line, of in found.items()} for module, found in lines.items()}, texts
        )

    def _lines_then(self, module: str) -> dict[int, int]:
        then = self.texts.get(module, "")
        return _same_lines(then, source(module))


def _shortest(tests: Sequence[tuple[str, float]], numbers: Sequence[int]) -> list[int]:
    """The stored tests of a line: the shortest of each file, round-robin."""
    by_file: dict[str, list[int]] = {}
    for number in sorted(numbers, key=lambda number: tests[number][1]):
        by_file.setdefault(tests[number][0].partition("::")[0], []).append(number)
    rounds = itertools.chain.from_iterable(itertools.zip_longest(*by_file.values()))
    return list(itertools.islice((one for one in rounds if one is not None), MOST_TESTS))


@functools.cache
def _same_lines(before: str, after: str) -> dict[int, int]:
    """The number that each line of a text had in another one."""
    if before == after:
        return {number: number for number in range(1, len(after.splitlines()) + 1)}
    matcher = difflib.SequenceMatcher(None, before.splitlines(), after.splitlines(), autojunk=False)
    return {b + step + 1: a + step + 1 for a, b, size in matcher.get_matching_blocks() for step in range(size)}


def _rows(data: Path) -> list[tuple[str, str, list[int]]]:
    from coverage.numbits import numbits_to_nums

    with sqlite3.connect(data) as base:
        rows = base.execute(
            "select context.context, file.path, line_bits.numbits from line_bits join context on context.id = line_bits.context_id "
            "join file on file.id = line_bits.file_id"
        )
        return [(context, file, numbits_to_nums(bits)) for context, file, bits in rows]


@functools.cache
def nearest(module: str) -> tuple[str, ...]:
    """The test files nearest to a module: those named after it or listed in `NEAREST`; otherwise those that import it."""
    stem = Path(module).parent.name if module.endswith("__init__.py") else Path(module).stem
    same_name = [f"tests/{file.name}" for file in TESTS.glob(f"test_{stem}*.py") if not file.stem.endswith("_gpu")]
    dotted = module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    parent, _, name = dotted.rpartition(".")
    pattern = re.compile(rf"fireiron\.{re.escape(dotted)}\b|from fireiron\.?{re.escape(parent)} import [^\n]*\b{name}\b")
    listed = [f"tests/test_{name}.py" for part, names in NEAREST.items() if module.startswith(part) for name in names.split()]
    if near := [*(listed if module.startswith("cuda/") else ()), *same_name, *listed]:
        return tuple(dict.fromkeys(near))
    imports = tuple(file for file, text in importing() if pattern.search(text))
    return imports if len(imports) <= MOST_IMPORTING else ()


@functools.cache
def importing() -> list[tuple[str, str]]:
    """The test files, with their lines that import modules of the package."""
    imports = []
    for file in sorted(TESTS.glob("test_*.py")):
        lines = file.read_text(encoding="utf-8").splitlines()
        imports.append((f"tests/{file.name}", "\n".join(line for line in lines if "import" in line and "fireiron" in line)))
    return imports
