"""Receipts and readers, made through the product's own services."""

from collections.abc import Collection
from datetime import datetime, timedelta
from itertools import count
from typing import Any

from django.db import transaction

from apps.core.sql import database_now
from apps.digests import selectors, services, soundness
from apps.digests.formats import parse_through
from apps.digests.grouping import Policy
from apps.digests.models import Entry, FlushReason
from apps.digests.services import Posted
from apps.digests.shapes import AckedOutput, InboxOutput
from apps.principals.tenancy import Caller
from apps.receipts.services import Group, Poster, ReceiptDraft
from tests.factories import T0

_numbers = count(1)
_MS = timedelta(milliseconds=1)

unsound = soundness.unsound


def make_draft(recipient: Caller, *, source: str = "github", **changes: Any) -> ReceiptDraft:
    number = next(_numbers)
    given: dict[str, Any] = {
        "recipient_id": recipient.principal_id,
        "source_system": source,
        "event_type": "ci_update",
        "dedupe_key": f"{source}:ci_update:{number}:v1",
        "title": f"Event {number}",
        "summary": f"What happened, number {number}",
    }
    return ReceiptDraft(**(given | changes))


def post(recipient: Caller, *, poster: Caller | None = None, now: datetime = T0, **changes: Any) -> Posted:
    return services.post(poster=Poster.of(poster or recipient), draft=make_draft(recipient, **changes), now=now)


def post_grouped(recipient: Caller, resource: str = "pr:1", *, family: str = "ci", **changes: Any) -> Posted:
    """A receipt that joins the thread of a resource."""
    wanted = {name: changes.pop(name) for name in ("flush_class", "summary_hint", "break_thread") if name in changes}
    return post(recipient, group=Group(resource_ref=resource, event_family=family, **wanted), **changes)


def read(reader: Caller, **options: Any) -> InboxOutput:
    return selectors.read_inbox(reader.principal_id, **options)


def ack_through(reader: Caller, token: str | None, *, now: datetime = T0) -> AckedOutput:
    return services.ack_through(principal_id=reader.principal_id, through=parse_through(token or ""), now=now)


def ack_entries(reader: Caller, *entry_ids: int) -> AckedOutput:
    return services.ack(principal_id=reader.principal_id, entry_ids=entry_ids, now=T0)


def ack_receipts(reader: Caller, *receipt_pks: int, now: datetime = T0, archive: bool = False) -> AckedOutput:
    return services.ack_receipts(principal_id=reader.principal_id, receipt_pks=receipt_pks, now=now, archive=archive)


def set_policy(owner: Caller, source: str | None = None, *, now: datetime = T0, **change: Any) -> Policy:
    return services.set_policy(
        tenant_id=owner.tenant_id,
        principal_id=owner.principal_id,
        changes={
            **{name: value for name, value in change.items() if not isinstance(value, timedelta)},
            **{f"{name}_ms": value // _MS for name, value in change.items() if isinstance(value, timedelta)},
        },
        source_system=source,
        now=now,
    )


def set_source(owner: Caller, name: str = "github", *, rate: int | None = None, by_key: bool = False) -> None:
    services.set_source(tenant_id=owner.tenant_id, name=name, rate_per_hour=rate, groups_by_dedupe_key=by_key)


def receipt_ids(page: InboxOutput) -> list[list[str]]:
    return [entry.receipt_ids for entry in page.entries]


@transaction.atomic
def flush(*, inbox_id: int, thread_ids: Collection[int], reason: FlushReason) -> list[Entry]:
    """Flush what is pending in these threads of one inbox, due or not."""
    inbox = services.lock_by_id(inbox_id, wait=True)
    if inbox is None:
        return []
    return services.flush_threads({inbox.id: inbox}, dict.fromkeys(thread_ids, reason), now=database_now())
