"""Those who wait, beside the real cues: what wakes them, what does not, and what they do without cues."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine
from contextlib import AbstractContextManager, aclosing, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import anyio
import pytest
from anyio.to_thread import run_sync
from pydantic import BaseModel
from pytest_django import Settings

from apps.core import cues, waiting
from apps.core.operations import Progress, Reply, Streams, Waits
from apps.core.waiting import Wait

TOPIC = "test:waiting"


class Page(BaseModel):
    things: int
    is_news: bool


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
    rivals=lambda *_: "all who come here",
)


@dataclass
class Shelf:
    """What is waited for."""

    things: int = 0
    is_news: bool = True
    looks: int = 0
    is_taken: bool = False
    """Who is shown a thing takes it."""

    async def look(self, given: BaseModel) -> Reply:
        self.looks += 1
        page = Page(things=self.things, is_news=self.is_news)
        if self.is_taken:
            page.things = min(1, self.things)
            self.things -= page.things
            await anyio.sleep(0.01)
        return Reply(page, 200)

    async def looked_at(self, times: int) -> None:
        while self.looks < times:
            await anyio.sleep(0.01)

    @property
    def wait(self) -> Wait:
        return Wait(WAITS, Anybody(), Page(things=0, is_news=False), self.look)


def run(story: Callable[[], Awaitable[Any]]) -> Any:
    async def bounded() -> Any:
        with anyio.fail_after(20):
            return await story()

    return anyio.run(bounded)


async def answers(
    shelf: Shelf, patience: float, meanwhile: Callable[[], Coroutine[Any, Any, None]]
) -> list[Page | None]:
    """What comes of a wait: None for each beat, the page last."""
    heard: list[Page | None] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(meanwhile)
        async with aclosing(shelf.wait.answer(patience)) as found:
            async for reply in found:
                assert not isinstance(reply, Progress)
                assert reply is None or isinstance(reply.output, Page)
                heard.append(reply.output if reply else None)  # type: ignore[arg-type]  # a page, as asserted
        tasks.cancel_scope.cancel()
    return heard


async def cue_for_ever() -> None:
    while True:
        await run_sync(cues.send, TOPIC)
        await anyio.sleep(0.1)


def test_a_cue_alone_ends_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "LOOKING_EVERY", 3600.0)
    shelf = Shelf()

    async def put() -> None:
        await shelf.looked_at(1)
        shelf.things = 1
        await cue_for_ever()

    assert run(lambda: answers(shelf, 60, put)) == [Page(things=1, is_news=True)]


def test_who_hears_no_cue_finds_out_by_looking(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    monkeypatch.setattr(waiting, "LOOKING_EVERY", 0.05)
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    shelf = Shelf()

    async def put() -> None:
        await shelf.looked_at(1)
        shelf.things = 1

    assert run(lambda: answers(shelf, 60, put)) == [Page(things=1, is_news=True)]


def test_what_comes_and_is_no_news_is_shown_at_the_end_of_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "LOOKING_EVERY", 0.05)
    shelf = Shelf(is_news=False)

    async def put() -> None:
        await shelf.looked_at(1)
        shelf.things = 1
        await cue_for_ever()

    assert run(lambda: answers(shelf, 5, put)) == [Page(things=1, is_news=False)]
    assert shelf.looks > 2


def test_a_wait_beats_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "LOOKING_EVERY", 0.05)
    monkeypatch.setattr(waiting, "BEAT", 0.1)

    *beats, page = run(lambda: answers(Shelf(), 5, anyio.sleep_forever))

    assert page == Page(things=0, is_news=True)
    assert beats
    assert set(beats) == {None}


def test_how_far_it_is_is_told_once_for_each_step_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "LOOKING_EVERY", 0.05)
    shelf = Shelf()
    far = replace(
        WAITS,
        found=lambda page: page.things >= 3,
        worth_waking=lambda _, page: page.things >= 3,
        progress=lambda page: Progress(done=page.things, total=3, message=f"{page.things} are there"),
    )

    async def grow() -> None:
        for things in (1, 2, 3):
            await shelf.looked_at(shelf.looks + 2)
            shelf.things = things

    heard: list[Any] = []

    async def story() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(grow)
            async with aclosing(replace(shelf.wait, waits=far).answer(60)) as found:
                heard.extend([told async for told in found])

    run(story)
    *told, reply = heard
    assert [one.message for one in told] == ["1 are there", "2 are there", "3 are there"]
    assert reply.output.things == 3


class _Rivals:
    """Waiters of one shelf from which each takes what it is shown."""

    def __init__(self, number: int) -> None:
        self.shelf = Shelf(is_taken=True)
        self.number = number
        self.given: list[int] = []

    async def at_rest(self) -> int:
        """How often they have looked once nobody looks any more: who came before the connection for cues stood looks again."""
        seen = -1
        while seen != self.shelf.looks:
            seen = self.shelf.looks
            await anyio.sleep(0.3)
        return seen

    async def all_wait(self, meanwhile: Callable[[], Awaitable[None]], patience: float) -> None:
        async def one() -> None:
            async with aclosing(self.shelf.wait.answer(patience)) as found:
                (reply,) = [reply async for reply in found if isinstance(reply, Reply)]
            assert isinstance(reply.output, Page)
            self.given.append(reply.output.things)

        async with anyio.create_task_group() as tasks:
            for _ in range(self.number):
                tasks.start_soon(one)
            await self.shelf.looked_at(self.number)
            await meanwhile()


def test_of_rivals_whom_a_cue_wakes_one_looks_in_vain_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "LOOKING_EVERY", 3600.0)
    rivals, before = _Rivals(20), 0

    async def cue() -> None:
        nonlocal before
        before = await rivals.at_rest()
        await run_sync(cues.send, TOPIC)
        await rivals.shelf.looked_at(before + 1)

    run(lambda: rivals.all_wait(cue, 12))

    assert rivals.given == [0] * 20
    # Each looks when its patience ends, and one at the cue.
    assert rivals.shelf.looks == before + 1 + 20


def test_what_a_cue_brought_goes_to_as_many_rivals_as_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "LOOKING_EVERY", 3600.0)
    rivals, before = _Rivals(20), 0

    async def put() -> None:
        nonlocal before
        before = await rivals.at_rest()
        rivals.shelf.things = 7
        await run_sync(cues.send, TOPIC)
        await rivals.shelf.looked_at(before + 8)

    run(lambda: rivals.all_wait(put, 12))

    assert sorted(rivals.given) == [0] * 13 + [1] * 7
    assert rivals.shelf.looks == before + 7 + 1 + 13


def test_a_rival_who_gives_up_in_its_turn_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "LOOKING_EVERY", 3600.0)
    rivals = _Rivals(5)
    stuck = Shelf()

    async def never(_given: BaseModel) -> Reply:
        stuck.looks += 1
        if stuck.looks > 1:
            await anyio.sleep_forever()
        return Reply(Page(things=0, is_news=False), 200)

    async def story() -> None:
        gone = anyio.CancelScope()

        async def gives_up() -> None:
            with gone:
                await _first(replace(rivals.shelf.wait, look=never))

        async def put() -> None:
            rivals.shelf.things = 5
            await run_sync(cues.send, TOPIC)
            gone.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(gives_up)
            await stuck.looked_at(1)
            await run_sync(cues.send, TOPIC)
            await stuck.looked_at(2)
            await rivals.all_wait(put, 60)

    run(story)

    assert rivals.given == [1] * 5


async def _first(wait: Wait) -> None:
    async with aclosing(wait.answer(60)) as found:
        await anext(found)


def test_a_stream_beats_in_silence_and_ends_in_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "LOOKING_EVERY", 0.05)
    monkeypatch.setattr(waiting, "BEAT", 0.1)
    monkeypatch.setattr(waiting, "LASTING", 5.0)
    streams = Streams(
        event="things",
        mark=lambda page: page.things,
        resumes="things",
        begin=lambda caller, given: None,
        further=lambda given, page: page,
    )

    async def heard() -> list[bytes]:
        events: AsyncGenerator[bytes, None] = Shelf().wait.events(streams)
        async with aclosing(events):
            return [event async for event in events]

    retry, *beats = run(heard)

    assert retry.startswith(b"retry: ")
    assert set(beats) == {b": beat\n\n"}
