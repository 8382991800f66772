"""What is in another DeleGate's pool is not called by a DeleGate, nor by a plan that was made before it left."""

from typing import Any

import pytest

from apps.executions.models import Execution
from apps.plans import services as planning
from apps.plans.errors import OutsidePool
from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as_system
from apps.tasks.jobs.executor import work as execute_queue
from apps.tasks.models import Task
from tests.executions.making import REPORT, begin, call_step, make_plan, make_worker
from tests.executions.test_doors import BASE, send
from tests.executions.test_handler import queue_call, seen
from tests.executions.test_submitted_plans import SUBMIT, handmade
from tests.executions.workers import WorkerServer
from tests.factories import T0, make_caller, make_token


def put(tenant: Tenant, name: str, *, principal: str | None = None) -> Caller:
    """A DeleGate under the root, and who it acts as."""
    actor = make_caller(tenant, principal or name, Kind.DELEGATE)
    with make_caller(tenant, "boss").acting():
        planning.set_delegate(
            tenant_id=tenant.pk, delegate_id=name, principal=actor.name, parent="delegate", scope="", now=T0
        )
    return actor


@pytest.fixture
def code(tenant: Tenant) -> Caller:
    return put(tenant, "code")


@pytest.fixture
def data(tenant: Tenant, server: WorkerServer) -> Caller:
    """A sibling, with a worker of its own."""
    actor = put(tenant, "data")
    make_worker(actor, server)
    return actor


def call(token: str, mode: str = "direct") -> tuple[int, dict[str, Any]]:
    return send("POST", "/api/v1/workers/texter/tools/echo/call", token, {"params": {"text": "hello"}, "mode": mode})


@pytest.mark.parametrize("mode", ["auto", "direct", "async"])
def test_delegate_may_not_call_a_siblings_worker(
    tenant: Tenant, code: Caller, data: Caller, server: WorkerServer, mode: str
) -> None:
    status, problem = call(make_token(tenant, "code", Kind.DELEGATE), mode)

    assert (status, problem["code"]) == (403, "outside_pool")
    assert server.calls == {}
    with acting_as_system("test"):
        assert not Task.objects.exists()


def test_task_of_a_delegate_may_not_call_a_siblings_worker(code: Caller, data: Caller, server: WorkerServer) -> None:
    tasks = [queue_call(actor, "echo", {"text": "hello"}) for actor in (code, data)]

    execute_queue(code.tenant_id, "execute")

    refused, called = (seen(actor, task) for actor, task in zip((code, data), tasks, strict=True))
    assert (refused.status, refused.run_id, (refused.error or {})["code"]) == ("failed", 1, "outside_pool")
    assert called.status == "succeeded"
    assert server.calls == {"echo": 1}


def test_delegate_calls_its_own_pool(tenant: Tenant, code: Caller, data: Caller, server: WorkerServer) -> None:
    own, agent = make_token(tenant, "data", Kind.DELEGATE), make_token(tenant, "Kee")
    without = make_token(tenant, "general-manager", Kind.DELEGATE)

    assert [call(token)[0] for token in (own, agent, without)] == [200, 200, 200]


def test_plan_with_a_worker_outside_the_pool_is_not_begun(tenant: Tenant, kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server, "elsewhere")
    coder = make_caller(tenant, "code", Kind.DELEGATE)
    make_worker(coder, server)
    with kee.acting():
        plan_id = make_plan(kee, [call_step("a"), REPORT])
    put(tenant, "code")

    status, problem = send("POST", BASE, make_token(tenant, "Kee"), {"plan_id": plan_id})

    assert (status, problem["code"]) == (403, "outside_pool")
    assert "texter" in problem["detail"]
    with acting_as_system("test"):
        assert not Execution.objects.exists()
    with pytest.raises(OutsidePool):
        begin(kee, [], plan_id=plan_id)
    put(tenant, "code", principal="spare")
    assert send("POST", BASE, make_token(tenant, "Kee"), {"plan_id": plan_id})[0] == 201


def test_done_step_may_be_outside_the_pool(tenant: Tenant, kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server, "elsewhere")
    coder = make_caller(tenant, "code", Kind.DELEGATE)
    make_worker(coder, server)
    put(tenant, "code")
    with kee.acting():
        plan_id = make_plan(kee, [call_step("a", done=True), call_step("b", worker_id="elsewhere"), REPORT])
    assert begin(kee, [], plan_id=plan_id).plan_id == plan_id


def test_delegate_submits_only_plans_for_its_own_pool(
    tenant: Tenant, code: Caller, data: Caller, server: WorkerServer
) -> None:
    token = make_token(tenant, "code", Kind.DELEGATE)
    plan = handmade(principal_ai="code", delegate_id="data")

    status, problem = send("POST", SUBMIT, token, {"plan": plan})

    assert (status, problem["errors"][0]["pointer"]) == (422, "/plan/delegate_id")
    assert problem["errors"][0]["message"].startswith("outside_pool: ")
    within = handmade(principal_ai="data", delegate_id="data")
    assert send("POST", SUBMIT, make_token(tenant, "data", Kind.DELEGATE), {"plan": within})[0] == 201
