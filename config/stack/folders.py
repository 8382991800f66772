"""The folder of a stack, and what of it must lie elsewhere."""

import fcntl
import hashlib
import json
import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from config.stack.processes import end_all, marked, servers_user

KEYS = ("GATEHOUSE_SECRET_KEY", "GATEHOUSE_LEASE_KEYS", "GATEHOUSE_SEALING_KEYS")
_CONTENT = (
    *("postgres", "postgres.new", "valkey", "log", "metrics", "files", "artifacts", "static"),
    *("secrets.json", "stack.json", "admin-password", "api-token", "worker-key"),
)
# Root's private folders are closed to the servers' user: what the servers need of them lies here.
SHARED = Path("/var/lib/gatehouse")


class DataFolder:
    """A folder that belongs to one stack. Its secret files are readable by their owner alone."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # The mark of the stack's processes. A copy of the folder has another path, and so another mark.
        self.mark = f"gatehouse-{hashlib.sha256(os.fsencode(path)).hexdigest()[:24]}"
        # What runs here and at which addresses; it exists while the servers run. The settings read it.
        self.stack_file = path / "stack.json"
        self.secrets_file = path / "secrets.json"
        self.token_file = path / "api-token"
        self.password_file = path / "admin-password"
        # The private key with which the demo MCP workers sign their manifests.
        self.worker_key_file = path / "worker-key"
        # A Unix socket's path may have 107 bytes (103 on macOS), and the data folder may lie deep.
        self.sockets = Path("/tmp") / self.mark  # noqa: S108  # a private folder is made there
        self.lock: int | None = None

    @property
    def servers(self) -> Path:
        """Where the embedded servers keep their data: here, unless their user can't come here."""
        return self.path if reachable(self.path) else SHARED / self.mark

    def log(self, name: str) -> Path:
        return self.path / "log" / f"{name}.log"

    def claim(self) -> bool:
        """Make the folder, and become its one stack for the life of this process; False if there is one.

        What a killed supervisor has left running is ended.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        self.lock = lock
        end_all(marked(self.mark))
        return True

    def release(self) -> None:
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None

    def prepare(self) -> None:
        """Make anew what no start takes over from another."""
        self.stack_file.unlink(missing_ok=True)
        shutil.rmtree(self.path / "metrics", ignore_errors=True)
        for name in ("log", "metrics"):
            (self.path / name).mkdir(exist_ok=True)
        self.servers.mkdir(mode=0o711, parents=True, exist_ok=True)
        make_for_servers(self.sockets)

    def read(self, file: Path) -> dict[str, Any]:
        """What a JSON file of this folder holds; nothing if it is not there."""
        with suppress(FileNotFoundError):
            return dict(json.loads(file.read_text(encoding="utf-8")))
        return {}

    def write(self, file: Path, content: dict[str, Any] | str) -> None:
        """Write a file that only its owner can read, whole or not at all."""
        draft = file.with_name(f".{file.name}.{os.getpid()}")
        draft.touch(mode=0o600)
        draft.write_text(content if isinstance(content, str) else json.dumps(content, indent=2), encoding="utf-8")
        draft.replace(file)

    def secrets(self) -> dict[str, Any]:
        """The keys of this folder, the tokens by the URL of their database, and the web port. Missing keys are made."""
        kept = self.read(self.secrets_file)
        made = {"tokens": {}, **{name: secrets.token_urlsafe(48) for name in KEYS}, **kept}
        if made.keys() != kept.keys():
            self.write(self.secrets_file, made)
        return made

    def clear(self) -> None:
        """Remove what a stack puts here, all but the lock. Whoever calls this holds it."""
        for entry in (SHARED / self.mark, self.sockets, *(self.path / name for name in _CONTENT)):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink(missing_ok=True)


def make_for_servers(folder: Path) -> Path:
    """Make a private folder of the servers' user, in place of one that is there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    if user := servers_user():
        os.chown(folder, user.pw_uid, user.pw_gid)
    return folder


def reachable(path: Path) -> bool:
    """Whether the servers' user may walk down to this folder."""
    walk = (part for part in (path, *path.parents) if part.exists())
    return servers_user() is None or all(part.stat().st_mode & 0o001 for part in walk)
