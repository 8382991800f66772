"""The retry queue in operators' hands: operations, console, figures, set-up. Tokens are shown nowhere."""

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from pytest_django import Settings

from apps.console import health, metrics
from apps.core.sealing import unseal
from apps.principals.models import Operator, Tenant
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from apps.receipts.models import Letter, RemoteTarget, Residence
from apps.receipts.selectors import target_named
from apps.receipts.states import Breaker, LetterState
from tests import remote as remotes
from tests.digests.makers import post
from tests.factories import make_caller, make_tenant, make_token
from tests.receipts.mailing import STORED, TOKEN, letter, make_target, move_away, tick
from tests.remote import Remote, says


@pytest.fixture
def remote() -> Iterator[Remote]:
    with remotes.serving(says(200, STORED)) as running:
        yield running


@pytest.fixture
def admin(tenant: Tenant) -> str:
    return make_token(tenant, "Ada", scopes=[Scope.ADMIN])


@pytest.fixture
def console(db: None) -> Client:
    client = Client()
    root = Operator.objects.create_superuser(username="root", password="a long enough password")
    client.force_login(root, backend="django.contrib.auth.backends.ModelBackend")
    return client


@pytest.fixture
def dead(tenant: Tenant, kee: Caller, remote: Remote) -> Caller:
    """Lee, who lives at a target that has refused its letter for good."""
    lee = make_caller(tenant, "Lee")
    make_target(kee, remote.url)
    move_away(kee, lee)
    remote.script = [says(422, {"error": "invalid", "message": "too long"})]
    with acting_as(kee):
        post(lee, poster=kee)
        tick()
    return lee


def ask(method: str, path: str, token: str, given: Any = None) -> tuple[int, Any]:
    answer = Client().generic(
        method,
        path,
        b"" if given is None else json.dumps(given),
        content_type="application/json",
        headers={"Authorization": f"Bearer {token}"},
    )
    return answer.status_code, json.loads(answer.content) if answer.content else None


def test_an_admin_adds_a_target_sends_a_principal_there_and_sees_what_becomes_of_its_letters(
    tenant: Tenant, kee: Caller, admin: str, remote: Remote
) -> None:
    given = {"base_url": remote.url, "token": TOKEN, "timeout_seconds": 2}
    status, target = ask("PUT", "/api/v1/remote-targets/memorygate", admin, given)
    assert (status, target["breaker"], target["pending"]) == (200, "closed", 0)
    assert ask("PUT", "/api/v1/remote-targets/memorygate", admin, {"base_url": remote.url})[0] == 200
    assert ask("PUT", "/api/v1/residences/Kee", admin, {})[1] == {
        "principal_ai": "Kee",
        "target": "memorygate",
        "name_there": "Kee",
    }
    assert ask("GET", "/api/v1/residences", admin)[1]["residences"][0]["principal_ai"] == "Kee"

    with acting_as(kee):
        posted = post(kee)
        tick()

    status, page = ask("GET", "/api/v1/remote-targets/memorygate/letters?state=delivered", admin)
    (sent,) = page["letters"]
    assert (sent["receipt_id"], sent["remote_uuid"]) == (posted.receipt_id, STORED["uuid"])
    status, listed = ask("GET", "/api/v1/remote-targets?limit=1", admin)
    assert listed["targets"][0]["delivered"] == 1
    assert ask("GET", f"/api/v1/remote-targets?cursor={listed['next']}", admin)[1]["targets"] == []

    assert ask("DELETE", "/api/v1/residences/Kee", admin) == (200, {"principal_ai": "Kee", "lives": "here"})
    assert ask("DELETE", "/api/v1/residences/Kee", admin)[0] == 404
    assert TOKEN not in json.dumps([target, page, listed])


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"base_url": "https://10.0.0.1", "token": "t"}, "forbidden_endpoint"),
        ({"base_url": "http://u:p@127.0.0.1", "token": "t"}, "forbidden_endpoint"),
        ({"base_url": "http://127.0.0.1?x=1", "token": "t"}, "unusable_target"),
        ({"base_url": "http://127.0.0.1"}, "unusable_target"),
        ({"base_url": "http://127.0.0.1", "token": "with space"}, "invalid"),
        ({"base_url": "http://127.0.0.1", "token": "t", "door": "window"}, "invalid"),
        ({"base_url": "http://127.0.0.1", "token": "t", "timeout_seconds": 0}, "invalid"),
    ],
)
def test_a_target_that_can_not_be_used_is_refused_by_name(admin: str, given: dict[str, Any], code: str) -> None:
    status, problem = ask("PUT", "/api/v1/remote-targets/north", admin, given)
    assert (status, problem["code"]) == (422, code)
    with acting_as_system("test"):
        assert not RemoteTarget.objects.exists()


def test_a_target_whose_name_leads_nowhere_today_can_be_added(admin: str) -> None:
    given = {"base_url": "https://not-yet.invalid", "token": "t"}
    assert ask("PUT", "/api/v1/remote-targets/north", admin, given)[0] == 200


def test_dead_letters_are_replayed_by_an_admin_of_their_tenant_only(dead: Caller, admin: str) -> None:
    stranger = make_token(make_tenant("rival"), "Eve", scopes=[Scope.ADMIN])
    for path in ("letters", "replay"):
        method = "GET" if path == "letters" else "POST"
        assert ask(method, f"/api/v1/remote-targets/north/{path}", stranger, {})[0] == 404
    assert ask("PUT", "/api/v1/residences/Lee", stranger, {"target": "north"})[0] == 404

    (listed,) = ask("GET", "/api/v1/remote-targets/north/letters?state=dead", admin)[1]["letters"]
    assert (listed["failure"], listed["said"]) == ("http_422", "Answered 422: invalid: too long")
    replay = "/api/v1/remote-targets/north/replay"
    assert ask("POST", replay, admin, {"letters": ["letter_999999"]}) == (200, {"replayed": 0})
    assert ask("POST", replay, admin, {"letters": ["ent_1"]})[0] == 400
    assert ask("POST", replay, admin, {"letters": [listed["letter"]]}) == (200, {"replayed": 1})

    with acting_as(dead):
        tick()
        assert letter().state == LetterState.DELIVERED


@pytest.mark.parametrize("model", ["letter", "remotetarget"])
def test_an_operator_replays_by_a_form_with_a_reason(dead: Caller, console: Client, model: str) -> None:
    with acting_as_system("test"):
        key = (Letter if model == "letter" else RemoteTarget).objects.get().pk
    action = reverse(f"admin:receipts_{model}_replay", args=[key])
    console.get(action)
    with acting_as_system("test"):
        assert letter().state == LetterState.DEAD

    console.post(action, {"_form_submitted": "on", "reason": "they have mended it"})

    with acting_as_system("test"):
        assert letter().state == LetterState.PENDING
    assert "they have mended it" in LogEntry.objects.get().change_message


@pytest.mark.parametrize("model", ["letter", "remotetarget"])
def test_a_replay_of_what_is_not_dead_is_refused_and_noted_nowhere(dead: Caller, console: Client, model: str) -> None:
    with acting_as_system("test"):
        key = (Letter if model == "letter" else RemoteTarget).objects.get().pk
    action = reverse(f"admin:receipts_{model}_replay", args=[key])
    console.post(action, {"_form_submitted": "on", "reason": "first"})
    answer = console.post(action, {"_form_submitted": "on", "reason": "again"})

    assert LogEntry.objects.count() == 1
    said = console.get(answer["HX-Redirect"]).content.decode()
    assert "is dead." in said or "is not dead." in said


def test_the_list_of_targets_asks_for_all_their_letters_at_once(dead: Caller, console: Client, remote: Remote) -> None:
    def statements() -> int:
        with CaptureQueriesContext(connection) as captured:
            page = console.get(reverse("admin:receipts_remotetarget_changelist"))
        assert ">1</a>" in page.content.decode()
        return len(captured)

    statements()
    few = statements()
    for number in range(10):
        make_target(dead, remote.url, f"further-{number}")
    assert statements() == few


def test_no_page_shows_a_token(dead: Caller, console: Client) -> None:
    with acting_as_system("test"):
        target = RemoteTarget.objects.get()
    pages = [
        reverse("admin:receipts_remotetarget_changelist"),
        reverse("admin:receipts_remotetarget_change", args=[target.pk]),
        reverse("admin:receipts_letter_changelist"),
    ]
    shown = "".join(console.get(page).content.decode() for page in pages)
    assert "north" in shown
    assert TOKEN not in shown
    assert target.sealed_token not in shown


def test_the_figures_tell_the_queue_from_the_dead_and_each_target(dead: Caller, kee: Caller) -> None:
    with acting_as(kee):
        post(dead, poster=kee)
    told = metrics.exposition().decode()
    assert "delegate_receipt_retry_queue_size 1.0" in told
    assert "gatehouse_letters_dead 1.0" in told
    assert 'gatehouse_letters_attempts_failed{target="north"} 1.0' in told
    assert 'gatehouse_letters_delivered{target="north"} 0.0' in told
    assert "delegate_receipt_emissions_total" in told
    assert "delegate_receipt_emission_duration_seconds" in told


def test_health_says_what_is_dead_late_or_silent(dead: Caller, kee: Caller) -> None:
    assert health._letters().says == "1 are dead"
    with acting_as(kee):
        post(dead, poster=kee)
        moment = letter(state=LetterState.PENDING).created_at
        Letter.objects.filter(state=LetterState.PENDING).update(due_at=moment - timedelta(hours=1))
        assert "late" in health._letters().says
        RemoteTarget.objects.update(breaker=Breaker.OPEN, retry_at=moment)
        finding = health._letters()
    assert (finding.ok, finding.needed) == (False, False)
    assert finding.says == "1 targets do not answer, 1 are dead"


def test_the_environment_names_the_default_target(tenant: Tenant, settings: Settings) -> None:
    call_command("default_target", "--tenant", "acme")
    settings.MEMORYGATE_URL, settings.MEMORYGATE_SERVICE_TOKEN = "https://memorygate.example", ""
    with pytest.raises(CommandError, match="MEMORYGATE_SERVICE_TOKEN"):
        call_command("default_target", "--tenant", "acme")
    settings.MEMORYGATE_SERVICE_TOKEN = TOKEN
    with pytest.raises(CommandError, match="no tenant"):
        call_command("default_target", "--tenant", "nobody")
    for _ in range(2):
        call_command("default_target", "--tenant", "acme")

    with acting_as_system("test"):
        target = target_named("memorygate")
        assert (target.base_url, target.door, unseal(target.sealed_token)) == (
            "https://memorygate.example",
            "universal",
            TOKEN,
        )
        assert not Residence.objects.exists()
