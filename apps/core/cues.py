"""Cues across processes, over Redis: "this changed, look again if you care".

A cue carries nothing but its topic, may be lost, and is never the truth. Whoever waits for one also looks again by
itself now and then.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Collection
from functools import cache
from typing import Final

import redis
import redis.asyncio
from django.conf import settings

logger = logging.getLogger(__name__)

_PREFIX: Final = "gatehouse:cue:"


def send(topic: str) -> None:
    """Wake whoever listens to this topic. A Redis that does not answer costs latency and nothing else."""
    try:
        _sender().publish(f"{_PREFIX}{topic}", b"")
    except redis.RedisError:
        logger.warning("cue_lost", extra={"topic": topic}, exc_info=True)


async def listen(topics: Collection[str], *, lasting: float, beat: float) -> AsyncGenerator[str | None, None]:
    """The topics of the cues that arrive, None once everything is heard and then whenever a beat passes in silence.

    :raises redis.RedisError: if Redis does not answer.
    """
    ends = time.monotonic() + lasting
    async with redis.asyncio.Redis.from_url(settings.REDIS_URL) as client, client.pubsub() as channel:
        if topics:
            await channel.subscribe(*(f"{_PREFIX}{topic}" for topic in topics))
        for _ in topics:
            await channel.get_message(timeout=5)  # each subscription is confirmed by a message of its own
        yield None
        while (left := ends - time.monotonic()) > 0:
            if topics:
                yield await _next(channel, min(beat, left))
            else:
                await asyncio.sleep(min(beat, left))
                yield None


async def _next(channel: redis.asyncio.client.PubSub, patience: float) -> str | None:
    message = await channel.get_message(ignore_subscribe_messages=True, timeout=patience)
    return message["channel"].decode().removeprefix(_PREFIX) if message else None


@cache
def _sender() -> redis.Redis:
    return redis.Redis.from_url(settings.REDIS_URL, socket_timeout=1, socket_connect_timeout=1)
