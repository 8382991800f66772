"""Items as receipts: leaving and inheriting over the API and in prompts, and what may come between."""

from itertools import chain
from typing import Any

from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.digests import selectors as digests
from apps.digests import services as inboxes
from apps.handoff import services
from apps.handoff.items import Kind, Priority
from apps.handoff.services import LeaveHandoff, LeftOutput
from apps.memory.services import HANDOFF
from apps.principals.models import Tenant
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller, acting_as
from apps.receipts.models import Receipt
from tests.factories import T0, make_caller, make_token
from tests.handoff.conftest import BASE, LEFT, Hub
from tests.mcp.raw import modern
from tests.waiters import at_once


def note(body: str = "JWT rotation", **said: Any) -> LeaveHandoff:
    told = {"session": "s-1", "type": Kind.LEARNING, "priority": Priority.MEDIUM}
    return LeaveHandoff(**{**told, **said}, body=body)


def test_item_is_a_receipt_of_the_source(hub: Hub, kee: Caller) -> None:
    left = hub.leave()
    assert left["dedupe_key"].startswith("session_handoff:learning:2026-01-10-auth:")
    assert len(left["dedupe_key"].rsplit(":", 1)[1]) == 16
    with acting_as(kee):
        (view,) = digests.inbox_receipts(kee.principal_id, source_system=HANDOFF)
        assert Receipt.objects.get(pk=view.pk).event_family == "learning"
    assert view.event_type == "learning"
    assert view.summary == LEFT["body"]
    assert view.title == "learning from 2026-01-10-auth: JWT rotation"


def test_item_is_inherited_by_one_session(hub: Hub) -> None:
    left = hub.leave()
    (shown,) = hub.inherit("second")["items"]
    assert shown["receipt_id"] == left["receipt_id"]
    assert (shown["body"], shown["from_session"], shown["priority"]) == (LEFT["body"], "2026-01-10-auth", "high")
    assert hub.inherit("third") == {"items": [], "waiting": 0, "waiting_tokens": 0, "tokens_estimate": 0}


def test_looking_takes_nothing(hub: Hub) -> None:
    hub.leave()
    assert hub.bodies() == hub.bodies() == hub.bodies("second") == [LEFT["body"]]
    assert hub.bodies() == []


def test_same_note_twice_is_one_receipt(hub: Hub) -> None:
    first, again = hub.leave(), hub.leave()
    assert (first["is_duplicate"], again["is_duplicate"]) == (False, True)
    assert again["receipt_id"] == first["receipt_id"]
    assert hub.leave(priority="low")["receipt_id"] != first["receipt_id"]
    assert len(hub.bodies("second")) == 2
    assert hub.leave()["is_duplicate"] is True
    assert hub.bodies("third") == []


def test_project_gets_its_own_items_and_those_of_none(hub: Hub) -> None:
    for project in ("web-1", "api-1", None):
        hub.leave(body=str(project), project=project)
    assert sorted(hub.bodies("second", project="web-1")) == ["None", "web-1"]
    assert hub.bodies("third") == ["api-1"]


def test_bootstrap_counts_waiting_handoffs(hub: Hub) -> None:
    def waiting() -> int:
        answer = Client().get("/api/v1/memory/bootstrap", headers={"Authorization": f"Bearer {hub.token}"})
        return int(answer.json()["handoffs_waiting"])

    hub.leave()
    hub.leave(type="caution", body="Only under load")
    assert waiting() == 2
    hub.bodies("second")
    assert waiting() == 0


def test_item_acked_in_the_inbox_is_not_inherited(hub: Hub, kee: Caller) -> None:
    left = hub.leave()
    with acting_as(kee):
        (view,) = digests.inbox_receipts(kee.principal_id, source_system=HANDOFF)
        inboxes.ack_receipts(principal_id=kee.principal_id, receipt_pks=[view.pk], now=T0)
    assert left["receipt_id"] == view.receipt_id
    assert hub.bodies("second") == []


def test_plain_receipt_of_the_source_is_inherited(tenant: Tenant) -> None:
    hub = Hub(make_token(tenant, source_systems=[HANDOFF]))
    for nth, metadata in enumerate([{}, {"priority": ["high"], "from_session": 7, "created": "x", "project": {}}]):
        status, _ = hub.ask(
            "/api/v1/receipts",
            {
                "recipient_ai": "Kee",
                "source_system": HANDOFF,
                "dedupe_key": f"{HANDOFF}:idea:{nth}:v1",
                "summary": "From elsewhere",
                "metadata": metadata,
            },
        )
        assert status == 201
    shown = hub.inherit("second")["items"]
    assert [(one["type"], one["priority"], one["from_session"]) for one in shown] == [
        ("context", "medium", HANDOFF)
    ] * 2
    assert hub.bodies("third") == []


def test_large_note_is_refused(hub: Hub) -> None:
    assert hub.ask(BASE, {**LEFT, "body": "x" * 16_385})[0] == 413
    assert hub.leave(body="x" * 16_384)["warnings"] != []


def test_note_to_others_needs_the_scope(tenant: Tenant) -> None:
    make_caller(tenant, "Hexy")
    narrow, wide = (Hub(make_token(tenant, scopes=scopes)) for scopes in ([Scope.INBOX], None))
    assert narrow.ask(BASE, {**LEFT, "recipient_ai": "Hexy"})[1]["code"] == "missing_scope"
    assert wide.ask(BASE, {**LEFT, "recipient_ai": "Nobody"})[1]["code"] == "unknown_recipient"
    wide.leave(recipient_ai="Hexy")
    assert wide.bodies("second") == []
    assert Hub(make_token(tenant, "Hexy")).bodies("second") == [LEFT["body"]]


def test_receipt_ids_limit_what_is_inherited(hub: Hub) -> None:
    first = hub.leave(body="First")
    hub.leave(body="Second")
    assert hub.bodies("a", receipt_ids=[first["receipt_id"], "nonesuch"]) == ["First"]
    assert hub.bodies("a", receipt_ids=[]) == []


def test_inherit_takes_a_constant_number_of_statements(as_kee: Caller) -> None:
    def inherit() -> int:
        with CaptureQueriesContext(connection) as asked:
            services.inherit(reader=as_kee, project=None, max_tokens=10**6, only=None, now=T0)
        return len(asked)

    counts = []
    for many in (1, 25):
        for nth in range(many):
            services.leave(author=as_kee, recipient_id=as_kee.principal_id, note=note(f"{many} {nth}"), now=T0)
        counts.append(inherit())
    assert counts[0] == counts[1]


def test_concurrent_sessions_share_the_items(transactional_db: None, kee: Caller) -> None:
    with acting_as(kee):
        for number in range(20):
            services.leave(author=kee, recipient_id=kee.principal_id, note=note(str(number)), now=T0)

    def inherit() -> list[str]:
        with acting_as(kee):
            found = services.inherit(reader=kee, project=None, max_tokens=10**6, only=None, now=T0)
        return [one.item.body for one in found[0]]

    shown = at_once(*[inherit] * 6)
    assert sorted(chain.from_iterable(shown)) == sorted(str(number) for number in range(20))


def test_same_note_left_concurrently_is_one_receipt(transactional_db: None, kee: Caller) -> None:

    def leave() -> LeftOutput:
        with acting_as(kee):
            return services.leave(author=kee, recipient_id=kee.principal_id, note=note(), now=T0)

    left = at_once(*[leave] * 6)
    assert len({one.receipt_id for one in left}) == 1
    assert sum(not one.is_duplicate for one in left) == 1


def prompt(token: str, name: str, **arguments: str) -> str:
    answer: dict[str, Any] = modern("prompts/get", {"name": name, "arguments": arguments}, token).json()
    return "\n".join(message["content"]["text"] for message in answer["result"]["messages"])


def test_a_session_that_says_its_name_takes_over_what_was_left(hub: Hub) -> None:
    hub.leave()
    assert "JWT rotation" in prompt(hub.token, "start_session"), "without a name it only looks"
    text = prompt(hub.token, "start_session", session="2026-01-11-api")
    assert "◈ INHERIT" in text
    assert "JWT rotation" in text
    assert "memory_bootstrap:" in text
    assert hub.bodies("another") == []


def test_who_may_not_read_an_inbox_is_told_the_rest(tenant: Tenant) -> None:
    text = prompt(make_token(tenant, scopes=[Scope.MEMORY]), "start_session", session="x")
    assert "inherit:" not in text


def test_the_end_of_a_session_asks_the_questions(hub: Hub) -> None:
    text = prompt(hub.token, "close_session")
    for words in ("◈ HARVEST", "Learning:", "Caution:", "Context:", "Thread:", "leave_handoff", "thank"):
        assert words in text
