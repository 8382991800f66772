"""The inbox of a repository: items that wait, are claimed, shown and kept.

A file is always in exactly one place: `inbox/` while it waits, `.claimed/<session>/` while it is read, `processed/`
when it has been shown, `rejected/` with a reason when it is no item.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from apps.handoff import folders, tokens
from apps.handoff.budget import choose
from apps.handoff.errors import Refused, Unreadable
from apps.handoff.folders import Archive, Claims, Reader
from apps.handoff.items import Item, fresh_name, stamp
from apps.handoff.places import Repository

KEPT: Final = timedelta(days=30)
_FROM: Final = "from-"
_MOVES: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """An item and the file that it stands in."""

    path: Path
    item: Item
    text: str
    """What a reader is shown of it."""

    @property
    def cost(self) -> int:
        return tokens.estimate(self.text)

    @property
    def name(self) -> str:
        """Of the file, as it is while it waits."""
        return folders.own_name(self.path)

    @property
    def order(self) -> tuple[int, datetime, str]:
        return (*self.item.turn, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A file that is no item, and why."""

    name: str
    reason: str


@dataclass(slots=True, kw_only=True)
class Inheritance:
    """What a session is shown, and what goes on waiting."""

    shown: list[Found] = field(default_factory=list)
    waiting: list[Found] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Inbox:
    """The items of one repository, in whatever worktree one is."""

    repository: Repository

    @property
    def folder(self) -> Path:
        return self.repository.home / "inbox"

    @property
    def processed(self) -> Archive:
        return Archive(self.folder / "processed")

    @property
    def claims(self) -> Claims:
        return Claims(self.folder / ".claimed", self.folder, self._shared)

    @property
    def _shared(self) -> Path:
        return self.repository.home / "shared-inbox"

    def leave(self, item: Item, *, now: datetime) -> Path:
        """Write an item for the next session.

        :raises Unreadable: if the item could not be read again.
        """
        return _write(lambda: self.folder, item, now)

    def leave_from(self, sender: Repository, item: Item, *, now: datetime) -> Path:
        """Write an item that comes from another repository."""

        def folder() -> Path:
            folders.make(self._shared)
            return self._shared / f"{_FROM}{sender.id}"

        return _write(folder, replace(item, project=sender.id), now)

    def peek(self, *, max_tokens: int) -> Inheritance:
        """What a session would be shown now; changes nothing, and nothing is taken."""
        found, bad = self._look()
        chosen = Inheritance(rejected=[Rejected(name=path.name, reason=reason) for path, reason in bad])
        chosen.shown, chosen.waiting = choose(found, max_tokens=max_tokens, claim=lambda one: one)
        return chosen

    @contextmanager
    def inherit(self, session: str, *, max_tokens: int, now: datetime) -> Iterator[Inheritance]:
        """Claim what a session is to be shown; on the way out it counts as shown, after an error it waits again.

        Most urgent first, then oldest, until the next one does not fit any more; cautions come in any case, and
        something always comes. What is no item is put aside first.
        """
        with self.taking(session, now=now) as (reader, taken):
            found, bad = self._look()
            taken.rejected = [one for path, reason in bad if (one := self._reject(path, reason, now))]
            taken.shown, taken.waiting = choose(
                found, max_tokens=max_tokens, claim=lambda one: _claimed(reader, one, now)
            )
            yield taken

    @contextmanager
    def taking(self, session: str, *, now: datetime) -> Iterator[tuple[Reader, Inheritance]]:
        """What is put into `shown` is kept as processed on the way out, and goes back after an error."""
        taken = Inheritance()
        folders.make(self.folder)
        folders.make(self.processed.folder)
        self.claims.take_back(now=now)
        with self.claims.reader(session) as reader:
            try:
                yield reader, taken
            except BaseException:
                for one in taken.shown:
                    reader.give_back(one.path)
                raise
            for one in taken.shown:
                self.processed.keep(
                    one.path,
                    folders.lasting_name(one.path),
                    now=now,
                    session=session,
                    receipt_id=one.item.receipt_id,
                )

    def waiting(self) -> list[Found]:
        """All items, in the order in which they would be shown."""
        return self._look()[0]

    def rejected(self) -> list[Rejected]:
        """What was put aside, by its name there."""
        return [Rejected(name=path.name, reason=_reason(path)) for path in folders.waiting(self.folder / "rejected")]

    def clean(self, *, kept: timedelta, now: datetime, dry_run: bool) -> list[Path]:
        """Remove what was shown longer ago than it is kept, and what writers who died have left; answers what.

        :raises Refused: if a folder is a link, which nothing is removed behind.
        """
        folders.stands(self.folder)
        halves = [path for folder in self._folders() for path in folders.leftovers(folder, now=now)]
        if not dry_run:
            for path in halves:
                path.unlink(missing_ok=True)
            self.claims.take_back(now=now)
        return [*self.processed.clean(kept=kept, now=now, dry_run=dry_run), *halves]

    def _folders(self) -> list[Path]:
        """The inbox, and those of other repositories' items; none that is a link."""
        own = [] if self.folder.is_symlink() else [self.folder]
        if self._shared.is_symlink():
            return own
        try:
            with os.scandir(self._shared) as entries:
                shared = [
                    Path(one.path)
                    for one in entries
                    if one.name.startswith(_FROM) and one.is_dir(follow_symlinks=False)
                ]
        except FileNotFoundError:
            shared = []
        return [*own, *sorted(shared)]

    def _look(self) -> tuple[list[Found], list[tuple[Path, str]]]:
        found: list[Found] = []
        bad: list[tuple[Path, str]] = []
        for folder in self._folders():
            for path in folders.waiting(folder):
                try:
                    item = Item.from_bytes(folders.read(path))
                except FileNotFoundError:
                    continue
                except Unreadable as exc:
                    bad.append((path, str(exc)))
                    continue
                if folder != self.folder:
                    item = replace(item, project=folder.name.removeprefix(_FROM))
                found.append(Found(path=path, item=item, text=item.shown(in_project=self.repository.id)))
        found.sort(key=lambda one: one.order)
        return found, bad

    def _reject(self, path: Path, reason: str, now: datetime) -> Rejected | None:
        """Put a file aside, with why; None if another has done so."""
        folder = self.folder / "rejected"
        folders.make(folder)
        shown = os.fsencode(path.name).decode("utf-8", "replace")
        name = f"{stamp(now)}-{folders.short(path.name)}"
        said = folders.write_new(folder, lambda: f"{name}.reason.txt", f"{shown} {reason}.\n".encode())
        if not folders.move(path, folder / name):
            said.unlink()
            return None
        return Rejected(name=shown, reason=reason)


def _reason(path: Path) -> str:
    try:
        return path.with_name(f"{path.name}.reason.txt").read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return "its reason is gone"


def _write(folder: Callable[[], Path], item: Item, now: datetime) -> Path:
    data = item.to_bytes()
    Item.from_bytes(data)
    path = _written(folder, lambda: fresh_name(item.kind, now=now), data)
    # Somebody may have moved the folders meanwhile, and with them this file, or not.
    if path.parent != folder():
        folders.make(folder())
        folders.move(path, folder() / path.name)
    return folder() / path.name


def _written(folder: Callable[[], Path], name: Callable[[], str], data: bytes) -> Path:
    """A folder that is moved away before the file is there is asked for again."""
    for _ in range(_MOVES):
        with suppress(FileNotFoundError):
            folders.make(folder())
            return folders.write_new(folder(), name, data)
    raise Refused(f"{folder()} is being moved.")


def _claimed(reader: Reader, found: Found, now: datetime) -> Found | None:
    path = reader.claim(found.path, now=now)
    return replace(found, path=path) if path else None
