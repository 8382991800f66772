"""Plans carried out: what begins when, what a principal is asked for, how it ends."""

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from apps.core.sql import database_now
from apps.executions import calls, selectors, services
from apps.executions.models import Execution, ExecutionStep
from apps.executions.services import RECEIPTS_EVERY, Decision
from apps.executions.states import Mode, Strategy
from apps.plans.shapes import Budget
from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as_system
from apps.receipts import selectors as receipts
from apps.receipts.models import Obligation, Receipt
from apps.tasks.models import LiveTask
from apps.tasks.services import running
from apps.workers import services as workers
from apps.workers.models import WorkerRateLimited
from tests.digests.makers import post
from tests.executions.making import (
    APPROVAL,
    REPORT,
    advance,
    artifacts_away,
    begin,
    call_step,
    cancel,
    cancel_task,
    decide,
    do_task,
    ended,
    example_steps,
    failure,
    lease_task,
    make_worker,
    make_writing_worker,
    money,
    open_obligations,
    queue_step,
    release_task,
    report,
    run,
    statuses,
    submit,
)
from tests.executions.workers import WorkerServer
from tests.factories import T0, make_caller, make_tenant, pass_time, refused
from tests.memory.subjects import observations


@pytest.fixture
def outside(tenant: Tenant) -> Caller:
    return make_caller(tenant, "hands", Kind.WORKER)


def test_direct_steps_pass_their_results_on(kee: Caller, texter: WorkerServer) -> None:
    execution = run(kee, [call_step("a"), call_step("b", "shout", "{{a.text}} {{a.length}}", depends_on=["a"]), REPORT])

    done = report(kee, execution)
    assert done.status == "complete"
    assert [(step.envelope or {})["payload"] for step in done.steps[:2]] == [
        {"text": "hello", "length": 5, "items": [1, 2, 3]},
        {"text": "HELLO 5"},
    ]
    assert done.report == {"report_summary": "All done", "recommendation": "Read it", "decision_required": False}
    assert texter.calls == {"echo": 1, "shout": 1}


def test_plan_goes_from_task_to_call_to_aggregate_to_report(kee: Caller, outside: Caller, texter: WorkerServer) -> None:
    execution = run(kee, example_steps())
    assert statuses(kee, execution)["step-1"] == "queued"

    task_id = do_task(outside, {"text": "found", "summary": "One thing found"})
    advance(execution)
    handed_over = report(kee, execution)
    assert statuses(kee, execution)["step-4"] == "awaiting"
    assert texter.calls == {"shout": 1}
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
    with kee.acting():
        chain = receipts.chain(execution.plan_receipt_id)
        plan = Obligation.objects.select_related("closed_by").get(receipt__receipt_id=execution.plan_receipt_id)
    assert {link.event_type for link in chain} == {
        *("task_received", "plan_created", "task_queued", "task_complete"),
        *("aggregate_requested", "aggregate_complete", "plan_complete"),
    }
    assert plan.closed_by is not None
    assert (plan.closed_by.event_type, plan.closed_by.surface) == ("plan_complete", "ledger")


def test_each_step_has_an_envelope(kee: Caller, outside: Caller, texter: WorkerServer) -> None:
    execution = run(kee, [call_step("a"), queue_step("b"), call_step("c", "break_down", critical=False), REPORT])

    def envelopes() -> dict[str, dict[str, Any]]:
        return {step.step_id: step.envelope for step in report(kee, execution).steps if step.envelope}

    queued = envelopes()["b"]
    task_id = do_task(outside, {"text": "found"})
    advance(execution)
    found = envelopes()

    assert (queued["status"], queued["async_task_id"], queued["payload"]) == ("async_queued", f"task_{task_id}", None)
    a, b, c = found["a"], found["b"], found["c"]
    assert (a["status"], a["payload"]["text"], a["async_task_id"]) == ("complete", "hello", None)
    assert (b["status"], b["payload"], b["provenance"]["run_id"]) == ("complete", {"text": "found"}, "run_1")
    assert (c["status"], c["error"]["retryable"]) == ("failed", False)
    assert "out of paper" in c["error"]["message"]
    assert {(one["plan_id"], one["worker_id"]) for one in (a, b, c)} == {(execution.plan_id, "texter")}
    assert all(one["provenance"]["completed_at"] for one in found.values())


def test_texts_for_the_owner_have_their_references_replaced(kee: Caller, texter: WorkerServer) -> None:
    both, ask = example_steps()[3], {**REPORT, "step_id": "ask", "decision_required": True}
    steps = [
        call_step("a"),
        {**both, "aggregate_step_ids": ["a"], "synthesis_instructions": "Say {{a.text}} twice."},
        {**ask, "report_summary": "It said {{a.text}}, of {{a.length}} letters.", "recommendation": "{{a.text}}"},
    ]
    submit(kee, run(kee, steps))

    with kee.acting():
        combine, ask_ = Receipt.objects.filter(requires_action=True, source_system="executions").order_by("id")
    assert (combine.summary, combine.metadata["synthesis_instructions"]) == ("Say hello twice.", "Say hello twice.")
    assert (ask_.summary, ask_.metadata["recommendation"]) == ("It said hello, of 5 letters.", "hello")


def test_asked_delegate_owns_the_execution(tenant: Tenant, outside: Caller, server: WorkerServer) -> None:
    manager = make_caller(tenant, "general-manager", Kind.DELEGATE)
    make_worker(make_caller(tenant), server)
    execution = run(manager, example_steps())
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
    execution = run(kee, [call_step("a", "tell"), call_step("b", "tell", params=named), REPORT])

    told = [(step.envelope or {})["payload"] for step in report(kee, execution).steps[:2]]
    assert told == [{"text": "hello", "caused_by_receipt_id": execution.plan_receipt_id}, named]


def test_execution_leaves_one_trace_in_memory(kee: Caller, texter: WorkerServer) -> None:
    execution = run(kee, [call_step("a"), REPORT])
    advance(execution)

    with kee.acting():
        trace = observations().get(domain="delegation_trace")
    assert trace.confidence == 1.0
    assert trace.evidence == [f"plan:{execution.plan_id}", f"exec:{execution.ref}"]
    assert (trace.metadata["workers_used"], trace.metadata["success_rate"]) == (["texter"], 1.0)


@pytest.mark.parametrize("first", [Budget(), Budget(max_total_cost=1)])
def test_plan_is_executed_once(kee: Caller, texter: WorkerServer, first: Budget) -> None:
    execution = run(kee, [call_step("a"), REPORT], budget=first)

    again = run(kee, [], plan_id=execution.plan_id, budget=first)
    assert again.pk == execution.pk
    with refused("already_executed") as refusal:
        begin(kee, [], plan_id=execution.plan_id, budget=first, mode=Mode.ASYNC_ONLY)
    with refused("already_executed"):
        begin(kee, [], plan_id=execution.plan_id, budget=Budget(max_total_cost=2))
    assert refusal.value.extra == {"execution_id": execution.ref}
    assert texter.calls == {"echo": 1}


@pytest.mark.parametrize(
    ("runtime", "mode", "status"),
    [
        ("fast", Mode.ASYNC_ONLY, "queued"),
        ("long", Mode.AUTO, "queued"),
        ("long", Mode.DIRECT_ONLY, "complete"),
    ],
)
def test_mode_and_runtime_decide_between_call_and_task(
    kee: Caller, server: WorkerServer, runtime: str, mode: Mode, status: str
) -> None:
    make_worker(kee, server, hints={"expected_runtime": runtime})
    execution = run(kee, [call_step("a"), REPORT], mode=mode)

    assert statuses(kee, execution)["a"] == status
    assert bool(server.calls) == (status == "complete")


def test_execution_is_hidden_from_other_principals(kee: Caller, tenant: Tenant) -> None:
    stranger = make_caller(tenant, "Mallory")
    execution = begin(kee, [REPORT])

    with refused("unknown_execution"):
        report(stranger, execution)
    with refused("unknown_execution"):
        submit(stranger, execution)
    with stranger.acting(), refused("unknown_execution"):
        services.cancel(caller=stranger, execution_ref=execution.ref, reason=None)

    assert report(kee, execution).status == "queued"


def test_calls_without_patience_are_left_to_a_worker_process(kee: Caller, texter: WorkerServer) -> None:
    execution = begin(kee, [call_step("a"), REPORT])

    advance(execution, patience=timedelta(0))

    assert statuses(kee, execution)["a"] == "pending"
    assert not texter.calls
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
    execution = run(kee, steps, strategy=Strategy.ESCALATE, budget=Budget(max_total_cost=1))

    done = report(kee, execution)
    assert (statuses(kee, execution)["a"], money(done.total_cost), server.calls["echo"]) == ("canceled", Decimal(0), 0)
    assert done.status in {"budget_exceeded", "failed"}


@pytest.mark.parametrize("budget", [Budget(max_total_cost=0.25), Budget(max_cost_per_step=0.05)])
def test_step_over_the_budget_does_not_begin(kee: Caller, texter: WorkerServer, budget: Budget) -> None:
    steps = [call_step(name, estimated_cost=0.1) for name in ("a", "b", "c")]
    execution = run(kee, [*steps, REPORT], budget=budget)

    done = report(kee, execution)
    assert done.status == "budget_exceeded"
    assert money(done.total_cost) <= (budget.max_total_cost or 0)
    assert sum(texter.calls.values()) == (2 if budget.max_total_cost else 0)
    assert "over the budget" in done.summary or "limit per step" in done.summary
    assert open_obligations(kee) == 0


def test_failed_critical_step_ends_the_plan(kee: Caller, texter: WorkerServer) -> None:
    execution = run(kee, [call_step("a", "break_down"), call_step("b", "echo", "{{a.text}}", depends_on=["a"]), REPORT])

    done = report(kee, execution)
    assert done.status == "failed"
    assert statuses(kee, execution) == {"a": "failed", "b": "skipped", "report": "skipped"}
    assert failure(done)["code"] == "worker_refused"
    advice = "Plan again, without what failed or with another budget"
    assert done.next_actions == [
        f'{advice}: replan_plan(plan_id="{execution.plan_id}", failed_step="a"), by call_tool.'
    ]
    with kee.acting():
        assert Receipt.objects.filter(event_type="plan_failed").count() == 1
    assert open_obligations(kee) == 0


@pytest.mark.usefixtures("own_artifacts")
def test_result_is_read_when_the_storage_is_back(kee: Caller, outside: Caller, texter: WorkerServer) -> None:
    execution = run(kee, [queue_step("a"), {**REPORT, "depends_on": ["a"]}])
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


def test_unreadable_result_stays_behind_its_pointer(kee: Caller, outside: Caller, texter: WorkerServer) -> None:
    execution = run(kee, [queue_step("a"), {**REPORT, "depends_on": ["a"]}])
    content = rb'{"text": "\u0000"}'
    pointer = running.store_artifact(tenant_id=kee.tenant_id, content=content, media_type="application/json")
    do_task(outside, pointer=pointer)

    advance(execution)

    envelope = report(kee, execution).steps[0].envelope
    assert envelope is not None
    assert (envelope["payload"], envelope["result_pointer"]) == (None, pointer)
    assert report(kee, execution).status == "complete"


@pytest.mark.usefixtures("own_artifacts")
def test_step_waits_for_the_storage_of_its_input(kee: Caller, outside: Caller, texter: WorkerServer) -> None:
    make_writing_worker(kee, texter)
    summing = {**call_step("b", "sum_up", params={"size": "{{a.size}}"}, depends_on=["a"]), "worker_id": "writer"}
    execution = run(kee, [queue_step("a"), summing, REPORT])
    do_task(outside, {"text": "x" * 65_600, "size": 3})
    advance(execution, patience=timedelta(0))

    with artifacts_away():
        advance(execution)

    assert statuses(kee, execution)["b"] == "pending"
    with kee.acting():
        ExecutionStep.objects.update(retry_at=None)
    advance(execution)
    assert texter.calls == {"sum_up": 1}
    assert report(kee, execution).status == "complete"


def test_claims_last_while_their_process_reads_params_and_writes_results(
    kee: Caller, outside: Caller, texter: WorkerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_writing_worker(kee, texter)
    more = {"params": {"size": "{{a.size}}"}, "depends_on": ["a"], "worker_id": "writer"}
    execution = run(kee, [queue_step("a"), *({**call_step(f"b{one}", "sum_up"), **more} for one in range(5)), REPORT])
    do_task(outside, {"text": "x" * 65_600, "size": 3})
    advance(execution, patience=timedelta(0))
    clock = [0.0]

    def slowly(work: Callable[..., Any]) -> Callable[..., Any]:
        def done(**given: Any) -> Any:
            clock[0] += 3
            pass_time(3)
            advance(execution)  # as another process does
            return work(**given)

        return done

    monkeypatch.setattr(services, "monotonic", lambda: clock[0])
    monkeypatch.setattr(calls, "kept", slowly(calls.kept))
    monkeypatch.setattr(calls, "keep", slowly(calls.keep))
    advance(execution)

    assert texter.calls == {"sum_up": 5}
    assert report(kee, execution).status == "complete"


def test_wait_step_is_looked_at_until_its_receipt_comes(tenant: Tenant, kee: Caller) -> None:
    pass_time(timedelta(0))
    execution = run(kee, [{"step_id": "a", "step_type": "wait_for", "wait_for_receipts": [APPROVAL]}, REPORT])
    with kee.acting():
        execution.refresh_from_db()
        assert execution.wake_at == database_now() + RECEIPTS_EVERY
    assert statuses(kee, execution)["a"] == "awaiting"

    lee = make_caller(tenant, "Lee")
    with lee.acting():
        post(kee, poster=lee, source="asyncgate", event_type="escalation", receipt_id=APPROVAL, surface="ledger")
    advance(execution)
    assert report(kee, execution).status == "complete"


def test_cancel_replaces_another_halt(kee: Caller, texter: WorkerServer) -> None:
    execution = run(kee, [queue_step("a"), call_step("b", estimated_cost=9), REPORT], budget=Budget(max_total_cost=1))
    with kee.acting():
        task_id = LiveTask.objects.get().task_id
        execution.refresh_from_db()
        assert (execution.status, execution.halted_as) == ("executing", "budget_exceeded")
        services.cancel(caller=kee, execution_ref=execution.ref, reason="Not needed")

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
    kee: Caller, outside: Caller, texter: WorkerServer, others: list[dict[str, Any]], verdict: str
) -> None:
    steps = [queue_step("b", estimated_cost=0.1), *others, REPORT]
    execution = begin(kee, steps, strategy=Strategy.ESCALATE, budget=Budget(max_total_cost=1))
    with kee.acting():
        claims = services.look(execution.pk, may_call=True)
    services._carry_out([claim for claim in claims if claim.as_task])
    grant = lease_task(outside)
    services._carry_out([claim for claim in claims if not claim.as_task])
    advance(execution)
    before = statuses(kee, execution)["b"]

    release_task(outside, grant)
    advance(execution)

    assert (before, statuses(kee, execution)["b"]) == ("queued", "canceled")
    assert report(kee, execution).status == verdict


def test_canceled_task_cancels_its_execution(kee: Caller, texter: WorkerServer) -> None:
    execution = run(kee, [queue_step("a"), {**REPORT, "depends_on": []}, call_step("c", depends_on=["a"])])
    cancel_task(kee)

    advance(execution)

    done = report(kee, execution)
    assert (done.status, statuses(kee, execution)["a"], statuses(kee, execution)["c"]) == (
        "canceled",
        "canceled",
        "skipped",
    )
    assert "The task of a was canceled." in done.summary
    with kee.acting():
        assert Receipt.objects.get(event_type="plan_canceled").surface == "inbox"


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
    kee: Caller, texter: WorkerServer, step: dict[str, object], code: str
) -> None:
    first = {**REPORT, "step_id": "report"}
    execution = run(kee, [first, step])

    assert failure(report(kee, execution))["code"] == code
    assert not texter.calls


def test_same_result_twice_changes_nothing(kee: Caller, outside: Caller, texter: WorkerServer) -> None:
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
        submit(kee, execution, pointer="s3://b/x")

    assert report(kee, execution) == before


@pytest.mark.parametrize(("decision", "status"), [("accept", "complete"), ("reject", "failed")])
def test_decision_ends_the_wait(kee: Caller, decision: Decision, status: str) -> None:
    execution = run(kee, [{**REPORT, "decision_required": True}])
    asked = report(kee, execution)
    assert (asked.status, "decision=" in asked.next_actions[0]) == ("needs_escalation", True)

    decide(kee, execution, decision)

    with refused("other_result"):
        decide(kee, execution, "reject" if decision == "accept" else "accept")
    assert report(kee, execution).status == status
    assert open_obligations(kee) == 0


@pytest.mark.parametrize("way", ["execution", "task", "after its lease"])
def test_task_canceled_before_its_first_run_is_refunded(
    kee: Caller, outside: Caller, texter: WorkerServer, way: str
) -> None:
    execution = run(kee, [queue_step("a", estimated_cost=0.5), REPORT], budget=Budget(max_total_cost=1))
    grants = [lease_task(outside)] if way == "after its lease" else []
    if way == "task":
        cancel_task(kee)
    else:
        cancel(kee, execution)
    for grant in grants:
        release_task(outside, grant)
    advance(execution)

    done = report(kee, execution)
    assert (done.status, money(done.total_cost)) == ("canceled", Decimal("0.5") if grants else Decimal(0))


def test_cancel_cancels_tasks_and_closes_obligations(kee: Caller, outside: Caller, texter: WorkerServer) -> None:
    execution = run(kee, [queue_step("a"), {**REPORT, "depends_on": ["a"]}])
    with kee.acting():
        task_id = LiveTask.objects.get().task_id
        services.cancel(caller=kee, execution_ref=execution.ref, reason="Not needed")
        services.cancel(caller=kee, execution_ref=execution.ref, reason="Not needed")

    done = report(kee, execution)
    assert (done.status, done.summary) == ("canceled", "Not needed")
    assert ended(kee, task_id) == "canceled"
    assert open_obligations(kee) == 0
    with kee.acting():
        assert Receipt.objects.filter(event_type="plan_canceled").count() == 1


def test_refund_leaves_no_rounding_remainder(kee: Caller, outside: Caller, texter: WorkerServer) -> None:
    dear = [queue_step(name, estimated_cost=0.0000015) for name in ("a", "b", "c")]
    execution = run(kee, [*dear, REPORT])
    cancel(kee, execution)

    done = report(kee, execution)
    assert (str(done.status), money(done.total_cost), [step.cost for step in done.steps]) == (
        "canceled",
        Decimal(0),
        [0.0] * 4,
    )
