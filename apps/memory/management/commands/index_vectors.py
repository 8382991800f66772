"""Create the index of vectors, for tenants with many memories."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connection

from apps.core.sql import OWNER, logged_in_as
from apps.memory import vectors


class Command(BaseCommand):
    help = "Create the index of vectors, which recall reads for tenants with many memories."

    def handle(self, *args: Any, **options: Any) -> None:
        named = vectors.embedder()
        if named is None:
            raise CommandError("There is no embedder: see GATEHOUSE_EMBEDDER_URL in docs/recall.md.")
        if not vectors.has_vectors():
            raise CommandError("The database has no pgvector; let a superuser say: create extension vector.")
        with logged_in_as(OWNER), connection.cursor() as cursor:
            cursor.execute("set role none")
            cursor.execute("set statement_timeout = 0")
            try:
                for statement in vectors.index_statements(named.mark, named.dimensions):
                    cursor.execute(statement)
            finally:
                # The next connection starts in the default role.
                connection.close()
        self.stdout.write(f"The vectors of {named.model} are indexed.")
