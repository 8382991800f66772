"""Plans carried out: what begins when, what a principal is asked for, how it ends."""

from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import transaction

from apps.core.sql import database_now
from apps.executions import selectors
from apps.executions.models import Execution, ExecutionStep
from apps.executions.services import advancing, answering
from apps.executions.services.answering import Submitted
from apps.executions.services.starting import Budget
from apps.executions.services.steps import RECEIPTS_EVERY
from apps.executions.states import Mode, Strategy
from apps.plans.models import Outcome
from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as_system
from apps.receipts import selectors as receipts
from apps.receipts.models import Obligation, Receipt
from apps.tasks import services as tasks
from apps.tasks.models import LiveTask
from apps.workers.models import ToolVersion, WorkerRateLimited
from apps.workers.services import registry as workers
from tests.executions.making import (
    REPORT,
    advance,
    artifacts_away,
    begin,
    call_step,
    do_task,
    ended,
    example_steps,
    failure,
    later,
    make_worker,
    make_writing_worker,
    money,
    queue_step,
    refused,
    report,
    statuses,
)
from tests.executions.workers import WorkerServer
from tests.factories import T0, make_caller, make_tenant
from tests.memory.subjects import observations

HANDED = Submitted(result={"text": "both"}, result_pointer="artifact:sha256-" + "0" * 64, summary="Both say hello.")


def open_obligations(caller: Caller) -> int:
    with caller.acting():
        return Obligation.objects.filter(closed_at=None).count()


def submit(caller: Caller, execution: Execution, step_id: str = "step-4", submitted: Submitted = HANDED) -> Execution:
    with caller.acting():
        return answering.submit_step_result(
            caller=caller, execution_ref=execution.ref, step_id=step_id, submitted=submitted
        )


@pytest.fixture
def outside(tenant: Tenant) -> Caller:
    return make_caller(tenant, "hands", Kind.WORKER)


def test_direct_steps_pass_their_results_on(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    execution = begin(kee, [call_step("a"), call_step("b", "shout", "{{a.text}} {{a.length}}"), REPORT])

    advance(execution)

    done = report(kee, execution)
    assert done.status == "complete"
    assert [(step.envelope or {})["payload"] for step in done.steps[:2]] == [
        {"text": "hello", "length": 5, "items": [1, 2, 3]},
        {"text": "HELLO 5"},
    ]
    assert done.report == {"report_summary": "All done", "recommendation": "Read it", "decision_required": False}
    assert server.calls == {"echo": 1, "shout": 1}


def test_plan_goes_from_task_to_call_to_aggregate_to_report(kee: Caller, outside: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    execution = begin(kee, example_steps())

    advance(execution)
    assert statuses(kee, execution)["step-1"] == "queued"

    task_id = do_task(outside, {"text": "found", "summary": "One thing found"})
    advance(execution)
    handed_over = report(kee, execution)
    assert statuses(kee, execution)["step-4"] == "awaiting"
    assert server.calls == {"shout": 1}
    with kee.acting():
        asked = Receipt.objects.get(event_type="aggregate_requested")
    assert asked.receipt_id == next(step.receipt_id for step in handed_over.steps if step.step_id == "step-4")
    assert [result["step_id"] for result in asked.metadata["results"]] == ["step-1", "step-3"]
    assert asked.metadata["results"][0]["key_findings"]["text"] == "found"

    submit(kee, execution)

    done = report(kee, execution)
    assert (done.status, done.steps_complete) == ("complete", 5)
    assert done.summary == "Both say hello."
    assert done.async_task_ids == [f"task_{task_id}"]
    assert open_obligations(kee) == 0


def test_receipts_are_one_chain_that_closes_the_plan(kee: Caller, outside: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    execution = begin(kee, example_steps())
    advance(execution)
    do_task(outside, {"text": "found"})
    advance(execution)
    submit(kee, execution)

    with kee.acting():
        chain = receipts.chain(execution.plan_receipt_id)
        plan = Obligation.objects.select_related("closed_by").get(receipt__receipt_id=execution.plan_receipt_id)
        closing = plan.closed_by
    assert {link.event_type for link in chain} == {
        "task_received",
        "plan_created",
        "task_queued",
        "task_complete",
        "aggregate_requested",
        "aggregate_complete",
        "plan_complete",
    }
    assert closing is not None
    assert (closing.event_type, closing.surface) == ("plan_complete", "ledger")


def test_each_step_has_an_envelope(kee: Caller, outside: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    execution = begin(kee, [call_step("a"), queue_step("b"), call_step("c", "break_down", critical=False), REPORT])
    advance(execution)

    def envelopes() -> dict[str, dict[str, Any]]:
        return {step.step_id: step.envelope for step in report(kee, execution).steps if step.envelope}

    of_task = envelopes()["b"]
    task_id = do_task(outside, {"text": "found"})
    advance(execution)
    told = envelopes()

    members = {
        *("plan_id", "step_id", "worker_id", "tool_name", "status", "payload", "async_task_id", "result_pointer"),
        *("provenance", "error"),
    }
    assert all(set(envelope) >= members for envelope in (*told.values(), of_task))
    assert (of_task["status"], of_task["async_task_id"], of_task["payload"]) == (
        "async_queued",
        f"task_{task_id}",
        None,
    )
    assert (told["a"]["status"], told["a"]["payload"]["text"], told["a"]["async_task_id"]) == (
        "complete",
        "hello",
        None,
    )
    assert (told["b"]["status"], told["b"]["payload"], told["b"]["provenance"]["run_id"]) == (
        "complete",
        {"text": "found"},
        "run_1",
    )
    assert (told["c"]["status"], told["c"]["error"]["retryable"]) == ("failed", False)
    assert "out of paper" in told["c"]["error"]["message"]
    assert all(
        (envelope["plan_id"], envelope["step_id"], envelope["worker_id"]) == (execution.plan_id, step_id, "texter")
        for step_id, envelope in told.items()
        if step_id != "report"
    )
    assert all(envelope["provenance"]["completed_at"] for envelope in told.values())


def test_asked_delegate_owns_the_execution(tenant: Tenant, outside: Caller, server: WorkerServer) -> None:
    manager = make_caller(tenant, "general-manager", Kind.DELEGATE)
    make_worker(manager, server)
    execution = begin(manager, example_steps())
    advance(execution)
    do_task(outside, {"text": "found"})
    advance(execution)

    done = report(manager, execution)
    # It puts the results together by itself: nobody reads its inbox to do it.
    assert (done.status, statuses(manager, execution)["step-4"]) == ("complete", "complete")
    with manager.acting():
        kept = Execution.objects.select_related("owner", "requested_by").get()
        received = Receipt.objects.select_related("recipient").order_by("id")
        told = {(fact.event_type, fact.recipient.name, fact.surface) for fact in received}
    assert (kept.owner.name, kept.requested_by.name) == ("delegate", "general-manager")
    assert told == {
        ("task_received", "general-manager", "ledger"),
        ("plan_created", "general-manager", "ledger"),
        ("task_queued", "delegate", "ledger"),
        ("task_complete", "delegate", "inbox"),
        ("escalation", "general-manager", "inbox"),
        ("plan_complete", "general-manager", "ledger"),
    }
    assert open_obligations(manager) == 0


def test_tool_with_a_cause_parameter_gets_the_plan_receipt(kee: Caller, server: WorkerServer) -> None:
    asking = {"type": "object", "properties": {"text": {}, "caused_by_receipt_id": {}}}
    make_worker(
        kee, server, tools=[{"name": name, "description": name, "input_schema": asking} for name in ("echo", "tell")]
    )
    named = {"text": "hello", "caused_by_receipt_id": "another"}
    execution = begin(kee, [call_step("a", "tell"), call_step("b", "tell", params=named), REPORT])
    advance(execution)

    told = [(step.envelope or {})["payload"] for step in report(kee, execution).steps[:2]]
    assert told == [{"text": "hello", "caused_by_receipt_id": execution.plan_receipt_id}, named]


def test_execution_leaves_one_trace_in_memory(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    execution = begin(kee, [call_step("a"), REPORT])
    advance(execution)
    advance(execution)

    with kee.acting():
        trace = observations().get(domain="delegation_trace")
    assert trace.confidence == 1.0
    assert trace.evidence == [f"plan:{execution.plan_id}", f"exec:{execution.ref}"]
    assert set(trace.metadata) == {
        "plan_id",
        "intent",
        "workers_used",
        "steps_count",
        "total_duration_seconds",
        "success_rate",
        "result_pointers",
    }


def test_planner_learns_tools_and_links(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    with kee.acting():
        uids = dict(ToolVersion.objects.values_list("name", "uid"))
    echo, shout = uids["echo"], uids["shout"]
    steps = [
        call_step("a", tool_uid=echo),
        call_step("b", "shout", "{{a.text}}", tool_uid=shout, depends_on=["a"]),
        call_step("c", "break_down", tool_uid=uids["break_down"], critical=False),
        call_step("d"),
        REPORT,
    ]
    execution = begin(kee, steps, strategy=Strategy.PARTIAL)
    for _ in range(4):
        advance(execution)

    assert report(kee, execution).status == "partial"
    with kee.acting():
        (outcome,) = Outcome.objects.all()
        assert outcome.plan is not None
        assert (outcome.plan.plan_id, outcome.request) == (execution.plan_id, execution.intent)
    # A step that names no version of its tool teaches nothing, nor does one that failed.
    assert (sorted(outcome.tools), outcome.links) == (sorted([echo, shout]), [[echo, shout]])
    assert 0 < outcome.weight < 1


def test_planner_learns_nothing_without_a_completed_tool(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    with kee.acting():
        uid = ToolVersion.objects.get(name="break_down").uid
    execution = begin(kee, [call_step("a", "break_down", tool_uid=uid, critical=True), REPORT])
    for _ in range(3):
        advance(execution)

    assert report(kee, execution).status == "failed"
    with kee.acting():
        assert not Outcome.objects.exists()


def test_plan_is_executed_once(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    first = begin(kee, [call_step("a"), REPORT])
    advance(first)

    again = begin(kee, [], plan_id=first.plan_id)
    advance(again)
    assert again.pk == first.pk

    with refused("already_executed") as refusal:
        begin(kee, [], plan_id=first.plan_id, mode=Mode.ASYNC_ONLY)
    assert refusal.value.extra == {"execution_id": first.ref}
    assert server.calls == {"echo": 1}


@pytest.mark.parametrize(
    "other",
    [Budget(), Budget(max_total_cost=Decimal(2)), Budget(max_total_cost=Decimal(1), max_cost_per_step=Decimal(1))],
)
def test_second_start_with_another_budget_is_refused(kee: Caller, other: Budget) -> None:
    budget = Budget(max_total_cost=Decimal(1))
    first = begin(kee, [REPORT], budget=budget)

    with refused("already_executed"):
        begin(kee, [], plan_id=first.plan_id, budget=other)

    assert begin(kee, [], plan_id=first.plan_id, budget=budget).pk == first.pk


def test_execution_is_hidden_from_other_principals(kee: Caller, tenant: Tenant) -> None:
    stranger = make_caller(tenant, "Mallory")
    execution = begin(kee, [REPORT])

    with refused("unknown_execution"):
        report(stranger, execution)
    with refused("unknown_execution"):
        submit(stranger, execution)
    with stranger.acting(), refused("unknown_execution"):
        answering.cancel(caller=stranger, execution_ref=execution.ref, reason=None)

    assert report(kee, execution).status == "queued"


def test_async_only_queues_every_call(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    execution = begin(kee, [call_step("a"), REPORT], mode=Mode.ASYNC_ONLY)

    advance(execution)

    assert statuses(kee, execution)["a"] == "queued"
    assert not server.calls


def test_auto_queues_long_tools(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server, hints={"expected_runtime": "long"})
    patient = begin(kee, [call_step("a"), REPORT])
    direct = begin(kee, [call_step("a"), REPORT], mode=Mode.DIRECT_ONLY)

    advance(patient)
    advance(direct)

    assert statuses(kee, patient)["a"] == "queued"
    assert statuses(kee, direct)["a"] == "complete"


def test_calls_without_patience_are_left_to_a_worker_process(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    execution = begin(kee, [call_step("a"), REPORT])

    advance(execution, patience=timedelta(0))

    assert statuses(kee, execution)["a"] == "pending"
    assert not server.calls
    with kee.acting():
        assert Execution.objects.get().wake_at is not None


@pytest.mark.parametrize("calls_in_the_hour_before", [0, 2])
@pytest.mark.parametrize("other", [{"estimated_cost": 9}, {"worker_id": "nobody", "critical": True}])
def test_claim_of_a_halted_look_is_neither_called_nor_charged(
    kee: Caller, server: WorkerServer, other: dict[str, Any], calls_in_the_hour_before: int
) -> None:
    make_worker(kee, server, constraints={"rate_limit_per_hour": 1, "timeout_seconds": 20})
    with kee.acting(), suppress(WorkerRateLimited):
        for _ in range(calls_in_the_hour_before):
            workers.take_call(worker_id="texter")
    steps = [call_step("a", estimated_cost=0.1), {**call_step("b", "shout"), **other}, REPORT]
    execution = begin(kee, steps, strategy=Strategy.ESCALATE, budget=Budget(max_total_cost=Decimal(1)))

    advance(execution)

    done = report(kee, execution)
    assert (statuses(kee, execution)["a"], money(done.total_cost), server.calls["echo"]) == ("canceled", Decimal(0), 0)
    assert done.status in {"budget_exceeded", "failed"}


@pytest.mark.parametrize("budget", [Budget(max_total_cost=Decimal("0.25")), Budget(max_cost_per_step=Decimal("0.05"))])
def test_step_over_the_budget_does_not_begin(kee: Caller, server: WorkerServer, budget: Budget) -> None:
    make_worker(kee, server)
    steps = [call_step(name, estimated_cost=0.1) for name in ("a", "b", "c")]
    execution = begin(kee, [*steps, REPORT], budget=budget)

    advance(execution)

    done = report(kee, execution)
    assert done.status == "budget_exceeded"
    assert money(done.total_cost) <= (budget.max_total_cost or 0)
    assert sum(server.calls.values()) == (2 if budget.max_total_cost else 0)
    assert "over the budget" in done.summary or "limit per step" in done.summary
    assert open_obligations(kee) == 0


def test_failed_critical_step_ends_the_plan(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    execution = begin(kee, [call_step("a", "break_down"), call_step("b", "echo", "{{a.text}}"), REPORT])

    advance(execution)

    done = report(kee, execution)
    assert done.status == "failed"
    assert statuses(kee, execution) == {"a": "failed", "b": "skipped", "report": "skipped"}
    assert failure(done)["code"] == "worker_refused"
    with kee.acting():
        assert Receipt.objects.filter(event_type="plan_failed").count() == 1
    assert open_obligations(kee) == 0


def test_result_is_read_when_the_storage_is_back(kee: Caller, outside: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    execution = begin(kee, [queue_step("a"), {**REPORT, "depends_on": ["a"]}])
    advance(execution)
    do_task(outside, {"text": "x" * 65_600})

    with artifacts_away():
        advance(execution)
        assert statuses(kee, execution) == {"a": "queued", "report": "pending"}
    with kee.acting():
        assert selectors.due(limit=10) == [(kee.tenant_id, execution.pk)]
    advance(execution)

    envelope = report(kee, execution).steps[0].envelope
    assert envelope is not None
    assert envelope["key_findings"]["text"] == "x" * 500
    assert report(kee, execution).status == "complete"


@pytest.mark.parametrize("crowd", ["by the clock", "by tasks"])
def test_tenants_share_the_due_executions_fairly(kee: Caller, server: WorkerServer, crowd: str) -> None:
    other = make_caller(make_tenant("other"), "Kay", Kind.AI)
    callers = [kee, kee, kee, other]
    for caller, way in zip(callers, [crowd] * 3 + ["by tasks"], strict=True):
        make_worker(caller, server)
        execution = begin(caller, [queue_step("a"), REPORT])
        if way == "by tasks":
            advance(execution)
            do_task(caller, {"text": "x"})
        with caller.acting():
            Execution.objects.filter(pk=execution.pk).update(wake_at=T0 if way == "by the clock" else None)

    with acting_as_system("a test"):
        due = [selectors.due(limit=limit) for limit in (2, 10)]

    assert [{tenant_id for tenant_id, _ in found} for found in due] == [{kee.tenant_id, other.tenant_id}] * 2
    assert [len(set(found)) for found in due] == [2, 4]


@pytest.mark.parametrize("pointer", ["s3://bucket/key", "artifact"])
def test_unreadable_result_stays_behind_its_pointer(
    kee: Caller, outside: Caller, server: WorkerServer, pointer: str
) -> None:
    make_worker(kee, server)
    execution = begin(kee, [queue_step("a"), {**REPORT, "depends_on": ["a"]}])
    advance(execution)
    if pointer == "artifact":
        pointer = tasks.store_artifact(
            tenant_id=kee.tenant_id, content=rb'{"text": "\u0000"}', media_type="application/json"
        )
    do_task(outside, pointer=pointer)

    advance(execution)

    envelope = report(kee, execution).steps[0].envelope
    assert envelope is not None
    assert (envelope["payload"], envelope["result_pointer"]) == (None, pointer)
    assert report(kee, execution).status == "complete"


def test_step_waits_for_the_storage_of_its_input(kee: Caller, outside: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    make_writing_worker(kee, server)
    summing = {**call_step("b", "sum_up", params={"size": "{{a.size}}"}, depends_on=["a"]), "worker_id": "writer"}
    execution = begin(kee, [queue_step("a"), summing, REPORT])
    advance(execution)
    do_task(outside, {"text": "x" * 65_600, "size": 3})
    advance(execution, patience=timedelta(0))

    with artifacts_away():
        advance(execution)

    assert statuses(kee, execution)["b"] == "pending"
    with kee.acting():
        ExecutionStep.objects.update(retry_at=None)
    advance(execution)
    assert server.calls == {"sum_up": 1}
    assert report(kee, execution).status == "complete"


def test_wait_step_is_looked_at_by_the_clock(kee: Caller) -> None:
    execution = begin(kee, [{"step_id": "a", "step_type": "wait_for", "wait_for_receipts": ["rcpt_to_come"]}, REPORT])
    with kee.acting():
        before = database_now()
    advance(execution)

    with kee.acting():
        after = database_now()
        execution.refresh_from_db()
    assert statuses(kee, execution)["a"] == "awaiting"
    assert execution.wake_at is not None
    assert before + RECEIPTS_EVERY <= execution.wake_at <= after + RECEIPTS_EVERY


def test_cancel_replaces_another_halt(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    execution = begin(
        kee, [queue_step("a"), call_step("b", estimated_cost=9), REPORT], budget=Budget(max_total_cost=Decimal(1))
    )
    advance(execution)
    with kee.acting():
        task_id = LiveTask.objects.get().task_id
        execution.refresh_from_db()
        assert (execution.status, execution.halted_as) == ("executing", "budget_exceeded")
        answering.cancel(caller=kee, execution_ref=execution.ref, reason="Not needed")

    assert (report(kee, execution).status, ended(kee, task_id)) == ("canceled", "canceled")


@pytest.mark.parametrize(
    ("others", "verdict"),
    [
        ([call_step("a", "break_down", critical=True)], "failed"),
        ([call_step("a"), call_step("c", depends_on=["a"], estimated_cost=9)], "budget_exceeded"),
    ],
    ids=["failed", "budget_exceeded"],
)
def test_task_canceled_by_its_execution_keeps_the_verdict(
    kee: Caller, outside: Caller, server: WorkerServer, others: list[dict[str, Any]], verdict: str
) -> None:
    make_worker(kee, server)
    steps = [queue_step("b", estimated_cost=0.1), *others, REPORT]
    execution = begin(kee, steps, strategy=Strategy.ESCALATE, budget=Budget(max_total_cost=Decimal(1)))
    with kee.acting():
        claims = advancing.look(execution.pk, may_call=True)
    advancing._carry_out([claim for claim in claims if claim.as_task])
    with outside.acting():
        (grant,) = tasks.lease(worker=outside, queues=("execute",), capacity=1)
    advancing._carry_out([claim for claim in claims if not claim.as_task])
    advance(execution)
    before = statuses(kee, execution)["b"]

    with outside.acting():
        tasks.release(worker=outside, task_id=grant.task_id, lease_token=grant.lease_token)
    advance(execution)

    assert (before, statuses(kee, execution)["b"]) == ("queued", "canceled")
    assert report(kee, execution).status == verdict


def test_canceled_task_cancels_its_execution(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    execution = begin(kee, [queue_step("a"), {**REPORT, "depends_on": []}, call_step("c", depends_on=["a"])])
    advance(execution)
    with kee.acting():
        tasks.cancel_many(caller=kee, task_ids=[LiveTask.objects.get().task_id])

    advance(execution)

    done = report(kee, execution)
    assert (done.status, statuses(kee, execution)["a"], statuses(kee, execution)["c"]) == (
        "canceled",
        "canceled",
        "skipped",
    )
    assert "The task of a was canceled." in done.summary


def test_escalate_strategy_alarms_the_owner(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    execution = begin(
        kee,
        [call_step("a", "break_down", critical=True), queue_step("b"), REPORT],
        strategy=Strategy.ESCALATE,
    )

    advance(execution)

    with kee.acting():
        alarm = Receipt.objects.get(event_type="escalation")
        assert not LiveTask.objects.exists()
    assert "out of paper" in alarm.summary
    assert report(kee, execution).status == "failed"


@pytest.mark.parametrize(
    ("step", "code"),
    [
        (call_step("a", "echo", "{{report.absent}}"), "unresolved_reference"),
        ({**call_step("a"), "params": {"text": 5}}, "invalid_params"),
        ({**call_step("a"), "worker_id": "nobody"}, "unknown_worker"),
        ({**call_step("a"), "tool_name": "nothing"}, "unknown_tool"),
    ],
)
def test_uncallable_step_fails_with_a_code(
    kee: Caller, server: WorkerServer, step: dict[str, object], code: str
) -> None:
    make_worker(kee, server)
    first = {**REPORT, "step_id": "report"}
    execution = begin(kee, [first, step])

    advance(execution)

    assert failure(report(kee, execution))["code"] == code
    assert not server.calls


def test_same_result_twice_changes_nothing(kee: Caller, outside: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    execution = begin(kee, example_steps())
    with refused("step_not_open"):
        submit(kee, execution)
    with refused("unknown_step"):
        submit(kee, execution, "step-9")
    advance(execution)
    do_task(outside, {"text": "found"})
    advance(execution)

    submit(kee, execution)
    before = report(kee, execution)
    submit(kee, execution)
    with refused("other_result"):
        submit(kee, execution, submitted=Submitted(result={}, result_pointer="s3://b/x", summary="Other"))

    assert report(kee, execution) == before


def test_decision_ends_the_wait(kee: Caller) -> None:
    execution = begin(kee, [{**REPORT, "decision_required": True}])
    advance(execution)
    asked = report(kee, execution)
    assert asked.status == "needs_escalation"
    assert any("decide_step" in action for action in asked.next_actions)

    with kee.acting():
        answering.decide_step(
            caller=kee, execution_ref=execution.ref, step_id="report", decision="accept", note="Go on"
        )

    assert report(kee, execution).status == "complete"
    assert open_obligations(kee) == 0


def test_refused_decision_names_the_right_call(kee: Caller, outside: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    execution = begin(kee, example_steps())
    advance(execution)
    do_task(outside, {"text": "found"})
    advance(execution)

    with kee.acting(), refused("step_not_open") as refusal:
        answering.decide_step(caller=kee, execution_ref=execution.ref, step_id="step-4", decision="accept", note=None)

    assert str(refusal.value) == (f"step-4 of {execution.ref} is aggregate, awaiting: end it with submit_step_result.")


def test_failed_plan_suggests_a_replan(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    execution = begin(kee, [call_step("a", "complain"), {**REPORT, "depends_on": ["a"]}])
    advance(execution)

    told = report(kee, execution)

    assert told.next_actions == [
        f"Plan again, without what failed or with another budget: replan_plan({execution.plan_id}, a)."
    ]


def test_rejection_fails_the_plan(kee: Caller) -> None:
    execution = begin(kee, [{**REPORT, "decision_required": True}])
    advance(execution)

    with kee.acting():
        answering.decide_step(caller=kee, execution_ref=execution.ref, step_id="report", decision="reject", note="No")
        with refused("other_result"):
            answering.decide_step(
                caller=kee, execution_ref=execution.ref, step_id="report", decision="accept", note=None
            )

    assert report(kee, execution).status == "failed"
    assert open_obligations(kee) == 0


@pytest.mark.parametrize("by_owner", [True, False], ids=["execution", "task"])
def test_task_canceled_before_its_first_run_is_refunded(kee: Caller, server: WorkerServer, by_owner: bool) -> None:
    make_worker(kee, server)
    execution = begin(kee, [queue_step("a", estimated_cost=0.5), REPORT], budget=Budget(max_total_cost=Decimal(1)))
    advance(execution)
    with kee.acting():
        before = Execution.objects.get().total_cost
        if by_owner:
            answering.cancel(caller=kee, execution_ref=execution.ref, reason=None)
        else:
            tasks.cancel_many(caller=kee, task_ids=[LiveTask.objects.get().task_id])
    advance(execution)

    done = report(kee, execution)
    assert (before, str(done.status), money(done.total_cost)) == (Decimal("0.5"), "canceled", Decimal(0))
    assert sum(server.calls.values()) == 0


def test_task_canceled_after_its_lease_keeps_its_charge(kee: Caller, outside: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    execution = begin(kee, [queue_step("a", estimated_cost=0.5), REPORT], budget=Budget(max_total_cost=Decimal(1)))
    advance(execution)
    with outside.acting():
        (grant,) = tasks.lease(worker=outside, queues=("execute",), capacity=1)
    with kee.acting():
        answering.cancel(caller=kee, execution_ref=execution.ref, reason=None)
    with outside.acting():
        tasks.release(worker=outside, task_id=grant.task_id, lease_token=grant.lease_token)
    advance(execution)

    assert (report(kee, execution).status, money(report(kee, execution).total_cost)) == ("canceled", Decimal("0.5"))


def test_cancel_cancels_tasks_and_closes_obligations(kee: Caller, outside: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    execution = begin(kee, [queue_step("a"), {**REPORT, "depends_on": ["a"]}])
    advance(execution)
    with kee.acting():
        task_id = LiveTask.objects.get().task_id
        answering.cancel(caller=kee, execution_ref=execution.ref, reason="Not needed")
        answering.cancel(caller=kee, execution_ref=execution.ref, reason="Not needed")

    done = report(kee, execution)
    assert (done.status, done.summary) == ("canceled", "Not needed")
    assert ended(kee, task_id) == "canceled"
    assert open_obligations(kee) == 0
    with kee.acting():
        assert Receipt.objects.filter(event_type="plan_canceled").count() == 1


def test_cancel_closes_the_obligation_of_an_aggregate(kee: Caller, outside: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    execution = begin(kee, example_steps())
    advance(execution)
    do_task(outside, {"text": "found"})
    advance(execution)

    with kee.acting():
        answering.cancel(caller=kee, execution_ref=execution.ref, reason=None)

    assert statuses(kee, execution)["step-4"] == "canceled"
    assert open_obligations(kee) == 0


def test_lost_call_of_a_writing_tool_is_not_repeated(kee: Caller, server: WorkerServer) -> None:
    make_writing_worker(kee, server)
    execution = begin(kee, [{**call_step("a"), "worker_id": "writer"}, REPORT])
    claim_and_die(kee, execution)
    later(timedelta(minutes=1))

    advance(execution)

    assert failure(report(kee, execution))["code"] == "outcome_unknown"
    assert not server.calls


@pytest.mark.parametrize(
    "fault",
    [
        {"status": "calling"},
        {"status": "complete"},
        {"status": "queued"},
        {"status": "dreaming"},
        {"step_type": "dance"},
        {"call_expires_at": T0},
        {"ended_at": T0},
    ],
)
def test_database_forbids_contradictory_steps(kee: Caller, fault: dict[str, object]) -> None:
    execution = begin(kee, [REPORT])

    with kee.acting(), pytest.raises(Exception, match="executions_step_"), transaction.atomic():
        ExecutionStep.objects.filter(execution=execution).update(**fault)


@pytest.mark.parametrize(
    ("rule", "fault"),
    [
        ("workers_do_worker_steps", {"status": "calling", "call_expires_at": T0}),
        ("workers_do_worker_steps", {"status": "queued", "task_id": 1}),
        ("asked_by_receipt", {"status": "awaiting"}),
        ("asked_by_receipt", {"status": "awaiting", "step_type": "aggregate"}),
        ("money_not_negative", {"cost": -1}),
        (
            "money_not_negative",
            {"status": "calling", "step_type": "call_worker", "call_expires_at": T0, "reserved_cost": -1},
        ),
    ],
)
def test_database_names_the_broken_step_constraint(kee: Caller, rule: str, fault: dict[str, object]) -> None:
    execution = begin(kee, [REPORT])

    with kee.acting(), pytest.raises(Exception, match=f"executions_step_{rule}"), transaction.atomic():
        ExecutionStep.objects.filter(execution=execution).update(**fault)


def test_database_forbids_two_steps_of_one_task(kee: Caller) -> None:
    execution = begin(kee, [queue_step("a"), queue_step("b"), REPORT])

    with kee.acting():
        waiting = ExecutionStep.objects.filter(execution=execution, step_type="queue_execution")
        with pytest.raises(Exception, match="executions_step_by_open_task"), transaction.atomic():
            waiting.update(status="queued", task_id=1)
        waiting.update(task_id=1)


def test_database_forbids_costs_over_the_budget(kee: Caller) -> None:
    execution = begin(kee, [REPORT], budget=Budget(max_total_cost=Decimal(1)))

    with kee.acting():
        found = Execution.objects.filter(pk=execution.pk)
        found.update(total_cost=1)
        with pytest.raises(Exception, match="executions_execution_within_its_budget"), transaction.atomic():
            found.update(total_cost=Decimal("1.000001"))


def test_refund_leaves_no_rounding_remainder(kee: Caller, outside: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    dear = [queue_step(name, estimated_cost=0.0000015) for name in ("a", "b", "c")]
    execution = begin(kee, [*dear, REPORT])
    advance(execution)
    with kee.acting():
        answering.cancel(caller=kee, execution_ref=execution.ref, reason=None)

    done = report(kee, execution)
    assert (str(done.status), money(done.total_cost), [step.cost for step in done.steps]) == (
        "canceled",
        Decimal(0),
        [0.0] * 4,
    )


@pytest.mark.parametrize(
    "fault", [{"status": "complete"}, {"ended_at": T0}, {"status": "odd"}, {"halted_as": "queued"}, {"total_cost": -1}]
)
def test_database_forbids_contradictory_executions(kee: Caller, fault: dict[str, object]) -> None:
    execution = begin(kee, [REPORT])

    with kee.acting(), pytest.raises(Exception, match="executions_execution_"), transaction.atomic():
        Execution.objects.filter(pk=execution.pk).update(**fault)


def claim_and_die(caller: Caller, execution: Execution) -> list[advancing.Claim]:
    """What a process leaves behind that dies between claiming its steps and calling."""
    with caller.acting():
        return advancing.look(execution.pk, may_call=True)
