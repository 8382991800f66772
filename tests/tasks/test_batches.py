"""Many at once: each with an answer of its own, with as many statements as one."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.core.errors import DomainError
from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as
from apps.receipts.models import Obligation, Receipt
from apps.tasks import services
from apps.tasks.models import FinishedTask, IdempotencyKey, LiveTask, Task
from apps.tasks.services import (
    Completed,
    Completion,
    FailedRun,
    Failure,
    Grant,
    LeaseNext,
    QueueRequest,
    Released,
)
from tests.factories import make_caller, make_principal, make_tenant
from tests.tasks.making import SCHEMA, complete, lease, lease_one, make_type, number, queue
from tests.tasks.test_ending import snapshot, terminal_receipts
from tests.tasks.test_schedules import NOON, at


@pytest.fixture
def worker(tenant: Tenant) -> Caller:
    return make_caller(tenant, "W", Kind.WORKER)


def queue_many(caller: Caller, *requests: QueueRequest) -> list[Any]:
    with acting_as(caller):
        return services.queue_many(requester=caller, requests=requests)


def asked(task_type: str = "index", **more: Any) -> QueueRequest:
    return QueueRequest(task_type=task_type, **{"params": {}, **more})


def complete_many(
    worker: Caller, grants: Sequence[Grant], *, lease_next: LeaseNext | None = None, content: Any = None
) -> Completed:
    completions = [
        Completion(
            task_id=grant.task_id,
            lease_token=grant.lease_token,
            delivery=services.prepare(tenant_id=worker.tenant_id, task_id=grant.task_id, result=content),
        )
        for grant in grants
    ]
    with acting_as(worker):
        return services.complete_many(worker=worker, completions=completions, lease_next=lease_next)


def fail_many(worker: Caller, grants: Sequence[Grant], *, retryable: bool = True) -> list[Any]:
    failure = Failure(code="broken", message="It broke.", retryable=retryable, retry_after=60)
    failures = [FailedRun(task_id=one.task_id, lease_token=one.lease_token, failure=failure) for one in grants]
    with acting_as(worker):
        return services.fail_many(worker=worker, failures=failures)


def release_many(worker: Caller, grants: Sequence[Grant]) -> list[Any]:
    releases = [Released(task_id=one.task_id, lease_token=one.lease_token) for one in grants]
    with acting_as(worker):
        return services.release_many(worker=worker, releases=releases)


def codes(answers: Sequence[Any]) -> list[str]:
    return [answer.code if isinstance(answer, DomainError) else str(answer.status) for answer in answers]


def test_each_request_of_a_batch_gets_what_it_would_get_alone(tenant: Tenant, kee: Caller) -> None:
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
        asked(params=path, recipient="Nobody"),
        asked(params=path, priority=11),
        asked(params=path, idempotency_key="before"),
        asked(params=path, idempotency_key="before", priority=1),
        asked(params=path, idempotency_key="new"),
        asked(params=path, idempotency_key="new"),
        asked(params=path, idempotency_key="new", priority=2),
        asked("other", recipient="Hexy", priority=9),
    )

    assert codes(answers) == [
        "queued",
        *("unknown_task_type", "task_type_disabled", "invalid_params", "unknown_queue", "unknown_recipient", "invalid"),
        *("queued", "idempotency_conflict", "queued", "queued", "idempotency_conflict", "queued"),
    ]
    assert (answers[7].task_id, answers[7].is_duplicate) == (first.task_id, True)
    assert (answers[10].task_id, answers[10].is_duplicate) == (answers[9].task_id, True)
    assert answers[11].extra == {"existing_task_id": answers[9].task_id}
    with acting_as(kee):
        made = [first.task_id, answers[0].task_id, answers[9].task_id, answers[12].task_id]
        assert [str(task) for task in Task.objects.order_by("pk")] == made
        assert LiveTask.objects.count() == Obligation.objects.filter(closed_at=None).count() == 4
        assert set(IdempotencyKey.objects.values_list("key", flat=True)) == {"before", "new"}
        assert Receipt.objects.filter(event_type="task_queued").count() == 4


def test_a_key_of_one_that_is_refused_serves_the_next_of_its_batch(kee: Caller) -> None:
    make_type(kee)
    asked_for = [
        asked("nothing", idempotency_key="k"),
        *[asked(idempotency_key="k")] * 2,
        asked("nothing", idempotency_key="k"),
    ]
    refused, taken, again, conflict = queue_many(kee, *asked_for)
    assert codes([refused, taken, again, conflict]) == ["unknown_task_type", "queued", "queued", "idempotency_conflict"]
    assert (again.task_id, again.is_duplicate) == (taken.task_id, True)


def test_a_batch_again_answers_the_same_and_changes_nothing(kee: Caller) -> None:
    make_type(kee)
    requests = [asked(idempotency_key=f"k{nth}") for nth in range(5)]
    first = queue_many(kee, *requests)
    before = snapshot(kee)

    again = queue_many(kee, *requests)

    assert [answer.task_id for answer in again] == [answer.task_id for answer in first]
    assert [answer.is_duplicate for answer in again] == [True] * 5
    assert snapshot(kee) == before


@pytest.mark.django_db(transaction=True)
def test_rival_batches_with_the_same_keys_in_any_order_make_each_task_once() -> None:
    kee = make_caller(make_tenant("acme"))
    make_type(kee)
    keys = [f"k{nth}" for nth in range(20)]
    barrier = threading.Barrier(4)
    answers: list[dict[str, str]] = []

    def ask(order: list[str]) -> None:
        try:
            barrier.wait(10)
            made = queue_many(kee, *(asked(idempotency_key=key) for key in order))
            answers.append(dict(zip(order, [answer.task_id for answer in made], strict=True)))
        finally:
            connection.close()

    orders = [keys, keys[::-1], keys[::2] + keys[1::2], keys[10:] + keys[:10]]
    threads = [threading.Thread(target=ask, args=[order]) for order in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert len(answers) == 4
    assert all(answer == answers[0] for answer in answers)
    with acting_as(kee):
        assert Task.objects.count() == LiveTask.objects.count() == 20


@pytest.mark.parametrize("end", [complete_many, fail_many, release_many])
def test_a_lost_lease_harms_none_of_the_others(
    kee: Caller, worker: Caller, end: Callable[[Caller, Sequence[Grant]], Any]
) -> None:
    rival = kee
    make_type(kee)
    for _ in range(4):
        queue(kee)
    done, one, other = lease(worker, capacity=3)
    foreign = lease_one(rival)
    complete(worker, done, "first")
    before = len(terminal_receipts(kee, done.task_id))

    answers = end(worker, [one, done, foreign, other])
    answers = answers.answers if isinstance(answers, Completed) else answers

    assert [isinstance(answer, DomainError) for answer in answers] == [False, True, True, False]
    assert codes(answers)[1:3] == ["already_decided", "bad_lease_token"]
    with acting_as(kee):
        assert LiveTask.objects.get(task_id=foreign.task_id).holder_id == rival.principal_id
        assert not LiveTask.objects.filter(task_id__in=[one.task_id, other.task_id], holder__isnull=False).exists()
    assert len(terminal_receipts(kee, done.task_id)) == before == 1


def test_one_lease_twice_in_a_batch_is_a_repetition(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    queue(kee)
    grant = lease_one(worker)
    first, again = complete_many(worker, [grant, grant]).answers
    assert first == again
    assert len(terminal_receipts(kee, grant.task_id)) == 1


def test_failures_of_a_batch_are_judged_each_by_its_own_task(kee: Caller, worker: Caller) -> None:
    make_type(kee, "once", max_attempts=1)
    make_type(kee, "twice", max_attempts=2)
    for name in ("once", "twice", "twice"):
        queue(kee, name)
    once, twice, canceled = lease(worker, capacity=3)
    with acting_as(kee):
        services.cancel(caller=kee, task_id=canceled.task_id)

    assert codes(fail_many(worker, [twice, once, canceled])) == ["scheduled", "failed", "canceled"]
    assert [len(terminal_receipts(kee, grant.task_id)) for grant in (once, twice, canceled)] == [1, 0, 1]


def test_a_completion_gives_the_next_leases_and_gives_them_again(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    make_type(kee, "other")
    at(NOON)
    for _ in range(4):
        queue(kee)
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


def test_leases_that_are_told_again_are_those_that_stand_in_the_time_that_is_left(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    at(NOON)
    for _ in range(3):
        queue(kee)
    one = lease_one(worker)
    again = partial(complete_many, worker, [one], lease_next=LeaseNext(capacity=2, lease_seconds=2))
    two, three = again().following
    assert [two.lease_ms, three.lease_ms] == [2000, 2000]

    at(NOON + timedelta(seconds=1.5))
    assert again().following == [replace(two, lease_ms=500), replace(three, lease_ms=500)]
    release_many(worker, [two])
    assert again().following == [replace(three, lease_ms=500)]
    at(NOON + timedelta(seconds=2))
    assert again().following == []


def test_the_next_leases_may_come_from_elsewhere(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    make_type(kee, "heavy", queue="second", requires=["gpu"])
    queue(kee)
    queue(kee, "heavy")
    elsewhere = LeaseNext(capacity=5, queues=("second",), capabilities=("gpu",), lease_seconds=7)
    completed = complete_many(worker, [lease_one(worker)], lease_next=elsewhere)
    assert [(grant.task_type, grant.lease_ms) for grant in completed.following] == [("heavy", 7000)]


def test_a_completion_that_ends_nothing_leases_nothing(kee: Caller, worker: Caller) -> None:
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
def test_rival_batches_end_each_task_once() -> None:
    tenant = make_tenant("acme")
    kee, worker = make_caller(tenant), make_caller(tenant, "W", Kind.WORKER)
    for name in ("A", "B", "C"):
        make_principal(tenant, name)
    make_type(kee)
    ids = [number(queue(kee, recipient=name)) for name in ("A", "B", "C") * 5]
    grants = lease(worker, capacity=len(ids))
    barrier = threading.Barrier(4)
    outcomes: list[list[str]] = []

    def end(act: Callable[[Caller, Sequence[Grant]], Any], order: list[Grant]) -> None:
        try:
            barrier.wait(10)
            answers = act(worker, order)
            outcomes.append(codes(answers.answers if isinstance(answers, Completed) else answers))
        finally:
            connection.close()

    acts: list[tuple[Any, list[Grant]]] = [
        (complete_many, grants),
        (complete_many, grants[::-1]),
        (release_many, grants[5:] + grants[:5]),
        (lambda caller, order: fail_many(caller, order, retryable=False), grants[::2] + grants[1::2]),
    ]
    threads = [threading.Thread(target=end, args=act) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert len(outcomes) == 4
    with acting_as(kee):
        records = dict(FinishedTask.objects.values_list("task_id", "status"))
        waiting = set(LiveTask.objects.filter(holder=None).values_list("task_id", flat=True))
    assert set(records) | waiting == set(ids)
    assert not set(records) & waiting
    assert [len(terminal_receipts(kee, task)) for task in ids] == [int(task in records) for task in ids]


def _statements(act: Callable[[], Any]) -> int:
    with CaptureQueriesContext(connection) as captured:
        act()
    return len(captured)


def test_a_batch_makes_as_many_statements_as_one(tenant: Tenant, kee: Caller, worker: Caller) -> None:
    names = [f"P{nth}" for nth in range(5)]
    for name in names:
        make_principal(tenant, name)
    make_type(kee)

    def counts(many: int, name: str) -> dict[str, int]:
        requests = [asked(idempotency_key=f"{name}-{nth}", recipient=names[nth % 5]) for nth in range(many)]
        found = {"queue": _statements(lambda: queue_many(kee, *requests))}
        queue_many(kee, *(asked(recipient=names[nth % 5]) for nth in range(many * 4)))
        grants = lease(worker, capacity=many * 2)
        following = LeaseNext(capacity=many)
        found["complete"] = _statements(lambda: complete_many(worker, grants[:many]))
        found["complete and lease"] = _statements(lambda: complete_many(worker, grants[many:], lease_next=following))
        found["fail"] = _statements(lambda: fail_many(worker, lease(worker, capacity=many), retryable=False))
        found["release"] = _statements(lambda: release_many(worker, lease(worker, capacity=many)))
        return found

    counts(10, "first")  # makes the inboxes
    assert counts(10, "few") == counts(40, "many")
