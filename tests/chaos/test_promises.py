"""The judge: a sound history has no violations, and one spoiled line is found by its promise."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.history import Call, Fault, History, Json
from tests.chaos.promises import PROMISES

TASK, TOKEN, LATER = "task_1", "lt_1.1.x", "lt_1.2.x"


def called(verb: str, request: Json, begin: float, body: Json | None = None, **more: Any) -> Call:
    given: dict[str, Any] = {"actor": "hand", "tenant": "default", "status": 200, "end": begin + 0.1, **more}
    return Call(verb=verb, request=request, begin=begin, body=body or {}, **given)


def lease(begin: float, run: int, tenant: str = "default") -> Call:
    token = f"lt_1.{run}.x"
    given = {"task_id": TASK, "run_id": run, "lease_token": token, "lease_ms": 2000, "params": {"tenant": tenant}}
    return called("lease", {"queues": ["q"]}, begin, {"tasks": [given]})


def complete(begin: float, token: str = LATER, receipt: str = "end", **more: Any) -> Call:
    body = {"task_id": TASK, "status": "succeeded", "receipt_id": receipt}
    return called("complete", {"task_id": TASK, "lease_token": token, "result": None}, begin, body, **more)


def beat(begin: float, token: str = TOKEN) -> Call:
    body = {"task_id": TASK, "status": "ok", "lease_ms": 2000, "order": None}
    return called("heartbeat", {"task_id": TASK, "lease_token": token, "sequence": 1}, begin, body)


def queue(begin: float, *, task: str = TASK, number: int = 1, **more: Any) -> Call:
    request = {"idempotency_key": "k", "params": {"number": number}, **more.pop("asked", {})}
    return called("queue", request, begin, {"task_id": task, "is_duplicate": False}, actor="asker", **more)


def post(begin: float, *, key: str = "d", receipt: str = "r1", summary: str = "x", **more: Any) -> Call:
    request = {"recipient_ai": "reader", "dedupe_key": key, "summary": summary}
    return called("post", request, begin, {"receipt_id": receipt}, **more)


def ack(begin: float, *shown: str, **more: Any) -> Call:
    return called("ack", {"through": "ent_1@1", "shown": list(shown)}, begin, actor="reader", **more)


def receipt(receipt_id: str, key: str, event_type: str = "message", recipient: str = "reader", **more: Any) -> Json:
    about = {"tenant": "default", "source": "chaos", "in_inbox": True, "task": None, **more}
    return {"receipt_id": receipt_id, "recipient": recipient, "dedupe_key": key, "event_type": event_type, **about}


def execution(**changes: Any) -> Json:
    expected = {"pick": ("pick", "b"), "press": ("press", "b>pick"), "taste": ("pick", "b>pick>press")}
    about = {"step_type": "call_worker", "attempts": 1, "ended_at": "2026-01-01T00:00:10+00:00"}
    payloads = {name: {"payload": {"text": f"{text}>{tool}"}} for name, (tool, text) in expected.items()}
    steps = [{"step_id": name, "envelope": payload, **about} for name, payload in payloads.items()]
    report = {"execution_id": "exec_1", "expected": expected, "status": "complete", "summary": "", "steps": steps}
    return {**report, **changes}


# 2026-01-01T00:00:10 as seconds.
ENDED = 1767225610.0


def sound() -> History:
    """A task whose first run expires and whose second completes it, two posts, an ack, and an execution."""
    return History(
        calls=[
            queue(0.0),
            lease(1.0, 1),
            beat(1.5),
            lease(5.0, 2),
            complete(6.0),
            complete(7.0, TOKEN, status=409),
            post(1.0),
            post(2.0, key="e", receipt="r2"),
            ack(3.0, "r1"),
        ],
        tasks={TASK: {"complete": True, "status": "succeeded", "terminal_receipt_id": "end"}},
        receipts=[
            receipt("end", "t", "task_complete", "asker", task=TASK),
            receipt("r1", "d"),
            receipt("r2", "e"),
        ],
        visible={("default", "reader"): ["r2"], ("default", "asker"): ["end"]},
        executions=[execution()],
        tool_calls=[("pick", "b", ENDED - 9), ("press", "b>pick", ENDED - 5), ("pick", "b>pick>press", ENDED - 1)],
    )


def test_sound_history_has_no_violations() -> None:
    assert [found for promise in PROMISES.values() for found in promise(sound())] == []


REFUSED = called("cancel", {"task_id": TASK}, 8.0, {"code": "already_finished"}, status=409)
DEPENDENT = queue(-1.0, asked={"depends_on": ["task_9"]})


REFUSED_ANEW = called("queue", queue(0.0).request, 4.0, {"code": "idempotency_conflict"}, status=409)
NEEDED = called("complete", {"task_id": "task_9", "lease_token": "lt_9.1.x"}, 0.5)
CANCELED = called("cancel", {"task_id": TASK}, 8.0)


def add(*calls: Call) -> Callable[[History], object]:
    return lambda history: history.calls.extend(calls)


def told(**members: Any) -> Callable[[History], object]:
    return lambda history: history.tasks[TASK].update(members)


@pytest.mark.parametrize(
    ("promise", "spoil"),
    [
        ("ends_once", lambda history: history.tasks.clear()),
        ("ends_once", lambda history: history.unrest.append("task_1 does not come to an end")),
        ("ends_once", lambda history: history.receipts.append(receipt("r9", "u", "task_failed", "asker", task=TASK))),
        ("ends_once", told(status="failed")),
        ("ends_once", add(complete(6.5, receipt="other"))),
        ("one_holder", add(lease(5.2, 2))),
        ("one_holder", add(beat(4.0))),
        ("refused_alone", add(complete(5.5, status=409))),
        ("no_stale_fence", add(beat(5.5))),
        ("no_stale_fence", add(complete(5.5, TOKEN))),
        ("no_stale_fence", add(complete(4.0, TOKEN), complete(6.5, TOKEN))),
        ("no_lost_receipt", lambda history: history.receipts[1].update(in_inbox=False, recipient="asker")),
        ("no_lost_receipt", add(post(4.0, key="f", receipt="r7"))),
        ("no_lost_receipt", lambda history: history.visible["default", "reader"].remove("r2")),
        ("no_lost_receipt", lambda history: history.visible["default", "reader"].append("r2")),
        ("receipt_once", lambda history: history.receipts.append(receipt("r8", "d"))),
        ("receipt_once", add(post(4.0, receipt="r8"))),
        ("receipt_once", add(post(4.0, summary="y"))),
        ("idempotent", add(queue(4.0, task="task_2"))),
        ("idempotent", add(queue(4.0, number=2))),
        ("idempotent", add(REFUSED_ANEW)),
        ("idempotent", add(complete(8.0, status=409))),
        ("idempotent", add(complete(8.0, receipt="other"))),
        ("canceled_or_completed", lambda history: (told(status="canceled")(history), add(CANCELED)(history))),
        ("canceled_or_completed", lambda history: (history.calls.__delitem__(slice(3, 6)), add(CANCELED)(history))),
        ("canceled_or_completed", lambda history: (told(status="canceled")(history), add(REFUSED)(history))),
        ("canceled_or_completed", add(called("cancel", {"task_id": TASK}, 0.2, status=404))),
        ("in_order", add(queue(-1.0, asked={"run_at": "2999-01-01T00:00:00+00:00"}))),
        ("in_order", lambda history: (history.tasks.update(task_9={"status": "succeeded"}), add(DEPENDENT)(history))),
        (
            "in_order",
            lambda history: (history.tasks.update(task_9={"status": "failed"}), add(NEEDED, DEPENDENT)(history)),
        ),
        ("acks_as_of", lambda history: history.visible["default", "reader"].append("r1")),
        ("acks_as_of", lambda history: history.visible["default", "reader"].append("end")),
        ("no_failure", add(queue(3.0, status=500))),
        ("no_failure", add(queue(3.0, status=503))),
        ("no_failure", add(queue(3.0, status=None))),
        ("no_stranger", add(lease(9.0, 3, tenant="other"))),
        ("executions_go_on", lambda history: history.executions.append(execution(status="failed"))),
        ("executions_go_on", lambda history: history.executions.append(execution(expected={"pick": ("pick", "c")}))),
        ("executions_go_on", lambda history: history.executions[0]["steps"][0].update(envelope={})),
        ("executions_go_on", lambda history: history.tool_calls.__setitem__(1, ("press", "b>pick", ENDED + 1))),
        ("executions_go_on", lambda history: history.tool_calls.append(("pick", "b", ENDED - 8))),
    ],
)
def test_spoiled_history_is_found(promise: str, spoil: Callable[[History], object]) -> None:
    history = sound()
    spoil(history)
    assert list(PROMISES[promise](history)) != []


@pytest.mark.parametrize("status", [500, 503, None])
def test_failure_is_excused_while_the_database_is_broken(status: int | None) -> None:
    history = sound()
    history.calls.append(queue(3.0, status=status))
    history.faults.append(Fault(name="kill database", harms=frozenset({"database"}), begin=2.9, end=3.2))
    assert bool(list(PROMISES["no_failure"](history))) is (status == 500)
