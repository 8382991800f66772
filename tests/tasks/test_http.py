"""The verbs as workers and agents meet them over HTTP."""

import json
from typing import Any

import pytest
from django.test import Client

from apps.principals.models import Tenant
from apps.principals.scopes import Kind, Scope
from apps.principals.tenancy import Caller
from tests.factories import make_token
from tests.tasks.making import SCHEMA, make_type


@pytest.fixture
def agent(tenant: Tenant, kee: Caller) -> str:
    make_type(kee, schema=SCHEMA)
    return make_token(tenant, "Kee")


@pytest.fixture
def worker(tenant: Tenant) -> str:
    return make_token(tenant, "W", Kind.WORKER)


def send(token: str, path: str, body: dict[str, Any] | None = None, *, method: str = "POST") -> tuple[int, Any]:
    answer = Client().generic(
        method,
        f"/api/v1/{path}",
        data=json.dumps(body) if body is not None else "",
        content_type="application/json",
        headers={"Authorization": f"Bearer {token}"},
    )
    return answer.status_code, answer.json() if answer.content else None


def get(token: str, path: str) -> tuple[int, Any]:
    return send(token, path, method="GET")


def test_a_task_goes_all_the_way(agent: str, worker: str) -> None:
    asked = {"task_type": "index", "params": {"path": "/x"}, "idempotency_key": "k"}
    status, queued = send(agent, "tasks", asked)
    assert (status, queued["task_id"][:5], queued["is_duplicate"]) == (201, "task_", False)
    assert send(agent, "tasks", asked) == (200, {**queued, "is_duplicate": True})
    task = queued["task_id"]

    status, leased = send(worker, "tasks/lease", {"queues": ["default"], "capacity": 5})
    (given,) = leased["tasks"]
    assert (status, given["task_id"], given["run_id"], given["params"]) == (200, task, 1, {"path": "/x"})
    assert send(worker, "tasks/lease", {"queues": ["default"]}) == (204, None)

    token = {"lease_token": given["lease_token"]}
    beat = {"leases": [{"task_id": task, **token, "progress": {"percent": 50}, "checkpoint": {"at": 1}}]}
    status, beaten = send(worker, "tasks/heartbeat", beat)
    assert (status, beaten["results"][0]["status"], beaten["results"][0]["order"]) == (200, "ok", "continue")
    status, found = get(agent, f"tasks/{task}")
    assert (status, found["status"], found["complete"], found["progress"]["percent"]) == (200, "leased", False, 50)
    assert get(agent, f"tasks/{task}/result")[0] == 409
    assert send(agent, f"tasks/{task}/cancel")[0] == 202

    done = {**token, "result": {"text": "x" * 70_000}, "summary": "Indexed."}
    status, completed = send(worker, f"tasks/{task}/complete", done)
    assert (status, completed["status"]) == (200, "succeeded")
    assert send(worker, f"tasks/{task}/complete", done) == (200, completed)
    assert send(worker, f"tasks/{task}/complete", {**token, "result": 1})[0] == 409
    assert send(worker, f"tasks/{task}/release", token)[0] == 409
    assert send(worker, f"tasks/{task}/heartbeat", token)[0] == 409

    status, result = get(agent, f"tasks/{task}/result")
    assert (status, result["result_channel"], result["content"]) == (200, "artifact", done["result"])
    digest = result["result_pointer"].removeprefix("artifact:")
    status, artifact = get(worker, f"artifacts/{digest}")
    assert (status, artifact["content"], artifact["checksum"]) == (200, done["result"], result["checksum"])
    status, story = get(agent, f"tasks/{task}/timeline")
    assert [event["event"] for event in story["events"]][-2:] == ["succeeded", "fetched"]
    assert get(agent, "queues")[1]["queues"][0]["queued"] == 0


@pytest.mark.parametrize(
    ("status", "code", "body"),
    [
        (404, "unknown_task_type", {"task_type": "nothing"}),
        (422, "invalid_params", {"task_type": "index", "params": {"path": 1}}),
        (422, "invalid", {"task_type": "index", "params": {"path": "/x"}, "priority": 11}),
        (422, "invalid", {"task_type": "index", "params": {"path": "/x"}, "run_at": "2030-01-01T00:00:00"}),
        (422, "invalid", {"task_type": "index", "unknown": 1}),
        (422, "invalid", {"task_type": "index", "params": {"path": "/x"}, "queue": "a/b"}),
        (422, "unstorable_json", {"task_type": "index", "params": {"path": "\x00"}}),
        (413, "params_too_large", {"task_type": "index", "params": {"path": "x" * 300_000}}),
        (413, "body_too_large", {"task_type": "index", "params": {"path": "x" * 1_000_000}}),
        (404, "unknown_recipient", {"task_type": "index", "params": {"path": "/x"}, "recipient_ai": "Nobody"}),
    ],
)
def test_wrong_requests_are_refused_by_name(agent: str, status: int, code: str, body: dict[str, Any]) -> None:
    answered, problem = send(agent, "tasks", body)
    assert (answered, problem["code"]) == (status, code)
    assert get(agent, "queues")[1]["queues"][0]["queued"] == 0


def test_what_no_address_could_hold_gets_no_task_type(tenant: Tenant, agent: str) -> None:
    owner = make_token(tenant, "Owner", scopes=[Scope.ADMIN, Scope.TASKS_QUEUE])
    for draft in ({"name": "a/b"}, {"name": ".."}, {"name": "parse", "queue": "a/b"}):
        answered, problem = send(owner, "task-types", draft)
        assert (answered, problem["code"]) == (422, "invalid")
    assert [one["name"] for one in get(agent, "task-types")[1]["task_types"]] == ["index"]


def test_a_worker_cannot_queue_and_a_forged_token_is_refused(agent: str, worker: str) -> None:
    assert send(worker, "tasks", {"task_type": "index", "params": {"path": "/x"}})[0] == 403
    forged = {"lease_token": f"lt_1.1.{'A' * 43}", "result": 1}
    assert send(worker, "tasks/task_1/complete", forged)[1]["code"] == "bad_lease_token"
    assert send(worker, "tasks/nonsense/complete", forged)[0] == 400
    assert get(agent, "tasks/task_1000000000000000")[0] == 404
    assert get(agent, f"artifacts/sha256-{'0' * 64}")[0] == 404
