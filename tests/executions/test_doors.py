"""Executions over HTTP: the answers that clients rely on, and each named refusal."""

import json
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from apps.core.ids import parse_ref
from apps.executions import tools
from apps.executions.models import Execution
from apps.plans import services as planning
from apps.plans.models import Outcome
from apps.plans.services import PlanRequest
from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as_system
from apps.tasks.models import Task
from apps.workers.models import Call
from tests.executions.making import REPORT, call_step, do_task, example_steps, make_plan, make_worker, queue_step
from tests.executions.workers import WorkerServer
from tests.factories import T0, make_caller, make_token
from tests.memory.subjects import observations

BASE = "/api/v1/executions"


@pytest.fixture
def token(kee: Caller, tenant: Tenant) -> str:
    return make_token(tenant, "Kee")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Direct calls are waited for, however slow the machine is."""
    monkeypatch.setattr(tools, "_PATIENCE", timedelta(seconds=60))


def send(method: str, path: str, token: str, body: Any = None) -> tuple[int, dict[str, Any]]:
    answer = Client().generic(
        method,
        path,
        b"" if body is None else json.dumps(body).encode(),
        content_type="application/json",
        headers={"Authorization": f"Bearer {token}"},
    )
    return answer.status_code, answer.json()


def kee_tenant(kee: Caller) -> Tenant:
    with acting_as_system("test"):
        return Tenant.objects.get(pk=kee.tenant_id)


def plan_of(caller: Caller, steps: list[dict[str, Any]]) -> str:
    with caller.acting():
        return make_plan(caller, steps)


def counted() -> tuple[int, int, int]:
    with acting_as_system("test"):
        return Execution.objects.count(), Task.objects.count(), Call.objects.count()


@pytest.mark.usefixtures("patient")
def test_fast_steps_are_in_the_answer(kee: Caller, token: str, server: WorkerServer) -> None:
    make_worker(kee, server)
    plan_id = plan_of(kee, [call_step("step-1"), REPORT])

    status, answer = send("POST", BASE, token, {"plan_id": plan_id})

    assert (status, answer["status"], answer["async_tasks"]) == (201, "complete", [])
    (found,) = answer["direct_results"]
    assert found.pop("result_pointer").startswith("artifact:sha256-")
    assert found == {"step_id": "step-1", "text": "hello", "length": 5, "items": [1, 2, 3]}


@pytest.mark.usefixtures("patient")
def test_direct_result_has_step_id_and_pointer(kee: Caller, token: str, server: WorkerServer) -> None:
    make_worker(kee, server)
    steps = [
        call_step("a", "say", '{"step_id": "other", "x": 1}'),
        {**call_step("b", "flood"), "params": {"size": 70_000}},
    ]

    answer = send("POST", BASE, token, {"plan_id": plan_of(kee, [*steps, REPORT])})[1]

    said, flooded = answer["direct_results"]
    assert (said["step_id"], flooded["step_id"]) == ("a", "b")
    assert flooded.keys() == {"step_id", "result_pointer"}
    assert flooded["result_pointer"].startswith("artifact:sha256-")


@pytest.mark.usefixtures("patient")
def test_answer_is_partial_while_tasks_run(kee: Caller, token: str, server: WorkerServer) -> None:
    make_worker(kee, server)
    plan_id = plan_of(kee, [call_step("step-1"), queue_step("step-2", depends_on=["step-1"]), REPORT])

    status, answer = send("POST", BASE, token, {"plan_id": plan_id, "mode": "auto", "budget": {"max_total_cost": 1.0}})

    assert (status, answer["status"]) == (201, "partial")
    assert [task["step_id"] for task in answer["async_tasks"]] == ["step-2"]
    assert send("POST", BASE, token, {"plan_id": plan_id, "budget": {"max_total_cost": 1.0}})[1] == answer


def test_plan_is_executed_over_http(kee: Caller, token: str, tenant: Tenant, server: WorkerServer) -> None:
    make_worker(kee, server)
    plan_id = plan_of(kee, example_steps())
    before = send("GET", f"/api/v1/plans/{plan_id}/execution", token)
    assert (before[0], before[1]["status"], before[1]["steps_total"]) == (200, "not_started", 5)

    ref = send("POST", BASE, token, {"plan_id": plan_id})[1]["execution_id"]
    do_task(make_caller(tenant, "hands", Kind.WORKER), {"text": "found"})
    send("POST", BASE, token, {"plan_id": plan_id})
    result = {"result": {"all": "good"}, "summary": "All good."}
    status, moved = send("POST", f"{BASE}/{ref}/steps/step-4/result", token, result)
    assert (status, moved["status"], moved["step_status"]) == (200, "complete", "complete")

    status, report = send("GET", f"{BASE}/{ref}", token)
    assert status == 200
    assert (report["plan_id"], report["status"], report["summary"]) == (plan_id, "complete", "All good.")
    assert [line["step_id"] for line in report["results"]] == ["step-1", "step-3", "step-4"]
    assert {"step_id", "worker_id", "status", "key_findings", "result_pointer", "promotion_recommendation"} <= set(
        report["results"][0]
    )
    assert report["report"]["report_summary"] == "All done"
    assert send("GET", f"/api/v1/plans/{plan_id}/execution", token)[1] == report
    assert send("GET", BASE, token)[1]["executions"][0]["execution_id"] == ref


def test_incomplete_plan_is_refused(kee: Caller, token: str, server: WorkerServer) -> None:
    make_worker(kee, server)
    with kee.acting():
        request = PlanRequest(intent="Delete all files from the production server")
        plan_id = planning.create_plan(caller=kee, request=request, now=T0).plan_id

    answered, problem = send("POST", BASE, token, {"plan_id": plan_id})

    assert (answered, problem["code"]) == (409, "plan_refused")
    told = send("GET", f"/api/v1/plans/{plan_id}/execution", token)[1]
    assert (told["status"], told["execution_id"]) == ("needs_escalation", None)
    assert "nothing was done" in told["summary"]
    (action,) = told["next_actions"]
    assert "a worker that can do it" in action
    assert "execute_delegation_plan" not in action
    with kee.acting():
        assert counted() == (0, 0, 0)
        assert not Outcome.objects.exists()
        assert not observations().exists()


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("exec_1000000000000000", None, (404, "unknown_execution")),
        ("nonsense", None, (400, "malformed")),
        ("exec_1000000000000000/steps/a/result", {"result": 1, "summary": "x"}, (404, "unknown_execution")),
        ("{ref}/steps/nope/result", {"result": 1, "summary": "x"}, (404, "unknown_step")),
        ("{ref}/steps/report/result", {"result": 1, "summary": "x"}, (409, "step_not_open")),
        ("{ref}/steps/report/result", {"summary": "x"}, (422, "invalid")),
        ("{ref}/steps/report/result", {"result": 1, "result_pointer": "s3://x/y", "summary": "x"}, (422, "invalid")),
        ("{ref}/steps/report/decide", {"decision": "accept"}, (409, "step_not_open")),
        ("{ref}/cancel", {}, (409, "execution_ended")),
    ],
)
def test_refusal_has_its_code_and_changes_nothing(
    kee: Caller, token: str, path: str, body: dict[str, Any] | None, expected: tuple[int, str]
) -> None:
    plan_id = plan_of(kee, [REPORT])
    ref = send("POST", BASE, token, {"plan_id": plan_id})[1]["execution_id"]
    before = send("GET", f"{BASE}/{ref}", token)

    answered, problem = send("GET" if body is None else "POST", f"{BASE}/{path.format(ref=ref)}", token, body)

    assert (answered, problem["code"]) == expected
    assert send("GET", f"{BASE}/{ref}", token) == before


def test_list_is_paged(kee: Caller, token: str, tenant: Tenant) -> None:
    other = make_caller(tenant, "Dept")
    refs = [send("POST", BASE, token, {"plan_id": plan_of(kee, [REPORT])})[1]["execution_id"] for _ in range(5)]
    with acting_as_system("test"):
        Execution.objects.filter(pk__in=[parse_ref("exec", ref) for ref in refs[1::2]]).update(
            owner_id=other.principal_id
        )
    with other.acting():
        plan_id = make_plan(other, [REPORT])
    send("POST", BASE, make_token(tenant, "Dept"), {"plan_id": plan_id})

    pages, cursor = [], ""
    while cursor is not None:
        page = send("GET", f"{BASE}?limit=2{cursor and f'&cursor={cursor}'}", token)[1]
        pages.append([one["execution_id"] for one in page["executions"]])
        cursor = page["next"]

    newest_first = refs[::-1]
    assert pages == [newest_first[:2], newest_first[2:4], newest_first[4:]]
    assert send("GET", f"{BASE}?cursor=nonsense", token)[1]["code"] == "bad_cursor"


def test_tool_is_called_without_a_plan(kee: Caller, token: str, server: WorkerServer) -> None:
    make_worker(kee, server)
    path = "/api/v1/workers/texter/tools/echo/call"

    direct = send("POST", path, token, {"params": {"text": "hi"}})
    queued = send("POST", path, token, {"params": {"text": "hi"}, "mode": "async", "idempotency_key": "once"})
    again = send("POST", path, token, {"params": {"text": "hi"}, "mode": "async", "idempotency_key": "once"})

    assert (direct[0], direct[1]["status"], direct[1]["result"]["length"]) == (200, "complete", 2)
    assert (queued[0], queued[1]["status"], queued[1]["is_duplicate"]) == (200, "queued", False)
    assert (again[1]["task_id"], again[1]["is_duplicate"]) == (queued[1]["task_id"], True)
    assert server.calls == {"echo": 1}


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("nobody/tools/echo", {"params": {}}, (404, "unknown_worker")),
        ("texter/tools/nothing", {"params": {}}, (404, "unknown_tool")),
        ("texter/tools/echo", {"params": {"text": 5}}, (422, "invalid_params")),
        ("texter/tools/echo", {"params": {"text": 5}, "mode": "async"}, (422, "invalid_params")),
        (
            "texter/tools/echo",
            {"params": {"text": "x"}, "mode": "direct", "idempotency_key": "once"},
            (422, "direct_calls_are_not_kept"),
        ),
        (
            "texter/tools/echo",
            {"params": {"text": "x"}, "mode": "async", "execution_id": "exec_1000000000000000"},
            (404, "unknown_execution"),
        ),
        ("texter/tools/echo", {"params": {"text": "x" * 200_000}}, (413, "payload_too_large")),
        ("gone/tools/echo", {"params": {"text": "x"}}, (503, "worker_unreachable")),
        ("texter/tools/break_down", {"params": {}}, (422, "worker_refused")),
        ("barred/tools/echo", {"params": {"text": "x"}}, (403, "worker_barred")),
    ],
)
def test_faulty_call_is_refused_with_a_code(
    kee: Caller, server: WorkerServer, path: str, body: dict[str, Any], expected: tuple[int, str]
) -> None:
    token = make_token(kee_tenant(kee), "Kee")
    make_worker(kee, server)
    make_worker(kee, server, "gone", endpoint="http://127.0.0.1:9/mcp")
    make_worker(kee, server, "barred", side_effects={"filesystem": "write", "network": "none", "execution": "none"})

    answered, problem = send("POST", f"/api/v1/workers/{path}/call", token, body)

    assert (answered, problem["code"]) == expected
    assert not server.calls["echo"]
    assert counted()[:2] == (0, 0)
