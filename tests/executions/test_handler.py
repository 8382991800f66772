"""The task that calls a worker: what it tells, when it stops, and when it must not run again."""

import json
import threading
from datetime import timedelta
from decimal import Decimal

import pytest

from apps.core.sql import database_now
from apps.executions import calls, handlers
from apps.plans.shapes import Budget
from apps.principals.tenancy import Caller
from apps.tasks import selectors as task_selectors
from apps.tasks.jobs import work as execute_queue
from apps.tasks.models import LiveTask
from apps.tasks.services import queueing, running
from apps.tasks.shapes import HeldLease, QueuedTask, QueueTask, TaskStatus
from apps.workers.models import Call, Worker
from tests.executions.making import (
    REPORT,
    advance,
    come_due,
    make_worker,
    make_writing_worker,
    money,
    queue_step,
    report,
    report_health,
    run,
)
from tests.executions.workers import WorkerServer
from tests.waiters import Other

pytestmark = pytest.mark.django_db(transaction=True)


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
        return queueing.queue(
            requester=caller, request=QueueTask(task_type=task_type or "mcp_worker_call", params=whole)
        )


def seen(caller: Caller, task: QueuedTask) -> TaskStatus:
    with caller.acting():
        return task_selectors.status(task.task_id)


def leave_a_run_behind(caller: Caller) -> None:
    """What a process leaves that dies while the tool runs: an expired lease, and a checkpoint that says so."""
    with caller.acting():
        (grant,) = running.lease(worker=caller, queues=["execute"])
        beat = HeldLease(task_id=grant.task_id, lease_token=grant.lease_token, checkpoint={"called": True})
        running.heartbeat(worker=caller, heartbeats=[beat])
        LiveTask.objects.update(lease_expires_at=database_now() - timedelta(seconds=1))


def test_task_ends_with_a_pointer_to_the_answer(kee: Caller, texter: WorkerServer) -> None:
    task = queue_call(kee, "echo", {"text": "hello"})

    execute_queue(kee.tenant_id, "execute")

    done = seen(kee, task)
    assert done.status == "succeeded"
    assert done.result_pointer is not None
    with kee.acting():
        opened = task_selectors.open_pointer(done.result_pointer, tenant_id=kee.tenant_id)
        assert Call.objects.get().ok
    assert json.loads(opened)["length"] == 5


def test_task_type_may_name_the_worker(kee: Caller, texter: WorkerServer) -> None:
    make_worker(
        kee,
        texter,
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


def test_canceled_task_gives_up_its_call(kee: Caller, texter: WorkerServer) -> None:
    task = queue_call(kee, "hold", {"text": "x"})
    executor = Other(lambda: execute_queue(kee.tenant_id, "execute"))
    assert texter.entered.wait(20)

    with kee.acting():
        running.cancel(caller=kee, task_id=int(task.task_id.removeprefix("task_")))

    assert executor.ends() is None
    assert seen(kee, task).status == "canceled"
    with kee.acting():
        assert not Call.objects.exists()


@pytest.mark.parametrize(("worker_id", "calls"), [("texter", 1), ("writer", 0)])
def test_only_repeatable_tool_is_called_after_a_lost_run(
    kee: Caller, texter: WorkerServer, worker_id: str, calls: int
) -> None:
    make_writing_worker(kee, texter)
    task = queue_call(kee, "echo", {"text": "x"}, worker_id=worker_id)
    leave_a_run_behind(kee)

    execute_queue(kee.tenant_id, "execute")

    done = seen(kee, task)
    assert texter.calls["echo"] == calls
    assert done.run_id == 2
    assert done.status == ("succeeded" if calls else "failed")
    assert calls or (done.error or {})["code"] == "outcome_unknown"


def test_run_without_its_lease_does_not_call(
    kee: Caller, texter: WorkerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_writing_worker(kee, texter)
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
    executor = Other(lambda: execute_queue(kee.tenant_id, "execute"))
    try:
        assert here.wait(30)
        with kee.acting():
            LiveTask.objects.update(lease_expires_at=database_now() - timedelta(seconds=1))
        execute_queue(kee.tenant_id, "execute")
        assert (seen(kee, task).status, seen(kee, task).run_id) == ("succeeded", 2)
    finally:
        on.set()
        assert executor.ends() is None

    assert texter.calls == {"echo": 1}


def test_run_that_reached_nobody_is_not_charged(
    kee: Caller, server: WorkerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The next attempt is not due before it is made so.
    monkeypatch.setattr("apps.tasks.services.running.random.uniform", lambda *_: 60.0)
    paid = {"expected_runtime": "fast", "cost_estimate": 0.1}
    make_writing_worker(kee, server, hints=paid, endpoint="http://127.0.0.1:9/mcp")
    budget = Budget(max_total_cost=0.15)
    execution = run(kee, [{**queue_step("a"), "worker_id": "writer"}, REPORT], budget=budget)
    execute_queue(kee.tenant_id, "execute")
    with kee.acting():
        Worker.objects.update(endpoint=server.endpoint)
    come_due(kee)

    execute_queue(kee.tenant_id, "execute")
    advance(execution)

    done = report(kee, execution)
    assert (done.status, money(done.total_cost), server.calls) == ("complete", Decimal("0.1"), {"echo": 1})


@pytest.mark.parametrize("comes_back", [True, False])
def test_task_waits_for_an_unavailable_worker(
    kee: Caller, server: WorkerServer, monkeypatch: pytest.MonkeyPatch, *, comes_back: bool
) -> None:
    if not comes_back:
        monkeypatch.setattr(calls, "AWAY_LOOKS", 0)
    make_worker(kee, server)
    task = queue_call(kee, "echo", {"text": "hello"})
    report_health(kee, "offline")

    execute_queue(kee.tenant_id, "execute")
    waiting = seen(kee, task)
    come_due(kee)
    if comes_back:
        report_health(kee, "healthy")
    for _ in range(2):
        execute_queue(kee.tenant_id, "execute")
        come_due(kee)

    done = seen(kee, task)
    if comes_back:
        assert (waiting.complete, waiting.failures, done.status) == (False, 0, "succeeded")
    else:
        assert (done.status, (done.error or {})["code"]) == ("failed", "worker_unavailable")
    assert server.calls["echo"] == comes_back
