"""issue_token: a token by the command line, or a refusal that leaves nothing behind."""

import io
import json

import pytest
from django.core.management import CommandError, call_command

from apps.principals.models import Principal, Tenant, Token
from apps.principals.tenancy import acting_as_system
from tests.digests.test_races import race


def _issue(*arguments: str) -> dict[str, str]:
    answer = io.StringIO()
    call_command("issue_token", *arguments, "--json", stdout=answer)
    issued: dict[str, str] = json.loads(answer.getvalue())
    return issued


def _rows() -> tuple[int, int, int]:
    with acting_as_system("test"):
        return Tenant.objects.count(), Principal.objects.count(), Token.objects.count()


def _kind(name: str) -> str:
    with acting_as_system("test"):
        return Principal.objects.get(name=name).kind


def test_new_principal_is_an_agent_by_default(db: None) -> None:
    assert _issue("--principal", "Hexy", "--scope", "inbox")["principal"] == "Hexy"
    _issue("--principal", "billing", "--kind", "service", "--scope", "receipts:write")
    assert (_kind("Hexy"), _kind("billing")) == ("ai", "service")


def test_existing_principal_keeps_its_kind(db: None) -> None:
    _issue("--principal", "billing", "--kind", "service", "--scope", "receipts:write")
    _issue("--principal", "billing", "--scope", "receipts:write")
    before = _rows()

    with pytest.raises(CommandError, match="billing exists and is of the kind service, not worker"):
        _issue("--principal", "billing", "--kind", "worker", "--scope", "tasks:work")

    assert (_rows(), _kind("billing")) == (before, "service")


def _parent(name: str) -> str | None:
    with acting_as_system("test"):
        above = Principal.objects.select_related("parent").get(name=name).parent
        return None if above is None else above.name


def test_a_new_principal_reports_to_the_parent_that_is_named(db: None) -> None:
    _issue("--principal", "delegate", "--kind", "delegate", "--scope", "plans")
    _issue("--principal", "code-dept", "--kind", "delegate", "--parent", "delegate", "--scope", "plans")
    _issue("--principal", "code-dept", "--parent", "delegate", "--scope", "inbox")

    assert (_parent("code-dept"), _parent("delegate")) == ("delegate", None)


@pytest.mark.parametrize(
    ("name", "parent", "reason"),
    [
        ("Hexy", "nobody-known", "There is no principal 'nobody-known' to report to"),
        ("Hexy", "Hexy", "There is no principal 'Hexy' to report to"),
        ("Hexy", "elsewhere", "There is no principal 'elsewhere' to report to"),
        ("Kee", "Ada", "Kee exists and reports to nobody, not Ada"),
    ],
)
def test_impossible_parent_is_refused(db: None, name: str, parent: str, reason: str) -> None:
    for known in ("Ada", "Kee"):
        _issue("--principal", known, "--scope", "inbox")
    _issue("--principal", "elsewhere", "--tenant", "other", "--scope", "inbox")
    before = _rows()

    with pytest.raises(CommandError, match=reason):
        _issue("--principal", name, "--parent", parent, "--scope", "inbox")

    assert (_rows(), _parent("Kee")) == (before, None)


@pytest.mark.django_db(transaction=True)
def test_commands_that_meet_each_print_a_token_of_one_new_principal() -> None:
    _issue("--principal", "first", "--scope", "inbox")

    issued = race(*[lambda: _issue("--principal", "Hexy", "--scope", "inbox")] * 4)

    assert len({one["token"] for one in issued}) == 4
    with acting_as_system("test"):
        assert Principal.objects.get(name="Hexy").tokens.count() == 4


def test_no_principal_has_a_name_that_no_address_can_hold(db: None) -> None:
    before = _rows()
    with pytest.raises(CommandError, match="can't stand in an address"):
        _issue("--principal", "a/b", "--scope", "inbox")
    assert _rows() == before


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "A token without scopes may do nothing: name at least one"),
        (["--kind", "worker", "--scope", "tasks:queue"], "A worker can't hold tasks:queue"),
    ],
)
def test_refused_command_creates_nothing(db: None, arguments: list[str], reason: str) -> None:
    before = _rows()

    with pytest.raises(CommandError, match=reason):
        _issue("--principal", "Hexy", "--tenant", "new", *arguments)

    assert _rows() == before


def test_every_option_has_a_help_text(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        call_command("issue_token", "--help")
    shown = " ".join(capsys.readouterr().out.split())
    for words in (
        "who will act",
        "what the token may do",
        "may post receipts",
        "whose data",
        "know the token",
        "reports when",
    ):
        assert words in shown
