"""What a test does as the owner of the tables."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection
from django.db.backends.utils import CursorWrapper


@contextmanager
def as_owner() -> Iterator[CursorWrapper]:
    """The owner of the tables, for a moment of the transaction that is open."""
    with connection.cursor() as cursor:
        cursor.execute("select current_user")
        (role,) = cursor.fetchone()
        cursor.execute("set constraints all immediate; set local role none")
        yield cursor
        cursor.execute(f"set local role {role}")
