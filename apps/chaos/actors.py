"""Who asks for work and who does it, each a process: ``python -m apps.chaos.actors '{…}'``.

Everybody chooses by a seed, and everybody does with a task what its params plan for the run: complete it, fail it,
give it back, forget it, come late with it. Plain Python, over HTTP, as any stranger would.
"""

import json
import random
import signal
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import Final

from apps.chaos.client import Client, Weather
from apps.chaos.history import Json, Recorder

Plans = list[tuple[int, list[str]]]

QUEUE: Final = "chaos"
PLAIN, STRICT, LIMITED, EXECUTED = "chaos_plain", "chaos_strict", "chaos_limited", "chaos_executed"
LEASE_SECONDS: Final = 2
_STORMY: Final = Weather(swallowed=3, doubled=20, late=3)
# Requesters pause when so many tasks wait.
_DEEP: Final = 400
_KEPT: Final = 400
# So many runs at most are completed in one call.
_TOGETHER: Final = 4

# What becomes of a task's first runs; whatever comes after them completes it. How often, of a hundred.
PLANS: Final[Plans] = [
    (52, ["complete"]),
    (10, ["fail", "complete"]),
    (3, ["fail"] * 3),
    (3, ["final"]),
    (6, ["release", "complete"]),
    (8, ["expire", "complete"]),
    (2, ["expire"] * 3),
    (10, ["late", "slow"]),
    (2, ["slow"]),
    (4, ["expire", "slow"]),
]


@dataclass(slots=True)
class Stop:
    """Set by SIGTERM: finish what is at hand, and end."""

    asked: bool = False

    def ask(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True

    def __call__(self) -> bool:
        return self.asked


@dataclass(slots=True, kw_only=True)
class Requester:
    """Queues, asks again, asks for something else under an old key, cancels, looks things up, pauses the queue."""

    client: Client
    chance: random.Random
    rate: float
    stop: Stop
    plans: Plans
    _number: int = 0
    _asked: list[tuple[Json, str]] = field(default_factory=list)
    """What was acknowledged: the request and its task."""

    def run(self) -> None:
        turns = (
            [self._queue] * 77
            + [self._repeat] * 6
            + [self._contradict] * 4
            + [self._cancel] * 8
            + [self._look_up] * 2
            + [self._pause] * 3
        )
        while not self.stop():
            if self._number % 50 == 0:
                self._wait_for_room()
            self.chance.choice(turns)()
            time.sleep(self.chance.uniform(0, 2 / self.rate))

    def _wait_for_room(self) -> None:
        while not self.stop() and self._depth() > _DEEP:
            time.sleep(0.25)

    def _depth(self) -> int:
        _, body = self.client.aside("GET", "/api/v1/queues")
        return sum(queue["queued"] for queue in body.get("queues", ()))

    def _queue(self) -> None:
        self._number += 1
        task_type = self.chance.choices([PLAIN, STRICT, LIMITED, EXECUTED], [70, 10, 8, 12])[0]
        plan = self.chance.choices([plan for _, plan in self.plans], [often for often, _ in self.plans])[0]
        request: Json = {
            "task_type": task_type,
            "params": {"tenant": self.client.tenant, "number": self._number, "plan": plan},
            "priority": self.chance.randint(1, 10),
            "idempotency_key": f"{self.client.name}-{self._number}",
        }
        if self.chance.random() < 0.08:  # noqa: PLR2004  # of all tasks
            moment = datetime.now(UTC) + timedelta(seconds=self.chance.uniform(0.5, 3))
            request["run_at"] = moment.isoformat()
        if self.chance.random() < 0.05:  # noqa: PLR2004  # of all tasks
            # What executors do is not in the history; the others' ends are.
            told = [task for asked, task in self._asked[-20:] if asked["task_type"] != EXECUTED]
            request["depends_on"] = self.chance.sample(told, min(2, len(told)))
        if self.chance.random() < 0.03:  # noqa: PLR2004  # of all tasks
            request["concurrency_key"] = f"key-{self.chance.randint(1, 5)}"
            request["params"]["keyed"] = True
        self._insist(request)

    def _insist(self, request: Json) -> None:
        status, body = self.client.insist("queue", request, until=self.stop)
        if status in {200, 201}:
            self._asked.append((request, body["task_id"]))
            del self._asked[:-_KEPT]

    def _repeat(self) -> None:
        if self._asked:
            self._insist(self.chance.choice(self._asked)[0])

    def _contradict(self) -> None:
        if self._asked:
            request = self.chance.choice(self._asked)[0]
            self.client.ask("queue", {**request, "params": {**request["params"], "number": -1}})

    def _cancel(self) -> None:
        if self._asked:
            # The newest are the likeliest to be open still.
            task = self.chance.choice(self._asked[-20:])[1]
            self.client.ask("cancel", {"task_id": task})

    def _pause(self) -> None:
        """Pause the queue for a moment. Who has asked for it does not end before it is taken back."""
        line: Json = {"queue": QUEUE}
        self.client.ask("pause", line)
        time.sleep(self.chance.uniform(0.1, 1.0))
        self.client.insist("resume", line, until=lambda: False)

    def _look_up(self) -> None:
        if self._asked:
            number = int(self._asked[-1][1].removeprefix("task_")) - self.chance.randint(0, 5)
            self.client.ask("look_up", {"task_id": f"task_{max(1, number)}"})


@dataclass(slots=True, kw_only=True)
class Hand:
    """A lease in this worker's hands, or one that it has let slip."""

    task: str
    run: int
    token: str
    act: str
    due: float
    """When this worker takes the lease for over, by its own clock; or when it comes late with it."""
    beats: int = 0


@dataclass(slots=True, kw_only=True)
class Worker:
    """Leases, and does what is planned. Its clock is off by `skew` seconds; it uses nothing but remaining time."""

    client: Client
    chance: random.Random
    skew: float
    stop: Stop
    _slipped: list[Hand] = field(default_factory=list)

    def run(self) -> None:
        while not self.stop():
            self._come_late()
            capacity = self.chance.choice([1, 2, 4, 8])
            asked = {"queues": [QUEUE], "capacity": capacity, "lease_seconds": LEASE_SECONDS}
            _, body = self.client.ask("lease", asked, weather=Weather(swallowed=1, doubled=1, late=0))
            hands = [self._taken(given) for given in body.get("tasks", ())]
            if not hands:
                time.sleep(self.chance.uniform(0.05, 0.2))
            self._work(hands)

    def _clock(self) -> float:
        return time.time() + self.skew

    def _taken(self, given: Json) -> Hand:
        plan = given["params"]["plan"]
        run = given["run_id"]
        return Hand(
            task=given["task_id"],
            run=run,
            token=given["lease_token"],
            act=plan[run - 1] if run <= len(plan) else "complete",
            due=self._clock() + given["lease_ms"] / 1000,
        )

    def _work(self, hands: list[Hand]) -> None:
        """Do them one after the other; the lease of those that wait is kept alive."""
        while hands and not self.stop():
            if self.chance.random() < 0.3:  # noqa: PLR2004  # of all turns
                hands = self._beat(hands)
            together = [hand for hand in hands if hand.act == "complete"][:_TOGETHER]
            if len(together) > 1 and self.chance.random() < 0.2:  # noqa: PLR2004  # of all turns that could
                hands = [hand for hand in hands if hand not in together] + self._complete_many(together)
            elif hands:
                hands += self._do(hands.pop(0), hands)
        for hand in hands:
            self._end(hand, "release", {})

    def _beat(self, hands: list[Hand]) -> list[Hand]:
        """Keep these alive; what is left of them."""
        leases = [self._sign_of_life(hand) for hand in hands]
        status, body = self.client.ask("heartbeat", {"leases": leases}, weather=_STORMY)
        if status != 200:  # noqa: PLR2004  # HTTP
            return hands
        for hand, answer in zip(hands, body["results"], strict=True):
            if answer["status"] == "ok":
                hand.due = self._clock() + answer["lease_ms"] / 1000
            if answer["order"] == "cancel" and answer["status"] == "ok":
                hand.act = "release"
        return [hand for hand, answer in zip(hands, body["results"], strict=True) if answer["status"] != "lost"]

    def _sign_of_life(self, hand: Hand) -> Json:
        hand.beats += 1
        sign: Json = {"task_id": hand.task, "lease_token": hand.token}
        if self.chance.random() < 0.5:  # noqa: PLR2004  # of all beats
            sign["checkpoint"] = {"run": hand.run, "beat": hand.beats, "by": self.client.name}
        return sign

    def _do(self, hand: Hand, waiting: list[Hand]) -> list[Hand]:
        """Do what is planned; answers what was leased with it."""
        if hand.act == "complete":
            return self._complete(hand)
        if hand.act == "slow":
            self._slowly(hand, waiting)
        elif hand.act in {"expire", "late"}:
            hand.due += self.chance.uniform(0.2, 3)
            self._slipped.append(hand)
        elif hand.act == "release":
            self._end(hand, "release", {})
        else:
            again = {"retry_after": round(self.chance.uniform(0, 1), 3)} if hand.act == "fail" else {}
            self._end(hand, "fail", {"error": _ERROR, "retryable": hand.act == "fail", **again})
        return []

    def _complete(self, hand: Hand) -> list[Hand]:
        body = self._end(hand, "complete", {**_done(hand), **self._and_next()})
        return [self._taken(given) for given in body.get("next", ())]

    def _complete_many(self, hands: list[Hand]) -> list[Hand]:
        completions = [{"task_id": hand.task, "lease_token": hand.token, **_done(hand)} for hand in hands]
        request = {"completions": completions, **self._and_next()}
        _, body = self.client.insist("complete_many", request, until=self.stop)
        return [self._taken(given) for given in body.get("next", ())]

    def _and_next(self) -> Json:
        """Now and then, what leases others with the same call."""
        if self.chance.random() >= 0.1:  # noqa: PLR2004  # of all completions
            return {}
        source = {"queues": [QUEUE], "lease_seconds": LEASE_SECONDS}
        return {"lease_next": self.chance.choice([1, 3]), "lease_from": source}

    def _slowly(self, hand: Hand, waiting: list[Hand]) -> None:
        until = time.monotonic() + self.chance.uniform(0.5, 3)
        while time.monotonic() < until and not self.stop():
            if hand not in self._beat([hand, *waiting]):
                return
            time.sleep(0.1)
        self._end(hand, "complete", {"result": {"run": hand.run}, "summary": "Done slowly."})

    def _end(self, hand: Hand, verb: str, members: Json) -> Json:
        request = {"task_id": hand.task, "lease_token": hand.token, **members}
        _, body = self.client.insist(verb, request, until=self.stop)
        if self.chance.random() < 0.03:  # noqa: PLR2004  # of all ends
            self.client.ask(verb, request)
        return body

    def _come_late(self) -> None:
        """Report what has slipped, some time after its lease: the fence must keep it out if anybody has it since."""
        rest = []
        for hand in self._slipped:
            if self._clock() < hand.due:
                rest.append(hand)
            elif hand.act == "late" or self.chance.random() < 0.5:  # noqa: PLR2004  # the others are forgotten
                request = {"task_id": hand.task, "lease_token": hand.token, "result": {"late": hand.run}}
                self.client.ask("complete", request)
        self._slipped = rest


def _done(hand: Hand) -> Json:
    return {"result": {"run": hand.run}, "summary": "Done."}


_ERROR: Final = {"code": "planned", "message": "It was to fail."}


def main(given: Json) -> None:
    """Act until SIGTERM."""
    stop = Stop()
    signal.signal(signal.SIGTERM, stop.ask)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    recorder = Recorder(Path(given["history"]))
    # No secret: the same seed gives each of them the same choices.
    chance = random.Random(f"{given['seed']} {given['name']}")  # noqa: S311
    client = Client(
        actor=given["actor"],
        tenant=given["tenant"],
        token=given["token"],
        port=given["port"],
        swallowing_port=given["swallowing_port"],
        recorder=recorder,
        chance=chance,
        name=given["name"],
    )
    try:
        if given["role"] == "worker":
            Worker(client=client, chance=chance, skew=given["skew"], stop=stop).run()
        else:
            Requester(client=client, chance=chance, rate=given["rate"], stop=stop, plans=given["plans"]).run()
    finally:
        client.close()
        recorder.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
