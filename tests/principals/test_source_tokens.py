"""source_tokens: what the environment gives is a token of its source, or is refused and changes nothing."""

from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from apps.principals.models import Principal, Token
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as_system
from tests.factories import make_token

TEXT = "correct-horse-battery-staple-0123456789"
NEXT = "another/secret+of=enough;characters:0123"


def accept(settings: Any, **tokens: str) -> None:
    settings.SERVICE_TOKENS = tokens
    call_command("source_tokens", "--tenant", "acme")


def status(text: str, source: str = "ci", header: str = "X-Service-Token") -> int:
    body = {
        "recipient_ai": "Kee",
        "source_system": source,
        "dedupe_key": f"{source}:build:{text[:5]}{header}:v1",
        "summary": "Built.",
    }
    value = f"Bearer {text}" if header == "Authorization" else text
    answer = Client().post("/api/v1/receipts", body, content_type="application/json", headers={header: value})
    return int(answer.status_code)


def rows() -> tuple[int, int]:
    with acting_as_system("test"):
        return Principal.objects.count(), Token.objects.count()


def test_accepted_text_posts_as_its_source_only(kee: Caller, settings: Any) -> None:
    assert status(TEXT) == 401
    for _ in range(2):
        accept(settings, CI_SERVICE_TOKEN=TEXT)
    assert (status(TEXT), status(TEXT, header="Authorization"), status(TEXT, "github")) == (201, 201, 403)
    with acting_as_system("test"):
        token = Token.objects.select_related("principal").get(label="CI_SERVICE_TOKEN")
    assert (token.principal.name, token.principal.kind, token.prefix, str(token)) == (
        "ci",
        "service",
        "",
        "CI_SERVICE_TOKEN",
    )


def test_text_of_a_built_in_source_posts_as_it(kee: Caller, settings: Any) -> None:
    with acting_as_system("test"):
        before = Principal.objects.filter(name="asyncgate").count()
    accept(settings, ASYNCGATE_SERVICE_TOKEN=TEXT)
    with acting_as_system("test"):
        assert Principal.objects.filter(name="asyncgate").count() == max(before, 1)
    assert status(TEXT, "asyncgate") == 201


def test_new_text_ends_the_one_before(kee: Caller, settings: Any) -> None:
    accept(settings, CI_SERVICE_TOKEN=TEXT)
    accept(settings, CI_SERVICE_TOKEN=NEXT)
    assert (status(TEXT), status(NEXT)) == (401, 201)
    accept(settings, CI_SERVICE_TOKEN=TEXT)
    assert status(TEXT) == 401


@pytest.mark.parametrize(
    "text", ["short", "x" * 64, f"{'ab' * 20}", f"with a space {'0123456789' * 4}", "é" * 5 + TEXT]
)
def test_a_weak_text_is_refused(kee: Caller, settings: Any, text: str) -> None:
    before = rows()
    with pytest.raises(CommandError, match="CI_SERVICE_TOKEN is not a text of 32"):
        accept(settings, CI_SERVICE_TOKEN=text)
    assert rows() == before


def test_text_of_another_token_or_an_agents_name_is_refused(kee: Caller, settings: Any) -> None:
    accept(settings, CI_SERVICE_TOKEN=TEXT)
    before = rows()
    with pytest.raises(CommandError, match="something else"):
        accept(settings, OTHER_SERVICE_TOKEN=TEXT)
    with acting_as_system("test"):
        Principal.objects.filter(name="ci").update(kind=Kind.AI)
    with pytest.raises(CommandError, match="needs a service"):
        accept(settings, CI_SERVICE_TOKEN=NEXT)
    assert rows() == before


def test_a_token_of_ours_is_known_by_its_prefix_as_ever(kee: Caller) -> None:
    with acting_as_system("test"):
        tenant = Principal.objects.get(pk=kee.principal_id).tenant
    text = make_token(tenant, "Hexy")
    with acting_as_system("test"):
        assert str(Token.objects.get(principal__name="Hexy")) == f"{text[:12]}…"
