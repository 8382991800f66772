"""The registry over HTTP, and the list of workers."""

import json
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as_system
from apps.workers import selectors
from apps.workers.models import Worker
from tests.factories import make_token
from tests.workers.factories import make_manifest, register

HEARTBEAT = {"status": "healthy", "current_load": 0.3, "available": True}


@pytest.fixture
def token(tenant: Tenant) -> str:
    return make_token(tenant, "code-analyzer-001", Kind.WORKER)


def post(path: str, body: Any, token: str) -> tuple[int, dict[str, Any]]:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = Client().post(path, text, content_type="application/json", headers={"Authorization": f"Bearer {token}"})
    return answer.status_code, answer.json()


def stored() -> int:
    with acting_as_system("test"):
        return Worker.objects.count()


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"worker_id": None}, 422, "invalid"),
        ({"worker_id": "a b"}, 422, "invalid"),
        ({"worker_id": "a\u0000"}, 422, "unstorable_json"),
        ({"endpoint": "https://10.0.0.1/mcp"}, 422, "unusable_endpoint"),
        ({"tools": []}, 422, "invalid"),
        ({"tools": "all"}, 422, "invalid"),
        ({"tools": [{"name": "t"}]}, 422, "invalid"),
        ({"tools": [{"name": "t", "input_schema": {"type": "nonsense"}}]}, 422, "unusable_schema"),
        ({"capabilities": [1]}, 422, "invalid"),
        ({"constraints": {"max_payload_bytes": 2**53}}, 422, "invalid"),
        ({"constraints": {"rate_limit": 2**53}}, 422, "invalid"),
        ({"trust": {"tier": "divine"}}, 422, "invalid"),
        ({"surprise": 1}, 422, "invalid"),
    ],
)
def test_bad_registration_is_refused(token: str, change: dict[str, Any], status: int, code: str) -> None:
    found, answer = post("/workers/register", make_manifest(**change), token)

    assert (found, answer["code"]) == (status, code)
    assert stored() == 0


def test_worker_is_registered_listed_read_found_and_removed(token: str) -> None:
    answers = [post("/workers/register", make_manifest(), token) for _ in range(2)]
    beaten = post("/workers/code-analyzer-001/heartbeat", HEARTBEAT, token)
    headers = {"Authorization": f"Bearer {token}"}

    listed = Client().get("/api/v1/workers?capability=python", headers=headers).json()
    manifest = Client().get("/api/v1/workers/code-analyzer-001/manifest", headers=headers).json()
    found = Client().get("/api/v1/capabilities/search?query=repository+analysis", headers=headers).json()

    assert [(one["worker_id"], one["tools"], one["status"]) for one in listed["workers"]] == [
        ("code-analyzer-001", ["analyze_repository"], "ready")
    ]
    assert [status for status, _ in answers] == [201, 200]
    assert answers[0][1]["tools"][0]["name"] == "analyze_repository"
    assert beaten == (200, {"status": "ready", "next_heartbeat_seconds": 30, "register_again": False})
    assert manifest["tools"] == make_manifest()["tools"]
    assert found["matches"][0]["tool_name"] == "analyze_repository"
    assert Client().delete("/workers/code-analyzer-001", headers=headers).json()["status"] == "unregistered"
    assert Client().get("/api/v1/workers/code-analyzer-001/manifest", headers=headers).status_code == 404


def test_list_reads_no_manifest(as_kee: Caller) -> None:
    for number in range(3):
        register(as_kee, make_manifest(f"w{number}"))
    tool = {"name": "other", "input_schema": {"type": "object"}}
    register(as_kee, make_manifest("w0", tools=[tool]))

    with CaptureQueriesContext(connection) as queries:
        found = selectors.workers()

    assert [one.tools for one in found.workers] == [["other"], ["analyze_repository"], ["analyze_repository"]]
    assert len(queries) == 2
    assert not any('"manifest"' in query["sql"] for query in queries)
    assert '"withdrawn_at" IS NULL' in queries[1]["sql"]
    for read in (selectors.catalogue, lambda: selectors.terms_of("w1", "analyze_repository").offer):
        with CaptureQueriesContext(connection) as queries:
            read()
        assert not any('"manifest"' in query["sql"] for query in queries)


def test_list_has_pages(tenant: Tenant, token: str) -> None:
    names = [f"worker-{number}" for number in range(5)]
    for name in names:
        post("/workers/register", make_manifest(name), token)
    reader = make_token(tenant, "Reader")

    def read(cursor: str | None) -> dict[str, Any]:
        query = {"limit": "2", **({"cursor": cursor} if cursor else {})}
        answer: dict[str, Any] = (
            Client().get("/api/v1/workers", query, headers={"Authorization": f"Bearer {reader}"}).json()
        )
        return answer

    pages = [read(None)]
    while pages[-1]["next"]:
        pages.append(read(pages[-1]["next"]))

    assert [[worker["worker_id"] for worker in page["workers"]] for page in pages] == [names[:2], names[2:4], names[4:]]
    assert read("nonsense")["code"] == "bad_cursor"
