"""The outbox of a repository: what sessions write for others, who take it. No session is shown it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from apps.handoff import folders
from apps.handoff.errors import Refused, Unreadable
from apps.handoff.folders import Archive, Claims, Reader
from apps.handoff.items import MAX_BYTES
from apps.handoff.places import Repository

_TYPE: Final = re.compile(r"[a-z][a-z0-9-]{0,49}")


@dataclass(frozen=True, slots=True)
class Outbox:
    """The reports of one repository."""

    repository: Repository

    @property
    def folder(self) -> Path:
        return self.repository.home / "outbox"

    @property
    def taken(self) -> Archive:
        return Archive(self.folder / "taken")

    @property
    def claims(self) -> Claims:
        return Claims(self.folder / ".claimed", self.folder)

    def put(self, *, report_type: str, session: str, topic: str, body: str, now: datetime) -> Path:
        """Write a report with its heading, under a name by its type and moment.

        :raises Refused: if the type can't name a file, the topic is no text, or the report is empty or too large.
        """
        if not _TYPE.fullmatch(report_type):
            raise Refused(f"{report_type[:60]!r} can't name a type: lower case letters, digits and -, at most 50.")
        if not body.strip():
            raise Refused("There is nothing to report.")
        kind = report_type.replace("-", " ").title()
        day = now.astimezone(UTC).date().isoformat()
        try:
            data = f"# {kind}: {topic}\n\n**Session:** {session}\n**Date:** {day}\n\n{body}".encode()
        except UnicodeEncodeError:
            raise Refused("The topic is not UTF-8.") from None
        if len(data) > MAX_BYTES:
            raise Refused(f"The report is over {MAX_BYTES // 1024} KiB.")
        folders.make(self.folder)
        names = _names(report_type, now)
        return folders.write_new(self.folder, lambda: next(names), data)

    def waiting(self) -> list[Path]:
        return folders.waiting(self.folder)

    @contextmanager
    def take(self, name: str | None, *, consumer: str, now: datetime) -> Iterator[bytes | None]:
        """Claim one report, the first by name where none is named: None if there is none to be had.

        On the way out it counts as taken; after an error it waits again. A file that can't be read stays.

        :raises Refused: if a report that is named is not there, or is no plain file.
        """
        folders.make(self.folder)
        self.claims.take_back(now=now)
        with self.claims.reader(consumer) as reader:
            got = self._claim(reader, name, now)
            if got is None:
                yield None
                return
            claimed, report = got
            try:
                yield report
            except BaseException:
                reader.give_back(claimed)
                raise
            self.taken.keep(claimed, folders.lasting_name(claimed), now=now, consumer=consumer)

    def _claim(self, reader: Reader, name: str | None, now: datetime) -> tuple[Path, bytes] | None:
        for path in self.waiting():
            if name in {None, path.name} and (claimed := reader.claim(path, now=now)) is not None:
                try:
                    return claimed, folders.read(claimed, most=-1)
                except Unreadable as exc:
                    reader.give_back(claimed)
                    if name is not None:
                        raise Refused(f"{name} {exc}.") from None
        if name is not None:
            raise Refused(f"The outbox has no {name}.")
        return None

    def clean(self, *, kept: timedelta, now: datetime, dry_run: bool) -> list[Path]:
        """Remove what was taken longer ago than it is kept; answers what.

        :raises Refused: if a folder is a link, which nothing is removed behind.
        """
        folders.stands(self.folder)
        halves = folders.leftovers(self.folder, now=now)
        if not dry_run:
            for path in halves:
                path.unlink(missing_ok=True)
            self.claims.take_back(now=now)
        return [*self.taken.clean(kept=kept, now=now, dry_run=dry_run), *halves]


def _names(report_type: str, now: datetime) -> Iterator[str]:
    """By type and moment; the moment after, where that is taken."""
    moment = now.astimezone(UTC)
    while True:
        yield f"{report_type}-{moment:%Y%m%dT%H%M%S}.{moment.microsecond // 1000:03d}Z.md"
        moment += timedelta(milliseconds=1)
