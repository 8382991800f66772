"""Retention: what is deleted of ended tasks."""

import threading

import pytest
from django.db import transaction

from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as
from apps.tasks.models import Budget, FinishedTask, LiveTask, TaskType
from apps.tasks.services import operating, queueing, running
from apps.tasks.shapes import BudgetInput
from tests.factories import as_owner, make_caller, make_tenant, make_token, refused
from tests.tasks.making import (
    DAY,
    complete,
    do,
    get,
    known,
    later,
    lease_one,
    make_type,
    number,
    queue,
)
from tests.waiters import together


def test_ended_task_is_deleted_after_its_retention(tenant: Tenant, kee: Caller, worker: Caller) -> None:
    make_type(kee)
    make_type(kee, "brief", retention_seconds=2 * DAY)
    make_type(kee, "long", retention_seconds=500 * DAY)
    middle, brief, long = (do(kee, worker, name, budget=BudgetInput(tokens=100)) for name in ("index", "brief", "long"))
    open_task = number(queue(kee))
    lease_one(worker)
    walk = operating.Walk()
    assert walk.forget() == 0
    later(3 * DAY)
    assert walk.forget() == 1
    assert known(kee)[:2] == [{middle, long, open_task}, {middle, long}]
    later(91 * DAY)
    walk = operating.Walk()
    assert walk.forget() == 1
    assert known(kee) == [{long, open_task}, {long}, {long, open_task}]
    with acting_as(kee):
        assert LiveTask.objects.count() == 1
        assert {budget.task_id for budget in Budget.objects.all()} == {long}
        with refused("unknown_task"):
            running.fetch_result(caller=kee, task_id=brief)
    assert get(make_token(tenant), f"tasks/task_{brief}")[0] == 404


def test_retention_is_at_least_a_day_in_every_tenant(kee: Caller, worker: Caller) -> None:
    stranger = make_caller(make_tenant("globex"))
    for caller in (kee, stranger):
        make_type(caller)
        with acting_as(caller):
            TaskType.objects.update(retention_seconds=1)
    do(kee, worker)
    do(stranger, stranger)
    later(DAY - 10)
    assert operating.Walk().forget() == 0
    later(DAY + 10)
    assert operating.Walk().forget() == 2
    assert known(kee)[0] == known(stranger)[0] == set()


def test_dependency_is_kept(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    make_type(kee, "other", queue="other")
    first = number(queue(kee))
    queue(kee, "other", depends_on=[f"task_{first}"])
    complete(worker, lease_one(worker))
    later(91 * DAY)
    assert operating.Walk().forget() == 0
    queueing.release_dependants()
    assert operating.Walk().forget() == 1


def test_idempotency_key_outlives_its_task(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    task = do(kee, worker, idempotency_key="k")
    later(91 * DAY)
    assert operating.Walk().forget() == 1
    again = queue(kee, idempotency_key="k")
    assert (again.is_duplicate, number(again)) == (True, task)
    later(401 * DAY)
    assert operating.Walk().forget() == 1
    assert not queue(kee, idempotency_key="k").is_duplicate


def test_walk_continues_and_starts_again(kee: Caller, worker: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.tasks.services.operating.FORGET_BATCH", 2)
    make_type(kee)
    make_type(kee, "long", retention_seconds=500 * DAY)
    for name in ("long", "long", "long", "index", "long", "index"):
        do(kee, worker, name)
    later(91 * DAY)
    walk = operating.Walk()
    assert [walk.forget() for _ in range(5)] == [0, 1, 1, 0, 0]
    assert len(known(kee)[0]) == 4
    later(501 * DAY)
    assert sum(walk.forget() for _ in range(5)) == 4


def test_what_every_type_keeps_is_not_looked_at(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    do(kee, worker)
    later(89 * DAY)
    walk = operating.Walk()
    assert (walk.forget(), walk.is_at_the_beginning) == (0, True)
    make_type(kee, "short", retention_seconds=2 * DAY)
    assert (walk.forget(), walk.is_at_the_beginning) == (0, False)


@pytest.fixture
def old(transactional_db: None) -> Caller:
    """Who has two committed tasks that ended a long time ago."""
    kee = make_caller(make_tenant("acme"))
    make_type(kee)
    for _ in range(2):
        do(kee, kee)
    with transaction.atomic(), as_owner() as cursor:
        cursor.execute("alter table task_history disable trigger user")
        cursor.execute("update task_history set finished_at = now() - interval '91 days'")
        cursor.execute("alter table task_history enable trigger user")
    return kee


def test_tasks_go_on_while_others_are_forgotten(old: Caller) -> None:
    worked = threading.Event()

    def work() -> None:
        try:
            for _ in range(40):
                queue(old)
                complete(old, lease_one(old))
        finally:
            worked.set()

    def forget() -> None:
        walk = operating.Walk()
        while not worked.is_set():
            walk.forget()

    together(work, forget, forget)
    with acting_as(old):
        assert FinishedTask.objects.count() == 40
