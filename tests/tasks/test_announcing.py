"""Hints at their source: the verbs that announce work and ends, and when they do."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.dispatch import Signal

from apps.core.sql import database_now
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as
from apps.tasks import services
from apps.tasks.shapes import Failure
from apps.tasks.signals import task_queued, tasks_finished
from tests.factories import T0, make_caller, make_tenant
from tests.tasks.making import complete, lease_one, make_type, number, queue, set_queue

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def kee() -> Caller:
    return make_caller(make_tenant("acme"), "Kee", Kind.AI)


@contextmanager
def heard(signal: Signal) -> Iterator[list[dict[str, Any]]]:
    """What a listener hears until the block ends."""
    facts: list[dict[str, Any]] = []

    def listen(*, signal: Signal, sender: object, **told: Any) -> None:
        facts.append(told)

    signal.connect(listen)
    try:
        yield facts
    finally:
        signal.disconnect(listen)


def work(caller: Caller) -> dict[str, Any]:
    return {"tenant_id": caller.tenant_id, "queue": "default", "task_type": "index"}


def test_a_queued_task_is_announced_once_it_is_committed(kee: Caller) -> None:
    make_type(kee)
    with heard(task_queued) as announced:
        with transaction.atomic():
            queue(kee)
            assert announced == []
        assert announced == [work(kee)]


def test_a_task_that_was_never_committed_or_was_there_before_or_waits_is_not_announced(kee: Caller) -> None:
    make_type(kee)
    queue(kee, idempotency_key="k")
    with heard(task_queued) as announced:
        with transaction.atomic():
            queue(kee)
            transaction.set_rollback(True)
        queue(kee, idempotency_key="k")
        with acting_as(kee):
            later = database_now() + timedelta(hours=1)
        queue(kee, run_at=later)
        assert announced == []


def test_a_task_that_is_given_back_is_announced_again(kee: Caller) -> None:
    make_type(kee)
    queue(kee)
    grant = lease_one(kee)
    with heard(task_queued) as announced:
        with acting_as(kee):
            services.release(worker=kee, task_id=grant.task_id, lease_token=grant.lease_token)
        assert announced == [work(kee)]


def test_what_a_pause_kept_back_is_announced_once_it_is_resumed(kee: Caller) -> None:
    make_type(kee)
    make_type(kee, "still", queue="second")
    for task_type, line in (("index", "default"), ("index", "default"), ("still", "default"), ("index", "second")):
        queue(kee, task_type, queue=line)
    with acting_as(kee):
        services.pause_type(caller=kee, name="still", now=T0)
        services.pause_queue(caller=kee, name="default", now=T0)

    with heard(task_queued) as announced:
        with acting_as(kee):
            services.resume_queue(caller=kee, name="default")
            assert announced == []
        assert announced == [work(kee)]
        with acting_as(kee):
            services.pause_queue(caller=kee, name="second", now=T0)
            services.resume_type(caller=kee, name="still")
        assert announced[1:] == [{**work(kee), "task_type": "still"}]
        with acting_as(kee):
            services.resume_type(caller=kee, name="index")
        assert announced[2:] == [work(kee)]


def test_what_a_limit_kept_back_is_announced_once_it_is_lifted(kee: Caller) -> None:
    make_type(kee)
    set_queue(kee, concurrency=1)
    queue(kee)
    queue(kee)
    lease_one(kee)
    with heard(task_queued) as announced:
        set_queue(kee)
        assert announced == [work(kee)]


def end_by_completing(caller: Caller) -> None:
    complete(caller, lease_one(caller))


def end_by_failing(caller: Caller) -> None:
    grant = lease_one(caller)
    with acting_as(caller):
        services.fail(
            worker=caller,
            task_id=grant.task_id,
            lease_token=grant.lease_token,
            failure=Failure(code="broken", message="It broke."),
        )


@pytest.mark.parametrize("end", [end_by_completing, end_by_failing])
def test_an_end_is_announced_once_it_is_committed(kee: Caller, end: Any) -> None:
    make_type(kee)
    task = queue(kee)
    with heard(tasks_finished) as announced:
        with transaction.atomic():
            end(kee)
            assert announced == []
        assert announced == [{"tenant_id": kee.tenant_id, "task_ids": [number(task)]}]


@pytest.mark.parametrize("several", [False, True])
def test_a_cancellation_is_announced_as_an_end(kee: Caller, several: bool) -> None:
    make_type(kee)
    task = number(queue(kee))
    with heard(tasks_finished) as announced:
        with acting_as(kee):
            if several:
                services.cancel_many(caller=kee, task_ids=[task])
            else:
                services.cancel(caller=kee, task_id=task)
            assert announced == []
        assert announced == [{"tenant_id": kee.tenant_id, "task_ids": [task]}]


@pytest.mark.parametrize("limited", ["queue", "type", None])
def test_an_end_announces_the_room_that_it_makes_below_a_limit(kee: Caller, limited: str | None) -> None:
    make_type(kee, concurrency=1 if limited == "type" else None)
    if limited == "queue":
        set_queue(kee, concurrency=1)
    queue(kee)
    grant = lease_one(kee)
    with heard(task_queued) as announced:
        with transaction.atomic():
            complete(kee, grant)
            assert announced == []
        assert announced == ([work(kee)] if limited else [])
