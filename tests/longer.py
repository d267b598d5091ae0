"""Which cases of a test run in `make test-long` only: the others of the same test show in `make
test` that the way as a whole is open, and most of what these try is tried in process there, too.

`.ci/run` runs both. A test that is long as a whole has the mark `long` where it stands.
"""

from __future__ import annotations

from pathlib import Path

import pytest

KEPT: dict[str, tuple[str, ...]] = {
    # file::test -> cases that stay in make test; all others are long
    "spark/test_operators.py::test_in_process_batch_and_stream_agree": (
        "synchronize", "batch", "window rows", "align", "align, then episodes"),
    "spark/test_hostile_names.py::test_a_backfill": ("synchronize-8",),
    "spark/test_hostile_names.py::test_a_stream_and_a_definition": ("window-12",),
    "spark/test_checkpoint_tools.py::test_rescaled_saved_and_started_from": ("True",),
    "spark/test_faults.py::test_nothing_lost_nothing_twice": ("a truncated file",),
    "spark/test_faults.py::test_a_sink_that_fails_at_a_touch_goes_on_from_there": (),
    "spark/test_faults.py::test_files_half_written": (),
    "spark/test_restart.py::test_a_batch_that_failed_leaves_nothing_in_flows_that_workers_keep": (),
    "spark/test_state.py::test_a_spoiled_page": (),  # in process: tests/hostile
    "spark/test_state.py::test_a_state_without_a_seal_is_refused_where_a_key_is_set": (),
    "spark/test_adoption_spark.py::test_as_in_process": ("a stage more",),
    "spark/test_sources_mcap.py::test_a_pipeline_from_yaml": ("streaming",),
    "spark/test_sources_mcap.py::test_decoded_fields_from_yaml": ("False",),
    "spark/test_sources_mcap.py::test_stream_in_small_steps": (),
    "spark/test_sources_files.py::test_files": ("parquet",),
    "spark/test_sources_files.py::test_a_link_that_is_added_while_a_stream_runs_ends_it": ("json",),
    "spark/test_sources_rosbag.py::test_bags_from_yaml": (),  # as a stream stays
    "spark/test_parity.py::test_two_streams_with_times_of_their_own": (),
    "spark/test_timers.py::test_a_quiet_key_is_released_then_forgotten": (),
    "spark/test_stall.py::test_a_clock_that_steps_back_is_followed_after_a_stall": (),
    "spark/columnar/test_gates.py::test_a_backfill_equals_gate_2": ("3000-addressed",),
    "spark/columnar/test_gates.py::test_a_backfill_that_is_cut_off_goes_on": (),
    "spark/columnar/test_gates.py::test_a_checkpoint_of_the_other_gate_is_refused": (),
    "spark/test_arrival.py::test_no_cut_into_files_changes_a_backfill": ("csv-per_topic",),
    "fuzz/test_fuzz.py::test_good_inputs_and_kept_ones": (  # all but protobuf: tests/hostile
        "snapshot", "yaml", "addresses", "mcap", "parquet", "gate", "text", "spool", "json", "page",
        "bag", "bag2", "ros"),
    "fuzz/test_fuzz.py::test_changed_inputs": ("snapshot", "savepoint", "yaml"),
    "deltas/test_jobs_at_once.py::test_jobs_at_once_lose_nothing_and_never_miss_a_file": ("2",),
    "deltas/test_table.py::test_really_killed": (),
    "report/test_hostile_page.py::test_hostile_names_in_the_tables_are_text": (),
    "laws/test_windows_laws.py::test_restart": (
        "tumbling", "session, complete", "sliding", "adaptive"),
    "laws/test_adoption.py::test_keys_that_move_to_other_shards_change_nothing": (),
}  # fmt: skip


SLOWEST = (
    "spark/test_windows_settings.py", "spark/test_corpus_runs.py", "spark/test_arrival.py",
    "test_cli.py", "spark/columnar/test_gates.py", "spark/test_operators.py",
    "spark/test_hostile_names.py", "spark/columnar/test_text.py", "spark/test_restart.py",
    "spark/test_deltas_settings.py", "spark/test_sources_kafka.py", "spark/test_sources_files.py",
    "fuzz/test_fuzz.py", "spark/test_faults.py", "spark/test_sources_mcap.py",
    "spark/test_schemas.py", "spark/test_sources_rosbag.py", "spark/test_state.py",
    "deltas/test_jobs_at_once.py", "spark/test_deltas_spark.py", "spark/test_parity.py",
    "spark/test_checkpoint_tools.py", "laws/test_windows_laws.py", "output/test_simulation.py",
    "spark/test_sorted_batch.py", "spark/columnar/test_summaries.py", "test_cli_watch.py",
)  # fmt: skip
"""Files that take longest, the slowest first: begun late, a file of four minutes is waited for by
all other workers (2 of 12 minutes of `make test-long`)."""


def slowest_first(items: list[pytest.Item]) -> None:
    """Put the tests of slow files first; all others keep their order."""
    tests = Path(__file__).parent
    rank = {tests / name: place for place, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


def keep_together(item: pytest.Item) -> None:
    """Have one worker run all tests of a file, whose fixtures are then made once; a test that names
    a group of its own goes with that one."""
    if item.get_closest_marker("xdist_group") is None:
        item.add_marker(pytest.mark.xdist_group(str(item.path)))


def mark(item: pytest.Item) -> None:
    """Give a test the mark `long` if its case is not one that stays."""
    file, _, name = item.nodeid.partition("::")
    test, _, case = name.partition("[")
    kept = KEPT.get(f"{file.removeprefix('tests/')}::{test}")
    if kept is not None and case.removesuffix("]") not in kept:
        item.add_marker(pytest.mark.long)
