"""Who does the work: leases, and does with each run what its params plan, alone or many in one call."""

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from apps.chaos.client import Client, Weather
from apps.chaos.history import Json
from apps.chaos.plans import FAIR, LEASE_SECONDS, QUEUE

_STORMY: Final = Weather(swallowed=3, doubled=20, late=3)
_FAIR: Final = Weather(swallowed=1, doubled=1, late=0)
# So many seconds at most between two heartbeats of what is in hand.
_BEAT: Final = 1.0
# So many runs at most are in hand before more are leased, and so few that can be done at once.
_MOST: Final = 150
_FEW: Final = 30
_ERROR: Final = {"code": "planned", "message": "It was to fail."}


@dataclass(slots=True, kw_only=True)
class Hand:
    """A lease in this worker's hands, or one that it has let slip."""

    task: str
    run: int
    token: str
    act: str
    due: float
    """When this worker takes the lease for over, by its own clock; or when it comes late with it."""
    until: float
    """When work that takes long is done."""
    step: int
    """What it spends between two heartbeats."""
    beats: int = 0

    @property
    def proof(self) -> Json:
        return {"task_id": self.task, "lease_token": self.token}


@dataclass(slots=True, kw_only=True)
class Worker:
    """Leases, and does what is planned. Its clock is off by `skew` seconds; it uses nothing but remaining time."""

    client: Client
    chance: random.Random
    skew: float
    stop: Callable[[], bool]
    _hands: list[Hand] = field(default_factory=list)
    _slipped: list[Hand] = field(default_factory=list)
    _beaten: float = 0.0
    """When the next heartbeat is due."""

    def run(self) -> None:
        while not self.stop():
            self._come_late()
            if len(self._ready()) < _FEW and len(self._hands) < _MOST:
                self._lease()
            self._beat_in_time()
            if ready := self._ready():
                self._do(ready)
            else:
                time.sleep(self.chance.uniform(0.02, 0.1))
        self._end_all("release", self._hands)

    def _clock(self) -> float:
        return time.time() + self.skew

    def _lease(self) -> None:
        dice = self.chance.random()
        asked: Json = {"queues": [QUEUE], "capacity": self.chance.choice([1, 2, 8, 20, 50])}
        if dice < 0.15:  # noqa: PLR2004  # of all leases
            asked = {"queues": [FAIR], "capacity": self.chance.choice([1, 2, 5, 10])}
        elif dice < 0.3:  # noqa: PLR2004  # of all leases
            asked["queues"] = [FAIR, QUEUE]
        if not self._hands and self.chance.random() < 0.5:  # noqa: PLR2004  # of those with nothing to do
            asked["wait_seconds"] = self.chance.choice([0.5, 1, 2])
        _, body = self.client.ask("lease", {**asked, "lease_seconds": LEASE_SECONDS}, weather=_FAIR)
        self._take(body.get("tasks", ()))

    def _take(self, given: list[Json]) -> None:
        """Have these in hand, each with what is planned for its run."""
        for one in given:
            plan, run = one["params"]["plan"], one["run_id"]
            hand = Hand(
                task=one["task_id"],
                run=run,
                token=one["lease_token"],
                act=plan[run - 1] if run <= len(plan) else "complete",
                due=self._clock() + one["lease_ms"] / 1000,
                until=_together(time.monotonic() + self.chance.uniform(0.5, 3)),
                step=one["params"].get("spends", 0),
            )
            self._hands.append(hand)
        if given:
            self._beaten = min(self._beaten, time.monotonic() + self.chance.uniform(0, _BEAT))

    def _ready(self) -> list[Hand]:
        return [hand for hand in self._hands if hand.act != "slow" or hand.until < time.monotonic()]

    def _beat_in_time(self) -> None:
        """Keep alive what is in hand, in an order of its own each time."""
        if self._hands and time.monotonic() >= self._beaten:
            self._beaten = time.monotonic() + self.chance.uniform(0.4, _BEAT)
            self._beat(self.chance.sample(self._hands, len(self._hands)))

    def _beat(self, hands: list[Hand]) -> None:
        leases = [self._sign_of_life(hand) for hand in hands]
        status, body = self.client.ask("heartbeat", {"leases": leases}, weather=_STORMY)
        if status != 200:  # noqa: PLR2004  # HTTP
            return
        for hand, answer in zip(hands, body["results"], strict=True):
            if answer["status"] == "lost":
                self._hands.remove(hand)
            elif answer["status"] == "ok":
                hand.due = self._clock() + answer["lease_ms"] / 1000
                self._obey(hand, answer)

    def _obey(self, hand: Hand, answer: Json) -> None:
        # Some go on spending though they were told that nothing is left.
        stubborn = answer["reason"] == "budget_exhausted" and self.chance.random() < 0.3  # noqa: PLR2004  # of those
        if answer["order"] == "cancel" and not stubborn:
            hand.act = "release"

    def _sign_of_life(self, hand: Hand) -> Json:
        hand.beats += 1
        sign = {**hand.proof, "sequence": hand.beats}
        if self.chance.random() < 0.5:  # noqa: PLR2004  # of all beats
            sign["checkpoint"] = {"run": hand.run, "beat": hand.beats, "by": self.client.name}
        if hand.step:
            sign["spend"] = {"tokens": hand.beats * hand.step}
        return sign

    def _do(self, ready: list[Hand]) -> None:
        """Do what is planned with one of these, or with several for which the same is planned."""
        act = self.chance.choice(ready).act
        several = self.chance.choice([1, 5, 20, 50, 50])
        hands = [hand for hand in ready if hand.act == act][:several]
        self._hands = [hand for hand in self._hands if hand not in hands]
        if act in {"expire", "late"}:
            for hand in hands:
                hand.due += self.chance.uniform(0.2, 3)
            self._slipped += hands
        elif act == "release":
            self._end_all("release", hands)
        elif act in {"fail", "final"}:
            self._end_all("fail", hands)
        else:
            self._end_all("complete", hands)

    def _end_all(self, verb: str, hands: list[Hand]) -> None:
        """End these runs, in one call if there are several."""
        if len(hands) > 1:
            ends = [{**hand.proof, **self._how(verb, hand)} for hand in hands]
            self._send(f"{verb}_many", {_MANY[verb]: ends, **self._and_next(verb)})
            if self.chance.random() < 0.03:  # noqa: PLR2004  # of all calls
                self.client.ask(verb, self.chance.choice(ends))
        elif hands:
            request = {**hands[0].proof, **self._how(verb, hands[0]), **self._and_next(verb)}
            self._send(verb, request)
            if self.chance.random() < 0.03:  # noqa: PLR2004  # of all calls
                self.client.ask(verb, request)

    def _send(self, verb: str, request: Json) -> None:
        _, body = self.client.insist(verb, request, until=self.stop)
        self._take(body.get("next", ()))

    def _how(self, verb: str, hand: Hand) -> Json:
        if verb == "complete":
            return {"result": {"run": hand.run}, "summary": "Done."}
        if verb == "release":
            return {}
        again = {"retry_after": round(self.chance.uniform(0, 1), 3)} if hand.act == "fail" else {}
        return {"error": _ERROR, "retryable": hand.act == "fail", **again}

    def _and_next(self, verb: str) -> Json:
        """Now and then, what leases others with the same call."""
        if verb != "complete" or self.chance.random() >= 0.1:  # noqa: PLR2004  # of all completions
            return {}
        source = {"queues": [QUEUE], "lease_seconds": LEASE_SECONDS}
        return {"lease_next": self.chance.choice([1, 3, 10]), "lease_from": source}

    def _come_late(self) -> None:
        """Report what has slipped, some time after its lease: the fence must keep it out if anybody has it since."""
        due = [hand for hand in self._slipped if self._clock() >= hand.due]
        self._slipped = [hand for hand in self._slipped if hand not in due]
        # The others are forgotten.
        late = [hand for hand in due if hand.act == "late" or self.chance.random() < 0.5]  # noqa: PLR2004  # of those
        ends = [{**hand.proof, "result": {"late": hand.run}} for hand in late]
        if len(ends) > 1:
            self.client.ask("complete_many", {"completions": ends})
        elif ends:
            self.client.ask("complete", ends[0])


def _together(moment: float) -> float:
    """A moment at which more than one may be done."""
    return math.ceil(2 * moment) / 2


_MANY: Final = {"complete": "completions", "fail": "failures", "release": "releases"}
"""What names those that end in one call."""
