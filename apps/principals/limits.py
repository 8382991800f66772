"""How many receipts a source may post in an hour, counted in Redis.

The limit guards inboxes against a source run wild, nothing more: a Redis that does not answer lets every post through.
"""

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import redis
from django.conf import settings

from apps.core.notifications import broker

logger = logging.getLogger(__name__)

_HOUR: Final = timedelta(hours=1)
# A transaction of the database waits for the answer.
_PATIENCE_SECONDS: Final = 0.25
_COUNT: Final = """
local total = tonumber(redis.call('get', KEYS[1]) or '0')
local granted = math.max(0, math.min(tonumber(ARGV[1]), tonumber(ARGV[2]) - total))
if granted > 0 then
    redis.call('incrby', KEYS[1], granted)
    redis.call('expire', KEYS[1], ARGV[3])
end
return granted
"""


def per_hour(source_system: str) -> int:
    """The deployment's limit for a source; operators may set another for their tenant."""
    limits: dict[str, int] = settings.SOURCE_RATE_LIMITS
    return limits.get(source_system, limits["default"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """How many posts one source of one tenant may make in the hour of this moment."""

    tenant_id: int
    source_system: str
    per_hour: int
    now: datetime

    @property
    def _key(self) -> str:
        return f"gatehouse:posts:{self.tenant_id}:{self.source_system}:{self.now:%Y%m%d%H}"

    @property
    def retry_after(self) -> int:
        """Whole seconds until the next hour begins."""
        passed = timedelta(minutes=self.now.minute, seconds=self.now.second)
        return int((_HOUR - passed).total_seconds())

    def take(self, wanted: int, *, leaving: int = 0) -> int:
        """Count posts that are about to be made, as many as there is room for; answers how many.

        :param leaving: so many places of the hour are left free.
        """
        lasting = 2 * int(_HOUR.total_seconds())
        try:
            client = broker(_PATIENCE_SECONDS)
            return int(client.register_script(_COUNT)([self._key], [wanted, self.per_hour - leaving, lasting]))
        except redis.RedisError:
            logger.warning("posts of %s are not limited: Redis does not answer", self.source_system, exc_info=True)
            return wanted

    def give_back(self, count: int) -> None:
        """Uncount posts that were not made."""
        if not count:
            return
        try:
            broker(_PATIENCE_SECONDS).decrby(self._key, count)
        except redis.RedisError:
            logger.warning("posts of %s were counted that were not made", self.source_system, exc_info=True)
