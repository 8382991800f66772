"""Commands on inboxes. Each locks the inbox first; none calls out or waits while it holds it, and wording is bounded."""

from apps.digests.services.acking import Acked, ack, ack_receipt, ack_receipts, ack_through, archive_receipt
from apps.digests.services.delivery import mark_delivered
from apps.digests.services.flushing import flush_due
from apps.digests.services.policies import PolicyChange, remove_source_policy, set_policy
from apps.digests.services.posting import Posted, post, post_many
from apps.digests.services.recipients import recipient_named
from apps.digests.services.retention import retain
from apps.digests.services.sources import set_source
from apps.receipts.services import Group, ObligationDraft, Poster, ReceiptDraft

__all__ = [
    "Acked",
    "Group",
    "ObligationDraft",
    "PolicyChange",
    "Posted",
    "Poster",
    "ReceiptDraft",
    "ack",
    "ack_receipt",
    "ack_receipts",
    "ack_through",
    "archive_receipt",
    "flush_due",
    "mark_delivered",
    "post",
    "post_many",
    "recipient_named",
    "remove_source_policy",
    "retain",
    "set_policy",
    "set_source",
]
