"""Which webhooks are called, for what, and how often."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings
from standardwebhooks import Webhook

from apps.delivery.models import Delivery, Target
from apps.delivery.services import sending, targets
from apps.delivery.services.targets import TargetChange
from apps.digests import jobs
from apps.digests import selectors as inboxes
from apps.digests import services as digests
from apps.principals import services as principals
from apps.principals.models import Principal
from apps.principals.tenancy import Caller
from apps.receipts.services import Poster
from tests import remote as remotes
from tests.delivery.making import make_webhook, pass_time, reloaded, wake
from tests.digests.makers import ack_through, make_draft, post, post_grouped, read
from tests.factories import T0, make_caller
from tests.remote import Remote, says


def ack_all(reader: Caller) -> None:
    ack_through(reader, read(reader, limit=500).entries[-1].token)


def change(owner: Caller, target: Target, **changes: Any) -> None:
    targets.change(principal_id=owner.principal_id, target_id=target.pk, change=TargetChange(**changes), now=T0)


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


def test_titles_of_at_most_five_entries_are_named_on_request(as_kee: Caller, agent: Remote) -> None:
    made = make_webhook(as_kee, agent.url, with_titles=True)
    for number in range(7):
        post(as_kee, title=f"Event {number}", summary="The summary stays inside.")
    wake(made.target)
    newest = agent.received[0].json["data"]["newest"]
    assert [entry["title"] for entry in newest] == [f"Event {number}" for number in (6, 5, 4, 3, 2)]
    assert newest[0]["source_systems"] == ["github"]
    assert b"stays inside" not in agent.received[0].body


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


def test_new_receipt_wakes_at_once_when_everything_told_is_acked(as_kee: Caller, agent: Remote) -> None:
    target = make_webhook(as_kee, agent.url).target
    post(as_kee)
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


def test_what_joined_a_digest_wakes_when_its_told_receipt_is_acked(as_kee: Caller, agent: Remote) -> None:
    target = make_webhook(as_kee, agent.url).target
    told = post_grouped(as_kee, flush_class="immediate")
    assert wake(target)
    joined = post_grouped(as_kee, flush_class="immediate")
    assert not wake(target)
    digests.ack_receipts(principal_id=as_kee.principal_id, receipt_pks=[told.id], now=T0)
    assert [entry.receipt_pks for entry in read(as_kee).entries] == [[joined.id]]
    assert wake(target), "nothing is left of what it was told of"


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


def test_what_is_acked_after_a_wake_was_queued_is_not_told(as_kee: Caller, agent: Remote) -> None:
    target = make_webhook(as_kee, agent.url).target
    post(as_kee)
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


def test_disabled_principal_and_stopped_target_are_not_called(as_kee: Caller, agent: Remote) -> None:
    target = make_webhook(as_kee, agent.url).target
    post(as_kee)
    targets.stop(target_id=target.pk, reason="enough", now=T0)
    assert not wake(target)
    targets.resume(target_id=target.pk)
    digests.queue_wakes()
    principals.disable_principal(principal_id=as_kee.principal_id, now=T0)
    assert not sending.deliver_next()
    assert digests.queue_wakes() == 0
    Principal.objects.filter(pk=as_kee.principal_id).update(disabled_at=None)
    assert sending.deliver_next()
    assert reloaded(target).sent == 1


def test_failed_wake_is_repeated_under_one_id_for_as_long_as_it_takes(as_kee: Caller, agent: Remote) -> None:
    target = make_webhook(as_kee, agent.url).target
    post(as_kee)
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


def test_wake_is_not_repeated_for_what_was_acked_meanwhile(as_kee: Caller, agent: Remote) -> None:
    target = make_webhook(as_kee, agent.url).target
    post(as_kee)
    agent.always = says(500)
    assert wake(target)
    ack_all(as_kee)
    pass_time(10)
    assert not wake(target)


@pytest.mark.parametrize("status", [404, 409, 410, 422])
def test_final_refusal_stops_the_target_until_it_is_resumed(as_kee: Caller, agent: Remote, status: int) -> None:
    target = make_webhook(as_kee, agent.url).target
    post(as_kee)
    agent.always = says(status)
    assert wake(target)
    change(as_kee, target, enabled=False)
    assert reloaded(target).stopped_reason == f"HTTP {status}", "the first reason stays"
    pass_time(3600)
    assert not wake(target)
    targets.resume(target_id=target.pk)
    agent.always = says(200)
    assert wake(target)
    assert reloaded(target).stopped_reason is None


@pytest.mark.parametrize("how", [{"enabled": True}, {"url": "/new"}], ids=["resumed", "moved"])
def test_resumed_or_moved_target_is_called_at_once(as_kee: Caller, agent: Remote, how: dict[str, Any]) -> None:
    target = make_webhook(as_kee, agent.url).target
    post(as_kee)
    agent.always = says(503)
    for _ in range(6):
        assert wake(target)
        pass_time(300)
    assert wake(target)
    assert not wake(target)
    change(as_kee, target, **({"url": f"{agent.url}/new"} if "url" in how else how))
    assert wake(target)
    assert reloaded(target).failures_in_a_row == 1


@pytest.mark.parametrize("status", [304, 400, 401, 403, 405, 429, 500, 502, 503])
def test_other_refusals_are_failures(as_kee: Caller, agent: Remote, status: int) -> None:
    target = make_webhook(as_kee, agent.url).target
    post(as_kee)
    agent.always = says(status, b"")
    assert wake(target)
    done = reloaded(target)
    assert (done.state, done.failed, done.sent, done.covered_seq) == ("enabled", 1, 0, 0)


@pytest.mark.parametrize("behaviour", [remotes.floods, remotes.drips])
def test_body_of_a_good_answer_is_not_read(as_kee: Caller, agent: Remote, behaviour: Any) -> None:
    target = make_webhook(as_kee, agent.url).target
    post(as_kee)
    agent.always = behaviour
    assert wake(target)
    assert (reloaded(target).result, reloaded(target).sent) == ("HTTP 200", 1)


@pytest.mark.parametrize(
    "url", ["https://10.0.0.1/hook", "https://169.254.169.254/latest", "http://1.1.1.1/hook", "http://0177.0.0.1/"]
)
def test_private_address_is_not_called_even_if_it_is_stored(as_kee: Caller, url: str) -> None:
    target = make_webhook(as_kee, url).target
    post(as_kee)
    assert wake(target)
    assert (reloaded(target).result or "").startswith("forbidden_endpoint: ")


def test_loopback_is_called_only_if_the_deployment_allows_it(as_kee: Caller, agent: Remote, settings: Settings) -> None:
    target = make_webhook(as_kee, agent.url).target
    post(as_kee)
    settings.ALLOW_LOOPBACK = False
    assert wake(target)
    assert ((reloaded(target).result or "").split(":")[0], agent.received) == ("forbidden_endpoint", [])


def _send_while_acking(target: Target, *acked: Any, later: timedelta) -> None:
    """Ack receipts between the claim and the note of a call, so much later than the claim."""
    digests.queue_wakes()
    claim = sending.claim(target_id=target.pk)
    assert claim is not None
    for one in acked:
        digests.ack_receipts(
            principal_id=target.principal_id or 0, receipt_pks=[one.id], now=claim.payload.context.claimed_at + later
        )
    verdict, result = sending.send(claim)
    sending.settle(claim=claim, verdict=verdict, result=result)


def test_wake_is_wasted_if_everything_was_acked_before_the_call(as_kee: Caller, agent: Remote) -> None:
    target = make_webhook(as_kee, agent.url).target
    _send_while_acking(target, post(as_kee), later=timedelta(0))
    assert (reloaded(target).sent, reloaded(target).wasted) == (1, 1)
    assert not wake(target)


def test_wake_is_not_wasted_on_an_agent_that_acks_during_the_call(as_kee: Caller, agent: Remote) -> None:
    target = make_webhook(as_kee, agent.url).target
    _send_while_acking(target, post(as_kee), later=timedelta(milliseconds=1))
    assert (reloaded(target).sent, reloaded(target).wasted) == (1, 0)


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


def test_tick_alone_queues_wakes(as_kee: Caller, agent: Remote) -> None:
    make_webhook(as_kee, agent.url)
    post(as_kee)
    jobs.queue_all_wakes()
    assert sending.deliver_next()
    assert len(agent.received) == 1


def test_number_of_webhooks_does_not_matter_to_the_number_of_statements(as_kee: Caller) -> None:
    def statements() -> int:
        with CaptureQueriesContext(connection) as captured:
            digests.queue_wakes()
        return len(captured)

    make_webhook(as_kee, "https://agent.example/one")
    one = statements()
    for number in range(5):
        make_webhook(as_kee, f"https://agent.example/{number}")
    assert statements() == one
