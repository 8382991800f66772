"""The commands `issue_token` and `source_tokens`: a token, or a refusal that leaves nothing behind."""

import io
import json
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from apps.principals.models import Principal, Tenant, Token
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as_system
from tests.factories import make_caller, make_tenant
from tests.waiters import at_once

TEXT = "correct-horse-battery-staple-0123456789"
NEXT = "another/secret+of=enough;characters:0123"


def _issue(principal: str, *arguments: str, scope: str = "inbox") -> dict[str, str]:
    answer = io.StringIO()
    call_command("issue_token", "--principal", principal, "--scope", scope, *arguments, "--json", stdout=answer)
    issued: dict[str, str] = json.loads(answer.getvalue())
    return issued


def _rows() -> tuple[int, int, int]:
    with acting_as_system("test"):
        return Tenant.objects.count(), Principal.objects.count(), Token.objects.count()


def _principal(name: str) -> Principal:
    with acting_as_system("test"):
        return Principal.objects.select_related("parent").get(name=name)


def test_principal_is_created_with_its_kind_and_parent(db: None) -> None:
    assert _issue("Hexy")["principal"] == "Hexy"
    _issue("delegate", "--kind", "delegate", scope="plans")
    _issue("code-dept", "--kind", "delegate", "--parent", "delegate", scope="plans")
    _issue("code-dept", "--parent", "delegate")
    assert _principal("Hexy").kind == "ai"
    assert str(_principal("code-dept").parent) == "delegate"
    assert _principal("delegate").parent is None


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("Kee", ["--kind", "worker"], "Kee exists and is of the kind ai, not worker"),
        ("Hexy", ["--parent", "nobody-known"], "There is no principal 'nobody-known' to report to"),
        ("Hexy", ["--parent", "Hexy"], "There is no principal 'Hexy' to report to"),
        ("Hexy", ["--parent", "elsewhere"], "There is no principal 'elsewhere' to report to"),
        ("Kee", ["--parent", "Ada"], "Kee exists and reports to nobody, not Ada"),
        ("a/b", [], "can't stand in an address"),
        ("Hexy", ["--tenant", "new", "--kind", "worker", "--scope", "tasks:queue"], "A worker can't hold tasks:queue"),
    ],
)
def test_refused_command_changes_nothing(db: None, name: str, arguments: list[str], reason: str) -> None:
    for known in ("Ada", "Kee"):
        _issue(known)
    _issue("elsewhere", "--tenant", "other")
    before = _rows()
    with pytest.raises(CommandError, match=reason):
        _issue(name, *arguments)
    assert (_rows(), _principal("Kee").parent, _principal("Kee").kind) == (before, None, "ai")


def test_token_needs_a_scope(db: None) -> None:
    with pytest.raises(CommandError, match="A token without scopes may do nothing"):
        call_command("issue_token", "--principal", "Hexy")


@pytest.mark.django_db(transaction=True)
def test_racing_commands_each_print_a_token_of_one_new_principal() -> None:
    _issue("first")
    issued = at_once(*[lambda: _issue("Hexy")] * 4)
    assert len({one["token"] for one in issued}) == 4
    with acting_as_system("test"):
        assert Principal.objects.get(name="Hexy").tokens.count() == 4


@pytest.fixture
def kee(db: None) -> Caller:
    return make_caller(make_tenant("default"), "Kee")


def accept(settings: Any, **tokens: str) -> None:
    settings.SERVICE_TOKENS = tokens
    call_command("source_tokens")


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


def test_accepted_text_posts_as_its_source_only(kee: Caller, settings: Any) -> None:
    assert status(TEXT) == 401
    for _ in range(2):
        accept(settings, CI_SERVICE_TOKEN=TEXT)
    assert (status(TEXT), status(TEXT, header="Authorization"), status(TEXT, "github")) == (201, 201, 403)
    with acting_as_system("test"):
        token = Token.objects.select_related("principal").get(label="CI_SERVICE_TOKEN")
    assert (token.principal.name, token.principal.kind) == ("ci", "service")
    assert (token.prefix, str(token)) == ("", "CI_SERVICE_TOKEN")
    # A built-in source keeps its principal.
    accept(settings, ASYNCGATE_SERVICE_TOKEN=NEXT)
    assert (status(NEXT, "asyncgate"), _principal("asyncgate").kind) == (201, "service")


def test_new_text_ends_the_one_before(kee: Caller, settings: Any) -> None:
    accept(settings, CI_SERVICE_TOKEN=TEXT)
    with acting_as_system("test"):
        Principal.objects.filter(name="ci").update(name="builds")
    accept(settings, CI_SERVICE_TOKEN=TEXT)
    assert status(TEXT) == 201
    accept(settings, CI_SERVICE_TOKEN=NEXT)
    assert (status(TEXT), status(NEXT)) == (401, 201)
    accept(settings, CI_SERVICE_TOKEN=TEXT)
    assert status(TEXT) == 401


@pytest.mark.parametrize(
    "text", ["short", "x" * 64, f"{'ab' * 20}", f"with a space {'0123456789' * 4}", "é" * 5 + TEXT]
)
def test_weak_text_is_refused(kee: Caller, settings: Any, text: str) -> None:
    before = _rows()
    with pytest.raises(CommandError, match="CI_SERVICE_TOKEN is not a text of 32"):
        accept(settings, CI_SERVICE_TOKEN=text)
    assert _rows() == before


def test_text_of_another_token_or_an_agents_name_is_refused(kee: Caller, settings: Any) -> None:
    accept(settings, CI_SERVICE_TOKEN=TEXT)
    before = _rows()
    with pytest.raises(CommandError, match="something else"):
        accept(settings, OTHER_SERVICE_TOKEN=TEXT)
    with acting_as_system("test"):
        Principal.objects.filter(name="ci").update(kind=Kind.AI)
    with pytest.raises(CommandError, match="needs a service"):
        accept(settings, CI_SERVICE_TOKEN=NEXT)
    assert _rows() == before
