"""The gate (`make test`) proves each promise, not only the longer runs (`make test-full`).

Each promise of `docs/durability.md` and the pages below it, each client of `compat_tests/README.md` and each pipeline
of `spark_examples/` has a test that is marked neither `full` nor `alone`. Markers are read from the syntax tree, so
that nothing is collected.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from tools.gate import left_out

ROOT: Final = Path(__file__).resolve().parent.parent
LEFT_OUT: Final = ("pytest.mark.full", "pytest.mark.alone")
"""The markers of what the gate leaves out (`tools/gate/tiers.py`)."""
DEFINITIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

# --- which tests are in the gate --------------------------------------------------------------------------------------


class Source:
    """A file with tests, or one that they import marks from."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._imported = {
            alias.asname or alias.name: (node.module, alias.name)
            for node in tree.body
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
        }

    @classmethod
    def of(cls, text: str) -> "Source":
        return cls(ast.parse(text))

    def tests(self) -> Mapping[str, bool]:
        """Whether each test is in the gate, by its name (`test_name`, `TestClass::test_name`)."""
        return dict(self._tests(self._tree.body, ""))

    def function(self, test: str) -> ast.AST:
        """The definition of a test."""
        body: list[ast.stmt] = self._tree.body
        for name in test.split("::"):
            [found] = [node for node in body if getattr(node, "name", "") == name]
            body = getattr(found, "body", [])
        return found

    def definitions(self) -> set[str]:
        """The names of the functions and classes of the file."""
        return {node.name for node in self._tree.body if isinstance(node, DEFINITIONS)}

    def _tests(self, body: list[ast.stmt], above: str) -> Iterator[tuple[str, bool]]:
        is_left_out = any(self._is_left_out(mark) for mark in module_or_class_marks(body))
        for node in body:
            if not isinstance(node, DEFINITIONS):
                continue
            is_in_gate = not (is_left_out or any(map(self._is_left_out, node.decorator_list)))
            if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
                for name, is_in_gate_itself in self._tests(node.body, f"{above}{node.name}::"):
                    yield name, is_in_gate and is_in_gate_itself
            elif node.name.startswith("test"):
                yield above + node.name, is_in_gate

    def _is_left_out(self, mark: ast.expr) -> bool:
        """Whether a decorator, a mark or an element of a parameter's values leaves out of the gate what has it."""
        match mark:
            case ast.Attribute():
                return ast.unparse(mark) in LEFT_OUT
            case ast.List(elements) | ast.Tuple(elements):
                return any(map(self._is_left_out, elements))
            case ast.Starred(value):
                return self._is_left_out(value)
            case ast.BinOp(left, ast.Add(), right):
                return self._is_left_out(left) or self._is_left_out(right)
            case ast.IfExp(_, one, other):
                return self._is_left_out(one) and self._is_left_out(other)
            case ast.Name(name):
                return any(source._is_left_out(value) for source, value in self._values_of(name))
            case ast.Call(function):
                return self._call_leaves_out(mark, ast.unparse(function))
        return False

    def _call_leaves_out(self, call: ast.Call, function: str) -> bool:
        named = {keyword.arg: keyword.value for keyword in call.keywords}
        if function == "pytest.param":
            return "marks" in named and self._is_left_out(named["marks"])
        if function == "pytest.mark.parametrize":
            values = named["argvalues"] if "argvalues" in named else call.args[1]
            return self._are_left_out(values)
        return any(source._is_left_out(value) for source, value in self._values_of(function))

    def _are_left_out(self, values: ast.expr) -> bool:
        """Whether each of a parameter's values is: else the test runs in the gate with the others."""
        match values:
            case ast.List(elements) | ast.Tuple(elements):
                return bool(elements) and all(
                    self._are_left_out(each.value) if isinstance(each, ast.Starred) else self._is_left_out(each)
                    for each in elements
                )
            case ast.ListComp(element) | ast.GeneratorExp(element):
                return self._is_left_out(element)
            case ast.BinOp(left, ast.Add(), right):
                return self._are_left_out(left) and self._are_left_out(right)
            case ast.Name(name) | ast.Call(ast.Name(name)):
                return any(source._are_left_out(value) for source, value in self._values_of(name))
        return False

    def _values_of(self, name: str) -> Iterator[tuple["Source", ast.expr]]:
        """The value of a name of the module, or the result of its function, with the file of the definition."""
        for node in self._tree.body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                for each in ast.walk(node):
                    if isinstance(each, ast.Return) and each.value:
                        yield self, each.value
            elif name in assigned_to(node) and isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
                yield self, node.value
        module, original = self._imported.get(name, ("", ""))
        if (path := ROOT / f"{module.replace('.', '/')}.py").is_file() and module:
            yield from source_of(path)._values_of(original)


def assigned_to(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def module_or_class_marks(body: list[ast.stmt]) -> list[ast.expr]:
    """Those of `pytestmark`."""
    return [
        node.value
        for node in body
        if "pytestmark" in assigned_to(node) and isinstance(node, ast.Assign | ast.AnnAssign) and node.value
    ]


@cache
def source_of(path: Path) -> Source:
    return Source.of(path.read_text())


@cache
def gate_by_test(path: Path) -> Mapping[str, bool]:
    return source_of(path).tests()


def in_gate(test: str) -> bool:
    """Of a test that is there, `tests/FILE.py::NAME`; raises KeyError or FileNotFoundError where it is not."""
    path, _, name = test.partition("::")
    return gate_by_test(ROOT / path)[name]


def gate_of(folder: Path) -> Iterator[str]:
    """The tests of a folder, and of those below it, that are in the gate."""
    for file in sorted(folder.rglob("test_*.py")):
        for name, is_in_gate in gate_by_test(file).items():
            if is_in_gate:
                yield f"{file.relative_to(ROOT)}::{name}"


def test_only_the_text_of_a_test_puts_it_into_a_tier() -> None:
    """No hook of a conftest.py adds one of these markers: the reader above would not see it."""
    added = [
        f"{file.relative_to(ROOT)}: {marker}"
        for folder in ("tests", "compat_tests")
        for file in sorted((ROOT / folder).rglob("conftest.py"))
        for argument in re.findall(r"\badd_marker\((.*)\)", file.read_text())
        for marker in LEFT_OUT
        if marker in argument
    ]
    assert added == []


# --- docs/durability.md, docs/durability/ -----------------------------------------------------------------------------

RECOVERY: Final = "tests/storage/recovery/test_recovery.py"
CRASH_POINTS: Final = "tests/storage/recovery/test_crash_points.py"
FAULTS: Final = "tests/storage/test_disk_faults.py"
PASSING: Final = "tests/broker/whole/test_passing_or_final.py::test_each_refusal_passes_or_is_final"
BAD_APPLE: Final = "tests/broker/upkeep/test_one_bad_apple.py"
DISK_FULL: Final = "tests/broker/upkeep/test_disk_full.py"
SCARCE: Final = "tests/broker/network/test_scarce_descriptors.py"
LOST_LOGS: Final = "tests/broker/whole/test_lost_logs.py"
LOG_DIRS: Final = "tests/broker/whole/test_log_dirs.py"
DIRECTORIES: Final = "tests/storage/test_known_directories.py"
LAST_TO_LEAVE: Final = "tests/controller/test_last_to_leave.py"
FLUSH_BEFORE_ACK: Final = "tests/broker/replication/test_flush_before_ack.py"
STRAY_LOGS: Final = "tests/broker/replication/test_stray_logs.py"
FLIPS: Final = "tests/storage/recovery/test_bit_flips.py::test_a_flipped_bit_is_never_served_for_right"
PRODUCER_IDS: Final = "tests/broker/cluster/test_producer_ids.py"

SURVIVES: Final[Mapping[str, tuple[str, ...]]] = {
    "defaults, as in Kafka / `kill -9`": (
        "tests/broker/whole/test_restart.py::test_kills_under_load_lose_and_double_no_records",
        "tests/broker/whole/test_restart.py::test_records_offsets_and_the_cluster_survive",
        "compat_tests/transactions/test_kills.py::test_decisions_hold_while_the_broker_is_killed",
        "compat_tests/transactions/test_every_append.py::test_a_transaction_is_whole_or_absent_after_any_kill",
    ),
    "defaults, as in Kafka / power cut": (
        f"{CRASH_POINTS}::test_every_crash_leaves_what_was_synced_and_nothing_else",
        f"{RECOVERY}::test_records_lost_with_the_machine_are_reported",
    ),
    "`flush.messages`, `flush.ms` / `kill -9`": (
        "tests/broker/whole/test_restart.py::test_records_offsets_and_the_cluster_survive",
        f"{CRASH_POINTS}::test_every_crash_leaves_what_was_synced_and_nothing_else",
    ),
    "`flush.messages`, `flush.ms` / power cut": (
        f"{CRASH_POINTS}::test_every_crash_leaves_what_was_synced_and_nothing_else",
        "tests/broker/replication/test_replica_manager.py::test_the_acknowledgement_waits_for_the_topics_flush",
        "tests/storage/test_log.py::test_flush_ms_makes_a_log_due",
    ),
    "`barnabas.flush.before.ack=true` / `kill -9`": (
        "tests/broker/whole/test_restart.py::test_records_offsets_and_the_cluster_survive",
    ),
    "`barnabas.flush.before.ack=true` / power cut": (
        f"{FLUSH_BEFORE_ACK}::test_an_acknowledged_record_is_below_the_flushed_offset",
        f"{FLUSH_BEFORE_ACK}::test_offsets_are_committed_durably",
        f"{SCARCE}::test_a_transaction_whose_end_is_flushed_late_ends",
        f"{CRASH_POINTS}::test_every_crash_leaves_what_was_synced_and_nothing_else",
    ),
}
"""By the setting and what happens."""

REACHES_THE_DISK: Final[Mapping[str, tuple[str, ...]]] = {
    "records": (
        "tests/storage/test_log.py::test_flush_messages_needs_a_flush_before_acknowledging",
        "tests/storage/test_log.py::test_a_roll_and_an_epoch_do_not_flush_the_active_segment",
        f"{FLUSH_BEFORE_ACK}::test_an_acknowledged_record_is_below_the_flushed_offset",
        "tests/storage/test_log_manager.py::test_a_clean_stop_syncs_what_has_changed_and_nothing_twice",
    ),
    "index files of sealed segments": (
        "tests/storage/test_log.py::test_a_roll_and_an_epoch_do_not_flush_the_active_segment",
        f"{CRASH_POINTS}::test_left_out_syncs_are_found",
    ),
    "index files of active segments": (
        "tests/storage/test_log_manager.py::test_a_clean_stop_syncs_what_has_changed_and_nothing_twice",
        "tests/storage/test_log_manager.py::test_a_clean_stop_of_new_logs_syncs_their_directory_once",
    ),
    "recovery point, log start offsets": (
        "tests/broker/upkeep/test_checkpoints.py::test_checkpoints_are_written_by_their_intervals",
        "tests/broker/upkeep/test_checkpoints.py::test_a_start_that_recovers_writes_recovery_points",
        "tests/broker/upkeep/test_housekeeping.py::test_jobs_run_at_their_intervals",
        f"{CRASH_POINTS}::test_left_out_syncs_are_found",
    ),
    "high watermarks": (
        "tests/broker/upkeep/test_checkpoints.py::test_checkpoints_are_written_by_their_intervals",
        f"{RECOVERY}::test_the_high_watermark_waits_for_the_names_of_segments",
    ),
    "the deletion of a topic": (
        f"{CRASH_POINTS}::test_left_out_syncs_are_found",
        "tests/controller/test_controller.py::test_a_deletion_that_a_broker_refuses_is_told_and_made_later",
        "tests/broker/replication/test_flushes.py::test_producers_learn_of_the_deletion_of_their_log",
    ),
    "what a start after a crash found": (f"{CRASH_POINTS}::test_left_out_syncs_of_a_start_are_found",),
}

FAULT: Final[Mapping[str, tuple[str, ...]]] = {
    "a write of the last moments is missing or torn": (
        f"{RECOVERY}::test_a_torn_tail_is_truncated_at_every_byte",
        f"{RECOVERY}::test_a_tail_of_zeros_or_garbage_is_torn",
        f"{RECOVERY}::test_records_lost_with_the_machine_are_reported",
        "tests/storage/compaction/test_cleaner.py::test_a_gap_in_a_log_that_was_compacted_is_no_damage",
    ),
    "any other damage": (
        f"{RECOVERY}::test_damage_before_whole_batches_is_refused",
        f"{RECOVERY}::test_damage_before_the_recovery_point_is_refused",
        f"{RECOVERY}::test_a_valid_batch_whose_offset_goes_back_is_no_torn_write",
        "tests/controller/test_cluster.py::test_a_replica_that_may_lack_records_waits_for_others",
        "tests/broker/replication/test_following.py::test_a_damaged_log_is_fetched_anew_only_outside_the_isr",
        "tests/broker/whole/test_replication.py::test_a_damaged_replica_is_fetched_anew_and_joins_again",
    ),
    "the damaged replica is the last one of the ISR": (
        f"{LAST_TO_LEAVE}::test_the_other_replica_has_records_that_took_two",
        f"{LAST_TO_LEAVE}::test_one_replica_is_enough_for_the_leader_alone",
        "tests/controller/test_cluster.py::test_an_administrator_can_elect_any_remaining_replica",
    ),
    "a bit turned in the leader epoch": (FLIPS,),
    "a transaction index that cannot be read": (
        "tests/broker/handlers/test_one_bad_entry.py::test_an_unreadable_txnindex_fails_its_partition_only",
    ),
    "damage in a segment that a start does not look at": (FLIPS,),
    "damaged, missing or foreign index": (
        f"{RECOVERY}::test_damaged_indexes_are_rebuilt",
        f"{RECOVERY}::test_damaged_transaction_indexes_are_rebuilt",
        f"{RECOVERY}::test_unusable_producer_snapshots_are_replaced_by_the_log",
        f"{RECOVERY}::test_unusable_checkpoints_do_not_keep_a_log_from_starting",
        "tests/storage/compaction/test_cleaner.py::test_a_gap_in_a_log_that_was_compacted_is_no_damage",
    ),
    "an offset in a checkpoint that cannot be": (
        f"{RECOVERY}::test_offsets_of_checkpoints_at_their_extremes",
        f"{RECOVERY}::test_a_log_start_offset_that_cannot_be_removes_nothing",
        f"{RECOVERY}::test_a_log_start_offset_beyond_the_end_starts_the_log_anew",
    ),
    "damaged `meta.properties`": (
        "tests/storage/test_log_manager.py::test_meta_properties_have_version_0_and_are_compared",
        f"{LOG_DIRS}::test_directories_of_two_clusters_are_refused",
    ),
    "one of several `log.dirs` is missing": (
        f"{DIRECTORIES}::test_no_log_replaces_one_in_a_missing_directory",
        f"{DIRECTORIES}::test_a_known_directory_that_cannot_be_locked_is_missing",
        f"{DIRECTORIES}::test_a_disk_failure_at_a_start_is_of_one_directory",
        f"{DIRECTORIES}::test_a_directory_is_given_up_by_its_line",
        f"{LOG_DIRS}::test_a_missing_directorys_partitions_are_offline",
        f"{LOG_DIRS}::test_a_missing_directory_is_a_storage_error",
    ),
    "a log directory is empty, or the directory of a partition is gone": (
        f"{LOST_LOGS}::test_the_replica_in_sync_before_replaces_a_lost_last_one",
        f"{LOST_LOGS}::test_the_last_one_in_sync_does_not_lead_without_its_log",
        f"{LOST_LOGS}::test_after_all_deaths_an_empty_disk_waits_for_the_others",
        f"{LOST_LOGS}::test_deleting_the_file_gives_the_lost_logs_up",
        f"{LOST_LOGS}::test_a_lost_log_without_another_replica_begins_anew",
        "tests/storage/test_log_manager.py::test_lost_logs_are_remembered_through_a_start_on_a_full_disk",
        "tests/storage/test_log_manager.py::test_a_new_directory_is_new_until_lost_logs_are_written",
    ),
    "the directory of a partition is there, and its segments are not": (
        f"{RECOVERY}::test_a_log_without_its_segments_is_no_empty_one",
        f"{RECOVERY}::test_a_killed_log_that_lacks_flushed_records_is_offline",
        f"{RECOVERY}::test_a_log_that_was_emptied_after_a_clean_stop_is_offline",
        f"{LOST_LOGS}::test_after_all_deaths_a_log_without_segments_does_not_lead",
    ),
    "the same after a kill": (
        f"{RECOVERY}::test_segments_beyond_the_checkpoints_may_be_missing",
        f"{RECOVERY}::test_after_a_kill_one_checkpoint_alone_is_no_proof",
    ),
    "the first segments of a log are gone": (f"{RECOVERY}::test_readers_go_on_after_segments_that_are_gone",),
    "a broker has logs of partitions that the metadata store does not know": (
        f"{STRAY_LOGS}::test_logs_that_no_topic_claims_are_set_aside_at_a_start",
        f"{STRAY_LOGS}::test_logs_of_a_topic_whose_znode_cannot_be_read_stay",
        "tests/broker/replication/test_replica_manager.py::test_a_new_controllers_states_remove_moved_replicas",
    ),
    "a topic is created where there is the log": (
        f"{STRAY_LOGS}::test_a_topic_whose_znodes_were_removed_may_be_created_again",
        f"{STRAY_LOGS}::test_a_topic_unknown_to_the_store_can_be_created_again",
        "tests/broker/replication/test_following.py::test_an_earlier_topics_log_is_replaced_only_outside_the_isr",
    ),
    "the metadata store has forgotten which producer ids": (
        f"{PRODUCER_IDS}::test_no_id_is_handed_out_again_after_a_loss_of_the_store",
        f"{PRODUCER_IDS}::test_the_ids_of_transactions_count_though_none_has_written",
        f"{PRODUCER_IDS}::test_made_up_producer_ids_do_not_use_up_the_remaining_ones",
    ),
    "the directory that holds `metadata.sqlite` is missing": (
        f"{LOG_DIRS}::test_a_start_without_the_metadata_store_is_refused",
        f"{LOG_DIRS}::test_two_metadata_stores_are_refused",
        f"{LOG_DIRS}::test_an_empty_metadata_store_is_told_as_such_and_stays_empty",
    ),
    "an fsync, a write, a rename or an open fails": (
        PASSING,
        f"{FAULTS}::test_a_failing_disk_takes_the_log_offline_for_good",
        f"{FAULTS}::test_every_error_of_a_sync_is_final",
        f"{FAULTS}::test_a_sync_that_failed_for_want_of_room_is_final",
        "tests/broker/upkeep/test_disk_errors.py::test_a_failing_disk_ends_the_process",
        "tests/broker/upkeep/test_random_disk_errors.py::test_failures_at_random_take_away_nothing_acknowledged",
    ),
    "the same at the creation or deletion of a log": (
        PASSING,
        f"{FAULTS}::test_a_checkpoint_that_fails_is_a_failure_of_its_directory",
    ),
    "the same in a compaction pass": (
        PASSING,
        "tests/storage/compaction/test_cleaner_crashes.py::test_a_failure_at_every_step_leaves_a_whole_log",
        "tests/broker/upkeep/test_compaction.py::test_a_log_with_a_disk_error_is_not_compacted_again",
    ),
    "upkeep of a log raises": (
        f"{BAD_APPLE}::test_retention",
        f"{BAD_APPLE}::test_flushing",
        f"{BAD_APPLE}::test_settings",
        f"{BAD_APPLE}::test_expiry_of_producers",
        f"{BAD_APPLE}::test_opening_and_closing_logs",
        f"{BAD_APPLE}::test_every_component_that_sets_aside_is_in_the_metrics",
        "tests/broker/replication/test_leadership.py::test_a_partition_that_raises_does_not_stop_other_isr_shrinks",
    ),
    "a command for a broker cannot be written": (
        f"{BAD_APPLE}::test_an_unsendable_state_does_not_hold_back_the_others",
    ),
    "the end of a transaction, or forgetting a group's offsets": (
        f"{BAD_APPLE}::test_the_end_of_a_transaction",
        f"{BAD_APPLE}::test_forgetting_offsets",
    ),
    "a compaction pass ends in another way": (
        "tests/broker/upkeep/test_compaction.py::test_a_pass_whose_process_fails_is_made_again",
        "tests/broker/upkeep/test_compaction.py::test_a_log_that_raises_does_not_stop_compaction_of_others",
    ),
    "less free space than `barnabas.disk.reserve.bytes`": (
        "tests/broker/replication/test_replica_manager.py::test_a_full_directory_takes_records_of_coordinators_only",
        f"{DISK_FULL}::test_a_full_disk_is_survived",
    ),
    "no space at all": (
        PASSING,
        f"{FAULTS}::test_a_full_disk_takes_the_records_later",
        f"{FAULTS}::test_a_checkpoint_that_does_not_fit_is_written_later",
        f"{FAULTS}::test_a_full_disk_does_not_keep_a_log_from_being_recovered",
        f"{FAULTS}::test_a_stop_on_a_full_disk_is_no_failure",
        f"{FAULTS}::test_an_abort_marker_is_appended_with_its_index_entry",
        f"{DISK_FULL}::test_retention_and_a_restart_on_a_full_disk",
        f"{DISK_FULL}::test_a_restart_on_a_disk_without_names",
        "tests/broker/coordinators/transactions/test_full_disk.py::test_a_transaction_ends_when_there_is_room",
        "tests/broker/upkeep/test_compaction.py::test_a_log_without_room_is_compacted_later",
        "tests/broker/cli/test_serve_messages.py::test_a_start_that_a_full_disk_ends_says_what_to_do",
        "tests/controller/coordination/test_refused_store.py::test_each_refusal_passes_or_is_final",
        "tests/storage/test_truncation.py::test_without_its_checkpoint_a_cut_log_takes_nothing_more",
    ),
    "no descriptors left": (
        PASSING,
        f"{FAULTS}::test_a_flush_without_a_descriptor_is_made_again",
        f"{SCARCE}::test_a_flush_that_finds_no_descriptor_is_made_later",
        f"{SCARCE}::test_a_late_flush_of_committed_offsets_is_acknowledged",
        f"{SCARCE}::test_a_transaction_whose_end_is_flushed_late_ends",
        f"{SCARCE}::test_idle_connections_leave_descriptors_to_log_and_store",
        "tests/broker/replication/test_flushes.py::test_a_flush_that_finds_no_thread_passes",
        "tests/broker/whole/test_no_threads.py::test_a_broker_serves_and_stops_cleanly_without_new_threads",
    ),
    "a new partition cannot be created": (
        f"{SCARCE}::test_a_topic_created_without_descriptors_is_served_later",
        f"{SCARCE}::test_a_log_without_descriptors_at_the_start_is_opened_later",
        "tests/controller/test_controller.py::test_a_replica_is_offline_until_its_log_opens",
        "tests/controller/test_controller.py::test_a_creation_that_no_broker_serves_in_time_is_answered_so",
    ),
    "something else than a directory lies where": (
        "tests/broker/replication/test_replica_manager.py::test_a_file_in_a_logs_place_keeps_its_partition_offline",
    ),
    "a deletion that the disk did not take": (
        f"{FAULTS}::test_deletions_that_could_not_be_synced_are_told",
        "tests/controller/test_controller.py::test_a_deletion_that_a_broker_refuses_is_told_and_made_later",
    ),
    "a second process on the directory": (
        "tests/broker/whole/test_restart.py::test_a_second_process_on_the_same_directory_refuses_to_start",
        "tests/storage/test_log_manager.py::test_another_process_is_kept_out",
    ),
}

PROMISES_NOTHING: Final[Mapping[str, str]] = {
    "a log directory is put back from an older copy": "nothing tells the copy from the log; the page says what to do",
}
"""Faults that nothing can be shown of, and why."""

BETWEEN_THE_LISTS: Final[Mapping[str, tuple[str, ...]]] = {
    "It truncates only what a crash leaves": (
        f"{RECOVERY}::test_a_torn_tail_is_truncated_at_every_byte",
        f"{RECOVERY}::test_damage_before_whole_batches_is_refused",
    ),
    "does not lead with an empty log": (
        f"{LOST_LOGS}::test_the_last_one_in_sync_does_not_lead_without_its_log",
        f"{LOST_LOGS}::test_after_all_deaths_a_log_without_segments_does_not_lead",
    ),
    "passes without a restart; any other failure of a disk ends the process": (
        PASSING,
        "tests/broker/upkeep/test_disk_errors.py::test_a_failing_disk_ends_the_process",
        "tests/broker/whole/test_no_threads.py::test_a_broker_serves_and_stops_cleanly_without_new_threads",
    ),
    "After a crash every batch from the recovery point on is checked": (
        f"{RECOVERY}::test_damage_before_whole_batches_is_refused",
        f"{CRASH_POINTS}::test_left_out_syncs_are_found",
    ),
    "Ctrl-C and SIGTERM end a start that is still at it": (
        "tests/broker/whole/test_start_and_stop.py::test_a_start_that_recovers_logs_can_be_given_up",
        f"{RECOVERY}::test_a_recovery_that_is_given_up_leaves_all_to_the_next_one",
    ),
    "Checkpoints are replaced in one step": (f"{CRASH_POINTS}::test_left_out_syncs_are_found",),
    "Flushes that no acknowledgement waits for run four at a time": (
        "tests/broker/replication/test_flushes.py::test_a_log_whose_sync_takes_long_holds_back_no_other",
        "tests/broker/replication/test_flushes.py::test_a_stop_begins_no_new_flushes_before_the_last",
        "tests/broker/replication/test_flusher.py::test_a_directory_has_few_flushes_at_once",
    ),
    "The recovery point never passes what is not on the disk": (
        f"{CRASH_POINTS}::test_left_out_syncs_are_found",
        "tests/storage/test_log.py::test_appends_during_a_flush_are_not_covered_by_it",
    ),
    "Before a follower's log begins anew at another offset": (
        "tests/storage/test_truncation.py::test_a_log_that_starts_anew_is_found_so_after_a_crash",
        f"{CRASH_POINTS}::test_left_out_syncs_are_found",
    ),
    "The leader epochs of a log without records are not flushed": (
        f"{RECOVERY}::test_an_epoch_without_batches_is_forgotten_by_a_restart",
        "tests/storage/test_log_manager.py::test_a_clean_stop_of_new_logs_syncs_their_directory_once",
    ),
    "All of this goes through one seam": ("tests/test_seams.py::test_only_edges_reach_for_the_real_one",),
    "it syncs each of its own commits": (
        "tests/controller/coordination/test_embedded_store.py::test_commits_are_synchronous",
        "tests/controller/coordination/test_embedded_store.py"
        "::test_after_each_crash_the_file_holds_what_was_acknowledged",
    ),
    "A broker with several log directories notes in each of them": (
        f"{DIRECTORIES}::test_each_note_names_its_own_and_all_noted_directories",
        f"{LOG_DIRS}::test_the_order_of_log_dirs_does_not_matter_and_new_ones_join",
    ),
    "If a directory is found at the path of another known one": (
        f"{LOG_DIRS}::test_a_disk_may_be_mounted_elsewhere_one_start_too_late",
    ),
    "Directories of partitions may be moved from one to another": (
        f"{LOG_DIRS}::test_partitions_moved_between_directories_are_found",
        f"{DIRECTORIES}::test_a_log_that_was_moved_keeps_what_its_checkpoints_said",
    ),
    "Kafka's formats have no checksum": (FLIPS, f"{RECOVERY}::test_no_damaged_index_has_a_look_up_go_astray"),
    "A segment without a `.txnindex` is one in which nothing was aborted": (
        f"{RECOVERY}::test_damaged_transaction_indexes_are_rebuilt",
        f"{RECOVERY}::test_wrong_notes_of_transaction_indexes_only_cost_time",
        f"{RECOVERY}::test_damaged_transaction_indexes_without_notes_are_rebuilt",
    ),
    "it leaves a log alone in which a marker aborts": (
        "tests/storage/compaction/test_cleaner.py::test_aborted_records_are_not_last_without_an_index",
    ),
    "That one has everything that was acknowledged with `acks=all`": (
        f"{LAST_TO_LEAVE}::test_the_other_replica_has_records_that_took_two",
        "tests/controller/operations/test_broker_lives.py::test_the_last_to_leave_has_records_that_took_two_replicas",
        "tests/broker/replication/test_leadership.py::test_too_small_an_isr_fails_producers_and_commits_nothing",
    ),
    "So what counts is": (
        f"{LAST_TO_LEAVE}::test_one_replica_is_enough_for_the_leader_alone",
        f"{LAST_TO_LEAVE}::test_settings_of_topics_take_precedence_over_brokers",
        f"{LAST_TO_LEAVE}::test_a_default_that_was_lowered_for_one_life",
    ),
    "Where it is 1, the state is marked": (
        f"{LAST_TO_LEAVE}::test_a_minimum_lowered_to_one_marks_the_state",
        "tests/controller/operations/test_last_to_leave.py::test_the_mark_does_not_grow_and_goes",
    ),
    "If the controller is in doubt, it marks the state": (
        f"{LAST_TO_LEAVE}::test_one_replica_was_enough_for_a_moment",
        f"{LAST_TO_LEAVE}::test_settings_made_without_a_controller_are_doubted",
        f"{LAST_TO_LEAVE}::test_a_setting_that_was_reverted_before_it_was_read",
    ),
}
"""By the first words of a sentence, or of a part of one."""

LIVE: Final[Mapping[str, tuple[str, ...]]] = {
    "kill -9 of one broker": ("tests/broker/whole/test_restart.py::test_kills_under_load_lose_and_double_no_records",),
    "kill -9 of one broker under every kind of client": (
        "tests/soak/test_soak.py::test_nothing_is_lost_doubled_or_torn_under_kill_9",
    ),
    "kill -9 of brokers of three": (
        "tests/soak/test_cluster.py::test_nothing_is_lost_when_brokers_of_one_command_are_killed",
    ),
    "what all brokers acknowledged outlives each of them": (
        "tests/broker/whole/test_cluster.py::test_acknowledged_records_outlive_their_leaders",
        "tests/broker/whole/test_clients_of_several.py::test_transactions_and_groups_outlive_their_coordinators",
    ),
    "a real ZooKeeper": (
        "compat_tests/zookeeper/test_cluster.py::test_acknowledged_records_outlive_kills_and_expired_sessions",
    ),
    "the container image": ("tests/test_image.py::test_clients_outside_produce_and_consume",),
}
"""Further promises that are shown on real processes."""


HEAD: Final = ROOT / "docs/durability.md"
FLUSHES: Final = ROOT / "docs/durability/flushes.md"
PAGES: Final = [HEAD, *sorted((ROOT / "docs/durability").glob("*.md"))]
LEADS_ELSEWHERE: Final = {(HEAD, "The other pages"), (HEAD, "How it is tested")}
"""The parts of pages that lead to other pages and to tests."""


def sections(page: Path) -> Mapping[str, str]:
    """The text below each heading of a page, with the smaller headings below it, but the page's introduction."""
    _, *found = re.split(r"^## (.*)\n", page.read_text(), flags=re.MULTILINE)
    parts = zip(found[::2], found[1::2], strict=True)
    return {title: text for title, text in parts if (page, title) not in LEADS_ELSEWHERE}


def paragraphs(text: str) -> list[str]:
    """The paragraphs and items of lists of a text, each in one line."""
    blocks = (" ".join(block.split()) for block in re.split(r"\n\n|\n(?= *- )", text))
    return [block for block in blocks if block and not block.startswith("#")]


def items(page: Path) -> list[str]:
    """The items of the lists of a page, from their first bold word on, in lower case."""
    texts = [text for section in sections(page).values() for text in paragraphs(section)]
    found = [text.removeprefix("- **") for text in texts if text.startswith("- **")]
    return [text[:1].lower() + text[1:] for text in found]


def unlike(found: list[str], told: Mapping[str, object] | list[str]) -> list[str]:
    """The texts that no entry begins, those that several begin, and the entries that begin none."""
    entries = {row: [entry for entry in told if row.startswith(entry)] for row in found}
    begun = {entry for each in entries.values() for entry in each}
    return [row for row, each in entries.items() if len(each) != 1] + [entry for entry in told if entry not in begun]


def test_each_item_of_what_survives_is_shown() -> None:
    found, setting = [], ""
    for text in paragraphs(sections(HEAD)["What survives"]):
        if text.endswith(":"):
            setting = text.removeprefix("- ").removeprefix("The ").removesuffix(":")
        elif text.startswith("- "):
            found.append(f"{setting} / {text.removeprefix('- ').partition(':')[0]}")
    assert unlike(found, SURVIVES) == []


@pytest.mark.parametrize(
    ("pages", "shown"),
    [
        pytest.param([FLUSHES], list(REACHES_THE_DISK), id="what reaches the disk when"),
        pytest.param([page for page in PAGES if page != FLUSHES], [*FAULT, *PROMISES_NOTHING], id="what a fault does"),
    ],
)
def test_each_item_of_a_list_is_shown(pages: list[Path], shown: list[str]) -> None:
    found = [item for page in pages for item in items(page)]
    assert len(found) > 5
    assert unlike(found, shown) == []


def test_each_paragraph_between_the_lists_is_shown() -> None:
    assert all(map(sections, PAGES))
    texts = [text for page in PAGES for section in sections(page).values() for text in paragraphs(section)]
    found = [text for text in texts if not text.startswith("- ")]
    assert len(found) >= 8
    for paragraph in found:
        assert any(words in paragraph for words in BETWEEN_THE_LISTS), paragraph
    text = " ".join(found)
    assert [words for words in BETWEEN_THE_LISTS if words not in text] == []


SHOWN: Final = {**SURVIVES, **REACHES_THE_DISK, **FAULT, **BETWEEN_THE_LISTS, **LIVE}


def problem_of(test: str) -> str:
    """The reason why a test is no proof, or nothing."""
    try:
        return "" if in_gate(test) else "only `make test-full` runs it"
    except (KeyError, FileNotFoundError):
        return "there is no such test"


def test_tests_of_promises_are_in_the_gate() -> None:
    tests = sorted({test for shown in SHOWN.values() for test in shown})
    assert len(tests) > 100
    assert [(test, problem) for test in tests if (problem := problem_of(test))] == []


# --- what `make check` does not read ----------------------------------------------------------------------------------

CHECK: Final = "not slow and not full"


@pytest.mark.parametrize(
    ("source", "expression", "is_read"),
    [
        ("pytestmark = pytest.mark.slow", CHECK, False),
        ("pytestmark = pytest.mark.slow  # each waits for a second", CHECK, False),
        ("pytestmark = [pytest.mark.live, pytest.mark.full]", CHECK, False),
        ("pytestmark = [\n    pytest.mark.full,\n    pytest.mark.timeout(9),\n]", CHECK, False),
        ("pytestmark = pytest.mark.skipif(True, reason='it is pytest.mark.slow')", CHECK, True),
        ("pytestmark = pytest.mark.parametrize('n', [pytest.param(1, marks=pytest.mark.slow)])", CHECK, True),
        ("pytestmark = [pytest.mark.live]\nothers = [pytest.mark.slow]", CHECK, True),
        ("pytestmark = marks", CHECK, True),
        ("class TestAll:\n    pytestmark = pytest.mark.slow", CHECK, True),
        ("@pytest.mark.slow\ndef test_it(): pass", CHECK, True),
        ("pytestmark = pytest.mark.slow", "not full", True),
        ("pytestmark = pytest.mark.slow", "", True),
        ("pytestmark = pytest.mark.slow", "(full or hypothesis) and not slow", True),  # not told from the marks alone
    ],
)
def test_a_file_all_of_whose_tests_are_left_out_is_not_read(
    source: str, expression: str, is_read: bool, tmp_path: Path
) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(f"import pytest\n\n{source}\n")
    config: Any = SimpleNamespace(option=SimpleNamespace(markexpr=expression))
    assert (left_out.pytest_ignore_collect(path, config) is None) is is_read


def test_no_other_file_is_taken_for_one() -> None:
    """A `pytestmark` of a file that a test writes is not the test's own."""
    found = {file: left_out.module_marks(file.read_text()) for file in sorted((ROOT / "tests").rglob("test_*.py"))}
    assert sum("slow" in marks for marks in found.values()) > 50
    assert [file for file, marks in found.items() if marks and not marks <= marks_of_module(file)] == []


def marks_of_module(file: Path) -> set[str]:
    marks = module_or_class_marks(ast.parse(file.read_text()).body)
    return set(re.findall(r"pytest\.mark\.(\w+)", " ".join(map(ast.unparse, marks))))


# --- clients and pipelines --------------------------------------------------------------------------------------------

PIPELINES: Final = ROOT / "compat_tests/spark/pipelines"


def clients() -> list[str]:
    """The folders that the table of compat_tests/README.md names."""
    text = (ROOT / "compat_tests/README.md").read_text()
    return [name for row in re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)]


def test_each_client_has_tests_in_the_gate() -> None:
    folders = [name for name in clients() if (ROOT / "compat_tests" / name).is_dir()]
    assert set(folders) == {file.relative_to(ROOT / "compat_tests").parts[0] for file in foreign_tests()}
    assert [name for name in folders if not any(gate_of(ROOT / "compat_tests" / name))] == []


def foreign_tests() -> list[Path]:
    return sorted((ROOT / "compat_tests").rglob("test_*.py"))


def pipelines() -> list[str]:
    """Those that `make spark NAME=...` starts, as each says at its beginning."""
    found = [
        (file.stem, set(re.findall(r"^    make spark NAME=(\w+)", file.read_text(), re.MULTILINE)))
        for file in sorted((ROOT / "spark_examples").glob("*.py"))
    ]
    assert [(stem, names) for stem, names in found if names and names != {stem}] == []
    return [stem for stem, names in found if names]


def names_run_by(source: Source, test: str) -> set[str]:
    """The names that a test starts: `run_once(NAME, ...)`, `start_program("NAME", ...)`, `NAME.start(...)` or
    `NAME.NAME(...)`.

    A function, a class or a fixture of its file may do it for the test.
    """
    found: set[str] = set()
    waiting, seen = [test], set[str]()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        function = source.function(name)
        found.update(*(started_by(node) for node in ast.walk(function) if isinstance(node, ast.Call)))
        mentioned = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
        mentioned |= {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
        waiting += (mentioned & source.definitions()) - seen
    return found


def started_by(call: ast.Call) -> set[str]:
    """The name of a pipeline, or nothing."""
    match call:
        case ast.Call(
            ast.Name("run_once" | "start_program")
            | ast.Attribute(attr="run_once" | "_run_once" | "start_program" | "_start_program"),
            [ast.Name(name) | ast.Constant(str(name)), *_],
        ):
            return {name}
        case ast.Call(ast.Attribute(ast.Name(module), method)) if method in ("start", module):
            return {module}
    return set()


def test_each_pipeline_runs_in_the_gate() -> None:
    run: set[str] = set()
    for test in gate_of(PIPELINES):
        path, _, name = test.partition("::")
        run |= names_run_by(source_of(ROOT / path), name)
    assert len(pipelines()) >= 8
    assert [name for name in pipelines() if name not in run] == []


# --- what the rules are worth -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "is_in_gate"),
    [
        ("def test_it(): pass", True),
        ("async def test_it(): pass", True),
        ("@pytest.mark.slow\ndef test_it(): pass", True),
        ("@pytest.mark.full\ndef test_it(): pass", False),
        ("@pytest.mark.alone\ndef test_it(): pass", False),
        ("pytestmark = pytest.mark.full\ndef test_it(): pass", False),
        ("pytestmark = [pytest.mark.slow, pytest.mark.timeout(9)]\ndef test_it(): pass", True),
        ("pytestmark = [pytest.mark.slow, pytest.mark.alone]\ndef test_it(): pass", False),
        ("at_length = [pytest.mark.full]\npytestmark = [*at_length]\ndef test_it(): pass", False),
        ("only = pytest.mark.full\n@only\ndef test_it(): pass", False),
        ("from compat_tests.java_tools.kafka_tools import of_4_3_only\n@of_4_3_only\ndef test_it(version): pass", True),
        ("@pytest.mark.full\nclass TestAll:\n def test_it(self): pass", False),
        ("class TestAll:\n pytestmark = pytest.mark.full\n def test_it(self): pass", False),
        ("class TestAll:\n @pytest.mark.full\n def test_other(self): pass\n def test_it(self): pass", True),
    ],
)  # fmt: skip
def test_the_reader(source: str, is_in_gate: bool) -> None:
    found = {name.rpartition("::")[2]: is_in for name, is_in in Source.of(source).tests().items()}
    assert found["test_it"] is is_in_gate


MARKED: Final = "pytest.param(n, marks=pytest.mark.full)"


@pytest.mark.parametrize(
    ("values", "is_in_gate"),
    [
        (f"[1, {MARKED}]", True),
        (f"[{MARKED}]", False),
        (f"[{MARKED} for n in N]", False),
        (f"[n if n in N else {MARKED} for n in N]", True),
        (f"[1] + [{MARKED}]", True),
        ("[(1, 2), pytest.param(3, 4, marks=pytest.mark.full)]", True),
        ("[pytest.param(1, marks=[pytest.mark.slow, pytest.mark.full])]", False),
        ("[pytest.param(1, marks=marks)]", False),
        ("[pytest.param(1, marks=marks if n in N else pytest.mark.slow)]", True),
        ("[1, *at_length(2)]", True),
        ("[*at_length(2)]", False),
        ("at_length(2)", False),
        ("N", True),
    ],
)
def test_a_test_belongs_to_the_gate_if_one_of_its_values_does(values: str, is_in_gate: bool) -> None:
    source = f"""
N = range(9)
marks = [pytest.mark.full, pytest.mark.timeout(9)]
def at_length(*numbers):
    return [{MARKED} for n in numbers]
def sizes(_):
    return pytest.mark.parametrize("n", {values})
@pytest.mark.parametrize("n", {values})
def test_it(n): pass
@pytest.mark.parametrize(argnames="n", argvalues={values})
def test_by_name(n): pass
@sizes(1)
def test_by_a_function(n): pass
"""
    assert set(Source.of(source).tests().values()) == {is_in_gate}


@pytest.mark.parametrize(
    ("test", "is_proof"),
    [
        ("tests/test_tiers.py::test_the_reader", True),
        ("tests/test_tiers.py::test_that_nobody_has_written", False),
        ("tests/test_that_nobody_has_written.py::test_it", False),
        ("tests/storage/recovery/test_crash_points.py::test_many_more_torn_states", False),
    ],
)
def test_a_proof_is_a_test_of_the_gate(test: str, is_proof: bool) -> None:
    assert (problem_of(test) == "") is is_proof


@pytest.mark.parametrize(
    ("found", "told", "missing"),
    [
        (["a bit", "a disk"], ["a bit", "a disk"], []),
        (["a bit turned", "a disk fails"], ["a bit", "a disk"], []),
        (["a bit", "a disk"], ["a bit"], ["a disk"]),
        (["a bit"], ["a bit", "a disk"], ["a disk"]),
        (["a disk is full"], ["a disk", "a disk is"], ["a disk is full"]),
    ],
)
def test_rows_and_entries_are_compared(found: list[str], told: list[str], missing: list[str]) -> None:
    assert unlike(found, told) == missing


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("def test_it(run_once): run_once(dedupe, '--once')", {"dedupe"}),
        ("def test_it(start_program): start_program('archive', 'run')", {"archive"}),
        ("def test_it(spark): replay.replay(spark, options)", {"replay"}),
        ("def test_it(spark): queries = dedupe.start(spark, options)", {"dedupe"}),
        ("class Made:\n def run(self): self._run_once(archive)\ndef test_it(): Made().run()", {"archive"}),
        ("def made(run_once): run_once(archive)\ndef test_it(made): pass", {"archive"}),
        ("def made(run_once): run_once(archive)\ndef test_it(): pass", set()),
        ("def test_it(): dedupe.options()", set()),
    ],
)
def test_the_programs_that_a_test_runs_are_known(source: str, names: set[str]) -> None:
    assert names_run_by(Source.of(source), "test_it") == names
