"""Signs of life that the database does not hold, kept in Redis. Losing one costs only the sign."""

import contextlib
import time
from datetime import timedelta
from functools import cache
from typing import Final

import redis
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry

_KEPT: Final = timedelta(hours=1)
# Who has not been heard of for so long is taken for dead.
SILENT_AFTER: Final = timedelta(seconds=30)


@cache
def broker() -> "redis.Redis":
    """A client of the broker with short patience, for questions about the broker itself."""
    return redis.Redis.from_url(
        settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2, retry=Retry(NoBackoff(), 1)
    )


def beat(who: str) -> None:
    """Say that `who` is alive just now."""
    with contextlib.suppress(redis.RedisError):
        broker().set(_key(who), time.time(), ex=_KEPT)


def last_known_age(who: str) -> timedelta | None:
    """How long ago `who` was alive; None if it was not within the hour, or nobody can tell."""
    try:
        at = broker().get(_key(who))
    except redis.RedisError:
        return None
    return None if at is None else timedelta(seconds=max(0.0, time.time() - float(at)))


def _key(who: str) -> str:
    return f"gatehouse:pulse:{who}"
