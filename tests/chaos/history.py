"""What happened: every call with what was asked and answered, every fault, and what the product held in the end."""

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, TypeVar

T = TypeVar("T")
Json = dict[str, Any]
NEVER: Final = float("inf")
ENDINGS: Final = ("complete", "fail", "release")
now: Final = time.monotonic


@dataclass(slots=True, kw_only=True)
class Call:
    """A request, or one of several in a batch, and its answer. A call without an answer may have had its effect."""

    actor: str
    tenant: str
    verb: str
    request: Json
    begin: float
    end: float = NEVER
    """When it was answered."""
    lost: float = NEVER
    """When its caller gave up."""
    status: int | None = None
    body: Json = field(default_factory=dict)
    weather: str = "clear"
    """What was done to the call on its way, on purpose."""

    @property
    def ok(self) -> bool:
        """Whether it was answered that it was done."""
        return self.status is not None and self.status < 300  # HTTP

    @property
    def refused(self) -> bool:
        """Whether the answer proves that the call has changed nothing."""
        return self.status is not None and 400 <= self.status < 500  # HTTP

    @property
    def key(self) -> str:
        """What makes two calls the same."""
        return f"{self.tenant} {self.verb} {canonical(self.request)}"

    @property
    def task(self) -> str:
        return str(self.request["task_id"])

    @property
    def run(self) -> int:
        """The number of the run that its lease token stands for."""
        return int(self.request["lease_token"].split(".")[1])

    def __str__(self) -> str:
        answer = f"{self.status} {self.body.get('code') or ''}".strip() if self.status else f"no answer: {self.body}"
        return f"{self.verb} of {self.actor} at {self.begin:.1f} s: {answer}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run of a task that a lease granted."""

    call: Call
    task: str
    number: int
    lease: float
    """Seconds."""
    params: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What was broken on purpose, from when to when, and whom it may keep from answering."""

    name: str
    harms: frozenset[str]
    begin: float
    end: float


@dataclass
class History:
    """A whole run of chaos."""

    calls: list[Call] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    tasks: dict[str, Json] = field(default_factory=dict)
    """How each accepted task ended, as its requester is told."""
    receipts: list[Json] = field(default_factory=list)
    """The receipts as the database holds them in the end."""
    visible: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    """The receipts in the visible entries of each recipient, by tenant and name."""
    executions: list[Json] = field(default_factory=list)
    """The report of each execution that began."""
    tool_calls: list[tuple[str, str, float]] = field(default_factory=list)
    """The calls that the MCP worker saw: tool, batch, time of day."""
    unrest: list[str] = field(default_factory=list)
    """What did not come to an end by itself."""

    def of(self, *verbs: str) -> list[Call]:
        """The calls of these verbs, in the order in which they began."""
        return sorted((call for call in self.calls if call.verb in verbs), key=lambda call: call.begin)

    @cached_property
    def runs(self) -> dict[str, list[Run]]:
        """The runs of each task by number, as the first answer that granted each of them says."""
        found: dict[str, dict[int, Run]] = defaultdict(dict)
        for call in sorted(self.of("lease"), key=lambda call: call.end):
            for given in call.body.get("tasks", ()):
                number, lease = given["run_id"], given["lease_ms"] / 1000
                run = Run(call=call, task=given["task_id"], number=number, lease=lease, params=given["params"])
                found[run.task].setdefault(number, run)
        return {task: [runs[number] for number in sorted(runs)] for task, runs in found.items()}

    @cached_property
    def endings(self) -> dict[str, list[Call]]:
        """The calls that were to end runs, by task."""
        return grouped(self.of(*ENDINGS), lambda call: call.task)

    @cached_property
    def beats(self) -> dict[str, list[Call]]:
        """The heartbeats, by task."""
        return grouped(self.of("heartbeat"), lambda call: call.task)

    @cached_property
    def accepted(self) -> dict[str, Call]:
        """The call that queued each task, by its id."""
        return {call.body["task_id"]: call for call in reversed(self.of("queue")) if call.ok}

    def harmed(self, begin: float, end: float, *whom: str) -> bool:
        """Whether anything that these stand on was broken in this time."""
        return any(fault.begin <= end and fault.end >= begin and fault.harms & set(whom) for fault in self.faults)


def grouped(calls: Iterable[Call], by: Callable[[Call], T]) -> dict[T, list[Call]]:
    """The calls by what they have in common."""
    found: dict[T, list[Call]] = defaultdict(list)
    for call in calls:
        found[by(call)].append(call)
    return found


def canonical(document: Json) -> str:
    """A document without what may differ between tellings: whether it is one."""
    return json.dumps({name: value for name, value in document.items() if name != "is_duplicate"}, sort_keys=True)
