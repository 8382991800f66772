"""The eighteen ways in which a queue of tasks can go wrong, and the tests that show that this one does not."""

import ast
from pathlib import Path

import pytest

from apps.chaos.checker import PROMISES as JUDGED

_TESTS = Path(__file__).resolve().parents[1]

# By promise: the tests that are named for it, and the rule of the judge of chaos.
PROMISES: dict[str, tuple[list[str], str]] = {
    "no acknowledged task is lost": (
        ["tasks/test_workers.py::test_a_task_survives_the_kill_of_its_worker"],
        "nothing_lost",
    ),
    "one terminal state and one terminal receipt each": (
        ["tasks/test_batches.py::test_rival_batches_end_each_task_once"],
        "one_end",
    ),
    "two workers never hold one run": (["tasks/test_lease.py::test_rival_workers_never_share_a_task"], "one_holder"),
    "a stale fence never succeeds": (
        [
            "tasks/test_fences.py::test_a_lost_run_does_not_end_the_next_run_of_the_same_worker",
            "tasks/test_fences.py::test_a_lost_runs_heartbeat_does_not_renew_the_next_run_of_the_same_worker",
        ],
        "no_stale_fence",
    ),
    "an acknowledged completion survives the kill of the database": (
        ["chaos/test_kill.py::test_an_acknowledged_completion_survives_the_kill_of_the_database"],
        "completions_last",
    ),
    "record, receipt and entry are all there or none": (
        [
            "tasks/test_ending.py::test_a_completion_is_record_receipt_entry_and_a_closed_obligation",
            "chaos/test_chaos.py::test_without_a_foundation_the_judge_objects",
        ],
        "all_or_none",
    ),
    "an expired lease is claimable within its deadline and a second": (
        ["tasks/test_lease.py::test_a_lease_ends_at_its_deadline_exactly_and_the_next_run_sees_the_checkpoint"],
        "claimable_again",
    ),
    "attempts and expiries end in a dead letter": (
        [
            "tasks/test_ending.py::test_leases_that_expire_too_often_end_in_a_dead_letter",
            "tasks/test_ending.py::test_retryable_failures_are_retried_after_a_pause_until_the_attempts_are_used_up",
        ],
        "dead_letters",
    ),
    "nothing runs early": (
        ["tasks/test_queue.py::test_a_task_for_later_is_given_out_when_its_moment_has_come"],
        "nothing_early",
    ),
    "limits are never exceeded": (
        [
            "tasks/test_limits.py::test_rivals_never_hold_more_than_the_limit",
            "tasks/test_limits.py::test_rivals_never_get_more_leases_in_a_period_than_the_rate",
        ],
        "within_limits",
    ),
    "one task per idempotency key, and 409 for another payload": (
        [
            "tasks/test_queue.py::test_rivals_with_one_key_make_one_task",
            "tasks/test_queue.py::test_the_same_key_with_another_request_is_refused",
        ],
        "one_task_per_key",
    ),
    "cancel or complete, never both": (
        ["tasks/test_ending.py::test_of_cancel_and_complete_exactly_one_wins"],
        "canceled_or_completed",
    ),
    "every call repeated gives the same answer": (
        ["tasks/test_ending.py::test_the_same_call_again_answers_the_same_and_changes_nothing"],
        "same_answer",
    ),
    "the next run sees the last acknowledged checkpoint": (
        [
            "tasks/test_lease.py::test_a_lease_ends_at_its_deadline_exactly_and_the_next_run_sees_the_checkpoint",
            "tasks/test_sequences.py::test_the_next_run_sees_the_last_checkpoint_though_one_before_it_comes_again",
        ],
        "checkpoint_seen",
    ),
    "dependencies go in order": (
        ["tasks/test_dependencies.py::test_a_task_is_ready_when_all_that_it_depends_on_have_succeeded"],
        "dependencies_in_order",
    ),
    "no row of another tenant": (
        ["tasks/test_lease.py::test_no_worker_of_another_tenant_is_given_anything"],
        "no_stranger",
    ),
    "the hot table stays small": (
        ["chaos/test_chaos.py::test_the_promises_hold_for_a_hundred_thousand_tasks"],
        "bounded_bloat",
    ),
    "without the broker only latency suffers": (
        ["tasks/test_workers.py::test_a_flushed_broker_costs_latency_only"],
        "broker_is_a_hint",
    ),
}


def _tests_in(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def test_the_promises_are_eighteen() -> None:
    assert len(PROMISES) == 18


@pytest.mark.parametrize("promise", PROMISES)
def test_a_promise_has_tests_and_a_rule_of_its_name(promise: str) -> None:
    named, rule = PROMISES[promise]

    assert named
    for test in named:
        path, _, name = test.partition("::")
        assert name in _tests_in(_TESTS / path), test
    assert JUDGED[rule].name == promise
