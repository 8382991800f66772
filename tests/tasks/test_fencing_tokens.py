"""Runs of one worker differ by their fencing token alone: the hub's own executors lease as one principal."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from apps.principals.tenancy import Caller, acting_as
from apps.tasks.services import operating
from apps.tasks.shapes import LeasedTask
from tests.factories import at, refused
from tests.tasks.making import FUTURE, beat, complete, fail, lease_one, make_type, queue, release, snapshot

LEASE = timedelta(seconds=30)


def fail_for_good(worker: Caller, grant: LeasedTask) -> Any:
    return fail(worker, grant, retryable=False)


ENDINGS = [complete, fail_for_good, fail, release]


@pytest.mark.parametrize("end", ENDINGS)
def test_lost_run_does_not_end_the_next_run(
    kee: Caller, worker: Caller, end: Callable[[Caller, LeasedTask], Any]
) -> None:
    make_type(kee, lease_seconds=30)
    queue(kee)
    with acting_as(kee):
        at(FUTURE)
        stale = lease_one(worker)
        at(FUTURE + LEASE)
        current = lease_one(worker)
        assert (stale.task_id, stale.run_id, current.run_id) == (current.task_id, 1, 2)
        before = snapshot(kee)

        with refused("lease_lost") as refusal:
            end(worker, stale)

        assert refusal.value.extra == {"reason": "superseded"}
        assert snapshot(kee) == before
        assert complete(worker, current).status == "succeeded"


@pytest.mark.parametrize("end", ENDINGS)
def test_lease_token_is_good_for_its_own_task_only(
    kee: Caller, worker: Caller, end: Callable[[Caller, LeasedTask], Any]
) -> None:
    make_type(kee)
    queue(kee)
    queue(kee)
    one, other = lease_one(worker), lease_one(worker)
    swapped = other.model_copy(update={"lease_token": one.lease_token})
    before = snapshot(kee)

    with refused("bad_lease_token"):
        end(worker, swapped)
    answer = beat(worker, swapped, percent=50)

    assert (answer.status, answer.reason) == ("lost", "bad_lease_token")
    assert snapshot(kee) == before


def superseded(worker: Caller, grant: LeasedTask) -> None:
    lease_one(worker)


def requeued(worker: Caller, grant: LeasedTask) -> None:
    assert operating.bring_back()[0] == 1


def completed(worker: Caller, grant: LeasedTask) -> None:
    complete(worker, grant)


@pytest.mark.parametrize("lose", [superseded, requeued, completed])
def test_heartbeat_of_a_lost_run_writes_nothing(
    kee: Caller, worker: Caller, lose: Callable[[Caller, LeasedTask], None]
) -> None:
    make_type(kee, lease_seconds=30)
    queue(kee)
    with acting_as(kee):
        at(FUTURE)
        lost = lease_one(worker)
        at(FUTURE + LEASE)
        lose(worker, lost)
        before = snapshot(kee)

        said: dict[str, Any] = {"percent": 90, "message": "nearly", "checkpoint": {"at": 9}, "tokens": 500}
        answer = beat(worker, lost, **said)

        assert (answer.status, answer.order, answer.reason) == ("lost", "cancel", lose.__name__)
        assert snapshot(kee) == before
