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
def test_an_end_that_is_not_complete_comes_once_to_the_inbox_of_whoever_asked(
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


def test_a_failure_after_the_answer_is_told(kee: Caller, tenant: Tenant, server: WorkerServer) -> None:
    make_worker(kee, server)
    hands = make_caller(tenant, "hands", Kind.WORKER)
    execution = begin(kee, [queue_step("a", tool_name="break_down"), call_step("b", depends_on=["a"]), REPORT])
    advance(execution)
    with hands.acting():
        (grant,) = tasks.lease(worker=hands, queues=("execute",), capacity=1)
        tasks.fail(
            worker=hands,
            task_id=grant.task_id,
            lease_token=grant.lease_token,
            failure=tasks.Failure(code="out_of_paper", message="No paper.", retryable=False),
        )

    advance(execution)

    assert told(kee) == [("plan_failed", "Kee")]


def test_a_partial_end_is_told_and_its_report_says_what_failed(
    kee: Caller, tenant: Tenant, server: WorkerServer
) -> None:
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


def test_a_complete_end_stays_in_the_ledger(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    execution = begin(kee, [call_step("a"), REPORT])
    advance(execution)

    assert (report(kee, execution).status, told(kee)) == ("complete", [])


def test_who_stands_above_the_owner_is_told_of_a_bad_end_as_well(
    kee: Caller, tenant: Tenant, server: WorkerServer
) -> None:
    below(tenant, kee)
    make_worker(kee, server)
    execution = begin(kee, [FAILS, REPORT])
    for _ in range(2):
        advance(execution)

    assert sorted(told(kee)) == [("escalation", "Boss"), ("plan_failed", "Kee")]
    with kee.acting():
        reported = Receipt.objects.get(event_type="escalation")
    assert (reported.metadata["status"], reported.metadata["original_receipt"]) == ("failed", execution.plan_receipt_id)


def test_the_alarm_comes_before_the_end(kee: Caller, tenant: Tenant, server: WorkerServer) -> None:
    below(tenant, kee)
    make_worker(kee, server)
    advance(begin(kee, [FAILS, REPORT], strategy=Strategy.ESCALATE))

    assert told(kee)[0] == ("escalation", "Kee")
    assert sorted(told(kee)[1:]) == [("escalation", "Boss"), ("plan_failed", "Kee")]


def test_a_budget_that_is_spent_raises_no_alarm_and_is_told(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    advance(begin(kee, [DEAR, REPORT], budget=CHEAP, strategy=Strategy.ESCALATE))

    assert told(kee) == [("plan_failed", "Kee")]


@pytest.mark.parametrize("is_leased", [False, True])
def test_who_cancels_is_not_told_of_it_though_it_ends_later_and_its_parent_is(
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


def test_the_owner_is_told_that_its_plan_ends_since_a_task_was_canceled(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    execution = begin(kee, [queue_step("a"), REPORT])
    advance(execution)
    with kee.acting():
        tasks.cancel_many(caller=kee, task_ids=[LiveTask.objects.get().task_id])

    advance(execution)

    assert told(kee) == [("plan_canceled", "Kee")]


@pytest.mark.parametrize("by", ["reject", "cancel"])
def test_who_ends_it_by_its_own_word_is_not_told(kee: Caller, tenant: Tenant, server: WorkerServer, by: str) -> None:
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
def test_what_one_delegate_does_for_another_ends_badly_for_both_but_not_for_who_ends_it(
    tenant: Tenant, server: WorkerServer, *, cancels: bool
) -> None:
    manager = make_caller(tenant, "general-manager", Kind.DELEGATE)
    make_worker(manager, server)
    execution = begin(manager, [queue_step("b") if cancels else FAILS, REPORT])
    advance(execution)
    if cancels:
        with manager.acting():
            answering.cancel(caller=manager, execution_ref=execution.ref, reason=None)

    of_owner, of_asker = ("escalation", "delegate"), ("plan_failed", "general-manager")
    assert sorted(told(manager)) == ([of_owner] if cancels else [of_owner, of_asker])


def test_a_worker_that_stays_away_is_told(kee: Caller, server: WorkerServer) -> None:
    make_worker(kee, server)
    execution = begin(kee, [call_step("a"), REPORT])
    with kee.acting():
        workers.quarantine(tenant_id=kee.tenant_id, worker_id="texter", why="odd answers")
    advance(execution)

    assert told(kee) == [("plan_failed", "Kee")]
