"""`migrate` on a database that another release has made."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

STRANGE = ("memory", "9999_of_another_release")


@pytest.fixture
def made_by_another_release(transactional_db: None) -> Iterator[None]:
    MigrationRecorder(connection).record_applied(*STRANGE)
    yield
    MigrationRecorder(connection).record_unapplied(*STRANGE)


def test_database_of_another_release_is_left_unchanged(made_by_another_release: None) -> None:
    before = MigrationRecorder(connection).applied_migrations()
    with pytest.raises(CommandError, match=r"memory\.9999_of_another_release.*bin/up reset"):
        call_command("migrate", "memory", "zero", verbosity=0)
    assert MigrationRecorder(connection).applied_migrations() == before


@pytest.mark.ci
def test_bin_up_prints_the_refusal_in_a_sentence(made_by_another_release: None, tmp_path: Path) -> None:
    url = urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{connection.settings_dict['NAME']}").geturl()
    told = subprocess.run(
        [sys.executable, "-m", "config.stack.provision", str(tmp_path), "{}"],
        cwd=settings.BASE_DIR,
        env={**os.environ, "DATABASE_URL": url},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (told.returncode, told.stdout) == (1, "")
    assert told.stderr.splitlines()[-1].startswith("Another release made this database: ")
    assert "Traceback" not in told.stderr
