"""What becomes of plans and executions in which words stood that were forgotten on request."""

import json
from typing import Any

import pytest

from apps.core import erasure
from apps.core.erasure import Wanted
from apps.core.sql import database_now
from apps.memory import references
from apps.memory import services as memory
from apps.memory.models import Observation
from apps.plans import selectors as plans
from apps.plans import services as planning
from apps.plans.documents import PlanStatus
from apps.plans.errors import PlanAbandoned
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as_system
from apps.receipts.models import Obligation
from tests.executions.making import REPORT, advance, begin, call_step, make_plan, make_worker, report, statuses
from tests.executions.test_doors import send
from tests.executions.test_submitted_plans import SUBMIT, handmade
from tests.executions.workers import WorkerServer
from tests.factories import T0, make_token
from tests.memory.subjects import add

EVE = "USER:eve"


def forget(caller: Caller, reference: str = EVE) -> None:
    with acting_as_system("test"), erasure.redacting():
        erasure.erase(Wanted(tenant_id=caller.tenant_id, reference=reference))


def test_a_plan_that_was_forgotten_is_not_begun_and_what_is_owed_for_it_is_closed(kee: Caller) -> None:
    with kee.acting():
        plan_id = make_plan(kee, [call_step("a"), REPORT], intent=f"Write to {EVE}")
        kept = make_plan(kee, [REPORT])

    forget(kee)

    with kee.acting():
        assert plans.plan(plan_id).status == PlanStatus.NEEDS_ESCALATION
    with pytest.raises(PlanAbandoned):
        begin(kee, [], plan_id=plan_id)
    with acting_as_system("test"):
        assert (kee.tenant_id, plan_id) in plans.expired(limit=9)
    with kee.acting():
        assert planning.abandon_expired(plan_id=plan_id, now=database_now())
        owed = Obligation.objects.filter(closed_at=None).values_list("receipt__receipt_id", flat=True)
        assert list(owed) == [plans.plan(kept).receipt_id]


def test_an_execution_of_a_plan_that_was_forgotten_is_still_the_one_that_is_answered(kee: Caller) -> None:
    with kee.acting():
        plan_id = make_plan(kee, [REPORT], intent=f"Write to {EVE}")
    begun = begin(kee, [], plan_id=plan_id)

    forget(kee)

    assert begin(kee, [], plan_id=plan_id).pk == begun.pk


def test_a_decision_of_which_the_words_were_forgotten_is_asked_for_still(kee: Caller) -> None:
    asking = {**REPORT, "decision_required": True, "report_summary": f"Write to {EVE}?"}
    execution = begin(kee, [asking])

    forget(kee)
    advance(execution)

    assert statuses(kee, execution) == {"report": "awaiting"}
    assert report(kee, execution).status == "needs_escalation"


@pytest.mark.parametrize("intent", [f"Write to {EVE}", " ".join(f"A:b{number}" for number in range(11))])
def test_an_execution_ends_although_memory_does_not_take_its_trace(
    kee: Caller, intent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(references, "MOST_NAMED", 20)
    with kee.acting():
        add(kee, EVE)
        memory.forget(author=kee, subject_id=EVE, now=T0)
        plan_id = make_plan(kee, [REPORT], intent=intent)
    execution = begin(kee, [], plan_id=plan_id)

    advance(execution)

    assert report(kee, execution).status == "complete"
    with kee.acting():
        execution.refresh_from_db()
        assert execution.trace_ref is None
        assert not Observation.objects.exists()


@pytest.mark.parametrize(
    "told",
    [
        {"scope": f"for {EVE}"},
        {"excluded": [{"worker_id": "w", "tool_name": "t", "reason": f"{EVE} said no"}]},
        {"constraints": {"exclude_workers": [EVE]}},
        {"delegation_path": [EVE]},
        {"assumptions": [f"That {EVE} is there."]},
    ],
    ids=lambda told: next(iter(told)),
)
def test_no_member_of_a_plan_keeps_what_was_forgotten(
    tenant: Tenant, kee: Caller, server: WorkerServer, told: dict[str, Any]
) -> None:
    make_worker(kee, server)
    token = make_token(tenant, "Kee")
    plan_id = send("POST", SUBMIT, token, {"plan": handmade(steps=[call_step("a"), REPORT], **told)})[1]["plan_id"]
    with kee.acting():
        add(kee, EVE)
        assert memory.forget(author=kee, subject_id=EVE, now=T0).remaining == {}
    status, answer = send("GET", f"/api/v1/plans/{plan_id}", token)
    assert (status, EVE in json.dumps(answer)) == (200, False)
    (listed,) = send("GET", "/api/v1/plans", token)[1]["plans"]
    assert (listed["intent"], listed["can_be_begun"]) == ("", False)


def test_why_a_plan_was_made_again_is_forgotten_with_whom_it_names(
    tenant: Tenant, kee: Caller, server: WorkerServer
) -> None:
    make_worker(kee, server)
    token = make_token(tenant, "Kee")
    plan_id = send("POST", SUBMIT, token, {"plan": handmade(steps=[call_step("a"), REPORT])})[1]["plan_id"]
    asked = {"failed_step": "a", "error": f"{EVE} said no"}
    again = send("POST", f"/api/v1/plans/{plan_id}/replan", token, asked)[1]["plan_id"]
    with kee.acting():
        assert EVE in json.dumps(plans.plan(again).document)
        add(kee, EVE)
        assert memory.forget(author=kee, subject_id=EVE, now=T0).remaining == {}
        assert EVE not in json.dumps(plans.plan(again).document)
