"""Where a stack keeps things: its data folder, its servers' home, and a private folder for sockets.

A Unix socket's path may have 107 bytes (103 on macOS), a data folder may lie deep and be named with spaces and
umlauts: sockets therefore live in a short private temporary folder that is made anew at every start.
"""

import fcntl
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from config.stack.processes import Account, StackError, end_all, marked

PREFIX = "gatehouse-"
_LONGEST_BASE = 60
_PLAIN = re.compile(r"[A-Za-z0-9/_.+-]+")


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


def reachable(path: Path) -> bool:
    """Whether any user may walk down to this folder."""
    return all(part.stat().st_mode & 0o001 for part in (path, *path.parents) if part.exists())


class RuntimeFolder:
    """A private folder with a short plain path, locked as long as its owner lives.

    Its name is the mark of a stack that has no other (the test servers'), so the next start can end what a
    killed owner left behind and remove the folder.
    """

    def __init__(self, account: Account | None) -> None:
        base = next(_bases(account), None)
        if base is None:
            raise StackError("No temporary folder with a short plain path: set TMPDIR to one, for example /tmp.")
        # The name that the sweep looks for comes after the lock, so it never meets a folder not locked yet.
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
        if short_and_plain and os.access(path, os.W_OK | os.X_OK) and (account is None or reachable(path)):
            yield path


def sweep_abandoned(account: Account | None) -> None:
    """Remove the runtime folders of owners that were killed, and end what still runs from them."""
    for path in {path for base in _bases(account) for path in base.glob(f"{PREFIX}*")}:
        with suppress(OSError):
            if path.is_symlink() or path.stat().st_uid != os.geteuid() or not (path / "lock").is_file():
                continue
            held = lock(path / "lock")
            if held is None:
                continue
            end_all(marked(path.name))
            shutil.rmtree(path, ignore_errors=True)
            os.close(held)


def servers_home(data: Path, account: Account | None) -> Path:
    """Where the embedded servers keep their data.

    That is the data folder. When root runs the stack in a folder that the servers' account cannot walk to (such
    as /root), it is a folder of its own under /var/lib/gatehouse, and ``servers-home`` in the data folder names it.
    """
    pointer = data / "servers-home"
    if pointer.is_file() and (home := _pointed_home(pointer, data)):
        return home
    if account is None or reachable(data):
        return data
    home = shared_folder() / hashlib.sha256(os.fsencode(data)).hexdigest()[:12]
    home.mkdir(mode=0o711, exist_ok=True)
    (home / "owner").write_text(str(data), encoding="utf-8")
    pointer.write_text(str(home), encoding="utf-8")
    return home


def _pointed_home(pointer: Path, data: Path) -> Path | None:
    """The home that the pointer names, unless this data folder is a copy whose original is still there."""
    home = Path(pointer.read_text(encoding="utf-8"))
    owner_file = home / "owner"
    if not owner_file.is_file():
        return None
    owner = Path(owner_file.read_text(encoding="utf-8"))
    if owner != data:
        if (owner / "servers-home").exists():
            return None
        owner_file.write_text(str(data), encoding="utf-8")
    return home


def shared_folder() -> Path:
    """The folder for what must lie outside root's private folders."""
    path = Path("/var/lib/gatehouse")
    path.mkdir(mode=0o711, parents=True, exist_ok=True)
    return path


def readable_folder(
    site: Path, folder: Path, *, beside: Path | None = None, name: str, account: Account | None
) -> Path:
    """A folder of an installed package, copied once to where the servers' account can read it.

    Programs find their libraries relative to themselves, so ``beside`` is copied along to the same relative place.
    """
    if account is None or reachable(site / folder):
        return site / folder
    copy = shared_folder() / name
    if not copy.exists():
        draft = Path(tempfile.mkdtemp(dir=shared_folder()))
        for part in (folder, beside):
            if part is not None:
                shutil.copytree(site / part, draft / part)
        draft.chmod(0o755)
        try:
            draft.rename(copy)
        except OSError:  # another start was faster
            shutil.rmtree(draft)
    return copy / folder
