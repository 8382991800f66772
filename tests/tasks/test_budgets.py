"""What a task may use up, as its heartbeats report it."""

from typing import Any

import pytest

from apps.core.errors import DomainError
from apps.principals.tenancy import Caller, acting_as
from apps.tasks.models import Budget, FinishedTask
from apps.tasks.services import operating
from apps.tasks.shapes import BudgetInput, BudgetLeft, LeasedTask
from tests.factories import at, refused
from tests.tasks.making import (
    FUTURE,
    beat,
    beat_many,
    complete,
    fail,
    later,
    lease,
    lease_one,
    make_type,
    number,
    queue,
    release,
    snapshot,
    status,
    terminal_receipts,
)

HUNDRED = BudgetInput(tokens=100)


def begun(kee: Caller, worker: Caller, **asked: Any) -> LeasedTask:
    """A task that its worker holds."""
    task = number(queue(kee, priority=10, **asked))
    grant = lease_one(worker)
    assert number(grant) == task
    return grant


def spent(caller: Caller, task: int) -> tuple[int, float, bool]:
    """What was taken from a budget, and whether nothing is left."""
    with acting_as(caller):
        found = Budget.objects.get(task_id=task)
    return found.spent_tokens, float(found.spent_cost_usd), found.spent_at is not None


def end_of(caller: Caller, task: int) -> tuple[str, str | None]:
    with acting_as(caller):
        record = FinishedTask.objects.get(task_id=task)
    return record.status, record.reason


def test_heartbeat_answers_what_is_left_of_the_budget(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    grant = begun(kee, worker, budget=BudgetInput(tokens=100, cost_usd=2.5))
    answer = beat(worker, grant)
    assert (answer.order, answer.budget_left) == ("continue", BudgetLeft(tokens=100, cost_usd=2.5))
    answer = beat(worker, grant, tokens=40, cost_usd=0.5)
    assert (answer.order, answer.reason, answer.budget_left) == ("continue", None, BudgetLeft(tokens=60, cost_usd=2.0))
    answer = beat(worker, grant, tokens=140, cost_usd=0.5)
    assert (answer.status, answer.order, answer.reason) == ("ok", "cancel", "budget_exhausted")
    assert answer.budget_left == BudgetLeft(tokens=0, cost_usd=2.0)
    assert spent(kee, number(grant)) == (140, 0.5, True)


def test_spend_is_a_sum_that_counts_once(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    grant = begun(kee, worker, budget=HUNDRED)
    for said in (30, 30, 50, 30, 0, 50):
        beat(worker, grant, tokens=said)
    assert spent(kee, number(grant)) == (50, 0, False)
    # More of one thing but less of another.
    beat(worker, grant, tokens=60)
    beat(worker, grant, tokens=55, cost_usd=0.25)
    assert spent(kee, number(grant)) == (60, 0.25, False)
    # What another run has used comes on top.
    release(worker, grant)
    beat(worker, lease_one(worker), tokens=5)
    assert spent(kee, number(grant)) == (65, 0.25, False)


@pytest.mark.parametrize("end", ["release", "fail", "expire", "revoke"])
def test_task_with_a_spent_budget_fails(kee: Caller, worker: Caller, end: str) -> None:
    make_type(kee, lease_seconds=30)
    grant = begun(kee, worker, budget=BudgetInput(tokens=10))
    assert beat(worker, grant, tokens=10).order == "cancel"
    assert status(kee, number(grant)) == "canceling"
    if end == "release":
        assert release(worker, grant).status == "failed"
        assert release(worker, grant).status == "failed"
    elif end == "fail":
        assert fail(worker, grant).will_retry is False
    elif end == "expire":
        later(31)
        assert operating.end_what_must() == 1
    else:
        with acting_as(kee):
            assert operating.revoke_lease(task_id=number(grant)) == "failed"
    assert end_of(kee, number(grant)) == ("failed", "budget_exhausted")
    assert len(terminal_receipts(kee, number(grant))) == 1
    with pytest.raises(DomainError):
        complete(worker, grant)


def test_lease_of_a_spent_budget_is_not_renewed(kee: Caller, worker: Caller) -> None:
    make_type(kee, lease_seconds=30)
    grant = begun(kee, worker, budget=HUNDRED)
    later(10)
    assert beat(worker, grant, tokens=100).lease_ms == 30_000
    for _ in range(2):
        # Saying the same again, and saving what there is, is no further spending.
        answer = beat(worker, grant, tokens=100, checkpoint={"at": 1})
        assert (answer.status, answer.order, answer.reason) == ("ok", "cancel", "budget_exhausted")
        assert 0 < answer.lease_ms <= 30_000
    at(FUTURE)
    answer = beat(worker, grant)
    assert (answer.order, answer.lease_ms) == ("cancel", 0)
    assert lease(worker) == []
    assert operating.end_what_must() == 1
    assert end_of(kee, number(grant)) == ("failed", "budget_exhausted")


def test_budget_is_exceeded_by_one_heartbeat_at_most(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    grant = begun(kee, worker, budget=HUNDRED)
    beat(worker, grant, tokens=99)
    assert beat(worker, grant, tokens=250).order == "cancel"
    answer = beat(worker, grant, tokens=251)
    assert (answer.status, answer.order, answer.reason) == ("lost", "cancel", "budget_exhausted")
    assert spent(kee, number(grant)) == (250, 0, True)
    assert end_of(kee, number(grant)) == ("failed", "budget_exhausted")
    before = snapshot(kee)
    assert beat(worker, grant, tokens=300).status == "lost"
    with refused("lease_lost"):
        complete(worker, grant)
    assert snapshot(kee) == before


def test_overspending_run_does_not_affect_its_batch(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    first, second = (begun(kee, worker, budget=HUNDRED) for _ in range(2))
    beat(worker, first, tokens=100)
    answers = beat_many(worker, (first, {"tokens": 101}), (second, {"tokens": 60}))
    assert [(one.status, one.order) for one in answers] == [("lost", "cancel"), ("ok", "continue")]
    assert (spent(kee, number(first)), spent(kee, number(second))) == ((100, 0, True), (60, 0, False))


def test_budget_needs_a_limit(kee: Caller) -> None:
    make_type(kee)
    with refused("invalid"):
        queue(kee, budget=BudgetInput())


def test_retried_task_has_its_budget_again(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    dead = begun(kee, worker, budget=BudgetInput(tokens=50, cost_usd=0.5))
    beat(worker, dead, tokens=50)
    release(worker, dead)
    with acting_as(kee):
        anew = operating.retry(caller=kee, task_id=number(dead))
    again = lease_one(worker)
    assert number(again) == number(anew)
    assert beat(worker, again).budget_left == BudgetLeft(tokens=50, cost_usd=0.5)
