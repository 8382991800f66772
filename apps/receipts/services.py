"""Recording receipts, with their links and the obligations that they open and close, and removing them."""

import hashlib
import json
import uuid as uuids
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Final, Self
from uuid import UUID

from django.db import transaction

from apps.core import strict_json
from apps.core.errors import Conflict, DomainError, Invalid, Unavailable
from apps.core.ids import random_id
from apps.core.sql import execute, fetch
from apps.delivery.models import Delivery
from apps.delivery.notifications import notify_on_commit
from apps.principals.tenancy import Caller
from apps.receipts import sql
from apps.receipts.errors import DuplicateReceipt
from apps.receipts.models import FlushClass, Obligation, Receipt, Surface

# For the statements of other apps.
recording_made: Final = sql.recording_made


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
    """What the poster gives for grouping. Without a resource and a family there is none."""

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
    ReceiptDraft.__dataclass_fields__.keys() - {"receipt_id", "obligation", "dedupe_key", "source_system"}
)


@dataclass(frozen=True, kw_only=True)
class Extension:
    """What a layer above adds to the statement that writes the facts.

    `statements` are further parts of its WITH. They read `stored` (id, nth, recipient, shown, and the draft's columns)
    and have the parameters `tenant` and `now`. The columns of `answer`, joined by `join`, become
    :attr:`Recorded.extra`.
    """

    statements: str
    answer: str
    join: str

    @cached_property
    def statement(self) -> str:
        return sql.recording(statements=f", {self.statements}", columns=f", {self.answer}", join=self.join)


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
    """It is delivered to another deployment."""
    extra: tuple[Any, ...]
    """The columns of the caller's :class:`Extension`; empty where it was not used."""


@transaction.atomic(savepoint=False)
def record_many(
    *, poster: Poster, drafts: Sequence[ReceiptDraft], now: datetime, extension: Extension | None = None
) -> list[Recorded | DomainError]:
    """Write receipts, link them into the chain, open and close obligations; a verdict in the place of each draft.

    The verdicts are those of drafts recorded one after another. What is refused is decided before anything is written,
    so that it changes nothing and does not affect the others:

    - `duplicate_receipt`: the source has posted it before;
    - `dedupe_conflict`: the source has used the key for other content;
    - `receipt_id_conflict`: another receipt has the given id;
    - `chain_cycle`: the receipt would be its own cause;
    - `chain_too_long`: whether it would be its own cause takes too long to find out.

    A receipt closes the obligation that it pairs with if its poster is the debtor or the creditor. A queued task is
    closed by the poster that queued it, or handed on by its debtor with another task that is queued. A created plan is
    closed by a plan's receipt. For a recipient that has moved, whoever posts as the source named like its target
    counts as the debtor.

    Drafts that name each other, or of which one could close a cycle, are recorded one after another indeed. For all
    others each kind of lock is taken once for the whole batch, in the same order everywhere: meeting points, waiting
    receipts, keys, obligations. So these don't deadlock. `extension` takes its locks after all of these. It is used only
    if nothing is locked after the receipts are written: all references are known, no draft may close an obligation, and
    no other receipt can refer to the id of a draft.
    """
    met = _meet(poster, drafts)
    if len(drafts) > 1 and (_name_each_other(drafts) or met.may_turn):
        return [record_many(poster=poster, drafts=[draft], now=now)[0] for draft in drafts]
    batch = _Batch(poster, drafts, met, extension if met.settled else None)
    batch.write(now)
    verdicts = [batch.verdict(nth) for nth in range(len(drafts))]
    written = [(draft, it) for draft, it in zip(drafts, verdicts, strict=True) if isinstance(it, Recorded)]
    pairs = _link_waiting(met, {recorded.receipt_id: recorded.id for _, recorded in written})
    pairs += [
        (met.links[draft.pairs_with], recorded.id) for draft, recorded in written if draft.pairs_with in met.links
    ]
    if pairs:
        _close(pairs, now)
    return verdicts


@dataclass(frozen=True, slots=True)
class _Met:
    """What the drafts' references and ids meet in the database, locked until the transaction ends."""

    links: dict[str, int]
    """The receipts that the drafts refer to, by reference, as far as they are known."""
    standing: dict[str, UUID] = field(default_factory=dict)
    """The given ids that a receipt has already, and its uuid."""
    awaited: frozenset[str] = frozenset()
    """The given ids that receipts have referred to before their arrival."""
    waiting: Sequence[int] = ()
    """These receipts."""
    settled: bool = False
    """Whether nothing is to be locked after the receipts are written."""
    may_turn: bool = False
    """Whether a receipt that others wait for refers to another, which could hang from it."""


def _references(draft: ReceiptDraft) -> set[str]:
    return {reference for reference in (draft.caused_by, draft.pairs_with) if reference is not None}


def _name_each_other(drafts: Sequence[ReceiptDraft]) -> bool:
    given = [draft.receipt_id for draft in drafts if draft.receipt_id is not None]
    return len(set(given)) < len(given) or any(not _references(draft).isdisjoint(given) for draft in drafts)


def refer_to(poster: Poster, references: Collection[str]) -> dict[str, int]:
    """The receipts of these ids and uuids, for receipts of new ids that this transaction is about to write.

    Who refers to one that is not there is linked when it arrives.
    """
    return _meet(poster, (), references).links if references else {}


def _meet(poster: Poster, drafts: Sequence[ReceiptDraft], more: Collection[str] = ()) -> _Met:
    """Wait for transactions that refer to these drafts, or write what these refer to; then look."""
    references = set(more).union(*(_references(draft) for draft in drafts))
    given = {draft.receipt_id for draft in drafts if draft.receipt_id is not None}
    links = _look_up(poster, references) if references else {}
    unknown = references - links.keys()
    if not unknown and not given:
        return _Met(links, settled=not any(draft.pairs_with for draft in drafts))
    standing: dict[str, UUID] = {}
    waiting, awaited = set[int](), set[str]()
    execute(sql.MEET, [poster.tenant_id, sorted(unknown | given)])
    if unknown:
        links |= _look_up(poster, unknown)
    if given:
        arriving = {"tenant": poster.tenant_id, "references": sorted(given)}
        for pk, reference, uuid in fetch(sql.ARRIVING, arriving):
            if uuid is not None:
                standing[reference] = uuid
            else:
                waiting.add(pk)
                awaited.add(reference)
    if waiting:
        execute(sql.HOLD_WAITING, [sorted(waiting)])
    # Two arrivals that others wait for may close a cycle together; they are recorded one after the other.
    may_turn = any(draft.receipt_id in awaited and _references(draft) for draft in drafts)
    if may_turn:
        execute(sql.SERIALIZE_ARRIVALS, [poster.tenant_id])
    return _Met(links, standing, frozenset(awaited), sorted(waiting), may_turn=may_turn)


def _link_waiting(met: _Met, arrived: Mapping[str, int]) -> list[tuple[int, int]]:
    """Link the receipts that have waited for these, by id; returns the new pairs of root and closer."""
    found = sorted(met.awaited & arrived.keys())
    if not found:
        return []
    given: dict[str, Any] = {
        "references": found,
        "receipts": [arrived[reference] for reference in found],
        "waiting": met.waiting,
    }
    return [(root, closer) for root, closer in fetch(sql.LINK_WAITING, given)]


def _close(pairs: Sequence[tuple[int, int]], now: datetime) -> None:
    """Close the obligations of these roots, as far as these closers may; the first of several closes."""
    roots = sorted({root for root, _ in pairs})
    if len(roots) > 1:
        execute(sql.HOLD_OBLIGATIONS, [roots], hot=True)
    given = {"roots": [root for root, _ in pairs], "closers": [closer for _, closer in pairs], "now": now}
    execute(sql.CLOSE, given, hot=True)


def _look_up(poster: Poster, references: set[str]) -> dict[str, int]:
    as_uuid = {reference: text for reference in references if (text := _uuid(reference)) is not None}
    rows = fetch(sql.RESOLVE, [poster.tenant_id, list(references), list(as_uuid.values())], hot=True)
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


@dataclass(frozen=True, slots=True)
class _Taken:
    """A dedupe key that is used up: for what, and by which receipt."""

    content_digest: bytes
    receipt_id: str
    uuid: UUID


class _Batch:
    """One draft, or several that have nothing to do with each other, and what becomes of each."""

    def __init__(self, poster: Poster, drafts: Sequence[ReceiptDraft], met: _Met, extension: Extension | None) -> None:
        self._poster = poster
        self._drafts = drafts
        self._met = met
        self._statement = sql.RECORD if extension is None else extension.statement
        self._keys: list[_Key] = [
            (draft.source_system, hashlib.sha256(draft.dedupe_key.encode()).hexdigest()) for draft in drafts
        ]
        self._digests = [draft.content_digest() for draft in drafts]
        self._ids = [draft.receipt_id or random_id("rcpt") for draft in drafts]
        self._taken: dict[_Key, _Taken] = {}
        self._faults: dict[int, DomainError] = {}
        self._recorded: dict[int, Recorded] = {}

    def write(self, now: datetime) -> None:
        """Write what is not refused; of drafts with one key, the first."""
        if self._met.standing or self._met.awaited:
            self._look_up_keys()
        accepted: dict[_Key, int] = {}
        for nth, key in enumerate(self._keys):
            used = key in self._taken or key in accepted
            if (fault := self._fault_of(nth, used=used)) is not None:
                self._faults[nth] = fault
            elif not used:
                accepted[key] = nth
        self._store(list(accepted.values()), now)
        for nth, recorded in self._recorded.items():
            self._taken[self._keys[nth]] = _Taken(self._digests[nth], recorded.receipt_id, recorded.uuid)
        if not self._taken.keys() >= accepted.keys():
            self._look_up_keys()

    def verdict(self, nth: int) -> Recorded | DomainError:
        if (found := self._recorded.get(nth) or self._faults.get(nth)) is not None:
            return found
        if (taken := self._taken.get(self._keys[nth])) is not None:
            return _repetition(taken, self._digests[nth])
        return Unavailable("This dedupe key was released at this moment; post again.")

    def _fault_of(self, nth: int, *, used: bool) -> DomainError | None:
        """What is wrong with a draft's id, or with what it refers to; a repetition, whose key is used, may have any id."""
        own, references = self._ids[nth], _references(self._drafts[nth])
        if own in references:
            return Invalid("A receipt can't refer to itself.", code="chain_cycle")
        if used:
            return None
        if (standing := self._met.standing.get(own)) is not None:
            return Conflict(
                f"The receipt id {own!r} belongs to a receipt with another dedupe key.",
                code="receipt_id_conflict",
                existing_receipt_id=own,
                existing_uuid=str(standing),
            )
        if not self._met.may_turn or not self._met.links:
            return None
        given = {"waiting": self._met.waiting, "links": list(self._met.links.values()), "limit": _WALKED + 1}
        ((walked, is_cycle),) = fetch(sql.HANGING, given)
        if is_cycle:
            return Invalid(f"{own} would be its own cause.", code="chain_cycle")
        too_long = Invalid(f"Over {_WALKED} receipts follow from {own}.", code="chain_too_long")
        return too_long if walked > _WALKED else None

    def _store(self, accepted: Sequence[int], now: datetime) -> None:
        if not accepted:
            return
        given = {"tenant": self._poster.tenant_id, "poster": self._poster.principal_id, "now": now}
        stored = fetch(self._statement, given | {"drafts": json.dumps([self._row(nth) for nth in accepted])}, hot=True)
        if any(row[4] is not None for row in stored):
            notify_on_commit()
        for nth, pk, uuid, surface, target_id, *extra in stored:
            self._recorded[nth] = Recorded(
                id=pk,
                receipt_id=self._ids[nth],
                uuid=uuid,
                dedupe_key=self._drafts[nth].dedupe_key,
                created_at=now,
                surface=surface,
                goes_elsewhere=target_id is not None,
                extra=tuple(extra),
            )

    def _row(self, nth: int) -> dict[str, Any]:
        """A draft as the statement takes it."""
        draft, links = self._drafts[nth], self._met.links
        owed = draft.obligation
        if owed is None and draft.requires_action:
            owed = ObligationDraft(debtor_id=draft.recipient_id, creditor_id=self._poster.principal_id)
        return {
            "nth": nth,
            "key_digest": self._keys[nth][1],
            "content_digest": self._digests[nth].hex(),
            "receipt_id": self._ids[nth],
            "recipient": draft.recipient_id,
            "source_system": draft.source_system,
            "event_type": draft.event_type,
            "dedupe_key": draft.dedupe_key,
            "title": draft.title,
            "summary": draft.summary,
            "metadata": draft.metadata,
            "artifact_pointer": draft.artifact_pointer,
            "artifact_location": draft.artifact_location,
            "requires_action": draft.requires_action,
            "suggested_next_step": draft.suggested_next_step,
            "surface": draft.surface,
            "delivery_handle": draft.delivery_handle,
            "caused_by_ref": draft.caused_by,
            "pairs_with_ref": draft.pairs_with,
            "caused_by": links.get(draft.caused_by) if draft.caused_by else None,
            "pairs_with": links.get(draft.pairs_with) if draft.pairs_with else None,
            "debtor": owed and owed.debtor_id,
            "creditor": owed and owed.creditor_id,
            **(_NO_GROUP if draft.group is None else asdict(draft.group)),
        }

    def _look_up_keys(self) -> None:
        keys = set(self._keys) - self._taken.keys()
        for source_system, key_digest, content_digest, receipt_id, uuid in fetch(
            sql.TAKEN,
            [
                [source_system for source_system, _ in keys],
                [bytes.fromhex(digest) for _, digest in keys],
                self._poster.tenant_id,
            ],
        ):
            self._taken[source_system, bytes(key_digest).hex()] = _Taken(bytes(content_digest), receipt_id, uuid)


_NO_GROUP: Final = asdict(Group())


def _repetition(taken: _Taken, content_digest: bytes) -> Conflict:
    ids: dict[str, Any] = {"existing_receipt_id": taken.receipt_id, "existing_uuid": str(taken.uuid)}
    if taken.content_digest == content_digest:
        return DuplicateReceipt("Receipt with this dedupe_key already exists", **ids)
    return Conflict("This dedupe_key was used for a receipt with other content", code="dedupe_conflict", **ids)


_WALKED: Final = 5_000
"""Of the receipts that hang from one, no more are looked through."""


@transaction.atomic
def hold_for_pruning(*, receipt_pks: Collection[int]) -> list[int]:
    """Lock those of these receipts that no other transaction is linking to; returns them."""
    held = Receipt.objects.filter(pk__in=receipt_pks).order_by("pk").select_for_update(skip_locked=True)
    return list(held.values_list("pk", flat=True))


@transaction.atomic
def prune(*, receipt_pks: Collection[int]) -> tuple[int, int]:
    """Remove facts whose time is over, which the caller holds and has judged; their keys stay.

    Returns how many were deleted, and of how many a tombstone stays because they have links. Runs as the system, in a
    transaction that allows pruning.
    """
    if not receipt_pks:
        return 0, 0
    stripped = {pk for (pk,) in fetch(sql.STRIP, {"receipts": list(receipt_pks)})}
    _drop([pk for pk in receipt_pks if pk not in stripped])
    return len(receipt_pks) - len(stripped), len(stripped)


@transaction.atomic
def prune_tombstones(*, receipt_pks: Collection[int], traces: timedelta, kept: timedelta) -> int:
    """Remove those of these tombstones that have stood their time; returns how many.

    A receipt that hangs from one keeps its poster's reference and loses the link.
    """
    given: dict[str, Any] = {"receipts": list(receipt_pks), "traces": traces, "kept": kept}
    going = [pk for (pk,) in fetch(sql.SPENT_TOMBSTONES, given)]
    execute(sql.CUT_OFF, {"going": going})
    _drop(going)
    return len(going)


def _drop(receipt_pks: Sequence[int]) -> None:
    if receipt_pks:
        Obligation.objects.filter(closed_by__in=receipt_pks).update(closed_by=None)
        Obligation.objects.filter(receipt__in=receipt_pks).delete()
        Delivery.objects.filter(object_id__in=receipt_pks).delete()
        # By SQL, since the ORM would first look for everything that could refer to them.
        execute(sql.DROP, [list(receipt_pks)])


@transaction.atomic
def prune_keys(*, after: int, limit: int, traces: timedelta, kept: timedelta) -> tuple[int | None, int]:
    """Remove spent keys among the next ones; returns where these end, None at the end of the old ones, and how many."""
    given: dict[str, Any] = {"after": after, "limit": limit, "traces": traces, "kept": kept}
    upto = next((last for last, *_ in fetch(sql.NEXT_KEYS, given)), None)
    return upto, 0 if upto is None else execute(sql.DROP_KEYS, given | {"upto": upto})
