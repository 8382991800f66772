"""Retention: what was acked long enough ago goes, with what hung from it; nothing else does."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.core.errors import Conflict, NotFound
from apps.delivery import services as sending
from apps.delivery.models import Delivery
from apps.delivery.senders import Delivered, Refused
from apps.digests import selectors, services
from apps.digests.models import Entry, Inbox, ReceiptState, Thread
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from apps.receipts import selectors as facts
from apps.receipts.errors import DuplicateReceipt, UnknownReceipt
from apps.receipts.models import Obligation, Receipt, ReceiptKey
from apps.receipts.services import Group, ObligationDraft, Poster
from tests.delivery.conftest import make_remote, move_away
from tests.digests.makers import ack_receipts, ack_through, make_draft, post, post_grouped, read, unsound
from tests.digests.test_database import break_rows
from tests.digests.test_races import check
from tests.factories import T0, at, make_caller, make_tenant
from tests.waiters import acting, at_once, held


def to_day(days: float) -> None:
    at(T0 + timedelta(days=days))


@pytest.fixture
def as_kee_then(as_kee: Caller) -> Caller:
    """Kee, at the moment that receipts are posted at."""
    to_day(0)
    return as_kee


def retain() -> dict[str, int]:
    return {kind: count for kind, count in services.retain().items() if count}


def ack_everything(reader: Caller, *, days: float = 0) -> None:
    entries = read(reader, limit=500).entries
    if entries:
        ack_through(reader, entries[-1].token, now=T0 + timedelta(days=days))


def everything() -> list[Any]:
    """All rows of receipts and inboxes."""
    tables = (Receipt, ReceiptKey, Obligation, Inbox, Thread, Entry, ReceiptState)
    return [list(model._default_manager.order_by("pk").values()) for model in tables]


def check_members() -> None:
    """A snapshot that is left counts its members, or says how many are gone."""
    for entry in Entry.objects.all():
        assert ReceiptState.objects.filter(pk__in=entry.receipt_ids).count() == entry.count - entry.pruned > 0
    assert unsound() == {}


def test_acked_receipts_are_deleted_after_their_period(as_kee_then: Caller) -> None:
    kee = as_kee_then
    items = [post(kee) for _ in range(3)]
    for _ in range(3):
        post_grouped(kee, flush_class="immediate")
    ack_everything(kee)
    kept = post(kee)
    assert Thread.objects.get().closed_at is not None

    to_day(89.9)
    assert retain() == {"entries": 2}  # superseded snapshots
    assert Receipt.objects.count() == 7
    to_day(90)
    assert retain() == {"receipts": 6, "entries": 4}

    assert [receipt.pk for receipt in Receipt.objects.all()] == [kept.id]
    assert (ReceiptState.objects.count(), Entry.objects.count(), Thread.objects.count()) == (1, 1, 0)
    assert read(kee).visible == 1
    before = everything()
    assert retain() == {}
    assert everything() == before
    with pytest.raises(UnknownReceipt):
        facts.find(items[0].receipt_id)
    check_members()


def test_unacked_receipts_stay_for_ever_wherever_they_are(as_kee_then: Caller) -> None:
    post(as_kee_then)
    post_grouped(as_kee_then, flush_class="immediate")
    post_grouped(as_kee_then)
    before = everything()
    to_day(4000)
    assert retain() == {}
    assert everything() == before


def test_the_time_of_a_receipt_begins_with_its_ack(as_kee_then: Caller) -> None:
    kee = as_kee_then
    late = post(kee)
    grouped = post_grouped(kee, flush_class="immediate")
    to_day(200)
    ack_everything(kee, days=200)
    before = everything()
    to_day(289)
    assert retain() == {}
    assert everything() == before
    to_day(290)
    assert retain() == {"receipts": 2, "entries": 2}
    assert not Receipt.objects.filter(pk__in=[late.id, grouped.id]).exists()


@pytest.mark.parametrize("state", ["pending", "dead", "delivered"])
def test_receipt_that_waits_for_another_deployment_is_kept(tenant: Tenant, as_kee_then: Caller, state: str) -> None:
    kee, lee = as_kee_then, make_caller(tenant, "Lee")
    target = make_remote(kee, "http://127.0.0.1:1")
    move_away(kee, lee)
    post(lee, poster=kee)
    claim = sending.claim(target_id=target.pk)
    assert claim is not None
    if state == "dead":
        sending.settle(claim=claim, verdict=Refused(code="http_422", said="no"), result="HTTP 422")
    elif state == "delivered":
        sending.settle(claim=claim, verdict=Delivered(remote_id="rcpt_there"), result="HTTP 200")
    assert Delivery.objects.get().state == state
    to_day(200)
    assert retain() == ({} if state == "pending" else {"receipts": 1})
    assert Receipt.objects.exists() == Delivery.objects.exists() == (state == "pending")


def test_a_receipt_without_a_state_is_not_removed(as_kee_then: Caller) -> None:
    posted = post(as_kee_then)
    break_rows("delete from digests_receiptstate", "delete from digests_entry")
    to_day(4000)
    assert retain() == {}
    assert Receipt.objects.filter(pk=posted.id).exists()


def test_superseded_snapshot_with_unacked_receipts_is_kept(as_kee_then: Caller) -> None:
    kee = as_kee_then
    first = post_grouped(kee, flush_class="immediate")
    old_token = read(kee).entries[0].token
    post_grouped(kee, flush_class="immediate")
    to_day(2)
    assert retain() == {}
    assert ack_through(kee, old_token).acked_receipts == 1  # an old token still acks what it was shown
    assert selectors.read_inbox(kee.principal_id).visible == 1
    shown = Entry.objects.order_by("sequence").first()
    assert shown is not None
    assert shown.receipt_ids == [first.id]
    to_day(0.9)
    assert retain() == {}  # the second was superseded by the narrowing, whenever that was
    to_day(40)
    assert retain() == {"entries": 1}
    with pytest.raises(NotFound, match="no entry"):
        ack_through(kee, old_token)
    check_members()


def test_a_snapshot_that_outlives_receipts_says_so(as_kee_then: Caller) -> None:
    kee = as_kee_then
    posted = [post_grouped(kee, flush_class="immediate" if number == 4 else "normal") for number in range(5)]
    (whole,) = read(kee).entries
    ack_receipts(kee, *(one.id for one in posted[:2]))
    to_day(100)
    assert retain() == {"receipts": 2}  # the narrowed one between holds what is unacked too

    entry = selectors.entry(kee.principal_id, whole.id)
    page = selectors.expand(kee.principal_id, whole.id)
    assert (entry.count, entry.pruned, entry.receipt_ids) == (5, 2, [one.receipt_id for one in posted[2:]])
    assert (page.count, page.pruned, len(page.receipts)) == (5, 2, 3)
    (live,) = read(kee).entries
    assert (live.count, live.pruned, live.receipt_ids) == (3, 0, entry.receipt_ids)
    check_members()


def test_late_duplicate_is_refused_after_retention(as_kee_then: Caller) -> None:
    draft = make_draft(as_kee_then, dedupe_key="k")
    poster = Poster.of(as_kee_then)
    first = services.post(poster=poster, draft=draft, now=T0)
    ack_everything(as_kee_then)
    to_day(399)
    assert retain() == {"entries": 1, "receipts": 1}
    with pytest.raises(DuplicateReceipt) as refusal:
        services.post(poster=poster, draft=draft, now=T0)
    assert refusal.value.extra["existing_receipt_id"] == first.receipt_id
    to_day(400)
    assert retain() == {"keys": 1}
    assert services.post(poster=poster, draft=draft, now=T0).receipt_id != first.receipt_id


def test_receipt_with_an_open_obligation_is_kept(tenant: Tenant, as_kee_then: Caller) -> None:
    kee, hexy = as_kee_then, make_caller(tenant, "Hexy")
    owed = ObligationDraft(debtor_id=hexy.principal_id, creditor_id=kee.principal_id)
    root = post(kee, surface="ledger", obligation=owed)
    asked = post(hexy, poster=kee, requires_action=True)
    proof = post(kee, surface="ledger")
    for reader in (kee, hexy):
        ack_everything(reader)
    to_day(200)
    assert retain() == {"receipts": 1}
    assert set(Receipt.objects.values_list("pk", flat=True)) == {root.id, asked.id}
    assert not Receipt.objects.filter(pk=proof.id).exists()

    closed = T0 + timedelta(days=200)
    closer = post(kee, surface="ledger", pairs_with=root.receipt_id, now=closed)
    post(kee, surface="ledger", pairs_with=asked.receipt_id, now=closed)
    to_day(289)
    assert retain() == {}
    to_day(290)
    assert retain() == {"stripped": 4, "entries": 1}
    assert Obligation.objects.get(pk=root.id).closed_by_id == closer.id
    assert unsound() == {}


def test_chain_keeps_a_tombstone(as_kee_then: Caller) -> None:
    kee = as_kee_then
    root = post(kee, surface="ledger", event_type="task_received", title="secret", metadata={"a": 1})
    middle = post(kee, event_type="plan_note", title="secret", caused_by=root.receipt_id)
    ack_everything(kee)
    living = post(kee, caused_by=middle.receipt_id)
    to_day(100)
    assert retain() == {"entries": 1, "stripped": 2}

    links = facts.chain_for(living.receipt_id, principal_id=kee.principal_id)
    assert [(one.receipt_id, one.event_type, one.pruned, one.title) for one in links] == [
        (root.receipt_id, "task_received", True, None),
        (middle.receipt_id, "plan_note", True, None),
        (living.receipt_id, "ci_update", False, links[-1].title),
    ]
    assert [one.created_at for one in links] == [T0] * 3
    assert links[-1].caused_by_receipt_id == middle.receipt_id
    assert facts.chain(root.receipt_id) == links
    with pytest.raises(UnknownReceipt):
        facts.find(middle.receipt_id)
    with pytest.raises(Conflict, match="another dedupe key"):
        post(kee, receipt_id=middle.receipt_id)
    assert not Receipt.objects.exclude(pruned_at=None).exclude(summary="", metadata={}, dedupe_key="").exists()

    late = post(kee, caused_by=middle.receipt_id)
    assert [one.receipt_id for one in facts.chain(root.receipt_id)][-1] == late.receipt_id
    check_members()


def test_tombstones_are_deleted_after_their_time(as_kee_then: Caller) -> None:
    kee = as_kee_then
    chain = [post(kee)]  # which stays, as nobody acks it
    for days in (0, 0, 200, 499):
        now = T0 + timedelta(days=days)
        chain.append(post(kee, surface="ledger", caused_by=chain[-1].receipt_id, now=now))
    to_day(500)
    assert retain() == {"stripped": 3}
    assert retain() == {"tombstones": 2, "keys": 2}
    young, living = chain[3:]
    assert set(Receipt.objects.values_list("pk", "caused_by_id", "caused_by_ref")) == {
        (chain[0].id, None, None),
        (young.id, None, chain[2].receipt_id),
        (living.id, young.id, young.receipt_id),
    }
    links = facts.chain_for(living.receipt_id, principal_id=kee.principal_id)
    assert [(one.receipt_id, one.caused_by_receipt_id, one.pruned) for one in links] == [
        (young.receipt_id, chain[2].receipt_id, True),
        (living.receipt_id, young.receipt_id, False),
    ]
    assert retain() == {}


def test_a_tenant_may_keep_receipts_for_a_time_of_its_own(as_kee_then: Caller) -> None:
    other = make_caller(make_tenant("globex"))
    post(as_kee_then)
    ack_everything(as_kee_then)
    with acting_as(other):
        post(other)
        ack_everything(other)
    with acting_as_system("test"):
        Tenant.objects.filter(slug="globex").update(keep_receipts=timedelta(days=10))
    to_day(20)
    assert retain() == {"entries": 1, "receipts": 1}
    assert Receipt.objects.count() == 1
    with acting_as_system("test"):
        Tenant.objects.filter(slug="acme").update(keep_receipts=timedelta(days=1000))
    to_day(900)
    assert retain() == {"keys": 1}  # the other's; this one's receipt is kept, and its key with it
    assert (Receipt.objects.count(), ReceiptKey.objects.count()) == (1, 1)


def test_sweep_goes_in_steps_and_rests(as_kee_then: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.digests.services._RANGE", 3)
    for _ in range(10):
        post(as_kee_then)
    ack_everything(as_kee_then)
    to_day(100)
    walk = services.Walk()
    found = [walk.go_on(seconds=0)["receipts"] for _ in range(8)]
    assert [count for count in found if count] == [3, 3, 3, 1]
    post(as_kee_then)
    with CaptureQueriesContext(connection) as captured:
        walk.go_on(seconds=0)
    assert not [one for one in captured.captured_queries if "receipts_receipt" in one["sql"]]


@pytest.mark.django_db(transaction=True)
def test_locked_inbox_is_left_to_the_next_sweep(kee: Caller) -> None:
    hexy = make_caller(make_tenant("globex"))
    for caller in (kee, hexy):
        with acting_as(caller):
            post(caller)
            ack_everything(caller)
    with held(kee, lambda: services.lock(principal_id=kee.principal_id)):
        services.retain()
    with acting_as_system("test"):
        assert set(Receipt.objects.values_list("recipient", flat=True)) == {kee.principal_id}
        services.retain()
        assert not Receipt.objects.exists()


def writing(caller: Caller, other: Caller, roots: list[str]) -> Callable[[], None]:
    """Posts of which what they refer to goes at this very moment, or has gone, or is being waited for."""

    def posts() -> None:
        for number in range(24):
            for draft in (
                {"caused_by": roots[number]},
                {"caused_by": roots[-number], "group": Group(resource_ref=f"pr:{number % 3}", event_family="ci")},
                {"receipt_id": f"late.{caller.name}.{number}"},
                {"pairs_with": f"late.{other.name}.{number}"},
            ):
                with acting_as(caller):
                    post(other, poster=caller, **draft)

    return posts


def acking(caller: Caller, done: threading.Event) -> Callable[[], None]:
    def acks() -> None:
        while not done.is_set():
            with acting_as(caller):
                page = read(caller)
                selectors.history(caller.principal_id)
                if page.entries:
                    ack_through(caller, page.entries[-1].token)

    return acks


def retaining(done: threading.Event) -> Callable[[], int]:
    def rounds() -> int:
        removed = 0
        while not done.is_set():
            removed += sum(services.retain().get(kind, 0) for kind in ("receipts", "stripped"))
            services.flush_due()
        return removed

    return rounds


@pytest.mark.django_db(transaction=True)
def test_retention_beside_posts_acks_reads_and_flushes(kee: Caller, hexy: Caller) -> None:
    roots = []
    for caller in (kee, hexy):
        with acting_as(caller):
            roots += [post(caller, surface="ledger", receipt_id=f"R.{caller.name}.{n}").receipt_id for n in range(12)]
            for _ in range(30):
                post(caller)
            ack_everything(caller)
    done = threading.Event()

    def all_posted() -> list[Any]:
        try:
            return at_once(writing(kee, hexy, roots), writing(hexy, kee, roots))
        finally:
            done.set()

    posted, *acked, one, other = at_once(
        all_posted, acking(kee, done), acking(hexy, done), retaining(done), retaining(done)
    )
    assert (posted, acked) == ([None, None], [None, None])
    assert one + other > 60
    with acting_as_system("test"):
        check_members()
        assert not Receipt.objects.filter(surface="inbox", pruned_at=None, state=None).exists()


@pytest.mark.django_db(transaction=True)
def test_a_receipt_is_pruned_or_linked_to_never_both(kee: Caller) -> None:
    for turn in range(25):
        with acting_as(kee):
            root = post(kee, surface="ledger", receipt_id=f"R.{turn}")

        outcomes = at_once(
            acting(kee, lambda: post(kee, caused_by=root.receipt_id, pairs_with=root.receipt_id)),  # noqa: B023
            services.retain,
        )
        assert [one for one in outcomes if isinstance(one, Exception)] == []
        with acting_as(kee):
            linked = Receipt.objects.get(pk=outcomes[0].id).caused_by_id
            assert linked in {None, root.id}
            assert Receipt.objects.filter(pk=root.id).exists() == (linked is not None)
    check()
