"""Who asks for work: alone and in batches, for families with a budget, by schedules, now and at moments."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from apps.chaos.client import Client, Weather
from apps.chaos.history import Json
from apps.chaos.plans import EXECUTED, OFTEN, PLAIN, QUEUE, TURNS, Plans

# Requesters pause when so many tasks wait.
_DEEP: Final = 600
_KEPT: Final = 400
_ROOM_EVERY: Final = 50
# A schedule lasts so many seconds.
_LASTS: Final = 30.0


@dataclass(slots=True, kw_only=True)
class Requester:
    """Queues, asks again, asks for something else under an old key, cancels, looks things up, pauses the queue."""

    client: Client
    chance: random.Random
    rate: float
    stop: Callable[[], bool]
    plans: Plans
    _number: int = 0
    _looked_for_room: int = 0
    _asked: list[tuple[Json, str]] = field(default_factory=list)
    """What was acknowledged: the request and its task."""
    _schedules: dict[str, float] = field(default_factory=dict)
    """Those that stand, and when they are to go."""

    def run(self) -> None:
        turns: list[tuple[int, Callable[[], None]]] = [
            (350, self._queue),
            (250, self._queue_many),
            (20, self._queue_turns),
            (12, self._queue_family),
            (60, self._repeat),
            (40, self._contradict),
            (80, self._cancel),
            (20, self._look_up),
            (20, self._pause),
            (8, self._schedule),
        ]
        often, acts = [often for often, _ in turns], [act for _, act in turns]
        while not self.stop():
            if self._number - self._looked_for_room >= _ROOM_EVERY:
                self._looked_for_room = self._number
                self._wait_for_room()
            before = self._number
            self.chance.choices(acts, often)[0]()
            self._unschedule(self._gone())
            time.sleep(self.chance.uniform(0, 2 * max(1, self._number - before) / self.rate))
        self._unschedule(list(self._schedules))

    def _wait_for_room(self) -> None:
        while not self.stop() and self._depth() > _DEEP:
            time.sleep(0.25)

    def _depth(self) -> int:
        _, body = self.client.aside("GET", "/api/v1/queues")
        return sum(queue["queued"] for queue in body.get("queues", ()))

    def _request(self, task_type: str | None = None) -> Json:
        self._number += 1
        task_type = task_type or self.chance.choices(list(OFTEN), list(OFTEN.values()))[0]
        plan = self.chance.choices([plan for _, plan in self.plans], [often for often, _ in self.plans])[0]
        return {
            "task_type": task_type,
            "params": {"tenant": self.client.tenant, "asker": self.client.name, "number": self._number, "plan": plan},
            "priority": self.chance.randint(1, 10),
            "idempotency_key": f"{self.client.name}-{self._number}",
        }

    def _any(self) -> Json:
        """A request that may wait for a moment, for others, or for its key."""
        request = self._request()
        if self.chance.random() < 0.08:  # noqa: PLR2004  # of all tasks
            moment = datetime.now(UTC) + timedelta(seconds=self.chance.uniform(0.5, 3))
            request["run_at"] = moment.isoformat()
        if self.chance.random() < 0.05:  # noqa: PLR2004  # of all tasks
            # What executors do is not in the history; the others' ends are.
            told = [task for asked, task in self._asked[-20:] if asked["task_type"] != EXECUTED]
            request["depends_on"] = self.chance.sample(told, min(2, len(told)))
        if self.chance.random() < 0.03:  # noqa: PLR2004  # of all tasks
            # Of each key one task runs at a time; no more may be asked for than that gets done.
            request["concurrency_key"] = f"key-{self.chance.randint(1, 5 + round(self.rate))}"
            request["params"]["keyed"] = True
        return request

    def _queue(self) -> None:
        self._insist(self._any())

    def _queue_many(self) -> None:
        """Many at once, among them now and then one that was asked for before, or that contradicts another."""
        # Up to two seconds' worth.
        many = max(2, round(self.rate * self.chance.choice([0, 0.25, 0.5, 2])))
        requests = [self._any() for _ in range(many)]
        if self.chance.random() < 0.2:  # noqa: PLR2004  # of all batches
            requests.append(self.chance.choice([*requests, *(asked for asked, _ in self._asked[-20:])]))
        if self.chance.random() < 0.1:  # noqa: PLR2004  # of all batches
            requests.append(_contradiction(self.chance.choice(requests)))
        self._insist_on_many(requests)

    def _queue_turns(self) -> None:
        """So many that those who ask at the same time have to share."""
        self._insist_on_many([self._request(TURNS) for _ in range(self.chance.randint(20, 40))])

    def _queue_family(self) -> None:
        """A task with a budget that its children draw from; all of them spend."""
        step = self.chance.randint(5, 20)
        head = self._spending(step)
        head["budget"] = {
            "tokens": self.chance.randint(2, 15) * step,
            "when_spent": self.chance.choice(["fail", "cancel"]),
        }
        task = self._insist(head)
        for _ in range(self.chance.randint(1, 2)):
            if task is None or self.stop():
                return
            self._insist_on_many(
                [{**self._spending(step), "parent_task_id": task} for _ in range(self.chance.randint(2, 5))]
            )
            time.sleep(self.chance.uniform(0, 0.5))

    def _spending(self, step: int) -> Json:
        request = self._request(PLAIN)
        request["params"] |= {"plan": ["slow", "slow"], "spends": step}
        return request

    def _insist(self, request: Json) -> str | None:
        """The task, where it was taken in."""
        status, body = self.client.insist("queue", request, until=self.stop)
        if status not in {200, 201}:
            return None
        self._note(request, body["task_id"])
        return str(body["task_id"])

    def _insist_on_many(self, requests: list[Json]) -> None:
        status, body = self.client.insist("queue_many", {"tasks": requests}, until=self.stop)
        if status == 200:  # noqa: PLR2004  # HTTP
            for request, told in zip(requests, body["results"], strict=True):
                if told["status"] != "refused":
                    self._note(request, told["task_id"])

    def _note(self, request: Json, task: str) -> None:
        self._asked.append((request, task))
        del self._asked[:-_KEPT]

    def _repeat(self) -> None:
        if self._asked:
            self._insist(self.chance.choice(self._asked)[0])

    def _contradict(self) -> None:
        if self._asked:
            self.client.ask("queue", _contradiction(self.chance.choice(self._asked)[0]))

    def _cancel(self) -> None:
        if self._asked:
            # The newest are the likeliest to be open still.
            task = self.chance.choice(self._asked[-20:])[1]
            self.client.ask("cancel", {"task_id": task})

    def _pause(self) -> None:
        """Pause the queue for a moment. Who has asked for it does not end before it is taken back."""
        line: Json = {"queue": QUEUE}
        # No copy comes after it was taken back.
        self.client.ask("pause", line, weather=Weather(late=0))
        time.sleep(self.chance.uniform(0.1, 1.0))
        self.client.insist("resume", line, until=lambda: False)

    def _look_up(self) -> None:
        if self._asked:
            number = int(self._asked[-1][1].removeprefix("task_")) - self.chance.randint(0, 5)
            self.client.ask("look_up", {"task_id": f"task_{max(1, number)}"})

    def _schedule(self) -> None:
        """A schedule that queues for a while. It is this requester's to take back."""
        self._number += 1
        name = f"{self.client.name}-{self._number}"
        self._schedules[name] = time.monotonic() + self.chance.uniform(0.3, 1) * _LASTS
        params = {"tenant": self.client.tenant, "asker": self.client.name, "plan": ["complete"], "schedule": name}
        wanted: Json = {"name": name, "task_type": PLAIN, "params": params, "every_seconds": self.chance.choice([1, 2])}
        wanted["misfire"] = self.chance.choice(["all", "once", "skip"])
        # No copy comes after it was taken back.
        self.client.ask("schedule", wanted, weather=Weather(late=0))

    def _gone(self) -> list[str]:
        return [name for name, until in self._schedules.items() if until < time.monotonic()]

    def _unschedule(self, names: list[str]) -> None:
        for name in names:
            self.client.insist("unschedule", {"name": name}, until=lambda: False)
            del self._schedules[name]


def _contradiction(request: Json) -> Json:
    """Something else under the same key."""
    return {**request, "params": {**request["params"], "number": -1}}
