"""Tests of the long tier, each with a test of the default tier that executes the same code.

The default tier takes less than 15 minutes on two cores. A test of more than a second is in this table if the other one fails for most
faults in the same code. `make fuzz` runs all. Texts of kernels are also compared with stored ones by default (`tests/goldens`).
"""

RUN_ON_A_CPU = {
    "test_nested::test_printed_texts_on_a_cpu": "test_nested::test_results",
    "test_fused_products::test_printed_text_on_a_cpu": "test_fused_products::test_simulated_results",
    "test_fused_readers::test_printed_texts_on_a_cpu": "test_fused_readers::test_commands",
    "test_fused_epilogue::test_printed_epilogues_on_a_cpu": "test_fused_epilogue::test_matmul_with_an_epilogue",
    "test_scalar_outputs::test_printed_scalars_on_a_cpu": "test_scalar_outputs::test_scalars_are_values_with_texts",
    "test_sparse_steps::test_printed_text": "test_sparse::test_printed_text",
    "test_sparse::test_printed_text_of_warpgroups": "test_sparse::test_printed_text",
    "test_packed_integers::test_texts_on_a_cpu": "test_packed_integers::test_faults_of_texts_are_found",
    "test_tiles::test_printed_texts_by_layouts": "test_printed_text::test_copies_of_a_warp",
    "test_fused_random::test_printed_generated_definitions_on_a_cpu": "test_fused_random::test_generated_definitions_equal_float64",
    "test_rings_by_users::test_printed_texts_on_a_cpu": "test_rings_by_users::test_kernels_are_right",
    "test_scattered_sums::test_printed_sums_on_a_cpu": "test_printed_text::test_drawn_strategies",
    "test_repack::test_the_printed_copies_on_a_cpu": "test_repack::test_transposing_copies_compile",
    "test_look_back::test_printed_texts_on_a_cpu": "test_look_back::test_one_pass",
    "test_fused_skip::test_printed_text_on_a_cpu": "test_fused_skip::test_skipped_steps_change_no_bits",
    "test_store_rings::test_texts_on_a_cpu": "test_store_rings::test_faults_of_texts_are_found",
    "test_scans::test_printed_texts_on_a_cpu": "test_scans::test_what_users_inspect",
    "test_fused_rows::test_printed_texts_of_chunks": "test_fused_rows::test_online_softmax",
    "test_tma_add::test_the_printed_text_runs": "test_tma_add::test_each_block_adds_its_part",
    "test_attention_decode::test_printed_text": "test_attention_decode::test_decode",
    "test_roles::test_texts_of_separate_producers_on_a_cpu": "test_roles::test_texts_on_a_cpu",
    "test_roles::test_texts_of_two_producers_on_a_cpu": "test_roles::test_texts_on_a_cpu",
    "test_combined_random::test_printed_kernels_on_a_cpu": "test_combined_random::test_generated_kernels_equal_numpy",
    "test_fused_packed::test_printed_texts_on_a_cpu": "test_printed_text::test_element_types",
    "test_special::test_special_numbers_in_the_printed_text": "test_special::test_a_product_and_a_sum_are_rounded_once_in_the_simulator",
    "test_hopper_attention::test_printed_text": "test_printed_text::test_products_of_warpgroups",
    "test_fused_attention::test_printed_attention_on_a_cpu": "test_printed_text::test_drawn_strategies",
}
"""Printed texts compiled for a CPU and executed there."""

FAULTS_OF_TEXTS = {
    "test_printed_text::test_a_dropped_guard_is_found": "test_printed_text::test_a_dropped_barrier_is_found",
    "test_printed_text::test_a_misaligned_vector_is_found": "test_printed_text::test_a_dropped_barrier_is_found",
    "test_printed_text::test_fresh_memory_is_poison": "test_printed_text::test_a_dropped_barrier_is_found",
    "test_printed_text::test_a_swapped_address_of_ldmatrix_is_found": "test_printed_text::test_a_dropped_barrier_is_found",
    "test_printed_text::test_a_missing_wait_for_products_is_found": "test_printed_text::test_faults_in_rings_are_found",
    "test_printed_text::test_an_address_beyond_shared_memory_is_found": "test_printed_text::test_a_dropped_barrier_is_found",
    "test_printed_text::test_diverging_lanes_are_detected": "test_printed_text::test_a_dropped_barrier_is_found",
    "test_printed_text::test_faults_of_clusters_are_found": "test_printed_text::test_faults_in_rings_are_found",
    "test_added_halves::test_a_fault_of_the_text_is_found": "test_added_halves::test_fragments_are_added_in_pairs",
    "test_wgmma_registers::test_text_without_its_wait_is_wrong": "test_wgmma_registers::test_injected_faults_in_rings",
    "test_cuda_expressions::test_wrong_printers_are_found": "test_cuda_expressions::test_named_expressions_in_c",
}
"""Faults injected into texts: they test the emulation on a CPU, which belongs to the tests."""

COMPILED = {
    "test_attention_gradients::test_deterministic_kernels_compile_without_spills": "test_contracts::TestInstruction::test_compiles",
    "test_attention_gradients::test_kernels_compile_without_spills_of_the_default": "test_contracts::TestInstruction::test_compiles",
    "test_attention_packed_gradients::test_kernels_compile": "test_contracts::TestInstruction::test_compiles",
    "test_fused_rows::test_no_spills": "test_build_gate::test_some_strategies_do_not_spill",
    "test_fused_vectors::test_no_spills": "test_build_gate::test_some_strategies_do_not_spill",
    "test_tasks_attention::test_compiled_without_spills": "test_build_gate::test_some_strategies_do_not_spill",
    "test_fused_skip::test_skip_steps_compiles_without_spills": "test_build_gate::test_some_strategies_do_not_spill",
    "test_latent_attention::test_compiled_without_spills": "test_build_gate::test_some_strategies_do_not_spill",
    "test_quantized::test_compiles_without_spills": "test_build_gate::test_some_strategies_do_not_spill",
    "test_fused_products::test_fused_gemms_of_run_time_sizes_do_not_spill": "test_fused_products::test_fused_gemms_do_not_spill",
    "test_mma::test_copies_compile": "test_mma::test_compiles",
    "test_mma::test_conversions_compile": "test_mma::test_compiles",
    "test_compile::test_types": "test_compile::test_strategies",
    "test_compile::test_random_strategies": "test_compile::test_strategies",
    "test_split_k::test_types_compile": "test_split_k::test_compiles",
    "test_look_back::test_nvrtc_compiles": "test_contracts::TestInstruction::test_compiles",
    "test_stream_k::test_nvrtc_compiles_the_text": "test_contracts::TestInstruction::test_compiles",
    "test_exchange::test_the_texts_are_taken": "test_compile::test_strategies",
    "test_integer_formulas::test_nvrtc_takes_each_width": "test_compile::test_strategies",
    "test_todays_kernels::test_compiles": "test_todays_kernels::test_simulated",
    "test_sparse_steps::test_compiled": "test_sparse::test_compiled",
    "test_graphene_text::test_by_hand_compiles": "test_graphene_text::test_by_hand",
    "test_maps::test_exports_compile_and_need_no_driver_to_link": "test_maps::test_code_for_one_gpu_is_built_for_it_alone",
    "test_export::test_libraries": "test_export::test_compiles_links_and_refuses",
    "test_export::test_two_exports_in_one_program": "test_export::test_compiles_links_and_refuses",
}
"""Compiled by NVRTC, nvcc or a C compiler."""

SEPARATE_PROCESSES = {
    "test_export::test_equal_in_every_process": "test_same_everywhere::test_a_few_kernels_are_the_same_everywhere",
    "test_stored_programs::test_keys_are_the_same_in_every_process": "test_cache::test_keys_are_the_same_in_every_process",
    "test_records::test_hash_in_another_process": "test_cache::test_keys_are_the_same_in_every_process",
    "test_pytest_plugin::test_comparison_with_a_saved_run": "test_pytest_plugin::test_wrong_results_fail",
    "test_pytest_plugin::test_only_and_skip": "test_pytest_plugin::test_options",
    "test_pytest_plugin::test_sweeps_verify_in_the_simulator": "test_pytest_plugin::test_no_gpu",
    "test_pytest_plugin::test_without_pytest_benchmark": "test_pytest_plugin::test_no_gpu",
    "test_pytest_plugin::test_symbolic_sizes": "test_pytest_plugin::test_options",
    "test_pytest_plugin::test_disabled_benchmarks_verify": "test_pytest_plugin::test_wrong_results_fail",
    "test_pytest_plugin::test_markers_of_other_plugins_are_ignored": "test_pytest_plugin::test_options",
    "test_cli::test_help_is_quick": "test_contracts::test_import_is_quick",
    "test_newcomer::test_users_own_strategies_next_to_an_installation": "test_newcomer::test_users_own_strategies_next_to_a_checkout",
    "test_cache::test_many_processes_without_locks": "test_cache::test_many_processes_compile_once",
    "test_cache::test_killed_while_it_compiles": "test_cache::test_killed_while_it_writes",
    "test_mutation::test_a_separate_process_has_the_change": "test_mutation::test_a_separate_process_imports_the_change",
}
"""Sessions and programs in separate processes."""

DRAWN = {
    "test_scans::test_generated_definitions_are_values": "test_notation::test_round_trips_in_random_strategies",
    "test_combined_random::test_generated_kernels_are_values": "test_notation::test_round_trips_in_random_strategies",
    "test_indirect_random::test_generated_kernels_are_values": "test_notation::test_round_trips_in_random_strategies",
    "test_fused_partial::test_rfactor_round_trips": "test_notation::test_round_trips_in_random_strategies",
    "test_nested::test_generated_definitions_are_values": "test_notation::test_round_trips_in_random_strategies",
    "test_exchange::test_registers_of_several_iterations": "test_exchange::test_random_distributions_are_exchanged",
    "test_exchange::test_transposed": "test_exchange::test_random_distributions_are_transposed",
    "test_corpus::test_further_results_do_not_change_unintentionally": "test_corpus::test_results_do_not_change_unintentionally",
}
"""Random strategies, and further stored texts."""

VARIANTS = {
    "test_tasks_oracle::test_faults_are_found": "test_tasks_oracle::test_drawn_programs_that_are_kernels",
    "test_tasks_attention::test_the_synchronization_of_the_fluent_twin": "test_tasks_programs::test_the_statements_are_those_of_the_fluent_twin",
    "test_hopper_attention::test_delayed": "test_hopper_attention::test_simulated",
    "test_hopper_attention::test_growing_scores": "test_hopper_attention::test_simulated",
    "test_hopper_attention::test_orders": "test_hopper_attention::test_simulated",
    "test_hopper_attention::test_tiles_whose_lengths_are_known_at_run_time": "test_hopper_attention::test_sizes_known_at_run_time",
    "test_hopper_attention::test_deferred_loop_of_one_iteration_with_a_ring": "test_defer::test_loops_that_may_be_empty",
    "test_fused_attention::test_attention_types_and_increasing_scores": "test_fused_attention::test_fully_masked_rows",
    "test_fused_attention::test_attention_with_two_three_and_four_warps": "test_fused_attention::test_fully_masked_rows",
    "test_fused_attention::test_lazy_rescaling": "test_fused_skip::test_lazy_rescaling_equals_softmax",
    "test_fused_skip::test_lazy_rescaling_of_fully_masked_rows": "test_fused_skip::test_lazy_rescaling_equals_softmax",
    "test_paged_attention::test_contiguous_caches_with_another_score": "test_paged_attention::test_one_query",
    "test_paged_attention::test_several_queries_with_a_window_and_sinks": "test_paged_attention::test_one_query",
    "test_attention_gradients::test_persistent_blocks": "test_attention_gradients::test_gradients_equal_float64",
    "test_attention_gradients::test_one_wait_at_the_end_of_an_iteration": "test_attention_gradients::test_gradients_equal_float64",
    "test_cli::test_commands_on_persistent_kernels": "test_cli::test_sizes_types_and_layouts",
    "test_rank::test_shuffles_of_other_modes": "test_rank::test_shuffles",
    "test_rank::test_copies_of_any_rank": "test_rank::test_any_formula",
    "test_look_back::test_tiles_in_shared_memory": "test_look_back::test_several_scans_and_later_steps",
    "test_fused_epilogue::test_row_maxima_within_a_block": "test_fused_epilogue::test_reductions_of_expressions_at_edges",
    "test_fused_epilogue::test_epilogue_storage_orders": "test_fused_epilogue::test_epilogue_on_each_strategy",
    "test_sparse::test_views": "test_sparse_steps::test_views",
    "test_nested::test_what_users_inspect": "test_scans::test_what_users_inspect",
    "test_split_k::test_element_types": "test_split_k::test_sizes_known_at_run_time",
    "test_split_k::test_blocks": "test_split_k::test_sizes_known_at_run_time",
    "test_defer::test_texts_read_back": "test_notation::test_round_trips_in_the_library",
    "test_fused_readers::test_tune_ranks_by_prediction": "test_fused_readers::test_commands",
    "test_repack::test_matmul_takes_all_orders": "test_repack::test_all_orders_of_types_that_are_read_along_k",
    "test_parts_of_k::test_outputs_and_types_of_epilogues_of_parts": "test_parts_of_k::test_outputs_of_products_in_parts",
    "test_language::test_accumulator_types": "test_language::test_accumulate",
    "test_ahead::test_copies_of_all_threads": "test_ahead::test_kernels_are_correct",
    "test_quantized::test_results_in_int8": "test_quantized::test_product",
    "test_wmma::test_options": "test_wmma::test_products",
    "test_linear_cross_entropy::test_stored_by_tma": "test_linear_cross_entropy::test_loss_and_gradients",
}
"""Other sizes, types, orders or options of a kernel that a default test simulates."""

INSTEAD = RUN_ON_A_CPU | FAULTS_OF_TEXTS | COMPILED | SEPARATE_PROCESSES | DRAWN | VARIANTS
"""Each test of the long tier that these tables name, with the test that the default tier runs in its place."""


def is_long(item):
    """Whether a collected test is in the tables."""
    own, *_ = item.nodeid.partition("[")
    return f"{item.path.stem}::{own.partition('::')[2]}" in INSTEAD
