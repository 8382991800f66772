"""The command `issue_token`: a token, or a refusal that leaves nothing behind."""

import io
import json

import pytest
from django.core.management import CommandError, call_command

from apps.principals.models import Principal, Tenant, Token
from apps.principals.tenancy import acting_as_system
from tests.waiters import at_once


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
