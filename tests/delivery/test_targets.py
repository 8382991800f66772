"""Webhooks and remote targets over HTTP and in the console: who may do what with them, and what is refused."""

import json
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
from standardwebhooks import Webhook, WebhookVerificationError

from apps.console import health, metrics
from apps.core.ids import format_ref
from apps.core.sealing import unseal
from apps.delivery.models import Delivery, RemoteRoute, State, Target
from apps.delivery.selectors import remote_named
from apps.principals.models import Operator, Tenant
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from tests import remote as remotes
from tests.delivery.making import (
    STORED,
    TOKEN,
    deliver,
    delivery,
    make_remote,
    make_webhook,
    pass_time,
    reloaded,
    wake,
)
from tests.digests.makers import post
from tests.factories import make_caller, make_tenant, make_token
from tests.remote import Remote, says


class Owner:
    """A principal's way to the operations of this app."""

    def __init__(self, tenant: Tenant, name: str, **given: Any) -> None:
        self._headers = {"Authorization": f"Bearer {make_token(tenant, name, **given)}"}

    def ask(self, method: str, path: str = "/targets", status: int = 200, **given: Any) -> Any:
        body = "" if method in {"GET", "DELETE"} else json.dumps(given)
        answer = Client().generic(
            method, f"/api/v1{path}", body, content_type="application/json", headers=self._headers
        )
        assert answer.status_code == status, answer.content
        return answer.json()

    def make(self, url: str, **given: Any) -> Any:
        return self.ask("POST", status=201, url=url, **given)


@pytest.fixture
def owner(tenant: Tenant) -> Owner:
    return Owner(tenant, "Kee")


@pytest.fixture
def ada(tenant: Tenant) -> Owner:
    """Who runs the deployment."""
    return Owner(tenant, "Ada", scopes=[Scope.ADMIN])


def stored() -> list[tuple[Any, ...]]:
    with acting_as_system("test"):
        return list(Target.objects.order_by("pk").values_list())


# Webhooks.


def test_webhook_secret_is_shown_once_and_stored_sealed(owner: Owner, agent: Remote) -> None:
    made = owner.make(agent.url, notify_lease_ms=5000, min_unacked=2, with_titles=True)
    assert made["secret"].startswith("whsec_")
    shown = {name: value for name, value in made.items() if name != "secret"}
    assert (shown["kind"], shown["url"], shown["state"]) == ("webhook", agent.url, "enabled")
    assert (shown["notify_lease_ms"], shown["min_unacked"], shown["with_titles"]) == (5000, 2, True)
    assert owner.ask("GET")["targets"] == [shown]
    assert made["secret"].removeprefix("whsec_") not in str(stored())


def test_ping_is_signed_and_changes_nothing(owner: Owner, agent: Remote) -> None:
    made = owner.make(agent.url)
    test = f"/targets/{made['target']}/test"
    assert owner.ask("POST", test) == {"delivered": True, "result": "HTTP 200"}
    (call,) = agent.received
    assert Webhook(made["secret"]).verify(call.body, dict(call.headers))["type"] == "ping"
    agent.always = says(410)
    assert owner.ask("POST", test) == {"delivered": False, "result": "HTTP 410"}
    agent.always = remotes.hangs_up
    assert owner.ask("POST", test)["result"].startswith("disconnected: ")
    (left,) = owner.ask("GET")["targets"]
    assert (left["state"], left["sent"], left["failed"], left["result"]) == ("enabled", 0, 0, None)


def test_both_secrets_verify_during_a_rotation(as_kee: Caller, owner: Owner, agent: Remote) -> None:
    made = make_webhook(as_kee, agent.url, notify_lease=timedelta(0))
    ref = format_ref("tgt", made.target.pk)
    new = owner.ask("POST", f"/targets/{ref}/rotate-secret", overlap_ms=60_000)["secret"]
    assert new != made.secret
    for seconds in (0, 60):
        pass_time(seconds)
        post(as_kee)
        assert wake(made.target)
    during, after = agent.received
    for secret, call in ((made.secret, during), (new, during), (new, after)):
        Webhook(secret).verify(call.body, dict(call.headers))
    with pytest.raises(WebhookVerificationError):
        Webhook(made.secret).verify(after.body, dict(after.headers))


def test_webhook_is_changed_stopped_resumed_and_deleted(owner: Owner, agent: Remote) -> None:
    ref = owner.make(agent.url)["target"]
    path = f"/targets/{ref}"
    changed = owner.ask("PATCH", path, url=f"{agent.url}/other", notify_lease_ms=0, enabled=False)
    assert (changed["url"], changed["notify_lease_ms"], changed["min_unacked"]) == (f"{agent.url}/other", 0, 1)
    assert (changed["state"], changed["stopped_reason"]) == ("stopped", "Stopped by its owner.")
    assert owner.ask("PATCH", path, enabled=True)["state"] == "enabled"
    assert owner.ask("DELETE", path) == {"target": ref, "status": "deleted"}
    owner.ask("PATCH", path, status=404)
    assert stored() == []


def test_webhooks_are_listed_in_pages(owner: Owner, agent: Remote) -> None:
    refs = [owner.make(f"{agent.url}/{number}")["target"] for number in range(3)]
    first = owner.ask("GET", "/targets?limit=2")
    rest = owner.ask("GET", f"/targets?limit=2&cursor={first['next']}")
    assert [one["target"] for one in first["targets"] + rest["targets"]] == refs
    assert rest["next"] is None


@pytest.mark.parametrize(
    ("method", "path"), [("PATCH", ""), ("DELETE", ""), ("POST", "/test"), ("POST", "/rotate-secret")]
)
def test_webhook_of_another_principal_is_unknown(
    tenant: Tenant, owner: Owner, agent: Remote, method: str, path: str
) -> None:
    ref = owner.make(agent.url)["target"]
    before = stored()
    hexy = Owner(tenant, "Hexy")
    number = int(ref.removeprefix("tgt_"))
    unknown = hexy.ask(method, f"/targets/tgt_{number + 1}{path}", status=404)
    theirs = hexy.ask(method, f"/targets/{ref}{path}", status=404)
    assert theirs["code"] == unknown["code"] == "unknown_target"
    assert hexy.ask("GET")["targets"] == []
    assert (stored(), agent.received) == (before, [])


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({}, "invalid"),
        ({"url": "https://10.1.2.3/hook"}, "forbidden_endpoint"),
        ({"url": "https://[::1%25eth0]:443/"}, "forbidden_endpoint"),
        ({"url": "http://1.1.1.1/"}, "forbidden_endpoint"),
        ({"url": "http://0177.0.0.1:18799/x"}, "forbidden_endpoint"),
        ({"url": "https://user:word@1.1.1.1/"}, "forbidden_endpoint"),
        ({"url": "ftp://1.1.1.1/"}, "invalid"),
        ({"url": "https://1.1.1.1/ space"}, "invalid"),
        ({"url": "https://1.1.1.1/" + "x" * 500}, "invalid"),
        ({"url": "https://1.1.1.1/", "min_unacked": 0}, "invalid"),
        ({"url": "https://1.1.1.1/", "notify_lease_ms": -1}, "invalid"),
        ({"url": "https://1.1.1.1/", "notify_lease_ms": 2**53}, "invalid"),
    ],
)
def test_impossible_webhook_is_refused(owner: Owner, given: dict[str, Any], code: str) -> None:
    assert owner.ask("POST", status=422, **given)["code"] == code
    assert stored() == []


def test_impossible_change_is_refused_and_changes_nothing(
    owner: Owner, agent: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.delivery.services.targets.MOST", 3)
    owner.make(f"{agent.url}/1")
    ref = owner.make(f"{agent.url}/2")["target"]
    before = stored()
    path = f"/targets/{ref}"
    assert owner.ask("PATCH", path, status=409, url=f"{agent.url}/1")["code"] == "target_exists"
    assert owner.ask("POST", status=409, url=f"{agent.url}/1")["code"] == "target_exists"
    assert owner.ask("PATCH", path, status=422, url="https://10.0.0.1/")["code"] == "forbidden_endpoint"
    assert owner.ask("PATCH", "/targets/thr_1", status=400)["code"] == "malformed"
    assert owner.ask("POST", f"{path}/rotate-secret", status=422, overlap_ms=-1)["code"] == "invalid"
    assert stored() == before
    owner.make(f"{agent.url}/3")
    assert owner.ask("POST", status=409, url=f"{agent.url}/4")["code"] == "too_many_targets"


def test_rows_of_a_tenant_are_invisible_without_it(as_kee: Caller) -> None:
    make_webhook(as_kee, "https://agent.example/")
    with connection.cursor() as cursor:
        cursor.execute("select set_config('gatehouse.tenant', '', true)")
        for table in ("delivery_target", "delivery_delivery", "delivery_remoteroute"):
            cursor.execute(f"select count(*) from {table}")
            assert cursor.fetchone() == (0,)


# Remote targets.


def test_admin_adds_a_remote_moves_a_principal_and_sees_its_deliveries(kee: Caller, ada: Owner, remote: Remote) -> None:
    target = ada.ask("PUT", "/remote-targets/memorygate", url=remote.url, token=TOKEN, timeout_seconds=2)
    assert (target["breaker"], target["pending"]) == ("closed", 0)
    ada.ask("PUT", "/remote-targets/memorygate", url=remote.url)  # keeps its token
    moved = {"principal_ai": "Kee", "moved_to": "memorygate", "remote_name": "Kee"}
    assert ada.ask("PUT", "/remote-routes/Kee") == moved
    assert ada.ask("GET", "/remote-routes")["routes"] == [moved]
    with acting_as(kee):
        posted = post(kee)
    deliver()
    page = ada.ask("GET", "/remote-targets/memorygate/deliveries?state=delivered")
    (sent,) = page["deliveries"]
    assert (sent["receipt_id"], sent["remote_id"]) == (posted.receipt_id, STORED["uuid"])
    assert remote.received[0].headers["X-Service-Token"] == TOKEN
    listed = ada.ask("GET", "/remote-targets?limit=1")
    assert listed["targets"][0]["sent"] == 1
    assert ada.ask("GET", f"/remote-targets?cursor={listed['next']}")["targets"] == []
    assert ada.ask("DELETE", "/remote-routes/Kee") == {"principal_ai": "Kee", "moved_to": None}
    assert ada.ask("DELETE", "/remote-routes/Kee", status=404)["code"] == "lives_here"
    assert TOKEN not in json.dumps([target, page, listed])


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"url": "https://10.0.0.1", "token": "t"}, "forbidden_endpoint"),
        ({"url": "http://u:p@127.0.0.1", "token": "t"}, "forbidden_endpoint"),
        ({"url": "http://127.0.0.1?x=1", "token": "t"}, "unusable_target"),
        ({"url": "http://127.0.0.1#x", "token": "t"}, "unusable_target"),
        ({"url": "http://127.0.0.1"}, "unusable_target"),
        ({"url": "http://127.0.0.1", "token": "with space"}, "invalid"),
        ({"url": "http://127.0.0.1", "token": "t", "endpoint": "window"}, "invalid"),
        ({"url": "http://127.0.0.1", "token": "t", "timeout_seconds": 0}, "invalid"),
    ],
)
def test_impossible_remote_is_refused(ada: Owner, given: dict[str, Any], code: str) -> None:
    assert ada.ask("PUT", "/remote-targets/north", status=422, **given)["code"] == code
    assert stored() == []


@pytest.mark.parametrize("url", ["north", "ftp://north", "https://", "https://north:0", "https://north:x"])
def test_malformed_address_of_a_remote_is_refused(ada: Owner, url: str) -> None:
    ada.ask("PUT", "/remote-targets/north", status=422, url=url, token="t")
    assert stored() == []


def test_remote_without_an_address_today_can_be_added(ada: Owner) -> None:
    ada.ask("PUT", "/remote-targets/north", url="https://not-yet.invalid", token="t")


@pytest.fixture
def dead(kee: Caller, lee: Caller, north: Target, remote: Remote) -> Delivery:
    """A delivery that the target has refused for good."""
    remote.script = [says(422, {"error": "invalid", "message": "too long"})]
    with acting_as(kee):
        post(lee, poster=kee)
        deliver()
        return delivery()


def test_dead_deliveries_are_replayed_by_an_admin_of_their_tenant_only(dead: Delivery, kee: Caller, ada: Owner) -> None:
    eve = Owner(make_tenant("rival"), "Eve", scopes=[Scope.ADMIN])
    eve.ask("GET", "/remote-targets/north/deliveries", status=404)
    eve.ask("POST", "/remote-targets/north/replay", status=404)
    make_caller(make_tenant("rival"), "Lee North")
    assert eve.ask("PUT", "/remote-routes/Lee North", status=404, target="north")["code"] == "unknown_target"

    (listed,) = ada.ask("GET", "/remote-targets/north/deliveries?state=dead")["deliveries"]
    assert (listed["failure"], listed["said"]) == ("http_422", "Answered 422: invalid: too long")
    replay = "/remote-targets/north/replay"
    assert ada.ask("POST", replay, deliveries=["delivery_999999"]) == {"replayed": 0}
    ada.ask("POST", replay, status=400, deliveries=["ent_1"])
    assert ada.ask("POST", replay, deliveries=[listed["delivery"]]) == {"replayed": 1}
    deliver()
    with acting_as(kee):
        assert delivery().state == State.DELIVERED


# The console, figures and set-up.


@pytest.fixture
def console(db: None) -> Client:
    client = Client()
    root = Operator.objects.create_superuser(username="root", password="a long enough password")
    client.force_login(root, backend="django.contrib.auth.backends.ModelBackend")
    return client


@pytest.mark.parametrize("model", ["delivery", "target"])
def test_operator_replays_with_a_reason_and_only_what_is_dead(dead: Delivery, console: Client, model: str) -> None:
    key = dead.pk if model == "delivery" else dead.target_id
    action = reverse(f"admin:delivery_{model}_replay", args=[key])
    console.get(action)
    with acting_as_system("test"):
        assert delivery().state == State.DEAD
    console.post(action, {"_form_submitted": "on", "reason": "they have mended it"})
    with acting_as_system("test"):
        assert delivery().state == State.PENDING
    assert "they have mended it" in LogEntry.objects.get().change_message
    answer = console.post(action, {"_form_submitted": "on", "reason": "again"})
    assert LogEntry.objects.count() == 1
    said = console.get(answer["HX-Redirect"]).content.decode()
    assert "is dead." in said or "is not dead." in said


def test_operator_pages_show_no_secret_and_count_at_once(dead: Delivery, kee: Caller, console: Client) -> None:
    def page() -> tuple[int, str]:
        with CaptureQueriesContext(connection) as captured:
            shown = console.get(reverse("admin:delivery_target_changelist")).content.decode()
        return len(captured), shown

    page()
    few, shown = page()
    assert ">1</a>" in shown
    for number in range(10):
        make_remote(kee, "http://127.0.0.1:1", f"further-{number}")
    assert page()[0] == few
    shown += console.get(reverse("admin:delivery_target_change", args=[dead.target_id])).content.decode()
    shown += console.get(reverse("admin:delivery_delivery_changelist")).content.decode()
    assert "north" in shown
    assert TOKEN not in shown
    assert dead.target.secret not in shown


def test_figures_and_health_tell_pending_from_dead(dead: Delivery, kee: Caller, lee: Caller) -> None:
    assert health._deliveries().says == "1 are dead"
    with acting_as(kee):
        post(lee, poster=kee)
    told = metrics.exposition().decode()
    for line in (
        "delegate_receipt_retry_queue_size 1.0",
        "gatehouse_deliveries_dead 1.0",
        'gatehouse_deliveries_failed{target="north"} 1.0',
        'gatehouse_deliveries_sent{target="north"} 0.0',
        'gatehouse_targets_enabled{kind="remote"} 1.0',
        'gatehouse_targets_wasted{kind="webhook"} 0.0',
        "delegate_receipt_emissions_total",
        "delegate_receipt_emission_duration_seconds",
    ):
        assert line in told
    with acting_as_system("test"):
        pending = delivery(state=State.PENDING)
        Delivery.objects.filter(pk=pending.pk).update(due_at=pending.created_at - timedelta(hours=1))
    assert "late" in health._deliveries().says
    with acting_as_system("test"):
        Target.objects.update(retry_at=pending.created_at)
    finding = health._deliveries()
    assert (finding.ok, finding.needed, finding.says) == (False, False, "1 targets do not answer, 1 are dead")


def test_environment_names_the_default_target(tenant: Tenant, settings: Settings) -> None:
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
        target = remote_named("memorygate")
        assert (target.url, target.endpoint) == ("https://memorygate.example", "universal")
        assert unseal(target.secret) == TOKEN
        assert not RemoteRoute.objects.exists()
    assert reloaded(target).principal_id is None
