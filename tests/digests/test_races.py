"""Rivals on one inbox, with real threads and connections."""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection

from apps.core.sql import execute, fetch
from apps.digests import services
from apps.digests.hooks import Fact
from apps.digests.models import Entry, FlushReason, Inbox, ReceiptState, Thread
from apps.digests.services import inbox_changed
from apps.digests.shapes import AckedOutput
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from apps.receipts.models import Receipt
from apps.receipts.services import Group, Poster
from tests.digests.makers import ack_through, flush, make_draft, post, post_grouped, read, set_policy, unsound
from tests.factories import T0, make_caller
from tests.waiters import Other, acting, at_once, until

pytestmark = pytest.mark.django_db(transaction=True)


def race_behind(hold: Callable[[], AbstractContextManager[Any]], *rivals: Callable[[], Any]) -> list[Any]:
    """As :func:`race`, of rivals that have all come to a lock before the one who holds it lets any of them on."""
    held = threading.Event()

    def holder() -> None:
        with hold():
            held.set()
            until_they_wait(len(rivals))

    def behind(rival: Callable[[], Any]) -> Any:
        assert held.wait(20)
        return rival()

    first, *outcomes = at_once(holder, *(partial(behind, rival) for rival in rivals))
    assert first is None, f"{first!r}; the rivals: {outcomes!r}"
    return outcomes


def until_they_wait(number: int) -> None:
    """Until so many sessions of this database wait for a lock; they don't wait for long."""
    # Others may wait in the databases of other runs; who waits for a row holds its table.
    waiting = (
        "select count(distinct pid) from pg_locks where not granted and pid in ("
        " select l.pid from pg_locks l join pg_database d on d.oid = l.database"
        " where d.datname = current_database())"
    )
    until(lambda: fetch(waiting)[0][0] >= number, "they don't wait", seconds=20)


def check() -> None:
    with acting_as_system("test"):
        assert unsound() == {}
        for inbox in Inbox.objects.all():
            taken = list(Entry.objects.filter(inbox=inbox).order_by("sequence").values_list("sequence", flat=True))
            assert taken == list(range(1, inbox.last_seq + 1))


def test_paging_readers_miss_nothing_of_eight_writers(kee: Caller) -> None:
    with acting_as(kee):
        set_policy(kee, window=timedelta(milliseconds=20), max_items=5)
    finished = [threading.Event() for _ in range(8)]
    deadline = time.monotonic() + 50

    def over() -> bool:
        return all(one.is_set() for one in finished) or time.monotonic() > deadline

    readers = [partial(_page_through, kee, limit, over) for limit in (2, 500)]
    writers = [partial(_write, kee, number, one) for number, one in enumerate(finished)]
    outcomes = at_once(*readers, *writers, *[partial(_flush_until, over)] * 2)

    assert not [one for one in outcomes if isinstance(one, Exception)]
    posted = {receipt for written in outcomes[2:10] for receipt in written}
    assert len(posted) == 96
    assert [set(seen) for seen in outcomes[:2]] == [posted, posted]
    check()


def _write(kee: Caller, number: int, finished: threading.Event) -> list[str]:
    posted = []
    try:
        for turn in range(12):
            with acting_as(kee):
                one = post(kee) if (number + turn) % 3 == 0 else post_grouped(kee, resource=f"pr:{turn % 4}")
            posted.append(one.receipt_id)
    finally:
        finished.set()
    return posted


def _page_through(kee: Caller, limit: int, over: Callable[[], bool]) -> list[str]:
    """All that is shown to a reader that acks nothing and never goes back behind what it has seen."""
    seen: list[str] = []
    after, patient_until = 0, time.monotonic() + 55
    while time.monotonic() < patient_until:
        ending = over()
        with acting_as(kee):
            page = read(kee, after=after, limit=limit)
        for entry in page.entries:
            after = entry.sequence
            seen += entry.receipt_ids
        if ending and not page.entries and not page.pending:
            break
    return seen


def _flush_until(over: Callable[[], bool]) -> None:
    """Until nobody writes and nothing waits."""
    patient_until = time.monotonic() + 55
    while time.monotonic() < patient_until:
        ending = over()
        services.flush_due()
        with acting_as_system("test"):
            if ending and not Thread.objects.filter(pending_count__gt=0).exists():
                return


def test_an_ack_and_a_flush_at_once_lose_and_double_nothing(kee: Caller) -> None:
    for _ in range(12):
        with acting_as(kee):
            post_grouped(kee, flush_class="immediate")
            token = read(kee).entries[-1].token
            late = post_grouped(kee)
            thread = Thread.objects.get(closed_at=None)

        outcomes = at_once(
            acting(kee, lambda: ack_through(kee, token)),  # noqa: B023  # runs within the turn
            acting(
                kee,
                lambda: flush(
                    inbox_id=thread.inbox_id,  # noqa: B023
                    thread_ids=[thread.pk],  # noqa: B023
                    reason=FlushReason.SIZE,
                ),
            ),
        )

        assert outcomes[0] == AckedOutput(acked_entries=1, acked_receipts=1)
        check()
        with acting_as(kee):
            (entry,) = read(kee).entries
            assert entry.receipt_ids == [late.receipt_id]
            ack_through(kee, entry.token)


def test_rival_flushers_publish_once(kee: Caller) -> None:
    with acting_as(kee):
        set_policy(kee, window=timedelta(0))
        for number in range(6):
            post_grouped(kee, resource=f"pr:{number}")
    outcomes = at_once(*([services.flush_due] * 6))
    services.flush_due()
    assert all(isinstance(one, int) for one in outcomes)
    with acting_as(kee):
        assert Entry.objects.count() == 6
        assert read(kee).pending == 0
    check()


def test_flusher_that_waited_asks_again_what_is_due(kee: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "_PATIENCE", "20s")
    overdue(kee, 1)
    flushers = ThreadPoolExecutor(2)

    def flush_due() -> int:
        try:
            return services.flush_due()
        finally:
            connection.close()

    with acting_as(kee):
        held = services.lock(principal_id=kee.principal_id)
        assert held is not None
        outcomes = [flushers.submit(flush_due) for _ in range(2)]
        until_they_wait(2)
        (thread,) = Thread.objects.all()
        flush(inbox_id=held.id, thread_ids=[thread.pk], reason=FlushReason.SIZE)
        post_grouped(kee, resource=thread.resource_ref)
    assert [outcome.result(timeout=30) for outcome in outcomes] == [0, 0]
    with acting_as(kee):
        assert (len(read(kee).entries), read(kee).pending) == (1, 1)
    check()


def test_rival_acks_of_older_revisions_leave_one_narrow_snapshot(kee: Caller) -> None:
    for turn in range(8):
        with acting_as(kee):
            shown = []
            for _ in range(3):
                post_grouped(kee, resource=f"pr:{turn}", flush_class="immediate")
                shown += read(kee).entries
            rest = post_grouped(kee, resource=f"pr:{turn}", flush_class="immediate")

        outcomes = at_once(*(acting(kee, partial(ack_through, kee, entry.token)) for entry in shown * 2))

        assert sum(one.acked_receipts for one in outcomes) == 3
        check()
        with acting_as(kee):
            (entry,) = read(kee).entries
            assert (entry.receipt_ids, entry.flush_reason) == ([rest.receipt_id], "narrow")
            ack_through(kee, entry.token)


def overdue(reader: Caller, threads: int) -> None:
    with acting_as(reader):
        for number in range(threads):
            post_grouped(reader, resource=f"pr:{number}")
        Thread.objects.filter(inbox__principal=reader.principal_id).update(flush_due_at=T0)


def test_a_held_inbox_keeps_no_other_waiting(kee: Caller, hexy: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    # Whoever waits for a lock without a limit of its own waits for longer than the test.
    options = connection.settings_dict["OPTIONS"]
    monkeypatch.setitem(options, "options", options["options"].replace("lock_timeout=10s", "lock_timeout=90s"))
    assert "lock_timeout=90s" in options["options"]
    overdue(kee, 1)
    overdue(hexy, 1)

    with acting_as(kee):
        held = services.lock(principal_id=kee.principal_id)
        flusher = Other(services.flush_due)
        until(Entry.objects.exists, "the other inbox is not flushed", seconds=45)
        assert [entry.inbox.principal_id for entry in Entry.objects.select_related("inbox")] == [hexy.principal_id]
        assert flusher.ends() is None
        assert held is not None
        assert Thread.objects.get(inbox_id=held.id).pending_count == 1
    assert services.flush_due() == 1
    check()


@contextmanager
def _holding_the_facts() -> Iterator[None]:
    """Who posts is judged, and then waits to be written."""
    with acting_as_system("test"):
        execute("lock table receipts_receipt in share mode")
        yield


@pytest.mark.parametrize("link", ["caused_by", "pairs_with"])
def test_rival_posts_that_would_close_a_cycle(kee: Caller, link: str) -> None:
    """Each is what a known receipt waits for, and follows from what waits for the other."""

    def arrive(receipt_id: str, follows: str) -> services.Posted:
        links: dict[str, Any] = {link: follows}
        return post(kee, receipt_id=receipt_id, surface="ledger", **links)

    with acting_as(kee):
        for name in "AB":
            arrive(f"waits.for.{name}", f"R.{name}")

    rivals = [acting(kee, partial(arrive, f"R.{one}", f"waits.for.{other}")) for one, other in ("AB", "BA")]
    outcomes = race_behind(_holding_the_facts, *rivals)

    assert {getattr(one, "code", None) for one in outcomes} == {None, "chain_cycle"}
    with acting_as(kee):
        assert Receipt.objects.count() == 3
        _check_that_causes_end()


def _check_that_causes_end() -> None:
    """No receipt is above itself."""
    above = {
        pk: set(links) - {None} for pk, *links in Receipt.objects.values_list("pk", "caused_by_id", "pairs_with_id")
    }
    while ends := {pk for pk, links in above.items() if not links & above.keys()}:
        above = {pk: links for pk, links in above.items() if pk not in ends}
    assert above == {}


@pytest.mark.parametrize("link", ["caused_by", "pairs_with"])
def test_crossed_batches_of_unknown_references_do_not_deadlock(kee: Caller, link: str) -> None:
    names = [f"R.{number}" for number in range(40)]
    outcomes = at_once(*(_naming(kee, link, order) for order in (names, names[::-1])))
    assert not [one for one in outcomes if isinstance(one, Exception)]
    with acting_as(kee):
        assert Receipt.objects.count() == 80


def _naming(kee: Caller, link: str, references: list[str]) -> Callable[[], Any]:
    """A batch that is worked through in the order of these references: its keys sort that way."""
    drafts = [
        make_draft(kee, dedupe_key=f"{number:02}:{references[0]}", surface="ledger", **{link: reference})
        for number, reference in enumerate(references)
    ]
    return acting(kee, lambda: services.post_many(poster=Poster.of(kee), drafts=drafts, now=T0))


def test_a_closer_and_its_root_at_once_always_meet(kee: Caller) -> None:
    for number in range(8):
        outcomes = at_once(
            acting(kee, lambda: post(kee, receipt_id=f"R.{number}", requires_action=True, surface="ledger")),  # noqa: B023
            acting(kee, lambda: post(kee, pairs_with=f"R.{number}", caused_by=f"R.{number}", surface="ledger")),  # noqa: B023
        )
        assert not [one for one in outcomes if isinstance(one, Exception)]
        with acting_as(kee):
            root = Receipt.objects.get(receipt_id=f"R.{number}")
            assert root.obligation.closed_at is not None
            assert [root.pairs.count(), root.consequences.count()] == [1, 1]


def test_crossed_batches_for_two_inboxes_do_not_deadlock(kee: Caller, hexy: Caller) -> None:
    # The one who was there first has its inbox last, so that no other order of the two is also that of their ids.
    for owner in (hexy, kee):
        with acting_as(owner):
            post(owner)

    def rival(number: int) -> Callable[[], Any]:
        def run() -> None:
            owners = [kee, hexy] if number % 2 else [hexy, kee]
            for turn in range(15):
                drafts = [make_draft(owner, dedupe_key=f"{number}:{turn}:{at}") for at, owner in enumerate(owners)]
                with acting_as(kee):
                    services.post_many(poster=Poster.of(kee), drafts=drafts, now=T0)

        return run

    assert at_once(*(rival(number) for number in range(4))) == [None] * 4
    with acting_as(kee):
        assert Receipt.objects.count() == 2 + 4 * 15 * 2
    check()


def test_batches_that_make_an_inbox_do_not_deadlock(tenant: Tenant, kee: Caller) -> None:
    new = make_caller(tenant, "New")
    with acting_as(kee):
        post(kee)

    def batch(group: Group | None) -> Any:
        drafts = [make_draft(owner, group=group) for owner in (kee, new)]
        try:
            return acting(kee, lambda: services.post_many(poster=Poster.of(kee), drafts=drafts, now=T0))()
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as pool:
        with acting_as(kee):
            services.lock(principal_id=kee.principal_id)
            plain = pool.submit(batch, None)
            until_they_wait(1)
            grouped = pool.submit(batch, Group(resource_ref="pr:1", event_family="ci"))
            until_they_wait(2)
        answers = plain.result(timeout=30) + grouped.result(timeout=30)
    assert [type(one) for one in answers] == [services.Posted] * 4
    check()


def test_posts_and_acks_notify_on_commit(kee: Caller) -> None:
    heard: list[tuple[int, int]] = []

    def hear(principal_ids: Collection[int], tenant_id: int, **_: Any) -> None:
        heard.extend((principal_id, tenant_id) for principal_id in principal_ids)

    def notifies(act: Callable[[], Any]) -> bool:
        with acting_as(kee):
            act()
            assert not heard
        notified = (kee.principal_id, kee.tenant_id) in heard
        heard.clear()
        return notified

    inbox_changed.connect(hear)
    try:
        assert notifies(lambda: post(kee))
        assert notifies(lambda: post_grouped(kee, flush_class="immediate"))
        with acting_as(kee):
            tokens = [entry.token for entry in read(kee).entries]
        for token in tokens:
            assert notifies(partial(ack_through, kee, token))
            assert not notifies(partial(ack_through, kee, token))
    finally:
        inbox_changed.disconnect(hear)


def test_mark_delivered_does_not_wait_for_an_ack(kee: Caller) -> None:
    with acting_as(kee):
        acked, shown = post(kee), post(kee)

    def stamp() -> None:
        try:
            with acting_as(kee):
                services.mark_delivered(receipt_pks=[acked.id, shown.id], now=T0 + timedelta(hours=1))
        finally:
            connection.close()

    with acting_as(kee), ThreadPoolExecutor(1) as pool:
        services.ack_receipts(principal_id=kee.principal_id, receipt_pks=[acked.id], now=T0)
        pool.submit(stamp).result(timeout=60)
        assert ReceiptState.objects.get(pk=shown.id).delivered_at == T0 + timedelta(hours=1)
    with acting_as(kee):
        assert ReceiptState.objects.get(pk=acked.id).delivered_at == T0


def test_failing_inbox_does_not_stop_the_flush_of_others(
    kee: Caller, hexy: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner, resource in ((kee, "odd"), (hexy, "pr-1")):
        with acting_as(owner):
            post_grouped(owner, resource)
    written = services._text

    def broken(one: services.Members, facts: Sequence[Fact]) -> tuple[str, str]:
        if one.resource_ref == "odd":
            raise ZeroDivisionError
        return written(one, facts)

    monkeypatch.setattr(services, "_text", broken)
    for owner in (kee, hexy):
        with acting_as(owner):
            Thread.objects.filter(inbox__principal=owner.principal_id).update(flush_due_at=T0)

    assert services.flush_due() == 1

    with acting_as(hexy):
        assert len(read(hexy).entries) == 1
    with acting_as(kee):
        assert Thread.objects.get(inbox__principal=kee.principal_id).pending_count == 1


def test_inboxes_are_locked_in_the_order_of_their_ids(kee: Caller, hexy: Caller) -> None:
    for owner in (hexy, kee, hexy):  # hexy's inbox is the first by id, the last by principal, the last written
        with acting_as(owner):
            post(owner)
    with acting_as(kee):
        held = services.lock_several(tenant_id=kee.tenant_id, principal_ids=[kee.principal_id, hexy.principal_id])
    assert list(held) == [hexy.principal_id, kee.principal_id]
