"""Executions, submitted plans and single calls over HTTP, plans of forgotten subjects, and what operators see."""

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.core.files.storage import storages
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from mcp.types import Tool, ToolAnnotations

from apps.core import erasure
from apps.core.ids import parse_ref
from apps.core.sql import database_now
from apps.executions import calls, reports, tools
from apps.executions.models import Execution, ExecutionStep
from apps.memory import services as memory
from apps.plans import selectors as plans
from apps.plans import services as planning
from apps.plans.documents import plan_hash
from apps.plans.models import Plan
from apps.plans.shapes import CreatePlan
from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from apps.receipts.models import Obligation, Receipt
from apps.tasks.models import Task
from apps.tasks.results import artifact_digest
from apps.tasks.selectors import place_of
from apps.workers import services as registry
from tests.console.test_site import SENT
from tests.executions.making import (
    REPORT,
    advance,
    begin,
    call_step,
    do_task,
    example_steps,
    handmade,
    make_plan,
    make_worker,
    open_obligations,
    queue_step,
    report,
    run,
    statuses,
)
from tests.executions.workers import WorkerServer
from tests.factories import T0, ask, make_caller, make_token, refused
from tests.memory.subjects import add, observations
from tests.workers.servers import McpServer, serving

BASE = "/api/v1/executions"


@pytest.fixture
def token(kee: Caller, tenant: Tenant, server: WorkerServer) -> str:
    """Kee's token; the worker `texter` is registered."""
    make_worker(kee, server)
    return make_token(tenant, "Kee")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Direct calls are waited for, however slow the machine is."""
    monkeypatch.setattr(tools, "_PATIENCE", timedelta(seconds=60))


def plan_of(caller: Caller, steps: list[dict[str, Any]]) -> str:
    with caller.acting():
        return make_plan(caller, steps)


@pytest.mark.usefixtures("patient")
def test_fast_steps_are_in_the_answer(kee: Caller, token: str, server: WorkerServer) -> None:
    flood = {**call_step("c", "flood"), "params": {"size": 70_000}}
    steps = [call_step("a"), call_step("b", "say", '{"step_id": "other", "x": 1}'), flood]

    status, answer = ask("POST", BASE, token, {"plan_id": plan_of(kee, [*steps, REPORT])})

    assert (status, answer["status"], answer["async_tasks"]) == (201, "complete", [])
    assert all(one.pop("result_pointer").startswith("artifact:sha256-") for one in answer["direct_results"])
    assert answer["direct_results"] == [
        {"step_id": "a", "text": "hello", "length": 5, "items": [1, 2, 3]},
        {"step_id": "b", "x": 1},
        {"step_id": "c"},
    ]


def test_plan_is_executed_over_http(kee: Caller, token: str, tenant: Tenant, server: WorkerServer) -> None:
    plan_id = plan_of(kee, example_steps())
    before = ask("GET", f"/api/v1/plans/{plan_id}/execution", token)
    assert (before[0], before[1]["status"], before[1]["steps_total"]) == (200, "not_started", 5)

    ref = ask("POST", BASE, token, {"plan_id": plan_id})[1]["execution_id"]
    do_task(make_caller(tenant, "hands", Kind.WORKER), {"text": "found"})
    ask("POST", BASE, token, {"plan_id": plan_id})
    result = {"result": {"all": "good"}, "summary": "All good."}
    status, moved = ask("POST", f"{BASE}/{ref}/steps/step-4/result", token, result)
    assert (status, moved["status"], moved["step_status"]) == (200, "complete", "complete")

    status, report = ask("GET", f"{BASE}/{ref}", token)
    assert status == 200
    assert (report["plan_id"], report["status"], report["summary"]) == (plan_id, "complete", "All good.")
    assert [line["step_id"] for line in report["results"]] == ["step-1", "step-3", "step-4"]
    assert {"step_id", "worker_id", "status", "key_findings", "result_pointer", "promotion_recommendation"} <= set(
        report["results"][0]
    )
    assert report["report"]["report_summary"] == "All done"
    assert ask("GET", f"/api/v1/plans/{plan_id}/execution", token)[1] == report
    assert ask("GET", BASE, token)[1]["executions"][0]["execution_id"] == ref


def test_incomplete_plan_is_refused(kee: Caller, token: str, server: WorkerServer) -> None:
    with kee.acting():
        given = CreatePlan(intent="Sell the moon")
        plan_id = planning.create_plan(caller=kee, given=given, now=T0).plan_id

    answered, problem = ask("POST", BASE, token, {"plan_id": plan_id})

    assert (answered, problem["code"]) == (409, "plan_refused")
    told = ask("GET", f"/api/v1/plans/{plan_id}/execution", token)[1]
    assert (told["status"], told["execution_id"]) == ("needs_escalation", None)
    assert "nothing was done" in told["summary"]
    (action,) = told["next_actions"]
    assert "an MCP worker that can do it" in action
    assert "execute_delegation_plan" not in action
    with kee.acting():
        assert not Execution.objects.exists()
        assert not Plan.objects.exclude(completed=None).exists()
        assert not observations().exists()


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("nonsense", None, (400, "malformed")),
        ("{ref}/steps/report/result", {"summary": "x"}, (422, "invalid")),
        ("{ref}/steps/report/result", {"result": 1, "result_pointer": "s3://x/y", "summary": "x"}, (422, "invalid")),
        ("{ref}/steps/nope/result", {"result": 1, "summary": "x"}, (404, "unknown_step")),
        ("{ref}/steps/report/result", {"result": 1, "summary": "x"}, (409, "step_not_open")),
        ("{ref}/steps/report/decide", {"decision": "accept"}, (409, "step_not_open")),
        ("{ref}/cancel", {}, (409, "execution_ended")),
    ],
)
def test_refusal_has_its_code_and_changes_nothing(
    kee: Caller, token: str, path: str, body: dict[str, Any] | None, expected: tuple[int, str]
) -> None:
    ref = ask("POST", BASE, token, {"plan_id": plan_of(kee, [REPORT])})[1]["execution_id"]
    before = ask("GET", f"{BASE}/{ref}", token)

    answered, problem = ask("GET" if body is None else "POST", f"{BASE}/{path.format(ref=ref)}", token, body)

    assert (answered, problem["code"]) == expected
    assert ask("GET", f"{BASE}/{ref}", token) == before
    assert not storages["artifacts"].exists(place_of(kee.tenant_id, artifact_digest(calls.pointer_to(1))))


def test_list_is_paged(kee: Caller, token: str, tenant: Tenant) -> None:
    refs = [ask("POST", BASE, token, {"plan_id": plan_of(kee, [REPORT])})[1]["execution_id"] for _ in range(5)]
    dept = make_caller(tenant, "Dept")
    with acting_as_system("test"):
        Execution.objects.filter(pk=parse_ref("exec", refs[1])).update(owner_id=dept.principal_id)
    ask("POST", BASE, make_token(tenant, "Dept"), {"plan_id": plan_of(dept, [REPORT])})

    pages, cursor = [], ""
    while cursor is not None:
        page = ask("GET", f"{BASE}?limit=2{cursor and f'&cursor={cursor}'}", token)[1]
        pages.append([one["execution_id"] for one in page["executions"]])
        cursor = page["next"]

    assert pages == [refs[:2:-1], refs[2:0:-1], refs[:1]]


def test_tool_is_called_without_a_plan(kee: Caller, token: str, server: WorkerServer) -> None:
    path = "/api/v1/workers/texter/tools/echo/call"

    direct = ask("POST", path, token, {"params": {"text": "hi"}})
    queued = ask("POST", path, token, {"params": {"text": "hi"}, "mode": "async", "idempotency_key": "once"})
    again = ask("POST", path, token, {"params": {"text": "hi"}, "mode": "async", "idempotency_key": "once"})

    assert (direct[0], direct[1]["status"], direct[1]["result"]["length"]) == (200, "complete", 2)
    assert (queued[0], queued[1]["status"], queued[1]["is_duplicate"]) == (200, "queued", False)
    assert (again[1]["task_id"], again[1]["is_duplicate"]) == (queued[1]["task_id"], True)
    assert server.calls == {"echo": 1}


SUBMIT = "/api/v1/plans/submit"


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("nobody/tools/echo", {"params": {}}, (404, "unknown_worker")),
        ("texter/tools/nothing", {"params": {}}, (404, "unknown_tool")),
        ("texter/tools/echo", {"params": {"text": 5}, "mode": "async"}, (422, "invalid_params")),
        (
            "texter/tools/echo",
            {"params": {"text": "x"}, "mode": "direct", "idempotency_key": "once"},
            (422, "direct_calls_are_not_kept"),
        ),
        ("gone/tools/echo", {"params": {"text": "x"}}, (503, "worker_unreachable")),
        ("texter/tools/break_down", {"params": {}}, (422, "worker_refused")),
        ("barred/tools/echo", {"params": {"text": "x"}}, (403, "worker_barred")),
    ],
)
def test_faulty_call_is_refused_with_a_code(
    kee: Caller, token: str, server: WorkerServer, *, path: str, body: dict[str, Any], expected: tuple[int, str]
) -> None:
    make_worker(kee, server, "gone", endpoint="http://127.0.0.1:9/mcp")
    make_worker(kee, server, "barred", side_effects={"filesystem": "write", "network": "none", "execution": "none"})

    answered, problem = ask("POST", f"/api/v1/workers/{path}/call", token, body)

    assert (answered, problem["code"]) == expected
    assert not server.calls["echo"]
    with acting_as_system("test"):
        assert not Task.objects.exists()


def test_submitted_plan_is_stored_as_given(kee: Caller, token: str) -> None:
    made = ask("POST", SUBMIT, token, {"plan": handmade()})[1]

    plan, given = made["plan"], handmade()
    told = {"steps", "plan_id", "created_at"}
    assert {name: plan[name] for name in given if name not in told} == {
        name: value for name, value in given.items() if name not in told
    }
    bare = [{name: value for name, value in step.items() if name != "tool_uid"} for step in plan["steps"]]
    assert bare == [{"depends_on": [], **step} for step in given["steps"]]
    assert [len(step.get("tool_uid", "")) for step in plan["steps"]] == [32, 0, 32, 0, 0]
    assert (plan["proposer"], plan["plan_hash"]) == ("submitted", plan_hash(plan))
    assert plan["plan_id"] == made["plan_id"] != "my-plan"
    assert plan["estimated_total_runtime_seconds"] > 0
    found = ask("GET", f"/api/v1/plans/{made['plan_id']}", token)[1]
    assert found == made
    assert ask("POST", "/api/v1/plans/validate", token, {"plan": plan})[1]["valid"]
    with kee.acting():
        receipt = Receipt.objects.get(receipt_id=made["receipt_id"])
    assert (receipt.event_type, receipt.metadata["submitted"], receipt.surface) == ("plan_created", True, "ledger")


REFUSAL: dict[str, Any] = {
    "status": "needs_escalation",
    "steps": [{**handmade()["steps"][4], "depends_on": []}],
    "missing": [{"kind": "capability", "detail": "Nobody can."}],
    "partial_plan": {"steps": []},
}


@pytest.mark.parametrize(
    ("code", "pointer", "changes"),
    [
        ("plan_hash", "/plan/plan_hash", {"plan_hash": "0" * 64}),
        ("unknown_delegate", "/plan/delegate_id", {"delegate_id": "nobody"}),
        ("another_principal", "/plan/principal_ai", {"principal_ai": "Lee"}),
        ("replaces", "/plan/excluded", {"excluded": []}),
        ("budget", "/plan/steps", {"constraints": {"budget": {"max_total_cost": 0}}}),
        ("not_ready", "/plan/status", REFUSAL),
    ],
)
def test_faulty_submitted_plan_is_refused(token: str, code: str, pointer: str, changes: dict[str, Any]) -> None:
    plan = handmade()
    plan["steps"][0]["estimated_cost"] = 0.01

    status, problem = ask("POST", SUBMIT, token, {"plan": {**plan, **changes}})

    assert (status, problem["code"]) == (422, "plan_invalid")
    assert pointer in [error["pointer"] for error in problem["errors"]]
    assert code in [error["message"].split(":")[0] for error in problem["errors"]]
    with acting_as_system("test"):
        assert not Plan.objects.exists()


def test_submitted_plan_may_not_replace_another(token: str) -> None:
    earlier = ask("POST", SUBMIT, token, {"plan": handmade()})[1]["plan_id"]

    problem = ask("POST", SUBMIT, token, {"plan": handmade(replaces=earlier)})[1]

    assert [error["pointer"] for error in problem["errors"]] == ["/plan/replaces"]


def test_delegation_loop_is_refused(kee: Caller, token: str) -> None:
    assert ask("POST", SUBMIT, token, {"plan": handmade()})[0] == 201
    with kee.acting():
        key = planning._key(plans.delegate_named("delegate"))
    status, problem = ask("POST", SUBMIT, token, {"plan": handmade(delegation_path=[key])})
    assert (status, problem["code"]) == (422, "delegation_loop")


EVE = "USER:eve"


def forget(caller: Caller, reference: str = EVE) -> None:
    with acting_as_system("test"), erasure.redacting():
        erasure.erase(caller.tenant_id, reference)


def test_forgotten_plan_is_not_begun_and_its_obligation_is_closed(kee: Caller) -> None:
    with kee.acting():
        plan_id = make_plan(kee, [call_step("a"), REPORT], intent=EVE)
        kept = make_plan(kee, [REPORT])

    forget(kee)

    with kee.acting():
        assert not plans.plan(plan_id).is_ready
    with refused("plan_abandoned"):
        begin(kee, [], plan_id=plan_id)
    with acting_as_system("test"):
        assert (kee.tenant_id, plan_id) in plans.expired(limit=9)
    with kee.acting():
        assert planning.abandon_expired(plan_id=plan_id, now=database_now())
        owed = Obligation.objects.filter(closed_at=None).values_list("receipt__receipt_id", flat=True)
        assert list(owed) == [plans.plan(kept).receipt_id]


def test_execution_of_a_forgotten_plan_is_still_answered(kee: Caller) -> None:
    with kee.acting():
        plan_id = make_plan(kee, [REPORT], intent=EVE)
    begun = begin(kee, [], plan_id=plan_id)

    forget(kee)

    assert begin(kee, [], plan_id=plan_id).pk == begun.pk


def test_decision_without_its_text_is_still_asked_for(kee: Caller) -> None:
    asking = {**REPORT, "decision_required": True, "report_summary": EVE}
    execution = begin(kee, [asking])

    forget(kee)
    advance(execution)

    assert statuses(kee, execution) == {"report": "awaiting"}
    assert report(kee, execution).status == "needs_escalation"


@pytest.mark.parametrize("told", [{"scope": EVE}, {"constraints": {"exclude_workers": [EVE]}}, {"assumptions": [EVE]}])
def test_no_member_of_a_plan_keeps_a_forgotten_id(kee: Caller, token: str, told: dict[str, Any]) -> None:
    plan_id = ask("POST", SUBMIT, token, {"plan": handmade(steps=[call_step("a"), REPORT], **told)})[1]["plan_id"]
    with kee.acting():
        add(kee, EVE)
        assert memory.forget(author=kee, subject_id=EVE, now=T0).remaining == {}
    status, answer = ask("GET", f"/api/v1/plans/{plan_id}", token)
    assert (status, EVE in json.dumps(answer)) == (200, False)
    (listed,) = ask("GET", "/api/v1/plans", token)[1]["plans"]
    assert (listed["intent"], listed["can_be_begun"]) == ("", False)


def test_plans_and_executions_are_listed_by_status_and_time(kee: Caller, token: str, texter: WorkerServer) -> None:
    run(kee, [call_step("a"), REPORT])
    later = (timezone.now() + timedelta(hours=1)).isoformat().replace("+", "%2B")
    for base, name, there, absent in (
        (BASE, "executions", "complete", "failed"),
        ("/api/v1/plans", "plans", "ready", "needs_input"),
    ):
        found = [
            len(ask("GET", f"{base}?{query}", token)[1][name])
            for query in ("", f"status={there}", f"status={absent}", f"since={later}")
        ]
        assert found == [1, 1, 0, 0]
        assert ask("GET", f"{base}?status=no_such", token)[0] == 422


def test_console_shows_the_steps_and_why_one_failed(kee: Caller, texter: WorkerServer, console: Client) -> None:
    steps = [
        queue_step("step-0", critical=False),
        call_step("step-1", "break_down", critical=True),
        call_step("step-2", depends_on=["step-1"]),
    ]
    execution = run(kee, [*steps, REPORT])
    with acting_as_system("test"):
        queued, failed = ExecutionStep.objects.filter(step_id__in=["step-0", "step-1"]).order_by("position")
        why = reports.outcome(failed)

    page = console.get(reverse("admin:executions_execution_change", args=[execution.pk])).content.decode()
    listing = console.get(reverse("admin:executions_execution_changelist")).content.decode()
    of_step = console.get(reverse("admin:executions_executionstep_change", args=[failed.pk]))

    assert reverse("admin:tasks_task_change", args=[queued.task_id]) in page
    assert "/receipts/receipt/" in page
    assert (execution.ref in listing, of_step.status_code) == (True, 200)
    assert "out of paper" in why
    text = " ".join(unescape(re.sub(r"<[^>]+>", " ", page)).split())
    assert f"step-1 (call_worker) Change Failed {why}" in text


def test_operator_answers_what_waits_for_the_owner(kee: Caller, texter: WorkerServer, console: Client) -> None:
    decide = {**REPORT, "decision_required": True, "report_summary": "Shall <i>we</i>?", "depends_on": ["a"]}

    def page(execution: Execution) -> str:
        return console.get(reverse("admin:executions_execution_change", args=[execution.pk])).content.decode()

    def buttons(execution: Execution) -> set[str]:
        names = ("accept", "reject", "cancel")
        return {name for name in names if f"/{name.replace('_', '-')}" in page(execution)}

    def act(execution: Execution, name: str, step_id: str | None = None, **given: str) -> str:
        with acting_as(kee):
            step = ExecutionStep.objects.filter(execution=execution, step_id=step_id).first()
        sent = {**SENT, "step": "" if step is None else step.pk, **given}
        answer = console.post(reverse(f"admin:executions_execution_{name}", args=[execution.pk]), sent)
        return " ".join(unescape(re.sub(r"<[^>]+>", " ", answer.content.decode())).split()) or page(execution)

    execution, other, third = (run(kee, [call_step("a"), decide]) for _ in range(3))
    assert buttons(execution) == {"accept", "reject", "cancel"}
    assert "Shall &lt;i&gt;we&lt;/i&gt;?" in page(execution)
    with acting_as(kee):
        (step,) = ExecutionStep.objects.filter(execution=execution, step_id="report")
    assert f'<a href="{reverse("admin:executions_executionstep_change", args=[step.pk])}"' in page(execution)

    act(execution, "accept", "report")
    act(other, "reject", "report")
    act(third, "cancel")
    with acting_as(kee):
        found = {one.pk: (one.status, one.halted_why) for one in Execution.objects.all()}
    assert found == {
        execution.pk: ("complete", ""),
        other.pk: ("failed", "report was rejected: By an operator: ticket 7"),
        third.pk: ("canceled", "By an operator: ticket 7"),
    }
    assert [buttons(one) for one in (execution, other, third)] == [set(), set(), set()]
    assert (open_obligations(kee), LogEntry.objects.count()) == (0, 3)


CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
RESULT = {"type": "object", "properties": {"result": {"type": "string"}}}


def make_tool(name: str, description: str, *, reads: bool) -> Tool:
    hints = ToolAnnotations(read_only_hint=reads)
    return Tool(name=name, description=description, input_schema=CITY, output_schema=RESULT, annotations=hints)


@pytest.fixture
def town(kee: Caller) -> Iterator[McpServer]:
    with serving(name="Town") as served:
        served.structured = {"result": "It is sunny."}
        served.tools = [
            make_tool("get_weather", "Get the current weather in a city.", reads=True),
            make_tool("close_city", "Close a city for cars.", reads=False),
        ]
        seen = registry.visit(served.endpoint)
        with acting_as(kee):
            principal = registry.principal_for_servers(tenant_id=kee.tenant_id)
            uids = [tool.tool_uid for tool in registry.shown(served.endpoint, seen).tools]
            registry.add_server(principal=principal, url=served.endpoint, seen=seen, approve=uids, why="test")
        yield served


@pytest.mark.django_db(transaction=True)
def test_reading_request_is_answered_in_one_call_and_in_the_inbox(kee: Caller, tenant: Tenant, town: McpServer) -> None:
    headers = {"Authorization": f"Bearer {make_token(tenant, 'Kee')}"}
    asked = {"intent": "What is the weather in Vienna?"}
    told = Client().post("/api/v1/requests", asked, content_type="application/json", headers=headers).json()

    assert told["execution"]["status"] == "complete"
    assert told["execution"]["direct_results"][0]["result"] == "It is sunny."
    entry = Client().get("/api/v1/inbox", headers=headers).json()["entries"][-1]
    assert (entry["title"], entry["summary"]) == ("Plan complete: What is the weather in Vienna?", "It is sunny.")


@pytest.mark.django_db(transaction=True)
def test_guess_is_not_acted_on_without_a_confirmation(kee: Caller, tenant: Tenant, town: McpServer) -> None:
    headers = {"Authorization": f"Bearer {make_token(tenant, 'Kee')}"}
    asked = {"intent": "Shut Vienna for cars"}
    told = Client().post("/api/v1/requests", asked, content_type="application/json", headers=headers)

    assert told.json()["execution"] is None
    assert told.json()["status"] != "ready"
    assert not {"get_weather", "close_city"} & set(town.asked)
