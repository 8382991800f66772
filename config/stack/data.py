"""The data folder of a stack: what lies in it, and who may read it."""

import hashlib
import json
import os
import secrets
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from config.stack.places import lock, write_private
from config.stack.processes import StackError


@dataclass(frozen=True, slots=True)
class DataFolder:
    """A folder that belongs to one stack. All that is secret in it is readable by its owner alone."""

    path: Path

    @property
    def mark(self) -> str:
        """By what the processes of this folder's stack are known. A copy of the folder has another path and another mark."""
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
        """The private key by which the bundled workers sign their manifests."""
        return self.path / "worker-key"

    def last_port(self) -> int | None:
        """The web port of the last start here: addresses that people noted stay good."""
        try:
            return int(self._port_file.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None

    def keep_port(self, port: int) -> None:
        self._port_file.write_text(f"{port}\n", encoding="utf-8")

    @property
    def _port_file(self) -> Path:
        return self.path / "port"

    def log(self, name: str) -> Path:
        return self.path / "log" / f"{name}.log"

    def metrics_folder(self) -> Path:
        """A folder, empty now, in which the processes of one start keep their counters."""
        folder = self.path / "metrics"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def create(self) -> None:
        """
        :raises StackError: if there is something else in its place.
        """
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
        """The secrets of this folder; those that it lacks are made."""
        path = self.path / "secrets.json"
        kept = _read(path)
        if missing := [name for name in _MADE if name not in kept]:
            kept |= {name: secrets.token_urlsafe(48) for name in missing}
            write_private(path, json.dumps(kept, indent=2))
        return Secrets(path, **{name: kept[name] for name in kept if name in _KEPT})

    def erase(self) -> None:
        """Remove what a stack puts here, and the folder if nothing else is in it."""
        pointer = self.path / "servers-home"
        if pointer.is_file():
            shutil.rmtree(pointer.read_text(encoding="utf-8"), ignore_errors=True)
        for name in _CONTENT:
            entry = self.path / name
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink(missing_ok=True)
        if not any(self.path.iterdir()):
            self.path.rmdir()


_CONTENT = (
    *("postgres", "postgres.new", "valkey", "servers-home"),
    *("secrets.json", "stack.json", "admin-password", "api-token", "worker-key", "port", "lock"),
    *("log", "metrics", "files", "artifacts", "static"),
)


_MADE = ("secret_key", "lease_keys", "sealing_keys")
_KEPT = (*_MADE, "tokens", "password_shown")


@dataclass(slots=True)
class Secrets:
    """What only this stack knows: its keys, and the tokens it issued, by database."""

    path: Path
    secret_key: str
    lease_keys: str
    sealing_keys: str
    tokens: dict[str, dict[str, str]] = field(default_factory=dict)
    password_shown: bool = False

    def save(self) -> None:
        kept = {name: getattr(self, name) for name in _KEPT}
        write_private(self.path, json.dumps(kept, indent=2))


def _read(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return content
