"""Others who act meanwhile or at the same moment, and seeing from outside that somebody waits."""

import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import anyio
import redis
from anyio.to_thread import run_sync
from django.conf import settings
from django.db import connection

from apps.digests.services import inbox_topic
from apps.principals.tenancy import Caller, acting_as


async def later(caller: Caller, action: Callable[[], Awaitable[Any]]) -> None:
    """Do something as soon as somebody waits for the caller's inbox."""
    await until_heard(inbox_topic(caller.principal_id))
    await action()


async def until_heard(topic: str) -> None:
    """Return when somebody waits for notifications of this topic: what its process listens to, Redis knows.

    A process that has listened once goes on for a while, so a test waits for one topic once.
    """
    channel = f"gatehouse:notification:{topic}"
    with redis.Redis.from_url(settings.REDIS_URL) as broker:
        while not (await run_sync(broker.pubsub_numsub, channel))[0][1]:
            await anyio.sleep(0.02)


def until_somebody_waits_for_this_transaction(waiting: int = 1) -> None:
    """Until so many wait for a lock that this transaction holds."""
    until(lambda: (_row(_WAITING) or (0,))[0] >= waiting, "nobody waits", seconds=20)


_WAITING: Final = """
select count(distinct pid) from pg_locks where not granted and pg_backend_pid() = any(pg_blocking_pids(pid))
"""
_BUSY: Final = """
select a.application_name, a.state, a.query from pg_locks l join pg_stat_activity a using (pid)
where l.locktype = 'virtualxid' and a.datname = current_database() and a.pid <> pg_backend_pid()
and a.backend_type = 'client backend'
"""


def until_nobody_else_is_in_a_transaction() -> None:
    """Until no other client of this database is at anything."""
    until(lambda: _row(_BUSY) is None, lambda: f"somebody else is in a transaction: {_row(_BUSY)}", seconds=20)


def _row(query: str) -> tuple[Any, ...] | None:
    with connection.cursor() as cursor:
        cursor.execute(query)
        found: tuple[Any, ...] | None = cursor.fetchone()
        return found


class Other(threading.Thread):
    """Somebody else, who does something on a connection of its own; what it is refused is known afterwards."""

    def __init__(self, act: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._act = act
        self.failure: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self._act()
        except Exception as exc:  # noqa: BLE001  # whatever it is, the test says that it was none
            self.failure = exc
        finally:
            connection.close()

    def ends(self) -> Exception | None:
        self.join(60)
        assert not self.is_alive()
        return self.failure


def acting(caller: Caller, act: Callable[[], Any]) -> Callable[[], Any]:
    """The same in a transaction of this caller."""

    def run() -> Any:
        with acting_as(caller):
            return act()

    return run


@contextmanager
def held(caller: Caller, lock: Callable[[], Any]) -> Iterator[threading.Event]:
    """What it locks is held by another transaction of this caller, until the event or the end of the block."""
    locked, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        lock()
        locked.set()
        assert let_go.wait(60)

    other = Other(acting(caller, hold))
    try:
        assert locked.wait(20)
        yield let_go
    finally:
        let_go.set()
        assert other.ends() is None


def run(story: Callable[[], Awaitable[Any]], *, within: float = 60) -> Any:
    """What a coroutine returns, in a loop of its own."""

    async def bounded() -> Any:
        with anyio.fail_after(within):
            return await story()

    return anyio.run(bounded)


def at_once(*acts: Callable[[], Any]) -> list[Any]:
    """What each of these returned, or the exception that it raised. All begin at the same moment."""
    barrier = threading.Barrier(len(acts))
    results: dict[int, Any] = {}

    def run(place: int) -> None:
        barrier.wait(20)
        results[place] = acts[place]()

    others = [Other(partial(run, place)) for place in range(len(acts))]
    failures = [other.ends() for other in others]
    return [results[place] if failure is None else failure for place, failure in enumerate(failures)]


def together(*acts: Callable[[], Any]) -> list[Any]:
    """What each of these returned, begun at the same moment. None may fail."""
    results: dict[int, Any] = {}

    def run(place: int) -> None:
        results[place] = acts[place]()

    assert at_once(*(partial(run, place) for place in range(len(acts)))) == [None] * len(acts)
    return [results[place] for place in range(len(acts))]


def until(happened: Callable[[], Any], what: str | Callable[[], object] = "it", *, seconds: float = 60) -> Any:
    """What it answers as soon as it answers something; `what` says what did not come."""
    deadline = time.monotonic() + seconds
    while not (found := happened()):
        assert time.monotonic() < deadline, f"not in time: {what() if callable(what) else what}"
        time.sleep(0.02)
    return found
