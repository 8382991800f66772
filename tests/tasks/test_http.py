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


def test_a_heartbeat_that_arrives_late_takes_no_newer_checkpoint_away(agent: str, worker: str) -> None:
    task = send(agent, "tasks", {"task_type": "index", "params": {"path": "/x"}})[1]["task_id"]
    (held,) = send(worker, "tasks/lease", {"queues": ["default"]})[1]["tasks"]
    token = {"lease_token": held["lease_token"]}

    def beat(n: int) -> dict[str, Any]:
        return {**token, "progress": {"percent": n}, "checkpoint": {"n": n}, "sequence": n}

    for n in (1, 2):
        assert send(worker, f"tasks/{task}/heartbeat", beat(n))[0] == 200
    assert send(worker, f"tasks/{task}/heartbeat", beat(1))[0] == 200
    status, beaten = send(worker, "tasks/heartbeat", {"leases": [{"task_id": task, **beat(1)}]})
    assert (status, beaten["results"][0]["status"]) == (200, "ok")
    assert get(agent, f"tasks/{task}")[1]["progress"]["percent"] == 2
    for wrong in (-1, 2**53, "3", 1.5, True):
        assert send(worker, f"tasks/{task}/heartbeat", {**token, "sequence": wrong})[0] == 422, wrong

    send(worker, f"tasks/{task}/release", token)
    (held,) = send(worker, "tasks/lease", {"queues": ["default"]})[1]["tasks"]
    assert held["checkpoint"] == {"n": 2}


def test_a_run_fails_and_is_retried(agent: str, worker: str) -> None:
    task = send(agent, "tasks", {"task_type": "index", "params": {"path": "/x"}})[1]["task_id"]
    given = send(worker, "tasks/lease", {"task_types": ["index"]})[1]["tasks"][0]
    failed = {"lease_token": given["lease_token"], "error": {"code": "x", "message": "y"}, "retryable": True}
    status, verdict = send(worker, f"tasks/{task}/fail", {**failed, "retry_after": 60})
    assert (status, verdict["status"], verdict["will_retry"]) == (200, "scheduled", True)
    assert send(worker, f"tasks/{task}/fail", {**failed, "retry_after": 60}) == (200, verdict)
    assert send(agent, f"tasks/{task}/cancel") == (200, {"task_id": task, "status": "canceled"})


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


def test_a_type_is_registered_and_listed(agent: str) -> None:
    status, made = send(agent, "task-types", {"name": "mine", "params_schema": {"type": "object"}, "max_attempts": 7})
    assert (status, made["name"], made["max_attempts"]) == (201, "mine", 7)
    assert send(agent, "task-types", {"name": "mine"})[0] == 200
    assert send(agent, "task-types", {"name": "bad", "params_schema": {"type": 3}})[1]["code"] == "invalid_schema"
    assert [found["name"] for found in get(agent, "task-types")[1]["task_types"]] == ["index", "mine"]


def test_many_are_queued_done_and_leased_in_few_requests(agent: str, worker: str) -> None:
    task = {"task_type": "index", "params": {"path": "/x"}}
    batch = {"tasks": [{**task, "idempotency_key": "k"}, {**task, "params": {"path": 1}}, task, task, task]}
    status, queued = send(agent, "tasks/batch", batch)
    assert (status, [one["status"] for one in queued["results"]]) == (200, ["queued", "refused", *["queued"] * 3])
    assert (queued["results"][1]["code"], queued["results"][1]["errors"][0]["pointer"]) == (
        "invalid_params",
        "/params/path",
    )
    assert send(agent, "tasks/batch", {"tasks": [{**task, "idempotency_key": "k"}]})[1]["results"][0] == {
        **queued["results"][0],
        "is_duplicate": True,
    }
    assert send(worker, "tasks/batch", batch)[0] == 403
    assert send(agent, "tasks/batch", {"tasks": [task] * 1001})[0] == 422

    first, second = send(worker, "tasks/lease", {"queues": ["default"], "capacity": 2})[1]["tasks"]
    one, two = ({"task_id": given["task_id"], "lease_token": given["lease_token"]} for given in (first, second))
    forged = {"task_id": first["task_id"], "lease_token": f"lt_1.1.{'A' * 43}"}
    done = {"completions": [{**one, "result": 1}, forged], "lease_next": 5}
    status, completed = send(worker, "tasks/complete", done)
    assert [one.get("code") for one in completed["results"]] == [None, "bad_lease_token"]
    assert (status, len(completed["next"])) == (200, 2)
    status, again = send(worker, "tasks/complete", done)
    assert (status, again["results"]) == (200, completed["results"])
    assert [one["lease_token"] for one in again["next"]] == [one["lease_token"] for one in completed["next"]]

    path = f"tasks/{two['task_id']}/complete"
    status, finished = send(worker, path, {"lease_token": two["lease_token"], "lease_next": 1})
    assert (status, finished["status"], finished["next"]) == (200, "succeeded", [])
    third, fourth = ({"task_id": given["task_id"], "lease_token": given["lease_token"]} for given in completed["next"])
    error = {"error": {"code": "x", "message": "y"}, "retryable": False}
    answers = send(worker, "tasks/fail", {"failures": [{**third, **error}, {**one, **error}]})[1]["results"]
    assert [(answer["status"], answer["code"]) for answer in answers] == [
        ("failed", None),
        ("refused", "already_decided"),
    ]
    (answer,) = send(worker, "tasks/release", {"releases": [fourth]})[1]["results"]
    assert (answer["status"], answer["will_retry"]) == ("queued", True)
    assert send(worker, "tasks/release", {"releases": []})[0] == 422
