"""The judge of a history: what was promised, and what was answered instead.

Each promise is a function that yields a sentence for each violation. What a call without an answer did is unknown, so
it convicts nobody. The effect of a call lies between its begin and its end.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime
from http import HTTPStatus
from itertools import chain, pairwise
from typing import Final

from tests.chaos.history import ENDINGS, NEVER, History, Json, Run, canonical, grouped

# What the clocks of the machine's processes may differ by.
_SLACK: Final = 0.05
# What is broken is felt a little longer than it is broken.
_FELT: Final = 2.0
# From the monotonic clock to the time of day.
_WALL: Final = time.time() - time.monotonic()


def violations(history: History) -> list[str]:
    """Everything in this history that was promised otherwise."""
    return [f"{name}: {found}" for name, promise in PROMISES.items() for found in promise(history)]


def ends_once(history: History) -> Iterator[str]:
    """An accepted task ends once, with one receipt."""
    yield from history.unrest
    receipts = defaultdict(list)
    for receipt in history.receipts:
        if receipt["event_type"] in {"task_complete", "task_failed", "task_canceled"} and receipt["task"]:
            receipts[receipt["task"]].append(receipt["receipt_id"])
    for task in history.accepted:
        ended = history.tasks.get(task, {})
        if not ended.get("complete"):
            yield f"{task} was accepted and has no end"
        elif receipts[task] != [ended["terminal_receipt_id"]]:
            yield f"{task} ended by {ended['terminal_receipt_id']}, and its receipts are {receipts[task]}"
        for call in history.endings.get(task, ()):
            told = (call.body.get("status"), call.body.get("receipt_id"))
            if call.ok and told[1] and told != (ended.get("status"), ended.get("terminal_receipt_id")):
                yield f"{call} said that {task} is {told}, and it is {ended.get('status')}"


def one_holder(history: History) -> Iterator[str]:
    """Two workers never hold one task."""
    granted: dict[tuple[str, int], set[int]] = defaultdict(set)
    for call in history.of("lease"):
        for given in call.body.get("tasks", ()):
            granted[given["task_id"], given["run_id"]].add(id(call))
    yield from (f"{task} run {run} was granted {len(by)} times" for (task, run), by in granted.items() if len(by) > 1)
    for runs in history.runs.values():
        for before, after in pairwise(runs):
            if after.call.end + _SLACK < _held_until(history, before, after.call.end):
                yield f"{after.task} run {after.number} was granted while run {before.number} had it"


def refused_alone(history: History) -> Iterator[str]:
    """Nobody is refused for what others ask: the holder of a task may end it."""
    for run in chain.from_iterable(history.runs.values()):
        first, *rest = [call for call in history.endings.get(run.task, ()) if call.run == run.number] or [run.call]
        alone = all(call.begin > first.end or call.key == first.key for call in rest)
        if first.refused and alone and first.end < _certain(history, run, first.end):
            yield f"{first} of {run.task}, which run {run.number} held: {first.body}"


def _held_until(history: History, run: Run, asked: float) -> float:
    """Until when a run has its task for certain: its deadline, or the first call that may have ended it."""
    ends = [call.begin for call in history.endings.get(run.task, ()) if call.run == run.number]
    return min([_certain(history, run, asked), *ends])


def _certain(history: History, run: Run, asked: float) -> float:
    """The deadline of a run.

    A database that is killed may forget a renewal: then only what came later counts.
    """
    beats = [beat for beat in history.beats.get(run.task, ()) if beat.run == run.number]
    signs = [(run.call.begin, run.lease)]
    signs += [(beat.begin, beat.body["lease_ms"] / 1000) for beat in beats if beat.ok and beat.body["status"] == "ok"]
    return max((at + s for at, s in signs if not history.harmed(at, min(asked, at + s), "database")), default=0.0)


def no_stale_fence(history: History) -> Iterator[str]:
    """An earlier run of a task changes nothing once a later one is granted."""
    for task, runs in history.runs.items():
        for call in [*history.endings.get(task, ()), *history.beats.get(task, ())]:
            later = next((run for run in runs if run.number > call.run and run.call.end < call.begin), None)
            if later is None or not call.ok or call.body.get("status") in {"lost", "retry"}:
                continue
            # What was done before is answered as it was.
            before = (one for one in history.endings[task] if one.begin < later.call.end)
            if call.verb == "heartbeat" or all(one.key != call.key for one in before):
                yield f"{call} of run {call.run} of {task} succeeded after run {later.number} was granted"
            elif call.body.get("receipt_id"):
                yield f"{call} of run {call.run} ended {task}, and run {later.number} was granted"


def no_lost_receipt(history: History) -> Iterator[str]:
    """A receipt that was acknowledged is in its recipient's inbox until it is acked, once."""
    stored = {(receipt["tenant"], receipt["receipt_id"]): receipt for receipt in history.receipts}
    for call in history.of("post"):
        receipt = stored.get((call.tenant, call.body.get("receipt_id", "")))
        if call.ok and (receipt is None or receipt["recipient"] != call.request["recipient_ai"]):
            yield f"{call.request['dedupe_key']} was acknowledged as {call.body['receipt_id']} and is {receipt}"
    possible = {receipt for call in history.of("ack") for receipt in call.request["shown"]}
    shown = {inbox: Counter(receipts) for inbox, receipts in history.visible.items()}
    for receipt in history.receipts:
        if receipt["in_inbox"]:
            times = shown.get((receipt["tenant"], receipt["recipient"]), Counter())[receipt["receipt_id"]]
            if times > 1 or (not times and receipt["receipt_id"] not in possible):
                yield f"{receipt['receipt_id']} of {receipt['recipient']} is shown {times} times, and nobody has acked it"


def receipt_once(history: History) -> Iterator[str]:
    """A dedupe key makes one receipt, whatever is repeated, and keeps its content."""
    names = Counter((receipt["tenant"], receipt["source"], receipt["dedupe_key"]) for receipt in history.receipts)
    yield from (f"{key[2]} has made {count} receipts" for key, count in names.items() if count > 1)
    yield from _accepted_twice(history, "post", "dedupe_key", "receipt_id", "dedupe_conflict")


def idempotent(history: History) -> Iterator[str]:
    """A call that is repeated gives the same answer, and an idempotency key makes one task."""
    yield from _accepted_twice(history, "queue", "idempotency_key", "task_id", "idempotency_conflict")
    for calls in grouped(history.of(*ENDINGS), lambda call: call.key).values():
        done = [call for call in calls if call.ok]
        # The verb for several says more than the verb for one.
        said = {(call.body["status"], call.body.get("receipt_id"), call.body.get("retry_at")) for call in done}
        if len(said) > 1:
            yield f"{done[0]} and its repetitions were answered differently: {said}"
        first = min((call.end for call in done), default=NEVER)
        yield from (f"{call} had succeeded before" for call in calls if call.refused and call.begin > first)


def _accepted_twice(history: History, verb: str, key: str, made: str, conflict: str) -> Iterator[str]:
    """What one key was accepted for with two contents, or has made twice, and what is in conflict with itself."""
    for (_, name), same in grouped(history.of(verb), lambda call: (call.tenant, call.request[key])).items():
        told = {call.body.get(made) if call.ok else call.body.get(f"existing_{made}") for call in same} - {None}
        if len(told) > 1:
            yield f"{name} was told to be each of {sorted(map(str, told))}"
        if len({canonical(call.request) for call in same if call.ok}) > 1:
            yield f"{name} was accepted for two contents"
        if len({canonical(call.request) for call in same}) == 1:
            yield from (f"{call} is in conflict with itself" for call in same if call.body.get("code") == conflict)


def canceled_or_completed(history: History) -> Iterator[str]:
    """A task is canceled or completed, never both; once it is accepted, it is known."""
    for call in history.of("cancel"):
        if call.status == HTTPStatus.NOT_FOUND:
            yield f"{call.task} was accepted, and {call}"
        status = history.tasks.get(call.task, {}).get("status")
        completed = [one for one in history.endings.get(call.task, ()) if one.verb == "complete" and one.ok]
        if call.status == 200 and (status != "canceled" or completed):  # 202 is a request
            yield f"{call.task} was canceled, and is {status}, completed by {completed[:1]}"
        if call.refused and status == "canceled":
            yield f"{call} was refused, and {call.task} is canceled"


def in_order(history: History) -> Iterator[str]:
    """Nothing runs before its moment, nor before what it depends on has succeeded."""
    for task, call in history.accepted.items():
        for run in history.runs.get(task, ()):
            due = call.request.get("run_at")
            if due and run.call.end + _WALL < datetime.fromisoformat(due).timestamp() - _SLACK:
                yield f"{task} run {run.number} was granted before {due}"
            for needed in call.request.get("depends_on", ()):
                done = [one.begin for one in history.endings.get(needed, ()) if one.verb == "complete"]
                status = history.tasks.get(needed, {}).get("status")
                if run.call.end < min(done, default=NEVER) or status != "succeeded":
                    yield f"{task} run {run.number} was granted, and {needed} had not succeeded"


def acks_as_of(history: History) -> Iterator[str]:
    """An ack takes what its token's page showed up to there, and nothing that came later."""
    certain = {receipt for call in history.of("ack") if call.ok for receipt in call.request["shown"]}
    for (tenant, name), visible in history.visible.items():
        if again := sorted(certain & set(visible)):
            yield f"{name} acked {again[:5]} and is shown them"
        stored = [one for one in history.receipts if (one["tenant"], one["recipient"]) == (tenant, name)]
        own = {one["receipt_id"] for one in stored if one["in_inbox"]}
        if foreign := [one for one in visible if one not in own]:
            yield f"{name} is shown {foreign[:5]} of others"


def no_failure(history: History) -> Iterator[str]:
    """No answer is a failure, and none is missing, but while the web or the database is broken."""
    for call in history.calls:
        failed = call.status is not None and call.status >= 500  # HTTP
        missing = call.status is None and call.weather == "clear"
        if not (failed or missing) or call.body.get("code") == "busy":
            continue
        broken = history.harmed(call.begin - _FELT, min(call.end, call.lost), "web", "database")
        if not broken or call.status == 500:  # a defect
            yield str(call)


def no_stranger(history: History) -> Iterator[str]:
    """Nobody is given a task of another tenant."""
    for runs in history.runs.values():
        for run in runs:
            if run.params.get("tenant", run.call.tenant) != run.call.tenant:
                yield f"{run.call.actor} of {run.call.tenant} was given {run.task} of {run.params['tenant']}"


def executions_go_on(history: History) -> Iterator[str]:
    """An execution ends completely, with its own results, and calls nothing again once its step has ended."""
    for report in history.executions:
        name = report["execution_id"]
        if report["status"] != "complete":
            yield f"{name} ended {report['status']}: {report['summary'][:200]}"
            continue
        steps: dict[str, Json] = {step["step_id"]: step for step in report["steps"]}
        for step_id, (tool, text) in report["expected"].items():
            step = steps[step_id]
            if (step["envelope"] or {}).get("payload") != {"text": f"{text}>{tool}"}:
                yield f"{name} {step_id} brought {step['envelope']}"
            called = [at for used, given, at in history.tool_calls if (used, given) == (tool, text)]
            ended = datetime.fromisoformat(step["ended_at"]).timestamp()
            if not called or max(called) > ended + _SLACK:
                yield f"{name} {step_id} was called {len(called)} times, the last after it had ended"
            if step["step_type"] == "call_worker" and len(called) > step["attempts"]:
                yield f"{name} {step_id} was called {len(called)} times in {step['attempts']} attempts"


PROMISES: Final[dict[str, Callable[[History], Iterator[str]]]] = {
    promise.__name__: promise
    for promise in (
        *(ends_once, one_holder, refused_alone, no_stale_fence, no_lost_receipt, receipt_once, idempotent),
        *(canceled_or_completed, in_order, acks_as_of, no_failure, no_stranger, executions_go_on),
    )
}
