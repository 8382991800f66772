"""The rules of digests, by their numbers in the design, one after the other."""

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from apps.core.errors import Malformed, NotFound
from apps.core.ids import decode_position
from apps.digests import selectors, services
from apps.digests.formats import parse_entry, parse_through
from apps.digests.models import Inbox, ReceiptState, Thread
from apps.digests.shapes import AckedOutput, InboxOutput
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller
from apps.receipts.models import Receipt
from apps.receipts.services import Group
from tests.digests.makers import ack_entries, ack_receipts, ack_through, post, post_grouped, read, receipt_ids, unsound
from tests.factories import T0, make_caller, pass_time


@pytest.fixture(autouse=True)
def sound(as_kee: Caller) -> Iterator[None]:
    """Whatever a test does, the inbox must add up afterwards."""
    yield
    assert unsound() == {}


def flushed(owner: Caller) -> InboxOutput:
    pass_time(31)
    services.flush_due()
    return read(owner)


def reasons(owner: Caller) -> list[str | None]:
    return [entry.flush_reason for entry in reversed(selectors.history(owner.principal_id).entries)]


@pytest.mark.parametrize(
    "group",
    [
        None,
        Group(resource_ref="pr:1"),
        Group(event_family="ci"),
        Group(resource_ref="pr:1", event_family="ci", groupable=False),
    ],
    ids=["none", "no family", "no resource", "opted out"],
)
def test_receipt_without_a_group_is_an_item_at_once(as_kee: Caller, group: Group | None) -> None:
    posted = post(as_kee, group=group)
    (entry,) = read(as_kee).entries
    assert (entry.kind, entry.ref, entry.receipt_ids) == ("item", posted.entry_ref, [posted.receipt_id])


def test_later_receipts_do_not_move_the_due_time(as_kee: Caller) -> None:
    post_grouped(as_kee)
    due = Thread.objects.get().flush_due_at
    pass_time(29)
    post_grouped(as_kee)
    assert Thread.objects.get().flush_due_at == due
    assert services.flush_due() == 0
    pass_time(1)
    assert services.flush_due() == 1
    assert read(as_kee).entries[0].count == 2


def test_post_with_a_group_flushes_due_threads(as_kee: Caller) -> None:
    due = [post_grouped(as_kee, f"pr:{number}") for number in range(25)]
    pass_time(31)
    late = post_grouped(as_kee, "pr:late")
    assert late.entry_ref is None
    assert receipt_ids(read(as_kee)) == [[one.receipt_id] for one in due[:20]]
    again = post_grouped(as_kee, "pr:24")
    assert again.entry_ref is not None
    assert receipt_ids(read(as_kee))[20:] == [
        *([one.receipt_id] for one in due[20:24]),
        [due[24].receipt_id, again.receipt_id],
    ]
    assert read(as_kee).pending == 1
    assert set(reasons(as_kee)) == {"window"}


def test_snapshot_takes_the_latest_hint_and_handle(as_kee: Caller) -> None:
    for hint, handle in (("CI is red", "job:1"), ("CI is green", "job:2"), (None, None)):
        post_grouped(as_kee, summary_hint=hint, delivery_handle=handle)
    for title in "ABCD":
        post_grouped(as_kee, resource="pr:2", title=title)
    hinted, plain = flushed(as_kee).entries
    assert (hinted.title, hinted.summary, hinted.delivery_handle) == ("ci on pr:1: 3 receipts", "CI is green", "job:2")
    assert plain.summary == "ci on pr:2: 4 receipts. Latest: D; C; B"


def test_the_classic_trap_with_the_old_token(as_kee: Caller) -> None:
    seen = post_grouped(as_kee, resource="A")
    flushed(as_kee)
    other = post_grouped(as_kee, resource="B")
    page = flushed(as_kee)
    assert receipt_ids(page) == [[seen.receipt_id], [other.receipt_id]]
    new = post_grouped(as_kee, resource="A")
    flushed(as_kee)

    acked = ack_through(as_kee, page.entries[-1].token)

    assert acked.acked_receipts == 2
    assert receipt_ids(read(as_kee)) == [[new.receipt_id]]
    assert reasons(as_kee)[-1] == "narrow"


def test_the_classic_trap_with_a_new_token(as_kee: Caller) -> None:
    seen = post_grouped(as_kee, resource="A")
    flushed(as_kee)
    other = post_grouped(as_kee, resource="B")
    flushed(as_kee)
    new = post_grouped(as_kee, resource="A")
    page = flushed(as_kee)
    assert receipt_ids(page) == [[other.receipt_id], [seen.receipt_id, new.receipt_id]]

    acked = ack_through(as_kee, page.entries[0].token)

    assert acked.acked_receipts == 1
    assert receipt_ids(read(as_kee)) == [[seen.receipt_id, new.receipt_id]]


def test_as_of_before_the_entry_acks_what_was_visible_then(as_kee: Caller) -> None:
    for _ in range(2):
        post(as_kee)
    last = post(as_kee)
    with pytest.raises(Malformed, match="no state 4"):
        ack_through(as_kee, f"{last.entry_ref}@4")
    assert ack_through(as_kee, f"{last.entry_ref}@2").acked_receipts == 2
    assert receipt_ids(read(as_kee)) == [[last.receipt_id]]


def test_ack_through_spares_superseded_entries_behind_the_boundary(as_kee: Caller) -> None:
    seen = post(as_kee)
    shown_behind = post_grouped(as_kee, "pr:1", flush_class="immediate")
    page = read(as_kee)
    never_shown = post_grouped(as_kee, "pr:2", flush_class="immediate")
    grown = [post_grouped(as_kee, resource, flush_class="immediate") for resource in ("pr:1", "pr:2")]
    assert receipt_ids(page) == [[seen.receipt_id], [shown_behind.receipt_id]]

    assert ack_through(as_kee, page.entries[0].token) == AckedOutput(acked_entries=1, acked_receipts=1)

    assert receipt_ids(read(as_kee)) == [
        [shown_behind.receipt_id, grown[0].receipt_id],
        [never_shown.receipt_id, grown[1].receipt_id],
    ]
    assert ack_through(as_kee, page.entries[1].token) == AckedOutput(acked_entries=1, acked_receipts=1)
    assert ReceiptState.objects.get(pk=never_shown.id).acked_at is None


def test_ack_of_an_older_revision_leaves_one_narrow_snapshot(as_kee: Caller) -> None:
    post_grouped(as_kee)
    (old,) = flushed(as_kee).entries
    rest = post_grouped(as_kee)
    flushed(as_kee)
    waiting = post_grouped(as_kee)
    ack_entries(as_kee, old.id)
    page = read(as_kee)
    assert receipt_ids(page) == [[rest.receipt_id]]
    assert (page.entries[0].flush_reason, page.pending) == ("narrow", 1)
    assert waiting.receipt_id not in page.entries[0].receipt_ids


@pytest.mark.parametrize(
    ("narrow", "acked", "left"),
    [
        (lambda kee: read(kee, source_system="github"), 4, [1, 6]),
        (lambda kee: read(kee, after=2, limit=2), 2, [1, 2, 5, 6]),
        (lambda kee: read(kee, after=3, limit=2, shown_after=1), 4, [1, 6]),
        (lambda kee: read(kee, max_tokens=150), 2, [3, 4, 5, 6]),
        (lambda kee: selectors.newest_entries(kee.principal_id, limit=2), 2, [1, 2, 3, 4]),
    ],
    ids=["one source", "a later page", "a continued read", "few tokens", "the newest"],
)
def test_token_of_a_narrow_read_acks_only_what_it_showed(
    as_kee: Caller, narrow: Callable[[Caller], InboxOutput], acked: int, left: list[int]
) -> None:
    for number in range(6):
        post(as_kee, source="mail" if number in {0, 5} else "github", summary="x" * 100)
    last = max(narrow(as_kee).entries, key=lambda entry: entry.sequence)
    assert ack_through(as_kee, last.token).acked_receipts == acked
    assert [entry.sequence for entry in read(as_kee).entries] == left


def test_unknown_or_foreign_reference_acks_nothing(as_kee: Caller, tenant: Tenant) -> None:
    mine, hexy = post(as_kee), make_caller(tenant, "Hexy")
    theirs = post(hexy, poster=as_kee)
    for ref in (theirs.entry_ref, "ent_1000000000000000"):
        with pytest.raises(NotFound, match="This inbox has no entry"):
            ack_entries(as_kee, parse_entry(mine.entry_ref or ""), parse_entry(ref or ""))
        with pytest.raises(NotFound):
            ack_through(as_kee, ref)
    assert ack_receipts(as_kee, theirs.id).acked_receipts == 0
    assert (read(as_kee).visible, read(hexy).visible) == (1, 1)


@pytest.mark.parametrize(
    "text",
    ["thr_1", "thr_1@4", "42", "ent_0", "ent_42@", "ent_42@x", "ent_42@-1", "ent_42@1~", "ent_42@1~!!", "ent_42@1~e30",
     "ent_42@1~WzFd", "ent_42@1~eyJpZHMiOlsieCJdfQ", "ent_42@1~eyJhZnRlciI6LTF9", "ENT_1", "ent_1 ", "ent_٤",
     "ent_1@1~eyJzb3VyY2UiOiJcdWQ4MDAifQ", "ent_1@1~eyJhZnRlciI6OTIyMzM3MjAzNjg1NDc3NTgwOH0", "ent_1@1~eyJpZHMiOls5MjIzMzcyMDM2ODU0Nzc1ODA4XX0", "ent_1@1~eyJhZnRlciI6TmFOfQ", "ent_1@1~eyJhZnRlciI6MSwiYWZ0ZXIiOjJ9", "ent_1@1~" + "W1tb" * 1900],
)  # fmt: skip
def test_malformed_and_thread_references_are_refused(text: str) -> None:
    with pytest.raises(Malformed):
        parse_through(text)


def test_acks_stamp_delivered_and_archiving_keeps_their_time(as_kee: Caller) -> None:
    item, first, second = post(as_kee), post_grouped(as_kee), post_grouped(as_kee, flush_class="immediate")
    ack_through(as_kee, read(as_kee).entries[0].token, now=T0)
    for one in (first, second):
        ack_receipts(as_kee, one.id)
    later = T0 + timedelta(hours=1)
    assert ack_receipts(as_kee, second.id, now=later, archive=True).acked_receipts == 0
    stamps = ReceiptState.objects.order_by("pk").values_list("pk", "delivered_at", "acked_at", "archived_at")
    assert list(stamps) == [(one.id, T0, T0, later if one is second else None) for one in (item, first, second)]


def test_history_page_ends_before_it_names_too_many_receipts(as_kee: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.digests.selectors.MOST_NAMED", 5)
    for _ in range(6):
        post_grouped(as_kee, flush_class="immediate")
    pages = [selectors.history(as_kee.principal_id)]
    while following := pages[-1].next:
        pages.append(selectors.history(as_kee.principal_id, before=decode_position(following)))
    assert [[entry.count for entry in page.entries] for page in pages] == [[6], [5], [4], [3, 2], [1]]


def test_unread_receipts_of_a_source_are_found_below_acked_ones(as_kee: Caller) -> None:
    digest = [post_grouped(as_kee, "pr:1").receipt_id for _ in range(2)]
    flushed(as_kee)
    item, grouped = post(as_kee).receipt_id, post_grouped(as_kee, "pr:2").receipt_id
    post(as_kee, source="mail")
    for _ in range(4):
        ack_receipts(as_kee, post(as_kee).id)

    def unread(*, before: int | None = None, limit: int = 10) -> list[str]:
        listed = selectors.inbox_receipts(as_kee.principal_id, source_system="github", before=before, limit=limit)
        return [one.receipt_id for one in listed]

    everything = [grouped, item, *reversed(digest)]
    assert unread() == everything
    assert unread(limit=3) == everything[:3]
    assert unread(before=Receipt.objects.get(receipt_id=item).pk) == everything[2:]
    assert [post(as_kee).receipt_id] == unread(limit=1)
    assert selectors.unread_of_source(as_kee.principal_id, "github") == 5


def test_an_inbox_without_receipts_is_empty_as_of_nothing(as_kee: Caller) -> None:
    assert read(as_kee) == InboxOutput(as_of=0, entries=[], visible=0, pending=0, more_waiting=0)
    assert not Inbox.objects.exists()
