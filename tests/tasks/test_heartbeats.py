"""Heartbeats: what they renew and save, what they are ordered, and runs without progress."""

import itertools
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from apps.core.errors import Conflict
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as
from apps.tasks.models import FinishedTask, LiveTask, Run, run_key
from apps.tasks.services import operating
from apps.tasks.shapes import BudgetInput, LeasedTask
from apps.tasks.states import Order
from tests.factories import at, make_caller, make_token, refused
from tests.tasks.making import (
    FUTURE,
    asked,
    beat,
    beat_many,
    cancel,
    complete,
    lease,
    lease_one,
    leased,
    make_type,
    number,
    order,
    pause,
    queue,
    queue_many,
    release,
    resume,
    send,
    snapshot,
    terminal_receipts,
)
from tests.waiters import together


def test_heartbeat_renews_and_saves(kee: Caller, worker: Caller) -> None:
    make_type(kee, lease_seconds=30)
    task = queue(kee)
    with acting_as(kee):
        at(FUTURE)
        grant = lease_one(worker)
        at(FUTURE + timedelta(seconds=20))
        answer = beat(worker, grant, percent=40, message="reading", checkpoint={"at": 7}, tokens=100, cost_usd=0.25)

        live = LiveTask.objects.get(task_id=number(task))
        run = Run.objects.get(pk=run_key(number(task), 1))
        assert (answer.status, answer.order, answer.lease_ms) == ("ok", "continue", 30_000)
        assert live.lease_expires_at == FUTURE + timedelta(seconds=50)
        assert (run.percent, run.message, run.checkpoint) == (40, "reading", {"at": 7})
        assert (run.spent_tokens, float(run.spent_cost_usd)) == (100, 0.25)


def test_lost_lease_does_not_affect_other_heartbeats(kee: Caller, worker: Caller, rival: Caller) -> None:
    make_type(kee)
    queue_many(kee, *[asked()] * 3)
    mine, done, foreign = lease_one(worker), lease_one(worker), lease_one(rival)
    complete(worker, done)
    answers = beat_many(worker, (done, {}), (foreign, {}), (mine, {}))
    assert [answer.reason for answer in answers] == ["completed", "bad_lease_token", None]
    assert [answer.status for answer in answers] == ["lost", "lost", "ok"]


def said(caller: Caller) -> tuple[float | None, str, Any]:
    """What is known of the only run."""
    with acting_as(caller):
        run = Run.objects.get()
    return run.percent, run.message, run.checkpoint


def saves(n: int) -> dict[str, Any]:
    return {"percent": 10.0 * n, "message": f"at {n}", "checkpoint": {"n": n}, "sequence": n}


@pytest.mark.parametrize("arriving", [*itertools.permutations((1, 2, 3)), (1, 1, 3, 2, 3, 1)])
def test_newest_sequence_is_kept_in_any_order(kee: Caller, worker: Caller, arriving: tuple[int, ...]) -> None:
    grant = leased(kee, worker)
    assert {beat(worker, grant, **saves(n)).status for n in arriving} == {"ok"}
    assert said(kee) == (30.0, "at 3", {"n": 3})


def test_last_heartbeat_counts_without_a_sequence(kee: Caller, worker: Caller) -> None:
    grant = leased(kee, worker)
    for n in (2, 1):
        beat(worker, grant, checkpoint={"n": n})
    assert said(kee) == (None, "", {"n": 1})
    beat(worker, grant, **saves(5))
    beat(worker, grant, checkpoint={"n": 3})
    assert said(kee) == (50.0, "at 5", {"n": 3})


def test_progress_and_checkpoint_have_their_own_sequences(kee: Caller, worker: Caller) -> None:
    grant = leased(kee, worker)
    beat(worker, grant, sequence=5, percent=50.0)
    beat(worker, grant, **saves(4))
    assert said(kee) == (50.0, "", {"n": 4})
    beat(worker, grant, sequence=4, checkpoint={"n": 0})
    beat(worker, grant, sequence=6, checkpoint={"n": 6})
    beat(worker, grant, **saves(5))
    assert said(kee) == (50.0, "", {"n": 6})
    # Progress gives way to none but progress likewise.
    beat(worker, grant, sequence=8, checkpoint={"n": 8})
    beat(worker, grant, sequence=7, percent=70.0)
    assert said(kee) == (70.0, "", {"n": 8})


def test_sequence_starts_again_with_every_run(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    queue(kee)
    first = lease_one(worker)
    for n in (0, 9):
        beat(worker, first, checkpoint={"n": n}, sequence=n)
        assert said(kee)[2] == {"n": n}
    release(worker, first)

    second = lease_one(worker)
    assert second.checkpoint == {"n": 9}
    beat(worker, second, checkpoint={"n": 10}, sequence=0)
    release(worker, second)
    assert lease_one(worker).checkpoint == {"n": 10}


def test_spend_counts_in_any_order(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    queue(kee, budget=BudgetInput(tokens=100))
    grant = lease_one(worker)
    beat(worker, grant, sequence=2, percent=1.0, tokens=10)
    answer = beat(worker, grant, sequence=1, percent=2.0, tokens=30)
    assert answer.budget_left is not None
    assert (answer.budget_left.tokens, said(kee)[0]) == (70, 1.0)


def test_overtaken_checkpoint_does_not_answer_an_order(kee: Caller, worker: Caller) -> None:
    grant = leased(kee, worker)
    for n in (1, 2):
        beat(worker, grant, **saves(n))
    order(kee, number(grant), Order.CHECKPOINT)
    assert beat(worker, grant, **saves(1)).order == "checkpoint"
    assert [beat(worker, grant, **one).order for one in ({}, saves(3), {})] == ["checkpoint", "continue", "continue"]


def test_overtaken_heartbeat_is_no_progress(kee: Caller, worker: Caller) -> None:
    grant = leased(kee, worker, stuck_after=2)
    arriving = (2, 1, 1, 3)
    assert [beat(worker, grant, **saves(n)).stuck for n in arriving] == [False, False, True, False]


def test_checkpoint_is_ordered_until_there_is_one(kee: Caller, worker: Caller) -> None:
    grant = leased(kee, worker)
    order(kee, number(grant), Order.CHECKPOINT)
    assert [beat(worker, grant).order for _ in range(2)] == ["checkpoint", "checkpoint"]
    assert beat(worker, grant, percent=10).order == "checkpoint"
    assert beat(worker, grant, checkpoint={"at": 1}).order == "continue"


def test_strongest_order_is_answered(kee: Caller, worker: Caller) -> None:
    grant = leased(kee, worker)
    order(kee, number(grant), Order.CHECKPOINT)
    order(kee, number(grant), Order.DRAIN)
    assert beat(worker, grant).order == "drain"
    cancel(kee, number(grant))
    assert beat(worker, grant).order == "cancel"


def test_orders_end_with_the_run(kee: Caller, worker: Caller) -> None:
    make_type(kee, strict=True)
    queue(kee)
    first = lease_one(worker)
    order(kee, number(first), Order.DRAIN)
    order(kee, number(first), Order.CHECKPOINT)
    release(worker, first)
    assert beat(worker, lease_one(worker)).order == "continue"


def test_drained_queue_orders_its_leases_back(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    make_type(kee, "other", queue="second")
    queue_many(kee, *[asked()] * 2)
    queue(kee, "other")
    held, elsewhere = lease_one(worker), lease_one(worker, queues=("second",))
    pause(kee, drain=True)
    assert (beat(worker, held).order, beat(worker, elsewhere).order) == ("drain", "continue")
    release(worker, held)
    assert lease(worker) == []
    resume(kee)
    assert [beat(worker, grant).order for grant in lease(worker, capacity=2)] == ["continue", "continue"]


def test_only_parties_order_a_leased_task(tenant: Tenant, kee: Caller, worker: Caller) -> None:
    make_type(kee)
    waiting, held = number(queue(kee, priority=1)), number(queue(kee))
    lease_one(worker)
    before = snapshot(kee)
    with refused("unknown_task"):
        order(make_caller(tenant, "Hexy"), held, Order.DRAIN)
    with refused("not_leased"):
        order(kee, waiting, Order.DRAIN)
    with refused("unknown_task"):
        order(kee, 10**15, Order.CHECKPOINT)
    assert snapshot(kee) == before


def test_run_without_progress_is_stuck(kee: Caller, worker: Caller) -> None:
    grant = leased(kee, worker, stuck_after=3)
    said: list[dict[str, Any]] = [{"percent": 5}, {}, {"percent": 5}, {"percent": 5}]
    assert [beat(worker, grant, **one).stuck for one in said] == [False, False, False, True]
    assert beat(worker, grant).stuck
    assert not beat(worker, grant, percent=6).stuck
    assert [beat(worker, grant).stuck for _ in range(3)] == [False, False, True]
    assert not beat(worker, grant, checkpoint={"at": 1}).stuck
    assert complete(worker, grant).status == "succeeded"


def test_stuck_run_is_revoked_and_counts_as_an_expiry(kee: Caller, worker: Caller) -> None:
    make_type(kee, stuck_after=2, revoke_stuck=True, max_expiries=2)
    task = queue(kee)
    first = lease_one(worker)
    beat(worker, first)
    answer = beat(worker, first)
    assert (answer.status, answer.order, answer.reason) == ("lost", "cancel", "stuck")
    before = snapshot(kee)
    with refused("lease_lost"):
        complete(worker, first)
    assert beat(worker, first).reason == "requeued"
    assert snapshot(kee) == before

    second = lease_one(worker)
    with acting_as(kee):
        assert (LiveTask.objects.get().expiries, second.run_id) == (1, 2)
    assert [beat(worker, second).status for _ in range(2)] == ["ok", "lost"]
    with acting_as(kee):
        record = FinishedTask.objects.get(task_id=number(task))
        assert (record.status, record.reason) == ("failed", "expiries_exhausted")
        assert record.error is not None
        assert record.error["code"] == "stuck"
        assert list(Run.objects.order_by("pk").values_list("outcome", flat=True)) == ["revoked", "revoked"]
    assert len(terminal_receipts(kee, number(task))) == 1


def test_silence_does_not_carry_over_to_the_next_run(kee: Caller, worker: Caller) -> None:
    make_type(kee, lease_seconds=10, stuck_after=2, revoke_stuck=True)
    queue(kee)
    with acting_as(kee):
        at(FUTURE)
        assert beat(worker, lease_one(worker)).status == "ok"
        at(FUTURE + timedelta(seconds=10))
        operating.bring_back()
        again = lease_one(worker)
        assert (again.run_id, beat(worker, again).status) == (2, "ok")


def test_stuck_run_does_not_affect_its_batch(kee: Caller, worker: Caller) -> None:
    make_type(kee, stuck_after=1, revoke_stuck=True)
    queue_many(kee, *[asked()] * 2)
    still, moving = lease(worker, capacity=2)
    answers = beat_many(worker, (still, {}), (moving, {"percent": 1}))
    assert [answer.status for answer in answers] == ["lost", "ok"]


@pytest.mark.django_db(transaction=True)
def test_completion_or_revocation_of_a_stuck_run_wins(kee: Caller, worker: Caller) -> None:
    make_type(kee, stuck_after=1, revoke_stuck=True, max_expiries=100)

    def completes(grant: LeasedTask) -> bool:
        try:
            return bool(complete(worker, grant))
        except Conflict as refusal:
            return refusal.code != "lease_lost"

    for _ in range(8):
        task = number(queue(kee))
        grant = lease_one(worker)
        heard, completed = together(lambda grant=grant: beat(worker, grant).reason, partial(completes, grant))  # type: ignore[misc]  # bound at once
        assert heard in ("completed", None) if completed else heard == "stuck"
        assert len(terminal_receipts(kee, task)) == int(completed)
        if not completed:
            complete(worker, lease_one(worker), "again")


def test_lease_named_twice_in_one_request_is_refused(tenant: Tenant) -> None:
    held = {"task_id": "task_7", "lease_token": "lt_1"}
    status, problem = send(make_token(tenant), "tasks/heartbeat", {"leases": [held, held]})
    assert (status, problem["errors"]) == (422, [{"pointer": "/leases", "message": "names a lease twice"}])
