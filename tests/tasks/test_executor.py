"""How this product's own workers execute: many at a time, each kept alive, nothing kept waiting."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as
from apps.tasks import selectors, services
from apps.tasks.handlers import Canceled, Context, Failed, Result, handler
from apps.tasks.jobs import executor
from apps.tasks.models import HotTask, Run, Spend, TerminalRecord
from apps.tasks.services import BudgetDraft, Left
from apps.tasks.shapes import used_up
from tests.factories import make_caller, make_tenant
from tests.tasks.making import lease, number, queue

pytestmark = pytest.mark.django_db(transaction=True)

_seen: list[tuple[str, str, str]] = []
_left: list[Left | None] = []
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
    return Result(content={"n": params.get("n")})


@pytest.fixture
def kee() -> Caller:
    _seen.clear()
    _left.clear()
    _begun.clear()
    _go.clear()
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
        return dict(TerminalRecord.objects.values_list("task_id", "status"))


def test_many_quick_tasks_take_few_statements(kee: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    for patience in ("_QUICK_SECONDS", "_REPORT_WITHIN_SECONDS", "_BEGIN_WITHIN_SECONDS"):
        monkeypatch.setattr(executor, patience, 60.0)
    tasks = [ask(kee, n=n) for n in range(31)]
    with CaptureQueriesContext(connection) as captured:
        work(kee)
    assert ends(kee) == dict.fromkeys(tasks, "succeeded")
    # 1, 2, 4, 8 and 16 at a time; then nothing is found where those left off, nor in the whole line.
    claims = [query["sql"] for query in captured if "insert into tasks_run" in query["sql"]]
    endings = [query["sql"] for query in captured if "insert into tasks_terminalrecord" in query["sql"]]
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
        assert set(HotTask.objects.values_list("failures", flat=True)) == {1}
    assert errors == {bad: "broken", again: "broken", defect: "handler_error"}


def test_keys_tell_tasks_and_runs_apart(kee: Caller) -> None:
    task = ask(kee, fail="again")
    work(kee)
    with acting_as(kee), connection.cursor() as cursor:
        cursor.execute("update tasks_hottask set ready_at = now() - interval '1 hour', due_at = null")
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
        assert set(HotTask.objects.values_list("failures", "expiries")) <= {(0, 0)}


def test_a_long_task_is_kept_alive_and_hears_of_its_end(kee: Caller) -> None:
    long = ask(kee, wait=True)
    thread = aside(kee)
    try:
        assert _begun.wait(30)
        with acting_as(kee):
            before = HotTask.objects.get().lease_expires_at
        assert before is not None

        def renewed() -> bool:
            with acting_as(kee):
                now = HotTask.objects.get().lease_expires_at
            return now is not None and now > before

        until(renewed)
        with acting_as(kee):
            assert services.cancel(caller=kee, task_id=long) == "canceling"
        until(lambda: ends(kee) == {long: "canceled"})
    finally:
        _go.set()
        thread.join(30)


def test_what_a_handler_uses_is_told_before_its_end_and_it_hears_what_is_left(kee: Caller) -> None:
    quiet, bound = (
        ask(kee, tokens=7),
        number(queue(kee, "quick_for_tests", {"tokens": 40, "beat": True}, budget=BudgetDraft(tokens=100))),
    )
    work(kee)
    assert ends(kee) == {quiet: "succeeded", bound: "succeeded"}
    assert _left == [Left(tokens=60, cost_usd=None)]
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
        assert TerminalRecord.objects.get().reason == "budget_exhausted"


@pytest.mark.parametrize("more", [{"tokens": -1}, {"cost_usd": -0.5}, {"cost_usd": float("nan")}, {"tokens": 10**12}])
def test_what_no_run_can_have_used_is_refused_to_its_handler(more: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="used"):
        used_up((1, 0.5), more.get("tokens", 0), more.get("cost_usd", 0.0))
