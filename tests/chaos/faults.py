"""What is broken, each for a while, and whom that may keep from answering."""

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from tests.chaos.ground import Ground

LEASE_SECONDS: Final = 2
# After this a session that was ended has been missed by its user.
_NOTICED: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakage:
    """A kind of fault. `apply` breaks something, waits as it likes, and mends it."""

    name: str
    apply: Callable[[Ground, random.Random], None]
    harms: tuple[str, ...] = ()
    """What a caller may feel to be away meanwhile."""
    often: int = 1


def _kill(*names: str) -> Callable[[Ground, random.Random], None]:
    def apply(ground: Ground, chance: random.Random) -> None:
        for name in names:
            ground.kill(name)
        time.sleep(chance.choice([0, 0, 0.5, 2]))
        for name in names:
            ground.start(name)

    return apply


def _kill_web(ground: Ground, _chance: random.Random) -> None:
    ground.kill("web")
    ground.start("web")
    ground.await_serving()


def _pause(name: str, longest: float, ground: Ground, chance: random.Random) -> None:
    ground.pause(name, chance.uniform(LEASE_SECONDS, longest))


def _end_sessions(ground: Ground, chance: random.Random) -> None:
    for _ in range(chance.randint(1, 5)):
        ground.end_sessions(chance, chance.randint(1, 6))
        time.sleep(chance.uniform(0, 0.2))
    time.sleep(_NOTICED)


def _stop_database(number: signal.Signals, ground: Ground, chance: random.Random) -> None:
    ground.stop_database(number)
    time.sleep(chance.choice([0, 0, 1]))
    ground.start_database()
    time.sleep(_NOTICED)


def _flush(ground: Ground, chance: random.Random) -> None:
    for _ in range(chance.randint(1, 10)):
        ground.flush_broker()
        time.sleep(chance.uniform(0, 0.5))


def _kill_broker(ground: Ground, chance: random.Random) -> None:
    ground.kill("valkey")
    time.sleep(chance.choice([0, 1, 5]))
    ground.start_broker()


_CELERY: Final = ("worker-core", "worker-deliver", "worker-execute", "beat")
BREAKAGES: Final = [
    Breakage(name="kill web", apply=_kill_web, harms=("web",), often=2),
    *(Breakage(name=f"kill {name}", apply=_kill(name)) for name in _CELERY),
    Breakage(name="kill all of Celery", apply=_kill(*_CELERY)),
    Breakage(name="pause worker-execute", apply=partial(_pause, "worker-execute", LEASE_SECONDS + 2)),
    Breakage(name="end database sessions", apply=_end_sessions, harms=("database",), often=2),
    Breakage(name="stop database", apply=partial(_stop_database, signal.SIGQUIT), harms=("database",)),
    Breakage(name="kill database", apply=partial(_stop_database, signal.SIGKILL), harms=("database",), often=2),
    Breakage(name="flush broker", apply=_flush, often=2),
    Breakage(name="pause broker", apply=partial(_pause, "valkey", 8)),
    Breakage(name="kill broker", apply=_kill_broker),
]


def choices(chance: random.Random) -> list[Breakage]:
    """Every kind, in an order of its own, some of them several times."""
    hand = [breakage for breakage in BREAKAGES for _ in range(breakage.often)]
    chance.shuffle(hand)
    return hand
