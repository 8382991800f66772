"""Executions of ten steps, several at a time, while one process after another is killed; then what is left of it all."""

import http.client
import itertools
import json
import random
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import psycopg

from apps.chaos.ground import Broken, Ground, prepared
from config.stack import programs
from config.stack.processes import Program
from tests.executions.killing.judge import WRITES, Call, Execution, Receipt, Step, Task, World
from tests.journeys.departments import manage
from tests.plans.wishes import CIDER

STEPS: Final = 10
PRODUCT: Final = ("web", "worker-core", "worker-execute", "worker-deliver", "beat")
ALL_OF_THEM: Final = "web, Celery and beat"
ALL_BUT_POSTGRES: Final = "all but PostgreSQL"
TARGETS: Final = ("worker-execute", "web", "postgres", "worker-core", "valkey", ALL_OF_THEM, "beat", "worker-deliver")
_SEVERAL: Final = {ALL_OF_THEM: PRODUCT, ALL_BUT_POSTGRES: ("valkey", *PRODUCT)}
_SCRIPT: Final = Path(__file__).with_name("orchard.py")
_PATIENCE: Final = 90.0
# What the database needs at most for what it was told before its clients were stopped.
_SAID: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What is to happen. The same seed kills the same processes after the same pauses; what they are doing is their affair."""

    kills: int
    seed: int
    folder: Path
    at_once: int = 6
    targets: tuple[str, ...] = TARGETS
    writes: bool = False
    """Let one of the tools have an effect, so that it may not be run twice."""
    calling: bool = False
    """Kill only while a half done execution waits for nothing but calls, and nobody will ask again that it begin; otherwise
    as soon as one is half done."""
    settings: str = "apps.chaos.settings"
    rest: float = 240.0
    """Seconds that what is under way may take to end once nothing is killed any more."""
    tell: Callable[[str], None] = print


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One kill, and what it met: how many executions were between their first and their last step, and their steps in the air."""

    target: str
    at: float
    under_way: int
    in_the_air: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What happened, and what is there in the end."""

    kills: list[Kill]
    world: World
    seconds: float
    open_at_the_end: int


def tell(story: Story) -> Told:
    """Let it happen.

    :raises Broken: if the ground gives way for another reason than the kills.
    """
    tokens = {
        "kee": _token("Kee", "ai", "plans", "inbox"),
        **{name: _token(name, "worker", "workers:register") for name in ("orchard", "cellar")},
    }
    with prepared(settings=story.settings, clock_of_executors=0, tokens=tokens) as ground:
        run = _Run(story, ground)
        run.start_workers()
        run.go()
        with ground.system() as connection:
            world = replace(read(connection, run.journal), once=frozenset({WRITES} if story.writes else ()))
            return Told(
                kills=run.kills,
                world=world,
                seconds=time.monotonic() - run.begun,
                open_at_the_end=sum(one.status not in {"complete", "partial", "failed"} for one in world.executions),
            )


def _token(principal: str, kind: str, *scopes: str) -> list[str]:
    return ["--principal", principal, "--kind", kind, *(part for scope in scopes for part in ("--scope", scope))]


@dataclass(slots=True)
class _Run:
    story: Story
    ground: Ground
    kills: list[Kill] = field(default_factory=list)
    begun: float = field(default_factory=time.monotonic)
    _batches: Iterator[int] = field(default_factory=itertools.count)
    _begun_ids: set[str] = field(default_factory=set)
    _enough: threading.Event = field(default_factory=threading.Event)
    _too_late: threading.Event = field(default_factory=threading.Event)

    @property
    def journal(self) -> Path:
        return self.story.folder / "calls.jsonl"

    @property
    def key(self) -> Path:
        """What the workers sign their manifests with, so that one may have a tool that writes."""
        return self.story.folder / "worker-key"

    # The workers, which nobody kills: what they write down is the evidence.

    def start_workers(self) -> None:
        manage(
            self.ground,
            "enroll_worker_key",
            "--name",
            "cellar",
            "--ceiling",
            "trusted",
            "--private-file",
            str(self.key),
        )
        for name, hands in (("orchard", "fast"), ("cellar", "long")):
            self.ground.describe(self._program(name, hands))
            self.ground.start(name)
        deadline = time.monotonic() + _PATIENCE
        while True:
            status, plan = self._ask("POST", "/api/v1/plans", {"intent": CIDER, "context": {"batch": "first"}})
            if status == HTTPStatus.CREATED and plan["status"] == "ready" and len(plan["steps"]) == STEPS:
                return
            if time.monotonic() > deadline:
                raise Broken(f"There is no plan of {STEPS} steps: {json.dumps(plan)[:3000]}")
            time.sleep(0.2)

    def _program(self, name: str, hands: str) -> Program:
        env = {
            **self.ground.environment,
            "PYTHONPATH": str(programs.BUNDLED_WORKERS),
            "ORCHARD_JOURNAL": str(self.journal),
            "ORCHARD_WRITES": WRITES if self.story.writes else "",
            "GATEHOUSE_TOKEN": self.ground.tokens[name],
            "GATEHOUSE_WORKER_KEY": self.key.read_text(encoding="utf-8"),
        }
        argv = (sys.executable, str(_SCRIPT), hands, "--port", "0")
        return replace(programs.python_program(name, data=self.ground.data, env=env), argv=argv)

    # Who kills

    def go(self) -> None:
        chance = random.Random(self.story.seed)  # noqa: S311  # no secret
        with ThreadPoolExecutor(max_workers=self.story.at_once, thread_name_prefix="principal") as pool:
            principals = [pool.submit(self._principal) for _ in range(self.story.at_once)]
            try:
                self._kill_them_all(chance, principals)
                self._enough.set()
                self._rest(principals)
            finally:
                self._enough.set()
                self._too_late.set()
        for principal in principals:
            principal.result()

    def _kill_them_all(self, chance: random.Random, principals: list[Future[None]]) -> None:
        deck: list[str] = []
        for number in range(1, self.story.kills + 1):
            deck = deck or _shuffled(self.story.targets, chance)
            self._let_pass(chance.uniform(0.5, 4.0), principals)
            kill = self._kill(deck.pop(), chance, principals)
            self.kills.append(kill)
            self.story.tell(
                f"{kill.at:.1f} s: kill {number} of {self.story.kills}: {kill.target}, {kill.under_way} under way"
            )

    def _let_pass(self, seconds: float, principals: list[Future[None]]) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._tend(principals)
            time.sleep(0.05)

    def _kill(self, target: str, chance: random.Random, principals: list[Future[None]]) -> Kill:
        """Kill it as soon as something is half done, and bring it back as the supervisor would."""
        names = _SEVERAL.get(target, (target,))
        kill = self._struck(target, names)
        deadline = time.monotonic() + _PATIENCE
        while kill is None:
            if time.monotonic() > deadline:
                raise Broken(f"Nothing was half done for {_PATIENCE:.0f} s, or none waited for calls alone.")
            self._tend(principals)
            time.sleep(0.02)
            kill = self._struck(target, names)
        time.sleep(chance.choice([0, 0, 0.5, 2]))
        for name in names:
            self._start(name)
        if "web" in names:
            self.ground.await_serving()
        return kill

    def _struck(self, target: str, names: tuple[str, ...]) -> Kill | None:
        """The kill, or None where there is nothing yet that it is to meet.

        What is to die in a certain state is held still first: by the time of the kill a look alone would be out of date.
        """
        with ExitStack() as held:
            if self.story.calling:
                if not self._waits_for_calls_alone():
                    return None
                held.enter_context(self.ground.held_still(*names))
                time.sleep(_SAID)
                if not self._waits_for_calls_alone():
                    return None
            under_way, in_the_air = self._look()
            if not under_way:
                return None
            at = time.monotonic() - self.begun
            for name in names:
                self._end(name)
            return Kill(target=target, at=at, under_way=under_way, in_the_air=in_the_air)

    def _end(self, name: str) -> None:
        if name == "postgres":
            self.ground.stop_database(signal.SIGKILL)
        else:
            self.ground.kill(name)

    def _start(self, name: str) -> None:
        if name == "postgres":
            self.ground.start_database()
        elif name == "valkey":
            self.ground.start_broker()
        else:
            self.ground.start(name)

    def _look(self) -> tuple[int, dict[str, int]]:
        with self.ground.system() as connection:
            counted = connection.execute(_UNDER_WAY).fetchone()
            in_the_air = connection.execute(_IN_THE_AIR).fetchall()
        return (0 if counted is None else counted[0]), dict(in_the_air)

    def _waits_for_calls_alone(self) -> bool:
        with self.ground.system() as connection:
            return connection.execute(_CALLS_ALONE, [list(self._begun_ids)]).fetchone() is not None

    def _tend(self, principals: list[Future[None]]) -> None:
        """Bring back what ended by itself, as the supervisor would, and hear of a principal that gave up."""
        for name in self.ground.ended():
            self.story.tell(f"{name} ended by itself and is started again")
            self.ground.start(name)
        for principal in principals:
            if principal.done():
                principal.result()

    def _rest(self, principals: list[Future[None]]) -> None:
        until = time.monotonic() + self.story.rest
        while time.monotonic() < until and not all(principal.done() for principal in principals):
            for name in self.ground.ended():
                self.ground.start(name)
            time.sleep(0.1)

    # Who has plans made and carried out

    def _principal(self) -> None:
        while not self._enough.is_set():
            self._carry_out(f"b{next(self._batches)}")

    def _carry_out(self, batch: str) -> None:
        made = self._insist("POST", "/api/v1/plans", {"intent": CIDER, "context": {"batch": batch}})
        begun = self._insist("POST", "/api/v1/executions", {"plan_id": made["plan_id"]})
        self._begun_ids.add(begun["execution_id"])
        path = f"/api/v1/executions/{begun['execution_id']}"
        while not self._too_late.is_set():
            report = self._insist("GET", path, None)
            if report["ended_at"] is not None:
                return
            for step in report["steps"]:
                if (step["step_type"], step["status"]) == ("aggregate", "awaiting"):
                    body = {"result": {"batch": batch}, "summary": f"{batch} is cider."}
                    self._insist("POST", f"{path}/steps/{step['step_id']}/result", body)
            time.sleep(0.3)

    def _insist(self, method: str, path: str, body: Any) -> dict[str, Any]:
        """Ask until there is an answer; the same request, whatever became of it before."""
        while True:
            status, answer = self._ask(method, path, body)
            if status in {HTTPStatus.OK, HTTPStatus.CREATED}:
                return answer
            if 0 < status < HTTPStatus.INTERNAL_SERVER_ERROR:
                raise AssertionError(f"{method} {path} was answered {status}: {answer}")
            if self._too_late.wait(0.2):
                raise AssertionError(f"{method} {path} was never answered, last {status}: {answer}")

    def _ask(self, method: str, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.ground.port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.ground.tokens['kee']}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refusal:
            return refusal.code, {"refusal": refusal.read().decode(errors="replace")}
        except (OSError, ValueError, http.client.HTTPException) as broken:
            return 0, {"broken": str(broken)}


def _shuffled(targets: tuple[str, ...], chance: random.Random) -> list[str]:
    return chance.sample(targets, len(targets))


# Between the first step and the last.
_UNDER_WAY: Final = """
    select count(*) from executions_execution e
    where e.ended_at is null
      and exists (select from executions_executionstep s where s.execution_id = e.id and s.status = 'complete')
"""
_IN_THE_AIR: Final = """
    select s.status, count(*) from executions_executionstep s join executions_execution e on e.id = s.execution_id
    where e.ended_at is null and s.status in ('calling', 'queued', 'awaiting') group by 1
"""
# Half done, and in the middle of calls of which no process that died can say any more.
_CALLS_ALONE: Final = """
    select from executions_execution e join executions_executionstep s on s.execution_id = e.id
    where e.ended_at is null and 'exec_' || e.id = any(%s)
    group by e.id
    having bool_or(s.status = 'complete') and bool_or(s.status = 'calling' and s.call_expires_at > now())
       and not bool_or(s.status in ('queued', 'awaiting'))
"""
_EXECUTIONS: Final = """
    select e.id, e.plan_id, p.document #>> '{steps,0,params,batch}', e.status, e.plan_receipt_id, e.terminal_receipt_id,
           array(select k.task_id from tasks_idempotencykey k where k.key like 'exec\\_' || e.id || ':%'),
           (select count(*) from memory_observation o
            where o.domain = 'delegation_trace' and o.evidence ? ('exec:exec_' || e.id))
    from executions_execution e join plans_plan p using (tenant_id, plan_id) order by e.id
"""
_STEPS: Final = """
    select s.execution_id, s.step_id, s.step_type, s.definition ->> 'tool_name', s.status, s.attempts,
           extract(epoch from s.ended_at)::float8, s.envelope, s.receipt_id,
           t.task_id, t.status, t.fence, t.receipt_id, t.result_pointer
    from executions_executionstep s left join task_history t using (task_id) order by s.execution_id, s.position
"""
_RECEIPTS: Final = """
    select r.receipt_id, r.event_type, r.caused_by_ref, r.pairs_with_ref, r.metadata ->> 'task_id',
           o.receipt_id is not null and o.closed_at is not null, c.receipt_id
    from receipts_receipt r
    left join receipts_obligation o on o.receipt_id = r.id
    left join receipts_receipt c on c.id = o.closed_by_id
    order by r.id
"""


def read(connection: psycopg.Connection, journal: Path) -> World:
    """What the database and the workers hold."""
    steps: dict[int, list[Step]] = {}
    for row in connection.execute(_STEPS):
        execution_id, step_id, step_type, tool, status, attempts, ended, envelope, receipt_id, *ending = row
        task_id, task_status, fence, terminal_receipt, pointer = ending
        task = None
        if task_id is not None:
            task = Task(
                task_id=task_id,
                status=task_status,
                fence=fence,
                receipt_id=terminal_receipt,
                result_pointer=pointer,
            )
        steps.setdefault(execution_id, []).append(
            Step(
                step_id=step_id,
                step_type=step_type,
                tool=tool,
                status=status,
                attempts=attempts,
                ended=ended,
                envelope=envelope,
                receipt_id=receipt_id,
                task=task,
            )
        )
    executions = [
        Execution(
            ref=f"exec_{execution_id}",
            plan_id=plan_id,
            batch=batch,
            status=status,
            plan_receipt=plan_receipt,
            terminal_receipt=terminal_receipt,
            steps=steps[execution_id],
            task_ids=task_ids,
            traces=traces,
        )
        for execution_id, plan_id, batch, status, plan_receipt, terminal_receipt, task_ids, traces in connection.execute(
            _EXECUTIONS
        )
    ]
    receipts = [
        Receipt(
            receipt_id=receipt_id,
            event_type=event_type,
            caused_by=caused_by,
            pairs_with=pairs_with,
            task_ref=task_ref,
            settled=settled,
            closed_by=closed_by,
        )
        for receipt_id, event_type, caused_by, pairs_with, task_ref, settled, closed_by in connection.execute(_RECEIPTS)
    ]
    return World(executions=executions, receipts=receipts, calls=_calls(journal))


def _calls(journal: Path) -> list[Call]:
    """The calls as the workers wrote them down; those of one tool for one batch end in the order in which they began."""
    open_calls: dict[tuple[str, str], list[float]] = {}
    found: list[Call] = []
    for line in journal.read_text().splitlines():
        told = json.loads(line)
        key = (told["batch"], told["tool"])
        if told["what"] == "begin":
            open_calls.setdefault(key, []).append(told["at"])
        else:
            found.append(Call(batch=key[0], tool=key[1], began=open_calls[key].pop(0), ended=told["at"]))
    left = [
        Call(batch=batch, tool=tool, began=began, ended=None)
        for (batch, tool), all_ in open_calls.items()
        for began in all_
    ]
    return found + left
