"""One run of chaos: actors at work, faults one after the other, rest, and a history of all of it."""

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from config.stack.processes import last_lines
from tests.chaos import faults
from tests.chaos.actors import (
    QUEUE,
    SOURCE,
    TYPES,
    Actor,
    Cast,
    Planner,
    Poster,
    Reader,
    Requester,
    Worker,
    chance,
    press_house,
)
from tests.chaos.client import Client
from tests.chaos.faults import LEASE_SECONDS, Breakage
from tests.chaos.ground import Broken, Ground, prepared
from tests.chaos.history import Fault, History, Json, Receipt, now

# When nobody asks for more, so long may pass without one task less that is open.
_REST: Final = 180.0
_TENANTS: Final = ("default", "other")
_RECEIPTS: Final = """
    select r.receipt_id, t.slug, p.name, r.source_system, r.dedupe_key, r.event_type, r.metadata ->> 'task_id',
           r.surface = 'inbox'
    from receipts_receipt r join principals_tenant t on t.id = r.tenant_id
    join principals_principal p on p.id = r.recipient_id order by r.id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run is to be. The same seed makes the same choices; when they meet is the machine's affair."""

    tasks: int
    """The run goes on until so many tasks are accepted and every fault has been."""
    seed: int
    pause: float = 1.0
    """Seconds between two faults, on average."""
    breakages: bool = True
    settings: str = "tests.chaos.settings"
    longest: float = 3600.0
    """Seconds after which it ends in any case."""
    tell: Callable[[str], None] = print


def run(plan: Plan) -> History:
    """Run it.

    :raises StackError: if a server does not start.
    :raises Broken: if the ground gives way otherwise.
    """
    history = History()
    with prepared(settings=plan.settings, tokens=_tokens()) as ground, press_house(history) as manifest:
        _Run(plan, ground, history).go(manifest)
    return history


def _tokens() -> dict[str, list[str]]:
    """The principals of each tenant: two requesters, two task workers, a poster, and two readers."""
    scopes = {
        "asker": ("ai", ["tasks:queue", "inbox"]),
        "hand": ("worker", ["tasks:work"]),
        "poster": ("service", ["receipts:write"]),
        "reader": ("ai", ["inbox"]),
        "planner": ("ai", ["plans", "inbox", "workers:register"]),
    }
    return {
        f"{role}-{tenant}-{number}": [
            *("--principal", f"{role}-{tenant}-{number}", "--kind", kind, "--tenant", tenant),
            *(part for scope in wanted for part in ("--scope", scope)),
            *(("--source-system", SOURCE) if role == "poster" else ()),
        ]
        for tenant in _TENANTS
        for role, (kind, wanted) in scopes.items()
        for number in ((1, 2) if tenant == "default" else (1,))
        if role != "planner" or (tenant, number) == ("default", 1)
    }


@dataclass(slots=True)
class _Run:
    plan: Plan
    ground: Ground
    history: History
    cast: Cast = field(default_factory=Cast)
    begun: float = field(default_factory=now)

    def go(self, manifest: Json) -> None:
        """Let everybody act while one thing after the other breaks; then wait for the end, and read what is there."""
        for tenant in _TENANTS:
            self._register_types(self._client(f"asker-{tenant}-1"))
        self._start_actors(manifest)
        dice = random.Random(self.plan.seed)  # noqa: S311  # no secret
        left = faults.choices(dice) if self.plan.breakages else []
        deck = list(left)
        while now() - self.begun < self.plan.longest and (left or self._accepted() < self.plan.tasks):
            if self.plan.breakages:
                deck = deck or faults.choices(dice)
                breakage = deck.pop()
                left = [one for one in left if one is not breakage]
                self._break(breakage, dice)
                self._hit_a_worker(dice)
            self._wait(dice.uniform(0, 2 * self.plan.pause))
        self._rest()
        self._read()

    def _client(self, name: str) -> Client:
        return Client(
            actor=name,
            tenant=name.split("-")[1],
            token=self.ground.tokens[name],
            port=self.ground.port,
            history=self.history,
            chance=chance(self.plan.seed, name),
        )

    def _register_types(self, client: Client) -> None:
        for name, policy in TYPES.items():
            wanted: Json = {**policy, "name": name, "queue": QUEUE, "lease_seconds": LEASE_SECONDS}
            wanted |= {"max_attempts": 3, "max_expiries": 20, "backoff": {"base_seconds": 0.1, "cap_seconds": 1.0}}
            status, answer = client.aside("POST", "/api/v1/task-types", wanted)
            if status not in {200, 201}:
                raise Broken(f"The task type {name} was refused: {answer}")

    def _start_actors(self, manifest: Json) -> None:
        names = list(self.ground.tokens)
        for name in names:
            role, tenant, _ = name.split("-")
            client = self._client(name)
            if role == "asker":
                self.cast.requesters.append(Requester(client))
            elif role == "hand":
                # Two workers of one principal: their fences alone tell them apart.
                self.cast.workers += [Worker(client), Worker(self._client(name))]
            elif role == "poster":
                readers = [other for other in names if other.startswith(f"reader-{tenant}-")]
                self.cast.posters.append(Poster(client, readers))
            elif role == "reader":
                self.cast.readers.append(Reader(client))
            else:
                self.cast.planners.append(Planner(client, manifest))
        for actor in self.cast.everybody:
            actor.start()

    def _accepted(self) -> int:
        return sum(1 for call in list(self.history.calls) if call.verb == "queue" and call.ok)

    def _break(self, breakage: Breakage, dice: random.Random) -> None:
        begin = now()
        breakage.apply(self.ground, dice)
        harms = frozenset(breakage.harms)
        self.history.faults.append(Fault(name=breakage.name, harms=harms, begin=begin, end=now()))
        self._tell(f"{breakage.name} ({now() - begin:.1f} s), {self._accepted():,} tasks")

    def _hit_a_worker(self, dice: random.Random) -> None:
        worker, worker_fault = dice.choice(self.cast.workers), dice.choice(["kill", "stop"])
        worker.fault = worker_fault
        moment = now()
        fault = Fault(name=f"{worker_fault} a task worker", harms=frozenset(), begin=moment, end=moment)
        self.history.faults.append(fault)

    def _wait(self, seconds: float) -> None:
        """Let everybody work for a while; bring back what has ended by itself."""
        until = now() + seconds
        while True:
            for name in self.ground.ended():
                log = last_lines(self.ground.described[name].log)
                self._tell(f"{name} ended by itself and is started again; the end of its log:\n{log}")
                self.ground.start(name)
            for actor in self.cast.everybody:
                if actor.failure is not None:
                    raise Broken(f"{actor.name} failed: {actor.failure!r}") from actor.failure
            if now() >= until:
                return
            time.sleep(min(0.2, max(0.0, until - now())))

    def _rest(self) -> None:
        """Nobody asks for more; what is there must come to an end by itself."""
        self._tell("nobody asks for more")
        asking: list[Actor] = [*self.cast.requesters, *self.cast.posters, *self.cast.readers, *self.cast.planners]
        for actor in asking:
            actor.stopping.set()
        self._await_end([one for one in asking if not isinstance(one, Planner)])
        left, since = self._open_tasks(), now()
        while (left or any(one.is_alive() for one in self.cast.planners)) and now() - since < _REST:
            self._wait(0.5)
            fewer = self._open_tasks()
            if len(fewer) < len(left):
                since = now()
            left = fewer
        self.history.unrest += [f"{task} does not come to an end" for task in left]
        self.history.unrest += [f"{one.name} waits for an execution" for one in self.cast.planners if one.is_alive()]
        for worker in self.cast.workers:
            worker.stopping.set()
        self._await_end(self.cast.workers)
        self._tell("something does not come to an end" if self.history.unrest else "everything has come to an end")

    def _await_end(self, actors: Sequence[Actor]) -> None:
        for actor in actors:
            while actor.is_alive():
                actor.join(1.0)
                self._wait(0)

    def _open_tasks(self) -> list[str]:
        """The accepted tasks that have no end yet; how the others ended is noted."""
        calls = {call.body["task_id"]: call for call in list(self.history.calls) if call.verb == "queue" and call.ok}
        waiting = {task: call for task, call in calls.items() if task not in self.history.tasks}
        by_actor: dict[str, list[str]] = {}
        for task, call in waiting.items():
            by_actor.setdefault(call.actor, []).append(task)
        with ThreadPoolExecutor(max(1, len(by_actor))) as pool:
            found = pool.map(lambda pair: self._look_up(*pair), by_actor.items())
        for ended in found:
            self.history.tasks |= ended
        return [task for task in waiting if task not in self.history.tasks]

    def _look_up(self, actor: str, tasks: list[str]) -> dict[str, Json]:
        client, found = self._client(actor), {}
        for task in tasks:
            _, body = client.aside("GET", f"/api/v1/tasks/{task}")
            if body.get("complete"):
                found[task] = body
        client.close()
        return found

    def _read(self) -> None:
        """What the product holds in the end."""
        for planner in self.cast.planners:
            self.history.executions += planner.reports
        for name in self.ground.tokens:
            role, tenant, _ = name.split("-")
            if role in {"asker", "reader", "planner"}:
                self.history.visible[tenant, name] = self._visible(name)
        names = ("receipt_id", "tenant", "recipient", "source", "dedupe_key", "event_type", "task", "in_inbox")
        rows = self.ground.ask_database(_RECEIPTS)
        self.history.receipts = [Receipt(**dict(zip(names, row, strict=True))) for row in rows]

    def _visible(self, name: str) -> list[str]:
        """The receipts in all visible entries, once nothing waits in a buffer."""
        client, deadline = self._client(name), now() + _REST
        while True:
            after, shown = 0, list[str]()
            while True:
                _, page = client.aside("GET", f"/api/v1/inbox?limit=500&after={after}")
                if not page["entries"]:
                    break
                shown += [receipt for entry in page["entries"] for receipt in entry["receipt_ids"]]
                after = page["entries"][-1]["sequence"]
            if not page["pending"]:
                client.close()
                return shown
            if now() > deadline:
                self.history.unrest.append(f"{page['pending']} receipts of {name} wait in buffers")
                return shown
            time.sleep(1.0)

    def _tell(self, what: str) -> None:
        self.plan.tell(f"{now() - self.begun:.1f} s: {what}")


def summary(history: History, found: list[str]) -> Json:
    """What a run was, in figures."""
    calls: dict[str, int] = {}
    ends: dict[str, int] = {}
    for call in history.calls:
        calls[call.verb] = calls.get(call.verb, 0) + 1
    for task in history.tasks.values():
        ends[task["status"]] = ends.get(task["status"], 0) + 1
    kinds: dict[str, int] = {}
    for fault in history.faults:
        kinds[fault.name] = kinds.get(fault.name, 0) + 1
    return {
        "tasks": len(history.accepted),
        "ends": ends,
        "calls": calls,
        "unanswered": sum(call.status is None for call in history.calls),
        "receipts": len(history.receipts),
        "executions": len(history.executions),
        "faults": kinds,
        "violations": len(found),
    }
