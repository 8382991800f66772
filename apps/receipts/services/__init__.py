"""Commands on facts. Recording one is for the app that owns inboxes; everybody else posts there."""

from apps.receipts.services.delivering import (
    Claim,
    Turn,
    announce_due,
    await_turn,
    claim,
    end_turn,
    replay,
    settle,
    take_turn,
)
from apps.receipts.services.linking import link_waiting
from apps.receipts.services.pruning import Pruned, hold_for_pruning, prune, prune_keys, prune_tombstones
from apps.receipts.services.recording import (
    Group,
    ObligationDraft,
    Placing,
    Poster,
    ReceiptDraft,
    Recorded,
    record_many,
)
from apps.receipts.services.targets import DEFAULT_TARGET, keep_here, put_target, send_elsewhere

__all__ = [
    "DEFAULT_TARGET",
    "Claim",
    "Group",
    "ObligationDraft",
    "Placing",
    "Poster",
    "Pruned",
    "ReceiptDraft",
    "Recorded",
    "Turn",
    "announce_due",
    "await_turn",
    "claim",
    "end_turn",
    "hold_for_pruning",
    "keep_here",
    "link_waiting",
    "prune",
    "prune_keys",
    "prune_tombstones",
    "put_target",
    "record_many",
    "replay",
    "send_elsewhere",
    "settle",
    "take_turn",
]
