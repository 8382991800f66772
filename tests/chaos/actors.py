"""Who uses the product: requesters and task workers, posters and readers, and who has plans carried out.

Each is a thread with a connection of its own. A worker that is "killed" forgets all that it holds; one that is
"stopped" sleeps past its leases and goes on as if nothing had been.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, Final

from mcp.server import MCPServer
from pydantic import BaseModel

from tests.chaos import EXECUTED
from tests.chaos.client import Client
from tests.chaos.ground import LEASE_SECONDS
from tests.chaos.history import History, Json
from tests.workers.servers import begin_serving

QUEUE: Final = "chaos"
PLAIN, STRICT, STEADY = "chaos_plain", "chaos_strict", "chaos_steady"
_TRIES: Final[Json] = {"max_attempts": 3, "max_expiries": 20, "backoff": {"base_seconds": 0.1, "cap_seconds": 1.0}}
_POLICY: Final[Json] = {"queue": QUEUE, "lease_seconds": LEASE_SECONDS, **_TRIES}
TYPES: Final = {PLAIN: _POLICY, STRICT: _POLICY | {"strict": True}, STEADY: _POLICY | {"queue": STEADY}}
SOURCE: Final = "chaos"
# Requesters pause while so many tasks wait.
_DEEP: Final = 2_000
_KEPT: Final = 400
# What becomes of the first runs of a task, and how often of a hundred; later runs complete it.
_PLANS: Final[list[tuple[int, list[str]]]] = [
    (82, ["complete"]),
    (2, ["fail", "complete"]),
    (1, ["fail"] * 3),
    (1, ["final"]),
    (4, ["release", "complete"]),
    (4, ["expire", "complete"]),
    (4, ["late", "slow"]),
    (2, ["expire", "slow"]),
]


class Actor(threading.Thread):
    """A thread that acts until it is told to stop."""

    ease = 1.0
    """Of all actors: how long they rest."""
    batches: tuple[int, ...] = (2, 40, 200, 500, 500)
    """Of all requesters: how many tasks they queue at once."""

    def __init__(self, client: Client) -> None:
        super().__init__(name=client.actor, daemon=True)
        self.client = client
        self.chance = client.chance
        self.numbers = count(1)
        self.stopping = threading.Event()
        self.failure: BaseException | None = None

    def act(self) -> None:
        """Do one thing."""
        raise NotImplementedError

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.act()
            self.wind_up()
        except BaseException as failure:  # noqa: BLE001  # the driver raises it
            self.failure = failure
        finally:
            self.client.close()

    def wind_up(self) -> None:
        """Finish what is at hand."""

    def rest(self, longest: float) -> None:
        self.stopping.wait(self.chance.uniform(0, longest * self.ease))


class Requester(Actor):
    """Queues, asks again, asks for something else under an old key, and cancels."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.accepted: set[str] = set()
        self._asked: list[tuple[Json, str]] = []

    def act(self) -> None:
        _, body = self.client.aside("GET", "/api/v1/queues")
        if sum(queue["queued"] for queue in body["queues"]) > _DEEP:
            self.rest(1.5)
            return
        acts: list[tuple[int, Callable[[], object]]] = [
            (20, lambda: self._queue([self._request()])),
            (40, lambda: self._queue([self._request() for _ in range(self.chance.choice(self.batches))])),
            (8, self._repeat),
            (5, self._contradict),
            (8, self._cancel),
        ]
        if not self._asked:
            acts = acts[:2]
        self.chance.choices([act for _, act in acts], [often for often, _ in acts])[0]()
        self.rest(0.6)

    def _request(self) -> Json:
        number = next(self.numbers)
        plan = self.chance.choices([plan for _, plan in _PLANS], [often for often, _ in _PLANS])[0]
        request: Json = {
            "task_type": self.chance.choices([PLAIN, STRICT, EXECUTED], [86, 12, 2])[0],
            "params": {"tenant": self.client.tenant, "number": number, "plan": plan},
            "priority": self.chance.randint(1, 10),
            "idempotency_key": f"{self.client.actor}-{number}",
        }
        if self.chance.random() < 0.08:  # of all tasks
            request["run_at"] = (datetime.now(UTC) + timedelta(seconds=self.chance.uniform(0.5, 3))).isoformat()
        if self.chance.random() < 0.05:  # of all tasks
            # What Celery executes is not in the history; the other ends are.
            known = [task for asked, task in self._asked[-20:] if asked["task_type"] != EXECUTED]
            request["depends_on"] = self.chance.sample(known, min(2, len(known)))
        return request

    def _queue(self, requests: list[Json]) -> None:
        calls = self.client.insist("queue", *requests, until=self.stopping.is_set)
        self._asked += [(call.request, call.body["task_id"]) for call in calls if call.ok]
        self.accepted |= {call.body["task_id"] for call in calls if call.ok}
        del self._asked[:-_KEPT]

    def _repeat(self) -> None:
        again = [request for request, _ in self.chance.choices(self._asked, k=self.chance.choice([1, 1, 5]))]
        self._queue([*again, self._request()])

    def _contradict(self) -> None:
        request = self.chance.choice(self._asked)[0]
        self.client.ask("queue", {**request, "params": {**request["params"], "number": -1}})

    def _cancel(self) -> None:
        # The newest are the likeliest to be open.
        self.client.ask("cancel", {"task_id": self.chance.choice(self._asked[-20:])[1]})


@dataclass(slots=True, kw_only=True, eq=False)
class Hand:
    """A lease in a worker's hands, or one that it has let slip."""

    task: str
    token: str
    act: str
    due: float
    """When this worker takes the lease for over; or when it comes late with it."""
    until: float
    """When work that takes long is done."""
    beats: int = 0

    @property
    def proof(self) -> Json:
        return {"task_id": self.task, "lease_token": self.token}


class Worker(Actor):
    """Leases, and does with each run what its task's params plan, alone or several in one call."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.fault = ""
        """Set by the driver: `kill` or `stop`."""
        self._hands: list[Hand] = []
        self._slipped: list[Hand] = []
        self._beat_at = 0.0

    def act(self) -> None:
        self._suffer()
        self._come_late()
        if len(self._hands) < 200:
            self._lease()
        if self._hands and time.monotonic() >= self._beat_at:
            self._beat_at = time.monotonic() + self.chance.uniform(0.6, 1.2)
            self._beat(self.chance.sample(self._hands, len(self._hands)))
        if ready := [hand for hand in self._hands if hand.act != "slow" or hand.until < time.monotonic()]:
            self._do(ready)
        else:
            time.sleep(self.chance.uniform(0.02, 0.1))

    def wind_up(self) -> None:
        self._end("release", self._hands)

    def _suffer(self) -> None:
        fault, self.fault = self.fault, ""
        if fault == "kill":
            self.client.reset()
            self._hands, self._slipped = [], []
        elif fault == "stop":
            self.stopping.wait(LEASE_SECONDS + self.chance.uniform(0.5, 2))

    def _lease(self) -> None:
        asked: Json = {
            "queues": [QUEUE],
            "capacity": self.chance.choice([1, 100, 100]),
            "lease_seconds": LEASE_SECONDS,
        }
        if not self._hands and self.chance.random() < 0.5:  # of those with nothing to do
            asked["wait_seconds"] = self.chance.choice([0.5, 1, 2])
        (call,) = self.client.ask("lease", asked)
        for given in call.body.get("tasks", ()) if call.ok else ():
            plan, run = given["params"]["plan"], given["run_id"]
            hand = Hand(
                task=given["task_id"],
                token=given["lease_token"],
                act=plan[run - 1] if run <= len(plan) else "complete",
                due=time.monotonic() + given["lease_ms"] / 1000,
                until=time.monotonic() + self.chance.uniform(0.5, 3),
            )
            self._hands.append(hand)

    def _beat(self, hands: list[Hand]) -> None:
        signs = []
        for hand in hands:
            hand.beats += 1
            signs.append({**hand.proof, "sequence": hand.beats})
        for hand, call in zip(hands, self.client.ask("heartbeat", *signs), strict=True):
            if call.ok and call.body["status"] == "lost":
                self._hands.remove(hand)
            elif call.ok and call.body["status"] == "ok":
                hand.due = time.monotonic() + call.body["lease_ms"] / 1000
                if call.body["order"] == "cancel":
                    hand.act = "release"

    def _do(self, ready: list[Hand]) -> None:
        """Do what is planned with one of these, or with several for which the same is planned."""
        act = self.chance.choice(ready).act
        hands = [hand for hand in ready if hand.act == act][: self.chance.choice([1, 20, 200, 200, 200])]
        self._hands = [hand for hand in self._hands if hand not in hands]
        if act in {"expire", "late"}:
            for hand in hands:
                hand.due += self.chance.uniform(0.2, 3)
            self._slipped += hands
        else:
            self._end({"final": "fail", "slow": "complete"}.get(act, act), hands)

    def _end(self, verb: str, hands: list[Hand]) -> None:
        ends = [{**hand.proof, **_how(verb, hand)} for hand in hands]
        if ends:
            # A task worker beats in a thread of its own.
            beats = [{**hand.proof, "sequence": hand.beats + 1} for hand in hands]
            with self.client.beside("heartbeat", *beats) if self.chance.random() < 0.3 else nullcontext():
                self.client.insist(verb, *ends, until=self.stopping.is_set)
            if self.chance.random() < 0.03:  # of all calls
                self.client.ask(verb, self.chance.choice(ends))

    def _come_late(self) -> None:
        """Report what has slipped some time after its lease: the fencing token must refuse it if another has the task."""
        due = [hand for hand in self._slipped if time.monotonic() >= hand.due]
        self._slipped = [hand for hand in self._slipped if hand not in due]
        late = [hand for hand in due if hand.act == "late" or self.chance.random() < 0.5]
        if late:
            self.client.ask("complete", *({**hand.proof, "result": {"late": True}} for hand in late))


def _how(verb: str, hand: Hand) -> Json:
    if verb == "complete":
        return {"result": {"task": hand.task}, "summary": "Done."}
    error = {"code": "planned", "message": "It was to fail."}
    return {"error": error, "retryable": hand.act == "fail"} if verb == "fail" else {}


class Poster(Actor):
    """Posts receipts, alone and in batches, buffered and not; posts again, and other content under an old key."""

    _posted: Sequence[Json] = ()

    def __init__(self, client: Client, recipients: list[str]) -> None:
        super().__init__(client)
        self._recipients = recipients

    def act(self) -> None:
        drafts = [self._draft() for _ in range(self.chance.choice([1, 1, 3, 100]))]
        if self._posted and self.chance.random() < 0.3:  # of all posts
            drafts.append(self.chance.choice(self._posted))
        if self._posted and self.chance.random() < 0.1:  # of all posts
            drafts.append({**self.chance.choice(self._posted), "summary": "Something else."})
        self.client.insist("post", *drafts, until=self.stopping.is_set)
        self._posted = [*self._posted, *drafts][-_KEPT:]
        self.rest(1.0)

    def _draft(self) -> Json:
        number = next(self.numbers)
        draft: Json = {
            "recipient_ai": self.chance.choice(self._recipients),
            "source_system": SOURCE,
            "dedupe_key": f"{SOURCE}:told:{self.client.actor}-{number}:v1",
            "summary": f"Number {number}.",
        }
        if self.chance.random() < 0.6:  # of all receipts
            draft["group"] = {"resource_ref": f"thing:{self.chance.randrange(6)}", "event_family": "told"}
            if self.chance.random() < 0.1:  # of those
                draft["group"]["flush_class"] = "immediate"
        return draft


class Reader(Actor):
    """Reads its inbox and acks through what it was shown, now or a while ago."""

    _pages: Sequence[list[Json]] = ()

    def act(self) -> None:
        (call,) = self.client.ask("read", {"limit": self.chance.choice([3, 500]), "after": 0})
        if call.ok and (entries := call.body.pop("entries")):
            self._pages = [*self._pages[-5:], entries]
        if self._pages and self.chance.random() < 0.7:  # of all turns
            page = self._pages[-1] if self.chance.random() < 0.5 else self.chance.choice(self._pages)
            last = self.chance.randrange(len(page))
            shown = [receipt for entry in page[: last + 1] for receipt in entry["receipt_ids"]]
            # What the token stands for is for the judge; the product is told the token alone.
            self.client.ask("ack", {"through": page[last]["token"], "shown": shown})
        self.rest(1.5)


class Steady(Actor):
    """Asks for one thing after the other, as often in the first minute as in the last: by it a soak is read."""

    _open = 0

    def act(self) -> None:
        asked = {"task_type": STEADY, "params": {}, "idempotency_key": f"{self.name}-{next(self.numbers)}"}
        self.client.insist("queue", asked, until=lambda: False)
        self._open += 1
        self.wind_up()
        (call,) = self.client.ask("read", {"limit": 500, "after": 0})
        if call.ok and (entries := call.body.pop("entries")):
            shown = [receipt for entry in entries for receipt in entry["receipt_ids"]]
            self.client.ask("ack", {"through": entries[-1]["token"], "shown": shown})
        self.client.ask("livez", {})
        self.stopping.wait(0.5)

    def wind_up(self) -> None:
        while self._open:
            (call,) = self.client.ask("lease", {"queues": [STEADY], "capacity": 1, "lease_seconds": LEASE_SECONDS})
            for task in call.body.get("tasks", ()) if call.ok else ():
                end = {"task_id": task["task_id"], "lease_token": task["lease_token"], "result": {}}
                (call,) = self.client.insist("complete", end, until=lambda: False)
                self._open -= call.ok
            time.sleep(0.05 * self._open)


class Planner(Actor):
    """Has plans carried out: its own, of two tools that are called at once and as a task; and the planner's of an intent."""

    def __init__(self, client: Client, manifest: Json) -> None:
        super().__init__(client)
        self._manifest = manifest
        self.reports: list[Json] = []

    def act(self) -> None:
        number = next(self.numbers)
        if number == 1:
            status, answer = self.client.aside("POST", "/api/v1/workers", self._manifest)
            assert status in {200, 201}, answer
        batch = f"batch-{number}"
        if number % 2:
            expected = {"pick": ("pick", batch), "press": ("press", f"{batch}>pick")}
            expected["taste"] = ("pick", f"{batch}>pick>press")
            made = self._answer("submit", {"plan": self._plan(batch)})
        else:
            expected = {"step-1": ("press", batch)}
            made = self._answer("plan", {"intent": f'Press "{batch}"'})
        begun = self._answer("execute", {"plan_id": made["plan_id"]})
        report = begun
        while report.get("ended_at") is None:
            told = {"status": "healthy", "current_load": 0.1, "available": True}
            self.client.aside("POST", "/api/v1/workers/press-house/heartbeat", told)
            time.sleep(0.2)
            report = self._answer("report", {"execution_id": begun["execution_id"]})
        self.reports.append({**report, "expected": expected})

    def _answer(self, verb: str, request: Json) -> Json:
        (call,) = self.client.insist(verb, request, until=lambda: False)
        assert call.ok, call.body
        return call.body

    def _plan(self, batch: str) -> Json:
        def call(step_id: str, step_type: str, tool: str, text: str, *after: str) -> Json:
            about = {"worker_id": "press-house", "tool_name": tool, "params": {"text": text}, "depends_on": list(after)}
            return {"step_id": step_id, "step_type": step_type, **about}

        told = {"report_summary": "Pressed.", "decision_required": False}
        return {
            "plan_id": f"plan-{batch}",
            "delegate_id": "delegate",
            "principal_ai": self.client.actor,
            "intent": f"Press {batch}",
            "created_at": "2026-01-03T20:15:00Z",
            "scope": "chaos",
            "steps": [
                call("pick", "call_worker", "pick", batch),
                call("press", "queue_execution", "press", "{{pick.text}}", "pick"),
                {"step_id": "wait", "step_type": "wait_for", "wait_for_step_ids": ["press"]},
                call("taste", "call_worker", "pick", "{{press.text}}", "wait"),
                {"step_id": "report", "step_type": "escalate", "depends_on": ["taste"], **told},
            ],
        }


class Made(BaseModel):
    """What a tool of the MCP worker answers."""

    text: str


@contextmanager
def press_house(history: History) -> Iterator[Json]:
    """An MCP worker in this process that writes down each call; its manifest."""
    server: MCPServer[Any] = MCPServer("press-house", log_level="ERROR")

    def add(tool: str, told: str) -> None:
        @server.tool(tool, description=told)
        async def made(text: str) -> Made:
            history.tool_calls.append((tool, text, time.time()))
            await asyncio.sleep(0.3)
            return Made(text=f"{text}>{tool}")

    add("pick", "Pick the apples of a batch.")
    add("press", "Press picked apples.")
    endpoint, stop = begin_serving(server.streamable_http_app())
    described = {"name", "description", "input_schema", "output_schema"}
    try:
        yield {
            "worker_id": "press-house",
            "endpoint": endpoint,
            "tools": [tool.model_dump(include=described) for tool in asyncio.run(server.list_tools())],
            "hints": {"expected_runtime": "fast"},
            "side_effects": {"filesystem": "none", "network": "none", "execution": "none"},
        }
    finally:
        stop()
