"""Operations on facts and on what goes elsewhere."""

from apps.receipts.tools import chain, remote

__all__ = ["chain", "remote"]
