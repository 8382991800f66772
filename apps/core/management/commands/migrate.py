"""`migrate` as the owner of the tables: the connection's default role is the application's."""

from typing import Any

from django.core.management.commands.migrate import Command as Migrate
from django.db import connection

from apps.core.rls import EXPECT_ONE_TENANT


class Command(Migrate):
    def handle(self, *args: Any, **options: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("set role none")
            # Building an index may take its time; waiting for a lock may not (lock_timeout stands).
            cursor.execute("set statement_timeout = 0")
        try:
            super().handle(*args, **options)
            with connection.cursor() as cursor:
                cursor.execute(EXPECT_ONE_TENANT)
        finally:
            # The next connection starts in the application's role; this one may be older than that default.
            connection.close()
