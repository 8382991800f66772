"""How this product's own workers execute: many at a time, each kept alive, nothing kept waiting."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from apps.core.sql import database_now
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as
from apps.tasks import selectors, services
from apps.tasks.handlers import Canceled, Context, Failed, Result, handler
from apps.tasks.jobs import executor
from apps.tasks.models import FinishedTask, LiveTask, Run, Spend
from apps.tasks.services import BudgetDraft, BudgetLeft
from apps.tasks.shapes import used_up
from tests import ground
from tests.factories import make_caller, make_tenant
from tests.tasks.making import lease, number, queue

pytestmark = pytest.mark.django_db(transaction=True)

_seen: list[tuple[str, str, str]] = []
_left: list[BudgetLeft | None] = []
_begun, _go = threading.Event(), threading.Event()


@handler(task_type="quick_for_tests", params_schema={"type": "object"}, queue="by_hand", lease=timedelta(seconds=3))
def quick(context: Context, params: dict[str, Any]) -> Result:
    _seen.append((context.task_id, context.idempotency_key, context.run_idempotency_key))
    context.spend(tokens=params.get("tokens", 0), cost_usd=0.25 if params.get("tokens") else 0.0)
    if params.get("beat"):
        context.heartbeat()
        _left.append(context.budget_left)
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
    context.spend(tokens=params.get("later", 0))
    return Result(content={"n": params.get("n")})


_beaten, _stopped = threading.Event(), threading.Event()


def _note_beat(execute: Callable[..., Any], sql: str, *more: Any) -> Any:
    done = execute(sql, *more)
    if "for update of h skip locked" in sql:
        _beaten.set()
    return done


@handler(task_type="saves_for_tests", params_schema={"type": "object"}, queue="by_hand", lease=timedelta(seconds=3))
def saves(context: Context, params: dict[str, Any]) -> Result:
    if context.run_id > 1:
        return Result(content=context.checkpoint)
    _begun.set()
    assert _go.wait(30)
    try:
        with connection.execute_wrapper(_note_beat):
            context.heartbeat(checkpoint={"line": 40})
    except Canceled:
        _stopped.set()
        raise
    _seen.append(("goes on", "", ""))
    raise Failed("broken", "It broke.", retryable=True)


@handler(task_type="tells_for_tests", params_schema={"type": "object"}, queue="by_hand", lease=timedelta(seconds=3))
def tells(context: Context, params: dict[str, Any]) -> Result:
    context.progress(10, "first")
    context.heartbeat(progress=90, message="NUL is no text: \x00")
    _begun.set()
    assert _go.wait(30)
    return Result()


_UNRECORDABLE: dict[str, Callable[[], Result]] = {
    "pointer": lambda: Result(pointer="https://hub.example/" + "y" * 2000),
    "channel": lambda: Result(pointer="https://hub.example/", channel="c" * 51),
    "checksum": lambda: Result(checksum="c" * 101),
    "summary": lambda: Result(summary="a\x00b"),
    "NUL": lambda: Result(content={"text": "a\x00b"}),
    "NaN": lambda: Result(content=({"n": float("nan")},)),
    "surrogate": lambda: Result(content="\ud800"),
    "no JSON": lambda: Result(content={1, 2}),
    "large and no JSON": lambda: Result(content=["x" * 70_000, float("inf")]),
}


@handler(task_type="returns_for_tests", params_schema={"type": "object"}, queue="by_hand", lease=timedelta(seconds=3))
def returns(context: Context, params: dict[str, Any]) -> Result:
    if params.get("fails"):
        raise Failed("c" * 101, "a\x00b" + "x" * 4000, retryable=True, details={"n": float("nan")})
    if params.get("says"):
        context.progress(1, params["says"])
        _begun.set()
        assert _go.wait(30)
        return Result(summary=params["says"])
    return _UNRECORDABLE[params["what"]]()


@pytest.fixture
def kee() -> Caller:
    _seen.clear()
    _left.clear()
    _begun.clear()
    _go.clear()
    _beaten.clear()
    _stopped.clear()
    return make_caller(make_tenant("acme"))


def ask(kee: Caller, **params: Any) -> int:
    return number(queue(kee, "quick_for_tests", params))


def work(kee: Caller) -> None:
    assert executor.work(kee.tenant_id, "by_hand")


def aside(kee: Caller) -> threading.Thread:
    def run() -> None:
        try:
            executor.work(kee.tenant_id, "by_hand")
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def ends(kee: Caller) -> dict[int, str]:
    with acting_as(kee):
        return dict(FinishedTask.objects.values_list("task_id", "status"))


def test_many_quick_tasks_take_few_statements(kee: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    for patience in ("_QUICK_SECONDS", "_REPORT_WITHIN_SECONDS", "_BEGIN_WITHIN_SECONDS"):
        monkeypatch.setattr(executor, patience, 60.0)
    tasks = [ask(kee, n=n) for n in range(31)]
    with CaptureQueriesContext(connection) as captured:
        work(kee)
    assert ends(kee) == dict.fromkeys(tasks, "succeeded")
    # 1, 2, 4, 8 and 16 at a time; then nothing is found where those left off, nor in the whole line.
    claims = [query["sql"] for query in captured if "insert into tasks_run" in query["sql"]]
    endings = [query["sql"] for query in captured if "insert into task_history" in query["sql"]]
    assert (len(claims), len(endings)) == (7, 5)


def test_each_of_a_batch_ends_in_its_own_way(kee: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "_QUICK_SECONDS", 60.0)
    ask(kee)
    well, bad, again, defect = ask(kee, n=1), ask(kee, fail="no"), ask(kee, fail="again"), ask(kee, defect=True)
    canceled = ask(kee)
    with acting_as(kee):
        services.cancel(caller=kee, task_id=canceled)
    work(kee)
    found = ends(kee)
    assert (found[well], found[bad], found[canceled]) == ("succeeded", "failed", "canceled")
    assert not {again, defect} & set(found)
    with acting_as(kee):
        errors = {run.task_id: (run.error or {}).get("code") for run in Run.objects.filter(outcome="failed")}
        assert set(LiveTask.objects.values_list("failures", flat=True)) == {1}
    assert errors == {bad: "broken", again: "broken", defect: "handler_error"}


def test_keys_tell_tasks_and_runs_apart(kee: Caller) -> None:
    task = ask(kee, fail="again")
    work(kee)
    with acting_as(kee), connection.cursor() as cursor:
        cursor.execute("update task_live set ready_at = now() - interval '1 hour', due_at = null")
    work(kee)
    (_, first, first_run), (_, second, second_run) = _seen
    assert first == second == f"asyncgate:task_{task}"
    assert (first_run, second_run) == (f"{first}:run_1", f"{first}:run_2")


def test_what_waits_behind_a_long_task_is_given_back_and_what_is_done_is_reported(
    kee: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "_QUICK_SECONDS", 60.0)
    monkeypatch.setattr(executor, "_BEGIN_WITHIN_SECONDS", 0.1)
    first, second = ask(kee), ask(kee, n=2)
    long = ask(kee, wait=True)
    behind = [ask(kee) for _ in range(3)]
    thread = aside(kee)
    try:
        assert _begun.wait(30)
        until(lambda: set(ends(kee)) == {first, second})
        other = make_caller(Tenant(pk=kee.tenant_id, slug=kee.tenant_slug), "W")
        taken: list[int] = []

        def others_get_it() -> bool:
            taken.extend(grant.task_id for grant in lease(other, queues=("by_hand",), capacity=5))
            return len(taken) >= 1

        until(others_get_it)
        assert set(taken) <= set(behind)
        with acting_as(kee):
            assert selectors.status(f"task_{long}").status == "leased"
    finally:
        _go.set()
        thread.join(30)
    assert ends(kee)[long] == "succeeded"
    with acting_as(kee):
        given_back = Run.objects.filter(outcome="released")
        assert {run.task_id for run in given_back} <= set(behind)
        assert set(LiveTask.objects.values_list("failures", "expiries")) <= {(0, 0)}


def test_a_long_task_is_kept_alive_and_hears_of_its_end(kee: Caller) -> None:
    long = ask(kee, wait=True)
    thread = aside(kee)
    try:
        assert _begun.wait(30)
        with acting_as(kee):
            before = LiveTask.objects.get().lease_expires_at
        assert before is not None

        def renewed() -> bool:
            with acting_as(kee):
                now = LiveTask.objects.get().lease_expires_at
            return now is not None and now > before

        until(renewed)
        with acting_as(kee):
            assert services.cancel(caller=kee, task_id=long) == "canceling"
        until(lambda: ends(kee) == {long: "canceled"})
    finally:
        _go.set()
        thread.join(30)


def test_a_checkpoint_is_saved_when_heartbeat_returns_though_another_has_the_row_at_hand(kee: Caller) -> None:
    task = number(queue(kee, "saves_for_tests"))
    thread = aside(kee)
    try:
        assert _begun.wait(30)
        with acting_as(kee):
            LiveTask.objects.select_for_update().get(pk=task)
            _go.set()
            assert _beaten.wait(30)
            assert _seen == []
    finally:
        _go.set()
        thread.join(30)
    with acting_as(kee):
        run = Run.objects.order_by("pk").first()
    assert run is not None
    assert (run.outcome, run.checkpoint) == ("failed", {"line": 40})


@pytest.mark.parametrize("taken", [True, False], ids=["taken by another", "out of reach for longer than it lasts"])
def test_a_handler_whose_lease_is_lost_goes_no_further_than_its_heartbeat(kee: Caller, taken: bool) -> None:
    task = number(queue(kee, "saves_for_tests"))
    thread = aside(kee)
    try:
        assert _begun.wait(30)
        if taken:
            with acting_as(kee):
                LiveTask.objects.update(lease_expires_at=database_now() - timedelta(seconds=1))
            other = make_caller(Tenant(pk=kee.tenant_id, slug=kee.tenant_slug), "W")
            assert [grant.fence for grant in lease(other, queues=("by_hand",))] == [2]
            _go.set()
            assert _stopped.wait(30)
        else:
            with acting_as(kee):
                LiveTask.objects.select_for_update().get(pk=task)
                _go.set()
                assert _stopped.wait(30)
    finally:
        _go.set()
        thread.join(30)
    assert _seen == []
    with acting_as(kee):
        run = Run.objects.order_by("pk").first()
    assert run is not None
    assert run.checkpoint is None


def test_progress_that_a_heartbeat_told_is_not_undone_by_the_next(kee: Caller) -> None:
    task = number(queue(kee, "tells_for_tests"))
    thread = aside(kee)
    try:
        assert _begun.wait(30)
        with acting_as(kee):
            before = LiveTask.objects.get(pk=task).lease_expires_at
        assert before is not None

        def renewed() -> bool:
            with acting_as(kee):
                now = LiveTask.objects.get(pk=task).lease_expires_at
            return now is not None and now > before

        until(renewed)
        with acting_as(kee):
            run = Run.objects.get()
    finally:
        _go.set()
        thread.join(30)
    assert (run.percent, run.message) == (90, "NUL is no text: \N{REPLACEMENT CHARACTER}")


@pytest.mark.parametrize("what", _UNRECORDABLE)
def test_a_result_that_can_not_be_recorded_fails_its_run_by_name_and_no_other(
    kee: Caller, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(executor, "_QUICK_SECONDS", 60.0)
    ask(kee)
    before, bad, after = ask(kee), number(queue(kee, "returns_for_tests", {"what": what})), ask(kee)
    work(kee)
    found = ends(kee)
    assert (found[before], found[bad], found[after]) == ("succeeded", "failed", "succeeded")
    with acting_as(kee):
        record = FinishedTask.objects.get(task_id=bad)
    assert (record.reason, (record.error or {})["code"]) == ("not_retryable", "unrecordable_result")


def test_a_failure_that_can_not_be_recorded_as_it_is_is_cut_and_may_be_tried_again_as_it_says(kee: Caller) -> None:
    queue(kee, "returns_for_tests", {"fails": True})
    work(kee)
    with acting_as(kee):
        run, task = Run.objects.get(), LiveTask.objects.get()
    assert run.error is not None
    assert (run.error["code"], len(run.error["message"]), task.failures) == ("c" * 100, 4000, 1)
    assert run.error["message"].startswith("a\N{REPLACEMENT CHARACTER}b")
    assert "left_out" in run.error["details"]


@contextmanager
def refused(table: str, column: str, text: str) -> Iterator[None]:
    """The database takes no such text, for a reason that nothing but the database knows."""
    with transaction.atomic(), ground.as_owner() as cursor:
        cursor.execute(f"alter table {table} add constraint for_tests check ({column} <> '{text}') not valid")
    try:
        yield
    finally:
        with transaction.atomic(), ground.as_owner() as cursor:
            cursor.execute(f"alter table {table} drop constraint for_tests")


def test_what_only_the_database_refuses_keeps_no_other_run_back(kee: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "_QUICK_SECONDS", 60.0)
    _go.set()
    ask(kee)
    before, bad = ask(kee, tokens=7), number(queue(kee, "returns_for_tests", {"says": "poison"}))
    after = ask(kee, fail="no")
    with refused("task_history", "summary", "poison"):
        work(kee)
    found = ends(kee)
    assert (found[before], found[bad], found[after]) == ("succeeded", "failed", "failed")
    with acting_as(kee):
        assert (FinishedTask.objects.get(task_id=bad).error or {})["code"] == "unrecordable_result"


def test_a_heartbeat_that_only_the_database_refuses_ends_no_other_lease(
    kee: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "_QUICK_SECONDS", 60.0)
    monkeypatch.setattr(executor, "_BEGIN_WITHIN_SECONDS", 60.0)
    ask(kee)
    queue(kee, "returns_for_tests", {"says": "poison"})
    waiting = ask(kee)
    with refused("tasks_run", "message", "poison"):
        thread = aside(kee)
        try:
            assert _begun.wait(30)
            with acting_as(kee):
                before = LiveTask.objects.get(pk=waiting).lease_expires_at
            assert before is not None

            def renewed() -> bool:
                with acting_as(kee):
                    now = LiveTask.objects.get(pk=waiting).lease_expires_at
                return now is not None and now > before + timedelta(seconds=2)

            until(renewed)
        finally:
            _go.set()
            thread.join(30)
    assert ends(kee)[waiting] == "succeeded"


def test_what_a_handler_uses_is_told_before_its_end_and_it_hears_what_is_left(kee: Caller) -> None:
    quiet, bound = (
        ask(kee, tokens=7),
        number(queue(kee, "quick_for_tests", {"tokens": 40, "beat": True}, budget=BudgetDraft(tokens=100))),
    )
    work(kee)
    assert ends(kee) == {quiet: "succeeded", bound: "succeeded"}
    assert _left == [BudgetLeft(tokens=60, cost_usd=None)]
    with acting_as(kee):
        noted = {row.task_id: (row.tokens, float(row.cost_usd)) for row in Spend.objects.all()}
    assert noted == {quiet: (7, 0.25), bound: (40, 0.25)}


def test_a_handler_without_anything_left_to_spend_is_told_to_stop(kee: Caller) -> None:
    task = number(
        queue(kee, "quick_for_tests", {"tokens": 40, "beat": True, "wait": True}, budget=BudgetDraft(tokens=40))
    )
    work(kee)
    assert ends(kee) == {task: "failed"}
    with acting_as(kee):
        assert FinishedTask.objects.get().reason == "budget_exhausted"


def test_of_a_run_that_was_told_that_nothing_is_left_no_more_is_told_and_its_result_is_taken(kee: Caller) -> None:
    task = number(
        queue(kee, "quick_for_tests", {"tokens": 40, "beat": True, "later": 5}, budget=BudgetDraft(tokens=40))
    )
    work(kee)
    assert ends(kee) == {task: "succeeded"}
    with acting_as(kee):
        assert Spend.objects.get().tokens == 40


@pytest.mark.parametrize("more", [{"tokens": -1}, {"cost_usd": -0.5}, {"cost_usd": float("nan")}, {"tokens": 10**12}])
def test_what_no_run_can_have_used_is_refused_to_its_handler(more: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="used"):
        used_up((1, 0.5), more.get("tokens", 0), more.get("cost_usd", 0.0))
