"""What is broken, each for a while, and whom it may keep from answering."""

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from apps.chaos.ground import Ground
from apps.chaos.plans import LEASE_SECONDS

# After this a session that was ended has been missed by whoever used it.
_NOTICED: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakage:
    """A kind of fault. `apply` breaks something, waits as it likes, and mends it."""

    name: str
    often: int
    apply: Callable[[Ground, random.Random, str], None]
    harms: tuple[str, ...] = ()
    """Who may be felt to be away meanwhile; empty: nobody that a caller speaks to."""
    workers: bool = False
    """Whether it befalls one of the workers that lease over HTTP."""


def _kill(*names: str) -> Callable[[Ground, random.Random, str], None]:
    def apply(ground: Ground, chance: random.Random, _target: str) -> None:
        for name in names:
            ground.kill(name)
        time.sleep(chance.choice([0, 0, 0.5, 2]))
        for name in names:
            ground.start(name)

    return apply


def _kill_web(ground: Ground, chance: random.Random, _target: str) -> None:
    ground.kill("web")
    ground.start("web")
    ground.await_serving()


def _kill_worker(ground: Ground, chance: random.Random, target: str) -> None:
    ground.kill(target)
    ground.start(target)


def _stop_worker(ground: Ground, chance: random.Random, target: str) -> None:
    """It sleeps past its leases, and wakes as if nothing had been."""
    child = ground.children[target]
    child.send_signal(signal.SIGSTOP)
    time.sleep(LEASE_SECONDS + chance.uniform(0.5, 2))
    child.send_signal(signal.SIGCONT)


def _stop_executor(ground: Ground, chance: random.Random, _target: str) -> None:
    """The whole group of processes: its heartbeats stop too."""
    ground.pause("worker-execute", LEASE_SECONDS + chance.uniform(0.5, 2))


def _end_sessions(ground: Ground, chance: random.Random, _target: str) -> None:
    for _ in range(chance.randint(1, 5)):
        ground.end_sessions(chance, chance.randint(1, 6))
        time.sleep(chance.uniform(0, 0.2))
    time.sleep(_NOTICED)


def _stop_database(number: signal.Signals) -> Callable[[Ground, random.Random, str], None]:
    def apply(ground: Ground, chance: random.Random, _target: str) -> None:
        ground.stop_database(number)
        time.sleep(chance.choice([0, 0, 1]))
        ground.start_database()
        time.sleep(_NOTICED)

    return apply


def _flush(ground: Ground, chance: random.Random, _target: str) -> None:
    for _ in range(chance.randint(1, 10)):
        ground.flush_broker()
        time.sleep(chance.uniform(0, 0.5))


def _half_open(ground: Ground, chance: random.Random, _target: str) -> None:
    ground.broker.stop_forwarding()
    time.sleep(chance.choice([2, 4, 8]))
    ground.broker.forward(reset=chance.random() < 0.5)  # noqa: PLR2004  # half of them


def _kill_broker(ground: Ground, chance: random.Random, _target: str) -> None:
    ground.kill("valkey")
    time.sleep(chance.choice([0, 1, 5]))
    ground.start_broker()


BREAKAGES: Final = [
    Breakage(name="kill web", often=2, apply=_kill_web, harms=("web",)),
    Breakage(name="kill a Celery worker", often=1, apply=_kill("worker-core")),
    Breakage(name="kill the deliverers", often=1, apply=_kill("worker-deliver")),
    Breakage(name="kill the executors", often=3, apply=_kill("worker-execute")),
    Breakage(name="kill beat", often=1, apply=_kill("beat")),
    Breakage(
        name="kill all kinds of Celery workers and beat",
        often=1,
        apply=_kill("worker-core", "worker-deliver", "worker-execute", "beat"),
        # Nobody that a caller speaks to; but nobody sweeps until they have started again.
        harms=("sweeps",),
    ),
    Breakage(name="stop the executors past their leases", often=1, apply=_stop_executor),
    Breakage(name="kill a worker", often=3, apply=_kill_worker, workers=True),
    Breakage(name="stop a worker past its leases", often=3, apply=_stop_worker, workers=True),
    Breakage(name="end sessions of the database", often=3, apply=_end_sessions, harms=("database",)),
    Breakage(name="stop the database at once", often=2, apply=_stop_database(signal.SIGQUIT), harms=("database",)),
    Breakage(name="kill the database", often=2, apply=_stop_database(signal.SIGKILL), harms=("database",)),
    Breakage(name="flush the broker", often=2, apply=_flush, harms=("broker",)),
    Breakage(name="half-open broker", often=2, apply=_half_open, harms=("broker",)),
    Breakage(name="kill the broker", often=1, apply=_kill_broker, harms=("broker",)),
]


def choices(chance: random.Random) -> list[Breakage]:
    """Every kind in an order of its own, some of them several times."""
    hand = [breakage for breakage in BREAKAGES for _ in range(breakage.often)]
    chance.shuffle(hand)
    return hand
