"""The judge of a history: what was promised, and what was answered instead.

Plain Python over :mod:`apps.chaos.history`; it knows nothing of the product but its contract. Each promise is one
function that yields a sentence for each violation. What a call without an answer did is unknown: it may have had its
effect, or none, so it convicts nobody. An effect lies between its call's begin and end.
"""

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise, zip_longest
from typing import Any, Final

from apps.chaos.history import ENDINGS, NEVER, Beat, Call, Grant, History, Json

# What the clocks of the machine's processes may differ by.
_SLACK: Final = 0.01
# How late an expired lease may be claimable again.
_LATE: Final = 1.0
# What was asked by somebody who was killed is done with by then.
_LONGEST: Final = 5.0
# What is broken is felt a little longer than it is broken.
_FELT: Final = 2.0
# Faults so long before a call are told with it.
_AROUND: Final = 15.0
# An answer takes no longer, of the time in which nothing that it stands on was broken.
_LONGEST_CALM: Final = 15.0
# So often in a row may the same call be answered "busy", of which each takes the product seconds.
_BUSY_IN_A_ROW: Final = 2
# After so long without a fault sweeps have found what there is to find.
_SWEPT: Final = 10.0
# So long those that sweep may take to start again on a machine that does much else.
_STARTING: Final = 60.0
# The hot table and its indexes may take so much for nothing, and so much for each task that was open at once.
_BLOAT: Final = 64 * 1024 * 1024
_BLOAT_OF_A_TASK: Final = 8192

Rule = Callable[[History], Iterator[str]]


@dataclass(frozen=True, slots=True)
class Promise:
    """One thing that holds whatever happens; its name is the sentence of the contract."""

    name: str
    rule: Rule


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was not kept, and where."""

    promise: str
    found: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.found}"


PROMISES: Final[dict[str, Promise]] = {}


def check(history: History) -> list[Violation]:
    """Everything in this history that was promised otherwise."""
    return [Violation(promise.name, found) for promise in PROMISES.values() for found in promise.rule(history)]


def _promise(name: str) -> Callable[[Rule], Rule]:
    def declare(rule: Rule) -> Rule:
        PROMISES[rule.__name__] = Promise(name, rule)
        return rule

    return declare


@_promise("no acknowledged task is lost")
def nothing_lost(history: History) -> Iterator[str]:
    if history.rested is not True:
        yield "the run was broken off" if history.rested is None else "not everything came to an end by itself"
    for call in history.of("queue"):
        if call.ok and (history.tasks.get(call.body["task_id"]) or {}).get("status") is None:
            yield f"{call.body['task_id']} was acknowledged ({call.id}) and has no end"


@_promise("one terminal state and one terminal receipt each")
def one_end(history: History) -> Iterator[str]:
    for task in history.tasks.values():
        if task["status"] is not None and task["terminal_receipts"] != [task["receipt_id"]]:
            yield f"{task['id']} is {task['status']} by {task['receipt_id']}, its receipts are {task['terminal_receipts']}"
    for name, calls in history.endings_of.items():
        told = {(call.body["status"], call.body["receipt_id"]) for call in calls if call.ok and call.body["receipt_id"]}
        if len(told) > 1:
            yield f"{name} was said to have ended as each of {sorted(told)}"
        stored = history.tasks.get(name)
        if stored is not None and told - {(stored["status"], stored["receipt_id"])}:
            yield f"{name} is {stored['status']} by {stored['receipt_id']}, and was said to be {sorted(told)}"


@_promise("two workers never hold one run")
def one_holder(history: History) -> Iterator[str]:
    calls: dict[tuple[str, int], set[str]] = {}
    for grant in history.tellings:
        # The same completion may tell again of what it granted; no two leases may.
        said = grant.call.id if grant.call.verb == "lease" else _canonical(grant.call.request)
        calls.setdefault((grant.task, grant.run), set()).add(said)
    yield from (f"{name} run {run} was granted by {len(by)} calls" for (name, run), by in calls.items() if len(by) > 1)
    for name, grants in history.grants_of.items():
        for before, after in pairwise(grants):
            if before.call.end < after.call.begin and before.run >= after.run:
                yield f"{name} was granted as run {after.run} ({after.call.id}) after run {before.run}"
        for before, after in pairwise(sorted(grants, key=lambda grant: grant.run)):
            if after.call.end + _SLACK < _certain_until(history, before, after.call.end):
                yield f"{name} was given out as run {after.run} ({after.call.id}) while run {before.run} had it"


def _certain_until(history: History, grant: Grant, asked: float) -> float:
    """Until when a run has its task for certain: its deadline, or the first call that may have ended it.

    A database that is broken may forget a renewal without a checkpoint; then only what came after counts.
    """
    signs = [(grant.call.begin, grant.lease)] + [
        (beat.call.begin, beat.lease)
        for beat in history.beats_of.get(grant.task, ())
        if beat.run == grant.run and beat.status == "ok"
    ]
    kept = [begin + lease for begin, lease in signs if not history.harmed(begin, min(asked, begin + lease), "database")]
    endings = [call.begin for call in history.endings_of.get(grant.task, ()) if call.run == grant.run]
    return min([max(kept, default=0.0), *endings])


@_promise("a stale fence never succeeds")
def no_stale_fence(history: History) -> Iterator[str]:
    for name, grants in history.grants_of.items():
        for call in history.endings_of.get(name, ()):
            if call.ok:
                yield from _stale_end(history, call, grants)
        for beat in history.beats_of.get(name, ()):
            superseded = _superseded(grants, beat.run, beat.call.begin)
            if superseded is not None and beat.status == "ok":
                yield f"a heartbeat of {name} run {beat.run} renewed ({beat.call.id}) run {superseded.run}"


def _stale_end(history: History, call: Call, grants: list[Grant]) -> Iterator[str]:
    """A run that ended its task was the last; one that was given back ends before the next is granted."""
    if call.body["receipt_id"] is not None:
        for grant in grants:
            if grant.run > call.run:
                yield f"{call.verb} of {call.task} run {call.run} ended it ({call.id}), and run {grant.run} was granted"
        return
    superseded = _superseded(grants, call.run, call.begin)
    if superseded is not None and not _repeats(history, call, superseded):
        yield f"{call.verb} of {call.task} run {call.run} succeeded ({call.id}) when run {superseded.run} was granted"


def _superseded(grants: list[Grant], run: int, begin: float) -> Grant | None:
    """The first grant of a later run that was answered before this moment."""
    return next((grant for grant in grants if grant.run > run and grant.call.end < begin), None)


def _repeats(history: History, call: Call, superseded: Grant) -> bool:
    """Whether the same call was made before the run was superseded: then it is answered as it was, or would have been."""
    return any(
        earlier.begin < superseded.call.end and _same(earlier, call) for earlier in history.endings_of[call.task]
    )


@_promise("an acknowledged completion survives the kill of the database")
def completions_last(history: History) -> Iterator[str]:
    for call in history.of("complete"):
        stored = history.tasks.get(call.task, {})
        if call.ok and (stored.get("status"), stored.get("fence")) != ("succeeded", call.run):
            yield f"{call.task} was completed by run {call.run} ({call.id}) and is {stored.get('status')}"


@_promise("record, receipt and entry are all there or none")
def all_or_none(history: History) -> Iterator[str]:
    for look in history.looks:
        for name, found in look["contradictions"].items():
            if found:
                yield f"{name}: {found[:10]} at {_moment(history, look['at'])}"


@_promise("an expired lease is claimable within its deadline and a second")
def claimable_again(history: History) -> Iterator[str]:
    short = [call for call in _alone(history) if call.ok and _wanted_more(call)]
    begins = [call.begin for call in short]
    for name, grants in history.grants_of.items():
        for before, after in pairwise(sorted(grants, key=lambda grant: grant.run)):
            if after.run != before.run + 1 or not _expired(history, before):
                continue
            due = _certainly_over(history, before) + _LATE
            passed_over = [
                call
                for call in short[bisect_left(begins, due) : bisect_left(begins, after.call.begin)]
                if call.end < after.call.begin and _covers(history, call, before)
            ]
            excused = history.harmed(before.call.begin, after.call.end, "database", "web") or any(
                history.maybe_paused(call.tenant, queue, call.begin, call.end)
                for call in passed_over
                for queue in call.request["queues"]
            )
            # One may have come while somebody else had the row at hand.
            if len(passed_over) > 1 and not excused:
                over = _moment(history, due - _LATE)
                yield f"{name} run {before.run} was over at {over}, and {passed_over[-1].id} did not get it"


def _alone(history: History) -> Iterator[Call]:
    """The leases, in order, that met no other: of two that meet, either may have at hand what the other looks for."""
    calls = history.of("lease")
    busy_until = 0.0
    for call, following in zip_longest(calls, calls[1:]):
        if busy_until < call.begin and (following is None or call.end < following.begin):
            yield call
        until = min(call.over, call.begin + _LONGEST)
        busy_until = max(busy_until, until)


def _wanted_more(call: Call) -> bool:
    return len(call.body.get("tasks", ())) < int(call.request["capacity"])


def _covers(history: History, call: Call, grant: Grant) -> bool:
    return call.tenant == grant.call.tenant and _queue(history, grant) in call.request["queues"]


def _queue(history: History, grant: Grant) -> str:
    return str(history.world["types"][grant.task_type]["queue"])


def _expired(history: History, grant: Grant) -> bool:
    policy = history.world["types"][grant.task_type]
    limited = policy.get("concurrency") or policy.get("rate") or grant.params.get("keyed")
    runs = (history.tasks.get(grant.task) or {}).get("runs", {})
    return not limited and runs.get(str(grant.run)) == "expired"


def _certainly_over(history: History, grant: Grant) -> float:
    """When a lease had expired for certain; never, if a heartbeat of it got no answer."""
    beats = [beat for beat in history.beats_of.get(grant.task, ()) if beat.run == grant.run]
    if any(beat.status is None for beat in beats):
        return NEVER
    renewed = [beat.call.end + beat.lease for beat in beats if beat.status == "ok"]
    return max([grant.call.end + grant.lease, *renewed])


@_promise("a paused queue gives out nothing")
def pauses_hold(history: History) -> Iterator[str]:
    given = sorted(history.grants, key=lambda grant: grant.call.begin)
    begins = [grant.call.begin for grant in given]
    for pause in history.of("pause"):
        resumed = _resumed(history, pause)
        for grant in given[bisect_left(begins, pause.end) : bisect_left(begins, resumed)] if pause.ok else ():
            call = grant.call
            concerned = call.tenant == pause.tenant and _queue(history, grant) == pause.request["queue"]
            if concerned and call.end < resumed and not _asked_before(history, call, pause.end):
                yield f"{grant.task} run {grant.run} was granted ({call.id}) after {pause.id} had paused its queue"


def _resumed(history: History, pause: Call) -> float:
    """The first moment at which the queue may have been resumed after this pause."""
    resumes = (call for call in history.of("resume") if call.tenant == pause.tenant)
    return min((call.begin for call in resumes if _done_by(call) > pause.begin), default=NEVER)


def _done_by(call: Call) -> float:
    """When a call has had its effect for certain, if it had any."""
    return call.end if call.lost is None else call.lost + _LONGEST


def _asked_before(history: History, call: Call, moment: float) -> bool:
    """Whether a completion was asked for before: then it may tell again of what was leased with it at that time."""
    return call.verb == "complete" and any(
        one.begin < moment and _same(one, call) for one in history.endings_of[call.task]
    )


@_promise("attempts and expiries end in a dead letter")
def dead_letters(history: History) -> Iterator[str]:
    for task in history.tasks.values():
        policy = history.world["types"][task["task_type"]]
        outcomes = Counter(task["runs"].values())
        for outcome, reason, cap in (
            ("failed", "attempts_exhausted", policy["max_attempts"]),
            ("expired", "expiries_exhausted", policy["max_expiries"]),
        ):
            used = outcomes[outcome]
            dead = task["status"] in {"failed", "canceled"}
            if used > cap or (used == cap and not dead) or (task["reason"] == reason and used != cap):
                yield f"{task['id']} is {task['status']} ({task['reason']}) with {used} runs {outcome} of {cap}"


@_promise("nothing runs early")
def nothing_early(history: History) -> Iterator[str]:
    due = {
        call.body["task_id"]: _seconds(call.request["run_at"])
        for call in history.of("queue")
        if call.ok and call.request.get("run_at")
    }
    for name, grants in history.grants_of.items():
        retries = {
            call.run + 1: _seconds(call.body["retry_at"])
            for call in history.endings_of.get(name, ())
            if call.ok and call.verb != "complete" and call.body.get("retry_at")
        }
        for grant in grants:
            moment = max(due.get(name, 0.0), retries.get(grant.run, 0.0))
            if grant.call.wall < moment:
                yield f"{name} run {grant.run} was granted {moment - grant.call.wall:.3f} s early ({grant.call.id})"


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


@_promise("limits are never exceeded")
def within_limits(history: History) -> Iterator[str]:
    for name, limit, grants in _limited(history):
        held = 0
        for moment, step in sorted(step for grant in grants for step in _held(history, grant)):
            held += step
            if held > limit:
                yield f"{held} of {name} were held at {_moment(history, moment)}; the limit is {limit}"
                break


def _limited(history: History) -> Iterator[tuple[str, int, list[Grant]]]:
    """What has a limit, the limit, and the runs that it binds: of a type's concurrency, and of each key's one."""
    for name, policy in history.world["types"].items():
        if policy.get("concurrency") is not None:
            # Each tenant has types of its own.
            for tenant in sorted({grant.call.tenant for grant in history.grants}):
                of_type = [one for one in history.grants if one.task_type == name and one.call.tenant == tenant]
                yield f"{name} of {tenant}", policy["concurrency"], of_type
    keyed: dict[str, list[Grant]] = {}
    for call in history.of("queue"):
        if call.ok and call.request.get("concurrency_key") and not call.body["is_duplicate"]:
            runs = history.grants_of.get(call.body["task_id"], ())
            keyed.setdefault(f"the key {call.request['concurrency_key']} of {call.tenant}", []).extend(runs)
    yield from ((name, 1, runs) for name, runs in keyed.items())


def _held(history: History, grant: Grant) -> Iterator[tuple[float, int]]:
    """When a run begins and ceases to be held for certain."""
    until = _certain_until(history, grant, NEVER)
    if until > grant.call.end:
        yield grant.call.end, 1
        yield until, -1


@_promise("a rate holds in any period")
def within_rates(history: History) -> Iterator[str]:
    asked: dict[str, float] = {}
    for call in history.of("complete"):
        asked.setdefault(_canonical(call.request), call.begin)
    limited: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for grant in history.grants:
        if history.world["types"][grant.task_type].get("rate"):
            call = grant.call
            # What a completion tells again of was granted when it was asked for first, or later.
            begin = call.begin if call.verb == "lease" else asked[_canonical(call.request)]
            limited.setdefault((call.tenant, grant.task_type), []).append((begin, call.end))
    for (tenant, name), spans in limited.items():
        rate = history.world["types"][name]["rate"]
        yield from (
            f"{count} of {name} of {tenant} were granted in {rate['per_seconds']} s from {_moment(history, begin)} on"
            for begin, count in _within(sorted(spans), rate["per_seconds"] - _SLACK)
            if count > rate["leases"]
        )


def _within(spans: list[tuple[float, float]], seconds: float) -> Iterator[tuple[float, int]]:
    """For each of these spans, which are in order, how many lie within the time that begins with it."""
    begins = [begin for begin, _ in spans]
    for nth, begin in enumerate(begins):
        after = spans[nth : bisect_left(begins, begin + seconds)]
        yield begin, sum(end <= begin + seconds for _, end in after)


@_promise("a fair queue serves its requesters by turns")
def served_by_turns(history: History) -> Iterator[str]:
    ready = _ready_in_turns(history)
    canceled = [call.begin for call in history.of("cancel")]
    for call in history.of("lease"):
        given = [one for one in call.body.get("tasks", ()) if _is_fair(history, one["task_type"])]
        # Who cancels has tasks at hand, which are passed over.
        meets = bisect_left(canceled, call.end) - bisect_left(canceled, call.begin - _LONGEST)
        if len(given) < 2 or meets:  # noqa: PLR2004  # of one there are no turns
            continue
        served = Counter(one["params"]["asker"] for one in given)
        fresh = Counter(one["params"]["asker"] for one in given if one["run_id"] == 1)
        shares = {}
        for (tenant, asker), (begins, ends) in ready.items():
            waiting = bisect_left(begins, call.begin) - bisect_left(ends, call.end) + fresh[asker]
            if tenant == call.tenant and waiting >= len(given):
                shares[asker] = served[asker]
        if shares and max(shares.values()) - min(shares.values()) > 1:
            yield f"{call.id} gave {shares} of those who waited at {_moment(history, call.begin)}"


def _is_fair(history: History, task_type: str) -> bool:
    return history.world["types"][task_type].get("queue") in history.world["fair"]


def _ready_in_turns(history: History) -> dict[tuple[str, str], tuple[list[float], list[float]]]:
    """For each requester, since when tasks of its in fair queues were ready for certain, and when each was first leased."""
    found: dict[tuple[str, str], tuple[list[float], list[float]]] = {}
    canceled = {call.task for call in history.of("cancel")}
    for call in history.of("queue"):
        waits = any(call.request.get(name) for name in ("run_at", "depends_on", "concurrency_key"))
        if not call.ok or waits or not _is_fair(history, call.request["task_type"]):
            continue
        grants = history.grants_of.get(call.body["task_id"], ())
        first = min(grants, key=lambda grant: grant.run, default=None)
        if (
            first is not None
            and first.run == 1
            and call.body["task_id"] not in canceled
            and not call.body["is_duplicate"]
        ):
            begins, ends = found.setdefault((call.tenant, call.actor), ([], []))
            begins.append(call.end)
            ends.append(first.call.begin)
    return {asker: (sorted(begins), sorted(ends)) for asker, (begins, ends) in found.items()}


@_promise("one task per idempotency key, and 409 for another payload")
def one_task_per_key(history: History) -> Iterator[str]:
    for (_, actor, key), calls in history.keys.items():
        made = {(call.body["task_id"], call.body["receipt_id"]) for call in calls if call.ok}
        payloads = {_canonical(call.request) for call in calls}
        if len(made) > 1 or len({_canonical(call.request) for call in calls if call.ok}) > 1:
            yield f"{key} of {actor} stands for {sorted(made)}"
        for call in calls:
            known = any(one.ok and one.end < call.begin and _same(one, call) for one in calls)
            conflict = call.refused and call.body["code"] == "idempotency_conflict"
            if (call.refused and known) or (conflict and len(payloads) == 1):
                yield f"{key} of {actor} is in conflict with itself ({call.id})"
    named = Counter((task["tenant"], task["requester"], task["key"]) for task in history.tasks.values() if task["key"])
    yield from (f"{key} has made {count} tasks" for key, count in named.items() if count > 1)


@_promise("cancel or complete, never both")
def canceled_or_completed(history: History) -> Iterator[str]:
    for call in history.of("cancel"):
        status = (history.tasks.get(call.task) or {}).get("status")
        completed = [one.id for one in history.endings_of.get(call.task, ()) if one.verb == "complete" and one.ok]
        verdict = call.status == 200  # noqa: PLR2004  # HTTP: done, where 202 is a request
        if verdict and completed:
            yield f"{call.task} was canceled ({call.id}) and completed ({completed})"
        if verdict and status != "canceled":
            yield f"{call.task} was canceled ({call.id}) and is {status}"
        if call.refused and status == "canceled":
            yield f"the cancellation of {call.task} was refused ({call.id}), and it is canceled"


@_promise("every call repeated gives the same answer")
def same_answer(history: History) -> Iterator[str]:
    groups: dict[tuple[str, ...], list[Call]] = {}
    for call in history.of(*ENDINGS):
        groups.setdefault((call.verb, call.task, _canonical(call.request)), []).append(call)
    for (verb, task, _), calls in groups.items():
        said = [call for call in calls if call.ok]
        if len({_canonical(call.body) for call in said}) > 1:
            yield f"{verb} of {task} was answered differently: {[call.id for call in said]}"
        first = min((call.end for call in said), default=NEVER)
        yield from (
            f"{verb} of {task} had succeeded and was refused ({call.id})"
            for call in calls
            if call.refused and call.begin > first
        )
    yield from _cancels(history)


def _cancels(history: History) -> Iterator[str]:
    final: dict[str, Call] = {}
    for call in sorted(history.of("cancel"), key=lambda one: one.end):
        before = final.get(call.task)
        if before is not None and before.end < call.begin and call.status is not None and not _away(call):
            if call.status != before.status:
                yield f"the cancellation of {call.task} was answered {before.status} and then {call.status} ({call.id})"
        elif call.status == 200:  # noqa: PLR2004  # HTTP: a verdict
            final.setdefault(call.task, call)


@_promise("the next run sees the last acknowledged checkpoint")
def checkpoint_seen(history: History) -> Iterator[str]:
    for name, grants in history.grants_of.items():
        saved = [beat for beat in history.beats_of.get(name, ()) if beat.checkpoint is not None]
        for grant in grants:
            before = [beat for beat in saved if beat.run < grant.run]
            sure = [beat for beat in before if beat.status == "ok" and beat.call.end < grant.call.begin]
            if not _may_be_seen(grant.checkpoint, before, sure):
                yield f"{name} run {grant.run} ({grant.call.id}) was given {grant.checkpoint}"


def _may_be_seen(seen: Any, before: list[Beat], sure: list[Beat]) -> bool:
    """Whether this was saved, or may have been, and nothing is known to be saved that its worker sent after it.

    In which order they arrived counts for nothing, nor how often.
    """
    if seen is None:
        return not sure
    newest = max(((beat.run, beat.sequence) for beat in sure), default=(0, 0))
    return any(
        beat.checkpoint == seen and beat.status in {"ok", None} and (beat.run, beat.sequence) >= newest
        for beat in before
    )


@_promise("dependencies go in order")
def dependencies_in_order(history: History) -> Iterator[str]:
    for call in history.of("queue"):
        for needed in call.request.get("depends_on") or () if call.ok else ():
            begun = [one.begin for one in history.endings_of.get(needed, ()) if one.verb == "complete"]
            done = min((begin for begin in begun), default=NEVER)
            own = call.body["task_id"]
            for grant in history.grants_of.get(own, ()):
                if grant.call.end < done or not _succeeded(history, needed):
                    yield f"{own} was granted ({grant.call.id}) before {needed} had succeeded"
            if _succeeded(history, own) and not _succeeded(history, needed):
                yield f"{own} has succeeded, and {needed}, which it depends on, has not"


def _succeeded(history: History, task: str) -> bool:
    return (history.tasks.get(task) or {}).get("status") == "succeeded"


@_promise("what runs spend counts once")
def spends_count_once(history: History) -> Iterator[str]:
    for task in history.tasks.values():
        beats = [beat for beat in history.beats_of.get(task["id"], ()) if beat.spend]
        for run in {str(beat.run) for beat in beats} | task["spends"].keys():
            told = {beat.spend for beat in beats if str(beat.run) == run}
            sure = {beat.spend for beat in beats if str(beat.run) == run and beat.status == "ok"}
            counted = task["spends"].get(run, 0)
            if counted < max(sure, default=0) or counted not in {0, *told}:
                yield f"of {task['id']} run {run} {counted} tokens count; it told of {sorted(told)}, surely of {sorted(sure)}"
    for budget, family in _families(history).items():
        counted = sum(sum(task["spends"].values()) for task in family)
        if history.tasks[budget]["spent"] != counted:
            yield f"{history.tasks[budget]['spent']} are spent of the budget of {budget}, and its runs spent {counted}"


def _families(history: History) -> dict[str, list[Json]]:
    """The tasks that draw from each budget."""
    found: dict[str, list[Json]] = {}
    for task in history.tasks.values():
        if task["draws_from"] is not None:
            found.setdefault(task["draws_from"], []).append(task)
    return found


@_promise("a budget is gone over by no more than one heartbeat of each run")
def within_budgets(history: History) -> Iterator[str]:
    for budget, family in _families(history).items():
        over = history.tasks[budget]["spent"] - history.tasks[budget]["budget"]
        most = sum(_last_step(history, task, run) for task in family for run in task["spends"])
        if over > most:
            yield f"the budget of {budget} is gone over by {over}, and the last heartbeats of its runs told of {most}"


def _last_step(history: History, task: Json, run: str) -> int:
    """What the last heartbeat of a run that counted may have told of."""
    counted = int(task["spends"][run])
    before = [
        beat.spend
        for beat in history.beats_of.get(task["id"], ())
        if str(beat.run) == run and beat.status == "ok" and beat.left and beat.spend < counted
    ]
    return counted - max(before, default=0)


@_promise("who draws from a spent budget is told, and nothing new may")
def spent_is_spent(history: History) -> Iterator[str]:
    queued = [call for call in history.of("queue") if call.request.get("parent_task_id") and call.ok]
    for budget, family in _families(history).items():
        names = {task["id"] for task in family}
        beats = [beat for name in names for beat in history.beats_of.get(name, ()) if beat.status == "ok"]
        since = min((beat.call.end for beat in beats if not beat.left), default=NEVER)
        after = (beat for beat in beats if beat.call.begin > since and beat.left)
        yield from (
            f"{beat.task} run {beat.run} was not told ({beat.call.id}) that {budget} is spent" for beat in after
        )
        taken = (call for call in queued if call.body["task_id"] in names and not call.body["is_duplicate"])
        yield from (
            f"{call.body['task_id']} was taken in ({call.id}) to draw from {budget}, which was spent"
            for call in taken
            if call.begin > since
        )
        grants = (grant for name in names for grant in history.grants_of.get(name, ()))
        yield from (
            f"{grant.task} run {grant.run} was granted ({grant.call.id}) long after {budget} was spent"
            for grant in grants
            if _swept(history, since, grant.call.begin)
        )


@_promise("a long poll ends with work, or when its time is over")
def waits_last(history: History) -> Iterator[str]:
    for call in history.of("lease"):
        wait = call.request.get("wait_seconds", 0)
        if call.ok and not call.body.get("tasks") and call.end - call.begin < wait - _SLACK:
            yield f"{call.id} ended after {call.end - call.begin:.2f} s of {wait} without work"


@_promise("each moment of a schedule queues one task")
def each_moment_once(history: History) -> Iterator[str]:
    made = Counter((task["tenant"], task["requester"], task["schedule"]) for task in history.tasks.values())
    removals = _by_name(history.of("unschedule"))
    for name, calls in _by_name(history.of("schedule")).items():
        first, gone = calls[0], removals.get(name, [])
        every = first.request["every_seconds"]
        last = min((call.end for call in gone if call.status is not None and not _away(call)), default=NEVER)
        if made[name] > (last - first.begin) / every:
            yield f"{first.id} has made {made[name]} tasks, one each {every} s until {_moment(history, last)}"
        # One that was set twice began anew. What is late by less than a minute was not missed, whatever the policy.
        if len(calls) == 1 and first.ok and gone:
            sure = _calm_before(history, first.end, gone[0].begin)
            if made[name] < int((sure - first.end) / every - _SLACK):
                yield f"{first.id} has made {made[name]} tasks, one each {every} s until {_moment(history, sure)}"


def _by_name(calls: Iterable[Call]) -> dict[tuple[str, str, str], list[Call]]:
    found: dict[tuple[str, str, str], list[Call]] = {}
    for call in calls:
        found.setdefault((call.tenant, call.actor, call.request["name"]), []).append(call)
    return found


def _swept(history: History, begin: float, end: float) -> bool:
    """Whether sweeps have found in this time what there was to find at its begin."""
    if history.harmed(begin - _STARTING, end, "sweeps"):
        return False
    return history.calm(begin, end, "web", "database", felt=_FELT) > _SWEPT


def _calm_before(history: History, begin: float, end: float) -> float:
    """The latest moment in this time after which everything worked for long enough to be found."""
    moment = end
    while moment > begin and not _swept(history, moment, end):
        moment -= 1
    return max(moment, begin)


@_promise("no row of another tenant")
def no_stranger(history: History) -> Iterator[str]:
    for grant in history.grants:
        if grant.params["tenant"] != grant.call.tenant:
            yield f"{grant.call.actor} of {grant.call.tenant} was given {grant.task} of {grant.params['tenant']}"
    for call in history.of("look_up"):
        if call.ok and call.body["requested_by"] != call.actor:
            yield f"{call.actor} was told of {call.task}, which {call.body['requested_by']} asked for"


@_promise("the hot table stays small")
def bounded_bloat(history: History) -> Iterator[str]:
    most = max((look["open"] for look in history.looks), default=0)
    for look in history.looks:
        if look["hot_bytes"] > _BLOAT + _BLOAT_OF_A_TASK * most:
            yield f"{look['hot_bytes']} bytes for at most {most} open tasks at {_moment(history, look['at'])}"


@_promise("without the broker only latency suffers")
def broker_is_a_hint(history: History) -> Iterator[str]:
    for call in history.calls:
        suffered = _away(call) and not _is_busy(call)
        if not suffered and (call.lost is None or call.weather != "clear"):
            continue
        if history.harmed(call.begin, call.begin, "broker") and not _explained(history, call, call.over):
            yield f"{_told(history, call)}, begun while the broker was away"


@_promise("every answer is one that the contract names")
def only_known_answers(history: History) -> Iterator[str]:
    for call in history.calls:
        if call.status is None:
            named = _loss_explained(history, call)
        elif _away(call):
            explained = call.status != 500 and _explained(history, call, call.end)  # noqa: PLR2004  # HTTP: a defect
            named = explained or _is_busy(call)
        else:
            named = (call.status, call.body.get("code") if call.refused else None) in _KNOWN[call.verb]
        if not named:
            yield _told(history, call)


@_promise("nobody waits long for an answer while nothing is broken")
def answered_soon(history: History) -> Iterator[str]:
    for call in history.calls:
        longest = _LONGEST_CALM + call.request.get("wait_seconds", 0)
        if longest < call.over - call.begin < NEVER:
            calm = history.calm(call.begin, call.over, "web", "database", call.actor, felt=_FELT)
            if calm > longest:
                yield f"{_told(history, call)}; nothing was broken for {calm:.1f} s"


@_promise("what others hold is free again soon")
def nobody_holds_for_long(history: History) -> Iterator[str]:
    rows: dict[tuple[str, str, str, str], int] = {}
    for call in history.calls:
        if call.status is None or call.weather != "clear":
            continue
        busy = _is_busy(call) and not _explained(history, call, call.end)
        if not busy and not rows:
            continue
        asked = (call.tenant, call.actor, call.verb, _canonical(call.request))
        if not busy:
            rows.pop(asked, None)
            continue
        rows[asked] = rows.get(asked, 0) + 1
        if rows[asked] == _BUSY_IN_A_ROW + 1:
            yield f"{_told(history, call)}, the time number {rows[asked]} in a row"


def _told(history: History, call: Call) -> str:
    """What came of a call, when, after how long, and what was broken around it."""
    begin = _moment(history, call.begin)
    if call.status is not None:
        answer = f"was answered {call.status} {call.body.get('code') or ''}".rstrip()
        story = f"{answer} ({call.id}): asked at {begin}, answered after {call.end - call.begin:.1f} s"
    elif call.lost is not None:
        story = f"was not answered ({call.id}): asked at {begin}, lost after {call.lost - call.begin:.1f} s"
        story += f" ({call.why})" if call.why else ""
    else:
        story = f"was not answered ({call.id}): asked at {begin}, its caller ended before an answer"
    return f"{call.verb} {story}; {_around(history, call)}"


def _around(history: History, call: Call) -> str:
    until = min(call.over, call.begin + 2 * _AROUND) + _FELT
    found = [
        f"{fault.name} ({fault.begin - history.begun:.1f} to {_moment(history, fault.end)})"
        for fault in sorted(history.faults, key=lambda fault: fault.begin)
        if fault.end >= call.begin - _AROUND and fault.begin <= until
    ]
    return f"around it: {', '.join(found) or 'no fault'}"


def _moment(history: History, at: float) -> str:
    """A moment as it lies within the run."""
    return f"{at - history.begun:.1f} s"


_LOST: Final = frozenset({(200, None), (409, "lease_lost"), (409, "already_decided")})
_KNOWN: Final = {
    "queue": frozenset({(200, None), (201, None), (409, "idempotency_conflict"), (409, "budget_exhausted")}),
    "lease": frozenset({(200, None), (204, None)}),
    "heartbeat": frozenset({(200, None)}),
    "complete": _LOST,
    "fail": _LOST,
    "release": _LOST,
    "cancel": frozenset({(200, None), (202, None), (409, "already_finished")}),
    "look_up": frozenset({(200, None), (404, "unknown_task")}),
    "pause": frozenset({(200, None)}),
    "resume": frozenset({(200, None)}),
    "schedule": frozenset({(200, None), (201, None)}),
    "unschedule": frozenset({(200, None), (404, "unknown_schedule")}),
}


def _away(call: Call) -> bool:
    return call.status is not None and call.status >= 500  # noqa: PLR2004  # HTTP's failures


def _is_busy(call: Call) -> bool:
    """Whether it was told that others hold what it needs: the one "not now" that needs no fault."""
    return call.status == 503 and call.body.get("code") == "busy"  # noqa: PLR2004  # HTTP: not now


def _explained(history: History, call: Call, until: float) -> bool:
    return history.harmed(call.begin - _FELT, until, "web", "database")


def _loss_explained(history: History, call: Call) -> bool:
    if call.weather != "clear":
        return True
    if call.lost is None:
        return history.harmed(call.begin, NEVER, call.actor)
    # Of a caller that was stopped, the connection may have ended meanwhile; no answer kept it waiting.
    slept = not call.why.startswith("TimeoutError") and history.harmed(call.begin - _FELT, call.lost, call.actor)
    return slept or _explained(history, call, call.lost)


@_promise("nobody waits for another in a circle")
def no_deadlock(history: History) -> Iterator[str]:
    seen = 0
    for look in history.looks:
        if look["deadlocks"] > seen:
            seen = look["deadlocks"]
            yield f"{seen} deadlocks until {_moment(history, look['at'])}"


@_promise("the database does not crash by itself")
def no_crash(history: History) -> Iterator[str]:
    seen = 0
    for look in history.looks:
        if look["crashes"] > seen:
            seen = look["crashes"]
            yield f"{seen} crashes until {_moment(history, look['at'])}"


@_promise("a lease is told in remaining time, not in a moment")
def no_moments(history: History) -> Iterator[str]:
    for call in history.of("lease", "heartbeat", "complete"):
        for answer in [*call.body.get("tasks", ()), *call.body.get("next", ()), *call.body.get("results", ())]:
            moments = sorted(name for name in answer if name.endswith("_at"))
            if moments or not isinstance(answer["lease_ms"], int):
                yield f"{call.verb} answers {moments or answer['lease_ms']} ({call.id})"


def _same(one: Call, other: Call) -> bool:
    return one.verb == other.verb and _canonical(one.request) == _canonical(other.request)


def _canonical(document: Json) -> str:
    """A document without what may differ between tellings: whether it is one, and the time that is left of a lease."""
    told = {name: value for name, value in document.items() if name not in {"is_duplicate", "next"}}
    return json.dumps(told, sort_keys=True)


def summary(history: History, violations: Iterable[Violation]) -> Json:
    """What a run was, in figures."""
    ends = Counter(str(task["status"]) for task in history.tasks.values())
    return {
        "tasks": len(history.tasks),
        "ends": dict(sorted(ends.items())),
        "calls": dict(sorted(history.requests.items())),
        "unanswered": history.unanswered,
        "runs": sum(len(task["runs"]) for task in history.tasks.values()),
        "runs_expired": sum(list(task["runs"].values()).count("expired") for task in history.tasks.values()),
        "faults": dict(sorted(Counter(fault.name for fault in history.faults).items())),
        "violations": len(list(violations)),
    }
