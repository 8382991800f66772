"""The folders of a stack: its data folder, and what must lie elsewhere."""

import fcntl
import hashlib
import json
import os
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import Any

from config.stack.processes import StackError, end_all, make_for_servers, marked, servers_user
from config.typed import PRODUCT

KEYS = ("GATEHOUSE_SECRET_KEY", "GATEHOUSE_LEASE_KEYS", "GATEHOUSE_SEALING_KEYS")
_CONTENT = (
    *("postgres", "postgres.new", "valkey", "log", "metrics", "files", "artifacts", "static"),
    *("secrets.json", "stack.json", "admin-password", "api-token", "worker-key"),
)
# Root's private folders are closed to the servers' user: what the servers need of them lies here.
_SHARED = Path("/var/lib/gatehouse")


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    draft.replace(path)


class DataFolder:
    """A folder that belongs to one stack. Its secret files are readable by their owner alone."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # The mark of the stack's processes. A copy of the folder has another path, and so another mark.
        self.mark = f"gatehouse-{hashlib.sha256(os.fsencode(path)).hexdigest()[:24]}"
        # What runs here and at which addresses; it exists while the servers run. The settings read it.
        self.stack_file = path / "stack.json"
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
        return self.path if _reachable(self.path) else _SHARED / self.mark

    def log(self, name: str) -> Path:
        return self.path / "log" / f"{name}.log"

    def create(self) -> None:
        """:raises StackError: if there is something else in its place."""
        try:
            (self.path / "log").mkdir(parents=True, exist_ok=True)
        except OSError as failure:
            raise StackError(f"{self.path} can't be the data folder: {failure.strerror}.") from failure

    def claim(self) -> bool:
        """Become the one stack of this folder for the life of this process; False if there is one.

        The lock file holds the process id of whoever holds the lock.
        """
        self.lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            return False
        os.truncate(self.lock, 0)
        os.write(self.lock, str(os.getpid()).encode())
        return True

    def release(self) -> None:
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None

    def prepare(self) -> None:
        """End what a killed supervisor has left running, and make anew what no start takes over from another.

        :raises StackError: if somebody else has made the folder of the sockets.
        """
        end_all(marked(self.mark))
        self.stack_file.unlink(missing_ok=True)
        shutil.rmtree(self.path / "metrics", ignore_errors=True)
        shutil.rmtree(self.sockets, ignore_errors=True)
        (self.path / "metrics").mkdir()
        self.servers.mkdir(mode=0o711, parents=True, exist_ok=True)
        try:
            self.sockets.mkdir(mode=0o700)
        except OSError as failure:
            raise StackError(f"The folder {self.sockets} can't be made: {failure.strerror}.") from failure
        make_for_servers(self.sockets)

    def stack(self) -> dict[str, Any]:
        """What the running stack wrote about itself; empty when none runs."""
        return _read(self.stack_file)

    def secrets(self) -> dict[str, Any]:
        """The keys of this folder, the tokens by the URL of their database, and the web port. Missing keys are made."""
        kept = _read(self.path / "secrets.json")
        if missing := [name for name in KEYS if name not in kept]:
            kept |= {"tokens": {}} | {name: secrets.token_urlsafe(48) for name in missing}
            self.keep_secrets(kept)
        return kept

    def keep_secrets(self, kept: dict[str, Any]) -> None:
        write_private(self.path / "secrets.json", json.dumps(kept, indent=2))

    def clear(self) -> None:
        """Remove what a stack puts here, all but the lock. Whoever calls this holds it."""
        end_all(marked(self.mark))
        for entry in (_SHARED / self.mark, self.sockets, *(self.path / name for name in _CONTENT)):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink(missing_ok=True)


def data_of_a_run() -> DataFolder:
    """An empty data folder that no other run uses, claimed. It may be one that a killed run has left."""
    number = 0
    while True:
        data = DataFolder(PRODUCT / "var" / f"run-{number}")
        number += 1
        data.create()
        if data.claim():
            data.clear()
            data.create()
            return data


def readable_package(site: Path, *folders: str, name: str) -> Path:
    """Where the servers' user can read these folders of installed packages: as installed, or copied once.

    Programs find their libraries relative to themselves, so all folders keep their relative places.
    """
    if _reachable(site / folders[0]):
        return site
    copy = _SHARED / name
    if not copy.exists():
        _SHARED.mkdir(mode=0o711, parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=_SHARED))
        for folder in folders:
            shutil.copytree(site / folder, draft / folder)
        draft.chmod(0o755)
        try:
            draft.rename(copy)
        except OSError:  # another start was faster
            shutil.rmtree(draft)
    return copy


def _reachable(path: Path) -> bool:
    """Whether the servers' user may walk down to this folder."""
    walk = (part for part in (path, *path.parents) if part.exists())
    return not servers_user() or all(part.stat().st_mode & 0o001 for part in walk)


def _read(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return content
