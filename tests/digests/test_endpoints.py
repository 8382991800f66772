"""The doors by which receipts come in, through HTTP, with documented payloads."""

import json
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from apps.principals import services as principals
from apps.principals.models import Principal, Tenant, Token
from apps.principals.scopes import Kind, Scope
from apps.principals.tenancy import acting_as_system
from apps.receipts.models import MAX_METADATA, Obligation, Receipt, ReceiptKey
from tests.factories import T0, make_caller, make_principal, make_tenant, make_token

INBOX_DOOR, UNIVERSAL_DOOR, API = "/internal/inbox/receipt", "/internal/receipt", "/api/v1/receipts"

TASK_COMPLETE = {
    "recipient_ai": "Kee",
    "source_system": "asyncgate",
    "dedupe_key": "asyncgate:task_complete:abc123:run_7",
    "title": "Model Consultation Complete",
    "summary": "Consulted 3 models: GPT-4o, Claude Opus, DeepSeek",
    "metadata": {
        "task_id": "abc123",
        "task_type": "model_consultation",
        "status": "complete",
        "result_channel": "email",
        "result_pointer": "email:msg-xyz@mail.com",
    },
}
EMAIL = {
    "recipient_ai": "Kee",
    "source_system": "email_monitor",
    "dedupe_key": "email_monitor:new_message:msg_abc:v1",
    "title": "New Email from PStryder",
    "summary": "Subject: Quick question about AsyncGate design",
    "metadata": {
        "message_id": "msg_abc",
        "from": "pstryder@example.com",
        "subject": "Quick question about AsyncGate design",
        "received_at": "2026-01-03T21:00:00Z",
    },
}
QUOTA = {
    "recipient_ai": "Hexy",
    "source_system": "api_monitor",
    "dedupe_key": "api_monitor:rate_limit:openai:20260103",
    "title": "OpenAI API Rate Limit Warning",
    "summary": "80% of daily quota consumed (8000/10000 requests)",
    "metadata": {
        "provider": "openai",
        "quota_used": 8000,
        "quota_total": 10000,
        "reset_at": "2026-01-04T00:00:00Z",
    },
}
ESCALATION = {
    "recipient_ai": "Principal",
    "source_system": "domain_delegate_research",
    "dedupe_key": "escalation:research_complete:rcpt_550e8400",
    "summary": "Three sources agree; one decision is yours",
    "metadata": {"original_receipt": "rcpt_550e8400"},
}
PLAN_CREATED = {
    "receipt_id": "R.2026-01-04T10:00:00Z.delegate.plan-7",
    "event_type": "plan_created",
    "recipient_ai": "Kee",
    "source_system": "delegate",
    "summary": "Plan created for: analyze",
    "artifact_pointer": "plan-7",
    "artifact_location": "delegate_registry",
    "requires_action": True,
    "suggested_next_step": "Execute plan steps (call workers, queue tasks)",
    "caused_by_receipt_id": None,
    "dedupe_key": "delegate:plan_created:plan-7:v1",
    "metadata": {"plan_id": "plan-7", "delegate_id": "root", "step_count": 5},
}
SOURCES = ["asyncgate", "email_monitor", "api_monitor", "domain_delegate_research", "delegate"]


@pytest.fixture
def token(tenant: Tenant) -> str:
    for name in ("Kee", "Hexy", "Principal"):
        make_principal(tenant, name)
    return make_token(tenant, "gateway", Kind.SERVICE, source_systems=SOURCES)


def knock(token: str | None, body: Any, door: str = INBOX_DOOR) -> tuple[int, dict[str, Any]]:
    content = body if isinstance(body, (str, bytes)) else json.dumps(body)
    headers = {"X-Service-Token": token} if token is not None else {}
    answer = Client(raise_request_exception=False).post(
        door, data=content, content_type="application/json", headers=headers
    )
    return answer.status_code, answer.json()


def stored() -> tuple[int, int]:
    with acting_as_system("test"):
        return Receipt.objects.count(), ReceiptKey.objects.count()


@pytest.mark.parametrize("payload", [TASK_COMPLETE, EMAIL, QUOTA, ESCALATION], ids=lambda one: one["source_system"])
def test_the_inbox_door_answers_as_documented(token: str, payload: dict[str, Any]) -> None:
    status, body = knock(token, payload)
    assert (status, sorted(body)) == (200, ["created_at", "dedupe_key", "receipt_id"])
    assert body["dedupe_key"] == payload["dedupe_key"]
    assert body["receipt_id"].startswith("rcpt_")
    again = knock(token, payload)
    assert again == (
        409,
        {
            "error": "duplicate_receipt",
            "existing_receipt_id": body["receipt_id"],
            "message": "Receipt with this dedupe_key already exists",
        },
    )
    conflict, other = knock(token, {**payload, "summary": "something else"})
    assert (conflict, other["error"], other["existing_receipt_id"]) == (409, "dedupe_conflict", body["receipt_id"])
    assert stored() == (1, 1)


def test_the_universal_door_answers_as_documented(token: str) -> None:
    status, body = knock(token, PLAN_CREATED, UNIVERSAL_DOOR)
    assert (status, sorted(body)) == (200, ["receipt_id", "status", "uuid"])
    assert (body["status"], body["receipt_id"]) == ("stored", PLAN_CREATED["receipt_id"])
    again, duplicate = knock(token, PLAN_CREATED, UNIVERSAL_DOOR)
    assert (again, sorted(duplicate)) == (409, ["error", "existing_uuid", "message"])
    assert duplicate["existing_uuid"] == body["uuid"]
    with acting_as_system("test"):
        fact = Receipt.objects.get()
        assert fact.surface == "ledger"
        assert Obligation.objects.get().debtor.name == "Kee"


def test_a_receipt_id_that_is_taken_is_named(token: str) -> None:
    _, first = knock(token, PLAN_CREATED, UNIVERSAL_DOOR)
    status, body = knock(token, {**PLAN_CREATED, "dedupe_key": "delegate:plan_created:plan-8:v1"}, UNIVERSAL_DOOR)
    assert (status, body["error"], body["existing_uuid"]) == (409, "receipt_id_conflict", first["uuid"])
    assert stored() == (1, 1)


@pytest.mark.parametrize("given", ["0198C0DE000070008000000000000001", "a/b", "..", "a b", ""])
def test_ambiguous_receipt_id_is_refused(token: str, given: str) -> None:
    for door in (UNIVERSAL_DOOR, API):
        status, body = knock(token, {**PLAN_CREATED, "receipt_id": given}, door)
        assert (status, "receipt_id" in json.dumps(body)) == (422, True)
    assert stored() == (0, 0)


def test_naming_a_foreign_receipt_opens_no_chain(tenant: Tenant, token: str) -> None:
    _, theirs = knock(token, {**PLAN_CREATED, "recipient_ai": "Hexy"}, UNIVERSAL_DOOR)
    mal = make_token(tenant, "Mal", Kind.SERVICE, source_systems=["mal"])
    headers = {"X-Service-Token": mal}
    for link in ("pairs_with", "caused_by_receipt_id"):
        mine = {"recipient_ai": "Mal", "source_system": "mal", "dedupe_key": link, "summary": "s", "event_type": "x"}
        _, posted = knock(mal, {**mine, link: theirs["uuid"]}, UNIVERSAL_DOOR)
        (shown,) = Client().get(f"{API}/{posted['uuid']}/chain", headers=headers).json()["receipts"]
        assert (shown["receipt_id"], shown[link]) == (posted["receipt_id"], theirs["uuid"])
        assert Client().get(f"{API}/{theirs['uuid']}/chain", headers=headers).status_code == 404
    hexy = {"Authorization": f"Bearer {make_token(tenant, 'Hexy')}"}
    (seen,) = Client().get(f"{API}/{theirs['uuid']}/chain", headers=hexy).json()["receipts"]
    assert seen["uuid"] == theirs["uuid"]


def test_every_fault_of_the_credential_gets_the_same_answer(tenant: Tenant, token: str) -> None:
    other = make_tenant("globex")
    expired = make_token(tenant, "expired", Kind.SERVICE, source_systems=SOURCES, expires_at=T0 + timedelta(seconds=1))
    revoked = make_token(tenant, "revoked", Kind.SERVICE, source_systems=SOURCES)
    disabled = make_token(tenant, "disabled", Kind.SERVICE, source_systems=SOURCES)
    with acting_as_system("test"):
        principals.revoke_token(token_id=Token.objects.get(principal__name="revoked").pk, now=T0)
        principals.disable_principal(principal_id=Principal.objects.get(name="disabled").pk, now=T0)
    tokens = [
        None,
        "",
        "nonsense",
        f"ght_00000000_{'x' * 43}",
        token[:-1] + ("a" if token[-1] != "a" else "b"),
        expired,
        revoked,
        disabled,
    ]
    of_others = [make_token(one, "email", Kind.SERVICE, source_systems=["email_monitor"]) for one in (tenant, other)]
    unscoped = make_token(tenant, "unscoped", Kind.SERVICE, source_systems=SOURCES, scopes=[Scope.INBOX])
    for door, payload in ((INBOX_DOOR, TASK_COMPLETE), (UNIVERSAL_DOOR, {**TASK_COMPLETE, "event_type": "x"})):
        answers = [knock(each, payload, door) for each in tokens]
        assert answers == [(403, {"error": "invalid_service_token", "message": "Invalid service token"})] * len(tokens)
        # A valid token is told what it lacks.
        assert {knock(each, payload, door)[1]["error"] for each in of_others} == {"not_this_caller"}
        assert knock(unscoped, payload, door)[1]["error"] == "missing_scope"
    assert stored() == (0, 0)


def test_unknown_recipient_is_refused(token: str) -> None:
    make_caller(make_tenant("globex"), "Stranger")
    for name in ("Nobody", "Stranger"):
        status, body = knock(token, {**TASK_COMPLETE, "recipient_ai": name})
        assert (status, body["error"]) == (404, "unknown_recipient")
    assert stored() == (0, 0)


def test_a_tenant_may_let_receipts_make_their_recipients(tenant: Tenant, token: str) -> None:
    with acting_as_system("test"):
        Tenant.objects.filter(pk=tenant.pk).update(creates_recipients=True)
    assert knock(token, {**TASK_COMPLETE, "recipient_ai": "Newcomer"})[0] == 200
    for name in ("a/b", ".."):  # no address can name them
        assert knock(token, {**EMAIL, "recipient_ai": name})[1]["error"] == "unknown_recipient"
    with acting_as_system("test"):
        assert Principal.objects.get(name="Newcomer").kind == Kind.AI


def test_batch_makes_only_recipients_that_get_a_receipt(tenant: Tenant, token: str) -> None:
    with acting_as_system("test"):
        Tenant.objects.filter(pk=tenant.pk).update(creates_recipients=True)
    source = TASK_COMPLETE["source_system"]
    wanted = [("First", "k1"), ("Second", "k1"), ("First", "k2"), ("First", "k2"), ("Third", "k3")]
    rows: list[dict[str, Any]] = [
        {"recipient_ai": name, "source_system": source, "dedupe_key": key, "summary": "x"} for name, key in wanted
    ]
    rows[-1]["metadata"] = {"text": "x" * (MAX_METADATA + 1)}
    answer = Client().post(
        "/api/v1/receipts/batch",
        {"receipts": rows},
        content_type="application/json",
        headers={"X-Service-Token": token},
    )
    assert [row["code"] for row in answer.json()["results"]] == [
        *(None, "dedupe_conflict", None, "duplicate_receipt", "too_large")
    ]
    with acting_as_system("test"):
        made = Principal.objects.filter(name__in=["First", "Second", "Third"])
        assert list(made.values_list("name", flat=True)) == ["First"]


def _without(member: str) -> dict[str, Any]:
    return {name: value for name, value in TASK_COMPLETE.items() if name != member}


def _nested(levels: int) -> Any:
    document: Any = 1
    for _ in range(levels):
        document = {"a": document}
    return document


@pytest.mark.parametrize(
    ("body", "status", "names"),
    [
        ("{", 400, ""),
        (b"\xff\xfe", 400, ""),
        ("", 422, "recipient_ai"),
        ("[]", 422, ""),
        (_without("recipient_ai"), 422, "recipient_ai"),
        ({**TASK_COMPLETE, "summary": 5}, 422, "summary"),
        ({**TASK_COMPLETE, "surprise": 1}, 422, "surprise"),
        ({**TASK_COMPLETE, "title": "x" * 201}, 422, "title"),
        ({**TASK_COMPLETE, "dedupe_key": "x" * 201}, 422, "dedupe_key"),
        ({**TASK_COMPLETE, "summary": "x" * 16_385}, 413, "summary"),
        ({**TASK_COMPLETE, "summary": "ä" * 9000}, 413, "summary"),
        ({**TASK_COMPLETE, "metadata": {"a": "x" * 65_536}}, 413, "metadata"),
        ({**TASK_COMPLETE, "summary": "x" * 1_048_576}, 413, ""),
        ({**TASK_COMPLETE, "summary": "a\x00b"}, 422, "summary"),
        ({**TASK_COMPLETE, "metadata": {"\x00": 1}}, 422, "metadata"),
        ({**TASK_COMPLETE, "metadata": {"a": "\udfff"}}, 422, "metadata"),
        ({**TASK_COMPLETE, "metadata": {"a": 2**63}}, 422, "metadata"),
        ({**TASK_COMPLETE, "metadata": _nested(32)}, 422, "metadata"),
        (json.dumps(TASK_COMPLETE)[:-1] + ', "metadata": {"a": NaN}}', 422, ""),
        ({**TASK_COMPLETE, "group": {"flush_class": "soon"}}, 422, "group"),
    ],
)  # fmt: skip
def test_wrong_input_is_named_and_stores_nothing(token: str, body: Any, status: int, names: str) -> None:
    answered, document = knock(token, body)
    assert (answered, names in json.dumps(document)) == (status, True), document
    assert {"error", "message"} <= document.keys()
    assert stored() == (0, 0)


def test_a_batch_gives_one_verdict_per_row(token: str) -> None:
    rows = [TASK_COMPLETE, EMAIL, {**EMAIL, "title": "Other"}, {**QUOTA, "recipient_ai": "Nobody"}, TASK_COMPLETE]
    rows += [{**QUOTA, "source_system": "foreign"}, {**QUOTA, "metadata": {"a": "x" * 65_536}}, QUOTA]
    status, body = knock(token, {"receipts": rows}, f"{API}/batch")
    assert status == 200
    assert [row["code"] or row["status"] for row in body["results"]] == [
        "stored",
        "stored",
        "dedupe_conflict",
        "unknown_recipient",
        "duplicate_receipt",
        "not_this_caller",
        "too_large",
        "stored",
    ]
    assert body["results"][4]["receipt_id"] == body["results"][0]["receipt_id"]
    assert stored() == (3, 3)


def test_an_agent_reads_acts_and_acks_over_http(tenant: Tenant, token: str) -> None:
    kee = {"Authorization": f"Bearer {make_token(tenant, 'Kee')}"}
    client = Client()
    _, posted = knock(token, TASK_COMPLETE)
    knock(token, {**EMAIL, "group": {"resource_ref": "inbox", "event_family": "mail", "flush_class": "immediate"}})

    page = client.get("/api/v1/inbox", headers=kee).json()
    assert [(entry["kind"], entry["count"]) for entry in page["entries"]] == [("item", 1), ("digest_snapshot", 1)]
    assert (page["as_of"], page["visible"], page["pending"], page["more_waiting"]) == (2, 2, 0, 0)

    read = client.post(f"{API}/{posted['receipt_id']}/read", content_type="application/json", headers=kee).json()
    assert read["receipt"]["metadata"] == TASK_COMPLETE["metadata"]
    assert read["receipt"]["delivered_at"]
    assert (read["next_action"]["tool"], read["next_action"]["arguments"]) == (
        "fetch_task_result",
        {"task_id": "abc123"},
    )
    ref = page["entries"][1]["ref"]
    expanded = client.get(f"/api/v1/inbox/entries/{ref}/expand", headers=kee).json()
    assert [one["source_system"] for one in expanded["receipts"]] == ["email_monitor"]
    acked = client.post(
        "/api/v1/inbox/ack-through",
        data={"through": page["entries"][1]["token"]},
        content_type="application/json",
        headers=kee,
    )
    assert acked.json() == {"acked_entries": 1, "acked_receipts": 1}
    assert client.get("/api/v1/inbox", headers=kee).json()["entries"] == []
    assert len(client.get("/api/v1/inbox/history", headers=kee).json()["entries"]) == 2


def test_wrong_references_over_http(tenant: Tenant, token: str) -> None:
    kee = {"Authorization": f"Bearer {make_token(tenant, 'Kee')}"}
    knock(token, TASK_COMPLETE)
    client = Client(raise_request_exception=False)

    def ack(body: dict[str, Any]) -> int:
        path = "ack" if "entries" in body else "ack-through"
        return client.post(f"/api/v1/inbox/{path}", data=body, content_type="application/json", headers=kee).status_code

    assert ack({"entries": ["thr_1"]}) == 400
    assert ack({"entries": ["ent_999999999999999999"]}) == 404
    assert ack({"entries": []}) == 422
    assert ack({"through": "ent_1@999"}) in {400, 404}
    assert ack({"through": "nonsense"}) == 400
    assert ack({"through": "ent_1@1", "as_of": 0}) == 422
    assert ack({"through": "ent_1", "as_of": 2**63}) == 422
    for query in ("limit=0", "limit=501", "after=-1", "after=9223372036854775808", "limit=x", "nonsense=1"):
        assert client.get(f"/api/v1/inbox?{query}", headers=kee).status_code == 422
    assert client.get("/api/v1/inbox", headers=kee).json()["visible"] == 1


def test_ledger_receipts_are_read_as_proof_and_ack_nothing(tenant: Tenant, token: str) -> None:
    kee = {"Authorization": f"Bearer {make_token(tenant, 'Kee')}"}
    hexy = {"Authorization": f"Bearer {make_token(tenant, 'Hexy')}"}
    client = Client()
    _, posted = knock(token, PLAN_CREATED, UNIVERSAL_DOOR)
    for reference in (posted["receipt_id"], posted["uuid"]):
        answer = client.post(f"{API}/{reference}/read", content_type="application/json", headers=kee)
        assert (answer.status_code, answer.json()["receipt"]["read_at"]) == (200, None)
        assert client.post(f"{API}/{reference}/read", content_type="application/json", headers=hexy).status_code == 404
    assert (
        client.post(f"{API}/{posted['uuid']}/archive", content_type="application/json", headers=kee).status_code == 409
    )
    owed = client.get("/api/v1/obligations", headers=kee).json()["obligations"]
    assert [one["receipt_id"] for one in owed] == [PLAN_CREATED["receipt_id"]]


def test_the_raw_path_shows_what_still_waits(tenant: Tenant, token: str) -> None:
    kee = {"Authorization": f"Bearer {make_token(tenant, 'Kee')}"}
    knock(token, {**EMAIL, "group": {"resource_ref": "inbox", "event_family": "mail"}})
    _, posted = knock(token, TASK_COMPLETE)
    client = Client()
    assert len(client.get(API, headers=kee).json()["receipts"]) == 2
    assert len(client.get(f"{API}?source_system=asyncgate", headers=kee).json()["receipts"]) == 1
    first = client.get(f"{API}?limit=1", headers=kee).json()
    second = client.get(f"{API}?limit=1&cursor={first['next']}", headers=kee).json()
    assert [one["source_system"] for one in first["receipts"] + second["receipts"]] == ["asyncgate", "email_monitor"]
    client.post(f"{API}/{posted['receipt_id']}/archive", content_type="application/json", headers=kee)
    assert len(client.get(f"{API}?unread=true", headers=kee).json()["receipts"]) == 1
    assert len(client.get(f"{API}?unread=false", headers=kee).json()["receipts"]) == 2
