"""Walks over everything, in short steps: where the last one ended is where the next one goes on."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from apps.core.sql import database_now
from apps.digests.models import NO_PLACE, Round
from apps.principals.tenancy import acting_as_system


@dataclass(frozen=True, slots=True)
class Place:
    """How far a round has come: a key, or a tenant and how far within it."""

    position: int
    within: UUID = NO_PLACE


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one step has found, and where the next begins; None: the round is over."""

    place: Place | None
    found: Counter[str]


def walk(name: str, *, step: Callable[[Place], Step], rest: timedelta, patience: timedelta | None) -> dict[str, int]:
    """Go on with a round for a while, or begin one if the last ended long enough ago.

    Answers what this call has found. Without a patience it goes to the end of a round of its own, which it begins.
    Each step opens transactions of its own. Two walkers at once double work, nothing else.
    """
    going = _going(name, rest=rest if patience is not None else None)
    found: Counter[str] = Counter()
    deadline = None if patience is None else time.monotonic() + patience.total_seconds()
    while going is not None:
        taken = step(Place(going.position, going.within))
        found += taken.found
        going.found = dict(Counter(going.found) + taken.found)
        if taken.place is None:
            going.ended_at, going.result = _now(), going.found
        _move(going, taken.place or Place(0))
        _save(going)
        if taken.place is None or (deadline is not None and time.monotonic() > deadline):
            break
    return dict(found)


def _going(name: str, *, rest: timedelta | None) -> Round | None:
    """The round that is under way, or a new one if it is time; without a rest, a new one."""
    with acting_as_system("rounds"):
        now = database_now()
        last, is_new = Round.objects.get_or_create(name=name, defaults={"begun_at": now})
        if is_new:
            return last
        if rest is not None and (last.ended_at is None or last.ended_at < last.begun_at):
            return last
        if rest is not None and last.begun_at + rest > now:
            return None
        last.begun_at, last.found = now, {}
        _move(last, Place(0))
        last.save(update_fields=["begun_at", "position", "within", "found"])
        return last


def _move(going: Round, place: Place) -> None:
    going.position, going.within = place.position, place.within


def _now() -> datetime:
    with acting_as_system("rounds"):
        return database_now()


def _save(going: Round) -> None:
    with acting_as_system("rounds"):
        going.save(update_fields=["position", "within", "ended_at", "found", "result"])
