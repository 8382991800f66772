"""Who is told that an execution ended otherwise than complete: each once, and nobody who knows."""

from decimal import Decimal
from typing import Any

import pytest

from apps.digests import selectors as inboxes
from apps.executions.services import answering
from apps.executions.services.starting import Budget
from apps.executions.states import Strategy
from apps.principals.models import Principal, Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as_system
from apps.receipts.models import Obligation, Receipt
from apps.tasks import services as tasks
from apps.tasks.models import LiveTask
from apps.workers.services import registry as workers
from tests.executions.making import (
    REPORT,
    advance,
    begin,
    call_step,
    do_task,
    example_steps,
    make_worker,
    queue_step,
    report,
)
from tests.executions.workers import WorkerServer
from tests.factories import make_caller

FAILS = call_step("a", "break_down", critical=True)
DEAR = call_step("a", estimated_cost=9)
CHEAP = Budget(max_total_cost=Decimal(1))


def told(caller: Caller) -> list[tuple[str, str]]:
    """What executions say in inboxes, and to whom."""
    with caller.acting():
        found = Receipt.objects.filter(surface="inbox", source_system="executions").order_by("id")
        return [(fact.event_type, fact.recipient.name) for fact in found.select_related("recipient")]


def below(tenant: Tenant, caller: Caller) -> Caller:
    """Give the caller somebody to report to."""
    boss = make_caller(tenant, "Boss")
    with acting_as_system("test"):
        Principal.objects.filter(pk=caller.principal_id).update(parent_id=boss.principal_id)
    return boss


@pytest.mark.parametrize(
    ("step", "status"), [(FAILS, "failed"), (DEAR, "budget_exceeded"), ({**FAILS, "critical": False}, "failed")]
)
@pytest.mark.parametrize("strategy", [Strategy.SEQUENTIAL, Strategy.PROGRESSIVE])
def test_bad_end_comes_once_to_the_inbox(
    kee: Caller, server: WorkerServer, step: dict[str, Any], status: str, strategy: Strategy
) -> None:
    make_worker(kee, server)
    execution = begin(kee, [step, REPORT], budget=CHEAP, strategy=strategy)
    for _ in range(3):
        advance(execution)

    done = report(kee, execution)
    assert (done.status, told(kee)) == (status, [("plan_failed", "Kee")])
    with kee.acting():
        end = Receipt.objects.get(event_type="plan_failed")
        assert not Obligation.objects.filter(closed_at=None).exists()
        (entry,) = inboxes.newest_entries(kee.principal_id).entries
    assert (end.receipt_id, end.summary, end.metadata["status"]) == (done.terminal_receipt_id, done.summary, status)
    assert end.receipt_id in entry.receipt_ids


def test_partial_end_names_the_failure(kee: Caller, tenant: Tenant, server: WorkerServer) -> None:
    below(tenant, kee)
    make_worker(kee, server)
    execution = begin(kee, [call_step("b"), {**FAILS, "critical": False}, REPORT])
    advance(execution)

    assert report(kee, execution).status == "partial"
    # The report, and the end.
    assert sorted(told(kee)) == [("escalation", "Boss"), ("escalation", "Boss"), ("plan_complete", "Kee")]
    with kee.acting():
        for summary in Receipt.objects.filter(event_type="escalation").values_list("summary", flat=True):
            assert "a failed: " in summary


def test_complete_end_stays_in_the_ledger(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    execution = begin(kee, [call_step("a"), REPORT])
    advance(execution)

    assert (report(kee, execution).status, told(kee)) == ("complete", [])


def test_the_alarm_comes_before_the_end(kee: Caller, tenant: Tenant, server: WorkerServer) -> None:
    below(tenant, kee)
    make_worker(kee, server)
    advance(begin(kee, [FAILS, REPORT], strategy=Strategy.ESCALATE))

    assert told(kee)[0] == ("escalation", "Kee")
    assert sorted(told(kee)[1:]) == [("escalation", "Boss"), ("plan_failed", "Kee")]


def test_spent_budget_raises_no_alarm(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    advance(begin(kee, [DEAR, REPORT], budget=CHEAP, strategy=Strategy.ESCALATE))

    assert told(kee) == [("plan_failed", "Kee")]


@pytest.mark.parametrize("is_leased", [False, True])
def test_canceling_principal_gets_no_receipt(
    kee: Caller, tenant: Tenant, server: WorkerServer, *, is_leased: bool
) -> None:
    below(tenant, kee)
    make_worker(kee, server)
    hands = make_caller(tenant, "hands", Kind.WORKER)
    execution = begin(kee, [queue_step("a"), REPORT])
    advance(execution)
    with hands.acting():
        grants = tasks.lease(worker=hands, queues=("execute",), capacity=1) if is_leased else []
    with kee.acting():
        answering.cancel(caller=kee, execution_ref=execution.ref, reason=None)
    for grant in grants:
        with hands.acting():
            tasks.release(worker=hands, task_id=grant.task_id, lease_token=grant.lease_token)
        advance(execution)

    assert (report(kee, execution).status, told(kee)) == ("canceled", [("escalation", "Boss")])


def test_end_by_a_canceled_task_is_announced(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    execution = begin(kee, [queue_step("a"), REPORT])
    advance(execution)
    with kee.acting():
        tasks.cancel_many(caller=kee, task_ids=[LiveTask.objects.get().task_id])

    advance(execution)

    assert told(kee) == [("plan_canceled", "Kee")]


@pytest.mark.parametrize("by", ["reject", "cancel"])
def test_principal_that_ends_it_gets_no_receipt(kee: Caller, tenant: Tenant, server: WorkerServer, by: str) -> None:
    make_worker(kee, server)
    hands = make_caller(tenant, "hands", Kind.WORKER)
    asks = [*example_steps()[:-1], {**REPORT, "step_id": "step-5", "decision_required": True}]
    steps = asks if by == "cancel" else [asks[0], asks[1], asks[4]]
    execution = begin(kee, steps)
    advance(execution)
    do_task(hands, {"text": "found"})
    advance(execution)
    before = told(kee)
    with kee.acting():
        if by == "reject":
            answering.decide_step(
                caller=kee, execution_ref=execution.ref, step_id="step-5", decision="reject", note=None
            )
        else:
            answering.cancel(caller=kee, execution_ref=execution.ref, reason=None)

    assert len(before) == 1
    assert report(kee, execution).status in {"failed", "canceled"}
    assert told(kee) == before


@pytest.mark.parametrize("cancels", [False, True])
def test_bad_end_between_delegates_is_announced_to_both(tenant: Tenant, server: WorkerServer, *, cancels: bool) -> None:
    manager = make_caller(tenant, "general-manager", Kind.DELEGATE)
    make_worker(manager, server)
    execution = begin(manager, [queue_step("b") if cancels else FAILS, REPORT])
    advance(execution)
    if cancels:
        with manager.acting():
            answering.cancel(caller=manager, execution_ref=execution.ref, reason=None)

    of_owner, of_asker = ("escalation", "delegate"), ("plan_failed", "general-manager")
    assert sorted(told(manager)) == ([of_owner] if cancels else [of_owner, of_asker])


def test_end_by_a_quarantined_worker_is_announced(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    execution = begin(kee, [call_step("a"), REPORT])
    with kee.acting():
        workers.quarantine(tenant_id=kee.tenant_id, worker_id="texter", why="odd answers")
    advance(execution)

    assert told(kee) == [("plan_failed", "Kee")]
