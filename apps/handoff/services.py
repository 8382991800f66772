"""Commands on handoffs that are receipts: leave, inherit, tidy."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db import connection, transaction

from apps.digests import services as inboxes
from apps.handoff import selectors, sql
from apps.handoff.items import Kind, Priority, choose, moment_text
from apps.handoff.models import Handoff
from apps.handoff.selectors import Kept
from apps.memory.services import HANDOFF
from apps.principals.tenancy import Caller, acting_as_system
from apps.receipts.errors import DuplicateReceipt
from apps.receipts.models import FlushClass
from apps.receipts.services import Group, Poster, ReceiptDraft

_LONGEST_TITLE: Final = 200
_TIDIED_AT_ONCE: Final = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What a session leaves. `created`: when it was written, if that was earlier."""

    from_session: str
    kind: Kind
    priority: Priority
    body: str
    project: str | None = None
    created: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The receipt that keeps a note."""

    receipt_id: str
    dedupe_key: str
    is_duplicate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Inherited:
    """The items that a session is shown, and those that wait."""

    shown: list[Kept]
    waiting: list[Kept]


@transaction.atomic
def leave(*, author: Caller, recipient_id: int, note: Note, now: datetime) -> Left:
    """Keep a note as a receipt in the recipient's inbox. The same note again returns the first receipt."""
    draft = _draft(recipient_id, note)
    try:
        posted = inboxes.post(poster=Poster.of(author), draft=draft, now=now)
    except DuplicateReceipt as known:
        return Left(receipt_id=known.extra["existing_receipt_id"], dedupe_key=draft.dedupe_key, is_duplicate=True)
    Handoff.objects.create(
        tenant_id=author.tenant_id,
        recipient_id=recipient_id,
        receipt_id=posted.receipt_id,
        project=note.project or "",
        kind=note.kind,
        priority=note.priority,
        from_session=note.from_session,
        left_at=posted.created_at,
    )
    return Left(receipt_id=posted.receipt_id, dedupe_key=posted.dedupe_key, is_duplicate=False)


@transaction.atomic
def inherit(
    *,
    reader: Caller,
    session: str,
    project: str | None,
    max_tokens: int,
    only: Sequence[str] | None,
    again: bool,
    now: datetime,
) -> Inherited:
    """Give a session the waiting items and ack them: no other session is given them.

    :param project: as of :func:`selectors.waiting`.
    :param only: among these receipt ids; None: all.
    :param again: include what this session was given before, beside the budget.
    """
    before = selectors.inherited_by(reader.principal_id, session) if again else []
    found = selectors.waiting(reader.principal_id, project=project, only=only)
    chosen, waiting = choose(found, max_tokens=max_tokens, claim=lambda one: one)
    won = _claim(reader, session, chosen, now)
    shown = [one for one in chosen if one.receipt_id in won]
    if shown:
        pks = [one.pk for one in shown]
        inboxes.ack_receipts(principal_id=reader.principal_id, receipt_pks=pks, now=now)
        inboxes.mark_delivered(receipt_pks=pks, now=now)
    return Inherited(shown=[*before, *shown], waiting=waiting)


def tidy(*, before: datetime) -> int:
    """Delete the handoffs that were inherited before this moment; returns how many. Their receipts stay."""
    with acting_as_system("handoffs are tidied"):
        old = Handoff.objects.filter(inherited_at__lt=before).order_by("inherited_at").values("pk")[:_TIDIED_AT_ONCE]
        return Handoff.objects.filter(pk__in=old).delete()[0]


def _claim(reader: Caller, session: str, chosen: Sequence[Kept], now: datetime) -> set[str]:
    """The receipt ids among these that no other session took first."""
    items = [
        {
            "receipt_id": one.receipt_id,
            "project": one.item.project or "",
            "kind": one.item.kind,
            "priority": one.item.priority,
            "from_session": one.item.from_session,
            "left_at": one.item.created.isoformat(),
        }
        for one in chosen
    ]
    if not items:
        return set()
    with connection.cursor() as cursor:
        cursor.execute(
            sql.CLAIM,
            {
                "tenant": reader.tenant_id,
                "recipient": reader.principal_id,
                "session": session,
                "now": now,
                "items": json.dumps(items),
            },
        )
        return {receipt_id for (receipt_id,) in cursor.fetchall()}


def _draft(recipient_id: int, note: Note) -> ReceiptDraft:
    created = moment_text(note.created) if note.created else None
    identity = [recipient_id, note.priority, note.project, created, note.body]
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
    return ReceiptDraft(
        recipient_id=recipient_id,
        source_system=HANDOFF,
        event_type=note.kind,
        dedupe_key=f"{HANDOFF}:{note.kind}:{note.from_session}:{digest}",
        title=_title(note),
        summary=note.body,
        metadata={
            "from_session": note.from_session,
            "priority": note.priority.value,
            "project": note.project,
            "created": created,
        },
        group=Group(
            resource_ref=f"project:{note.project}" if note.project else f"session:{note.from_session}",
            event_family=note.kind,
            flush_class=FlushClass.IMMEDIATE if note.kind is Kind.CAUTION else FlushClass.NORMAL,
        ),
    )


def _title(note: Note) -> str:
    """The sender, the type and the first line."""
    first = next(line.strip() for line in note.body.splitlines() if line.strip())
    title = f"{note.kind} from {note.from_session}: {first}"
    return title if len(title) <= _LONGEST_TITLE else title[: _LONGEST_TITLE - 1] + "…"
