"""Random lives of two inboxes, step by step beside a model in memory."""

import copy
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count
from typing import Any, Final

import pytest
from django.db import connection, transaction
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from apps.core.errors import DomainError
from apps.core.sql import execute, fetch
from apps.digests import selectors, services
from apps.digests.formats import Bound, Through, format_token
from apps.digests.grouping import Policy
from apps.digests.services import Posted
from apps.digests.shapes import AckedOutput, InboxOutput
from apps.principals.tenancy import Caller, acting_as
from apps.receipts.errors import DuplicateReceipt
from apps.receipts.services import Group, Poster, ReceiptDraft
from tests.digests.makers import make_draft, set_policy, unsound
from tests.factories import T0, make_caller, make_tenant

THREAD_LIMIT: Final = 500
_Key = tuple[str, str, str]
"""Source, resource, family."""


@dataclass(eq=False, slots=True)
class ModelEntry:
    receipts: frozenset[int]
    thread: "ModelThread | None" = None
    revision: int | None = None
    reason: str | None = None
    source: str = ""
    successor: "ModelEntry | None" = None
    id: int = 0
    sequence: int = 0

    @property
    def looks(self) -> tuple[object, ...]:
        """What tells it from others before its sequence is known."""
        return (self.receipts, self.revision, self.reason)

    def superseded_as_of(self, as_of: int) -> bool:
        return self.successor is not None and self.successor.sequence <= as_of


@dataclass(eq=False, slots=True)
class ModelThread:
    key: _Key
    opened_at: datetime
    receipts: set[int] = field(default_factory=set)
    pending: set[int] = field(default_factory=set)
    due: datetime | None = None
    revision: int = 0
    is_open: bool = True
    live: ModelEntry | None = None


@dataclass(frozen=True, slots=True)
class ModelReceipt:
    """A receipt, as far as an inbox cares."""

    pk: int
    source: str
    key: _Key | None
    immediate: bool = False
    breaks: bool = False


@dataclass(eq=False, slots=True)
class ModelInbox:
    """What one principal owns."""

    enabled: bool = True
    window: timedelta = timedelta(seconds=30)
    max_items: int = 20
    max_thread_age: timedelta = timedelta(hours=24)
    last_seq: int = 0
    entries: list[ModelEntry] = field(default_factory=list)
    threads: list[ModelThread] = field(default_factory=list)
    receipts: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)
    fresh: list[ModelEntry] = field(default_factory=list)
    """Flushed by the step in hand; their sequences are not known yet."""

    def copied(self) -> "ModelInbox":
        return copy.deepcopy(self)

    # Rules 1 to 5

    def post(self, said: ModelReceipt, now: datetime) -> None:
        overdue = self._overdue(now)
        self._post(said, now)
        self._flush_all(overdue)

    def _post(self, said: ModelReceipt, now: datetime) -> None:
        self.receipts.add(said.pk)
        if said.key is None or not self.enabled:
            self._show(ModelEntry(frozenset([said.pk]), source=said.source))
            return
        thread = self._thread_for(said, now)
        self._buffer(thread, said, now)
        if said.immediate:
            self._flush(thread, "immediate")
        elif len(thread.pending) >= self.max_items:
            self._flush(thread, "size")

    def post_together(self, batch: Sequence[ModelReceipt], now: datetime) -> None:
        """As one: each thread is flushed once, when the whole batch is in."""
        due: dict[int, tuple[ModelThread, str]] = {}
        overdue = self._overdue(now)
        for said in batch:
            if said.key is None or not self.enabled:
                self._post(said, now)
                continue
            self.receipts.add(said.pk)
            thread = self._thread_for(said, now)
            self._buffer(thread, said, now)
            if said.immediate:
                due[id(thread)] = (thread, "immediate")
            elif len(thread.pending) >= self.max_items:
                due.setdefault(id(thread), (thread, "size"))
        for thread, reason in due.values():
            self._flush(thread, reason)
        if batch:
            self._flush_all(overdue)

    def _buffer(self, thread: ModelThread, said: ModelReceipt, now: datetime) -> None:
        thread.receipts.add(said.pk)
        thread.pending.add(said.pk)
        if thread.due is None:
            thread.due = now + self.window

    def _thread_for(self, said: ModelReceipt, now: datetime) -> ModelThread:
        assert said.key is not None
        thread = next((one for one in self.threads if one.is_open and one.key == said.key), None)
        if thread is not None:
            aged = now - thread.opened_at >= self.max_thread_age
            if not (aged or len(thread.receipts) >= THREAD_LIMIT or said.breaks):
                return thread
            self._flush(thread, "rollover")
            thread.is_open = False
        opened = ModelThread(said.key, opened_at=now)
        self.threads.append(opened)
        return opened

    def tick(self, now: datetime) -> None:
        self._flush_all(self._overdue(now))

    def _overdue(self, now: datetime) -> list[ModelThread]:
        return [thread for thread in self.threads if thread.due is not None and thread.due <= now]

    def _flush_all(self, threads: Iterable[ModelThread]) -> None:
        for thread in threads:
            self._flush(thread, "window")

    def switch_off(self) -> None:
        if self.enabled:
            for thread in self.threads:
                self._flush(thread, "lifecycle")
        self.enabled = False

    def _flush(self, thread: ModelThread, reason: str) -> None:
        if thread.pending:
            thread.pending.clear()
            thread.due = None
            self._snapshot(thread, reason)

    def _snapshot(self, thread: ModelThread, reason: str) -> None:
        thread.revision += 1
        members = frozenset(thread.receipts - thread.pending - self.acked)
        entry = ModelEntry(members, thread, thread.revision, reason, source=thread.key[0])
        if thread.live is not None:
            thread.live.successor = entry
        thread.live = entry
        self._show(entry)

    def _show(self, entry: ModelEntry) -> None:
        self.entries.append(entry)
        self.fresh.append(entry)

    # Rules 7 to 10

    def is_acked(self, entry: ModelEntry) -> bool:
        return entry.receipts <= self.acked

    def visible(self) -> list[ModelEntry]:
        shown = [one for one in self.entries if one.successor is None and not self.is_acked(one)]
        return sorted(shown, key=lambda one: one.sequence)

    def boundary(
        self,
        anchor: ModelEntry,
        as_of: int,
        *,
        after: int = 0,
        source: str | None = None,
        ids: Collection[int] | None = None,
    ) -> set[int]:
        """The receipts that acking through an entry, as shown at a state, names."""
        return {
            pk
            for one in self.entries
            if one.sequence <= min(anchor.sequence, as_of)
            and not one.superseded_as_of(as_of)
            and not self.is_acked(one)
            and one.sequence > after
            and (source is None or one.source == source)
            and (ids is None or one.id in ids)
            for pk in one.receipts
        }

    def boundary_now(self, anchor: ModelEntry) -> set[int]:
        """Without a state: what is visible up to the entry, and the entry itself."""
        return self.boundary(anchor, self.last_seq) | anchor.receipts

    def ack(self, receipts: Collection[int]) -> int:
        """Ack these; answers how many were not acked before."""
        new = set(receipts) - self.acked
        self.acked |= new
        for thread in self.threads:
            if touched := new & thread.receipts:
                self._settle(thread, touched)
        return len(new)

    def _settle(self, thread: ModelThread, touched: set[int]) -> None:
        visible = touched - thread.pending
        thread.pending -= touched
        if not thread.pending:
            thread.due = None
        rest = thread.receipts - thread.pending - self.acked
        if visible and rest:
            self._snapshot(thread, "narrow")
        if not rest:
            thread.live = None
            thread.is_open = thread.is_open and bool(thread.pending)

    # Counts

    @property
    def pending(self) -> set[int]:
        return set().union(*(thread.pending for thread in self.threads))

    @property
    def unread_visible(self) -> int:
        return len(self.receipts - self.acked - self.pending)


OWNERS: Final = ("Kee", "Hexy")
WINDOWS: Final = [timedelta(0), timedelta(seconds=5), timedelta(seconds=60)]
AGES: Final = [timedelta(seconds=30), timedelta(hours=24)]

owners = st.sampled_from(OWNERS)
chances = st.integers(0, 9)
picks = st.integers(0, 10_000)


class Crash(Exception):
    """The process dies before its next statement."""


_Given = tuple[str, str, str | None, str, int]
"""Of a receipt to be posted: its owner, source, resource and family, and a throw of dice."""


@dataclass(frozen=True)
class Shown:
    """An entry as a read showed it, with what that read showed at or before it."""

    owner: str
    through: Through
    up_to_it: frozenset[int]


_STATE: Final = """
select i.principal_id, json_build_object(
    'last_seq', i.last_seq, 'visible', i.visible_unread, 'pending', i.pending_unread,
    'enabled', i.enabled,
    'entries', (select coalesce(json_agg(json_build_object(
            'id', e.id, 'sequence', e.sequence, 'kind', e.kind, 'receipts', e.receipt_ids, 'revision', e.revision,
            'reason', e.flush_reason, 'superseded_by', e.superseded_by_seq, 'source', e.source_system,
            'supersedes', (select p.id from digests_entry p where p.superseded_by_seq = e.sequence and p.inbox_id = i.id
                           and p.thread_id = e.thread_id),
            'live', e.acked_at is null and e.superseded_by_seq is null,
            'content', md5(concat_ws('|', e.kind, e.sequence, e.thread_id, e.revision, e.source_system, e.receipt_ids,
                                     e.count, e.title, e.summary, e.first_at, e.last_at, e.flush_reason,
                                     e.delivery_handle, e.visible_at))
        ) order by e.sequence), '[]') from digests_entry e where e.inbox_id = i.id),
    'threads', (select coalesce(json_agg(json_build_object(
            'key', json_build_array(t.source_system, t.resource_ref, t.event_family), 'open', t.closed_at is null,
            'due', t.flush_due_at, 'revision', t.revision, 'pending_count', t.pending_count,
            'receipts', (select array_agg(s.receipt_id order by s.receipt_id) from digests_receiptstate s
                         where s.thread_id = t.id),
            'pending', (select coalesce(array_agg(s.receipt_id order by s.receipt_id), '{}')
                        from digests_receiptstate s where s.thread_id = t.id and s.pending)
        )), '[]') from digests_thread t where t.inbox_id = i.id),
    'receipts', (select coalesce(json_agg(json_build_array(
            s.receipt_id, s.acked_at is not null, s.delivered_at is not null, s.archived_at is not null,
            s.acked_at is not null, md5(r::text)
        ) order by s.receipt_id), '[]')
        from digests_receiptstate s join receipts_receipt r on r.id = s.receipt_id where s.inbox_id = i.id)
) from digests_inbox i order by i.principal_id
"""
_LATE: Final = "select id from digests_thread where flush_due_at <= gatehouse_now()"


class Inboxes(RuleBasedStateMachine):
    """One life. All of it happens in one transaction, which is rolled back in the end."""

    callers: dict[str, Caller]

    def __init__(self) -> None:
        super().__init__()
        self.life = transaction.atomic()
        self.life.__enter__()
        self.now = T0
        self._set_clock()
        with connection.cursor() as cursor:
            # Beside the callers' own turns everything is looked at from above.
            cursor.execute("select set_config('role', 'gatehouse_system', true)")
        self.inboxes = {name: ModelInbox() for name in OWNERS}
        self.numbers = count(1)
        self.posted: list[ReceiptDraft] = []
        self.shown: list[Shown] = []
        self.delivered: set[int] = set()
        self.archived: set[int] = set()
        self.contents: dict[tuple[str, int], str] = {}
        self.stored: dict[str, dict[str, Any]] = {}
        self.crash_after: int | None = None
        self.again = False

    def teardown(self) -> None:
        transaction.set_rollback(True)
        self.life.__exit__(None, None, None)

    # Time, crashes, repetitions

    def _set_clock(self) -> None:
        execute("select set_config('gatehouse.now', %s, true)", [self.now.isoformat()])

    @rule(seconds=st.sampled_from([1, 6, 61, 3600, 90_000]))
    def time_passes(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)
        self._set_clock()

    @rule(after=st.integers(0, 14))
    def the_next_command_crashes(self, after: int) -> None:
        self.crash_after = after

    @rule()
    def the_next_command_is_repeated(self) -> None:
        self.again = True

    def _do(self, act: Callable[[], Any]) -> Any:
        """Run a command: perhaps first as far as a crash, which leaves nothing; perhaps twice, with nothing added."""
        if self.crash_after is not None:
            before, last, self.crash_after = self._rows(), self.crash_after, None
            with _dying(after=last):
                act()
            assert self._rows() == before
        return act()

    def _repeat(self, act: Callable[[], Any]) -> Any:
        """I9: once more, if that was asked for. The answer, or None."""
        if not self.again:
            return None
        self.again = False
        before = self._rows()
        answer = act()
        assert self._rows() == before
        return answer

    # Posting

    def _draft(self, owner: str, source: str, resource: str | None, family: str, **more: Any) -> ReceiptDraft:
        group = None if resource is None else Group(resource_ref=resource, event_family=family, **more)
        return make_draft(self.callers[owner], source=source, dedupe_key=f"k{next(self.numbers)}", group=group)

    drafts = st.tuples(
        owners,
        st.sampled_from(["github", "gitlab"]),
        st.sampled_from([None, "A", "B"]),
        st.sampled_from(["ci", "ci", "review"]),
        chances,
    )

    def _made(self, given: _Given) -> tuple[ReceiptDraft, str]:
        owner, source, resource, family, chance = given
        more: dict[str, Any] = {}
        if resource is not None:
            more = {"flush_class": "immediate"} if chance < 2 else {"break_thread": True} if chance == 2 else {}
        return self._draft(owner, source, resource, family, **more), owner

    def _said(self, draft: ReceiptDraft, pk: int) -> ModelReceipt:
        group = draft.group
        if group is None:
            return ModelReceipt(pk, draft.source_system, None)
        assert group.resource_ref is not None
        assert group.event_family is not None
        key = (draft.source_system, group.resource_ref, group.event_family)
        return ModelReceipt(
            pk, draft.source_system, key, immediate=group.flush_class == "immediate", breaks=group.break_thread
        )

    @rule(given=drafts)
    def post(self, given: _Given) -> None:
        draft, owner = self._made(given)
        answer = self._do(lambda: self._post(draft))
        assert isinstance(answer, Posted)
        self.posted.append(draft)
        self.inboxes[owner].post(self._said(draft, answer.id), self.now)
        self._compare()
        duplicate = self._repeat(lambda: self._post(draft))
        assert duplicate is None or isinstance(duplicate, DuplicateReceipt)

    @rule(given=st.lists(drafts, min_size=2, max_size=5), twin=picks)
    def post_a_batch(self, given: list[_Given], twin: int) -> None:
        made = [self._made(one) for one in given]
        known = self.posted[twin % len(self.posted)] if self.posted and twin % 2 else None
        drafts = [draft for draft, _ in made] + ([known] if known else [])

        def act() -> list[Posted | DomainError]:
            with acting_as(self.callers["Kee"]):
                return services.post_many(poster=Poster.of(self.callers["Kee"]), drafts=drafts, now=self.now)

        answers = self._do(act)
        assert len(answers) == len(drafts)
        assert known is None or isinstance(answers[-1], DuplicateReceipt)
        said: dict[str, list[ModelReceipt]] = {name: [] for name in OWNERS}
        for (draft, owner), answer in zip(made, answers, strict=False):
            assert isinstance(answer, Posted)
            self.posted.append(draft)
            said[owner].append(self._said(draft, answer.id))
        self._settle_batch(said)
        repeated = self._repeat(act)
        assert repeated is None or all(isinstance(one, DuplicateReceipt) for one in repeated)

    def _settle_batch(self, said: dict[str, list[ModelReceipt]]) -> None:
        """A batch is its posts one after the other, or each of its threads flushed once at its end."""
        one_by_one = {name: inbox.copied() for name, inbox in self.inboxes.items()}
        together = {name: inbox.copied() for name, inbox in self.inboxes.items()}
        for name, batch in said.items():
            for one in batch:
                one_by_one[name].post(one, self.now)
            together[name].post_together(batch, self.now)
        self.inboxes = one_by_one
        if self._difference():
            self.inboxes = together
        self._compare()

    def _post(self, draft: ReceiptDraft) -> Posted | DomainError:
        with acting_as(self.callers["Kee"]):
            try:
                return services.post(poster=Poster.of(self.callers["Kee"]), draft=draft, now=self.now)
            except DomainError as refusal:
                return refusal

    # Ticks and policies

    @rule()
    def tick(self) -> None:
        self._do(services.flush_due)
        for inbox in self.inboxes.values():
            inbox.tick(self.now)
        self._compare()
        assert fetch(_LATE) == []  # I7
        assert not self._repeat(services.flush_due)

    @rule(
        owner=owners,
        enabled=st.sampled_from([None, None, True, False]),
        window=st.sampled_from([None, *WINDOWS]),
        max_items=st.sampled_from([None, 1, 2, 3, 20]),
        age=st.sampled_from([None, *AGES]),
    )
    def change_the_policy(
        self,
        owner: str,
        enabled: bool | None,
        window: timedelta | None,
        max_items: int | None,
        age: timedelta | None,
    ) -> None:
        changes: dict[str, Any] = {"enabled": enabled, "window": window, "max_items": max_items, "max_thread_age": age}
        caller = self.callers[owner]

        def act() -> Policy:
            with acting_as(caller):
                return set_policy(caller, now=self.now, **changes)

        self._do(act)
        inbox = self.inboxes[owner]
        if enabled is False:
            inbox.switch_off()
        inbox.enabled = inbox.enabled if enabled is None else enabled
        inbox.window = inbox.window if window is None else window
        inbox.max_items = inbox.max_items if max_items is None else max_items
        inbox.max_thread_age = inbox.max_thread_age if age is None else age
        self._compare()
        self._repeat(act)

    # Reading

    @rule(
        owner=owners,
        limit=st.sampled_from([1, 3, 500]),
        after=st.sampled_from([0, 0, 0, 1, 3]),
        source=st.sampled_from([None, None, "github"]),
        max_tokens=st.sampled_from([None, None, 1, 120]),
    )
    def read(self, owner: str, limit: int, after: int, source: str | None, max_tokens: int | None) -> None:
        caller = self.callers[owner]
        with acting_as(caller):
            page = selectors.read_inbox(
                caller.principal_id, after=after, source_system=source, limit=limit, max_tokens=max_tokens
            )
        inbox = self.inboxes[owner]
        asked = [one for one in inbox.visible() if one.sequence > after and source in {None, one.source}][:limit]
        read = [entry.id for entry in page.entries]
        if max_tokens is None:
            assert read == [one.id for one in asked]
        else:
            assert read == [one.id for one in asked[: len(read)]]
            assert len(read) >= min(1, len(asked))
            costs = [entry.tokens_estimate for entry in page.entries]
            assert sum(costs) <= max_tokens or len(costs) == 1
        self._note(owner, page, Bound(after=after, source=source))

    @rule(owner=owners, limit=st.sampled_from([1, 2, 10]))
    def read_the_newest(self, owner: str, limit: int) -> None:
        caller = self.callers[owner]
        with acting_as(caller):
            page = selectors.newest_entries(caller.principal_id, limit=limit)
        newest = self.inboxes[owner].visible()[::-1][:limit]
        assert [entry.id for entry in page.entries] == [one.id for one in newest]
        self._note(owner, page, Bound(ids=tuple(sorted(entry.id for entry in page.entries))))

    def _note(self, owner: str, page: InboxOutput, bound: Bound) -> None:
        """What the page gave: counts, contents, tokens. Then it is stamped as shown."""
        inbox = self.inboxes[owner]
        by_id = {one.id: one for one in inbox.entries}
        assert page.as_of == inbox.last_seq
        assert (page.visible, page.pending) == (inbox.unread_visible, len(inbox.pending))
        up_to_it: frozenset[int] = frozenset()
        for entry in sorted(page.entries, key=lambda one: one.sequence):
            assert frozenset(entry.receipt_pks) == by_id[entry.id].receipts
            assert len(entry.receipt_ids) == entry.count == len(entry.receipt_pks)
            up_to_it |= by_id[entry.id].receipts
            through = Through(entry_id=entry.id, as_of=page.as_of, bound=bound)
            assert entry.token == format_token(through)
            self.shown.append(Shown(owner, through, up_to_it))
        with acting_as(self.callers[owner]):
            services.mark_delivered(receipt_pks=up_to_it, now=self.now)
        self.delivered |= up_to_it
        self._compare()
        with acting_as(self.callers[owner]):
            self._repeat(lambda: services.mark_delivered(receipt_pks=up_to_it, now=self.now + timedelta(days=1)))

    def _some_entry(self, which: int) -> tuple[str, ModelEntry]:
        everything = [(name, entry) for name, inbox in self.inboxes.items() for entry in inbox.entries]
        return everything[which % len(everything)]

    # Acking

    def _ack(self, owner: str, boundary: set[int], act: Callable[[], AckedOutput]) -> None:
        """I6: what is acked afterwards is what was before, and the boundary."""

        def acting() -> AckedOutput:
            with acting_as(self.callers[owner]):
                return act()

        answer = self._do(acting)
        new = self.inboxes[owner].ack(boundary)
        assert answer.acked_receipts == new
        self._compare()
        repeated = self._repeat(acting)
        assert repeated is None or repeated == AckedOutput(acked_entries=0, acked_receipts=0)

    @rule(which=picks)
    @precondition(lambda self: self.shown)
    def ack_through_a_token(self, which: int) -> None:
        shown = self.shown[which % len(self.shown)]
        inbox, through = self.inboxes[shown.owner], shown.through
        assert through.as_of is not None
        anchor = next(one for one in inbox.entries if one.id == through.entry_id)
        bound = through.bound
        boundary = inbox.boundary(anchor, through.as_of, after=bound.after, source=bound.source, ids=bound.ids)
        assert boundary <= shown.up_to_it  # the product's promise
        assert shown.up_to_it - boundary <= inbox.acked
        principal = self.callers[shown.owner].principal_id
        self._ack(
            shown.owner,
            boundary,
            lambda: services.ack_through(principal_id=principal, through=through, now=self.now),
        )

    @rule(which=picks)
    @precondition(lambda self: any(inbox.entries for inbox in self.inboxes.values()))
    def ack_through_a_bare_reference(self, which: int) -> None:
        owner, anchor = self._some_entry(which)
        through = Through(entry_id=anchor.id, as_of=None)
        principal = self.callers[owner].principal_id
        self._ack(
            owner,
            self.inboxes[owner].boundary_now(anchor),
            lambda: services.ack_through(principal_id=principal, through=through, now=self.now),
        )

    @rule(which=picks, more=picks)
    @precondition(lambda self: any(inbox.entries for inbox in self.inboxes.values()))
    def ack_entries(self, which: int, more: int) -> None:
        owner, one = self._some_entry(which)
        entries = self.inboxes[owner].entries
        chosen = {one, entries[more % len(entries)]}
        principal = self.callers[owner].principal_id
        self._ack(
            owner,
            set().union(*(entry.receipts for entry in chosen)),
            lambda: services.ack(principal_id=principal, entry_ids=[entry.id for entry in chosen], now=self.now),
        )

    @rule(which=picks, archive=st.booleans())
    @precondition(lambda self: any(inbox.receipts for inbox in self.inboxes.values()))
    def ack_one_receipt(self, which: int, archive: bool) -> None:
        everything = [(name, pk) for name, inbox in self.inboxes.items() for pk in sorted(inbox.receipts)]
        owner, pk = everything[which % len(everything)]
        principal = self.callers[owner].principal_id
        self.archived |= {pk} if archive else set()
        self._ack(
            owner,
            {pk},
            lambda: services.ack_receipts(principal_id=principal, receipt_pks=[pk], now=self.now, archive=archive),
        )

    # The comparison

    def _rows(self) -> list[tuple[Any, ...]]:
        """All that there is about the inboxes, in words that can be compared."""
        rows: list[tuple[Any, ...]] = fetch(
            """
            select 'i', to_jsonb(i)::text from digests_inbox i union all
            select 't', to_jsonb(t)::text from digests_thread t union all
            select 'e', to_jsonb(e)::text from digests_entry e union all
            select 's', to_jsonb(s)::text from digests_receiptstate s order by 1, 2
            """
        )
        return rows

    def _look(self) -> dict[str, dict[str, Any]]:
        names = {caller.principal_id: name for name, caller in self.callers.items()}
        return {
            names[principal]: json.loads(state) if isinstance(state, str) else state
            for principal, state in fetch(_STATE)
        }

    def _difference(self) -> str:
        """Where database and model disagree; empty if nowhere. Takes over what the step has left open."""
        self.stored = self._look()
        for name, inbox in self.inboxes.items():
            if name in self.stored:
                if found := self._compare_inbox(inbox, self.stored[name]):
                    return f"{name}: {found}"
            elif inbox.receipts or inbox.entries:
                return f"{name} has no inbox"
        return ""

    def _compare_inbox(self, inbox: ModelInbox, stored: dict[str, Any]) -> str:
        rows = stored["entries"]
        if found := _adopt(inbox, [row for row in rows if row["sequence"] > inbox.last_seq]):
            return found
        inbox.last_seq = max([inbox.last_seq, *(row["sequence"] for row in rows)])
        by_sequence = {one.sequence: one for one in inbox.entries}
        entries = [_entry_row(by_sequence[row["sequence"]], inbox) for row in rows]
        differing = [
            (row, own) for row, own in zip(rows, entries, strict=True) if any(row[name] != own[name] for name in own)
        ]
        if differing or len(rows) != len(inbox.entries):
            return f"entries {differing[:2]}"
        expected: dict[str, Any] = {
            "last_seq": len(rows),
            "visible": inbox.unread_visible,
            "pending": len(inbox.pending),
            "enabled": inbox.enabled,
        }
        if any(stored[what] != value for what, value in expected.items()):
            return f"{expected} is {stored}"
        if (threads := _threads(stored)) != (own := sorted(map(_thread_row, inbox.threads))):
            return f"threads {own} are {threads}"
        return self._compare_receipts(inbox, stored)

    def _compare_receipts(self, inbox: ModelInbox, stored: dict[str, Any]) -> str:
        for pk, acked, delivered, archived, read, _ in stored["receipts"]:
            if acked != (pk in inbox.acked) or read != acked or archived != (pk in self.archived):
                return f"receipt {pk}: acked {acked}, read {read}, archived {archived}"
            if not acked and delivered != (pk in self.delivered):
                return f"receipt {pk}: delivered {delivered}"
        if {row[0] for row in stored["receipts"]} != inbox.receipts:
            return "other receipts"
        return ""

    def _compare(self) -> None:
        assert self._difference() == ""
        for name, inbox in self.stored.items():  # I4
            for kind, key, content in (
                *((f"{name} entry", row["id"], row["content"]) for row in inbox["entries"]),
                *((f"{name} receipt", row[0], row[5]) for row in inbox["receipts"]),
            ):
                assert self.contents.setdefault((kind, key), content) == content
        # Buffers may be overdue: time has passed, and the tick is yet to come.
        assert unsound().keys() <= {"overdue_threads"}
        for name, caller in self.callers.items():
            counts = selectors.unread_counts(caller.principal_id)
            expected = (self.inboxes[name].unread_visible, len(self.inboxes[name].pending))
            assert (counts.visible, counts.pending) == expected


def _adopt(inbox: ModelInbox, rows: list[dict[str, Any]]) -> str:
    """Give the entries that a step has visible the sequences that they got."""
    open_ones = list(inbox.fresh)
    for row in rows:
        looks = (frozenset(row["receipts"]), row["revision"], row["reason"])
        found = next((one for one in open_ones if one.looks == looks), None)
        if found is None:
            return f"visible {row}, expected {[one.looks for one in open_ones]}"
        open_ones.remove(found)
        found.id, found.sequence = row["id"], row["sequence"]
    if open_ones:
        return f"not visible: {[one.looks for one in open_ones]}"
    inbox.fresh.clear()
    return ""


def _entry_row(entry: ModelEntry, inbox: ModelInbox) -> dict[str, Any]:
    predecessor = next((one for one in inbox.entries if one.successor is entry), None)
    return {
        "id": entry.id,
        "kind": "item" if entry.thread is None else "digest_snapshot",
        "receipts": sorted(entry.receipts),
        "revision": entry.revision,
        "reason": entry.reason,
        "source": entry.source,
        "superseded_by": entry.successor.sequence if entry.successor else None,
        "supersedes": predecessor.id if predecessor else None,
        "live": entry.successor is None and not inbox.is_acked(entry),
    }


_ThreadRow = tuple[_Key, list[int], list[int], str, int, bool]


def _thread_row(thread: ModelThread) -> _ThreadRow:
    due = thread.due.isoformat() if thread.due else ""
    return (thread.key, sorted(thread.receipts), sorted(thread.pending), due, thread.revision, thread.is_open)


def _threads(stored: dict[str, Any]) -> list[_ThreadRow]:
    return sorted(
        (
            (row["key"][0], row["key"][1], row["key"][2]),
            row["receipts"],
            row["pending"],
            datetime.fromisoformat(row["due"]).isoformat() if row["due"] else "",
            row["revision"],
            row["open"],
        )
        for row in stored["threads"]
    )


@contextmanager
def _dying(*, after: int) -> Iterator[None]:
    """A process that dies after so many statements; what it had not committed is gone."""
    left = iter(range(after))

    def die(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
        if not sql.startswith(("SAVEPOINT", "RELEASE", "ROLLBACK")) and next(left, None) is None:
            raise Crash
        return execute(sql, params, many, context)

    with suppress(Crash), transaction.atomic():
        with connection.execute_wrapper(die):
            yield
        transaction.set_rollback(True)


def _live(lives: int, *, steps: int, number: int = 0) -> None:
    tenant = make_tenant("acme")
    Inboxes.callers = {name: make_caller(tenant, name) for name in OWNERS}
    machine = seed(number)(type("Inboxes", (Inboxes,), {}))
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=lives,
            stateful_step_count=steps,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink],
        ),
    )


@pytest.mark.django_db(transaction=True)
def test_inboxes_live_as_the_model_does() -> None:
    _live(10, steps=20)


@pytest.mark.ci
@pytest.mark.django_db(transaction=True)
def test_a_hundred_lives() -> None:
    _live(100, steps=25, number=1)


# In rounds, because what is rolled back stays in the tables until they are emptied.
@pytest.mark.long
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("number", range(2, 52))
def test_ten_thousand_lives(number: int) -> None:
    _live(200, steps=40, number=number)
