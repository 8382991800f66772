"""Calls of one caller at the same moment share a transaction; each is answered as it would be alone."""

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
from django.db import transaction

from apps.core import coalescing, operations
from apps.core.errors import Conflict, DomainError
from apps.core.schemas import parse
from apps.digests import services as digests
from apps.principals.tenancy import Caller, acting_as
from apps.receipts.models import Receipt
from apps.tasks.models import FinishedTask, LiveTask
from apps.tasks.services import ending
from tests.digests.test_coalesced_posts import is_held_up
from tests.tasks.making import asked, cancel, complete, lease, make_type, queue, queue_many
from tests.waiters import at_once, until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coalescing, "_PATIENCE", 20.0)


def ask(caller: Caller, name: str, given: Mapping[str, Any]) -> Any:
    declared = operations.find(name)
    return operations.call(declared, caller, parse(declared.input, given)).output


def meeting(
    line: Mapping[Any, Sequence[Any]],
    hold: Callable[[], Any],
    first: Callable[[], Any],
    others: Sequence[Callable[[], Any]],
    meanwhile: Callable[[], Any] = lambda: None,
) -> list[Any]:
    """What becomes of the others, which come one by one while the first is at work.

    :param hold: takes in a transaction what the first waits for.
    """
    holds, release = threading.Event(), threading.Event()

    def holder() -> None:
        with transaction.atomic():
            hold()
            holds.set()
            assert release.wait(20)

    def leader() -> Any:
        assert holds.wait(20)
        return first()

    def in_turn(place: int, other: Callable[[], Any]) -> Any:
        until(lambda: bool(line) and sum(map(len, line.values())) == place)
        return other()

    def let_go() -> None:
        until(lambda: sum(map(len, line.values())) == len(others) and is_held_up())
        meanwhile()
        release.set()

    outcomes = at_once(holder, leader, let_go, *(partial(in_turn, *pair) for pair in enumerate(others)))
    assert not line
    assert not any(isinstance(one, Exception) for one in outcomes[:3]), outcomes[:3]
    return outcomes[3:]


def test_completions_that_meet_are_one_group_and_refused_alone(
    kee: Caller, worker: Caller, rival: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_type(kee)
    queue_many(kee, *[asked()] * 5)
    first, good, lost, done, stopped = lease(worker, capacity=5)
    complete(worker, done, content="as before")
    with acting_as(worker):
        LiveTask.objects.filter(task_id=lost.task_id).update(fencing_token=2)
    groups: list[int] = []
    together = ending.complete_many

    def counted(*, completions: Sequence[Any], **more: Any) -> Any:
        groups.append(len(completions))
        return together(completions=completions, **more)

    monkeypatch.setattr(ending, "complete_many", counted)

    def end(grant: Any, result: Any = None) -> Callable[[], Any]:
        given = {"task_id": f"task_{grant.task_id}", "lease_token": grant.lease_token, "result": result}
        return partial(ask, worker, "complete_task", given)

    def hold() -> None:
        with acting_as(kee):
            digests.lock(principal_id=kee.principal_id)

    answers = meeting(
        operations._coalescer._waiting,
        hold,
        end(first),
        [end(good), end(lost), end(done, "as before"), end(done, "another"), end(good), end(stopped)],
        meanwhile=lambda: cancel(kee, stopped.task_id),
    )

    assert groups == [1, 6]
    ended, refused, repeated, decided, again, raced = answers
    assert ended.status == "succeeded"
    assert isinstance(refused, Conflict)
    assert (refused.code, refused.extra["reason"]) == ("lease_lost", "superseded")
    with acting_as(worker):
        assert repeated.receipt_id == FinishedTask.objects.get(task_id=done.task_id).receipt_id
        assert FinishedTask.objects.count() == 4
    assert isinstance(decided, Conflict)
    assert decided.code == "already_decided"
    assert again == ended
    assert raced.status == "succeeded"
    with acting_as(kee):
        assert Receipt.objects.filter(event_type="task_complete").count() == 4


def test_queued_tasks_that_meet_are_refused_alone_and_keys_hold_among_them(kee: Caller) -> None:
    make_type(kee)

    def task(**more: Any) -> Callable[[], Any]:
        return partial(ask, kee, "queue_task", {"task_type": "index", "params": {}, **more})

    others = [
        task(idempotency_key="a"),
        task(task_type="nothing"),
        task(idempotency_key="a"),
        task(idempotency_key="a", priority=9),
        task(),
    ]
    taken, unknown, again, clash, other = meeting(
        operations._coalescer._waiting,
        partial(queue, kee, idempotency_key="first"),
        task(idempotency_key="first"),
        others,
    )

    assert not taken.is_duplicate
    assert isinstance(unknown, DomainError)
    assert unknown.code == "unknown_task_type"
    assert (again.is_duplicate, again.task_id) == (True, taken.task_id)
    assert isinstance(clash, DomainError)
    assert clash.code == "idempotency_conflict"
    assert other.task_id != taken.task_id
    with acting_as(kee):
        assert LiveTask.objects.count() == 3
