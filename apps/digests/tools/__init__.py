"""Operations on inboxes, and the doors by which receipts come in."""

from apps.digests.tools import acking, posting, raw, reading

__all__ = ["acking", "posting", "raw", "reading"]
