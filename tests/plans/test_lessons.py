"""What executed plans leave behind, and what is learned from them."""

from collections.abc import Sequence
from uuid import uuid4

import numpy as np
import pytest

from apps.core import erasure, ticks
from apps.plans import selectors, services, shelf
from apps.plans.local.history import History, Past, learn
from apps.plans.models import Plan
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from tests.factories import T0
from tests.plans.making import FLAGSHIP, create, register_example_workers


def carried_out(made: Plan, *completed: str) -> Past:
    """What a plan teaches of which these steps ran to their end."""
    services.record_outcome(plan_id=made.plan_id, completed=completed)
    return services.past_of(selectors.plan(made.plan_id))


def test_plan_teaches_the_finished_tools_and_their_links(as_kee: Caller) -> None:
    register_example_workers(as_kee)
    made = create(as_kee)
    first, second = (step["tool_uid"] for step in made.document["steps"] if step.get("tool_uid"))

    found = carried_out(made, "step-1", "step-2")

    assert found == Past(request=FLAGSHIP, tools=(first, second), links=frozenset({(first, second)}))


def test_failed_plan_counts_less_and_once_and_one_that_ran_nothing_not_at_all(as_kee: Caller) -> None:
    register_example_workers(as_kee)
    first, second = create(as_kee), create(as_kee)

    noted = carried_out(first, "step-1")

    assert (len(noted.tools), noted.links, noted.weight < 1) == (1, frozenset(), True)
    assert carried_out(first, "step-1", "step-2") == noted
    services.record_outcome(plan_id=second.plan_id, completed=())
    assert selectors.plan(second.plan_id).completed is None


STEP = {"step_type": "call_worker", "tool_name": "any", "params": {}}


def note(caller: Caller, past: Sequence[Past]) -> None:
    """Plans that were carried out."""
    root = selectors.delegate_named("delegate")
    of = {"tenant_id": caller.tenant_id, "delegate": root, "principal_id": caller.principal_id, "created_at": T0}
    Plan.objects.bulk_create(
        Plan(
            **of,
            plan_id=services.new_plan_id(),
            intent=one.request,
            status="ready",
            document={"steps": [{**STEP, "step_id": uid, "tool_uid": uid} for uid in one.tools]},
            receipt_id="R",
            receipt_uuid=uuid4(),
            completed=list(one.tools),
        )
        for one in past
    )


QUIBBLE, WOBBLE = "a" * 32, "b" * 32
PAST = [
    Past(request=f"{verb} the {noun}", tools=(uid,))
    for verb, uid in (("quibble", QUIBBLE), ("wobble", WOBBLE))
    for noun in ("papers", "lot", "rest")
]


def likely(tenant: Tenant, kee: Caller) -> list[str] | None:
    """The tools that a request comes to by what was learned."""
    with acting_as(kee), shelf.held(tenant_id=tenant.pk) as held:
        return None if held.history is None else [uid for uid, _ in held.history.likely("quibble these", {}).tools]


@pytest.mark.django_db(transaction=True)
def test_planner_learns_and_forgets(tenant: Tenant, kee: Caller) -> None:
    with acting_as(kee):
        note(kee, PAST * 10)
    with acting_as_system("test"):
        assert selectors.tenants_with_lessons() == [tenant.pk]

    ticks.run("plans.learn")

    assert likely(tenant, kee) == [QUIBBLE]
    with acting_as_system("test"):
        assert selectors.tenants_with_lessons() == []
    with acting_as_system("test"), erasure.redacting():
        erasure.erase(tenant.pk, "quibble the lot")
    assert likely(tenant, kee) is None
    again = services.learn(tenant_id=tenant.pk)
    assert again is not None
    assert likely(tenant, kee) == [QUIBBLE]


def test_a_twentieth_more_is_worth_learning(tenant: Tenant, as_kee: Caller) -> None:
    note(as_kee, PAST * 8)  # two less than the first fifty
    assert selectors.tenants_with_lessons() == []
    services.learn(tenant_id=tenant.pk)
    note(as_kee, PAST[:4])
    assert selectors.tenants_with_lessons() == []
    note(as_kee, PAST[:1])
    assert selectors.tenants_with_lessons() == [tenant.pk]


_ASKED = {
    "t-invoice": ("send the invoice to the client", "bill the customer for the work"),
    "t-photo": ("resize the photo for the site", "make the picture smaller"),
    "t-mail": ("write a mail to the team", "tell my colleagues by mail"),
}
PLANS = [
    Past(request=f"{text} {extra}", tools=(uid,))
    for uid, texts in _ASKED.items()
    for text in texts
    for extra in ("", "please", "today", "for Kim", "before noon", "again")
] + [
    Past(
        request=f"resize the photo and mail it {extra}",
        tools=("t-photo", "t-mail"),
        links=frozenset({("t-photo", "t-mail")}),
    )
    for extra in ("", "to Kim", "now", "to the team")
]


def nothing(_text: str) -> dict[str, float]:
    return {}


def tools(model: History, text: str) -> list[str]:
    return sorted(uid for uid, _ in model.likely(text, {}).tools)


def test_requests_come_to_the_tools_that_served_such_words() -> None:
    model = learn(PLANS, nothing)

    assert tools(model, "please bill that customer") == ["t-invoice"]
    assert tools(model, "mail the resized photo to the team") == ["t-mail", "t-photo"]
    assert model.likely("water the flowers", {}).tools == ()


def test_order_is_that_of_past_plans_whatever_is_mentioned_first() -> None:
    model = learn(PLANS, nothing)

    assert model.ordered({"t-mail": 0, "t-photo": 5}) == ["t-photo", "t-mail"]
    assert model.ordered({"t-mail": 0, "t-invoice": 5}) == ["t-mail", "t-invoice"]
    assert (model.links("t-photo", "t-mail"), model.links("t-mail", "t-invoice")) == (1.0, None)


def test_plans_that_mostly_use_tools_of_their_own_say_nothing() -> None:
    rare = [Past(request=f"send the invoice of shop {number}", tools=(f"t-{number}",)) for number in range(len(PLANS))]

    assert learn(PLANS[:18], nothing).likely("send the invoice to the client", {}).tools
    assert learn([*rare, *PLANS[:18]], nothing).likely("send the invoice to the client", {}).tools == ()


def test_stored_model_says_the_same() -> None:
    model = learn(PLANS, nothing)
    again = History.loads(model.dumps())

    assert model.dumps() == again.dumps()
    assert model.likely("bill the customer", {}) == again.likely("bill the customer", {})


def test_one_plan_is_enough_to_learn_from() -> None:
    model = learn(PLANS[:1], nothing)

    assert model.requests == 1
    assert np.isfinite(model.likely("send the invoice", {}).confidence)
