"""Rivals on one inbox, with real threads and connections."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from django.db import connection

from apps.digests import selectors, services
from apps.digests.models import Entry, Inbox, ReceiptState, Thread
from apps.digests.services import locking
from apps.digests.signals import inbox_changed
from apps.digests.states import FlushReason
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from apps.receipts.errors import DedupeConflict, DuplicateReceipt
from apps.receipts.models import Obligation, Receipt, ReceiptKey
from tests.digests.makers import ack_through, make_draft, post, post_grouped, read
from tests.factories import T0, make_caller

pytestmark = pytest.mark.django_db(transaction=True)


def race(*rivals: Callable[[], Any]) -> list[Any]:
    """What became of each: its result, or what it raised. All start at the same moment."""
    barrier = threading.Barrier(len(rivals))
    outcomes: list[Any] = [None] * len(rivals)

    def run(index: int, rival: Callable[[], Any]) -> None:
        try:
            barrier.wait(timeout=20)
            outcomes[index] = rival()
        except Exception as exc:  # noqa: BLE001  # the outcome is what the test asks for
            outcomes[index] = exc
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(rivals)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    return outcomes


def acting(caller: Caller, run: Callable[[], Any]) -> Callable[[], Any]:
    def rival() -> Any:
        with acting_as(caller):
            return run()

    return rival


def check() -> None:
    with acting_as_system("test"):
        assert selectors.self_check().is_sound
        for inbox in Inbox.objects.all():
            taken = list(Entry.objects.filter(inbox=inbox).order_by("sequence").values_list("sequence", flat=True))
            assert taken == list(range(1, inbox.last_seq + 1))


def test_twenty_posts_of_one_key_store_one_receipt(kee: Caller) -> None:
    draft = make_draft(kee, dedupe_key="k")
    other = make_draft(kee, dedupe_key="k", summary="other")
    poster = services.Poster.of(kee)

    def rival(one: services.ReceiptDraft) -> Callable[[], Any]:
        return acting(kee, lambda: services.post(poster=poster, draft=one, now=T0))

    outcomes = race(*(rival(other if number % 2 else draft) for number in range(20)))

    stored = [one for one in outcomes if isinstance(one, services.Posted)]
    kinds = {type(one) for one in outcomes}
    assert len(stored) == 1
    assert kinds == {services.Posted, DuplicateReceipt, DedupeConflict}
    assert sum(isinstance(one, DuplicateReceipt) for one in outcomes) == 9
    with acting_as(kee):
        assert (Receipt.objects.count(), ReceiptKey.objects.count(), ReceiptState.objects.count()) == (1, 1, 1)
    check()


def test_i5_rival_posts_take_contiguous_sequences(kee: Caller) -> None:
    def rival(number: int) -> Callable[[], Any]:
        def run() -> None:
            for turn in range(10):
                with acting_as(kee):
                    if (number + turn) % 3:
                        post(kee)
                    else:
                        post_grouped(kee, resource=f"pr:{turn % 2}", flush_class="immediate")

        return run

    assert race(*(rival(number) for number in range(8))) == [None] * 8
    with acting_as(kee):
        assert Inbox.objects.get().last_seq == Receipt.objects.count() == 80
        assert read(kee).visible == 80
    check()


def test_an_ack_and_a_flush_at_once_lose_and_double_nothing(kee: Caller) -> None:
    for _ in range(12):
        with acting_as(kee):
            post_grouped(kee, flush_class="immediate")
            token = read(kee).entries[-1].token
            late = post_grouped(kee)
            thread = Thread.objects.get(closed_at=None)

        outcomes = race(
            acting(kee, lambda: ack_through(kee, token)),  # noqa: B023  # runs within the turn
            acting(
                kee,
                lambda: services.flush(
                    inbox_id=thread.inbox_id,  # noqa: B023
                    thread_ids=[thread.pk],  # noqa: B023
                    reason=FlushReason.SIZE,
                ),
            ),
        )

        assert outcomes[0] == services.Acked(acked_entries=1, acked_receipts=1)
        check()
        with acting_as(kee):
            (entry,) = read(kee).entries
            assert entry.receipt_ids == [late.receipt_id]
            ack_through(kee, entry.token)


def test_rival_acks_add_up_to_one(kee: Caller) -> None:
    with acting_as(kee):
        for _ in range(5):
            post(kee)
            post_grouped(kee)
        tokens = [entry.token for entry in read(kee).entries]
    outcomes = race(*(acting(kee, partial(ack_through, kee, token)) for token in tokens))
    assert sum(one.acked_receipts for one in outcomes) == 5
    check()


def test_rival_flushers_publish_once(kee: Caller) -> None:
    with acting_as(kee):
        services.set_policy(
            tenant_id=kee.tenant_id,
            principal_id=kee.principal_id,
            change=services.PolicyChange(window=T0 - T0),
            now=T0,
        )
        for number in range(6):
            post_grouped(kee, resource=f"pr:{number}")
    outcomes = race(*([services.flush_due] * 6))
    services.flush_due()
    assert all(isinstance(one, int) for one in outcomes)
    with acting_as(kee):
        assert Entry.objects.count() == 6
        assert read(kee).pending == 0
    check()


def overdue(reader: Caller, threads: int) -> None:
    with acting_as(reader):
        for number in range(threads):
            post_grouped(reader, resource=f"pr:{number}")
        Thread.objects.filter(inbox__principal=reader.principal_id).update(flush_due_at=T0)


def test_i7_a_held_inbox_keeps_no_other_waiting(tenant: Tenant, kee: Caller) -> None:
    hexy = make_caller(tenant, "Hexy")
    overdue(kee, 1)
    overdue(hexy, 1)

    def flush() -> None:
        services.flush_due()
        connection.close()

    flusher = threading.Thread(target=flush)
    with acting_as(kee):
        held = locking.lock(principal_id=kee.principal_id)
        flusher.start()
        deadline = time.monotonic() + 8  # less than a lock is waited for at most
        while not Entry.objects.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert [entry.inbox.principal_id for entry in Entry.objects.select_related("inbox")] == [hexy.principal_id]
        flusher.join(timeout=8)
        assert not flusher.is_alive()
        assert held is not None
        assert Thread.objects.get(inbox_id=held.id).pending_count == 1
    assert services.flush_due() == 1
    check()


def test_i7_a_full_inbox_keeps_no_other_waiting(tenant: Tenant, kee: Caller) -> None:
    hexy = make_caller(tenant, "Hexy")
    overdue(kee, 5)
    overdue(hexy, 1)

    def flush() -> int:
        try:
            return services.flush_due(limit=2)
        finally:
            connection.close()

    with acting_as(kee), ThreadPoolExecutor(1) as pool:
        locking.lock(principal_id=kee.principal_id)
        assert pool.submit(flush).result(timeout=30) == 1
        assert read(hexy).pending == 0
    assert flush() == 5
    check()


def test_batches_in_crossed_order_do_not_deadlock(tenant: Tenant, kee: Caller) -> None:
    owners = [kee, make_caller(tenant, "Hexy"), make_caller(tenant, "Lee")]
    drafts = [make_draft(owners[number % 3], dedupe_key=f"k{number % 10}", summary=str(number)) for number in range(30)]

    def rival(order: list[services.ReceiptDraft]) -> Callable[[], Any]:
        return acting(kee, lambda: services.post_many(poster=services.Poster.of(kee), drafts=order, now=T0))

    outcomes = race(*(rival(order) for order in (drafts, drafts[::-1], drafts[15:] + drafts[:15]) for _ in range(2)))

    assert not [one for one in outcomes if isinstance(one, Exception)]
    with acting_as(kee):
        assert Receipt.objects.count() == 10
    check()


@pytest.mark.parametrize("link", ["caused_by", "pairs_with"])
def test_batches_that_name_the_same_unknown_receipts_in_crossed_order_do_not_deadlock(kee: Caller, link: str) -> None:
    names = [f"R.{number}" for number in range(40)]
    outcomes = race(*(_naming(kee, link, order) for order in (names, names[::-1])))
    assert not [one for one in outcomes if isinstance(one, Exception)]
    with acting_as(kee):
        assert Receipt.objects.count() == 80


def test_batches_that_close_the_same_obligations_in_crossed_order_do_not_deadlock(kee: Caller) -> None:
    with acting_as(kee):
        roots = [post(kee, requires_action=True, surface="ledger").receipt_id for _ in range(40)]
    outcomes = race(*(_naming(kee, "pairs_with", order) for order in (roots, roots[::-1])))
    assert not [one for one in outcomes if isinstance(one, Exception)]
    with acting_as(kee):
        assert Obligation.objects.filter(closed_by__isnull=False).count() == 40


def test_batches_that_bring_what_the_same_receipts_wait_for_do_not_deadlock(kee: Caller) -> None:
    with acting_as(kee):
        for number in range(40):
            post(kee, caused_by=f"cause.{number}", pairs_with=f"pair.{39 - number}", surface="ledger")

    def rival(kind: str) -> Callable[[], Any]:
        drafts = [make_draft(kee, receipt_id=f"{kind}.{number}", surface="ledger") for number in range(40)]
        return acting(kee, lambda: services.post_many(poster=services.Poster.of(kee), drafts=drafts, now=T0))

    outcomes = race(rival("cause"), rival("pair"))
    assert not [one for one in outcomes if isinstance(one, Exception)]
    with acting_as(kee):
        assert Receipt.objects.filter(caused_by__isnull=False, pairs_with__isnull=False).count() == 40


def _naming(kee: Caller, link: str, references: list[str]) -> Callable[[], Any]:
    """A batch that is worked through in the order of these references: its keys sort that way."""
    drafts = [
        make_draft(kee, dedupe_key=f"{number:02}:{references[0]}", surface="ledger", **{link: reference})
        for number, reference in enumerate(references)
    ]
    return acting(kee, lambda: services.post_many(poster=services.Poster.of(kee), drafts=drafts, now=T0))


def test_a_closer_and_its_root_at_once_always_meet(kee: Caller) -> None:
    for number in range(8):
        outcomes = race(
            acting(kee, lambda: post(kee, receipt_id=f"R.{number}", requires_action=True, surface="ledger")),  # noqa: B023
            acting(kee, lambda: post(kee, pairs_with=f"R.{number}", caused_by=f"R.{number}", surface="ledger")),  # noqa: B023
        )
        assert not [one for one in outcomes if isinstance(one, Exception)]
        with acting_as(kee):
            root = Receipt.objects.get(receipt_id=f"R.{number}")
            assert root.obligation.closed_at is not None
            assert [root.pairs.count(), root.consequences.count()] == [1, 1]


def test_batches_that_fill_two_inboxes_in_crossed_order_do_not_deadlock(tenant: Tenant, kee: Caller) -> None:
    # The one who was there first has its inbox last, so that no other order of the two is also that of their ids.
    hexy = make_caller(tenant, "Hexy")
    for owner in (hexy, kee):
        with acting_as(owner):
            post(owner)

    def rival(number: int) -> Callable[[], Any]:
        def run() -> None:
            owners = [kee, hexy] if number % 2 else [hexy, kee]
            for turn in range(15):
                drafts = [make_draft(owner, dedupe_key=f"{number}:{turn}:{at}") for at, owner in enumerate(owners)]
                with acting_as(kee):
                    services.post_many(poster=services.Poster.of(kee), drafts=drafts, now=T0)

        return run

    assert race(*(rival(number) for number in range(4))) == [None] * 4
    with acting_as(kee):
        assert Receipt.objects.count() == 2 + 4 * 15 * 2
    check()


@pytest.mark.parametrize("group", [None, "immediate"])
def test_a_post_tells_on_commit_that_its_inbox_changed(kee: Caller, group: str | None) -> None:
    heard: list[tuple[int, int]] = []

    def hear(principal_id: int, tenant_id: int, **_: Any) -> None:
        heard.append((principal_id, tenant_id))

    inbox_changed.connect(hear)
    try:
        with acting_as(kee):
            post(kee) if group is None else post_grouped(kee, flush_class=group)
            assert not heard
    finally:
        inbox_changed.disconnect(hear)
    assert (kee.principal_id, kee.tenant_id) in heard


def test_i7_trouble_in_one_inbox_keeps_no_other_from_its_digests(tenant: Tenant, kee: Caller) -> None:
    hexy = make_caller(tenant, "Hexy")
    for owner in (kee, hexy):
        with acting_as(owner):
            post_grouped(owner)
            Thread.objects.filter(inbox__principal=owner.principal_id).update(flush_due_at=T0)
    for broken, well in ((kee, hexy), (hexy, kee)):
        with acting_as(broken):  # its counter says that nothing waits: the database refuses to count below
            Inbox.objects.filter(principal=broken.principal_id).update(pending_unread=0)
        assert services.flush_due() == 1
        with acting_as(well):
            assert (len(read(well).entries), read(well).pending) == (1, 0)
        with acting_as(broken):
            assert Thread.objects.get(inbox__principal=broken.principal_id).pending_count == 1
            Inbox.objects.filter(principal=broken.principal_id).update(pending_unread=1)
        with acting_as(well):
            post_grouped(well)
            Thread.objects.filter(inbox__principal=well.principal_id).update(flush_due_at=T0)


def test_several_inboxes_are_locked_by_their_ids_however_they_lie(tenant: Tenant, kee: Caller) -> None:
    hexy = make_caller(tenant, "Hexy")
    for owner in (hexy, kee, hexy):  # hexy's inbox is the first by id, the last by principal, the last written
        with acting_as(owner):
            post(owner)
    with acting_as(kee):
        held = locking.lock_several(tenant_id=kee.tenant_id, principal_ids=[kee.principal_id, hexy.principal_id])
    assert list(held) == [hexy.principal_id, kee.principal_id]
