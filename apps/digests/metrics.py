"""Counters of inboxes. A label is a source or a reason, never a tenant or a principal."""

from typing import Final

from apps.core.metrics import Counter, Histogram

POSTED: Final = Counter("gatehouse_receipts_posted", "Receipts stored.", ["source"])
REFUSED: Final = Counter("gatehouse_receipts_refused", "Posts refused, duplicates among them.", ["source", "reason"])
# The label for a source that the caller may not post as: callers must not be able to make labels.
OTHER: Final = "other"
THREADS_OPENED: Final = Counter("gatehouse_threads_opened", "Threads opened.")
SNAPSHOTS: Final = Counter("gatehouse_snapshots", "Snapshots made.", ["reason"])
MERGES: Final = Counter("gatehouse_snapshot_merges", "Snapshots that superseded a live one.")
GROUP_SIZE: Final = Histogram(
    "gatehouse_snapshot_receipts", "Receipts in a snapshot.", buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500)
)
EXPANSIONS: Final = Counter("gatehouse_entry_expansions", "Entries that were expanded.")
DELIVERY: Final = Histogram(
    "gatehouse_receipt_delivery_seconds",
    "From a receipt's creation to the first time its recipient was shown it.",
    buckets=(0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800, 3600, 6 * 3600, 24 * 3600),
)
