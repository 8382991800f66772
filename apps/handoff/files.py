"""The inbox and the outbox of a repository: files that several processes use at once.

The folders are found by git's own files, without running git. A file is always in exactly one place: in its box while
it waits and is read, in `processed/` or `taken/` afterwards, in `rejected/` if it is no item. Files are moved by rename
and never overwritten. A reader holds its box locked; the kernel frees the lock of one that dies, and what it had not
moved waits.
"""

import fcntl
import hashlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ClassVar, Final

from apps.handoff.items import MAX_BYTES, Item, Refused, Shown, Unreadable, choose, fresh_name, stamp

_HOME: Final = "handoff"
_IN_TREE: Final = "in-tree"
_SECTION: Final = re.compile(r'\s*\[\s*(?P<name>[^\s"\]]+)\s*(?:"(?P<sub>.*)")?\s*\]')
_SCP: Final = re.compile(r"(?:[^@/]+@)?(?P<host>[^:/]+):(?P<path>.+)")
_URL: Final = re.compile(r"[A-Za-z0-9+.-]+://(?:[^/@]*@)?(?P<host>[^/:]*)(?::\d*)?(?P<path>/.*)")
_NOT_IN_SLUGS: Final = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A git repository: all its worktrees share `common`; `top` is the main worktree, where there is one."""

    top: Path
    common: Path
    id: str
    """Its name for other repositories: a readable name, and a digest of its origin."""

    @property
    def home(self) -> Path:
        """Holds `inbox`, `outbox` and `shared-inbox`: git's own folder, or the main worktree on request."""
        return self.top if self.mark_of_in_tree.is_file() else self.common / _HOME

    @property
    def mark_of_in_tree(self) -> Path:
        """Says that the folders are in the main worktree. It is in git's own folder, so no clone has it."""
        return self.common / _HOME / _IN_TREE

    def place(self, *, in_tree: bool) -> Path:
        """Choose where the folders are; returns their new home. Nothing is moved.

        :raises Refused: if something waits in the old folders, or the new ones hold other files.
        """
        if in_tree and self.common.name != ".git":
            raise Refused("This repository has no main worktree to put folders into.")
        new = self.top if in_tree else self.common / _HOME
        if new == self.home:
            return new
        boxes = ("inbox", "outbox", "shared-inbox")
        done = {"processed", "taken", "rejected"}
        waiting = [path for box in boxes for path in (self.home / box).rglob("*.md") if done.isdisjoint(path.parts)]
        if waiting:
            raise Refused(f"{self.home} holds items and reports that wait: inherit and take them first.")
        for path in (path for box in boxes for path in [new / box, *(new / box).rglob("*")]):
            if path.is_symlink() or (path.is_file() and path.suffix != ".md" and not path.name.startswith(".")):
                raise Refused(f"{path} is no file of handoffs.")
        self.mark_of_in_tree.parent.mkdir(exist_ok=True)
        self.mark_of_in_tree.touch() if in_tree else self.mark_of_in_tree.unlink()
        return new


def repository_of(root: Path) -> Repository:
    """The repository that a folder belongs to.

    :raises Refused: if it belongs to none, or to one that can't be read.
    """
    try:
        return _found_from(root.resolve(strict=True))
    except OSError as exc:
        raise Refused(f"{exc.filename or root}: {exc.strerror or exc}.") from None
    except (RuntimeError, ValueError) as exc:
        # Links that lead to themselves, and paths in git's files that are none.
        raise Refused(f"{root}: {exc}.") from None


def _found_from(start: Path) -> Repository:
    for folder in (start, *start.parents):
        if (git := _git_folder(folder)) is not None:
            common = _common(git)
            top = common.parent if common.name == ".git" else folder
            return Repository(top=top, common=common, id=_id(common, top))
    raise Refused(f"{start} is in no git repository.")


def _git_folder(folder: Path) -> Path | None:
    link = folder / ".git"
    if link.is_dir() and (link / "HEAD").is_file():
        return link.resolve()
    if link.is_file():
        text = link.read_text(encoding="utf-8", errors="surrogateescape").strip()
        if text.startswith("gitdir:"):
            target = (folder / text.removeprefix("gitdir:").strip()).resolve()
            return target if target.is_dir() else None
    bare = all((folder / part).exists() for part in ("HEAD", "objects", "refs"))
    return folder if bare else None


def _common(git: Path) -> Path:
    link = git / "commondir"
    if not link.is_file():
        return git
    return (git / link.read_text(encoding="utf-8", errors="surrogateescape").strip()).resolve()


def _id(common: Path, top: Path) -> str:
    origin = _origin(common / "config")
    place = _canonical(origin) if origin else str(common)
    name = place.rsplit("/", 1)[-1] if origin else top.name
    slug = _NOT_IN_SLUGS.sub("-", name).strip("-.")[:40] or "repository"
    return f"{slug}-{hashlib.sha256(place.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}"


def _origin(config: Path) -> str | None:
    """The URL of the remote `origin`, as git's configuration has it."""
    try:
        lines = config.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    inside = False
    for line in lines:
        if section := _SECTION.match(line):
            inside = section["name"].lower() == "remote" and section["sub"] == "origin"
        elif inside and line.partition("=")[0].strip().lower() == "url":
            return line.partition("=")[2].strip().strip('"') or None
    return None


def _canonical(url: str) -> str:
    """The same text for all URLs of one repository: without scheme, user, password and `.git`."""
    found = _URL.fullmatch(url) or _SCP.fullmatch(url)
    place = f"{found['host'].lower()}/{found['path'].strip('/')}" if found else url.rstrip("/")
    return place.removesuffix("/.git").removesuffix(".git").lstrip("/")


# Boxes.

KEPT: Final = timedelta(days=30)
_ABANDONED: Final = timedelta(hours=1)
# Longer than a reader takes that sends an item to a server.
_PATIENCE: Final = timedelta(seconds=20)
_PAUSE_SECONDS: Final = 0.1
_TEMPORARY: Final = ".tmp"
_TRIES: Final = 1000
_LONGEST_NAME: Final = 150
_FROM: Final = "from-"
_FRESH: Final = re.compile(r"[0-9]{13,}-[0-9a-f]{12}-")
_REPORT: Final = re.compile(r"[a-z][a-z0-9-]{0,49}")


def make(folder: Path) -> None:
    """Create a folder that git ignores.

    :raises Refused: if a link or a file is in its place.
    """
    if not is_folder(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError), (folder / ".gitignore").open("x") as ignoring:
        ignoring.write("*\n")


def is_folder(folder: Path) -> bool:
    """Whether a folder exists.

    :raises Refused: if a link or a file is in its place.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise Refused(f"{folder} is not a folder of its own.")
    return folder.is_dir()


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def write_new(folder: Path, name: Callable[[], str], data: bytes) -> Path:
    """Write a file, whole or not at all, under the first of the names that is free."""
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
                with _opened(folder) as descriptor:
                    os.fsync(descriptor)
                return path
        raise Refused(f"{folder} has no free name.")
    finally:
        temporary.unlink(missing_ok=True)


def read(path: Path, *, most: int = MAX_BYTES + 1) -> bytes:
    """The bytes of a plain file, at most one more than an item may have; -1: all.

    :raises Unreadable: if it is no plain file, or can't be read.
    :raises FileNotFoundError: if it is gone.
    """
    try:
        # Follows no link, and does not wait for the writer of a pipe.
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


def waiting(folder: Path) -> list[Path]:
    """The files of a folder, by name."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.name.endswith(".md") and not entry.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [folder / name for name in sorted(names)]


def _move(source: Path, target: Path) -> bool:
    """Move a file to a name that nobody else can choose; False if it is gone."""
    try:
        source.rename(target)
    except FileNotFoundError:
        return False
    return True


def _short(name: str) -> str:
    """A name that leaves room for a prefix."""
    return name if len(os.fsencode(name)) <= _LONGEST_NAME else f"{os.urandom(8).hex()}.md"


def _unique_name(path: Path, *, now: datetime) -> str:
    """The file's own name if no other file can have it, else one made of it."""
    return path.name if _FRESH.match(path.name) else f"{stamp(now)}-{_short(path.name)}"


def _within(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    except FileNotFoundError:
        return []


def _remove_old(paths: Iterable[Path], *, older: timedelta, now: datetime, dry_run: bool) -> list[Path]:
    """Remove the files whose time of modification is so long ago; returns them."""
    old = []
    for path in paths:
        with suppress(FileNotFoundError):
            if now.timestamp() - path.lstat().st_mtime >= older.total_seconds():
                old.append(path)
                if not dry_run:
                    path.unlink()
    return old


def archive(source: Path, folder: Path, *, now: datetime, name: str | None = None) -> None:
    """Move a file that was shown or taken to a folder, unless it is gone. Retention counts from this moment."""
    make(folder)
    with suppress(FileNotFoundError):
        os.utime(source, (now.timestamp(), now.timestamp()), follow_symlinks=False)
    _move(source, folder / (name or _unique_name(source, now=now)))


def _lock(descriptor: int) -> bool:
    """Whether nobody else has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Box:
    """A folder of files that are each given to one reader."""

    repository: Repository
    name: ClassVar[str]
    name_of_past: ClassVar[str]

    @property
    def folder(self) -> Path:
        return self.repository.home / self.name

    @property
    def past(self) -> Path:
        """Keeps what was given to a reader."""
        return self.folder / self.name_of_past

    @property
    def shared(self) -> Path:
        """Holds the items of other repositories."""
        return self.repository.home / "shared-inbox"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let nobody else read the box meanwhile.

        :raises Refused: if another reader has it for too long, or a link is in a folder's place.
        """
        make(self.folder)
        make(self.past)
        until = time.monotonic() + _PATIENCE.total_seconds()
        descriptor = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            while not _lock(descriptor):
                if time.monotonic() > until:
                    raise Refused(f"Another session is reading {self.folder}. Try again.")
                time.sleep(_PAUSE_SECONDS)
            yield
        finally:
            os.close(descriptor)

    def clean(self, *, kept: timedelta, now: datetime, dry_run: bool) -> list[Path]:
        """Remove what was archived longer ago than it is kept, and half-written files; returns it.

        :raises Refused: if a folder is a link.
        """
        is_folder(self.folder)
        halves = [path for folder in self.folders() for path in folder.glob(f".*{_TEMPORARY}")]
        removed = _remove_old(halves, older=_ABANDONED, now=now, dry_run=dry_run)
        given = waiting(self.past) if is_folder(self.past) else []
        return [*_remove_old(given, older=kept, now=now, dry_run=dry_run), *removed]

    def folders(self) -> list[Path]:
        """The folders in which files wait; none that is a link."""
        return [] if self.folder.is_symlink() else [self.folder]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found(Shown):
    """An item and its file."""

    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A file that is no item, and why."""

    name: str
    reason: str


@dataclass(slots=True, kw_only=True)
class Inheritance:
    """What a session is shown, and what goes on waiting."""

    shown: list[Found]
    waiting: list[Found]
    rejected: list[Rejected]


def _chosen(found: list[Found], rejected: list[Rejected], max_tokens: int) -> Inheritance:
    shown, left = choose(found, max_tokens=max_tokens)
    return Inheritance(shown=shown, waiting=left, rejected=rejected)


@dataclass(frozen=True, slots=True)
class Inbox(Box):
    """The items of one repository, shared by all its worktrees."""

    name: ClassVar[str] = "inbox"
    name_of_past: ClassVar[str] = "processed"

    def folders(self) -> list[Path]:
        """The inbox, and the folders of other repositories' items; none that is a link."""
        shared = [] if self.shared.is_symlink() else _within(self.shared)
        own = [] if self.folder.is_symlink() else [self.folder]
        return [*own, *(folder for folder in shared if folder.name.startswith(_FROM))]

    def leave(self, item: Item, *, now: datetime, sender: Repository | None = None) -> Path:
        """Write an item for the next session.

        :param sender: the repository that it comes from, if it is another one.
        :raises Unreadable: if the item could not be read again.
        """
        folder = self.folder
        if sender is not None:
            make(self.shared)
            folder, item = self.shared / f"{_FROM}{sender.id}", replace(item, project=sender.id)
        data = item.to_bytes()
        Item.from_bytes(data)
        make(folder)
        return write_new(folder, lambda: fresh_name(item.kind, now=now), data)

    def peek(self, *, max_tokens: int) -> Inheritance:
        """What a session would be shown now; takes nothing."""
        found, bad = self._look()
        rejected = [Rejected(name=path.name, reason=reason) for path, reason in bad]
        return _chosen(found, rejected, max_tokens)

    @contextmanager
    def inherit(self, *, max_tokens: int, now: datetime) -> Iterator[Inheritance]:
        """The items that a session is to be shown, and no other meanwhile.

        They count as shown at the end of the block; after an error they wait. Files that are no items are put aside first.

        :raises Refused: if another session reads the inbox for too long.
        """
        with self.locked():
            found, bad = self._look()
            rejected = [one for path, reason in bad if (one := self._reject(path, reason, now))]
            chosen = _chosen(found, rejected, max_tokens)
            yield chosen
            for shown in chosen.shown:
                archive(shown.path, self.past, now=now)

    def waiting(self) -> list[Found]:
        """All items, in the order in which they would be shown."""
        return self._look()[0]

    def rejected(self) -> list[Rejected]:
        """The files that were put aside, by their names there."""
        found = []
        for path in waiting(self.folder / "rejected"):
            reason = "its reason is gone"
            with suppress(FileNotFoundError):
                reason = path.with_name(f"{path.name}.reason.txt").read_text(encoding="utf-8").strip()
            found.append(Rejected(name=path.name, reason=reason))
        return found

    def _look(self) -> tuple[list[Found], list[tuple[Path, str]]]:
        found: list[Found] = []
        bad: list[tuple[Path, str]] = []
        for folder in self.folders():
            for path in waiting(folder):
                try:
                    item = Item.from_bytes(read(path))
                except FileNotFoundError:
                    continue
                except Unreadable as exc:
                    bad.append((path, str(exc)))
                    continue
                if folder != self.folder:
                    item = replace(item, project=folder.name.removeprefix(_FROM))
                found.append(
                    Found(path=path, name=path.name, item=item, text=item.shown(in_project=self.repository.id))
                )
        found.sort(key=lambda one: one.order)
        return found, bad

    def _reject(self, path: Path, reason: str, now: datetime) -> Rejected | None:
        """Put a file aside with its reason; None if another process did."""
        folder = self.folder / "rejected"
        make(folder)
        shown = os.fsencode(path.name).decode("utf-8", "replace")
        name = f"{stamp(now)}-{_short(path.name)}"
        note = write_new(folder, lambda: f"{name}.reason.txt", f"{shown} {reason}.\n".encode())
        if not _move(path, folder / name):
            note.unlink()
            return None
        return Rejected(name=shown, reason=reason)


@dataclass(frozen=True, slots=True)
class Outbox(Box):
    """The reports of one repository for others. No session is shown them."""

    name: ClassVar[str] = "outbox"
    name_of_past: ClassVar[str] = "taken"

    def put(self, *, report_type: str, session: str, topic: str, body: str, now: datetime) -> Path:
        """Write a report with its heading, under a name by its type and time.

        :raises Refused: if the type can't name a file, the topic is no text, or the report is empty or too large.
        """
        if not _REPORT.fullmatch(report_type):
            raise Refused(f"{report_type[:60]!r} can't name a type: lower case letters, digits and -, at most 50.")
        if not body.strip():
            raise Refused("There is nothing to report.")
        kind = report_type.replace("-", " ").title()
        moment = now.astimezone(UTC)
        try:
            data = f"# {kind}: {topic}\n\n**Session:** {session}\n**Date:** {moment.date()}\n\n{body}".encode()
        except UnicodeEncodeError:
            raise Refused("The topic is not UTF-8.") from None
        if len(data) > MAX_BYTES:
            raise Refused(f"The report is over {MAX_BYTES // 1024} KiB.")
        make(self.folder)
        # By type and time; the next millisecond, where that is taken.
        moments = (moment + timedelta(milliseconds=number) for number in range(_TRIES))
        names = (f"{report_type}-{one:%Y%m%dT%H%M%S}.{one.microsecond // 1000:03d}Z.md" for one in moments)
        return write_new(self.folder, lambda: next(names), data)

    def waiting(self) -> list[Path]:
        return waiting(self.folder)

    @contextmanager
    def take(self, name: str | None, *, now: datetime) -> Iterator[bytes | None]:
        """The first report by name, or the one of this name; None if there is none.

        It counts as taken at the end of the block; after an error it waits. A file that can't be read stays.

        :raises Refused: if the named report is not there, or is no plain file, or another session takes one for too long.
        """
        with self.locked():
            for path in self.waiting():
                if name not in {None, path.name}:
                    continue
                try:
                    report = read(path, most=-1)
                except Unreadable as exc:
                    if name is not None:
                        raise Refused(f"{name} {exc}.") from None
                    continue
                yield report
                archive(path, self.past, now=now)
                return
            if name is not None:
                raise Refused(f"The outbox has no {name}.")
            yield None


def clean(repository: Repository, *, kept: timedelta, now: datetime, dry_run: bool = False) -> list[str]:
    """Remove what was shown or taken longer ago than it is kept; returns the names within the repository's home."""
    boxes = (Inbox(repository), Outbox(repository))
    gone = [path for box in boxes for path in box.clean(kept=kept, now=now, dry_run=dry_run)]
    return [str(path.relative_to(repository.home)) for path in gone]
