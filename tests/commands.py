"""Commands in processes of their own, and the environment that they run in."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from django.db import connection

from config.stack.servers import LOGINS
from tests.waiters import until

ROOT: Final = Path(__file__).resolve().parents[1]
PATIENCE: Final = 300.0
Ended = subprocess.CompletedProcess[str]


def run(*command: str | Path, env: Mapping[str, str] | None = None, cwd: Path = ROOT, timeout: float = 300.0) -> Ended:
    """How a command has ended, and what it has printed; `env` is its whole environment."""
    return subprocess.run(
        command,
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )


def with_database(**more: str) -> dict[str, str]:
    """The environment of the tests, with the database of this one."""
    url = urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{connection.settings_dict['NAME']}")
    if url.netloc != "gatehouse@":  # not the embedded server
        return {**os.environ, "DATABASE_URL": url.geturl(), **more}
    return {**os.environ, **{name: url._replace(netloc=f"{login}@").geturl() for name, login in LOGINS.items()}, **more}


def of_a_person(**more: str) -> dict[str, str]:
    """A person's environment: without what the test run put there for itself."""
    ours = ("GATEHOUSE_", "DJANGO_", "PYTEST_", "DATABASE_URL", "REDIS_URL")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)} | more


@contextmanager
def up(
    data: Path, *arguments: str, command: tuple[Path | str, ...] = (ROOT / "bin" / "up",), **environment: str
) -> Iterator[subprocess.Popen[str]]:
    """A ready stack, ended by Ctrl-C unless the test did something else to it."""
    log = data.with_suffix(".out")
    with (
        log.open("w") as output,
        subprocess.Popen(
            [*command, "--data", str(data), *arguments],
            env=of_a_person(**environment),
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        ) as child,
    ):
        try:
            ready = lambda: child.poll() is not None or "Stop: Ctrl-C" in log.read_text()  # noqa: E731
            until(ready, log.read_text, seconds=PATIENCE)
            assert child.poll() is None, log.read_text()
            yield child
        finally:
            if child.poll() is None:
                child.send_signal(signal.SIGINT)
            child.wait(timeout=PATIENCE)
