"""Histories made by hand: one that is sound, told in the lines that a run would write, for tests to spoil."""

import json
from dataclasses import dataclass, field
from typing import Any

from apps.chaos.history import History, Json, read

TYPES: dict[str, Json] = {
    "plain": {"max_attempts": 2, "max_expiries": 2, "queue": "q"},
    "limited": {"max_attempts": 2, "max_expiries": 2, "queue": "q", "concurrency": 1},
    "rated": {"max_attempts": 2, "max_expiries": 2, "queue": "q", "rate": {"leases": 1, "per_seconds": 10}},
    "turns": {"max_attempts": 2, "max_expiries": 2, "queue": "fair"},
}
_WORLD: Json = {"is": "world", "types": TYPES, "fair": ["fair"]}
_WALL = 1_800_000_000.0
_MANY = {"fail": "failures", "release": "releases"}
_ASKED = ("task_type", "run_at", "depends_on", "concurrency_key", "parent_task_id")


def moment(at: float) -> str:
    """The time of day of a moment, as the product writes it."""
    seconds = int(at)
    return f"2027-01-15T08:{seconds // 60:02d}:{at - seconds // 60 * 60:09.6f}+00:00"


@dataclass
class Story:
    """Lines in the making. Every call takes a tenth of a second unless it is said how long."""

    lines: list[Json] = field(default_factory=lambda: [_WORLD])
    _number: int = 0

    def call(
        self,
        verb: str,
        request: Json,
        at: float,
        *,
        status: int | None = 200,
        body: Json | None = None,
        actor: str = "w1",
        tenant: str = "default",
        lasts: float = 0.1,
        weather: str = "clear",
        killed: bool = False,
        why: str = "",
    ) -> None:
        self._number += 1
        number = f"c{self._number}"
        told: Json = {"actor": actor, "tenant": tenant, "verb": verb, "request": request, "weather": weather}
        self.lines.append({"is": "call", "id": number, "at": at, **told})
        if status is not None:
            answer: Json = {"at": at + lasts, "wall": _WALL + at + lasts, "status": status, "body": body or {}}
            self.lines.append({"is": "answer", "id": number, **answer})
        elif not killed:
            self.lines.append({"is": "loss", "id": number, "at": at + lasts, "why": why})

    def queue(self, at: float, task: int, *, key: str = "k", number: int = 1, **more: Any) -> None:
        members: Json = {name: more.pop(name) for name in _ASKED if name in more}
        status = more.pop("status", 201)
        body = more.pop("body", None) or {"task_id": f"task_{task}", "receipt_id": f"q{task}", "is_duplicate": False}
        request: Json = {"task_type": "plain", "idempotency_key": key, "params": {"number": number}, **members}
        self.call("queue", request, at, status=status, body=body, actor=more.pop("actor", "asker"), **more)

    def lease(
        self,
        at: float,
        task: int | None,
        run: int = 1,
        *,
        checkpoint: Any = None,
        task_type: str = "plain",
        owner: str = "default",
        extra: Json | None = None,
        **more: Any,
    ) -> None:
        given = {
            "task_id": f"task_{task}",
            "run_id": run,
            "lease_token": f"lt_{task}.{run}.x",
            "lease_ms": 2000,
            "params": {"tenant": owner},
            "checkpoint": checkpoint,
            "task_type": task_type,
            **(extra or {}),
        }
        request: Json = {"queues": ["q"], "capacity": 1}
        if "wait_seconds" in more:
            request["wait_seconds"] = more.pop("wait_seconds")
        status, body = (204, None) if task is None else (200, {"tasks": [given]})
        self.call("lease", request, at, status=more.pop("status", status), body=body, **more)

    def beat(
        self,
        at: float,
        task: int,
        run: int = 1,
        *,
        checkpoint: Any = None,
        sequence: int = 1,
        said: str = "ok",
        spend: int = 0,
        reason: str | None = None,
        **more: Any,
    ) -> None:
        held: Json = {
            "task_id": f"task_{task}",
            "lease_token": f"lt_{task}.{run}.x",
            "checkpoint": checkpoint,
            "sequence": sequence,
        }
        if spend:
            held["spend"] = {"tokens": spend}
        told = {"status": said, "lease_ms": 2000, "reason": reason}
        self.call("heartbeat", {"leases": [held]}, at, body={"results": [told]}, **more)

    def lease_many(self, at: float, *tasks: tuple[int, str], task_type: str = "turns", **more: Any) -> None:
        """Lease these first runs in one call, each with the name of who asked for it."""
        given = [
            {
                "task_id": f"task_{task}",
                "run_id": 1,
                "lease_token": f"lt_{task}.1.x",
                "lease_ms": 2000,
                "params": {"tenant": "default", "asker": asker},
                "checkpoint": None,
                "task_type": task_type,
            }
            for task, asker in tasks
        ]
        self.call("lease", {"queues": ["fair"], "capacity": len(given)}, at, body={"tasks": given}, **more)

    def end(self, verb: str, at: float, task: int, run: int = 1, *, result: Any = None, **more: Any) -> None:
        request = {"task_id": f"task_{task}", "lease_token": f"lt_{task}.{run}.x", "result": result}
        body: Json = {"task_id": f"task_{task}", "status": "succeeded", "receipt_id": f"r{task}"}
        if verb != "complete":
            body |= {"status": "scheduled", "receipt_id": None, "retry_at": moment(at)}
        body |= more.pop("body", {})
        self.call(verb, request, at, body=body, **more)

    def pause(self, at: float, **more: Any) -> None:
        self.call("pause", {"queue": "q"}, at, actor="asker", **more)

    def resume(self, at: float, **more: Any) -> None:
        self.call("resume", {"queue": "q"}, at, actor="asker", **more)

    def complete_many(self, at: float, *runs: tuple[int, int], lost: frozenset[int] = frozenset(), **more: Any) -> None:
        """Complete these tasks' runs in one call; those that are lost are refused."""
        completions = [
            {"task_id": f"task_{task}", "lease_token": f"lt_{task}.{run}.x", "result": None} for task, run in runs
        ]
        results = [
            {"task_id": f"task_{task}", "status": "refused", "receipt_id": None, "code": "lease_lost"}
            if task in lost
            else {"task_id": f"task_{task}", "status": "succeeded", "receipt_id": f"r{task}", "code": None}
            for task, _ in runs
        ]
        body = {"results": results, "next": more.pop("next", [])}
        self.call("complete_many", {"completions": completions}, at, body=body, **more)

    def back_many(self, verb: str, at: float, *runs: tuple[int, int], lost: frozenset[int] = frozenset()) -> None:
        """Fail or release these tasks' runs in one call; those that are lost are refused."""
        ends = [{"task_id": f"task_{task}", "lease_token": f"lt_{task}.{run}.x", "result": None} for task, run in runs]
        results: list[Json] = [
            {"task_id": f"task_{task}", "receipt_id": None, "will_retry": False, "retry_at": None}
            | ({"status": "refused", "code": "lease_lost"} if task in lost else {"status": "queued", "code": None})
            for task, _ in runs
        ]
        self.call(f"{verb}_many", {_MANY[verb]: ends}, at, body={"results": results})

    def queue_many(self, at: float, *tasks: tuple[int, str], refused: tuple[str, ...] = ()) -> None:
        """Queue these tasks in one call, each with its key; of these keys something else was refused."""
        keys = [*(key for _, key in tasks), *refused]
        requests = [
            {"task_type": "plain", "idempotency_key": key, "params": {"nth": nth}} for nth, key in enumerate(keys)
        ]
        told: list[Json] = [
            {"status": "queued", "task_id": f"task_{task}", "receipt_id": f"q{task}", "is_duplicate": False}
            for task, _ in tasks
        ]
        told += [{"status": "refused", "code": "idempotency_conflict"} for _ in refused]
        self.call("queue_many", {"tasks": requests}, at, body={"results": told}, actor="asker")

    def schedule(self, at: float, name: str, *, every: int = 1, **more: Any) -> None:
        request = {"name": name, "every_seconds": every, "misfire": "once"}
        self.call("schedule", request, at, status=201, actor="asker", **more)

    def unschedule(self, at: float, name: str, **more: Any) -> None:
        self.call("unschedule", {"name": name}, at, actor="asker", **more)

    def cancel(self, at: float, task: int, *, status: int = 200, **more: Any) -> None:
        self.call("cancel", {"task_id": f"task_{task}"}, at, status=status, actor="asker", **more)

    def fault(self, begin: float, end: float, *harms: str) -> None:
        self.lines.append({"is": "fault", "name": "a fault", "harms": harms, "begin": begin, "end": end})

    def look(self, at: float, **found: Any) -> None:
        self.lines.append(
            {
                "is": "look",
                "at": at,
                "contradictions": {},
                "open": 1,
                "hot_bytes": 1,
                "deadlocks": 0,
                "crashes": 0,
                **found,
            }
        )

    def task(self, task: int, **more: Any) -> None:
        stored = {
            "id": f"task_{task}",
            "tenant": "default",
            "requester": "asker",
            "task_type": "plain",
            "key": f"k{task}",
            "status": "succeeded",
            "reason": None,
            "fence": 1,
            "receipt_id": f"r{task}",
            "terminal_receipts": [f"r{task}"],
            "runs": {"1": "succeeded"},
            "schedule": None,
            "draws_from": None,
            "spends": {},
            "budget": None,
            "spent": None,
        }
        self.lines.append({"is": "task", **stored, **more})

    def history(self, *, rested: bool | None = True) -> History:
        rest = [] if rested is None else [{"is": "rest", "rested": rested}]
        return read(json.dumps(line) + "\n" for line in [*self.lines, *rest])
