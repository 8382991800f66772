"""Bootstrap: everything to begin with, from the first time on."""

import threading
from typing import Any

from django.db import connection
from django.test import Client

from apps.digests import selectors as digests
from apps.memory import services as memory
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as
from tests.digests.makers import post, post_grouped
from tests.factories import T0, make_caller, make_tenant, make_token
from tests.memory.subjects import ALICE, add


def start(token: str, **given: str) -> tuple[int, dict[str, Any]]:
    answer = Client().get("/api/v1/memory/bootstrap", given, headers={"Authorization": f"Bearer {token}"})
    return answer.status_code, answer.json()


def test_the_first_bootstrap_finds_an_empty_inbox_and_the_rules(tenant: Tenant) -> None:
    status, body = start(make_token(tenant), ai_name="Kee", ai_platform="Claude")
    assert (status, body["status"], body["ai_name"]) == (200, "initialized", "Kee")
    assert (body["inbox_unread_count"], body["inbox_items"], body["inbox_more_waiting"]) == (0, [], 0)
    assert (body["sessions"], body["observations_count"], body["owed_by_me"], body["awaited"]) == ([], 0, [], [])
    assert "task_complete" in body["receipt_config"]["event_types"]
    assert body["connected_services"] == ["asyncgate"]


def test_ten_newest_are_shown_with_tokens_and_the_rest_is_counted(tenant: Tenant, kee: Caller) -> None:
    token = make_token(tenant)
    with acting_as(kee):
        posted = [post(kee) for _ in range(12)]
        for _ in range(3):
            post_grouped(kee)
        memory.store_observation(author=kee, text="x", now=T0)
        memory.record_session(principal=kee, conversation_id="c-1", title="Yesterday", now=T0)
    _, body = start(token)
    assert (body["inbox_unread_count"], body["inbox_pending_count"], body["inbox_more_waiting"]) == (15, 3, 5)
    assert [item["receipt_id"] for item in body["inbox_items"]] == [one.receipt_id for one in reversed(posted[2:])]
    assert set(body["inbox_items"][0]) >= {"receipt_id", "source_system", "title", "summary", "created_at"}
    assert all(item["token"].startswith(f"{item['ref']}@12~") for item in body["inbox_items"])
    assert (body["observations_count"], body["sessions"][0]["title"]) == (1, "Yesterday")
    with acting_as(kee):
        shown = {view.receipt_id for view in digests.inbox_receipts(kee.principal_id, limit=50) if view.delivered_at}
    assert shown == {one.receipt_id for one in posted[2:]}


def test_of_a_session_with_a_subject_whose_dates_are_anonymized_the_month_alone_is_told(
    tenant: Tenant, kee: Caller
) -> None:
    with acting_as(kee):
        add(kee, anonymize_dates=True)
        memory.record_session(principal=kee, conversation_id="with", subject_id=ALICE, now=T0)
        memory.record_session(principal=kee, conversation_id="without", now=T0)
    _, body = start(make_token(tenant))
    told = {one["conversation_id"]: one["updated_at"][:10] for one in body["sessions"]}
    assert told == {"with": f"{T0:%Y-%m}-01", "without": f"{T0:%Y-%m-%d}"}


def test_what_is_owed_to_others_and_awaited_of_them_is_told_apart(tenant: Tenant, kee: Caller) -> None:
    hexy, token = make_caller(tenant, "Hexy"), make_token(tenant)
    with acting_as(kee):
        owed = post(kee, poster=hexy, requires_action=True)
        awaited = post(hexy, poster=kee, requires_action=True)
    _, body = start(token)
    told = [[one["receipt_id"] for one in body[name]] for name in ("owed_by_me", "awaited")]
    assert told == [[owed.receipt_id], [awaited.receipt_id]]


def test_another_agents_bootstrap_is_as_unknown_as_nobodys(tenant: Tenant, kee: Caller) -> None:
    make_caller(tenant, "Hexy")
    token = make_token(tenant)
    answers = [start(token, ai_name=name) for name in ("Hexy", "Nobody")]
    assert [status for status, _ in answers] == [404, 404]
    assert {body["code"] for _, body in answers} == {"unknown_principal"}


def test_twenty_first_bootstraps_at_once_all_answer(transactional_db: None) -> None:
    kee = make_caller(make_tenant("acme"))
    barrier, unread = threading.Barrier(20), []

    def begin() -> None:
        try:
            barrier.wait()
            with acting_as(kee):
                found = memory.bootstrap(principal_id=kee.principal_id, tenant_id=kee.tenant_id, ai_name="Kee", now=T0)
            unread.append(found.inbox_unread_count)
        finally:
            connection.close()

    threads = [threading.Thread(target=begin) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert unread == [0] * 20
