"""What tasks may use up, and those that they cause with them."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.core.errors import DomainError, Invalid
from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as
from apps.receipts.models import Receipt
from apps.tasks import selectors, services
from apps.tasks.errors import BudgetExhausted, LeaseLost, UnknownTask
from apps.tasks.models import Budget, FinishedTask, LiveTask, Run, Spend, Task
from apps.tasks.services import Beat, BudgetDraft, Grant, QueuedTask, QueueRequest
from apps.tasks.services.budgets import MOST_BUDGETS
from apps.tasks.shapes import BudgetLeft
from apps.tasks.states import WhenSpent
from tests.digests.makers import post as post_receipt
from tests.factories import make_caller, make_tenant
from tests.tasks.making import complete, lease, lease_one, make_type, number, own, queue
from tests.tasks.test_deadlines import later
from tests.tasks.test_ending import fail, release, terminal_receipts
from tests.tasks.test_lease import T0, at, beat
from tests.waiters import Other, until_somebody_waits_for_this_transaction

HUNDRED = BudgetDraft(tokens=100)


@pytest.fixture
def worker(tenant: Tenant) -> Caller:
    return make_caller(tenant, "W", Kind.WORKER)


@pytest.fixture
def other(tenant: Tenant) -> Caller:
    return make_caller(tenant, "V", Kind.WORKER)


def begun(kee: Caller, worker: Caller, **asked: Any) -> Grant:
    """A task that its worker holds."""
    task = number(queue(kee, priority=10, **asked))
    grant = lease_one(worker)
    assert grant.task_id == task
    return grant


def spent(caller: Caller, task: int) -> tuple[int, float, bool]:
    """What was taken from a budget, and whether nothing is left."""
    with acting_as(caller):
        found = Budget.objects.get(task_id=task)
    return found.spent_tokens, float(found.spent_cost_usd), found.spent_at is not None


def snapshot(caller: Caller) -> list[list[dict[str, Any]]]:
    with acting_as(caller):
        models: tuple[Any, ...] = (Task, LiveTask, Budget, Spend, Run, FinishedTask, Receipt)
        return [list(model.objects.order_by("pk").values()) for model in models]


def end_of(caller: Caller, task: int) -> tuple[str, str | None]:
    with acting_as(caller):
        record = FinishedTask.objects.get(task_id=task)
    return record.status, record.reason


def test_a_heartbeat_says_what_is_left_and_orders_to_stop_when_nothing_is(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    grant = begun(kee, worker, budget=BudgetDraft(tokens=100, cost_usd=2.5))
    answer = beat(worker, grant)
    assert (answer.order, answer.budget_left) == ("continue", BudgetLeft(tokens=100, cost_usd=2.5))
    answer = beat(worker, grant, tokens=40, cost_usd=0.5)
    assert (answer.order, answer.reason, answer.budget_left) == ("continue", None, BudgetLeft(tokens=60, cost_usd=2.0))
    answer = beat(worker, grant, tokens=140, cost_usd=0.5)
    assert (answer.status, answer.order, answer.reason) == ("ok", "cancel", "budget_exhausted")
    assert answer.budget_left == BudgetLeft(tokens=0, cost_usd=2.0)
    assert spent(kee, grant.task_id) == (140, 0.5, True)


def test_what_a_run_has_used_is_a_sum_that_counts_once_however_often_and_in_whatever_order_it_is_said(
    kee: Caller, worker: Caller
) -> None:
    make_type(kee)
    grant = begun(kee, worker, budget=HUNDRED)
    for said in (30, 30, 50, 30, 0, 50):
        beat(worker, grant, tokens=said)
    assert spent(kee, grant.task_id) == (50, 0, False)
    with acting_as(kee):
        assert list(Spend.objects.order_by("pk").values_list("tokens", flat=True)) == [30, 20]
    # Twice in one batch, and more of one thing but less of another.
    with acting_as(worker):
        proof: dict[str, Any] = {"task_id": grant.task_id, "lease_token": grant.lease_token}
        services.heartbeat(
            worker=worker, beats=[Beat(**proof, tokens=60), Beat(**proof, tokens=55), Beat(**proof, cost_usd=0.25)]
        )
    assert spent(kee, grant.task_id) == (60, 0.25, False)
    # What another run has used comes on top.
    release(worker, grant)
    beat(worker, lease_one(worker), tokens=5)
    assert spent(kee, grant.task_id) == (65, 0.25, False)


@pytest.mark.parametrize(("policy", "status"), [(WhenSpent.FAIL, "failed"), (WhenSpent.CANCEL, "canceled")])
@pytest.mark.parametrize("end", ["release", "fail", "expire", "revoke"])
def test_a_task_whose_budget_is_spent_ends_as_its_budget_says(
    kee: Caller, worker: Caller, policy: WhenSpent, status: str, end: str
) -> None:
    make_type(kee, lease_seconds=30)
    grant = begun(kee, worker, budget=BudgetDraft(tokens=10, when_spent=policy))
    assert beat(worker, grant, tokens=10).order == "cancel"
    with acting_as(kee):
        assert selectors.status(f"task_{grant.task_id}").status == "canceling"
    if end == "release":
        assert release(worker, grant).status == status
        assert release(worker, grant).status == status
    elif end == "fail":
        assert fail(worker, grant).will_retry is False
    elif end == "expire":
        later(31)
        assert services.end_what_must() == 1
    else:
        with acting_as(kee):
            assert services.revoke_lease(task_id=grant.task_id) == status
    assert end_of(kee, grant.task_id) == (status, "budget_exhausted")
    assert len(terminal_receipts(kee, grant.task_id)) == 1
    with pytest.raises(DomainError):
        complete(worker, grant)


def test_work_that_was_paid_for_may_still_be_completed(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    grant = begun(kee, worker, budget=HUNDRED)
    beat(worker, grant, tokens=100)
    assert complete(worker, grant).status == "succeeded"


def test_a_run_that_was_told_keeps_what_it_has_of_its_lease_and_no_more(kee: Caller, worker: Caller) -> None:
    make_type(kee, lease_seconds=30)
    grant = begun(kee, worker, budget=HUNDRED)
    later(10)
    assert beat(worker, grant, tokens=100).lease_ms == 30_000
    for _ in range(2):
        # Saying the same again, and saving what there is, is no further spending.
        answer = beat(worker, grant, tokens=100, checkpoint={"at": 1})
        assert (answer.status, answer.order, answer.reason) == ("ok", "cancel", "budget_exhausted")
        assert 0 < answer.lease_ms <= 30_000
    at(T0)
    answer = beat(worker, grant)
    assert (answer.order, answer.lease_ms) == ("cancel", 0)
    assert lease(worker) == []
    assert services.end_what_must() == 1
    assert end_of(kee, grant.task_id) == ("failed", "budget_exhausted")


def test_a_budget_is_gone_over_by_no_more_than_one_heartbeat_of_a_run(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    grant = begun(kee, worker, budget=HUNDRED)
    beat(worker, grant, tokens=99)
    assert beat(worker, grant, tokens=250).order == "cancel"
    answer = beat(worker, grant, tokens=251)
    assert (answer.status, answer.order, answer.reason) == ("lost", "cancel", "budget_exhausted")
    assert spent(kee, grant.task_id) == (250, 0, True)
    assert end_of(kee, grant.task_id) == ("failed", "budget_exhausted")
    before = snapshot(kee)
    assert beat(worker, grant, tokens=300).status == "lost"
    with pytest.raises(LeaseLost):
        complete(worker, grant)
    assert snapshot(kee) == before


def test_one_that_goes_on_spending_spoils_no_other_of_its_batch(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    first, second = (begun(kee, worker, budget=HUNDRED) for _ in range(2))
    beat(worker, first, tokens=100)
    with acting_as(worker):
        answers = services.heartbeat(
            worker=worker,
            beats=[
                Beat(task_id=one.task_id, lease_token=one.lease_token, tokens=tokens)
                for one, tokens in ((first, 101), (second, 60))
            ],
        )
    assert [(one.status, one.order) for one in answers] == [("lost", "cancel"), ("ok", "continue")]
    assert (spent(kee, first.task_id), spent(kee, second.task_id)) == ((100, 0, True), (60, 0, False))


def _by_receipt(parent: QueuedTask) -> dict[str, Any]:
    return {"caused_by": parent.receipt_id}


def _by_name(parent: QueuedTask) -> dict[str, Any]:
    return {"parent": number(parent)}


@pytest.mark.parametrize("says", [_by_receipt, _by_name])
def test_a_task_draws_from_the_budget_of_the_one_that_caused_it(
    kee: Caller, worker: Caller, other: Caller, says: Callable[[QueuedTask], dict[str, Any]]
) -> None:
    make_type(kee)
    parent = queue(kee, budget=HUNDRED)
    root = lease_one(worker)
    # Its holder asks for more, and whoever does that for yet more.
    child = queue(worker, **says(parent))
    held = lease_one(other)
    grandchild = queue(other, **says(child))
    assert number(child) == held.task_id
    assert beat(other, held, tokens=30).budget_left == BudgetLeft(tokens=70, cost_usd=None)
    assert beat(worker, root).budget_left == BudgetLeft(tokens=70, cost_usd=None)
    last = lease_one(other)
    assert (last.task_id, beat(other, last, tokens=50).budget_left) == (
        number(grandchild),
        BudgetLeft(tokens=20, cost_usd=None),
    )
    assert beat(worker, root, tokens=20).order == "cancel"
    assert (beat(other, held).order, beat(other, last).order) == ("cancel", "cancel")
    with acting_as(kee):
        assert set(Task.objects.values_list("budget_id", flat=True)) == {number(parent)}
        queued = Receipt.objects.get(receipt_id=child.receipt_id)
        assert queued.caused_by_ref == parent.receipt_id


def test_a_budget_below_another_takes_from_both_and_the_tightest_is_told(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    parent = queue(kee, budget=BudgetDraft(tokens=100, cost_usd=1.0))
    root = lease_one(worker)
    below = begun(worker, worker, parent=number(parent), budget=BudgetDraft(tokens=30, when_spent=WhenSpent.CANCEL))
    answer = beat(worker, below, tokens=10, cost_usd=0.25)
    assert answer.budget_left == BudgetLeft(tokens=20, cost_usd=0.75)
    assert (spent(kee, root.task_id), spent(kee, below.task_id)) == ((10, 0.25, False), (10, 0.25, False))
    # The one below is spent, which leaves the one above as it is.
    assert beat(worker, below, tokens=30).order == "cancel"
    assert beat(worker, root).budget_left == BudgetLeft(tokens=70, cost_usd=0.75)
    assert release(worker, below).status == "canceled"
    # The one above is spent, and by that its own word counts.
    second = begun(worker, worker, parent=number(parent), budget=BudgetDraft(tokens=90, when_spent=WhenSpent.CANCEL))
    assert beat(worker, second, tokens=70).budget_left == BudgetLeft(tokens=0, cost_usd=0.75)
    assert spent(kee, second.task_id) == (70, 0, False)
    assert release(worker, second).status == "failed"


def test_a_task_draws_from_the_budget_at_the_root_of_the_receipts_that_led_to_it(
    tenant: Tenant, kee: Caller, worker: Caller
) -> None:
    make_type(kee)
    agent = make_caller(tenant, "Hexy")
    parent = queue(kee, budget=HUNDRED)
    lease_one(worker)
    with acting_as(worker):
        asked = post_receipt(agent, poster=worker, caused_by=parent.receipt_id)
    with acting_as(agent):
        plan = post_receipt(agent, poster=agent, caused_by=asked.receipt_id)
    for reference in (asked.receipt_id, plan.receipt_id, str(plan.uuid)):
        task = queue(agent, caused_by=reference)
        with acting_as(kee):
            assert Task.objects.get(pk=number(task)).budget_id == number(parent)


def test_strangers_to_a_receipt_or_a_task_draw_from_nothing(tenant: Tenant, kee: Caller, worker: Caller) -> None:
    make_type(kee)
    hexy = make_caller(tenant, "Hexy")
    parent = queue(kee, budget=HUNDRED)
    with acting_as(kee):
        noted = post_receipt(kee, poster=kee, caused_by=parent.receipt_id)
    with acting_as(hexy):
        forged = post_receipt(hexy, poster=hexy, caused_by=noted.receipt_id)
    for reference in (noted.receipt_id, forged.receipt_id, "of nothing that is known"):
        task = queue(hexy, caused_by=reference)
        with acting_as(kee):
            assert Task.objects.get(pk=number(task)).budget_id is None
    before = snapshot(kee)
    for stranger in (hexy, worker):
        with pytest.raises(UnknownTask):
            queue(stranger, parent=number(parent))
    with pytest.raises(UnknownTask):
        queue(kee, parent=10**15)
    assert snapshot(kee) == before


def test_nothing_new_draws_from_a_spent_budget_and_it_hinders_nothing_else(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    parent = queue(kee, budget=HUNDRED)
    root = lease_one(worker)
    first = queue(kee, caused_by=parent.receipt_id, idempotency_key="k")
    below = queue(kee, caused_by=parent.receipt_id, budget=BudgetDraft(tokens=5))
    beat(worker, root, tokens=100)
    before = snapshot(kee)
    for given in (
        {"caused_by": parent.receipt_id},
        {"parent": number(parent)},
        {"parent": number(parent), "budget": BudgetDraft(tokens=1)},
        {"parent": number(below)},
    ):
        with pytest.raises(BudgetExhausted) as refused:
            queue(kee, **given)
        assert f"task_{number(parent)}" in refused.value.detail
    assert snapshot(kee) == before
    again = queue(kee, caused_by=parent.receipt_id, idempotency_key="k")
    assert (again.task_id, again.is_duplicate) == (first.task_id, True)
    with acting_as(kee):
        caused = QueueRequest(task_type="index", params={}, caused_by=parent.receipt_id)
        free = QueueRequest(task_type="index", params={})
        answers = services.queue_many(requester=kee, requests=[caused, free, caused])
    assert [type(answer) for answer in answers] == [BudgetExhausted, QueuedTask, BudgetExhausted]


def test_a_budget_limits_something_and_so_many_stand_one_under_another(kee: Caller) -> None:
    make_type(kee)
    with pytest.raises(Invalid):
        queue(kee, budget=BudgetDraft())
    task = queue(kee, budget=HUNDRED)
    for _ in range(MOST_BUDGETS - 1):
        task = queue(kee, parent=number(task), budget=HUNDRED)
    before = snapshot(kee)
    with pytest.raises(Invalid):
        queue(kee, parent=number(task), budget=HUNDRED)
    assert snapshot(kee) == before
    queue(kee, parent=number(task))


def test_what_waits_for_a_worker_ends_with_the_budget_it_draws_from(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    parent = queue(kee, budget=HUNDRED)
    root = lease_one(worker)
    held = begun(kee, worker, caused_by=parent.receipt_id)
    below = number(queue(kee, caused_by=parent.receipt_id, budget=BudgetDraft(tokens=500)))
    last = number(queue(kee, parent=below, run_at=T0))
    free = number(queue(kee))
    assert services.end_what_must() == 0
    beat(worker, root, tokens=100)
    assert [services.end_what_must(), services.end_what_must()] == [2, 0]
    assert [end_of(kee, task) for task in (below, last)] == [("failed", "budget_exhausted")] * 2
    # What is held hears of it, or goes when it is given back without having heard.
    release(worker, held)
    assert services.end_what_must() == 1
    assert end_of(kee, held.task_id) == ("failed", "budget_exhausted")
    assert [grant.task_id for grant in lease(worker, capacity=9)] == [free]


def test_a_spent_budget_is_looked_at_until_nothing_open_draws_from_it(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    root = begun(kee, worker, budget=HUNDRED)
    beat(worker, root, tokens=100)
    complete(worker, root)

    def settled() -> bool:
        services.end_what_must()
        with acting_as(kee):
            return Budget.objects.get().settled_at is not None

    # Something that was being queued meanwhile may still come to light.
    assert not settled()
    later(61)
    with acting_as(kee):
        LiveTask.objects.filter(task_id=number(queue(kee))).update(budget_id=root.task_id)
    assert services.end_what_must() == 1
    assert settled()


def test_what_is_done_again_draws_from_where_it_did_though_the_receipt_of_its_end_has_gone(
    kee: Caller, worker: Caller
) -> None:
    make_type(kee)
    root = begun(kee, worker, budget=HUNDRED)
    dead = begun(kee, worker, parent=root.task_id)
    fail(worker, dead, retryable=False)
    removed = QueueRequest(task_type="index", params={}, replay_of=dead.task_id, caused_by="rcpt_removed")
    with acting_as(kee):
        anew = services.queue(requester=kee, request=removed)
        assert Task.objects.get(pk=number(anew)).budget_id == root.task_id


def test_what_is_done_again_has_as_much_to_spend_again_but_no_more_from_above(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    parent = queue(kee, budget=HUNDRED)
    root = lease_one(worker)
    dead = begun(kee, worker, caused_by=parent.receipt_id, budget=BudgetDraft(tokens=50, cost_usd=0.5))
    beat(worker, dead, tokens=50)
    release(worker, dead)
    with acting_as(kee):
        anew = services.replay(caller=kee, task_id=dead.task_id)
    again = lease_one(worker)
    assert again.task_id == number(anew)
    assert beat(worker, again).budget_left == BudgetLeft(tokens=50, cost_usd=0.5)
    beat(worker, again, tokens=50)
    assert spent(kee, root.task_id) == (100, 0, True)
    release(worker, again)
    with acting_as(kee), pytest.raises(BudgetExhausted):
        services.replay(caller=kee, task_id=again.task_id)


def test_a_budget_is_kept_as_long_as_anything_draws_from_it(kee: Caller, worker: Caller) -> None:
    make_type(kee, retention_seconds=86_400)
    root = begun(kee, worker, budget=HUNDRED)
    held = begun(kee, worker, parent=root.task_id)
    below = begun(kee, worker, parent=root.task_id, budget=HUNDRED)
    complete(worker, root)
    complete(worker, below)
    later(2 * 86_400)

    def kept() -> set[int]:
        services.Walk().forget()
        with acting_as(kee):
            return set(Budget.objects.values_list("task_id", flat=True))

    # By what has a budget itself, and by what has none.
    assert kept() == {root.task_id}
    assert kept() == {root.task_id}
    with acting_as(kee):
        assert Task.objects.filter(pk=root.task_id).exists()
        assert FinishedTask.objects.filter(task_id=root.task_id).exists()
    complete(worker, held)
    assert kept() == set()


def test_a_task_without_a_budget_costs_no_statement_more(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    bound = begun(kee, worker, budget=HUNDRED)
    free = begun(kee, worker)

    def statements(act: Callable[[], object]) -> int:
        with CaptureQueriesContext(connection) as captured:
            act()
        return sum(own(query) for query in captured)

    with acting_as(worker):

        def beats(grant: Grant, tokens: int) -> Callable[[], object]:
            said = Beat(task_id=grant.task_id, lease_token=grant.lease_token, tokens=tokens)
            return lambda: services.heartbeat(worker=worker, beats=[said])

        assert [statements(beats(free, tokens)) for tokens in (0, 5)] == [1, 2]
        assert [statements(beats(bound, tokens)) for tokens in (0, 5, 100)] == [2, 3, 3]

    with acting_as(kee):

        def queues(**asked: Any) -> Callable[[], object]:
            return lambda: services.queue(requester=kee, request=QueueRequest(task_type="index", params={}, **asked))

        assert statements(queues()) == 2
        assert statements(queues(budget=HUNDRED)) == 3
        assert statements(queues(caused_by="nothing known")) == 3


def _spend_until_told(worker: Caller, held: list[Grant]) -> list[str]:
    """One token more with each heartbeat, of both runs in one batch, in turns in another order, each said twice."""
    for said in range(1, 100):
        beats = [Beat(task_id=one.task_id, lease_token=one.lease_token, tokens=said) for one in held]
        answers: list[services.BeatAnswer] = []
        for _ in range(2):
            with acting_as(worker):
                answers = services.heartbeat(worker=worker, beats=beats if said % 2 else beats[::-1])
        if any(answer.order == "cancel" for answer in answers):
            return [answer.status for answer in answers]
    return []


@pytest.mark.django_db(transaction=True)
def test_rivals_on_one_budget_lose_and_double_nothing_and_each_hears_that_it_is_spent() -> None:
    tenant = make_tenant("acme")
    kee = make_caller(tenant)
    make_type(kee)
    root = queue(kee, budget=BudgetDraft(tokens=60))
    below = [queue(kee, parent=number(root), budget=BudgetDraft(tokens=1000)) for _ in range(2)]
    lease(kee, capacity=3)
    workers = [make_caller(tenant, f"W{index}", Kind.WORKER) for index in range(4)]
    for _ in workers:
        for one in below:
            queue(kee, parent=number(one))
    held = [lease(worker, capacity=2) for worker in workers]
    barrier = threading.Barrier(len(workers))
    told: dict[int, list[str]] = {}

    def work(nth: int) -> None:
        try:
            barrier.wait(20)
            told[nth] = _spend_until_told(workers[nth], held[nth])
        finally:
            connection.close()

    threads = [threading.Thread(target=work, args=[nth]) for nth in range(len(workers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert told == {nth: ["ok", "ok"] for nth in range(len(workers))}
    with acting_as(kee):
        noted = sum(Spend.objects.values_list("tokens", flat=True))
        sums = dict(Budget.objects.values_list("task_id", "spent_tokens"))
    assert sums[number(root)] == noted == sum(sums[number(one)] for one in below)
    # Each of the eight runs went over it by no more than its one heartbeat.
    assert 60 <= noted < 60 + 8


@pytest.mark.django_db(transaction=True)
def test_whoever_spends_takes_budgets_in_the_order_of_their_ids_wherever_they_lie() -> None:
    tenant = make_tenant("acme")
    kee, worker = make_caller(tenant), make_caller(tenant, "W", Kind.WORKER)
    make_type(kee)
    roots = [number(queue(kee, budget=HUNDRED)) for _ in range(8)]
    grants = lease(worker, capacity=8)
    for grant in reversed(grants):
        # Each change of a row puts it behind those before.
        beat(worker, grant, tokens=1)

    first, *others = sorted(roots)
    with acting_as(kee):
        list(Budget.objects.select_for_update().filter(task_id=first))
        spending = Other(lambda: _beat_with(worker, grants[::-1], tokens=2))
        until_somebody_waits_for_this_transaction()
        free = Budget.objects.select_for_update(skip_locked=True).exclude(task_id=first)
        assert sorted(free.values_list("task_id", flat=True)) == others
    spending.join(60)

    assert spending.failure is None
    assert [spent(kee, root)[0] for root in roots] == [2] * len(roots)


def _beat_with(worker: Caller, grants: list[Grant], **more: Any) -> None:
    beats = [Beat(task_id=grant.task_id, lease_token=grant.lease_token, **more) for grant in grants]
    with acting_as(worker):
        services.heartbeat(worker=worker, beats=beats)
