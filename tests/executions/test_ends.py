"""The end of an execution: who is told, and what is promoted to memory."""

from typing import Any

import pytest

from apps.digests import selectors as inboxes
from apps.executions.models import Execution
from apps.executions.states import Strategy
from apps.plans.shapes import Budget
from apps.principals.models import Principal, Tenant
from apps.principals.scopes import Kind
from apps.principals.services import DELEGATE
from apps.principals.tenancy import Caller, acting_as_system
from apps.receipts.models import Obligation, Receipt
from apps.tasks.models import LiveTask
from apps.tasks.services import running
from tests.executions.making import (
    REPORT,
    advance,
    begin,
    call_step,
    cancel,
    decide,
    do_task,
    make_worker,
    queue_step,
    release_task,
    report,
    run,
)
from tests.executions.workers import WorkerServer
from tests.factories import make_caller
from tests.memory.subjects import observations, observe
from tests.memory.test_promoting import LEARNED, allow

FAILS = call_step("a", "break_down", critical=True)


DEAR = call_step("a", estimated_cost=9)


CHEAP = Budget(max_total_cost=1)


def receipts_of(caller: Caller) -> list[tuple[str, str]]:
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
    kee: Caller, texter: WorkerServer, step: dict[str, Any], status: str, strategy: Strategy
) -> None:
    execution = begin(kee, [step, REPORT], budget=CHEAP, strategy=strategy)
    for _ in range(3):
        advance(execution)

    done = report(kee, execution)
    assert (done.status, receipts_of(kee)) == (status, [("plan_failed", "Kee")])
    with kee.acting():
        end = Receipt.objects.get(event_type="plan_failed")
        assert not Obligation.objects.filter(closed_at=None).exists()
        (entry,) = inboxes.newest_entries(kee.principal_id).entries
    assert (end.receipt_id, end.summary, end.metadata["status"]) == (done.terminal_receipt_id, done.summary, status)
    assert end.receipt_id in entry.receipt_ids


def test_partial_end_names_the_failure(kee: Caller, tenant: Tenant, server: WorkerServer) -> None:
    below(tenant, kee)
    make_worker(kee, server)
    execution = run(kee, [call_step("b"), {**FAILS, "critical": False}, REPORT])

    assert report(kee, execution).status == "partial"
    # The report, and the end.
    assert sorted(receipts_of(kee)) == [("escalation", "Boss"), ("escalation", "Boss"), ("plan_complete", "Kee")]
    with kee.acting():
        for summary in Receipt.objects.filter(event_type="escalation").values_list("summary", flat=True):
            assert "a failed: " in summary


def test_alarm_comes_before_the_end_and_tasks_are_canceled(kee: Caller, tenant: Tenant, server: WorkerServer) -> None:
    below(tenant, kee)
    make_worker(kee, server)
    run(kee, [FAILS, queue_step("b"), REPORT], strategy=Strategy.ESCALATE)

    assert receipts_of(kee)[0] == ("escalation", "Kee")
    assert sorted(receipts_of(kee)[1:]) == [("escalation", "Boss"), ("plan_failed", "Kee")]
    with kee.acting():
        assert "out of paper" in Receipt.objects.filter(event_type="escalation").earliest("id").summary
        assert not LiveTask.objects.exists()
    run(kee, [DEAR, REPORT], budget=CHEAP, strategy=Strategy.ESCALATE)
    assert ("escalation", "Kee") not in receipts_of(kee)[3:]


def test_principal_that_rejects_gets_no_receipt(kee: Caller) -> None:
    execution = run(kee, [{**REPORT, "decision_required": True}])
    before = receipts_of(kee)

    decide(kee, execution, "reject")

    assert (len(before), receipts_of(kee), report(kee, execution).status) == (1, before, "failed")


@pytest.mark.parametrize("is_leased", [False, True])
def test_canceling_principal_gets_no_receipt(
    kee: Caller, tenant: Tenant, server: WorkerServer, *, is_leased: bool
) -> None:
    below(tenant, kee)
    make_worker(kee, server)
    hands = make_caller(tenant, "hands", Kind.WORKER)
    execution = run(kee, [queue_step("a"), REPORT])
    with hands.acting():
        grants = running.lease(worker=hands, queues=("execute",), capacity=1) if is_leased else []
    cancel(kee, execution)
    for grant in grants:
        release_task(hands, grant)
        advance(execution)

    assert (report(kee, execution).status, receipts_of(kee)) == ("canceled", [("escalation", "Boss")])


@pytest.mark.parametrize("cancels", [False, True])
def test_bad_end_between_delegates_is_announced_to_both(tenant: Tenant, server: WorkerServer, *, cancels: bool) -> None:
    manager = make_caller(tenant, "general-manager", Kind.DELEGATE)
    make_worker(make_caller(tenant), server)
    execution = run(manager, [queue_step("b") if cancels else FAILS, REPORT])
    if cancels:
        cancel(manager, execution)

    of_owner, of_asker = ("escalation", "delegate"), ("plan_failed", "general-manager")
    assert sorted(receipts_of(manager)) == ([of_owner] if cancels else [of_owner, of_asker])


ASKED = {"promote": True, "domain": "builds", "observation": LEARNED, "reasoning": "Seen thrice", "confidence": 0.9}


def execute_with_recommendation(owner: Caller, tenant: Tenant, server: WorkerServer, asked: Any = ASKED) -> Execution:
    """An execution of which a worker's result recommends something."""
    make_worker(make_caller(tenant), server)
    execution = begin(owner, [queue_step("sum"), {**REPORT, "depends_on": ["sum"]}])
    advance(execution)
    do_task(make_caller(tenant, "hands", Kind.WORKER), {"summary": "Done.", "promotion_recommendation": asked})
    advance(execution)
    return execution


def verdict_of(owner: Caller, execution: Execution) -> dict[str, Any]:
    (found,) = [one for one in report(owner, execution).results if one.step_id == "sum"]
    return dict(found.promotion_recommendation or {})


def learned(caller: Caller) -> list[tuple[str, str, list[str]]]:
    with caller.acting():
        rows = observations().exclude(domain="delegation_trace").order_by("pk")
        return [(row.text, row.author.name, row.evidence) for row in rows.select_related("author")]


def test_policy_promotes_a_recommendation_at_the_end(
    kee: Caller, coder: Caller, tenant: Tenant, server: WorkerServer
) -> None:
    with kee.acting():
        allow(kee, DELEGATE)
    execution = execute_with_recommendation(coder, tenant, server)

    done = report(coder, execution)
    assert done.status == "complete"
    evidence = [f"plan:{execution.plan_id}", f"exec:{execution.ref}", "step:sum"]
    assert learned(kee) == [(LEARNED, DELEGATE, evidence)]
    outcome = verdict_of(coder, execution)
    assert (outcome["promote"], outcome["verdict"]) == (False, "promoted")
    with kee.acting():
        assert outcome["promoted_as"] == observations().get(text=LEARNED).ref


@pytest.mark.parametrize(("domain", "verdict"), [("people", "other_domain"), ("builds", "known_already")])
def test_recommendation_that_is_not_promoted_is_reported(
    kee: Caller, coder: Caller, tenant: Tenant, server: WorkerServer, *, domain: str, verdict: str
) -> None:
    with kee.acting():
        allow(kee, DELEGATE)
        if verdict == "known_already":
            observe(kee, LEARNED, domain="builds")

    execution = execute_with_recommendation(coder, tenant, server, {**ASKED, "domain": domain})

    outcome = verdict_of(coder, execution)
    assert (outcome["verdict"], outcome["promote"]) == (verdict, verdict != "known_already")
    assert len(learned(kee)) == (verdict == "known_already")
    (action,) = report(coder, execution).next_actions[-1:]
    assert ("what sum recommends" in action) == outcome["promote"]
