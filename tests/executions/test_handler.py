"""The task that calls a worker: what it tells, when it stops, and when it must not run again."""

import threading
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection

from apps.core.sql import database_now
from apps.executions import calls, handlers
from apps.executions.services.starting import Budget
from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller
from apps.tasks import selectors as task_selectors
from apps.tasks import services as tasks
from apps.tasks.jobs.executor import work as execute_queue
from apps.tasks.models import FinishedTask, LiveTask, Run
from apps.tasks.services import Beat, QueuedTask, QueueRequest
from apps.tasks.shapes import TaskStatus
from apps.workers.models import Call, Worker
from apps.workers.services import health
from tests.executions.making import (
    REPORT,
    advance,
    begin,
    call_step,
    make_worker,
    make_writing_worker,
    money,
    queue_step,
    report,
)
from tests.executions.workers import WorkerServer
from tests.factories import make_caller, make_tenant

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def tenant(transactional_db: None) -> Tenant:
    return make_tenant("acme")


@pytest.fixture
def kee(tenant: Tenant) -> Caller:
    return make_caller(tenant, "Kee", Kind.AI)


def queue_call(
    caller: Caller,
    tool_name: str,
    params: dict[str, object],
    *,
    worker_id: str = "texter",
    task_type: str | None = None,
) -> QueuedTask:
    whole = {"worker_id": worker_id, "tool_name": tool_name, "params": params}
    with caller.acting():
        return tasks.queue(
            requester=caller, request=QueueRequest(task_type=task_type or "mcp_worker_call", params=whole)
        )


def seen(caller: Caller, task: QueuedTask) -> TaskStatus:
    with caller.acting():
        return task_selectors.status(task.task_id)


def test_task_ends_with_a_pointer_to_the_answer(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    task = queue_call(kee, "echo", {"text": "hello"})

    execute_queue(kee.tenant_id, "execute")

    done = seen(kee, task)
    assert done.status == "succeeded"
    assert done.result_pointer is not None
    with kee.acting():
        opened = task_selectors.open_pointer(done.result_pointer, tenant_id=kee.tenant_id)
        assert Call.objects.get().ok
    assert task_selectors.shown(opened.content, opened.media_type)["length"] == 5


def test_task_type_may_name_the_worker(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    make_worker(
        kee,
        server,
        "only",
        tools=[{"name": "shout", "description": "shout", "input_schema": {"type": "object"}}],
    )

    with kee.acting():
        assert handlers.for_worker("mcp_worker_texter", {"tool_name": "echo", "params": {"text": "x"}}) == {
            "worker_id": "texter",
            "tool_name": "echo",
            "params": {"text": "x"},
        }
        assert handlers.for_worker("mcp_worker_only", {"text": "x"}) == {
            "worker_id": "only",
            "tool_name": "shout",
            "params": {"text": "x"},
        }
        assert handlers.for_worker("mcp_worker_texter", {"text": "x"}) is None
        assert handlers.for_worker("other", {"tool_name": "echo"}) is None


def test_canceled_task_gives_up_its_call(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    task = queue_call(kee, "hold", {"text": "x"})
    executor = threading.Thread(target=lambda: _execute(kee))
    executor.start()
    assert server.entered.wait(20)

    with kee.acting():
        tasks.cancel(caller=kee, task_id=int(task.task_id.removeprefix("task_")))
    executor.join(30)

    assert not executor.is_alive()
    assert seen(kee, task).status == "canceled"


@pytest.mark.parametrize(("worker_id", "calls"), [("texter", 1), ("writer", 0)])
def test_only_repeatable_tool_is_called_after_a_lost_run(
    kee: Caller, server: WorkerServer, worker_id: str, calls: int
) -> None:
    make_worker(kee, server)
    make_writing_worker(kee, server)
    task = queue_call(kee, "echo", {"text": "x"}, worker_id=worker_id)
    leave_a_run_behind(kee)

    execute_queue(kee.tenant_id, "execute")

    done = seen(kee, task)
    assert server.calls["echo"] == calls
    assert done.run_id == 2
    assert done.status == ("succeeded" if calls else "failed")
    assert calls or (done.error or {})["code"] == "outcome_unknown"


def test_run_without_its_lease_does_not_call(
    kee: Caller, server: WorkerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_worker(kee, server)
    make_writing_worker(kee, server)
    here, on = threading.Event(), threading.Event()
    note = calls.note_run

    def stand_still_once(ref: str) -> None:
        note(ref)
        if not here.is_set():
            here.set()
            assert on.wait(30)

    # As under SIGSTOP: between the checks and the call the lease runs out, and the next run does the work.
    monkeypatch.setattr(calls, "note_run", stand_still_once)
    task = queue_call(kee, "echo", {"text": "x"}, worker_id="writer")
    executor = threading.Thread(target=lambda: _execute(kee))
    executor.start()
    try:
        assert here.wait(30)
        with kee.acting():
            LiveTask.objects.update(lease_expires_at=database_now() - timedelta(seconds=1))
        execute_queue(kee.tenant_id, "execute")
        assert (seen(kee, task).status, seen(kee, task).run_id) == ("succeeded", 2)
    finally:
        on.set()
        executor.join(30)

    assert server.calls == {"echo": 1}


@pytest.mark.parametrize("planned", [{}, {"estimated_cost": 0.01}], ids=["not estimated", "estimated too low"])
@pytest.mark.parametrize("bound", ["max_total_cost", "max_cost_per_step"])
@pytest.mark.parametrize(
    ("most", "ended"), [("0.25", ("complete", Decimal("0.2"), 1)), ("0.15", ("budget_exceeded", Decimal("0.1"), 0))]
)
def test_each_run_that_may_have_called_is_charged(
    kee: Caller,
    server: WorkerServer,
    bound: str,
    *,
    most: str,
    ended: tuple[str, Decimal, int],
    planned: dict[str, Any],
) -> None:
    make_worker(kee, server, hints={"expected_runtime": "fast", "cost_estimate": 0.1})
    bounds: dict[str, Any] = {bound: Decimal(most)}
    execution = begin(kee, [queue_step("a", **planned), REPORT], budget=Budget(**bounds))
    advance(execution)
    leave_a_run_behind(kee)

    execute_queue(kee.tenant_id, "execute")
    advance(execution)

    done = report(kee, execution)
    assert (done.status, money(done.total_cost), server.calls["echo"]) == ended


@pytest.mark.parametrize("priced", [{}, {"cost_estimate": 0.1}], ids=["by the plan alone", "by the worker"])
def test_broken_run_is_charged_by_plan_or_worker_price(
    kee: Caller, server: WorkerServer, priced: dict[str, Any]
) -> None:
    make_worker(kee, server, hints={"expected_runtime": "fast", **priced})
    planned: dict[str, Any] = {} if priced else {"estimated_cost": 0.1}
    crashing = {**queue_step("a", **planned), "tool_name": "crash", "params": {}}
    execution = begin(kee, [crashing, REPORT], budget=Budget(max_total_cost=Decimal("0.25")))
    advance(execution)

    for _ in range(4):
        execute_queue(kee.tenant_id, "execute")
        _come_due(kee)
    advance(execution)

    done = report(kee, execution)
    with kee.acting():
        # The third finds that the budget does not pay for it.
        assert Run.objects.count() == 3
        assert Call.objects.count() == 2
    assert (done.status, money(done.total_cost)) == ("budget_exceeded", Decimal("0.2"))


def test_run_after_a_halt_neither_calls_nor_charges(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server, hints={"expected_runtime": "fast", "cost_estimate": 0.1})
    steps = [
        queue_step("q"),
        call_step("a", "complain"),
        call_step("b", depends_on=["a"]),
        {**REPORT, "depends_on": ["b"]},
    ]
    execution = begin(kee, steps)
    advance(execution)
    leave_a_run_behind(kee)
    before = report(kee, execution)

    execute_queue(kee.tenant_id, "execute")
    advance(execution)

    done = report(kee, execution)
    assert (done.status, [step.status for step in done.steps]) == (
        "failed",
        ["canceled", "failed", "skipped", "skipped"],
    )
    assert (money(done.total_cost), server.calls) == (money(before.total_cost), {"complain": 1})


def test_run_that_reached_nobody_is_not_charged(kee: Caller, server: WorkerServer) -> None:
    paid = {"expected_runtime": "fast", "cost_estimate": 0.1}
    make_worker(kee, server, hints=paid, endpoint="http://127.0.0.1:9/mcp")
    execution = begin(kee, [queue_step("a"), REPORT], budget=Budget(max_total_cost=Decimal("0.15")))
    advance(execution)
    execute_queue(kee.tenant_id, "execute")
    make_worker(kee, server, hints=paid)
    _come_due(kee)

    execute_queue(kee.tenant_id, "execute")
    advance(execution)

    done = report(kee, execution)
    assert (done.status, money(done.total_cost), server.calls["echo"]) == ("complete", Decimal("0.1"), 1)


def test_unreached_writing_tool_is_called_by_the_next_run(kee: Caller, server: WorkerServer) -> None:
    away = WorkerServer()
    away.endpoint = "http://127.0.0.1:9/mcp"
    make_writing_worker(kee, away)
    task = queue_call(kee, "echo", {"text": "x"}, worker_id="writer")
    execute_queue(kee.tenant_id, "execute")
    with kee.acting():
        Worker.objects.update(endpoint=server.endpoint)
    _come_due(kee)

    execute_queue(kee.tenant_id, "execute")

    assert seen(kee, task).status == "succeeded"
    assert server.calls == {"echo": 1}


def leave_a_run_behind(caller: Caller) -> None:
    """What a process leaves that dies while the tool runs: a lease that runs out, a checkpoint that says so."""
    with caller.acting():
        (grant,) = tasks.lease(worker=caller, queues=["execute"])
        beat = Beat(task_id=grant.task_id, lease_token=grant.lease_token, checkpoint={"called": True})
        tasks.heartbeat(worker=caller, beats=[beat])
        LiveTask.objects.update(lease_expires_at=database_now() - timedelta(seconds=1))


def _execute(caller: Caller) -> None:
    execute_queue(caller.tenant_id, "execute")
    connection.close()


def test_task_waits_for_an_unavailable_worker(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    task = queue_call(kee, "echo", {"text": "hello"})
    _say(kee, "offline")

    execute_queue(kee.tenant_id, "execute")
    waiting = seen(kee, task)
    _come_due(kee)
    _say(kee, "healthy")
    execute_queue(kee.tenant_id, "execute")

    assert (waiting.complete, waiting.failures) == (False, 0)
    assert seen(kee, task).status == "succeeded"
    assert server.calls == {"echo": 1}


def test_task_fails_if_its_worker_stays_away(kee: Caller, server: WorkerServer, monkeypatch: Any) -> None:
    monkeypatch.setattr(calls, "WORKER_AWAY", timedelta(0))
    make_worker(kee, server)
    task = queue_call(kee, "echo", {"text": "hello"})
    _say(kee, "offline")

    for _ in range(3):
        execute_queue(kee.tenant_id, "execute")
        _come_due(kee)

    assert seen(kee, task).status == "failed"
    with kee.acting():
        error = FinishedTask.objects.get().error or {}
    assert error["code"] == "worker_unavailable"


def _say(caller: Caller, status: str) -> None:
    with caller.acting():
        health.heartbeat(caller=caller, worker_id="texter", status=status, current_load=0, available=True)


def _come_due(caller: Caller) -> None:
    with caller.acting():
        LiveTask.objects.update(ready_at=database_now(), due_at=None)
