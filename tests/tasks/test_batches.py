"""Batches: an answer for each item, and as many statements as for one."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.core.errors import DomainError
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as
from apps.receipts.models import Obligation, Receipt
from apps.tasks.models import FinishedTask, IdempotencyKey, LiveTask, Task
from apps.tasks.services import queueing, running
from apps.tasks.shapes import (
    BudgetInput,
    Completed,
    Completion,
    Delivery,
    HeartbeatAnswer,
    LeasedTask,
    LeaseNext,
    ReleaseTask,
)
from tests.factories import at, make_principal
from tests.tasks.making import (
    FUTURE,
    SCHEMA,
    asked,
    beat_many,
    beats,
    cancel,
    codes,
    complete,
    complete_many,
    fail,
    lease,
    lease_one,
    leased,
    make_type,
    number,
    own,
    proof,
    queue,
    queue_many,
    release,
    snapshot,
    terminal_receipts,
)
from tests.waiters import together


def release_many(worker: Caller, grants: Sequence[LeasedTask]) -> list[Any]:
    releases = [ReleaseTask(**proof(one)) for one in grants]
    with acting_as(worker):
        return running.release_many(worker=worker, releases=releases)


def test_each_request_of_a_batch_is_answered_as_alone(tenant: Tenant, kee: Caller) -> None:
    make_principal(tenant, "Hexy")
    make_type(kee, schema=SCHEMA)
    make_type(kee, "closed", enabled=False)
    make_type(kee, "other", queue="second")
    path = {"path": "/x"}
    first = queue(kee, params=path, idempotency_key="before")

    answers = queue_many(
        kee,
        asked(params=path),
        asked("nothing"),
        asked("closed"),
        asked(params={"path": 1}),
        asked(params=path, queue="nowhere"),
        asked(params=path, recipient_ai="Nobody"),
        asked(params=path, idempotency_key="before"),
        asked(params=path, idempotency_key="before", priority=1),
        asked(params=path, idempotency_key="new"),
        asked(params=path, idempotency_key="new"),
        asked(params=path, idempotency_key="new", priority=2),
        asked("other", recipient_ai="Hexy", priority=9),
    )

    assert codes(answers) == [
        "queued",
        *("unknown_task_type", "task_type_disabled", "invalid_params", "unknown_queue", "unknown_recipient"),
        *("queued", "idempotency_conflict", "queued", "queued", "idempotency_conflict", "queued"),
    ]
    assert (answers[6].task_id, answers[6].is_duplicate) == (first.task_id, True)
    assert (answers[9].task_id, answers[9].is_duplicate) == (answers[8].task_id, True)
    assert answers[10].extra == {"existing_task_id": answers[8].task_id}
    with acting_as(kee):
        made = [first.task_id, answers[0].task_id, answers[8].task_id, answers[11].task_id]
        assert [str(task) for task in Task.objects.order_by("pk")] == made
        assert LiveTask.objects.count() == Obligation.objects.filter(closed_at=None).count() == 4
        assert set(IdempotencyKey.objects.values_list("key", flat=True)) == {"before", "new"}
        assert Receipt.objects.filter(event_type="task_queued").count() == 4


def test_key_of_a_refused_request_is_free_for_the_next(kee: Caller) -> None:
    make_type(kee)
    asked_for = [
        asked("nothing", idempotency_key="k"),
        *[asked(idempotency_key="k")] * 2,
        asked("nothing", idempotency_key="k"),
    ]
    refused, taken, again, conflict = queue_many(kee, *asked_for)
    assert codes([refused, taken, again, conflict]) == ["unknown_task_type", "queued", "queued", "idempotency_conflict"]
    assert (again.task_id, again.is_duplicate) == (taken.task_id, True)


def test_repeated_batch_answers_the_same(kee: Caller) -> None:
    make_type(kee)
    requests = [asked(idempotency_key=f"k{nth}") for nth in range(5)]
    first = queue_many(kee, *requests)
    before = snapshot(kee)

    again = queue_many(kee, *requests)

    assert [answer.task_id for answer in again] == [answer.task_id for answer in first]
    assert [answer.is_duplicate for answer in again] == [True] * 5
    assert snapshot(kee) == before


@pytest.mark.django_db(transaction=True)
def test_rival_batches_with_the_same_keys_make_each_task_once(kee: Caller) -> None:
    make_type(kee)
    keys = [f"k{nth}" for nth in range(20)]

    def ask(order: list[str]) -> dict[str, str]:
        made = queue_many(kee, *(asked(idempotency_key=key) for key in order))
        return dict(zip(order, [answer.task_id for answer in made], strict=True))

    orders = [keys, keys[::-1], keys[::2] + keys[1::2], keys[10:] + keys[:10]]
    answers = together(*(partial(ask, order) for order in orders))

    assert all(answer == answers[0] for answer in answers)
    with acting_as(kee):
        assert Task.objects.count() == LiveTask.objects.count() == 20


@pytest.mark.parametrize("end", [complete_many, release_many])
def test_lost_lease_in_a_batch_does_not_affect_the_others(
    kee: Caller, worker: Caller, end: Callable[[Caller, Sequence[LeasedTask]], Any]
) -> None:
    rival = kee
    make_type(kee)
    queue_many(kee, *[asked()] * 4)
    done, one, other = lease(worker, capacity=3)
    foreign = lease_one(rival)
    complete(worker, done, "first")
    before = len(terminal_receipts(kee, number(done)))

    answers = end(worker, [one, done, foreign, other])
    answers = answers.answers if isinstance(answers, Completed) else answers

    assert [isinstance(answer, DomainError) for answer in answers] == [False, True, True, False]
    assert codes(answers)[1:3] == ["already_decided", "bad_lease_token"]
    with acting_as(kee):
        assert LiveTask.objects.get(task_id=number(foreign)).holder_id == rival.principal_id
        assert not LiveTask.objects.filter(task_id__in=[number(one), number(other)], holder__isnull=False).exists()
    assert len(terminal_receipts(kee, number(done))) == before == 1


def test_lease_twice_in_a_batch_ends_once(kee: Caller, worker: Caller) -> None:
    grant = leased(kee, worker)
    first, again = complete_many(worker, [grant, grant]).answers
    assert first == again
    assert len(terminal_receipts(kee, number(grant))) == 1


def test_failures_are_judged_by_their_tasks(kee: Caller, worker: Caller) -> None:
    make_type(kee, "once", max_attempts=1)
    make_type(kee, "twice", max_attempts=2)
    for name in ("once", "twice", "twice"):
        queue(kee, name)
    once, twice, canceled = lease(worker, capacity=3)
    with acting_as(kee):
        running.cancel(caller=kee, task_id=number(canceled))

    assert codes([fail(worker, grant) for grant in (twice, once, canceled)]) == ["scheduled", "failed", "canceled"]
    assert [len(terminal_receipts(kee, number(grant))) for grant in (once, twice, canceled)] == [1, 0, 1]


def test_completion_leases_next_and_repeats_the_answer(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    make_type(kee, "other")
    at(FUTURE)
    queue_many(kee, *[asked()] * 4)
    queue(kee, "other", priority=10)
    (one,) = lease(worker, task_types=["index"])

    completed = complete_many(worker, [one], lease_next=LeaseNext(capacity=2))

    # More of what it does, and nothing else.
    assert [grant.task_type for grant in completed.following] == ["index", "index"]
    before = snapshot(kee)
    assert complete_many(worker, [one], lease_next=LeaseNext(capacity=2)) == completed
    assert snapshot(kee) == before
    # Together with a further one: that which was given and still stands, and as many new ones as there is room.
    two, three = completed.following
    both = complete_many(worker, [one, two], lease_next=LeaseNext(capacity=2))
    assert both.following[0] == three
    assert len(both.following) == 2
    assert complete_many(worker, [one, two], lease_next=LeaseNext(capacity=2)) == both


def test_repeated_next_leases_are_those_that_still_stand(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    at(FUTURE)
    queue_many(kee, *[asked()] * 3)
    one = lease_one(worker)
    again = partial(complete_many, worker, [one], lease_next=LeaseNext(capacity=2, lease_seconds=2))
    two, three = again().following
    assert [two.lease_ms, three.lease_ms] == [2000, 2000]

    at(FUTURE + timedelta(seconds=1.5))
    assert again().following == [one.model_copy(update={"lease_ms": 500}) for one in (two, three)]
    release_many(worker, [two])
    assert again().following == [three.model_copy(update={"lease_ms": 500})]
    at(FUTURE + timedelta(seconds=2))
    assert again().following == []


def test_next_leases_may_come_from_other_queues(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    make_type(kee, "heavy", queue="second", requires=["gpu"])
    queue(kee)
    queue(kee, "heavy")
    elsewhere = LeaseNext(capacity=5, queues=("second",), capabilities=("gpu",), lease_seconds=7)
    completed = complete_many(worker, [lease_one(worker)], lease_next=elsewhere)
    assert [(grant.task_type, grant.lease_ms) for grant in completed.following] == [("heavy", 7000)]


def test_completion_that_ends_nothing_leases_nothing(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    queue(kee)
    queue(kee)
    grant = lease_one(worker)
    release_many(worker, [grant])
    before = snapshot(kee)

    completed = complete_many(worker, [grant], lease_next=LeaseNext(capacity=1))

    assert codes(completed.answers) == ["already_decided"]
    assert completed.following == []
    assert snapshot(kee) == before


@pytest.mark.django_db(transaction=True)
def test_rival_batches_end_each_task_once(tenant: Tenant, kee: Caller, worker: Caller) -> None:
    for name in ("A", "B", "C"):
        make_principal(tenant, name)
    make_type(kee)
    ids = [number(queue(kee, recipient_ai=name)) for name in ("A", "B", "C") * 5]
    grants = lease(worker, capacity=len(ids))

    together(
        partial(complete_many, worker, grants),
        partial(complete_many, worker, grants[::-1]),
        partial(release_many, worker, grants[5:] + grants[:5]),
    )

    with acting_as(kee):
        records = dict(FinishedTask.objects.values_list("task_id", "status"))
        waiting = set(LiveTask.objects.filter(holder=None).values_list("task_id", flat=True))
    assert set(records) | waiting == set(ids)
    assert not set(records) & waiting
    assert [len(terminal_receipts(kee, task)) for task in ids] == [int(task in records) for task in ids]


def _statements(act: Callable[[], Any], *, own_only: bool = False) -> int:
    """How many statements this makes; its transaction's own are not counted."""
    with CaptureQueriesContext(connection) as captured:
        act()
    return len([query for query in captured if "SAVEPOINT" not in query["sql"] and (own(query) or not own_only)])


def test_statements_do_not_grow_with_the_batch(tenant: Tenant, kee: Caller, worker: Caller) -> None:
    names = [f"P{nth}" for nth in range(5)]
    for name in names:
        make_principal(tenant, name)
    make_type(kee)

    def counts(many: int, name: str) -> dict[str, int]:
        requests = [asked(idempotency_key=f"{name}-{nth}", recipient_ai=names[nth % 5]) for nth in range(many)]
        found = {"queue": _statements(lambda: queue_many(kee, *requests))}
        queue_many(kee, *(asked(recipient_ai=names[nth % 5]) for nth in range(many * 4)))
        grants = lease(worker, capacity=many * 2)
        following = LeaseNext(capacity=many)
        found["complete"] = _statements(lambda: complete_many(worker, grants[:many]))
        found["complete and lease"] = _statements(lambda: complete_many(worker, grants[many:], lease_next=following))
        found["release"] = _statements(lambda: release_many(worker, lease(worker, capacity=many)))
        return found

    counts(10, "first")  # makes the inboxes
    assert counts(10, "few") == counts(40, "many")


_UPDATES = """
select pg_stat_get_tuples_updated('task_live'::regclass), pg_stat_get_tuples_hot_updated('task_live'::regclass)
"""


def test_task_costs_three_statements(kee: Caller) -> None:
    make_type(kee)
    # The first receipt of all makes an inbox besides.
    queue(kee)
    complete(kee, lease_one(kee))
    with acting_as(kee):
        # The task with its receipt.
        assert _statements(lambda: queueing.queue(requester=kee, request=asked())) == 1
        assert _statements(lambda: running.lease(worker=kee, queues=["default"], capacity=10)) == 1
        queue(kee)
        (grant,) = running.lease(worker=kee, queues=["default"])
        given = [Completion(task_id=number(grant), lease_token=grant.lease_token, delivery=Delivery())]
        # The end with its receipt, what that closes and its place.
        assert _statements(lambda: running.complete_many([(kee, one) for one in given])) == 1


def test_each_verb_makes_few_statements(kee: Caller) -> None:
    make_type(kee)
    queue_many(kee, *[asked()] * 8)
    with acting_as(kee):
        keyed = asked(idempotency_key="k")
        one, other, third, fourth = running.lease(worker=kee, queues=["default"], capacity=4)
        said, spending = beats((one, {}), (other, {}), (third, {})), beats((one, {"tokens": 1}))
        bounded = asked(budget=BudgetInput(tokens=9))
        verbs: dict[str, tuple[Callable[[], Any], int]] = {
            "queue": (lambda: queueing.queue(requester=kee, request=asked()), 1),
            "queue with key": (lambda: queueing.queue(requester=kee, request=keyed), 1),
            "queue with budget": (lambda: queueing.queue(requester=kee, request=bounded), 2),
            "lease": (lambda: running.lease(worker=kee, queues=["default"]), 1),
            "heartbeat of three": (lambda: running.heartbeat(worker=kee, heartbeats=said), 1),
            "heartbeat with spend": (lambda: running.heartbeat(worker=kee, heartbeats=spending), 2),
            "complete": (lambda: complete(kee, one), 1),
            "release": (lambda: release(kee, other), 2),
            "fail": (lambda: fail(kee, third), 2),
            "cancel": (lambda: cancel(kee, number(fourth)), 3),
        }
        counts = {verb: _statements(act, own_only=True) for verb, (act, _) in verbs.items()}

    assert counts == {verb: count for verb, (_, count) in verbs.items()}


@pytest.mark.django_db(transaction=True)
def test_heartbeats_touch_no_index(kee: Caller) -> None:
    make_type(kee)
    # All their versions have room in one page, whatever is pruned when.
    queue_many(kee, *[asked()] * 5)
    said: list[tuple[LeasedTask, dict[str, Any]]] = [(grant, {}) for grant in lease(kee, capacity=5)]
    with connection.cursor() as cursor:
        cursor.execute("select pg_stat_force_next_flush()")
        cursor.execute(_UPDATES)
        updated, hot = cursor.fetchone()
        for _ in range(5):
            beat_many(kee, *said)
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
def test_checkpoint_and_spend_are_durable_when_acknowledged(
    kee: Caller, told: list[dict[str, Any]], *, waits: bool
) -> None:
    make_type(kee)
    queue_many(kee, *[asked()] * len(told))
    said = beats(*zip(lease(kee, capacity=len(told)), told, strict=True))
    with acting_as(kee):
        assert _waits_for_the_disk(lambda: running.heartbeat(worker=kee, heartbeats=said)) is waits


@pytest.mark.parametrize("revokes", [False, True])
def test_revocation_by_a_heartbeat_is_durable(kee: Caller, *, revokes: bool) -> None:
    said = beats((leased(kee, kee, stuck_after=1, revoke_stuck=revokes), {}))
    answers: list[HeartbeatAnswer] = []
    with acting_as(kee):
        waits = _waits_for_the_disk(lambda: answers.extend(running.heartbeat(worker=kee, heartbeats=said)))

    assert (answers[0].status, waits) == (("lost", True) if revokes else ("ok", False))


def test_claim_is_one_statement_and_three_within_limits(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    make_type(kee, "narrow", queue="second", concurrency=3)
    queue_many(kee, *[asked()] * 3, *[asked("narrow")] * 3)
    with acting_as(worker):
        counts = [
            _statements(partial(running.lease, worker=worker, queues=["default", "second"], task_types=types))
            for types in (["index"], None)
        ]
    assert counts == [1, 3]
