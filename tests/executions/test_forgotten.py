"""Plans and executions that name a forgotten subject."""

import json
from typing import Any

import pytest

from apps.core import erasure
from apps.core.sql import database_now
from apps.memory import services as memory
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
        erasure.erase(caller.tenant_id, reference)


def test_forgotten_plan_is_not_begun_and_its_obligation_is_closed(kee: Caller) -> None:
    with kee.acting():
        plan_id = make_plan(kee, [call_step("a"), REPORT], intent=EVE)
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


def test_execution_of_a_forgotten_plan_is_still_answered(kee: Caller) -> None:
    with kee.acting():
        plan_id = make_plan(kee, [REPORT], intent=EVE)
    begun = begin(kee, [], plan_id=plan_id)

    forget(kee)

    assert begin(kee, [], plan_id=plan_id).pk == begun.pk


def test_decision_without_its_text_is_still_asked_for(kee: Caller) -> None:
    asking = {**REPORT, "decision_required": True, "report_summary": EVE}
    execution = begin(kee, [asking])

    forget(kee)
    advance(execution)

    assert statuses(kee, execution) == {"report": "awaiting"}
    assert report(kee, execution).status == "needs_escalation"


@pytest.mark.parametrize(
    "told",
    [
        {"scope": EVE},
        {"constraints": {"exclude_workers": [EVE]}},
        {"delegation_path": [EVE]},
        {"assumptions": [EVE]},
    ],
    ids=lambda told: next(iter(told)),
)
def test_no_member_of_a_plan_keeps_a_forgotten_id(
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
