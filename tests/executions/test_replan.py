"""A plan of which a step failed is planned again: what is done stays done, what failed is not used again."""

from collections.abc import Mapping
from typing import Any

import pytest

from apps.core.errors import Conflict
from apps.executions import services
from apps.executions.models import Execution, ExecutionStep
from apps.plans import selectors as plans
from apps.plans import services as planning
from apps.plans.models import Plan
from apps.plans.proposals import Evidence, Value
from apps.plans.shapes import Budget
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller
from apps.receipts import selectors as receipts
from apps.receipts.models import Obligation, Receipt
from apps.workers import services as workers
from tests.executions.making import (
    TEXT,
    begin,
    call_step,
    make_worker,
    queue_step,
    report,
    run,
    statuses,
    submit,
)
from tests.executions.workers import WorkerServer
from tests.factories import T0, ask, make_token, refused
from tests.plans.making import create
from tests.waiters import together

INTENT = "Echo 'hello', then shout it"
ECHO, SHOUT = ("echo", {"text": "hello"}), ("shout", {"text": "{{step-1.text}}"})
GIVES: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}}


def register(caller: Caller, endpoint: str, worker_id: str, tool: str, **hints: Any) -> None:
    tools = [{"name": tool, "description": tool, "input_schema": TEXT, "output_schema": GIVES}]
    hints = {"expected_runtime": "fast", **hints}
    make_worker(caller, WorkerServer(endpoint=endpoint), worker_id, tools=tools, hints=hints)


@pytest.fixture
def team(kee: Caller, server: WorkerServer) -> Caller:
    """One who echoes, and two who shout: the first chosen one refuses every call."""
    register(kee, server.endpoint, "echoer", "echo")
    register(kee, server.redirecting, "hoarse", "shout")
    register(kee, server.endpoint, "loud", "shout", cost_estimate=0.5)
    return kee


def make(caller: Caller, *calls: tuple[str, Mapping[str, Any]], intent: str = INTENT, **more: Any) -> Plan:
    """A plan of these calls, by default to echo something and shout it."""
    with caller.acting():
        return create(caller, *(calls or (ECHO, SHOUT)), intent=intent, **more)


def carry_out(caller: Caller, plan_id: str, budget: Budget | None = None) -> Execution:
    return run(caller, [], plan_id=plan_id, budget=budget)


def replan(caller: Caller, plan_id: str, failed_step: str = "step-2", reason: str = "", **more: Any) -> Plan:
    with caller.acting():
        return services.replan(caller=caller, plan_id=plan_id, failed_step=failed_step, reason=reason, now=T0, **more)


def worker_steps(made: Plan) -> dict[str, tuple[str, bool]]:
    steps = made.document["steps"]
    return {one["step_id"]: (one["worker_id"], one.get("done", False)) for one in steps if one.get("worker_id")}


def test_replan_keeps_done_steps_and_uses_another_worker(team: Caller, server: WorkerServer) -> None:
    made = make(team)
    assert worker_steps(made) == {"step-1": ("echoer", False), "step-2": ("hoarse", False)}
    failed = carry_out(team, made.plan_id)
    assert statuses(team, failed) == {
        "step-1": "complete",
        "step-2": "failed",
        "step-3": "awaiting",
        "step-4": "pending",
    }

    again = replan(team, made.plan_id)

    document = again.document
    assert worker_steps(again) == {"step-1": ("echoer", True), "step-2": ("loud", False)}
    assert document["steps"][1]["params"] == {"text": "{{step-1.text}}"}
    assert document["replaces"] == made.plan_id
    assert [(one["worker_id"], one["tool_name"]) for one in document["excluded"]] == [("hoarse", "shout")]
    assert "redirect" in document["excluded"][0]["reason"]
    assert document["execution_cost_estimate"] == 0.5
    with team.acting():
        assert plans.judged(document, tenant_id=team.tenant_id)[0] == []


def test_new_plan_runs_only_the_rest(team: Caller, server: WorkerServer) -> None:
    made = make(team)
    before = report(team, carry_out(team, made.plan_id))

    execution = carry_out(team, replan(team, made.plan_id).plan_id)

    after = report(team, execution)
    assert server.calls == {"echo": 1, "shout": 1}
    assert after.steps[0].envelope == before.steps[0].envelope
    assert after.steps[1].envelope is not None
    assert after.steps[1].envelope["payload"] == {"text": "HELLO"}
    assert (after.steps[0].cost, after.steps[1].cost, float(after.total_cost)) == (0.0, 0.5, 0.5)
    assert after.steps[2].status == "awaiting"
    with team.acting():
        asked = Receipt.objects.get(event_type="aggregate_requested", metadata__plan_id=execution.plan_id)
    assert [one["step_id"] for one in asked.metadata["results"]] == ["step-1", "step-2"]


@pytest.mark.parametrize(
    ("bounds", "budget", "left"),
    [
        ({}, Budget(max_total_cost=0.9, max_cost_per_step=0.6), (0.4, 0.6)),
        ({"max_total_cost": 5, "max_cost_per_step": 0.55}, Budget(max_total_cost=0.9), (0.4, 0.55)),
    ],
)
def test_execution_budget_binds_the_new_plan(
    kee: Caller, server: WorkerServer, bounds: dict[str, float], budget: Budget, left: tuple[float, float]
) -> None:
    register(kee, server.endpoint, "echoer", "echo", cost_estimate=0.5)
    register(kee, server.redirecting, "hoarse", "shout", cost_estimate=0.3)
    register(kee, server.endpoint, "loud", "shout", cost_estimate=0.45)
    made = make(kee, constraints={"budget": bounds})
    assert float(report(kee, carry_out(kee, made.plan_id, budget)).total_cost) == 0.5

    again = replan(kee, made.plan_id)

    new = again.document["constraints"]["budget"]
    assert (new["max_total_cost"], new["max_cost_per_step"]) == left
    assert [one["kind"] for one in again.document["missing"]] == ["budget"]


def test_new_bound_replaces_the_remaining_budget(team: Caller) -> None:
    made = make(team, constraints={"budget": {"max_total_cost": 0.1}})

    assert worker_steps(replan(team, made.plan_id, reason="cold", max_total_cost=0.5))["step-2"] == ("loud", False)


def test_receipts_of_a_replan_are_one_chain(team: Caller) -> None:
    made = make(team, ("shout", {"text": "hello"}), ("echo", {"text": "{{step-1.text}}"}))
    carry_out(team, made.plan_id)

    again = replan(team, made.plan_id, "step-1")

    with team.acting():
        chain = [link.event_type for link in receipts.chain(again.receipt_id)]
        owed = Obligation.objects.filter(closed_at=None).values_list("receipt__receipt_id", flat=True)
        assert list(owed) == [again.receipt_id]
        assert not Receipt.objects.filter(event_type="plan_abandoned").exists()
    assert chain == ["task_received", "plan_created", "plan_failed", "plan_created"]


def test_plan_without_execution_is_abandoned_by_replan(team: Caller) -> None:
    made = make(team)

    again = replan(team, made.plan_id, reason="hoarse has a cold")

    assert worker_steps(again) == {"step-1": ("echoer", False), "step-2": ("loud", False)}
    with team.acting():
        abandoned = Receipt.objects.get(event_type="plan_abandoned")
        closed = Obligation.objects.get(receipt__receipt_id=made.receipt_id)
        assert closed.closed_by_id == abandoned.pk
    assert abandoned.surface == "ledger"
    assert abandoned.metadata["replaced_by"] == again.plan_id
    with refused("plan_abandoned"):
        carry_out(team, made.plan_id)


def test_abandoned_plan_is_not_offered_for_execution(tenant: Tenant, team: Caller) -> None:
    token = make_token(tenant)
    late, begun, old = make(team), make(team), make(team)
    assert read(token, begun)["can_execute_now"]
    carry_out(team, begun.plan_id)
    new = replan(team, old.plan_id, reason="cold")
    with team.acting():
        assert planning.abandon_expired(plan_id=late.plan_id, now=T0)

    assert [read(token, one)["can_execute_now"] for one in (late, begun, old, new)] == [False, False, False, True]
    told = {one.plan_id: read(token, one, "/execution") for one in (late, old, new)}
    assert [(one["status"], one["next_actions"]) for one in told.values()] == [
        ("abandoned", ["Ask anew with carry_out_request."]),
        ("abandoned", [f'get_plan_status(plan_id="{new.plan_id}")']),
        ("not_started", [f'execute_delegation_plan(plan_id="{new.plan_id}")']),
    ]
    assert read(token, begun, "/execution")["execution_id"] is not None


def read(token: str, made: Plan, further: str = "") -> dict[str, Any]:
    found: dict[str, Any] = ask("GET", f"plans/{made.plan_id}{further}", token)[1]
    return found


def test_results_are_kept_over_an_unexecuted_revision(team: Caller, server: WorkerServer) -> None:
    register(team, server.endpoint, "third", "shout", cost_estimate=2)
    first = make(team)
    carry_out(team, first.plan_id)
    second = replan(team, first.plan_id)
    third = replan(team, second.plan_id, failed_step="step-2", reason="too loud")

    carry_out(team, third.plan_id)

    assert third.document["replaces"] == second.plan_id
    assert [one["worker_id"] for one in third.document["excluded"]] == ["hoarse", "loud"]
    assert worker_steps(third) == {"step-1": ("echoer", True), "step-2": ("third", False)}
    assert server.calls == {"echo": 1, "shout": 1}


def test_replan_without_another_worker_says_so(team: Caller) -> None:
    with team.acting():
        workers.unregister(caller=team, worker_id="loud")
    made = make(team, ("shout", {"text": "hello"}), intent="Shout 'hello'")
    carry_out(team, made.plan_id)

    again = replan(team, made.plan_id, failed_step="step-1")

    assert again.document["status"] == "needs_escalation"
    missing = again.document["missing"][0]
    assert (missing["kind"], missing["tool_name"]) == ("permission", "shout")
    assert "it failed before" in missing["detail"]


def test_done_step_does_not_need_its_worker(team: Caller, server: WorkerServer) -> None:
    made = make(team)
    carry_out(team, made.plan_id)
    with team.acting():
        workers.unregister(caller=team, worker_id="echoer")

    again = replan(team, made.plan_id)

    assert again.document["status"] == "ready"
    assert worker_steps(again) == {"step-1": ("echoer", True), "step-2": ("loud", False)}
    carry_out(team, again.plan_id)
    assert server.calls == {"echo": 1, "shout": 1}


def test_replan_cancels_an_execution_that_waits_for_its_owner(team: Caller) -> None:
    made = make(team)
    waiting = carry_out(team, made.plan_id)
    assert report(team, waiting).status == "executing"

    replan(team, made.plan_id)

    assert report(team, waiting).status == "canceled"
    with team.acting():
        open_ones = Obligation.objects.filter(closed_at=None)
        assert [one.receipt.event_type for one in open_ones.select_related("receipt")] == ["plan_created"]


def test_new_plan_keeps_context_bounds_and_path(kee: Caller, server: WorkerServer) -> None:
    for worker_id in ("echoer", "parrot"):
        register(kee, server.endpoint, worker_id, "echo")
    said = Value(value="hello", evidence=Evidence.CONTEXT, text="text")
    made = make(
        kee,
        ("echo", {"text": said}),
        context={"text": "hello"},
        constraints={"budget": {"max_cost_per_step": 1.0}, "timeout_seconds": 600.0},
        delegation_path=("above",),
    )
    assert made.document["steps"][0]["provenance"]["text"] == {"source": "context", "key": "text"}

    again = replan(kee, made.plan_id, "step-1", reason="cold")

    old, new = made.document, again.document
    assert new["status"] == "ready"
    assert new["steps"][0]["params"] == old["steps"][0]["params"] == {"text": "hello"}
    assert new["delegation_path"] == old["delegation_path"] == ["above"]
    assert new["constraints"] == old["constraints"]


def test_planner_learns_from_all_steps_of_the_new_plan(team: Caller) -> None:
    made = make(team)
    carry_out(team, made.plan_id)
    again = replan(team, made.plan_id)
    execution = carry_out(team, again.plan_id)
    submit(team, execution, "step-3")
    with team.acting():
        learned = planning.past_of(plans.plan(again.plan_id))

    assert (len(learned.tools), learned.weight) == (2, 1.0)


@pytest.mark.parametrize(
    ("step_id", "code"),
    [("step-9", "unknown_step"), ("step-3", "step_without_tool"), ("step-1", "step_done")],
)
def test_replan_of_a_step_that_did_not_fail_is_refused(team: Caller, step_id: str, code: str) -> None:
    made = make(team)
    carry_out(team, made.plan_id)

    with refused(code):
        replan(team, made.plan_id, step_id)

    with team.acting():
        assert Plan.objects.count() == 1


def test_replan_is_refused_while_a_worker_has_a_step(kee: Caller, texter: WorkerServer) -> None:
    execution = run(kee, [queue_step("step-1"), call_step("step-2", depends_on=["step-1"])])

    with refused("still_at_work"):
        replan(kee, execution.plan_id)

    assert report(kee, execution).status == "executing"


def test_done_step_without_a_result_is_refused(team: Caller) -> None:
    made = make(team)
    carry_out(team, made.plan_id)
    again = replan(team, made.plan_id)
    with team.acting():
        ExecutionStep.objects.filter(execution__plan_id=made.plan_id, step_id="step-1").delete()

    with refused("not_executable"):
        carry_out(team, again.plan_id)


@pytest.mark.django_db(transaction=True)
def test_of_two_concurrent_replans_one_is_refused(team: Caller) -> None:
    made = make(team)
    outcomes: list[str] = []

    def work() -> None:
        try:
            outcomes.append(replan(team, made.plan_id, reason="cold").plan_id)
        except Conflict as refusal:
            outcomes.append(refusal.extra["successor_plan_id"])

    together(work, work)

    assert len(outcomes) == 2
    assert outcomes[0] == outcomes[1]
    with team.acting():
        assert Receipt.objects.filter(event_type="plan_abandoned").count() == 1


@pytest.mark.django_db(transaction=True)
def test_plan_is_begun_or_replaced_but_never_both(team: Caller) -> None:
    made = make(team)
    outcomes: list[str] = []

    def start() -> None:
        try:
            begin(team, [], plan_id=made.plan_id)
            outcomes.append("begun")
        except Conflict:
            outcomes.append("too late")

    together(start, lambda: replan(team, made.plan_id, reason="cold"))

    with team.acting():
        abandoned = Receipt.objects.filter(event_type="plan_abandoned").count()
        canceled = Receipt.objects.filter(event_type="plan_canceled").count()
        assert (abandoned, canceled, Execution.objects.count()) == (
            (1, 0, 0) if outcomes == ["too late"] else (0, 1, 1)
        )


@pytest.fixture
def departments(kee: Caller, server: WorkerServer) -> Caller:
    """A delegate that takes requests on its subject."""
    takes = {"type": "object", "properties": {"intent": {"type": "string"}}, "required": ["intent"]}
    offered = {"name": "review_literature", "description": "Review the literature.", "input_schema": takes}
    make_worker(kee, server, "research-dept", tools=[offered])
    return kee


REVIEW = "Review the literature on 'safety'"
REVIEWED = ("review_literature", {"intent": REVIEW})


def test_escalated_step_fails_and_names_whom_to_ask(departments: Caller, server: WorkerServer) -> None:
    asked = {"intent": "Run them", "suggested_delegate": "code-dept"}
    answer = {"status": "needs_escalation", "message": "The proofs are code", "escalation": asked}
    server.escalations[REVIEW] = answer
    made = make(departments, REVIEWED, intent=REVIEW)

    told = report(departments, carry_out(departments, made.plan_id))

    assert (told.status, told.steps[0].status) == ("failed", "failed")
    assert told.results[0].error == {
        "code": "needs_escalation",
        "message": "The proofs are code",
        "retryable": False,
    }
    assert told.escalation == {"message": "The proofs are code", **asked}
    assert told.next_actions == ['Ask code-dept for what step-1 can\'t do: carry_out_request(intent="Run them").']
    again = replan(departments, made.plan_id, failed_step="step-1")
    assert "it failed before: The proofs are code" in again.document["missing"][0]["detail"]


@pytest.mark.parametrize(
    "answer",
    [
        {"status": "needs_escalation", "escalation": {"suggested_delegate": "code-dept"}},
        {"status": "complete", "escalation": {"intent": "Run them"}},
    ],
)
def test_malformed_escalation_is_a_result(departments: Caller, server: WorkerServer, answer: dict[str, Any]) -> None:
    server.escalations[REVIEW] = answer

    execution = carry_out(departments, make(departments, REVIEWED, intent=REVIEW).plan_id)

    assert statuses(departments, execution)["step-1"] == "complete"
    assert report(departments, execution).escalation is None
