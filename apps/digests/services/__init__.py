"""Commands on inboxes. Each locks the inbox first; none calls out or waits while it holds it."""

from apps.digests.services.acking import ack, ack_receipts, ack_through, mark_delivered
from apps.digests.services.flushing import flush_due
from apps.digests.services.policies import PolicyChange, remove_source_policy, set_policy, set_source
from apps.digests.services.posting import Posted, post, post_many, recipient_named
from apps.digests.services.retention import retain
from apps.receipts.services import Group, ObligationDraft, Poster, ReceiptDraft

__all__ = [
    "Group",
    "ObligationDraft",
    "PolicyChange",
    "Posted",
    "Poster",
    "ReceiptDraft",
    "ack",
    "ack_receipts",
    "ack_through",
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
