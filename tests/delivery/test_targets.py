"""Webhooks and remote targets: whom they wake and how often, who may change them, what operators see."""

import json
from datetime import timedelta
from typing import Any

import pytest
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
from apps.delivery import services
from apps.delivery.models import Delivery, RemoteRoute, State, Target
from apps.delivery.selectors import remote_named
from apps.delivery.senders import Delivered, Refused
from apps.digests import selectors as inboxes
from apps.digests import services as digests
from apps.principals import services as principals
from apps.principals.models import Principal, Tenant
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from apps.receipts.services import Poster
from tests import factories
from tests import remote as remotes
from tests.delivery.conftest import STORED, TOKEN, deliver, delivery, make_remote, make_webhook, reloaded, wake
from tests.digests.makers import ack_through, make_draft, post, post_grouped, read
from tests.factories import T0, make_caller, make_tenant, make_token, pass_time
from tests.remote import Remote, says


@pytest.fixture
def target(as_kee: Caller, agent: Remote) -> Target:
    """A webhook of Kee, whose inbox holds one receipt that it was not woken for."""
    target = make_webhook(as_kee, agent.url).target
    post(as_kee)
    return target


def ack_all(reader: Caller) -> None:
    ack_through(reader, read(reader, limit=500).entries[-1].token)


def change(owner: Caller, target: Target, **changes: Any) -> None:
    enabled = changes.pop("enabled", None)
    services.change(principal_id=owner.principal_id, target_id=target.pk, changes=changes, enabled=enabled, now=T0)


def test_wake_is_signed_and_says_how_much_is_there_and_not_what(as_kee: Caller, agent: Remote) -> None:
    made = make_webhook(as_kee, f"{agent.url}/hook")
    entry = post(as_kee, title="Payroll of May", summary="Ada earns more than Bob").entry_ref
    post_grouped(as_kee)
    assert wake(made.target)
    (call,) = agent.received
    message = Webhook(made.secret).verify(call.body, dict(call.headers))
    assert (call.path, message["type"]) == ("/hook", "inbox.changed")
    assert message["data"] == {
        "target": str(made.target),
        "principal": "Kee",
        "as_of": 1,
        "unread": 2,
        "visible": 1,
        "pending": 1,
        "newest": [{"ref": entry, "kind": "item", "sequence": 1, "count": 1}],
    }
    done = reloaded(made.target)
    assert (done.covered_seq, done.sent, done.failed, done.result) == (1, 1, 0, "HTTP 200")
    assert read(as_kee).entries[0].ref == entry
    assert inboxes.inbox_receipts(as_kee.principal_id)[-1].delivered_at is None, "to be told is not to be shown"


def test_at_most_five_entries_are_named_without_their_text(as_kee: Caller, agent: Remote) -> None:
    made = make_webhook(as_kee, agent.url)
    for number in range(7):
        post(as_kee, title=f"Event {number}", summary="The summary stays inside.")
    wake(made.target)
    newest = agent.received[0].json["data"]["newest"]
    assert [entry["sequence"] for entry in newest] == [7, 6, 5, 4, 3]
    assert b"stays inside" not in agent.received[0].body
    assert b"Event" not in agent.received[0].body


def test_burst_of_a_thousand_receipts_is_one_wake(as_kee: Caller, agent: Remote) -> None:
    target = make_webhook(as_kee, agent.url).target
    for _ in range(20):
        drafts = [make_draft(as_kee) for _ in range(50)]
        digests.post_many(poster=Poster.of(as_kee), drafts=drafts, now=T0)
        wake(target)
    assert [call.json["data"]["visible"] for call in agent.received] == [50]
    pass_time(600)
    assert wake(target)
    assert agent.received[1].json["data"]["visible"] == 1000
    pass_time(3600)
    assert not wake(target), "it has been told of all of them"


def test_new_receipt_wakes_at_once_when_everything_told_is_acked(target: Target, as_kee: Caller) -> None:
    post(as_kee)
    assert wake(target)
    seen = read(as_kee)
    post(as_kee)
    assert not wake(target)
    ack_through(as_kee, seen.entries[0].token)
    assert not wake(target), "one of the two is left"
    ack_through(as_kee, seen.entries[1].token)
    assert wake(target)
    ack_all(as_kee)
    assert not wake(target)
    post(as_kee)
    assert wake(target)


def test_growing_digest_is_not_acked_yet(as_kee: Caller, agent: Remote) -> None:
    target = make_webhook(as_kee, agent.url).target
    post_grouped(as_kee, flush_class="immediate")
    assert wake(target)
    told = read(as_kee)
    for _ in range(3):
        post_grouped(as_kee, flush_class="immediate")
        assert not wake(target), "its head is newer than the wake, what the wake was for is in it"
    ack_through(as_kee, told.entries[0].token)
    assert wake(target), "the rest has only ever been in entries that nobody was told of"
    assert not wake(target)


def test_remainder_of_an_ack_wakes_nobody(as_kee: Caller, agent: Remote) -> None:
    target = make_webhook(as_kee, agent.url, notify_lease=timedelta(0)).target
    first = post_grouped(as_kee)
    post_grouped(as_kee, flush_class="immediate")
    assert wake(target)
    digests.ack_receipts(principal_id=as_kee.principal_id, receipt_pks=[first.id], now=T0)
    assert [entry.flush_reason for entry in read(as_kee).entries] == ["narrow"]
    assert not wake(target)


def test_buffered_receipt_wakes_nobody_before_its_flush(as_kee: Caller, agent: Remote) -> None:
    target = make_webhook(as_kee, agent.url).target
    post_grouped(as_kee)
    assert not wake(target)
    pass_time(31)
    digests.flush_due()
    assert wake(target)


def test_fewer_than_min_unacked_wake_nobody(as_kee: Caller, agent: Remote) -> None:
    target = make_webhook(as_kee, agent.url, min_unacked=3).target
    for _ in range(2):
        post(as_kee)
        assert not wake(target)
    post(as_kee)
    assert wake(target)


def test_what_is_acked_after_a_wake_was_queued_is_not_told(target: Target, as_kee: Caller, agent: Remote) -> None:
    assert (digests.queue_wakes(), digests.queue_wakes()) == (1, 0), "a target has one wake at a time"
    ack_all(as_kee)
    assert not wake(target)
    assert (agent.received, Delivery.objects.count()) == ([], 0)


def test_webhook_is_called_for_its_owners_inbox_only(as_kee: Caller, agent: Remote) -> None:
    hexy = make_caller(Principal.objects.get(pk=as_kee.principal_id).tenant, "Hexy")
    target = make_webhook(hexy, agent.url).target
    post(as_kee)
    assert not wake(target)
    post(hexy)
    assert wake(target)
    assert agent.received[0].json["data"]["principal"] == "Hexy"


def test_disabled_principal_and_stopped_target_are_not_called(target: Target, as_kee: Caller) -> None:
    services.change(target_id=target.pk, enabled=False, reason="enough", now=T0)
    assert not wake(target)
    services.change(target_id=target.pk, enabled=True, now=T0)
    digests.queue_wakes()
    principals.disable_principal(principal_id=as_kee.principal_id, now=T0)
    assert not services.deliver_next()
    assert digests.queue_wakes() == 0
    Principal.objects.filter(pk=as_kee.principal_id).update(disabled_at=None)
    assert services.deliver_next()
    assert reloaded(target).sent == 1


def test_failed_wake_is_repeated_under_one_id_for_as_long_as_it_takes(target: Target, agent: Remote) -> None:
    agent.always = says(503)
    for number in range(1, 13):
        assert wake(target)
        assert not wake(target)
        assert (reloaded(target).failures_in_a_row, reloaded(target).result) == (number, "HTTP 503")
        pass_time(300)
    agent.always = says(204, b"")
    assert wake(target)
    done = reloaded(target)
    assert (done.failures_in_a_row, done.sent, done.failed, done.wasted, done.covered_seq) == (0, 1, 12, 0, 1)
    assert len({call.headers["webhook-id"] for call in agent.received}) == 1


def test_wake_is_not_repeated_for_what_was_acked_meanwhile(target: Target, as_kee: Caller, agent: Remote) -> None:
    agent.always = says(500)
    assert wake(target)
    ack_all(as_kee)
    pass_time(10)
    assert not wake(target)


@pytest.mark.parametrize("status", [404, 410])
def test_final_refusal_stops_the_target_until_it_is_resumed(
    target: Target, as_kee: Caller, agent: Remote, status: int
) -> None:
    agent.always = says(status)
    assert wake(target)
    change(as_kee, target, enabled=False)
    assert reloaded(target).stopped_reason == f"HTTP {status}", "the first reason stays"
    pass_time(3600)
    assert not wake(target)
    services.change(target_id=target.pk, enabled=True, now=T0)
    agent.always = says(200)
    assert wake(target)
    assert reloaded(target).stopped_reason is None


@pytest.mark.parametrize("how", [{"enabled": True}, {"url": "/new"}], ids=["resumed", "moved"])
def test_resumed_or_moved_target_is_called_at_once(
    target: Target, as_kee: Caller, agent: Remote, how: dict[str, Any]
) -> None:
    agent.always = says(503)
    for _ in range(6):
        assert wake(target)
        pass_time(300)
    assert wake(target)
    assert not wake(target)
    change(as_kee, target, **({"url": f"{agent.url}/new"} if "url" in how else how))
    assert wake(target)
    assert reloaded(target).failures_in_a_row == 1


@pytest.mark.parametrize("status", [304, 400, 403, 429, 500])
def test_other_refusals_are_failures(target: Target, agent: Remote, status: int) -> None:
    agent.always = says(status, b"")
    assert wake(target)
    done = reloaded(target)
    assert (done.state, done.failed, done.sent, done.covered_seq) == ("enabled", 1, 0, 0)


@pytest.mark.parametrize("behaviour", [remotes.floods, remotes.drips])
def test_body_of_a_good_answer_is_not_read(target: Target, agent: Remote, behaviour: Any) -> None:
    agent.always = behaviour
    assert wake(target)
    assert (reloaded(target).result, reloaded(target).sent) == ("HTTP 200", 1)


def test_private_address_is_not_called_even_if_it_is_stored(as_kee: Caller) -> None:
    target = make_webhook(as_kee, "https://10.0.0.1/hook").target
    post(as_kee)
    assert wake(target)
    assert (reloaded(target).result or "").startswith("forbidden_endpoint: ")


def _send_while_acking(target: Target, *acked: Any, later: timedelta) -> None:
    """Ack receipts between the claim and the note of a call, so much later than the claim."""
    digests.queue_wakes()
    claim = services.claim(target_id=target.pk)
    assert claim is not None
    for one in acked:
        digests.ack_receipts(
            principal_id=target.principal_id or 0, receipt_pks=[one.id], now=claim.payload.context.claimed_at + later
        )
    verdict, result = services.send(claim)
    services.settle(claim=claim, verdict=verdict, result=result)


@pytest.mark.parametrize(("later", "wasted"), [(0, 1), (1, 0)], ids=["before the call", "during the call"])
def test_wake_is_wasted_if_everything_was_acked_before_the_call(
    as_kee: Caller, agent: Remote, later: int, wasted: int
) -> None:
    target = make_webhook(as_kee, agent.url).target
    _send_while_acking(target, post(as_kee), later=timedelta(milliseconds=later))
    assert (reloaded(target).sent, reloaded(target).wasted) == (1, wasted)
    assert not wake(target)


def test_wake_is_not_wasted_if_something_unnamed_is_left(as_kee: Caller, agent: Remote) -> None:
    target = make_webhook(as_kee, agent.url).target
    oldest, *named = [post(as_kee) for _ in range(6)]
    _send_while_acking(target, *named, later=timedelta(0))
    assert (reloaded(target).sent, reloaded(target).wasted) == (1, 0)
    assert [entry.receipt_ids for entry in read(as_kee).entries] == [[oldest.receipt_id]]


def test_post_does_not_pay_for_webhooks(as_kee: Caller) -> None:
    def statements() -> int:
        with CaptureQueriesContext(connection) as captured:
            post(as_kee)
            post_grouped(as_kee)
        return len(captured)

    statements()
    without = statements()
    for number in range(5):
        make_webhook(as_kee, f"https://agent.example/{number}")
    assert statements() == without


def test_answer_of_the_old_address_says_nothing_of_the_new_one(target: Target, as_kee: Caller, agent: Remote) -> None:
    digests.queue_wakes()
    claim = services.claim(target_id=target.pk)
    assert claim is not None
    change(as_kee, target, url=f"{agent.url}/new")
    for verdict in (Delivered(), Refused(code="http_410", said="gone")):
        services.settle(claim=claim, verdict=verdict, result="old")
    after = reloaded(target)
    assert (after.sent, after.failed, after.covered_seq, after.state) == (0, 0, 0, "enabled")
    assert wake(target)
    assert (agent.received[-1].path, reloaded(target).sent) == ("/new", 1)


def test_tick_alone_queues_wakes(as_kee: Caller, agent: Remote) -> None:
    make_webhook(as_kee, agent.url)
    post(as_kee)
    digests.queue_wakes()
    assert services.deliver_next()
    assert len(agent.received) == 1


class Owner:
    """A principal's way to the operations of this app."""

    def __init__(self, tenant: Tenant, name: str, **given: Any) -> None:
        self._token = make_token(tenant, name, **given)

    def ask(self, method: str, path: str = "/targets", status: int = 200, **given: Any) -> Any:
        found, document = factories.ask(
            method, f"/api/v1{path}", self._token, None if method in {"GET", "DELETE"} else given
        )
        assert found == status, document
        return document

    def make(self, url: str, **given: Any) -> Any:
        return self.ask("POST", status=201, url=url, **given)


@pytest.fixture
def owner(tenant: Tenant) -> Owner:
    return Owner(tenant, "Kee")


@pytest.fixture
def hexy(tenant: Tenant) -> Owner:
    return Owner(tenant, "Hexy")


@pytest.fixture
def ada(tenant: Tenant) -> Owner:
    """Who runs the deployment."""
    return Owner(tenant, "Ada", scopes=[Scope.ADMIN])


def stored() -> list[tuple[Any, ...]]:
    with acting_as_system("test"):
        return list(Target.objects.order_by("pk").values_list())


# Webhooks.


def test_webhook_secret_is_shown_once_and_stored_sealed(owner: Owner, agent: Remote) -> None:
    made = owner.make(agent.url, notify_lease_ms=5000, min_unacked=2)
    assert made["secret"].startswith("whsec_")
    shown = {name: value for name, value in made.items() if name != "secret"}
    assert (shown["kind"], shown["url"], shown["state"]) == ("webhook", agent.url, "enabled")
    assert (shown["notify_lease_ms"], shown["min_unacked"]) == (5000, 2)
    assert owner.ask("GET")["targets"] == [shown]
    assert made["secret"].removeprefix("whsec_") not in str(stored())


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


@pytest.mark.parametrize(("method", "path"), [("PATCH", ""), ("DELETE", ""), ("POST", "/rotate-secret")])
def test_webhook_of_another_principal_is_unknown(
    owner: Owner, hexy: Owner, agent: Remote, method: str, path: str
) -> None:
    ref = owner.make(agent.url)["target"]
    before = stored()
    assert hexy.ask(method, f"/targets/{ref}{path}", status=404)["code"] == "unknown_target"
    assert hexy.ask("GET")["targets"] == []
    assert (stored(), agent.received) == (before, [])


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({}, "invalid"),
        ({"url": "https://10.1.2.3/hook"}, "forbidden_endpoint"),
        ({"url": "https://user:word@1.1.1.1/"}, "forbidden_endpoint"),
        ({"url": "ftp://1.1.1.1/"}, "invalid"),
        ({"url": "https://1.1.1.1/", "min_unacked": 0}, "invalid"),
        ({"url": "https://1.1.1.1/", "notify_lease_ms": -1}, "invalid"),
    ],
)
def test_impossible_webhook_is_refused(owner: Owner, given: dict[str, Any], code: str) -> None:
    assert owner.ask("POST", status=422, **given)["code"] == code
    assert stored() == []


def test_impossible_change_is_refused_and_changes_nothing(
    owner: Owner, agent: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.delivery.services.MOST", 3)
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


# Remote targets.


def test_admin_adds_a_remote_moves_a_principal_and_sees_its_deliveries(kee: Caller, ada: Owner, remote: Remote) -> None:
    target = ada.ask("PUT", "/remote-targets/memorygate", url=remote.url, token=TOKEN, timeout_seconds=2)
    assert (target["breaker"], target["pending"]) == ("closed", 0)
    ada.ask("PUT", "/remote-targets/memorygate", url="https://without-an-address-today.invalid")
    ada.ask("PUT", "/remote-targets/memorygate", url=remote.url)  # keeps its token
    moved = {"recipient_ai": "Kee", "moved_to": "memorygate", "remote_name": "Kee"}
    assert ada.ask("PUT", "/remote-routes/Kee") == moved
    with acting_as(kee):
        posted = post(kee)
    deliver()
    with acting_as(kee):
        sent = delivery(state=State.DELIVERED)
    assert (sent.reference, sent.remote_id) == (posted.receipt_id, STORED["uuid"])
    assert remote.received[0].headers["X-Service-Token"] == TOKEN
    assert ada.ask("PUT", "/remote-targets/memorygate", url=remote.url)["sent"] == 1
    assert ada.ask("DELETE", "/remote-routes/Kee") == {"recipient_ai": "Kee", "moved_to": None}
    assert ada.ask("DELETE", "/remote-routes/Kee", status=404)["code"] == "lives_here"
    assert TOKEN not in json.dumps(target)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"url": "https://10.0.0.1", "token": "t"}, "forbidden_endpoint"),
        ({"url": "http://u:p@127.0.0.1", "token": "t"}, "forbidden_endpoint"),
        ({"url": "http://127.0.0.1?x=1", "token": "t"}, "unusable_target"),
        ({"url": "http://127.0.0.1#x", "token": "t"}, "forbidden_endpoint"),
        ({"url": "http://127.0.0.1"}, "unusable_target"),
        ({"url": "http://127.0.0.1", "token": "with space"}, "invalid"),
        ({"url": "http://127.0.0.1", "token": "t", "endpoint": "window"}, "invalid"),
        ({"url": "http://127.0.0.1", "token": "t", "timeout_seconds": 0}, "invalid"),
        ({"url": "north", "token": "t"}, "forbidden_endpoint"),
        ({"url": "https://north:0", "token": "t"}, "forbidden_endpoint"),
    ],
)
def test_impossible_remote_is_refused(ada: Owner, given: dict[str, Any], code: str) -> None:
    assert ada.ask("PUT", "/remote-targets/north", status=422, **given)["code"] == code
    assert stored() == []


@pytest.fixture
def dead(kee: Caller, lee: Caller, north: Target, remote: Remote) -> Delivery:
    """A delivery that the target has refused for good."""
    remote.script = [says(422, {"error": "invalid", "message": "too long"})]
    with acting_as(kee):
        post(lee, poster=kee)
        deliver()
        return delivery()


def test_route_leads_to_a_target_of_its_tenant_only(dead: Delivery) -> None:
    eve = Owner(make_tenant("rival"), "Eve", scopes=[Scope.ADMIN])
    make_caller(make_tenant("rival"), "Lee North")

    assert eve.ask("PUT", "/remote-routes/Lee North", status=404, target="north")["code"] == "unknown_target"


# The console, figures and set-up.


def test_operator_replays_a_dead_delivery(dead: Delivery, kee: Caller, console: Client) -> None:
    shown = console.get(reverse("admin:delivery_delivery_change", args=[dead.pk])).content.decode()
    assert "Answered 422: invalid: too long" in shown

    console.post(
        reverse("admin:delivery_delivery_replay", args=[dead.pk]), {"_form_submitted": "on", "reason": "ticket 7"}
    )
    deliver()

    with acting_as(kee):
        assert delivery().state == State.DELIVERED


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


def test_environment_names_the_default_target(db: None, settings: Settings) -> None:
    call_command("default_target")
    settings.MEMORYGATE_URL, settings.MEMORYGATE_SERVICE_TOKEN = "https://memorygate.example", ""
    with pytest.raises(CommandError, match="MEMORYGATE_SERVICE_TOKEN"):
        call_command("default_target")
    settings.MEMORYGATE_SERVICE_TOKEN = TOKEN
    with pytest.raises(CommandError, match="no tenant"):
        call_command("default_target")
    make_tenant("default")
    for _ in range(2):
        call_command("default_target")
    with acting_as_system("test"):
        target = remote_named("memorygate")
        assert (target.url, target.endpoint) == ("https://memorygate.example", "universal")
        assert unseal(target.secret) == TOKEN
        assert not RemoteRoute.objects.exists()
        Target.objects.update(known_as="hq", timeout_seconds=20, endpoint="gatehouse")
    settings.MEMORYGATE_URL = "https://other.example"
    call_command("default_target")
    target = reloaded(target)
    assert (target.url, target.principal_id) == ("https://other.example", None)
    assert (target.known_as, target.timeout_seconds, target.endpoint) == ("hq", 20, "gatehouse")
