"""Two processes at one execution, and processes that vanish: real commits, real connections."""

import threading
from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from celery import current_app

from apps.core.errors import only
from apps.core.sql import database_now, execute
from apps.executions import jobs, services, tools
from apps.executions.models import Execution, ExecutionStep
from apps.executions.states import Strategy
from apps.plans.shapes import Budget
from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller
from apps.receipts.models import Receipt
from apps.tasks.jobs import work as execute_queue
from apps.tasks.lease_tokens import task_of
from apps.tasks.models import LiveTask
from apps.tasks.services import running
from apps.tasks.shapes import Completion, LeasedTask
from tests.executions.making import (
    REPORT,
    advance,
    begin,
    call_step,
    cancel,
    example_steps,
    make_plan,
    make_worker,
    make_writing_worker,
    queue_step,
    release_task,
    report,
    run,
    statuses,
)
from tests.executions.workers import WorkerServer
from tests.factories import make_caller
from tests.waiters import Other, together, until, until_somebody_waits_for_this_transaction

pytestmark = [pytest.mark.ci, pytest.mark.django_db(transaction=True)]


def test_one_of_several_processes_calls_the_worker(kee: Caller, texter: WorkerServer) -> None:
    execution = begin(kee, [call_step("a"), call_step("b", "shout"), REPORT])

    together(*[lambda: advance(execution)] * 4)
    advance(execution)

    assert texter.calls == {"echo": 1, "shout": 1}
    assert report(kee, execution).status == "complete"
    with kee.acting():
        assert Receipt.objects.filter(event_type="plan_complete").count() == 1


def test_processes_queue_one_task(kee: Caller, texter: WorkerServer) -> None:
    execution = begin(kee, [queue_step("a"), REPORT])

    together(*[lambda: advance(execution)] * 4)

    with kee.acting():
        assert LiveTask.objects.count() == 1


@pytest.mark.parametrize("costs", [[30, 10, 20, 10, 20, 10], [10, 10, 10, 10, 10, 10], [60, 10, 5, 50, 5, 10]])
def test_concurrent_processes_stay_within_the_budget(kee: Caller, texter: WorkerServer, costs: list[int]) -> None:
    steps = [
        (queue_step if number % 2 else call_step)(f"s{number}", estimated_cost=cost / 100)
        for number, cost in enumerate(costs)
    ]
    budget = Budget(max_total_cost=0.50, max_cost_per_step=0.55)
    execution = begin(kee, [*steps, REPORT], budget=budget)

    together(*[lambda: advance(execution)] * 4)
    execute_queue(kee.tenant_id, "execute")
    execute_queue(kee.tenant_id, "execute")
    execute_queue(kee.tenant_id, "execute")
    together(*[lambda: advance(execution)] * 4)

    done = report(kee, execution)
    begun = [Decimal(str(step.cost)) for step in done.steps if step.started_at is not None]
    assert done.status == "budget_exceeded"
    assert Decimal(str(done.total_cost)) == sum(begun) <= Decimal("0.50")
    assert sum(texter.calls.values()) == len(begun)


def test_concurrent_starts_make_one_execution(kee: Caller, texter: WorkerServer) -> None:
    with kee.acting():
        plan_id = make_plan(kee, [call_step("a"), REPORT])

    together(*[lambda: begin(kee, [], plan_id=plan_id)] * 3)

    with kee.acting():
        assert Execution.objects.count() == 1
        assert [step.step_id for step in Execution.objects.get().steps.order_by("position")] == ["a", "report"]


def test_running_call_is_not_taken_over(kee: Caller, texter: WorkerServer) -> None:
    execution = begin(kee, [call_step("a", "hold"), REPORT])
    caller = Other(lambda: advance(execution))
    assert texter.entered.wait(20)

    advance(execution)

    assert statuses(kee, execution)["a"] == "calling"
    texter.gate.set()
    assert caller.ends() is None
    assert texter.calls == {"hold": 1}
    assert report(kee, execution).status == "complete"


def test_claim_is_renewed_during_the_call(kee: Caller, server: WorkerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "_RENEW_SECONDS", 0.05)
    make_worker(kee, server)
    execution = begin(kee, [call_step("a", "hold"), REPORT])
    caller = Other(lambda: advance(execution))
    assert server.entered.wait(20)

    def expiry() -> datetime | None:
        with kee.acting():
            return ExecutionStep.objects.get(execution=execution, step_id="a").call_expires_at

    first = expiry()
    until(lambda: expiry() != first, "nobody renews the claim", seconds=20)
    server.gate.set()
    assert caller.ends() is None

    assert server.calls == {"hold": 1}
    assert report(kee, execution).status == "complete"


def test_independent_steps_are_called_at_once(kee: Caller, texter: WorkerServer) -> None:
    execution = begin(kee, [call_step("a", "hold"), call_step("b", "hold"), REPORT])
    caller = Other(lambda: advance(execution))

    # Neither answers before both have been called.
    texter.wait_for_calls("hold", 2)
    texter.gate.set()
    assert caller.ends() is None

    assert texter.calls == {"hold": 2}
    assert report(kee, execution).status == "complete"


def test_execute_waits_for_a_call_of_another_process(
    kee: Caller, server: WorkerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "_PATIENCE", timedelta(seconds=60))
    make_worker(kee, server)
    execution = begin(kee, [call_step("a", "hold"), REPORT])
    caller = Other(lambda: advance(execution))
    assert server.entered.wait(20)
    threading.Timer(0.3, server.gate.set).start()

    answer = tools.execute_delegation_plan(kee, tools.ExecutePlan(plan_id=execution.plan_id))

    assert caller.ends() is None
    assert server.calls == {"hold": 1}
    assert [result["text"] for result in answer.direct_results] == ["hello"]


def test_waiting_call_of_a_canceled_execution_is_not_made(kee: Caller, texter: WorkerServer) -> None:
    make_writing_worker(kee, texter)
    held = [call_step(f"held-{number}", "hold") for number in range(8)]
    waiting = [call_step(f"waiting-{number}", worker_id="writer") for number in range(4)]
    execution = begin(kee, [*held, *waiting, REPORT])
    caller = Other(lambda: advance(execution))
    texter.wait_for_calls("hold", 8)

    cancel(kee, execution)
    texter.gate.set()

    assert caller.ends() is None
    assert texter.calls == {"hold": 8}
    assert report(kee, execution).status == "canceled"


def taken_over(kee: Caller, execution: Execution) -> None:
    with kee.acting():
        ExecutionStep.objects.filter(status="calling").update(call_expires_at=database_now())
    advance(execution)


@pytest.mark.parametrize(
    ("worker_id", "meanwhile", "made"),
    [("writer", cancel, 0), ("texter", taken_over, 1)],
    ids=["canceled", "taken over"],
)
def test_stopped_process_does_not_call_after_losing_its_claim(
    kee: Caller,
    texter: WorkerServer,
    monkeypatch: pytest.MonkeyPatch,
    *,
    worker_id: str,
    meanwhile: Callable[[Caller, Execution], None],
    made: int,
) -> None:
    make_writing_worker(kee, texter)
    here, on = threading.Event(), threading.Event()
    resolved = services._resolved

    def stand_still_once(claim: services.Claim) -> Any:
        if not here.is_set():
            here.set()
            assert on.wait(30)
        return resolved(claim)

    # As under SIGSTOP, or while the storage of what earlier steps have found is slow.
    monkeypatch.setattr(services, "_resolved", stand_still_once)
    execution = begin(kee, [call_step("a", "echo", worker_id=worker_id, text="x"), REPORT])
    caller = Other(lambda: advance(execution))
    try:
        assert here.wait(30)
        meanwhile(kee, execution)
        ended = report(kee, execution)
    finally:
        on.set()
        assert caller.ends() is None

    assert ended.status == ("complete" if made else "canceled")
    assert texter.calls["echo"] == made
    assert report(kee, execution) == ended


def test_locked_execution_does_not_hold_up_the_tick(kee: Caller) -> None:
    held, other = (begin(kee, [{**REPORT, "step_id": "only"}]) for _ in range(2))
    locked, looked = threading.Event(), threading.Event()

    def hold() -> None:
        with kee.acting():
            Execution.objects.select_for_update().get(pk=held.pk)
            locked.set()
            looked.wait(15)

    def look() -> None:
        assert locked.wait(10)
        execute("set lock_timeout = 0")
        jobs.advance_due()
        looked.set()

    together(hold, look)

    assert report(kee, other).status == "complete"
    assert report(kee, held).status == "queued"


def test_message_is_published_after_commit(kee: Caller, texter: WorkerServer) -> None:
    execution = begin(kee, [call_step("a"), REPORT])
    advance(execution, patience=timedelta(0))

    with current_app.connection_for_read() as broker, closing(broker.SimpleQueue("execute")) as queue:
        while True:
            message = queue.get(timeout=20)
            message.ack()
            if message.headers["task"] == "executions.advance" and message.payload[0][1] == execution.pk:
                break
    assert message.payload[0] == [kee.tenant_id, execution.pk]


def looked_at(kee: Caller, execution: Execution) -> None:
    with kee.acting():
        services.look(execution.pk, may_call=True)


def complete(worker: Caller, grant: LeasedTask) -> None:
    task_id = task_of(grant.task_id)
    delivery = running.prepare(tenant_id=worker.tenant_id, task_id=task_id, result={"text": "done"})
    with worker.acting():
        completion = Completion(task_id=task_id, lease_token=grant.lease_token, delivery=delivery)
        only(running.complete_many([(worker, completion)]).answers)


@pytest.mark.parametrize("taking_back", [cancel, looked_at])
def test_canceling_tasks_does_not_deadlock_with_their_ends(
    kee: Caller, tenant: Tenant, texter: WorkerServer, taking_back: Callable[[Caller, Execution], None]
) -> None:
    hands = make_caller(tenant, "hands", Kind.WORKER)
    impossible = {**call_step("z"), "worker_id": "nobody", "critical": True, "depends_on": ["a"]}
    execution = run(kee, [queue_step("a"), queue_step("b"), queue_step("c"), impossible], strategy=Strategy.ESCALATE)
    with hands.acting():
        first, second, last = running.lease(worker=hands, queues=("execute",), capacity=3)
    release_task(hands, second)
    complete(hands, first)
    started = threading.Barrier(2)

    def take_back() -> None:
        started.wait(10)
        taking_back(kee, execution)

    def complete_the_other() -> None:
        with hands.acting():
            LiveTask.objects.select_for_update().get(pk=task_of(last.task_id))
            started.wait(10)
            until_somebody_waits_for_this_transaction()
            complete(hands, last)

    together(take_back, complete_the_other)
    advance(execution)

    done = report(kee, execution)
    assert done.status in {"canceled", "failed"}
    assert [step.status for step in done.steps][1:3] == ["canceled", "complete"]


def test_task_reports_progress_and_the_tick_continues(kee: Caller, texter: WorkerServer) -> None:
    execution = run(kee, example_steps())

    assert execute_queue(kee.tenant_id, "execute")
    jobs.advance_due()
    assert statuses(kee, execution)["step-2"] == "complete"
    advance(execution)

    seen = report(kee, execution)
    assert {step.step_id: step.status for step in seen.steps} == {
        "step-1": "complete",
        "step-2": "complete",
        "step-3": "complete",
        "step-4": "awaiting",
        "step-5": "pending",
    }
    first = seen.steps[0].envelope
    assert first is not None
    assert first["payload"] == {"text": "hello", "length": 5, "items": [1, 2, 3]}
    assert first["result_pointer"].startswith("artifact:sha256-")
    assert first["provenance"]["run_id"] == "run_1"
    assert texter.calls == {"echo": 1, "shout": 1}


def test_look_takes_few_statements(kee: Caller, texter: WorkerServer, django_assert_max_num_queries: Any) -> None:
    execution = run(kee, [queue_step(f"step-{number}") for number in range(12)] + [REPORT])

    with django_assert_max_num_queries(14):
        services.advance(tenant_id=execution.tenant_id, execution_id=execution.pk)
    with django_assert_max_num_queries(5):
        report(kee, execution)
