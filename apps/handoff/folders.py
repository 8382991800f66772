"""Moves within folders that several processes use at once: nothing is overwritten, nothing is seen half."""

import fcntl
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from apps.handoff.errors import Refused, Unreadable
from apps.handoff.items import MAX_BYTES, moment_text, stamp

_TEMPORARY: Final = ".tmp"
_ABANDONED: Final = timedelta(hours=1)
_TRIES: Final = 1000
_LONGEST_NAME: Final = 150
_CLAIM: Final = re.compile(r"[0-9]{13,}-[0-9a-f]{12}~")
_FRESH: Final = re.compile(r"[0-9]{13,}-[0-9a-f]{12}-")


def make(folder: Path) -> None:
    """Have a folder that git does not see.

    :raises Refused: if a link or a file stands in its place.
    """
    if not stands(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError), (folder / ".gitignore").open("x") as ignoring:
        ignoring.write("*\n")


def stands(folder: Path) -> bool:
    """Whether a folder is there.

    :raises Refused: if a link or a file stands in its place.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise Refused(f"{folder} is not a folder of its own.")
    return folder.is_dir()


def write_new(folder: Path, name: Callable[[], str], data: bytes) -> Path:
    """Write a file that is there as a whole or not at all, under the first of the names that is free."""
    temporary = folder / f".{os.urandom(8).hex()}{_TEMPORARY}"
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        for _ in range(_TRIES):
            path = folder / name()
            with suppress(FileExistsError):
                os.link(temporary, path)
                # The folder may have been moved since, and the file with it.
                with suppress(FileNotFoundError):
                    _sync(folder)
                return path
        raise Refused(f"{folder} has no free name.")
    finally:
        temporary.unlink(missing_ok=True)


def read(path: Path, *, most: int = MAX_BYTES + 1) -> bytes:
    """A plain file's bytes, one more than an item may have at most, unless more are asked for; -1: all.

    :raises Unreadable: if it is no plain file, or can't be read.
    :raises FileNotFoundError: if it is gone.
    """
    try:
        # Neither follows a link nor waits for the writer of a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as exc:
        raise Unreadable("is a link" if path.is_symlink() else f"can't be read: {exc.strerror}") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Unreadable("is no plain file")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(most)
    finally:
        os.close(descriptor)


def move(source: Path, target: Path) -> bool:
    """Whether the file was there to be moved; of several who move it, one is told so.

    The caller has chosen a target that nobody else can choose.
    """
    try:
        source.rename(target)
    except FileNotFoundError:
        return False
    return True


def waiting(folder: Path) -> list[Path]:
    """What lies in a folder to be read, by name."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.name.endswith(".md") and not entry.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [folder / name for name in sorted(names)]


def leftovers(folder: Path, *, now: datetime) -> list[Path]:
    """Files that a writer who died has left half written."""
    found = []
    for path in folder.glob(f".*{_TEMPORARY}"):
        with suppress(FileNotFoundError):
            if now.timestamp() - path.lstat().st_mtime > _ABANDONED.total_seconds():
                found.append(path)
    return found


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Of those who ask for the same folder, one at a time."""
    with (folder / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True, slots=True)
class Archive:
    """A folder of what is dealt with, and a ledger that says when: files keep the age of their writing, the ledger
    counts from their processing."""

    folder: Path

    def keep(self, source: Path, name: str, *, now: datetime, **said: str | None) -> bool:
        """Move a file here under a name that nobody else can choose; whether it was there to be moved."""
        make(self.folder)
        if not move(source, self.folder / name):
            return False
        # What has no line (the disk may be full) counts from when clean() sees it.
        with suppress(OSError), alone(self.folder):
            self._append([{"name": name, "processed_at": moment_text(now), **said}])
        return True

    def entries(self) -> dict[str, dict[str, Any]]:
        """What the ledger says of each name. A line that a crash has cut off says nothing."""
        found: dict[str, dict[str, Any]] = {}
        with suppress(FileNotFoundError), self._ledger.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                with suppress(ValueError, KeyError, TypeError, RecursionError):
                    entry = json.loads(line)
                    found[entry["name"]] = entry
        return found

    def clean(self, *, kept: timedelta, now: datetime, dry_run: bool) -> list[Path]:
        """Remove what was dealt with longer ago than it is kept; answers what.

        :raises Refused: if the folder is none of its own.
        """
        if not stands(self.folder):
            return []
        with alone(self.folder):
            known, paths = self.entries(), waiting(self.folder)
            # A crash came between the move and the line: its time counts from now.
            missing = [path.name for path in paths if _processed_at(known.get(path.name)) is None]
            old = [path for path in paths if (at := _processed_at(known.get(path.name))) and now - at >= kept]
            if dry_run:
                return old
            self._append([{"name": name, "processed_at": moment_text(now)} for name in missing])
            for path in old:
                path.unlink(missing_ok=True)
            if old:
                self._write(set(waiting(self.folder)))
            return old

    @property
    def _ledger(self) -> Path:
        return self.folder / ".ledger.jsonl"

    def _append(self, entries: list[dict[str, Any]]) -> None:
        if not entries:
            return
        with self._ledger.open("a+b") as ledger:
            if ledger.tell():
                ledger.seek(-1, os.SEEK_END)
                if ledger.read(1) != b"\n":
                    ledger.write(b"\n")
            ledger.write("".join(json.dumps(entry) + "\n" for entry in entries).encode())
            ledger.flush()
            os.fsync(ledger.fileno())

    def _write(self, present: set[Path]) -> None:
        """The ledger anew, of what is still here."""
        names = {path.name for path in present}
        lines = [json.dumps(entry) + "\n" for name, entry in self.entries().items() if name in names]
        temporary = self.folder / f".{os.urandom(8).hex()}{_TEMPORARY}"
        with temporary.open("x", encoding="utf-8") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._ledger)


def _processed_at(entry: dict[str, Any] | None) -> datetime | None:
    try:
        return datetime.fromisoformat(entry["processed_at"]).astimezone(UTC) if entry else None
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


@dataclass(frozen=True, slots=True)
class Claims:
    """Who is reading what: files under `.claimed/<reader>/`, each named for the moment of its claim.

    A reader holds its folder locked as long as it reads. What it had when it died, or has had for an hour, goes back.
    """

    folder: Path
    home: Path
    """Where what goes back goes to."""
    others: Path | None = None
    """Holds further folders that files are claimed from: a claim stands in a folder of the same name, and goes back."""

    @contextmanager
    def reader(self, name: str) -> Iterator["Reader"]:
        folder = self.folder / name
        stands(self.folder)
        while True:
            folder.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                if _stands_at(descriptor, folder):
                    break
                os.close(descriptor)
        try:
            yield Reader(folder, self.home, self.others)
        finally:
            # Unless another of the same name is reading, or something is left in it.
            if _try_alone(descriptor):
                _remove_empty(folder)
            os.close(descriptor)

    def take_back(self, *, now: datetime) -> list[str]:
        """Put back what nobody is reading any more; answers its names.

        :raises Refused: if the folder is none of its own.
        """
        back: list[str] = []
        if stands(self.folder):
            for folder in _within(self.folder):
                back += self._take_back(folder, now)
        return back

    def _take_back(self, folder: Path, now: datetime) -> list[str]:
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return []
        try:
            alone = _try_alone(descriptor)
            reader = Reader(folder, self.home, self.others)
            back = [
                name
                for place in (folder, *_within(folder))
                for path in waiting(place)
                if (alone or _is_stale(path, now)) and (name := reader.give_back(path))
            ]
            if alone:
                _remove_empty(folder)
            return back
        finally:
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Reader:
    """One reader's folder of claims, held."""

    folder: Path
    home: Path
    others: Path | None

    def claim(self, path: Path, *, now: datetime) -> Path | None:
        """Take a file away from its folder; None if another was faster. Of the claims of one file one succeeds."""
        folder = self.folder
        if path.parent.parent == self.others:
            folder = self.folder / path.parent.name
            folder.mkdir(exist_ok=True)
        claimed = folder / f"{stamp(now)}~{short(path.name)}"
        return claimed if move(path, claimed) else None

    def give_back(self, claimed: Path) -> str | None:
        """Put a claim back to where it was, and others find it; its name there."""
        home, name = self._home_of(claimed), own_name(claimed)
        if not _is_fresh(name):
            # Another file may have its name by now.
            try:
                if not _is_same(claimed, home / name):
                    os.link(claimed, home / name, follow_symlinks=False)
                claimed.unlink()
            except FileNotFoundError:
                return None
            except OSError:
                name = lasting_name(claimed)
            else:
                return name
        return name if move(claimed, home / name) else None

    def _home_of(self, claimed: Path) -> Path:
        if self.others is None or claimed.parent == self.folder:
            return self.home
        home = self.others / claimed.parent.name
        home.mkdir(parents=True, exist_ok=True)
        return home


def own_name(path: Path) -> str:
    """A file's name without what a claim puts before it."""
    claim = _CLAIM.match(path.name)
    return path.name[claim.end() :] if claim else path.name


def lasting_name(claimed: Path) -> str:
    """A claimed file's own name where it is one that no other file has, else one made of it that none has."""
    name = own_name(claimed)
    return name if _is_fresh(name) else claimed.name.replace("~", "-", 1)


def _is_fresh(name: str) -> bool:
    """Whether a name is made of a moment and chance (items.stamp)."""
    return _FRESH.match(name) is not None


def short(name: str) -> str:
    """A name that leaves room for what is put before it."""
    return name if len(os.fsencode(name)) <= _LONGEST_NAME else f"{os.urandom(8).hex()}.md"


def _is_stale(claimed: Path, now: datetime) -> bool:
    moment = claimed.name.partition("-")[0]
    return not moment.isdigit() or now.timestamp() - int(moment) / 1000 >= _ABANDONED.total_seconds()


def _is_same(claimed: Path, there: Path) -> bool:
    """Whether a claim was put back by somebody who died before it was taken away from here."""
    try:
        return os.path.samestat(claimed.lstat(), there.lstat())
    except FileNotFoundError:
        return False


def _within(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    except FileNotFoundError:
        return []


def _remove_empty(folder: Path) -> None:
    """It stands if something else was put there."""
    with suppress(OSError):
        for inner in _within(folder):
            inner.rmdir()
        folder.rmdir()


def _try_alone(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _stands_at(descriptor: int, folder: Path) -> bool:
    """Whether a folder that was opened is still the one of this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), folder.stat())
    except FileNotFoundError:
        return False


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
