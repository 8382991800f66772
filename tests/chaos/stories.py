"""Histories made by hand: one that is sound, told in the lines that a run would write, for tests to spoil."""

import json
from dataclasses import dataclass, field
from typing import Any

from apps.chaos.history import History, Json, read

TYPES: dict[str, Json] = {
    "plain": {"max_attempts": 2, "max_expiries": 2},
    "limited": {"max_attempts": 2, "max_expiries": 2, "concurrency": 1},
}
_WORLD: Json = {"is": "world", "types": TYPES}
_WALL = 1_800_000_000.0


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
        members: Json = {name: more.pop(name) for name in ("run_at", "depends_on", "concurrency_key") if name in more}
        status = more.pop("status", 201)
        body = more.pop("body", None) or {"task_id": f"task_{task}", "receipt_id": f"q{task}", "is_duplicate": False}
        request: Json = {"idempotency_key": key, "params": {"number": number}, **members}
        self.call("queue", request, at, status=status, body=body, actor="asker", **more)

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
        request = {"queues": ["q"], "capacity": 1}
        status, body = (204, None) if task is None else (200, {"tasks": [given]})
        self.call("lease", request, at, status=more.pop("status", status), body=body, **more)

    def beat(
        self, at: float, task: int, run: int = 1, *, checkpoint: Any = None, said: str = "ok", **more: Any
    ) -> None:
        request = {
            "leases": [{"task_id": f"task_{task}", "lease_token": f"lt_{task}.{run}.x", "checkpoint": checkpoint}]
        }
        self.call("heartbeat", request, at, body={"results": [{"status": said, "lease_ms": 2000}]}, **more)

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

    def cancel(self, at: float, task: int, *, status: int = 200, **more: Any) -> None:
        self.call("cancel", {"task_id": f"task_{task}"}, at, status=status, actor="asker", **more)

    def fault(self, begin: float, end: float, *harms: str) -> None:
        self.lines.append({"is": "fault", "name": "a fault", "harms": harms, "begin": begin, "end": end})

    def look(self, at: float, **found: Any) -> None:
        self.lines.append(
            {"is": "look", "at": at, "contradictions": {}, "open": 1, "hot_bytes": 1, "deadlocks": 0, **found}
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
        }
        self.lines.append({"is": "task", **stored, **more})

    def history(self, *, rested: bool | None = True) -> History:
        rest = [] if rested is None else [{"is": "rest", "rested": rested}]
        return read(json.dumps(line) + "\n" for line in [*self.lines, *rest])
