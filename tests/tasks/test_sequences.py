"""Heartbeats that come again, late, or in another order than they were sent in."""

import itertools
from datetime import timedelta
from typing import Any

import pytest

from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as
from apps.tasks import services
from apps.tasks.models import Run
from apps.tasks.states import Order
from tests.factories import make_caller
from tests.tasks.making import lease_one, make_type, queue
from tests.tasks.test_ending import release
from tests.tasks.test_lease import T0, at, beat
from tests.tasks.test_orders import order


@pytest.fixture
def worker(tenant: Tenant) -> Caller:
    return make_caller(tenant, "W", Kind.WORKER)


def said(caller: Caller) -> tuple[float | None, str, Any]:
    """What is known of the only run."""
    with acting_as(caller):
        run = Run.objects.get()
    return run.percent, run.message, run.checkpoint


def saves(n: int) -> dict[str, Any]:
    return {"percent": 10.0 * n, "message": f"at {n}", "checkpoint": {"n": n}, "sequence": n}


def test_the_next_run_sees_the_last_checkpoint_though_one_before_it_comes_again(kee: Caller, worker: Caller) -> None:
    make_type(kee, lease_seconds=10)
    queue(kee)
    with acting_as(worker):
        at(T0)
        grant = lease_one(worker)
        for n in (1, 2):
            assert beat(worker, grant, **saves(n)).status == "ok"
        at(T0 + timedelta(seconds=5))
        late = beat(worker, grant, **saves(1))

        assert (late.status, late.order, late.lease_ms, late.reason) == ("ok", "continue", 10_000, None)
        assert said(kee) == (20.0, "at 2", {"n": 2})
        at(T0 + timedelta(seconds=20))
        assert lease_one(worker).checkpoint == {"n": 2}


@pytest.mark.parametrize("arriving", [*itertools.permutations((1, 2, 3)), (1, 1, 3, 2, 3, 1)])
def test_whatever_the_order_in_which_heartbeats_arrive_what_was_said_last_is_kept(
    kee: Caller, worker: Caller, arriving: tuple[int, ...]
) -> None:
    make_type(kee)
    queue(kee)
    grant = lease_one(worker)
    assert {beat(worker, grant, **saves(n)).status for n in arriving} == {"ok"}
    assert said(kee) == (30.0, "at 3", {"n": 3})


def test_without_a_sequence_what_arrives_last_counts(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    queue(kee)
    grant = lease_one(worker)
    for n in (2, 1):
        beat(worker, grant, checkpoint={"n": n})
    assert said(kee) == (None, "", {"n": 1})
    beat(worker, grant, **saves(5))
    beat(worker, grant, checkpoint={"n": 3})
    assert said(kee) == (50.0, "at 5", {"n": 3})


def test_a_checkpoint_gives_way_to_a_newer_checkpoint_and_to_no_newer_progress(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    queue(kee)
    grant = lease_one(worker)
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


def test_a_sequence_begins_at_nothing_and_with_every_run_anew(kee: Caller, worker: Caller) -> None:
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


def test_what_was_spent_counts_whenever_it_is_told(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    queue(kee, budget=services.BudgetDraft(tokens=100))
    grant = lease_one(worker)
    beat(worker, grant, sequence=2, percent=1.0, tokens=10)
    answer = beat(worker, grant, sequence=1, percent=2.0, tokens=30)
    assert answer.budget_left is not None
    assert (answer.budget_left.tokens, said(kee)[0]) == (70, 1.0)


def test_a_checkpoint_that_was_overtaken_does_not_answer_an_order_for_one(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    queue(kee)
    grant = lease_one(worker)
    for n in (1, 2):
        beat(worker, grant, **saves(n))
    order(kee, grant.task_id, Order.CHECKPOINT)
    assert beat(worker, grant, **saves(1)).order == "checkpoint"
    assert [beat(worker, grant, **one).order for one in ({}, saves(3), {})] == ["checkpoint", "continue", "continue"]


def test_what_was_overtaken_is_no_progress(kee: Caller, worker: Caller) -> None:
    make_type(kee, stuck_after=2)
    queue(kee)
    grant = lease_one(worker)
    arriving = (2, 1, 1, 3)
    assert [beat(worker, grant, **saves(n)).stuck for n in arriving] == [False, False, True, False]
