"""The endpoints that other services were built against: how MCP workers and plans are answered; required members."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from django.test import Client

from apps.principals.models import Tenant
from apps.principals.scopes import Kind, Scope
from tests.factories import make_principal, make_token
from tests.interfaces.asking import nothing_changes

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


def test_a_heartbeat_of_an_unknown_worker_is_404(service: Caller) -> None:
    with nothing_changes():
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
def test_every_required_member_is_missed_by_name(service: Caller, door: str) -> None:
    required = {
        "/internal/inbox/receipt": ["recipient_ai", "source_system", "dedupe_key", "summary"],
        "/internal/receipt": ["event_type", "recipient_ai", "source_system", "summary", "dedupe_key"],
        "/workers/register": ["worker_id", "endpoint", "tools"],
        "/workers/code-analyzer-001/heartbeat": ["status"],
        "/delegate/plan": ["intent"],
    }[door]
    for name in required:
        with nothing_changes():
            status, answer = service.post(door, {key: value for key, value in DOORS[door].items() if key != name})
        assert status == 422, (name, answer)
        assert name in json.dumps(answer)
