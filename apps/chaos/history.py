"""What happened, line by line: every call with its begin, its end, what was asked, and the answer or the loss.

A history is a file of JSON objects that several processes append to; `is` says what a line tells. Moments are seconds
of the machine's monotonic clock, which all processes share; `wall` is the time of day, for what was promised by it.
Plain Python: a history can be read where nothing of the product is installed.
"""

import json
import os
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

Json = dict[str, Any]
NEVER: Final = float("inf")
ENDINGS: Final = ("complete", "fail", "release")


class Recorder:
    """Appends lines to a history. Each is one write, so that the lines of several processes never mix."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def tell(self, what: str, **members: Any) -> None:
        """Append one line."""
        line = json.dumps({"is": what, **members}, separators=(",", ":"))
        os.write(self._file, line.encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


def now() -> float:
    """The moment, as all processes of this machine see it."""
    return time.monotonic()


@dataclass(slots=True, kw_only=True)
class Call:
    """A request and what came of it. One without an answer may have had its effect or not, then or later."""

    id: str
    actor: str
    tenant: str
    verb: str
    request: Json
    begin: float
    end: float = NEVER
    wall: float = NEVER
    status: int | None = None
    body: Json = field(default_factory=dict)
    weather: str = "clear"
    """What was done to it on its way, on purpose."""
    lost: float | None = None
    """When its caller gave up; None where it was answered, or its caller was killed."""
    why: str = ""
    """Why it was lost, in its caller's words."""

    @property
    def ok(self) -> bool:
        return self.status is not None and self.status < 300  # noqa: PLR2004  # HTTP's successes

    @property
    def refused(self) -> bool:
        """Whether the answer proves that this call has changed nothing."""
        return self.status is not None and 400 <= self.status < 500  # noqa: PLR2004  # HTTP's refusals

    @property
    def over(self) -> float:
        """When its caller had its answer, or gave up; never, if that was killed."""
        return self.end if self.lost is None else self.lost

    @property
    def task(self) -> str:
        return str(self.request["task_id"])

    @property
    def run(self) -> int:
        return run_of(self.request["lease_token"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A run that a lease's answer granted."""

    call: Call
    task: str
    run: int
    lease: float
    """Seconds."""
    params: Json
    checkpoint: Any
    task_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """One lease's sign of life, as one call carried it."""

    call: Call
    task: str
    run: int
    checkpoint: Any
    sequence: int
    """Its place among those of its run, as its worker counts them."""
    status: str | None
    """ok, lost or retry; None where no answer came."""
    lease: float
    spend: int
    """Tokens, in all that its run has used."""
    left: bool
    """Whether it was not told that nothing is left to spend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What was broken on purpose, from when to when, and whom it may keep from answering."""

    name: str
    harms: frozenset[str]
    begin: float
    end: float


@dataclass
class History:
    """A whole run, as its lines tell it."""

    world: Json = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    """Each of many in one request is a call."""
    requests: Counter[str] = field(default_factory=Counter)
    """How many there were of each verb."""
    unanswered: int = 0
    """How many of them have no answer."""
    faults: list[Fault] = field(default_factory=list)
    looks: list[Json] = field(default_factory=list)
    """What the database held, now and then."""
    tasks: dict[str, Json] = field(default_factory=dict)
    """What the database held of each task in the end."""
    rested: bool | None = None
    """Whether everything came to an end by itself; None if the run was broken off."""

    @property
    def begun(self) -> float:
        """The moment from which the moments of the run are told."""
        return float(self.world.get("at", 0.0))

    @cached_property
    def grants(self) -> list[Grant]:
        """The first telling of each run that was granted; a completion that is repeated tells of the same runs again."""
        first: dict[tuple[str, int], Grant] = {}
        for grant in self.tellings:
            first.setdefault((grant.task, grant.run), grant)
        return list(first.values())

    @cached_property
    def tellings(self) -> list[Grant]:
        """Everything that answers said to be granted, in the order of the answers."""
        return sorted(self._tellings(), key=lambda grant: grant.call.end)

    def _tellings(self) -> Iterator[Grant]:
        for call in self.of("lease", "complete"):
            for given in [*call.body.get("tasks", ()), *call.body.get("next", ())]:
                yield Grant(
                    call=call,
                    task=given["task_id"],
                    run=given["run_id"],
                    lease=given["lease_ms"] / 1000,
                    params=given["params"],
                    checkpoint=given["checkpoint"],
                    task_type=given["task_type"],
                )

    @cached_property
    def beats(self) -> list[Beat]:
        return list(self._beats())

    def _beats(self) -> Iterator[Beat]:
        for call in self.of("heartbeat"):
            leases = call.request["leases"]
            answers = call.body["results"] if call.ok else [{}] * len(leases)
            for asked, answer in zip(leases, answers, strict=True):
                yield Beat(
                    call=call,
                    task=asked["task_id"],
                    run=run_of(asked["lease_token"]),
                    checkpoint=asked.get("checkpoint"),
                    sequence=asked["sequence"],
                    status=answer.get("status"),
                    lease=answer.get("lease_ms", 0) / 1000,
                    spend=(asked.get("spend") or {}).get("tokens", 0),
                    left=answer.get("reason") != "budget_exhausted",
                )

    @cached_property
    def grants_of(self) -> dict[str, list[Grant]]:
        return by_task(self.grants)

    @cached_property
    def beats_of(self) -> dict[str, list[Beat]]:
        return by_task(self.beats)

    @cached_property
    def endings_of(self) -> dict[str, list[Call]]:
        return by_task(self.of(*ENDINGS))

    @cached_property
    def keys(self) -> dict[tuple[str, str, str], list[Call]]:
        """The calls that queued, by who asked and idempotency key."""
        found: dict[tuple[str, str, str], list[Call]] = {}
        for call in self.of("queue"):
            found.setdefault((call.tenant, call.actor, call.request["idempotency_key"]), []).append(call)
        return found

    def of(self, *verbs: str) -> list[Call]:
        """The calls of these verbs, in the order in which they began."""
        if verbs not in self._of:
            self._of[verbs] = [call for call in self.calls if call.verb in verbs]
        return self._of[verbs]

    @cached_property
    def _of(self) -> dict[tuple[str, ...], list[Call]]:
        return {}

    def maybe_paused(self, tenant: str, queue: str, begin: float, end: float) -> bool:
        """Whether this queue may have been paused at some moment of this time."""
        return _overlaps(self._pauses.get((tenant, queue), []), begin, end)

    @cached_property
    def _pauses(self) -> dict[tuple[str, str], list[tuple[float, float]]]:
        """Spans that do not overlap, from each pause to the resumption that is certain."""
        found: dict[tuple[str, str], list[tuple[float, float]]] = {}
        following: dict[tuple[str, str], float] = {}
        for call in reversed(self.of("pause", "resume")):
            line = (call.tenant, call.request["queue"])
            if call.verb == "pause":
                found.setdefault(line, []).append((call.begin, following.get(line, NEVER)))
            elif call.ok:
                following[line] = min(call.end, following.get(line, NEVER))
        return {line: _merged(reversed(spans)) for line, spans in found.items()}

    def harmed(self, begin: float, end: float, *whom: str) -> bool:
        """Whether anything was broken in this time that these stand on."""
        return any(_overlaps(self._broken.get(name, []), begin, end) for name in whom)

    def calm(self, begin: float, end: float, *whom: str, felt: float = 0.0) -> float:
        """The longest time within this one in which nothing was broken, or still felt, that these stand on."""
        spans = sorted(span for name in whom for span in self._broken.get(name, ()))
        longest, free = 0.0, begin
        for broken, mended in spans:
            longest = max(longest, min(broken, end) - free)
            free = max(free, mended + felt)
        return max(longest, end - free)

    @cached_property
    def _broken(self) -> dict[str, list[tuple[float, float]]]:
        """When each of them was out of order; spans that do not overlap."""
        found: dict[str, list[tuple[float, float]]] = {}
        for fault in sorted(self.faults, key=lambda fault: fault.begin):
            for name in fault.harms:
                found.setdefault(name, []).append((fault.begin, fault.end))
        return {name: _merged(spans) for name, spans in found.items()}


def _merged(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """These spans, in the order of their begins, as spans that do not overlap."""
    merged: list[tuple[float, float]] = []
    for begin, end in spans:
        if merged and merged[-1][1] >= begin:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def _overlaps(spans: list[tuple[float, float]], begin: float, end: float) -> bool:
    """Whether one of these spans, which are in order, has a moment of this time."""
    place = bisect_right(spans, (end, NEVER))
    return place > 0 and spans[place - 1][1] >= begin


def by_task(things: Iterable[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for thing in things:
        found.setdefault(thing.task, []).append(thing)
    return found


def run_of(lease_token: str) -> int:
    """The number of the run that a lease token stands for; it is written in it."""
    return int(lease_token.split(".")[1])


def read(lines: Iterable[str]) -> History:
    """The history that these lines tell. A last line that was cut off is left out: its writer was killed."""
    history = History()
    open_calls: dict[str, Call] = {}
    for line in lines:
        if not line.endswith("\n"):
            break
        _take(json.loads(line), history, open_calls)
    history.requests = Counter(call.verb for call in history.calls)
    history.unanswered = sum(call.status is None for call in history.calls)
    history.calls = sorted((one for call in history.calls for one in _apart(call)), key=lambda call: call.begin)
    return history


@dataclass(frozen=True, slots=True)
class _Many:
    """A verb for many: the verb of one, what names the many, and what is answered of each."""

    verb: str
    named: str
    told: tuple[str, ...]


_RUN_ENDED: Final = ("task_id", "status", "will_retry", "retry_at", "receipt_id")
_MANY: Final = {
    "queue_many": _Many("queue", "tasks", ("task_id", "receipt_id", "is_duplicate")),
    "complete_many": _Many("complete", "completions", ("task_id", "status", "receipt_id")),
    "fail_many": _Many("fail", "failures", _RUN_ENDED),
    "release_many": _Many("release", "releases", _RUN_ENDED),
}


def _apart(call: Call) -> Iterator[Call]:
    """A call, or those that it stands for: of many each is one, with an answer of its own."""
    many = _MANY.get(call.verb)
    if many is None:
        yield call
        return
    asked = call.request[many.named]
    # Whatever the order in which they were asked for, the same one of many completions leases what follows.
    leases = min(range(len(asked)), key=lambda nth: (asked[nth].get("task_id"), asked[nth].get("lease_token")))
    for nth, request in enumerate(asked):
        status, body = call.status, call.body
        if call.ok:
            status, body = _told_of(many, call.body["results"][nth])
            if many.verb == "complete":
                body["next"] = call.body["next"] if nth == leases else []
        yield replace(call, id=f"{call.id}.{nth}", verb=many.verb, request=request, status=status, body=body)


def _told_of(many: _Many, told: Json) -> tuple[int, Json]:
    """The answer to one of many, as the verb for one would have told it."""
    if told["status"] == "refused":
        return 503 if told["code"] in _LATER else 409, {"code": told["code"]}
    return 200, {name: told[name] for name in many.told}


# What is refused so may be asked again.
_LATER: Final = frozenset({"busy", "unavailable"})


def _take(told: Json, history: History, open_calls: dict[str, Call]) -> None:
    match told.pop("is"):
        case "call":
            call = Call(begin=told.pop("at"), **told)
            open_calls[call.id] = call
            history.calls.append(call)
        case "answer":
            call = open_calls.pop(told["id"])
            call.end, call.wall, call.status, call.body = told["at"], told["wall"], told["status"], told["body"] or {}
        case "loss":
            call = open_calls.pop(told["id"])
            call.lost, call.why = told["at"], told.get("why", "")
        case "fault":
            fault = {name: told[name] for name in ("name", "begin", "end")}
            history.faults.append(Fault(**fault, harms=frozenset(told["harms"])))
        case "task":
            history.tasks[told["id"]] = told
        case kind:
            _take_rest(str(kind), told, history)


def _take_rest(kind: str, told: Mapping[str, Any], history: History) -> None:
    if kind == "world":
        history.world = dict(told)
    elif kind == "look":
        history.looks.append(dict(told))
    elif kind == "rest":
        history.rested = told["rested"]
