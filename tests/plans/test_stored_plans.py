"""Plans as rows and receipts: made in one transaction, never changed, seen by their principal alone."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import IntegrityError, connection, transaction
from django.test import Client
from prometheus_client import REGISTRY

from apps.core import ticks
from apps.memory import services as memory
from apps.plans import errors, selectors, services
from apps.plans.documents import plan_hash
from apps.plans.models import MOST_DELEGATES, Delegate, Plan, PlanStep, WaitingPlan
from apps.plans.services import PlanRequest
from apps.plans.services.planning import EXPIRY
from apps.plans.shapes import MOST_MONEY
from apps.principals.errors import UnknownPrincipal
from apps.principals.models import Tenant
from apps.principals.scopes import Kind, Scope
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from apps.receipts import selectors as receipts
from apps.receipts.models import Receipt
from apps.workers.services import health
from apps.workers.services import registry as workers
from apps.workers.trust import Tier
from tests.factories import T0, make_caller, make_tenant, make_token
from tests.plans import shelf
from tests.workers.factories import enroll, make_key, make_manifest, signed

NOTHING = {"filesystem": "none", "network": "none", "execution": "none"}
ANALYZES = {"type": "object", "properties": {"repo_path": {"type": "string"}}, "required": ["repo_path"]}
FLAGSHIP = "Analyze the Python codebase at /path/to/repo and suggest optimizations"


def register_example_workers(caller: Caller) -> None:
    """The two workers of the example, signed by a key that may grant `verified`."""
    key = make_key()
    enroll(caller, key, Tier.VERIFIED)
    for worker_id, tool, effects, runtime in (
        ("code-analyzer-001", shelf.ANALYZE, {"filesystem": "read", "network": "none", "execution": "none"}, "long"),
        (
            "optimization-suggester-002",
            shelf.SUGGEST,
            {"filesystem": "none", "network": "outbound", "execution": "none"},
            "fast",
        ),
    ):
        manifest = make_manifest(
            worker_id,
            tools=[
                {
                    "name": tool.name,
                    "description": tool.description,
                    "input_schema": tool.input_schema,
                    "output_schema": tool.output_schema,
                }
            ],
            side_effects=effects,
            hints={"expected_runtime": runtime, "cost_band": "low"},
        )
        workers.register(caller=caller, original=signed(manifest, key))


def create(caller: Caller, intent: str = FLAGSHIP, **more: Any) -> services.MadePlan:
    return services.create_plan(caller=caller, request=PlanRequest(intent=intent, **more), now=T0)


@contextmanager
def database_time(moment: datetime) -> Iterator[None]:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("select set_config('gatehouse.now', %s, true)", [moment.isoformat()])
        yield
        cursor.execute("select set_config('gatehouse.now', null, true)")


def timed() -> float:
    return REGISTRY.get_sample_value("delegate_plan_generation_with_receipt_duration_seconds_count") or 0.0


def test_a_plan_is_timed_once_it_and_its_receipt_are_stored(
    as_kee: Caller, django_capture_on_commit_callbacks: Callable[..., AbstractContextManager[list[Any]]]
) -> None:
    before = timed()
    with django_capture_on_commit_callbacks(execute=True):
        create(as_kee)
        assert timed() == before
    assert timed() == before + 1


def test_a_plan_is_stored_with_its_steps_and_proved_by_a_ledger_receipt(as_kee: Caller) -> None:
    register_example_workers(as_kee)

    made = create(as_kee, context={"language": "python", "priority": "high"})

    assert [step["step_type"] for step in made.document["steps"]] == [
        "queue_execution",
        "wait_for",
        "call_worker",
        "aggregate",
        "escalate",
    ]
    assert made.readiness.can_execute_now
    stored = selectors.plan(made.plan_id)
    assert stored.document == made.document
    assert stored.plan_hash == plan_hash(stored.document)
    assert PlanStep.objects.filter(plan__plan_id=made.plan_id).count() == 5
    receipt = receipts.find(made.receipt_id)
    assert receipt.uuid == made.receipt_uuid
    assert (receipt.event_type, receipt.source_system, receipt.surface) == ("plan_created", "delegate", "ledger")
    assert receipt.receipt_id == f"R.20260103T201500Z.delegate.{made.plan_id}"
    assert receipt.metadata["step_count"] == 5
    assert receipt.artifact_pointer == made.plan_id


def test_without_a_cause_the_request_is_the_root_of_the_chain(as_kee: Caller) -> None:
    made = create(as_kee)

    chain = receipts.chain(made.receipt_id)

    assert [link.event_type for link in chain] == ["task_received", "plan_created"]


def test_a_given_cause_is_the_cause(as_kee: Caller) -> None:
    first = create(as_kee)

    second = create(as_kee, caused_by=first.receipt_id)

    assert receipts.find(second.receipt_id).caused_by_id == receipts.find(first.receipt_id).pk
    assert Receipt.objects.filter(event_type="task_received").count() == 1


def test_a_plan_is_owed_by_its_principal_and_a_refusal_by_nobody(as_kee: Caller) -> None:
    register_example_workers(as_kee)

    create(as_kee, "Delete all files from the production server")
    assert receipts.obligations(owed_by=as_kee.principal_id) == []

    create(as_kee)
    assert len(receipts.obligations(owed_by=as_kee.principal_id)) == 1


def test_unsigned_workers_with_effects_are_not_planned_for(as_kee: Caller) -> None:
    workers.register(caller=as_kee, original=make_manifest())

    made = create(as_kee, "Analyze the code repository at /srv/app")

    assert made.document["status"] == "needs_escalation"
    assert made.document["missing"][0]["kind"] == "permission"
    assert not made.readiness.can_execute_now


def test_a_worker_that_leaves_is_planned_for_no_more_and_a_full_one_delays(as_kee: Caller) -> None:
    register_example_workers(as_kee)
    health.heartbeat(caller=as_kee, worker_id="code-analyzer-001", status="healthy", current_load=1.0, available=False)
    made = create(as_kee)
    assert made.readiness.can_execute_now is False

    workers.unregister(caller=as_kee, worker_id="code-analyzer-001")
    assert selectors.readiness(made.document).can_execute_now is False
    assert create(as_kee).document["status"] == "needs_escalation"


def test_a_used_hour_delays_a_plan_and_is_told_beside_it_not_in_it(as_kee: Caller) -> None:
    register_example_workers(as_kee)
    now = datetime.now(UTC)
    with database_time(now):
        first = create(as_kee)
        for _ in range(50):  # a hundred an hour, of which its tier allows half
            workers.take_call(worker_id="code-analyzer-001")
        full = create(as_kee)
    share = timedelta(hours=1) / 50
    with database_time(now + share):
        again = create(as_kee)

    assert first.readiness == selectors.Readiness(can_execute_now=True, wait=timedelta(0))
    assert full.readiness == selectors.Readiness(can_execute_now=False, wait=share)
    assert again.readiness == first.readiness
    assert full.document["steps"] == first.document["steps"]


def test_the_same_intent_and_epochs_give_the_same_plan_but_for_its_name_and_time(as_kee: Caller) -> None:
    register_example_workers(as_kee)

    one, two = (dict(create(as_kee).document) for _ in range(2))

    for document in (one, two):
        for name in ("plan_id", "created_at", "plan_hash"):
            del document[name]
    assert one == two


def test_grounding_that_exists_is_kept_and_the_rest_is_said(as_kee: Caller) -> None:
    observation = memory.store_observation(author=as_kee, text="Prefer small functions.", now=T0)

    made = create(
        as_kee, context={"memory_refs": [f"obs-{observation.pk}", "pattern-1000000000000000", "nonsense", 10**30]}
    )

    assert made.document["references"]["inputs"]["memory_ids"] == [observation.pk]
    left_out = [text for text in made.document["assumptions"] if "not known here" in text]
    assert len(left_out) == 3


def test_a_plan_that_nobody_begins_is_abandoned_when_its_time_is_over(tenant: Tenant, as_kee: Caller) -> None:
    register_example_workers(as_kee)
    made = create(as_kee)
    with database_time(T0 + EXPIRY - timedelta(microseconds=1)):
        assert selectors.expired(limit=9) == []
    with database_time(T0 + EXPIRY):
        assert selectors.expired(limit=9) == [(tenant.pk, made.plan_id)]

    assert services.abandon_expired(plan_id=made.plan_id, now=T0 + EXPIRY)

    assert receipts.obligations(owed_by=as_kee.principal_id) == []
    abandoned = Receipt.objects.get(event_type="plan_abandoned")
    assert (abandoned.surface, abandoned.metadata["reason"]) == ("ledger", "expired")
    assert not services.abandon_expired(plan_id=made.plan_id, now=T0 + EXPIRY)
    assert selectors.expired(limit=9) == []


def test_a_plan_that_was_begun_never_expires(as_kee: Caller) -> None:
    register_example_workers(as_kee)
    made = create(as_kee)
    assert services.take_up(plan_id=made.plan_id)

    assert not services.abandon_expired(plan_id=made.plan_id, now=T0 + EXPIRY)

    assert len(receipts.obligations(owed_by=as_kee.principal_id)) == 1
    assert not services.take_up(plan_id=made.plan_id)


def test_a_refusal_waits_for_nobody(as_kee: Caller) -> None:
    create(as_kee, "Delete all files from the production server")

    assert WaitingPlan.objects.count() == 0


@pytest.mark.django_db(transaction=True)
def test_the_tick_abandons_what_waits_too_long_in_every_tenant(kee: Caller) -> None:
    other = make_caller(make_tenant("other"), "Ann")
    for caller in (kee, other):
        with acting_as(caller):
            register_example_workers(caller)
            create(caller)

    ticks.run("plans.abandon")

    with acting_as_system("test"):
        assert Receipt.objects.filter(event_type="plan_abandoned").count() == 2
        assert WaitingPlan.objects.count() == 0


def test_a_plan_never_changes(as_kee: Caller) -> None:
    made = create(as_kee)

    with pytest.raises(IntegrityError), transaction.atomic():
        Plan.objects.filter(plan_id=made.plan_id).update(intent="something else")
    with pytest.raises(IntegrityError), transaction.atomic():
        PlanStep.objects.filter(plan__plan_id=made.plan_id).update(step_id="step-9")


def test_another_principals_plan_is_unknown(tenant: Tenant, as_kee: Caller) -> None:
    made = create(as_kee)
    other = make_caller(tenant, "Rival")

    with acting_as(other), pytest.raises(errors.UnknownPlan):
        selectors.plan_for(made.plan_id, caller=other)
    assert selectors.plan_for(made.plan_id, caller=as_kee).plan_id == made.plan_id


def test_what_cannot_be_planned_for_leaves_nothing_behind(as_kee: Caller) -> None:
    with pytest.raises(errors.UnknownDelegate):
        create(as_kee, delegate_id="nobody")
    with pytest.raises(errors.UnknownCurrency):
        create(as_kee, currency="EUR")

    assert (Plan.objects.count(), Receipt.objects.count()) == (0, 0)


ASKED_ON = {
    "name": "analyze_repository",
    "description": "Analyze a code repository.",
    "input_schema": {
        "type": "object",
        "properties": {
            "repo_path": {"type": "string"},
            "delegation_path": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["repo_path", "delegation_path"],
    },
}


def key_of(delegate_id: str) -> str:
    return str(Delegate.objects.get(delegate_id=delegate_id).key)


def department(tenant: Tenant, name: str) -> Caller:
    caller = make_caller(tenant, f"{name}-delegate", kind=Kind.DELEGATE)
    services.set_delegate(
        tenant_id=tenant.pk, delegate_id=name, principal=caller.name, parent="delegate", scope="", now=T0
    )
    return caller


def test_a_delegate_that_is_asked_is_told_through_whom_and_no_wish_comes_back(tenant: Tenant, as_kee: Caller) -> None:
    workers.register(caller=as_kee, original=make_manifest("code-dept", tools=[ASKED_ON], side_effects=NOTHING))
    wish = "Analyze the code repository at /srv/app"
    above = create(as_kee, wish, context={"delegation_path": ["a lie"]})
    below = department(tenant, "code")
    workers.register(caller=below, original=make_manifest("testers", tools=[ASKED_ON], side_effects=NOTHING))
    path = above.document["steps"][0]["params"]["delegation_path"]
    assert path == [key_of("delegate")]
    assert above.document["steps"][0]["provenance"]["delegation_path"] == {"source": "delegation"}

    asked = create(as_kee, wish, delegate_id="code", delegation_path=tuple(path))

    further = asked.document["steps"][0]["params"]["delegation_path"]
    assert further == [key_of("delegate"), key_of("code")]
    before = (Plan.objects.count(), Receipt.objects.count())
    for delegate_id in (None, "code"):
        with pytest.raises(errors.DelegationLoop):
            create(as_kee, wish, delegate_id=delegate_id, delegation_path=tuple(further))
    with pytest.raises(errors.DelegationTooDeep):
        create(as_kee, wish, delegation_path=tuple(f"other-{number}" for number in range(MOST_DELEGATES)))
    assert (Plan.objects.count(), Receipt.objects.count()) == before


def test_delegates_are_known_by_different_keys(tenant: Tenant, as_kee: Caller) -> None:
    create(as_kee)
    for name in ("research", "code"):
        department(tenant, name)

    assert len({key_of(name) for name in ("delegate", "research", "code")}) == 3


def test_what_a_worker_allows_comes_from_its_manifest_and_tier(as_kee: Caller) -> None:
    tool = {"name": "analyze_repository", "description": "Analyze a repository.", "input_schema": ANALYZES}
    limits = {"max_payload_bytes": 60, "rate_limit_per_hour": 100}
    workers.register(
        caller=as_kee, original=make_manifest("small", tools=[tool], side_effects=NOTHING, constraints=limits)
    )

    assert create(as_kee, "Analyze the repository at /srv/app").document["status"] == "ready"
    refused = create(as_kee, f"Analyze the repository at /srv/{'a' * 60}").document
    assert [one["kind"] for one in refused["missing"]] == ["limit"]
    assert "small takes 60 bytes a call" in refused["missing"][0]["detail"]


def post(path: str, body: Any, token: str) -> tuple[int, dict[str, Any]]:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = Client().post(path, text, content_type="application/json", headers={"Authorization": f"Bearer {token}"})
    return answer.status_code, answer.json()


def stored() -> tuple[int, int]:
    with acting_as_system("test"):
        return Plan.objects.count(), Receipt.objects.count()


PLAN_BODY = {
    "principal_ai": "Kee",
    "intent": FLAGSHIP,
    "context": {"language": "python", "priority": "high", "memory_refs": ["obs-123", "pattern-45"]},
}


def test_the_planning_door_answers_the_bare_plan_with_its_receipt(tenant: Tenant, kee: Caller) -> None:
    with acting_as(kee):
        register_example_workers(kee)

    status, plan = post("/delegate/plan", PLAN_BODY, make_token(tenant))

    assert status == 200
    assert [step["step_id"] for step in plan["steps"]] == ["step-1", "step-2", "step-3", "step-4", "step-5"]
    assert (plan["principal_ai"], plan["intent"], plan["scope"]) == ("Kee", FLAGSHIP, "code_analysis")
    assert plan["steps"][2]["params"] == {"analysis_pointer": "{{step-1.result_pointer}}"}
    assert str(UUID(plan["receipt_uuid"])) == plan["receipt_uuid"]
    assert plan["receipt_id"].endswith(plan["plan_id"])


def test_the_tools_answer_has_the_members_of_both_versions_and_can_be_read_again(tenant: Tenant, kee: Caller) -> None:
    token = make_token(tenant)
    with acting_as(kee):
        register_example_workers(kee)

    status, made = post("/api/v1/plans", {"intent": FLAGSHIP}, token)

    assert status == 201
    assert made["can_execute_now"] is True
    assert made["estimated_runtime_seconds"] == 302
    assert made["steps"] == made["plan"]["steps"]
    headers = {"Authorization": f"Bearer {token}"}
    found = Client().get(f"/api/v1/plans/{made['plan_id']}", headers=headers).json()
    assert found["plan"] == made["plan"]
    assert Client().get("/api/v1/plans/plan-0", headers=headers).status_code == 404
    assert post("/api/v1/plans/validate", {"plan": made["plan"]}, token)[1] == {
        "valid": True,
        "errors": [],
        "plan_hash": made["plan"]["plan_hash"],
    }
    made["plan"]["steps"][0]["tool_name"] = "delete_everything"
    verdict = post("/api/v1/plans/validate", {"plan": made["plan"]}, token)[1]
    assert (verdict["valid"], verdict["errors"][0]["code"]) == (False, "unknown_tool")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda plan: plan.update(replaces="plan-nowhere"), ("unknown_plan", "/replaces")),
        (lambda plan: plan.update(replaces=plan["plan_id"]), ("unknown_plan", "/replaces")),
        (
            lambda plan: (plan.update(replaces="EARLIER"), plan["steps"][0].update(done=True, worker_id="nobody")),
            ("done_nowhere", "/steps/0/done"),
        ),
    ],
)
def test_what_a_plan_says_is_done_was_done_by_an_earlier_one_of_its_principals(
    tenant: Tenant, kee: Caller, change: Callable[[dict[str, Any]], object], expected: tuple[str, str]
) -> None:
    token = make_token(tenant)
    with acting_as(kee):
        register_example_workers(kee)
    (_, earlier), (_, made) = (post("/api/v1/plans", {"intent": FLAGSHIP}, token) for _ in range(2))
    assert earlier["plan_id"] != made["plan_id"]
    plan = {name: value for name, value in made["plan"].items() if name != "plan_hash"}
    change(plan)
    if plan["replaces"] == "EARLIER":
        plan["replaces"] = earlier["plan_id"]
    found = post("/api/v1/plans/validate", {"plan": plan}, token)[1]["errors"]
    assert expected in [(error["code"], error["path"]) for error in found]

    # Another's plan is no earlier one of one's own.
    plan["replaces"] = earlier["plan_id"]
    theirs = post("/api/v1/plans/validate", {"plan": plan}, make_token(tenant, "Lee"))[1]["errors"]
    assert ("unknown_plan", "/replaces") in [(error["code"], error["path"]) for error in theirs]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        ({}, 422),
        ({"intent": ""}, 422),
        ({"intent": 5}, 422),
        ({"intent": "a\u0000b"}, 422),
        ({"intent": "x" * 30_000}, 413),
        ({"intent": "x" * 1_100_000}, 413),
        ({"intent": "x", "context": [1]}, 422),
        ({"intent": "x", "context": {str(number): number for number in range(201)}}, 422),
        ({"intent": "x", "surprise": 1}, 422),
        ({"intent": "x", "principal_ai": "Somebody"}, 404),
        ({"intent": "x", "delegate_id": "nobody"}, 404),
        ({"intent": "x", "constraints": {"budget": {"max_total_cost": -1}}}, 422),
        ({"intent": "x", "constraints": {"budget": {"max_cost_per_step": MOST_MONEY + 1}}}, 422),
        ({"intent": "x", "constraints": {"budget": {"currency": "EUR"}}}, 422),
    ],
)
def test_a_wrong_request_is_refused_by_name_and_nothing_is_stored(tenant: Tenant, body: Any, status: int) -> None:
    found, answer = post("/delegate/plan", body, make_token(tenant))

    assert found == status
    assert answer["code"]
    assert stored() == (0, 0)


def test_any_odd_but_legal_request_gets_a_plan_or_a_refusal(tenant: Tenant) -> None:
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
        status, answer = post("/delegate/plan", body, token)
        assert (status, answer["status"]) == (200, "needs_escalation")


def test_only_the_scope_opens_the_door(tenant: Tenant) -> None:
    assert post("/delegate/plan", PLAN_BODY, make_token(tenant, scopes=[Scope.INBOX]))[0] == 403
    assert stored() == (0, 0)


def test_another_principal_cannot_be_planned_for(as_kee: Caller) -> None:
    from apps.plans.tools import CreatePlan, create_delegation_plan  # noqa: PLC0415

    with pytest.raises(UnknownPrincipal):
        create_delegation_plan(as_kee, CreatePlan(intent="x", principal_ai="Rival"))
