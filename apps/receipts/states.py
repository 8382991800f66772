"""The states of what goes to other deployments: letters, targets' circuit breakers, and the moments between."""

import random
from datetime import timedelta
from typing import Final

from django.db.models import TextChoices


class LetterState(TextChoices):
    """A pending letter has a due time; a delivered one a remote that said so; a dead one waits for an operator."""

    PENDING = "pending"
    DELIVERED = "delivered"
    DEAD = "dead"


class Breaker(TextChoices):
    """Whether a target is called: yes; not before a moment; one letter is out to see whether it is well again."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Door(TextChoices):
    """Which door of an inbox service a target has, and with it which members are sent.

    `universal` gets the documented members only; `gatehouse` is the same door of another deployment of this product,
    which also understands group, delivery handle and surface.
    """

    INBOX = "inbox"
    UNIVERSAL = "universal"
    GATEHOUSE = "gatehouse"


MAX_ATTEMPTS: Final = 50
"""With the pauses below: about two days."""
FAILURES_TO_OPEN: Final = 5
COOL_DOWN: Final = timedelta(seconds=30)
SLOW: Final = timedelta(seconds=10)
"""An answer that takes longer speaks against the target as a failure does."""
SHARE_OF_TENANT: Final = 8
"""So many targets of one tenant are called at once: slow ones leave places to others."""
FRESH: Final = timedelta(seconds=5)
"""A message older than this is dropped unread, and what it announced is announced again."""
PATIENCE: Final = timedelta(seconds=5)
"""A turn of a target begins no call after this, and a message no turn."""
_FIRST_PAUSE: Final = 10.0
_LONGEST_PAUSE: Final = 3600.0
_PATIENCE_AFTER_TIMEOUT: Final = timedelta(seconds=25)


def pause(attempts: int) -> timedelta:
    """How long a letter rests after so many failed attempts: doubling, with jitter, the first under 30 s."""
    resting = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(attempts - 1, 20))
    return timedelta(seconds=resting * (1 + 0.5 * random.random()))  # noqa: S311  # jitter, no secret


def jittered(wait: timedelta) -> timedelta:
    """At least as long as a target wishes, and not to the second when all others come back."""
    return wait * (1 + 0.1 * random.random())  # noqa: S311  # jitter, no secret


def claimed_for(timeout_seconds: int) -> timedelta:
    """After this, a claim whose call has not been noted counts as lost."""
    return timedelta(seconds=timeout_seconds) + _PATIENCE_AFTER_TIMEOUT


LONGEST_TURN: Final = PATIENCE + _PATIENCE_AFTER_TIMEOUT
"""Beside the timeout of its last call: after this, a turn that was not given back counts as lost."""
