"""What a test does as the owner of the tables, and names of partitions."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from django.db import connection
from django.db.backends.utils import CursorWrapper

_PARENTS: Final = """
select part.relname, parent.relname from pg_inherits
join pg_class part on part.oid = inhrelid join pg_class parent on parent.oid = inhparent
where parent.relkind in ('p', 'I')
"""


def unparted(lines: Iterable[str]) -> list[str]:
    """Lines with partitions and their indexes named as what they are parts of."""
    with as_owner() as cursor:
        cursor.execute(_PARENTS)
        parents: dict[str, str] = dict(cursor.fetchall())
    return [re.sub(r"\w+", lambda word: parents.get(word[0], word[0]), line) for line in lines]


@contextmanager
def as_owner() -> Iterator[CursorWrapper]:
    """The owner of the tables, for a moment of the transaction that is open."""
    with connection.cursor() as cursor:
        cursor.execute("select current_user")
        (role,) = cursor.fetchone()
        cursor.execute("set constraints all immediate; set local role none")
        yield cursor
        cursor.execute(f"set local role {role}")
