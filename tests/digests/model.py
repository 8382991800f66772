"""An inbox in memory, written from the words of the rules: what posts, ticks, acks and policies must come to.

Sequences within one step are taken over from the database where the rules leave their order open.
"""

import copy
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

THREAD_LIMIT: Final = 500
Key = tuple[str, str, str]
"""Source, resource, family."""


@dataclass(eq=False, slots=True)
class Entry:
    receipts: frozenset[int]
    thread: "Thread | None" = None
    revision: int | None = None
    reason: str | None = None
    source: str = ""
    successor: "Entry | None" = None
    id: int = 0
    sequence: int = 0

    @property
    def looks(self) -> tuple[object, ...]:
        """What tells it from others before its sequence is known."""
        return (self.receipts, self.revision, self.reason)

    def superseded_as_of(self, as_of: int) -> bool:
        return self.successor is not None and self.successor.sequence <= as_of


@dataclass(eq=False, slots=True)
class Thread:
    key: Key
    opened_at: datetime
    receipts: set[int] = field(default_factory=set)
    pending: set[int] = field(default_factory=set)
    due: datetime | None = None
    revision: int = 0
    is_open: bool = True
    live: Entry | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """A receipt, as far as an inbox cares."""

    pk: int
    source: str
    key: Key | None
    immediate: bool = False
    breaks: bool = False


@dataclass(eq=False, slots=True)
class Inbox:
    """What one principal owns."""

    enabled: bool = True
    window: timedelta = timedelta(seconds=30)
    max_items: int = 20
    max_thread_age: timedelta = timedelta(hours=24)
    last_seq: int = 0
    entries: list[Entry] = field(default_factory=list)
    threads: list[Thread] = field(default_factory=list)
    receipts: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)
    fresh: list[Entry] = field(default_factory=list)
    """Published by the step in hand; their sequences are not known yet."""

    def copied(self) -> "Inbox":
        return copy.deepcopy(self)

    # Rules 1 to 5

    def post(self, said: Said, now: datetime) -> None:
        overdue = self._overdue(now)
        self._post(said, now)
        self._flush_all(overdue)

    def _post(self, said: Said, now: datetime) -> None:
        self.receipts.add(said.pk)
        if said.key is None or not self.enabled:
            self._publish(Entry(frozenset([said.pk]), source=said.source))
            return
        thread = self._thread_for(said, now)
        self._gather(thread, said, now)
        if said.immediate:
            self._flush(thread, "immediate")
        elif len(thread.pending) >= self.max_items:
            self._flush(thread, "size")

    def post_together(self, batch: Sequence[Said], now: datetime) -> None:
        """As one: each thread is flushed once, when the whole batch is in."""
        due: dict[int, tuple[Thread, str]] = {}
        overdue = self._overdue(now)
        for said in batch:
            if said.key is None or not self.enabled:
                self._post(said, now)
                continue
            self.receipts.add(said.pk)
            thread = self._thread_for(said, now)
            self._gather(thread, said, now)
            if said.immediate:
                due[id(thread)] = (thread, "immediate")
            elif len(thread.pending) >= self.max_items:
                due.setdefault(id(thread), (thread, "size"))
        for thread, reason in due.values():
            self._flush(thread, reason)
        if batch:
            self._flush_all(overdue)

    def _gather(self, thread: Thread, said: Said, now: datetime) -> None:
        thread.receipts.add(said.pk)
        thread.pending.add(said.pk)
        if thread.due is None:
            thread.due = now + self.window

    def _thread_for(self, said: Said, now: datetime) -> Thread:
        assert said.key is not None
        thread = next((one for one in self.threads if one.is_open and one.key == said.key), None)
        if thread is not None:
            aged = now - thread.opened_at >= self.max_thread_age
            if not (aged or len(thread.receipts) >= THREAD_LIMIT or said.breaks):
                return thread
            self._flush(thread, "rollover")
            thread.is_open = False
        opened = Thread(said.key, opened_at=now)
        self.threads.append(opened)
        return opened

    def tick(self, now: datetime) -> None:
        self._flush_all(self._overdue(now))

    def _overdue(self, now: datetime) -> list[Thread]:
        return [thread for thread in self.threads if thread.due is not None and thread.due <= now]

    def _flush_all(self, threads: Iterable[Thread]) -> None:
        for thread in threads:
            self._flush(thread, "window")

    def switch_off(self) -> None:
        if self.enabled:
            for thread in self.threads:
                self._flush(thread, "lifecycle")
        self.enabled = False

    def _flush(self, thread: Thread, reason: str) -> None:
        if thread.pending:
            thread.pending.clear()
            thread.due = None
            self._snapshot(thread, reason)

    def _snapshot(self, thread: Thread, reason: str) -> None:
        thread.revision += 1
        members = frozenset(thread.receipts - thread.pending - self.acked)
        entry = Entry(members, thread, thread.revision, reason, source=thread.key[0])
        if thread.live is not None:
            thread.live.successor = entry
        thread.live = entry
        self._publish(entry)

    def _publish(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.fresh.append(entry)

    # Rules 7 to 10

    def is_acked(self, entry: Entry) -> bool:
        return entry.receipts <= self.acked

    def visible(self) -> list[Entry]:
        shown = [one for one in self.entries if one.successor is None and not self.is_acked(one)]
        return sorted(shown, key=lambda one: one.sequence)

    def boundary(
        self,
        anchor: Entry,
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

    def boundary_now(self, anchor: Entry) -> set[int]:
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

    def _settle(self, thread: Thread, touched: set[int]) -> None:
        published = touched - thread.pending
        thread.pending -= touched
        if not thread.pending:
            thread.due = None
        rest = thread.receipts - thread.pending - self.acked
        if published and rest:
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


# The invariants of the inbox as statements: each must find nothing.
CONTRADICTIONS: Final = {
    "I1 neither acked, nor visible, nor pending": """
        select r.id from receipts_receipt r
        left join digests_receiptstate s on s.receipt_id = r.id
        left join digests_thread t on t.id = s.thread_id
        where r.surface = 'inbox' and not coalesce(
            s.acked_at is not null
            or (s.pending and t.flush_due_at is not null and t.closed_at is null)
            or exists (select from digests_entry e where e.inbox_id = s.inbox_id and r.id = any(e.receipt_ids)
                       and e.acked_at is null and e.superseded_by_seq is null), false)
    """,
    "I2 unacked in several places, or acked and visible": """
        select r.id, count(e.id), bool_or(s.pending), s.acked_at
        from receipts_receipt r join digests_receiptstate s on s.receipt_id = r.id
        left join digests_entry e on e.inbox_id = s.inbox_id and r.id = any(e.receipt_ids)
                  and e.acked_at is null and e.superseded_by_seq is null
        group by r.id, s.acked_at
        having (s.acked_at is null and count(e.id) + bool_or(s.pending)::int <> 1)
               or (s.acked_at is not null and count(e.id) > 0)
    """,
    "I2 in the inbox of another": """
        select r.id from receipts_receipt r join digests_receiptstate s on s.receipt_id = r.id
        join digests_inbox i on i.id = s.inbox_id where i.principal_id <> r.recipient_id
    """,
    "rule 1 in the thread of another group": """
        select r.id from receipts_receipt r join digests_receiptstate s on s.receipt_id = r.id
        join digests_thread t on t.id = s.thread_id
        where (r.source_system, r.resource_ref, r.event_family) <> (t.source_system, t.resource_ref, t.event_family)
    """,
    "I3 several visible snapshots of a thread": """
        select thread_id from digests_entry
        where thread_id is not null and acked_at is null and superseded_by_seq is null
        group by thread_id having count(*) > 1
    """,
    "I3 several open threads of a key": """
        select inbox_id, source_system, resource_ref, event_family from digests_thread where closed_at is null
        group by 1, 2, 3, 4 having count(*) > 1
    """,
    "I5 sequences with holes": """
        select i.id from digests_inbox i left join digests_entry e on e.inbox_id = i.id
        group by i.id
        having i.last_seq <> count(e.id) or i.last_seq <> coalesce(max(e.sequence), 0)
               or count(distinct e.sequence) <> count(e.id)
    """,
    "I8 superseded by nothing": """
        select e.id from digests_entry e
        left join digests_entry n on n.inbox_id = e.inbox_id and n.sequence = e.superseded_by_seq
        where e.superseded_by_seq is not null and (n.id is null or n.thread_id <> e.thread_id or n.supersedes_id <> e.id)
    """,
    "rule 5 a revision is left out": """
        select thread_id from digests_entry where thread_id is not null
        group by thread_id having max(revision) <> count(*) or min(revision) <> 1
    """,
    "rule 14 counters that differ from counting": """
        select i.id from digests_inbox i
        left join digests_receiptstate s on s.inbox_id = i.id and s.acked_at is null
        group by i.id
        having i.visible_unread <> count(s.receipt_id) filter (where not s.pending)
               or i.pending_unread <> count(s.receipt_id) filter (where s.pending)
    """,
}
