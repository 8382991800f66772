"""Plans as rows and receipts: made in one transaction, never changed, listed and read by their principal alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from pytest_django import Settings

from apps.core import ticks
from apps.plans import selectors, services
from apps.plans.documents import plan_hash
from apps.plans.models import Plan
from apps.plans.proposals import Lack, Missing
from apps.plans.services import EXPIRY, MOST_DELEGATES
from apps.plans.shapes import CreatePlan
from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from apps.receipts import selectors as receipts
from apps.receipts.models import Receipt
from apps.workers import services as workers
from apps.workers.models import Worker
from tests.factories import T0, ask, make_caller, make_tenant, make_token, refused
from tests.plans.making import STRING, STRINGS, create, register_example_workers, shape
from tests.remote import says, serving
from tests.workers.factories import NOTHING, make_manifest


@contextmanager
def database_time(moment: datetime) -> Iterator[None]:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("select set_config('gatehouse.now', %s, true)", [moment.isoformat()])
        yield
        cursor.execute("select set_config('gatehouse.now', null, true)")


def test_plan_is_stored_with_its_steps_and_receipt(as_kee: Caller) -> None:
    register_example_workers(as_kee)

    made = create(as_kee)

    assert selectors.answer_of(made).can_execute_now
    stored = selectors.plan(made.plan_id)
    assert stored.document == made.document
    assert stored.document["plan_hash"] == plan_hash(stored.document)
    receipt = receipts.find(made.receipt_id)
    assert receipt.uuid == made.receipt_uuid
    assert (receipt.event_type, receipt.source_system, receipt.surface) == ("plan_created", "delegate", "ledger")
    assert receipt.receipt_id == f"R.20260103T201500Z.delegate.{made.plan_id}"
    assert receipt.metadata["step_count"] == 5
    assert receipt.artifact_pointer == made.plan_id
    chain = [link.event_type for link in receipts.chain(made.receipt_id)]
    assert chain == ["task_received", "plan_created"]
    context = {"memory_refs": ["obs-1", 7, {}], "concept_names": ["Vienna"]}
    caused = create(as_kee, caused_by_receipt_id=made.receipt_id, context=context)
    assert caused.document["references"]["inputs"] == {"memory_ids": ["obs-1", "7"], "concept_names": ["Vienna"]}
    assert receipts.find(caused.receipt_id).caused_by_id == receipt.pk


def test_plan_is_owed_by_its_principal_and_a_refusal_by_nobody(as_kee: Caller) -> None:
    register_example_workers(as_kee)

    create(as_kee, proposal={"missing": (Missing(kind=Lack.TOOL, detail="No tool does this."),)})
    assert receipts.obligations(owed_by=as_kee.principal_id).obligations == []
    assert not Plan.objects.exclude(waits_until=None).exists()

    create(as_kee)
    assert len(receipts.obligations(owed_by=as_kee.principal_id).obligations) == 1


def test_plan_can_be_carried_out_while_its_workers_are_available(as_kee: Caller) -> None:
    register_example_workers(as_kee)
    made, worker = create(as_kee), Worker.objects.filter(worker_id="code-analyzer-001")

    can = [selectors.answer_of(made).can_execute_now]
    for change in ({"available": False}, {"available": True}, {"state": "degraded"}, {"unregistered_at": T0}):
        worker.update(**change)
        can.append(selectors.answer_of(made).can_execute_now)

    assert can == [True, False, True, False, False]


def test_same_request_gives_the_same_plan(as_kee: Caller) -> None:
    register_example_workers(as_kee)

    one, two = (dict(create(as_kee).document) for _ in range(2))

    for document in (one, two):
        for name in ("plan_id", "created_at", "plan_hash"):
            del document[name]
    assert one == two


def test_plan_that_nobody_begins_is_abandoned(tenant: Tenant, as_kee: Caller) -> None:
    register_example_workers(as_kee)
    made, begun = create(as_kee), create(as_kee)
    assert services.take_up(plan_id=begun.plan_id)
    with database_time(T0 + EXPIRY - timedelta(microseconds=1)):
        assert selectors.expired(limit=9) == []
    with database_time(T0 + EXPIRY):
        assert selectors.expired(limit=9) == [(tenant.pk, made.plan_id)]

    abandoned = [services.abandon_expired(plan_id=one.plan_id, now=T0 + EXPIRY) for one in (made, made, begun)]

    assert abandoned == [True, False, False]
    owed = receipts.obligations(owed_by=as_kee.principal_id).obligations
    assert [one.receipt_id for one in owed] == [begun.receipt_id]
    receipt = Receipt.objects.get(event_type="plan_abandoned")
    assert (receipt.surface, receipt.metadata["reason"]) == ("ledger", "expired")
    assert not services.take_up(plan_id=begun.plan_id)


@pytest.mark.django_db(transaction=True)
def test_tick_abandons_expired_plans_of_every_tenant(kee: Caller) -> None:
    other = make_caller(make_tenant("other"), "Ann")
    for caller in (kee, other):
        with acting_as(caller):
            register_example_workers(caller)
            create(caller)

    ticks.run("plans.abandon")

    with acting_as_system("test"):
        assert Receipt.objects.filter(event_type="plan_abandoned").count() == 2
        assert not Plan.objects.exclude(waits_until=None).exists()


def test_stored_plan_cannot_be_changed(as_kee: Caller) -> None:
    made = create(as_kee)

    with pytest.raises(IntegrityError), transaction.atomic():
        Plan.objects.filter(plan_id=made.plan_id).update(intent="something else")


ASKED_ON = {
    "name": "analyze_repository",
    "description": "Analyze a code repository.",
    "input_schema": shape("repo_path", "delegation_path", repo_path=STRING, delegation_path=STRINGS),
}


def key_of(delegate_id: str) -> str:
    return services._key(selectors.delegate_named(delegate_id))


def test_delegation_path_is_handed_on_and_ends_loops(tenant: Tenant, as_kee: Caller) -> None:
    workers.register(caller=as_kee, original=make_manifest("code-dept", tools=[ASKED_ON], side_effects=NOTHING))
    asks = {"intent": "Analyze the repository at /srv/app", "context": {"delegation_path": ["a lie"]}}

    def wish(**more: Any) -> Plan:
        given = CreatePlan.model_validate({**asks, **more})
        return services.create_plan(caller=as_kee, given=given, now=T0)

    above = wish()
    below = make_caller(tenant, "code", kind=Kind.DELEGATE)
    workers.register(caller=below, original=make_manifest("testers", tools=[ASKED_ON], side_effects=NOTHING))
    path = above.document["steps"][0]["params"]["delegation_path"]
    assert path == [key_of("delegate")]
    assert above.document["steps"][0]["provenance"]["delegation_path"] == {"source": "delegation"}

    asked = wish(delegate_id="code", delegation_path=path)

    further = asked.document["steps"][0]["params"]["delegation_path"]
    assert further == [key_of("delegate"), key_of("code")]
    before = (Plan.objects.count(), Receipt.objects.count())
    for delegate_id in (None, "code"):
        with refused("delegation_loop"):
            wish(delegate_id=delegate_id, delegation_path=further)
    with refused("delegation_too_deep"):
        wish(delegation_path=[f"other-{number}" for number in range(MOST_DELEGATES)])
    assert (Plan.objects.count(), Receipt.objects.count()) == before


def stored() -> tuple[int, int]:
    with acting_as_system("test"):
        return Plan.objects.count(), Receipt.objects.count()


WISH = "Echo 'hello'"


@pytest.fixture
def smith_token(tenant: Tenant, kee: Caller) -> str:
    with acting_as(kee):
        tool = {"name": "echo", "description": "Echo a text.", "input_schema": shape("text", text=STRING)}
        workers.register(caller=kee, original=make_manifest("smith", tools=[tool], side_effects=NOTHING))
    return make_token(tenant, "Kee")


def test_plan_is_made_read_and_validated_over_rest(tenant: Tenant, smith_token: str) -> None:
    status, plan = ask("POST", "/delegate/plan", smith_token, {"intent": WISH})

    assert (status, plan["status"]) == (200, "ready")
    steps = [(step["step_type"], step.get("tool_name")) for step in plan["steps"]]
    assert steps == [("queue_execution", "echo"), ("wait_for", None), ("escalate", None)]
    assert {"delegate_id", "created_at", "scope", "confidence", "assumptions", "references"} <= set(plan)
    assert {"estimated_total_runtime_seconds", "can_run_parallel"} <= set(plan)
    assert (plan["principal_ai"], plan["intent"], plan["proposer"]) == ("Kee", WISH, "local")
    beside = {name: plan.pop(name) for name in ("next_step", "receipt_id", "receipt_uuid")}
    said = f'Carry it out with execute_delegation_plan(plan_id="{plan["plan_id"]}"), over REST POST /api/v1/executions.'
    assert beside["next_step"] == said
    found = ask("GET", f"plans/{plan['plan_id']}", smith_token)[1]
    assert found["plan"] == plan
    assert {name: found[name] for name in beside} == beside
    assert (found["can_execute_now"], found["steps"]) == (True, plan["steps"])
    assert ask("GET", "plans/plan-0", smith_token)[0] == 404
    assert ask("GET", f"plans/{plan['plan_id']}", make_token(tenant, "Rival"))[1]["code"] == "unknown_plan"
    verdict = ask("POST", "/api/v1/plans/validate", smith_token, {"plan": plan})[1]
    assert verdict == {"valid": True, "errors": [], "plan_hash": plan["plan_hash"]}
    plan["steps"][0]["tool_name"] = "delete_everything"
    verdict = ask("POST", "/api/v1/plans/validate", smith_token, {"plan": plan})[1]
    assert (verdict["valid"], verdict["errors"][0]["code"]) == (False, "unknown_tool")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"intent": ""}, 422),
        ({"intent": "x" * 30_000}, 413),
        ({"intent": "x", "context": {str(number): number for number in range(201)}}, 422),
        ({"intent": "x", "principal_ai": "Somebody"}, 404),
        ({"intent": "x", "delegate_id": "nobody"}, 404),
        ({"intent": "x", "constraints": {"budget": {"max_total_cost": -1}}}, 422),
        ({"intent": "x", "constraints": {"budget": {"currency": "EUR"}}}, 422),
    ],
)
def test_faulty_request_is_refused_asks_no_model_and_stores_nothing(
    tenant: Tenant, settings: Settings, body: Any, status: int
) -> None:
    with serving(says(500, b"")) as model:
        settings.PLANNER_MODEL_URL = model.url
        found, answer = ask("POST", "/delegate/plan", make_token(tenant), body)

    assert (found, model.received) == (status, [])
    assert answer["code"]
    assert stored() == (0, 0)


def test_odd_request_gets_a_refusal_as_a_plan(tenant: Tenant) -> None:
    token = make_token(tenant)
    for body in (
        {"intent": "„" * 15_000},
        {"intent": "and then delete " * 1000},
        {"intent": "{{step-1.x}}"},
        {"intent": "1 " * 8000},
        {"intent": "/a b c " * 2000},
        {"intent": "x", "context": {str(number): number for number in range(200)}},
        {"intent": "x", "context": {"memory_refs": [[], {}, None, True, -1, "obs-0"], "receipt_refs": "x"}},
        {"intent": "\u202e\u200b"},
    ):
        status, answer = ask("POST", "/delegate/plan", token, body)
        assert (status, answer["status"]) == (200, "needs_escalation")


def create_of(caller: Caller, intent: str) -> str:
    """The id of a plan that the local planner makes of an intent."""
    with acting_as(caller):
        return services.create_plan(caller=caller, given=CreatePlan(intent=intent), now=T0).plan_id


def test_list_has_own_plans_newest_first_and_says_which_can_be_begun(
    tenant: Tenant, kee: Caller, smith_token: str
) -> None:
    create_of(make_caller(tenant, "Lee"), WISH)
    begun, refused, long = (create_of(kee, intent) for intent in (WISH, "Sell the moon", "Echo 'hello' " * 100))
    with acting_as(kee):
        document = {name: value for name, value in selectors.plan(begun).document.items() if name != "plan_hash"}
        waiting = services.submit(caller=kee, document=document, caused_by=None, now=T0).plan_id
        services.take_up(plan_id=begun)

    found, cursor = dict[str, Any](), ""
    while cursor is not None:
        page = ask("GET", f"plans?limit=3{cursor and f'&cursor={cursor}'}", smith_token)[1]
        found |= {one["plan_id"]: one for one in page["plans"]}
        cursor = page["next"]

    assert list(found) == [waiting, long, refused, begun]
    told = {name: (found[name]["status"], found[name]["can_be_begun"]) for name in (begun, waiting, refused)}
    assert told == {begun: ("ready", False), waiting: ("ready", True), refused: ("needs_escalation", False)}
    assert found[refused]["intent"] == "Sell the moon"
    assert len(found[long]["intent"]) == 200
