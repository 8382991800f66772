"""`flush` as the owner of the tables."""

from typing import Any, Final

from django.core.management.commands.flush import Command as Flush
from django.db import connection, transaction
from psycopg import sql

from apps.core.sql import OWNER, execute, logged_in_as

# Up to so many rows are deleted faster than a table is truncated.
_FEW: Final = 2_000
# Django makes these rows after a migration, and after its own flush.
_KEPT: Final = frozenset({"django_content_type", "auth_permission"})


class Command(Flush):
    def handle(self, *args: Any, **options: Any) -> None:
        with logged_in_as(OWNER):
            execute("set role none")
            try:
                if options["interactive"] or not _delete_few():
                    super().handle(*args, **options)
            finally:
                # The next connection starts in the default role; this one may be older than that default.
                connection.close()


def _delete_few() -> bool:
    """Delete the rows of all tables if there are few; says whether it did. To truncate empty tables takes long."""
    with transaction.atomic(), connection.cursor() as cursor:
        names = set(connection.introspection.django_table_names(only_existing=True, include_views=False)) - _KEPT
        count = sql.SQL("select {}, (select count(*) from (select from {} limit {}) few)")
        counts = [count.format(sql.Literal(name), sql.Identifier(name), sql.Literal(_FEW)) for name in names]
        cursor.execute(sql.SQL(" union all ").join(counts))
        filled = {name: rows for name, rows in cursor.fetchall() if rows}
        if any(rows == _FEW for rows in filled.values()):
            return False
        cursor.execute("select relname from pg_class where relforcerowsecurity")
        forced = {name for (name,) in cursor.fetchall()}
        for name in filled:
            # Retention alone deletes facts; what guards them is asked by none but this.
            wall = sql.SQL(", no force row level security" if name in forced else "")
            cursor.execute(sql.SQL("alter table {} disable trigger user{}").format(sql.Identifier(name), wall))
            cursor.execute(sql.SQL("delete from {}").format(sql.Identifier(name)))
        cursor.execute("set constraints all immediate")
        for name in filled:
            wall = sql.SQL(", force row level security" if name in forced else "")
            cursor.execute(sql.SQL("alter table {} enable trigger user{}").format(sql.Identifier(name), wall))
    return True
