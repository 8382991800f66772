"""How this product's own task workers execute: one task at a time, kept alive."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from apps.core.sql import database_now
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as
from apps.tasks import jobs as executor
from apps.tasks.handlers import Canceled, Context, Failed, Result, handler
from apps.tasks.models import FinishedTask, LiveTask, Run
from apps.tasks.shapes import RegisterTaskType
from tests.factories import as_owner, make_caller, make_tenant
from tests.tasks.making import cancel, lease, number, queue
from tests.waiters import Other, until

pytestmark = pytest.mark.django_db(transaction=True)


_seen: list[str] = []
_begun, _go, _beaten, _stopped = (threading.Event() for _ in range(4))


@handler(RegisterTaskType(name="quick_for_tests", queue="by_hand", lease_seconds=3, max_expiries=5))
def quick(context: Context, params: dict[str, Any]) -> Result:
    if params.get("fail"):
        raise Failed("broken", "It broke.", retryable=params["fail"] == "again")
    if params.get("defect"):
        raise RuntimeError("a defect")
    if params.get("wait"):
        _begun.set()
        deadline = time.monotonic() + 30
        while not _go.is_set() and not context.cancelled and time.monotonic() < deadline:
            time.sleep(0.02)
        if context.cancelled:
            raise Canceled
    return Result()


def _note_beat(execute: Callable[..., Any], sql: str, *more: Any) -> Any:
    done = execute(sql, *more)
    if "for update of h skip locked" in sql:
        _beaten.set()
    return done


@handler(RegisterTaskType(name="saves_for_tests", queue="by_hand", lease_seconds=3, max_expiries=5))
def saves(context: Context, params: dict[str, Any]) -> Result:
    if context.run_id > 1:
        return Result(summary=str(context.checkpoint))
    _begun.set()
    assert _go.wait(30)
    try:
        with connection.execute_wrapper(_note_beat):
            context.heartbeat(checkpoint={"line": 40})
    except Canceled:
        _stopped.set()
        raise
    _seen.append("goes on")
    raise Failed("broken", "It broke.", retryable=True)


@handler(RegisterTaskType(name="tells_for_tests", queue="by_hand", lease_seconds=3, max_expiries=5))
def tells(context: Context, params: dict[str, Any]) -> Result:
    context.progress(10, "first")
    context.heartbeat(progress=90, message="NUL is no text: \x00")
    _begun.set()
    assert _go.wait(30)
    return Result()


_UNRECORDABLE: dict[str, Callable[[], Result]] = {
    "pointer": lambda: Result(pointer="https://hub.example/" + "y" * 2000),
    "summary": lambda: Result(summary="a\x00b"),
}


@handler(RegisterTaskType(name="returns_for_tests", queue="by_hand", lease_seconds=3, max_expiries=5))
def returns(context: Context, params: dict[str, Any]) -> Result:
    if params.get("fails"):
        raise Failed("c" * 101, "a\x00b" + "x" * 4000, retryable=True)
    if params.get("says"):
        return Result(summary=params["says"])
    return _UNRECORDABLE[params["what"]]()


@pytest.fixture
def kee() -> Caller:
    for kept in (_seen, _begun, _go, _beaten, _stopped):
        kept.clear()
    return make_caller(make_tenant("acme"))


def ask(kee: Caller, **params: Any) -> int:
    return number(queue(kee, "quick_for_tests", params))


def work(kee: Caller) -> None:
    assert executor.work(kee.tenant_id, "by_hand")


@contextmanager
def aside(kee: Caller) -> Iterator[None]:
    """The queue is worked in another thread, whose handler has begun; at the end it may go on, and is waited for."""

    other = Other(lambda: work(kee))
    try:
        assert _begun.wait(30)
        yield
    finally:
        _go.set()
        assert other.ends() is None


def until_renewed(kee: Caller, task: int, *, by: timedelta = timedelta(0)) -> None:
    def expires_at() -> datetime:
        with acting_as(kee):
            found = LiveTask.objects.get(pk=task).lease_expires_at
        assert found is not None
        return found

    before = expires_at()
    until(lambda: expires_at() > before + by)


def ends(kee: Caller) -> dict[int, str]:
    with acting_as(kee):
        return dict(FinishedTask.objects.values_list("task_id", "status"))


def test_each_run_ends_by_itself(
    kee: Caller, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # The next attempt is not due yet.
    monkeypatch.setattr("apps.tasks.services.running.random.uniform", lambda *_: 60.0)
    ask(kee)
    well, bad, again, defect = ask(kee), ask(kee, fail="no"), ask(kee, fail="again"), ask(kee, defect=True)
    canceled = ask(kee)
    cancel(kee, canceled)
    with caplog.at_level("INFO", "apps.tasks.jobs"):
        work(kee)
    for task, outcome in ((well, "completed"), (bad, "failed"), (defect, "failed")):
        assert f"task_{task} run 1 of quick_for_tests {outcome}" in caplog.messages
    found = ends(kee)
    assert (found[well], found[bad], found[canceled]) == ("succeeded", "failed", "canceled")
    assert not {again, defect} & set(found)
    with acting_as(kee):
        errors = {run.task_id: (run.error or {}).get("code") for run in Run.objects.filter(outcome="failed")}
        assert set(LiveTask.objects.values_list("failures", flat=True)) == {1}
    assert errors == {bad: "broken", again: "broken", defect: "handler_error"}


def test_long_task_is_renewed_and_can_be_canceled(kee: Caller) -> None:
    long = ask(kee, wait=True)
    with aside(kee):
        until_renewed(kee, long)
        assert cancel(kee, long) == "canceling"
        until(lambda: ends(kee) == {long: "canceled"})


def first_run(kee: Caller) -> Run:
    with acting_as(kee):
        return Run.objects.earliest("pk")


def test_checkpoint_is_saved_when_heartbeat_returns(kee: Caller) -> None:
    task = number(queue(kee, "saves_for_tests"))
    with aside(kee), acting_as(kee):
        LiveTask.objects.select_for_update().get(pk=task)
        _go.set()
        assert _beaten.wait(30)
        assert _seen == []
    run = first_run(kee)
    assert (run.outcome, run.checkpoint) == ("failed", {"line": 40})


@pytest.mark.parametrize("taken", [True, False], ids=["taken by another", "out of reach for longer than it lasts"])
def test_handler_stops_at_its_heartbeat_when_the_lease_is_lost(kee: Caller, taken: bool) -> None:
    task = number(queue(kee, "saves_for_tests"))
    rival = make_caller(Tenant(pk=kee.tenant_id, slug=kee.tenant_slug), "W")
    with aside(kee):
        if taken:
            with acting_as(kee):
                LiveTask.objects.update(lease_expires_at=database_now() - timedelta(seconds=1))
            assert [grant.run_id for grant in lease(rival, queues=("by_hand",))] == [2]
            _go.set()
            assert _stopped.wait(30)
        else:
            with acting_as(kee):
                LiveTask.objects.select_for_update().get(pk=task)
                _go.set()
                assert _stopped.wait(30)
    assert _seen == []
    assert first_run(kee).checkpoint is None


def test_later_heartbeat_keeps_reported_progress(kee: Caller) -> None:
    task = number(queue(kee, "tells_for_tests"))
    with aside(kee):
        until_renewed(kee, task)
        run = first_run(kee)
    assert (run.percent, run.message) == (90, "NUL is no text: \N{REPLACEMENT CHARACTER}")


@pytest.mark.parametrize("what", _UNRECORDABLE)
def test_unrecordable_result_fails_only_its_run(kee: Caller, what: str) -> None:
    before, bad, after = ask(kee), number(queue(kee, "returns_for_tests", {"what": what})), ask(kee)
    work(kee)
    found = ends(kee)
    assert (found[before], found[bad], found[after]) == ("succeeded", "failed", "succeeded")
    with acting_as(kee):
        record = FinishedTask.objects.get(task_id=bad)
    assert (record.reason, (record.error or {})["code"]) == ("not_retryable", "unrecordable_result")


def test_unrecordable_failure_is_cut_and_retried(kee: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    # The next attempt is not due yet.
    monkeypatch.setattr("apps.tasks.services.running.random.uniform", lambda *_: 60.0)
    queue(kee, "returns_for_tests", {"fails": True})
    work(kee)
    with acting_as(kee):
        run, task = Run.objects.get(), LiveTask.objects.get()
    assert run.error is not None
    assert (run.error["code"], len(run.error["message"]), task.failures) == ("c" * 100, 4000, 1)
    assert run.error["message"].startswith("a\N{REPLACEMENT CHARACTER}b")


@contextmanager
def database_refuses(table: str, column: str, text: str) -> Iterator[None]:
    """The database takes no such text, for a reason that nothing but the database knows."""
    with transaction.atomic(), as_owner() as cursor:
        cursor.execute(f"alter table {table} add constraint for_tests check ({column} <> '{text}') not valid")
    try:
        yield
    finally:
        with transaction.atomic(), as_owner() as cursor:
            cursor.execute(f"alter table {table} drop constraint for_tests")


def test_end_that_the_database_refuses_fails_only_its_run(kee: Caller) -> None:
    _go.set()
    before, bad = ask(kee), number(queue(kee, "returns_for_tests", {"says": "poison"}))
    after = ask(kee, fail="no")
    with database_refuses("task_history", "summary", "poison"):
        work(kee)
    found = ends(kee)
    assert (found[before], found[bad], found[after]) == ("succeeded", "failed", "failed")
    with acting_as(kee):
        assert (FinishedTask.objects.get(task_id=bad).error or {})["code"] == "unrecordable_result"
