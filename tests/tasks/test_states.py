"""The state machine is data, the services keep to it, and the database forbids the rest."""

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.models import F, Model

from apps.core.errors import DomainError
from apps.digests.models import Inbox
from apps.digests.services import lock_or_create
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from apps.tasks.models import Budget, FinishedTask, IdempotencyKey, LiveTask, Run, Task
from apps.tasks.services import operating, running
from apps.tasks.shapes import BudgetInput, LeasedTask
from apps.tasks.states import CANCEL_REQUESTED, TRANSITIONS, Reason, Status, after_failure
from tests.factories import at
from tests.tasks.making import (
    FUTURE,
    beat,
    cancel,
    complete,
    fail,
    lease,
    lease_one,
    leased,
    make_type,
    number,
    queue,
    release,
    status,
)

# A lease that was never granted.
FORGED = LeasedTask(
    task_id="task_1",
    run_id=1,
    lease_token="lt_1.1." + "A" * 43,
    task_type="index",
    params={},
    checkpoint=None,
    lease_ms=0,
)


@dataclass
class World:
    """One task, its requester who also works on it, and the last lease that was granted, or a forged one."""

    caller: Caller
    task_id: int
    grant: LeasedTask

    @property
    def status(self) -> Status:
        return Status(status(self.caller, self.task_id))


def take(world: World) -> None:
    world.grant = next(iter(lease(world.caller)), world.grant)


def cancel_with_others(world: World) -> None:
    with acting_as(world.caller):
        running.cancel_many(caller=world.caller, task_ids=[world.task_id])


def sweep(world: World) -> None:
    operating.bring_back()
    operating.end_what_must()


def sweep_later(world: World) -> None:
    at(FUTURE + timedelta(days=1))
    sweep(world)


def sweep_after_the_last_expiry(world: World) -> None:
    LiveTask.objects.update(expiries=F("max_expiries") - 1)
    sweep_later(world)


def fetch(world: World) -> None:
    running.fetch_result(caller=world.caller, task_id=world.task_id)


Verb = Callable[[World], object]
COMPLETE: Verb = lambda world: complete(world.caller, world.grant)  # noqa: E731  # one of a table
FAIL: Verb = lambda world: fail(world.caller, world.grant)  # noqa: E731  # likewise
FAIL_FOR_GOOD: Verb = lambda world: fail(world.caller, world.grant, retryable=False)  # noqa: E731  # likewise
RELEASE: Verb = lambda world: release(world.caller, world.grant)  # noqa: E731  # likewise
BEAT: Verb = lambda world: beat(world.caller, world.grant, percent=1)  # noqa: E731  # likewise
CANCEL: Verb = lambda world: cancel(world.caller, world.task_id)  # noqa: E731  # likewise
VERBS: list[Verb] = [
    take, COMPLETE, FAIL, FAIL_FOR_GOOD, RELEASE, BEAT, CANCEL, cancel_with_others, sweep, sweep_later,
    sweep_after_the_last_expiry, fetch,
]  # fmt: skip
WAYS: dict[Status, list[Verb]] = {
    Status.QUEUED: [],
    Status.SCHEDULED: [take, FAIL],
    Status.LEASED: [take],
    Status.CANCELING: [take, CANCEL],
    Status.SUCCEEDED: [take, COMPLETE],
    Status.FAILED: [take, FAIL_FOR_GOOD],
    Status.CANCELED: [CANCEL],
}


def become_waiting(world: World) -> None:
    """No verb makes a task wait for another yet; the row can."""
    LiveTask.objects.update(ready_at=None, due_at=None)


@pytest.mark.parametrize("before", Status)
def test_verbs_make_exactly_the_declared_transitions(kee: Caller, before: Status) -> None:
    make_type(kee, lease_seconds=30)
    found = set()
    for verb in VERBS:
        with acting_as(kee):
            at(FUTURE)
            task = number(queue(kee))
            world = World(kee, task, FORGED.model_copy(update={"task_id": f"task_{task}"}))
            for step in WAYS.get(before, [become_waiting]):
                step(world)
            assert world.status == before
            with suppress(DomainError):
                verb(world)
            found.add(world.status)
            transaction.set_rollback(True)
    assert found - {before} == TRANSITIONS[before]


@pytest.mark.parametrize(
    ("flags", "retryable", "failures", "expected"),
    [
        (0, True, 1, None),
        (0, True, 2, None),
        (0, True, 3, Reason.ATTEMPTS_EXHAUSTED),
        (0, False, 1, Reason.NOT_RETRYABLE),
        (CANCEL_REQUESTED, True, 1, Reason.CANCELED),
        (CANCEL_REQUESTED, False, 1, Reason.NOT_RETRYABLE),
    ],
)
def test_failure_ends_or_retries(flags: int, retryable: bool, failures: int, expected: Reason | None) -> None:
    assert after_failure(flags=flags, retryable=retryable, failures=failures, max_attempts=3, runs=failures) == expected


DRAWS = 400


@pytest.mark.parametrize(
    ("failures", "base", "cap", "ceiling"),
    [
        (0, 2.0, 300.0, 2.0),
        (2, 2.0, 300.0, 8.0),
        (7, 2.0, 300.0, 256.0),
        (8, 2.0, 300.0, 300.0),
        (500, 2.0, 300.0, 300.0),
        (1100, 0.5, 60.0, 60.0),
        (9, 0.0, 300.0, 0.0),
    ],
)
def test_backoff_doubles_with_full_jitter_up_to_the_cap(failures: int, base: float, cap: float, ceiling: float) -> None:
    random.seed(1)
    hold = running.Hold(
        task_id=1,
        tenant_id=1,
        fencing_token=1,
        holder_id=1,
        flags=0,
        failures=failures,
        max_attempts=1000,
        expiries=0,
        max_expiries=3,
        expired=False,
        late=False,
        backoff=base,
        backoff_cap=cap,
        concurrency_key=None,
    )
    drawn = sorted(running._backoff(hold) for _ in range(DRAWS))

    assert drawn[0] >= 0
    assert drawn[-1] <= ceiling
    # Full jitter: the draws reach both ends, and their middle is the ceiling's half.
    assert drawn[0] <= 0.02 * ceiling
    assert drawn[-1] >= 0.98 * ceiling
    assert 0.4 * ceiling <= drawn[DRAWS // 2] <= 0.6 * ceiling


def test_immutable_rows_are_not_changed(kee: Caller) -> None:
    make_type(kee)
    queue(kee, idempotency_key="k", budget=BudgetInput(tokens=5))
    complete(kee, lease_one(kee), 1)
    changes: list[tuple[type[Model], dict[str, object]]] = [
        (Budget, {"max_tokens": 6}),
        (Task, {"params": {"changed": True}}),
        (FinishedTask, {"content": 2}),
        (IdempotencyKey, {"task_id": 99}),
    ]
    with acting_as(kee):
        for model, values in changes:
            with pytest.raises(IntegrityError, match="immutable"), transaction.atomic():
                model._default_manager.update(**values)  # the documented manager
        Budget.objects.update(spent_tokens=4)
        FinishedTask.objects.update(fetched_at=FUTURE)


def test_impossible_values_are_refused(kee: Caller) -> None:
    make_type(kee)
    leased(kee, kee)
    values: dict[type[Model], list[tuple[str, object]]] = {
        LiveTask: [("open_dependencies", -1), ("fencing_token", 65536), ("holder", None)],
        Run: [("ended_at", FUTURE)],
        Inbox: [("visible_unread", -1)],
    }
    with acting_as(kee):
        lock_or_create(tenant_id=kee.tenant_id, principal_id=kee.principal_id)
        for model, name, value in [(model, *pair) for model, pairs in values.items() for pair in pairs]:
            with pytest.raises(IntegrityError, match="check constraint"), transaction.atomic():
                model._default_manager.update(**{name: value})


@pytest.mark.parametrize(
    "table", ["principals_tenant", "principals_principal", "tasks_queue", "tasks_tasktype", "digests_inbox"]
)
def test_what_rows_refer_to_without_a_constraint_is_never_deleted(kee: Caller, worker: Caller, table: str) -> None:
    complete(worker, leased(kee, worker))
    with (
        acting_as_system("test"),
        pytest.raises(IntegrityError, match="removed by retention"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(f"delete from {table}")


def test_nothing_points_at_tasks_runs_and_records(db: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            """select conrelid::regclass::text from pg_constraint where contype = 'f' and confrelid = any(array[
                   'tasks_task'::regclass, 'tasks_run'::regclass, 'task_history'::regclass,
                   'task_live'::regclass])"""
        )
        assert cursor.fetchall() == []
        cursor.execute(
            """select count(*) from pg_index where indisunique and indrelid = any(array[
                   'tasks_task'::regclass, 'tasks_run'::regclass, 'task_history'::regclass])"""
        )
        assert cursor.fetchone() == (3,)
