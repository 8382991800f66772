"""Envelopes that this process has made, as JSON, until they would say something else.

An entry counts for the revisions that it was made at and no others, so that it is never stale: who reads asks the
database for the present ones first. An entry is gone a quarter of an hour after it was made, asked for or not.
"""

import os
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from apps.memory.envelopes import CACHE_TTL

_MOST_BYTES: Final = 32 * 1024 * 1024
_LASTS: Final = CACHE_TTL.total_seconds()
# So often what has come meanwhile is looked at while others come.
_ROUNDS: Final = 8


class Key(NamedTuple):
    """Whose envelope, for whom."""

    tenant_id: int
    subject_id: str
    viewer_id: int
    """A principal's key: names pass from one to another."""
    variant: str


class Stamp(NamedTuple):
    """What an envelope was made from: the subject's row, its revision and that of the tenant's policy."""

    subject_pk: int
    rev: int
    policy_rev: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    stamp: Stamp
    made_at: datetime
    until: datetime
    expires: float
    """On the monotonic clock."""
    text: str

    @property
    def size(self) -> int:
        """In memory, where one wide sign makes all of a text wide."""
        return sys.getsizeof(self.text)


class Envelopes:
    """A cache of one process; the oldest go when there are many."""

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """As if nothing had been made yet, and nobody were at it."""
        self._lock = threading.Lock()
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        self._bytes = 0
        self._sweeper: threading.Timer | None = None

    def get(self, key: Key, stamp: Stamp, *, now: datetime) -> str | None:
        """The envelope, if it was made at these revisions and says the same at this moment."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            if entry.stamp != stamp or now >= entry.until:
                self._drop(key)
                return None
            return entry.text if entry.made_at <= now else None

    def put(self, key: Key, stamp: Stamp, text: str, *, made_at: datetime, until: datetime) -> None:
        """Keep an envelope. Only what was read from committed rows may come here."""
        with self._lock:
            self._drop(key)
            entry = _Entry(stamp=stamp, made_at=made_at, until=until, expires=time.monotonic() + _LASTS, text=text)
            self._entries[key] = entry
            self._bytes += entry.size
            while self._bytes > _MOST_BYTES:
                self._drop(next(iter(self._entries)))
            self._sweep_later()

    def forget(self, tenant_id: int, subject_id: str) -> None:
        """Drop every envelope of a subject."""
        with self._lock:
            for key in [key for key in self._entries if key[:2] == (tenant_id, subject_id)]:
                self._drop(key)

    def count(self, tenant_id: int, holds: Callable[[str], bool]) -> int:
        """Of how many envelopes of a tenant this is true; of those that there are when it is called."""
        with self._lock:
            entries = self._of(tenant_id)
        return sum(holds(entry.text) for _, entry in entries)

    def drop(self, tenant_id: int, holds: Callable[[str], bool]) -> int:
        """Drop the envelopes of a tenant of which this is true; answers how many.

        There is none when it returns but what has come since. Nobody waits while texts are looked through: those that come
        meanwhile are looked at next, and where there is no end to them, the last of them while others wait.
        """
        looked_at: dict[int, _Entry] = {}
        dropped = 0
        for _ in range(_ROUNDS):
            with self._lock:
                entries = self._unlike(looked_at, tenant_id)
            if not entries:
                return dropped
            found = [(key, entry) for key, entry in entries if holds(entry.text)]
            # As long as they are held here, no other has the number of one of them.
            looked_at |= {id(entry): entry for _, entry in entries}
            with self._lock:
                dropped += self._drop_those(found)
        with self._lock:
            return dropped + self._drop_those(
                [(key, entry) for key, entry in self._unlike(looked_at, tenant_id) if holds(entry.text)]
            )

    def _of(self, tenant_id: int) -> list[tuple[Key, _Entry]]:
        return [(key, entry) for key, entry in self._entries.items() if key.tenant_id == tenant_id]

    def _unlike(self, looked_at: Mapping[int, _Entry], tenant_id: int) -> list[tuple[Key, _Entry]]:
        return [(key, entry) for key, entry in self._of(tenant_id) if id(entry) not in looked_at]

    def _drop_those(self, found: Iterable[tuple[Key, _Entry]]) -> int:
        """Drop these unless others stand in their places by now."""
        standing = [key for key, entry in found if self._entries.get(key) is entry]
        for key in standing:
            self._drop(key)
        return len(standing)

    def _drop(self, key: Key) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= entry.size

    def _sweep_later(self) -> None:
        """What nobody asks for again must go too. Entries stand in the order in which they expire."""
        if self._entries and (self._sweeper is None or not self._sweeper.is_alive()):
            oldest = next(iter(self._entries.values()))
            self._sweeper = threading.Timer(max(0.0, oldest.expires - time.monotonic()), self._sweep)
            self._sweeper.daemon = True
            self._sweeper.start()

    def _sweep(self) -> None:
        with self._lock:
            now = time.monotonic()
            while self._entries and next(iter(self._entries.values())).expires <= now:
                self._drop(next(iter(self._entries)))
            self._sweeper = None
            self._sweep_later()


envelopes: Final = Envelopes()

# A thread of the parent may have held the lock, and its sweeper does not run here.
os.register_at_fork(after_in_child=envelopes.begin_anew)
