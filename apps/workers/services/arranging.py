"""Whose pool workers are in changes with the DeleGates above them."""

from collections.abc import Collection

from django.db import transaction

from apps.workers import sql
from apps.workers.services.rows import advance


@transaction.atomic
def rearrange(*, tenant_id: int, moved: Collection[int]) -> None:
    """Say that DeleGates are others than before, or have another above them.

    :param moved: keys of the principals of those that have another above them.
    """
    advance([tenant_id])
    sql.stamp_moved(tenant_id, moved)
