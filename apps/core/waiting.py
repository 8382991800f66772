"""Waiting for what an operation answers: long polls and streams, whatever interface asks.

Nothing is held meanwhile but the place: no transaction, no database connection, no thread. The operation is asked
again when its topic is cued, and now and then without a cue, so that a lost one costs latency only.
"""

import asyncio
import json
import math
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakValueDictionary

import structlog
from django.conf import settings
from pydantic import BaseModel

from apps.core import cues
from apps.core.cues import Listener
from apps.core.errors import RateLimited, Unavailable
from apps.core.operations import Acting, Progress, Reply, Streams, Waits

logger = structlog.get_logger(__name__)

# How long a stream lasts before its client has to come again, with a credential that still stands.
LASTING: Final = 600.0
# Proxies close what is silent for longer.
BEAT: Final = 15.0
# How long a lost cue may delay what waits for it.
LOOKING_EVERY: Final = 25.0
# A burst cues often and shows little: between two looks of one who waits there is this much rest.
_REST: Final = 0.1
_COME_BACK_MS: Final = 1000

Look = Callable[[BaseModel], Awaitable[Reply]]
"""Asks the operation, as whom the credential stands for at that moment."""


class TooManyWaiting(RateLimited):
    """This token already has as many open streams and waiting requests as one token may have."""

    code = "too_many_waiting"


class NoPlaceToWait(Unavailable):
    """This process already holds as many open streams and waiting requests as it can."""

    code = "no_place_to_wait"


_places: Final[Counter[int | None]] = Counter()


def check_place(caller: Acting) -> None:
    """Refuse one more who waits while too many do.

    :raises TooManyWaiting: if they are the caller's.
    :raises NoPlaceToWait: if they are everybody's.
    """
    if _places[caller.token_id] >= settings.WAITING_PER_TOKEN:
        raise TooManyWaiting(f"A token may wait {settings.WAITING_PER_TOKEN} times at once.", retry_after=5)
    if _places.total() >= settings.WAITING_PER_PROCESS:
        raise NoPlaceToWait("As many wait here as can. Try again, or read without waiting.")


@contextmanager
def place(caller: Acting) -> Iterator[None]:
    """Count as one who waits."""
    _places[caller.token_id] += 1
    try:
        yield
    finally:
        _places[caller.token_id] -= 1
        if not _places[caller.token_id]:
            del _places[caller.token_id]


class _Line:
    """Rivals of one event loop: they look one after the other, and what one has not found the next does not look for."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.found_nothing_at = -math.inf


# A line lasts as long as somebody stands in it.
_lines: Final[WeakValueDictionary[Hashable, _Line]] = WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class Wait:
    """One who waits for what an operation answers to an input."""

    waits: Waits
    caller: Acting
    given: Any
    look: Look

    async def answer(self, patience: float) -> AsyncGenerator[Reply | Progress | None, None]:
        """The answer as soon as there is something in it, at the latest after so many seconds.

        Before it comes how far it is, whenever it is farther than before, and None at each beat.

        :raises DomainError: whatever the operation refuses, at any of the looks.
        """
        waits = self.waits
        ends = time.monotonic() + patience
        with place(self.caller):
            async with cues.listening(waits.topics(self.caller, self.given)) as listener:
                reply = await self.look(self.given)
                beaten, done = time.monotonic(), 0
                enough, fruitless, line = waits.found(reply.output), False, self._line()
                while True:
                    if (progress := waits.progress(reply.output)) is not None and progress.done > done:
                        beaten, done = time.monotonic(), progress.done
                        yield progress
                    if enough or (left := ends - time.monotonic()) <= 0:
                        break
                    is_cued = await _next_moment(listener, left, rest=fruitless)
                    left = max(0.0, ends - time.monotonic())
                    found = await (self._in_turn(line, listener.cued_at, left) if is_cued else self._looked(line))
                    if found is not None:
                        reply, enough = found, waits.worth_waking(self.given, found.output)
                    fruitless = found is not None
                    if time.monotonic() - beaten >= BEAT:
                        beaten = time.monotonic()
                        yield None
        yield reply

    def _line(self) -> _Line:
        if self.waits.rivals is None:
            return _Line()
        key = (asyncio.get_running_loop(), self.waits, self.waits.rivals(self.caller, self.given))
        return _lines.setdefault(key, _Line())

    async def _in_turn(self, line: _Line, cued_at: float, left: float) -> Reply | None:
        """What a look finds; None where a rival's look after the cue has found nothing."""
        try:
            async with asyncio.timeout(left):
                await line.turn.acquire()
        except TimeoutError:
            return await self._looked(line)
        try:
            return None if line.found_nothing_at > cued_at else await self._looked(line)
        finally:
            line.turn.release()

    async def _looked(self, line: _Line) -> Reply:
        began = time.monotonic()
        reply = await self.look(self.given)
        if not self.waits.worth_waking(self.given, reply.output):
            line.found_nothing_at = max(began, line.found_nothing_at)
        return reply

    async def events(self, streams: Streams) -> AsyncGenerator[bytes, None]:
        """Server-sent events: one for each page of what is new, a comment at each beat of silence.

        :raises DomainError: whatever the operation refuses, at any of the looks.
        """
        waits = self.waits
        ends = time.monotonic() + LASTING
        with place(self.caller):
            yield f"retry: {_COME_BACK_MS}\n\n".encode()
            async with cues.listening(waits.topics(self.caller, self.given)) as listener:
                given, spoke, fruitless, begun = self.given, time.monotonic(), 0, False
                while (left := ends - time.monotonic()) > 0:
                    page = await self._page(given)
                    if page is not None and (waits.worth_waking(given, page) if begun else waits.found(page)):
                        yield _event(streams.event, streams.mark(page), page)
                        given, spoke, fruitless = streams.further(given, page), time.monotonic(), 0
                        continue
                    begun = True
                    if time.monotonic() - spoke >= BEAT:
                        yield b": beat\n\n"
                        spoke = time.monotonic()
                    await _next_moment(listener, left, rest=fruitless > 0)
                    fruitless += 1

    async def _page(self, given: BaseModel) -> BaseModel | None:
        try:
            return (await self.look(given)).output
        except Unavailable:  # what is away comes back, and the stream goes on where it was
            logger.warning("stream_look_failed", exc_info=True)
            return None


async def _next_moment(listener: Listener, left: float, *, rest: bool) -> bool:
    """Return when it is time to look again, and whether a cue says so; without one, each has a rhythm of its own."""
    if rest:
        await asyncio.sleep(min(_REST, left))
    heard = await listener.heard(min(LOOKING_EVERY * random.uniform(0.7, 1.3), left))  # noqa: S311  # no secret
    return bool(heard)


def _event(name: str, mark: int, page: BaseModel) -> bytes:
    data = json.dumps(page.model_dump(mode="json"), ensure_ascii=False)
    return f"id: {mark}\nevent: {name}\ndata: {data}\n\n".encode()
