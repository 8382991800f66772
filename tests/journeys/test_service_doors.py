"""The doors that other services were built against: their bodies and codes, word by word.

And what each door does with input that it can't take: a named 4xx, and not one row more in any table.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from apps.principals.models import Tenant
from apps.principals.scopes import Kind, Scope
from apps.principals.tenancy import acting_as_system
from tests.factories import make_principal, make_tenant, make_token

RECEIPT = {
    "recipient_ai": "Kee",
    "source_system": "asyncgate",
    "dedupe_key": "asyncgate:task_complete:abc123:run_7",
    "title": "Model Consultation Complete",
    "summary": "Consulted 3 models successfully (GPT-4o, Claude Opus, DeepSeek Coder)",
    "metadata": {
        "task_id": "abc123",
        "task_type": "model_consultation",
        "status": "complete",
        "result_channel": "email",
        "result_pointer": "email:message-id-xyz@mail.com",
        "created_at": "2026-01-03T20:15:00Z",
    },
}
PLAN_RECEIPT = {
    "receipt_id": "R.20260104T120000.delegate.plan-550e8400",
    "event_type": "plan_created",
    "recipient_ai": "Kee",
    "source_system": "delegate",
    "summary": "Plan created for: Analyze the Python codebase",
    "artifact_pointer": "plan-550e8400",
    "artifact_location": "delegate_registry",
    "requires_action": True,
    "suggested_next_step": "Execute plan steps (call workers, queue tasks)",
    "caused_by_receipt_id": "R.20260104T115900.user.1",
    "dedupe_key": "delegate:plan_created:plan-550e8400:v1",
    "metadata": {"plan_id": "plan-550e8400", "scope": "code_analysis", "confidence": 0.9, "step_count": 5},
}
MANIFEST: dict[str, Any] = {
    "worker_id": "code-analyzer-001",
    "endpoint": "http://127.0.0.1:9/mcp",
    "tools": [
        {
            "name": "analyze_repository",
            "description": "Analyze a Python repository and report its complexity and issues.",
            "input_schema": {
                "type": "object",
                "properties": {"repo_path": {"type": "string"}, "language": {"type": "string"}},
            },
            "output_schema": {
                "type": "object",
                "properties": {"complexity_score": {"type": "number"}, "issues": {"type": "array"}},
            },
        }
    ],
    "capabilities": ["code_analysis", "python", "javascript"],
    "constraints": {"max_payload_bytes": 10485760, "timeout_seconds": 300, "rate_limit_per_hour": 100},
    "hints": {"latency_band": "medium", "cost_band": "low", "expected_runtime": "long"},
    "trust": {"tier": "verified", "signature": "...", "key_id": "..."},
}
HEARTBEAT = {"status": "healthy", "current_load": 0.3, "available": True}
INTENT = {
    "principal_ai": "Kee",
    "intent": "Analyze the Python codebase at /path/to/repo and suggest optimizations",
    "context": {"language": "python", "priority": "high"},
}

DOORS: Mapping[str, Mapping[str, Any]] = {
    "/internal/inbox/receipt": RECEIPT,
    "/internal/receipt": PLAN_RECEIPT,
    "/workers/register": MANIFEST,
    "/workers/code-analyzer-001/heartbeat": HEARTBEAT,
    "/delegate/plan": INTENT,
}
A_TEXT_FIELD = {
    "/internal/inbox/receipt": "summary",
    "/internal/receipt": "summary",
    "/workers/register": "worker_id",
    "/workers/code-analyzer-001/heartbeat": "status",
    "/delegate/plan": "intent",
}


class Caller:
    """A service that posts JSON with one token."""

    def __init__(self, token: str | None) -> None:
        self.headers = {} if token is None else {"X-Service-Token": token}

    def post(self, path: str, body: Any, *, content_type: str = "application/json") -> tuple[int, dict[str, Any]]:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = Client(raise_request_exception=False).post(path, raw, content_type=content_type, headers=self.headers)
        return answer.status_code, answer.json()


@pytest.fixture
def service(tenant: Tenant) -> Caller:
    make_principal(tenant, "Kee")
    return Caller(
        make_token(
            tenant,
            "hub",
            Kind.SERVICE,
            scopes=[Scope.RECEIPTS_WRITE, Scope.WORKERS_REGISTER, Scope.PLANS],
            source_systems=["asyncgate", "delegate"],
        )
    )


@pytest.fixture
def kee_calls(tenant: Tenant) -> Caller:
    return Caller(make_token(tenant, "Kee", Kind.AI))


def _rows() -> dict[str, int]:
    """How many rows every table holds, tokens apart: their use is noted."""
    with acting_as_system("test"), connection.cursor() as cursor:
        tables = [name for name in connection.introspection.table_names(cursor) if name != "principals_token"]
        counts = {}
        for table in tables:
            cursor.execute(f'select count(*) from "{table}"')
            counts[table] = cursor.fetchone()[0]
    return counts


@pytest.fixture
def nothing_stored(service: Caller) -> Iterator[None]:
    before = _rows()
    yield
    assert _rows() == before


def test_the_inbox_door_answers_with_id_key_and_time_and_names_a_duplicate(service: Caller) -> None:
    status, first = service.post("/internal/inbox/receipt", RECEIPT)
    assert status == 200
    assert set(first) >= {"receipt_id", "dedupe_key", "created_at"}
    assert first["dedupe_key"] == RECEIPT["dedupe_key"]

    status, second = service.post("/internal/inbox/receipt", RECEIPT)
    assert status == 409
    assert second["error"] == "duplicate_receipt"
    assert second["existing_receipt_id"] == first["receipt_id"]
    assert isinstance(second["message"], str)


def test_the_same_key_with_other_content_is_a_conflict_and_changes_nothing(service: Caller) -> None:
    _, first = service.post("/internal/inbox/receipt", RECEIPT)
    before = _rows()
    status, refusal = service.post("/internal/inbox/receipt", {**RECEIPT, "summary": "Something else"})
    assert (status, refusal["error"]) == (409, "dedupe_conflict")
    assert refusal["existing_receipt_id"] == first["receipt_id"]
    assert _rows() == before


def test_the_universal_door_keeps_the_given_id_and_answers_with_a_uuid(service: Caller) -> None:
    status, first = service.post("/internal/receipt", PLAN_RECEIPT)
    assert status == 200
    assert (first["status"], first["receipt_id"]) == ("stored", PLAN_RECEIPT["receipt_id"])

    status, second = service.post("/internal/receipt", PLAN_RECEIPT)
    assert (status, second["error"]) == (409, "duplicate_receipt")
    assert second["existing_uuid"] == first["uuid"]


def test_a_worker_registers_heartbeats_and_registers_again(service: Caller) -> None:
    status, first = service.post("/workers/register", MANIFEST)
    assert status == 201
    assert set(first) >= {"worker_id", "status", "effective_tier", "reason", "tools"}
    assert first["worker_id"] == "code-analyzer-001"
    assert [tool["name"] for tool in first["tools"]] == ["analyze_repository"]
    assert first["effective_tier"] == "untrusted", "a tier that nobody signed for is only a claim"

    status, beat = service.post("/workers/code-analyzer-001/heartbeat", HEARTBEAT)
    assert status == 200
    assert beat["next_heartbeat_seconds"] > 0

    status, again = service.post("/workers/register", MANIFEST)
    assert status == 200
    assert again["tools"] == first["tools"]


def test_a_heartbeat_of_an_unknown_worker_is_404(service: Caller, nothing_stored: None) -> None:
    assert service.post("/workers/nobody/heartbeat", HEARTBEAT)[0] == 404


def test_a_plan_comes_back_bare_with_its_receipt(kee_calls: Caller) -> None:
    status, plan = kee_calls.post("/delegate/plan", INTENT)
    assert status == 200
    assert set(plan) >= {
        "plan_id",
        "delegate_id",
        "principal_ai",
        "intent",
        "created_at",
        "scope",
        "confidence",
        "assumptions",
        "steps",
        "references",
        "estimated_total_runtime_seconds",
        "can_run_parallel",
        "receipt_id",
        "receipt_uuid",
    }
    assert plan["intent"] == INTENT["intent"]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("fault", "statuses"),
    [
        ("bad JSON", {400}),
        ("not UTF-8", {400}),
        ("an array", {422}),
        ("nothing", {422}),
        ("a wrong type", {422}),
        ("a NUL byte", {422}),
        ("a lone surrogate", {422}),
        ("NaN", {422}),
        ("33 levels", {422}),
        ("one megabyte", {413, 422}),
        ("a form", {415}),
    ],
)
def test_what_a_door_can_not_take_is_named_and_stores_nothing(
    service: Caller, nothing_stored: None, door: str, fault: str, statuses: set[int]
) -> None:
    name, body = A_TEXT_FIELD[door], DOORS[door]
    deep: Any = "x"
    for _ in range(33):
        deep = [deep]
    bodies: dict[str, bytes] = {
        "bad JSON": b'{"recipient_ai": ',
        "not UTF-8": b'{"a": "\xff"}',
        "an array": b"[1]",
        "nothing": b"{}",
        "a wrong type": json.dumps({**body, name: 5}).encode(),
        "a NUL byte": json.dumps({**body, name: "a\x00b"}).encode(),
        "a lone surrogate": json.dumps({**body, name: "\ud800"}).encode(),
        "NaN": json.dumps({**body, name: float("nan")}).encode(),
        "33 levels": json.dumps({**body, name: deep}).encode(),
        "one megabyte": json.dumps({**body, name: "x" * 1_000_000}).encode(),
        "a form": b"summary=1",
    }
    content_type = "application/x-www-form-urlencoded" if fault == "a form" else "application/json"

    status, answer = service.post(door, bodies[fault], content_type=content_type)

    assert status in statuses, answer
    assert answer.get("error") or answer.get("code")
    assert answer.get("message") or answer.get("detail")


@pytest.mark.parametrize("door", DOORS)
def test_every_required_member_is_missed_by_name(service: Caller, nothing_stored: None, door: str) -> None:
    required = {
        "/internal/inbox/receipt": ["recipient_ai", "source_system", "dedupe_key", "summary"],
        "/internal/receipt": ["event_type", "recipient_ai", "source_system", "summary", "dedupe_key"],
        "/workers/register": ["worker_id", "endpoint", "tools"],
        "/workers/code-analyzer-001/heartbeat": ["status"],
        "/delegate/plan": ["intent"],
    }[door]
    for name in required:
        status, answer = service.post(door, {key: value for key, value in DOORS[door].items() if key != name})
        assert status == 422, (name, answer)
        assert name in json.dumps(answer)


@pytest.mark.parametrize("door", ["/internal/inbox/receipt", "/internal/receipt"])
def test_credentials_that_stand_for_nobody_get_one_body(tenant: Tenant, service: Caller, door: str) -> None:
    make_principal(make_tenant("globex"), "Kee")
    faulty = [
        Caller(None),
        Caller("nonsense"),
        Caller(f"ght_00000000_{'x' * 43}"),
    ]
    before = _rows()
    answers = [caller.post(door, DOORS[door]) for caller in faulty]
    assert {status for status, _ in answers} == {403}
    assert len({json.dumps(body) for _, body in answers}) == 1
    assert _rows() == before


@pytest.mark.parametrize("door", ["/internal/inbox/receipt", "/internal/receipt"])
def test_an_unknown_recipient_is_named_and_one_of_another_tenant_is_unknown(service: Caller, door: str) -> None:
    make_principal(make_tenant("globex"), "Hexy")
    before = _rows()
    for name in ("Nobody", "Hexy"):
        status, answer = service.post(door, {**DOORS[door], "recipient_ai": name})
        assert (status, answer["error"]) == (404, "unknown_recipient")
    assert _rows() == before
