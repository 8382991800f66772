"""Let the vectors of large tenants be found by an index."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connection

from apps.memory import sql
from apps.memory.embedding import embedder


class Command(BaseCommand):
    help = (
        "Make the index by which the vectors of large tenants are found; those of small ones are looked at one by one."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        named = embedder()
        if named is None:
            raise CommandError("There is no embedder: see GATEHOUSE_EMBEDDER_URL in docs/recall.md.")
        if not sql.has_vectors():
            raise CommandError("The database has no pgvector; let a superuser say: create extension vector.")
        with connection.cursor() as cursor:
            cursor.execute("set role none")
            cursor.execute("set statement_timeout = 0")
            try:
                for statement in sql.index_statements(named.mark, named.dimensions):
                    cursor.execute(statement)
            finally:
                # The next connection starts in the application's role.
                connection.close()
        self.stdout.write(f"The vectors of {named.model} stand in an index.")
