"""Receipts over HTTP with the documented payloads: posting, reading, acking; and `manage.py inbox`."""

import json
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from apps.receipts.models import Obligation, Receipt, ReceiptKey
from tests import factories
from tests.digests.makers import post, post_grouped, read
from tests.factories import make_caller, make_principal, make_tenant, make_token

INBOX, UNIVERSAL, API = "/internal/inbox/receipt", "/internal/receipt", "/api/v1/receipts"

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


def send(token: str | None, body: Any, endpoint: str = INBOX) -> tuple[int, dict[str, Any]]:
    content = body if isinstance(body, (str, bytes)) else json.dumps(body)
    headers = {"X-Service-Token": token} if token is not None else {}
    answer = Client(raise_request_exception=False).post(
        endpoint, data=content, content_type="application/json", headers=headers
    )
    return answer.status_code, answer.json()


def stored() -> tuple[int, int]:
    with acting_as_system("test"):
        return Receipt.objects.count(), ReceiptKey.objects.count()


@pytest.mark.parametrize("payload", [TASK_COMPLETE, EMAIL, ESCALATION], ids=lambda one: one["source_system"])
def test_the_inbox_endpoint_answers_as_documented(token: str, payload: dict[str, Any]) -> None:
    status, body = send(token, payload)
    assert (status, sorted(body)) == (200, ["created_at", "dedupe_key", "receipt_id"])
    assert body["dedupe_key"] == payload["dedupe_key"]
    assert body["receipt_id"].startswith("rcpt_")
    again = send(token, payload)
    assert again == (
        409,
        {
            "error": "duplicate_receipt",
            "existing_receipt_id": body["receipt_id"],
            "message": "Receipt with this dedupe_key already exists",
        },
    )
    conflict, other = send(token, {**payload, "summary": "something else"})
    assert (conflict, other["error"], other["existing_receipt_id"]) == (409, "dedupe_conflict", body["receipt_id"])
    assert stored() == (1, 1)


def test_the_universal_endpoint_answers_as_documented(token: str) -> None:
    status, body = send(token, PLAN_CREATED, UNIVERSAL)
    assert (status, sorted(body)) == (200, ["receipt_id", "status", "uuid"])
    assert (body["status"], body["receipt_id"]) == ("stored", PLAN_CREATED["receipt_id"])
    again, duplicate = send(token, PLAN_CREATED, UNIVERSAL)
    assert (again, sorted(duplicate)) == (409, ["error", "existing_uuid", "message"])
    assert duplicate["existing_uuid"] == body["uuid"]
    status, taken = send(token, {**PLAN_CREATED, "dedupe_key": "delegate:plan_created:plan-8:v1"}, UNIVERSAL)
    assert (status, taken["error"], taken["existing_uuid"]) == (409, "receipt_id_conflict", body["uuid"])
    with acting_as_system("test"):
        fact = Receipt.objects.get()
        assert fact.surface == "ledger"
        assert Obligation.objects.get().debtor.name == "Kee"


@pytest.mark.parametrize("given", ["0198C0DE000070008000000000000001", "a/b", "..", "a b", ""])
def test_ambiguous_receipt_id_is_refused(token: str, given: str) -> None:
    for endpoint in (UNIVERSAL, API):
        status, body = send(token, {**PLAN_CREATED, "receipt_id": given}, endpoint)
        assert (status, "receipt_id" in json.dumps(body)) == (422, True)
    assert stored() == (0, 0)


def test_naming_a_foreign_receipt_opens_no_chain(tenant: Tenant, token: str) -> None:
    _, theirs = send(token, {**PLAN_CREATED, "recipient_ai": "Hexy"}, UNIVERSAL)
    mal = make_token(tenant, "Mal", Kind.SERVICE, source_systems=["mal"])
    headers = {"X-Service-Token": mal}
    for link in ("pairs_with", "caused_by_receipt_id"):
        mine = {"recipient_ai": "Mal", "source_system": "mal", "dedupe_key": link, "summary": "s", "event_type": "x"}
        _, posted = send(mal, {**mine, link: theirs["uuid"]}, UNIVERSAL)
        (shown,) = Client().get(f"{API}/{posted['uuid']}/chain", headers=headers).json()["receipts"]
        assert (shown["receipt_id"], shown[link]) == (posted["receipt_id"], theirs["uuid"])
        assert Client().get(f"{API}/{theirs['uuid']}/chain", headers=headers).status_code == 404
    hexy = {"Authorization": f"Bearer {make_token(tenant, 'Hexy')}"}
    (seen,) = Client().get(f"{API}/{theirs['uuid']}/chain", headers=hexy).json()["receipts"]
    assert seen["uuid"] == theirs["uuid"]


def test_unknown_recipient_is_refused(token: str) -> None:
    make_caller(make_tenant("globex"), "Stranger")
    for name in ("Nobody", "Stranger"):
        status, body = send(token, {**TASK_COMPLETE, "recipient_ai": name})
        assert (status, body["error"]) == (404, "unknown_recipient")
    assert stored() == (0, 0)


def test_a_batch_gives_one_verdict_per_row(token: str) -> None:
    rows = [TASK_COMPLETE, EMAIL, {**EMAIL, "title": "Other"}, {**ESCALATION, "recipient_ai": "Nobody"}, TASK_COMPLETE]
    rows += [{**ESCALATION, "source_system": "foreign"}, {**ESCALATION, "metadata": {"a": "x" * 65_536}}, ESCALATION]
    status, body = send(token, {"receipts": rows}, f"{API}/batch")
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


Ask = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def ask(tenant: Tenant) -> Ask:
    """Requests of Kee, or of another principal: status and answer."""

    def ask(method: str, path: str, body: Any = None, *, by: str = "Kee") -> tuple[int, Any]:
        return factories.ask(method, path, make_token(tenant, by), body)

    return ask


def test_ledger_receipts_are_read_as_proof_and_ack_nothing(ask: Ask, token: str) -> None:
    _, posted = send(token, PLAN_CREATED, UNIVERSAL)
    for reference in (posted["receipt_id"], posted["uuid"]):
        status, read = ask("POST", f"{API}/{reference}/read")
        assert (status, read["receipt"]["read_at"]) == (200, None)
        assert ask("POST", f"{API}/{reference}/read", by="Hexy")[0] == 404
    assert ask("POST", f"{API}/{posted['uuid']}/archive")[0] == 409
    _, owed = ask("GET", "/api/v1/obligations")
    assert [one["receipt_id"] for one in owed["obligations"]] == [PLAN_CREATED["receipt_id"]]


def test_the_raw_path_shows_what_still_waits(ask: Ask, token: str) -> None:
    send(token, {**EMAIL, "group": {"resource_ref": "inbox", "event_family": "mail"}})
    _, posted = send(token, TASK_COMPLETE)

    def listed(query: str = "") -> list[str]:
        return [one["source_system"] for one in ask("GET", API + query)[1]["receipts"]]

    assert listed() == ["asyncgate", "email_monitor"]
    assert listed("?source_system=asyncgate") == ["asyncgate"]
    _, first = ask("GET", f"{API}?limit=1")
    assert listed(f"?limit=1&cursor={first['next']}") == ["email_monitor"]
    ask("POST", f"{API}/{posted['receipt_id']}/archive")
    assert (listed("?unread=true"), len(listed("?unread=false"))) == (["email_monitor"], 2)


def inbox(verb: str, *options: str, principal: str = "Kee", tenant: str = "acme") -> str:
    out = StringIO()
    call_command("inbox", verb, "--principal", principal, "--tenant", tenant, *options, stdout=out)
    return out.getvalue().strip()


def answer(verb: str, *options: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(inbox(verb, *options))
    return told


@pytest.fixture
def filled(kee: Caller) -> Caller:
    with acting_as(kee):
        post(kee, title="First")
        for number in range(3):
            post_grouped(kee, title=f"Check {number}")
        post_grouped(kee, title="Check 3", flush_class="immediate")
    return kee


def test_an_inbox_is_read_expanded_acked_and_looked_back_on(filled: Caller) -> None:
    page = answer("read")
    assert [entry["count"] for entry in page["entries"]] == [1, 4]
    item, digest = (entry["token"] for entry in page["entries"])
    assert [one["title"] for one in answer("expand", "--through", digest)["receipts"]] == [
        f"Check {n}" for n in range(4)
    ]
    first = answer("expand", "--through", digest, "--limit", "3")
    assert len(answer("expand", "--through", digest, "--cursor", first["next"])["receipts"]) == 1
    assert answer("ack", "--through", item) == {"acked_entries": 1, "acked_receipts": 1}
    assert answer("ack", "--through", digest) == {"acked_entries": 1, "acked_receipts": 4}
    assert answer("ack", "--through", digest) == {"acked_entries": 0, "acked_receipts": 0}
    assert answer("read")["entries"] == []
    assert [entry["acked_at"] is None for entry in answer("history")["entries"]] == [False, False]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["ack"], "needs --through"),
        (["ack", "--through", "thr_1"], "thr_1"),
        (["ack", "--through", "ent_999999"], "has no entry"),
        (["read", "--limit", "0"], "/limit"),
        (["history", "--cursor", "x"], "cursor"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_options_are_named_and_change_nothing(filled: Caller, options: list[str], says: str) -> None:
    with pytest.raises(CommandError, match=says):
        inbox(*options)
    with pytest.raises(CommandError, match="no principal 'Hexy'"):
        inbox("read", principal="Hexy")
    with acting_as(filled):
        assert read(filled).visible == 5
