"""`flush` as the owner of the tables: the connection's default role is the application's."""

from typing import Any

from django.core.management.commands.flush import Command as Flush
from django.db import connection


class Command(Flush):
    def handle(self, *args: Any, **options: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("set role none")
        try:
            super().handle(*args, **options)
        finally:
            # The next connection starts in the application's role; this one may be older than that default.
            connection.close()
