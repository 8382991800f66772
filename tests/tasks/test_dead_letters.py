"""What failed for good is kept whole, and replayed once."""

import threading
from typing import Any

import pytest
from django.db import connection

from apps.core.errors import Invalid
from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as
from apps.receipts.services import Group
from apps.tasks import selectors, services
from apps.tasks.errors import NotADeadLetter, TaskTypeDisabled, UnknownTask
from apps.tasks.models import FinishedTask, Task
from tests.factories import make_caller, make_tenant, make_token
from tests.tasks.making import complete, lease_one, make_type, number, queue
from tests.tasks.test_dependencies import fail
from tests.tasks.test_http import get, send


@pytest.fixture
def worker(tenant: Tenant) -> Caller:
    return make_caller(tenant, "W", Kind.WORKER)


def replay(caller: Caller, task_id: int) -> services.QueuedTask:
    with acting_as(caller):
        return services.replay(caller=caller, task_id=task_id)


def test_a_replay_is_a_new_task_of_the_same_making_and_the_same_one_each_time(
    tenant: Tenant, kee: Caller, worker: Caller
) -> None:
    make_type(kee)
    hexy = make_caller(tenant, "Hexy")
    asked: dict[str, Any] = {"recipient": "Hexy", "priority": 7, "group": Group(resource_ref="r", event_family="f")}
    dead = number(queue(kee, params={"path": "/x"}, **asked))
    fail(worker)
    first = replay(hexy, dead)
    again = replay(kee, dead)
    assert (first.is_duplicate, again.is_duplicate, again.task_id, again.receipt_id) == (
        *(False, True),
        *(first.task_id, first.receipt_id),
    )
    with acting_as(kee):
        old, new = Task.objects.get(pk=dead), Task.objects.get(pk=number(first))
        for member in ("params", "priority", "recipient_id", "requester_id", "queue_id", "task_type_id", "group"):
            assert getattr(new, member) == getattr(old, member), member
        record = FinishedTask.objects.get(task_id=dead)
        assert (new.replay_of, new.caused_by, record.status) == (dead, record.receipt_id, "failed")
        assert Task.objects.count() == 2
    complete(worker, lease_one(worker))
    assert replay(kee, dead).task_id == first.task_id


def test_only_what_failed_is_replayed_and_only_by_its_parties(tenant: Tenant, kee: Caller, worker: Caller) -> None:
    make_type(kee)
    task = number(queue(kee))
    with pytest.raises(NotADeadLetter):
        replay(kee, task)
    fail(worker)
    with pytest.raises(UnknownTask):
        replay(make_caller(tenant, "Hexy"), task)
    make_type(kee, enabled=False)
    with pytest.raises(TaskTypeDisabled):
        replay(kee, task)
    with acting_as(kee):
        assert Task.objects.count() == 1


def test_dead_letters_are_listed_newest_first_with_what_became_of_them(
    tenant: Tenant, kee: Caller, worker: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_type(kee)
    hexy = make_caller(tenant, "Hexy")
    theirs = []
    for requester in (kee, hexy, kee, hexy, kee):
        queue(requester)
        theirs.append(fail(worker))
    queue(kee)
    complete(worker, lease_one(worker))
    token = make_token(tenant, "Kee")
    status, made = send(token, f"tasks/task_{theirs[0]}/retry")
    assert (status, made["is_duplicate"]) == (201, False)
    assert send(token, f"tasks/task_{theirs[0]}/retry")[0] == 200
    assert send(token, f"tasks/task_{theirs[1]}/retry")[0] == 404

    own = [f"task_{pk}" for pk in (theirs[4], theirs[2], theirs[0])]
    status, page = get(token, "dead-letters")
    assert (status, [one["task_id"] for one in page["dead_letters"]], page["next"]) == (200, own, None)
    assert [one["replayed_as"] for one in page["dead_letters"]] == [None, None, made["task_id"]]
    assert page["dead_letters"][0]["error"] == {"code": "x", "message": "It broke."}
    monkeypatch.setattr(selectors, "DEAD_LETTERS_LOOKED_AT", 2)
    for limit in (1, 2):
        seen, cursor = [], ""
        while cursor is not None:
            _, page = get(token, f"dead-letters?limit={limit}{cursor and f'&cursor={cursor}'}")
            seen += [one["task_id"] for one in page["dead_letters"]]
            cursor = page["next"]
        assert seen == own


def test_a_queues_dead_letters_are_replayed_together_and_refusals_told(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    make_type(kee, "other")
    for task_type in ("index", "other", "index"):
        queue(kee, task_type)
        fail(worker)
    make_type(kee, "other", enabled=False)
    with acting_as(kee):
        queue_id = Task.objects.values_list("queue_id", flat=True)[0]
        replayed, refusals = services.replay_queue(queue_id=queue_id)
        assert (replayed, [type(one) for one in refusals]) == (2, [TaskTypeDisabled])
        assert services.replay_queue(queue_id=queue_id)[0] == 0
        assert Task.objects.filter(replay_of__isnull=False).count() == 2


@pytest.mark.django_db(transaction=True)
def test_replays_at_once_make_one_task() -> None:
    tenant = make_tenant("acme")
    kee, worker = make_caller(tenant), make_caller(tenant, "W", Kind.WORKER)
    make_type(kee)
    queue(kee)
    dead = fail(worker)
    together = threading.Barrier(5)
    made: list[str] = []

    def again() -> None:
        try:
            together.wait(20)
            made.append(replay(kee, dead).task_id)
        finally:
            connection.close()

    threads = [threading.Thread(target=again) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (len(made), len(set(made))) == (5, 1)
    with acting_as(kee):
        assert Task.objects.count() == 2


def test_nobody_takes_the_key_of_a_dead_letters_replay(kee: Caller) -> None:
    make_type(kee)
    dead = number(queue(kee))

    with pytest.raises(Invalid) as refusal:
        queue(kee, idempotency_key=f"replay:task_{dead}")

    assert [error.pointer for error in refusal.value.errors] == ["/idempotency_key"]
    with acting_as(kee):
        assert Task.objects.count() == 1
