"""What the verbs cost: statements, plans, kinds of updates. No times are asserted."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.principals.tenancy import Caller, acting_as
from apps.tasks import services
from apps.tasks.services import Beat, Failure, QueueRequest
from tests.factories import make_caller, make_tenant
from tests.tasks.making import NO_RESULT, complete, lease, lease_one, make_type, own, queue

_UPDATES = """
select pg_stat_get_tuples_updated('task_live'::regclass), pg_stat_get_tuples_hot_updated('task_live'::regclass)
"""


def _statements(act: Callable[[], Any]) -> int:
    """How many statements of AsyncGate's own a verb makes: receipts and transactions are others' business."""
    with CaptureQueriesContext(connection) as captured:
        act()
    return sum(map(own, captured))


def _spoken(act: Callable[[], Any]) -> int:
    """How many statements a verb makes with all that hangs on it, its transaction's own aside."""
    with CaptureQueriesContext(connection) as captured:
        act()
    return len([query for query in captured if "SAVEPOINT" not in query["sql"]])


def test_a_task_costs_eight_statements_from_its_queueing_to_its_receipt(kee: Caller) -> None:
    make_type(kee)
    request = QueueRequest(task_type="index", params={})
    # The first receipt of all makes an inbox besides.
    queue(kee)
    complete(kee, lease_one(kee))
    with acting_as(kee):
        # Its type and queue; who is named; the task; its receipt.
        assert _spoken(lambda: services.queue(requester=kee, request=request)) == 4
        services.queue(requester=kee, request=request)
        assert _spoken(lambda: services.lease(worker=kee, queues=["default"])) == 1
        (grant,) = services.lease(worker=kee, queues=["default"])
        given: dict[str, Any] = {"task_id": grant.task_id, "lease_token": grant.lease_token, "delivery": NO_RESULT}
        # The end; the receipt that it answers; its own receipt with what that closes and its place.
        assert _spoken(lambda: services.complete(worker=kee, **given)) == 3


def test_the_verbs_make_few_statements(kee: Caller) -> None:
    make_type(kee)
    for _ in range(8):
        queue(kee)
    with acting_as(kee):
        request = QueueRequest(task_type="index", params={})
        keyed = QueueRequest(task_type="index", params={}, idempotency_key="k")
        counts = {
            "queue": _statements(lambda: services.queue(requester=kee, request=request)),
            "queue with key": _statements(lambda: services.queue(requester=kee, request=keyed)),
            "lease": _statements(lambda: services.lease(worker=kee, queues=["default"], capacity=4)),
        }
        one, other, third, fourth = services.lease(worker=kee, queues=["default"], capacity=4)
        beats = [Beat(task_id=grant.task_id, lease_token=grant.lease_token) for grant in (one, other, third)]
        counts["heartbeat of three"] = _statements(lambda: services.heartbeat(worker=kee, beats=beats))
        for verb, act in {
            "complete": lambda: services.complete(
                worker=kee, task_id=one.task_id, lease_token=one.lease_token, delivery=NO_RESULT
            ),
            "release": lambda: services.release(worker=kee, task_id=other.task_id, lease_token=other.lease_token),
            "fail": lambda: services.fail(
                worker=kee,
                task_id=third.task_id,
                lease_token=third.lease_token,
                failure=Failure(code="x", message="x", retryable=True),
            ),
            "cancel": lambda: services.cancel(caller=kee, task_id=fourth.task_id),
        }.items():
            counts[verb] = _statements(act)

    assert counts == {
        "queue": 2,
        "queue with key": 3,
        "lease": 1,
        "heartbeat of three": 1,
        "complete": 1,
        "release": 2,
        "fail": 2,
        "cancel": 3,
    }


@pytest.mark.django_db(transaction=True)
def test_heartbeats_touch_no_index() -> None:
    kee = make_caller(make_tenant("acme"))
    make_type(kee)
    for _ in range(5):  # all their versions have room in one page, whatever is pruned when
        queue(kee)
    grants = lease(kee, capacity=5)
    beats = [Beat(task_id=grant.task_id, lease_token=grant.lease_token) for grant in grants]
    with connection.cursor() as cursor:
        cursor.execute("select pg_stat_force_next_flush()")
        cursor.execute(_UPDATES)
        updated, hot = cursor.fetchone()
        for _ in range(5):
            with acting_as(kee):
                services.heartbeat(worker=kee, beats=beats)
        cursor.execute("select pg_stat_force_next_flush()")
        cursor.execute(_UPDATES)
        updated_then, hot_then = cursor.fetchone()

    assert (updated_then - updated, hot_then - hot) == (25, 25)


def _waits_for_the_disk(act: Callable[[], Any]) -> bool:
    """Whether the commit of a transaction in which this was done does."""
    with connection.cursor() as cursor:
        cursor.execute("set local synchronous_commit = on")
        act()
        cursor.execute("show synchronous_commit")
        (setting,) = cursor.fetchone()
    return str(setting) != "off"


@pytest.mark.parametrize(
    ("told", "waits"),
    [
        ([{}], False),
        ([{"percent": 5.0, "message": "some", "sequence": 1}], False),
        ([{"checkpoint": {"n": 1}}], True),
        ([{"checkpoint": {}}], True),
        ([{"tokens": 1}], True),
        ([{"cost_usd": 0.01}], True),
        ([{}, {}], False),
        ([{}, {"checkpoint": {"n": 1}}], True),
        ([{"tokens": 1}, {}], True),
    ],
)
def test_a_checkpoint_and_spend_are_on_the_disk_when_they_are_acknowledged(
    kee: Caller, told: list[dict[str, Any]], *, waits: bool
) -> None:
    make_type(kee)
    for _ in told:
        queue(kee)
    beats = [
        Beat(task_id=grant.task_id, lease_token=grant.lease_token, **more)
        for grant, more in zip(lease(kee, capacity=len(told)), told, strict=True)
    ]
    with acting_as(kee):
        assert _waits_for_the_disk(lambda: services.heartbeat(worker=kee, beats=beats)) is waits


@pytest.mark.parametrize("revokes", [False, True])
def test_a_run_that_a_heartbeat_revokes_is_so_on_the_disk(kee: Caller, *, revokes: bool) -> None:
    make_type(kee, stuck_after=1, revokes_stuck=revokes)
    queue(kee)
    grant = lease_one(kee)
    beats = [Beat(task_id=grant.task_id, lease_token=grant.lease_token)]
    answers: list[services.BeatAnswer] = []
    with acting_as(kee):
        waits = _waits_for_the_disk(lambda: answers.extend(services.heartbeat(worker=kee, beats=beats)))

    assert (answers[0].status, waits) == (("lost", True) if revokes else ("ok", False))
