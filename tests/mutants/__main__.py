"""Put each mutant into the tree, run its tests, restore the file, and print whether a test failed.

    python -m tests.mutants [NAME…]

All runs share one pair of servers and, unless a mutant changes the schema, one database.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import psycopg
from psycopg import sql

from config.stack.supervisor import Supervisor
from tests.mutants.table import MUTANTS, Mutant

_ROOT: Final = Path(__file__).resolve().parents[2]
_TESTS_FAILED: Final = 1
_VERDICTS: Final = {0: "SURVIVED", _TESTS_FAILED: "caught"}


def main(names: list[str]) -> int:
    known = {mutant.name: mutant for mutant in MUTANTS}
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"There is no mutant {', '.join(unknown)}. Known: {', '.join(known)}.")
    chosen = [known[name] for name in names] or list(MUTANTS)
    # All texts are looked for before any test runs.
    for mutant in chosen:
        _mutated(mutant)
    # A file with the code of a mutant must not be compiled for later runs.
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    with Supervisor.of_a_run(environment=environ, durable=False) as servers:
        servers.start_servers()
        results = [_run(mutant, environ) for mutant in chosen]
    print(f"{results.count(True)} of {len(results)} mutants were caught.")
    return 0 if all(results) else 1


def _mutated(mutant: Mutant) -> str:
    """The text of the file with the defect in it."""
    text = (_ROOT / mutant.file).read_text()
    if (found := text.count(mutant.text)) != 1:
        sys.exit(f"{mutant.name}: {mutant.file} has this text {found} times instead of once:\n{mutant.text}")
    return text.replace(mutant.text, mutant.replacement)


def _run(mutant: Mutant, environ: dict[str, str]) -> bool:
    """Whether a test failed with the defect in place."""
    path, began = _ROOT / mutant.file, time.monotonic()
    original = path.read_text()
    database = "--create-db" if mutant.changes_schema else "--reuse-db"
    try:
        path.write_text(_mutated(mutant))
        done = subprocess.run(
            ["bin/test", *mutant.tests, "-x", "-q", "-n", "0", database],
            cwd=_ROOT,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        path.write_text(original)
    if mutant.changes_schema:
        _drop_changed_databases(environ)
    verdict = _VERDICTS.get(done.returncode, "NO VERDICT")
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    print(f"{verdict:10}  {mutant.name}  {time.monotonic() - began:.0f} s  {''.join(failed[:1])[:120]}", flush=True)
    if done.returncode not in _VERDICTS:
        print(done.stdout[-2000:], done.stderr[-2000:], sep="\n", flush=True)
    return done.returncode == _TESTS_FAILED


def _drop_changed_databases(environ: dict[str, str]) -> None:
    """Let the next run create its database from the original migrations."""
    with psycopg.connect(environ["DATABASE_URL"], autocommit=True) as connection:
        for (name,) in connection.execute("select datname from pg_database where datname like 'test\\_%'").fetchall():
            connection.execute(sql.SQL("drop database {}").format(sql.Identifier(name)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
