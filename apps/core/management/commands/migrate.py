"""`migrate` as the owner of the tables."""

import time
from collections.abc import Callable
from typing import Any, Final

from django.apps import apps
from django.core.management import CommandError
from django.core.management.commands.migrate import Command as Migrate
from django.db import OperationalError, connection, connections
from django.db.migrations.loader import MigrationLoader
from psycopg.errors import LockNotAvailable

from apps.core.management.commands.makemigrations import Autodetector
from apps.core.rls import BUILD_WALL, CARRY_TENANT, EXPECT_ONE_TENANT, TO_VALIDATE
from apps.core.sql import OWNER, SYSTEM, execute, fetch, logged_in_as
from config.typed import typed

_TRIES: Final = 30


class Command(Migrate):
    autodetector = Autodetector

    def handle(self, *args: Any, **options: Any) -> None:
        if SYSTEM in connections.settings and OWNER not in connections.settings:
            raise CommandError("DATABASE_URL_OWNER is needed: the owner's login alone changes tables.")
        with logged_in_as(OWNER):
            self._migrate(*args, **options)

    def _migrate(self, *args: Any, **options: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("set role none")
            # Building an index may take its time. Whoever asks for a table waits behind this one, and gives up after two
            # seconds: so this one gives up sooner, and tries again.
            cursor.execute("set statement_timeout = 0; set lock_timeout = '1s'")
        try:
            _refuse_strange_history()
            self._try_again(self._bring_up_to_date, *args, **options)
        finally:
            # The next connection starts in the default role; this one may be older than that default.
            connection.close()

    def _bring_up_to_date(self, *args: Any, **options: Any) -> None:
        try:
            super().handle(*args, **options)
        finally:
            # What a migration before the one that failed has made stays.
            execute(BUILD_WALL)
        execute(CARRY_TENANT)
        for (statement,) in fetch(TO_VALIDATE):
            execute(statement)
        execute(EXPECT_ONE_TENANT)

    def _try_again(self, work: Callable[..., object], *args: Any, **options: Any) -> None:
        for left in reversed(range(_TRIES)):
            try:
                work(*args, **options)
                break
            except OperationalError as failure:
                if not left or not isinstance(failure.__cause__, LockNotAvailable):
                    raise
                self.stdout.write(f"Somebody holds a lock, as a backup does. {left} tries are left.")
                time.sleep(1)


def _refuse_strange_history() -> None:
    """What Django does not know it passes over, and takes the tables for what it would have made itself.

    :raises CommandError: if a migration of ours was applied that is not here.
    """
    ours = {config.label for config in apps.get_app_configs() if config.name.startswith("apps.")}
    loader = MigrationLoader(connection, ignore_no_migrations=True)
    strange = sorted(
        f"{app}.{name}" for app, name in set(loader.applied_migrations) - set(loader.disk_migrations) if app in ours
    )
    if strange:
        raise CommandError(
            f"Another release made this database: of its migrations {len(strange)} are not in this one, as {strange[-1]}. "
            f"Run that release, or make the database anew ({typed('reset')} erases what {typed('up')} keeps)."
        )
