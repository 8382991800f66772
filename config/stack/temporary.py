"""Servers that come and go with a process: of a test run, or of a measurement. They die with it, even when it is killed."""

import secrets
import subprocess
from collections.abc import Callable, MutableMapping

from config.stack.folders import RuntimeFolder, sweep_abandoned
from config.stack.processes import Program, end_children, server_account, spawn
from config.stack.servers import Postgres, Valkey


def start_servers(environ: MutableMapping[str, str], *, durable: bool = False) -> Callable[[], None]:
    """Start the servers that the environment does not name, put them into it, and return what ends them.

    :param durable: whether PostgreSQL waits for the disk at each commit.
    """
    account = server_account()
    sweep_abandoned(account)
    folder = RuntimeFolder(account)
    running: list[tuple[subprocess.Popen[bytes], Program]] = []

    def stop() -> None:
        for child, program in reversed(running):
            end_children([child], program.farewell)
        folder.remove()

    try:
        for variable, kind in (("DATABASE_URL", Postgres), ("REDIS_URL", Valkey)):
            if environ.get(variable):
                continue
            server = kind(
                home=folder.folder("servers"),
                sockets=folder.folder("sockets"),
                log=folder.path / f"{kind.__name__.lower()}.log",
                mark=folder.path.name,
                account=account,
                durable=durable,
            )
            program = server.program()
            running.append((spawn(program), program))
            server.wait_ready(lambda: running[-1][0].poll() is None)
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
