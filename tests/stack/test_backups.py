"""Which backups are refused, and by what words; a whole backup is made and restored in test_up."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from django.db import connection

from apps.console import backups
from tests.factories import T0


@pytest.fixture
def backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A backup whose dump is a text."""

    def dump(_program: str, *arguments: str) -> None:
        place = Path(next(one for one in arguments if one.startswith("--file=")).removeprefix("--file="))
        place.mkdir()
        (place / "toc.dat").write_text("rows")

    monkeypatch.setattr("apps.console.backups._run", dump)
    folder = tmp_path / "backup"
    backups.back_up(folder, now=T0)
    return folder


def _change(folder: Path, **members: object) -> None:
    manifest = json.loads((folder / backups.MANIFEST).read_text())
    (folder / backups.MANIFEST).write_text(json.dumps(manifest | members))


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda folder: (folder / backups.MANIFEST).unlink(), "no complete backup"),
        (lambda folder: (folder / backups.MANIFEST).write_text("{"), "damaged"),
        (lambda folder: (folder / "database/toc.dat").unlink(), "database/toc.dat is missing"),
        (lambda folder: (folder / "database/toc.dat").write_text("other"), "database/toc.dat is not what was written"),
        (lambda folder: _change(folder, format=2), "format 2"),
        (lambda folder: _change(folder, migrations=["tasks.0099_later"]), "another version"),
    ],
)
def test_a_backup_that_is_not_whole_is_refused_by_name(
    db: None, backup: Path, harm: Callable[[Path], object], words: str
) -> None:
    assert backups.check(backup)["format"] == 1
    harm(backup)
    with pytest.raises(backups.Refused, match=words):
        backups.restore(backup)


def test_nothing_is_written_over(db: None, backup: Path, tmp_path: Path) -> None:
    with pytest.raises(backups.Refused, match="not empty"):
        backups.back_up(backup, now=T0)
    with pytest.raises(backups.Refused, match=f"The database {connection.settings_dict['NAME']} is not empty"):
        backups.restore(backup)
    (backup / backups.SECRETS).write_text(json.dumps({"GATEHOUSE_LEASE_KEYS": "another"}))
    _change(backup, files={})
    with pytest.raises(backups.Refused, match="Set GATEHOUSE_LEASE_KEYS as in"):
        backups.restore(backup)
