"""What bin/up, bin/demo and manage.py say to a person who mistypes, or asks before anything runs."""

import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.files.base import ContentFile
from django.core.files.storage import storages
from django.core.management import CommandError, call_command, get_commands
from django.db import connection

from apps.console import backups
from apps.console.management.commands import prepare
from apps.core.sql import OWNER, logged_in_as
from apps.principals.models import Operator
from apps.principals.tenancy import acting_as
from apps.tasks.models import Artifact
from config.stack.__main__ import main
from config.stack.folders import DataFolder
from config.stack.processes import MARK, SIGNALS, StackError, bound_log
from config.stack.supervisor import DEFAULT_PORT, Supervisor, listen
from manage import Commands
from tests.commands import Ended, run
from tests.factories import T0, as_owner, make_caller, make_tenant

NOWHERE = "postgresql://somebody:hidden@127.0.0.1:9/nothing"


def _run(*arguments: str, **environment: str) -> Ended:
    return run(sys.executable, *arguments, env={**os.environ, **environment})


def test_last_port_is_used_again_unless_it_is_taken() -> None:
    with listen(None, None) as first:
        last = first.getsockname()[1]
    with listen(None, last) as again:
        assert again.getsockname()[1] == last
        with listen(None, last) as neighbour:
            assert neighbour.getsockname()[1] != last
        with pytest.raises(StackError, match=f"Port {last} can.t be had: Address already in use"):
            listen(last, DEFAULT_PORT)


def test_data_folder_keeps_its_port_until_it_is_erased(tmp_path: Path) -> None:
    data = DataFolder(tmp_path)
    kept = data.secrets()
    assert "port" not in kept
    data.write(data.secrets_file, kept | {"port": 8123})
    assert data.secrets() == kept | {"port": 8123}
    data.clear()
    assert data.secrets().keys() == kept.keys()


def test_log_over_its_limit_leaves_one_predecessor(tmp_path: Path) -> None:
    log = tmp_path / "web.log"
    with log.open("ab", buffering=0) as writer:
        for text in (b"first ", b"second ", b"third"):
            writer.write(text)
            bound_log(log, limit=5)
    assert (log.read_text(), (tmp_path / "web.old.log").read_text()) == ("third", "second ")


def _typed(*arguments: str) -> int:
    """The exit code of a command line that starts nothing."""
    try:
        return main(list(arguments))
    except SystemExit as end:
        return int(end.code or 0)


def test_help_shows_every_command_with_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert _typed("--help") == 0
    shown = capsys.readouterr().out
    for word in ("bin/up status", "bin/up down", "bin/up reset", "--port", "--no-workers", "--yes"):
        assert word in shown
    assert _typed("demo", "--help") == 0
    assert capsys.readouterr().out.startswith("usage: bin/demo [-h]")


def test_help_groups_the_commands_of_the_product_and_hides_those_of_django() -> None:
    shown = Commands(["manage.py"]).main_help_text()
    assert re.findall(r"^\[(\w+)\]$", shown, re.MULTILINE) == sorted(
        {app.removeprefix("apps.") for app in get_commands().values() if app.startswith("apps.")}
    )
    assert re.search(r"\n\[principals\]\n    issue_token +Issue a token; .*\n    source_tokens ", shown)
    assert not {"flush", "makemigrations", "shell"} & set(shown.split())


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["staus"], ["staus", "status", "down", "reset", "demo"]),
        (["--prot", "3"], ["no option --prot"]),
        (["up", "status"], ["up takes no 'status'"]),
        (["up", "--port", "70000"], ["70000", "65535"]),
        (["demo", "--port", "many"], ["many", "65535"]),
    ],
)
def test_refusal_of_a_command_line_says_what_is_right(
    typed: list[str], told: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert _typed(*typed) == 2
    shown = capsys.readouterr().err
    for word in told:
        assert word in shown


@pytest.mark.parametrize("path", ["missing", "empty/notes.txt", "empty"])
def test_demo_refuses_a_folder_without_python(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.txt").write_text("no code")
    data = tmp_path / "data"
    monkeypatch.setenv("GATEHOUSE_CALLER_DIR", str(tmp_path))
    monkeypatch.setenv(MARK, DataFolder(data).mark)
    assert _typed("demo", "--data", "data", path) == 1
    assert capsys.readouterr().err == f"There is no folder with Python code at {tmp_path / path}.\n"
    assert not data.exists()


@pytest.mark.ci
def test_command_says_in_a_sentence_that_nothing_runs(tmp_path: Path) -> None:
    refused = _run("manage.py", "issue_token", "--principal", "Kee", "--scope", "inbox", DATABASE_URL=NOWHERE)
    assert refused.returncode == 1
    assert refused.stderr.startswith("The database that DATABASE_URL names can't be reached: ")
    assert refused.stderr.count("\n") == 1
    assert "hidden" not in refused.stderr

    told = (
        f"Nothing runs with its data in {tmp_path}; start bin/up, or name the folder of what runs in GATEHOUSE_DATA.\n"
    )
    for command in (["doctor"], ["backup", str(tmp_path / "backup")]):
        refused = _run("manage.py", *command, DATABASE_URL="", GATEHOUSE_DATA=str(tmp_path))
        assert (refused.returncode, refused.stderr, list(tmp_path.iterdir())) == (1, told, [])


@pytest.mark.parametrize("variable", ["DATABASE_URL", "REDIS_URL"])
def test_refusal_names_the_variable_of_a_server(variable: str, tmp_path: Path) -> None:
    nowhere = {"DATABASE_URL": NOWHERE, "REDIS_URL": "redis://127.0.0.1:9/0"}[variable]
    environ = {name: os.environ[name] for name in ("DATABASE_URL", "REDIS_URL")} | {variable: nowhere}
    data = DataFolder(tmp_path)
    assert data.claim()
    supervisor = Supervisor(data=data, environment=environ)
    with pytest.raises(StackError, match=rf"^The server that {variable} names can't be used: .*$") as refusal:
        supervisor.start_servers()
    supervisor.stop()
    data.release()
    assert "hidden" not in str(refusal.value)


def test_python_without_django_is_told_which_one_to_take() -> None:
    refused = _run("-S", "manage.py", "doctor", PYTHONPATH="")
    assert refused.returncode == 1
    assert ".venv/bin/python" in refused.stderr


def test_unknown_environment_is_refused() -> None:
    refused = _run("manage.py", "check", GATEHOUSE_ENV="prod")
    assert (refused.returncode, refused.stderr) == (
        1,
        "GATEHOUSE_ENV is 'prod'; it must be development or production.\n",
    )


def test_new_password_is_that_of_the_admin(db: None, tmp_path: Path) -> None:
    make_tenant("default")
    for _ in range(2):
        (data := DataFolder(tmp_path)).password_file.unlink(missing_ok=True)
        prepare.Command()._fill(data, {})
        password = data.password_file.read_text().strip()
        assert Operator.objects.get(username="admin").check_password(password)


@pytest.fixture
def backup(db: None, own_artifacts: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A backup whose dump is a text."""

    def dump(_program: str, *arguments: str) -> None:
        place = Path(next(one for one in arguments if one.startswith("--file=")).removeprefix("--file="))
        place.mkdir()
        for name in ("toc.dat", "1.dat"):
            (place / name).write_text("rows")

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
        *(
            (lambda folder, text=text: (folder / backups.MANIFEST).write_text(text), "damaged")
            for text in ["{", "[]", "{}"]
        ),
        (lambda folder: _change(folder, files={}), "database/toc.dat is not what was written"),
        (lambda folder: (folder / "database/1.dat").write_text("other"), "database/1.dat is not what was written"),
        (lambda folder: (folder / backups.SECRETS).write_text("{}"), "secrets.json is not what was written"),
        (lambda folder: (folder / "database/toc.dat").unlink(), "database/toc.dat is missing"),
        (lambda folder: (folder / "database/toc.dat").write_text("other"), "database/toc.dat is not what was written"),
        (lambda folder: _change(folder, format=2), "format 2"),
        (lambda folder: _change(folder, owner="acme"), "belong to acme: let DATABASE_URL_OWNER name"),
        (lambda folder: _change(folder, migrations=["tasks.0099_later"]), "another version: restore it with release"),
    ],
)
def test_a_backup_that_is_not_whole_is_refused_by_name(
    backup: Path, harm: Callable[[Path], object], words: str
) -> None:
    assert (backups.check(backup)["format"], backup.stat().st_mode & 0o777) == (1, 0o700)
    harm(backup)
    with pytest.raises(backups.Refused, match=words):
        backups.restore(backup)


def test_a_dump_reaches_the_database_as_the_product_does(
    db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "pg_dump"
    program.write_text('#!/bin/sh\necho "$PGSSLMODE $PGOPTIONS." >&2\nexit 1\n')
    program.chmod(0o700)
    monkeypatch.setattr("apps.console.backups._found", lambda _: str(program))
    with logged_in_as(OWNER):
        monkeypatch.setitem(connection.settings_dict["OPTIONS"], "sslmode", "verify-full")
    with pytest.raises(backups.Refused, match=r"pg_dump failed: verify-full \.$"):
        backups.back_up(tmp_path / "backup", now=T0)


def test_nothing_is_written_over(backup: Path) -> None:
    with pytest.raises(backups.Refused, match="not empty"):
        backups.back_up(backup, now=T0)
    with pytest.raises(CommandError, match="Not a directory"):
        call_command("backup", str(backup / backups.MANIFEST))
    with pytest.raises(backups.Refused, match=f"The database {connection.settings_dict['NAME']} is not empty"):
        backups.restore(backup)
    (kept := storages["artifacts"]).save("there", ContentFile(b"already"))
    with pytest.raises(backups.Refused, match="There are artifacts already, in "):
        backups.restore(backup)
    kept.delete("there")
    Path(kept.path("")).rmdir()
    with acting_as(kee := make_caller(make_tenant(), "Kee")):
        Artifact.objects.create(
            tenant_id=kee.tenant_id, digest="0" * 64, media_type="text/plain", size=1, created_at=T0
        )
    with pytest.raises(backups.Refused, match=r"The artifacts are not in .*/artifacts: set GATEHOUSE_DATA"):
        backups.back_up(backup.with_name("another"), now=T0)


def test_a_backup_is_restored_where_its_keys_are_accepted_still(backup: Path, settings: Any) -> None:
    settings.LEASE_KEYS = ["new", *settings.LEASE_KEYS]
    settings.SECRET_KEY_FALLBACKS, settings.SECRET_KEY = [settings.SECRET_KEY], "new"
    with pytest.raises(backups.Refused, match=r"database .* is not empty"):
        backups.restore(backup)
    settings.LEASE_KEYS = ["new"]
    with pytest.raises(backups.Refused, match=r"Add the keys in .* to GATEHOUSE_LEASE_KEYS: "):
        backups.restore(backup)


def test_a_backup_tells_of_a_migration_that_the_database_alone_has(backup: Path) -> None:
    with as_owner() as cursor:
        cursor.execute("insert into django_migrations (app, name, applied) values ('tasks', '0099_later', now())")
    other = backup.with_name("other")
    backups.back_up(other, now=T0)
    with pytest.raises(backups.Refused, match=r"another version: .* tasks\.0099_later"):
        backups.check(other)


def test_what_a_restore_left_half_done_is_not_started(
    backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(supervisor: Supervisor) -> None:
        with pytest.raises(StackError, match=rf"did not come to its end. Type .* reset .* restore {backup}"):
            supervisor.start()
        raise StackError("as by a signal")

    monkeypatch.setattr(Supervisor, "start_servers", killed)
    monkeypatch.setenv(MARK, DataFolder(new := tmp_path / "new").mark)
    before = {sign: signal.getsignal(sign) for sign in SIGNALS}
    try:
        assert main(["restore", str(backup), "--data", str(new)]) == 1
    finally:
        # The command ends its process.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        for sign, handler in before.items():
            signal.signal(sign, handler)
    assert [one.name for one in new.iterdir()] == ["lock"]
