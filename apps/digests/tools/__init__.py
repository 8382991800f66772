"""Operations on inboxes, and the doors by which receipts come in."""

from apps.digests.tools import acking, policies, posting, raw, reading, sources

__all__ = ["acking", "policies", "posting", "raw", "reading", "sources"]
