"""Recording facts: one or many, linked into the chain, with the obligations that they open and close."""

import hashlib
import json
import uuid as uuids
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Final, Self
from uuid import UUID

from django.db import connection, transaction

from apps.core import strict_json
from apps.core.errors import DomainError, Unavailable
from apps.core.ids import random_id
from apps.core.notifications import send_on_commit
from apps.core.sql import hot_cursor
from apps.principals.tenancy import Caller
from apps.receipts import sql
from apps.receipts.errors import ChainCycle, ChainTooLong, DedupeConflict, DuplicateReceipt, ReceiptIdConflict
from apps.receipts.models import Arrival, FlushClass, Surface, UnmatchedCloser
from apps.receipts.services import linking
from apps.receipts.signals import letters_due


@dataclass(frozen=True, slots=True, kw_only=True)
class Poster:
    """The principal that posts."""

    tenant_id: int
    principal_id: int
    name: str

    @classmethod
    def of(cls, caller: Caller) -> Self:
        return cls(tenant_id=caller.tenant_id, principal_id=caller.principal_id, name=caller.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """What the poster says about grouping. Without a resource and a family there is none."""

    resource_ref: str | None = None
    event_family: str | None = None
    flush_class: str = FlushClass.NORMAL
    summary_hint: str | None = None
    break_thread: bool = False
    groupable: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObligationDraft:
    """Who owes whom because of a receipt; principals' ids."""

    debtor_id: int
    creditor_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptDraft:
    """A receipt to be posted. `caused_by` and `pairs_with` name a receipt id or a uuid, known or not yet."""

    recipient_id: int
    source_system: str
    event_type: str
    dedupe_key: str
    summary: str
    title: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    receipt_id: str | None = None
    receipt_id_is_fresh: bool = False
    """The poster has just drawn the id at random, so that no other receipt can have named it yet."""
    artifact_pointer: str | None = None
    artifact_location: str | None = None
    requires_action: bool = False
    suggested_next_step: str | None = None
    caused_by: str | None = None
    pairs_with: str | None = None
    group: Group | None = None
    delivery_handle: str | None = None
    surface: str = Surface.INBOX
    obligation: ObligationDraft | None = None
    """Left out, a receipt that requires action makes its recipient the poster's debtor."""

    def content_digest(self) -> bytes:
        """What makes two posts of one key the same. Ids are not content: a repetition may be given a new one."""
        content = {name: getattr(self, name) for name in _CONTENT}
        if self.group is not None:
            content["group"] = {name: getattr(self.group, name) for name in Group.__dataclass_fields__}
        return strict_json.digest(content)


_CONTENT: Final = sorted(
    ReceiptDraft.__dataclass_fields__.keys()
    - {"receipt_id", "receipt_id_is_fresh", "obligation", "dedupe_key", "source_system"}
)


@dataclass(frozen=True, kw_only=True)
class Placing:
    """What a layer above has to do with each new fact, done by the statement that writes them.

    `statements` are further parts of its WITH: they read `stored` (id, nth, recipient, shown, and what the draft says)
    and have its parameters `tenant` and `now`. The columns of `answer`, joined by `join`, are what
    :attr:`Recorded.place` says.
    """

    statements: str
    answer: str
    join: str

    @cached_property
    def statements_by_closing(self) -> Mapping[bool, str]:
        """By whether a draft may close what another has opened."""
        return {
            closing: sql.recording(
                closing=closing, placing=f", {self.statements}", placed=f", {self.answer}", placed_by=self.join
            )
            for closing in (True, False)
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A fact, now in the database."""

    id: int
    receipt_id: str
    uuid: UUID
    dedupe_key: str
    created_at: datetime
    surface: str
    """Where it shows, which is not in an inbox here if its recipient lives elsewhere."""
    goes_elsewhere: bool
    """A letter takes it to another deployment."""
    place: tuple[Any, ...]
    """What the caller's :class:`Placing` answered; empty where it was not asked."""


@transaction.atomic(savepoint=False)
def record_many(
    *, poster: Poster, drafts: Sequence[ReceiptDraft], now: datetime, placing: Placing | None = None
) -> list[Recorded | DomainError]:
    """Write facts, link them into the chain, open and close obligations; a verdict at the place of each draft.

    The verdicts are those of drafts recorded one after another: :class:`DuplicateReceipt` where the source has posted
    it before, :class:`DedupeConflict` where it has used the key for another content, :class:`ReceiptIdConflict` where
    another receipt has the given id, :class:`ChainCycle` where the receipt would be its own cause, or
    :class:`ChainTooLong` where that would take too long to tell. What is refused is
    decided before anything is written, so that it changes nothing and does not hinder the others.

    A receipt closes the obligation that it pairs with where its poster is the debtor or the creditor; else it is a
    pair and no more. A queued task is closed by the gate that queued it, or handed on by its debtor with another that is
    queued; a created plan is closed by a plan's receipt. For a recipient that lives elsewhere, whoever posts as the source
    named like its target counts as the debtor.

    Each kind of lock is taken once for all, in one order that is everybody's: meeting points, waiting receipts, keys,
    obligations. So batches can't wait for each other in a circle. What `placing` locks comes after all of these: it is
    asked where nothing remains to be locked after the facts, which is so unless a draft refers to a receipt that is
    not known, or has an id that another may refer to.
    """
    met = _meet(poster, drafts)
    batch = _Batch(poster, drafts, met, placing if met.settled else None)
    batch.write(now)
    verdicts = [batch.verdict(nth) for nth in range(len(drafts))]
    written = [(draft, it) for draft, it in zip(drafts, verdicts, strict=True) if isinstance(it, Recorded)]
    arrived = {recorded.receipt_id: recorded.id for _, recorded in written}
    awaited = {one: arrived[one] for one in met.waiting.awaited & arrived.keys()}
    closing = linking.link(poster.tenant_id, awaited, met.waiting)
    crowded = awaited.keys() & met.waiting.crowded
    Arrival.objects.bulk_create([Arrival(receipt_id=awaited[one], tenant_id=poster.tenant_id) for one in crowded])
    linking.close(closing + _pair(poster, written, arrived, met.links), now)
    return verdicts


@dataclass(frozen=True, slots=True)
class _Met:
    """What the drafts' references and ids meet in the database, held until the transaction ends."""

    links: dict[str, int]
    """The receipts that the drafts refer to, by reference, as far as they are known."""
    standing: dict[str, UUID]
    """Those of the given ids that a receipt has, and its uuid."""
    waiting: linking.Waiting
    """Receipts that have named a given id before its arrival."""
    settled: bool = False
    """Whether every reference is known, and nobody can have referred to any of the drafts."""


def _references(draft: ReceiptDraft) -> set[str]:
    return {reference for reference in (draft.caused_by, draft.pairs_with) if reference is not None}


def _given_id(draft: ReceiptDraft) -> str | None:
    """The id, if somebody may have named it before."""
    return None if draft.receipt_id_is_fresh else draft.receipt_id


def _meet(poster: Poster, drafts: Sequence[ReceiptDraft]) -> _Met:
    """Wait for rivals that name what these drafts bring, or bring what they name; then look."""
    references = set[str]().union(*(_references(draft) for draft in drafts))
    given = {receipt_id for draft in drafts if (receipt_id := _given_id(draft)) is not None}
    links = _look_up(poster, references) if references else {}
    unknown = references - links.keys()
    if not unknown and not given:
        return _Met(links, {}, linking.Waiting(), settled=True)
    with connection.cursor() as cursor:
        cursor.execute(sql.MEET, [poster.tenant_id, sorted(unknown | given)])
        if unknown:
            links |= _look_up(poster, unknown)
        standing, waiting = linking.look(poster.tenant_id, given)
        # Two arrivals that others wait for may close a cycle together; such ones take turns.
        if any(_given_id(draft) in waiting.awaited and _references(draft) for draft in drafts):
            cursor.execute(sql.TURN, [poster.tenant_id])
    return _Met(links, standing, waiting)


def _look_up(poster: Poster, references: set[str]) -> dict[str, int]:
    as_uuid = {reference: text for reference in references if (text := _uuid(reference)) is not None}
    with hot_cursor() as cursor:
        cursor.execute(sql.RESOLVE, [poster.tenant_id, list(references), list(as_uuid.values())])
        rows = cursor.fetchall()
    by_uuid = {uuid: pk for pk, _, uuid in rows}
    by_id = {receipt_id: pk for pk, receipt_id, _ in rows}
    found = {reference: by_uuid[uuid] for reference, uuid in as_uuid.items() if uuid in by_uuid}
    return {reference: by_id[reference] for reference in references if reference in by_id} | found


def _uuid(reference: str) -> str | None:
    try:
        return str(uuids.UUID(reference))
    except ValueError:
        return None


_Key = tuple[str, str]
"""Source system and digest of the dedupe key."""
_Node = int | str
"""A receipt of the chain: by its primary key, or by its id where it has none yet."""

_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True)
class _Taken:
    """A dedupe key that is used up: for what, and by which receipt."""

    content_digest: bytes
    receipt_id: str
    uuid: UUID


class _Batch:
    """Drafts on their way to become facts, and what becomes of each."""

    def __init__(self, poster: Poster, drafts: Sequence[ReceiptDraft], met: _Met, placing: Placing | None) -> None:
        self._poster = poster
        self._drafts = drafts
        self._met = met
        self._placing = placing
        self._keys: list[_Key] = [
            (draft.source_system, hashlib.sha256(draft.dedupe_key.encode()).hexdigest()) for draft in drafts
        ]
        self._digests = [draft.content_digest() for draft in drafts]
        self._ids = [draft.receipt_id or random_id("rcpt") for draft in drafts]
        self._taken: dict[_Key, _Taken] = {}
        self._standing = dict(met.standing)
        self._cyclic: set[int] = set()
        self._unjudged: set[int] = set()
        self._clashing: set[int] = set()
        self._recorded: dict[int, Recorded] = {}

    def write(self, now: datetime) -> None:
        """Write what is not refused.

        Where the fate of one draft hangs on that of another, all keys are looked up first; should a rival take one
        of them between that look and the writing, what was written is taken back and judged again.
        """
        turners = self._turners()
        entangled = bool(turners or self._standing or len(set(self._ids)) < len(self._ids))
        if entangled:
            self._look_up_keys(range(len(self._drafts)))
        ancestry = _ways(self._poster, self._met) if turners else {}
        for _ in range(_ATTEMPTS):
            accepted = self._accepted(turners, ancestry)
            with transaction.atomic() if entangled else nullcontext():
                self._store(accepted, now)
                missing = [nth for nth in accepted if nth not in self._recorded]
                if entangled and missing:
                    transaction.set_rollback(True)
            self._look_up_keys(missing)
            if not entangled or not missing:
                break
            self._recorded.clear()
        for nth, recorded in self._recorded.items():
            self._taken[self._keys[nth]] = _Taken(self._digests[nth], recorded.receipt_id, recorded.uuid)
            self._standing[recorded.receipt_id] = recorded.uuid

    def verdict(self, nth: int) -> Recorded | DomainError:
        if nth in self._recorded:
            return self._recorded[nth]
        if (fault := self._fault_of_chain(nth)) is not None:
            return fault
        receipt_id = self._ids[nth]
        if nth in self._clashing:
            return ReceiptIdConflict(
                f"The receipt id {receipt_id!r} belongs to a receipt with another dedupe key.",
                existing_receipt_id=receipt_id,
                existing_uuid=str(self._standing[receipt_id]),
            )
        if (taken := self._taken.get(self._keys[nth])) is not None:
            return _repetition(taken, self._digests[nth])
        return Unavailable("This dedupe key was released at this moment; post again.")

    def _fault_of_chain(self, nth: int) -> DomainError | None:
        if self._refers_to_itself(nth):
            return ChainCycle("A receipt can't refer to itself.")
        if nth in self._cyclic:
            return ChainCycle(f"{self._ids[nth]} would be its own cause.")
        if nth in self._unjudged:
            return ChainTooLong(f"Over {_WALKED} receipts hang from {self._ids[nth]}, and it would hang from as many.")
        return None

    def _refers_to_itself(self, nth: int) -> bool:
        return self._ids[nth] in _references(self._drafts[nth])

    def _turners(self) -> set[int]:
        """The drafts that could close a cycle: what waits for them is there, and what they refer to."""
        turners, named = set[int](), set(self._met.waiting.awaited)
        for nth, draft in enumerate(self._drafts):
            references = _references(draft)
            if references and self._ids[nth] in named:
                turners.add(nth)
            named |= references
        return turners

    def _accepted(self, turners: set[int], ancestry: Mapping[_Node, set[_Node]] | None) -> list[int]:
        """The drafts that become facts unless a rival takes a key meanwhile; each is judged after those before it."""
        accepted: list[int] = []
        keys, ids, chain = set(self._taken), set(self._standing), dict(ancestry or {})
        self._cyclic.clear()
        self._unjudged.clear()
        self._clashing.clear()
        for nth, draft in enumerate(self._drafts):
            key, own = self._keys[nth], self._ids[nth]
            if key in keys or self._refers_to_itself(nth):
                continue
            if own in ids:
                self._clashing.add(nth)
                continue
            if nth in turners and ancestry is None:
                self._unjudged.add(nth)
                continue
            causes: set[_Node] = {self._met.links.get(reference, reference) for reference in _references(draft)}
            if nth in turners and _reaches(chain, causes, own):
                self._cyclic.add(nth)
                continue
            chain[own] = causes
            keys.add(key)
            ids.add(own)
            accepted.append(nth)
        return accepted

    def _store(self, accepted: Sequence[int], now: datetime) -> None:
        if not accepted:
            return
        rows = [self._row(nth) for nth in accepted]
        own = {self._ids[nth] for nth in accepted}
        linked = any(not own.isdisjoint(_references(self._drafts[nth])) for nth in accepted)
        with hot_cursor() as cursor:
            cursor.execute(
                self._statement(linked=linked),
                {
                    "tenant": self._poster.tenant_id,
                    "poster": self._poster.principal_id,
                    "now": now,
                    "drafts": json.dumps(rows),
                },
            )
            stored = cursor.fetchall()
        for target_id in {target for *_, target in (row[:5] for row in stored) if target is not None}:
            send_on_commit(letters_due, tenant_id=self._poster.tenant_id, target_id=target_id)
        for nth, pk, uuid, surface, target_id, *place in stored:
            self._recorded[nth] = Recorded(
                id=pk,
                receipt_id=self._ids[nth],
                uuid=uuid,
                dedupe_key=self._drafts[nth].dedupe_key,
                created_at=now,
                surface=surface,
                goes_elsewhere=target_id is not None,
                place=tuple(place),
            )

    def _statement(self, *, linked: bool) -> str:
        if linked:
            return sql.RECORD_LINKED
        closing = any(draft.pairs_with in self._met.links for draft in self._drafts)
        return sql.RECORD[closing] if self._placing is None else self._placing.statements_by_closing[closing]

    def _row(self, nth: int) -> dict[str, Any]:
        """A draft as the statement takes it; what is left out is null."""
        draft = self._drafts[nth]
        group = draft.group or _NO_GROUP
        source_system, key_digest = self._keys[nth]
        owed = _owed(self._poster, draft)
        return {
            "nth": nth,
            "key_digest": key_digest,
            "content_digest": self._digests[nth].hex(),
            "receipt_id": self._ids[nth],
            "recipient": draft.recipient_id,
            "source_system": source_system,
            "event_type": draft.event_type,
            "dedupe_key": draft.dedupe_key,
            "title": draft.title,
            "summary": draft.summary,
            "metadata": dict(draft.metadata),
            "artifact_pointer": draft.artifact_pointer,
            "artifact_location": draft.artifact_location,
            "requires_action": draft.requires_action,
            "suggested_next_step": draft.suggested_next_step,
            "caused_by_ref": draft.caused_by,
            "pairs_with_ref": draft.pairs_with,
            "caused_by": self._met.links.get(draft.caused_by) if draft.caused_by else None,
            "pairs_with": self._met.links.get(draft.pairs_with) if draft.pairs_with else None,
            "surface": draft.surface,
            "groupable": group.groupable,
            "resource_ref": group.resource_ref,
            "event_family": group.event_family,
            "flush_class": group.flush_class,
            "summary_hint": group.summary_hint,
            "break_thread": group.break_thread,
            "delivery_handle": draft.delivery_handle,
            "debtor": owed and owed.debtor_id,
            "creditor": owed and owed.creditor_id,
        }

    def _look_up_keys(self, which: Sequence[int]) -> None:
        if not which:
            return
        keys = {self._keys[nth] for nth in which}
        with connection.cursor() as cursor:
            cursor.execute(
                sql.TAKEN,
                [
                    [source_system for source_system, _ in keys],
                    [bytes.fromhex(digest) for _, digest in keys],
                    self._poster.tenant_id,
                ],
            )
            for source_system, key_digest, content_digest, receipt_id, uuid in cursor.fetchall():
                self._taken[source_system, bytes(key_digest).hex()] = _Taken(bytes(content_digest), receipt_id, uuid)


_NO_GROUP: Final = Group()


def _repetition(taken: _Taken, content_digest: bytes) -> DuplicateReceipt | DedupeConflict:
    ids: dict[str, Any] = {"existing_receipt_id": taken.receipt_id, "existing_uuid": str(taken.uuid)}
    if taken.content_digest == content_digest:
        return DuplicateReceipt("Receipt with this dedupe_key already exists", **ids)
    return DedupeConflict("This dedupe_key was used for a receipt with other content", **ids)


_WALKED: Final = 5_000
"""Of the receipts that one hangs from, or that hang from it, no more are looked through."""


def _ways(poster: Poster, met: _Met) -> dict[_Node, set[_Node]] | None:
    """What leads upwards from receipts that the drafts refer to, to ids that the drafts bring; None if it is too much.

    Without an id that others have named nothing does. Else it is looked for from either end: as long as one of them
    is short, no cycle is missed.
    """
    if not met.waiting.awaited or not met.links:
        return {}
    with connection.cursor() as cursor:
        given: dict[str, Any] = {"tenant": poster.tenant_id, "limit": _WALKED + 1}
        cursor.execute(sql.DESCENT, given | {"references": sorted(met.waiting.awaited)})
        hanging = cursor.fetchall()
        if len(hanging) <= _WALKED:
            ways = defaultdict[_Node, set[_Node]](set)
            for reference, pk in hanging:
                ways[pk].add(reference)
            return ways
        cursor.execute(sql.ANCESTRY, given | {"receipts": list(met.links.values())})
        causes = cursor.fetchall()
        return {pk: {*links, *references} for pk, links, references in causes} if len(causes) <= _WALKED else None


def _reaches(chain: Mapping[_Node, set[_Node]], start: set[_Node], goal: _Node) -> bool:
    seen, front = set(start), list(start)
    while front:
        node = front.pop()
        if node == goal:
            return True
        following = chain.get(node, set()) - seen
        seen |= following
        front.extend(following)
    return False


def _pair(
    poster: Poster,
    written: Sequence[tuple[ReceiptDraft, Recorded]],
    roots: Mapping[str, int],
    closed: Collection[str],
) -> list[tuple[int, int]]:
    """The pairs of root and closer that these receipts make, but for roots that the facts' statement has closed; who
    closes what is not known yet is written down.
    """
    answers = [
        (draft.pairs_with, recorded.id)
        for draft, recorded in written
        if draft.pairs_with is not None and draft.pairs_with not in closed
    ]
    early = [
        UnmatchedCloser(receipt_id=pk, tenant_id=poster.tenant_id, reference=reference)
        for reference, pk in answers
        if reference not in roots
    ]
    if early:
        UnmatchedCloser.objects.bulk_create(early)
    return [(roots[reference], pk) for reference, pk in answers if reference in roots]


def _owed(poster: Poster, draft: ReceiptDraft) -> ObligationDraft | None:
    if draft.obligation is None and draft.requires_action:
        return ObligationDraft(debtor_id=draft.recipient_id, creditor_id=poster.principal_id)
    return draft.obligation
