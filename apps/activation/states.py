"""What a target can be, and what becomes of a wake."""

from datetime import timedelta
from typing import Final

from django.db import models


class Kind(models.TextChoices):
    """How a wake travels. Who listens (SSE, long poll, MCP) needs no target: it is there or it is not."""

    WEBHOOK = "webhook"


class State(models.TextChoices):
    ENABLED = "enabled"
    STOPPED = "stopped"


# Answers that say: don't call here again.
STOPPING: Final = frozenset({404, 409, 410, 422})
# So many targets of one principal, and of one tenant, are called at once: slow ones leave places to others.
SHARE_OF_PRINCIPAL: Final = 4
SHARE_OF_TENANT: Final = 12
# A message older than this is dropped unread, and what it announced is announced again.
FRESH: Final = timedelta(seconds=5)
_FIRST_PAUSE: Final = timedelta(seconds=5)
_LONGEST_PAUSE: Final = timedelta(seconds=300)


def pause_after(attempts: int) -> timedelta:
    """How long to wait after so many failures in a row: 5, 10, 20, … 300 s."""
    doublings: int = 2 ** min(attempts - 1, 10)
    return min(_FIRST_PAUSE * doublings, _LONGEST_PAUSE)
