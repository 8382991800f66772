"""Coalesced posts: calls of one caller at the same moment share a transaction, and each is answered as if alone."""

import json
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from apps.core import coalescing, operations
from apps.core.errors import DomainError
from apps.core.schemas import parse
from apps.core.sql import fetch
from apps.digests import services as digests
from apps.principals import services
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as
from apps.receipts.models import Receipt
from tests.digests.makers import post, unsound
from tests.factories import make_caller, make_token
from tests.waiters import at_once, held, until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def poster(kee: Caller, monkeypatch: pytest.MonkeyPatch) -> Caller:
    monkeypatch.setattr(coalescing, "_PATIENCE", 20.0)
    caller = replace(kee, source_systems=frozenset({"ci"}))
    with acting_as(caller):
        post(caller)  # its inbox is there
    return caller


def given(key: str, **more: Any) -> dict[str, Any]:
    return {"recipient_ai": "Kee", "source_system": "ci", "dedupe_key": key, "summary": "It happened.", **more}


def call(poster: Caller, receipt: dict[str, Any]) -> Any:
    declared = operations.find("post_receipt")
    return operations.call(declared, poster, parse(declared.input, receipt)).output


def inbox_held(owner: Caller) -> AbstractContextManager[threading.Event]:
    return held(owner, lambda: digests.lock(principal_id=owner.principal_id))


def is_held_up() -> bool:
    """Whether a transaction waits for a lock: the first post, whose token was looked at."""
    return bool(
        fetch(
            "select exists (select from pg_locks join pg_stat_activity using (pid)"
            " where not granted and datname = current_database())"
        )[0][0]
    )


def meeting(
    owner: Caller,
    send: Callable[[Any], Any],
    receipts: list[Any],
    *,
    hear: Callable[[Any], None] = lambda answer: None,
    meanwhile: Callable[[], None] = lambda: None,
) -> list[Any]:
    """What becomes of these posts, which all come while an earlier one is at work; each is heard as it is stored."""
    line = operations._coalescer._waiting
    with inbox_held(owner) as release:

        def later(receipt: Any) -> Callable[[], Any]:
            def rival() -> Any:
                until(lambda: bool(line))
                answer = send(receipt)
                hear(answer)
                return answer

            return rival

        def let_go() -> None:
            until(lambda: sum(map(len, line.values())) == len(receipts) and is_held_up())
            meanwhile()
            release.set()

        first, *answers, _ = at_once(lambda: send(given("first")), *map(later, receipts), let_go)
    assert not line
    assert getattr(first, "status_code", None) == 201 or first.entry is not None
    return answers


def test_coalesced_posts_each_get_their_own_answer(tenant: Tenant, poster: Caller) -> None:
    make_caller(tenant, "Hexy")
    with acting_as(poster):
        post(poster, source="ci", dedupe_key="old")
    stored, other, owed, old, foreign, nobody, proof = meeting(
        poster,
        partial(call, poster),
        [
            given("a"),
            given("b", recipient_ai="Hexy", title="B", metadata={"n": 1}),
            given("c", requires_action=True),
            given("old", summary="Another content."),
            given("d", source_system="gitlab"),
            given("e", recipient_ai="Nobody"),
            given("f", surface="ledger"),
        ],
    )
    assert [stored.dedupe_key, other.dedupe_key, owed.dedupe_key, proof.dedupe_key] == ["a", "b", "c", "f"]
    assert all(one.entry is not None for one in (stored, other, owed))
    assert proof.entry is None
    assert stored.created_at == other.created_at == owed.created_at == proof.created_at
    assert [one.code for one in (old, foreign, nobody) if isinstance(one, DomainError)] == [
        "dedupe_conflict",
        "not_this_caller",
        "unknown_recipient",
    ]
    with acting_as(poster):
        assert set(Receipt.objects.values_list("dedupe_key", flat=True)) >= {"first", "a", "b", "c", "old", "f"}
        assert not Receipt.objects.filter(dedupe_key__in=["d", "e"]).exists()
        assert unsound() == {}


def test_coalesced_posts_do_not_wait_for_a_locked_inbox(
    poster: Caller, hexy: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    with acting_as(hexy):
        post(hexy)
    # Whoever waits for a lock without a limit of its own waits for longer than the test.
    options = connection.settings_dict["OPTIONS"]
    monkeypatch.setitem(options, "options", options["options"].replace("lock_timeout=10s", "lock_timeout=60s"))
    assert "lock_timeout=60s" in options["options"]
    heard = set[str]()
    with inbox_held(hexy) as release:

        def hear(answer: Any) -> None:
            heard.add(answer.dedupe_key)
            if heard >= {"a", "c"}:
                release.set()

        receipts = [given("a"), given("b", recipient_ai="Hexy"), given("c"), given("d", source_system="gitlab")]
        *stored, foreign = meeting(poster, partial(call, poster), receipts, hear=hear)
    assert [one.dedupe_key for one in stored] == ["a", "b", "c"]
    assert foreign.code == "not_this_caller"


def test_the_same_post_twice_at_once_is_stored_once(poster: Caller) -> None:
    answers = meeting(poster, partial(call, poster), [given("a"), given("a"), given("b")])
    refused = [one for one in answers if isinstance(one, DomainError)]
    assert [one.code for one in refused] == ["duplicate_receipt"]
    stored = [one for one in answers if not isinstance(one, DomainError)]
    assert refused[0].extra["existing_receipt_id"] == next(one.receipt_id for one in stored if one.dedupe_key == "a")


def test_callers_do_not_share_a_transaction(tenant: Tenant, poster: Caller) -> None:
    hexy = replace(make_caller(tenant, "Hexy"), source_systems=frozenset({"ci"}))
    with inbox_held(poster) as release:

        def other() -> Any:
            posted = call(hexy, given("b", recipient_ai="Hexy"))
            release.set()
            return posted

        outcomes = at_once(lambda: call(poster, given("a")), other)
    assert [posted.dedupe_key for posted in outcomes] == ["a", "b"]


@pytest.fixture
def token(tenant: Tenant, kee: Caller, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(coalescing, "_PATIENCE", 20.0)
    with acting_as(kee):
        post(kee)  # its inbox is there
    token = make_token(tenant, name="Kee", source_systems=["ci"])
    assert ask(token, given("used")).status_code == 201
    return token


def ask(token: str, given: dict[str, Any] | str) -> Any:
    body = given if isinstance(given, str) else json.dumps(given)
    headers = {"Authorization": f"Bearer {token}"}
    return Client().generic("POST", "/api/v1/receipts", body, content_type="application/json", headers=headers)


def test_each_hears_what_it_would_hear_alone(kee: Caller, token: str) -> None:
    bodies = [
        given("a"),
        "{no JSON",
        given("b", title=5),
        given("c"),
        given("used", summary="Another content."),
        given("g", group={"resource_ref": "repo:a", "event_family": "ci"}),
    ]
    answers = meeting(kee, partial(ask, token), bodies)
    assert [one.status_code for one in answers] == [201, 400, 422, 201, 409, 201]
    codes = [one.json()["code"] for one in answers if one.status_code >= 400]
    assert codes == ["malformed_json", "invalid", "dedupe_conflict"]
    # Those that were made together began together.
    assert answers[0].json()["created_at"] == answers[3].json()["created_at"]
    with acting_as(kee):
        stored = set(Receipt.objects.values_list("dedupe_key", flat=True))
    assert stored >= {"first", "a", "c", "g"}
    assert "b" not in stored


def test_revoked_token_refuses_waiting_posts(kee: Caller, token: str, caplog: pytest.LogCaptureFixture) -> None:
    def revoke() -> None:
        with acting_as(kee):
            services.revoke_tokens(principal_id=kee.principal_id, now=timezone.now())

    answers = meeting(kee, partial(ask, token), [given("a"), given("b")], meanwhile=revoke)
    assert [one.status_code for one in answers] == [401, 401]
    with acting_as(kee):
        assert not Receipt.objects.filter(dedupe_key__in=["a", "b"]).exists()
    # That is their trouble, not the server's.
    assert not [record for record in caplog.records if record.exc_info]
