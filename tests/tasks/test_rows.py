"""What the database itself forbids."""

from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from apps.core.sql import violated_constraint
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as
from apps.tasks.models import (
    Artifact,
    Budget,
    FinishedTask,
    IdempotencyKey,
    LiveTask,
    Queue,
    Run,
    Spend,
    Task,
    TaskType,
)
from apps.tasks.services import BudgetDraft
from tests import ground
from tests.tasks.making import complete, lease_one, make_type, number, queue

NOW = datetime(2100, 1, 1, tzinfo=UTC)


def _violates(constraint: str, change: Any) -> None:
    with pytest.raises(IntegrityError) as refused, transaction.atomic():
        change()
    # A partition's keys have names of their own.
    (violated,) = ground.unparted([violated_constraint(refused.value)])
    assert violated == constraint


@pytest.mark.parametrize(
    ("constraint", "values"),
    [
        ("task_live_leased_iff_holder_and_deadline", {"holder_id": 1, "fence": 1}),
        ("task_live_leased_iff_holder_and_deadline", {"lease_expires_at": NOW, "fence": 1}),
        ("task_live_leased_was_ready_and_fenced", {"holder_id": 1, "lease_expires_at": NOW}),
        (
            "task_live_leased_was_ready_and_fenced",
            {"holder_id": 1, "lease_expires_at": NOW, "fence": 1, "ready_at": None},
        ),
        ("task_live_ready_waits_for_nothing", {"due_at": NOW}),
        ("task_live_ready_waits_for_nothing", {"open_dependencies": 1}),
        ("task_live_counts_not_negative", {"open_dependencies": -1}),
        ("task_live_counts_not_negative", {"silent_beats": -1}),
        ("task_live_rank_0_to_9", {"priority_rank": 10}),
        ("task_live_has_tries_left", {"failures": 3}),
        ("task_live_has_tries_left", {"expiries": 3}),
        ("task_live_has_tries_left", {"fence": -1}),
        ("task_live_has_tries_left", {"fence": 65_536}),
    ],
)
def test_an_open_task_is_in_no_impossible_state(kee: Caller, constraint: str, values: dict[str, Any]) -> None:
    make_type(kee)
    queue(kee)
    with acting_as(kee):
        _violates(constraint, lambda: LiveTask.objects.update(**values))


@pytest.mark.parametrize(
    ("constraint", "values"),
    [
        ("tasks_tasktype_priority_1_to_10", {"priority": 0}),
        ("tasks_tasktype_priority_1_to_10", {"priority": 11}),
        ("tasks_tasktype_tries_at_least_once", {"max_attempts": 0}),
        ("tasks_tasktype_tries_at_least_once", {"max_expiries": 0}),
        ("tasks_tasktype_lease_within_its_cap", {"lease_seconds": 9999}),
        ("tasks_tasktype_backoff_within_its_cap", {"backoff_seconds": 9999.0}),
        ("tasks_tasktype_limits_bite", {"concurrency": 0}),
        ("tasks_tasktype_limits_bite", {"rate": 1}),
        ("tasks_tasktype_limits_bite", {"rate_seconds": 1.0}),
        ("tasks_tasktype_limits_bite", {"rate": 0, "rate_seconds": 1.0}),
        ("tasks_tasktype_limits_bite", {"rate": 1, "rate_seconds": 0.0}),
        ("tasks_tasktype_spans_at_least_one", {"heartbeat_seconds": 0}),
        ("tasks_tasktype_spans_at_least_one", {"deadline_seconds": 0}),
        ("tasks_tasktype_spans_at_least_one", {"retention_seconds": 0}),
        ("tasks_tasktype_spans_at_least_one", {"stuck_after": 0}),
        ("tasks_tasktype_misfire_known", {"misfire": "odd"}),
    ],
)
def test_a_type_is_in_no_impossible_state(kee: Caller, constraint: str, values: dict[str, Any]) -> None:
    make_type(kee)
    with acting_as(kee):
        _violates(constraint, lambda: TaskType.objects.update(**values))


@pytest.mark.parametrize(
    "values", [{"concurrency": 0}, {"rate": 1}, {"rate_seconds": 1.0}, {"rate": 0, "rate_seconds": 1.0}]
)
def test_a_queues_limits_bite(kee: Caller, values: dict[str, Any]) -> None:
    make_type(kee)
    with acting_as(kee):
        _violates("tasks_queue_limits_bite", lambda: Queue.objects.update(**values))


@pytest.mark.parametrize(
    ("constraint", "values"),
    [
        ("tasks_budget_limits_something", {"max_tokens": None, "max_cost_usd": None}),
        ("tasks_budget_limits_something", {"max_tokens": 0, "spent_at": NOW}),
        ("tasks_budget_limits_something", {"max_cost_usd": 0, "spent_at": NOW}),
        ("tasks_budget_spent_not_negative", {"spent_tokens": -1}),
        ("tasks_budget_spent_not_negative", {"spent_cost_usd": -1}),
        ("tasks_budget_spent_at_iff_spent", {"spent_tokens": 100}),
        ("tasks_budget_spent_at_iff_spent", {"spent_cost_usd": 1}),
        ("tasks_budget_spent_at_iff_spent", {"spent_tokens": 99, "spent_at": NOW}),
        ("tasks_budget_settled_once_spent", {"settled_at": NOW}),
        ("tasks_budget_draws_from_what_was_before", {"parent_id": 7}),
        ("tasks_budget_policy_known", {"when_spent": "odd"}),
    ],
)
def test_a_budget_is_in_no_impossible_state(
    tenant: Tenant, kee: Caller, constraint: str, values: dict[str, Any]
) -> None:
    given = {"task_id": 7, "max_tokens": 100, "max_cost_usd": 1, "when_spent": "fail", "created_at": NOW}
    with acting_as(kee):
        _violates(constraint, lambda: Budget.objects.create(tenant_id=tenant.pk, **{**given, **values}))


def test_one_task_of_a_key_is_ready_at_a_time(kee: Caller) -> None:
    make_type(kee)
    queue(kee)
    queue(kee)
    with acting_as(kee):
        _violates("task_live_key_admitted_once", lambda: LiveTask.objects.update(concurrency_key="k"))
        LiveTask.objects.update(concurrency_key="k", ready_at=None)


def test_runs_and_records_are_in_no_impossible_state(tenant: Tenant, kee: Caller) -> None:
    make_type(kee)
    queue(kee)
    lease_one(kee)
    record = {"tenant_id": tenant.pk, "fence": 1, "summary": "", "receipt_id": "r", "finished_at": NOW}
    with acting_as(kee):
        _violates("tasks_run_ended_iff_outcome", lambda: Run.objects.update(outcome="failed"))
        _violates("tasks_run_ended_iff_outcome", lambda: Run.objects.update(ended_at=NOW))
        _violates("tasks_run_sequences_not_negative", lambda: Run.objects.update(progress_sequence=-1))
        _violates("tasks_run_sequences_not_negative", lambda: Run.objects.update(checkpoint_sequence=-1))
        _violates("tasks_run_outcome_known", lambda: Run.objects.update(ended_at=NOW, outcome="odd"))
        _violates(
            "task_history_status_terminal",
            lambda: FinishedTask.objects.create(task_id=9, status="leased", reason="canceled", **record),
        )
        _violates(
            "task_history_reason_iff_not_succeeded",
            lambda: FinishedTask.objects.create(task_id=9, status="failed", **record),
        )
        _violates(
            "task_history_reason_iff_not_succeeded",
            lambda: FinishedTask.objects.create(task_id=9, status="succeeded", reason="canceled", **record),
        )
        _violates(
            "tasks_spend_not_negative",
            lambda: Spend.objects.create(tenant_id=tenant.pk, task_id=1, fence=1, tokens=-1, spent_at=NOW),
        )
        _violates(
            "tasks_artifact_digest_is_sha256",
            lambda: Artifact.objects.create(
                tenant_id=tenant.pk, digest="no", media_type="text/plain", size=1, created_at=NOW
            ),
        )


def test_what_is_once_is_once(tenant: Tenant, kee: Caller) -> None:
    make_type(kee)
    task = queue(kee, idempotency_key="k")
    complete(kee, lease_one(kee))
    stamp = {"tenant_id": tenant.pk, "created_at": NOW}
    with acting_as(kee):
        _violates("tasks_queue_name_once", lambda: Queue.objects.create(name="default", **stamp))
        _violates(
            "tasks_tasktype_name_once",
            lambda: TaskType.objects.create(name="index", queue=Queue.objects.get(), changed_at=NOW, **stamp),
        )
        _violates(
            "tasks_idempotencykey_once",
            lambda: IdempotencyKey.objects.create(
                principal_id=kee.principal_id, key="k", task_id=2, request_digest=b"", answer={}, **stamp
            ),
        )
        _violates(
            "task_history_pkey",
            lambda: FinishedTask.objects.create(
                tenant_id=tenant.pk,
                task_id=number(task),
                status="canceled",
                reason="canceled",
                fence=1,
                summary="",
                receipt_id="r",
                finished_at=NOW,
            ),
        )


def test_what_was_written_once_is_never_changed(kee: Caller) -> None:
    make_type(kee)
    queue(kee, idempotency_key="k", budget=BudgetDraft(tokens=5))
    complete(kee, lease_one(kee), 1)
    with acting_as(kee):
        _violates("tasks_budget_is_immutable", lambda: Budget.objects.update(max_tokens=6))
        _violates("tasks_budget_is_immutable", lambda: Budget.objects.update(parent_id=1))
        Budget.objects.update(spent_tokens=4)
        _violates("tasks_task_is_immutable", lambda: Task.objects.update(params={"changed": True}))
        _violates("task_history_is_immutable", lambda: FinishedTask.objects.update(content=2))
        _violates("tasks_idempotencykey_is_immutable", lambda: IdempotencyKey.objects.update(task_id=99))
        FinishedTask.objects.update(fetched_at=NOW)


def test_nothing_points_at_tasks_runs_and_records(db: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            """select conrelid::regclass::text from pg_constraint where contype = 'f' and confrelid = any(array[
                   'tasks_task'::regclass, 'tasks_run'::regclass, 'task_history'::regclass,
                   'tasks_spend'::regclass, 'task_live'::regclass])"""
        )
        assert cursor.fetchall() == []
        cursor.execute(
            """select count(*) from pg_index where indisunique and indrelid = any(array[
                   'tasks_task'::regclass, 'tasks_run'::regclass, 'task_history'::regclass])"""
        )
        assert cursor.fetchone() == (3,)
