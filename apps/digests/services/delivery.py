"""Stamping what was shown."""

from collections.abc import Collection
from datetime import datetime

from django.db import connection, transaction

from apps.digests import sql


@transaction.atomic
def mark_delivered(*, receipt_pks: Collection[int], now: datetime) -> None:
    """Stamp receipts as shown for the first time. Needs no inbox lock and waits for nobody."""
    if not receipt_pks:
        return
    with connection.cursor() as cursor:
        cursor.execute(sql.DELIVERED, {"receipts": sorted(receipt_pks), "now": now})
