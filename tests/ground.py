"""What the planner knows of the tables when a test looks at a plan.

Other tests leave sizes, dead rows and half-counted tables behind on the same server, and autovacuum counts when it
likes. A test of a plan therefore fills its tables until only one way is cheap, then says what is known of them. In
production both happen: statistics of what is there, and of what has just been filled none but what `migrate` has said.
"""

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from django.db import connection

from apps.core.rls import EXPECT_ONE_TENANT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.db.backends.utils import CursorWrapper

_FORGET: Final = """
select pg_clear_attribute_stats(relnamespace::regnamespace::text, relname, attname, false)
from pg_class join pg_attribute on attrelid = pg_class.oid
where pg_class.oid = any(%(tables)s::regclass[]) and attnum > 0 and not attisdropped
union all
select pg_clear_relation_stats(relnamespace::regnamespace::text, relname) from pg_class
where oid = any(%(tables)s::regclass[])
      or oid in (select indexrelid from pg_index where indrelid = any(%(tables)s::regclass[]))
"""


def analyzed(*tables: str) -> None:
    """From here on these tables are known as this transaction sees them."""
    with _as_owner() as cursor:
        cursor.execute(f"analyze {', '.join(tables)}")


def unanalyzed(*tables: str) -> None:
    """From here on these tables are known as `migrate` leaves new ones, but for their size on the disk."""
    with _as_owner() as cursor:
        cursor.execute(_FORGET, {"tables": list(tables)})
        cursor.execute(EXPECT_ONE_TENANT)


@contextmanager
def _as_owner() -> "Iterator[CursorWrapper]":
    with connection.cursor() as cursor:
        cursor.execute("select current_user")
        (role,) = cursor.fetchone()
        cursor.execute("set constraints all immediate; set local role none")
        yield cursor
        cursor.execute(f"set local role {role}")
