"""What operators set for a source system."""

from functools import partial

from django.db import connection, transaction

from apps.core.sql import database_now
from apps.digests import sql
from apps.digests.models import Source
from apps.digests.selectors import forget_source_rules
from apps.digests.services import locking
from apps.digests.services.flushing import flush_sources
from apps.digests.states import FlushReason


@transaction.atomic
def set_source(*, tenant_id: int, name: str, rate_per_hour: int | None, groups_by_dedupe_key: bool) -> Source:
    """Set all that holds for the receipts of a source.

    Where its receipts are to be gathered by their keys no more, what waits of it is flushed. Other processes follow
    within half a minute; what they still gather surfaces after its window.
    """
    before = Source.objects.select_for_update().filter(tenant_id=tenant_id, name=name).first()
    source, _ = Source.objects.update_or_create(
        tenant_id=tenant_id,
        name=name,
        defaults={"rate_per_hour": rate_per_hour, "groups_by_dedupe_key": groups_by_dedupe_key},
    )
    if before is not None and before.groups_by_dedupe_key and not groups_by_dedupe_key:
        _flush(tenant_id, name)
    forget_source_rules(tenant_id)
    transaction.on_commit(partial(forget_source_rules, tenant_id), robust=True)
    return source


def _flush(tenant_id: int, name: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql.INBOXES_WITH_PENDING, [tenant_id, name])
        inboxes = [inbox_id for (inbox_id,) in cursor.fetchall()]
    for inbox_id in inboxes:
        inbox = locking.lock_by_id(inbox_id, wait=True)
        if inbox is not None:
            flush_sources(inbox, [name], reason=FlushReason.LIFECYCLE, now=database_now())
