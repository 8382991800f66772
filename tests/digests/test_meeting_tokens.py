"""Posts of one token that meet in a web process, before anybody knows whose token it is."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from apps.core import coalescing, operations
from apps.principals import services
from apps.principals.models import Tenant, Token
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller, acting_as
from apps.receipts.models import Receipt
from tests.digests.makers import post
from tests.digests.test_meeting_posts import given, held, until
from tests.digests.test_races import race
from tests.factories import make_token

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def token(tenant: Tenant, kee: Caller, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(coalescing, "_PATIENCE", 20.0)
    with acting_as(kee):
        post(kee)  # its inbox is there
    token = make_token(tenant, name="Kee", source_systems=["ci"])
    assert ask(token, json.dumps(given("used"))).status_code == 201
    return token


def ask(token: str, body: str) -> Any:
    headers = {"Authorization": f"Bearer {token}"}
    return Client().generic("POST", "/api/v1/receipts", body, content_type="application/json", headers=headers)


def meeting(
    kee: Caller, token: str, bodies: list[str], *, meanwhile: Callable[[], None] = lambda: None
) -> tuple[Any, list[Any]]:
    """The answer to a first post, and those to posts that all came while it was at work."""
    line = operations._coalescer._waiting
    with held(kee) as release:

        def later(body: str) -> Callable[[], Any]:
            def rival() -> Any:
                until(lambda: bool(line))
                return ask(token, body)

            return rival

        def let_go() -> None:
            until(lambda: sum(map(len, line.values())) == len(bodies))
            meanwhile()
            release.set()

        first, *answers, _ = race(lambda: ask(token, json.dumps(given("first"))), *map(later, bodies), let_go)
    assert not line
    return first, answers


def test_each_hears_what_it_would_hear_alone(kee: Caller, token: str) -> None:
    gathered = given("g", group={"resource_ref": "repo:a", "event_family": "ci"})
    first, answers = meeting(
        kee,
        token,
        [
            json.dumps(given("a")),
            "{no JSON",
            json.dumps(given("b", title=5)),
            json.dumps(given("c")),
            json.dumps(given("used", summary="Another content.")),
            json.dumps(gathered),
        ],
    )

    assert [one.status_code for one in (first, *answers)] == [201, 201, 400, 422, 201, 409, 201]
    assert [one.json()["code"] for one in answers if one.status_code >= 400] == [
        "malformed_json",
        "invalid",
        "dedupe_conflict",
    ]
    # Those that were made together began together.
    assert answers[0].json()["created_at"] == answers[3].json()["created_at"]
    with acting_as(kee):
        stored = set(Receipt.objects.values_list("dedupe_key", flat=True))
    assert stored >= {"first", "a", "c", "g"}
    assert "b" not in stored


def test_a_token_that_is_revoked_before_its_posts_are_made_lets_none_of_them_in(
    kee: Caller, token: str, caplog: pytest.LogCaptureFixture
) -> None:
    def revoke() -> None:
        with acting_as(kee):
            services.revoke_tokens(principal_id=kee.principal_id, now=timezone.now())

    first, answers = meeting(kee, token, [json.dumps(given("a")), json.dumps(given("b"))], meanwhile=revoke)

    assert (first.status_code, [one.status_code for one in answers]) == (201, [401, 401])
    with acting_as(kee):
        assert not Receipt.objects.filter(dedupe_key__in=["a", "b"]).exists()
    # That is their trouble, not the server's.
    assert not [record for record in caplog.records if record.exc_info]


def test_a_token_without_the_scope_is_refused_before_its_bodies_are_read(
    tenant: Tenant, kee: Caller, token: str
) -> None:
    reader = make_token(tenant, name="Kee", scopes=[Scope.INBOX], source_systems=["ci"])
    answer = ask(reader, "{no JSON")
    assert (answer.status_code, answer.json()["code"]) == (403, "missing_scope")


def test_the_use_of_a_token_is_noted_whatever_becomes_of_the_request(kee: Caller, token: str) -> None:
    with acting_as(kee):
        Token.objects.filter(principal_id=kee.principal_id).update(last_used_at=None)
    assert ask(token, "{no JSON").status_code == 400
    with acting_as(kee):
        assert Token.objects.get(principal_id=kee.principal_id).last_used_at is not None
