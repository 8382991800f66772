"""One run of chaos: actors at work, faults one after the other, rest, and a history of all of it."""

import json
import random
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psycopg

from apps.chaos import faults, looks
from apps.chaos.executed import handlers as executed
from apps.chaos.faults import Breakage
from apps.chaos.ground import Broken, Ground, actor, prepared
from apps.chaos.history import Json, Recorder, now
from apps.chaos.plans import EXECUTED, FAIR, LEASE_SECONDS, PLANS, TYPES, Plans
from config.stack.processes import bound_log, last_lines

_HOUR: Final = 3600.0
# Once nobody asks for more, so long may pass without one task less that is open.
_REST: Final = 180.0
# How a session of the database ends by a defect of the server: of these faults none is among those of a run.
_CRASHES: Final = (signal.SIGSEGV.value, signal.SIGABRT.value, signal.SIGBUS.value)
_TENANTS: Final = ("default", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run is to be. The same seed makes the same choices; what they meet is the machine's own affair."""

    seconds: float
    seed: int
    history: Path
    rate: float = 12.0
    """Tasks a second that each requester asks for, at most."""
    pause: float = 0.8
    """Seconds between two faults, on average."""
    plans: Plans = field(default_factory=lambda: PLANS)
    """What becomes of tasks, and how often of how many."""
    settings: str = "apps.chaos.settings"
    """The Django settings of the product's processes."""
    breakages: bool = True
    tell: Callable[[str], None] = print


def run(plan: Plan) -> None:
    """Run it, and write its history.

    :raises StackError: if a server does not start.
    :raises Broken: if the ground gives way otherwise.
    """
    plan.history.unlink(missing_ok=True)
    recorder = Recorder(plan.history)
    try:
        with prepared(settings=plan.settings, clock_of_executors=_HOUR, tokens=_tokens()) as ground:
            _Run(plan=plan, ground=ground, recorder=recorder).go()
    finally:
        recorder.close()


def _tokens() -> dict[str, list[str]]:
    """The requesters and workers of each tenant."""
    return {
        name: [
            *("--principal", name, "--kind", kind, "--tenant", tenant),
            *(part for scope in scopes for part in ("--scope", scope)),
        ]
        for tenant in _TENANTS
        for kind, scopes, names in (
            ("ai", ["tasks:queue"], _requesters(tenant)),
            ("worker", ["tasks:work"], _hands(tenant)),
        )
        for name in names
    }


def _requesters(tenant: str) -> list[str]:
    return [f"asker-{tenant}-{number}" for number in ((1, 2) if tenant == "default" else (1,))]


def _hands(tenant: str) -> list[str]:
    """The principals that work; each has two processes, whose fences alone tell them apart."""
    return [f"hand-{tenant}-{number}" for number in ((1, 2) if tenant == "default" else (1,))]


@dataclass(slots=True, kw_only=True)
class _Run:
    plan: Plan
    ground: Ground
    recorder: Recorder
    _requesters: list[str] = field(default_factory=list)
    _workers: list[str] = field(default_factory=list)
    _looked: float = 0.0
    _begun: float = 0.0

    def go(self) -> None:
        self._declare()
        self._start_actors()
        deadline = now() + self.plan.seconds
        chance = random.Random(self.plan.seed)  # noqa: S311  # no secret
        pending: list[Breakage] = []
        while now() < deadline:
            if self.plan.breakages:
                pending = pending or faults.choices(chance)
                self._break(pending.pop(), chance)
            self._wait(min(chance.uniform(0, 2 * self.plan.pause), deadline - now()))
        self._rest()

    def _wait(self, seconds: float) -> None:
        """Let everybody work for a while, and look at what they do."""
        until = now() + seconds
        while now() < until:
            self._tend()
            self._look()
            time.sleep(max(0.0, min(0.5, until - now())))

    def _declare(self) -> None:
        """Register the types."""
        types: dict[str, Json] = {}
        for tenant in _TENANTS:
            asker = _requesters(tenant)[0]
            for name, policy in TYPES.items():
                types[name] = self._register(asker, name, policy)
            self._expect("PUT", asker, f"/api/v1/queues/{FAIR}", {"fair": True})
        types[EXECUTED] = {"max_attempts": executed.MAX_ATTEMPTS, "max_expiries": executed.MAX_EXPIRIES}
        figures = {name: getattr(self.plan, name) for name in ("seed", "seconds", "rate", "pause")}
        self._begun = now()
        self.recorder.tell("world", types=types, fair=[FAIR], lease=LEASE_SECONDS, at=self._begun, **figures)

    def _register(self, asker: str, name: str, policy: Json) -> Json:
        wanted = {
            **policy,
            "name": name,
            "lease_seconds": LEASE_SECONDS,
            "backoff": {"base_seconds": 0.1, "cap_seconds": 1.0},
        }
        self._expect("POST", asker, "/api/v1/task-types", wanted)
        return policy

    def _expect(self, method: str, asker: str, path: str, body: Json) -> None:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.ground.port}{path}",
            method=method,
            data=json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.ground.tokens[asker]}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=20) as answer:
                answer.read()
        except urllib.error.HTTPError as refusal:
            raise Broken(f"{method} {path} was answered {refusal.code}: {refusal.read()!r}") from refusal

    def _start_actors(self) -> None:
        for given in _cast():
            program = actor(
                self.ground,
                self.plan.history,
                {
                    **given,
                    "token": self.ground.tokens[given.pop("principal")],
                    "seed": self.plan.seed,
                    "rate": self.plan.rate,
                    "plans": self.plan.plans,
                },
            )
            self.ground.describe(program)
            self.ground.start(program.name)
            (self._workers if given["role"] == "worker" else self._requesters).append(program.name)

    def _break(self, breakage: Breakage, chance: random.Random) -> None:
        target = chance.choice(self._workers)
        begin = now()
        breakage.apply(self.ground, chance, target)
        harms = [*breakage.harms, *([target] if breakage.workers else [])]
        self.recorder.tell("fault", name=breakage.name, harms=harms, begin=begin, end=now())
        whom = f" ({target})" if breakage.workers else ""
        self._tell(f"{breakage.name}{whom}: {now() - begin:.1f} s", at=begin)

    def _tend(self) -> None:
        """Bring back what has ended by itself. That excuses nobody: it is noted as a fault that harms no one."""
        for name in self.ground.ended():
            code = self.ground.children[name].returncode
            log = last_lines(self.ground.described[name].log)
            self._tell(f"{name} ended by itself ({code}) and is started again; the end of its log:\n{log}")
            self.recorder.tell("fault", name=f"{name} ended by itself", harms=[], begin=now(), end=now())
            self.ground.start(name)
        for program in self.ground.described.values():
            bound_log(program.log)

    def _look(self) -> None:
        if now() - self._looked > 2:  # noqa: PLR2004  # seconds
            with self.ground.system() as connection:
                self._note(looks.look(connection, whole=False))
            self._looked = now()

    def _note(self, found: Json) -> None:
        # From the log, which no crash of the server forgets.
        log = self.ground.postgres.log.read_text(errors="replace")
        crashes = sum(log.count(f"terminated by signal {number}:") for number in _CRASHES)
        self.recorder.tell("look", at=now(), deadlocks=log.count("deadlock detected"), crashes=crashes, **found)

    def _rest(self) -> None:
        """Nobody asks for more; what is there must come to an end by itself."""
        self._tell("nobody asks for more")
        self.ground.end(*self._requesters)
        left, since = self._open(), now()
        while left and now() - since < _REST:
            self._tend()
            time.sleep(0.2)
            fewer = self._open()
            if fewer < left:
                left, since = fewer, now()
        rested = not left
        self.ground.end(*self._workers)
        with self.ground.system() as connection:
            self._note(looks.look(connection, whole=True))
            self._tell_tasks(connection)
        self.recorder.tell("rest", rested=rested, at=now())
        self._tell("everything has come to an end" if rested else "something does not come to an end")

    def _open(self) -> int:
        with self.ground.system() as connection:
            return looks.still_open(connection)

    def _tell(self, what: str, *, at: float | None = None) -> None:
        """Tell what happens, and at which moment of the run."""
        self.plan.tell(f"{(now() if at is None else at) - self._begun:.1f} s: {what}")

    def _tell_tasks(self, connection: psycopg.Connection) -> None:
        for task in looks.tasks(connection):
            self.recorder.tell("task", **task)


def _cast() -> Iterator[Json]:
    """Who acts: each requester once, each worker twice, their clocks an hour fast and an hour slow."""
    for tenant in _TENANTS:
        for name in _requesters(tenant):
            yield {
                "role": "requester",
                "name": name,
                "actor": name,
                "principal": name,
                "tenant": tenant,
            }
        for name in _hands(tenant):
            for letter, skew in (("a", _HOUR), ("b", -_HOUR)):
                yield {
                    "role": "worker",
                    "name": f"{name}{letter}",
                    "actor": f"{name}{letter}",
                    "principal": name,
                    "tenant": tenant,
                    "skew": skew,
                }
