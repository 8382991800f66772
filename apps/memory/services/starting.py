"""What an agent needs to begin with."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db import transaction

from apps.digests import selectors as digests
from apps.digests import services as inboxes
from apps.digests.shapes import InboxOutput
from apps.memory import selectors
from apps.principals import selectors as principals
from apps.receipts import selectors as receipts
from apps.receipts.selectors import Owed

# The source under which sessions leave work to later ones.
HANDOFF: Final = "session_handoff"


@dataclass(frozen=True, slots=True, kw_only=True)
class Awakening:
    """What an agent finds when it starts."""

    sessions: list[selectors.Conversation]
    holdings: selectors.Holdings
    inbox: InboxOutput
    owed_by_me: list[Owed]
    awaited: list[Owed]
    handoffs_waiting: int
    services: list[str]


@transaction.atomic
def bootstrap(*, principal_id: int, tenant_id: int, now: datetime, items: int = 10) -> Awakening:
    """Gather what a principal needs to begin, and stamp the inbox items it is shown as delivered.

    An agent's first bootstrap is like any other: nothing has to be there, and nothing else is written.
    """
    inbox = digests.newest_entries(principal_id, limit=items)
    inboxes.mark_delivered(receipt_pks=[pk for entry in inbox.entries for pk in entry.receipt_pks], now=now)
    return Awakening(
        sessions=selectors.recent_sessions(principal_id=principal_id, now=now),
        holdings=selectors.holdings(tenant_id=tenant_id),
        inbox=inbox,
        owed_by_me=receipts.obligations(owed_by=principal_id, limit=items),
        awaited=receipts.obligations(awaited_by=principal_id, limit=items),
        handoffs_waiting=digests.unread_of_source(principal_id, HANDOFF),
        services=principals.service_names(tenant_id=tenant_id),
    )
