"""Writers, flushers, ackers and a killer of sessions on two inboxes, and a judge of what came of it.

Everybody notes what they were told: which posts were acknowledged, what each read showed, which acks were confirmed.
The judge compares these notes with the tables. A session that dies leaves an unknown outcome, which the notes say.
"""

import random
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any, Final

from django.db import DatabaseError, InterfaceError, OperationalError, connection
from django.db.transaction import TransactionManagementError

from apps.core.errors import DomainError
from apps.digests import selectors, services
from apps.digests.services import Group, PolicyChange, Posted, Poster, ReceiptDraft
from apps.digests.shapes import EntryOutput, InboxOutput
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from apps.receipts.errors import DedupeConflict, DuplicateReceipt
from tests.digests.makers import ack_through, make_draft, unsound
from tests.factories import T0

_PAGE: Final = 500
_WINDOW: Final = timedelta(milliseconds=150)
_PATIENCE: Final = 90.0


@dataclass(frozen=True, slots=True)
class Shown:
    """What one read showed of one entry."""

    view: EntryOutput
    up_to_it: frozenset[int]
    """Keys of the receipts that the read showed at or before this entry."""


@dataclass(frozen=True, slots=True)
class AckNote:
    """Receipts that an acker has given up; `certain` if it was told that they are acked."""

    receipts: frozenset[int]
    certain: bool


@dataclass(slots=True)
class Notes:
    """What everybody was told."""

    drafts: dict[str, ReceiptDraft] = field(default_factory=dict)
    """Every post that was tried, by dedupe key."""
    acknowledged: dict[str, str] = field(default_factory=dict)
    """The receipt id that a poster was told, by dedupe key."""
    acks: list[AckNote] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    """Errors of the database other than a lost session, a deadlock, or a lock that took too long."""
    kills: int = 0
    unknown: int = 0


@dataclass(slots=True)
class Chaos:
    """One run. `kee` owns the inbox that is acked; what `hexy` gets is never acked."""

    kee: Caller
    hexy: Caller
    seed: int = 1
    notes: Notes = field(default_factory=Notes)
    _pids: dict[str, int] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)
    _numbers: Iterator[int] = field(default_factory=count)

    def run(
        self,
        *,
        seconds: float,
        writers: int = 6,
        flushers: int = 3,
        kill_every: float | None = 0.03,
        changers: int = 1,
        rest: float = 30,
    ) -> None:
        """Let them loose for a while, then bring the buffers to rest."""
        self._stop.clear()
        self._set_policy(PolicyChange(enabled=True, window=_WINDOW, max_items=8))
        loops: dict[str, Callable[[random.Random], None]] = {}
        loops |= {f"writer {number}": self._write for number in range(writers)}
        loops |= {f"flusher {number}": self._flush for number in range(flushers)}
        loops |= {f"acker {number}": partial(self._read_and_ack, [], _Seen()) for number in range(2)}
        loops |= {f"changer {number}": self._change_policy for number in range(changers)}
        threads = [threading.Thread(target=self._work, args=(name, turn), name=name) for name, turn in loops.items()]
        if kill_every is not None:
            threads.append(threading.Thread(target=self._kill, args=(kill_every,), name="killer"))
        for thread in threads:
            thread.start()
        self._stop.wait(seconds)
        self._stop.set()
        for thread in threads:
            thread.join(timeout=_PATIENCE)
            if thread.is_alive():
                self.notes.violations.append(f"{thread.name} hangs")
        self._come_to_rest(rest)

    def _work(self, name: str, turn: Callable[[random.Random], None]) -> None:
        # No secret: the same seed gives each of them the same choices.
        chance = random.Random(f"{self.seed} {name}")  # noqa: S311
        try:
            while not self._stop.is_set():
                turn(chance)
        except Exception:  # noqa: BLE001  # whatever it is, it belongs into the report
            self.notes.violations.append(f"{name}: {traceback.format_exc()}")
        finally:
            self._pids.pop(name, None)
            connection.close()

    def _attempt(self, act: Callable[[], Any]) -> tuple[bool, Any]:
        """Whether the outcome is known, and the outcome: a result or a refusal."""
        try:
            connection.ensure_connection()
            raw = connection.connection
            assert raw is not None
            self._pids[threading.current_thread().name] = raw.info.backend_pid
            return True, act()
        except DomainError as refusal:
            return True, refusal
        except (DatabaseError, InterfaceError) as exc:
            # The last is how Django speaks of a session that died while a savepoint of it was rolled back.
            if not isinstance(exc, OperationalError | InterfaceError | TransactionManagementError):
                self.notes.refusals.append(f"{threading.current_thread().name}: {exc!r}")
            self.notes.unknown += 1
            connection.close()
            return False, None

    def _kill(self, every: float) -> None:
        chance = random.Random(self.seed)  # noqa: S311  # no secret
        try:
            while not self._stop.wait(every):
                victims = list(self._pids.values())
                if victims:
                    with connection.cursor() as cursor:
                        cursor.execute("set role none")
                        cursor.execute("select pg_terminate_backend(%s)", [chance.choice(victims)])
                        self.notes.kills += bool(cursor.fetchone()[0])
        finally:
            connection.close()

    # Writers

    def _write(self, chance: random.Random) -> None:
        drafts = [self._draft(chance) for _ in range(chance.choice([1, 1, 1, 2, 5]))]
        if chance.random() < 0.15 and self.notes.acknowledged:
            drafts.append(self.notes.drafts[chance.choice(list(self.notes.acknowledged))])
        for draft in drafts:
            self.notes.drafts[draft.dedupe_key] = draft
        post = self._post_one if len(drafts) == 1 else self._post_batch
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:  # a poster who was not answered posts again
            known, verdicts = self._attempt(partial(post, drafts))
            if known:
                for draft, verdict in zip(drafts, verdicts, strict=True):
                    self._note_post(draft, verdict)
                return
        self.notes.violations.append(f"{drafts[0].dedupe_key} could not be posted")

    def _draft(self, chance: random.Random) -> ReceiptDraft:
        number = next(self._numbers)
        group = None
        if chance.random() < 0.6:
            group = Group(
                resource_ref=f"pr:{chance.randrange(4)}",
                event_family=chance.choice(["ci", "ci", "review"]),
                flush_class="immediate" if chance.random() < 0.2 else "normal",
                break_thread=chance.random() < 0.03,
            )
        return make_draft(
            self.hexy if chance.random() < 0.15 else self.kee,
            source=chance.choice(["github", "gitlab"]),
            dedupe_key=f"chaos:{self.seed}:{number}",
            group=group,
        )

    def _post_one(self, drafts: list[ReceiptDraft]) -> list[Posted | DomainError]:
        with acting_as(self.kee):
            try:
                return [services.post(poster=Poster.of(self.kee), draft=drafts[0], now=T0)]
            except DuplicateReceipt as refusal:
                return [refusal]

    def _post_batch(self, drafts: list[ReceiptDraft]) -> list[Posted | DomainError]:
        with acting_as(self.kee):
            return services.post_many(poster=Poster.of(self.kee), drafts=drafts, now=T0)

    def _note_post(self, draft: ReceiptDraft, verdict: Posted | DomainError) -> None:
        if isinstance(verdict, Posted):
            told = verdict.receipt_id
        elif isinstance(verdict, DuplicateReceipt):
            told = verdict.extra["existing_receipt_id"]
        else:
            self.notes.violations.append(f"{draft.dedupe_key} was refused: {verdict!r}")
            return
        before = self.notes.acknowledged.setdefault(draft.dedupe_key, told)
        if before != told:
            self.notes.violations.append(f"{draft.dedupe_key} is {before} and {told}")

    # Flushers, and who changes the policy

    def _flush(self, _: random.Random) -> None:
        self._attempt(services.flush_due)
        self._stop.wait(0.01)

    def _change_policy(self, chance: random.Random) -> None:
        change = PolicyChange(enabled=chance.random() < 0.85, max_items=chance.choice([2, 8, 20]))
        self._attempt(lambda: self._set_policy(change))
        self._stop.wait(0.3)

    def _set_policy(self, change: PolicyChange) -> None:
        for owner in (self.kee, self.hexy):
            with acting_as(owner):
                services.set_policy(tenant_id=owner.tenant_id, principal_id=owner.principal_id, change=change, now=T0)

    # Ackers

    def _read_and_ack(self, memory: list[list[Shown]], seen: "_Seen", chance: random.Random) -> None:
        known, page = self._attempt(partial(self._read, chance))
        if known:
            if page[0]:
                self.notes.violations.extend(seen.compare(page[1]))
            memory.append(_shown(page[1]))
            del memory[:-6]
        reads = [read for read in memory if read]
        if reads and chance.random() < 0.7:
            read = reads[-1] if chance.random() < 0.5 else chance.choice(reads)
            self._ack(chance, read[-1] if chance.random() < 0.4 else chance.choice(read))

    def _read(self, chance: random.Random) -> tuple[bool, InboxOutput]:
        """A page, and whether it is the inbox from its start."""
        kind = chance.random()
        owner = self.kee.principal_id
        with acting_as(self.kee):
            if kind < 0.7:
                page = selectors.read_inbox(owner, limit=_PAGE)
            elif kind < 0.8:
                page = selectors.read_inbox(owner, source_system="github", limit=20)
            elif kind < 0.9:
                page = selectors.newest_entries(owner)
            else:
                after = max((entry.sequence for entry in selectors.read_inbox(owner, limit=3).entries), default=0)
                page = selectors.read_inbox(owner, after=after, limit=20)
            services.mark_delivered(receipt_pks=[pk for entry in page.entries for pk in entry.receipt_pks], now=T0)
        return kind < 0.7, page

    def _ack(self, chance: random.Random, shown: Shown) -> None:
        kind = chance.random()
        owner = self.kee.principal_id
        act: Callable[[], object]
        if kind < 0.8:
            receipts, act = shown.up_to_it, partial(ack_through, self.kee, shown.view.token)
        elif kind < 0.9:
            receipts = frozenset(shown.view.receipt_pks)
            act = partial(services.ack, principal_id=owner, entry_ids=[shown.view.id], now=T0)
        else:
            one = chance.choice(shown.view.receipt_pks)
            receipts, act = (
                frozenset([one]),
                partial(services.ack_receipts, principal_id=owner, receipt_pks=[one], now=T0),
            )

        def acting() -> None:
            with acting_as(self.kee):
                act()

        known, refusal = self._attempt(acting)
        if isinstance(refusal, DomainError):
            self.notes.violations.append(f"{shown.view.token} was refused: {refusal!r}")
        else:
            self.notes.acks.append(AckNote(receipts, certain=known))

    # Judgement

    def _come_to_rest(self, patience: float) -> None:
        """Rule 4 and I7: what is pending surfaces by ticks alone."""
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            services.flush_due()
            with acting_as(self.kee):
                if not any(selectors.unread_counts(one.principal_id).pending for one in (self.kee, self.hexy)):
                    return
            time.sleep(0.05)
        self.notes.violations.append("something is pending and no tick publishes it")

    def violations(self) -> list[str]:
        """What was promised and does not hold."""
        with acting_as_system("test"):
            return [*self.notes.violations, *self._posts(), *self._acks(), *self._tables(), *self._conflicts()]

    def _posts(self) -> Iterator[str]:
        stored: dict[str, list[str]] = {}
        for key, receipt_id in _rows("select dedupe_key, receipt_id from receipts_receipt"):
            stored.setdefault(key, []).append(receipt_id)
        for key, told in self.notes.acknowledged.items():
            if stored.get(key) != [told]:
                yield f"{key} was acknowledged as {told} and is {stored.get(key, 'lost')}"
        yield from (f"{key} was never posted" for key in stored.keys() - self.notes.drafts.keys())

    def _acks(self) -> Iterator[str]:
        acked = {pk for (pk,) in _rows("select receipt_id from digests_receiptstate where acked_at is not null")}
        certain = frozenset[int]().union(*(note.receipts for note in self.notes.acks if note.certain))
        possible = certain.union(*(note.receipts for note in self.notes.acks))
        if beyond := acked - possible:
            yield f"acked without having been shown at or before an anchor: {sorted(beyond)[:20]}"
        if missing := certain - acked:
            yield f"shown, acked, confirmed, and not acked: {sorted(missing)[:20]}"

    def _tables(self) -> Iterator[str]:
        for name, statement in CONTRADICTIONS.items():
            if found := _rows(statement):
                yield f"{name}: {found[:20]}"
        if wrong := unsound():
            yield f"the self-check finds {wrong}"

    def _conflicts(self) -> Iterator[str]:
        """Each key goes on refusing another content."""
        for key in list(self.notes.acknowledged)[:20]:
            draft = self.notes.drafts[key]
            with acting_as(self.kee):
                other = make_draft(self.kee, source=draft.source_system, dedupe_key=key, summary="other")
                try:
                    services.post(poster=Poster.of(self.kee), draft=other, now=T0)
                except DedupeConflict:
                    continue
            yield f"{key} took another content"


@dataclass(slots=True)
class _Seen:
    """The last whole page that an acker saw."""

    upto: int = 0
    ids: frozenset[int] = frozenset()

    def compare(self, page: InboxOutput) -> Iterator[str]:
        """I5: nothing appears below a number that was seen. Rule 14: the counts are those of what is shown."""
        late = [entry.sequence for entry in page.entries if entry.sequence <= self.upto and entry.id not in self.ids]
        whole = len(page.entries) < _PAGE
        if late:
            yield f"appeared below {self.upto}, which had been seen: {late}"
        if whole and page.visible != sum(entry.count for entry in page.entries):
            yield f"{page.visible} receipts are said to be visible as of {page.as_of}, and others are shown"
        self.upto = page.as_of if whole else page.entries[-1].sequence
        self.ids = frozenset(entry.id for entry in page.entries)


def _shown(page: InboxOutput) -> list[Shown]:
    """The entries of a page in the order of their sequences."""
    up_to_it: frozenset[int] = frozenset()
    shown = []
    for view in sorted(page.entries, key=lambda entry: entry.sequence):
        up_to_it |= frozenset(view.receipt_pks)
        shown.append(Shown(view, up_to_it))
    return shown


def _rows(statement: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows


# The invariants of the inbox, in words of their own: each must find nothing.
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
