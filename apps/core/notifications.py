"""Notifications across processes, and waiting for them: long polls, streams, heartbeats, messages for Celery.

A notification says that a topic changed and nothing else. It goes through Redis, may be lost, and is never the truth:
whoever waits for one also looks again now and then. All listeners of a process share one connection.
"""

import asyncio
import json
import logging
import os
import random
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Hashable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

import redis
import redis.asyncio
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from celery import current_app
from django.conf import settings
from django.db import connection, transaction
from django.dispatch import Signal
from kombu.exceptions import KombuError, OperationalError
from pydantic import BaseModel
from redis.backoff import NoBackoff
from redis.retry import Retry

from apps.core import tracing
from apps.core.errors import RateLimited, Unavailable
from apps.core.operations import BaseCaller, Operation, Progress, Reply, Streams, Waits

logger = logging.getLogger(__name__)

T = TypeVar("T")

# How long a stream lasts before its client has to come again, with a credential that is still valid.
STREAM_SECONDS: Final = 600.0
# Proxies close what is silent for longer.
HEARTBEAT_SECONDS: Final = 15.0
# How long a lost notification may delay who waits for it.
LOOK_SECONDS: Final = 25.0
# A process without a heartbeat for so long is taken for dead.
SILENT_AFTER: Final = timedelta(seconds=30)

_PREFIX: Final = "gatehouse:notification:"
_HEARTBEATS: Final = "gatehouse:heartbeats"
_HEARTBEAT_KEPT: Final = timedelta(hours=1)
_KEPT_AT_MOST: Final = timedelta(seconds=30)
# How long a transaction's thread waits for Redis, and for how long it does not ask again after a failure.
_SEND_SECONDS: Final = 0.25
_RECONNECT_SECONDS: Final = 1.0
# How long a listener waits for Redis to confirm its subscription, before it relies on its own looks.
_CONFIRM_SECONDS: Final = 1.0
_UNSUBSCRIBE_SECONDS: Final = 30.0
# After a look that found nothing a waiter rests: a burst of notifications may show little.
_REST_SECONDS: Final = 0.1
_RETRY_MS: Final = 1000
# Threads that look at the database for async code at the same time.
_THREADS: Final = 4
_MOST_MESSAGES: Final = 10_000
# After a round of messages for Celery, so that equal ones of a busy process become one: each costs half a millisecond.
_PUBLISHER_RESTS: Final = 0.02


def broker(timeout: float = 2.0) -> "redis.Redis":
    """A client of Redis that waits no longer than so many seconds for an answer."""
    return _client(settings.REDIS_URL, timeout)


@cache
def _client(url: str, timeout: float) -> "redis.Redis":
    # A connection that the server has closed is opened again once.
    retry = Retry(NoBackoff(), 1)
    return redis.Redis.from_url(url, socket_timeout=timeout, socket_connect_timeout=timeout, retry=retry)


def send_on_commit(signal: Signal, **facts: Any) -> None:
    """Send a signal when the transaction has committed. A receiver that fails is logged and hinders nobody."""

    def send() -> None:
        signal.send_robust(sender=None, **facts)

    transaction.on_commit(send, robust=True)


_silent_until = 0.0
_collected: Final[ContextVar[list[str] | None]] = ContextVar("collected", default=None)


@contextmanager
def notified_together() -> Iterator[None]:
    """Send what is notified inside at the end of the outermost block, in one message to Redis."""
    if _collected.get() is not None:
        yield
        return
    topics: list[str] = []
    token = _collected.set(topics)
    try:
        yield
    finally:
        _collected.reset(token)
        if topics:
            notify(*topics)


def notify(*topics: str) -> None:
    """Wake whoever listens to one of these topics. A Redis that does not answer costs latency and nothing else."""
    global _silent_until  # noqa: PLW0603  # one a process
    if (collected := _collected.get()) is not None:
        collected.extend(topics)
        return
    if time.monotonic() < _silent_until:
        return
    channels = [f"{_PREFIX}{topic}".encode() for topic in dict.fromkeys(topics)]
    try:
        _sender(settings.REDIS_URL).send(b"".join(_PUBLISH % (len(channel), channel) for channel in channels))
    except redis.RedisError:
        _silent_until = time.monotonic() + _RECONNECT_SECONDS
        logger.warning("notification_lost", extra={"topics": topics}, exc_info=True)


# An empty message, as Redis takes it.
_PUBLISH: Final = b"*3\r\n$7\r\nPUBLISH\r\n$%d\r\n%b\r\n$0\r\n\r\n"


class _Sender:
    """A connection to Redis that answers nothing, so that nobody waits for it."""

    def __init__(self, url: str) -> None:
        self._connection: Any = _client(url, _SEND_SECONDS).connection_pool.make_connection()
        self._lock = threading.Lock()
        self._is_open = False

    def send(self, commands: bytes) -> None:
        """:raises RedisError: if Redis is away."""
        with self._lock:
            is_open, self._is_open = self._is_open and not self._is_closed(), False
            if not is_open:
                self._connection.disconnect()
                self._connection.connect()
                self._connection.send_command("CLIENT", "REPLY", "OFF")
            self._connection.send_packed_command([commands], check_health=False)
            self._is_open = True

    def _is_closed(self) -> bool:
        """Whether the server has closed it: there is nothing else to read."""
        try:
            return bool(self._connection.can_read())
        except redis.RedisError:
            return True


_sender: Final = cache(_Sender)
os.register_at_fork(after_in_child=_sender.cache_clear)


class Listener:
    """A listener and the topics that were notified since it last asked.

    Those with a turn hear a notification one after the other: each passes it on when it has looked.
    """

    def __init__(self, topics: "Mapping[str, _Topic]", turn: Hashable) -> None:
        self._joined = topics
        self.turn = turn
        """What its looks have in common with those of others: where one finds nothing, they would find nothing either."""
        self.told: dict[str, int] = {}
        """By topic, the last notification before it was told; it looks for these at its next look."""
        self.is_waiting = False
        self._looks_for: dict[str, int] = {}
        self._woken = asyncio.Event()

    def notify(self, topic: str, nth: int = 0) -> None:
        self.told[topic] = nth
        self._woken.set()

    async def received(self, patience: float) -> set[str]:
        """The topics notified since the last call, as soon as there is one; none when the patience is over."""
        self.is_waiting = True
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._woken.wait()
        self.is_waiting = False
        self._woken.clear()
        received, self.told = self.told, {}
        self._looks_for |= received
        return set(received)

    def pass_on(self, *, found: bool, leaves: bool = False) -> None:
        """Tell others what it has looked for; when it leaves, also what it would have looked for."""
        looked_for, self._looks_for = self._looks_for | (self.told if leaves else {}), {}
        for topic, nth in looked_for.items():
            if self.turn is not None:
                self._joined[topic].pass_on(self.turn, nth, found=found)


@asynccontextmanager
async def listening(topics: Collection[str], turn: Hashable = None) -> AsyncIterator[Listener]:
    """Listen to these topics. Inside the block no notification is missed, unless Redis is away."""
    loop = asyncio.get_running_loop()
    if loop not in _hubs:
        _hubs[loop] = _Hub()
    async with _hubs[loop].listening(topics, turn) as listener:
        yield listener


async def listen(topics: Collection[str], *, lasting: float, heartbeat: float) -> AsyncGenerator[str | None, None]:
    """The topics that are notified. None once the subscription stands, and then for each heartbeat of silence."""
    ends = time.monotonic() + lasting
    async with listening(topics) as listener:
        yield None
        while (left := ends - time.monotonic()) > 0:
            received = await listener.received(min(heartbeat, left))
            for topic in received or [None]:
                yield topic


@dataclass(slots=True)
class _Topic:
    name: str
    listeners: dict[Listener, None] = field(default_factory=dict)
    """In the order in which they came."""
    left: list[Listener] = field(default_factory=list)
    """Whose turn is yet to come."""
    notified: int = 0
    """How often it was."""
    confirmed: asyncio.Event = field(default_factory=asyncio.Event)
    missed: bool = False
    """Somebody listened without a subscription."""

    def notify(self) -> None:
        self.notified += 1
        self.left = [listener for listener in self.listeners if listener.turn is not None]
        for listener in self.listeners.keys() - self.left:
            listener.notify(self.name, self.notified)
        self.left.sort(key=lambda listener: not listener.is_waiting)
        self._tell_next()

    def pass_on(self, turn: Hashable, nth: int, *, found: bool) -> None:
        """Tell the next one. What found nothing after the last notification spares those whose looks are the same."""
        if not found and nth == self.notified:
            self.left = [one for one in self.left if one.turn != turn]
        self._tell_next()

    def _tell_next(self) -> None:
        # Who has been told and has yet to look needs no telling.
        self.left = [one for one in self.left if one in self.listeners and self.name not in one.told]
        if self.left:
            self.left.pop(0).notify(self.name, self.notified)


class _Hub:
    """The listeners of one event loop and their connection, which is made again when it breaks."""

    def __init__(self) -> None:
        self._topics: dict[str, _Topic] = {}
        self._changed = asyncio.Event()
        self._away = False
        self._task = asyncio.create_task(self._run())

    @asynccontextmanager
    async def listening(self, topics: Collection[str], turn: Hashable) -> AsyncIterator[Listener]:
        joined = {name: self._topics.setdefault(name, _Topic(name)) for name in topics}
        listener = Listener(joined, turn)
        for topic in joined.values():
            topic.listeners[listener] = None
        self._changed.set()
        try:
            try:
                async with asyncio.timeout(0 if self._away else _CONFIRM_SECONDS):
                    for topic in joined.values():
                        await topic.confirmed.wait()
            except TimeoutError:  # the listener looks again once it is subscribed
                for topic in joined.values():
                    topic.missed = topic.missed or not topic.confirmed.is_set()
            yield listener
        finally:
            for topic in joined.values():
                del topic.listeners[listener]
            listener.pass_on(found=True, leaves=True)

    async def _run(self) -> None:
        try:
            while True:
                await self._serve()
                if self._task.cancelling():  # a connection that broke meanwhile hides the cancellation
                    return
                await asyncio.sleep(_RECONNECT_SECONDS)
        finally:
            _hubs.pop(asyncio.get_running_loop(), None)

    async def _serve(self) -> None:
        """Serve the listeners over one connection until it breaks."""
        client = redis.asyncio.Redis.from_url(settings.REDIS_URL, health_check_interval=15, socket_connect_timeout=5)
        try:
            async with client, client.pubsub() as channel:
                await channel.subscribe(_PREFIX)  # a channel without any subscription can't be read
                if self._task.cancelling():  # the client may swallow a cancellation while it connects
                    return
                self._away = False
                # No task group: it would count the failure of a task as a cancellation of this one.
                tasks = [asyncio.create_task(self._subscribe(channel)), asyncio.create_task(self._read(channel))]
                try:
                    await asyncio.gather(*tasks)
                finally:
                    for task in tasks:
                        task.cancel()
        except (redis.RedisError, OSError):
            logger.warning("notifications_unheard", exc_info=True)
        self._away = True
        for topic in self._topics.values():
            topic.missed = topic.confirmed.is_set() or topic.missed
            topic.confirmed.clear()

    async def _subscribe(self, channel: redis.asyncio.client.PubSub) -> None:
        """Subscribe to topics with listeners, and after a while unsubscribe from those without."""
        subscribed: set[str] = set()
        while True:
            self._topics = {name: topic for name, topic in self._topics.items() if topic.listeners}
            gone, fresh = subscribed - self._topics.keys(), self._topics.keys() - subscribed
            subscribed = set(self._topics)
            if gone:
                await channel.unsubscribe(*(f"{_PREFIX}{name}" for name in gone))
            if fresh:
                await channel.subscribe(*(f"{_PREFIX}{name}" for name in fresh))
            with suppress(TimeoutError):
                async with asyncio.timeout(_UNSUBSCRIBE_SECONDS):
                    await self._changed.wait()
            self._changed.clear()

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
                topic.notify()


_hubs: Final[dict[asyncio.AbstractEventLoop, _Hub]] = {}

_gates: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]] = WeakKeyDictionary()


async def in_thread(work: Callable[[], T]) -> T:
    """Run blocking work with a database connection of its own, which is given back when the work ends."""

    def tidied() -> T:
        try:
            return work()
        finally:
            if not connection.in_atomic_block:  # else it belongs to a synchronous caller, whose thread this is
                connection.close()

    gate = _gates.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(_THREADS))
    async with gate, ThreadSensitiveContext():
        return await sync_to_async(tidied)()


_places: Final[Counter[int | None]] = Counter()


def check_place(caller: BaseCaller) -> None:
    """Refuse one more waiter while too many wait.

    :raises RateLimited: if they are the caller's.
    :raises Unavailable: if they are everybody's.
    """
    if _places[caller.token_id] >= settings.WAITING_PER_TOKEN:
        raise RateLimited(
            f"A token may wait {settings.WAITING_PER_TOKEN} times at once.", code="too_many_waiting", retry_after=5
        )
    if _places.total() >= settings.WAITING_PER_PROCESS:
        raise Unavailable("As many wait here as can. Try again, or read without waiting.", code="no_place_to_wait")


@contextmanager
def place(caller: BaseCaller) -> Iterator[None]:
    """Count as a waiter."""
    _places[caller.token_id] += 1
    try:
        yield
    finally:
        _places[caller.token_id] -= 1
        if not _places[caller.token_id]:
            del _places[caller.token_id]


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait for what an operation answers to an input.

    Between two looks it holds a place and nothing else: no transaction, no database connection, no thread.
    """

    waits: Waits
    caller: BaseCaller
    given: Any
    look: Callable[[BaseModel], Awaitable[Reply]]
    """Asks the operation, as whom the credential stands for at that moment."""

    async def answer(self, patience: float) -> AsyncGenerator[Reply | Progress | None, None]:
        """The answer as soon as there is something in it, at the latest after so many seconds.

        Before the answer come its progress, whenever it has grown, and None at each heartbeat.

        :raises DomainError: whatever the operation refuses, at any of the looks.
        """
        waits = self.waits
        ends = time.monotonic() + patience
        with place(self.caller):
            async with listening(waits.topics(self.caller, self.given), waits.turn(self.given)) as listener:
                reply = await self.look(self.given)
                spoke, done, is_first = time.monotonic(), 0, True
                enough = waits.found(reply.output)
                while True:
                    if (progress := waits.progress(reply.output)) is not None and progress.done > done:
                        spoke, done = time.monotonic(), progress.done
                        yield progress
                    if enough or (left := ends - time.monotonic()) <= 0:
                        break
                    await _next_look(listener, left, rest=not is_first and listener.turn is None)
                    is_first = False
                    reply = await self.look(self.given)
                    enough = waits.worth_waking(self.given, reply.output)
                    listener.pass_on(found=enough)
                    if time.monotonic() - spoke >= HEARTBEAT_SECONDS:
                        spoke = time.monotonic()
                        yield None
        yield reply

    async def events(self, streams: Streams) -> AsyncGenerator[bytes, None]:
        """Server-sent events: one for each page of news, a comment at each heartbeat of silence.

        :raises DomainError: whatever the operation refuses, at any of the looks.
        """
        waits = self.waits
        ends = time.monotonic() + STREAM_SECONDS
        with place(self.caller):
            yield f"retry: {_RETRY_MS}\n\n".encode()
            async with listening(waits.topics(self.caller, self.given)) as listener:
                given, spoke, fruitless, begun = self.given, time.monotonic(), 0, False
                while (left := ends - time.monotonic()) > 0:
                    try:
                        page = (await self.look(given)).output
                    except Unavailable:  # what is away comes back, and the stream goes on where it was
                        logger.warning("stream_look_failed", exc_info=True)
                        page = None
                    if page is not None and (waits.worth_waking(given, page) if begun else waits.found(page)):
                        data = json.dumps(page.model_dump(mode="json"), ensure_ascii=False)
                        yield f"id: {streams.mark(page)}\nevent: {streams.event}\ndata: {data}\n\n".encode()
                        given, spoke, fruitless = streams.further(given, page), time.monotonic(), 0
                        continue
                    begun = True
                    if time.monotonic() - spoke >= HEARTBEAT_SECONDS:
                        yield b": heartbeat\n\n"
                        spoke = time.monotonic()
                    await _next_look(listener, left, rest=fruitless > 0)
                    fruitless += 1


class MustWait(Exception):  # no error
    """Ends the transaction of a call that asks to wait: nothing is held meanwhile."""

    def __init__(self, declared: Operation, wait: Wait) -> None:
        self.declared, self.wait = declared, wait


async def _next_look(listener: Listener, left: float, *, rest: bool) -> None:
    """Return when it is time to look again: at a notification, or after a while, for each waiter another."""
    if rest:
        await asyncio.sleep(min(_REST_SECONDS, left))
    await listener.received(min(LOOK_SECONDS * random.uniform(0.7, 1.3), left))  # noqa: S311  # no secret


def heartbeat(who: str) -> None:
    """Say that `who` is alive just now. Redis keeps it; the database does not."""
    with suppress(redis.RedisError):
        broker().hset(_HEARTBEATS, who, str(time.time()))


def retire(who: str) -> None:
    """`who` has stopped as it was told to, and is missed by nobody."""
    with suppress(redis.RedisError):
        broker().hdel(_HEARTBEATS, who)


def heartbeats() -> dict[str, timedelta]:
    """How long ago each was alive, by name; none that was silent for over an hour. Empty if Redis does not answer."""
    try:
        found: Any = broker().hgetall(_HEARTBEATS)
        now = time.time()
        ages = {who.decode(): timedelta(seconds=max(0.0, now - float(at))) for who, at in found.items()}
        if gone := [who for who, age in ages.items() if age > _HEARTBEAT_KEPT]:
            broker().hdel(_HEARTBEATS, *gone)
    except redis.RedisError:
        return {}
    return {who: ages[who] for who in sorted(ages) if ages[who] <= _HEARTBEAT_KEPT}


def heartbeat_age(kind: str) -> timedelta | None:
    """How long ago one of a kind, such as `worker`, was alive; None as in :func:`heartbeats`."""
    return min((age for who, age in heartbeats().items() if who.partition(" ")[0] == kind), default=None)


def kept(name: str, period: timedelta, make: Callable[[], bytes]) -> bytes:
    """What `make` answers, kept for all processes; made each time if Redis does not answer.

    It is kept for a period, or longer if making it took long: so that it takes a hundredth of the time, however much
    there is to read.
    """
    key = f"gatehouse:kept:{name}"
    try:
        found = broker().get(key)
    except redis.RedisError:
        return make()
    if isinstance(found, bytes):
        return found
    began = time.monotonic()
    made = make()
    took = timedelta(seconds=time.monotonic() - began)
    with suppress(redis.RedisError):
        broker().set(key, made, px=max(period, min(100 * took, _KEPT_AT_MOST)))
    return made


def is_first(name: str, period: timedelta) -> bool:
    """Whether no process has asked this within the period; yes each time if Redis does not answer."""
    try:
        return bool(broker().set(f"gatehouse:first:{name}", 1, px=period, nx=True))
    except redis.RedisError:
        return True


class Publisher:
    """Publishes messages for a Celery task from one thread per process, so that nobody waits for the broker.

    A message that can't be published is dropped. Its arguments are positional and hashable. Equal messages that wait
    belong to the trace of the last one.
    """

    def __init__(self, task: str, *, expires: int, most_at_once: int = 1, **options: Any) -> None:
        """:param expires: after so many seconds a message is dropped unread.
        :param most_at_once: how many equal messages may wait to be published.
        """
        self._task = task
        self._options = {"expires": expires, "retry": False, **options}
        self._most_at_once = most_at_once
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._waiting: Counter[tuple[object, ...]] = Counter()
        self._traces: dict[tuple[object, ...], dict[str, str]] = {}
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None

    def publish(self, *args: Hashable) -> None:
        """Hand a message over; returns at once."""
        with self._condition:
            if args in self._waiting or len(self._waiting) < _MOST_MESSAGES:
                self._waiting[args] = min(self._waiting[args] + 1, self._most_at_once)
                self._traces[args] = tracing.carrier()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
                self._thread.start()
            self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._waiting)
                messages, self._waiting = self._waiting, Counter()
                traces, self._traces = self._traces, {}
            for args in messages.elements():
                try:
                    with tracing.handed_on(traces[args]):
                        current_app.send_task(self._task, args=args, **self._options)
                except (OperationalError, KombuError, OSError) as exc:
                    logger.warning("a message for %s was not published: %s", args, exc)
                    break
                except Exception:  # this thread must outlive a defect; the tick publishes again
                    logger.exception("a message for %s was not published", args)
                    break
            time.sleep(_PUBLISHER_RESTS)
