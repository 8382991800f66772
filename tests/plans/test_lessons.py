"""What executed plans leave behind: one outcome a plan, and models that are emptied or taken back."""

from datetime import timedelta

import pytest

from apps.core import erasure
from apps.core.errors import Conflict
from apps.plans import selectors, services, shelf
from apps.plans.history import Past
from apps.plans.models import LearnedModel, Outcome
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from tests.factories import T0
from tests.plans.making import FLAGSHIP, create, register_example_workers


def test_outcome_has_the_finished_tools_and_their_links(as_kee: Caller) -> None:
    register_example_workers(as_kee)
    made = create(as_kee)

    noted = services.record_outcome(
        plan_id=made.plan_id, completed={"step-1", "step-2", "step-3"}, succeeded=True, now=T0
    )

    steps = {step["step_id"]: step.get("tool_uid") for step in made.document["steps"]}
    assert noted is not None
    assert noted.tools == [steps["step-1"], steps["step-3"]]
    assert noted.links == [[steps["step-1"], steps["step-3"]]]
    assert (noted.request, noted.weight) == (FLAGSHIP, 1.0)


def test_failed_plan_counts_less(as_kee: Caller) -> None:
    register_example_workers(as_kee)
    made = create(as_kee)

    noted = services.record_outcome(plan_id=made.plan_id, completed={"step-1"}, succeeded=False, now=T0)

    assert noted is not None
    assert (len(noted.tools), noted.links) == (1, [])
    assert noted.weight < 1


def test_plan_has_one_outcome_and_none_if_nothing_ran(as_kee: Caller) -> None:
    register_example_workers(as_kee)
    first, second = create(as_kee), create(as_kee)
    for _ in range(2):
        services.record_outcome(plan_id=first.plan_id, completed={"step-1"}, succeeded=True, now=T0)

    assert services.record_outcome(plan_id=second.plan_id, completed=(), succeeded=False, now=T0) is None
    assert Outcome.objects.count() == 1


def model(tenant: Tenant, number: int, state: str) -> LearnedModel:
    return LearnedModel.objects.create(
        tenant_id=tenant.pk,
        number=number,
        state=state,
        learned_from=1,
        node_f1=None,
        body=b"quibble",
        learned_at=T0 + timedelta(hours=number),
    )


def test_model_before_can_be_taken_back(tenant: Tenant, as_kee: Caller) -> None:
    model(tenant, 1, "superseded")
    model(tenant, 2, "in_use")

    assert services.go_back(tenant_id=tenant.pk, number=2).number == 1
    with pytest.raises(Conflict, match="none before it is kept"):
        services.go_back(tenant_id=tenant.pk, number=1)


@pytest.mark.django_db(transaction=True)
def test_forgotten_request_empties_the_models_that_learned_from_it(tenant: Tenant, kee: Caller) -> None:
    with acting_as(kee):
        for number, state in enumerate(("superseded", "in_use"), start=1):
            model(tenant, number, state)
        plan = Past(request="quibble the lot", tools=("t",))
        services.take_over_history(tenant_id=tenant.pk, plans=[plan], now=T0 + timedelta(hours=1, minutes=30))

    with acting_as_system("test"), erasure.redacting():
        erasure.erase(tenant.pk, "quibble the lot")

    with acting_as(kee):
        assert [bytes(one.body) for one in LearnedModel.objects.order_by("number")] == [b"quibble", b""]
        assert not LearnedModel.objects.filter(state="in_use").exists()
        assert selectors.calibration_error() == 0


def test_planner_learns_and_a_worse_model_is_not_used(tenant: Tenant, kee: Caller) -> None:
    """Sixty plans are judged on their last tenth; a model of contrary plans is kept aside."""
    with acting_as(kee):
        services.take_over_history(tenant_id=tenant.pk, plans=[*_PAST] * 10, now=T0)
    first = services.learn(tenant_id=tenant.pk, now=T0)
    with acting_as(kee), shelf.held(tenant_id=tenant.pk) as held:
        assert held.model == 1
        assert held.history is not None
        assert [uid for uid, _ in held.history.likely("quibble the papers", {}).tools] == ["t-quibble"]
        Outcome.objects.all().delete()
        services.take_over_history(tenant_id=tenant.pk, plans=[*_CONTRARY * 9, *_PAST], now=T0)
    second = services.learn(tenant_id=tenant.pk, now=T0)

    assert first is not None
    assert (first.state, first.node_f1) == ("in_use", 1.0)
    assert second is not None
    assert second.state == "rejected"
    assert (second.node_f1 or 0) < (second.node_f1_before or 0)


_PAST = [
    Past(request=f"{verb} the {noun}", tools=(f"t-{verb}",))
    for verb in ("quibble", "wobble")
    for noun in ("papers", "lot", "rest")
]
_CONTRARY = [Past(request=one.request, tools=("t-other",)) for one in _PAST]
