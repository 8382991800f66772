"""Operations on inboxes, and the endpoints by which receipts come in."""

from apps.digests.tools import acking, policies, posting, reading

__all__ = ["acking", "policies", "posting", "reading"]
