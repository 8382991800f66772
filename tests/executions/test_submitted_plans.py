"""Plans that a principal has made itself: judged, kept, and carried out like the planner's, with every type of step."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from apps.digests import services as digests
from apps.plans.documents import plan_hash
from apps.plans.models import Delegate, Plan, PlanStep, WaitingPlan
from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as_system
from apps.receipts.models import Receipt
from apps.receipts.services import Poster, ReceiptDraft
from tests.executions.making import call_step, do_task, make_worker
from tests.executions.test_doors import BASE, send
from tests.executions.workers import WorkerServer
from tests.factories import T0, make_caller, make_token

SUBMIT = "/api/v1/plans/submit"
APPROVAL = "R.approval.of.Lee"


def handmade(**changes: Any) -> dict[str, Any]:
    """A plan as somebody writes it, with all five types of steps."""
    return {
        "plan_id": "my-plan",
        "delegate_id": "delegate",
        "principal_ai": "Kee",
        "intent": "Say hello once Lee allows it",
        "created_at": "2026-01-03T20:15:00Z",
        "scope": "greetings",
        "steps": [
            {
                "step_id": "fetch",
                "step_type": "queue_execution",
                "worker_id": "texter",
                "tool_name": "echo",
                "params": {"text": "hello"},
            },
            {
                "step_id": "wait",
                "step_type": "wait_for",
                "wait_for_step_ids": ["fetch"],
                "wait_for_receipts": [APPROVAL],
            },
            {
                "step_id": "shout",
                "step_type": "call_worker",
                "worker_id": "texter",
                "tool_name": "shout",
                "params": {"text": "{{fetch.text}}"},
                "depends_on": ["wait"],
            },
            {
                "step_id": "both",
                "step_type": "aggregate",
                "aggregate_step_ids": ["fetch", "shout"],
                "synthesis_instructions": "Put both together.",
                "executor": "self",
            },
            {
                "step_id": "ask",
                "step_type": "escalate",
                "depends_on": ["both"],
                "report_summary": "Hello was said.",
                "decision_required": True,
                "recommendation": "Accept it.",
            },
        ],
        **changes,
    }


@pytest.fixture
def token(kee: Caller, tenant: Tenant, server: WorkerServer) -> str:
    make_worker(kee, server)
    return make_token(tenant, "Kee")


def kept() -> tuple[int, int, int, int]:
    with acting_as_system("test"):
        return (
            Plan.objects.count(),
            PlanStep.objects.count(),
            WaitingPlan.objects.count(),
            Receipt.objects.filter(event_type__in=["plan_created", "task_received"]).count(),
        )


def post_approval(tenant: Tenant, kee: Caller) -> None:
    lee = make_caller(tenant, "Lee")
    draft = ReceiptDraft(
        recipient_id=kee.principal_id,
        source_system="asyncgate",
        event_type="escalation",
        dedupe_key="approval",
        receipt_id=APPROVAL,
        summary="Say it.",
        surface="ledger",
    )
    with lee.acting():
        digests.post(poster=Poster.of(lee), draft=draft, now=T0)


def test_submitted_plan_runs_through_waits_and_a_decision(tenant: Tenant, kee: Caller, token: str) -> None:
    status, made = send("POST", SUBMIT, token, {"plan": handmade()})

    assert (status, made["status"], made["can_execute_now"]) == (201, "ready", True)
    plan_id = made["plan_id"]
    started = send("POST", BASE, token, {"plan_id": plan_id})[1]
    do_task(make_caller(tenant, "hands", Kind.WORKER), {"text": "hello", "length": 5, "items": []})
    waiting = send("POST", BASE, token, {"plan_id": plan_id})[1]
    assert (waiting["status"], waiting["steps_complete"]) == ("queued", 1)
    post_approval(tenant, kee)
    asked = send("POST", BASE, token, {"plan_id": plan_id})[1]
    assert (asked["status"], asked["steps_complete"]) == ("needs_escalation", 4)
    assert "decide" in asked["next_actions"][0]
    decided = send("POST", f"{BASE}/{started['execution_id']}/steps/ask/decide", token, {"decision": "accept"})[1]
    assert decided["status"] == "complete"
    results = send("GET", f"{BASE}/{started['execution_id']}", token)[1]["steps"]
    assert {step["step_id"]: step["status"] for step in results} == dict.fromkeys(
        ("fetch", "wait", "shout", "both", "ask"), "complete"
    )


def test_submitted_plan_is_stored_as_given(kee: Caller, token: str) -> None:
    made = send("POST", SUBMIT, token, {"plan": handmade()})[1]

    plan, given = made["plan"], handmade()
    told = {"steps", "plan_id", "created_at"}
    assert {name: plan[name] for name in given if name not in told} == {
        name: value for name, value in given.items() if name not in told
    }
    bare = [{name: value for name, value in step.items() if name != "tool_uid"} for step in plan["steps"]]
    assert bare == given["steps"]
    assert [len(step.get("tool_uid", "")) for step in plan["steps"]] == [32, 0, 32, 0, 0]
    assert (plan["planner_version"], plan["plan_hash"]) == ("submitted", plan_hash(plan))
    assert plan["plan_id"] == made["plan_id"] != "my-plan"
    assert plan["estimated_total_runtime_seconds"] > 0
    found = send("GET", f"/api/v1/plans/{made['plan_id']}", token)[1]
    assert found == made
    assert send("POST", "/api/v1/plans/validate", token, {"plan": plan})[1]["valid"]
    with kee.acting():
        receipt = Receipt.objects.get(receipt_id=made["receipt_id"])
        stored = Plan.objects.get()
        pinned = PlanStep.objects.exclude(tool_uid="").count()
    assert (receipt.event_type, receipt.metadata["submitted"], receipt.surface) == ("plan_created", True, "ledger")
    assert (stored.planner_version, stored.confidence, pinned) == ("submitted", 0.0, 2)


def test_changed_plan_can_be_submitted(kee: Caller, token: str) -> None:
    first = send("POST", SUBMIT, token, {"plan": handmade(confidence=0.7)})[1]["plan"]
    first.pop("plan_hash")
    first["steps"][2]["params"]["text"] = "Hello {{fetch.text}}"

    status, second = send("POST", SUBMIT, token, {"plan": first})

    assert status == 201
    assert second["plan_id"] != first["plan_id"]
    assert second["plan"]["steps"][2]["params"]["text"] == "Hello {{fetch.text}}"
    assert second["plan"]["confidence"] == 0.7


def step(plan: dict[str, Any], number: int) -> dict[str, Any]:
    found: dict[str, Any] = plan["steps"][number]
    return found


@pytest.mark.parametrize(
    ("code", "pointer", "change"),
    [
        ("unknown_worker", "/plan/steps/0/worker_id", lambda plan: step(plan, 0).update(worker_id="nobody")),
        ("unknown_tool", "/plan/steps/0/tool_name", lambda plan: step(plan, 0).update(tool_name="sing")),
        ("tool_changed", "/plan/steps/0/tool_uid", lambda plan: step(plan, 0).update(tool_uid="0" * 32)),
        ("param_invalid", "/plan/steps/0/params/text", lambda plan: step(plan, 0).update(params={"text": 5})),
        ("cycle", "/plan/steps/0", lambda plan: step(plan, 0).update(depends_on=["shout"])),
        ("schema", "/plan", lambda plan: plan.pop("intent")),
        ("plan_hash", "/plan/plan_hash", lambda plan: plan.update(plan_hash="0" * 64)),
        ("unknown_delegate", "/plan/delegate_id", lambda plan: plan.update(delegate_id="nobody")),
        ("another_principal", "/plan/principal_ai", lambda plan: plan.update(principal_ai="Lee")),
        ("replaces", "/plan/replaces", lambda plan: plan.update(replaces="EARLIER")),
        ("replaces", "/plan/revision", lambda plan: plan.update(revision=2)),
        ("schema", "/plan/revision", lambda plan: plan.update(revision=2**53 - 1)),
        ("schema", "/plan/constraints/max_total_cost", lambda plan: plan.update(constraints={"max_total_cost": 1e9})),
        (
            "schema",
            "/plan/constraints/max_cost_per_step",
            lambda plan: plan.update(constraints={"max_cost_per_step": 1_000_001}),
        ),
        ("schema", "/plan/steps/0/provenance/text", lambda plan: step(plan, 0).update(provenance={"text": "mine"})),
        (
            "schema",
            "/plan/steps/0/provenance/text/source",
            lambda plan: step(plan, 0).update(provenance={"text": {"source": 5}}),
        ),
        (
            "schema",
            "/plan/steps/0/provenance/text",
            lambda plan: step(plan, 0).update(provenance={"text": {"source": "context"}}),
        ),
        (
            "schema",
            "/plan/steps/0/provenance/text/key",
            lambda plan: step(plan, 0).update(provenance={"text": {"source": "context", "key": ["x"]}}),
        ),
        ("schema", "/plan/steps/0/alternatives/0", lambda plan: step(plan, 0).update(alternatives=[{}])),
        ("budget", "/plan/steps", lambda plan: plan.update(constraints={"max_total_cost": 0})),
        (
            "unknown_memory",
            "/plan/references/inputs/memory_ids/0",
            lambda plan: plan.update(references={"inputs": {"memory_ids": [77]}}),
        ),
        (
            "unknown_receipt",
            "/plan/references/inputs/receipt_ids/0",
            lambda plan: plan.update(references={"inputs": {"receipt_ids": ["R.of.nobody"]}}),
        ),
        (
            "not_ready",
            "/plan/status",
            lambda plan: plan.update(
                status="needs_escalation",
                steps=[{**step(plan, 4), "depends_on": []}],
                missing=[{"kind": "capability", "detail": "Nobody can."}],
                candidates=[],
                partial_plan={"steps": []},
            ),
        ),
    ],
)
def test_faulty_plan_is_refused_with_code_and_pointer(
    token: str, code: str, pointer: str, change: Callable[[dict[str, Any]], object]
) -> None:
    earlier = send("POST", SUBMIT, token, {"plan": handmade()})[1]["plan_id"]
    before = kept()
    plan = copy.deepcopy(handmade())
    step(plan, 0)["estimated_cost"] = 0.01
    change(plan)
    if "replaces" in plan:
        plan["replaces"] = earlier

    status, problem = send("POST", SUBMIT, token, {"plan": plan})

    assert (status, problem["code"]) == (422, "plan_invalid")
    assert pointer in [error["pointer"] for error in problem["errors"]]
    assert code in [error["message"].split(":")[0] for error in problem["errors"]]
    assert kept() == before


def test_submitted_plan_has_its_cause(kee: Caller, token: str) -> None:
    first = send("POST", SUBMIT, token, {"plan": handmade()})[1]["receipt_id"]

    second = send("POST", SUBMIT, token, {"plan": handmade(), "caused_by_receipt_id": first})[1]["receipt_id"]

    with kee.acting():
        causes = dict(
            Receipt.objects.filter(event_type="plan_created").values_list("receipt_id", "caused_by__event_type")
        )
    assert (causes[first], causes[second]) == ("task_received", "plan_created")


def test_delegation_loop_is_refused(kee: Caller, token: str) -> None:
    assert send("POST", SUBMIT, token, {"plan": handmade()})[0] == 201
    with kee.acting():
        key = str(Delegate.objects.get().key)
    before = kept()
    status, problem = send("POST", SUBMIT, token, {"plan": handmade(delegation_path=[key])})
    assert (status, problem["code"], kept()) == (422, "delegation_loop", before)


def test_texts_for_readers_have_their_references_replaced(kee: Caller, token: str) -> None:
    steps = [
        call_step("a"),
        {
            "step_id": "both",
            "step_type": "aggregate",
            "aggregate_step_ids": ["a"],
            "synthesis_instructions": "Say {{a.text}} twice.",
            "executor": "principal",
        },
        {
            "step_id": "ask",
            "step_type": "escalate",
            "depends_on": ["both"],
            "report_summary": "It said {{a.text}}, of {{a.length}} letters.",
            "recommendation": "{{a.text}}",
            "decision_required": True,
        },
    ]
    plan_id = send("POST", SUBMIT, token, {"plan": handmade(steps=steps)})[1]["plan_id"]
    begun = send("POST", BASE, token, {"plan_id": plan_id})[1]["execution_id"]
    handed = {"result": {"text": "hello hello"}, "summary": "Said twice."}
    assert send("POST", f"{BASE}/{begun}/steps/both/result", token, handed)[0] == 200
    with kee.acting():
        combine, decide = Receipt.objects.filter(requires_action=True, source_system="executions").order_by("id")
    assert (combine.summary, combine.metadata["synthesis_instructions"]) == ("Say hello twice.", "Say hello twice.")
    assert decide.summary == "It said hello, of 5 letters."
    assert decide.metadata["recommendation"] == "hello"
