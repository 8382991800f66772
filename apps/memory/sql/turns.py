"""Who forgets takes turns with whoever else forgets something of the same tenant."""

from typing import Any, Final

from django.db import connection

_OF: Final = "hashtextextended('memory.forgetting of ' || {tenant}, 0)"
# As long as the one before takes, which reads whole tables.
_WAIT: Final = f"""
select set_config('lock_timeout', '1h', true), pg_advisory_xact_lock({_OF.format(tenant="%(tenant)s")}),
       set_config('lock_timeout', usual, true)
from (select current_setting('lock_timeout') as usual offset 0) s
"""
_TRY: Final = f"""
select pg_try_advisory_xact_lock({_OF.format(tenant="tenant_id")}) from memory_subject where id = %(subject)s
"""


def await_turn(tenant_id: int) -> None:
    """Until this transaction ends nobody else forgets anything of this tenant. Call it before anything is held."""
    with connection.cursor() as cursor:
        cursor.execute(_WAIT, {"tenant": tenant_id})


def try_turn(subject_pk: int) -> bool:
    """Likewise for the tenant of a subject, unless it is somebody else's turn, or there is no such subject any more."""
    given: dict[str, Any] = {"subject": subject_pk}
    with connection.cursor() as cursor:
        cursor.execute(_TRY, given)
        row = cursor.fetchone()
    return row is not None and bool(row[0])
