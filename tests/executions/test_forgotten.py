"""What becomes of plans and executions in which words stood that were forgotten on request."""

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
from apps.principals.tenancy import Caller, acting_as_system
from apps.receipts.models import Obligation
from tests.executions.making import REPORT, advance, begin, call_step, make_plan, report, statuses
from tests.factories import T0
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
