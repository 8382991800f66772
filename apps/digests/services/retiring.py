"""Retiring a principal: what its inbox still holds goes to somebody else, as receipts of their own."""

import logging
import random
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import DatabaseError
from django.utils.crypto import salted_hmac

from apps.core import strict_json
from apps.core.errors import DomainError
from apps.digests import selectors
from apps.digests.grouping import read_key
from apps.digests.selectors import RetiredInbox
from apps.digests.services.acking import ack_receipts
from apps.digests.services.posting import Posted, post_many
from apps.principals.tenancy import acting_as_system, acting_in
from apps.receipts import selectors as receipts
from apps.receipts.errors import DedupeConflict, DuplicateReceipt
from apps.receipts.models import LONGEST_KEY, MAX_METADATA, Receipt, Surface
from apps.receipts.services import Group, ObligationDraft, Poster, ReceiptDraft

logger = logging.getLogger(__name__)

_WHY: Final = "forward what a retired inbox holds"
BATCH: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwarded:
    """How many receipts went on, and how many the inbox still holds."""

    forwarded: int
    remaining: int


def forward_retired(*, now: datetime, patience: timedelta = timedelta(milliseconds=500)) -> int:
    """Forward what retired inboxes hold, in all tenants, for as long as there is patience; answers how many receipts.

    It goes round them, a batch of each at a time, and begins with any: what is left has its turn in the next call.
    Running it twice, or twice at once, forwards nothing twice.
    """
    deadline = time.monotonic() + patience.total_seconds()
    with acting_as_system(_WHY):
        waiting = selectors.retired_inboxes()
    forwarded = 0
    while waiting:
        unfinished = []
        for one in random.sample(waiting, len(waiting)):
            some = _try_to_forward(one, now)
            forwarded += some
            if some:
                unfinished.append(one)
            if time.monotonic() >= deadline:
                return forwarded
        waiting = unfinished
    return forwarded


def _try_to_forward(retired: RetiredInbox, now: datetime) -> int:
    try:
        return forward(tenant_id=retired.tenant_id, principal_id=retired.principal_id, now=now, most=1).forwarded
    except (DatabaseError, DomainError):
        # One inbox's trouble must not keep the others from their heirs; it is asked again.
        logger.exception("the inbox of principal %s could not be forwarded", retired.principal_id)
        return 0


def forward(*, tenant_id: int, principal_id: int, now: datetime, most: int = 20) -> Forwarded:
    """Forward what one retired inbox holds, the oldest first, in batches of a transaction or two each.

    Then what was acked and is owed still: the successor's receipt closes the debt and opens its own.
    """
    forwarded = 0
    for _ in range(most):
        with acting_in(tenant_id, _WHY):
            batch, posted = _post_batch(principal_id, now)
        # Apart from the posting: an ack locks this inbox, a post the successor's, and batches lock them by id. What
        # was posted and not yet acked is posted again, which changes nothing, and acked then.
        with acting_in(tenant_id, _WHY):
            acked = ack_receipts(principal_id=principal_id, receipt_pks=batch, now=now).acked_receipts
        if not posted and not acked:
            break
        forwarded += len(batch)
    with acting_in(tenant_id, _WHY):
        return Forwarded(forwarded=forwarded, remaining=selectors.unread_counts(principal_id).total)


def _post_batch(principal_id: int, now: datetime) -> tuple[list[int], int]:
    """Post the successor's receipts for the oldest unacked ones, or else for what is owed.

    Answers those held for which they are there, and how many were posted now.
    """
    retired = selectors.retired_inbox(principal_id)
    if retired is None:
        return [], 0
    held = selectors.oldest_unacked(principal_id, limit=BATCH) or receipts.owed_for(principal_id, limit=BATCH)
    creditors = receipts.open_debts([one.pk for one in held], debtor_id=principal_id)
    poster = Poster(tenant_id=retired.tenant_id, principal_id=principal_id, name=retired.name)
    drafts = [_forwarding(one, retired.successor_id, creditors.get(one.pk)) for one in held]
    verdicts = post_many(poster=poster, drafts=drafts, now=now)
    gone_on = [one.pk for one, verdict in zip(held, verdicts, strict=True) if _has_gone_on(one, poster, verdict)]
    return gone_on, sum(isinstance(verdict, Posted) for verdict in verdicts)


def _has_gone_on(receipt: Receipt, poster: Poster, verdict: Posted | DomainError) -> bool:
    """Whether the successor's receipt is there. What stands in its way may be the same, posted before."""
    if isinstance(verdict, Posted):
        return True
    if not isinstance(verdict, DuplicateReceipt | DedupeConflict):
        raise verdict
    forwarded = receipts.find(verdict.extra["existing_receipt_id"])
    if (forwarded.poster_id, forwarded.caused_by_id) == (poster.principal_id, receipt.pk):
        return True
    logger.error("receipt %s is not forwarded: its source has used the dedupe key of that", receipt.receipt_id)
    return False


def forwarding_key(receipt: Receipt) -> str:
    """A key of the receipt's own that gathers it with what its first key would: all parts but the version.

    The same each time, and nobody can tell it beforehand: who posts as its source could else use the key up and keep
    the receipt from its heir.
    """
    version = f"forward-{salted_hmac(__name__, str(receipt.uuid), algorithm='sha256').hexdigest()}"
    usual = read_key(receipt.source_system, receipt.dedupe_key)
    parts = [receipt.source_system, usual.event_type, usual.entity, version] if usual else [version]
    key = ":".join(parts)
    return key if len(key) <= LONGEST_KEY else version


def _metadata(receipt: Receipt) -> dict[str, Any]:
    """With a note where it comes from, if there is room; what it follows from says so anyhow."""
    noted = {**receipt.metadata, "forwarded_from": receipt.receipt_id}
    return noted if strict_json.size(noted) <= MAX_METADATA else receipt.metadata


def _forwarding(receipt: Receipt, successor_id: int, creditor_id: int | None) -> ReceiptDraft:
    """The same event for the successor, following from the first receipt.

    An obligation moves with it: the new receipt answers the old one, and opens the same debt for the successor.
    """
    return ReceiptDraft(
        recipient_id=successor_id,
        source_system=receipt.source_system,
        event_type=receipt.event_type,
        dedupe_key=forwarding_key(receipt),
        title=receipt.title,
        summary=receipt.summary,
        metadata=_metadata(receipt),
        artifact_pointer=receipt.artifact_pointer,
        artifact_location=receipt.artifact_location,
        requires_action=creditor_id is not None,
        suggested_next_step=receipt.suggested_next_step,
        caused_by=receipt.receipt_id,
        pairs_with=receipt.receipt_id if creditor_id is not None else None,
        group=Group(
            resource_ref=receipt.resource_ref,
            event_family=receipt.event_family,
            flush_class=receipt.flush_class,
            summary_hint=receipt.summary_hint,
            break_thread=receipt.break_thread,
            groupable=receipt.groupable,
        ),
        delivery_handle=receipt.delivery_handle,
        surface=Surface.INBOX,
        obligation=ObligationDraft(debtor_id=successor_id, creditor_id=creditor_id) if creditor_id else None,
    )
