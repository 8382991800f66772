"""The rules of digests, by their numbers in the design, one after the other."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from apps.core.errors import Malformed
from apps.core.ids import decode_position
from apps.digests import selectors, services
from apps.digests.errors import BadToken, UnknownEntry
from apps.digests.formats import parse_entry, parse_through
from apps.digests.models import Entry, Inbox, ReceiptState, Thread
from apps.digests.services import Group, PolicyChange
from apps.digests.shapes import AckedOutput, InboxOutput
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as
from apps.receipts.models import Receipt
from tests.digests.makers import ack_through, make_draft, pass_time, post, post_grouped, read, receipt_ids, unsound
from tests.factories import T0, make_caller


@pytest.fixture(autouse=True)
def sound(as_kee: Caller) -> Iterator[None]:
    """Whatever a test does, the inbox must add up afterwards."""
    yield
    assert unsound() == {}


CI = Group(resource_ref="pr:ci", event_family="ci")


def set_policy(owner: Caller, **change: object) -> None:
    services.set_policy(
        tenant_id=owner.tenant_id,
        principal_id=owner.principal_id,
        change=PolicyChange(**change),  # type: ignore[arg-type]  # the caller's keywords
        now=T0,
    )


def flushed(owner: Caller) -> InboxOutput:
    pass_time(31)
    services.flush_due()
    return read(owner)


def reasons(owner: Caller) -> list[str | None]:
    return [entry.flush_reason for entry in reversed(selectors.history(owner.principal_id).entries)]


def test_receipts_with_a_group_are_gathered(as_kee: Caller) -> None:
    posted = [post_grouped(as_kee) for _ in range(3)]
    assert [one.entry_ref for one in posted] == [None, None, None]
    assert (read(as_kee).entries, read(as_kee).pending) == ([], 3)
    assert receipt_ids(flushed(as_kee)) == [[one.receipt_id for one in posted]]


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


def test_the_source_is_part_of_the_group(as_kee: Caller) -> None:
    post_grouped(as_kee, source="github")
    post_grouped(as_kee, source="gitlab")
    assert [entry.source_systems for entry in flushed(as_kee).entries] == [["github"], ["gitlab"]]


def test_the_family_is_part_of_the_group(as_kee: Caller) -> None:
    reviewed = post_grouped(as_kee, "pr:1", family="review_comments")
    built = [post_grouped(as_kee, "pr:1", family="ci_updates") for _ in range(2)]
    reviewed_again = post_grouped(as_kee, "pr:1", family="review_comments")
    groups = {entry.group_key: entry.receipt_pks for entry in flushed(as_kee).entries}
    assert groups == {
        "github:pr:1:review_comments": [reviewed.id, reviewed_again.id],
        "github:pr:1:ci_updates": [one.id for one in built],
    }


def test_with_the_policy_off_everything_is_an_item(as_kee: Caller) -> None:
    set_policy(as_kee, enabled=False)
    post_grouped(as_kee)
    assert [entry.kind for entry in read(as_kee).entries] == ["item"]


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


def test_a_policy_change_does_not_move_a_due_time(as_kee: Caller) -> None:
    pass_time(0)  # stops the clock
    post_grouped(as_kee)
    due = Thread.objects.get().flush_due_at
    set_policy(as_kee, window=timedelta(seconds=1))
    post_grouped(as_kee)
    assert Thread.objects.get().flush_due_at == due
    post_grouped(as_kee, resource="pr:2")
    assert due is not None
    assert Thread.objects.get(resource_ref="pr:2").flush_due_at == due - timedelta(seconds=29)


def test_buffer_flushes_at_max_items(as_kee: Caller) -> None:
    set_policy(as_kee, max_items=3)
    posted = [post_grouped(as_kee) for _ in range(7)]
    assert [one.entry_ref is not None for one in posted] == [False, False, True, False, False, True, False]
    assert [entry.count for entry in read(as_kee).entries] == [6]
    assert reasons(as_kee) == ["size", "size"]


def test_immediate_receipt_flushes_its_own_thread_only(as_kee: Caller) -> None:
    post_grouped(as_kee, resource="pr:2")
    post_grouped(as_kee)
    posted = post_grouped(as_kee, flush_class="immediate")
    (entry,) = read(as_kee).entries
    assert (entry.ref, entry.count, entry.flush_reason) == (posted.entry_ref, 2, "immediate")
    assert read(as_kee).pending == 1


def test_break_thread_flushes_and_opens_another(as_kee: Caller) -> None:
    old = [post_grouped(as_kee) for _ in range(2)]
    new = post_grouped(as_kee, break_thread=True)
    assert receipt_ids(read(as_kee)) == [[one.receipt_id for one in old]]
    assert receipt_ids(flushed(as_kee))[1] == [new.receipt_id]
    assert reasons(as_kee) == ["rollover", "window"]
    assert Thread.objects.filter(closed_at=None).count() == 1


def test_a_thread_rolls_over_when_it_is_old(as_kee: Caller) -> None:
    post_grouped(as_kee)
    pass_time(24 * 3600)
    post_grouped(as_kee)
    assert reasons(as_kee) == ["rollover"]
    assert Thread.objects.count() == 2


def test_a_thread_rolls_over_at_its_limit(as_kee: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    from apps.digests.services import posting  # noqa: PLC0415

    monkeypatch.setattr(posting, "THREAD_LIMIT", 5)
    for _ in range(6):
        post_grouped(as_kee)
    assert [entry.count for entry in read(as_kee).entries] == [5]
    assert Thread.objects.count() == 2


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


@pytest.mark.parametrize("way", ["one", "several", "first of its kind", "beside what is gathered elsewhere"])
def test_post_without_a_group_flushes_due_threads(tenant: Tenant, as_kee: Caller, way: str) -> None:
    hexy = make_caller(tenant, "Hexy")
    due = {
        owner.name: [post_grouped(owner, f"pr:{number}").receipt_id for number in range(2)] for owner in (as_kee, hexy)
    }
    pass_time(31)
    drafts = {
        "one": [make_draft(as_kee)],
        "several": [make_draft(as_kee), make_draft(hexy), make_draft(as_kee)],
        "first of its kind": [make_draft(as_kee, receipt_id="R.1"), make_draft(hexy, caused_by="R.0")],
        "beside what is gathered elsewhere": [make_draft(hexy, group=CI), make_draft(as_kee)],
    }[way]
    answers = services.post_many(poster=services.Poster.of(as_kee), drafts=drafts, now=T0)
    for owner in (as_kee, hexy) if len(drafts) > 1 else (as_kee,):
        page = read(owner)
        assert [entry.receipt_ids for entry in page.entries if entry.flush_reason] == [[one] for one in due[owner.name]]
        assert {entry.flush_reason for entry in page.entries} <= {None, "window"}
    assert read(hexy).pending == {"one": 2, "beside what is gathered elsewhere": 1}.get(way, 0)
    shown = {entry.ref for owner in (as_kee, hexy) for entry in read(owner).entries if not entry.flush_reason}
    assert shown == {one.entry_ref for one in answers if isinstance(one, services.Posted)} - {None}


def test_switching_the_policy_off_flushes_what_waits(as_kee: Caller) -> None:
    post_grouped(as_kee)
    post_grouped(as_kee, resource="pr:2")
    set_policy(as_kee, enabled=False)
    assert reasons(as_kee) == ["lifecycle", "lifecycle"]
    assert read(as_kee).pending == 0


def test_flush_without_pending_receipts_does_nothing(as_kee: Caller) -> None:
    post_grouped(as_kee)
    page = flushed(as_kee)
    pass_time(1000)
    assert services.flush_due() == 0
    assert read(as_kee) == page


def test_snapshot_holds_all_unacked_and_supersedes_the_last(as_kee: Caller) -> None:
    first = post_grouped(as_kee)
    (one,) = flushed(as_kee).entries
    second = post_grouped(as_kee)
    (two,) = flushed(as_kee).entries
    assert (one.revision, two.revision, two.supersedes) == (1, 2, one.ref)
    assert two.receipt_ids == [first.receipt_id, second.receipt_id]
    past = selectors.entry(as_kee.principal_id, one.id)
    assert (past.superseded_by_seq, past.receipt_ids) == (two.sequence, [first.receipt_id])


def test_snapshot_title_and_summary_by_hint_or_default(as_kee: Caller) -> None:
    post_grouped(as_kee, summary_hint="CI is red", title="Build failed")
    post_grouped(as_kee, title="Build fixed")
    post_grouped(as_kee, resource="pr:2", title="Review")
    hinted, plain = flushed(as_kee).entries
    assert (hinted.title, hinted.summary) == ("2 ci on pr:1", "CI is red")
    assert plain.summary == "1 ci on pr:2. Latest: Review"


def test_snapshot_takes_the_latest_hint_and_handle(as_kee: Caller) -> None:
    for hint, handle in (("CI is red", "job:1"), ("CI is green", "job:2"), (None, None)):
        post_grouped(as_kee, summary_hint=hint, delivery_handle=handle)
    for title in "ABCD":
        post_grouped(as_kee, resource="pr:2", title=title)
    hinted, plain = flushed(as_kee).entries
    assert (hinted.summary, hinted.delivery_handle) == ("CI is green", "job:2")
    assert plain.summary == "4 ci on pr:2. Latest: D; C; B"


def test_sequences_are_contiguous_and_never_reused(as_kee: Caller) -> None:
    for number in range(4):
        post(as_kee)
        post_grouped(as_kee, flush_class="immediate")
        if number % 2:
            ack_through(as_kee, read(as_kee).entries[-1].token)
    sequences = [entry.sequence for entry in reversed(selectors.history(as_kee.principal_id).entries)]
    assert sequences == list(range(1, len(sequences) + 1))
    assert read(as_kee).as_of == len(sequences)


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


def test_ack_without_as_of_takes_visible_entries_and_the_entry(as_kee: Caller) -> None:
    item = post(as_kee)
    first = post_grouped(as_kee)
    old = flushed(as_kee).entries[-1]
    later = post_grouped(as_kee)
    flushed(as_kee)
    ack_through(as_kee, old.ref)
    assert receipt_ids(read(as_kee)) == [[later.receipt_id]]
    assert not ReceiptState.objects.filter(receipt__receipt_id__in=[item.receipt_id, first.receipt_id], acked_at=None)


def test_ack_through_spares_what_came_after_the_read(as_kee: Caller) -> None:
    post(as_kee)
    token = read(as_kee).entries[0].token
    late = post(as_kee)
    ack_through(as_kee, token)
    assert receipt_ids(read(as_kee)) == [[late.receipt_id]]


def test_as_of_before_the_entry_acks_what_was_visible_then(as_kee: Caller) -> None:
    for _ in range(2):
        post(as_kee)
    last = post(as_kee)
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


def test_a_state_that_the_inbox_never_had_is_refused(as_kee: Caller) -> None:
    posted = post(as_kee)
    with pytest.raises(BadToken):
        ack_through(as_kee, f"{posted.entry_ref}@2")
    assert read(as_kee).visible == 1


def test_a_filtered_read_binds_its_filter(as_kee: Caller) -> None:
    post(as_kee, source="email_monitor")
    post(as_kee, source="github")
    (entry,) = read(as_kee, source_system="github").entries
    assert "~" in (entry.token or "")
    assert ack_through(as_kee, entry.token).acked_receipts == 1
    assert [one.source_systems for one in read(as_kee).entries] == [["email_monitor"]]


def test_a_later_page_does_not_ack_the_pages_before(as_kee: Caller) -> None:
    for _ in range(4):
        post(as_kee)
    first = read(as_kee, limit=2)
    second = read(as_kee, limit=2, after=first.entries[-1].sequence)
    assert ack_through(as_kee, second.entries[-1].token).acked_receipts == 2
    assert read(as_kee).entries[0].sequence == first.entries[0].sequence


def test_token_of_a_later_page_spares_earlier_superseded_entries(as_kee: Caller) -> None:
    left_out = post_grouped(as_kee, flush_class="immediate")
    shown = post(as_kee)
    (entry,) = read(as_kee, after=1).entries
    grown = post_grouped(as_kee, flush_class="immediate")
    assert entry.receipt_ids == [shown.receipt_id]
    assert ack_through(as_kee, entry.token) == AckedOutput(acked_entries=1, acked_receipts=1)
    assert receipt_ids(read(as_kee)) == [[left_out.receipt_id, grown.receipt_id]]


def test_continued_read_acks_from_its_start_only(as_kee: Caller) -> None:
    for _ in range(6):
        post(as_kee)
    beginning, *first = read(as_kee, limit=3).entries
    on = read(as_kee, limit=2, after=first[-1].sequence, shown_after=beginning.sequence).entries
    assert [entry.sequence for entry in on] == [4, 5]
    assert ack_through(as_kee, on[-1].token).acked_receipts == 4
    assert [entry.sequence for entry in read(as_kee).entries] == [1, 6]


def test_a_page_cut_by_tokens_acks_what_it_showed(as_kee: Caller) -> None:
    for _ in range(4):
        post(as_kee, summary="x" * 400)
    page = read(as_kee, max_tokens=400)
    assert 0 < len(page.entries) < 4
    assert ack_through(as_kee, page.entries[-1].token).acked_receipts == len(page.entries)
    assert read(as_kee, max_tokens=1).entries[0].sequence == len(page.entries) + 1


def test_tokens_of_newest_entries_reach_only_these_entries(as_kee: Caller) -> None:
    for _ in range(12):
        post(as_kee)
    page = selectors.newest_entries(as_kee.principal_id, limit=10)
    assert [entry.sequence for entry in page.entries] == list(range(12, 2, -1))
    assert page.more_waiting == 2
    assert ack_through(as_kee, page.entries[0].token).acked_receipts == 10
    assert [entry.sequence for entry in read(as_kee).entries] == [1, 2]


def test_ack_of_an_older_revision_leaves_one_narrow_snapshot(as_kee: Caller) -> None:
    post_grouped(as_kee)
    (old,) = flushed(as_kee).entries
    rest = post_grouped(as_kee)
    flushed(as_kee)
    waiting = post_grouped(as_kee)
    services.ack(principal_id=as_kee.principal_id, entry_ids=[old.id], now=T0)
    page = read(as_kee)
    assert receipt_ids(page) == [[rest.receipt_id]]
    assert (page.entries[0].flush_reason, page.pending) == ("narrow", 1)
    assert waiting.receipt_id not in page.entries[0].receipt_ids


def test_full_ack_closes_the_thread(as_kee: Caller) -> None:
    post_grouped(as_kee)
    ack_through(as_kee, flushed(as_kee).entries[0].token)
    assert Thread.objects.get().closed_at is not None
    post_grouped(as_kee)
    assert flushed(as_kee).entries[0].revision == 1
    assert Thread.objects.count() == 2


def test_full_ack_with_pending_receipts_keeps_thread_and_buffer(as_kee: Caller) -> None:
    post_grouped(as_kee)
    page = flushed(as_kee)
    waiting = post_grouped(as_kee)
    due = Thread.objects.get().flush_due_at
    ack_through(as_kee, page.entries[0].token)
    thread = Thread.objects.get()
    assert (thread.closed_at, thread.pending_count, thread.flush_due_at) == (None, 1, due)
    assert read(as_kee).entries == []
    (entry,) = flushed(as_kee).entries
    assert (entry.receipt_ids, entry.revision, entry.supersedes) == ([waiting.receipt_id], 2, None)


def test_an_ack_is_idempotent(as_kee: Caller) -> None:
    post(as_kee)
    post_grouped(as_kee)
    token = flushed(as_kee).entries[-1].token
    assert ack_through(as_kee, token) == AckedOutput(acked_entries=2, acked_receipts=2)
    before = list(Entry.objects.order_by("pk").values())
    assert ack_through(as_kee, token) == AckedOutput(acked_entries=0, acked_receipts=0)
    assert services.ack(principal_id=as_kee.principal_id, entry_ids=[before[0]["id"]], now=T0).acked_entries == 0
    assert list(Entry.objects.order_by("pk").values()) == before


def test_unknown_or_foreign_reference_acks_nothing(as_kee: Caller, tenant: Tenant) -> None:
    mine = post(as_kee)
    hexy = make_caller(tenant, "Hexy")
    theirs = post(hexy, poster=as_kee)
    for ref in (theirs.entry_ref, "ent_1000000000000000"):
        with pytest.raises(UnknownEntry, match="This inbox has no entry"):
            services.ack(
                principal_id=as_kee.principal_id,
                entry_ids=[parse_entry(mine.entry_ref or ""), parse_entry(ref or "")],
                now=T0,
            )
        with pytest.raises(UnknownEntry):
            ack_through(as_kee, ref)
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


def test_reading_one_receipt_of_a_digest_acks_it_and_narrows(as_kee: Caller) -> None:
    first, second = post_grouped(as_kee), post_grouped(as_kee)
    flushed(as_kee)
    services.ack_receipts(principal_id=as_kee.principal_id, receipt_pks=[first.id], now=T0)
    (entry,) = read(as_kee).entries
    assert (entry.receipt_ids, entry.flush_reason) == ([second.receipt_id], "narrow")
    services.ack_receipts(principal_id=as_kee.principal_id, receipt_pks=[second.id], now=T0, archive=True)
    assert read(as_kee).unread == 0
    assert Thread.objects.get().closed_at is not None


def test_reading_a_pending_receipt_acks_that_one(as_kee: Caller) -> None:
    first, second = post_grouped(as_kee), post_grouped(as_kee)
    services.ack_receipts(principal_id=as_kee.principal_id, receipt_pks=[first.id], now=T0)
    assert (read(as_kee).pending, read(as_kee).entries) == (1, [])
    services.ack_receipts(principal_id=as_kee.principal_id, receipt_pks=[second.id], now=T0)
    thread = Thread.objects.get()
    assert (thread.pending_count, thread.flush_due_at, thread.closed_at) == (0, None, T0)


def test_reading_a_pending_receipt_leaves_the_live_snapshot(as_kee: Caller) -> None:
    post_grouped(as_kee, flush_class="immediate")
    shown = read(as_kee).entries
    waiting = post_grouped(as_kee)
    services.ack_receipts(principal_id=as_kee.principal_id, receipt_pks=[waiting.id], now=T0)
    assert [(one.ref, one.receipt_ids) for one in read(as_kee).entries] == [(one.ref, one.receipt_ids) for one in shown]
    assert Entry.objects.count() == 1
    assert (Thread.objects.get().closed_at, read(as_kee).pending) == (None, 0)


def test_delivered_is_stamped_once_and_reading_consumes_nothing(
    as_kee: Caller,
) -> None:
    first = post_grouped(as_kee)
    page = flushed(as_kee)
    keys = [pk for entry in page.entries for pk in entry.receipt_pks]
    services.mark_delivered(receipt_pks=keys, now=T0)
    services.mark_delivered(receipt_pks=keys, now=T0 + timedelta(hours=1))
    state = ReceiptState.objects.get(pk=first.id)
    assert (state.delivered_at, state.read_at, state.acked_at) == (T0, None, None)
    assert read(as_kee) == page
    services.ack_receipts(principal_id=as_kee.principal_id, receipt_pks=[first.id], now=T0 + timedelta(hours=2))
    state.refresh_from_db()
    assert (state.delivered_at, state.acked_at) == (T0, T0 + timedelta(hours=2))


def test_ack_without_a_read_stamps_delivered(as_kee: Caller) -> None:
    item, first, second = post(as_kee), post_grouped(as_kee), post_grouped(as_kee, flush_class="immediate")
    ack_through(as_kee, read(as_kee).entries[0].token, now=T0)
    services.ack_receipts(principal_id=as_kee.principal_id, receipt_pks=[first.id], now=T0)
    services.ack_receipts(principal_id=as_kee.principal_id, receipt_pks=[second.id], now=T0, archive=True)
    stamps = ReceiptState.objects.filter(pk__in=[item.id, first.id, second.id]).values_list("delivered_at", "acked_at")
    assert list(stamps) == [(T0, T0)] * 3


def test_archiving_acks_and_keeps_the_time_of_the_ack(as_kee: Caller) -> None:
    posted = post(as_kee)
    services.ack_receipts(principal_id=as_kee.principal_id, receipt_pks=[posted.id], now=T0)
    later = T0 + timedelta(hours=1)
    assert (
        services.ack_receipts(
            principal_id=as_kee.principal_id, receipt_pks=[posted.id], now=later, archive=True
        ).acked_receipts
        == 0
    )
    state = ReceiptState.objects.get(pk=posted.id)
    assert (state.read_at, state.acked_at, state.archived_at) == (T0, T0, later)


def test_expand_is_paged_and_shows_acked_and_superseded_entries(as_kee: Caller) -> None:
    posted = [post_grouped(as_kee) for _ in range(5)]
    (entry,) = flushed(as_kee).entries
    post_grouped(as_kee)
    ack_through(as_kee, flushed(as_kee).entries[0].token)
    one = selectors.expand(as_kee.principal_id, entry.id, limit=3)
    two = selectors.expand(as_kee.principal_id, entry.id, start=decode_position(one.next or ""), limit=3)
    assert [seen.receipt_id for seen in one.receipts + two.receipts] == [each.receipt_id for each in posted]
    assert two.next is None


def test_history_lists_everything_newest_first(as_kee: Caller) -> None:
    for _ in range(3):
        post(as_kee)
        ack_through(as_kee, read(as_kee).entries[0].token)
    past = selectors.history(as_kee.principal_id, limit=2)
    older = selectors.history(as_kee.principal_id, before=decode_position(past.next or ""))
    assert [entry.sequence for entry in past.entries + older.entries] == [3, 2, 1]
    assert all(entry.acked_at for entry in past.entries + older.entries)
    assert older.next is None


def test_history_page_ends_before_it_names_too_many_receipts(as_kee: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.digests.selectors.MOST_NAMED", 5)
    for _ in range(6):
        post_grouped(as_kee, flush_class="immediate")
    pages = [selectors.history(as_kee.principal_id)]
    while following := pages[-1].next:
        pages.append(selectors.history(as_kee.principal_id, before=decode_position(following)))
    assert [[entry.count for entry in page.entries] for page in pages] == [[6], [5], [4], [3, 2], [1]]


def test_unread_receipts_of_a_source_are_found_below_acked_ones(
    as_kee: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.digests.selectors._WALKED", 2)
    digest = [post_grouped(as_kee, "pr:1").receipt_id for _ in range(2)]
    flushed(as_kee)
    item, gathered = post(as_kee).receipt_id, post_grouped(as_kee, "pr:2").receipt_id
    post(as_kee, source="mail")
    for _ in range(4):
        services.ack_receipts(principal_id=as_kee.principal_id, receipt_pks=[post(as_kee).id], now=T0)

    def unread(*, before: int | None = None, limit: int = 10) -> list[str]:
        listed = selectors.inbox_receipts(as_kee.principal_id, source_system="github", before=before, limit=limit)
        return [one.receipt_id for one in listed]

    everything = [gathered, item, *reversed(digest)]
    assert unread() == everything
    assert unread(limit=3) == everything[:3]
    assert unread(before=Receipt.objects.get(receipt_id=item).pk) == everything[2:]
    newest = post(as_kee).receipt_id
    assert unread(limit=1) == [newest]
    assert selectors.unread_of_source(as_kee.principal_id, "github") == 5


def test_references_are_typed(as_kee: Caller) -> None:
    post_grouped(as_kee)
    (entry,) = flushed(as_kee).entries
    assert (entry.ref, entry.thread) == (f"ent_{entry.id}", f"thr_{Thread.objects.get().pk}")


def test_counts_add_up_within_a_burst(as_kee: Caller) -> None:
    post(as_kee)
    post_grouped(as_kee, flush_class="immediate")
    post_grouped(as_kee)
    page = read(as_kee)
    assert (page.visible, page.pending, page.unread, page.more_waiting) == (2, 1, 3, 1)
    counts = selectors.unread_counts(as_kee.principal_id)
    assert (counts.visible, counts.pending, counts.total) == (2, 1, 3)


def test_an_inbox_without_receipts_is_empty_as_of_nothing(as_kee: Caller) -> None:
    assert read(as_kee) == InboxOutput(as_of=0, entries=[], visible=0, pending=0, more_waiting=0)
    assert not Inbox.objects.exists()


def test_no_operation_on_one_inbox_touches_another(tenant: Tenant, as_kee: Caller) -> None:
    hexy = make_caller(tenant, "Hexy")
    theirs = post(hexy, poster=as_kee)
    post(as_kee)
    ack_through(as_kee, read(as_kee).entries[0].token)
    with acting_as(hexy):
        assert receipt_ids(read(hexy)) == [[theirs.receipt_id]]
        assert (
            services.ack_receipts(principal_id=as_kee.principal_id, receipt_pks=[theirs.id], now=T0).acked_receipts == 0
        )
    assert read(hexy).visible == 1
