"""PostgreSQL's own pgbench, and the bare INSERT that posting is held against: by it where it is there."""

import os
import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psycopg
from django.conf import settings

from apps.bench import load
from apps.bench.rows import Slice
from config.stack.processes import StackError, server_account
from config.stack.servers import programs

# Roughly what a receipt holds, with no constraint but its key.
_TABLE: Final = """
create table if not exists bench_bare (
    id bigint generated always as identity primary key,
    recipient_id bigint not null, source_system text not null, dedupe_key text not null, title text,
    summary text not null, metadata jsonb not null, created_at timestamptz not null
)
"""
# No colon in it: pgbench takes what follows one for a variable.
_INSERT: Final = """
insert into bench_bare (recipient_id, source_system, dedupe_key, title, summary, metadata, created_at)
select 7, 'bench', 'bench/message/' || n || '/v1', 'A receipt', repeat('What happened. ', 8), jsonb_build_object('n', n), now()
from generate_series(1, {rows}) n
"""
_TPS: Final = re.compile(r"^tps = ([0-9.]+)", re.MULTILINE)


class BareInsert:
    """Rows of the size of a receipt into a table with nothing but a key; makes its table when it is made."""

    def __init__(self) -> None:
        self._program = program()
        with psycopg.connect(settings.DATABASE_URL, autocommit=True) as connection:
            connection.execute("set role none")
            connection.execute(_TABLE)
            connection.execute("grant select, insert on bench_bare to gatehouse_app")

    @property
    def name(self) -> str:
        by = "pgbench" if self._program else "psycopg"
        return f"bare INSERT by {by}"

    def slices(self, *, rows: int, clients: int, seconds: float) -> Callable[[], Slice]:
        """Insert so many rows in each transaction."""
        statement = _INSERT.format(rows=rows)
        if self._program is None:
            return lambda: load.drive(_by_psycopg(statement, rows), clients=clients, seconds=seconds)
        pgbench = self._program
        return lambda: _by_pgbench(pgbench, statement, rows=rows, clients=clients, seconds=max(1, round(seconds)))


def program() -> Path | None:
    """Where pgbench is; None if it came with no server here."""
    try:
        found = programs(server_account()) / "pgbench"
    except StackError:
        return None
    return found if found.exists() else None


def _by_pgbench(pgbench: Path, statement: str, *, rows: int, clients: int, seconds: int) -> Slice:
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(" ".join(statement.split()) + ";\n")
        script.flush()
        done = subprocess.run(
            [
                str(pgbench),
                *("--no-vacuum", "--protocol=prepared", "--file", script.name, "--time", str(seconds)),
                *("--client", str(clients), "--jobs", str(min(clients, os.cpu_count() or 1))),
                settings.DATABASE_URL,
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    found = _TPS.search(done.stdout)
    if done.returncode or found is None:
        raise load.ClientFailed(f"pgbench failed: {done.stderr}")
    return Slice(units=round(float(found[1]) * seconds * rows), seconds=seconds)


def _by_psycopg(statement: str, rows: int) -> load.Work:
    def work(_number: int) -> load.Operation:
        connection = psycopg.connect(settings.DATABASE_URL, autocommit=True)

        def insert() -> int:
            connection.execute(statement.encode(), prepare=True)
            return rows

        return insert

    return work
