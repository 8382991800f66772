"""The judge: a sound history convicts nobody, and each promise has histories that break it."""

import ast
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apps.chaos import checker, history
from apps.chaos.checker import PROMISES
from apps.chaos.history import History
from tests.chaos.stories import Story, moment


def sound() -> Story:
    """A life with everything in it that is allowed."""
    story = Story()
    story.queue(0, 1, key="k1", run_at=moment(0.5))
    story.queue(0.2, 1, key="k1", run_at=moment(0.5), status=200)
    story.queue(0.4, 1, key="k1", number=2, status=409, body={"code": "idempotency_conflict"})
    story.lease(0.6, None)
    story.lease(1, 1, 1)
    story.beat(1.2, 1, 1, checkpoint={"at": 1})
    story.beat(1.4, 1, 1, checkpoint={"at": 2}, sequence=2, status=None, weather="swallowed")
    story.beat(1.6, 1, 1, checkpoint={"at": 1}, weather="late")
    # The lease of the first run expires; the second is told one of two checkpoints, and fails.
    story.lease(4, 1, 2, checkpoint={"at": 2})
    story.beat(4.5, 1, 1, said="lost")
    story.end("complete", 4.6, 1, 1, status=409, body={"code": "lease_lost"})
    story.end("fail", 5, 1, 2)
    story.end("fail", 5.2, 1, 2, body={"retry_at": moment(5)})
    story.lease(6, 1, 3, checkpoint={"at": 2})
    story.end("fail", 6.2, 1, 2, body={"retry_at": moment(5)})
    story.cancel(6.5, 1, status=202)
    story.end("complete", 7, 1, 3, status=None, weather="swallowed")
    story.end("complete", 7.2, 1, 3)
    story.cancel(8, 1, status=409, body={"code": "already_finished"})
    story.call("look_up", {"task_id": "task_1"}, 8.5, body={"requested_by": "asker"}, actor="asker")
    story.call("look_up", {"task_id": "task_9"}, 8.6, status=404, body={"code": "unknown_task"}, actor="asker")
    story.fault(9, 10, "web")
    story.lease(9.5, None, status=503)
    story.lease(9.6, None, status=None)
    story.fault(11, 11, "w9")
    story.call("lease", {"queues": ["q"], "capacity": 1}, 10.9, status=None, actor="w9", killed=True)
    story.fault(12, 13, "broker")
    story.lease(12.5, None)
    story.look(14)
    story.task(1, fence=3, runs={"1": "expired", "2": "failed", "3": "succeeded"})
    return story


def spoiled(spoil: Callable[[Story], object]) -> History:
    story = sound()
    spoil(story)
    return story.history()


def test_a_sound_history_convicts_nobody() -> None:
    assert checker.check(sound().history()) == []


def _lost(story: Story) -> None:
    story.queue(20, 2, key="k2")


def _open(story: Story) -> None:
    story.queue(20, 2, key="k2")
    story.task(2, status=None, receipt_id=None, terminal_receipts=[], runs={})


def _two_receipts(story: Story) -> None:
    story.task(2, terminal_receipts=["r2", "r3"])


def _no_receipt(story: Story) -> None:
    story.task(2, terminal_receipts=[])


def _two_answers(story: Story) -> None:
    story.lease(20, 2)
    story.end("complete", 21, 2, 1, result=1)
    story.end("complete", 22, 2, 1, result=2, body={"receipt_id": "r9"})
    story.task(2)


def _granted_twice(story: Story) -> None:
    story.lease(20, 2, 1)
    story.lease(30, 2, 1)


def _fence_falls(story: Story) -> None:
    story.lease(20, 2, 2)
    story.lease(30, 2, 1)


def _given_out_too_soon(story: Story) -> None:
    story.lease(20, 2, 1)
    story.beat(21.5, 2, 1)
    story.lease(23, 2, 2)


def _stale_end(story: Story) -> None:
    story.lease(20, 2, 1)
    story.lease(23, 2, 2)
    story.end("complete", 24, 2, 1)
    story.task(2)


def _stale_among_many(story: Story) -> None:
    story.lease(20, 2, 1)
    story.lease(20.5, 3, 1)
    story.lease(23, 2, 2)
    story.complete_many(24, (3, 1), (2, 1))
    story.task(2)
    story.task(3)


def _stale_beat(story: Story) -> None:
    story.lease(20, 2, 1)
    story.lease(23, 2, 2)
    story.beat(24, 2, 1)


def _risen(story: Story) -> None:
    story.lease(20, 2, 1)
    story.end("complete", 21, 2, 1)
    story.lease(22, 2, 2)
    story.task(2)


def _forgotten(story: Story) -> None:
    story.lease(20, 2, 1)
    story.end("complete", 21, 2, 1)
    story.fault(22, 23, "database")
    story.task(2, status="canceled", reason="canceled", runs={"1": "canceled"})


def _half(story: Story) -> None:
    story.look(20, contradictions={"a record without its receipt": [7]})


def _passed_over(story: Story) -> None:
    story.lease(20, 2, 1)
    story.lease(23.5, None)
    story.lease(24.0, None)
    story.lease(30, 2, 2)
    story.task(2, fence=2, runs={"1": "expired", "2": "succeeded"})


def _given_out_of_a_paused_queue(story: Story) -> None:
    story.pause(20)
    story.lease(20.5, 2)
    story.resume(21)


def _one_attempt_too_many(story: Story) -> None:
    story.task(2, fence=3, runs={"1": "failed", "2": "failed", "3": "succeeded"})


def _dead_too_soon(story: Story) -> None:
    story.task(2, status="failed", reason="expiries_exhausted", runs={"1": "expired"})


def _early(story: Story) -> None:
    story.queue(20, 2, key="k2", run_at=moment(40))
    story.lease(30, 2)
    story.task(2)


def _retried_early(story: Story) -> None:
    story.lease(20, 2, 1)
    story.end("fail", 21, 2, 1, body={"retry_at": moment(40)})
    story.lease(30, 2, 2)


def _one_too_many(story: Story) -> None:
    story.lease(20, 2, task_type="limited")
    story.lease(21, 3, task_type="limited")


def _two_of_a_key(story: Story) -> None:
    story.queue(20, 2, key="k2", concurrency_key="one")
    story.queue(20, 3, key="k3", concurrency_key="one")
    story.lease(21, 2)
    story.lease(22, 3)
    story.task(2)
    story.task(3)


def _more_than_the_rate(story: Story) -> None:
    story.lease(20, 2, task_type="rated")
    story.lease(29.5, 3, task_type="rated")


def _one_is_served(story: Story) -> None:
    _waiting_in_turns(story)
    story.lease_many(21, (2, "a"), (3, "a"), (4, "a"))
    story.lease_many(22, (5, "b"), (6, "b"), (7, "b"))


def _waiting_in_turns(story: Story) -> None:
    for task in range(2, 8):
        asker = "a" if task < 5 else "b"
        story.queue(20, task, key=f"k{task}", task_type="turns", actor=asker)
        story.task(task, task_type="turns", requester=asker)


def _two_tasks(story: Story) -> None:
    story.queue(20, 2, key="k1", run_at=moment(0.5))
    story.task(2)


def _two_payloads(story: Story) -> None:
    story.queue(20, 1, key="k1", number=3, status=200)


def _conflict_with_itself(story: Story) -> None:
    story.queue(20, 1, key="k1", run_at=moment(0.5), status=409, body={"code": "idempotency_conflict"})


def _two_rows(story: Story) -> None:
    story.task(2, key="same")
    story.task(3, key="same")


def _both(story: Story) -> None:
    story.lease(20, 2)
    story.cancel(20.5, 2)
    story.end("complete", 20.5, 2)
    story.task(2)


def _canceled_in_vain(story: Story) -> None:
    story.cancel(20, 2)
    story.task(2)


def _answered_otherwise(story: Story) -> None:
    story.lease(20, 2, 1)
    story.end("fail", 21, 2, 1)
    story.end("fail", 22, 2, 1, body={"retry_at": moment(50)})


def _refused_then(story: Story) -> None:
    story.lease(20, 2, 1)
    story.end("complete", 21, 2, 1)
    story.end("complete", 22, 2, 1, status=409, body={"code": "lease_lost"})
    story.task(2)


def _cancel_forgotten(story: Story) -> None:
    story.cancel(20, 2)
    story.cancel(21, 2, status=202)
    story.task(2, status="canceled", reason="canceled", runs={})


def _old_checkpoint(story: Story) -> None:
    story.lease(20, 2, 1)
    story.beat(20.2, 2, 1, checkpoint=1)
    story.beat(20.4, 2, 1, checkpoint=2, sequence=2)
    story.lease(23, 2, 2, checkpoint=1)


def _late_checkpoint(story: Story) -> None:
    story.lease(20, 2, 1)
    story.beat(20.2, 2, 1, checkpoint=2, sequence=2)
    story.beat(20.4, 2, 1, checkpoint=1, weather="late")
    story.lease(23, 2, 2, checkpoint=1)


def _checkpoint_of_an_earlier_run(story: Story) -> None:
    story.lease(20, 2, 1)
    story.beat(20.2, 2, 1, checkpoint=1, sequence=5)
    story.lease(23, 2, 2, checkpoint=1)
    story.beat(23.2, 2, 2, checkpoint=2)
    story.lease(26, 2, 3, checkpoint=1)


def _no_checkpoint(story: Story) -> None:
    story.lease(20, 2, 1)
    story.beat(20.2, 2, 1, checkpoint=1)
    story.lease(23, 2, 2)


def _made_up_checkpoint(story: Story) -> None:
    story.lease(20, 2, 1)
    story.lease(23, 2, 2, checkpoint=7)


def _out_of_order(story: Story) -> None:
    story.queue(20, 2, key="k2", depends_on=["task_3"])
    story.lease(21, 2)
    story.lease(21, 3)
    story.end("complete", 22, 3)
    story.task(2)
    story.task(3)


def _succeeded_in_vain(story: Story) -> None:
    story.queue(20, 2, key="k2", depends_on=["task_3"])
    story.task(2)
    story.task(3, status="canceled", reason="canceled", runs={})


def _in_vain(story: Story) -> None:
    story.queue(20, 2, key="k2", depends_on=["task_3"])
    story.lease(21, 2)
    story.task(2)
    story.task(3, status="failed", reason="not_retryable", runs={"1": "failed"})


def family(story: Story, *, spent: int, runs: dict[int, int], budget: int = 30) -> None:
    """Task 2 has a budget, and the others draw from it; what each one's run has spent, and what the database says."""
    for task, counted in runs.items():
        story.lease(20, task)
        own = {"budget": budget, "spent": spent} if task == 2 else {}
        ends: dict[str, Any] = {"status": "failed", "reason": "budget_exhausted", "runs": {"1": "released"}}
        story.task(task, draws_from="task_2", spends={"1": counted} if counted else {}, **own, **ends)


def _spend_forgotten(story: Story) -> None:
    story.beat(20.5, 2, spend=10)
    family(story, spent=0, runs={2: 0})


def _spend_counted_twice(story: Story) -> None:
    story.beat(20.5, 2, spend=10)
    story.beat(20.5, 2, spend=10)
    family(story, spent=20, runs={2: 20})


def _sum_is_wrong(story: Story) -> None:
    story.beat(20.5, 2, spend=10)
    family(story, spent=20, runs={2: 10})


def _far_beyond_the_budget(story: Story) -> None:
    for at, spend in ((20.5, 25), (20.8, 50), (21.1, 60)):
        story.beat(at, 2, spend=spend)
    family(story, spent=60, runs={2: 60})


def _not_told(story: Story) -> None:
    story.beat(20.5, 2, spend=30, reason="budget_exhausted")
    story.beat(20.8, 3, spend=5)
    family(story, spent=35, runs={2: 30, 3: 5})


def _taken_in_though_spent(story: Story) -> None:
    story.beat(20.5, 2, spend=30, reason="budget_exhausted")
    story.queue(21, 3, key="k3", parent_task_id="task_2")
    family(story, spent=30, runs={2: 30, 3: 0})


def _refused_after_it_was_taken_in(story: Story) -> None:
    story.queue(20, 2, key="k2")
    story.queue(21, 2, key="k2", status=409, body={"code": "budget_exhausted"})
    story.task(2)


def _given_out_though_spent(story: Story) -> None:
    story.beat(20.5, 2, spend=30, reason="budget_exhausted")
    family(story, spent=30, runs={2: 30})
    story.lease(40, 3)
    story.task(3, draws_from="task_2")


def _woken_for_nothing(story: Story) -> None:
    story.lease(20, None, wait_seconds=5, lasts=1)


def _scheduled(story: Story, *, times: int, until: float = 45) -> None:
    """Set at 20, each two seconds, and made so many tasks."""
    story.schedule(20, "often", every=2)
    story.unschedule(until, "often")
    for number in range(times):
        story.task(100 + number, schedule="often", key=f"schedule:1:{number}")


def _moment_twice(story: Story) -> None:
    _scheduled(story, times=13)


def _moments_left_out(story: Story) -> None:
    _scheduled(story, times=5)


def _stranger(story: Story) -> None:
    story.lease(20, 2, owner="other")


def _told_a_stranger(story: Story) -> None:
    story.call("look_up", {"task_id": "task_2"}, 20, body={"requested_by": "somebody"}, actor="asker")


def _bloated(story: Story) -> None:
    story.look(20, hot_bytes=10**9)


def _broker_matters(story: Story) -> None:
    story.lease(12.6, None, status=503)


def _defect(story: Story) -> None:
    story.lease(9.6, None, status=500)


def _unnamed(story: Story) -> None:
    story.end("complete", 20, 2, status=403, body={"code": "bad_lease_token"})


def _unanswered(story: Story) -> None:
    story.lease(20, None, status=None)


def _kept_waiting(story: Story) -> None:
    story.fault(35.5, 36, "database")
    story.lease(20, None, status=None, lasts=20)


def _busy(story: Story, times: int) -> None:
    for number in range(times):
        story.end("complete", 20 + 7 * number, 2, status=503, body={"code": "busy"}, lasts=6)


def _busy_for_long(story: Story) -> None:
    _busy(story, 3)


def _in_a_circle(story: Story) -> None:
    story.look(20, deadlocks=1)


def _crashed(story: Story) -> None:
    story.look(20, crashes=1)


def _a_moment(story: Story) -> None:
    story.lease(20, 2, extra={"lease_expires_at": moment(22)})


BROKEN: list[tuple[str, Callable[[Story], None]]] = [
    ("nothing_lost", _lost),
    ("nothing_lost", _open),
    ("one_end", _two_receipts),
    ("one_end", _no_receipt),
    ("one_end", _two_answers),
    ("one_holder", _granted_twice),
    ("one_holder", _fence_falls),
    ("one_holder", _given_out_too_soon),
    ("no_stale_fence", _stale_end),
    ("no_stale_fence", _stale_among_many),
    ("no_stale_fence", _stale_beat),
    ("no_stale_fence", _risen),
    ("completions_last", _forgotten),
    ("all_or_none", _half),
    ("claimable_again", _passed_over),
    ("pauses_hold", _given_out_of_a_paused_queue),
    ("dead_letters", _one_attempt_too_many),
    ("dead_letters", _dead_too_soon),
    ("nothing_early", _early),
    ("nothing_early", _retried_early),
    ("within_limits", _one_too_many),
    ("within_limits", _two_of_a_key),
    ("within_rates", _more_than_the_rate),
    ("served_by_turns", _one_is_served),
    ("one_task_per_key", _two_tasks),
    ("one_task_per_key", _two_payloads),
    ("one_task_per_key", _conflict_with_itself),
    ("one_task_per_key", _two_rows),
    ("canceled_or_completed", _both),
    ("canceled_or_completed", _canceled_in_vain),
    ("same_answer", _answered_otherwise),
    ("same_answer", _refused_then),
    ("same_answer", _cancel_forgotten),
    ("checkpoint_seen", _old_checkpoint),
    ("checkpoint_seen", _late_checkpoint),
    ("checkpoint_seen", _checkpoint_of_an_earlier_run),
    ("checkpoint_seen", _no_checkpoint),
    ("checkpoint_seen", _made_up_checkpoint),
    ("dependencies_in_order", _out_of_order),
    ("dependencies_in_order", _in_vain),
    ("dependencies_in_order", _succeeded_in_vain),
    ("spends_count_once", _spend_forgotten),
    ("spends_count_once", _spend_counted_twice),
    ("spends_count_once", _sum_is_wrong),
    ("within_budgets", _far_beyond_the_budget),
    ("spent_is_spent", _not_told),
    ("spent_is_spent", _taken_in_though_spent),
    ("spent_is_spent", _given_out_though_spent),
    ("one_task_per_key", _refused_after_it_was_taken_in),
    ("waits_last", _woken_for_nothing),
    ("each_moment_once", _moment_twice),
    ("each_moment_once", _moments_left_out),
    ("no_stranger", _stranger),
    ("no_stranger", _told_a_stranger),
    ("bounded_bloat", _bloated),
    ("broker_is_a_hint", _broker_matters),
    ("only_known_answers", _defect),
    ("only_known_answers", _unnamed),
    ("only_known_answers", _unanswered),
    ("answered_soon", _kept_waiting),
    ("nobody_holds_for_long", _busy_for_long),
    ("no_deadlock", _in_a_circle),
    ("no_crash", _crashed),
    ("no_moments", _a_moment),
]


@pytest.mark.parametrize(("rule", "spoil"), BROKEN, ids=[spoil.__name__.strip("_") for _, spoil in BROKEN])
def test_a_broken_promise_is_found(rule: str, spoil: Callable[[Story], None]) -> None:
    violations = checker.check(spoiled(spoil))

    assert PROMISES[rule].name in {violation.promise for violation in violations}


def test_every_promise_has_a_history_that_breaks_it() -> None:
    assert {rule for rule, _ in BROKEN} == PROMISES.keys()


def test_a_run_that_did_not_come_to_rest_or_was_broken_off_is_no_proof() -> None:
    for rested in (False, None):
        (violation,) = checker.check(sound().history(rested=rested))
        assert violation.promise == PROMISES["nothing_lost"].name


@pytest.mark.parametrize("fault", ["database", "web"])
def test_what_was_broken_meanwhile_is_no_lateness(fault: str) -> None:
    story = sound()
    _passed_over(story)
    story.fault(23.4, 23.6, fault)

    assert checker.check(story.history()) == []


def test_a_paused_queue_passes_over_what_is_due() -> None:
    story = sound()
    _passed_over(story)
    story.pause(23.4)
    story.resume(25)

    assert checker.check(story.history()) == []


def test_a_lease_that_may_have_come_after_a_resumption_is_no_breach_of_a_pause() -> None:
    story = sound()
    story.pause(20)
    story.resume(20.3, status=None, weather="swallowed")
    story.lease(20.6, 2)
    story.pause(21)
    story.lease(21.3, 3)
    story.resume(26.5)

    assert checker.check(story.history()) == []


def test_what_a_pause_found_leased_may_be_told_again() -> None:
    story = sound()
    story.lease(20, 2)
    following = {"task_id": "task_3", "run_id": 1, "lease_ms": 2000, "params": {"tenant": "default"}}
    told = {"next": [{**following, "checkpoint": None, "task_type": "plain"}]}
    story.end("complete", 20.5, 2, status=None, weather="swallowed")
    story.pause(20.8)
    story.end("complete", 21, 2, body=told)
    story.resume(22)
    story.task(2)
    story.task(3)

    assert checker.check(story.history()) == []


def test_of_two_leases_that_meet_either_may_have_what_the_other_looks_for() -> None:
    story = sound()
    _passed_over(story)
    story.lease(23.45, 4, actor="w2")
    story.lease(24.05, 5, actor="w2")

    assert checker.check(story.history()) == []


def test_an_answer_may_come_late_after_what_was_broken_meanwhile() -> None:
    story = sound()
    story.fault(33, 34, "database")
    story.lease(20, None, lasts=25)

    assert checker.check(story.history()) == []


def test_busy_is_an_answer_of_the_contract_also_while_the_broker_is_away() -> None:
    story = sound()
    story.fault(20, 30, "broker")
    _busy(story, 2)
    story.end("complete", 35, 2, status=409, body={"code": "lease_lost"})

    assert checker.check(story.history()) == []


def test_a_caller_that_was_stopped_may_find_its_connection_ended() -> None:
    for why, named in (("RemoteDisconnected()", True), ("TimeoutError('timed out')", False)):
        story = sound()
        story.fault(18, 20, "w1")
        story.lease(20.5, None, status=None, why=why)

        assert (checker.check(story.history()) == []) is named


def test_an_answer_that_is_missing_is_told_with_when_why_and_what_was_broken_around_it() -> None:
    story = sound()
    story.fault(18, 19, "broker")
    story.lease(20, None, status=None, why="TimeoutError('timed out')", lasts=12)

    (violation,) = checker.check(story.history())

    for told in ("20.0 s", "12.0 s", "TimeoutError", "a fault (18.0 to 19.0 s)"):
        assert told in violation.found


def test_a_renewal_that_a_crash_of_the_database_forgot_convicts_nobody() -> None:
    story = sound()
    _given_out_too_soon(story)
    story.fault(22, 22.5, "database")

    assert checker.check(story.history()) == []


def test_a_repetition_of_a_call_from_before_the_run_was_lost_is_not_stale() -> None:
    story = sound()
    story.lease(20, 2, 1)
    story.end("fail", 22.5, 2, 1, status=None, weather="swallowed")
    story.lease(22.7, 2, 2)
    story.end("fail", 24, 2, 1, body={"retry_at": moment(22.5)})

    assert checker.check(story.history()) == []


def test_a_completion_that_is_repeated_may_tell_again_of_what_it_granted() -> None:
    story = sound()
    story.lease(20, 2)
    given = {"task_id": "task_3", "run_id": 1, "lease_ms": 2000, "params": {"tenant": "default"}, "checkpoint": None}
    following = {"next": [{**given, "task_type": "plain"}]}
    story.end("complete", 21, 2, body=following)
    story.end("complete", 21.5, 2, body=following)
    story.task(2)
    story.task(3)

    assert checker.check(story.history()) == []


def test_many_completions_are_one_call_each_and_lease_the_same_in_any_order() -> None:
    story = sound()
    for at, task in ((20, 2), (20.2, 3), (20.4, 4)):
        story.lease(at, task)
    story.lease(23, 4, 2)
    following = {"task_id": "task_5", "run_id": 1, "lease_ms": 2000, "params": {"tenant": "default"}}
    told: Any = {"next": [{**following, "checkpoint": None, "task_type": "plain"}], "lost": frozenset({4})}
    story.complete_many(23.5, (2, 1), (3, 1), (4, 1), **told)
    story.complete_many(23.5, (4, 1), (3, 1), (2, 1), weather="doubled", **told)
    story.complete_many(23.8, (4, 1), (3, 1), (2, 1), status=None, weather="late")
    story.end("complete", 24, 4, 2)
    for task in (2, 3):
        story.task(task)
    story.task(4, fence=2, runs={"1": "expired", "2": "succeeded"})
    story.task(5)

    told_of = story.history()

    assert checker.check(told_of) == []
    assert [call.status for call in told_of.endings_of["task_4"]] == [409, 409, None, 200]


def test_many_queued_failed_and_released_are_one_call_each() -> None:
    story = sound()
    story.queue_many(20, (2, "k2"), (3, "k3"), refused=("k1",))
    story.queue_many(20.2, (2, "k2"), (3, "k3"))
    story.lease(20.5, 2)
    story.lease(20.7, 3)
    story.back_many("release", 21, (2, 1), (3, 1))
    # The verb for one repeats what was one of many.
    told = {"status": "queued", "receipt_id": None, "retry_at": None, "will_retry": False}
    story.end("release", 21.2, 2, body=told)
    story.lease(21.5, 2, 2)
    story.back_many("fail", 22, (2, 2), (3, 1), lost=frozenset({3}))
    for task in (2, 3):
        story.task(task, status="canceled", reason="canceled", fence=2, runs={"1": "released", "2": "failed"})

    told_of = story.history()

    assert checker.check(told_of) == []
    assert [call.status for call in told_of.keys["default", "asker", "k1"]] == [201, 200, 409, 409]
    assert [(call.verb, call.status) for call in told_of.endings_of["task_3"]] == [("release", 200), ("fail", 409)]
    assert told_of.requests["queue_many"] == 2


def test_a_stale_one_of_many_that_are_given_back_is_found() -> None:
    story = sound()
    story.lease(20, 2)
    story.lease(23, 2, 2)
    story.back_many("release", 24, (2, 1))
    story.task(2, status="canceled", reason="canceled", fence=2, runs={"1": "expired", "2": "canceled"})

    assert {one.promise for one in checker.check(story.history())} == {PROMISES["no_stale_fence"].name}


def test_a_budget_may_be_gone_over_by_the_last_heartbeat_of_each_run() -> None:
    story = sound()
    story.beat(20.3, 2, spend=10)
    story.beat(20.5, 2, spend=20)
    story.beat(20.5, 3, spend=15, reason="budget_exhausted")
    story.beat(20.7, 2, spend=30, reason="budget_exhausted")
    story.beat(20.9, 3, spend=30, said="lost", reason="budget_exhausted")
    family(story, spent=45, runs={2: 30, 3: 15})

    assert checker.check(story.history()) == []


def test_what_a_spent_budget_refuses_is_no_conflict_of_keys() -> None:
    story = sound()
    story.queue(20, 2, key="k2", parent_task_id="task_9", status=409, body={"code": "budget_exhausted"})

    assert checker.check(story.history()) == []


def test_requesters_are_served_by_turns_unless_one_has_too_little_or_somebody_cancels() -> None:
    for spoil, violations in ((_by_turns, 0), (_one_is_served, 1), (_one_is_served_and_one_canceled, 0)):
        assert len(checker.check(spoiled(spoil))) == violations


def _by_turns(story: Story) -> None:
    _waiting_in_turns(story)
    story.lease_many(21, (2, "a"), (5, "b"), (3, "a"))
    # Of one of them less was there than was asked for.
    story.lease_many(22, (6, "b"), (7, "b"))
    story.lease_many(23, (4, "a"))


def _one_is_served_and_one_canceled(story: Story) -> None:
    _one_is_served(story)
    story.cancel(21.05, 1, status=409, body={"code": "already_finished"})


def test_a_rate_counts_what_was_granted_within_the_period_for_certain() -> None:
    story = sound()
    story.lease(20, 2, task_type="rated", lasts=1)
    story.lease(29.5, 3, task_type="rated", lasts=1)

    assert checker.check(story.history()) == []


@pytest.mark.parametrize(
    ("times", "fault", "harms"), [(12, None, "database"), (7, 34, "database"), (7, 40, "database"), (4, 26, "sweeps")]
)
def test_a_schedule_makes_its_tasks_until_it_is_removed_or_something_breaks(
    times: int, fault: float | None, harms: str
) -> None:
    story = sound()
    _scheduled(story, times=times)
    if fault is not None:
        story.fault(fault, fault + 5, harms)

    assert checker.check(story.history()) == []


def test_a_wait_is_no_slowness() -> None:
    story = sound()
    story.lease(20, None, wait_seconds=20, lasts=25)

    assert checker.check(story.history()) == []


def test_a_last_line_that_was_cut_off_is_left_out() -> None:
    told = history.read(['{"is":"rest","rested":true}\n', '{"is":"world","ty'])

    assert (told.rested, told.world) == (True, {})


def test_the_judge_is_plain_python() -> None:
    for name in ("checker", "history"):
        tree = ast.parse(Path(sys.modules[f"apps.chaos.{name}"].__file__ or "").read_text())
        imported = {
            (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        foreign = {one.split(".")[0] for one in imported} - sys.stdlib_module_names
        assert foreign <= {"apps"}
        assert {one for one in imported if one.startswith("apps")} <= {"apps.chaos.history"}
