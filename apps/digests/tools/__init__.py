"""Operations on inboxes, and the endpoints that receive receipts."""

from apps.digests.tools import policies, posting, reading

__all__ = ["policies", "posting", "reading"]
