"""Notifications: what wakes waiters, and that a lost or failing one costs latency only."""

import asyncio
import socket
import threading
from collections.abc import Callable, Collection, Coroutine
from contextlib import AbstractContextManager, aclosing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import anyio
import pytest
import redis
from anyio.to_thread import run_sync
from celery import current_app
from django.conf import settings
from django.db import transaction
from django.dispatch import Signal
from pydantic import BaseModel
from pytest_django import Settings

from apps.core import notifications
from apps.core.errors import RateLimited, Unavailable
from apps.core.notifications import Publisher, Wait, notify, send_on_commit
from apps.core.operations import Progress, Reply, Streams, Waits
from tests.waiters import run, until_heard

TOPIC = "test:waiting"
something_changed = Signal()


class Page(BaseModel):
    things: int
    is_news: bool = True


@dataclass(frozen=True)
class Anybody:
    scopes: Collection[str] = ()
    token_id: int | None = None

    def acting(self, *, lock_timeout: str | None = None) -> AbstractContextManager[None]:
        return nullcontext()


WAITS = Waits(
    topics=lambda *_: [TOPIC],
    found=lambda page: page.things > 0,
    worth_waking=lambda given, page: page.things > 0 and page.is_news,
)


@dataclass
class Shelf:
    """A thing to wait for."""

    things: int = 0
    is_news: bool = True
    looks: int = 0

    async def look(self, given: BaseModel) -> Reply:
        self.looks += 1
        return Reply(Page(things=self.things, is_news=self.is_news), 200)

    async def looked_at(self, times: int) -> None:
        while self.looks < times:
            await anyio.sleep(0.01)

    async def put(self) -> None:
        await self.looked_at(1)
        self.things = 1

    @property
    def wait(self) -> Wait:
        return Wait(WAITS, Anybody(), Page(things=0), self.look)


async def answers(wait: Wait, patience: float, meanwhile: Callable[[], Coroutine[Any, Any, None]]) -> list[Any]:
    """The outcome of a wait: None for each heartbeat, progress, and the page last."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(meanwhile)
        async with aclosing(wait.answer(patience)) as found:
            heard = [reply.output if isinstance(reply, Reply) else reply async for reply in found]
        tasks.cancel_scope.cancel()
    return heard


def test_notification_ends_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "LOOK_SECONDS", 3600.0)
    shelf = Shelf()

    async def put() -> None:
        await shelf.put()
        while True:
            await run_sync(notify, TOPIC)
            await anyio.sleep(0.1)

    assert run(lambda: answers(shelf.wait, 60, put)) == [Page(things=1)]


def test_who_takes_what_it_finds_looks_in_turn() -> None:
    async def story() -> None:
        listening, heard = partial(notifications.listening, [TOPIC]), {TOPIC}
        async with listening("a") as first, listening("a") as second, listening("b") as other:
            await run_sync(notify, TOPIC)
            assert (await first.received(20), await second.received(0.05)) == (heard, set())
            first.pass_on(found=True)
            assert (await second.received(20), await other.received(0.05)) == (heard, set())
            second.pass_on(found=False)
            assert await other.received(20) == heard
            await run_sync(notify, TOPIC)
            assert await first.received(20) == heard
            first.pass_on(found=False)
            assert (await other.received(20), await second.received(0.05)) == (heard, set())
            async with listening("a") as idle, anyio.create_task_group() as tasks:
                tasks.start_soon(run_sync, notify, TOPIC)
                assert await idle.received(20) == heard
            assert await first.received(20) == heard

    run(story)


def test_waiter_without_redis_finds_news_by_looking(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    monkeypatch.setattr(notifications, "LOOK_SECONDS", 0.05)
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    shelf = Shelf()
    assert run(lambda: answers(shelf.wait, 60, shelf.put)) == [Page(things=1)]


def test_waiter_whose_connection_broke_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "LOOK_SECONDS", 3600.0)
    shelf = Shelf()

    async def put_unheard() -> None:
        await until_heard(TOPIC)
        with redis.Redis.from_url(settings.REDIS_URL) as broker:
            own = str(broker.client_info()["db"])
            for client in broker.client_list(_type="pubsub"):
                if client["db"] == own:  # other tests run on the same server
                    broker.client_kill_filter(_id=client["id"])
        shelf.things = 1

    assert run(lambda: answers(shelf.wait, 60, put_unheard)) == [Page(things=1)]


def test_event_loop_ends_though_its_connection_breaks_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    async def break_when_canceled(*_: object) -> None:
        try:
            await anyio.sleep_forever()
        except BaseException as canceled:
            raise redis.ConnectionError from canceled

    async def listen() -> None:
        async with notifications.listening([TOPIC]):
            await until_heard(TOPIC)

    monkeypatch.setattr(notifications._Hub, "_read", break_when_canceled)
    thread = threading.Thread(target=lambda: asyncio.run(listen()), daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()


def test_places_to_wait_are_limited_by_token_and_process(settings: Settings) -> None:
    settings.WAITING_PER_TOKEN, settings.WAITING_PER_PROCESS = 1, 2
    one, other, third = (Anybody(token_id=number) for number in range(3))
    with notifications.place(one):
        with pytest.raises(RateLimited, match="A token may wait 1 times"):
            notifications.check_place(one)
        notifications.check_place(other)
        with notifications.place(other), pytest.raises(Unavailable):
            notifications.check_place(third)
    notifications.check_place(one)
    assert not notifications._places


def test_output_that_is_no_news_is_shown_when_the_wait_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "LOOK_SECONDS", 0.05)
    shelf = Shelf(is_news=False)
    assert run(lambda: answers(shelf.wait, 1, shelf.put)) == [Page(things=1, is_news=False)]
    assert shelf.looks > 2


def test_wait_sends_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(notifications, "HEARTBEAT_SECONDS", 0.1)
    *heartbeats, page = run(lambda: answers(Shelf().wait, 1, anyio.sleep_forever))
    assert (page, set(heartbeats)) == (Page(things=0), {None})


def test_progress_is_reported_once_for_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "LOOK_SECONDS", 0.05)
    shelf = Shelf()
    growing = replace(
        WAITS,
        found=lambda page: page.things >= 3,
        worth_waking=lambda _, page: page.things >= 3,
        progress=lambda page: Progress(done=page.things, total=3, message=f"{page.things} are there"),
    )

    async def grow() -> None:
        for things in (1, 2, 3):
            await shelf.looked_at(shelf.looks + 2)
            shelf.things = things

    *progress, page = run(lambda: answers(replace(shelf.wait, waits=growing), 60, grow))
    assert [one.message for one in progress] == ["1 are there", "2 are there", "3 are there"]
    assert page.things == 3


def test_stream_sends_heartbeats_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(notifications, "HEARTBEAT_SECONDS", 0.1)
    monkeypatch.setattr(notifications, "STREAM_SECONDS", 1.0)
    streams = Streams(
        event="things",
        mark=lambda page: page.things,
        resumes="things",
        begin=lambda caller, given: None,
        further=lambda given, page: page,
    )

    async def heard() -> list[bytes]:
        async with aclosing(Shelf().wait.events(streams)) as events:
            return [event async for event in events]

    retry, *heartbeats = run(heard)
    assert (retry[:7], set(heartbeats)) == (b"retry: ", {b": heartbeat\n\n"})


def test_notify_opens_a_lost_connection_again() -> None:
    with redis.Redis.from_url(settings.REDIS_URL) as other, other.pubsub() as heard:
        heard.subscribe("gatehouse:notification:kee")
        heard.get_message(timeout=5)
        notify("kee")
        assert heard.get_message(timeout=5)["data"] == b""
        own = str(other.client_info()["db"])
        for one in other.client_list():
            if (one["cmd"], one["db"]) == ("publish", own):
                other.client_kill_filter(_id=one["id"])
        notify("kee")
        assert heard.get_message(timeout=5)["data"] == b""


def test_notify_gives_a_silent_redis_a_rest(settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr(notifications, "_RECONNECT_SECONDS", 60.0)
    monkeypatch.setattr(notifications, "_silent_until", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings.REDIS_URL = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        notify("kee")
        asked = notifications._silent_until
        notify("kee")
    assert caplog.text.count("notification_lost") == 1
    assert notifications._silent_until == asked > 0


def test_failing_receiver_hinders_no_other(transactional_db: None, caplog: pytest.LogCaptureFixture) -> None:
    heard = []

    def failing(**facts: object) -> None:
        raise ZeroDivisionError

    def listening(*, number: int, **facts: object) -> None:
        heard.append(number)

    something_changed.connect(failing)
    something_changed.connect(listening)
    with transaction.atomic():
        send_on_commit(something_changed, number=1)
        send_on_commit(something_changed, number=2)
        assert heard == []
    with transaction.atomic():
        send_on_commit(something_changed, number=3)
        transaction.set_rollback(True)
    assert heard == [1, 2]
    assert "failing" in caplog.text


def test_publisher_does_not_wait_for_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    entered, answers, published = threading.Event(), threading.Event(), threading.Semaphore(0)
    seen: list[tuple[int, str]] = []

    def send(_: str, args: tuple[int, str], **__: object) -> None:
        entered.set()
        assert answers.wait(20)
        seen.append(args)
        published.release()

    monkeypatch.setattr(current_app, "send_task", send)
    publisher = Publisher("any", expires=5, most_at_once=2)
    publisher.publish(1, "a")
    assert entered.wait(20)
    for _ in range(5):
        publisher.publish(1, "b")
    assert not seen
    answers.set()
    assert all(published.acquire(timeout=20) for _ in range(3))
    assert seen == [(1, "a"), (1, "b"), (1, "b")]


def test_unpublished_message_costs_the_next_one_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    published = threading.Event()

    def send(_: str, args: tuple[int], **__: object) -> None:
        if args == (1,):
            raise ConnectionRefusedError
        published.set()

    monkeypatch.setattr(current_app, "send_task", send)
    publisher = Publisher("any", expires=5)
    publisher.publish(1)
    for _ in range(400):
        publisher.publish(2)
        if published.wait(0.05):
            break
    assert published.is_set()
