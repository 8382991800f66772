"""Ends: exactly one of each task, with one receipt, and the same answer to the same call."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import permutations
from typing import Any

import pytest

from apps.core.errors import DomainError
from apps.digests.models import Entry
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as
from apps.receipts.models import Obligation
from apps.receipts.shapes import GroupInput
from apps.tasks import selectors
from apps.tasks.models import FinishedTask, LiveTask, Task
from apps.tasks.services import operating, running
from apps.tasks.shapes import LeasedTask, QueuedTask, UnsuccessfulRun
from apps.tasks.states import MOST_RUNS
from tests.factories import at, make_caller, make_principal, make_tenant, make_token, refused
from tests.tasks.making import (
    FUTURE,
    beat,
    cancel,
    complete,
    fail,
    fail_next,
    get,
    lease,
    lease_one,
    leased,
    make_type,
    number,
    queue,
    release,
    send,
    snapshot,
    terminal_receipts,
)
from tests.waiters import Other, together, until_somebody_waits_for_this_transaction


def test_completion_writes_record_receipt_and_inbox_entry(tenant: Tenant, kee: Caller, worker: Caller) -> None:
    make_principal(tenant, "Hexy")
    make_type(kee, title="Index of a tree")
    task = queue(kee, recipient_ai="Hexy")

    finished = complete(worker, lease_one(worker), {"files": 3}, "Indexed 3 files")

    (receipt,) = terminal_receipts(kee, number(task))
    with acting_as(kee):
        record = FinishedTask.objects.get(task_id=number(task))
        assert not LiveTask.objects.exists()
        assert (record.status, record.receipt_id, record.content) == ("succeeded", finished.receipt_id, {"files": 3})
        assert (receipt.receipt_id, receipt.event_type) == (finished.receipt_id, "task_complete")
        assert receipt.surface == "inbox"
        assert receipt.dedupe_key == f"asyncgate:task_complete:{task.task_id}:run_1"
        assert (receipt.title, receipt.summary) == ("Index of a tree complete", "Indexed 3 files")
        assert receipt.pairs_with_ref == receipt.caused_by_ref == task.receipt_id
        told = {"task_id": task.task_id, "task_type": "index", "status": "complete", "run_id": 1, "size": 11}
        where = {"result_channel": "inline", "result_pointer": f"inline:{task.task_id}"}
        assert receipt.metadata.items() >= {**told, **where}.items()
        assert receipt.metadata["checksum"].startswith("sha256:")
        assert Obligation.objects.get().closed_at is not None
        assert Entry.objects.get().receipt_ids == [receipt.pk]


@pytest.mark.parametrize("call", [complete, fail, release])
def test_repeated_ending_answers_the_same(
    kee: Caller, worker: Caller, call: Callable[[Caller, LeasedTask], Any]
) -> None:
    grant = leased(kee, worker)
    first = call(worker, grant)
    before = snapshot(kee)

    assert call(worker, grant) == first
    assert snapshot(kee) == before


@pytest.mark.parametrize(("first", "then"), list(permutations([complete, fail, release], 2)))
def test_another_outcome_for_an_ended_run_is_refused(
    kee: Caller, worker: Caller, first: Callable[[Caller, LeasedTask], Any], then: Callable[[Caller, LeasedTask], Any]
) -> None:
    grant = leased(kee, worker)
    first(worker, grant)
    before = snapshot(kee)

    with refused("already_decided"):
        then(worker, grant)
    assert snapshot(kee) == before


def test_another_result_for_a_completed_run_is_refused(kee: Caller, worker: Caller) -> None:
    grant = leased(kee, worker)
    first = complete(worker, grant, {"a": 1, "bb": {"d": 2, "c": [3]}})
    before = snapshot(kee)

    assert complete(worker, grant, {"bb": {"c": [3], "d": 2}, "a": 1}) == first
    with refused("already_decided"):
        complete(worker, grant, {"a": 2})
    assert snapshot(kee) == before


def test_repeated_release_is_answered_after_the_task_went_on(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    queue(kee)
    first = lease_one(worker)
    answer = release(worker, first)
    second = lease_one(worker)
    assert release(worker, first) == answer
    assert complete(worker, second).status == "succeeded"
    assert release(worker, first) == answer


def test_retryable_failures_are_retried_up_to_max_attempts(kee: Caller, worker: Caller) -> None:
    make_type(kee, max_attempts=3, backoff={"base_seconds": 10, "cap_seconds": 10})
    task = queue(kee)
    with acting_as(kee):
        at(FUTURE)
        verdict = fail(worker, lease_one(worker))
        assert (verdict.status, verdict.will_retry, verdict.receipt_id) == ("scheduled", True, None)
        assert verdict.retry_at is not None
        assert FUTURE < verdict.retry_at <= FUTURE + timedelta(seconds=10)
        assert lease(worker) == []
        at(FUTURE + timedelta(seconds=10))
        second = fail(worker, lease_one(worker), retry_after=123)
        assert second.retry_at == FUTURE + timedelta(seconds=133)
        at(FUTURE + timedelta(seconds=133))
        last = fail(worker, lease_one(worker))

        assert (last.status, last.will_retry) == ("failed", False)
        record = FinishedTask.objects.get(task_id=number(task))
        assert (record.reason, record.fencing_token) == ("attempts_exhausted", 3)
        assert record.error == {"code": "broken", "message": "It broke."}
    (receipt,) = terminal_receipts(kee, number(task))
    assert (receipt.event_type, receipt.metadata["status"]) == ("task_failed", "failed")
    assert receipt.dedupe_key == f"asyncgate:task_failed:{task.task_id}:run_3"


def test_released_task_keeps_its_place_and_attempts(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    first, _ = queue(kee), queue(kee)
    for _ in range(5):
        grant = lease_one(worker)
        assert number(grant) == number(first)
        release(worker, grant)
    with acting_as(kee):
        live = LiveTask.objects.get(task_id=number(first))
        assert (live.failures, live.expiries, live.fencing_token) == (0, 0, 5)


def test_max_expiries_make_a_dead_letter(kee: Caller, worker: Caller) -> None:
    make_type(kee, max_expiries=3, lease_seconds=10)
    task = queue(kee)
    with acting_as(kee):
        for expiry in range(3):
            at(FUTURE + timedelta(seconds=10 * expiry))
            assert len(lease(worker)) == 1
        at(FUTURE + timedelta(seconds=30))
        assert lease(worker) == []
        assert operating.end_what_must() == 1
        assert operating.end_what_must() == 0

        record = FinishedTask.objects.get(task_id=number(task))
        assert (record.status, record.reason) == ("failed", "expiries_exhausted")
        assert record.error == {"code": "lease_expired", "message": "The lease expired 3 times."}
    assert [receipt.event_type for receipt in terminal_receipts(kee, number(task))] == ["task_failed"]


def test_canceling_task_may_still_complete(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    task = queue(kee)
    grant = lease_one(worker)
    assert [cancel(kee, number(task)), cancel(kee, number(task))] == ["canceling", "canceling"]
    assert beat(worker, grant).order == "cancel"
    with acting_as(kee):
        assert selectors.status(task.task_id).status == "canceling"
    assert complete(worker, grant).status == "succeeded"
    with refused("already_finished"):
        cancel(kee, number(task))


@pytest.mark.parametrize("obey", [release, fail])
def test_obeyed_cancellation_ends_the_task(
    kee: Caller, worker: Caller, obey: Callable[[Caller, LeasedTask], UnsuccessfulRun]
) -> None:
    make_type(kee)
    task = queue(kee)
    grant = lease_one(worker)
    cancel(kee, number(task))
    verdict = obey(worker, grant)
    assert (verdict.status, verdict.will_retry) == ("canceled", False)
    assert obey(worker, grant) == verdict
    assert len(terminal_receipts(kee, number(task))) == 1


def cancel_many(caller: Caller, *task_ids: int) -> dict[int, str]:
    with acting_as(caller):
        return {task: str(status) for task, status in running.cancel_many(caller=caller, task_ids=task_ids).items()}


def test_cancel_many_answers_the_status_of_each(tenant: Tenant, kee: Caller, worker: Caller) -> None:
    make_principal(tenant, "Hexy")
    make_type(kee)
    done, held, ended = (number(queue(kee)) for _ in range(3))
    complete(worker, lease_one(worker))
    lease_one(worker)
    cancel(kee, ended)
    waiting = [number(queue(kee, recipient_ai=name)) for name in ("Hexy", "Kee")]

    answer = cancel_many(kee, *reversed(waiting), held, done, ended)

    canceled = dict.fromkeys((ended, *waiting), "canceled")
    assert answer == {done: "succeeded", held: "canceling", **canceled}
    for task in waiting:
        assert [receipt.event_type for receipt in terminal_receipts(kee, task)] == ["task_canceled"]
    with acting_as(kee):
        assert [live.task_id for live in LiveTask.objects.all()] == [held]
        assert Obligation.objects.filter(closed_at=None).count() == 1
    before = snapshot(kee)
    assert cancel_many(kee, held, *waiting) == {held: "canceling", **dict.fromkeys(waiting, "canceled")}
    assert cancel_many(kee) == {}
    assert snapshot(kee) == before


def test_foreign_task_refuses_the_whole_cancellation(kee: Caller, hexy: Caller) -> None:
    make_type(kee)
    mine, foreign = number(queue(kee)), number(queue(hexy))
    before = snapshot(kee)
    for other in (foreign, 10**15):
        with refused("unknown_task"):
            cancel_many(kee, mine, other)
    assert snapshot(kee) == before


@pytest.mark.django_db(transaction=True)
def test_rival_cancellations_in_any_order_do_not_deadlock(tenant: Tenant, kee: Caller) -> None:
    others = [f"P{index}" for index in range(4)]
    for name in others:
        make_principal(tenant, name)
    make_type(kee)
    for _ in range(5):
        ids = [number(queue(kee, recipient_ai=name)) for name in others * 2]
        # The tasks' recipients stand in the one order for one caller and in the other for the next.
        orders = [ids, ids[::-1], ids[::2] + ids[1::2], ids[4:] + ids[:4]]
        answers = together(*(partial(cancel_many, kee, *order) for order in orders))
        assert answers == [dict.fromkeys(sorted(ids), "canceled")] * len(orders)
        assert [len(terminal_receipts(kee, task)) for task in ids] == [1] * len(ids)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("changes", [beat, cancel], ids=["heartbeat", "cancellation"])
def test_an_end_that_waits_for_a_change_of_its_task_is_whole(
    kee: Caller, worker: Caller, changes: Callable[..., Any]
) -> None:
    make_type(kee)
    task = number(queue(kee))
    grant = lease_one(worker)
    with acting_as(kee):
        changes(*(worker, grant) if changes is beat else (kee, task))
        end = Other(partial(complete, worker, grant))
        until_somebody_waits_for_this_transaction()

    assert end.ends() is None
    with acting_as(kee):
        assert FinishedTask.objects.get(task_id=task).status == "succeeded"
        assert not LiveTask.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_one_of_several_rival_endings_wins(kee: Caller, worker: Caller) -> None:
    make_type(kee)

    def attempt(act: Callable[[], Any]) -> str:
        try:
            return str(act().status)
        except DomainError as refusal:
            return refusal.code

    for _ in range(12):
        task = number(queue(kee))
        grant = lease_one(worker)
        cancel(kee, task)
        acts: list[Callable[[], Any]] = [
            partial(complete, worker, grant),
            partial(release, worker, grant),
            partial(fail, worker, grant, retryable=False),
        ]
        answers = together(*(partial(attempt, act) for act in acts))
        with acting_as(kee):
            ended = FinishedTask.objects.get(task_id=task).status
        assert sorted(answers) == sorted([ended, "already_decided", "already_decided"])
        assert len(terminal_receipts(kee, task)) == 1


def test_only_its_parties_cancel_and_read_a_task(tenant: Tenant, kee: Caller, worker: Caller) -> None:
    make_type(kee)
    task = queue(kee)
    before = snapshot(kee)
    stranger, foreigner = make_caller(tenant, "Hexy"), make_caller(make_tenant("globex"), "Kee")
    for other in (stranger, foreigner, worker):
        with acting_as(other):
            with refused("unknown_task"):
                running.cancel(caller=other, task_id=number(task))
            with refused("unknown_task"):
                running.fetch_result(caller=other, task_id=number(task))
    assert snapshot(kee) == before


def expires(worker: Caller, grant: LeasedTask) -> None:
    at(FUTURE + timedelta(minutes=5))
    assert lease(worker) == []
    operating.end_what_must()


LAST_ENDS: list[Callable[[Caller, LeasedTask], object]] = [
    lambda worker, grant: fail(worker, grant, retry_after=0),
    release,
    expires,
    lambda _, grant: operating.revoke_lease(task_id=number(grant)),
    lambda worker, grant: [beat(worker, grant), beat(worker, grant)],  # the second is of a stuck run
]


@pytest.mark.parametrize("end", LAST_ENDS)
def test_task_ends_after_its_last_possible_run(
    kee: Caller, worker: Caller, end: Callable[[Caller, LeasedTask], object]
) -> None:
    make_type(kee, max_attempts=9, max_expiries=9, stuck_after=2, revoke_stuck=True)
    first = number(queue(kee, priority=9))
    with acting_as(kee):
        LiveTask.objects.update(fencing_token=MOST_RUNS - 1)
        at(FUTURE)
        end(worker, lease_one(worker))

        assert (FinishedTask.objects.get().task_id, LiveTask.objects.count()) == (first, 0)
        other = number(queue(kee))
        assert number(lease_one(worker)) == other


def retry(caller: Caller, task_id: int) -> QueuedTask:
    with acting_as(caller):
        return operating.retry(caller=caller, task_id=task_id)


def test_retry_makes_one_new_task_with_the_same_request(kee: Caller, hexy: Caller, worker: Caller) -> None:
    make_type(kee)
    asked: dict[str, Any] = {
        "recipient_ai": "Hexy",
        "priority": 7,
        "group": GroupInput(resource_ref="r", event_family="f"),
    }
    dead = number(queue(kee, params={"path": "/x"}, **asked))
    fail_next(worker)
    first = retry(hexy, dead)
    again = retry(kee, dead)
    assert (first.is_duplicate, again.is_duplicate, again.task_id, again.receipt_id) == (
        *(False, True),
        *(first.task_id, first.receipt_id),
    )
    with acting_as(kee):
        old, new = Task.objects.get(pk=dead), Task.objects.get(pk=number(first))
        for member in ("params", "priority", "recipient_id", "requester_id", "queue_id", "task_type_id", "group"):
            assert getattr(new, member) == getattr(old, member), member
        record = FinishedTask.objects.get(task_id=dead)
        assert (new.retry_of, new.caused_by, record.status) == (dead, record.receipt_id, "failed")
        assert Task.objects.count() == 2
    complete(worker, lease_one(worker))
    assert retry(kee, dead).task_id == first.task_id


def test_only_failed_tasks_are_retried_by_their_parties(tenant: Tenant, kee: Caller, worker: Caller) -> None:
    make_type(kee)
    task = number(queue(kee))
    with refused("not_a_dead_letter"):
        retry(kee, task)
    fail_next(worker)
    with refused("unknown_task"):
        retry(make_caller(tenant, "Hexy"), task)
    make_type(kee, enabled=False)
    with refused("task_type_disabled"):
        retry(kee, task)
    with acting_as(kee):
        assert Task.objects.count() == 1


def test_dead_letters_are_listed_newest_first_and_retried_once(
    tenant: Tenant, kee: Caller, worker: Caller, monkeypatch: pytest.MonkeyPatch, hexy: Caller
) -> None:
    make_type(kee)
    theirs = []
    for requester in (kee, hexy, kee, hexy, kee):
        queue(requester)
        theirs.append(fail_next(worker))
    queue(kee)
    complete(worker, lease_one(worker))
    token = make_token(tenant, "Kee")
    status, made = send(token, f"tasks/task_{theirs[0]}/retry")
    assert (status, made["is_duplicate"]) == (201, False)
    assert send(token, f"tasks/task_{theirs[0]}/retry")[0] == 200
    assert send(token, f"tasks/task_{theirs[1]}/retry")[0] == 404

    own = [f"task_{pk}" for pk in (theirs[4], theirs[2], theirs[0])]
    monkeypatch.setattr(selectors, "TASKS_LOOKED_AT", 2)
    for limit in (1, 2):
        seen, cursor = [], ""
        while cursor is not None:
            _, page = get(token, f"tasks?status=failed&limit={limit}{cursor and f'&cursor={cursor}'}")
            seen += [one["task_id"] for one in page["tasks"]]
            cursor = page["next"]
        assert seen == own
    assert get(token, f"tasks/{own[0]}")[1]["error"] == {"code": "broken", "message": "It broke."}


@pytest.mark.django_db(transaction=True)
def test_rival_retries_make_one_task(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    queue(kee)
    dead = fail_next(worker)
    made = together(*[lambda: retry(kee, dead).task_id] * 5)
    assert len(set(made)) == 1
    with acting_as(kee):
        assert Task.objects.count() == 2


def test_keys_of_retries_are_reserved(kee: Caller) -> None:
    make_type(kee)
    dead = number(queue(kee))

    with refused("invalid"):
        queue(kee, idempotency_key=f"retry:task_{dead}")
