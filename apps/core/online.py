"""Migration operations for tables in use: they keep nobody waiting, and can be run again where they were cut off."""

from typing import Any

from django.contrib.postgres.operations import AddIndexConcurrently


class AddIndexOnline(AddIndexConcurrently):
    """Build an index while others write.

    It waits for all transactions that write, however long, since nobody waits for it. What an attempt that was cut off
    has left is built anew.
    """

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        with schema_editor.connection.cursor() as cursor:
            cursor.execute("set lock_timeout = 0")
            cursor.execute("select indisvalid from pg_index where indexrelid = to_regclass(%s)", [self.index.name])
            found = cursor.fetchone()
            if found == (False,):
                cursor.execute(f'drop index concurrently "{self.index.name}"')
        try:
            if found != (True,):
                super().database_forwards(app_label, schema_editor, from_state, to_state)
        finally:
            with schema_editor.connection.cursor() as cursor:
                cursor.execute("reset lock_timeout")
