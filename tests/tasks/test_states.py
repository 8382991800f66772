"""The machine is data, and the services keep to it."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import F

from apps.core.errors import DomainError
from apps.principals.tenancy import Caller, acting_as
from apps.tasks import selectors, services
from apps.tasks.models import LiveTask
from apps.tasks.services import Beat, Grant, QueuedTask
from apps.tasks.shapes import Delivery, Failure
from apps.tasks.states import (
    CANCEL_REQUESTED,
    STRICT,
    TRANSITIONS,
    Reason,
    Status,
    after_failure,
    open_status,
)
from tests.tasks.making import make_type, number, queue

LEASE = timedelta(seconds=30)
# Later than anything that a test queues.
T0 = datetime(2100, 1, 1, tzinfo=UTC)


def at(moment: datetime) -> None:
    """Set the database's clock for the rest of the test."""
    with connection.cursor() as cursor:
        cursor.execute("select set_config('gatehouse.now', %s, true)", [moment.isoformat()])


def status_of(task: QueuedTask) -> Status:
    return Status(selectors.status(task.task_id).status)


@dataclass
class World:
    """One task, its requester who also works on it, and the last lease that was granted."""

    caller: Caller
    task: QueuedTask
    grant: Grant | None = None

    @property
    def lease(self) -> dict[str, Any]:
        """What proves the lease; refused, as every wrong token is, if there has been none."""
        token = "lt_1.1." + "A" * 43 if self.grant is None else self.grant.lease_token
        return {"worker": self.caller, "task_id": number(self.task), "lease_token": token}


def lease(world: World) -> None:
    granted = services.lease(worker=world.caller, queues=["default"])
    world.grant = granted[0] if granted else world.grant


def complete(world: World) -> None:
    services.complete(**world.lease, delivery=Delivery())


def fail_for_now(world: World) -> None:
    services.fail(**world.lease, failure=Failure(code="broken", message="It broke.", retryable=True))


def fail_for_good(world: World) -> None:
    services.fail(**world.lease, failure=Failure(code="broken", message="It broke."))


def release(world: World) -> None:
    services.release(**world.lease)


def beat(world: World) -> None:
    proof = world.lease
    services.heartbeat(
        worker=world.caller, beats=[Beat(task_id=proof["task_id"], lease_token=proof["lease_token"], percent=1)]
    )


def cancel(world: World) -> None:
    services.cancel(caller=world.caller, task_id=number(world.task))


def cancel_with_others(world: World) -> None:
    services.cancel_many(caller=world.caller, task_ids=[number(world.task)])


def sweep_now(world: World) -> None:
    services.bring_back()
    services.end_what_must()


def sweep_later(world: World) -> None:
    at(T0 + timedelta(days=1))
    services.bring_back()
    services.end_what_must()


def sweep_later_for_the_last_time(world: World) -> None:
    LiveTask.objects.update(expiries=F("max_expiries") - 1)
    sweep_later(world)


def fetch(world: World) -> None:
    services.fetch_result(caller=world.caller, task_id=number(world.task))


VERBS = [
    lease, complete, fail_for_now, fail_for_good, release, beat, cancel, cancel_with_others, sweep_now, sweep_later,
    sweep_later_for_the_last_time, fetch,
]  # fmt: skip
WAYS: dict[Status, list[Callable[[World], None]]] = {
    Status.QUEUED: [],
    Status.SCHEDULED: [lease, fail_for_now],
    Status.LEASED: [lease],
    Status.CANCELING: [lease, cancel],
    Status.SUCCEEDED: [lease, complete],
    Status.FAILED: [lease, fail_for_good],
    Status.CANCELED: [cancel],
}


def become_waiting(world: World) -> None:
    """No verb makes a task wait for another yet; the row can."""
    LiveTask.objects.update(ready_at=None, due_at=None)


@pytest.mark.parametrize("before", Status)
def test_the_verbs_lead_from_each_status_to_exactly_those_of_the_table(kee: Caller, before: Status) -> None:
    make_type(kee, lease_seconds=LEASE.seconds)
    found = set()
    for verb in VERBS:
        with acting_as(kee):
            at(T0)
            world = World(kee, queue(kee))
            for step in WAYS.get(before, [become_waiting]):
                step(world)
            assert status_of(world.task) == before
            with suppress(DomainError):
                verb(world)
            found.add(status_of(world.task))
            transaction.set_rollback(True)
    assert found - {before} == TRANSITIONS[before]


@pytest.mark.parametrize(
    ("leased", "ready", "scheduled", "flags", "expected"),
    [
        (True, True, False, 0, Status.LEASED),
        (True, True, False, STRICT, Status.LEASED),
        (True, True, False, CANCEL_REQUESTED, Status.CANCELING),
        (True, True, False, CANCEL_REQUESTED | STRICT, Status.CANCELING),
        (False, True, False, 0, Status.QUEUED),
        (False, False, True, 0, Status.SCHEDULED),
        (False, False, False, 0, Status.WAITING),
    ],
)
def test_an_open_tasks_status_is_read_off_its_row(
    leased: bool, ready: bool, scheduled: bool, flags: int, expected: Status
) -> None:
    assert open_status(leased=leased, ready=ready, scheduled=scheduled, flags=flags) == expected


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
def test_what_a_failure_leads_to(flags: int, retryable: bool, failures: int, expected: Reason | None) -> None:
    assert after_failure(flags=flags, retryable=retryable, failures=failures, max_attempts=3, runs=failures) == expected
