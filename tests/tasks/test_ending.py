"""Ends: exactly one of each task, with exactly one receipt, the same answer to the same call."""

import hashlib
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.core.files.storage import storages
from django.db import connection

from apps.core.errors import DomainError, Invalid
from apps.digests.models import Entry
from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as
from apps.receipts.models import Obligation, Receipt
from apps.tasks import selectors, services
from apps.tasks.errors import (
    AlreadyDecided,
    AlreadyFinished,
    ArtifactsUnavailable,
    ArtifactTooLarge,
    InvalidPointer,
    LeaseLost,
    NotFinished,
    UnknownArtifact,
    UnknownTask,
)
from apps.tasks.models import Artifact, FinishedTask, LiveTask, Run, Task, run_key
from apps.tasks.services import Failure, Grant, UnsuccessfulRun
from apps.tasks.states import MOST_RUNS, Status
from tests.factories import make_caller, make_principal, make_tenant
from tests.tasks.making import complete, lease, lease_one, make_type, number, queue
from tests.tasks.test_lease import at, beat

T0 = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture
def worker(tenant: Tenant) -> Caller:
    return make_caller(tenant, "W", Kind.WORKER)


def fail(worker: Caller, grant: Grant, *, retryable: bool = True, retry_after: float | None = None) -> UnsuccessfulRun:
    with acting_as(worker):
        return services.fail(
            worker=worker,
            task_id=grant.task_id,
            lease_token=grant.lease_token,
            failure=Failure(code="broken", message="It broke.", retryable=retryable, retry_after=retry_after),
        )


def release(worker: Caller, grant: Grant) -> UnsuccessfulRun:
    with acting_as(worker):
        return services.release(worker=worker, task_id=grant.task_id, lease_token=grant.lease_token)


def cancel(caller: Caller, task_id: int) -> str:
    with acting_as(caller):
        return services.cancel(caller=caller, task_id=task_id)


def terminal_receipts(caller: Caller, task_id: int) -> list[Receipt]:
    with acting_as(caller):
        found = Receipt.objects.filter(source_system="asyncgate", metadata__task_id=f"task_{task_id}")
        return list(found.exclude(event_type="task_queued"))


def snapshot(caller: Caller) -> tuple[Any, ...]:
    """Everything that an ending could change."""
    with acting_as(caller):
        return (
            list(LiveTask.objects.order_by("pk").values_list()),
            list(Run.objects.order_by("pk").values_list("pk", "outcome", "ended_at")),
            list(FinishedTask.objects.order_by("pk").values_list("pk", "status", "receipt_id")),
            Receipt.objects.count(),
            Entry.objects.count(),
            list(Obligation.objects.order_by("pk").values_list("closed_at")),
        )


def test_a_completion_is_record_receipt_entry_and_a_closed_obligation(
    tenant: Tenant, kee: Caller, worker: Caller
) -> None:
    make_principal(tenant, "Hexy")
    make_type(kee, title="Index of a tree")
    task = queue(kee, recipient="Hexy", caused_by=None)

    finished = complete(worker, lease_one(worker), {"files": 3}, "Indexed 3 files")

    (receipt,) = terminal_receipts(kee, number(task))
    with acting_as(kee):
        record = FinishedTask.objects.get(task_id=number(task))
        assert not LiveTask.objects.exists()
        assert (record.status, record.receipt_id, record.content) == ("succeeded", finished.receipt_id, {"files": 3})
        assert (receipt.receipt_id, receipt.event_type, receipt.surface) == (
            finished.receipt_id,
            "task_complete",
            "inbox",
        )
        assert receipt.dedupe_key == f"asyncgate:task_complete:{task.task_id}:run_1"
        assert (receipt.title, receipt.summary) == ("Index of a tree complete", "Indexed 3 files")
        assert receipt.pairs_with_ref == receipt.caused_by_ref == task.receipt_id
        assert {
            name: receipt.metadata[name]
            for name in ("task_id", "task_type", "status", "result_channel", "result_pointer", "run_id", "size")
        } == {
            "task_id": task.task_id,
            "task_type": "index",
            "status": "complete",
            "result_channel": "inline",
            "result_pointer": f"inline:{task.task_id}",
            "run_id": 1,
            "size": 11,
        }
        assert receipt.metadata["checksum"].startswith("sha256:")
        assert Obligation.objects.get().closed_at is not None
        assert Entry.objects.get().receipt_ids == [receipt.pk]


@pytest.mark.parametrize("call", [complete, fail, release])
def test_the_same_call_again_answers_the_same_and_changes_nothing(
    kee: Caller, worker: Caller, call: Callable[[Caller, Grant], Any]
) -> None:
    make_type(kee)
    queue(kee)
    grant = lease_one(worker)
    first = call(worker, grant)
    before = snapshot(kee)

    assert call(worker, grant) == first
    assert snapshot(kee) == before


@pytest.mark.parametrize("first", [complete, fail, release])
@pytest.mark.parametrize("then", [complete, fail, release])
def test_another_outcome_for_a_run_that_has_ended_is_refused(
    kee: Caller, worker: Caller, first: Callable[[Caller, Grant], Any], then: Callable[[Caller, Grant], Any]
) -> None:
    if first is then:
        return
    make_type(kee)
    queue(kee)
    grant = lease_one(worker)
    first(worker, grant)
    before = snapshot(kee)

    with pytest.raises(AlreadyDecided):
        then(worker, grant)
    assert snapshot(kee) == before


def test_the_same_verb_with_another_content_is_refused(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    queue(kee)
    grant = lease_one(worker)
    complete(worker, grant, {"a": 1})
    with pytest.raises(AlreadyDecided):
        complete(worker, grant, {"a": 2})


def test_a_replay_is_answered_even_when_the_task_has_gone_on(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    queue(kee)
    first = lease_one(worker)
    answer = release(worker, first)
    second = lease_one(worker)
    assert release(worker, first) == answer
    assert complete(worker, second).status == "succeeded"
    assert release(worker, first) == answer


def test_retryable_failures_are_retried_after_a_pause_until_the_attempts_are_used_up(
    kee: Caller, worker: Caller
) -> None:
    make_type(kee, max_attempts=2, backoff_seconds=10.0, backoff_cap_seconds=10.0)
    task = queue(kee)
    with acting_as(kee):
        at(T0)
        verdict = fail(worker, lease_one(worker))
        assert (verdict.status, verdict.will_retry, verdict.receipt_id) == ("scheduled", True, None)
        assert verdict.retry_at is not None
        assert T0 < verdict.retry_at <= T0 + timedelta(seconds=10)
        assert lease(worker) == []
        at(T0 + timedelta(seconds=10))
        last = fail(worker, lease_one(worker))

        assert (last.status, last.will_retry) == ("failed", False)
        record = FinishedTask.objects.get(task_id=number(task))
        assert (record.reason, record.fence) == ("attempts_exhausted", 2)
        assert record.error == {"code": "broken", "message": "It broke."}
    (receipt,) = terminal_receipts(kee, number(task))
    assert (receipt.event_type, receipt.metadata["status"]) == ("task_failed", "failed")
    assert receipt.dedupe_key == f"asyncgate:task_failed:{task.task_id}:run_2"


def test_a_failure_that_is_not_retryable_ends_the_task(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    task = queue(kee)
    assert fail(worker, lease_one(worker), retryable=False).status == "failed"
    assert len(terminal_receipts(kee, number(task))) == 1


def test_the_worker_may_say_when_to_try_again(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    queue(kee)
    with acting_as(kee):
        at(T0)
        verdict = fail(worker, lease_one(worker), retry_after=123)
    assert verdict.retry_at == T0 + timedelta(seconds=123)


def test_a_released_task_stands_where_it_stood_and_no_attempt_is_counted(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    first, _ = queue(kee), queue(kee)
    for _ in range(5):
        grant = lease_one(worker)
        assert grant.task_id == number(first)
        release(worker, grant)
    with acting_as(kee):
        hot = LiveTask.objects.get(task_id=number(first))
        assert (hot.failures, hot.expiries, hot.fence) == (0, 0, 5)


def test_leases_that_expire_too_often_end_in_a_dead_letter(kee: Caller, worker: Caller) -> None:
    make_type(kee, max_expiries=3, lease_seconds=10)
    task = queue(kee)
    with acting_as(kee):
        for expiry in range(3):
            at(T0 + timedelta(seconds=10 * expiry))
            assert len(lease(worker)) == 1
        at(T0 + timedelta(seconds=30))
        assert lease(worker) == []
        assert services.end_what_must() == 1
        assert services.end_what_must() == 0

        record = FinishedTask.objects.get(task_id=number(task))
        assert (record.status, record.reason) == ("failed", "expiries_exhausted")
        assert record.error == {"code": "lease_expired", "message": "The lease expired 3 times."}
    assert [receipt.event_type for receipt in terminal_receipts(kee, number(task))] == ["task_failed"]


def test_the_sweep_brings_an_expired_lease_back(kee: Caller, worker: Caller) -> None:
    make_type(kee, lease_seconds=10)
    queue(kee)
    with acting_as(kee):
        at(T0)
        grant = lease_one(worker)
        at(T0 + timedelta(seconds=10))
        assert services.bring_back().requeued == 1
        assert services.bring_back().requeued == 0
        assert beat(worker, grant).reason == "requeued"
        with pytest.raises(LeaseLost):
            complete(worker, grant)
        assert lease_one(worker).fence == 2


def test_a_waiting_task_is_canceled_at_once(kee: Caller) -> None:
    make_type(kee)
    task = queue(kee)
    assert cancel(kee, number(task)) == "canceled"
    before = snapshot(kee)
    assert cancel(kee, number(task)) == "canceled"
    assert snapshot(kee) == before
    (receipt,) = terminal_receipts(kee, number(task))
    assert receipt.event_type == "task_canceled"
    with acting_as(kee):
        assert Obligation.objects.get().closed_at is not None


def test_a_leased_task_hears_of_its_cancellation_and_may_still_complete(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    task = queue(kee)
    grant = lease_one(worker)
    assert [cancel(kee, number(task)), cancel(kee, number(task))] == ["canceling", "canceling"]
    assert beat(worker, grant).order == "cancel"
    with acting_as(kee):
        assert selectors.status(task.task_id).status == "canceling"
    assert complete(worker, grant).status == "succeeded"
    with pytest.raises(AlreadyFinished):
        cancel(kee, number(task))


@pytest.mark.parametrize("obey", [release, fail])
def test_a_worker_that_obeys_ends_the_task_canceled(
    kee: Caller, worker: Caller, obey: Callable[[Caller, Grant], UnsuccessfulRun]
) -> None:
    make_type(kee)
    task = queue(kee)
    grant = lease_one(worker)
    cancel(kee, number(task))
    verdict = obey(worker, grant)
    assert (verdict.status, verdict.will_retry) == ("canceled", False)
    assert obey(worker, grant) == verdict
    assert len(terminal_receipts(kee, number(task))) == 1


def test_a_cancellation_is_forced_at_the_end_of_the_lease(kee: Caller, worker: Caller) -> None:
    make_type(kee, lease_seconds=10)
    task = queue(kee)
    with acting_as(kee):
        at(T0)
        lease_one(worker)
        cancel(kee, number(task))
        at(T0 + timedelta(seconds=10))
        assert lease(worker) == []
        assert services.end_what_must() == 1
        assert selectors.status(task.task_id).status == "canceled"


def cancel_many(caller: Caller, *task_ids: int) -> dict[int, str]:
    with acting_as(caller):
        return {task: str(status) for task, status in services.cancel_many(caller=caller, task_ids=task_ids).items()}


def test_several_tasks_are_canceled_at_once_each_as_it_stands(tenant: Tenant, kee: Caller, worker: Caller) -> None:
    make_principal(tenant, "Hexy")
    make_type(kee)
    done, held, ended = (number(queue(kee)) for _ in range(3))
    complete(worker, lease_one(worker))
    lease_one(worker)
    cancel(kee, ended)
    waiting = [number(queue(kee, recipient=name)) for name in ("Hexy", "Kee")]

    answer = cancel_many(kee, *reversed(waiting), held, done, ended)

    canceled = dict.fromkeys((ended, *waiting), "canceled")
    assert answer == {done: "succeeded", held: "canceling", **canceled}
    for task in waiting:
        assert [receipt.event_type for receipt in terminal_receipts(kee, task)] == ["task_canceled"]
    with acting_as(kee):
        assert [hot.task_id for hot in LiveTask.objects.all()] == [held]
        assert Obligation.objects.filter(closed_at=None).count() == 1
    before = snapshot(kee)
    assert cancel_many(kee, held, *waiting) == {held: "canceling", **dict.fromkeys(waiting, "canceled")}
    assert cancel_many(kee) == {}
    assert snapshot(kee) == before


def test_one_task_of_a_stranger_refuses_the_whole_cancellation(tenant: Tenant, kee: Caller) -> None:
    make_type(kee)
    hexy = make_caller(tenant, "Hexy")
    mine, foreign = number(queue(kee)), number(queue(hexy))
    before = snapshot(kee)
    for other in (foreign, 10**15):
        with pytest.raises(UnknownTask):
            cancel_many(kee, mine, other)
    assert snapshot(kee) == before


@pytest.mark.django_db(transaction=True)
def test_cancellations_of_the_same_tasks_in_any_order_wait_for_each_other_in_no_circle() -> None:
    tenant = make_tenant("acme")
    kee = make_caller(tenant)
    others = [f"P{index}" for index in range(4)]
    for name in others:
        make_principal(tenant, name)
    make_type(kee)
    for _ in range(5):
        ids = [number(queue(kee, recipient=name)) for name in others * 2]
        # The tasks' recipients stand in the one order for one caller and in the other for the next.
        orders = [ids, ids[::-1], ids[::2] + ids[1::2], ids[4:] + ids[:4]]
        barrier = threading.Barrier(len(orders))
        answers: list[Any] = []

        def attempt(order: list[int], barrier: threading.Barrier = barrier, answers: list[Any] = answers) -> None:
            try:
                barrier.wait(10)
                answers.append(cancel_many(kee, *order))
            finally:
                connection.close()

        threads = [threading.Thread(target=attempt, args=[order]) for order in orders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)

        assert answers == [dict.fromkeys(sorted(ids), "canceled")] * len(orders)
        assert [len(terminal_receipts(kee, task)) for task in ids] == [1] * len(ids)


@pytest.mark.django_db(transaction=True)
def test_of_cancel_and_complete_exactly_one_wins() -> None:
    tenant = make_tenant("acme")
    kee, worker = make_caller(tenant), make_caller(tenant, "W", Kind.WORKER)
    make_type(kee)
    for _ in range(12):
        task = queue(kee)
        grant = lease_one(worker)
        cancel(kee, grant.task_id)
        barrier = threading.Barrier(3)
        answers: list[str] = []

        def attempt(act: Callable[[], Any], barrier: threading.Barrier = barrier, answers: list[str] = answers) -> None:
            try:
                barrier.wait(10)
                answers.append(str(act().status))
            except DomainError as refusal:
                answers.append(refusal.code)
            finally:
                connection.close()

        acts: list[Callable[[], Any]] = [
            partial(complete, worker, grant),
            partial(release, worker, grant),
            partial(fail, worker, grant, retryable=False),
        ]
        threads = [threading.Thread(target=attempt, args=[act]) for act in acts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)

        with acting_as(kee):
            ended = FinishedTask.objects.get(task_id=number(task)).status
        assert sorted(answers) == sorted([ended, "already_decided", "already_decided"])
        assert len(terminal_receipts(kee, number(task))) == 1


def test_a_task_is_its_parties_own(tenant: Tenant, kee: Caller, worker: Caller) -> None:
    make_type(kee)
    task = queue(kee)
    before = snapshot(kee)
    stranger, foreigner = make_caller(tenant, "Hexy"), make_caller(make_tenant("globex"), "Kee")
    for other in (stranger, foreigner, worker):
        with acting_as(other):
            with pytest.raises(UnknownTask):
                services.cancel(caller=other, task_id=number(task))
            with pytest.raises(UnknownTask):
                services.fetch_result(caller=other, task_id=number(task))
    assert snapshot(kee) == before


def test_a_result_is_fetched_when_there_is_one_and_the_first_time_is_kept(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    task = queue(kee)
    with acting_as(kee), pytest.raises(NotFinished):
        services.fetch_result(caller=kee, task_id=number(task))
    complete(worker, lease_one(worker), [1, None, "x"])
    with acting_as(kee):
        first = services.fetch_result(caller=kee, task_id=number(task))
    with acting_as(kee):
        second = services.fetch_result(caller=kee, task_id=number(task))
        opened = selectors.open_pointer(f"inline:{task.task_id}", tenant_id=kee.tenant_id)
    assert (first.content, first.result_pointer) == ([1, None, "x"], f"inline:{task.task_id}")
    assert first.fetched_at == second.fetched_at is not None
    assert (opened.content, opened.checksum) == (b'[1,null,"x"]', first.checksum)


def test_a_result_over_64_kib_becomes_an_artifact(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    inline, large = queue(kee), queue(kee)
    complete(worker, lease_one(worker), "x" * 65_534)
    complete(worker, lease_one(worker), "x" * 65_535)
    with acting_as(kee):
        assert selectors.result(inline.task_id).result_pointer == f"inline:{inline.task_id}"
        found = selectors.result(large.task_id)
        assert found.result_pointer is not None
        assert (found.result_channel, found.content, found.size) == ("artifact", None, 65_537)
        opened = selectors.open_pointer(found.result_pointer, tenant_id=kee.tenant_id)
    assert (len(opened.content), opened.media_type, opened.checksum) == (65_537, "application/json", found.checksum)


def test_the_same_bytes_are_stored_once_and_are_their_tenants_own(kee: Caller) -> None:
    pointers = {services.store_artifact(tenant_id=kee.tenant_id, content=b"abc", media_type="text/plain") for _ in "12"}
    stranger = make_caller(make_tenant("globex"))
    (pointer,) = pointers
    with acting_as(kee):
        assert Artifact.objects.count() == 1
        assert selectors.open_pointer(pointer, tenant_id=kee.tenant_id).content == b"abc"
    with acting_as(stranger), pytest.raises(UnknownArtifact):
        selectors.open_pointer(pointer, tenant_id=stranger.tenant_id)


def test_an_artifact_that_was_half_written_is_written_again_and_a_changed_one_is_not_shown(kee: Caller) -> None:
    pointer = services.store_artifact(tenant_id=kee.tenant_id, content=b"whole", media_type="text/plain")
    place = Path(storages["artifacts"].path(selectors.place_of(kee.tenant_id, pointer.rpartition("-")[2])))
    place.write_bytes(b"wh")
    services.store_artifact(tenant_id=kee.tenant_id, content=b"whole", media_type="text/plain")
    assert place.read_bytes() == b"whole"
    place.write_bytes(b"other")
    with acting_as(kee), pytest.raises(ArtifactsUnavailable):
        selectors.open_pointer(pointer, tenant_id=kee.tenant_id)


@pytest.mark.parametrize(
    ("refusal", "given"),
    [
        (Invalid, {"pointer": "s3://b/k", "result": 1}),
        (InvalidPointer, {"pointer": "no scheme"}),
        (InvalidPointer, {"pointer": "inline:task_1"}),
        (InvalidPointer, {"pointer": "artifact:sha256-" + "0" * 64}),
        (InvalidPointer, {"pointer": "artifact:md5-0"}),
        (ArtifactTooLarge, {"result": "x" * 70_000}),
    ],
)
def test_a_result_that_cannot_be_taken_is_refused(
    kee: Caller, settings: Any, refusal: type[DomainError], given: dict[str, Any]
) -> None:
    settings.ARTIFACT_MAX_BYTES = 66_000
    with pytest.raises(refusal):
        services.prepare(tenant_id=kee.tenant_id, task_id=1, **given)
    with acting_as(kee):
        assert not Artifact.objects.exists()


def test_a_timeline_tells_the_whole_story(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    task = queue(kee)
    release(worker, lease_one(worker))
    grant = lease_one(worker)
    beat(worker, grant, percent=10)
    complete(worker, grant)
    with acting_as(kee):
        services.fetch_result(caller=kee, task_id=number(task))
        story = selectors.timeline(task.task_id)
        events = story.events
        assert story.following is None
        assert [event.event for event in events] == [
            "queued",
            "leased",
            "run_released",
            "leased",
            "progress",
            "run_succeeded",
            "succeeded",
            "fetched",
        ]
        assert [event.at for event in events] == sorted(event.at for event in events)
        assert Run.objects.get(pk=run_key(number(task), 2)).fence == 2
        assert Task.objects.get(pk=number(task)).pk == number(task)


def _fails(worker: Caller, grant: Grant) -> None:
    assert fail(worker, grant, retry_after=0).will_retry is False


def _releases(worker: Caller, grant: Grant) -> None:
    assert release(worker, grant).will_retry is False


def _expires(worker: Caller, grant: Grant) -> None:
    at(T0 + timedelta(minutes=5))
    assert lease(worker) == []
    services.end_what_must()


def _is_revoked(_worker: Caller, grant: Grant) -> None:
    assert services.revoke_lease(task_id=grant.task_id) == Status.FAILED


def _is_stuck(worker: Caller, grant: Grant) -> None:
    assert [beat(worker, grant).status for _ in range(2)] == ["ok", "lost"]


@pytest.mark.parametrize("end", [_fails, _releases, _expires, _is_revoked, _is_stuck])
def test_a_task_that_has_had_all_its_runs_ends_and_keeps_back_no_other(
    kee: Caller, worker: Caller, end: Callable[[Caller, Grant], None]
) -> None:
    make_type(kee, max_attempts=9, max_expiries=9, stuck_after=2, revokes_stuck=True)
    first = number(queue(kee, priority=9))
    with acting_as(kee):
        LiveTask.objects.update(fence=MOST_RUNS - 1)
        at(T0)
        end(worker, lease_one(worker))

        assert (FinishedTask.objects.get().task_id, LiveTask.objects.count()) == (first, 0)
        other = number(queue(kee))
        assert lease_one(worker).task_id == other


def test_a_result_said_again_in_another_order_is_the_same(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    queue(kee)
    grant = lease_one(worker)
    first = complete(worker, grant, {"a": 1, "bb": {"d": 2, "c": [3]}})
    before = snapshot(kee)

    assert complete(worker, grant, {"bb": {"c": [3], "d": 2}, "a": 1}) == first
    assert snapshot(kee) == before


def test_an_inline_results_checksum_is_of_what_is_read(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    queue(kee)
    grant = lease_one(worker)
    complete(worker, grant, {"zz": 1, "a": 2, "b": "é"})

    with acting_as(kee):
        pointer = FinishedTask.objects.get().result_pointer or ""
        opened = selectors.open_pointer(pointer, tenant_id=kee.tenant_id)
    assert opened.checksum == f"sha256:{hashlib.sha256(opened.content).hexdigest()}"
