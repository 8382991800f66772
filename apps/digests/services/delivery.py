"""Stamping what was shown."""

from collections.abc import Collection
from datetime import datetime

from django.db import transaction

from apps.core.metrics import once_committed
from apps.core.sql import hot_cursor
from apps.digests import metrics, sql


# No savepoint: one statement, which changes all or nothing.
@transaction.atomic(savepoint=False)
def mark_delivered(*, receipt_pks: Collection[int], now: datetime) -> None:
    """Stamp receipts as shown for the first time. Needs no inbox lock and waits for nobody."""
    if not receipt_pks:
        return
    with hot_cursor() as cursor:
        cursor.execute(sql.DELIVERED, {"receipts": sorted(receipt_pks), "now": now})
        for (waited,) in cursor.fetchall():
            once_committed(metrics.DELIVERY.observe, waited.total_seconds())
