"""Who forgets takes turns with whoever else forgets something of the same tenant, and with who writes of the same subject."""

from collections.abc import Collection
from typing import Any, Final

from django.db import connection

_OF: Final = "hashtextextended('memory.forgetting of ' || {tenant}, 0)"
# As long as those before take, who may read whole tables.
_PATIENTLY: Final = """
select set_config('lock_timeout', '1h', true), {locks}, set_config('lock_timeout', usual, true)
from (select current_setting('lock_timeout') as usual offset 0) s
"""
_WAIT: Final = _PATIENTLY.format(locks=f"pg_advisory_xact_lock({_OF.format(tenant='%(tenant)s')})")
_TRY: Final = f"""
select pg_try_advisory_xact_lock({_OF.format(tenant="tenant_id")}) from memory_subject where id = %(subject)s
"""
# Of so many subjects a write names each is kept from being forgotten meanwhile; of more, whatever the tenant has.
_NAMED: Final = 32
_NAME: Final = "hashtextextended('memory.names of ' || %(tenant)s || ' ' || {name}, 0)"
# An empty name stands for all those of a tenant.
_CLOSE: Final = _PATIENTLY.format(
    locks=", ".join(f"pg_advisory_xact_lock({_NAME.format(name=name)})" for name in ("''", "%(name)s::text"))
)
_ENTER: Final = f"""
select bool_and(pg_try_advisory_xact_lock_shared({_NAME.format(name="name")})) from unnest(%(names)s::text[]) n(name)
"""


def close_to_writers(tenant_id: int, name: str) -> None:
    """Until this transaction ends nobody else begins to write of this subject; waits for those who do. Call it before
    anything but the turn is held.
    """
    with connection.cursor() as cursor:
        cursor.execute(_CLOSE, {"tenant": tenant_id, "name": name})


def enter_writing(tenant_id: int, names: Collection[str]) -> bool:
    """Until this transaction ends none of these subjects is forgotten; False if one is being forgotten just now."""
    named = sorted(names) if len(names) <= _NAMED else [""]
    with connection.cursor() as cursor:
        cursor.execute(_ENTER, {"tenant": tenant_id, "names": named})
        (entered,) = cursor.fetchone()
    return bool(entered)


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
