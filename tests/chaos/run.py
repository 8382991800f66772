"""Break the product on purpose and judge what it answered: `manage.py chaos [--tasks N] [--seed S]`.

One run: actors at work, faults one after the other, rest, and a history of all of it.
"""

import argparse
import json
import os
import random
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from config.stack.processes import StackError
from tests.chaos.actors import SOURCE, TYPES, Actor, Planner, Poster, Reader, Requester, Steady, Worker, press_house
from tests.chaos.client import Client
from tests.chaos.ground import BREAKAGES, Breakage, Ground, prepared
from tests.chaos.history import Fault, History, Json, now
from tests.chaos.promises import PROMISES, violations
from tests.chaos.readings import reading

# When nobody asks for more, so long may pass without one task less that is open.
_REST: Final = 180.0
# Of one soak. Its actors rest so many times as long and queue so many, so that the machine is not full.
_READINGS: Final = 10
_EASE: Final = 4.0
_SMALL: Final = (10,)
# Of each requester.
_ASKED_FOR: Final = 100
# Violations that are printed.
_SHOWN: Final = 50
_Kind = TypeVar("_Kind", bound=Actor)
Deal = Callable[[random.Random], list[Breakage]]
_TENANTS: Final = ("default", "other")
_OPEN: Final = "select 'task_' || task_id from task_live"
_ENDS: Final = """
    select jsonb_build_object('task_id', 'task_' || task_id, 'status', status, 'complete', true,
        'terminal_receipt_id', receipt_id) from task_history
"""
_RECEIPTS: Final = """
    select jsonb_build_object('receipt_id', r.receipt_id, 'tenant', t.slug, 'recipient', p.name, 'event_type', r.event_type,
        'source', r.source_system, 'dedupe_key', r.dedupe_key, 'task', r.metadata ->> 'task_id', 'in_inbox', r.surface = 'inbox')
    from receipts_receipt r join principals_tenant t on t.id = r.tenant_id
    join principals_principal p on p.id = r.recipient_id order by r.id
"""


def _tokens() -> dict[str, list[str]]:
    """The principals of each tenant: two requesters, two task workers, a poster, and two readers."""
    scopes = {
        "asker": ("ai", ["tasks:queue", "inbox"]),
        "hand": ("worker", ["tasks:work"]),
        "poster": ("service", ["receipts:write"]),
        "reader": ("ai", ["inbox"]),
        "planner": ("ai", ["plans", "inbox", "workers:register"]),
        "steady": ("ai", ["tasks:queue", "tasks:work", "inbox"]),
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
        if role not in {"planner", "steady"} or (tenant, number) == ("default", 1)
    }


@dataclass(slots=True, kw_only=True)
class Chaos:
    """One run, until so many tasks are accepted and every fault has been.

    The same seed makes the same choices; when they meet is the machine's affair.
    """

    tasks: int
    seed: int
    pause: float = 1.0
    """Seconds between two faults, on average."""
    soak: float = 0.0
    """Seconds without a fault that come before; ten readings are told."""
    tell: Callable[[str], None] = print
    deal: Deal = lambda chance: chance.sample(BREAKAGES, len(BREAKAGES))
    """Gives the faults, the last first; by default every kind, in an order of its own."""
    ground: Ground = field(init=False)
    history: History = field(default_factory=History)
    actors: list[Actor] = field(default_factory=list)
    begun: float = 0.0

    def run(self) -> History:
        """Let everybody act while one thing after the other breaks; then wait for the end, and read what is there.

        :raises StackError: if the ground gives way: a server does not start, or an actor fails.
        """
        with (
            prepared(settings="tests.chaos.settings", tokens=_tokens(), tell=self.tell) as self.ground,
            press_house(self.history) as manifest,
        ):
            self.begun = now()
            for tenant in _TENANTS:
                with closing(self._client(f"asker-{tenant}-1")) as client:
                    for name, policy in TYPES.items():
                        status, answer = client.aside("POST", "/api/v1/task-types", {**policy, "name": name})
                        assert status in {200, 201}, answer
            self._start_actors(manifest)
            if self.soak:
                self._soak()
            dice = random.Random(self.seed)  # noqa: S311  # no secret
            deck = self.deal(dice)
            while deck or self._accepted() < self.tasks:
                deck = deck or self.deal(dice)
                self._break(deck.pop(), dice)
                self._hit_a_worker(dice)
                self._wait(dice.uniform(0, 2 * self.pause))
            self._rest()
            self._read()
        return self.history

    def _soak(self) -> None:
        (Actor.ease, Actor.batches), usual = (_EASE, _SMALL), (Actor.ease, Actor.batches)
        probe = Steady(self._client("steady-default-1"))
        self.actors.append(probe)
        probe.start()
        for _ in range(_READINGS):
            since = now()
            self._wait(self.soak / _READINGS)
            self._tell(json.dumps(reading(self.ground, self.history, probe.name, since)))
        self._end([probe])
        Actor.ease, Actor.batches = usual

    def _client(self, name: str) -> Client:
        return Client(
            actor=name,
            tenant=name.split("-")[1],
            token=self.ground.tokens[name],
            url=self.ground.url,
            history=self.history,
            chance=random.Random(f"{self.seed} {name}"),  # noqa: S311  # no secret
        )

    def _start_actors(self, manifest: Json) -> None:
        names = list(self.ground.wanted)
        for name in names:
            role, tenant, _ = name.split("-")
            client = self._client(name)
            if role == "asker":
                self.actors += [Requester(client), Reader(self._client(name))]
            elif role == "hand":
                # Two workers of one principal: their fencing tokens alone tell them apart.
                self.actors += [Worker(client), Worker(self._client(name))]
            elif role == "poster":
                self.actors.append(Poster(client, [one for one in names if one.startswith(f"reader-{tenant}-")]))
            elif role == "reader":
                self.actors.append(Reader(client))
            elif role == "planner":
                self.actors += [Planner(client, manifest), Reader(self._client(name))]
        for actor in self.actors:
            actor.start()

    def _of(self, kind: type[_Kind]) -> list[_Kind]:
        return [actor for actor in self.actors if isinstance(actor, kind)]

    def _accepted(self) -> int:
        return sum(len(asker.accepted) for asker in self._of(Requester))

    def _break(self, breakage: Breakage, dice: random.Random) -> None:
        begin = now()
        breakage.apply(self.ground, dice)
        harms = frozenset(breakage.harms)
        self.history.faults.append(Fault(name=breakage.name, harms=harms, begin=begin, end=now()))
        self._tell(f"{breakage.name} ({now() - begin:.1f} s), {self._accepted():,} tasks")

    def _hit_a_worker(self, dice: random.Random) -> None:
        worker, moment = dice.choice(self._of(Worker)), now()
        worker.fault = dice.choice(["kill", "stop"])
        name = f"{worker.fault} a task worker"
        self.history.faults.append(Fault(name=name, harms=frozenset(), begin=moment, end=moment))

    def _wait(self, seconds: float) -> None:
        """Let everybody work for a while; bring back what has ended by itself."""
        until = now() + seconds
        while True:
            for name in self.ground.ended():
                log = self.ground.logs()[name]
                self._tell(f"{name} ended by itself and is started again; the end of its log:\n{log}")
                self.ground.kept[name].restart()
            for actor in self.actors:
                if actor.failure is not None:
                    raise StackError(f"{actor.name} failed: {actor.failure!r}") from actor.failure
            if now() >= until:
                return
            time.sleep(min(0.2, max(0.0, until - now())))

    def _rest(self) -> None:
        """Nobody asks for more; what is there must come to an end by itself."""
        self._tell("nobody asks for more")
        workers, planners = self._of(Worker), self._of(Planner)
        for planner in planners:
            planner.stopping.set()
        self._end([one for one in self.actors if not isinstance(one, Worker | Planner)])
        left, since = self.ground.ask_database(_OPEN), now()
        while (left or any(one.is_alive() for one in planners)) and now() - since < _REST:
            self._wait(0.5)
            fewer = self.ground.ask_database(_OPEN)
            if len(fewer) < len(left):
                since = now()
            left = fewer
        self.history.unrest += [f"{task} does not come to an end" for (task,) in left]
        self.history.unrest += [f"{one.name} waits for an execution" for one in planners if one.is_alive()]
        self._end(workers)
        self._tell("something does not come to an end" if self.history.unrest else "everything has come to an end")

    def _end(self, actors: Sequence[Actor]) -> None:
        for actor in actors:
            actor.stopping.set()
        for actor in actors:
            while actor.is_alive():
                actor.join(1.0)
                self._wait(0)

    def _read(self) -> None:
        """What the product holds in the end, and of some tasks what it answers."""
        self.history.tasks = {row["task_id"]: row for (row,) in self.ground.ask_database(_ENDS)}
        for asker in self._of(Requester):
            with closing(self._client(asker.name)) as client:
                own = [task for task, call in self.history.accepted.items() if call.actor == asker.name]
                for task in own[:_ASKED_FOR]:
                    self.history.tasks[task] = client.aside("GET", f"/api/v1/tasks/{task}")[1]
        for planner in self._of(Planner):
            self.history.executions += planner.reports
        for name in self.ground.wanted:
            role, tenant, _ = name.split("-")
            if role in {"asker", "reader", "planner", "steady"}:
                self.history.visible[tenant, name] = self._visible(name)
        self.history.receipts = [row for (row,) in self.ground.ask_database(_RECEIPTS)]

    def _visible(self, name: str) -> list[str]:
        """The receipts in all visible entries, once nothing waits in a buffer."""
        deadline = now() + _REST
        with closing(self._client(name)) as client:
            while True:
                after, shown = 0, list[str]()
                while entries := (page := client.aside("GET", f"/api/v1/inbox?limit=500&after={after}")[1])["entries"]:
                    shown += [receipt for entry in entries for receipt in entry["receipt_ids"]]
                    after = entries[-1]["sequence"]
                if page["pending"] and now() > deadline:
                    self.history.unrest.append(f"{page['pending']} receipts of {name} wait in buffers")
                elif page["pending"]:
                    time.sleep(1.0)
                    continue
                return shown

    def _tell(self, what: str) -> None:
        self.tell(f"{now() - self.begun:.1f} s: {what}")


def main(argv: Sequence[str]) -> int:
    """Run chaos, and print figures and violations."""
    checks = "\n".join(f"  {name}: {promise.__doc__}" for name, promise in PROMISES.items())
    parser = argparse.ArgumentParser(
        prog="manage.py chaos",
        description=__doc__,
        epilog=f"promises:\n{checks}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--tasks", type=int, default=1_500, metavar="N", help="run until N tasks are accepted")
    parser.add_argument("--seed", type=int, metavar="S", help="what chooses; the same seed chooses the same")
    parser.add_argument("--pause", type=float, default=1.0, metavar="SECONDS", help="between faults, on average")
    soak = "act for so long before the first fault, and print ten readings of latency, memory and room"
    parser.add_argument("--soak", type=float, default=0.0, metavar="MINUTES", help=soak)
    asked = parser.parse_args(argv)
    seed = secrets.randbelow(10**9) if asked.seed is None else asked.seed
    tell = partial(print, file=sys.stderr, flush=True)
    tell(f"seed {seed}")
    try:
        history = Chaos(tasks=asked.tasks, seed=seed, pause=asked.pause, soak=60 * asked.soak, tell=tell).run()
    except StackError as broken:
        tell(str(broken))
        os._exit(2)  # threads that ask again until they are answered would go on for ever
    found = violations(history)
    figures = {
        "tasks": len(history.accepted),
        "ends": Counter(task["status"] for task in history.tasks.values()),
        "calls": Counter(call.verb for call in history.calls),
        "unanswered": sum(call.status is None for call in history.calls),
        "receipts": len(history.receipts),
        "executions": len(history.executions),
        "faults": Counter(fault.name for fault in history.faults),
        "violations": len(found),
    }
    print(json.dumps(figures, indent=2))
    print(*found[:_SHOWN], sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
