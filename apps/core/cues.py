"""Cues across processes, over Redis: "this changed, look again if you care".

A cue carries nothing but its topic, may be lost, and is never the truth. Whoever waits for one also looks again by
itself now and then. All who listen in one process share one connection, so that a thousand of them cost Redis nothing.
"""

import asyncio
import logging
import math
import os
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import redis
import redis.asyncio
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry

logger = logging.getLogger(__name__)

_PREFIX: Final = "gatehouse:cue:"
# How long a listener waits for Redis to confirm that it is heard, before it relies on its own looks.
_CONFIRMED_WITHIN: Final = 1.0
_AGAIN_AFTER: Final = 1.0
# How long a cue waits for another of its process.
_TURN_WITHIN: Final = 0.05
_TIDIED_EVERY: Final = 30.0


def send(*topics: str) -> None:
    """Wake whoever listens to one of these topics. A Redis that does not answer costs latency and nothing else."""
    try:
        _sender.send([f"{_PREFIX}{topic}" for topic in topics])
    except redis.RedisError:
        logger.warning("cue_lost", extra={"topics": topics}, exc_info=True)


class Listener:
    """One who listens, and the topics that were cued since it last asked."""

    def __init__(self) -> None:
        self.cued_at = -math.inf
        """When the last cue came, by the monotonic clock."""
        self._cued: set[str] = set()
        self._woken = asyncio.Event()

    def cue(self, topic: str) -> None:
        self.cued_at = time.monotonic()
        self._cued.add(topic)
        self._woken.set()

    async def heard(self, patience: float) -> set[str]:
        """The topics that were cued since the last call, as soon as there is one; none when the patience is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._woken.wait()
        self._woken.clear()
        heard, self._cued = self._cued, set()
        return heard


@asynccontextmanager
async def listening(topics: Collection[str]) -> AsyncIterator[Listener]:
    """Listen to these topics. What is cued from the first line inside on is heard, unless Redis is away."""
    async with _switchboard().listening(topics) as listener:
        yield listener


async def listen(topics: Collection[str], *, lasting: float, beat: float) -> AsyncGenerator[str | None, None]:
    """The topics of the cues that arrive, None once everything is heard and then whenever a beat passes in silence."""
    ends = time.monotonic() + lasting
    async with listening(topics) as listener:
        yield None
        while (left := ends - time.monotonic()) > 0:
            heard = await listener.heard(min(beat, left))
            for topic in heard or [None]:
                yield topic


@dataclass(slots=True)
class _Topic:
    listeners: set[Listener] = field(default_factory=set)
    confirmed: asyncio.Event = field(default_factory=asyncio.Event)
    missed: bool = False
    """The connection was lost while somebody listened."""


class _Switchboard:
    """The listeners of one event loop and their connection, which comes back by itself."""

    def __init__(self) -> None:
        self._topics: dict[str, _Topic] = {}
        self._wanted = asyncio.Event()
        self._away = False
        self._task = asyncio.create_task(self._run())

    @asynccontextmanager
    async def listening(self, topics: Collection[str]) -> AsyncIterator[Listener]:
        listener = Listener()
        joined = {name: self._topics.setdefault(name, _Topic()) for name in topics}
        for topic in joined.values():
            topic.listeners.add(listener)
        try:
            await self._until_confirmed(joined.values())
            yield listener
        finally:
            for topic in joined.values():
                topic.listeners.discard(listener)

    async def _until_confirmed(self, topics: Collection[_Topic]) -> None:
        self._wanted.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(0 if self._away else _CONFIRMED_WITHIN):
                for topic in topics:
                    await topic.confirmed.wait()

    async def _run(self) -> None:
        try:
            while True:
                await self._connected()
                await asyncio.sleep(_AGAIN_AFTER)
        finally:
            _switchboards.pop(asyncio.get_running_loop(), None)

    async def _connected(self) -> None:
        """Serve the listeners over one connection until it breaks."""
        client = redis.asyncio.Redis.from_url(settings.REDIS_URL, health_check_interval=15, socket_connect_timeout=5)
        try:
            async with client, client.pubsub() as channel, asyncio.TaskGroup() as tasks:
                await channel.subscribe(_PREFIX)  # a channel without any subscription can't be read
                self._away = False
                tasks.create_task(self._subscribe(channel))
                tasks.create_task(self._read(channel))
        except* (redis.RedisError, OSError):
            logger.warning("cues_unheard", exc_info=True)
        self._away = True
        for topic in self._topics.values():
            topic.missed = topic.confirmed.is_set() or topic.missed
            topic.confirmed.clear()

    async def _subscribe(self, channel: redis.asyncio.client.PubSub) -> None:
        """Ask Redis for what is listened to and no longer for what is not. Nobody else writes to the connection."""
        asked: set[str] = set()
        while True:
            self._topics = {name: topic for name, topic in self._topics.items() if topic.listeners}
            gone, fresh = asked - self._topics.keys(), self._topics.keys() - asked
            asked = set(self._topics)
            if gone:
                await channel.unsubscribe(*(f"{_PREFIX}{name}" for name in gone))
            if fresh:
                await channel.subscribe(*(f"{_PREFIX}{name}" for name in fresh))
            with suppress(TimeoutError):
                async with asyncio.timeout(_TIDIED_EVERY):
                    await self._wanted.wait()
            self._wanted.clear()

    async def _read(self, channel: redis.asyncio.client.PubSub) -> None:
        while True:
            message = await channel.get_message(timeout=10)
            if message is None:
                continue
            name = message["channel"].decode().removeprefix(_PREFIX)
            topic = self._topics.get(name)
            if topic is None:
                continue
            if message["type"] == "subscribe":
                topic.confirmed.set()
            if message["type"] == "message" or topic.missed:
                topic.missed = False
                for listener in topic.listeners:
                    listener.cue(name)


_switchboards: Final[dict[asyncio.AbstractEventLoop, _Switchboard]] = {}


def _switchboard() -> _Switchboard:
    loop = asyncio.get_running_loop()
    if loop not in _switchboards:
        _switchboards[loop] = _Switchboard()
    return _switchboards[loop]


class _Sender:
    """A connection on which Redis says nothing, so that nobody waits for an answer that nobody reads."""

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        # The library leaves much of what its connections do without types.
        self._connection: Any = None
        self._lock = threading.Lock()
        self._rests_until = 0.0

    def send(self, channels: Sequence[str]) -> None:
        """All of them in one piece: a system call each costs more than all that Redis does with them."""
        # Nobody waits long for a Redis that keeps others waiting, nor asks it again at once.
        if time.monotonic() < self._rests_until or not self._lock.acquire(timeout=_TURN_WITHIN):
            raise redis.TimeoutError("Redis does not answer just now.")
        try:
            if self._connection is None:
                self._connection = _made()
            if self._has_ended():
                self._connection.disconnect()
            publications = self._connection.pack_commands([("PUBLISH", channel, b"") for channel in channels])
            self._connection.send_packed_command(publications)
        except redis.RedisError:
            self._rests_until = time.monotonic() + _AGAIN_AFTER
            self._connection.disconnect()
            raise
        finally:
            self._lock.release()

    def _has_ended(self) -> bool:
        """On a silent connection only its end can be read."""
        try:
            return bool(self._connection.is_connected and self._connection.can_read())
        except redis.RedisError:
            return True


def _made() -> Any:
    return redis.ConnectionPool.from_url(
        settings.REDIS_URL,
        socket_timeout=1,
        socket_connect_timeout=1,
        redis_connect_func=_hushed,
        retry=Retry(NoBackoff(), 0),
    ).make_connection()


def _hushed(connection: Any) -> None:
    connection.on_connect()
    # What Redis has against cues it says of this one; of the others it says nothing.
    connection.send_command("PUBLISH", _PREFIX, b"")
    connection.read_response()
    connection.send_command("CLIENT", "REPLY", "OFF")
    # Whatever the address says: nothing that is asked would be answered.
    connection.health_check_interval = 0


_sender: Final = _Sender()

# A connection is one process's.
os.register_at_fork(after_in_child=_sender.begin_anew)
