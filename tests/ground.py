"""What the planner knows of the tables when a test looks at a plan.

Other tests leave sizes, dead rows and half-counted tables behind on the same server, and autovacuum counts when it
likes. A test of a plan therefore fills its tables until only one way is cheap, then says what is known of them. In
production both happen: statistics of what is there, and of what has just been filled none but what `migrate` has said.
"""

import re
from collections.abc import Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from django.db import connection

from apps.core.rls import EXPECT_ONE_TENANT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.db.backends.utils import CursorWrapper

# A table, or the partitions of it.
_LEAVES: Final = """
select t.name from unnest(%(tables)s::text[]) as t(name) where not exists (select from pg_partition_tree(t.name::regclass))
union all
select relid::text from unnest(%(tables)s::text[]) as t(name), pg_partition_tree(t.name::regclass) where isleaf
"""
_FORGET: Final = """
select pg_clear_attribute_stats(relnamespace::regnamespace::text, relname, attname, false)
from pg_class join pg_attribute on attrelid = pg_class.oid
where pg_class.oid = any(%(tables)s::regclass[]) and attnum > 0 and not attisdropped
union all
select pg_clear_relation_stats(relnamespace::regnamespace::text, relname) from pg_class
where oid = any(%(tables)s::regclass[])
      or oid in (select indexrelid from pg_index where indrelid = any(%(tables)s::regclass[]))
"""
_PARENTS: Final = """
select part.relname, parent.relname from pg_inherits
join pg_class part on part.oid = inhrelid join pg_class parent on parent.oid = inhparent
where parent.relkind in ('p', 'I')
"""


def analyzed(*tables: str) -> None:
    """From here on these tables are known as this transaction sees them; of partitions those in which there is anything.

    What is empty nobody analyzes: it is known as `migrate` leaves it.
    """
    with as_owner() as cursor:
        empty = []
        for table in _leaves(cursor, tables):
            cursor.execute(f"select exists (select from {table})")
            if cursor.fetchone() == (True,) or table in tables:
                cursor.execute(f"analyze {table}")
            else:
                empty.append(table)
        cursor.execute(_FORGET, {"tables": empty})
        cursor.execute(EXPECT_ONE_TENANT)


def unanalyzed(*tables: str) -> None:
    """From here on these tables are known as `migrate` leaves new ones, but for their size on the disk."""
    with as_owner() as cursor:
        cursor.execute(_FORGET, {"tables": _leaves(cursor, tables)})
        cursor.execute(EXPECT_ONE_TENANT)


def unparted(plan: Iterable[str]) -> list[str]:
    """A plan with partitions and their indexes named as what they are parts of."""
    with as_owner() as cursor:
        cursor.execute(_PARENTS)
        parents: dict[str, str] = dict(cursor.fetchall())
    return [re.sub(r"\w+", lambda word: parents.get(word[0], word[0]), line) for line in plan]


def _leaves(cursor: "CursorWrapper", tables: tuple[str, ...]) -> list[str]:
    cursor.execute(_LEAVES, {"tables": list(tables)})
    return [name for (name,) in cursor.fetchall()]


@contextmanager
def as_owner() -> "Iterator[CursorWrapper]":
    """The owner of the tables, for a moment of the transaction that is open."""
    with connection.cursor() as cursor:
        cursor.execute("select current_user")
        (role,) = cursor.fetchone()
        cursor.execute("set constraints all immediate; set local role none")
        yield cursor
        cursor.execute(f"set local role {role}")
