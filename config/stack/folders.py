"""The folders of a stack: its data folder, its servers' home, and a private folder for sockets.

A Unix socket's path may have 107 bytes (103 on macOS), and a data folder may lie deep. Sockets therefore live in a short
private temporary folder that is made at every start.
"""

import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from config.stack.processes import Account, StackError, end_all, marked

_LONGEST_BASE = 60
_PLAIN = re.compile(r"[A-Za-z0-9/_.+-]+")
_CONTENT = (
    *("postgres", "postgres.new", "valkey", "servers-home"),
    *("secrets.json", "stack.json", "admin-password", "api-token", "worker-key", "lock"),
    *("log", "metrics", "files", "artifacts", "static"),
)


def lock(path: Path) -> int | None:
    """Take an exclusive lock for the life of this process; None if somebody else holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    draft.replace(path)


def _read(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return content


@dataclass(frozen=True, slots=True)
class DataFolder:
    """A folder that belongs to one stack. Its secret files are readable by their owner alone."""

    path: Path

    @property
    def mark(self) -> str:
        """The mark of this stack's processes. A copy of the folder has another path, and so another mark."""
        return f"stack-{hashlib.sha256(os.fsencode(self.path)).hexdigest()[:24]}"

    @property
    def stack_file(self) -> Path:
        """What runs here and at which addresses; it exists while the servers run. The settings read it."""
        return self.path / "stack.json"

    @property
    def token_file(self) -> Path:
        return self.path / "api-token"

    @property
    def password_file(self) -> Path:
        return self.path / "admin-password"

    @property
    def worker_key_file(self) -> Path:
        """The private key with which the demo MCP workers sign their manifests."""
        return self.path / "worker-key"

    def log(self, name: str) -> Path:
        return self.path / "log" / f"{name}.log"

    def metrics_folder(self) -> Path:
        """An empty folder in which the processes of one start keep their counters."""
        folder = self.path / "metrics"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def create(self) -> None:
        """:raises StackError: if there is something else in its place."""
        try:
            (self.path / "log").mkdir(parents=True, exist_ok=True)
        except OSError as failure:
            raise StackError(f"{self.path} can't be the data folder: {failure.strerror}.") from failure

    def claim(self) -> int | None:
        """Become the one stack of this folder for the life of this process; None if there is one."""
        return lock(self.path / "lock")

    def stack(self) -> dict[str, Any]:
        """What the running stack wrote about itself; empty when none runs."""
        return _read(self.stack_file)

    def secrets(self) -> "Secrets":
        """The secrets of this folder; missing ones are made."""
        path = self.path / "secrets.json"
        kept = _read(path)
        if missing := [name for name in Secrets.MADE if name not in kept]:
            kept |= {name: secrets.token_urlsafe(48) for name in missing}
            write_private(path, json.dumps(kept, indent=2))
        return Secrets(path=path, **kept)

    def erase(self) -> None:
        """Remove what a stack puts here, and the folder if nothing else is in it."""
        pointer = self.path / "servers-home"
        if pointer.is_file():
            shutil.rmtree(pointer.read_text(encoding="utf-8"), ignore_errors=True)
        for entry in (self.path / name for name in _CONTENT):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink(missing_ok=True)
        if not any(self.path.iterdir()):
            self.path.rmdir()


@dataclass(slots=True, kw_only=True)
class Secrets:
    """What a stack keeps from one start to the next: its keys, the tokens that it issued by database, its web port."""

    MADE: ClassVar = ("secret_key", "lease_keys", "sealing_keys")
    path: Path
    secret_key: str
    lease_keys: str
    sealing_keys: str
    tokens: dict[str, dict[str, str]] = field(default_factory=dict)
    password_shown: bool = False
    port: int | None = None

    def save(self) -> None:
        write_private(self.path, json.dumps({k: v for k, v in asdict(self).items() if k != "path"}, indent=2))


class RuntimeFolder:
    """A private folder with a short plain path, locked as long as its owner lives.

    Its name is the mark of the test servers' processes. The next start ends what a killed owner left behind, and removes
    the folder.
    """

    def __init__(self, account: Account | None) -> None:
        base = next(_bases(account), None)
        if base is None:
            raise StackError("No temporary folder with a short plain path: set TMPDIR to one, for example /tmp.")
        # The name that `sweep_abandoned` looks for comes after the lock, so it never meets a folder not locked yet.
        draft = Path(tempfile.mkdtemp(prefix="new-gatehouse-", dir=base))
        self._lock = lock(draft / "lock")
        self.path = draft.rename(base / draft.name.removeprefix("new-"))
        self.path.chmod(0o700 if account is None else 0o711)
        self._account = account

    def folder(self, name: str) -> Path:
        """A subfolder that belongs to the servers' account."""
        path = self.path / name
        path.mkdir(mode=0o700, exist_ok=True)
        if self._account is not None:
            self._account.own(path)
        return path

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _bases(account: Account | None) -> Iterator[Path]:
    for name in (tempfile.gettempdir(), "/tmp", "/var/tmp"):  # noqa: S108  # private folders are made inside
        path = Path(name).resolve()
        short_and_plain = len(str(path)) <= _LONGEST_BASE and _PLAIN.fullmatch(str(path))
        if short_and_plain and os.access(path, os.W_OK | os.X_OK) and (account is None or _reachable(path)):
            yield path


def sweep_abandoned(account: Account | None) -> None:
    """Remove the runtime folders of owners that were killed, and end what still runs from them."""
    for path in {path for base in _bases(account) for path in base.glob("gatehouse-*")}:
        with suppress(OSError):
            if path.is_symlink() or path.stat().st_uid != os.geteuid() or not (path / "lock").is_file():
                continue
            held = lock(path / "lock")
            if held is None:
                continue
            end_all(marked(path.name))
            shutil.rmtree(path, ignore_errors=True)
            os.close(held)


def _reachable(path: Path) -> bool:
    """Whether any user may walk down to this folder."""
    return all(part.stat().st_mode & 0o001 for part in (path, *path.parents) if part.exists())


def servers_home(data: Path, account: Account | None) -> Path:
    """Where the embedded servers keep their data.

    That is the data folder. If root runs the stack in a folder that the servers' account cannot reach, such as /root, it is
    a folder of its own under /var/lib/gatehouse, and ``servers-home`` in the data folder names it. A copy of the data folder
    gets another one while its original is there.
    """
    pointer = data / "servers-home"
    if pointer.is_file():
        home = Path(pointer.read_text(encoding="utf-8"))
        owner = home / "owner"
        original = Path(owner.read_text(encoding="utf-8")) if owner.is_file() else None
        if original is not None and (original == data or not (original / "servers-home").exists()):
            owner.write_text(str(data), encoding="utf-8")
            return home
    if account is None or _reachable(data):
        return data
    home = _shared_folder() / hashlib.sha256(os.fsencode(data)).hexdigest()[:12]
    home.mkdir(mode=0o711, exist_ok=True)
    (home / "owner").write_text(str(data), encoding="utf-8")
    pointer.write_text(str(home), encoding="utf-8")
    return home


def _shared_folder() -> Path:
    """The folder for what must lie outside root's private folders."""
    path = Path("/var/lib/gatehouse")
    path.mkdir(mode=0o711, parents=True, exist_ok=True)
    return path


def readable_package(site: Path, *folders: Path, name: str, account: Account | None) -> Path:
    """Where the servers' account can read these folders of installed packages: as installed, or copied once.

    Programs find their libraries relative to themselves, so all folders keep their relative places.
    """
    if account is None or _reachable(site / folders[0]):
        return site
    copy = _shared_folder() / name
    if not copy.exists():
        draft = Path(tempfile.mkdtemp(dir=_shared_folder()))
        for folder in folders:
            shutil.copytree(site / folder, draft / folder)
        draft.chmod(0o755)
        try:
            draft.rename(copy)
        except OSError:  # another start was faster
            shutil.rmtree(draft)
    return copy
