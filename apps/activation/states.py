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
_FIRST_PAUSE: Final = timedelta(seconds=5)
_LONGEST_PAUSE: Final = timedelta(seconds=300)


def pause_after(attempts: int) -> timedelta:
    """How long to wait after so many failures in a row: 5, 10, 20, … 300 s."""
    doublings: int = 2 ** min(attempts - 1, 10)
    return min(_FIRST_PAUSE * doublings, _LONGEST_PAUSE)
